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

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
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

/* From no name to a temporary one. */
static int link_temp(struct save *s)
{
    int r = -EEXIST;
    for (int i = 0; i < NAME_TRIES && r == -EEXIST; i++) {
        make_name(s);
        r = link_fd(s, s->temp);
    }
    if (r < 0)
        s->temp[0] = 0;
    return r;
}

int save_commit(struct save *s, const char *name, int replace)
{
    if (!s->temp[0]) {
        int r = link_fd(s, name);
        if (r != -EEXIST || !replace)
            return r;
        if ((r = link_temp(s)) < 0)
            return r;
    }

    if (syscall(SYS_renameat2, s->dir, s->temp, s->dir, name, replace ? 0 : RENAME_NOREPLACE) < 0)
        return -errno;
    s->temp[0] = 0;
    return 0;
}

static int exchange(const struct save *s, const char *name)
{
    return syscall(SYS_renameat2, s->dir, s->temp, s->dir, name, RENAME_EXCHANGE) < 0 ? -errno : 0;
}

/* What had the name was not what was expected: it gets its name back. Whoever has put another file
 * there meanwhile keeps that: it is put back in its turn. */
static int take_back(const struct save *s, const char *name)
{
    struct stat mine, put_aside;
    int r = exchange(s, name);
    if (r < 0)
        return r;
    if (fstat(s->fd, &mine) == 0 &&
        fstatat(s->dir, s->temp, &put_aside, AT_SYMLINK_NOFOLLOW) == 0 &&
        (mine.st_ino != put_aside.st_ino || mine.st_dev != put_aside.st_dev))
        (void)exchange(s, name);
    return -ESTALE;
}

int save_commit_over(struct save *s, const char *name,
                     bool (*expected)(const struct stat *old, const void *arg), const void *arg)
{
    struct stat old;
    int r = s->temp[0] ? 0 : link_temp(s);
    if (r < 0)
        return r;

    /* Most that do not fit are found without anybody seeing the new file for a moment. */
    if (fstatat(s->dir, name, &old, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (!expected(&old, arg))
        return -ESTALE;

    r = exchange(s, name);
    if (r == -EINVAL || r == -ENOSYS) /* a file system that cannot: a look is all there is */
        return save_commit(s, name, 1);
    if (r < 0)
        return r;
    if (fstatat(s->dir, s->temp, &old, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    /* The old one has the temporary name now, which save_done removes. */
    return expected(&old, arg) ? 0 : take_back(s, name);
}

void save_done(struct save *s)
{
    if (s->temp[0])
        unlinkat(s->dir, s->temp, 0);
    s->temp[0] = 0;
    fd_done(&s->fd);
}
