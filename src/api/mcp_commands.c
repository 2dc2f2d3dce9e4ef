/* The tools of MCP that run commands, and those that tell of processes, ports and the
 * sandbox. A command is looked at every second: its last line goes out as progress, and it is ended
 * when its client has cancelled the request. */
#include "api/command.h"
#include "api/mcp.h"
#include "api/preview.h"
#include "api/sandbox.h"

#include "access/ids.h"
#include "access/preview.h"
#include "base/banned.h"
#include "base/json.h"
#include "base/parse.h"
#include "config/config.h"
#include "core/follow.h"
#include "telemetry/metrics.h"

#define COMMAND_MAX   100000u
#define INPUT_MAX     (1u << 20)
#define OUTPUT_MAX    (32u << 10) /* of each stream, in a result */
#define TIMEOUT       (120 * NS_PER_S)
#define TIMEOUT_MAX   (3600 * NS_PER_S)
#define STOP_PATIENCE (5 * NS_PER_S)
#define LOOK_EVERY    NS_PER_S /* for progress, and whether it is cancelled */
#define SILENCE       (10 * NS_PER_S)
#define LINE_MAX_     200

/* Appends [from, to) of a stream, as far as it is still there. */
static void append(struct process *p, unsigned stream, uint64_t from, uint64_t to, struct buf *out)
{
    uint8_t piece[16384];
    struct pd_err e;

    while (from < to) {
        uint64_t want = to - from < sizeof piece ? to - from : sizeof piece;
        ssize_t n = process_read(p, stream, from, piece, want, &e);
        if (n <= 0)
            return;

        buf_put(out, piece, (size_t)n);
        from += (uint64_t)n;
    }
}

/* A stream, whole or with its middle left out. */
static void put_output(struct process *p, const struct process_info *i, unsigned stream,
                       uint64_t from, struct buf *out)
{
    uint64_t size = i->size[stream], first = i->first[stream];

    from = from < first ? first : from > size ? size : from;
    process_consumed(p, stream, from); /* also where nothing is left to read: see answer_part */

    if (size - from <= OUTPUT_MAX) {
        append(p, stream, from, size, out);
        return;
    }

    uint64_t head = process_next_character(p, stream, from + OUTPUT_MAX / 2, size);
    uint64_t tail = process_next_character(p, stream, size - OUTPUT_MAX / 2, size);
    append(p, stream, from, head, out);
    buf_printf(out, "\n[... %llu bytes are left out ...]\n", (unsigned long long)(tail - head));
    append(p, stream, tail, size, out);
}

static void put_member(struct json *j, const char *key, const struct buf *text)
{
    json_key(j, key);
    json_str(j, text->data, text->len);
}

/* How it ended, in words. */
static void put_end(const struct process_info *i, struct buf *out)
{
    const char *why = process_stop_name(i->stopped_by);

    if (out->len && out->data[out->len - 1] != '\n')
        buf_putc(out, '\n');

    if (i->running)
        buf_puts(out, "[still running]");
    else if (i->stopped_by == STOP_TIMEOUT)
        buf_puts(out, "[ended: its time was over; give timeout_s, or use start_process]");
    else if (why)
        buf_printf(out, "[ended by: %s]", why);
    else if (i->signal)
        buf_printf(out, "[ended by signal %s]", signal_name(i->signal));
    else
        buf_printf(out, "[exit code %d]", i->exit_code);
}

/* `with_place`: tells where the next look begins, in the text as well. `refused`: the mark of what
 * the sandbox had been refused before the command. */
static void put_result(struct session *s, struct process *p, const struct process_info *i,
                       const uint64_t from[STREAM_COUNT], int with_place, uint64_t refused,
                       struct mcp_result *ret)
{
    char place[48];
    auto_buf out = BUF_INIT(4 * OUTPUT_MAX), err = BUF_INIT(4 * OUTPUT_MAX);
    struct json j = JSON_INIT(&ret->data);

    put_output(p, i, STREAM_OUT, from[STREAM_OUT], &out);
    put_output(p, i, STREAM_ERR, from[STREAM_ERR], &err);

    buf_put(&ret->text, out.data, out.len);
    if (err.len) {
        if (out.len && out.data[out.len - 1] != '\n')
            buf_putc(&ret->text, '\n');
        buf_puts(&ret->text, "[error output]\n");
        buf_put(&ret->text, err.data, err.len);
    }
    put_end(i, &ret->text);

