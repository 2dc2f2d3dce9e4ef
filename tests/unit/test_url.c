#include "unit.h"

#include "base/err.h"
#include "net/url.h"
#include "net/utf8.h"

#include <string.h>

/* One text for the path split, its decoded segments joined by '|', or NULL when it is refused. */
static const struct {
    const char *path, *segments;
} paths[] = {
    {"/", ""},
    {"/v1", "v1"},
    {"/v1/", "v1|"},
    {"/v1/sandboxes/abc", "v1|sandboxes|abc"},
    {"/v1/a%2Fb/c", "v1|a/b|c"},
    {"/v1/a%20b+c;d=e", "v1|a b+c;d=e"},
    {"/%252e", "%2e"},
    {"/v1/caf%C3%A9", "v1|caf\xc3\xa9"},
    {"/...", "..."},
    {"/.a", ".a"},
    {"/%2e%2e%2fetc", "../etc"},
    {"", ""},
    {"//", NULL},
    {"//v1//x", NULL},
    {"/v1//x", NULL},
    {"/v1/x//", NULL},
    {"/.", NULL},
    {"/..", NULL},
    {"/v1/../x", NULL},
    {"/v1/x/.", NULL},
    {"/v1/%2e%2e/", NULL},
    {"/v1/%2E.", NULL},
    {"/v1/.%2e/x", NULL},
    {"/v1/%2e", NULL},
    {"/v1/%00", NULL},
    {"/v1/%c0%ae", NULL},
    {"/v1/%ff", NULL},
    {"/v1/%", NULL},
    {"/v1/%2", NULL},
    {"/v1/%zz", NULL},
    {"/v1/%+2", NULL},
    {"/v1/%2/x", NULL},
    {"/v1/%u0041", NULL},
    {"v1", NULL},
};

/* The segments of a path joined by '|', or -1. */
static int join_segments(const char *path, struct buf *out)
{
    struct slice segments[8];
    struct pd_err e = {.msg = ""};
    int n = url_path_split(slice_of(path), segments, COUNT(segments), &e);

    for (int i = 0; i < n; i++) {
        char text[100];
        if (url_decode("segment", segments[i], text, sizeof text, &e)) {
            assert_non_null(strstr(e.msg, "segment"));
            n = -1;
        } else {
            buf_printf(out, "%s%s", i ? "|" : "", text);
        }
    }

    if (n < 0)
        assert_int_equal(e.code, PD_INVALID);
    return n < 0 ? -1 : 0;
}

static void test_paths_are_split_before_they_are_decoded(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(paths); i++) {
        auto_buf out = BUF_INIT(1000);
        int r = join_segments(paths[i].path, &out);
        if (!paths[i].segments && r == 0)
            fail_msg("'%s' was taken for '%s'", paths[i].path, buf_cstr(&out));
        if (paths[i].segments && (r || strcmp(buf_cstr(&out), paths[i].segments)))
            fail_msg("'%s' gave %d '%s'", paths[i].path, r, buf_cstr(&out));
    }
}

static void test_a_path_has_a_limit_and_a_rest(void **state)
{
    (void)state;
    struct slice segments[3], rest = slice_of("/a/b//../c"), one;
    struct pd_err e;
    assert_int_equal(url_path_split(slice_of("/a/b/c"), segments, 3, &e), 3);
    assert_int_equal(url_path_split(slice_of("/a/b/c/d"), segments, 3, &e), -1);
    assert_int_equal(url_path_split(slice_of("/a/b/c/"), segments, 3, &e), -1);
    /* A proxy stops where its own part ends. */
    assert_int_equal(url_segment_next(&rest, &one, &e), 1);
    assert_int_equal(url_segment_next(&rest, &one, &e), 1);
    assert_true(slice_is(one, "b"));
    assert_true(slice_is(rest, "//../c"));
}

static void test_a_target_has_a_path_and_a_query(void **state)
{
    (void)state;
    static const struct {
        const char *target, *path, *query;
    } rows[] = {{"/a", "/a", ""},
                {"/a?", "/a", ""},
                {"/a?b=c?d", "/a", "b=c?d"},
                {"?", "", ""},
                {"", "", ""}};

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct slice path, query;
        url_split(slice_of(rows[i].target), &path, &query);
        assert_true(slice_is(path, rows[i].path));
        assert_true(slice_is(query, rows[i].query));
    }
}

