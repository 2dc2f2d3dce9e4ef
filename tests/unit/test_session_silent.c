/* A provider that does not answer: what the daemon does by itself for sessions elsewhere, it does
 * all the same. Why a command failed, samples, the ends that are due, what a move has left. */
#include "moves.h"

static atomic_int usages_held;
static atomic_bool holds_usage;

/* A keeper that does not answer. */
static int hold_usage(struct box *b, struct box_usage *ret, struct pd_err *e)
{
    deadline limit = deadline_in(60 * NS_PER_S);
    (void)b, (void)ret;
    atomic_fetch_add(&usages_held, 1);
    while (atomic_load(&holds_usage) && !deadline_passed(limit))
        usleep(1000);
    return pd_fail(e, PD_TIMEOUT, "no answer");
}

static void await_state(struct process *p, enum process_state state)
{
    deadline limit = deadline_in(30 * NS_PER_S);
    while (process_state(p) < state && !deadline_passed(limit))
        usleep(1000);
    assert_true(process_state(p) >= state);
}

/* The thread that asks why a command has failed waits for its own provider alone. */
static void test_a_provider_that_is_silent_holds_up_no_other(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *silent = make_in(d, "local", MODE_NONE), *other = make_in(d, "jail", MODE_NONE);
    struct process *p = start_one(silent, NULL), *q = start_one(other, NULL);
    struct msg_exited end = {.pid = 5, .exited = 1, .status = 1 << 8};
    deadline limit = deadline_in(30 * NS_PER_S);

    weak.usage = hold_usage;
    atomic_store(&holds_usage, true);
    world_ended(box_of(silent->box), p->id, end);
    while (!atomic_load(&usages_held) && !deadline_passed(limit))
        usleep(1000);
    assert_int_equal(atomic_load(&usages_held), 1);

    world_ended(box_of(other->box), q->id, end);
    await_state(q, PROCESS_SETTLED);
    assert_int_equal(process_state(p), PROCESS_EXITED); /* the control: it is still held */
    atomic_store(&holds_usage, false);
    await_state(p, PROCESS_SETTLED);

    process_unref(p);
    process_unref(q);
    struct pd_err e;
    assert_int_equal(session_end(silent, END_KILLED, "test", &e), 0);
    session_unref(silent);
    must_end(d, other);
    daemon_end(d);
}

static void await_sample(struct session *s)
{
    deadline limit = deadline_in(30 * NS_PER_S);
    unsigned count = 0;

    lock_take(&s->lock);
    s->samples.due_ns = 1; /* its turn */
    lock_release(&s->lock);
    while (!count && !deadline_passed(limit)) {
        usleep(1000);
        lock_take(&s->lock);
        count = s->samples.count;
        lock_release(&s->lock);
    }
    assert_true(count);
}

static enum session_state state_of(struct session *s)
{
    lock_take(&s->lock);
    enum session_state state = s->info.state;
    lock_release(&s->lock);
    return state;
}

/* Its life is over, which is for its controller to see. */
static void expire(struct session *s)
{
    lock_take(&s->lock);
    s->info.max_life_ms = 0;
    lock_release(&s->lock);
}

static void await_gone(struct session *s)
{
    deadline limit = deadline_in(30 * NS_PER_S);
    while (state_of(s) != SESSION_GONE && !deadline_passed(limit))
        usleep(1000);
    assert_int_equal(state_of(s), SESSION_GONE);
}

/* Its controller waits for it; those of others do not. */
static void test_a_silent_provider_delays_no_end_and_no_sample_elsewhere(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *silent = make_in(d, "local", MODE_NONE);
    deadline limit = deadline_in(30 * NS_PER_S);

    weak.usage = hold_usage;
    atomic_store(&usages_held, 0);
    atomic_store(&holds_usage, true);
    lock_take(&silent->lock);
    silent->samples.due_ns = 1;
    lock_release(&silent->lock);
    while (!atomic_load(&usages_held) && !deadline_passed(limit))
        usleep(1000);
    assert_int_equal(atomic_load(&usages_held), 1);
    expire(silent);

    for (unsigned n = 0; n < (getenv("PADDOCK_NIGHTLY") ? 200 : 3); n++) {
        struct session *other = make_in(d, "jail", MODE_NONE);
        await_sample(other);
        expire(other);
        await_gone(other);
        session_unref(other);
    }

    assert_int_equal(state_of(silent), SESSION_RUNNING); /* the control: its controller is held */
    atomic_store(&holds_usage, false);
    await_gone(silent);
    session_unref(silent);
    daemon_end(d);
}

