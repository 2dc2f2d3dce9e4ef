/* Connections to hosts with secrets or header rules. The gate decides and dials as always; then the
 * changer, which can read the sandbox's secrets, gets both sockets and speaks TLS with both sides.
 * The gate keeps them, too: so it can end the connection at any moment, and sees to it that the
 * sandbox is told of a reset when the changer dies.
 *
 * A loan lasts until the changer has given it back, also when its connection has ended before: only
 * then is the changer's thread free. There are so many loans at once and no more, and they are
 * shared: a tenant has at most as many as it leaves free, a sandbox half of what its tenant could
 * still have. So one tenant alone gets half of all, two get a third each, and whoever has none
 * finds some, as long as not twenty others take all that they can. A connection that finds no
 * changer, or no room, waits. */
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "gate/gate_state.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

struct loan {
    struct loan *next; /* of its bucket */
    uint64_t number;
    struct flow *flow; /* NULL: it has ended, and the changer has not said so yet */
    struct tenant *tenant;
};

static struct loan **place(struct gate *g, uint64_t number)
{
    struct loan **at = &g->loans[number % LOAN_BUCKETS];
    while (*at && (*at)->number != number)
        at = &(*at)->next;
    return at;
}

/* Its connection goes on without it, or is over. */
static void part(struct loan *l)
{
    if (!l->flow)
        return;
    l->flow->sandbox->loans--;
    l->flow->loan = NULL;
    l->flow = NULL;
}

static void drop(struct gate *g, struct loan **at)
{
    struct loan *l = *at;

    *at = l->next;
    part(l);
    g->loan_count--;
    if (l->tenant)
        l->tenant->loans--;
    tenant_leave(g, l->tenant);
    free(l);
}

/* Resets both sides although the changer has the sockets, too. */
static void cut(const struct flow *f)
{
    struct sockaddr none = {.sa_family = AF_UNSPEC};

    (void)connect(f->near.fd, &none, sizeof none);
    (void)connect(f->far.fd, &none, sizeof none);
}

/* ---- waiting ---- */

static void wait_for_turn(struct flow *f)
{
    struct gate *g = f->sandbox->gate;

    f->turn_next = NULL;
    f->turn_link = g->turns_last;
    *g->turns_last = f;
    g->turns_last = &f->turn_next;
    flow_set_late(f, deadline_in(LEND_PATIENCE));
}

static void stop_waiting(struct flow *f)
{
    struct gate *g = f->sandbox->gate;

    if (!f->turn_link)
        return;
    *f->turn_link = f->turn_next;
    if (f->turn_next)
        f->turn_next->turn_link = f->turn_link;
    else
        g->turns_last = f->turn_link;
    f->turn_link = NULL;
    flow_set_late(f, DEADLINE_NONE);
}

void lend_leave(struct flow *f)
{
    stop_waiting(f);
    if (!f->loan)
        return;
    cut(f);
    part(f->loan);
}

/* ---- giving ---- */

bool lend_has_room(uint64_t most, uint64_t all, uint64_t tenant, uint64_t sandbox)
{
    if (all >= most || tenant >= most - all)
        return false;
    return !sandbox || sandbox < (most - all - tenant) / 2;
}

static bool has_room(const struct flow *f)
{
    const struct sandbox *s = f->sandbox;
    uint64_t most = s->policy->limits.loans;

    return lend_has_room(most ? most : EGRESS_LOANS, s->gate->loan_count,
                         s->tenant ? s->tenant->loans : 0, s->loans);
}

static bool send_loan(const struct flow *f, uint64_t number)
{
    const struct sandbox *s = f->sandbox;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct wire_head head = {.type = GATE_LEND};
    struct gate_lend m = {.id = s->id,
                          .sealed = s->sealed,
                          .host = f->name,
                          .flow = number,
                          .rate = s->policy->limits.rate,
                          .port = f->changed.port,
                          .is_tls = f->kind == GATE_TLS,
                          .is_plain = f->changed.is_plain,
                          .first = f->first,
                          .first_len = f->first_len};
    const int fds[] = {f->near.fd, f->far.fd};

    gate_lend_encode(&out, &m);
    return !out.overflow && wire_send(s->gate->changer.fd, &head, &out, fds, 2, 0) == 0;
}

