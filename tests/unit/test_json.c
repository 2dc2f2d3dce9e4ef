#include "unit.h"

#include "base/json.h"

#include <string.h>

/* Writes one string value; the caller compares what came out. */
static const char *quoted(struct buf *b, const char *bytes, size_t len)
{
    buf_clear(b);
    struct json j = JSON_INIT(b);
    json_str(&j, bytes, len);
    return buf_cstr(b);
}

struct vector {
    const char *bytes;
    const char *json;
};

static void check_vectors(const struct vector *v, size_t count)
{
    auto_buf b = BUF_INIT(1000);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(quoted(&b, v[i].bytes, strlen(v[i].bytes)), v[i].json);
}

static void test_nesting_and_commas(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(1000);
    struct json j = JSON_INIT(&b);
    json_open(&j, '{');
    json_key(&j, "a");
    json_int(&j, -1);
    json_key(&j, "b");
    json_open(&j, '[');
    json_bool(&j, 1);
    json_bool(&j, 0);
    json_none(&j);
    json_open(&j, '[');
    json_close(&j, ']');

    json_open(&j, '{');
    json_close(&j, '}');
    json_close(&j, ']');

    json_key(&j, "c");
    json_cstr(&j, "x");
    json_key(&j, "d");
    json_cstr(&j, NULL);
    json_close(&j, '}');
    assert_string_equal(buf_cstr(&b),
                        "{\"a\":-1,\"b\":[true,false,null,[],{}],\"c\":\"x\",\"d\":null}");
}

static void test_numbers_at_their_ends(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(1000);
    struct json j = JSON_INIT(&b);
    json_open(&j, '[');
    json_int(&j, INT64_MIN);
    json_int(&j, INT64_MAX);
    json_uint(&j, UINT64_MAX);
    json_milli(&j, 0);
    json_milli(&j, 5);
    json_milli(&j, 1050);
    json_milli(&j, UINT64_MAX);
    json_close(&j, ']');

    assert_string_equal(buf_cstr(&b),
                        "[-9223372036854775808,9223372036854775807,18446744073709551615,"
                        "0.000,0.005,1.050,18446744073709551.615]");
}

static void test_characters_that_must_be_escaped(void **state)
{
    (void)state;
    static const struct vector v[] = {
        {"", "\"\""},
        {"plain / text", "\"plain / text\""},
        {"a\"b\\c", "\"a\\\"b\\\\c\""},
        {"\n\r\t", "\"\\n\\r\\t\""},
        {"\x01\x1f\x7f\b\f", "\"\\u0001\\u001f\\u007f\\u0008\\u000c\""},
        {"\x1b[31m", "\"\\u001b[31m\""},
        {"\xc2\x80\xc2\x85\xc2\x9b\xc2\x9f", "\"\\u0080\\u0085\\u009b\\u009f\""},
        {"\xe2\x80\xa8\xe2\x80\xa9", "\"\\u2028\\u2029\""},
    };
    check_vectors(v, COUNT(v));

    auto_buf b = BUF_INIT(100);
    assert_string_equal(quoted(&b, "a\0b", 3), "\"a\\u0000b\"");
}

static void test_valid_utf8_passes_unchanged(void **state)
{
    (void)state;
    /* The first and last of every length, and the neighbours of the surrogates. */
    static const struct vector v[] = {
        {"\xc2\xa0", "\"\xc2\xa0\""},
        {"\xe2\x80\xa7", "\"\xe2\x80\xa7\""},
        {"\xe2\x80\xaa", "\"\xe2\x80\xaa\""},
        {"\xdf\xbf", "\"\xdf\xbf\""},
        {"\xe0\xa0\x80", "\"\xe0\xa0\x80\""},
        {"\xed\x9f\xbf", "\"\xed\x9f\xbf\""},
        {"\xee\x80\x80", "\"\xee\x80\x80\""},
        {"\xef\xbf\xbf", "\"\xef\xbf\xbf\""},
        {"\xf0\x90\x80\x80", "\"\xf0\x90\x80\x80\""},
        {"\xf4\x8f\xbf\xbf", "\"\xf4\x8f\xbf\xbf\""},
        {"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\x8e",
         "\"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\x8e\""},
    };

    check_vectors(v, COUNT(v));
}

#define BAD "\\ufffd"

