/* How this works: one poll loop over the keeper's socket, and the listener while there is no
 * keeper. KEEP puts a record in the place of the one with the same kind, key and id, DROP takes it
 * away. A keeper that comes is sent all records as they were put, then DONE.
 *
 * What the last keeper has said is heard to its end before another is taken. While there is none,
 * the pidfds of boxes are polled as well: when all have ended there is nothing to wait for. And it
 * looks whether it can be found: a keeper that gave it up has put another into its place, and what
 * it still had, the other end of a command's input for one, would be open for the whole lease. */
#include "jail/safe.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "wire/msg.h"

#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define BUCKETS 1024u
#define LOOK    NS_PER_S /* how often, at its place */
/* For one record: the next keeper reads nothing else meanwhile. */
#define HAND_OVER (5 * NS_PER_S)

struct record {
    struct record *next;
    struct wire_id id;
    uint32_t kind;
    char key[MSG_KEY_MAX + 1];
    struct buf payload;
    int fds[WIRE_FDS_MAX];
    unsigned fd_count;
};

struct safe {
    struct record *records[BUCKETS];
    unsigned boxes;
    const struct safe_place *place;
    int keeper;
    struct frame in;
};

static struct record **place_of(struct safe *s, struct wire_id id, const struct msg_keep *m)
{
    uint32_t h = 2166136261u ^ m->kind;
    for (const char *c = m->key; *c; c++)
        h = (h ^ (uint8_t)*c) * 16777619u;
    for (size_t i = 0; i < sizeof id.bytes; i++)
        h = (h ^ id.bytes[i]) * 16777619u;

    struct record **at = &s->records[h % BUCKETS];
    while (*at &&
           !((*at)->kind == m->kind && wire_id_equal((*at)->id, id) && !strcmp((*at)->key, m->key)))
        at = &(*at)->next;
    return at;
}

static void forget(struct safe *s, struct record **at)
{
    struct record *r = *at;
    if (!r)
        return;

    *at = r->next;
    s->boxes -= r->kind == KEEP_BOX;
    for (unsigned i = 0; i < r->fd_count; i++)
        fd_done(&r->fds[i]);
    buf_done(&r->payload);
    free(r);
}

/* false without memory: the keeper sees that this process is gone, and starts another. */
static bool keep(struct safe *s, const struct msg_keep *m)
{
    struct record **at = place_of(s, s->in.head.id, m), *r = calloc(1, sizeof *r);
    forget(s, at);
    if (!r)
        return false;

    r->payload = BUF_INIT(WIRE_PAYLOAD_MAX);
    r->id = s->in.head.id;
    r->kind = m->kind;
    memcpy(r->key, m->key, strlen(m->key) + 1);
    if (buf_put(&r->payload, s->in.payload.data, s->in.payload.len) < 0) {
        free(r);
        return false;
    }

    r->fd_count = s->in.fd_count;
    for (unsigned i = 0; i < r->fd_count; i++)
        r->fds[i] = frame_take_fd(&s->in, i);
    r->next = *at;
    *at = r;
    s->boxes += m->kind == KEEP_BOX;
    return true;
}

/* One frame of the keeper's. false when there is none to be had any more. */
static bool hear(struct safe *s)
{
    struct pd_err e;
    struct msg_keep m;

    frame_reset(&s->in);
    int r = wire_recv(s->keeper, &s->in, 0, &e);
    if (r < 0 && e.code == PD_TIMEOUT)
        return true;
    if (r <= 0 || msg_keep_decode(&s->in.payload, &m, &e) < 0)
        return false;

    if (s->in.head.type == WIRE_KEEP)
        return keep(s, &m);
    if (s->in.head.type == WIRE_DROP)
        forget(s, place_of(s, s->in.head.id, &m));
    return true;
}

static bool hand_over(struct safe *s)
{
    struct wire_head done = {.type = WIRE_DONE};

    for (unsigned b = 0; b < BUCKETS; b++)
        for (const struct record *r = s->records[b]; r; r = r->next) {
            struct wire_head head = {.type = WIRE_KEEP, .id = r->id};
            if (wire_send(s->keeper, &head, &r->payload, r->fds, r->fd_count,
                          deadline_in(HAND_OVER)) < 0)
                return false;
        }
    return wire_send(s->keeper, &done, NULL, NULL, 0, deadline_in(HAND_OVER)) == 0;
}

/* The next keeper, if the one who comes is of our user. */
static void take_keeper(struct safe *s)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    auto_fd sock = accept4(s->place->listener, NULL, NULL, SOCK_CLOEXEC);

    if (sock < 0 || getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 ||
        peer.uid != geteuid())
        return;
    s->keeper = fd_take(&sock);
    if (!hand_over(s))
        fd_done(&s->keeper);
}

/* Those of boxes that have not ended: `ret` has room for all boxes. */
static unsigned living(const struct safe *s, struct pollfd *ret)
{
    unsigned n = 0;
    for (unsigned b = 0; b < BUCKETS; b++)
        for (const struct record *r = s->records[b]; r; r = r->next)
            if (r->kind == KEEP_BOX && r->fd_count) {
                struct pollfd p = {.fd = r->fds[0], .events = POLLIN};
                if (poll(&p, 1, 0) == 0)
                    ret[n++] = p;
            }
    return n;
}

/* Can it be found? */
static bool has_place(const struct safe *s)
{
    struct stat st;
    return lstat(s->place->path, &st) == 0 && st.st_ino == s->place->number;
}

/* Until a keeper has come, or it is time to end. */
static void wait_alone(struct safe *s, uint64_t lease)
{
    deadline until = deadline_in(lease);
    struct pollfd *p = calloc(1 + s->boxes, sizeof *p);

    while (p && s->keeper < 0 && !deadline_passed(until) && has_place(s)) {
        unsigned boxes = living(s, p + 1);
        if (!boxes)
            break;

        deadline look = deadline_in(LOOK);
        p[0] = (struct pollfd){.fd = s->place->listener, .events = POLLIN};
        if (poll(p, 1 + boxes, deadline_poll_ms(look < until ? look : until)) > 0 && p[0].revents)
            take_keeper(s);
    }
    free(p);
}

_Noreturn void safe_main(const struct safe_place *place, int keeper, uint64_t lease)
{
    struct safe s = {.place = place, .keeper = keeper, .in = FRAME_INIT};

    (void)frame_reserve(&s.in);
    while (s.keeper >= 0) {
        struct pollfd p = {.fd = s.keeper, .events = POLLIN};
        if (poll(&p, 1, -1) > 0 && !hear(&s))
            fd_done(&s.keeper);
        if (s.keeper < 0)
            wait_alone(&s, lease);
    }
    _exit(0);
}
