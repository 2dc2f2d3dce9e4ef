/* context: an interpreter that keeps its variables, and the cells that run in it.
 *
 * A context is a name in a session. Behind it is a process, the driver of its language, or none:
 * it is started when it is needed, and another one takes its place when it has ended. Each
 * execution says whether the variables were kept.
 *
 * Executions of one context run one after the other. Whoever submits one owns it: he follows it,
 * and sees to its turn, its start and its time on the way (execution_next). One that is detached is
 * owned by a thread of the session layer. Anybody may follow an execution that is known, also one
 * of an earlier daemon: all of it is in the spools of the process (context_reader.h).
 *
 * Contexts and executions are counted. They belong to their session, which the caller holds. */
#pragma once

#include "base/lock.h"
#include "core/context_reader.h"
#include "core/session.h"

struct context;
struct context_watch;
struct execution;

#define CONTEXTS_DEFAULT 16u /* of a sandbox */
#define CONTEXT_WAITING  16u /* executions of one context, beside the one that runs */
#define CODE_MAX         (1u << 20)
#define CONTEXT_NAME_MAX 128u
#define RESULTS_MAX      (64ull << 20) /* bytes of results that one execution may tell */

struct context_request {
    const char *language; /* NULL: python */
    const char *cwd;      /* NULL: the session's */
    const char *name;     /* for people, or NULL */
    struct msg_list env;  /* NAME=VALUE, on top of the session's */
    bool any_cwd;         /* a directory that cannot be entered is no error: it starts elsewhere */
};

enum context_state {
    CONTEXT_COLD, /* there is no process: the next execution starts one */
    CONTEXT_IDLE,
    CONTEXT_BUSY,
};
const char *context_state_name(enum context_state s);

struct context_info {
    char id[EXECUTION_ID + 1];
    char language[64];
    char name[CONTEXT_NAME_MAX + 1];
    char cwd[SPEC_PATH_MAX];
    enum context_state state;
    bool is_default; /* its id is its language */
    unsigned waiting;
    uint64_t execution_count, created_ms;
    int pid; /* in the sandbox; 0: none */
    /* What its process has in memory, as its driver said last: a claim. 0: not known. */
    uint64_t memory;
};

/* Makes a context and starts its process. PD_UNSUPPORTED when the sandbox cannot run the language:
 * the message says what to install. */
int context_create(struct session *s, const struct context_request *r, struct context **ret,
                   struct pd_err *e);
/* By id; or a language's default context, which is made if need be, as `r` says (its language is
 * not looked at). PD_NOT_FOUND. */
struct context *context_find(struct session *s, const char *id, const struct context_request *r,
                             struct pd_err *e);
/* The same of a language: NULL is python. */
struct context *context_of_language(struct session *s, const struct context_request *r,
                                    struct pd_err *e);
/* All of them, oldest first, the default ones of the listed languages included. `*ret` is an array
 * of references, to be given to contexts_free. */
int contexts_list(struct session *s, const struct context_request *r, struct context ***ret,
                  unsigned *ret_count, struct pd_err *e);
void contexts_free(struct context **list, unsigned count);
struct context *context_ref(struct context *c);
void context_unref(struct context *c);
void context_get(struct context *c, struct context_info *ret);

/* Ends its process, and whatever runs or waits in it. Deleted: the name is gone, too. */
int context_delete(struct context *c, struct pd_err *e);
int context_restart(struct context *c, struct pd_err *e);
/* Interrupts the execution that runs: true if one does. One that does not heed it within 5 s is
 * killed. */
bool context_interrupt(struct context *c);

/* A context with copies of all variables, which share no more from then on. What a copy does not
 * have: other threads (refused without `force`), children, files and sockets of its own.
 * PD_CONFLICT while something runs in it; PD_UNSUPPORTED where the language cannot. */
int context_fork(struct context *c, const char *name, bool force, struct context **ret,
                 struct pd_err *e);
/* Takes back the last execution that was run with keep_before: variables are as before it. */
int context_undo(struct context *c, struct pd_err *e);

/* ---- executions ---- */

