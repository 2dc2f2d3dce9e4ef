/* The calls of every provider, which core/box.c makes.
 *
 * How this works: a box is a jail, or what the keeper's kind has in its place, and a keeper holds
 * it. There are two links.
 *
 *   to the keeper   one for all boxes. Creating, ending, killing a command's group, usage, roots
 *                   and the stash are requests there. A thread that needs the answer enters a
 *                   waiter by the request's id, sends, and sleeps; the pump wakes it
 *                   (keeper_events.c).
 *
 *   to each init    the jail's control socket, which came with CREATED. Commands, signals, SYNC
 *                   and ACK go straight there and wait for no keeper. The pump hears the answers.
 *
 * A command's group is a cgroup below the jail's. This file makes it by the directory that came
 * with CREATED and keeps its entrance open, so that the next command of that number finds it made.
 * Without cgroups there are no groups: a kill reaches the command's first process alone.
 *
 * When the keeper dies every box on this machine is lost, and keeper_link.c gets another keeper. */
#include "provider/keeper.h"

#include "provider/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/cgroup.h"
#include "jail/cgroup_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>

#define SEND_PATIENCE  (5 * NS_PER_S)
#define USAGE_PATIENCE (2 * NS_PER_S)
#define KILL_PATIENCE  (5 * NS_PER_S)
#define STEER_PATIENCE (10 * NS_PER_S)

static struct keeper_provider *self(struct provider *p)
{
    return p->state;
}

static int no_link(struct keeper_provider *p, struct pd_err *e)
{
    lock_take(&p->lock);
    int none = p->link.sock < 0 || p->broken;
    if (none) {
        pd_fail(e, PD_CAPACITY, "%.190s; it is being started again, try in a moment", p->trouble);
        e->sys = ENOTCONN; /* for the router: a breaker would make half a minute of this moment */
    }
    lock_release(&p->lock);
    return none;
}

static int send_to_keeper(struct keeper_provider *p, struct wire_head head,
                          const struct buf *payload, const int *fds, unsigned fd_count,
                          struct pd_err *e)
{
    lock_take(&p->sending);
    if (no_link(p, e)) {
        lock_release(&p->sending);
        return -1;
    }

    head.epoch = p->link.epoch;
    int r = wire_send(p->link.sock, &head, payload, fds, fd_count, deadline_in(SEND_PATIENCE));
    lock_release(&p->sending);

    if (r == 0)
        return 0;
    errno = -r;
    return r == -EPIPE ? pd_fail(e, PD_LOST, "the keeper is gone")
                       : pd_fail_sys(e, "send to the keeper");
}

int tell_keeper(struct keeper_provider *p, enum wire_type type, struct wire_id id,
                const struct buf *payload, const int *fds, unsigned fd_count, struct pd_err *e)
{
    struct wire_head head = {.type = (uint16_t)type, .id = id};
    return send_to_keeper(p, head, payload, fds, fd_count, e);
}

/* Sends and waits; the answer is in w->frame, to be freed by frame_done. */
static int ask_keeper_with(struct keeper_provider *p, struct waiter *w, enum wire_type type,
                           unsigned flags, const struct buf *payload, deadline d, struct pd_err *e)
{
    waiter_begin(p, w, wire_id_new(), NULL);
    struct wire_head head = {.type = (uint16_t)type, .flags = flags, .id = w->id};
    if (send_to_keeper(p, head, payload, NULL, 0, e) < 0) {
        waiter_cancel(p, w);
        return -1;
    }
    return waiter_end(p, w, d, e);
}

int ask_keeper(struct keeper_provider *p, struct waiter *w, enum wire_type type,
               const struct buf *payload, deadline d, struct pd_err *e)
{
    return ask_keeper_with(p, w, type, 0, payload, d, e);
}

