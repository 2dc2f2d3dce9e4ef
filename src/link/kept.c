/* What an end keeps so that another can be made of it. Both are the same program: what is kept is
 * as it lies in memory. */
#include "link/link_state.h"

#include "base/banned.h"

#include <string.h>

struct kept_link {
    uint64_t put, peer_got, handled;
    uint32_t highest, channels, notes;
};
struct kept_channel {
    uint32_t id;
    bool out_ended, out_done, in_done;
    uint64_t opened_by, window, grown, credit;
};
struct kept_note {
    uint64_t number, len;
};

void link_keep(const struct link *l, struct buf *out)
{
    struct kept_link k = {.put = l->put,
                          .peer_got = l->peer_got,
                          .handled = l->handled,
                          .highest = l->highest,
                          .channels = l->count,
                          .notes = l->outbox.count};
    buf_put(out, &k, sizeof k);

    for (unsigned i = 0; i < l->count; i++) {
        const struct channel *c = &l->channels[i];
        struct kept_channel one = {.id = c->id,
                                   .out_ended = c->out.ended,
                                   .out_done = c->out.done,
                                   .in_done = c->in.done,
                                   .opened_by = c->opened_by,
                                   .window = c->in.window,
                                   .grown = c->in.grown,
                                   .credit = c->in.credit};
        buf_put(out, &one, sizeof one);
    }
    for (const struct note *n = l->outbox.first; n; n = n->next) {
        buf_put(out, &(struct kept_note){n->number, n->len}, sizeof(struct kept_note));
        buf_put(out, n->payload, n->len);
    }
}

static const uint8_t *next(const uint8_t **data, size_t *len, size_t want)
{
    const uint8_t *at = *data;
    if (*len < want)
        return NULL;
    *data += want;
    *len -= want;
    return at;
}

static bool get(const uint8_t **data, size_t *len, void *ret, size_t want)
{
    const uint8_t *at = next(data, len, want);
    if (at)
        memcpy(ret, at, want);
    return at != NULL;
}

static int recall_channel(struct link *l, const struct kept_channel *k)
{
    struct channel *c = channel_add(l, k->id, LINK_AWAY | LINK_BACK);
    if (!c)
        return -1;
    c->opened_by = k->opened_by;
    c->out.ended = k->out_ended;
    c->out.done = k->out_done;
    c->in.done = k->in_done;
    c->in.window = k->window;
    c->in.grown = k->grown;
    c->in.credit = k->credit;
    l->budget.used += (size_t)k->window - RING_LEAST;
    return 0;
}

int link_recall(struct link *l, const uint8_t *data, size_t len, size_t *ret_used)
{
    const uint8_t *from = data;
    struct kept_link k;
    if (!get(&data, &len, &k, sizeof k))
        return -1;

    for (uint32_t i = 0; i < k.channels; i++) {
        struct kept_channel one;
        if (!get(&data, &len, &one, sizeof one) || recall_channel(l, &one) < 0)
            return -1;
    }
    for (uint32_t i = 0; i < k.notes; i++) {
        struct kept_note n;
        const uint8_t *payload;
        if (!get(&data, &len, &n, sizeof n) || !(payload = next(&data, &len, n.len)) ||
            notes_add(&l->outbox, n.number, payload, n.len) < 0)
            return -1;
    }

    l->put = k.put;
    l->peer_got = k.peer_got;
    l->got = l->handled = k.handled;
    l->highest = k.highest;
    *ret_used = (size_t)(data - from);
    return 0;
}

void link_place(struct link *l, uint32_t channel, uint64_t taken, uint64_t start)
{
    struct channel *c = channel_find(l, channel);
    if (!c)
        return;
    c->in.ring.start = c->in.ring.end = taken;
    /* The dead one may have taken bytes and not yet given credit for them. */
    if (c->in.credit < taken + c->in.window)
        c->in.credit = taken + c->in.window;
    c->out.ring.start = c->out.ring.end = c->out.sent_most = start;
}

int link_put_again(struct link *l, uint32_t channel, const void *data, size_t len)
{
    struct channel *c = channel_find(l, channel);
    if (!c || c->out.done)
        return 0;

    size_t most = l->budget.most;
    l->budget.most = SIZE_MAX;
    size_t n = ring_put(&c->out.ring, data, len);
    l->budget.most = most;
    if (n != len)
        return -1;
    c->out.sent_most = c->out.ring.end;
    return 0;
}

uint64_t link_held(const struct link *l, uint32_t channel)
{
    const struct channel *c = channel_find(l, channel);
    return c ? c->out.ring.start : UINT64_MAX;
}
