/* How this works: what a command writes is read as far as its channel has room, so a full ring
 * makes the command wait. What comes for it is taken from the channel when the kernel has it. A
 * stream ends where one side says so, and the other is told: END for an end of file, STOP for a
 * reader that is gone. An error of a read that tells of no end, such as that there is no memory
 * just now, is none: the bytes are still there, and are asked for again behind a pause. */
#include "box/streams.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "box/keep.h"
#include "link/kind.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define PIECE (64u << 10)
#define PAUSE (100 * NS_PER_MS) /* behind a read that failed */

/* ---- birth ---- */

static int open_terminal(int *ret_near, int *ret_far)
{
    char path[32];
    int number = 0, unlock = 0;
    auto_fd near = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (near < 0 || ioctl(near, TIOCSPTLCK, &unlock) < 0 || ioctl(near, TIOCGPTN, &number) < 0)
        return -1;

    snprintf(path, sizeof path, "/dev/pts/%d", number);
    auto_fd far = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (far < 0)
        return -1;
    *ret_near = fd_take(&near);
    *ret_far = fd_take(&far);
    return 0;
}

/* Two ends of what a kind is; -1 with errno. Ways must fit the kind. */
static int open_pair(const struct link_ref *r, int *ret_near, int *ret_far)
{
    int p[2];
    errno = EPROTO;

    switch (r->kind) {
    case LINK_PIPE:
        if ((r->ways != LINK_AWAY && r->ways != LINK_BACK) || pipe2(p, O_CLOEXEC) < 0)
            return -1;
        *ret_near = p[r->ways == LINK_AWAY];
        *ret_far = p[r->ways != LINK_AWAY];
        return 0;
    case LINK_SOCKET:
        if (r->ways != (LINK_AWAY | LINK_BACK) ||
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p) < 0)
            return -1;
        *ret_near = p[0];
        *ret_far = p[1];
        return 0;
    case LINK_TERMINAL:
        return r->ways == (LINK_AWAY | LINK_BACK) ? open_terminal(ret_near, ret_far) : -1;
    default:
        return -1;
    }
}

static int make_room(struct streams *s)
{
    if (s->count < s->room)
        return 0;
    unsigned room = s->room ? 2 * s->room : 16;
    struct stream *more = realloc(s->all, room * sizeof *more);
    if (!more)
        return -1;
    s->all = more;
    s->room = room;
    return 0;
}

int streams_add(struct streams *s, uint32_t channel, int fd, unsigned ways, struct wire_id exec)
{
    auto_fd own = fd;
    int place = -1;
    if (make_room(s) < 0 || (!s->keep && fd_set_nonblock(own) < 0))
        return -1;
    if (s->keep && (place = keep_place(s->keep)) < 0)
        return -1;

    s->all[s->count++] = (struct stream){.channel = channel,
                                         .fd = fd_take(&own),
                                         .exec = exec,
                                         .place = place,
                                         .again = DEADLINE_NONE,
                                         .back = ways & LINK_BACK,
                                         .reads = ways & LINK_BACK,
                                         .writes = ways & LINK_AWAY};
    return 0;
}

/* The descriptor for one of them; -1 with errno. */
static int open_one(struct streams *s, const struct link_ref *r, struct wire_id exec, int before)
{
    if (!r->ways)
        return r->kind == LINK_SAME && before >= 0 ? fcntl(before, F_DUPFD_CLOEXEC, 0)
               : r->kind == LINK_NULL              ? open("/dev/null", O_RDWR | O_CLOEXEC)
                                                   : (errno = EPROTO, -1);

    int near, far;
    if (open_pair(r, &near, &far) < 0)
        return -1;
    if (streams_add(s, r->channel, near, r->ways, exec) < 0) {
        close(far);
        return -1;
    }
    s->all[s->count - 1].terminal = r->kind == LINK_TERMINAL;
    return far;
}

int streams_open(struct streams *s, struct link *l, const struct link_msg *m, struct wire_id exec,
                 int ret_fds[LINK_REFS_MAX], struct pd_err *e)
{
    unsigned n = 0;
    for (; n < m->ref_count; n++) {
        ret_fds[n] = open_one(s, &m->refs[n], exec, n ? ret_fds[n - 1] : -1);
        if (ret_fds[n] < 0)
            break;
    }
    if (n == m->ref_count)
        return 0;

    pd_fail_sys(e, "make descriptor %u of a command", n);
    while (n > 0)
        close(ret_fds[--n]);
    streams_close(s, l, exec);
    for (unsigned i = 0; i < m->ref_count; i++) {
        link_end(l, m->refs[i].channel);
        link_stop(l, m->refs[i].channel);
    }
    return -1;
}

