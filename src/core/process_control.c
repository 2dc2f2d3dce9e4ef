/* Calls that act on a process: signals, input, the size of its terminal. Every call to the box is
 * made with the session's box held, and without the process's lock where it may take time. */
#include "core/process_state.h"

#include "core/session_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define SIGNAL_PATIENCE (10 * NS_PER_S)
#define SEND_FDS_MAX    8u

static int with_box(struct process *p, struct pd_err *e)
{
    rw_read(&p->session->box_use);
    if (p->session->box)
        return 0;
    rw_release(&p->session->box_use);
    return session_no_box(p->session, e);
}

/* Also of a command that has ended: children of it may still run. Its group must be its own until
 * the kill is done, or it would hit the command that has the number next. */
int process_kill_tree(struct process *p, bool running, struct pd_err *e)
{
    struct session *s = p->session;
    lock_take(&s->lock);
    bool held = group_kill_begin(s, p->group, p->serial);
    lock_release(&s->lock);
    if (!held && !running)
        return 0;

    int r = with_box(p, e);
    if (r == 0) {
        r = box_kill(s->box, p->id, held ? p->group : 0, e);
        rw_release(&s->box_use);
    }

    lock_take(&s->lock);
    if (held)
        group_kill_end(s, p->group);
    lock_release(&s->lock);
    return r;
}

int process_stop(struct process *p, enum process_stop why, struct pd_err *e)
{
    lock_take(&p->lock);
    bool running = process_is_live(p);
    if (!process_has_end(p) && p->stop == STOP_NONE)
        p->stop = why;
    lock_release(&p->lock);

    return process_kill_tree(p, running, e);
}

/* In a box that stands still nothing ends; elsewhere a busy machine may need longer than it seems.
 */
static uint64_t kill_patience(struct process *p)
{
    struct session *s = p->session;
    lock_take(&s->lock);
    bool paused = s->info.state == SESSION_PAUSED;
    lock_release(&s->lock);
    return paused ? NS_PER_S : SIGNAL_PATIENCE;
}

/* Waits for the end. One that was just about to start is killed again when it has. */
static int kill_and_wait(struct process *p, struct pd_err *e)
{
    deadline d = deadline_in(kill_patience(p));

    for (;;) {
        struct watch w;
        if (process_stop(p, STOP_KILLED, e) < 0 || process_watch(p, &w, e) < 0)
            return -1;

        int r = process_wait(p, &w, -1, deadline_in(NS_PER_S), e);
        process_unwatch(p, &w);
        if (r < 0 && e->code == PD_NO_SPACE)
            return 0; /* it has ended, too */
        if (r == 0 || e->code != PD_TIMEOUT || deadline_passed(d))
            return r;
    }
}

int process_signal(struct process *p, int signal, struct pd_err *e)
{
    if (signal == SIGKILL)
        return kill_and_wait(p, e);

    if (!process_state_is_live(process_state(p)))
        return pd_fail(e, PD_CONFLICT, "process %d has ended already", p->pid);
    if (with_box(p, e) < 0)
        return -1;

    int r = box_signal(p->session->box, p->id, signal, deadline_in(SIGNAL_PATIENCE), e);
    rw_release(&p->session->box_use);
    return r;
}

int process_write(struct process *p, const void *data, size_t len, deadline d, struct pd_err *e)
{
    const char *at = data;
    /* A copy of the descriptor, so that it can be waited for without the lock. */
    lock_take(&p->lock);
    auto_fd fd = p->input >= 0 && process_is_live(p) ? fcntl(p->input, F_DUPFD_CLOEXEC, 3) : -1;
    lock_release(&p->lock);
    if (fd < 0)
        return pd_fail(e, PD_CONFLICT,
                       "stdin of process %d is closed, or was never open: start "
                       "it with \"stdin\": true",
                       p->pid);

    while (len) {
        ssize_t n = write(fd, at, len);
        if (n > 0) {
            at += n;
            len -= (size_t)n;
            continue;
        }
        if (n < 0 && errno == EPIPE)
            return pd_fail(e, PD_CONFLICT, "process %d does not read its stdin any more", p->pid);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return pd_fail_sys(e, "write to process %d", p->pid);

        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        if (poll(&wait, 1, deadline_poll_ms(d)) == 0)
            return pd_fail(e, PD_TIMEOUT, "process %d does not read its stdin: %zu bytes are left",
                           p->pid, len);
    }
    return 0;
}

