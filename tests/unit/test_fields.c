#include "unit.h"

#include "api/fields.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNTOUCHED 4711

static void start(struct fields *f, const char *text)
{
    struct pd_err e = {.msg = ""};
    if (fields_parse(f, text, strlen(text), 0, &e) < 0)
        fail_msg("%s was refused: %s", text, e.msg);
}

/* The error so far must be about `bad` and say each of the words. */
static void check_refused(struct fields *f, const char *bad, const char *one, const char *two)
{
    struct pd_err e = {.msg = ""};
    assert_int_equal(fields_finish(f, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    if (!fields_bad(f) || strcmp(fields_bad(f), bad) != 0)
        fail_msg("%s expected, not %s: %s", bad, fields_bad(f) ? fields_bad(f) : "(null)", e.msg);
    if (!strstr(e.msg, bad) || !strstr(e.msg, one) || !strstr(e.msg, two))
        fail_msg("%s, '%s' and '%s' expected in: %s", bad, one, two, e.msg);
}

static void test_parse_refuses_what_is_no_object(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
        size_t len;
    } rows[] = {
        {"", "empty", 0},
        {" \n\t", "empty", 3},
        {"[]", "not an array", 2},
        {"\"x\"", "not 'x'", 3},
        {"null", "not null", 4},
        {"12", "not 12", 2},
        {"{", "line 1", 1},
        {"{}x", "end of file expected", 3},
        {"{} {}", "end of file expected", 5},
        {"{\"a\":1,\"a\":2}", "duplicate", 13},
        {"{\"a\":1,}", "line 1", 8},
        {"{'a':1}", "line 1", 7},
        {"{\"a\":01}", "line 1", 8},
        {"{\"a\":NaN}", "line 1", 9},
        {"{\"a\":1e999}", "overflow", 11},
        {"{\"a\":\"\\u0000\"}", "u0000", 14},
        {"{\"\\u0000\":1}", "u0000", 12},
        {"{\"a\":\"\0\"}", "byte 6 is NUL", 9},
        {"{\"a\":1\0}", "byte 6 is NUL", 8},
        {"{\"a\":1}\0", "byte 7 is NUL", 8},
        {"\0", "byte 0 is NUL", 1},
        {"{\"a\":\"\xff\"}", "UTF-8", 9},
        {"{\"a\":\"\xc0\x80\"}", "UTF-8", 10},
        {"{\"a\":\"\xed\xa0\x80\"}", "UTF-8", 11},
        {"{\"a\":\"\\ud800\"}", "invalid Unicode", 14},
        {"\xef\xbb\xbf{}", "line 1", 5},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct fields f;
        struct pd_err e = {.msg = ""}, again = {.msg = ""};
        if (fields_parse(&f, rows[i].text, rows[i].len, 0, &e) == 0)
            fail_msg("%s was accepted", rows[i].text);
        assert_int_equal(e.code, PD_INVALID);
        if (!strstr(e.msg, rows[i].why))
            fail_msg("'%s' expected for %s: %s", rows[i].why, rows[i].text, e.msg);

        const char *v = "untouched";
        assert_int_equal(fields_str(&f, "a", FIELD_REQUIRED, 0, 9, &v), 0);
        assert_string_equal(v, "untouched");
        assert_int_equal(fields_finish(&f, &again), -1);
        assert_string_equal(again.msg, e.msg);
        assert_null(fields_bad(&f));
        fields_done(&f);
    }
}

static void test_an_empty_body_may_be_allowed(void **state)
{
    (void)state;
    static const char *const rows[] = {"", " ", "{}"};
    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_fields f = {0};
        assert_int_equal(fields_parse(&f, rows[i], strlen(rows[i]), FIELDS_MAY_BE_EMPTY, NULL), 0);
        assert_int_equal(fields_finish(&f, NULL), 0);
    }
    auto_fields f = {0};
    assert_int_equal(fields_parse(&f, NULL, 0, FIELDS_MAY_BE_EMPTY, NULL), 0);
}

