/* How this works: the pump owns the near ends of a process's streams and splices them into spools.
 *
 * The end: init reports that the first process has ended. What it wrote is in the pipes by then, so
 * they are drained before anybody hears of the end; children that are still running may write on,
 * and the spools go on with them. A command that failed is looked at by the recorder first, because
 * why it failed (memory, processes, disk) has to be asked for. */
#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

/* A stream gets this many fills before others have their turn. */
#define FILLS_PER_TURN  8
#define FILLS_AT_END    64
#define DISK_RETRY      (NS_PER_S)
#define SETTLE_AFTER    (2 * NS_PER_MS)
#define PID_PATIENCE    (5 * NS_PER_S)
#define SIGNAL_PATIENCE (10 * NS_PER_S)

const char *process_stop_name(enum process_stop s)
{
    static const char *const names[STOP_COUNT] = {NULL,        "timeout", "oom",     "pids",
                                                  "disk",      "output",  "syscall", "killed",
                                                  "abandoned", "sandbox"};
    return (unsigned)s < STOP_COUNT ? names[s] : NULL;
}

/* ---- life ---- */

static void stream_retry(struct pump_timer *t);
static void on_timeout(struct pump_timer *t);

struct process *process_new(struct session *s)
{
    struct process *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    atomic_init(&p->refs, 1);
    atomic_init(&p->buried, 0);
    p->session = session_ref(s);
    p->running = p->synced = 1;
    p->via[0] = p->via[1] = p->input = p->state_pipe = -1;
    p->env = MSG_LIST_WRITER_INIT;
    p->timeout.fire = on_timeout;
    pthread_mutex_init(&p->lock, NULL);
    for (unsigned i = 0; i < STREAM_COUNT; i++) {
        p->streams[i].source.fd = -1;
        p->streams[i].spool.fd = -1;
        p->streams[i].process = p;
        p->streams[i].retry.fire = stream_retry;
    }
    return p;
}

struct process *process_ref(struct process *p)
{
    atomic_fetch_add(&p->refs, 1);
    return p;
}

void process_unref(struct process *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    process_close_streams(p);
    for (unsigned i = 0; i < STREAM_COUNT; i++)
        spool_done(&p->streams[i].spool);
    msg_list_writer_done(&p->env);
    free(p->command);
    free(p->note);
    free(p->key);
    pthread_mutex_destroy(&p->lock);
    session_unref(p->session);
    free(p);
}

void process_stash_key(const struct process *p, const char *what, char out[MSG_KEY_MAX + 1])
{
    char hex[33];
    wire_id_text(p->id, hex);
    snprintf(out, MSG_KEY_MAX + 1, "%s/%s/%s", p->session->info.id, hex, what);
}

/* Returns when none of its callbacks is running any more, but for the one that calls this. */
void process_close_streams(struct process *p)
{
    struct pump *pump = p->session->all->c.pump;
    pump_cancel_timer(pump, &p->timeout);
    for (unsigned i = 0; i < STREAM_COUNT; i++) {
        struct stream *s = &p->streams[i];
        pump_cancel_timer(pump, &s->retry);
        pump_remove(pump, &s->source);
        pthread_mutex_lock(&p->lock);
        int fd = s->source.fd;
        s->source.fd = -1;
        if (p->pty && fd >= 0 && p->input == fd)
            p->input = -1; /* the same descriptor */
        pthread_mutex_unlock(&p->lock);
        fd_done(&fd);
    }
    pthread_mutex_lock(&p->lock);
    fd_done(&p->input);
    fd_done(&p->via[0]);
    fd_done(&p->via[1]);
    fd_done(&p->state_pipe);
    pthread_mutex_unlock(&p->lock);
}

/* ---- streams, on the pump's thread ---- */

void process_wake(struct process *p)
{
    uint64_t one = 1;
    for (struct watch *w = p->watches; w; w = w->next)
        (void)!write(w->event, &one, sizeof one);
}

static ssize_t fill(struct stream *s)
{
    struct process *p = s->process;
    return p->pty ? spool_fill_terminal(&s->spool, s->source.fd, p->via)
                  : spool_fill(&s->spool, s->source.fd);
}

/* One that is held back overshoots by what a full pipe had, and at its end by what is left in it:
 * that must not make the spool forget what nobody has read. */
#define SPOOL_SLACK (2u << 20)

