/* Buffers with a maximum in their type. What does not fit is not written and sets `overflow`, so a
 * row of puts needs one check, at its end. */
#include "base/buf.h"

#include "base/banned.h"

void buf_done(struct buf *b)
{
    free(b->data);
    *b = BUF_INIT(b->max);
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->overflow = 0;
}

uint8_t *buf_reserve(struct buf *b, size_t len)
{
    if (len > b->max || b->len > b->max - len) {
        b->overflow = 1;
        return NULL;
    }

    size_t need = b->len + len;
    if (need > b->cap) {
        size_t cap = b->cap ? b->cap : 256;
        while (cap < need && cap <= b->max / 2)
            cap *= 2;
        if (cap < need || cap > b->max)
            cap = b->max;

        uint8_t *data = realloc(b->data, cap);
        if (!data) {
            b->overflow = 1;
            return NULL;
        }
        b->data = data;
        b->cap = cap;
    }
    return b->data ? b->data + b->len : NULL;
}

int buf_put(struct buf *b, const void *data, size_t len)
{
    if (!len)
        return 0;

    uint8_t *to = buf_reserve(b, len);
    if (!to)
        return -1;
    memcpy(to, data, len);
    b->len += len;
    return 0;
}

int buf_puts(struct buf *b, const char *s)
{
    return buf_put(b, s, strlen(s));
}

int buf_putc(struct buf *b, char c)
{
    return buf_put(b, &c, 1);
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);

    if (n < 0) {
        b->overflow = 1;
        return -1;
    }

    /* vsnprintf wants room for its NUL, which does not count. */
    uint8_t *to = buf_reserve(b, (size_t)n + 1);
    if (!to)
        return -1;

    va_start(ap, fmt);
    vsnprintf((char *)to, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return 0;
}

const char *buf_cstr(struct buf *b)
{
    uint8_t *end = buf_reserve(b, 1);
    if (!end)
        return NULL;
    *end = 0;
    return (const char *)b->data;
}
