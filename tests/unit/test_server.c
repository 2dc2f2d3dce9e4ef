#include "server_routes.h"

#include "net/client.h"

#define H "\r\nHost: x\r\n"

static struct gate gate = GATE_INIT;
static struct test_server t;

static int begin(void **state)
{
    (void)state;
    struct server_config config = {.handle = test_handler, .arg = &gate};
    gate_set(&gate, 0);
    server_begin(&t, &config);
    return 0;
}

static int end(void **state)
{
    (void)state;
    gate_set(&gate, 1);
    server_end(&t);
    return 0;
}

/* One request on a connection of its own. */
static struct answer ask(const char *text, enum http_method m)
{
    auto_peer p = peer_dial(&t);
    peer_say(&p, text);
    return peer_answer(&p, m);
}

static void test_a_connection_serves_many_requests(void **state)
{
    (void)state;
    auto_peer p = peer_dial(&t);
    char first[40] = "";

    for (int i = 0; i < 100; i++) {
        peer_say(&p, "GET /hello HTTP/1.1" H "\r\n");
        auto_answer a = peer_answer(&p, HTTP_GET);
        assert_true(answer_is(&a, 200, "hello"));
        assert_true(a.keep_alive);
        assert_string_equal(a.type, "text/plain");
        assert_string_equal(a.extra, "more"); /* and not what was smuggled in behind it */
        assert_string_not_equal(a.id, first);
        memcpy(first, a.id, sizeof first);
        if (i % 25 == 0)
            usleep(5000); /* long enough to be parked */
    }

    struct server_stats stats;
    server_get_stats(t.server, &stats);
    assert_int_equal(stats.accepted, 1);
    assert_int_equal(stats.connections, 1);
    assert_int_equal(stats.requests, 100);
}

static void test_pipelined_requests_are_answered_in_order(void **state)
{
    (void)state;
    auto_peer p = peer_dial(&t);
    auto_buf all = BUF_INIT(1u << 20);

    for (int i = 0; i < 200; i++) {
        char body[16];
        int n = snprintf(body, sizeof body, "n%d", i);
        if (i % 2)
            buf_printf(&all, "POST /echo HTTP/1.1" H "Content-Length: %d\r\n\r\n%s", n, body);
        else
            buf_printf(&all,
                       "POST /echo HTTP/1.1" H "Transfer-Encoding: chunked\r\n\r\n1\r\n%c\r\n"
                       "%x\r\n%s\r\n0\r\n\r\n",
                       body[0], (unsigned)n - 1, body + 1);
    }

    peer_put(&p, all.data, all.len);
    for (int i = 0; i < 200; i++) {
        char body[16];
        snprintf(body, sizeof body, "n%d", i);
        auto_answer a = peer_answer(&p, HTTP_POST);
        assert_true(answer_is(&a, 200, body));
    }
}

static void test_bytes_may_come_one_by_one(void **state)
{
    (void)state;
    auto_peer p = peer_dial(&t);
    static const char text[] = "POST /echo HTTP/1.1" H "Transfer-Encoding: chunked\r\n\r\n"
                               "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";

    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < sizeof text - 1; i++) {
            peer_put(&p, text + i, 1);
            if (pass)
                usleep(1500); /* parked after nearly every byte */
        }
        auto_answer a = peer_answer(&p, HTTP_POST);
        assert_true(answer_is(&a, 200, "hello world"));
    }
}

static void test_large_bodies_arrive_whole(void **state)
{
    (void)state;
    static char data[5 << 20];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)('a' + i * 31 % 26);

    static const char *const paths[] = {"/echo", "/pipes"};
    for (size_t k = 0; k < COUNT(paths); k++) {
        auto_peer p = peer_dial(&t);
        char head[128];
        snprintf(head, sizeof head, "PUT %s HTTP/1.1" H "Content-Length: %zu\r\n\r\n", paths[k],
                 sizeof data);
        peer_say(&p, head);
        peer_put(&p, data, sizeof data);
        auto_answer a = peer_answer(&p, HTTP_PUT);
        assert_int_equal(a.status, 200);
        assert_int_equal(a.body.len, sizeof data);
        assert_memory_equal(a.body.data, data, sizeof data);

        /* The connection is where it should be. */
        peer_say(&p, "GET /hello HTTP/1.1" H "\r\n");
        auto_answer b = peer_answer(&p, HTTP_GET);
        assert_true(answer_is(&b, 200, "hello"));
    }
}

