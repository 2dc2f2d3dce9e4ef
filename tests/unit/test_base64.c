#include "unit.h"

#include "base/base64.h"

#include "base/banned.h"

#include <string.h>

static const struct {
    const char *bytes;
    size_t len;
    const char *text;
} vectors[] = {
    /* RFC 4648, section 10 */
    {"", 0, ""},
    {"f", 1, "Zg=="},
    {"fo", 2, "Zm8="},
    {"foo", 3, "Zm9v"},
    {"foob", 4, "Zm9vYg=="},
    {"fooba", 5, "Zm9vYmE="},
    {"foobar", 6, "Zm9vYmFy"},
    {"\0", 1, "AA=="},
    {"\xff\xff\xff", 3, "////"},
    {"\xfb\xef\xbe", 3, "++++"},
    {"\0\x10\x83\x10\x51\x87\x20\x92\x8b", 9, "ABCDEFGHIJKL"},
};

static void test_vectors_both_ways(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(vectors); i++) {
        auto_buf text = BUF_INIT(64), bytes = BUF_INIT(64);
        assert_int_equal(base64_encode(&text, vectors[i].bytes, vectors[i].len), 0);
        assert_int_equal(text.len, strlen(vectors[i].text));
        if (text.len)
            assert_memory_equal(text.data, vectors[i].text, text.len);
        assert_int_equal(base64_decode(&bytes, vectors[i].text, strlen(vectors[i].text), NULL),
                         BASE64_GOOD);
        assert_int_equal(bytes.len, vectors[i].len);
        if (bytes.len)
            assert_memory_equal(bytes.data, vectors[i].bytes, bytes.len);
        assert_false(text.overflow || bytes.overflow);
    }
}

static void test_every_byte_in_every_place(void **state)
{
    (void)state;
    uint8_t data[259];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);

    for (size_t from = 0; from < 3; from++)
        for (size_t len = 0; len + from <= sizeof data; len++) {
            auto_buf text = BUF_INIT(1024), bytes = BUF_INIT(1024);
            assert_int_equal(base64_encode(&text, data + from, len), 0);
            assert_int_equal(text.len, (len + 2) / 3 * 4);
            assert_int_equal(base64_decode(&bytes, (char *)text.data, text.len, NULL), BASE64_GOOD);
            assert_int_equal(bytes.len, len);
            if (len)
                assert_memory_equal(bytes.data, data + from, len);
        }
}

static void test_it_is_appended(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(64);
    buf_puts(&out, "x:");
    assert_int_equal(base64_encode(&out, "foo", 3), 0);
    assert_int_equal(base64_encode(&out, "", 0), 0);
    assert_string_equal(buf_cstr(&out), "x:Zm9v");
    assert_int_equal(base64_decode(&out, "Zg==", 4, NULL), BASE64_GOOD);
    assert_string_equal(buf_cstr(&out), "x:Zm9vf");
}

static void test_what_is_none(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum base64_error why;
        size_t at;
    } rows[] = {
        {"Z", BASE64_LENGTH, 0},       {"Zg", BASE64_LENGTH, 0},     {"Zg=", BASE64_LENGTH, 0},
        {"Zg==\n", BASE64_LENGTH, 0},  {"Zg==Zg", BASE64_LENGTH, 0}, {"Z g=", BASE64_DIGIT, 1},
        {"Zm9\n", BASE64_DIGIT, 3},    {"====", BASE64_DIGIT, 0},    {"Z===", BASE64_DIGIT, 1},
        {"Zg==Zg==", BASE64_DIGIT, 2}, {"Zm-_", BASE64_DIGIT, 2},    {"Zm9\xc3", BASE64_DIGIT, 3},
        {"=Zm9", BASE64_DIGIT, 0},     {"Zh==", BASE64_BITS, 0},     {"Zm9=", BASE64_BITS, 0},
        {"Zv==", BASE64_BITS, 0},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_buf out = BUF_INIT(64);
        size_t at = 99;
        buf_puts(&out, "as it was");
        if (base64_decode(&out, rows[i].text, strlen(rows[i].text), &at) != rows[i].why)
            fail_msg("'%s' is taken for something else", rows[i].text);
        if (rows[i].why == BASE64_DIGIT)
            assert_int_equal(at, rows[i].at);
        assert_string_equal(buf_cstr(&out), "as it was");
    }
}

static void test_no_room(void **state)
{
    (void)state;
    auto_buf small = BUF_INIT(7), least = BUF_INIT(8);
    assert_int_equal(base64_encode(&small, "foob", 4), -1);
    assert_true(small.overflow);
    assert_int_equal(small.len, 0);
    assert_int_equal(base64_encode(&least, "foob", 4), 0);
    auto_buf bytes = BUF_INIT(5);
    assert_int_equal(base64_decode(&bytes, "Zm9vYmFy", 8, NULL), BASE64_FULL);
    assert_int_equal(bytes.len, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors_both_ways), cmocka_unit_test(test_every_byte_in_every_place),
        cmocka_unit_test(test_it_is_appended),    cmocka_unit_test(test_what_is_none),
        cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
