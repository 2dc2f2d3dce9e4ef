/* How this works: a head is read line by line; a line counts only when its CRLF is there. First the
 * start line, then the headers, each checked by itself; at the empty line the headers are checked
 * against each other: who is asked (Host), where the body ends, what becomes of the connection. */
#include "net/http.h"

#include "base/banned.h"
#include "base/err.h"
#include "net/http_chars.h"

#include <strings.h>

static const char *const method_names[HTTP_METHOD_COUNT] = {
    [HTTP_GET] = "GET",     [HTTP_HEAD] = "HEAD",     [HTTP_POST] = "POST",      [HTTP_PUT] = "PUT",
    [HTTP_PATCH] = "PATCH", [HTTP_DELETE] = "DELETE", [HTTP_OPTIONS] = "OPTIONS"};

/* Headers that may come once. The first ones decide what a message is, in responses too. */
enum single {
    ONE_LENGTH,
    ONE_CODING,
    ONE_UPGRADE,
    ONE_RESPONSE_COUNT,
    ONE_HOST = ONE_RESPONSE_COUNT,
    ONE_EXPECT,
    ONE_WS_KEY,
    ONE_WS_VERSION,
    ONE_AUTHORIZATION,
    ONE_API_KEY,
    ONE_TYPE,
    ONE_CONTENT_RANGE,
    ONE_RANGE,
    ONE_ORIGIN,
    ONE_IDEMPOTENCY,
    ONE_LAST_EVENT,
    ONE_COUNT
};
static const char *const single_names[ONE_COUNT] = {[ONE_LENGTH] = "content-length",
                                                    [ONE_CODING] = "transfer-encoding",
                                                    [ONE_UPGRADE] = "upgrade",
                                                    [ONE_HOST] = "host",
                                                    [ONE_EXPECT] = "expect",
                                                    [ONE_WS_KEY] = "sec-websocket-key",
                                                    [ONE_WS_VERSION] = "sec-websocket-version",
                                                    [ONE_AUTHORIZATION] = "authorization",
                                                    [ONE_API_KEY] = "x-api-key",
                                                    [ONE_TYPE] = "content-type",
                                                    [ONE_CONTENT_RANGE] = "content-range",
                                                    [ONE_RANGE] = "range",
                                                    [ONE_ORIGIN] = "origin",
                                                    [ONE_IDEMPOTENCY] = "idempotency-key",
                                                    [ONE_LAST_EVENT] = "last-event-id"};

const char *http_method_name(enum http_method m)
{
    return (unsigned)m < HTTP_METHOD_COUNT ? method_names[m] : "?";
}

struct slice slice_of(const char *text)
{
    return (struct slice){text, strlen(text)};
}

int slice_is(struct slice s, const char *text)
{
    return s.len == strlen(text) && !memcmp(s.at, text, s.len);
}

int slice_is_nocase(struct slice s, const char *text)
{
    return s.len == strlen(text) && !strncasecmp(s.at, text, s.len);
}

static int is_text(struct slice s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!http_is_text(s.at[i]))
            return 0;
    return 1;
}

static size_t token_len(struct slice s)
{
    size_t n = 0;
    while (n < s.len && http_is_token(s.at[n]))
        n++;
    return n;
}

static struct slice slice_from(struct slice s, size_t start)
{
    return (struct slice){s.at + start, s.len - start};
}

static struct slice trim(struct slice s)
{
    while (s.len && (s.at[0] == ' ' || s.at[0] == '\t'))
        s = slice_from(s, 1);
    while (s.len && (s.at[s.len - 1] == ' ' || s.at[s.len - 1] == '\t'))
        s.len--;
    return s;
}

struct lines {
    const char *data;
    size_t len, at;
};

/* 1 with the next line (its CRLF is consumed but no part of it), 0 when it is not complete. */
static int line_next(struct lines *l, struct slice *ret, struct pd_err *e)
{
    const char *start = l->data + l->at;

    const char *lf = l->at < l->len ? memchr(start, '\n', l->len - l->at) : NULL;
    if (!lf)
        return 0;

    if (lf == start || lf[-1] != '\r')
        return pd_fail(e, PD_INVALID, "a line of the head ends with LF alone; use CR LF");
    *ret = (struct slice){start, (size_t)(lf - 1 - start)};
    l->at = (size_t)(lf + 1 - l->data);
    return 1;
}

