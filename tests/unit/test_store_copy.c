/* Copying roots whose maker wanted that to go wrong, and roots on a disk that is too small. */
#include "unit.h"

#include "base/err.h"
#include "base/fd.h"
#include "jail/copy.h"
#include "jail/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

struct place {
    const char *parent;
    char path[64], state[80];
    int dir, roots;
};

static int make_place(void **state)
{
    static struct place p;
    /* In memory if possible: a disk takes its time to keep so many files. */
    p.parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(p.path, sizeof p.path, "%s/paddock-copy-XXXXXX", p.parent);
    if (!mkdtemp(p.path))
        return -1;
    snprintf(p.state, sizeof p.state, "%s/state", p.path);
    p.dir = open(p.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    umask(0);
    if (mkdirat(p.dir, "state", 0755) < 0 || mkdirat(p.dir, "state/roots", 0700) < 0)
        return -1;
    p.roots = openat(p.dir, "state/roots", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *state = &p;
    return p.roots < 0 ? -1 : 0;
}

static int remove_place(void **state)
{
    struct place *p = *state;
    close(p->dir);
    close(p->roots);
    auto_fd parent = open(p->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return store_remove_tree(parent, p->path + strlen(p->parent) + 1);
}

static void write_file(int dir, const char *name, const char *text, mode_t mode)
{
    auto_fd fd = openat(dir, name, O_CREAT | O_WRONLY | O_EXCL | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
}

/* A root with an empty tree; the tree. */
static int make_root(const struct place *p, const char *name)
{
    char tree[80];
    snprintf(tree, sizeof tree, "%s/tree", name);
    assert_int_equal(mkdirat(p->roots, name, 0700), 0);
    assert_int_equal(mkdirat(p->roots, tree, 0755), 0);
    int fd = openat(p->roots, tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static int open_tree_of(const struct place *p, const char *name)
{
    char tree[80];
    snprintf(tree, sizeof tree, "%s/tree", name);
    return openat(p->roots, tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int exists(int dir, const char *name)
{
    struct stat st;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static int copy(const struct place *p, const char *from, const char *to)
{
    struct pd_err e = {.msg = ""};
    int r = store_copy_root(p->state, from, to, -1, -1, &e);
    return r == 0 ? 0 : 1 + (int)e.code;
}

/* Not one entry of the store is left of a copy that failed. */
static unsigned entries(const struct place *p)
{
    unsigned n = 0;
    DIR *d = fdopendir(openat(p->roots, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    assert_non_null(d);
    for (const struct dirent *x; (x = readdir(d));)
        n += strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0;
    closedir(d);
    return n;
}

static void test_a_tree_of_everything_is_copied(void **state)
{
    struct place *p = *state;
    auto_fd t = make_root(p, "a");
    struct stat st, other;
    char text[PATH_MAX];

    write_file(t, "file", "hello", 0640);
    write_file(t, "set-user-id", "x", 0755);
    assert_int_equal(fchmodat(t, "set-user-id", 04755, 0), 0);

    write_file(t, "new\nline", "n", 0);
    write_file(t, "...", "dots", 0644);
    write_file(t, "empty", "", 0444);
    assert_int_equal(mkdirat(t, "closed", 0), 0);
    assert_int_equal(mkdirat(t, "full", 01777), 0);
    write_file(t, "full/one", "1", 0600);
    assert_int_equal(linkat(t, "full/one", t, "two", 0), 0);

    assert_int_equal(mkdirat(t, "full/deeper", 0755), 0);
    assert_int_equal(linkat(t, "full/one", t, "full/deeper/three", 0), 0);
    assert_int_equal(mkfifoat(t, "fifo", 0620), 0);
    assert_int_equal(mknodat(t, "socket", S_IFSOCK | 0666, 0), 0);
    assert_int_equal(symlinkat("/etc/shadow", t, "shadow"), 0);
    assert_int_equal(symlinkat("../../../../..", t, "up"), 0);

    auto_fd file = openat(t, "file", O_RDWR | O_CLOEXEC);
    int attributes = fsetxattr(file, "user.colour", "red", 3, 0) == 0;
    const struct timespec times[2] = {{.tv_sec = 1000000000, .tv_nsec = 5},
                                      {.tv_sec = 1100000000, .tv_nsec = 7}};
    assert_int_equal(futimens(file, times), 0);
    assert_int_equal(utimensat(t, "full", times, 0), 0);
    assert_int_equal(utimensat(t, "shadow", times, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(futimens(t, times), 0);

    if (geteuid() == 0) {
        assert_int_equal(fchownat(t, "file", 1000, 60000, 0), 0);
        assert_int_equal(fchownat(t, "shadow", 1000, 1000, AT_SYMLINK_NOFOLLOW), 0);
        assert_int_equal(fchownat(t, "set-user-id", 1000, 1000, 0), 0);
        assert_int_equal(fchmodat(t, "set-user-id", 04755, 0), 0);
        assert_int_equal(mknodat(t, "white-out", S_IFCHR | 0600, makedev(0, 0)), 0);
        assert_int_equal(mknodat(t, "disk", S_IFBLK | 0666, makedev(7, 200)), 0);
    }

    assert_int_equal(copy(p, "a", "b"), 0);
    auto_fd c = open_tree_of(p, "b");
    assert_true(c >= 0);

    static const char *const same[] = {
        "file",     "set-user-id", "new\nline", "...",    "empty",  "closed", "full",
        "full/one", "full/deeper", "fifo",      "socket", "shadow", "up",     "."};
    for (size_t i = 0; i < COUNT(same); i++) {
        assert_int_equal(fstatat(t, same[i], &st, AT_SYMLINK_NOFOLLOW), 0);
        if (fstatat(c, same[i], &other, AT_SYMLINK_NOFOLLOW) < 0)
            fail_msg("'%s' is not in the copy", same[i]);
        assert_int_equal(other.st_mode, st.st_mode);
        assert_int_equal(other.st_uid, st.st_uid);
        assert_int_equal(other.st_gid, st.st_gid);
        assert_int_equal(other.st_mtim.tv_sec, st.st_mtim.tv_sec);
        assert_int_equal(other.st_mtim.tv_nsec, st.st_mtim.tv_nsec);
        assert_int_equal(other.st_nlink, st.st_nlink);
        if (!S_ISDIR(st.st_mode))
            assert_int_equal(other.st_size, st.st_size);
    }

    assert_true(fd_read_file(c, "file", text, sizeof text) == 5 && !strcmp(text, "hello"));
    assert_true(readlinkat(c, "shadow", text, sizeof text) == 11 && !memcmp(text, "/etc/sh", 7));
    assert_int_equal(fstatat(c, "full/one", &st, 0), 0);
    assert_int_equal(fstatat(c, "full/deeper/three", &other, 0), 0);
    assert_true(st.st_ino == other.st_ino && st.st_nlink == 3);

    auto_fd copied = openat(c, "file", O_RDONLY | O_CLOEXEC);
    assert_true(!attributes || fgetxattr(copied, "user.colour", text, sizeof text) == 3);
    assert_int_equal(exists(c, "white-out"), geteuid() == 0);
    assert_false(exists(c, "disk"));
    assert_int_equal(entries(p), 2);
}

static void test_a_hundred_gigabytes_of_nothing_stay_nothing(void **state)
{
    struct place *p = *state;
    struct stat st;
    char text[8];
    auto_fd t = make_root(p, "a");
    auto_fd f = openat(t, "huge", O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (ftruncate(f, 100LL << 30) < 0)
        skip_because("this file system has no such files");
    assert_int_equal(pwrite(f, "here", 4, 60LL << 30), 4);

    alarm(100);
    assert_int_equal(copy(p, "a", "b"), 0);
    alarm(0);

    auto_fd c = open_tree_of(p, "b");
    auto_fd g = openat(c, "huge", O_RDONLY | O_CLOEXEC);
    assert_int_equal(fstat(g, &st), 0);
    assert_true(st.st_size == 100LL << 30);
    assert_true(st.st_blocks < 1000);
    assert_int_equal(pread(g, text, 5, 60LL << 30), 5);
    assert_memory_equal(text, "here", 5);
}

static void test_ten_thousand_levels(void **state)
{
    struct place *p = *state;
    auto_fd t = make_root(p, "a");
    int at = dup(t);

    for (int i = 0; i < 10000; i++) {
        assert_int_equal(mkdirat(at, "d", 0755), 0);
        int next = openat(at, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        close(at);
        at = next;
    }

    write_file(at, "bottom", "b", 0644);
    close(at);
    write_file(t, "z-after", "a", 0644);
    assert_int_equal(copy(p, "a", "b"), 0);

    at = open_tree_of(p, "b");
    assert_true(exists(at, "z-after"));

    for (int i = 0; i < 10000; i++) {
        int next = openat(at, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        close(at);
        at = next;
    }
    assert_true(exists(at, "bottom"));
    close(at);
}

static void test_a_wide_tree(void **state)
{
    struct place *p = *state;
    char name[64];
    auto_fd t = make_root(p, "a");

    for (int i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "%s-%d", i % 3 ? "dir" : "file", i);
        if (i % 3 == 0) {
            write_file(t, name, name, 0644);
            continue;
        }
        assert_int_equal(mkdirat(t, name, 0755), 0);
        snprintf(name, sizeof name, "dir-%d/inner", i);
        write_file(t, name, name, 0644);
    }

    assert_int_equal(copy(p, "a", "b"), 0);
    auto_fd c = open_tree_of(p, "b");
    for (int i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "%s-%d%s", i % 3 ? "dir" : "file", i, i % 3 ? "/inner" : "");
        if (!exists(c, name))
            fail_msg("'%s' is not in the copy", name);
    }
}

/* Somebody who was thawed too early moves directories about while they are copied. Whatever comes
 * of it, nothing outside the tree is read or written. */
static void test_a_tree_that_moves_is_never_left(void **state)
{
    struct place *p = *state;
    auto_fd t = make_root(p, "a");
    write_file(p->dir, "outside", "secret", 0600);
    write_file(p->roots, "a/beside", "secret", 0600);

    char name[64];
    assert_int_equal(mkdirat(t, "a", 0755), 0);
    assert_int_equal(mkdirat(t, "a/b", 0755), 0);
    assert_int_equal(mkdirat(t, "a/b/c", 0755), 0);
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "a/b/c/%d", i);
        assert_int_equal(mkdirat(t, name, 0755), 0);
    }

    pid_t mover = child_fork();
    if (mover == 0) {
        for (;;) {
            (void)renameat(t, "a/b/c", t, "c");
            (void)renameat(t, "c", t, "a/b/c");
            (void)symlinkat("/etc", t, "x");
            (void)unlinkat(t, "x", 0);
        }
    }

    int failed = 0, good = 0;
    for (int i = 0; i < 60; i++) {
        int r = copy(p, "a", "b");
        failed += r != 0;
        good += r == 0;
        if (r == 0) {
            auto_fd c = open_tree_of(p, "b");
            struct stat st;
            assert_false(exists(c, "beside") || exists(c, "tree"));
            assert_true(fstatat(c, "x", &st, AT_SYMLINK_NOFOLLOW) < 0 || S_ISLNK(st.st_mode));
            assert_int_equal(store_remove_tree(p->roots, "b"), 0);
        } else {
            assert_int_equal(r, 1 + PD_CONFLICT);
            assert_false(exists(p->roots, "b"));
        }
    }
    kill(mover, SIGKILL);
    waitpid(mover, NULL, 0);

    print_message("# %d copies, %d refused\n", good, failed);
    assert_int_equal(entries(p), 1);
}

static void test_an_image_is_copied_with_its_holes(void **state)
{
    struct place *p = *state;
    struct stat st;
    char text[8];
    assert_int_equal(mkdirat(p->roots, "a", 0700), 0);
    assert_int_equal(mkdirat(p->roots, "a/layered", 0700), 0);

    auto_fd image = openat(p->roots, "a/image", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(image, 1 << 30), 0);
    assert_int_equal(pwrite(image, "data", 4, 500 << 20), 4);
    assert_int_equal(copy(p, "a", "b"), 0);

    auto_fd other = openat(p->roots, "b/image", O_RDONLY | O_CLOEXEC);
    assert_int_equal(fstat(other, &st), 0);
    assert_true(st.st_size == 1 << 30 && st.st_blocks < 1000);
    assert_int_equal(pread(other, text, 4, 500 << 20), 4);
    assert_memory_equal(text, "data", 4);
    assert_true(exists(p->roots, "b/layered"));
    assert_int_equal(copy(p, "a", "b"), 1 + PD_CONFLICT);
    assert_int_equal(copy(p, "b", "c"), 0);

    /* An image that is a link leads nowhere. */
    assert_int_equal(mkdirat(p->roots, "l", 0700), 0);
    assert_int_equal(symlinkat("../a/image", p->roots, "l/image"), 0);
    assert_int_not_equal(copy(p, "l", "m"), 0);
    assert_false(exists(p->roots, "m"));
}

static void test_a_root_in_use_is_not_copied_and_can_be_copied_twice_at_once(void **state)
{
    struct place *p = *state;
    close(make_root(p, "a"));
    auto_fd user = openat(p->roots, "a", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(user, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(copy(p, "a", "b"), 1 + PD_CONFLICT);
    assert_int_equal(flock(user, LOCK_UN), 0);
    assert_int_equal(flock(user, LOCK_SH | LOCK_NB), 0); /* as another copy holds it */
    assert_int_equal(copy(p, "a", "b"), 0);

    /* Nobody holds the new one. */
    auto_fd new = openat(p->roots, "b", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(new, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(copy(p, "none", "c"), 1 + PD_NOT_FOUND);
}

static void test_half_a_copy_is_trash_unless_somebody_works_on_it(void **state)
{
    struct place *p = *state;
    assert_int_equal(mkdirat(p->roots, ".copy-x-1", 0700), 0);
    write_file(p->roots, ".copy-x-1/image", "half", 0600);
    assert_int_equal(mkdirat(p->roots, ".copy-y-2", 0700), 0);
    auto_fd worker = openat(p->roots, ".copy-y-2", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(worker, LOCK_EX | LOCK_NB), 0);

    store_clean(p->state);
    assert_false(exists(p->roots, ".copy-x-1"));
    assert_true(exists(p->roots, ".copy-y-2"));

    fd_done(&worker);
    store_clean(p->state);
    assert_int_equal(entries(p), 0);
}

/* In a mount namespace of its own: a store on a small disk. */
static int copy_on_a_small_disk(const struct place *p, int image)
{
    char roots[128];
    snprintf(roots, sizeof roots, "%s/roots", p->state);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("small", roots, "tmpfs", 0, "size=1m") < 0)
        return 100;

    struct place here = *p;
    here.roots = open(roots, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_fd tree = make_root(&here, "a");
    char block[4096];
    memset(block, 'x', sizeof block);
    if (tree < 0 || (image && store_remove_tree(here.roots, "a/tree") < 0))
        return 101;

    auto_fd f =
        openat(here.roots, image ? "a/image" : "a/tree/file", O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    for (int i = 0; i < 150; i++)
        if (write(f, block, sizeof block) != sizeof block)
            return 102;

    int r = copy(&here, "a", "b");
    if (entries(&here) != 1)
        return 103;

    /* With room it works. */
    if (mount(NULL, roots, NULL, MS_REMOUNT, "size=4m") < 0 || copy(&here, "a", "b") != 0)
        return 104;
    return r;
}

static void test_a_full_disk_is_told_and_nothing_is_left(void **state)
{
    const struct place *p = *state;
    if (geteuid() != 0)
        skip_because("needs root, to mount");

    for (int image = 0; image < 2; image++) {
        pid_t pid = child_fork();
        if (pid == 0)
            _exit(copy_on_a_small_disk(p, image));
        int status;
        waitpid(pid, &status, 0);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 1 + PD_NO_SPACE);
    }
}

#define IN_PLACE(test) cmocka_unit_test_setup_teardown(test, make_place, remove_place)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_PLACE(test_a_tree_of_everything_is_copied),
        IN_PLACE(test_a_hundred_gigabytes_of_nothing_stay_nothing),
        IN_PLACE(test_ten_thousand_levels),
        IN_PLACE(test_a_wide_tree),
        IN_PLACE(test_a_tree_that_moves_is_never_left),
        IN_PLACE(test_an_image_is_copied_with_its_holes),
        IN_PLACE(test_a_root_in_use_is_not_copied_and_can_be_copied_twice_at_once),
        IN_PLACE(test_half_a_copy_is_trash_unless_somebody_works_on_it),
        IN_PLACE(test_a_full_disk_is_told_and_nothing_is_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
