/* How connections that use secrets are shared: whoever is greedy, those who have none find some. */
#include "gate/gate_state.h"
#include "unit.h"

#include <string.h>

#define MOST    1024u
#define TENANTS 64u /* and sandboxes of each */
#define GREEDY  16u

/* Tenants that take one after the other, as long as there is any for any of them. */
static unsigned take_all(unsigned tenants, unsigned sandboxes, unsigned held[TENANTS][TENANTS])
{
    unsigned all = 0, before;

    memset(held, 0, TENANTS * sizeof *held);
    do {
        before = all;
        for (unsigned t = 0; t < tenants; t++)
            for (unsigned s = 0; s < sandboxes; s++) {
                unsigned of_tenant = 0;
                for (unsigned i = 0; i < sandboxes; i++)
                    of_tenant += held[t][i];
                if (lend_has_room(MOST, all, of_tenant, held[t][s])) {
                    held[t][s]++;
                    all++;
                }
            }
    } while (all > before);
    return all;
}

static void test_who_has_none_finds_one_however_many_take_all_they_can(void **state)
{
    static unsigned held[TENANTS][TENANTS];
    (void)state;

    for (unsigned tenants = 1; tenants <= GREEDY; tenants++)
        for (unsigned sandboxes = 1; sandboxes <= TENANTS; sandboxes *= 4) {
            unsigned all = take_all(tenants, sandboxes, held);
            assert_true(lend_has_room(MOST, all, 0, 0));
            for (unsigned t = 0; t < tenants; t++)
                assert_in_range(held[t][0], 1, MOST / 4);
        }
}

static void test_one_alone_has_a_useful_share(void **state)
{
    static unsigned held[TENANTS][TENANTS];
    (void)state;

    assert_int_equal(take_all(1, 1, held), MOST / 4);
    assert_in_range(take_all(1, TENANTS, held), MOST / 2 - TENANTS, MOST / 2);
    assert_in_range(take_all(2, TENANTS, held), 2 * MOST / 3 - 2 * TENANTS, 2 * MOST / 3 + 2);
}

static void test_nothing_is_given_that_is_not_there(void **state)
{
    (void)state;
    assert_false(lend_has_room(8, 8, 0, 0));
    assert_false(lend_has_room(8, 9, 0, 0));
    assert_false(lend_has_room(8, 4, 4, 0));
    assert_true(lend_has_room(8, 7, 0, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_has_none_finds_one_however_many_take_all_they_can),
        cmocka_unit_test(test_one_alone_has_a_useful_share),
        cmocka_unit_test(test_nothing_is_given_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
