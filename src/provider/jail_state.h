/* jail_state: the jail provider's own. jail.c has the calls, jail_events.c what keeper and jails
 * tell on the pump's thread, jail_link.c what has to wait for a keeper, jail_groups.c the cgroups
 * of commands. */
#pragma once

#include "base/cond.h"
#include "core/lock.h"
#include "core/pump.h"
#include "core/reserve.h"
#include "jail/jail.h"
#include "provider/jail.h"

#include <pthread.h>
#include <stdbool.h>

#define BOX_BUCKETS 1024u
#define GROUPS_MAX  512u
#define PROCS_FIRST 4u

/* A thread that waits for the answer to a request. On its stack, in the provider's list. */
struct waiter {
    struct waiter *next;
    struct wire_id id;
    struct frame frame;
    int done;             /* 1: frame is the answer; -1: the link is lost */
    struct jail_box *box; /* that CREATED brings: in the table from then on; or NULL */
    pthread_cond_t cond;
};

struct jail_box {
    struct box base; /* first */
    struct jail_box *next;
    struct jail_provider *provider;
    void *owner;
    struct jail jail;
    struct pump_source control;
    int listening;        /* control is, or was, in the pump */
    struct lock hearing;  /* around every receive from control */
    bool broken;          /* a request's thread has heard nonsense; under hearing */
    pthread_mutex_t lock; /* of the groups */
    int *procs;           /* by group: open, to be entered; -1 where there is none (yet) */
    unsigned procs_room;  /* groups of higher numbers have none */
    int promised;         /* its first command will want a descriptor */
    int lost;
    bool made; /* its owner has it, and is told when it is lost */
};

/* A jail that an earlier daemon left. */
struct orphan {
    struct orphan *next;
    struct jail jail;
};

/* A jail that nobody here has and that the keeper is to be told to end. */
struct jail_ending {
    struct jail_ending *next;
    struct wire_id jail;
};

struct jail_provider {
    struct provider base;
    struct pump *pump;
    char socket_path[108];
    int (*start)(void *arg, struct pd_err *e); /* or NULL: there is a keeper at socket_path */
    void *start_arg;
    pthread_mutex_t lock;    /* of all that follows */
    pthread_mutex_t sending; /* around every use of the link's socket: who closes it takes it */
    struct keeper_link link;
    struct pump_source keeper;
    bool broken; /* the pump has shut the link down; the tender closes it */
    pthread_t tender;
    bool tended, stopping;
    pthread_cond_t tend;         /* there is something for the tender */
    deadline reconnect_at;       /* without a link */
    int greeting;                /* a socket whose keeper is being greeted, or -1 */
    struct jail_ending *endings; /* for the tender */
    enum rung best;
    struct waiter *waiters;
    struct jail_box *boxes[BOX_BUCKETS];
    struct orphan *orphans;
    struct reserve reserve;
    char trouble[200]; /* why there is no link; "" when there is one */
};

/* jail_link.c. Connects, greets and lists what there is; the link is in the pump then. Waits for
 * the keeper: not for the pump's thread. */
int jail_link_connect(struct jail_provider *p, struct pd_err *e);
/* Starts and ends the tender, the thread that waits for keepers in the pump's place. */
int jail_link_start(struct jail_provider *p, struct pd_err *e);
void jail_link_stop(struct jail_provider *p);
/* Both wait for nobody: the link is lost, so that the tender gets another; the tender has the
 * keeper end a jail. */
void jail_link_lost(struct jail_provider *p, const char *why);
void jail_link_end_later(struct jail_provider *p, struct wire_id jail);
/* The pump's callback for the keeper's socket; jail_events.c. */
void jail_keeper_ready(struct pump_source *s, uint32_t events);

/* provider.end_strangers: ends the orphans that nobody has adopted; jail_link.c. */
void jail_provider_end_strangers(struct provider *base);

int jail_box_listen(struct jail_box *b, struct pd_err *e);
/* provider.hear_begin, hear, hear_end. */
bool jail_box_hear_begin(struct box *box);
enum box_heard jail_box_hear(struct box *box, struct wire_id command, struct pollfd *more,
                             unsigned count, deadline d);
void jail_box_hear_end(struct box *box);

/* jail_groups.c. The name of a group's directory; provider.group_is_empty, hold. */
void jail_group_name(unsigned group, char out[16]);
int jail_group_is_empty(struct box *box, unsigned group);
int jail_group_hold(struct box *box, unsigned group, bool held, struct pd_err *e);

/* Waiting for an answer: begin before the request is sent. */
void waiter_begin(struct jail_provider *p, struct waiter *w, struct wire_id id);
/* The answer is in w->frame; -1 with PD_TIMEOUT or PD_LOST. Ends the wait either way. */
int waiter_end(struct jail_provider *p, struct waiter *w, deadline d, struct pd_err *e);
/* Gives up before anything came. */
void waiter_cancel(struct jail_provider *p, struct waiter *w);

/* Ends a jail that nobody here has. Waits for room in the keeper's socket. */
void jail_provider_end(struct jail_provider *p, struct wire_id jail);

/* Both with the provider's lock held. */
struct jail_box **jail_box_place(struct jail_provider *p, struct wire_id id);
void jail_box_add(struct jail_box *b);
