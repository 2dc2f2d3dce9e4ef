/* Changes of files for E2B's clients: as a stream, or from a watcher that is asked from time to
 * time. What a slow client does not read waits in the sandbox, and is bounded there. */
#include "api/connect.h"
#include "api/e2b.h"
#include "api/e2b_entry.h"
#include "api/e2b_handlers.h"
#include "api/e2b_watchers.h"

#include "base/banned.h"
#include "base/fd.h"
#include "base/json.h"

#define LOOK_NS      NS_PER_S        /* whether the server is to stop: nothing wakes for that */
#define BATCH        (64u << 10)     /* of a stream, in one write */
#define ENTRY_MAX    (512u << 10)    /* as text */
#define EVENT_MAX    (1u << 20)      /* as text, with the entry */
#define EVENTS_ASKED (8u << 20)      /* enough for one answer */
#define EVENTS_MAX   (24u << 20)     /* and what the last part may add to it */
#define ASK_NS       (20 * NS_PER_S) /* without a sign of life */
#define ROUNDS_MAX   64u
#define OWED_MAX     8u

struct watch_request {
    char path[FILE_PATH_SIZE], user[FILE_USER_SIZE];
    bool recursive, detail;
};

static int watch_request_read(struct call *c, struct watch_request *q, struct pd_err *e)
{
    auto_buf text = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    const char *path = "";
    bool ignored;

    if (e2b_user(c, q->user, e) < 0 || connect_read(c, &text, &f, e) < 0)
        return -1;

    fields_str(&f, "path", FIELD_OPTIONAL, 0, FILE_PATH_MAX, &path);
    fields_bool(&f, "recursive", FIELD_OPTIONAL, &q->recursive);
    fields_bool(&f, "includeEntry", FIELD_OPTIONAL, &q->detail);
    /* There are none: inotify tells everything. */
    fields_bool(&f, "allowNetworkMounts", FIELD_OPTIONAL, &ignored);
    return fields_finish(&f, e) < 0 ? -1 : e2b_path(q->user, path, q->path, e);
}

/* Starts the worker; *ret_root: what it calls the directory, to be freed. */
static int watch_begin(struct call *c, const struct watch_request *q, int polled,
                       struct worker_run *w, char **ret_root, struct pd_err *e)
{
    char how[4];
    struct record r;

    snprintf(how, sizeof how, "x%s%s", q->detail ? "d" : "", polled ? "p" : "");
    const char *const words[] = {"watch", q->path, q->recursive ? "1" : "0", how, NULL};
    if (worker_begin(w, c, q->user, WORKER_REACH | (polled ? WORKER_INPUT : 0), words, e) < 0 ||
        worker_expect(w, RECORD_ENTRY, &r, e) < 0)
        return -1;

    char *root = strdup(r.entry.path);
    if (!root)
        return pd_fail(e, PD_CAPACITY, "no memory for a watcher");
    *ret_root = root;
    return 0;
}

/* ---- events ---- */

static const char *relative(const char *root, const char *path)
{
    size_t n = strcmp(root, "/") != 0 ? strlen(root) : 0;
    if (!strcmp(path, root))
        return ".";
    return !strncmp(path, root, n) && path[n] == '/' && path[n + 1] ? path + n + 1 : NULL;
}

/* The entry of the file that the next event is about; a worker tells it before the event. */
struct told_entry {
    struct buf text;
    char *path;
};
#define TOLD_ENTRY_INIT ((struct told_entry){.text = BUF_INIT(ENTRY_MAX)})

static void told_entry_done(struct told_entry *t)
{
    buf_done(&t->text);
    free(t->path);
    t->path = NULL;
}
#define auto_told_entry __attribute__((cleanup(told_entry_done))) struct told_entry

static void told_entry_set(struct told_entry *t, const struct record_detail *d)
{
    struct json j = JSON_INIT(&t->text);

    free(t->path);
    t->path = strdup(d->entry.path);
    buf_clear(&t->text);
    t->text.overflow = 0;
    e2b_entry_json(&j, d);
}

/* {"name":..,"type":..,"entry":..} */
static int event_json(struct json *j, const char *root, const struct record_event *r,
                      struct told_entry *t, struct pd_err *e)
{
    static const char *const types[EVENT_KIND_COUNT] = {
        [EVENT_CREATED] = "EVENT_TYPE_CREATE",   [EVENT_MODIFIED] = "EVENT_TYPE_WRITE",
        [EVENT_REMOVED] = "EVENT_TYPE_REMOVE",   [EVENT_MOVED] = "EVENT_TYPE_RENAME",
        [EVENT_ATTRIBUTES] = "EVENT_TYPE_CHMOD",
    };

    const char *name = relative(root, r->path);
    if (!types[r->kind] || !name)
        return pd_fail(e, PD_PROTOCOL, "a worker tells what nobody asked for");

