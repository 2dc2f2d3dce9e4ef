/* How exec works: the command is started, and this thread waits for its end, for its time, or to be
 * cancelled. Output is in spools; the result is read from there. */
#include "lib/lib.h"

#include "base/banned.h"
#include "core/follow.h"

#include <poll.h>

#define INPUT_MAX      (1u << 20)
#define OUTPUT_DEFAULT (1u << 20)
#define SPOOL_DEFAULT  (16u << 20)
#define SPOOL_LEAST    (64u << 10)
#define PIECE          (32u << 10)
#define STOP_PATIENCE  (5 * NS_PER_S)

struct start {
    struct paddock_command c;
    struct process_request r;
    struct msg_list_writer argv, env;
};

static void start_done(struct start *q)
{
    msg_list_writer_done(&q->argv);
    msg_list_writer_done(&q->env);
}
#define auto_start __attribute__((cleanup(start_done))) struct start

static uint64_t hash_bytes(uint64_t h, const void *data, size_t len)
{
    const uint8_t *at = data;
    for (size_t i = 0; i < len; i++)
        h = (h ^ at[i]) * UINT64_C(1099511628211);
    return h;
}

/* The hash of a command: a key that comes again with another command is a mistake. */
static uint64_t hash_of(const struct start *q)
{
    uint64_t h = UINT64_C(14695981039346656037);
    const char *line = q->c.command ? q->c.command : "";

    h = hash_bytes(h, line, strlen(line) + 1);
    h = hash_bytes(h, q->r.argv.text, q->r.argv.bytes);
    h = hash_bytes(h, q->r.env.text, q->r.env.bytes);
    h = hash_bytes(h, q->c.cwd ? q->c.cwd : "", q->c.cwd ? strlen(q->c.cwd) : 0);
    return hash_bytes(h, q->c.input, q->c.input_len);
}

static int start_read(struct start *q, const struct paddock_command *command, int background,
                      struct paddock_error *e)
{
    struct paddock_command *c = &q->c;
    if (lib_take(c, sizeof *c, command, "paddock_command", e) < 0)
        return -1;

    if (!c->command == !(c->argv && c->argv[0]))
        return lib_refuse(e, PD_INVALID, "either command, a line for bash, or argv, a program");
    if (c->input_len > INPUT_MAX)
        return lib_refuse(e, PD_TOO_LARGE, "input: more than %u bytes; write a file instead",
                          INPUT_MAX);

    if (lib_list(c->command ? NULL : c->argv, "argv", 0, &q->argv, e) < 0 ||
        lib_list(c->env, "env", 1, &q->env, e) < 0)
        return -1;

    uint64_t spool = c->spool_max ? c->spool_max : SPOOL_DEFAULT;
    q->r = (struct process_request){
        .command = c->command,
        .argv = msg_list_of(&q->argv),
        .env = msg_list_of(&q->env),
        .cwd = c->cwd,
        .user = c->user,
        .timeout_ns = c->timeout_ms > UINT64_MAX / NS_PER_MS ? 0 : c->timeout_ms * NS_PER_MS,
        .file_size = c->file_size,
        .spool_max = spool < SPOOL_LEAST ? SPOOL_LEAST : spool,
        .background = background};

    if (c->key) {
        q->r.key = c->key;
        q->r.key_hash = hash_of(q);
    }

    if (background) {
        q->r.pty = c->pty != 0;
        q->r.rows = (uint16_t)c->rows;
        q->r.cols = (uint16_t)c->cols;
        q->r.keep_stdin = c->keep_stdin != 0;
        q->r.back_pressure = c->back_pressure != 0;
    } else {
        q->r.input = c->input;
        q->r.input_len = c->input_len;
    }
    return 0;
}

/* ---- the result ---- */

