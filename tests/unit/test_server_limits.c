#include "server_routes.h"

#include "net/client.h"

#include <sys/resource.h>
#include <sys/un.h>

#define H "\r\nHost: x\r\n"

static struct gate gate = GATE_INIT;
static struct test_server t;

static void begin(struct server_config config)
{
    config.handle = test_handler;
    config.arg = &gate;
    gate_set(&gate, 0);
    atomic_store(&gate.abandoned, 0);
    atomic_store(&gate.stopped_early, 0);
    server_begin(&t, &config);
}

static int end(void **state)
{
    (void)state;
    gate_set(&gate, 1);
    if (t.server)
        server_end(&t);
    return 0;
}

static struct server_stats stats_of(void)
{
    struct server_stats s;
    server_get_stats(t.server, &s);
    return s;
}

static void wait_for_connections(uint64_t count)
{
    for (int i = 0; i < 4000 && stats_of().connections != count; i++)
        usleep(5000);
    assert_int_equal(stats_of().connections, count);
}

static void test_a_slow_head_is_given_up(void **state)
{
    (void)state;
    begin((struct server_config){.head_timeout_ns = 300 * NS_PER_MS});
    auto_peer p = peer_dial(&t);
    uint64_t before = clock_now();

    /* A byte now and then does not prolong it. */
    static const char text[] = "GET /hello HTTP/1.1\r\nHost: x\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaaaaa";
    struct pollfd readable = {.fd = p.fd, .events = POLLIN};
    for (size_t i = 0; i < sizeof text - 1 && poll(&readable, 1, 20) == 0; i++)
        (void)send(p.fd, text + i, 1, MSG_NOSIGNAL);

    auto_answer a = peer_answer(&p, HTTP_GET);
    uint64_t took = clock_now() - before;
    assert_int_equal(a.status, 408);
    assert_true(answer_has(&a, "\"code\":\"timeout\""));
    assert_false(a.keep_alive);
    assert_true(took >= 300 * NS_PER_MS);
    assert_true(peer_at_end(&p));
}

static void test_slow_heads_cost_no_threads(void **state)
{
    (void)state;
    /* Not one, because a request counts for a moment longer than its answer takes, and on a busy
     * machine the moments of many meet. */
    begin((struct server_config){.max_active = 30, .head_timeout_ns = PATIENCE});

    struct peer slow[60];
    for (size_t i = 0; i < COUNT(slow); i++) {
        slow[i] = peer_dial(&t);
        peer_say(&slow[i], "GET /hello HTTP/1.1\r\nHo");
    }

    auto_peer p = peer_dial(&t);
    peer_say(&p, "GET /hello HTTP/1.1" H "\r\n");
    auto_answer a = peer_answer(&p, HTTP_GET);
    assert_true(answer_is(&a, 200, "hello"));

    for (size_t i = 0; i < COUNT(slow); i++) {
        peer_say(&slow[i], "st: x\r\n\r\n");
        auto_answer b = peer_answer(&slow[i], HTTP_GET);
        assert_true(answer_is(&b, 200, "hello"));
        peer_done(&slow[i]);
    }
}

/* Peers that ask for much, read nothing, and then talk nonsense. */
static void test_who_does_not_read_delays_nobody_else(void **state)
{
    (void)state;
    begin((struct server_config){.max_active = 4, .stall_ns = 100 * NS_PER_MS});
    struct peer deaf[12];
    static char bodies[4 << 20];
    memset(bodies, 'x', sizeof bodies);

    for (size_t i = 0; i < COUNT(deaf); i++) {
        deaf[i] = peer_dial(&t);
        fcntl(deaf[i].fd, F_SETFL, O_NONBLOCK);
        static const char head[] = "POST /echo HTTP/1.1" H "Content-Length: 4194304\r\n\r\n";
        (void)send(deaf[i].fd, head, sizeof head - 1, MSG_NOSIGNAL);
        (void)send(deaf[i].fd, bodies, sizeof bodies, MSG_NOSIGNAL);
        (void)send(deaf[i].fd, "nonsense\r\n\r\n", 12, MSG_NOSIGNAL);
    }

    uint64_t before = clock_now();
    int status = 0;
    while (status != 200 && clock_now() - before < PATIENCE) {
        auto_peer p = peer_dial(&t);
        peer_say(&p, "GET /hello HTTP/1.1" H "\r\n");
        auto_answer a = peer_answer(&p, HTTP_GET); /* 503 while all four are held up */
        status = a.status;
        usleep(10000);
    }

    assert_int_equal(status, 200);
    for (size_t i = 0; i < COUNT(deaf); i++)
        peer_done(&deaf[i]);
}

