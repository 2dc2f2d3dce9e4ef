/* Unpacking of gzip, piece by piece, with a bound against bombs: beyond a number of bytes that are
 * free, the output may be only so many times as large as the input so far. Several members in a row
 * are one stream, as RFC 1952 has it. */
#include "net/gunzip.h"

#include "base/err.h"

#include "base/banned.h"

#define ZLIB_CONST
#include <limits.h>
#include <stdlib.h>
#include <zlib.h>

#define GZIP_ONLY (15 + 16) /* window bits; 16: a gzip header, not zlib's */

struct gunzip {
    z_stream z;
    uint64_t free_bytes, ratio, in, out;
    int at_end; /* of a member */
    int broken;
};

struct gunzip *gunzip_new(uint64_t free_bytes, unsigned ratio, struct pd_err *e)
{
    struct gunzip *g = calloc(1, sizeof *g);
    if (!g || inflateInit2(&g->z, GZIP_ONLY) != Z_OK) {
        free(g);
        pd_fail(e, PD_CAPACITY, "out of memory");
        return NULL;
    }

    g->free_bytes = free_bytes;
    g->ratio = ratio;
    return g;
}

void gunzip_free(struct gunzip *g)
{
    if (g)
        inflateEnd(&g->z);
    free(g);
}

static int refuse(struct gunzip *g, struct pd_err *e, const char *what)
{
    g->broken = 1;
    return pd_fail(e, PD_INVALID, "the body is no gzip: %.100s", what);
}

/* One turn of zlib's. Empty at the end of a member, unless another one follows. */
static int inflate_some(struct gunzip *g, struct pd_err *e)
{
    if (g->at_end) {
        if (inflateReset(&g->z) != Z_OK)
            return refuse(g, e, "zlib");
        g->at_end = 0;
    }

    switch (inflate(&g->z, Z_NO_FLUSH)) {
    case Z_STREAM_END:
        g->at_end = 1;
        return 0;
    case Z_OK:
    case Z_BUF_ERROR: /* nothing to do: more input is needed, or room */
        return 0;
    case Z_MEM_ERROR:
        g->broken = 1;
        return pd_fail(e, PD_CAPACITY, "out of memory");
    default:
        return refuse(g, e, g->z.msg ? g->z.msg : "malformed");
    }
}

int gunzip_next(struct gunzip *g, const void *in, size_t len, void *out, size_t size,
                size_t *ret_used, size_t *ret_len, struct pd_err *e)
{
    if (g->broken)
        return refuse(g, e, "it was malformed before");
    *ret_used = *ret_len = 0;
    if (g->at_end && !len)
        return 0;

    uInt in_max = len < UINT_MAX ? (uInt)len : UINT_MAX;
    uInt out_max = size < UINT_MAX ? (uInt)size : UINT_MAX;
    g->z.next_in = in;
    g->z.avail_in = in_max;
    g->z.next_out = out;
    g->z.avail_out = out_max;

    if (inflate_some(g, e) < 0)
        return -1;
    size_t used = in_max - g->z.avail_in, made = out_max - g->z.avail_out;
    g->in += used;
    g->out += made;

    if (g->out > g->free_bytes && g->out / g->ratio > g->in) {
        g->broken = 1;
        return pd_fail(e, PD_TOO_LARGE,
                       "the body unpacks to more than %llu bytes, and to more than %llu times its "
                       "size",
                       (unsigned long long)g->free_bytes, (unsigned long long)g->ratio);
    }

    *ret_used = used;
    *ret_len = made;
    return 0;
}

int gunzip_finish(const struct gunzip *g, struct pd_err *e)
{
    return g->at_end && !g->broken ? 0
                                   : pd_fail(e, PD_INVALID, "the body is no gzip: it is cut off");
}
