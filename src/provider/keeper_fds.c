/* Descriptors that a keeper has for us: those that are stashed with it, so that they outlive the
 * daemon, and the sockets of a box's way out. */
#include "provider/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#define STEER_PATIENCE (10 * NS_PER_S)

int keeper_stash(struct provider *base, const char *key, const int *fds, unsigned count,
                 struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_key m = {.key = key};
    msg_key_encode(&out, &m);
    return tell_keeper(base->state, WIRE_STASH, wire_id_new(), &out, fds, count, e);
}

/* Asks for descriptors, at most `max` of them. */
static int ask_for_fds(struct keeper_provider *p, enum wire_type type, const struct buf *payload,
                       int *ret_fds, unsigned max, unsigned *ret_count, deadline d,
                       struct pd_err *e)
{
    struct waiter w;
    if (ask_keeper(p, &w, type, payload, d, e) < 0)
        return -1;

    int r = 0;
    if (w.frame.head.type == WIRE_ERROR)
        r = msg_error_raise(&w.frame, e);
    else if (w.frame.fd_count > max)
        r = pd_fail(e, PD_PROTOCOL, "the keeper sent %u descriptors", w.frame.fd_count);
    else
        *ret_count = w.frame.fd_count;

    for (unsigned i = 0; r == 0 && i < w.frame.fd_count; i++)
        ret_fds[i] = frame_take_fd(&w.frame, i);
    frame_done(&w.frame);
    return r;
}

int keeper_fetch(struct provider *base, const char *key, int *ret_fds, unsigned max,
                 unsigned *ret_count, deadline d, struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_key m = {.key = key};

    msg_key_encode(&out, &m);
    return ask_for_fds(base->state, WIRE_FETCH, &out, ret_fds, max, ret_count, d, e);
}

void keeper_drop(struct provider *base, const char *key)
{
    struct pd_err e;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_key m = {.key = key};
    msg_key_encode(&out, &m);
    (void)tell_keeper(base->state, WIRE_DROP, wire_id_new(), &out, NULL, 0, &e);
}

int keeper_way_out(struct box *box, int ret[2], struct pd_err *e)
{
    struct keeper_box *b = (struct keeper_box *)box;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_destroy m = {.jail = b->jail.id};
    unsigned count = 0;

    ret[0] = fd_take(&b->jail.gate[0]);
    ret[1] = fd_take(&b->jail.gate[1]);
    if (ret[0] >= 0 && ret[1] >= 0)
        return 0;

    /* It was made without: it gets one now. */
    msg_destroy_encode(&out, &m);
    if (ask_for_fds(b->provider, WIRE_STEER, &out, ret, 2, &count, deadline_in(STEER_PATIENCE), e))
        return -1;
    return count == 2 ? 0 : pd_fail(e, PD_PROTOCOL, "the keeper sent no way out");
}