/* False: there is no changer, it takes no more now, or there is no room. */
static bool give(struct flow *f)
{
    struct sandbox *s = f->sandbox;
    struct gate *g = s->gate;

    if (g->changer.fd < 0 || !has_room(f))
        return false;
    struct loan *l = calloc(1, sizeof *l);
    if (!l || !send_loan(f, g->loan_last + 1)) {
        free(l);
        return false;
    }

    l->number = ++g->loan_last;
    l->flow = f;
    l->tenant = s->tenant;
    if (l->tenant) {
        l->tenant->users++;
        l->tenant->loans++;
    }
    *place(g, l->number) = l;
    f->loan = l;
    g->loan_count++;
    s->loans++;

    free(f->first);
    f->first = NULL;
    f->first_len = f->first_room = 0;
    return true;
}

void lend_begin(struct flow *f)
{
    struct gate *g = f->sandbox->gate;

    /* Nothing is heard of either side: the changer listens to both. */
    (void)watch_set(g, &f->near, 0);
    (void)watch_set(g, &f->far, 0);
    if (!give(f))
        wait_for_turn(f);
}

/* What waits for a changer, or for room: in the order in which it came, but for those that have
 * their share. */
static void give_waiting(struct gate *g)
{
    for (struct flow *f = g->turns, *next; f; f = next) {
        next = f->turn_next;
        if (give(f))
            stop_waiting(f);
    }
}

/* ---- the changer ---- */

static void changer_lost(struct gate *g)
{
    watch_close(g, &g->changer);
    for (unsigned i = 0; i < LOAN_BUCKETS; i++)
        while (g->loans[i]) {
            struct flow *f = g->loans[i]->flow;
            if (f)
                flow_end(f, GATE_BROKEN, "the server lost the connection");
            drop(g, &g->loans[i]);
        }
}

void changer_accept(struct gate *g)
{
    int fd = accept4(g->changers.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;

    changer_lost(g);
    g->changer.fd = fd;
    (void)watch_set(g, &g->changer, EPOLLIN);
    give_waiting(g);
}

/* The changer has given a connection back. A good end was said by it: nothing is cut then. */
static void end_loan(struct gate *g, struct loan **at, const struct gate_moved *m)
{
    struct flow *f = (*at)->flow;

    if (f && m->result != GATE_OK)
        cut(f);
    drop(g, at);
    if (f)
        flow_end(f, m->result, m->why);
}

/* A changer tells what it has moved; the connection may be gone by now. */
static void take_word(struct gate *g, const struct frame *frame)
{
    struct gate_moved m;
    if (gate_moved_decode(&frame->payload, &m, NULL) < 0)
        return;
    struct loan **at = place(g, m.flow);
    if (!*at)
        return;

    struct flow *f = (*at)->flow;
    if (f) {
        f->up.bytes += m.up;
        f->down.bytes += m.down;
        f->sandbox->bytes += m.up + m.down;
    }
    if (frame->head.type == GATE_BACK)
        end_loan(g, at, &m);
    else if (f && f->sandbox->policy->limits.bytes &&
             f->sandbox->bytes > f->sandbox->policy->limits.bytes)
        flow_end(f, GATE_CUT, "its limit of bytes is used up");
}

void changer_ready(struct gate *g)
{
    auto_frame f = FRAME_INIT;
    struct pd_err e;

    int r = wire_recv_plain(g->changer.fd, &f, 0, &e);
    if (r < 0 && e.code == PD_TIMEOUT)
        return;
    if (r <= 0 || (f.head.type != GATE_MOVED && f.head.type != GATE_BACK)) {
        changer_lost(g);
        return;
    }
    take_word(g, &f);
    give_waiting(g);
}
