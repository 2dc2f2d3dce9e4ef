/* Processes of a sandbox as handles: finding them, reading their output, waiting for news of them,
 * and their signals, input and terminal size. A handle holds the process and the library. */
#include "lib/lib.h"

#include "base/banned.h"
#include "core/process.h"

#include <errno.h>
#include <poll.h>

static uint64_t patience(uint64_t ms)
{
    return ms > UINT64_MAX / NS_PER_MS ? UINT64_MAX : ms * NS_PER_MS;
}

/* ---- handles ---- */

struct paddock_process *lib_process(struct paddock *p, struct process *held,
                                    struct paddock_error *e)
{
    struct paddock_process *h = malloc(sizeof *h);
    if (!h) {
        lib_refuse(e, PD_CAPACITY, "no memory for a handle");
        process_unref(held);
        return NULL;
    }

    *h = (struct paddock_process){.lib = lib_ref(p), .process = held};
    return h;
}

void paddock_process_release(struct paddock_process *p)
{
    if (!p)
        return;

    if (!atomic_load(&p->lib->forked))
        process_unref(p->process);
    lib_unref(p->lib);
    free(p);
}

struct paddock_process *paddock_find_process(struct paddock_sandbox *s, const char *pid_or_id,
                                             struct paddock_error *e)
{
    struct pd_err why;

    if (lib_usable(s->lib, e) < 0)
        return NULL;

    struct process *p = session_find_process(s->session, pid_or_id, &why);
    if (p)
        return lib_process(s->lib, p, e);
    lib_fail(e, &why);
    return NULL;
}

struct each_call {
    struct paddock *lib;
    int (*each)(void *arg, struct paddock_process *p);
    void *arg;
};

static int call_each(struct process *p, void *arg)
{
    struct each_call *c = arg;
    struct paddock_process h = {.lib = c->lib, .process = p};
    return c->each(c->arg, &h);
}

int paddock_each_process(struct paddock_sandbox *s,
                         int (*each)(void *arg, struct paddock_process *p), void *arg,
                         struct paddock_error *e)
{
    struct each_call c = {.lib = s->lib, .each = each, .arg = arg};
    if (lib_usable(s->lib, e) < 0)
        return -1;

    session_each_process(s->session, call_each, &c);
    return 0;
}

/* ---- looking ---- */

int paddock_process_get(struct paddock_process *p, struct paddock_process_info *ret,
                        struct paddock_error *e)
{
    struct process_info i;

    if (lib_usable(p->lib, e) < 0)
        return -1;

    process_get(p->process, &i, NULL);
    const char *stop = process_stop_name(i.stopped_by);
    struct paddock_process_info o = {.pid = i.pid,
                                     .running = i.running,
                                     .exit_code = i.exit_code,
                                     .signal = i.signal,
                                     .timed_out = i.timed_out,
                                     .state = i.shell ? i.state_updated : -1,
                                     .pty = i.pty,
                                     .background = i.background,
                                     .stdin_open = i.stdin_open,
                                     .started_ms = i.started_ms,
                                     .ended_ms = i.ended_ms,
                                     .duration_us = i.duration_us,
                                     .cpu_usec = i.cpu_usec,
                                     .max_rss = i.max_rss,
                                     .out_bytes = i.size[STREAM_OUT],
                                     .err_bytes = i.size[STREAM_ERR],
                                     .out_first = i.first[STREAM_OUT],
                                     .err_first = i.first[STREAM_ERR]};

    snprintf(o.id, sizeof o.id, "%s", i.id);
    snprintf(o.stopped_by, sizeof o.stopped_by, "%s", stop ? stop : "");
    snprintf(o.command, sizeof o.command, "%s", i.command);
    return lib_give(ret, &o, sizeof o, "paddock_process_info", e);
}

