/* How this works: one thread, one loop. Each turn tries what can be tried without waiting (bytes of
 * the client's body, bytes to the server behind, bytes of its answer) and polls when nothing moved.
 * Only writing to the client waits: a client that does not read has nothing to gain from more. */
#include "net/proxy.h"

#include "base/err.h"
#include "base/fd.h"
#include "net/server_state.h"
#include "net/ws.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>

#define PIECE       (32u << 10)
#define SMALL_PIECE (16u << 10) /* fits a socket that says it can be written to */
#define INTERIM_MAX 16
#define LOOK_EVERY  NS_PER_S
#define STALL       (60 * NS_PER_S)

struct passing {
    struct request *r;
    const struct proxy *p;
    struct conn *behind; /* reads from p->from */
    struct http_head head;
    int has_head, answered;
    unsigned interim;
    struct body body;
    struct buf up; /* on its way to the server behind */
    size_t up_at;
    int up_over; /* nothing more will come into `up` */
    int moved;   /* something happened in this turn */
    deadline look_at, idle_at;
    char piece[PIECE];
    struct inbox in;
};

static size_t up_left(const struct passing *x)
{
    return x->up.len - x->up_at;
}

/* Returns 0 when the client may not go on, such as when its key was revoked. */
static int look_around(struct passing *x)
{
    if (!deadline_passed(x->look_at))
        return 1;

    x->look_at = deadline_in(LOOK_EVERY);
    return !x->p->may_go_on || x->p->may_go_on(x->p->arg);
}

static int poll_ms(const struct passing *x)
{
    return deadline_poll_ms(x->look_at < x->idle_at ? x->look_at : x->idle_at);
}

/* ---- to the server behind ---- */

static int put_head(struct passing *x, struct pd_err *e)
{
    const struct http_head *h = &x->r->head;

    buf_put(&x->up, x->p->head->data, x->p->head->len);
    if (h->upgrade_websocket)
        buf_puts(&x->up, "Connection: Upgrade\r\nUpgrade: websocket\r\n");
    else
        buf_puts(&x->up, "Connection: close\r\n");
    if (h->body == HTTP_BODY_CHUNKED)
        buf_puts(&x->up, "Transfer-Encoding: chunked\r\n");
    else if (h->body == HTTP_BODY_LENGTH)
        buf_printf(&x->up, "Content-Length: %llu\r\n", (unsigned long long)h->length);
    buf_puts(&x->up, "\r\n");

    x->up_over = x->r->state->body.done;
    return x->up.overflow || x->p->head->overflow
               ? pd_fail(e, PD_TOO_LARGE, "the head of the request is too long to be passed on")
               : 0;
}

/* A client that waits for permission to send its body gets it. */
static int permit(struct request *r, struct pd_err *e)
{
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct request_state *st = r->state;

    if (!r->head.expect_continue || st->continue_sent || st->began || r->head.minor == 0)
        return 0;

    st->continue_sent = 1;
    return st->in.pos < st->in.len ? 0 : conn_write(r->conn, text, sizeof text - 1, STALL, e);
}

/* Takes what there is of the client's body. */
static int take_body(struct passing *x, struct pd_err *e)
{
    struct request_state *st = x->r->state;
    struct pd_err why;

    if (permit(x->r, e) < 0)
        return -1;

    ssize_t n = body_read(&st->body, &st->in, x->r->conn, x->piece, PIECE, 0, &why);
    if (n < 0 && why.code == PD_TIMEOUT) {
        st->body.error = BODY_GOOD;
        return 0;
    }
    if (n < 0) {
        st->close = 1;
        if (e)
            *e = why;
        return -1;
    }

    int chunked = st->body.kind == HTTP_BODY_CHUNKED;
    buf_clear(&x->up);
    x->up_at = 0;
    if (chunked && n > 0)
        buf_printf(&x->up, "%zx\r\n", (size_t)n);
    buf_put(&x->up, x->piece, (size_t)n);
    if (chunked && n > 0)
        buf_puts(&x->up, "\r\n");
    if (chunked && st->body.done)
        buf_puts(&x->up, "0\r\n\r\n");

    x->up_over = st->body.done;
    x->moved = 1;
    return x->up.overflow ? pd_fail(e, PD_CAPACITY, "out of memory") : 0;
}

