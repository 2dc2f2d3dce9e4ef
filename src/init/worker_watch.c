/* watch: what changes in a file, a directory or a tree, by inotify.
 *
 * Each directory has a watch of its own, so a new directory is watched first and then looked into:
 * what was made in between is told as created, once or (when the kernel tells of it, too) twice.
 * Two halves of a move come one after the other; a half that stays alone led into or out of the
 * tree.
 *
 * The kernel queues events while the reader of the pipe is slow, and drops them when the queue is
 * full: that is told as overflow.
 *
 * There are two readers. One follows a stream. The other asks from time to time, by a byte on
 * descriptor 0, and must then hear of everything that was over before it asked: for that one events
 * are kept here, in the sandbox's memory and not in the server's. */
#include "init/path.h"
#include "init/walk.h"
#include "init/worker.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>

#define WATCHES_MAX 8192u
#define DEPTH_MAX   4096u
#define EVENTS                                                                                     \
    (IN_CREATE | IN_MODIFY | IN_CLOSE_WRITE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB)
#define SELF_EVENTS (IN_DELETE_SELF | IN_MOVE_SELF)
#define HELD_MAX    (16u << 20) /* of events that nobody has asked for yet */
#define ANSWER_MAX  (1u << 20)  /* of those told at once */
#define DRAIN_MAX   4096        /* reads until all is said to be read: somebody may never stop */
#define TEMP_PREFIX ".paddock-" /* of files that replace others: save.c */
#define TEMP_DIGITS 16

struct watched {
    int wd;
    char *path; /* absolute; NULL: gone */
};

struct watcher {
    struct worker_job *w;
    int inotify;
    int recursive;
    int root_wd;
    struct watched *rows; /* by wd: the kernel counts up */
    size_t count, room;
    int full; /* more directories than can be watched: told once */
    /* How it is told, by letters of the third word: */
    int exact;  /* x: as inotify has it, each half of a move for itself; no files of save.c's */
    int detail; /* d: with a DETAIL in front of each event of a file that exists */
    int polled; /* p: when asked */
    int lost;   /* for want of room; told when all that is held was told */
    /* The first half of a move, until the next event. */
    uint32_t cookie;
    int from_is_dir;
    char *from;
    /* The last change of contents: what is read at once is told once. */
    char *modified;
    int ended;
};

static struct watched *find(struct watcher *v, int wd)
{
    size_t low = 0, high = v->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (v->rows[mid].wd == wd)
            return v->rows[mid].path ? &v->rows[mid] : NULL;
        if (v->rows[mid].wd < wd)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

static void put_detail(struct watcher *v, const char *path)
{
    struct stat st;
    if (strlen(path) < PATH_MAX && fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0)
        worker_put_detail(v->w, &st, path, AT_FDCWD, path);
}

static void put(struct watcher *v, uint32_t kind, int is_dir, const char *path, const char *path2)
{
    if (v->polled && (v->lost || kind == EVENT_OVERFLOW || v->w->out.len > HELD_MAX)) {
        v->lost = 1;
        return;
    }

    if (v->detail && (kind == EVENT_CREATED || kind == EVENT_MODIFIED || kind == EVENT_ATTRIBUTES))
        put_detail(v, path);

    struct record r = {
        .kind = RECORD_EVENT,
        .event = {.kind = kind, .is_dir = is_dir != 0, .path = path, .path2 = path2 ? path2 : ""}};
    size_t before = v->w->out.len;
    worker_put(v->w, &r);
    if (v->polled && v->w->out.len == before)
        v->lost = 1; /* no memory */
}

static char *join(const char *dir, const char *name)
{
    size_t a = strcmp(dir, "/") ? strlen(dir) : 0, b = strlen(name);
    char *out = malloc(a + b + 2);
    if (!out)
        _exit(1); /* at the limit of memory there is nothing to tell it with */

    memcpy(out, dir, a);
    out[a] = '/';
    memcpy(out + a + 1, name, b + 1);
    return out;
}

/* A file on its way to its name. */
static int is_temporary(const struct watcher *v, const char *name)
{
    size_t n = strlen(TEMP_PREFIX);
    return v->exact && !strncmp(name, TEMP_PREFIX, n) &&
           strspn(name + n, "0123456789abcdef") == TEMP_DIGITS && !name[n + TEMP_DIGITS];
}

/* A file without a name, such as save.c's: the kernel gives it one that nobody can find. */
static int is_nameless(const char *name, const char *path)
{
    struct stat st;
    return name[0] == '#' && name[1] && !name[1 + strspn(name + 1, "0123456789")] &&
           fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) < 0;
}

