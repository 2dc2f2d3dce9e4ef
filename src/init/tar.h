/* tar: headers of tar archives, read and written. Pure: no file is touched here.
 *
 * Read are ustar, pax (path, linkpath, size, mtime) and GNU (long names, base-256 numbers)
 * archives, and the old ones before them. An archive is hostile: every number is checked, every
 * name is without NUL, what is not understood is refused and not guessed.
 *
 * How to read one: give each block to tar_header. TAR_META: the next meta_size bytes, and padding
 * to whole blocks, belong to the description of the entry that follows; give them to tar_meta.
 * TAR_ENTRY: `entry` is complete, and entry.size bytes of contents and padding follow. TAR_END: a
 * block of zeroes. */
#pragma once

#include "base/buf.h"

#include <stdint.h>

struct pd_err;

#define TAR_BLOCK    512u
#define TAR_META_MAX (1u << 20) /* of one extended header */
#define TAR_PATH_MAX (256u << 10)
#define TAR_SIZE_MAX (INT64_MAX / 2)

enum tar_type { TAR_FILE, TAR_DIR, TAR_SYMLINK, TAR_HARDLINK, TAR_FIFO, TAR_DEVICE };

struct tar_entry {
    enum tar_type type;
    uint32_t mode; /* the low twelve bits */
    uint32_t uid, gid;
    uint64_t size; /* of the contents that follow, whatever the type */
    int64_t mtime;
    const char *path;
    const char *link; /* of links, else "" */
};

struct tar_reader {
    struct tar_entry entry;
    uint64_t meta_size;
    char meta_type;
    /* Of the next entry, from extended headers. */
    struct buf path, link;
    uint64_t size;
    int64_t mtime;
    int has_path, has_link, has_size, has_mtime;
};

#define TAR_READER_INIT                                                                            \
    ((struct tar_reader){.path = BUF_INIT(TAR_PATH_MAX), .link = BUF_INIT(TAR_PATH_MAX)})
void tar_reader_done(struct tar_reader *r);
#define auto_tar_reader __attribute__((cleanup(tar_reader_done))) struct tar_reader

enum tar_step { TAR_ENTRY, TAR_META, TAR_END };
/* Returns a tar_step, or -1: PD_INVALID (no archive, or a broken one), PD_UNSUPPORTED (sparse). The
 * entry's strings live until the next call. */
int tar_header(struct tar_reader *r, const uint8_t block[TAR_BLOCK], struct pd_err *e);
/* The bytes that TAR_META asked for, without padding. 0 or -1. */
int tar_meta(struct tar_reader *r, const uint8_t *data, size_t len, struct pd_err *e);

/* Appends the header of an entry: one block, or with a pax header as many as it takes. What does
 * not fit a buf shows there. */
void tar_write_header(struct buf *out, const struct tar_entry *t);
/* Appends the end of an archive: two blocks of zeroes. */
void tar_write_end(struct buf *out);
/* How many bytes of padding follow contents of this size. */
static inline unsigned tar_padding(uint64_t size)
{
    return (unsigned)(-size & (TAR_BLOCK - 1));
}
