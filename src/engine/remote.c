/* The broker of every backend elsewhere. How a box is made:
 *
 *   its place is held (a lock on this machine that shows whose box it is, and that it may exist)
 *   the backend makes it, with paddock-box and the key of its link in it
 *   a watch with stand-in and carrier is started here (far_box.c), which brings the link up
 *
 * The keeper's requests come one at a time, and each is safe to repeat: everything has a name that
 * follows from the box's. When the keeper is gone the broker ends all its boxes but those whose
 * watch lives, which the next keeper may have; those of keepers that were killed with all their
 * brokers are ended by the next broker that starts. A box that the engine makes long after its
 * broker has given up has no place here, and is found by its label. */
#include "engine/remote.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "engine/door.h"
#include "engine/far_box.h"
#include "engine/nursery.h"
#include "jail/cgroup_tree.h"
#include "wire/msg.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* An image may have to be pulled there; the keeper's own patience is what ends it. */
#define BUILD_PATIENCE (600 * NS_PER_S)
#define LINK_PATIENCE  (30 * NS_PER_S)
#define CALL_PATIENCE  (20 * NS_PER_S)
#define LOOK_PATIENCE  (5 * NS_PER_S)
#define SWEEP_PATIENCE NS_PER_S
#define LOOK_LEAST     NS_PER_S
#define LOOK_MOST      (300 * NS_PER_S)
#define LEFT_MOST      8u /* instances whose sweep was cut short */

/* Where the next sweep of an instance's boxes begins, when the last one was cut short: at a box, or
 * behind it. */
struct left {
    char instance[64], box[REMOTE_BOX_MAX];
    bool behind;
};

struct broker {
    const struct broker_config *config;
    const struct remote_kind *kind;
    struct remote *remote;
    remote_start_link *start;
    int sock, null, init, box;
    struct doors places;
    struct nursery nursery;
    deadline look; /* when orphans are to be looked for */
    uint64_t look_wait;
    struct left left[LEFT_MOST];
    unsigned left_next; /* the one that another instance is given when all are in use */
    bool ready;
};

/* ---- answers ---- */

static void reply(struct broker *b, struct wire_id id, enum wire_type type, const struct buf *out)
{
    struct wire_head head = {.type = (uint16_t)type, .id = id};
    wire_send(b->sock, &head, out, NULL, 0, DEADLINE_NONE);
}

static void reply_result(struct broker *b, struct wire_id id, int r, const struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);

    if (r < 0)
        msg_error_put(&out, e);
    reply(b, id, r < 0 ? WIRE_ERROR : WIRE_DONE, &out);
}

/* ---- orphans ---- */

/* Something may be made that nobody waits for. */
static void suspect(struct broker *b)
{
    b->look_wait = LOOK_LEAST;
    b->look = deadline_in(LOOK_LEAST);
}

struct sweep {
    struct broker *broker;
    const char *instance;
    bool
        dead; /* its keeper is gone: all go that nobody holds, and not only those without a place */
    bool found, failed;
    bool held;         /* one was left to whoever holds it, who may let go of it any moment */
    bool pressing;     /* one of them ran, and may cost something */
    deadline until;    /* no further one is begun then, or when the keeper asks for something */
    struct left *left; /* NULL where `until` is none: all are tried */
    bool skips;        /* the box at which it begins did not come yet */
};

static struct left *left_of(struct broker *b, const char *instance)
{
    struct left *unused = NULL;

    for (unsigned i = 0; i < LEFT_MOST; i++) {
        if (b->left[i].box[0] && !strcmp(b->left[i].instance, instance))
            return &b->left[i];
        unused = b->left[i].box[0] || unused ? unused : &b->left[i];
    }

    struct left *l = unused ? unused : &b->left[b->left_next++ % LEFT_MOST];
    *l = (struct left){.box = ""};
    snprintf(l->instance, sizeof l->instance, "%s", instance);
    return l;
}

static void leave_at(const struct sweep *w, const char *box, bool behind)
{
    if (!w->left)
        return;
    snprintf(w->left->box, sizeof w->left->box, "%s", box);
    w->left->behind = behind;
}

/* Was it tried when the sweep before this one was cut short? One that does not end takes its time
 * again and again: if every sweep began with the same box, those behind it would never be tried. */
static bool was_tried(struct sweep *w, const char *box)
{
    if (!w->skips)
        return false;
    w->skips = strcmp(box, w->left->box) != 0;
    return w->skips || w->left->behind;
}

/* A box whose watch lives may be the next keeper's. */
static bool is_somebodys(const struct sweep *w, const char *box)
{
    const struct broker *b = w->broker;
    return w->dead ? doors_hold(b->config->state_dir, w->instance, box)
                   : door_is_there(&b->places, box);
}

