#include "unit.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Every test has a directory of its own, as *state. */
struct place {
    char path[64];
    int dir;
};

static int make_place(void **state)
{
    static struct place p;
    snprintf(p.path, sizeof p.path, "/tmp/paddock-fd-XXXXXX");
    if (!mkdtemp(p.path))
        return -1;
    p.dir = open(p.path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    *state = &p;
    return p.dir < 0 ? -1 : 0;
}

static int remove_place(void **state)
{
    struct place *p = *state;
    unlinkat(p->dir, "file", 0);
    close(p->dir);
    return rmdir(p->path);
}

static void make_file(const struct place *p, const char *contents, size_t len)
{
    auto_fd fd = openat(p->dir, "file", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, contents, len), 0);
}

static int is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void test_done_closes_once_and_keeps_errno(void **state)
{
    (void)state;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int number = fd;
    errno = ENOTTY;
    fd_done(&fd);
    assert_int_equal(errno, ENOTTY);
    assert_int_equal(fd, -1);
    assert_false(is_open(number));

    /* Somebody else may have the number by now: a second call must not touch it. */
    int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(other, number);
    fd_done(&fd);
    assert_true(is_open(other));
    close(other);
}

static void test_done_keeps_errno_when_close_fails(void **state)
{
    (void)state;
    int fd = 1000000; /* never open */
    errno = 0;
    fd_done(&fd);
    assert_int_equal(errno, 0);
    assert_int_equal(fd, -1);
}

static void test_a_scope_closes_what_was_not_taken(void **state)
{
    (void)state;
    int left, kept;
    {
        auto_fd a = open("/dev/null", O_RDONLY | O_CLOEXEC);
        auto_fd b = open("/dev/null", O_RDONLY | O_CLOEXEC);
        left = a;
        kept = fd_take(&b);
        assert_int_equal(b, -1);
    }

    assert_false(is_open(left));
    assert_true(is_open(kept));
    close(kept);
}

static void test_reads_a_file_below_a_directory(void **state)
{
    struct place *p = *state;
    make_file(p, "hello\0you", 9);
    char out[64];
    memset(out, 'z', sizeof out);
    assert_int_equal(fd_read_file(p->dir, "file", out, sizeof out), 9);
    assert_memory_equal(out, "hello\0you\0", 10);
}

/* The NUL needs its place: a file as long as the space does not fit. */
static void test_a_file_that_does_not_fit_is_efbig(void **state)
{
    struct place *p = *state;
    make_file(p, "12345678", 8);
    char out[10];
    memset(out, 'z', sizeof out);
    assert_int_equal(fd_read_file(p->dir, "file", out, 9), 8);
    assert_string_equal(out, "12345678");
    assert_int_equal(out[9], 'z');
    assert_int_equal(fd_read_file(p->dir, "file", out, 8), -EFBIG);
    assert_int_equal(fd_read_file(p->dir, "file", out, 1), -EFBIG);
    assert_int_equal(fd_read_file(p->dir, "file", out, 0), -EFBIG);
    assert_int_equal(out[9], 'z');
}

static void test_reads_an_empty_file_and_an_endless_one(void **state)
{
    struct place *p = *state;
    make_file(p, "", 0);
    char out[4096] = "old";
    assert_int_equal(fd_read_file(p->dir, "file", out, sizeof out), 0);
    assert_string_equal(out, "");
    assert_int_equal(fd_read_file(p->dir, "file", out, 1), 0);
    assert_int_equal(fd_read_file(AT_FDCWD, "/dev/zero", out, sizeof out), -EFBIG);
}

static void test_reads_a_kernel_file_that_says_it_is_empty(void **state)
{
    (void)state;
    char out[256];
    ssize_t n = fd_read_file(AT_FDCWD, "/proc/self/comm", out, sizeof out);
    assert_true(n > 1);
    assert_int_equal(strlen(out), n);
    assert_int_equal(out[n - 1], '\n');
}

static void test_read_errors_are_negative_errno(void **state)
{
    struct place *p = *state;
    char out[16];
    assert_int_equal(fd_read_file(p->dir, "missing", out, sizeof out), -ENOENT);
    assert_int_equal(fd_read_file(p->dir, ".", out, sizeof out), -EISDIR);
    assert_int_equal(fd_read_file(-1, "file", out, sizeof out), -EBADF);
}

