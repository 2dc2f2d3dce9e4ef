/* How this works: http_stream connects, asks and reads the head of the answer; behind it are frames
 * (net/ws.h). One buffer has what is to be sent: at most one message, and pongs. A message counts
 * as written when the last of its bytes is gone, so whoever writes needs no other way to learn of
 * what is left. */
#include "engine/ws_stream.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "engine/http.h"
#include "engine/http_stream.h"
#include "net/ws.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FRAME     (32u << 10)
#define PIECE     (32u << 10)
#define OUT_MAX   (FRAME + 8192u)
#define PONGS_MAX 4096u
#define WORDS_FOR (2 * NS_PER_S)

struct ws_stream {
    struct http_stream *raw;
    struct ws_decoder decoder;
    uint8_t piece[PIECE]; /* came, and is not decoded */
    size_t at, len;
    struct ws_message message;
    size_t given; /* bytes of it that ws_stream_read has handed out */
    struct buf out;
    size_t out_at;
    size_t promised; /* bytes of the caller's that are in `out` */
    char protocol[64];
    char farewell[160];
    char cookies[4096];
    bool over;
    int failed; /* -errno, or 0 */
};

/* ---- the beginning ---- */

static int put_headers(struct buf *out, const char *const *headers, struct pd_err *e)
{
    for (; headers && *headers; headers++) {
        if (strpbrk(*headers, "\r\n") || !strchr(*headers, ':'))
            return pd_fail(e, PD_INVALID, "a header of a request is not 'Name: value' on one line");
        buf_printf(out, "%s\r\n", *headers);
    }
    return 0;
}

static int write_request(struct buf *out, const char *host, const struct ws_request *r,
                         const char *key, struct pd_err *e)
{
    if (r->target[0] != '/' || strpbrk(r->target, " \r\n"))
        return pd_fail(e, PD_INVALID, "'%.80s' is no target of a request", r->target);

    buf_printf(out,
               "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: paddock\r\nConnection: Upgrade\r\n"
               "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n",
               r->target, host, key);
    if (r->protocols)
        buf_printf(out, "Sec-WebSocket-Protocol: %s\r\n", r->protocols);
    if (put_headers(out, r->headers, e) < 0)
        return -1;
    buf_puts(out, "\r\n");
    return out->overflow ? pd_fail(e, PD_INVALID, "a request for a WebSocket is too long") : 0;
}

/* The protocol that was chosen must be one that was offered. */
static int take_protocol(struct ws_stream *s, const struct http_head *h, const char *offered,
                         struct pd_err *e)
{
    const struct slice *chosen = http_find(h, "sec-websocket-protocol");
    struct slice list = slice_of(offered ? offered : ""), one;

    if (!chosen)
        return 0;
    while (http_list_next(&list, &one))
        if (one.len == chosen->len && !memcmp(one.at, chosen->at, one.len) &&
            one.len < sizeof s->protocol) {
            memcpy(s->protocol, one.at, one.len);
            return 0;
        }
    return pd_fail(e, PD_PROTOCOL,
                   "the server speaks '%.*s' over its WebSocket, which is not what "
                   "was asked for",
                   (int)(chosen->len < 60 ? chosen->len : 60), chosen->at);
}

static bool is_there(const struct http_head *h, const char *name)
{
    for (unsigned i = 0; i < h->header_count; i++)
        if (slice_is_nocase(h->headers[i].name, name))
            return true;
    return false;
}

/* "NAME=VALUE; NAME=VALUE": what a server says behind a cookie's value is left away, and one that
 * does not fit is. */
static void take_cookies(struct ws_stream *s, const struct http_head *h)
{
    size_t have = 0;

    for (unsigned i = 0; i < h->header_count; i++) {
        const struct slice *value = &h->headers[i].value;
        const char *end = memchr(value->at, ';', value->len);
        size_t len = end ? (size_t)(end - value->at) : value->len;
        if (!slice_is_nocase(h->headers[i].name, "set-cookie") || !len ||
            have + len + 3 > sizeof s->cookies)
            continue;
        have += (size_t)snprintf(s->cookies + have, sizeof s->cookies - have, "%s%.*s",
                                 have ? "; " : "", (int)len, value->at);
    }
}

