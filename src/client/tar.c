/* Writes a directory as a tar archive: ustar, with pax heads for what does not fit into it (long
 * names, large files). Symbolic links are written as links and never followed. */
#include "client/tar.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "client/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#define BLOCK     512u
#define PATH_LONG 4096u
#define DEPTH_MAX 200 /* directories in directories; each holds a descriptor */

/* ustar's head. Numbers are octal text. */
struct head {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], pad[12];
};

struct writer {
    tar_write_fn *write;
    void *to;
    char path[PATH_LONG];
};

static int put_block(struct writer *w, struct head *h, struct pd_err *e)
{
    unsigned sum = 0;

    memset(h->sum, ' ', sizeof h->sum);
    for (size_t i = 0; i < sizeof *h; i++)
        sum += ((unsigned char *)h)[i];
    snprintf(h->sum, sizeof h->sum, "%06o", sum);
    return w->write(w->to, h, sizeof *h, e);
}

/* Fills the last block up, after `written` bytes. */
static int put_padding(struct writer *w, uint64_t written, struct pd_err *e)
{
    static const char zeros[BLOCK];
    size_t rest = (size_t)(written % BLOCK);
    return rest ? w->write(w->to, zeros, BLOCK - rest, e) : 0;
}

static void put_number(char *field, size_t size, uint64_t n)
{
    for (size_t i = size - 1; i--; n >>= 3)
        field[i] = (char)('0' + (n & 7));
}

/* "LEN path=VALUE\n", where LEN counts itself. */
static void put_pax(struct buf *b, const char *key, const char *value)
{
    size_t len = strlen(key) + strlen(value) + 3, digits = 1;
    for (size_t n = 10; len + digits >= n; n *= 10)
        digits++;
    buf_printf(b, "%zu %s=%s\n", len + digits, key, value);
}

static int put_entry(struct writer *w, const struct stat *st, const char *link, struct pd_err *e)
{
    struct head h = {.magic = "ustar", .version = {'0', '0'}};
    auto_buf pax = BUF_INIT(4 * PATH_LONG);
    int is_dir = S_ISDIR(st->st_mode), is_file = S_ISREG(st->st_mode);
    uint64_t size = is_file ? (uint64_t)st->st_size : 0;
    char number[24];

    if (strlen(w->path) >= sizeof h.name)
        put_pax(&pax, "path", w->path);
    if (strlen(link) >= sizeof h.link)
        put_pax(&pax, "linkpath", link);
    if (size >> 33) {
        snprintf(number, sizeof number, "%llu", (unsigned long long)size);
        put_pax(&pax, "size", number);
    }

    if (pax.overflow)
        return pd_fail(e, PD_INVALID, "%.100s...: the path is too long", w->path);
    if (pax.len) {
        struct head x = {.name = "pax", .type = 'x', .magic = "ustar", .version = {'0', '0'}};
        put_number(x.mode, sizeof x.mode, 0644);
        put_number(x.size, sizeof x.size, pax.len);
        if (put_block(w, &x, e) < 0 || w->write(w->to, pax.data, pax.len, e) < 0 ||
            put_padding(w, pax.len, e) < 0)
            return -1;
    }

    memcpy(h.name, w->path, strnlen(w->path, sizeof h.name - 1));
    memcpy(h.link, link, strnlen(link, sizeof h.link - 1));
    h.type = is_dir ? '5' : is_file ? '0' : '2';
    put_number(h.mode, sizeof h.mode, st->st_mode & 0777);
    put_number(h.size, sizeof h.size, size >> 33 ? 0 : size);
    put_number(h.mtime, sizeof h.mtime, st->st_mtime > 0 ? (uint64_t)st->st_mtime : 0);
    return put_block(w, &h, e);
}

/* Exactly as many bytes as were announced, also if the file shrinks or grows meanwhile. */
static int put_content(struct writer *w, int fd, uint64_t size, struct pd_err *e)
{
    char bytes[65536];
    uint64_t left = size;

    while (left) {
        size_t want = left < sizeof bytes ? (size_t)left : sizeof bytes;
        ssize_t n = read(fd, bytes, want);
        if (n < 0)
            return pd_fail_sys(e, "read %s", w->path);
        if (n == 0) {
            memset(bytes, 0, want);
            n = (ssize_t)want;
        }

        if (w->write(w->to, bytes, (size_t)n, e) < 0)
            return -1;
        left -= (uint64_t)n;
    }
    return put_padding(w, size, e);
}

