/* Bytes go from one descriptor to another through a place, by a process that is killed all the
 * time: every one of them comes out once and in order, whatever the two are. */
#include "unit.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "box/guard.h"
#include "box/keep.h"

#include "base/banned.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define KILLS 150u
#define BYTES (16u << 20) /* of a file */

static volatile struct {
    pid_t mover; /* the one that lives now */
    unsigned kills;
} * seen;

struct road {
    struct keep *keep;
    int from, to;
};

static uint8_t byte_at(uint64_t at)
{
    return (uint8_t)((at * 7 + (at >> 8) * 31 + (at >> 16) * 3) % 251);
}

/* ---- who is killed ---- */

static uint64_t progress(void *context)
{
    (void)context;
    static uint64_t any;
    return any++;
}

/* Until all is there. */
static int move(void *context)
{
    const struct road *r = context;
    seen->mover = getpid();
    keep_begin_again(r->keep, 1000, NULL, 0);
    struct keep_place p = keep_claim(r->keep, 0);
    bool more = true;

    while (more || p.written < p.end) {
        const uint8_t *data;
        size_t len = 0;
        poll((struct pollfd[]){{r->from, more ? POLLIN : 0, 0}, {r->to, POLLOUT, 0}}, 2, 10);
        ssize_t n = keep_read(r->keep, 0, r->from, p.written, 1 + p.end % 9000, &data);
        more = more && n != 0;
        p.end += n > 0 ? (uint64_t)n : 0;
        data = keep_bytes(r->keep, 0, p.written, &len);
        n = data ? keep_write(r->keep, 0, r->to, data, len) : 0;
        p.written += n > 0 ? (uint64_t)n : 0;
    }
    return 0;
}

static pid_t begin(const struct road *r, int near, int far)
{
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    (void)signal(SIGPIPE, SIG_IGN);
    close(near);
    close(far);
    _exit(guard_run(move, progress, /* pause_ms */ 0, (void *)(uintptr_t)r));
}

static void kill_now(void)
{
    pid_t victim = seen->mover;
    int process = victim ? (int)syscall(SYS_pidfd_open, victim, 0) : -1;
    if (process >= 0 && seen->mover == victim)
        seen->kills += syscall(SYS_pidfd_send_signal, process, SIGKILL, NULL, 0) == 0;
    if (process >= 0)
        close(process);
}

/* ---- both ends ---- */

/* Puts in until there were kills enough, and takes everything out. `near` is -1 where all is there.
 */
static void both_ends(int near, int far)
{
    static uint8_t piece[8192];
    uint64_t put = 0, got = 0;
    if (near >= 0)
        fd_set_nonblock(near);
    fd_set_nonblock(far);

    for (;;) {
        struct pollfd p[2] = {{near, POLLOUT, 0}, {far, POLLIN, 0}};
        assert_true(poll(p, 2, 60000) > 0);
        if (rand() % 40 == 0 && (near >= 0 || got < BYTES / 2))
            kill_now();
        if (p[0].revents) {
            size_t len = 1 + (size_t)rand() % sizeof piece;
            for (size_t i = 0; i < len; i++)
                piece[i] = byte_at(put + i);
            ssize_t n = write(near, piece, len);
            put += n > 0 ? (uint64_t)n : 0;
            if (seen->kills >= KILLS) {
                close(near);
                near = -1;
            }
        }
        if (!p[1].revents)
            continue;
        ssize_t n = read(far, piece, sizeof piece);
        if (n == 0)
            break;
        for (ssize_t i = 0; i < n; i++)
            if (piece[i] != byte_at(got + (uint64_t)i))
                fail_msg("byte %llu is another", (unsigned long long)got + (unsigned)i);
        got += n > 0 ? (uint64_t)n : 0;
    }
    assert_int_equal(got, put ? put : BYTES);
}

static void go(int in[2], int out[2])
{
    struct road r = {.keep = keep_new(), .from = in[0], .to = out[1]};
    int status;
    assert_non_null(r.keep);
    assert_int_equal(keep_place(r.keep), 0);
    fd_set_nonblock(r.from);
    fd_set_nonblock(r.to);
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(seen != MAP_FAILED);

    pid_t pid = begin(&r, in[1], out[0]);
    close(in[0]);
    close(out[1]);
    both_ends(in[1], out[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_true(seen->kills > 0);
    close(out[0]);
    keep_free(r.keep);
    munmap((void *)(uintptr_t)seen, sizeof *seen);
}

static void test_from_pipe_to_pipe(void **state)
{
    (void)state;
    int in[2], out[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    go(in, out);
}

static void test_from_socket_to_socket(void **state)
{
    (void)state;
    int in[2], out[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, out), 0);
    go(in, out);
}

static void test_from_file_to_pipe(void **state)
{
    (void)state;
    static uint8_t all[BYTES];
    int in[2] = {memfd_create("test", MFD_CLOEXEC), -1}, out[2];
    for (size_t i = 0; i < sizeof all; i++)
        all[i] = byte_at(i);
    assert_int_equal(write(in[0], all, sizeof all), sizeof all);
    assert_int_equal(lseek(in[0], 0, SEEK_SET), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    go(in, out);
}

static int die(void *context)
{
    unsigned *lives = context;
    if (++seen->kills > *lives)
        return 7;
    (void)raise(SIGKILL);
    return 1;
}

/* However it comes anywhere: who is killed at once each time does not keep the machine busy. */
static void test_short_lives_are_not_many(void **state)
{
    (void)state;
    unsigned lives = 20;
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(seen != MAP_FAILED);
    uint64_t before = clock_now();
    assert_int_equal(guard_run(die, progress, 10, &lives), 7);
    assert_int_equal(seen->kills, lives + 1);
    assert_true(clock_now() - before >= lives * 10 * NS_PER_MS);
    munmap((void *)(uintptr_t)seen, sizeof *seen);
}

/* A record is the old one or the new one, and what is forgotten is given away behind it. */
static void test_a_record_is_replaced_as_a_whole(void **state)
{
    (void)state;
    struct keep *k = keep_new();
    auto_buf b = BUF_INIT(64);
    size_t len;
    assert_int_equal(keep_count(k), 0);
    buf_puts(&b, "one");
    assert_int_equal(keep_record(k, &b), 0);
    buf_puts(&b, " two");
    assert_int_equal(keep_record(k, &b), 0);
    assert_memory_equal(keep_recorded(k, &len), "one two", 7);
    assert_int_equal(len, 7);
    b.overflow = 1;
    assert_int_equal(keep_record(k, &b), -1);
    assert_int_equal(keep_count(k), 2);

    assert_int_equal(keep_place(k), 0);
    keep_leave(k, 0);
    assert_int_equal(keep_place(k), 1);
    b.overflow = 0;
    assert_int_equal(keep_record(k, &b), 0);
    assert_int_equal(keep_place(k), 0);
    keep_free(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_from_pipe_to_pipe),
        cmocka_unit_test(test_from_socket_to_socket),
        cmocka_unit_test(test_from_file_to_pipe),
        cmocka_unit_test(test_short_lives_are_not_many),
        cmocka_unit_test(test_a_record_is_replaced_as_a_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
