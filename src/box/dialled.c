/* How this works: bytes are gathered until the head of the request is complete, or is none; then
 * those behind it, and all that follow, are frames. The answers to bad requests are fixed texts. */
#include "box/dialled.h"

#include "base/banned.h"
#include "base/err.h"

#define OUT_MAX   (DIALLED_FRAME + 8192u)
#define PONGS_MAX 4096u

void dialled_begin(struct dialled *d, const char *target)
{
    *d = (struct dialled){
        .target = target, .head = BUF_INIT(DIALLED_HEAD_MAX), .out = BUF_INIT(OUT_MAX)};
    ws_decoder_init(&d->decoder, 1, DIALLED_MESSAGE_MAX);
}

void dialled_end(struct dialled *d)
{
    buf_done(&d->head);
    buf_done(&d->out);
    ws_decoder_done(&d->decoder);
}

/* ---- the head ---- */

static int refuse(struct dialled *d, const char *status)
{
    d->over = true;
    buf_printf(&d->out, "HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", status);
    return -1;
}

static int welcome(struct dialled *d, const struct http_head *h)
{
    char accept[WS_ACCEPT_SIZE];
    const struct slice *key = http_find(h, "sec-websocket-key");

    if (!slice_is(h->target, d->target) || !h->upgrade_websocket || !key ||
        ws_accept(*key, accept, NULL) < 0)
        return refuse(d, "404 Not Found");
    buf_printf(&d->out,
               "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
               "Connection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
               accept);
    d->is_open = true;
    return d->out.overflow ? -1 : 0;
}

/* Tells how many of the bytes belong to the head: the rest are frames. */
static int take_head(struct dialled *d, const uint8_t *data, size_t len, size_t *ret_used)
{
    struct http_head h;
    size_t before = d->head.len, room = DIALLED_HEAD_MAX - before;
    size_t part = len < room ? len : room;

    if (buf_put(&d->head, data, part) < 0)
        return refuse(d, "431 Request Header Fields Too Large");
    ptrdiff_t n = http_request_parse(d->head.data, d->head.len, &h, NULL);
    if (n < 0)
        return refuse(d, "400 Bad Request");
    if (n == 0 && d->head.len == DIALLED_HEAD_MAX)
        return refuse(d, "431 Request Header Fields Too Large");

    *ret_used = n ? (size_t)n - before : part;
    if (n == 0)
        return 0;
    int r = welcome(d, &h);
    buf_done(&d->head);
    return r;
}

/* ---- frames ---- */

/* What is no data. -1 when the client is done. */
static int hear_control(struct dialled *d, const struct ws_message *m)
{
    if (m->opcode == WS_PING && d->out.len < PONGS_MAX)
        (void)ws_encode(&d->out, WS_PONG, m->data, m->len, NULL);
    if (m->opcode == WS_PING || m->opcode == WS_PONG)
        return 0;
    d->over = true; /* a close, or text, which nobody says here */
    (void)ws_close_encode(&d->out, m->opcode == WS_CLOSE ? WS_NORMAL : WS_UNSUPPORTED, "", NULL);
    return -1;
}

int dialled_next(struct dialled *d, const uint8_t *data, size_t len, size_t *ret_used,
                 const uint8_t **ret, size_t *ret_len)
{
    size_t at = 0;

    *ret_used = len;
    if (d->over)
        return -1;
    if (!d->is_open && len && take_head(d, data, len, &at) < 0)
        return -1;

    while (at < len) {
        struct ws_message m;
        size_t used = 0;
        int r = ws_decode(&d->decoder, data + at, len - at, &used, &m, NULL);
        at += used;
        if (r < 0) {
            d->over = true;
            (void)ws_close_encode(&d->out, d->decoder.error, "", NULL);
            return -1;
        }
        if (r > 0 && m.opcode == WS_BINARY) {
            *ret_used = at;
            *ret = m.data;
            *ret_len = m.len;
            return 1;
        }
        if (r > 0 && hear_control(d, &m) < 0)
            return -1;
    }
    return 0;
}

int dialled_say(struct dialled *d, const uint8_t *data, size_t len)
{
    return len <= DIALLED_FRAME ? ws_encode(&d->out, WS_BINARY, data, len, NULL) : -1;
}
