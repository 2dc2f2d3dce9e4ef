/* Listening sockets: addresses become sockets, and sockets become connections. A listener is armed
 * for one event at a time: one thread accepts one connection and arms it again. When descriptors
 * run out, a spare one is given up to tell the peer so; if that does not help either, the listener
 * rests for a moment and the manager arms it again. */
#include "net/server_state.h"

#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"

#include "base/banned.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define BACKLOG  4096
#define REARM_NS (100 * NS_PER_MS)

/* A socket file that nobody listens on is left over from a server that was killed. */
static int is_stale(const struct sockaddr_un *a, socklen_t len)
{
    auto_fd probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return probe >= 0 && connect(probe, (const struct sockaddr *)a, len) < 0 &&
           errno == ECONNREFUSED;
}

static int bind_unix(const char *path, struct pd_err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    size_t len = strlen(path);
    if (!len || len >= sizeof a.sun_path)
        return pd_fail(e, PD_INVALID, "socket path '%s' must have 1 to %zu bytes", path,
                       sizeof a.sun_path - 1);

    memcpy(a.sun_path, path, len);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
    auto_fd fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return pd_fail_sys(e, "socket");

    if (bind(fd, (struct sockaddr *)&a, size) < 0) {
        struct stat st;
        if (errno != EADDRINUSE)
            return pd_fail_sys(e, "listen on unix:%s", path);
        if (lstat(path, &st) < 0 || !S_ISSOCK(st.st_mode) || !is_stale(&a, size))
            return pd_fail(e, PD_CONFLICT,
                           "unix:%s is in use: stop the other server or choose another path", path);
        if (unlink(path) < 0 || bind(fd, (struct sockaddr *)&a, size) < 0)
            return pd_fail_sys(e, "listen on unix:%s", path);
    }

    /* Nobody can connect before listen, so the mode that the umask left is never used. */
    if (chmod(path, 0660) < 0 || listen(fd, BACKLOG) < 0)
        return pd_fail_sys(e, "listen on unix:%s", path);
    return fd_take(&fd);
}

static int inherited(const char *text, struct pd_err *e)
{
    uint64_t fd;
    int listens = 0;
    socklen_t size = sizeof listens;

    if (parse_u64("descriptor", text, 3, 1u << 20, &fd, e))
        return -1;
    if (getsockopt((int)fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) < 0 || !listens)
        return pd_fail(e, PD_INVALID, "descriptor %d is not a listening socket", (int)fd);

    (void)fcntl((int)fd, F_SETFD, FD_CLOEXEC);
    return (int)fd;
}

/* "host:port" into an address; only numbers, so that nothing waits for a name server. */
static socklen_t parse_inet(const char *address, struct sockaddr_storage *ret, struct pd_err *e)
{
    const char *colon = strrchr(address, ':');
    char host[64] = "";
    uint64_t port;

    if (!colon || (size_t)(colon - address) >= sizeof host) {
        pd_fail(e, PD_INVALID,
                "listen address '%s' is not of the form '127.0.0.1:8090', '[::1]:8090' or "
                "'unix:/path'",
                address);
        return 0;
    }

    memcpy(host, address, (size_t)(colon - address));
    if (parse_u64("port", colon + 1, 0, 65535, &port, e))
        return 0;

    memset(ret, 0, sizeof *ret);
    struct sockaddr_in *v4 = (struct sockaddr_in *)ret;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)ret;
    size_t len = strlen(host);
    if (len > 2 && host[0] == '[' && host[len - 1] == ']') {
        host[len - 1] = 0;
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        if (inet_pton(AF_INET6, host + 1, &v6->sin6_addr) == 1)
            return sizeof *v6;
    } else {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        if (inet_pton(AF_INET, strcmp(host, "localhost") ? host : "127.0.0.1", &v4->sin_addr) == 1)
            return sizeof *v4;
    }

    pd_fail(e, PD_INVALID, "'%s' is not an IP address to listen on, such as 127.0.0.1 or [::1]",
            host);
    return 0;
}

int server_bind(const char *address, struct pd_err *e)
{
    if (strncmp(address, "unix:", 5) == 0)
        return bind_unix(address + 5, e);
    if (strncmp(address, "fd:", 3) == 0)
        return inherited(address + 3, e);

    struct sockaddr_storage a;
    socklen_t len = parse_inet(address, &a, e);
    if (!len)
        return -1;

    auto_fd fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int on = 1;
    if (fd < 0)
        return pd_fail_sys(e, "socket");

    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&a, len) < 0 || listen(fd, BACKLOG) < 0) {
        if (errno == EADDRINUSE)
            return pd_fail(e, PD_CONFLICT,
                           "%s is in use: stop the other server or choose another port", address);
        return pd_fail_sys(e, "listen on %s", address);
    }
    return fd_take(&fd);
}

