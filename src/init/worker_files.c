/* Single files: stat, read, write, mkdir, move, chmod, extended attributes.
 *
 * Each operation parses its words, finds the file or its place (path.c) and does one thing. Most
 * answer with an entry: the absolute path, and what the file is now. A read answers first and sends
 * the bytes after it. A write takes its input into a file without a name (save.c), waits for the
 * word to commit, and only then replaces what was there. */
#include "init/path.h"
#include "init/save.h"
#include "init/worker.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

#define SYNTHETIC_MAX   (1u << 20)  /* of a file whose size the kernel does not know */
#define XATTR_NAMES_MAX (64u << 10) /* as the kernel */

static int no_memory(struct pd_err *e)
{
    return pd_fail(e, PD_CAPACITY, "no memory in the sandbox");
}

/* Answers with an entry of that file under its absolute path. */
static int answer(struct worker_job *w, const struct stat *st, const char *path, const char *target,
                  struct pd_err *e)
{
    char *absolute = path_absolute(w, path);
    if (!absolute)
        return no_memory(e);
    worker_put_entry(w, st, absolute, target);
    free(absolute);
    return 0;
}

/* The same with its details: worker_detail.c. */
static int answer_detail(struct worker_job *w, const struct stat *st, const char *path,
                         struct pd_err *e)
{
    char *absolute = path_absolute(w, path);
    if (!absolute)
        return no_memory(e);
    worker_put_detail(w, st, absolute, AT_FDCWD, absolute);
    free(absolute);
    return 0;
}

int worker_stat(struct worker_job *w, struct pd_err *e)
{
    struct stat st;
    int detail;
    char target[PATH_MAX] = "";

    if (worker_last_flag(w, 2, "detail", &detail, e) < 0)
        return -1;

    auto_fd fd = path_find(w, w->argv[1], 0, &st, e);
    if (fd < 0)
        return -1;

    if (detail)
        return answer_detail(w, &st, w->argv[1], e);
    if (S_ISLNK(st.st_mode))
        path_readlink(fd, "", target);
    return answer(w, &st, w->argv[1], target, e);
}

/* Files of /proc and the like have size 0 and yet contents: they are read first, so that their size
 * can be told. Returns how many bytes there are from `offset` on, or -1. */
static int64_t read_synthetic(int fd, uint64_t offset, char *out, struct pd_err *e,
                              const char *path)
{
    size_t have = 0;
    while (have < SYNTHETIC_MAX) {
        ssize_t n = pread(fd, out + have, SYNTHETIC_MAX - have, (off_t)(offset + have));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return path_fail(e, path);
        if (n == 0)
            break;
        have += (size_t)n;
    }
    return (int64_t)have;
}

int worker_read(struct worker_job *w, struct pd_err *e)
{
    uint64_t offset, length = INT64_MAX;
    struct stat st;

    if (worker_number("offset", w->argv[2], 0, INT64_MAX, &offset, e) < 0 ||
        (strcmp(w->argv[3], "-") != 0 &&
         worker_number("length", w->argv[3], 0, INT64_MAX, &length, e) < 0))
        return -1;

    auto_fd fd = path_open_file(w, w->argv[1], &st, e);
    if (fd < 0)
        return -1;

    char *text = NULL;
    int64_t have = 0;
    if (st.st_size == 0 && length && offset < SYNTHETIC_MAX) {
        text = malloc(SYNTHETIC_MAX);
        have = text ? read_synthetic(fd, offset, text, e, w->argv[1]) : no_memory(e);
        if (have < 0)
            return -1; /* `text` goes with the process */
        st.st_size = have ? (off_t)offset + have : 0;
    }

    if (answer(w, &st, w->argv[1], NULL, e) < 0)
        return -1;
    worker_flush(w);

    uint64_t size = (uint64_t)st.st_size, left = size > offset ? size - offset : 0;
    if (left > length)
        left = length;

    /* From here on the answer is bytes: what goes wrong shows as too few of them. */
    if (have) {
        if (fd_write_all(1, text, (size_t)left) < 0)
            _exit(1);
    } else if (left && (lseek(fd, (off_t)offset, SEEK_SET) < 0 ||
                        worker_move(fd, 1, left) != (int64_t)left)) {
        _exit(1);
    }
    return 0;
}

/* Takes the input into the new file. Its end must come after `length` bytes, if that is known. */
static int receive(int fd, const char *path, uint64_t length, int known, struct pd_err *e)
{
    int64_t got = worker_move(0, fd, known ? length : (uint64_t)INT64_MAX);
    char one;

    if (got < 0) {
        errno = (int)-got;
        return path_fail(e, path);
    }

    if (!known)
        return 0;
    if ((uint64_t)got < length)
        return pd_fail(e, PD_INVALID,
                       "'%.120s': %lld bytes came of %llu that were announced; nothing was changed",
                       path, (long long)got, (unsigned long long)length);
    if (read(0, &one, 1) == 1)
        return pd_fail(e, PD_INVALID,
                       "'%.120s': more bytes came than the %llu that were announced; nothing was "
                       "changed",
                       path, (unsigned long long)length);
    return 0;
}