    json_open(&j, '{');
    result_json(&j, i);
    put_member(&j, "stdout", &out);
    put_member(&j, "stderr", &err);
    json_member_bool(&j, "running", i->running);
    denied_json(&j, s, refused, &ret->text);
    snprintf(place, sizeof place, "%llu.%llu", (unsigned long long)i->size[STREAM_OUT],
             (unsigned long long)i->size[STREAM_ERR]);
    if (with_place) {
        json_member_cstr(&j, "next", place);
        buf_printf(&ret->text, "\n[next: %s]", place);
    }
    json_close(&j, '}');
}

static bool is_line_end(char c)
{
    return c == '\n' || c == '\r';
}

/* The last line that it has written, for people who wait: without control characters, and what a
 * bar that draws itself again has drawn last. */
static void last_line(struct follow *f, char out[LINE_MAX_ + 1])
{
    char text[LINE_MAX_];
    size_t len = 0, end = follow_tail(f, STREAM_OUT, text, sizeof text);

    while (end && is_line_end(text[end - 1]))
        end--;
    size_t start = end;
    while (start && !is_line_end(text[start - 1]))
        start--;

    for (; start < end; start++)
        if ((uint8_t)text[start] >= 0x20 && text[start] != 0x7f)
            out[len++] = text[start];
    out[len] = 0;
}

/* Tells a client that waits how it goes. One that does not read any more is not told any more. */
static void tell_progress(struct mcp_request *m, struct follow *f, uint64_t began, uint64_t *said)
{
    struct pd_err lost;
    int r;

    if (m->token[0]) {
        char line[LINE_MAX_ + 1];
        last_line(f, line);
        r = mcp_progress(m, (double)(clock_now() - began) / NS_PER_S, line, &lost);
    } else if (clock_now() - *said >= SILENCE) {
        r = mcp_keep_alive(m, &lost);
    } else {
        return;
    }

    *said = clock_now();
    if (r < 0)
        m->token[0] = m->streams = 0;
}

/* Waits for the end and tells how it goes; a client that goes away stops nothing: its time-out
 * does, or a word that it is cancelled. PD_TIMEOUT when the time was over, PD_SHUTTING_DOWN and
 * PD_CONFLICT (cancelled) when it is not waited for any more. */
static int attend(struct mcp_request *m, struct process *p, deadline until, struct pd_err *e)
{
    struct follow f;
    uint64_t began = clock_now(), said = began;
    if (follow_begin(&f, p, NULL, 0, e) < 0)
        return -1;

    int r;
    for (;;) {
        deadline next = deadline_in(LOOK_EVERY);
        r = follow_await_end(&f, -1, next < until ? next : until, e);
        if (r == 0 || e->code != PD_TIMEOUT || deadline_passed(until))
            break;

        if (server_is_stopping(m->c->r->server)) {
            r = pd_fail(e, PD_SHUTTING_DOWN, "the server is shutting down");
            break;
        }
        if (mcp_is_cancelled(m)) {
            r = pd_fail(e, PD_CONFLICT, "the request was cancelled");
            break;
        }
        tell_progress(m, &f, began, &said);
    }

    follow_end(&f);
    return r;
}

/* After it was told to end. */
static int await_end(struct process *p, struct pd_err *e)
{
    struct follow f;
    if (follow_begin(&f, p, NULL, 0, e) < 0)
        return -1;

    int r = follow_await_end(&f, -1, deadline_in(STOP_PATIENCE), e);
    follow_end(&f);
    return r;
}

static int run(struct mcp_request *m, struct process_request *q, struct mcp_result *ret,
               struct pd_err *e)
{
    static const uint64_t start[STREAM_COUNT];
    struct process *p;
    struct process_info i;
    struct pd_err why;
    bool known;
    uint64_t refused = session_refusals_mark(m->c->session);

    q->spool_max = m->c->config->spool_max_bytes;
    if (session_start(m->c->session, q, &p, &known, e) < 0)
        return -1;

    mcp_note_running(m, p);
    int r = attend(m, p, deadline_in(q->timeout_ns), e);
    if (r < 0 && (e->code == PD_TIMEOUT || e->code == PD_CONFLICT) &&
        process_stop(p, e->code == PD_TIMEOUT ? STOP_TIMEOUT : STOP_KILLED, e) == 0)
        r = await_end(p, e);

    mcp_note_running(m, NULL);
    process_get(p, &i, &why);
    if (i.refused) {
        *e = why;
        r = -1;
    } else if (r == 0 || i.running) {
        put_result(m->c->session, p, &i, start, 0, refused, ret);
        /* An exit code is what the command says, not a failure to run it. */
        ret->is_error = i.running || i.stopped_by != STOP_NONE;
        r = 0;
    }

    metrics_exec_ended(m->c->api->metrics, i.refused ? METRICS_CAUSE_REFUSED : i.stopped_by,
                       i.duration_us);
    m->c->exit_code = i.signal ? 128 + i.signal : i.exit_code;
    m->c->stopped_by = process_stop_name(i.stopped_by);

