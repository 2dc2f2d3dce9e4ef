/* Ids of project quotas: no two trees of one file system share one. */
#include "jail/quota.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define TREES 40

struct trees {
    uint32_t ids[TREES];
    unsigned count;
};

static int in_use(uint32_t project, void *arg)
{
    const struct trees *t = arg;
    for (unsigned i = 0; i < t->count; i++)
        if (t->ids[i] == project)
            return 1;
    return 0;
}

static int always(uint32_t project, void *arg)
{
    (void)project, (void)arg;
    return 1;
}

/* A large XFS has inode numbers of more than 32 bits; these differ above the bits of an id. */
static void trees_whose_inodes_look_alike_have_ids_of_their_own(void **state)
{
    (void)state;
    struct trees t = {0};
    for (uint64_t i = 0; i < TREES; i++) {
        uint32_t id = quota_project(131 + (i << 30), in_use, &t);
        assert_int_not_equal(id, 0);
        assert_false(in_use(id, &t));
        assert_true(id > 0x40000000u && id < 0x80000000u);
        t.ids[t.count++] = id;
    }
}

static void the_usual_id_is_the_inodes(void **state)
{
    (void)state;
    struct trees t = {0};
    assert_int_equal(quota_project(131, in_use, &t), 0x40000000u + 131);
}

static void an_id_that_is_used_for_trying_is_never_given(void **state)
{
    (void)state;
    struct trees t = {0};
    assert_int_equal(quota_project(0, in_use, &t), 0x40000001u);
    assert_int_equal(quota_project(UINT64_C(1) << 30, in_use, &t), 0x40000001u);
    assert_int_equal(quota_project(0x3fffffff, in_use, &t), 0x7fffffffu);
    t = (struct trees){{0x7fffffffu}, 1};
    assert_int_equal(quota_project(0x3fffffff, in_use, &t), 0x40000001u);
}

static void without_a_free_id_there_is_none(void **state)
{
    (void)state;
    assert_int_equal(quota_project(131, always, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_whose_inodes_look_alike_have_ids_of_their_own),
        cmocka_unit_test(the_usual_id_is_the_inodes),
        cmocka_unit_test(an_id_that_is_used_for_trying_is_never_given),
        cmocka_unit_test(without_a_free_id_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
