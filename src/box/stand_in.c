/* How this works: one poll loop over the control socket, the connection to the box and the near
 * ends of commands' pipes. A frame of the daemon's becomes a message of the link, with a channel
 * for each of its descriptors; a message of the box's becomes a frame. What does not fit the
 * control socket stays where it is: a message in the link, the end of a command in its record.
 *
 * A command is known from its EXEC until the daemon's ACK. Its end is told when
 * command_is_complete, and again to every daemon that says a higher epoch. */
#include "box/stand_in.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "box/stand_in_state.h"
#include "link/kind.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define PIECE       (64u << 10)
#define TURN_FRAMES 32
#define GREET_TIME  (10 * NS_PER_S)
#define PAUSE_FIRST (NS_PER_S / 4)
#define PAUSE_MOST  (30 * NS_PER_S)
#define RECORD_MAX  (16u << 20)
#define CLOSING_MAX (1u << 20)

/* ---- the connection ---- */

/* After a link that was up the next attempt is made at once. */
static void back_off(struct stand_in *s)
{
    s->next = deadline_in(s->pause);
    s->pause = s->pause ? s->pause * 2 : PAUSE_FIRST;
    if (s->pause > PAUSE_MOST)
        s->pause = PAUSE_MOST;
}

static void hang_up(struct stand_in *s)
{
    if (s->fd < 0)
        return;
    if (s->greets)
        greeting_end(&s->greeting);
    fd_done(&s->fd);
    s->greets = false;
    link_down(s->link);
    back_off(s);
}

static void dial(struct stand_in *s)
{
    uint8_t nonce[LINK_NONCE];
    if (s->fd >= 0 || !deadline_passed(s->next))
        return;

    int fd = s->config->dial(s->config->context);
    if (fd == STAND_IN_GONE) {
        s->over = true;
        pd_fail(s->why, PD_LOST, "the box is gone");
        return;
    }
    if (fd < 0) {
        back_off(s);
        return;
    }

    s->fd = fd;
    s->greets = true;
    s->until = deadline_in(GREET_TIME);
    random_bytes(nonce, sizeof nonce);
    greeting_begin(&s->greeting, &s->config->who, nonce);
}

static void note_up(struct stand_in *s)
{
    s->pause = 0;
    if (!s->was_up && s->config->up)
        s->config->up(s->config->context);
    s->was_up = true;
}

static void take(struct stand_in *s, const uint8_t *data, size_t len)
{
    struct pd_err e;
    size_t used = 0;

    if (s->greets) {
        int r = greeting_take(&s->greeting, data, len, &used, &e);
        if (r < 0)
            hang_up(s);
        if (r <= 0)
            return;
        greeting_end(&s->greeting);
        s->greets = false;
        link_up(s->link, clock_now());
    }
    if (link_take(s->link, data + used, len - used, clock_now(), &e) < 0)
        hang_up(s);
    else if (link_is_up(s->link))
        note_up(s);
}

static void hear_box(struct stand_in *s)
{
    static uint8_t piece[PIECE];
    ssize_t n = recv(s->fd, piece, sizeof piece, 0);
    if (n > 0)
        take(s, piece, (size_t)n);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        hang_up(s);
}

/* What is to be sent now: of the greeting, or of the link. */
static const uint8_t *words(struct stand_in *s, size_t *ret_len)
{
    if (s->fd < 0)
        return NULL;
    if (!s->greets)
        return link_give(s->link, clock_now(), ret_len);
    *ret_len = s->greeting.out.len;
    return *ret_len ? s->greeting.out.data : NULL;
}

static void speak(struct stand_in *s)
{
    const uint8_t *data;
    size_t len;
    while ((data = words(s, &len))) {
        ssize_t n = send(s->fd, data, len, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0 || (s->greets && (size_t)n != len)) {
            hang_up(s);
            return;
        }
        if (s->greets)
            buf_clear(&s->greeting.out);
        else
            link_sent(s->link, (size_t)n, clock_now());
    }
}

