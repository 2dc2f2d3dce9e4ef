/* A process as a stream of events. A short command's answer is put together before anything is
 * sent, and goes out in one write; the start of one that takes longer is told at once. A client
 * that leaves ends the stream, never the process. */
#include "api/connect.h"
#include "api/e2b_process.h"

#include "base/banned.h"
#include "base/json.h"
#include "core/follow.h"

#include <poll.h>

#define PIECE          (32u << 10)
#define TERMINAL_MOST  (16u << 10)
#define HELD           (256u << 10) /* gathered for one write */
#define SHORT          (4 * NS_PER_MS)
#define STORE_PATIENCE (2 * NS_PER_S) /* a full disk keeps nobody from working */
#define STOP_PATIENCE  (5 * NS_PER_S)
#define LOOK_EVERY     (5 * NS_PER_S)

struct telling {
    struct call *c;
    struct follow f;
    bool is_start, stopped;
    deadline d; /* of the request */
    uint64_t ping_ns;
    deadline ping_at;
    struct buf out;
};

/* ---- events ---- */

static void put_text(struct telling *t, const char *text)
{
    size_t at = connect_put_begin(&t->out, 0);
    (void)buf_puts(&t->out, text);
    connect_put_end(&t->out, at);
}

static void put_start(struct telling *t)
{
    size_t at = connect_put_begin(&t->out, 0);
    (void)buf_printf(&t->out, "{\"event\":{\"start\":{\"pid\":%d}}}", t->f.info.pid);
    connect_put_end(&t->out, at);
}

static void put_data(struct telling *t, unsigned stream, const void *data, size_t len)
{
    const char *kind = t->f.info.pty ? "pty" : stream == STREAM_OUT ? "stdout" : "stderr";
    size_t at = connect_put_begin(&t->out, 0);

    (void)buf_printf(&t->out, "{\"event\":{\"data\":{\"%s\":\"", kind);
    (void)base64_encode(&t->out, data, len);
    (void)buf_puts(&t->out, "\"}}}");
    connect_put_end(&t->out, at);
}

/* As Go names them, because envd is written in it. */
static const char *signal_text(int number, char room[24])
{
    static const char *const names[] = {NULL,
                                        "hangup",
                                        "interrupt",
                                        "quit",
                                        "illegal instruction",
                                        "trace/breakpoint trap",
                                        "aborted",
                                        "bus error",
                                        "floating point exception",
                                        "killed",
                                        "user defined signal 1",
                                        "segmentation fault",
                                        "user defined signal 2",
                                        "broken pipe",
                                        "alarm clock",
                                        "terminated"};
    if (number > 0 && (size_t)number < sizeof names / sizeof *names)
        return names[number];
    snprintf(room, 24, "signal %d", number);
    return room;
}

static void put_end(struct telling *t)
{
    const struct process_info *i = &t->f.info;
    struct json j = JSON_INIT(&t->out);
    char status[64], room[24];
    int code = i->signal ? -1 : i->exit_code;

    if (i->signal)
        snprintf(status, sizeof status, "signal: %s", signal_text(i->signal, room));
    else
        snprintf(status, sizeof status, "exit status %d", code);

    size_t at = connect_put_begin(&t->out, 0);
    json_open(&j, '{');
    json_key(&j, "event");
    json_open(&j, '{');
    json_key(&j, "end");
    json_open(&j, '{');

    if (code)
        json_member_int(&j, "exitCode", code);
    if (!i->signal)
        json_member_bool(&j, "exited", 1);
    json_member_cstr(&j, "status", status);
    if (code)
        json_member_cstr(&j, "error", status);

    json_close(&j, '}');
    json_close(&j, '}');
    json_close(&j, '}');
    connect_put_end(&t->out, at);
}

/* ---- output ---- */

/* One piece of one stream: 1, 0 when there is none, -1. */
static int gather_piece(struct telling *t, unsigned stream, struct pd_err *e)
{
    uint8_t piece[PIECE];
    size_t room = t->f.info.pty ? TERMINAL_MOST : sizeof piece;

    ssize_t n = follow_read(&t->f, stream, piece, room, e);
    if (t->f.skipped)
        return pd_fail(e, PD_TOO_LARGE,
                       "output was forgotten before it could be sent: the client reads too slowly");
    if (n <= 0)
        return (int)n;

    put_data(t, stream, piece, (size_t)n);
    return 1;
}

/* As much as one write takes. 1: there may be more, 0: that was all, -1. */
static int gather(struct telling *t, struct pd_err *e)
{
    while (t->out.len < HELD) {
        int some = 0;
        for (unsigned stream = 0; stream < STREAM_COUNT; stream++) {
            int r = gather_piece(t, stream, e);
            if (r < 0)
                return -1;
            some |= r;
        }
        if (!some)
            return 0;
    }
    return 1;
}

static int flush(struct telling *t, struct pd_err *e)
{
    if (!t->out.len)
        return 0;
    if (!t->c->r->status && connect_begin(t->c, e) < 0)
        return -1;
    if (connect_write(t->c, &t->out, 0, e) < 0)
        return -1;

    buf_clear(&t->out);
    t->ping_at = deadline_in(t->ping_ns);
    return 0;
}

/* ---- waiting ---- */