    process_unref(p);
    return r;
}

static void read_timeout(struct fields *args, struct process_request *q)
{
    q->timeout_ns = TIMEOUT;
    fields_seconds(args, "timeout_s", FIELD_OPTIONAL, NS_PER_MS, TIMEOUT_MAX, &q->timeout_ns);
}

static void read_cwd(struct fields *args, struct process_request *q)
{
    fields_str(args, "cwd", FIELD_OPTIONAL, 1, SPEC_PATH_MAX - 1, &q->cwd);
    if (q->cwd && q->cwd[0] != '/')
        fields_refuse(args, "cwd", "'%.100s' must be an absolute path", q->cwd);
}

/* Ends the reading of arguments: unknown ones are refused by name. */
static int finish(struct fields *args, struct pd_err *e)
{
    return args ? fields_finish_object(args, e) : 0;
}

int mcp_run_command(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
                    struct pd_err *e)
{
    struct process_request q = {.argv = {.text = ""}, .env = {.text = ""}};

    if (!args)
        return pd_fail(e, PD_INVALID, "command: is required");

    fields_str(args, "command", FIELD_REQUIRED, 1, COMMAND_MAX, &q.command);
    read_timeout(args, &q);
    read_cwd(args, &q);
    if (finish(args, e) < 0)
        return -1;

    snprintf(m->c->summary, sizeof m->c->summary, "%.290s", q.command);
    return run(m, &q, ret, e);
}

/* ---- processes ---- */

int mcp_start_process(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
                      struct pd_err *e)
{
    struct process_request q = {.argv = {.text = ""}, .env = {.text = ""}};
    struct process *p;
    struct process_info i;
    bool known;

    if (!args)
        return pd_fail(e, PD_INVALID, "command: is required");

    fields_str(args, "command", FIELD_REQUIRED, 1, COMMAND_MAX, &q.command);
    read_cwd(args, &q);
    q.background = q.keep_stdin = true;
    q.spool_max = m->c->config->spool_max_bytes;
    if (finish(args, e) < 0 || session_start(m->c->session, &q, &p, &known, e) < 0)
        return -1;

    snprintf(m->c->summary, sizeof m->c->summary, "%.290s", q.command);
    int r = process_await_start(p, conn_fd(m->c->r->conn), e);
    if (r == 0) {
        struct json j = JSON_INIT(&ret->data);
        process_get(p, &i, NULL);
        buf_printf(&ret->text, "started with pid %d", i.pid);
        json_open(&j, '{');
        json_member_int(&j, "pid", i.pid);
        json_member_cstr(&j, "process_id", i.id);
        json_close(&j, '}');
    }

    process_unref(p);
    return r;
}

static struct process *find_process(struct mcp_request *m, struct fields *args, struct pd_err *e)
{
    uint64_t pid = 0;
    char text[24];

    if (!args) {
        pd_fail(e, PD_INVALID, "pid: is required");
        return NULL;
    }

    fields_u64(args, "pid", FIELD_REQUIRED, 1, INT32_MAX, &pid);
    if (finish(args, e) < 0)
        return NULL;

    snprintf(text, sizeof text, "%llu", (unsigned long long)pid);
    return session_find_process(m->c->session, text, e);
}

/* "OUT.ERR": how much of each stream was seen. */
static int read_place(const char *text, uint64_t ret[STREAM_COUNT], struct pd_err *e)
{
    char out[24] = "";
    const char *dot = strchr(text, '.');

    size_t len = dot ? (size_t)(dot - text) : 0;
    if (dot && len < sizeof out) {
        memcpy(out, text, len);
        if (parse_u64("from", out, 0, UINT64_MAX >> 1, &ret[STREAM_OUT], e) == 0 &&
            parse_u64("from", dot + 1, 0, UINT64_MAX >> 1, &ret[STREAM_ERR], e) == 0)
            return 0;
    }

    return pd_fail(e, PD_INVALID, "from: '%.40s' is no place: give `next` of an earlier call",
                   text);
}

int mcp_check_process(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
                      struct pd_err *e)
{
    struct process_info i;
    const char *input = NULL, *place = "0.0";
    uint64_t wait_ns = 0, from[STREAM_COUNT] = {0};

    fields_str(args, "input", FIELD_OPTIONAL, 0, INPUT_MAX, &input);
    fields_seconds(args, "wait_s", FIELD_OPTIONAL, 0, TIMEOUT_MAX, &wait_ns);
    fields_str(args, "from", FIELD_OPTIONAL, 1, 48, &place);

