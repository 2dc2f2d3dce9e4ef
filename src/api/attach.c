/* Attaching to a process by WebSocket.
 *
 * How this works: one thread, one loop, waiting for the client and for the process's watch. Output
 * is read from the spools, so a client that is slow or leaves costs the process nothing, and what
 * is held here is one piece. A piece is read only when the socket can take it. Input is the other
 * way round: when the process does not read, the client is not read either, and one message is
 * held.
 *
 * A page in a browser cannot slow its WebSocket down: what it has not shown yet piles up in its
 * memory. Such a client asks for a window, and says how much it has dealt with (`ack`): no more
 * than the window is on its way then. With a lag it is given the newest output instead of all:
 * where it is further behind, bytes are left out, and it is told how many. */
#include "api/command.h"
#include "api/handlers.h"
#include "api/origin.h"
#include "api/ws_client.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/json.h"
#include "base/parse.h"
#include "core/follow.h"

#include <errno.h>
#include <poll.h>

#define MESSAGE_MAX   (1u << 20)
#define PIECE         (32u << 10)
#define PIECE_MIN     4u /* for a whole character */
#define PIECES_A_TURN 16
#define INPUT_PIECE   4096u /* a pipe takes all of it or nothing */
#define INPUT_WAIT    (50 * NS_PER_MS)
#define TERMINAL_WAIT (NS_PER_S)
#define WINDOW_MIN    4096u
#define LAG_MIN       (64u << 10)
#define AHEAD_MAX     (1u << 30) /* of a window and of a lag */

struct attach {
    struct call *c;
    struct process *process;
    struct follow f;
    struct ws_client ws;
    int pty;
    bool held; /* the window is full: until the client says that it has dealt with some */
    uint64_t window, unacked; /* bytes of output that may be, and that are on their way; 0: any */
    uint64_t lag;             /* how far the client may be behind; 0: as far as output is kept */
    /* The input message that the process has not taken yet; it is the decoder's. */
    const uint8_t *input;
    size_t input_len;
    /* Bytes of the client that were not decoded yet. */
    size_t at, len;
    uint8_t bytes[PIECE];
    uint8_t piece[PIECE];
};

/* ---- admission ---- */

/* Where one stream begins: at byte N, or with -N, at the last N bytes, or as many as are kept. */
static int read_offset(struct attach *a, unsigned stream, const char *text, struct pd_err *e)
{
    static const char *const names[STREAM_COUNT] = {"stdout", "stderr"};
    uint64_t first = a->f.info.first[stream], size = a->f.info.size[stream], n;
    bool from_end = *text == '-';

    if (parse_u64("offset", text + from_end, 0, INT64_MAX, &n, e) < 0)
        return -1;
    if (from_end) {
        a->f.offset[stream] = size - first > n ? size - n : first;
        return 0;
    }

    if (n < first || n > size)
        return pd_fail(e, PD_INVALID, "offset: %llu of %s is not kept; there are %llu to %llu",
                       (unsigned long long)n, names[stream], (unsigned long long)first,
                       (unsigned long long)size);
    a->f.offset[stream] = n;
    return 0;
}

/* "OUT" or "OUT.ERR". A stream that is left out begins at the oldest byte that is kept. */
static int read_offsets(struct attach *a, struct pd_err *e)
{
    char text[48];

    for (unsigned i = 0; i < STREAM_COUNT; i++)
        a->f.offset[i] = a->f.info.first[i];

    int given = call_query(a->c, "offset", text, sizeof text, e);
    if (given <= 0)
        return given;

    snprintf(a->c->field, sizeof a->c->field, "offset");
    char *err = strchr(text, '.');
    if (err)
        *err++ = 0;
    if (read_offset(a, STREAM_OUT, text, e) < 0 || (err && read_offset(a, STREAM_ERR, err, e) < 0))
        return -1;

    a->c->field[0] = 0;
    return 0;
}

static int read_query(struct attach *a, struct pd_err *e)
{
    static const char *const allowed[] = {"offset", "window", "lag", NULL};

    if (call_query_check(a->c, allowed, e) < 0 || read_offsets(a, e) < 0 ||
        call_query_u64(a->c, "window", WINDOW_MIN, AHEAD_MAX, &a->window, e) < 0 ||
        call_query_u64(a->c, "lag", LAG_MIN, AHEAD_MAX, &a->lag, e) < 0)
        return -1;
    return 0;
}

/* ---- to the client ---- */

static int send_error(struct attach *a, const struct pd_err *why, const char *field,
                      struct pd_err *e)
{
    auto_buf text = BUF_INIT(4096);
    struct json j = JSON_INIT(&text);

