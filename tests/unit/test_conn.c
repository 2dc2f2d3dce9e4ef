#include "net_peer.h"

#include "base/clock.h"
#include "net/conn.h"

#include <signal.h>

static char cert[128], key[128], dir[] = "/tmp/test-conn-XXXXXX";

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

/* Both ends of a stream. With TLS the client end belongs to a thread of its own. */
static void pair_of(int s[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s), 0);
}

static void test_a_plain_conn_reads_what_is_there(void **state)
{
    (void)state;
    int s[2];
    pair_of(s);
    struct pd_err e;
    struct conn *c = conn_new(s[0], NULL, &e);
    assert_non_null(c);
    assert_false(conn_is_tls(c));
    assert_true(conn_is_local(c));
    char peer[CONN_PEER_SIZE], in[16];
    conn_peer(c, peer);
    assert_string_equal(peer, "unix");
    assert_int_equal(write(s[1], "hello", 5), 5);
    assert_int_equal(conn_read(c, in, sizeof in, deadline_in(PATIENCE), &e), 5);
    assert_memory_equal(in, "hello", 5);

    uint64_t before = clock_now();
    assert_int_equal(conn_read(c, in, sizeof in, deadline_in(30 * NS_PER_MS), &e), -1);
    assert_int_equal(e.code, PD_TIMEOUT);
    uint64_t took = clock_now() - before;
    assert_true(took >= 30 * NS_PER_MS && took < PATIENCE);
    /* Still good after that. */
    assert_int_equal(conn_write(c, "abc", 3, PATIENCE, &e), 0);
    assert_int_equal(read(s[1], in, sizeof in), 3);

    assert_false(conn_is_gone(c));
    assert_int_equal(write(s[1], "x", 1), 1);
    close(s[1]);
    assert_true(conn_is_gone(c));
    assert_int_equal(conn_read(c, in, sizeof in, 0, &e), 1); /* not consumed by asking */
    assert_int_equal(conn_read(c, in, sizeof in, 0, &e), 0);
    /* No signal, an error. */
    assert_int_equal(conn_write(c, "abc", 3, PATIENCE, &e), -1);
    assert_int_equal(e.code, PD_LOST);
    conn_free(c);
}

struct drain_arg {
    int fd, delay_us;
    struct buf got;
};

static void *drain_thread(void *p)
{
    struct drain_arg *a = p;
    for (;;) {
        uint8_t *to = buf_reserve(&a->got, 10000);
        ssize_t n = read(a->fd, to, 10000);
        if (n <= 0)
            return NULL;
        a->got.len += (size_t)n;
        if (a->delay_us)
            usleep((useconds_t)a->delay_us);
    }
}

static void test_a_write_that_makes_no_progress_ends(void **state)
{
    (void)state;
    int s[2];
    pair_of(s);
    struct pd_err e;
    struct conn *c = conn_new(s[0], NULL, &e);
    static char big[4 << 20];
    assert_int_equal(conn_write(c, big, sizeof big, 50 * NS_PER_MS, &e), -1);
    assert_int_equal(e.code, PD_TIMEOUT);
    conn_free(c);
    close(s[1]);

    /* A slow reader is no stall: the whole takes longer than the limit, no step does. Where the
     * reader gets no turn for that long a limit of twice the time is tried. */
    bool written = false;
    for (unsigned limit = 1; !written && limit <= 16; limit *= 2) {
        pair_of(s);
        c = conn_new(s[0], NULL, &e);
        struct drain_arg a = {s[1], (int)limit * 3000, BUF_INIT(8u << 20)};
        pthread_t t;
        pthread_create(&t, NULL, drain_thread, &a);
        uint64_t before = clock_now();
        written = conn_write(c, big, sizeof big, limit * NS_PER_S, &e) == 0;
        assert_true(written ? clock_now() - before > limit * 1100 * NS_PER_MS
                            : e.code == PD_TIMEOUT);
        conn_free(c);
        pthread_join(t, NULL);
        assert_true(!written || a.got.len == sizeof big);
        buf_done(&a.got);
        close(s[1]);
    }
    assert_true(written);
}

static void fill(char *p, size_t len)
{
    uint32_t x = 12345;
    for (size_t i = 0; i < len; i++) {
        x = x * 1664525 + 1013904223;
        p[i] = (char)(x >> 24);
    }
}