    json_open(j, '{');
    json_member_cstr(j, "name", name);
    json_member_cstr(j, "type", types[r->kind]);
    if (t->path && !t->text.overflow && !strcmp(t->path, r->path)) {
        json_key(j, "entry");
        buf_put(j->out, t->text.data, t->text.len);
        j->need_comma = 1;
    }
    json_close(j, '}');

    free(t->path);
    t->path = NULL;
    return 0;
}

static int fail_lost(struct pd_err *e)
{
    return pd_fail(e, PD_CAPACITY,
                   "more changed than could be kept, and some of it was not told: list the "
                   "directory to see how it is now");
}

/* ---- a stream ---- */

static int put_message(struct buf *out, const char *json)
{
    size_t at = connect_put_begin(out, 0);
    buf_puts(out, json);
    connect_put_end(out, at);
    return out->overflow ? -1 : 0;
}

/* Everything that is there, in one piece. 1, or 0 at the end. */
static int take_events(struct worker_run *w, const char *root, struct told_entry *t,
                       struct buf *out, struct pd_err *e)
{
    do {
        struct record r;
        struct json j = JSON_INIT(out);
        int got = worker_next(w, &r, e);
        if (got <= 0)
            return got;
        if (r.kind == RECORD_DETAIL) {
            told_entry_set(t, &r.detail);
            continue;
        }

        if (r.kind != RECORD_EVENT)
            return pd_fail(e, PD_PROTOCOL, "a worker tells what nobody asked for");
        if (r.event.kind == EVENT_OVERFLOW)
            return fail_lost(e);

        size_t at = connect_put_begin(out, 0);
        json_open(&j, '{');
        json_key(&j, "filesystem");
        if (event_json(&j, root, &r.event, t, e) < 0)
            return -1;
        json_close(&j, '}');
        connect_put_end(out, at);

        if (out->overflow)
            return pd_fail(e, PD_CAPACITY, "no memory for events");
    } while (worker_has_next(w) && out->len < BATCH);
    return 1;
}

static int send_all(struct call *c, struct buf *out, struct pd_err *e)
{
    int r = out->len ? connect_write(c, out, 0, e) : 0;
    buf_clear(out);
    return r;
}

static int follow(struct call *c, struct worker_run *w, const char *root, uint64_t timeout_ns,
                  struct pd_err *e)
{
    auto_buf out = BUF_INIT(BATCH + 2 * EVENT_MAX);
    auto_told_entry t = TOLD_ENTRY_INIT;
    uint64_t quiet_ns = connect_keepalive_ns(c);
    deadline end = timeout_ns ? deadline_in(timeout_ns) : DEADLINE_NONE;
    deadline beat = deadline_in(quiet_ns);

    w->whole = DEADLINE_NONE;

    for (;;) {
        deadline look = deadline_in(LOOK_NS);
        struct pd_err why;
        int going = 1;
        if (look > beat)
            look = beat;

        int r = worker_has_next(w) ? 1 : worker_wait(w, look < end ? look : end, e);
        if (r < 0)
            return -1;

        if (server_is_stopping(c->r->server))
            return pd_fail(e, PD_SHUTTING_DOWN, "the server is shutting down: watch again");
        if (deadline_passed(end))
            return pd_fail(e, PD_TIMEOUT, "the time that was set for this watch is over");

        if (r > 0)
            going = take_events(w, root, &t, &out, &why);
        else if (deadline_passed(beat) && put_message(&out, "{\"keepalive\":{}}") < 0)
            return pd_fail(e, PD_CAPACITY, "no memory for events");

        if (out.len)
            beat = deadline_in(quiet_ns);
        if (!out.overflow && send_all(c, &out, e) < 0)
            return -1;

        if (going < 0) {
            *e = why;
            return -1;
        }
        if (!going)
            return 0;
    }
}

int rpc_fs_watch_dir(struct call *c, struct pd_err *e)
{
    struct watch_request q = {0};
    uint64_t timeout_ns = 0;
    char *root = NULL;
    auto_worker w = WORKER_INIT;
    auto_buf first = BUF_INIT(256);

    if (watch_request_read(c, &q, e) < 0 || connect_timeout(c, &timeout_ns, e) < 0 ||
        watch_begin(c, &q, 0, &w, &root, e) < 0)
        return -1;

    int r = connect_begin(c, e) < 0 || put_message(&first, "{\"start\":{}}") < 0 ||
                    send_all(c, &first, e) < 0
                ? -1
                : follow(c, &w, root, timeout_ns, e);

    free(root);
    return r < 0 ? -1 : connect_end(c, NULL);
}

/* ---- watchers ---- */

