/* untar: an archive into a directory.
 *
 * The archive is a stranger's, and so may be the directory. Every name is followed from the
 * directory's descriptor on, through real directories only (RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS),
 * so that neither ".." nor a link, from the archive or from before, leads out. Devices and FIFOs
 * are refused, set-uid bits and owners are dropped. Each file appears whole or not at all, and
 * replaces what had its name; what was unpacked before an error stays.
 *
 * A layer of an image (docs/images.md) is unpacked the same way, but as it is: with its owners and
 * modes where the worker is root, with FIFOs, without devices. Names that begin with ".wh." are no
 * files: they say what of the layers below is gone, and are told to whoever asked, as an EVENT
 * each: the marks for an overlay are not for a jail to make. */
#include "init/path.h"
#include "init/save.h"
#include "init/tar.h"
#include "init/worker.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>

#define CONTAINED   (RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
#define ENTRIES_MAX 1000000u
#define MODES_MAX   (32u << 20)
#define NOTE_MAX    (sizeof(mode_t) + sizeof(int64_t))

#define WHITEOUT     ".wh."
#define OPAQUE       ".wh..wh..opq"
#define LAYER_ID_MAX 65535u

struct unpack {
    int root;
    struct worker_job *layer; /* whom to tell what is gone; NULL: not a layer */
    int owns;                 /* owners are kept */
    struct tar_reader tar;
    uint64_t entries, bytes;
    /* Modes and times of directories, to be set when nothing more is put into them: path, NUL,
     * mode, time; the length of each in front. */
    struct buf modes;
};

static int cut(struct pd_err *e)
{
    return pd_fail(e, PD_INVALID, "the archive ends too early: it was cut off");
}

/* Exactly `len` bytes of the archive. */
static int take(void *out, size_t len, struct pd_err *e)
{
    size_t have = 0;
    while (have < len) {
        ssize_t n = read(0, (char *)out + have, len - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return pd_fail_sys(e, "read the archive");
        if (n == 0)
            return cut(e);
        have += (size_t)n;
    }
    return 0;
}

static int skip(uint64_t len, struct pd_err *e)
{
    char bytes[4096];
    while (len) {
        size_t part = len < sizeof bytes ? (size_t)len : sizeof bytes;
        if (take(bytes, part, e) < 0)
            return -1;
        len -= part;
    }
    return 0;
}

static int entry_fail(const struct unpack *u, int sys, struct pd_err *e)
{
    if (sys == ELOOP || sys == EXDEV)
        return pd_fail(e, PD_INVALID,
                       "'%.120s' in the archive passes through a symbolic link; that is not "
                       "followed",
                       u->tar.entry.path);

    errno = sys;
    path_fail(e, u->tar.entry.path);
    return pd_wrap(e, "in the archive");
}

/* One component of `path` into `name`: its length, 0 at the end, or -errno. */
static int next_part(const char **path, char name[NAME_MAX + 1])
{
    for (;;) {
        const char *p = *path + strspn(*path, "/");
        size_t n = strcspn(p, "/");
        *path = p + n;
        if (n > NAME_MAX)
            return -ENAMETOOLONG;
        if (n == 1 && p[0] == '.')
            continue;

        memcpy(name, p, n);
        name[n] = 0;
        return (int)n;
    }
}

static int has_parent_part(const char *path)
{
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.')
            return 1;
        p += n + (p[n] == '/');
    }
    return 0;
}

/* The directory of `path` and the last component, from the root on, making directories if asked to.
 * The name is "" for the root itself. Descriptor or -errno. */
static int open_below(int root, const char *path, int make, char name[NAME_MAX + 1])
{
    char next[NAME_MAX + 1];
    auto_fd dir = fcntl(root, F_DUPFD_CLOEXEC, 3);
    if (dir < 0)
        return -errno;

    int n = next_part(&path, name);
    while (n > 0) {
        n = next_part(&path, next);
        if (n <= 0)
            break;

        auto_fd inner = path_openat(dir, name, O_PATH | O_DIRECTORY, 0, CONTAINED);
        if (inner == -ENOENT && make) {
            if (mkdirat(dir, name, 0755) < 0 && errno != EEXIST)
                return -errno;
            inner = path_openat(dir, name, O_PATH | O_DIRECTORY, 0, CONTAINED);
        }

        if (inner < 0)
            return inner;
        fd_done(&dir);
        dir = fd_take(&inner);
        memcpy(name, next, sizeof next);
    }
    return n < 0 ? n : fd_take(&dir);
}

