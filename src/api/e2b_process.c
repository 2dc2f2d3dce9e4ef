/* process.Process: commands as E2B's clients start, find, feed and end them. Their notes are the
 * rows of List, but for the pid. */
#include "api/e2b_process.h"
#include "api/connect.h"
#include "api/e2b_handlers.h"

#include "base/banned.h"
#include "base/json.h"
#include "base/parse.h"
#include "config/config.h"
#include "telemetry/metrics.h"

#include <signal.h>

#define WORDS_MAX   4000u
#define WORD_MAX    (128u << 10)
#define TAG_MAX     1024u
#define INPUT_MAX   (6u << 20)
#define INPUT_WAIT  (30 * NS_PER_S)
#define NUMBER_WAIT (10 * NS_PER_S) /* a machine may be busy, and after a restart init is asked */
#define LIST_MAX    (16u << 20)
#define NOTE_PREFIX "{\"config\":"

/* ---- reading ---- */

int e2b_number(struct fields *f, const char *name, enum field_need need, uint64_t max,
               uint64_t *ret)
{
    const char *text = NULL;
    uint64_t n;

    if (!f || fields_kind(f, name) != FIELD_STRING)
        return fields_u64(f, name, need, 0, max, ret);

    if (!fields_str(f, name, need, 1, 20, &text))
        return 0;
    if (parse_u64(name, text, 0, max, &n, NULL) < 0)
        return fields_refuse(f, name, "'%.20s' is not a number from 0 to %llu", text,
                             (unsigned long long)max);
    *ret = n;
    return 1;
}

int e2b_terminal(struct fields *f, uint16_t *ret_rows, uint16_t *ret_cols)
{
    struct fields *pty = fields_object(f, "pty", FIELD_OPTIONAL);
    struct fields *size = fields_object(pty, "size", FIELD_OPTIONAL);
    uint64_t n = 0;

    if (e2b_number(size, "rows", FIELD_OPTIONAL, UINT16_MAX, &n) && n)
        *ret_rows = (uint16_t)n;
    if (e2b_number(size, "cols", FIELD_OPTIONAL, UINT16_MAX, &n) && n)
        *ret_cols = (uint16_t)n;

    return pty != NULL;
}

/* ---- notes ---- */

static void put_envs(struct json *j, const struct msg_list *env)
{
    uint32_t pos = 0;

    json_key(j, "envs");
    json_open(j, '{');
    for (const char *v; (v = msg_list_next(env, &pos));) {
        char name[512];
        size_t len = strcspn(v, "=");
        if (len >= sizeof name || !v[len])
            continue;
        memcpy(name, v, len);
        name[len] = 0;
        json_member_cstr(j, name, v + len + 1);
    }
    json_close(j, '}');
}

struct note {
    struct msg_list argv, env;
    const char *cwd, *tag;
};

static int put_note(struct buf *out, const struct note *n, int with_env, int with_args)
{
    struct json j = JSON_INIT(out);
    uint32_t pos = 0;

    buf_clear(out);
    out->overflow = 0;

    json_open(&j, '{');
    json_key(&j, "config");
    json_open(&j, '{');
    json_member_cstr(&j, "cmd", msg_list_next(&n->argv, &pos));
    if (with_args) {
        json_key(&j, "args");
        json_open(&j, '[');
        for (const char *a; (a = msg_list_next(&n->argv, &pos));)
            json_cstr(&j, a);
        json_close(&j, ']');
    }

    if (with_env && n->env.count)
        put_envs(&j, &n->env);
    if (n->cwd)
        json_member_cstr(&j, "cwd", n->cwd);
    json_close(&j, '}');
    if (n->tag)
        json_member_cstr(&j, "tag", n->tag);
    json_close(&j, '}');
    return out->overflow ? -1 : 0;
}

/* Members that do not fit are left out: the command may be longer than its note. */
static const char *make_note(struct buf *out, const struct note *n)
{
    if (put_note(out, n, 1, 1) < 0 && put_note(out, n, 0, 1) < 0 && put_note(out, n, 0, 0) < 0)
        return NULL;
    return buf_cstr(out);
}

static bool has_tag(struct process *p, const char *tag)
{
    auto_fields f = {0};
    const char *found = NULL;
    char *note = process_note(p);
    int same = note && !strncmp(note, NOTE_PREFIX, strlen(NOTE_PREFIX)) &&
               fields_parse(&f, note, strlen(note), FIELDS_OPEN, NULL) == 0 &&
               fields_str(&f, "tag", FIELD_OPTIONAL, 0, TAG_MAX, &found) && !strcmp(found, tag);

    free(note);
    return same;
}