static int header_parse(struct http_head *h, struct slice line, struct pd_err *e)
{
    unsigned number = h->header_count + 1;

    if (h->header_count == HTTP_HEADERS_MAX)
        return pd_fail(e, PD_TOO_LARGE, "more than %u headers", HTTP_HEADERS_MAX);

    size_t n = token_len(line);
    if (!n && (line.at[0] == ' ' || line.at[0] == '\t'))
        return pd_fail(e, PD_INVALID, "header %u starts with a blank: folding is obsolete", number);
    if (!n || n == line.len || line.at[n] != ':')
        return pd_fail(e, PD_INVALID, "header %u is not of the form 'Name: value'", number);

    struct http_header *to = &h->headers[h->header_count];
    to->name = (struct slice){line.at, n};
    to->value = trim(slice_from(line, n + 1));
    if (!is_text(to->value))
        return pd_fail(e, PD_INVALID, "header '%.*s' has a control byte in its value",
                       n < 60 ? (int)n : 60, line.at);

    h->header_count++;
    return 0;
}

/* 1 when the head is complete, 0 when more is needed. */
static int headers_parse(struct http_head *h, struct lines *l, struct pd_err *e)
{
    struct slice line = {0};
    for (int r; (r = line_next(l, &line, e)) != 0;) {
        if (r < 0)
            return -1;
        if (!line.len)
            return 1;
        if (header_parse(h, line, e))
            return -1;
    }
    return 0;
}

static int singles_find(const struct http_head *h, unsigned count, const struct slice **found,
                        struct pd_err *e)
{
    for (unsigned i = 0; i < h->header_count; i++)
        for (unsigned k = 0; k < count; k++) {
            if (!slice_is_nocase(h->headers[i].name, single_names[k]))
                continue;
            if (found[k])
                return pd_fail(e, PD_INVALID, "header '%s' comes twice", single_names[k]);
            found[k] = &h->headers[i].value;
        }
    return 0;
}

static int length_parse(struct slice s, uint64_t *ret)
{
    uint64_t v = 0;
    /* 19 digits fit 64 bits. "007" is refused because it is eight's neighbour to some. */
    if (!s.len || s.len > 19 || (s.len > 1 && s.at[0] == '0'))
        return -1;

    for (size_t i = 0; i < s.len; i++) {
        if (!http_is_digit(s.at[i]))
            return -1;
        v = v * 10 + (uint64_t)(s.at[i] - '0');
    }

    if (v > INT64_MAX)
        return -1;
    *ret = v;
    return 0;
}

/* Where the body ends, from the two headers that say so. */
static int body_find(struct http_head *h, const struct slice *const *found, struct pd_err *e)
{
    const struct slice *length = found[ONE_LENGTH], *coding = found[ONE_CODING];

    h->body = HTTP_BODY_NONE;
    if (coding) {
        if (length)
            return pd_fail(e, PD_INVALID,
                           "Content-Length and Transfer-Encoding exclude each other");
        if (h->minor == 0)
            return pd_fail(e, PD_INVALID, "HTTP/1.0 has no Transfer-Encoding");
        if (!slice_is_nocase(*coding, "chunked"))
            return pd_fail(e, PD_INVALID, "Transfer-Encoding can only be 'chunked'");
        h->body = HTTP_BODY_CHUNKED;
    } else if (length) {
        if (length_parse(*length, &h->length))
            return pd_fail(e, PD_INVALID, "Content-Length '%.*s' is not a plain decimal number",
                           length->len < 40 ? (int)length->len : 40, length->at);
        h->body = HTTP_BODY_LENGTH;
    }
    return 0;
}

/* Reads the header Connection: close, keep-alive and upgrade count, the rest must be names. */
static int connection_read(struct http_head *h, int *ret_upgrade, struct pd_err *e)
{
    int close = 0, keep = 0, upgrade = 0;
    for (unsigned i = 0; i < h->header_count; i++) {
        if (!slice_is_nocase(h->headers[i].name, "connection"))
            continue;
        struct slice list = h->headers[i].value, option;
        while (http_list_next(&list, &option)) {
            if (token_len(option) != option.len)
                return pd_fail(e, PD_INVALID, "header 'connection' is not a list of names");
            close |= slice_is_nocase(option, "close");
            keep |= slice_is_nocase(option, "keep-alive");
            upgrade |= slice_is_nocase(option, "upgrade");
        }
    }

    h->keep_alive = !close && (h->minor == 1 || keep);
    *ret_upgrade = upgrade && h->minor == 1;
    return 0;
}

