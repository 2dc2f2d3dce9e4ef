/* A connection: a socket, a TLS session on one, or a pair of descriptors. Everything is
 * non-blocking underneath; each call tries first and polls when there is nothing to do, up to its
 * deadline. Between plain sockets and pipes or files the kernel moves the bytes (splice, sendfile);
 * TLS copies them. */
#include "net/conn.h"

#include "base/err.h"
#include "base/fd.h"
#include "net/tls.h"
#include "net/wait.h"

#include "base/banned.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/un.h>

/* A TLS record holds so much; more at once gains nothing. */
#define PIECE     (16u << 10)
#define MOVE_ONCE (1u << 20)

struct conn {
    int in, out; /* the same for a socket */
    int is_socket;
    struct tls *tls;
    char *first; /* of a plain one: bytes that come before those of the descriptor */
    size_t first_at, first_len;
};

static void ignore_sigpipe(void)
{
    struct sigaction now;

    if (sigaction(SIGPIPE, NULL, &now) == 0 && now.sa_handler == SIG_DFL) {
        struct sigaction ignore = {.sa_handler = SIG_IGN};
        (void)sigaction(SIGPIPE, &ignore, NULL);
    }
}

static struct conn *make(int in, int out, int is_socket, struct tls_context *tls, struct pd_err *e)
{
    ignore_sigpipe();
    struct conn *c = calloc(1, sizeof *c);
    if (!c) {
        fd_done(&in);
        if (!is_socket)
            fd_done(&out);
        pd_fail(e, PD_CAPACITY, "out of memory");
        return NULL;
    }

    *c = (struct conn){.in = in, .out = out, .is_socket = is_socket};
    int r = fd_set_nonblock(in);
    if (r == 0 && out != in)
        r = fd_set_nonblock(out);

    if (r) {
        errno = -r;
        pd_fail_sys(e, "make the connection non-blocking");
    } else if (!tls || (c->tls = tls_new(tls, in, e))) {
        return c;
    }

    conn_free(c);
    return NULL;
}

struct conn *conn_new(int fd, struct tls_context *tls, struct pd_err *e)
{
    return make(fd, fd, 1, tls, e);
}

struct conn *conn_new_pair(int in, int out, struct pd_err *e)
{
    return make(in, out, 0, NULL, e);
}

void conn_free(struct conn *c)
{
    if (!c)
        return;
    tls_free(c->tls);
    if (c->out != c->in)
        fd_done(&c->out);
    fd_done(&c->in);
    free(c->first);
    free(c);
}

int conn_unread(struct conn *c, const void *data, size_t len, struct pd_err *e)
{
    if (!len)
        return 0;
    if (c->tls)
        return tls_unread(c->tls, c->in, data, len, e);
    if (!(c->first = malloc(len)))
        return pd_fail(e, PD_CAPACITY, "out of memory");
    memcpy(c->first, data, len);
    c->first_len = len;
    return 0;
}

int conn_set_host(struct conn *c, const char *host, struct pd_err *e)
{
    return c->tls ? tls_set_host(c->tls, host, e) : 0;
}

int conn_fd(const struct conn *c)
{
    return c->in;
}

int conn_is_tls(const struct conn *c)
{
    return c->tls != NULL;
}

int conn_pending(struct conn *c)
{
    return c->tls ? tls_pending(c->tls) : c->first_at < c->first_len;
}

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_un un;
};

static int peer_of(const struct conn *c, union address *ret)
{
    socklen_t len = sizeof *ret;
    memset(ret, 0, sizeof *ret);
    return c->is_socket ? getpeername(c->in, &ret->any, &len) : -1;
}

