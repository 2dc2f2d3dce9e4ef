/* A watch is an eventfd in the process's list. Whatever changes the process writes to all of them;
 * each waiter clears its own, looks, and polls. */
#include "core/process_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>

#define PID_PATIENCE   (5 * NS_PER_S)
#define START_PATIENCE (60 * NS_PER_S)

int process_watch(struct process *p, struct watch *w, struct pd_err *e)
{
    w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->event < 0)
        return pd_fail_sys(e, "watch the process");

    w->follows = false;
    lock_take(&p->lock);
    w->next = p->watches;
    p->watches = w;
    lock_release(&p->lock);
    return 0;
}

void process_unwatch(struct process *p, struct watch *w)
{
    lock_take(&p->lock);
    for (struct watch **at = &p->watches; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }

    for (unsigned i = 0; i < process_stream_count(p) && w->follows; i++)
        stream_release(&p->streams[i]);
    lock_release(&p->lock);
    fd_done(&w->event);
}

void watch_clear(struct watch *w)
{
    uint64_t n;
    (void)!read(w->event, &n, sizeof n);
}

int watch_wait(struct watch *w, deadline d)
{
    struct pollfd p = {.fd = w->event, .events = POLLIN};
    return poll(&p, 1, deadline_poll_ms(d)) != 0;
}

int process_wait(struct process *p, struct watch *w, int other_fd, deadline d, struct pd_err *e)
{
    for (;;) {
        watch_clear(w);
        enum process_state state = process_state(p);
        if (!process_state_is_live(state))
            return 0;
        if (state == PROCESS_FINISHING)
            return pd_fail(e, PD_NO_SPACE,
                           "the command has ended, but the server has no space for its output: "
                           "free some; the output is there then, by its process_id");

        struct pollfd fds[2] = {{.fd = w->event, .events = POLLIN},
                                {.fd = other_fd, .events = POLLRDHUP}};
        int n = poll(fds, other_fd >= 0 ? 2 : 1, deadline_poll_ms(d));

        if (n < 0 && errno != EINTR)
            return pd_fail_sys(e, "wait for the process");
        if (n > 0 && other_fd >= 0 && fds[1].revents)
            return 1;
        if (n == 0 && deadline_passed(d))
            return pd_fail(e, PD_TIMEOUT, "the command did not end in time");
    }
}

/* 1 when its pid is known or it has ended; 0 when neither is known at the deadline, or when
 * `other_fd` hangs up. */
static int await_pid(struct process *p, int other_fd, deadline d, struct pd_err *e)
{
    struct watch w;
    struct process_info i;
    struct pd_err why;

    if (process_watch(p, &w, e) < 0)
        return -1;

    for (;;) {
        struct pollfd fds[2] = {{.fd = w.event, .events = POLLIN},
                                {.fd = other_fd, .events = POLLRDHUP}};
        watch_clear(&w);
        process_get(p, &i, &why);
        if (i.pid || !i.running)
            break;
        int n = poll(fds, 2, deadline_poll_ms(d));
        if (fds[1].revents || n == 0)
            break;
    }

    process_unwatch(p, &w);
    if (!i.refused)
        return i.pid || !i.running;
    *e = why;
    return -1;
}

int process_await_pid(struct process *p, struct pd_err *e)
{
    return await_pid(p, -1, deadline_in(PID_PATIENCE), e) < 0 ? -1 : 0;
}

int process_await_start(struct process *p, int other_fd, struct pd_err *e)
{
    int r = await_pid(p, other_fd, deadline_in(START_PATIENCE), e);
    char id[33];

    if (r)
        return r < 0 ? -1 : 0;
    wire_id_text(p->id, id);
    return pd_fail(e, PD_TIMEOUT,
                   "the sandbox has not told in time that the command has begun; its id is %s", id);
}
