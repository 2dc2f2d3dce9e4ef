/* A network namespace with a way out through a gate (src/gate), and with nothing else.
 *
 * There is no device but lo and no route to the host. Every address is local ("AnyIP": a local
 * route for all of them), so the kernel delivers each packet here; and one nft rule gives every TCP
 * connection that is not for the sandbox itself to one listening socket, whatever its address and
 * port (tproxy). That socket and one for DNS questions are made inside and handed out: the gate
 * accepts in the sandbox's namespace and dials from the host's. Other protocols find nobody.
 *
 *   lo up; 192.0.2.2/32 on it: the source of connections, without which resolvers say that there
 *   is no network; local 0.0.0.0/0 and local ::/0
 *   table inet gate: accept what is for 127/8, 192.0.2.2 and ::1; all other TCP: tproxy to :3
 *
 * All of it takes about 0.1 ms. It is done by a child that shares the builder's memory and
 * descriptors: there is no way back from a namespace without root. */
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/clone.h"
#include "jail/netns.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define GATE_PORT 3
#define DNS_PORT  53
#define BACKLOG   1024
#define LO_INDEX  1 /* of every namespace */
#define TABLE     "gate"
#define CHAIN     "in"

/* Of linux/netfilter.h, which does not go together with libc's netinet/in.h. */
enum { HOOK_PREROUTING = 0, VERDICT_ACCEPT = 1 };
enum { FAMILY_ANY = 0, FAMILY_INET = 1, FAMILY_IPV4 = 2, FAMILY_IPV6 = 10 };

#ifndef IPV6_TRANSPARENT
#define IPV6_TRANSPARENT 75
#endif

static const uint8_t own_address[4] = {192, 0, 2, 2};

/* Messages that are being written, one behind the other. */
struct batch {
    _Alignas(4) uint8_t data[2048];
    size_t len;
    size_t message; /* where the last one begins */
};

static void put(struct batch *b, const void *data, size_t len)
{
    size_t padded = (len + 3) & ~(size_t)3;

    if (b->len + padded > sizeof b->data)
        abort(); /* its size is a constant: a test sees it */
    memset(b->data + b->len, 0, padded);
    memcpy(b->data + b->len, data, len);
    b->len += padded;
}

static void begin(struct batch *b, uint16_t type, uint16_t flags)
{
    struct nlmsghdr head = {.nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST | flags};
    b->message = b->len;
    put(b, &head, sizeof head);
}

static void finish(struct batch *b)
{
    struct nlmsghdr head;
    memcpy(&head, b->data + b->message, sizeof head);
    head.nlmsg_len = (uint32_t)(b->len - b->message);
    memcpy(b->data + b->message, &head, sizeof head);
}

static void put_attr(struct batch *b, uint16_t type, const void *data, size_t len)
{
    struct nlattr head = {.nla_type = type, .nla_len = (uint16_t)(sizeof head + len)};
    put(b, &head, sizeof head);
    put(b, data, len);
}

static void put_number(struct batch *b, uint16_t type, uint32_t v)
{
    uint32_t big = htonl(v);
    put_attr(b, type, &big, sizeof big);
}

static void put_text(struct batch *b, uint16_t type, const char *text)
{
    put_attr(b, type, text, strlen(text) + 1);
}

/* A list of attributes: from nest to unnest. */
static size_t nest(struct batch *b, uint16_t type)
{
    struct nlattr head = {.nla_type = type | NLA_F_NESTED};
    size_t at = b->len;
    put(b, &head, sizeof head);
    return at;
}

static void unnest(struct batch *b, size_t at)
{
    uint16_t len = (uint16_t)(b->len - at);
    memcpy(b->data + at + offsetof(struct nlattr, nla_len), &len, sizeof len);
}

/* ---- the rules ---- */

/* An expression: from here to two unnests. */
struct expression {
    size_t element, data;
};

static struct expression expression(struct batch *b, const char *name)
{
    struct expression x = {.element = nest(b, NFTA_LIST_ELEM)};
    put_text(b, NFTA_EXPR_NAME, name);
    x.data = nest(b, NFTA_EXPR_DATA);
    return x;
}

