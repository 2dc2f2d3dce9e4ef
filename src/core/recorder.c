/* How this works: a thread for each provider, which does what must be done about processes there
 * but has no need to keep anybody waiting. It asks that provider, which may be slow or not answer
 * at all: that is no concern of the others' processes.
 *
 *   TASK_STORE    a command that is still running after a few milliseconds gets its row and has its
 *                 descriptors stashed, so that the next daemon can go on with it. Most commands
 *                 have ended by then, and nothing is written at all.
 *   TASK_END      why a failed command failed; the row of the end; then init may forget it
 *   TASK_DROP     the last stream of a command that has ended is over, too
 *   TASK_TIMEOUT  nobody attends the command and its time is over
 *   TASK_AGAIN    a line whose prepared shell failed is run in another one (prepared.c)
 *   TASK_STASH    the keeper was away when descriptors were to be stashed
 *   TASK_PREPARE  the shell of the next line is made once the one before it is gone (prepared.c)
 *
 * Beside these one of them forgets output when too much is kept (kept.c): whichever comes first, as
 * each may be waiting for its provider.
 *
 * A process waits here once, whatever its tasks are. Until TASK_END is done init keeps the record
 * of the end: a daemon that dies before that loses nothing. */
#include "core/session_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "telemetry/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>

#define FORGET_PAUSE (10 * NS_PER_MS)
#define STASH_AGAIN  (NS_PER_S / 4)
/* More than a command takes: after a few there are enough for several at once. */
#define READY_PER_END 2

/* Whose tasks it is: its provider's, for as long as it lives. */
static struct recorder *recorder_of(struct process *p)
{
    struct sessions *all = p->session->all;
    unsigned i = provider_table_index(all->c.providers, p->provider);
    return &all->recorders[i < all->c.providers->count ? i : 0];
}

void recorder_add(struct process *p, unsigned task, uint64_t delay_ns)
{
    struct recorder *r = recorder_of(p);
    deadline due = deadline_in(delay_ns);

    lock_take(&r->lock);
    if (p->tasks) {
        p->tasks |= task;
        if (due < p->task_due)
            p->task_due = due;
    } else {
        p->tasks = task;
        p->task_due = due;
        p->task_next = NULL;
        *r->last = process_ref(p);
        r->last = &p->task_next;
    }

    /* Awake, or about to be: it sees this by itself. */
    if (p->task_due < r->wake) {
        r->wake = 0;
        pthread_cond_signal(&r->cond);
    }
    lock_release(&r->lock);
}

/* A pipe that is at its end. */
static int ended_pipe(void)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0)
        return -1;
    fd_done(&p[1]);
    return p[0];
}

/* Copies of descriptors, to be handed over without the lock that the pump needs. */
struct copies {
    int fd[4];
    unsigned count;
    bool bad; /* there is no descriptor left */
};

static void copies_done(struct copies *c)
{
    for (unsigned i = 0; i < c->count; i++)
        fd_done(&c->fd[i]);
}

/* `fd` -1: a pipe that is at its end, in the place of a stream that is over. */
static void copies_add(struct copies *c, int fd)
{
    int copy = fd < 0 ? ended_pipe() : fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0)
        c->bad = true;
    else
        c->fd[c->count++] = copy;
}

/* Copies of the descriptors that the next daemon needs to go on with the output: none if all of it
 * is over. With the process's lock held. */
static struct copies copy_output(const struct process *p)
{
    struct copies c = {.count = 0};
    unsigned streams = p->pty ? 1 : process_stream_count(p);
    bool any = false;
    for (unsigned i = 0; i < streams; i++)
        any |= p->streams[i].source.fd >= 0;
    if (!any)
        return c;

    for (unsigned i = 0; i < streams; i++)
        copies_add(&c, p->streams[i].source.fd);
    if (p->pty) {
        copies_add(&c, p->via[0]);
        copies_add(&c, p->via[1]);
    } else if (p->state_pipe >= 0) {
        copies_add(&c, p->state_pipe);
    }
    return c;
}

/* Gives the keeper copies of a process's descriptors. `*stashed` was set, with the lock held, when
 * they were copied. If it is not any more, somebody has dropped the key meanwhile, maybe before the
 * copies had come: then they are dropped again, because a command sees the end of its input only
 * when every copy is closed. */
static int stash_copies(struct process *p, const char *what, const struct copies *c, bool *stashed,
                        struct pd_err *e)
{
    struct provider *provider = p->provider;
    char key[MSG_KEY_MAX + 1];
    process_stash_key(p, what, key);
    int failed = c->bad ? pd_fail(e, PD_CAPACITY, "no descriptor is left")
                        : stash_put(provider, key, c->fd, c->count, e);