static int parse_nested(unsigned depth)
{
    auto_buf b = BUF_INIT(8u << 20);
    (void)buf_puts(&b, "{\"a\":\"[[[[[[[[[[[[\\\"[[[[\",\"b\":");
    for (unsigned i = 1; i < depth; i++)
        (void)buf_putc(&b, '[');
    (void)buf_puts(&b, "1");

    for (unsigned i = 1; i < depth; i++)
        (void)buf_putc(&b, ']');
    (void)buf_putc(&b, '}');

    auto_fields f = {0};
    struct pd_err e = {.msg = ""};
    int r = fields_parse(&f, b.data, b.len, 0, &e);
    if (r < 0)
        assert_non_null(strstr(e.msg, "nested too deeply"));
    return r;
}

static void test_depth_is_bounded(void **state)
{
    (void)state;
    assert_int_equal(parse_nested(FIELDS_DEPTH_MAX), 0); /* brackets in strings do not count */
    assert_int_equal(parse_nested(FIELDS_DEPTH_MAX + 1), -1);
    assert_int_equal(parse_nested(2000000), -1);
}

static void test_the_number_of_values_is_bounded(void **state)
{
    (void)state;
    for (unsigned extra = 0; extra < 2; extra++) {
        auto_buf b = BUF_INIT(1u << 20);
        (void)buf_puts(&b, "{\"a\":[{}");
        for (unsigned i = 0; i < (FIELDS_VALUES_MAX - 4) / 2 + extra; i++)
            (void)buf_puts(&b, ",{}");
        (void)buf_puts(&b, "]}");
        auto_fields f = {0};
        struct pd_err e = {.msg = ""};
        assert_int_equal(fields_parse(&f, b.data, b.len, 0, &e), extra ? -1 : 0);
        if (extra)
            assert_non_null(strstr(e.msg, "too many values"));
    }
}

static void test_strings(void **state)
{
    (void)state;
    auto_fields f = {0};
    start(&f, "{\"a\":\"\xc3\xa4\\n\\u00e4\\ud83d\\ude00\",\"b\":\"\",\"c\":null}");

    const char *a = NULL, *b = NULL, *c = "kept";
    assert_int_equal(fields_str(&f, "a", FIELD_REQUIRED, 9, 9, &a), 1);
    assert_string_equal(a, "\xc3\xa4\n\xc3\xa4\xf0\x9f\x98\x80");
    assert_int_equal(fields_str(&f, "b", FIELD_OPTIONAL, 0, 9, &b), 1);
    assert_string_equal(b, "");
    assert_int_equal(fields_str(&f, "c", FIELD_OPTIONAL, 0, 9, &c), 0);
    assert_int_equal(fields_str(&f, "d", FIELD_OPTIONAL, 0, 9, &c), 0);
    assert_string_equal(c, "kept");
    assert_int_equal(fields_finish(&f, NULL), 0);
    assert_null(fields_bad(&f));
}

static void check_bad_str(const char *text, const char *one, const char *two)
{
    auto_fields f = {0};
    const char *v = "kept";
    start(&f, text);
    assert_int_equal(fields_str(&f, "name", FIELD_REQUIRED, 2, 50, &v), 0);
    assert_string_equal(v, "kept");
    check_refused(&f, "name", one, two);
}

static void test_bad_strings_are_named(void **state)
{
    (void)state;
    check_bad_str("{}", "is required", "");
    check_bad_str("{\"name\":null}", "is required", "");
    check_bad_str("{\"name\":12}", "12 ", "not a string");
    check_bad_str("{\"name\":[1]}", "an array", "not a string");
    check_bad_str("{\"name\":\"\"}", "empty", "");
    check_bad_str("{\"name\":\"x\"}", "'x' has 1 bytes", "2 to 50");
    check_bad_str(
        "{\"name\":\"\\u001b[0m\\n\\u007f012345678901234567890123456789012345678901234567\"}",
        "'\\x1b[0m\\x0a\\x7f0123", "...' has");

    /* A character is not cut in two. */
    check_bad_str("{\"name\":\"0123456789012345678901234567890123456\xf0\x9f\x98\x80"
                  "01234567890123456789\"}",
                  "123456...'", "");
}

