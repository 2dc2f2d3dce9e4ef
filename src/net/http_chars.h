/* http_chars: which bytes HTTP allows where. For the sources of this layer. */
#pragma once

#include <string.h>

static inline int http_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static inline int http_is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static inline int http_is_hex(char c)
{
    return http_is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static inline int http_is_token(char c)
{
    return http_is_digit(c) || http_is_letter(c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* The bytes of a header's value and of a reason phrase: blanks, visible ASCII, bytes from 0x80 on.
 */
static inline int http_is_text(char c)
{
    unsigned char u = (unsigned char)c;
    return u == '\t' || (u >= 0x20 && u != 0x7f);
}