/* 0 also when the server behind reads no more: it may still answer. */
static void give(struct passing *x)
{
    ssize_t n = write(x->p->to, x->up.data + x->up_at, up_left(x));
    if (n > 0) {
        x->up_at += (size_t)n;
        x->moved = 1;
    } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
        x->up_at = x->up.len;
        x->up_over = 1;
        x->moved = 1;
    }
}

/* ---- from it ---- */

static int fail_nonsense(const struct pd_err *why, struct pd_err *e)
{
    return pd_fail(e, PD_BAD_GATEWAY, "the server in the sandbox answered what is no HTTP: %.150s",
                   why->msg);
}

/* The length of an answer's body, or of the one that a GET would have got. */
static uint64_t answer_length(const struct passing *x)
{
    const struct http_head *h = &x->head;
    if (h->body == HTTP_BODY_LENGTH)
        return h->length;

    const struct slice *said = http_find(h, "Content-Length");
    if (x->r->head.method != HTTP_HEAD || !said || !said->len || said->len > 18)
        return h->body == HTTP_BODY_NONE && x->r->head.method != HTTP_HEAD ? 0 : REPLY_CHUNKED;

    uint64_t n = 0; /* digits only: the parser has checked */
    for (size_t i = 0; i < said->len; i++)
        n = n * 10 + (uint64_t)(said->at[i] - '0');
    return n;
}

/* 101: only if it was asked for and proves that it was meant. */
static int begin_tunnel(struct passing *x, struct pd_err *e)
{
    char proof[WS_ACCEPT_SIZE];
    const struct slice *key = http_find(&x->r->head, "Sec-WebSocket-Key");

    const struct slice *said = http_find(&x->head, "Sec-WebSocket-Accept");
    if (!x->r->head.upgrade_websocket || !x->head.upgrade_websocket)
        return pd_fail(e, PD_BAD_GATEWAY,
                       "the server in the sandbox switched to a protocol that nobody asked for");
    if (!key || ws_accept(*key, proof, e) < 0)
        return pd_fail(e, PD_INVALID, "Sec-WebSocket-Key is not 16 bytes in base64");
    if (!said || !slice_is(*said, proof))
        return pd_fail(e, PD_BAD_GATEWAY,
                       "the server in the sandbox answered with a wrong Sec-WebSocket-Accept");

    x->p->answer(x->r, &x->head, x->p->arg);
    if (request_upgrade(x->r, NULL, e) == 0)
        return 0;
    reply_abort(x->r);
    return -1;
}

static int begin_answer(struct passing *x, struct pd_err *e)
{
    x->has_head = 1;
    if (x->head.status == 101)
        return begin_tunnel(x, e);

    struct pd_err why;
    body_start(&x->body, &x->head);
    x->p->answer(x->r, &x->head, x->p->arg);
    if (reply_begin(x->r, x->head.status, NULL, answer_length(x), &why) < 0) {
        if (x->r->status) { /* the client is gone */
            x->answered = 1;
            return 0;
        }
        return pd_fail(e, PD_BAD_GATEWAY, "the server in the sandbox answered too many headers");
    }
    return 0;
}

/* Looks for the head in what has come. */
static int look(struct passing *x, struct pd_err *e)
{
    struct inbox *in = &x->in;
    struct pd_err why;

    for (;;) {
        ptrdiff_t n = http_response_parse(in->data, in->len, x->r->head.method, &x->head, &why);
        if (n < 0)
            return fail_nonsense(&why, e);
        if (n == 0)
            return 0;
        if (x->head.status >= 200 || x->head.status == 101) {
            in->head_len = in->pos = (size_t)n;
            return begin_answer(x, e);
        }

        if (++x->interim > INTERIM_MAX)
            return pd_fail(e, PD_BAD_GATEWAY,
                           "the server in the sandbox sends interim answers only");
        in->len -= (size_t)n;
        memmove(in->data, in->data + n, in->len);
    }
}

static int take_head(struct passing *x, struct pd_err *e)
{
    struct inbox *in = &x->in;
    struct pd_err why;

    ssize_t n = conn_read(x->behind, in->data + in->len, sizeof in->data - in->len, 0, &why);
    if (n < 0 && why.code == PD_TIMEOUT)
        return 0;
    if (n <= 0)
        return pd_fail(e, PD_BAD_GATEWAY,
                       in->len
                           ? "the server in the sandbox closed the connection in the middle of "
                             "its answer's head"
                           : "the server in the sandbox closed the connection without an answer");

    in->len += (size_t)n;
    x->moved = 1;
    return look(x, e);
}

