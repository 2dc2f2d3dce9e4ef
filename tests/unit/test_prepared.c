/* Prepared shells against everything that can happen to them. The boxes here run shells that are
 * threads: they take their line from the pipe, count that they ran it, and write byte and state; or
 * they do not, in all the ways in which a shell can fail. A line runs once, or, where its sandbox
 * is taken away under it, not more than once.
 *
 * PADDOCK_NIGHTLY=1 plays more rounds. */
#include "world.h"

#include "base/checks.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#define LINES    100000u
#define PATIENCE (60 * NS_PER_S)

/* How a shell that waited treats its line. */
enum fate { RUNS, DIES_AT_ONCE, DIES_WITH_THE_LINE, LEAVES, STOPS, STOPS_WITH_THE_LINE, FATES };

static struct {
    atomic_uchar ran[LINES];
    atomic_uint prepared;     /* lines that ran in a shell that had waited */
    atomic_uint shells;       /* that are there */
    atomic_uint fates[FATES]; /* how many had it */
    atomic_uint turn;
    atomic_int cruel;    /* shells have other fates than RUNS */
    atomic_int all_stop; /* every shell that waited stops with its line, for ever */
    atomic_int no_hold;  /* nothing can be frozen */
    atomic_uint full;    /* of three commands that cannot wait, the box has no room for two */
    atomic_uint deaf;    /* of three commands that it is to forget, it hears of two */
    atomic_uint known;   /* commands that had an id that was not forgotten */
    atomic_int pid;
} the;

struct shell {
    struct daemon *d;
    struct world_box *box;
    struct wire_id box_id, id;
    int in, state;
    bool waits;
    char line[64];
    atomic_int killed;
    struct shell *next;
};

/* Whoever has it holds every shell: none begins its line. */
static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shell *table;

/* Ends that the box was not told to forget. A command with such an id does not run: it has. */
static struct record {
    struct wire_id id;
    struct msg_exited end;
    struct record *next;
} * records;

/* With table_lock held. */
static struct record **record_of(struct wire_id id)
{
    struct record **at = &records;
    while (*at && !wire_id_equal((*at)->id, id))
        at = &(*at)->next;
    return at;
}

static void record_add(struct wire_id id, struct msg_exited end)
{
    struct record *r = calloc(1, sizeof *r);
    assert_non_null(r);
    *r = (struct record){id, end, NULL};

    pthread_mutex_lock(&table_lock);
    r->next = records;
    records = r;
    pthread_mutex_unlock(&table_lock);
}

static void note_run(const char *line)
{
    unsigned n = (unsigned)strtoul(line + strcspn(line, "0123456789"), NULL, 10);
    assert_true(n < LINES);
    atomic_fetch_add(&the.ran[n], 1);
}

/* Tells of the end, unless the box is gone. */
static void tell(const struct shell *h, struct msg_exited end)
{
    struct daemon *d = h->d;
    uint64_t one = 1;
    pthread_mutex_lock(&d->lock);
    if (h->box->used && wire_id_equal(h->box->id, h->box_id) && d->end_count < COUNT(d->ends)) {
        d->ends[d->end_count].box = h->box;
        d->ends[d->end_count].command = h->id;
        d->ends[d->end_count++].end = end;
    }
    pthread_mutex_unlock(&d->lock);
    (void)!write(d->news.fd, &one, sizeof one);
}

/* Until somebody kills it; `ns` 0: for ever. */
static void stand_still(struct shell *h, uint64_t ns)
{
    deadline d = ns ? deadline_in(ns) : DEADLINE_NONE;
    while (!atomic_load(&h->killed) && !deadline_passed(d))
        usleep(500);
}

/* Reads the pipe to its end, as bash does. Returns the bytes, or -1 when it was killed. */
static ssize_t read_text(struct shell *h, char *text, size_t size)
{
    size_t len = 0;
    for (;;) {
        struct pollfd p = {.fd = h->in, .events = POLLIN};
        if (atomic_load(&h->killed))
            return -1;
        if (poll(&p, 1, 2) == 0)
            continue;
        ssize_t n = read(h->in, text + len, size - 1 - len);
        if (n <= 0)
            break;
        len += (size_t)n;
    }

    text[len] = 0;
    return (ssize_t)len;
}

static void leave_state(const struct shell *h)
{
    static const char state[] = "/workspace\0";
    (void)!write(h->state, state, sizeof state);
}

/* Runs the line, unless it is killed before; with the byte, as a shell does that has waited. One
 * that is killed after that was killed in the midst of its line. */
