/* HMAC on top of base/sha256, for programs that link no OpenSSL, and the proofs of a link made of
 * it. What is signed begins with a text of its own, so that no other use of a key fits. */
#include "link/proof.h"

#include "base/banned.h"

#include <string.h>

#define BLOCK 64u

static void begin(struct sha256 *s, const uint8_t key[BLOCK], uint8_t pad)
{
    uint8_t block[BLOCK];
    for (unsigned i = 0; i < BLOCK; i++)
        block[i] = key[i] ^ pad;
    *s = SHA256_INIT;
    sha256_put(s, block, sizeof block);
}

void hmac_sha256(const void *key, size_t key_len, const void *data, size_t len,
                 uint8_t ret[SHA256_SIZE])
{
    uint8_t whole[BLOCK] = {0};
    struct sha256 s = SHA256_INIT;

    if (key_len > BLOCK) {
        sha256_put(&s, key, key_len);
        sha256_end(&s, whole);
    } else {
        memcpy(whole, key, key_len);
    }

    uint8_t inner[SHA256_SIZE];
    begin(&s, whole, 0x36);
    sha256_put(&s, data, len);
    sha256_end(&s, inner);

    begin(&s, whole, 0x5c);
    sha256_put(&s, inner, sizeof inner);
    sha256_end(&s, ret);
}

void proof_make(const uint8_t key[LINK_KEY], enum link_role role,
                const uint8_t keeper_hello[LINK_HELLO_SIZE],
                const uint8_t box_hello[LINK_HELLO_SIZE], uint8_t ret[LINK_PROOF_SIZE])
{
    static const char use[] = "paddock link proof 1";
    uint8_t all[sizeof use + 1 + 2 * LINK_HELLO_SIZE];

    memcpy(all, use, sizeof use);
    all[sizeof use] = (uint8_t)role;
    memcpy(all + sizeof use + 1, keeper_hello, LINK_HELLO_SIZE);
    memcpy(all + sizeof use + 1 + LINK_HELLO_SIZE, box_hello, LINK_HELLO_SIZE);
    hmac_sha256(key, LINK_KEY, all, sizeof all, ret);
}

bool proof_equal(const uint8_t a[LINK_PROOF_SIZE], const uint8_t b[LINK_PROOF_SIZE])
{
    uint8_t differs = 0;
    for (unsigned i = 0; i < LINK_PROOF_SIZE; i++)
        differs |= a[i] ^ b[i];
    return differs == 0;
}
