/* The questions of sandboxes, by UDP and by TCP, to whichever address. Only the addresses of names
 * that the rules allow are answered, and only those that would be dialled; what was answered is
 * pinned. Everything else is answered here and goes nowhere. */
#include "base/banned.h"
#include "base/fd.h"
#include "gate/gate_state.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#define ASKS_AT_ONCE 32u

/* A question on its way. By TCP it has a flow, else where it came from and was sent to. */
struct pending {
    struct sandbox *sandbox;
    struct flow *flow;
    struct question question;
    struct sockaddr_in6 from;
    struct in6_pktinfo at;
};

static void send_answer(const struct pending *p, const uint8_t *data, size_t len)
{
    if (p->flow) {
        uint8_t framed[DNS_MESSAGE_MAX + 2];
        framed[0] = (uint8_t)(len >> 8);
        framed[1] = (uint8_t)len;
        memcpy(framed + 2, data, len);
        if (send(p->flow->near.fd, framed, len + 2, MSG_NOSIGNAL) != (ssize_t)len + 2)
            flow_end(p->flow, GATE_BROKEN, "the answer was not taken");
        return;
    }

    /* From the address that was asked: some check that. */
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(struct in6_pktinfo))];
    } control = {0};
    struct msghdr m = {.msg_name = (void *)(uintptr_t)&p->from,
                       .msg_namelen = sizeof p->from,
                       .msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = IPPROTO_IPV6;
    c->cmsg_type = IPV6_PKTINFO;
    c->cmsg_len = CMSG_LEN(sizeof p->at);
    struct in6_pktinfo at = p->at;
    at.ipi6_ifindex = 0;
    memcpy(CMSG_DATA(c), &at, sizeof at);
    (void)sendmsg(p->sandbox->questions.fd, &m, MSG_NOSIGNAL);
}

static void answer(const struct pending *p, enum dns_code code, const struct ip *addresses,
                   unsigned count, uint32_t ttl, const char *why)
{
    uint8_t out[DNS_MESSAGE_MAX];
    send_answer(p, out, question_answer(&p->question, code, addresses, count, ttl, why, out));
}

static void note_refusal(const struct pending *p, const char *why)
{
    struct gate_record r = {.id = p->sandbox->id,
                            .name = p->question.name,
                            .address = "",
                            .rule = "",
                            .why = why,
                            .kind = GATE_DNS,
                            .result = GATE_REFUSED,
                            .port = 53,
                            .time = (uint64_t)time(NULL)};
    record_add(p->sandbox->gate, &r);
}

static void answer_stream(struct flow *f);

static void looked_up(struct lookup *l, void *owner)
{
    struct pending *p = owner;
    struct sandbox *s = p->sandbox;
    const struct reply *r = &l->asks[0].reply;
    struct ip good[DNS_ADDRESSES_MAX];
    unsigned count = 0;
    const char *refused = NULL;

    if (p->flow)
        p->flow->lookup = NULL;
    for (unsigned i = 0; i < r->count; i++) {
        const char *why = egress_dial_refused(s->policy, NULL, r->addresses[i], 0,
                                              route_is_local(s->gate->route, r->addresses[i]));
        if (why) {
            refused = why;
            continue;
        }
        good[count++] = r->addresses[i];
        pins_add(s->pins, r->addresses[i], l->name);
    }

    if (!count && refused) {
        note_refusal(p, refused);
        answer(p, DNS_NO_NAME, NULL, 0, 0, "the name leads to an address that is never dialled");
    } else {
        answer(p, r->code, good, count, r->ttl, NULL);
    }

    struct flow *f = p->flow;
    free(p);
    if (f)
        answer_stream(f);
}

