/* image_record: what an image is made of, as the store keeps it (docs/images.md).
 *
 * Written by the reader of images, which runs in a jail, and by nobody else; kept in a file of the
 * store, read by whoever makes sandboxes. So the decoder believes nothing: what it hands out has
 * digests that are digests, names that are names of images, and bounded lists. Pure.
 *
 * Strings of a decoded record point into the bytes that it was read from. */
#pragma once

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

struct pd_err;

#define IMAGE_HEX_LEN     64u /* a digest without its "sha256:" */
#define IMAGE_LAYERS_MAX  127u
#define IMAGE_NAMES_MAX   16u
#define IMAGE_ENV_MAX     128u
#define IMAGE_WORDS_MAX   128u
#define IMAGE_STRING_MAX  8192u
#define IMAGE_RECORD_MAX  (256u << 10)
#define IMAGE_RECORDS_MAX 16u /* images in one archive */

/* How the bytes of a layer are packed. */
enum image_packing { IMAGE_PLAIN, IMAGE_GZIP, IMAGE_ZSTD, IMAGE_PACKING_COUNT };
const char *image_packing_name(uint32_t packing);

struct image_layer {
    char diff[IMAGE_HEX_LEN + 1]; /* digest of the archive that it unpacks to: its name */
    char blob[IMAGE_HEX_LEN + 1]; /* digest of its packed bytes, or "": not known */
    uint64_t offset, size;        /* where those are in the file that is imported */
    uint32_t packing;
};

struct image_record {
    char id[IMAGE_HEX_LEN + 1]; /* digest of its configuration */
    const char *names[IMAGE_NAMES_MAX];
    uint32_t name_count;
    const char *env[IMAGE_ENV_MAX]; /* NAME=VALUE */
    uint32_t env_count;
    const char *entrypoint[IMAGE_WORDS_MAX];
    uint32_t entrypoint_count;
    const char *cmd[IMAGE_WORDS_MAX];
    uint32_t cmd_count;
    const char *workdir;                         /* absolute, or "" */
    const char *user;                            /* as the image says it, or "" */
    const char *platform;                        /* such as amd64: only those for linux are taken */
    const char *created;                         /* as the image says it, or "" */
    struct image_layer layers[IMAGE_LAYERS_MAX]; /* the lowest first */
    uint32_t layer_count;
};

/* 64 of 0-9a-f and nothing behind them? */
int image_is_hex(const char *text);

/* Appends to an empty buf; overflow shows there. */
void image_record_encode(struct buf *b, const struct image_record *r);
/* 0, or -1: PD_PROTOCOL (not the bytes of a record), PD_INVALID (names the value). */
int image_record_decode(const uint8_t *data, size_t len, struct image_record *ret,
                        struct pd_err *e);
/* What the decoder checks besides the form. PD_INVALID names the value. */
int image_record_check(const struct image_record *r, struct pd_err *e);