static void expression_end(struct batch *b, struct expression x)
{
    unnest(b, x.data);
    unnest(b, x.element);
}

static void put_value(struct batch *b, uint16_t type, const void *value, size_t len)
{
    size_t at = nest(b, type);
    put_attr(b, NFTA_DATA_VALUE, value, len);
    unnest(b, at);
}

static void meta_is(struct batch *b, uint32_t key, uint8_t value)
{
    struct expression x = expression(b, "meta");
    put_number(b, NFTA_META_KEY, key);
    put_number(b, NFTA_META_DREG, NFT_REG_1);
    expression_end(b, x);

    x = expression(b, "cmp");
    put_number(b, NFTA_CMP_SREG, NFT_REG_1);
    put_number(b, NFTA_CMP_OP, NFT_CMP_EQ);
    put_value(b, NFTA_CMP_DATA, &value, sizeof value);
    expression_end(b, x);
}

static void header_is(struct batch *b, uint32_t offset, const void *value, uint32_t len)
{
    struct expression x = expression(b, "payload");
    put_number(b, NFTA_PAYLOAD_DREG, NFT_REG_1);
    put_number(b, NFTA_PAYLOAD_BASE, NFT_PAYLOAD_NETWORK_HEADER);
    put_number(b, NFTA_PAYLOAD_OFFSET, offset);
    put_number(b, NFTA_PAYLOAD_LEN, len);
    expression_end(b, x);

    x = expression(b, "cmp");
    put_number(b, NFTA_CMP_SREG, NFT_REG_1);
    put_number(b, NFTA_CMP_OP, NFT_CMP_EQ);
    put_value(b, NFTA_CMP_DATA, value, len);
    expression_end(b, x);
}

