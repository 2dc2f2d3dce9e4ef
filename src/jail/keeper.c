/* How this works: an epoll loop over clients, workers (builders and the sweeper) and SIGCHLD.
 *
 *   CREATE   queued -> a free builder gets BUILD -> BUILT -> CREATED to the client
 *   DESTROY  SIGKILL to init -> SIGCHLD -> GONE to the client -> SWEEP -> the uid range is free
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
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#define SPARE_FILES 16u /* that must be free, for a jail to be made */

/* ---- clients ---- */

/* `cgroup_dir` is not kept: with thousands of jails every descriptor counts. */
static void send_created(struct keeper *k, struct client *c, const struct kjail *j, int cgroup_dir)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_created m = {.rung = j->rung,
                            .init_pid = j->pid,
                            .uid_base = identity_host_id(j->slot, 0),
                            .name = j->name};
    msg_created_encode(&out, &m);
    int fds[2] = {cgroup_dir >= 0 ? cgroup_dir : k->null, j->devpts};
    client_send(k, c, (struct wire_head){.type = WIRE_CREATED, .id = j->id}, &out, fds, 2);
}

static void send_gone(struct keeper *k, struct kjail *j, enum gone_how how)
{
    struct client *c = client_find(k, j->destroy_client ? j->destroy_client : j->client);
    if (!c)
        return;
    struct msg_gone m = {.jail = j->id, .how = how};
    if (j->want_stats || how != GONE_DESTROYED) {
        struct cgroup_stats st = {0};
        cgroup_read_stats(keeper_cgroups(k), j->name, &st);
        m.oom_kills = st.oom_kills;
        m.pids_refused = st.pids_refused;
        m.memory_peak = st.memory_peak;
        m.cpu_usec = st.cpu_usec;
    }
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_gone_encode(&out, &m);
    struct wire_id id = j->destroy_client ? j->destroy_request : j->id;
    client_send(k, c, (struct wire_head){.type = WIRE_GONE, .id = id}, &out, NULL, 0);
}

static void destroy(struct keeper *k, struct kjail *j)
{
    if (j->state == JAIL_QUEUED) {
        jail_forget(k, j);
        return;
    }
    j->doomed = 1;
    if (j->state != JAIL_RUNNING)
        return; /* still being built: ended when BUILT comes; or dying already */
    j->state = JAIL_DYING;
    jail_watch(k, j);
    j->struck = 0;
    j->deadline = deadline_in(STRIKE_AFTER);
    if (j->pid > 0)
        kill(j->pid, SIGKILL);
}

static void do_hello(struct keeper *k, struct client *c, struct wire_id id)
{
    struct msg_welcome m = {.instance = k->instance, .layout = keeper_cgroups(k)->layout};
    char missing[256];
    m.rung = builder_best_rung(k->rootless, keeper_cgroups(k)->layout != CGROUP_NONE,
                               keeper_cgroups(k)->why, missing, sizeof missing);
    m.missing = missing;
    c->epoch = ++k->epoch;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_welcome_encode(&out, &m);
    client_send(k, c, (struct wire_head){.type = WIRE_WELCOME, .id = id}, &out, NULL, 0);
}

/* What a server without privilege may ask for. */
static int may_have(const struct client *c, const struct spec *s, unsigned fds, struct pd_err *e)
{
    if (!c->limited)
        return 0;
    if (s->bind_count || s->root_dir[0] || s->network != NETWORK_NONE || fds != 2)
        return pd_fail(e, PD_DENIED, "only root may have the host's directories or network");
    if (s->root_name[0] && strncmp(s->root_name, KEEPER_OWNED_ROOT, strlen(KEEPER_OWNED_ROOT)) != 0)
        return pd_fail(e, PD_DENIED,
                       "root '%.63s': only root may use one that does not begin "
                       "with '" KEEPER_OWNED_ROOT "'",
                       s->root_name);
    return 0;
}

