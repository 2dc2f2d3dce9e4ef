/* Frames of the peer's. Each handler checks its frame against what this end knows before it changes
 * anything. Frames for channels that are over here are no fault: the peer had not heard of it. */
#include "link/link_state.h"

#include "base/banned.h"
#include "base/err.h"

static int broke(const struct link_head *h, const char *rule, struct pd_err *e)
{
    return pd_fail(e, PD_PROTOCOL, "the other end of a link broke a rule: %s (type %u, channel %u)",
                   rule, h->type, h->channel);
}

/* ---- messages ---- */

/* Channels of a message: at the box they are new ones, at the keeper's end ones that were. */
static int check_refs(const struct link *l, const struct link_head *h, const struct link_msg *m,
                      struct pd_err *e)
{
    uint32_t highest = l->highest;
    unsigned more = 0;

    for (unsigned i = 0; i < m->ref_count; i++) {
        const struct link_ref *r = &m->refs[i];
        if (l->role == LINK_KEEPER) {
            if (r->ways || !r->channel || r->channel > l->highest)
                return broke(h, "it named a channel that never was", e);
            continue;
        }

        if (!r->ways && !r->channel)
            continue;
        if (!r->ways || r->channel <= highest)
            return broke(h, "ids of channels rise", e);
        highest = r->channel;
        more++;
    }
    return l->count + more > LINK_CHANNELS_MAX ? broke(h, "too many channels", e) : 0;
}

static int on_msg(struct link *l, const struct link_head *h, const uint8_t *payload,
                  struct pd_err *e)
{
    struct link_msg m;

    if (h->number != l->got + 1)
        return broke(h, "messages are numbered", e);
    if (l->inbox.count >= LINK_AHEAD || l->inbox.bytes + h->len > LINK_AHEAD_BYTES)
        return broke(h, "too many messages at once", e);
    if (link_msg_read(payload, h->len, &m, e) < 0 || check_refs(l, h, &m, e) < 0)
        return -1;

    if (notes_add(&l->inbox, h->number, payload, h->len) < 0)
        return pd_fail(e, PD_CAPACITY, "no memory for a message of a link");
    for (unsigned i = 0; l->role == LINK_BOX && i < m.ref_count; i++)
        if (m.refs[i].ways && !channel_add(l, m.refs[i].channel, m.refs[i].ways))
            return pd_fail(e, PD_CAPACITY, "no memory for a channel of a link");
    l->got = h->number;
    return 0;
}

static int on_ack(struct link *l, const struct link_head *h, struct pd_err *e)
{
    if (h->number > l->posted)
        return broke(h, "only what was sent can be handled", e);
    notes_drop(&l->outbox, h->number);
    if (h->number > l->peer_got) {
        l->peer_got = h->number;
        channels_settle(l);
    }
    return 0;
}

/* ---- bytes to us ---- */

static int on_data(const struct link_head *h, const uint8_t *payload, struct channel *c,
                   struct pd_err *e)
{
    struct half_in *in = &c->in;
    if (in->done)
        return 0;

    if (in->end_known || h->number != in->ring.end || h->len > in->credit - in->ring.end)
        return broke(h, "bytes that are not the next, or without credit", e);
    if (ring_put(&in->ring, payload, h->len) != h->len)
        return pd_fail(e, PD_CAPACITY, "no memory for the bytes of a link");
    return 0;
}

static int on_end(struct link *l, const struct link_head *h, struct channel *c, struct pd_err *e)
{
    struct half_in *in = &c->in;
    if (in->done)
        return 0;
    if (h->number != in->ring.end)
        return broke(h, "an end that is not where the bytes end", e);

    in->end_known = true;
    if (in->ring.start == in->ring.end) {
        in->done = true;
        in->say_taken = true;
        channel_settle(l, c);
    }
    return 0;
}

/* ---- bytes from us ---- */

static int on_credit(const struct link_head *h, struct channel *c, struct pd_err *e)
{
    if (c->out.done)
        return 0;
    if (h->number < c->out.credit)
        return broke(h, "credit is not taken back", e);
    c->out.credit = h->number;
    return 0;
}

static int on_taken(struct link *l, const struct link_head *h, struct channel *c, struct pd_err *e)
{
    struct half_out *out = &c->out;
    if (out->done)
        return 0;
    if (h->number < out->ring.start || h->number > out->sent)
        return broke(h, "it has taken what was not sent", e);

    bool is_last = h->flags & LINK_LAST;
    /* Of an END that an earlier connection has brought, too. */
    if (is_last && (!out->ended || h->number != out->ring.end))
        return broke(h, "it has all of what did not end", e);
    ring_drop(&out->ring, h->number);
    if (is_last) {
        channel_drop_out(c);
        channel_settle(l, c);
    }
    return 0;
}

