/* tar: a file or a tree as a pax archive.
 *
 * Once bytes of the archive have gone out no error can be told but by ending too early, so the tree
 * is gone through twice: first to see that all of it can be read, then to pack it. Sockets, FIFOs
 * and devices are left out, links are packed as links. A file that changes meanwhile has the size
 * that it had when its header was written. */
#include "init/path.h"
#include "init/tar.h"
#include "init/walk.h"
#include "init/worker.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>

#define OPEN_FILE (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
#define OUT_MAX   (2u << 20)

static int check_entry(struct walk *k)
{
    if (S_ISREG(k->st.st_mode))
        return faccessat(k->dir, k->name, R_OK, 0) < 0 && errno != ENOENT ? -errno : 0;
    if (!S_ISDIR(k->st.st_mode))
        return 0;

    int r = k->path_buf.len < TAR_PATH_MAX - NAME_MAX - 2 ? walk_enter(k) : -ENAMETOOLONG;
    return r == -EXDEV || r == -ENOENT ? 0 : r;
}

static int check_tree(int dir, const char *root, struct pd_err *e)
{
    auto_walk k;
    if (walk_begin(&k, dir, NULL, SIZE_MAX, 0, e) < 0)
        return -1;

    for (int step; (step = walk_next(&k, e)) != WALK_END;) {
        int r = step < 0 ? -1 : step == WALK_ENTRY ? check_entry(&k) : 0;
        if (step < 0)
            return -1;
        if (r < 0) {
            char where[200];
            snprintf(where, sizeof where, "%.90s/%.100s", root, k.path);
            errno = -r;
            return path_fail(e, where);
        }
    }
    return 0;
}

/* From here on the answer is bytes: a failure ends the worker. */
static void send_out(struct buf *out)
{
    if (out->overflow || fd_write_all(1, out->data, out->len) < 0)
        _exit(1);
    buf_clear(out);
}

static void send_zeroes(struct buf *out, uint64_t len)
{
    static const uint8_t zeroes[TAR_BLOCK];
    while (len) {
        size_t part = len < sizeof zeroes ? (size_t)len : sizeof zeroes;
        buf_put(out, zeroes, part);
        len -= part;
        if (out->len >= OUT_MAX / 4)
            send_out(out);
    }
}

static void send_header(struct buf *out, const struct stat *st, enum tar_type type,
                        const char *path, const char *link, uint64_t size)
{
    struct tar_entry t = {.type = type,
                          .mode = st->st_mode & 07777,
                          .uid = st->st_uid,
                          .gid = st->st_gid,
                          .size = size,
                          .mtime = st->st_mtim.tv_sec,
                          .path = path,
                          .link = link};
    tar_write_header(out, &t);

    if (out->len >= OUT_MAX / 4)
        send_out(out);
}

static void pack_file(struct buf *out, int dir, const char *name, const char *path)
{
    struct stat st;
    auto_fd fd = openat(dir, name, OPEN_FILE);

    if (fd < 0 && errno == ENOENT)
        return; /* removed since */
    if (fd < 0 || fstat(fd, &st) < 0)
        _exit(1);
    if (!S_ISREG(st.st_mode))
        return;

    uint64_t size = (uint64_t)st.st_size;
    send_header(out, &st, TAR_FILE, path, "", size);

    if (size) {
        send_out(out);
        int64_t sent = worker_move(fd, 1, size);
        if (sent < 0)
            _exit(1);
        send_zeroes(out, size - (uint64_t)sent + tar_padding(size));
    }
}

static void pack_entry(struct buf *out, struct walk *k, struct buf *scratch)
{
    char target[PATH_MAX];

    switch (k->st.st_mode & S_IFMT) {
    case S_IFREG:
        pack_file(out, k->dir, k->name, k->path);
        return;
    case S_IFLNK:
        path_readlink(k->dir, k->name, target);
        if (target[0])
            send_header(out, &k->st, TAR_SYMLINK, k->path, target, 0);
        return;
    case S_IFDIR:
        buf_clear(scratch);
        if (buf_puts(scratch, k->path) < 0 || buf_putc(scratch, '/') < 0 || !buf_cstr(scratch))
            _exit(1);
        send_header(out, &k->st, TAR_DIR, (const char *)scratch->data, "", 0);
        int r = walk_enter(k);
        if (r < 0 && r != -EXDEV && r != -ENOENT)
            _exit(1);
        return;
    default:
        return;
    }
}

static void pack_tree(struct buf *out, int dir)
{
    auto_walk k;
    auto_buf scratch = BUF_INIT(TAR_PATH_MAX);

    if (walk_begin(&k, dir, NULL, SIZE_MAX, 0, NULL) < 0)
        _exit(1);

    for (int step; (step = walk_next(&k, NULL)) != WALK_END;) {
        if (step < 0)
            _exit(1);
        if (step == WALK_ENTRY)
            pack_entry(out, &k, &scratch);
    }
}

int worker_tar(struct worker_job *w, struct pd_err *e)
{
    const char *path = w->argv[1];
    struct stat st;
    auto_buf out = BUF_INIT(OUT_MAX);
    auto_place p = PLACE_INIT;
    auto_fd found = path_find(w, path, 1, &st, e);
    if (found < 0)
        return -1;

    auto_fd dir = -1;
    if (S_ISDIR(st.st_mode)) {
        int first = path_reopen(found, O_RDONLY | O_DIRECTORY);
        if (first < 0) {
            errno = -first;
            return path_fail(e, path);
        }
        if (check_tree(first, path, e) < 0)
            return -1;
        dir = path_reopen(found, O_RDONLY | O_DIRECTORY);
    } else if (!S_ISREG(st.st_mode)) {
        return path_fail_type(e, path, st.st_mode, "a regular file or directory");
    } else if (path_place(w, path, PLACE_FOLLOW, &p, e) < 0) {
        return -1;
    } else if (faccessat(p.dir, p.name, R_OK, 0) < 0) {
        return path_fail(e, path);
    }

    char *absolute = path_absolute(w, path);
    if (!absolute)
        return pd_fail(e, PD_CAPACITY, "no memory in the sandbox");
    worker_put_entry(w, &st, absolute, NULL);
    worker_flush(w);
    free(absolute);

    if (S_ISDIR(st.st_mode))
        pack_tree(&out, fd_take(&dir));
    else
        pack_file(&out, p.dir, p.name, p.name);

    tar_write_end(&out);
    send_out(&out);
    return 0;
}
