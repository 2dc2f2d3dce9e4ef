/* A process as a stream of events. A short command's answer is put together before anything is
 * sent, and goes out in one write; the start of one that takes longer is told at once. A client
 * that leaves ends the stream, never the process. */
#include "api/connect.h"
#include "api/e2b_process.h"

#include "base/banned.h"
#include "base/json.h"

#include <errno.h>
#include <poll.h>

#define PIECE          (32u << 10)
#define TERMINAL_MOST  (16u << 10)
#define HELD           (256u << 10) /* gathered for one write */
#define SHORT          (2 * NS_PER_MS)
#define STORE_PATIENCE (2 * NS_PER_S) /* a full disk keeps nobody from working */
#define STOP_PATIENCE  (5 * NS_PER_S)
#define LOOK_EVERY     (5 * NS_PER_S)

struct follow {
    struct call *c;
    struct process *p;
    struct watch watch;
    struct process_info info;
    struct pd_err why; /* it was refused */
    uint64_t offset[STREAM_COUNT];
    uint64_t end[STREAM_COUNT]; /* once it has ended: what its children write on is not told */
    int ended;
    int is_start, stopped;
    deadline d; /* of the request */
    uint64_t ping_ns;
    deadline ping_at;
    struct buf out;
};

/* ---- events ---- */

static void put_text(struct follow *f, const char *text)
{
    size_t at = connect_put_begin(&f->out, 0);
    (void)buf_puts(&f->out, text);
    connect_put_end(&f->out, at);
}

static void put_start(struct follow *f)
{
    size_t at = connect_put_begin(&f->out, 0);
    (void)buf_printf(&f->out, "{\"event\":{\"start\":{\"pid\":%d}}}", f->info.pid);
    connect_put_end(&f->out, at);
}

