/* How this works: one request at a time.
 *
 *   1. its head is read and checked, and written anew with the headers that the caller leaves
 *   2. its body is passed on, then the head of the answer is awaited
 *   3. the answer's head and body go back through the caller's hands
 *
 * A server may answer before it has read the body: when it takes no more, its answer is looked for.
 * A range of an answer could have a part of what the caller looks for, so no range is asked for. */
#include "net/exchange.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "net/body.h"
#include "net/wait.h"

#include <poll.h>

#define PIECE         (16u << 10)
#define IDLE_PATIENCE (120 * NS_PER_S) /* between two requests */
#define HEAD_PATIENCE (30 * NS_PER_S)  /* for the rest of a head that has begun */
#define BODY_PATIENCE (120 * NS_PER_S)
#define WORK_PATIENCE (900 * NS_PER_S) /* for a server that thinks */
#define LOOK_EVERY    (5 * NS_PER_S)   /* whether the client still waits */
#define VALUE_MAX     (16u << 10)
#define ANSWER_MAX    (HTTP_HEAD_MAX + (8u << 10))

struct turn {
    const struct exchange *x;
    struct http_head head;
    struct body body;
    struct inbox in;
    int continued, keeps; /* was told to go on; the connection can be used again */
    int answered;         /* bytes of an answer have gone out */
    char piece[PIECE];
};

/* ---- what is told to the client by us ---- */

static void refuse(struct turn *t, int status, const char *text)
{
    auto_buf out = BUF_INIT(2048);

    if (t->answered)
        return;
    t->answered = 1;
    buf_printf(&out,
               "HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n"
               "Connection: close\r\n\r\npaddock: %s\n",
               status, http_reason(status), strlen(text) + 10, text);
    (void)conn_write(t->x->near, out.data, out.len, BODY_PATIENCE, NULL);
}

static int refuse_with(struct turn *t, int status, enum pd_code code, const char *text,
                       struct pd_err *e)
{
    refuse(t, status, text);
    return pd_fail(e, code, "%s", text);
}

/* ---- a request ---- */

/* Waits for the next request: 1. 0: one side has ended it. */
static int await_request(struct turn *t, struct pd_err *e)
{
    struct conn *far = client_conn(t->x->far);

    if (t->in.len || conn_pending(t->x->near))
        return 1;
    struct pollfd p[2] = {{conn_fd(t->x->near), POLLIN, 0}, {conn_fd(far), POLLIN, 0}};
    int n = poll(p, 2, deadline_poll_ms(deadline_in(IDLE_PATIENCE)));
    if (n < 0)
        return pd_fail_sys(e, "wait for a request");
    return n > 0 && p[0].revents;
}

/* Reads until there is a whole head. 1, 0 when the client has ended it before the first byte. */
static int read_head(struct turn *t, struct pd_err *e)
{
    struct inbox *in = &t->in;
    deadline d = deadline_in(HEAD_PATIENCE);
    struct pd_err why;

    for (;;) {
        ptrdiff_t n = in->len ? http_request_parse(in->data, in->len, &t->head, &why) : 0;
        if (n < 0)
            return refuse_with(t, pd_code_http(why.code), PD_INVALID, why.msg, e);
        if (n > 0) {
            in->head_len = in->pos = (size_t)n;
            body_start(&t->body, &t->head);
            return 1;
        }

        ssize_t got = conn_read(t->x->near, in->data + in->len, sizeof in->data - in->len, d, e);
        if (got == 0 && !in->len)
            return 0;
        if (got <= 0)
            return got < 0 ? -1 : pd_fail(e, PD_LOST, "a request ended in its head");
        in->len += (size_t)got;
    }
}

static int is_for_host(const struct turn *t)
{
    struct slice name;
    unsigned port;
    return http_host_split(t->head.host, &name, &port) == 0 && slice_is_nocase(name, t->x->host);
}

static int is_one_of(struct slice name, const char *const *list)
{
    for (; *list; list++)
        if (slice_is_nocase(name, *list))
            return 1;
    return 0;
}

/* Headers that are for this hop, or that would have the server answer what cannot be looked at. */
static int is_ours(const struct turn *t, struct slice name)
{
    static const char *const ours[] = {"Host", "Expect", "TE", "Content-Length", NULL};
    static const char *const unseen[] = {"Accept-Encoding", "Range", "If-Range", NULL};

    return is_one_of(name, ours) || (t->x->answer && is_one_of(name, unseen)) ||
           http_hop_by_hop(&t->head, name);
}