static void test_a_parameter_is_there_once_or_not(void **state)
{
    (void)state;
    static const struct {
        const char *query;
        int result;
        const char *value;
    } rows[] = {
        {"", 0, ""},
        {"path", 1, ""},
        {"path=", 1, ""},
        {"path=a", 1, "a"},
        {"x=1&path=%2Fa%20b+c&y", 1, "/a b+c"},
        {"&&path=a&", 1, "a"},
        {"path=a=b", 1, "a=b"},
        {"p%61th=a", 1, "a"},
        {"path=%C3%A9", 1, "\xc3\xa9"},
        {"Path=a", 0, ""},
        {"pat=a", 0, ""},
        {"paths=a", 0, ""},
        {"path%00=a", 0, ""},
        {"path=a&path=a", -1, ""},
        {"path=a&p%61th=b", -1, ""},
        {"path&path", -1, ""},
        {"path=%", -1, ""},
        {"path=%4", -1, ""},
        {"path=%4g", -1, ""},
        {"path=%00", -1, ""},
        {"path=a%00b", -1, ""},
        {"path=%ff", -1, ""},
        {"path=%c3", -1, ""},
        {"path=%ed%a0%80", -1, ""},
        {"path=a b", -1, ""},
        {"path=1234567890123456", -1, ""},
        {"path=123456789012345", 1, "123456789012345"},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        char out[16] = "before";
        struct pd_err e = {.msg = ""};
        int r = url_query_get(slice_of(rows[i].query), "path", out, sizeof out, &e);
        if (r != rows[i].result)
            fail_msg("'%s' gave %d %s", rows[i].query, r, e.msg);
        if (r == 1)
            assert_string_equal(out, rows[i].value);
        if (r == 0)
            assert_string_equal(out, "before");
        if (r < 0 && (e.code != PD_INVALID || strncmp(e.msg, "path: ", 6)))
            fail_msg("'%s': %s", rows[i].query, e.msg);
    }
}

static void test_unknown_parameters_are_refused(void **state)
{
    (void)state;
    static const char *const allowed[] = {"path", "limit", "metadata.", NULL};
    static const struct {
        const char *query;
        const char *error; /* a part of it, or NULL */
    } rows[] = {
        {"", NULL},
        {"path=a&limit=1", NULL},
        {"&path&", NULL},
        {"metadata.a=1&metadata.b=2", NULL},
        {"metadata.=1", "metadata.: unknown"},
        {"metadata=1", "metadata: unknown"},
        {"paths=1", "paths: unknown"},
        {"path=1&pat%68=2", "path: the parameter comes twice"},
        {"metadata.a=1&metadata.%61=2", "metadata.a: the parameter comes twice"},
        {"=1", "without a name"},
        {"=", "without a name"},
        {"%zz=1", "name: malformed"},
        {"%ff=1", "name: is not UTF-8"},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pd_err e = {.msg = ""};
        int r = url_query_check(slice_of(rows[i].query), allowed, &e);
        if (r != (rows[i].error ? -1 : 0) || (r && !strstr(e.msg, rows[i].error)))
            fail_msg("'%s' gave %d %s", rows[i].query, r, e.msg);
    }

    for (unsigned more = 0; more < 2; more++) {
        auto_buf b = BUF_INIT(10000);
        struct pd_err e = {.msg = ""};
        for (unsigned i = 0; i < URL_PAIRS_MAX + more; i++)
            buf_printf(&b, "metadata.%u=1&", i);
        assert_int_equal(url_query_check(slice_of(buf_cstr(&b)), allowed, &e), more ? -1 : 0);
    }
}

static void test_parameters_are_listed_in_order(void **state)
{
    (void)state;
    struct slice query = slice_of("a=1&b%20c&&d=%32"), value;
    char name[URL_NAME_SIZE], text[10];
    struct pd_err e;

    assert_int_equal(url_query_next(&query, name, &value, &e), 1);
    assert_string_equal(name, "a");
    assert_true(slice_is(value, "1"));
    assert_int_equal(url_query_next(&query, name, &value, &e), 1);
    assert_string_equal(name, "b c");
    assert_int_equal(value.len, 0);
    assert_int_equal(url_query_next(&query, name, &value, &e), 1);
    assert_int_equal(url_decode(name, value, text, sizeof text, &e), 0);
    assert_string_equal(text, "2");
    assert_int_equal(url_query_next(&query, name, &value, &e), 0);
}