int have_keeper_do(struct keeper_provider *p, enum wire_type type, const struct buf *payload,
                   deadline d, struct pd_err *e)
{
    struct waiter w;
    if (ask_keeper(p, &w, type, payload, d, e) < 0)
        return -1;

    int r = w.frame.head.type == WIRE_ERROR ? msg_error_raise(&w.frame, e) : 0;
    frame_done(&w.frame);
    return r;
}

/* ---- boxes ---- */

static struct keeper_box *keeper_box_of(struct box *b)
{
    return (struct keeper_box *)b;
}

static struct keeper_box *keeper_box_new(struct keeper_provider *p, void *owner)
{
    struct keeper_box *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;

    b->provider = p;
    b->owner = owner;
    b->jail = JAIL_EMPTY;
    b->control.fd = -1;

    lock_init(&b->lock, LOCK_GROUPS);
    lock_init(&b->hearing, LOCK_HEARING);
    b->promised = 1;
    reserve_promise(&p->reserve);
    return b;
}

static void keeper_box_free(struct keeper_box *b)
{
    struct keeper_provider *p = b->provider;
    pump_remove(p->pump, &b->control);
    pump_wait(p->pump, &p->keeper); /* news of its end may be on the way to its owner */
    lock_take(&b->hearing);         /* a request's thread may still listen */
    lock_release(&b->hearing);

    lock_take(&p->lock);
    struct keeper_box **at = keeper_box_place(p, b->jail.id);
    if (*at == b)
        *at = b->next;
    lock_release(&p->lock);

    for (unsigned i = 0; i < b->procs_room; i++)
        fd_done(&b->procs[i]);
    free(b->procs);
    if (b->promised)
        reserve_keep_promise(&p->reserve);

    free(b->place);
    jail_done(&b->jail);
    lock_done(&b->hearing);
    lock_done(&b->lock);
    free(b);
}

void keeper_provider_end(struct keeper_provider *p, struct wire_id jail, unsigned flags)
{
    struct pd_err e;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct wire_head head = {.type = WIRE_DESTROY, .flags = flags, .id = wire_id_new()};
    struct msg_destroy m = {.jail = jail};
    msg_destroy_encode(&out, &m);
    (void)send_to_keeper(p, head, &out, NULL, 0, &e);
}

/* Nobody has lost anything when a keeper or builder dies over a sandbox that is being made. */
static int not_now(struct pd_err *e)
{
    if (e->code == PD_LOST)
        e->code = PD_CAPACITY;
    return -1;
}

/* From now on it is its owner's, unless it was lost before: its loss is news for him only then. */
static int hand_over(struct keeper_box *b, struct pd_err *e)
{
    lock_take(&b->provider->lock);
    b->made = !b->lost;
    int r = b->made ? 0 : pd_fail(e, PD_CAPACITY, "the sandbox ended while it was being made");
    lock_release(&b->provider->lock);
    return r;
}

/* With `sending` held: a cancellation that comes later is sent behind it. */
static int ask_for_box(struct keeper_provider *p, struct keeper_box *b, struct wire_id id,
                       const struct spec *s, struct pd_err *e)
{
    unsigned flags = CREATE_TELL | (p->start ? 0 : CREATE_KEEP);
    if (no_link(p, e))
        return -1;
    if (p->base.events->is_unwanted && p->base.events->is_unwanted(b->owner))
        return pd_fail(e, PD_CONFLICT, "the sandbox was ended before it was made");
    return jail_request_as(&p->link, &b->jail, id, s, flags, -1, e);
}

static int make_box(struct keeper_provider *p, struct wire_id id, const struct spec *s, void *owner,
                    struct box **ret, deadline d, struct pd_err *e)
{
    struct keeper_box *b = keeper_box_new(p, owner);
    if (!b)
        return pd_fail(e, PD_CAPACITY, "no memory for a sandbox");

    struct waiter w;
    waiter_begin(p, &w, id, b);
    lock_take(&p->sending);
    int sent = ask_for_box(p, b, id, s, e);
    lock_release(&p->sending);
    if (sent < 0) {
        waiter_cancel(p, &w);
        keeper_box_free(b);
        return -1;
    }

