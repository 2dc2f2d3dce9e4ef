/* The slice of the server's threads: a new thread has it, where the kernel knows slices, and is
 * otherwise what it was. */
#include "server/serve.h"

#include "unit.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

/* The kernel's, whose header does not go together with that of the C library. */
struct attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

static void *read_own(void *arg)
{
    struct attr *a = arg;
    a->size = sizeof *a;
    return syscall(SYS_sched_getattr, 0, a, sizeof *a, 0) == 0 ? arg : NULL;
}

static struct attr attr_of_new_thread(void)
{
    struct attr a = {0};
    pthread_t t;
    void *read = NULL;
    assert_int_equal(pthread_create(&t, NULL, read_own, &a), 0);
    assert_int_equal(pthread_join(t, &read), 0);
    assert_ptr_equal(read, &a);
    return a;
}

static void test_new_threads_have_a_short_slice_and_keep_the_rest(void **state)
{
    (void)state;
    assert_int_equal(setpriority(PRIO_PROCESS, 0, 3), 0);
    struct attr before = attr_of_new_thread();
    slice_shorten();
    struct attr after = attr_of_new_thread();

    assert_int_equal(after.policy, before.policy);
    assert_int_equal(after.nice, 3);
    assert_int_equal(after.flags, before.flags);
    if (before.runtime) /* a kernel that knows slices tells them */
        assert_true(after.runtime > 0 && after.runtime < before.runtime);
}

static void test_another_policy_stays(void **state)
{
    (void)state;
    struct attr batch = {.size = sizeof batch, .policy = SCHED_BATCH, .nice = 3};
    assert_int_equal(syscall(SYS_sched_setattr, 0, &batch, 0), 0);
    slice_shorten();
    assert_int_equal(attr_of_new_thread().policy, SCHED_BATCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new_threads_have_a_short_slice_and_keep_the_rest),
        cmocka_unit_test(test_another_policy_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