/* Bytes that are in the pipe and need not be looked at go from there to the socket. Returns how
 * many, 0 when there are none, -1. */
static ssize_t move_body(struct passing *x, struct pd_err *e)
{
    int here = 0;
    if (x->body.kind == HTTP_BODY_CHUNKED || x->in.pos < x->in.len ||
        ioctl(x->p->from, FIONREAD, &here) < 0 || here <= 0)
        return 0;

    uint64_t n = (uint64_t)here;
    if (x->body.kind == HTTP_BODY_LENGTH && n > x->body.left)
        n = x->body.left;
    if (reply_write_pipe(x->r, x->p->from, n, e) < 0)
        return -1;

    if (x->body.kind == HTTP_BODY_LENGTH) {
        x->body.left -= n;
        x->body.done = x->body.left == 0;
    }
    return (ssize_t)n;
}

/* From here on an error cannot be told any more: the answer is broken off. */
static void take_answer(struct passing *x)
{
    struct pd_err why;

    ssize_t n = x->body.done ? 0 : move_body(x, &why);
    if (n == 0 && !x->body.done) {
        n = body_read(&x->body, &x->in, x->behind, x->piece, PIECE, 0, &why);
        if (n < 0 && why.code == PD_TIMEOUT) {
            /* A head that waits for the first bytes of its body goes out without them. */
            if (reply_flush(x->r, &why) < 0)
                x->answered = 1;
            return;
        }
        if (n > 0 && reply_write(x->r, x->piece, (size_t)n, &why) < 0)
            n = -1;
    }

    x->moved = 1;
    if (n < 0 || (x->body.done && reply_end(x->r, &why) < 0)) {
        reply_abort(x->r);
        x->answered = 1;
    } else if (x->body.done) {
        x->answered = 1;
    }
}

/* ---- the loop ---- */

/* Until something can move. 0, or -1: too long, or the client is gone. */
static int wait_turn(struct passing *x, struct pd_err *e)
{
    int reads = !x->up_over && up_left(x) == 0;
    struct pollfd p[3] = {{conn_fd(x->r->conn), (short)(POLLRDHUP | (reads ? POLLIN : 0)), 0},
                          {up_left(x) ? x->p->to : -1, POLLOUT, 0},
                          {x->p->from, POLLIN, 0}};

    int n = poll(p, 3, poll_ms(x));
    if (n < 0 && errno != EINTR)
        return pd_fail_sys(e, "wait for the sandbox");
    if (n > 0 && p[0].revents & (POLLRDHUP | POLLHUP | POLLERR))
        return pd_fail(e, PD_LOST, "the client has gone away");
    if (n > 0 || !deadline_passed(x->idle_at))
        return 0;

    if (reads) {
        x->r->state->body.error = BODY_STALLED;
        x->r->state->close = 1;
    }
    return pd_fail(e, PD_TIMEOUT, "%s for %llu s",
                   reads ? "neither the client nor the server in the sandbox said anything"
                         : "the server in the sandbox said nothing",
                   (unsigned long long)(x->p->idle_ns / NS_PER_S));
}

