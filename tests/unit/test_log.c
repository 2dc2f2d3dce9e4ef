#include "unit.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/fd.h"
#include "telemetry/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sys/socket.h>

/* A pipe that the log writes to. */
struct sink {
    int in, out;
    char text[1 << 16];
};

static void sink_open(struct sink *s, enum log_level level, enum log_format format)
{
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    s->in = p[0];
    s->out = p[1];
    assert_int_equal(fd_set_nonblock(s->in), 0);
    log_setup(s->out, level, format);
}

/* Everything that was logged so far, behind the time of the first line. */
static const char *sink_text(struct sink *s)
{
    ssize_t n = read(s->in, s->text, sizeof s->text - 1);
    s->text[n > 0 ? n : 0] = 0;
    return s->text;
}

static void sink_close(struct sink *s)
{
    log_setup(2, LOG_LEVEL_INFO, LOG_FORMAT_TEXT);
    fd_done(&s->in);
    fd_done(&s->out);
}

/* Checks the time's shape and gives the rest of the line. */
static const char *after_time(const char *line)
{
    static const char shape[] = "dddd-dd-ddTdd:dd:dd.dddZ ";
    for (size_t i = 0; shape[i]; i++)
        if (shape[i] == 'd' ? line[i] < '0' || line[i] > '9' : line[i] != shape[i])
            fail_msg("no time: %s", line);
    return line + sizeof shape - 1;
}

static void test_text(void **state)
{
    (void)state;
    struct sink s;
    sink_open(&s, LOG_LEVEL_INFO, LOG_FORMAT_TEXT);
    log_info("session.start", "id=%s provider=%s ms=%d big=%" PRIu64 " z=%zu x=%02x f=%.2f", "abc",
             "jail", -12, UINT64_MAX, (size_t)7, 10u, 1.5);
    assert_string_equal(after_time(sink_text(&s)),
                        "info session.start id=abc provider=jail ms=-12 big=18446744073709551615 "
                        "z=7 x=0a f=1.50\n");

    log_warn("x", "part=%.*s ratio=%d/%d at=%s:%d pct=%d%% plain=yes", 3, "abcdef", 1, 2, "::1", 80,
             5);
    assert_string_equal(after_time(sink_text(&s)),
                        "warn x part=abc ratio=1/2 at=::1:80 pct=5% plain=yes\n");

    log_error("bare", " ");
    assert_string_equal(after_time(sink_text(&s)), "error bare\n");
    sink_close(&s);
}

/* Not const: the compiler would warn of it. */
static const char *volatile nothing;

static void test_foreign_text_stays_in_its_field(void **state)
{
    (void)state;
    struct sink s;
    sink_open(&s, LOG_LEVEL_INFO, LOG_FORMAT_TEXT);
    log_info("e", "a=%s b=%s c=%s d=%s", "x y=1", "line\n2026 info fake\x1b[0m", "", "q\"\\\xff");
    assert_string_equal(after_time(sink_text(&s)),
                        "info e a=\"x y=1\" b=\"line\\n2026 info fake\\x1b[0m\" c=\"\" "
                        "d=\"q\\\"\\\\\\xff\"\n");

    log_info("e", "a=%s", nothing);
    assert_string_equal(after_time(sink_text(&s)), "info e a=-\n");
    log_info("e", "a=%s", "%s%n%d");
    assert_string_equal(after_time(sink_text(&s)), "info e a=%s%n%d\n");
    sink_close(&s);
}

static void test_json(void **state)
{
    (void)state;
    struct sink s;
    sink_open(&s, LOG_LEVEL_INFO, LOG_FORMAT_JSON);
    log_request("r1");
    log_info("e", "id=%s n=%d hex=%x pad=%03d none=%s mixed=%d/%d", "a\n\"b\"\xff", -3, 255u, 7,
             nothing, 1, 2);
    log_request(NULL);

    const char *text = sink_text(&s);
    assert_non_null(strstr(text, "{\"time\":\"20"));
    assert_string_equal(strstr(text, ",\"level\""),
                        ",\"level\":\"info\",\"event\":\"e\",\"request\":\"r1\","
                        "\"id\":\"a\\n\\\"b\\\"\\ufffd\",\"n\":-3,\"hex\":\"ff\","
                        "\"pad\":\"007\",\"none\":null,\"mixed\":\"1/2\"}\n");
    sink_close(&s);
}