static int pass_headers(struct turn *t, struct pd_err *e)
{
    auto_buf value = BUF_INIT(VALUE_MAX);

    for (unsigned i = 0; i < t->head.header_count; i++) {
        const struct http_header *h = &t->head.headers[i];
        if (is_ours(t, h->name))
            continue;

        buf_clear(&value);
        enum exchange_header what = t->x->header(t->x->arg, h, &value);
        if (what == EXCHANGE_LEFT_OUT)
            continue;
        struct slice changed = {(const char *)value.data, value.len};
        if (value.overflow)
            return pd_fail(e, PD_TOO_LARGE, "a header is too long");
        if (client_header(t->x->far, h->name, what == EXCHANGE_CHANGED ? changed : h->value, e) < 0)
            return -1;
    }
    if (value.data)
        explicit_bzero(value.data, value.cap);
    if (t->x->more && t->x->more(t->x->arg, t->x->far, e) < 0)
        return -1;
    return t->x->answer
               ? client_header(t->x->far, slice_of("Accept-Encoding"), slice_of("identity"), e)
               : 0;
}

/* A client that waits for permission to send its body gets it. */
static int permit(struct turn *t, struct pd_err *e)
{
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";

    if (!t->head.expect_continue || t->continued || t->in.pos < t->in.len)
        return 0;
    t->continued = 1;
    return conn_write(t->x->near, text, sizeof text - 1, BODY_PATIENCE, e);
}

/* Passes the body on. 0 also when the server takes no more of it: it may have answered. */
static int pass_body(struct turn *t, struct pd_err *e)
{
    while (!t->body.done) {
        if (permit(t, e) < 0)
            return -1;
        ssize_t n =
            body_read(&t->body, &t->in, t->x->near, t->piece, PIECE, deadline_in(BODY_PATIENCE), e);
        if (n < 0)
            return -1;
        if (n > 0 && client_write(t->x->far, t->piece, (size_t)n, NULL) < 0) {
            t->keeps = 0;
            return 0;
        }
        if (t->x->moved(t->x->arg, (uint64_t)n, 0))
            return pd_fail(e, PD_LOST, "it was broken off");
    }
    if (client_end(t->x->far, NULL) < 0)
        t->keeps = 0;
    return 0;
}

static int pass_request(struct turn *t, struct pd_err *e)
{
    const struct http_head *h = &t->head;
    struct pd_err why;

    if (!is_for_host(t))
        return refuse_with(t, 421, PD_INVALID,
                           "a connection to a host with secrets or header rules is for requests "
                           "to that host",
                           e);
    uint64_t length = h->body == HTTP_BODY_CHUNKED  ? CLIENT_CHUNKED
                      : h->body == HTTP_BODY_LENGTH ? h->length
                                                    : CLIENT_NO_BODY;
    if (pass_headers(t, &why) < 0 ||
        client_begin(t->x->far, h->method, h->target, length, &why) < 0)
        return refuse_with(t, 400, PD_INVALID, why.msg, e);

    t->keeps = h->keep_alive;
    if (t->x->moved(t->x->arg, t->in.head_len, 0))
        return pd_fail(e, PD_LOST, "it was broken off");
    return pass_body(t, e);
}

/* ---- its answer ---- */

/* What is wrong with an answer is said without a word of it: it may have what the caller looks for,
 * and cut to the length of an error that would not be found in it. */
static void own_words(struct pd_err *why)
{
    if (why->code != PD_TIMEOUT && why->code != PD_LOST && why->code != PD_DENIED &&
        why->code != PD_CAPACITY)
        pd_fail(why, PD_PROTOCOL, "the server's answer cannot be read");
}

/* The server said nothing for a moment: is it worth to go on waiting? */
static int goes_on(const struct turn *t, deadline late, struct pd_err *why)
{
    if (why->code != PD_TIMEOUT)
        return 0;
    if (conn_is_gone(t->x->near)) {
        pd_fail(why, PD_LOST, "the client is gone");
        return 0;
    }
    return !deadline_passed(late);
}

static const struct http_head *read_answer_head(const struct turn *t, struct pd_err *e)
{
    const struct http_head *h;
    deadline late = deadline_in(WORK_PATIENCE);
    int r;

    do
        r = client_read_head(t->x->far, &h, deadline_in(LOOK_EVERY), e);
    while (r < 0 && goes_on(t, late, e));
    return r < 0 ? NULL : h;
}

static ssize_t read_answer(struct turn *t, struct pd_err *e)
{
    deadline late = deadline_in(WORK_PATIENCE);
    ssize_t n;

    do
        n = client_read(t->x->far, t->piece, PIECE, deadline_in(LOOK_EVERY), e);
    while (n < 0 && goes_on(t, late, e));
    return n;
}

/* Sends bytes of an answer through the caller's hands, framed as a chunk where that is how. */
static int send_piece(struct turn *t, const void *data, size_t len, int last, int chunked,
                      struct pd_err *e)
{
    auto_buf out = BUF_INIT(ANSWER_MAX + PIECE), framed = BUF_INIT(ANSWER_MAX + PIECE + 64);

