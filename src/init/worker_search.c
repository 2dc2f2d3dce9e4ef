/* search and replace: the files of a tree, or one file, line by line.
 *
 * A search reads blocks and looks at whole lines; a line beyond LINE_BYTES is looked at in pieces.
 * A replacement needs the whole file, at most REPLACE_MAX, and saves it as a new one (save.c).
 *
 * Files with a NUL are taken for binary and left alone, as are all that are not regular, and links.
 * Files that may not be read are skipped. */
#include "init/match.h"
#include "init/path.h"
#include "init/save.h"
#include "init/walk.h"
#include "init/worker.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>

#define SEARCH_MAX  100000u
#define BLOCK       (64u << 10)
#define LINE_BYTES  (1u << 20) /* a longer line is looked at in pieces */
#define REPLACE_MAX (32u << 20)
#define DEPTH_MAX   100000u
#define OPEN_FILE   (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

/* A search or replacement under way. */
struct hunt {
    struct worker_job *w;
    struct matcher m;
    const char *glob;
    uint64_t limit, found;
    const char *replacement; /* replace */
    int dry;
    struct buf path; /* of the file, absolute */
    size_t root_len;
};

static int hunt_path(struct hunt *h, const char *path)
{
    h->path.len = h->root_len;
    h->path.overflow = 0;
    return buf_putc(&h->path, '/') < 0 || buf_puts(&h->path, path) < 0 || !buf_cstr(&h->path) ? -1
                                                                                              : 0;
}

/* A glob with a slash is about the path below the root, any other about the name. */
static int is_meant(const struct hunt *h, const char *path, const char *name)
{
    return !*h->glob || glob_match(h->glob, strchr(h->glob, '/') ? path : name);
}

static void put_match(struct hunt *h, const char *line, size_t len, uint64_t number, uint64_t start,
                      size_t column)
{
    char text[RECORD_TEXT_MAX + 1];

    if (len > RECORD_TEXT_MAX)
        len = RECORD_TEXT_MAX;
    memcpy(text, line, len);
    text[len] = 0;

    struct record r = {.kind = RECORD_MATCH,
                       .match = {.path = (const char *)h->path.data,
                                 .line = number,
                                 .column = column + 1,
                                 .offset = start + column,
                                 .text = text}};
    worker_put(h->w, &r);
    h->found++;
}

/* A file whose name matches. */
static void put_name(struct hunt *h)
{
    struct record r = {.kind = RECORD_MATCH,
                       .match = {.path = (const char *)h->path.data, .text = ""}};
    worker_put(h->w, &r);
    h->found++;
}

/* Looks at whole lines in text[0..len), of which *number and *offset tell where they are. */
static void search_lines(struct hunt *h, char *text, size_t len, uint64_t *number, uint64_t *offset)
{
    struct span at[MATCH_GROUPS];

    for (size_t start = 0; start < len && h->found < h->limit;) {
        char *end = memchr(text + start, '\n', len - start);
        size_t stop = end ? (size_t)(end - text) : len;
        char kept = text[stop];
        text[stop] = 0;

        if (matcher_find(&h->m, text + start, stop - start, 0, at))
            put_match(h, text + start, stop - start, *number, *offset + start, at[0].start);
        text[stop] = kept;
        start = stop + (end != NULL);
        *number += end != NULL;
    }
    *offset += len;
}

