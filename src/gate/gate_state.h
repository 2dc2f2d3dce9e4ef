/* gate_state: what a gate has, and what its parts do for each other (gate.c has the loop). Not for
 * others.
 *
 *   sandbox     two sockets in its namespace, its policy, pins, limits      sandbox.c
 *   flow        one connection of it: first bytes, verdict, dialling        flow.c, dial.c
 *               asking the sandbox's proxy for it                           tunnel.c
 *               copying, both ways                                          relay.c
 *   loan        a connection to a host with secrets, which the changer has lend.c
 *   lookup      a name that is asked of the machine's resolver              lookup.c
 *   dns         the questions of sandboxes                                  dns.c
 *   records     what the client is told                                     records.c
 *   route       which addresses are this machine's                          route.c */
#pragma once

#include "base/buf.h"
#include "base/clock.h"
#include "gate/hello.h"
#include "gate/pins.h"
#include "gate/question.h"
#include "gate/rules.h"
#include "wire/gate_msg.h"

#include <netinet/in.h>
#include <stdbool.h>

#define SCRATCH          (128u << 10)
#define FIRST_MAX        HELLO_MAX         /* first bytes that are looked at */
#define SPEAK_PATIENCE   (300 * NS_PER_MS) /* for the first byte; then the server speaks first */
#define SILENCE_PATIENCE (3 * NS_PER_S)  /* for the first byte of one that cannot be dialled yet */
#define SNIFF_PATIENCE   (10 * NS_PER_S) /* for the rest of a head that has begun */
#define DIAL_PATIENCE    (10 * NS_PER_S) /* for one address */
#define LOOKUP_PATIENCE  (2 * NS_PER_S)  /* for one resolver */
#define LOOKUP_ROUNDS    2u
#define LEND_PATIENCE    (10 * NS_PER_S) /* for a changer, and for room at it */
#define DRAIN_PATIENCE   (2 * NS_PER_S)  /* for a client to take a refusal */
#define TICK_MS          20              /* how often what is late is looked for */
#define LOOKUPS_MAX      64u             /* of one sandbox */
#define DIALS_MAX        64u             /* half-open, of one sandbox */
#define CANDIDATES_MAX   8u
#define RECORDS_MAX      4096u
#define SANDBOXES_MAX    16384u
#define LOAN_BUCKETS     1024u

struct gate;
struct flow;
struct tunnel;

/* What epoll points to. */
enum watch_kind {
    WATCH_UNTIL,    /* the process that it ends with */
    WATCH_LISTENER, /* of clients */
    WATCH_CLIENT,
    WATCH_CHANGERS, /* the listener of changers */
    WATCH_CHANGER,
    WATCH_ACCEPT, /* of a sandbox */
    WATCH_QUESTIONS,
    WATCH_NEAR, /* the sandbox's side of a flow */
    WATCH_FAR,
    WATCH_LOOKUP
};

struct watch {
    enum watch_kind kind;
    int fd;          /* -1: none */
    uint32_t events; /* that epoll has; 0: it is not there */
    void *owner;
};

/* So much a second, and no more than a second's worth at once. */
struct bucket {
    uint64_t tokens, at;
};

struct tenant {
    struct tenant *next;
    unsigned users, connections, loans;
    char name[64];
};

struct sandbox {
    struct sandbox *next;
    struct gate *gate;
    char id[GATE_ID_MAX + 1];
    struct watch accept, questions;
    struct egress_policy *policy;
    char *sealed; /* its secrets, which only the changer can read */
    struct pins *pins;
    struct tenant *tenant;
    struct flow *flows;
    unsigned connections, dials, lookups, loans;
    struct bucket starts, asks, up, down;
    uint64_t bytes;
    bool told;      /* by the client that is there now */
    bool held;      /* its accept waits for a limit */
    bool throttled; /* flows wait for their bucket */
    bool waits;     /* is in the gate's list of those that wait for either */
    struct sandbox *waiting_next;
    bool closed;
};

enum flow_state {
    FLOW_SNIFF,  /* its first bytes are awaited */
    FLOW_LOOKUP, /* its name is asked for */
    FLOW_DIAL,   /* an address is being connected to */
    FLOW_TUNNEL, /* the sandbox's proxy is being asked */
    FLOW_RELAY,
    FLOW_LENT,  /* the changer has it, or is waited for */
    FLOW_DNS,   /* questions by TCP */
    FLOW_DRAIN, /* was refused, in words, which the client is given time to read */
    FLOW_OVER   /* freed when the current events are done */
};

