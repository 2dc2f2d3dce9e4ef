/* sha256: the digest of FIPS 180-4, for programs that link no OpenSSL (init).
 *
 *     struct sha256 s = SHA256_INIT;
 *     sha256_put(&s, data, len);
 *     sha256_end(&s, digest);
 *
 * Pure. Its time depends on the length alone: no branch and no index follows from the data. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SHA256_SIZE     32u
#define SHA256_HEX_SIZE (2 * SHA256_SIZE + 1)

struct sha256 {
    uint32_t h[8];
    uint64_t len;      /* bytes so far */
    uint8_t block[64]; /* the last len % 64 of them */
};
#define SHA256_INIT                                                                                \
    ((struct sha256){.h = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au, 0x510e527fu,        \
                           0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u}})

void sha256_put(struct sha256 *s, const void *data, size_t len);
/* The structure is of no more use afterwards. */
void sha256_end(struct sha256 *s, uint8_t ret[SHA256_SIZE]);
/* The same as text, in small letters; and of what is there as a whole. */
void sha256_end_hex(struct sha256 *s, char ret[SHA256_HEX_SIZE]);
void sha256_hex(const void *data, size_t len, char ret[SHA256_HEX_SIZE]);
