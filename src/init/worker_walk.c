/* Trees: list and remove, both over a walk (walk.c).
 *
 * A list that reaches its limit ends with a cursor, the path of the last entry told, from which the
 * next one goes on. A removal deletes files on the way down and each directory when it is left; one
 * that somebody fills meanwhile is gone through again, at most AGAIN_MAX times. */
#include "init/path.h"
#include "init/walk.h"
#include "init/worker.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>

#define DEPTH_MAX 10000000u
#define LIST_MAX  100000u
#define AGAIN_MAX 64 /* passes over a directory that somebody fills while it is being removed */

/* Full paths of entries: the root's path once, then the walk's. */
static int full_path(struct buf *b, size_t root_len, const char *path)
{
    b->len = root_len;
    b->overflow = 0;
    return buf_putc(b, '/') < 0 || buf_puts(b, path) < 0 || !buf_cstr(b) ? -1 : 0;
}

static int root_path(const struct worker_job *w, struct buf *b, size_t *ret_len, struct pd_err *e)
{
    char *path = path_absolute(w, w->argv[1]);
    int bad = !path || buf_puts(b, path) < 0;
    free(path);

    if (bad)
        return pd_fail(e, PD_CAPACITY, "no memory in the sandbox");
    *ret_len = b->len == 1 ? 0 : b->len; /* "/" */
    return 0;
}

int worker_list(struct worker_job *w, struct pd_err *e)
{
    uint64_t depth, limit, told = 0;
    struct stat st;
    auto_buf path = BUF_INIT(2 * RECORD_PATH_MAX), last = BUF_INIT(RECORD_PATH_MAX + 1);
    char target[PATH_MAX];
    size_t root_len = 0;
    int detail;

    if (worker_last_flag(w, 5, "detail", &detail, e) < 0 ||
        worker_number("depth", w->argv[2], 1, DEPTH_MAX, &depth, e) < 0 ||
        worker_number("limit", w->argv[3], 1, LIST_MAX, &limit, e) < 0 ||
        root_path(w, &path, &root_len, e) < 0)
        return -1;

    int dir = path_open_dir(w, w->argv[1], &st, e);
    if (dir < 0)
        return -1;
    auto_walk k;
    if (walk_begin(&k, dir, w->argv[4], (size_t)depth, (size_t)limit + 1, e) < 0)
        return -1;

    for (int step; (step = walk_next(&k, e)) != WALK_END;) {
        if (step < 0)
            return -1;
        if (step == WALK_LEAVE || full_path(&path, root_len, k.path) < 0)
            continue; /* too long to be told */

        if (told == limit) {
            struct record more = {.kind = RECORD_MORE, .more = {.cursor = buf_cstr(&last)}};
            worker_put(w, &more);
            return 0;
        }

        target[0] = 0;
        if (!detail && S_ISLNK(k.st.st_mode))
            path_readlink(k.dir, k.name, target);
        if (detail)
            worker_put_detail(w, &k.st, (const char *)path.data, k.dir, k.name);
        else
            worker_put_entry(w, &k.st, (const char *)path.data, target);

        buf_clear(&last);
        buf_puts(&last, k.path);
        told++;
        if (S_ISDIR(k.st.st_mode) && k.path_buf.len + NAME_MAX < RECORD_PATH_MAX - root_len)
            (void)walk_enter(&k); /* one that may not be read is told of, but not what is in it */
    }

    worker_put(w, &(struct record){.kind = RECORD_END});
    return 0;
}

/* The directory at LEAVE is empty, unless somebody has put something into it meanwhile. */
static int remove_left(struct walk *k, int *again)
{
    if (unlinkat(k->dir, k->name, AT_REMOVEDIR) == 0 || errno == ENOENT) {
        *again = 0;
        return 0;
    }

    if (errno == ENOTEMPTY && ++*again < AGAIN_MAX)
        return walk_again(k);
    return -errno;
}

static int remove_entry(struct walk *k)
{
    if (!S_ISDIR(k->st.st_mode))
        return unlinkat(k->dir, k->name, 0) == 0 || errno == ENOENT ? 0 : -errno;

    if (unlinkat(k->dir, k->name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return -errno;
    int r = walk_enter(k);
    return r == -ENOENT ? 0 : r;
}

/* Removes what is in the directory, not the directory. */
static int remove_below(int dir, const char *root, struct pd_err *e)
{
    auto_walk k;
    int again = 0;
    if (walk_begin(&k, dir, NULL, SIZE_MAX, 0, e) < 0)
        return -1;

    for (int step; (step = walk_next(&k, e)) != WALK_END;) {
        if (step < 0)
            return -1;
        int r = step == WALK_LEAVE ? remove_left(&k, &again) : remove_entry(&k);
        if (r < 0) {
            char where[200];
            snprintf(where, sizeof where, "%.90s/%.100s", root, k.path);
            errno = -r;
            return path_fail(e, where);
        }
    }
    return 0;
}

int worker_remove(struct worker_job *w, struct pd_err *e)
{
    const char *path = w->argv[1];
    int recursive;
    auto_place p = PLACE_INIT;

    if (worker_flag("recursive", w->argv[2], &recursive, e) < 0 ||
        path_place(w, path, PLACE_SLASH, &p, e) < 0)
        return -1;

    if (!p.exists) {
        errno = ENOENT;
        return path_fail(e, path);
    }

    int flags = S_ISDIR(p.st.st_mode) ? AT_REMOVEDIR : 0;
    int r = unlinkat(p.dir, p.name, flags);
    for (int i = 0; r < 0 && errno == ENOTEMPTY && recursive && i < AGAIN_MAX; i++) {
        int dir = path_openat(p.dir, p.name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0, 0);
        if (dir < 0) {
            errno = -dir;
            break;
        }
        if (remove_below(dir, path, e) < 0)
            return -1;
        r = unlinkat(p.dir, p.name, flags);
    }

    if (r < 0)
        return path_fail(e, path);
    worker_put(w, &(struct record){.kind = RECORD_END});
    return 0;
}
