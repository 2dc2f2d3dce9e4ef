/* Connect with JSON: one object each way, or one object in and a stream of envelopes out. An
 * envelope is a byte of flags, four of length, and a message. */
#include "api/connect.h"
#include "api/e2b.h"

#include "base/banned.h"
#include "base/json.h"
#include "base/parse.h"
#include "telemetry/log.h"

#define KEEPALIVE_S     90u
#define KEEPALIVE_MAX_S 3600u
#define READ_PIECE      (16u << 10)

int connect_envelope(const void *data, size_t len, size_t max, uint8_t *ret_flags,
                     struct slice *ret_message, size_t *ret_used, struct pd_err *e)
{
    const uint8_t *d = data;

    if (len < CONNECT_ENVELOPE_HEAD)
        return 0;

    size_t size = (size_t)d[1] << 24 | (size_t)d[2] << 16 | (size_t)d[3] << 8 | d[4];
    if (d[0] & CONNECT_COMPRESSED)
        return pd_fail(e, PD_INVALID, "the message is compressed: send it as it is");
    if (size > max)
        return pd_fail(e, PD_TOO_LARGE, "a message of %zu bytes: at most %zu are taken", size, max);
    if (len - CONNECT_ENVELOPE_HEAD < size)
        return 0;

    *ret_flags = d[0];
    *ret_message = (struct slice){(const char *)d + CONNECT_ENVELOPE_HEAD, size};
    *ret_used = CONNECT_ENVELOPE_HEAD + size;
    return 1;
}

static bool has_type(const struct call *c, const char *type)
{
    const struct slice *h = http_find(&c->r->head, "Content-Type");
    size_t len = 0;

    while (h && len < h->len && h->at[len] != ';' && h->at[len] != ' ')
        len++;
    return h && slice_is_nocase((struct slice){h->at, len}, type);
}

int connect_check_type(struct call *c, struct pd_err *e)
{
    const char *type =
        c->route->flags & ROUTE_RPC_STREAM ? CONNECT_STREAM_TYPE : "application/json";
    return has_type(c, type) ? 0 : pd_fail(e, PD_INVALID, "Content-Type: %s is needed", type);
}

int connect_read(struct call *c, struct buf *text, struct fields *f, struct pd_err *e)
{
    int is_stream = c->route->flags & ROUTE_RPC_STREAM;
    uint8_t flags = 0;
    size_t used = 0;

    if (connect_check_type(c, e) < 0 || request_read_all(c->r, text, CONNECT_MESSAGE_MAX, e) < 0)
        return -1;

    struct slice message = {(const char *)text->data, text->len};
    if (is_stream) {
        int got = connect_envelope(text->data, text->len, CONNECT_MESSAGE_MAX, &flags, &message,
                                   &used, e);
        if (got < 0)
            return -1;
        if (got == 0 || used != text->len || flags)
            return pd_fail(e, PD_INVALID, "the body must be one message in one envelope");
    }

    /* Nothing at all is a message whose members all have their defaults. */
    return fields_parse(f, message.at, message.len, FIELDS_OPEN | FIELDS_MAY_BE_EMPTY, e);
}

/* The bytes so far of the next envelope are at the front of r->bytes. */
int connect_next(struct call *c, struct connect_reader *r, const void **ret_text, size_t *ret_len,
                 struct pd_err *e)
{
    if (r->used) {
        memmove(r->bytes.data, r->bytes.data + r->used, r->bytes.len - r->used);
        r->bytes.len -= r->used;
        r->used = 0;
    }

    for (;;) {
        uint8_t flags = 0;
        struct slice message = {NULL, 0};
        int got = connect_envelope(r->bytes.data, r->bytes.len, CONNECT_MESSAGE_MAX, &flags,
                                   &message, &r->used, e);
        if (got < 0)
            return -1;
        if (got > 0 && flags)
            return pd_fail(e, PD_INVALID, "an envelope with the flags %u", flags);
        if (got > 0) {
            *ret_text = message.at;
            *ret_len = message.len;
            return 1;
        }

        uint8_t *room = r->is_over ? NULL : buf_reserve(&r->bytes, READ_PIECE);
        if (!room && !r->is_over)
            return pd_fail(e, PD_CAPACITY, "no memory for a message");
        ssize_t n = room ? request_read(c->r, room, READ_PIECE, e) : 0;
        if (n < 0)
            return -1;

        r->bytes.len += (size_t)n;
        r->is_over |= n == 0;
        if (r->is_over)
            return r->bytes.len ? pd_fail(e, PD_INVALID, "the last envelope is cut short") : 0;
    }
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

size_t connect_put_begin(struct buf *out, uint8_t flags)
{
    uint8_t head[CONNECT_ENVELOPE_HEAD] = {flags};
    size_t at = out->len;
    (void)buf_put(out, head, sizeof head);
    return at;
}

void connect_put_end(struct buf *out, size_t at)
{
    if (out->overflow)
        return;

    size_t len = out->len - at - CONNECT_ENVELOPE_HEAD;
    for (unsigned i = 0; i < 4; i++)
        out->data[at + 1 + i] = (uint8_t)(len >> (24 - 8 * i));
}

int connect_begin(struct call *c, struct pd_err *e)
{
    return reply_begin(c->r, 200, CONNECT_STREAM_TYPE, REPLY_CHUNKED, e);
}

int connect_write(struct call *c, const struct buf *envelopes, int whole, struct pd_err *e)
{
    if (envelopes->overflow)
        return pd_fail(e, PD_CAPACITY, "no memory for a message");
    if (!whole)
        return reply_write(c->r, envelopes->data, envelopes->len, e);

    /* Its length is known: nothing has to be cut into chunks. */
    (void)reply(c->r, 200, CONNECT_STREAM_TYPE, envelopes->data, envelopes->len);
    return 0;
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

void connect_put_last(const struct call *c, struct buf *out, const struct pd_err *why)
{
    struct json j = JSON_INIT(out);
    size_t at = connect_put_begin(out, CONNECT_LAST);

    json_open(&j, '{');
    if (why) {
        json_key(&j, "error");
        error_json(c, &j, why);
    }

    json_close(&j, '}');
    connect_put_end(out, at);
}

int connect_end(struct call *c, const struct pd_err *why)
{
    auto_buf out = BUF_INIT(4096);
    struct pd_err e;

    connect_put_last(c, &out, why);
    if (connect_write(c, &out, 0, &e) < 0 || reply_end(c->r, &e) < 0)
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
    auto_buf out = BUF_INIT(4096);
    struct json j = JSON_INIT(&out);

    if (c->route->flags & ROUTE_RPC_STREAM) {
        if (c->r->status)
            return connect_end(c, e);
        connect_put_last(c, &out, e);
        return connect_write(c, &out, 1, NULL);
    }

    if (c->r->status) {
        reply_abort(c->r);
        return 0;
    }

    error_json(c, &j, e);
    return call_json(c, status_of(pd_code_connect(e->code)), &out);
}
