/* Requests of a broker against a server of the test's own, which notes what it was sent and answers
 * with bytes that the test chose; and against one with TLS. */
#include "server_routes.h"

#include "engine/http.h"

#include <sys/un.h>

static char dir[] = "/tmp/test-engine-http-XXXXXX", sock_path[128], cert[128], key[128];

/* One connection at a time; each request gets `answer`. */
static struct script {
    int listener;
    pthread_t thread;
    const char *answer;
    size_t more; /* bytes of 'x' behind it */
    int silent;  /* never answers */
    int closes;  /* ends the connection behind its answer */
    struct buf seen;
    int connections;
} script = {.seen = BUF_INIT(1 << 20)};

/* Reads one request: its head, and as many bytes as its Content-Length says. What was seen before
 * is forgotten when it begins. */
static int read_request(int fd)
{
    const char *end = NULL;

    for (int first = 1;; first = 0) {
        char piece[4096];
        ssize_t n = read(fd, piece, sizeof piece);
        if (n <= 0)
            return -1;
        if (first)
            buf_clear(&script.seen);
        buf_put(&script.seen, piece, (size_t)n);

        const char *text = buf_cstr(&script.seen);
        end = strstr(text, "\r\n\r\n");
        if (!end)
            continue;
        const char *length = strcasestr(text, "content-length: ");
        size_t want = length && length < end ? strtoul(length + 16, NULL, 10) : 0;
        if (script.seen.len >= (size_t)(end + 4 - text) + want)
            return 0;
    }
}

static void *serve_script(void *arg)
{
    (void)arg;

    for (;;) {
        int fd = accept(script.listener, NULL, NULL);
        if (fd < 0)
            return NULL;
        script.connections++;

        while (read_request(fd) == 0) {
            if (script.silent)
                continue;
            (void)!write(fd, script.answer, strlen(script.answer));
            static char xs[4096];
            memset(xs, 'x', sizeof xs);
            for (size_t left = script.more; left;) {
                ssize_t n = send(fd, xs, left < sizeof xs ? left : sizeof xs, MSG_NOSIGNAL);
                if (n <= 0)
                    break;
                left -= (size_t)n;
            }
            if (script.closes)
                break;
        }

        close(fd);
    }
}

