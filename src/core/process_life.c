/* How a command lives: one state, changed by process_step alone.
 *
 *   STARTING    it is in its session's list; its streams are being made
 *   RUNNING     the request has gone out, or a box of an earlier daemon has it
 *   FINISHING   its end is known, but some of its output waits for space on the disk
 *   EXITED      its end is known and its output is whole; nobody has been told yet
 *   ENDED       everybody has been told
 *   SETTLED     its end is stored, if the command is, and init has forgotten it
 *   FAILED      it never ran: the request did not go out, or the box does not know it
 *   BURIED      its sandbox went away, under it or after it
 *
 * The end: init reports that the first process has ended. What it wrote is in the pipes by then, so
 * they are drained before anybody hears of the end; children that are still running may write on,
 * and the spools go on with them. A command that failed is looked at by the recorder first, because
 * the reason (memory, processes, disk) has to be asked for. So is one that went well and needed
 * much memory: what was killed in it is not the next one's fault. */
#include "core/process_state.h"

#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/checks.h"
#include "base/err.h"
#include "router/router.h"
#include "telemetry/log.h"

#include <signal.h>
#include <sys/wait.h>

#define TO(state) (1u << PROCESS_##state)

static const struct {
    const char *name;
    unsigned next; /* the states that may follow */
} states[PROCESS_STATES] = {
    [PROCESS_STARTING] = {"starting", TO(RUNNING) | TO(FAILED)},
    [PROCESS_RUNNING] = {"running", TO(FINISHING) | TO(EXITED) | TO(FAILED)},
    [PROCESS_FINISHING] = {"finishing", TO(EXITED)},
    [PROCESS_EXITED] = {"exited", TO(ENDED) | TO(BURIED)},
    [PROCESS_ENDED] = {"ended", TO(SETTLED) | TO(BURIED)},
    [PROCESS_SETTLED] = {"settled", TO(BURIED)},
    [PROCESS_FAILED] = {"failed", 0},
    [PROCESS_BURIED] = {"buried", 0},
};

const char *process_state_name(enum process_state s)
{
    return (unsigned)s < PROCESS_STATES ? states[s].name : "unknown";
}

bool process_may_step(enum process_state from, enum process_state to)
{
    return (unsigned)from < PROCESS_STATES && (unsigned)to < PROCESS_STATES &&
           states[from].next >> to & 1;
}

bool process_step(struct process *p, enum process_state to)
{
    if (process_may_step(p->state, to)) {
        p->state = to;
        return true;
    }

    log_error("process.step", "session=%s pid=%d from=%s to=%s", p->session->info.id, p->pid,
              process_state_name(p->state), process_state_name(to));
    checks_failed();
    return false;
}

enum process_state process_state(struct process *p)
{
    lock_take(&p->lock);
    enum process_state state = p->state;
    lock_release(&p->lock);
    return state;
}

/* ---- the beginning ---- */

void process_begin(struct process *p)
{
    lock_take(&p->lock);
    process_step(p, PROCESS_RUNNING);
    lock_release(&p->lock);
}

bool process_fail(struct process *p, const struct pd_err *why)
{
    lock_take(&p->lock);
    bool failed = !process_has_end(p) && process_step(p, PROCESS_FAILED);
    if (failed) {
        p->refused = true;
        p->why = *why;
        process_wake(p);
    }
    lock_release(&p->lock);
    return failed;
}

/* ---- the end ---- */

/* A command counts for the arm that its sandbox was made in. It fails by the provider's fault when
 * it could not be started, or was lost with its sandbox. With the locks of session and process
 * held. */
static void count_for_arm(const struct process *p)
{
    const struct session *s = p->session;
    bool failed = p->refused ? router_is_failure(&p->why) : p->stop == STOP_SANDBOX && s->lost;

    if (router_command_ended(s->all->c.router, s->arm, failed, clock_now() - p->started_ns))
        log_warn("router.stop", "arm=%s session=%s", s->arm, s->info.id);
}

/* Everybody is told, once. A client that hears of the end may start the next command at once: the
 * session is free by then. With the locks of session and process held. */
static void tell_end(struct process *p, enum process_state to)
{
    struct session *s = p->session;
    bool live = process_is_live(p);
    if (p->state != to && !process_step(p, to))
        return;

    if (live && p->shadowed)
        shadow_ended(p);
    if (live && s->arm && !p->worker && !p->unseen)
        count_for_arm(p);
    if (live) {
        p->ended_ms = time_now_ms();
        p->duration_us = (clock_now() - p->started_ns) / 1000;
        /* The request's variables were needed to read the shell's state. */
        msg_list_writer_done(&p->env);
        p->env = MSG_LIST_WRITER_INIT;
        if (s->running)
            s->running--;
        s->ending -= p->is_ending;
        p->is_ending = false;
        if (p->looks)
            s->looking--;
        else
            session_used(s);
        if (p->updates_state)
            s->shell_busy = false;
        pthread_cond_broadcast(&s->changed);
    }
    process_wake(p);
}

void process_finish(struct process *p)
{
    struct session *s = p->session;
    lock_take(&s->lock);
    lock_take(&p->lock);
    if (p->state == PROCESS_EXITED)
        tell_end(p, PROCESS_ENDED);
    lock_release(&p->lock);
    lock_release(&s->lock);
}

