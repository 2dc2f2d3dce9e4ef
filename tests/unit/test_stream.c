#include "unit.h"

#include "base/clock.h"
#include "base/fd.h"
#include "cli/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A stream between two pipes, both blocking, as they may come from outside. */
struct between {
    struct stream s;
    int feed, result; /* this test's ends */
};

static int setup(void **state)
{
    static struct between b;
    int in[2], out[2];
    signal(SIGPIPE, SIG_IGN);
    if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0 ||
        stream_init(&b.s, in[0], out[1]) < 0)
        return -1;
    b.s.from_is_ours = b.s.to_is_ours = 1;
    b.feed = in[1];
    b.result = out[0];
    alarm(120); /* nothing here may block */
    *state = &b;
    return 0;
}

static int teardown(void **state)
{
    struct between *b = *state;
    alarm(0);
    stream_close(&b->s);
    fd_done(&b->feed);
    fd_done(&b->result);
    return 0;
}

/* Polls once, for at most 50 ms, and moves. 0 when nothing happened. */
static int turn(struct stream *s)
{
    struct pollfd p;
    if (!stream_poll(s, &p) || poll(&p, 1, 50) <= 0)
        return 0;
    stream_move(s, p.revents);
    return 1;
}

static void test_bytes_pass_in_order_and_the_end_passes_too(void **state)
{
    struct between *b = *state;
    char got[64] = "";

    assert_int_equal(write(b->feed, "hello ", 6), 6);
    while (turn(&b->s))
        ;
    assert_int_equal(write(b->feed, "you", 3), 3);
    fd_done(&b->feed);
    while (turn(&b->s))
        ;
    assert_true(stream_is_over(&b->s));
    assert_int_equal(read(b->result, got, sizeof got - 1), 9);
    assert_string_equal(got, "hello you");
    assert_int_equal(read(b->result, got, sizeof got), 0); /* our end is closed */
    assert_true(b->s.total == 9);
}

static void test_a_reader_that_stops_stops_the_writer(void **state)
{
    struct between *b = *state;
    uint8_t bytes[4096];
    uint64_t sent = 0, received = 0;
    int idle = 0;
    assert_int_equal(fd_set_nonblock(b->feed), 0);

    while (idle < 3) {
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)((sent + i) * 31 % 251);
        ssize_t n = write(b->feed, bytes, sizeof bytes);
        sent += n > 0 ? (uint64_t)n : 0;
        int moved = turn(&b->s);
        idle = n > 0 || moved ? 0 : idle + 1;
    }

    /* Two pipes and one chunk, and then it stands still. */
    assert_true(sent >= 64 << 10 && sent <= 3 * (64 << 10) + 4096);
    fd_done(&b->feed);

    while (received < sent) {
        while (turn(&b->s) && b->s.have > b->s.sent)
            ;
        ssize_t n = read(b->result, bytes, sizeof bytes);
        assert_true(n > 0);
        for (ssize_t i = 0; i < n; i++)
            assert_int_equal(bytes[i], (received + (uint64_t)i) * 31 % 251);
        received += (uint64_t)n;
    }

    while (turn(&b->s))
        ;
    assert_true(stream_is_over(&b->s));
}

static void test_a_reader_that_goes_away_is_felt_by_the_writer(void **state)
{
    struct between *b = *state;
    fd_done(&b->result);
    assert_int_equal(write(b->feed, "x", 1), 1);
    while (turn(&b->s))
        ;
    assert_true(stream_is_over(&b->s));
    assert_int_equal(write(b->feed, "x", 1), -1);
    assert_int_equal(errno, EPIPE);
}

static void test_a_reader_that_goes_away_in_the_middle(void **state)
{
    struct between *b = *state;
    uint8_t bytes[64 << 10] = {0};
    assert_int_equal(fd_set_nonblock(b->feed), 0);

    for (int idle = 0; idle < 2;) {
        ssize_t n = write(b->feed, bytes, sizeof bytes);
        idle = turn(&b->s) || n > 0 ? 0 : idle + 1;
    }
    assert_true(b->s.have > b->s.sent);

    fd_done(&b->result);
    while (turn(&b->s))
        ;
    assert_true(stream_is_over(&b->s));
}

static void test_drain_takes_what_is_there_and_does_not_wait_for_more(void **state)
{
    struct between *b = *state;
    char got[16];
    assert_int_equal(write(b->feed, "rest", 4), 4);
    uint64_t start = clock_now();
    stream_drain(&b->s, deadline_in(60 * NS_PER_S)); /* the feed stays open */
    assert_true(clock_now() - start < 30 * NS_PER_S);
    assert_int_equal(read(b->result, got, sizeof got), 4);
}

static void test_drain_gives_up_on_a_reader_at_the_deadline(void **state)
{
    struct between *b = *state;
    static uint8_t bytes[64 << 10];
    assert_int_equal(fd_set_nonblock(b->feed), 0);
    for (int idle = 0; idle < 2;) {
        ssize_t n = write(b->feed, bytes, sizeof bytes);
        idle = turn(&b->s) || n > 0 ? 0 : idle + 1;
    }
    uint64_t start = clock_now();
    stream_drain(&b->s, deadline_in(100 * NS_PER_MS));
    uint64_t took = clock_now() - start;
    assert_true(took >= 100 * NS_PER_MS && took < 30 * NS_PER_S);
}