static void do_create(struct keeper *k, struct client *c, struct frame *f)
{
    struct pd_err e;
    struct msg_create m;
    struct kjail *known = jail_find(k, f->head.id);
    if (known) {
        /* A repeated request: the first one's answer, now or when it is there. */
        known->client = c->serial;
        auto_fd dir = cgroup_jail_dir(keeper_cgroups(k), known->name);
        pd_fail(&e, PD_CONFLICT, "this jail was made before and has ended");
        if (known->state == JAIL_RUNNING)
            send_created(k, c, known, dir);
        else if (known->state != JAIL_QUEUED && known->state != JAIL_BUILDING)
            client_send_error(k, c, f->head.id, &e);
        return;
    }
    struct kjail *j = NULL;
    if (msg_create_decode(&f->payload, &m, &e) == 0 && spec_check(&m.spec, &e) == 0) {
        if (f->payload.len > CREATE_MAX)
            pd_fail(&e, PD_INVALID, "a spec of %zu bytes: at most %u", f->payload.len, CREATE_MAX);
        else if (f->fd_count != 2 && f->fd_count != 3)
            pd_fail(&e, PD_PROTOCOL, "CREATE with %u descriptors", f->fd_count);
        else if (may_have(c, &m.spec, f->fd_count, &e) < 0)
            j = NULL;
        else if (!fd_spare(k->epoll, SPARE_FILES))
            pd_fail(&e, PD_CAPACITY, "the keeper has too many open files for another jail");
        else if (k->queued >= QUEUE_MAX)
            pd_fail(&e, PD_CAPACITY, "%u jails are waiting to be made", k->queued);
        else
            j = jail_add(k, f, c, m.spec.root_name, &e);
    }
    if (!j)
        client_send_error(k, c, f->head.id, &e);
}

static void do_destroy(struct keeper *k, struct client *c, const struct frame *f)
{
    struct pd_err e;
    struct msg_destroy m;
    struct kjail *j = NULL;
    if (msg_destroy_decode(&f->payload, &m, &e) == 0 && !(j = jail_find(k, m.jail)))
        pd_fail(&e, PD_NOT_FOUND, "there is no such jail");
    int pending = j && (j->state == JAIL_DYING || j->state == JAIL_BUILDING);
    if (pending && client_find(k, j->destroy_client)) {
        pd_fail(&e, PD_CONFLICT, "the jail is being ended already");
        j = NULL;
    }
    if (!j) {
        client_send_error(k, c, f->head.id, &e);
        return;
    }
    j->destroy_client = c->serial;
    j->destroy_request = f->head.id;
    j->want_stats = (int)m.want_stats;
    if (j->state == JAIL_UNDEAD || j->state == JAIL_QUEUED || j->state == JAIL_DEAD)
        send_gone(k, j, j->state == JAIL_UNDEAD ? GONE_UNDEAD : GONE_DESTROYED);
    destroy(k, j);
}

static void do_list(struct keeper *k, struct client *c, struct wire_id id)
{
    for (unsigned b = 0; b < BUCKETS; b++)
        for (struct kjail *j = k->jails[b]; j; j = j->next) {
            if (j->state != JAIL_RUNNING && j->state != JAIL_UNDEAD)
                continue;
            auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
            struct msg_listed m = {
                .jail = j->id, .undead = j->state == JAIL_UNDEAD, .init_pid = j->pid};
            msg_listed_encode(&out, &m);
            auto_fd cgroup_dir = cgroup_jail_dir(keeper_cgroups(k), j->name);
            int fds[3] = {j->control >= 0 ? j->control : k->null,
                          cgroup_dir >= 0 ? cgroup_dir : k->null, j->devpts};
            client_send(k, c, (struct wire_head){.type = WIRE_LISTED, .id = id}, &out, fds, 3);
        }
    client_send(k, c, (struct wire_head){.type = WIRE_LIST_END, .id = id}, NULL, NULL, 0);
}

/* STASH, FETCH and DROP: descriptors kept for a daemon that may die. */
static void do_stash(struct keeper *k, struct client *c, struct frame *f)
{
    struct pd_err e;
    struct msg_key m;
    if (msg_key_decode(&f->payload, &m, &e) < 0) {
        client_send_error(k, c, f->head.id, &e);
        return;
    }
    struct stash *s = stash_find(k, m.key);
    switch (f->head.type) {
    case WIRE_STASH:
        if (s || stash_add(k, m.key, f) < 0) {
            pd_fail(&e, s ? PD_CONFLICT : PD_CAPACITY, "stash '%s': %s", m.key,
                    s ? "there is one with this key" : "no room");
            client_send_error(k, c, f->head.id, &e);
            return;
        }
        break;
    case WIRE_DROP:
        if (s)
            stash_remove(k, s);
        break;
    default:
        if (!s) {
            pd_fail(&e, PD_NOT_FOUND, "nothing is stashed under '%s'", m.key);
            client_send_error(k, c, f->head.id, &e);
            return;
        }
        client_send(k, c, (struct wire_head){.type = WIRE_STASHED, .id = f->head.id}, NULL, s->fds,
                    s->fd_count);
        return;
    }
    client_send_done(k, c, f->head.id);
}

