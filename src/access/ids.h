/* ids: names that nobody can guess, and the small encodings that go with them.
 *
 * Pure functions but for id_* and time_now_ms. Nothing here allocates or fails for want of
 * anything: what can fail is parsing, and it says why. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pd_err;

#define ID_SANDBOX_LEN 20 /* [a-z0-9]: 103 bits, fit for a label of a host name */
#define ID_KEY_PREFIX  "e2b_"
#define ID_KEY_LEN     44 /* the prefix and 40 hex digits: 160 bits */
#define ID_TENANT_MAX  63
#define TIME_TEXT_LEN  24 /* 2026-01-02T03:04:05.678Z */

/* From the kernel's random source; every character is equally likely. */
void id_sandbox(char ret[ID_SANDBOX_LEN + 1]);
void id_key(char ret[ID_KEY_LEN + 1]);

/* 1 when the text has that form (not: when there is such a thing), else 0. NULL is fine. */
int id_is_sandbox(const char *text);
int id_is_key(const char *text);
int id_is_tenant(const char *text); /* [a-z0-9_-]{1,63} */

/* Lower case, with a NUL: `ret` has room for 2 * len + 1. */
void hex_encode(const void *data, size_t len, char *ret);
/* Exactly `len` bytes from exactly 2 * len digits (either case) and a NUL. 0 or -1; `ret` is
 * written only on success. */
int hex_decode(const char *text, void *ret, size_t len);

/* Milliseconds since 1970, UTC, by the wall clock. */
uint64_t time_now_ms(void);
/* RFC 3339 in UTC with milliseconds. A time past the year 9999 becomes its last millisecond. */
void time_format_ms(uint64_t ms, char ret[TIME_TEXT_LEN + 1]);
/* RFC 3339 with `Z` or an offset and any number of decimals (cut to milliseconds), 1970 to 9999.
 * PD_INVALID names `what` and the text. */
int time_parse_ms(const char *what, const char *text, uint64_t *ret, struct pd_err *e);

/* SipHash-2-4 under the given key. */
uint64_t siphash(const uint8_t key[16], const void *data, size_t len);
/* The same under a constant key: stable across restarts and releases, so it may be stored. Tells
 * whether two requests are alike; it is no wall against somebody who looks for collisions. */
uint64_t hash_bytes(const void *data, size_t len);
