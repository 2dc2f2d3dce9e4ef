#include "unit.h"

#include "access/access.h"
#include "base/err.h"
#include "store/sqlite.h"
#include "store/store.h"

#include <string.h>

#define BOX   "abcdefghij0123456789"
#define OTHER "abcdefghij0123456780"

static struct access *access_of(struct store **ret_store)
{
    *ret_store = store_sqlite_open(":memory:", 0, NULL);
    assert_non_null(*ret_store);
    struct access *a = access_new(*ret_store, NULL);
    assert_non_null(a);
    return a;
}

static int opens(const struct access *a, enum access_kind kind, const char *box, const char *token)
{
    return access_check(a, kind, box, token, strlen(token));
}

static void test_a_token_opens_its_sandbox_alone(void **state)
{
    (void)state;
    struct store *s;
    struct access *a = access_of(&s);
    char envd[ACCESS_TOKEN_LEN + 1], traffic[ACCESS_TOKEN_LEN + 1], named[ID_SANDBOX_LEN + 1];
    access_token(a, ACCESS_ENVD, BOX, envd);
    access_token(a, ACCESS_TRAFFIC, BOX, traffic);

    assert_int_equal(strlen(envd), ACCESS_TOKEN_LEN);
    assert_true(opens(a, ACCESS_ENVD, BOX, envd));
    assert_true(opens(a, ACCESS_TRAFFIC, BOX, traffic));
    assert_false(opens(a, ACCESS_ENVD, OTHER, envd));
    assert_false(opens(a, ACCESS_ENVD, BOX, traffic));
    assert_false(opens(a, ACCESS_TRAFFIC, BOX, envd));
    assert_false(opens(a, ACCESS_ENVD, BOX, ""));
    assert_false(access_check(a, ACCESS_ENVD, BOX, envd, ACCESS_TOKEN_LEN - 1));
    assert_false(opens(a, ACCESS_ENVD, "", envd));
    for (size_t i = 0; i < ACCESS_TOKEN_LEN; i++) {
        envd[i] ^= 1;
        assert_false(opens(a, ACCESS_ENVD, BOX, envd));
        envd[i] ^= 1;
    }
    assert_true(access_names(envd, ACCESS_TOKEN_LEN, named));
    assert_string_equal(named, BOX);
    assert_false(access_names(envd, ACCESS_TOKEN_LEN - 1, named));
    access_free(a);
    s->free(s);
}

static void test_a_token_outlives_the_server(void **state)
{
    (void)state;
    struct store *s, *t;
    struct access *a = access_of(&s), *b = access_of(&t);
    char token[ACCESS_TOKEN_LEN + 1];
    access_token(a, ACCESS_ENVD, BOX, token);
    access_free(a);

    a = access_new(s, NULL);
    assert_non_null(a);
    assert_true(opens(a, ACCESS_ENVD, BOX, token));

    /* Another server has another secret. */
    assert_false(opens(b, ACCESS_ENVD, BOX, token));
    access_free(a);
    access_free(b);
    s->free(s);
    t->free(t);
}

static void test_what_names_no_sandbox(void **state)
{
    (void)state;
    static const char mac[] = "0123456789012345678901234567890123456789012345678901234567890123";
    char text[ACCESS_TOKEN_LEN + 1], named[ID_SANDBOX_LEN + 1];
    static const char *const ids[] = {"ABCDEFGHIJ0123456789", "abcdefghij012345678-",
                                      "abcdefghij/../456789", "abcdefghij01234567 9"};
    for (size_t i = 0; i < COUNT(ids); i++) {
        snprintf(text, sizeof text, "%s-%s", ids[i], mac);
        assert_false(access_names(text, strlen(text), named));
    }
    snprintf(text, sizeof text, "%s_%s", BOX, mac);
    assert_false(access_names(text, strlen(text), named));
}

static void test_signatures(void **state)
{
    (void)state;
    static const char token[] = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0";
    char good[ACCESS_SIGNATURE_LEN + 1], other[ACCESS_SIGNATURE_LEN + 1];
    assert_int_equal(access_sign(token, "hello.txt", "read", "user", NULL, good), 0);
    assert_string_equal(good, "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E");

    static const struct {
        const char *token, *path, *operation, *user, *expiration;
    } others[] = {
        {"x", "hello.txt", "read", "user", NULL},    {token, "hello", "read", "user", NULL},
        {token, "hello.txt", "write", "user", NULL}, {token, "hello.txt", "read", "", NULL},
        {token, "hello.txt", "read", "user", ""},    {token, "hello.txt", "read", "user", "1"}};
    for (size_t i = 0; i < COUNT(others); i++) {
        assert_int_equal(access_sign(others[i].token, others[i].path, others[i].operation,
                                     others[i].user, others[i].expiration, other),
                         0);
        assert_false(access_equal(good, strlen(good), other, strlen(other)));
    }
    assert_true(access_equal(good, strlen(good), good, strlen(good)));
    assert_false(access_equal(good, strlen(good), good, strlen(good) - 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_token_opens_its_sandbox_alone),
        cmocka_unit_test(test_a_token_outlives_the_server),
        cmocka_unit_test(test_what_names_no_sandbox),
        cmocka_unit_test(test_signatures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
