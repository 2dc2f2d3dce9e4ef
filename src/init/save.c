/* How a file gets its name in one step. A file without a name is linked to it; if the name is taken
 * and may be replaced, the file is linked to a temporary name first and renamed over the other,
 * because linkat replaces nothing. A file that had a temporary name from the beginning is renamed
 * likewise. */
#include "init/save.h"

#include "init/path.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

#define NAME_TRIES 16

static void make_name(struct save *s)
{
    uint64_t number;
    random_bytes(&number, sizeof number);
    snprintf(s->temp, sizeof s->temp, ".paddock-%016llx", (unsigned long long)number);
}

int save_begin(struct save *s, int dir)
{
    *s = SAVE_INIT;
    s->dir = dir;
    s->fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (s->fd >= 0)
        return 0;

    /* EISDIR: a file system that has not heard of O_TMPFILE. */
    if (errno != EOPNOTSUPP && errno != EISDIR)
        return -errno;

    for (int i = 0; i < NAME_TRIES; i++) {
        make_name(s);
        s->fd = openat(dir, s->temp, O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, 0600);
        if (s->fd >= 0)
            return 0;
        if (errno != EEXIST)
            break;
    }

    s->temp[0] = 0;
    return -errno;
}

/* From no name to `name`, which must be free. */
static int link_fd(const struct save *s, const char *name)
{
    char self[PATH_OF_FD];
    path_of_fd(s->fd, self);
    return linkat(AT_FDCWD, self, s->dir, name, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

int save_commit(struct save *s, const char *name, int replace)
{
    if (!s->temp[0]) {
        int r = link_fd(s, name);
        if (r != -EEXIST || !replace)
            return r;

        for (int i = 0; i < NAME_TRIES && r == -EEXIST; i++) {
            make_name(s);
            r = link_fd(s, s->temp);
        }
        if (r < 0) {
            s->temp[0] = 0;
            return r;
        }
    }

    if (syscall(SYS_renameat2, s->dir, s->temp, s->dir, name, replace ? 0 : RENAME_NOREPLACE) < 0)
        return -errno;
    s->temp[0] = 0;
    return 0;
}

void save_done(struct save *s)
{
    if (s->temp[0])
        unlinkat(s->dir, s->temp, 0);
    s->temp[0] = 0;
    fd_done(&s->fd);
}
