#include "unit.h"

#include "base/buf.h"
#include "base/err.h"
#include "net/gunzip.h"

#include "base/banned.h"

#include <zlib.h>

#define ANY (UINT64_C(1) << 40)

static void pack(struct buf *out, const void *data, size_t len)
{
    z_stream z = {0};
    uint8_t piece[4096];
    int r;
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);

    z.next_in = (Bytef *)(uintptr_t)data;
    z.avail_in = (uInt)len;
    do {
        z.next_out = piece;
        z.avail_out = sizeof piece;
        r = deflate(&z, Z_FINISH);
        buf_put(out, piece, sizeof piece - z.avail_out);
    } while (r == Z_OK);
    assert_int_equal(r, Z_STREAM_END);
    deflateEnd(&z);
}

/* In steps of so many bytes in and out. 0, or -1. */
static int unpack(struct buf *out, const struct buf *in, size_t step, size_t room, struct pd_err *e)
{
    char piece[4096];
    auto_gunzip g = gunzip_new(ANY, 1, NULL);
    size_t at = 0, used, made;
    assert_non_null(g);

    for (;;) {
        size_t len = in->len - at < step ? in->len - at : step;
        if (gunzip_next(g, in->data + at, len, piece, room, &used, &made, e) < 0)
            return -1;
        assert_true(used <= len && made <= room);
        at += used;
        buf_put(out, piece, made);
        if (!used && !made && at == in->len)
            return gunzip_finish(g, e);
    }
}

static void check(const struct buf *packed, const char *text, size_t len)
{
    static const size_t steps[] = {1, 2, 7, 100, 1 << 20};
    struct pd_err e;
    for (size_t i = 0; i < COUNT(steps); i++)
        for (size_t j = 0; j < COUNT(steps); j++) {
            auto_buf out = BUF_INIT(1 << 20);
            size_t room = steps[j] < 4096 ? steps[j] : 4096;
            assert_int_equal(unpack(&out, packed, steps[i], room, &e), 0);
            assert_int_equal(out.len, len);
            if (len)
                assert_memory_equal(out.data, text, len);
        }
}

static void test_any_pieces(void **state)
{
    static char text[50000];
    (void)state;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = i < 20000 ? 'a' : (char)(i * i >> 3);
    for (size_t len = 0; len <= sizeof text; len += sizeof text / 2) {
        auto_buf packed = BUF_INIT(1 << 20);
        pack(&packed, text, len);
        check(&packed, text, len);
    }
}

static void test_members_behind_each_other(void **state)
{
    auto_buf packed = BUF_INIT(1 << 16);
    (void)state;
    pack(&packed, "one ", 4);
    pack(&packed, "", 0);
    pack(&packed, "two", 3);
    check(&packed, "one two", 7);
}

static void refuse(const struct buf *packed, const char *what)
{
    static const size_t steps[] = {1, 5, 1 << 20};
    for (size_t i = 0; i < COUNT(steps); i++) {
        struct pd_err e = {0};
        auto_buf out = BUF_INIT(1 << 20);
        if (unpack(&out, packed, steps[i], 4096, &e) == 0)
            fail_msg("%s is taken", what);
        assert_int_equal(e.code, PD_INVALID);
    }
}

static void test_what_is_refused(void **state)
{
    static const char *const behind[] = {"x", "\x1f", "\x1f\x8b", "garbage that is long"};
    auto_buf good = BUF_INIT(1 << 16);
    (void)state;

    pack(&good, "some text, some text", 20);
    for (size_t len = 0; len < good.len; len++) {
        auto_buf cut = BUF_INIT(1 << 16);
        buf_put(&cut, good.data, len);
        refuse(&cut, "what is cut off");
    }

    for (size_t i = 0; i < COUNT(behind); i++) {
        auto_buf more = BUF_INIT(1 << 16);
        buf_put(&more, good.data, good.len);
        buf_puts(&more, behind[i]);
        refuse(&more, behind[i]);
    }

    auto_buf zero = BUF_INIT(1 << 16);
    buf_put(&zero, good.data, good.len);
    buf_putc(&zero, 0);
    refuse(&zero, "a NUL behind it");

    for (size_t i = good.len - 8; i < good.len; i++) { /* checksum and length */
        auto_buf wrong = BUF_INIT(1 << 16);
        buf_put(&wrong, good.data, good.len);
        wrong.data[i] ^= 1;
        refuse(&wrong, "a wrong checksum");
    }

    auto_buf plain = BUF_INIT(1 << 16);
    buf_puts(&plain, "no gzip");
    refuse(&plain, "plain text");
}

/* A million of zeros are a thousand bytes. */
static int unpack_bounded(const struct buf *packed, uint64_t free_bytes, unsigned ratio,
                          uint64_t *ret_made, struct pd_err *e)
{
    char piece[4096];
    auto_gunzip g = gunzip_new(free_bytes, ratio, NULL);
    size_t at = 0, used, made;
    for (*ret_made = 0;; *ret_made += made) {
        if (gunzip_next(g, packed->data + at, packed->len - at, piece, sizeof piece, &used, &made,
                        e) < 0)
            return gunzip_next(g, "", 0, piece, 1, &used, &made, NULL);
        at += used;
        if (!used && !made)
            return gunzip_finish(g, e);
    }
}

static void test_bombs(void **state)
{
    static const char zeros[1000000];
    auto_buf packed = BUF_INIT(1 << 16);
    struct pd_err e = {0};
    uint64_t made;
    (void)state;

    pack(&packed, zeros, sizeof zeros);
    assert_true(packed.len < 2000);
    assert_int_equal(unpack_bounded(&packed, 1000000, 10, &made, &e), 0); /* little enough */
    assert_int_equal(made, sizeof zeros);
    assert_int_equal(unpack_bounded(&packed, 0, 2000, &made, &e), 0); /* honest enough */
    assert_int_equal(unpack_bounded(&packed, 100000, 100, &made, &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
    assert_true(made >= 90000 && made <= 300000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_pieces),
        cmocka_unit_test(test_members_behind_each_other),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_bombs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