static void client_request(struct keeper *k, struct client *c, struct frame *f)
{
    struct pd_err e;
    k->quiet_at = deadline_in(QUIET);
    switch (f->head.type) {
    case WIRE_HELLO:
        do_hello(k, c, f->head.id);
        return;
    case WIRE_CREATE:
        do_create(k, c, f);
        return;
    case WIRE_DESTROY:
        do_destroy(k, c, f);
        return;
    case WIRE_STATS:
        stats_request(k, c, f);
        return;
    case WIRE_KILL:
    case WIRE_REMOVE_ROOT:
    case WIRE_KEEP_ROOT:
        chore_request(k, c, f);
        return;
    case WIRE_COPY_ROOT:
        copy_request(k, c, f);
        return;
    case WIRE_LIST:
        do_list(k, c, f->head.id);
        return;
    case WIRE_STASH:
    case WIRE_FETCH:
    case WIRE_DROP:
        do_stash(k, c, f);
        return;
    default:
        pd_fail(&e, PD_PROTOCOL, "message type %u is not for the keeper", f->head.type);
        client_send_error(k, c, f->head.id, &e);
    }
}

static void client_gone(struct keeper *k, struct client *c)
{
    for (unsigned b = 0; b < BUCKETS; b++)
        for (struct kjail *j = k->jails[b], *next; j; j = next) {
            next = j->next;
            /* Also one to keep that is not there yet: nobody was told of it, so nobody would ever
             * ask for it. */
            int unborn = j->state == JAIL_QUEUED || j->state == JAIL_BUILDING;
            if (j->client == c->serial && (!j->keep || unborn))
                destroy(k, j);
        }
    copies_end(k, c->serial);
    client_close(k, c);
}

/* ---- workers ---- */

/* Returns -1 when the worker is dead, which SIGCHLD is about to tell; nothing was asked then. */
int worker_send(struct worker *w, enum wire_type type, struct wire_id id, const struct buf *payload,
                const int *fds, unsigned fd_count)
{
    struct wire_head head = {.type = (uint16_t)type, .id = id};
    /* It is idle, so its socket is empty and takes any frame. */
    if (wire_send(w->sock, &head, payload, fds, fd_count, 0) < 0) {
        w->gone = 1;
        worker_kill(w); /* if it should be alive: it is of no use */
        return -1;
    }
    w->busy = type;
    w->request = id;
    w->asked_at = clock_now();
    w->deadline = deadline_in(type == WIRE_SWEEP ? SWEEP_PATIENCE : BUILD_PATIENCE);
    return 0;
}

