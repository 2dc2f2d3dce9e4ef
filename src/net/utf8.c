/* UTF-8 as Unicode's table of well-formed sequences has it: no overlong forms, no surrogates,
 * nothing above U+10FFFF. The state is how many bytes are still to come and the range of the next
 * one, so text may come in pieces. */
#include "net/utf8.h"

#include "base/banned.h"

static int first_byte(struct utf8 *u, uint8_t c)
{
    /* By the first byte: how many follow, and the range of the second. */
    static const struct {
        uint8_t first, last, left, low, high;
    } forms[] = {
        {0xc2, 0xdf, 1, 0x80, 0xbf}, {0xe0, 0xe0, 2, 0xa0, 0xbf}, {0xe1, 0xec, 2, 0x80, 0xbf},
        {0xed, 0xed, 2, 0x80, 0x9f}, {0xee, 0xef, 2, 0x80, 0xbf}, {0xf0, 0xf0, 3, 0x90, 0xbf},
        {0xf1, 0xf3, 3, 0x80, 0xbf}, {0xf4, 0xf4, 3, 0x80, 0x8f},
    };

    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (c >= forms[i].first && c <= forms[i].last) {
            *u = (struct utf8){forms[i].left, forms[i].low, forms[i].high};
            return 0;
        }
    return -1;
}

int utf8_feed(struct utf8 *u, const void *data, size_t len)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < len; i++) {
        if (!u->left) {
            if (p[i] >= 0x80 && first_byte(u, p[i]))
                return -1;
            continue;
        }
        if (p[i] < u->low || p[i] > u->high)
            return -1;
        *u = (struct utf8){(uint8_t)(u->left - 1), 0x80, 0xbf};
    }
    return 0;
}

int utf8_is_complete(const struct utf8 *u)
{
    return !u->left;
}

int utf8_is_valid(const void *data, size_t len)
{
    struct utf8 u = {0};
    return !utf8_feed(&u, data, len) && utf8_is_complete(&u);
}