/* Each may take seconds, and a request waits for all: the rest is found by the next look. */
static bool is_long(const struct sweep *w)
{
    struct pollfd request = {.fd = w->broker->sock, .events = POLLIN};
    return w->found && w->until != DEADLINE_NONE &&
           (deadline_passed(w->until) || poll(&request, 1, 0) > 0);
}

static int sweep_one(void *context, const struct remote_state *s, struct pd_err *e)
{
    struct sweep *w = context;
    struct remote *r = w->broker->remote;

    if (was_tried(w, s->box))
        return 0;
    if (is_somebodys(w, s->box)) {
        w->held = true;
        return 0;
    }
    if (is_long(w)) {
        if (w->left && strcmp(w->left->box, s->box) != 0) /* or it is a double of the last */
            leave_at(w, s->box, /* behind */ false);
        return pd_fail(e, PD_TIMEOUT, "there is more to end than there is time for");
    }

    w->found = true;
    w->pressing |= s->running;
    leave_at(w, s->box, /* behind */ true);
    if (r->kind->end(r, w->instance, s->box, deadline_in(CALL_PATIENCE), e) < 0)
        w->failed = true;
    return 0;
}

/* 0 when all were tried; -1 when it was cut short, or the engine does not list them. What begins in
 * the middle goes on from the front. */
static int sweep(struct sweep *w, deadline t)
{
    struct broker *b = w->broker;
    struct pd_err e;

    if (w->until != DEADLINE_NONE)
        w->left = left_of(b, w->instance);
    for (bool middle = true; middle;) {
        middle = w->skips = w->left && w->left->box[0];
        int r = b->kind->each(b->remote, w->instance, sweep_one, w, t, &e);
        if (w->left && (r == 0 || w->skips)) /* it is gone, or the list does not come that far */
            w->left->box[0] = 0;
        if (r < 0)
            return -1;
    }
    return 0;
}

/* Is none left? While there is one its place stays: without it nobody would look for that box again
 * when the watch that held it has died, be it right after this look. */
static bool end_unheld(struct broker *b, const char *instance, deadline until)
{
    struct sweep w = {.broker = b, .instance = instance, .dead = true, .until = until};
    return sweep(&w, deadline_in(CALL_PATIENCE)) == 0 && !w.failed && !w.held;
}

static void end_instance(const char *instance, void *arg)
{
    struct broker *b = arg;
    if (end_unheld(b, instance, deadline_in(SWEEP_PATIENCE)))
        doors_remove(b->config->state_dir, instance);
}

static void end_orphans(struct broker *b)
{
    struct sweep w = {
        .broker = b, .instance = b->config->instance, .until = deadline_in(SWEEP_PATIENCE)};
    int r = sweep(&w, deadline_in(LOOK_PATIENCE));

    b->look_wait = r < 0 || w.pressing || w.failed ? LOOK_LEAST : b->look_wait * 2;
    if (b->look_wait > LOOK_MOST)
        b->look_wait = LOOK_MOST;
    b->look = deadline_in(b->look_wait);
}

/* What needs the engine or the disk is made at the first request, whose failure it is, or before it
 * where there is something to sweep. */
static int set_up(struct broker *b, struct pd_err *e)
{
    if (b->ready)
        return 0;
    if (!b->remote && !(b->remote = remote_open(b->config, e)))
        return -1;
    if (doors_open(&b->places, b->config->state_dir, b->config->instance, b->init, e) < 0)
        return -1;

    doors_each_dead(b->config->state_dir, end_instance, b);
    suspect(b); /* a broker before this one may have been killed */
    b->ready = true;
    return 0;
}

/* ---- boxes ---- */

/* A box's name becomes a part of paths, of its place here and of what the engine is asked. */
static int check_box_name(const char *name, struct pd_err *e)
{
    if (!group_name_ok(name) || strlen(name) > MSG_NAME_MAX || strlen(name) >= REMOTE_BOX_MAX)
        return pd_fail(e, PD_INVALID, "'%.60s' is no name of a box: up to %u of a-z 0-9 . _ -",
                       name, MSG_NAME_MAX);
    return 0;
}

/* The engine may know more than that the link did not come up. Always -1. */
static int say_end(struct broker *b, const char *box, deadline t, struct pd_err *e)
{
    struct remote_state now;

    if (b->kind->find(b->remote, b->config->instance, box, &now, t, NULL) < 0 || now.running)
        return -1;
    return pd_fail(e, PD_LOST, "the sandbox ended before its link was up: %s",
                   now.why[0] ? now.why : "nobody says why");
}