static atomic_bool holds_remove;
static atomic_int removes_held;
static int (*remove_really)(struct provider *p, const char *name, struct pd_err *e);

static int hold_remove(struct provider *p, const char *name, struct pd_err *e)
{
    deadline limit = deadline_in(60 * NS_PER_S);
    bool held = atomic_load(&holds_remove);
    atomic_fetch_add(&removes_held, held);
    while (atomic_load(&holds_remove) && !deadline_passed(limit))
        usleep(1000);
    return held ? pd_fail(e, PD_TIMEOUT, "no answer") : remove_really(p, name, e);
}

/* Nor does what a session left there when it moved on; which is deleted in the end. */
static void test_what_was_left_at_a_silent_provider_delays_nothing(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE), *other = make_in(d, "jail", MODE_NONE);
    deadline limit = deadline_in(60 * NS_PER_S);
    struct pd_err e = {.msg = ""};

    d->world->fail_remove = 1;
    assert_int_equal(move_to(s, &strong, 0, "test", &e), 0);
    remove_really = weak.remove_root;
    weak.remove_root = hold_remove;
    atomic_store(&removes_held, 0);
    atomic_store(&holds_remove, true);
    d->world->fail_remove = 0;
    while (!atomic_load(&removes_held) && !deadline_passed(limit))
        usleep(1000);
    assert_int_equal(atomic_load(&removes_held), 1);

    await_sample(s);
    assert_int_equal(session_pause(s, &e), 0); /* nor is it being changed */
    assert_int_equal(session_resume(s, &e), 0);
    expire(s);
    await_gone(s);
    expire(other);
    await_gone(other);
    assert_true(has_left(s)); /* the control */

    atomic_store(&holds_remove, false);
    while (has_left(s) && !deadline_passed(limit))
        usleep(1000);
    assert_false(has_left(s));
    assert_int_equal(root_count(d->world), 0);
    session_unref(s);
    session_unref(other);
    daemon_end(d);
}

static void *end_it(void *arg)
{
    struct pd_err e = {.msg = ""};
    assert_int_equal(session_end(arg, END_KILLED, "test", &e), 0);
    return NULL;
}

/* Nor does whoever waits for the end: what was left is deleted when it has ended, not before. */
static void test_an_end_that_is_waited_for_waits_for_its_own_provider(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    deadline limit = deadline_in(60 * NS_PER_S);
    pthread_t thread;
    struct pd_err e = {.msg = ""};

    d->world->fail_remove = 1;
    assert_int_equal(move_to(s, &strong, 0, "test", &e), 0);
    remove_really = weak.remove_root;
    weak.remove_root = hold_remove;
    atomic_store(&removes_held, 0);
    atomic_store(&holds_remove, true);
    d->world->fail_remove = 0;
    assert_int_equal(pthread_create(&thread, NULL, end_it, s), 0);
    await_gone(s);
    assert_true(has_left(s)); /* the control */

    atomic_store(&holds_remove, false);
    pthread_join(thread, NULL);
    while (has_left(s) && !deadline_passed(limit))
        usleep(1000);
    assert_false(has_left(s));
    assert_int_equal(root_count(d->world), 0);
    session_unref(s);
    daemon_end(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_a_provider_that_is_silent_holds_up_no_other),
        IN_WORLD(test_a_silent_provider_delays_no_end_and_no_sample_elsewhere),
        IN_WORLD(test_what_was_left_at_a_silent_provider_delays_nothing),
        IN_WORLD(test_an_end_that_is_waited_for_waits_for_its_own_provider),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