static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Forgets the rows of watches that are gone, so that directories that come and go cost nothing. */
static void compact(struct watcher *v)
{
    size_t kept = 0;
    for (size_t i = 0; i < v->count; i++)
        if (v->rows[i].path)
            v->rows[kept++] = v->rows[i];
    v->count = kept;
}

static int add_row(struct watcher *v, int wd, const char *path)
{
    struct watched *known = find(v, wd);
    char *copy = strdup(path);
    if (!copy)
        return -ENOMEM;

    if (known) { /* the same directory by another name: it was moved */
        free(known->path);
        known->path = copy;
        return 0;
    }

    if (v->count == v->room) {
        compact(v);
        size_t room = v->room ? v->room * 2 : 64;
        struct watched *rows = v->rows;
        if (v->count >= v->room / 2)
            rows = realloc(rows, room * sizeof *rows);
        else
            room = v->room;
        if (!rows) {
            free(copy);
            return -ENOMEM;
        }
        v->room = room;
        v->rows = rows;
    }

    size_t at = v->count; /* nearly always the end */
    while (at && v->rows[at - 1].wd > wd) {
        v->rows[at] = v->rows[at - 1];
        at--;
    }
    v->rows[at] = (struct watched){wd, copy};
    v->count++;
    return 0;
}

static size_t live_count(const struct watcher *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->count; i++)
        n += v->rows[i].path != NULL;
    return n;
}

/* Watches what a descriptor stands for. Watch descriptor or -errno. */
static int add_watch(struct watcher *v, int fd, const char *path)
{
    char self[PATH_OF_FD];
    path_of_fd(fd, self);
    uint32_t mask = EVENTS | SELF_EVENTS | IN_EXCL_UNLINK;
    int wd = inotify_add_watch(v->inotify, self, v->exact ? mask & ~IN_CLOSE_WRITE : mask);
    if (wd < 0)
        return -errno;

    int r = add_row(v, wd, path);
    return r < 0 ? r : wd;
}

static int add_below(struct watcher *v, int fd, const char *path)
{
    if (v->count >= WATCHES_MAX && live_count(v) >= WATCHES_MAX)
        return -ENOSPC;
    return add_watch(v, fd, path);
}

/* Watches everything below an open directory, which it takes over. `tell`: what is found is new. */
static int add_tree(struct watcher *v, int dir, const char *root, int tell, struct pd_err *e)
{
    auto_walk k;
    if (walk_begin(&k, dir, NULL, DEPTH_MAX, 0, e) < 0)
        return -1;

    for (int step; (step = walk_next(&k, e)) != WALK_END;) {
        if (step < 0)
            return -1;
        if (step == WALK_LEAVE)
            continue;

        char *path = join(root, k.path);
        int is_dir = S_ISDIR(k.st.st_mode);
        int told = tell && !is_temporary(v, k.name);

        if (told)
            put(v, EVENT_CREATED, is_dir, path, NULL);
        if (told && v->exact && S_ISREG(k.st.st_mode) && k.st.st_size)
            put(v, EVENT_MODIFIED, 0, path, NULL); /* by somebody who was faster */

        if (is_dir && k.path_buf.len < RECORD_PATH_MAX) {
            auto_fd fd = openat(k.dir, k.name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            int r = fd < 0 ? 0 : add_below(v, fd, path);
            if (r == -ENOSPC || r == -ENOMEM)
                v->full = 1;
            else
                (void)walk_enter(&k);
        }
        free(path);
    }
    return 0;
}

/* A directory has appeared: watch it, then see what is in it already. */
static void new_directory(struct watcher *v, const char *path, int tell)
{
    auto_fd fd = path_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0, 0);
    if (fd < 0)
        return;

    int r = add_below(v, fd, path);
    if (r >= 0)
        (void)add_tree(v, fd_take(&fd), path, tell, NULL);
    else if (r == -ENOSPC || r == -ENOMEM)
        v->full = 1;
}