int conn_is_local(const struct conn *c)
{
    if (!c->is_socket)
        return 1;
    union address a;
    if (peer_of(c, &a))
        return 0;

    switch (a.any.sa_family) {
    case AF_UNIX:
        return 1;
    case AF_INET:
        return (ntohl(a.v4.sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
    case AF_INET6:
        return IN6_IS_ADDR_LOOPBACK(&a.v6.sin6_addr) ||
               (IN6_IS_ADDR_V4MAPPED(&a.v6.sin6_addr) && a.v6.sin6_addr.s6_addr[12] == 127);
    default:
        return 0;
    }
}

void conn_peer(const struct conn *c, char out[CONN_PEER_SIZE])
{
    union address a;
    char host[INET6_ADDRSTRLEN] = "?";

    if (!c->is_socket) {
        snprintf(out, CONN_PEER_SIZE, "pair");
    } else if (peer_of(c, &a)) {
        snprintf(out, CONN_PEER_SIZE, "unknown");
    } else if (a.any.sa_family == AF_INET) {
        (void)inet_ntop(AF_INET, &a.v4.sin_addr, host, sizeof host);
        snprintf(out, CONN_PEER_SIZE, "%s:%u", host, ntohs(a.v4.sin_port));
    } else if (a.any.sa_family == AF_INET6) {
        (void)inet_ntop(AF_INET6, &a.v6.sin6_addr, host, sizeof host);
        snprintf(out, CONN_PEER_SIZE, "[%s]:%u", host, ntohs(a.v6.sin6_port));
    } else {
        snprintf(out, CONN_PEER_SIZE, "unix");
    }
}

static int fail_lost(struct pd_err *e, int sys)
{
    pd_fail(e, PD_LOST, "the connection was lost: %s", strerror(sys));
    if (e)
        e->sys = sys;
    return -1;
}

/* One attempt, with tls_read's way to say how it went. */
static ssize_t try_read(struct conn *c, void *out, size_t size, short *ret_want, struct pd_err *e)
{
    if (c->tls)
        return tls_read(c->tls, out, size, ret_want, e);

    if (c->first_at < c->first_len) {
        size_t step = c->first_len - c->first_at < size ? c->first_len - c->first_at : size;
        memcpy(out, c->first + c->first_at, step);
        c->first_at += step;
        return (ssize_t)step;
    }

    ssize_t n;
    do
        n = c->is_socket ? recv(c->in, out, size, MSG_DONTWAIT) : read(c->in, out, size);
    while (n < 0 && errno == EINTR);

    *ret_want = n < 0 && errno == EAGAIN ? POLLIN : 0;
    return n < 0 && errno != EAGAIN ? fail_lost(e, errno) : n;
}

static ssize_t try_write(struct conn *c, struct iovec *iov, unsigned count, short *ret_want,
                         struct pd_err *e)
{
    if (c->tls)
        return tls_write(c->tls, iov->iov_base, iov->iov_len, ret_want, e);

    ssize_t n;
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = count};
    do
        n = c->is_socket ? sendmsg(c->out, &m, MSG_DONTWAIT | MSG_NOSIGNAL)
                         : writev(c->out, iov, (int)count);
    while (n < 0 && errno == EINTR);

    *ret_want = n < 0 && errno == EAGAIN ? POLLOUT : 0;
    return n < 0 && errno != EAGAIN ? fail_lost(e, errno) : n;
}

ssize_t conn_read(struct conn *c, void *out, size_t size, deadline d, struct pd_err *e)
{
    for (;;) {
        short want = 0;
        ssize_t n = try_read(c, out, size, &want, e);
        if (n >= 0 || !want)
            return n;
        if (wait_for(want == POLLIN ? c->in : c->out, want, d, e))
            return -1;
    }
}

int conn_writev(struct conn *c, struct iovec *iov, unsigned count, uint64_t stall_ns,
                struct pd_err *e)
{
    char joined[PIECE];
    struct iovec one;

    if (c->tls && count > 1) {
        /* One record instead of several, where that is cheap. */
        size_t total = 0;
        for (unsigned i = 0; i < count; i++)
            total += iov[i].iov_len;
        if (total <= sizeof joined) {
            size_t at = 0;
            for (unsigned i = 0; i < count; i++) {
                if (iov[i].iov_len)
                    memcpy(joined + at, iov[i].iov_base, iov[i].iov_len);
                at += iov[i].iov_len;
            }
            one = (struct iovec){joined, total};
            iov = &one;
            count = 1;
        }
    }

    for (;;) {
        while (count && !iov->iov_len) {
            iov++;
            count--;
        }
        if (!count)
            return 0;

        short want = 0;
        ssize_t n = try_write(c, iov, count, &want, e);
        if (n < 0) {
            if (!want || wait_for(want == POLLIN ? c->in : c->out, want, deadline_in(stall_ns), e))
                return -1;
            continue;
        }

        for (size_t left = (size_t)n; left;) {
            size_t step = left < iov->iov_len ? left : iov->iov_len;
            iov->iov_base = (char *)iov->iov_base + step;
            iov->iov_len -= step;
            left -= step;
            if (!iov->iov_len) {
                iov++;
                count--;
            }
        }
    }
}

int conn_write(struct conn *c, const void *data, size_t len, uint64_t stall_ns, struct pd_err *e)
{
    struct iovec iov = {(void *)(uintptr_t)data, len};
    return conn_writev(c, &iov, 1, stall_ns, e);
}

/* From a descriptor to a conn that cannot take it without copying. */
static int copy_pipe(struct conn *c, int pipe, uint64_t len, uint64_t stall_ns, struct pd_err *e)
{
    char piece[PIECE];

    while (len) {
        if (wait_for(pipe, POLLIN, deadline_in(stall_ns), e))
            return -1;

        ssize_t n = read(pipe, piece, len < sizeof piece ? len : sizeof piece);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0)
            return pd_fail_sys(e, "read what is to be sent");
        if (n == 0)
            return pd_fail(e, PD_LOST, "what is to be sent ended too soon");
        if (conn_write(c, piece, (size_t)n, stall_ns, e))
            return -1;
        len -= (uint64_t)n;
    }
    return 0;
}

