/* Connections that wait for their next request. A parked connection costs no thread: it is armed
 * for one event in the epoll set, and stands in a slot of a wheel of deadlines that the manager
 * turns. It belongs to the thread that claims it, which takes it out of the wheel under the
 * server's lock. */
#include "net/server_state.h"

#include "base/err.h"

#include "base/banned.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

void manager_wake(struct server *s)
{
    uint64_t one = 1;
    /* Fails only when the counter is full, and then the manager is awake. */
    ssize_t n = write(s->wake, &one, sizeof one);
    (void)n;
}

struct connection *connection_new(struct server *s, struct conn *conn)
{
    struct connection *c = calloc(1, sizeof *c);
    if (!c) {
        conn_free(conn);
        return NULL;
    }

    c->source.kind = SOURCE_CONNECTION;
    c->conn = conn;
    c->idle_until = deadline_in(s->config.idle_timeout_ns);

    lock_take(&s->lock);
    /* Once the manager counts down to zero, nothing may be added. */
    int stopping = atomic_load(&s->stopping);
    if (!stopping) {
        c->next = s->all;
        c->link = &s->all;
        if (c->next)
            c->next->link = &c->next;
        s->all = c;
        s->connections++;
    }
    lock_release(&s->lock);

    if (!stopping)
        return c;
    conn_free(conn);
    free(c);
    return NULL;
}

void connection_free(struct server *s, struct connection *c)
{
    /* The manager finds connections to shut down in the list, so this one leaves it first. */
    lock_take(&s->lock);
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    lock_release(&s->lock);

    /* A child between fork and exec may still have the socket; the set must forget it all the same.
     */
    if (c->armed_before)
        (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, conn_fd(c->conn), NULL);
    conn_free(c->conn);
    free(c->saved);
    free(c);

    lock_take(&s->lock);
    s->connections--;
    if (!s->connections && atomic_load(&s->stopping))
        manager_wake(s);
    lock_release(&s->lock);
}

void connection_claim(struct connection *c)
{
    if (!c->slot_link)
        return;

    *c->slot_link = c->slot_next;
    if (c->slot_next)
        c->slot_next->slot_link = c->slot_link;
    c->slot_link = NULL;
}

/* When a tick is over and its slot can be looked at. */
static deadline tick_end(uint64_t tick)
{
    return (tick + 1) << TICK_SHIFT;
}

void connection_park(struct server *s, struct connection *c, enum phase phase, deadline expires)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, .data.ptr = c};
    int op = c->armed_before ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    uint64_t tick = expires >> TICK_SHIFT;

    c->phase = phase;
    c->expires = expires;
    c->armed_before = 1;

    /* Armed under the lock: the thread that gets the event needs the lock to claim it. */
    lock_take(&s->lock);
    int parked = !atomic_load(&s->stopping) && epoll_ctl(s->epoll, op, conn_fd(c->conn), &ev) == 0;
    if (parked) {
        if (tick < s->tick)
            tick = s->tick;
        struct connection **slot = &s->slots[tick % SLOT_COUNT];
        c->slot_next = *slot;
        c->slot_link = slot;
        if (c->slot_next)
            c->slot_next->slot_link = &c->slot_next;
        *slot = c;
        if (tick_end(tick) < s->manager_wakes)
            manager_wake(s);
    }
    lock_release(&s->lock);

    if (!parked)
        connection_free(s, c);
}

deadline wheel_turn(struct server *s, int everything)
{
    uint64_t now = clock_now(), now_tick = now >> TICK_SHIFT;
    uint64_t from = s->tick, count = now_tick > from ? now_tick - from : 0;

    if (everything || count > SLOT_COUNT)
        count = SLOT_COUNT;

    for (uint64_t i = 0; i < count; i++) {
        struct connection *next;
        for (struct connection *c = s->slots[(from + i) % SLOT_COUNT]; c; c = next) {
            next = c->slot_next;
            if (!everything && c->expires > now)
                continue;
            connection_claim(c);
            c->expired = 1;
            (void)shutdown(conn_fd(c->conn), SHUT_RD);
        }
    }

    if (now_tick > s->tick)
        s->tick = now_tick;

    for (uint64_t i = 0; i < SLOT_COUNT; i++)
        if (s->slots[(s->tick + i) % SLOT_COUNT])
            return tick_end(s->tick + i);
    return DEADLINE_NONE;
}
