/* Copies a tree with two descriptors that go down and up together.
 *
 * A directory is listed until the next directory in it; its place is kept and the walk goes down.
 * On the way up ".." must be the directory that it came from, and the listing goes on. So the
 * number of open files does not grow with the depth, and no name is longer than one step.
 *
 * A file with several names is made once, in a staging directory, under its inode number; each name
 * is a link to that. The staging directory is removed before the top gets its times. Data is
 * shared with the source where the file system can (FICLONE), else copied between holes. */
#include "jail/copy.h"

#include "base/banned.h"
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define CHUNK     (16u << 20) /* between two looks for a signal */
#define BLOCK     (128u << 10)
#define NAMES_MAX 65536u /* XATTR_LIST_MAX */
#define VALUE_MAX 65536u /* XATTR_SIZE_MAX */

/* ---- data ---- */

/* For two file systems that the kernel cannot copy between. */
static int copy_by_hand(int from, int to, off_t at, off_t end)
{
    char *block = malloc(BLOCK);
    if (!block)
        return -ENOMEM;

    int r = 0;
    while (r == 0 && at < end) {
        size_t want = end - at < (off_t)BLOCK ? (size_t)(end - at) : BLOCK;
        ssize_t n = pread(from, block, want, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            r = n < 0 ? -errno : -ESTALE;
            break;
        }

        for (ssize_t done = 0; r == 0 && done < n;) {
            ssize_t w = pwrite(to, block + done, (size_t)(n - done), at + done);
            if (w < 0 && errno != EINTR)
                r = -errno;
            done += w > 0 ? w : 0;
        }
        at += n;
    }

    free(block);
    return r;
}

static int copy_range(int from, int to, off_t at, off_t end)
{
    while (at < end) {
        off_t in = at, out = at;
        size_t want = end - at < (off_t)CHUNK ? (size_t)(end - at) : CHUNK;
        ssize_t n = copy_file_range(from, &in, to, &out, want, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EIO || errno == EFBIG))
            return -errno;
        if (n <= 0)
            return copy_by_hand(from, to, at, end);
        at += n;
    }
    return 0;
}

