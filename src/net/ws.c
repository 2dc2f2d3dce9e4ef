/* How this works: the header of a frame is gathered byte by byte and checked when its first two
 * bytes are there (which tell its length) and when it is complete; then payload goes to the
 * message, or to a buffer of its own when it is a control frame, which may stand between two
 * fragments. All that is decided depends on the bytes alone, not on how they were cut into pieces.
 */
#include "net/ws.h"

#include "base/banned.h"
#include "base/base64.h"
#include "base/err.h"
#include "base/sha1.h"

#define BIT_FINAL 0x80u
#define BITS_RSV  0x70u
#define BIT_MASK  0x80u

void ws_decoder_init(struct ws_decoder *d, int from_client, size_t message_max)
{
    *d = (struct ws_decoder){.from_client = from_client, .message = BUF_INIT(message_max)};
}

void ws_decoder_done(struct ws_decoder *d)
{
    buf_done(&d->message);
}

static int is_control(unsigned opcode)
{
    return opcode >= WS_CLOSE;
}

static unsigned frame_opcode(const struct ws_decoder *d)
{
    return d->header[0] & 0x0fu;
}

static int refuse(struct ws_decoder *d, enum ws_code code, const char *why, struct pd_err *e)
{
    d->error = code;
    return pd_fail(e, code == WS_TOO_LARGE ? PD_TOO_LARGE : PD_PROTOCOL, "WebSocket: %s", why);
}

/* The length of the whole header, from its first two bytes. */
static unsigned header_size(const struct ws_decoder *d)
{
    unsigned len = d->header[1] & 0x7fu;
    return 2 + (len == 126 ? 2 : len == 127 ? 8 : 0) + (d->header[1] & BIT_MASK ? 4 : 0);
}

/* Checks the first two bytes of a frame. */
static int start_check(struct ws_decoder *d, struct pd_err *e)
{
    unsigned opcode = frame_opcode(d), len = d->header[1] & 0x7fu;
    if (d->header[0] & BITS_RSV)
        return refuse(d, WS_PROTOCOL, "a reserved bit is set, but no extension was agreed on", e);
    if (!(d->header[1] & BIT_MASK) != !d->from_client)
        return refuse(d, WS_PROTOCOL,
                      d->from_client ? "a frame of the client is not masked"
                                     : "a frame of the server is masked",
                      e);

    switch (opcode) {
    case WS_CLOSE:
    case WS_PING:
    case WS_PONG:
        if (len > WS_CONTROL_MAX || !(d->header[0] & BIT_FINAL))
            return refuse(d, WS_PROTOCOL, "a control frame is fragmented or too long", e);
        return 0;
    case WS_CONTINUATION:
        if (d->opcode == WS_CONTINUATION)
            return refuse(d, WS_PROTOCOL, "a continuation of nothing", e);
        return 0;
    case WS_TEXT:
    case WS_BINARY:
        if (d->opcode != WS_CONTINUATION)
            return refuse(d, WS_PROTOCOL, "a new message inside of a fragmented one", e);
        return 0;
    default:
        return refuse(d, WS_PROTOCOL, "an unknown kind of frame", e);
    }
}

/* Takes over a complete header. */
static int header_finish(struct ws_decoder *d, struct pd_err *e)
{
    unsigned short_len = d->header[1] & 0x7fu, at = 2;
    uint64_t len = short_len;

    if (short_len >= 126) {
        unsigned bytes = short_len == 126 ? 2 : 8;
        for (len = 0; bytes; bytes--)
            len = len << 8 | d->header[at++];
        if (len < (short_len == 126 ? 126u : 65536u) || len > INT64_MAX)
            return refuse(d, WS_PROTOCOL, "the length of a frame is not written the short way", e);
    }

    if (!is_control(frame_opcode(d)) && len > d->message.max - d->message.len)
        return refuse(d, WS_TOO_LARGE, "the message is too large", e);

    memset(d->mask, 0, sizeof d->mask);
    if (d->header[1] & BIT_MASK)
        memcpy(d->mask, d->header + at, sizeof d->mask);

    if (frame_opcode(d) == WS_TEXT)
        d->text = (struct utf8){0};
    if (frame_opcode(d) == WS_TEXT || frame_opcode(d) == WS_BINARY)
        d->opcode = (enum ws_opcode)frame_opcode(d);

    d->left = len;
    d->mask_at = 0;
    d->control_len = 0;
    d->in_payload = 1;
    return 0;
}