/* A file that is overwritten must be a regular one that the sandbox's user may write to, although
 * replacing it takes only permission for its directory. */
static int check_old(const struct place *p, const char *path, struct pd_err *e)
{
    if (!p->exists)
        return 0;
    if (!S_ISREG(p->st.st_mode))
        return path_fail_type(e, path, p->st.st_mode, "a regular file");
    return faccessat(p->dir, p->name, W_OK, 0) < 0 ? path_fail(e, path) : 0;
}

/* A watch has not heard of the writing: the file had no name then. E2B's clients expect to hear
 * that it came, that it got its owner and mode, and that it was written. inotify tells new times as
 * new attributes, and a new time of change alone as a change of contents. */
static void tell_written(const struct place *p)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
    const struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};

    (void)utimensat(p->dir, p->name, now, AT_SYMLINK_NOFOLLOW);
    (void)utimensat(p->dir, p->name, times, AT_SYMLINK_NOFOLLOW);
}

static bool is_expected(const struct stat *old, const void *arg)
{
    const struct worker_new *n = arg;
    int64_t mtime_ns = (int64_t)old->st_mtim.tv_sec * 1000000000 + old->st_mtim.tv_nsec;
    return S_ISREG(old->st_mode) && mtime_ns == n->match_mtime_ns &&
           (uint64_t)old->st_size == n->match_size;
}

/* Gives the new file its name, if what is there is what the writer knows of. */
static int take_name(struct save *s, const char *name, const struct worker_new *n, struct pd_err *e)
{
    int r = n->match == MATCH_FILE ? save_commit_over(s, name, is_expected, n)
                                   : save_commit(s, name, n->match != MATCH_NONE);
    if (r == 0)
        return 0;
    if (n->match == MATCH_FILE && (r == -ESTALE || r == -ENOENT))
        return pd_fail(e, PD_CONFLICT,
                       "'%.120s' %s since it was read; nothing was written: read it again", n->path,
                       r == -ENOENT ? "was removed" : "was changed");
    errno = -r;
    return path_fail(e, n->path);
}

int worker_save(struct worker_job *w, const struct worker_new *n, struct pd_err *e)
{
    const char *path = n->path;
    mode_t mode = n->has_mode ? n->mode : 0644;
    auto_place p = PLACE_INIT;
    struct stat st;

    if (path_place(w, path, PLACE_FOLLOW | (n->mkdirs ? PLACE_MKDIRS : 0), &p, e) < 0 ||
        check_old(&p, path, e) < 0)
        return -1;

    auto_save s = SAVE_INIT;
    int r = save_begin(&s, p.dir);
    if (r < 0) {
        errno = -r;
        return path_fail(e, path);
    }

    if (receive(s.fd, path, n->length, n->has_length, e) < 0 ||
        worker_attributes(s.fd, path, n->attributes, e) < 0)
        return -1;

    if (p.exists) {
        /* Another's file stays another's where that is possible and wanted; if not, it is the
         * writer's now, and no longer runs as anybody else. */
        if (!n->has_mode)
            mode = p.st.st_mode & 07777;
        if ((p.st.st_uid != geteuid() || p.st.st_gid != getegid()) &&
            (n->is_writers || fchown(s.fd, p.st.st_uid, p.st.st_gid) < 0))
            mode &= 0777;
    }

    if (fchmod(s.fd, mode) < 0)
        return path_fail(e, path);
    if (worker_await_commit(e) < 0)
        return -1;

    if (take_name(&s, p.name, n, e) < 0)
        return -1;

    if (n->is_writers)
        tell_written(&p);
    if (fstat(s.fd, &st) < 0)
        return path_fail(e, path);
    if (answer(w, &st, path, NULL, e) < 0)
        return -1;

    /* Whether there was a file before. */
    struct record replaced = {.kind = RECORD_REPLACED,
                              .replaced = {.path = "", .count = p.exists != 0}};
    worker_put(w, &replaced);
    return 0;
}

/* "any", "none", or MTIME_NS-SIZE of the file that is to be replaced. */
static int read_match(const char *text, struct worker_new *n, struct pd_err *e)
{
    char *end;

    if (!strcmp(text, "any"))
        return 0;
    if (!strcmp(text, "none")) {
        n->match = MATCH_NONE;
        return 0;
    }

    n->match = MATCH_FILE;
    errno = 0;
    n->match_mtime_ns = strtoll(text, &end, 10);
    if (end == text || errno || *end != '-')
        return pd_fail(e, PD_INVALID, "match '%.60s': any, none or MTIME-SIZE", text);
    return worker_number("match", end + 1, 0, INT64_MAX, &n->match_size, e);
}

