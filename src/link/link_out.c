/* What is said to the peer. Nothing but messages and bytes is queued: everything else is a flag or
 * a number of which the latest counts, so that a peer that does not read costs no memory.
 *
 * Order: RESUME, then what frees the peer (ACK, TAKEN, CREDIT, STOP), then messages, then bytes, a
 * piece of each channel in turn. Bytes of a channel come behind the message that opens it. */
#include "link/link_state.h"

#include "base/banned.h"

#define ENOUGH (128u << 10)
#define PIECE  (32u << 10) /* of one channel before the next has its turn */

static void put(struct link *l, struct link_head h)
{
    link_head_put(&l->out, &h);
}

static bool has_enough(const struct link *l)
{
    return l->out.len - l->out_at >= ENOUGH || l->out.overflow;
}

static void put_resume(struct link *l)
{
    put(l, (struct link_head){
               .type = LINK_RESUME, .len = l->count * LINK_PLACE_SIZE, .number = l->got});

    for (unsigned i = 0; i < l->count; i++) {
        const struct channel *c = &l->channels[i];
        struct link_place p = {.channel = c->id, .done = c->in.done};
        if (!c->in.done) {
            p.received = c->in.ring.end;
            p.taken = c->in.ring.start;
            p.credit = c->in.credit;
        }
        link_place_put(&l->out, &p);
    }
    l->resume_said = true;
}

static void put_signs(struct link *l, uint64_t now)
{
    if (l->say_pong)
        put(l, (struct link_head){.type = LINK_PONG, .number = l->pong});
    if (l->say_ping)
        put(l, (struct link_head){.type = LINK_PING, .number = now});
    l->say_pong = l->say_ping = false;
}

/* What a channel's receiving half has to tell. */
static void put_news(struct link *l, struct channel *c)
{
    struct half_in *in = &c->in;

    if (in->say_taken)
        put(l, (struct link_head){.type = LINK_TAKEN,
                                  .flags = in->done ? LINK_LAST : 0,
                                  .channel = c->id,
                                  .number = in->ring.start});
    if (in->say_credit && !in->done)
        put(l, (struct link_head){.type = LINK_CREDIT, .channel = c->id, .number = in->credit});
    if (in->say_stop && c->opened_by <= l->posted)
        put(l, (struct link_head){.type = LINK_STOP, .channel = c->id});
    else if (in->say_stop)
        return;
    in->say_taken = in->say_credit = in->say_stop = false;
}

static void put_all_news(struct link *l)
{
    if (l->say_lease)
        put(l, (struct link_head){.type = LINK_LEASE, .number = l->lease});
    if (l->say_ack)
        put(l, (struct link_head){.type = LINK_ACK, .number = l->handled});
    l->say_lease = l->say_ack = false;

    for (unsigned i = 0; i < l->count; i++)
        put_news(l, &l->channels[i]);
    channels_settle(l);
}

static void put_messages(struct link *l)
{
    for (const struct note *n = l->outbox.first; n && !has_enough(l); n = n->next) {
        if (n->number <= l->posted)
            continue;
        put(l, (struct link_head){.type = LINK_MSG, .len = (uint32_t)n->len, .number = n->number});
        buf_put(&l->out, n->payload, n->len);
        l->posted = n->number;
    }
}

/* A piece of a channel's bytes, and the end behind the last. Returns whether there was any. */
static bool put_piece(struct link *l, struct channel *c)
{
    struct half_out *out = &c->out;
    size_t len;
    if (out->done || c->opened_by > l->posted)
        return false;

    const uint8_t *from = ring_peek(&out->ring, out->sent, &len);
    uint64_t may = out->credit - out->sent;
    if (from && may) {
        len = len < PIECE ? len : PIECE;
        len = len < may ? len : (size_t)may;
        put(l, (struct link_head){
                   .type = LINK_DATA, .len = (uint32_t)len, .channel = c->id, .number = out->sent});
        buf_put(&l->out, from, len);
        out->sent += len;
        if (out->sent > out->sent_most)
            out->sent_most = out->sent;
    }

    if (out->ended && !out->end_said && out->sent == out->ring.end) {
        put(l, (struct link_head){.type = LINK_END, .channel = c->id, .number = out->sent});
        out->end_said = true;
        return true;
    }
    return from && may;
}

static void put_bytes(struct link *l)
{
    bool any = true;
    while (any && !has_enough(l)) {
        any = false;
        for (unsigned i = 0; i < l->count && !has_enough(l); i++) {
            l->turn = (l->turn + 1) % l->count;
            any |= put_piece(l, &l->channels[l->turn]);
        }
    }
}

void link_fill(struct link *l, uint64_t now)
{
    if (l->out_at == l->out.len) {
        buf_clear(&l->out);
        l->out_at = 0;
    }
    if (!l->connected || l->bye_said || has_enough(l))
        return;

    if (!l->resume_said)
        put_resume(l);
    put_signs(l, now);
    if (l->resumed) {
        put_all_news(l);
        put_messages(l);
        put_bytes(l);
    }
    if (l->bye) {
        link_bye_put(&l->out, l->bye, l->bye_text);
        l->bye_said = true;
    }

    /* Without memory frames would be missing: the connection is given up, and nothing is lost. */
    l->broken |= l->out.overflow;
}
