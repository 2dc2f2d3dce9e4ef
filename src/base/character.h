/* character: where UTF-8 may be cut, so that no character is told in halves. Pure functions; bytes
 * that are no UTF-8 are cut anywhere. */
#pragma once

#include <stddef.h>

/* How many of the bytes make whole characters: all, or up to three fewer, when the last character
 * needs more bytes than there are. */
size_t character_whole(const void *data, size_t len);
/* How many of the first bytes, three at most, go on with a character that began before them. */
size_t character_rest(const void *data, size_t len);
