/* Sandboxes of a gate: their sockets, and how many connections each may have. A limit that is
 * reached stops accepting: what comes then waits in the sandbox's own backlog, and nobody else
 * notices. */
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "gate/gate_state.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define ACCEPTS_AT_ONCE 16u

uint64_t bucket_tokens(struct bucket *b, uint64_t rate, uint64_t now)
{
    if (!rate)
        return UINT64_MAX;
    uint64_t passed = b->at ? now - b->at : NS_PER_S;
    if (passed > NS_PER_S)
        passed = NS_PER_S;

    /* rate may be large: microseconds are fine enough, and do not overflow below 2^44 a second. */
    uint64_t more = rate / 1000000 * (passed / 1000) + rate % 1000000 * (passed / 1000) / 1000000;
    if (more) {
        b->tokens = b->tokens + more > rate ? rate : b->tokens + more;
        b->at = now;
    }
    return b->tokens;
}

struct sandbox *sandbox_find(struct gate *g, const char *id)
{
    for (struct sandbox *s = g->sandboxes; s; s = s->next)
        if (!strcmp(s->id, id))
            return s;
    return NULL;
}

static struct tenant *tenant_of(struct gate *g, const char *name)
{
    if (!name[0])
        return NULL;
    for (struct tenant *t = g->tenants; t; t = t->next)
        if (!strncmp(t->name, name, sizeof t->name - 1)) {
            t->users++;
            return t;
        }

    struct tenant *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    snprintf(t->name, sizeof t->name, "%s", name);
    t->users = 1;
    t->next = g->tenants;
    g->tenants = t;
    return t;
}

void tenant_leave(struct gate *g, struct tenant *t)
{
    if (!t || --t->users)
        return;
    for (struct tenant **at = &g->tenants; *at; at = &(*at)->next)
        if (*at == t) {
            *at = t->next;
            free(t);
            return;
        }
}