    if (t->x->answer)
        t->x->answer(t->x->arg, data, len, last, &out);
    else
        buf_put(&out, data, len);
    if (chunked && out.len)
        buf_printf(&framed, "%zx\r\n", out.len);
    buf_put(&framed, out.data, out.len);
    if (chunked && out.len)
        buf_puts(&framed, "\r\n");
    if (chunked && last)
        buf_puts(&framed, "0\r\n\r\n");
    if (out.overflow || framed.overflow)
        return pd_fail(e, PD_CAPACITY, "out of memory");

    t->answered = 1;
    if (framed.len && conn_write(t->x->near, framed.data, framed.len, BODY_PATIENCE, e) < 0)
        return -1;
    return t->x->moved(t->x->arg, 0, framed.len) ? pd_fail(e, PD_LOST, "it was broken off") : 0;
}

/* How the body goes to the client: in chunks where its length is not known. */
static int is_chunked(const struct turn *t, const struct http_head *h)
{
    return (h->body == HTTP_BODY_CHUNKED || h->body == HTTP_BODY_TO_EOF) && t->head.minor == 1;
}

static int send_head(struct turn *t, const struct http_head *h, struct pd_err *e)
{
    auto_buf out = BUF_INIT(ANSWER_MAX);

    if ((h->body == HTTP_BODY_TO_EOF || h->body == HTTP_BODY_CHUNKED) && t->head.minor == 0)
        t->keeps = 0;
    buf_printf(&out, "HTTP/1.1 %d %s\r\n", h->status, http_reason(h->status));
    for (unsigned i = 0; i < h->header_count; i++) {
        const struct http_header *f = &h->headers[i];
        if (http_hop_by_hop(h, f->name))
            continue;
        buf_put(&out, f->name.at, f->name.len);
        buf_puts(&out, ": ");
        buf_put(&out, f->value.at, f->value.len);
        buf_puts(&out, "\r\n");
    }
    if (is_chunked(t, h))
        buf_puts(&out, "Transfer-Encoding: chunked\r\n");
    if (!t->keeps)
        buf_puts(&out, "Connection: close\r\n");
    buf_puts(&out, "\r\n");
    if (out.overflow)
        return pd_fail(e, PD_TOO_LARGE, "the head of the answer is too long");
    return send_piece(t, out.data, out.len, 1, 0, e);
}

static int is_compressed(const struct http_head *h)
{
    const struct slice *coding = http_find(h, "Content-Encoding");

    for (unsigned i = 0; !coding && i < h->header_count; i++)
        if (slice_is_nocase(h->headers[i].name, "Content-Encoding"))
            return 1; /* twice */
    return coding && coding->len && !slice_is_nocase(*coding, "identity");
}

static int pass_answer(struct turn *t, struct pd_err *e)
{
    struct pd_err why;
    const struct http_head *h = read_answer_head(t, &why);

    if (!h) {
        own_words(&why);
        return refuse_with(t, 502, why.code, why.msg, e);
    }
    if (h->status == 101 || (t->x->answer && is_compressed(h)))
        return refuse_with(t, 502, PD_PROTOCOL,
                           "the server answers in a form that secrets cannot be looked for in", e);
    if (!h->keep_alive)
        t->keeps = 0;
    if (send_head(t, h, e) < 0)
        return -1;

    int chunked = is_chunked(t, h);
    for (ssize_t n = 1; n > 0;) {
        n = read_answer(t, &why);
        if (n < 0) {
            own_words(&why);
            if (e)
                *e = why;
            return -1;
        }
        if (send_piece(t, t->piece, (size_t)n, n == 0, chunked, e) < 0)
            return -1;
    }
    return 0;
}

int exchange_run(const struct exchange *x, struct pd_err *e)
{
    struct turn *t = malloc(sizeof *t);
    int r = -1;
    if (!t)
        return pd_fail(e, PD_CAPACITY, "out of memory");

    t->x = x;
    t->in.head_len = t->in.pos = t->in.len = 0;
    do {
        t->answered = t->continued = 0;
        r = await_request(t, e);
        if (r > 0)
            r = read_head(t, e);
        if (r <= 0)
            break;
        r = pass_request(t, e) < 0 || pass_answer(t, e) < 0 ? -1 : 0;

        t->in.len -= t->in.pos;
        memmove(t->in.data, t->in.data + t->in.pos, t->in.len);
        t->in.pos = t->in.head_len = 0;
    } while (r == 0 && t->keeps && client_is_reusable(x->far));
    explicit_bzero(t, sizeof *t);
    free(t);
    return r;
}