/* Of a header that may come once and came twice http_find knows nothing. */
static int judge(struct ws_stream *s, const struct buf *head, const char *key,
                 const struct ws_request *r, struct ws_refusal *refusal, struct pd_err *e)
{
    static const char *const once[] = {"sec-websocket-accept", "sec-websocket-protocol"};
    struct http_head h;
    char expected[WS_ACCEPT_SIZE];

    if (http_response_parse(head->data, head->len, HTTP_GET, &h, e) <= 0)
        return pd_wrap(e, "the answer to the request for a WebSocket");
    refusal->status = h.status;
    if (h.status != 101)
        return pd_fail(e, PD_PROTOCOL, "the server refuses a WebSocket: status %d", h.status);

    for (unsigned i = 0; i < 2; i++)
        if (is_there(&h, once[i]) && !http_find(&h, once[i]))
            return pd_fail(e, PD_PROTOCOL, "the server says %s twice", once[i]);
    const struct slice *accept = http_find(&h, once[0]);
    if (!h.upgrade_websocket || !accept || ws_accept(slice_of(key), expected, e) < 0 ||
        !slice_is(*accept, expected))
        return pd_fail(e, PD_PROTOCOL, "the server's 101 is not the answer to this WebSocket");
    if (is_there(&h, "sec-websocket-extensions"))
        return pd_fail(e, PD_PROTOCOL, "the server uses an extension that was not offered");
    take_cookies(s, &h);
    return take_protocol(s, &h, r->protocols, e);
}

/* The words of a refusal: what comes within a moment. */
static void read_words(struct ws_stream *s, struct ws_refusal *refusal)
{
    deadline t = deadline_in(WORDS_FOR);
    size_t have = 0;

    while (have < sizeof refusal->text - 1) {
        ssize_t n = http_stream_read(s->raw, refusal->text + have, sizeof refusal->text - 1 - have);
        if (n == -EAGAIN && http_stream_wait(s->raw, POLLIN, t, NULL) == 0 && !deadline_passed(t))
            continue;
        if (n <= 0)
            break;
        have += (size_t)n;
        if (refusal->text[have - 1] == '}' || refusal->text[have - 1] == '\n')
            break;
    }

    /* They are shown to people. */
    for (size_t i = 0; i < have; i++)
        if (refusal->text[i] < ' ' || refusal->text[i] > '~')
            refusal->text[i] = ' ';
    while (have && refusal->text[have - 1] == ' ')
        have--;
    refusal->text[have] = 0;
}

static int begin(struct ws_stream *s, struct http *h, const struct ws_request *r, deadline t,
                 struct ws_refusal *refusal, struct pd_err *e)
{
    uint8_t random[16];
    char key[WS_KEY_SIZE];
    auto_buf request = BUF_INIT(32u << 10);
    auto_buf head = BUF_INIT(HTTP_STREAM_HEAD_MAX);

    random_bytes(random, sizeof random);
    ws_key(random, key);
    if (write_request(&request, http_stream_host(h), r, key, e) < 0) {
        http_free(h);
        return -1;
    }
    s->raw = http_stream_ask(h, &request, &head, t, e);
    if (!s->raw)
        return -1;
    if (judge(s, &head, key, r, refusal, e) == 0)
        return 0;
    if (refusal->status != 101)
        read_words(s, refusal);
    return -1;
}

struct ws_stream *ws_stream_open(struct http *h, const struct ws_request *r, deadline t,
                                 struct ws_refusal *ret, struct pd_err *e)
{
    struct ws_refusal refusal = {.status = 0};
    struct ws_stream *s = calloc(1, sizeof *s);

    if (!s) {
        http_free(h);
        pd_fail(e, PD_CAPACITY, "no memory for a WebSocket");
        return NULL;
    }
    s->out = BUF_INIT(OUT_MAX);
    ws_decoder_init(&s->decoder, 0, WS_STREAM_MESSAGE);
    int failed = begin(s, h, r, t, &refusal, e);
    if (ret)
        *ret = refusal;
    if (!failed)
        return s;
    ws_stream_free(s);
    return NULL;
}

void ws_stream_free(struct ws_stream *s)
{
    if (!s)
        return;
    http_stream_free(s->raw);
    ws_decoder_done(&s->decoder);
    buf_done(&s->out);
    free(s);
}