    if (waiter_end(p, &w, d, e) < 0) {
        if (e->code == PD_TIMEOUT)
            keeper_provider_end(p, id, 0);
        keeper_box_free(b);
        return not_now(e);
    }

    bool is_there = w.frame.head.type == WIRE_CREATED;
    int r = jail_accept(&b->jail, &w.frame, e);
    frame_done(&w.frame);
    b->tells_facts = p->kind->tells_facts || b->jail.on_image;
    if (r == 0 && b->tells_facts)
        r = keeper_box_await_facts(b, d, e);
    if (r < 0)
        not_now(e);
    if (r == 0)
        r = keeper_box_listen(b, e);
    if (r == 0)
        r = hand_over(b, e);

    if (r < 0) {
        if (is_there) /* the keeper has its socket as well: closing ours ends nothing */
            keeper_provider_end(p, id, 0);
        keeper_box_free(b);
        return -1;
    }

    *ret = &b->base;
    return 0;
}

static int keeper_provider_create(struct provider *base, struct wire_id id, const struct spec *s,
                                  void *owner, struct box **ret, deadline d, struct pd_err *e)
{
    struct keeper_provider *p = self(base);
    if (reserve_enter(&p->reserve, e) < 0)
        return -1;

    int r = make_box(p, id, s, owner, ret, d, e);
    reserve_leave(&p->reserve);
    return r;
}

static int keeper_provider_adopt(struct provider *base, struct wire_id id, void *owner,
                                 struct box **ret, struct pd_err *e)
{
    struct keeper_provider *p = self(base);
    struct orphan *found = NULL;

    lock_take(&p->lock);
    for (struct orphan **at = &p->orphans; *at; at = &(*at)->next)
        if (wire_id_equal((*at)->jail.id, id)) {
            found = *at;
            *at = found->next;
            break;
        }
    lock_release(&p->lock);

    if (!found) {
        /* It may still be in the making, for the daemon before: then it is to be ended, and before
         * its root is deleted. */
        auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
        struct msg_destroy m = {.jail = id};
        struct waiter w;
        msg_destroy_encode(&out, &m);
        if (ask_keeper(p, &w, WIRE_DESTROY, &out, deadline_in(SEND_PATIENCE), e) == 0)
            frame_done(&w.frame);
        return pd_fail(e, PD_NOT_FOUND, "the keeper has no such sandbox");
    }

    struct keeper_box *b = keeper_box_new(p, owner);
    if (!b) {
        jail_done(&found->jail);
        free(found);
        return pd_fail(e, PD_CAPACITY, "no memory for a sandbox");
    }

    b->jail = found->jail;
    b->made = true;
    b->tells_facts = true; /* what it was made from, its owner knows */
    free(found);

    lock_take(&p->lock);
    keeper_box_add(b);
    lock_release(&p->lock);

    /* It is listened to from sync on: news of its commands may be waiting in the socket, and they
     * are nothing for an owner who has not got his descriptors yet. */
    *ret = &b->base;
    return 0;
}

static int keeper_provider_count(struct provider *base, unsigned *ret, deadline d, struct pd_err *e)
{
    auto_buf none = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_counted m = {0};
    struct waiter w;
    if (ask_keeper(self(base), &w, WIRE_COUNT, &none, d, e) < 0)
        return -1;

    int r = w.frame.head.type == WIRE_ERROR ? msg_error_raise(&w.frame, e)
                                            : msg_counted_decode(&w.frame.payload, &m, e);
    frame_done(&w.frame);
    *ret = m.jails;
    return r;
}