    json_open(&j, '{');
    json_key(&j, "type");
    json_cstr(&j, "error");
    json_key(&j, "error");
    json_open(&j, '{');
    json_key(&j, "code");
    json_cstr(&j, pd_code_name(why->code));
    json_key(&j, "message");
    json_cstr(&j, why->code == PD_INTERNAL ? "something went wrong in the server" : why->msg);
    json_key(&j, "details");
    json_open(&j, '{');
    if (field && field[0]) {
        json_key(&j, "field");
        json_cstr(&j, field);
    }
    json_close(&j, '}');
    json_close(&j, '}');
    json_close(&j, '}');

    return ws_client_send(&a->ws, WS_TEXT, text.data, text.len, e);
}

static int send_exit(struct attach *a, struct pd_err *e)
{
    auto_buf text = BUF_INIT(16384);
    struct json j = JSON_INIT(&text);

    json_open(&j, '{');
    json_key(&j, "type");
    json_cstr(&j, "exit");
    result_json(&j, &a->f.info);
    json_close(&j, '}');

    if (text.overflow)
        return pd_fail(e, PD_INTERNAL, "the end of the process has no room");
    return ws_client_send(&a->ws, WS_TEXT, text.data, text.len, e);
}

/* The client was slower than the spool is long: it is told what it has missed. */
static int tell_skipped(struct attach *a, unsigned stream, uint64_t to, struct pd_err *e)
{
    struct pd_err why;

    pd_fail(&why, PD_LOST, "bytes %llu to %llu of %s were forgotten before they could be sent",
            (unsigned long long)(to - a->f.skipped), (unsigned long long)to,
            stream == STREAM_OUT ? "stdout" : "stderr");
    return send_error(a, &why, NULL, e);
}

/* How much of a stream the client has not been sent yet, as of the last look. */
static uint64_t left_of(const struct attach *a, unsigned stream)
{
    uint64_t end = a->f.ended ? a->f.end[stream] : a->f.info.size[stream];
    return end > a->f.offset[stream] ? end - a->f.offset[stream] : 0;
}

/* Leaves out what the client would be too far behind with. */
static int keep_lag(struct attach *a, unsigned stream, struct pd_err *e)
{
    uint64_t left = left_of(a, stream), from = a->f.offset[stream];
    if (!a->lag || left <= a->lag)
        return 0;

    a->f.offset[stream] =
        process_next_character(a->process, stream, from + left - a->lag, from + left);

    auto_buf text = BUF_INIT(256);
    struct json j = JSON_INIT(&text);
    json_open(&j, '{');
    json_key(&j, "type");
    json_cstr(&j, "skipped");
    json_key(&j, "stream");
    json_cstr(&j, stream == STREAM_OUT ? "stdout" : "stderr");
    json_key(&j, "bytes");
    json_uint(&j, a->f.offset[stream] - from);
    json_close(&j, '}');
    return ws_client_send(&a->ws, WS_TEXT, text.data, text.len, e);
}

/* One piece of one stream: 1, 0 when there is none, -1. */
static int send_piece(struct attach *a, unsigned stream, struct pd_err *e)
{
    if (keep_lag(a, stream, e) < 0)
        return -1;

    size_t room = PIECE - 1;
    if (a->window && a->window - a->unacked < room)
        room = a->window - a->unacked < PIECE_MIN ? PIECE_MIN : (size_t)(a->window - a->unacked);

    ssize_t n = follow_read(&a->f, stream, a->piece + 1, room, e);
    if (n < 0)
        return -1;

    if (a->f.skipped && tell_skipped(a, stream, a->f.offset[stream] - (uint64_t)n, e) < 0)
        return -1;
    if (n == 0)
        return 0;

    a->unacked += (uint64_t)n;
    a->piece[0] = (uint8_t)(stream + 1);
    return ws_client_send(&a->ws, WS_BINARY, a->piece, (size_t)n + 1, e) < 0 ? -1 : 1;
}

/* Sends what there is and what the socket takes. 1: there may be more, 0: all of it was sent. */
static int send_output(struct attach *a, struct pd_err *e)
{
    for (int i = 0; i < PIECES_A_TURN; i++) {
        int some = 0;
        for (unsigned stream = 0; stream < STREAM_COUNT; stream++) {
            a->held = a->window && a->unacked >= a->window;
            if (a->held)
                return left_of(a, STREAM_OUT) || left_of(a, STREAM_ERR);
            if (!ws_client_can_write(&a->ws))
                return 1;

            int r = send_piece(a, stream, e);
            if (r < 0)
                return -1;
            some |= r;
        }
        if (!some)
            return 0;
    }
    return 1;
}