const char *ws_stream_protocol(const struct ws_stream *s)
{
    return s->protocol;
}

const char *ws_stream_cookies(const struct ws_stream *s)
{
    return s->cookies;
}

int ws_stream_fd(const struct ws_stream *s)
{
    return http_stream_fd(s->raw);
}

const char *ws_stream_farewell(const struct ws_stream *s)
{
    return s->farewell;
}

/* ---- out ---- */

/* 0 when all is gone, -EAGAIN, or -EIO. */
static int flush(struct ws_stream *s)
{
    while (s->out_at < s->out.len) {
        ssize_t n = http_stream_write(s->raw, s->out.data + s->out_at, s->out.len - s->out_at);
        if (n < 0)
            return (int)n;
        s->out_at += (size_t)n;
    }
    buf_clear(&s->out);
    s->out_at = 0;
    return 0;
}

static int put_frame(struct ws_stream *s, enum ws_opcode opcode, const void *data, size_t len)
{
    uint8_t mask[4];
    random_bytes(mask, sizeof mask);
    return ws_encode(&s->out, opcode, data, len, mask);
}

bool ws_stream_wants_write(const struct ws_stream *s)
{
    return s->out_at < s->out.len;
}

ssize_t ws_stream_write(struct ws_stream *s, const void *data, size_t len)
{
    if (s->failed || s->over)
        return -EIO;
    if (!len)
        return s->promised ? 0 : flush(s);

    if (!s->promised) {
        int r = flush(s); /* pongs */
        if (r < 0)
            return r;
        size_t n = len < FRAME ? len : FRAME;
        if (put_frame(s, WS_BINARY, data, n) < 0)
            return -EIO;
        s->promised = n;
    }

    int r = flush(s);
    if (r < 0)
        return r;
    size_t n = s->promised;
    s->promised = 0;
    return (ssize_t)n;
}

/* ---- in ---- */

static void answer(struct ws_stream *s, const struct ws_message *m)
{
    if (m->opcode == WS_PING && s->out.len - s->out_at < PONGS_MAX + s->promised)
        (void)put_frame(s, WS_PONG, m->data, m->len);
    if (m->opcode == WS_CLOSE) {
        s->over = true;
        snprintf(s->farewell, sizeof s->farewell, "%u %.*s", m->code,
                 (int)(m->len < 140 ? m->len : 140), (const char *)m->data);
        (void)put_frame(s, WS_CLOSE, NULL, 0);
    }
    (void)flush(s);
}

/* More of the raw bytes: how many, 0 at their end, -EAGAIN or -EIO. */
static ssize_t fill(struct ws_stream *s)
{
    ssize_t n = http_stream_read(s->raw, s->piece, sizeof s->piece);
    if (n > 0) {
        s->at = 0;
        s->len = (size_t)n;
    }
    return n;
}

int ws_stream_next(struct ws_stream *s, const uint8_t **ret, size_t *ret_len)
{
    struct pd_err e;

    while (!s->failed && !s->over) {
        size_t used = 0;
        int r = s->at < s->len ? ws_decode(&s->decoder, s->piece + s->at, s->len - s->at, &used,
                                           &s->message, &e)
                               : 0;
        s->at += used;
        if (r < 0 || (r > 0 && s->message.opcode == WS_TEXT)) {
            s->failed = -EIO;
        } else if (r > 0 && s->message.opcode == WS_BINARY) {
            *ret = s->message.data;
            *ret_len = s->message.len;
            return 1;
        } else if (r > 0) {
            answer(s, &s->message);
        } else {
            ssize_t n = fill(s);
            if (n == -EAGAIN)
                return -EAGAIN;
            if (n <= 0)
                s->failed = -EIO; /* without a close */
        }
    }
    return s->failed;
}

ssize_t ws_stream_read(struct ws_stream *s, void *out, size_t size)
{
    while (s->message.opcode != WS_BINARY || s->given == s->message.len) {
        const uint8_t *data;
        size_t len;
        s->given = 0;
        s->message.opcode = WS_CONTINUATION;
        int r = ws_stream_next(s, &data, &len);
        if (r <= 0)
            return r;
    }

    size_t n = s->message.len - s->given;
    n = n < size ? n : size;
    memcpy(out, s->message.data + s->given, n);
    s->given += n;
    return (ssize_t)n;
}