int worker_write(struct worker_job *w, struct pd_err *e)
{
    const char *announced = w->argc > 4 ? w->argv[4] : "-";
    struct worker_new n = {.path = w->argv[1],
                           .has_mode = strcmp(w->argv[2], "-") != 0,
                           .has_length = strcmp(announced, "-") != 0};

    if ((n.has_mode && worker_mode(w->argv[2], 0777, &n.mode, e) < 0) ||
        worker_flag("mkdirs", w->argv[3], &n.mkdirs, e) < 0 ||
        (n.has_length && worker_number("length", announced, 0, INT64_MAX, &n.length, e) < 0) ||
        (w->argc > 5 && read_match(w->argv[5], &n, e) < 0))
        return -1;

    return worker_save(w, &n, e);
}

int worker_mkdir(struct worker_job *w, struct pd_err *e)
{
    const char *path = w->argv[1];
    uint64_t parents;
    int detail;
    mode_t mode;
    auto_place p = PLACE_INIT;
    struct stat st;

    if (worker_number("parents", w->argv[2], 0, 2, &parents, e) < 0 ||
        worker_mode(w->argv[3], 07777, &mode, e) < 0 ||
        worker_last_flag(w, 4, "detail", &detail, e) < 0 ||
        path_place(w, path, PLACE_SLASH | (parents ? PLACE_MKDIRS : 0), &p, e) < 0)
        return -1;

    int r = mkdirat(p.dir, p.name, 0700) < 0 ? -errno : 0, made = r == 0;
    if (r == -EEXIST && parents == 2 && fstatat(p.dir, p.name, &st, 0) == 0 && !S_ISDIR(st.st_mode))
        return path_fail_type(e, path, st.st_mode, "a directory");
    if (!made && !(r == -EEXIST && parents == 1)) {
        errno = -r;
        return path_fail(e, path);
    }

    /* With `parents` 1 a directory may be there already, or a link to one. */
    auto_fd dir =
        path_openat(p.dir, p.name, O_RDONLY | O_DIRECTORY | (made ? O_NOFOLLOW : 0), 0, 0);
    if (!made && (dir == -ENOTDIR || dir == -ENXIO)) {
        errno = EEXIST;
        return path_fail(e, path);
    }
    if (dir < 0 && made) {
        errno = -dir;
        return path_fail(e, path);
    }

    if (made && fchmod(dir, mode) < 0)
        return path_fail(e, path);
    if (dir >= 0 ? fstat(dir, &st) < 0 : fstatat(p.dir, p.name, &st, 0) < 0)
        return path_fail(e, path);
    return detail ? answer_detail(w, &st, path, e) : answer(w, &st, path, NULL, e);
}