/* ---- from the client ---- */

static int take_resize(struct attach *a, uint64_t rows, uint64_t cols, struct pd_err *e)
{
    return process_resize(a->process, (uint16_t)rows, (uint16_t)cols, e);
}

static int take_signal(struct attach *a, struct fields *f, struct pd_err *e)
{
    const char *name = NULL;
    uint64_t number = 0;
    char digits[8];
    int signal;

    if (fields_kind(f, "signal") == FIELD_NUMBER) {
        fields_u64(f, "signal", FIELD_REQUIRED, 1, 64, &number);
        snprintf(digits, sizeof digits, "%u", (unsigned)number);
        name = digits;
    } else {
        fields_str(f, "signal", FIELD_REQUIRED, 1, 16, &name);
    }

    if (fields_finish(f, e) < 0 || signal_parse(name, &signal, e) < 0)
        return -1;
    return process_signal(a->process, signal, e);
}

/* The client has dealt with so many bytes more. */
static int take_ack(struct attach *a, struct fields *f, struct pd_err *e)
{
    uint64_t bytes = 0;

    fields_u64(f, "bytes", FIELD_REQUIRED, 0, UINT32_MAX, &bytes);
    if (fields_finish(f, e) < 0)
        return -1;
    if (bytes > a->unacked)
        return pd_fail(e, PD_INVALID, "bytes: %llu were not sent yet; %llu are to be acknowledged",
                       (unsigned long long)bytes, (unsigned long long)a->unacked);

    a->unacked -= bytes;
    return 0;
}

static int refuse_observer(struct pd_err *e)
{
    return pd_fail(e, PD_DENIED,
                   "attached with observe=true: attach without it to send anything but ack");
}

/* Obeys a text message: resize, signal, close_stdin or ack. Its failure is told to the client. */
static int take_order(struct attach *a, const struct ws_message *m, struct fields *f,
                      struct pd_err *e)
{
    enum { RESIZE, SIGNAL, CLOSE_STDIN, ACK };
    static const char *const types[] = {"resize", "signal", "close_stdin", "ack", NULL};
    unsigned type = CLOSE_STDIN;
    uint64_t rows = 0, cols = 0;

    if (fields_parse(f, m->data, m->len, 0, e) < 0)
        return -1;

    if (!fields_enum(f, "type", FIELD_REQUIRED, types, &type))
        return fields_finish(f, e);

    if (type == ACK)
        return take_ack(a, f, e);
    if (a->c->observes)
        return refuse_observer(e);
    if (type == SIGNAL)
        return take_signal(a, f, e);
    if (type == RESIZE) {
        fields_u64(f, "rows", FIELD_REQUIRED, 1, UINT16_MAX, &rows);
        fields_u64(f, "cols", FIELD_REQUIRED, 1, UINT16_MAX, &cols);
    }

    if (fields_finish(f, e) < 0)
        return -1;
    return type == RESIZE ? take_resize(a, rows, cols, e) : process_close_stdin(a->process, e);
}

static int take_message(struct attach *a, const struct ws_message *m, struct pd_err *e)
{
    struct pd_err why;
    int result;

    switch (m->opcode) {
    case WS_TEXT: {
        auto_fields f = {0};
        if (take_order(a, m, &f, &why) == 0)
            return 0;
        return send_error(a, &why, fields_bad(&f), e);
    }
    case WS_BINARY:
        if (a->c->observes) {
            (void)refuse_observer(&why);
            return send_error(a, &why, OBSERVE, e);
        }
        a->input = m->data;
        a->input_len = m->len;
        return 0;
    default:
        (void)ws_client_take_control(&a->ws, m, &result, e);
        return result;
    }
}

/* Gives the process what it takes of the message at hand. A pipe takes a whole piece or nothing; a
 * terminal may take a part, and then it is given a moment and the rest is dropped, as at a real
 * one.
 */
static int give_input(struct attach *a, uint64_t wait_ns, struct pd_err *e)
{
    while (a->input_len) {
        struct pd_err why;
        size_t n = a->input_len < INPUT_PIECE ? a->input_len : INPUT_PIECE;
        deadline d = deadline_in(a->pty ? TERMINAL_WAIT : wait_ns);

        if (process_write(a->process, a->input, n, d, &why) < 0) {
            if (why.code == PD_TIMEOUT && !a->pty)
                return 0;
            a->input_len = 0;
            process_get(a->process, &a->f.info, NULL);
            /* A process that ends, or closes its input, need not read everything: as with a pipe.
             */
            if (why.code == PD_CONFLICT && (!a->f.info.running || a->f.info.stdin_open))
                return 0;
            return send_error(a, &why, NULL, e);
        }

        a->input += n;
        a->input_len -= n;
    }
    return 0;
}

