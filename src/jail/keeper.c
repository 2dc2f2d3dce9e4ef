/* How this works: an epoll loop over clients, workers (builders and the sweeper) and SIGCHLD.
 *
 *   CREATE   a complete kit fits: ADOPT to its init, CREATED to the client
 *            else queued -> a free builder gets BUILD -> BUILT -> CREATED to the client
 *   DESTROY  SIGKILL to init -> SIGCHLD -> GONE to the client -> SWEEP -> the uid range is free
 *
 * Where the keeper is part of its client's process (keeper_start_inside) the client has the loop:
 * it calls both halves of a turn, `go_on` and `hear`, and waits in between.
 *
 * A worker has one request at a time. One that does not answer in time is killed and replaced; its
 * request fails. A jail that does not die is struck by the sweeper (thawed and killed by cgroup)
 * and after five seconds called undead: reported, and its range stays taken. */
#include "jail/keeper.h"

#include "jail/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

static void jail_died(struct keeper *k, struct kjail *j)
{
    enum gone_how how = j->doomed ? GONE_DESTROYED : GONE_DIED;

    if (j->state == JAIL_KIT)
        k->kits_at = deadline_in(RESTART_AFTER); /* it may be that none lives long here */

    jail_release_root(j); /* before anybody hears of it: a client may use it again at once */

    /* Why an engine's container ended, the engine knows: its broker is told with the sweep. */
    if (k->kind->is_foreign && how == GONE_DIED) {
        j->owes_gone = true;
        j->deadline = deadline_in(WHY_PATIENCE);
    } else {
        jail_send_gone(k, j, how);
    }
    jail_set_dead(k, j);
}

static void reaped(struct keeper *k, pid_t pid, int status)
{
    struct kjail *j = jail_by_pid(k, pid);
    struct worker *w = worker_by_pid(k, pid);

    if (images_reaped(k, pid))
        return;
    if (j)
        jail_died(k, j);
    else if (w)
        worker_lost(k, w, status);
    else
        keeper_note_death(k, pid);
}

/* Everybody who has died. The kernel looks through all children for that: with thousands of jails
 * it takes long, so it is not done for every death. */
static void reap_all(struct keeper *k)
{
    pid_t pid;
    int status;

    k->reap_at = DEADLINE_NONE;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        reaped(k, pid, status);
}

/* Those whose death is expected, and the one that the signal names. Signals of others may have been
 * merged with that one: they are looked for a little later. */
static void reap_expected(struct keeper *k, pid_t named)
{
    int status;

    k->reap_at = deadline_in(REAP_AFTER);
    if (waitpid(named, &status, WNOHANG) > 0)
        reaped(k, named, status);

    for (struct kjail *j = k->watched, *following; j; j = following) {
        following = j->watched_next;
        pid_t pid = j->pid;
        if (j->state == JAIL_DYING && waitpid(pid, &status, WNOHANG) > 0)
            reaped(k, pid, status);
    }
}

/* When kits are to be made, if some are lacking. */
static deadline kits_due(struct keeper *k)
{
    deadline quiet = kits_quiet_at(k), at = quiet > k->kits_at ? quiet : k->kits_at;

    for (unsigned i = 0; i < k->worker_count && !deadline_passed(at); i++)
        if (kits_lacking(k, &k->workers[i]))
            return at;
    return DEADLINE_NONE;
}

/* Jails and workers whose time is up. Returns when to look again. */
static deadline check_deadlines(struct keeper *k)
{
    if (deadline_passed(k->reap_at))
        reap_all(k);

    deadline next = kits_due(k);
    if (k->reap_at < next)
        next = k->reap_at;
    deadline chore = chore_next_due(k);
    if (chore < next)
        next = chore;

    for (struct kjail *j = k->watched, *following; j; j = following) {
        following = j->watched_next;
        deadline d = j->state == JAIL_DEAD    ? j->sweep_after
                     : j->state == JAIL_DYING ? j->deadline
                                              : DEADLINE_NONE;

        if (j->state == JAIL_DYING && deadline_passed(d)) {
            if (j->struck) {
                j->state = JAIL_UNDEAD;
                k->undead_count++;
                jail_send_gone(k, j, GONE_UNDEAD);
                d = DEADLINE_NONE;
            } else {
                if (k->kind->ends_itself)
                    jail_signal_init(k, j, SIGKILL);
                j->struck = 1;
                j->wants_strike = 1;
                j->deadline = deadline_in(UNDEAD_AFTER);
                d = 0;
                next = clock_now(); /* a worker must be told */
            }
        }

        if (j->owes_gone && deadline_passed(j->deadline))
            jail_tell_why(k, j, "");
        else if (j->owes_gone && j->deadline < next)
            next = j->deadline;

        /* A deadline that has passed waits for a worker, not for the clock. */
        if (d < next && !deadline_passed(d))
            next = d;
    }

    for (unsigned i = 0; i < k->worker_count; i++) {
        struct worker *w = &k->workers[i];
        if (w->pid <= 0 && workers_wanted(k)) {
            if (deadline_passed(worker_due(k, w)))
                worker_try(k, w);
            deadline again = w->pid > 0 ? clock_now() /* it can be given something to do */
                                        : worker_due(k, w);
            if (again < next)
                next = again;
        }

        deadline settled = w->started_at + RESTART_AFTER;
        if (w->pid > 0 && w->early_deaths && deadline_passed(settled))
            worker_settled(k, w);
        else if (w->pid > 0 && w->early_deaths && settled < next)
            next = settled;

        if (!w->busy || w->pid <= 0)
            continue;
        if (deadline_passed(w->deadline)) {
            worker_kill(w); /* SIGCHLD tells when it is gone */
            w->gone = 1;    /* its answer may be here already, but it can do nothing more */
            w->deadline = DEADLINE_NONE;
        }
        if (w->deadline < next && !deadline_passed(w->deadline))
            next = w->deadline;
    }

    return next;
}