/* ---- finding ---- */

struct search {
    const char *tag;
    struct process *found;
};

static int look_at_tag(struct process *p, void *arg)
{
    struct search *s = arg;
    struct process_info i, before = {0};

    process_get(p, &i, NULL);
    if (s->found)
        process_get(s->found, &before, NULL);

    /* The youngest is meant, and one that runs before one that has ended. */
    if ((before.running && !i.running) || !has_tag(p, s->tag))
        return 0;

    process_unref(s->found);
    s->found = process_ref(p);
    return 0;
}

/* Waits for the pid of one whose start is just being told, or is asked for after a restart. */
static int await_number(struct process *p, void *arg)
{
    deadline d = *(deadline *)arg;
    struct process_info i;
    struct watch w;

    process_get(p, &i, NULL);
    if (i.pid || !i.running || process_watch(p, &w, NULL) < 0)
        return 0;

    do {
        watch_clear(&w);
        process_get(p, &i, NULL);
    } while (!i.pid && i.running && !deadline_passed(d) && watch_wait(&w, d));
    process_unwatch(p, &w);
    return deadline_passed(d);
}

static void await_numbers(struct call *c)
{
    deadline d = deadline_in(NUMBER_WAIT);
    session_each_process(c->session, await_number, &d);
}

static bool is_there(struct process *p, int ended_too)
{
    struct process_info i;
    process_get(p, &i, NULL);
    return i.running || (ended_too && i.ended_ms + E2B_END_KEPT_MS > time_now_ms());
}

struct process *e2b_select(struct call *c, struct fields *f, int ended_too, struct pd_err *e)
{
    struct fields *selector = fields_object(f, "process", FIELD_REQUIRED);
    struct search s = {0};
    uint64_t pid = 0;
    char text[24] = "";
    int by_tag = fields_str(selector, "tag", FIELD_OPTIONAL, 0, TAG_MAX, &s.tag);

    int by_pid = e2b_number(selector, "pid", FIELD_OPTIONAL, UINT32_MAX, &pid);

    if (by_tag && by_pid)
        fields_refuse(selector, "tag", "either pid or tag, not both");
    else if (selector && !by_tag && !by_pid)
        fields_refuse(selector, "pid", "is missing: pid or tag is needed");
    if (fields_finish(f, e) < 0)
        return NULL;

    snprintf(text, sizeof text, "%llu", (unsigned long long)pid);
    if (by_tag)
        session_each_process(c->session, look_at_tag, &s);
    else
        s.found = session_find_process(c->session, text, NULL);

    if (!by_tag && !(s.found && is_there(s.found, ended_too))) {
        process_unref(s.found);
        await_numbers(c);
        s.found = session_find_process(c->session, text, NULL);
    }

    if (s.found && is_there(s.found, ended_too))
        return s.found;
    process_unref(s.found);
    pd_fail(e, PD_NOT_FOUND, "process with %s %.100s not found", by_tag ? "tag" : "pid",
            by_tag ? s.tag : text);
    return NULL;
}

/* ---- Start ---- */

struct start {
    struct process_request request;
    struct msg_list_writer argv, env;
    struct buf note;
    char user[FILE_USER_SIZE];
    char cwd[FILE_PATH_SIZE];
};

static bool has_variable(const struct msg_list *env, const char *pair)
{
    size_t len = strcspn(pair, "=") + 1;
    uint32_t pos = 0;

    for (const char *v; (v = msg_list_next(env, &pos));)
        if (!strncmp(v, pair, len))
            return true;
    return false;
}

/* Variables by which programs know that they are in a sandbox. */
static int add_usual(struct call *c, struct msg_list_writer *env)
{
    struct msg_list_writer usual = MSG_LIST_WRITER_INIT;
    uint32_t pos = 0;
    int bad = e2b_sandbox_env(c->session, &usual) < 0;

    struct msg_list pairs = msg_list_of(&usual);
    for (const char *v; !bad && (v = msg_list_next(&pairs, &pos));) {
        struct msg_list given = msg_list_of(env);
        bad = !has_variable(&given, v) && msg_list_add(env, v) < 0;
    }

    msg_list_writer_done(&usual);
    return bad ? -1 : 0;
}

