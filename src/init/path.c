/* From a client's path to a descriptor, as the sandbox's user.
 *
 * A file that exists is found with O_PATH, looked at, and only then opened for its use through
 * /proc/self/fd, so that what is opened is what was looked at. A file that is to be made or
 * replaced has a place: the descriptor of its directory, and its name. path_place gets there by
 * itself from link to link, because the last link may lead to a file that does not exist yet, and
 * makes directories one by one if it is asked to.
 *
 * path_fail has the words for each errno that a client can do something about. */
#include "init/path.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>

#define LINKS_MAX 40 /* as the kernel */

/* The texts of the kernel's refusals, for clients. */
static const struct {
    int sys;
    enum pd_code code;
    const char *what;
} refusals[] = {
    {ENOENT, PD_NOT_FOUND, "no such file or directory in the sandbox"},
    {ENOTDIR, PD_INVALID, "a part of the path is not a directory"},
    {EACCES, PD_DENIED, "the sandbox's user may not do that; change its mode, or ask as its owner"},
    {EPERM, PD_DENIED, "the sandbox's user may not do that; change its mode, or ask as its owner"},
    {ELOOP, PD_INVALID, "too many symbolic links, or a link of /proc that leads out of the path"},
    {ENAMETOOLONG, PD_INVALID, "the path or a name in it is too long: at most 4095 and 255 bytes"},
    {EEXIST, PD_CONFLICT, "exists already"},
    {ENOTEMPTY, PD_CONFLICT, "the directory is not empty; ask for recursive removal"},
    {EISDIR, PD_INVALID, "is a directory"},
    {ENOSPC, PD_NO_SPACE,
     "no space or no files are left in the sandbox; remove some, or use a larger limit"},
    {EDQUOT, PD_NO_SPACE,
     "no space or no files are left in the sandbox; remove some, or use a larger limit"},
    {EROFS, PD_DENIED, "this part of the sandbox is read-only"},
    {EFBIG, PD_TOO_LARGE, "the file would be larger than is allowed"},
    {EXDEV, PD_INVALID,
     "on another file system, or outside the directory; copy and remove instead"},
    {EBUSY, PD_CONFLICT, "in use by the system, for example as a mount point"},
    {ETXTBSY, PD_CONFLICT, "a program that is running; end it first"},
    {ENXIO, PD_INVALID, "a FIFO or socket, not a regular file"},
};

int path_fail(struct pd_err *e, const char *path)
{
    int sys = errno;

    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        if (refusals[i].sys == sys) {
            pd_fail(e, refusals[i].code, "'%.140s': %s", path, refusals[i].what);
            if (e)
                e->sys = sys;
            return -1;
        }

    return pd_fail_sys(e, "'%.150s'", path);
}

const char *path_type_text(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return "a regular file";
    case S_IFDIR:
        return "a directory";
    case S_IFLNK:
        return "a symbolic link";
    case S_IFIFO:
        return "a FIFO";
    case S_IFSOCK:
        return "a socket";
    default:
        return "a device";
    }
}

int path_fail_type(struct pd_err *e, const char *path, mode_t mode, const char *wanted)
{
    return pd_fail(e, PD_INVALID, "'%.150s' is %s, not %s", path, path_type_text(mode), wanted);
}

char *path_absolute(const struct worker_job *w, const char *path)
{
    size_t start = path[0] == '/' ? 0 : strlen(w->cwd) + 1;
    char *out = malloc(start + strlen(path) + 2);
    if (!out)
        return NULL;

    size_t n = 0;
    const char *parts[2] = {start ? w->cwd : "", path};
    for (int i = 0; i < 2; i++)
        for (const char *p = parts[i]; *p;) {
            size_t len = strcspn(p, "/");
            if (len && !(len == 1 && p[0] == '.')) {
                out[n++] = '/';
                memcpy(out + n, p, len);
                n += len;
            }
            p += len + (p[len] == '/');
        }

    if (!n)
        out[n++] = '/';
    out[n] = 0;
    return out;
}

