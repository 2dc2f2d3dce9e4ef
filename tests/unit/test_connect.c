#include "unit.h"

#include "api/connect.h"
#include "api/e2b.h"

#include "base/banned.h"

#include <string.h>

/* ---- envelopes ---- */

static void test_an_envelope(void **state)
{
    (void)state;
    static const uint8_t bytes[] = "\0\0\0\0\2{}rest";
    uint8_t flags = 9;
    struct slice message;
    size_t used = 0;
    struct pd_err e;

    assert_int_equal(connect_envelope(bytes, sizeof bytes - 1, 100, &flags, &message, &used, &e),
                     1);
    assert_int_equal(flags, 0);
    assert_int_equal(used, 7);
    assert_true(slice_is(message, "{}"));

    /* Every part of it asks for more, and nothing is written then. */
    for (size_t len = 0; len < 7; len++) {
        used = 99;
        assert_int_equal(connect_envelope(bytes, len, 100, &flags, &message, &used, &e), 0);
        assert_int_equal(used, 99);
    }
    assert_int_equal(connect_envelope(NULL, 0, 100, &flags, &message, &used, &e), 0);
}

static void test_flags(void **state)
{
    (void)state;
    uint8_t flags = 0;
    struct slice message;
    size_t used;
    struct pd_err e;

    assert_int_equal(connect_envelope("\2\0\0\0\0", 5, 0, &flags, &message, &used, &e), 1);
    assert_int_equal(flags, CONNECT_LAST);
    assert_int_equal(message.len, 0);
    assert_int_equal(used, 5);
    assert_int_equal(connect_envelope("\1\0\0\0\0", 5, 9, &flags, &message, &used, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    assert_int_equal(connect_envelope("\3\0\0\0\0", 5, 9, &flags, &message, &used, &e), -1);
}

static void test_lengths(void **state)
{
    (void)state;
    uint8_t flags;
    struct slice message;
    size_t used;
    struct pd_err e;

    /* What is too long is refused by its head, before anybody waits for it. */
    assert_int_equal(connect_envelope("\0\0\0\1\1", 5, 256, &flags, &message, &used, &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
    assert_int_equal(connect_envelope("\0\0\0\1\0", 5, 256, &flags, &message, &used, &e), 0);
    assert_int_equal(
        connect_envelope("\0\xff\xff\xff\xff", 5, 8 << 20, &flags, &message, &used, &e), -1);
    assert_int_equal(connect_envelope("\0\x80\0\0\0", 5, 8 << 20, &flags, &message, &used, &e), -1);
}

static void test_written_and_read(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(1 << 18);
    static const size_t lengths[] = {0, 1, 255, 256, 65535, 65536, 70000};

    for (size_t i = 0; i < COUNT(lengths); i++) {
        size_t at = connect_put_begin(&out, (uint8_t)(i % 2 * CONNECT_LAST));
        for (size_t n = 0; n < lengths[i]; n++)
            buf_putc(&out, (char)('a' + i));
        connect_put_end(&out, at);
    }
    assert_false(out.overflow);

    size_t at = 0;
    for (size_t i = 0; i < COUNT(lengths); i++) {
        uint8_t flags;
        struct slice message;
        size_t used;
        struct pd_err e;
        assert_int_equal(
            connect_envelope(out.data + at, out.len - at, 70000, &flags, &message, &used, &e), 1);
        assert_int_equal(flags, i % 2 * CONNECT_LAST);
        assert_int_equal(message.len, lengths[i]);
        for (size_t n = 0; n < message.len; n++)
            assert_int_equal(message.at[n], 'a' + i);
        at += used;
    }
    assert_int_equal(at, out.len);
}

static void test_no_room(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(8);
    size_t at = connect_put_begin(&out, 0);
    buf_puts(&out, "{\"too\":\"long\"}");
    connect_put_end(&out, at);
    assert_true(out.overflow);
}

/* ---- headers ---- */

struct fake {
    struct request r;
    struct route route;
    struct call c;
};

static struct call *fake_call(struct fake *f, const char *name, const char *value)
{
    memset(f, 0, sizeof *f);
    f->c.r = &f->r;
    f->c.route = &f->route;
    snprintf(f->r.id, sizeof f->r.id, "0123456789abcdef");
    if (name) {
        f->r.head.headers[0] = (struct http_header){slice_of(name), slice_of(value)};
        f->r.head.header_count = 1;
    }
    return &f->c;
}

static void test_time_limits(void **state)
{
    (void)state;
    static struct fake f;
    struct pd_err e;
    uint64_t ns = 1;
    assert_int_equal(connect_timeout(fake_call(&f, NULL, NULL), &ns, &e), 0);
    assert_int_equal(ns, 0);
    assert_int_equal(connect_timeout(fake_call(&f, "connect-timeout-ms", "1500"), &ns, &e), 0);
    assert_int_equal(ns, 1500 * NS_PER_MS);
    assert_int_equal(connect_timeout(fake_call(&f, "Connect-Timeout-Ms", "9999999999"), &ns, &e),
                     0);
    assert_int_equal(ns, UINT64_C(9999999999) * NS_PER_MS);

    static const char *const wrong[] = {
        "", "x", "-1", "1.5", "1e3", "10000000000", " 1", "99999999999999999999999999999999"};
    for (size_t i = 0; i < COUNT(wrong); i++)
        if (connect_timeout(fake_call(&f, "Connect-Timeout-Ms", wrong[i]), &ns, &e) != -1)
            fail_msg("'%s' is taken for a time", wrong[i]);
}

static void test_keepalive(void **state)
{
    (void)state;
    static struct fake f;
    static const struct {
        const char *text;
        uint64_t s;
    } rows[] = {{NULL, 90}, {"50", 50}, {"1", 1},      {"0", 90},
                {"x", 90},  {"-5", 90}, {"99999", 90}, {"99999999999999999999999999999999", 90}};

    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *name = rows[i].text ? "Keepalive-Ping-Interval" : NULL;
        assert_int_equal(connect_keepalive_ns(fake_call(&f, name, rows[i].text)),
                         rows[i].s * NS_PER_S);
    }
}

static void test_types(void **state)
{
    (void)state;
    static struct fake f;
    struct pd_err e;
    static const struct {
        const char *type;
        unsigned flags;
        int is_good;
    } rows[] = {{"application/json", ROUTE_RPC, 1},
                {"Application/JSON; charset=utf-8", ROUTE_RPC, 1},
                {"application/connect+json", ROUTE_RPC_STREAM, 1},
                {"application/connect+json", ROUTE_RPC, 0},
                {"application/json", ROUTE_RPC_STREAM, 0},
                {"application/connect+proto", ROUTE_RPC_STREAM, 0},
                {"application/jsonx", ROUTE_RPC, 0},
                {"", ROUTE_RPC, 0}};

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct call *c = fake_call(&f, "Content-Type", rows[i].type);
        f.route.flags = rows[i].flags;
        assert_int_equal(connect_check_type(c, &e), rows[i].is_good ? 0 : -1);
    }
    assert_int_equal(connect_check_type(fake_call(&f, NULL, NULL), &e), -1);
}

/* ---- ends ---- */

static void check_last(const struct pd_err *why, const char *wanted)
{
    static struct fake f;
    auto_buf out = BUF_INIT(4096);
    uint8_t flags = 0;
    struct slice message;
    size_t used = 0;
    struct pd_err e;

    connect_put_last(fake_call(&f, NULL, NULL), &out, why);
    assert_false(out.overflow);
    assert_int_equal(connect_envelope(out.data, out.len, 4096, &flags, &message, &used, &e), 1);
    assert_int_equal(flags, CONNECT_LAST);
    assert_int_equal(used, out.len);
    if (!slice_is(message, wanted))
        fail_msg("%.*s", (int)message.len, message.at);
}

static void test_the_last_envelope(void **state)
{
    (void)state;
    struct pd_err e;
    check_last(NULL, "{}");

    pd_fail(&e, PD_NOT_FOUND, "no \"such\"\nthing");
    check_last(&e, "{\"error\":{\"code\":\"not_found\","
                   "\"message\":\"no \\\"such\\\"\\nthing\"}}");
    pd_fail(&e, PD_TIMEOUT, "late");
    check_last(&e, "{\"error\":{\"code\":\"deadline_exceeded\",\"message\":\"late\"}}");

    /* What went wrong inside stays inside. */
    pd_fail(&e, PD_INTERNAL, "/var/lib/secret is broken");
    check_last(&e, "{\"error\":{\"code\":\"internal\",\"message\":\"something went wrong in the "
                   "server: see its log, request 0123456789abcdef\"}}");

    memset(e.msg, 1, sizeof e.msg - 1);
    e.code = PD_INVALID;
    auto_buf out = BUF_INIT(4096);
    static struct fake f;
    connect_put_last(fake_call(&f, NULL, NULL), &out, &e);
    assert_false(out.overflow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_envelope),       cmocka_unit_test(test_flags),
        cmocka_unit_test(test_lengths),           cmocka_unit_test(test_written_and_read),
        cmocka_unit_test(test_no_room),           cmocka_unit_test(test_time_limits),
        cmocka_unit_test(test_keepalive),         cmocka_unit_test(test_types),
        cmocka_unit_test(test_the_last_envelope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
