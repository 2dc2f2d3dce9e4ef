/* Changes of files, as a stream of events. The worker tells; here they are written down. What is
 * not read waits in the worker's pipe, then in the kernel's queue, which is bounded and tells when
 * it was too short: a slow reader costs nothing here. */
#include "api/handlers.h"
#include "api/worker_request.h"

#include "base/banned.h"
#include "base/json.h"

#define HEARTBEAT_NS (15 * NS_PER_S)
#define LOOK_NS      NS_PER_S /* whether the server is to stop: nothing wakes for that */
#define BATCH        (64u << 10)

static void event_text(struct buf *out, const struct record_event *r)
{
    struct json j = JSON_INIT(out);
    int moved = r->kind == EVENT_MOVED;
    const char *path = moved ? r->path2 : r->path;

    buf_puts(out, "event: ");
    buf_puts(out, event_kind_name(r->kind));
    buf_puts(out, "\ndata: ");

    json_open(&j, '{');
    json_bytes(&j, "path", path, strlen(path));
    if (moved)
        json_bytes(&j, "from", r->path, strlen(r->path));
    if (r->kind != EVENT_OVERFLOW) {
        json_key(&j, "type");
        json_cstr(&j, r->is_dir ? "dir" : "file");
    }
    json_close(&j, '}');
    buf_puts(out, "\n\n");
}

static int send_text(struct call *c, struct buf *text, struct pd_err *e)
{
    int r = text->overflow ? pd_fail(e, PD_CAPACITY, "no memory for events")
                           : reply_write(c->r, text->data, text->len, e);
    buf_clear(text);
    return r;
}

/* Everything that is there, in one piece. 1, or 0 at the end. */
static int take_events(struct worker_run *w, struct buf *text, struct pd_err *e)
{
    do {
        struct record r;
        int got = worker_next(w, &r, e);
        if (got <= 0)
            return got;
        if (r.kind != RECORD_EVENT || r.event.kind == EVENT_MARK)
            return pd_fail(e, PD_PROTOCOL, "a worker tells what nobody asked for");
        event_text(text, &r.event);
    } while (worker_has_next(w) && text->len < BATCH);
    return 1;
}

/* Why there is nothing more to tell: the status of the answer is long gone. */
static void error_text(struct buf *out, const struct pd_err *e)
{
    struct json j = JSON_INIT(out);

    buf_puts(out, "event: error\ndata: ");
    json_open(&j, '{');
    json_key(&j, "code");
    json_cstr(&j, pd_code_name(e->code));
    json_key(&j, "message");
    json_cstr(&j, e->code == PD_PROTOCOL || e->code == PD_INTERNAL ? "the watch failed" : e->msg);
    json_close(&j, '}');
    buf_puts(out, "\n\n");
}

static int follow(struct worker_run *w, struct call *c, struct pd_err *e)
{
    auto_buf text = BUF_INIT(BATCH + 8 * RECORD_MAX);
    int going = 1;
    deadline beat = deadline_in(HEARTBEAT_NS);

    w->whole = DEADLINE_NONE;
    while (going > 0 && !server_is_stopping(c->r->server)) {
        struct pd_err why;
        int r = worker_has_next(w) ? 1 : worker_wait(w, deadline_in(LOOK_NS), e);
        if (r < 0)
            return -1;

        if (r == 0 && deadline_passed(beat))
            buf_puts(&text, ": heartbeat\n\n");
        else if (r > 0 && (going = take_events(w, &text, &why)) < 0)
            error_text(&text, &why);

        if (!text.len)
            continue;
        if (send_text(c, &text, e) < 0)
            return -1;
        beat = deadline_in(HEARTBEAT_NS);
    }
    return reply_end(c->r, e);
}

int files_watch(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"path", "user", "recursive", NULL};
    char path[FILE_PATH_SIZE], user[FILE_USER_SIZE];
    bool recursive = false;
    struct record r;

    if (call_query_check(c, allowed, e) < 0 || file_query_path(c, ".", path, e) < 0 ||
        file_query_user(c, user, e) < 0 || call_query_bool(c, "recursive", &recursive, e) < 0)
        return -1;

    const char *const words[] = {"watch", path, recursive ? "1" : "0", NULL};
    auto_worker w = WORKER_INIT;
    if (worker_begin(&w, c, user, 0, words, e) < 0 || worker_expect(&w, RECORD_ENTRY, &r, e) < 0)
        return -1;

    reply_header(c->r, "Cache-Control", "no-store");
    if (reply_begin(c->r, 200, "text/event-stream", REPLY_CHUNKED, e) < 0)
        return -1;
    if (c->r->head.method == HTTP_HEAD)
        return reply_end(c->r, e);

    auto_buf text = BUF_INIT(4 * RECORD_MAX);
    struct json j = JSON_INIT(&text);

    buf_puts(&text, "event: ready\ndata: ");
    json_open(&j, '{');
    json_bytes(&j, "path", r.entry.path, strlen(r.entry.path));
    json_key(&j, "type");
    json_cstr(&j, entry_type_name(r.entry.type));
    json_close(&j, '}');
    buf_puts(&text, "\n\n");
    return send_text(c, &text, e) < 0 ? -1 : follow(&w, c, e);
}