static void test_an_idle_connection_is_closed(void **state)
{
    (void)state;
    begin((struct server_config){.idle_timeout_ns = 2 * NS_PER_S}); /* it asks before that */
    auto_peer never = peer_dial(&t), once = peer_dial(&t);
    uint64_t before = clock_now();
    peer_say(&once, "GET /hello HTTP/1.1" H "\r\n");
    auto_answer a = peer_answer(&once, HTTP_GET);
    assert_true(answer_is(&a, 200, "hello"));
    assert_true(peer_at_end(&once)); /* without a word */
    assert_true(clock_now() - before >= 2 * NS_PER_S);
    assert_true(peer_at_end(&never));
    wait_for_connections(0);
}

static void test_a_body_that_stops_is_given_up(void **state)
{
    (void)state;
    begin((struct server_config){.stall_ns = 150 * NS_PER_MS});

    static const char *const texts[] = {
        "POST /echo HTTP/1.1" H "Content-Length: 10\r\n\r\nabc",
        "POST /echo HTTP/1.1" H "Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        "POST /pipes HTTP/1.1" H "Content-Length: 10\r\n\r\nabc",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        auto_peer p = peer_dial(&t);
        peer_say(&p, texts[i]);
        auto_answer a = peer_answer(&p, HTTP_POST);
        assert_int_equal(a.status, 408);
        assert_false(a.keep_alive);
        assert_true(peer_at_end(&p));
    }
}

static void test_a_body_has_a_limit(void **state)
{
    (void)state;
    begin((struct server_config){0});

    static const struct {
        const char *text;
        int status;
    } rows[] = {
        {"POST /echo?small HTTP/1.1" H "Content-Length: 10\r\n\r\n0123456789", 200},
        {"POST /echo?small HTTP/1.1" H "Content-Length: 11\r\n\r\n0123456789a", 413},
        {"POST /echo?small HTTP/1.1" H "Transfer-Encoding: chunked\r\n\r\n"
         "a\r\n0123456789\r\n0\r\n\r\n",
         200},
        {"POST /echo?small HTTP/1.1" H "Transfer-Encoding: chunked\r\n\r\n"
         "9\r\n012345678\r\n2\r\nab\r\n0\r\n\r\n",
         413},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_peer p = peer_dial(&t);
        peer_say(&p, rows[i].text);
        auto_answer a = peer_answer(&p, HTTP_POST);
        assert_int_equal(a.status, rows[i].status);
        /* Little enough to be skipped, so the connection goes on. */
        peer_say(&p, "GET /hello HTTP/1.1" H "\r\n");
        auto_answer b = peer_answer(&p, HTTP_GET);
        assert_true(answer_is(&b, 200, "hello"));
    }
}