/* True: it was answered. False: `p` belongs to a lookup now. */
static bool answer_at_once(struct pending *p)
{
    struct sandbox *s = p->sandbox;
    const struct question *q = &p->question;
    uint64_t rate = s->policy->limits.questions;

    if (!bucket_tokens(&s->asks, rate, clock_now())) {
        answer(p, DNS_REFUSED, NULL, 0, 0, "too many questions");
        return true;
    }
    if (rate)
        s->asks.tokens--;
    if (!q->has_name || !egress_may_ask(s->policy, q->name)) {
        note_refusal(p, q->has_name ? "no rule allows it" : "not a host name");
        answer(p, DNS_NO_NAME, NULL, 0, 0, "no rule of this sandbox allows the name");
        return true;
    }
    if (q->type != DNS_A && q->type != DNS_AAAA) {
        answer(p, DNS_OK, NULL, 0, 0, NULL);
        return true;
    }

    const struct host_entry *h = egress_host(s->policy, q->name, NULL);
    if (h) {
        struct ip a = egress_host_address(s->policy, h);
        pins_add(s->pins, a, q->name);
        answer(p, DNS_OK, &a, 1, DNS_TTL_MAX, NULL);
        return true;
    }

    bool v4 = q->type == DNS_A;
    struct lookup *l = lookup_begin(s, q->name, v4, !v4, looked_up, p);
    if (!l)
        answer(p, DNS_FAILED, NULL, 0, 0, NULL);
    else
        l->owns = true;
    if (l && p->flow)
        p->flow->lookup = l;
    return !l;
}

static void ask(struct pending *p, const uint8_t *data, size_t len)
{
    enum asked asked = question_read(data, len, &p->question);
    if (asked == ASKED_WRONGLY)
        answer(p, DNS_FORMAT, NULL, 0, 0, NULL);
    if (asked != ASKED || answer_at_once(p))
        free(p);
}

/* One datagram. False: there is none. */
static bool take_one(struct sandbox *s)
{
    uint8_t data[DNS_MESSAGE_MAX];
    struct iovec part = {.iov_base = data, .iov_len = sizeof data};
    union {
        struct cmsghdr head;
        char bytes[256];
    } control;
    struct sockaddr_in6 from = {0};
    struct msghdr m = {.msg_name = &from,
                       .msg_namelen = sizeof from,
                       .msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};

    ssize_t n = recvmsg(s->questions.fd, &m, 0);
    if (n < 0)
        return errno == EINTR;
    if (m.msg_flags & MSG_TRUNC)
        return true;

    struct pending *p = calloc(1, sizeof *p);
    if (!p)
        return true;
    p->sandbox = s;
    p->from = from;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO)
            memcpy(&p->at, CMSG_DATA(c), sizeof p->at);
    ask(p, data, (size_t)n);
    return true;
}

void dns_ready(struct sandbox *s)
{
    for (unsigned i = 0; i < ASKS_AT_ONCE; i++)
        if (!take_one(s))
            return;
}

void dns_stream_begin(struct flow *f)
{
    f->state = FLOW_DNS;
    f->kind = GATE_DNS;
    flow_set_late(f, deadline_in(SNIFF_PATIENCE));
    f->first = malloc(DNS_MESSAGE_MAX + 2);
    if (!f->first || !watch_set(f->sandbox->gate, &f->near, EPOLLIN))
        flow_end(f, GATE_FAILED, "the gate is full");
}

/* Answers what has come completely, one question after the other: the next one when the last was
 * answered. */
static void answer_stream(struct flow *f)
{
    while (f->state == FLOW_DNS && !f->lookup && f->first_len >= 2) {
        uint8_t data[DNS_MESSAGE_MAX];
        size_t len = (size_t)f->first[0] << 8 | f->first[1];
        if (len > DNS_MESSAGE_MAX) {
            flow_end(f, GATE_REFUSED, "a question of such a length");
            return;
        }
        if (f->first_len < len + 2)
            break;

        struct pending *p = calloc(1, sizeof *p);
        if (!p) {
            flow_end(f, GATE_FAILED, "the gate has no memory");
            return;
        }
        memcpy(data, f->first + 2, len);
        f->first_len -= len + 2;
        memmove(f->first, f->first + len + 2, f->first_len);
        p->sandbox = f->sandbox;
        p->flow = f;
        flow_set_late(f, deadline_in(SNIFF_PATIENCE));
        ask(p, data, len);
    }
    if (f->state == FLOW_DNS)
        (void)watch_set(f->sandbox->gate, &f->near, f->lookup ? 0 : EPOLLIN);
}

void dns_stream_ready(struct flow *f)
{
    ssize_t n = recv(f->near.fd, f->first + f->first_len, DNS_MESSAGE_MAX + 2 - f->first_len, 0);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        flow_end(f, GATE_OK, NULL);
        return;
    }
    f->first_len += (size_t)n;
    answer_stream(f);
}
