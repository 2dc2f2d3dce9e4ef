/* How this works: one poll loop over the listener, connections that greet, the connection that has
 * the link, init's socket and the streams of commands. Each turn moves what can be moved. Messages
 * of the keeper's are frames for init, and those of init go back as they are; only what concerns
 * descriptors is understood here: EXEC, the ends of commands, and RESIZE. */
#include "box/far.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "box/streams.h"
#include "wire/msg.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define GREETINGS   4u
#define GREET_TIME  (5 * NS_PER_S)
#define SEND_TIME   (5 * NS_PER_S) /* for init, which never waits for anybody */
#define COUNT_MOST  (5 * NS_PER_S)
#define TURN        (1 * NS_PER_S)
#define PIECE       (64u << 10)
#define OTHERS      (GREETINGS + 3) /* descriptors to poll besides the streams' */
#define TURN_FRAMES 32

/* A connection that has not proved itself. */
struct guest {
    int fd; /* -1: none */
    struct greeting greeting;
    deadline until;
};

struct far {
    struct far_config *config;
    struct link *link;
    struct streams streams;
    struct guest guests[GREETINGS];
    int fd; /* the connection that has the link, or -1 */
    struct frame in;
    uint64_t seen, left; /* when the lease was counted last; what is left of it */
    struct pollfd *polls;
    size_t polls_room;
    bool over;
    struct pd_err *why;
};

/* ---- connections ---- */

static void drop_connection(struct far *f)
{
    if (f->fd < 0)
        return;
    fd_done(&f->fd);
    link_down(f->link);
}

static void send_away(struct guest *g)
{
    greeting_end(&g->greeting);
    fd_done(&g->fd);
}