static void test_there_are_so_many_connections(void **state)
{
    (void)state;
    begin((struct server_config){.max_connections = 3});
    struct peer p[3];
    for (int i = 0; i < 3; i++) {
        p[i] = peer_dial(&t);
        peer_say(&p[i], "GET /hello HTTP/1.1" H "\r\n");
        auto_answer a = peer_answer(&p[i], HTTP_GET);
        assert_true(answer_is(&a, 200, "hello"));
    }

    struct peer more = peer_dial(&t);
    peer_say(&more, "GET /hello HTTP/1.1" H "\r\n");
    auto_answer no = peer_answer(&more, HTTP_GET);
    assert_int_equal(no.status, 503);
    assert_true(answer_has(&no, "\"code\":\"capacity\""));
    assert_true(peer_at_end(&more));
    peer_done(&more);
    assert_int_equal(stats_of().refused, 1);
    peer_done(&p[0]);

    wait_for_connections(2);
    more = peer_dial(&t);
    peer_say(&more, "GET /hello HTTP/1.1" H "\r\n");
    auto_answer yes = peer_answer(&more, HTTP_GET);
    assert_true(answer_is(&yes, 200, "hello"));
    peer_done(&more);
    peer_done(&p[1]);
    peer_done(&p[2]);
}

static void test_there_are_so_many_requests(void **state)
{
    (void)state;
    begin((struct server_config){.max_active = 3});
    struct peer p[3];
    for (int i = 0; i < 3; i++) {
        p[i] = peer_dial(&t);
        peer_say(&p[i], "GET /gate HTTP/1.1" H "\r\n");
    }
    gate_wait_for(&gate, 3);
    assert_int_equal(stats_of().active, 3);

    for (int i = 0; i < 20; i++) {
        auto_peer more = peer_dial(&t);
        peer_say(&more, "GET /hello HTTP/1.1" H "\r\n");
        auto_answer no = peer_answer(&more, HTTP_GET);
        assert_int_equal(no.status, 503);
        assert_true(answer_has(&no, "\"code\":\"capacity\""));
        assert_true(peer_at_end(&more));
    }

    gate_set(&gate, 1);
    for (int i = 0; i < 3; i++) {
        auto_answer a = peer_answer(&p[i], HTTP_GET);
        assert_true(answer_is(&a, 200, "through"));
        peer_say(&p[i], "GET /hello HTTP/1.1" H "\r\n");
        auto_answer b = peer_answer(&p[i], HTTP_GET);
        assert_true(answer_is(&b, 200, "hello"));
        peer_done(&p[i]);
    }
}

/* Takes three places, one of them with a request that says that it ends soon. */
static void take_places(struct peer p[3])
{
    for (int i = 0; i < 3; i++) {
        p[i] = peer_dial(&t);
        peer_say(&p[i], i ? "GET /gate HTTP/1.1" H "\r\n" : "GET /gate?brief HTTP/1.1" H "\r\n");
    }
    gate_wait_for(&gate, 3);
}

static void let_go(struct peer p[3], int first)
{
    gate_set(&gate, 1);
    for (int i = first; i < 3; i++) {
        auto_answer a = peer_answer(&p[i], HTTP_GET);
        assert_true(answer_is(&a, 200, "through"));
        peer_done(&p[i]);
    }
}

/* Places of requests that end soon are waited for: whoever comes meanwhile is not refused. */
static void test_brief_requests_cost_nobody_a_place(void **state)
{
    (void)state;
    struct peer p[3];
    begin((struct server_config){.max_active = 3, .place_ns = 60 * NS_PER_S});
    take_places(p);

    auto_peer more = peer_dial(&t);
    peer_say(&more, "GET /hello HTTP/1.1" H "\r\n");
    struct pollfd readable = {.fd = more.fd, .events = POLLIN};
    assert_int_equal(poll(&readable, 1, 100), 0); /* the control: all places are taken */

    peer_done(&p[0]);
    auto_answer yes = peer_answer(&more, HTTP_GET);
    assert_true(answer_is(&yes, 200, "hello"));

    let_go(p, 1);
}

static void test_one_that_does_not_end_soon_is_waited_for_no_longer(void **state)
{
    (void)state;
    struct peer p[3];
    begin((struct server_config){.max_active = 3});
    take_places(p);

    auto_peer last = peer_dial(&t);
    peer_say(&last, "GET /hello HTTP/1.1" H "\r\n");
    auto_answer no = peer_answer(&last, HTTP_GET);
    assert_int_equal(no.status, 503);
    let_go(p, 0);
}

