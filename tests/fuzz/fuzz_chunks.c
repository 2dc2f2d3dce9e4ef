/* The first byte says how to cut the rest, which is a chunked body.
 *
 * Properties: pieces of any size give the same body, the same end and the same refusal; a body that
 * is encoded anew is decoded to the same; and, where http_parser is there, what we accept it
 * accepts, with the same body. */
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

/* Returns -1, 0 or 1 (done); *ret_used: bytes of the message (or up to the refusal's piece). */
static int decode(const char *data, size_t len, size_t step, struct buf *out, size_t *ret_used)
{
    struct http_chunks c = {0};
    struct pd_err e;
    size_t at = 0;

    while (at < len && !c.done) {
        size_t piece = len - at < step ? len - at : step, used, body_len;
        const char *body;
        if (http_chunks_next(&c, data + at, piece, &used, &body, &body_len, &e))
            return -1;
        require(used && used <= piece && body_len <= used);
        require(!body_len || (body >= data + at && body + body_len <= data + at + piece));
        buf_put(out, body, body_len);
        at += used;
    }

    *ret_used = at;
    return c.done;
}

#ifdef HAVE_HTTP_PARSER
struct other {
    struct buf body;
    int complete;
};

static int on_body(http_parser *p, const char *at, size_t len)
{
    struct other *o = p->data;
    buf_put(&o->body, at, len);
    return 0;
}

static int on_complete(http_parser *p)
{
    struct other *o = p->data;
    o->complete = 1;
    return 0;
}

static void check_other(const char *data, size_t len, const struct buf *body)
{
    static const char head[] = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    struct other o = {.body = BUF_INIT(1 << 20)};
    http_parser_settings s;
    http_parser p;

    http_parser_settings_init(&s);
    s.on_body = on_body;
    s.on_message_complete = on_complete;
    http_parser_init(&p, HTTP_REQUEST);
    p.data = &o;
    require(http_parser_execute(&p, &s, head, sizeof head - 1) == sizeof head - 1);
    require(http_parser_execute(&p, &s, data, len) == len);
    require(HTTP_PARSER_ERRNO(&p) == HPE_OK && o.complete && o.body.len == body->len);
    require(!body->len || !memcmp(o.body.data, body->data, body->len));
    buf_done(&o.body);
}
#else
static void check_other(const char *data, size_t len, const struct buf *body)
{
    (void)data, (void)len, (void)body;
}
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || size > 1 << 19)
        return 0;
    size_t step = 1 + data[0] % 32, used[2] = {0};
    const char *text = (const char *)data + 1;
    size--;
    auto_buf whole = BUF_INIT(1 << 20);
    auto_buf pieces = BUF_INIT(1 << 20);
    int r = decode(text, size, size + 1, &whole, &used[0]);
    require(decode(text, size, step, &pieces, &used[1]) == r);
    if (r < 0)
        return 0;
    require(used[0] == used[1] && whole.len == pieces.len);
    require(!whole.len || !memcmp(whole.data, pieces.data, whole.len));

    auto_buf anew = BUF_INIT(4 << 20);
    auto_buf again = BUF_INIT(1 << 20);
    for (size_t at = 0; at < whole.len; at += step) {
        size_t n = whole.len - at < step ? whole.len - at : step;
        buf_printf(&anew, "%zx\r\n", n);
        buf_put(&anew, whole.data + at, n);
        buf_puts(&anew, "\r\n");
    }
    buf_puts(&anew, "0\r\n\r\n");
    require(!anew.overflow && decode((char *)anew.data, anew.len, step, &again, &used[1]) == 1);
    require(used[1] == anew.len && again.len == whole.len);
    require(!whole.len || !memcmp(whole.data, again.data, whole.len));
    if (r == 1)
        check_other(text, used[0], &whole);
    return 0;
}