/* Gives every idle worker something to do: strikes first, then creations, then removals, then
 * kits. */
static void pump(struct keeper *k)
{
    for (unsigned i = 0; i < k->worker_count; i++) {
        struct worker *w = &k->workers[i];
        if (w->busy || w->gone || w->pid <= 0)
            continue;

        struct kjail *strike = NULL, *dead = NULL;
        if (w->sweeps)
            for (struct kjail *j = k->watched; j && !strike; j = j->watched_next) {
                if (j->wants_strike)
                    strike = j;
                else if (!dead && j->state == JAIL_DEAD && !jail_is_being_swept(k, j) &&
                         (!j->sweep_after || deadline_passed(j->sweep_after)))
                    dead = j;
            }

        struct chore *chore = strike ? NULL : chore_take(k, w);
        if (chore) {
            chore_send(k, w, chore);
        } else if (strike) {
            worker_sweep(w, strike, WIRE_STRIKE);
            strike->wants_strike = w->gone;
        } else if (w->builds && k->queue_first) {
            worker_build(k, w, k->queue_first);
        } else if (dead) {
            worker_sweep(w, dead, WIRE_SWEEP);
        } else if (!k->stopping && deadline_passed(kits_quiet_at(k)) && kits_lacking(k, w)) {
            kits_refill(k, w);
        }
    }
}

static void on_client(struct keeper *k, struct client *c, uint32_t events)
{
    struct pd_err e;

    if (events & EPOLLOUT)
        client_flush(k, c);

    /* A client that does not read its answers may not ask for more; one that is gone does not ask,
     * but what it said last holds. */
    while (c->serial && (!c->out_first || events & EPOLLHUP)) {
        frame_reset(&k->in);
        int r = wire_recv(c->sock, &k->in, 0, &e);
        if (r < 0 && e.code == PD_TIMEOUT)
            return;
        if (r < 0 && e.code == PD_CAPACITY && k->in.head.type) {
            client_send_error(k, c, k->in.head.id, &e); /* no reason to end all that it has */
            continue;
        }
        if (r <= 0) {
            client_gone(k, c);
            return;
        }
        client_request(k, c, &k->in);
    }

    if (c->serial && events & (EPOLLHUP | EPOLLERR))
        client_gone(k, c);
}

static void on_worker(struct keeper *k, struct worker *w)
{
    struct pd_err e;

    if (w->sock < 0)
        return; /* its death was among the same events */

    frame_reset(&k->in);
    int r = wire_recv(w->sock, &k->in, 0, &e);
    if (r > 0)
        worker_reply(k, w, &k->in);
    else if (r == 0 || e.code != PD_TIMEOUT) {
        epoll_ctl(k->epoll, EPOLL_CTL_DEL, w->sock, NULL); /* dead; SIGCHLD does the rest */
        if (r < 0)
            worker_kill(w); /* what it said is lost, so nobody knows what it did */
    }
}

static void on_signal(struct keeper *k)
{
    struct signalfd_siginfo info;

    while (read(k->signals, &info, sizeof info) == sizeof info)
        if (info.ssi_signo == SIGCHLD)
            reap_expected(k, (pid_t)info.ssi_pid);
        else
            k->stopping = 1;
}

/* An init that is not our child has ended. */
static void on_init(struct keeper *k, struct kjail *j)
{
    if (j->pidfd < 0)
        return; /* its end was among the same events */
    jail_died(k, j);
}

static void stop_everything(struct keeper *k)
{
    for (unsigned b = 0; b < BUCKETS; b++)
        for (struct kjail *j = k->jails[b], *next; j; j = next) {
            next = j->next;
            jail_doom(k, j);
        }

    copies_end(k, 0);
    k->stop_begun = 1;
}

