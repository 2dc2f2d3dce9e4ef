/* How a tree is walked without recursion: a stack of levels, one for each directory on the way
 * down, each with its descriptor and a sorted batch of its names. A directory with more names is
 * read again from its beginning, for the names after the last one of the batch.
 *
 * Only the innermost WALK_FDS levels have their descriptor open. On the way up the parent is opened
 * as ".." and must be the one that was left; if it is not, somebody has moved a directory, and the
 * walk ends with an error.
 *
 * A walk with a cursor enters the directories that the cursor names and tells of nothing until it
 * is past them. */
#include "init/walk.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#define PATH_BYTES_MAX (64u << 20)
#define OPEN_DIR       (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)

struct dirent64_raw {
    uint64_t ino;
    int64_t off;
    unsigned short reclen;
    unsigned char type;
    char name[];
};

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_free(struct walk_level *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->names[i]);
    free(l->names);
    l->names = NULL;
    l->count = l->next = 0;
}

/* Sorts, and keeps the first `batch`. */
static void names_trim(struct walk_level *l, size_t batch)
{
    qsort(l->names, l->count, sizeof *l->names, by_bytes);
    while (l->count > batch) {
        free(l->names[--l->count]);
        l->more = 1;
    }
}

static int name_add(struct walk_level *l, size_t *room, const char *name, size_t batch)
{
    if (l->count == *room) {
        size_t grown = *room ? *room * 2 : 32;
        char **names = realloc(l->names, grown * sizeof *names);
        if (!names)
            return -ENOMEM;
        l->names = names;
        *room = grown;
    }

    char *copy = strdup(name);
    if (!copy)
        return -ENOMEM;
    l->names[l->count++] = copy;

    if (l->count >= 2 * batch)
        names_trim(l, batch);
    return 0;
}

/* The first `batch` names after `after` (with it, if `from`). In the order of strcmp, so that a
 * directory of any size is read in pages with little memory. */
static int names_read(struct walk_level *l, size_t batch, const char *after, int from)
{
    _Alignas(8) char buffer[32768];
    size_t room = 0;

    l->more = 0;
    if (lseek(l->fd, 0, SEEK_SET) < 0)
        return -errno;

    for (;;) {
        long n = syscall(SYS_getdents64, l->fd, buffer, sizeof buffer);
        if (n < 0)
            return -errno;
        if (n == 0)
            break;

        for (long at = 0; at < n;) {
            const struct dirent64_raw *d = (const void *)(buffer + at);
            at += d->reclen;
            if (!strcmp(d->name, ".") || !strcmp(d->name, ".."))
                continue;
            int order = after ? strcmp(d->name, after) : 1;
            if (order < 0 || (order == 0 && !from))
                continue;
            int r = name_add(l, &room, d->name, batch);
            if (r < 0)
                return r;
        }
    }

    if (l->count)
        names_trim(l, batch);
    return 0;
}

static int is_kernel_made(int fd)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) < 0)
        return 0;

    switch ((unsigned long)fs.f_type) {
    case PROC_SUPER_MAGIC:
    case SYSFS_MAGIC:
    case CGROUP_SUPER_MAGIC:
    case CGROUP2_SUPER_MAGIC:
    case DEVPTS_SUPER_MAGIC:
        return 1;
    default:
        return 0;
    }
}

/* The first component of the cursor, cut out into `out`. */
static const char *resume_part(const struct walk *k, char out[NAME_MAX + 1])
{
    size_t n = k->resume ? strcspn(k->resume, "/") : 0;
    if (!n || n > NAME_MAX)
        return NULL;

    memcpy(out, k->resume, n);
    out[n] = 0;
    return out;
}

/* Adds a level for an open directory, which it takes over. */
static int push(struct walk *k, int dir, size_t path_len)
{
    auto_fd fd = dir;
    char part[NAME_MAX + 1];
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;

    if (k->depth == k->room) {
        size_t room = k->room ? k->room * 2 : 16;
        struct walk_level *levels = realloc(k->levels, room * sizeof *levels);
        if (!levels)
            return -ENOMEM;
        k->levels = levels;
        k->room = room;
    }

    struct walk_level *l = &k->levels[k->depth];
    *l = (struct walk_level){.fd = fd, .dev = st.st_dev, .ino = st.st_ino, .path_len = path_len};
    int r = names_read(l, k->batch, resume_part(k, part), 1);
    if (r < 0) {
        names_free(l);
        return r;
    }

    fd_take(&fd);
    k->depth++;
    if (k->depth > WALK_FDS)
        fd_done(&k->levels[k->depth - 1 - WALK_FDS].fd);
    return 0;
}

int walk_begin(struct walk *k, int dir, const char *cursor, size_t max_depth, size_t batch,
               struct pd_err *e)
{
    *k = (struct walk){.max_depth = max_depth,
                       .batch = batch && batch < WALK_BATCH ? batch : WALK_BATCH,
                       .path_buf = BUF_INIT(PATH_BYTES_MAX),
                       .resume = cursor && *cursor ? cursor : NULL,
                       .dir = -1};

