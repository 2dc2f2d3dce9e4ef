/* What is said to the APIs of rented sandboxes and what is read from them: URLs, ids, words for
 * refusals, forms; E2B's bodies and answers, in the shapes of its published description. */
#include "unit.h"

#include "base/buf.h"
#include "base/err.h"
#include "engine/e2b_api.h"

#include "base/banned.h"

#include <stdio.h>
#include <string.h>

/* ---- what all have in common ---- */

static void test_urls(void **state)
{
    (void)state;
    static const struct {
        const char *text, *base, *path;
    } good[] = {
        {"https://api.e2b.app", "https://api.e2b.app", ""},
        {"https://api.e2b.app/", "https://api.e2b.app", ""},
        {"https://app.daytona.io/api", "https://app.daytona.io", "/api"},
        {"https://x.test:8443/a/b/", "https://x.test:8443", "/a/b"},
        {"https://[2001:db8::1]:1/a", "https://[2001:db8::1]:1", "/a"},
        {"http://127.0.0.1:3000", "http://127.0.0.1:3000", ""},
        {"http://localhost/x", "http://localhost", "/x"},
    };
    static const char *const bad[] = {
        "",
        "api.e2b.app",
        "ftp://x",
        "https://",
        "https://user:word@x",
        "https://x:port",
        "https://x/a?b",
        "https://x/a b",
        "https://x/../a",
        "https://x//a",
        "https://x/a\r\nX: y",
        "http://api.e2b.app",
        "http://127.0.0.1.evil.test",
        "http://localhost.evil.test",
        "https://-x",
    };

    for (size_t i = 0; i < COUNT(good); i++) {
        struct rented_url u;
        struct pd_err e;
        if (rented_url_read("x", good[i].text, &u, &e) < 0)
            fail_msg("%s", e.msg);
        assert_string_equal(u.base, good[i].base);
        assert_string_equal(u.path, good[i].path);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct rented_url u;
        struct pd_err e;
        if (rented_url_read("e2b_api_url", bad[i], &u, &e) == 0)
            fail_msg("'%s' was taken", bad[i]);
        assert_int_equal(e.code, PD_INVALID);
        assert_non_null(strstr(e.msg, "e2b_api_url"));
    }
}

static void test_places(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "a",
                                      "a/b",
                                      "/00112233445566778899aabbccddeeff",
                                      "a b/00112233445566778899aabbccddeeff",
                                      "a/00112233445566778899aabbccddeefg",
                                      "../x/00112233445566778899aabbccddeeff"};
    char id[RENTED_ID], link[33];
    struct pd_err e;

    assert_int_equal(rented_place_read("i12/00112233445566778899aabbccddeeff", id, link, &e), 0);
    assert_string_equal(id, "i12");
    assert_string_equal(link, "00112233445566778899aabbccddeeff");
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(rented_place_read(bad[i], id, link, &e), -1);
}

static void test_refusals_have_words_and_no_secret(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *body, *wait;
        enum pd_code code;
        const char *says;
    } rows[] = {
        {401, "{\"code\":401,\"message\":\"Invalid API key\"}", "", PD_DENIED,
         "Invalid API key; see e2b_api_key_file"},
        {401, "{\"message\":\"no team for e2b_0123456789abcdef\"}", "", PD_DENIED,
         "no team for ********************; see"},
        {402, "{\"message\":\"no credit\"}", "", PD_DENIED, "no credit; see the account there"},
        {403, "{\"error\":\"Forbidden\",\"statusCode\":403}", "", PD_DENIED, "Forbidden; see"},
        {404, "", "", PD_NOT_FOUND, "E2B: make a sandbox: "},
        {429, "{\"code\":429,\"message\":\"maximum number of concurrent E2B sandboxes (20)\"}",
         "17", PD_CAPACITY, "concurrent E2B sandboxes (20); again in 17 s"},
        {429, "{}", "Wed, 21 Oct 2026 07:28:00 GMT", PD_CAPACITY, "again in 60 s"},
        {429, "{}", "999999999", PD_CAPACITY, "again in 3600 s"},
        {500, "<html>\nupset \x1b[31m</html>", "", PD_BAD_GATEWAY,
         "<html> upset  [31m</html> (500)"},
        {503, "", "", PD_BAD_GATEWAY, "no words (503)"},
        {400, "{\"message\":[\"a must be b\",\"c\"]}", "", PD_PROTOCOL, "a must be b (400)"},
        {302, "", "", PD_PROTOCOL, "(302)"},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pd_err e;
        struct rented_refusal r = {.who = "E2B",
                                   .what = "make a sandbox",
                                   .remedy = "e2b_api_key_file",
                                   .secret = "e2b_0123456789abcdef",
                                   .wait = rows[i].wait,
                                   .status = rows[i].status,
                                   .body = rows[i].body,
                                   .len = strlen(rows[i].body)};
        assert_int_equal(rented_refused(&r, &e), -1);
        assert_int_equal(e.code, rows[i].code);
        if (!strstr(e.msg, rows[i].says) || strstr(e.msg, "e2b_0123"))
            fail_msg("row %zu: %s", i, e.msg);
    }
}

