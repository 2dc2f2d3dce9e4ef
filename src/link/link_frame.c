/* Frames of a link, as bytes. One table says what each type may have; the rest follows from the
 * order in which fields are put and read. */
#include "link/link_frame.h"

#include "base/banned.h"
#include "base/err.h"

#include <stdbool.h>
#include <string.h>

#define HELLO_MAGIC 0x314c4450u /* "PDL1" */
#define REF_SIZE    16u
#define MSG_HEAD    4u

/* ---- numbers ---- */

static void put_number(struct buf *out, uint64_t value, unsigned bytes)
{
    uint8_t text[8];
    for (unsigned i = 0; i < bytes; i++)
        text[i] = (uint8_t)(value >> (8 * i));
    buf_put(out, text, bytes);
}

/* Reads and moves on. The caller has checked that there is enough. */
static uint64_t get_number(const uint8_t **at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)(*at)[i] << (8 * i);
    *at += bytes;
    return value;
}

/* ---- heads ---- */

static const struct {
    uint32_t least, most; /* bytes of payload */
    bool has_channel;
    uint8_t flags;
} shapes[LINK_TYPE_COUNT] = {
    [LINK_HELLO] = {LINK_HELLO_SIZE, LINK_HELLO_SIZE, false, 0},
    [LINK_PROOF] = {32, 32, false, 0},
    [LINK_RESUME] = {0, LINK_CHANNELS_MAX *LINK_PLACE_SIZE, false, 0},
    [LINK_MSG] = {MSG_HEAD + 1, LINK_PAYLOAD_MAX, false, 0},
    [LINK_ACK] = {0, 0, false, 0},
    [LINK_DATA] = {1, LINK_DATA_MAX, true, 0},
    [LINK_CREDIT] = {0, 0, true, 0},
    [LINK_TAKEN] = {0, 0, true, LINK_LAST},
    [LINK_END] = {0, 0, true, 0},
    [LINK_STOP] = {0, 0, true, 0},
    [LINK_PING] = {0, 0, false, 0},
    [LINK_PONG] = {0, 0, false, 0},
    [LINK_LEASE] = {0, 0, false, 0},
    [LINK_BYE] = {0, LINK_TEXT_MAX, false, 0},
};

void link_head_put(struct buf *out, const struct link_head *h)
{
    put_number(out, h->len, 4);
    put_number(out, h->type, 1);
    put_number(out, h->flags, 1);
    put_number(out, 0, 2);
    put_number(out, h->channel, 4);
    put_number(out, h->number, 8);
}

int link_head_read(const uint8_t in[LINK_HEAD], struct link_head *ret, struct pd_err *e)
{
    const uint8_t *at = in;
    struct link_head h;
    h.len = (uint32_t)get_number(&at, 4);
    h.type = (uint8_t)get_number(&at, 1);
    h.flags = (uint8_t)get_number(&at, 1);
    uint64_t zero = get_number(&at, 2);
    h.channel = (uint32_t)get_number(&at, 4);
    h.number = get_number(&at, 8);

    if (h.type == 0 || h.type >= LINK_TYPE_COUNT || zero)
        return pd_fail(e, PD_PROTOCOL, "a frame of type %u on a link", h.type);
    if (h.len < shapes[h.type].least || h.len > shapes[h.type].most)
        return pd_fail(e, PD_PROTOCOL, "a frame of type %u with %u bytes on a link", h.type, h.len);
    if (shapes[h.type].has_channel != (h.channel != 0) || h.flags & ~shapes[h.type].flags)
        return pd_fail(e, PD_PROTOCOL, "a frame of type %u for channel %u with flags %u on a link",
                       h.type, h.channel, h.flags);

    *ret = h;
    return 0;
}

/* ---- payloads ---- */

void link_hello_put(struct buf *out, const struct link_hello *h)
{
    put_number(out, HELLO_MAGIC, 4);
    put_number(out, h->version, 2);
    put_number(out, h->role, 2);
    put_number(out, h->features, 4);
    buf_put(out, h->box.bytes, sizeof h->box.bytes);
    buf_put(out, h->nonce, sizeof h->nonce);
    put_number(out, h->epoch, 8);
}

