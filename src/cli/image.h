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

/* Makes the layer of an image out of its bytes in `file`, unless the store has it. */
int image_layer_make(struct keeper_link *keeper, int images, const char *state_dir, int file,
                     const struct image_layer *l, struct pd_err *e);
