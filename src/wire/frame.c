/* Frames: one message is one datagram of a SOCK_SEQPACKET socket, with a head, a payload, and
 * descriptors beside it. A frame that was received is checked as a whole before any of it is used,
 * and descriptors of one that is refused are closed. */
#include "wire/frame.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

/* Room for one frame more than is allowed: so that a sender of too many descriptors shows in the
 * count, or as MSG_CTRUNC, and is refused rather than half accepted. */
#define CONTROL_SPACE CMSG_SPACE(sizeof(int) * (WIRE_FDS_MAX + 1))

struct wire_id wire_id_new(void)
{
    struct wire_id id;
    random_bytes(id.bytes, sizeof id.bytes);
    return id;
}

int wire_id_equal(struct wire_id a, struct wire_id b)
{
    return !memcmp(a.bytes, b.bytes, sizeof a.bytes);
}

void wire_id_text(struct wire_id id, char out[33])
{
    for (size_t i = 0; i < sizeof id.bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", id.bytes[i]);
}

void frame_reset(struct frame *f)
{
    for (unsigned i = 0; i < f->fd_count; i++)
        fd_done(&f->fds[i]);
    f->fd_count = 0;
    buf_clear(&f->payload);
}

void frame_done(struct frame *f)
{
    frame_reset(f);
    buf_done(&f->payload);
}

int frame_take_fd(struct frame *f, unsigned i)
{
    return i < f->fd_count ? fd_take(&f->fds[i]) : -1;
}

int wire_head_check(struct wire_head head, size_t len, unsigned fds, struct pd_err *e)
{
    if (len < sizeof head)
        return pd_fail(e, PD_PROTOCOL, "frame of %zu bytes is shorter than its head", len);
    if (head.magic != WIRE_MAGIC)
        return pd_fail(e, PD_PROTOCOL, "frame with magic %08x: another version or no frame",
                       head.magic);
    if (head.len > WIRE_PAYLOAD_MAX || head.len != len - sizeof head)
        return pd_fail(e, PD_PROTOCOL, "frame says %u payload bytes, has %zu", head.len,
                       len - sizeof head);
    if (head.fd_count > WIRE_FDS_MAX || head.fd_count != fds)
        return pd_fail(e, PD_PROTOCOL, "frame says %u descriptors, has %u", head.fd_count, fds);
    return 0;
}

static int wait_for(int sock, short events, deadline d)
{
    struct pollfd p = {.fd = sock, .events = events};

    if (d == 0)
        return -EAGAIN; /* the call that was tried has said so */
    for (;;) {
        int n = poll(&p, 1, deadline_poll_ms(d));
        if (n > 0)
            return 0;
        if (n == 0)
            return -EAGAIN;
        if (errno != EINTR)
            return -errno;
    }
}

int wire_send(int sock, const struct wire_head *head, const struct buf *payload, const int *fds,
              unsigned fd_count, deadline d)
{
    struct wire_head h = *head;

    h.magic = WIRE_MAGIC;
    h.len = payload ? (uint32_t)payload->len : 0;
    h.fd_count = (uint16_t)fd_count;

    if ((payload && (payload->overflow || payload->len > WIRE_PAYLOAD_MAX)) ||
        fd_count > WIRE_FDS_MAX)
        return -EMSGSIZE;

    struct iovec parts[2] = {{&h, sizeof h}, {payload ? payload->data : NULL, h.len}};
    _Alignas(struct cmsghdr) char control[CONTROL_SPACE] = {0};
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = h.len ? 2 : 1};

    if (fd_count) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
    }

    for (;;) {
        if (sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
            return 0;
        if (errno == EINTR)
            continue;
        if (errno == ECONNRESET)
            return -EPIPE;
        if (errno != EAGAIN || d == 0)
            return -errno;
        int r = wait_for(sock, POLLOUT, d);
        if (r < 0)
            return r;
    }
}

/* Collects the descriptors of a received message; all of them, even from a malformed one, because
 * each that is forgotten is a leak. */
static unsigned collect_fds(struct msghdr *m, int *fds, unsigned max)
{
    unsigned count = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (count < max)
                fds[count++] = fd;
            else
                fd_done(&fd);
        }
    }
    return count;
}

/* A peer that closes with something unread resets the socket. The kernel tells that once, before
 * what the peer had sent: taking it for the end would lose that. */
static int told_of_reset(void)
{
    return errno == ECONNRESET;
}

/* Waits for a frame after a call has failed. 0: try again. */
static int wait_after(int sock, deadline d, struct pd_err *e)
{
    if (errno == EINTR || told_of_reset())
        return 0;
    if (errno != EAGAIN)
        return pd_fail_sys(e, "receive a frame");

    int r = wait_for(sock, POLLIN, d);
    if (r == -EAGAIN)
        return pd_fail(e, PD_TIMEOUT, "no answer before the deadline");
    errno = -r;
    return r < 0 ? pd_fail_sys(e, "wait for a frame") : 0;
}

/* How long the next datagram is, so that small frames need little memory. Waits for it. Returns the
 * length (0 also when the peer has closed), or -1. */