static deadline earlier(deadline a, deadline b)
{
    return a < b ? a : b;
}

/* Until there is news or the time has come. */
static int await(struct telling *t, deadline d, struct pd_err *e)
{
    int r = follow_wait(&t->f, conn_fd(t->c->r->conn), POLLRDHUP,
                        earlier(d, deadline_in(LOOK_EVERY)), e);
    return r > 0 ? pd_fail(e, PD_LOST, "the client has gone away") : r;
}

/* The request's time is over. Of the one that started the process this is the process's end. */
static int on_deadline(struct telling *t, struct pd_err *e)
{
    if (!t->is_start || t->stopped)
        return pd_fail(e, PD_TIMEOUT, "the time of this request is over");

    t->stopped = 1;
    t->d = deadline_in(STOP_PATIENCE);
    return process_stop(t->f.process, STOP_TIMEOUT, e);
}

/* Waits until the pid is known, and a moment longer, in case that is all the command takes. The
 * start of a longer command is told only after the command is stored: a client that knows a pid
 * must find the process by it, even if this daemon is killed now. */
static int await_start(struct telling *t, struct pd_err *e)
{
    deadline d = DEADLINE_NONE;
    int kept = 0;

    for (follow_look(&t->f); t->f.info.running; follow_look(&t->f)) {
        if (t->f.info.pid && d == DEADLINE_NONE)
            d = t->is_start ? deadline_in(SHORT) : 0;
        if (deadline_passed(d) && (t->f.info.stored || kept))
            break;
        if (deadline_passed(d)) {
            kept = 1;
            process_keep(t->f.process);
            d = deadline_in(STORE_PATIENCE);
        } else if (kept && t->f.info.stored) {
            break;
        }

        if (deadline_passed(t->d) && on_deadline(t, e) < 0)
            return -1;
        if (await(t, earlier(d, t->d), e) < 0)
            return -1;
    }
    return 0;
}

/* ---- the end ---- */

static int refuse(struct telling *t, struct pd_err *e)
{
    static const char no_cwd[] = "working directory '";

    *e = t->f.why;
    if (e->code == PD_INVALID && !strncmp(e->msg, no_cwd, strlen(no_cwd))) {
        char path[sizeof e->msg];
        const char *at = e->msg + strlen(no_cwd), *end = strstr(at, "': ");
        if (!end || strcmp(end, "': No such file or directory") != 0)
            return -1;
        snprintf(path, sizeof path, "%.*s", (int)(end - at), at);
        return pd_fail(e, PD_INVALID, "cwd '%.200s' does not exist", path);
    }

    if (e->code == PD_NO_COMMAND || e->code == PD_NOT_EXECUTABLE)
        e->code = PD_INVALID;
    return -1;
}

/* The process has ended, and all of its output is gathered. */
static int finish(struct telling *t, struct pd_err *e)
{
    /* Not an end of the command's own: the stream breaks off. */
    if (t->f.info.stopped_by == STOP_SANDBOX)
        return pd_fail(e, PD_SESSION_LOST, "the sandbox has ended");

    if (t->is_start && t->f.info.timed_out) {
        if (flush(t, e) < 0)
            return -1;
        return pd_fail(e, PD_TIMEOUT, "the command took longer than its time");
    }

    put_end(t);
    connect_put_last(t->c, &t->out, NULL);

    if (!t->c->r->status)
        return connect_write(t->c, &t->out, 1, e);
    if (connect_write(t->c, &t->out, 0, e) < 0)
        return -1;
    return reply_end(t->c->r, e);
}

static int tell(struct telling *t, struct pd_err *e)
{
    if (await_start(t, e) < 0)
        return -1;
    if (t->f.info.refused)
        return refuse(t, e);

    put_start(t);
    for (;; follow_look(&t->f)) {
        int more = gather(t, e);
        if (more < 0)
            return -1;
        if (!more && t->f.ended)
            return finish(t, e);

        if (flush(t, e) < 0)
            return -1;
        if (more)
            continue;

        if (deadline_passed(t->d) && on_deadline(t, e) < 0)
            return -1;
        if (deadline_passed(t->ping_at))
            put_text(t, "{\"event\":{\"keepalive\":{}}}");
        else if (await(t, earlier(t->d, t->ping_at), e) < 0)
            return -1;
    }
}

int e2b_follow(struct call *c, struct process *p, const uint64_t offset[STREAM_COUNT], int is_start,
               uint64_t timeout_ns, struct pd_err *e)
{
    struct telling t = {.c = c,
                        .is_start = is_start,
                        .d = timeout_ns ? deadline_in(timeout_ns) : DEADLINE_NONE,
                        .ping_ns = connect_keepalive_ns(c),
                        .out = BUF_INIT(2 * HELD)};

    t.ping_at = deadline_in(t.ping_ns);
    if (follow_begin(&t.f, p, offset, FOLLOW_HOLDS | (is_start ? FOLLOW_LISTENS : 0), e) < 0)
        return -1;

    int r = tell(&t, e);
    follow_end(&t.f);
    buf_done(&t.out);

    if (r < 0 && e->code == PD_LOST) {
        reply_abort(c->r); /* there is nobody to tell */
        r = 0;
    }
    return r;
}
