/* path_walk: openat2 where there is none, because the kernel is old or a filter refuses it.
 *
 * How this works: the path is walked component by component with O_PATH|O_NOFOLLOW: each step opens
 * one name in a directory that is held by a descriptor, and the kernel follows no link. Links are
 * read from the descriptor that was opened, and their text takes the place of the component. What
 * is renamed or replaced meanwhile can change which file is found; a directory that is moved away
 * after it was entered is walked on in, wherever it is then. The rules hold for each step:
 *
 *   RESOLVE_BENEATH        the descriptors of all directories on the way are kept, and ".." goes
 *                          back to the one before instead of asking the file system: it cannot
 *                          lead above the first. Absolute paths and links are EXDEV.
 *   RESOLVE_NO_SYMLINKS    a link is ELOOP.
 *   RESOLVE_NO_MAGICLINKS  always: a link of a proc file system is followed only in its top
 *                          directory, where they are plain text; those of processes are ELOOP.
 *
 * The last component is opened with O_NOFOLLOW after it was seen to be no link. If it is one by
 * then, it is looked at again; with O_PATH, which opens links, the caller gets the link itself. */
#include "init/path.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

#define LINKS_MAX    40 /* as the kernel */
#define DEPTH_MAX    256
#define PROC_TOP_INO 1
#define LINK_AHEAD   (-100000) /* no errno: a link's text is left to walk */

struct walk {
    uint64_t resolve;
    int links;
    /* Directories on the way; the last is where it is. Without BENEATH only that one. */
    int dirs[DEPTH_MAX];
    unsigned depth;
    /* The part of the path that is left to walk. */
    char rest[2 * PATH_MAX];
};

static void walk_done(struct walk *w)
{
    while (w->depth)
        fd_done(&w->dirs[--w->depth]);
}

static int here(const struct walk *w)
{
    return w->dirs[w->depth - 1];
}

/* Goes on from `fd`, which it owns from now on. */
static int enter(struct walk *w, int fd)
{
    if (!(w->resolve & RESOLVE_BENEATH))
        walk_done(w);
    if (w->depth == DEPTH_MAX) {
        fd_done(&fd);
        return -ENAMETOOLONG;
    }
    w->dirs[w->depth++] = fd;
    return 0;
}

static int begin(struct walk *w, int dir, const char *path)
{
    int absolute = path[0] == '/';
    if (absolute && w->resolve & RESOLVE_BENEATH)
        return -EXDEV;

    int fd = openat(dir, absolute ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : enter(w, fd);
}

static int go_up(struct walk *w)
{
    if (w->resolve & RESOLVE_BENEATH) {
        if (w->depth == 1)
            return -EXDEV;
        fd_done(&w->dirs[--w->depth]);
        return 0;
    }

    int fd = openat(here(w), "..", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : enter(w, fd);
}

/* Is the link one that jumps, and does not say where by its text alone? */
static int is_magic(const struct walk *w, int link)
{
    struct statfs fs;
    struct stat dir;
    if (fstatfs(link, &fs) < 0 || fstat(here(w), &dir) < 0)
        return -errno;
    return fs.f_type == PROC_SUPER_MAGIC && dir.st_ino != PROC_TOP_INO;
}

/* Puts the link's text before what is left. */
static int follow(struct walk *w, int link)
{
    char text[2 * PATH_MAX];
    if (w->resolve & RESOLVE_NO_SYMLINKS || ++w->links > LINKS_MAX)
        return -ELOOP;

    int magic = is_magic(w, link);
    if (magic)
        return magic < 0 ? magic : -ELOOP;

    ssize_t n = readlinkat(link, "", text, PATH_MAX - 1);
    if (n <= 0)
        return n < 0 ? -errno : -ENOENT;

    size_t left = strlen(w->rest);
    if ((size_t)n + left + 2 > sizeof text)
        return -ENAMETOOLONG;
    text[n] = '/';
    memcpy(text + n + (left > 0), w->rest, left + 1);
    memcpy(w->rest, text, strlen(text) + 1);

    if (text[0] != '/')
        return 0;
    if (w->resolve & RESOLVE_BENEATH)
        return -EXDEV;
    return begin(w, AT_FDCWD, "/");
}

/* One name that is not the last: a directory, or a link to be followed. */
static int step(struct walk *w, const char *name)
{
    struct stat st;
    auto_fd fd = openat(here(w), name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (S_ISLNK(st.st_mode))
        return follow(w, fd);
    return S_ISDIR(st.st_mode) ? enter(w, fd_take(&fd)) : -ENOTDIR;
}

/* The last name. A descriptor; or LINK_AHEAD. */
static int finish(struct walk *w, const char *name, int flags, mode_t mode)
{
    int stays = flags & O_NOFOLLOW || (flags & O_CREAT && flags & O_EXCL);
    struct stat st;

    if (!stays) {
        auto_fd fd = openat(here(w), name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 && !(errno == ENOENT && flags & O_CREAT))
            return -errno;
        if (fd >= 0 && fstat(fd, &st) < 0)
            return -errno;
        if (fd >= 0 && S_ISLNK(st.st_mode)) {
            int r = follow(w, fd);
            return r < 0 ? r : LINK_AHEAD;
        }
    }

    int fd = openat(here(w), name, flags | O_NOFOLLOW, mode);
    if (fd >= 0)
        return fd;
    if (stays || errno != ELOOP)
        return -errno;

    /* A link since a moment: it is looked at again. */
    snprintf(w->rest, sizeof w->rest, "%s", name);
    return ++w->links > LINKS_MAX ? -ELOOP : LINK_AHEAD;
}

/* Takes the next component out of what is left. Returns its length; 0 at the end. */
static size_t take_name(struct walk *w, char name[PATH_MAX])
{
    const char *at = w->rest + strspn(w->rest, "/");
    size_t n = strcspn(at, "/");
    size_t kept = n < PATH_MAX ? n : PATH_MAX - 1;

    memcpy(name, at, kept);
    name[kept] = 0;
    memmove(w->rest, at + n, strlen(at + n) + 1);
    return n;
}

static int walk(struct walk *w, int flags, mode_t mode)
{
    for (;;) {
        char name[PATH_MAX];
        size_t n = take_name(w, name);
        int r;

        if (n > NAME_MAX)
            return -ENAMETOOLONG;
        if (n == 0) { /* "/", or a slash, "." or ".." was the end of it */
            int fd = openat(here(w), ".", flags & ~O_NOFOLLOW, mode);
            return fd < 0 ? -errno : fd;
        }

        if (!strcmp(name, ".."))
            r = go_up(w);
        else if (!strcmp(name, "."))
            continue;
        else if (*w->rest)
            r = step(w, name);
        else if ((r = finish(w, name, flags, mode)) != LINK_AHEAD)
            return r;

        if (r < 0 && r != LINK_AHEAD)
            return r;
    }
}

int path_walk(int dir, const char *path, int flags, mode_t mode, uint64_t resolve)
{
    if (resolve & ~(uint64_t)(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS))
        return -EOPNOTSUPP;

    struct walk *w = malloc(sizeof *w);
    if (!w)
        return -ENOMEM;

    w->resolve = resolve;
    w->links = 0;
    w->depth = 0;
    int r = !*path ? -ENOENT : strlen(path) >= PATH_MAX ? -ENAMETOOLONG : begin(w, dir, path);
    if (r == 0) {
        memcpy(w->rest, path, strlen(path) + 1);
        r = walk(w, flags, mode);
    }
    walk_done(w);
    free(w);
    return r;
}