/* Nothing of it stays; or it has no place any more when it comes, and is an orphan. */
static void unmake(struct broker *b, const char *name)
{
    suspect(b);
    (void)b->kind->end(b->remote, b->config->instance, name, deadline_in(CALL_PATIENCE), NULL);
    door_remove(&b->places, name);
}

/* From nothing to a link. The watch's pid, or -1. */
static pid_t make(struct broker *b, const struct msg_build *m, int lock, int control, deadline t,
                  int *ret_process, struct pd_err *e)
{
    struct remote_state made;
    struct remote_plan plan = {.instance = b->config->instance,
                               .box = m->name,
                               .spec = &m->spec,
                               .program = b->box,
                               .lease = b->config->lease};
    struct far_box box = {
        .config = b->config, .nursery = &b->nursery, .control = control, .lock = lock};

    remote_name(plan.instance, plan.box, plan.name);
    box.secret.box = wire_id_new();
    random_bytes(box.secret.key, sizeof box.secret.key);
    wire_id_text(box.secret.box, plan.link);
    memcpy(plan.key, box.secret.key, sizeof plan.key);
    int r = b->kind->create(b->remote, &plan, &made, t, e);
    explicit_bzero(plan.key, sizeof plan.key);
    if (r < 0)
        return -1;

    box.container = made.place;
    pid_t pid = b->start(&box, ret_process, deadline_in(LINK_PATIENCE), e);
    explicit_bzero(&box.secret, sizeof box.secret);
    return pid < 0 ? say_end(b, m->name, t, e) : pid;
}

static pid_t build(struct broker *b, const struct msg_build *m, int control, int *ret_process,
                   struct pd_err *e)
{
    if (check_box_name(m->name, e) < 0 || spec_check(&m->spec, e) < 0 ||
        remote_check_spec(b->kind, &m->spec, e) < 0 ||
        (b->kind->check_spec && b->kind->check_spec(b->remote, &m->spec, e) < 0))
        return -1;

    auto_fd place = door_hold(&b->places, m->name, e);
    if (place < 0)
        return -1;
    pid_t pid = make(b, m, place, control, deadline_in(BUILD_PATIENCE), ret_process, e);
    if (pid >= 0)
        return pid;

    unmake(b, m->name);
    return -1;
}

/* The keeper sends nothing but a CANCEL before it has its answer. It is left for the main loop. */
static bool is_wanted(void *context)
{
    const struct broker *b = context;
    struct pollfd more = {.fd = b->sock, .events = POLLIN};
    return poll(&more, 1, 0) <= 0;
}

static void do_build(struct broker *b, struct frame *f)
{
    struct pd_err e;
    struct msg_build m;
    auto_fd control = frame_take_fd(f, 0);
    auto_fd process = -1;

    b->remote->is_wanted = is_wanted;
    b->remote->wanted_context = b;
    pid_t pid =
        msg_build_decode(&f->payload, &m, &e) < 0 ? -1 : build(b, &m, control, &process, &e);
    b->remote->is_wanted = NULL;
    if (pid < 0) {
        reply_result(b, f->head.id, -1, &e);
        return;
    }

    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_built built = {.rung = b->kind->rung, .init_pid = pid};
    msg_built_encode(&out, &built);
    int fds[4] = {b->null, b->null, process, b->null};
    struct wire_head head = {.type = WIRE_BUILT, .flags = BOX_IS_FAR, .id = f->head.id};
    if (wire_send(b->sock, &head, &out, fds, 4, DEADLINE_NONE) == 0)
        return;

    /* The keeper is gone, and the next one does not know of it. */
    (void)syscall(SYS_pidfd_send_signal, process, SIGKILL, NULL, 0);
    unmake(b, m.name);
}

static int decode_box(const struct frame *f, struct msg_sweep *ret, struct pd_err *e)
{
    return msg_sweep_decode(&f->payload, ret, e) < 0 ? -1 : check_box_name(ret->name, e);
}

/* Its link is gone, or is to go. What the engine knows of its end is told with DONE. */
static void do_sweep(struct broker *b, const struct frame *f)
{
    struct pd_err e;
    struct msg_sweep m;
    struct remote_state now = {.why = ""};
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    deadline t = deadline_in(CALL_PATIENCE);

    if (decode_box(f, &m, &e) < 0) {
        reply_result(b, f->head.id, -1, &e);
        return;
    }

    int r = b->kind->find(b->remote, b->config->instance, m.name, &now, t, &e);
    if (r < 0 && e.code == PD_NOT_FOUND) {
        snprintf(now.why, sizeof now.why, "%.150s", e.msg);
        r = 0;
    }
    /* Also where there is none: a double that comes late has the same name. */
    if (r == 0)
        r = b->kind->end(b->remote, b->config->instance, m.name, t, &e);
    if (r < 0) {
        reply_result(b, f->head.id, -1, &e);
        return;
    }

    door_remove(&b->places, m.name);
    if (now.why[0])
        msg_key_encode(&out, &(struct msg_key){.key = now.why});
    reply(b, f->head.id, WIRE_DONE, &out);
}

