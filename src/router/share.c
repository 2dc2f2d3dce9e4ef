/* murmur3 over one run of bytes, and over "SALT:KEY" without putting the two together first: the
 * hash takes its bytes one by one and mixes whenever it has four. */
#include "router/share.h"

#include "base/banned.h"

struct hash {
    uint32_t h;
    uint32_t word; /* the bytes that were not mixed in yet, the first one lowest */
    uint32_t len;
};

static uint32_t rotate(uint32_t x, unsigned by)
{
    return x << by | x >> (32 - by);
}

static uint32_t scramble(uint32_t word)
{
    return rotate(word * 0xcc9e2d51u, 15) * 0x1b873593u;
}

static void hash_take(struct hash *s, const void *data, size_t len)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < len; i++) {
        s->word |= (uint32_t)p[i] << (s->len % 4 * 8);
        if (++s->len % 4)
            continue;
        s->h = rotate(s->h ^ scramble(s->word), 13) * 5 + 0xe6546b64u;
        s->word = 0;
    }
}

static uint32_t hash_end(const struct hash *s)
{
    uint32_t h = s->h ^ scramble(s->word) ^ s->len;

    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

uint32_t murmur3(const void *data, size_t len, uint32_t seed)
{
    struct hash s = {.h = seed};
    hash_take(&s, data, len);
    return hash_end(&s);
}

unsigned share_of(const char *salt, const char *key)
{
    struct hash s = {.h = 0};

    hash_take(&s, salt, strlen(salt));
    hash_take(&s, ":", 1);
    hash_take(&s, key, strlen(key));
    return hash_end(&s) % SHARE_ALL;
}
