/* The keeper's clients: who is connected, and what waits to be sent to them.
 *
 * Nothing here waits. An answer that finds the client's socket full is kept, with descriptors of
 * its own, until epoll says that there is room; meanwhile the client is not listened to. */
#include "jail/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

struct client *client_find(struct keeper *k, uint64_t serial)
{
    for (struct client *c = k->clients; c; c = c->next)
        if (c->serial == serial && serial)
            return c;
    return NULL;
}

struct client *client_add(struct keeper *k, int sock)
{
    struct client *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;

    c->source.kind = SOURCE_CLIENT;
    c->sock = sock;
    struct ucred peer;
    socklen_t len = sizeof peer;
    c->limited = getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 ||
                 (peer.uid != 0 && peer.uid != geteuid());
    c->out_last = &c->out_first;
    if (keeper_watch(k, sock, &c->source) < 0) {
        free(c);
        return NULL;
    }

    c->serial = ++k->next_serial;
    c->next = k->clients;
    k->clients = c;
    k->client_count++;

    return c;
}

void client_accept(struct keeper *k)
{
    auto_fd sock = accept4(k->listener, NULL, NULL, SOCK_CLOEXEC);

    /* The next daemon must be let in, whatever its predecessor has used up. */
    if (sock < 0 && errno == EMFILE) {
        files_lend(k);
        sock = accept4(k->listener, NULL, NULL, SOCK_CLOEXEC);
    }

    if (sock >= 0 && client_add(k, sock))
        fd_take(&sock);
    files_hold(k);
}

static void out_free(struct out_frame *o)
{
    for (unsigned i = 0; i < o->fd_count; i++)
        fd_done(&o->fds[i]);

    buf_done(&o->payload);
    free(o);
}

void client_close(struct keeper *k, struct client *c)
{
    if (!c->serial)
        return;

    c->serial = 0;
    c->list_serial = 0;
    c->list_wanted = 0;
    k->client_count--;

    /* Closing is not enough: a worker that was just forked may still have a copy, and epoll would
     * go on to report a client that is freed. */
    epoll_ctl(k->epoll, EPOLL_CTL_DEL, c->sock, NULL);
    fd_done(&c->sock);
    files_hold(k);

    while (c->out_first) {
        struct out_frame *o = c->out_first;
        c->out_first = o->next;
        out_free(o);
    }
}

void client_collect(struct keeper *k)
{
    for (struct client **at = &k->clients; *at;) {
        struct client *c = *at;
        if (c->serial) {
            at = &c->next;
            continue;
        }

        *at = c->next;
        free(c);
    }
}

/* While something waits for room in its socket, a client is not listened to. */
static void want_room(struct keeper *k, struct client *c, int yes)
{
    struct epoll_event ev = {.events = yes ? EPOLLOUT : EPOLLIN, .data.ptr = &c->source};
    epoll_ctl(k->epoll, EPOLL_CTL_MOD, c->sock, &ev);
}

void client_flush(struct keeper *k, struct client *c)
{
    while (c->out_first) {
        struct out_frame *o = c->out_first;
        int r = wire_send(c->sock, &o->head, &o->payload, o->fds, o->fd_count, 0);
        if (r < 0 && r != -EPIPE)
            return; /* no room, or the kernel has none: again when there is */

        c->out_first = o->next;
        if (!c->out_first)
            c->out_last = &c->out_first;
        c->out_count--;
        out_free(o);
    }

    if (list_go_on(k, c))
        want_room(k, c, 0);
}

/* ---- lists ---- */

/* A jail's descriptors, in the order of WIRE_LISTED. Returns what wire_send does. */
static int send_listed(struct keeper *k, const struct client *c, struct kjail *j)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_listed m = {.jail = j->id, .undead = j->state == JAIL_UNDEAD, .init_pid = j->pid};
    struct wire_head head = {.type = WIRE_LISTED,
                             .flags = j->is_far ? BOX_IS_FAR : 0,
                             .id = c->list_request,
                             .epoch = c->epoch};

    msg_listed_encode(&out, &m);

    /* A list that lacked a directory would be a sandbox without its limits: so the keeper lends
     * what it holds back for this. */
    auto_fd cgroup_dir = jail_group_open(k, j);
    if (cgroup_dir == -EMFILE) {
        files_lend(k);
        cgroup_dir = jail_group_open(k, j);
    }

    int fds[5] = {j->control >= 0 ? j->control : k->null, cgroup_dir >= 0 ? cgroup_dir : k->null,
                  j->devpts, j->gate[0], j->gate[1]};
    int r = wire_send(c->sock, &head, &out, fds, j->gate[0] >= 0 ? 5 : 3, 0);
    fd_done(&cgroup_dir);
    files_hold(k);

    /* Whoever is told of it hears of its end, when whoever made it is gone. */
    if (r == 0 && j->keep && !client_find(k, j->client))
        j->client = c->serial;
    return r;
}

