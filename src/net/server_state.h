/* server_state: what the parts of the server share. Private to net.
 *
 * A connection is owned by the thread that serves it. While it is parked nobody owns it: it is
 * armed in the epoll set (one shot) and linked into the wheel, and the thread that gets its event
 * owns it. Only its owner frees it. To close a parked one (its time is up, the server stops) its
 * socket is shut down, which is an event. */
#pragma once

#include "base/lock.h"

#include "net/body.h"
#include "net/server.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* The wheel: one slot per tick of 2^27 ns (134 ms), about 137 s in all. What is further away is
 * looked at once per turn. */
#define SLOT_COUNT 1024u
#define TICK_SHIFT 27u

enum source_kind { SOURCE_QUIT, SOURCE_LISTENER, SOURCE_CONNECTION };

/* An epoll event points to one of these, the first member of its struct. */
struct source {
    enum source_kind kind;
};

struct listener {
    struct source source;
    struct listener *next;
    struct lock lock; /* fd may be closed while a thread is about to accept */
    int fd;
    int paused; /* out of descriptors: armed again by the manager */
    struct tls_context *tls;
};

enum phase {
    PHASE_IDLE,   /* between requests */
    PHASE_HEAD,   /* a part of a head is there */
    PHASE_LEAVING /* answered and ended; what still comes in is thrown away until the peer is done
                   */
};

struct connection {
    struct source source;
    enum phase phase;
    struct conn *conn;
    struct connection *next, **link;           /* of all; server.lock */
    struct connection *slot_next, **slot_link; /* of the wheel, while parked; server.lock */
    deadline expires;                          /* while parked */
    int expired;                               /* server.lock */
    int armed_before;
    deadline idle_until, head_until; /* head_until: 0 when no byte of a head is there */
    uint64_t thrown_away;
    char *saved; /* a part of a head, while parked */
    size_t saved_len;
};

struct server {
    struct server_config config;
    struct listener *listeners; /* the lock for its head */
    int epoll, wake, quit;
    struct source quit_source;
    uint64_t id_seed;

    atomic_int stopping;
    _Atomic deadline stop_until;
    atomic_uint_least64_t ids, accepted, requests, refused;
    atomic_uint waiting; /* threads in epoll_wait, or on their way; written under the lock */
    atomic_uint brief;   /* busy ones that have no patience with their peer: they end soon */

    struct lock lock;
    /* All of these under the lock. Invariant: busy < threads, so that somebody always comes back to
     * the epoll set, if only to say no. */
    unsigned threads, busy;
    unsigned hopeful;     /* threads that wait for a place in busy */
    pthread_cond_t freed; /* for them */
    int reserve;          /* a descriptor to give up when there are no others */
    int ending;           /* threads leave */
    pthread_t last_ended;
    int has_ended;
    struct connection *all;
    unsigned connections;
    struct connection *slots[SLOT_COUNT];
    uint64_t tick; /* slots before this one have been looked at */
    deadline manager_wakes, rearm_at;
};

/* The way of an answer's body. */
enum out_mode { OUT_NONE, OUT_LENGTH, OUT_CHUNKED, OUT_RAW };

/* The request that a thread has at hand. Lives as long as the thread. */
struct request_state {
    struct server *server;
    uint64_t stall_ns;
    bool brief; /* counted in server.brief */
    struct body body;
    int continue_sent;

    enum out_mode out_mode;
    uint64_t out_left;
    int began, ended, aborted, close, upgraded, has_date;
    struct buf headers; /* the handler's */
    struct buf out;     /* a head that was not sent yet */

    time_t date_of;
    char date[40];
    struct inbox in;
};

struct server_thread {
    struct server *server;
    struct request request;
    struct request_state state;
};

/* --- parked.c: connections and their deadlines --- */

struct connection *connection_new(struct server *s, struct conn *conn);
void connection_free(struct server *s, struct connection *c);
/* Gives the connection up until something happens on it or the time is up. */
void connection_park(struct server *s, struct connection *c, enum phase phase, deadline expires);
/* Takes it off the wheel; needs the lock. */
void connection_claim(struct connection *c);
/* Expires what is due (all of it when `everything`) and returns when to look again. Needs the
 * lock. */
deadline wheel_turn(struct server *s, int everything);
void manager_wake(struct server *s);

/* --- listen.c --- */

/* Accepts one connection. NULL when there is none, or it was refused. */
struct connection *listener_accept(struct server *s, struct listener *l);
void listener_arm(struct server *s, struct listener *l, int first);
void listener_close(struct listener *l);

/* --- server_thread.c --- */

/* Starts one more. The caller has counted it in threads and waiting. 0 or -1. */
int server_thread_start(struct server *s);
void server_thread_join_last(struct server *s);

/* --- request.c and reply.c --- */

/* Prepares for a request whose head, of head_len bytes, is at the start of state.in. */
void request_reset(struct server_thread *t, struct conn *conn, size_t head_len);
void request_id_new(struct server *s, char out[17]);
/* After the handler: completes the answer and gets rid of the body. 1: the connection may go on
 * (what follows was moved to the start of state.in), 0: it must end, -1: end it at once. */
int request_finish(struct request *r);
/* Whether the whole body has been read. */
int request_body_done(const struct request *r);
/* reply_error with a status that no code has. `details`: JSON object or NULL. */
int reply_error_as(struct request *r, int status, const struct pd_err *e, const char *details);
