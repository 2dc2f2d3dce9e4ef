#include "server_bench.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define PATIENCE  (60 * NS_PER_S)
#define TEXT_MAX  (1u << 20)
#define READ_SIZE (256u << 10)

/* ---- the server ---- */

static int free_port(unsigned *ret, struct pd_err *e)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    auto_fd fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        return pd_fail_sys(e, "find a port");
    *ret = ntohs(a.sin_port);
    return 0;
}

/* The child of `parent` that has this name; `parent` itself when there is none. */
static pid_t child_named(pid_t parent, const char *name)
{
    DIR *d = opendir("/proc");
    const struct dirent *entry;
    pid_t found = parent;

    while (d && (entry = readdir(d))) {
        char path[300], text[1024];
        long pid = strtol(entry->d_name, NULL, 10);
        snprintf(path, sizeof path, "/proc/%ld/stat", pid);
        if (pid <= 0 || fd_read_file(AT_FDCWD, path, text, sizeof text) < 0)
            continue;
        const char *open = strchr(text, '('), *close = strrchr(text, ')');
        if (!open || !close || strlen(close) < 5 || strtol(close + 4, NULL, 10) != parent)
            continue;
        size_t len = (size_t)(close - open - 1);
        if (len == strlen(name) && !memcmp(open + 1, name, len))
            found = (pid_t)pid;
    }

    if (d)
        closedir(d);
    return found;
}

static int is_ready(struct server_place *s, struct pd_err *e)
{
    struct http h = HTTP_EMPTY;
    int r = http_open(&h, s, e);
    if (r == 0)
        r = http_call(&h, s, "GET", "/readyz", NULL, 200, e) ? 0 : -1;
    http_done(&h);
    return r;
}

int server_start(struct server_place *s, const char *storage, unsigned sandboxes, struct pd_err *e)
{
    uint8_t random[20];
    char address[40], most[16], key[80];
    random_bytes(random, sizeof random);

    size_t len = (size_t)snprintf(s->key, sizeof s->key, "e2b_");
    for (size_t i = 0; i < sizeof random; i++)
        len += (size_t)snprintf(s->key + len, sizeof s->key - len, "%02x", random[i]);
    snprintf(key, sizeof key, "PADDOCK_API_KEY=%s", s->key);
    snprintf(s->storage, sizeof s->storage, "%s", storage);
    snprintf(most, sizeof most, "%u", sandboxes);
    if (free_port(&s->port, e) < 0)
        return -1;
    snprintf(address, sizeof address, "127.0.0.1:%u", s->port);

    const char *argv[] = {s->p.paddock,
                          "serve",
                          "--listen",
                          address,
                          "--storage",
                          storage,
                          "--max-sandboxes",
                          most,
                          "--max-sandboxes-per-tenant",
                          most,
                          "--pool-min",
                          "4",
                          "--requests-per-s",
                          "0",
                          "--creates-per-s",
                          "0",
                          "--log-level",
                          "warn",
                          s->has_docker ? "--providers" : NULL, /* the last word without it */
                          "jail,docker",
                          "--image-pull",
                          "never",
                          NULL};

    char *environment[] = {(char *)"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/bin",
                           s->p.run_dir,
                           s->p.state_dir,
                           key,
                           s->has_docker ? (char *)s->p.docker : NULL,
                           NULL};
    s->program = fork();
    if (s->program < 0)
        return pd_fail_sys(e, "start %s serve", s->p.paddock);

    if (s->program == 0) {
        prctl(PR_SET_PDEATHSIG, SIGINT, 0, 0, 0); /* an interrupted run leaves nothing */
        execve(s->p.paddock, (char *const *)argv, environment);
        _exit(127);
    }

    deadline d = deadline_in(PATIENCE);
    while (is_ready(s, e) < 0) {
        if (deadline_passed(d) || waitpid(s->program, NULL, WNOHANG) > 0) {
            char why[200];
            place_complaint(&s->p, why, sizeof why);
            return pd_fail(e, PD_INTERNAL, "the server does not get ready: %s", why);
        }
        place_pause(20000);
    }
    s->daemon = child_named(s->program, "paddockd");
    return 0;
}