static int begin_line(struct shell *h, const char *text, uint64_t takes)
{
    pthread_mutex_lock(&running);
    bool begins = !atomic_load(&h->killed);
    if (begins) {
        note_run(text);
        (void)!write(h->state, "\n", 1);
    }
    pthread_mutex_unlock(&running);
    if (!begins)
        return SIGKILL;

    if (takes)
        stand_still(h, takes);
    if (atomic_load(&h->killed))
        return SIGKILL;
    atomic_fetch_add(&the.prepared, 1);
    leave_state(h);
    return 0;
}

/* A shell that waited. Its status. */
static int wait_for_line(struct shell *h)
{
    char text[256];
    unsigned turn = atomic_fetch_add(&the.turn, 1);
    enum fate fate = atomic_load(&the.cruel) ? turn * 7919 / 13 % FATES : RUNS;
    if ((fate == STOPS || fate == STOPS_WITH_THE_LINE) && turn % 5)
        fate = RUNS; /* each takes a tenth of a second */
    if (atomic_load(&the.all_stop))
        fate = STOPS_WITH_THE_LINE;
    atomic_fetch_add(&the.fates[fate], 1);

    if (fate == DIES_AT_ONCE) {
        usleep(turn * 31 % 3000);
        return SIGKILL;
    }
    if (fate == STOPS)
        stand_still(h, turn % 2 ? 0 : 99 * NS_PER_MS); /* some go on just when they are given up */
    ssize_t len = read_text(h, text, sizeof text);
    if (len < 0)
        return SIGKILL;
    if (fate == DIES_WITH_THE_LINE)
        return SIGKILL;
    if (len < 10 || strncmp(text, "set -- '", 8) != 0 || text[len - 1] != '\'' || fate == LEAVES)
        return 1 << 8;

    if (fate == STOPS_WITH_THE_LINE)
        stand_still(h, turn % 2 || atomic_load(&the.all_stop)
                           ? 0
                           : 98 * NS_PER_MS + turn * 7919 % 4000 * 1000);
    return begin_line(h, text, fate == STOPS_WITH_THE_LINE ? 3 * NS_PER_MS : 0);
}

static void *shell_main(void *arg)
{
    struct shell *h = arg;
    int status = 0;
    if (h->waits) {
        status = wait_for_line(h);
    } else {
        note_run(h->line);
        leave_state(h);
    }
    fd_done(&h->in);
    fd_done(&h->state);

    struct msg_exited end = {.pid = atomic_fetch_add(&the.pid, 1) + 5, .status = status};
    record_add(h->id, end);
    tell(h, end);
    if (atomic_load(&the.cruel) && status) {
        /* As the answer to a sync does that was on its way when the box was told to forget it. */
        usleep((unsigned)end.pid * 131 % 8000);
        tell(h, end);
    }

    pthread_mutex_lock(&table_lock);
    for (struct shell **at = &table; *at; at = &(*at)->next)
        if (*at == h) {
            *at = h->next;
            break;
        }
    pthread_mutex_unlock(&table_lock);
    free(h);
    atomic_fetch_sub(&the.shells, 1);
    return NULL;
}

static int shell_exec(struct box *box, const struct box_command *c, struct pd_err *e)
{
    uint32_t pos = 0;
    (void)msg_list_next(&c->exec.argv, &pos), (void)msg_list_next(&c->exec.argv, &pos);
    const char *script = msg_list_next(&c->exec.argv, &pos);
    struct shell *h = calloc(1, sizeof *h);
    pthread_t thread;
    if (!h || !script)
        return pd_fail(e, PD_CAPACITY, "no shell");
    if (c->at_once && atomic_load(&the.cruel) && atomic_fetch_add(&the.full, 1) % 3) {
        free(h);
        errno = EAGAIN;
        return pd_fail_sys(e, "send");
    }

    pthread_mutex_lock(&table_lock);
    bool known = *record_of(c->id);
    pthread_mutex_unlock(&table_lock);
    if (known) {
        atomic_fetch_add(&the.known, 1);
        free(h);
        return 0;
    }

    h->d = the_daemon;
    h->box = (struct world_box *)box;
    h->box_id = h->box->id;
    h->id = c->id;
    h->waits = strstr(script, "/proc/self/fd/0") != NULL;
    const char *line = strchr(script, '\n');
    snprintf(h->line, sizeof h->line, "%s", line ? line + 1 : "");
    h->in = fcntl(c->fds[0], F_DUPFD_CLOEXEC, 3);
    h->state = fcntl(c->fds[3], F_DUPFD_CLOEXEC, 3);

    pthread_mutex_lock(&table_lock);
    h->next = table;
    table = h;
    pthread_mutex_unlock(&table_lock);
    atomic_fetch_add(&the.shells, 1);
    assert_int_equal(pthread_create(&thread, NULL, shell_main, h), 0);
    return pthread_detach(thread);
}