/* One message: bytes that were taken, or -1 with errno. */
static ssize_t send_some(int fd, const void *data, size_t len, const int *fds, unsigned fd_count)
{
    union {
        char space[CMSG_SPACE(SEND_FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};

    if (fd_count) {
        memset(&control, 0, sizeof control);
        m.msg_control = control.space;
        m.msg_controllen = CMSG_SPACE(fd_count * sizeof *fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(fd_count * sizeof *fds);
        memcpy(CMSG_DATA(c), fds, fd_count * sizeof *fds);
    }
    return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int process_send(struct process *p, const void *data, size_t len, const int *fds, unsigned fd_count,
                 deadline d, struct pd_err *e)
{
    const char *at = data;
    lock_take(&p->lock);
    auto_fd fd = p->input >= 0 && process_is_live(p) ? fcntl(p->input, F_DUPFD_CLOEXEC, 3) : -1;
    lock_release(&p->lock);

    while (len && fd >= 0) {
        ssize_t n = send_some(fd, at, len, fds, fd_count);
        if (n > 0) {
            at += n;
            len -= (size_t)n;
            fd_count = 0;
            continue;
        }
        if (n < 0 && errno == EPIPE)
            break;
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return pd_fail_sys(e, "send to process %d", p->pid);

        struct pollfd w = {.fd = fd, .events = POLLOUT};
        if (poll(&w, 1, deadline_poll_ms(d)) == 0 && deadline_passed(d))
            return pd_fail(e, PD_TIMEOUT, "process %d does not read: %zu bytes are left", p->pid,
                           len);
    }
    return len ? pd_fail(e, PD_LOST, "process %d does not read any more", p->pid) : 0;
}

bool process_has_unread(struct process *p)
{
    int unread = 0;
    lock_take(&p->lock);
    if (p->input < 0 || ioctl(p->input, TIOCOUTQ, &unread) < 0)
        unread = 0;
    lock_release(&p->lock);
    return unread > 0;
}

int process_close_stdin(struct process *p, struct pd_err *e)
{
    if (p->pty)
        return pd_fail(e, PD_INVALID, "a terminal's input cannot be closed: send it ^D (\\x04)");

    lock_take(&p->lock);
    int fd = p->input;
    p->input = -1;
    int stashed = p->stashed_input;
    p->stashed_input = false;
    lock_release(&p->lock);

    if (fd < 0)
        return pd_fail(e, PD_CONFLICT, "stdin of process %d is closed already", p->pid);
    if (stashed) {
        /* The command sees the end only when every copy is closed. */
        char key[MSG_KEY_MAX + 1];
        process_stash_key(p, "in", key);
        stash_drop(p->provider, key);
    }

    fd_done(&fd);
    return 0;
}

int process_resize(struct process *p, uint16_t rows, uint16_t cols, struct pd_err *e)
{
    if (!p->pty)
        return pd_fail(e, PD_INVALID, "process %d has no terminal", p->pid);
    if (with_box(p, e) < 0)
        return -1;

    lock_take(&p->lock);
    int r = p->input < 0 ? pd_fail(e, PD_CONFLICT, "the terminal of process %d is closed", p->pid)
                         : box_resize(p->session->box, p->id, p->input, rows, cols, e);
    lock_release(&p->lock);
    rw_release(&p->session->box_use);
    return r;
}