static void test_chunks_in_both_directions(void **state)
{
    (void)state;
    auto_peer p = peer_dial(&t);

    for (int pass = 0; pass < 3; pass++) {
        peer_say(&p, "POST /stream HTTP/1.1" H "Transfer-Encoding: chunked\r\n\r\n");
        auto_buf sent = BUF_INIT(1u << 20);
        for (unsigned i = 1; i < 200; i++) {
            char chunk[64];
            int n = snprintf(chunk, sizeof chunk, "chunk %u of a body;", i);
            char line[16];
            snprintf(line, sizeof line, "%x\r\n", (unsigned)n);
            peer_say(&p, line);
            peer_say(&p, chunk);
            peer_say(&p, "\r\n");
            buf_puts(&sent, chunk);
        }

        peer_say(&p, "0\r\nX-Trailer: ignored\r\n\r\n");
        auto_answer a = peer_answer(&p, HTTP_POST);
        assert_int_equal(a.kind, HTTP_BODY_CHUNKED);
        assert_true(answer_is(&a, 200, buf_cstr(&sent)));
    }
}

static void test_http_1_0_gets_no_chunks(void **state)
{
    (void)state;
    auto_answer a = ask("POST /stream HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", HTTP_POST);
    assert_int_equal(a.kind, HTTP_BODY_TO_EOF);
    assert_true(answer_is(&a, 200, "abc"));

    auto_peer p = peer_dial(&t);
    peer_say(&p, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    auto_answer b = peer_answer(&p, HTTP_GET);
    assert_true(b.keep_alive);

    peer_say(&p, "GET /hello HTTP/1.0\r\n\r\n");
    auto_answer c = peer_answer(&p, HTTP_GET);
    assert_true(answer_is(&c, 200, "hello"));
    assert_true(peer_at_end(&p));
}

static void test_who_expects_to_be_asked_is_asked(void **state)
{
    (void)state;
    auto_peer p = peer_dial(&t);
    peer_say(&p, "POST /echo HTTP/1.1" H "Expect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    auto_answer go = peer_answer(&p, HTTP_POST);
    assert_int_equal(go.status, 100);

    peer_say(&p, "body");
    auto_answer a = peer_answer(&p, HTTP_POST);
    assert_true(answer_is(&a, 200, "body"));

    /* Who sends it anyway is not asked. */
    peer_say(&p, "POST /echo HTTP/1.1" H "Expect: 100-continue\r\nContent-Length: 4\r\n\r\nbody");
    auto_answer b = peer_answer(&p, HTTP_POST);
    assert_true(answer_is(&b, 200, "body"));

    /* A body that is too large is refused before it is sent. */
    peer_say(&p, "POST /echo?small HTTP/1.1" H "Expect: 100-continue\r\n"
                 "Content-Length: 400000\r\n\r\n");
    auto_answer c = peer_answer(&p, HTTP_POST);
    assert_int_equal(c.status, 413);
    assert_false(c.keep_alive);
    assert_true(peer_at_end(&p));
}

static void test_head_is_get_without_a_body(void **state)
{
    (void)state;
    auto_peer p = peer_dial(&t);
    static const char *const heads[] = {
        "HEAD /hello HTTP/1.1" H "\r\n", "HEAD /file HTTP/1.1" H "\r\n",
        "HEAD /error HTTP/1.1" H "\r\n", "HEAD /stream HTTP/1.1" H "\r\n"};
    static const int status[] = {200, 206, 404, 200};

    for (size_t i = 0; i < COUNT(heads); i++) {
        peer_say(&p, heads[i]);
        auto_answer a = peer_answer(&p, HTTP_HEAD);
        assert_int_equal(a.status, status[i]);
        assert_int_equal(a.body.len, 0);
    }

    peer_say(&p, "GET /file HTTP/1.1" H "\r\n");
    auto_answer a = peer_answer(&p, HTTP_GET);
    assert_true(answer_is(&a, 206, "34567"));

    peer_say(&p, "DELETE /empty HTTP/1.1" H "\r\n");
    auto_answer b = peer_answer(&p, HTTP_DELETE);
    assert_true(answer_is(&b, 204, ""));

    peer_say(&p, "GET /hello HTTP/1.1" H "\r\n");
    auto_answer c = peer_answer(&p, HTTP_GET);
    assert_true(answer_is(&c, 200, "hello"));
}

static void test_errors_are_json_and_keep_secrets(void **state)
{
    (void)state;
    auto_answer a = ask("GET /error HTTP/1.1" H "\r\n", HTTP_GET);
    assert_true(answer_is(&a, 404,
                          "{\"error\":{\"code\":\"not_found\",\"message\":\"no sandbox "
                          "\\\"x\\ny\\\"\",\"details\":{}}}\n"));
    assert_string_equal(a.type, "application/json");
    auto_answer b = ask("GET /error?details HTTP/1.1" H "\r\n", HTTP_GET);
    assert_true(answer_has(&b, "\"details\":{\"field\":\"timeout_s\"}}}"));

    static const char *const inside[] = {"GET /error?internal HTTP/1.1" H "\r\n",
                                         "GET /error?protocol HTTP/1.1" H "\r\n"};
    for (size_t i = 0; i < COUNT(inside); i++) {
        auto_answer c = ask(inside[i], HTTP_GET);
        assert_int_equal(c.status, i ? 502 : 500);
        assert_null(strstr(buf_cstr(&c.body), "secret"));
        assert_null(strstr(buf_cstr(&c.body), "Input/output"));
        assert_true(answer_has(&c, c.id)); /* what to look for in the log */
    }

    auto_answer none = ask("GET /nothing HTTP/1.1" H "\r\n", HTTP_GET);
    assert_int_equal(none.status, 500);
    assert_true(answer_has(&none, "\"code\":\"internal\""));
}

static void test_an_answer_that_breaks_off_is_noticed(void **state)
{
    (void)state;
    auto_answer a = ask("GET /abort HTTP/1.1" H "\r\n", HTTP_GET);
    assert_int_equal(a.status, 200);
    assert_false(a.complete);
    auto_answer b = ask("GET /abort?chunked HTTP/1.1" H "\r\n", HTTP_GET);
    assert_int_equal(b.status, 200);
    assert_false(b.complete);
    auto_answer c = ask("GET /abort?error HTTP/1.1" H "\r\n", HTTP_GET);
    assert_int_equal(c.status, 200);
    assert_false(c.complete);
}

static void test_a_body_nobody_reads_is_skipped_or_ends_the_connection(void **state)
{
    (void)state;
    auto_peer p = peer_dial(&t);
    static char body[200 << 10];

    memset(body, 'x', sizeof body);
    peer_say(&p, "POST /ignore HTTP/1.1" H "Content-Length: 60000\r\n\r\n");
    peer_put(&p, body, 60000);
    auto_answer a = peer_answer(&p, HTTP_POST);
    assert_true(answer_is(&a, 200, "ignored"));
    assert_true(a.keep_alive);

    peer_say(&p, "POST /ignore HTTP/1.1" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    peer_say(&p, "0\r\n\r\n");
    auto_answer b = peer_answer(&p, HTTP_POST);
    assert_true(answer_is(&b, 200, "ignored"));

    peer_say(&p, "GET /hello HTTP/1.1" H "\r\n");
    auto_answer c = peer_answer(&p, HTTP_GET);
    assert_true(answer_is(&c, 200, "hello"));

    /* More than that is not worth it, and the answer still arrives. */
    peer_say(&p, "POST /ignore HTTP/1.1" H "Content-Length: 204800\r\n\r\n");
    peer_put(&p, body, sizeof body);
    auto_answer d = peer_answer(&p, HTTP_POST);
    assert_true(answer_is(&d, 200, "ignored"));
    assert_false(d.keep_alive);
    assert_true(peer_at_end(&p));
}

static void test_bad_heads_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
        const char *part;
    } bad[] = {
        {"nonsense\r\n\r\n", 400, "\"code\":\"invalid\""},
        {"GET / HTTP/1.1\r\n\r\n", 400, "host"},
        {"GET / HTTP/1.1" H "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "invalid"},
        {"GET / HTTP/1.1" H "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400,
         "invalid"},
        {"GET / HTTP/2.0" H "\r\n", 505, "invalid"},
        {"GET / HTTP/1.2" H "\r\n", 505, "invalid"},
        {"BREW / HTTP/1.1" H "\r\n", 405, "method_not_allowed"},
        {"\x16\x03\x01\x02\x01\x03\x03\r\n", 400, "invalid"},
        {"GET / HTTP/1.1\nHost: x\n\n", 400, "invalid"},
        {"POST /echo HTTP/1.1" H "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "invalid"},
    };

    for (size_t i = 0; i < COUNT(bad); i++) {
        auto_peer p = peer_dial(&t);
        peer_say(&p, bad[i].text);
        auto_answer a = peer_answer(&p, HTTP_GET);
        if (a.status != bad[i].status)
            fail_msg("%s: status %d", bad[i].text, a.status);
        assert_true(answer_has(&a, bad[i].part));
        assert_false(a.keep_alive);
        assert_true(peer_at_end(&p));
        if (a.status == 405)
            assert_non_null(strstr(a.allow, "GET, HEAD"));
    }
}

static void test_heads_that_are_too_large_are_refused(void **state)
{
    (void)state;
    auto_buf text = BUF_INIT(1u << 20);
    buf_puts(&text, "GET /");
    for (int i = 0; i < 9000; i++)
        buf_putc(&text, 'a');
    buf_puts(&text, " HTTP/1.1" H "\r\n");
    auto_answer a = ask(buf_cstr(&text), HTTP_GET);
    assert_int_equal(a.status, 414);

    buf_clear(&text);
    buf_puts(&text, "GET / HTTP/1.1" H "X-Long: ");
    for (int i = 0; i < 40000; i++)
        buf_putc(&text, 'a');
    auto_answer b = ask(buf_cstr(&text), HTTP_GET);
    assert_int_equal(b.status, 431);

    buf_clear(&text);
    buf_puts(&text, "GET / HTTP/1.1" H);
    for (int i = 0; i < 101; i++)
        buf_printf(&text, "X-%d: y\r\n", i);
    buf_puts(&text, "\r\n");
    auto_answer c = ask(buf_cstr(&text), HTTP_GET);
    assert_int_equal(c.status, 431);

    /* The answer arrives even though much more was sent than was read. */
    auto_peer p = peer_dial(&t);
    buf_clear(&text);
    for (int i = 0; i < 400000; i++)
        buf_putc(&text, 'a');
    peer_put(&p, text.data, text.len);
    auto_answer d = peer_answer(&p, HTTP_GET);
    assert_int_equal(d.status / 100, 4);
}

static void test_a_client_that_leaves_is_noticed(void **state)
{
    (void)state;
    atomic_store(&gate.abandoned, 0);
    struct peer p = peer_dial(&t);
    peer_say(&p, "GET /gate HTTP/1.1" H "\r\n");
    gate_wait_for(&gate, 1);
    peer_done(&p);

    for (int i = 0; i < 2000 && !atomic_load(&gate.abandoned); i++)
        usleep(5000);
    assert_int_equal(atomic_load(&gate.abandoned), 1);

    /* In the middle of a body, too. */
    p = peer_dial(&t);
    peer_say(&p, "POST /echo HTTP/1.1" H "Content-Length: 100\r\n\r\nabc");
    peer_done(&p);

    struct server_stats stats;
    for (int i = 0; i < 2000; i++) {
        server_get_stats(t.server, &stats);
        if (!stats.connections)
            break;
        usleep(5000);
    }
    assert_int_equal(stats.connections, 0);
}

static void test_a_websocket_takes_the_connection_over(void **state)
{
    (void)state;
    auto_peer p = peer_dial(&t);
    peer_say(&p, "GET /ws HTTP/1.1" H
                 "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                 "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nearly");
    while (!p.in.len || !memmem(p.in.data, p.in.len, "\r\n\r\n", 4))
        assert_true(peer_more(&p));
    const char *text = buf_cstr(&p.in);
    assert_non_null(strstr(text, "HTTP/1.1 101 "));
    assert_non_null(strstr(text, "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
    assert_non_null(strstr(text, "Sec-WebSocket-Protocol: chat\r\n"));

    while (!memmem(p.in.data, p.in.len, "\r\n\r\nearly", 9))
        assert_true(peer_more(&p));
    peer_say(&p, "late");
    while (!memmem(p.in.data, p.in.len, "earlylate", 9))
        assert_true(peer_more(&p));
    auto_answer a = ask("GET /ws HTTP/1.1" H "\r\n", HTTP_GET);
    assert_int_equal(a.status, 400);
}

int main(void)
{
#define ROW(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        ROW(test_a_connection_serves_many_requests),
        ROW(test_pipelined_requests_are_answered_in_order),
        ROW(test_bytes_may_come_one_by_one),
        ROW(test_large_bodies_arrive_whole),
        ROW(test_chunks_in_both_directions),
        ROW(test_http_1_0_gets_no_chunks),
        ROW(test_who_expects_to_be_asked_is_asked),
        ROW(test_head_is_get_without_a_body),
        ROW(test_errors_are_json_and_keep_secrets),
        ROW(test_an_answer_that_breaks_off_is_noticed),
        ROW(test_a_body_nobody_reads_is_skipped_or_ends_the_connection),
        ROW(test_bad_heads_are_refused),
        ROW(test_heads_that_are_too_large_are_refused),
        ROW(test_a_client_that_leaves_is_noticed),
        ROW(test_a_websocket_takes_the_connection_over),
    };

    return cmocka_run_group_tests_name("server", tests, NULL, NULL);
}