static int shell_kill(struct box *box, struct wire_id id, unsigned group, struct pd_err *e)
{
    (void)box, (void)group, (void)e;
    usleep(2000); /* and hits what has begun meanwhile */
    pthread_mutex_lock(&table_lock);
    for (struct shell *h = table; h; h = h->next)
        if (wire_id_equal(h->id, id))
            atomic_store(&h->killed, 1);
    pthread_mutex_unlock(&table_lock);
    return 0;
}

static int shell_forget(struct box *box, struct wire_id id)
{
    (void)box;
    if (atomic_load(&the.cruel) && atomic_fetch_add(&the.deaf, 1) % 3 == 0)
        return -1;

    pthread_mutex_lock(&table_lock);
    struct record **at = record_of(id), *gone = *at;
    if (gone)
        *at = gone->next;
    pthread_mutex_unlock(&table_lock);
    free(gone);
    return 0;
}

static int shell_hold(struct box *box, unsigned group, bool held, struct pd_err *e)
{
    (void)box, (void)group;
    if (atomic_load(&the.no_hold))
        return pd_fail(e, PD_UNSUPPORTED, "nothing can be frozen here");
    (void)(held ? pthread_mutex_lock(&running) : pthread_mutex_unlock(&running));
    return 0;
}

/* ---- a daemon whose boxes are such ---- */

static void with_shells(struct sessions_config *c)
{
    c->prepare_shells = true;
}

static struct daemon *begin(void **state)
{
    memset(&the, 0, sizeof the);
    struct daemon *d = daemon_begin(world_new(), ((struct place *)*state)->dir, 0, with_shells);
    struct pd_err e;
    d->provider.exec = shell_exec;
    d->provider.kill = shell_kill;
    d->provider.hold = shell_hold;
    d->provider.forget = shell_forget;
    assert_int_equal(sessions_start(d->all, &e), 0);
    return d;
}

static void await_no_shell(void)
{
    deadline d = deadline_in(PATIENCE);
    while (atomic_load(&the.shells) && !deadline_passed(d))
        usleep(1000);
    assert_int_equal(atomic_load(&the.shells), 0);
}

static void end(struct daemon *d, struct session *s)
{
    struct pd_err e;
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    assert_int_equal(s->prepared.stage, PREPARED_NONE);
    session_unref(s);
    await_no_shell();
    daemon_end(d);

    for (struct record *r; (r = records); free(r))
        records = r->next;
}

/* Runs a line that has this number: its exit status, or -1 when it was not started. */
static int run(struct session *s, unsigned n, struct pd_err *e)
{
    char line[32];
    struct process *p;
    struct process_info i;
    struct watch w;
    bool known;
    snprintf(line, sizeof line, "run '%u'", n);
    struct process_request r = {.command = line, .env = {.text = ""}, .listens = n % 2};
    if (session_start(s, &r, &p, &known, e) < 0)
        return -1;

    /* Every other one is direct at first (listen.c), and handed over before, while or after its
     * shell fails. */
    if (r.listens) {
        usleep(n * 61 % 3000);
        (void)process_listen(p, -1, 0, false, DEADLINE_NONE);
    }
    assert_int_equal(process_watch(p, &w, e), 0);
    process_hand_over(p);
    if (process_wait(p, &w, -1, deadline_in(PATIENCE), e) < 0)
        fail_msg("line %u: %s (line %d state %d)", n, e->msg, p->line, p->state);
    process_unwatch(p, &w);
    process_get(p, &i, NULL);
    process_let_go(p);
    process_unref(p);
    return i.refused ? -1 : i.exit_code < 0 ? 128 + i.signal : i.exit_code;
}

static unsigned rounds(unsigned by_day)
{
    return getenv("PADDOCK_NIGHTLY") ? 10 * by_day : by_day;
}

static void assert_ran(unsigned n, unsigned least, unsigned most)
{
    unsigned ran = atomic_load(&the.ran[n]);
    if (ran < least || ran > most)
        fail_msg("line %u ran %u times", n, ran);
}

static bool is_prepared(struct session *s, int stage, bool owed)
{
    lock_take(&s->lock);
    bool is = (int)s->prepared.stage == stage && s->prepared.owed == owed;
    lock_release(&s->lock);
    return is;
}

