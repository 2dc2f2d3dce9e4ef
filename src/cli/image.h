/* image: what the commands of `paddock image` share. */
#pragma once

#include "base/err.h"
#include "jail/images.h"

#include <stdbool.h>
#include <stdint.h>

struct keeper_link;

/* The most that one layer may unpack to. */
#define IMAGE_LAYER_MAX (UINT64_C(16) << 30)

/* The reader of images (src/image), started in a jail of its own with `from` as its input. */
struct image_reader {
    int pid;
    int out;    /* what it writes */
    int reason; /* why it failed */
    bool is_puller;
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

/* Where an image is pulled from, and to. */
struct image_source {
    const char *state;
    const char *ref;
    const char *registry; /* its address, or "-" */
    int auth;             /* a file with credentials, or -1 */
};
enum image_fetch_state {
    IMAGE_WAITS,
    IMAGE_DOWNLOADS,
    IMAGE_UNPACKS,
    IMAGE_DONE,
    IMAGE_SHARED /* it was there, or somebody else was quicker */
};
/* How far a layer of a pull has come. Written by the process that fetches it, read by another. */
struct image_fetch {
    _Atomic uint64_t done; /* packed bytes that are here */
    _Atomic uint32_t state;
    struct pd_err why; /* it failed; only to be read when that process has ended */
};
/* Fetches a layer and unpacks it, unless somebody else does meanwhile, who is waited for. */
int image_fetch_layer(const struct image_source *s, int images, const struct image_layer *l,
                      struct image_fetch *tell, struct pd_err *e);

/* Makes the layer of an image out of its bytes in `file`, unless the store has it. */
int image_layer_make(struct keeper_link *keeper, int images, const char *state_dir, int file,
                     const struct image_layer *l, struct pd_err *e);

/* --- image_tell.c: lines of JSON, and the same for people where `json` is false ---- */

struct image_news {
    const char *layer;
    uint32_t state; /* enum image_fetch_state */
    uint64_t done, total;
    uint32_t layers_done, layers;
    uint64_t bytes_done, bytes;
};
int image_tell_news(const struct image_news *n, struct pd_err *e);
void image_tell_kept(bool json, const char *id, const char *name);
void image_tell_removed(const char *id, void *arg); /* arg: const bool *, whether as JSON */
void image_tell_error(const struct pd_err *why);
/* One image, or all of them, as JSON. */
int image_tell_one(int images, const char *id, struct pd_err *e);
int image_tell_all(int images, struct pd_err *e);

/* PD_TOO_LARGE: an image of `size` is more than the store may have. */
int image_too_large(uint64_t size, uint64_t max, struct pd_err *e);
/* Has images go that nobody has used for long until the store holds at most `max` (0: any), unless
 * others are being brought in, who do it, also if they fail. PD_TOO_LARGE: `keep` ("": none) alone
 * is more than that; it goes, too. */
int image_make_room(const char *state, uint64_t max, const char *keep, struct pd_err *e);
