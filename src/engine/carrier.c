/* How this works: it waits for an order, has the backend reach the box (remote.h), and copies until
 * one side ends or the next order comes. Each direction has a buffer that is filled when it is
 * empty and emptied when it can be, so that neither waits for the other. */
#include "engine/carrier.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "engine/broker.h"
#include "engine/remote.h"
#include "engine/stream.h"
#include "wire/msg.h"

#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE (10 * NS_PER_S)
#define RENEWALS 3u /* within a lease */
#define PIECE    (64u << 10)

struct carrier {
    const struct broker_config *config;
    struct remote *remote; /* while the box is being reached, or NULL */
    const char *place;
    int orders, report;
    int next; /* the end that is to be joined, or -1 */
    deadline renewal;
};

/* One connection. */
struct trip {
    struct byte_stream *stream;
    int near;
    uint8_t out[PIECE]; /* to the box */
    size_t out_at, out_len;
    uint8_t in[PIECE]; /* from the box */
    size_t in_at, in_len;
    bool blocked; /* the box's side takes no more for now */
};

/* ---- orders ---- */

/* Takes all orders that are there: the last one counts. Waits for one if there is none to carry
 * out. False when there will be none any more. */
static bool take_orders(struct carrier *c)
{
    for (;;) {
        auto_frame f = FRAME_INIT;
        struct pd_err e;
        int r = wire_recv(c->orders, &f, c->next < 0 ? DEADLINE_NONE : 0, &e);
        if (r < 0 && e.code == PD_TIMEOUT)
            return true;
        if (r <= 0)
            return false;

        fd_done(&c->next);
        c->next = frame_take_fd(&f, 0);
    }
}

/* ---- bytes ---- */

static bool passes(ssize_t n)
{
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

/* As much as goes without waiting; there may be more in the stream than poll sees. */
static bool move_in(struct trip *t)
{
    for (;;) {
        if (t->in_at == t->in_len) {
            ssize_t n = byte_stream_read(t->stream, t->in, sizeof t->in);
            if (n <= 0)
                return n == -EAGAIN;
            t->in_at = 0;
            t->in_len = (size_t)n;
        }

        ssize_t n = send(t->near, t->in + t->in_at, t->in_len - t->in_at, MSG_NOSIGNAL);
        if (n < 0)
            return passes(n);
        t->in_at += (size_t)n;
    }
}

static bool move_out(struct trip *t)
{
    if (!t->out_len) {
        ssize_t n = recv(t->near, t->out, sizeof t->out, 0);
        if (n <= 0)
            return passes(n);
        t->out_at = 0;
        t->out_len = (size_t)n;
    }

    ssize_t n = byte_stream_write(t->stream, t->out + t->out_at, t->out_len);
    t->blocked = n == -EAGAIN;
    if (n < 0)
        return n == -EAGAIN;
    t->out_at += (size_t)n;
    t->out_len -= (size_t)n;
    return true;
}

/* What the stream has to say by itself, where nothing of ours is on its way. */
static bool move_own(struct trip *t)
{
    if (!t->stream->wants_write || t->out_len)
        return true;
    ssize_t n = byte_stream_write(t->stream, NULL, 0);
    t->blocked = n == -EAGAIN;
    return n >= 0 || n == -EAGAIN;
}

/* ---- the lease ---- */

static void plan_renewal(struct carrier *c)
{
    c->renewal = c->config->kind->renew ? deadline_in(c->config->lease * NS_PER_S / RENEWALS)
                                        : DEADLINE_NONE;
}

/* In a process of its own, so that no byte of the link waits for it. What fails is tried again at
 * the next time; a box that is gone cuts its link. */
static void renew(struct carrier *c)
{
    struct pd_err e;

    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
    plan_renewal(c);
    pid_t pid = fork();
    if (pid != 0)
        return;
    struct remote *r = remote_open(c->config, &e);
    if (r)
        (void)r->kind->renew(r, c->place, c->renewal, &e);
    _exit(r ? 0 : 1);
}

/* Until one side ends, or another order comes. */
static void carry(struct carrier *c, struct trip *t)
{
    /* First what came with the head of the answer, which poll does not see. */
    while (move_in(t) && move_out(t) && move_own(t)) {
        bool full = t->in_at < t->in_len;
        short far = (short)((full ? 0 : POLLIN) | (t->blocked ? POLLOUT : 0));
        short near = (short)((t->out_len ? 0 : POLLIN) | (full ? POLLOUT : 0));
        struct pollfd p[3] = {{.fd = t->stream->kind->fd(t->stream), .events = far},
                              {.fd = t->near, .events = near},
                              {.fd = c->orders, .events = POLLIN}};
        bool more = t->out_len && !t->blocked;
        if (poll(p, 3, more ? 0 : deadline_poll_ms(c->renewal)) < 0 && errno != EINTR)
            return;
        if (p[2].revents)
            return;
        if (deadline_passed(c->renewal))
            renew(c);
    }
}

/* ---- connections ---- */

static void tell(const struct carrier *c, const char *why)
{
    char line[240];
    int n = snprintf(line, sizeof line, "%.230s\n", why);
    if (n > 0)
        (void)send(c->report, line, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* For the time that bytes are carried: what it took to reach the box is given back, with what a
 * backend keeps for its next request, where requests are rare. */
static void rest(struct carrier *c)
{
    if (c->config->kind->renew) {
        remote_close(c->remote);
        c->remote = NULL;
    }
    (void)malloc_trim(0);
}

/* -1 when the box is gone. */
static int join(struct carrier *c, int near)
{
    static struct trip t; /* its pages of buffers are used when there is something to carry */
    struct pd_err e;

    t.near = near;
    t.out_at = t.out_len = t.in_at = t.in_len = 0;
    t.blocked = false;
    if (!c->remote && !(c->remote = remote_open(c->config, &e))) {
        tell(c, e.msg);
        return 0;
    }
    t.stream = c->remote->kind->reach(c->remote, c->place, deadline_in(PATIENCE), &e);
    if (!t.stream) {
        tell(c, e.msg);
        return e.code == PD_NOT_FOUND || e.code == PD_LOST ? -1 : 0;
    }

    plan_renewal(c);
    rest(c);
    carry(c, &t);
    if (byte_stream_words(t.stream)[0])
        tell(c, byte_stream_words(t.stream));
    t.stream->kind->free(t.stream);
    return 0;
}

_Noreturn void carrier_main(const struct broker_config *config, const char *place, int orders,
                            int report)
{
    struct carrier c = {
        .config = config, .place = place, .orders = orders, .report = report, .next = -1};
    struct pd_err e;
    int r = 0;

    c.remote = remote_open(config, &e);
    if (!c.remote) {
        tell(&c, e.msg);
        _exit(1);
    }
    while (r == 0 && take_orders(&c)) {
        auto_fd near = fd_take(&c.next);
        if (near >= 0)
            r = join(&c, near);
    }
    remote_close(c.remote);
    _exit(r < 0 ? CARRIER_GONE : 0);
}