static void check_u64(const char *number, uint64_t min, uint64_t max, uint64_t expected)
{
    auto_fields f = {0};
    char text[128];
    uint64_t v = UNTOUCHED;
    (void)snprintf(text, sizeof text, "{\"n\":%s}", number);
    start(&f, text);
    int r = fields_u64(&f, "n", FIELD_OPTIONAL, min, max, &v);
    if (v != expected || r != (expected != UNTOUCHED))
        fail_msg("%s gave %d, %ju", number, r, (uintmax_t)v);
    assert_int_equal(fields_finish(&f, NULL), r ? 0 : -1);
    if (!r)
        assert_string_equal(fields_bad(&f), "n");
}

static void test_whole_numbers(void **state)
{
    (void)state;
    check_u64("0", 0, 10, 0);
    check_u64("10", 0, 10, 10);
    check_u64("3.0", 0, 10, 3);
    check_u64("1e3", 0, 1000, 1000);
    check_u64("9223372036854775807", 0, UINT64_MAX, INT64_MAX);

    check_u64("11", 0, 10, UNTOUCHED);
    check_u64("4", 5, 10, UNTOUCHED);
    check_u64("-1", 0, UINT64_MAX, UNTOUCHED);
    check_u64("-1.0", 0, UINT64_MAX, UNTOUCHED);
    check_u64("1.5", 0, 10, UNTOUCHED);
    check_u64("9223372036854775808", 0, UINT64_MAX, UNTOUCHED);
    check_u64("18446744073709551616", 0, UINT64_MAX, UNTOUCHED);

    check_u64("1e300", 0, UINT64_MAX, UNTOUCHED);
    check_u64("\"5\"", 0, 10, UNTOUCHED);
    check_u64("true", 0, 10, UNTOUCHED);
    check_u64("{}", 0, 10, UNTOUCHED);
}

static void test_a_number_beyond_64_bits_is_named(void **state)
{
    (void)state;
    auto_fields f = {0};
    uint64_t a = 0, b = UNTOUCHED;
    start(&f, "{\"a\":7,\"b\":99999999999999999999}");
    assert_int_equal(fields_u64(&f, "a", FIELD_REQUIRED, 0, 10, &a), 1);
    assert_int_equal(a, 7);
    fields_u64(&f, "b", FIELD_REQUIRED, 0, 10, &b);
    assert_int_equal(b, UNTOUCHED);
    check_refused(&f, "b", "1e20", "0 to 10");
}

static void check_seconds(const char *number, uint64_t min, uint64_t max, uint64_t expected)
{
    auto_fields f = {0};
    char text[128];
    uint64_t v = UNTOUCHED;
    (void)snprintf(text, sizeof text, "{\"n\":%s}", number);
    start(&f, text);
    int r = fields_seconds(&f, "n", FIELD_OPTIONAL, min, max, &v);
    if (v != expected || r != (expected != UNTOUCHED))
        fail_msg("%s gave %d, %ju", number, r, (uintmax_t)v);
}

static void test_seconds(void **state)
{
    (void)state;
    check_seconds("0", 0, NS_PER_S, 0);
    check_seconds("1", 0, NS_PER_S, NS_PER_S);
    check_seconds("0.5", 0, NS_PER_S, NS_PER_S / 2);
    check_seconds("0.001", 0, NS_PER_S, NS_PER_MS);
    check_seconds("1e-9", 0, NS_PER_S, 1);
    check_seconds("86400", 0, 86400 * NS_PER_S, 86400 * NS_PER_S);
    check_seconds("-0.0", 0, NS_PER_S, 0);

    check_seconds("1e-12", 0, NS_PER_S, UNTOUCHED); /* must not become 0, which is "none" */
    check_seconds("1.1", 0, NS_PER_S, UNTOUCHED);
    check_seconds("-1", 0, NS_PER_S, UNTOUCHED);
    check_seconds("-0.1", 0, NS_PER_S, UNTOUCHED);
    check_seconds("0.5", NS_PER_S, 2 * NS_PER_S, UNTOUCHED);
    check_seconds("18446744074", 0, UINT64_MAX, UNTOUCHED);

    check_seconds("1e30", 0, UINT64_MAX, UNTOUCHED);
    check_seconds("\"1\"", 0, NS_PER_S, UNTOUCHED);
    check_seconds("false", 0, NS_PER_S, UNTOUCHED);
}

