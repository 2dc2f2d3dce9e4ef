/* buf: growable bytes with a hard maximum in the type.
 *
 * A buf never grows past `max`; an append that would do so fails, marks the buf as overflowed and
 * leaves its contents as they were. So a chain of appends needs one check at its end: `b.overflow`
 * also stands for "out of memory". */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    uint8_t *data;
    size_t len;
    size_t cap;
    size_t max;
    int overflow;
};

#define BUF_INIT(maximum) ((struct buf){.max = (maximum)})

/* Frees the bytes and leaves an empty buf with the same maximum. Fine on a zeroed struct. */
void buf_done(struct buf *b);
/* Forgets the contents, keeps the memory. */
void buf_clear(struct buf *b);

/* Each appends and returns 0, or -1 when the maximum or the memory does not allow it. */
int buf_put(struct buf *b, const void *data, size_t len);
int buf_puts(struct buf *b, const char *s);
int buf_putc(struct buf *b, char c);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Makes room for `len` bytes at the end and returns where, or NULL. The caller adds to b->len. */
uint8_t *buf_reserve(struct buf *b, size_t len);
/* The contents with a NUL behind them (not counted in len), or NULL when there is no room. */
const char *buf_cstr(struct buf *b);

#define auto_buf __attribute__((cleanup(buf_done))) struct buf
