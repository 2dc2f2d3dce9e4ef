/* Streams between a command and this program's own descriptors. Each holds at most one chunk, and
 * is not read while that waits to be written, so a slow reader slows the command down. Captured
 * output keeps its head and its tail. */
#include "cli/stream.h"

#include "base/banned.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#define CHUNK (64u << 10)

int capture_init(struct capture *c)
{
    *c = (struct capture){.head = BUF_INIT(CAPTURE_MAX / 2), .tail = malloc(CAPTURE_MAX / 2)};
    return c->tail ? 0 : -1;
}

void capture_add(struct capture *c, const uint8_t *data, size_t len)
{
    size_t room = c->head.max - c->head.len;
    size_t first = len < room ? len : room;

    if (buf_put(&c->head, data, first) < 0)
        first = 0;

    c->total += len;
    data += first;
    len -= first;

    const size_t size = CAPTURE_MAX / 2;
    for (; len; len--, data++)
        c->tail[c->tail_size++ % size] = *data;
}

int capture_truncated(const struct capture *c)
{
    return c->tail_size > CAPTURE_MAX / 2;
}

void capture_text(const struct capture *c, struct buf *out)
{
    const uint64_t size = CAPTURE_MAX / 2;

    buf_put(out, c->head.data, c->head.len);
    if (!capture_truncated(c)) {
        buf_put(out, c->tail, (size_t)c->tail_size);
        return;
    }

    buf_printf(out, "\n[... %llu bytes left out ...]\n", (unsigned long long)(c->tail_size - size));
    uint64_t start = c->tail_size % size;
    buf_put(out, c->tail + start, (size_t)(size - start));
    buf_put(out, c->tail, (size_t)start);
}

/* A terminal that somebody has stopped blocks a write that poll had allowed. Opened anew it can be
 * non-blocking for us alone. (Not the master of a terminal of ours: that would open another one.)
 */
static int reopen_terminal(int fd)
{
    char path[40];

    if ((fd != STDOUT_FILENO && fd != STDERR_FILENO) || !isatty(fd))
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

int stream_init(struct stream *s, int from, int to)
{
    *s = (struct stream){.from = from, .to = to, .chunk = malloc(CHUNK)};

    int terminal = reopen_terminal(to);
    if (terminal >= 0) {
        s->to = terminal;
        s->to_is_ours = 1;
    }
    return s->chunk ? 0 : -1;
}

int stream_is_over(const struct stream *s)
{
    return s->from < 0 && s->have == s->sent;
}

void stream_close(struct stream *s)
{
    if (s->from_is_ours)
        fd_done(&s->from);
    if (s->to_is_ours)
        fd_done(&s->to);
    s->from = s->to = -1;
    s->have = s->sent = 0;
    free(s->chunk);
    s->chunk = NULL;
}

unsigned stream_poll(const struct stream *s, struct pollfd *p)
{
    if (s->have > s->sent) {
        *p = (struct pollfd){s->to, POLLOUT, 0};
        return 1;
    }
    if (s->from < 0)
        return 0;
    *p = (struct pollfd){s->from, POLLIN, 0};
    return 1;
}

static void end_input(struct stream *s)
{
    if (s->from_is_ours)
        fd_done(&s->from);
    s->from = -1;
}

/* How much may be written now without blocking: poll promises PIPE_BUF for a pipe and some room for
 * a socket or terminal; a file takes all. */
static size_t write_size(const struct stream *s)
{
    struct stat st;
    size_t len = s->have - s->sent;

    if (fstat(s->to, &st) == 0 && S_ISREG(st.st_mode))
        return len;
    return len < PIPE_BUF ? len : PIPE_BUF;
}

static void write_some(struct stream *s)
{
    if (s->capture) {
        capture_add(s->capture, s->chunk + s->sent, s->have - s->sent);
        s->sent = s->have;
        return;
    }

    ssize_t n = write(s->to, s->chunk + s->sent, write_size(s));
    if (n >= 0)
        s->sent += (uint32_t)n;
    else if (errno != EAGAIN && errno != EINTR) {
        /* The reader is gone. Our end is closed, so that the writer gets its SIGPIPE. */
        s->sent = s->have;
        end_input(s);
        if (s->to_is_ours)
            fd_done(&s->to);
    }
}

static void read_some(struct stream *s)
{
    ssize_t n = read(s->from, s->chunk, CHUNK);
    if (n > 0) {
        s->have = (uint32_t)n;
        s->sent = 0;
        s->total += (uint64_t)n;
        if (s->capture)
            write_some(s);
        return;
    }

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    end_input(s); /* the end; or EIO, which is how a terminal says it */
    if (s->to_is_ours)
        fd_done(&s->to);
}

void stream_move(struct stream *s, short events)
{
    if (s->have > s->sent) {
        if (events & (POLLOUT | POLLERR | POLLHUP))
            write_some(s);
    } else if (s->from >= 0 && events & (POLLIN | POLLHUP | POLLERR | POLLNVAL)) {
        read_some(s);
        if (s->from >= 0 && s->have > s->sent && s->to >= 0) {
            /* Most often there is room: one poll is saved. */
            struct pollfd p = {s->to, POLLOUT, 0};
            if (poll(&p, 1, 0) > 0)
                write_some(s);
        }
    }
}

void stream_drain(struct stream *s, deadline d)
{
    if (s->from >= 0)
        (void)fd_set_nonblock(s->from);
    while (!stream_is_over(s)) {
        struct pollfd p;
        int writing = s->have > s->sent;
        if (!stream_poll(s, &p) || poll(&p, 1, writing ? deadline_poll_ms(d) : 0) <= 0)
            return;
        stream_move(s, p.revents);
    }
}