static int read_start(struct call *c, struct fields *f, struct start *s, struct pd_err *e)
{
    struct process_request *r = &s->request;
    const char *cmd = NULL, *cwd = NULL, *tag = NULL;
    struct fields *process = fields_object(f, "process", FIELD_REQUIRED);
    bool stdin_too = true;

    if (fields_str(process, "cmd", FIELD_REQUIRED, 1, WORD_MAX, &cmd))
        (void)msg_list_add(&s->argv, cmd);
    fields_str_list(process, "args", FIELD_OPTIONAL, 0, WORDS_MAX, WORD_MAX, &s->argv);
    fields_env(process, "envs", FIELD_OPTIONAL, &s->env, NULL);
    fields_str(process, "cwd", FIELD_OPTIONAL, 0, FILE_PATH_MAX, &cwd);

    r->pty = e2b_terminal(f, &r->rows, &r->cols);
    fields_str(f, "tag", FIELD_OPTIONAL, 0, TAG_MAX, &tag);
    fields_bool(f, "stdin", FIELD_OPTIONAL, &stdin_too);

    if (fields_finish(f, e) < 0 || e2b_user(c, s->user, e) < 0)
        return -1;
    /* The home is the user's: e2b_path only knows it of "~". */
    if (e2b_path(s->user, cwd && cwd[0] ? cwd : "~", s->cwd, e) < 0)
        return -1;

    struct note n = {msg_list_of(&s->argv), msg_list_of(&s->env), cwd, tag};
    r->note = make_note(&s->note, &n);
    if (add_usual(c, &s->env) < 0)
        return pd_fail(e, PD_TOO_LARGE, "the command's environment is too large");

    r->argv = msg_list_of(&s->argv);
    r->env = msg_list_of(&s->env);
    r->cwd = s->cwd;
    r->user = s->user;
    r->keep_stdin = stdin_too && !r->pty;
    r->spool_max = c->config->spool_max_bytes;
    r->background = r->may_wait = true;
    r->listens = true;
    return 0;
}

static void count_end(struct call *c, struct process *p)
{
    struct process_info i;

    process_get(p, &i, NULL);
    if (i.running)
        return;

    metrics_exec_ended(c->api->metrics, i.refused ? METRICS_CAUSE_REFUSED : i.stopped_by,
                       i.duration_us);
    c->exit_code = i.signal ? 128 + i.signal : i.exit_code;
    c->stopped_by = process_stop_name(i.stopped_by);
}

static int run_start(struct call *c, struct start *s, struct pd_err *e)
{
    static const uint64_t offset[STREAM_COUNT];
    struct process *p = NULL;
    struct process_info i;
    bool known = false;

    if (connect_timeout(c, &s->request.timeout_ns, e) < 0 ||
        session_start(c->session, &s->request, &p, &known, e) < 0)
        return -1;

    process_get(p, &i, NULL);
    snprintf(c->summary, sizeof c->summary, "%s", i.command);

    int r = e2b_follow(c, p, offset, 1, s->request.timeout_ns, e);
    process_let_go(p);
    count_end(c, p);
    process_unref(p);
    return r;
}

int rpc_process_start(struct call *c, struct pd_err *e)
{
    auto_buf text = BUF_INIT(CONNECT_MESSAGE_MAX);
    auto_fields f = {0};

    if (connect_read(c, &text, &f, e) < 0)
        return -1;

    struct start *s = malloc(sizeof *s);
    if (!s)
        return pd_fail(e, PD_CAPACITY, "no memory for a command");
    *s = (struct start){
        .argv = MSG_LIST_WRITER_INIT, .env = MSG_LIST_WRITER_INIT, .note = BUF_INIT(NOTE_MAX)};

    int r = read_start(c, &f, s, e);
    if (r == 0)
        r = run_start(c, s, e);

    msg_list_writer_done(&s->argv);
    msg_list_writer_done(&s->env);
    buf_done(&s->note);
    free(s);
    return r;
}

int rpc_process_connect(struct call *c, struct pd_err *e)
{
    auto_buf text = BUF_INIT(CONNECT_MESSAGE_MAX);
    auto_fields f = {0};
    struct process_info i;
    uint64_t timeout = 0;

    if (connect_read(c, &text, &f, e) < 0 || connect_timeout(c, &timeout, e) < 0)
        return -1;

    struct process *p = e2b_select(c, &f, 1, e);
    if (!p)
        return -1;

    process_get(p, &i, NULL);
    int r = e2b_follow(c, p, i.size, 0, timeout, e);
    process_unref(p);
    return r;
}

/* ---- List ---- */