static void test_seconds_in_ms_and_thousandths(void **state)
{
    (void)state;
    auto_fields f = {0};
    uint64_t ms = 0, milli = 0;
    start(&f, "{\"t\":1.5,\"cpu\":0.25,\"u\":9.5}");
    assert_int_equal(fields_seconds_ms(&f, "t", FIELD_REQUIRED, 1, 2000, &ms), 1);
    assert_int_equal(ms, 1500);
    assert_int_equal(fields_milli(&f, "cpu", FIELD_REQUIRED, 10, 1000, &milli), 1);
    assert_int_equal(milli, 250);
    assert_int_equal(fields_seconds_ms(&f, "u", FIELD_REQUIRED, 100, 2500, &ms), 0);
    check_refused(&f, "u", "9.5 is out of range", "0.1 to 2.5 seconds");
}

static void test_booleans_and_names(void **state)
{
    (void)state;
    static const char *const modes[] = {"literal", "regex", "name", NULL};
    auto_fields f = {0};
    bool yes = false, no = true;
    unsigned mode = 0;
    start(&f, "{\"yes\":true,\"no\":false,\"mode\":\"name\",\"other\":\"nmae\"}");
    assert_int_equal(fields_bool(&f, "yes", FIELD_REQUIRED, &yes), 1);
    assert_int_equal(fields_bool(&f, "no", FIELD_REQUIRED, &no), 1);
    assert_true(yes && !no);
    assert_int_equal(fields_enum(&f, "mode", FIELD_REQUIRED, modes, &mode), 1);
    assert_int_equal(mode, 2);
    assert_int_equal(fields_enum(&f, "other", FIELD_REQUIRED, modes, &mode), 0);
    assert_int_equal(mode, 2);
    check_refused(&f, "other", "'nmae'", "literal, regex, name");
}

static void test_a_number_is_no_boolean(void **state)
{
    (void)state;
    auto_fields f = {0};
    bool set = true, unset = false;
    start(&f, "{\"v\":1}");
    assert_int_equal(fields_bool(&f, "v", FIELD_REQUIRED, &set), 0);
    assert_int_equal(fields_bool(&f, "v", FIELD_REQUIRED, &unset), 0);
    assert_true(set && !unset);
    check_refused(&f, "v", "1 ", "true or false");
}

static void test_modes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t mode;
    } rows[] = {{"\"0644\"", 0644},       {"\"7\"", 7},        {"\"4755\"", 04755},
                {"\"0o644\"", UNTOUCHED}, {"\"\"", UNTOUCHED}, {"\"00644\"", UNTOUCHED},
                {"\"888\"", UNTOUCHED},   {"420", UNTOUCHED},  {"\"644 \"", UNTOUCHED},
                {"\"-1\"", UNTOUCHED}};

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_fields f = {0};
        char text[64];
        uint32_t v = UNTOUCHED;
        (void)snprintf(text, sizeof text, "{\"mode\":%s}", rows[i].text);
        start(&f, text);
        fields_mode(&f, "mode", FIELD_REQUIRED, &v);
        if (v != rows[i].mode)
            fail_msg("%s gave %o", rows[i].text, v);
    }
}

static void test_base64(void **state)
{
    (void)state;
    static const struct {
        const char *text, *bytes;
    } rows[] = {
        {"", ""},        {"Zg==", "f"},        {"Zm8=", "fo"},
        {"Zm9v", "foo"}, {"Zm9vYg==", "foob"}, {"+/+/", "\xfb\xff\xbf"},
        {"Zg=", NULL},   {"Z", NULL},          {"====", NULL},
        {"Zh==", NULL},  {"Zm9=", NULL},       {"Zg==Zg==", NULL},
        {"Zm 9", NULL},  {"-_-_", NULL},       {"Zm9vYmFy", NULL} /* six bytes are too many */};

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_fields f = {0};
        auto_buf out = BUF_INIT(64);
        char text[64];
        (void)buf_putc(&out, '>');
        (void)snprintf(text, sizeof text, "{\"v\":\"%s\"}", rows[i].text);
        start(&f, text);
        int r = fields_base64(&f, "v", FIELD_REQUIRED, 5, &out);
        if (r != !!rows[i].bytes)
            fail_msg("%s gave %d", rows[i].text, r);
        size_t len = rows[i].bytes ? strlen(rows[i].bytes) : 0;
        assert_int_equal(out.len, 1 + len);
        if (len)
            assert_memory_equal(out.data + 1, rows[i].bytes, len);
    }
}

