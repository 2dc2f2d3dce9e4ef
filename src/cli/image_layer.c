/* One layer, from packed bytes to a directory of the store.
 *
 *   file ─▶ reader, in a jail: unpacks ─▶ here: digest, bound ─▶ init's worker, in another jail:
 * files
 *
 * The second jail has the new layer at /layer and no other, with ids on disk as they are inside, so
 * that an archive can spoil nothing but itself. What it says of layers below (white-outs) comes as
 * a list; the marks for the overlay are made here when the jail is gone, by descriptor, through no
 * link. The layer gets its name when its digest is right and all is on disk. */
#include "cli/image.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "jail/identity.h"
#include "jail/jail.h"
#include "wire/record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/openat2.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#define PATIENCE (30 * NS_PER_S)
#define LONGEST  (3600 * NS_PER_S)
#define GONE_MAX (64u << 20) /* of the list of white-outs */
#define CHUNK    (256u << 10)

struct making {
    struct jail jail;
    struct command command;
    int input; /* to the worker */
    struct record_stream answers;
    struct buf gone; /* directory, NUL, name, NUL ... */
    uint64_t size;
    struct sha256 sha;
    struct record done;
    bool is_done;
};

/* --- white-outs ---------------------------------------------------------------------------- */

static int open_in(int dir, const char *path)
{
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    int fd = (int)syscall(SYS_openat2, dir, path[0] ? path : ".", &how, sizeof how);
    return fd < 0 ? -errno : fd;
}

/* A directory of the layer; one that only a white-out speaks of is made. */
static int open_parent(int tree, const char *path)
{
    char part[PATH_MAX];

    while (*path == '/')
        path++;
    int dir = open_in(tree, path);
    if (dir != -ENOENT || strlen(path) >= sizeof part)
        return dir;

    for (const char *at = path; *at;) {
        at += strspn(at, "/");
        at += strcspn(at, "/");
        snprintf(part, sizeof part, "%.*s", (int)(at - path), path);
        auto_fd there = open_in(tree, part);
        if (there < 0 && there != -ENOENT)
            return there;

        /* One name below a directory that is open. */
        char *slash = strrchr(part, '/');
        if (slash)
            *slash = 0;
        auto_fd above = slash ? open_in(tree, part) : fcntl(tree, F_DUPFD_CLOEXEC, 3);
        if (there < 0 && (above < 0 || mkdirat(above, slash ? slash + 1 : part, 0755) < 0))
            return above < 0 ? above : -errno;
    }
    return open_in(tree, path);
}

static int make_opaque(int dir)
{
    const char *name = geteuid() == 0 ? "trusted.overlay.opaque" : "user.overlay.opaque";
    return fsetxattr(dir, name, "y", 1, 0) < 0 ? -errno : 0;
}

/* What of the layers below is gone. A file of this layer with the name is what is there instead; a
 * directory of it hides the one below. */
static int make_gone(int tree, const char *parent, const char *name)
{
    struct stat st;
    auto_fd dir = open_parent(tree, parent);

    if (dir < 0)
        return dir == -ENOTDIR || dir == -ELOOP ? 0 : dir; /* there is no directory any more */
    if (!name[0])
        return make_opaque(dir);
    if (strchr(name, '/'))
        return -EINVAL;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {0}};
        if (fstat(dir, &st) < 0 || mknodat(dir, name, S_IFCHR, makedev(0, 0)) < 0)
            return -errno;
        times[1] = st.st_mtim; /* the directory's time is the image's */
        (void)futimens(dir, times);
        return 0;
    }
    if (!S_ISDIR(st.st_mode))
        return 0;
    auto_fd inner = open_in(dir, name);
    return inner < 0 ? inner : make_opaque(inner);
}

static int make_all_gone(int tree, const struct buf *gone, struct pd_err *e)
{
    for (size_t at = 0; at < gone->len;) {
        const char *parent = (const char *)gone->data + at, *name = parent + strlen(parent) + 1;
        at += strlen(parent) + strlen(name) + 2;

        int r = make_gone(tree, parent, name);
        errno = -r;
        if (r < 0)
            return pd_fail_sys(e, "mark '%.80s/%.80s' as gone", parent, name);
    }
    return 0;
}

