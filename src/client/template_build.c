/* paddock template build: sends the files that a Dockerfile copies, then its steps, and shows the
 * log until the build has ended. A signal ends the build. */
#include "client/template.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"
#include "base/sha256.h"
#include "client/client.h"
#include "client/dockerfile.h"
#include "client/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EVERY_NS 300000000L

struct building {
    struct remote *remote;
    const char *name, *context, *template, *start, *ready;
    json_t *tags, *limits;
    bool force, quiet;
    char file[PATH_MAX], directory[PATH_MAX];
    int dir; /* the context */
};

/* ---- files ---- */

struct packing {
    int fd;
    struct sha256 sha;
};

static int put_packed(void *to, const void *data, size_t len, struct pd_err *e)
{
    struct packing *p = to;
    int w = fd_write_all(p->fd, data, len);
    errno = -w;
    sha256_put(&p->sha, data, len);
    return w < 0 ? pd_fail_sys(e, "write the files to be sent") : 0;
}

static int send_packed(struct building *b, int fd, const char *digest, struct pd_err *e)
{
    char target[128], bytes[65536];
    json_auto_t *there = NULL;
    ssize_t n;

    snprintf(target, sizeof target, "/v1/build-files/%s", digest);
    if (remote_get(b->remote, target, &there, e) < 0)
        return -1;
    if (json_field_is_true(there, "present"))
        return 0;

    struct remote_request q = {.method = HTTP_PUT, .target = target, .type = "application/x-tar"};
    if (lseek(fd, 0, SEEK_SET) < 0 || remote_begin(b->remote, &q, e) < 0)
        return -1;
    while ((n = read(fd, bytes, sizeof bytes)) > 0)
        if (remote_write(b->remote, bytes, (size_t)n, e) < 0)
            return -1;
    if (n < 0)
        return pd_fail_sys(e, "read the files to be sent");
    if (remote_end(b->remote, e) < 0 || remote_answer(b->remote, e) < 0)
        return -1;
    return remote_json(b->remote, NULL, e);
}

/* "a/", "./a" and "a" are the same name for a server, and for tar. */
static const char *clean(const char *source, char out[PATH_MAX])
{
    while (!strncmp(source, "./", 2) || source[0] == '/')
        source += source[0] == '/' ? 1 : 2;
    snprintf(out, PATH_MAX, "%s", source[0] ? source : ".");
    for (size_t len = strlen(out); len > 1 && out[len - 1] == '/';)
        out[--len] = 0;
    return out;
}

/* The names that a source stands for. The working directory is the context meanwhile. */
static int find_names(const char *source, glob_t *ret, struct pd_err *e)
{
    char name[PATH_MAX];
    int r = glob(clean(source, name), GLOB_PERIOD & 0, NULL, ret);
    if (r == GLOB_NOMATCH)
        return pd_fail(e, PD_INVALID, "COPY: there is no '%.100s' in the context", source);
    return r ? pd_fail(e, PD_INTERNAL, "COPY: '%.100s' cannot be looked for", source) : 0;
}

/* One source: a step with its archive. */
static int send_source(struct building *b, json_t *steps, const json_t *step, const char *source,
                       struct pd_err *e)
{
    char place[] = "/tmp/paddock-build-XXXXXX", digest[SHA256_HEX_SIZE], name[PATH_MAX];
    struct packing p = {.fd = mkostemp(place, O_CLOEXEC), .sha = SHA256_INIT};
    auto_fd fd = p.fd;
    glob_t names = {0};
    if (fd < 0)
        return pd_fail_sys(e, "make a file in /tmp");
    (void)unlink(place);

    int bad = find_names(source, &names, e);
    if (!bad)
        bad = tar_write_names(b->dir, (const char *const *)names.gl_pathv, names.gl_pathc,
                              put_packed, &p, e);
    globfree(&names);
    sha256_end_hex(&p.sha, digest);
    if (bad < 0 || send_packed(b, fd, digest, e) < 0)
        return -1;

    json_t *one = json_deep_copy(step);
    bad =
        !one || json_object_del(one, "sources") < 0 ||
        json_array_set_new(json_object_get(one, "args"), 0, json_string(clean(source, name))) < 0 ||
        json_object_set_new(one, "files", json_string(digest)) < 0;
    if (json_array_append_new(steps, one) < 0 || bad)
        return pd_fail(e, PD_INVALID, "COPY: the name '%.80s' is not UTF-8", source);
    return 0;
}

