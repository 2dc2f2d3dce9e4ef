/* The keeper's workers: builders, the sweeper and copiers, each a child of the keeper.
 *
 * A worker has one request at a time. One that does not answer in time is killed and replaced; its
 * request fails.
 *
 * One that dies within a second of its start would die for ever: the pause before the next start
 * doubles, up to half a minute, but for a client that waits for a builder it is a second. After
 * three such deaths in a row whoever waits hears the reason, and so do clients that want to know of
 * TROUBLE, until it has answered something or lived for a second. A keeper that is to end gives
 * such a worker up. */
#include "jail/keeper_state.h"

#include "base/banned.h"
#include "base/beside.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/secret_env.h"
#include "jail/worker_death.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

/* libc keeps a few signals to itself, but the caller may have ignored those too. Nothing but zeros
 * is the default action, whatever the layout. */
static void reset_signal(int number)
{
    static const uint64_t zeros[8];
    syscall(SYS_rt_sigaction, number, zeros, NULL, sizeof(uint64_t));
}

/* With descriptors 3 and 4 as keeper_kind.h has them, and no other. */
static _Noreturn void become_program(struct keeper *k)
{
    char owner[24];
    const char *argv[11 + KEEPER_OPTIONS_MAX] = {
        NULL,        "broker",  k->kind->name,        "--instance",
        k->instance, "--state", k->config->state_dir, "--owner",
        owner};
    unsigned n = 9;

    snprintf(owner, sizeof owner, "%u", (unsigned)k->builder_config.owner);
    for (const char *const *o = k->config->options; o && *o && n < 9 + KEEPER_OPTIONS_MAX; o++)
        argv[n++] = *o;

    secret_env_unseal(k->secrets, k->kind->name);

    /* Copies first: each may have had the other's number. */
    bool far = k->kind->may_be_far;
    int init = fcntl(k->init_file, F_DUPFD, 6), box = far ? fcntl(k->box_file, F_DUPFD, 6) : -1;
    if (fcntl(3, F_SETFD, 0) < 0 || dup2(init, 4) < 0 || (far && dup2(box, 5) < 0))
        _exit(1);
    syscall(SYS_close_range, far ? 6 : 5, ~0u, 0);
    exec_beside(k->kind->program, argv);
    _exit(127);
}

static const char *worker_title(const struct keeper *k, const struct worker *w)
{
    if (k->kind->program)
        return "broker";
    return w->builds ? "builder" : w->copies ? "copier" : "sweeper";
}

void keeper_child_begin(const struct keeper *k, const char *title)
{
    /* What a terminal signals is its client's; a keeper of its own has left it already. */
    if (k->config->inside)
        setsid();
    char name[32];
    snprintf(name, sizeof name, "paddock-%s", title);
    prctl(PR_SET_NAME, name, 0, 0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);

    /* The many descriptors that the keeper may have are its own; jails inherit what is set here. */
    (void)setrlimit(RLIMIT_NOFILE, &k->files);

    /* Signals that the keeper's caller ignored would be ignored in every jail: an exec keeps that.
     */
    for (int i = 1; i < SIGNALS; i++)
        reset_signal(i);
}

static _Noreturn void worker_child(struct keeper *k, const struct worker *w, int sock)
{
    const struct builder_config *config = w->builds   ? &k->builder_config
                                          : w->copies ? &k->copier_config
                                                      : &k->sweeper_config;

    keeper_child_begin(k, worker_title(k, w));
    /* A keeper that is part of its client ends with it, and its builder sweeps: until then nobody
     * else gets the range. Copied first: it may have the number that the socket gets. */
    bool holds = k->config->inside && k->ranges.fd >= 0;
    int ranges = holds ? fcntl(k->ranges.fd, F_DUPFD_CLOEXEC, 5) : -1;
    if (dup3(sock, 3, O_CLOEXEC) < 0 && errno != EINVAL)
        _exit(1);
    if (holds && dup3(ranges, 4, O_CLOEXEC) < 0)
        _exit(1);

    /* Init inherits the standard streams: they must not be the keeper's terminal or log. */
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 3; i++)
        if (dup2(null, i) < 0)
            _exit(1);

    if (k->kind->program)
        become_program(k);
    syscall(SYS_close_range, holds ? 5 : 4, ~0u, 0);
    k->kind->worker(config, 3);
    _exit(0);
}

