#include "unit.h"

#include "base/err.h"
#include "net/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOST "Host: h\r\n"

/* A message with NULs inside keeps its length. */
struct vector {
    const char *text;
    size_t len;
    enum pd_code code; /* of the refusal */
};
#define BAD(text)                                                                                  \
    {                                                                                              \
        (text), sizeof(text) - 1, PD_INVALID                                                       \
    }
#define BAD_AS(text, code)                                                                         \
    {                                                                                              \
        (text), sizeof(text) - 1, (code)                                                           \
    }
#define GET(headers)   "GET / HTTP/1.1\r\n" HOST headers "\r\n"
#define POST(headers)  "POST /x HTTP/1.1\r\n" HOST headers "\r\n"
#define TARGET(target) "GET " target " HTTP/1.1\r\n" HOST "\r\n"

/* Parses an exact copy, so that the sanitizer sees a byte read too far. */
static ptrdiff_t parse_copy(const char *text, size_t len, int method, struct http_head *ret,
                            struct pd_err *e)
{
    /* Slices point into it, so it lives until the next call. */
    static char *copy;
    free(copy);
    copy = malloc(len ? len : 1);
    assert_non_null(copy);
    memcpy(copy, text, len);
    return method < 0 ? http_request_parse(copy, len, ret, e)
                      : http_response_parse(copy, len, (enum http_method)method, ret, e);
}

static ptrdiff_t request(const char *text, struct http_head *ret)
{
    struct pd_err e = {.msg = ""};
    ptrdiff_t n = parse_copy(text, strlen(text), -1, ret, &e);
    if (n < 0)
        fail_msg("refused: %s\n%s", e.msg, text);
    return n;
}

static void check_bad(const struct vector *v, size_t count, int method)
{
    for (size_t i = 0; i < count; i++) {
        struct http_head h = {.minor = 4711};
        struct pd_err e = {.msg = ""};
        ptrdiff_t n = parse_copy(v[i].text, v[i].len, method, &h, &e);
        if (n != -1)
            fail_msg("row %zu gave %td: %s", i, n, v[i].text);
        if (e.code != v[i].code || !e.msg[0])
            fail_msg("row %zu is '%s' (%s): %s", i, pd_code_name(e.code), e.msg, v[i].text);
        assert_int_equal(h.minor, 4711);
    }
}

static void test_a_request_is_read(void **state)
{
    (void)state;
    struct http_head h;
    const char *text = "PUT /v1/a%20b?x=1&y={|}\\ HTTP/1.1\r\n"
                       "host: Example.com:8090\r\n"
                       "Content-Type:application/json\r\n"
                       "X-Many: a\r\n"
                       "x-many:\t b \t\r\n"
                       "X-Empty:\r\n"
                       "X-Bytes: caf\xc3\xa9\r\n"
                       "Content-Length: 12\r\n\r\nGET / HTTP/1.1";

    ptrdiff_t n = request(text, &h);
    assert_int_equal(n, strlen(text) - 14);
    assert_int_equal(h.method, HTTP_PUT);
    assert_true(slice_is(h.target, "/v1/a%20b?x=1&y={|}\\"));
    assert_int_equal(h.minor, 1);
    assert_true(slice_is(h.host, "Example.com:8090"));

    assert_int_equal(h.header_count, 7);
    assert_true(slice_is(h.headers[3].value, "b"));
    assert_int_equal(h.headers[4].value.len, 0);

    assert_int_equal(h.body, HTTP_BODY_LENGTH);
    assert_int_equal(h.length, 12);
    assert_true(h.keep_alive);
    assert_false(h.upgrade_websocket);
    assert_false(h.expect_continue);

    assert_true(slice_is(*http_find(&h, "content-TYPE"), "application/json"));
    assert_null(http_find(&h, "x-many"));
    assert_null(http_find(&h, "x-none"));
}

static void test_every_method_is_read(void **state)
{
    (void)state;
    for (int m = 0; m < HTTP_METHOD_COUNT; m++) {
        char text[100];
        struct http_head h;
        snprintf(text, sizeof text, "%s /x HTTP/1.1\r\n" HOST "\r\n", http_method_name(m));
        request(text, &h);
        assert_int_equal(h.method, m);
    }
    struct http_head h;
    request("OPTIONS * HTTP/1.1\r\n" HOST "\r\n", &h);
    assert_true(slice_is(h.target, "*"));
}

