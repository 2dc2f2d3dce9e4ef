/* The gate's loop: one thread, one epoll. Handlers never wait. What they close or free during a
 * round of events is freed after it, because epoll may have told of it in the same round. Things
 * that have a deadline are looked at every 20 ms, while there are any. */
#include "gate/gate.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/nobody.h"
#include "gate/gate_state.h"
#include "wire/msg.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define EVENTS_AT_ONCE 128

bool watch_set(struct gate *g, struct watch *w, uint32_t events)
{
    if (w->fd < 0 || w->events == events)
        return true;

    struct epoll_event event = {.events = events, .data.ptr = w};
    int op = !w->events ? EPOLL_CTL_ADD : !events ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    if (epoll_ctl(g->epoll, op, w->fd, &event) < 0)
        return false;
    w->events = events;
    return true;
}

void watch_close(struct gate *g, struct watch *w)
{
    (void)watch_set(g, w, 0);
    fd_done(&w->fd);
    w->events = 0;
}

void watch_close_own(struct watch *w)
{
    fd_done(&w->fd);
    w->events = 0;
}

/* ---- the client ---- */

static void reply(struct gate *g, struct wire_id id, const struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct wire_head head = {.type = e ? WIRE_ERROR : WIRE_DONE, .id = id};

    if (e)
        msg_error_put(&out, e);
    (void)wire_send(g->client.fd, &head, &out, NULL, 0, 0);
}

static int set_policy(struct gate *g, const struct gate_open *m, struct frame *f, struct pd_err *e)
{
    struct sandbox *s = sandbox_find(g, m->id);
    struct egress_policy *p;

    if (!s && (f->head.type != GATE_OPEN || f->fd_count != 2))
        return pd_fail(e, PD_NOT_FOUND, "the gate does not know sandbox '%.63s'", m->id);
    if (egress_parse(m->policy, strlen(m->policy), &p, e) < 0)
        return -1;

    if (!s) {
        int tcp = frame_take_fd(f, 0), dns = frame_take_fd(f, 1);
        return sandbox_open(g, m, p, tcp, dns, e);
    }
    s->told = true;
    return sandbox_set_policy(s, m->sealed, p, e);
}

static int do_request(struct gate *g, struct frame *f, struct pd_err *e)
{
    struct gate_open m;

    if (f->head.type == GATE_SYNC) {
        sandboxes_forget_untold(g);
        return 0;
    }
    if (f->head.type != GATE_OPEN && f->head.type != GATE_POLICY && f->head.type != GATE_CLOSE)
        return pd_fail(e, PD_PROTOCOL, "message type %u is not for the gate", f->head.type);
    if (gate_open_decode(&f->payload, &m, e) < 0)
        return -1;
    if (f->head.type != GATE_CLOSE)
        return set_policy(g, &m, f, e);

    struct sandbox *s = sandbox_find(g, m.id);
    if (s)
        sandbox_close(s);
    return 0;
}

static void client_lost(struct gate *g)
{
    watch_close(g, &g->client);
    if (g->listener.fd < 0)
        g->ended = true;
}

