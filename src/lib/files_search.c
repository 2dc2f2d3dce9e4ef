/* Search, replace, changes, and ports: operations of workers that answer with many records; and
 * connections to a port, which a thread of their own passes through a socket. */
#include "lib/lib.h"

#include "base/banned.h"
#include "base/fd.h"
#include "core/worker_run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#define PATTERN_MAX     4096u
#define GLOB_MAX        1024u
#define REPLACEMENT_MAX 65536u
#define LIMIT_MAX       10000u
#define PORTS_MAX       4096u
#define DIAL_PATIENCE   (10 * NS_PER_S)

struct hunt {
    struct paddock_search q;
    char path[FILE_PATH_SIZE];
    const char *mode, *glob;
};

static int check_text(const char *what, const char *text, size_t min, size_t max,
                      struct paddock_error *e)
{
    size_t len = text ? strlen(text) : 0;
    if (text && len >= min && len <= max)
        return 0;
    return lib_refuse(e, PD_INVALID, "%s %s", what,
                      !text       ? "is missing"
                      : len < min ? "is empty"
                                  : "is too long");
}

static int hunt_read(struct hunt *h, const struct paddock_search *search, int replaces,
                     struct paddock_error *e)
{
    const char *path;

    if (lib_take(&h->q, sizeof h->q, search, "paddock_search", e) < 0 ||
        check_text("pattern", h->q.pattern, 1, PATTERN_MAX, e) < 0 ||
        (h->q.glob && check_text("glob", h->q.glob, 1, GLOB_MAX, e) < 0) ||
        (replaces && check_text("replacement", h->q.replacement, 0, REPLACEMENT_MAX, e) < 0))
        return -1;

    path = h->q.path ? h->q.path : ".";
    if (check_text("path", path, 1, FILE_PATH_MAX, e) < 0)
        return -1;

    file_path(h->path, path);
    h->mode = h->q.mode ? h->q.mode : "literal";
    h->glob = h->q.glob ? h->q.glob : "";
    if (strcmp(h->mode, "literal") != 0 && strcmp(h->mode, "regex") != 0 &&
        (replaces || strcmp(h->mode, "name") != 0))
        return lib_refuse(e, PD_INVALID, "mode '%.40s': %s", h->mode,
                          replaces ? "literal or regex" : "literal, regex or name");

    if (!h->q.limit)
        h->q.limit = 1000;
    if (h->q.limit > LIMIT_MAX)
        return lib_refuse(e, PD_INVALID, "limit %u: at most %u", h->q.limit, LIMIT_MAX);
    return 0;
}

int paddock_file_search(struct paddock_sandbox *s, const struct paddock_search *search,
                        int (*each)(void *arg, const struct paddock_match *m), void *arg,
                        int *ret_truncated, struct paddock_error *e)
{
    struct hunt h;
    char many[16];
    auto_worker w = WORKER_INIT;
    struct record r;
    struct pd_err why;
    uint32_t told = 0;
    int got = 0, more = 0;

    if (lib_usable(s->lib, e) < 0 || hunt_read(&h, search, 0, e) < 0)
        return -1;

    /* One more than asked for, to know whether exactly `limit` was all. */
    snprintf(many, sizeof many, "%u", h.q.limit + 1);
    const char *const words[] = {
        "search", h.path, h.mode, h.q.pattern, h.glob, many, h.q.ignore_case ? "0" : "1", NULL};
    if (worker_run_begin(&w, s->session, lib_cancel_fd(h.q.cancel), h.q.user, 0, words, &why) < 0)
        return lib_fail_or_cancelled(e, &why, h.q.cancel);

    while (!more && (got = worker_next(&w, &r, &why)) > 0) {
        more = r.kind == RECORD_MORE || told++ == h.q.limit;
        if (more)
            break;
        if (r.kind != RECORD_MATCH)
            return lib_refuse(e, PD_PROTOCOL, "a worker finds what nobody asked for");

        struct paddock_match m = {.size_of_struct = sizeof m,
                                  .path = r.match.path,
                                  .line = r.match.line,
                                  .column = r.match.line ? r.match.column : 0,
                                  .text = r.match.text};
        if (each(arg, &m))
            break;
    }

    if (got < 0)
        return lib_fail_or_cancelled(e, &why, h.q.cancel);
    if (ret_truncated)
        *ret_truncated = more;
    return 0;
}

