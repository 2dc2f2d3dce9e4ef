/* Any bytes as a response; the first one chooses the method that it answers.
 *
 * Properties: as for requests (fuzz_http.c). */
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

static void require_same(const struct http_head *a, const struct http_head *b)
{
    require(a->status == b->status && a->minor == b->minor && a->body == b->body);
    require(a->length == b->length && a->keep_alive == b->keep_alive);
    require(a->upgrade_websocket == b->upgrade_websocket && a->header_count == b->header_count);
    for (unsigned i = 0; i < a->header_count; i++) {
        require(a->headers[i].name.len == b->headers[i].name.len);
        require(a->headers[i].value.len == b->headers[i].value.len);
    }
}

static void check_head(const struct http_head *h, enum http_method m)
{
    require(h->status >= 100 && h->status <= 599 && (h->minor == 0 || h->minor == 1));
    require(h->body == HTTP_BODY_LENGTH || !h->length);
    require(h->body != HTTP_BODY_TO_EOF || !h->keep_alive);
    require(h->body != HTTP_BODY_CHUNKED || h->minor == 1);
    require(!h->upgrade_websocket || h->status == 101);
    if (m == HTTP_HEAD || h->status < 200 || h->status == 204 || h->status == 304)
        require(h->body == HTTP_BODY_NONE);
    else
        require(h->body != HTTP_BODY_NONE);
}

#ifdef HAVE_HTTP_PARSER
struct other {
    const struct http_head *ours;
    enum http_method method;
    int complete;
};

static int on_headers(http_parser *p)
{
    struct other *o = p->data;
    const struct http_head *h = o->ours;
    o->complete = 1;
    require((int)p->status_code == h->status);
    require(p->http_major == 1 && p->http_minor == h->minor);

    if (h->body != HTTP_BODY_NONE) {
        require(!(p->flags & F_CHUNKED) == (h->body != HTTP_BODY_CHUNKED));
        require((p->content_length == UINT64_MAX) == (h->body != HTTP_BODY_LENGTH));
        require(h->body != HTTP_BODY_LENGTH || p->content_length == h->length);
        require(!h->keep_alive || http_should_keep_alive(p));
    }

    return h->body == HTTP_BODY_NONE; /* 1: there is no body */
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

static void check_other(const struct http_head *h, enum http_method m, const uint8_t *data,
                        size_t len)
{
    struct other o = {.ours = h, .method = m};
    http_parser_settings s;
    http_parser p;
    if (other_is_wrong(h))
        return;
    http_parser_settings_init(&s);
    s.on_headers_complete = on_headers;
    http_parser_init(&p, HTTP_RESPONSE);
    p.data = &o;
    size_t n = http_parser_execute(&p, &s, (const char *)data, len);
    require(n == len && HTTP_PARSER_ERRNO(&p) == HPE_OK && o.complete);
}
#else
static void check_other(const struct http_head *h, enum http_method m, const uint8_t *data,
                        size_t len)
{
    (void)h, (void)m, (void)data, (void)len;
}
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    enum http_method m = data[0] % HTTP_METHOD_COUNT;
    data++, size--;

    struct http_head h, again;
    struct pd_err e = {.msg = ""}, early;
    ptrdiff_t n = http_response_parse(data, size, m, &h, &e);
    require(n >= -1 && n <= (ptrdiff_t)size);
    if (n < 0)
        require(e.msg[0] && (e.code == PD_INVALID || e.code == PD_TOO_LARGE));

    size_t end = n > 0 ? (size_t)n : size;
    for (size_t k = 0; k < end; k += 1 + end / 64) {
        ptrdiff_t r = http_response_parse(data, k, m, &again, &early);
        require(r == 0 ||
                (r == -1 && n == -1 && early.code == e.code && !strcmp(early.msg, e.msg)));
    }

    if (n <= 0)
        return 0;
    require(http_response_parse(data, end, m, &again, &early) == n);
    require_same(&h, &again);
    check_head(&h, m);
    check_other(&h, m, data, end);
    return 0;
}