static void test_a_head_is_complete_at_its_empty_line_and_not_before(void **state)
{
    (void)state;
    const char *text = POST("Content-Length: 3\r\nConnection: close\r\nX: y\r\n");
    for (size_t n = 0; n <= strlen(text); n++) {
        struct http_head h;
        struct pd_err e = {.msg = ""};
        ptrdiff_t r = parse_copy(text, n, -1, &h, &e);
        assert_int_equal(r, n < strlen(text) ? 0 : (ptrdiff_t)n);
    }
}

static void test_malformed_requests_are_refused(void **state)
{
    (void)state;
    static const struct vector rows[] = {
        /* Lines. */
        BAD("\r\n"),
        BAD("\r\nGET / HTTP/1.1\r\n" HOST "\r\n"),
        BAD("GET / HTTP/1.1\n" HOST "\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: h\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: h\r\n\n"),
        BAD("GET / HTTP/1.1\r\nHost: h\r\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n"),
        BAD("GET / HTTP/1.1\rHost: h\r\n\r\n"),
        BAD("\x16\x03\x01\x02"),
        BAD(" GET / HTTP/1.1\r\n" HOST "\r\n"),
        /* The request line. */
        BAD("GET\r\n"),
        BAD("GET /\r\n"),
        BAD("GET / \r\n"),
        BAD("GET  / HTTP/1.1\r\n"),
        BAD("GET /  HTTP/1.1\r\n"),
        BAD("GET / HTTP/1.1 \r\n"),
        BAD("GET\t/ HTTP/1.1\r\n"),
        BAD("GET / HTTP/1.1\r\r\n"),
        BAD("GET /\r\n" HOST "\r\n"),
        BAD("GET / HTTP/0.9\r\n"),
        BAD("GET / HTTP/1.2\r\n"),
        BAD("GET / HTTP/2.0\r\n"),
        BAD("GET / HTTP/2\r\n"),
        BAD("PRI * HTTP/2.0\r\n"),
        BAD("GET / http/1.1\r\n"),
        BAD("GET / HTTP/1.10\r\n"),
        BAD("GET / HTTP/01.1\r\n"),
        BAD("GET / HTTP/+1.1\r\n"),
        BAD("GET / HTTPS/1.1\r\n"),
        BAD("GET / HTTP/1,1\r\n"),
        BAD("G(T / HTTP/1.1\r\n"),
        BAD("G\0T / HTTP/1.1\r\n"),
        BAD("G\xc3\x89T / HTTP/1.1\r\n"),
        BAD_AS("get / HTTP/1.1\r\n", PD_METHOD),
        BAD_AS("GETX / HTTP/1.1\r\n", PD_METHOD),
        BAD_AS("TRACE / HTTP/1.1\r\n", PD_METHOD),
        BAD_AS("CONNECT h:80 HTTP/1.1\r\n", PD_METHOD),
        /* Targets. */
        BAD(TARGET("*")),
        BAD(TARGET("x")),
        BAD(TARGET("?x")),
        BAD(TARGET("http://h/x")),
        BAD(TARGET("h:80")),
        BAD(TARGET("/a#b")),
        BAD(TARGET("/a?b#c")),
        BAD(TARGET("/a\\b")),
        BAD(TARGET("/\"a\"")),
        BAD(TARGET("/<a>")),
        BAD(TARGET("/a\tb")),
        BAD(TARGET("/a\0b")),
        BAD(TARGET("/a\x7f")),
        BAD(TARGET("/caf\xc3\xa9")),
        BAD(TARGET("/a?b\x80")),
        BAD("OPTIONS ** HTTP/1.1\r\n"),
        BAD("POST * HTTP/1.1\r\n"),
        /* Headers. */
        BAD(GET("X y\r\n")),
        BAD(GET("X\r\n")),
        BAD(GET(": y\r\n")),
        BAD(GET(" X: y\r\n")),
        BAD(GET("\tX: y\r\n")),
        BAD(GET("X : y\r\n")),
        BAD(GET("X\t: y\r\n")),
        BAD(GET("X: y\r\n folded\r\n")),
        BAD(GET("X: y\r\n\tfolded\r\n")),
        BAD(GET("X: y\r\n \r\n")),
        BAD("GET / HTTP/1.1\r\n Host: h\r\n\r\n"),
        BAD(GET("X\0Y: z\r\n")),
        BAD(GET("X: a\0b\r\n")),
        BAD(GET("X: a\x01\r\n")),
        BAD(GET("X: a\x0b\r\n")),
        BAD(GET("X: a\x1b[31m\r\n")),
        BAD(GET("X: a\x7f\r\n")),
        BAD(GET("X\xc3\xa9: y\r\n")),
        BAD(GET("X(Y): z\r\n")),
        BAD(GET("X/Y: z\r\n")),
        BAD(GET("\"X\": z\r\n")),
        BAD(GET("X@: z\r\n")),
        /* Host. */
        BAD("GET / HTTP/1.1\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nX: y\r\n\r\n"),
        BAD(GET("Host: h\r\n")),
        BAD(GET("HOST: other\r\n")),
        BAD("GET / HTTP/1.0\r\n" HOST HOST "\r\n"),
        BAD("GET / HTTP/1.1\r\nHost:\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: \t \r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: a b\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: a,b\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: a?b\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: a#b\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: a%00b\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: .a\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: h:\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: h:x\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: h:-1\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: h:80:80\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: h:65536\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: h:080\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: []\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: [::1]x\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: [::1%25eth0]\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: ::1\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: caf\xc3\xa9\r\n\r\n"),
        BAD("GET / HTTP/1.1\r\nHost: http://h\r\n\r\n"),
        /* Lengths. */
        BAD(POST("Content-Length:\r\n")),
        BAD(POST("Content-Length: +5\r\n")),
        BAD(POST("Content-Length: -1\r\n")),
        BAD(POST("Content-Length: 0x5\r\n")),
        BAD(POST("Content-Length: 5 5\r\n")),
        BAD(POST("Content-Length: 5,5\r\n")),
        BAD(POST("Content-Length: 5, 5\r\n")),
        BAD(POST("Content-Length: 5;\r\n")),
        BAD(POST("Content-Length: 5.0\r\n")),
        BAD(POST("Content-Length: 1e3\r\n")),
        BAD(POST("Content-Length: 05\r\n")),
        BAD(POST("Content-Length: 00\r\n")),
        BAD(POST("Content-Length: 1_000\r\n")),
        BAD(POST("Content-Length: \xc2\xb2\r\n")),
        BAD(POST("Content-Length: 9223372036854775808\r\n")),
        BAD(POST("Content-Length: 18446744073709551616\r\n")),
        BAD(POST("Content-Length: 18446744073709551621\r\n")),
        BAD(POST("Content-Length: 111111111111111111111111111111\r\n")),
        BAD(POST("Content-Length: 5\r\nContent-Length: 5\r\n")),
        BAD(POST("Content-Length: 5\r\ncontent-length: 6\r\n")),
        BAD(POST("Content-Length : 5\r\n")),
        /* Codings. */
        BAD(POST("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n")),
        BAD(POST("Transfer-Encoding: chunked\r\nContent-Length: 6\r\n")),
        BAD(POST("Content-Length: 6\r\nTransfer-Encoding: identity\r\n")),
        BAD(POST("Transfer-Encoding: xchunked\r\n")),
        BAD(POST("Transfer-Encoding: chunkedx\r\n")),
        BAD(POST("Transfer-Encoding: chunked, identity\r\n")),
        BAD(POST("Transfer-Encoding: identity, chunked\r\n")),
        BAD(POST("Transfer-Encoding: gzip, chunked\r\n")),
        BAD(POST("Transfer-Encoding: chunked, chunked\r\n")),
        BAD(POST("Transfer-Encoding: chunked,\r\n")),
        BAD(POST("Transfer-Encoding: ,chunked\r\n")),
        BAD(POST("Transfer-Encoding: chunked;q=1\r\n")),
        BAD(POST("Transfer-Encoding: \"chunked\"\r\n")),
        BAD(POST("Transfer-Encoding: \x0b"
                 "chunked\r\n")),
        BAD(POST("Transfer-Encoding: chunked\xa0\r\n")),
        BAD(POST("Transfer-Encoding: gzip\r\n")),
        BAD(POST("Transfer-Encoding: identity\r\n")),
        BAD(POST("Transfer-Encoding:\r\n")),
        BAD(POST("Transfer-Encoding:\r\n chunked\r\n")),
        BAD(POST("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n")),
        BAD(POST("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n")),
        BAD(POST("Transfer-Encoding : chunked\r\n")),
        BAD("POST / HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"),
        /* The others. */
        BAD(POST("Content-Length: 5\r\nExpect: 200-ok\r\n")),
        BAD(POST("Content-Length: 5\r\nExpect: 100-continue, x\r\n")),
        BAD(POST("Content-Length: 5\r\nExpect:\r\n")),
        BAD(POST("Expect: 100-continue\r\nExpect: 100-continue\r\n")),
        BAD(GET("Connection: close;x\r\n")),
        BAD(GET("Connection: a b\r\n")),
        BAD(GET("Connection: \"close\"\r\n")),
        BAD(GET("Authorization: Bearer a\r\nAuthorization: Bearer b\r\n")),
        BAD(GET("Authorization: Bearer a\r\nauthorization: Bearer a\r\n")),
        BAD(GET("X-API-Key: a\r\nX-Api-Key: b\r\n")),
        BAD(GET("Idempotency-Key: a\r\nIdempotency-Key: b\r\n")),
        BAD(GET("Content-Type: a/b\r\nContent-Type: a/b\r\n")),
        BAD(GET("Range: bytes=0-1\r\nRange: bytes=2-3\r\n")),
        BAD(GET("Last-Event-ID: 1\r\nLast-Event-ID: 2\r\n")),
        BAD(GET("Origin: http://a\r\nOrigin: http://b\r\n")),
    };

    check_bad(rows, COUNT(rows), -1);
}

