/* Workers as a request uses them. A worker_run of core is bound to the request's session and to its
 * connection, so a client that leaves ends the work. The request's body becomes the worker's input.
 * The second half is what requests about files share: the path and the user in the query, and
 * entries as JSON. */
#include "api/worker_request.h"

#include "base/banned.h"
#include "base/fd.h"
#include "base/json.h"

#include <errno.h>
#include <poll.h>

#define DISCARD_NS       (10 * NS_PER_S)
#define DISCARD_BYTES    (UINT64_C(1) << 30)
#define DISCARD_QUIET_MS 300

int worker_begin(struct worker_run *w, struct call *c, const char *user, unsigned flags,
                 const char *const *words, struct pd_err *e)
{
    w->owner = c;
    if (c->observes)
        flags |= WORKER_LOOKS;
    return worker_run_begin(w, c->session, conn_fd(c->r->conn), user, flags, words, e);
}

/* Reads what the client still sends, as long as it does: many clients look at the answer only when
 * they have sent everything, and would see no more than a connection that breaks. */
static void discard_body(struct request *r)
{
    char piece[16u << 10];
    uint64_t total = 0;

    deadline d = deadline_in(DISCARD_NS);
    while (total < DISCARD_BYTES && !deadline_passed(d)) {
        struct pollfd p = {.fd = conn_fd(r->conn), .events = POLLIN};
        if (!request_raw_pending(r) && poll(&p, 1, DISCARD_QUIET_MS) <= 0)
            return; /* it waits for the answer */

        ssize_t n = request_read(r, piece, sizeof piece, NULL);
        if (n <= 0)
            return;
        total += (uint64_t)n;
    }
}

int worker_feed(struct worker_run *w, struct pd_err *e)
{
    struct call *c = w->owner;
    struct pd_err why;
    struct record r;

    if (request_read_into(c->r, w->call.in, INT64_MAX, NULL, &why) == 0) {
        fd_done(&w->call.in);
        return 0;
    }

    struct pollfd said = {.fd = w->call.out, .events = POLLIN};
    if (why.sys == EPIPE || poll(&said, 1, 0) > 0) {
        /* The worker has ended and has said why; a client that stopped sending comes second. */
        if (worker_first(w, &r, e) == 0)
            pd_fail(e, PD_PROTOCOL, "a worker was content before it had everything");
        discard_body(c->r);
        return -1;
    }

    if (e)
        *e = why;
    return -1;
}

/* ---- what requests about files have in common ---- */

void file_note(struct call *c, const char *what, const char *path)
{
    snprintf(c->summary, sizeof c->summary, "%s%s%.250s", what, *what ? " " : "", path);
}

int file_query_path(struct call *c, const char *fallback, char out[FILE_PATH_SIZE],
                    struct pd_err *e)
{
    char path[FILE_PATH_MAX + 1];

    int there = call_query(c, "path", path, sizeof path, e);
    if (there < 0)
        return -1;

    if (!there && !fallback) {
        snprintf(c->field, sizeof c->field, "path");
        return pd_fail(e, PD_INVALID, "path is missing: ask for ?path=FILE");
    }
    if (there && !*path) {
        snprintf(c->field, sizeof c->field, "path");
        return pd_fail(e, PD_INVALID, "path is empty: name a file, such as /workspace/a.txt");
    }

    file_path(out, there ? path : fallback);
    file_note(c, "", out);
    return 0;
}

int file_query_user(struct call *c, char out[FILE_USER_SIZE], struct pd_err *e)
{
    char user[64] = "user";
    if (call_query(c, "user", user, sizeof user, e) < 0)
        return -1;

    if (strcmp(user, "user") != 0 && strcmp(user, "root") != 0) {
        snprintf(c->field, sizeof c->field, "user");
        return pd_fail(e, PD_INVALID, "user '%.40s': there are 'user' and 'root'", user);
    }

    snprintf(out, FILE_USER_SIZE, "%.6s", user);
    return 0;
}

static void member_time(struct json *j, const char *key, int64_t ns)
{
    if (ns >= (int64_t)NS_PER_MS) {
        json_time(j, key, (uint64_t)ns / NS_PER_MS);
        return;
    }
    /* Archives are full of files from the very beginning of time. */
    json_key(j, key);
    json_cstr(j, "1970-01-01T00:00:00.000Z");
}

void file_entry_json(struct json *j, const struct record_entry *r)
{
    char mode[8];
    const char *slash = strrchr(r->path, '/');
    const char *name = slash && slash[1] ? slash + 1 : r->path;

    json_open(j, '{');
    json_key(j, "name");
    json_cstr(j, name);
    json_bytes(j, "path", r->path, strlen(r->path));
    json_key(j, "type");
    json_cstr(j, entry_type_name(r->type));
    json_key(j, "size");
    json_uint(j, r->size);
    json_key(j, "mode");
    snprintf(mode, sizeof mode, "%04o", r->mode & 07777);
    json_cstr(j, mode);
    json_key(j, "uid");
    json_uint(j, r->uid);
    json_key(j, "gid");
    json_uint(j, r->gid);
    member_time(j, "modified_at", r->mtime_ns);

    if (r->type == ENTRY_SYMLINK) {
        json_bytes(j, "target", r->target, strlen(r->target));
    } else {
        json_key(j, "target");
        json_none(j);
    }
    json_close(j, '}');
}

int file_answer_entry(struct call *c, const char *user, int status, const char *const *words,
                      uint64_t long_ns, struct pd_err *e)
{
    auto_worker w = WORKER_INIT;
    struct record r;

    if (worker_begin(&w, c, user, 0, words, e) < 0)
        return -1;

    w.must_finish = !long_ns;
    if (long_ns)
        w.quiet_ns = long_ns;
    if (worker_expect(&w, RECORD_ENTRY, &r, e) < 0)
        return -1;
    w.ended = 1;

    auto_buf text = BUF_INIT(FILE_JSON_MAX);
    struct json j = JSON_INIT(&text);
    file_entry_json(&j, &r.entry);
    return call_json(c, status, &text);
}
