/* How this works: three frames are understood here, each only in its state.
 *
 *   GREETING_HELLO   the peer's HELLO  ->  the keeper sends its PROOF
 *   GREETING_PROOF   the peer's PROOF  ->  the box sends its own, and both are done
 *   any              BYE               ->  refused
 *
 * So a box says nothing that depends on its key before it has seen the keeper's proof. */
#include "link/greeting.h"

#include "base/banned.h"
#include "base/err.h"

#include <string.h>

static void put(struct greeting *g, enum link_type type, const void *payload, size_t len)
{
    struct link_head h = {.len = (uint32_t)len, .type = (uint8_t)type};
    link_head_put(&g->out, &h);
    buf_put(&g->out, payload, len);
}

void greeting_begin(struct greeting *g, const struct link_identity *who,
                    const uint8_t nonce[LINK_NONCE])
{
    *g = (struct greeting){.who = who, .out = BUF_INIT(1024)};

    struct link_hello h = {
        .version = LINK_VERSION, .role = (uint16_t)who->role, .box = who->box, .epoch = who->epoch};
    memcpy(h.nonce, nonce, sizeof h.nonce);

    auto_buf b = BUF_INIT(LINK_HELLO_SIZE);
    link_hello_put(&b, &h);
    if (b.len == sizeof g->own)
        memcpy(g->own, b.data, sizeof g->own);
    put(g, LINK_HELLO, g->own, sizeof g->own);
}

void greeting_end(struct greeting *g)
{
    buf_done(&g->out);
}

static int refuse(struct greeting *g, enum link_bye why, const struct pd_err *e)
{
    g->state = GREETING_REFUSED;
    link_bye_put(&g->out, why, e->msg);
    return -1;
}

static void put_proof(struct greeting *g)
{
    uint8_t proof[LINK_PROOF_SIZE];
    bool is_keeper = g->who->role == LINK_KEEPER;
    proof_make(g->who->key, g->who->role, is_keeper ? g->own : g->peer,
               is_keeper ? g->peer : g->own, proof);
    put(g, LINK_PROOF, proof, sizeof proof);
}

/* A box has one keeper's end in its life: what another one does not know would be lost. */
static int check_epoch(struct greeting *g, struct pd_err *e)
{
    bool is_box = g->who->role == LINK_BOX;
    uint64_t met = is_box ? g->who->epoch : g->peer_epoch;
    uint64_t keeper = is_box ? g->peer_epoch : g->who->epoch;

    if (keeper && (!met || met == keeper))
        return 0;
    pd_fail(e, PD_CONFLICT, "the box belongs to another keeper");
    return refuse(g, LINK_BYE_SUPERSEDED, e);
}

static int on_hello(struct greeting *g, const uint8_t *payload, struct pd_err *e)
{
    struct link_hello h;
    if (link_hello_read(payload, &h, e) < 0)
        return refuse(g, LINK_BYE_REFUSED, e);

    if (h.version != LINK_VERSION) {
        pd_fail(e, PD_UNSUPPORTED, "the other end of the link has version %u, this one %u",
                h.version, LINK_VERSION);
        return refuse(g, LINK_BYE_VERSION, e);
    }
    if (h.role == g->who->role || !wire_id_equal(h.box, g->who->box)) {
        pd_fail(e, PD_CONFLICT, "the other end of the link is not of this box");
        return refuse(g, LINK_BYE_WRONG_BOX, e);
    }

    memcpy(g->peer, payload, sizeof g->peer);
    g->peer_epoch = h.epoch;
    if (check_epoch(g, e) < 0)
        return -1;
    g->state = GREETING_PROOF;
    if (g->who->role == LINK_KEEPER)
        put_proof(g);
    return 0;
}

static int on_proof(struct greeting *g, const uint8_t *payload, struct pd_err *e)
{
    uint8_t want[LINK_PROOF_SIZE];
    bool is_keeper = g->who->role == LINK_KEEPER;

    proof_make(g->who->key, is_keeper ? LINK_BOX : LINK_KEEPER, is_keeper ? g->own : g->peer,
               is_keeper ? g->peer : g->own, want);
    if (!proof_equal(payload, want)) {
        pd_fail(e, PD_DENIED, "the other end of the link does not know the box's key");
        return refuse(g, LINK_BYE_REFUSED, e);
    }

    if (check_epoch(g, e) < 0) /* again: another greeting may have been faster */
        return -1;
    if (!is_keeper)
        put_proof(g);
    g->state = GREETING_DONE;
    return 1;
}

static int on_frame(struct greeting *g, const struct link_head *h, const uint8_t *payload,
                    struct pd_err *e)
{
    if (h->type == LINK_HELLO && g->state == GREETING_HELLO)
        return on_hello(g, payload, e);
    if (h->type == LINK_PROOF && g->state == GREETING_PROOF)
        return on_proof(g, payload, e);

    g->state = GREETING_REFUSED;
    if (h->type == LINK_BYE)
        return pd_fail(e, PD_LOST, "the other end of the link refuses: %.*s", (int)h->len,
                       (const char *)payload);
    return pd_fail(e, PD_PROTOCOL, "a frame of type %u in the greeting of a link", h->type);
}

/* Takes what belongs to the frame that has begun: first its head, then the rest. */
static size_t gather(struct greeting *g, size_t want, const uint8_t *data, size_t len)
{
    size_t n = want - g->in_len < len ? want - g->in_len : len;
    memcpy(g->in + g->in_len, data, n);
    g->in_len += n;
    return n;
}

int greeting_take(struct greeting *g, const uint8_t *data, size_t len, size_t *ret_used,
                  struct pd_err *e)
{
    size_t used = 0;
    int r = g->state == GREETING_DONE ? 1 : 0;

    while (r == 0 && used < len) {
        struct link_head h;
        if (g->state == GREETING_REFUSED)
            return pd_fail(e, PD_PROTOCOL, "bytes behind a greeting that was refused");

        if (g->in_len < LINK_HEAD)
            used += gather(g, LINK_HEAD, data + used, len - used);
        if (g->in_len < LINK_HEAD)
            break;
        if (link_head_read(g->in, &h, e) < 0 || h.len > sizeof g->in - LINK_HEAD) {
            g->state = GREETING_REFUSED;
            return pd_fail(e, PD_PROTOCOL, "the peer does not speak the link's protocol");
        }

        used += gather(g, LINK_HEAD + h.len, data + used, len - used);
        if (g->in_len < LINK_HEAD + h.len)
            break;
        g->in_len = 0;
        r = on_frame(g, &h, g->in + LINK_HEAD, e);
        if (r < 0)
            return -1;
    }

    *ret_used = used;
    return r;
}