/* Gathers the header. Returns the bytes used, or -1. */
static ptrdiff_t header_feed(struct ws_decoder *d, const uint8_t *data, size_t len,
                             struct pd_err *e)
{
    size_t used = 0;
    while (used < len && !d->in_payload) {
        d->header[d->header_len++] = data[used++];
        if (d->header_len < 2)
            continue;
        if (d->header_len == 2 && start_check(d, e))
            return -1;
        if (d->header_len == header_size(d) && header_finish(d, e))
            return -1;
    }
    return (ptrdiff_t)used;
}

static void unmask(struct ws_decoder *d, uint8_t *to, const uint8_t *from, size_t len)
{
    for (size_t i = 0; i < len; i++)
        to[i] = from[i] ^ d->mask[(d->mask_at + i) & 3];
    d->mask_at = (unsigned)((d->mask_at + len) & 3);
}

/* Takes the part of a payload that is there. Returns the bytes used, or -1. */
static ptrdiff_t payload_feed(struct ws_decoder *d, const uint8_t *data, size_t len,
                              struct pd_err *e)
{
    size_t n = len < d->left ? len : (size_t)d->left;
    if (!n)
        return 0;
    if (is_control(frame_opcode(d))) {
        unmask(d, d->control + d->control_len, data, n);
        d->control_len += (unsigned)n;
    } else {
        uint8_t *to = buf_reserve(&d->message, n);
        if (!to) {
            d->error = WS_INTERNAL;
            return pd_fail(e, PD_INTERNAL, "WebSocket: no memory for a message");
        }
        unmask(d, to, data, n);
        if (d->opcode == WS_TEXT && utf8_feed(&d->text, to, n))
            return refuse(d, WS_NOT_UTF8, "text is not UTF-8", e);
        d->message.len += n;
    }

    d->left -= n;
    return (ptrdiff_t)n;
}

static int code_is_valid(unsigned code)
{
    return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) ||
           (code >= 3000 && code <= 4999);
}

static int close_read(struct ws_decoder *d, struct ws_message *m, struct pd_err *e)
{
    m->code = WS_NO_CODE;
    if (m->len == 1)
        return refuse(d, WS_PROTOCOL, "a close has half a code", e);
    if (m->len) {
        m->code = (unsigned)d->control[0] << 8 | d->control[1];
        m->data += 2;
        m->len -= 2;
        if (!code_is_valid(m->code))
            return refuse(d, WS_PROTOCOL, "a close has a code that must not be sent", e);
        if (!utf8_is_valid(m->data, m->len))
            return refuse(d, WS_NOT_UTF8, "the reason of a close is not UTF-8", e);
    }

    d->closed = 1;
    return 0;
}

/* The frame is complete: 1 when a message is, 0, or -1. */
static int frame_finish(struct ws_decoder *d, struct ws_message *ret, struct pd_err *e)
{
    d->in_payload = 0;
    d->header_len = 0;

    if (is_control(frame_opcode(d))) {
        struct ws_message m = {
            .opcode = (enum ws_opcode)frame_opcode(d), .data = d->control, .len = d->control_len};
        if (m.opcode == WS_CLOSE && close_read(d, &m, e))
            return -1;
        *ret = m;
        return 1;
    }

    if (!(d->header[0] & BIT_FINAL))
        return 0;
    if (d->opcode == WS_TEXT && !utf8_is_complete(&d->text))
        return refuse(d, WS_NOT_UTF8, "text ends inside of a character", e);

    *ret = (struct ws_message){.opcode = d->opcode, .data = d->message.data, .len = d->message.len};
    d->opcode = WS_CONTINUATION;
    d->given = 1;
    return 1;
}

int ws_decode(struct ws_decoder *d, const void *data, size_t len, size_t *ret_used,
              struct ws_message *ret, struct pd_err *e)
{
    const uint8_t *p = data;
    size_t used = 0;

    if (d->error)
        return pd_fail(e, PD_PROTOCOL, "WebSocket: the connection has failed before");

    if (d->given) {
        buf_clear(&d->message);
        d->given = 0;
    }

