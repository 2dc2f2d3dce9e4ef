/* How this works: libcurl connects, with TLS where that is asked for, and does nothing else
 * (CURLOPT_CONNECT_ONLY). The request is written by hand, and the head of its answer read; what
 * comes behind that head belongs to the stream already. HTTP/2 would have no such streams, so it is
 * not offered. */
#include "engine/http_stream.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "engine/http.h"
#include "engine/http_state.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

struct http_stream {
    struct http *http;
    int fd;
    struct buf early; /* came with the head */
    size_t early_at;
};

/* Three digits and no more. What follows them is no string: it has no NUL. */
static bool is_status(const char *text)
{
    for (unsigned i = 0; i < 3; i++)
        if (text[i] < '0' || text[i] > '9')
            return false;
    return text[0] != '0' && (text[3] < '0' || text[3] > '9');
}

int http_head_read(const void *data, size_t len, int *ret_status)
{
    if (!data || !len)
        return 0;
    const char *text = data, *end = memmem(data, len, "\r\n\r\n", 4);
    if (len >= 9 && (strncmp(text, "HTTP/1.", 7) != 0 || text[8] != ' '))
        return -1;
    if (!end)
        return len < HTTP_STREAM_HEAD_MAX ? 0 : -1;
    if (end - text < 12 || !is_status(text + 9))
        return -1;

    *ret_status = (text[9] - '0') * 100 + (text[10] - '0') * 10 + (text[11] - '0');
    return (int)(end - text) + 4;
}

void http_stream_free(struct http_stream *s)
{
    if (!s)
        return;
    http_free(s->http);
    buf_done(&s->early);
    free(s);
}

int http_stream_fd(const struct http_stream *s)
{
    return s->fd;
}

ssize_t http_stream_read(struct http_stream *s, void *out, size_t size)
{
    size_t n = s->early.len - s->early_at;

    if (n) {
        n = n < size ? n : size;
        memcpy(out, s->early.data + s->early_at, n);
        s->early_at += n;
        return (ssize_t)n;
    }
    CURLcode code = curl_easy_recv(s->http->curl, out, size, &n);
    return code == CURLE_OK ? (ssize_t)n : code == CURLE_AGAIN ? -EAGAIN : -EIO;
}

ssize_t http_stream_write(struct http_stream *s, const void *data, size_t len)
{
    size_t n = 0;
    CURLcode code = curl_easy_send(s->http->curl, data, len, &n);
    return code == CURLE_OK ? (ssize_t)n : code == CURLE_AGAIN ? -EAGAIN : -EIO;
}

int http_stream_wait(const struct http_stream *s, short events, deadline t, struct pd_err *e)
{
    struct pollfd p = {.fd = s->fd, .events = events};
    int n = poll(&p, 1, deadline_poll_ms(t));

    if (n == 0)
        return pd_fail(e, PD_TIMEOUT, "%s does not answer in time", s->http->where);
    return n < 0 && errno != EINTR ? pd_fail_sys(e, "wait for %s", s->http->where) : 0;
}

static int cut_off(const struct http_stream *s, struct pd_err *e)
{
    return pd_fail(e, PD_BAD_GATEWAY, "%s cuts the connection off", s->http->where);
}

static int connect_only(struct http_stream *s, deadline t, struct pd_err *e)
{
    CURL *c = s->http->curl;
    int left = deadline_poll_ms(t);
    curl_socket_t fd = CURL_SOCKET_BAD;

    if (left == 0)
        return pd_fail(e, PD_TIMEOUT, "no time is left to ask %s", s->http->where);
    s->http->error[0] = 0;
    if (curl_easy_setopt(c, CURLOPT_URL, s->http->base) != CURLE_OK ||
        curl_easy_setopt(c, CURLOPT_CONNECT_ONLY, 1L) != CURLE_OK ||
        curl_easy_setopt(c, CURLOPT_SSL_ENABLE_ALPN, 0L) != CURLE_OK ||
        curl_easy_setopt(c, CURLOPT_HTTPPROXYTUNNEL, 1L) != CURLE_OK ||
        curl_easy_setopt(c, CURLOPT_TCP_NODELAY, 1L) != CURLE_OK ||
        curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, left < 0 ? 0L : (long)left) != CURLE_OK)
        return pd_fail(e, PD_INTERNAL, "libcurl refuses a stream to %s", s->http->where);

    CURLcode code = curl_easy_perform(c);
    if (code == CURLE_OK)
        code = curl_easy_getinfo(c, CURLINFO_ACTIVESOCKET, &fd);
    if (code != CURLE_OK || fd == CURL_SOCKET_BAD)
        return pd_fail(e, code == CURLE_OPERATION_TIMEDOUT ? PD_TIMEOUT : PD_BAD_GATEWAY, "%s: %s",
                       s->http->where,
                       s->http->error[0] ? s->http->error : curl_easy_strerror(code));
    s->fd = fd;
    return 0;
}

