/* Text for a terminal. Names and messages are escaped as a whole. Output of commands goes through a
 * filter that lets colours pass and shows everything else that a terminal would obey; it holds
 * bytes back only while they may be the beginning of a character or of a colour. */
#include "client/text.h"

#include "base/banned.h"

#include <stdint.h>

/* The length of the well-formed UTF-8 character at p, 0 for none, or -1 when p ends within one. */
static int decode(const unsigned char *p, size_t len, uint32_t *ret)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};

    int n = p[0] < 0x80 ? 1 : p[0] >= 0xc2 && p[0] < 0xe0 ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : 0;
    if (p[0] >= 0xf0 && p[0] < 0xf5)
        n = 4;
    if (n <= 1) {
        *ret = p[0];
        return n;
    }

    uint32_t c = p[0] & (0x7fu >> n);
    for (int i = 1; i < n; i++) {
        if ((size_t)i >= len)
            return -1;
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3f);
    }

    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0;
    *ret = c;
    return n;
}

/* Controls of Unicode that a terminal may obey, and those that reorder or hide what is read. */
static int is_hidden(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0xad || c == 0x61c || c == 0x180e ||
           (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2060 && c <= 0x206f) || c == 0xfeff || (c >= 0xfff9 && c <= 0xfffb) ||
           (c >= 0xe0000 && c <= 0xe0fff);
}

void text_escape(struct buf *out, const void *text, size_t len)
{
    const unsigned char *p = text;

    while (len) {
        uint32_t c = 0;
        int n = decode(p, len, &c);
        if (n <= 0 || c < 0x80) {
            if (n <= 0 || c < 0x20 || c == 0x7f)
                buf_printf(out, "\\x%02x", p[0]);
            else
                buf_putc(out, (char)c);
            n = 1;
        } else if (is_hidden(c)) {
            buf_printf(out, "\\u{%x}", (unsigned)c);
        } else {
            buf_put(out, p, (size_t)n);
        }
        p += n;
        len -= (size_t)n;
    }
}

size_t text_width(const void *text, size_t len)
{
    const unsigned char *p = text;
    size_t width = 0;

    for (size_t i = 0; i < len; i++)
        width += (p[i] & 0xc0) != 0x80;
    return width;
}

static void show(struct buf *out, unsigned char c)
{
    if (c < 0x20 || c == 0x7f) {
        buf_putc(out, '^');
        buf_putc(out, (char)(c ^ 0x40));
    } else if (c < 0x80) {
        buf_putc(out, (char)c);
    } else {
        buf_printf(out, "\\x%02x", c);
    }
}

/* Looks at what is held. Returns how many of its bytes are decided upon and written; 0: it takes
 * more to tell. */
static unsigned settle(struct text_filter *f, struct buf *out, int is_end)
{
    const unsigned char *p = f->held;
    if (p[0] == 0x1b) {
        unsigned i = 1;
        if (i < f->count && p[i] == '[') {
            i++;
            while (i < f->count && ((p[i] >= '0' && p[i] <= '9') || p[i] == ';' || p[i] == ':'))
                i++;
        }
        if (i >= 2 && i < f->count && p[i] == 'm') {
            buf_put(out, p, i + 1);
            return i + 1;
        }
        if (i == f->count && i < sizeof f->held && !is_end)
            return 0;
        show(out, p[0]);
        return 1;
    }

    if (p[0] < 0x80) {
        if (p[0] >= 0x20 ? p[0] != 0x7f : strchr("\n\r\t\b", p[0]) && p[0])
            buf_putc(out, (char)p[0]);
        else
            show(out, p[0]);
        return 1;
    }

    uint32_t c = 0;
    int n = decode(p, f->count, &c);
    if (n < 0 && !is_end)
        return 0;

    if (n > 0 && !is_hidden(c))
        buf_put(out, p, (size_t)n);
    else if (n > 0)
        buf_printf(out, "\\u{%x}", (unsigned)c);
    else
        show(out, p[0]);
    return n > 0 ? (unsigned)n : 1;
}

static void drain(struct text_filter *f, struct buf *out, int is_end)
{
    unsigned used;

    while (f->count && (used = settle(f, out, is_end))) {
        f->count -= used;
        memmove(f->held, f->held + used, f->count);
    }
}

void text_filter(struct text_filter *f, struct buf *out, const void *data, size_t len)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < len; i++) {
        /* Plain text, by far the most, takes the short way. */
        if (!f->count && p[i] >= 0x20 && p[i] < 0x7f) {
            buf_putc(out, (char)p[i]);
            continue;
        }
        f->held[f->count++] = p[i];
        drain(f, out, 0);
    }
}

void text_filter_end(struct text_filter *f, struct buf *out)
{
    drain(f, out, 1);
}
