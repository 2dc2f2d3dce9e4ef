#include "server_routes.h"

#include "net/client.h"

#include <netinet/tcp.h>

static struct gate gate = GATE_INIT;
static struct test_server t;
static char dir[] = "/tmp/test-client-XXXXXX", cert[128], key[128];

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    make_certificate(dir, cert, key);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(cert);
    unlink(key);
    return rmdir(dir);
}

static int begin(void **state)
{
    (void)state;
    struct server_config config = {.handle = test_handler, .arg = &gate};
    gate_set(&gate, 0);
    server_begin(&t, &config);
    return 0;
}

static int begin_tls(void **state)
{
    struct pd_err e;
    t.tls = tls_server_new(cert, key, &e);
    return t.tls ? begin(state) : -1;
}

static int end(void **state)
{
    (void)state;
    gate_set(&gate, 1);
    server_end(&t);
    return 0;
}

static struct client *dial_with(struct tls_context *tls, struct pd_err *e)
{
    struct url_server where = {.tls = tls != NULL, .host = "127.0.0.1"};
    where.port = ntohs(t.address.sin_port);
    return client_connect(&where, tls, deadline_in(PATIENCE), e);
}

static struct client *dial(void)
{
    struct pd_err e;
    struct client *c = dial_with(NULL, &e);
    if (!c)
        fail_msg("%s", e.msg);
    return c;
}

/* One whole exchange; the status, and the body in *ret. */
static int ask(struct client *c, enum http_method m, const char *target, const void *body,
               size_t len, struct buf *ret)
{
    struct pd_err e;
    const struct http_head *h = NULL;
    buf_clear(ret);
    if (client_begin(c, m, slice_of(target), body ? len : CLIENT_NO_BODY, &e) ||
        client_write(c, body, len, &e) || client_end(c, &e) ||
        client_read_head(c, &h, deadline_in(PATIENCE), &e) ||
        client_read_all(c, ret, ret->max, deadline_in(PATIENCE), &e))
        fail_msg("%s: %s", target, e.msg);
    return h ? h->status : -1;
}

static void test_requests_follow_each_other(void **state)
{
    (void)state;
    struct client *c = dial();
    auto_buf got = BUF_INIT(64u << 20);
    assert_int_equal(ask(c, HTTP_GET, "/hello", NULL, 0, &got), 200);
    assert_string_equal(buf_cstr(&got), "hello");
    assert_true(client_is_reusable(c));
    assert_int_equal(ask(c, HTTP_HEAD, "/hello", NULL, 0, &got), 200);
    assert_int_equal(got.len, 0);
    assert_int_equal(ask(c, HTTP_DELETE, "/empty", NULL, 0, &got), 204);
    assert_int_equal(ask(c, HTTP_POST, "/echo", "body", 4, &got), 200);
    assert_string_equal(buf_cstr(&got), "body");
    assert_int_equal(ask(c, HTTP_POST, "/echo", "", 0, &got), 200);
    assert_int_equal(got.len, 0);

    static char big[3 << 20];
    memset(big, 'b', sizeof big);
    assert_int_equal(ask(c, HTTP_PUT, "/pipes", big, sizeof big, &got), 200);
    assert_int_equal(got.len, sizeof big);
    assert_memory_equal(got.data, big, sizeof big);
    assert_int_equal(ask(c, HTTP_GET, "/error", NULL, 0, &got), 404);
    assert_true(client_is_reusable(c));

    struct server_stats stats;
    server_get_stats(t.server, &stats);
    assert_int_equal(stats.accepted, 1);
    client_free(c);
}