static struct client *lister(struct keeper *k)
{
    for (struct client *c = k->clients; c; c = c->next)
        if (c->serial && c->list_serial)
            return c;
    return NULL;
}

/* Begins the list of a client that waits for its turn, if nobody has one. */
static struct client *list_begin(struct keeper *k)
{
    for (struct client *c = k->clients; c && !lister(k); c = c->next)
        if (c->serial && c->list_wanted) {
            c->list_wanted = 0;
            c->list_serial = ++k->next_list;
            c->list_bucket = 0;
            return c;
        }
    return NULL;
}

/* Goes on with this client's list, until it ends or the socket is full. A jail is marked with the
 * number of the list that it was told in, so it is told once, whatever comes and goes meanwhile.
 * Returns 0 when there is more to send. */
int list_go_on(struct keeper *k, struct client *c)
{
    if (!c->list_serial)
        return 1;

    for (; c->list_bucket < BUCKETS; c->list_bucket++)
        for (struct kjail *j = k->jails[c->list_bucket]; j; j = j->next) {
            if (j->listed == c->list_serial ||
                (j->state != JAIL_RUNNING && j->state != JAIL_UNDEAD))
                continue;

            int r = send_listed(k, c, j);
            if (r < 0 && r != -EPIPE)
                return 0;
            j->listed = c->list_serial;
        }

    c->list_serial = 0;
    client_send(k, c, (struct wire_head){.type = WIRE_LIST_END, .id = c->list_request}, NULL, NULL,
                0);
    lists_go_on(k);

    return !c->out_first;
}

void lists_go_on(struct keeper *k)
{
    struct client *c = list_begin(k);
    if (c && (c->out_first || !list_go_on(k, c)))
        want_room(k, c, 1);
}

void list_request(struct keeper *k, struct client *c, struct wire_id id)
{
    struct pd_err e;

    if (c->list_wanted || c->list_serial) {
        pd_fail(&e, PD_CONFLICT, "a list is being sent already");
        client_send_error(k, c, id, &e);
        return;
    }

    c->list_wanted = 1;
    c->list_request = id;
    lists_go_on(k);
}

/* ---- answers ---- */

/* Keeps a frame for later, with descriptors of its own. */
static int enqueue(struct client *c, struct wire_head head, const struct buf *payload,
                   const int *fds, unsigned fd_count)
{
    struct out_frame *o = c->out_count < OUT_MAX ? calloc(1, sizeof *o) : NULL;
    if (!o)
        return -1;

    o->head = head;
    o->payload = BUF_INIT(WIRE_PAYLOAD_MAX);
    int bad = payload && buf_put(&o->payload, payload->data, payload->len) < 0;
    for (unsigned i = 0; i < fd_count && !bad; i++) {
        o->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
        bad = o->fds[i] < 0;
        o->fd_count += !bad;
    }

    if (bad) {
        out_free(o);
        return -1;
    }

    *c->out_last = o;
    c->out_last = &o->next;
    c->out_count++;

    return 0;
}

void client_send(struct keeper *k, struct client *c, struct wire_head head,
                 const struct buf *payload, const int *fds, unsigned fd_count)
{
    head.epoch = c->epoch;
    int r = c->out_first ? -EAGAIN : wire_send(c->sock, &head, payload, fds, fd_count, 0);
    if (r == 0 || r == -EPIPE)
        return; /* sent; or the client is gone, which the loop notices by itself */

    int first = !c->out_first;
    if (enqueue(c, head, payload, fds, fd_count) < 0)
        shutdown(c->sock, SHUT_RDWR); /* it has lost an answer: it must not go on */
    else if (first)
        want_room(k, c, 1);
}

void client_send_or_drop(struct client *c, struct wire_head head, const struct buf *payload)
{
    head.epoch = c->epoch;
    if (!c->out_first)
        (void)wire_send(c->sock, &head, payload, NULL, 0, 0);
}

void client_send_error(struct keeper *k, struct client *c, struct wire_id id,
                       const struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_error_put(&out, e);
    client_send(k, c, (struct wire_head){.type = WIRE_ERROR, .id = id}, &out, NULL, 0);
}

void client_send_done(struct keeper *k, struct client *c, struct wire_id id)
{
    client_send(k, c, (struct wire_head){.type = WIRE_DONE, .id = id}, NULL, NULL, 0);
}