    struct process *p = find_process(m, args, e);
    if (!p)
        return -1;

    int r = read_place(place, from, e);
    if (r == 0 && input)
        r = process_write(p, input, strlen(input), deadline_in(STOP_PATIENCE), e);
    if (r == 0 && wait_ns && attend(m, p, deadline_in(wait_ns), e) < 0 && e->code != PD_TIMEOUT)
        r = -1;
    if (r == 0) {
        process_get(p, &i, NULL);
        put_result(m->c->session, p, &i, from, 1, session_refusals_mark(m->c->session), ret);
    }

    process_unref(p);
    return r;
}

int mcp_stop_process(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
                     struct pd_err *e)
{
    static const uint64_t start[STREAM_COUNT];
    struct process_info i;

    struct process *p = find_process(m, args, e);
    if (!p)
        return -1;

    process_get(p, &i, NULL);
    int r = i.running ? process_stop(p, STOP_KILLED, e) : 0;
    if (r == 0)
        r = await_end(p, e);

    if (r == 0) {
        process_get(p, &i, NULL);
        put_result(m->c->session, p, &i, start, 0, session_refusals_mark(m->c->session), ret);
    }

    process_unref(p);
    return r;
}

/* ---- the sandbox ---- */

int mcp_preview_port(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
                     struct pd_err *e)
{
    uint64_t port = 0;
    struct link made;
    auto_buf url = BUF_INIT(2048);
    struct json j = JSON_INIT(&ret->data);

    if (!args)
        return pd_fail(e, PD_INVALID, "port: is required");

    fields_u64(args, "port", FIELD_REQUIRED, 1, 65535, &port);
    if (finish(args, e) < 0 || preview_link(m->c, (unsigned)port, m->c->sandbox, PREVIEW_BY_EITHER,
                                            PREVIEW_LIFE_MS, &url, &made, e) < 0)
        return -1;

    buf_put(&ret->text, url.data, url.len);
    json_open(&j, '{');
    put_member(&j, "url", &url);
    json_time(&j, "expires_at", made.expires_ms);
    json_close(&j, '}');
    return 0;
}

struct listing {
    struct json *j;
    struct buf *text;
};

static int put_process(struct process *p, void *arg)
{
    struct listing *l = arg;
    struct process_info i;

    process_get(p, &i, NULL);
    if (!i.running)
        return 0;

    buf_printf(l->text, "process %d: %s\n", i.pid, i.command);
    json_open(l->j, '{');
    json_member_int(l->j, "pid", i.pid);
    json_member_cstr(l->j, "command", i.command);
    json_close(l->j, '}');
    return 0;
}

/* What commands reach. Where there are no walls, none is promised of the network. */
static const char *network_text(const struct session_info *i)
{
    if (i->rung == RUNG_NONE || i->spec.network == NETWORK_HOST)
        return "a network without walls";
    return i->spec.network == NETWORK_GATE ? "a way out by rules" : "no network";
}

int mcp_session_info(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
                     struct pd_err *e)
{
    struct session_info i;
    auto_buf env = BUF_INIT(256u << 10);
    char cwd[SPEC_PATH_MAX], expires[TIME_TEXT_LEN + 1];
    struct json j = JSON_INIT(&ret->data);

    if (finish(args, e) < 0)
        return -1;

    session_get(m->c->session, &i);
    (void)session_get_env(m->c->session, &env, cwd, sizeof cwd);
    time_format_ms(i.expires_ms, expires);

    buf_printf(&ret->text,
               "sandbox %s, %s, template %s\nworking directory %s\nmemory %llu MiB, %llu "
               "processes, %s\nends at %s, or when nobody uses it for %llu s\n",
               i.id, session_state_name(i.state), i.template_name, cwd,
               (unsigned long long)(i.spec.limits.memory >> 20),
               (unsigned long long)i.spec.limits.pids, network_text(&i), expires,
               (unsigned long long)(i.idle_timeout_ms / 1000));

    json_open(&j, '{');
    json_member_cstr(&j, "id", i.id);
    json_member_cstr(&j, "template", i.template_name);
    json_member_cstr(&j, "isolation", rung_name(i.rung));
    json_member_cstr(&j, "cwd", cwd);
    limits_json(&j, m->c->session, &i.spec.limits);
    json_time(&j, "expires_at", i.expires_ms);
    json_member_milli(&j, "idle_timeout_s", i.idle_timeout_ms);

    json_key(&j, "processes");
    json_open(&j, '[');
    struct listing l = {&j, &ret->text};
    session_each_process(m->c->session, put_process, &l);
    json_close(&j, ']');
    json_close(&j, '}');
    return 0;
}
