#include "unit.h"

#include "access/preview.h"
#include "base/err.h"
#include "store/sqlite.h"
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOX     "abcdefghij0123456789"
#define OTHER   "abcdefghij0123456780"
#define LONGEST "abcdefghijklmnopqrstuvwxyz-0123456789_-----_____-----_____-----"
#define NOW     UINT64_C(1767323045678)

static struct store *store_new(void)
{
    struct store *s = store_sqlite_open(":memory:", 0, NULL);
    assert_non_null(s);
    return s;
}

static void sign(struct preview *p, unsigned port, char token[PREVIEW_TOKEN_MAX + 1])
{
    struct pd_err e = {0};
    uint64_t expires = 0;
    if (preview_sign(p, "acme-2_x", BOX, port, NOW, 60000, token, &expires, &e))
        fail_msg("sign: %s", e.msg);
    assert_true(expires == NOW + 60000);
}

static void opens(struct preview *p, const char *token, const char *box, unsigned port,
                  uint64_t now, const char *whose)
{
    struct pd_err e = {0};
    char tenant[ID_TENANT_MAX + 1];
    if (preview_check(p, token, box, port, now, tenant, &e))
        fail_msg("refused: %s", e.msg);
    assert_string_equal(tenant, whose);
}

static void refused(struct preview *p, const char *token, const char *box, unsigned port,
                    uint64_t now, enum pd_code code, const char *says)
{
    struct pd_err e = {0};
    char tenant[ID_TENANT_MAX + 1] = "Untouched";
    assert_int_equal(preview_check(p, token, box, port, now, tenant, &e), -1);
    assert_string_equal(tenant, "Untouched");
    assert_int_equal(e.code, code);
    if (!strstr(e.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", e.msg, says);
}

static void test_a_token_opens_its_port_until_it_ends(void **state)
{
    (void)state;
    struct store *s = store_new();
    struct preview *p = preview_new(s, NULL);
    assert_non_null(p);

    char token[PREVIEW_TOKEN_MAX + 1];
    sign(p, 8080, token);
    assert_int_equal(strspn(token, "abcdefghijklmnopqrstuvwxyz0123456789_-"), strlen(token));

    opens(p, token, BOX, 8080, NOW, "acme-2_x");
    opens(p, token, BOX, 8080, NOW + 59999, "acme-2_x");
    refused(p, token, BOX, 8080, NOW + 60000, PD_UNAUTHENTICATED,
            "expired at 2026-01-02T03:05:05.678Z");
    refused(p, token, BOX, 8080, UINT64_MAX, PD_UNAUTHENTICATED, "expired");
    refused(p, token, OTHER, 8080, NOW, PD_DENIED, "another sandbox");
    refused(p, token, NULL, 8080, NOW, PD_DENIED, "another sandbox");
    refused(p, token, BOX, 8081, NOW, PD_DENIED, "port 8080, not for port 8081");
    preview_free(p);
    s->free(s);
}

static void test_a_token_that_was_changed_is_refused(void **state)
{
    (void)state;
    struct store *s = store_new();
    struct preview *p = preview_new(s, NULL);
    char token[PREVIEW_TOKEN_MAX + 1], changed[PREVIEW_TOKEN_MAX + 2];
    sign(p, 80, token);
    size_t len = strlen(token);

    /* Every other byte in every place. */
    for (size_t i = 0; i < len; i++) {
        for (int byte = 1; byte < 256; byte++) {
            memcpy(changed, token, len + 1);
            if (changed[i] == (char)byte)
                continue;
            changed[i] = (char)byte;
            refused(p, changed, BOX, 80, NOW, PD_UNAUTHENTICATED, "not valid");
        }
    }

    for (size_t n = 0; n < len; n++) {
        memcpy(changed, token, n);
        changed[n] = '\0';
        refused(p, changed, BOX, 80, NOW, PD_UNAUTHENTICATED, "not valid");
    }
    snprintf(changed, sizeof changed, "%s0", token);
    refused(p, changed, BOX, 80, NOW, PD_UNAUTHENTICATED, "not valid");

    char digits[2 * PREVIEW_TOKEN_MAX];
    memset(digits, '0', sizeof digits);
    digits[sizeof digits - 1] = '\0';
    refused(p, digits, BOX, 80, NOW, PD_UNAUTHENTICATED, "not valid");
    refused(p, NULL, BOX, 80, NOW, PD_UNAUTHENTICATED, "not valid");

    opens(p, token, BOX, 80, NOW, "acme-2_x");
    preview_free(p);
    s->free(s);
}

static void test_the_secret_is_kept_and_another_server_has_another(void **state)
{
    (void)state;
    struct store *s = store_new(), *t = store_new();
    struct preview *p = preview_new(s, NULL);
    char token[PREVIEW_TOKEN_MAX + 1];
    sign(p, 80, token);
    preview_free(p);

    p = preview_new(s, NULL);
    opens(p, token, BOX, 80, NOW, "acme-2_x");
    struct preview *other = preview_new(t, NULL);
    refused(other, token, BOX, 80, NOW, PD_UNAUTHENTICATED, "not valid");
    preview_free(other);
    preview_free(p);

    /* A secret of another length is not filled up with anything. */
    for (size_t len = 0; len <= 40; len += 8) {
        uint8_t secret[40] = {1};
        struct pd_err e = {0};
        assert_int_equal(t->put_value(t, "preview_secret", secret, len, NULL), 0);
        other = preview_new(t, &e);
        assert_int_equal(other != NULL, len == 32);
        if (!other)
            assert_int_equal(e.code, PD_INTERNAL);
        preview_free(other);
    }

    s->free(s);
    t->free(t);
}

static void test_the_signature_is_hmac_sha256(void **state)
{
    (void)state;
    struct store *s = store_new();
    uint8_t secret[32];
    memset(secret, 'k', sizeof secret);
    assert_int_equal(s->put_value(s, "preview_secret", secret, sizeof secret, NULL), 0);

    struct preview *p = preview_new(s, NULL);
    char token[PREVIEW_TOKEN_MAX + 1];
    sign(p, 8080, token);

    /* By another implementation: tokens that are out there must stay valid. */
    assert_string_equal(token, "p1-" BOX "-8080-1767323105678-acme-2_x-"
                               "1e8142b0c7ac990aac3b39efa879c55742bd8e3366e4355333fe7e27c7fd0212");
    preview_free(p);
    s->free(s);
}

static void test_what_cannot_be_signed(void **state)
{
    (void)state;
    struct store *s = store_new();
    struct preview *p = preview_new(s, NULL);
    static const struct {
        const char *tenant, *box;
        unsigned port;
        uint64_t life;
        int good;
    } rows[] = {
        {"a", BOX, 1, 1000, 1},
        {"a", BOX, 65535, PREVIEW_LIFE_MAX_MS, 1},
        {"a", BOX, 80, 0, 1},
        {"a", BOX, 0, 1000, 0},
        {"a", BOX, 65536, 1000, 0},
        {"a", BOX, 80, 999, 0},
        {"a", BOX, 80, PREVIEW_LIFE_MAX_MS + 1, 0},
        {"a", BOX, 80, UINT64_MAX, 0},
        {"", BOX, 80, 1000, 0},
        {NULL, BOX, 80, 1000, 0},
        {"A", BOX, 80, 1000, 0},
        {LONGEST, BOX, 80, 1000, 1},
        {LONGEST "x", BOX, 80, 1000, 0},
        {"a", "", 80, 1000, 0},
        {"a", NULL, 80, 1000, 0},
        {"a", "abcdefghij-123456789", 80, 1000, 0},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        char token[PREVIEW_TOKEN_MAX + 1] = "untouched";
        uint64_t expires = 7;
        struct pd_err e = {0};
        int failed = preview_sign(p, rows[i].tenant, rows[i].box, rows[i].port, NOW, rows[i].life,
                                  token, &expires, &e);
        assert_int_equal(failed, rows[i].good ? 0 : -1);

        if (failed) {
            assert_int_equal(e.code, PD_INVALID);
            assert_string_equal(token, "untouched");
            assert_true(expires == 7);
        } else {
            opens(p, token, rows[i].box, rows[i].port, NOW, rows[i].tenant);
            assert_true(expires == NOW + (rows[i].life ? rows[i].life : PREVIEW_LIFE_MS));
        }
    }
    preview_free(p);
    s->free(s);
}

static ptrdiff_t broken_get(struct store *s, const char *name, void *out, size_t size,
                            struct pd_err *e)
{
    (void)s, (void)name, (void)out, (void)size;
    return pd_fail(e, PD_INTERNAL, "the disk is broken");
}

static void test_a_store_that_fails_gets_no_new_secret(void **state)
{
    (void)state;
    struct store broken = {.get_value = broken_get}; /* a put would crash */
    struct pd_err e = {0};
    assert_null(preview_new(&broken, &e));
    assert_string_equal(e.msg, "the disk is broken");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_token_opens_its_port_until_it_ends),
        cmocka_unit_test(test_a_token_that_was_changed_is_refused),
        cmocka_unit_test(test_the_secret_is_kept_and_another_server_has_another),
        cmocka_unit_test(test_the_signature_is_hmac_sha256),
        cmocka_unit_test(test_what_cannot_be_signed),
        cmocka_unit_test(test_a_store_that_fails_gets_no_new_secret),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