static int is_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return !strncmp(path, dir, n) && (path[n] == '/' || !path[n]);
}

/* A directory has another name: so has everything in it. */
static void rename_rows(struct watcher *v, const char *from, const char *to)
{
    for (size_t i = 0; i < v->count; i++) {
        char *old = v->rows[i].path;
        if (!old || !is_below(old, from))
            continue;

        const char *rest = old + strlen(from);
        v->rows[i].path = *rest ? join(to, rest + 1) : strdup(to);
        free(old);
    }
}

/* A directory has left the tree: what happens in it is of no more interest. */
static void forget_rows(struct watcher *v, const char *dir)
{
    for (size_t i = 0; i < v->count; i++)
        if (v->rows[i].path && is_below(v->rows[i].path, dir)) {
            (void)inotify_rm_watch(v->inotify, v->rows[i].wd);
            free(v->rows[i].path);
            v->rows[i].path = NULL;
        }
}

static void flush_move(struct watcher *v)
{
    if (!v->from)
        return;

    if (!v->exact)
        put(v, EVENT_REMOVED, v->from_is_dir, v->from, NULL);
    if (v->from_is_dir)
        forget_rows(v, v->from);
    free(v->from);
    v->from = NULL;
}

static void flush_modified(struct watcher *v)
{
    if (v->modified)
        put(v, EVENT_MODIFIED, 0, v->modified, NULL);
    free(v->modified);
    v->modified = NULL;
}

static void moved_to(struct watcher *v, const struct inotify_event *ev, const char *path)
{
    int is_dir = (ev->mask & IN_ISDIR) != 0;
    int hidden = is_temporary(v, ev->name);

    if (v->from && v->cookie == ev->cookie) {
        if (!v->exact)
            put(v, EVENT_MOVED, is_dir, v->from, path);
        else if (!hidden) /* the new contents of a file, or a new file */
            put(v, is_temporary(v, last_name(v->from)) ? EVENT_MODIFIED : EVENT_CREATED, is_dir,
                path, NULL);
        if (is_dir)
            rename_rows(v, v->from, path);
        free(v->from);
        v->from = NULL;
        return;
    }

    flush_move(v);
    if (!hidden)
        put(v, EVENT_CREATED, is_dir, path, NULL);
    if (is_dir && v->recursive)
        new_directory(v, path, 1);
}

static void moved_from(struct watcher *v, const struct inotify_event *ev, char *path)
{
    flush_move(v);
    v->cookie = ev->cookie;
    v->from_is_dir = (ev->mask & IN_ISDIR) != 0;
    v->from = path;

    if (v->exact && !is_temporary(v, ev->name))
        put(v, EVENT_MOVED, v->from_is_dir, path, NULL);
}

/* Tells of a change of the watched file or directory itself. */
static void on_self(struct watcher *v, struct watched *row, const struct inotify_event *ev)
{
    if (ev->mask & IN_IGNORED) {
        free(row->path);
        row->path = NULL;
        return;
    }

    if (ev->wd != v->root_wd)
        return; /* its parent tells as much, and by name */

    if (ev->mask & SELF_EVENTS) {
        int is_moved = v->exact && ev->mask & IN_MOVE_SELF;
        put(v, is_moved ? EVENT_MOVED : EVENT_REMOVED, (ev->mask & IN_ISDIR) != 0, row->path, NULL);
        v->ended = 1;
    } else if (ev->mask & IN_ATTRIB) {
        put(v, EVENT_ATTRIBUTES, (ev->mask & IN_ISDIR) != 0, row->path, NULL);
    } else if (ev->mask & (IN_MODIFY | IN_CLOSE_WRITE)) {
        put(v, EVENT_MODIFIED, 0, row->path, NULL);
    }
}

