#include "unit.h"

#include "base/clock.h"

#include <limits.h>
#include <time.h>

static void test_now_is_the_boot_time_clock_and_never_goes_back(void **state)
{
    (void)state;
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    uint64_t before = (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
    uint64_t last = clock_now();
    assert_true(last >= before);
    assert_true(last - before < 10 * NS_PER_S);
    for (int i = 0; i < 1000; i++) {
        uint64_t now = clock_now();
        assert_true(now >= last);
        last = now;
    }
}

static void test_a_deadline_lies_that_far_ahead(void **state)
{
    (void)state;
    uint64_t before = clock_now();
    deadline d = deadline_in(5 * NS_PER_S);
    uint64_t after = clock_now();
    assert_true(d >= before + 5 * NS_PER_S);
    assert_true(d <= after + 5 * NS_PER_S);
}

static void test_a_deadline_past_the_end_of_time_saturates_to_none(void **state)
{
    (void)state;
    assert_true(deadline_in(UINT64_MAX) == DEADLINE_NONE);
    assert_true(deadline_in(UINT64_MAX - 1) == DEADLINE_NONE);
    assert_true(deadline_in(UINT64_MAX - clock_now() + NS_PER_S) == DEADLINE_NONE);
    /* Just before the end: still a deadline. */
    assert_true(deadline_in(UINT64_MAX - clock_now() - 3600 * NS_PER_S) != DEADLINE_NONE);
}

static void test_none_never_passes_and_polls_forever(void **state)
{
    (void)state;
    assert_false(deadline_passed(DEADLINE_NONE));
    assert_int_equal(deadline_poll_ms(DEADLINE_NONE), -1);
}

static void test_what_has_passed_polls_with_zero(void **state)
{
    (void)state;
    deadline now = deadline_in(0);
    assert_true(deadline_passed(now));
    assert_int_equal(deadline_poll_ms(now), 0);
    assert_true(deadline_passed(0));
    assert_int_equal(deadline_poll_ms(0), 0);
}

/* A poll that wakes before the deadline would spin until it has passed. */
static void test_milliseconds_are_rounded_up(void **state)
{
    (void)state;
    assert_in_range(deadline_poll_ms(deadline_in(10 * NS_PER_S + 1)), 9000, 10001);
    for (int i = 0; i < 1000; i++) {
        deadline d = deadline_in(NS_PER_MS / 2);
        int ms = deadline_poll_ms(d);
        assert_true(ms == 1 || (ms == 0 && deadline_passed(d)));
    }
}

static void test_far_deadlines_saturate_the_poll(void **state)
{
    (void)state;
    assert_int_equal(deadline_poll_ms(DEADLINE_NONE - 1), INT_MAX);
    assert_int_equal(deadline_poll_ms(deadline_in((uint64_t)INT_MAX * 2 * NS_PER_MS)), INT_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_now_is_the_boot_time_clock_and_never_goes_back),
        cmocka_unit_test(test_a_deadline_lies_that_far_ahead),
        cmocka_unit_test(test_a_deadline_past_the_end_of_time_saturates_to_none),
        cmocka_unit_test(test_none_never_passes_and_polls_forever),
        cmocka_unit_test(test_what_has_passed_polls_with_zero),
        cmocka_unit_test(test_milliseconds_are_rounded_up),
        cmocka_unit_test(test_far_deadlines_saturate_the_poll),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