/* Whoever comes when all places are taken has that of the one who has been there longest. */
static void accept_guest(struct far *f)
{
    auto_fd fd = accept4(f->config->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;

    struct guest *g = &f->guests[0];
    for (unsigned i = 1; i < GREETINGS && g->fd >= 0; i++)
        if (f->guests[i].fd < 0 || f->guests[i].until < g->until)
            g = &f->guests[i];
    if (g->fd >= 0)
        send_away(g);

    uint8_t nonce[LINK_NONCE];
    random_bytes(nonce, sizeof nonce);
    g->fd = fd_take(&fd);
    g->until = deadline_in(GREET_TIME);
    greeting_begin(&g->greeting, &f->config->who, nonce);
}

/* A greeting's words are few, and its socket is new: they fit, or the peer is strange. */
static int say_greeting(struct guest *g)
{
    struct buf *out = &g->greeting.out;
    if (!out->len)
        return 0;
    ssize_t n = send(g->fd, out->data, out->len, MSG_NOSIGNAL);
    if (n != (ssize_t)out->len)
        return -1;
    buf_clear(out);
    return 0;
}

static void take_link(struct far *f, const uint8_t *data, size_t len)
{
    struct pd_err e;
    if (link_take(f->link, data, len, clock_now(), &e) == 0)
        return;
    if (link_farewell(f->link) == LINK_BYE_ENDING) {
        f->over = true;
        pd_fail(f->why, PD_LOST, "%s", e.msg);
    }
    drop_connection(f);
}

/* The last to prove itself has the link: the keeper has given the one before up. */
static void promote(struct far *f, struct guest *g, const uint8_t *rest, size_t len)
{
    drop_connection(f);
    f->config->who.epoch = g->greeting.peer_epoch;
    f->fd = fd_take(&g->fd);
    greeting_end(&g->greeting);

    link_up(f->link, clock_now());
    take_link(f, rest, len);
}

static void hear_guest(struct far *f, struct guest *g)
{
    uint8_t data[512];
    size_t used = 0;
    struct pd_err e;

    ssize_t n = recv(g->fd, data, sizeof data, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    int r = n <= 0 ? -1 : greeting_take(&g->greeting, data, (size_t)n, &used, &e);
    if (n > 0 && say_greeting(g) < 0)
        r = -1;
    if (r > 0)
        promote(f, g, data + used, (size_t)n - used);
    else if (r < 0)
        send_away(g);
}

static void hear_link(struct far *f)
{
    static uint8_t piece[PIECE];
    ssize_t n = recv(f->fd, piece, sizeof piece, 0);
    if (n > 0)
        take_link(f, piece, (size_t)n);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        drop_connection(f);
}

static void say_link(struct far *f)
{
    const uint8_t *data;
    size_t len;
    while (f->fd >= 0 && (data = link_give(f->link, clock_now(), &len))) {
        ssize_t n = send(f->fd, data, len, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0)
            drop_connection(f);
        else
            link_sent(f->link, (size_t)n, clock_now());
    }
}

/* ---- messages ---- */

static void refuse(struct far *f, struct wire_id id, const struct pd_err *e)
{
    auto_buf body = BUF_INIT(LINK_PAYLOAD_MAX), text = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_error_put(&text, e);
    struct wire_head head = {
        .magic = WIRE_MAGIC, .type = WIRE_ERROR, .len = (uint32_t)text.len, .id = id};
    buf_put(&body, &head, sizeof head);
    buf_put(&body, text.data, text.len);
    (void)link_send(f->link, &(struct link_msg){.body = body.data, .len = body.len});
}

static void resize(struct far *f, const struct buf *payload)
{
    struct msg_resize m;
    if (msg_resize_decode(payload, &m, NULL) == 0)
        streams_resize(&f->streams, m.exec, m.rows, m.cols);
}

/* To init. -1 when it is gone. */
static int pass_on(struct far *f, const struct link_msg *m, struct wire_head head,
                   const struct buf *payload)
{
    int fds[LINK_REFS_MAX];
    struct pd_err e;

    if (streams_open(&f->streams, f->link, m, head.id, fds, &e) < 0) {
        refuse(f, head.id, &e);
        return 0;
    }
    int r = wire_send(f->config->init, &head, payload, fds, m->ref_count, deadline_in(SEND_TIME));
    for (unsigned i = 0; i < m->ref_count; i++)
        close(fds[i]);
    return r;
}

/* A message of the keeper's: the head of a frame, and its payload. */
static int deliver(struct far *f, const struct link_msg *m)
{
    struct wire_head head;
    struct pd_err e;
    auto_buf payload = BUF_INIT(WIRE_PAYLOAD_MAX);

    if (m->len < sizeof head)
        return 0;
    memcpy(&head, m->body, sizeof head);
    if (wire_head_check(head, m->len, m->ref_count, &e) < 0)
        return 0;
    if (buf_put(&payload, m->body + sizeof head, m->len - sizeof head) < 0)
        return 0;

    if (head.type == WIRE_RESIZE) {
        resize(f, &payload);
        return 0;
    }
    return pass_on(f, m, head, &payload);
}

static int hear_keeper(struct far *f)
{
    struct link_msg m;
    /* Room for an answer first: a refusal must not get lost. */
    while (link_has_room(f->link, WIRE_PAYLOAD_MAX) && link_next(f->link, &m)) {
        int r = deliver(f, &m);
        if (r < 0)
            return -1;
        link_handled(f->link);
    }
    return 0;
}

/* The end of a command counts when what it has written has come. */
static void mark_end(struct far *f, struct link_msg *m)
{
    struct msg_exited end;
    unsigned type = f->in.head.type;
    if (type == WIRE_ERROR)
        streams_close(&f->streams, f->link, f->in.head.id);
    if ((type == WIRE_EXITED || type == WIRE_SYNCED) &&
        msg_exited_decode(&f->in.payload, &end, NULL) == 0 && end.exited)
        m->ref_count = streams_mark(&f->streams, f->link, f->in.head.id, m->refs);
}

/* -1 when init is gone. */
static int hear_init(struct far *f)
{
    for (int i = 0; i < TURN_FRAMES && link_has_room(f->link, WIRE_PAYLOAD_MAX); i++) {
        struct pd_err e;
        int r = wire_recv_plain(f->config->init, &f->in, 0, &e);
        if (r < 0 && e.code == PD_TIMEOUT)
            return 0;
        if (r <= 0)
            return -1;

        auto_buf body = BUF_INIT(LINK_PAYLOAD_MAX);
        struct link_msg m = {.ref_count = 0};
        mark_end(f, &m);
        buf_put(&body, &f->in.head, sizeof f->in.head);
        buf_put(&body, f->in.payload.data, f->in.payload.len);
        m.body = body.data;
        m.len = body.len;
        if (body.overflow || link_send(f->link, &m) < 0)
            return -1;
        frame_reset(&f->in);
    }
    return 0;
}

/* ---- turns ---- */

/* A frozen box sees a long time pass at once; that is not its keeper's fault. */
static void count_lease(struct far *f)
{
    uint64_t now = clock_now(), spent = now - f->seen;
    uint64_t told = (uint64_t)link_lease(f->link) * NS_PER_S;

    f->seen = now;
    if (f->fd >= 0 && link_is_up(f->link)) {
        f->left = told ? told : f->config->lease;
        return;
    }
    spent = spent > COUNT_MOST ? COUNT_MOST : spent;
    if (spent < f->left) {
        f->left -= spent;
        return;
    }
    f->over = true;
    pd_fail(f->why, PD_LOST, "no keeper came within the lease");
}

static deadline next_turn(const struct far *f)
{
    deadline d = deadline_in(TURN), link = link_deadline(f->link);
    return d < link ? d : link;
}

static int fill_polls(struct far *f)
{
    size_t want = f->streams.count + OTHERS;
    if (want > f->polls_room) {
        struct pollfd *more = realloc(f->polls, 2 * want * sizeof *more);
        if (!more)
            return -1;
        f->polls = more;
        f->polls_room = 2 * want;
    }

    size_t len;
    bool room = link_has_room(f->link, WIRE_PAYLOAD_MAX);
    bool says = f->fd >= 0 && link_give(f->link, clock_now(), &len);
    struct pollfd *p = f->polls;
    p[0] = (struct pollfd){.fd = f->config->listener, .events = POLLIN};
    p[1] = (struct pollfd){.fd = room ? f->config->init : -1, .events = POLLIN};
    p[2] = (struct pollfd){.fd = f->fd, .events = (short)(says ? POLLIN | POLLOUT : POLLIN)};
    for (unsigned i = 0; i < GREETINGS; i++)
        p[3 + i] = (struct pollfd){.fd = f->guests[i].fd, .events = POLLIN};
    streams_poll(&f->streams, f->link, p + OTHERS);
    return 0;
}

static void serve_guests(struct far *f, const struct pollfd *polled)
{
    for (unsigned i = 0; i < GREETINGS; i++) {
        struct guest *g = &f->guests[i];
        if (g->fd >= 0 && polled[i].revents)
            hear_guest(f, g);
        if (g->fd >= 0 && deadline_passed(g->until))
            send_away(g);
    }
}

static int turn(struct far *f)
{
    struct pd_err e;
    if (fill_polls(f) < 0)
        return -1;
    unsigned streams = f->streams.count;
    if (poll(f->polls, OTHERS + streams, deadline_poll_ms(next_turn(f))) < 0 && errno != EINTR)
        return -1;

    struct pollfd *p = f->polls;
    if (p[2].revents & ~POLLOUT && f->fd >= 0)
        hear_link(f);
    streams_move(&f->streams, f->link, p + OTHERS);
    /* Frames of init's behind the streams: what a command has written is read before its end. */
    if (p[1].revents && hear_init(f) < 0)
        return -1;
    if (hear_keeper(f) < 0)
        return -1;

    serve_guests(f, p + 3);
    if (p[0].revents) {
        accept_guest(f);
        for (unsigned i = 0; i < GREETINGS; i++)
            if (f->guests[i].fd >= 0 && say_greeting(&f->guests[i]) < 0)
                send_away(&f->guests[i]);
    }
    if (f->fd >= 0 && link_tick(f->link, clock_now(), &e) < 0)
        drop_connection(f);
    say_link(f);
    count_lease(f);
    return 0;
}

int far_run(struct far_config *c, struct pd_err *e)
{
    struct far f = {.config = c,
                    .link = link_new(LINK_BOX, c->budget),
                    .fd = -1,
                    .in = FRAME_INIT,
                    .seen = clock_now(),
                    .left = c->lease,
                    .why = e};
    int r = 0;
    for (unsigned i = 0; i < GREETINGS; i++)
        f.guests[i].fd = -1;

    if (!f.link || fd_set_nonblock(c->init) < 0)
        r = pd_fail(e, PD_CAPACITY, "no memory for a link");
    while (r == 0 && !f.over)
        if (turn(&f) < 0) {
            pd_fail(e, PD_LOST, "init is gone");
            f.over = true;
        }

    for (unsigned i = 0; i < GREETINGS; i++)
        if (f.guests[i].fd >= 0)
            send_away(&f.guests[i]);
    fd_done(&f.fd);
    streams_done(&f.streams);
    link_free(f.link);
    frame_done(&f.in);
    free(f.polls);
    return r;
}
