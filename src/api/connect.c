/* Connect with JSON: one object each way, or one object in and a stream of envelopes out. An
 * envelope is a byte of flags, four of length, and a message. */
#include "api/e2b.h"

#include "base/banned.h"
#include "base/json.h"
#include "base/parse.h"
#include "core/log.h"

#define ENVELOPE_HEAD   5u
#define FLAG_COMPRESSED 1u
#define FLAG_END        2u
#define MESSAGE_MAX     (8u << 20)
#define KEEPALIVE_S     90u
#define KEEPALIVE_MAX_S 3600u
#define STREAM_TYPE     "application/connect+json"

int connect_envelope(const void *data, size_t len, size_t max, uint8_t *ret_flags,
                     struct slice *ret_message, size_t *ret_used, struct pd_err *e)
{
    const uint8_t *d = data;
    if (len < ENVELOPE_HEAD)
        return 0;
    size_t size = (size_t)d[1] << 24 | (size_t)d[2] << 16 | (size_t)d[3] << 8 | d[4];
    if (d[0] & FLAG_COMPRESSED)
        return pd_fail(e, PD_INVALID, "the message is compressed: send it as it is");
    if (size > max)
        return pd_fail(e, PD_TOO_LARGE, "a message of %zu bytes: at most %zu are taken", size, max);
    if (len - ENVELOPE_HEAD < size)
        return 0;
    *ret_flags = d[0];
    *ret_message = (struct slice){(const char *)d + ENVELOPE_HEAD, size};
    *ret_used = ENVELOPE_HEAD + size;
    return 1;
}

static int has_type(const struct call *c, const char *type)
{
    const struct slice *h = http_find(&c->r->head, "Content-Type");
    size_t len = 0;
    while (h && len < h->len && h->at[len] != ';' && h->at[len] != ' ')
        len++;
    return h && slice_is_nocase((struct slice){h->at, len}, type);
}

int connect_read(struct call *c, struct buf *text, struct fields *f, struct pd_err *e)
{
    int is_stream = c->route->flags & ROUTE_RPC_STREAM;
    const char *type = is_stream ? STREAM_TYPE : "application/json";
    uint8_t flags = 0;
    struct slice message;
    size_t used = 0;
    if (!has_type(c, type))
        return pd_fail(e, PD_INVALID, "Content-Type: %s is needed", type);
    if (request_read_all(c->r, text, MESSAGE_MAX, e) < 0)
        return -1;
    message = (struct slice){(const char *)text->data, text->len};
    if (is_stream) {
        int got = connect_envelope(text->data, text->len, MESSAGE_MAX, &flags, &message, &used, e);
        if (got < 0)
            return -1;
        if (got == 0 || used != text->len || flags)
            return pd_fail(e, PD_INVALID, "the body must be one message in one envelope");
    }
    return fields_parse(f, message.at, message.len, FIELDS_OPEN, e);
}

int connect_timeout(struct call *c, uint64_t *ret_ns, struct pd_err *e)
{
    const struct slice *h = http_find(&c->r->head, "Connect-Timeout-Ms");
    char text[24];
    uint64_t ms = 0;
    *ret_ns = 0;
    if (!h)
        return 0;
    if (h->len >= sizeof text)
        return pd_fail(e, PD_INVALID, "Connect-Timeout-Ms: too long");
    memcpy(text, h->at, h->len);
    text[h->len] = 0;
    if (parse_u64("Connect-Timeout-Ms", text, 0, UINT64_C(9999999999), &ms, e) < 0)
        return -1;
    *ret_ns = ms * NS_PER_MS;
    return 0;
}

uint64_t connect_keepalive_ns(const struct call *c)
{
    const struct slice *h = http_find(&c->r->head, "Keepalive-Ping-Interval");
    char text[24];
    uint64_t s = KEEPALIVE_S;
    if (h && h->len < sizeof text) {
        memcpy(text, h->at, h->len);
        text[h->len] = 0;
        if (parse_u64("Keepalive-Ping-Interval", text, 1, KEEPALIVE_MAX_S, &s, NULL) < 0)
            s = KEEPALIVE_S;
    }
    return s * NS_PER_S;
}