struct feed_arg {
    int fd;
    const char *data;
    size_t len;
};

static void *feed_thread(void *p)
{
    struct feed_arg *a = p;
    for (size_t at = 0; at < a->len;) {
        size_t step = a->len - at < 7777 ? a->len - at : 7777;
        ssize_t n = write(a->fd, a->data + at, step);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    close(a->fd);
    return NULL;
}

static void test_pipes_and_files_are_moved_exactly(void **state)
{
    (void)state;
    static char data[3 << 20];
    fill(data, sizeof data);
    int s[2], p[2];
    struct pd_err e;
    pair_of(s);
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    struct conn *c = conn_new(s[0], NULL, &e);
    struct drain_arg out = {s[1], 0, BUF_INIT(16u << 20)};
    struct feed_arg in = {p[1], data, sizeof data};
    pthread_t t[2];
    pthread_create(&t[0], NULL, drain_thread, &out);
    pthread_create(&t[1], NULL, feed_thread, &in);
    assert_int_equal(conn_write_pipe(c, p[0], 1000001, PATIENCE, &e), 0);
    assert_int_equal(conn_write_pipe(c, p[0], sizeof data - 1000001, PATIENCE, &e), 0);
    /* Its end is not what was promised. */
    assert_int_equal(conn_write_pipe(c, p[0], 1, PATIENCE, &e), -1);
    assert_int_equal(e.code, PD_LOST);

    char path[] = "/tmp/test-conn-file-XXXXXX";
    auto_fd file = mkostemp(path, O_CLOEXEC);
    unlink(path);
    assert_int_equal(fd_write_all(file, data, sizeof data), 0);
    assert_int_equal(conn_write_file(c, file, 5, sizeof data - 10, PATIENCE, &e), 0);
    assert_int_equal(conn_write_file(c, file, sizeof data - 1, 2, PATIENCE, &e), -1);
    assert_int_equal(e.code, PD_LOST);
    conn_free(c);
    pthread_join(t[0], NULL);
    pthread_join(t[1], NULL);
    assert_int_equal(out.got.len, sizeof data + sizeof data - 10 + 1);
    assert_memory_equal(out.got.data, data, sizeof data);
    assert_memory_equal(out.got.data + sizeof data, data + 5, sizeof data - 10);
    buf_done(&out.got);
    close(s[1]);
    close(p[0]);
}

static void test_a_silent_pipe_is_a_stall_and_a_dead_peer_is_noticed(void **state)
{
    (void)state;
    int s[2], p[2];
    struct pd_err e;
    pair_of(s);
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);

    struct conn *c = conn_new(s[0], NULL, &e);
    assert_int_equal(conn_write_pipe(c, p[0], 1, 30 * NS_PER_MS, &e), -1);
    assert_int_equal(e.code, PD_TIMEOUT);
    close(s[1]);

    uint64_t before = clock_now();
    assert_int_equal(write(p[1], "x", 1), 1);
    assert_int_equal(conn_write_pipe(c, p[0], 1, PATIENCE, &e), -1);
    assert_int_equal(e.code, PD_LOST);
    assert_true(clock_now() - before < PATIENCE / 2);
    conn_free(c);
    close(p[0]);
    close(p[1]);
}

static void test_a_conn_is_moved_into_a_pipe(void **state)
{
    (void)state;
    static char data[1 << 20];
    fill(data, sizeof data);
    int s[2], p[2];
    struct pd_err e;
    pair_of(s);
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    struct conn *c = conn_new(s[0], NULL, &e);
    struct drain_arg out = {p[0], 0, BUF_INIT(16u << 20)};
    struct feed_arg in = {s[1], data, sizeof data};
    pthread_t t[2];
    pthread_create(&t[0], NULL, drain_thread, &out);
    pthread_create(&t[1], NULL, feed_thread, &in);
    ssize_t n;
    size_t total = 0;
    while ((n = conn_read_pipe(c, p[1], 100000, PATIENCE, &e)) > 0) {
        assert_true(n <= 100000);
        total += (size_t)n;
    }
    assert_int_equal(n, 0);
    assert_int_equal(total, sizeof data);
    close(p[1]);
    pthread_join(t[0], NULL);
    pthread_join(t[1], NULL);
    assert_int_equal(out.got.len, sizeof data);
    assert_memory_equal(out.got.data, data, sizeof data);
    buf_done(&out.got);
    close(p[0]);
    conn_free(c);

    /* Nobody reads the pipe: that is told apart from a lost conn. */
    pair_of(s);
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    c = conn_new(s[0], NULL, &e);
    close(p[0]);
    assert_int_equal(write(s[1], "x", 1), 1);
    assert_int_equal(conn_read_pipe(c, p[1], 10, PATIENCE, &e), -1);
    assert_int_equal(e.code, PD_LOST);
    assert_int_equal(e.sys, EPIPE);
    conn_free(c);
    close(s[1]);
    close(p[1]);
}