unsigned server_inherited(void)
{
    struct pd_err e;
    uint64_t pid, count;

    const char *pid_text = getenv("LISTEN_PID"), *count_text = getenv("LISTEN_FDS");
    if (!pid_text || !count_text || parse_u64("LISTEN_PID", pid_text, 1, 1u << 30, &pid, &e) ||
        parse_u64("LISTEN_FDS", count_text, 0, 64, &count, &e) || pid != (uint64_t)getpid())
        return 0;
    return (unsigned)count;
}

int server_listen(struct server *s, int fd, struct tls_context *tls, struct pd_err *e)
{
    auto_fd taken = fd;

    struct listener *l = calloc(1, sizeof *l);
    if (!l)
        return pd_fail(e, PD_CAPACITY, "out of memory");

    int on = 1, r = fd_set_nonblock(fd);
    if (r) {
        free(l);
        errno = -r;
        return pd_fail_sys(e, "make the listening socket non-blocking");
    }

    /* Accepted sockets inherit these. A Unix socket has no TCP_NODELAY, and needs none. */
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    *l = (struct listener){.source = {SOURCE_LISTENER}, .fd = fd_take(&taken), .tls = tls};
    lock_init(&l->lock, LOCK_LISTENER);

    lock_take(&s->lock);
    l->next = s->listeners;
    s->listeners = l;
    lock_release(&s->lock);
    listener_arm(s, l, 1);
    return 0;
}

void listener_arm(struct server *s, struct listener *l, int first)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = l};
    (void)epoll_ctl(s->epoll, first ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, l->fd, &ev);
}

void listener_close(struct listener *l)
{
    lock_take(&l->lock);
    fd_done(&l->fd);
    lock_release(&l->lock);
}

/* Says no in one packet that the socket's buffer surely takes. A TLS peer is just left. */
static void refuse(struct server *s, int fd, const struct tls_context *tls)
{
    static const char body[] = "{\"error\":{\"code\":\"capacity\",\"message\":\"the server has too "
                               "many connections; try again later\",\"details\":{}}}";

    atomic_fetch_add(&s->refused, 1);
    if (!tls) {
        char text[512], id[17];
        request_id_new(s, id);
        int n = snprintf(text, sizeof text,
                         "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
                         "Content-Length: %zu\r\nX-Request-Id: %s\r\nRetry-After: 1\r\n"
                         "Connection: close\r\n\r\n%s",
                         sizeof body - 1, id, body);
        (void)send(fd, text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)shutdown(fd, SHUT_WR);
        /* Closing with unread bytes would reset the connection before the answer is read. */
        while (recv(fd, text, sizeof text, MSG_DONTWAIT) > 0)
            ;
    }
    close(fd);
}

static int is_shortage(int sys)
{
    return sys == EMFILE || sys == ENFILE || sys == ENOBUFS || sys == ENOMEM;
}

/* There is no descriptor left for it: gives up the spare one for a moment, to tell the peer instead
 * of leaving it in the queue. 0, or -1 when that does not work either. */
static int refuse_with_reserve(struct server *s, struct listener *l)
{
    lock_take(&s->lock);
    fd_done(&s->reserve);
    int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        refuse(s, fd, l->tls);
    s->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int good = fd >= 0 && s->reserve >= 0;
    lock_release(&s->lock);
    return good ? 0 : -1;
}

static void pause_listener(struct server *s, struct listener *l)
{
    l->paused = 1;
    lock_take(&s->lock);
    s->rearm_at = deadline_in(REARM_NS);
    manager_wake(s);
    lock_release(&s->lock);
}

struct connection *listener_accept(struct server *s, struct listener *l)
{
    lock_take(&l->lock);
    int fd = -1, sys = EAGAIN;
    if (l->fd >= 0) {
        fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        sys = errno;
        if (fd < 0 && is_shortage(sys) && refuse_with_reserve(s, l))
            pause_listener(s, l);
        else
            listener_arm(s, l, 0);
    }
    lock_release(&l->lock);
    if (fd < 0)
        return NULL;

    atomic_fetch_add(&s->accepted, 1);
    lock_take(&s->lock);
    int full = s->connections >= s->config.max_connections;
    lock_release(&s->lock);

    if (full) {
        refuse(s, fd, l->tls);
        return NULL;
    }

    struct conn *conn = conn_new(fd, l->tls, NULL);
    return conn ? connection_new(s, conn) : NULL;
}