static int keeper_provider_destroy(struct box *box, deadline d, struct pd_err *e)
{
    struct keeper_box *b = keeper_box_of(box);
    struct keeper_provider *p = b->provider;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct waiter w;
    struct msg_destroy m = {.jail = b->jail.id};
    struct msg_gone gone = {.why = ""};
    int r = 0;

    lock_take(&p->lock);
    b->lost = 1; /* its end is no news from now on */
    lock_release(&p->lock);

    /* A frozen one dies of SIGKILL only when it is thawed, on v1. */
    if (b->jail.cgroup_dir >= 0)
        (void)group_freeze(b->jail.cgroup_dir, 0, 0);

    msg_destroy_encode(&out, &m);
    unsigned flags = box->root_goes ? DESTROY_WITH_ROOT : 0;
    if (ask_keeper_with(p, &w, WIRE_DESTROY, flags, &out, d, e) < 0) {
        r = e->code == PD_TIMEOUT ? -1 : 0; /* without a keeper there is no jail either */
    } else {
        if (w.frame.head.type == WIRE_ERROR) {
            msg_error_raise(&w.frame, e);
            r = e->code == PD_NOT_FOUND || e->code == PD_CONFLICT ? 0 : -1;
        } else if (msg_gone_decode(&w.frame.payload, &gone, e) == 0 && gone.how == GONE_UNDEAD) {
            r = pd_fail(e, PD_TIMEOUT, "a process of the sandbox does not die (state D)");
        }
        frame_done(&w.frame);
    }

    keeper_box_free(b);
    return r;
}

/* ---- commands ---- */

/* May an entrance stay open? The first of a sandbox may: room was left for it. Others only save
 * time, and not where descriptors are few. With the box's lock held. */
static int may_keep(struct keeper_box *b)
{
    if (!b->promised)
        return reserve_has_plenty(&b->provider->reserve);

    b->promised = 0;
    reserve_keep_promise(&b->provider->reserve);
    return 1;
}

/* Room for the entrance of a group. Numbers are given from below, so that it stays small. */
static bool make_procs_room(struct keeper_box *b, unsigned group)
{
    unsigned room = b->procs_room ? b->procs_room : PROCS_FIRST;
    while (room <= group)
        room *= 2;
    if (room == b->procs_room)
        return true;

    int *procs = realloc(b->procs, room * sizeof *procs);
    if (!procs)
        return false;
    for (unsigned i = b->procs_room; i < room; i++)
        procs[i] = -1;
    b->procs = procs;
    b->procs_room = room;
    return true;
}

/* The group's entrance. Kept open: the next command of this number finds it made. Where it cannot
 * be kept it is also *ret_once, which the caller closes. */
static int group_entrance(struct keeper_box *b, unsigned group, int *ret_once, struct pd_err *e)
{
    char name[16];

    if (b->jail.cgroup_dir < 0 || group == 0)
        return -1;
    if (group > GROUPS_MAX)
        return pd_fail(e, PD_CAPACITY, "more than %u commands at a time", GROUPS_MAX);

    keeper_group_name(group, name);
    lock_take(&b->lock);
    int fd = group < b->procs_room ? b->procs[group] : -1;
    if (fd < 0) {
        fd = cgroup_command_create(b->jail.cgroup_dir, name);
        if (fd == -EEXIST) { /* of an earlier daemon */
            (void)cgroup_command_remove(b->jail.cgroup_dir, name);
            fd = cgroup_command_create(b->jail.cgroup_dir, name);
        }
        if (fd >= 0 && make_procs_room(b, group) && may_keep(b))
            b->procs[group] = fd;
        else if (fd >= 0)
            *ret_once = fd;
    }

    lock_release(&b->lock);
    if (fd >= 0)
        return fd;

    /* A keeper that dies takes the jail along, and the next one removes its cgroup: that may be
     * seen here before the keeper's connection says so. */
    if (fd == -ENOENT || fd == -ENODEV)
        return pd_fail(e, PD_LOST, "the sandbox has ended, and its cgroup is gone");
    errno = -fd;
    return pd_fail_sys(e, "make the command's cgroup");
}

