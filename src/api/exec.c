/* How exec works: the command is started, and this thread waits for its end, for its time, or for
 * its client to go away: at first it listens to the sandbox itself (core/listen.c), then by a
 * watch. Output is in spools; the answer is read from there. */
#include "api/command.h"
#include "api/handlers.h"
#include "api/sandbox.h"

#include "base/banned.h"
#include "base/character.h"
#include "base/json.h"
#include "config/config.h"
#include "core/follow.h"
#include "telemetry/metrics.h"

#include <poll.h>
#include <sys/wait.h>

#define STDIN_MAX     (1u << 20)
#define HELD          (256u << 10) /* of an answer, before it is sent in pieces */
#define PIECE         (16u << 10)
#define SPOOL_LEAST   (64u << 10)
#define STOP_PATIENCE (5 * NS_PER_S)

int start_request_read(struct call *c, struct fields *f, struct start_request *ret, int background,
                       struct pd_err *e)
{
    static const char *const users[] = {"user", "root", NULL};
    const struct config *config = c->config;
    struct process_request *r = &ret->request;
    unsigned user;
    const char *text;
    uint64_t n;

    *ret = (struct start_request){.argv = MSG_LIST_WRITER_INIT,
                                  .env = MSG_LIST_WRITER_INIT,
                                  .input = BUF_INIT(STDIN_MAX + 1),
                                  .output_max = config->output_max_bytes};
    r->timeout_ns =
        background ? 0 : session_exec_timeout(c->session, config->exec_timeout_ms * NS_PER_MS);
    r->spool_max = config->spool_max_bytes;

    if (fields_kind(f, "command") == FIELD_ARRAY)
        fields_refuse(f, "command", "is a line for bash; a list of words is argv");
    int line = fields_str(f, "command", FIELD_OPTIONAL, 1, 100000, &r->command);
    int words = fields_str_list(f, "argv", FIELD_OPTIONAL, 1, 4000, 100000, &ret->argv);
    if (line && words)
        fields_refuse(f, "argv", "either command or argv, not both");
    else if (!line && !words)
        fields_refuse(f, "command", "is missing: a line for bash, or argv with a list");

    fields_str(f, "cwd", FIELD_OPTIONAL, 1, SPEC_PATH_MAX - 1, &r->cwd);
    if (r->cwd && r->cwd[0] != '/')
        fields_refuse(f, "cwd", "'%.100s' must be an absolute path", r->cwd);

    fields_run_mode(f, "mode", &r->mode);
    r->placement = &c->placement;
    fields_env(f, "env", FIELD_OPTIONAL, &ret->env, NULL);
    if (fields_enum(f, "user", FIELD_OPTIONAL, users, &user))
        r->user = users[user];
    fields_seconds(f, "timeout_s", FIELD_OPTIONAL, 0, 86400 * NS_PER_S, &r->timeout_ns);

    /* Spools lie on the server's disk: less than its setting can be asked for, more cannot. */
    uint64_t most = config->spool_max_bytes > SPOOL_LEAST ? config->spool_max_bytes : SPOOL_LEAST;
    fields_u64(f, "spool_max_bytes", FIELD_OPTIONAL, SPOOL_LEAST, most, &r->spool_max);

    if (background) {
        fields_bool(f, "pty", FIELD_OPTIONAL, &r->pty);
        if (fields_u64(f, "rows", FIELD_OPTIONAL, 1, 1000, &n))
            r->rows = (uint16_t)n;
        if (fields_u64(f, "cols", FIELD_OPTIONAL, 1, 1000, &n))
            r->cols = (uint16_t)n;
        fields_bool(f, "stdin", FIELD_OPTIONAL, &r->keep_stdin);
        fields_bool(f, "back_pressure", FIELD_OPTIONAL, &r->back_pressure);
        r->background = 1;
    } else {
        int plain = fields_str(f, "stdin", FIELD_OPTIONAL, 0, STDIN_MAX, &text);
        if (plain)
            buf_puts(&ret->input, text);
        if (fields_base64(f, "stdin_base64", FIELD_OPTIONAL, STDIN_MAX, &ret->input) && plain)
            fields_refuse(f, "stdin_base64", "either stdin or stdin_base64, not both");
        fields_bool(f, "detached", FIELD_OPTIONAL, &ret->detached);
        fields_u64(f, "output_max_bytes", FIELD_OPTIONAL, 0, 16u << 20, &ret->output_max);
        r->background = ret->detached;
    }

    fields_u64(f, "file_size_bytes", FIELD_OPTIONAL, 1, 1ull << 50, &r->file_size);
    if (call_finish(c, f, e) < 0)
        return -1;

    r->argv = msg_list_of(&ret->argv);
    r->env = msg_list_of(&ret->env);
    r->input = ret->input.data;
    r->input_len = ret->input.len;
    return 0;
}

void start_request_done(struct start_request *r)
{
    msg_list_writer_done(&r->argv);
    msg_list_writer_done(&r->env);
    buf_done(&r->input);
}

