/* How this works: a link to a keeper is got and given up on a thread of the provider's own, the
 * tender, because both can take seconds and the pump's thread waits for nobody.
 *
 *   1. The pump sees that the link is at its end, or broken. It shuts the socket down, so that
 *      every thread which waits for room in it fails at once, wakes those that wait for an answer,
 *      and marks the link as broken (provider_link_lost).
 *   2. The tender closes the socket, under the lock that senders hold.
 *   3. It tries to connect until there is a keeper again. A box on another machine that this one
 *      has, too, goes on; all other jails that it finds there are ended, because their boxes were
 *      reported as lost.
 *
 * The tender also sends what the pump has to have sent: the end of a jail whose descriptors did not
 * arrive. */
#include "provider/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define GREET_PATIENCE  (5 * NS_PER_S)
#define RECONNECT_AFTER (250 * NS_PER_MS)
#define OPEN_PATIENCE   (10 * NS_PER_S)
#define OPEN_PAUSE_US   20000

/* "" when a link begins: nothing is left of what the keeper before had. */
static void set_trouble(struct keeper_provider *p, const char *why)
{
    lock_take(&p->lock);
    bool news = strcmp(p->cannot, why) != 0;
    snprintf(p->cannot, sizeof p->cannot, "%s", why);
    lock_release(&p->lock);

    if (news && p->base.events->trouble)
        p->base.events->trouble(&p->base, why);
}

void provider_take_trouble(struct keeper_provider *p, const struct frame *f)
{
    struct msg_trouble m;
    if (f->head.type == WIRE_TROUBLE && msg_trouble_decode(&f->payload, &m, NULL) == 0)
        set_trouble(p, m.text);
}

static int list_orphans(struct keeper_provider *p, struct keeper_link *l, struct pd_err *e)
{
    auto_frame f = FRAME_INIT;
    struct wire_head head = {.type = WIRE_LIST, .epoch = l->epoch, .id = wire_id_new()};

    if (wire_send(l->sock, &head, NULL, NULL, 0, deadline_in(GREET_PATIENCE)) < 0)
        return pd_fail(e, PD_LOST, "the keeper is gone");

    /* Patience for each: ten thousand jails on a busy machine take longer than one. */
    for (;;) {
        frame_reset(&f);
        int r = wire_recv(l->sock, &f, deadline_in(GREET_PATIENCE), e);
        if (r <= 0)
            return r == 0 ? pd_fail(e, PD_LOST, "the keeper is gone") : -1;
        provider_take_trouble(p, &f); /* it comes right after WELCOME */
        if (!wire_id_equal(f.head.id, head.id))
            continue;
        if (f.head.type == WIRE_LIST_END)
            return 0;

        struct msg_listed m;
        if (f.head.type != WIRE_LISTED || (f.fd_count != 3 && f.fd_count != 5) ||
            msg_listed_decode(&f.payload, &m, e) < 0)
            return pd_fail(e, PD_PROTOCOL, "the keeper answered %u to LIST", f.head.type);

        struct orphan *o = calloc(1, sizeof *o);
        if (!o)
            return pd_fail(e, PD_CAPACITY, "no memory");
        o->jail = JAIL_EMPTY;
        o->jail.id = m.jail;
        o->jail.is_far = f.head.flags & BOX_IS_FAR;
        o->jail.init_pid = m.init_pid;
        o->jail.control = frame_take_fd(&f, 0);
        o->jail.cgroup_dir = jail_real_dir(frame_take_fd(&f, 1));
        o->jail.devpts = jail_real_dir(frame_take_fd(&f, 2));
        o->jail.gate[0] = frame_take_fd(&f, 3);
        o->jail.gate[1] = frame_take_fd(&f, 4);
        o->jail.epoch = l->epoch;
        o->jail.rung = p->best;

        lock_take(&p->lock);
        o->next = p->orphans;
        p->orphans = o;
        lock_release(&p->lock);
    }
}

/* Forgets the jails that nobody has adopted; with `end` they end, without it they are listed again
 * by the next attempt. */
static void forget_orphans(struct keeper_provider *p, bool end)
{
    lock_take(&p->lock);
    struct orphan *all = p->orphans;
    p->orphans = NULL;
    lock_release(&p->lock);

    while (all) {
        struct orphan *o = all;
        all = o->next;
        if (end)
            keeper_provider_end(p, o->jail.id, 0);
        jail_done(&o->jail);
        free(o);
    }
}