int path_check(const struct worker_job *w, const char *path, struct pd_err *e)
{
    if (!*path)
        return pd_fail(e, PD_INVALID, "the path is empty; name a file, such as /workspace/a.txt");
    if (path[0] != '/' && !w->cwd_ok)
        return pd_fail(
            e, PD_NOT_FOUND,
            "'%.100s' is relative to %.80s, which cannot be entered; use an absolute path", path,
            w->cwd);
    return 0;
}

int path_openat(int dir, const char *path, int flags, mode_t mode, uint64_t resolve)
{
    /* openat2 refuses what O_PATH would ignore. */
    uint64_t also = flags & O_PATH ? O_CLOEXEC : O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    struct open_how how = {.flags = (uint64_t)(unsigned)flags | also,
                           .mode = mode,
                           .resolve = RESOLVE_NO_MAGICLINKS | resolve};

    for (;;) {
        long fd = syscall(SYS_openat2, dir, path, &how, sizeof how);
        if (fd >= 0)
            return (int)fd;
        /* EPERM is a filter's answer, or the file's: then the walk gets it, too. */
        if (errno == ENOSYS || errno == EPERM)
            return path_walk(dir, path, (int)how.flags, mode, resolve);
        /* EAGAIN: something was renamed meanwhile, and ".." could not be trusted. */
        if (errno != EINTR && errno != EAGAIN)
            return -errno;
    }
}

int path_find(const struct worker_job *w, const char *path, int follow, struct stat *ret,
              struct pd_err *e)
{
    if (path_check(w, path, e) < 0)
        return -1;

    auto_fd fd = path_openat(AT_FDCWD, path, O_PATH | (follow ? 0 : O_NOFOLLOW), 0, 0);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0) {
        if (fd < 0)
            errno = -fd;
        return path_fail(e, path);
    }

    *ret = st;
    return fd_take(&fd);
}

void path_of_fd(int fd, char out[PATH_OF_FD])
{
    snprintf(out, PATH_OF_FD, "/proc/self/fd/%d", fd);
}