/* One file. 0, or -errno when it cannot be read. */
static int search_file(struct hunt *h, int fd)
{
    auto_buf b = BUF_INIT(LINE_BYTES + BLOCK + 1);
    uint64_t number = 1, offset = 0;

    while (h->found < h->limit) {
        uint8_t *room = buf_reserve(&b, BLOCK + 1);
        if (!room)
            return -ENOMEM;

        ssize_t n = read(fd, room, BLOCK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (memchr(room, 0, (size_t)n))
            return 0;
        b.len += (size_t)n;

        uint8_t *last = b.len ? memrchr(b.data, '\n', b.len) : NULL;
        size_t whole = last ? (size_t)(last - b.data) + 1 : 0;
        if (n == 0 || b.len - whole >= LINE_BYTES)
            whole = b.len;
        if (whole)
            search_lines(h, (char *)b.data, whole, &number, &offset);

        if (n == 0)
            return 0;
        memmove(b.data, b.data + whole, b.len - whole);
        b.len -= whole;
    }
    return 0;
}

/* Appends what a match is replaced by, with the groups in the place of \0 to \9. */
static void expand(const struct hunt *h, struct buf *out, const char *text,
                   const struct span groups[MATCH_GROUPS])
{
    const char *p = h->replacement;
    if (h->m.mode != MATCH_REGEX) {
        buf_puts(out, p);
        return;
    }

    for (; *p; p++) {
        if (*p != '\\' || !p[1]) {
            buf_putc(out, *p);
            continue;
        }

        p++;
        if (*p >= '0' && *p <= '9') {
            const struct span *g = &groups[*p - '0'];
            if (g->start <= g->end)
                buf_put(out, text + g->start, g->end - g->start);
        } else {
            buf_putc(out, *p == 'n' ? '\n' : *p == 't' ? '\t' : *p);
        }
    }
}

static uint64_t substitute(const struct hunt *h, const char *text, size_t len, struct buf *out)
{
    struct span at[MATCH_GROUPS];
    uint64_t count = 0;
    size_t from = 0;

    while (from <= len && !out->overflow && matcher_find(&h->m, text, len, from, at)) {
        buf_put(out, text + from, at[0].start - from);
        expand(h, out, text, at);
        count++;
        from = at[0].end;
        if (at[0].start == at[0].end) { /* an empty match: the next byte stays */
            if (from < len)
                buf_put(out, text + from, 1);
            from++;
        }
    }

    if (from < len)
        buf_put(out, text + from, len - from);
    return count;
}

static int store(int dir, const char *name, const struct stat *st, const struct buf *text)
{
    auto_save s = SAVE_INIT;
    mode_t mode = st->st_mode & 07777;
    if (faccessat(dir, name, W_OK, 0) < 0)
        return -errno;

    int r = save_begin(&s, dir);
    if (r == 0)
        r = fd_write_all(s.fd, text->data, text->len);
    if (r < 0)
        return r;

    if ((st->st_uid != geteuid() || st->st_gid != getegid()) &&
        fchown(s.fd, st->st_uid, st->st_gid) < 0)
        mode &= 0777;
    return fchmod(s.fd, mode) < 0 ? -errno : save_commit(&s, name, 1);
}

/* One file. 0, -errno, or -EFBIG when it is too large to be worked on. */
static int replace_file(struct hunt *h, int fd, int dir, const char *name, const struct stat *st)
{
    if (st->st_size > (off_t)REPLACE_MAX)
        return -EFBIG;

    auto_buf text = BUF_INIT(REPLACE_MAX + 1), out = BUF_INIT(4 * REPLACE_MAX);
    for (;;) {
        uint8_t *room = buf_reserve(
            &text, BLOCK < REPLACE_MAX + 1 - text.len ? BLOCK : REPLACE_MAX + 1 - text.len);
        ssize_t n = room ? read(fd, room, text.cap - text.len) : -1;
        if (n < 0)
            return room ? -errno : -ENOMEM;
        if (n == 0)
            break;
        text.len += (size_t)n;
        if (text.len > REPLACE_MAX)
            return -EFBIG;
    }

    const char *bytes = buf_cstr(&text);
    if (!text.len || !bytes || memchr(bytes, 0, text.len))
        return 0;

    uint64_t count = substitute(h, bytes, text.len, &out);
    if (out.overflow)
        return -EFBIG;
    if (!count)
        return 0;

    int r = h->dry ? 0 : store(dir, name, st, &out);
    if (r < 0)
        return r;

    struct record done = {.kind = RECORD_REPLACED,
                          .replaced = {.path = (const char *)h->path.data, .count = count}};
    worker_put(h->w, &done);
    h->found += count;
    return 0;
}

static int file_fail(struct hunt *h, int r, struct pd_err *e)
{
    if (r == -EFBIG)
        return pd_fail(e, PD_TOO_LARGE,
                       "'%.120s' is larger than the %u MiB that replace works on; leave it out by "
                       "a glob",
                       (const char *)h->path.data, REPLACE_MAX >> 20);

    errno = -r;
    return path_fail(e, (const char *)h->path.data);
}

/* A regular file in an open directory. */
static int visit(struct hunt *h, int dir, const char *name, struct pd_err *e)
{
    struct stat st;
    auto_fd fd = openat(dir, name, OPEN_FILE);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;

    if (!h->replacement) {
        (void)search_file(h, fd); /* what cannot be read has no matches */
        return 0;
    }

    int r = replace_file(h, fd, dir, name, &st);
    return r < 0 ? file_fail(h, r, e) : 0;
}

static int visit_tree(struct hunt *h, int dir, struct pd_err *e)
{
    auto_walk k;
    if (walk_begin(&k, dir, NULL, DEPTH_MAX, 0, e) < 0)
        return -1;

    for (int step; h->found < h->limit && (step = walk_next(&k, e)) != WALK_END;) {
        if (step < 0)
            return -1;
        if (step == WALK_LEAVE)
            continue;

        if (S_ISDIR(k.st.st_mode) && k.path_buf.len < RECORD_PATH_MAX) {
            /* The name is read before the walk goes on. */
            if (h->m.mode == MATCH_NAME && is_meant(h, k.path, k.name) &&
                matcher_name(&h->m, k.name) && hunt_path(h, k.path) == 0)
                put_name(h);
            (void)walk_enter(&k);
            continue;
        }

        if (!is_meant(h, k.path, k.name) || hunt_path(h, k.path) < 0)
            continue;

        if (h->m.mode == MATCH_NAME) {
            if (matcher_name(&h->m, k.name))
                put_name(h);
        } else if (S_ISREG(k.st.st_mode) && visit(h, k.dir, k.name, e) < 0) {
            return -1;
        }
    }
    return 0;
}

/* The root is one file. */
static int visit_file(struct hunt *h, const char *root, struct pd_err *e)
{
    auto_place p = PLACE_INIT;
    if (path_place(h->w, root, PLACE_FOLLOW, &p, e) < 0)
        return -1;

    if (h->m.mode == MATCH_NAME) {
        if (matcher_name(&h->m, p.name))
            put_name(h);
        return 0;
    }

    auto_fd readable = openat(p.dir, p.name, OPEN_FILE);
    if (readable < 0)
        return path_fail(e, root);
    return visit(h, p.dir, p.name, e) < 0 ? -1 : 0;
}

static int visit_dir(struct hunt *h, const char *root, int found, struct pd_err *e)
{
    int dir = path_reopen(found, O_RDONLY | O_DIRECTORY);
    if (dir < 0) {
        errno = -dir;
        return path_fail(e, root);
    }
    return visit_tree(h, dir, e) < 0 ? -1 : 0;
}

/* The root: a directory, or one file. */
static int hunt_run(struct hunt *h, struct pd_err *e)
{
    struct worker_job *w = h->w;
    const char *root = w->argv[1];
    struct stat st;
    auto_fd found = path_find(w, root, 1, &st, e);
    if (found < 0)
        return -1;

    h->path = BUF_INIT(2 * RECORD_PATH_MAX);
    char *path = path_absolute(w, root);
    if (!path || buf_puts(&h->path, path) < 0 || !buf_cstr(&h->path))
        return pd_fail(e, PD_CAPACITY, "no memory in the sandbox");
    free(path);
    h->root_len = h->path.len == 1 ? 0 : h->path.len;

    int r = S_ISDIR(st.st_mode) ? visit_dir(h, root, found, e)
            : S_ISREG(st.st_mode)
                ? visit_file(h, root, e)
                : path_fail_type(e, root, st.st_mode, "a regular file or directory");
    if (r < 0)
        return -1;

    int cut = h->found >= h->limit;
    struct record end = {.kind = cut ? RECORD_MORE : RECORD_END, .more = {.cursor = ""}};
    worker_put(w, &end);
    return 0;
}

int worker_search(struct worker_job *w, struct pd_err *e)
{
    struct hunt h = {.w = w, .glob = w->argv[4]};
    int sensitive;

    if (worker_number("limit", w->argv[5], 1, SEARCH_MAX, &h.limit, e) < 0 ||
        worker_flag("case", w->argv[6], &sensitive, e) < 0 ||
        matcher_init(&h.m, w->argv[2], w->argv[3], !sensitive, e) < 0)
        return -1;

    if (h.m.mode == MATCH_LITERAL && strchr(w->argv[3], '\n'))
        return pd_fail(e, PD_INVALID, "the pattern spans lines; search looks at one at a time");
    return hunt_run(&h, e);
}

int worker_replace(struct worker_job *w, struct pd_err *e)
{
    struct hunt h = {
        .w = w, .replacement = w->argv[4], .glob = w->argv[5], .limit = (uint64_t)INT64_MAX};

    if (worker_flag("dry", w->argv[6], &h.dry, e) < 0)
        return -1;
    if (!strcmp(w->argv[2], "name"))
        return pd_fail(e, PD_INVALID, "mode 'name': replace takes literal or regex");
    if (matcher_init(&h.m, w->argv[2], w->argv[3], 0, e) < 0)
        return -1;
    return hunt_run(&h, e);
}