static int send_request(struct http_stream *s, const struct buf *request, deadline t,
                        struct pd_err *e)
{
    for (size_t at = 0; at < request->len;) {
        ssize_t n = http_stream_write(s, request->data + at, request->len - at);
        if (n == -EAGAIN && http_stream_wait(s, POLLOUT, t, e) < 0)
            return -1;
        if (n < 0 && n != -EAGAIN)
            return cut_off(s, e);
        at += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* What comes behind the head stays for the first readers. */
static int read_head(struct http_stream *s, struct buf *ret, deadline t, struct pd_err *e)
{
    auto_buf in = BUF_INIT(HTTP_STREAM_HEAD_MAX);
    int len = 0, status = 0;

    while (len == 0) {
        uint8_t piece[1024];
        size_t room = HTTP_STREAM_HEAD_MAX - in.len;
        ssize_t n = http_stream_read(s, piece, room < sizeof piece ? room : sizeof piece);
        if (n == -EAGAIN && http_stream_wait(s, POLLIN, t, e) < 0)
            return -1;
        if (n == 0 || (n < 0 && n != -EAGAIN))
            return cut_off(s, e);
        if (n > 0 && buf_put(&in, piece, (size_t)n) < 0)
            return pd_fail(e, PD_CAPACITY, "no memory for an answer");
        len = http_head_read(in.data, in.len, &status);
    }
    if (len < 0)
        return pd_fail(e, PD_PROTOCOL, "%s does not answer as an HTTP server", s->http->where);
    if (buf_put(ret, in.data, (size_t)len) < 0 ||
        buf_put(&s->early, in.data + len, in.len - (size_t)len) < 0)
        return pd_fail(e, PD_CAPACITY, "no memory for an answer");
    return 0;
}

const char *http_stream_host(const struct http *h)
{
    const char *host = strstr(h->base, "://");
    return host ? host + 3 : "localhost";
}

struct http_stream *http_stream_ask(struct http *h, const struct buf *request, struct buf *ret_head,
                                    deadline t, struct pd_err *e)
{
    struct http_stream *s = calloc(1, sizeof *s);

    if (!s) {
        http_free(h);
        pd_fail(e, PD_CAPACITY, "no memory for a stream");
        return NULL;
    }
    *s = (struct http_stream){.http = h, .fd = -1, .early = BUF_INIT(HTTP_STREAM_HEAD_MAX)};
    if (connect_only(s, t, e) == 0 && send_request(s, request, t, e) == 0 &&
        read_head(s, ret_head, t, e) == 0)
        return s;
    http_stream_free(s);
    return NULL;
}

struct http_stream *http_stream_open(struct http *h, const char *target, const char *body,
                                     deadline t, struct pd_err *e)
{
    auto_buf out = BUF_INIT(16384);
    auto_buf head = BUF_INIT(HTTP_STREAM_HEAD_MAX);
    int status = 0;

    buf_printf(&out,
               "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: paddock\r\n"
               "Content-Type: application/json\r\nContent-Length: %zu\r\n"
               "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n%s",
               target, http_stream_host(h), strlen(body), body);
    if (out.overflow) {
        http_free(h);
        pd_fail(e, PD_INVALID, "a request to the engine is too long");
        return NULL;
    }

    struct http_stream *s = http_stream_ask(h, &out, &head, t, e);
    if (!s)
        return NULL;
    (void)http_head_read(head.data, head.len, &status);
    if (status == 101 || status == 200)
        return s;
    pd_fail(e, PD_PROTOCOL, "%s refuses a stream: status %d", s->http->where, status);
    http_stream_free(s);
    return NULL;
}