static void send_build(struct keeper *k, struct worker *w, struct kjail *j)
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
    } else if (!k->rootless && (j->slot = range_take(&k->ranges, &e)) == RANGE_NONE) {
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

static void send_prepare(struct keeper *k, struct worker *w)
{
    struct pd_err e;
    struct kit_name *kit = &w->kits[w->kit_count];
    kit->slot = k->rootless ? RANGE_NONE : range_take(&k->ranges, &e);
    if (!k->rootless && kit->slot == RANGE_NONE)
        return;
    keeper_next_name(k, kit->name);
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_prepare m = {.slot = kit->slot, .name = kit->name};
    msg_prepare_encode(&out, &m);
    if (worker_send(w, WIRE_PREPARE, wire_id_new(), &out, NULL, 0) < 0)
        range_release(&k->ranges, kit->slot);
}

static void send_sweep(struct worker *w, struct kjail *j, enum wire_type type)
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

/* A jail's build failed, or its builder died. */
static void build_failed(struct keeper *k, struct kjail *j, const struct pd_err *e)
{
    struct client *c = client_find(k, j->client);
    if (c)
        client_send_error(k, c, j->id, e);
    if (j->destroy_client)
        send_gone(k, j, GONE_DESTROYED);
    /* The builder removes its groups after a failure, but not when it died; and then half a jail
     * may be living there. Striking and sweeping is safe either way. */
    jail_set_dead(k, j);
    j->wants_strike = 1;
}

static void built(struct keeper *k, struct kjail *j, struct frame *f, uint64_t asked_at)
{
    struct msg_built m;
    struct pd_err e;
    if (msg_built_decode(&f->payload, &m, &e) < 0 || f->fd_count != 4) {
        pd_fail(&e, PD_PROTOCOL, "a builder's answer with %u descriptors", f->fd_count);
        build_failed(k, j, &e);
        return;
    }
    jail_set_pid(k, j, m.init_pid);
    j->rung = m.rung;
    auto_fd cgroup_dir = frame_take_fd(f, 0);
    j->devpts = frame_take_fd(f, 1);
    j->lock = m.named ? frame_take_fd(f, 2) : -1;
    j->mntns = m.has_mntns ? frame_take_fd(f, 3) : -1;
    j->state = JAIL_RUNNING;
    buf_done(&j->payload);
    if (keeper_early_death(k, m.init_pid, asked_at)) {
        send_gone(k, j, GONE_DIED);
        jail_set_dead(k, j);
        return;
    }
    if (j->doomed) {
        destroy(k, j);
        return;
    }
    struct client *c = client_find(k, j->client);
    if (c)
        send_created(k, c, j, cgroup_dir);
}

static void worker_reply(struct keeper *k, struct worker *w, struct frame *f)
{
    enum wire_type was = w->busy;
    struct kjail *j = jail_find(k, w->request);
    struct pd_err e;
    w->busy = 0;
    w->early_deaths = 0; /* one that answers did not die as soon as it started */
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
            msg_error_raise(f, &e);
            build_failed(k, j, &e);
        }
    } else if (was == WIRE_SWEEP) {
        if (f->head.type == WIRE_DONE)
            jail_forget(k, j);
        else
            j->sweep_after = deadline_in(SWEEP_RETRY);
    }
}

static void fail_queue(struct keeper *k)
{
    struct pd_err e;
    pd_fail(&e, PD_INTERNAL, "builders die as soon as they start: see the kernel's log");
    while (k->queue_first) {
        struct kjail *j = k->queue_first;
        struct client *c = client_find(k, j->client);
        if (c)
            client_send_error(k, c, j->id, &e);
        jail_forget(k, j);
    }
}

/* Also one that stops needs them while there is something to sweep. */
static int wants_workers(const struct keeper *k)
{
    return !k->stopping || k->jail_count > k->undead_count || chores_pending(k);
}

static void worker_lost(struct keeper *k, struct worker *w)
{
    struct kjail *j = w->busy ? jail_find(k, w->request) : NULL;
    enum wire_type was = w->busy;
    if (was == WIRE_PREPARE)
        w->kit_count++; /* half made: its groups must be removed as well */
    worker_close(k, w);
    if (w->chore)
        chore_done(k, w, NULL);
    for (unsigned i = 0; i < w->kit_count; i++)
        keeper_abandon(k, w->kits[i].name, w->kits[i].slot);
    w->kit_count = 0;
    if (j && was == WIRE_BUILD) {
        struct pd_err e;
        pd_fail(&e, PD_LOST, "the builder died while it made the jail; try again");
        build_failed(k, j, &e);
    } else if (j && was == WIRE_SWEEP) {
        j->sweep_after = deadline_in(SWEEP_RETRY);
    }
    /* One that dies as soon as it starts would die for ever, and whoever waits should hear of it.
     */
    int early = clock_now() - w->started_at < RESTART_AFTER;
    w->early_deaths = early ? w->early_deaths + 1 : 0;
    if (w->builds && w->early_deaths >= EARLY_DEATHS_MAX)
        fail_queue(k);
    if (early || (wants_workers(k) && worker_start(k, w) < 0))
        w->restart_at = deadline_in(RESTART_AFTER);
}

/* ---- the loop ---- */

static void jail_died(struct keeper *k, struct kjail *j)
{
    enum gone_how how = j->doomed ? GONE_DESTROYED : GONE_DIED;
    /* Free before anybody hears of it: a client may use the named root again at once. */
    fd_done(&j->lock);
    send_gone(k, j, how);
    jail_set_dead(k, j);
}

static void reaped(struct keeper *k, pid_t pid)
{
    struct kjail *j = jail_by_pid(k, pid);
    struct worker *w = worker_by_pid(k, pid);
    if (j)
        jail_died(k, j);
    else if (w)
        worker_lost(k, w);
    else
        keeper_note_death(k, pid);
}