static int keeper_provider_exec(struct box *box, const struct box_command *c, struct pd_err *e)
{
    struct keeper_box *b = keeper_box_of(box);
    struct command command = {
        .id = c->id, .exec = c->exec, .fds = {c->fds[0], c->fds[1], c->fds[2]}, .flags = c->flags};
    command.at_once = c->at_once;
    auto_fd once = -1;
    int procs = -1;

    if (b->jail.cgroup_dir >= 0 && c->group && (procs = group_entrance(b, c->group, &once, e)) < 0)
        return -1;
    return jail_send_prepared(&b->jail, &command, procs, c->fds[3], e);
}

static int keeper_provider_signal(struct box *box, struct wire_id id, int signal, deadline d,
                                  struct pd_err *e)
{
    struct keeper_box *b = keeper_box_of(box);
    struct command c = {.id = id};
    return jail_send_signal(&b->jail, &c, signal, d, e);
}

static int keeper_provider_kill(struct box *box, struct wire_id id, unsigned group,
                                struct pd_err *e)
{
    struct keeper_box *b = keeper_box_of(box);
    char name[16];
    /* Without cgroups the tree has only its root. */
    if (b->jail.cgroup_dir < 0 || group == 0)
        return keeper_provider_signal(box, id, SIGKILL, deadline_in(KILL_PATIENCE), e);
    keeper_group_name(group, name);

    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_kill m = {.jail = b->jail.id, .group = name};
    msg_kill_encode(&out, &m);

    return have_keeper_do(b->provider, WIRE_KILL, &out, deadline_in(KILL_PATIENCE), e);
}

static int keeper_provider_forget(struct box *box, struct wire_id id)
{
    struct keeper_box *b = keeper_box_of(box);
    struct wire_head head = {.type = WIRE_ACK, .epoch = b->jail.epoch, .id = id};
    /* Not waited for: a jail that does not read keeps the record, and the room for it is its own.
     */
    return wire_send(b->jail.control, &head, NULL, NULL, 0, 0) == -EAGAIN ? -1 : 0;
}

static int keeper_provider_sync(struct box *box, deadline d, struct pd_err *e)
{
    struct keeper_box *b = keeper_box_of(box);
    struct waiter w;

    lock_take(&b->lock);
    int deaf = !b->listening && keeper_box_listen(b, e) < 0;
    lock_release(&b->lock);
    if (deaf)
        return -1;

    struct wire_head head = {.type = WIRE_SYNC, .epoch = b->jail.epoch, .id = wire_id_new()};
    if (d == 0)
        return wire_send(b->jail.control, &head, NULL, NULL, 0, 0) == 0
                   ? 0
                   : pd_fail(e, PD_LOST, "the sandbox does not answer");

    waiter_begin(b->provider, &w, head.id, NULL);
    int r = wire_send(b->jail.control, &head, NULL, NULL, 0, d);
    if (r < 0) {
        waiter_cancel(b->provider, &w);
        return pd_fail(e, PD_LOST, "the sandbox does not answer");
    }
    if (waiter_end(b->provider, &w, d, e) < 0)
        return -1;
    frame_done(&w.frame);
    return 0;
}

static int keeper_provider_terminal(struct box *box, int *ret_near, int *ret_far, struct pd_err *e)
{
    struct keeper_box *b = keeper_box_of(box);
    return jail_open_terminal(&b->jail, ret_near, ret_far, e);
}

static int keeper_provider_resize(struct box *box, struct wire_id id, int near, uint16_t rows,
                                  uint16_t cols, struct pd_err *e)
{
    struct keeper_box *b = keeper_box_of(box);
    if (b->jail.is_far)
        return jail_send_size(&b->jail, id, rows, cols, deadline_in(KILL_PATIENCE), e);

    struct winsize size = {.ws_row = rows, .ws_col = cols};
    return ioctl(near, TIOCSWINSZ, &size) < 0 ? pd_fail_sys(e, "resize the terminal") : 0;
}