/* Waits for a state of the session's prepared shell, without running a line. */
static void await_prepared(struct session *s, int stage, bool owed)
{
    for (deadline d = deadline_in(PATIENCE); !is_prepared(s, stage, owed); usleep(1000))
        if (deadline_passed(d))
            fail_msg("stage %d, owed %d", s->prepared.stage, s->prepared.owed);
}

static void set_pause(struct session *s, deadline until)
{
    lock_take(&s->lock);
    s->prepared.not_before = until;
    lock_release(&s->lock);
}

/* ---- tests ---- */

static void test_lines_run_in_shells_that_waited(void **state)
{
    struct daemon *d = begin(state);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct pd_err e;
    unsigned count = 200;

    /* A busy machine gives some of them no turn in time. */
    for (unsigned n = 0; n < count || (n < 3 * count && atomic_load(&the.prepared) <= count / 2);
         n++) {
        assert_int_equal(run(s, n, &e), 0);
        assert_ran(n, 1, 1);
        set_pause(s, 0); /* a shell that had no turn in time was given up */
        for (deadline t = deadline_in(NS_PER_S);
             !is_prepared(s, PREPARED_WAITING, false) && !deadline_passed(t);)
            usleep(500);
    }
    assert_true(atomic_load(&the.prepared) > count / 2);
    assert_int_equal(process_count(s), count < PROCESSES_KEPT ? count : process_count(s));
    for (deadline t = deadline_in(PATIENCE); process_count(s) > PROCESSES_KEPT + 1; usleep(1000))
        assert_false(deadline_passed(t)); /* the recorder trims the list */
    end(d, s);
}

/* Whatever a shell does instead of running its line, the line runs, once. */
static void test_every_line_runs_once(void **state)
{
    struct daemon *d = begin(state);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct pd_err e;
    unsigned count = rounds(1000);
    atomic_store(&the.cruel, 1);

    for (unsigned n = 0; n < count; n++) {
        int status = run(s, n, &e);
        if (status)
            fail_msg("line %u: status %d", n, status);
        assert_ran(n, 1, 1);
        lock_take(&s->lock);
        s->prepared.not_before = 0; /* here they always fail, and are wanted nevertheless */
        lock_release(&s->lock);
        usleep(n * 37 % 5000);
    }
    for (unsigned i = 0; i < FATES; i++)
        assert_true(atomic_load(&the.fates[i]) > 0);
    assert_int_equal(atomic_load(&the.known), 0);
    end(d, s);
}

/* A line that ends in the pause after a failure is followed by no shell, but when the pause is over
 * there is one, though no other line has come. */
static void test_a_pause_is_followed_by_a_shell(void **state)
{
    struct daemon *d = begin(state);
    struct pd_err e;

    for (unsigned n = 0; n < 20; n += 2) {
        struct session_request r = {0};
        struct session *s = make_one(d, &r);

        set_pause(s, DEADLINE_NONE);
        assert_int_equal(run(s, n, &e), 0);
        await_prepared(s, PREPARED_NONE, true);

        set_pause(s, 0);
        await_prepared(s, PREPARED_WAITING, false);
        assert_int_equal(run(s, n + 1, &e), 0);
        assert_ran(n + 1, 1, 1);
        assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
        session_unref(s);
    }

    assert_true(atomic_load(&the.prepared) > 0);
    await_no_shell();
    daemon_end(d);
}

/* A shell that was stopped when it had its line does not keep the line until its time-out, though
 * nothing can be frozen: it is given up after a while, and the line runs elsewhere, once. */
static void test_a_stopped_shell_that_cannot_be_held_is_given_up(void **state)
{
    struct daemon *d = begin(state);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct pd_err e;
    unsigned n = 0;
    atomic_store(&the.no_hold, 1);
    atomic_store(&the.all_stop, 1);

    for (; n < 200 && atomic_load(&the.fates[STOPS_WITH_THE_LINE]) < 3; n++) {
        assert_int_equal(run(s, n, &e), 0);
        assert_ran(n, 1, 1);
        lock_take(&s->lock);
        s->prepared.not_before = 0;
        lock_release(&s->lock);
        usleep(20000);
    }
    assert_true(atomic_load(&the.fates[STOPS_WITH_THE_LINE]) >= 3);
    assert_int_equal(atomic_load(&the.prepared), 0);
    end(d, s);
}

struct changer {
    struct session *s;
    atomic_int stop;
    unsigned count, stood;
};

