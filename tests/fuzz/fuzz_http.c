/* Any bytes as a request.
 *
 * Properties: the head is found at the same place however much of it is there; what is behind it
 * does not matter; written anew from its parts it is read as the same; and, where http_parser is
 * there, what we accept it accepts, with the same meaning. */
#include "other_http.h"

#include "base/err.h"
#include "net/http.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void require_equal(struct slice a, struct slice b)
{
    require(a.len == b.len && (!a.len || !memcmp(a.at, b.at, a.len)));
}

static void require_same(const struct http_head *a, const struct http_head *b)
{
    require(a->method == b->method && a->minor == b->minor && a->body == b->body);
    require(a->length == b->length && a->keep_alive == b->keep_alive);
    require(a->expect_continue == b->expect_continue);
    require(a->upgrade_websocket == b->upgrade_websocket);
    require(a->header_count == b->header_count);
    require_equal(a->target, b->target);
    require_equal(a->host, b->host);
    for (unsigned i = 0; i < a->header_count; i++) {
        require_equal(a->headers[i].name, b->headers[i].name);
        require_equal(a->headers[i].value, b->headers[i].value);
    }
}

/* What the rest of the program relies on. */
static void check_head(const struct http_head *h)
{
    require(h->method < HTTP_METHOD_COUNT && (h->minor == 0 || h->minor == 1));
    require(h->target.len && h->target.len <= HTTP_TARGET_MAX);
    require(h->target.at[0] == '/' || (h->method == HTTP_OPTIONS && slice_is(h->target, "*")));
    require(h->body != HTTP_BODY_TO_EOF && (h->body == HTTP_BODY_LENGTH || !h->length));
    require(h->length <= INT64_MAX && (h->host.len || h->minor == 0));

    for (unsigned i = 0; i < h->header_count; i++) {
        struct slice name = h->headers[i].name, value = h->headers[i].value;
        require(name.len && !memchr(name.at, ' ', name.len) && !memchr(name.at, ':', name.len));
        require(!value.len ||
                (!memchr(value.at, '\r', value.len) && !memchr(value.at, 0, value.len) &&
                 !memchr(value.at, '\n', value.len)));
    }
}

static void check_rewritten(const struct http_head *h)
{
    auto_buf b = BUF_INIT(2 * HTTP_HEAD_MAX);
    struct http_head again;
    struct pd_err e;

    buf_puts(&b, http_method_name(h->method));
    buf_putc(&b, ' ');
    buf_put(&b, h->target.at, h->target.len);
    buf_puts(&b, h->minor ? " HTTP/1.1\r\n" : " HTTP/1.0\r\n");

    for (unsigned i = 0; i < h->header_count; i++) {
        buf_put(&b, h->headers[i].name.at, h->headers[i].name.len);
        buf_putc(&b, ':');
        buf_put(&b, h->headers[i].value.at, h->headers[i].value.len);
        buf_puts(&b, "\r\n");
    }

    buf_puts(&b, "\r\n");
    require(!b.overflow && http_request_parse(b.data, b.len, &again, &e) == (ptrdiff_t)b.len);
    require_same(h, &again);
}

#ifdef HAVE_HTTP_PARSER
struct other {
    const struct http_head *ours;
    unsigned names, values, complete;
    size_t name_len, value_len;
};

static int on_headers(http_parser *p)
{
    struct other *o = p->data;
    o->complete = 1;
    const struct http_head *h = o->ours;
    require(!strcmp(http_method_str(p->method), http_method_name(h->method)));
    require(p->http_major == 1 && p->http_minor == h->minor);
    require(!(p->flags & F_CHUNKED) == (h->body != HTTP_BODY_CHUNKED));
    require((p->content_length == UINT64_MAX) == (h->body != HTTP_BODY_LENGTH));
    require(h->body != HTTP_BODY_LENGTH || p->content_length == h->length);
    require(!h->keep_alive || http_should_keep_alive(p));
    require(!h->upgrade_websocket || p->upgrade);
    return 0;
}

static int on_url(http_parser *p, const char *at, size_t len)
{
    struct other *o = p->data;
    require_equal((struct slice){at, len}, o->ours->target);
    return 0;
}

static int on_name(http_parser *p, const char *at, size_t len)
{
    struct other *o = p->data;
    require(o->names < o->ours->header_count);
    require_equal((struct slice){at, len}, o->ours->headers[o->names++].name);
    return 0;
}

static int on_value(http_parser *p, const char *at, size_t len)
{
    struct other *o = p->data;
    struct slice v = {at, len}, ours = o->ours->headers[o->names - 1].value;
    /* It leaves blanks behind a value. */
    while (v.len > ours.len && (v.at[v.len - 1] == ' ' || v.at[v.len - 1] == '\t'))
        v.len--;
    require_equal(v, ours);
    return 0;
}

/* http_parser 2.9.4 takes "Transfer-Encodingx" for "Transfer-Encoding". */
static int other_is_wrong(const struct http_head *h)
{
    static const char name[] = "transfer-encoding";
    for (unsigned i = 0; i < h->header_count; i++) {
        struct slice s = h->headers[i].name, start = {s.at, sizeof name - 1};
        if (s.len > start.len && slice_is_nocase(start, name))
            return 1;
    }
    return 0;
}

static void check_other(const struct http_head *h, const uint8_t *data, size_t len)
{
    struct other o = {.ours = h};
    http_parser_settings s;
    http_parser p;

    if (other_is_wrong(h))
        return;
    http_parser_settings_init(&s);
    s.on_headers_complete = on_headers;
    s.on_url = on_url;
    s.on_header_field = on_name;
    s.on_header_value = on_value;
    http_parser_init(&p, HTTP_REQUEST);
    p.data = &o;
    size_t n = http_parser_execute(&p, &s, (const char *)data, len);
    require(n == len && HTTP_PARSER_ERRNO(&p) == HPE_OK);
    require(o.complete && o.names == h->header_count);
}
#else
static void check_other(const struct http_head *h, const uint8_t *data, size_t len)
{
    (void)h, (void)data, (void)len;
}
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http_head h, again;
    struct pd_err e = {.msg = ""}, early;
    ptrdiff_t n = http_request_parse(data, size, &h, &e);
    require(n >= -1 && n <= (ptrdiff_t)size);
    if (n < 0)
        require(e.msg[0] &&
                (e.code == PD_INVALID || e.code == PD_TOO_LARGE || e.code == PD_METHOD));

    /* Fewer bytes: not yet, or the same refusal. A step keeps long inputs affordable. */
    size_t end = n > 0 ? (size_t)n : size;
    for (size_t k = 0; k < end; k += 1 + end / 64) {
        ptrdiff_t r = http_request_parse(data, k, &again, &early);
        require(r == 0 ||
                (r == -1 && n == -1 && early.code == e.code && !strcmp(early.msg, e.msg)));
    }
    if (n <= 0)
        return 0;
    require(http_request_parse(data, end, &again, &early) == n);
    require_same(&h, &again);
    check_head(&h);
    check_rewritten(&h);
    check_other(&h, data, end);
    return 0;
}
