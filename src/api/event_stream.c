/* A process as an event stream: what its spools hold from the given offsets on, and its end. The id
 * of each event says how far both streams have been told, so a client that lost the connection goes
 * on from there, whichever daemon answers it then. */
#include "api/command.h"

#include "base/banned.h"
#include "base/json.h"
#include "net/utf8.h"

#include <poll.h>

#define PIECE         (32u << 10)
#define HEARTBEAT     (15 * NS_PER_S)
#define STOP_PATIENCE (5 * NS_PER_S)

/* As much of the piece as ends with a whole character, so that no character is told in halves;
 * a tail that never becomes one is told as it is. */
static size_t whole_characters(const uint8_t *data, size_t len, int more_may_come)
{
    size_t back = 0;
    while (back < 3 && back < len && (data[len - 1 - back] & 0xc0) == 0x80)
        back++;

    if (back == len || !more_may_come)
        return len;

    uint8_t lead = data[len - 1 - back];
    size_t need = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    return need > back + 1 ? len - back - 1 : len;
}

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

/* One piece of each stream. 1 when something was sent, 0 when there was nothing, -1. */
static int send_news(struct call *c, struct process *p, struct buf *out,
                     uint64_t offset[STREAM_COUNT], int running, struct pd_err *e)
{
    int sent = 0;
    uint8_t piece[PIECE];

    for (unsigned s = 0; s < STREAM_COUNT; s++) {
        ssize_t n = process_read(p, s, offset[s], piece, sizeof piece, e);
        while (n < 0 && e->code == PD_INVALID) {
            /* The head was forgotten meanwhile: go on with what there is. The ids show the gap. */
            struct process_info i;
            process_get(p, &i, NULL);
            offset[s] = i.first[s];
            n = process_read(p, s, offset[s], piece, sizeof piece, e);
        }

        if (n < 0)
            return -1;

        size_t len = n ? whole_characters(piece, (size_t)n, running || n == PIECE) : 0;
        if (len == 0)
            continue;

        offset[s] += len;
        if (send_piece(c, out, s, piece, len, offset, e) < 0)
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

/* Waits for news, or for the client to leave (1). */
static int await_news(struct call *c, struct watch *w, deadline d, struct buf *out,
                      struct pd_err *e)
{
    uint64_t left = d == DEADLINE_NONE ? HEARTBEAT : d > clock_now() ? d - clock_now() : 0;
    struct pollfd fds[2] = {{.fd = w->event, .events = POLLIN},
                            {.fd = conn_fd(c->r->conn), .events = POLLRDHUP}};

    int n = poll(fds, 2, deadline_poll_ms(deadline_in(left < HEARTBEAT ? left : HEARTBEAT)));
    if (n > 0 && fds[1].revents)
        return 1;

    if (n == 0 && left >= HEARTBEAT) {
        buf_clear(out);
        buf_puts(out, ": heartbeat\n\n");
        return reply_write(c->r, out->data, out->len, e);
    }
    return 0;
}

static int follow(struct call *c, struct process *p, struct watch *w, uint64_t offset[STREAM_COUNT],
                  deadline d, struct pd_err *e)
{
    auto_buf out = BUF_INIT(4 * PIECE);
    int stopped = 0;

    for (;;) {
        struct process_info i;
        watch_clear(w);
        process_get(p, &i, NULL);

        int sent = send_news(c, p, &out, offset, i.running, e);
        if (sent < 0)
            return -1;
        if (sent)
            continue;

        if (!i.running)
            return send_end(c, p, &out, offset, e) < 0 ? -1 : reply_end(c->r, e);

        if (deadline_passed(d)) {
            if (stopped)
                return pd_fail(e, PD_TIMEOUT, "the command does not end");
            stopped = 1;
            if (process_stop(p, STOP_TIMEOUT, e) < 0)
                return -1;
            d = deadline_in(STOP_PATIENCE);
        }

        int r = await_news(c, w, d, &out, e);
        if (r < 0)
            return -1;
        if (r > 0)
            return pd_fail(e, PD_LOST, "the client has gone away");
    }
}

int stream_events(struct call *c, struct process *p, uint64_t offset[STREAM_COUNT], int end_it,
                  struct pd_err *e)
{
    struct watch w;

    if (process_watch(p, &w, e) < 0)
        return -1;

    reply_header(c->r, "Cache-Control", "no-store");
    deadline d = process_deadline(p);
    int r = reply_begin(c->r, 200, "text/event-stream", REPLY_CHUNKED, e);
    if (r == 0 && c->r->head.method != HTTP_HEAD)
        r = follow(c, p, &w, offset, d, e);

    if (r < 0) {
        struct pd_err ignored;
        reply_abort(c->r);
        if (end_it && !server_is_stopping(c->r->server)) {
            (void)process_stop(p, STOP_ABANDONED, &ignored);
            (void)process_wait(p, &w, -1, deadline_in(STOP_PATIENCE), &ignored);
        }
        r = 0; /* there is nobody to tell */
    }

    process_unwatch(p, &w);
    return r;
}