static void test_lists(void **state)
{
    (void)state;
    auto_fields f = {0};
    struct msg_list_writer w = MSG_LIST_WRITER_INIT;
    start(&f, "{\"argv\":[\"ls\",\"\",\"-l\"],\"more\":[\"a\",7]}");
    assert_int_equal(fields_str_list(&f, "argv", FIELD_REQUIRED, 1, 3, 2, &w), 1);
    assert_int_equal(w.count, 3);
    assert_memory_equal(w.text.data, "ls\0\0-l", 7);
    assert_int_equal(fields_str_list(&f, "more", FIELD_REQUIRED, 1, 3, 2, &w), 0);
    check_refused(&f, "more.1", "7 is not a string", "");
    msg_list_writer_done(&w);
}

static void check_bad_list(const char *text, const char *bad, const char *why)
{
    auto_fields f = {0};
    struct msg_list_writer w = {.text = BUF_INIT(16)};
    start(&f, text);
    assert_int_equal(fields_str_list(&f, "argv", FIELD_REQUIRED, 1, 3, 12, &w), 0);
    check_refused(&f, bad, why, "");
    msg_list_writer_done(&w);
}

static void test_bad_lists_are_named(void **state)
{
    (void)state;
    check_bad_list("{}", "argv", "required");
    check_bad_list("{\"argv\":\"ls\"}", "argv", "'ls' is not an array of strings");
    check_bad_list("{\"argv\":{}}", "argv", "an object is not an array");
    check_bad_list("{\"argv\":[]}", "argv", "1 to 3");
    check_bad_list("{\"argv\":[\"\",\"\",\"\",\"\"]}", "argv", "4 items");
    check_bad_list("{\"argv\":[\"\",null]}", "argv.1", "null is not a string");
    check_bad_list("{\"argv\":[\"0123456789abc\"]}", "argv.0", "at most 12");
    check_bad_list("{\"argv\":[\"0123456789ab\",\"012\"]}", "argv", "at most 16 bytes in all");
}

static void test_environment(void **state)
{
    (void)state;
    auto_fields f = {0};
    struct msg_list_writer set = MSG_LIST_WRITER_INIT, unset = MSG_LIST_WRITER_INIT;

    start(&f, "{\"env\":{\"A\":\"1\",\"_b2\":\"x=y z\",\"C\":null,\"D\":\"\"}}");
    assert_int_equal(fields_env(&f, "env", FIELD_REQUIRED, &set, &unset), 1);
    assert_int_equal(set.count, 3);
    assert_memory_equal(set.text.data, "A=1\0_b2=x=y z\0D=", 17);
    assert_int_equal(unset.count, 1);
    assert_string_equal((char *)unset.text.data, "C");
    assert_int_equal(fields_finish(&f, NULL), 0);
    msg_list_writer_done(&set);
    msg_list_writer_done(&unset);
}

static void check_bad_env(const char *text, const char *bad, const char *why)
{
    auto_fields f = {0};
    struct msg_list_writer set = {.text = BUF_INIT(16)};
    start(&f, text);
    assert_int_equal(fields_env(&f, "env", FIELD_OPTIONAL, &set, NULL), 0);
    check_refused(&f, bad, why, "");
    msg_list_writer_done(&set);
}