static void test_hosts_are_names_and_addresses_maybe_with_a_port(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "h",        "localhost:8090", "127.0.0.1",           "h.",  "[::1]",
        "[::1]:80", "my_service:1",   "8090-ab.x.org",       "h:0", "xn--bcher-kva",
        "h:65535",  "a-b.c-d",        "[::ffff:1.2.3.4]:443"};

    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[200];
        struct http_head h;
        snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", rows[i]);
        request(text, &h);
        assert_true(slice_is(h.host, rows[i]));
    }

    struct http_head h;
    request("GET / HTTP/1.0\r\n\r\n", &h);
    assert_int_equal(h.host.len, 0);
}

static void test_where_the_body_ends(void **state)
{
    (void)state;
    struct http_head h;
    request(POST(""), &h);
    assert_int_equal(h.body, HTTP_BODY_NONE);

    request(POST("Content-Length: 0\r\n"), &h);
    assert_int_equal(h.body, HTTP_BODY_LENGTH);
    assert_int_equal(h.length, 0);

    request(POST("Content-Length:9223372036854775807 \r\n"), &h);
    assert_int_equal(h.length, INT64_MAX);
    request(POST("Transfer-Encoding:  Chunked \r\n"), &h);
    assert_int_equal(h.body, HTTP_BODY_CHUNKED);
    assert_int_equal(h.length, 0);
}

