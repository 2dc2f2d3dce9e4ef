/* Unpacks the bytes of a layer: plain, gzip or zstd, with their digest made on the way. Beyond
 * 64 MiB it may come to 200 times as much; how much in all, is decided outside. */
#include "image/image.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "net/gunzip.h"
#include "wire/image_record.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

#define CHUNK      (256u << 10)
#define FREE_BYTES (UINT64_C(64) << 20) /* whatever they were packed to */

struct unpacking {
    int from, to;
    uint64_t left; /* of the packed bytes */
    uint64_t in, out;
    struct sha256 sha;
    uint8_t input[CHUNK], output[CHUNK];
};

/* The next packed bytes: how many, 0 behind the last, or -1. */
static ssize_t next_input(struct unpacking *u, struct pd_err *e)
{
    size_t want = u->left < sizeof u->input ? (size_t)u->left : sizeof u->input;
    ssize_t n;

    if (!want)
        return 0;
    do
        n = read(u->from, u->input, want);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return pd_fail_sys(e, "read the layer");
    if (n == 0)
        return pd_fail(e, PD_INVALID, "the layer ends too early: it was cut off");

    sha256_put(&u->sha, u->input, (size_t)n);
    u->left -= (uint64_t)n;
    u->in += (uint64_t)n;
    return n;
}

static int put_output(struct unpacking *u, const void *data, size_t len, struct pd_err *e)
{
    int r = fd_write_all(u->to, data, len);
    errno = -r;
    u->out += len;
    return r < 0 ? pd_fail_sys(e, "write the unpacked layer") : 0;
}

static int unpack_plain(struct unpacking *u, struct pd_err *e)
{
    ssize_t n;
    while ((n = next_input(u, e)) > 0)
        if (put_output(u, u->input, (size_t)n, e) < 0)
            return -1;
    return n < 0 ? -1 : 0;
}

static int unpack_gzip(struct unpacking *u, struct pd_err *e)
{
    auto_gunzip g = gunzip_new(FREE_BYTES, GUNZIP_RATIO, e);
    ssize_t n;

    if (!g)
        return -1;
    while ((n = next_input(u, e)) > 0) {
        size_t used = 0, took, made;
        do {
            if (gunzip_next(g, u->input + used, (size_t)n - used, u->output, sizeof u->output,
                            &took, &made, e) < 0 ||
                put_output(u, u->output, made, e) < 0)
                return -1;
            used += took;
        } while (took || made);
    }
    return n < 0 ? -1 : gunzip_finish(g, e);
}

#ifdef HAVE_ZSTD
static int unpack_zstd_in(struct unpacking *u, ZSTD_DCtx *z, struct pd_err *e)
{
    size_t state = 1; /* 0: at the end of a frame */
    ssize_t n;

    while ((n = next_input(u, e)) > 0) {
        ZSTD_inBuffer in = {u->input, (size_t)n, 0};
        ZSTD_outBuffer out;
        do {
            out = (ZSTD_outBuffer){u->output, sizeof u->output, 0};
            state = ZSTD_decompressStream(z, &out, &in);
            if (ZSTD_isError(state))
                return pd_fail(e, PD_INVALID, "the layer is no zstd: %.100s",
                               ZSTD_getErrorName(state));
            if (put_output(u, u->output, out.pos, e) < 0)
                return -1;
            if (u->out > FREE_BYTES && u->out / GUNZIP_RATIO > u->in)
                return pd_fail(e, PD_TOO_LARGE, "the layer unpacks to more than %u times its size",
                               GUNZIP_RATIO);
        } while (in.pos < in.size || out.pos == out.size);
    }
    if (n < 0)
        return -1;
    return state == 0 ? 0 : pd_fail(e, PD_INVALID, "the layer is no zstd: it is cut off");
}

static int unpack_zstd(struct unpacking *u, struct pd_err *e)
{
    ZSTD_DCtx *z = ZSTD_createDCtx();
    if (!z)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    int r = unpack_zstd_in(u, z, e);
    ZSTD_freeDCtx(z);
    return r;
}
#else
static int unpack_zstd(struct unpacking *u, struct pd_err *e)
{
    (void)u;
    return pd_fail(e, PD_UNSUPPORTED,
                   "the layer is packed with zstd, which this build lacks: install libzstd-dev and "
                   "build again, or have the image packed with gzip");
}
#endif

int unpack_stream(int from, int to, uint32_t packing, uint64_t size, const char *hex,
                  struct pd_err *e)
{
    static struct unpacking u;
    char found[IMAGE_HEX_LEN + 1];

    u.from = from;
    u.to = to;
    u.left = size;
    u.in = u.out = 0;
    u.sha = SHA256_INIT;
    int r = packing == IMAGE_GZIP   ? unpack_gzip(&u, e)
            : packing == IMAGE_ZSTD ? unpack_zstd(&u, e)
                                    : unpack_plain(&u, e);
    if (r < 0)
        return -1;

    sha256_end_hex(&u.sha, found);
    return !strcmp(hex, "-") || !strcmp(hex, found)
               ? 0
               : pd_fail(e, PD_INVALID, "the layer sha256:%.64s has the digest sha256:%.64s", hex,
                         found);
}