static void test_forms(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(1000);
    rented_form_text(&b, "files[0].path", "/a");
    rented_form_file(&b, "file", "/a", "x\0y", 3);
    rented_form_end(&b);

    const char *boundary = strstr(RENTED_FORM_TYPE, "paddock-form");
    char want[600];
    int n = snprintf(want, sizeof want,
                     "--%s\r\nContent-Disposition: form-data; name=\"files[0].path\"\r\n\r\n/a\r\n"
                     "--%s\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/a\"\r\n"
                     "Content-Type: application/octet-stream\r\n\r\nx",
                     boundary, boundary);
    assert_memory_equal(b.data, want, (size_t)n);
    assert_true(rented_form_fits("abc", 3));
    assert_false(rented_form_fits(b.data, b.len));
}

/* ---- E2B ---- */

static void test_e2b_bodies(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(2000);

    e2b_create_body(
        &b, &(struct e2b_plan){.template = "base", .owner = "ab", .box = "j1", .lease = 900});
    assert_string_equal(
        buf_cstr(&b),
        "{\"templateID\":\"base\",\"timeout\":900,\"secure\":true,\"autoPause\":false,"
        "\"allow_internet_access\":false,\"network\":{\"allowPublicTraffic\":false},"
        "\"metadata\":{\"paddock-owner\":\"ab\",\"paddock-box\":\"j1\"}}");

    buf_clear(&b);
    e2b_list_target(&b, "ab", "j1", "t/1");
    assert_string_equal(buf_cstr(&b), "/v2/sandboxes?limit=100&state=running,paused&metadata="
                                      "paddock-owner%3Dab%26paddock-box%3Dj1&nextToken=%74%2F%31");

    buf_clear(&b);
    e2b_start_body(&b, "exec \"x\"");
    static const char text[] =
        "{\"process\":{\"cmd\":\"/bin/sh\",\"args\":[\"-c\",\"exec \\\"x\\\"\"]},\"stdin\":false}";
    assert_int_equal(b.len, 5 + sizeof text - 1);
    assert_memory_equal(b.data, "\0\0\0\0", 4);
    assert_int_equal(b.data[4], sizeof text - 1);
    assert_memory_equal(b.data + 5, text, sizeof text - 1);
}

static void test_e2b_sandboxes(void **state)
{
    (void)state;
    static const struct {
        const char *json, *id, *token, *traffic, *domain;
    } rows[] = {
        {"{\"sandboxID\":\"i7372fc294de38925056\",\"templateID\":\"base\",\"clientID\":\"x\","
         "\"envdVersion\":\"0.6.13\",\"envdAccessToken\":\"tok_1\",\"trafficAccessToken\":null,"
         "\"domain\":null}",
         "i7372fc294de38925056", "tok_1", "", ""},
        {"{\"sandboxID\":\"a-b\",\"trafficAccessToken\":\"t\",\"domain\":\"sbx.test:8443\"}", "a-b",
         "", "t", "sbx.test:8443"},
        {"{}", NULL, "", "", ""},
        {"[]", NULL, "", "", ""},
        {"{\"sandboxID\":7}", NULL, "", "", ""},
        {"{\"sandboxID\":\"../a\"}", NULL, "", "", ""},
        {"{\"sandboxID\":\"a\",\"domain\":\"x/y\"}", NULL, "", "", ""},
        {"{\"sandboxID\":\"a\",\"domain\":\"a@evil.test\"}", NULL, "", "", ""},
        {"{\"sandboxID\":\"a\",\"envdAccessToken\":\"x\\r\\nY: z\"}", NULL, "", "", ""},
        {"{\"sandboxID\":\"a\\u0000b\"}", NULL, "", "", ""},
        {"", NULL, "", "", ""},
        {"<html>", NULL, "", "", ""},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct e2b_sandbox s;
        struct pd_err e;
        int r = e2b_read_sandbox(rows[i].json, strlen(rows[i].json), &s, &e);
        if (r != (rows[i].id ? 0 : -1))
            fail_msg("row %zu", i);
        if (r < 0) {
            assert_int_equal(e.code, PD_PROTOCOL);
            continue;
        }
        assert_string_equal(s.id, rows[i].id);
        assert_string_equal(s.token, rows[i].token);
        assert_string_equal(s.traffic, rows[i].traffic);
        assert_string_equal(s.domain, rows[i].domain);
    }
}

