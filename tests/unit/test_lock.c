/* The order of locks: what a test build refuses, and that it lets the rest pass. */
#include "unit.h"

#include "base/checks.h"
#include "core/lock.h"

#include <signal.h>
#include <sys/wait.h>

static struct lock outer, inner, same;
static struct rw_lock box;

static int setup(void **state)
{
    (void)state;
    lock_init(&outer, LOCK_SESSIONS);
    lock_init(&inner, LOCK_SESSION);
    lock_init(&same, LOCK_SESSION);
    rw_init(&box, LOCK_BOX);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    lock_done(&outer);
    lock_done(&inner);
    lock_done(&same);
    rw_done(&box);
    return 0;
}

static void in_order(void)
{
    lock_take(&outer);
    rw_read(&box);
    lock_take(&inner);
    /* Given back in any order. */
    lock_release(&outer);
    rw_release(&box);
    lock_release(&inner);
    /* What is only tried may be out of order: nobody waits. */
    lock_take(&inner);
    assert_int_equal(rw_try_read(&box), 1);
    rw_release(&box);
    lock_release(&inner);
    rw_write(&box);
    rw_release(&box);
}

static void out_of_order(void)
{
    lock_take(&inner);
    lock_take(&outer);
}

static void two_of_one_rank(void)
{
    lock_take(&inner);
    lock_take(&same);
}

static void box_under_a_session(void)
{
    lock_take(&inner);
    rw_read(&box);
}

static void wait_with_another(void)
{
    pthread_cond_t c;
    cond_init(&c);
    lock_take(&outer);
    lock_take(&inner);
    (void)lock_wait(&c, &inner, deadline_in(NS_PER_MS));
}

static void release_what_is_not_held(void)
{
    lock_release(&inner);
}

/* Did it abort? */
static int aborts(void (*act)(void))
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        act();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void test_a_wrong_order_aborts_and_a_right_one_does_not(void **state)
{
    (void)state;
    assert_int_equal(aborts(in_order), 0);
    if (!CHECKS)
        skip();
    assert_int_equal(aborts(out_of_order), 1);
    assert_int_equal(aborts(two_of_one_rank), 1);
    assert_int_equal(aborts(box_under_a_session), 1);
    assert_int_equal(aborts(wait_with_another), 1);
    assert_int_equal(aborts(release_what_is_not_held), 1);
}

static void test_a_wait_ends_at_its_deadline(void **state)
{
    (void)state;
    pthread_cond_t c;
    cond_init(&c);
    lock_take(&outer);
    uint64_t began = clock_now();
    while (lock_wait(&c, &outer, began + 20 * NS_PER_MS))
        ;
    assert_true(clock_now() - began >= 20 * NS_PER_MS);
    lock_release(&outer);
    pthread_cond_destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wrong_order_aborts_and_a_right_one_does_not),
        cmocka_unit_test(test_a_wait_ends_at_its_deadline),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
