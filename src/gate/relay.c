/* Copying, both ways. What one side does not take is kept, and nothing more is read for it: memory
 * is bounded by one buffer a direction. An end is passed on as an end; anything else that stops a
 * side resets the other.
 *
 * A direction in which much comes at once is spliced: that takes the gate two thirds of the
 * processor that reading and writing does, and more than that of the sandbox, which has its caches
 * to itself. All share one pipe, which is empty between turns: what is left in it when the other
 * side takes no more is read out of it and kept. Should it ever not be empty it is closed, and
 * everybody copies from then on: no byte of one connection may come to another.
 *
 * An urgent byte is left out: it is not passed on, and what follows it is. */
#include "base/banned.h"
#include "base/fd.h"
#include "gate/gate_state.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define TURNS       8u          /* of one direction, before others have theirs */
#define MUCH        (32u << 10) /* that came at once: the next turn is spliced */
#define SPLICED_MAX (256u << 10)
#define PIPE_SIZE   (1024 << 10) /* for its slots: a small packet takes one, too */

void relay_free(struct flow *f)
{
    free(f->up.pending);
    free(f->down.pending);
    f->up.pending = f->down.pending = NULL;
}

/* Writes what waits. False: the flow is broken. */
static bool flush(struct half *h)
{
    while (h->at < h->len) {
        ssize_t n = send(h->to->fd, h->pending + h->at, h->len - h->at, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        h->at += (size_t)n;
    }
    free(h->pending);
    h->pending = NULL;
    h->at = h->len = 0;
    return true;
}

static bool keep(struct half *h, const uint8_t *data, size_t len)
{
    h->pending = malloc(len);
    if (!h->pending)
        return false;
    memcpy(h->pending, data, len);
    h->at = 0;
    h->len = len;
    return true;
}

/* So much may be read now. */
static size_t allowance(struct flow *f, struct half *h)
{
    struct sandbox *s = f->sandbox;
    uint64_t tokens = bucket_tokens(h->bucket, s->policy->limits.rate, clock_now());

    if (!tokens) {
        s->throttled = true;
        sandbox_wait(s);
    }
    size_t most = h->much ? SPLICED_MAX : SCRATCH;
    return tokens < most ? (size_t)tokens : most;
}

static void count(struct flow *f, struct half *h, size_t n)
{
    struct sandbox *s = f->sandbox;

    h->bytes += n;
    s->bytes += n;
    if (s->policy->limits.rate)
        h->bucket->tokens -= n < h->bucket->tokens ? n : h->bucket->tokens;
}

static bool is_later(void)
{
    return errno == EAGAIN || errno == EINTR;
}

/* One turn: as recv says, and -1 also for a side that does not take anything any more. What it does
 * not take now is kept. */
static ssize_t pass_copied(struct flow *f, struct half *h, size_t most)
{
    uint8_t *scratch = f->sandbox->gate->scratch;

    ssize_t n = recv(h->from->fd, scratch, most, 0);
    if (n <= 0)
        return n;
    count(f, h, (size_t)n);

    ssize_t sent = send(h->to->fd, scratch, (size_t)n, MSG_NOSIGNAL);
    if (sent < 0 && !is_later())
        return -1;
    if (sent < 0)
        sent = 0;
    return sent < n && !keep(h, scratch + sent, (size_t)(n - sent)) ? -1 : n;
}

void relay_open_pipe(struct gate *g)
{
    if (pipe2(g->pipe, O_CLOEXEC | O_NONBLOCK) < 0)
        g->pipe[0] = g->pipe[1] = -1; /* everything is copied */
    else
        (void)fcntl(g->pipe[0], F_SETPIPE_SZ, PIPE_SIZE);
}

/* Takes exactly this out of the pipe, which is empty then; NULL: away with it. */
static bool empty_pipe(struct gate *g, uint8_t *to, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = read(g->pipe[0], to ? to + at : g->scratch, to ? len - at : SCRATCH);
        if (n <= 0) {
            fd_done(&g->pipe[0]);
            fd_done(&g->pipe[1]);
            return false;
        }
        at += (size_t)n;
    }
    return true;
}

/* Likewise, without its bytes coming to the gate. */
static ssize_t pass_spliced(struct flow *f, struct half *h, size_t most)
{
    struct gate *g = f->sandbox->gate;

    ssize_t n = splice(h->from->fd, NULL, g->pipe[1], NULL, most, SPLICE_F_NONBLOCK);
    if (n <= 0)
        return n;
    count(f, h, (size_t)n);

    size_t left = (size_t)n;
    while (left) {
        ssize_t sent = splice(g->pipe[0], NULL, h->to->fd, NULL, left, SPLICE_F_NONBLOCK);
        if (sent <= 0) {
            int why = sent < 0 ? errno : EPIPE;
            bool is_full = why == EAGAIN || why == EINTR;
            h->pending = is_full ? malloc(left) : NULL;
            if (!empty_pipe(g, h->pending, left) || !h->pending) {
                errno = is_full ? ENOMEM : why;
                return -1;
            }
            h->len = left;
            break;
        }
        left -= (size_t)sent;
    }
    return n;
}

