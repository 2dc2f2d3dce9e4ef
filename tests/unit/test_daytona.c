/* What is said to Daytona's API and what is read from it, by vectors in the shapes of its published
 * description: the body that makes a sandbox, states, lists in pages, previews, commands; and the
 * repositories that a client may name. */
#include "unit.h"

#include "base/buf.h"
#include "base/err.h"
#include "engine/daytona_api.h"

#include "base/banned.h"

#include <stdio.h>
#include <string.h>

#define LINK "00112233445566778899aabbccddeeff"

static const struct daytona_plan usual = {.name = "paddock-ab-j1",
                                          .owner = "ab",
                                          .box = "j1",
                                          .link = LINK,
                                          .image = "",
                                          .snapshot = "",
                                          .target = "",
                                          .git_host = "",
                                          .stop_min = 15,
                                          .life_min = 1440};
#define LABELS                                                                                     \
    "\"labels\":{\"paddock-owner\":\"ab\",\"paddock-box\":\"j1\",\"paddock-link\":\"" LINK "\"},"

static void expect_body(struct daytona_plan p, const char *want)
{
    auto_buf b = BUF_INIT(2000);

    daytona_create_body(&b, &p);
    assert_string_equal(buf_cstr(&b), want);
}

static void test_what_makes_one(void **state)
{
    (void)state;
    struct daytona_plan p = usual;

    expect_body(p, "{\"name\":\"paddock-ab-j1\"," LABELS
                   "\"public\":false,\"networkBlockAll\":true,\"autoStopInterval\":15,"
                   "\"autoDeleteInterval\":0,\"ttlMinutes\":1440}");

    p.snapshot = "small";
    p.target = "eu";
    p.life_min = 0;
    p.cpu = 4; /* a snapshot has its own */
    expect_body(p, "{\"name\":\"paddock-ab-j1\",\"snapshot\":\"small\",\"target\":\"eu\"," LABELS
                   "\"public\":false,\"networkBlockAll\":true,\"autoStopInterval\":15,"
                   "\"autoDeleteInterval\":0}");

    p.image = "python:3.11-slim";
    p.memory_gb = 2;
    p.disk_gb = 5;
    p.git_host = "git.example";
    expect_body(p, "{\"name\":\"paddock-ab-j1\",\"buildInfo\":{\"dockerfileContent\":"
                   "\"FROM python:3.11-slim\\n\"},\"cpu\":4,\"memory\":2,\"disk\":5,"
                   "\"target\":\"eu\"," LABELS
                   "\"public\":false,\"domainAllowList\":\"git.example\",\"autoStopInterval\":15,"
                   "\"autoDeleteInterval\":0}");
}

static void test_minutes_and_images(void **state)
{
    (void)state;
    static const char *const bad[] = {"",    "-x",  "a b",   "a\nRUN b", "$IMAGE",
                                      "a\\", "a#b", "\"a\"", "a:${b}"};

    assert_int_equal(daytona_minutes(0), 0);
    assert_int_equal(daytona_minutes(1), 1);
    assert_int_equal(daytona_minutes(60), 1);
    assert_int_equal(daytona_minutes(61), 2);
    assert_int_equal(daytona_minutes(UINT64_MAX - 59), UINT32_MAX);
    assert_true(daytona_is_image("docker.io/library/debian:12@sha256:0123"));
    for (size_t i = 0; i < COUNT(bad); i++)
        if (daytona_is_image(bad[i]))
            fail_msg("'%s' was taken", bad[i]);
}