ssize_t paddock_process_read(struct paddock_process *p, int stream, uint64_t offset, void *out,
                             size_t size, struct paddock_error *e)
{
    struct pd_err why;

    if (lib_usable(p->lib, e) < 0)
        return -1;

    if (stream != PADDOCK_STDOUT && stream != PADDOCK_STDERR)
        return lib_refuse(e, PD_INVALID, "stream %d: there are 0 and 1", stream);

    ssize_t n = process_read(p->process, (unsigned)stream, offset, out, size, &why);
    return n < 0 ? lib_fail(e, &why) : n;
}

/* 1: there is news, 0: not, -1. */
static int await_news(struct process *p, struct watch *w, const uint64_t offset[STREAM_COUNT],
                      const struct paddock_cancel *cancel, deadline d, struct pd_err *e)
{
    int fd = lib_cancel_fd(cancel);

    for (;;) {
        struct process_info i;
        watch_clear(w);
        process_get(p, &i, NULL);

        if (!i.running || i.size[STREAM_OUT] > offset[STREAM_OUT] ||
            i.size[STREAM_ERR] > offset[STREAM_ERR])
            return 1;

        struct pollfd fds[2] = {{.fd = w->event, .events = POLLIN}, {.fd = fd}};
        int n = poll(fds, fd >= 0 ? 2 : 1, deadline_poll_ms(d));
        if (n < 0 && errno != EINTR)
            return pd_fail_sys(e, "wait for the process");
        if (n > 0 && fd >= 0 && fds[1].revents)
            return pd_fail(e, PD_LOST, "cancelled");
        if (n == 0 && deadline_passed(d))
            return 0;
    }
}

int paddock_process_wait(struct paddock_process *p, uint64_t out_offset, uint64_t err_offset,
                         uint64_t timeout_ms, struct paddock_cancel *cancel,
                         struct paddock_error *e)
{
    const uint64_t offset[STREAM_COUNT] = {out_offset, err_offset};
    struct watch w;
    struct pd_err why;

    if (lib_usable(p->lib, e) < 0)
        return -1;
    if (process_watch(p->process, &w, &why) < 0)
        return lib_fail(e, &why);

    uint64_t ns = patience(timeout_ms);
    deadline d = ns == UINT64_MAX ? DEADLINE_NONE : deadline_in(ns);
    int r = await_news(p->process, &w, offset, cancel, d, &why);
    process_unwatch(p->process, &w);
    return r < 0 ? lib_fail_or_cancelled(e, &why, cancel) : r;
}

/* ---- what is done to one ---- */

int paddock_process_signal(struct paddock_process *p, int signal, struct paddock_error *e)
{
    struct pd_err why;

    if (lib_usable(p->lib, e) < 0)
        return -1;

    if (signal < 1 || signal > 64)
        return lib_refuse(e, PD_INVALID, "signal %d: 1 to 64", signal);
    return process_signal(p->process, signal, &why) < 0 ? lib_fail(e, &why) : 0;
}

int paddock_process_write(struct paddock_process *p, const void *data, size_t len,
                          uint64_t timeout_ms, struct paddock_error *e)
{
    struct pipe_guard guard;
    struct pd_err why;

    if (lib_usable(p->lib, e) < 0)
        return -1;

    pipe_guard_begin(&guard);
    int r = process_write(p->process, data, len, deadline_in(patience(timeout_ms)), &why);
    pipe_guard_end(&guard);
    return r < 0 ? lib_fail(e, &why) : 0;
}

int paddock_process_close_stdin(struct paddock_process *p, struct paddock_error *e)
{
    struct pd_err why;
    if (lib_usable(p->lib, e) < 0)
        return -1;
    return process_close_stdin(p->process, &why) < 0 ? lib_fail(e, &why) : 0;
}

int paddock_process_resize(struct paddock_process *p, unsigned rows, unsigned cols,
                           struct paddock_error *e)
{
    struct pd_err why;

    if (lib_usable(p->lib, e) < 0)
        return -1;
    if (!rows || rows > 1000 || !cols || cols > 1000)
        return lib_refuse(e, PD_INVALID, "%u rows of %u columns: 1 to 1000 each", rows, cols);
    return process_resize(p->process, (uint16_t)rows, (uint16_t)cols, &why) < 0 ? lib_fail(e, &why)
                                                                                : 0;
}
