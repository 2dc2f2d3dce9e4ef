/* The descriptors of the next command: whole sets, each for one taker, and none left over. */
#include "core/ready_ends.h"

#include "base/fd.h"
#include "unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>

#define ROUNDS 3000

static void close_all(const struct ready_ends *s)
{
    const int fds[] = {s->out[0], s->out[1], s->err[0], s->err[1], s->null};
    for (size_t i = 0; i < COUNT(fds); i++)
        assert_int_equal(close(fds[i]), 0); /* EBADF: somebody else had it, too */
}

static unsigned open_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned count = 0;
    assert_non_null(d);
    while (readdir(d))
        count++;
    closedir(d);
    return count;
}

static void check_pipe(const int pipe[2])
{
    char byte = 0;
    assert_int_equal(read(pipe[0], &byte, 1), -1); /* the near end does not block */
    assert_int_equal(errno, EAGAIN);
    assert_false(fcntl(pipe[1], F_GETFL) & O_NONBLOCK);
    assert_int_equal(write(pipe[1], "x", 1), 1);
    assert_int_equal(read(pipe[0], &byte, 1), 1);
    assert_int_equal(byte, 'x');

    assert_true(fcntl(pipe[0], F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(pipe[1], F_GETFD) & FD_CLOEXEC);
}

static void test_one_that_is_taken_is_whole_and_unused(void **state)
{
    (void)state;
    struct ready_ends_set s = {0};
    struct ready_ends one;
    assert_false(ready_ends_take(&s, &one));

    ready_ends_fill(&s, 1);
    assert_true(ready_ends_take(&s, &one));
    check_pipe(one.out);
    check_pipe(one.err);
    struct stat null, own;
    assert_int_equal(stat("/dev/null", &null), 0);
    assert_int_equal(fstat(one.null, &own), 0);
    assert_true(null.st_rdev == own.st_rdev);
    assert_int_equal(fcntl(one.null, F_GETFL) & O_ACCMODE, O_RDONLY);

    close_all(&one);
    assert_false(ready_ends_take(&s, &one));
}

static void test_there_are_so_many_and_none_stays_open(void **state)
{
    (void)state;
    unsigned before = open_descriptors();
    struct ready_ends_set s = {0};
    ready_ends_fill(&s, 100);
    assert_int_equal(open_descriptors(), before + 5 * READY_ENDS_MAX);
    ready_ends_fill(&s, 100);
    assert_int_equal(open_descriptors(), before + 5 * READY_ENDS_MAX);

    struct ready_ends one;
    assert_true(ready_ends_take(&s, &one));
    close_all(&one);
    ready_ends_done(&s);
    assert_int_equal(open_descriptors(), before);
}

struct race {
    struct ready_ends_set set;
    atomic_uint taken;
};

static void *take_and_fill(void *arg)
{
    struct race *r = arg;
    struct ready_ends one;
    for (unsigned i = 0; i < ROUNDS; i++) {
        ready_ends_fill(&r->set, 1 + i % 3);
        if (!ready_ends_take(&r->set, &one))
            continue;
        close_all(&one);
        atomic_fetch_add(&r->taken, 1);
    }
    return NULL;
}

static void test_two_threads_never_have_the_same(void **state)
{
    (void)state;
    unsigned before = open_descriptors();
    struct race r = {0};
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, take_and_fill, &r), 0);
    take_and_fill(&r);
    assert_int_equal(pthread_join(other, NULL), 0);

    assert_true(atomic_load(&r.taken) > 0);
    ready_ends_done(&r.set);
    assert_int_equal(open_descriptors(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_that_is_taken_is_whole_and_unused),
        cmocka_unit_test(test_there_are_so_many_and_none_stays_open),
        cmocka_unit_test(test_two_threads_never_have_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
