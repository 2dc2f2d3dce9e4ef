/* base64: the standard alphabet, with padding. Pure functions. */
#pragma once

#include "base/buf.h"

/* Appends the text. -1 when the buf is full. */
int base64_encode(struct buf *out, const void *data, size_t len);

/* Appends the bytes; nothing is appended on failure. One text stands for given bytes and no other:
 * no blanks, no line ends, no missing padding, no bits that nothing shows. */
enum base64_error {
    BASE64_GOOD,
    BASE64_LENGTH, /* no multiple of 4 */
    BASE64_DIGIT,  /* *ret_at (unless NULL): the first character that is none, from 0 */
    BASE64_BITS,   /* the last ones are not zero */
    BASE64_FULL,   /* no room in `out` */
};
enum base64_error base64_decode(struct buf *out, const char *text, size_t len, size_t *ret_at);