    lock_take(&p->lock);
    bool dropped = !*stashed;
    if (failed)
        *stashed = false;
    lock_release(&p->lock);

    if (!failed && dropped)
        stash_drop(provider, key);
    return failed;
}

/* The keeper has died, or is about to be replaced. What runs on another machine goes on. */
static bool is_away(const struct pd_err *e)
{
    return e->code == PD_LOST || e->sys == ENOTCONN;
}

/* Sends to the keeper, which may take long: the process's lock is not held meanwhile. */
static void stash(struct process *p)
{
    struct copies out __attribute__((cleanup(copies_done))) = {.count = 0};
    struct copies in __attribute__((cleanup(copies_done))) = {.count = 0};
    struct pd_err e;
    if (!provider_has(p->provider, PROVIDER_STASH))
        return;

    lock_take(&p->lock);
    if (!p->stashed)
        out = copy_output(p);
    if (out.count || out.bad)
        p->stashed = true;
    if (process_is_live(p) && p->input >= 0 && !p->pty && !p->stashed_input) {
        copies_add(&in, p->input);
        p->stashed_input = true;
    }
    lock_release(&p->lock);

    int failed = out.count || out.bad ? stash_copies(p, "out", &out, &p->stashed, &e) : 0;
    if (in.count || in.bad)
        failed |= stash_copies(p, "in", &in, &p->stashed_input, &e);
    if (failed)
        log_warn("process.stash", "session=%s error=%s", p->session->info.id, e.msg);
    if (failed && is_away(&e))
        recorder_add(p, TASK_STASH, STASH_AGAIN);
}

int process_store(struct process *p, struct pd_err *e)
{
    struct sessions *all = p->session->all;
    char *note = process_note(p);
    if (!note)
        return pd_fail(e, PD_CAPACITY, "no memory for a row");
    struct process_row row = {.session = p->session->info.id,
                              .command = p->command ? p->command : "",
                              .key = p->key ? p->key : "",
                              .key_hash = p->key_hash,
                              .note = note,
                              .group = p->group,
                              .spool_max = p->spool_max};
    memcpy(row.id, p->id.bytes, sizeof row.id);

    lock_take(&p->lock);
    /* The next daemon goes by the files: what the row promises is there before it is. */
    (void)process_end_direct(p);
    if (process_settle_output(p, e) < 0) {
        lock_release(&p->lock);
        free(note);
        return atomic_load(&p->unwanted) ? 0 : -1;
    }

    bool live = process_is_live(p);
    struct pd_err why = p->why;
    row.why = p->refused ? why.msg : "";
    row.why_code = why.code;
    row.pid = p->pid;
    row.flags = (p->shell ? ROW_SHELL : 0) | (p->pty ? ROW_PTY : 0) |
                (p->background ? ROW_BACKGROUND : 0) | (p->back_pressure ? ROW_BACK_PRESSURE : 0) |
                (p->refused ? ROW_REFUSED : 0) | (p->state_updated ? ROW_STATE_UPDATED : 0) |
                (p->forgotten ? ROW_FORGOTTEN : 0) | (p->driver ? ROW_DRIVER : 0);

    /* Without what the request set, its variables could not be told from the session's. */
    if (p->updates_state && live && !p->env.count)
        row.flags |= ROW_UPDATES_STATE;
    /* Nothing will come any more: the next daemon need not ask for its streams. */
    if (!live && process_streams_are_over(p))
        row.flags |= ROW_OVER;

    row.exited = !live;
    row.status = p->end.status;
    row.stop = p->stop;
    row.started_ms = p->started_ms;
    row.ended_ms = p->ended_ms;
    row.deadline_ms = p->timeout_ns ? p->started_ms + p->timeout_ns / 1000000 : 0;
    row.duration_us = p->duration_us;
    row.cpu_usec = p->end.cpu_usec;
    row.max_rss = p->end.max_rss;
    lock_release(&p->lock);

    int r = all->c.store->put_process(all->c.store, &row, e);
    free(note);
    if (r < 0)
        return -1;

    /* A burial marks it first and deletes the row after: one of the two comes last. */
    bool unwanted = atomic_load(&p->unwanted);
    if (!unwanted)
        stash(p);

    /* Not before the keeper has its streams: the next daemon needs both. */
    lock_take(&p->lock);
    if (!p->stored)
        process_wake(p);
    p->stored = true;
    lock_release(&p->lock);
    return unwanted ? all->c.store->delete_process(all->c.store, row.id, e) : 0;
}

/* Has the keeper drop its copies of a process's descriptors: of the input always, of the output
 * when that is over. */