static void *log_from_thread(void *arg)
{
    log_info("other", "n=%d", 1);
    return arg;
}

static void test_the_request_is_the_thread_s(void **state)
{
    (void)state;
    struct sink s;
    pthread_t t;

    sink_open(&s, LOG_LEVEL_INFO, LOG_FORMAT_TEXT);
    log_request("8f3a x");
    log_info("mine", "n=%d", 0);
    assert_non_null(strstr(sink_text(&s), "mine request=\"8f3a x\" n=0\n"));
    assert_int_equal(pthread_create(&t, NULL, log_from_thread, NULL), 0);

    pthread_join(t, NULL);
    assert_non_null(strstr(sink_text(&s), "other n=1\n"));
    log_request(NULL);
    log_info("mine", "n=%d", 0);
    assert_non_null(strstr(sink_text(&s), "mine n=0\n"));
    sink_close(&s);
}

static int calls;
static int count_call(void)
{
    return ++calls;
}

static void test_levels(void **state)
{
    (void)state;
    struct sink s;
    sink_open(&s, LOG_LEVEL_WARN, LOG_FORMAT_TEXT);
    calls = 0;
    log_debug("d", "n=%d", count_call());
    log_info("i", "n=%d", count_call());
    assert_string_equal(sink_text(&s), "");
    assert_int_equal(calls, 0);

    log_warn("w", "n=%d", count_call());
    assert_string_equal(after_time(sink_text(&s)), "warn w n=1\n");
    log_set_level(LOG_LEVEL_DEBUG);
    log_debug("d", "n=%d", count_call());
    assert_string_equal(after_time(sink_text(&s)), "debug d n=2\n");
    sink_close(&s);
}

static void test_long_lines_are_cut_at_a_field(void **state)
{
    (void)state;
    struct sink s;
    char *big = malloc(10000);
    assert_non_null(big);

    memset(big, 'x', 9999);
    big[9999] = 0;
    for (int format = 0; format < 2; format++) {
        sink_open(&s, LOG_LEVEL_INFO, (enum log_format)format);
        log_info("e", "a=%s b=%d c=%s d=%s e=%s f=%s", big, 1, big, big, big, big);
        const char *text = sink_text(&s);
        assert_true(strlen(text) <= LOG_LINE_MAX);
        assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
        assert_non_null(strstr(text, format ? "...\",\"b\":1,\"c\"" : "... b=1 c=xxx"));
        assert_non_null(strstr(text, format ? ",\"cut\":true}\n" : " cut=true\n"));
        sink_close(&s);
    }
    free(big);
}

static void fill(int fd)
{
    static char block[4096];
    int flags = fcntl(fd, F_GETFL);
    assert_int_equal(fd_set_nonblock(fd), 0);
    while (write(fd, block, sizeof block) > 0)
        ;
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(fcntl(fd, F_SETFL, flags), 0);
}

static void empty(int fd)
{
    char block[4096];
    while (read(fd, block, sizeof block) > 0)
        ;
}

static void check_stuck_reader(struct sink *s)
{
    uint64_t dropped = log_dropped();
    fill(s->out);
    uint64_t before = clock_now();
    for (int i = 0; i < 100; i++)
        log_info("lost", "i=%d", i);

    uint64_t took = clock_now() - before;
    assert_int_equal(log_dropped() - dropped, 100);
    if (took >= 100 * 50 * NS_PER_MS) /* it waits once, not for every line */
        fail_msg("100 lines took %ju ms", (uintmax_t)(took / NS_PER_MS));

    empty(s->in);
    log_info("back", "i=%d", 1);
    const char *text = sink_text(s);
    assert_non_null(strstr(text, "warn log.dropped count=100\n"));
    assert_non_null(strstr(text, "info back i=1\n"));
    log_info("again", "i=%d", 2);
    assert_null(strstr(sink_text(s), "dropped"));
}

