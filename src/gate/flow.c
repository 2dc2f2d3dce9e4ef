/* A connection of a sandbox, from its accept to its end.
 *
 *   SNIFF -> (judged) -> LOOKUP -> DIAL (-> TUNNEL) -> RELAY -> over
 *                     \                             \-> LENT (to a host with secrets or header
 * rules)
 *                      \-> DRAIN (refused in words)
 *
 * Both sockets have SO_LINGER {1, 0} from the beginning, the sandbox's from its listener: whenever
 * this process dies, or one side breaks off, the kernel resets the other. Without it a cut transfer
 * would look complete. It is taken off when both sides have said that they are done. */
#include "base/banned.h"
#include "base/fd.h"
#include "gate/gate_state.h"
#include "gate/head.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#define DNS_PORT 53u

struct ip ip_of_sockaddr(const struct sockaddr_in6 *a)
{
    struct ip ip;
    if (a->sin6_family == AF_INET)
        return ip_of_v4((const uint8_t *)&((const struct sockaddr_in *)(const void *)a)->sin_addr);
    memcpy(ip.bytes, &a->sin6_addr, sizeof ip.bytes);
    return ip;
}

struct sockaddr_in6 ip_sockaddr(struct ip a, uint16_t port)
{
    struct sockaddr_in6 s = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    memcpy(&s.sin6_addr, a.bytes, sizeof a.bytes);
    return s;
}

void flow_set_late(struct flow *f, deadline d)
{
    struct gate *g = f->sandbox->gate;

    if (f->late_link) {
        *f->late_link = f->late_next;
        if (f->late_next)
            f->late_next->late_link = f->late_link;
        f->late_link = NULL;
    }
    f->late = d;
    if (d == DEADLINE_NONE)
        return;

    f->late_next = g->late;
    f->late_link = &g->late;
    if (g->late)
        g->late->late_link = &f->late_next;
    g->late = f;
}

static void unlinger(int fd)
{
    struct linger none = {0};
    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

/* Takes it out of everything but the list of those that are to be freed. */
static void leave(struct flow *f)
{
    struct sandbox *s = f->sandbox;
    struct gate *g = s->gate;

    if (f->state == FLOW_LOOKUP || f->state == FLOW_DIAL || f->state == FLOW_TUNNEL)
        s->dials--;
    if (f->lookup)
        lookup_cancel(f->lookup);
    f->lookup = NULL;
    flow_set_late(f, DEADLINE_NONE);
    if (f->state == FLOW_LENT)
        lend_leave(f);
    watch_close_own(&f->near); /* while the changer has them, too, epoll does not */
    watch_close_own(&f->far);
    relay_free(f);
    tunnel_free(f);
    free(f->first);
    f->first = NULL;

    *f->link = f->next;
    if (f->next)
        f->next->link = f->link;
    s->connections--;
    if (s->tenant)
        s->tenant->connections--;
    f->state = FLOW_OVER;
    f->next = g->over;
    g->over = f;
}

void flow_end(struct flow *f, enum gate_result result, const char *why)
{
    if (f->state == FLOW_OVER)
        return;
    if (f->state != FLOW_DRAIN && !(f->state == FLOW_DNS && result == GATE_OK))
        record_flow(f, result, why);
    if (result == GATE_OK) {
        unlinger(f->near.fd);
        unlinger(f->far.fd);
    }
    leave(f);
}

void flows_collect(struct gate *g)
{
    while (g->over) {
        struct flow *f = g->over;
        g->over = f->next;
        free(f);
    }
}

/* What was refused is said in the language of the client, as far as it has one. */
void flow_refuse(struct flow *f, const char *why)
{
    static const char alert[] = {0x15, 3, 3, 0, 2, 2, 49}; /* fatal, access_denied */
    char text[640], page[900];
    size_t len = 0;
    const char *words = NULL;

    if (f->kind == GATE_TLS) {
        words = alert;
        len = sizeof alert;
    } else if (f->kind == GATE_HTTP) {
        int n = snprintf(text, sizeof text, "paddock: this sandbox may not connect to %s:%u: %s\n",
                         f->name[0] ? f->name : "this address", f->port, why);
        int all = snprintf(page, sizeof page,
                           "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\n"
                           "Content-Length: %d\r\nConnection: close\r\n\r\n%s",
                           n, text);
        words = page;
        len = all > 0 && (size_t)all < sizeof page ? (size_t)all : 0;
    }

    record_flow(f, GATE_REFUSED, why);
    if (f->state == FLOW_LOOKUP || f->state == FLOW_DIAL || f->state == FLOW_TUNNEL)
        f->sandbox->dials--;
    f->state = FLOW_DRAIN;
    if (!len || send(f->near.fd, words, len, MSG_NOSIGNAL) != (ssize_t)len ||
        shutdown(f->near.fd, SHUT_WR) < 0 || !watch_set(f->sandbox->gate, &f->near, EPOLLIN)) {
        flow_end(f, GATE_REFUSED, why); /* a reset */
        return;
    }
    flow_set_late(f, deadline_in(DRAIN_PATIENCE));
}

/* Reads and forgets, so that what was said is not lost in a reset. */
static void drain(struct flow *f)
{
    struct gate *g = f->sandbox->gate;
    ssize_t n;

    while ((n = recv(f->near.fd, g->scratch, sizeof g->scratch, 0)) > 0)
        ;
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        unlinger(f->near.fd);
        flow_end(f, GATE_REFUSED, "");
    }
}

