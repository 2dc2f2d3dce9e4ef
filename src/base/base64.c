/* Base64 with padding as RFC 4648 has it, and strictly: no blanks, no missing padding, and no bits
 * that nothing shows, so every sequence of bytes has one text. */
#include "base/base64.h"

#include "base/banned.h"

#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int base64_encode(struct buf *out, const void *data, size_t len)
{
    const uint8_t *d = data;

    if (!len)
        return 0; /* for which a buf may have no place yet */

    char *to = (char *)buf_reserve(out, (len + 2) / 3 * 4);
    if (!to)
        return -1;

    for (size_t i = 0; i < len; i += 3) {
        uint32_t v = (uint32_t)d[i] << 16 | (i + 1 < len ? (uint32_t)d[i + 1] << 8 : 0) |
                     (i + 2 < len ? d[i + 2] : 0);
        *to++ = digits[v >> 18];
        *to++ = digits[v >> 12 & 63];
        *to++ = i + 1 < len ? digits[v >> 6 & 63] : '=';
        *to++ = i + 2 < len ? digits[v & 63] : '=';
    }

    out->len += (len + 2) / 3 * 4;
    return 0;
}

static int digit_value(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

enum base64_error base64_decode(struct buf *out, const char *text, size_t len, size_t *ret_at)
{
    size_t pad = 0, n = 0;
    uint32_t word = 0;

    while (pad < 2 && pad < len && text[len - 1 - pad] == '=')
        pad++;

    if (len % 4)
        return BASE64_LENGTH;
    if (!len)
        return BASE64_GOOD;

    uint8_t *to = buf_reserve(out, len / 4 * 3);
    if (!to)
        return BASE64_FULL;

    for (size_t i = 0; i < len; i++) {
        int d = i < len - pad ? digit_value(text[i]) : 0;
        if (d < 0) {
            if (ret_at)
                *ret_at = i;
            return BASE64_DIGIT;
        }
        word = word << 6 | (uint32_t)d;
        if (i % 4 == 3) {
            to[n++] = (uint8_t)(word >> 16);
            to[n++] = (uint8_t)(word >> 8);
            to[n++] = (uint8_t)word;
        }
    }

    /* Bits that nothing shows would let two texts stand for the same bytes. */
    if (pad && (word & (pad == 1 ? 0xffu : 0xffffu)))
        return BASE64_BITS;

    out->len += len / 4 * 3 - pad;
    return BASE64_GOOD;
}
