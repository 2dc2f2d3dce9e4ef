/* Archives of any bytes, read as the worker does it, without files. A flag in each header block's
 * place lets the fuzzer skip the checksum: byte 0 says whether headers are sealed before they are
 * read.
 *
 * Properties: names are never empty and hold no NUL; sizes are in bounds; a refusal has a reason;
 * an entry that was read can be written, and is then read as the same. And globs and patterns of
 * any bytes come to an end. */
#include "base/err.h"
#include "init/match.h"
#include "init/tar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void seal(uint8_t block[TAR_BLOCK])
{
    unsigned sum = 0, any = 0;
    for (size_t i = 0; i < TAR_BLOCK; i++)
        any |= block[i];
    if (!any)
        return;
    memset(block + 148, ' ', 8);
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += block[i];
    char text[8];
    snprintf(text, sizeof text, "%06o", sum);
    memcpy(block + 148, text, 8);
}

static void check_entry(const struct tar_entry *t)
{
    require(t->path && t->path[0] && t->link);
    require(t->size <= TAR_SIZE_MAX && t->mode <= 07777);
    if (t->type == TAR_DEVICE || (t->type == TAR_DIR && t->size) ||
        (t->type == TAR_HARDLINK && t->size))
        return; /* never written so */

    auto_buf b = BUF_INIT(2 * TAR_META_MAX);
    struct tar_entry clean = *t;
    if (t->type != TAR_SYMLINK && t->type != TAR_HARDLINK)
        clean.link = "";
    tar_write_header(&b, &clean);
    require(!b.overflow && b.len % TAR_BLOCK == 0);

    auto_tar_reader r = TAR_READER_INIT;
    struct pd_err e;
    const uint8_t *p = b.data;
    int step = tar_header(&r, p, &e);
    p += TAR_BLOCK;

    if (step == TAR_META) {
        require(tar_meta(&r, p, (size_t)r.meta_size, &e) == 0);
        p += r.meta_size + tar_padding(r.meta_size);
        step = tar_header(&r, p, &e);
    }

    require(step == TAR_ENTRY);
    require(!strcmp(r.entry.path, t->path) && !strcmp(r.entry.link, clean.link));
    require(r.entry.size == t->size && r.entry.mode == t->mode && r.entry.mtime == t->mtime);
    require(r.entry.type == t->type || t->path[strlen(t->path) - 1] == '/');
}

static void read_archive(const uint8_t *data, size_t size, int sealed)
{
    auto_tar_reader r = TAR_READER_INIT;

    while (size >= TAR_BLOCK) {
        uint8_t block[TAR_BLOCK];
        struct pd_err e = {.msg = ""};
        memcpy(block, data, sizeof block);
        if (sealed)
            seal(block);
        data += TAR_BLOCK;
        size -= TAR_BLOCK;

        int step = tar_header(&r, block, &e);
        if (step == TAR_END)
            return;
        if (step < 0) {
            require(e.msg[0]);
            return;
        }

        uint64_t skip = step == TAR_META ? r.meta_size : r.entry.size;
        if (step == TAR_ENTRY)
            check_entry(&r.entry);
        if (skip > size)
            return;

        if (step == TAR_META) {
            uint8_t *copy = malloc((size_t)skip + 1);
            require(copy != NULL);
            memcpy(copy, data, (size_t)skip);
            int ok = tar_meta(&r, copy, (size_t)skip, &e);
            free(copy);
            if (ok < 0) {
                require(e.msg[0]);
                return;
            }
        }

        skip += tar_padding(skip);
        if (skip > size)
            return;
        data += skip;
        size -= (size_t)skip;
    }
}

static void match_any(const uint8_t *data, size_t size)
{
    char text[300] = "";
    size_t n = size < sizeof text - 2 ? size : sizeof text - 2;
    memcpy(text, data, n);
    const char *path = text + strlen(text) + 1; /* behind the first NUL, or empty */
    (void)glob_match(text, path < text + sizeof text ? path : "");
    if (!strpbrk(text, "*?[\\"))
        require(glob_match(text, text));
    require(glob_match("**", text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    read_archive(data + 1, size - 1, data[0] & 1);
    match_any(data + 1, size - 1);
    return 0;
}