/* Looks at the first bytes: which protocol, and which name. SNIFF_OTHER: neither TLS nor HTTP. */
static enum sniffed look(struct flow *f, char name[RULES_NAME_MAX + 1])
{
    enum sniffed s = hello_read(f->first, f->first_len, name);
    if (s != SNIFF_OTHER) {
        f->kind = GATE_TLS;
        return s;
    }

    s = head_read(f->first, f->first_len, name);
    if (s != SNIFF_OTHER)
        f->kind = GATE_HTTP;
    return s;
}

/* The verdict for a connection without a name of its own: by the names that the sandbox asked for
 * and was answered with this address, the latest first; else by the address. */
static struct verdict judge_by_pins(struct flow *f)
{
    const struct sandbox *s = f->sandbox;
    const char *name;
    unsigned at = 0;

    while ((name = pins_find(s->pins, f->to, &at))) {
        struct verdict v = egress_judge(s->policy, name, f->to, f->port);
        if (v.how == JUDGED_BY_NAME) {
            snprintf(f->name, sizeof f->name, "%s", name);
            return v;
        }
    }
    return egress_judge(s->policy, NULL, f->to, f->port);
}

static void go_on(struct flow *f, struct verdict v)
{
    const struct egress_policy *p = f->sandbox->policy;

    if (v.how == JUDGED_NO) {
        flow_refuse(f, p->layer_count && p->layers[0].mode == EGRESS_OFF ? "the network is off"
                                                                         : "no rule allows it");
        return;
    }
    if (v.rule)
        rule_text(v.rule, f->rule);
    f->by_name = v.how == JUDGED_BY_NAME;
    if (f->by_name && f->first_len && (f->kind == GATE_TLS || f->kind == GATE_HTTP))
        f->changed = egress_changed(p, f->name, f->port, f->kind == GATE_TLS);
    dial_begin(f, &v);
}

/* Nothing came: the server may be the one to speak first. One that could not be dialled anyway may
 * still say a name that is allowed: a busy client is given more time. */
static void decide_silent(struct flow *f)
{
    struct verdict v = judge_by_pins(f);

    if (v.how == JUDGED_NO && clock_now() - f->began < SILENCE_PATIENCE) {
        flow_set_late(f, deadline_in(SILENCE_PATIENCE));
        return;
    }
    f->unsniffed = true;
    go_on(f, v);
}

/* Decides on what was seen so far; `waited`: longer than one should. */
static void decide(struct flow *f, bool waited)
{
    char name[RULES_NAME_MAX + 1];

    if (!f->first_len) {
        if (waited)
            decide_silent(f);
        return;
    }

    switch (look(f, name)) {
    case SNIFF_MORE:
        if (waited)
            flow_refuse(f, "its first bytes are not complete");
        else if (f->first_len >= FIRST_MAX)
            flow_refuse(f, "its first bytes are too long");
        else
            flow_set_late(f, deadline_in(SNIFF_PATIENCE));
        return;
    case SNIFF_NAMED:
        snprintf(f->name, sizeof f->name, "%s", name);
        go_on(f, egress_judge(f->sandbox->policy, f->name, f->to, f->port));
        return;
    case SNIFF_NAMELESS:
        go_on(f, egress_judge(f->sandbox->policy, NULL, f->to, f->port));
        return;
    case SNIFF_BAD:
        flow_refuse(f, "its first bytes cannot be judged");
        return;
    case SNIFF_OTHER:
        f->kind = GATE_TCP;
        go_on(f, judge_by_pins(f));
    }
}

