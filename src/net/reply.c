/* How this works: a head is put together in state.out and goes out together with the first bytes of
 * the body, in one packet if possible. A handler that does not know when its first bytes will come
 * sends the head by reply_flush before it waits for them. */
#include "net/server_state.h"

#include "base/err.h"
#include "base/json.h"
#include "net/http_chars.h"
#include "net/ws.h"

#include "base/banned.h"

#include <strings.h>
#include <sys/socket.h>

#define ERROR_MAX (8u << 10)

static uint64_t stall_of(const struct request *r)
{
    return r->state->stall_ns;
}

static int is_token(const char *s)
{
    const char *at = s;
    while (http_is_token(*at))
        at++;
    return at > s && !*at;
}

static int is_clean(const char *s)
{
    while (*s && http_is_text(*s))
        s++;
    return !*s;
}

void reply_header(struct request *r, const char *name, const char *value)
{
    /* These say where the answer ends; two opinions about that would be a hole. */
    static const char *const own[] = {"Content-Length", "Transfer-Encoding", "Connection",
                                      "Keep-Alive",     "Upgrade",           "X-Request-Id"};
    struct request_state *st = r->state;

    if (st->began || !is_token(name) || !is_clean(value))
        return;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcasecmp(name, own[i]))
            return;

    if (!strcasecmp(name, "Date"))
        st->has_date = 1;

    buf_puts(&st->headers, name);
    buf_puts(&st->headers, ": ");
    buf_puts(&st->headers, value);
    buf_puts(&st->headers, "\r\n");
}

static void put_number(struct buf *b, const char *name, uint64_t v)
{
    char text[24];
    int n = snprintf(text, sizeof text, "%llu", (unsigned long long)v);

    buf_puts(b, name);
    buf_put(b, text, (size_t)n);
    buf_puts(b, "\r\n");
}

