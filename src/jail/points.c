/* One name at a time: openat with O_NOFOLLOW cannot be led astray by what a single name is, and the
 * descriptor it gives stays the same directory whatever happens to the name. */
#include "jail/points.h"

#include "base/banned.h"
#include "base/fd.h"
#include "jail/mnt.h"
#include "jail/walls.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static int open_point(int at, const char *name, int flags)
{
    int follow = wall_off("links") ? 0 : O_NOFOLLOW;
    int fd = openat(at, name, O_PATH | O_CLOEXEC | follow | flags);
    return fd < 0 ? -errno : fd;
}

/* The directory `name` in `at`; made with `mode` if something else is there, or nothing. */
static int enter(int at, const char *name, mode_t mode)
{
    int fd = open_point(at, name, O_DIRECTORY);
    if (fd >= 0 || (fd != -ENOTDIR && fd != -ENOENT))
        return fd;

    if (fd == -ENOTDIR && unlinkat(at, name, 0) < 0)
        return -errno;
    if (mkdirat(at, name, mode) < 0)
        return -errno;
    /* The umask may have cut the mode, and mkdir ignores some of its bits. */
    if (mode != 0755 && fchmodat(at, name, mode, 0) < 0)
        return -errno;

    return open_point(at, name, O_DIRECTORY);
}

/* Copies the next name of *path and moves on. Returns its length; 0 at the end. */
static int next_name(const char **path, char name[NAME_MAX + 1])
{
    *path += strspn(*path, "/");
    size_t len = strcspn(*path, "/");
    if (len > NAME_MAX)
        return -ENAMETOOLONG;

    memcpy(name, *path, len);
    name[len] = 0;
    *path += len;
    return (int)len;
}

/* The directory that holds the last name of `path`, which it leaves in `name`. */
static int enter_parent(int root, const char *path, char name[NAME_MAX + 1])
{
    auto_fd at = open_point(root, ".", O_DIRECTORY);
    int len = next_name(&path, name);
    if (at < 0 || len <= 0)
        return at < 0 ? at : len < 0 ? len : -EINVAL;

    while (path[strspn(path, "/")]) {
        int next = enter(at, name, 0755);
        if (next < 0)
            return next;
        fd_done(&at);
        at = next;
        if ((len = next_name(&path, name)) < 0)
            return len;
    }

    return fd_take(&at);
}

int point_dir(int root, const char *path, mode_t mode)
{
    char name[NAME_MAX + 1];
    auto_fd parent = enter_parent(root, path, name);
    return parent < 0 ? parent : enter(parent, name, mode);
}

int point_file(int root, const char *path)
{
    char name[NAME_MAX + 1];
    auto_fd parent = enter_parent(root, path, name);
    if (parent < 0)
        return parent;

    struct stat st;
    int fd = open_point(parent, name, 0);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        return fd;
    fd_done(&fd);

    if (unlinkat(parent, name, 0) < 0 && errno == EISDIR &&
        unlinkat(parent, name, AT_REMOVEDIR) < 0)
        return -errno;
    auto_fd made = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    return made < 0 ? -errno : open_point(parent, name, 0);
}

int point_bind(const char *from, int point)
{
    auto_fd tree = (int)syscall(SYS_open_tree, AT_FDCWD, from,
                                OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    return tree < 0 ? -errno : mnt_attach(tree, point, "");
}

int point_mount(int point, const char *type, unsigned long flags, const char *data)
{
    if (fchdir(point) < 0)
        return -errno;
    return mnt_mount(type, ".", type, flags, data);
}
