/* How unpacking stays inside: a path is walked one name at a time, from the directory's own
 * descriptor, never through a symbolic link; ".." is refused. A symbolic link is made only when it
 * is relative and goes up at its beginning only, and not further than to the directory: then
 * whatever it passes through lies inside as well. */
#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "client/tar.h"
#include "client/text.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define BLOCK        512u
#define PATH_MAX_LEN 4095u
#define TOLD_MAX     10u /* names of what is left out; the rest is counted */
#define PAX_MAX      (64u << 10)

struct unpack {
    tar_read_fn *read;
    void *from;
    int dir;
    mode_t mask;
    /* The entry at hand. */
    char path[PATH_MAX_LEN + 1], link[PATH_MAX_LEN + 1];
    char type;
    unsigned mode;
    uint64_t size;
    /* Whether a pax head said so. */
    int has_path, has_link, has_size;
    uint64_t left_out;
};

/* All of it, or 0 at the end of the archive before the first byte, or -1. */
static int read_full(struct unpack *u, void *out, size_t size, struct pd_err *e)
{
    size_t got = 0;
    while (got < size) {
        ssize_t n = u->read(u->from, (char *)out + got, size - got, e);
        if (n < 0)
            return -1;
        if (n == 0)
            return got ? pd_fail(e, PD_LOST, "the archive ends in the middle") : 0;
        got += (size_t)n;
    }
    return 1;
}

static int skip(struct unpack *u, uint64_t len, struct pd_err *e)
{
    char bytes[16384];

    while (len) {
        size_t n = len < sizeof bytes ? (size_t)len : sizeof bytes;
        int got = read_full(u, bytes, n, e);
        if (got <= 0)
            return got < 0 ? -1 : pd_fail(e, PD_LOST, "the archive ends in the middle");
        len -= n;
    }
    return 0;
}

static uint64_t padding(uint64_t size)
{
    return (BLOCK - size % BLOCK) % BLOCK;
}

static int parse_octal(const char *field, size_t size, uint64_t *ret)
{
    uint64_t n = 0;
    size_t i = 0;

    while (i < size && field[i] == ' ')
        i++;

    size_t begin = i;
    for (; i < size && field[i] >= '0' && field[i] <= '7'; i++)
        n = n << 3 | (uint64_t)(field[i] - '0');

    for (size_t rest = i; rest < size; rest++)
        if (field[rest] && field[rest] != ' ')
            return -1;
    *ret = n;
    return i > begin ? 0 : -1;
}

