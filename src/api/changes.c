/* Changes of a tenant's sandboxes by one WebSocket, for pages that show a list of them.
 *
 * How this works: the client is told `ready`, and reads the list then; whatever changes from that
 * moment on is sent, at most ten times a second, each sandbox as it is when it is sent. Nothing is
 * queued here: what is to be sent is in the ring that all watches share (core/changes.h), and is
 * read from there when the client's socket takes it. A client that is too slow for that loses its
 * place, is told `reload`, and costs a thread until it goes. */
#include "api/handlers.h"
#include "api/origin.h"
#include "api/sandbox.h"
#include "api/ws_client.h"

#include "base/banned.h"
#include "base/json.h"
#include "core/changes.h"

#include <errno.h>
#include <poll.h>

#define TURN_EVERY  (100 * NS_PER_MS)
#define BATCH       (256u << 10)
#define SANDBOX_MAX (128u << 10) /* of one as JSON */
#define MESSAGE_MAX 4096u        /* of what a client says, which is nothing */
#define PIECE       1024u

struct viewer {
    struct ws_client ws;
    struct change_watch watch;
    bool behind;      /* there is something to send */
    deadline turn_at; /* not before */
};

static int send_word(struct viewer *v, const char *type, struct pd_err *e)
{
    auto_buf text = BUF_INIT(64);
    struct json j = JSON_INIT(&text);

    json_open(&j, '{');
    json_member_cstr(&j, "type", type);
    json_close(&j, '}');
    return ws_client_send(&v->ws, WS_TEXT, text.data, text.len, e);
}

/* The ids of those that are listed no more, as they come: at most as many as are noted. */
static void note_removed(struct buf *removed, const char *id)
{
    struct json j = JSON_INIT(removed);
    j.need_comma = removed->len > 0;
    json_cstr(&j, id);
}

/* One message. 1: there may be more, 0: everything was sent. */
static int send_batch(struct viewer *v, struct pd_err *e)
{
    struct sessions *all = v->ws.c->api->sessions;
    auto_buf text = BUF_INIT(BATCH + 2 * SANDBOX_MAX), removed = BUF_INIT(BATCH);
    struct json j = JSON_INIT(&text);
    struct session *s;
    char id[SESSION_ID_LEN + 1];
    enum change_kind kind = CHANGE_NONE;

    json_open(&j, '{');
    json_member_cstr(&j, "type", "changes");
    json_key(&j, "sandboxes");
    json_open(&j, '[');
    size_t empty = text.len;
    while (text.len + removed.len < BATCH &&
           (kind = change_watch_next(&v->watch, all, &s, id)) > CHANGE_MISSED)
        if (kind == CHANGE_REMOVED) {
            note_removed(&removed, id);
        } else {
            sandbox_json(&j, s, NULL);
            session_unref(s);
        }

    if (kind == CHANGE_MISSED)
        return send_word(v, "reload", e) < 0 ? -1 : 1;
    if (text.len == empty && removed.len == 0)
        return 0;

    json_close(&j, ']');
    json_key(&j, "removed");
    buf_putc(&text, '[');
    buf_put(&text, removed.data, removed.len);
    buf_putc(&text, ']');
    json_close(&j, '}');
    if (text.overflow || removed.overflow)
        return pd_fail(e, PD_CAPACITY, "no memory for changes");
    if (ws_client_send(&v->ws, WS_TEXT, text.data, text.len, e) < 0)
        return -1;
    return kind != CHANGE_NONE;
}

/* What its socket takes, when it is time. */
static int send_changes(struct viewer *v, struct pd_err *e)
{
    if (!v->behind || !deadline_passed(v->turn_at))
        return 0;

    int more = 1;
    while (more > 0 && ws_client_can_write(&v->ws))
        more = send_batch(v, e);
    if (more < 0)
        return -1;
    v->behind = more > 0;
    v->turn_at = deadline_in(TURN_EVERY);
    return 0;
}

static int take_bytes(struct viewer *v, struct pd_err *e)
{
    uint8_t bytes[PIECE];
    ssize_t len = ws_client_read(&v->ws, bytes, sizeof bytes, e);
    if (len <= 0)
        return (int)len;

    for (size_t at = 0; at < (size_t)len && !v->ws.closing;) {
        struct ws_message m;
        size_t used = 0;
        int result, got = ws_decode(&v->ws.decoder, bytes + at, (size_t)len - at, &used, &m, e);
        at += used;
        if (got < 0)
            return ws_client_close(&v->ws, v->ws.decoder.error, e->msg);
        /* What else it says is nobody's. */
        if (got > 0 && ws_client_take_control(&v->ws, &m, &result, e) && result < 0)
            return -1;
    }
    return 0;
}

/* Waits for the client, and for changes; those wait for their turn. */
static int wait_turn(struct viewer *v, struct pd_err *e)
{
    struct request *r = v->ws.c->r;
    bool waits_for_turn = v->behind && !v->ws.blocked;
    deadline d = deadline_in(WS_CLIENT_LOOK);
    struct pollfd p[2] = {
        {conn_fd(r->conn), (short)(POLLIN | POLLRDHUP | (v->ws.blocked ? POLLOUT : 0)), 0},
        {v->behind ? -1 : v->watch.event, POLLIN, 0}};

    if (waits_for_turn && v->turn_at < d)
        d = v->turn_at;
    if (poll(p, 2, request_raw_pending(r) ? 0 : deadline_poll_ms(d)) < 0 && errno != EINTR)
        return pd_fail_sys(e, "wait for changes");
    if (p[0].revents & (POLLERR | POLLHUP))
        return pd_fail(e, PD_LOST, "the client has left");

    v->behind |= p[1].revents != 0;
    return p[0].revents & (POLLIN | POLLRDHUP) || request_raw_pending(r) ? take_bytes(v, e) : 0;
}

static int run(struct viewer *v, struct pd_err *e)
{
    if (send_word(v, "ready", e) < 0)
        return -1;
    while (!v->ws.closing)
        if (send_changes(v, e) < 0 || ws_client_keep_time(&v->ws, e) < 0 ||
            (!v->ws.closing && wait_turn(v, e) < 0))
            return -1;
    return 0;
}

int changes_get(struct call *c, struct pd_err *e)
{
    struct viewer v = {.turn_at = deadline_in(0)};
    struct pd_err why;

    if (origin_check(c, e) < 0 || call_no_query(c, e) < 0 ||
        change_watch_begin(&v.watch, c->api->sessions, c->who.tenant, e) < 0)
        return -1;

    int r = ws_client_begin(&v.ws, c, MESSAGE_MAX, e);
    if (r == 0) {
        int broke = run(&v, &why);
        ws_client_end(&v.ws, broke < 0 ? &why : NULL);
    }
    change_watch_end(&v.watch, c->api->sessions);
    return r;
}