/* Room for so many first bytes; at least twice of what there was, for those that come one by one.
 */
static bool make_room(struct flow *f, size_t room)
{
    if (room <= f->first_room)
        return true;
    if (room < 2 * f->first_room)
        room = 2 * f->first_room;

    uint8_t *first = realloc(f->first, room);
    if (!first)
        return false;
    f->first = first;
    f->first_room = room;
    return true;
}

/* Reads more of the first bytes: as recv says. */
static ssize_t read_more(struct flow *f)
{
    uint8_t *scratch = f->sandbox->gate->scratch;

    ssize_t n = recv(f->near.fd, scratch, FIRST_MAX - f->first_len, 0);
    if (n <= 0)
        return n;
    if (!make_room(f, f->first_len + (size_t)n)) {
        errno = ENOMEM;
        return -1;
    }
    memcpy(f->first + f->first_len, scratch, (size_t)n);
    f->first_len += (size_t)n;
    return n;
}

static bool is_nothing_yet(ssize_t n)
{
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

/* They may be there when it is accepted: only what is waited for is watched. */
static void sniff(struct flow *f)
{
    ssize_t n = read_more(f);

    if (n > 0)
        decide(f, false);
    else if (n == 0 && f->first_len)
        decide(f, true); /* a half-closed one has said all that it will */
    else if (!is_nothing_yet(n))
        flow_end(f, GATE_BROKEN, n == 0 ? "closed before its first byte" : strerror(errno));
}

void flow_begin(struct sandbox *s, int fd)
{
    auto_fd near = fd;
    struct sockaddr_in6 to;
    socklen_t len = sizeof to;

    if (getsockname(near, (struct sockaddr *)&to, &len) < 0)
        return;
    struct flow *f = calloc(1, sizeof *f);
    if (!f)
        return;

    f->sandbox = s;
    f->near = (struct watch){.kind = WATCH_NEAR, .fd = fd_take(&near), .owner = f};
    f->far = (struct watch){.kind = WATCH_FAR, .fd = -1, .owner = f};
    f->to = ip_of_sockaddr(&to);
    f->port = ntohs(to.sin6_port);
    f->kind = GATE_TCP;
    f->began = clock_now();
    f->began_time = (uint64_t)time(NULL);
    f->late = DEADLINE_NONE;
    f->next = s->flows;
    f->link = &s->flows;
    if (s->flows)
        s->flows->link = &f->next;
    s->flows = f;
    s->connections++;
    if (s->tenant)
        s->tenant->connections++;

    /* Its own addresses come here only by the gate's own port. */
    if (ip_is_own(f->to)) {
        flow_end(f, GATE_REFUSED, "the gate itself");
        return;
    }
    if (f->port == DNS_PORT) {
        dns_stream_begin(f);
        return;
    }

    flow_set_late(f, deadline_in(SPEAK_PATIENCE));
    sniff(f);
    if (f->state == FLOW_SNIFF && !watch_set(s->gate, &f->near, EPOLLIN))
        flow_end(f, GATE_FAILED, "the gate is full");
}

/* The client has said its first words to a server that was dialled without them, by pin or by
 * network. May they go there? If they say a name, it must be one for which the same connection
 * would have been made; to a host with secrets it would not. */
static bool first_words_pass(struct flow *f, enum sniffed what, const char *name)
{
    switch (what) {
    case SNIFF_OTHER:
        f->kind = GATE_TCP;
        return true;
    case SNIFF_NAMED:
        return (!f->by_name || !strcmp(name, f->name)) &&
               !egress_changed(f->sandbox->policy, name, f->port, f->kind == GATE_TLS).port;
    case SNIFF_NAMELESS:
        return !f->by_name;
    default:
        return false;
    }
}

/* The client was only slow, and the server has not spoken: nobody has seen anything of this
 * connection yet. It is judged as if its first bytes had come at once. */
static void start_over(struct flow *f)
{
    watch_close_own(&f->far);
    relay_free(f);
    tunnel_free(f);
    f->up = f->down = (struct half){0};
    f->candidate_at = f->candidate_count = 0;
    f->is_fixed = f->unsniffed = false;
    f->name[0] = f->rule[0] = 0;
    f->state = FLOW_SNIFF;
    decide(f, false);
}

/* The client's first bytes after the server was dialled without them. They are held until they can
 * be judged. */
static void sniff_later(struct flow *f)
{
    char name[RULES_NAME_MAX + 1];
    enum gate_kind kind = f->kind;
    ssize_t n = read_more(f);

    if (is_nothing_yet(n))
        return;
    if (n < 0) {
        flow_end(f, GATE_BROKEN, strerror(errno));
        return;
    }

    enum sniffed what = f->first_len ? look(f, name) : SNIFF_OTHER;
    if (n > 0 && f->first_len < FIRST_MAX && what == SNIFF_MORE) {
        f->kind = kind;
        flow_set_late(f, deadline_in(SNIFF_PATIENCE));
        return;
    }
    if (!first_words_pass(f, what, name)) {
        if (f->down.bytes || f->down.ended)
            flow_end(f, GATE_CUT, "its first bytes name another host");
        else
            start_over(f);
        return;
    }
    flow_set_late(f, DEADLINE_NONE);
    f->unsniffed = false;
    relay_begin(f);
}

void flow_near_ready(struct flow *f, uint32_t events)
{
    switch (f->state) {
    case FLOW_SNIFF:
        sniff(f);
        return;
    case FLOW_RELAY:
        if (f->unsniffed && events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            sniff_later(f);
        if (f->state == FLOW_RELAY)
            relay_move(f, events, 0);
        return;
    case FLOW_DNS:
        dns_stream_ready(f);
        return;
    case FLOW_DRAIN:
        drain(f);
        return;
    case FLOW_OVER:
        return;
    default:
        /* More has come while its server is being found: it waits there. */
        (void)watch_set(f->sandbox->gate, &f->near, 0);
    }
}

void flow_far_ready(struct flow *f, uint32_t events)
{
    /* Not what a socket told that was closed in this round, and whose place another has now. */
    if (f->state == FLOW_DIAL && events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
        dial_ready(f);
    else if (f->state == FLOW_TUNNEL)
        tunnel_ready(f);
    else if (f->state == FLOW_RELAY)
        relay_move(f, 0, events);
}

void flow_late(struct flow *f)
{
    switch (f->state) {
    case FLOW_SNIFF:
        decide(f, true);
        return;
    case FLOW_DIAL:
        dial_next(f, "no answer in time");
        return;
    case FLOW_TUNNEL:
        flow_end(f, GATE_FAILED, "the proxy did not answer in time");
        return;
    case FLOW_RELAY:
        flow_end(f, GATE_CUT, "its first bytes are not complete");
        return;
    case FLOW_LENT:
        flow_end(f, GATE_FAILED,
                 f->sandbox->gate->changer.fd < 0 ? "the server cannot use secrets now"
                                                  : "too many connections use secrets now");
        return;
    case FLOW_DNS:
        flow_end(f, GATE_OK, NULL);
        return;
    default:
        flow_end(f, GATE_BROKEN, "nothing came");
    }
}

/* What a connection to a host with secrets or header rules is has changed with them. */
static bool is_otherwise(const struct flow *f)
{
    if (!f->by_name || (f->kind != GATE_TLS && f->kind != GATE_HTTP))
        return false;
    struct changed now = egress_changed(f->sandbox->policy, f->name, f->port, f->kind == GATE_TLS);
    return now.port != f->changed.port || now.is_plain != f->changed.is_plain;
}

void flow_judge_again(struct flow *f, bool same_proxy)
{
    const struct egress_policy *p = f->sandbox->policy;
    bool is_made = f->state == FLOW_RELAY || f->state == FLOW_LENT;
    if (f->state != FLOW_LOOKUP && f->state != FLOW_DIAL && f->state != FLOW_TUNNEL && !is_made)
        return; /* is judged later, or was refused */

    struct verdict v = egress_judge(p, f->by_name ? f->name : NULL, f->to, f->port);
    bool passes = v.how == (f->by_name ? JUDGED_BY_NAME : JUDGED_BY_ADDRESS) && same_proxy &&
                  !is_otherwise(f);
    if (passes && is_made && !f->is_fixed && !f->tunnel)
        passes = !egress_dial_refused(p, f->by_name ? f->name : NULL, f->dialled, f->port,
                                      route_is_local(f->sandbox->gate->route, f->dialled));
    if (passes && f->tunnel)
        passes = tunnel_passes(f);
    if (!passes) {
        flow_end(f, GATE_CUT, "the rules have changed");
        return;
    }
    f->rule[0] = 0;
    if (v.rule)
        rule_text(v.rule, f->rule);
}
