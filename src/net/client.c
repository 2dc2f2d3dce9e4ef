/* An HTTP client over one connection: a request is written (head, pieces, end), then the head of
 * its answer is read, then its body. Interim answers (1xx) are skipped. Any failure in the middle
 * leaves the connection `broken`, because what comes next could belong to either message. */
#include "net/client.h"

#include "base/err.h"
#include "base/fd.h"
#include "net/body.h"
#include "net/http_chars.h"
#include "net/wait.h"

#include "base/banned.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#define INTERIM_MAX 16
#define READ_STEP   (64u << 10)
#define STALL_NS    (60 * NS_PER_S) /* that a write may make no progress */

struct client {
    struct conn *conn;
    char host[272]; /* with the port where it matters */
    enum http_method method;
    struct buf headers, out;
    int has_host;
    int writing, chunked, broken;
    uint64_t left; /* of a body with a length */
    struct http_head head;
    int has_head;
    struct body body;
    struct inbox in;
};

struct client *client_new(struct conn *conn, const char *host, struct pd_err *e)
{
    struct client *c = conn ? malloc(sizeof *c) : NULL;
    if (!c) {
        if (conn)
            pd_fail(e, PD_CAPACITY, "out of memory");
        conn_free(conn);
        return NULL;
    }

    memset(c, 0, offsetof(struct client, in.data));
    c->conn = conn;
    c->headers = BUF_INIT(HTTP_HEAD_MAX);
    c->out = BUF_INIT(HTTP_HEAD_MAX + HTTP_TARGET_MAX + 1024);
    c->body.done = 1;
    snprintf(c->host, sizeof c->host, "%s", host);
    return c;
}

void client_free(struct client *c)
{
    if (!c)
        return;
    conn_free(c->conn);
    buf_done(&c->headers);
    buf_done(&c->out);
    free(c);
}

/* Whoever waits for output may wait for hours. A server whose machine is gone says nothing, so the
 * kernel asks it: after a minute of silence, and it is lost after a minute without an answer. A
 * Unix socket has none of these options, and needs none. */
static void set_options(int fd)
{
    int on = 1, idle_s = 60, pause_s = 15, tries = 4;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &pause_s, sizeof pause_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
}

/* A connected socket, -1 with errno set, or -1 with ETIMEDOUT. */
static int connect_to(const struct sockaddr *a, socklen_t len, deadline d)
{
    auto_fd fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;

    if (connect(fd, a, len) < 0) {
        int sys = 0;
        socklen_t size = sizeof sys;
        if (errno != EINPROGRESS && errno != EINTR)
            return -1;
        if (wait_for(fd, POLLOUT, d, NULL)) {
            errno = ETIMEDOUT;
            return -1;
        }
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &sys, &size) < 0)
            return -1;
        if (sys) {
            errno = sys;
            return -1;
        }
    }

    set_options(fd);
    return fd_take(&fd);
}

static int fail_connect(const char *where, struct pd_err *e)
{
    int sys = errno;

    pd_fail(e, sys == ETIMEDOUT ? PD_TIMEOUT : PD_BAD_GATEWAY, "cannot connect to %s: %s", where,
            strerror(sys));
    if (e)
        e->sys = sys;
    return -1;
}

static int connect_unix(const char *path, deadline d, struct pd_err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    size_t len = strlen(path);
    if (len >= sizeof a.sun_path)
        return pd_fail(e, PD_INVALID, "socket path '%s' is too long", path);

    memcpy(a.sun_path, path, len);
    int fd = connect_to((struct sockaddr *)&a,
                        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1), d);
    return fd >= 0 ? fd : fail_connect(path, e);
}

static int connect_tcp(const struct url_server *server, deadline d, struct pd_err *e)
{
    char port[8], where[280];

    snprintf(port, sizeof port, "%u", server->port);
    snprintf(where, sizeof where, "%s port %s", server->host, port);

    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    int r = getaddrinfo(server->host, port, &hints, &list);
    if (r)
        return pd_fail(e, PD_BAD_GATEWAY, "cannot find host '%s': %s", server->host,
                       gai_strerror(r));

    int fd = -1;
    errno = EHOSTUNREACH;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
        fd = connect_to(a->ai_addr, a->ai_addrlen, d);

    int sys = errno;
    freeaddrinfo(list);
    errno = sys;
    return fd >= 0 ? fd : fail_connect(where, e);
}

struct client *client_connect(const struct url_server *server, struct tls_context *tls, deadline d,
                              struct pd_err *e)
{
    char host[272];
    int fd, is_v6 = strchr(server->host, ':') != NULL;

    if (server->tls && !tls) {
        pd_fail(e, PD_INTERNAL, "https needs a TLS context");
        return NULL;
    }

