/* How this works: libcurl asks (http.c); here is what all calls of such an API have in common: what
 * may be said again, how long to wait when there was too much, and words for what was refused. */
#include "engine/rented.h"

#include "base/banned.h"
#include "base/err.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define TRIES       3u
#define PAUSE_FIRST (250 * NS_PER_MS)
#define WAIT_MOST_S 20u /* for a Retry-After; what is later is told instead */
#define TURN_MS     200

void rented_call_done(struct rented_call *c)
{
    buf_done(&c->target);
    buf_done(&c->in);
    buf_done(&c->out);
}

void rented_header(struct rented_call *c, const char *header)
{
    if (c->header_count < RENTED_HEADERS)
        c->headers[c->header_count++] = header;
}

/* False when nobody waits any more, or it would be too late. */
static bool pause_for(const struct rented *r, uint64_t ns, deadline until)
{
    deadline end = deadline_in(ns);

    if (end >= until)
        return false;
    while (!deadline_passed(end)) {
        if (r->remote && !remote_is_wanted(r->remote))
            return false;
        poll(NULL, 0, deadline_poll_ms(end) < TURN_MS ? deadline_poll_ms(end) : TURN_MS);
    }
    return true;
}

/* How long to wait before it is said again; 0: never. */
static uint64_t pause_of(const struct rented_call *c, int asked, unsigned tries)
{
    bool passing = asked < 0 || (c->status >= 502 && c->status <= 504);

    if (asked == 0 && c->status == 429) {
        unsigned wait = rented_wait_s(c->heads.wait, 1);
        return wait > WAIT_MOST_S ? 0 : (wait ? wait : 1) * NS_PER_S;
    }
    return passing && c->again ? PAUSE_FIRST << (2 * tries) : 0;
}

int rented_ask(const struct rented *r, struct http *h, struct rented_call *c, struct pd_err *e)
{
    for (unsigned tries = 0;; tries++) {
        struct http_request q = {.method = c->method,
                                 .target = buf_cstr(&c->target),
                                 .headers = c->headers,
                                 .body = c->in.data,
                                 .body_len = c->in.len,
                                 .heads = &c->heads,
                                 .deadline = c->deadline};
        struct http_answer a = {.body = &c->out};

        if (!q.target || c->target.overflow || c->in.overflow)
            return pd_fail(e, PD_INVALID, "a request to %s is too long", r->who);
        if (r->remote && r->remote->is_wanted) {
            q.is_wanted = remote_is_wanted;
            q.context = r->remote;
        }
        c->heads = (struct http_heads){.status = 0};
        buf_clear(&c->out);
        c->out.overflow = 0;
        int asked = http_ask(h, &q, &a, e);
        c->status = asked < 0 ? 0 : a.status;
        c->lost = asked < 0;

        uint64_t ns = tries + 1 < TRIES ? pause_of(c, asked, tries) : 0;
        if (!ns || !pause_for(r, ns, c->deadline))
            return asked;
    }
}

int rented_call_refused(const struct rented *r, const struct rented_call *c, const char *what,
                        struct pd_err *e)
{
    return rented_refused(&(struct rented_refusal){.who = r->who,
                                                   .what = what,
                                                   .remedy = r->remedy,
                                                   .secret = r->secret,
                                                   .wait = c->heads.wait,
                                                   .status = c->status,
                                                   .body = c->out.data,
                                                   .len = c->out.len},
                          e);
}

struct http *rented_server(const struct rented *r, const char *base, struct pd_err *e)
{
    return http_new(&(struct http_place){.base = base, .ca_file = r->ca_file}, e);
}

int rented_secret(const char *setting, const char *file, const char *variable, char *out,
                  size_t size, struct pd_err *e)
{
    auto_buf text = BUF_INIT(4096);
    const char *from = getenv(variable);

    if (file[0]) {
        if (remote_read_file(setting, file, &text, e) < 0)
            return -1;
        from = buf_cstr(&text);
    }
    if (!from || !from[0])
        return pd_fail(e, PD_INVALID, "%s: name the file with the API key (or set %s)", setting,
                       variable);
    bool good = rented_is_token(from) && strlen(from) < size;
    if (good)
        memcpy(out, from, strlen(from) + 1);
    if (text.data)
        explicit_bzero(text.data, text.cap);
    return good ? 0
                : pd_fail(e, PD_INVALID, "%s: what is there is no API key: one word is expected",
                          file[0] ? setting : variable);
}

/* ---- the stream of a link ---- */

struct dialled_stream {
    struct byte_stream stream;
    struct ws_stream *ws;
};

static struct ws_stream *ws_of(const struct byte_stream *s)
{
    return ((const struct dialled_stream *)s)->ws;
}

static ssize_t stream_read(struct byte_stream *s, void *out, size_t size)
{
    ssize_t n = ws_stream_read(ws_of(s), out, size);
    s->wants_write = ws_stream_wants_write(ws_of(s));
    return n;
}

static ssize_t stream_write(struct byte_stream *s, const void *data, size_t len)
{
    ssize_t n = ws_stream_write(ws_of(s), data, len);
    s->wants_write = ws_stream_wants_write(ws_of(s));
    return n;
}

static int stream_fd(const struct byte_stream *s)
{
    return ws_stream_fd(ws_of(s));
}

static const char *stream_words(const struct byte_stream *s)
{
    return ws_stream_farewell(ws_of(s));
}

static void stream_free(struct byte_stream *s)
{
    ws_stream_free(ws_of(s));
    free(s);
}

static const struct byte_stream_kind stream_kind = {.read = stream_read,
                                                    .write = stream_write,
                                                    .fd = stream_fd,
                                                    .words = stream_words,
                                                    .free = stream_free};

struct byte_stream *rented_dial(const struct rented *r, const struct rented_url *at,
                                const char *link, const char *const *headers, deadline t,
                                struct ws_refusal *refusal, struct pd_err *e)
{
    char target[sizeof at->path + 48];
    struct dialled_stream *s = calloc(1, sizeof *s);
    struct http *h = s ? rented_server(r, at->base, e) : NULL;

    if (!s)
        pd_fail(e, PD_CAPACITY, "no memory for a stream");
    if (h) {
        snprintf(target, sizeof target, "%s/link/%s", at->path, link);
        s->ws = ws_stream_open(h, &(struct ws_request){.target = target, .headers = headers}, t,
                               refusal, e);
    }
    if (!s || !s->ws) {
        free(s);
        return NULL;
    }
    s->stream.kind = &stream_kind;
    return &s->stream;
}