void process_drop_stash(struct process *p)
{
    struct provider *provider = p->provider;
    char key[MSG_KEY_MAX + 1];

    lock_take(&p->lock);
    int in = p->stashed_input;
    int out = p->stashed && process_streams_are_over(p);
    p->stashed_input = false;
    if (out)
        p->stashed = false;
    lock_release(&p->lock);

    if (in) {
        process_stash_key(p, "in", key);
        stash_drop(provider, key);
    }
    if (out) {
        process_stash_key(p, "out", key);
        stash_drop(provider, key);
    }
}

static void store_state(struct session *s)
{
    struct pd_err e;

    lock_take(&s->lock);
    int dirty = s->dirty;
    lock_release(&s->lock);
    if (!dirty || session_store(s, &e) == 0)
        return;

    log_warn("session.store", "id=%s error=%s", s->info.id, e.msg);
    lock_take(&s->lock);
    s->dirty = DIRTY; /* the controller tries again */
    lock_release(&s->lock);
}

void process_conclude(struct process *p)
{
    lock_take(&p->lock);
    bool explain = p->state == PROCESS_EXITED && !p->worker && !p->refused &&
                   (p->end.status != 0 || p->stop != STOP_NONE || process_used_much(p));
    bool updated = p->state_updated;
    lock_release(&p->lock);

    if (explain)
        process_explain(p);
    if (updated)
        store_state(p->session);
    process_finish(p);
}

/* The output of one that has ended rests: short output that nobody relies on in memory, for as long
 * as there is enough of that. */
static void rest_output(struct process *p)
{
    lock_take(&p->lock);
    for (unsigned i = 0; i < process_stream_count(p); i++) {
        struct stream *s = &p->streams[i];
        if (s->source.fd >= 0 || p->readers)
            continue;
        if (spool_should_settle(&s->spool))
            (void)spool_settle(&s->spool); /* no space: then it stays where it is */
        spool_rest(&s->spool);
    }
    lock_release(&p->lock);
}

static void do_end(struct process *p)
{
    struct session *s = p->session;
    struct pd_err e;

    process_conclude(p);
    process_drop_stash(p); /* before the row, after which nobody would look for it */
    if (p->worker) {
        /* Its streams are the caller's. */
    } else if (p->stored) {
        if (process_store(p, &e) < 0) {
            log_warn("process.store", "session=%s error=%s", s->info.id, e.msg);
            recorder_add(p, TASK_END, NS_PER_S); /* not forgotten before it is stored */
            return;
        }
    }

    int empty = 1;
    rw_read(&s->box_use);
    if (s->box) {
        if (!p->refused)
            (void)box_forget(s->box, p->id);
        empty = box_group_is_empty(s->box, p->group);
    }
    rw_release(&s->box_use);

    lock_take(&s->lock);
    if (empty)
        group_release(s, p->group, p->serial);
    else
        group_linger(s, p->group, p->serial);
    lock_release(&s->lock);

    process_settle(p);
    rest_output(p);
    session_trim(s);
    prepared_make(p);
    if (!p->worker)
        ready_ends_fill(&s->all->ready_ends, READY_PER_END);
}

/* A command that was started quietly and is still running: asks for its pid, which everybody sees
 * when the answer comes. It is not waited for: a sandbox whose init is silent must not hold up
 * others. */
static void learn_pid(struct process *p)
{
    struct session *s = p->session;
    struct pd_err e;

    lock_take(&p->lock);
    int known = p->pid != 0;
    lock_release(&p->lock);
    lock_take(&s->lock);
    int frozen = s->info.state != SESSION_RUNNING;
    lock_release(&s->lock);
    if (known || frozen)
        return;

    rw_read(&s->box_use);
    if (s->box && box_sync(s->box, 0, &e) < 0)
        log_warn("process.sync", "session=%s error=%s", s->info.id, e.msg);
    rw_release(&s->box_use);
}

static void do_tasks(struct process *p, unsigned tasks)
{
    struct pd_err e;
    if (tasks & TASK_TIMEOUT)
        (void)process_stop(p, STOP_TIMEOUT, &e);
    if (tasks & TASK_DROP)
        process_drop_stash(p);
    if (tasks & TASK_AGAIN)
        prepared_run_again(p);

    if (tasks & TASK_PREPARE)
        prepared_make(p);
    if (tasks & TASK_STASH && process_state(p) == PROCESS_RUNNING)
        stash(p);

    if (tasks & TASK_END) {
        do_end(p);
    } else if (tasks & TASK_STORE && prepared_is_unsure(p)) {
        /* It is stored when its line has begun. */
    } else if (tasks & TASK_STORE && !p->stored && process_store(p, &e) < 0) {
        log_warn("process.store", "session=%s error=%s", p->session->info.id, e.msg);
        recorder_add(p, TASK_STORE, NS_PER_S);
    } else if (tasks & TASK_STORE) {
        learn_pid(p);
    }
}