static void test_a_closed_descriptor_does_not_spin(void **state)
{
    struct between *b = *state;
    struct stream s;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(stream_init(&s, fd, b->s.to), 0);
    close(fd);
    int turns = 0;
    while (turns < 100 && turn(&s))
        turns++;
    stream_close(&s);
    assert_true(turns < 100);
}

/* A terminal that nobody reads: Ctrl-S, or a window that hangs. Polled or not, it must not block.
 */
static void test_a_stopped_terminal_does_not_block(void **state)
{
    struct between *b = *state;
    auto_fd master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0)
        skip_because("no terminal can be made here");
    auto_fd slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(slave >= 0);

    pid_t pid = child_fork();
    if (pid == 0) {
        static uint8_t bytes[64 << 10];
        memset(bytes, 'x', sizeof bytes);
        struct stream s;
        /* Only our own standard streams are opened anew. */
        if (dup2(slave, STDOUT_FILENO) < 0 || fd_set_nonblock(b->feed) < 0 ||
            stream_init(&s, b->s.from, STDOUT_FILENO) < 0)
            _exit(2);
        alarm(60);
        for (int idle = 0; idle < 3;) {
            ssize_t n = write(b->feed, bytes, sizeof bytes);
            idle = turn(&s) || n > 0 ? 0 : idle + 1;
        }
        _exit(0);
    }

    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status))
        fail_msg("blocked until signal %d", WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* What a capture of `total` bytes must read as, by a second way of counting. */
static void check_capture(uint64_t total, size_t piece)
{
    struct capture c;
    const uint64_t half = CAPTURE_MAX / 2;
    uint8_t *bytes = malloc(piece);
    assert_int_equal(capture_init(&c), 0);

    for (uint64_t at = 0; at < total;) {
        size_t n = total - at < piece ? (size_t)(total - at) : piece;
        for (size_t i = 0; i < n; i++)
            bytes[i] = (uint8_t)((at + i) % 251);
        capture_add(&c, bytes, n);
        at += n;
    }

    auto_buf text = BUF_INIT(2 * CAPTURE_MAX);
    capture_text(&c, &text);
    assert_true(c.total == total);
    assert_int_equal(text.overflow, 0);
    assert_int_equal(capture_truncated(&c), total > CAPTURE_MAX);

    char note[80] = "";
    if (total > CAPTURE_MAX)
        snprintf(note, sizeof note, "\n[... %llu bytes left out ...]\n",
                 (unsigned long long)(total - CAPTURE_MAX));
    uint64_t kept = total > CAPTURE_MAX ? CAPTURE_MAX : total;
    assert_int_equal(text.len, kept + strlen(note));

    uint64_t head = kept < half ? kept : half, tail = kept - head;
    for (uint64_t i = 0; i < head; i++)
        assert_int_equal(text.data[i], i % 251);
    assert_memory_equal(text.data ? (const char *)text.data + head : "", note, strlen(note));
    for (uint64_t i = 0; i < tail; i++)
        assert_int_equal(text.data[text.len - tail + i], (total - tail + i) % 251);

    buf_done(&c.head);
    free(c.tail);
    free(bytes);
}

static void test_a_capture_keeps_head_and_tail(void **state)
{
    (void)state;
    static const uint64_t totals[] = {0,
                                      1,
                                      CAPTURE_MAX / 2 - 1,
                                      CAPTURE_MAX / 2,
                                      CAPTURE_MAX / 2 + 1,
                                      CAPTURE_MAX - 1,
                                      CAPTURE_MAX,
                                      CAPTURE_MAX + 1,
                                      CAPTURE_MAX + CAPTURE_MAX / 2,
                                      3 * CAPTURE_MAX + 7};

    for (size_t i = 0; i < COUNT(totals); i++) {
        check_capture(totals[i], 65536);
        check_capture(totals[i], 4093);
        check_capture(totals[i], 2 * CAPTURE_MAX + 3);
    }
}

static void test_a_captured_stream_never_waits(void **state)
{
    struct between *b = *state;
    struct capture c;
    static uint8_t bytes[32 << 10];
    assert_int_equal(capture_init(&c), 0);

    b->s.capture = &c;
    fd_done(&b->s.to);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(write(b->feed, bytes, sizeof bytes), sizeof bytes);
        while (b->s.total < (uint64_t)(i + 1) * sizeof bytes)
            assert_int_equal(turn(&b->s), 1);
    }

    fd_done(&b->feed);
    while (turn(&b->s))
        ;
    assert_true(stream_is_over(&b->s));
    assert_true(c.total == 100 * sizeof bytes);
    assert_true(capture_truncated(&c));
    buf_done(&c.head);
    free(c.tail);
}

#define FED(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FED(test_bytes_pass_in_order_and_the_end_passes_too),
        FED(test_a_reader_that_stops_stops_the_writer),
        FED(test_a_reader_that_goes_away_is_felt_by_the_writer),
        FED(test_a_reader_that_goes_away_in_the_middle),
        FED(test_drain_takes_what_is_there_and_does_not_wait_for_more),
        FED(test_drain_gives_up_on_a_reader_at_the_deadline),
        FED(test_a_closed_descriptor_does_not_spin),
        FED(test_a_stopped_terminal_does_not_block),
        cmocka_unit_test(test_a_capture_keeps_head_and_tail),
        FED(test_a_captured_stream_never_waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
