/* Names are asked of the machine's own resolvers, as its other programs do. Each question has a
 * socket of its own, connected, so that the port is one in thousands and only that resolver can
 * answer; and a random id. An answer to anything else is dropped. */
#include "base/banned.h"
#include "base/fd.h"
#include "gate/gate_state.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define DNS_PORT 53u

static void send_ask(struct lookup *l, struct ask *a)
{
    struct gate *g = l->sandbox->gate;
    const struct egress_policy *p = l->sandbox->policy;
    uint8_t message[DNS_MESSAGE_MAX];

    watch_close(g, &a->watch);
    if (l->server >= p->resolver_count)
        return; /* late, then */
    const struct host_entry *r = &p->resolvers[l->server];
    uint16_t port = r->to_port ? r->to_port : DNS_PORT;
    bool v4 = ip_is_v4(r->to);
    struct sockaddr_in to4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 to6 = ip_sockaddr(r->to, port);
    memcpy(&to4.sin_addr, r->to.bytes + 12, 4);

    auto_fd fd = socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || (v4 ? connect(fd, (struct sockaddr *)&to4, sizeof to4)
                      : connect(fd, (struct sockaddr *)&to6, sizeof to6)) < 0)
        return;

    random_bytes(&a->id, sizeof a->id);
    size_t len = query_write(a->id, l->name, a->type, message);
    if (send(fd, message, len, MSG_NOSIGNAL) < 0)
        return;
    a->watch.fd = fd_take(&fd);
    (void)watch_set(g, &a->watch, EPOLLIN);
}

static void send_all(struct lookup *l)
{
    for (unsigned i = 0; i < l->ask_count; i++)
        if (!l->asks[i].done)
            send_ask(l, &l->asks[i]);
    l->late = deadline_in(LOOKUP_PATIENCE);
}

struct lookup *lookup_begin(struct sandbox *s, const char *name, bool v4, bool v6, lookup_done done,
                            void *owner)
{
    struct gate *g = s->gate;
    struct lookup *l = s->lookups < LOOKUPS_MAX ? calloc(1, sizeof *l) : NULL;
    if (!l)
        return NULL;

    l->sandbox = s;
    l->done = done;
    l->owner = owner;
    snprintf(l->name, sizeof l->name, "%s", name);
    if (v4)
        l->asks[l->ask_count++].type = DNS_A;
    if (v6)
        l->asks[l->ask_count++].type = DNS_AAAA;
    for (unsigned i = 0; i < l->ask_count; i++)
        l->asks[i].watch = (struct watch){.kind = WATCH_LOOKUP, .fd = -1, .owner = l};

    s->lookups++;
    l->next = g->lookups;
    l->link = &g->lookups;
    if (g->lookups)
        g->lookups->link = &l->next;
    g->lookups = l;
    send_all(l);
    return l;
}

static void leave(struct lookup *l)
{
    struct gate *g = l->sandbox->gate;

    for (unsigned i = 0; i < l->ask_count; i++)
        watch_close(g, &l->asks[i].watch);
    *l->link = l->next;
    if (l->next)
        l->next->link = l->link;
    l->sandbox->lookups--;
    l->over = true;
    l->next = g->lookups_over;
    g->lookups_over = l;
}

void lookup_cancel(struct lookup *l)
{
    if (l->over)
        return;
    leave(l);
    if (l->owns)
        free(l->owner);
}

void lookups_collect(struct gate *g)
{
    while (g->lookups_over) {
        struct lookup *l = g->lookups_over;
        g->lookups_over = l->next;
        free(l);
    }
}

static void finish(struct lookup *l)
{
    lookup_done done = l->done;
    void *owner = l->owner;

    leave(l);
    done(l, owner);
}

static bool all_done(const struct lookup *l)
{
    for (unsigned i = 0; i < l->ask_count; i++)
        if (!l->asks[i].done)
            return false;
    return true;
}

void lookup_ready(struct lookup *l, struct watch *w)
{
    uint8_t message[4096];
    struct ask *a = w == &l->asks[0].watch ? &l->asks[0] : &l->asks[1];

    if (l->over)
        return;
    ssize_t n = recv(w->fd, message, sizeof message, 0);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            l->late = 0; /* nobody is there: the next one is asked at the next tick */
        return;
    }

    struct reply r;
    if (!reply_read(message, (size_t)n, a->id, l->name, a->type, &r))
        return;
    if (r.code == DNS_FAILED && !(l->round + 1 >= LOOKUP_ROUNDS)) {
        l->late = 0;
        return;
    }
    a->reply = r;
    a->done = true;
    watch_close(l->sandbox->gate, w);
    if (all_done(l))
        finish(l);
}

void lookup_late(struct lookup *l)
{
    l->server++;
    if (l->server >= l->sandbox->policy->resolver_count) {
        l->server = 0;
        l->round++;
    }
    if (l->round < LOOKUP_ROUNDS) {
        send_all(l);
        return;
    }

    for (unsigned i = 0; i < l->ask_count; i++)
        if (!l->asks[i].done)
            l->asks[i].reply.code = DNS_FAILED;
    finish(l);
}
