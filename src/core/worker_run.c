/* How this works: a worker is a process in the sandbox that answers in records over a pipe.
 * Whatever comes out of it is hostile until checked: a record that breaks the format, comes half,
 * or not at all within its time is an error of the sandbox. When the pipe ends without a word, the
 * end of the process and the state of the session tell why. */
#include "core/worker_run.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#define PIPE_WIDE (1 << 20)
#define EXIT_NS   (5 * NS_PER_S)  /* from the end of its output to the word that it has ended */
#define HALF_NS   (10 * NS_PER_S) /* for the rest of a record that has begun */

int worker_run_begin(struct worker_run *w, struct session *s, int waits, const char *user,
                     unsigned flags, const char *const *words, struct pd_err *e)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    int bad = 0;
    for (; *words; words++)
        bad |= msg_list_add(&argv, *words);

    struct msg_list list = msg_list_of(&argv);
    int r = bad ? pd_fail(e, PD_TOO_LARGE,
                          "the request is too long: its texts together may have "
                          "%u bytes",
                          WIRE_PAYLOAD_MAX / 2)
                : session_worker(s, &list, user, flags, &w->call, e);
    msg_list_writer_done(&argv);
    if (r < 0)
        return -1;

    w->session = s;
    w->waits = waits;
    w->begun = true;
    w->stream.fd = w->call.out;
    w->whole = deadline_in(WORKER_WHOLE_NS);
    return 0;
}

void worker_done(struct worker_run *w)
{
    if (w->begun)
        session_worker_end(&w->call, !w->ended);
    buf_done(&w->scratch);
    record_stream_done(&w->stream);
    w->begun = false;
}

/* Why the sandbox does not answer any more, if that is known; otherwise 0. */
static int explain_session(struct worker_run *w, struct pd_err *e)
{
    struct session_info i;
    session_get(w->session, &i);
    if (i.state == SESSION_PAUSED)
        return pd_fail(e, PD_PAUSED, "sandbox %s was paused meanwhile; resume it and ask again",
                       i.id);
    if (i.state != SESSION_RUNNING)
        return pd_fail(e, PD_SESSION_LOST, "sandbox %s ended meanwhile%s%.120s", i.id,
                       *i.end_reason ? ": " : "", i.end_reason);
    return 0;
}

static int wait_exit(struct worker_run *w, struct process_info *ret, struct pd_err *why)
{
    struct watch watch = {.event = -1};
    if (process_watch(w->call.process, &watch, NULL) < 0)
        return -1;

    int r = process_wait(w->call.process, &watch, -1, deadline_in(EXIT_NS), NULL);
    process_unwatch(w->call.process, &watch);
    if (r < 0)
        return -1;

    w->ended = 1;
    process_get(w->call.process, ret, why);
    return 0;
}

/* The output ended without a word. */
static int explain_end(struct worker_run *w, struct pd_err *e)
{
    struct process_info i = {0};
    struct pd_err why = {0};

    int known = wait_exit(w, &i, &why) == 0;
    if (explain_session(w, e) < 0)
        return -1;
    if (known && i.refused) {
        if (e)
            *e = why;
        return -1;
    }

    if (known && (i.stopped_by == STOP_OOM || i.stopped_by == STOP_PIDS))
        return pd_fail(e, PD_CAPACITY,
                       "the sandbox has no %s left for this; end something in it, or use a larger "
                       "limit",
                       i.stopped_by == STOP_OOM ? "memory" : "processes");
    return pd_fail(
        e, PD_BAD_GATEWAY,
        "the file operation was killed in the sandbox before it had answered; ask again");
}

/* Raises a worker's ERROR, whose code may say nothing about keys, sessions or this server. */
static int raise_error(struct worker_run *w, const struct record *r, struct pd_err *e)
{
    struct pd_err said = {0};
    (void)record_raise(r, "a worker", &said);

    switch (said.code) {
    case PD_INVALID:
    case PD_NOT_FOUND:
    case PD_CONFLICT:
    case PD_TOO_LARGE:
    case PD_DENIED:
    case PD_UNSUPPORTED:
    case PD_CAPACITY:
    case PD_NO_SPACE:
    case PD_TIMEOUT:
        break;
    default:
        if (r->kind == RECORD_ERROR)
            said.code = PD_BAD_GATEWAY;
    }

    if (r->kind == RECORD_ERROR)
        w->ended = 1;
    if (e)
        *e = said;
    return -1;
}

int worker_wait(struct worker_run *w, deadline d, struct pd_err *e)
{
    struct pollfd p[2] = {{.fd = w->call.out, .events = POLLIN},
                          {.fd = w->must_finish ? -1 : w->waits, .events = POLLRDHUP}};

    for (;;) {
        int n = poll(p, 2, deadline_poll_ms(d));
        if (n < 0 && errno != EINTR)
            return pd_fail_sys(e, "wait for the sandbox");
        if (n >= 0 && p[0].revents)
            return 1;
        if (n > 0 && p[1].revents)
            return pd_fail(e, PD_LOST, "whoever waited for the answer has left");
        if (n == 0)
            return 0;
    }
}