static void tell_left_out(const char *path, const char *why)
{
    auto_buf b = BUF_INIT(4 * PATH_LONG);
    text_escape(&b, path, strlen(path));
    const char *text = buf_cstr(&b);
    fprintf(stderr, "paddock: %s is left out: %s\n", text ? text : "a file", why);
}

static int put_tree(struct writer *w, int dir, int depth, struct pd_err *e);

static int put_child(struct writer *w, int dir, const char *name, int depth, struct pd_err *e)
{
    struct stat st;
    char link[PATH_LONG] = "";

    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : pd_fail_sys(e, "look at %s", w->path);

    if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlinkat(dir, name, link, sizeof link - 1);
        if (n < 0)
            return pd_fail_sys(e, "read the link %s", w->path);
        link[n] = 0;
        return put_entry(w, &st, link, e);
    }

    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        tell_left_out(w->path, "neither file nor directory nor symbolic link");
        return 0;
    }

    auto_fd fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return pd_fail_sys(e, "open %s", w->path);

    if (put_entry(w, &st, "", e) < 0)
        return -1;
    return S_ISDIR(st.st_mode) ? put_tree(w, fd, depth + 1, e)
                               : put_content(w, fd, (uint64_t)st.st_size, e);
}

static void close_directory(DIR **d)
{
    if (*d)
        closedir(*d);
}

static int put_tree(struct writer *w, int dir, int depth, struct pd_err *e)
{
    size_t at = strlen(w->path);
    auto_fd copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    __attribute__((cleanup(close_directory))) DIR *list = copy < 0 ? NULL : fdopendir(copy);
    if (!list)
        return pd_fail_sys(e, "list %s", w->path);

    fd_take(&copy);
    if (depth > DEPTH_MAX)
        return pd_fail(e, PD_INVALID, "%.100s...: directories are nested too deeply", w->path);

    for (;;) {
        errno = 0;
        struct dirent *d = readdir(list);
        if (!d && errno)
            return pd_fail_sys(e, "list %s", w->path);
        if (!d)
            break;
        if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
            continue;

        int n = snprintf(w->path + at, sizeof w->path - at, "%s%s", at ? "/" : "", d->d_name);
        if (n < 0 || (size_t)n >= sizeof w->path - at)
            return pd_fail(e, PD_INVALID, "%.100s...: the path is too long", w->path);

        int bad = put_child(w, dir, d->d_name, depth, e);
        w->path[at] = 0;
        if (bad < 0)
            return -1;
    }
    return 0;
}

/* The directory in which the last part of the name is. */
static int open_above(int dir, const char *name, const char **ret_last)
{
    char part[NAME_MAX + 1];
    auto_fd at = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    for (const char *slash; at >= 0 && (slash = strchr(name, '/')); name = slash + 1) {
        size_t len = (size_t)(slash - name);
        if (!len || len > NAME_MAX || (len == 2 && !memcmp(name, "..", 2)))
            return -EINVAL;
        snprintf(part, sizeof part, "%.*s", (int)len, name);
        int inner = openat(at, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        fd_done(&at);
        at = inner < 0 ? -errno : inner;
    }
    *ret_last = name;
    return at < 0 ? at : !name[0] || !strcmp(name, "..") ? -EINVAL : fd_take(&at);
}

int tar_write_names(int dir, const char *const *names, size_t count, tar_write_fn *write, void *to,
                    struct pd_err *e)
{
    static const char end[2 * BLOCK];
    struct writer w = {.write = write, .to = to};

    for (size_t i = 0; i < count; i++) {
        const char *last;
        if (!strcmp(names[i], ".")) {
            w.path[0] = 0;
            if (put_tree(&w, dir, 0, e) < 0)
                return -1;
            continue;
        }
        auto_fd above = open_above(dir, names[i], &last);
        errno = -above;
        if (above < 0)
            return pd_fail_sys(e, "open %.200s", names[i]);
        if (strlen(names[i]) >= sizeof w.path)
            return pd_fail(e, PD_INVALID, "%.100s...: the path is too long", names[i]);
        snprintf(w.path, sizeof w.path, "%s", names[i]);
        if (put_child(&w, above, last, 0, e) < 0)
            return -1;
    }
    return write(to, end, sizeof end, e);
}

int tar_write(int dir, tar_write_fn *write, void *to, struct pd_err *e)
{
    static const char end[2 * BLOCK];
    struct writer w = {.write = write, .to = to};

    if (put_tree(&w, dir, 0, e) < 0)
        return -1;
    return write(to, end, sizeof end, e);
}
