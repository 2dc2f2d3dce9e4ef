/* Processes of a sandbox: starting one in the background, its signals, input and terminal size, and
 * its output, which is read from the spools: the part that there is, or all of it as it comes. */
#include "api/command.h"
#include "api/handlers.h"
#include "api/worker_request.h"

#include "base/banned.h"
#include "base/json.h"
#include "base/parse.h"

#include <poll.h>
#include <signal.h>

#define WRITE_PATIENCE (30 * NS_PER_S)
#define PIECE          (64u << 10)
#define TREE_PATIENCE  (10 * NS_PER_S)
#define TREE_MAX       8192u
#define LOOK_MS        5000 /* between looks at an output that says nothing */

/* ---- signals by name ---- */

static const struct {
    int number;
    const char *name;
} signals[] = {
    {SIGHUP, "SIGHUP"},       {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"},   {SIGILL, "SIGILL"},
    {SIGTRAP, "SIGTRAP"},     {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},     {SIGFPE, "SIGFPE"},
    {SIGKILL, "SIGKILL"},     {SIGUSR1, "SIGUSR1"}, {SIGSEGV, "SIGSEGV"},   {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"},     {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},   {SIGCHLD, "SIGCHLD"},
    {SIGCONT, "SIGCONT"},     {SIGSTOP, "SIGSTOP"}, {SIGTSTP, "SIGTSTP"},   {SIGTTIN, "SIGTTIN"},
    {SIGTTOU, "SIGTTOU"},     {SIGURG, "SIGURG"},   {SIGXCPU, "SIGXCPU"},   {SIGXFSZ, "SIGXFSZ"},
    {SIGVTALRM, "SIGVTALRM"}, {SIGPROF, "SIGPROF"}, {SIGWINCH, "SIGWINCH"}, {SIGIO, "SIGIO"},
    {SIGPWR, "SIGPWR"},       {SIGSYS, "SIGSYS"}};
#define SIGNAL_COUNT (sizeof signals / sizeof *signals)

const char *signal_name(int number)
{
    for (size_t i = 0; i < SIGNAL_COUNT; i++)
        if (signals[i].number == number)
            return signals[i].name;
    return "SIGRT";
}

int signal_parse(const char *text, int *ret, struct pd_err *e)
{
    uint64_t n;

    for (size_t i = 0; i < SIGNAL_COUNT; i++)
        if (!strcmp(text, signals[i].name) || !strcmp(text, signals[i].name + 3)) {
            *ret = signals[i].number;
            return 0;
        }

    if (parse_u64("signal", text, 1, 64, &n, NULL) == 0) {
        *ret = (int)n;
        return 0;
    }

    return pd_fail(e, PD_INVALID, "signal '%.40s': a name such as SIGTERM, or 1 to 64", text);
}

/* ---- lists ---- */

void process_json(struct json *j, const struct process_info *i)
{
    json_open(j, '{');
    result_json(j, i);
    json_member_cstr(j, "command", i->command);
    json_member_bool(j, "running", i->running);
    json_time(j, "started_at", i->started_ms);
    json_time(j, "ended_at", i->ended_ms);
    json_member_bool(j, "pty", i->pty);
    json_member_bool(j, "background", i->background);
    json_member_bool(j, "stdin_open", i->stdin_open);
    json_member_uint(j, "stdout_first", i->first[STREAM_OUT]);
    json_member_uint(j, "stderr_first", i->first[STREAM_ERR]);
    json_member_bool(j, "forgotten", i->forgotten);
    json_close(j, '}');
}

static int answer_process(struct call *c, int status, struct process *p)
{
    struct process_info i;
    auto_buf out = BUF_INIT(64u << 10);
    struct json j = JSON_INIT(&out);

    process_get(p, &i, NULL);
    process_json(&j, &i);
    return call_json(c, status, &out);
}

static int add_to_list(struct process *p, void *arg)
{
    struct process_info i;
    process_get(p, &i, NULL);
    process_json(arg, &i);
    return 0;
}

/* Every process of the sandbox, as it says itself. */
static int put_tree(struct call *c, struct json *j, struct pd_err *e)
{
    static const char *const words[] = {"ps", NULL};
    auto_worker w = WORKER_INIT;
    struct record r;
    int got;

    w.quiet_ns = TREE_PATIENCE;
    if (worker_begin(&w, c, NULL, 0, words, e) < 0)
        return -1;

    json_key(j, "tree");
    json_open(j, '[');
    for (unsigned i = 0; i < TREE_MAX && (got = worker_next(&w, &r, e)) != 0; i++) {
        if (got < 0)
            return -1;
        if (r.kind != RECORD_PROCESS)
            return pd_fail(e, PD_BAD_GATEWAY, "the sandbox answered something else than processes");

        char state[2] = {(char)r.process.state, 0};
        json_open(j, '{');
        json_member_uint(j, "pid", r.process.pid);
        json_member_uint(j, "parent_pid", r.process.parent);
        json_member_uint(j, "uid", r.process.uid);
        json_member_cstr(j, "state", state);
        json_member_uint(j, "threads", r.process.threads);
        json_member_uint(j, "cpu_time_ms", r.process.cpu_ms);
        json_member_uint(j, "memory_bytes", r.process.memory);
        json_member_uint(j, "age_ms", r.process.age_ms);
        json_bytes(j, "command", r.process.command, strlen(r.process.command));
        json_close(j, '}');
    }
    json_close(j, ']');
    return 0;
}

int processes_list(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"tree", NULL};
    auto_buf out = BUF_INIT(64u << 20);
    struct json j = JSON_INIT(&out);
    bool tree = false;

    if (call_query_check(c, allowed, e) < 0 || call_query_bool(c, "tree", &tree, e) < 0)
        return -1;
    json_open(&j, '{');
    json_key(&j, "processes");
    json_open(&j, '[');
    session_each_process(c->session, add_to_list, &j);
    json_close(&j, ']');
    if (tree && put_tree(c, &j, e) < 0)
        return -1;
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

static struct process *find(struct call *c, struct pd_err *e)
{
    return session_find_process(c->session, c->var[1], e);
}

int process_get_one(struct call *c, struct pd_err *e)
{
    struct process *p = call_no_query(c, e) < 0 ? NULL : find(c, e);
    if (!p)
        return -1;
    int r = answer_process(c, 200, p);
    process_unref(p);
    return r;
}

/* ---- starting ---- */

int processes_start(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    struct start_request q;
    struct process *p = NULL;
    char key[API_KEY_MAX + 1];
    bool known = false;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0)
        return -1;

    int r = start_request_read(c, &f, &q, 1, e);
    if (r == 0)
        r = call_key(c, &body, key, &q.request.key, &q.request.key_hash, e);
    if (r == 0)
        r = session_start(c->session, &q.request, &p, &known, e);

    start_request_done(&q);
    if (r < 0)
        return -1;

    r = process_await_start(p, conn_fd(c->r->conn), e);
    if (r == 0) {
        struct process_info i;
        process_get(p, &i, NULL);
        snprintf(c->summary, sizeof c->summary, "%s", i.command);
        if (known)
            reply_header(c->r, "Idempotent-Replayed", "true");
        r = answer_process(c, 201, p);
    }

    process_unref(p);
    return r;
}

/* ---- what is done to one ---- */

int process_delete(struct call *c, struct pd_err *e)
{
    struct process *p = call_no_query(c, e) < 0 ? NULL : find(c, e);
    if (!p)
        return -1;
    int r = process_signal(p, SIGKILL, e);
    process_unref(p);
    return r < 0 ? -1 : call_empty(c);
}

int process_post_signal(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    const char *name = "";
    uint64_t n = 0;
    int number = 0;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0)
        return -1;

    if (fields_kind(&f, "signal") == FIELD_NUMBER)
        fields_u64(&f, "signal", FIELD_REQUIRED, 1, 64, &n);
    else
        fields_str(&f, "signal", FIELD_REQUIRED, 1, 20, &name);
    if (call_finish(c, &f, e) < 0)
        return -1;

    number = (int)n;
    if (!n && signal_parse(name, &number, e) < 0) {
        snprintf(c->field, sizeof c->field, "signal");
        return -1;
    }

    struct process *p = find(c, e);
    if (!p)
        return -1;

    snprintf(c->summary, sizeof c->summary, "%s %.40s", signal_name(number), c->var[1]);
    int r = process_signal(p, number, e);
    process_unref(p);
    return r < 0 ? -1 : call_empty(c);
}