static void test_a_pair_of_pipes_is_a_conn(void **state)
{
    (void)state;
    int there[2], back[2];
    struct pd_err e;

    assert_int_equal(pipe2(there, O_CLOEXEC), 0);
    assert_int_equal(pipe2(back, O_CLOEXEC), 0);
    struct conn *c = conn_new_pair(back[0], there[1], &e);
    assert_non_null(c);

    char in[8];
    assert_int_equal(conn_write(c, "abc", 3, PATIENCE, &e), 0);
    assert_int_equal(read(there[0], in, sizeof in), 3);

    assert_int_equal(write(back[1], "defg", 4), 4);
    assert_int_equal(conn_read(c, in, sizeof in, 0, &e), 4);
    assert_false(conn_is_gone(c));

    conn_end_writing(c);
    assert_int_equal(read(there[0], in, sizeof in), 0);
    close(back[1]);
    assert_int_equal(conn_read(c, in, sizeof in, 0, &e), 0);
    conn_free(c);
    close(there[0]);
}

struct tls_side {
    int fd;
    struct tls_context *context;
    const char *host;
    int result;
    struct pd_err e;
};

/* Says hello, reads 1 MiB back and a small piece, and leaves. */
static void *tls_client(void *p)
{
    struct tls_side *side = p;
    static char got[(1 << 20) + 5];
    struct conn *c = conn_new(side->fd, side->context, &side->e);
    side->result = -1;

    if (c && (!side->host || conn_set_host(c, side->host, &side->e) == 0) &&
        conn_write(c, "hello", 5, PATIENCE, &side->e) == 0) {
        size_t at = 0;
        ssize_t n = 1;
        while (at < sizeof got &&
               (n = conn_read(c, got + at, sizeof got - at, deadline_in(PATIENCE), &side->e)) > 0)
            at += (size_t)n;
        static char expected[1 << 20];
        fill(expected, sizeof expected);
        if (at == sizeof got && !memcmp(got, expected, sizeof expected) &&
            !memcmp(got + sizeof expected, "after", 5))
            side->result = 0;
    }

    conn_free(c);
    return NULL;
}

static void test_tls_there_and_back(void **state)
{
    (void)state;
    struct pd_err e;
    struct tls_context *server = tls_server_new(cert, key, &e), *client = tls_client_new(cert, &e);
    assert_true(server && client);

    int s[2], p[2];
    pair_of(s);
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);

    struct tls_side side = {.fd = s[1], .context = client, .host = "here.test"};
    pthread_t t[2];
    pthread_create(&t[0], NULL, tls_client, &side);
    struct conn *c = conn_new(s[0], server, &e);
    assert_true(conn_is_tls(c));
    char in[16];

    /* What is left of a record inside the library is told, since poll does not. */
    assert_int_equal(conn_read(c, in, 2, deadline_in(PATIENCE), &e), 2);
    assert_true(conn_pending(c));
    assert_int_equal(conn_read(c, in, sizeof in, 0, &e), 3);
    assert_false(conn_pending(c));
    assert_int_equal(conn_read(c, in, sizeof in, 0, &e), -1);
    assert_int_equal(e.code, PD_TIMEOUT);

    static char data[1 << 20];
    fill(data, sizeof data);
    struct feed_arg feed = {p[1], data, sizeof data};
    pthread_create(&t[1], NULL, feed_thread, &feed);
    assert_int_equal(conn_write_pipe(c, p[0], sizeof data, PATIENCE, &e), 0);

    struct iovec iov[3] = {{"af", 2}, {"", 0}, {"ter", 3}};
    assert_int_equal(conn_writev(c, iov, 3, PATIENCE, &e), 0);
    /* The client says good-bye, so this is an orderly end. */
    assert_int_equal(conn_read(c, in, sizeof in, deadline_in(PATIENCE), &e), 0);

    pthread_join(t[0], NULL);
    pthread_join(t[1], NULL);
    if (side.result)
        fail_msg("client: %s", side.e.msg);

    conn_free(c);
    close(p[0]);
    tls_context_free(server);
    tls_context_free(client);
}

