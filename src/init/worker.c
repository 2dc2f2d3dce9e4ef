/* How a worker runs: exec.c has made it a process of the user's with three descriptors. Here it is
 * told apart from init for good, the operation is looked up, and whatever comes of it is written to
 * descriptor 1. Memory is never freed for its own sake: the process ends with the operation. */
#include "init/worker.h"

#include "base/banned.h"
#include "base/fd.h"
#include "base/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define OUT_MAX    (3 * RECORD_MAX)
#define OUT_FLUSH  (32u << 10)
#define MOVE_CHUNK (1u << 20)
/* A pattern or a tree made to eat memory makes the operation fail, before the kernel has to choose
 * whom of the jail to kill. */
#define MEMORY_MAX (256ull << 20)

/* Sanitizers keep their books in memory that counts. gcc says it one way, clang another. */
#ifdef __SANITIZE_ADDRESS__
#define LIMIT_MEMORY 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LIMIT_MEMORY 0
#endif
#endif
#ifndef LIMIT_MEMORY
#define LIMIT_MEMORY 1
#endif

struct operation {
    const char *name;
    unsigned min_args, max_args;
    int (*run)(struct worker_job *w, struct pd_err *e);
    const char *usage;
};

static const struct operation operations[] = {
    {"stat", 1, 2, worker_stat, "PATH [DETAIL]"},
    {"read", 3, 3, worker_read, "PATH OFFSET LENGTH|-"},
    {"write", 3, 5, worker_write, "PATH MODE MKDIRS [LENGTH|- [MATCH]]"},
    {"upload", 2, 256, worker_upload, "PATH LENGTH|- [NAME VALUE]..."},
    {"compose", 2, 1024, worker_compose, "PATH SOURCE..."},
    {"mkdir", 3, 4, worker_mkdir, "PATH PARENTS MODE [DETAIL]"},
    {"remove", 2, 2, worker_remove, "PATH RECURSIVE"},
    {"move", 3, 4, worker_rename, "FROM TO OVERWRITE [DETAIL]"},
    {"list", 4, 5, worker_list, "PATH DEPTH LIMIT CURSOR [DETAIL]"},
    {"digest", 4, 4, worker_digest, "PATH ENTRIES BYTES WITHOUT_HIDDEN"},
    {"copy", 3, 3, worker_copy, "FROM TO RECURSIVE"},
    {"chmod", 2, 2, worker_chmod, "PATH MODE"},
    {"getxattr", 2, 2, worker_getxattr, "PATH NAME"},
    {"setxattr", 2, 3, worker_setxattr, "PATH NAME [VALUE]"},
    {"search", 6, 6, worker_search, "ROOT literal|regex|name PATTERN GLOB LIMIT CASE"},
    {"replace", 6, 6, worker_replace, "ROOT literal|regex PATTERN REPLACEMENT GLOB DRY"},
    {"watch", 2, 3, worker_watch, "PATH RECURSIVE [HOW]"},
    {"tar", 1, 1, worker_tar, "PATH"},
    {"untar", 1, 1, worker_untar, "PATH"},
    {"layer", 1, 1, worker_layer, "PATH"},
    {"dial", 1, 1, worker_dial, "PORT"},
    {"ports", 0, 0, worker_ports, ""},
    {"ps", 0, 0, worker_ps, ""},
    {"join", 0, 2, worker_join, "[NAME|- [COPIED]]"},
};

void worker_flush(struct worker_job *w)
{
    if (fd_write_all(1, w->out.data, w->out.len) < 0)
        _exit(1); /* nobody listens */
    buf_clear(&w->out);
}

void worker_put(struct worker_job *w, const struct record *r)
{
    size_t before = w->out.len;
    record_encode(&w->out, r);
    if (w->out.overflow) {
        w->out.len = before;
        w->out.overflow = 0;
    }

    if (w->out.len >= OUT_FLUSH && !w->holds)
        worker_flush(w);
}

static uint32_t type_of(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return ENTRY_FILE;
    case S_IFDIR:
        return ENTRY_DIR;
    case S_IFLNK:
        return ENTRY_SYMLINK;
    case S_IFIFO:
        return ENTRY_FIFO;
    case S_IFSOCK:
        return ENTRY_SOCKET;
    default:
        return ENTRY_DEVICE;
    }
}

struct record_entry worker_entry(const struct stat *st, const char *path, const char *target)
{
    int64_t seconds = st->st_mtim.tv_sec;
    if (seconds > INT64_MAX / 1000000000 - 1 || seconds < INT64_MIN / 1000000000 + 1)
        seconds = 0; /* a time that nobody has seen */

    return (struct record_entry){.type = type_of(st->st_mode),
                                 .mode = st->st_mode & 07777,
                                 .uid = st->st_uid,
                                 .gid = st->st_gid,
                                 .size = (uint64_t)st->st_size,
                                 .mtime_ns = seconds * 1000000000 + st->st_mtim.tv_nsec,
                                 .path = path,
                                 .target = target ? target : ""};
}

void worker_put_entry(struct worker_job *w, const struct stat *st, const char *path,
                      const char *target)
{
    struct record r = {.kind = RECORD_ENTRY, .entry = worker_entry(st, path, target)};
    worker_put(w, &r);
}