static int copy_stdin(struct call *c, struct process *p, struct pd_err *e)
{
    uint8_t piece[PIECE];

    for (;;) {
        ssize_t n = request_read(c->r, piece, sizeof piece, e);
        if (n <= 0)
            return (int)n;
        if (process_write(p, piece, (size_t)n, deadline_in(WRITE_PATIENCE), e) < 0)
            return -1;
    }
}

int process_post_stdin(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"close", NULL};
    bool close_it = false;

    if (call_query_check(c, allowed, e) < 0 || call_query_bool(c, "close", &close_it, e) < 0)
        return -1;

    struct process *p = find(c, e);
    if (!p)
        return -1;

    session_touch(c->session);
    int r = copy_stdin(c, p, e);
    if (r == 0 && close_it)
        r = process_close_stdin(p, e);
    process_unref(p);
    return r < 0 ? -1 : call_empty(c);
}

int process_post_resize(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    uint64_t rows = 0, cols = 0;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0)
        return -1;

    fields_u64(&f, "rows", FIELD_REQUIRED, 1, 1000, &rows);
    fields_u64(&f, "cols", FIELD_REQUIRED, 1, 1000, &cols);
    if (call_finish(c, &f, e) < 0)
        return -1;

    struct process *p = find(c, e);
    if (!p)
        return -1;
    int r = process_resize(p, (uint16_t)rows, (uint16_t)cols, e);
    process_unref(p);
    return r < 0 ? -1 : call_empty(c);
}