/* Runs a handshake and returns the client's verdict. */
static struct tls_side handshake(const char *ca, const char *host)
{
    struct pd_err e;
    struct tls_context *server = tls_server_new(cert, key, &e), *client = tls_client_new(ca, &e);
    assert_true(server && client);

    int s[2];
    pair_of(s);
    struct tls_side side = {.fd = s[1], .context = client, .host = host};
    pthread_t t;
    pthread_create(&t, NULL, tls_client, &side);

    struct conn *c = conn_new(s[0], server, &e);
    char in[16];
    static char data[1 << 20];
    fill(data, sizeof data);

    if (conn_read(c, in, sizeof in, deadline_in(PATIENCE), &e) > 0) {
        (void)conn_write(c, data, sizeof data, PATIENCE, &e);
        (void)conn_write(c, "after", 5, PATIENCE, &e);
    }
    conn_free(c);

    pthread_join(t, NULL);
    tls_context_free(server);
    tls_context_free(client);
    return side;
}

static void test_a_client_trusts_only_the_right_certificate(void **state)
{
    (void)state;
    assert_int_equal(handshake(cert, "here.test").result, 0);
    assert_int_equal(handshake(cert, "127.0.0.1").result, 0);

    struct tls_side side = handshake(cert, "elsewhere.test");
    assert_int_equal(side.result, -1);
    assert_int_equal(side.e.code, PD_DENIED);

    side = handshake(cert, "127.0.0.2");
    assert_int_equal(side.result, -1);

    side = handshake(NULL, "here.test"); /* nobody the system knows has signed it */
    assert_int_equal(side.result, -1);
    assert_int_equal(side.e.code, PD_DENIED);

    side = handshake(cert, NULL); /* a client that does not say whom it wants */
    assert_int_equal(side.result, -1);
}

static void test_files_that_are_no_certificates_are_named(void **state)
{
    (void)state;
    struct pd_err e;
    assert_null(tls_server_new("/nonexistent", key, &e));
    assert_non_null(strstr(e.msg, "/nonexistent"));
    assert_null(tls_server_new(cert, cert, &e));
    assert_null(tls_client_new("/nonexistent", &e));
}

static void test_noise_is_not_tls(void **state)
{
    (void)state;
    struct pd_err e;
    struct tls_context *server = tls_server_new(cert, key, &e);
    int s[2];

    pair_of(s);
    struct conn *c = conn_new(s[0], server, &e);
    const char noise[] = "GET / HTTP/1.1\r\n\r\n";
    assert_true(write(s[1], noise, sizeof noise) > 0);

    char in[16];
    assert_int_equal(conn_read(c, in, sizeof in, deadline_in(PATIENCE), &e), -1);
    assert_int_equal(e.code, PD_LOST);
    assert_int_equal(conn_read(c, in, sizeof in, deadline_in(PATIENCE), &e), -1);

    conn_free(c);
    close(s[1]);
    tls_context_free(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_plain_conn_reads_what_is_there),
        cmocka_unit_test(test_a_write_that_makes_no_progress_ends),
        cmocka_unit_test(test_pipes_and_files_are_moved_exactly),
        cmocka_unit_test(test_a_silent_pipe_is_a_stall_and_a_dead_peer_is_noticed),
        cmocka_unit_test(test_a_conn_is_moved_into_a_pipe),
        cmocka_unit_test(test_a_pair_of_pipes_is_a_conn),
        cmocka_unit_test(test_tls_there_and_back),
        cmocka_unit_test(test_a_client_trusts_only_the_right_certificate),
        cmocka_unit_test(test_files_that_are_no_certificates_are_named),
        cmocka_unit_test(test_noise_is_not_tls),
    };

    return cmocka_run_group_tests_name("conn", tests, setup, teardown);
}
