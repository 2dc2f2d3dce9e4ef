/* How this works. The last calls stand in a ring, each with its time, so that "half of 20 within a
 * minute" is counted and not estimated. A breaker that closes forgets them: it begins anew. */
#include "router/breaker.h"

#include "base/banned.h"

bool breaker_allows(const struct breaker *b, uint64_t now)
{
    return b->state == BREAKER_CLOSED || now >= b->until;
}

uint64_t breaker_wait(const struct breaker *b, uint64_t now)
{
    return breaker_allows(b, now) ? 0 : b->until - now;
}

void breaker_begin(struct breaker *b, const struct breaker_limits *l, uint64_t now)
{
    if (b->state == BREAKER_CLOSED)
        return;

    b->state = BREAKER_HALF_OPEN;
    b->until = now + l->open_ns;
}

static void note(struct breaker *b, const struct breaker_limits *l, bool failed, uint64_t now)
{
    unsigned room = l->calls < BREAKER_CALLS_MAX ? l->calls : BREAKER_CALLS_MAX;
    if (!room)
        return;

    b->next %= room;
    b->calls[b->next].at = now;
    b->calls[b->next].failed = failed;
    b->next = (b->next + 1) % room;
    if (b->count < room)
        b->count++;
}

/* Is the ring full of calls within the window, with too many failures among them? */
static bool too_many(const struct breaker *b, const struct breaker_limits *l, uint64_t now)
{
    unsigned recent = 0, failed = 0;

    for (unsigned i = 0; i < b->count; i++)
        if (now - b->calls[i].at <= l->window_ns) {
            recent++;
            failed += b->calls[i].failed;
        }
    return l->calls && recent >= l->calls && failed * 100 >= recent * l->percent;
}

static void open_it(struct breaker *b, const struct breaker_limits *l, uint64_t now)
{
    uint64_t wait = l->open_ns;
    for (unsigned i = 0; i < b->openings && wait < l->open_most_ns; i++)
        wait *= 2;

    b->state = BREAKER_OPEN;
    b->until = now + (wait < l->open_most_ns ? wait : l->open_most_ns);
    b->openings++;
}

void breaker_end(struct breaker *b, const struct breaker_limits *l, bool failed, uint64_t now)
{
    if (!failed) {
        /* A call that began before it opened says nothing about now; the try of a half-open one
         * does, and so does every call of a closed one. */
        if (b->state == BREAKER_OPEN)
            return;
        if (b->state == BREAKER_HALF_OPEN)
            *b = (struct breaker){0};
        b->in_row = 0;
        note(b, l, false, now);
        return;
    }

    if (b->state == BREAKER_OPEN)
        return;

    b->in_row++;
    note(b, l, true, now);
    if (b->state == BREAKER_HALF_OPEN || b->in_row >= l->in_row || too_many(b, l, now))
        open_it(b, l, now);
}

void breaker_cancel(struct breaker *b, uint64_t now)
{
    if (b->state != BREAKER_HALF_OPEN)
        return;
    b->state = BREAKER_OPEN;
    b->until = now;
}

const char *breaker_state_name(enum breaker_state s)
{
    static const char *const names[] = {"closed", "open", "half_open"};
    return names[s];
}