/* Appends [from, to) of a stream, or as much of it as is still there. */
static size_t append(struct process *p, unsigned stream, uint64_t from, uint64_t to, char *out)
{
    size_t len = 0;
    struct pd_err e;

    while (from < to) {
        ssize_t n = process_read(p, stream, from, out + len, (size_t)(to - from), &e);
        if (n <= 0)
            break;
        len += (size_t)n;
        from += (uint64_t)n;
    }
    return len;
}

static int take_stream(struct process *p, const struct process_info *i, unsigned stream,
                       uint64_t max, char **ret, size_t *ret_len, size_t *ret_head)
{
    uint64_t size = i->size[stream], first = i->first[stream], head = size, tail = size;
    if (size > max || first) {
        /* Of what the spool has forgotten there is no head. */
        head = first ? 0 : process_next_character(p, stream, max / 2, size);
        tail = size > max / 2 ? size - max / 2 : 0;
        tail = process_next_character(p, stream, tail < first ? first : tail, size);
    }

    char *out = malloc((size_t)(head + (size - tail)) + 1);
    if (!out)
        return -1;

    size_t len = append(p, stream, 0, head, out);
    *ret_head = head < size || first ? len : 0;
    len += append(p, stream, tail, size, out + len);
    out[len] = 0;

    *ret = out;
    *ret_len = len;
    return 0;
}

static void fill_result(struct paddock_result *r, const struct process_info *i)
{
    const char *stop = process_stop_name(i->stopped_by);

    r->exit_code = i->exit_code;
    r->signal = i->signal;
    r->timed_out = i->timed_out;
    r->state = i->shell ? i->state_updated : -1;
    snprintf(r->stopped_by, sizeof r->stopped_by, "%s", stop ? stop : "");
    r->out_total = i->size[STREAM_OUT];
    r->err_total = i->size[STREAM_ERR];
    r->duration_us = i->duration_us;
    r->cpu_usec = i->cpu_usec;
    r->max_rss = i->max_rss;
    r->pid = i->pid;
    snprintf(r->process_id, sizeof r->process_id, "%s", i->id);
}

/* ---- waiting ---- */

enum { TOLD_NOTHING, TOLD_SOMETHING, TOLD_STOP };

/* One piece of each stream to the callback. */
static int tell(const struct paddock_command *c, struct follow *f, struct pd_err *e)
{
    uint8_t piece[PIECE];
    int told = TOLD_NOTHING;

    for (unsigned s = 0; s < STREAM_COUNT; s++) {
        ssize_t n = follow_read(f, s, piece, sizeof piece, e);
        if (n <= 0)
            continue;

        told = TOLD_SOMETHING;
        if (c->on_output(c->arg, (int)s, piece, (size_t)n))
            return TOLD_STOP;
    }
    return told;
}

/* Streams to the callback until the end, which it sees to when the time is over. 1: nobody wants it
 * any more. */
static int tell_all(const struct paddock_command *c, struct follow *f, deadline d, struct pd_err *e)
{
    int stopped = 0;
    for (;;) {
        follow_look(f);
        int told = tell(c, f, e);
        if (told == TOLD_STOP)
            return 1;
        if (told == TOLD_SOMETHING)
            continue;
        if (f->ended)
            return 0;

        if (deadline_passed(d)) {
            if (stopped || process_stop(f->process, STOP_TIMEOUT, e) < 0)
                return stopped ? pd_fail(e, PD_INTERNAL, "the command does not end") : -1;
            stopped = 1;
            d = deadline_in(STOP_PATIENCE);
        }

        int r = follow_wait(f, lib_cancel_fd(c->cancel), 0, d, e);
        if (r)
            return r;
    }
}