/* ---- end ---- */

/* A descriptor that a record speaks of stays until the next one: its number would be another's. */
static void let_go(struct streams *s, struct stream *st)
{
    if (s->keep && st->fd >= 0 && buf_put(&s->closing, &st->fd, sizeof st->fd) == 0)
        st->fd = -1;
    fd_done(&st->fd);
}

static void close_those_let_go(struct streams *s)
{
    for (size_t at = 0; at < s->closing.len; at += sizeof(int)) {
        int fd;
        memcpy(&fd, s->closing.data + at, sizeof fd);
        close(fd);
    }
    buf_clear(&s->closing);
}

static void forget(struct streams *s, struct stream *st)
{
    let_go(s, st);
    if (s->keep)
        keep_leave(s->keep, st->place);
    *st = s->all[--s->count];
}

/* Whether somebody else wanted a descriptor not to block can only be seen before: so that is asked
 * again by whoever hears of an EXEC that is in no record. What was taken behind the last read of a
 * stream is seen here alone: of one that is silent then, all would be kept until its end. */
void streams_recorded(struct streams *s, const struct link *l)
{
    close_those_let_go(s);
    for (unsigned i = 0; i < s->count; i++) {
        struct stream *st = &s->all[i];
        keep_forget(s->keep, st->place, link_held(l, st->channel));
        if (st->begun)
            continue;
        st->begun = true;
        (void)fd_set_nonblock(st->fd);
    }
}

int streams_recall(struct streams *s, struct link *l, const struct stream *st)
{
    const uint8_t *data;
    size_t len;
    if (make_room(s) < 0)
        return -1;

    s->all[s->count] = *st;
    s->all[s->count++].begun = true;
    (void)fd_set_nonblock(st->fd);
    struct keep_place p = keep_claim(s->keep, st->place);
    link_place(l, st->channel, p.written, p.start);
    for (uint64_t at = p.start; (data = keep_bytes(s->keep, st->place, at, &len)); at += len)
        if (link_put_again(l, st->channel, data, len) < 0)
            return -1;
    return 0;
}

void streams_close(struct streams *s, struct link *l, struct wire_id exec)
{
    for (unsigned i = s->count; i-- > 0;) {
        struct stream *st = &s->all[i];
        if (!wire_id_equal(st->exec, exec))
            continue;
        link_end(l, st->channel);
        link_stop(l, st->channel);
        forget(s, st);
    }
}

void streams_done(struct streams *s)
{
    while (s->count)
        forget(s, &s->all[0]);
    close_those_let_go(s);
    buf_done(&s->closing);
    free(s->all);
    *s = (struct streams){.all = NULL};
}

/* ---- what is told ---- */

unsigned streams_mark(const struct streams *s, const struct link *l, struct wire_id exec,
                      struct link_ref ret[LINK_REFS_MAX])
{
    unsigned n = 0;
    for (unsigned i = 0; i < s->count && n < LINK_REFS_MAX; i++) {
        const struct stream *st = &s->all[i];
        int waiting = 0;
        if (!st->back || !wire_id_equal(st->exec, exec) || link_is_unwanted(l, st->channel))
            continue;
        if (st->reads)
            (void)ioctl(st->fd, FIONREAD, &waiting);
        ret[n++] = (struct link_ref){.channel = st->channel,
                                     .offset = st->put + (uint64_t)(waiting > 0 ? waiting : 0)};
    }
    return n;
}

bool streams_resize(const struct streams *s, struct wire_id exec, unsigned rows, unsigned cols)
{
    struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)cols};
    bool found = false;
    for (unsigned i = 0; i < s->count; i++)
        if (s->all[i].terminal && s->all[i].fd >= 0 && wire_id_equal(s->all[i].exec, exec))
            found = ioctl(s->all[i].fd, TIOCSWINSZ, &size) == 0 || found;
    return found;
}

/* ---- bytes ---- */

deadline streams_deadline(const struct streams *s)
{
    deadline first = DEADLINE_NONE;
    for (unsigned i = 0; i < s->count; i++)
        if (s->all[i].reads && s->all[i].again < first)
            first = s->all[i].again;
    return first;
}

