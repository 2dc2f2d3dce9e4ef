/* Directories with a lock on them. After each lock the name is looked at again: one that leads to
 * another inode by now, or nowhere, was removed in between by somebody who had seized it. A holder
 * makes it again then; one who wants to remove it leaves it alone. */
#include "base/live_dir.h"

#include "base/banned.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/file.h>
#include <sys/stat.h>

static bool is_still(int parent, const char *name, int dir)
{
    struct stat locked, named;

    return fstat(dir, &locked) == 0 && fstatat(parent, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           locked.st_ino == named.st_ino && locked.st_dev == named.st_dev;
}

static int open_locked(int parent, const char *name, int how)
{
    auto_fd dir = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return -errno;

    while (flock(dir, how) < 0)
        if (errno != EINTR)
            return -errno;
    return is_still(parent, name, dir) ? fd_take(&dir) : -ESTALE;
}

int live_dir_hold(int parent, const char *name, mode_t mode)
{
    for (;;) {
        if (mkdirat(parent, name, mode) < 0 && errno != EEXIST)
            return -errno;

        int dir = open_locked(parent, name, LOCK_SH);
        if (dir != -ESTALE && dir != -ENOENT)
            return dir;
    }
}

int live_dir_seize(int parent, const char *name)
{
    return open_locked(parent, name, LOCK_EX | LOCK_NB);
}