static void put_data(struct follow *f, unsigned stream, const void *data, size_t len)
{
    const char *kind = f->info.pty ? "pty" : stream == STREAM_OUT ? "stdout" : "stderr";
    size_t at = connect_put_begin(&f->out, 0);

    (void)buf_printf(&f->out, "{\"event\":{\"data\":{\"%s\":\"", kind);
    (void)base64_encode(&f->out, data, len);
    (void)buf_puts(&f->out, "\"}}}");
    connect_put_end(&f->out, at);
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

static void put_end(struct follow *f)
{
    const struct process_info *i = &f->info;
    struct json j = JSON_INIT(&f->out);
    char status[64], room[24];
    int code = i->signal ? -1 : i->exit_code;

    if (i->signal)
        snprintf(status, sizeof status, "signal: %s", signal_text(i->signal, room));
    else
        snprintf(status, sizeof status, "exit status %d", code);

    size_t at = connect_put_begin(&f->out, 0);
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
    connect_put_end(&f->out, at);
}

/* ---- output ---- */

/* One piece of one stream: 1, 0 when there is none, -1. */
static int gather_piece(struct follow *f, unsigned stream, struct pd_err *e)
{
    uint8_t piece[PIECE];
    size_t room = f->info.pty ? TERMINAL_MOST : sizeof piece;

    if (f->ended) {
        uint64_t left = f->end[stream] > f->offset[stream] ? f->end[stream] - f->offset[stream] : 0;
        if (!left)
            return 0;
        room = left < room ? (size_t)left : room;
    }

    ssize_t n = process_read(f->p, stream, f->offset[stream], piece, room, e);
    if (n < 0 && e->code == PD_INVALID)
        return pd_fail(e, PD_TOO_LARGE,
                       "output was forgotten before it could be sent: the client reads too slowly");
    if (n <= 0)
        return (int)n;

    f->offset[stream] += (uint64_t)n;
    process_follow(f->p, &f->watch, stream, f->offset[stream]);
    put_data(f, stream, piece, (size_t)n);
    return 1;
}

/* As much as one write takes. 1: there may be more, 0: that was all, -1. */
static int gather(struct follow *f, struct pd_err *e)
{
    while (f->out.len < HELD) {
        int some = 0;
        for (unsigned stream = 0; stream < STREAM_COUNT; stream++) {
            int r = gather_piece(f, stream, e);
            if (r < 0)
                return -1;
            some |= r;
        }
        if (!some)
            return 0;
    }
    return 1;
}

static int flush(struct follow *f, struct pd_err *e)
{
    if (!f->out.len)
        return 0;
    if (!f->c->r->status && connect_begin(f->c, e) < 0)
        return -1;
    if (connect_write(f->c, &f->out, 0, e) < 0)
        return -1;

    buf_clear(&f->out);
    f->ping_at = deadline_in(f->ping_ns);
    return 0;
}

/* ---- waiting ---- */

static void look(struct follow *f)
{
    watch_clear(&f->watch);
    process_get(f->p, &f->info, &f->why);
    if (!f->info.running && !f->ended) {
        f->ended = 1;
        memcpy(f->end, f->info.size, sizeof f->end);
    }
}

static deadline earlier(deadline a, deadline b)
{
    return a < b ? a : b;
}

/* Until there is news or the time has come. */
static int await(struct follow *f, deadline d, struct pd_err *e)
{
    struct pollfd fds[2] = {{.fd = f->watch.event, .events = POLLIN},
                            {.fd = conn_fd(f->c->r->conn), .events = POLLRDHUP}};

    int n = poll(fds, 2, deadline_poll_ms(earlier(d, deadline_in(LOOK_EVERY))));
    if (n < 0 && errno != EINTR)
        return pd_fail_sys(e, "wait for the process");
    if (n > 0 && fds[1].revents)
        return pd_fail(e, PD_LOST, "the client has gone away");
    return 0;
}

/* The request's time is over. Of the one that started the process this is the process's end. */
static int on_deadline(struct follow *f, struct pd_err *e)
{
    if (!f->is_start || f->stopped)
        return pd_fail(e, PD_TIMEOUT, "the time of this request is over");

    f->stopped = 1;
    f->d = deadline_in(STOP_PATIENCE);
    return process_stop(f->p, STOP_TIMEOUT, e);
}

/* Waits until the pid is known, and a moment longer, in case that is all the command takes. The
 * start of a longer command is told only after the command is stored: a client that knows a pid
 * must find the process by it, even if this daemon is killed now. */
static int await_start(struct follow *f, struct pd_err *e)
{
    deadline d = DEADLINE_NONE;
    int kept = 0;

    for (look(f); f->info.running; look(f)) {
        if (f->info.pid && d == DEADLINE_NONE)
            d = f->is_start ? deadline_in(SHORT) : 0;
        if (deadline_passed(d) && (f->info.stored || kept))
            break;
        if (deadline_passed(d)) {
            kept = 1;
            process_keep(f->p);
            d = deadline_in(STORE_PATIENCE);
        } else if (kept && f->info.stored) {
            break;
        }

        if (deadline_passed(f->d) && on_deadline(f, e) < 0)
            return -1;
        if (await(f, earlier(d, f->d), e) < 0)
            return -1;
    }
    return 0;
}

/* ---- the end ---- */

static int refuse(struct follow *f, struct pd_err *e)
{
    static const char no_cwd[] = "working directory '";

    *e = f->why;
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
static int finish(struct follow *f, struct pd_err *e)
{
    /* Not an end of the command's own: the stream breaks off. */
    if (f->info.stopped_by == STOP_SANDBOX)
        return pd_fail(e, PD_SESSION_LOST, "the sandbox has ended");

    if (f->is_start && f->info.timed_out) {
        if (flush(f, e) < 0)
            return -1;
        return pd_fail(e, PD_TIMEOUT, "the command took longer than its time");
    }

    put_end(f);
    connect_put_last(f->c, &f->out, NULL);

    if (!f->c->r->status)
        return connect_write(f->c, &f->out, 1, e);
    if (connect_write(f->c, &f->out, 0, e) < 0)
        return -1;
    return reply_end(f->c->r, e);
}

static int follow(struct follow *f, struct pd_err *e)
{
    if (await_start(f, e) < 0)
        return -1;
    if (f->info.refused)
        return refuse(f, e);

    put_start(f);
    for (;; look(f)) {
        int more = gather(f, e);
        if (more < 0)
            return -1;
        if (!more && f->ended)
            return finish(f, e);

        if (flush(f, e) < 0)
            return -1;
        if (more)
            continue;

        if (deadline_passed(f->d) && on_deadline(f, e) < 0)
            return -1;
        if (deadline_passed(f->ping_at))
            put_text(f, "{\"event\":{\"keepalive\":{}}}");
        else if (await(f, earlier(f->d, f->ping_at), e) < 0)
            return -1;
    }
}

int e2b_follow(struct call *c, struct process *p, const uint64_t offset[STREAM_COUNT], int is_start,
               uint64_t timeout_ns, struct pd_err *e)
{
    struct follow f = {.c = c,
                       .p = p,
                       .is_start = is_start,
                       .d = timeout_ns ? deadline_in(timeout_ns) : DEADLINE_NONE,
                       .ping_ns = connect_keepalive_ns(c),
                       .out = BUF_INIT(2 * HELD)};

    memcpy(f.offset, offset, sizeof f.offset);
    f.ping_at = deadline_in(f.ping_ns);
    if (process_watch(p, &f.watch, e) < 0)
        return -1;

    for (unsigned stream = 0; stream < STREAM_COUNT; stream++)
        process_follow(p, &f.watch, stream, offset[stream]);

    int r = follow(&f, e);
    process_unwatch(p, &f.watch);
    buf_done(&f.out);

    if (r < 0 && e->code == PD_LOST) {
        reply_abort(c->r); /* there is nobody to tell */
        r = 0;
    }
    return r;
}