static void test_sandboxes(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int state; /* -1: refused */
        const char *toolbox, *owner, *why;
        bool is_blocked;
    } rows[] = {
        {"{\"id\":\"a-1\",\"state\":\"started\",\"desiredState\":\"started\",\"labels\":{"
         "\"paddock-owner\":\"o\"},\"networkBlockAll\":true,\"errorReason\":null,"
         "\"toolboxProxyUrl\":\"https://proxy.app.daytona.io/toolbox\"}",
         DAYTONA_RUNS, "https://proxy.app.daytona.io", "o", "", true},
        {"{\"id\":\"a\",\"state\":\"pulling_snapshot\"}", DAYTONA_COMES, "", "", "", false},
        {"{\"id\":\"a\",\"state\":\"never heard of\"}", DAYTONA_COMES, "", "", "", false},
        {"{\"id\":\"a\"}", DAYTONA_COMES, "", "", "", false},
        {"{\"id\":\"a\",\"state\":\"build_failed\",\"errorReason\":\"no\\u001b[31m such image\"}",
         DAYTONA_FAILED, "", "", "no [31m such image", false},
        {"{\"id\":\"a\",\"state\":\"paused\",\"networkBlockAll\":\"true\"}", DAYTONA_STOPPED, "",
         "", "", false},
        {"{\"id\":\"a\",\"state\":\"destroying\"}", DAYTONA_GONE, "", "", "", false},
        {"{\"id\":\"a\",\"state\":\"started\",\"desiredState\":\"destroyed\"}", DAYTONA_GONE, "",
         "", "", false},
        {"{}", -1, "", "", "", false},
        {"[]", -1, "", "", "", false},
        {"", -1, "", "", "", false},
        {"<html>", -1, "", "", "", false},
        {"{\"id\":\"../a\"}", -1, "", "", "", false},
        {"{\"id\":7}", -1, "", "", "", false},
        {"{\"id\":\"a\",\"toolboxProxyUrl\":\"http://evil.test\"}", -1, "", "", "", false},
        {"{\"id\":\"a\",\"toolboxProxyUrl\":\"https://x@evil.test\"}", -1, "", "", "", false},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct daytona_sandbox s;
        struct pd_err e;
        int r = daytona_read_sandbox(rows[i].json, strlen(rows[i].json), &s, &e);
        if ((r < 0) != (rows[i].state < 0))
            fail_msg("row %zu", i);
        if (r < 0) {
            assert_int_equal(e.code, PD_PROTOCOL);
            continue;
        }
        if ((int)s.state != rows[i].state)
            fail_msg("row %zu: state %d", i, s.state);
        assert_string_equal(s.toolbox.base, rows[i].toolbox);
        assert_string_equal(s.owner, rows[i].owner);
        assert_string_equal(s.why, rows[i].why);
        assert_int_equal(s.is_blocked, rows[i].is_blocked);
    }
}

static int note_one(void *context, const struct daytona_sandbox *s, struct pd_err *e)
{
    (void)e;
    buf_printf(context, "%s %s %s;", s->id, s->owner, s->box);
    return 0;
}

static void test_lists(void **state)
{
    (void)state;
    static const char json[] =
        "{\"items\":[{\"id\":\"a\",\"labels\":{\"paddock-owner\":\"o\",\"paddock-box\":\"b\"}},"
        "{\"id\":\"b\",\"labels\":{\"paddock-owner\":\"o\"}},{\"id\":\"c\",\"labels\":null}],"
        "\"nextCursor\":\"n/1\"}";
    static const char last[] = "{\"items\":[],\"nextCursor\":null}";
    static const char *const bad[] = {"{}",
                                      "[]",
                                      "{\"items\":[{}]}",
                                      "{\"items\":{}}",
                                      "x",
                                      "{\"items\":[],\"nextCursor\":\"a\\r\\nb\"}"};
    auto_buf seen = BUF_INIT(1000), target = BUF_INIT(1000);
    char cursor[DAYTONA_CURSOR];
    struct pd_err e;

    assert_int_equal(daytona_read_list(json, sizeof json - 1, note_one, &seen, cursor, &e), 0);
    assert_string_equal(buf_cstr(&seen), "a o b;");
    assert_string_equal(cursor, "n/1");
    daytona_list_target(&target, "ab", cursor);
    assert_string_equal(buf_cstr(&target),
                        "/sandbox?limit=200&labels=%7B%22paddock-owner%22%3A%22ab%22%7D"
                        "&cursor=%6E%2F%31");
    assert_int_equal(daytona_read_list(last, sizeof last - 1, note_one, &seen, cursor, &e), 0);
    assert_string_equal(cursor, "");
    for (size_t i = 0; i < COUNT(bad); i++)
        if (daytona_read_list(bad[i], strlen(bad[i]), note_one, &seen, cursor, &e) == 0)
            fail_msg("row %zu", i);
}

static void test_previews_and_ports(void **state)
{
    (void)state;
    static const char good[] =
        "{\"sandboxId\":\"a\",\"url\":\"https://7022-a.proxy.daytona.work/\",\"token\":\"t0\"}";
    static const char *const bad[] = {
        "{}",
        "{\"url\":7,\"token\":\"t\"}",
        "{\"url\":\"http://7022-a.proxy.daytona.work\",\"token\":\"t\"}",
        "{\"url\":\"https://a.test\",\"token\":\"t\\r\\nX: y\"}",
        "{\"url\":\"https://a.test/?x\",\"token\":\"t\"}",
    };
    struct daytona_preview p;
    struct pd_err e;
    bool used = false;

    assert_int_equal(daytona_read_preview(good, sizeof good - 1, &p, &e), 0);
    assert_string_equal(p.url.base, "https://7022-a.proxy.daytona.work");
    assert_string_equal(p.url.path, "");
    assert_string_equal(p.token, "t0");
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(daytona_read_preview(bad[i], strlen(bad[i]), &p, &e), -1);
        assert_int_equal(e.code, PD_PROTOCOL);
    }

    assert_int_equal(daytona_read_port("{\"isInUse\":true}", 16, &used, &e), 0);
    assert_true(used);
    assert_int_equal(daytona_read_port("{\"isInUse\":1}", 13, &used, &e), -1);
}

