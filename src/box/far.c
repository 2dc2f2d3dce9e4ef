/* How this works: one poll loop over the listeners, connections that greet, the connection that has
 * the link, init's socket and the streams of commands. Each turn moves what can be moved. Messages
 * of the keeper's are frames for init, and those of init go back as they are; only what concerns
 * descriptors is understood here: EXEC, the ends of commands, and RESIZE. */
#include "box/far.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "box/streams.h"
#include "box/way.h"
#include "wire/msg.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define GREETINGS   8u
#define GREET_TIME  (5 * NS_PER_S)
#define GREET_LEAST (1 * NS_PER_S) /* what a dialler has, however many others there are */
#define SEND_TIME   (5 * NS_PER_S) /* for init, which never waits for anybody */
#define COUNT_MOST  (5 * NS_PER_S)
#define TURN        (1 * NS_PER_S)
#define PIECE       (64u << 10)
#define OTHERS      (GREETINGS + 4) /* descriptors to poll besides the streams' */
#define TURN_FRAMES 32
#define SIZES       8u

/* A connection that has not proved itself. */
struct guest {
    struct way way;
    struct greeting greeting;
    deadline until;
    bool failed; /* it is heard no more, and waits for its end */
};

/* The size of a terminal whose command is still to come. */
struct size {
    struct wire_id exec;
    unsigned rows, cols;
};

struct far {
    struct far_config *config;
    struct link *link;
    struct streams streams;
    struct guest guests[GREETINGS];
    struct way way; /* the connection that has the link */
    struct frame in;
    struct size sizes[SIZES];
    unsigned next_size;  /* whose place the next one has */
    uint64_t seen, left; /* when the lease was counted last; what is left of it */
    struct pollfd *polls;
    size_t polls_room;
    bool over;
    struct pd_err *why;
};

/* ---- connections ---- */

static void drop_connection(struct far *f)
{
    if (f->way.fd < 0)
        return;
    way_close(&f->way);
    link_down(f->link);
}

static void send_away(struct guest *g)
{
    greeting_end(&g->greeting);
    way_close(&g->way);
}

/* Whose place the next one may have: a free one, that of one who has failed, or of the one who has
 * been there longest. */
static struct guest *find_place(struct far *f)
{
    struct guest *best = &f->guests[0];

    for (unsigned i = 0; i < GREETINGS; i++) {
        struct guest *g = &f->guests[i];
        if (g->way.fd < 0)
            return g;
        if (g->failed != best->failed ? g->failed : g->until < best->until)
            best = g;
    }
    return best;
}

/* Somebody in the box always comes in: who is in it could end it, too. */
static bool has_place(struct far *f)
{
    const struct guest *g = find_place(f);
    return g->way.fd < 0 || g->failed || g->until <= deadline_in(GREET_TIME - GREET_LEAST);
}

static void accept_guest(struct far *f, int listener, const char *target)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;

    struct guest *g = find_place(f);
    if (g->way.fd >= 0)
        send_away(g);
    if (target)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (way_open(&g->way, fd, target) < 0)
        return;

    uint8_t nonce[LINK_NONCE];
    random_bytes(nonce, sizeof nonce);
    g->failed = false;
    g->until = deadline_in(GREET_TIME);
    greeting_begin(&g->greeting, &f->config->who, nonce);
}