/* Removes what is in the way of a new name, if it is no directory. 0 or -errno. */
static int make_way(int dir, const char *name)
{
    return unlinkat(dir, name, 0) < 0 && errno != ENOENT ? -errno : 0;
}

static int unpack_file(struct unpack *u, int dir, const char *name, struct pd_err *e)
{
    const struct tar_entry *t = &u->tar.entry;
    struct stat st;
    auto_save s = SAVE_INIT;

    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
        return entry_fail(u, EISDIR, e);

    int r = save_begin(&s, dir);
    int64_t got = r < 0 ? r : worker_move(0, s.fd, t->size);
    if (got < 0)
        return entry_fail(u, (int)-got, e);
    if ((uint64_t)got < t->size)
        return cut(e);

    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = t->mtime}};
    (void)futimens(s.fd, times);
    r = u->owns && fchown(s.fd, t->uid, t->gid) < 0 ? -errno : 0;
    if (r == 0) /* the owner first: a change of it takes set-uid bits away */
        r = fchmod(s.fd, t->mode & (u->owns ? 07777 : 0777)) < 0 ? -errno
                                                                 : save_commit(&s, name, 1);
    if (r < 0)
        return entry_fail(u, -r, e);

    u->bytes += t->size;
    return skip(tar_padding(t->size), e);
}

/* The owner and the time of what is no file, in a layer. */
static int give(const struct unpack *u, int dir, const char *name, struct pd_err *e)
{
    const struct tar_entry *t = &u->tar.entry;
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = t->mtime}};

    if (u->layer)
        (void)utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW);
    if (u->owns && fchownat(dir, name, t->uid, t->gid, AT_SYMLINK_NOFOLLOW) < 0)
        return entry_fail(u, errno, e);
    return 0;
}

static int unpack_dir(struct unpack *u, int dir, const char *name, struct pd_err *e)
{
    const struct tar_entry *t = &u->tar.entry;
    if (mkdirat(dir, name, 0700) < 0) {
        if (errno != EEXIST)
            return entry_fail(u, errno, e);
        auto_fd there = path_openat(dir, name, O_PATH | O_DIRECTORY, 0, CONTAINED);
        if (there == -ENOTDIR)
            return entry_fail(u, EEXIST, e);
        if (there < 0)
            return entry_fail(u, -there, e);
    }

    if (give(u, dir, name, e) < 0)
        return -1;

    /* Without room to remember it, the directory stays the user's alone. */
    uint32_t len = (uint32_t)strlen(t->path) + 1;
    mode_t mode = t->mode & (u->owns ? 07777 : 0777);
    if (u->modes.len + len + NOTE_MAX + sizeof len <= u->modes.max) {
        buf_put(&u->modes, t->path, len);
        buf_put(&u->modes, &mode, sizeof mode);
        buf_put(&u->modes, &t->mtime, sizeof t->mtime);
        buf_put(&u->modes, &len, sizeof len);
    }
    return skip(t->size + tar_padding(t->size), e);
}

static int unpack_symlink(struct unpack *u, int dir, const char *name, struct pd_err *e)
{
    int r = make_way(dir, name);
    if (r < 0 || symlinkat(u->tar.entry.link, dir, name) < 0)
        return entry_fail(u, r < 0 ? -r : errno, e);
    return give(u, dir, name, e);
}

static int unpack_fifo(struct unpack *u, int dir, const char *name, struct pd_err *e)
{
    int r = make_way(dir, name);
    if (r < 0 || mkfifoat(dir, name, u->tar.entry.mode & 0777) < 0)
        return entry_fail(u, r < 0 ? -r : errno, e);
    return give(u, dir, name, e);
}