/* One turn, spliced where much comes. A splice stops before an urgent byte, and says there that
 * nothing has come, or that this is the end although bytes follow. Only reading steps over it: an
 * end is asked for again, and so is nothing, in the first turn, before which epoll told of more. */
static ssize_t pass(struct flow *f, struct half *h, size_t most, bool is_first)
{
    if (h->much && f->sandbox->gate->pipe[0] >= 0) {
        ssize_t n = pass_spliced(f, h, most);
        bool is_stopped = n == 0 || (n < 0 && is_first && is_later());
        if (!is_stopped)
            return n;
    }
    return pass_copied(f, h, most < SCRATCH ? most : SCRATCH);
}

/* Moves one direction as far as it goes. False: the flow is broken. */
static bool move(struct flow *f, struct half *h)
{
    if (!flush(h))
        return false;
    for (unsigned turn = 0; turn < TURNS && !h->pending && !h->ended; turn++) {
        size_t most = allowance(f, h);
        if (!most)
            return true;
        ssize_t n = pass(f, h, most, turn == 0);
        if (n < 0)
            return is_later();
        h->ended = n == 0;
        h->much = n >= MUCH;
        if ((size_t)n < most && !h->much)
            break; /* that was all there is for now */
    }

    if (h->ended && !h->pending && !h->shut) {
        const struct half *back = h == &f->up ? &f->down : &f->up;
        h->shut = true;
        if (!back->shut) /* otherwise both are closed now, which says the same */
            (void)shutdown(h->to->fd, SHUT_WR);
    }
    return true;
}

/* The client's first bytes are looked at by somebody else before they are passed on. */
static bool may_read(const struct flow *f, const struct half *h)
{
    if (h->ended || h->pending)
        return false;
    return !(h == &f->up && f->unsniffed);
}

static bool has_tokens(struct flow *f, struct half *h)
{
    return allowance(f, h) > 0;
}

static void watch_both(struct flow *f)
{
    struct gate *g = f->sandbox->gate;
    bool up = may_read(f, &f->up) ? has_tokens(f, &f->up) : f->unsniffed && !f->up.ended;
    bool down = may_read(f, &f->down) && has_tokens(f, &f->down);

    uint32_t near = (up ? EPOLLIN : 0u) | (f->down.pending ? EPOLLOUT : 0u);
    uint32_t far = (down ? EPOLLIN : 0u) | (f->up.pending ? EPOLLOUT : 0u);
    if (!watch_set(g, &f->near, near) || !watch_set(g, &f->far, far))
        flow_end(f, GATE_FAILED, "the gate is full");
}

/* Is there something to do for a direction? Without a word of either side there may be. */
static bool is_due(const struct flow *f, const struct half *h, uint32_t near, uint32_t far)
{
    uint32_t from = h == &f->up ? near : far, to = h == &f->up ? far : near;
    const uint32_t broken = EPOLLHUP | EPOLLERR;

    if ((near | far) && !(from & (EPOLLIN | broken)) && !(to & (EPOLLOUT | broken)))
        return false;
    return may_read(f, h) || h->pending;
}

void relay_move(struct flow *f, uint32_t near_events, uint32_t far_events)
{
    uint64_t most = f->sandbox->policy->limits.bytes;

    if (is_due(f, &f->up, near_events, far_events) && !move(f, &f->up)) {
        flow_end(f, GATE_BROKEN, strerror(errno));
        return;
    }
    if (is_due(f, &f->down, near_events, far_events) && !move(f, &f->down)) {
        flow_end(f, GATE_BROKEN, strerror(errno));
        return;
    }

    if (f->up.shut && f->down.shut) {
        flow_end(f, GATE_OK, NULL);
        return;
    }
    /* A side that is broken while nothing is read from it would be told again and again. */
    if ((near_events | far_events) & EPOLLERR) {
        flow_end(f, GATE_BROKEN, "reset");
        return;
    }
    if (most && f->sandbox->bytes > most) {
        flow_end(f, GATE_CUT, "its limit of bytes is used up");
        return;
    }
    watch_both(f);
}

void relay_begin(struct flow *f)
{
    struct sandbox *s = f->sandbox;

    if (!f->up.from) {
        f->up = (struct half){.from = &f->near, .to = &f->far, .bucket = &s->up};
        f->down = (struct half){.from = &f->far, .to = &f->near, .bucket = &s->down};
    }
    if (f->first_len && !f->unsniffed) {
        size_t left = f->first_len - f->first_sent;
        count(f, &f->up, f->first_len);
        if (left && !keep(&f->up, f->first + f->first_sent, left)) {
            flow_end(f, GATE_FAILED, "the gate has no memory");
            return;
        }
        free(f->first);
        f->first = NULL;
        f->first_len = f->first_room = f->first_sent = 0;
        /* The answer takes its time: epoll tells of it, and of what the client says meanwhile. */
        if (!left && !f->sandbox->policy->limits.bytes) {
            watch_both(f);
            return;
        }
    }
    relay_move(f, 0, 0);
}
