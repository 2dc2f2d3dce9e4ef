/* SHA-1 by the standard's vectors, and at every length around the end of a block. */
#include "unit.h"

#include "base/sha1.h"

#include "base/banned.h"

#include <stdio.h>
#include <string.h>

static const char *hex(const void *data, size_t len)
{
    static char text[2 * SHA1_SIZE + 1];
    uint8_t value[SHA1_SIZE];

    sha1(data, len, value);
    for (unsigned i = 0; i < SHA1_SIZE; i++)
        snprintf(text + 2 * i, 3, "%02x", value[i]);
    return text;
}

static void test_vectors(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"", "da39a3ee5e6b4b0d3255bfef95601890afd80709"},
        {"abc", "a9993e364706816aba3e25717850c26c9cd0d89d"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "84983e441c3bd26ebaae4aa1f95129e5e54670f1"},
    };

    for (size_t i = 0; i < COUNT(rows); i++)
        assert_string_equal(hex(rows[i][0], strlen(rows[i][0])), rows[i][1]);

    static char many[1000000];
    memset(many, 'a', sizeof many);
    assert_string_equal(hex(many, sizeof many), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

/* The digest of the digests of 0 to 199 bytes, as another program computed it. */
static void test_every_length(void **state)
{
    (void)state;
    uint8_t all[200 * SHA1_SIZE], text[200];

    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)(i * 7);
    for (size_t len = 0; len < sizeof text; len++)
        sha1(text, len, all + len * SHA1_SIZE);
    assert_string_equal(hex(all, sizeof all), "887d03886aa473ff04d2370f0f86577637baf55d");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_every_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