int rpc_fs_create_watcher(struct call *c, struct pd_err *e)
{
    struct watch_request q = {0};
    auto_buf out = BUF_INIT(256);
    struct json j = JSON_INIT(&out);

    if (watch_request_read(c, &q, e) < 0)
        return -1;

    struct watcher *w = watchers_add(c->api->watchers, c->who.tenant, c->sandbox, e);
    if (!w)
        return -1;

    int r = watch_begin(c, &q, 1, &w->run, &w->root, e);
    if (w->run.begun) /* a watcher keeps no sandbox busy */
        session_attend_end(w->run.call.session);

    if (r < 0) {
        watchers_remove(c->api->watchers, w);
    } else {
        json_open(&j, '{');
        json_member_cstr(&j, "watcherId", w->id);
        json_close(&j, '}');
    }

    watchers_release(c->api->watchers, w);
    return r < 0 ? -1 : connect_answer(c, &out);
}

/* Asks once and takes what comes. *ret_more: there is more. */
static int ask(struct watcher *w, struct json *j, struct told_entry *t, int *ret_more,
               struct pd_err *e)
{
    struct record r;

    if (w->owed >= OWED_MAX || fd_write_all(w->run.call.in, "D", 1) < 0)
        return pd_fail(e, PD_LOST, "the watcher has ended: create another");

    w->owed++;
    while (w->owed) {
        int got = worker_next(&w->run, &r, e);
        if (got < 0)
            return -1;
        if (got == 0 || (r.kind != RECORD_EVENT && r.kind != RECORD_DETAIL))
            return pd_fail(e, PD_PROTOCOL, "a worker tells what nobody asked for");

        if (r.kind == RECORD_DETAIL) {
            told_entry_set(t, &r.detail);
        } else if (r.event.kind == EVENT_MARK) {
            w->owed--;
            *ret_more = (int)r.event.is_dir;
        } else if (r.event.kind == EVENT_OVERFLOW) {
            w->lost = 1;
        } else if (event_json(j, w->root, &r.event, t, e) < 0) {
            return -1;
        }

        if (j->out->overflow)
            return pd_fail(e, PD_PROTOCOL, "a worker tells more than it may");
    }
    return 0;
}

static int ask_all(struct watcher *w, struct buf *out, struct pd_err *e)
{
    static const char nothing[] = "{\"events\":[";
    auto_told_entry t = TOLD_ENTRY_INIT;
    struct json j = JSON_INIT(out);
    int more = 1;

    json_open(&j, '{');
    json_key(&j, "events");
    json_open(&j, '[');

    for (unsigned i = 0; i < ROUNDS_MAX && more && !w->lost && out->len < EVENTS_ASKED; i++)
        if (ask(w, &j, &t, &more, e) < 0)
            return -1;

    /* The events that were kept are told first; that others were lost, with the next question. */
    if (w->lost && out->len == sizeof nothing - 1) {
        w->lost = 0;
        return fail_lost(e);
    }

    json_close(&j, ']');
    json_close(&j, '}');
    return 0;
}

static int lock_watcher(struct watcher *w, struct pd_err *e)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(ASK_NS / NS_PER_S);

    if (pthread_mutex_timedlock(&w->lock, &until) == 0)
        return 0;
    return pd_fail(e, PD_TIMEOUT, "others ask this watcher at the same time: ask again");
}

static int read_watcher(struct call *c, struct watcher **ret, struct pd_err *e)
{
    auto_buf text = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    const char *id = "";

    if (connect_read(c, &text, &f, e) < 0)
        return -1;

    fields_str(&f, "watcherId", FIELD_OPTIONAL, 0, 256, &id);
    if (fields_finish(&f, e) < 0)
        return -1;

    *ret = watchers_find(c->api->watchers, c->sandbox, id, e);
    return *ret ? 0 : -1;
}

int rpc_fs_get_watcher_events(struct call *c, struct pd_err *e)
{
    struct watcher *w;
    auto_buf out = BUF_INIT(EVENTS_MAX);

    if (read_watcher(c, &w, e) < 0)
        return -1;

    int r = lock_watcher(w, e);
    if (r == 0) {
        w->run.must_finish = true; /* what it tells is told once */
        w->run.quiet_ns = ASK_NS;
        w->run.whole = deadline_in(2 * ASK_NS);
        r = ask_all(w, &out, e);
        pthread_mutex_unlock(&w->lock);
        /* One that was only late may still answer; of another nothing is to be expected. */
        if (r < 0 && e->code != PD_TIMEOUT && e->code != PD_PAUSED && e->code != PD_CAPACITY)
            watchers_remove(c->api->watchers, w);
    }

    watchers_release(c->api->watchers, w);
    return r < 0 ? -1 : connect_answer(c, &out);
}

int rpc_fs_remove_watcher(struct call *c, struct pd_err *e)
{
    struct watcher *w;

    if (read_watcher(c, &w, e) < 0)
        return -1;

    watchers_remove(c->api->watchers, w);
    watchers_release(c->api->watchers, w);
    return connect_answer(c, NULL);
}