uint64_t process_spool_cap(const struct process *p)
{
    return p->spool_max + (p->back_pressure ? SPOOL_SLACK : 0);
}

struct spool process_spool(const struct process *p, unsigned stream)
{
    struct spool s = {.dir = p->session->all->spool_dir, .fd = -1, .max = process_spool_cap(p)};
    char hex[33];
    wire_id_text(p->id, hex);
    snprintf(s.name, sizeof s.name, "%s.%s.%c", p->session->info.id, hex, stream ? 'e' : 'o');
    return s;
}

static int is_held_back(const struct stream *s)
{
    const struct process *p = s->process;
    unsigned stream = (unsigned)(s - p->streams);
    if (p->back_pressure && s->spool.size - s->consumed >= p->spool_max)
        return 1;
    for (const struct watch *w = p->watches; w; w = w->next)
        if (w->follows && s->spool.size - w->read[stream] >= p->spool_max / 2)
            return 1;
    return 0;
}

/* Moves what there is. With the process's lock held. 1: more may come; 0: over. `last`: the command
 * has ended, and what it left in the pipe is taken even if nobody has read what was before. */
static int stream_turn(struct stream *s, int turns, int last)
{
    struct process *p = s->process;
    struct pump *pump = p->session->all->c.pump;
    for (int i = 0; i < turns; i++) {
        if (!last && is_held_back(s)) {
            s->stopped = 1;
            pump_remove(pump, &s->source);
            return 1;
        }
        ssize_t n = fill(s);
        s->full = n < 0 && n != -EAGAIN && n != -EINTR;
        if (n > 0)
            continue;
        if (n == -EAGAIN || n == -EINTR)
            return 1;
        if (s->full) {
            /* The bytes are still in the pipe, and whoever writes waits. Again in a moment. */
            s->stopped = 1;
            pump_remove(pump, &s->source);
            pump_set_timer(pump, &s->retry, deadline_in(DISK_RETRY));
            return 1;
        }
        pump_remove(pump, &s->source);
        if (p->pty && p->input == s->source.fd)
            p->input = -1;
        fd_done(&s->source.fd);
        /* The last of a command that has ended; otherwise its end sees to it. */
        if (p->ended_event && p->stashed)
            recorder_add(p, TASK_DROP, 0);
        return 0;
    }
    return 1;
}

static int waits_for_space(const struct process *p)
{
    return p->streams[STREAM_OUT].full || p->streams[STREAM_ERR].full;
}

/* With the process's lock held. */
static void finish_late(struct process *p)
{
    if (!p->finishing || waits_for_space(p))
        return;
    p->finishing = 0;
    recorder_add(p, TASK_END, 0);
}

static void stream_ready(struct pump_source *source, uint32_t events)
{
    (void)events;
    struct stream *s = (struct stream *)((char *)source - offsetof(struct stream, source));
    struct process *p = s->process;
    pthread_mutex_lock(&p->lock);
    uint64_t before = s->spool.size;
    if (s->source.fd >= 0)
        (void)stream_turn(s, FILLS_PER_TURN, 0);
    if (s->spool.size != before || s->source.fd < 0)
        process_wake(p);
    finish_late(p);
    pthread_mutex_unlock(&p->lock);
}

static void stream_resume(struct stream *s)
{
    struct pd_err e;
    if (!s->stopped || s->source.fd < 0)
        return;
    s->stopped = 0;
    if (pump_add(s->process->session->all->c.pump, &s->source, EPOLLIN, &e) < 0)
        s->stopped = 1;
}

/* Somebody has read, or reads no more. With the process's lock held. */
static void stream_release(struct stream *s)
{
    if (s->stopped && !s->retry.set && !is_held_back(s))
        stream_resume(s);
}

static void stream_retry(struct pump_timer *t)
{
    struct stream *s = (struct stream *)((char *)t - offsetof(struct stream, retry));
    struct process *p = s->process;
    struct pump *pump = p->session->all->c.pump;
    struct pd_err e;
    pthread_mutex_lock(&p->lock);
    if (s->stopped && s->source.fd >= 0) {
        s->stopped = 0;
        /* Not by an event: a terminal's bytes may be half-way, where the pump does not look. */
        if (stream_turn(s, FILLS_AT_END, p->ended_event) && !s->stopped &&
            pump_add(pump, &s->source, EPOLLIN, &e) < 0) {
            s->stopped = 1;
            pump_set_timer(pump, &s->retry, deadline_in(DISK_RETRY));
        }
        process_wake(p);
        finish_late(p);
    }
    pthread_mutex_unlock(&p->lock);
}