static ssize_t next_length(int sock, deadline d, struct pd_err *e)
{
    for (;;) {
        ssize_t n = recv(sock, NULL, 0, MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC);
        if (n >= 0)
            return n;
        if (wait_after(sock, d, e) < 0)
            return -1;
    }
}

/* Receives a frame of at most `most` bytes. `flags`: MSG_PEEK, or 0. */
static int receive_as(int sock, struct frame *ret, size_t most, int flags, deadline d,
                      struct pd_err *e)
{
    struct wire_head head = {0};
    _Alignas(struct cmsghdr) char control[CONTROL_SPACE];

    ret->head = head;
    size_t len = most > sizeof head ? most - sizeof head : 0;
    if (len > WIRE_PAYLOAD_MAX)
        len = WIRE_PAYLOAD_MAX; /* it will be cut, and refused */

    uint8_t *room = buf_reserve(&ret->payload, len + 1);
    if (!room)
        return pd_fail(e, PD_CAPACITY, "no memory for a frame");

    struct iovec parts[2] = {{&head, sizeof head}, {room, len}};
    struct msghdr m = {.msg_iov = parts,
                       .msg_iovlen = 2,
                       .msg_control = control,
                       .msg_controllen = sizeof control};

    ssize_t n;
    while ((n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | flags)) < 0)
        if (wait_after(sock, d, e) < 0)
            return -1;

    int fds[WIRE_FDS_MAX + 1];
    unsigned count = collect_fds(&m, fds, WIRE_FDS_MAX + 1);
    if (n == 0 && count == 0)
        return 0;

    int cut = m.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
    if (cut == MSG_CTRUNC && count < head.fd_count &&
        wire_head_check(head, (size_t)n, head.fd_count, e) == 0) {
        for (unsigned i = 0; i < count; i++)
            fd_done(&fds[i]);
        ret->head = head;
        return pd_fail(e, PD_CAPACITY, "too many open files: no room for %u more", head.fd_count);
    }
    if (cut || wire_head_check(head, (size_t)n, count, e) < 0) {
        for (unsigned i = 0; i < count; i++)
            fd_done(&fds[i]);
        return cut ? pd_fail(e, PD_PROTOCOL, "frame with too many bytes or descriptors") : -1;
    }

    ret->head = head;
    ret->payload.len = head.len;
    room[head.len] = 0;
    memcpy(ret->fds, fds, sizeof(int) * count);
    ret->fd_count = count;
    return 1;
}

static int receive(int sock, struct frame *ret, size_t most, deadline d, struct pd_err *e)
{
    return receive_as(sock, ret, most, 0, d, e);
}

int frame_reserve(struct frame *f)
{
    return buf_reserve(&f->payload, WIRE_PAYLOAD_MAX + 1) ? 0 : -1;
}

int wire_recv(int sock, struct frame *ret, deadline d, struct pd_err *e)
{
    /* With room for any frame there is nothing to ask. */
    if (ret->payload.cap > WIRE_PAYLOAD_MAX)
        return receive(sock, ret, WIRE_PAYLOAD_MAX + sizeof ret->head, d, e);

    ret->head = (struct wire_head){0};
    ssize_t n = next_length(sock, d, e);
    return n < 0 ? -1 : receive(sock, ret, (size_t)n, 0, e);
}

int wire_peek(int sock, struct frame *ret, struct pd_err *e)
{
    ret->head = (struct wire_head){0};
    ssize_t n = next_length(sock, 0, e);
    return n < 0 ? -1 : receive_as(sock, ret, (size_t)n, MSG_PEEK, 0, e);
}

void wire_skip(int sock)
{
    while (recv(sock, NULL, 0, MSG_DONTWAIT | MSG_TRUNC) < 0 && errno == EINTR)
        ;
}

int wire_recv_plain(int sock, struct frame *ret, deadline d, struct pd_err *e)
{
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr m;
    ssize_t n;

    /* No room for descriptors: the kernel only says that there are some. It says how long the frame
     * is as well. */
    do
        m = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
    while ((n = recvmsg(sock, &m, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC)) < 0 &&
           wait_after(sock, d, e) == 0);

    ret->head = (struct wire_head){0};
    if (n < 0)
        return -1;
    if (m.msg_flags & MSG_CTRUNC)
        return pd_fail(e, PD_PROTOCOL, "frame with descriptors that nobody asked for");
    return receive(sock, ret, (size_t)n, 0, e);
}

int wire_connect_within(const char *path, uint64_t patience)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    /* Nothing is all the time there is, for the kernel. */
    struct timeval t = {.tv_sec = (time_t)(patience / NS_PER_S),
                        .tv_usec = (suseconds_t)(patience % NS_PER_S / 1000)};

    if (strlen(path) >= sizeof a.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(a.sun_path, path, strlen(path) + 1);
    auto_fd sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0 || (patience && setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t) < 0))
        return -1;
    return connect(sock, (struct sockaddr *)&a, sizeof a) < 0 ? -1 : fd_take(&sock);
}

int wire_connect(const char *path)
{
    return wire_connect_within(path, 0);
}
