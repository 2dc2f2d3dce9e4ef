/* The order of locks: what a test build refuses, and that it lets the rest pass. */
#include "unit.h"

#include "base/checks.h"
#include "base/lock.h"

#include <signal.h>
#include <sys/wait.h>

static struct lock outer, inner, same, sending, pump, provider;
static struct rw_lock box;

static int setup(void **state)
{
    (void)state;
    lock_init(&outer, LOCK_SESSIONS);
    lock_init(&inner, LOCK_SESSION);
    lock_init(&same, LOCK_SESSION);
    lock_init(&sending, LOCK_SENDING);
    lock_init(&pump, LOCK_PUMP);
    lock_init(&provider, LOCK_PROVIDER);
    rw_init(&box, LOCK_BOX, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    lock_done(&outer);
    lock_done(&inner);
    lock_done(&same);
    lock_done(&sending);
    lock_done(&pump);
    lock_done(&provider);
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

static void sending_under_a_session(void)
{
    lock_take(&inner);
    lock_take(&sending);
}

/* The locks of the other folders, each pair in its order and the other way round. */
static const enum lock_rank pairs[][2] = {
    {LOCK_LISTENER, LOCK_SERVER}, {LOCK_RULES_FILE, LOCK_RULES}, {LOCK_KEY_LOOK, LOCK_KEYS},
    {LOCK_KEY_LOOK, LOCK_STORE},  {LOCK_SNAPSHOTS, LOCK_STORE},  {LOCK_STORE, LOCK_FLUSH},
    {LOCK_PROVIDER, LOCK_KEEPER},
};
static const enum lock_rank *pair;

static void pair_in_order(void)
{
    struct lock first = LOCK_INIT(pair[0]), second = LOCK_INIT(pair[1]);
    lock_take(&first);
    lock_take(&second);
}

static void pair_out_of_order(void)
{
    struct lock first = LOCK_INIT(pair[0]), second = LOCK_INIT(pair[1]);
    lock_take(&second);
    lock_take(&first);
}

static void pump_under_a_provider(void)
{
    lock_take(&provider);
    lock_take(&pump);
}

static void wait_for_an_answer(struct lock *with)
{
    pthread_cond_t c;
    cond_init(&c);
    rw_read(&box);
    if (with)
        lock_take(with);
    lock_take(&provider);
    (void)lock_wait_answer(&c, &provider, deadline_in(NS_PER_MS));
}

static void answer_with_the_box(void)
{
    wait_for_an_answer(NULL);
}

static void answer_with_a_session(void)
{
    wait_for_an_answer(&inner);
}

static void wait_with_the_box(void)
{
    pthread_cond_t c;
    cond_init(&c);
    rw_read(&box);
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
    pid_t pid = child_fork();
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
    assert_int_equal(aborts(answer_with_the_box), 0);

    if (!CHECKS)
        skip();
    assert_int_equal(aborts(out_of_order), 1);
    assert_int_equal(aborts(two_of_one_rank), 1);
    assert_int_equal(aborts(box_under_a_session), 1);
    assert_int_equal(aborts(sending_under_a_session), 1);
    assert_int_equal(aborts(pump_under_a_provider), 1);
    assert_int_equal(aborts(wait_with_another), 1);
    assert_int_equal(aborts(wait_with_the_box), 1);
    assert_int_equal(aborts(answer_with_a_session), 1);
    assert_int_equal(aborts(release_what_is_not_held), 1);
}

static void test_the_locks_of_other_folders_have_the_same_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        pair = pairs[i];
        assert_int_equal(aborts(pair_in_order), 0);
        if (CHECKS)
            assert_int_equal(aborts(pair_out_of_order), 1);
    }
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
        cmocka_unit_test(test_the_locks_of_other_folders_have_the_same_order),
        cmocka_unit_test(test_a_wait_ends_at_its_deadline),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