void streams_poll(struct streams *s, const struct link *l, struct pollfd *ret)
{
    size_t len;
    for (unsigned i = 0; i < s->count; i++) {
        struct stream *st = &s->all[i];
        short events = 0;
        if (st->again != DEADLINE_NONE && deadline_passed(st->again))
            st->again = DEADLINE_NONE;
        if (st->reads && st->again == DEADLINE_NONE && link_room(l, st->channel))
            events |= POLLIN;
        if (st->writes && link_read(l, st->channel, &len))
            events |= POLLOUT;

        /* One that waits for the link alone is left out: its hang-up would come again and again, as
         * that of a socket does which has been read to its end. A pipe's reader goes once, and that
         * is told to whoever still has bytes for it. */
        bool awaited = events || (st->writes && !st->back);
        ret[i] = (struct pollfd){.fd = awaited ? st->fd : -1, .events = events};
    }
}

/* At most PIECE bytes, which are at *ret. */
static ssize_t read_some(const struct streams *s, const struct stream *st, const struct link *l,
                         size_t len, const uint8_t **ret)
{
    static uint8_t piece[PIECE];
    len = len < PIECE ? len : PIECE;
    *ret = piece;
    return s->keep ? keep_read(s->keep, st->place, st->fd, link_held(l, st->channel), len, ret)
                   : read(st->fd, piece, len);
}

/* What drops is not counted for sure, and a pipe of pieces has room for fewer bytes. */
static ssize_t write_some(const struct streams *s, const struct stream *st, const uint8_t *data,
                          size_t len)
{
    if (s->keep && !st->drops)
        return keep_write(s->keep, st->place, st->fd, data, len);

    ssize_t n = write(st->fd, data, len);
    if (n < 0 && errno == EAGAIN && st->drops)
        n = (ssize_t)len;
    if (s->keep && n > 0)
        keep_wrote(s->keep, st->place, (size_t)n);
    return n;
}

/* Of a terminal: EIO when nobody has its other side any more. */
static bool tells_an_end(ssize_t n, int error)
{
    return n == 0 || error == EIO || error == ECONNRESET;
}

/* From the command. */
static void read_stream(struct streams *s, struct stream *st, struct link *l)
{
    const uint8_t *piece;
    for (;;) {
        size_t room = link_room(l, st->channel);
        if (!st->reads || !room || st->again != DEADLINE_NONE)
            return;

        ssize_t n = read_some(s, st, l, room, &piece);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0 && !tells_an_end(n, errno)) {
            st->again = deadline_in(PAUSE);
            return;
        }
        if (n <= 0) {
            st->reads = false;
            link_end(l, st->channel);
            return;
        }

        st->put += (uint64_t)n;
        if (link_write(l, st->channel, piece, (size_t)n) != (size_t)n)
            abort(); /* no memory: bytes would be missing, and nobody would know */
    }
}

/* To the command. */
static void write_stream(struct streams *s, struct stream *st, struct link *l)
{
    const uint8_t *data;
    size_t len;

    while (st->writes && (data = link_read(l, st->channel, &len))) {
        ssize_t n = write_some(s, st, data, len);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0) {
            st->writes = false;
            link_stop(l, st->channel);
            return;
        }
        link_taken(l, st->channel, (size_t)n);
    }

    if (st->writes && link_is_over(l, st->channel)) {
        st->writes = false;
        if (st->reads)
            (void)shutdown(st->fd, SHUT_WR); /* a socket's; a terminal has no such end */
    }
}

void streams_move(struct streams *s, struct link *l, const struct pollfd *polled)
{
    for (unsigned i = s->count; i-- > 0;) {
        struct stream *st = &s->all[i];
        if (!polled || polled[i].revents & (POLLIN | POLLHUP | POLLERR))
            read_stream(s, st, l);
        if (polled && polled[i].revents & POLLERR && st->writes && !st->back) {
            st->writes = false;
            link_stop(l, st->channel);
        }
        write_stream(s, st, l);

        if (st->reads && link_is_unwanted(l, st->channel)) {
            st->reads = false;
            if (st->writes && !st->terminal)
                (void)shutdown(st->fd, SHUT_RD);
        }
        if (!st->reads && (!st->writes || st->terminal) && st->fd >= 0) {
            link_stop(l, st->channel);
            st->writes = false;
            let_go(s, st);
        }
        if (st->fd < 0 && (!st->back || link_is_unwanted(l, st->channel)))
            forget(s, st);
    }
}