static void client_ready(struct gate *g, uint32_t events)
{
    auto_frame f = FRAME_INIT;
    struct pd_err e;

    if (events & EPOLLOUT)
        records_send(g);
    if (g->client.fd < 0 || !(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        return;

    int r = wire_recv(g->client.fd, &f, 0, &e);
    if (r < 0 && e.code == PD_TIMEOUT)
        return;
    if (r <= 0) {
        client_lost(g);
        return;
    }
    r = do_request(g, &f, &e);
    reply(g, f.head.id, r < 0 ? &e : NULL);
}

/* The next daemon. What it does not tell of until SYNC is forgotten then. */
static void client_accept(struct gate *g)
{
    int fd = accept4(g->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;

    watch_close(g, &g->client);
    g->client.fd = fd;
    for (struct sandbox *s = g->sandboxes; s; s = s->next)
        s->told = false;
    (void)watch_set(g, &g->client, EPOLLIN);
    records_send(g);
}

/* ---- the loop ---- */

static void dispatch(struct gate *g, struct watch *w, uint32_t events)
{
    if (w->fd < 0)
        return; /* closed in this round */

    switch (w->kind) {
    case WATCH_UNTIL:
        g->ended = true;
        return;
    case WATCH_LISTENER:
        client_accept(g);
        return;
    case WATCH_CLIENT:
        client_ready(g, events);
        return;
    case WATCH_CHANGERS:
        changer_accept(g);
        return;
    case WATCH_CHANGER:
        changer_ready(g);
        return;
    case WATCH_ACCEPT:
        sandbox_accept(w->owner);
        return;
    case WATCH_QUESTIONS:
        dns_ready(w->owner);
        return;
    case WATCH_NEAR:
        flow_near_ready(w->owner, events);
        return;
    case WATCH_FAR:
        flow_far_ready(w->owner, events);
        return;
    case WATCH_LOOKUP:
        lookup_ready(w->owner, w);
    }
}

static bool needs_ticks(const struct gate *g)
{
    return g->late || g->lookups || g->waiting;
}

static void tick(struct gate *g)
{
    for (struct flow *f = g->late, *next; f; f = next) {
        next = f->late_next;
        if (deadline_passed(f->late))
            flow_late(f);
    }
    for (struct lookup *l = g->lookups, *next; l; l = next) {
        next = l->next;
        if (deadline_passed(l->late))
            lookup_late(l);
    }
    sandboxes_tick(g);
}

static void collect(struct gate *g)
{
    flows_collect(g);
    lookups_collect(g);
    sandboxes_collect(g);
}

static void loop(struct gate *g)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    uint64_t ticked = clock_now();

    while (!g->ended) {
        int n = epoll_wait(g->epoll, events, EVENTS_AT_ONCE, needs_ticks(g) ? TICK_MS : -1);
        for (int i = 0; i < n; i++)
            dispatch(g, events[i].data.ptr, events[i].events);
        if (clock_now() - ticked >= TICK_MS * NS_PER_MS) {
            tick(g);
            ticked = clock_now();
        }
        collect(g);
    }

    while (g->sandboxes)
        sandbox_close(g->sandboxes);
    collect(g);
    records_free(g);
}

/* ---- the start ---- */

static int bind_at(const char *path, uid_t owner, struct pd_err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof a.sun_path)
        return pd_fail(e, PD_INVALID, "the path '%.100s' is too long", path);
    memcpy(a.sun_path, path, strlen(path) + 1);

    auto_fd fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)unlink(path);
    mode_t before = umask(0177);
    int r = fd < 0 ? -1 : bind(fd, (struct sockaddr *)&a, sizeof a);
    (void)umask(before);
    if (r < 0 || listen(fd, 8) < 0 || (owner != geteuid() && chown(path, owner, (gid_t)-1) < 0))
        return pd_fail_sys(e, "listen at %.100s", path);
    return fd_take(&fd);
}

/* Only one gate serves a socket: a lock beside it says which. */
static int listen_at(const struct gate_config *c, struct pd_err *e)
{
    char lock_path[sizeof((struct sockaddr_un *)NULL)->sun_path + 8];

    if ((size_t)snprintf(lock_path, sizeof lock_path, "%s.lock", c->socket) >= sizeof lock_path)
        return pd_fail(e, PD_INVALID, "--socket: '%.100s' is too long", c->socket);
    int lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0)
        return pd_fail_sys(e, "open %.100s", lock_path);
    if (flock(lock, LOCK_EX | LOCK_NB) < 0) {
        fd_done(&lock);
        return pd_fail(e, PD_CONFLICT, "there is a gate at %.100s", c->socket);
    }
    return bind_at(c->socket, c->owner, e); /* the lock stays open as long as we live */
}

/* The point of no return. */
static int drop(struct pd_err *e)
{
    if (nobody_become(e) < 0)
        return -1;
    int r = filter_load();
    errno = -r;
    return r < 0 ? pd_fail_sys(e, "load the gate's filter") : 0;
}

int gate_run(const struct gate_config *c, struct pd_err *e)
{
    static struct gate g;

    g = (struct gate){.until = {.kind = WATCH_UNTIL, .fd = c->until},
                      .listener = {.kind = WATCH_LISTENER, .fd = -1},
                      .client = {.kind = WATCH_CLIENT, .fd = c->client},
                      .changers = {.kind = WATCH_CHANGERS, .fd = -1},
                      .changer = {.kind = WATCH_CHANGER, .fd = -1}};
    g.records_last = &g.records;
    g.turns_last = &g.turns;
    (void)fd_limit_raise(0);
    signal(SIGPIPE, SIG_IGN);
    if (c->socket && (g.listener.fd = listen_at(c, e)) < 0)
        return -1;
    if (c->changer && (g.changers.fd = bind_at(c->changer, geteuid(), e)) < 0)
        return -1;

    g.route = route_open();
    g.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (g.route < 0 || g.epoll < 0)
        return pd_fail_sys(e, "make the gate's sockets");
    if (g.client.fd >= 0)
        (void)fd_set_nonblock(g.client.fd);
    relay_open_pipe(&g);
    if (drop(e) < 0)
        return -1;

    if (!watch_set(&g, &g.until, EPOLLIN) || !watch_set(&g, &g.listener, EPOLLIN) ||
        !watch_set(&g, &g.client, EPOLLIN) || !watch_set(&g, &g.changers, EPOLLIN))
        return pd_fail_sys(e, "watch the gate's sockets");
    loop(&g);
    return 0;
}