static void on_stop(struct link *l, struct channel *c)
{
    if (c->out.done)
        return;
    channel_drop_out(c);
    channel_settle(l, c);
}

/* ---- RESUME ---- */

static int resume_out(const struct link_head *h, struct channel *c, const struct link_place *p,
                      struct pd_err *e)
{
    struct half_out *out = &c->out;
    if (out->done)
        return 0;
    if (p->done) {
        channel_drop_out(c);
        return 0;
    }

    if (p->taken < out->ring.start || p->received > out->sent_most || p->credit < out->credit)
        return broke(h, "it stands where it cannot", e);
    ring_drop(&out->ring, p->taken);
    out->sent = p->received;
    out->credit = p->credit;
    return 0;
}

/* A channel that the peer does not name: it has forgotten it, because all was said; or the message
 * that opens it is still to come, and then everything has to be said from the beginning. */
static void resume_unnamed(struct link *l, struct channel *c)
{
    if (c->opened_by <= l->peer_got) {
        channel_drop_out(c);
        channel_drop_in(l, c);
        return;
    }
    c->out.sent = 0;
    c->in.say_stop = c->in.done;
}

static int on_resume(struct link *l, const struct link_head *h, const uint8_t *payload,
                     struct pd_err *e)
{
    uint32_t before = 0;
    unsigned at = 0;

    if (l->resumed || h->len % LINK_PLACE_SIZE)
        return broke(h, "RESUME comes once, and is whole", e);
    if (h->number < l->peer_got || h->number > l->put)
        return broke(h, "it has messages that were not sent", e);
    l->peer_got = l->posted = h->number;

    for (uint32_t i = 0; i < h->len; i += LINK_PLACE_SIZE) {
        struct link_place p;
        if (link_place_read(payload + i, &p, e) < 0)
            return -1;
        if (p.channel <= before)
            return broke(h, "channels come by rising id", e);
        before = p.channel;

        for (; at < l->count && l->channels[at].id < p.channel; at++)
            resume_unnamed(l, &l->channels[at]);
        if (at < l->count && l->channels[at].id == p.channel &&
            resume_out(h, &l->channels[at++], &p, e) < 0)
            return -1;
    }
    for (; at < l->count; at++)
        resume_unnamed(l, &l->channels[at]);

    l->resumed = true;
    channels_settle(l);
    return 0;
}

/* ---- all of them ---- */

static int on_bye(struct link *l, const struct link_head *h, const uint8_t *payload,
                  struct pd_err *e)
{
    if (h->number == 0 || h->number >= LINK_BYE_COUNT)
        return broke(h, "a BYE has a reason", e);
    l->farewell = (enum link_bye)h->number;
    return pd_fail(e, PD_LOST, "the other end of the link says: %.*s", (int)h->len,
                   (const char *)payload);
}

static int on_channel_frame(struct link *l, const struct link_head *h, const uint8_t *payload,
                            struct pd_err *e)
{
    if (h->channel > l->highest)
        return broke(h, "there is no such channel", e);
    struct channel *c = channel_find(l, h->channel);
    if (!c)
        return 0;

    switch (h->type) {
    case LINK_DATA:
        return on_data(h, payload, c, e);
    case LINK_END:
        return on_end(l, h, c, e);
    case LINK_CREDIT:
        return on_credit(h, c, e);
    case LINK_TAKEN:
        return on_taken(l, h, c, e);
    default:
        on_stop(l, c);
        return 0;
    }
}

int link_on_frame(struct link *l, const struct link_head *h, const uint8_t *payload,
                  struct pd_err *e)
{
    if (h->type == LINK_BYE)
        return on_bye(l, h, payload, e);
    if (h->type == LINK_RESUME)
        return on_resume(l, h, payload, e);
    if (!l->resumed)
        return broke(h, "the first frame is RESUME", e);

    switch (h->type) {
    case LINK_MSG:
        return on_msg(l, h, payload, e);
    case LINK_ACK:
        return on_ack(l, h, e);
    case LINK_PING:
        l->say_pong = true;
        l->pong = h->number;
        return 0;
    case LINK_PONG:
        return 0;
    case LINK_LEASE:
        if (l->role != LINK_BOX || !h->number || h->number > UINT32_MAX)
            return broke(h, "a lease is the keeper's to give", e);
        l->lease = (uint32_t)h->number;
        return 0;
    case LINK_HELLO:
    case LINK_PROOF:
        return broke(h, "the greeting is over", e);
    default:
        return on_channel_frame(l, h, payload, e);
    }
}