static void test_chunks_are_sent_and_read(void **state)
{
    (void)state;
    struct client *c = dial();
    struct pd_err e;
    const struct http_head *h;
    auto_buf sent = BUF_INIT(1u << 20), got = BUF_INIT(1u << 20);
    assert_int_equal(client_begin(c, HTTP_POST, slice_of("/stream"), CLIENT_CHUNKED, &e), 0);

    for (int i = 0; i < 100; i++) {
        char piece[32];
        int n = snprintf(piece, sizeof piece, "piece %d;", i);
        assert_int_equal(client_write(c, piece, (size_t)n, &e), 0);
        buf_put(&sent, piece, (size_t)n);
    }

    assert_int_equal(client_end(c, &e), 0);
    assert_int_equal(client_read_head(c, &h, deadline_in(PATIENCE), &e), 0);
    assert_int_equal(h->body, HTTP_BODY_CHUNKED);

    char piece[7];
    ssize_t n;
    while ((n = client_read(c, piece, sizeof piece, deadline_in(PATIENCE), &e)) > 0)
        buf_put(&got, piece, (size_t)n);

    assert_int_equal(n, 0);
    assert_string_equal(buf_cstr(&got), buf_cstr(&sent));
    assert_true(client_is_reusable(c));
    assert_int_equal(ask(c, HTTP_GET, "/hello", NULL, 0, &got), 200);
    client_free(c);
}