/* So that provider_link_stop can end the wait for a keeper that says nothing. */
static void set_greeting(struct keeper_provider *p, int sock)
{
    lock_take(&p->lock);
    p->greeting = sock;
    if (p->stopping && sock >= 0)
        shutdown(sock, SHUT_RDWR);
    lock_release(&p->lock);
}

static struct keeper_box *box_of(struct keeper_provider *p, const struct orphan *o)
{
    struct keeper_box *b = *keeper_box_place(p, o->jail.id);
    return b && b->made && !b->lost ? b : NULL;
}

/* Boxes elsewhere whose keeper died, and that the next one has: they are no orphans. Before there
 * is a link, so that no box is being made. */
static void recognise_boxes(struct keeper_provider *p)
{
    lock_take(&p->lock);
    for (unsigned i = 0; i < BOX_BUCKETS; i++)
        for (struct keeper_box *b = p->boxes[i]; b; b = b->next)
            b->listed = false;
    for (struct orphan **at = &p->orphans; *at;) {
        struct orphan *o = *at;
        struct keeper_box *b = box_of(p, o);
        if (!b) {
            at = &o->next;
            continue;
        }
        b->listed = true;
        *at = o->next;
        jail_done(&o->jail);
        free(o);
    }
    lock_release(&p->lock);
    provider_lose_boxes(p, true);
}

void provider_drop_later(struct keeper_provider *p, const char *key)
{
    struct late_drop *d = calloc(1, sizeof *d);
    if (!d)
        return; /* the copy lasts as long as the sandbox */

    snprintf(d->key, sizeof d->key, "%s", key);
    lock_take(&p->lock);
    d->next = p->drops;
    p->drops = d;
    lock_release(&p->lock);
}

/* What was to be dropped while there was no keeper. */
static void drop_late(struct keeper_provider *p)
{
    lock_take(&p->lock);
    struct late_drop *all = p->drops;
    p->drops = NULL;
    lock_release(&p->lock);

    while (all) {
        struct late_drop *d = all;
        all = d->next;
        p->base.drop(&p->base, d->key);
        free(d);
    }
}

static int greet(struct keeper_provider *p, struct keeper_link *l, struct pd_err *e)
{
    enum rung best;
    if (keeper_greet(l, &best, deadline_in(GREET_PATIENCE), e) < 0)
        return -1;

    lock_take(&p->lock);
    p->best = best;
    lock_release(&p->lock);

    set_trouble(p, "");
    if (list_orphans(p, l, e) == 0) {
        recognise_boxes(p);
        return 0;
    }
    forget_orphans(p, false);
    return -1;
}

int provider_link_connect(struct keeper_provider *p, struct pd_err *e)
{
    struct keeper_link l = {.sock = -1};
    if (p->start)
        l.sock = p->start(p->start_arg, e);
    else if (keeper_connect(&l, p->socket_path, e) < 0)
        return -1;
    if (l.sock < 0)
        return -1;

    set_greeting(p, l.sock);
    int r = greet(p, &l, e);
    set_greeting(p, -1);
    if (r < 0) {
        keeper_link_done(&l);
        return -1;
    }

    lock_take(&p->sending);
    lock_take(&p->lock);
    p->link = l;
    p->trouble[0] = 0;
    lock_release(&p->lock);
    lock_release(&p->sending);

    p->keeper = (struct pump_source){.ready = provider_keeper_ready, .fd = l.sock};
    if (pump_add(p->pump, &p->keeper, EPOLLIN, e) == 0) {
        drop_late(p);
        return 0;
    }
    provider_link_lost(p, e->msg); /* nobody would hear what it says */
    return -1;
}

static bool is_gone(const struct pd_err *e)
{
    return e->code == PD_LOST || e->sys == ECONNREFUSED || e->sys == ECONNRESET ||
           e->sys == EPIPE || e->sys == ENOENT;
}

int provider_link_open(struct keeper_provider *p, struct pd_err *e)
{
    deadline d = deadline_in(OPEN_PATIENCE);

    int r = provider_link_connect(p, e);
    while (r < 0 && !p->start && is_gone(e) && !deadline_passed(d)) {
        usleep(OPEN_PAUSE_US);
        r = provider_link_connect(p, e);
    }
    return r;
}

/* ---- what the pump leaves to the tender ---- */