/* One that was started elsewhere has no note. */
static void put_other(struct json *j, const struct process_info *i)
{
    json_key(j, "config");
    json_open(j, '{');
    json_member_cstr(j, "cmd", i->shell ? "/bin/bash" : i->command);
    if (i->shell) {
        json_key(j, "args");
        json_open(j, '[');
        json_cstr(j, "-c");
        json_cstr(j, i->command);
        json_close(j, ']');
    }
    json_close(j, '}');
}

static int put_process(struct process *p, void *arg)
{
    struct json *j = arg;
    struct process_info i;

    process_get(p, &i, NULL);
    if (!i.running || !i.pid)
        return 0;

    char *note = process_note(p);
    json_open(j, '{');
    json_member_int(j, "pid", i.pid);
    if (note && !strncmp(note, NOTE_PREFIX, strlen(NOTE_PREFIX))) {
        /* It is an object already: its members go in here. */
        (void)buf_putc(j->out, ',');
        (void)buf_put(j->out, note + 1, strlen(note) - 2);
    } else {
        put_other(j, &i);
    }

    json_close(j, '}');
    free(note);
    return 0;
}

int rpc_process_list(struct call *c, struct pd_err *e)
{
    auto_buf text = BUF_INIT(CONNECT_MESSAGE_MAX), out = BUF_INIT(LIST_MAX);
    auto_fields f = {0};
    struct json j = JSON_INIT(&out);

    if (connect_read(c, &text, &f, e) < 0)
        return -1;

    json_open(&j, '{');
    json_key(&j, "processes");
    json_open(&j, '[');
    await_numbers(c);
    session_each_process(c->session, put_process, &j);
    json_close(&j, ']');
    json_close(&j, '}');
    return connect_answer(c, &out);
}

/* ---- what is done to one ---- */

/* Of one that is not there any more, whatever the reason. */
static int gone(struct process *p, struct pd_err *e)
{
    struct process_info i;
    process_get(p, &i, NULL);
    return i.running ? 0 : pd_fail(e, PD_NOT_FOUND, "process with pid %d not found", i.pid);
}

/* {"stdin":".."} or {"pty":".."}, each for its kind of process. */
static int read_input(struct fields *f, struct buf *out, int *ret_pty)
{
    struct fields *input = fields_object(f, "input", FIELD_REQUIRED);
    int by_pipe = fields_base64(input, "stdin", FIELD_OPTIONAL, INPUT_MAX, out);

    int by_terminal = fields_base64(input, "pty", FIELD_OPTIONAL, INPUT_MAX, out);

    if (by_pipe && by_terminal)
        fields_refuse(input, "pty", "either stdin or pty, not both");
    *ret_pty = by_terminal;
    return by_pipe || by_terminal;
}

static int give_input(struct process *p, const struct buf *data, int is_pty, deadline d,
                      struct pd_err *e)
{
    struct process_info i;

    process_get(p, &i, NULL);
    if (i.pty != is_pty)
        return pd_fail(e, PD_INVALID,
                       i.pty ? "process %d has a terminal: its input goes to `pty`"
                             : "process %d has no terminal: its input goes to `stdin`",
                       i.pid);

    if (process_write(p, data->data, data->len, d, e) == 0)
        return 0;

    if (gone(p, e) < 0)
        return -1;
    if (e->code == PD_CONFLICT) /* a pipe that is closed is no name that is taken */
        e->code = PD_INVALID;
    return -1;
}

/* A client's patience may be shorter than ours. */
static int input_deadline(struct call *c, deadline *ret, struct pd_err *e)
{
    uint64_t timeout = 0;
    if (connect_timeout(c, &timeout, e) < 0)
        return -1;
    *ret = deadline_in(timeout && timeout < INPUT_WAIT ? timeout : INPUT_WAIT);
    return 0;
}

int rpc_process_send_input(struct call *c, struct pd_err *e)
{
    auto_buf text = BUF_INIT(CONNECT_MESSAGE_MAX), data = BUF_INIT(INPUT_MAX);
    auto_fields f = {0};
    int is_pty = 0;
    deadline d;

    if (connect_read(c, &text, &f, e) < 0 || input_deadline(c, &d, e) < 0)
        return -1;

    int some = read_input(&f, &data, &is_pty);
    struct process *p = e2b_select(c, &f, 0, e);
    if (!p)
        return -1;

    /* Nothing to write is fine, wherever it would go. */
    int r = some && data.len ? give_input(p, &data, is_pty, d, e) : 0;
    process_unref(p);
    return r < 0 ? -1 : connect_answer(c, NULL);
}