static int check_sum(const unsigned char *block)
{
    uint64_t told;
    unsigned sum = 0;

    for (size_t i = 0; i < BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : block[i];
    return parse_octal((const char *)block + 148, 8, &told) == 0 && told == sum;
}

/* One "LEN KEY=VALUE\n" after the other. */
static int take_pax(struct unpack *u, const char *text, size_t len, struct pd_err *e)
{
    while (len) {
        size_t record = 0, digits = 0;
        while (digits < len && digits < 6 && text[digits] >= '0' && text[digits] <= '9')
            record = record * 10 + (size_t)(text[digits++] - '0');
        if (!digits || record > len || record < digits + 3 || text[digits] != ' ' ||
            text[record - 1] != '\n')
            return pd_fail(e, PD_PROTOCOL, "the archive has a malformed pax head");

        const char *key = text + digits + 1, *equals = memchr(key, '=', record - digits - 2);
        if (!equals)
            return pd_fail(e, PD_PROTOCOL, "the archive has a malformed pax head");

        const char *value = equals + 1;
        size_t key_len = (size_t)(equals - key), value_len = (size_t)(text + record - 1 - value);
        int is_path = key_len == 4 && !memcmp(key, "path", 4);
        int is_link = key_len == 8 && !memcmp(key, "linkpath", 8);

        if (is_path || is_link) {
            if (value_len > PATH_MAX_LEN || memchr(value, 0, value_len))
                return pd_fail(e, PD_PROTOCOL, "the archive has a name that no file can have");
            char *to = is_path ? u->path : u->link;
            memcpy(to, value, value_len);
            to[value_len] = 0;
            *(is_path ? &u->has_path : &u->has_link) = 1;
        } else if (key_len == 4 && !memcmp(key, "size", 4)) {
            u->size = 0;
            for (size_t i = 0; i < value_len; i++) {
                if (value[i] < '0' || value[i] > '9' || u->size > UINT64_MAX / 100)
                    return pd_fail(e, PD_PROTOCOL, "the archive has a malformed size");
                u->size = u->size * 10 + (uint64_t)(value[i] - '0');
            }
            u->has_size = 1;
        }

        text += record;
        len -= record;
    }
    return 0;
}

static int read_pax(struct unpack *u, uint64_t size, int is_used, struct pd_err *e)
{
    auto_buf b = BUF_INIT(PAX_MAX);

    if (size > PAX_MAX)
        return pd_fail(e, PD_PROTOCOL, "the archive has a pax head of %llu bytes",
                       (unsigned long long)size);

    uint8_t *at = size ? buf_reserve(&b, (size_t)size) : NULL;
    if (size && (!at || read_full(u, at, (size_t)size, e) <= 0))
        return pd_fail(e, PD_LOST, "the archive ends in the middle");

    if (skip(u, padding(size), e) < 0)
        return -1;
    return is_used && size ? take_pax(u, (const char *)at, (size_t)size, e) : 0;
}

/* The next entry's head: 1, 0 at the end, -1. */
static int read_head(struct unpack *u, struct pd_err *e)
{
    unsigned char block[BLOCK];
    static const unsigned char zeros[BLOCK];

    u->has_path = u->has_link = u->has_size = 0;
    for (;;) {
        uint64_t size, mode;
        int got = read_full(u, block, sizeof block, e);
        if (got <= 0)
            return got;
        if (!memcmp(block, zeros, sizeof block))
            return 0;

        const char *text = (const char *)block;
        if (!check_sum(block) || memcmp(text + 257, "ustar", 5) != 0 ||
            parse_octal(text + 124, 12, &size) < 0 || parse_octal(text + 100, 8, &mode) < 0)
            return pd_fail(e, PD_PROTOCOL, "the answer is not a tar archive");

        u->type = text[156] ? text[156] : '0';
        if (u->type == 'x' || u->type == 'g') {
            if (read_pax(u, size, u->type == 'x', e) < 0)
                return -1;
            continue;
        }

        if (u->type == 'L' || u->type == 'K')
            return pd_fail(e, PD_PROTOCOL, "the archive has names in GNU's form");

        u->mode = (unsigned)mode & 0777;
        if (!u->has_size)
            u->size = size;
        if (!u->has_link)
            snprintf(u->link, sizeof u->link, "%.100s", text + 157);
        if (!u->has_path && text[345])
            snprintf(u->path, sizeof u->path, "%.155s/%.100s", text + 345, text);
        else if (!u->has_path)
            snprintf(u->path, sizeof u->path, "%.100s", text);

        if (u->type != '0' && u->type != '7')
            u->size = u->type >= '1' && u->type <= '6' ? 0 : u->size;
        return 1;
    }
}

static void tell_left_out(struct unpack *u, const char *path, const char *why)
{
    if (u->left_out++ >= TOLD_MAX)
        return;

    auto_buf b = BUF_INIT(8 * (PATH_MAX_LEN + 1));
    text_escape(&b, path, strlen(path));
    const char *text = buf_cstr(&b);
    fprintf(stderr, "paddock: %s is left out: %s\n", text ? text : "a file", why);
}

/* Makes the path plain: no "." and no empty names. -1 when it leads out. Empty: the top itself. */
static int clean_path(char *path)
{
    char *to = path;
    const char *from = path;

    if (*from == '/')
        return -1;

    while (*from) {
        size_t len = strcspn(from, "/");
        if (len == 2 && !memcmp(from, "..", 2))
            return -1;
        if (len && !(len == 1 && *from == '.')) {
            if (to != path)
                *to++ = '/';
            memmove(to, from, len);
            to += len;
        }
        from += len + (from[len] == '/');
    }
    *to = 0;
    return 0;
}

static int is_inside(const char *path, const char *link)
{
    int depth = 0, is_begin = 1;

    for (const char *p = path; *p; p++)
        depth += *p == '/';
    if (*link == '/' || !*link)
        return 0;

    while (*link) {
        size_t len = strcspn(link, "/");
        if (len == 2 && !memcmp(link, "..", 2)) {
            if (!is_begin || --depth < 0)
                return 0;
        } else if (len && !(len == 1 && *link == '.')) {
            is_begin = 0;
        }
        link += len + (link[len] == '/');
    }
    return 1;
}

/* Opens the directory that the entry is in, making what is missing, and points at its last name. */
static int open_parent(struct unpack *u, const char **ret_name, struct pd_err *e)
{
    auto_fd at = fcntl(u->dir, F_DUPFD_CLOEXEC, 3);
    const char *name = u->path, *slash;

    if (at < 0)
        return pd_fail_sys(e, "duplicate a descriptor");

    while ((slash = strchr(name, '/'))) {
        char part[256];
        if ((size_t)(slash - name) >= sizeof part)
            return pd_fail(e, PD_PROTOCOL, "the archive has a name that no file can have");
        snprintf(part, sizeof part, "%.*s", (int)(slash - name), name);
        (void)mkdirat(at, part, 0777);

        int next = openat(at, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0)
            return pd_fail_sys(e, "open the directory %.*s", (int)(slash - u->path), u->path);
        fd_done(&at);
        at = next;
        name = slash + 1;
    }

    *ret_name = name;
    return fd_take(&at);
}

static int write_content(struct unpack *u, int fd, struct pd_err *e)
{
    char bytes[65536];
    uint64_t left = u->size;

    while (left) {
        size_t n = left < sizeof bytes ? (size_t)left : sizeof bytes;
        int got = read_full(u, bytes, n, e);
        if (got <= 0)
            return got < 0 ? -1 : pd_fail(e, PD_LOST, "the archive ends in the middle");

        int bad = fd_write_all(fd, bytes, n);
        if (bad) {
            errno = -bad;
            return pd_fail_sys(e, "write %s", u->path);
        }
        left -= n;
    }
    return skip(u, padding(u->size), e);
}

static int unpack_file(struct unpack *u, int parent, const char *name, struct pd_err *e)
{
    (void)unlinkat(parent, name, 0);
    auto_fd fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return pd_fail_sys(e, "create %s", u->path);

    if (write_content(u, fd, e) < 0)
        return -1;
    return fchmod(fd, u->mode & ~u->mask) < 0 ? pd_fail_sys(e, "set the mode of %s", u->path) : 0;
}

static int unpack_entry(struct unpack *u, struct pd_err *e)
{
    const char *name = "";

    if (clean_path(u->path) < 0)
        return pd_fail(e, PD_PROTOCOL, "the archive has a name that leads out: %.100s", u->path);
    if (!u->path[0]) /* the directory itself */
        return skip(u, u->size + padding(u->size), e);

    const char *why = u->type == '2' ? is_inside(u->path, u->link) ? NULL : "a link that leads out"
                      : u->type == '1'         ? "a hard link"
                      : strchr("057", u->type) ? NULL
                                               : "neither file nor directory nor symbolic link";

    if (why) {
        tell_left_out(u, u->path, why);
        return u->size > UINT64_MAX - BLOCK ? pd_fail(e, PD_PROTOCOL, "the archive is malformed")
                                            : skip(u, u->size + padding(u->size), e);
    }

    auto_fd parent = open_parent(u, &name, e);
    if (parent < 0)
        return -1;

    if (u->type == '5') {
        if (mkdirat(parent, name, (u->mode | 0700) & ~u->mask) < 0 && errno != EEXIST)
            return pd_fail_sys(e, "create %s", u->path);
        return 0;
    }
    if (u->type == '2') {
        (void)unlinkat(parent, name, 0);
        return symlinkat(u->link, parent, name) < 0 ? pd_fail_sys(e, "create %s", u->path) : 0;
    }
    return unpack_file(u, parent, name, e);
}

static int unpack_all(struct unpack *u, struct pd_err *e)
{
    for (;;) {
        int got = read_head(u, e);
        if (got < 0 || (got > 0 && unpack_entry(u, e) < 0))
            return -1;
        if (!got)
            return 0;
    }
}

int tar_unpack(int dir, tar_read_fn *read, void *from, struct pd_err *e)
{
    struct unpack u = {.read = read, .from = from, .dir = dir};

    u.mask = umask(0);
    umask(u.mask);

    int bad = unpack_all(&u, e);
    if (u.left_out > TOLD_MAX)
        fprintf(stderr, "paddock: %llu more are left out\n",
                (unsigned long long)(u.left_out - TOLD_MAX));
    if (bad < 0)
        return -1;

    /* The rest are zeros; reading them lets a broken transfer be noticed. */
    char rest[4096];
    ssize_t n;
    while ((n = read(from, rest, sizeof rest, e)) > 0)
        ;
    return n < 0 ? -1 : 0;
}
