/* Channels: their table, and what the user of a link does with them. A channel that is not in the
 * table any more is over, so that whoever still asks for it is told just that. */
#include "link/link_state.h"

#include "base/banned.h"

#include <stdlib.h>
#include <string.h>

/* ---- the table ---- */

struct channel *channel_find(const struct link *l, uint32_t id)
{
    unsigned low = 0, high = l->count;
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        if (l->channels[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < l->count && l->channels[low].id == id ? &l->channels[low] : NULL;
}

static int make_room(struct link *l)
{
    if (l->count < l->room)
        return 0;
    if (l->count >= LINK_CHANNELS_MAX)
        return -1;

    unsigned room = l->room ? 2 * l->room : 16;
    struct channel *more = realloc(l->channels, room * sizeof *more);
    if (!more)
        return -1;
    l->channels = more;
    l->room = room;
    return 0;
}

struct channel *channel_add(struct link *l, uint32_t id, unsigned ways)
{
    bool is_keeper = l->role == LINK_KEEPER;
    if (make_room(l) < 0)
        return NULL;

    struct channel *c = &l->channels[l->count++];
    *c = (struct channel){
        .id = id,
        .out = {.ring = {.budget = &l->budget},
                .credit = RING_LEAST,
                .done = !(ways & (is_keeper ? LINK_AWAY : LINK_BACK))},
        .in = {.ring = {.budget = &l->promised},
               .credit = RING_LEAST,
               .window = RING_LEAST,
               .done = !(ways & (is_keeper ? LINK_BACK : LINK_AWAY))},
    };
    l->highest = id;
    return c;
}

/* Whoever has a channel that the other end has not opened yet must keep it: its end has to be told
 * behind the message that opens it. */
static bool is_settled(const struct link *l, const struct channel *c)
{
    return c->out.done && c->in.done && !c->in.say_taken && !c->in.say_credit && !c->in.say_stop &&
           c->opened_by <= l->peer_got;
}

void channel_settle(struct link *l, struct channel *c)
{
    if (!is_settled(l, c))
        return;
    channel_drop_out(c);
    channel_drop_in(l, c);

    unsigned at = (unsigned)(c - l->channels);
    memmove(c, c + 1, (l->count - at - 1) * sizeof *c);
    l->count--;
}

void channels_settle(struct link *l)
{
    for (unsigned i = l->count; i-- > 0;)
        channel_settle(l, &l->channels[i]);
}

void channel_drop_out(struct channel *c)
{
    c->out.done = true;
    ring_free(&c->out.ring);
}

void channel_drop_in(struct link *l, struct channel *c)
{
    c->in.done = true;
    c->in.say_taken = c->in.say_credit = c->in.say_stop = false;
    ring_free(&c->in.ring);
    l->budget.used -= (size_t)c->in.window - RING_LEAST;
    c->in.window = RING_LEAST;
}

unsigned link_channels(const struct link *l)
{
    return l->count;
}

/* ---- for users ---- */

uint32_t link_open(struct link *l, unsigned ways)
{
    if (l->role != LINK_KEEPER || l->highest == UINT32_MAX)
        return 0;
    struct channel *c = channel_add(l, l->highest + 1, ways);
    if (!c)
        return 0;
    c->opened_by = l->put + 1;
    return c->id;
}

size_t link_room(const struct link *l, uint32_t channel)
{
    const struct channel *c = channel_find(l, channel);
    if (!c || c->out.done || c->out.ended)
        return 0;

    const struct ring *r = &c->out.ring;
    size_t held = (size_t)(r->end - r->start), room = r->room ? r->room : RING_LEAST;
    if (held == room && room < RING_MOST && l->budget.used + room <= l->budget.most)
        room *= 2;
    return room - held;
}

size_t link_write(struct link *l, uint32_t channel, const void *data, size_t len)
{
    struct channel *c = channel_find(l, channel);
    if (!c || c->out.done || c->out.ended)
        return 0;
    return ring_put(&c->out.ring, data, len);
}

void link_end(struct link *l, uint32_t channel)
{
    struct channel *c = channel_find(l, channel);
    if (c)
        c->out.ended = true;
}

bool link_is_unwanted(const struct link *l, uint32_t channel)
{
    const struct channel *c = channel_find(l, channel);
    return !c || c->out.done;
}

const uint8_t *link_read(const struct link *l, uint32_t channel, size_t *ret_len)
{
    const struct channel *c = channel_find(l, channel);
    return c && !c->in.done ? ring_peek(&c->in.ring, c->in.ring.start, ret_len) : NULL;
}

/* A reader that keeps up with its window is given a larger one, as far as the budget goes. */
static void widen(struct link *l, struct half_in *in)
{
    if (in->ring.start - in->grown < in->window)
        return;
    in->grown = in->ring.start;
    if (in->window >= RING_MOST || l->budget.used + in->window > l->budget.most)
        return;
    l->budget.used += (size_t)in->window;
    in->window *= 2;
}

void link_taken(struct link *l, uint32_t channel, size_t len)
{
    struct channel *c = channel_find(l, channel);
    if (!c || c->in.done)
        return;

    struct half_in *in = &c->in;
    ring_drop(&in->ring, in->ring.start + len);
    widen(l, in);
    if (in->end_known && in->ring.start == in->ring.end)
        in->done = true;

    in->say_taken = l->connected;
    if (!in->done && in->ring.start + in->window - in->credit >= in->window / 4) {
        in->credit = in->ring.start + in->window;
        in->say_credit = l->connected;
    }
    channel_settle(l, c);
}

uint64_t link_offset(const struct link *l, uint32_t channel)
{
    const struct channel *c = channel_find(l, channel);
    return c && !c->in.done ? c->in.ring.start : UINT64_MAX;
}

bool link_is_over(const struct link *l, uint32_t channel)
{
    const struct channel *c = channel_find(l, channel);
    return !c || c->in.done;
}

void link_stop(struct link *l, uint32_t channel)
{
    struct channel *c = channel_find(l, channel);
    if (!c || c->in.done)
        return;
    channel_drop_in(l, c);
    /* Even if RESUME is still to be said: a peer that has not opened it yet skips it there. */
    c->in.say_stop = l->connected;
    channel_settle(l, c);
}
