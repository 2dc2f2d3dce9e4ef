/* Through a proxy of the sandbox's own (SOCKS5). The rules come first: a name is looked up and its
 * addresses are judged as if they were dialled, then the proxy is dialled and asked for the name,
 * or for the address where the sandbox had no name. What the proxy makes of a name is its own
 * affair; that it is at a public address itself is checked as for every other.
 *
 *   LOOKUP (of the host) -> LOOKUP (of the proxy) -> DIAL (the proxy) -> TUNNEL -> as without
 *
 * Whatever goes wrong ends the connection: nothing ever goes straight. */
#include "base/banned.h"
#include "base/base64.h"
#include "gate/gate_state.h"
#include "gate/socks.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

struct tunnel {
    struct socks socks;
    struct buf credentials; /* user, NUL, password, NUL */
    struct ip targets[CANDIDATES_MAX];
    unsigned target_count; /* 0: the operator's word says where the host is */
};

void tunnel_free(struct flow *f)
{
    if (!f->tunnel)
        return;
    if (f->tunnel->credentials.data)
        explicit_bzero(f->tunnel->credentials.data, f->tunnel->credentials.len);
    buf_done(&f->tunnel->credentials);
    explicit_bzero(&f->tunnel->socks, sizeof f->tunnel->socks);
    free(f->tunnel);
    f->tunnel = NULL;
}

/* NULL, or why none of the host's addresses may be reached. */
static const char *targets_refused(const struct flow *f)
{
    const struct sandbox *s = f->sandbox;
    const char *why = NULL;

    for (unsigned i = 0; i < f->tunnel->target_count; i++) {
        struct ip a = f->tunnel->targets[i];
        why = egress_dial_refused(s->policy, f->by_name ? f->name : NULL, a, f->port,
                                  route_is_local(s->gate->route, a));
        if (!why)
            return NULL;
    }
    return why;
}

bool tunnel_passes(const struct flow *f)
{
    return !targets_refused(f);
}

/* ---- finding the proxy ---- */

static void dial_proxy(struct flow *f)
{
    f->state = FLOW_DIAL;
    dial_next(f, "the proxy's name has no address");
}

static void proxy_found(struct lookup *l, void *owner)
{
    struct flow *f = owner;

    f->lookup = NULL;
    dial_add(f, l);
    dial_proxy(f);
}

static void find_proxy(struct flow *f)
{
    struct sandbox *s = f->sandbox;
    const struct egress_proxy *p = &s->policy->proxy;
    const struct host_entry *h = egress_host(s->policy, p->name, p->name ? NULL : &p->address);
    const char *why = targets_refused(f);

    if (why) {
        flow_refuse(f, why);
        return;
    }
    f->candidate_at = f->candidate_count = 0;
    f->is_fixed = h != NULL;
    f->dial_port = h && h->to_port ? h->to_port : p->port;
    if (h || !p->name) {
        f->candidates[f->candidate_count++] = h ? h->to : p->address;
        dial_proxy(f);
        return;
    }

    f->lookup = lookup_begin(s, p->name, true, true, proxy_found, f);
    if (!f->lookup)
        flow_end(f, GATE_FAILED, "the proxy's name cannot be looked up now");
}

static void target_found(struct lookup *l, void *owner)
{
    struct flow *f = owner;
    struct tunnel *t = f->tunnel;

    f->lookup = NULL;
    dial_add(f, l);
    memcpy(t->targets, f->candidates, sizeof t->targets);
    t->target_count = f->candidate_count;
    if (t->target_count)
        find_proxy(f);
    else
        flow_end(f, GATE_FAILED, "the name has no address");
}

void tunnel_begin(struct flow *f, const struct verdict *v)
{
    struct sandbox *s = f->sandbox;
    bool by_name = v->how == JUDGED_BY_NAME;

    f->state = FLOW_LOOKUP;
    f->tunnel = calloc(1, sizeof *f->tunnel);
    if (!f->tunnel) {
        flow_end(f, GATE_FAILED, "the gate has no memory");
        return;
    }
    f->tunnel->credentials = BUF_INIT(2 * SOCKS_WORD_MAX + 2);

    if (!egress_host(s->policy, by_name ? f->name : NULL, &f->to)) {
        if (by_name) {
            f->lookup = lookup_begin(s, f->name, true, true, target_found, f);
            if (!f->lookup)
                flow_end(f, GATE_FAILED, "the name cannot be looked up now");
            return;
        }
        f->tunnel->targets[f->tunnel->target_count++] = f->to;
    }
    find_proxy(f);
}

/* ---- asking it ---- */

/* The password stands behind a line feed; both become strings. */
static bool read_credentials(struct tunnel *t, const char *text, struct socks_target *to)
{
    if (!text[0])
        return true;
    if (base64_decode(&t->credentials, text, strlen(text), NULL) != BASE64_GOOD ||
        !buf_cstr(&t->credentials) || strlen(buf_cstr(&t->credentials)) != t->credentials.len)
        return false;

    char *user = (char *)t->credentials.data, *password = strchr(user, '\n');
    if (!password)
        return false;
    *password++ = 0;
    to->user = user;
    to->password = password;
    return true;
}

static bool say(struct flow *f)
{
    const struct socks *s = &f->tunnel->socks;
    return send(f->far.fd, s->out, s->out_len, MSG_NOSIGNAL) == (ssize_t)s->out_len;
}

void tunnel_greet(struct flow *f)
{
    struct socks_target to = {.address = f->to, .port = f->port};

    if (f->by_name)
        to.name = f->name;
    if (f->changed.port)
        to.port = f->changed.port;
    f->state = FLOW_TUNNEL;
    flow_set_late(f, deadline_in(DIAL_PATIENCE));
    if (!read_credentials(f->tunnel, f->sandbox->policy->proxy.credentials, &to) ||
        !socks_begin(&f->tunnel->socks, &to))
        flow_end(f, GATE_FAILED, "the proxy's user or password cannot be used");
    else if (!say(f) || !watch_set(f->sandbox->gate, &f->far, EPOLLIN))
        flow_end(f, GATE_FAILED, "the proxy cannot be asked");
}

void tunnel_ready(struct flow *f)
{
    struct socks *s = &f->tunnel->socks;
    uint8_t data[SOCKS_IN_MAX];

    for (;;) {
        ssize_t n = recv(f->far.fd, data, socks_wants(s), 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            flow_end(f, GATE_FAILED, n < 0 ? strerror(errno) : "the proxy closed the connection");
            return;
        }

        switch (socks_take(s, data, (size_t)n)) {
        case SOCKS_MORE:
            break;
        case SOCKS_SAY:
            if (say(f))
                break;
            flow_end(f, GATE_FAILED, "the proxy cannot be asked");
            return;
        case SOCKS_DONE:
            dial_made(f);
            return;
        case SOCKS_BAD:
            flow_end(f, GATE_FAILED, s->why);
            return;
        }
    }
}