static int keeper_provider_pause(struct box *box, bool paused, deadline d, struct pd_err *e)
{
    const struct keeper_box *b = keeper_box_of(box);
    if (b->jail.cgroup_dir < 0)
        return pd_fail(e, PD_UNSUPPORTED, "pausing needs cgroups, and there are none here");

    int r = group_freeze(b->jail.cgroup_dir, paused, d);
    if (r == 0)
        return 0;
    errno = -r;
    return pd_fail_sys(e, "%s the sandbox", paused ? "pause" : "resume");
}

static bool keeper_provider_place(struct box *box, struct box_place *ret)
{
    struct keeper_box *b = keeper_box_of(box);

    lock_take(&b->lock);
    bool known = b->place != NULL;
    if (known)
        *ret = *b->place;
    lock_release(&b->lock);
    return known;
}

static enum rung keeper_provider_rung(const struct box *box)
{
    return ((const struct keeper_box *)box)->jail.rung;
}

static int keeper_provider_usage(struct box *box, struct box_usage *ret, struct pd_err *e)
{
    struct keeper_box *b = keeper_box_of(box);
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_destroy m = {.jail = b->jail.id};
    struct msg_usage u;
    struct waiter w;

    msg_destroy_encode(&out, &m);
    if (ask_keeper(b->provider, &w, WIRE_STATS, &out, deadline_in(USAGE_PATIENCE), e) < 0)
        return -1;

    int r = w.frame.head.type == WIRE_ERROR ? msg_error_raise(&w.frame, e)
                                            : msg_usage_decode(&w.frame.payload, &u, e);
    frame_done(&w.frame);
    if (r < 0)
        return -1;

    *ret = (struct box_usage){.memory = u.memory,
                              .memory_peak = u.memory_peak,
                              .cpu_usec = u.cpu_usec,
                              .pids = u.pids,
                              .oom_kills = u.oom_kills,
                              .pids_refused = u.pids_refused,
                              .disk_used = u.disk_used,
                              .disk_total = u.disk_total,
                              .frozen = u.frozen};
    return 0;
}

/* ---- the whole ---- */

static int keeper_provider_health(struct provider *base, struct pd_err *e)
{
    struct keeper_provider *p = self(base);
    if (no_link(p, e))
        return -1;

    lock_take(&p->lock);
    int r = p->cannot[0] ? pd_fail(e, PD_CAPACITY, "%s", p->cannot) : 0;
    lock_release(&p->lock);
    return r;
}

static void keeper_provider_free(struct provider *base)
{
    struct keeper_provider *p = self(base);
    provider_link_stop(p);
    pump_remove(p->pump, &p->keeper);

    for (unsigned i = 0; i < BOX_BUCKETS; i++)
        while (p->boxes[i])
            keeper_box_free(p->boxes[i]);

    while (p->orphans) {
        struct orphan *o = p->orphans;
        p->orphans = o->next;
        jail_done(&o->jail);
        free(o);
    }

    keeper_link_done(&p->link);
    reserve_done(&p->reserve);
    lock_done(&p->lock);
    lock_done(&p->sending);
    pthread_cond_destroy(&p->tend);
    free(p);
}

/* Nobody else here needs them: the keeper has its own. */
static int keeper_provider_way_out(struct box *box, int ret[2], struct pd_err *e)
{
    struct keeper_box *b = keeper_box_of(box);
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_destroy m = {.jail = b->jail.id};
    struct waiter w;

    ret[0] = fd_take(&b->jail.gate[0]);
    ret[1] = fd_take(&b->jail.gate[1]);
    if (ret[0] >= 0 && ret[1] >= 0)
        return 0;

    /* It was made without: it gets one now. */
    msg_destroy_encode(&out, &m);
    if (ask_keeper(b->provider, &w, WIRE_STEER, &out, deadline_in(STEER_PATIENCE), e) < 0)
        return -1;
    int r = w.frame.head.type == WIRE_ERROR ? msg_error_raise(&w.frame, e) : 0;
    ret[0] = frame_take_fd(&w.frame, 0);
    ret[1] = frame_take_fd(&w.frame, 1);
    frame_done(&w.frame);
    return r == 0 && ret[1] < 0 ? pd_fail(e, PD_PROTOCOL, "the keeper sent no way out") : r;
}