/* --- the jail ------------------------------------------------------------------------------ */

static int start_worker(struct making *m, struct keeper_link *keeper, const char *tree,
                        struct pd_err *e)
{
    struct spec s = SPEC_DEFAULT;
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT, env = MSG_LIST_WRITER_INIT;
    int in[2], out[2], word[2];
    bool root = geteuid() == 0;

    s.profile = root ? PROFILE_DEV : PROFILE_STRICT;
    s.binds[0] = (struct spec_bind){.source = tree, .target = "/layer", .writable = SPEC_BIND_IDS};
    s.bind_count = 1;
    if (jail_create(keeper, &m->jail, &s, 0, deadline_in(PATIENCE), e) < 0)
        return pd_wrap(e, "make the jail that unpacks");

    if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0 || pipe2(word, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "make a pipe");
    auto_fd in_far = in[0], out_far = out[1], word_far = word[0];
    close(word[1]); /* a layer waits for no word */
    m->input = in[1];
    m->answers = RECORD_STREAM(out[0]);
    (void)fcntl(m->input, F_SETPIPE_SZ, 1 << 20);
    (void)fd_set_nonblock(m->input);

    msg_list_add(&argv, "layer");
    msg_list_add(&argv, "/layer");
    m->command = (struct command){.exec = {.uid = root ? UID_ROOT : UID_USER,
                                           .gid = root ? UID_ROOT : UID_USER,
                                           .cwd = "/",
                                           .argv = msg_list_of(&argv),
                                           .environ = msg_list_of(&env)},
                                  .fds = {in_far, out_far, word_far},
                                  .flags = EXEC_WORKER | EXEC_QUIET};
    int r = jail_send_command(&m->jail, &m->command, 0, e);
    msg_list_writer_done(&argv);
    msg_list_writer_done(&env);
    return r;
}

/* One record of the worker, or its end. */
static int take_answer(struct making *m, struct pd_err *e)
{
    struct record r;
    int got = record_next(&m->answers, &r, deadline_in(PATIENCE), e);

    if (got < 0)
        return -1;
    if (got == 0)
        return pd_fail(e, PD_LOST, "the jail that unpacks the layer died");
    if (r.kind == RECORD_TAR_DONE) {
        m->is_done = true;
        return 0;
    }
    if (r.kind != RECORD_EVENT)
        return record_raise(&r, "a worker that unpacks", e);
    buf_put(&m->gone, r.event.path, strlen(r.event.path) + 1);
    buf_put(&m->gone, r.event.path2, strlen(r.event.path2) + 1);
    return m->gone.overflow ? pd_fail(e, PD_TOO_LARGE, "the layer has too many white-outs") : 0;
}