static void test_bad_environments_are_named(void **state)
{
    (void)state;
    check_bad_env("{\"env\":[]}", "env", "not an object");
    check_bad_env("{\"env\":{\"A\":1}}", "env.A", "1 is not a string");
    check_bad_env("{\"env\":{\"A\":null}}", "env.A", "null is not a string");
    check_bad_env("{\"env\":{\"\":\"x\"}}", "env.\"\"", "no name of a variable");
    check_bad_env("{\"env\":{\"1A\":\"x\"}}", "env.1A", "no name of a variable");
    check_bad_env("{\"env\":{\"A=B\":\"x\"}}", "env.A=B", "no name of a variable");
    check_bad_env("{\"env\":{\"A\\nB\":\"x\"}}", "env.A\\x0aB", "no name of a variable");
    check_bad_env("{\"env\":{\"\xc3\xa4\":\"x\"}}", "env.\xc3\xa4", "no name of a variable");
    check_bad_env("{\"env\":{\"A\":\"0123456789abcdef\"}}", "env", "at most 16 bytes");
    check_bad_env("{\"env\":{\"A\":\"0123456789abc\",\"B\":\"\"}}", "env", "at most 16 bytes");
}

static void test_objects_of_strings(void **state)
{
    (void)state;
    auto_fields f = {0};
    auto_buf out = BUF_INIT(256);
    start(&f, "{\"metadata\":{\"b\":\"1\\n\",\"a\":\"\xc3\xa4\"},\"bad\":{\"k\":{}}}");
    assert_int_equal(fields_strings(&f, "metadata", FIELD_REQUIRED, 2, 64, &out), 1);
    assert_string_equal(buf_cstr(&out), "{\"b\":\"1\\n\",\"a\":\"\xc3\xa4\"}");
    assert_int_equal(fields_strings(&f, "bad", FIELD_REQUIRED, 2, 64, &out), 0);
    check_refused(&f, "bad.k", "an object is not a string", "");
}

static void check_bad_strings(const char *text, const char *bad, const char *why)
{
    auto_fields f = {0};
    auto_buf out = BUF_INIT(256);
    start(&f, text);
    assert_int_equal(fields_strings(&f, "m", FIELD_OPTIONAL, 2, 16, &out), 0);
    assert_int_equal(out.len, 0);
    check_refused(&f, bad, why, "");
}

static void test_bad_objects_of_strings(void **state)
{
    (void)state;
    check_bad_strings("{\"m\":{\"a\":\"\",\"b\":\"\",\"c\":\"\"}}", "m", "3 members");
    check_bad_strings("{\"m\":{\"a\":\"0123456789\"}}", "m", "at most 16 bytes");
    check_bad_strings("{\"m\":{\"\":\"\"}}", "m.\"\"", "no valid name");
}

static void test_nested_objects(void **state)
{
    (void)state;
    auto_fields f = {0};
    uint64_t pids = 0, memory = UNTOUCHED;
    start(&f, "{\"limits\":{\"pids\":5,\"memory_bytes\":-3}}");
    struct fields *limits = fields_object(&f, "limits", FIELD_OPTIONAL);
    assert_non_null(limits);
    assert_ptr_equal(fields_object(&f, "limits", FIELD_OPTIONAL), limits);
    assert_int_equal(fields_u64(limits, "pids", FIELD_OPTIONAL, 2, 10, &pids), 1);
    assert_int_equal(pids, 5);
    assert_int_equal(fields_u64(limits, "memory_bytes", FIELD_OPTIONAL, 4, 10, &memory), 0);
    assert_int_equal(memory, UNTOUCHED);
    check_refused(&f, "limits.memory_bytes", "-3 is out of range", "4 to 10");
}

static void test_an_absent_object_has_no_members(void **state)
{
    (void)state;
    auto_fields f = {0};
    uint64_t v = UNTOUCHED;
    start(&f, "{}");
    struct fields *limits = fields_object(&f, "limits", FIELD_OPTIONAL);
    assert_null(limits);
    assert_int_equal(fields_u64(limits, "pids", FIELD_REQUIRED, 2, 10, &v), 0);
    assert_int_equal(fields_kind(limits, "pids"), FIELD_ABSENT);
    assert_int_equal(fields_refuse(limits, "pids", "no"), 0);
    assert_int_equal(fields_finish(&f, NULL), 0);
}

static void test_unknown_members_are_named(void **state)
{
    (void)state;
    auto_fields f = {0};
    const char *v = NULL;
    start(&f, "{\"command\":\"ls\",\"tiemout_s\":3}");
    fields_str(&f, "command", FIELD_REQUIRED, 1, 9, &v);
    fields_str(&f, "cwd", FIELD_OPTIONAL, 1, 9, &v);
    check_refused(&f, "tiemout_s", "unknown", "command, cwd");
}