static void test_what_becomes_of_the_connection(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int keep_alive;
    } rows[] = {
        {GET(""), 1},
        {GET("Connection: keep-alive\r\n"), 1},
        {GET("Connection: close\r\n"), 0},
        {GET("Connection: Keep-Alive, , CLOSE\r\n"), 0},
        {GET("Connection: x\r\nConnection: close\r\n"), 0},
        {GET("Connection: closed\r\n"), 1},
        {GET("Connection:\r\n"), 1},
        {"GET / HTTP/1.0\r\n\r\n", 0},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 1},
        {"GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", 0},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct http_head h;
        request(rows[i].text, &h);
        if (h.keep_alive != rows[i].keep_alive)
            fail_msg("row %zu: %d", i, h.keep_alive);
    }
}

static void test_expect_waits_only_for_a_body(void **state)
{
    (void)state;
    struct http_head h;
    request(POST("Content-Length: 5\r\nExpect: 100-Continue\r\n"), &h);
    assert_true(h.expect_continue);
    request(POST("Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n"), &h);
    assert_true(h.expect_continue);
    request(GET("Expect: 100-continue\r\n"), &h);
    assert_false(h.expect_continue);
    request("POST / HTTP/1.0\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n", &h);
    assert_false(h.expect_continue);
}

#define WS     "Upgrade: websocket\r\nConnection: Upgrade\r\n"
#define WS_KEY "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
#define WS_13  "Sec-WebSocket-Version: 13\r\n"