static int send_files(struct building *b, json_t *body, struct pd_err *e)
{
    json_auto_t *steps = json_array();
    const json_t *step, *source;
    size_t i, k;

    if (faccessat(b->dir, ".dockerignore", F_OK, 0) == 0)
        fputs("paddock: .dockerignore is there, and is not read\n", stderr);
    json_array_foreach(json_object_get(body, "steps"), i, step)
    {
        const json_t *sources = json_object_get(step, "sources");
        if (!sources && json_array_append(steps, (json_t *)(uintptr_t)step) < 0)
            return pd_fail(e, PD_CAPACITY, "no memory");
        json_array_foreach(sources, k, source)
        {
            if (send_source(b, steps, step, json_string_value(source), e) < 0)
                return -1;
        }
    }
    return json_object_set(body, "steps", steps) < 0 ? pd_fail(e, PD_CAPACITY, "no memory") : 0;
}

/* ---- the log ---- */

static void put_log(const struct building *b, const json_t *log)
{
    const json_t *line;
    size_t i;
    json_array_foreach(log, i, line)
    {
        auto_buf text = BUF_INIT(8192);
        buf_printf(&text, "[%s] %s", json_field(line, "step"), json_field(line, "text"));
        if (!b->quiet && buf_cstr(&text))
            print_line((const char *)text.data);
    }
}

static int end_early(struct building *b, const char *target, struct pd_err *e)
{
    struct remote_request q = {.method = HTTP_DELETE, .target = target};
    struct pd_err ignored;
    (void)remote_call(b->remote, &q, NULL, &ignored);
    return pd_fail(e, PD_LOST, "the build was ended by a signal");
}

static int follow(struct building *b, const json_t *made, struct pd_err *e)
{
    char target[256], page[300];
    int64_t offset = 0;
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    snprintf(target, sizeof target, "/v1/templates/%.40s/builds/%.60s",
             json_field(made, "template"), json_field(made, "build"));

    for (;;) {
        json_auto_t *got = NULL;
        snprintf(page, sizeof page, "%s?offset=%lld", target, (long long)offset);
        if (remote_get(b->remote, page, &got, e) < 0)
            return -1;
        const json_t *log = json_object_get(got, "log"), *build = json_object_get(got, "build");
        const char *state = json_field(build, "state");
        put_log(b, log);
        offset = json_field_int(got, "next_offset");
        if (json_array_size(log))
            continue;
        if (!strcmp(state, "ready"))
            return 0;
        if (!strcmp(state, "error"))
            return pd_fail(e, PD_LOST, "the build has failed%s%s: %s",
                           *json_field(build, "step") ? " at step " : "", json_field(build, "step"),
                           json_field(build, "message"));
        if (sigtimedwait(&set, NULL, &(struct timespec){.tv_nsec = EVERY_NS}) > 0)
            return end_early(b, target, e);
    }
}

/* ---- the command ---- */

static int put_limit(struct building *b, const char *option, const char *key, const char *text,
                     bool is_size, struct pd_err *e)
{
    uint64_t n;
    int bad = is_size ? parse_size(option, text, 1, INT64_MAX, &n, e)
                      : parse_milli(option, text, 1, 1u << 20, &n, e);
    if (bad < 0)
        return -1;
    json_t *value = is_size ? json_integer((json_int_t)n) : json_real((double)n / 1000);
    return json_object_set_new(b->limits, key, value);
}

static int read_option(struct building *b, struct options *o, struct pd_err *e)
{
    const char **text = options_is(o, NULL, "--name")       ? &b->name
                        : options_is(o, NULL, "--context")  ? &b->context
                        : options_is(o, NULL, "--template") ? &b->template
                        : options_is(o, NULL, "--start")    ? &b->start
                        : options_is(o, NULL, "--ready")    ? &b->ready
                                                            : NULL;
    bool *flag = options_is(o, NULL, "--no-cache") ? &b->force
                 : options_is(o, "-q", "--quiet")  ? &b->quiet
                                                   : NULL;
    if (flag) {
        *flag = true;
        return options_no_value(o, e);
    }
    bool known = text || options_is(o, NULL, "--tag") || options_is(o, NULL, "--memory") ||
                 options_is(o, NULL, "--cpus") || options_is(o, NULL, "--disk");
    if (!known)
        return template_unknown(o, e);

    const char *name = o->name, *value = options_value(o, e);
    if (!value)
        return -1;
    if (text)
        *text = value;
    else if (!strcmp(name, "--tag"))
        return json_array_append_new(b->tags, json_string(value));
    else if (!strcmp(name, "--cpus"))
        return put_limit(b, name, "cpu", value, false, e);
    else
        return put_limit(b, name, strcmp(name, "--disk") ? "memory_bytes" : "disk_bytes", value,
                         true, e);
    return 0;
}

