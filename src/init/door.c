/* How this works: the door is a socket in a directory that is mounted into the box. Init connects,
 * and the first frame there, ADOPT, brings its owner's socket in the place of the door's. When that
 * owner is gone init connects again and waits for the next, while its commands go on, for as long
 * as its lease lasts.
 *
 * A lease is reduced by at most COUNT_MOST per turn: time in which the box was frozen, or the
 * machine asleep, is not the owner's fault. */
#include "init/door.h"

#include "init/init.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#define COUNT_MOST  (5 * NS_PER_S)
#define TURN_MS     1000
#define FIRST_PAUSE 20 /* ms between attempts at birth */
#define NEXT_PAUSE  (250 * NS_PER_MS)

static int connect_once(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path)
        return -ENAMETOOLONG;
    memcpy(a.sun_path, path, strlen(path) + 1);

    auto_fd fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
        return -errno;
    return fd_take(&fd);
}

/* Not there yet, or nobody listens, or too many wait: that may change. */
static bool is_passing(int negative_errno)
{
    return negative_errno == -ENOENT || negative_errno == -ECONNREFUSED ||
           negative_errno == -EAGAIN || negative_errno == -EINTR;
}

int door_connect(const char *path, deadline d, struct pd_err *e)
{
    for (;;) {
        int fd = connect_once(path);
        if (fd >= 0)
            return fd;

        if (!is_passing(fd) || deadline_passed(d)) {
            errno = -fd;
            return pd_fail_sys(e, "connect to the door %.200s", path);
        }
        poll(NULL, 0, FIRST_PAUSE);
    }
}

int door_lost(struct door *d, struct init *in, struct pd_err *e)
{
    init_await_another(in);
    if (!d->lease)
        return pd_fail(e, PD_LOST, "the owner is gone, and there is no lease to wait for another");

    if (!d->lost) {
        d->lost = true;
        d->left = d->lease;
        d->seen = clock_now();
        d->retry = d->seen; /* the first attempt is made at once; those behind it have pauses */
    }
    return 0;
}

int door_tend(struct door *d, struct init *in, struct pd_err *e)
{
    if (!in->awaits) {
        d->lost = false;
        return 0;
    }
    if (!d->lost)
        return 0;

    uint64_t now = clock_now(), spent = now - d->seen;
    d->seen = now;
    if (spent > COUNT_MOST)
        spent = COUNT_MOST;
    if (spent >= d->left)
        return pd_fail(e, PD_LOST, "no owner came to %.150s within the lease of %llu s", d->path,
                       (unsigned long long)(d->lease / NS_PER_S));
    d->left -= spent;

    struct peer *owner = &in->peers[0];
    if (owner->sock < 0 && now >= d->retry) {
        int fd = connect_once(d->path);
        owner->sock = fd < 0 ? -1 : fd;
        d->retry = now + NEXT_PAUSE;
    }
    return 0;
}

int door_patience(const struct door *d, const struct init *in)
{
    if (!in->awaits || !d->lost)
        return -1;
    return in->peers[0].sock < 0 ? (int)(NEXT_PAUSE / NS_PER_MS) : TURN_MS;
}
