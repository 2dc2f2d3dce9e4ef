/* proof: how the ends of a link show each other that they know the box's key, which itself never
 * travels. Pure. */
#pragma once

#include "base/sha256.h"
#include "link/link_frame.h"

#include <stdbool.h>

#define LINK_KEY        32u
#define LINK_PROOF_SIZE SHA256_SIZE

/* HMAC-SHA256 (RFC 2104) of a key of any length. */
void hmac_sha256(const void *key, size_t key_len, const void *data, size_t len,
                 uint8_t ret[SHA256_SIZE]);

/* What an end has to show: it depends on its role and on both HELLOs, so that it is good for one
 * connection and cannot be sent back to the one who made it. */
void proof_make(const uint8_t key[LINK_KEY], enum link_role role,
                const uint8_t keeper_hello[LINK_HELLO_SIZE],
                const uint8_t box_hello[LINK_HELLO_SIZE], uint8_t ret[LINK_PROOF_SIZE]);
/* Compares in a time that does not depend on where they differ. */
bool proof_equal(const uint8_t a[LINK_PROOF_SIZE], const uint8_t b[LINK_PROOF_SIZE]);
