/* The provider's locks in the order of all locks (base/lock.h): its real calls, made with locks
 * that they must not be made with, are refused by a test build. The same calls without those locks,
 * and with the box held, are answered. */
#include "stage.h"

#include "base/checks.h"
#include "core/box.h"

#include <sys/wait.h>

static int setup(void **state)
{
    return stage_begin(state, NULL);
}

static struct stage *stage;
static struct session *session;

static int ask_usage(void)
{
    struct pd_err e = {0};
    struct box_usage usage;
    return box_get_usage(session->box, &usage, &e);
}

static int ask_health(void)
{
    struct pd_err e = {0};
    return stage->provider->health(stage->provider, &e);
}

static int tell_stash(void)
{
    struct pd_err e = {0};
    return stage->provider->stash(stage->provider, "key", NULL, 0, &e);
}

/* Looks under the lock of the groups whether the jail is listened to. */
static int ask_sync(void)
{
    struct pd_err e = {0};
    return box_sync(session->box, 0, &e);
}

/* What a thread that has this lock may not ask for. In a child, which has this thread alone: the
 * lock is refused before anybody is waited for. */
static bool refused_with(struct lock *held, int (*call)(void))
{
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        lock_take(held);
        (void)call();
        _exit(0);
    }

    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void test_a_call_in_the_wrong_order_is_refused(void **state)
{
    stage = *state;
    if (!CHECKS)
        skip();
    session = session_make(stage, "t", 0);
    struct keeper_provider *p = stage->provider->state;
    struct keeper_box *b = (struct keeper_box *)session->box;

    /* Nobody sends to a keeper with a lock that the pump's callbacks take. */
    assert_true(refused_with(&session->lock, ask_usage));
    assert_true(refused_with(&session->lock, tell_stash));
    assert_true(refused_with(&stage->all->recorders[0].lock, tell_stash));
    assert_true(refused_with(&b->lock, tell_stash));

    /* Each lock of the provider's is on the page: none is taken twice. */
    assert_true(refused_with(&p->sending, tell_stash));
    assert_true(refused_with(&p->lock, ask_health));
    assert_true(refused_with(&b->lock, ask_sync));
    session_unref(session);
}

static void test_a_call_in_the_right_order_is_answered(void **state)
{
    stage = *state;
    session = session_make(stage, "t", 0);
    assert_int_equal(ask_usage(), 0);

    rw_read(&session->box_use);
    assert_int_equal(ask_usage(), 0);
    assert_int_equal(tell_stash(), 0);
    rw_release(&session->box_use);

    /* What waits for nobody may be asked with a session's lock held. */
    lock_take(&session->lock);
    assert_int_equal(ask_health(), 0);
    lock_release(&session->lock);
    session_unref(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_call_in_the_wrong_order_is_refused, setup,
                                        stage_teardown),
        cmocka_unit_test_setup_teardown(test_a_call_in_the_right_order_is_answered, setup,
                                        stage_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
