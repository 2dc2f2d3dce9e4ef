/* Workers and ports: connections into the sandbox, and the list of who listens. */
#include "worker_run.h"

#include <arpa/inet.h>
#include <netinet/in.h>

/* A socket on a port of the kernel's choice. As long as it is open nobody else has the port. */
static int bind_any(int family, uint16_t *ret_port)
{
    struct sockaddr_storage a = {.ss_family = (sa_family_t)family};
    socklen_t len = sizeof a;
    if (family == AF_INET)
        ((struct sockaddr_in *)&a)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else
        ((struct sockaddr_in6 *)&a)->sin6_addr = in6addr_loopback;

    int s = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0 || bind(s, (struct sockaddr *)&a, sizeof a) < 0) {
        close(s);
        return -1;
    }
    assert_int_equal(getsockname(s, (struct sockaddr *)&a, &len), 0);

    *ret_port = ntohs(family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port
                                        : ((struct sockaddr_in6 *)&a)->sin6_port);
    return s;
}

static int listen_on(int family, uint16_t *ret_port)
{
    int s = bind_any(family, ret_port);
    if (s >= 0)
        assert_int_equal(listen(s, 16), 0);
    return s;
}

static struct job dial(struct bench *b, uint16_t port)
{
    char text[8];
    snprintf(text, sizeof text, "%u", port);
    return job_start(b, OP("dial", text));
}

static void test_bytes_go_both_ways(void **state)
{
    static const int families[] = {AF_INET, AF_INET6};
    struct bench *b = *state;

    for (size_t i = 0; i < COUNT(families); i++) {
        uint16_t port;
        char text[64];
        int server = listen_on(families[i], &port);
        if (server < 0)
            skip_because("no IPv6 on this machine");

        struct job j = dial(b, port);
        struct record r = expect_kind(&j, RECORD_PORT, "a connection");
        assert_int_equal(r.port.port, port);
        assert_string_equal(r.port.address, i ? "::1" : "127.0.0.1");

        int s = accept4(server, NULL, NULL, SOCK_CLOEXEC);
        assert_true(s >= 0);
        assert_int_equal(fd_write_all(j.in, "question", 8), 0);
        assert_int_equal(read(s, text, sizeof text), 8);
        assert_int_equal(fd_write_all(s, "answer", 6), 0);
        assert_int_equal(read(j.out, text, sizeof text), 6);

        /* Half closed: the end of the input is told, the answer still comes. */
        fd_done(&j.in);
        assert_int_equal(read(s, text, sizeof text), 0);
        assert_int_equal(fd_write_all(s, "last", 4), 0);
        close(s);

        size_t len;
        char *rest = job_bytes(&j, &len);
        assert_string_equal(rest, "last");
        free(rest);
        assert_int_equal(job_end(b, &j), 0);
        close(server);
    }
}

/* The server ends first; the other direction stays until its own end. */
static void test_the_server_ends_first(void **state)
{
    struct bench *b = *state;
    uint16_t port;
    int server = listen_on(AF_INET, &port);
    struct job j = dial(b, port);
    expect_kind(&j, RECORD_PORT, "a connection");

    int s = accept4(server, NULL, NULL, SOCK_CLOEXEC);
    assert_int_equal(fd_write_all(s, "bye", 3), 0);
    shutdown(s, SHUT_WR);

    size_t len;
    char *got = job_bytes(&j, &len);
    assert_string_equal(got, "bye");
    free(got);

    char text[16];
    assert_int_equal(fd_write_all(j.in, "still here", 10), 0);
    assert_int_equal(read(s, text, sizeof text), 10);
    assert_int_equal(job_end(b, &j), 0);
    close(s);
    close(server);
}

/* Much in both directions at once, by slow readers: nothing is lost, nothing hangs. */
static void test_much_in_both_directions(void **state)
{
    struct bench *b = *state;
    enum { BYTES = 24 << 20 };
    uint16_t port;
    int server = listen_on(AF_INET, &port);
    struct job j = dial(b, port);
    expect_kind(&j, RECORD_PORT, "a connection");

    int s = accept4(server, NULL, NULL, SOCK_CLOEXEC);
    pid_t echo = child_fork();
    if (echo == 0) { /* answers with what it gets */
        char bytes[30000];
        ssize_t n;
        child_keep(s);
        while ((n = read(s, bytes, sizeof bytes)) > 0)
            (void)fd_write_all(s, bytes, (size_t)n);
        _exit(0);
    }
    close(s);

    pid_t feeder = child_fork();
    if (feeder == 0) {
        uint32_t block[4096];
        child_keep(j.in);
        for (uint32_t i = 0; i < BYTES / sizeof block; i++) {
            for (uint32_t k = 0; k < COUNT(block); k++)
                block[k] = i * 4096 + k;
            if (fd_write_all(j.in, block, sizeof block) < 0)
                _exit(1);
        }
        _exit(0);
    }

    fd_done(&j.in);
    uint32_t want = 0, got;
    size_t have = 0;
    char *bytes = malloc(1 << 16);
    uint64_t all = 0;
    for (;;) {
        ssize_t n = read(j.out, bytes + have, (1 << 16) - have);
        assert_true(n >= 0);
        if (n == 0)
            break;
        all += (uint64_t)n;
        have += (size_t)n;

        size_t at = 0;
        for (; have - at >= 4; at += 4) {
            memcpy(&got, bytes + at, 4);
            if (got != want++)
                fail_msg("bytes were lost or doubled at %llu", (unsigned long long)all);
        }
        memmove(bytes, bytes + at, have - at);
        have -= at;
    }
    free(bytes);

    assert_int_equal(all, BYTES);
    assert_int_equal(wait_child(feeder), 0);
    wait_child(echo);
    assert_int_equal(job_end(b, &j), 0);
    close(server);
}