static void test_what_is_encoded_is_decoded(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(1000);
    assert_int_equal(url_encode(&out, "aZ09-._~", 8, 0), 0);
    assert_string_equal(buf_cstr(&out), "aZ09-._~");

    buf_clear(&out);
    assert_int_equal(url_encode(&out, "/a b\xc3\xa9%+\0", 9, 0), 0);
    assert_string_equal(buf_cstr(&out), "%2Fa%20b%C3%A9%25%2B%00");

    buf_clear(&out);
    assert_int_equal(url_encode(&out, "/a/b", 4, 1), 0);
    assert_string_equal(buf_cstr(&out), "/a/b");

    struct buf small = BUF_INIT(2);
    assert_int_equal(url_encode(&small, " ", 1, 0), -1);
    buf_done(&small);
}

#define ID "abcdefghij0123456789"

static void test_preview_hosts(void **state)
{
    (void)state;
    static const struct {
        const char *host, *domain;
        int result;
        unsigned port;
    } rows[] = {
        {"8080-" ID ".box.example", "box.example", 1, 8080},
        {"8080-" ID ".box.example:443", "box.example", 1, 8080},
        {"8080-" ID ".box.example.", "box.example", 1, 8080},
        {"1-ABCDEFGHIJ0123456789.Box.Example", "box.example", 1, 1},
        {"65535-" ID ".localhost", "localhost", 1, 65535},
        {"box.example", "box.example", 0, 0},
        {"box.example:80", "box.example", 0, 0},
        {"xbox.example", "box.example", 0, 0},
        {"8080-" ID ".box.example.org", "box.example", 0, 0},
        {"8080-" ID ".xbox.example", "box.example", 0, 0},
        {"8080-" ID, "box.example", 0, 0},
        {"8080-" ID ".box.example", "", 0, 0},
        {"8080-" ID ".box.example", NULL, 0, 0},
        {"127.0.0.1", "box.example", 0, 0},
        {"[::1]", "box.example", 0, 0},
        {"", "box.example", 0, 0},
        {"www.box.example", "box.example", -1, 0},
        {"0-" ID ".box.example", "box.example", -1, 0},
        {"080-" ID ".box.example", "box.example", -1, 0},
        {"65536-" ID ".box.example", "box.example", -1, 0},
        {"99999-" ID ".box.example", "box.example", -1, 0},
        {"100000-" ID ".box.example", "box.example", -1, 0},
        {"-" ID ".box.example", "box.example", -1, 0},
        {"80-" ID "x.box.example", "box.example", -1, 0},
        {"80-bcdefghij0123456789.box.example", "box.example", -1, 0},
        {"80-abcdefghij012345678_.box.example", "box.example", -1, 0},
        {"80_" ID ".box.example", "box.example", -1, 0},
        {"80-" ID ".x.box.example", "box.example", -1, 0},
        {"x.80-" ID ".box.example", "box.example", -1, 0},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        unsigned port = 4711;
        char id[URL_ID_LEN + 1] = "none";
        struct pd_err e = {.msg = ""};
        int r = url_preview_host(slice_of(rows[i].host), rows[i].domain, &port, id, &e);
        if (r != rows[i].result)
            fail_msg("'%s' gave %d", rows[i].host, r);
        assert_int_equal(port, r == 1 ? rows[i].port : 4711);
        assert_string_equal(id, r == 1 ? ID : "none");
    }
}