static void test_many_at_once_all_get_through(void **state)
{
    (void)state;
    begin((struct server_config){.max_active = 100});
    struct peer p[100];
    for (size_t i = 0; i < COUNT(p); i++) {
        p[i] = peer_dial(&t);
        peer_say(&p[i], "GET /gate HTTP/1.1" H "\r\n");
    }

    gate_wait_for(&gate, COUNT(p));
    gate_set(&gate, 1);
    for (size_t i = 0; i < COUNT(p); i++) {
        auto_answer a = peer_answer(&p[i], HTTP_GET);
        assert_true(answer_is(&a, 200, "through"));
        peer_done(&p[i]);
    }
}

static void test_thousands_are_idle_and_all_can_ask(void **state)
{
    (void)state;
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    if (r.rlim_cur < 4200)
        skip_because("only %llu descriptors", (unsigned long long)r.rlim_cur);
    begin((struct server_config){0});

    enum { COUNT_IDLE = 2000 };
    static struct peer p[COUNT_IDLE];
    for (int i = 0; i < COUNT_IDLE; i++)
        p[i] = peer_dial(&t);
    wait_for_connections(COUNT_IDLE);

    for (int pass = 0; pass < 2; pass++) {
        /* All at once, so that the parked ones come back from everywhere. */
        for (int i = 0; i < COUNT_IDLE; i++)
            peer_say(&p[i], "GET /hello HTTP/1.1" H "\r\n");
        for (int i = 0; i < COUNT_IDLE; i++) {
            auto_answer a = peer_answer(&p[i], HTTP_GET);
            assert_true(answer_is(&a, 200, "hello"));
        }
    }

    assert_int_equal(stats_of().requests, 2 * COUNT_IDLE);
    for (int i = 0; i < COUNT_IDLE; i++)
        peer_done(&p[i]);
    wait_for_connections(0);
}

static void *restless(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    static const char text[] = "GET /hello HTTP/1.1" H "\r\n";
    deadline until = deadline_in(NS_PER_S), limit = deadline_in(PATIENCE);

    while (!deadline_passed(until) || (stats_of().requests <= 100 && !deadline_passed(limit))) {
        int fd = dial_server(&t);
        for (int i = 0; i < 6; i++) {
            char in[1024];
            size_t cut = (size_t)rand_r(&seed) % (sizeof text - 1);
            if (send(fd, text, cut, MSG_NOSIGNAL) < 0)
                break;
            usleep((useconds_t)rand_r(&seed) % 3000);
            if (rand_r(&seed) % 8 == 0)
                usleep(150000); /* about when the server loses its patience */
            if (send(fd, text + cut, sizeof text - 1 - cut, MSG_NOSIGNAL) < 0 ||
                recv(fd, in, sizeof in, 0) <= 0)
                break;
        }
        close(fd);
    }

    return NULL;
}

/* Time running out, bytes coming in and peers leaving, all at the same moments. */
static void test_coming_and_going(void **state)
{
    (void)state;
    begin((struct server_config){
        .head_timeout_ns = 150 * NS_PER_MS, .idle_timeout_ns = 150 * NS_PER_MS, .max_active = 8});
    pthread_t threads[12];
    for (size_t i = 0; i < COUNT(threads); i++)
        pthread_create(&threads[i], NULL, restless, (void *)(uintptr_t)(i + 1));
    for (size_t i = 0; i < COUNT(threads); i++)
        pthread_join(threads[i], NULL);
    wait_for_connections(0);
    assert_true(stats_of().requests > 100);
    assert_int_equal(stats_of().active, 0);
}