int worker_start(struct keeper *k, struct worker *w)
{
    int pair[2];

    files_lend(k); /* a keeper without workers could not even sweep */
    int made = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair);
    if (made < 0) {
        made = -errno;
        files_hold(k);
        return made;
    }

    auto_fd ours = pair[0], theirs = pair[1];
    pid_t pid = fork();
    if (pid < 0) {
        made = -errno;
        files_hold(k);
        return made;
    }
    if (pid == 0)
        worker_child(k, w, theirs);

    w->source.kind = SOURCE_WORKER;
    w->pid = pid;
    w->busy = 0;
    w->started_at = clock_now();
    w->patience = k->kind->program ? PULL_PATIENCE : BUILD_PATIENCE;
    w->gone = 0;
    w->prepare_failed = 0;
    w->kit_count = 0;
    w->sock = fd_take(&ours);

    fd_done(&theirs);
    int watched = keeper_watch(k, w->sock, &w->source) < 0 ? -errno : 0;
    files_hold(k);

    return watched;
}

void worker_try(struct keeper *k, struct worker *w)
{
    int r = worker_start(k, w);
    if (r < 0)
        worker_failed(k, w, strerror(-r));
}

void worker_close(struct keeper *k, struct worker *w)
{
    epoll_ctl(k->epoll, EPOLL_CTL_DEL, w->sock, NULL);
    fd_done(&w->sock);
    w->pid = 0;
    w->busy = 0;
}

/* The pid of a worker that is gone is 0, and kill(0) would be the keeper's own group, with the
 * process that started it. */
void worker_kill(const struct worker *w)
{
    if (w->pid > 0)
        kill(w->pid, SIGKILL);
}

struct worker *worker_by_pid(struct keeper *k, pid_t pid)
{
    for (unsigned i = 0; i < k->worker_count; i++)
        if (k->workers[i].pid == pid)
            return &k->workers[i];
    return NULL;
}

/* ---- requests to them ---- */

/* Returns -1 when the worker is dead, which SIGCHLD is about to tell; nothing was asked then. */
uint64_t worker_patience(const struct worker *w, enum wire_type type)
{
    if (type == WIRE_SWEEP)
        return SWEEP_PATIENCE;

    /* Nothing is fetched for these. */
    bool is_short =
        type == WIRE_STRIKE || type == WIRE_THAW || type == WIRE_CHECK || type == WIRE_STEER;
    return is_short && w->patience > SWEEP_PATIENCE ? SWEEP_PATIENCE : w->patience;
}

int worker_send(struct worker *w, enum wire_type type, struct wire_id id, const struct buf *payload,
                const int *fds, unsigned fd_count)
{
    struct wire_head head = {
        .type = (uint16_t)type, .flags = type == WIRE_BUILD ? BUILD_TELL : 0, .id = id};

    /* It is idle, so its socket is empty and takes any frame. */
    if (wire_send(w->sock, &head, payload, fds, fd_count, 0) < 0) {
        w->gone = 1;
        worker_kill(w); /* if it should be alive: it is of no use */
        return -1;
    }

    w->busy = type;
    w->request = id;
    w->asked_at = clock_now();
    w->deadline = deadline_in(worker_patience(w, type));

    return 0;
}

void worker_build(struct keeper *k, struct worker *w, struct kjail *j)
{
    struct msg_create m;
    struct pd_err e;

    if (msg_create_decode(&j->payload, &m, &e) < 0)
        abort(); /* it was decoded when it came in */

    /* A kit that fits anything but its slot is the builder's: the keeper only knows the names. */
    if (w->kit_count) {
        struct kit_name kit = w->kits[--w->kit_count];
        j->slot = kit.slot;
        memcpy(j->name, kit.name, sizeof j->name);
    } else if (k->has_ranges && (j->slot = range_take_idle(&k->ranges, &e)) == RANGE_NONE) {
        struct client *c = client_find(k, j->client);
        if (c)
            client_send_error(k, c, j->id, &e);
        jail_forget(k, j);
        return;
    } else {
        keeper_next_name(k, j->name);
    }

    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_build b = {.slot = j->slot, .name = j->name, .spec = m.spec};
    msg_build_encode(&out, &b);
    int fds[2] = {j->init_end, j->netns};
    if (worker_send(w, WIRE_BUILD, j->id, &out, fds, j->netns >= 0 ? 2 : 1) < 0) {
        /* It stays in the queue for another one; the name and the range were this worker's. */
        keeper_abandon(k, j->name, j->slot);
        j->slot = RANGE_NONE;
        return;
    }

    jail_dequeue(k, j);
    j->state = JAIL_BUILDING;
    fd_done(&j->init_end);
    fd_done(&j->netns);
}