struct execution_request {
    const char *code;
    size_t code_len;
    struct msg_list env; /* for this execution alone */
    uint64_t timeout_ns; /* 0: none */
    bool detached;
    bool keep_before; /* so that it can be undone */
    const char *key;  /* Idempotency-Key or NULL */
    uint64_t key_hash;
};

/* Puts it into the line. With a key that was used before, gives the execution of the first time and
 * sets *ret_known. PD_RATE when too many wait. The caller is its owner, unless it is detached or
 * known: he begins to follow it with EXECUTION_OWNED at once. */
int execution_submit(struct context *c, const struct execution_request *r, struct execution **ret,
                     bool *ret_known, struct pd_err *e);
/* PD_NOT_FOUND. */
struct execution *execution_find(struct context *c, const char *id, struct pd_err *e);
struct execution *execution_ref(struct execution *x);
void execution_unref(struct execution *x);
const char *execution_id(const struct execution *x);

struct execution_follow {
    struct execution *execution; /* counted */
    struct context *context;     /* counted */
    bool owned, skims, has_offset, reading, is_broken, ended;
    uint64_t offset[STREAM_ALL]; /* where to begin, with has_offset */
    struct context_reader reader;
    struct watch watch;         /* of the process */
    struct context_watch *wait; /* of the context */
    /* The owner's. */
    bool is_interrupted;
    deadline again_at, kill_at;
    /* What was told: */
    unsigned stream; /* NEWS_TEXT: reader.text, so many bytes of this stream */
    size_t len;
    uint64_t results; /* bytes of them so far */
    bool had_error;
    bool truncated; /* some results were left out */
    /* NEWS_END, and NEWS_DIED before it when the process has ended under the execution. */
    bool restarted;
    char reason[16]; /* "" when there is none */
    char died[400];  /* how, in words */
};

enum { EXECUTION_OWNED = 1, EXECUTION_SKIM = 2 /* nothing but its end is wanted */ };

enum execution_news {
    NEWS_QUIET, /* the deadline has passed */
    NEWS_LEFT,  /* `other_fd` has one of `other_events`, or an error */
    NEWS_BEGUN, /* of one's own: it has its turn, and was sent */
    NEWS_TEXT,
    NEWS_EVENT, /* reader.event: start, result, error, stdout, stderr */
    NEWS_DIED,  /* once, in place of an error: `died`, `reason` */
    NEWS_END,
};

/* `offset` (or NULL: from the start): that of an earlier follower. */
int execution_follow(struct execution_follow *f, struct execution *x, struct context *c,
                     unsigned flags, const uint64_t *offset, struct pd_err *e);
/* Waits for the next news. -1: an execution of one's own could not be started, or what is to be
 * followed is not there any more. */
int execution_next(struct execution_follow *f, int other_fd, short other_events, deadline d,
                   enum execution_news *ret, struct pd_err *e);
/* An owner who has not seen the end gives it up: with `hands_over` it goes on as a detached one,
 * otherwise it is interrupted, and killed if it does not heed that. */
void execution_follow_end(struct execution_follow *f, bool hands_over);

/* ---- for the session layer ---- */

/* adopt.c's: contexts of the processes that an earlier daemon has left. */
void contexts_adopt(struct session *s);
/* pool.c's: an interpreter with these modules imported (names with commas between them), of which
 * contexts are copies from then on. Waits until they are; a module that is missing is logged and
 * left out. */
int zygote_start(struct session *s, const char *modules, struct pd_err *e);
/* session_move.c's: processes cannot be moved. */
void zygote_end(struct session *s);
/* Attendants: threads that see to executions for which no request waits (execution.c). */
struct attendants {
    struct lock lock;
    pthread_cond_t gone;
    unsigned count;
    bool stopping;
    int stop_event; /* readable from attendants_stop on */
};
int attendants_init(struct attendants *a, struct pd_err *e);
/* Asks all of them to leave, and waits until they have. */
void attendants_stop(struct attendants *a);
void attendants_done(struct attendants *a);
/* Frees the table. */
struct contexts;
void contexts_done(struct contexts *t);