/* Of a box that waits for somebody to use it. */
static int check_box(struct broker *b, const struct msg_sweep *m, struct pd_err *e)
{
    struct remote_state now;

    if (b->kind->find(b->remote, b->config->instance, m->name, &now, deadline_in(CALL_PATIENCE),
                      e) < 0)
        return -1;
    if (!now.running)
        return pd_fail(e, PD_CONFLICT, "it has ended: %s",
                       now.why[0] ? now.why : "nobody says why");
    return 0;
}

/* Those that are answered with DONE or ERROR. */
static int do_plain(struct broker *b, const struct frame *f, struct pd_err *e)
{
    struct msg_sweep s;

    switch (f->head.type) {
    case WIRE_STRIKE:
        if (decode_box(f, &s, e) < 0)
            return -1;
        return b->kind->end(b->remote, b->config->instance, s.name, deadline_in(CALL_PATIENCE), e);
    case WIRE_CHECK:
        return decode_box(f, &s, e) < 0 ? -1 : check_box(b, &s, e);
    case WIRE_THAW:
        return 0; /* nothing of ours freezes one */
    case WIRE_REMOVE_ROOT:
        return 0; /* there are none */
    case WIRE_COPY:
    case WIRE_KEEP_ROOT:
        return pd_fail(e, PD_UNSUPPORTED, "provider %s keeps no files beyond the sandbox",
                       b->kind->name);
    default:
        return pd_fail(e, PD_PROTOCOL, "message type %u is not for a broker", f->head.type);
    }
}

static void handle(struct broker *b, struct frame *f)
{
    struct pd_err e;

    if (f->head.type == WIRE_CANCEL)
        return; /* its BUILD was answered */
    if (set_up(b, &e) < 0) {
        reply_result(b, f->head.id, -1, &e);
        return;
    }

    if (f->head.type == WIRE_BUILD) {
        do_build(b, f);
    } else if (f->head.type == WIRE_SWEEP) {
        do_sweep(b, f);
    } else {
        int r = do_plain(b, f, &e);
        reply_result(b, f->head.id, r, &e);
    }
}

/* The next request. False when the keeper is gone. */
static bool next_request(struct broker *b, struct frame *f)
{
    for (;;) {
        struct pd_err e;
        int r = wire_recv(b->sock, f, b->ready ? b->look : DEADLINE_NONE, &e);
        if (r > 0)
            return true;
        if (r == 0 || e.code != PD_TIMEOUT)
            return false;
        doors_each_dead(b->config->state_dir, end_instance, b); /* what could not be ended */
        end_orphans(b);
    }
}

struct remote *remote_open(const struct broker_config *c, struct pd_err *e)
{
    struct remote *r = c->kind->open(c, e);

    if (!r)
        return NULL;
    r->kind = c->kind;
    r->config = c;
    return r;
}

void remote_close(struct remote *r)
{
    if (r)
        r->kind->close(r);
}

void remote_serve(const struct broker_config *c, int sock, int init_fd, int box_fd,
                  remote_start_link *start)
{
    struct broker b = {.config = c,
                       .kind = c->kind,
                       .start = start,
                       .sock = sock,
                       .init = init_fd,
                       .box = box_fd,
                       .places = {.dir = -1},
                       .nursery = {.sock = -1}};
    struct pd_err e;
    auto_frame f = FRAME_INIT;

    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGCHLD, SIG_IGN); /* watches of boxes: the keeper has their pidfds */
    (void)umask(022);
    (void)fcntl(sock, F_SETFD, FD_CLOEXEC);
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    b.null = null;
    (void)frame_reserve(&f);
    if (doors_have_others(c->state_dir, c->instance))
        (void)set_up(&b, &e); /* what a dead keeper has left does not wait for a request */
    while (next_request(&b, &f)) {
        handle(&b, &f);
        frame_reset(&f);
    }

    /* The keeper is gone, and with it the owner of every box that nobody holds for the next one. */
    if (set_up(&b, &e) == 0 && end_unheld(&b, c->instance, DEADLINE_NONE))
        doors_leave(&b.places, c->state_dir, c->instance);
    remote_close(b.remote);
    fd_done(&b.places.dir);
    nursery_done(&b.nursery);
}