static struct keeper_provider *provider_new(const struct provider_kind *kind, struct pump *pump,
                                            const struct box_events *events, struct pd_err *e)
{
    struct keeper_provider *p = calloc(1, sizeof *p);
    if (!p) {
        pd_fail(e, PD_CAPACITY, "no memory for a provider");
        return NULL;
    }

    p->base = (struct provider){
        .name = kind->name,
        .can = kind->can,
        .patience = kind->patience,
        .place = keeper_provider_place,
        .needs_image = kind->needs_image,
        .timeout_ns = kind->timeout_s * NS_PER_S,
        .state = p,
        .events = events,
        .create = keeper_provider_create,
        .cancel = keeper_provider_cancel,
        .adopt = keeper_provider_adopt,
        .count = keeper_provider_count,
        .end_strangers = keeper_provider_end_strangers,
        .destroy = keeper_provider_destroy,
        .remove_root = keeper_remove_root,
        .keep_root = keeper_keep_root,
        .check = keeper_check,
        .images = kind->has_store ? keeper_images : NULL,
        .copy_root = keeper_copy_root,
        .exec = keeper_provider_exec,
        .hear_begin = keeper_box_hear_begin,
        .hear = keeper_box_hear,
        .hear_end = keeper_box_hear_end,
        .signal = keeper_provider_signal,
        .kill = keeper_provider_kill,
        .hold = keeper_group_hold,
        .forget = keeper_provider_forget,
        .group_is_empty = keeper_group_is_empty,
        .sync = keeper_provider_sync,
        .terminal = keeper_provider_terminal,
        .resize = keeper_provider_resize,
        .pause = keeper_provider_pause,
        .rung = keeper_provider_rung,
        .best = keeper_provider_best,
        .usage = keeper_provider_usage,
        .way_out = keeper_provider_way_out,
        .stash = keeper_stash,
        .fetch = keeper_fetch,
        .drop = keeper_drop,
        .health = keeper_provider_health,
        .free = keeper_provider_free,
    };

    p->kind = kind;
    lock_init(&p->lock, LOCK_PROVIDER);
    lock_init(&p->sending, LOCK_SENDING);
    reserve_init(&p->reserve);
    p->pump = pump;
    cond_init(&p->tend);
    p->link.sock = -1;
    p->keeper.fd = -1;
    p->greeting = -1;
    return p;
}

static struct provider *connected(struct keeper_provider *p, struct pd_err *e)
{
    if (provider_link_open(p, e) == 0 && provider_link_start(p, e) == 0)
        return &p->base;

    keeper_provider_free(&p->base);
    return NULL;
}

void provider_keeper_watch_disk(struct provider *p, const char *dir)
{
    reserve_watch_disk(&self(p)->reserve, dir);
}

struct provider *provider_keeper_new(const char *kind, const char *keeper_socket, struct pump *pump,
                                     const struct box_events *events, struct pd_err *e)
{
    struct keeper_provider *p = provider_new(provider_kind_find(kind), pump, events, e);
    if (!p)
        return NULL;

    snprintf(p->socket_path, sizeof p->socket_path, "%s", keeper_socket);
    return connected(p, e);
}

struct provider *provider_keeper_new_private(int (*start)(void *arg, struct pd_err *e), void *arg,
                                             struct pump *pump, const struct box_events *events,
                                             struct pd_err *e)
{
    struct keeper_provider *p = provider_new(provider_kind_at(0), pump, events, e);
    if (!p)
        return NULL;

    p->start = start;
    p->start_arg = arg;
    p->base.can &= ~(unsigned)(PROVIDER_ADOPT | PROVIDER_STASH);
    return connected(p, e);
}