static void on_event(struct watcher *v, const struct inotify_event *ev)
{
    if (ev->mask & IN_Q_OVERFLOW) {
        flush_modified(v);
        flush_move(v);
        put(v, EVENT_OVERFLOW, 0, v->w->argv[1], NULL);
        return;
    }

    struct watched *row = find(v, ev->wd);
    if (!row)
        return;

    if (!ev->len) {
        flush_modified(v);
        on_self(v, row, ev);
        return;
    }

    char *path = join(row->path, ev->name);
    int is_dir = (ev->mask & IN_ISDIR) != 0;
    if (v->modified && (!(ev->mask & IN_MODIFY) || strcmp(v->modified, path) != 0)) {
        /* The end of writing follows the last write: one event is enough. */
        if (!(ev->mask & IN_CLOSE_WRITE) || strcmp(v->modified, path) != 0)
            flush_modified(v);
    }

    if (v->from && !(ev->mask & IN_MOVED_TO))
        flush_move(v);
    if ((is_temporary(v, ev->name) && !(ev->mask & (IN_MOVED_FROM | IN_MOVED_TO))) ||
        (ev->mask & (IN_ATTRIB | IN_MODIFY | IN_CLOSE_WRITE) && is_nameless(ev->name, path))) {
        free(path);
        return;
    }

    if (ev->mask & IN_CREATE) {
        put(v, EVENT_CREATED, is_dir, path, NULL);
        if (is_dir && v->recursive)
            new_directory(v, path, 1);
    } else if (ev->mask & (IN_MODIFY | IN_CLOSE_WRITE)) {
        free(v->modified);
        v->modified = path;
        return;
    } else if (ev->mask & IN_DELETE) {
        put(v, EVENT_REMOVED, is_dir, path, NULL);
    } else if (ev->mask & IN_MOVED_FROM) {
        moved_from(v, ev, path);
        return;
    } else if (ev->mask & IN_MOVED_TO) {
        moved_to(v, ev, path);
    } else if (ev->mask & IN_ATTRIB) {
        put(v, EVENT_ATTRIBUTES, is_dir, path, NULL);
    }
    free(path);
}

/* How many bytes there were, or -1. */
static ssize_t read_events(struct watcher *v)
{
    _Alignas(struct inotify_event) char bytes[32768];
    ssize_t n = read(v->inotify, bytes, sizeof bytes);

    for (ssize_t at = 0; at < n;) {
        const struct inotify_event *ev = (const void *)(bytes + at);
        at += (ssize_t)(sizeof *ev + ev->len);
        on_event(v, ev);
    }
    return n;
}

/* Until the root or the reader is gone. */
static void follow(struct watcher *v)
{
    while (!v->ended) {
        struct pollfd p[2] = {{v->inotify, POLLIN, 0}, {1, 0, 0}};

        /* A half of a move waits a little for the other one, which is queued with it. */
        int n = poll(p, 2, v->from ? 20 : -1);
        if (n < 0 && errno != EINTR)
            return;
        if (p[1].revents & (POLLERR | POLLHUP))
            _exit(0);

        if (n > 0 && p[0].revents)
            read_events(v);
        flush_modified(v);
        if (n == 0)
            flush_move(v);

        if (v->full == 1) {
            v->full = 2;
            put(v, EVENT_OVERFLOW, 0, v->w->argv[1], NULL);
        }
        worker_flush(v->w);
    }
    flush_move(v);
}

/* How much of what is held can be told at once: whole events, each with what belongs to it. */
static size_t answer_size(const struct buf *held)
{
    size_t at = 0, cut = 0;

    while (at < held->len) {
        uint32_t head[2];
        memcpy(head, held->data + at, sizeof head);
        at += sizeof head + head[0];

        if (at > ANSWER_MAX && cut)
            break;
        if (head[1] == RECORD_EVENT)
            cut = at;
    }
    return cut;
}