static int target_check(enum http_method m, struct slice s, struct pd_err *e)
{
    if (s.len > HTTP_TARGET_MAX)
        return pd_fail(e, PD_TOO_LARGE, "the request target has more than %u bytes",
                       HTTP_TARGET_MAX);
    if (m == HTTP_OPTIONS && slice_is(s, "*"))
        return 0;
    if (!s.len || s.at[0] != '/')
        return pd_fail(e, PD_INVALID, "the request target must be a path that starts with '/'");

    int query = 0;
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.at[i];
        query |= c == '?';
        /* Browsers send a backslash in a query; in a path, some take it for a slash. */
        if (c <= 0x20 || c >= 0x7f || strchr("\"<>#", c) || (c == '\\' && !query))
            return pd_fail(e, PD_INVALID,
                           "the request target has byte 0x%02x, which must be escaped as %%%02X", c,
                           c);
    }
    return 0;
}

static int version_parse(struct slice s, int *ret_minor, struct pd_err *e)
{
    if (!slice_is(s, "HTTP/1.1") && !slice_is(s, "HTTP/1.0"))
        return pd_fail(e, PD_INVALID, "this is not HTTP/1.1 or HTTP/1.0");
    *ret_minor = s.at[7] - '0';
    return 0;
}

static int request_line_parse(struct http_head *h, struct slice line, struct pd_err *e)
{
    size_t n = token_len(line);
    if (!n || n == line.len || line.at[n] != ' ')
        return pd_fail(e, PD_INVALID, "the request line is not 'METHOD /path HTTP/1.1'");

    struct slice method = {line.at, n}, rest = slice_from(line, n + 1);
    const char *space = rest.len ? memchr(rest.at, ' ', rest.len) : NULL;
    if (!space)
        return pd_fail(e, PD_INVALID, "the request line is not 'METHOD /path HTTP/1.1'");

    h->target = (struct slice){rest.at, (size_t)(space - rest.at)};
    if (version_parse(slice_from(rest, h->target.len + 1), &h->minor, e))
        return -1;

    for (h->method = 0; h->method < HTTP_METHOD_COUNT; h->method++)
        if (slice_is(method, method_names[h->method]))
            return target_check(h->method, h->target, e);
    return pd_fail(e, PD_METHOD, "method '%.*s' is not supported", n < 20 ? (int)n : 20, method.at);
}

static int request_check(struct http_head *h, struct pd_err *e)
{
    const struct slice *found[ONE_COUNT] = {0};
    int upgrade;

    if (singles_find(h, ONE_COUNT, found, e) || body_find(h, found, e) ||
        connection_read(h, &upgrade, e))
        return -1;

    if (!found[ONE_HOST] && h->minor == 1)
        return pd_fail(e, PD_INVALID, "header 'host' is missing");
    if (found[ONE_HOST]) {
        struct slice name;
        unsigned port;
        if (http_host_split(*found[ONE_HOST], &name, &port))
            return pd_fail(e, PD_INVALID, "header 'host' is not a host name, maybe with a port");
        h->host = *found[ONE_HOST];
    }

    if (found[ONE_EXPECT]) {
        if (!slice_is_nocase(*found[ONE_EXPECT], "100-continue"))
            return pd_fail(e, PD_INVALID, "header 'expect' can only be '100-continue'");
        h->expect_continue = h->minor == 1 && h->body != HTTP_BODY_NONE;
    }

    if (upgrade && found[ONE_UPGRADE] && slice_is_nocase(*found[ONE_UPGRADE], "websocket")) {
        if (h->method != HTTP_GET || h->body != HTTP_BODY_NONE)
            return pd_fail(e, PD_INVALID, "a WebSocket is opened by a GET without a body");
        if (!found[ONE_WS_VERSION] || !slice_is(*found[ONE_WS_VERSION], "13"))
            return pd_fail(e, PD_INVALID, "header 'sec-websocket-version' must be 13");
        if (!found[ONE_WS_KEY])
            return pd_fail(e, PD_INVALID, "header 'sec-websocket-key' is missing");
        h->upgrade_websocket = 1;
    }
    return 0;
}