void worker_prepare(struct keeper *k, struct worker *w)
{
    struct pd_err e;
    struct kit_name *kit = &w->kits[w->kit_count];

    kit->slot = k->has_ranges ? range_take_idle(&k->ranges, &e) : RANGE_NONE;
    if (k->has_ranges && kit->slot == RANGE_NONE)
        return;

    keeper_next_name(k, kit->name);
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_prepare m = {.slot = kit->slot, .name = kit->name};
    msg_prepare_encode(&out, &m);
    if (worker_send(w, WIRE_PREPARE, wire_id_new(), &out, NULL, 0) < 0)
        range_release(&k->ranges, kit->slot);
}

void worker_sweep(struct worker *w, struct kjail *j, enum wire_type type)
{
    int sweep = type == WIRE_SWEEP;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_sweep m = {.name = j->name, .group = ""};

    msg_sweep_encode(&out, &m);

    int fds[2];
    unsigned count = 0;
    if (sweep && j->mntns >= 0)
        fds[count++] = j->mntns;
    if (sweep && j->control >= 0)
        fds[count++] = j->control;

    /* A dead worker is asked again, or another one. */
    if (worker_send(w, type, j->id, &out, fds, count) == 0 && sweep) {
        fd_done(&j->mntns);
        fd_done(&j->control);
    }
}

void worker_cancel(struct keeper *k, const struct kjail *j)
{
    struct wire_head head = {.type = WIRE_CANCEL, .id = j->id};
    if (!k->kind->is_foreign)
        return; /* builders are done in a moment */

    for (unsigned i = 0; i < k->worker_count; i++) {
        struct worker *w = &k->workers[i];
        if (w->busy != WIRE_BUILD || !wire_id_equal(w->request, j->id))
            continue;

        /* Its socket is empty. Whoever does not give up in time is killed. */
        if (k->kind->takes_cancel)
            (void)wire_send(w->sock, &head, NULL, NULL, 0, 0);
        deadline soon = deadline_in(CANCEL_PATIENCE);
        if (soon < w->deadline)
            w->deadline = soon;
    }
}

/* The worker of one that was to end anyway has died: its client hears that it is gone when it is,
 * for half a box may be running. */
static void cancelled_died(struct keeper *k, struct kjail *j)
{
    j->owes_error = j->owes_gone = true;
    j->deadline = deadline_in(WHY_PATIENCE);
    jail_set_dead(k, j);
    j->wants_strike = 1;
}

/* A jail's build failed, or its builder died. */
static void build_failed(struct keeper *k, struct kjail *j, const struct pd_err *e)
{
    struct client *c = client_find(k, j->client);
    if (c)
        client_send_error(k, c, j->id, e);
    if (j->destroy_client)
        jail_send_gone(k, j, GONE_DESTROYED);

    /* The builder removes its groups after a failure, but not when it died; and then half a jail
     * may be living there. Striking and sweeping is safe either way. */
    jail_set_dead(k, j);
    j->wants_strike = 1;
}

