/* The first byte says how to cut the rest, which may be gzip.
 *
 * Properties: pieces of any size give the same text and the same judgement; what is accepted zlib
 * unpacks to the same by itself; never more comes out than the bounds allow. */
#include "base/buf.h"
#include "base/err.h"
#include "net/gunzip.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FREE_BYTES (1u << 16)
#define RATIO      20u
#define ROOM       512u

static void require(int holds)
{
    if (!holds)
        abort();
}

static int unpack(const uint8_t *data, size_t len, size_t step, size_t room, struct buf *out,
                  struct pd_err *e)
{
    uint8_t piece[ROOM];
    auto_gunzip g = gunzip_new(FREE_BYTES, RATIO, NULL);
    size_t at = 0, used, made;
    require(g != NULL);

    for (;;) {
        size_t n = len - at < step ? len - at : step;
        if (gunzip_next(g, data + at, n, piece, room, &used, &made, e) < 0)
            return -1;
        require(used <= n && made <= room);
        at += used;
        buf_put(out, piece, made);
        require(!out->overflow && (out->len <= FREE_BYTES || out->len / RATIO <= at));
        if (!used && !made && at == len)
            return gunzip_finish(g, e);
        require(used || made);
    }
}

/* The first member, all at once. */
static void check_first(const uint8_t *data, size_t len, const struct buf *text)
{
    z_stream z = {0};
    uint8_t *out = malloc(text->len + 1);
    require(out && inflateInit2(&z, 15 + 16) == Z_OK);
    z.next_in = (Bytef *)(uintptr_t)data;
    z.avail_in = (uInt)len;
    z.next_out = out;
    z.avail_out = (uInt)text->len + 1;
    require(inflate(&z, Z_FINISH) == Z_STREAM_END);
    size_t made = text->len + 1 - z.avail_out;
    require(made <= text->len && (!made || !memcmp(out, text->data, made)));
    require(z.avail_in || made == text->len);
    inflateEnd(&z);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || size > 1 << 16)
        return 0;
    size_t step = 1 + data[0] % 32, room = 1 + (data[0] >> 5) * 70;
    struct pd_err e[2] = {0};
    auto_buf whole = BUF_INIT(8 << 20);
    auto_buf pieces = BUF_INIT(8 << 20);
    data++;
    size--;
    int r = unpack(data, size, size + 1, ROOM, &whole, &e[0]);
    int again = unpack(data, size, step, room, &pieces, &e[1]);

    /* How far a bomb comes depends on what was unpacked at once. */
    if ((r < 0 && e[0].code == PD_TOO_LARGE) || (again < 0 && e[1].code == PD_TOO_LARGE))
        return 0;
    require(r == again);
    if (r < 0)
        return 0;
    require(whole.len == pieces.len && (!whole.len || !memcmp(whole.data, pieces.data, whole.len)));
    check_first(data, size, &whole);
    return 0;
}