static void test_a_websocket_is_asked_for_properly_or_not_at_all(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int upgrade;
    } rows[] = {
        {GET(WS WS_KEY WS_13), 1},
        {GET("Upgrade: WebSocket\r\nConnection: keep-alive, upgrade\r\n" WS_KEY WS_13), 1},
        {GET("Upgrade: websocket\r\n" WS_KEY WS_13), 0},
        {GET("Connection: upgrade\r\n" WS_KEY WS_13), 0},
        {GET("Connection: upgrade\r\nUpgrade: h2c\r\n"), 0},
        {GET("Connection: upgrade\r\nUpgrade: websocketx\r\n"), 0},
        {"GET / HTTP/1.0\r\n" WS WS_KEY WS_13 "\r\n", 0},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct http_head h;
        request(rows[i].text, &h);
        if (h.upgrade_websocket != rows[i].upgrade)
            fail_msg("row %zu: %d", i, h.upgrade_websocket);
    }

    static const struct vector bad[] = {
        BAD(POST(WS WS_KEY WS_13)),
        BAD(GET(WS WS_KEY WS_13 "Content-Length: 1\r\n")),
        BAD(GET(WS WS_KEY WS_13 "Transfer-Encoding: chunked\r\n")),
        BAD(GET(WS WS_13)),
        BAD(GET(WS WS_KEY)),
        BAD(GET(WS WS_KEY "Sec-WebSocket-Version: 8\r\n")),
        BAD(GET(WS WS_KEY "Sec-WebSocket-Version: 13, 8\r\n")),
        BAD(GET(WS WS_KEY WS_KEY WS_13)),
        BAD(GET(WS WS_KEY WS_13 WS_13)),
        BAD(GET(WS WS_KEY WS_13 "Upgrade: websocket\r\n")),
    };

    check_bad(bad, COUNT(bad), -1);
}