static void built(struct keeper *k, struct kjail *j, struct frame *f, uint64_t asked_at)
{
    struct msg_built m;
    struct pd_err e;

    if (msg_built_decode(&f->payload, &m, &e) < 0 || (f->fd_count != 4 && f->fd_count != 6)) {
        pd_fail(&e, PD_PROTOCOL, "a builder's answer with %u descriptors", f->fd_count);
        build_failed(k, j, &e);
        return;
    }

    jail_set_pid(k, j, m.init_pid);
    j->is_far = f->head.flags & BOX_IS_FAR;
    j->rung = m.rung < k->kind->rung ? m.rung : k->kind->rung; /* a program may claim anything */
    j->on_image = f->head.flags & BUILT_ON_IMAGE;
    auto_fd cgroup_dir = frame_take_fd(f, 0);
    j->devpts = frame_take_fd(f, 1);
    j->lock = m.named ? frame_take_fd(f, 2) : -1;
    j->pidfd = k->kind->is_foreign ? frame_take_fd(f, 2) : -1;
    j->mntns = m.has_mntns ? frame_take_fd(f, 3) : -1;
    j->gate[0] = frame_take_fd(f, 4);
    j->gate[1] = frame_take_fd(f, 5);
    j->group = k->kind->has_own_groups ? fcntl(cgroup_dir, F_DUPFD_CLOEXEC, 0) : -1;
    j->state = JAIL_RUNNING;
    buf_done(&j->payload);

    int watched = jail_watch_init(k, j);
    if (watched == -EBADF) {
        pd_fail(&e, PD_PROTOCOL, "a broker's answer without a pidfd of init");
        build_failed(k, j, &e);
        return;
    }
    if (watched < 0 || keeper_early_death(k, m.init_pid, asked_at)) {
        jail_release_root(j);
        jail_send_gone(k, j, GONE_DIED);
        jail_set_dead(k, j);
        return;
    }

    if (j->adopt >= 0)
        kit_built(j);
    if (j->doomed) {
        j->owes_error = true;
        jail_doom(k, j);
        return;
    }

    safe_tell_jail(k, j); /* before anybody hears of it */
    struct client *c = client_find(k, j->client);
    if (c)
        jail_send_created(k, c, j, cgroup_dir);
}

/* ---- workers that die as soon as they start ---- */

static void fail_queue(struct keeper *k)
{
    struct pd_err e;

    pd_fail(&e, PD_INTERNAL, "%s", k->trouble);
    while (k->queue_first) {
        struct kjail *j = k->queue_first;
        struct client *c = client_find(k, j->client);
        if (c)
            client_send_error(k, c, j->id, &e);
        jail_forget(k, j);
    }
}

/* A keeper that stops needs workers, too, while there is something to sweep. */
int workers_wanted(const struct keeper *k)
{
    return !k->stopping || k->jail_count > k->undead_count || chores_pending(k);
}

static int is_given_up(const struct worker *w)
{
    return w->pid <= 0 && w->early_deaths >= EARLY_DEATHS_MAX;
}

int sweepers_given_up(const struct keeper *k)
{
    for (unsigned i = 0; i < k->worker_count; i++)
        if (k->workers[i].sweeps && !is_given_up(&k->workers[i]))
            return 0;
    return 1;
}

deadline worker_due(const struct keeper *k, const struct worker *w)
{
    deadline soon = w->ended_at + (k->stopping ? STOPPING_PAUSE : RESTART_AFTER);

    if (k->stopping)
        return is_given_up(w) ? DEADLINE_NONE : soon;
    return w->builds && k->queue_first && soon < w->restart_at ? soon : w->restart_at;
}

void client_send_trouble(struct keeper *k, struct client *c)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_trouble m = {.text = k->trouble};

    if (!c->wants_trouble)
        return;
    msg_trouble_encode(&out, &m);
    client_send(k, c, (struct wire_head){.type = WIRE_TROUBLE, .epoch = c->epoch}, &out, NULL, 0);
}

static void trouble_tell(struct keeper *k)
{
    for (struct client *c = k->clients; c; c = c->next)
        if (c->serial)
            client_send_trouble(k, c);
}

static void trouble_over(struct keeper *k)
{
    for (unsigned i = 0; i < k->worker_count; i++)
        if (k->workers[i].early_deaths >= EARLY_DEATHS_MAX)
            return; /* another one dies still */

    k->trouble[0] = 0;
    trouble_tell(k);
}

/* Clients hear of it once, not at every death. */
static void trouble_begins(struct keeper *k, const struct worker *w, const char *why)
{
    bool known = k->trouble[0] != 0;

    snprintf(k->trouble, sizeof k->trouble, "%ss die as soon as they start: %.190s",
             worker_title(k, w), why);
    if (!known)
        trouble_tell(k);
}

void worker_failed(struct keeper *k, struct worker *w, const char *why)
{
    unsigned doublings = w->early_deaths < DOUBLINGS_MAX ? w->early_deaths : DOUBLINGS_MAX;

    w->ended_at = clock_now();
    w->restart_at = deadline_in(RESTART_AFTER << doublings);

    if (++w->early_deaths < EARLY_DEATHS_MAX)
        return;
    trouble_begins(k, w, why);
    if (w->builds)
        fail_queue(k);
}

void worker_settled(struct keeper *k, struct worker *w)
{
    w->early_deaths = 0;
    if (k->trouble[0])
        trouble_over(k);
}

/* ---- their answers, and their end ---- */

