/* Events and marks of drivers: what is read of them, and what is refused. */
#include "unit.h"

#include "base/buf.h"
#include "base/err.h"
#include "core/context_events.h"

#include <stdlib.h>
#include <string.h>

/* The line in memory of its own size, so that a byte read beyond it is found. */
static int parse(const char *text, struct context_event *ret, char **ret_line)
{
    struct pd_err e;
    size_t len = strlen(text);
    char *line = malloc(len ? len : 1);
    assert_non_null(line);
    memcpy(line, text, len);

    int r = context_event_parse(line, len, ret, &e);
    if (r < 0)
        assert_int_equal(e.code, PD_PROTOCOL);
    if (ret_line)
        *ret_line = line;
    else
        free(line);
    return r;
}

static void test_good(void **state)
{
    (void)state;
    struct context_event v;
    char *line;

    assert_int_equal(parse("{\"type\":\"ready\",\"seq\":1,\"memory\":8192}", &v, NULL), 0);
    assert_true(v.memory == 8192);
    assert_int_equal(parse("{\"type\":\"ready\",\"seq\":1,\"version\":\"3\"}", &v, NULL), 0);
    assert_true(v.memory == 0);
    assert_true(v.type == EVENT_READY && v.seq == 1 && !v.id[0]);
    assert_int_equal(parse("{\"type\":\"start\",\"seq\":2,\"id\":\"a-B_9\",\"count\":7}", &v, NULL),
                     0);
    assert_true(v.type == EVENT_START && v.count == 7 && !strcmp(v.id, "a-B_9"));
    assert_int_equal(parse(" { \"id\" : \"x\" , \"ok\":false,\"truncated\":true, \"seq\":3,"
                           "\"type\":\"end\", \"new\": [1, {\"a\": []}] } ",
                           &v, NULL),
                     0);
    assert_true(v.type == EVENT_END && !v.ok && v.truncated);
    assert_int_equal(parse("{\"type\":\"later\",\"seq\":4}", &v, NULL), 0);
    assert_int_equal(v.type, EVENT_OTHER);

    assert_int_equal(parse("{\"type\":\"result\",\"seq\":5,\"id\":\"x\",\"main\":true,\"data\":"
                           "{\"text/plain\":\"'a'\",\"application/"
                           "json\":[123456789012345678901234567890,-1.5e+9,null]}}",
                           &v, &line),
                     0);
    struct json_piece rest = v.data, key, value;
    assert_int_equal(json_piece_next(&rest, &key, &value), 1);
    assert_true(json_piece_is(&key, "text/plain") && value.len == 5);
    struct json_piece bare = json_piece_bare(&value);
    assert_true(bare.len == 1 && bare.at[0] == 'a');
    assert_int_equal(json_piece_next(&rest, &key, &value), 1);
    assert_true(json_piece_is(&key, "application/json") && value.at[0] == '[');
    assert_int_equal(json_piece_next(&rest, &key, &value), 0);
    assert_true(v.main);
    free(line);
}

static void test_bad(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "",
        "null",
        "[]",
        "{",
        "{}",
        "{\"type\":\"end\",\"seq\":1}",               /* no id */
        "{\"type\":\"end\",\"id\":\"x\"}",            /* no seq */
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":0}",  /* from 1 on */
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":-1}", /* */
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1.5}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1e3}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":9999999999999999999}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":\"1\"}",
        "{\"type\":7,\"id\":\"x\",\"seq\":1}",
        "{\"type\":\"end\",\"id\":\"\",\"seq\":1}",
        "{\"type\":\"end\",\"id\":\"a b\",\"seq\":1}",
        "{\"type\":\"end\",\"id\":\"\\u0061\",\"seq\":1}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"ok\":1}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1}{}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1},",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":NaN}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":Infinity}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":01}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":1.}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":.5}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":1e}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":tru}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":[1,]}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":[}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":[1}}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":{\"a\"}}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":\"\\x\"}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":\"\\u12\"}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":\"a\tb\"}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":\"\xc3\xa4\"}",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":\"",
        "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":\"\\",
        "{\"type\":\"result\",\"id\":\"x\",\"seq\":1}",
        "{\"type\":\"result\",\"id\":\"x\",\"seq\":1,\"data\":[]}",
        "{\"type\":\"error\",\"id\":\"x\",\"seq\":1,\"name\":\"n\",\"value\":\"v\"}",
        "{\"type\":\"error\",\"id\":\"x\",\"seq\":1,\"name\":1,\"value\":\"v\",\"traceback\":\"\"}",
        "{\"type\":\"stdout\",\"id\":\"x\",\"seq\":1}",
        "{\"type\":\"forked\",\"id\":\"x\",\"seq\":1}",
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct context_event v;
        if (parse(rows[i], &v, NULL) == 0)
            fail_msg("row %zu was taken: %s", i, rows[i]);
    }
}

