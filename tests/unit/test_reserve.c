#include "unit.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "core/reserve.h"
#include "wire/ceilings.h"

#include <fcntl.h>
#include <sys/resource.h>

#define GIB (UINT64_C(1) << 30)
#define MIB (UINT64_C(1) << 20)

static void test_a_shortage_is_named_with_its_remedy(void **state)
{
    (void)state;
    const struct reserve_figures well = {.threads = 300,
                                         .pid_max = 32768,
                                         .memory_left = 8 * GIB,
                                         .memory = 16 * GIB,
                                         .disk_left = 50 * GIB,
                                         .disk = 100 * GIB};
    assert_null(reserve_shortage(&well));
    assert_null(reserve_shortage(&(struct reserve_figures){0}));

    struct reserve_figures f = well;
    f.threads = 32768 - 512;
    assert_null(reserve_shortage(&f));
    f.threads++;
    assert_non_null(strstr(reserve_shortage(&f), "kernel.pid_max"));

    f = well;
    f.memory_left = 256 * MIB;
    assert_null(reserve_shortage(&f));
    f.memory_left--;
    assert_non_null(strstr(reserve_shortage(&f), "memory"));

    f = well;
    f.disk_left = 64 * MIB;
    assert_null(reserve_shortage(&f));
    f.disk_left--;
    assert_non_null(strstr(reserve_shortage(&f), "disk"));

    /* Small machines hold less back. */
    f = (struct reserve_figures){
        .memory_left = 16 * MIB, .memory = 512 * MIB, .disk_left = 1 * MIB, .disk = 64 * MIB};
    assert_null(reserve_shortage(&f));
}

/* Opens descriptors until no creation is let in; gives how many are free then. */
static unsigned free_when_refused(struct reserve *r, unsigned limit)
{
    static int held[4096]; /* more than any limit here */
    unsigned count = 0, left = 0;
    struct pd_err e = {.msg = ""};

    while (reserve_enter(r, &e) == 0) {
        reserve_leave(r);
        assert_true(count < limit);
        held[count] = fcntl(r->any, F_DUPFD_CLOEXEC, 3);
        assert_true(held[count] >= 0);
        count++;
    }
    assert_int_equal(e.code, PD_CAPACITY);
    assert_non_null(strstr(e.msg, "descriptors"));
    assert_non_null(strstr(e.msg, "LimitNOFILE"));

    for (; left < limit && fd_spare(r->any, left + 1); left++)
        ;
    while (count > 0)
        fd_done(&held[--count]);
    return left;
}

static void test_descriptors_are_held_back(void **state)
{
    (void)state;
    struct rlimit before, few;
    struct reserve r;
    struct pd_err e;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){400, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    reserve_init(&r);

    unsigned plain = free_when_refused(&r, 400);
    assert_true(plain >= ceilings_files_reserve(400));

    /* A sandbox that has not run a command yet is promised a descriptor for it. */
    for (int i = 0; i < 20; i++)
        reserve_promise(&r);
    assert_int_equal(free_when_refused(&r, 400), plain + 20);
    for (int i = 0; i < 20; i++)
        reserve_keep_promise(&r);

    /* Creations in progress count before they have taken anything. */
    for (int i = 0; i < 3; i++)
        assert_int_equal(reserve_enter(&r, &e), 0);
    assert_true(free_when_refused(&r, 400) >= plain + 3 * SANDBOX_FILES);
    for (int i = 0; i < 3; i++)
        reserve_leave(&r);
    assert_int_equal(free_when_refused(&r, 400), plain);

    reserve_done(&r);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* Low numbers that were given back are room, although the high ones are taken. */
static void test_holes_are_room(void **state)
{
    (void)state;
    struct rlimit before, few;
    int held[64];
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){128, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);

    int high = fcntl(0, F_DUPFD_CLOEXEC, 127);
    assert_int_equal(high, 127);
    assert_true(fd_spare(high, 50));
    unsigned n = 0;
    for (; n < 64; n++)
        held[n] = fcntl(high, F_DUPFD_CLOEXEC, 3);
    assert_false(fd_spare(high, 64));
    while (n > 0)
        fd_done(&held[--n]);
    fd_done(&high);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static void test_the_limit_is_raised_and_bounded(void **state)
{
    (void)state;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(fd_limit_raise(100), 100);
    assert_int_equal(fd_limit(), 100);
    assert_true(fd_limit_raise(0) >= before.rlim_max);
    assert_true(ceilings_sandboxes(20000) > 4000 && ceilings_sandboxes(20000) < 5000);
    assert_int_equal(ceilings_sandboxes(64), 0);
    (void)setrlimit(RLIMIT_NOFILE, &before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_shortage_is_named_with_its_remedy),
        cmocka_unit_test(test_descriptors_are_held_back),
        cmocka_unit_test(test_holes_are_room),
        cmocka_unit_test(test_the_limit_is_raised_and_bounded),
    };
    return cmocka_run_group_tests_name("reserve", tests, NULL, NULL);
}
