/* utf8: whether bytes are UTF-8, also when they come in pieces. Pure functions.
 *
 * Refuses overlong forms, surrogates and what is beyond U+10FFFF, at the first byte that cannot be
 * right. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Start with a zeroed struct. */
struct utf8 {
    uint8_t left;      /* bytes that the current character still needs */
    uint8_t low, high; /* what the next of them may be */
};

/* 0, or -1: not UTF-8. After that the struct is of no use. */
int utf8_feed(struct utf8 *u, const void *data, size_t len);
/* Whether no character is open. */
int utf8_is_complete(const struct utf8 *u);
/* All in one. */
int utf8_is_valid(const void *data, size_t len);