static void test_depth(void **state)
{
    (void)state;
    for (unsigned deep = EVENT_DEPTH_MAX - 2; deep <= EVENT_DEPTH_MAX + 1; deep++) {
        auto_buf text = BUF_INIT(1u << 16);
        struct context_event v;
        buf_puts(&text, "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"v\":");
        for (unsigned i = 0; i < deep; i++)
            buf_putc(&text, '[');
        for (unsigned i = 0; i < deep; i++)
            buf_putc(&text, ']');
        buf_putc(&text, '}');
        assert_int_equal(parse(buf_cstr(&text), &v, NULL), deep < EVENT_DEPTH_MAX ? 0 : -1);
    }
}

static void test_surrogates(void **state)
{
    (void)state;
    static const struct {
        const char *given, *text;
    } rows[] = {
        {"\\ud83d\\ude00", "\xf0\x9f\x98\x80"},
        {"\\ud800", "\xef\xbf\xbd"},
        {"\\udc00x", "\xef\xbf\xbdx"},
        {"\\ud800\\ud83d\\ude00", "\xef\xbf\xbd\xf0\x9f\x98\x80"},
        {"\\ud800\\n", "\xef\xbf\xbd\n"},
        {"\\u00e4\\u20ac\\\"\\\\\\/\\b\\f\\r\\t", "\xc3\xa4\xe2\x82\xac\"\\/\b\f\r\t"},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[200], *line;
        struct context_event v;
        auto_buf out = BUF_INIT(200);
        snprintf(text, sizeof text, "{\"type\":\"stdout\",\"id\":\"x\",\"seq\":1,\"text\":\"%s\"}",
                 rows[i].given);
        assert_int_equal(parse(text, &v, &line), 0);
        assert_int_equal(json_piece_decode(&v.text, &out), 0);
        assert_string_equal(buf_cstr(&out), rows[i].text);
        free(line);
    }
}

static void test_bare(void **state)
{
    (void)state;
    static const struct {
        const char *string, *bare;
    } rows[] = {
        {"\"\"", ""},
        {"\"'\"", "'"},
        {"\"''\"", ""},
        {"\"'a'\"", "a"},
        {"\"'a\"", "'a"},
        {"\"\\\"a\\\"\"", "a"},
        {"\"\\\"\\\"\"", ""},
        {"\"\\\"\"", "\\\""},
        {"\"'a\\\"\"", "'a\\\""},
        {"\"\\\"a\\\\\\\"\"", "a\\\\"},
        {"\"21\"", "21"},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct json_piece whole = {rows[i].string, strlen(rows[i].string)};
        struct json_piece bare = json_piece_bare(&whole);
        if (bare.len != strlen(rows[i].bare) || memcmp(bare.at, rows[i].bare, bare.len) != 0)
            fail_msg("row %zu: %.*s", i, (int)bare.len, bare.at);
    }
}

static void test_marks(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum mark_found found;
        size_t at, len;
        uint64_t seq;
    } rows[] = {
        {"", MARK_NONE, 0, 0, 0},
        {"abc", MARK_NONE, 3, 0, 0},
        {"\x1eid 12\x1e", MARK_WHOLE, 0, 7, 12},
        {"ab\x1eid 1\x1e"
         "cd",
         MARK_WHOLE, 2, 6, 1},
        {"\x1e\x1eid 1\x1e", MARK_WHOLE, 1, 6, 1},
        {"\x1eix 1\x1eid 2\x1e", MARK_WHOLE, 5, 6, 2},
        {"a\x1e", MARK_PARTIAL, 1, 0, 0},
        {"a\x1ei", MARK_PARTIAL, 1, 0, 0},
        {"a\x1eid", MARK_PARTIAL, 1, 0, 0},
        {"a\x1eid ", MARK_PARTIAL, 1, 0, 0},
        {"a\x1eid 1", MARK_PARTIAL, 1, 0, 0},
        {"a\x1eid \x1e", MARK_PARTIAL, 5, 0, 0},
        {"a\x1eid x", MARK_NONE, 6, 0, 0},
        {"\x1eidd 1\x1e.", MARK_NONE, 8, 0, 0},
        {"\x1eid 1234567890123456789\x1e.", MARK_NONE, 25, 0, 0},
        {"\x1eother 1\x1e.", MARK_NONE, 10, 0, 0},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        size_t at = 0, len = 0;
        uint64_t seq = 0;
        enum mark_found found =
            mark_find(rows[i].text, strlen(rows[i].text), "id", &at, &len, &seq);
        bool same = found == rows[i].found && at == rows[i].at;
        if (found == MARK_WHOLE)
            same &= len == rows[i].len && seq == rows[i].seq;
        if (!same)
            fail_msg("row %zu: %d at %zu, %zu long, of %llu", i, found, at, len,
                     (unsigned long long)seq);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),  cmocka_unit_test(test_bad),
        cmocka_unit_test(test_depth), cmocka_unit_test(test_surrogates),
        cmocka_unit_test(test_bare),  cmocka_unit_test(test_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