/* Pauses, wakes, and changes what shells start with. */
static void *change_main(void *arg)
{
    struct changer *c = arg;
    struct msg_list_writer set = MSG_LIST_WRITER_INIT;
    struct msg_list none = {.text = ""};
    struct pd_err e;
    assert_int_equal(msg_list_add(&set, "A=B"), 0);
    struct msg_list list = msg_list_of(&set);

    for (unsigned i = 0; !atomic_load(&c->stop); i++) {
        if (i % 3 == 0) {
            (void)session_set_env(c->s, &list, &none, NULL, &e);
        } else {
            bool stood = (i % 3 == 1 ? session_pause(c->s, &e) : session_sleep(c->s, &e)) == 0;
            lock_take(&c->s->lock);
            assert_true(!stood || c->s->prepared.stage == PREPARED_NONE);
            lock_release(&c->s->lock);
            c->stood += stood;
            usleep(i * 53 % 700);
            assert_int_equal(session_resume(c->s, &e), 0);
        }
        c->count++;
        usleep(i * 101 % 6000);
    }
    msg_list_writer_done(&set);
    return NULL;
}

static void test_lines_against_pause_sleep_and_change(void **state)
{
    struct daemon *d = begin(state);
    struct session_request r = {0};
    struct changer c = {.s = make_one(d, &r)};
    struct pd_err e;
    pthread_t thread;
    unsigned count = rounds(2000), ran = 0;
    assert_int_equal(pthread_create(&thread, NULL, change_main, &c), 0);

    for (unsigned n = 0; n < count; n++) {
        int status = run(c.s, n, &e);
        assert_ran(n, status == 0, 1); /* a sleep kills what runs */
        ran += status == 0;
        usleep(n * 37 % 4000);
    }
    atomic_store(&c.stop, 1);
    pthread_join(thread, NULL);
    assert_true(ran > 10 && c.stood > 10);
    end(d, c.s);
}

struct ender {
    struct session *s;
    unsigned after_us;
};

static void *end_main(void *arg)
{
    struct ender *x = arg;
    struct pd_err e;
    usleep(x->after_us);
    assert_int_equal(session_end(x->s, END_KILLED, "test", &e), 0);
    return NULL;
}

/* Its life is over: the controller ends it. */
static void *expire_main(void *arg)
{
    struct ender *x = arg;
    deadline limit = deadline_in(PATIENCE);
    enum session_state is;
    usleep(x->after_us);
    lock_take(&x->s->lock);
    x->s->info.max_life_ms = 0;
    lock_release(&x->s->lock);

    do {
        controllers_wake(x->s->all);
        usleep(500);
        lock_take(&x->s->lock);
        is = x->s->info.state;
        lock_release(&x->s->lock);
    } while (is != SESSION_GONE && !deadline_passed(limit));
    assert_int_equal(is, SESSION_GONE);
    assert_int_equal(x->s->info.end, END_EXPIRED);
    return NULL;
}

/* An end at any moment of a line, of making a shell, and of its wait. */
static void play_ends(void **state, void *(*ends)(void *arg), unsigned count)
{
    struct daemon *d = begin(state);
    struct pd_err e;

    for (unsigned n = 0; n < count; n++) {
        struct session_request r = {0};
        struct ender x = {.s = make_one(d, &r), .after_us = n * 97 % 8000};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, ends, &x), 0);
        for (unsigned i = 0; i < 3; i++) {
            unsigned line = 3 * n + i;
            int status = run(x.s, line, &e);
            assert_ran(line, status == 0, 1);
            usleep(n * 41 % 3000);
        }
        pthread_join(thread, NULL);
        assert_int_equal(x.s->prepared.stage, PREPARED_NONE);
        session_unref(x.s);
    }
    await_no_shell();
    assert_int_equal(box_count(d->world), 0);
    daemon_end(d);
}

static void test_a_delete_at_any_moment(void **state)
{
    play_ends(state, end_main, rounds(500));
}

static void test_an_expiry_at_any_moment(void **state)
{
    play_ends(state, expire_main, rounds(300));
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN); /* as a server does: a state may come when nobody reads it */
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_lines_run_in_shells_that_waited),
        IN_WORLD(test_every_line_runs_once),
        IN_WORLD(test_a_pause_is_followed_by_a_shell),
        IN_WORLD(test_a_stopped_shell_that_cannot_be_held_is_given_up),
        IN_WORLD(test_lines_against_pause_sleep_and_change),
        IN_WORLD(test_a_delete_at_any_moment),
        IN_WORLD(test_an_expiry_at_any_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
