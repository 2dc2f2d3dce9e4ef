/* The walk that takes openat2's place, against openat2 itself: the same file or the same error for
 * every path; and against somebody who swaps directories and links under it. */
#include "unit.h"

#include "base/clock.h"
#include "init/path.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 20000

static char top[] = "/tmp/paddock-path-XXXXXX";

static int in_top(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(top));
    assert_int_equal(chdir(top), 0);
    assert_int_equal(
        mkdir("in", 0755) | mkdir("in/a", 0755) | mkdir("in/a/b", 0755) | mkdir("out", 0755), 0);
    close(open("in/a/b/file", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    close(open("in/file", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    close(open("out/secret", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));

    static const char *const links[][2] = {
        {"a/b/file", "in/to-file"},      {"a", "in/to-dir"},
        {"to-dir/b/", "in/to-to-dir"},   {"loop-b", "in/loop-a"},
        {"loop-a", "in/loop-b"},         {"nowhere", "in/dangling"},
        {"../out/secret", "in/up"},      {"/etc/passwd", "in/abs"},
        {"/proc/self/root", "in/magic"}, {"..", "in/a/dotdot"},
        {"a/b/../b/file", "in/dots"},    {"file/", "in/slashed"},
        {"/proc/self/fd/0", "in/fd"},    {"/proc/self/status", "in/status"},
    };
    for (size_t i = 0; i < COUNT(links); i++)
        assert_int_equal(symlink(links[i][0], links[i][1]), 0);
    return 0;
}

static int out_of_top(void **state)
{
    (void)state;
    char command[64];
    assert_int_equal(chdir("/"), 0);
    snprintf(command, sizeof command, "%s", top);
    pid_t pid = child_fork();
    if (pid == 0) {
        execlp("rm", "rm", "-rf", command, (char *)NULL);
        _exit(1);
    }
    return waitpid(pid, NULL, 0) == pid ? 0 : -1;
}

/* openat2 as path_openat calls it. */
static int by_kernel(int dir, const char *path, int flags, uint64_t resolve)
{
    uint64_t also = flags & O_PATH ? O_CLOEXEC : O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    struct open_how how = {.flags = (uint64_t)(unsigned)flags | also,
                           .resolve = RESOLVE_NO_MAGICLINKS | resolve};
    long fd;
    do /* whenever anybody on the machine renames or mounts something, ".." is refused */
        fd = syscall(SYS_openat2, dir, path, &how, sizeof how);
    while (fd < 0 && errno == EAGAIN);
    return fd < 0 ? -errno : (int)fd;
}

static const char *const paths[] = {
    "",
    ".",
    "..",
    "/",
    "//",
    "file",
    "file/",
    "a",
    "a/",
    "a//b/./file",
    "a/b/file/",
    "a/b/file/x",
    "a/../file",
    "../out/secret",
    "a/../../out/secret",
    "a/b/../../file",
    "to-file",
    "to-file/",
    "to-dir",
    "to-dir/",
    "to-dir/b/file",
    "to-to-dir",
    "to-to-dir/file",
    "loop-a",
    "loop-a/x",
    "dangling",
    "dangling/",
    "up",
    "abs",
    "magic",
    "magic/etc",
    "a/dotdot",
    "a/dotdot/file",
    "a/dotdot/../out/secret",
    "dots",
    "slashed",
    "fd",
    "status",
    "missing",
    "missing/x",
    "/etc/passwd",
    "/proc/self/cwd",
    "/proc/self/cwd/x",
    "/proc/self/exe",
    "/proc/self/status",
    "/proc/thread-self/status",
    "/proc/mounts",
    "/proc/self/ns/mnt",
    "./././a/./b/.",
    "a/b/..",
    "a/.",
};

static void test_the_walk_finds_what_openat2_finds(void **state)
{
    (void)state;
    static const int flags[] = {O_PATH,   O_PATH | O_NOFOLLOW,   O_PATH | O_DIRECTORY,
                                O_RDONLY, O_RDONLY | O_NOFOLLOW, O_RDONLY | O_DIRECTORY,
                                O_WRONLY};
    static const uint64_t resolves[] = {0, RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS,
                                        RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    auto_fd dir = open("in", O_PATH | O_DIRECTORY | O_CLOEXEC);
    unsigned found = 0, refused = 0;

    for (size_t p = 0; p < COUNT(paths); p++)
        for (size_t f = 0; f < COUNT(flags); f++)
            for (size_t r = 0; r < COUNT(resolves); r++) {
                struct stat a = {0}, b = {0};
                int also = flags[f] & O_PATH ? O_CLOEXEC : O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
                auto_fd kernel = by_kernel(dir, paths[p], flags[f], resolves[r]);
                auto_fd walk = path_walk(dir, paths[p], flags[f] | also, 0, resolves[r]);
                if (kernel >= 0 && walk >= 0) {
                    assert_int_equal(fstat(kernel, &a) | fstat(walk, &b), 0);
                    found++;
                }
                refused += kernel < 0;
                if ((kernel < 0 ? kernel : 0) != (walk < 0 ? walk : 0) || a.st_ino != b.st_ino ||
                    a.st_dev != b.st_dev)
                    fail_msg("'%s' flags %#x resolve %#llx: %d instead of %d", paths[p],
                             (unsigned)flags[f], (unsigned long long)resolves[r], walk, kernel);
            }
    assert_true(found > 100 && refused > 100);
}

static void test_files_are_made_as_openat2_makes_them(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        int flags, expected;
    } rows[] = {
        {"in/new", O_CREAT | O_WRONLY, 0},
        {"in/new", O_CREAT | O_EXCL | O_WRONLY, -EEXIST},
        {"in/dangling", O_CREAT | O_EXCL | O_WRONLY, -EEXIST},
        {"in/dangling", O_CREAT | O_WRONLY, 0},
        {"in/a/", O_CREAT | O_WRONLY, -EISDIR},
        {"in/missing/new", O_CREAT | O_WRONLY, -ENOENT},
        {"in/to-dir/new", O_CREAT | O_WRONLY, 0},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_fd fd = path_walk(AT_FDCWD, rows[i].path, rows[i].flags | O_CLOEXEC, 0600, 0);
        if ((fd < 0 ? fd : 0) != rows[i].expected)
            fail_msg("'%s': %d instead of %d", rows[i].path, fd, rows[i].expected);
    }

    struct stat st;
    assert_int_equal(lstat("in/nowhere", &st), 0); /* through the link */
    assert_int_equal(unlink("in/nowhere") | unlink("in/new") | unlink("in/a/new"), 0);
}

/* Swaps in/swap between a directory of its own and a link to out, and moves in/a/deep away from
 * under whoever stands in it, until it is killed. */
static pid_t start_swapping(void)
{
    assert_int_equal(mkdir("in/swap", 0755) | symlink("../out", "in/link") |
                         mkdir("in/a/deep", 0755) | mkdir("in/a/deep/er", 0755),
                     0);
    close(open("in/swap/secret", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    pid_t pid = child_fork();
    if (pid)
        return pid;

    for (;;) {
        syscall(SYS_renameat2, AT_FDCWD, "in/swap", AT_FDCWD, "in/link", 2 /* EXCHANGE */);
        (void)rename("in/a/deep", "out/deep");
        (void)rename("out/deep", "in/a/deep");
    }
}

static void test_nobody_gets_out_by_swapping(void **state)
{
    (void)state;
    struct stat secret, st;
    auto_fd dir = open("in", O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(stat("out/secret", &secret), 0);
    pid_t swapper = start_swapping();
    unsigned inside = 0, refused = 0, out = 0;

    deadline d = deadline_in(20 * NS_PER_S); /* for a swapper that gets no turn */
    for (unsigned i = 0; i < ROUNDS || (!out && !deadline_passed(d)); i++) {
        static const uint64_t resolves[] = {RESOLVE_BENEATH, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
        static const char *const names[] = {"swap/secret", "a/deep/er/../../../../out/secret",
                                            "a/deep/../../file"};
        auto_fd fd = path_walk(dir, names[i % 3], O_RDONLY | O_CLOEXEC, 0, resolves[i / 3 % 2]);
        refused += fd < 0;
        if (fd >= 0) {
            assert_int_equal(fstat(fd, &st), 0);
            assert_int_not_equal(st.st_ino, secret.st_ino);
            inside++;
        }

        /* The control: without the rule the same names lead out. */
        auto_fd free_fd = path_walk(dir, "swap/secret", O_RDONLY | O_CLOEXEC, 0, 0);
        out += free_fd >= 0 && fstat(free_fd, &st) == 0 && st.st_ino == secret.st_ino;
    }

    kill(swapper, SIGKILL);
    waitpid(swapper, NULL, 0);
    assert_true(inside > 0 && refused > 0 && out > 0);
}

/* path_openat itself, where a filter refuses openat2 in either way. */
static void test_a_refused_openat2_is_walked_around(void **state)
{
    (void)state;
    static const int refusals[] = {ENOSYS, EPERM};

    for (size_t i = 0; i < COUNT(refusals); i++) {
        pid_t pid = child_fork();

        if (pid == 0) {
            struct sock_filter code[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)refusals[i]),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
            };
            struct sock_fprog program = {COUNT(code), code};
            if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
                prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0)
                _exit(10);
            if (by_kernel(AT_FDCWD, "in/file", O_RDONLY, 0) != -refusals[i])
                _exit(11);
            if (path_openat(AT_FDCWD, "in/to-dir/b/file", O_RDONLY, 0, 0) < 0)
                _exit(12);
            if (path_openat(AT_FDCWD, "in/up", O_RDONLY, 0, RESOLVE_NO_SYMLINKS) != -ELOOP)
                _exit(13);
            if (path_openat(AT_FDCWD, "in/missing", O_RDONLY, 0, 0) != -ENOENT)
                _exit(14);
            _exit(0);
        }

        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_walk_finds_what_openat2_finds),
        cmocka_unit_test(test_files_are_made_as_openat2_makes_them),
        cmocka_unit_test(test_nobody_gets_out_by_swapping),
        cmocka_unit_test(test_a_refused_openat2_is_walked_around),
    };
    return cmocka_run_group_tests(tests, in_top, out_of_top);
}