int worker_rename(struct worker_job *w, struct pd_err *e)
{
    const char *from = w->argv[1], *to = w->argv[2];
    uint64_t overwrite;
    int detail;
    auto_place a = PLACE_INIT, b = PLACE_INIT;
    struct stat st;
    char target[PATH_MAX] = "";

    if (worker_number("overwrite", w->argv[3], 0, 2, &overwrite, e) < 0 ||
        worker_last_flag(w, 4, "detail", &detail, e) < 0 ||
        path_place(w, from, PLACE_SLASH, &a, e) < 0)
        return -1;

    if (!a.exists) {
        errno = ENOENT;
        return path_fail(e, from);
    }

    if (path_place(w, to, PLACE_SLASH | (overwrite == 2 ? PLACE_MKDIRS : 0), &b, e) < 0)
        return -1;
    if (syscall(SYS_renameat2, a.dir, a.name, b.dir, b.name, overwrite ? 0 : RENAME_NOREPLACE) <
        0) {
        if (errno == EINVAL)
            return pd_fail(e, PD_INVALID, "'%.100s' cannot be moved into itself ('%.100s')", from,
                           to);
        if (errno == EEXIST)
            return pd_fail(e, PD_CONFLICT, "'%.140s' exists already; ask for overwriting", to);
        if (errno == ENOTEMPTY)
            return pd_fail(e, PD_CONFLICT, "'%.140s' is a directory that is not empty", to);
        if (errno == EISDIR || errno == ENOTDIR)
            return pd_fail(e, PD_CONFLICT,
                           "of '%.80s' and '%.80s' one is a directory, the other not", from, to);
        return path_fail(e, errno == ENOENT ? from : to);
    }

    if (fstatat(b.dir, b.name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return path_fail(e, to);

    if (detail)
        return answer_detail(w, &st, to, e);
    if (S_ISLNK(st.st_mode))
        path_readlink(b.dir, b.name, target);
    return answer(w, &st, to, target, e);
}

int worker_chmod(struct worker_job *w, struct pd_err *e)
{
    const char *path = w->argv[1];
    char self[PATH_OF_FD];
    mode_t mode;
    struct stat st;

    if (worker_mode(w->argv[2], 07777, &mode, e) < 0)
        return -1;

    auto_fd fd = path_find(w, path, 1, &st, e);
    if (fd < 0)
        return -1;

    /* The very file that was found, whatever its name leads to by now. */
    path_of_fd(fd, self);
    if (chmod(self, mode) < 0 || fstat(fd, &st) < 0)
        return path_fail(e, path);
    return answer(w, &st, path, NULL, e);
}

static int xattr_fail(struct pd_err *e, const char *path, const char *name)
{
    if (errno == ENODATA)
        return pd_fail(e, PD_NOT_FOUND, "'%.120s' has no attribute '%.60s'", path, name);
    if (errno == EOPNOTSUPP || errno == EPERM || errno == EINVAL)
        return pd_fail(e, errno == EOPNOTSUPP ? PD_UNSUPPORTED : PD_DENIED,
                       "attribute '%.60s' of '%.120s': only names that begin with 'user.' are "
                       "possible, of files and directories%s",
                       name, path, errno == EOPNOTSUPP ? ", where the file system has them" : "");
    if (errno == ERANGE || errno == E2BIG)
        return pd_fail(e, PD_TOO_LARGE, "attribute '%.60s' of '%.120s' is too large", name, path);
    return path_fail(e, path);
}

static int put_value(struct worker_job *w, const char *self, const char *path, const char *name,
                     struct pd_err *e)
{
    uint8_t *value = malloc(RECORD_VALUE_MAX);
    if (!value)
        return no_memory(e);

    ssize_t n = getxattr(self, name, value, RECORD_VALUE_MAX);
    if (n >= 0) {
        struct record r = {.kind = RECORD_VALUE,
                           .value = {.name = name, .data = value, .len = (uint32_t)n}};
        worker_put(w, &r);
    }

    free(value);
    return n < 0 ? xattr_fail(e, path, name) : 0;
}

/* With the name "" all of the user's. */
int worker_getxattr(struct worker_job *w, struct pd_err *e)
{
    const char *path = w->argv[1], *name = w->argv[2];
    char self[PATH_OF_FD];
    struct stat st;

    auto_fd fd = path_find(w, path, 1, &st, e);
    if (fd < 0)
        return -1;

    path_of_fd(fd, self);
    if (*name) {
        if (put_value(w, self, path, name, e) < 0)
            return -1;
    } else {
        char *names = calloc(1, XATTR_NAMES_MAX + 1);
        if (!names)
            return no_memory(e);
        ssize_t len = listxattr(self, names, XATTR_NAMES_MAX);
        if (len < 0 && errno != EOPNOTSUPP)
            return xattr_fail(e, path, "");

        for (ssize_t i = 0; i < len; i += (ssize_t)strlen(names + i) + 1)
            if (!strncmp(names + i, "user.", 5))
                (void)put_value(w, self, path, names + i, e); /* or it was removed meanwhile */
        free(names);
    }

    worker_put(w, &(struct record){.kind = RECORD_END});
    return 0;
}

/* The value is the fourth word, or else the input. */
int worker_setxattr(struct worker_job *w, struct pd_err *e)
{
    const char *path = w->argv[1], *name = w->argv[2];
    char self[PATH_OF_FD];
    struct stat st;
    auto_buf value = BUF_INIT(RECORD_VALUE_MAX);

    if (strncmp(name, "user.", 5) != 0 || !name[5])
        return pd_fail(e, PD_INVALID, "attribute '%.60s': the name must begin with 'user.'", name);

    auto_fd fd = path_find(w, path, 1, &st, e);
    if (fd < 0)
        return -1;

    if (w->argc > 3)
        buf_puts(&value, w->argv[3]);
    while (w->argc <= 3) {
        char part[4096];
        ssize_t n = read(0, part, sizeof part);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || buf_put(&value, part, (size_t)n) < 0)
            break;
    }

    if (value.overflow)
        return pd_fail(e, PD_TOO_LARGE, "attribute '%.60s': at most %u bytes", name,
                       RECORD_VALUE_MAX);

    path_of_fd(fd, self);
    if (setxattr(self, name, value.len ? (const void *)value.data : "", value.len, 0) < 0)
        return xattr_fail(e, path, name);
    return answer(w, &st, path, NULL, e);
}