int connect_answer(struct call *c, const struct buf *json)
{
    static const char nothing[] = "{}";
    if (json)
        return call_json(c, 200, json);
    (void)reply(c->r, 200, "application/json", nothing, sizeof nothing - 1);
    return 0;
}

int connect_begin(struct call *c, struct pd_err *e)
{
    return reply_begin(c->r, 200, STREAM_TYPE, REPLY_CHUNKED, e);
}

/* In one piece, so that it goes out as one chunk. */
static int send_envelope(struct call *c, uint8_t flags, const void *data, size_t len,
                         struct pd_err *e)
{
    auto_buf out = BUF_INIT(ENVELOPE_HEAD + MESSAGE_MAX);
    uint8_t head[ENVELOPE_HEAD] = {flags, (uint8_t)(len >> 24), (uint8_t)(len >> 16),
                                   (uint8_t)(len >> 8), (uint8_t)len};
    buf_put(&out, head, sizeof head);
    buf_put(&out, data, len);
    if (out.overflow)
        return pd_fail(e, PD_CAPACITY, "no memory for a message");
    return reply_write(c->r, out.data, out.len, e);
}

int connect_send(struct call *c, const struct buf *json, struct pd_err *e)
{
    if (json->overflow)
        return pd_fail(e, PD_CAPACITY, "no memory for a message");
    return send_envelope(c, 0, json->data, json->len, e);
}

/* {"code":"not_found","message":"..."} */
static void error_json(const struct call *c, struct json *j, const struct pd_err *e)
{
    int inside = e->code == PD_INTERNAL || e->code == PD_PROTOCOL;
    if (inside)
        log_error("request.failed", "error=%s", e->msg);
    json_open(j, '{');
    json_member_cstr(j, "code", pd_code_connect(e->code));
    json_key(j, "message");
    if (inside) {
        char text[120];
        snprintf(text, sizeof text, "something went wrong in the server: see its log, request %s",
                 c->r->id);
        json_cstr(j, text);
    } else {
        json_cstr(j, e->msg);
    }
    json_close(j, '}');
}

int connect_end(struct call *c, const struct pd_err *why)
{
    auto_buf out = BUF_INIT(4096);
    struct json j = JSON_INIT(&out);
    struct pd_err e;
    json_open(&j, '{');
    if (why) {
        json_key(&j, "error");
        error_json(c, &j, why);
    }
    json_close(&j, '}');
    if (send_envelope(c, FLAG_END, out.data, out.len, &e) < 0 || reply_end(c->r, &e) < 0)
        reply_abort(c->r);
    return 0;
}

/* The HTTP status of a unary error, by Connect's own table. */
static int status_of(const char *code)
{
    static const struct {
        const char *code;
        int status;
    } table[] = {{"invalid_argument", 400},    {"unauthenticated", 401},
                 {"permission_denied", 403},   {"not_found", 404},
                 {"already_exists", 409},      {"resource_exhausted", 429},
                 {"failed_precondition", 400}, {"unimplemented", 501},
                 {"unavailable", 503},         {"deadline_exceeded", 504}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].code, code))
            return table[i].status;
    return 500;
}

int connect_fail(struct call *c, const struct pd_err *e)
{
    struct pd_err ignored;
    auto_buf out = BUF_INIT(4096);
    struct json j = JSON_INIT(&out);
    if (c->route->flags & ROUTE_RPC_STREAM) {
        if (!c->r->status && connect_begin(c, &ignored) < 0)
            return 0;
        return connect_end(c, e);
    }
    if (c->r->status) {
        reply_abort(c->r);
        return 0;
    }
    error_json(c, &j, e);
    return call_json(c, status_of(pd_code_connect(e->code)), &out);
}
