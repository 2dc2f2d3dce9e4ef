/* copy: a file, or a tree.
 *
 * A tree is copied depth first with two chains of directories: the walk's, and the copies', of
 * which also only the innermost are held open. A directory gets its mode when it is left, because
 * one that may not be written to could not be filled. */
#include "init/path.h"
#include "init/save.h"
#include "init/walk.h"
#include "init/worker.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/sendfile.h>

#define OPEN_DIR  (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define OPEN_FILE (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
#define CHUNK     (16u << 20)

/* Copies [from, to) to the same place. 0 or -errno. */
static int copy_range(int in, int out, off_t from, off_t to)
{
    while (from < to) {
        off_t a = from, b = from;
        size_t len = to - from < (off_t)CHUNK ? (size_t)(to - from) : CHUNK;
        ssize_t n = copy_file_range(in, &a, out, &b, len, 0);

        if (n < 0 && (errno == EXDEV || errno == EINVAL || errno == EOPNOTSUPP)) {
            a = from;
            if (lseek(out, from, SEEK_SET) < 0)
                return -errno;
            n = sendfile(out, in, &a, len);
        }

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return 0; /* it has become shorter */
        from += n;
    }
    return 0;
}

/* Copies the contents; holes stay holes. 0 or -errno. */
static int copy_contents(int in, int out, off_t size)
{
    for (off_t at = 0; at < size;) {
        off_t data = lseek(in, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break; /* nothing but a hole from here on */

        off_t hole = data < 0 ? -1 : lseek(in, data, SEEK_HOLE);
        if (data < 0 || hole < 0) {
            data = at;
            hole = size;
        }

        int r = copy_range(in, out, data, hole < size ? hole : size);
        if (r < 0)
            return r;
        at = hole;
    }

    return ftruncate(out, size) < 0 ? -errno : 0;
}

static int open_source(int dir, const char *name, struct stat *ret)
{
    auto_fd fd = openat(dir, name, OPEN_FILE);
    if (fd < 0 || fstat(fd, ret) < 0)
        return -errno;
    return S_ISREG(ret->st_mode) ? fd_take(&fd) : -EAGAIN; /* it was a file a moment ago */
}

/* A file of a tree. */
static int copy_file(int from_dir, int to_dir, const char *name)
{
    struct stat st;
    auto_fd in = open_source(from_dir, name, &st);
    if (in < 0)
        return in;

    auto_fd out = openat(to_dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (out < 0)
        return -errno;

    int r = copy_contents(in, out, st.st_size);
    return r == 0 && fchmod(out, st.st_mode & 0777) < 0 ? -errno : r;
}

static int copy_link(int from_dir, int to_dir, const char *name)
{
    char target[PATH_MAX];
    path_readlink(from_dir, name, target);
    return symlinkat(target, to_dir, name) < 0 ? -errno : 0;
}

/* The directories that are being filled. */
struct target {
    int fd; /* -1: closed, to be found again by ".." */
    dev_t dev;
    ino_t ino;
    mode_t mode;
};

struct targets {
    struct target *rows;
    size_t count, room;
};

static int targets_push(struct targets *t, int fd, mode_t mode)
{
    auto_fd dir = fd;
    struct stat st;
    if (fstat(dir, &st) < 0)
        return -errno;

    if (t->count == t->room) {
        size_t room = t->room ? t->room * 2 : 16;
        struct target *rows = realloc(t->rows, room * sizeof *rows);
        if (!rows)
            return -ENOMEM;
        t->rows = rows;
        t->room = room;
    }

    t->rows[t->count++] =
        (struct target){.fd = fd_take(&dir), .dev = st.st_dev, .ino = st.st_ino, .mode = mode};
    if (t->count > WALK_FDS)
        fd_done(&t->rows[t->count - 1 - WALK_FDS].fd);
    return 0;
}

/* Leaves the innermost directory, which gets its mode. */
static int targets_pop(struct targets *t)
{
    struct target *last = &t->rows[--t->count], *up = last - 1;
    auto_fd dir = fd_take(&last->fd);

    if (t->count && up->fd < 0) {
        struct stat st;
        auto_fd parent = openat(dir, "..", OPEN_DIR);
        if (parent < 0 || fstat(parent, &st) < 0)
            return -errno;
        if (st.st_dev != up->dev || st.st_ino != up->ino)
            return -ESTALE;
        up->fd = fd_take(&parent);
    }

    return fchmod(dir, last->mode & 0777) < 0 ? -errno : 0;
}

static int make_target(struct targets *t, int dir, const char *name, mode_t mode)
{
    if (mkdirat(dir, name, 0700) < 0)
        return -errno;

    int fd = openat(dir, name, OPEN_DIR);
    return fd < 0 ? -errno : targets_push(t, fd, mode);
}

static int copy_dir(struct walk *k, struct targets *t, int dir)
{
    int r = make_target(t, dir, k->name, k->st.st_mode);
    if (r == 0)
        r = walk_enter(k);
    /* /proc and the like stay empty. */
    return r == -EXDEV ? targets_pop(t) : r;
}

static int copy_entry(struct walk *k, struct targets *t)
{
    int dir = t->rows[t->count - 1].fd;

    switch (k->st.st_mode & S_IFMT) {
    case S_IFDIR:
        return copy_dir(k, t, dir);
    case S_IFREG:
        return copy_file(k->dir, dir, k->name);
    case S_IFLNK:
        return copy_link(k->dir, dir, k->name);
    case S_IFIFO:
        return mkfifoat(dir, k->name, k->st.st_mode & 0777) < 0 ? -errno : 0;
    default:
        return 0; /* a socket is nothing without its server; devices cannot be made */
    }
}

static int fill(struct walk *k, struct targets *t, const char *root, struct pd_err *e)
{
    for (int step; (step = walk_next(k, e)) != WALK_END;) {
        if (step < 0)
            return -1;

        int r = step == WALK_LEAVE ? targets_pop(t) : copy_entry(k, t);
        if (r == -ESTALE)
            return pd_fail(e, PD_CONFLICT, "a directory was moved while it was being copied");
        if (r < 0) {
            char where[200];
            snprintf(where, sizeof where, "%.90s/%.100s", root, k->path);
            errno = -r;
            return path_fail(e, where);
        }
    }
    return 0;
}

/* Whether `dir` is the directory `st` or lies in it. */
static int is_inside(int dir, const struct stat *st)
{
    auto_fd at = openat(dir, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct stat now, last = {0};

    while (at >= 0 && fstat(at, &now) == 0) {
        if (now.st_dev == st->st_dev && now.st_ino == st->st_ino)
            return 1;
        if (now.st_dev == last.st_dev && now.st_ino == last.st_ino)
            return 0; /* the root is its own parent */

        last = now;
        int up = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
        fd_done(&at);
        at = up;
    }
    return 0;
}

static int copy_tree(const struct place *to, int from, const struct stat *st, const char *from_path,
                     const char *to_path, struct pd_err *e)
{
    struct targets t = {0};

    if (to->exists)
        return pd_fail(e, PD_CONFLICT,
                       "'%.140s' exists already; a directory is copied to a new name", to_path);
    if (is_inside(to->dir, st))
        return pd_fail(e, PD_INVALID, "'%.100s' cannot be copied into itself ('%.100s')", from_path,
                       to_path);

    int dir = path_reopen(from, O_RDONLY | O_DIRECTORY);
    if (dir < 0) {
        errno = -dir;
        return path_fail(e, from_path);
    }

    auto_walk k;
    if (walk_begin(&k, dir, NULL, SIZE_MAX, 0, e) < 0)
        return -1;
    int r = make_target(&t, to->dir, to->name, st->st_mode);
    if (r < 0) {
        errno = -r;
        return path_fail(e, to_path);
    }

    if (fill(&k, &t, to_path, e) < 0)
        return -1; /* what was copied stays: it may be what fits */

    r = targets_pop(&t);
    free(t.rows);
    if (r < 0) {
        errno = -r;
        return path_fail(e, to_path);
    }
    return 0;
}

static int copy_single(const struct place *to, int from, const struct stat *st,
                       const char *from_path, const char *to_path, struct pd_err *e)
{
    if (to->exists && !S_ISREG(to->st.st_mode))
        return pd_fail(e, PD_CONFLICT, "'%.140s' exists already and is %s; name the new file",
                       to_path, path_type_text(to->st.st_mode));
    if (to->exists && to->st.st_dev == st->st_dev && to->st.st_ino == st->st_ino)
        return pd_fail(e, PD_INVALID, "'%.100s' and '%.100s' are the same file", from_path,
                       to_path);
    if (to->exists && faccessat(to->dir, to->name, W_OK, 0) < 0)
        return path_fail(e, to_path);

    auto_fd in = path_reopen(from, O_RDONLY);
    if (in < 0) {
        errno = -in;
        return path_fail(e, from_path);
    }

    auto_save s = SAVE_INIT;
    mode_t mode = to->exists ? to->st.st_mode : st->st_mode;
    int r = save_begin(&s, to->dir);
    if (r == 0)
        r = copy_contents(in, s.fd, st->st_size);
    if (r == 0 && fchmod(s.fd, mode & 0777) < 0)
        r = -errno;
    if (r == 0)
        r = save_commit(&s, to->name, 1);

    if (r < 0) {
        errno = -r;
        return path_fail(e, to_path);
    }
    return 0;
}

int worker_copy(struct worker_job *w, struct pd_err *e)
{
    const char *from_path = w->argv[1], *to_path = w->argv[2];
    int recursive;
    struct stat st;
    auto_place to = PLACE_INIT;

    if (worker_flag("recursive", w->argv[3], &recursive, e) < 0)
        return -1;

    auto_fd from = path_find(w, from_path, 1, &st, e);
    if (from < 0 || path_place(w, to_path, PLACE_FOLLOW | PLACE_SLASH, &to, e) < 0)
        return -1;

    if (S_ISDIR(st.st_mode) && !recursive)
        return pd_fail(e, PD_INVALID, "'%.140s' is a directory; ask for a recursive copy",
                       from_path);
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
        return path_fail_type(e, from_path, st.st_mode, "a regular file or directory");

    int r = S_ISDIR(st.st_mode) ? copy_tree(&to, from, &st, from_path, to_path, e)
                                : copy_single(&to, from, &st, from_path, to_path, e);
    char *path = r == 0 ? path_absolute(w, to_path) : NULL;
    if (!path)
        return r < 0 ? -1 : pd_fail(e, PD_CAPACITY, "no memory in the sandbox");
    if (fstatat(to.dir, to.name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return path_fail(e, to_path);

    worker_put_entry(w, &st, path, NULL);
    free(path);
    return 0;
}