int copy_data(int from, int to)
{
    struct stat st;

    if (fstat(from, &st) < 0)
        return -errno;
    if (st.st_size && ioctl(to, FICLONE, from) == 0)
        return 0;
    if (ftruncate(to, st.st_size) < 0)
        return -errno;

    for (off_t at = 0; at < st.st_size;) {
        off_t data = lseek(from, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            return 0; /* a hole to the end */

        off_t hole = data < 0 ? -1 : lseek(from, data, SEEK_HOLE);
        if (data < 0 || hole < 0) { /* a file system without holes */
            data = at;
            hole = st.st_size;
        }
        if (hole > st.st_size)
            hole = st.st_size;

        int r = copy_range(from, to, data, hole);
        if (r < 0)
            return r;
        at = hole;
    }

    return 0;
}

/* ---- attributes ---- */

/* Attributes of other kinds are the kernel's business: security.* is about privilege, which nothing
 * in a root has. */
static int is_copied(const char *name)
{
    static const char *const kinds[] = {"user.", "trusted.overlay.", "system.posix_acl_"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strncmp(name, kinds[i], strlen(kinds[i])))
            return 1;
    return 0;
}

static int copy_one_xattr(int from, int to, const char *name, char *value)
{
    ssize_t n = fgetxattr(from, name, value, VALUE_MAX);
    if (n < 0)
        return errno == ENODATA || errno == ENOTSUP ? 0 : -errno;
    return fsetxattr(to, name, value, (size_t)n, 0) < 0 ? -errno : 0;
}

static int copy_xattrs(int from, int to)
{
    ssize_t len = flistxattr(from, NULL, 0); /* nearly always there are none */
    if (len <= 0)
        return len == 0 || errno == ENOTSUP ? 0 : -errno;

    char *names = malloc(NAMES_MAX + VALUE_MAX);
    if (!names)
        return -ENOMEM;
    int r = 0;
    len = flistxattr(from, names, NAMES_MAX);
    if (len < 0)
        r = -errno;
    for (ssize_t at = 0; r == 0 && at < len; at += (ssize_t)strlen(names + at) + 1)
        if (is_copied(names + at))
            r = copy_one_xattr(from, to, names + at, names + NAMES_MAX);

    free(names);
    return r;
}

/* Of a file or directory that is open. The owner first: a change of it clears set-user-ID. */
static int copy_attributes(int from, int to, const struct stat *st)
{
    if (fchown(to, st->st_uid, st->st_gid) < 0 || fchmod(to, st->st_mode & 07777) < 0)
        return -errno;
    int r = copy_xattrs(from, to);
    const struct timespec times[2] = {st->st_atim, st->st_mtim};
    return r < 0 ? r : futimens(to, times) < 0 ? -errno : 0;
}

/* Of something that is not opened: `to` is ours alone, so the name is still what was made. */
static int set_attributes(int to, const char *name, const struct stat *st)
{
    const struct timespec times[2] = {st->st_atim, st->st_mtim};
    if (fchownat(to, name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0 ||
        (!S_ISLNK(st->st_mode) && fchmodat(to, name, st->st_mode & 07777, 0) < 0) ||
        utimensat(to, name, times, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    return 0;
}

/* ---- entries ---- */

/* The type was seen before, so this cannot be a pipe; a lease on the file makes the first try fail
 * and the second wait until the kernel has broken it. */
static int open_source(int dir, const char *name, const struct stat *seen)
{
    struct stat st;
    int flags = O_RDONLY | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC;
    auto_fd fd = openat(dir, name, flags | O_NONBLOCK);

    if (fd < 0 && errno == EWOULDBLOCK)
        fd = openat(dir, name, flags);
    if (fd < 0 || fstat(fd, &st) < 0)
        return errno == ENOENT || errno == ELOOP ? -ESTALE : -errno;

    return st.st_ino == seen->st_ino && st.st_dev == seen->st_dev && S_ISREG(st.st_mode)
               ? fd_take(&fd)
               : -ESTALE;
}

static int copy_regular(int from, const char *name, int to, const char *new_name,
                        const struct stat *st)
{
    auto_fd in = open_source(from, name, st);
    if (in < 0)
        return in;

    auto_fd out = openat(to, new_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (out < 0)
        return -errno;
    int r = copy_data(in, out);
    return r < 0 ? r : copy_attributes(in, out, st);
}

static int copy_link(int from, const char *name, int to, const char *new_name)
{
    char target[PATH_MAX + 1];
    ssize_t n = readlinkat(from, name, target, sizeof target - 1);
    if (n < 0)
        return errno == EINVAL || errno == ENOENT ? -ESTALE : -errno;
    target[n] = 0;
    return symlinkat(target, to, new_name) < 0 ? -errno : 0;
}

/* Anything but a directory. 1: left out. */
static int copy_leaf(int from, const char *name, int to, const char *new_name,
                     const struct stat *st)
{
    int r = 0;

    if (S_ISREG(st->st_mode))
        return copy_regular(from, name, to, new_name, st);
    if (S_ISLNK(st->st_mode))
        r = copy_link(from, name, to, new_name);
    else if (S_ISFIFO(st->st_mode) || S_ISSOCK(st->st_mode) ||
             (S_ISCHR(st->st_mode) && st->st_rdev == 0))
        r = mknodat(to, new_name, (st->st_mode & S_IFMT) | 0600, 0) < 0 ? -errno : 0;
    else
        return 1;

    return r < 0 ? r : set_attributes(to, new_name, st);
}

/* ---- the walk ---- */

struct level {
    ino_t ino;
    off_t next; /* where its listing goes on */
};

struct tree {
    int from, to;
    dev_t dev;
    struct level *levels;
    size_t depth, room;
    /* Files with several names are made in this directory first, as their inode number. It is in
     * the target, because a project's files can only be linked within the project. */
    char links_name[40];
    int to_top, links;
};

static int open_dir(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int links_begin(struct tree *t)
{
    if (t->links >= 0)
        return 0;

    uint64_t random;
    random_bytes(&random, sizeof random);
    snprintf(t->links_name, sizeof t->links_name, ".paddock-links-%016" PRIx64, random);

    if (mkdirat(t->to_top, t->links_name, 0700) < 0)
        return -errno;
    t->links = open_dir(t->to_top, t->links_name);
    return t->links < 0 ? t->links : 0;
}

static int copy_shared(struct tree *t, const char *name, const struct stat *st)
{
    char key[24];
    int r = links_begin(t);
    if (r < 0)
        return r;
    snprintf(key, sizeof key, "%" PRIx64, (uint64_t)st->st_ino);
    if (linkat(t->links, key, t->to, name, 0) == 0)
        return 0;
    if (errno != ENOENT)
        return -errno;

    r = copy_leaf(t->from, name, t->links, key, st);
    if (r != 0)
        return r;
    return linkat(t->links, key, t->to, name, 0) < 0 ? -errno : 0;
}

static int push(struct tree *t, const struct stat *st)
{
    if (t->depth == t->room) {
        size_t room = t->room ? t->room * 2 : 64;
        struct level *more = realloc(t->levels, room * sizeof *more);
        if (!more)
            return -ENOMEM;
        t->levels = more;
        t->room = room;
    }

    t->levels[t->depth++] = (struct level){.ino = st->st_ino};
    return 0;
}

static void replace(int *fd, int with)
{
    fd_done(fd);
    *fd = with;
}

static int descend(struct tree *t, const char *name)
{
    struct stat st;
    auto_fd from = open_dir(t->from, name);
    if (from < 0)
        return from == -ENOENT || from == -ELOOP || from == -ENOTDIR ? -ESTALE : from;

    if (fstat(from, &st) < 0 || mkdirat(t->to, name, 0700) < 0)
        return -errno;
    if (st.st_dev != t->dev)
        return -EXDEV; /* something is mounted there: not part of the root */

    auto_fd to = open_dir(t->to, name);
    int r = to < 0 ? to : push(t, &st);
    if (r < 0)
        return r;

    replace(&t->from, fd_take(&from));
    replace(&t->to, fd_take(&to));
    return 0;
}

/* The directory is complete: its attributes, and back to the one above. */
static int ascend(struct tree *t)
{
    struct stat st;

    if (fstat(t->from, &st) < 0)
        return -errno;
    int r = copy_attributes(t->from, t->to, &st);
    if (r < 0 || --t->depth == 0)
        return r;

    auto_fd from = open_dir(t->from, "..");
    auto_fd to = open_dir(t->to, "..");
    if (from < 0 || to < 0)
        return from < 0 ? from : to;
    if (fstat(from, &st) < 0)
        return -errno;
    if (st.st_ino != t->levels[t->depth - 1].ino || st.st_dev != t->dev)
        return -ESTALE; /* it was moved: ".." may lead anywhere, also out of the root */

    replace(&t->from, fd_take(&from));
    replace(&t->to, fd_take(&to));
    return 0;
}

/* One entry. 1: went into a directory. */
static int copy_entry(struct tree *t, const struct dirent *d)
{
    struct stat st;

    if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
        return 0;
    if (fstatat(t->from, d->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? -ESTALE : -errno;

    if (S_ISDIR(st.st_mode)) {
        t->levels[t->depth - 1].next = d->d_off;
        int r = descend(t, d->d_name);
        return r < 0 ? r : 1;
    }

    int r = st.st_nlink > 1 ? copy_shared(t, d->d_name, &st)
                            : copy_leaf(t->from, d->d_name, t->to, d->d_name, &st);
    return r < 0 ? r : 0;
}

/* The directory's entries, from where the listing stopped last time, to the next directory. 0: that
 * was all. */
static int copy_entries(struct tree *t)
{
    auto_fd listing = open_dir(t->from, ".");
    if (listing < 0)
        return listing;
    if (lseek(listing, t->levels[t->depth - 1].next, SEEK_SET) < 0)
        return -errno;

    DIR *entries = fdopendir(listing);
    if (!entries)
        return -errno;
    fd_take(&listing);

    int r = 0;
    const struct dirent *d;
    while (r == 0 && (errno = 0, d = readdir(entries)))
        r = copy_entry(t, d);
    if (r == 0 && errno)
        r = -errno;

    closedir(entries);
    return r;
}

/* The staging place goes before the top directory gets its times. */
static int links_end(struct tree *t)
{
    if (t->links < 0)
        return 0;

    int fd = openat(t->links, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    if (!entries) {
        fd_done(&fd);
        return -errno;
    }

    const struct dirent *d;
    int r = 0;
    while (r == 0 && (d = readdir(entries)))
        if (d->d_name[0] != '.' && unlinkat(t->links, d->d_name, 0) < 0)
            r = -errno;

    closedir(entries);
    fd_done(&t->links);
    return r < 0 ? r : unlinkat(t->to_top, t->links_name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

int copy_tree(int from, int to)
{
    struct stat st;
    struct tree t = {.from = -1, .to = -1, .to_top = to, .links = -1};

    if (fstat(from, &st) < 0)
        return -errno;

    t.dev = st.st_dev;
    t.from = open_dir(from, ".");
    t.to = open_dir(to, ".");
    int r = t.from < 0 ? t.from : t.to < 0 ? t.to : push(&t, &st);

    while (r == 0 && t.depth) {
        r = copy_entries(&t);
        if (r > 0) {
            r = 0; /* in a directory now */
            continue;
        }

        if (r == 0 && t.depth == 1)
            r = links_end(&t);
        if (r == 0)
            r = ascend(&t);
    }

    fd_done(&t.from);
    fd_done(&t.to);
    fd_done(&t.links);
    free(t.levels);
    return r;
}
