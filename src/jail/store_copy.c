/* A copy is made in a directory of its own beside the roots, which is locked as long as somebody
 * works on it and renamed when it is complete and on the disk. One that is not locked is trash. */
#include "jail/store_in.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/copy.h"
#include "jail/quota.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define MAKE_TRIES 3 /* somebody may take it for trash before it is locked */

static int fail(struct pd_err *e, int negative_errno, const char *what)
{
    if (negative_errno == -ESTALE)
        return pd_fail(e, PD_CONFLICT, "the root changed while it was copied: try again");
    errno = -negative_errno;
    return pd_fail_sys(e, "%s", what);
}

/* A pidfd is readable when its process has ended. */
static int has_ended(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return pidfd >= 0 && poll(&p, 1, 0) > 0;
}

static int copy_image(int from, int to, int jail_root, struct pd_err *e)
{
    auto_fd in = openat(from, "image", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (in < 0)
        return pd_fail_sys(e, "open the root's image");

    /* All that the jail wrote must be in the image. It may still need its journal then: whoever
     * mounts the copy replays that, as after a loss of power. */
    if (jail_root >= 0 && syncfs(jail_root) < 0)
        return pd_fail_sys(e, "write the root's data to its image");
    if (jail_root < 0 && image_lock(in, LOCK_SH) < 0)
        return pd_fail(e, PD_CONFLICT, "the root's image is still mounted by an earlier jail");

    auto_fd out = openat(to, "image", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (out < 0)
        return pd_fail_sys(e, "make the image of the copy");
    int r = copy_data(in, out);
    if (r == 0 && fsync(out) < 0)
        r = -errno;
    return r < 0 ? fail(e, r, "copy the root's image") : 0;
}

static int copy_directory(int from, int to, struct pd_err *e)
{
    auto_fd in = openat(from, "tree", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (in < 0)
        return pd_fail_sys(e, "open the root's directory");

    if (mkdirat(to, "tree", 0700) < 0)
        return pd_fail_sys(e, "make the directory of the copy");
    auto_fd out = openat(to, "tree", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (out < 0)
        return pd_fail_sys(e, "open the directory of the copy");

    uint64_t bytes = 0, files = 0;
    int r = 0;
    if (quota_available(in) && quota_read(in, &bytes, &files) == 0 && (bytes || files))
        r = quota_limit(out, bytes, files);
    if (r == 0)
        r = copy_tree(in, out);
    if (r == 0 && syncfs(out) < 0)
        r = -errno;
    return r < 0 ? fail(e, r, "copy the root's directory") : 0;
}

/* Fills the new directory `to` with what the root `from` is. */
static int fill(int from, int to, int jail_root, struct pd_err *e)
{
    struct stat st;
    char base[STORE_BASE_MAX];

    store_base_of(from, base);
    if (base[0] && symlinkat(base, to, STORE_BASE) < 0)
        return pd_fail_sys(e, "note the image of the copy");
    if (fstatat(from, "layered", &st, AT_SYMLINK_NOFOLLOW) == 0 && mkdirat(to, "layered", 0700) < 0)
        return pd_fail_sys(e, "mark the copy");
    if (fstatat(from, "image", &st, AT_SYMLINK_NOFOLLOW) == 0)
        return copy_image(from, to, jail_root, e);
    return copy_directory(from, to, e);
}

/* Makes and locks a directory. -EAGAIN: somebody took it for trash. */
static int make_locked(int roots, const char *name)
{
    struct stat st;

    if (mkdirat(roots, name, 0700) < 0)
        return -errno;

    auto_fd dir = openat(roots, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 || flock(dir, LOCK_EX | LOCK_NB) < 0 || fstat(dir, &st) < 0)
        return errno == ENOENT || errno == EWOULDBLOCK ? -EAGAIN : -errno;
    return st.st_nlink ? fd_take(&dir) : -EAGAIN;
}

static int rename_new(int roots, const char *from, const char *to)
{
    if (syscall(SYS_renameat2, roots, from, roots, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -errno;

    /* This file system cannot refuse. Over a root with something in it the kernel renames nothing.
     */
    return renameat(roots, from, roots, to) < 0 ? -errno : 0;
}

static int publish(int roots, int dir, const char *temporary, const char *to, struct pd_err *e)
{
    int r = fsync(dir) < 0 ? -errno : rename_new(roots, temporary, to);
    if (r == -EEXIST || r == -ENOTEMPTY)
        return pd_fail(e, PD_CONFLICT, "there is a root '%.64s' already", to);
    if (r == 0 && fsync(roots) < 0)
        r = -errno;
    return r < 0 ? fail(e, r, "keep the copy") : 0;
}

static int open_from(int roots, const char *name, int in_use, struct pd_err *e)
{
    auto_fd root = openat(roots, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;

    if (root < 0 || (fstatat(root, "image", &st, AT_SYMLINK_NOFOLLOW) < 0 &&
                     fstatat(root, "tree", &st, AT_SYMLINK_NOFOLLOW) < 0))
        return pd_fail(e, PD_NOT_FOUND, "there is no root '%.64s'", name);

    /* Several may copy it at a time; a jail that wants it has to wait. */
    if (!in_use && flock(root, LOCK_SH | LOCK_NB) < 0)
        return pd_fail(e, PD_CONFLICT, "the root '%.64s' is in use by another jail", name);

    return fd_take(&root);
}

static int copy_to(int roots, int source, const char *to, int jail_root, int jail_pid,
                   struct pd_err *e)
{
    char temporary[128];
    snprintf(temporary, sizeof temporary, STORE_COPYING "%.64s-%d", to, (int)getpid());

    auto_fd copy = -EAGAIN;
    for (int i = 0; copy == -EAGAIN && i < MAKE_TRIES; i++)
        copy = make_locked(roots, temporary);
    if (copy < 0)
        return fail(e, copy, "make room for a copy");

    int r = fill(source, copy, jail_root, e);
    if (r == 0 && has_ended(jail_pid))
        r = pd_fail(e, PD_LOST, "the sandbox ended while its root was copied");
    if (r == 0)
        r = publish(roots, copy, temporary, to, e);

    if (r < 0)
        (void)store_remove_tree(roots, temporary);
    return r;
}

int store_copy_root(const char *state_dir, const char *from, const char *to, int jail_root,
                    int jail_pid, struct pd_err *e)
{
    struct stat st;
    auto_fd host = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    auto_fd roots = store_open_dir(host, state_dir, e);
    if (roots < 0)
        return -1;

    auto_fd source = open_from(roots, from, jail_pid >= 0, e);
    if (source < 0)
        return -1;

    if (fstatat(roots, to, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return pd_fail(e, PD_CONFLICT, "there is a root '%.64s' already", to);
    return copy_to(roots, source, to, jail_root, jail_pid, e);
}

void store_clean(const char *state_dir)
{
    struct pd_err e;
    auto_fd host = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    auto_fd roots = store_open_dir(host, state_dir, &e);
    if (roots >= 0)
        store_empty_trash(roots);
}