void provider_link_lost(struct keeper_provider *p, const char *why)
{
    lock_take(&p->lock);
    shutdown(p->link.sock, SHUT_RDWR);
    p->broken = true;
    snprintf(p->trouble, sizeof p->trouble, "the keeper is gone: %.150s", why);
    for (struct waiter *w = p->waiters; w; w = w->next)
        if (!w->done) {
            w->done = -1;
            pthread_cond_signal(&w->cond);
        }
    pthread_cond_signal(&p->tend);
    lock_release(&p->lock);
}

void provider_link_end_later(struct keeper_provider *p, struct wire_id jail, unsigned flags)
{
    struct box_ending *n = calloc(1, sizeof *n);
    if (!n)
        return; /* it is a stranger to the next daemon, which ends it */
    n->jail = jail;
    n->flags = flags;

    lock_take(&p->lock);
    n->next = p->endings;
    p->endings = n;
    pthread_cond_signal(&p->tend);
    lock_release(&p->lock);
}

/* Whoever has not sent CREATE yet sees that his box is unwanted; the order of the two is that of
 * `sending`. Where it was answered there is nothing left to cancel. */
void keeper_provider_cancel(struct provider *base, struct wire_id id)
{
    struct keeper_provider *p = base->state;

    lock_take(&p->lock);
    const struct waiter *w = p->waiters;
    while (w && !(w->box && !w->done && wire_id_equal(w->id, id)))
        w = w->next;
    lock_release(&p->lock);

    if (w)
        provider_link_end_later(p, id, DESTROY_UNMADE);
}

/* ---- the tender ---- */

static void close_broken(struct keeper_provider *p)
{
    lock_take(&p->sending);
    lock_take(&p->lock);
    keeper_link_done(&p->link);
    p->broken = false;
    p->reconnect_at = deadline_in(RECONNECT_AFTER);
    lock_release(&p->lock);
    lock_release(&p->sending);
}

static void reconnect(struct keeper_provider *p)
{
    struct pd_err e;
    if (provider_link_connect(p, &e) == 0) {
        /* What is left are boxes that were reported as lost. */
        p->base.end_strangers(&p->base);
        return;
    }

    lock_take(&p->lock);
    snprintf(p->trouble, sizeof p->trouble, "%.190s", e.msg);
    p->reconnect_at = deadline_in(RECONNECT_AFTER);
    lock_release(&p->lock);
}

/* Does one thing that is due, without the lock; false when there is none. */
static bool tend_once(struct keeper_provider *p)
{
    struct box_ending *n = p->endings;
    bool due = n || p->broken || (p->link.sock < 0 && deadline_passed(p->reconnect_at));
    if (!due)
        return false;

    bool broken = p->broken;
    if (n)
        p->endings = n->next;
    lock_release(&p->lock);

    if (n)
        keeper_provider_end(p, n->jail, n->flags);
    else if (broken)
        close_broken(p);
    else
        reconnect(p);
    free(n);

    lock_take(&p->lock);
    return true;
}

static void *tender_main(void *arg)
{
    struct keeper_provider *p = arg;

    lock_take(&p->lock);
    while (!p->stopping)
        if (!tend_once(p))
            (void)lock_wait(&p->tend, &p->lock, p->link.sock < 0 ? p->reconnect_at : DEADLINE_NONE);
    lock_release(&p->lock);
    return NULL;
}

int provider_link_start(struct keeper_provider *p, struct pd_err *e)
{
    int r = pthread_create(&p->tender, NULL, tender_main, p);
    if (r) {
        errno = r;
        return pd_fail_sys(e, "start a thread for the keeper");
    }
    p->tended = true;
    return 0;
}

void provider_link_stop(struct keeper_provider *p)
{
    lock_take(&p->lock);
    p->stopping = true;
    if (p->greeting >= 0)
        shutdown(p->greeting, SHUT_RDWR);
    pthread_cond_signal(&p->tend);
    lock_release(&p->lock);

    if (p->tended)
        pthread_join(p->tender, NULL);
    p->tended = false;

    while (p->endings) {
        struct box_ending *n = p->endings;
        p->endings = n->next;
        free(n);
    }
    while (p->drops) {
        struct late_drop *d = p->drops;
        p->drops = d->next;
        free(d);
    }
}

void keeper_provider_end_strangers(struct provider *base)
{
    forget_orphans(base->state, true);
}

enum rung keeper_provider_best(struct provider *base)
{
    struct keeper_provider *p = base->state;
    lock_take(&p->lock);
    enum rung best = p->best;
    lock_release(&p->lock);
    return best;
}