static void test_unknown_null_members_are_named(void **state)
{
    (void)state;
    auto_fields f = {0}, unnamed = {0};
    start(&f, "{\"x\\ty\":null}");
    check_refused(&f, "x\\x09y", "unknown", "none");
    start(&unnamed, "{\"\":1}");
    check_refused(&unnamed, "\"\"", "unknown", "none");
}

static void test_unknown_nested_members_are_named(void **state)
{
    (void)state;
    auto_fields f = {0};
    uint64_t pids = 0;
    start(&f, "{\"limits\":{\"pids\":5,\"pds\":3}}");
    fields_u64(fields_object(&f, "limits", FIELD_OPTIONAL), "pids", FIELD_OPTIONAL, 1, 9, &pids);
    check_refused(&f, "limits.pds", "unknown", "pids");
}

static void test_the_first_error_wins(void **state)
{
    (void)state;
    auto_fields f = {0};
    uint64_t a = UNTOUCHED, c = UNTOUCHED;
    const char *b = "kept";
    start(&f, "{\"a\":99,\"b\":3,\"c\":5,\"z\":1}");
    fields_u64(&f, "a", FIELD_REQUIRED, 1, 9, &a);
    fields_str(&f, "b", FIELD_REQUIRED, 1, 9, &b);
    assert_int_equal(fields_u64(&f, "c", FIELD_REQUIRED, 1, 9, &c), 0);
    assert_int_equal(c, UNTOUCHED);
    check_refused(&f, "a", "99", "1 to 9");
    check_refused(&f, "a", "99", "1 to 9");
}

static void test_kinds_and_own_refusals(void **state)
{
    (void)state;
    auto_fields f = {0};
    start(&f, "{\"s\":\"\",\"n\":1,\"r\":1.5,\"b\":false,\"o\":{},\"a\":[],\"z\":null}");
    assert_int_equal(fields_kind(&f, "s"), FIELD_STRING);
    assert_int_equal(fields_kind(&f, "n"), FIELD_NUMBER);
    assert_int_equal(fields_kind(&f, "r"), FIELD_NUMBER);
    assert_int_equal(fields_kind(&f, "b"), FIELD_BOOL);
    assert_int_equal(fields_kind(&f, "o"), FIELD_OBJECT);
    assert_int_equal(fields_kind(&f, "a"), FIELD_ARRAY);
    assert_int_equal(fields_kind(&f, "z"), FIELD_ABSENT);
    assert_false(fields_has(&f, "y"));
    assert_int_equal(fields_finish(&f, NULL), 0);
    assert_int_equal(fields_refuse(&f, "s", "use %s instead", "n"), 0);
    check_refused(&f, "s", "use n instead", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_refuses_what_is_no_object),
        cmocka_unit_test(test_an_empty_body_may_be_allowed),
        cmocka_unit_test(test_depth_is_bounded),
        cmocka_unit_test(test_the_number_of_values_is_bounded),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_bad_strings_are_named),
        cmocka_unit_test(test_whole_numbers),
        cmocka_unit_test(test_a_number_beyond_64_bits_is_named),
        cmocka_unit_test(test_seconds),
        cmocka_unit_test(test_seconds_in_ms_and_thousandths),
        cmocka_unit_test(test_booleans_and_names),
        cmocka_unit_test(test_a_number_is_no_boolean),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_base64),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_bad_lists_are_named),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_bad_environments_are_named),
        cmocka_unit_test(test_objects_of_strings),
        cmocka_unit_test(test_bad_objects_of_strings),
        cmocka_unit_test(test_nested_objects),
        cmocka_unit_test(test_an_absent_object_has_no_members),
        cmocka_unit_test(test_unknown_members_are_named),
        cmocka_unit_test(test_unknown_null_members_are_named),
        cmocka_unit_test(test_unknown_nested_members_are_named),
        cmocka_unit_test(test_the_first_error_wins),
        cmocka_unit_test(test_kinds_and_own_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