void process_finish_late(struct process *p)
{
    if (p->state != PROCESS_FINISHING || process_waits_for_space(p))
        return;

    process_step(p, PROCESS_EXITED);
    recorder_add(p, TASK_END, 0);
}

/* Takes over the state that a shell command left. False when it has to be stored, which is done
 * before anybody hears of the end. */
static bool take_state(struct process *p)
{
    struct session *s = p->session;
    bool updated = session_take_state(s, p);

    lock_take(&p->lock);
    p->state_updated = updated;
    lock_release(&p->lock);

    lock_take(&s->lock);
    bool stored = !s->dirty;
    lock_release(&s->lock);
    return stored;
}

/* May something in the command have been killed for memory, although it went well? One of its
 * processes needed a good part of the limit then. With the process's lock held. */
bool process_used_much(const struct process *p)
{
    return !p->worker && p->end.max_rss > p->session->info.spec.limits.memory / 8;
}

void process_on_exit(struct process *p, const struct msg_exited *end)
{
    lock_take(&p->lock);
    bool again = prepared_on_exit(p, end->pid); /* a shell that waited has ended, not the command */
    if (p->state != PROCESS_RUNNING || again) {
        lock_release(&p->lock); /* a box may tell what it likes, and as often */
        return;
    }

    p->end = *end;
    if (!p->pid)
        p->pid = end->pid;
    process_drain(p);

    /* Nobody is told of the end while the output is not whole. */
    bool whole = !process_waits_for_space(p);
    process_step(p, whole ? PROCESS_EXITED : PROCESS_FINISHING);
    if (!whole)
        process_wake(p);
    bool simple = end->status == 0 && p->stop == STOP_NONE && !process_used_much(p);
    bool owed = p->end_owed = whole && p->listening;
    lock_release(&p->lock);

    if (p->updates_state)
        simple &= take_state(p);
    if (!whole)
        return;

    bool told = simple || p->worker;
    if (told)
        process_finish(p);

    /* The thread that waited is about to answer; the rest is in no hurry. One that listens sees to
     * it when it has answered. */
    if (!owed)
        recorder_add(p, TASK_END, told ? SETTLE_AFTER : 0);
}

void process_on_refused(struct process *p, const struct pd_err *why)
{
    lock_take(&p->lock);
    bool again = prepared_on_exit(p, 0);
    bool first = p->state == PROCESS_RUNNING && !again;
    if (first) {
        process_step(p, PROCESS_EXITED);
        p->refused = true;
        p->why = *why;
    }
    lock_release(&p->lock);
    if (!first)
        return;

    process_finish(p);
    recorder_add(p, TASK_END, 0);
}

void process_settle(struct process *p)
{
    lock_take(&p->lock);
    if (p->state == PROCESS_ENDED)
        process_step(p, PROCESS_SETTLED);
    lock_release(&p->lock);
}

bool process_is_settled(struct process *p)
{
    lock_take(&p->lock);
    bool settled = p->state == PROCESS_SETTLED && process_streams_are_over(p);
    lock_release(&p->lock);
    return settled;
}

void process_bury(struct process *p)
{
    struct session *s = p->session;
    process_leave_pump(p); /* not with the lock that the callbacks take */

    lock_take(&p->lock);
    if (!process_has_end(p)) {
        p->end.status = SIGKILL;
        if (p->stop == STOP_NONE)
            p->stop = STOP_SANDBOX;
    }

    /* Nobody can write any more: what is left in the pipes is all there is. */
    process_drain(p);
    if (p->state == PROCESS_RUNNING || p->state == PROCESS_FINISHING)
        process_step(p, PROCESS_EXITED);
    lock_release(&p->lock);

    lock_take(&s->lock);
    lock_take(&p->lock);
    tell_end(p, PROCESS_BURIED);
    lock_release(&p->lock);
    lock_release(&s->lock);
}

void process_explain(struct process *p)
{
    struct session *s = p->session;
    struct box_usage u = {0};
    struct pd_err e;
    int known = -1;

    rw_read(&s->box_use);
    if (s->box)
        known = box_get_usage(s->box, &u, &e);
    rw_release(&s->box_use);

    lock_take(&p->lock);
    bool failed = p->end.status != 0 || p->stop != STOP_NONE;
    lock_release(&p->lock);

    /* What was killed beside one that went well may be another's that still runs. */
    bool oom = false, pids = false;
    lock_take(&s->lock);
    if (known == 0 && (failed || s->running == 1)) {
        /* The counters seen may be of the box before: it slept meanwhile. */
        oom = u.oom_kills > s->oom_seen;
        pids = u.pids_refused > s->pids_seen;
        s->oom_seen = u.oom_kills;
        s->pids_seen = u.pids_refused;
    }
    lock_release(&s->lock);

    lock_take(&p->lock);
    if (p->stop == STOP_NONE && failed) {
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
    lock_release(&p->lock);
}

void process_explain_delay(struct process *p, struct pd_err *e)
{
    struct session *s = p->session;
    struct box_usage u = {0};
    struct pd_err ignored;

    rw_read(&s->box_use);
    bool frozen = s->box && box_get_usage(s->box, &u, &ignored) == 0 && u.frozen;
    rw_release(&s->box_use);

    lock_take(&s->lock);
    bool ours = s->info.state == SESSION_PAUSED;
    lock_release(&s->lock);

    if (frozen && !ours)
        pd_fail(e, PD_TIMEOUT,
                "the command did not end in time: its container is paused, and not by this "
                "server; resume it with the engine that paused it");
}