/* Where the Dockerfile is, where its files are, and what all of it is called. */
static int find_places(struct building *b, const char *given, char name[64], struct pd_err *e)
{
    struct stat st;
    char whole[PATH_MAX];

    if (stat(given, &st) < 0)
        return pd_fail(e, PD_INVALID, "'%.150s': %s", given, strerror(errno));
    int n =
        snprintf(b->file, sizeof b->file, "%s%s", given, S_ISDIR(st.st_mode) ? "/Dockerfile" : "");
    if (n < 0 || (size_t)n >= sizeof b->file)
        return pd_fail(e, PD_INVALID, "the path is too long");
    snprintf(b->directory, sizeof b->directory, "%s", b->file);
    char *slash = strrchr(b->directory, '/');
    snprintf(slash ? slash + (slash == b->directory) : b->directory, 2, "%s", slash ? "" : ".");
    if (b->context)
        snprintf(b->directory, sizeof b->directory, "%.4000s", b->context);

    const char *last = realpath(b->directory, whole) ? strrchr(whole, '/') : NULL;
    snprintf(name, 64, "%.63s", last ? last + 1 : "");
    b->dir = open(b->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return b->dir < 0 ? pd_fail(e, PD_INVALID, "'%.150s': %s", b->directory, strerror(errno)) : 0;
}

static json_t *read_file(const struct building *b, struct pd_err *e)
{
    char *text = malloc(DOCKERFILE_MAX + 2);
    ssize_t n = text ? fd_read_file(AT_FDCWD, b->file, text, DOCKERFILE_MAX + 2) : -ENOMEM;
    json_t *body = NULL;

    errno = (int)-n;
    if (n < 0)
        pd_fail(e, PD_INVALID, "'%.150s': %s", b->file, strerror(errno));
    else if (!(body = dockerfile_read(text, (size_t)n, e)))
        pd_wrap(e, "%.150s", b->file);
    free(text);
    return body;
}

static int put_rest(const struct building *b, json_t *body, const char *name)
{
    int bad = json_object_set_new(body, "name", json_string(b->name ? b->name : name));
    if (b->template) {
        bad |= json_object_del(body, "image");
        bad |= json_object_set_new(body, "template", json_string(b->template));
    }
    if (b->start)
        bad |= json_object_set_new(body, "start", json_string(b->start));
    if (b->ready)
        bad |= json_object_set_new(body, "ready", json_string(b->ready));
    if (json_array_size(b->tags))
        bad |= json_object_set(body, "tags", b->tags);
    if (json_object_size(b->limits))
        bad |= json_object_set(body, "limits", b->limits);
    if (b->force)
        bad |= json_object_set_new(body, "force", json_true());
    return bad;
}

static int build(struct building *b, const char *given, struct pd_err *e)
{
    char name[64];
    json_auto_t *body = NULL, *made = NULL;

    if (find_places(b, given, name, e) < 0 || !(body = read_file(b, e)))
        return -1;
    if (fchdir(b->dir) < 0)
        return pd_fail_sys(e, "go to %s", b->directory);
    if (!(b->remote = remote_new(e)) || send_files(b, body, e) < 0)
        return -1;
    if (put_rest(b, body, name))
        return pd_fail(e, PD_INVALID, "an option is not UTF-8");

    struct remote_request q = {.method = HTTP_POST, .target = "/v1/templates", .json = body};
    if (remote_call(b->remote, &q, &made, e) < 0 || follow(b, made, e) < 0)
        return -1;
    return print_line(json_field(made, "template"));
}

int template_build(int argc, char **argv, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);
    json_auto_t *tags = json_array(), *limits = json_object();
    struct building b = {.dir = -1, .tags = tags, .limits = limits};
    int count;

    o.mixed = 1;
    while (options_next(&o))
        if (read_option(&b, &o, e) < 0)
            return -1;
    char **args = options_arguments(&o, &count);
    if (count > 1)
        return pd_fail(e, PD_INVALID, "template build takes one Dockerfile or directory");

    int r = build(&b, count ? args[0] : ".", e);
    remote_free(b.remote);
    fd_done(&b.dir);
    return r < 0 ? -1 : 0;
}