    if (server->socket[0]) {
        snprintf(host, sizeof host, "localhost");
        fd = connect_unix(server->socket, d, e);
    } else {
        const char *open = is_v6 ? "[" : "", *close_ = is_v6 ? "]" : "";
        if (server->port == (server->tls ? 443u : 80u))
            snprintf(host, sizeof host, "%s%s%s", open, server->host, close_);
        else
            snprintf(host, sizeof host, "%s%s%s:%u", open, server->host, close_, server->port);
        fd = connect_tcp(server, d, e);
    }
    if (fd < 0)
        return NULL;

    struct conn *conn = conn_new(fd, server->tls ? tls : NULL, e);
    if (conn && server->tls && conn_set_host(conn, server->host, e)) {
        conn_free(conn);
        conn = NULL;
    }
    return client_new(conn, host, e);
}

int client_header(struct client *c, struct slice name, struct slice value, struct pd_err *e)
{
    if (!name.len)
        return pd_fail(e, PD_INVALID, "a header has no name");

    for (size_t i = 0; i < name.len; i++)
        if (!http_is_token(name.at[i]))
            return pd_fail(e, PD_INVALID, "a header's name has a byte that is not allowed there");
    for (size_t i = 0; i < value.len; i++)
        if (!http_is_text(value.at[i]))
            return pd_fail(e, PD_INVALID, "the value of header '%.*s' has a control byte",
                           name.len < 60 ? (int)name.len : 60, name.at);

    if (slice_is_nocase(name, "Content-Length") || slice_is_nocase(name, "Transfer-Encoding"))
        return 0;
    if (slice_is_nocase(name, "Host"))
        c->has_host = 1;

    buf_put(&c->headers, name.at, name.len);
    buf_puts(&c->headers, ": ");
    buf_put(&c->headers, value.at, value.len);
    buf_puts(&c->headers, "\r\n");
    return c->headers.overflow ? pd_fail(e, PD_TOO_LARGE, "the headers are too long") : 0;
}

int client_begin(struct client *c, enum http_method m, struct slice target, uint64_t length,
                 struct pd_err *e)
{
    if (c->broken || c->writing || !c->body.done)
        return pd_fail(e, PD_INTERNAL, "the connection is not free for a request");
    for (size_t i = 0; i < target.len; i++)
        if ((unsigned char)target.at[i] <= 0x20 || (unsigned char)target.at[i] >= 0x7f)
            return pd_fail(e, PD_INVALID, "the request target has a byte that must be escaped");

    buf_clear(&c->out);
    buf_puts(&c->out, http_method_name(m));
    buf_putc(&c->out, ' ');
    buf_put(&c->out, target.at, target.len);
    buf_puts(&c->out, " HTTP/1.1\r\n");
    if (!c->has_host)
        buf_printf(&c->out, "Host: %s\r\n", c->host);
    buf_put(&c->out, c->headers.data, c->headers.len);
    if (length == CLIENT_CHUNKED)
        buf_puts(&c->out, "Transfer-Encoding: chunked\r\n");
    else if (length != CLIENT_NO_BODY)
        buf_printf(&c->out, "Content-Length: %llu\r\n", (unsigned long long)length);
    buf_puts(&c->out, "\r\n");

    int too_long = c->out.overflow || c->headers.overflow;
    buf_clear(&c->headers);
    c->has_host = 0;
    if (too_long)
        return pd_fail(e, PD_TOO_LARGE, "the head of the request is too long");

    c->method = m;
    c->writing = 1;
    c->has_head = 0;
    c->chunked = length == CLIENT_CHUNKED;
    c->left = length == CLIENT_CHUNKED || length == CLIENT_NO_BODY ? 0 : length;
    c->body.done = 0;
    return 0;
}

/* Sends what is waiting and up to three pieces more. */
static int send_all(struct client *c, const struct iovec *more, unsigned count, struct pd_err *e)
{
    struct iovec iov[4] = {{c->out.data, c->out.len}};

    for (unsigned i = 0; i < count && i < 3; i++)
        iov[i + 1] = more[i];

    int result = conn_writev(c->conn, iov, count + 1, STALL_NS, e);
    buf_clear(&c->out);
    if (result)
        c->broken = 1;
    return result;
}

int client_write(struct client *c, const void *data, size_t len, struct pd_err *e)
{
    if (!c->writing || c->broken)
        return pd_fail(e, PD_INTERNAL, "no request is being written");
    if (!len)
        return 0;

    char line[24];
    int n = snprintf(line, sizeof line, "%zx\r\n", len);
    struct iovec piece = {(void *)(uintptr_t)data, len};
    struct iovec chunk[3] = {{line, (size_t)n}, piece, {(char[]){"\r\n"}, 2}};
    if (c->chunked)
        return send_all(c, chunk, 3, e);

    if (len > c->left) {
        c->broken = 1;
        return pd_fail(e, PD_INTERNAL, "the body is longer than was said");
    }
    c->left -= len;
    return send_all(c, &piece, 1, e);
}