/* Everybody who has died. The kernel looks through all children for that: with thousands of jails
 * it takes long, so it is not done for every death. */
static void reap_all(struct keeper *k)
{
    pid_t pid;
    k->reap_at = DEADLINE_NONE;
    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
        reaped(k, pid);
}

/* Those whose death is expected, and the one that the signal names. Signals of others may have been
 * merged with that one: they are looked for a little later. */
static void reap_expected(struct keeper *k, pid_t named)
{
    k->reap_at = deadline_in(REAP_AFTER);
    if (waitpid(named, NULL, WNOHANG) > 0)
        reaped(k, named);
    for (struct kjail *j = k->watched, *following; j; j = following) {
        following = j->watched_next;
        pid_t pid = j->pid;
        if (j->state == JAIL_DYING && waitpid(pid, NULL, WNOHANG) > 0)
            reaped(k, pid);
    }
}

static int lacks_kits(const struct keeper *k)
{
    for (unsigned i = 0; i < k->worker_count; i++)
        if (k->workers[i].builds && !k->workers[i].prepare_failed &&
            k->workers[i].kit_count < k->config->kits)
            return 1;
    return 0;
}

/* Jails and workers whose time is up. Returns when to look again. */
static deadline check_deadlines(struct keeper *k)
{
    if (deadline_passed(k->reap_at))
        reap_all(k);
    deadline next = lacks_kits(k) && !deadline_passed(k->quiet_at) ? k->quiet_at : DEADLINE_NONE;
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
                send_gone(k, j, GONE_UNDEAD);
                d = DEADLINE_NONE;
            } else {
                j->struck = 1;
                j->wants_strike = 1;
                j->deadline = deadline_in(UNDEAD_AFTER);
                d = 0;
                next = clock_now(); /* a worker must be told */
            }
        }
        /* What is due already waits for a worker, not for the clock. */
        if (d < next && !deadline_passed(d))
            next = d;
    }
    for (unsigned i = 0; i < k->worker_count; i++) {
        struct worker *w = &k->workers[i];
        if (w->pid <= 0 && wants_workers(k)) {
            int due = deadline_passed(w->restart_at) || k->stopping;
            if (due && worker_start(k, w) < 0)
                w->restart_at = deadline_in(RESTART_AFTER);
            else if (due)
                next = clock_now(); /* it can be given something to do */
            if (w->pid <= 0 && w->restart_at < next)
                next = w->restart_at;
        }
        if (!w->busy || w->pid <= 0)
            continue;
        if (deadline_passed(w->deadline)) {
            worker_kill(w); /* SIGCHLD tells when it is gone */
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
            send_sweep(w, strike, WIRE_STRIKE);
            strike->wants_strike = w->gone;
        } else if (w->builds && k->queue_first) {
            send_build(k, w, k->queue_first);
        } else if (dead) {
            send_sweep(w, dead, WIRE_SWEEP);
        } else if (w->builds && w->kit_count < k->config->kits && !w->prepare_failed &&
                   !k->stopping && deadline_passed(k->quiet_at)) {
            send_prepare(k, w);
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

static void stop_everything(struct keeper *k)
{
    for (unsigned b = 0; b < BUCKETS; b++)
        for (struct kjail *j = k->jails[b], *next; j; j = next) {
            next = j->next;
            destroy(k, j);
        }
    copies_end(k, 0);
    k->stop_begun = 1;
}

static int finished(const struct keeper *k)
{
    if (k->config->socket_path)
        return k->stopping && k->jail_count == k->undead_count && !chores_pending(k);
    return !k->client_count && k->jail_count == k->undead_count;
}

static int loop(struct keeper *k, struct pd_err *e)
{
    while (!finished(k)) {
        if (k->stopping && !k->stop_begun)
            stop_everything(k);
        (void)check_deadlines(k); /* before pump: what it finds due, workers do */
        pump(k);
        if (k->jail_count)
            (void)keeper_cgroups(
                k); /* makes them: while a builder works, and before it needs them */
        struct epoll_event events[64];
        int n = epoll_wait(k->epoll, events, 64, deadline_poll_ms(check_deadlines(k)));
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
            case SOURCE_NONE:
                break;
            }
        }
        client_collect(k);
    }
    return 0;
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
