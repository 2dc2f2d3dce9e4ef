/* image: what the commands of `paddock image` share. */
#pragma once

#include "jail/images.h"

#include <stdint.h>

struct pd_err;
struct keeper_link;

/* The most that one layer may unpack to. */
#define IMAGE_LAYER_MAX (UINT64_C(16) << 30)

/* The reader of images (src/image), started in a jail of its own with `from` as its input. */
struct image_reader {
    int pid;
    int out;    /* what it writes */
    int reason; /* why it failed */
};
int image_reader_start(struct image_reader *r, const char *const *words, int from,
                       struct pd_err *e);
/* Waits for its end. 0, or -1 with its reason. */
int image_reader_finish(struct image_reader *r, struct pd_err *e);
/* All that it writes, then its end. */
int image_reader_read(struct image_reader *r, struct buf *out, struct pd_err *e);
/* The next record of what it has written as a plan, from *at = 0 on: 1, 0 at its end, -1. */
int image_plan_next(const struct buf *plan, size_t *at, struct image_record *ret, struct pd_err *e);

/* The fetcher of images (engine/registry.h), which is no jail: it has the network. `auth`: a file
 * with credentials, or -1. It is finished as a reader is. */
int image_puller_start(struct image_reader *r, const char *const *words, int auth,
                       struct pd_err *e);

/* Packs the OCI layout in a directory into a file without a name in the store: a descriptor to read
 * it by, or -1. */
int image_dir_pack(int dir, int images, struct pd_err *e);

/* Keeps an image whose layers are there, and gives it a name; NULL: those of its record. */
int image_keep(int images, const struct image_record *r, const char *name, struct pd_err *e);
/* image pull: argv begins with "pull". */
int image_pull(const char *state, int argc, char **argv, struct pd_err *e);

/* Makes the layer of an image out of its bytes in `file`, unless the store has it. */
int image_layer_make(struct keeper_link *keeper, int images, const char *state_dir, int file,
                     const struct image_layer *l, struct pd_err *e);
