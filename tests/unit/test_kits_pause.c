/* When a keeper makes kits again: what the newest jail's first command has to itself, and what ends
 * that. The keeper is a struct with nothing behind it: no process, no cgroup. */
#include "unit.h"

#include "jail/keeper_state.h"

#include <stdlib.h>

enum { QUIET_AT = 100, COMMAND_AT = 200 };

static const struct keeper_config config = {.builders = 2, .kits = 2};

/* Half of the last creations wanted `one`, the others `other`; no kit is there. */
static struct keeper *begin(unsigned one, unsigned other)
{
    struct keeper *k = calloc(1, sizeof *k);
    assert_non_null(k);
    k->config = &config;
    k->kind = keeper_kind_at(0);
    k->cgroups_known = 1;
    k->cgroups.layout = CGROUP_V2;
    k->epoll = k->safe = k->safe_process = -1;
    k->worker_count = 2;
    for (unsigned i = 0; i < k->worker_count; i++)
        k->workers[i].builds = 1;
    for (unsigned i = 0; i < KITS_RECENT; i++)
        k->recent[i] = (unsigned char)(i % 2 ? one : other);
    k->quiet_at = QUIET_AT;
    k->first_command_at = COMMAND_AT;
    return k;
}

static void add_kit(struct keeper *k, struct kjail *kit, unsigned kind)
{
    *kit = (struct kjail){.kit_kind = kind, .state = JAIL_KIT, .kit_next = k->kits};
    k->kits = kit;
}

/* With creations that come one after the other every time is somebody's first command's. */
static void test_half_of_each_kind_is_there_before_kits_wait(void **state)
{
    (void)state;
    struct keeper *k = begin(PROFILE_STRICT, PROFILE_DEV);
    struct kjail strict, dev;

    add_kit(k, &strict, PROFILE_STRICT);
    assert_int_equal(kits_quiet_at(k), QUIET_AT); /* of the other kind there is none */
    add_kit(k, &dev, PROFILE_DEV);
    assert_int_equal(kits_quiet_at(k), COMMAND_AT);
    k->kits = &strict;
    strict.kit_next = NULL;
    assert_int_equal(kits_quiet_at(k), QUIET_AT);
    free(k);
}

/* Nobody waits for one that cannot make any. */
static void test_a_builder_that_can_make_none_does_not_count(void **state)
{
    (void)state;
    struct keeper *k = begin(KIT_PLAIN, KIT_PLAIN);

    k->workers[0].kit_count = 1;
    assert_int_equal(kits_quiet_at(k), QUIET_AT); /* the control */
    k->workers[1].prepare_failed = 1;
    assert_int_equal(kits_quiet_at(k), COMMAND_AT);
    free(k);
}

/* By whatever way it ends. */
static void test_a_jail_that_has_ended_keeps_nobody_waiting(void **state)
{
    (void)state;
    struct keeper *k = begin(KIT_PLAIN, KIT_PLAIN);
    struct wire_id id = wire_id_new(), another = wire_id_new();

    k->newest = id;
    jail_set_dead(k, jail_new(k, another));
    assert_int_equal(k->first_command_at, COMMAND_AT); /* the control */
    jail_set_dead(k, jail_new(k, id));
    assert_int_equal(k->first_command_at, 0);
    jail_forget(k, jail_find(k, id));

    k->first_command_at = COMMAND_AT;
    jail_forget(k, jail_find(k, another));
    assert_int_equal(k->first_command_at, COMMAND_AT);
    jail_forget(k, jail_new(k, id));
    assert_int_equal(k->first_command_at, 0);
    free(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half_of_each_kind_is_there_before_kits_wait),
        cmocka_unit_test(test_a_builder_that_can_make_none_does_not_count),
        cmocka_unit_test(test_a_jail_that_has_ended_keeps_nobody_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
