/* Payloads of the frames between a gate and its client. */
#include "wire/gate_msg.h"

#include "base/banned.h"
#include "base/err.h"
#include "wire/codec.h"

#define NAMES_MAX   255u
#define RULE_MAX    319u
#define WHY_MAX     199u
#define ADDRESS_MAX 45u

static const char *const result_names[GATE_RESULT_COUNT] = {"ok", "refused", "failed", "broken",
                                                            "cut"};
static const char *const kind_names[GATE_KIND_COUNT] = {"dns", "tls", "http", "tcp"};

const char *gate_result_name(uint32_t r)
{
    return r < GATE_RESULT_COUNT ? result_names[r] : "?";
}

const char *gate_kind_name(uint32_t k)
{
    return k < GATE_KIND_COUNT ? kind_names[k] : "?";
}

static int finish(const struct codec *c, const char *what, struct pd_err *e)
{
    if (!c->bad && !c->left)
        return 0;
    return pd_fail(e, PD_PROTOCOL, "a malformed %s", what);
}

static void visit_open(struct codec *c, struct gate_open *m)
{
    field_str(c, &m->id, GATE_ID_MAX);
    field_str(c, &m->policy, GATE_TEXT_MAX);
    /* Younger than the rest: a gate without it may still be running. */
    if (c->out ? m->sealed && m->sealed[0] : c->left > 0)
        field_str(c, &m->sealed, GATE_SEALED_MAX);
    else if (!c->out)
        m->sealed = "";
}

void gate_open_encode(struct buf *b, const struct gate_open *m)
{
    struct gate_open copy = *m;
    visit_open(&(struct codec){.out = b}, &copy);
}

int gate_open_decode(const struct buf *b, struct gate_open *ret, struct pd_err *e)
{
    struct codec c = {.in = b->data, .left = b->len};
    struct gate_open m = {0};

    visit_open(&c, &m);
    if (finish(&c, "request to the gate", e) < 0)
        return -1;
    *ret = m;
    return 0;
}

static void visit_record(struct codec *c, struct gate_record *m)
{
    field_str(c, &m->id, GATE_ID_MAX);
    field_str(c, &m->name, NAMES_MAX);
    field_str(c, &m->address, ADDRESS_MAX);
    field_str(c, &m->rule, RULE_MAX);
    field_str(c, &m->why, WHY_MAX);
    field_enum(c, &m->kind, GATE_KIND_COUNT);
    field_enum(c, &m->result, GATE_RESULT_COUNT);
    field_enum(c, &m->port, 65536);
    field_u64(c, &m->up);
    field_u64(c, &m->down);
    field_u64(c, &m->usec);
    field_u64(c, &m->time);
}

void gate_record_encode(struct buf *b, const struct gate_record *m)
{
    struct gate_record copy = *m;
    visit_record(&(struct codec){.out = b}, &copy);
}

int gate_record_decode(const struct buf *b, struct gate_record *ret, struct pd_err *e)
{
    struct codec c = {.in = b->data, .left = b->len};
    struct gate_record m = {0};

    visit_record(&c, &m);
    if (finish(&c, "record of the gate", e) < 0)
        return -1;
    *ret = m;
    return 0;
}

static void visit_lend(struct codec *c, struct gate_lend *m)
{
    field_str(c, &m->id, GATE_ID_MAX);
    field_str(c, &m->sealed, GATE_SEALED_MAX);
    field_str(c, &m->host, NAMES_MAX);
    field_u64(c, &m->flow);
    field_u64(c, &m->rate);
    field_enum(c, &m->port, 65536);
    /* One number, as a gate that knows of no plain hosts has it. */
    uint32_t sides = m->is_tls | m->is_plain << 1;
    field_enum(c, &sides, 4);
    m->is_tls = sides & 1;
    m->is_plain = sides >> 1;
}

void gate_lend_encode(struct buf *b, const struct gate_lend *m)
{
    struct gate_lend copy = *m;
    visit_lend(&(struct codec){.out = b}, &copy);
    buf_put(b, m->first, m->first_len);
}

int gate_lend_decode(const struct buf *b, struct gate_lend *ret, struct pd_err *e)
{
    struct codec c = {.in = b->data, .left = b->len};
    struct gate_lend m = {0};

    visit_lend(&c, &m);
    if (c.bad)
        return pd_fail(e, PD_PROTOCOL, "a malformed loan of a connection");
    m.first = c.in;
    m.first_len = c.left;
    *ret = m;
    return 0;
}

static void visit_moved(struct codec *c, struct gate_moved *m)
{
    field_u64(c, &m->flow);
    field_u64(c, &m->up);
    field_u64(c, &m->down);
    field_enum(c, &m->result, GATE_RESULT_COUNT);
    field_str(c, &m->why, WHY_MAX);
}

void gate_moved_encode(struct buf *b, const struct gate_moved *m)
{
    struct gate_moved copy = *m;
    visit_moved(&(struct codec){.out = b}, &copy);
}

int gate_moved_decode(const struct buf *b, struct gate_moved *ret, struct pd_err *e)
{
    struct codec c = {.in = b->data, .left = b->len};
    struct gate_moved m = {0};

    visit_moved(&c, &m);
    if (finish(&c, "word of the changer", e) < 0)
        return -1;
    *ret = m;
    return 0;
}
