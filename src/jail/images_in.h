/* images_in: what the two parts of the store of images share. Not for others. */
#pragma once

#include "base/buf.h"
#include "wire/image_record.h"
#include "wire/image_ref.h"

#include <stddef.h>

struct pd_err;

#define IMAGES_NAMES_MAX  (4u << 20) /* of the file of names, as it is read, */
#define IMAGES_NAMES_STEP 65536u     /* so much at a time */
#define IMAGES_NAMES_EACH 64u        /* of one image: tenants give names, and all are listed */

struct images_line {
    char id[IMAGE_HEX_LEN + 1];
    char name[IMAGE_TEXT_MAX];
};

/* A directory of the store; or -errno. */
int images_dir(int images, const char *name);
/* The file of names. */
int images_read_names(int images, struct buf *out, struct pd_err *e);
/* The next line of it, from *at = 0 on: 1, or 0 behind the last one. */
int images_next_name(const struct buf *names, size_t *at, struct images_line *ret);
/* Is it an id, or the beginning of one? *text loses its "sha256:" then. */
int images_is_id(const char **text);
/* Removes an image that nobody uses, with its names and the layers that no other has. PD_CONFLICT
 * while a sandbox or a root does. The store is locked alone. */
int images_remove_id(int images, const char *id, struct pd_err *e);
/* Removes layers that no image has: those of one that is gone, and of imports that failed later on.
 * The store is locked alone. */
void images_drop_layers(int images);
/* Removes what has come of layers that nobody is fetching. */
void images_drop_parts(int images);
/* Notes that an image is used now: whoever makes room asks when that was. */
void images_note_use(int records, const char *id);
