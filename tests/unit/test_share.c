#include "unit.h"

#include "api/share.h"

#include "base/banned.h"
#include "base/err.h"

#include <string.h>

/* As many as it gets. */
static unsigned fill(struct shares *s, const char *tenant, unsigned places)
{
    struct pd_err e;
    unsigned n = 0;
    while (n <= places && shares_enter(s, tenant, places, &e) == 0)
        n++;
    assert_int_equal(e.code, PD_RATE);
    return n;
}

static void empty(struct shares *s, const char *tenant, unsigned n)
{
    while (n--)
        shares_leave(s, tenant);
}

static void test_one_alone_gets_three_quarters(void **state)
{
    (void)state;
    struct shares *s = shares_new();
    static const unsigned places[] = {4, 48, 100, 2048};
    for (unsigned i = 0; i < 4; i++) {
        unsigned n = fill(s, "a", places[i]);
        assert_in_range(n, places[i] * 3 / 4 - 1, places[i] * 3 / 4 + 1);
        empty(s, "a", n);
    }
    shares_free(s);
}

static void test_there_is_always_a_place_for_another(void **state)
{
    (void)state;
    struct shares *s = shares_new();
    struct pd_err e;
    static const char *const names[] = {"a", "b", "", "c"};
    unsigned n[4];

    for (unsigned i = 0; i < 4; i++) {
        n[i] = fill(s, names[i], 2048);
        assert_true(n[i] >= 20);
    }
    assert_int_equal(shares_enter(s, "next", 2048, &e), 0);

    shares_leave(s, "next");
    for (unsigned i = 0; i < 4; i++)
        empty(s, names[i], n[i]);
    assert_in_range(fill(s, "a", 100), 74, 76);
    shares_free(s);
}

static void test_who_gave_back_may_come_again(void **state)
{
    (void)state;
    struct shares *s = shares_new();
    struct pd_err e;
    unsigned n = fill(s, "a", 40);

    shares_leave(s, "a");
    assert_int_equal(shares_enter(s, "a", 40, &e), 0);
    assert_int_equal(shares_enter(s, "a", 40, &e), -1);
    assert_non_null(strstr(e.msg, "a has "));

    empty(s, "a", n);
    shares_leave(s, "a"); /* one too many changes nothing */
    assert_int_equal(fill(s, "a", 40), n);
    shares_free(s);
}

static void test_few_places(void **state)
{
    (void)state;
    struct shares *s = shares_new();
    assert_int_equal(fill(s, "a", 1), 1);
    empty(s, "a", 1);
    assert_int_equal(fill(s, "a", 2), 2);
    empty(s, "a", 2);
    assert_int_equal(fill(s, "a", 0), 0);
    shares_free(s);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_alone_gets_three_quarters),
        cmocka_unit_test(test_there_is_always_a_place_for_another),
        cmocka_unit_test(test_who_gave_back_may_come_again),
        cmocka_unit_test(test_few_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
