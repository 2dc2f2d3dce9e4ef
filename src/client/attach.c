/* How attaching works: one loop that waits for the socket, for standard input and for signals.
 * Output comes as binary messages (first byte 1: stdout, 2: stderr), the end as a text message.
 * Input is read only when the socket has room for it, so that a command that does not read slows
 * its writer down, and its output still comes. */
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "client/stream.h"
#include "net/ws.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>

#define MESSAGE_MAX (8u << 20)
#define PIECE       16384
#define LEAVE_KEY   0x1d /* Ctrl-] */

struct attach {
    struct stream *stream;
    struct remote *remote;
    struct ws_decoder decoder;
    int flags;
    int input_over, closed;
    int is_full; /* the socket takes no input at the moment */
};

static int send_message(struct attach *a, enum ws_opcode opcode, const void *data, size_t len,
                        struct pd_err *e)
{
    auto_buf b = BUF_INIT(len + WS_HEADER_MAX);
    uint8_t mask[4];

    random_bytes(mask, sizeof mask);
    if (ws_encode(&b, opcode, data, len, mask) < 0)
        return pd_fail(e, PD_CAPACITY, "no memory for a message of %zu bytes", len);
    return remote_raw_write(a->remote, b.data, b.len, e);
}

static int send_json(struct attach *a, json_t *j, struct pd_err *e)
{
    char text[256];
    size_t len = json_dumpb(j, text, sizeof text, JSON_COMPACT);

    json_decref(j);
    return len && len <= sizeof text ? send_message(a, WS_TEXT, text, len, e)
                                     : pd_fail(e, PD_INTERNAL, "a message is too long");
}

static int send_size(struct attach *a, struct pd_err *e)
{
    struct winsize size;

    if (!(a->flags & ATTACH_KEYS) || ioctl(STDIN_FILENO, TIOCGWINSZ, &size) < 0 || !size.ws_row ||
        !size.ws_col)
        return 0;
    return send_json(
        a,
        json_pack("{sssisi}", "type", "resize", "rows", (int)size.ws_row, "cols", (int)size.ws_col),
        e);
}

/* Something of ours was not carried out. That the command reads no more input is its business; that
 * output is missing must be told. */
static void take_error(struct attach *a, const json_t *j)
{
    struct pd_err e;

    remote_error(j, 500, &e);
    if (e.code == PD_LOST)
        (void)client_fail(&e);
    else if (a->flags & ATTACH_INPUT)
        a->input_over = 1;
}

static int take_text(struct attach *a, const struct ws_message *m, struct pd_err *e)
{
    json_auto_t *j = json_loadb((const char *)m->data, m->len, JSON_ALLOW_NUL, NULL);

    const char *type = json_field(j, "type");
    if (!j)
        return pd_fail(e, PD_PROTOCOL, "the server sent a message that is not JSON");

    if (!strcmp(type, "error"))
        take_error(a, j);
    else if (!strcmp(type, "exit") && json_object_get(j, "error"))
        return remote_error(j, 400, e);
    else if (!strcmp(type, "exit"))
        a->stream->end = json_incref(j);
    return 0;
}

static int take_message(struct attach *a, const struct ws_message *m, struct pd_err *e)
{
    struct stream *s = a->stream;

    switch (m->opcode) {
    case WS_BINARY:
        if (!m->len || m->data[0] < 1 || m->data[0] > 2)
            return pd_fail(e, PD_PROTOCOL, "the server sent bytes of an unknown stream");
        s->offset[m->data[0] - 1] += m->len - 1;
        return sink_write(m->data[0] == 1 ? &s->out : &s->err, m->data + 1, m->len - 1, e);
    case WS_TEXT:
        return take_text(a, m, e);
    case WS_PING:
        return send_message(a, WS_PONG, m->data, m->len, e);
    case WS_CLOSE:
        a->closed = 1;
        return 0;
    default:
        return 0;
    }
}