int conn_write_pipe(struct conn *c, int pipe, uint64_t len, uint64_t stall_ns, struct pd_err *e)
{
    if (c->tls)
        return copy_pipe(c, pipe, len, stall_ns, e);

    deadline d = 0;
    while (len) {
        ssize_t n = splice(pipe, NULL, c->out, NULL, len < MOVE_ONCE ? len : MOVE_ONCE,
                           SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        if (n > 0) {
            len -= (uint64_t)n;
            d = 0;
        } else if (n == 0) {
            return pd_fail(e, PD_LOST, "what is to be sent ended too soon");
        } else if (errno == EAGAIN) {
            if (!d)
                d = deadline_in(stall_ns);
            if (wait_for_both(pipe, c->out, d, e))
                return -1;
        } else if (errno == EINVAL) {
            return copy_pipe(c, pipe, len, stall_ns, e);
        } else if (errno != EINTR) {
            return fail_lost(e, errno);
        }
    }
    return 0;
}

static ssize_t copy_to_pipe(struct conn *c, int pipe, size_t max, uint64_t stall_ns,
                            struct pd_err *e)
{
    char piece[PIECE];

    ssize_t n =
        conn_read(c, piece, max < sizeof piece ? max : sizeof piece, deadline_in(stall_ns), e);
    if (n > 0 && wait_write(pipe, piece, (size_t)n, stall_ns, e))
        return -1;
    return n;
}

ssize_t conn_read_pipe(struct conn *c, int pipe, size_t max, uint64_t stall_ns, struct pd_err *e)
{
    (void)fd_set_nonblock(pipe);
    if (c->tls)
        return copy_to_pipe(c, pipe, max, stall_ns, e);

    deadline d = 0;
    for (;;) {
        ssize_t n = splice(c->in, NULL, pipe, NULL, max < MOVE_ONCE ? max : MOVE_ONCE,
                           SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        if (n >= 0)
            return n;
        if (errno == EAGAIN) {
            if (!d)
                d = deadline_in(stall_ns);
            if (wait_for_both(c->in, pipe, d, e))
                return -1;
        } else if (errno == EINVAL) {
            return copy_to_pipe(c, pipe, max, stall_ns, e);
        } else if (errno != EINTR) {
            return fail_lost(e, errno);
        }
    }
}

static int copy_file(struct conn *c, int file, uint64_t offset, uint64_t len, uint64_t stall_ns,
                     struct pd_err *e)
{
    char piece[PIECE];

    while (len) {
        ssize_t n = pread(file, piece, len < sizeof piece ? len : sizeof piece, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return pd_fail_sys(e, "read what is to be sent");
        if (n == 0)
            return pd_fail(e, PD_LOST, "what is to be sent ended too soon");
        if (conn_write(c, piece, (size_t)n, stall_ns, e))
            return -1;
        offset += (uint64_t)n;
        len -= (uint64_t)n;
    }
    return 0;
}

int conn_write_file(struct conn *c, int file, uint64_t offset, uint64_t len, uint64_t stall_ns,
                    struct pd_err *e)
{
    if (c->tls)
        return copy_file(c, file, offset, len, stall_ns, e);

    off_t at = (off_t)offset;
    while (len) {
        ssize_t n = sendfile(c->out, file, &at, len < MOVE_ONCE ? len : MOVE_ONCE);
        if (n > 0) {
            len -= (uint64_t)n;
        } else if (n == 0) {
            return pd_fail(e, PD_LOST, "what is to be sent ended too soon");
        } else if (errno == EAGAIN) {
            if (wait_for(c->out, POLLOUT, deadline_in(stall_ns), e))
                return -1;
        } else if (errno == EINVAL || errno == ENOSYS) {
            return copy_file(c, file, (uint64_t)at, len, stall_ns, e);
        } else if (errno != EINTR) {
            return fail_lost(e, errno);
        }
    }
    return 0;
}

int conn_is_gone(struct conn *c)
{
    struct pollfd p[2] = {{.fd = c->in, .events = POLLRDHUP}, {.fd = c->out}};
    if (poll(p, c->in == c->out ? 1 : 2, 0) <= 0)
        return 0;
    return (p[0].revents | p[1].revents) & (POLLRDHUP | POLLHUP | POLLERR) ? 1 : 0;
}

void conn_end_writing(struct conn *c)
{
    if (c->tls)
        tls_end_writing(c->tls);
    if (c->is_socket)
        (void)shutdown(c->out, SHUT_WR);
    else
        fd_done(&c->out);
}