static int status_line_parse(struct http_head *h, struct slice line, struct pd_err *e)
{
    /* "HTTP/1.1 200 OK"; the reason may be empty, and then some leave out the blank before it. */
    struct slice s = line;

    if (s.len < 12 || s.at[8] != ' ' || !http_is_digit(s.at[9]) || !http_is_digit(s.at[10]) ||
        !http_is_digit(s.at[11]) || (s.len > 12 && s.at[12] != ' ') || !is_text(slice_from(s, 12)))
        return pd_fail(e, PD_INVALID, "the status line is not 'HTTP/1.1 200 reason'");

    h->status = (s.at[9] - '0') * 100 + (s.at[10] - '0') * 10 + (s.at[11] - '0');
    if (h->status < 100 || h->status > 599)
        return pd_fail(e, PD_INVALID, "status %d is not from 100 to 599", h->status);
    return version_parse((struct slice){s.at, 8}, &h->minor, e);
}

static int response_check(struct http_head *h, enum http_method m, struct pd_err *e)
{
    const struct slice *found[ONE_COUNT] = {0};
    int upgrade;

    if (singles_find(h, ONE_RESPONSE_COUNT, found, e) || body_find(h, found, e) ||
        connection_read(h, &upgrade, e))
        return -1;

    int never = h->status < 200 || h->status == 204;
    if (never && (h->body == HTTP_BODY_CHUNKED || h->length))
        return pd_fail(e, PD_INVALID, "a response of status %d has no body", h->status);

    if (h->status == 101) {
        if (!upgrade || !found[ONE_UPGRADE])
            return pd_fail(e, PD_INVALID, "a response of status 101 does not say to what");
        h->upgrade_websocket = slice_is_nocase(*found[ONE_UPGRADE], "websocket");
    }

    if (never || h->status == 304 || m == HTTP_HEAD) {
        h->body = HTTP_BODY_NONE;
        h->length = 0;
    } else if (h->body == HTTP_BODY_NONE) {
        h->body = HTTP_BODY_TO_EOF;
        h->keep_alive = 0;
    }
    return 0;
}

static int head_too_large(size_t len, struct pd_err *e)
{
    if (len < HTTP_HEAD_MAX)
        return 0;
    return pd_fail(e, PD_TOO_LARGE, "the head has more than %u bytes", HTTP_HEAD_MAX);
}

ptrdiff_t http_request_parse(const void *data, size_t len, struct http_head *ret, struct pd_err *e)
{
    struct http_head h = {0};
    struct lines l = {data, len < HTTP_HEAD_MAX ? len : HTTP_HEAD_MAX, 0};
    struct slice line = {0};

    /* Seen at once, so that TLS spoken to a plain port need not wait for its deadline. */
    if (len && !http_is_token(*l.data))
        return pd_fail(e, PD_INVALID, "the request does not start with a method");

    int r = line_next(&l, &line, e);
    if (r > 0)
        r = request_line_parse(&h, line, e) ? -1 : headers_parse(&h, &l, e);
    if (r <= 0)
        return r ? r : head_too_large(len, e);

    if (request_check(&h, e))
        return -1;
    *ret = h;
    return (ptrdiff_t)l.at;
}

ptrdiff_t http_response_parse(const void *data, size_t len, enum http_method m,
                              struct http_head *ret, struct pd_err *e)
{
    struct http_head h = {.method = m};
    struct lines l = {data, len < HTTP_HEAD_MAX ? len : HTTP_HEAD_MAX, 0};
    struct slice line = {0};

    if (len && *l.data != 'H')
        return pd_fail(e, PD_INVALID, "the response does not start with HTTP/");

    int r = line_next(&l, &line, e);
    if (r > 0)
        r = status_line_parse(&h, line, e) ? -1 : headers_parse(&h, &l, e);
    if (r <= 0)
        return r ? r : head_too_large(len, e);