int path_reopen(int fd, int flags)
{
    char name[PATH_OF_FD];
    path_of_fd(fd, name);
    int new = open(name, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    return new < 0 ? -errno : new;
}

static int open_kind(const struct worker_job *w, const char *path, mode_t type, int flags,
                     struct stat *ret, struct pd_err *e)
{
    struct stat st;
    auto_fd found = path_find(w, path, 1, &st, e);
    if (found < 0)
        return -1;
    if ((st.st_mode & S_IFMT) != type)
        return path_fail_type(e, path, st.st_mode,
                              type == S_IFDIR ? "a directory" : "a regular file");

    int fd = path_reopen(found, flags);
    if (fd < 0) {
        errno = -fd;
        return path_fail(e, path);
    }

    *ret = st;
    return fd;
}

int path_open_file(const struct worker_job *w, const char *path, struct stat *ret, struct pd_err *e)
{
    return open_kind(w, path, S_IFREG, O_RDONLY, ret, e);
}

int path_open_dir(const struct worker_job *w, const char *path, struct stat *ret, struct pd_err *e)
{
    return open_kind(w, path, S_IFDIR, O_RDONLY | O_DIRECTORY, ret, e);
}

void place_done(struct place *p)
{
    fd_done(&p->dir);
}

/* Opens the directory `path` (len bytes of it) component by component, and makes what is missing.
 */
static int open_making(int base, const char *path, size_t len)
{
    auto_fd dir = path_openat(base, len && path[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY, 0, 0);

    for (const char *p = path; dir >= 0 && p < path + len;) {
        char name[NAME_MAX + 1];
        size_t n = strcspn(p, "/");
        if (n > (size_t)(path + len - p))
            n = (size_t)(path + len - p);
        if (n > NAME_MAX)
            return -ENAMETOOLONG;

        memcpy(name, p, n);
        name[n] = 0;
        p += n;
        p += *p == '/' && p < path + len;
        if (!n)
            continue;

        auto_fd next = path_openat(dir, name, O_PATH | O_DIRECTORY, 0, 0);
        if (next == -ENOENT && (mkdirat(dir, name, 0755) == 0 || errno == EEXIST))
            next = path_openat(dir, name, O_PATH | O_DIRECTORY, 0, 0);
        else if (next == -ENOENT)
            return -errno;
        if (next < 0)
            return next;

        fd_done(&dir);
        dir = fd_take(&next);
    }

    return dir < 0 ? dir : fd_take(&dir);
}

static int open_parent(int base, const char *path, size_t len, int flags)
{
    char dir[PATH_MAX];
    if (len >= sizeof dir)
        return -ENAMETOOLONG;

    memcpy(dir, path, len);
    dir[len] = 0;
    int fd = path_openat(base, len ? dir : ".", O_PATH | O_DIRECTORY, 0, 0);
    return fd == -ENOENT && flags & PLACE_MKDIRS ? open_making(base, path, len) : fd;
}

/* Splits `path`: *ret_len is the length of its directory, with the slash; the name goes to p. */
static int split(const char *path, int flags, struct place *p, size_t *ret_len, struct pd_err *e)
{
    size_t end = strlen(path);
    while (flags & PLACE_SLASH && end > 1 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start && path[start - 1] != '/')
        start--;

    size_t n = end - start;
    if (n > NAME_MAX) {
        errno = ENAMETOOLONG;
        return path_fail(e, path);
    }

    memcpy(p->name, path + start, n);
    p->name[n] = 0;
    if (!n || !strcmp(p->name, ".") || !strcmp(p->name, ".."))
        return pd_fail(e, PD_INVALID, "'%.150s' does not end with the name of a file", path);

    *ret_len = start;
    return 0;
}

/* Looks at the last component. 1: there it is (or is not); 0: it is a link to follow. */
static int look(struct place *p, int flags)
{
    auto_fd fd = path_openat(p->dir, p->name, O_PATH | O_NOFOLLOW, 0, 0);
    p->exists = 0;

    if (fd == -ENOENT)
        return 1;
    if (fd < 0)
        return fd;
    if (fstat(fd, &p->st) < 0)
        return -errno;

    p->exists = 1;
    if (!S_ISLNK(p->st.st_mode) || !(flags & PLACE_FOLLOW))
        return 1;

    auto_fd end = path_openat(p->dir, p->name, O_PATH, 0, 0);
    return end == -ELOOP ? end : 0;
}

int path_place(const struct worker_job *w, const char *path, int flags, struct place *ret,
               struct pd_err *e)
{
    char link[PATH_MAX];
    const char *at = path;
    auto_place p = PLACE_INIT;

    if (path_check(w, path, e) < 0)
        return -1;

    for (int links = 0; links <= LINKS_MAX; links++) {
        size_t len = 0;
        if (split(at, flags, &p, &len, e) < 0)
            return -1;

        int dir = open_parent(p.dir < 0 ? AT_FDCWD : p.dir, at, len, flags);
        int r = dir;
        if (dir >= 0) {
            fd_done(&p.dir);
            p.dir = dir;
            r = look(&p, flags);
        }

        if (r < 0) {
            errno = -r;
            return path_fail(e, path);
        }
        if (r == 1) {
            *ret = p;
            p.dir = -1;
            return 0;
        }

        path_readlink(p.dir, p.name, link);
        at = link;
    }

    errno = ELOOP;
    return path_fail(e, path);
}

void path_readlink(int dir, const char *name, char out[PATH_MAX])
{
    ssize_t n = readlinkat(dir, name, out, PATH_MAX - 1);
    out[n < 0 ? 0 : n] = 0;
}