static void test_limits_are_exact(void **state)
{
    (void)state;
    struct http_head h;
    struct pd_err e = {.msg = ""};
    auto_buf b = BUF_INIT(1 << 20);

    for (unsigned more = 0; more < 2; more++) {
        buf_clear(&b);
        buf_puts(&b, "GET / HTTP/1.1\r\n" HOST);
        for (unsigned i = 1; i < HTTP_HEADERS_MAX + more; i++)
            buf_puts(&b, "X: y\r\n");
        buf_puts(&b, "\r\n");
        ptrdiff_t n = parse_copy((char *)b.data, b.len, -1, &h, &e);
        assert_int_equal(n, more ? -1 : (ptrdiff_t)b.len);
    }
    assert_int_equal(e.code, PD_TOO_LARGE);

    for (unsigned more = 0; more < 2; more++) {
        buf_clear(&b);
        buf_puts(&b, "GET /");
        for (unsigned i = 1; i < HTTP_TARGET_MAX + more; i++)
            buf_putc(&b, 'x');
        buf_puts(&b, " HTTP/1.1\r\n" HOST "\r\n");
        e.code = PD_INTERNAL;
        ptrdiff_t n = parse_copy((char *)b.data, b.len, -1, &h, &e);
        assert_int_equal(n, more ? -1 : (ptrdiff_t)b.len);
    }
    assert_int_equal(e.code, PD_TOO_LARGE);

    for (unsigned more = 0; more < 2; more++) {
        buf_clear(&b);
        buf_puts(&b, "GET / HTTP/1.1\r\n" HOST "X: ");
        while (b.len < HTTP_HEAD_MAX + more - 4)
            buf_putc(&b, 'x');
        buf_puts(&b, "\r\n\r\n");
        e.code = PD_INTERNAL;
        ptrdiff_t n = parse_copy((char *)b.data, b.len, -1, &h, &e);
        assert_int_equal(n, more ? -1 : (ptrdiff_t)b.len);
        /* Before the end is seen: a full buffer without an end is too large, too. */
        n = parse_copy((char *)b.data, HTTP_HEAD_MAX - 1, -1, &h, &e);
        assert_int_equal(n, 0);
    }
    assert_int_equal(e.code, PD_TOO_LARGE);
    /* Without a single line end. */
    memset(b.data, 'A', b.len);
    assert_int_equal(parse_copy((char *)b.data, HTTP_HEAD_MAX, -1, &h, &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
}

static void test_responses_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum http_method method;
        int status;
        enum http_body body;
        uint64_t length;
        int keep_alive;
    } rows[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", HTTP_GET, 200, HTTP_BODY_LENGTH, 5, 1},
        {"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", HTTP_GET, 200, HTTP_BODY_LENGTH, 0, 1},
        {"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", HTTP_GET, 200, HTTP_BODY_LENGTH, 0, 1},
        {"HTTP/1.1 200 OK\r\n\r\n", HTTP_GET, 200, HTTP_BODY_TO_EOF, 0, 0},
        {"HTTP/1.0 200 OK\r\n\r\n", HTTP_GET, 200, HTTP_BODY_TO_EOF, 0, 0},
        {"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n", HTTP_GET, 200, HTTP_BODY_LENGTH, 1, 0},
        {"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n", HTTP_GET, 404,
         HTTP_BODY_CHUNKED, 0, 1},
        {"HTTP/1.1 200 Tr\xc3\xa8s bien\r\nConnection: close\r\nContent-Length: 1\r\n\r\n",
         HTTP_GET, 200, HTTP_BODY_LENGTH, 1, 0},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", HTTP_HEAD, 200, HTTP_BODY_NONE, 0, 1},
        {"HTTP/1.1 200 OK\r\n\r\n", HTTP_HEAD, 200, HTTP_BODY_NONE, 0, 1},
        {"HTTP/1.1 204 No Content\r\n\r\n", HTTP_DELETE, 204, HTTP_BODY_NONE, 0, 1},
        {"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", HTTP_PUT, 204, HTTP_BODY_NONE, 0,
         1},
        {"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", HTTP_GET, 304, HTTP_BODY_NONE, 0,
         1},
        {"HTTP/1.1 100 Continue\r\n\r\n", HTTP_POST, 100, HTTP_BODY_NONE, 0, 1},
        {"HTTP/1.1 101 Switching\r\n" WS "\r\n", HTTP_GET, 101, HTTP_BODY_NONE, 0, 1},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct http_head h;
        struct pd_err e = {.msg = ""};
        size_t len = strlen(rows[i].text);
        for (size_t n = 0; n < len; n++)
            assert_int_equal(parse_copy(rows[i].text, n, rows[i].method, &h, &e), 0);
        ptrdiff_t n = parse_copy(rows[i].text, len, rows[i].method, &h, &e);
        if (n != (ptrdiff_t)len)
            fail_msg("row %zu gave %td: %s", i, n, e.msg);
        if (h.status != rows[i].status || h.body != rows[i].body || h.length != rows[i].length ||
            h.keep_alive != rows[i].keep_alive || h.upgrade_websocket != (h.status == 101))
            fail_msg("row %zu: %d %d %ju %d", i, h.status, h.body, (uintmax_t)h.length,
                     h.keep_alive);
    }
}