/* A greeting's words are few, and its socket is new: they fit, or the peer is strange. */
static int say_greeting(struct guest *g)
{
    struct buf *out = &g->greeting.out;
    if (!out->len || !way_is_open(&g->way))
        return 0;
    if (way_say(&g->way, out->data, out->len) != (ssize_t)out->len || way_waits(&g->way))
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

static void take_rest(struct far *f)
{
    const uint8_t *data;
    size_t len;
    int r;

    while ((r = way_next(&f->way, &data, &len)) > 0)
        take_link(f, data, len);
    if (r < 0)
        drop_connection(f);
}

/* The last to prove itself has the link: the keeper has given the one before up. */
static void promote(struct far *f, struct guest *g, const uint8_t *rest, size_t len)
{
    drop_connection(f);
    f->config->who.epoch = g->greeting.peer_epoch;
    f->way = g->way;
    g->way = (struct way){.fd = -1};
    greeting_end(&g->greeting);

    link_up(f->link, clock_now());
    if (len)
        take_link(f, rest, len);
    take_rest(f);
}

static void hear_guest(struct far *f, struct guest *g)
{
    uint8_t room[512];
    const uint8_t *data;
    size_t len, used = 0;
    struct pd_err e;

    if (!way_hear(&g->way, room, sizeof room)) {
        send_away(g);
        return;
    }
    int r = 0, next = 0;
    while (r == 0 && (next = way_next(&g->way, &data, &len)) > 0)
        r = greeting_take(&g->greeting, data, len, &used, &e);
    if (r < 0 && e.code == PD_DENIED && g->way.dialled) {
        g->failed = true; /* who dialled learns neither that it failed nor when */
        return;
    }
    if (next < 0 || say_greeting(g) < 0)
        r = -1;
    if (r > 0)
        promote(f, g, data + used, len - used);
    else if (r < 0)
        send_away(g);
}

static void hear_link(struct far *f)
{
    static uint8_t piece[PIECE];

    if (!way_hear(&f->way, piece, sizeof piece))
        drop_connection(f);
    else
        take_rest(f);
}

static void say_link(struct far *f)
{
    const uint8_t *data;
    size_t len;

    if (f->way.fd >= 0 && !way_flush(&f->way))
        drop_connection(f);
    while (f->way.fd >= 0 && (data = link_give(f->link, clock_now(), &len))) {
        ssize_t n = way_say(&f->way, data, len);
        if (n == 0)
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
    if (msg_resize_decode(payload, &m, NULL) < 0)
        return;
    if (!streams_resize(&f->streams, m.exec, m.rows, m.cols))
        f->sizes[f->next_size++ % SIZES] =
            (struct size){.exec = m.exec, .rows = m.rows, .cols = m.cols};
}

/* A terminal has its size before its command sees it. */
static void resize_new(struct far *f, struct wire_id exec)
{
    for (unsigned i = 0; i < SIZES; i++)
        if (f->sizes[i].rows && wire_id_equal(f->sizes[i].exec, exec))
            (void)streams_resize(&f->streams, exec, f->sizes[i].rows, f->sizes[i].cols);
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
    resize_new(f, head.id);
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
    if (f->way.fd >= 0 && link_is_up(f->link)) {
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
    deadline streams = streams_deadline(&f->streams);
    d = d < link ? d : link;
    return d < streams ? d : streams;
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
    bool says = f->way.fd >= 0 && (way_waits(&f->way) || link_give(f->link, clock_now(), &len));
    struct pollfd *p = f->polls;
    p[0] = (struct pollfd){.fd = f->config->listener, .events = POLLIN};
    p[1] = (struct pollfd){.fd = room ? f->config->init : -1, .events = POLLIN};
    p[2] = (struct pollfd){.fd = f->way.fd, .events = (short)(says ? POLLIN | POLLOUT : POLLIN)};
    p[3] = (struct pollfd){.fd = has_place(f) ? f->config->dialers : -1, .events = POLLIN};
    for (unsigned i = 0; i < GREETINGS; i++)
        p[4 + i] =
            (struct pollfd){.fd = f->guests[i].failed ? -1 : f->guests[i].way.fd, .events = POLLIN};
    streams_poll(&f->streams, f->link, p + OTHERS);
    return 0;
}

static void serve_guests(struct far *f, const struct pollfd *polled)
{
    for (unsigned i = 0; i < GREETINGS; i++) {
        struct guest *g = &f->guests[i];
        if (g->way.fd >= 0 && polled[i].revents)
            hear_guest(f, g);
        if (g->way.fd >= 0 && deadline_passed(g->until))
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
    if (p[2].revents & ~POLLOUT && f->way.fd >= 0)
        hear_link(f);
    streams_move(&f->streams, f->link, p + OTHERS);
    /* Frames of init's behind the streams: what a command has written is read before its end. */
    if (p[1].revents && hear_init(f) < 0)
        return -1;
    if (hear_keeper(f) < 0)
        return -1;

    serve_guests(f, p + 4);
    if (p[3].revents)
        accept_guest(f, f->config->dialers, f->config->target);
    if (p[0].revents) {
        accept_guest(f, f->config->listener, NULL);
        for (unsigned i = 0; i < GREETINGS; i++)
            if (f->guests[i].way.fd >= 0 && say_greeting(&f->guests[i]) < 0)
                send_away(&f->guests[i]);
    }
    if (f->way.fd >= 0 && link_tick(f->link, clock_now(), &e) < 0)
        drop_connection(f);
    say_link(f);
    count_lease(f);
    return 0;
}

int far_run(struct far_config *c, struct pd_err *e)
{
    struct far f = {.config = c,
                    .link = link_new(LINK_BOX, c->budget),
                    .way = {.fd = -1},
                    .in = FRAME_INIT,
                    .seen = clock_now(),
                    .left = c->lease,
                    .why = e};
    int r = 0;
    for (unsigned i = 0; i < GREETINGS; i++)
        f.guests[i].way.fd = -1;

    if (!f.link || fd_set_nonblock(c->init) < 0)
        r = pd_fail(e, PD_CAPACITY, "no memory for a link");
    while (r == 0 && !f.over)
        if (turn(&f) < 0) {
            pd_fail(e, PD_LOST, "init is gone");
            f.over = true;
        }

    for (unsigned i = 0; i < GREETINGS; i++)
        if (f.guests[i].way.fd >= 0)
            send_away(&f.guests[i]);
    way_close(&f.way);
    streams_done(&f.streams);
    link_free(f.link);
    frame_done(&f.in);
    free(f.polls);
    return r;
}