/* With no descriptor left, peers are told, and the server neither spins nor dies. */
static void test_running_out_of_descriptors(void **state)
{
    (void)state;
    begin((struct server_config){0});
    struct peer before = peer_dial(&t);
    peer_say(&before, "GET /hello HTTP/1.1" H "\r\n");
    auto_answer a = peer_answer(&before, HTTP_GET);
    assert_true(answer_is(&a, 200, "hello"));

    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct rlimit old, low;
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    low.rlim_cur = (rlim_t)client + 1; /* everything below is in use */
    int filler[256], fillers = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);

    while (fillers < 256 && (filler[fillers] = dup(client)) >= 0)
        fillers++;
    assert_int_equal(connect(client, (struct sockaddr *)&t.address, sizeof t.address), 0);
    struct timeval patience = {.tv_sec = PATIENCE / NS_PER_S};
    setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);

    auto_peer p = {client, BUF_INIT(1u << 20)};
    peer_say(&p, "GET /hello HTTP/1.1" H "\r\n");
    auto_answer no = peer_answer(&p, HTTP_GET);
    assert_int_equal(no.status, 503);

    struct rusage start, stop;
    getrusage(RUSAGE_SELF, &start);
    usleep(300000);
    getrusage(RUSAGE_SELF, &stop);
    int64_t us = (stop.ru_utime.tv_sec - start.ru_utime.tv_sec) * 1000000 +
                 (stop.ru_utime.tv_usec - start.ru_utime.tv_usec) +
                 (stop.ru_stime.tv_sec - start.ru_stime.tv_sec) * 1000000 +
                 (stop.ru_stime.tv_usec - start.ru_stime.tv_usec);
    assert_true(us < 150000);

    /* Who is in is served. */
    peer_say(&before, "GET /hello HTTP/1.1" H "\r\n");
    auto_answer b = peer_answer(&before, HTTP_GET);
    assert_true(answer_is(&b, 200, "hello"));

    while (fillers)
        close(filler[--fillers]);
    setrlimit(RLIMIT_NOFILE, &old);

    auto_peer after = peer_dial(&t);
    peer_say(&after, "GET /hello HTTP/1.1" H "\r\n");
    auto_answer c = peer_answer(&after, HTTP_GET);
    assert_true(answer_is(&c, 200, "hello"));
    peer_done(&before);
}

static void test_stopping_lets_requests_finish(void **state)
{
    (void)state;
    begin((struct server_config){0});
    auto_peer idle = peer_dial(&t), busy = peer_dial(&t), polite = peer_dial(&t);
    peer_say(&busy, "GET /gate HTTP/1.1" H "\r\n");
    peer_say(&polite, "GET /gate?polite HTTP/1.1" H "\r\n");
    gate_wait_for(&gate, 2);
    wait_for_connections(3);
    server_stop(t.server, deadline_in(PATIENCE));
    assert_true(peer_at_end(&idle)); /* at once */

    auto_answer a = peer_answer(&polite, HTTP_GET);
    assert_true(answer_is(&a, 200, "through"));
    assert_int_equal(atomic_load(&gate.stopped_early), 1);

    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&t.address, sizeof t.address), -1);
    close(fd);
    gate_set(&gate, 1);

    auto_answer b = peer_answer(&busy, HTTP_GET);
    assert_true(answer_is(&b, 200, "through"));
    assert_false(b.keep_alive);
    assert_true(peer_at_end(&busy));
    pthread_join(t.thread, NULL);
    t.running = 0;
}

static void test_stopping_has_a_deadline(void **state)
{
    (void)state;
    begin((struct server_config){0});
    auto_peer busy = peer_dial(&t), slow = peer_dial(&t);
    peer_say(&busy, "GET /gate HTTP/1.1" H "\r\n");
    peer_say(&slow, "POST /echo HTTP/1.1" H "Content-Length: 5\r\n\r\nab");
    gate_wait_for(&gate, 1);
    for (int i = 0; i < 2000 && stats_of().active < 2; i++)
        usleep(5000);

    uint64_t before = clock_now();
    server_stop(t.server, deadline_in(200 * NS_PER_MS));
    pthread_join(t.thread, NULL);
    t.running = 0;

    uint64_t took = clock_now() - before;
    assert_true(took >= 200 * NS_PER_MS && took < PATIENCE);
    assert_int_equal(atomic_load(&gate.abandoned), 1); /* the handler saw it */
}

