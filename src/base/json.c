/* A writer of JSON into a buffer. Strings may be any bytes: what is no UTF-8 becomes U+FFFD, and
 * characters that a terminal would obey are escaped. */
#include "base/json.h"

#include "base/banned.h"

#include <inttypes.h>

static void separate(struct json *j)
{
    if (j->need_comma)
        buf_putc(j->out, ',');
    j->need_comma = 1;
}

void json_open(struct json *j, char bracket)
{
    separate(j);
    buf_putc(j->out, bracket);
    j->need_comma = 0;
}

void json_close(struct json *j, char bracket)
{
    buf_putc(j->out, bracket);
    j->need_comma = 1;
}

/* The length of the valid UTF-8 sequence at p, or 0. Refuses overlong forms and surrogates. */
static size_t utf8_len(const uint8_t *p, size_t left)
{
    static const struct {
        uint8_t first_min, first_max, second_min, second_max, len;
    } forms[] = {
        {0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };

    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (p[0] < forms[i].first_min || p[0] > forms[i].first_max)
            continue;
        if (forms[i].len > left)
            return 0;
        if (forms[i].len > 1 && (p[1] < forms[i].second_min || p[1] > forms[i].second_max))
            return 0;
        for (size_t k = 2; k < forms[i].len; k++)
            if ((p[k] & 0xc0) != 0x80)
                return 0;
        return forms[i].len;
    }
    return 0;
}

/* Characters beyond ASCII that a terminal obeys (0x80 to 0x9f) or that some programs end a line at:
 * their number, or 0. */
static unsigned commanding(const uint8_t *p, size_t n)
{
    if (n == 2 && p[0] == 0xc2 && p[1] < 0xa0)
        return p[1];
    if (n == 3 && p[0] == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9))
        return 0x2000u + p[2] - 0x80;
    return 0;
}

/* A character beyond ASCII as one escape, or two. */
static void put_escaped(struct buf *out, const uint8_t *p, size_t n)
{
    static const uint8_t first_bits[] = {0, 0, 0x1f, 0x0f, 0x07};
    uint32_t c = p[0] & first_bits[n];
    for (size_t i = 1; i < n; i++)
        c = c << 6 | (p[i] & 0x3f);

    if (c >= 0x10000) {
        buf_printf(out, "\\u%04x", 0xd800 + (unsigned)((c - 0x10000) >> 10));
        c = 0xdc00 + ((c - 0x10000) & 0x3ff);
    }
    buf_printf(out, "\\u%04x", (unsigned)c);
}

static void put_characters(struct buf *out, const uint8_t *p, size_t len, bool ascii)
{
    for (size_t i = 0; i < len;) {
        size_t n = utf8_len(p + i, len - i);
        if (n == 0) {
            buf_puts(out, "\\ufffd");
            i++;
            continue;
        }

        unsigned command = commanding(p + i, n);
        if (ascii && n > 1)
            put_escaped(out, p + i, n);
        else if (command)
            buf_printf(out, "\\u%04x", command);
        else if (n > 1)
            buf_put(out, p + i, n);
        else if (p[i] == '"' || p[i] == '\\')
            buf_printf(out, "\\%c", p[i]);
        else if (p[i] == '\n')
            buf_puts(out, "\\n");
        else if (p[i] == '\t')
            buf_puts(out, "\\t");
        else if (p[i] == '\r')
            buf_puts(out, "\\r");
        else if (p[i] < 0x20 || p[i] == 0x7f)
            buf_printf(out, "\\u%04x", p[i]);
        else
            buf_putc(out, (char)p[i]);

        i += n;
    }
}

static void put_string(struct buf *out, const uint8_t *p, size_t len, bool ascii)
{
    buf_putc(out, '"');
    put_characters(out, p, len, ascii);
    buf_putc(out, '"');
}

void json_key(struct json *j, const char *key)
{
    separate(j);
    put_string(j->out, (const uint8_t *)key, strlen(key), j->ascii);
    buf_putc(j->out, ':');
    j->need_comma = 0;
}

void json_str(struct json *j, const void *text, size_t len)
{
    separate(j);
    put_string(j->out, text, len, j->ascii);
}

void json_str_begin(struct json *j)
{
    separate(j);
    buf_putc(j->out, '"');
}

void json_str_more(struct json *j, const void *text, size_t len)
{
    put_characters(j->out, text, len, j->ascii);
}

void json_str_end(struct json *j)
{
    buf_putc(j->out, '"');
}

void json_cstr(struct json *j, const char *text)
{
    if (text)
        json_str(j, text, strlen(text));
    else
        json_none(j);
}

void json_int(struct json *j, int64_t v)
{
    separate(j);
    buf_printf(j->out, "%" PRId64, v);
}

void json_uint(struct json *j, uint64_t v)
{
    separate(j);
    buf_printf(j->out, "%" PRIu64, v);
}

void json_bool(struct json *j, int v)
{
    separate(j);
    buf_puts(j->out, v ? "true" : "false");
}

void json_none(struct json *j)
{
    separate(j);
    buf_puts(j->out, "null");
}

void json_milli(struct json *j, uint64_t thousandths)
{
    separate(j);
    buf_printf(j->out, "%" PRIu64 ".%03u", thousandths / 1000, (unsigned)(thousandths % 1000));
}

void json_member_cstr(struct json *j, const char *key, const char *text)
{
    json_key(j, key);
    json_cstr(j, text);
}

void json_member_int(struct json *j, const char *key, int64_t v)
{
    json_key(j, key);
    json_int(j, v);
}

void json_member_uint(struct json *j, const char *key, uint64_t v)
{
    json_key(j, key);
    json_uint(j, v);
}

void json_member_bool(struct json *j, const char *key, int v)
{
    json_key(j, key);
    json_bool(j, v);
}

void json_member_milli(struct json *j, const char *key, uint64_t thousandths)
{
    json_key(j, key);
    json_milli(j, thousandths);
}
