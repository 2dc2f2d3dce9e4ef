/* Removing a tree that its maker wanted to be hard to remove, also while he moves parts of it. */
#include "memory_place.h"

#include "base/fd.h"
#include "jail/store.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

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
    pid_t pid = child_fork();
    if (pid == 0) {
        alarm(100);
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

/* ---- somebody moves what is being removed ----
 *
 * The removal runs in a process whose openat and unlinkat wait for a supervisor (seccomp's user
 * notification), so that a part of the tree can be moved before any one of its calls: the race is
 * tried at every point instead of by chance. That process is nobody in a root directory of its own,
 * because a walk that has lost its way goes up as far as it can. */

#define NOBODY    65534
#define STEPS_MAX 60 /* a removal takes fewer; one that goes on at "/" for ever is ended */

static int install_notifier(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_unlinkat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = COUNT(code), .filter = code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
                        &program);
}

static bool make_scene(int dir)
{
    static const char *const dirs[] = {"t", "t/a", "t/a/b", "t/a/b/c", "outside"};
    static const char *const files[] = {"t/a/b/c/f", "outside/precious"};

    for (size_t i = 0; i < COUNT(dirs); i++)
        if (mkdirat(dir, dirs[i], 0755) < 0)
            return false;
    for (size_t i = 0; i < COUNT(files); i++) {
        auto_fd fd = openat(dir, files[i], O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
        if (fd < 0)
            return false;
    }
    return true;
}

static _Noreturn void remove_supervised(const struct place *p, int tell)
{
    alarm(100);
    if (chroot(p->path) < 0 || chdir("/") < 0 || setgid(NOBODY) < 0 || setuid(NOBODY) < 0 ||
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0)
        _exit(200);

    int dir = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || !make_scene(dir))
        _exit(201);
    int listener = install_notifier();
    if (listener < 0 || write(tell, &listener, sizeof listener) != sizeof listener)
        _exit(202);

    _exit(-store_remove_tree(dir, "t"));
}

/* A move that an attacker makes before the call number `step`: a rename, or what is left in its
 * place is a link. */
struct move {
    const char *from, *to, *link;
};

static void make_move(const struct place *p, const struct move *m)
{
    if (renameat(p->dir, m->from, p->dir, m->to) == 0 && m->link)
        assert_int_equal(symlinkat(m->link, p->dir, m->from), 0);
}

/* Runs one removal with its move. Returns how many calls it made; *ret_status: waitpid's. */
static unsigned run_round(const struct place *p, const struct move *m, unsigned step,
                          int *ret_status)
{
    int tell[2], number;
    unsigned calls = 0;

    assert_int_equal(fchown(p->dir, NOBODY, NOBODY), 0);
    assert_int_equal(pipe2(tell, O_CLOEXEC), 0);
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid == 0)
        remove_supervised(p, tell[1]);
    close(tell[1]);

    ssize_t told = read(tell[0], &number, sizeof number);
    close(tell[0]);
    auto_fd process = told == sizeof number ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    auto_fd listener = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, number, 0);

    while (listener >= 0) {
        struct pollfd polled = {.fd = listener, .events = POLLIN};
        struct seccomp_notif call = {0};
        if (poll(&polled, 1, 60000) <= 0 || !(polled.revents & POLLIN) ||
            ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) < 0)
            break; /* its end */

        if (calls++ == step)
            make_move(p, m);
        if (calls > STEPS_MAX)
            break;
        struct seccomp_notif_resp go = {.id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        (void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &go);
    }

    if (calls > STEPS_MAX || listener < 0)
        kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, ret_status, 0), pid);
    return calls;
}

/* Removes what a round has left of its scene. */
static void clear_scene(const struct place *p)
{
    (void)store_remove_tree(p->dir, "t");
    (void)store_remove_tree(p->dir, "outside");
    assert_false(exists(p->dir, "t") || exists(p->dir, "outside"));
}

/* Makes one move before each call of a removal in turn. Returns in how many rounds something was
 * lost that is outside of the tree. `strict`: the others must have ended with success, or with an
 * error that another try mends; else the first loss is enough. */
static unsigned count_losses(const struct place *p, const struct move *m, bool strict)
{
    int status;
    unsigned lost = 0, undisturbed = run_round(p, m, UINT_MAX, &status);
    assert_int_equal(status, 0);
    assert_false(exists(p->dir, "t"));
    clear_scene(p);

    for (unsigned step = 0; step < undisturbed && (strict || !lost); step++) {
        (void)run_round(p, m, step, &status);
        assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) < 200);
        lost += !exists(p->dir, "outside/precious");

        int r = WIFSIGNALED(status) ? EINTR : WEXITSTATUS(status);
        bool has_changed = r == ESTALE || r == EISDIR || r == ENOTDIR || r == ENOTEMPTY;
        if (strict && r != 0 && !has_changed)
            fail_msg("%s moved to %s at step %u: error %d", m->from, m->to, step, r);
        clear_scene(p);
    }
    return lost;
}

static void test_a_tree_whose_parts_are_moved_takes_nothing_else_along(void **state)
{
    static const struct move moves[] = {
        {"t/a/b/c", "outside/c", NULL},
        {"t/a/b", "outside/b", NULL},
        {"t/a/b/c", "t/moved", NULL},
        {"t/a/b", "t/moved", "../../outside"},
    };
    if (geteuid() != 0)
        skip_because("needs root, to become somebody else");
    for (size_t i = 0; i < COUNT(moves); i++)
        assert_int_equal(count_losses(*state, &moves[i], true), 0);

    /* The control: a walk that takes every ".." for the way that it came. */
    setenv("PADDOCK_WALL_OFF", "parents", 1);
    unsigned lost = count_losses(*state, &moves[0], false);
    unsetenv("PADDOCK_WALL_OFF");
    assert_true(lost > 0);
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
        IN_PLACE(test_a_tree_whose_parts_are_moved_takes_nothing_else_along),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
