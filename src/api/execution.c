/* How an execution is answered: this thread follows it (core/context.h), which also sees to its
 * turn and its time. A stream gets every piece of news as a line of its own, and its head at once,
 * also while the execution waits for others. One answer has the head and the tail of long output,
 * and results up to a bound: whoever wants all of it asks for the stream. */
#include "api/execution.h"

#include "base/banned.h"
#include "base/character.h"
#include "base/json.h"
#include "telemetry/metrics.h"

#include <poll.h>

#define GATHERED   (64u << 10) /* of lines, before they are sent */
#define LINE_MAX   (EVENT_MAX + GATHERED + (256u << 10))
#define ANSWER_MAX (16u << 20) /* of results in one answer */

static void count_end(const struct call *c, const struct execution_follow *f)
{
    if (!f->owned || !f->ended)
        return;
    metrics_count(c->api->metrics, METRIC_EXECUTIONS);
    if (f->restarted)
        metrics_count(c->api->metrics, METRIC_EXECUTIONS_LOST);
}

/* ---- the stream ---- */

static void put_line(const struct execution_follow *f, enum execution_news news,
                     const struct execution_answer *a, struct buf *out)
{
    const char *type = execution_line_type(f, news);
    if (!type)
        return;

    if (a->shape == SHAPE_LINES) {
        execution_line(f, news, a->form, out);
        buf_putc(out, '\n');
        return;
    }
    if (news == NEWS_QUIET) {
        buf_puts(out, ": heartbeat\n\n");
        return;
    }
    const uint64_t *at = f->reader.offset;
    buf_printf(out, "id: %llu.%llu.%llu\nevent: %s\ndata: ", (unsigned long long)at[STREAM_OUT],
               (unsigned long long)at[STREAM_ERR], (unsigned long long)at[STREAM_EVENTS], type);
    execution_line(f, news, a->form, out);
    buf_puts(out, "\n\n");
}

static int send_lines(struct call *c, struct buf *out, struct pd_err *e)
{
    if (out->overflow)
        return pd_fail(e, PD_CAPACITY, "no memory for an answer");
    int r = out->len ? reply_write(c->r, out->data, out->len, e) : 0;
    if (out->cap > 4 * GATHERED)
        buf_done(out);
    else
        buf_clear(out);
    return r;
}

/* Until its end: 0; 1 when the client has left. */
static int send_all(struct call *c, struct execution_follow *f, const struct execution_answer *a,
                    struct pd_err *e)
{
    auto_buf out = BUF_INIT(LINE_MAX);
    deadline quiet = deadline_in(a->keepalive_ns);
    int client = conn_fd(c->r->conn);
    enum execution_news news;

    do {
        /* What is there already goes out together. */
        if (execution_next(f, client, POLLRDHUP, 0, &news, e) < 0)
            return -1;
        if (news == NEWS_QUIET && !out.len &&
            execution_next(f, client, POLLRDHUP, quiet, &news, e) < 0)
            return -1;
        else if (news == NEWS_QUIET && out.len) {
            if (send_lines(c, &out, e) < 0)
                return 1;
            quiet = deadline_in(a->keepalive_ns);
            continue;
        }

        if (news == NEWS_LEFT)
            return 1;
        if (f->ended && !strcmp(f->reason, "sandbox"))
            return pd_fail(e, PD_SESSION_LOST, "the sandbox has ended");
        put_line(f, news, a, &out);
        if ((out.len >= GATHERED || news == NEWS_END) && send_lines(c, &out, e) < 0)
            return 1;
    } while (news != NEWS_END);
    return 0;
}

static unsigned flags_of(const struct execution_answer *a)
{
    return a->owned ? EXECUTION_OWNED : 0;
}