static int begin(void **state)
{
    (void)state;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", sock_path);
    script.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unlink(sock_path);

    assert_int_equal(bind(script.listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(script.listener, 8), 0);
    script.answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    script.more = 0;
    script.silent = script.closes = script.connections = 0;
    buf_clear(&script.seen);
    return pthread_create(&script.thread, NULL, serve_script, NULL);
}

static int end(void **state)
{
    (void)state;
    shutdown(script.listener, SHUT_RDWR);
    pthread_join(script.thread, NULL);
    close(script.listener);
    return unlink(sock_path);
}

static struct http *dial(void)
{
    struct pd_err e;
    struct http *h = http_new(&(struct http_place){.socket = sock_path}, &e);
    assert_non_null(h);
    return h;
}

static const char *seen(void)
{
    return buf_cstr(&script.seen);
}

static void test_requests_share_a_connection(void **state)
{
    (void)state;
    struct pd_err e;
    struct http *h = dial();
    auto_buf body = BUF_INIT(100);
    struct http_answer answer = {.body = &body};

    struct http_request get = {
        .method = "GET", .target = "/a?b=c", .deadline = deadline_in(PATIENCE)};
    assert_int_equal(http_ask(h, &get, &answer, &e), 0);
    assert_int_equal(answer.status, 200);
    assert_string_equal(buf_cstr(&body), "ok");
    assert_non_null(strstr(seen(), "GET /a?b=c HTTP/1.1\r\n"));

    buf_clear(&body);
    const char *headers[] = {"X-Registry-Auth: abc", NULL};
    struct http_request post = {.method = "POST",
                                .target = "/p",
                                .headers = headers,
                                .body = "{\"a\":1}",
                                .body_len = 7,
                                .deadline = deadline_in(PATIENCE)};
    assert_int_equal(http_ask(h, &post, &answer, &e), 0);
    assert_non_null(strstr(seen(), "POST /p HTTP/1.1\r\n"));
    assert_non_null(strstr(seen(), "Content-Type: application/json\r\n"));
    assert_non_null(strstr(seen(), "X-Registry-Auth: abc\r\n"));
    assert_non_null(strstr(seen(), "\r\n\r\n{\"a\":1}"));

    buf_clear(&body);
    script.answer = "HTTP/1.1 204 No Content\r\n\r\n";
    struct http_request del = {
        .method = "DELETE", .target = "/d", .deadline = deadline_in(PATIENCE)};
    assert_int_equal(http_ask(h, &del, &answer, &e), 0);
    assert_int_equal(answer.status, 204);
    assert_non_null(strstr(seen(), "DELETE /d HTTP/1.1\r\n"));

    /* A path is sent as it is: nobody makes another one of it on the way. */
    struct http_request up = {
        .method = "GET", .target = "/a/../b/./c%2fd", .deadline = deadline_in(PATIENCE)};
    assert_int_equal(http_ask(h, &up, &answer, &e), 0);
    assert_non_null(strstr(seen(), "GET /a/../b/./c%2fd HTTP/1.1\r\n"));

    /* And a GET behind them is a GET again. */
    assert_int_equal(http_ask(h, &get, &answer, &e), 0);
    assert_non_null(strstr(seen(), "GET /a?b=c"));
    assert_null(strstr(seen(), "Content-Length"));
    assert_int_equal(script.connections, 1);
    http_free(h);
}

static int take_some(void *context, const void *data, size_t len, struct pd_err *e)
{
    struct buf *got = context;
    return buf_put(got, data, len) < 0 ? pd_fail(e, PD_NO_SPACE, "enough") : 0;
}

static void test_a_good_body_is_streamed_and_an_error_is_collected(void **state)
{
    (void)state;
    struct pd_err e;
    struct http *h = dial();
    auto_buf body = BUF_INIT(100), got = BUF_INIT(200000);
    struct http_answer answer = {.body = &body};
    struct http_request r = {.method = "POST",
                             .target = "/pull",
                             .take = take_some,
                             .context = &got,
                             .deadline = deadline_in(PATIENCE)};

    script.answer = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n";
    script.more = 100000;
    assert_int_equal(http_ask(h, &r, &answer, &e), 0);
    assert_int_equal(got.len, 100000);
    assert_int_equal(body.len, 0);

    script.answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 14\r\n\r\n{\"message\":\"\"}";
    script.more = 0;
    assert_int_equal(http_ask(h, &r, &answer, &e), 0);
    assert_int_equal(answer.status, 404);
    assert_string_equal(buf_cstr(&body), "{\"message\":\"\"}");
    assert_int_equal(got.len, 100000);

    script.answer = "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n";
    script.more = 300000;
    assert_int_equal(http_ask(h, &r, &answer, &e), -1);
    assert_int_equal(e.code, PD_NO_SPACE);
    assert_string_equal(e.msg, "enough");
    http_free(h);
}

static void test_bodies_are_bounded(void **state)
{
    (void)state;
    struct pd_err e;
    struct http *h = dial();
    auto_buf body = BUF_INIT(100), got = BUF_INIT(200000);
    struct http_answer answer = {.body = &body};
    struct http_request r = {.method = "GET", .target = "/", .deadline = deadline_in(PATIENCE)};

    script.answer = "HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n";
    script.more = 101;
    assert_int_equal(http_ask(h, &r, &answer, &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);

    r.take = take_some;
    r.context = &got;
    r.stream_max = 50;
    assert_int_equal(http_ask(h, &r, &answer, &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
    http_free(h);
}

static void test_redirects_are_answers(void **state)
{
    (void)state;
    struct pd_err e;
    struct http *h = dial();
    auto_buf body = BUF_INIT(100);
    struct http_answer answer = {.body = &body};
    struct http_request r = {.method = "GET", .target = "/", .deadline = deadline_in(PATIENCE)};

    script.answer = "HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n";
    assert_int_equal(http_ask(h, &r, &answer, &e), 0);
    assert_int_equal(answer.status, 302);
    assert_null(strstr(seen(), "/other"));
    http_free(h);
}

static void test_silence_ends_at_the_deadline(void **state)
{
    (void)state;
    struct pd_err e;
    struct http *h = dial();
    auto_buf body = BUF_INIT(100);
    struct http_answer answer = {.body = &body};
    struct http_request r = {
        .method = "GET", .target = "/", .deadline = deadline_in(100 * NS_PER_MS)};

    script.silent = 1;
    assert_int_equal(http_ask(h, &r, &answer, &e), -1);
    assert_int_equal(e.code, PD_TIMEOUT);

    r.deadline = 0;
    assert_int_equal(http_ask(h, &r, &answer, &e), -1);
    assert_int_equal(e.code, PD_TIMEOUT);
    http_free(h);
}

static void test_half_an_answer_is_an_error(void **state)
{
    (void)state;
    struct pd_err e;
    struct http *h = dial();
    auto_buf body = BUF_INIT(100);
    struct http_answer answer = {.body = &body};
    struct http_request r = {.method = "GET", .target = "/", .deadline = deadline_in(PATIENCE)};

    script.answer = "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf";
    script.closes = 1;
    assert_int_equal(http_ask(h, &r, &answer, &e), -1);
    assert_int_equal(e.code, PD_BAD_GATEWAY);
    http_free(h);
}

static void test_nobody_there_names_the_socket(void **state)
{
    (void)state;
    struct pd_err e;
    struct http *h = http_new(&(struct http_place){.socket = "/nowhere/engine.sock"}, &e);
    assert_non_null(h);
    auto_buf body = BUF_INIT(100);
    struct http_answer answer = {.body = &body};
    struct http_request r = {.method = "GET", .target = "/", .deadline = deadline_in(PATIENCE)};

    assert_int_equal(http_ask(h, &r, &answer, &e), -1);
    assert_int_equal(e.code, PD_BAD_GATEWAY);
    assert_non_null(strstr(e.msg, "/nowhere/engine.sock"));
    http_free(h);

    assert_null(http_new(&(struct http_place){.base = "file:///etc/passwd"}, &e));
    assert_int_equal(e.code, PD_INVALID);
    assert_non_null(strstr(e.msg, "file:///etc/passwd"));
}

static void test_a_certificate_is_checked(void **state)
{
    (void)state;
    struct pd_err e;
    struct test_server t = {0};
    struct gate gate = GATE_INIT;
    struct server_config config = {.handle = test_handler, .arg = &gate};
    t.tls = tls_server_new(cert, key, &e);
    assert_non_null(t.tls);
    server_begin(&t, &config);

    char base[64];
    snprintf(base, sizeof base, "https://127.0.0.1:%d", ntohs(t.address.sin_port));
    auto_buf body = BUF_INIT(10000);
    struct http_answer answer = {.body = &body};
    struct http_request r = {.method = "GET", .target = "/", .deadline = deadline_in(PATIENCE)};

    struct http *h = http_new(&(struct http_place){.base = base}, &e);
    assert_non_null(h);
    assert_int_equal(http_ask(h, &r, &answer, &e), -1);
    assert_int_equal(e.code, PD_BAD_GATEWAY);
    http_free(h);

    h = http_new(&(struct http_place){.base = base, .ca_file = cert}, &e);
    assert_non_null(h);
    if (http_ask(h, &r, &answer, &e) < 0)
        fail_msg("%s", e.msg);
    http_free(h);

    h = http_new(&(struct http_place){.base = base, .ca_file = cert, .cert_file = "/nowhere"}, &e);
    assert_non_null(h);
    assert_int_equal(http_ask(h, &r, &answer, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    http_free(h);
    server_end(&t);
}

static void test_values_are_escaped(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(100);
    http_escape(&b, "a/b:c@d e%\xff~");
    assert_string_equal(buf_cstr(&b), "a%2Fb%3Ac%40d%20e%25%FF~");
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(sock_path, sizeof sock_path, "%s/engine.sock", dir);
    make_certificate(dir, cert, key);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    buf_done(&script.seen);
    unlink(cert);
    unlink(key);
    return rmdir(dir);
}

int main(void)
{
#define SCRIPTED(test) cmocka_unit_test_setup_teardown(test, begin, end)
    const struct CMUnitTest tests[] = {
        SCRIPTED(test_requests_share_a_connection),
        SCRIPTED(test_a_good_body_is_streamed_and_an_error_is_collected),
        SCRIPTED(test_bodies_are_bounded),
        SCRIPTED(test_redirects_are_answers),
        SCRIPTED(test_silence_ends_at_the_deadline),
        SCRIPTED(test_half_an_answer_is_an_error),
        cmocka_unit_test(test_nobody_there_names_the_socket),
        cmocka_unit_test(test_a_certificate_is_checked),
        cmocka_unit_test(test_values_are_escaped),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
