/* One end of a link: its connections and its messages. What the peer says is in link_in.c, what is
 * said to it in link_out.c, the channels in channel.c. */
#include "base/banned.h"
#include "base/err.h"
#include "link/link_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* News of all channels, messages up to the bound and what is enough, together. */
#define OUT_MAX (2u << 20)
/* Of a message, besides what it carries. */
#define MSG_MORE 128u

struct link *link_new(enum link_role role, size_t budget)
{
    struct link *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->role = role;
    l->budget.most = budget;
    l->promised.most = SIZE_MAX;
    l->in = BUF_INIT(LINK_HEAD + LINK_PAYLOAD_MAX);
    l->out = BUF_INIT(OUT_MAX);
    return l;
}

void link_free(struct link *l)
{
    if (!l)
        return;
    for (unsigned i = 0; i < l->count; i++) {
        channel_drop_out(&l->channels[i]);
        channel_drop_in(l, &l->channels[i]);
    }
    free(l->channels);
    notes_drop(&l->outbox, UINT64_MAX);
    notes_drop(&l->inbox, UINT64_MAX);
    buf_done(&l->in);
    buf_done(&l->out);
    free(l);
}

/* ---- connections ---- */

void link_up(struct link *l, uint64_t now)
{
    link_down(l);
    l->connected = true;
    l->heard = l->said = now;
    l->say_ack = true;
    l->say_lease = l->role == LINK_KEEPER && l->lease;
}

/* What was to be said to the peer of this connection, RESUME says to the next one. */
void link_down(struct link *l)
{
    l->connected = l->resume_said = l->resumed = l->broken = false;
    l->say_ack = l->say_ping = l->say_pong = l->say_lease = l->bye_said = false;
    buf_clear(&l->in);
    buf_clear(&l->out);
    l->out_at = 0;
    /* The keeper's end says only what it has handled: the rest comes again, to it or to the one
     * that is made of what it kept. */
    if (l->role == LINK_KEEPER) {
        notes_drop(&l->inbox, UINT64_MAX);
        l->got = l->handled;
    }

    for (unsigned i = 0; i < l->count; i++) {
        struct channel *c = &l->channels[i];
        c->in.say_taken = c->in.say_credit = c->in.say_stop = false;
        c->out.end_said = false;
    }
    channels_settle(l);
}

bool link_is_up(const struct link *l)
{
    return l->connected && l->resumed;
}

/* Moves bytes into the frame that has begun, until that has so many. 1 when it has them. */
static int fill_up(struct link *l, size_t want, const uint8_t **data, size_t *len, struct pd_err *e)
{
    size_t n = l->in.len < want ? want - l->in.len : 0;
    n = n < *len ? n : *len;
    if (buf_put(&l->in, *data, n) < 0)
        return pd_fail(e, PD_CAPACITY, "no memory for a frame of a link");
    *data += n;
    *len -= n;
    return l->in.len >= want;
}

/* First its head, then as much as that says. 1 when it is whole, 0 when more must come. */
static int gather(struct link *l, const uint8_t **data, size_t *len, struct link_head *ret,
                  struct pd_err *e)
{
    int r = fill_up(l, LINK_HEAD, data, len, e);
    if (r <= 0)
        return r;
    if (link_head_read(l->in.data, ret, e) < 0)
        return -1;
    return fill_up(l, LINK_HEAD + ret->len, data, len, e);
}

int link_take(struct link *l, const uint8_t *data, size_t len, uint64_t now, struct pd_err *e)
{
    if (!l->connected)
        return pd_fail(e, PD_PROTOCOL, "bytes on a link without a connection");
    l->heard = now;

    while (len) {
        struct link_head h;
        int r = gather(l, &data, &len, &h, e);
        if (r <= 0)
            return r;
        r = link_on_frame(l, &h, l->in.data + LINK_HEAD, e);
        buf_clear(&l->in);
        if (r < 0)
            return -1;
    }
    return 0;
}

enum link_bye link_farewell(const struct link *l)
{
    return l->farewell;
}

const uint8_t *link_give(struct link *l, uint64_t now, size_t *ret_len)
{
    link_fill(l, now);
    *ret_len = l->out.len - l->out_at;
    return *ret_len && !l->broken ? l->out.data + l->out_at : NULL;
}

void link_sent(struct link *l, size_t len, uint64_t now)
{
    l->out_at += len;
    l->said = now;
}

deadline link_deadline(const struct link *l)
{
    if (!l->connected)
        return DEADLINE_NONE;
    uint64_t quiet = l->said + LINK_QUIET, silent = l->heard + LINK_SILENCE;
    return l->broken ? 0 : l->say_ping || silent < quiet ? silent : quiet;
}

int link_tick(struct link *l, uint64_t now, struct pd_err *e)
{
    if (!l->connected)
        return 0;
    if (l->broken)
        return pd_fail(e, PD_CAPACITY, "no memory for what a link has to say");
    if (now >= l->heard + LINK_SILENCE)
        return pd_fail(e, PD_TIMEOUT, "the other end of the link was silent for %llu s",
                       (unsigned long long)(LINK_SILENCE / NS_PER_S));
    if (now >= l->said + LINK_QUIET)
        l->say_ping = true;
    return 0;
}

void link_bye(struct link *l, enum link_bye why, const char *text)
{
    l->bye = why;
    snprintf(l->bye_text, sizeof l->bye_text, "%s", text);
}

void link_set_lease(struct link *l, uint32_t seconds)
{
    l->lease = seconds;
    l->say_lease = true;
}

uint32_t link_lease(const struct link *l)
{
    return l->lease;
}

/* ---- messages ---- */

bool link_has_room(const struct link *l, size_t len)
{
    return l->outbox.count < LINK_AHEAD && l->outbox.bytes + len + MSG_MORE <= LINK_AHEAD_BYTES;
}

int link_send(struct link *l, const struct link_msg *m)
{
    auto_buf b = BUF_INIT(LINK_PAYLOAD_MAX);
    if (!link_has_room(l, m->len))
        return -1;
    link_msg_put(&b, m);
    if (b.overflow || notes_add(&l->outbox, l->put + 1, b.data, b.len) < 0)
        return -1;
    l->put++;
    return 0;
}

bool link_next(struct link *l, struct link_msg *ret)
{
    const struct note *n = l->inbox.first;
    struct pd_err e;
    return n && link_msg_read(n->payload, n->len, ret, &e) == 0;
}

void link_handled(struct link *l)
{
    if (!l->inbox.first)
        return;
    l->handled = l->inbox.first->number;
    notes_drop(&l->inbox, l->handled);
    l->say_ack = true;
}

bool link_is_heard(const struct link *l)
{
    return l->peer_got == l->put;
}
