/* gunzip: decodes gzip as it comes, in pieces of any size, with bounds.
 *
 * The memory is one window (some 40 KiB), whatever comes. What may come out is bounded: up to
 * `free_bytes` in any case, beyond that `ratio` times what went in. Several members behind each
 * other are one text, as the standard has it; anything else behind the end is refused. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pd_err;
struct gunzip;

/* Much of nothing is honest; what is more than that and hundreds of times its size is made to hurt:
 * gzip can do a thousand. */
#define GUNZIP_FREE_BYTES (UINT64_C(256) << 20)
#define GUNZIP_RATIO      200u

/* NULL with PD_CAPACITY. */
struct gunzip *gunzip_new(uint64_t free_bytes, unsigned ratio, struct pd_err *e);
void gunzip_free(struct gunzip *g);
static inline void gunzip_done(struct gunzip **g)
{
    gunzip_free(*g);
}
#define auto_gunzip __attribute__((cleanup(gunzip_done))) struct gunzip *

/* Takes from in[0..len) and writes at most `size` (not 0) bytes to `out`. *ret_used and *ret_len
 * say how many; when both are 0 all was taken and more is needed. -1: PD_INVALID for what is no
 * gzip, PD_TOO_LARGE beyond the bounds; then nothing more is to be had. */
int gunzip_next(struct gunzip *g, const void *in, size_t len, void *out, size_t size,
                size_t *ret_used, size_t *ret_len, struct pd_err *e);
/* At the end of the input: 0 when that is the end of a member, or -1. No bytes at all are no gzip
 * either. */
int gunzip_finish(const struct gunzip *g, struct pd_err *e);
