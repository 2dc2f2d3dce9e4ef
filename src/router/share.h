/* share: a stable number for a key, so that a percentage of all keys is always the same keys.
 *
 * Pure. The number is murmur3 (x86, 32 bits, seed 0) of "SALT:KEY" modulo 10,000, which other flag
 * systems compute, too. A key is in a share when its number is below it, so raising a share only
 * adds keys. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SHARE_ALL 10000u

uint32_t murmur3(const void *data, size_t len, uint32_t seed);
/* 0 to SHARE_ALL - 1. */
unsigned share_of(const char *salt, const char *key);