static void test_sockets_in_the_file_system(void **state)
{
    (void)state;
    char dir[] = "/tmp/test-server-XXXXXX", address[100], *path = address + 5;
    assert_non_null(mkdtemp(dir));
    snprintf(address, sizeof address, "unix:%s/sock", dir);
    begin((struct server_config){0});
    struct pd_err e;

    /* The file of a server that was killed is no obstacle, that of a living one is. */
    int dead = server_bind(address, &e);
    assert_true(dead >= 0);
    close(dead);

    int fd = server_bind(address, &e);
    assert_true(fd >= 0);
    assert_int_equal(server_bind(address, &e), -1);
    assert_int_equal(e.code, PD_CONFLICT);

    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0660);
    assert_int_equal(server_listen(t.server, fd, NULL, &e), 0);

    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    auto_peer p = {socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), BUF_INIT(1u << 20)};
    assert_int_equal(connect(p.fd, (struct sockaddr *)&a, sizeof a), 0);

    for (int i = 0; i < 10; i++) {
        peer_say(&p, "GET /hello HTTP/1.1" H "\r\n");
        auto_answer b = peer_answer(&p, HTTP_GET);
        assert_true(answer_is(&b, 200, "hello"));
        usleep(2000);
    }
    unlink(path);
    rmdir(dir);
}

static void test_addresses_to_listen_on(void **state)
{
    (void)state;
    struct pd_err e;
    static const char *const bad[] = {"8090",        "127.0.0.1:",    "127.0.0.1:65536", "x:80",
                                      "::1:80",      "[::1",          "unix:",           "fd:0",
                                      "fd:1000000",  "127.0.0.1:80 ", "[127.0.0.1]:80",  "fd:x",
                                      "127.0.0.1:-1"};

    for (size_t i = 0; i < COUNT(bad); i++)
        if (server_bind(bad[i], &e) >= 0)
            fail_msg("'%s' was taken", bad[i]);

    int fd = server_bind("127.0.0.1:0", &e);
    assert_true(fd >= 0);
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    getsockname(fd, (struct sockaddr *)&a, &len);

    char again[40];
    snprintf(again, sizeof again, "127.0.0.1:%u", ntohs(a.sin_port));
    assert_int_equal(server_bind(again, &e), -1);
    assert_int_equal(e.code, PD_CONFLICT);

    /* As systemd hands it over. */
    snprintf(again, sizeof again, "fd:%d", fd);
    assert_int_equal(server_bind(again, &e), fd);

    char pid[16];
    snprintf(pid, sizeof pid, "%d", getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", "2", 1);
    assert_int_equal(server_inherited(), 2);

    setenv("LISTEN_PID", "1", 1);
    assert_int_equal(server_inherited(), 0);
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    close(fd);
}

int main(void)
{
#define ROW(name) cmocka_unit_test_teardown(name, end)
    const struct CMUnitTest tests[] = {
        ROW(test_a_slow_head_is_given_up),
        ROW(test_slow_heads_cost_no_threads),
        ROW(test_who_does_not_read_delays_nobody_else),
        ROW(test_an_idle_connection_is_closed),
        ROW(test_a_body_that_stops_is_given_up),
        ROW(test_a_body_has_a_limit),
        ROW(test_there_are_so_many_connections),
        ROW(test_there_are_so_many_requests),
        ROW(test_brief_requests_cost_nobody_a_place),
        ROW(test_one_that_does_not_end_soon_is_waited_for_no_longer),
        ROW(test_many_at_once_all_get_through),
        ROW(test_thousands_are_idle_and_all_can_ask),
        ROW(test_coming_and_going),
        ROW(test_running_out_of_descriptors),
        ROW(test_stopping_lets_requests_finish),
        ROW(test_stopping_has_a_deadline),
        ROW(test_sockets_in_the_file_system),
        ROW(test_addresses_to_listen_on),
    };

    return cmocka_run_group_tests_name("server_limits", tests, NULL, NULL);
}