static int exchange(struct passing *x, struct pd_err *e)
{
    if (put_head(x, e) < 0)
        return -1;

    while (!x->answered) {
        x->moved = 0;
        if (!look_around(x))
            return pd_fail(e, PD_UNAUTHENTICATED, "the key was revoked meanwhile");

        if (!x->up_over && up_left(x) == 0 && take_body(x, e) < 0)
            return -1;
        if (up_left(x))
            give(x);

        if (x->has_head)
            take_answer(x);
        else if (take_head(x, e) < 0)
            return -1;

        if (x->r->status == 101)
            return 0;
        if (x->moved)
            x->idle_at = deadline_in(x->p->idle_ns);
        else if (!x->answered && wait_turn(x, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- after a 101 ---- */

struct lane {
    size_t at, len;
    char bytes[SMALL_PIECE];
};

/* Bytes for the client. -1 when it is gone. */
static int send_down(struct passing *x, struct lane *down)
{
    struct pollfd p = {.fd = conn_fd(x->r->conn), .events = POLLOUT};
    if (poll(&p, 1, 0) <= 0 || !(p.revents & POLLOUT))
        return p.revents ? -1 : 0;

    x->moved = 1;
    int r = conn_write(x->r->conn, down->bytes, down->len, STALL, NULL);
    down->len = 0;
    return r;
}

/* One turn of the tunnel; -1 when one side has ended. */
static int tunnel_turn(struct passing *x, struct lane *up, struct lane *down)
{
    struct pd_err why;

    if (up->at == up->len) {
        ssize_t n = request_raw_read(x->r, up->bytes, sizeof up->bytes, 0, &why);
        if (n == 0 || (n < 0 && why.code != PD_TIMEOUT))
            return -1;
        up->at = 0;
        up->len = n > 0 ? (size_t)n : 0;
    }

    if (up->at < up->len) {
        ssize_t n = write(x->p->to, up->bytes + up->at, up->len - up->at);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return -1;
        if (n > 0) {
            up->at += (size_t)n;
            x->moved = 1;
        }
    }

    if (!down->len) {
        ssize_t n = inbox_read(&x->in, x->behind, down->bytes, sizeof down->bytes, 0, &why);
        if (n == 0 || (n < 0 && why.code != PD_TIMEOUT))
            return -1;
        down->len = n > 0 ? (size_t)n : 0;
    }

    return down->len ? send_down(x, down) : 0;
}

static void tunnel(struct passing *x)
{
    struct lane *lanes = malloc(2 * sizeof *lanes);
    if (!lanes)
        return;
    struct lane *up = &lanes[0], *down = &lanes[1];
    up->at = up->len = down->len = 0;

    for (;;) {
        x->moved = 0;
        if (!look_around(x) || tunnel_turn(x, up, down) < 0)
            break;
        if (x->moved) {
            x->idle_at = deadline_in(x->p->idle_ns);
            continue;
        }

        int has_up = up->at < up->len;
        struct pollfd p[3] = {
            {conn_fd(x->r->conn), (short)((has_up ? 0 : POLLIN) | (down->len ? POLLOUT : 0)), 0},
            {has_up ? x->p->to : -1, POLLOUT, 0},
            {down->len ? -1 : x->p->from, POLLIN, 0}};

        /* A stopping server waits for no connection that is silent. */
        if (poll(p, 3, poll_ms(x)) < 0 && errno != EINTR)
            break;
        if (p[0].revents & (POLLHUP | POLLERR) || deadline_passed(x->idle_at) ||
            server_is_stopping(x->r->server))
            break;
    }

    free(lanes);
    proxy_leave(x->r, NS_PER_S);
}

void proxy_leave(struct request *r, uint64_t ns)
{
    char bytes[4096];
    deadline d = deadline_in(ns);

    conn_end_writing(r->conn);
    while (request_raw_read(r, bytes, sizeof bytes, d, NULL) > 0 && !deadline_passed(d))
        ;
}

int proxy_pass(struct request *r, const struct proxy *p, struct pd_err *e)
{
    /* The conn closes what it reads from; the caller keeps its own. */
    int from = fcntl(p->from, F_DUPFD_CLOEXEC, 3);
    if (from < 0)
        return pd_fail_sys(e, "pass the request on");

    struct conn *behind = conn_new_pair(from, from, e);
    struct passing *x = behind ? malloc(sizeof *x) : NULL;
    if (!x) {
        conn_free(behind);
        return pd_fail(e, PD_CAPACITY, "out of memory");
    }

    memset(x, 0, offsetof(struct passing, piece));
    x->in.head_len = x->in.pos = x->in.len = 0;
    x->r = r;
    x->p = p;
    x->behind = behind;
    x->look_at = deadline_in(LOOK_EVERY);
    x->idle_at = deadline_in(p->idle_ns);
    x->up = BUF_INIT(HTTP_HEAD_MAX + HTTP_TARGET_MAX + PIECE + 1024);
    (void)fd_set_nonblock(p->to);

    int result = exchange(x, e);
    if (result == 0 && r->status == 101)
        tunnel(x);
    if (result < 0 && r->status) {
        reply_abort(r);
        result = 0;
    }

    buf_done(&x->up);
    conn_free(behind);
    free(x);
    return result;
}
