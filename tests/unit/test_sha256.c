/* SHA-256 by the standard's vectors, and in pieces of every size. */
#include "unit.h"

#include "base/sha256.h"

#include "base/banned.h"

#include <stdio.h>
#include <string.h>

static const char *hex(const void *data, size_t len, size_t piece)
{
    static char text[2 * SHA256_SIZE + 1];
    uint8_t value[SHA256_SIZE];
    struct sha256 s = SHA256_INIT;

    for (size_t at = 0; at < len; at += piece)
        sha256_put(&s, (const char *)data + at, len - at < piece ? len - at : piece);
    sha256_end(&s, value);

    for (unsigned i = 0; i < SHA256_SIZE; i++)
        snprintf(text + 2 * i, 3, "%02x", value[i]);
    return text;
}

static void test_vectors(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };

    for (size_t i = 0; i < COUNT(rows); i++)
        assert_string_equal(hex(rows[i][0], strlen(rows[i][0]), 64), rows[i][1]);

    static char many[1000000];
    memset(many, 'a', sizeof many);
    assert_string_equal(hex(many, sizeof many, 4096),
                        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void test_pieces_of_every_size(void **state)
{
    (void)state;
    char text[200], whole[2 * SHA256_SIZE + 1];

    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i * 7);
    for (size_t len = 0; len <= sizeof text; len++) {
        snprintf(whole, sizeof whole, "%s", hex(text, len, sizeof text));
        for (size_t piece = 1; piece <= 130; piece++)
            assert_string_equal(hex(text, len, piece), whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_pieces_of_every_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
