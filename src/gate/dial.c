/* Dialling: where a flow was judged to lead. By name, the name is looked up here, whatever the
 * sandbox believes, and every address that came is checked before it is tried. By address, it is
 * the one that the sandbox meant. What the operator has said of a host holds without a check. */
#include "base/banned.h"
#include "base/fd.h"
#include "gate/gate_state.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* Says the client's first words to a server that is being connected to. One that is near is there
 * by now, and then nobody has to wait for it. False: it is not there yet, or never will be. */
static bool say_first(struct flow *f)
{
    ssize_t n = send(f->far.fd, f->first, f->first_len, MSG_NOSIGNAL);
    if (n < 0)
        return false;
    f->first_sent = (size_t)n;
    return true;
}

static bool is_later(void)
{
    return errno == EAGAIN || errno == EINTR || errno == ENOTCONN;
}

/* Begins to connect. 0: under way, or made. */
static int try_address(struct flow *f, struct ip a)
{
    struct gate *g = f->sandbox->gate;
    struct linger reset = {.l_onoff = 1};
    int one = 1;
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(f->dial_port)};
    struct sockaddr_in6 v6 = ip_sockaddr(a, f->dial_port);
    bool is_v4 = ip_is_v4(a);

    memcpy(&v4.sin_addr, a.bytes + 12, 4);
    auto_fd fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) < 0)
        return -1;

    int r = is_v4 ? connect(fd, (struct sockaddr *)&v4, sizeof v4)
                  : connect(fd, (struct sockaddr *)&v6, sizeof v6);
    if (r < 0 && errno != EINPROGRESS)
        return -1;

    f->dialled = a;
    f->far.fd = fd_take(&fd);
    f->far.events = 0;
    bool speaks = f->first_len && !f->tunnel && !f->changed.port;
    bool is_there = speaks && say_first(f);
    if (speaks && !is_there && !is_later())
        return -1;

    /* What it says next need not wait for these. */
    (void)setsockopt(f->far.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(f->far.fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    if (is_there) {
        dial_made(f);
        return 0;
    }
    flow_set_late(f, deadline_in(DIAL_PATIENCE));
    return watch_set(g, &f->far, EPOLLOUT) ? 0 : -1;
}

void dial_next(struct flow *f, const char *why)
{
    struct sandbox *s = f->sandbox;
    bool was_refused = false;

    watch_close_own(&f->far);
    while (f->candidate_at < f->candidate_count) {
        struct ip a = f->candidates[f->candidate_at++];
        if (!f->is_fixed) {
            /* The rules are about where the sandbox wants to, not about its proxy. */
            const char *name = f->by_name && !f->tunnel ? f->name : NULL;
            const char *refused =
                egress_dial_refused(s->policy, name, a, f->port, route_is_local(s->gate->route, a));
            if (refused) {
                why = refused;
                was_refused = true;
                continue;
            }
        }
        was_refused = false;
        if (try_address(f, a) == 0)
            return;
        why = strerror(errno);
        watch_close_own(&f->far);
    }

    if (was_refused)
        flow_refuse(f, f->tunnel ? "its proxy is at an address that is never dialled" : why);
    else
        flow_end(f, GATE_FAILED, why);
}

static void start(struct flow *f)
{
    f->state = FLOW_DIAL;
    dial_next(f, "the name has no address");
}

void dial_add(struct flow *f, const struct lookup *l)
{
    for (unsigned round = 0; round < 2; round++)
        for (unsigned i = 0; i < l->ask_count; i++) {
            const struct reply *r = &l->asks[i].reply;
            if ((l->asks[i].type == DNS_A) != (ip_is_v4(f->to) == (round == 0)))
                continue;
            for (unsigned k = 0; k < r->count && f->candidate_count < CANDIDATES_MAX; k++)
                f->candidates[f->candidate_count++] = r->addresses[k];
        }
}

static void looked_up(struct lookup *l, void *owner)
{
    struct flow *f = owner;

    f->lookup = NULL;
    dial_add(f, l);
    start(f);
}

void dial_begin(struct flow *f, const struct verdict *v)
{
    struct sandbox *s = f->sandbox;
    const struct host_entry *h = v->how == JUDGED_BY_NAME ? egress_host(s->policy, f->name, NULL)
                                                          : egress_host(s->policy, NULL, &f->to);

    flow_set_late(f, DEADLINE_NONE);
    f->dial_port = f->changed.port ? f->changed.port : f->port;
    s->dials++;
    if (s->policy->proxy.port) {
        tunnel_begin(f, v);
        return;
    }
    if (h) {
        f->is_fixed = true;
        if (h->to_port)
            f->dial_port = h->to_port;
        f->candidates[f->candidate_count++] = h->to;
        start(f);
        return;
    }
    if (v->how == JUDGED_BY_ADDRESS) {
        f->candidates[f->candidate_count++] = f->to;
        start(f);
        return;
    }

    f->state = FLOW_LOOKUP;
    f->lookup = lookup_begin(s, f->name, true, true, looked_up, f);
    if (!f->lookup)
        flow_end(f, GATE_FAILED, "the name cannot be looked up now");
}

void dial_ready(struct flow *f)
{
    int error = 0;
    socklen_t len = sizeof error;

    if (getsockopt(f->far.fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error) {
        dial_next(f, strerror(error ? error : errno));
        return;
    }

    if (f->tunnel)
        tunnel_greet(f);
    else
        dial_made(f);
}

void dial_made(struct flow *f)
{
    f->sandbox->dials--;
    flow_set_late(f, DEADLINE_NONE);
    f->state = f->changed.port ? FLOW_LENT : FLOW_RELAY;
    if (f->changed.port)
        lend_begin(f);
    else
        relay_begin(f);
}