int paddock_file_replace(struct paddock_sandbox *s, const struct paddock_search *search,
                         int (*each)(void *arg, const char *path, uint64_t count), void *arg,
                         struct paddock_error *e)
{
    struct hunt h;
    auto_worker w = WORKER_INIT;
    struct record r;
    struct pd_err why;
    int got;

    if (lib_usable(s->lib, e) < 0 || hunt_read(&h, search, 1, e) < 0)
        return -1;

    const char *const words[] = {
        "replace", h.path, h.mode, h.q.pattern, h.q.replacement, h.glob, h.q.dry_run ? "1" : "0",
        NULL};
    if (worker_run_begin(&w, s->session, lib_cancel_fd(h.q.cancel), h.q.user, 0, words, &why) < 0)
        return lib_fail_or_cancelled(e, &why, h.q.cancel);

    while ((got = worker_next(&w, &r, &why)) > 0) {
        if (r.kind != RECORD_REPLACED)
            return lib_refuse(e, PD_PROTOCOL, "a worker replaces what nobody asked for");
        if (each)
            (void)each(arg, r.replaced.path, r.replaced.count); /* the rest is replaced anyway */
    }
    return got < 0 ? lib_fail_or_cancelled(e, &why, h.q.cancel) : 0;
}

int paddock_file_watch(struct paddock_sandbox *s, const char *path, const char *user, int recursive,
                       struct paddock_cancel *cancel,
                       int (*each)(void *arg, const char *event, const char *path, const char *to,
                                   int is_dir),
                       void *arg, struct paddock_error *e)
{
    char full[FILE_PATH_SIZE];
    auto_worker w = WORKER_INIT;
    struct record r;
    struct pd_err why;
    int got;

    if (lib_usable(s->lib, e) < 0 || check_text("path", path, 1, FILE_PATH_MAX, e) < 0)
        return -1;

    file_path(full, path);
    const char *const words[] = {"watch", full, recursive ? "1" : "0", NULL};
    if (worker_run_begin(&w, s->session, lib_cancel_fd(cancel), user, 0, words, &why) < 0 ||
        worker_expect(&w, RECORD_ENTRY, &r, &why) < 0)
        return lib_fail_or_cancelled(e, &why, cancel);

    w.whole = DEADLINE_NONE;
    w.quiet_ns = UINT64_MAX;
    if (each(arg, "ready", r.entry.path, "", r.entry.type == ENTRY_DIR))
        return 0;

    while ((got = worker_next(&w, &r, &why)) > 0) {
        if (r.kind != RECORD_EVENT || r.event.kind == EVENT_MARK)
            return lib_refuse(e, PD_PROTOCOL, "a worker tells what nobody asked for");
        if (each(arg, event_kind_name(r.event.kind), r.event.path, r.event.path2,
                 r.event.is_dir != 0))
            return 0;
    }
    return got < 0 ? lib_fail_or_cancelled(e, &why, cancel) : 0;
}

/* ---- ports ---- */

int paddock_each_port(struct paddock_sandbox *s,
                      int (*each)(void *arg, unsigned port, const char *address, int pid,
                                  const char *command),
                      void *arg, struct paddock_error *e)
{
    static const char *const words[] = {"ports", NULL};
    auto_worker w = WORKER_INIT;
    struct record r;
    struct pd_err why;
    int got = 0;

    if (lib_usable(s->lib, e) < 0)
        return -1;
    if (worker_run_begin(&w, s->session, -1, NULL, 0, words, &why) < 0)
        return lib_fail(e, &why);

    for (unsigned i = 0; i < PORTS_MAX && (got = worker_next(&w, &r, &why)) > 0; i++) {
        if (r.kind != RECORD_PORT)
            return lib_refuse(e, PD_BAD_GATEWAY, "the sandbox answered something else than ports");
        if (each(arg, r.port.port, r.port.address, (int)r.port.pid, r.port.command))
            break;
    }
    return got < 0 ? lib_fail(e, &why) : 0;
}