/* Where nobody can sweep any more, jails that have died are left to the next keeper's workers. */
static int finished(const struct keeper *k)
{
    if (k->stopping && sweepers_given_up(k) && !jails_living(k))
        return 1;
    if (k->config->socket_path)
        return k->stopping && k->jail_count == k->undead_count && !chores_pending(k);
    return !k->client_count && k->jail_count == k->undead_count;
}

/* Does what there is to do without waiting. Returns when to look again. */
static deadline go_on(struct keeper *k)
{
    if (!k->config->socket_path && !k->client_count)
        k->stopping = 1; /* kits would wait for nobody */
    if (k->stopping && !k->stop_begun)
        stop_everything(k);

    (void)check_deadlines(k); /* before pump: what it finds due, workers do */
    pump(k);
    if (k->jail_count)
        (void)keeper_cgroups(k); /* makes them: while a builder works, and before it needs them */
    return check_deadlines(k);
}

static int hear(struct keeper *k, int timeout_ms, struct pd_err *e)
{
    struct epoll_event events[64];
    int n = epoll_wait(k->epoll, events, 64, timeout_ms);
    if (n < 0 && errno != EINTR)
        return pd_fail_sys(e, "wait for events");

    for (int i = 0; i < n; i++) {
        struct source *s = events[i].data.ptr;
        switch (s->kind) {
        case SOURCE_SIGNAL:
            on_signal(k);
            break;
        case SOURCE_LISTENER:
            client_accept(k);
            break;
        case SOURCE_CLIENT:
            on_client(k, (struct client *)s, events[i].events);
            break;
        case SOURCE_WORKER:
            on_worker(k, (struct worker *)s);
            break;
        case SOURCE_SAFE:
            safe_heard(k);
            break;
        case SOURCE_INIT:
            on_init(k, (struct kjail *)s);
            break;
        case SOURCE_NONE:
            break;
        }
    }

    frame_reset(&k->in); /* descriptors that nobody took are not held while it waits */
    lists_go_on(k);      /* a client that had one may be gone */
    client_collect(k);
    return 0;
}

static int loop(struct keeper *k, struct pd_err *e)
{
    while (!finished(k)) {
        /* What is looked at here may be the last that was waited for: then no event comes. */
        deadline next = go_on(k);
        if (finished(k))
            break;
        if (hear(k, deadline_poll_ms(next), e) < 0)
            return -1;
    }

    return 0;
}

struct keeper *keeper_start_inside(int sock, struct pd_err *e)
{
    static struct keeper_config c = {.builders = 1, .inside = true};

    signal(SIGCHLD, SIG_DFL); /* ignored, children would vanish unreported */
    c.client = sock;
    if (keeper_dirs(&c.state_dir, &c.run_dir, e) < 0)
        return NULL;
    return keeper_new(&c, e);
}

int keeper_inside_fd(const struct keeper *k)
{
    return k->epoll;
}

deadline keeper_inside_due(struct keeper *k)
{
    return go_on(k);
}

void keeper_inside_hear(struct keeper *k)
{
    struct pd_err ignored;
    (void)hear(k, 0, &ignored);
}

/* Waits for a worker whose socket was closed. Did it end as it should, everything swept? */
static int has_swept(pid_t pid, deadline d)
{
    int status = 0;
    pid_t r;

    while ((r = waitpid(pid, &status, WNOHANG)) == 0 && !deadline_passed(d))
        usleep(1000);
    return r == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* When their sockets are closed the workers remove what is left, and end. If all of them are dead,
 * or dying, another one is started for that. */
static void last_sweep(struct keeper *k)
{
    deadline d = deadline_in(LAST_SWEEP);

    for (int attempt = 0; attempt < 3; attempt++) {
        int swept = 0;
        for (unsigned i = 0; i < k->worker_count; i++) {
            pid_t pid = k->workers[i].pid;
            if (pid <= 0)
                continue;
            worker_close(k, &k->workers[i]);
            swept |= has_swept(pid, d);
        }

        if (swept || worker_start(k, &k->workers[k->worker_count - 1]) < 0)
            return;
    }
}

/* One that is no zombie; nobody may have heard yet that it died. */
static bool has_worker(const struct keeper *k)
{
    for (unsigned i = 0; i < k->worker_count; i++) {
        siginfo_t ended = {0};
        pid_t pid = k->workers[i].pid;
        if (pid > 0 && !k->workers[i].gone &&
            waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && !ended.si_pid)
            return true;
    }
    return false;
}

void keeper_inside_end(struct keeper *k)
{
    (void)go_on(k);
    if (!has_worker(k))
        last_sweep(k);
}

int keeper_run(const struct keeper_config *c, struct pd_err *e)
{
    struct keeper *k = keeper_new(c, e);
    if (!k)
        return -1;

    chores_for_old_roots(k);
    int r = loop(k, e);
    last_sweep(k);
    keeper_free(k);
    return r;
}