/* A client that goes away ends the worker, also one whose server says nothing. */
static void test_a_client_that_goes_away(void **state)
{
    struct bench *b = *state;
    uint16_t port;
    int server = listen_on(AF_INET, &port);
    struct job j = dial(b, port);
    expect_kind(&j, RECORD_PORT, "a connection");

    int s = accept4(server, NULL, NULL, SOCK_CLOEXEC);
    assert_int_equal(job_end(b, &j), 0);
    char text[8];
    assert_int_equal(read(s, text, sizeof text), 0);
    close(s);

    /* And one that waits with a full pipe does not burn time. */
    j = dial(b, port);
    expect_kind(&j, RECORD_PORT, "a connection");

    s = accept4(server, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    char *much = calloc(1, 1 << 20);
    deadline d = deadline_in(300 * NS_PER_MS);
    while (!deadline_passed(d))
        if (write(s, much, 1 << 20) < 0)
            usleep(1000);
    free(much);
    close(s);

    usleep(300000);
    fd_done(&j.in);
    fd_done(&j.go);
    fd_done(&j.out);
    struct msg_exited end = expect_exited(&b->init, j.id);
    assert_true(end.cpu_usec < 200000);
    close(server);
}

static void test_nothing_listens(void **state)
{
    struct bench *b = *state;
    uint16_t port;
    auto_fd taken = bind_any(AF_INET, &port);
    char text[8];
    assert_true(taken >= 0);
    snprintf(text, sizeof text, "%u", port);
    expect_refusal(b, OP("dial", text), PD_BAD_GATEWAY, text);
    expect_refusal(b, OP("dial", text), PD_BAD_GATEWAY, "start a server");
    expect_refusal(b, OP("dial", "0"), PD_INVALID, "port");
    expect_refusal(b, OP("dial", "65536"), PD_INVALID, "port");
    expect_refusal(b, OP("dial", "http"), PD_INVALID, "port");
}

static void test_ports_are_listed(void **state)
{
    struct bench *b = *state;
    uint16_t four, six = 0;
    int server4 = listen_on(AF_INET, &four), server6 = listen_on(AF_INET6, &six);
    int found4 = 0, found6 = 0;
    struct job j = job_start(b, OP("ports"));
    struct record r;
    uint32_t last = 0;

    while ((r = job_record(&j)).kind == RECORD_PORT) {
        assert_true(r.port.port >= last);
        last = r.port.port;
        if (r.port.port == four && !strcmp(r.port.address, "127.0.0.1"))
            found4++;
        if (r.port.port == six && !strcmp(r.port.address, "::1"))
            found6++;
    }

    assert_int_equal(r.kind, RECORD_END);
    assert_int_equal(job_end(b, &j), 0);
    assert_int_equal(found4, 1);
    assert_int_equal(found6, server6 >= 0);
    close(server4);
    if (server6 >= 0)
        close(server6);
}

/* A server of the sandbox's user is named with its process. */
static void test_a_port_has_its_process(void **state)
{
    struct bench *b = *state;
    struct init_run *i = &b->init;
    int out[2];
    char text[32] = "";

    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    EXEC(i->sock, .id = 700, .uid = b->uid, .fds = {0, out[1]},
         .argv = OP("/usr/bin/python3", "-c",
                    "import socket,time; s=socket.socket(); s.bind(('0.0.0.0',0)); s.listen();"
                    "print(s.getsockname()[1],flush=True); time.sleep(60)"));
    close(out[1]);
    int32_t pid = expect_started(i, 700);
    assert_true(read(out[0], text, sizeof text - 1) > 0);

    uint32_t port = (uint32_t)strtoul(text, NULL, 10);
    struct job j = job_start(b, OP("ports"));
    struct record r;
    int found = 0;
    while ((r = job_record(&j)).kind == RECORD_PORT)
        if (r.port.port == port) {
            assert_string_equal(r.port.address, "0.0.0.0");
            assert_int_equal(r.port.pid, pid);
            assert_string_equal(r.port.command, "python3");
            found++;
        }

    assert_int_equal(found, 1);
    assert_int_equal(job_end(b, &j), 0);
    send_signal(i->sock, 701, 700, SIGKILL);
    expect_type(i->sock, &i->f, WIRE_DONE, 701);
    expect_exited(i, 700);
    close(out[0]);
}

#define WITH_BENCH(test) cmocka_unit_test_setup_teardown(test, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_BENCH(test_bytes_go_both_ways),      WITH_BENCH(test_the_server_ends_first),
        WITH_BENCH(test_much_in_both_directions), WITH_BENCH(test_a_client_that_goes_away),
        WITH_BENCH(test_nothing_listens),         WITH_BENCH(test_ports_are_listed),
        WITH_BENCH(test_a_port_has_its_process),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