int server_stop(struct server_place *s, struct pd_err *e)
{
    int status = 0, result = 0;
    pid_t pid;
    if (s->program <= 0)
        return 0;
    kill(s->program, SIGINT);

    /* The keeper and its builders become our children when their parents end. */
    deadline d = deadline_in(2 * PATIENCE);
    while ((pid = waitpid(-1, &status, WNOHANG)) >= 0 && !deadline_passed(d)) {
        if (pid == s->program && status)
            result = pd_fail(e, PD_INTERNAL, "the server ended with status %d", status);
        if (pid == 0)
            place_pause(5000);
    }

    if (pid >= 0)
        result = pd_fail(e, PD_INTERNAL, "a process of the server is left after two minutes");
    s->program = s->daemon = 0;
    return result;
}

static uint64_t kilobytes(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

int server_usage(const struct server_place *s, struct usage *ret, struct pd_err *e)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", (int)s->daemon);
    if (fd_read_file(AT_FDCWD, path, text, sizeof text) < 0)
        return pd_fail(e, PD_LOST, "the server has died");
    ret->rss = kilobytes(text, "VmRSS:");
    ret->peak = kilobytes(text, "VmHWM:");
    snprintf(path, sizeof path, "/proc/%d/stat", (int)s->daemon);
    if (fd_read_file(AT_FDCWD, path, text, sizeof text) < 0)
        return pd_fail(e, PD_LOST, "the server has died");

    const char *at = strrchr(text, ')');
    uint64_t ticks = 0;
    for (unsigned field = 2; at && field < 15; field++) { /* 14 and 15: in user and kernel mode */
        at = strchr(at + 1, ' ');
        if (at && field >= 13)
            ticks += strtoull(at, NULL, 10);
    }
    ret->cpu_ns = ticks * (NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK));
    return 0;
}

void server_reset_peak(const struct server_place *s)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/clear_refs", (int)s->daemon);
    (void)fd_write_file(AT_FDCWD, path, "5");
}

/* ---- the client ---- */