/* One direction. `pending`: what was read and could not be written yet. */
struct half {
    struct watch *from, *to;
    struct bucket *bucket;
    uint8_t *pending;
    size_t at, len;
    uint64_t bytes;
    bool much;  /* came at once, the last time */
    bool ended; /* the source has said its last */
    bool shut;  /* and the other side was told */
};

struct flow {
    struct flow *next, **link; /* of its sandbox */
    struct flow *late_next, **late_link;
    struct sandbox *sandbox;
    enum flow_state state;
    struct watch near, far;
    struct half up, down;
    struct ip to; /* that the sandbox meant to reach, and the one that was dialled */
    struct ip dialled;
    uint16_t port;
    enum gate_kind kind;
    char name[RULES_NAME_MAX + 1]; /* that it is judged by; "": none */
    char rule[RULES_TEXT_MAX];
    bool by_name;   /* it was judged by name */
    bool unsniffed; /* the server speaks first: the client's first bytes are still to come */
    bool is_fixed;  /* the operator's word says where to */
    uint16_t dial_port;
    struct changed changed; /* of a host with secrets or header rules */
    struct tunnel *tunnel;  /* through the sandbox's proxy; NULL: straight */
    struct loan *loan;      /* that the changer has; NULL: it was not given to one yet */
    struct flow *turn_next, **turn_link; /* of those that wait for it */
    uint8_t *first;                      /* bytes read before there was anybody to write them to */
    size_t first_len, first_room;
    size_t first_sent; /* of them, with the dialling */
    struct ip candidates[CANDIDATES_MAX];
    unsigned candidate_count, candidate_at;
    struct lookup *lookup;
    deadline late;
    uint64_t began, began_time;
};

/* Who wants to know an address: a flow, or a question. */
struct lookup;
typedef void (*lookup_done)(struct lookup *l, void *owner);

struct ask {
    struct watch watch;
    enum dns_type type;
    uint16_t id;
    bool done;
    struct reply reply;
};

struct lookup {
    struct lookup *next, **link;
    struct sandbox *sandbox;
    char name[RULES_NAME_MAX + 1];
    struct ask asks[2];
    unsigned ask_count, round, server;
    deadline late;
    lookup_done done;
    void *owner;
    bool owns; /* its owner is freed with it when it is cancelled */
    bool over;
};

struct record_entry {
    struct record_entry *next;
    struct buf payload;
};

struct gate {
    int epoll, route;
    struct watch until, listener, client, changers, changer;
    struct loan *loans[LOAN_BUCKETS];
    unsigned loan_count;
    uint64_t loan_last;               /* the number of the last one */
    struct flow *turns, **turns_last; /* flows that wait for a changer */
    struct sandbox *sandboxes, *waiting;
    unsigned sandbox_count;
    struct tenant *tenants;
    struct flow *late, *over; /* flows with a deadline; flows to be freed */
    struct lookup *lookups, *lookups_over;
    struct sandbox *sandboxes_over;
    struct record_entry *records, **records_last;
    unsigned record_count;
    uint64_t records_lost;
    bool ended;  /* the only client is gone, or the process that has all the sandboxes */
    int pipe[2]; /* for splicing: empty between turns; or -1 */
    uint8_t scratch[SCRATCH];
};

/* gate.c */
/* Has epoll tell of these events, and of nothing with 0. False: there is no room for it. */
bool watch_set(struct gate *g, struct watch *w, uint32_t events);
void watch_close(struct gate *g, struct watch *w);
/* The same for a socket that only the gate has while epoll tells of it: epoll forgets it with that.
 */
void watch_close_own(struct watch *w);

/* sandbox.c */
struct sandbox *sandbox_find(struct gate *g, const char *id);
/* Takes both descriptors and the policy, whatever becomes of it. */
int sandbox_open(struct gate *g, const struct gate_open *m, struct egress_policy *p, int tcp,
                 int dns, struct pd_err *e);
/* Takes the policy. Judges open connections again, and ends those that have secrets which are
 * others now. */
int sandbox_set_policy(struct sandbox *s, const char *sealed, struct egress_policy *p,
                       struct pd_err *e);