/* The first that is due; else when the next will be. With the lock held. */
static struct process *take_due(struct recorder *r, deadline *ret_next)
{
    deadline next = deadline_in(NS_PER_S);

    for (struct process **at = &r->first; *at; at = &(*at)->task_next) {
        struct process *p = *at;
        if (deadline_passed(p->task_due)) {
            *at = p->task_next;
            if (!*at)
                r->last = at;
            return p;
        }
        if (p->task_due < next)
            next = p->task_due;
    }

    *ret_next = next;
    return NULL;
}

void recorder_wake(struct sessions *all)
{
    for (unsigned i = 0; i < PROVIDERS_MAX; i++) {
        struct recorder *r = &all->recorders[i];
        lock_take(&r->lock);
        r->wake = 0;
        pthread_cond_signal(&r->cond);
        lock_release(&r->lock);
    }
}

/* Forgets output if there is too much of it, nobody is at it and the last time is a moment ago;
 * otherwise says in *ret_next when to look. With the lock held, but not while it works. */
static bool forget_output(struct recorder *r, deadline *ret_next)
{
    struct kept *k = &r->all->kept;
    if (!atomic_load(&k->due) || atomic_load(&k->taken))
        return false; /* who is at it looks again */

    deadline next = atomic_load(&k->next);
    if (!deadline_passed(next)) {
        *ret_next = next < *ret_next ? next : *ret_next;
        return false;
    }
    if (atomic_exchange(&k->taken, true))
        return false;

    atomic_store(&k->due, false);
    lock_release(&r->lock);
    kept_trim(r->all);
    lock_take(&r->lock);
    atomic_store(&k->next, deadline_in(FORGET_PAUSE));
    atomic_store(&k->taken, false);
    return true;
}

static void *recorder_main(void *arg)
{
    struct recorder *r = arg;
    lock_take(&r->lock);
    while (!r->stopping || r->first) {
        deadline next = 0;
        struct process *p = take_due(r, &next);
        if (p) {
            unsigned tasks = p->tasks;
            p->tasks = 0;
            lock_release(&r->lock);
            do_tasks(p, tasks);
            process_unref(p);
            lock_take(&r->lock);
            continue;
        }

        if (!r->stopping && forget_output(r, &next))
            continue;
        if (r->stopping)
            break; /* what is not due stays: the next daemon sees to it */

        r->wake = next;
        (void)lock_wait(&r->cond, &r->lock, next);
        r->wake = 0;
    }
    lock_release(&r->lock);
    return NULL;
}

void recorders_init(struct sessions *all)
{
    for (unsigned i = 0; i < PROVIDERS_MAX; i++) {
        struct recorder *r = &all->recorders[i];
        *r = (struct recorder){.all = all, .last = &r->first};
        lock_init(&r->lock, LOCK_TASKS);
        cond_init(&r->cond);
    }
}

int recorders_start(struct sessions *all, struct pd_err *e)
{
    unsigned count = all->c.providers->count ? all->c.providers->count : 1;

    for (; all->recorder_count < count; all->recorder_count++) {
        struct recorder *r = &all->recorders[all->recorder_count];
        if (sessions_start_thread(&r->thread, recorder_main, r) != 0)
            return pd_fail(e, PD_CAPACITY, "no thread for the recorder");
    }
    return 0;
}

void recorders_stop(struct sessions *all)
{
    for (unsigned i = 0; i < PROVIDERS_MAX; i++) {
        struct recorder *r = &all->recorders[i];
        lock_take(&r->lock);
        r->stopping = true;
        pthread_cond_broadcast(&r->cond);
        lock_release(&r->lock);
    }
}

void recorders_join(struct sessions *all)
{
    for (unsigned i = 0; i < all->recorder_count; i++)
        pthread_join(all->recorders[i].thread, NULL);
}

void recorders_done(struct sessions *all)
{
    for (unsigned i = 0; i < PROVIDERS_MAX; i++) {
        struct recorder *r = &all->recorders[i];
        lock_done(&r->lock);
        pthread_cond_destroy(&r->cond);
    }
}

/* Tasks that they did not get to; a process holds its session. */
void recorders_drop(struct sessions *all)
{
    for (unsigned i = 0; i < PROVIDERS_MAX; i++)
        while (all->recorders[i].first) {
            struct process *p = all->recorders[i].first;
            all->recorders[i].first = p->task_next;
            process_unref(p);
        }
}