int link_hello_read(const uint8_t in[LINK_HELLO_SIZE], struct link_hello *ret, struct pd_err *e)
{
    const uint8_t *at = in;
    struct link_hello h;

    if (get_number(&at, 4) != HELLO_MAGIC)
        return pd_fail(e, PD_PROTOCOL, "the peer does not speak the link's protocol");
    h.version = (uint16_t)get_number(&at, 2);
    h.role = (uint16_t)get_number(&at, 2);
    h.features = (uint32_t)get_number(&at, 4);
    memcpy(h.box.bytes, at, sizeof h.box.bytes);
    memcpy(h.nonce, at + sizeof h.box.bytes, sizeof h.nonce);
    at += sizeof h.box.bytes + sizeof h.nonce;
    h.epoch = get_number(&at, 8);

    if (h.role != LINK_KEEPER && h.role != LINK_BOX)
        return pd_fail(e, PD_PROTOCOL, "role %u on a link", h.role);
    *ret = h;
    return 0;
}

void link_place_put(struct buf *out, const struct link_place *p)
{
    put_number(out, p->channel, 4);
    put_number(out, p->done, 4);
    put_number(out, p->received, 8);
    put_number(out, p->taken, 8);
    put_number(out, p->credit, 8);
}

int link_place_read(const uint8_t in[LINK_PLACE_SIZE], struct link_place *ret, struct pd_err *e)
{
    const uint8_t *at = in;
    struct link_place p;
    p.channel = (uint32_t)get_number(&at, 4);
    p.done = (uint32_t)get_number(&at, 4);
    p.received = get_number(&at, 8);
    p.taken = get_number(&at, 8);
    p.credit = get_number(&at, 8);

    if (!p.channel || p.done > 1 || p.taken > p.received || p.received > p.credit)
        return pd_fail(e, PD_PROTOCOL, "channel %u of a link stands where it cannot", p.channel);
    *ret = p;
    return 0;
}

void link_msg_put(struct buf *out, const struct link_msg *m)
{
    put_number(out, m->ref_count, 2);
    put_number(out, 0, 2);
    for (unsigned i = 0; i < m->ref_count; i++) {
        put_number(out, m->refs[i].channel, 4);
        put_number(out, m->refs[i].ways, 1);
        put_number(out, m->refs[i].kind, 1);
        put_number(out, 0, 2);
        put_number(out, m->refs[i].offset, 8);
    }
    buf_put(out, m->body, m->len);
}

int link_msg_read(const uint8_t *in, size_t len, struct link_msg *ret, struct pd_err *e)
{
    const uint8_t *at = in;
    struct link_msg m = {.ref_count = 0};

    if (len <= MSG_HEAD)
        return pd_fail(e, PD_PROTOCOL, "a message of %zu bytes on a link", len);
    m.ref_count = (unsigned)get_number(&at, 2);
    uint64_t zero = get_number(&at, 2);
    if (zero || m.ref_count > LINK_REFS_MAX || len <= MSG_HEAD + m.ref_count * REF_SIZE)
        return pd_fail(e, PD_PROTOCOL, "a message with %u channels in %zu bytes", m.ref_count, len);

    for (unsigned i = 0; i < m.ref_count; i++) {
        struct link_ref *r = &m.refs[i];
        r->channel = (uint32_t)get_number(&at, 4);
        r->ways = (uint8_t)get_number(&at, 1);
        r->kind = (uint8_t)get_number(&at, 1);
        zero |= get_number(&at, 2);
        r->offset = get_number(&at, 8);
        if (zero || r->ways & ~(LINK_AWAY | LINK_BACK))
            return pd_fail(e, PD_PROTOCOL, "a message with a channel of ways %u", r->ways);
    }

    m.body = at;
    m.len = len - (size_t)(at - in);
    *ret = m;
    return 0;
}

void link_bye_put(struct buf *out, enum link_bye why, const char *text)
{
    size_t len = strnlen(text, LINK_TEXT_MAX);
    struct link_head h = {.len = (uint32_t)len, .type = LINK_BYE, .number = why};
    link_head_put(out, &h);
    buf_put(out, text, len);
}