/* One message of a client's stream: the first says which process. */
static int take_message(struct call *c, struct process **p, const void *text, size_t len,
                        struct pd_err *e)
{
    auto_fields f = {0};
    auto_buf data = BUF_INIT(INPUT_MAX);
    int is_pty = 0;

    if (fields_parse(&f, text, len, FIELDS_OPEN, e) < 0)
        return -1;

    if (!*p) {
        struct fields *start = fields_object(&f, "start", FIELD_REQUIRED);
        if (start)
            *p = e2b_select(c, start, 0, e);
        else
            (void)fields_finish(&f, e);
        return *p ? 0 : -1;
    }

    struct fields *message = fields_object(&f, "data", FIELD_OPTIONAL);
    int some = message && read_input(message, &data, &is_pty);
    if (fields_finish(&f, e) < 0)
        return -1;
    return some && data.len ? give_input(*p, &data, is_pty, deadline_in(INPUT_WAIT), e) : 0;
}

int rpc_process_stream_input(struct call *c, struct pd_err *e)
{
    struct connect_reader reader = CONNECT_READER_INIT;
    struct process *p = NULL;
    const void *text = NULL;
    size_t len = 0;
    auto_buf out = BUF_INIT(4096);

    int r = connect_check_type(c, e);
    while (r == 0 && (r = connect_next(c, &reader, &text, &len, e)) > 0)
        r = take_message(c, &p, text, len, e);

    buf_done(&reader.bytes);
    if (r == 0 && !p)
        r = pd_fail(e, PD_INVALID, "the stream must begin with a message `start`");
    process_unref(p);
    if (r < 0)
        return -1;

    size_t at = connect_put_begin(&out, 0);
    (void)buf_puts(&out, "{}");
    connect_put_end(&out, at);
    connect_put_last(c, &out, NULL);
    return connect_write(c, &out, 1, e);
}

int rpc_process_send_signal(struct call *c, struct pd_err *e)
{
    static const char *const names[] = {"SIGNAL_SIGTERM", "SIGNAL_SIGKILL", NULL};
    static const int numbers[] = {SIGTERM, SIGKILL};
    auto_buf text = BUF_INIT(CONNECT_MESSAGE_MAX);
    auto_fields f = {0};
    unsigned which = 0;
    uint64_t number = 0;

    if (connect_read(c, &text, &f, e) < 0)
        return -1;

    if (fields_kind(&f, "signal") == FIELD_NUMBER) {
        fields_u64(&f, "signal", FIELD_REQUIRED, 0, 64, &number);
        if (number != SIGTERM && number != SIGKILL)
            fields_refuse(&f, "signal", "SIGNAL_SIGTERM or SIGNAL_SIGKILL is needed");
    } else if (fields_enum(&f, "signal", FIELD_REQUIRED, names, &which)) {
        number = (uint64_t)numbers[which];
    }

    struct process *p = e2b_select(c, &f, 0, e);
    if (!p)
        return -1;

    int r = process_signal(p, (int)number, e);
    if (r < 0 && number == SIGTERM)
        (void)gone(p, e); /* a better word for it, if it has ended meanwhile */
    process_unref(p);
    return r < 0 ? -1 : connect_answer(c, NULL);
}

int rpc_process_update(struct call *c, struct pd_err *e)
{
    auto_buf text = BUF_INIT(CONNECT_MESSAGE_MAX);
    auto_fields f = {0};
    uint16_t rows = 24, cols = 80;

    if (connect_read(c, &text, &f, e) < 0)
        return -1;

    int some = e2b_terminal(&f, &rows, &cols);
    struct process *p = e2b_select(c, &f, 0, e);
    if (!p)
        return -1;

    int r = some ? process_resize(p, rows, cols, e) : 0;
    if (r < 0 && e->code == PD_CONFLICT)
        e->code = PD_NOT_FOUND; /* its terminal is closed: it has ended, or is about to */
    process_unref(p);
    return r < 0 ? -1 : connect_answer(c, NULL);
}

int rpc_process_close_stdin(struct call *c, struct pd_err *e)
{
    auto_buf text = BUF_INIT(CONNECT_MESSAGE_MAX);
    auto_fields f = {0};

    if (connect_read(c, &text, &f, e) < 0)
        return -1;

    struct process *p = e2b_select(c, &f, 0, e);
    if (!p)
        return -1;

    int r = process_close_stdin(p, e);
    if (r < 0 && e->code == PD_CONFLICT)
        r = 0; /* it is closed: that is what was asked for */
    process_unref(p);
    return r < 0 ? -1 : connect_answer(c, NULL);
}
