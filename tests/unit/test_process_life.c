/* A command's life: every pair of states is either in the table or refused, and the refusal changes
 * nothing and ends a test build. Then the life as the session layer leads it, with ends that come
 * twice, too early and too late. */
#include "world.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* Written out once more, because the table in process_life.c must not be its own proof. */
static int is_legal(enum process_state from, enum process_state to)
{
    switch (from) {
    case PROCESS_STARTING:
        return to == PROCESS_RUNNING || to == PROCESS_FAILED;
    case PROCESS_RUNNING:
        return to == PROCESS_FINISHING || to == PROCESS_EXITED || to == PROCESS_FAILED;
    case PROCESS_FINISHING:
        return to == PROCESS_EXITED;
    case PROCESS_EXITED:
        return to == PROCESS_ENDED || to == PROCESS_BURIED;
    case PROCESS_ENDED:
        return to == PROCESS_SETTLED || to == PROCESS_BURIED;
    case PROCESS_SETTLED:
        return to == PROCESS_BURIED;
    default:
        return 0;
    }
}

/* Takes the step in a process of its own: 0 taken, 1 refused and nothing changed, 2 refused but
 * changed, or the signal that ended it, plus 100. */
static int try_step(struct process *p, enum process_state from, enum process_state to)
{
    pid_t pid = child_fork();
    assert_true(pid >= 0);

    if (pid == 0) {
        struct rlimit none = {0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        p->state = from;
        int taken = process_step(p, to);
        _exit(taken && p->state == to ? 0 : p->state == from ? 1 : 2);
    }

    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 100 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void test_every_pair_of_states(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, ((struct place *)*state)->dir, 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct process *p = start_one(s, NULL);
    log_set_level(LOG_LEVEL_ERROR + 1);

    unsigned legal = 0;
    for (unsigned from = 0; from < PROCESS_STATES; from++)
        for (unsigned to = 0; to < PROCESS_STATES; to++) {
            int want = is_legal((enum process_state)from, (enum process_state)to);
            assert_int_equal(process_may_step((enum process_state)from, (enum process_state)to),
                             want);
            int got = try_step(p, (enum process_state)from, (enum process_state)to);
#ifdef PADDOCK_CHECKS
            int refused = 100 + SIGABRT;
#else
            int refused = 1;
#endif
            if (got != (want ? 0 : refused))
                fail_msg("%s to %s: %d", process_state_name((enum process_state)from),
                         process_state_name((enum process_state)to), got);
            legal += (unsigned)want;
        }
    assert_int_equal(legal, 11);

    /* What is no state is no state. */
    assert_false(process_may_step(PROCESS_STATES, PROCESS_RUNNING));
    assert_false(process_may_step(PROCESS_RUNNING, PROCESS_STATES));
    assert_string_equal(process_state_name(PROCESS_STATES), "unknown");

    process_unref(p);
    session_unref(s);
    daemon_end(d);
}

static unsigned running(struct session *s)
{
    lock_take(&s->lock);
    unsigned n = s->running;
    lock_release(&s->lock);
    return n;
}

/* Nothing of it is in the pump any more, whose thread alone may tell of ends before. */
static void await_streams(struct process *p)
{
    deadline d = deadline_in(60 * NS_PER_S);
    int open = 1;
    while (open && !deadline_passed(d)) {
        lock_take(&p->lock);
        open = p->streams[STREAM_OUT].source.fd >= 0 || p->streams[STREAM_ERR].source.fd >= 0;
        lock_release(&p->lock);
        usleep(100); /* whoever takes a lock without a pause leaves the pump none */
    }
    assert_false(open);
}

/* A box may tell of an end as often as it likes: it is counted once. */
static void test_an_end_counts_once(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0}, why = {.code = PD_INVALID, .msg = "no such program"};
    struct daemon *d = daemon_begin(w, ((struct place *)*state)->dir, 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct process *p = start_one(s, NULL), *q = start_one(s, NULL), *last = start_one(s, NULL);
    struct msg_exited end = {.pid = 5, .exited = 1, .status = 0};
    assert_int_equal(running(s), 3);
    assert_int_equal(process_state(p), PROCESS_RUNNING);
    await_streams(p);
    await_streams(q);
    await_streams(last);

    for (int i = 0; i < 3; i++)
        process_on_exit(p, &end);
    process_on_refused(p, &why);
    assert_int_equal(process_state(p), PROCESS_ENDED);
    assert_int_equal(running(s), 2);
    struct process_info info;
    process_get(p, &info, NULL);
    assert_int_equal(info.exit_code, 0);
    assert_int_equal(info.refused, 0);

    for (int i = 0; i < 3; i++)
        process_on_refused(q, &why);
    process_on_exit(q, &end);
    assert_int_equal(running(s), 1);
    process_get(q, &info, NULL);
    assert_int_equal(info.refused, 1);
    assert_int_equal(info.running, 0);

    /* Settled once, and not before it has ended. */
    process_settle(last);
    assert_int_equal(process_state(last), PROCESS_RUNNING);
    process_settle(p);
    process_settle(p);
    assert_int_equal(process_state(p), PROCESS_SETTLED);

    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    assert_int_equal(process_state(p), PROCESS_BURIED);
    assert_int_equal(process_state(q), PROCESS_BURIED);
    assert_int_equal(process_state(last), PROCESS_BURIED);
    process_on_exit(last, &end);
    process_settle(last);
    assert_int_equal(process_state(last), PROCESS_BURIED);
    assert_int_equal(running(s), 0);
    process_get(last, &info, NULL);
    assert_int_equal(info.stopped_by, STOP_SANDBOX);
    process_get(p, &info, NULL);
    assert_int_equal(info.stopped_by, STOP_NONE);
    process_unref(p);
    process_unref(q);
    process_unref(last);
    session_unref(s);
    daemon_end(d);
}

/* Its own end on the pump's thread, its sandbox's on this one, and the recorder, all at once. */
static void test_ends_race(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, ((struct place *)*state)->dir, 1, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    assert_int_equal(msg_list_add(&argv, "/bin/sleep"), 0);
    struct process_request request = {.argv = msg_list_of(&argv), .env = {.text = ""}};
    unsigned own = 0;
    for (int i = 0; i < 3000; i++) {
        struct pd_err e = {0};
        struct process *p = NULL;
        bool known;
        if (session_start(s, &request, &p, &known, &e) < 0)
            fail_msg("start: %s", e.msg);
        world_ended(box_of(s->box), p->id,
                    (struct msg_exited){.pid = 5, .exited = 1, .status = 256});
        for (int n = 0; n < i % 64; n++)
            sched_yield();
        process_bury(p);
        assert_int_equal(process_state(p), PROCESS_BURIED);
        assert_int_equal(running(s), 0);
        own += p->end.status == 256;

        lock_take(&s->lock);
        session_remove_process(s, p);
        group_release(s, p->group, p->serial);
        lock_release(&s->lock);
        process_unref(p);
    }
    print_message("# %u of 3000 ended before they were buried\n", own);
    msg_list_writer_done(&argv);
    session_unref(s);
    daemon_end(d);
}

/* ---- readers of one that is buried ---- */

#define HELD_AT 1000u

/* A command with a pipe that is full for its reader: the stream is out of the pump. */
static struct process *held_back(struct session *s, int *ret_far)
{
    struct pd_err e = {0};
    int ends[2];
    char bytes[3 * HELD_AT] = {0};
    struct process *p = process_new(s);
    assert_non_null(p);
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    p->id = wire_id_new();
    p->back_pressure = 1;
    p->spool_max = HELD_AT;
    p->streams[STREAM_OUT].spool = process_spool(p, STREAM_OUT);
    p->streams[STREAM_OUT].source.fd = ends[0];
    lock_take(&s->lock);
    s->running++;
    session_add_process(s, p);
    lock_release(&s->lock);
    process_begin(p);
    assert_int_equal(write(ends[1], bytes, sizeof bytes), sizeof bytes);
    assert_int_equal(process_begin_streams(p, &e), 0);

    deadline d = deadline_in(60 * NS_PER_S);
    int stopped = 0;
    while (!stopped && !deadline_passed(d)) {
        lock_take(&p->lock);
        stopped = p->streams[STREAM_OUT].stopped;
        lock_release(&p->lock);
    }
    assert_true(stopped);
    *ret_far = ends[1];
    return p;
}

static void let_go(struct session *s, struct process *p)
{
    process_close_streams(p);
    process_discard_output(p);
    lock_take(&s->lock);
    session_remove_process(s, p);
    lock_release(&s->lock);
    process_unref(p);
}

/* The pump would run its callback, which waits for the lock of who buries, who waits for it. */
static void test_a_reader_brings_no_buried_stream_back(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, ((struct place *)*state)->dir, 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    int far;

    struct process *p = held_back(s, &far);
    process_consumed(p, STREAM_OUT, 3 * HELD_AT);
    assert_true(p->streams[STREAM_OUT].source.added); /* as long as it lives it is brought back */
    close(far);
    process_bury(p);
    let_go(s, p);

    p = held_back(s, &far);
    process_bury(p);
    assert_true(p->streams[STREAM_OUT].source.fd >= 0);
    process_consumed(p, STREAM_OUT, 3 * HELD_AT);
    assert_int_equal(p->streams[STREAM_OUT].source.added, 0);
    close(far);
    let_go(s, p);
    session_unref(s);
    daemon_end(d);
}

struct reader {
    struct process *p;
    pthread_barrier_t *start;
    int delay;
};

static void *read_all(void *arg)
{
    struct reader *r = arg;
    pthread_barrier_wait(r->start);
    for (volatile int n = 0; n < r->delay; n++)
        ;
    process_consumed(r->p, STREAM_OUT, 3 * HELD_AT);
    return NULL;
}

static void test_readers_race_with_the_burial(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, ((struct place *)*state)->dir, 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, 2);

    for (int i = 0; i < 3000; i++) {
        int far;
        struct reader reader = {.p = held_back(s, &far), .start = &start, .delay = i % 300 * 20};
        pthread_t thread;
        close(far);
        assert_int_equal(pthread_create(&thread, NULL, read_all, &reader), 0);
        pthread_barrier_wait(&start);
        process_bury(reader.p);
        pthread_join(thread, NULL);
        assert_int_equal(process_state(reader.p), PROCESS_BURIED);
        let_go(s, reader.p);
    }

    pthread_barrier_destroy(&start);
    session_unref(s);
    daemon_end(d);
}

/* ---- one that did not start ---- */

/* A retry by the same key has found it, and waits. */
static void test_who_waits_hears_that_it_never_ran(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0}, why = {.code = PD_CAPACITY, .msg = "no descriptor is left"}, told = {0};
    struct daemon *d = daemon_begin(w, ((struct place *)*state)->dir, 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct process *p = process_new(s);
    struct process_info info;
    struct watch watch;
    assert_non_null(p);
    assert_int_equal(process_watch(p, &watch, &e), 0);
    assert_true(process_fail(p, &why));

    assert_int_equal(watch_wait(&watch, deadline_in(NS_PER_S)), 1); /* it was woken */
    assert_int_equal(process_wait(p, &watch, -1, deadline_in(NS_PER_S), &e), 0);
    process_get(p, &info, &told);
    assert_int_equal(info.running, 0);
    assert_int_equal(info.refused, 1);
    assert_int_equal(info.exit_code, -1);
    assert_int_equal(told.code, PD_CAPACITY);
    process_unwatch(p, &watch);
    process_unref(p);
    session_unref(s);
    daemon_end(d);
}

struct telling {
    struct process *p;
    int pid;
};

/* Later than an answer waits for a pid that it does not name. */
static void *tell_late(void *arg)
{
    const struct telling *t = arg;
    usleep(5500000);
    lock_take(&t->p->lock);
    t->p->pid = t->pid;
    process_wake(t->p);
    lock_release(&t->p->lock);
    return NULL;
}

/* Where the way to the sandbox is slow. A client that is gone is not waited for. */
static void test_an_answer_waits_for_the_pid(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, ((struct place *)*state)->dir, 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct process *p = process_new(s);
    struct telling telling = {.p = p, .pid = 77};
    struct process_info info;
    pthread_t thread;
    int pair[2];
    assert_non_null(p);

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    close(pair[1]);
    assert_int_equal(process_await_start(p, pair[0], &e), -1);
    assert_int_equal(e.code, PD_TIMEOUT);
    close(pair[0]);

    assert_int_equal(pthread_create(&thread, NULL, tell_late, &telling), 0);
    assert_int_equal(process_await_start(p, -1, &e), 0);
    process_get(p, &info, NULL);
    assert_int_equal(info.pid, 77);
    pthread_join(thread, NULL);

    struct pd_err why = {.code = PD_CAPACITY, .msg = "no descriptor is left"};
    p->pid = 0;
    assert_true(process_fail(p, &why));
    assert_int_equal(process_await_start(p, -1, &e), -1);
    assert_int_equal(e.code, PD_CAPACITY);
    process_unref(p);
    session_unref(s);
    daemon_end(d);
}

/* Counters of the box before a sleep are no reason for the end of a command after it. */
static void test_counters_that_fall_explain_nothing(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, ((struct place *)*state)->dir, 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct process *p = start_one(s, NULL);

    lock_take(&s->lock);
    s->oom_seen = s->pids_seen = 5;
    lock_release(&s->lock);
    process_explain(p);
    assert_int_equal(p->stop, STOP_NONE);

    process_unref(p);
    session_unref(s);
    daemon_end(d);
}

/* A daemon may die when the end is stored and init was not told: the next one tells it, or init
 * would keep the record, and tell of it at every sync. */
static void test_a_stored_end_is_forgotten_by_the_box(void **state)
{
    struct world *w = world_new();
    const char *dir = ((struct place *)*state)->dir;
    struct msg_exited end = {.pid = 5, .exited = 1, .status = 0};
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir, 1, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct process *p = start_one(s, NULL);
    struct wire_id id = p->id;
    char name[SESSION_ID_LEN + 1];
    snprintf(name, sizeof name, "%s", s->info.id);
    world_ended(box_of(s->box), id, end);
    deadline limit = deadline_in(60 * NS_PER_S);
    while (process_state(p) != PROCESS_SETTLED && !deadline_passed(limit))
        usleep(1000);
    assert_int_equal(process_state(p), PROCESS_SETTLED);
    assert_int_equal(__atomic_load_n(&w->forgets, __ATOMIC_SEQ_CST), 1); /* which is lost */
    process_unref(p);
    session_unref(s);
    daemon_end(d);

    d = daemon_begin(w, dir, 0, NULL);
    assert_non_null(s = sessions_find(d->all, "acme", name, &e));
    session_box_events.exited(s, id, &end);
    assert_int_equal(__atomic_load_n(&w->forgets, __ATOMIC_SEQ_CST), 2);
    assert_non_null(p = session_process_by_id(s, id));
    assert_int_equal(process_state(p), PROCESS_SETTLED);
    process_unref(p);
    session_unref(s);
    daemon_end(d);
}

/* ---- what a shell leaves ---- */

static struct session *written;
static int seen_dirty;

static int put_and_look(struct store *store, const struct session_row *row, struct pd_err *e)
{
    lock_take(&written->lock);
    seen_dirty = written->dirty != 0;
    lock_release(&written->lock);
    return w_put_session(store, row, e);
}

/* An end is told once the state is stored: a row that is on its way is not. */
static void test_a_row_on_its_way_is_not_stored(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, ((struct place *)*state)->dir, 0, NULL);
    struct session_request r = {0};
    struct session *s = written = make_one(d, &r);
    d->store.put_session = put_and_look;

    s->dirty = 1;
    assert_int_equal(session_store(s, &e), 0);
    assert_int_equal(seen_dirty, 1);
    assert_int_equal(s->dirty, 0);
    assert_int_equal(session_store(s, &e), 0);
    assert_int_equal(seen_dirty, 0);

    w->fail_store = 1;
    assert_int_equal(session_store(s, &e), -1);
    assert_int_equal(s->dirty, 1);
    w->fail_store = 0;
    session_unref(s);
    daemon_end(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_every_pair_of_states),
        IN_WORLD(test_an_end_counts_once),
        IN_WORLD(test_ends_race),
        IN_WORLD(test_a_reader_brings_no_buried_stream_back),
        IN_WORLD(test_readers_race_with_the_burial),
        IN_WORLD(test_who_waits_hears_that_it_never_ran),
        IN_WORLD(test_an_answer_waits_for_the_pid),
        IN_WORLD(test_counters_that_fall_explain_nothing),
        IN_WORLD(test_a_stored_end_is_forgotten_by_the_box),
        IN_WORLD(test_a_row_on_its_way_is_not_stored),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