/* ---- the result ---- */

void result_json(struct json *j, const struct process_info *i)
{
    json_key(j, "exit_code");
    if (i->running || i->signal || i->refused)
        json_none(j);
    else
        json_int(j, i->exit_code);
    json_member_cstr(j, "signal", i->signal ? signal_name(i->signal) : NULL);
    json_member_bool(j, "timed_out", i->timed_out);
    json_member_cstr(j, "stopped_by", process_stop_name(i->stopped_by));
    json_member_milli(j, "execution_time_ms", i->duration_us);
    json_member_milli(j, "cpu_time_ms", i->cpu_usec);
    json_member_uint(j, "max_rss_bytes", i->max_rss);
    json_member_cstr(j, "process_id", i->id);
    json_member_int(j, "pid", i->pid);
    json_member_uint(j, "stdout_bytes", i->size[STREAM_OUT]);
    json_member_uint(j, "stderr_bytes", i->size[STREAM_ERR]);
}

void placement_json(struct json *j, const struct placement *p)
{
    if (!p->mode)
        return;
    json_member_cstr(j, "mode", run_mode_name(p->mode));
    json_member_cstr(j, "provider", p->provider);
    json_member_cstr(j, "isolation", rung_name(p->rung));
    json_member_cstr(j, "reason", p->reason);
}

static void put_state(struct json *j, const struct process_info *i)
{
    json_member_cstr(j, "state", !i->shell ? NULL : i->state_updated ? "updated" : "kept");
}

/* An answer on its way. Long output is not gathered here, where a client that reads slowly would
 * make the server hold it: it goes out in pieces, and the rest of it stays in the spool. */
struct answer {
    struct call *c;
    struct process *p;
    const struct process_info *info;
    struct json json; /* into `text` */
    struct buf text;
    bool begun, failed;
};

/* Sends what there is, if that is enough for a piece. */
static void give(struct answer *a, size_t enough)
{
    struct pd_err e;

    if (a->text.len < enough || a->failed)
        return;

    if (!a->begun && reply_begin(a->c->r, 200, "application/json", REPLY_CHUNKED, &e) < 0)
        a->failed = true;
    a->begun = true;
    if (!a->failed && (a->text.overflow || reply_write(a->c->r, a->text.data, a->text.len, &e) < 0))
        a->failed = true;
    buf_clear(&a->text);
}

/* Appends [from, to) of a stream, or as much of it as is still there. */
static void append(struct answer *a, unsigned stream, uint64_t from, uint64_t to)
{
    uint8_t piece[PIECE];

    while (from < to && !a->failed) {
        uint64_t want = to - from < PIECE ? to - from : PIECE;
        struct pd_err e;
        ssize_t n = process_read(a->p, stream, from, piece, want, &e);
        if (n <= 0)
            return;

        /* A character that was cut in two would look like two bad ones. */
        size_t len =
            from + (uint64_t)n < to && n >= 4 ? character_whole(piece, (size_t)n) : (size_t)n;
        json_str_more(&a->json, piece, len);
        from += len;
        give(a, HELD);
    }
}

/* The whole of it if it fits; otherwise the head and the tail, with a line that says what is left
 * out. */
static int put_output(struct answer *a, unsigned stream, uint64_t max)
{
    const struct process_info *i = a->info;
    uint64_t size = i->size[stream], forgotten = i->first[stream];
    int cut = size > max || forgotten;

    json_key(&a->json, stream ? "stderr" : "stdout");
    json_str_begin(&a->json);

    if (!cut) {
        append(a, stream, 0, size);
    } else {
        /* Of what the spool has forgotten there is no head. */
        char line[256];
        uint64_t head = forgotten ? 0 : process_next_character(a->p, stream, max / 2, size);
        uint64_t tail = size > max / 2 ? size - max / 2 : 0;
        tail = process_next_character(a->p, stream, tail < forgotten ? forgotten : tail, size);

        append(a, stream, 0, head);
        int n = snprintf(line, sizeof line,
                         "\n[... %llu bytes are left out: GET "
                         ".../processes/%s/output?stream=%s&offset=%llu ...]\n",
                         (unsigned long long)(tail - head), i->id, stream ? "stderr" : "stdout",
                         (unsigned long long)(head > forgotten ? head : forgotten));
        json_str_more(&a->json, line, (size_t)n);
        append(a, stream, tail, size);
    }

    json_str_end(&a->json);
    return cut;
}