int http_open(struct http *h, const struct server_place *s, struct pd_err *e)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)s->port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    struct timeval patience = {.tv_sec = PATIENCE / NS_PER_S};

    *h = (struct http){.in = BUF_INIT(2 * READ_SIZE)};
    h->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (h->fd < 0)
        return pd_fail_sys(e, "make a socket");
    (void)setsockopt(h->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(h->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    (void)setsockopt(h->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);

    if (connect(h->fd, (struct sockaddr *)&a, sizeof a) < 0)
        return pd_fail_sys(e, "connect to the server");
    return 0;
}

void http_done(struct http *h)
{
    fd_done(&h->fd);
    buf_done(&h->in);
}

int http_send(struct http *h, const struct server_place *s, const char *method, const char *path,
              const char *more, const char *body, struct pd_err *e)
{
    auto_buf out = BUF_INIT(TEXT_MAX);
    snprintf(h->path, sizeof h->path, "%s %s", method, path);
    buf_printf(&out, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nX-API-Key: %s\r\n%s", method, path,
               s->port, s->key, more);
    if (body)
        buf_printf(&out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    buf_puts(&out, "\r\n");
    if (body)
        buf_puts(&out, body);
    int r = out.overflow ? -EFBIG : fd_write_all(h->fd, out.data, out.len);
    if (r == 0)
        return 0;
    errno = -r;
    return pd_fail_sys(e, "send %s", h->path);
}

/* Reads more into `in`; what is before `at` goes. */
static int more(struct http *h, struct pd_err *e)
{
    if (!h->in.data && !buf_reserve(&h->in, READ_SIZE))
        return pd_fail(e, PD_CAPACITY, "no memory");
    h->in.len -= h->at;
    memmove(h->in.data, h->in.data + h->at, h->in.len);
    h->at = 0;
    uint8_t *room = buf_reserve(&h->in, READ_SIZE);
    if (!room)
        return pd_fail(e, PD_TOO_LARGE, "%s: the answer is too long", h->path);

    ssize_t n = recv(h->fd, room, READ_SIZE, h->no_wait ? MSG_DONTWAIT : 0);
    if (n < 0 && errno == EAGAIN)
        return pd_fail(e, PD_TIMEOUT, "%s: no answer yet", h->path);
    if (n < 0)
        return pd_fail_sys(e, "%s: read the answer", h->path);
    if (n == 0)
        return pd_fail(e, PD_LOST, "%s: the server closed the connection", h->path);
    h->in.len += (size_t)n;
    return 0;
}

/* A line that ends with CRLF, without it and with a NUL; NULL when it is not there yet. */
static const char *line(struct http *h)
{
    size_t len = h->in.len - h->at;
    uint8_t *from = h->in.data + h->at, *end = len ? memchr(from, '\n', len) : NULL;
    if (!end)
        return NULL;
    h->at += (size_t)(end - from) + 1;
    *end = 0;
    if (end > from && end[-1] == '\r')
        end[-1] = 0;
    return (const char *)from;
}

static const char *await_line(struct http *h, struct pd_err *e)
{
    const char *text;
    while (!(text = line(h)))
        if (more(h, e) < 0)
            return NULL;
    return text;
}

int http_answer(struct http *h, struct pd_err *e)
{
    const char *text = await_line(h, e);
    if (!text)
        return -1;
    if (strncmp(text, "HTTP/1.1 ", 9) != 0)
        return pd_fail(e, PD_PROTOCOL, "%s: the answer begins with '%.40s'", h->path, text);
    h->status = (int)strtol(text + 9, NULL, 10);
    h->left = 0;
    h->chunked = 0;

    while ((text = await_line(h, e)) && text[0]) {
        if (!strncasecmp(text, "Content-Length:", 15))
            h->left = strtoull(text + 15, NULL, 10);
        else if (!strncasecmp(text, "Transfer-Encoding: chunked", 26))
            h->chunked = 1;
    }

    return text ? 0 : -1;
}

ssize_t http_piece(struct http *h, const uint8_t **ret, struct pd_err *e)
{
    while (h->chunked == 1) {
        const char *size = await_line(h, e);
        if (!size)
            return -1;
        if (!size[0])
            continue; /* behind the last chunk */
        h->left = strtoull(size, NULL, 16);
        h->chunked = h->left ? 2 : 0;
        if (!h->left && !await_line(h, e))
            return -1;
    }

    if (!h->left)
        return 0;
    if (h->at == h->in.len && more(h, e) < 0)
        return -1;

    size_t n = h->in.len - h->at;
    n = n < h->left ? n : (size_t)h->left;
    *ret = h->in.data + h->at;
    h->at += n;
    h->left -= n;
    if (!h->left && h->chunked)
        h->chunked = 1;
    return (ssize_t)n;
}

const char *http_text(struct http *h, struct pd_err *e)
{
    static char text[TEXT_MAX];
    const uint8_t *piece;
    size_t len = 0;
    ssize_t n;

    while ((n = http_piece(h, &piece, e)) > 0) {
        if ((size_t)n >= sizeof text - len) {
            pd_fail(e, PD_TOO_LARGE, "%s: the answer is too long", h->path);
            return NULL;
        }
        memcpy(text + len, piece, (size_t)n);
        len += (size_t)n;
    }
    text[len] = 0;
    return n < 0 ? NULL : text;
}

const char *http_call(struct http *h, const struct server_place *s, const char *method,
                      const char *path, const char *body, int status, struct pd_err *e)
{
    if (http_send(h, s, method, path, "", body, e) < 0 || http_answer(h, e) < 0)
        return NULL;
    const char *text = http_text(h, e);
    if (text && h->status != status) {
        pd_fail(e, PD_INTERNAL, "%.80s: status %d: %.150s", h->path, h->status, text);
        return NULL;
    }
    return text;
}

int json_find(const char *text, const char *key, char *out, size_t size)
{
    char quoted[60];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(text, quoted);
    if (!at)
        return -1;
    at += strlen(quoted);
    at += strspn(at, " \"");
    snprintf(out, size, "%.*s", (int)strcspn(at, "\",}"), at);
    return 0;
}