static int unpack_hardlink(struct unpack *u, int dir, const char *name, struct pd_err *e)
{
    const struct tar_entry *t = &u->tar.entry;
    char old[NAME_MAX + 1];
    struct stat a, b;

    if (has_parent_part(t->link))
        return pd_fail(e, PD_INVALID, "'%.100s' in the archive is a link to '%.100s', outside",
                       t->path, t->link);

    auto_fd from = open_below(u->root, t->link, 0, old);
    if (from < 0)
        return entry_fail(u, -from, e);
    if (fstatat(from, old, &a, AT_SYMLINK_NOFOLLOW) < 0)
        return entry_fail(u, errno, e);
    if (u->layer ? S_ISDIR(a.st_mode) : !S_ISREG(a.st_mode))
        return pd_fail(e, PD_INVALID, "'%.100s' in the archive is a link to %s", t->path,
                       path_type_text(a.st_mode));

    if (fstatat(dir, name, &b, AT_SYMLINK_NOFOLLOW) == 0 && a.st_dev == b.st_dev &&
        a.st_ino == b.st_ino)
        return skip(t->size + tar_padding(t->size), e);

    int r = make_way(dir, name);
    if (r < 0 || linkat(from, old, dir, name, 0) < 0)
        return entry_fail(u, r < 0 ? -r : errno, e);
    return skip(t->size + tar_padding(t->size), e);
}

/* What a layer says of those below it: ".wh.NAME" is gone, and with ".wh..wh..opq" all that was in
 * the directory. Told with the path of the directory, and the name or "". */
static int tell_gone(struct unpack *u, const char *name, struct pd_err *e)
{
    const struct tar_entry *t = &u->tar.entry;
    const char *gone = name + strlen(WHITEOUT);
    char parent[PATH_MAX];

    snprintf(parent, sizeof parent, "%s", t->path);
    size_t len = strlen(parent);
    while (len && parent[len - 1] == '/')
        parent[--len] = 0;
    char *slash = strrchr(parent, '/');
    *(slash ? slash : parent) = 0;

    if (t->type != TAR_FILE)
        return pd_fail(e, PD_INVALID, "'%.140s' in the layer is no file: it can mean nothing",
                       t->path);
    if (!strcmp(name, OPAQUE))
        gone = "";
    else if (!strncmp(gone, WHITEOUT, strlen(WHITEOUT)))
        return skip(t->size + tar_padding(t->size), e); /* aufs's own books */
    else if (!gone[0] || !strcmp(gone, ".") || !strcmp(gone, ".."))
        return pd_fail(e, PD_INVALID, "'%.140s' in the layer names nothing that could be gone",
                       t->path);

    struct record r = {.kind = RECORD_EVENT,
                       .event = {.kind = EVENT_REMOVED, .path = parent, .path2 = gone}};
    worker_put(u->layer, &r);
    return skip(t->size + tar_padding(t->size), e);
}

/* The last component of a path. */
static int is_whiteout(const char *path, char name[NAME_MAX + 1])
{
    char part[NAME_MAX + 1];
    int n;

    name[0] = 0;
    while ((n = next_part(&path, part)) > 0)
        memcpy(name, part, sizeof part);
    return n == 0 && !strncmp(name, WHITEOUT, strlen(WHITEOUT));
}

static int check_layer_entry(const struct unpack *u, struct pd_err *e)
{
    const struct tar_entry *t = &u->tar.entry;

    if (strlen(t->path) >= PATH_MAX)
        return pd_fail(e, PD_INVALID, "'%.100s...' in the layer has %zu bytes: no path has so many",
                       t->path, strlen(t->path));
    if (u->owns && (t->uid > LAYER_ID_MAX || t->gid > LAYER_ID_MAX))
        return pd_fail(e, PD_UNSUPPORTED,
                       "'%.100s' in the layer belongs to %u:%u: a sandbox has ids up to %u",
                       t->path, t->uid, t->gid, LAYER_ID_MAX);
    return 0;
}

static int unpack_entry(struct unpack *u, struct pd_err *e)
{
    const struct tar_entry *t = &u->tar.entry;
    char name[NAME_MAX + 1];

    if (++u->entries > ENTRIES_MAX)
        return pd_fail(e, PD_TOO_LARGE, "the archive has more than %u entries", ENTRIES_MAX);
    if (u->layer && check_layer_entry(u, e) < 0)
        return -1;
    if (u->layer && t->type == TAR_DEVICE) /* it would mean nothing */
        return skip(t->size + tar_padding(t->size), e);
    if (!u->layer && (t->type == TAR_DEVICE || t->type == TAR_FIFO))
        return pd_fail(e, PD_INVALID, "'%.140s' in the archive is a %s; leave it out", t->path,
                       t->type == TAR_FIFO ? "FIFO" : "device");
    if (has_parent_part(t->path))
        return pd_fail(e, PD_INVALID, "'%.140s' in the archive leads out of it by '..'", t->path);

    if (u->layer && is_whiteout(t->path, name))
        return tell_gone(u, name, e);
    auto_fd dir = open_below(u->root, t->path, 1, name);
    if (dir < 0)
        return entry_fail(u, -dir, e);
    if (!name[0])
        return t->type == TAR_DIR
                   ? skip(t->size + tar_padding(t->size), e)
                   : pd_fail(e, PD_INVALID, "'%.140s' in the archive has no name", t->path);

    switch (t->type) {
    case TAR_FILE:
        return unpack_file(u, dir, name, e);
    case TAR_DIR:
        return unpack_dir(u, dir, name, e);
    case TAR_SYMLINK:
        return unpack_symlink(u, dir, name, e);
    case TAR_FIFO:
        return unpack_fifo(u, dir, name, e);
    default:
        return unpack_hardlink(u, dir, name, e);
    }
}

