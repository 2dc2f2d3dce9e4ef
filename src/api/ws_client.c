/* The other end of a WebSocket. Whoever serves one polls its descriptor, reads with ws_client_read,
 * and calls ws_client_keep_time in between, which finds clients that have left without a word and
 * keys that were revoked meanwhile. Writing waits for a stuck client with bounded patience. */
#include "api/ws_client.h"

#include "api/call.h"
#include "api/login.h"

#include "base/banned.h"
#include "net/proxy.h"

#include <poll.h>

#define PING_EVERY (20 * NS_PER_S)
#define GONE_AFTER (60 * NS_PER_S)
#define STALL      (60 * NS_PER_S)

int ws_client_begin(struct ws_client *w, struct call *c, size_t message_max, struct pd_err *e)
{
    *w = (struct ws_client){.c = c};
    if (request_upgrade(c->r, login_protocol(c), e) < 0)
        return -1;

    ws_decoder_init(&w->decoder, 1, message_max);
    w->ping_at = deadline_in(PING_EVERY);
    w->gone_at = deadline_in(GONE_AFTER);
    w->look_at = deadline_in(WS_CLIENT_LOOK);
    return 0;
}

void ws_client_end(struct ws_client *w, const struct pd_err *why)
{
    bool good = !why;

    if (why && why->code != PD_LOST && why->code != PD_TIMEOUT)
        good = ws_client_close(w, WS_INTERNAL, "") == 0;
    if (good)
        proxy_leave(w->c->r, 2 * NS_PER_S);
    ws_decoder_done(&w->decoder);
}

int ws_client_send(struct ws_client *w, enum ws_opcode opcode, const void *data, size_t len,
                   struct pd_err *e)
{
    uint8_t head[WS_HEADER_MAX];
    size_t n = ws_header_encode(head, opcode, 1, len, NULL);
    struct iovec iov[2] = {{head, n}, {(void *)(uintptr_t)data, len}};
    return conn_writev(w->c->r->conn, iov, 2, STALL, e);
}

bool ws_client_can_write(struct ws_client *w)
{
    struct pollfd p = {.fd = conn_fd(w->c->r->conn), .events = POLLOUT};

    if (poll(&p, 1, 0) <= 0) {
        w->blocked = true;
        return false;
    }
    if (w->blocked) { /* it has read something meanwhile */
        w->blocked = false;
        ws_client_seen(w);
    }
    return true;
}

int ws_client_close(struct ws_client *w, unsigned code, const char *reason)
{
    auto_buf b = BUF_INIT(256);

    w->closing = true;
    if (ws_close_encode(&b, code, reason, NULL) < 0)
        return -1;
    return conn_write(w->c->r->conn, b.data, b.len, STALL, NULL);
}

void ws_client_seen(struct ws_client *w)
{
    w->gone_at = deadline_in(GONE_AFTER);
}

ssize_t ws_client_read(struct ws_client *w, void *out, size_t size, struct pd_err *e)
{
    ssize_t n = request_raw_read(w->c->r, out, size, 0, e);
    if (n < 0)
        return e->code == PD_TIMEOUT ? 0 : -1;
    if (n == 0)
        return pd_fail(e, PD_LOST, "the client has left");

    ws_client_seen(w);
    return n;
}

bool ws_client_take_control(struct ws_client *w, const struct ws_message *m, int *ret_result,
                            struct pd_err *e)
{
    *ret_result = 0;
    if (m->opcode == WS_PING)
        *ret_result = ws_client_send(w, WS_PONG, m->data, m->len, e);
    else if (m->opcode == WS_CLOSE)
        (void)ws_client_close(w, m->code == WS_NO_CODE ? WS_NO_CODE : WS_NORMAL, "");
    return m->opcode == WS_PING || m->opcode == WS_CLOSE;
}

int ws_client_keep_time(struct ws_client *w, struct pd_err *e)
{
    if (server_is_stopping(w->c->r->server))
        return ws_client_close(w, WS_GOING_AWAY, "the server is shutting down");

    if (deadline_passed(w->look_at)) {
        w->look_at = deadline_in(WS_CLIENT_LOOK);
        if (w->c->who.key_id[0] && call_authenticate(w->c, NULL) < 0)
            return ws_client_close(w, WS_POLICY, "the key was revoked");
    }

    if (deadline_passed(w->gone_at))
        return pd_fail(e, PD_LOST, "the client does not answer");
    if (!deadline_passed(w->ping_at) || w->blocked)
        return 0;
    w->ping_at = deadline_in(PING_EVERY);
    return ws_client_send(w, WS_PING, NULL, 0, e);
}