/* ---- to the daemon ---- */

/* true when it was sent, or nobody is there to hear it. */
static bool tell(struct stand_in *s, enum wire_type type, struct wire_id id,
                 const struct buf *payload)
{
    struct wire_head head = {.type = (uint16_t)type, .epoch = s->epoch, .id = id};
    int r = wire_send(s->config->control, &head, payload, NULL, 0, 0);
    s->full = r == -EAGAIN || r == -ENOBUFS || r == -ENOMEM;
    return !s->full;
}

static bool tell_exited(struct stand_in *s, struct command *c, enum wire_type type)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_exited now = c->end;
    bool ended = c->end.exited && command_is_complete(c, s->link);
    if (!ended)
        now = (struct msg_exited){.pid = c->end.pid};

    msg_exited_encode(&b, &now);
    if (!tell(s, type, c->id, &b))
        return false;
    c->unlisted = false;
    c->told = ended;
    return true;
}

static bool tell_empty(struct stand_in *s, struct command *c)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_empty_encode(&b, &c->empty);
    if (!tell(s, WIRE_EMPTY, c->id, &b))
        return false;
    c->has_empty = false;
    return true;
}

/* The rest of a list, then ends that are due. */
static void tell_waiting(struct stand_in *s)
{
    for (unsigned i = 0; s->syncing && i < s->commands.count; i++)
        if (s->commands.all[i].unlisted && !tell_exited(s, &s->commands.all[i], WIRE_SYNCED))
            return;
    if (s->syncing && !tell(s, WIRE_SYNC_END, s->sync_id, NULL))
        return;
    s->syncing = false;

    for (unsigned i = 0; i < s->commands.count; i++) {
        struct command *c = &s->commands.all[i];
        if (c->end.exited && !c->told && command_is_complete(c, s->link) &&
            !tell_exited(s, c, WIRE_EXITED))
            return;
        if (c->told && c->has_empty && !tell_empty(s, c))
            return;
    }
}

/* ---- from the box ---- */

/* A command's news is kept in its record. True when that is all that is to be done. */
static bool keep_news(struct stand_in *s, const struct wire_head *h, const struct buf *payload,
                      const struct link_msg *m)
{
    struct command *c = commands_find(&s->commands, h->id);
    struct msg_started started;
    struct msg_exited end;

    if (!c)
        return h->type == WIRE_EXITED;
    switch (h->type) {
    case WIRE_STARTED:
        if (msg_started_decode(payload, &started, NULL) == 0)
            c->end.pid = started.pid;
        return c->quiet;
    case WIRE_EXITED:
        if (msg_exited_decode(payload, &end, NULL) == 0 && end.exited && !c->end.exited) {
            c->end = end;
            memcpy(c->marks, m->refs, sizeof c->marks);
            c->mark_count = m->ref_count;
        }
        return true;
    case WIRE_EMPTY:
        c->has_empty = msg_empty_decode(payload, &c->empty, NULL) == 0;
        return true;
    default:
        return false;
    }
}

/* false when it must wait for room. */
static bool pass_to_daemon(struct stand_in *s, const struct link_msg *m)
{
    struct wire_head h;
    auto_buf payload = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct pd_err e;

    if (m->len < sizeof h)
        return true;
    memcpy(&h, m->body, sizeof h);
    if (wire_head_check(h, m->len, 0, &e) < 0 ||
        buf_put(&payload, m->body + sizeof h, m->len - sizeof h) < 0)
        return true; /* nonsense of the box's is its own loss */

    if (h.type == WIRE_FACTS) {
        buf_clear(&s->facts);
        buf_put(&s->facts, payload.data, payload.len);
    }
    if (keep_news(s, &h, &payload, m))
        return true;
    if (!tell(s, (enum wire_type)h.type, h.id, &payload))
        return false;

    struct command *c = commands_find(&s->commands, h.id);
    if (c && h.type == WIRE_ERROR) {
        streams_close(&s->streams, s->link, h.id);
        commands_remove(&s->commands, c);
    }
    return true;
}