static deadline quiet_deadline(const struct worker_run *w)
{
    deadline d = deadline_in(w->quiet_ns);
    return d < w->whole ? d : w->whole;
}

static int wait_answer(struct worker_run *w, struct pd_err *e)
{
    int r = worker_wait(w, quiet_deadline(w), e);
    if (r == 0 && explain_session(w, e) == 0)
        pd_fail(e, PD_TIMEOUT,
                "the sandbox did not answer in time: it is overloaded, or the operation too large; "
                "narrow it");
    return r > 0 ? 0 : -1;
}

/* A record that came half: what is inside does not keep to the rules. */
static int broken(struct pd_err *e)
{
    if (e && e->code == PD_TIMEOUT)
        e->code = PD_PROTOCOL;
    return -1;
}

int worker_first(struct worker_run *w, struct record *ret, struct pd_err *e)
{
    struct record r;
    if (wait_answer(w, e) < 0)
        return -1;

    int got = record_read(w->call.out, &w->scratch, &r, deadline_in(HALF_NS), e);
    if (got < 0)
        return broken(e);
    if (got == 0)
        return explain_end(w, e);

    if (r.kind == RECORD_ERROR)
        return raise_error(w, &r, e);
    *ret = r;
    return 0;
}

int worker_expect(struct worker_run *w, enum record_kind kind, struct record *ret, struct pd_err *e)
{
    struct record r;
    if (worker_first(w, &r, e) < 0)
        return -1;
    if (r.kind != kind)
        return raise_error(w, &r, e);
    *ret = r;
    return 0;
}

bool worker_has_next(const struct worker_run *w)
{
    const struct record_stream *s = &w->stream;
    size_t left = s->in.len - s->used;

    uint32_t head[2];
    if (left < sizeof head)
        return false;
    memcpy(head, s->in.data + s->used, sizeof head);
    return head[0] > RECORD_MAX || left - sizeof head >= head[0]; /* nonsense needs no waiting */
}

int worker_next(struct worker_run *w, struct record *ret, struct pd_err *e)
{
    struct record r;
    if (deadline_passed(w->whole))
        return pd_fail(e, PD_TIMEOUT, "the operation takes too long; narrow it");
    if (!worker_has_next(w) && wait_answer(w, e) < 0)
        return -1;

    int got = record_next(&w->stream, &r, deadline_in(HALF_NS), e);
    if (got < 0)
        return broken(e);
    if (got == 0)
        return explain_end(w, e);
    if (r.kind == RECORD_ERROR)
        return raise_error(w, &r, e);

    if (r.kind == RECORD_END) {
        w->ended = 1;
        return 0;
    }
    *ret = r;
    return 1;
}

int worker_exit(struct worker_run *w, struct pd_err *e)
{
    struct process_info i = {0};
    struct pd_err why;

    if (wait_exit(w, &i, &why) == 0 && !i.refused && i.exit_code == 0 && !i.signal)
        return 0;
    return pd_fail(e, PD_LOST, "the sandbox broke its answer off");
}

int worker_write(struct worker_run *w, const void *data, size_t len, struct pd_err *e)
{
    const uint8_t *at = data;

    while (len > 0) {
        ssize_t n = write(w->call.in, at, len);
        if (n > 0) {
            at += n;
            len -= (size_t)n;
            continue;
        }

        struct pollfd p[2] = {{.fd = w->call.in, .events = POLLOUT},
                              {.fd = w->call.out, .events = POLLIN}};
        struct record r;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN && poll(p, 2, deadline_poll_ms(quiet_deadline(w))) > 0 &&
            !p[1].revents)
            continue;

        /* It has ended and has said why, or it is silent. */
        if (worker_first(w, &r, e) == 0)
            pd_fail(e, PD_PROTOCOL, "a worker was content before it had everything");
        return -1;
    }
    return 0;
}

ssize_t worker_read(struct worker_run *w, void *out, size_t size, struct pd_err *e)
{
    for (;;) {
        ssize_t n = read(w->call.out, out, size);
        if (n >= 0)
            return n;
        if (errno != EAGAIN && errno != EINTR)
            return pd_fail_sys(e, "read from the sandbox");
        if (wait_answer(w, e) < 0)
            return -1;
    }
}

void worker_commit(struct worker_run *w)
{
    static const char word = WORKER_COMMIT_WORD;
    (void)fd_write_all(w->call.go, &word, 1);
}

void worker_widen(int pipe)
{
    (void)fcntl(pipe, F_SETPIPE_SZ, PIPE_WIDE); /* or it stays as it is */
}

void file_path(char out[FILE_PATH_SIZE], const char *path)
{
    snprintf(out, FILE_PATH_SIZE, "%s%.*s", path[0] == '/' ? "" : "/workspace/", FILE_PATH_MAX,
             path);
}