static int note_listed(void *context, const struct e2b_listed *s, struct pd_err *e)
{
    (void)e;
    buf_printf(context, "%s %s %s%s;", s->id, s->owner, s->box, s->paused ? " paused" : "");
    return 0;
}

static void test_e2b_lists(void **state)
{
    (void)state;
    static const char json[] =
        "[{\"sandboxID\":\"a\",\"state\":\"running\",\"metadata\":{\"paddock-owner\":\"o\","
        "\"paddock-box\":\"b\",\"more\":\"x\"}},"
        "{\"sandboxID\":\"b\",\"state\":\"paused\",\"metadata\":{\"paddock-owner\":\"o\","
        "\"paddock-box\":\"c\"}},"
        "{\"sandboxID\":\"c\",\"state\":\"running\"},"
        "{\"sandboxID\":\"d\",\"state\":\"running\",\"metadata\":{\"paddock-owner\":\"o\"}}]";
    static const char *const bad[] = {"{}", "[{}]", "[{\"sandboxID\":\"a/b\"}]", "x", ""};
    auto_buf seen = BUF_INIT(1000);
    struct pd_err e;

    assert_int_equal(e2b_read_list(json, sizeof json - 1, note_listed, &seen, &e), 0);
    assert_string_equal(buf_cstr(&seen), "a o b;b o c paused;");
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(e2b_read_list(bad[i], strlen(bad[i]), note_listed, &seen, &e), -1);
}

static void put(struct buf *b, unsigned flags, const char *json)
{
    size_t len = strlen(json);
    uint8_t head[5] = {(uint8_t)flags, 0, 0, (uint8_t)(len >> 8), (uint8_t)len};
    buf_put(b, head, sizeof head);
    buf_puts(b, json);
}

static void test_e2b_starts(void **state)
{
    (void)state;
    static const struct {
        const char *events[4];
        const char *says; /* NULL: it began */
    } rows[] = {
        {{"{\"event\":{\"start\":{\"pid\":7}}}",
          "{\"event\":{\"end\":{\"exited\":true,\"status\":\"exit status 0\"}}}", "2{}"},
         NULL},
        {{"{\"event\":{\"start\":{\"pid\":7}}}", "{\"event\":{\"keepalive\":{}}}",
          "{\"event\":{\"end\":{\"exitCode\":0,\"exited\":true,\"status\":\"exit status 0\"}}}"},
         NULL},
        {{"{\"event\":{\"start\":{\"pid\":7}}}",
          "{\"event\":{\"data\":{\"stderr\":\"cGFkZG9jay1ib3g6IG5vCg==\"}}}",
          "{\"event\":{\"end\":{\"exitCode\":1,\"exited\":true,\"status\":\"exit status 1\"}}}"},
         "(exit code 1): paddock-box: no"},
        {{"{\"event\":{\"start\":{\"pid\":7}}}",
          "{\"event\":{\"end\":{\"exited\":false,\"status\":\"signal: killed\"}}}"},
         "ended before it began"},
        {{"2{\"error\":{\"code\":\"not_found\",\"message\":\"no sh\"}}"},
         "cannot start paddock-box: no sh"},
        {{NULL}, "ended before it began"},
        {{"x"}, "no JSON"},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_buf b = BUF_INIT(4000);
        struct pd_err e = {.msg = ""};
        for (size_t k = 0; k < 4 && rows[i].events[k]; k++) {
            bool last = rows[i].events[k][0] == '2';
            put(&b, last ? 2 : 0, rows[i].events[k] + last);
        }
        int r = e2b_read_start(b.data, b.len, &e);
        if (r != (rows[i].says ? -1 : 0) || (r < 0 && !strstr(e.msg, rows[i].says)))
            fail_msg("row %zu: %s", i, e.msg);

        /* Cut off anywhere it is not a start. */
        for (size_t len = 1; r == 0 && len < b.len - 8; len++) {
            uint8_t copy[1000];
            memcpy(copy, b.data, len);
            struct pd_err why;
            if (e2b_read_start(copy, len, &why) == 0 && len < b.len - 12)
                fail_msg("row %zu: %zu bytes are enough", i, len);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urls),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_refusals_have_words_and_no_secret),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_e2b_bodies),
        cmocka_unit_test(test_e2b_sandboxes),
        cmocka_unit_test(test_e2b_lists),
        cmocka_unit_test(test_e2b_starts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