static void hear_link(struct stand_in *s)
{
    struct link_msg m;
    while (!s->full && link_next(s->link, &m) && pass_to_daemon(s, &m))
        link_handled(s->link);
}

/* ---- from the daemon ---- */

static void refuse(struct stand_in *s, struct wire_id id, const struct pd_err *e)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_error_put(&b, e);
    (void)tell(s, WIRE_ERROR, id, &b);
}

static bool is_same_file(int a, int b)
{
    struct stat x, y;
    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* What a descriptor is, by what can be done with it. */
static struct link_ref ref_of(struct stand_in *s, const struct frame *f, unsigned i)
{
    struct stat st;
    int mode = fcntl(f->fds[i], F_GETFL) & O_ACCMODE;
    struct link_ref r = {.kind = LINK_NULL};

    if (i && is_same_file(f->fds[i], f->fds[i - 1]) && fstat(f->fds[i], &st) == 0 &&
        !S_ISCHR(st.st_mode)) {
        r.kind = LINK_SAME;
    } else if (fstat(f->fds[i], &st) == 0 && S_ISFIFO(st.st_mode)) {
        r.kind = LINK_PIPE;
        r.ways = mode == O_RDONLY ? LINK_AWAY : LINK_BACK;
    } else if (S_ISREG(st.st_mode)) {
        r.kind = LINK_PIPE; /* input that is known in advance */
        r.ways = LINK_AWAY;
    } else if (S_ISSOCK(st.st_mode)) {
        r.kind = f->head.flags & EXEC_PTY ? LINK_TERMINAL : LINK_SOCKET;
        r.ways = LINK_AWAY | LINK_BACK;
    }
    if (r.ways)
        r.channel = link_open(s->link, r.ways);
    return r;
}

/* Opens channels for the descriptors of a frame, and joins them. */
static int join_descriptors(struct stand_in *s, struct frame *f, struct link_msg *m,
                            struct pd_err *e)
{
    if (link_channels(s->link) + f->fd_count > LINK_CHANNELS_MAX)
        return pd_fail(e, PD_CAPACITY, "the link to this sandbox has no room for another command");

    /* All are looked at before the first is given away: one may be the same as the one before. */
    m->ref_count = f->fd_count;
    for (unsigned i = 0; i < f->fd_count; i++)
        m->refs[i] = ref_of(s, f, i);
    for (unsigned i = 0; i < f->fd_count; i++) {
        unsigned ways = m->refs[i].ways;
        /* What is back for the box is away for us: to the descriptor. */
        unsigned own = (ways & LINK_BACK ? LINK_AWAY : 0) | (ways & LINK_AWAY ? LINK_BACK : 0);
        /* Who writes there was not to wait for a reader. */
        bool drops = m->refs[i].kind == LINK_PIPE && ways == LINK_BACK &&
                     fcntl(f->fds[i], F_GETFL) & O_NONBLOCK;
        if (!ways)
            continue;
        if (streams_add(&s->streams, m->refs[i].channel, frame_take_fd(f, i), own, f->head.id) ==
            0) {
            s->streams.all[s->streams.count - 1].drops = drops;
        } else {
            link_end(s->link, m->refs[i].channel);
            link_stop(s->link, m->refs[i].channel);
        }
    }
    return 0;
}

static void forward(struct stand_in *s, struct frame *f, struct link_msg *m)
{
    auto_buf body = BUF_INIT(LINK_PAYLOAD_MAX);
    struct wire_head head = f->head;
    head.magic = WIRE_MAGIC;
    head.epoch = 1; /* init has one owner in its life: the far end */
    head.fd_count = (uint16_t)m->ref_count;
    head.len = (uint32_t)f->payload.len;
    if (head.type == WIRE_EXEC)
        head.flags &= ~EXEC_QUIET;

    buf_put(&body, &head, sizeof head);
    buf_put(&body, f->payload.data, f->payload.len);
    m->body = body.data;
    m->len = body.len;
    (void)link_send(s->link, m); /* room was looked for before the frame was received */
}

static void do_exec(struct stand_in *s, struct frame *f)
{
    struct pd_err e;
    struct link_msg m = {.ref_count = 0};
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct command *c = commands_find(&s->commands, f->head.id);

    if (c && c->end.pid) {
        msg_started_encode(&b, &(struct msg_started){.pid = c->end.pid});
        (void)tell(s, WIRE_STARTED, c->id, &b);
    }
    if (c)
        return;
    if (f->head.flags & EXEC_CGROUP || f->fd_count > LINK_REFS_MAX)
        pd_fail(&e, PD_PROTOCOL, "a box elsewhere has no cgroups here");
    else if (join_descriptors(s, f, &m, &e) == 0 && !(c = commands_add(&s->commands, f->head.id)))
        pd_fail(&e, PD_CAPACITY, "no memory for a command");
    if (!c) {
        streams_close(&s->streams, s->link, f->head.id);
        refuse(s, f->head.id, &e);
        if (!m.ref_count)
            return;
        f->head.type = WIRE_ACK; /* channels that were opened need a message that brings them */
    } else {
        c->quiet = f->head.flags & EXEC_QUIET;
    }
    forward(s, f, &m);
}

static void do_sync(struct stand_in *s, struct wire_id id)
{
    s->syncing = true;
    s->sync_id = id;
    for (unsigned i = 0; i < s->commands.count; i++) {
        struct command *c = &s->commands.all[i];
        c->unlisted = true;
        c->quiet = c->quiet && c->end.pid; /* who asks for a pid is told when it is known */
    }
    if (s->facts.len)
        (void)tell(s, WIRE_FACTS, (struct wire_id){.bytes = {0}}, &s->facts);
}

static void do_ack(struct stand_in *s, const struct frame *f)
{
    struct command *c = commands_find(&s->commands, f->head.id);
    if (c && c->end.exited)
        commands_remove(&s->commands, c);
}

static void dispatch(struct stand_in *s, struct frame *f)
{
    struct link_msg m = {.ref_count = 0};
    if (f->head.epoch < s->epoch)
        return; /* of a daemon that is dead */
    if (f->head.epoch > s->epoch) {
        s->epoch = f->head.epoch;
        for (unsigned i = 0; i < s->commands.count; i++)
            s->commands.all[i].told = false;
    }

    switch (f->head.type) {
    case WIRE_EXEC:
        do_exec(s, f);
        return;
    case WIRE_SYNC:
        do_sync(s, f->head.id);
        return;
    case WIRE_ACK:
        do_ack(s, f);
        forward(s, f, &m);
        return;
    default:
        forward(s, f, &m);
    }
}

static bool may_hear(const struct stand_in *s)
{
    return !s->full && !s->syncing && link_has_room(s->link, WIRE_PAYLOAD_MAX);
}

/* The next frame, and what comes of it. Where something is kept it is taken away when that is, and
 * one that the dead one had not taken away any more is not heard again. As wire_recv. */
static int hear_frame(struct stand_in *s, struct pd_err *e)
{
    int control = s->config->control;
    bool keeps = s->config->keep;
    int r = keeps ? wire_peek(control, &s->in, e) : wire_recv(control, &s->in, 0, e);
    if (keeps && r < 0 && e->code == PD_CAPACITY && s->in.head.type)
        wire_skip(control);
    if (r <= 0)
        return r;

    if (!s->marked || !frame_is_marked(&s->mark, &s->in))
        dispatch(s, &s->in);
    if (keeps) {
        s->marked = true;
        s->mark = frame_mark_of(&s->in);
        if (stand_in_record(s) < 0)
            return pd_fail(e, PD_LOST, "what is to be kept has no room");
        wire_skip(control);
        s->marked = false;
    }
    frame_reset(&s->in);
    return 1;
}

/* -1 when nobody owns the box any more. */
static int hear_daemon(struct stand_in *s)
{
    for (int i = 0; i < TURN_FRAMES && may_hear(s); i++) {
        struct pd_err e;
        int r = hear_frame(s, &e);
        if (r < 0 && (e.code == PD_TIMEOUT || e.code == PD_CAPACITY))
            return 0;
        if (r <= 0)
            return -1;
        tell_waiting(s);
    }
    return 0;
}

/* ---- turns ---- */

static int fill_polls(struct stand_in *s)
{
    size_t len, want = s->streams.count + 2;
    if (want > s->polls_room) {
        struct pollfd *more = realloc(s->polls, 2 * want * sizeof *more);
        if (!more)
            return -1;
        s->polls = more;
        s->polls_room = 2 * want;
    }

    short control = (short)((may_hear(s) ? POLLIN : 0) | (s->full ? POLLOUT : 0));
    s->polls[0] = (struct pollfd){.fd = s->config->control, .events = control};
    s->polls[1] =
        (struct pollfd){.fd = s->fd, .events = (short)(words(s, &len) ? POLLIN | POLLOUT : POLLIN)};
    streams_poll(&s->streams, s->link, s->polls + 2);
    return 0;
}

static deadline next_turn(const struct stand_in *s)
{
    deadline streams = streams_deadline(&s->streams);
    deadline link = s->fd < 0 ? s->next : s->greets ? s->until : link_deadline(s->link);
    return streams < link ? streams : link;
}

static int turn(struct stand_in *s)
{
    struct pd_err e;
    dial(s);
    speak(s);
    if (s->over || fill_polls(s) < 0)
        return -1;
    unsigned streams = s->streams.count;
    if (poll(s->polls, 2 + streams, deadline_poll_ms(next_turn(s))) < 0 && errno != EINTR)
        return -1;

    s->full = s->full && !(s->polls[0].revents & POLLOUT);
    if (s->polls[1].revents & ~POLLOUT && s->fd >= 0)
        hear_box(s);
    streams_move(&s->streams, s->link, s->polls + 2);
    hear_link(s);
    tell_waiting(s);
    short control = s->polls[0].revents;
    if (control & POLLIN ? hear_daemon(s) < 0 : control & (POLLHUP | POLLERR))
        return -1;

    if ((s->greets && deadline_passed(s->until)) ||
        (s->fd >= 0 && !s->greets && link_tick(s->link, clock_now(), &e) < 0))
        hang_up(s);
    if (stand_in_record(s) < 0)
        return -1;
    speak(s);
    return 0;
}

/* The box need not wait for its lease, if it can be told. */
static void part(struct stand_in *s)
{
    link_bye(s->link, LINK_BYE_ENDING, "its owner is gone");
    speak(s);
    hang_up(s);
}

int stand_in_run(const struct stand_in_config *c, struct pd_err *e)
{
    struct stand_in s = {.config = c,
                         .link = link_new(LINK_KEEPER, c->budget),
                         .facts = BUF_INIT(WIRE_PAYLOAD_MAX),
                         .fd = -1,
                         .in = FRAME_INIT,
                         .streams = {.keep = c->keep, .closing = BUF_INIT(CLOSING_MAX)},
                         .record = BUF_INIT(RECORD_MAX),
                         .why = e};
    if (!s.link || fd_set_nonblock(c->control) < 0) {
        link_free(s.link);
        return pd_fail(e, PD_CAPACITY, "no memory for a link");
    }
    if (stand_in_recall(&s) < 0)
        return pd_fail(e, PD_CAPACITY, "no memory for what was kept");

    link_set_lease(s.link, c->lease);
    pd_fail(e, PD_LOST, "nobody owns the box any more");
    while (turn(&s) == 0)
        ;
    part(&s);

    streams_done(&s.streams);
    commands_done(&s.commands);
    link_free(s.link);
    frame_done(&s.in);
    buf_done(&s.facts);
    buf_done(&s.record);
    free(s.polls);
    return 0;
}