    while (used < len && !d->closed) {
        ptrdiff_t n = d->in_payload ? 0 : header_feed(d, p + used, len - used, e);
        if (n < 0)
            return -1;
        used += (size_t)n;
        if (!d->in_payload)
            break;

        n = payload_feed(d, p + used, len - used, e);
        if (n < 0)
            return -1;
        used += (size_t)n;

        int r = d->left ? 0 : frame_finish(d, ret, e);
        if (r)
            *ret_used = used;
        if (r)
            return r;
    }
    *ret_used = len;
    return 0;
}

size_t ws_header_encode(uint8_t out[WS_HEADER_MAX], enum ws_opcode opcode, int final, uint64_t len,
                        const uint8_t *mask)
{
    unsigned bytes = len < 126 ? 0 : len < 65536 ? 2 : 8;
    size_t n = 2;

    out[0] = (uint8_t)((final ? BIT_FINAL : 0) | (unsigned)opcode);
    out[1] = (uint8_t)((mask ? BIT_MASK : 0) | (bytes == 0   ? (unsigned)len
                                                : bytes == 2 ? 126
                                                             : 127));
    while (bytes)
        out[n++] = (uint8_t)(len >> (8 * --bytes));

    if (mask) {
        memcpy(out + n, mask, 4);
        n += 4;
    }
    return n;
}

int ws_encode(struct buf *out, enum ws_opcode opcode, const void *data, size_t len,
              const uint8_t *mask)
{
    uint8_t header[WS_HEADER_MAX];

    if (is_control(opcode) && len > WS_CONTROL_MAX)
        return -1;

    size_t n = ws_header_encode(header, opcode, 1, len, mask);
    uint8_t *to = len <= SIZE_MAX - n ? buf_reserve(out, n + len) : NULL;
    if (!to)
        return -1;

    memcpy(to, header, n);
    const uint8_t *from = data;
    for (size_t i = 0; i < len; i++)
        to[n + i] = mask ? from[i] ^ mask[i & 3] : from[i];
    out->len += n + len;
    return 0;
}

int ws_close_encode(struct buf *out, unsigned code, const char *reason, const uint8_t *mask)
{
    uint8_t payload[WS_CONTROL_MAX] = {(uint8_t)(code >> 8), (uint8_t)code};

    if (code == WS_NO_CODE)
        return ws_encode(out, WS_CLOSE, NULL, 0, mask);

    size_t len = strlen(reason), room = sizeof payload - 2;
    if (len > room)
        for (len = room; len && ((uint8_t)reason[len] & 0xc0) == 0x80;)
            len--;

    memcpy(payload + 2, reason, len);
    return ws_encode(out, WS_CLOSE, payload, 2 + len, mask);
}

/* 16 bytes are 22 characters, of which the last has four bits that must be zero, and two '='. */
static int key_is_valid(struct slice key)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    if (key.len != WS_KEY_SIZE - 1 || key.at[22] != '=' || key.at[23] != '=')
        return 0;

    for (size_t i = 0; i < 22; i++)
        if (!key.at[i] || !strchr(alphabet, key.at[i]))
            return 0;
    return strchr("AQgw", key.at[21]) != NULL;
}

/* A text of exactly size - 1 characters. Without memory it is "", and -1. */
static int put_base64(const uint8_t *data, size_t len, char *ret, size_t size)
{
    auto_buf text = BUF_INIT(64);

    memset(ret, 0, size);
    if (base64_encode(&text, data, len) < 0 || text.len != size - 1)
        return -1;
    memcpy(ret, text.data, text.len);
    return 0;
}

int ws_accept(struct slice key, char ret[WS_ACCEPT_SIZE], struct pd_err *e)
{
    static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    uint8_t text[WS_KEY_SIZE - 1 + sizeof guid - 1], digest[SHA1_SIZE];

    if (!key_is_valid(key))
        return pd_fail(e, PD_INVALID, "header 'sec-websocket-key' is not 16 bytes in base64");

    memcpy(text, key.at, key.len);
    memcpy(text + key.len, guid, sizeof guid - 1);
    sha1(text, sizeof text, digest);
    if (put_base64(digest, sizeof digest, ret, WS_ACCEPT_SIZE) < 0)
        return pd_fail(e, PD_CAPACITY, "no memory for a WebSocket");
    return 0;
}

void ws_key(const uint8_t random[16], char ret[WS_KEY_SIZE])
{
    (void)put_base64(random, 16, ret, WS_KEY_SIZE); /* "" is a key that servers refuse */
}