int execution_stream(struct call *c, const struct execution_answer *a, struct pd_err *e)
{
    struct execution_follow f;
    enum execution_news news = NEWS_QUIET;
    if (execution_follow(&f, a->execution, a->context, flags_of(a), a->offset, e) < 0)
        return -1;

    /* Where nobody is before it, it starts before the head goes out: what cannot start is an error.
     */
    int r = a->owned ? execution_next(&f, -1, 0, 0, &news, e) : 0;
    if (r == 0) {
        reply_header(c->r, "Cache-Control", "no-store");
        r = reply_begin(c->r, 200,
                        a->shape == SHAPE_EVENTS ? "text/event-stream" : "application/x-ndjson",
                        REPLY_CHUNKED, e);
        if (r == 0)
            r = reply_flush(c->r, e);
        if (r == 0)
            r = send_all(c, &f, a, e);
        if (r == 0)
            r = reply_end(c->r, e) < 0;
        if (r > 0)
            reply_abort(c->r);
    }

    count_end(c, &f);
    execution_follow_end(&f, a->keeps || server_is_stopping(c->r->server));
    return r < 0 ? -1 : 0;
}

/* ---- one answer ---- */

/* The head and the tail of an output. */
struct output {
    struct buf head, tail;
    uint64_t max, size;
};

static void output_add(struct output *o, const void *data, size_t len)
{
    const char *at = data;
    o->size += len;

    size_t room = o->max / 2 > o->head.len ? o->max / 2 - o->head.len : 0;
    size_t first = len < room ? len : room;
    if (o->tail.len)
        first = 0;
    buf_put(&o->head, at, first);
    at += first;
    len -= first;
    if (!len)
        return;

    /* Twice as much as is wanted, so that it is moved rarely. */
    size_t keep = o->max - o->max / 2;
    if (len > keep) {
        at += len - keep;
        len = keep;
    }
    if (o->tail.len + len > 2 * keep) {
        size_t drop = o->tail.len > keep ? o->tail.len - keep : 0;
        memmove(o->tail.data, o->tail.data + drop, o->tail.len - drop);
        o->tail.len -= drop;
    }
    buf_put(&o->tail, at, len);
}

/* True when something is left out. */
static bool output_put(struct json *j, const char *key, struct output *o)
{
    size_t keep = o->max - o->max / 2, drop = o->tail.len > keep ? o->tail.len - keep : 0;
    uint64_t missing = o->size - o->head.len - (o->tail.len - drop);
    char line[100];

    json_key(j, key);
    json_str_begin(j);
    if (!missing) {
        /* As one text: it may be cut within a character. */
        buf_put(&o->head, o->tail.data, o->tail.len);
        json_str_more(j, o->head.data, o->head.len);
    } else {
        json_str_more(j, o->head.data, character_whole(o->head.data, o->head.len));
        int n = snprintf(line, sizeof line, "\n[... %llu bytes are left out ...]\n",
                         (unsigned long long)missing);
        json_str_more(j, line, (size_t)n);
        const uint8_t *tail = o->tail.data + drop;
        size_t len = o->tail.len - drop, rest = character_rest(tail, len);
        json_str_more(j, tail + rest, len - rest);
    }
    json_str_end(j);
    return missing;
}

struct whole {
    struct buf results, error;
    struct output out[STREAM_COUNT];
    uint64_t count;
    bool cut;
};

/* The text of a string in an event, without its escapes, would have to be decoded: what a driver
 * says as an event is kept as JSON. Only Java's does. */
static void add_event_text(struct whole *w, const struct context_event *v, struct buf *scratch)
{
    unsigned stream = v->type == EVENT_STDERR ? STREAM_ERR : STREAM_OUT;
    buf_clear(scratch);
    if (json_piece_decode(&v->text, scratch) == 0)
        output_add(&w->out[stream], scratch->data, scratch->len);
}

static void take_news(struct whole *w, const struct execution_follow *f, enum execution_news news,
                      struct buf *scratch)
{
    const struct context_event *v = &f->reader.event;
    if (news == NEWS_TEXT) {
        output_add(&w->out[f->stream], f->reader.text, f->len);
        return;
    }