/* What an accepted connection has from its listener, so that it need not be set for each. */
static bool set_inherited(int accepts)
{
    struct linger reset = {.l_onoff = 1};
    int one = 1;

    (void)setsockopt(accepts, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return setsockopt(accepts, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0;
}

int sandbox_open(struct gate *g, const struct gate_open *m, struct egress_policy *p, int tcp,
                 int dns, struct pd_err *e)
{
    auto_fd accepts = tcp, questions = dns;
    struct sandbox *s = calloc(1, sizeof *s);
    struct pins *pins = pins_new();
    char *sealed = strdup(m->sealed);

    if (!s || !pins || !sealed || g->sandbox_count >= SANDBOXES_MAX || !set_inherited(accepts)) {
        free(s);
        free(sealed);
        pins_free(pins);
        egress_free_policy(p);
        return pd_fail(e, PD_CAPACITY, "the gate has no room for another sandbox");
    }

    (void)fd_set_nonblock(accepts);
    (void)fd_set_nonblock(questions);
    snprintf(s->id, sizeof s->id, "%s", m->id);
    s->gate = g;
    s->policy = p;
    s->sealed = sealed;
    s->pins = pins;
    s->tenant = tenant_of(g, p->tenant);
    s->told = true;
    s->accept = (struct watch){.kind = WATCH_ACCEPT, .fd = fd_take(&accepts), .owner = s};
    s->questions = (struct watch){.kind = WATCH_QUESTIONS, .fd = fd_take(&questions), .owner = s};
    s->next = g->sandboxes;
    g->sandboxes = s;
    g->sandbox_count++;

    if (watch_set(g, &s->accept, EPOLLIN) && watch_set(g, &s->questions, EPOLLIN))
        return 0;
    sandbox_close(s);
    return pd_fail(e, PD_CAPACITY, "the gate cannot watch another sandbox");
}

int sandbox_set_policy(struct sandbox *s, const char *sealed, struct egress_policy *p,
                       struct pd_err *e)
{
    struct tenant *before = s->tenant;
    struct egress_policy *old = s->policy;
    bool same = !strcmp(s->sealed, sealed), same_proxy = egress_same_proxy(old, p);
    char *copy = strdup(sealed);
    if (!copy) {
        egress_free_policy(p);
        return pd_fail(e, PD_CAPACITY, "the gate has no memory for other rules");
    }

    s->tenant = tenant_of(s->gate, p->tenant);
    if (s->tenant)
        s->tenant->connections += s->connections;
    if (before)
        before->connections -= s->connections;
    tenant_leave(s->gate, before);

    free(s->sealed);
    s->sealed = copy;
    s->policy = p;
    for (struct flow *f = s->flows, *next; f; f = next) {
        next = f->next;
        if (f->state == FLOW_LENT && !same)
            flow_end(f, GATE_CUT, "its secrets or headers have changed");
        else
            flow_judge_again(f, same_proxy);
    }
    egress_free_policy(old);
    return 0;
}

/* The namespace lives as long as its sockets: nothing of it is kept. */
void sandbox_close(struct sandbox *s)
{
    struct gate *g = s->gate;

    while (s->flows)
        flow_end(s->flows, GATE_CUT, "the sandbox has ended");
    for (struct lookup *l = g->lookups, *next; l; l = next) {
        next = l->next;
        if (l->sandbox == s)
            lookup_cancel(l);
    }
    watch_close(g, &s->accept);
    watch_close(g, &s->questions);

    for (struct sandbox **at = &g->sandboxes; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    for (struct sandbox **at = &g->waiting; s->waits && *at; at = &(*at)->waiting_next)
        if (*at == s) {
            *at = s->waiting_next;
            break;
        }
    g->sandbox_count--;
    s->closed = true;
    s->next = g->sandboxes_over;
    g->sandboxes_over = s;
}

void sandboxes_collect(struct gate *g)
{
    while (g->sandboxes_over) {
        struct sandbox *s = g->sandboxes_over;
        g->sandboxes_over = s->next;
        tenant_leave(g, s->tenant);
        egress_free_policy(s->policy);
        pins_free(s->pins);
        free(s->sealed);
        free(s);
    }
}

void sandboxes_forget_untold(struct gate *g)
{
    for (struct sandbox *s = g->sandboxes, *next; s; s = next) {
        next = s->next;
        if (!s->told)
            sandbox_close(s);
    }
}

static bool may_accept(struct sandbox *s)
{
    const struct egress_limits *l = &s->policy->limits;

    if (l->connections && s->connections >= l->connections)
        return false;
    if (l->tenant_connections && s->tenant && s->tenant->connections >= l->tenant_connections)
        return false;
    return s->dials < DIALS_MAX && bucket_tokens(&s->starts, l->starts, clock_now()) > 0;
}

void sandbox_wait(struct sandbox *s)
{
    struct gate *g = s->gate;
    if (s->waits)
        return;
    s->waits = true;
    s->waiting_next = g->waiting;
    g->waiting = s;
}

/* No more connections are taken until a tick finds room for them. */
static void hold(struct sandbox *s)
{
    s->held = true;
    sandbox_wait(s);
    (void)watch_set(s->gate, &s->accept, 0);
}

void sandbox_accept(struct sandbox *s)
{
    for (unsigned i = 0; i < ACCEPTS_AT_ONCE && !s->closed; i++) {
        if (!may_accept(s)) {
            hold(s);
            return;
        }

        int fd = accept4(s->accept.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
            hold(s);
        if (fd < 0)
            return;
        if (s->policy->limits.starts)
            s->starts.tokens--;
        flow_begin(s, fd);
    }
}

static void tick(struct sandbox *s)
{
    if (s->held && !may_accept(s)) {
        sandbox_wait(s);
    } else if (s->held) {
        s->held = false;
        (void)watch_set(s->gate, &s->accept, EPOLLIN);
    }
    if (s->throttled) {
        s->throttled = false;
        for (struct flow *f = s->flows, *next; f; f = next) {
            next = f->next;
            if (f->state == FLOW_RELAY)
                relay_move(f, 0, 0);
        }
    }
}

void sandboxes_tick(struct gate *g)
{
    struct sandbox *list = g->waiting;

    g->waiting = NULL;
    for (struct sandbox *s = list, *next; s; s = next) {
        next = s->waiting_next;
        s->waits = false;
        tick(s);
    }
}
