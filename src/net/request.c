/* One request while it is served: its id, its body, and its end. A body is read as bytes, into
 * memory, or into a pipe, and then the kernel moves it if nothing is encrypted. At the end a
 * request that was not answered is, and a rest of the body that is short is read, so that the
 * connection can be used for the next request. */
#include "net/server_state.h"

#include "base/err.h"
#include "base/fd.h"
#include "net/wait.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define PIECE       (16u << 10)
#define READ_STEP   (64u << 10)
#define DRAIN_BYTES (64u << 10)
#define DRAIN_NS    (250 * NS_PER_MS)
#define KEEP_BYTES  (16u << 10)

void request_id_new(struct server *s, char out[17])
{
    /* A bijection of a counter: unique, and it tells nobody how many requests there were. */
    uint64_t z = s->id_seed + atomic_fetch_add(&s->ids, 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;

    for (int i = 0; i < 16; i++)
        out[i] = "0123456789abcdef"[(z >> (60 - 4 * i)) & 15];
    out[16] = 0;
}

void request_reset(struct server_thread *t, struct conn *conn, size_t head_len)
{
    struct request *r = &t->request;
    struct request_state *st = &t->state;

    r->path = r->query = (struct slice){"", 0};
    request_id_new(t->server, r->id);
    r->conn = conn;
    r->server = t->server;
    r->status = 0;
    r->sent = 0;
    r->user = NULL;
    r->state = st;

    st->stall_ns = t->server->config.stall_ns;
    st->in.head_len = st->in.pos = head_len;
    body_start(&st->body, &r->head);
    st->continue_sent = 0;
    st->out_mode = OUT_NONE;
    st->out_left = 0;
    st->began = st->ended = st->aborted = st->upgraded = st->has_date = 0;
    st->close = !r->head.keep_alive;
    buf_clear(&st->headers);
    buf_clear(&st->out);
}

void request_set_patience(struct request *r, uint64_t ns)
{
    struct request_state *st = r->state;
    st->stall_ns = ns == REQUEST_PATIENCE ? r->server->config.stall_ns : ns;

    bool brief = ns == 0;
    if (brief && !st->brief)
        atomic_fetch_add(&r->server->brief, 1);
    else if (!brief && st->brief)
        atomic_fetch_sub(&r->server->brief, 1);
    st->brief = brief;
}

int request_body_done(const struct request *r)
{
    return r->state->body.done;
}

/* A client that waits for permission gets it when somebody wants the body. */
static int permit(struct request *r, struct pd_err *e)
{
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct request_state *st = r->state;

    if (!r->head.expect_continue || st->continue_sent || st->began || r->head.minor == 0)
        return 0;

    st->continue_sent = 1;
    if (st->in.pos < st->in.len) /* it did not wait */
        return 0;
    return conn_write(r->conn, text, sizeof text - 1, st->stall_ns, e);
}

static ssize_t read_body(struct request *r, void *out, size_t size, deadline d, struct pd_err *e)
{
    struct request_state *st = r->state;
    if (!st->body.done && !st->body.error && permit(r, e)) {
        st->body.error = BODY_CUT;
        st->close = 1;
        return -1;
    }

    ssize_t n = body_read(&st->body, &st->in, r->conn, out, size, d, e);
    if (n < 0)
        st->close = 1;
    return n;
}

static int body_failed(struct request_state *st, enum body_error why)
{
    st->body.error = why;
    st->close = 1;
    return -1;
}

ssize_t request_read(struct request *r, void *out, size_t size, struct pd_err *e)
{
    return read_body(r, out, size, deadline_in(r->state->stall_ns), e);
}

static int fail_too_large(uint64_t max, struct pd_err *e)
{
    return pd_fail(e, PD_TOO_LARGE, "the body of the request has more than %llu bytes",
                   (unsigned long long)max);
}

int request_read_all(struct request *r, struct buf *out, size_t max, struct pd_err *e)
{
    struct request_state *st = r->state;
    if (r->head.body == HTTP_BODY_LENGTH && st->body.left > max)
        return fail_too_large(max, e);

    for (size_t total = 0; !st->body.done;) {
        size_t room = out->max - out->len, step = max - total;
        if (step > room)
            step = room;
        if (step > READ_STEP)
            step = READ_STEP;

        char one_more; /* where there must not be one */
        void *to = step ? (void *)buf_reserve(out, step) : &one_more;
        if (!to)
            return pd_fail(e, PD_CAPACITY, "out of memory");

        ssize_t n = request_read(r, to, step ? step : 1, e);
        if (n < 0)
            return -1;
        if (n > 0 && !step)
            return fail_too_large(max, e);

        total += (size_t)n;
        out->len += (size_t)n;
    }
    return 0;
}

/* Length known, nothing encrypted, into a pipe: the kernel moves pages. */
static int splice_body(struct request *r, int pipe, struct pd_err *e)
{
    struct request_state *st = r->state;
    while (st->body.left) {
        struct pd_err why;
        size_t max = st->body.left < (1u << 20) ? st->body.left : 1u << 20;
        ssize_t n = conn_read_pipe(r->conn, pipe, max, st->stall_ns, &why);
        if (n > 0) {
            st->body.left -= (uint64_t)n;
            continue;
        }

        if (n < 0 && why.sys == EPIPE) {
            if (e)
                *e = why;
            return -1;
        }
        if (n < 0 && why.code == PD_TIMEOUT) {
            pd_fail(e, PD_TIMEOUT, "the body of the request stopped moving");
            return body_failed(st, BODY_STALLED);
        }
        pd_fail(e, PD_LOST, "the body of the request ended too soon");
        return body_failed(st, BODY_CUT);
    }
    st->body.done = 1;
    return 0;
}

int request_read_into(struct request *r, int fd, uint64_t max, uint64_t *ret_len, struct pd_err *e)
{
    struct request_state *st = r->state;
    if (r->head.body == HTTP_BODY_LENGTH && st->body.left > max)
        return fail_too_large(max, e);

    struct stat file;
    if (fstat(fd, &file) < 0)
        return pd_fail_sys(e, "stat the receiver of the body");

    int is_pipe = S_ISFIFO(file.st_mode);
    if (is_pipe)
        (void)fd_set_nonblock(fd);

    uint64_t total = 0;
    char piece[PIECE];
    while (!st->body.done) {
        if (is_pipe && r->head.body == HTTP_BODY_LENGTH && st->in.pos == st->in.len &&
            !conn_is_tls(r->conn) && !st->body.error) {
            if (permit(r, e))
                return body_failed(st, BODY_CUT);
            uint64_t left = st->body.left;
            if (splice_body(r, fd, e))
                return -1;
            total += left;
            break;
        }

        ssize_t n = request_read(r, piece, sizeof piece, e);
        if (n < 0)
            return -1;
        total += (uint64_t)n;
        if (total > max)
            return fail_too_large(max, e);
        if (wait_write(fd, piece, (size_t)n, st->stall_ns, e))
            return -1;
    }

    if (ret_len)
        *ret_len = total;
    return 0;
}

int request_is_abandoned(struct request *r)
{
    return conn_is_gone(r->conn);
}

/* Reads what the handler did not want, if that is little and comes soon. */
static int drain(struct request *r)
{
    struct request_state *st = r->state;
    char piece[4096];
    deadline d = deadline_in(DRAIN_NS);
    uint64_t total = 0;

    /* A client that was not permitted to send the body may send it or not: no telling what comes.
     */
    if (!st->body.done && r->head.expect_continue && !st->continue_sent)
        return -1;

    while (!st->body.done && !st->body.error) {
        if (r->head.body == HTTP_BODY_LENGTH && st->body.left > DRAIN_BYTES)
            return -1;
        ssize_t n = read_body(r, piece, sizeof piece, d, NULL);
        total += n > 0 ? (uint64_t)n : 0;
        if (n < 0 || total > DRAIN_BYTES)
            return -1;
    }
    return st->body.error ? -1 : 0;
}

static int finish(struct request *r)
{
    struct request_state *st = r->state;
    struct pd_err e;

    if (!st->began) {
        pd_fail(&e, PD_INTERNAL, "the request was not answered");
        (void)reply_error(r, &e);
    }

    if (!st->ended && !st->aborted && !st->out_left &&
        (st->out_mode == OUT_LENGTH || st->out_mode == OUT_NONE))
        (void)reply_end(r, &e);

    if (st->upgraded || st->aborted || !st->ended)
        return -1;
    if (st->close || atomic_load(&st->server->stopping))
        return st->body.done && st->in.pos == st->in.len ? -1 : 0;
    if (drain(r))
        return 0;

    st->in.len -= st->in.pos;
    memmove(st->in.data, st->in.data + st->in.pos, st->in.len);
    return 1;
}

int request_finish(struct request *r)
{
    struct request_state *st = r->state;
    int result = finish(r);

    /* One long answer does not make a thread large for ever. */
    if (st->headers.cap > KEEP_BYTES)
        buf_done(&st->headers);
    if (st->out.cap > KEEP_BYTES)
        buf_done(&st->out);

    return result;
}

ssize_t request_raw_read(struct request *r, void *out, size_t size, deadline d, struct pd_err *e)
{
    return inbox_read(&r->state->in, r->conn, out, size, d, e);
}

int request_raw_pending(struct request *r)
{
    return r->state->in.pos < r->state->in.len || conn_pending(r->conn);
}
