/* How this works: blocks of 64 bytes are mixed into five words by 80 rounds. The last block, or the
 * last two, are put together with the padding and the length in bits. */
#include "base/sha1.h"

#include "base/banned.h"

#include <string.h>

static uint32_t rotate(uint32_t x, unsigned by)
{
    return x << by | x >> (32 - by);
}

static void expand(const uint8_t *block, uint32_t w[80])
{
    for (unsigned i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (unsigned i = 16; i < 80; i++)
        w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
}

static void mix(uint32_t h[5], const uint8_t *block)
{
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];

    expand(block, w);
    for (unsigned i = 0; i < 80; i++) {
        uint32_t f = i < 20   ? ((b & c) | (~b & d)) + 0x5a827999
                     : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                     : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc
                              : (b ^ c ^ d) + 0xca62c1d6;
        uint32_t next = rotate(a, 5) + f + e + w[i];
        e = d, d = c, c = rotate(b, 30), b = a, a = next;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
}

void sha1(const void *data, size_t len, uint8_t ret[SHA1_SIZE])
{
    uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    const uint8_t *at = data;
    size_t left = len;
    uint8_t tail[128] = {0};

    for (; left >= 64; left -= 64, at += 64)
        mix(h, at);

    size_t size = left < 56 ? 64 : 128;
    if (left)
        memcpy(tail, at, left);
    tail[left] = 0x80;
    for (unsigned i = 0; i < 8; i++)
        tail[size - 1 - i] = (uint8_t)((uint64_t)len * 8 >> (8 * i));
    for (size_t i = 0; i < size; i += 64)
        mix(h, tail + i);

    for (unsigned i = 0; i < SHA1_SIZE; i++)
        ret[i] = (uint8_t)(h[i / 4] >> (24 - i % 4 * 8));
}