/* A connection: the socket that the caller has the other end of, and the worker's two pipes. */
struct visit {
    struct paddock *lib;
    struct worker_run run;
    int sock;
};

/* Moves what there is, until one of both would wait. 0 at the end of `from`, or when `to` takes no
 * more. */
static int move_bytes(int from, int to, int to_is_socket)
{
    char piece[32u << 10];

    ssize_t n = read(from, piece, sizeof piece);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;

    for (ssize_t at = 0; at < n;) {
        ssize_t done = to_is_socket ? send(to, piece + at, (size_t)(n - at), MSG_NOSIGNAL)
                                    : write(to, piece + at, (size_t)(n - at));
        if (done > 0) {
            at += done;
            continue;
        }

        struct pollfd room = {.fd = to, .events = POLLOUT};
        if (done < 0 && errno == EAGAIN && poll(&room, 1, -1) > 0 && !(room.revents & POLLERR))
            continue;
        if (done < 0 && errno == EINTR)
            continue;
        return 0;
    }
    return n > 0;
}

/* One direction has a thread of its own, so that neither keeps the other waiting. */
static void *to_sandbox(void *arg)
{
    struct visit *v = arg;
    while (move_bytes(v->sock, v->run.call.in, 0)) {
        struct pollfd p = {.fd = v->sock, .events = POLLIN};
        if (poll(&p, 1, -1) < 0 && errno != EINTR)
            break;
    }
    fd_done(&v->run.call.in); /* the end is told */
    return NULL;
}

static void *visit_main(void *arg)
{
    struct visit *v = arg;
    pthread_t other;

    int two = pthread_create(&other, NULL, to_sandbox, v) == 0;
    while (two && move_bytes(v->run.call.out, v->sock, 1)) {
        struct pollfd p = {.fd = v->run.call.out, .events = POLLIN};
        if (poll(&p, 1, -1) < 0 && errno != EINTR)
            break;
    }

    (void)shutdown(v->sock, SHUT_WR);
    if (two)
        pthread_join(other, NULL);
    fd_done(&v->sock);

    v->run.ended = 1; /* it ends by itself when its pipes are closed */
    worker_done(&v->run);
    lib_unref(v->lib);
    free(v);
    return NULL;
}

/* With every signal blocked: SIGPIPE of a pipe whose reader is gone, too. */
static int start_visit(struct visit *v)
{
    sigset_t every, old;
    pthread_t thread;

    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &old);
    int r = pthread_create(&thread, NULL, visit_main, v);
    pthread_sigmask(SIG_SETMASK, &old, NULL);

    if (r == 0)
        pthread_detach(thread);
    return r;
}

int paddock_dial(struct paddock_sandbox *s, unsigned port, struct paddock_error *e)
{
    char text[16];
    const char *const words[] = {"dial", text, NULL};
    struct record r;
    struct pd_err why;
    int pair[2];

    if (lib_usable(s->lib, e) < 0)
        return -1;
    if (!port || port > 65535)
        return lib_refuse(e, PD_INVALID, "port %u: 1 to 65535", port);

    struct visit *v = malloc(sizeof *v);
    if (!v)
        return lib_refuse(e, PD_CAPACITY, "no memory for a connection");

    *v = (struct visit){.lib = lib_ref(s->lib), .run = WORKER_INIT, .sock = -1};
    v->run.quiet_ns = DIAL_PATIENCE;
    snprintf(text, sizeof text, "%u", port);

    int bad = worker_run_begin(&v->run, s->session, -1, NULL, WORKER_INPUT, words, &why) < 0 ||
              worker_expect(&v->run, RECORD_PORT, &r, &why) < 0;

    auto_fd ours = -1;
    if (!bad && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        bad = pd_fail_sys(&why, "make a socket");
    else if (!bad) {
        v->sock = pair[0];
        ours = pair[1];
        if (start_visit(v) == 0)
            return fd_take(&ours);
        bad = pd_fail(&why, PD_CAPACITY, "no thread for a connection");
    }

    worker_done(&v->run);
    fd_done(&v->sock);
    lib_unref(v->lib);
    free(v);
    return lib_fail(e, &why);
}