static void test_commands(void **state)
{
    (void)state;
    static const struct {
        const char *json, *says; /* NULL: it ended well */
    } rows[] = {
        {"{\"exitCode\":0,\"result\":\"\"}", NULL},
        {"{\"exitCode\":1,\"result\":\"paddock-box: no\\n\"}", "(exit code 1): paddock-box: no"},
        {"{\"exitCode\":-1,\"result\":7}", "(exit code -1)"},
        {"{\"result\":\"x\"}", "does not say how"},
        {"", "is no JSON"},
    };
    auto_buf b = BUF_INIT(1000);

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pd_err e = {.msg = ""};
        int r = daytona_read_executed(rows[i].json, strlen(rows[i].json), "start it", &e);
        if (r != (rows[i].says ? -1 : 0) || (r < 0 && !strstr(e.msg, rows[i].says)))
            fail_msg("row %zu: %s", i, e.msg);
    }
    daytona_execute_body(&b, "a \"b\"\n", 30);
    assert_string_equal(buf_cstr(&b), "{\"command\":\"a \\\"b\\\"\\n\",\"timeout\":30}");
}

static void test_repositories(void **state)
{
    (void)state;
    static const struct {
        const char *url, *host, *name; /* name NULL: refused */
    } rows[] = {
        {"https://git.example/a/b.git", "git.example", "b"},
        {"https://git.example:8443/b", "git.example:8443", "b"},
        {"https://git.example/a/.git", "", NULL},
        {"https://git.example/", "", NULL},
        {"https://git.example", "", NULL},
        {"https://git.example/a/-b", "", NULL},
        {"https://git.example/a/~b", "", NULL},
        {"https://me:word@git.example/a/b", "", NULL},
        {"https://git.example/a/b?x", "", NULL},
        {"https://git.example/../b", "", NULL},
        {"http://git.example/a/b", "", NULL},
        {"git@git.example:a/b", "", NULL},
        {"file:///etc/passwd", "", NULL},
        {"--upload-pack=x", "", NULL},
    };
    struct daytona_git g;
    struct pd_err e;
    auto_buf b = BUF_INIT(1000);

    for (size_t i = 0; i < COUNT(rows); i++) {
        int r = daytona_git_read(rows[i].url, &g, &e);
        if (r != (rows[i].name ? 0 : -1))
            fail_msg("row %zu", i);
        if (r < 0) {
            assert_int_equal(e.code, PD_INVALID);
            assert_non_null(strstr(e.msg, "git_url"));
            continue;
        }
        assert_string_equal(g.host, rows[i].host);
        assert_string_equal(g.name, rows[i].name);
    }

    assert_int_equal(daytona_git_read("https://git.example/a/b.git", &g, &e), 0);
    assert_true(daytona_git_allowed(&g, "x, GIT.example,y"));
    assert_false(daytona_git_allowed(&g, ""));
    assert_false(daytona_git_allowed(&g, "git.example.evil.test,evil.git.example, git.exampl"));
    daytona_clone_body(&b, &g);
    assert_string_equal(buf_cstr(&b),
                        "{\"url\":\"https://git.example/a/b.git\",\"path\":\"/workspace/b\"}");
}

static void test_options(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{\"git\":\"x\"}",    "{\"git_url\":\"x\",\"more\":1}", "{\"git_url\":7}", "[]", "{",
        "{\"git_url\":null}",
    };
    char url[DAYTONA_URL];
    struct pd_err e;

    assert_int_equal(daytona_options_read("", url, &e), 0);
    assert_string_equal(url, "");
    assert_int_equal(daytona_options_read("{}", url, &e), 0);
    assert_int_equal(daytona_options_read("{\"git_url\":\"https://a/b\"}", url, &e), 0);
    assert_string_equal(url, "https://a/b");
    for (size_t i = 0; i < COUNT(bad); i++)
        if (daytona_options_read(bad[i], url, &e) == 0 || e.code != PD_INVALID)
            fail_msg("'%s' was taken", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_makes_one),     cmocka_unit_test(test_minutes_and_images),
        cmocka_unit_test(test_sandboxes),          cmocka_unit_test(test_lists),
        cmocka_unit_test(test_previews_and_ports), cmocka_unit_test(test_commands),
        cmocka_unit_test(test_repositories),       cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