/* Waits for the end; ends the command when its time is over or nobody wants it any more. */
static int attend(const struct start *q, struct process *p, struct pd_err *e)
{
    const struct paddock_command *c = &q->c;
    struct follow f;
    struct pd_err ignored;

    unsigned flags = FOLLOW_LISTENS | (c->on_output ? FOLLOW_HOLDS : 0);
    if (follow_begin(&f, p, NULL, flags, e) < 0) {
        (void)process_stop(p, STOP_ABANDONED, &ignored);
        return -1;
    }

    deadline d = q->r.timeout_ns ? deadline_in(q->r.timeout_ns) : DEADLINE_NONE;
    int r =
        c->on_output ? tell_all(c, &f, d, e) : follow_await_end(&f, lib_cancel_fd(c->cancel), d, e);

    if (r == 1 && c->key) {
        r = pd_fail(e, PD_LOST, "nobody waits for the command any more");
    } else if (r == 1 || (r < 0 && e->code == PD_TIMEOUT)) {
        r = process_stop(p, r == 1 ? STOP_ABANDONED : STOP_TIMEOUT, e);
        if (r == 0)
            r = follow_await_end(&f, -1, deadline_in(STOP_PATIENCE), e);
    }

    follow_end(&f);
    return r;
}

static int answer(const struct start *q, struct process *p, struct paddock_result *ret,
                  struct paddock_error *e)
{
    struct process_info i;
    struct paddock_result r = {0};
    struct pd_err why;

    process_get(p, &i, &why);
    if (i.refused)
        return lib_fail(e, &why);
    if (lib_is_cancelled(q->c.cancel) && i.stopped_by == STOP_ABANDONED)
        return lib_fail_or_cancelled(e, &why, q->c.cancel);

    uint64_t max = q->c.output_max ? q->c.output_max : OUTPUT_DEFAULT;
    fill_result(&r, &i);

    if (take_stream(p, &i, STREAM_OUT, max, &r.out, &r.out_len, &r.out_head) < 0 ||
        take_stream(p, &i, STREAM_ERR, max, &r.err, &r.err_len, &r.err_head) < 0) {
        free(r.out);
        return lib_refuse(e, PD_CAPACITY, "no memory for the output");
    }

    if (lib_give(ret, &r, sizeof r, "paddock_result", e) == 0)
        return 0;
    free(r.out);
    free(r.err);
    return -1;
}

int paddock_exec(struct paddock_sandbox *s, const struct paddock_command *c,
                 struct paddock_result *ret, struct paddock_error *e)
{
    auto_start q = {.argv = MSG_LIST_WRITER_INIT, .env = MSG_LIST_WRITER_INIT};
    struct process *p;
    struct pd_err why = {0};
    bool known;

    if (lib_usable(s->lib, e) < 0 || start_read(&q, c, 0, e) < 0)
        return -1;

    q.r.listens = 1;
    session_attend_begin(s->session);
    int r = session_start(s->session, &q.r, &p, &known, &why);
    if (r < 0) {
        lib_fail(e, &why);
    } else {
        r = attend(&q, p, &why);
        r = r < 0 ? lib_fail_or_cancelled(e, &why, q.c.cancel) : answer(&q, p, ret, e);
        process_let_go(p);
        process_unref(p);
    }

    session_attend_end(s->session);
    return r;
}

/* Every version of the struct has room for out and err, so they were always given. */
void paddock_result_done(struct paddock_result *r)
{
    if (!r)
        return;

    free(r->out);
    free(r->err);
    r->out = r->err = NULL;
    r->out_len = r->err_len = 0;
}

/* ---- in the background ---- */

struct paddock_process *paddock_start(struct paddock_sandbox *s, const struct paddock_command *c,
                                      struct paddock_error *e)
{
    auto_start q = {.argv = MSG_LIST_WRITER_INIT, .env = MSG_LIST_WRITER_INIT};
    struct process *p;
    struct pd_err why;
    bool known;

    if (lib_usable(s->lib, e) < 0 || start_read(&q, c, 1, e) < 0)
        return NULL;

    if (session_start(s->session, &q.r, &p, &known, &why) < 0) {
        lib_fail(e, &why);
        return NULL;
    }

    if (process_await_start(p, -1, &why) == 0)
        return lib_process(s->lib, p, e);

    process_unref(p);
    lib_fail(e, &why);
    return NULL;
}