/* The words of a worker on a box's end, with DONE, or "". It lives as long as the frame. */
static const char *reason_in(const struct frame *f)
{
    struct msg_key m;
    return f->payload.len && msg_key_decode(&f->payload, &m, NULL) == 0 ? m.key : "";
}

/* It is tried again. But an engine may be away for ever: a keeper that ends leaves its containers
 * to the brokers' last sweep, and to the next keeper. */
static void sweep_failed(struct keeper *k, struct kjail *j, const struct pd_err *e)
{
    char why[MSG_WHY_MAX + 1];

    snprintf(why, sizeof why, "it ended, and why cannot be found out: %.200s", e->msg);
    jail_tell_why(k, j, why);

    if (k->stopping && k->kind->is_foreign)
        jail_forget(k, j);
    else
        j->sweep_after = deadline_in(SWEEP_RETRY);
}

/* News of a build on its way are passed on to a client that wants them and has room. */
static void worker_progress(struct keeper *k, const struct worker *w, const struct frame *f)
{
    struct msg_progress m;
    struct kjail *j = w->busy == WIRE_BUILD && wire_id_equal(f->head.id, w->request)
                          ? jail_find(k, w->request)
                          : NULL;
    struct client *c = j && j->tell ? client_find(k, j->client) : NULL;

    if (c && msg_progress_decode(&f->payload, &m, NULL) == 0)
        client_send_or_drop(c, (struct wire_head){.type = WIRE_PROGRESS, .id = j->id}, &f->payload);
}

void worker_reply(struct keeper *k, struct worker *w, struct frame *f)
{
    enum wire_type was = w->busy;
    if (f->head.type == WIRE_PROGRESS) {
        worker_progress(k, w, f);
        return;
    }

    struct kjail *j = jail_find(k, w->request);
    struct pd_err e;
    w->busy = 0;
    worker_settled(k, w); /* one that answers did not die as soon as it started */
    if (w->chore) {
        chore_done(k, w, f);
        return;
    }

    if (was == WIRE_PREPARE) {
        if (f->head.type == WIRE_DONE) {
            w->kit_count++;
        } else {
            range_release(&k->ranges, w->kits[w->kit_count].slot);
            w->prepare_failed = 1; /* do not try again and again; requests tell the reason */
        }
        return;
    }

    if (!j)
        return;

    if (was == WIRE_BUILD) {
        if (f->head.type == WIRE_BUILT) {
            built(k, j, f, w->asked_at);
        } else {
            if (j->adopt >= 0)
                kit_failed(k, w, j);
            msg_error_raise(f, &e);
            build_failed(k, j, &e);
        }
    } else if (was == WIRE_SWEEP) {
        if (f->head.type == WIRE_DONE) {
            jail_tell_why(k, j, reason_in(f));
            jail_forget(k, j);
        } else {
            msg_error_raise(f, &e);
            sweep_failed(k, j, &e);
        }
    }
}

void worker_lost(struct keeper *k, struct worker *w, int status)
{
    char why[WORKER_DEATH_MAX];
    struct kjail *j = w->busy ? jail_find(k, w->request) : NULL;
    enum wire_type was = w->busy;

    worker_death_text(status, k->kind->program, why);
    if (was == WIRE_PREPARE)
        w->kit_count++; /* half made: its groups must be removed as well */

    worker_close(k, w);
    if (w->chore)
        chore_done(k, w, NULL);
    for (unsigned i = 0; i < w->kit_count; i++)
        keeper_abandon(k, w->kits[i].name, w->kits[i].slot);
    w->kit_count = 0;

    if (j && was == WIRE_BUILD && j->doomed && k->kind->is_foreign) {
        cancelled_died(k, j);
    } else if (j && was == WIRE_BUILD) {
        struct pd_err e;
        pd_fail(&e, PD_LOST, "the %s died while it made the %s: %.190s", worker_title(k, w),
                k->kind->is_jail ? "jail" : "box", why);
        build_failed(k, j, &e);
    } else if (j && was == WIRE_SWEEP) {
        jail_tell_why(k, j, "");
        j->sweep_after = deadline_in(SWEEP_RETRY);
    }

    if (clock_now() - w->started_at < RESTART_AFTER) {
        worker_failed(k, w, why);
        return;
    }
    worker_settled(k, w);
    if (workers_wanted(k))
        worker_try(k, w);
}