int process_begin_streams(struct process *p, struct pd_err *e)
{
    for (unsigned i = 0; i < STREAM_COUNT; i++) {
        struct stream *s = &p->streams[i];
        s->source.ready = stream_ready;
        if (s->source.fd >= 0 && pump_add(p->session->all->c.pump, &s->source, EPOLLIN, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- the end ---- */

static void on_timeout(struct pump_timer *t)
{
    struct process *p = (struct process *)((char *)t - offsetof(struct process, timeout));
    recorder_add(p, TASK_TIMEOUT, 0);
}

/* Whoever hears of the end may start the next command at once: the session is free by then. */
void process_finish(struct process *p)
{
    struct session *s = p->session;
    pthread_mutex_lock(&s->lock);
    pthread_mutex_lock(&p->lock);
    if (p->running) {
        p->running = 0;
        p->ended_ms = time_now_ms();
        p->duration_us = (clock_now() - p->started_ns) / 1000;
        if (s->running)
            s->running--;
        if (p->updates_state)
            s->shell_busy = 0;
        s->info.last_used_ms = time_now_ms();
        pthread_cond_broadcast(&s->changed);
    }
    process_wake(p);
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&s->lock);
}

void process_on_exit(struct process *p, const struct msg_exited *end)
{
    pthread_mutex_lock(&p->lock);
    if (p->ended_event) {
        pthread_mutex_unlock(&p->lock);
        return;
    }
    p->ended_event = 1;
    p->end = *end;
    if (!p->pid)
        p->pid = end->pid;
    for (unsigned i = 0; i < STREAM_COUNT; i++)
        if (p->streams[i].source.fd >= 0 && !p->streams[i].full)
            (void)stream_turn(&p->streams[i], FILLS_AT_END, 1);
    /* Nobody is told of the end while the output is not whole. */
    int finishing = p->finishing = waits_for_space(p);
    if (finishing)
        process_wake(p);
    int simple = end->status == 0 && p->stop == STOP_NONE;
    pthread_mutex_unlock(&p->lock);
    if (p->updates_state) {
        int updated = session_take_state(p->session, p);
        pthread_mutex_lock(&p->lock);
        p->state_updated = updated;
        pthread_mutex_unlock(&p->lock);
        /* What the command left is stored before anybody hears of its end. */
        pthread_mutex_lock(&p->session->lock);
        simple &= !p->session->dirty;
        pthread_mutex_unlock(&p->session->lock);
    }
    if (finishing)
        return;
    int told = simple || p->worker;
    if (told)
        process_finish(p);
    /* Whoever waited is about to answer; what is left is in no hurry. */
    recorder_add(p, TASK_END, told ? SETTLE_AFTER : 0);
}

void process_on_refused(struct process *p, const struct pd_err *why)
{
    pthread_mutex_lock(&p->lock);
    int known = p->ended_event;
    p->ended_event = 1;
    if (!known) {
        p->refused = 1;
        p->why = *why;
    }
    pthread_mutex_unlock(&p->lock);
    if (known)
        return;
    process_finish(p);
    recorder_add(p, TASK_END, 0);
}

int process_is_settled(struct process *p)
{
    pthread_mutex_lock(&p->lock);
    int settled =
        p->settled && p->streams[STREAM_OUT].source.fd < 0 && p->streams[STREAM_ERR].source.fd < 0;
    pthread_mutex_unlock(&p->lock);
    return settled;
}

void process_bury(struct process *p)
{
    struct pump *pump = p->session->all->c.pump;
    pump_cancel_timer(pump, &p->timeout);
    for (unsigned i = 0; i < STREAM_COUNT; i++) {
        pump_cancel_timer(pump, &p->streams[i].retry);
        pump_remove(pump, &p->streams[i].source); /* not with the lock that its callback takes */
    }
    pthread_mutex_lock(&p->lock);
    if (!p->ended_event) {
        p->ended_event = 1;
        p->end.status = SIGKILL;
        if (p->stop == STOP_NONE)
            p->stop = STOP_SANDBOX;
    }
    /* Nobody can write any more: what is left in the pipes is all there is. */
    for (unsigned i = 0; i < STREAM_COUNT; i++)
        if (p->streams[i].source.fd >= 0)
            (void)stream_turn(&p->streams[i], FILLS_AT_END, 1);
    p->finishing = 0;
    p->explained = 1;
    pthread_mutex_unlock(&p->lock);
    process_finish(p);
}

void process_explain(struct process *p)
{
    struct session *s = p->session;
    struct box_usage u = {0};
    struct pd_err e;
    int known = -1;
    pthread_rwlock_rdlock(&s->box_use);
    if (s->box)
        known = s->all->c.provider->usage(s->box, &u, &e);
    pthread_rwlock_unlock(&s->box_use);
    uint64_t oom = 0, pids = 0;
    pthread_mutex_lock(&s->lock);
    if (known == 0) {
        oom = u.oom_kills - s->oom_seen;
        pids = u.pids_refused - s->pids_seen;
        s->oom_seen = u.oom_kills;
        s->pids_seen = u.pids_refused;
    }
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&p->lock);
    if (p->stop == STOP_NONE) {
        int signal = WIFSIGNALED(p->end.status) ? WTERMSIG(p->end.status) : 0;
        if (oom)
            p->stop = STOP_OOM;
        else if (pids)
            p->stop = STOP_PIDS;
        else if (p->end.disk_full)
            p->stop = STOP_DISK;
        else if (signal == SIGSYS)
            p->stop = STOP_SYSCALL;
        else if (signal == SIGXFSZ)
            p->stop = STOP_OUTPUT;
    }
    p->explained = 1;
    pthread_mutex_unlock(&p->lock);
}

/* ---- what others see ---- */

void process_get(struct process *p, struct process_info *ret, struct pd_err *why)
{
    *ret = (struct process_info){.shell = p->shell, .pty = p->pty, .background = p->background};
    wire_id_text(p->id, ret->id);
    snprintf(ret->command, sizeof ret->command, "%s", p->command ? p->command : "");
    pthread_mutex_lock(&p->lock);
    ret->pid = p->pid;
    ret->stored = p->stored;
    ret->running = p->running;
    ret->refused = p->refused;
    if (why)
        *why = p->why;
    ret->exit_code = -1;
    if (!p->running && !p->refused) {
        int status = p->end.status;
        if (WIFEXITED(status))
            ret->exit_code = WEXITSTATUS(status);
        else
            ret->signal = WTERMSIG(status);
    }
    ret->stopped_by = p->stop;
    ret->timed_out = p->stop == STOP_TIMEOUT;
    ret->state_updated = p->state_updated;
    ret->stdin_open = p->running && p->input >= 0;
    ret->started_ms = p->started_ms;
    ret->ended_ms = p->ended_ms;
    ret->duration_us = p->running ? (clock_now() - p->started_ns) / 1000 : p->duration_us;
    ret->cpu_usec = p->end.cpu_usec;
    ret->max_rss = p->end.max_rss;
    for (unsigned i = 0; i < STREAM_COUNT; i++) {
        ret->size[i] = p->streams[i].spool.size;
        ret->first[i] = p->streams[i].spool.first;
    }
    pthread_mutex_unlock(&p->lock);
}

char *process_note(struct process *p)
{
    return strdup(p->note ? p->note : "");
}

ssize_t process_read(struct process *p, unsigned stream, uint64_t offset, void *out, size_t size,
                     struct pd_err *e)
{
    struct stream *s = &p->streams[stream];
    pthread_mutex_lock(&p->lock);
    /* The file only grows, and its descriptor is not closed while somebody reads. */
    struct spool view = s->spool;
    p->readers++;
    pthread_mutex_unlock(&p->lock);
    ssize_t n = spool_read(&view, offset, out, size, e);
    pthread_mutex_lock(&p->lock);
    p->readers--;
    view = s->spool;
    pthread_mutex_unlock(&p->lock);
    /* What was forgotten meanwhile was read as zeros. */
    if (n > 0 && offset < view.first)
        return spool_read(&view, offset, out, size, e); /* says so, and reads nothing */
    /* Also without news: who asks from here on has read what was before, maybe from another daemon.
     */
    if (n >= 0)
        process_consumed(p, stream, offset + (uint64_t)n);
    return n;
}

void process_consumed(struct process *p, unsigned stream, uint64_t offset)
{
    struct stream *s = &p->streams[stream];
    if (!p->back_pressure)
        return;
    pthread_mutex_lock(&p->lock);
    if (offset > s->spool.size)
        offset = s->spool.size;
    if (offset > s->consumed)
        s->consumed = offset;
    stream_release(s);
    pthread_mutex_unlock(&p->lock);
}

void process_follow(struct process *p, struct watch *w, unsigned stream, uint64_t offset)
{
    pthread_mutex_lock(&p->lock);
    if (!w->follows)
        for (unsigned i = 0; i < STREAM_COUNT; i++)
            w->read[i] = p->streams[i].spool.size;
    w->follows = 1;
    w->read[stream] =
        offset < p->streams[stream].spool.size ? offset : p->streams[stream].spool.size;
    stream_release(&p->streams[stream]);
    pthread_mutex_unlock(&p->lock);
}

void process_keep(struct process *p)
{
    recorder_add(p, TASK_STORE, 0);
}

int process_await_pid(struct process *p, struct pd_err *e)
{
    struct watch w;
    struct process_info i;
    struct pd_err why;
    deadline d = deadline_in(PID_PATIENCE);
    if (process_watch(p, &w, e) < 0)
        return -1;
    for (;;) {
        watch_clear(&w);
        process_get(p, &i, &why);
        if (i.pid || !i.running || watch_wait(&w, d) == 0)
            break;
    }
    process_unwatch(p, &w);
    if (!i.refused)
        return 0;
    *e = why;
    return -1;
}

deadline process_deadline(const struct process *p)
{
    return p->timeout_ns ? p->started_ns + p->timeout_ns : DEADLINE_NONE;
}

int process_watch(struct process *p, struct watch *w, struct pd_err *e)
{
    w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->event < 0)
        return pd_fail_sys(e, "watch the process");
    w->follows = 0;
    pthread_mutex_lock(&p->lock);
    w->next = p->watches;
    p->watches = w;
    pthread_mutex_unlock(&p->lock);
    return 0;
}

void process_unwatch(struct process *p, struct watch *w)
{
    pthread_mutex_lock(&p->lock);
    for (struct watch **at = &p->watches; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    for (unsigned i = 0; i < STREAM_COUNT && w->follows; i++)
        stream_release(&p->streams[i]);
    pthread_mutex_unlock(&p->lock);
    fd_done(&w->event);
}

void watch_clear(struct watch *w)
{
    uint64_t n;
    (void)!read(w->event, &n, sizeof n);
}

int watch_wait(struct watch *w, deadline d)
{
    struct pollfd p = {.fd = w->event, .events = POLLIN};
    return poll(&p, 1, deadline_poll_ms(d)) != 0;
}

static int is_running(struct process *p)
{
    pthread_mutex_lock(&p->lock);
    int running = p->running;
    pthread_mutex_unlock(&p->lock);
    return running;
}

static int is_finishing(struct process *p)
{
    pthread_mutex_lock(&p->lock);
    int finishing = p->finishing;
    pthread_mutex_unlock(&p->lock);
    return finishing;
}

int process_wait(struct process *p, struct watch *w, int other_fd, deadline d, struct pd_err *e)
{
    for (;;) {
        watch_clear(w);
        if (!is_running(p))
            return 0;
        if (is_finishing(p))
            return pd_fail(e, PD_NO_SPACE,
                           "the command has ended, but the server has no space for its output: "
                           "free some; the output is there then, by its process_id");
        struct pollfd fds[2] = {{.fd = w->event, .events = POLLIN},
                                {.fd = other_fd, .events = POLLRDHUP}};
        int n = poll(fds, other_fd >= 0 ? 2 : 1, deadline_poll_ms(d));
        if (n < 0 && errno != EINTR)
            return pd_fail_sys(e, "wait for the process");
        if (n > 0 && other_fd >= 0 && fds[1].revents)
            return 1;
        if (n == 0 && deadline_passed(d))
            return pd_fail(e, PD_TIMEOUT, "the command did not end in time");
    }
}

/* ---- what is done to it ---- */

static int with_box(struct process *p, struct pd_err *e)
{
    pthread_rwlock_rdlock(&p->session->box_use);
    if (p->session->box)
        return 0;
    pthread_rwlock_unlock(&p->session->box_use);
    return session_no_box(p->session, e);
}

/* Also of a command that has ended: children of it may still run. Its group must be its own until
 * the kill is done, or it would hit whoever has the number next. */
int process_stop(struct process *p, enum process_stop why, struct pd_err *e)
{
    struct session *s = p->session;
    const struct provider *provider = s->all->c.provider;
    pthread_mutex_lock(&p->lock);
    int running = p->running;
    if (running && !p->ended_event && p->stop == STOP_NONE)
        p->stop = why;
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_lock(&s->lock);
    int held = group_kill_begin(s, p->group, p->serial);
    pthread_mutex_unlock(&s->lock);
    if (!held && !running)
        return 0;
    int r = with_box(p, e);
    if (r == 0) {
        r = provider->kill(s->box, p->id, held ? p->group : 0, e);
        pthread_rwlock_unlock(&s->box_use);
    }
    pthread_mutex_lock(&s->lock);
    if (held)
        group_kill_end(s, p->group);
    pthread_mutex_unlock(&s->lock);
    return r;
}

int process_signal(struct process *p, int signal, struct pd_err *e)
{
    const struct provider *provider = p->session->all->c.provider;
    if (signal == SIGKILL) {
        struct watch w;
        if (process_stop(p, STOP_KILLED, e) < 0)
            return -1;
        if (process_watch(p, &w, e) < 0)
            return -1;
        int r = process_wait(p, &w, -1, deadline_in(NS_PER_S), e);
        process_unwatch(p, &w);
        return r < 0 && e->code == PD_NO_SPACE ? 0 : r; /* then it has ended, too */
    }
    if (!is_running(p))
        return pd_fail(e, PD_CONFLICT, "process %d has ended already", p->pid);
    if (with_box(p, e) < 0)
        return -1;
    int r = provider->signal(p->session->box, p->id, signal, deadline_in(SIGNAL_PATIENCE), e);
    pthread_rwlock_unlock(&p->session->box_use);
    return r;
}

int process_write(struct process *p, const void *data, size_t len, deadline d, struct pd_err *e)
{
    const char *at = data;
    /* A copy of the descriptor, so that it can be waited for without the lock. */
    pthread_mutex_lock(&p->lock);
    auto_fd fd = p->input >= 0 && p->running ? fcntl(p->input, F_DUPFD_CLOEXEC, 3) : -1;
    pthread_mutex_unlock(&p->lock);
    if (fd < 0)
        return pd_fail(e, PD_CONFLICT,
                       "stdin of process %d is closed, or was never open: start "
                       "it with \"stdin\": true",
                       p->pid);
    while (len) {
        ssize_t n = write(fd, at, len);
        if (n > 0) {
            at += n;
            len -= (size_t)n;
            continue;
        }
        if (n < 0 && errno == EPIPE)
            return pd_fail(e, PD_CONFLICT, "process %d does not read its stdin any more", p->pid);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return pd_fail_sys(e, "write to process %d", p->pid);
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        if (poll(&wait, 1, deadline_poll_ms(d)) == 0)
            return pd_fail(e, PD_TIMEOUT, "process %d does not read its stdin: %zu bytes are left",
                           p->pid, len);
    }
    return 0;
}

int process_close_stdin(struct process *p, struct pd_err *e)
{
    if (p->pty)
        return pd_fail(e, PD_INVALID, "a terminal's input cannot be closed: send it ^D (\\x04)");
    pthread_mutex_lock(&p->lock);
    int fd = p->input;
    p->input = -1;
    int stashed = p->stashed_input;
    p->stashed_input = 0;
    pthread_mutex_unlock(&p->lock);
    if (fd < 0)
        return pd_fail(e, PD_CONFLICT, "stdin of process %d is closed already", p->pid);
    if (stashed) {
        /* The command sees the end only when every copy is closed. */
        char key[MSG_KEY_MAX + 1];
        process_stash_key(p, "in", key);
        p->session->all->c.provider->drop(p->session->all->c.provider, key);
    }
    fd_done(&fd);
    return 0;
}

int process_resize(struct process *p, uint16_t rows, uint16_t cols, struct pd_err *e)
{
    if (!p->pty)
        return pd_fail(e, PD_INVALID, "process %d has no terminal", p->pid);
    struct winsize size = {.ws_row = rows, .ws_col = cols};
    pthread_mutex_lock(&p->lock);
    int r = p->input < 0 ? -1 : ioctl(p->input, TIOCSWINSZ, &size);
    pthread_mutex_unlock(&p->lock);
    return r < 0 ? pd_fail(e, PD_CONFLICT, "the terminal of process %d is closed", p->pid) : 0;
}