static void test_malformed_responses_are_refused(void **state)
{
    (void)state;
    static const struct vector rows[] = {
        BAD("\r\n"),
        BAD("ICY 200 OK\r\n\r\n"),
        BAD("HTTP/1.1\r\n\r\n"),
        BAD("HTTP/1.1 20\r\n\r\n"),
        BAD("HTTP/1.1 2000 OK\r\n\r\n"),
        BAD("HTTP/1.1 20x OK\r\n\r\n"),
        BAD("HTTP/1.1 099 OK\r\n\r\n"),
        BAD("HTTP/1.1 600 OK\r\n\r\n"),
        BAD("HTTP/1.1  200 OK\r\n\r\n"),
        BAD("HTTP/1.1\t200 OK\r\n\r\n"),
        BAD("HTTP/1.1 200\tOK\r\n\r\n"),
        BAD("HTTP/1.1 200 O\0K\r\n\r\n"),
        BAD("HTTP/1.1 200 O\rK\r\n\r\n"),
        BAD("HTTP/1.1 200 OK\n\r\n"),
        BAD("HTTP/2.0 200 OK\r\n\r\n"),
        BAD("HTTP/1.2 200 OK\r\n\r\n"),
        BAD("http/1.1 200 OK\r\n\r\n"),
        BAD("HTTP/1.1 200 OK\r\nX : y\r\n\r\n"),
        BAD("HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n"),
        BAD("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n"),
        BAD("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
        BAD("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"),
        BAD("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        BAD("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"),
        BAD("HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"),
        BAD("HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\n"),
        BAD("HTTP/1.1 101 Switching\r\n\r\n"),
        BAD("HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n"),
    };

    check_bad(rows, COUNT(rows), HTTP_GET);
}

static void test_lists_have_elements(void **state)
{
    (void)state;
    struct http_head h;
    request(GET("Vary: a, ,B\t,c\r\nVary:d\r\nX: ,\r\n"), &h);
    assert_true(http_list_has(&h, "vary", "a"));
    assert_true(http_list_has(&h, "vary", "b"));
    assert_true(http_list_has(&h, "vary", "D"));
    assert_false(http_list_has(&h, "vary", ""));
    assert_false(http_list_has(&h, "vary", "e"));
    assert_false(http_list_has(&h, "x", ""));
}

static void test_hop_by_hop_headers_end_here(void **state)
{
    (void)state;
    struct http_head h;
    request(GET("Connection: X-Mine, Authorization, Host, content-length, close, X-Forwarded-For, "
                "sec-websocket-key\r\n"),
            &h);

    static const char *const gone[] = {
        "x-mine", "Connection", "Keep-Alive", "Transfer-Encoding",  "Upgrade",
        "TE",     "Trailer",    "Close",      "Proxy-Authorization"};
    static const char *const stay[] = {"Authorization",   "Host",    "Content-Length",
                                       "X-Forwarded-For", "X-Yours", "X-Min",
                                       "X-Mine2",         "Accept",  "Sec-WebSocket-Key"};
    for (size_t i = 0; i < COUNT(gone); i++)
        if (!http_hop_by_hop(&h, slice_of(gone[i])))
            fail_msg("%s is passed on", gone[i]);
    for (size_t i = 0; i < COUNT(stay); i++)
        if (http_hop_by_hop(&h, slice_of(stay[i])))
            fail_msg("%s is dropped", stay[i]);
}

/* Decodes in pieces of `step` bytes. Returns how many bytes were used, or -1. */
static ptrdiff_t decode(const char *text, size_t len, size_t step, struct buf *out, int *ret_done)
{
    struct http_chunks c = {0};
    struct pd_err e = {.msg = ""};
    size_t at = 0;

    while (at < len && !c.done) {
        size_t piece = len - at < step ? len - at : step, used, body_len;
        const char *body;
        if (http_chunks_next(&c, text + at, piece, &used, &body, &body_len, &e)) {
            assert_int_equal(e.code, PD_INVALID);
            /* It stays that way. */
            assert_int_equal(http_chunks_next(&c, "0\r\n", 3, &used, &body, &body_len, &e), -1);
            return -1;
        }
        buf_put(out, body, body_len);
        assert_true(used > 0);
        at += used;
    }

    *ret_done = c.done;
    return (ptrdiff_t)at;
}

static void test_chunks_are_decoded(void **state)
{
    (void)state;
    static const struct {
        const char *text, *body;
        size_t used; /* 0: all, and the end is not there yet */
    } rows[] = {
        {"0\r\n\r\n", "", 5},
        {"000\r\n\r\nGET", "", 7},
        {"5\r\nhello\r\n0\r\n\r\nnext", "hello", 15},
        {"1\r\na\r\n00A\r\n0123456789\r\n0\r\n\r\n", "a0123456789", 28},
        {"a\r\n\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n", "\r\n\r\n\r\n\r\n\r\n", 20},
        {"3\r\nabc\r\n0\r\nAuthorization: Bearer x\r\nX:\r\n\r\n", "abc", 42},
        {"fffffffffffffff\r\nabc", "abc", 0},
        {"5\r\nhel", "hel", 0},
        {"5\r\nhello\r\n0\r\n", "hello", 0},
        {"", "", 0},
    };

    for (size_t i = 0; i < COUNT(rows); i++)
        for (size_t step = 1; step < 30; step++) {
            auto_buf out = BUF_INIT(1000);
            int done = 0;
            size_t len = strlen(rows[i].text);
            ptrdiff_t n = decode(rows[i].text, len, step, &out, &done);
            if (n != (ptrdiff_t)(rows[i].used ? rows[i].used : len) || done != (rows[i].used > 0))
                fail_msg("row %zu by %zu: %td", i, step, n);
            assert_int_equal(out.len, strlen(rows[i].body));
            assert_memory_equal(buf_cstr(&out), rows[i].body, out.len);
        }
}

static void test_malformed_chunks_are_refused(void **state)
{
    (void)state;
    static const struct vector rows[] = {
        BAD("\r\n"),
        BAD("g\r\n"),
        BAD(" 5\r\n"),
        BAD("5 \r\n"),
        BAD("-1\r\n"),
        BAD("+1\r\n"),
        BAD("0x1\r\n"),
        BAD("1_0\r\n"),
        BAD("5;ext=1\r\n"),
        BAD("5;\r\n"),
        BAD("5\n"),
        BAD("5\rx"),
        BAD("5\r\nhello0\r\n\r\n"),
        BAD("5\r\nhello\n0\r\n\r\n"),
        BAD("5\r\nhello\rx"),
        BAD("5\r\nhello!\r\n"),
        BAD("FFFFFFFFFFFFFFFFF\r\n"),
        BAD("FFFFFFFFFFFFFFFF\r\n"),
        BAD("0000000000000001\r\n"),
        BAD("0\r\n\n"),
        BAD("0\r\n\rx"),
        BAD("0\r\n x: y\r\n\r\n"),
        BAD("0\r\nx y\r\n\r\n"),
        BAD("0\r\nx : y\r\n\r\n"),
        BAD("0\r\n: y\r\n\r\n"),
        BAD("0\r\nx: y\n\r\n"),
        BAD("0\r\nx: \0\r\n\r\n"),
        BAD("0\r\nx\r\n\r\n"),
        BAD("\0"),
    };

    for (size_t i = 0; i < COUNT(rows); i++)
        for (size_t step = 1; step < 30; step++) {
            auto_buf out = BUF_INIT(1000);
            int done = 0;
            ptrdiff_t n = decode(rows[i].text, rows[i].len, step, &out, &done);
            if (n != -1)
                fail_msg("row %zu by %zu gave %td", i, step, n);
        }
}

static void test_trailers_are_bounded(void **state)
{
    (void)state;
    for (size_t more = 0; more < 2; more++) {
        auto_buf b = BUF_INIT(1 << 20);
        auto_buf out = BUF_INIT(1000);
        int done = 0;
        buf_puts(&b, "0\r\nX:");
        while (b.len - 3 < HTTP_TRAILER_MAX - 4 + more)
            buf_putc(&b, 'x');
        buf_puts(&b, "\r\n\r\n");
        ptrdiff_t n = decode((char *)b.data, b.len, 1000, &out, &done);
        assert_int_equal(n, more ? -1 : (ptrdiff_t)b.len);
    }
}

static void test_every_status_has_a_reason(void **state)
{
    (void)state;
    assert_string_equal(http_reason(200), "OK");
    assert_string_equal(http_reason(431), "Request Header Fields Too Large");
    assert_string_equal(http_reason(599), "Server Error");
    assert_string_equal(http_reason(150), "Informational");
    assert_string_equal(http_reason(-1), "Unknown");
    assert_string_equal(http_reason(600), "Unknown");
    /* What our own errors answer with is in the table, not just of a class. */
    for (int code = 0; code < PD_CODE_COUNT; code++)
        assert_string_not_equal(http_reason(pd_code_http(code)), "Client Error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_request_is_read),
        cmocka_unit_test(test_every_method_is_read),
        cmocka_unit_test(test_a_head_is_complete_at_its_empty_line_and_not_before),
        cmocka_unit_test(test_malformed_requests_are_refused),
        cmocka_unit_test(test_hosts_are_names_and_addresses_maybe_with_a_port),
        cmocka_unit_test(test_where_the_body_ends),
        cmocka_unit_test(test_what_becomes_of_the_connection),
        cmocka_unit_test(test_expect_waits_only_for_a_body),
        cmocka_unit_test(test_a_websocket_is_asked_for_properly_or_not_at_all),
        cmocka_unit_test(test_limits_are_exact),
        cmocka_unit_test(test_responses_are_read),
        cmocka_unit_test(test_malformed_responses_are_refused),
        cmocka_unit_test(test_lists_have_elements),
        cmocka_unit_test(test_hop_by_hop_headers_end_here),
        cmocka_unit_test(test_chunks_are_decoded),
        cmocka_unit_test(test_malformed_chunks_are_refused),
        cmocka_unit_test(test_trailers_are_bounded),
        cmocka_unit_test(test_every_status_has_a_reason),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