int worker_await_commit(struct pd_err *e)
{
    char word;
    ssize_t n;

    do {
        struct pollfd p = {.fd = 2, .events = POLLIN};
        n = read(2, &word, 1);
        if (n < 0 && errno == EAGAIN)
            poll(&p, 1, -1);
    } while (n < 0 && (errno == EINTR || errno == EAGAIN));

    if (n == 1 && word == WORKER_COMMIT_WORD)
        return 0;
    return pd_fail(e, PD_LOST, "given up before it was committed: nothing was changed");
}

static int64_t move_by_hand(int from, int to, uint64_t len)
{
    static const size_t size = 256u << 10;
    char *buffer = malloc(size);
    uint64_t done = 0;
    if (!buffer)
        return -ENOMEM;

    while (done < len) {
        ssize_t n = read(from, buffer, len - done < size ? (size_t)(len - done) : size);
        int r = n < 0 ? -errno : fd_write_all(to, buffer, (size_t)n);
        if (r < 0 && r != -EINTR) {
            free(buffer);
            return r;
        }
        if (n == 0)
            break;
        done += n > 0 ? (uint64_t)n : 0;
    }

    free(buffer);
    return (int64_t)done;
}

int64_t worker_move(int from, int to, uint64_t len)
{
    uint64_t done = 0;

    while (done < len) {
        size_t chunk = len - done < MOVE_CHUNK ? (size_t)(len - done) : MOVE_CHUNK;
        ssize_t n = splice(from, NULL, to, NULL, chunk, 0);
        if (n == 0)
            break;
        if (n > 0) {
            done += (uint64_t)n;
            continue;
        }

        if (errno == EINVAL) { /* neither is a pipe, or a file that cannot splice */
            int64_t rest = move_by_hand(from, to, len - done);
            return rest < 0 ? rest : (int64_t)done + rest;
        }

        if (errno == EAGAIN) {
            struct pollfd p[2] = {{from, POLLIN, 0}, {to, POLLOUT, 0}};
            if (poll(&p[0], 1, -1) < 0 || poll(&p[1], 1, -1) < 0)
                continue;
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return (int64_t)done;
}

int worker_number(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *ret,
                  struct pd_err *e)
{
    return parse_u64(what, text, min, max, ret, e);
}

int worker_flag(const char *what, const char *text, int *ret, struct pd_err *e)
{
    uint64_t v;
    if (parse_u64(what, text, 0, 1, &v, e) < 0)
        return -1;
    *ret = (int)v;
    return 0;
}

int worker_last_flag(const struct worker_job *w, unsigned at, const char *what, int *ret,
                     struct pd_err *e)
{
    *ret = 0;
    return at < w->argc ? worker_flag(what, w->argv[at], ret, e) : 0;
}

int worker_mode(const char *text, mode_t max, mode_t *ret, struct pd_err *e)
{
    unsigned long mode = 0;
    size_t n = strspn(text, "01234567");

    if (n && n <= 6 && !text[n])
        mode = strtoul(text, NULL, 8);
    else
        mode = ~0ul;

    if (mode > max)
        return pd_fail(e, PD_INVALID, "mode '%.40s': octal digits up to %04o, such as 0644", text,
                       (unsigned)max);
    *ret = (mode_t)mode;
    return 0;
}

static void put_error(struct worker_job *w, const struct pd_err *e)
{
    struct record r = {.kind = RECORD_ERROR,
                       .error = {.code = e->code, .sys = e->sys, .text = e->msg}};
    worker_put(w, &r);
}

_Noreturn void worker_refuse(int fd, const struct pd_err *why)
{
    struct worker_job w = {.out = BUF_INIT(OUT_MAX)};
    put_error(&w, why);
    (void)fd_write_all(fd, w.out.data, w.out.len);
    _exit(1);
}

static int run(struct worker_job *w, struct pd_err *e)
{
    const char *name = w->argv[0];
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        const struct operation *o = &operations[i];
        if (strcmp(o->name, name) != 0)
            continue;

        if (w->argc - 1 < o->min_args || w->argc - 1 > o->max_args)
            return pd_fail(e, PD_INVALID, "%u words for %s %s", w->argc - 1, o->name, o->usage);
        return o->run(w, e);
    }
    return pd_fail(e, PD_UNSUPPORTED, "'%.60s' is no operation of a worker", name);
}

_Noreturn void worker_main(const char *cwd, char **argv)
{
    struct worker_job w = {.cwd = cwd, .argv = argv, .out = BUF_INIT(OUT_MAX)};
    struct pd_err e = {0};

    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* the change of uid did that; where there was none, this */
    prctl(PR_SET_NAME, "paddock-worker", 0, 0, 0);
    signal(SIGXFSZ, SIG_IGN); /* the write fails instead, and that can be told */
    signal(SIGPIPE, SIG_DFL);

    struct rlimit data;
    if (LIMIT_MEMORY && getrlimit(RLIMIT_DATA, &data) == 0 && data.rlim_cur > MEMORY_MAX)
        setrlimit(RLIMIT_DATA, &(struct rlimit){MEMORY_MAX, MEMORY_MAX});

    while (argv[w.argc])
        w.argc++;
    w.cwd_ok = chdir(cwd) == 0;

    int r = run(&w, &e);
    if (r < 0)
        put_error(&w, &e);
    worker_flush(&w);
    _exit(r < 0);
}
