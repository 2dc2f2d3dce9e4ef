/* Waiting for descriptors until a deadline. A wait that a signal interrupts goes on with the time
 * that is left. */
#include "net/wait.h"

#include "base/err.h"

#include "base/banned.h"

#include <errno.h>
#include <poll.h>

/* 1 ready, 0 time is up, -errno. */
static int poll_until(struct pollfd *fds, nfds_t count, deadline d)
{
    for (;;) {
        struct timespec t, *timeout = NULL;
        if (d != DEADLINE_NONE) {
            uint64_t now = clock_now(), left = d > now ? d - now : 0;
            t = (struct timespec){.tv_sec = (time_t)(left / NS_PER_S),
                                  .tv_nsec = (long)(left % NS_PER_S)};
            timeout = &t;
        }

        int n = ppoll(fds, count, timeout, NULL);
        if (n >= 0)
            return n > 0;
        if (errno != EINTR)
            return -errno;
    }
}

static int poll_failed(int result, struct pd_err *e)
{
    if (result == 0)
        return pd_fail(e, PD_TIMEOUT, "nothing moved on the connection in time");
    errno = -result;
    return pd_fail_sys(e, "poll");
}

int wait_for(int fd, short events, deadline d, struct pd_err *e)
{
    struct pollfd p = {.fd = fd, .events = events};
    int r = poll_until(&p, 1, d);
    return r > 0 ? 0 : poll_failed(r, e);
}

int wait_for_both(int from, int to, deadline d, struct pd_err *e)
{
    struct pollfd p[2] = {{.fd = from, .events = POLLIN}, {.fd = to, .events = POLLOUT}};

    for (;;) {
        int r = poll_until(p, 2, d);
        if (r <= 0)
            return poll_failed(r, e);
        if (p[1].revents & (POLLERR | POLLHUP | POLLNVAL))
            return 0;

        /* A side that is ready stays so; only the other one is waited for. `to` is kept without
         * events, so that its end is noticed; `from` is left out, or its hang-up would be. */
        if (p[0].revents)
            p[0].fd = -1;
        if (p[1].revents)
            p[1].events = 0;
        if (p[0].fd < 0 && !p[1].events)
            return 0;
    }
}

int wait_write(int fd, const void *data, size_t len, uint64_t stall_ns, struct pd_err *e)
{
    const char *at = data;

    while (len) {
        ssize_t n = write(fd, at, len);
        if (n >= 0) {
            at += n;
            len -= (size_t)n;
        } else if (errno == EAGAIN) {
            if (wait_for(fd, POLLOUT, deadline_in(stall_ns), e))
                return -1;
        } else if (errno == EPIPE) {
            pd_fail(e, PD_LOST, "the receiver has closed its end");
            if (e)
                e->sys = EPIPE;
            return -1;
        } else if (errno != EINTR) {
            return pd_fail_sys(e, "write");
        }
    }
    return 0;
}