static void test_waiting_has_an_end_and_can_go_on(void **state)
{
    (void)state;
    struct client *c = dial();
    struct pd_err e;
    const struct http_head *h;

    assert_int_equal(client_begin(c, HTTP_GET, slice_of("/gate"), CLIENT_NO_BODY, &e), 0);
    assert_int_equal(client_end(c, &e), 0);
    assert_int_equal(client_read_head(c, &h, deadline_in(50 * NS_PER_MS), &e), -1);
    assert_int_equal(e.code, PD_TIMEOUT);

    gate_set(&gate, 1);
    assert_int_equal(client_read_head(c, &h, deadline_in(PATIENCE), &e), 0);
    auto_buf got = BUF_INIT(100);
    assert_int_equal(client_read_all(c, &got, 3, deadline_in(PATIENCE), &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
    client_free(c);
}

static void test_headers_are_checked(void **state)
{
    (void)state;
    struct client *c = dial();
    struct pd_err e;

    assert_int_equal(client_header(c, slice_of("X"), slice_of("a\r\nY: b"), &e), -1);
    assert_int_equal(client_header(c, slice_of("X Y"), slice_of("a"), &e), -1);
    assert_int_equal(client_header(c, slice_of(""), slice_of("a"), &e), -1);
    assert_int_equal(client_begin(c, HTTP_GET, slice_of("/a b"), CLIENT_NO_BODY, &e), -1);
    assert_int_equal(client_begin(c, HTTP_GET, slice_of("/a\r\nX: y"), CLIENT_NO_BODY, &e), -1);

    /* Two hosts would be refused by the server, and so would a second length. */
    assert_int_equal(client_header(c, slice_of("Host"), slice_of("other"), &e), 0);
    assert_int_equal(client_header(c, slice_of("Content-Length"), slice_of("77"), &e), 0);

    auto_buf got = BUF_INIT(1000);
    assert_int_equal(ask(c, HTTP_POST, "/echo", "abc", 3, &got), 200);
    /* They were for that one request. */
    assert_int_equal(ask(c, HTTP_POST, "/echo", "abc", 3, &got), 200);

    /* A body is as long as was said. */
    assert_int_equal(client_begin(c, HTTP_POST, slice_of("/echo"), 3, &e), 0);
    assert_int_equal(client_write(c, "abcd", 4, &e), -1);
    client_free(c);
}

static void test_an_early_answer_can_be_read(void **state)
{
    (void)state;
    struct client *c = dial();
    struct pd_err e;
    const struct http_head *h;
    static char piece[1 << 20];
    assert_int_equal(client_begin(c, HTTP_POST, slice_of("/echo?small"), 64u << 20, &e), 0);

    for (int i = 0; i < 64 && client_write(c, piece, sizeof piece, &e) == 0; i++)
        ;
    assert_int_equal(client_read_head(c, &h, deadline_in(PATIENCE), &e), 0);
    assert_int_equal(h->status, 413);
    assert_false(client_is_reusable(c));
    client_free(c);
}

static void test_nobody_there(void **state)
{
    (void)state;
    struct pd_err e;
    struct url_server where = {.host = "127.0.0.1"};

    /* It does not listen, and as long as it is open nobody else has the port. */
    auto_fd taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;

    assert_int_equal(bind(taken, (struct sockaddr *)&a, sizeof a), 0);
    getsockname(taken, (struct sockaddr *)&a, &len);
    where.port = ntohs(a.sin_port);
    assert_null(client_connect(&where, NULL, deadline_in(PATIENCE), &e));
    assert_int_equal(e.code, PD_BAD_GATEWAY);
    assert_int_equal(e.sys, ECONNREFUSED);

    struct url_server file = {.socket = "/nonexistent/sock"};
    assert_null(client_connect(&file, NULL, deadline_in(PATIENCE), &e));
    assert_non_null(strstr(e.msg, "/nonexistent/sock"));
}

static int option(struct client *c, int level, int name)
{
    int value = -1;
    socklen_t size = sizeof value;
    assert_int_equal(getsockopt(conn_fd(client_conn(c)), level, name, &value, &size), 0);
    return value;
}

/* A server that is gone without a word is noticed within some minutes, not after hours. */
static void test_a_silent_server_is_asked_whether_it_lives(void **state)
{
    (void)state;
    struct client *c = dial();
    assert_int_equal(option(c, SOL_SOCKET, SO_KEEPALIVE), 1);
    int lost_after_s = option(c, IPPROTO_TCP, TCP_KEEPIDLE) +
                       option(c, IPPROTO_TCP, TCP_KEEPINTVL) * option(c, IPPROTO_TCP, TCP_KEEPCNT);
    assert_in_range(lost_after_s, 30, 180);
    client_free(c);
}

static void test_over_tls(void **state)
{
    (void)state;
    struct pd_err e;
    struct tls_context *tls = tls_client_new(cert, &e), *stranger = tls_client_new(NULL, &e);
    assert_true(tls && stranger);

    struct client *c = dial_with(tls, &e);
    assert_non_null(c);
    auto_buf got = BUF_INIT(64u << 20);
    static char big[2 << 20];
    memset(big, 'b', sizeof big);

    for (int i = 0; i < 3; i++) {
        assert_int_equal(ask(c, HTTP_GET, "/hello", NULL, 0, &got), 200);
        assert_string_equal(buf_cstr(&got), "hello");
        usleep(5000); /* parked in between */
        assert_int_equal(ask(c, HTTP_GET, "/file", NULL, 0, &got), 206);
        assert_string_equal(buf_cstr(&got), "34567");
        assert_int_equal(ask(c, HTTP_PUT, "/pipes", big, sizeof big, &got), 200);
        assert_int_equal(got.len, sizeof big);
    }
    client_free(c);

    /* Two requests in one record: the second one is in no socket any more. */
    struct client *pipelined = dial_with(tls, &e);
    static const char two[] = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
                              "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_int_equal(conn_write(client_conn(pipelined), two, sizeof two - 1, PATIENCE, &e), 0);

    size_t hellos = 0;
    buf_clear(&got);
    while (hellos < 2) {
        char in[4096];
        ssize_t n = client_raw_read(pipelined, in, sizeof in, deadline_in(PATIENCE), &e);
        assert_true(n > 0);
        buf_put(&got, in, (size_t)n);
        hellos = 0;
        for (const char *at = buf_cstr(&got); (at = strstr(at, "\r\n\r\nhello")); at++)
            hellos++;
    }
    client_free(pipelined);

    /* Somebody who does not trust the certificate gets nowhere. */
    c = dial_with(stranger, &e);
    assert_non_null(c);
    assert_int_equal(client_begin(c, HTTP_GET, slice_of("/hello"), CLIENT_NO_BODY, &e), 0);
    assert_int_equal(client_end(c, &e), -1);
    assert_int_equal(e.code, PD_DENIED);

    client_free(c);
    tls_context_free(tls);
    tls_context_free(stranger);
}

/* A server behind two pipes, which says what it was told to. */
struct script {
    int in, out;
    const char *says;
    char heard[4096];
};

static void *script_run(void *p)
{
    struct script *s = p;
    size_t len = 0;
    while (!memmem(s->heard, len, "\r\n\r\n", 4)) {
        ssize_t n = read(s->in, s->heard + len, sizeof s->heard - 1 - len);
        if (n <= 0)
            break;
        len += (size_t)n;
    }

    s->heard[len] = 0;
    (void)fd_write_all(s->out, s->says, strlen(s->says));
    close(s->in);
    close(s->out);
    return NULL;
}

/* Asks the script; the status, or -1 with *e. */
static int ask_script(const char *says, struct buf *got, char *heard, struct pd_err *e)
{
    int there[2], back[2];
    assert_int_equal(pipe2(there, O_CLOEXEC), 0);
    assert_int_equal(pipe2(back, O_CLOEXEC), 0);
    struct script s = {.in = there[0], .out = back[1], .says = says};
    pthread_t thread;
    pthread_create(&thread, NULL, script_run, &s);

    struct client *c = client_new(conn_new_pair(back[0], there[1], e), "box:8080", e);
    const struct http_head *h;
    int status = -1;
    buf_clear(got);

    if (client_begin(c, HTTP_GET, slice_of("/x?y=z"), CLIENT_NO_BODY, e) == 0 &&
        client_end(c, e) == 0 && client_read_head(c, &h, deadline_in(PATIENCE), e) == 0 &&
        client_read_all(c, got, 1000, deadline_in(PATIENCE), e) == 0) {
        status = h->status;
        if (h->body == HTTP_BODY_TO_EOF)
            assert_false(client_is_reusable(c));
    }

    pthread_join(thread, NULL);
    client_free(c);
    snprintf(heard, 4096, "%s", s.heard);
    return status;
}

static void test_what_servers_say_over_pipes(void **state)
{
    (void)state;
    static const struct {
        const char *says;
        int status;
        const char *body;
        enum pd_code code;
    } rows[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, "abc", 0},
        {"HTTP/1.1 200 OK\r\n\r\nto the end", 200, "to the end", 0},
        {"HTTP/1.0 200 OK\r\n\r\nold", 200, "old", 0},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
         "HTTP/1.1 201 Created\r\nContent-Length: 1\r\n\r\nx",
         201, "x", 0},
        {"HTTP/1.1 304 Not Modified\r\n\r\n", 304, "", 0},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200, "abc",
         0},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", -1, "", PD_LOST},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", -1, "", PD_LOST},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", -1, "", PD_PROTOCOL},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", -1, "", PD_LOST},
        {"SSH-2.0-OpenSSH\r\n", -1, "", PD_PROTOCOL},
        {"", -1, "", PD_LOST},
        {"HTTP/1.1 200", -1, "", PD_LOST},
    };
    auto_buf got = BUF_INIT(2000);

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pd_err e = {0};
        static char heard[4096];
        int status = ask_script(rows[i].says, &got, heard, &e);
        if (status != rows[i].status || (status < 0 && e.code != rows[i].code))
            fail_msg("row %zu: status %d, %s", i, status, e.msg);
        if (status >= 0)
            assert_string_equal(buf_cstr(&got), rows[i].body);
        assert_string_equal(heard, "GET /x?y=z HTTP/1.1\r\nHost: box:8080\r\n\r\n");
    }
}

int main(void)
{
#define ROW(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        ROW(test_requests_follow_each_other),
        ROW(test_chunks_are_sent_and_read),
        ROW(test_waiting_has_an_end_and_can_go_on),
        ROW(test_headers_are_checked),
        ROW(test_an_early_answer_can_be_read),
        cmocka_unit_test(test_nobody_there),
        ROW(test_a_silent_server_is_asked_whether_it_lives),
        cmocka_unit_test_setup_teardown(test_over_tls, begin_tls, end),
        cmocka_unit_test(test_what_servers_say_over_pipes),
    };
    return cmocka_run_group_tests_name("client", tests, setup, teardown);
}
