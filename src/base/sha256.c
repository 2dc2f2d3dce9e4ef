/* How this works: bytes are gathered into blocks of 64, and each block is mixed into eight words by
 * 64 rounds. The constants of the rounds are the first 32 bits of the fractional parts of the cube
 * roots of the first 64 primes, as the standard has them; the test checks them by its vectors. */
#include "base/sha256.h"

#include "base/banned.h"

#include <string.h>

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t x, unsigned by)
{
    return x >> by | x << (32 - by);
}

static void expand(const uint8_t *block, uint32_t w[64])
{
    for (unsigned i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];

    for (unsigned i = 16; i < 64; i++) {
        uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
}

/* Eight words by their names: an array that moves on in each round was 17 times as slow, with musl.
 */
static void mix(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64];
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];

    expand(block, w);
    for (unsigned i = 0; i < 64; i++) {
        uint32_t high = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
        uint32_t choice = (e & f) ^ (~e & g);
        uint32_t one = h + high + choice + constants[i] + w[i];
        uint32_t low = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
        uint32_t most = (a & b) ^ (a & c) ^ (b & c);

        h = g, g = f, f = e, e = d + one;
        d = c, c = b, b = a, a = one + low + most;
    }

    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

void sha256_put(struct sha256 *s, const void *data, size_t len)
{
    const uint8_t *at = data;

    while (len) {
        size_t used = s->len % 64, part = len < 64 - used ? len : 64 - used;
        if (part == 64) {
            mix(s->h, at);
        } else {
            memcpy(s->block + used, at, part);
            if (used + part == 64)
                mix(s->h, s->block);
        }
        s->len += part;
        at += part;
        len -= part;
    }
}

void sha256_end(struct sha256 *s, uint8_t ret[SHA256_SIZE])
{
    static const uint8_t padding[64] = {0x80};
    uint64_t bits = s->len * 8;
    uint8_t tail[8];
    for (unsigned i = 0; i < 8; i++)
        tail[i] = (uint8_t)(bits >> (56 - 8 * i));

    sha256_put(s, padding, 1 + (119 - s->len % 64) % 64);
    sha256_put(s, tail, sizeof tail);
    for (unsigned i = 0; i < SHA256_SIZE; i++)
        ret[i] = (uint8_t)(s->h[i / 4] >> (24 - i % 4 * 8));
}

void sha256_end_hex(struct sha256 *s, char ret[SHA256_HEX_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t digest[SHA256_SIZE];

    sha256_end(s, digest);
    for (unsigned i = 0; i < SHA256_SIZE; i++) {
        ret[2 * i] = digits[digest[i] >> 4];
        ret[2 * i + 1] = digits[digest[i] & 15];
    }
    ret[2 * SHA256_SIZE] = '\0';
}

void sha256_hex(const void *data, size_t len, char ret[SHA256_HEX_SIZE])
{
    struct sha256 s = SHA256_INIT;
    sha256_put(&s, data, len);
    sha256_end_hex(&s, ret);
}