static int take_meta(struct unpack *u, struct pd_err *e)
{
    size_t len = (size_t)u->tar.meta_size;
    uint8_t *data = malloc(len + 1);
    int r = data ? take(data, len, e) : pd_fail(e, PD_CAPACITY, "no memory in the sandbox");
    if (r == 0)
        r = tar_meta(&u->tar, data, len, e);
    free(data);
    return r < 0 ? -1 : skip(tar_padding(len), e);
}

/* The innermost first, so that no directory is shut before those in it. */
static void set_modes(struct unpack *u)
{
    size_t end = u->modes.len;
    while (end) {
        uint32_t len;
        mode_t mode;
        int64_t mtime;
        char name[NAME_MAX + 1];

        end -= sizeof len;
        memcpy(&len, u->modes.data + end, sizeof len);
        end -= sizeof mtime;
        memcpy(&mtime, u->modes.data + end, sizeof mtime);
        end -= sizeof mode;
        memcpy(&mode, u->modes.data + end, sizeof mode);
        end -= len;

        auto_fd dir = open_below(u->root, (const char *)u->modes.data + end, 0, name);
        auto_fd self = dir < 0 ? -1 : path_openat(dir, name, O_RDONLY | O_DIRECTORY, 0, CONTAINED);
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = mtime}};
        if (self >= 0) {
            (void)futimens(self, times);
            (void)fchmod(self, mode);
        }
    }
}

static int unpack_all(struct unpack *u, struct pd_err *e)
{
    uint8_t block[TAR_BLOCK];
    for (;;) {
        if (take(block, sizeof block, e) < 0)
            return -1;

        int step = tar_header(&u->tar, block, e);
        if (step == TAR_END)
            return 0;
        if (step < 0 || (step == TAR_META ? take_meta(u, e) : unpack_entry(u, e)) < 0)
            return -1;
    }
}

/* The directory; it is made if it does not exist. */
static int open_root(const struct worker_job *w, struct pd_err *e)
{
    const char *path = w->argv[1];
    struct stat st;
    auto_place p = PLACE_INIT;
    int dir = path_open_dir(w, path, &st, e);
    if (dir >= 0 || e->code != PD_NOT_FOUND)
        return dir;

    if (path_place(w, path, PLACE_SLASH | PLACE_MKDIRS, &p, e) < 0)
        return -1;
    if (mkdirat(p.dir, p.name, 0755) < 0)
        return path_fail(e, path);
    return path_open_dir(w, path, &st, e);
}

static int unpack_into(struct worker_job *w, struct worker_job *layer, struct pd_err *e)
{
    struct unpack u = {.layer = layer,
                       .owns = layer && geteuid() == 0,
                       .tar = TAR_READER_INIT,
                       .modes = BUF_INIT(MODES_MAX)};
    char rest[4096];

    u.root = open_root(w, e);
    if (u.root < 0)
        return -1;

    int r = unpack_all(&u, e);
    set_modes(&u);
    if (r < 0)
        return -1;

    /* Archives are filled up with zeroes, and their sender wants to get rid of them. */
    while ((r = (int)read(0, rest, sizeof rest)) > 0 || (r < 0 && errno == EINTR))
        ;

    struct record done = {.kind = RECORD_TAR_DONE,
                          .tar_done = {.entries = u.entries, .bytes = u.bytes}};
    worker_put(w, &done);
    return 0;
}

int worker_untar(struct worker_job *w, struct pd_err *e)
{
    return unpack_into(w, NULL, e);
}

int worker_layer(struct worker_job *w, struct pd_err *e)
{
    umask(0);
    return unpack_into(w, w, e);
}