static void test_write_file_wants_an_existing_file(void **state)
{
    struct place *p = *state;
    assert_int_equal(fd_write_file(p->dir, "file", "x"), -ENOENT);
    make_file(p, "", 0);
    assert_int_equal(fd_write_file(p->dir, "file", "text\n"), 0);
    char out[16];
    assert_int_equal(fd_read_file(p->dir, "file", out, sizeof out), 5);
    assert_string_equal(out, "text\n");
    assert_int_equal(fd_write_file(AT_FDCWD, "/dev/full", "x"), -ENOSPC);
}

struct drain {
    int fd;
    size_t total;
    uint64_t sum;
};

static void *drain_pipe(void *arg)
{
    struct drain *d = arg;
    uint8_t bytes[997];
    ssize_t n;
    while ((n = read(d->fd, bytes, sizeof bytes)) > 0) {
        for (ssize_t i = 0; i < n; i++)
            d->sum += bytes[i] * (d->total + (size_t)i + 1);
        d->total += (size_t)n;
    }
    return NULL;
}

/* More than a pipe holds, so that write(2) comes back short. */
static void test_write_all_goes_on_after_short_writes(void **state)
{
    (void)state;
    enum { LEN = 1 << 20 };
    uint8_t *data = malloc(LEN);
    assert_non_null(data);

    uint64_t sum = 0;
    for (size_t i = 0; i < LEN; i++) {
        data[i] = (uint8_t)(i * 31 >> 3);
        sum += data[i] * (i + 1);
    }

    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    struct drain d = {.fd = ends[0]};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, drain_pipe, &d), 0);
    assert_int_equal(fd_write_all(ends[1], data, LEN), 0);
    close(ends[1]);

    pthread_join(thread, NULL);
    close(ends[0]);
    free(data);
    assert_int_equal(d.total, LEN);
    assert_true(d.sum == sum);
}

static void test_write_all_reports_the_error(void **state)
{
    (void)state;
    auto_fd full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_int_equal(fd_write_all(full, "x", 1), -ENOSPC);
    assert_int_equal(fd_write_all(full, "x", 0), 0);
    assert_int_equal(fd_write_all(-1, "x", 1), -EBADF);
}

static void test_set_nonblock(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(fd_set_nonblock(ends[0]), 0);
    char c;
    assert_int_equal(read(ends[0], &c, 1), -1);
    assert_int_equal(errno, EAGAIN);
    assert_false(fcntl(ends[1], F_GETFL) & O_NONBLOCK);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(fd_set_nonblock(-1), -EBADF);
}

static void test_spare_descriptors(void **state)
{
    (void)state;
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);

    int next = dup(0);
    assert_true(next > 0);
    close(next);
    low = old;
    low.rlim_cur = (rlim_t)next + 4;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);

    int four = fd_spare(0, 4), five = fd_spare(0, 5), far = fd_spare(0, 100000);
    int taken = dup(0);
    int now = fd_spare(0, 4), three = fd_spare(0, 3);
    close(taken);

    setrlimit(RLIMIT_NOFILE, &old);
    assert_true(four);
    assert_false(five);
    assert_false(far);
    assert_false(now);
    assert_true(three);
    assert_int_equal(taken, next);
}

static void test_random_bytes_fill_exactly_and_differ(void **state)
{
    (void)state;
    uint8_t a[1024] = {0}, b[1024] = {0};
    random_bytes(a, 1000);
    random_bytes(b, 1000);
    assert_memory_not_equal(a, b, 32);
    for (size_t i = 1000; i < sizeof a; i++)
        assert_int_equal(a[i], 0);

    int last_used = 0;
    for (size_t i = 968; i < 1000; i++)
        last_used |= a[i];
    assert_true(last_used);
    random_bytes(a, 0);
}

int main(void)
{
#define IN_PLACE(test) cmocka_unit_test_setup_teardown(test, make_place, remove_place)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_done_closes_once_and_keeps_errno),
        cmocka_unit_test(test_done_keeps_errno_when_close_fails),
        cmocka_unit_test(test_a_scope_closes_what_was_not_taken),
        IN_PLACE(test_reads_a_file_below_a_directory),
        IN_PLACE(test_a_file_that_does_not_fit_is_efbig),
        IN_PLACE(test_reads_an_empty_file_and_an_endless_one),
        cmocka_unit_test(test_reads_a_kernel_file_that_says_it_is_empty),
        IN_PLACE(test_read_errors_are_negative_errno),
        IN_PLACE(test_write_file_wants_an_existing_file),
        cmocka_unit_test(test_write_all_goes_on_after_short_writes),
        cmocka_unit_test(test_write_all_reports_the_error),
        cmocka_unit_test(test_set_nonblock),
        cmocka_unit_test(test_spare_descriptors),
        cmocka_unit_test(test_random_bytes_fill_exactly_and_differ),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