/* ---- output ---- */

struct output_query {
    unsigned stream;
    uint64_t offset, limit;
    bool follow;
};

static int read_output_query(struct call *c, struct output_query *q, struct pd_err *e)
{
    static const char *const allowed[] = {"stream", "offset", "follow", "limit", NULL};
    char stream[16];

    *q = (struct output_query){.limit = UINT64_MAX};
    if (call_query_check(c, allowed, e) < 0)
        return -1;

    int has = call_query(c, "stream", stream, sizeof stream, e);
    if (has < 0)
        return -1;

    if (has && strcmp(stream, "stderr") == 0)
        q->stream = STREAM_ERR;
    else if (has && strcmp(stream, "stdout") != 0) {
        snprintf(c->field, sizeof c->field, "stream");
        return pd_fail(e, PD_INVALID, "stream=%s: stdout or stderr", stream);
    }

    if (call_query_u64(c, "offset", 0, INT64_MAX, &q->offset, e) < 0 ||
        call_query_u64(c, "limit", 0, INT64_MAX, &q->limit, e) < 0 ||
        call_query_bool(c, "follow", &q->follow, e) < 0)
        return -1;
    return 0;
}

static void output_headers(struct call *c, const struct process_info *i, unsigned stream,
                           const uint64_t *next)
{
    char text[24];

    snprintf(text, sizeof text, "%llu", (unsigned long long)i->first[stream]);
    reply_header(c->r, "X-First-Offset", text);
    if (next) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)*next);
        reply_header(c->r, "X-Next-Offset", text);
    }

    reply_header(c->r, "X-Running", i->running ? "true" : "false");
}

static int check_offset(struct call *c, const struct process_info *i, const struct output_query *q,
                        struct pd_err *e)
{
    if (q->offset >= i->first[q->stream])
        return 0;

    snprintf(c->field, sizeof c->field, "offset");
    return pd_fail(e, PD_INVALID,
                   "offset %llu is forgotten: the oldest byte that is kept is at %llu",
                   (unsigned long long)q->offset, (unsigned long long)i->first[q->stream]);
}

/* Read and not sent from the file: a part that is forgotten while it is being sent would be zeros;
 * like this the answer breaks off. */
