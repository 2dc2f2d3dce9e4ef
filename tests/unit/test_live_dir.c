/* Directories that are held, and swept by somebody else. */
#include "memory_place.h"

#include "base/fd.h"
#include "base/live_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 20000

static int empty_place(void **state)
{
    struct place *p = *state;
    (void)unlinkat(p->dir, "d/mine", AT_REMOVEDIR);
    (void)unlinkat(p->dir, "d", AT_REMOVEDIR);
    return remove_place(state);
}

static void test_one_that_is_held_cannot_be_seized(void **state)
{
    struct place *p = *state;
    auto_fd first = live_dir_hold(p->dir, "d", 0700);
    auto_fd second = live_dir_hold(p->dir, "d", 0700);
    assert_true(first >= 0 && second >= 0);
    assert_int_equal(live_dir_seize(p->dir, "d"), -EWOULDBLOCK);
    fd_done(&first);
    assert_int_equal(live_dir_seize(p->dir, "d"), -EWOULDBLOCK);
    fd_done(&second);
    auto_fd seized = live_dir_seize(p->dir, "d");
    assert_true(seized >= 0);
}

static void test_what_is_no_directory_is_an_error(void **state)
{
    struct place *p = *state;
    assert_int_equal(live_dir_seize(p->dir, "nothing"), -ENOENT);
    assert_int_equal(symlinkat(".", p->dir, "link"), 0);
    assert_true(live_dir_seize(p->dir, "link") < 0);
    assert_true(live_dir_hold(p->dir, "link", 0700) < 0);
    assert_int_equal(unlinkat(p->dir, "link", 0), 0);
    assert_true(live_dir_hold(p->dir, "no/parent", 0700) < 0);
}

static void sweep(const struct place *p)
{
    auto_fd dir = live_dir_seize(p->dir, "d");
    if (dir < 0)
        return;
    (void)unlinkat(p->dir, "d/mine", AT_REMOVEDIR);
    (void)unlinkat(p->dir, "d", AT_REMOVEDIR);
}

/* Does the directory's name lead to what is made in it? */
static bool is_reachable(const struct place *p, int dir)
{
    struct stat st;
    return (mkdirat(dir, "mine", 0700) == 0 || errno == EEXIST) &&
           fstatat(p->dir, "d/mine", &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Against another process that sweeps without a pause. */
static void test_nobody_loses_one_that_he_holds(void **state)
{
    const struct place *p = *state;
    unsigned lost = 0;

    pid_t sweeper = child_fork();
    assert_true(sweeper >= 0);
    if (sweeper == 0) {
        alarm(200);
        for (;;)
            sweep(p);
    }

    for (unsigned i = 0; i < ROUNDS; i++) {
        auto_fd dir = live_dir_hold(p->dir, "d", 0700);
        lost += dir < 0 || !is_reachable(p, dir);
    }
    kill(sweeper, SIGKILL);
    assert_int_equal(waitpid(sweeper, NULL, 0), sweeper);
    assert_int_equal(lost, 0);
}

/* The control: one that is locked and not looked at again is lost to a sweep in between. */
static void test_a_lock_alone_holds_nothing(void **state)
{
    const struct place *p = *state;

    assert_int_equal(mkdirat(p->dir, "d", 0700), 0);
    auto_fd dir = openat(p->dir, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    sweep(p);
    assert_int_equal(flock(dir, LOCK_SH), 0);
    assert_false(is_reachable(p, dir));
}

#define IN_PLACE(test) cmocka_unit_test_setup_teardown(test, make_place, empty_place)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_PLACE(test_one_that_is_held_cannot_be_seized),
        IN_PLACE(test_what_is_no_directory_is_an_error),
        IN_PLACE(test_nobody_loses_one_that_he_holds),
        IN_PLACE(test_a_lock_alone_holds_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