/* Gives the worker these bytes, and takes what it says meanwhile. */
static int give(struct making *m, const uint8_t *data, size_t len, struct pd_err *e)
{
    while (len) {
        struct pollfd p[2] = {{m->input, POLLOUT, 0}, {m->answers.fd, POLLIN, 0}};
        if (poll(p, 2, deadline_poll_ms(deadline_in(LONGEST))) < 0 && errno != EINTR)
            return pd_fail_sys(e, "wait for the jail that unpacks");
        if (p[1].revents && take_answer(m, e) < 0)
            return -1;
        if (m->is_done)
            return 0; /* what follows the end of an archive is nobody's */

        ssize_t n = p[0].revents ? write(m->input, data, len) : 0;
        if (n < 0 && errno != EAGAIN && errno != EINTR && errno != EPIPE)
            return pd_fail_sys(e, "write to the jail that unpacks");
        if (n < 0 && errno == EPIPE)
            return take_answer(m, e) < 0 ? -1 : 0;
        data += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int pump(struct making *m, struct image_reader *reader, struct pd_err *e)
{
    static uint8_t bytes[CHUNK];

    for (;;) {
        ssize_t n = read(reader->out, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return pd_fail_sys(e, "read what the layer unpacks to");
        if (n == 0)
            break;

        sha256_put(&m->sha, bytes, (size_t)n);
        m->size += (uint64_t)n;
        if (m->size > IMAGE_LAYER_MAX)
            return pd_fail(e, PD_TOO_LARGE, "the layer unpacks to more than %" PRIu64 " bytes",
                           IMAGE_LAYER_MAX);
        if (give(m, bytes, (size_t)n, e) < 0)
            return -1;
    }
    return 0;
}

static int check_digest(struct making *m, const struct image_layer *l, struct pd_err *e)
{
    char hex[SHA256_HEX_SIZE];

    sha256_end_hex(&m->sha, hex);
    return !strcmp(hex, l->diff)
               ? 0
               : pd_fail(e, PD_INVALID, "it unpacks to sha256:%.64s: it was changed", hex);
}

/* Both jails at work. */
static int fill(struct making *m, int file, const struct image_layer *l, struct pd_err *e)
{
    char size[24];
    snprintf(size, sizeof size, "%" PRIu64, l->size);
    const char *const words[] = {"unpack", image_packing_name(l->packing), size,
                                 l->blob[0] ? l->blob : "-", NULL};
    struct image_reader reader;
    struct pd_err reason;

    if (lseek(file, (off_t)l->offset, SEEK_SET) < 0)
        return pd_fail_sys(e, "find the layer in the file");
    if (image_reader_start(&reader, words, file, e) < 0)
        return -1;

    int failed = pump(m, &reader, e);
    /* Cut off, the archive is the reader's fault, and it knows why. */
    if (image_reader_finish(&reader, &reason) < 0 && (!failed || e->code != PD_TOO_LARGE)) {
        bool ours = failed && !strcmp(reason.msg, "the reader of images was ended");
        if (!ours && !failed)
            *e = reason;
        failed = -1;
    }
    if (failed)
        return -1;
    if (check_digest(m, l, e) < 0)
        return -1;

    fd_done(&m->input);
    while (!m->is_done)
        if (take_answer(m, e) < 0)
            return -1;
    return 0;
}

static int make_in(struct making *m, struct keeper_link *keeper, int images, int place,
                   const char *name, const char *state_dir, int file, const struct image_layer *l,
                   struct pd_err *e)
{
    char tree[PATH_MAX];
    if ((size_t)snprintf(tree, sizeof tree, "%s/images/layers/%s/tree", state_dir, name) >=
        sizeof tree)
        return pd_fail(e, PD_INVALID, "the state directory has too long a path");

    int failed = start_worker(m, keeper, tree, e);
    if (!failed)
        failed = fill(m, file, l, e);
    struct pd_err ignored;
    if (m->jail.control >= 0 &&
        jail_destroy(keeper, &m->jail, 0, NULL, deadline_in(PATIENCE), &ignored) < 0 && !failed)
        failed = pd_fail(e, PD_INTERNAL, "the jail that unpacked does not end");
    if (failed)
        return -1;

    auto_fd dir = openat(place, "tree", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return pd_fail_sys(e, "open the layer");
    if (make_all_gone(dir, &m->gone, e) < 0)
        return -1;
    return images_layer_finish(images, name, l->diff, m->size, e);
}

int image_layer_make(struct keeper_link *keeper, int images, const char *state_dir, int file,
                     const struct image_layer *l, struct pd_err *e)
{
    struct making m = {.jail = JAIL_EMPTY,
                       .input = -1,
                       .answers = RECORD_STREAM(-1),
                       .gone = BUF_INIT(GONE_MAX),
                       .sha = SHA256_INIT};
    char name[IMAGES_PLACE_MAX];

    if (images_has_layer(images, l->diff))
        return 0;
    auto_fd place = images_layer_begin(images, name, e);
    if (place < 0)
        return -1;

    int failed = make_in(&m, keeper, images, place, name, state_dir, file, l, e) < 0;
    if (failed)
        images_layer_drop(images, name);
    fd_done(&m.input);
    fd_done(&m.answers.fd);
    record_stream_done(&m.answers);
    buf_done(&m.gone);
    jail_done(&m.jail);
    return failed ? pd_wrap(e, "layer %.12s", l->diff) : 0;
}