int client_end(struct client *c, struct pd_err *e)
{
    if (!c->writing || c->broken)
        return pd_fail(e, PD_INTERNAL, "no request is being written");
    if (c->left) {
        c->broken = 1;
        return pd_fail(e, PD_INTERNAL, "the body is shorter than was said");
    }

    struct iovec last = {(char[]){"0\r\n\r\n"}, 5};
    if ((c->chunked || c->out.len) && send_all(c, &last, c->chunked ? 1 : 0, e))
        return -1;

    c->writing = 0;
    return 0;
}

/* Looks at what is there: 1 a head that counts, 0 more is needed, -1. */
static int look(struct client *c, unsigned *interim, struct pd_err *e)
{
    struct inbox *in = &c->in;

    for (;;) {
        ptrdiff_t n = http_response_parse(in->data, in->len, c->method, &c->head, e);
        if (n < 0) {
            if (e)
                e->code = PD_PROTOCOL;
            return -1;
        }
        if (n == 0)
            return 0;
        if (c->head.status >= 200 || c->head.status == 101) {
            in->head_len = in->pos = (size_t)n;
            return 1;
        }

        if (++*interim > INTERIM_MAX)
            return pd_fail(e, PD_PROTOCOL, "the server sends interim answers only");
        in->len -= (size_t)n;
        memmove(in->data, in->data + n, in->len);
    }
}

int client_read_head(struct client *c, const struct http_head **ret, deadline d, struct pd_err *e)
{
    struct inbox *in = &c->in;

    if (c->has_head || c->body.done)
        return pd_fail(e, PD_INTERNAL, "no answer is to be expected");
    if (c->out.len && send_all(c, NULL, 0, e))
        return -1;

    in->len -= in->pos;
    memmove(in->data, in->data + in->pos, in->len);
    in->pos = in->head_len = 0;

    unsigned interim = 0;
    for (;;) {
        int found = in->len ? look(c, &interim, e) : 0;
        if (found < 0) {
            c->broken = 1;
            return -1;
        }
        if (found)
            break;

        ssize_t n = conn_read(c->conn, in->data + in->len, sizeof in->data - in->len, d, e);
        if (n < 0)
            return -1;
        if (n == 0) {
            c->broken = 1;
            return pd_fail(e, PD_LOST, "the server has closed the connection without an answer");
        }
        in->len += (size_t)n;
    }

    c->has_head = 1;
    body_start(&c->body, &c->head);
    *ret = &c->head;
    return 0;
}

ssize_t client_read(struct client *c, void *out, size_t size, deadline d, struct pd_err *e)
{
    if (!c->has_head)
        return pd_fail(e, PD_INTERNAL, "the head of the answer was not read");

    ssize_t n = body_read(&c->body, &c->in, c->conn, out, size, d, e);
    if (n < 0 && c->body.error == BODY_MALFORMED && e)
        e->code = PD_PROTOCOL;
    return n;
}

int client_read_all(struct client *c, struct buf *out, size_t max, deadline d, struct pd_err *e)
{
    for (size_t total = 0; !c->body.done;) {
        size_t room = out->max - out->len, step = max - total;
        if (step > room)
            step = room;
        if (step > READ_STEP)
            step = READ_STEP;

        char one_more; /* where there must not be one */
        void *to = step ? (void *)buf_reserve(out, step) : &one_more;
        if (!to)
            return pd_fail(e, PD_CAPACITY, "out of memory");

        ssize_t n = client_read(c, to, step ? step : 1, d, e);
        if (n < 0)
            return -1;
        if (n > 0 && !step)
            return pd_fail(e, PD_TOO_LARGE, "the answer has more than %zu bytes", max);

        total += (size_t)n;
        out->len += (size_t)n;
    }
    return 0;
}

int client_is_reusable(struct client *c)
{
    return !c->broken && !c->writing && c->has_head && c->body.done && c->head.keep_alive &&
           c->head.status != 101 && c->in.pos == c->in.len;
}

struct conn *client_conn(struct client *c)
{
    return c->conn;
}

ssize_t client_raw_read(struct client *c, void *out, size_t size, deadline d, struct pd_err *e)
{
    return inbox_read(&c->in, c->conn, out, size, d, e);
}

int client_raw_pending(struct client *c)
{
    return c->in.pos < c->in.len || conn_pending(c->conn);
}
