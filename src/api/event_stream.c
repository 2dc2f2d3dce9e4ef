/* A process as an event stream: what its spools hold from the given offsets on, and its end. The id
 * of each event says how far both streams have been told, so a client that lost the connection goes
 * on from there, whichever daemon answers it then. */
#include "api/command.h"

#include "base/banned.h"
#include "base/json.h"
#include "core/follow.h"
#include "net/utf8.h"

#include <poll.h>

#define PIECE         (32u << 10)
#define HEARTBEAT     (15 * NS_PER_S)
#define STOP_PATIENCE (5 * NS_PER_S)
/* The head of the answer goes out with the first event, if that comes within this. */
#define HEAD_PATIENCE (2 * NS_PER_MS)

static int send_piece(struct call *c, struct buf *out, unsigned stream, const void *data,
                      size_t len, const uint64_t offset[STREAM_COUNT], struct pd_err *e)
{
    buf_clear(out);
    buf_printf(out, "id: %llu.%llu\nevent: %s\ndata: ", (unsigned long long)offset[STREAM_OUT],
               (unsigned long long)offset[STREAM_ERR], stream ? "stderr" : "stdout");

    struct json j = JSON_INIT(out);
    json_open(&j, '{');
    if (utf8_is_valid(data, len)) {
        json_key(&j, "text");
        json_str(&j, data, len);
    } else {
        auto_buf text = BUF_INIT(2 * PIECE);
        (void)base64_encode(&text, data, len);
        json_key(&j, "base64");
        json_str(&j, text.data, text.len);
    }

    json_close(&j, '}');
    buf_puts(out, "\n\n");
    return reply_write(c->r, out->data, out->len, e);
}

/* One piece of each stream. 1 when something was sent, 0 when there was nothing, -1. What was
 * forgotten before it could be sent is left out: the ids show the gap. */
static int send_news(struct call *c, struct follow *f, struct buf *out, struct pd_err *e)
{
    int sent = 0;
    uint8_t piece[PIECE];

    for (unsigned s = 0; s < STREAM_COUNT; s++) {
        ssize_t n = follow_read(f, s, piece, sizeof piece, e);
        if (n < 0)
            return -1;
        if (n == 0)
            continue;

        if (send_piece(c, out, s, piece, (size_t)n, f->offset, e) < 0)
            return -1;
        sent = 1;
    }
    return sent;
}

static int send_end(struct call *c, struct process *p, struct buf *out,
                    const uint64_t offset[STREAM_COUNT], struct pd_err *e)
{
    struct process_info i;
    struct pd_err why;

    process_get(p, &i, &why);
    buf_clear(out);
    buf_printf(out, "id: %llu.%llu\nevent: exit\ndata: ", (unsigned long long)offset[STREAM_OUT],
               (unsigned long long)offset[STREAM_ERR]);

    struct json j = JSON_INIT(out);
    json_open(&j, '{');
    result_json(&j, &i);
    json_member_cstr(&j, "state", !i.shell ? NULL : i.state_updated ? "updated" : "kept");
    placement_json(&j, &c->placement);

    if (i.refused) {
        json_key(&j, "error");
        json_open(&j, '{');
        json_member_cstr(&j, "code", pd_code_name(why.code));
        json_member_cstr(&j, "message", why.msg);
        json_close(&j, '}');
    }

    json_close(&j, '}');
    buf_puts(out, "\n\n");
    return reply_write(c->r, out->data, out->len, e);
}

/* Waits for the first news, and sends the head alone if there is none for a moment. */
static int await_first(struct call *c, struct follow *f, deadline d, struct pd_err *e)
{
    deadline moment = deadline_in(HEAD_PATIENCE);
    deadline until = d < moment ? d : moment;

    int r = follow_wait(f, conn_fd(c->r->conn), POLLRDHUP, until, e);
    return r || !deadline_passed(until) ? r : reply_flush(c->r, e);
}

/* Waits for news, or for the client to leave (1). */
static int await_news(struct call *c, struct follow *f, deadline d, struct buf *out,
                      struct pd_err *e)
{
    uint64_t left = d == DEADLINE_NONE ? HEARTBEAT : d > clock_now() ? d - clock_now() : 0;
    deadline until = deadline_in(left < HEARTBEAT ? left : HEARTBEAT);

    int r = follow_wait(f, conn_fd(c->r->conn), POLLRDHUP, until, e);
    if (r || left < HEARTBEAT || !deadline_passed(until))
        return r;

    buf_clear(out);
    buf_puts(out, ": heartbeat\n\n");
    return reply_write(c->r, out->data, out->len, e);
}

static int send_all(struct call *c, struct follow *f, deadline d, struct pd_err *e)
{
    auto_buf out = BUF_INIT(4 * PIECE);
    int stopped = 0;

    for (;;) {
        follow_look(f);
        int sent = send_news(c, f, &out, e);
        if (sent < 0)
            return -1;
        if (sent)
            continue;

        if (f->ended)
            return send_end(c, f->process, &out, f->offset, e) < 0 ? -1 : reply_end(c->r, e);

        if (deadline_passed(d)) {
            if (stopped)
                return pd_fail(e, PD_TIMEOUT, "the command does not end");
            stopped = 1;
            if (process_stop(f->process, STOP_TIMEOUT, e) < 0)
                return -1;
            d = deadline_in(STOP_PATIENCE);
        }

        int r = reply_is_waiting(c->r) ? await_first(c, f, d, e) : await_news(c, f, d, &out, e);
        if (r < 0)
            return -1;
        if (r > 0)
            return pd_fail(e, PD_LOST, "the client has gone away");
    }
}

int stream_events(struct call *c, struct process *p, uint64_t offset[STREAM_COUNT], int end_it,
                  struct pd_err *e)
{
    struct follow f;

    if (follow_begin(&f, p, offset, FOLLOW_TEXT | (end_it ? FOLLOW_LISTENS : 0), e) < 0)
        return -1;

    reply_header(c->r, "Cache-Control", "no-store");
    deadline d = process_deadline(p);
    int r = reply_begin(c->r, 200, "text/event-stream", REPLY_CHUNKED, e);
    if (r == 0)
        r = c->r->head.method == HTTP_HEAD ? reply_end(c->r, e) : send_all(c, &f, d, e);

    if (r < 0) {
        struct pd_err ignored;
        reply_abort(c->r);
        if (end_it && !server_is_stopping(c->r->server)) {
            (void)process_stop(p, STOP_ABANDONED, &ignored);
            (void)follow_await_end(&f, -1, deadline_in(STOP_PATIENCE), &ignored);
        }
        r = 0; /* there is nobody to tell */
    }

    follow_end(&f);
    return r;
}
