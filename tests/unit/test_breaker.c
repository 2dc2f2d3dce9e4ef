/* Breakers: when they open, how long, and what closes them. Time is an argument, so a test has as
 * much of it as it likes. */
#include "unit.h"

#include "router/breaker.h"

#define S UINT64_C(1000000000)

static const struct breaker_limits limits = {.in_row = 5,
                                             .calls = 20,
                                             .percent = 50,
                                             .window_ns = 60 * S,
                                             .open_ns = 30 * S,
                                             .open_most_ns = 300 * S};

static void call(struct breaker *b, bool failed, uint64_t now)
{
    assert_true(breaker_allows(b, now));
    breaker_begin(b, &limits, now);
    breaker_end(b, &limits, failed, now);
}

static void test_five_failures_in_a_row_open_it(void **state)
{
    struct breaker b = {0};
    (void)state;

    for (unsigned i = 0; i < 4; i++)
        call(&b, true, S);
    call(&b, false, S);
    for (unsigned i = 0; i < 4; i++)
        call(&b, true, S);
    assert_int_equal(b.state, BREAKER_CLOSED);

    call(&b, true, S);
    assert_int_equal(b.state, BREAKER_OPEN);
    assert_false(breaker_allows(&b, S));
    assert_int_equal(breaker_wait(&b, S), 30 * S);
    assert_false(breaker_allows(&b, 31 * S - 1));
    assert_true(breaker_allows(&b, 31 * S));
}

static void test_half_of_twenty_within_a_minute_open_it(void **state)
{
    struct breaker b = {0};
    (void)state;

    for (unsigned i = 0; i < 19; i++)
        call(&b, i % 2, S);
    assert_int_equal(b.state, BREAKER_CLOSED);
    call(&b, true, S);
    assert_int_equal(b.state, BREAKER_OPEN);

    /* The same failures over a longer time are no reason. */
    b = (struct breaker){0};
    for (unsigned i = 0; i < 200; i++)
        call(&b, i % 2, i * 4 * S);
    assert_int_equal(b.state, BREAKER_CLOSED);

    /* Nor is less than half of them. */
    b = (struct breaker){0};
    for (unsigned i = 0; i < 200; i++)
        call(&b, i % 5 < 2, S);
    assert_int_equal(b.state, BREAKER_CLOSED);
}

static void test_one_try_decides_when_it_is_half_open(void **state)
{
    struct breaker b = {0};
    uint64_t now = S;
    (void)state;

    for (unsigned i = 0; i < 5; i++)
        call(&b, true, now);

    now += 30 * S;
    assert_true(breaker_allows(&b, now));
    breaker_begin(&b, &limits, now);
    assert_int_equal(b.state, BREAKER_HALF_OPEN);
    assert_false(breaker_allows(&b, now)); /* a second one is not let through */

    breaker_end(&b, &limits, false, now);
    assert_int_equal(b.state, BREAKER_CLOSED);
    for (unsigned i = 0; i < 4; i++)
        call(&b, true, now); /* it begins anew */
    assert_int_equal(b.state, BREAKER_CLOSED);
}

static void test_the_wait_doubles_up_to_its_most(void **state)
{
    static const uint64_t waits[] = {30, 60, 120, 240, 300, 300};
    struct breaker b = {0};
    uint64_t now = S;
    (void)state;

    for (unsigned i = 0; i < 5; i++)
        call(&b, true, now);
    for (unsigned i = 0; i < COUNT(waits); i++) {
        assert_int_equal(breaker_wait(&b, now), waits[i] * S);
        now += waits[i] * S;
        call(&b, true, now);
    }

    now += 300 * S;
    call(&b, false, now);
    for (unsigned i = 0; i < 5; i++)
        call(&b, true, now);
    assert_int_equal(breaker_wait(&b, now), 30 * S);
}

static void test_a_try_that_never_ends_is_given_up(void **state)
{
    struct breaker b = {0};
    (void)state;

    for (unsigned i = 0; i < 5; i++)
        call(&b, true, S);
    breaker_begin(&b, &limits, 31 * S);
    assert_false(breaker_allows(&b, 60 * S));
    assert_true(breaker_allows(&b, 61 * S));
}

static void test_late_ends_of_earlier_calls_do_not_close_it(void **state)
{
    struct breaker b = {0};
    (void)state;

    for (unsigned i = 0; i < 5; i++)
        call(&b, true, S);
    breaker_end(&b, &limits, false, 2 * S);
    breaker_end(&b, &limits, true, 2 * S);
    assert_int_equal(b.state, BREAKER_OPEN);
    assert_int_equal(breaker_wait(&b, S), 30 * S);
}

/* Whatever happens: it is never open for longer than its most, and a success after a wait closes
 * it. */
static void test_random_histories_keep_its_promises(void **state)
{
    uint64_t seed = 1, now = S;
    struct breaker b = {0};
    (void)state;

    for (unsigned i = 0; i < 200000; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        now += (seed >> 33) % (10 * S);
        if (breaker_allows(&b, now)) {
            breaker_begin(&b, &limits, now);
            bool failed = (seed >> 40) % 3 != 0;
            breaker_end(&b, &limits, failed, now);
            if (!failed)
                assert_int_equal(b.state, BREAKER_CLOSED);
        }
        assert_true(breaker_wait(&b, now) <= limits.open_most_ns);
        assert_true(b.count <= limits.calls);
    }
}

static void test_a_call_that_was_never_made_says_nothing(void **state)
{
    struct breaker b = {0};
    (void)state;

    for (unsigned i = 0; i < 100; i++) {
        breaker_begin(&b, &limits, S);
        breaker_cancel(&b, S);
    }
    assert_int_equal(b.state, BREAKER_CLOSED);
    assert_int_equal(b.count, 0);

    for (unsigned i = 0; i < 5; i++)
        call(&b, true, S);
    assert_false(breaker_allows(&b, 2 * S));

    /* The one try of a half-open breaker is the next one's then. */
    breaker_begin(&b, &limits, 31 * S);
    assert_false(breaker_allows(&b, 32 * S));
    breaker_cancel(&b, 32 * S);
    assert_true(breaker_allows(&b, 32 * S));
    call(&b, false, 32 * S);
    assert_int_equal(b.state, BREAKER_CLOSED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_five_failures_in_a_row_open_it),
        cmocka_unit_test(test_half_of_twenty_within_a_minute_open_it),
        cmocka_unit_test(test_one_try_decides_when_it_is_half_open),
        cmocka_unit_test(test_the_wait_doubles_up_to_its_most),
        cmocka_unit_test(test_a_try_that_never_ends_is_given_up),
        cmocka_unit_test(test_late_ends_of_earlier_calls_do_not_close_it),
        cmocka_unit_test(test_random_histories_keep_its_promises),
        cmocka_unit_test(test_a_call_that_was_never_made_says_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