static void test_servers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        struct url_server s;
    } rows[] = {
        {"http://127.0.0.1:8090", {0, "127.0.0.1", 8090, ""}},
        {"http://localhost", {0, "localhost", 80, ""}},
        {"http://localhost/", {0, "localhost", 80, ""}},
        {"https://box.example", {1, "box.example", 443, ""}},
        {"https://box.example:8443/", {1, "box.example", 8443, ""}},
        {"http://[::1]:8090", {0, "::1", 8090, ""}},
        {"http://[::1]", {0, "::1", 80, ""}},
        {"unix:/run/paddock.sock", {0, "", 0, "/run/paddock.sock"}},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct url_server s;
        struct pd_err e = {.msg = ""};
        if (url_server_parse("PADDOCK_URL", rows[i].text, &s, &e))
            fail_msg("%s", e.msg);
        assert_int_equal(s.tls, rows[i].s.tls);
        assert_int_equal(s.port, rows[i].s.port);
        assert_string_equal(s.host, rows[i].s.host);
        assert_string_equal(s.socket, rows[i].s.socket);
    }

    static const char *const bad[] = {
        "",
        "localhost:8090",
        "ftp://h",
        "HTTP://h",
        "http:/h",
        "http://",
        "http:///",
        "http://h:",
        "http://h:0",
        "http://h:65536",
        "http://h:8x",
        "http://[::1]:0",
        "http://[::1",
        "http://h/v1",
        "http://h//",
        "http://h?x",
        "http://h#x",
        "http://user@h",
        "http://user:pw@h",
        "http://h h",
        "http://h\n",
        "unix:",
        "unix:x",
        "unix:/",
        "unix:/"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct url_server s = {.port = 4711};
        struct pd_err e = {.msg = ""};
        if (!url_server_parse("PADDOCK_URL", bad[i], &s, &e))
            fail_msg("'%s' was taken", bad[i]);
        assert_non_null(strstr(e.msg, "PADDOCK_URL"));
        assert_int_equal(s.port, 4711);
    }
}

/* Every character there is, written down by the definition, and nothing else, is UTF-8. */
static void test_utf8_is_exact(void **state)
{
    (void)state;
    unsigned valid = 0;
    for (uint32_t first = 0; first < 256; first++)
        valid += (unsigned)utf8_is_valid(&(uint8_t[]){(uint8_t)first}, 1);
    assert_int_equal(valid, 128);

    valid = 0;
    unsigned valid3 = 0;
    for (uint32_t i = 0; i < 1 << 24; i++) {
        uint8_t b[3] = {(uint8_t)(i >> 16), (uint8_t)(i >> 8), (uint8_t)i};
        if (b[0] < 0x80)
            continue;
        /* Leading bytes decide, so that strings of shorter characters are not counted. */
        if (!b[2])
            valid += (unsigned)utf8_is_valid(b, 2);
        if (b[1] >= 0x80 && b[2] >= 0x80 && b[0] >= 0xe0)
            valid3 += (unsigned)utf8_is_valid(b, 3);
    }

    assert_int_equal(valid, 0x800 - 0x80);
    assert_int_equal(valid3, 0x10000 - 0x800 - 0x800);
    for (uint32_t c = 0x10000; c < 0x120000; c += 7) {
        uint8_t b[4] = {(uint8_t)(0xf0 | c >> 18), (uint8_t)(0x80 | (c >> 12 & 63)),
                        (uint8_t)(0x80 | (c >> 6 & 63)), (uint8_t)(0x80 | (c & 63))};
        assert_int_equal(utf8_is_valid(b, 4), c < 0x110000);
        assert_false(utf8_is_valid(b, 3));
    }
    assert_true(utf8_is_valid("", 0));
    assert_false(utf8_is_valid("\xf0\x80\x80\x80", 4));
    assert_false(utf8_is_valid("\xf0\x8f\xbf\xbf", 4));
    assert_false(utf8_is_valid("\xf8\x88\x80\x80\x80", 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths_are_split_before_they_are_decoded),
        cmocka_unit_test(test_a_path_has_a_limit_and_a_rest),
        cmocka_unit_test(test_a_target_has_a_path_and_a_query),
        cmocka_unit_test(test_a_parameter_is_there_once_or_not),
        cmocka_unit_test(test_unknown_parameters_are_refused),
        cmocka_unit_test(test_parameters_are_listed_in_order),
        cmocka_unit_test(test_what_is_encoded_is_decoded),
        cmocka_unit_test(test_preview_hosts),
        cmocka_unit_test(test_servers),
        cmocka_unit_test(test_utf8_is_exact),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