/* `refused`: the mark of what the sandbox had been refused before the command. */
static int answer_result(struct call *c, struct process *p, const struct process_info *i,
                         uint64_t output_max, uint64_t refused)
{
    struct answer a = {.c = c, .p = p, .info = i, .text = BUF_INIT(HELD + 6 * PIECE + (64u << 10))};
    struct pd_err e;

    a.json = JSON_INIT(&a.text);

    json_open(&a.json, '{');
    result_json(&a.json, i);
    put_state(&a.json, i);
    placement_json(&a.json, &c->placement);
    denied_json(&a.json, c->session, refused, NULL);

    int cut_out = put_output(&a, STREAM_OUT, output_max);
    int cut_err = put_output(&a, STREAM_ERR, output_max);
    json_member_bool(&a.json, "stdout_truncated", cut_out);
    json_member_bool(&a.json, "stderr_truncated", cut_err);
    json_close(&a.json, '}');

    int r = 0;
    if (!a.begun) {
        r = call_json(c, 200, &a.text);
    } else {
        give(&a, 1);
        if (a.failed || reply_end(c->r, &e) < 0)
            reply_abort(c->r);
    }

    buf_done(&a.text);
    return r;
}

/* ---- exec ---- */

/* Waits for the end; ends the command when its time is over or nobody waits for it any more. */
static int attend(struct call *c, struct process *p, uint64_t timeout_ns, int end_when_abandoned,
                  struct pd_err *e)
{
    struct follow f;
    int client = conn_fd(c->r->conn);
    deadline d = timeout_ns ? deadline_in(timeout_ns) : DEADLINE_NONE;

    if (follow_begin(&f, p, NULL, FOLLOW_LISTENS, e) < 0)
        return -1;
    int r = follow_await_end(&f, client, d, e);

    struct pd_err ignored;
    /* A server that stops closes connections as well; then the command goes on, and the next server
     * looks after it. */
    if (r == 1 && end_when_abandoned && !server_is_stopping(c->r->server)) {
        (void)process_stop(p, STOP_ABANDONED, &ignored);
        r = follow_await_end(&f, -1, deadline_in(STOP_PATIENCE), e);
    } else if (r < 0 && e->code == PD_TIMEOUT) {
        r = process_stop(p, STOP_TIMEOUT, e);
        if (r == 0)
            r = follow_await_end(&f, -1, deadline_in(STOP_PATIENCE), e);
        if (r < 0 && e->code == PD_TIMEOUT)
            process_explain_delay(p, e);
    }

    follow_end(&f);
    return r;
}

static int answer_started(struct call *c, struct process *p, int status)
{
    struct process_info i;
    auto_buf out = BUF_INIT(64u << 10);
    struct json j = JSON_INIT(&out);

    process_get(p, &i, NULL);
    json_open(&j, '{');
    json_member_cstr(&j, "process_id", i.id);
    json_member_int(&j, "pid", i.pid);
    placement_json(&j, &c->placement);
    json_close(&j, '}');
    return call_json(c, status, &out);
}

static void count_end(struct call *c, const struct process_info *i)
{
    metrics_exec_ended(c->api->metrics, i->refused ? METRICS_CAUSE_REFUSED : i->stopped_by,
                       i->duration_us);
    c->exit_code = i->signal ? 128 + i->signal : i->exit_code;
    c->stopped_by = process_stop_name(i->stopped_by);
}

static int run(struct call *c, struct start_request *q, int events, uint64_t offset[STREAM_COUNT],
               struct pd_err *e)
{
    struct process *p;
    struct process_info i;
    struct pd_err why;
    bool known = false;
    uint64_t refused = session_refusals_mark(c->session);

    q->request.listens = !q->detached;
    if (session_start(c->session, &q->request, &p, &known, e) < 0)
        return -1;

    process_get(p, &i, NULL);
    snprintf(c->summary, sizeof c->summary, "%s", i.command);
    reply_header(c->r, "X-Process-Id", i.id);
    if (known)
        reply_header(c->r, "Idempotent-Replayed", "true");

    int keep = q->detached || q->request.key != NULL;
    int r;
    if (q->detached) {
        r = process_await_start(p, conn_fd(c->r->conn), e);
        if (r == 0)
            r = answer_started(c, p, 202);
    } else if (events) {
        r = stream_events(c, p, offset, !keep, e);
        process_get(p, &i, NULL);
        count_end(c, &i);
    } else {
        r = attend(c, p, q->request.timeout_ns, !keep, e);
        process_get(p, &i, &why);
        count_end(c, &i);
        if (i.refused) {
            *e = why;
            r = -1;
        } else if (r == 0) {
            r = answer_result(c, p, &i, q->output_max, refused);
        } else if (r == 1) {
            reply_abort(c->r);
            r = 0;
        }
    }

    if (!known)
        process_let_go(p);
    process_unref(p);
    return r;
}

int exec_post(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    struct start_request q;
    char key[API_KEY_MAX + 1];
    uint64_t offset[STREAM_COUNT] = {0};

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0)
        return -1;

    int events = call_accepts(c, "text/event-stream");
    int r = start_request_read(c, &f, &q, 0, e);
    if (r == 0)
        r = call_key(c, &body, key, &q.request.key, &q.request.key_hash, e);
    if (r == 0)
        r = call_last_event(c, offset, e);
    if (r == 0) {
        session_attend_begin(c->session);
        r = run(c, &q, events, offset, e);
        session_attend_end(c->session);
    }

    start_request_done(&q);
    return r;
}