static void test_overlong_forms_are_replaced(void **state)
{
    (void)state;
    static const struct vector v[] = {
        {"\xc0\x80", "\"" BAD BAD "\""},
        {"\xc1\xbf", "\"" BAD BAD "\""},
        {"\xc0\xaf", "\"" BAD BAD "\""},
        {"\xe0\x80\xaf", "\"" BAD BAD BAD "\""},
        {"\xe0\x9f\xbf", "\"" BAD BAD BAD "\""},
        {"\xf0\x80\x80\xaf", "\"" BAD BAD BAD BAD "\""},
        {"\xf0\x8f\xbf\xbf", "\"" BAD BAD BAD BAD "\""},
    };
    check_vectors(v, COUNT(v));
}

static void test_surrogates_and_numbers_past_unicode_are_replaced(void **state)
{
    (void)state;
    static const struct vector v[] = {
        {"\xed\xa0\x80", "\"" BAD BAD BAD "\""},
        {"\xed\xbf\xbf", "\"" BAD BAD BAD "\""},
        {"\xed\xa0\xbd\xed\xb8\x80", "\"" BAD BAD BAD BAD BAD BAD "\""},
        {"\xf4\x90\x80\x80", "\"" BAD BAD BAD BAD "\""},
        {"\xf5\x80\x80\x80", "\"" BAD BAD BAD BAD "\""},
        {"\xf8\x88\x80\x80\x80", "\"" BAD BAD BAD BAD BAD "\""},
        {"\xfe\xff", "\"" BAD BAD "\""},
    };
    check_vectors(v, COUNT(v));
}

static void test_broken_sequences_do_not_swallow_what_follows(void **state)
{
    (void)state;
    static const struct vector v[] = {
        {"\x80", "\"" BAD "\""},
        {"\xbf\x41", "\"" BAD "A\""},
        {"\xc3\x41", "\"" BAD "A\""},
        {"\xe2\x82\x22", "\"" BAD BAD "\\\"\""},
        {"\xf0\x9f\x90\x41", "\"" BAD BAD BAD "A\""},
        {"\xe2\x82\xe2\x82\xac", "\"" BAD BAD "\xe2\x82\xac\""},
    };
    check_vectors(v, COUNT(v));
}

/* The bytes behind the end of the text belong to somebody else. */
static void test_a_sequence_cut_by_the_end_is_replaced(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(100);
    static const char horse[] = "\xf0\x9f\x90\x8e";
    assert_string_equal(quoted(&b, horse, 4), "\"\xf0\x9f\x90\x8e\"");
    assert_string_equal(quoted(&b, horse, 3), "\"" BAD BAD BAD "\"");
    assert_string_equal(quoted(&b, horse, 2), "\"" BAD BAD "\"");
    assert_string_equal(quoted(&b, horse, 1), "\"" BAD "\"");
    assert_string_equal(quoted(&b, horse, 0), "\"\"");
}

static void test_keys_are_escaped_too(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(100);
    struct json j = JSON_INIT(&b);
    json_open(&j, '{');
    json_key(&j, "a\"\n\xff");
    json_uint(&j, 1);
    json_close(&j, '}');
    assert_string_equal(buf_cstr(&b), "{\"a\\\"\\n" BAD "\":1}");
}

static void test_overflow_shows_in_the_buf(void **state)
{
    (void)state;
    for (size_t max = 0; max < 20; max++) {
        auto_buf b = BUF_INIT(max);
        struct json j = JSON_INIT(&b);
        json_open(&j, '[');
        json_cstr(&j, "0123456789012345");
        json_close(&j, ']');
        assert_true(b.overflow);
        assert_true(b.len <= max);
    }

    auto_buf b = BUF_INIT(20);
    struct json j = JSON_INIT(&b);
    json_open(&j, '[');
    json_cstr(&j, "0123456789012345");
    json_close(&j, ']');
    assert_false(b.overflow);
    assert_int_equal(b.len, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nesting_and_commas),
        cmocka_unit_test(test_numbers_at_their_ends),
        cmocka_unit_test(test_characters_that_must_be_escaped),
        cmocka_unit_test(test_valid_utf8_passes_unchanged),
        cmocka_unit_test(test_overlong_forms_are_replaced),
        cmocka_unit_test(test_surrogates_and_numbers_past_unicode_are_replaced),
        cmocka_unit_test(test_broken_sequences_do_not_swallow_what_follows),
        cmocka_unit_test(test_a_sequence_cut_by_the_end_is_replaced),
        cmocka_unit_test(test_keys_are_escaped_too),
        cmocka_unit_test(test_overflow_shows_in_the_buf),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