    bool is_result = news == NEWS_EVENT && v->type == EVENT_RESULT;
    bool is_error = news == NEWS_DIED || (news == NEWS_EVENT && v->type == EVENT_ERROR);
    if (news == NEWS_EVENT && v->type == EVENT_START)
        w->count = v->count;
    else if (news == NEWS_EVENT && (v->type == EVENT_STDOUT || v->type == EVENT_STDERR))
        add_event_text(w, v, scratch);
    if (!is_result && !is_error)
        return;
    if (is_result && w->results.len + v->data.len > ANSWER_MAX) {
        w->cut = true;
        return;
    }

    struct json j = JSON_INIT(is_result ? &w->results : &w->error);
    j.ascii = true;
    j.need_comma = is_result && w->results.len;
    json_open(&j, '{');
    if (is_result)
        result_fields(&j, v);
    else if (news == NEWS_DIED)
        died_fields(&j, f);
    else
        error_fields(&j, v);
    json_close(&j, '}');
}

/* `state`: of one that has not ended. */
static void put_whole(struct json *j, struct whole *w, const struct execution_follow *f,
                      const char *state)
{
    json_open(j, '{');
    json_member_cstr(j, "id", execution_id(f->execution));
    json_member_uint(j, "execution_count", w->count);
    json_key(j, "results");
    json_open(j, '[');
    buf_put(j->out, w->results.data, w->results.len);
    json_close(j, ']');
    bool cut = output_put(j, "stdout", &w->out[STREAM_OUT]);
    cut |= output_put(j, "stderr", &w->out[STREAM_ERR]);
    json_key(j, "error");
    if (w->error.len) {
        buf_put(j->out, w->error.data, w->error.len);
        j->need_comma = 1;
    } else {
        json_none(j);
    }
    json_member_cstr(j, "state", f->ended ? (f->restarted ? "restarted" : "kept") : state);
    json_member_cstr(j, "reason", f->reason[0] ? f->reason : NULL);
    json_member_bool(j, "truncated", f->truncated || w->cut || cut);
    json_close(j, '}');
}

static void whole_init(struct whole *w, uint64_t output_max)
{
    *w = (struct whole){.results = BUF_INIT(ANSWER_MAX + (1u << 20)), .error = BUF_INIT(EVENT_MAX)};
    for (unsigned i = 0; i < STREAM_COUNT; i++)
        w->out[i] = (struct output){.head = BUF_INIT(4 * output_max + 16),
                                    .tail = BUF_INIT(2 * output_max + 16),
                                    .max = output_max};
}

static void whole_done(struct whole *w)
{
    buf_done(&w->results);
    buf_done(&w->error);
    for (unsigned i = 0; i < STREAM_COUNT; i++) {
        buf_done(&w->out[i].head);
        buf_done(&w->out[i].tail);
    }
}

int execution_whole(struct call *c, const struct execution_answer *a, bool waits, struct pd_err *e)
{
    struct execution_follow f;
    enum execution_news news = NEWS_BEGUN;
    if (execution_follow(&f, a->execution, a->context, flags_of(a), NULL, e) < 0)
        return -1;

    struct whole w;
    auto_buf scratch = BUF_INIT(EVENT_MAX);
    int r = 0, client = waits ? conn_fd(c->r->conn) : -1;
    whole_init(&w, a->output_max);
    while (r == 0 && news != NEWS_END && news != NEWS_LEFT && news != NEWS_QUIET) {
        r = execution_next(&f, client, POLLRDHUP, waits ? DEADLINE_NONE : 0, &news, e);
        if (r == 0)
            take_news(&w, &f, news, &scratch);
    }

    if (r == 0 && news == NEWS_LEFT) {
        reply_abort(c->r);
    } else if (r == 0) {
        auto_buf out = BUF_INIT(2 * ANSWER_MAX + 12 * a->output_max + (2u << 20));
        struct json j = JSON_INIT(&out);
        put_whole(&j, &w, &f, w.count ? "running" : "waiting");
        r = call_json(c, 200, &out);
    }
    whole_done(&w);
    count_end(c, &f);
    execution_follow_end(&f, a->keeps || server_is_stopping(c->r->server));
    return r;
}
