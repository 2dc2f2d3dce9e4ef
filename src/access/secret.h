/* secret: random bytes that are made once and kept in the store, so that what they sign outlives
 * the daemon. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pd_err;
struct store;

#define SECRET_LEN 32
#define MAC_LEN    32

/* Reads the secret of that name, or makes it. */
int secret_load(struct store *store, const char *name, uint8_t ret[SECRET_LEN], struct pd_err *e);
/* HMAC-SHA256 over `purpose` and the text behind it: a secret that signs two kinds of things never
 * signs one for the other. Purposes end with a character that no text begins with. */
int secret_mac(const uint8_t secret[SECRET_LEN], const char *purpose, const char *text, size_t len,
               uint8_t ret[MAC_LEN]);
