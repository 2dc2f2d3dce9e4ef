/* The proxy between a client and a server behind two pipes, where time matters. What it does with
 * well and badly behaved servers in a real sandbox is tested by tests/api/test_ports.py. */
#include "net/proxy.h"
#include "net_peer.h"

#include <sys/ioctl.h>

#define H    "\r\nHost: x\r\n"
#define IDLE (300 * NS_PER_MS)
#define WS_UP                                                                                      \
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"                   \
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
#define WS_YES                                                                                     \
    "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"                              \
    "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"

/* What the server behind says at once; it reads nothing and closes nothing unless told so. */
struct behind {
    const char *says;
    int closes, reads;
    struct buf heard;
};

static struct behind behind;
static struct test_server t;

static void answer_headers(struct request *r, const struct http_head *answer, void *arg)
{
    (void)arg;
    char value[80];
    copy_header(answer, "X-Extra", value, sizeof value);
    reply_header(r, "X-Extra", value);
}

static void *reader(void *fd)
{
    uint8_t *to;
    ssize_t n;
    while ((to = buf_reserve(&behind.heard, 65536)) && (n = read(*(int *)fd, to, 65536)) > 0)
        behind.heard.len += (size_t)n;
    return NULL;
}

static void handler(struct request *r, void *arg)
{
    (void)arg;
    int in[2], out[2];
    struct pd_err e;
    pthread_t thread;
    auto_buf head = BUF_INIT(1024);

    buf_printf(&head, "%s /behind HTTP/1.1\r\nHost: behind\r\n", http_method_name(r->head.method));
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
        return;
    if (behind.reads)
        pthread_create(&thread, NULL, reader, &in[0]);

    (void)!write(out[1], behind.says, strlen(behind.says));
    if (behind.closes)
        fd_done(&out[1]);

    struct proxy p = {
        .to = in[1], .from = out[0], .head = &head, .answer = answer_headers, .idle_ns = IDLE};
    if (proxy_pass(r, &p, &e) < 0)
        (void)reply_error(r, &e);

    fd_done(&in[1]);
    if (behind.reads)
        pthread_join(thread, NULL);
    fd_done(&in[0]);
    fd_done(&out[0]);
    fd_done(&out[1]);
}

static int begin(void **state)
{
    (void)state;
    struct server_config config = {.handle = handler};
    behind = (struct behind){.says = "", .heard = BUF_INIT(64u << 20)};
    server_begin(&t, &config);
    return 0;
}

static int end(void **state)
{
    (void)state;
    server_end(&t);
    buf_done(&behind.heard);
    return 0;
}

static void wait_for(struct peer *p, const char *text)
{
    do
        assert_true(peer_more(p));
    while (!memmem(p->in.data, p->in.len, text, strlen(text)));
}

static struct answer ask(struct peer *p, const char *text, enum http_method m)
{
    peer_say(p, text);
    return peer_answer(p, m);
}

static void test_a_silent_server_is_a_time_out(void **state)
{
    (void)state;
    auto_peer p = peer_dial(&t);
    uint64_t began = clock_now();
    auto_answer a = ask(&p, "GET / HTTP/1.1" H "\r\n", HTTP_GET);
    assert_int_equal(a.status, 504);
    assert_true(answer_has(&a, "said nothing"));
    assert_true(clock_now() - began >= IDLE);
}

static void test_one_that_reads_nothing_too(void **state)
{
    (void)state;
    auto_peer p = peer_dial(&t);
    auto_buf text = BUF_INIT(1u << 20);
    buf_puts(&text, "POST / HTTP/1.1" H "Content-Length: 500000\r\n\r\n");
    memset(buf_reserve(&text, 200000), 'x', 200000);
    text.len += 200000;
    peer_put(&p, text.data, text.len);
    auto_answer a = peer_answer(&p, HTTP_POST);
    assert_int_equal(a.status, 504);
    assert_false(a.keep_alive);
}

static void test_a_silent_client_is_told_so(void **state)
{
    (void)state;
    behind.reads = 1;
    auto_peer p = peer_dial(&t);
    auto_answer a = ask(&p, "POST / HTTP/1.1" H "Content-Length: 10\r\n\r\nhalf", HTTP_POST);
    assert_int_equal(a.status, 408);
    assert_true(peer_at_end(&p));
    assert_non_null(memmem(behind.heard.data, behind.heard.len, "\r\n\r\nhalf", 8));
}

static void test_an_answer_that_stops_is_broken_off(void **state)
{
    (void)state;
    static const char *const says[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf",
        "HTTP/1.1 200 OK\r\n\r\nhalf",
    };

    for (size_t i = 0; i < sizeof says / sizeof *says; i++) {
        behind.says = says[i];
        auto_peer p = peer_dial(&t);
        auto_answer a = ask(&p, "GET / HTTP/1.1" H "\r\n", HTTP_GET);
        assert_int_equal(a.status, 200);
        assert_false(a.complete);
        buf_clear(&p.in);
        assert_true(peer_at_end(&p));
    }
}