void sandbox_close(struct sandbox *s);
/* Whoever counts as its user counts no more; the last one frees it. */
void tenant_leave(struct gate *g, struct tenant *t);
void sandboxes_forget_untold(struct gate *g);
void sandbox_accept(struct sandbox *s);
/* Is looked at with the next tick: a limit may have room again. */
void sandbox_wait(struct sandbox *s);
void sandboxes_tick(struct gate *g);
void sandboxes_collect(struct gate *g);
/* How many tokens there are; `rate` 0: no limit. */
uint64_t bucket_tokens(struct bucket *b, uint64_t rate, uint64_t now);

/* flow.c */
void flow_begin(struct sandbox *s, int fd);
void flow_near_ready(struct flow *f, uint32_t events);
void flow_far_ready(struct flow *f, uint32_t events);
void flow_late(struct flow *f);
void flow_set_late(struct flow *f, deadline d);
/* The rules have changed; `same_proxy`: the way through a proxy, or without, has not. */
void flow_judge_again(struct flow *f, bool same_proxy);
/* Ends it: with a reset on both sides, unless it is GATE_OK. */
void flow_end(struct flow *f, enum gate_result result, const char *why);
void flows_collect(struct gate *g);
/* Tells the client why not, in its own language, and ends it. */
void flow_refuse(struct flow *f, const char *why);

/* dial.c: connecting to where a flow was judged to lead. */
void dial_begin(struct flow *f, const struct verdict *v);
void dial_ready(struct flow *f);
void dial_next(struct flow *f, const char *why);
/* The connection is there: it is used from now on. */
void dial_made(struct flow *f);
/* Adds the addresses that were found; the family that the sandbox chose goes first. */
void dial_add(struct flow *f, const struct lookup *l);

/* tunnel.c: the way through the sandbox's proxy, if it has one. */
void tunnel_begin(struct flow *f, const struct verdict *v);
/* The proxy is connected. */
void tunnel_greet(struct flow *f);
void tunnel_ready(struct flow *f);
/* Would the rules of the moment let it pass? */
bool tunnel_passes(const struct flow *f);
void tunnel_free(struct flow *f);

/* lend.c */
void changer_accept(struct gate *g);
void changer_ready(struct gate *g);
/* Gives a connection that was made to the changer. */
void lend_begin(struct flow *f);
/* The connection ends: both sides are reset although the changer has the sockets, too. */
void lend_leave(struct flow *f);
/* May there be one loan more, where there are so many at most, so many now, and so many of this
 * tenant and this sandbox? Pure. */
bool lend_has_room(uint64_t most, uint64_t all, uint64_t tenant, uint64_t sandbox);

/* relay.c */
/* Before the filter, which lets nobody make one. */
void relay_open_pipe(struct gate *g);
void relay_begin(struct flow *f);
/* Copies what can be copied, and waits for the rest. */
void relay_move(struct flow *f, uint32_t near_events, uint32_t far_events);
void relay_free(struct flow *f);

/* lookup.c */
/* Asks for the addresses of a name; `done` is called later, exactly once, unless it is cancelled.
 * NULL: it cannot be asked now. */
struct lookup *lookup_begin(struct sandbox *s, const char *name, bool v4, bool v6, lookup_done done,
                            void *owner);
void lookup_cancel(struct lookup *l);
void lookup_ready(struct lookup *l, struct watch *w);
void lookup_late(struct lookup *l);
void lookups_collect(struct gate *g);

/* dns.c */
void dns_ready(struct sandbox *s);
void dns_stream_begin(struct flow *f);
void dns_stream_ready(struct flow *f);

/* records.c */
void record_add(struct gate *g, const struct gate_record *r);
void record_flow(const struct flow *f, enum gate_result result, const char *why);
/* Sends what waits, as far as the client takes it. */
void records_send(struct gate *g);
void records_free(struct gate *g);

/* route.c */
/* A socket for route_is_local, or -1. */
int route_open(void);
bool route_is_local(int route, struct ip a);

/* filter.c: no system call but those that a gate needs, from now on. 0 or -errno. */
int filter_load(void);

/* Where both sides of a socket are. */
struct ip ip_of_sockaddr(const struct sockaddr_in6 *a);
struct sockaddr_in6 ip_sockaddr(struct ip a, uint16_t port);
