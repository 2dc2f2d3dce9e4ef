/* Removing a tree that its maker wanted to be hard to remove. */
#include "unit.h"

#include "base/fd.h"
#include "jail/store.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct place {
    char path[64];
    int dir;
};

static int make_place(void **state)
{
    static struct place p;
    /* In memory if possible: a disk takes its time with so many directories. */
    snprintf(p.path, sizeof p.path, "%s/paddock-tree-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(p.path))
        return -1;
    p.dir = open(p.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *state = &p;
    return p.dir < 0 ? -1 : 0;
}

static int remove_place(void **state)
{
    struct place *p = *state;
    close(p->dir);
    return rmdir(p->path);
}

static void make_file(int dir, const char *name)
{
    auto_fd fd = openat(dir, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
}

static int exists(int dir, const char *name)
{
    struct stat st;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static void test_a_tree_of_everything_goes(void **state)
{
    struct place *p = *state;
    assert_int_equal(mkdirat(p->dir, "t", 0755), 0);
    auto_fd t = openat(p->dir, "t", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    make_file(t, "file");
    make_file(t, "...");
    make_file(t, "new\nline");
    assert_int_equal(mkfifoat(t, "fifo", 0600), 0);
    assert_int_equal(mkdirat(t, "empty", 0), 0);
    assert_int_equal(mkdirat(t, "full", 0755), 0);
    make_file(t, "full/file");
    assert_int_equal(symlinkat("nowhere", t, "dangling"), 0);
    assert_int_equal(symlinkat(".", t, "self"), 0);
    assert_int_equal(store_remove_tree(p->dir, "t"), 0);
    assert_false(exists(p->dir, "t"));
}

static void test_links_are_removed_and_not_followed(void **state)
{
    struct place *p = *state;
    assert_int_equal(mkdirat(p->dir, "outside", 0755), 0);
    make_file(p->dir, "outside/precious");
    assert_int_equal(mkdirat(p->dir, "t", 0755), 0);
    auto_fd t = openat(p->dir, "t", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char target[128];
    snprintf(target, sizeof target, "%s/outside", p->path);
    assert_int_equal(symlinkat("../outside", t, "a"), 0);
    assert_int_equal(symlinkat(target, t, "b"), 0);
    assert_int_equal(symlinkat("../outside/precious", t, "c"), 0);
    assert_int_equal(symlinkat("..", t, "d"), 0);
    assert_int_equal(linkat(p->dir, "outside/precious", t, "hard", 0), 0);
    assert_int_equal(store_remove_tree(p->dir, "t"), 0);
    assert_true(exists(p->dir, "outside/precious"));
    /* The name itself as a link. */
    assert_int_equal(symlinkat("outside", p->dir, "link"), 0);
    assert_int_equal(store_remove_tree(p->dir, "link"), 0);
    assert_false(exists(p->dir, "link"));
    assert_true(exists(p->dir, "outside/precious"));
    assert_int_equal(store_remove_tree(p->dir, "outside"), 0);
}

static void test_a_file_and_nothing_at_all(void **state)
{
    struct place *p = *state;
    make_file(p->dir, "file");
    assert_int_equal(store_remove_tree(p->dir, "file"), 0);
    assert_int_equal(store_remove_tree(p->dir, "file"), -ENOENT);
}

static void test_a_hundred_thousand_levels(void **state)
{
    struct place *p = *state;
    int at = dup(p->dir);
    for (int i = 0; i < 100000; i++) {
        const char *name = i ? "d" : "t";
        assert_int_equal(mkdirat(at, name, 0755), 0);
        int next = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        close(at);
        at = next;
    }
    make_file(at, "file");
    close(at);
    assert_int_equal(store_remove_tree(p->dir, "t"), 0);
    assert_false(exists(p->dir, "t"));
}

static void test_a_wide_tree(void **state)
{
    struct place *p = *state;
    char name[64];
    assert_int_equal(mkdirat(p->dir, "t", 0755), 0);
    auto_fd t = openat(p->dir, "t", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "file-%d", i);
        make_file(t, name);
    }
    for (int i = 0; i < 2000; i++) {
        snprintf(name, sizeof name, "dir-%d", i);
        assert_int_equal(mkdirat(t, name, 0755), 0);
        snprintf(name, sizeof name, "dir-%d/file", i);
        make_file(t, name);
    }
    assert_int_equal(store_remove_tree(p->dir, "t"), 0);
    assert_false(exists(p->dir, "t"));
}

/* Runs `f` in a child that must end by itself; its status. */
static int in_a_child(const struct place *p, void (*f)(const struct place *))
{
    pid_t pid = fork();
    if (pid == 0) {
        alarm(10);
        f(p);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* As a user without power over modes: an error, but an end. */
static void remove_as_nobody(const struct place *p)
{
    if (fchown(p->dir, 65534, 65534) < 0 || setgid(65534) < 0 || setuid(65534) < 0)
        _exit(2);
    umask(0);
    auto_fd dir = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (mkdirat(dir, "t", 0755) < 0 || mkdirat(dir, "t/fixed", 0755) < 0 ||
        mkdirat(dir, "t/fixed/inner", 0755) < 0 || fchmodat(dir, "t/fixed", 0555, 0) < 0)
        _exit(2);
    int r = store_remove_tree(dir, "t");
    if (r == 0)
        _exit(0);
    _exit(r == -EACCES ? 0 : 3);
}

static void test_a_directory_that_may_not_be_written_is_no_endless_loop(void **state)
{
    struct place *p = *state;
    if (geteuid() != 0)
        skip_because("needs root, to become somebody else");
    int status = in_a_child(p, remove_as_nobody);
    (void)fchmodat(p->dir, "t/fixed", 0755, 0);
    (void)store_remove_tree(p->dir, "t");
    assert_int_equal(fchown(p->dir, 0, 0), 0);
    if (WIFSIGNALED(status))
        fail_msg("it does not end: signal %d", WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* What is mounted in the tree is not part of it. */
static void remove_around_a_mount(const struct place *p)
{
    char inside[128], outside[128];
    snprintf(inside, sizeof inside, "%s/t/mount", p->path);
    snprintf(outside, sizeof outside, "%s/outside", p->path);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount(outside, inside, NULL, MS_BIND, NULL) < 0)
        _exit(2);
    auto_fd dir = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = store_remove_tree(dir, "t");
    _exit(r == -EBUSY ? 0 : 3);
}

static void test_a_mount_in_the_tree_is_an_error_and_keeps_its_contents(void **state)
{
    struct place *p = *state;
    if (geteuid() != 0)
        skip_because("needs root, to mount");
    assert_int_equal(mkdirat(p->dir, "outside", 0755), 0);
    make_file(p->dir, "outside/precious");
    assert_int_equal(mkdirat(p->dir, "t", 0755), 0);
    assert_int_equal(mkdirat(p->dir, "t/mount", 0755), 0);
    int status = in_a_child(p, remove_around_a_mount);
    int kept = exists(p->dir, "outside/precious");
    (void)store_remove_tree(p->dir, "t");
    (void)store_remove_tree(p->dir, "outside");
    if (WIFSIGNALED(status))
        fail_msg("it does not end: signal %d", WTERMSIG(status));
    assert_true(kept);
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define IN_PLACE(test) cmocka_unit_test_setup_teardown(test, make_place, remove_place)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_PLACE(test_a_tree_of_everything_goes),
        IN_PLACE(test_links_are_removed_and_not_followed),
        IN_PLACE(test_a_file_and_nothing_at_all),
        IN_PLACE(test_a_hundred_thousand_levels),
        IN_PLACE(test_a_wide_tree),
        IN_PLACE(test_a_directory_that_may_not_be_written_is_no_endless_loop),
        IN_PLACE(test_a_mount_in_the_tree_is_an_error_and_keeps_its_contents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