static void test_a_reader_that_does_not_read(void **state)
{
    (void)state;
    struct sink s;
    sink_open(&s, LOG_LEVEL_INFO, LOG_FORMAT_TEXT);
    check_stuck_reader(&s);
    /* The caller's descriptor was not changed. */
    assert_int_equal(fcntl(s.out, F_GETFL) & O_NONBLOCK, 0);
    sink_close(&s);
}

static void test_a_socket_that_is_not_read(void **state)
{
    (void)state;
    struct sink s;
    int p[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p), 0);
    s.in = p[0];
    s.out = p[1];
    assert_int_equal(fd_set_nonblock(s.in), 0);
    log_setup(s.out, LOG_LEVEL_INFO, LOG_FORMAT_TEXT);
    check_stuck_reader(&s);
    sink_close(&s);
}

static void test_a_reader_that_is_gone(void **state)
{
    (void)state;
    struct sink s;
    sink_open(&s, LOG_LEVEL_INFO, LOG_FORMAT_TEXT);
    uint64_t dropped = log_dropped();
    fd_done(&s.in);
    errno = 4711;
    log_info("lost", "i=%d", 1); /* SIGPIPE would end the test */
    assert_int_equal(errno, 4711);
    assert_int_equal(log_dropped() - dropped, 1);
    sink_close(&s);
}

static void test_a_full_disk(void **state)
{
    (void)state;
    auto_fd full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    if (full < 0)
        skip_because("no /dev/full");

    uint64_t dropped = log_dropped();
    log_setup(full, LOG_LEVEL_INFO, LOG_FORMAT_TEXT);
    log_info("lost", "i=%d", 1);
    log_info("lost", "i=%d", 2);
    assert_int_equal(log_dropped() - dropped, 2);

    struct sink s;
    sink_open(&s, LOG_LEVEL_INFO, LOG_FORMAT_TEXT);
    log_info("back", "i=%d", 1);
    assert_non_null(strstr(sink_text(&s), "log.dropped count="));
    sink_close(&s);
}

static void *log_much(void *arg)
{
    for (int i = 0; i < 100; i++)
        log_info("e", "who=%s i=%d", (const char *)arg, i);
    return NULL;
}

static void test_lines_of_threads_do_not_mix(void **state)
{
    (void)state;
    struct sink s;
    pthread_t t[4];
    static char names[4][201];
    sink_open(&s, LOG_LEVEL_INFO, LOG_FORMAT_TEXT);
    (void)fcntl(s.out, F_SETPIPE_SZ, 1 << 20);

    uint64_t dropped = log_dropped();
    for (int i = 0; i < 4; i++) {
        memset(names[i], 'a' + i, 50);
        assert_int_equal(pthread_create(&t[i], NULL, log_much, names[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(log_dropped(), dropped);

    const char *text = sink_text(&s);
    unsigned lines = 0;
    for (const char *end; (end = strchr(text, '\n')); text = end + 1, lines++) {
        const char *who = strstr(text, "who=");
        assert_true(who && who < end);
        assert_int_equal(strspn(who + 4, (char[]){who[4], 0}), 50);
        assert_memory_equal(who + 54, " i=", 3);
    }
    assert_int_equal(lines, 400);
    sink_close(&s);
}

static void test_times(void **state)
{
    (void)state;
    char text[25];
    log_time(0, text);
    assert_string_equal(text, "1970-01-01T00:00:00.000Z");
    log_time(UINT64_C(1767323045678), text);
    assert_string_equal(text, "2026-01-02T03:04:05.678Z");
    log_time(UINT64_MAX, text); /* no such year: only not to crash */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_foreign_text_stays_in_its_field),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_the_request_is_the_thread_s),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_long_lines_are_cut_at_a_field),
        cmocka_unit_test(test_a_reader_that_does_not_read),
        cmocka_unit_test(test_a_socket_that_is_not_read),
        cmocka_unit_test(test_a_reader_that_is_gone),
        cmocka_unit_test(test_a_full_disk),
        cmocka_unit_test(test_lines_of_threads_do_not_mix),
        cmocka_unit_test(test_times),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