static void put_date(struct request_state *st)
{
    time_t now = time(NULL);
    if (now != st->date_of) {
        static const char days[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
        static const char months[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                           "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
        struct tm t;
        if (!gmtime_r(&now, &t))
            return;
        snprintf(st->date, sizeof st->date, "%s, %02d %s %d %02d:%02d:%02d GMT",
                 days[(unsigned)t.tm_wday % 7], t.tm_mday, months[(unsigned)t.tm_mon % 12],
                 t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
        st->date_of = now;
    }

    buf_puts(&st->out, "Date: ");
    buf_puts(&st->out, st->date);
    buf_puts(&st->out, "\r\n");
}

static void put_status(struct request *r, int status)
{
    struct request_state *st = r->state;
    char line[16];

    snprintf(line, sizeof line, "HTTP/1.1 %03d ", status);
    buf_clear(&st->out);
    buf_puts(&st->out, line);
    buf_puts(&st->out, http_reason(status));
    buf_puts(&st->out, "\r\nX-Request-Id: ");
    buf_puts(&st->out, r->id);
    buf_puts(&st->out, "\r\n");

    if (!st->has_date)
        put_date(st);
}

/* Whether the connection cannot be used after this answer. */
static int must_close(struct request *r)
{
    struct request_state *st = r->state;
    if (st->close || atomic_load(&st->server->stopping))
        return 1;

    if (st->body.done)
        return 0;
    return (r->head.expect_continue && !st->continue_sent) ||
           (r->head.body == HTTP_BODY_LENGTH && st->body.left > (64u << 10));
}

/* Puts the head into state.out and decides how the body goes. */
static int begin(struct request *r, int status, const char *type, uint64_t length, struct pd_err *e)
{
    struct request_state *st = r->state;
    if (st->began)
        return pd_fail(e, PD_INTERNAL, "the request was answered already");
    if (status < 200 || status > 599)
        return pd_fail(e, PD_INTERNAL, "%d is not the status of an answer", status);
    if (type && !is_clean(type))
        return pd_fail(e, PD_INTERNAL, "the media type has a control byte");

    int bodiless = status == 204 || status == 304;
    if (length == REPLY_CHUNKED && r->head.minor == 0 && !bodiless)
        st->close = 1;
    st->close = must_close(r);
    put_status(r, status);

    struct buf *b = &st->out;
    if (type && !bodiless) {
        buf_puts(b, "Content-Type: ");
        buf_puts(b, type);
        buf_puts(b, "\r\n");
    }
    if (!bodiless && length != REPLY_CHUNKED)
        put_number(b, "Content-Length: ", length);
    else if (!bodiless && r->head.minor > 0)
        buf_puts(b, "Transfer-Encoding: chunked\r\n");

    if (st->close)
        buf_puts(b, "Connection: close\r\n");
    else if (r->head.minor == 0)
        buf_puts(b, "Connection: keep-alive\r\n");
    buf_put(b, st->headers.data, st->headers.len);
    buf_puts(b, "\r\n");

    if (b->overflow || st->headers.overflow) {
        buf_clear(b);
        buf_clear(&st->headers);
        return pd_fail(e, PD_INTERNAL, "the head of the answer is too large");
    }

    st->began = 1;
    r->status = status;
    if (bodiless || r->head.method == HTTP_HEAD)
        st->out_mode = OUT_NONE;
    else if (length != REPLY_CHUNKED)
        st->out_mode = OUT_LENGTH;
    else
        st->out_mode = r->head.minor > 0 ? OUT_CHUNKED : OUT_RAW;
    st->out_left = st->out_mode == OUT_LENGTH ? length : 0;
    return 0;
}

/* Sends what is waiting in state.out and up to three pieces more. */
static int send_all(struct request *r, const struct iovec *more, unsigned count, struct pd_err *e)
{
    struct request_state *st = r->state;
    struct iovec iov[4] = {{st->out.data, st->out.len}};

    for (unsigned i = 0; i < count && i < 3; i++)
        iov[i + 1] = more[i];

    int result = conn_writev(r->conn, iov, count + 1, stall_of(r), e);
    buf_clear(&st->out);
    if (result)
        st->aborted = 1;
    return result;
}

int reply_begin(struct request *r, int status, const char *type, uint64_t length, struct pd_err *e)
{
    return begin(r, status, type, length, e) ? -1 : 0;
}

bool reply_is_waiting(const struct request *r)
{
    return r->state->out.len != 0;
}

int reply_flush(struct request *r, struct pd_err *e)
{
    return r->state->out.len ? send_all(r, NULL, 0, e) : 0;
}

static int check_more(struct request *r, uint64_t len, struct pd_err *e)
{
    struct request_state *st = r->state;
    if (st->aborted)
        return pd_fail(e, PD_LOST, "the answer was broken off before");
    if (!st->began || st->ended)
        return pd_fail(e, PD_INTERNAL, "no answer is in progress");
    if (st->out_mode == OUT_LENGTH && len > st->out_left) {
        st->aborted = 1;
        return pd_fail(e, PD_INTERNAL, "the answer is longer than was said");
    }
    return 0;
}

static void count_sent(struct request *r, uint64_t len)
{
    r->sent += len;
    if (r->state->out_mode == OUT_LENGTH)
        r->state->out_left -= len;
}

/* The line before a chunk. */
static struct iovec chunk_line(char line[24], uint64_t len)
{
    int n = snprintf(line, 24, "%llx\r\n", (unsigned long long)len);
    return (struct iovec){line, (size_t)n};
}

int reply_write(struct request *r, const void *data, size_t len, struct pd_err *e)
{
    struct request_state *st = r->state;

    if (check_more(r, len, e))
        return -1;
    if (!len || st->out_mode == OUT_NONE)
        return 0;

    char line[24];
    struct iovec piece = {(void *)(uintptr_t)data, len};
    struct iovec chunk[3] = {chunk_line(line, len), piece, {(char[]){"\r\n"}, 2}};
    int chunked = st->out_mode == OUT_CHUNKED;

    if (send_all(r, chunked ? chunk : &piece, chunked ? 3 : 1, e))
        return -1;
    count_sent(r, len);
    return 0;
}

/* The same for bytes that do not pass through this process. */
static int write_from(struct request *r, int from, int is_file, uint64_t offset, uint64_t len,
                      struct pd_err *e)
{
    struct request_state *st = r->state;

    if (check_more(r, len, e))
        return -1;
    if (!len || st->out_mode == OUT_NONE)
        return 0;

    int chunked = st->out_mode == OUT_CHUNKED;
    char line[24];
    struct iovec first = chunk_line(line, len);

    int result = send_all(r, &first, chunked ? 1 : 0, e);
    if (!result)
        result = is_file ? conn_write_file(r->conn, from, offset, len, stall_of(r), e)
                         : conn_write_pipe(r->conn, from, len, stall_of(r), e);
    if (!result && chunked)
        result = conn_write(r->conn, "\r\n", 2, stall_of(r), e);

    if (result) {
        st->aborted = 1;
        return -1;
    }
    count_sent(r, len);
    return 0;
}

int reply_write_pipe(struct request *r, int pipe, uint64_t len, struct pd_err *e)
{
    return write_from(r, pipe, 0, 0, len, e);
}

int reply_write_file(struct request *r, int file, uint64_t offset, uint64_t len, struct pd_err *e)
{
    return write_from(r, file, 1, offset, len, e);
}

int reply_end(struct request *r, struct pd_err *e)
{
    struct request_state *st = r->state;

    if (check_more(r, 0, e))
        return -1;
    if (st->out_left) {
        st->aborted = 1;
        return pd_fail(e, PD_INTERNAL, "the answer is shorter than was said");
    }

    struct iovec last = {(char[]){"0\r\n\r\n"}, 5};
    int chunked = st->out_mode == OUT_CHUNKED;
    if ((chunked || st->out.len) && send_all(r, &last, chunked ? 1 : 0, e))
        return -1;

    st->ended = 1;
    return 0;
}

void reply_abort(struct request *r)
{
    r->state->aborted = 1;
}

void reply_reset(struct request *r)
{
    struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    (void)setsockopt(conn_fd(r->conn), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    reply_abort(r);
}

int reply(struct request *r, int status, const char *type, const void *body, size_t len)
{
    struct pd_err e;
    struct request_state *st = r->state;

    if (begin(r, status, type, len, &e))
        return -1;

    struct iovec piece = {(void *)(uintptr_t)body, len};
    int with_body = st->out_mode == OUT_LENGTH && len > 0;
    if (send_all(r, &piece, with_body ? 1 : 0, &e))
        return -1;

    if (with_body)
        count_sent(r, len);
    st->ended = 1;
    return 0;
}

int reply_error_as(struct request *r, int status, const struct pd_err *e, const char *details)
{
    if (r->state->began) {
        reply_abort(r);
        return -1;
    }

    /* The text of an internal error is for the log: it may name paths of this machine. */
    int is_inside =
        e->code == PD_INTERNAL || e->code == PD_PROTOCOL || (unsigned)e->code >= PD_CODE_COUNT;
    auto_buf text = BUF_INIT(ERROR_MAX);
    struct json j = JSON_INIT(&text);

    json_open(&j, '{');
    json_key(&j, "error");
    json_open(&j, '{');
    json_key(&j, "code");
    json_cstr(&j, pd_code_name(e->code));
    json_key(&j, "message");
    json_cstr(&j, is_inside ? "something went wrong in the server; its log says what, under this "
                              "request_id"
                            : e->msg);

    json_key(&j, "details");
    if (details && !is_inside) {
        buf_puts(&text, details);
    } else {
        json_open(&j, '{');
        if (is_inside) {
            json_key(&j, "request_id");
            json_cstr(&j, r->id);
        }
        json_close(&j, '}');
    }

    json_close(&j, '}');
    json_close(&j, '}');
    buf_putc(&text, '\n');
    if (text.overflow) {
        buf_clear(&text);
        buf_puts(&text, "{\"error\":{\"code\":\"internal\",\"message\":\"\",\"details\":{}}}\n");
    }

    if (status == 401)
        reply_header(r, "WWW-Authenticate", "Bearer");
    return reply(r, status, "application/json", text.data, text.len);
}

int reply_error_details(struct request *r, const struct pd_err *e, const char *details)
{
    /* A time-out or a loss may also be of the client's making. */
    int status = pd_code_http(e->code);
    if (e->code == PD_TIMEOUT && r->state->body.error == BODY_STALLED)
        status = 408;
    if (e->code == PD_LOST && r->state->body.error == BODY_CUT)
        status = 400;

    return reply_error_as(r, status, e, details);
}

int reply_error(struct request *r, const struct pd_err *e)
{
    return reply_error_details(r, e, NULL);
}

static int has_header(const struct buf *headers, const char *name)
{
    size_t len = strlen(name);

    const char *at = (const char *)headers->data, *end = at + headers->len;
    while (at && at < end) {
        if ((size_t)(end - at) > len && !strncasecmp(at, name, len) && at[len] == ':')
            return 1;
        at = memchr(at, '\n', (size_t)(end - at));
        at = at ? at + 1 : NULL;
    }
    return 0;
}

int request_upgrade(struct request *r, const char *protocol, struct pd_err *e)
{
    struct request_state *st = r->state;
    const struct slice *key = http_find(&r->head, "Sec-WebSocket-Key");
    char proof[WS_ACCEPT_SIZE];

    if (st->began)
        return pd_fail(e, PD_INTERNAL, "the request was answered already");
    if (!r->head.upgrade_websocket || !key)
        return pd_fail(e, PD_INVALID,
                       "this needs a WebSocket: send Connection: Upgrade, "
                       "Upgrade: websocket and Sec-WebSocket-Key");

    /* A proxy passes on what the server behind it has said. */
    if (!has_header(&st->headers, "Sec-WebSocket-Accept")) {
        if (ws_accept(*key, proof, e))
            return -1;
        reply_header(r, "Sec-WebSocket-Accept", proof);
    }
    if (protocol)
        reply_header(r, "Sec-WebSocket-Protocol", protocol);

    put_status(r, 101);
    buf_puts(&st->out, "Upgrade: websocket\r\nConnection: Upgrade\r\n");
    buf_put(&st->out, st->headers.data, st->headers.len);
    buf_puts(&st->out, "\r\n");
    if (st->out.overflow || st->headers.overflow)
        return pd_fail(e, PD_INTERNAL, "the head of the answer is too large");

    st->began = st->ended = st->upgraded = st->close = 1;
    r->status = 101;
    return send_all(r, NULL, 0, e);
}
