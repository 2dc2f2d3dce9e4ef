/* Copying, both ways, by read and write: as fast as splice here, and without its pipes. What one
 * side does not take is kept, and nothing more is read for it: memory is bounded by one buffer a
 * direction. An end is passed on as an end; anything else that stops a side resets the other. */
#include "base/banned.h"
#include "gate/gate_state.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define TURNS 8u /* of one direction, before others have theirs */

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

    if (!tokens)
        s->throttled = true;
    return tokens < SCRATCH ? (size_t)tokens : SCRATCH;
}

static void count(struct flow *f, struct half *h, size_t n)
{
    struct sandbox *s = f->sandbox;

    h->bytes += n;
    s->bytes += n;
    if (s->policy->limits.rate)
        h->bucket->tokens -= n < h->bucket->tokens ? n : h->bucket->tokens;
}

/* Moves one direction as far as it goes. False: the flow is broken. */
static bool move(struct flow *f, struct half *h)
{
    uint8_t *scratch = f->sandbox->gate->scratch;

    if (!flush(h))
        return false;
    for (unsigned turn = 0; turn < TURNS && !h->pending && !h->ended; turn++) {
        size_t most = allowance(f, h);
        if (!most)
            return true;
        ssize_t n = recv(h->from->fd, scratch, most, 0);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        if (n == 0) {
            h->ended = true;
            break;
        }

        count(f, h, (size_t)n);
        ssize_t sent = send(h->to->fd, scratch, (size_t)n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (sent < 0)
            sent = 0;
        if (sent < n && !keep(h, scratch + sent, (size_t)(n - sent)))
            return false;
        if ((size_t)n < most)
            break; /* that was all there is for now */
    }

    if (h->ended && !h->pending && !h->shut) {
        h->shut = true;
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

void relay_move(struct flow *f, uint32_t near_events, uint32_t far_events)
{
    uint64_t most = f->sandbox->policy->limits.bytes;

    if ((may_read(f, &f->up) || f->up.pending) && !move(f, &f->up)) {
        flow_end(f, GATE_BROKEN, strerror(errno));
        return;
    }
    if ((may_read(f, &f->down) || f->down.pending) && !move(f, &f->down)) {
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
        count(f, &f->up, f->first_len);
        if (!keep(&f->up, f->first, f->first_len)) {
            flow_end(f, GATE_FAILED, "the gate has no memory");
            return;
        }
        free(f->first);
        f->first = NULL;
        f->first_len = 0;
    }
    relay_move(f, 0, 0);
}
