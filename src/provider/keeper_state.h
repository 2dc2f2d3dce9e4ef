/* keeper_state: what the parts of a keeper's client share, for every kind of keeper. keeper.c has
 * the calls, keeper_events.c what keeper and jails tell on the pump's thread, keeper_link.c what
 * has to wait for a keeper, keeper_groups.c the cgroups of commands. */
#pragma once

#include "base/cond.h"
#include "base/lock.h"
#include "core/pump.h"
#include "core/reserve.h"
#include "jail/jail.h"
#include "provider/keeper.h"

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
    int done;          /* 1: frame is the answer; -1: the link is lost */
    bool has_progress; /* that its thread has not told `box`'s owner yet */
    struct msg_progress progress;
    struct keeper_box *box; /* that CREATED brings: in the table from then on; or NULL */
    pthread_cond_t cond;
};

struct keeper_box {
    struct box base; /* first */
    struct keeper_box *next;
    struct keeper_provider *provider;
    void *owner;
    struct jail jail;
    struct pump_source control;
    int listening;           /* control is, or was, in the pump */
    struct lock hearing;     /* around every receive from control */
    bool broken;             /* a request's thread has heard nonsense; under hearing */
    struct lock lock;        /* of the groups */
    int *procs;              /* by group: open, to be entered; -1 where there is none (yet) */
    unsigned procs_room;     /* groups of higher numbers have none */
    struct box_place *place; /* what its init has told; under the lock; NULL: a jail's */
    int promised;            /* its first command will want a descriptor */
    int lost;
    bool listed;      /* of one elsewhere: by the keeper that there is now */
    bool made;        /* its owner has it, and is told when it is lost */
    bool tells_facts; /* what its init says of the place is taken */
};

/* A jail that an earlier daemon left. */
struct orphan {
    struct orphan *next;
    struct jail jail;
};

/* A jail that nobody here has and that the keeper is to be told to end. */
struct box_ending {
    struct box_ending *next;
    struct wire_id jail;
    unsigned flags; /* of DESTROY */
};

/* What a keeper that was not there should have dropped from the stash. */
struct late_drop {
    struct late_drop *next;
    char key[MSG_KEY_MAX + 1];
};

struct keeper_provider {
    struct provider base;
    const struct provider_kind *kind;
    struct pump *pump;
    char socket_path[108];
    int (*start)(void *arg, struct pd_err *e); /* or NULL: there is a keeper at socket_path */
    void *start_arg;
    struct lock lock;    /* of all that follows */
    struct lock sending; /* around every use of the link's socket: who closes it takes it */
    struct keeper_link link;
    struct pump_source keeper;
    bool broken; /* the pump has shut the link down; the tender closes it */
    pthread_t tender;
    bool tended, stopping;
    pthread_cond_t tend;        /* there is something for the tender */
    deadline reconnect_at;      /* without a link */
    int greeting;               /* a socket whose keeper is being greeted, or -1 */
    struct box_ending *endings; /* for the tender */
    struct late_drop *drops;    /* for the next keeper */
    enum rung best;
    struct waiter *waiters;
    struct keeper_box *boxes[BOX_BUCKETS];
    struct orphan *orphans;
    struct reserve reserve;
    char trouble[200];            /* why there is no link; "" when there is one */
    char cannot[MSG_WHY_MAX + 1]; /* what keeps the keeper from making boxes; "": nothing */
};

/* keeper_link.c. Connects, greets and lists what there is; the link is in the pump then. Waits for
 * the keeper: not for the pump's thread. */
int provider_link_connect(struct keeper_provider *p, struct pd_err *e);
/* The same at the start of a server. Whoever started it has seen a keeper; if that one dies just
 * then, the next one is waited for. */
int provider_link_open(struct keeper_provider *p, struct pd_err *e);
/* Starts and ends the tender, the thread that waits for keepers in the pump's place. */
int provider_link_start(struct keeper_provider *p, struct pd_err *e);
void provider_link_stop(struct keeper_provider *p);
/* Both wait for nobody: the link is lost, so that the tender gets another; the tender has the
 * keeper end a jail. */
void provider_link_lost(struct keeper_provider *p, const char *why);
void provider_link_end_later(struct keeper_provider *p, struct wire_id jail, unsigned flags);
/* Has the next keeper drop what this one cannot be told to drop. */
void provider_drop_later(struct keeper_provider *p, const char *key);
/* Tells the owners of boxes that are lost with their keeper: when it has gone, those on this
 * machine; when the next one `is_there`, those elsewhere that it does not have. */