static int take_bytes(struct attach *a, struct pd_err *e)
{
    uint8_t bytes[PIECE];

    ssize_t n = remote_raw_read(a->remote, bytes, sizeof bytes, e);
    if (n < 0)
        return -1;
    if (n == 0)
        a->closed = 1;

    const uint8_t *at = bytes;
    size_t left = (size_t)n;
    while (!a->stream->end) {
        struct ws_message m;
        size_t used = 0;
        int got = ws_decode(&a->decoder, at, left, &used, &m, e);
        if (got < 0 || (got > 0 && take_message(a, &m, e) < 0))
            return -1;
        if (!got)
            break;
        at += used;
        left -= used;
    }
    return 0;
}

/* 1 when the user wants to leave. */
static int take_input(struct attach *a, struct pd_err *e)
{
    char bytes[PIECE];

    struct pollfd socket = {.fd = remote_fd(a->remote), .events = POLLOUT};
    if (poll(&socket, 1, 0) <= 0) {
        a->is_full = 1;
        return 0;
    }

    ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0) {
        a->input_over = 1;
        if (a->flags & ATTACH_KEYS)
            return 1;
        return send_json(a, json_pack("{ss}", "type", "close_stdin"), e);
    }

    char *leave = a->flags & ATTACH_KEYS ? memchr(bytes, LEAVE_KEY, (size_t)n) : NULL;
    if (leave)
        n = leave - bytes;
    if (n && send_message(a, WS_BINARY, bytes, (size_t)n, e) < 0)
        return -1;
    return leave != NULL;
}

static int take_signals(struct attach *a, struct pd_err *e)
{
    struct stream *s = a->stream;
    for (int signal; (signal = signals_next(s->signals));) {
        if (signal == SIGWINCH) {
            if (send_size(a, e) < 0)
                return -1;
        } else if (a->flags & ATTACH_KEYS) {
            return 1; /* the terminal goes away; the command stays */
        } else {
            stream_signal(s, signal);
        }
    }
    return 0;
}

static int run(struct attach *a, struct pd_err *e)
{
    struct stream *s = a->stream;
    int left = 0;

    if (send_size(a, e) < 0)
        return -1;

    while (!s->end && !s->given_up && !a->closed && !left) {
        int want_input = (a->flags & (ATTACH_INPUT | ATTACH_KEYS)) && !a->input_over;
        short room = want_input && a->is_full ? POLLOUT : 0;
        struct pollfd p[] = {
            {.fd = remote_fd(a->remote), .events = POLLIN | room},
            {.fd = s->signals, .events = POLLIN},
            {.fd = want_input && !a->is_full ? STDIN_FILENO : -1, .events = POLLIN}};

        /* No deadline: a terminal rests as long as its user does. The user, a signal, output or the
         * end of the connection ends the wait. */
        int pending = remote_pending(a->remote);
        if (poll(p, 3, pending ? 0 : -1) < 0 && errno != EINTR)
            return pd_fail_sys(e, "poll");

        if (p[0].revents & POLLOUT)
            a->is_full = 0;
        if (pending || p[0].revents & ~POLLOUT)
            if (take_bytes(a, e) < 0)
                return -1;

        if (p[1].revents && (left = take_signals(a, e)) < 0)
            return -1;
        if (!left && p[2].revents && (left = take_input(a, e)) < 0)
            return -1;
    }

    if (!s->end && !s->given_up && !left)
        return pd_fail(e, PD_LOST, "the server ended the connection before the command had ended");

    auto_buf bye = BUF_INIT(256);
    uint8_t mask[4];
    random_bytes(mask, sizeof mask);
    if (ws_close_encode(&bye, WS_NORMAL, "", mask) == 0)
        (void)remote_raw_write(a->remote, bye.data, bye.len, NULL);
    return left;
}

int stream_attach(struct stream *s, int flags, struct pd_err *e)
{
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    auto_remote *r = remote_new(e);

    buf_printf(&b, "/v1/sandboxes/%s/processes/%s/attach", s->sandbox, s->process);
    if (s->offset[0] || s->offset[1])
        buf_printf(&b, "?offset=%llu.%llu", (unsigned long long)s->offset[0],
                   (unsigned long long)s->offset[1]);

    if (!r || remote_upgrade(r, buf_cstr(&b), e) < 0)
        return -1;

    struct attach a = {.stream = s, .remote = r, .flags = flags};
    ws_decoder_init(&a.decoder, 0, MESSAGE_MAX);
    int done = run(&a, e);
    ws_decoder_done(&a.decoder);
    return done;
}