    int r = push(k, dir, 0);
    if (r == 0)
        return 0;
    errno = -r;
    return pd_fail_sys(e, "read a directory");
}

void walk_done(struct walk *k)
{
    while (k->depth) {
        struct walk_level *l = &k->levels[--k->depth];
        names_free(l);
        fd_done(&l->fd);
    }

    free(k->levels);
    k->levels = NULL;
    buf_done(&k->path_buf);
}

/* Makes `path` the path of `name` in the innermost directory. */
static int set_path(struct walk *k, const char *name)
{
    struct walk_level *l = &k->levels[k->depth - 1];
    struct buf *b = &k->path_buf;

    b->len = l->path_len;
    if ((b->len && buf_putc(b, '/') < 0) || buf_puts(b, name) < 0 || !buf_cstr(b))
        return -ENOMEM;

    k->path = (const char *)b->data;
    k->name = k->path + (l->path_len ? l->path_len + 1 : 0);
    k->dir = l->fd;
    return 0;
}

static int moved(struct pd_err *e)
{
    return pd_fail(e, PD_CONFLICT, "a directory was moved while it was being read; try again");
}

/* Leaves the innermost directory. */
static int pop(struct walk *k, struct pd_err *e)
{
    struct walk_level *l = &k->levels[k->depth - 1], *up = l - 1;
    auto_fd fd = fd_take(&l->fd);

    k->path_buf.len = l->path_len;
    k->st = (struct stat){.st_dev = l->dev, .st_ino = l->ino, .st_mode = S_IFDIR};
    names_free(l);
    k->depth--;
    if (!k->depth)
        return WALK_END;

    if (up->fd < 0) {
        struct stat st;
        auto_fd parent = openat(fd, "..", OPEN_DIR);
        if (parent < 0 || fstat(parent, &st) < 0)
            return pd_fail_sys(e, "go back up a directory");
        if (st.st_dev != up->dev || st.st_ino != up->ino)
            return moved(e);
        up->fd = fd_take(&parent);
    }

    k->path = buf_cstr(&k->path_buf);
    if (!k->path)
        return pd_fail(e, PD_CAPACITY, "no memory for a path");
    k->name = k->path + (up->path_len ? up->path_len + 1 : 0);
    k->dir = up->fd;
    return WALK_LEAVE;
}

static int refill(struct walk *k)
{
    struct walk_level *l = &k->levels[k->depth - 1];
    char last[NAME_MAX + 1];
    size_t n = strlen(l->names[l->count - 1]);
    if (n > NAME_MAX)
        return -ENAMETOOLONG;

    memcpy(last, l->names[l->count - 1], n + 1);
    names_free(l);
    return names_read(l, k->batch, last, 0);
}

/* The entry is on the cursor's way: it was told before. Goes into it, and forgets the cursor when
 * it ends here or leads to something that is no longer there. */
static void follow_cursor(struct walk *k)
{
    size_t n = strcspn(k->resume, "/");
    k->resume += n + (k->resume[n] == '/');
    if (!*k->resume)
        k->resume = NULL;

    if (!S_ISDIR(k->st.st_mode) || walk_enter(k) < 0)
        k->resume = NULL;
}

int walk_next(struct walk *k, struct pd_err *e)
{
    char part[NAME_MAX + 1];

    while (k->depth) {
        struct walk_level *l = &k->levels[k->depth - 1];
        if (l->next == l->count) {
            if (!l->more || !l->count)
                return pop(k, e);
            int r = refill(k);
            if (r < 0) {
                errno = -r;
                return pd_fail_sys(e, "read a directory");
            }
            continue;
        }

        const char *name = l->names[l->next++];
        if (set_path(k, name) < 0)
            return pd_fail(e, PD_CAPACITY, "the tree is too deep: no memory for its paths");
        if (fstatat(k->dir, k->name, &k->st, AT_SYMLINK_NOFOLLOW) < 0)
            continue; /* removed meanwhile, or in a directory that may be listed but not entered */

        if (k->resume && resume_part(k, part) && !strcmp(part, name)) {
            follow_cursor(k);
            continue;
        }

        k->resume = NULL;
        return WALK_ENTRY;
    }
    return WALK_END;
}

int walk_enter(struct walk *k)
{
    if (k->depth >= k->max_depth)
        return -ELOOP;

    auto_fd fd = openat(k->dir, k->name, OPEN_DIR);
    if (fd < 0)
        return -errno;
    if (k->st.st_dev != k->levels[0].dev && is_kernel_made(fd))
        return -EXDEV;
    return push(k, fd_take(&fd), k->path_buf.len);
}

int walk_again(struct walk *k)
{
    return walk_enter(k);
}
