/* cp: files and directories, into and out of a sandbox. */
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "client/client.h"
#include "client/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

const char cp_usage[] =
    "usage: paddock cp [OPTIONS] SRC ID:PATH\n"
    "       paddock cp [OPTIONS] ID:PATH DST\n\n"
    "Copies a file or a directory into a sandbox or out of it, as cp -r does. SRC or DST `-` is\n"
    "standard input or output. A relative PATH is below /workspace.\n\n"
    "  --session USER/THREAD  the sandbox of this user and thread, written :PATH\n"
    "  -p, --parents          make missing directories of PATH\n"
    "  -u, --user USER        whose rights the copy has in the sandbox: user (default) or root\n";

#define PIECE 65536

struct copy {
    struct remote *remote;
    char id[32];
    const char *session, *user;
    const char *local;
    char remote_path[4096];
    int upload, parents;
};

/* "ID:PATH" or ":PATH". 0 when it is a local name. */
static int split_remote(struct copy *c, const char *arg)
{
    const char *colon = strchr(arg, ':');
    if (!colon)
        return 0;

    size_t len = (size_t)(colon - arg);
    if (len >= sizeof c->id || (!len && !c->session))
        return 0;

    char id[32];
    snprintf(id, sizeof id, "%.*s", (int)len, arg);
    if (len && check_id(id, NULL) < 0)
        return 0;

    if (len)
        snprintf(c->id, sizeof c->id, "%s", id);
    snprintf(c->remote_path, sizeof c->remote_path, "%s", colon[1] ? colon + 1 : ".");
    return 1;
}

static int parse_cp(struct copy *c, int argc, char **argv, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);
    int count;

    o.mixed = 1;
    while (options_next(&o)) {
        const char **text = options_is(&o, NULL, "--session") ? &c->session
                            : options_is(&o, "-u", "--user")  ? &c->user
                                                              : NULL;
        if (text) {
            if (!(*text = options_value(&o, e)))
                return -1;
        } else if (!options_is(&o, "-p", "--parents")) {
            return usage_unknown(&o, e);
        } else {
            c->parents = 1;
            if (options_no_value(&o, e) < 0)
                return -1;
        }
    }

    char **args = options_arguments(&o, &count);
    if (count != 2)
        return pd_fail(e, PD_INVALID, "cp: write `paddock cp SRC ID:PATH` or `ID:PATH DST`");

    int from = split_remote(c, args[0]), to = from ? 0 : split_remote(c, args[1]);
    struct copy other = *c;
    if (from && split_remote(&other, args[1]))
        return pd_fail(e, PD_INVALID, "cp: one of the two must be a local file");

    if (!from && !to)
        return pd_fail(e, PD_INVALID,
                       "cp: neither '%.60s' nor '%.60s' is ID:PATH; `paddock ls` lists ids",
                       args[0], args[1]);

    c->upload = to;
    c->local = args[to ? 0 : 1];
    return 0;
}

static const char *base_name(const char *path, size_t *ret_len)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;

    size_t begin = len;
    while (begin && path[begin - 1] != '/')
        begin--;

    *ret_len = len - begin;
    return path + begin;
}

/* The target of a call on a path of the sandbox: /v1/sandboxes/ID/files<call>?path=... */
static const char *files_target(const struct copy *c, struct buf *b, const char *call)
{
    buf_printf(b, "/v1/sandboxes/%s/files%s?path=", c->id, call);
    put_encoded(b, c->remote_path);
    if (c->user) {
        buf_puts(b, "&user=");
        put_encoded(b, c->user);
    }
    return buf_cstr(b);
}

/* The type of the path in the sandbox, "" when there is nothing. */
static int find_type(struct copy *c, char type[16], unsigned *ret_mode, struct pd_err *e)
{
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    json_auto_t *entry = NULL;

    type[0] = 0;
    if (!files_target(c, &b, "/stat"))
        return pd_fail(e, PD_INVALID, "the path is too long");
    if (remote_get(c->remote, buf_cstr(&b), &entry, e) < 0)
        return e->code == PD_NOT_FOUND && strstr(e->msg, "sandbox") != e->msg ? 0 : -1;

    snprintf(type, 16, "%s", json_field(entry, "type"));
    *ret_mode = (unsigned)strtoul(json_field(entry, "mode"), NULL, 8) & 0777;
    return 0;
}