static int send_part(struct call *c, struct process *p, const struct output_query *q, uint64_t end,
                     struct pd_err *e)
{
    uint8_t piece[PIECE];

    for (uint64_t at = q->offset; at < end;) {
        size_t want = end - at < PIECE ? (size_t)(end - at) : PIECE;
        ssize_t n = process_read(p, q->stream, at, piece, want, e);
        if (n == 0)
            return pd_fail(e, PD_INTERNAL, "the spool is shorter than it was");
        if (n < 0 || reply_write(c->r, piece, (size_t)n, e) < 0)
            return -1;
        at += (uint64_t)n;
    }
    return 0;
}

/* Answers with the output that there is now. */
static int answer_part(struct call *c, struct process *p, const struct output_query *q,
                       struct pd_err *e)
{
    struct process_info i;

    process_get(p, &i, NULL);
    if (check_offset(c, &i, q, e) < 0)
        return -1;

    uint64_t size = i.size[q->stream];
    uint64_t len = q->offset < size ? size - q->offset : 0;
    if (len > q->limit)
        len = q->limit;

    uint64_t next = q->offset < size ? q->offset + len : q->offset;
    output_headers(c, &i, q->stream, &next);
    if (reply_begin(c->r, 200, "application/octet-stream", len, e) < 0)
        return -1;

    /* Without news nothing is read below. A client that asks from here has read all that was
     * before, maybe from another daemon: the writer must not wait for that. */
    bool head = c->r->head.method == HTTP_HEAD;
    if (!head)
        process_consumed(p, q->stream, q->offset);

    int r = head ? 0 : send_part(c, p, q, next, e);
    if (r == 0)
        r = reply_end(c->r, e);
    if (r < 0)
        reply_abort(c->r);
    return 0;
}

/* Answers with the output as it comes, until the end or the limit. */
static int answer_following(struct call *c, struct process *p, struct output_query *q,
                            struct pd_err *e)
{
    struct process_info i;
    struct watch w;
    uint8_t piece[PIECE];

    process_get(p, &i, NULL);
    if (check_offset(c, &i, q, e) < 0 || process_watch(p, &w, e) < 0)
        return -1;

    output_headers(c, &i, q->stream, NULL);
    int r = reply_begin(c->r, 200, "application/octet-stream", REPLY_CHUNKED, e);
    while (r == 0 && q->limit && c->r->head.method != HTTP_HEAD) {
        watch_clear(&w);
        process_get(p, &i, NULL);
        size_t want = q->limit < PIECE ? (size_t)q->limit : PIECE;
        ssize_t n = process_read(p, q->stream, q->offset, piece, want, e);

        if (n < 0) {
            r = -1;
        } else if (n > 0) {
            q->offset += (uint64_t)n;
            q->limit -= (uint64_t)n;
            r = reply_write(c->r, piece, (size_t)n, e);
        } else if (!i.running) {
            break;
        } else if ((r = reply_flush(c->r, e)) == 0) {
            struct pollfd fds[2] = {{.fd = w.event, .events = POLLIN},
                                    {.fd = conn_fd(c->r->conn), .events = POLLRDHUP}};
            if (poll(fds, 2, LOOK_MS) > 0 && fds[1].revents)
                r = -1;
        }
    }

    if (r == 0)
        r = reply_end(c->r, e);
    if (r < 0)
        reply_abort(c->r);
    process_unwatch(p, &w);
    return 0;
}

int process_get_output(struct call *c, struct pd_err *e)
{
    struct output_query q;
    uint64_t offset[STREAM_COUNT] = {0};

    if (read_output_query(c, &q, e) < 0 || call_last_event(c, offset, e) < 0)
        return -1;

    struct process *p = find(c, e);
    if (!p)
        return -1;

    call_use_begin(c);
    int r;
    if (q.follow && call_accepts(c, "text/event-stream"))
        r = stream_events(c, p, offset, 0, e);
    else if (q.follow)
        r = answer_following(c, p, &q, e);
    else
        r = answer_part(c, p, &q, e);

    call_use_end(c);
    process_unref(p);
    return r;
}