static void accept_it(struct batch *b)
{
    struct expression x = expression(b, "immediate");
    put_number(b, NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
    size_t data = nest(b, NFTA_IMMEDIATE_DATA), verdict = nest(b, NFTA_DATA_VERDICT);
    put_number(b, NFTA_VERDICT_CODE, VERDICT_ACCEPT);
    unnest(b, verdict);
    unnest(b, data);
    expression_end(b, x);
}

static void to_the_gate(struct batch *b)
{
    uint16_t port = htons(GATE_PORT);

    struct expression x = expression(b, "immediate");
    put_number(b, NFTA_IMMEDIATE_DREG, NFT_REG_1);
    put_value(b, NFTA_IMMEDIATE_DATA, &port, sizeof port);
    expression_end(b, x);

    x = expression(b, "tproxy");
    put_number(b, NFTA_TPROXY_FAMILY, FAMILY_ANY);
    put_number(b, NFTA_TPROXY_REG_PORT, NFT_REG_1);
    expression_end(b, x);
}

static void nft_begin(struct batch *b, uint16_t type, uint16_t flags)
{
    struct nfgenmsg family = {.nfgen_family = FAMILY_INET};
    begin(b, (uint16_t)(NFNL_SUBSYS_NFTABLES << 8 | type), flags);
    put(b, &family, sizeof family);
}

static size_t rule_begin(struct batch *b, bool last)
{
    nft_begin(b, NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND | (last ? NLM_F_ACK : 0));
    put_text(b, NFTA_RULE_TABLE, TABLE);
    put_text(b, NFTA_RULE_CHAIN, CHAIN);
    return nest(b, NFTA_RULE_EXPRESSIONS);
}

static void rule_end(struct batch *b, size_t expressions)
{
    unnest(b, expressions);
    finish(b);
}

static void batch_mark(struct batch *b, uint16_t type)
{
    struct nfgenmsg m = {.nfgen_family = AF_UNSPEC, .res_id = htons(NFNL_SUBSYS_NFTABLES)};
    begin(b, type, 0);
    put(b, &m, sizeof m);
    finish(b);
}

static void make_rules(struct batch *b)
{
    static const uint8_t loopback = 127, loopback6[16] = {[15] = 1};
    enum { V4_DESTINATION = 16, V6_DESTINATION = 24 };

    batch_mark(b, NFNL_MSG_BATCH_BEGIN);
    nft_begin(b, NFT_MSG_NEWTABLE, NLM_F_CREATE);
    put_text(b, NFTA_TABLE_NAME, TABLE);
    finish(b);

    nft_begin(b, NFT_MSG_NEWCHAIN, NLM_F_CREATE);
    put_text(b, NFTA_CHAIN_TABLE, TABLE);
    put_text(b, NFTA_CHAIN_NAME, CHAIN);
    size_t hook = nest(b, NFTA_CHAIN_HOOK);
    put_number(b, NFTA_HOOK_HOOKNUM, HOOK_PREROUTING);
    put_number(b, NFTA_HOOK_PRIORITY, (uint32_t)-150);
    unnest(b, hook);
    put_text(b, NFTA_CHAIN_TYPE, "filter");
    finish(b);

    size_t at = rule_begin(b, false);
    meta_is(b, NFT_META_NFPROTO, FAMILY_IPV4);
    header_is(b, V4_DESTINATION, &loopback, 1);
    accept_it(b);
    rule_end(b, at);

    at = rule_begin(b, false);
    meta_is(b, NFT_META_NFPROTO, FAMILY_IPV4);
    header_is(b, V4_DESTINATION, own_address, sizeof own_address);
    accept_it(b);
    rule_end(b, at);

    at = rule_begin(b, false);
    meta_is(b, NFT_META_NFPROTO, FAMILY_IPV6);
    header_is(b, V6_DESTINATION, loopback6, sizeof loopback6);
    accept_it(b);
    rule_end(b, at);

    at = rule_begin(b, true);
    meta_is(b, NFT_META_L4PROTO, IPPROTO_TCP);
    to_the_gate(b);
    accept_it(b);
    rule_end(b, at);
    batch_mark(b, NFNL_MSG_BATCH_END);
}

/* ---- talking to the kernel ---- */

/* Sends messages of which `acks` are acknowledged. 0, or the first error as -errno. */
static int tell_kernel(int protocol, const struct batch *b, unsigned acks)
{
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    union {
        struct nlmsghdr head;
        char bytes[4096];
    } in;
    auto_fd fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);

    if (fd < 0 || sendto(fd, b->data, b->len, 0, (struct sockaddr *)&kernel, sizeof kernel) < 0)
        return -errno;

    while (acks) {
        ssize_t n = recv(fd, &in, sizeof in, MSG_DONTWAIT); /* it answers before it returns */
        if (n < 0)
            return -errno;
        for (struct nlmsghdr *h = &in.head; NLMSG_OK(h, (size_t)n) && acks; h = NLMSG_NEXT(h, n)) {
            if (h->nlmsg_type != NLMSG_ERROR)
                continue;
            int error = ((struct nlmsgerr *)NLMSG_DATA(h))->error;
            if (error)
                return error;
            acks--;
        }
    }
    return 0;
}

/* What there is already, since an attempt before this one failed, stays. */
static void put_route(struct batch *b, uint8_t family)
{
    struct rtmsg m = {.rtm_family = family,
                      .rtm_table = RT_TABLE_LOCAL,
                      .rtm_protocol = RTPROT_STATIC,
                      .rtm_scope = RT_SCOPE_HOST,
                      .rtm_type = RTN_LOCAL};
    uint32_t lo = LO_INDEX;

    begin(b, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK);
    put(b, &m, sizeof m);
    put_attr(b, RTA_OIF, &lo, sizeof lo);
    if (family == AF_INET)
        put_attr(b, RTA_PREFSRC, own_address, sizeof own_address);
    finish(b);
}

static void make_routes(struct batch *b)
{
    struct ifaddrmsg m = {.ifa_family = AF_INET, .ifa_prefixlen = 32, .ifa_index = LO_INDEX};

    begin(b, RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK);
    put(b, &m, sizeof m);
    put_attr(b, IFA_LOCAL, own_address, sizeof own_address);
    put_attr(b, IFA_ADDRESS, own_address, sizeof own_address);
    finish(b);
    put_route(b, AF_INET);
    put_route(b, AF_INET6);
}