    if (response_check(&h, m, e))
        return -1;
    *ret = h;
    return (ptrdiff_t)l.at;
}

const struct slice *http_find(const struct http_head *h, const char *name)
{
    const struct slice *found = NULL;

    for (unsigned i = 0; i < h->header_count; i++) {
        if (!slice_is_nocase(h->headers[i].name, name))
            continue;
        if (found)
            return NULL;
        found = &h->headers[i].value;
    }
    return found;
}

int http_host_split(struct slice host, struct slice *ret_name, unsigned *ret_port)
{
    struct slice name = host;
    size_t n = 0;

    if (host.len && host.at[0] == '[') {
        for (n = 1;
             n < host.len && (http_is_hex(host.at[n]) || host.at[n] == ':' || host.at[n] == '.');)
            n++;
        if (n < 3 || n == host.len || host.at[n] != ']')
            return -1;
        name = (struct slice){host.at + 1, n - 1};
        n++;
    } else {
        while (n < host.len && (http_is_letter(host.at[n]) || http_is_digit(host.at[n]) ||
                                (host.at[n] && strchr("-._", host.at[n]))))
            n++;
        if (!n || n > 255 || host.at[0] == '.')
            return -1;
        name.len = n;
    }

    uint64_t port = 0;
    if (n < host.len &&
        (host.at[n] != ':' || length_parse(slice_from(host, n + 1), &port) || port > 65535))
        return -1;

    *ret_name = name;
    *ret_port = (unsigned)port;
    return 0;
}

int http_list_next(struct slice *list, struct slice *ret)
{
    while (list->len) {
        const char *comma = memchr(list->at, ',', list->len);
        size_t n = comma ? (size_t)(comma - list->at) : list->len;
        struct slice item = trim((struct slice){list->at, n});
        *list = slice_from(*list, comma ? n + 1 : n);
        if (item.len) {
            *ret = item;
            return 1;
        }
    }
    return 0;
}

int http_list_has(const struct http_head *h, const char *name, const char *element)
{
    for (unsigned i = 0; i < h->header_count; i++) {
        if (!slice_is_nocase(h->headers[i].name, name))
            continue;
        struct slice list = h->headers[i].value, item;
        while (http_list_next(&list, &item))
            if (slice_is_nocase(item, element))
                return 1;
    }
    return 0;
}

int http_hop_by_hop(const struct http_head *h, struct slice name)
{
    static const char *const always[] = {"connection",
                                         "keep-alive",
                                         "proxy-connection",
                                         "proxy-authenticate",
                                         "proxy-authorization",
                                         "te",
                                         "trailer",
                                         "transfer-encoding",
                                         "upgrade",
                                         "http2-settings"};
    static const char *const never[] = {
        "host",   "content-length", "content-type",  "content-encoding", "authorization",
        "cookie", "x-api-key",      "forwarded",     "x-real-ip",        "set-cookie",
        "origin", "date",           "cache-control", "x-request-id",     "location"};

    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (slice_is_nocase(name, always[i]))
            return 1;

    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (slice_is_nocase(name, never[i]))
            return 0;

    static const char *const prefixes[] = {"x-forwarded-", "sec-"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        size_t n = strlen(prefixes[i]);
        if (name.len > n && slice_is_nocase((struct slice){name.at, n}, prefixes[i]))
            return 0;
    }

    for (unsigned i = 0; i < h->header_count; i++) {
        if (!slice_is_nocase(h->headers[i].name, "connection"))
            continue;
        struct slice list = h->headers[i].value, item;
        while (http_list_next(&list, &item))
            if (item.len == name.len && !strncasecmp(item.at, name.at, name.len))
                return 1;
    }
    return 0;
}

const char *http_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } rows[] = {
        {100, "Continue"},
        {101, "Switching Protocols"},
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {206, "Partial Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {303, "See Other"},
        {304, "Not Modified"},
        {307, "Temporary Redirect"},
        {308, "Permanent Redirect"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {411, "Length Required"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {425, "Too Early"},
        {426, "Upgrade Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };
    static const char *const classes[] = {"Informational", "Success", "Redirection", "Client Error",
                                          "Server Error"};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].status == status)
            return rows[i].reason;
    return status >= 100 && status <= 599 ? classes[status / 100 - 1] : "Unknown";
}
