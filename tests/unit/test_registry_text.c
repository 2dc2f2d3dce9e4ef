/* What registries say: challenges, tokens, addresses. Vectors of good ones, and of those that would
 * lead a password or a request elsewhere. */
#include "engine/registry_text.h"

#include "base/err.h"
#include "unit.h"

#include <string.h>

static void test_addresses(void **state)
{
    static const struct {
        const char *text, *base, *want_base, *want_target;
    } good[] = {
        {"https://a.example/x?y=1", NULL, "https://a.example", "/x?y=1"},
        {"http://127.0.0.1:5000", NULL, "http://127.0.0.1:5000", "/"},
        {"https://[::1]:5000/", NULL, "https://[::1]:5000", "/"},
        {"https://a.example?x", NULL, "https://a.example", "/?x"},
        {"/v2/x", "https://own.example", "https://own.example", "/v2/x"},
    };
    static const char *const bad[] = {
        "",
        "x",
        "//other.example/x",
        "file:///etc/passwd",
        "https://",
        "https:///x",
        "ftp://a/x",
        "https://user@a.example/x",
        "https://a.example\\@b/",
        "https://a/#x",
        "https://a/ x",
        "https://a/\nx",
        "HTTPS://a/x",
    };
    static struct registry_url u;
    struct pd_err e;

    (void)state;
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_int_equal(registry_url_read(good[i].text, good[i].base, &u, &e), 0);
        assert_string_equal(u.base, good[i].want_base);
        assert_string_equal(u.target, good[i].want_target);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(registry_url_read(bad[i], "https://own.example", &u, &e), -1);
        assert_int_equal(e.code, PD_PROTOCOL);
    }
    assert_int_equal(registry_url_read("/v2/x", NULL, &u, &e), -1);
}

static void test_challenges(void **state)
{
    static const struct {
        const char *text;
        int kind;
        const char *realm, *service;
    } rows[] = {
        {"Basic realm=\"x\"", CHALLENGE_BASIC, "x", ""},
        {"basic", CHALLENGE_BASIC, "", ""},
        {"Bearer realm=\"https://a/t\",service=\"s\",scope=\"repository:x:pull\"", CHALLENGE_BEARER,
         "https://a/t", "s"},
        {"BEARER service=s, realm=https://a/t", CHALLENGE_BEARER, "https://a/t", "s"},
        {"Bearer realm=\"a\\\"b\"", CHALLENGE_BEARER, "a\"b", ""},
    };
    static const char *const bad[] = {
        "",
        "Negotiate",
        "Bearer",
        "Bearer realm",
        "Bearer realm=\"a",
        "Basics x",
        "Bearer service=\"x\"",
        "Bearer realm=\"a\nb\"",
        "Bearer =x",
    };
    static struct challenge c;
    struct pd_err e;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(challenge_read(rows[i].text, &c, &e), 0);
        assert_int_equal(c.kind, rows[i].kind);
        assert_string_equal(c.realm, rows[i].realm);
        assert_string_equal(c.service, rows[i].service);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(challenge_read(bad[i], &c, &e), -1);
        assert_int_equal(e.code, PD_PROTOCOL);
    }
}

static void test_tokens(void **state)
{
    static const char *const bad[] = {"",
                                      "{}",
                                      "[]",
                                      "{\"token\":1}",
                                      "{\"token\":\"\"}",
                                      "{\"token\":\"a b\"}",
                                      "{\"token\":\"a\\r\\nX: y\"}"};
    static char token[REGISTRY_TOKEN_MAX + 1];
    struct pd_err e;

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(token_read(bad[i], strlen(bad[i]), token, &e), -1);
    assert_int_equal(token_read("{\"access_token\":\"abc\"}", 22, token, &e), 0);
    assert_string_equal(token, "abc");
    assert_int_equal(token_read("{\"token\":\"x\",\"access_token\":\"abc\"}", 34, token, &e), 0);
    assert_string_equal(token, "x");
}

static int credentials(const char *json, const char *registry, char *out, size_t size)
{
    struct pd_err e;
    return credentials_read(json, strlen(json), registry, out, size, &e);
}

static void test_credentials(void **state)
{
    char out[64];
    const char *hub = "{\"auths\":{\"https://index.docker.io/v1/\":{\"auth\":\"YTpi\"}}}";

    (void)state;
    assert_int_equal(credentials(hub, "docker.io", out, sizeof out), 0);
    assert_string_equal(out, "YTpi");
    assert_int_equal(credentials(hub, "other.example", out, sizeof out), 0);
    assert_string_equal(out, "");
    assert_int_equal(credentials("{}", "x", out, sizeof out), -1);
    assert_int_equal(credentials("{\"auths\":{\"x\":{\"auth\":\"YWI=\"}}}", "x", out, sizeof out),
                     -1);
    assert_int_equal(credentials("{\"auths\":{\"x\":{\"auth\":\"no\"}}}", "x", out, sizeof out),
                     -1);
    assert_int_equal(credentials(hub, "docker.io", out, 4), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_challenges),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_credentials),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