static void test_the_head_does_not_wait_for_the_body(void **state)
{
    (void)state;
    behind.says = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nX-Extra: now\r\n\r\n";

    /* A head that waited for the body would come after IDLE, each time; a busy machine may delay
     * one that does not wait. */
    uint64_t quickest = UINT64_MAX;
    for (int i = 0; i < 20 && quickest >= IDLE; i++) {
        auto_peer p = peer_dial(&t);
        uint64_t began = clock_now();
        peer_say(&p, "GET / HTTP/1.1" H "\r\n");
        wait_for(&p, "\r\n\r\n");
        if (clock_now() - began < quickest)
            quickest = clock_now() - began;
        assert_non_null(memmem(p.in.data, p.in.len, "X-Extra: now", 12));
    }
    assert_true(quickest < IDLE);
}

static void test_a_short_body_is_passed_whole(void **state)
{
    (void)state;
    behind.says = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndoneHTTP/1.1 200 OK\r\n";
    behind.reads = 1;
    auto_peer p = peer_dial(&t);
    auto_answer a = ask(&p, "POST / HTTP/1.1" H "Content-Length: 3\r\n\r\nabc", HTTP_POST);
    assert_true(answer_is(&a, 200, "done"));
    /* The connection goes on, and what came behind the answer is gone. */
    auto_answer b = ask(&p, "GET / HTTP/1.1" H "\r\n", HTTP_GET);
    assert_true(answer_is(&b, 200, "done"));
}

static void test_a_malformed_body_of_the_client(void **state)
{
    (void)state;
    behind.reads = 1;
    auto_peer p = peer_dial(&t);
    auto_answer a =
        ask(&p, "POST / HTTP/1.1" H "Transfer-Encoding: chunked\r\n\r\n2\r\nokzz\r\n", HTTP_POST);
    assert_int_equal(a.status, 400);
    assert_true(peer_at_end(&p));
    assert_null(memmem(behind.heard.data, behind.heard.len, "0\r\n\r\n", 5));
}

static int active_becomes(unsigned wanted, uint64_t within)
{
    struct server_stats stats;
    deadline d = deadline_in(within);
    do {
        server_get_stats(t.server, &stats);
        if (stats.active == wanted)
            return 1;
        usleep(1000);
    } while (!deadline_passed(d));
    return 0;
}

static void test_a_client_that_leaves_ends_it(void **state)
{
    (void)state;
    /* Without the client's end the request would last for IDLE, each time. */
    int ended = 0;

    for (int i = 0; i < 20 && !ended; i++) {
        uint64_t began = clock_now();
        auto_peer p = peer_dial(&t);
        peer_say(&p, "GET / HTTP/1.1" H "\r\n");
        if (!active_becomes(1, 2 * NS_PER_S))
            continue; /* it was over before it was looked at */
        fd_done(&p.fd);
        assert_true(active_becomes(0, PATIENCE));
        ended = clock_now() - began < IDLE;
    }
    assert_true(ended);
}

static void test_a_tunnel_that_rests_too_long_ends(void **state)
{
    (void)state;
    behind.says = WS_YES "first";
    behind.reads = 1;
    auto_peer p = peer_dial(&t);
    peer_say(&p, "GET / HTTP/1.1" H WS_UP "\r\nearly");
    wait_for(&p, "first");
    buf_clear(&p.in);
    assert_true(peer_at_end(&p));
    fd_done(&p.fd);
    server_end(&t); /* joins the reader */
    assert_non_null(memmem(behind.heard.data, behind.heard.len, "\r\n\r\nearly", 9));
}

static void test_a_tunnel_ends_with_either_side(void **state)
{
    (void)state;
    behind.says = WS_YES "last";
    behind.closes = 1;
    auto_peer p = peer_dial(&t);
    peer_say(&p, "GET / HTTP/1.1" H WS_UP "\r\n");
    wait_for(&p, "last");
    buf_clear(&p.in);
    assert_true(peer_at_end(&p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, begin, end)
        T(test_a_silent_server_is_a_time_out),       T(test_one_that_reads_nothing_too),
        T(test_a_silent_client_is_told_so),          T(test_an_answer_that_stops_is_broken_off),
        T(test_the_head_does_not_wait_for_the_body), T(test_a_short_body_is_passed_whole),
        T(test_a_malformed_body_of_the_client),      T(test_a_client_that_leaves_ends_it),
        T(test_a_tunnel_that_rests_too_long_ends),   T(test_a_tunnel_ends_with_either_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
