#include "unit.h"

#include "base/buf.h"

#include <stdio.h>
#include <string.h>
#include <wchar.h>

static void test_appends_in_order(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(100);
    assert_int_equal(buf_puts(&b, "one"), 0);
    assert_int_equal(buf_putc(&b, ' '), 0);
    assert_int_equal(buf_put(&b, "two\0three", 9), 0);
    assert_int_equal(buf_printf(&b, " %d", 4), 0);
    assert_int_equal(b.len, 15);
    assert_memory_equal(b.data, "one two\0three 4", 15);
    assert_false(b.overflow);
}

static void test_grows_to_its_maximum_and_not_past_it(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(1000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(buf_putc(&b, (char)i), 0);
    assert_int_equal(b.len, 1000);
    assert_true(b.cap <= 1000);
    assert_false(b.overflow);
    assert_int_equal(buf_putc(&b, 'x'), -1);
    assert_true(b.overflow);
    assert_int_equal(b.len, 1000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(b.data[i], (uint8_t)i);
}

static void test_a_refused_append_leaves_the_contents(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(8);
    buf_puts(&b, "12345");
    assert_int_equal(buf_puts(&b, "6789"), -1);
    assert_int_equal(b.len, 5);
    assert_memory_equal(b.data, "12345", 5);
}

/* A chain of appends is checked once, so a later small one must not hide an earlier failure. */
static void test_overflow_stays_marked(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(8);
    buf_puts(&b, "12345");
    buf_puts(&b, "too long");
    assert_int_equal(buf_putc(&b, '6'), 0);
    assert_true(b.overflow);
    buf_clear(&b);
    assert_false(b.overflow);
    assert_int_equal(b.len, 0);
}

static void test_a_zero_maximum_holds_nothing(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(0);
    assert_int_equal(buf_put(&b, "", 0), 0);
    assert_false(b.overflow);
    assert_int_equal(buf_putc(&b, 'x'), -1);
    assert_null(buf_cstr(&b));
    assert_true(b.overflow);
}

static void test_lengths_near_the_word_size_do_not_wrap(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(100);
    buf_puts(&b, "1234567890");
    assert_null(buf_reserve(&b, SIZE_MAX));
    assert_null(buf_reserve(&b, SIZE_MAX - 5));
    assert_null(buf_reserve(&b, 91));
    assert_non_null(buf_reserve(&b, 90));
    assert_int_equal(b.len, 10);
}

/* A length that no machine has: must fail, and end. */
static void test_a_huge_maximum_fails_by_memory(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(SIZE_MAX);
    buf_puts(&b, "kept");
    assert_null(buf_reserve(&b, SIZE_MAX / 2 + 2));
    assert_true(b.overflow);
    assert_null(buf_reserve(&b, SIZE_MAX - 4));
    assert_memory_equal(b.data, "kept", 4);
}

static void test_printf_needs_room_for_its_nul_while_it_writes(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(8);
    assert_int_equal(buf_printf(&b, "%s", "1234567"), 0);
    assert_int_equal(b.len, 7);
    assert_int_equal(buf_printf(&b, "%s", "8"), -1);
    assert_true(b.overflow);
    assert_int_equal(b.len, 7);
    assert_memory_equal(b.data, "1234567", 7);
}

static void test_printf_appends_what_is_longer_than_the_memory_so_far(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(10000);
    buf_puts(&b, "a");
    assert_int_equal(buf_printf(&b, "%5000d", 7), 0);
    assert_int_equal(b.len, 5001);
    assert_int_equal(b.data[0], 'a');
    assert_int_equal(b.data[5000], '7');
}

/* The C locale has no such character, so formatting fails. That too must show in `overflow`. */
static void test_a_failed_format_is_marked_like_an_overflow(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(100);
    buf_puts(&b, "kept");
    assert_int_equal(buf_printf(&b, "%lc", (wint_t)0x10ffff), -1);
    assert_true(b.overflow);
    assert_int_equal(b.len, 4);
}

static void test_cstr_terminates_without_counting(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(6);
    assert_string_equal(buf_cstr(&b), "");
    buf_puts(&b, "12345");
    assert_string_equal(buf_cstr(&b), "12345");
    assert_int_equal(b.len, 5);
    buf_putc(&b, '6');
    assert_memory_equal(b.data, "123456", 6);
    assert_null(buf_cstr(&b));
}

static void test_reserve_does_not_count_until_the_caller_does(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(1000);
    uint8_t *to = buf_reserve(&b, 300);
    assert_non_null(to);
    assert_int_equal(b.len, 0);
    memset(to, 'x', 300);
    b.len += 300;
    assert_int_equal(buf_putc(&b, 'y'), 0);
    assert_int_equal(b.data[299], 'x');
    assert_int_equal(b.data[300], 'y');
}

static void test_done_keeps_the_maximum_and_may_be_repeated(void **state)
{
    (void)state;
    struct buf b = BUF_INIT(4);
    buf_puts(&b, "12345");
    buf_puts(&b, "123");
    buf_done(&b);
    assert_null(b.data);
    assert_int_equal(b.len, 0);
    assert_int_equal(b.max, 4);
    assert_false(b.overflow);
    buf_done(&b);
    assert_int_equal(buf_puts(&b, "1234"), 0);
    buf_done(&b);

    struct buf zeroed = {0};
    buf_done(&zeroed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_appends_in_order),
        cmocka_unit_test(test_grows_to_its_maximum_and_not_past_it),
        cmocka_unit_test(test_a_refused_append_leaves_the_contents),
        cmocka_unit_test(test_overflow_stays_marked),
        cmocka_unit_test(test_a_zero_maximum_holds_nothing),
        cmocka_unit_test(test_lengths_near_the_word_size_do_not_wrap),
        cmocka_unit_test(test_a_huge_maximum_fails_by_memory),
        cmocka_unit_test(test_printf_needs_room_for_its_nul_while_it_writes),
        cmocka_unit_test(test_printf_appends_what_is_longer_than_the_memory_so_far),
        cmocka_unit_test(test_a_failed_format_is_marked_like_an_overflow),
        cmocka_unit_test(test_cstr_terminates_without_counting),
        cmocka_unit_test(test_reserve_does_not_count_until_the_caller_does),
        cmocka_unit_test(test_done_keeps_the_maximum_and_may_be_repeated),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
