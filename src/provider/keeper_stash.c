/* Descriptors that the keeper holds for the next daemon, under keys: the ends of pipes and sockets
 * of commands that run on. What cannot be dropped because there is no link now is dropped with the
 * next one. */
#include "provider/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"

int keeper_stash(struct provider *base, const char *key, const int *fds, unsigned count,
                 struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_key m = {.key = key};
    msg_key_encode(&out, &m);
    return tell_keeper((struct keeper_provider *)base, WIRE_STASH, wire_id_new(), &out, fds, count,
                       e);
}

int keeper_fetch(struct provider *base, const char *key, int *ret_fds, unsigned max,
                 unsigned *ret_count, deadline d, struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_key m = {.key = key};
    struct waiter w;

    msg_key_encode(&out, &m);
    if (ask_keeper((struct keeper_provider *)base, &w, WIRE_FETCH, &out, d, e) < 0)
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

void keeper_drop(struct provider *base, const char *key)
{
    struct pd_err e;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_key m = {.key = key};
    msg_key_encode(&out, &m);
    if (tell_keeper((struct keeper_provider *)base, WIRE_DROP, wire_id_new(), &out, NULL, 0, &e) <
        0)
        provider_drop_later((struct keeper_provider *)base, key);
}