void provider_lose_boxes(struct keeper_provider *p, bool is_there);
/* Notes what the keeper says of its workers, if this is TROUBLE, and has its owner told. Waits for
 * nobody. */
void provider_take_trouble(struct keeper_provider *p, const struct frame *f);
/* The pump's callback for the keeper's socket; keeper_events.c. */
void provider_keeper_ready(struct pump_source *s, uint32_t events);

/* provider.cancel and best; keeper_link.c. */
void keeper_provider_cancel(struct provider *base, struct wire_id id);
enum rung keeper_provider_best(struct provider *base);
/* provider.end_strangers: ends the orphans that nobody has adopted; keeper_link.c. */
void keeper_provider_end_strangers(struct provider *base);

/* FACTS of its init, when they come, and as the first frame that it sends; keeper_events.c. */
int keeper_box_await_facts(struct keeper_box *b, deadline d, struct pd_err *e);
int keeper_box_take_facts(struct keeper_box *b, const struct frame *f, struct pd_err *e);
int keeper_box_listen(struct keeper_box *b, struct pd_err *e);
/* provider.hear_begin, hear, hear_end. */
bool keeper_box_hear_begin(struct box *box);
enum box_heard keeper_box_hear(struct box *box, struct wire_id command, struct pollfd *more,
                               unsigned count, deadline d);
void keeper_box_hear_end(struct box *box);

/* keeper_groups.c. The name of a group's directory; provider.group_is_empty, hold. */
void keeper_group_name(unsigned group, char out[16]);
int keeper_group_is_empty(struct box *box, unsigned group);
int keeper_group_hold(struct box *box, unsigned group, bool held, struct pd_err *e);

/* Waiting for an answer: begin before the request is sent. `box` is the one that is made, or NULL.
 */
void waiter_begin(struct keeper_provider *p, struct waiter *w, struct wire_id id,
                  struct keeper_box *box);
/* The answer is in w->frame; -1 with PD_TIMEOUT or PD_LOST. Ends the wait either way. */
int waiter_end(struct keeper_provider *p, struct waiter *w, deadline d, struct pd_err *e);
/* Gives up before anything came. */
void waiter_cancel(struct keeper_provider *p, struct waiter *w);

/* keeper.c. Sends to the keeper: frames of several threads do not mix, each is one datagram. */
int tell_keeper(struct keeper_provider *p, enum wire_type type, struct wire_id id,
                const struct buf *payload, const int *fds, unsigned fd_count, struct pd_err *e);
/* A request and its answer, of which the caller frees the frame. */
int ask_keeper(struct keeper_provider *p, struct waiter *w, enum wire_type type,
               const struct buf *payload, deadline d, struct pd_err *e);
/* A request that is answered with DONE or ERROR. */
int have_keeper_do(struct keeper_provider *p, enum wire_type type, const struct buf *payload,
                   deadline d, struct pd_err *e);

/* keeper_stash.c */
int keeper_stash(struct provider *base, const char *key, const int *fds, unsigned count,
                 struct pd_err *e);
int keeper_fetch(struct provider *base, const char *key, int *ret_fds, unsigned max,
                 unsigned *ret_count, deadline d, struct pd_err *e);
void keeper_drop(struct provider *base, const char *key);

/* keeper_roots.c: the functions of a provider. */
int keeper_remove_root(struct provider *base, const char *root_name, struct pd_err *e);
int keeper_keep_root(struct provider *base, const char *root_name, deadline d, struct pd_err *e);
int keeper_copy_root(struct provider *base, struct box *box, const char *from, const char *to,
                     deadline d, struct pd_err *e);
int keeper_images(struct provider *base, const struct box_images *r, deadline d, struct pd_err *e);
int keeper_check(struct box *box, deadline d, struct pd_err *e);

/* Ends a jail that nobody here has. Waits for room in the keeper's socket. `flags`: of DESTROY. */
void keeper_provider_end(struct keeper_provider *p, struct wire_id jail, unsigned flags);

/* Both with the provider's lock held. */
struct keeper_box **keeper_box_place(struct keeper_provider *p, struct wire_id id);
void keeper_box_add(struct keeper_box *b);
