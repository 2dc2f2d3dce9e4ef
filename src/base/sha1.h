/* sha1: the digest of FIPS 180-4, for the one use that is left for it: the key of a WebSocket,
 * where it keeps no secret (net/ws.h). Pure, and for programs that link no OpenSSL. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SHA1_SIZE 20u

void sha1(const void *data, size_t len, uint8_t ret[SHA1_SIZE]);