/* Copying into a directory: the name is that of the source. */
static int append_name(char *path, size_t size, const char *source, struct pd_err *e)
{
    size_t len, at = strlen(path);
    const char *name = base_name(source, &len);
    int n = snprintf(path + at, size - at, "%s%.*s", at && path[at - 1] == '/' ? "" : "/", (int)len,
                     name);

    return n < 0 || (size_t)n >= size - at ? pd_fail(e, PD_INVALID, "the path is too long") : 0;
}

static int send_answered(struct copy *c, struct pd_err *e)
{
    char rest[512];

    if (remote_end(c->remote, e) < 0 || remote_answer(c->remote, e) < 0)
        return -1;

    ssize_t n;
    while ((n = remote_read(c->remote, rest, sizeof rest, e)) > 0)
        ;
    return n < 0 ? -1 : 0;
}

static int upload_file(struct copy *c, int fd, unsigned mode, struct pd_err *e)
{
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    char bytes[PIECE];
    ssize_t n;

    files_target(c, &b, "");
    if (mode)
        buf_printf(&b, "&mode=%04o", mode & 0777);
    if (c->parents)
        buf_puts(&b, "&mkdirs=true");

    struct remote_request q = {
        .method = HTTP_PUT, .target = buf_cstr(&b), .type = "application/octet-stream"};
    if (!q.target || b.overflow)
        return pd_fail(e, PD_INVALID, "the path is too long");
    if (remote_begin(c->remote, &q, e) < 0)
        return -1;

    while ((n = read(fd, bytes, sizeof bytes)) > 0)
        if (remote_write(c->remote, bytes, (size_t)n, e) < 0)
            return -1;
    return n < 0 ? pd_fail_sys(e, "read %s", c->local) : send_answered(c, e);
}

static int write_archive(void *to, const void *data, size_t len, struct pd_err *e)
{
    return remote_write(to, data, len, e);
}

static int upload_directory(struct copy *c, int dir, struct pd_err *e)
{
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);

    files_target(c, &b, "/archive");
    struct remote_request q = {
        .method = HTTP_PUT, .target = buf_cstr(&b), .type = "application/x-tar"};
    if (!q.target || b.overflow)
        return pd_fail(e, PD_INVALID, "the path is too long");
    if (remote_begin(c->remote, &q, e) < 0 || tar_write(dir, write_archive, c->remote, e) < 0)
        return -1;
    return send_answered(c, e);
}

static int upload(struct copy *c, struct pd_err *e)
{
    char type[16];
    unsigned mode;
    struct stat st;
    int is_stdin = !strcmp(c->local, "-");

    auto_fd fd = is_stdin ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                          : open(c->local, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return pd_fail_sys(e, "open %s", c->local);
    if (find_type(c, type, &mode, e) < 0)
        return -1;

    size_t len = strlen(c->local);
    /* As with cp, "dir/." means what is in it. */
    int is_contents = !strcmp(c->local, ".") || (len > 1 && !strcmp(c->local + len - 2, "/."));
    int into = !strcmp(type, "dir") || c->remote_path[strlen(c->remote_path) - 1] == '/';

    if (into && is_stdin)
        return pd_fail(e, PD_INVALID, "'%.100s' is a directory; name the file", c->remote_path);
    if (into && !(S_ISDIR(st.st_mode) && is_contents) &&
        append_name(c->remote_path, sizeof c->remote_path, c->local, e) < 0)
        return -1;

    if (S_ISDIR(st.st_mode))
        return upload_directory(c, fd, e);
    return upload_file(c, fd, is_stdin ? 0 : st.st_mode & 0777, e);
}

static ssize_t read_answer(void *from, void *out, size_t size, struct pd_err *e)
{
    return remote_read(from, out, size, e);
}

static int begin_download(struct copy *c, const char *call, const char *accept, struct pd_err *e)
{
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);

    files_target(c, &b, call);
    struct remote_request q = {.method = HTTP_GET, .target = buf_cstr(&b), .accept = accept};
    if (!q.target || b.overflow)
        return pd_fail(e, PD_INVALID, "the path is too long");
    return remote_begin(c->remote, &q, e) < 0 ? -1 : remote_answer(c->remote, e);
}