/* What is accepted has this from its listener: from its first moment on it ends with a reset
 * whenever its gate dies, also where it has waited for one (src/gate/flow.c). */
static int set_inherited(int fd)
{
    struct linger reset = {.l_onoff = 1};
    return setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
}

/* A socket for both families, bound to every address. */
static int make_socket(int type, uint16_t port, int option)
{
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    int one = 1, zero = 0;
    auto_fd fd = socket(AF_INET6, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero) < 0 ||
        setsockopt(fd, IPPROTO_IPV6, option, &one, sizeof one) < 0 ||
        bind(fd, (struct sockaddr *)&any, sizeof any) < 0 ||
        (type == SOCK_STREAM && (set_inherited(fd) < 0 || listen(fd, BACKLOG) < 0)))
        return -errno;
    return fd_take(&fd);
}

/* What the child does, in memory that it shares. */
struct work {
    int proc;
    int netns; /* to be furnished, or a pidfd of who is in it; or -1: a new one */
    int tcp, dns;
    const char *step;
    int sys;
};

static int step(struct work *w, const char *what, int r)
{
    if (r >= 0)
        return 0;
    w->step = what;
    w->sys = -r;
    return -1;
}

static int furnish(void *arg)
{
    struct work *w = arg;
    struct batch rules = {0}, routes = {0};

    if (w->netns >= 0) {
        if (step(w, "enter the network namespace", setns(w->netns, CLONE_NEWNET) < 0 ? -errno : 0))
            _exit(1);
    } else {
        w->netns = openat(w->proc, "thread-self/ns/net", O_RDONLY | O_CLOEXEC);
        if (step(w, "open the network namespace", w->netns < 0 ? -errno : 0) ||
            step(w, "bring up the loopback device", netns_loopback_up()))
            _exit(1);
    }

    /* The sockets first: with the routes, whoever is there already would connect to nobody. */
    w->tcp = make_socket(SOCK_STREAM, GATE_PORT, IPV6_TRANSPARENT);
    w->dns = make_socket(SOCK_DGRAM, DNS_PORT, IPV6_RECVPKTINFO);
    if (step(w, "listen in the network namespace", w->tcp) ||
        step(w, "listen in the network namespace", w->dns))
        _exit(1);

    make_routes(&routes);
    make_rules(&rules);
    if (step(w, "make the nft rules of the gate (nf_tables, nft_tproxy)",
             tell_kernel(NETLINK_NETFILTER, &rules, 1)) ||
        step(w, "make the routes to the gate", tell_kernel(NETLINK_ROUTE, &routes, 3)))
        _exit(1);
    _exit(0);
}

/* Both sockets, or none and the error. */
static int run_furnish(struct work *w, bool is_new, int ret[2], struct pd_err *e)
{
    pid_t pid = clone_vfork(CLONE_FILES | (is_new ? CLONE_NEWNET : 0u), -1, furnish, w);
    if (pid < 0) {
        errno = -pid;
        return pd_fail_sys(e, "make a network namespace");
    }
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;

    if (w->step || w->tcp < 0 || w->dns < 0) {
        if (is_new)
            fd_done(&w->netns);
        fd_done(&w->tcp);
        fd_done(&w->dns);
        errno = w->sys;
        pd_fail_sys(e, "%s", w->step ? w->step : "make the gate's sockets");
        e->code = PD_UNSUPPORTED; /* the host cannot do it: `paddock doctor` says what it lacks */
        return -1;
    }
    ret[0] = w->tcp;
    ret[1] = w->dns;
    return 0;
}

int netns_gate_make(int proc, int *netns, int ret[2], struct pd_err *e)
{
    struct work w = {.proc = proc, .netns = *netns, .tcp = -1, .dns = -1};

    if (run_furnish(&w, *netns < 0, ret, e) < 0)
        return -1;
    *netns = w.netns;
    return 0;
}

int netns_gate_enter(int pidfd, int ret[2], struct pd_err *e)
{
    struct work w = {.proc = -1, .netns = pidfd, .tcp = -1, .dns = -1};
    return run_furnish(&w, false, ret, e);
}
