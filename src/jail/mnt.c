/* Mounts by descriptor: made with open_tree or fsopen, given their attributes while nobody sees
 * them yet, and attached with move_mount. These are nosuid, and nodev unless devices are asked for.
 * Paths inside a root are resolved with RESOLVE_IN_ROOT, so that no link in it leads out. */
#include "jail/mnt.h"

#include "base/banned.h"
#include "base/fd.h"
#include "jail/walls.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define DETACH     2 /* MNT_DETACH of umount2(2) */
#define OPEN_TRIES 1000

int mnt_mount(const char *source, const char *target, const char *type, unsigned long flags,
              const char *data)
{
    return syscall(SYS_mount, source, target, type, flags, data) < 0 ? -errno : 0;
}

int mnt_detach(const char *target)
{
    return syscall(SYS_umount2, target, DETACH) < 0 ? -errno : 0;
}

int mnt_pivot_here(void)
{
    if (syscall(SYS_pivot_root, ".", ".") < 0)
        return -errno;

    /* The old root now lies on top of the new one: "." is it. */
    int r = mnt_detach(".");
    return r < 0 ? r : chdir("/") < 0 ? -errno : 0;
}

int mnt_cover_root(void)
{
    int r = mnt_mount(".", "/", NULL, MS_MOVE, NULL);
    if (r < 0)
        return r;
    return chroot(".") < 0 || chdir("/") < 0 ? -errno : 0;
}

static uint64_t attributes(unsigned flags)
{
    return (wall_off("nosuid") ? 0 : MOUNT_ATTR_NOSUID) |
           (flags & MNT_DEVS ? 0 : MOUNT_ATTR_NODEV) |
           (flags & MNT_RDONLY ? MOUNT_ATTR_RDONLY : 0) |
           (flags & MNT_NOEXEC ? MOUNT_ATTR_NOEXEC : 0);
}

static int clone_tree(int dir, const char *path, unsigned flags, struct mount_attr *attr)
{
    unsigned recursive = flags & MNT_SINGLE ? 0 : AT_RECURSIVE;
    auto_fd tree = (int)syscall(SYS_open_tree, dir, path,
                                OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | recursive | AT_EMPTY_PATH);
    if (tree < 0)
        return -errno;
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | recursive, attr, sizeof *attr) < 0)
        return -errno;

    return fd_take(&tree);
}

int mnt_clone(int dir, const char *path, unsigned flags)
{
    struct mount_attr attr = {.attr_set = attributes(flags), .propagation = MS_PRIVATE};
    return clone_tree(dir, path, flags, &attr);
}

int mnt_clone_idmapped(int dir, const char *path, unsigned flags, int userns)
{
    struct mount_attr attr = {.attr_set = attributes(flags) | MOUNT_ATTR_IDMAP,
                              .propagation = MS_PRIVATE,
                              .userns_fd = (uint64_t)userns};
    return clone_tree(dir, path, flags, &attr);
}

int mnt_set_idmap(int mount, int userns)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns};

    if (syscall(SYS_mount_setattr, mount, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0)
        return -errno;
    return 0;
}

static int configure(int fs, const char *option)
{
    char key[32];
    const char *value = strchr(option, '=');

    if (!value)
        return syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, option, NULL, 0) < 0 ? -errno : 0;

    size_t len = (size_t)(value - option);
    if (len >= sizeof key)
        return -EINVAL;
    memcpy(key, option, len);
    key[len] = 0;
    return syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, key, value + 1, 0) < 0 ? -errno : 0;
}

int mnt_tmpfs(const char *const *options, unsigned flags)
{
    return mnt_filesystem("tmpfs", options, flags);
}

int mnt_filesystem(const char *type, const char *const *options, unsigned flags)
{
    auto_fd fs = (int)syscall(SYS_fsopen, type, FSOPEN_CLOEXEC);
    if (fs < 0)
        return -errno;

    for (; *options; options++) {
        int r = configure(fs, *options);
        if (r < 0)
            return r;
    }

    if (syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -errno;
    int mount = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, attributes(flags));
    return mount < 0 ? -errno : mount;
}

int mnt_reconfigure(const char *path, const char *const *options)
{
    auto_fd fs = (int)syscall(SYS_fspick, AT_FDCWD, path, FSPICK_CLOEXEC);
    if (fs < 0)
        return -errno;

    for (; *options; options++) {
        int r = configure(fs, *options);
        if (r < 0)
            return r;
    }

    return syscall(SYS_fsconfig, fs, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0 ? -errno : 0;
}

int mnt_attach(int mount, int dir, const char *path)
{
    unsigned flags = MOVE_MOUNT_F_EMPTY_PATH | (path[0] ? 0 : MOVE_MOUNT_T_EMPTY_PATH);
    return syscall(SYS_move_mount, mount, "", dir, path, flags) < 0 ? -errno : 0;
}

int mnt_open_beneath(int root, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC),
                           .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    /* EAGAIN: something on the machine was renamed or mounted meanwhile, and ".." could not be
     * trusted. */
    int fd = -EAGAIN;
    for (unsigned i = 0; fd == -EAGAIN && i < OPEN_TRIES; i++) {
        fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
        fd = fd < 0 ? -errno : fd;
    }
    return fd;
}

int mnt_make_dir(int root, const char *path, mode_t mode)
{
    /* Mostly it is there, and a mkdir of what is there takes the lock of a directory of the host's.
     */
    int whole = mnt_open_beneath(root, path, O_PATH | O_DIRECTORY);
    if (whole != -ENOENT)
        return whole;

    auto_fd at = mnt_open_beneath(root, "/", O_PATH | O_DIRECTORY);
    char done[4096] = "";
    size_t used = 0;

    while (*path) {
        path += strspn(path, "/");
        size_t len = strcspn(path, "/");
        if (!len)
            break;
        if (used + len + 2 > sizeof done || len > NAME_MAX)
            return -ENAMETOOLONG;

        char name[NAME_MAX + 1];
        memcpy(name, path, len);
        name[len] = 0;
        if (mkdirat(at, name, mode) < 0 && errno != EEXIST)
            return -errno;

        done[used++] = '/';
        memcpy(done + used, name, len + 1);
        used += len;
        int next = mnt_open_beneath(root, done, O_PATH | O_DIRECTORY);
        if (next < 0)
            return next;

        fd_done(&at);
        at = next;
        path += len;
    }

    return fd_take(&at);
}