static int copy_answer(struct copy *c, int fd, const char *name, struct pd_err *e)
{
    char bytes[PIECE];
    ssize_t n;

    while ((n = remote_read(c->remote, bytes, sizeof bytes, e)) > 0) {
        int bad = fd_write_all(fd, bytes, (size_t)n);
        if (bad) {
            errno = -bad;
            return pd_fail_sys(e, "write %s", name);
        }
    }
    return n < 0 ? -1 : 0;
}

/* The file appears whole or not at all. */
static int download_file(struct copy *c, const char *to, unsigned mode, struct pd_err *e)
{
    char temporary[4200];
    struct stat st;

    /* A FIFO or a device such as /dev/null is written to, not replaced. */
    int is_special = stat(to, &st) == 0 && !S_ISREG(st.st_mode);
    snprintf(temporary, sizeof temporary, is_special ? "%s" : "%s.paddock-XXXXXX", to);

    if (begin_download(c, "", "application/octet-stream", e) < 0)
        return -1;
    auto_fd fd =
        is_special ? open(to, O_WRONLY | O_CLOEXEC | O_NOCTTY) : mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return pd_fail_sys(e, "create %s", to);

    int bad = copy_answer(c, fd, to, e);
    if (is_special)
        return bad;

    mode_t mask = umask(0);
    umask(mask);
    if (!bad && (fchmod(fd, mode & 0777 & ~mask) < 0 || rename(temporary, to) < 0))
        bad = pd_fail_sys(e, "create %s", to);
    if (bad)
        unlink(temporary);
    return bad;
}

static int download(struct copy *c, struct pd_err *e)
{
    char type[16], to[4096];
    unsigned mode = 0;
    struct stat st;

    if (find_type(c, type, &mode, e) < 0)
        return -1;
    if (!type[0])
        return pd_fail(e, PD_NOT_FOUND, "'%.100s' is not in the sandbox", c->remote_path);

    int is_dir = !strcmp(type, "dir");
    if (!strcmp(c->local, "-")) {
        if (begin_download(c, is_dir ? "/archive" : "",
                           is_dir ? "application/x-tar" : "application/octet-stream", e) < 0)
            return -1;
        return copy_answer(c, STDOUT_FILENO, "standard output", e);
    }

    int exists = stat(c->local, &st) == 0;
    size_t len;
    const char *name = base_name(c->remote_path, &len);
    int is_contents = len == 1 && *name == '.';
    if (snprintf(to, sizeof to, "%s", c->local) >= (int)sizeof to)
        return pd_fail(e, PD_INVALID, "'%.100s...' is too long", c->local);
    if (exists && S_ISDIR(st.st_mode) && !is_contents) {
        if (len == 2 && !memcmp(name, "..", 2))
            return pd_fail(e, PD_INVALID, "'%.100s' has no name to copy to", c->remote_path);
        if (append_name(to, sizeof to, c->remote_path, e) < 0)
            return -1;
    }

    if (!is_dir)
        return download_file(c, to, mode ? mode : 0644, e);
    if (mkdir(to, 0777) < 0 && errno != EEXIST)
        return pd_fail_sys(e, "create %s", to);

    auto_fd dir = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return pd_fail_sys(e, "open %s", to);
    if (begin_download(c, "/archive", "application/x-tar", e) < 0)
        return -1;
    return tar_unpack(dir, read_answer, c->remote, e);
}

int cmd_cp(int argc, char **argv)
{
    struct pd_err e;
    struct copy c = {0};

    if (parse_cp(&c, argc, argv, &e) < 0)
        return usage_fail(&e);

    auto_remote *r = remote_new(&e);
    c.remote = r;
    if (!r || (!c.id[0] && find_session(r, c.session, c.id, &e) < 0) ||
        (c.upload ? upload(&c, &e) : download(&c, &e)) < 0)
        return client_fail(&e);
    return 0;
}