static void answer(struct watcher *v)
{
    struct buf *held = &v->w->out;
    size_t len = answer_size(held);
    auto_buf more = BUF_INIT(2 * RECORD_MAX);

    if (len && fd_write_all(1, held->data, len) < 0)
        _exit(1);
    if (len < held->len)
        memmove(held->data, held->data + len, held->len - len);
    held->len -= len;
    if (!held->len)
        buf_done(held); /* what a flood took is given back */

    struct record r = {.kind = RECORD_EVENT,
                       .event = {.kind = EVENT_OVERFLOW, .path = v->w->argv[1], .path2 = ""}};
    if (v->lost && !held->len) {
        v->lost = 0;
        record_encode(&more, &r);
    }

    r.event =
        (struct record_event){.kind = EVENT_MARK, .is_dir = held->len > 0, .path = "", .path2 = ""};
    record_encode(&more, &r);
    if (fd_write_all(1, more.data, more.len) < 0)
        _exit(1);
}

/* Until the asker is gone; also when the root is, because events may still be asked for. */
static _Noreturn void follow_asker(struct watcher *v)
{
    for (;;) {
        struct pollfd p[2] = {{v->ended ? -1 : v->inotify, POLLIN, 0}, {0, POLLIN, 0}};
        char asked[16];

        int n = poll(p, 2, v->from ? 20 : -1);
        if (n < 0 && errno != EINTR)
            _exit(1);
        if (n > 0 && p[0].revents)
            (void)read_events(v);
        if (n == 0)
            flush_move(v);
        if (n <= 0 || !p[1].revents)
            continue;

        ssize_t count = read(0, asked, sizeof asked);
        if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN))
            _exit(0);
        for (int i = 0; i < DRAIN_MAX && !v->ended && read_events(v) > 0; i++)
            continue;

        flush_modified(v);
        flush_move(v);
        if (v->full == 1) {
            v->full = 2;
            v->lost = 1;
        }

        for (; count > 0; count--)
            answer(v);
    }
}

static int read_how(struct watcher *v, const char *letters, struct pd_err *e)
{
    if (letters[strspn(letters, "xdp")])
        return pd_fail(e, PD_INVALID, "'%.20s': how to tell is said by the letters x, d and p",
                       letters);

    v->exact = strchr(letters, 'x') != NULL;
    v->detail = strchr(letters, 'd') != NULL;
    v->polled = strchr(letters, 'p') != NULL;
    return 0;
}

int worker_watch(struct worker_job *w, struct pd_err *e)
{
    struct watcher v = {.w = w};
    struct stat st;

    if (worker_flag("recursive", w->argv[2], &v.recursive, e) < 0 ||
        read_how(&v, w->argc > 3 ? w->argv[3] : "", e) < 0)
        return -1;

    auto_fd found = path_find(w, w->argv[1], 1, &st, e);
    if (found < 0)
        return -1;
    if (v.exact && !S_ISDIR(st.st_mode))
        return path_fail_type(e, w->argv[1], st.st_mode, "a directory");

    char *path = path_absolute(w, w->argv[1]);
    v.inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (!path || v.inotify < 0)
        return path ? pd_fail(e, PD_CAPACITY,
                              "the sandbox cannot watch more: end another watch first (%s)",
                              strerror(errno))
                    : pd_fail(e, PD_CAPACITY, "no memory in the sandbox");

    v.root_wd = add_watch(&v, found, path);
    if (v.root_wd < 0) {
        errno = -v.root_wd;
        if (errno == ENOSPC)
            return pd_fail(e, PD_CAPACITY, "the sandbox cannot watch more files");
        return path_fail(e, w->argv[1]);
    }

    if (v.recursive && S_ISDIR(st.st_mode)) {
        int dir = path_reopen(found, O_RDONLY | O_DIRECTORY);
        if (dir < 0) {
            errno = -dir;
            return path_fail(e, w->argv[1]);
        }
        if (add_tree(&v, dir, path, 0, e) < 0)
            return -1;
    }

    /* A file that is open here would not be gone when it is removed. */
    fd_done(&found);
    w->argv[1] = path; /* as it is told from here on */
    worker_put_entry(w, &st, path, NULL);
    worker_flush(w);

    if (v.polled) {
        w->holds = 1;
        w->out.max = HELD_MAX + 4 * RECORD_MAX;
        follow_asker(&v);
    }

    follow(&v);
    worker_put(w, &(struct record){.kind = RECORD_END});
    return 0;
}