/* Decodes what has come, up to a message that the process does not take at once. */
static int take_bytes(struct attach *a, struct pd_err *e)
{
    while (!a->input_len && !a->ws.closing && a->at < a->len) {
        struct ws_message m;
        size_t used = 0;
        int got = ws_decode(&a->ws.decoder, a->bytes + a->at, a->len - a->at, &used, &m, e);
        a->at += used;

        if (got < 0) {
            (void)ws_client_close(&a->ws, a->ws.decoder.error, e->msg);
            return 0;
        }

        if (got > 0 && (take_message(a, &m, e) < 0 || give_input(a, 0, e) < 0))
            return -1;
        if (got == 0)
            break;
    }
    return 0;
}

static int read_client(struct attach *a, struct pd_err *e)
{
    ssize_t n = ws_client_read(&a->ws, a->bytes, sizeof a->bytes, e);
    if (n <= 0)
        return (int)n;

    a->at = 0;
    a->len = (size_t)n;
    return take_bytes(a, e);
}

/* ---- the loop ---- */

static int keep_time(struct attach *a, struct pd_err *e)
{
    /* While its input is held back the client cannot answer a ping. */
    if (a->input_len)
        ws_client_seen(&a->ws);
    return ws_client_keep_time(&a->ws, e);
}

/* Waits for the client, for output and, for a moment, for a process that takes no input. */
static int wait_turn(struct attach *a, int more, struct pd_err *e)
{
    bool can_go_on = more && !a->held;
    short wants = (short)((a->input_len ? 0 : POLLIN) | POLLRDHUP | (can_go_on ? POLLOUT : 0));
    struct pollfd p[2] = {{conn_fd(a->c->r->conn), wants, 0},
                          {more ? -1 : a->f.watch.event, POLLIN, 0}};

    int at_once = (can_go_on && !a->ws.blocked) || a->input_len || request_raw_pending(a->c->r);
    if (poll(p, 2, at_once ? 0 : deadline_poll_ms(deadline_in(WS_CLIENT_LOOK))) < 0 &&
        errno != EINTR)
        return pd_fail_sys(e, "wait for the client");

    if (p[0].revents & (POLLERR | POLLHUP) || (a->input_len && p[0].revents & POLLRDHUP))
        return pd_fail(e, PD_LOST, "the client has left");

    if (a->input_len) {
        if (give_input(a, more ? 0 : INPUT_WAIT, e) < 0)
            return -1;
        return take_bytes(a, e);
    }

    return p[0].revents & (POLLIN | POLLRDHUP) || request_raw_pending(a->c->r) ? read_client(a, e)
                                                                               : 0;
}

static int attach_run(struct attach *a, struct pd_err *e)
{
    while (!a->ws.closing) {
        follow_look(&a->f);
        int more = send_output(a, e);
        if (more < 0)
            return -1;

        if (a->f.ended && !more) {
            if (send_exit(a, e) < 0)
                return -1;
            return ws_client_close(&a->ws, WS_NORMAL, "");
        }

        if (keep_time(a, e) < 0 || (!a->ws.closing && wait_turn(a, more, e) < 0))
            return -1;
    }
    return 0;
}

int process_attach(struct call *c, struct pd_err *e)
{
    struct pd_err why;

    if (origin_check(c, e) < 0)
        return -1;

    struct process *p = session_find_process(c->session, c->var[1], e);
    if (!p)
        return -1;

    struct attach *a = malloc(sizeof *a);
    if (!a) {
        process_unref(p);
        return pd_fail(e, PD_CAPACITY, "no memory to attach to the process");
    }

    memset(a, 0, offsetof(struct attach, bytes));
    a->c = c;
    a->process = p;
    process_get(p, &a->f.info, NULL);
    a->pty = a->f.info.pty;

    int r = read_query(a, e);
    if (r >= 0)
        r = follow_begin(&a->f, p, a->f.offset, 0, e);

    if (r == 0) {
        r = ws_client_begin(&a->ws, c, MESSAGE_MAX, e);
        if (r == 0) {
            call_use_begin(c);
            int broke = attach_run(a, &why);
            ws_client_end(&a->ws, broke < 0 ? &why : NULL);
            call_use_end(c);
        }
        follow_end(&a->f);
    }

    process_unref(p);
    free(a);
    return r;
}
