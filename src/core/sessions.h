/* sessions: all of them; who may have one, the queue, the warm pool and the controllers. */
#pragma once

#include "core/provider.h"
#include "core/session.h"
#include "core/slowest.h"

struct buf;
struct pump;
struct decision;
struct router;
struct store;
struct metrics;
struct audit;
struct egress;
struct gate_record;

#define SNAPSHOTS_DEFAULT 100u
#define CODE_TEMPLATE     "code-interpreter-v1" /* whose sandboxes come from the pool for code */

struct sessions_config {
    const char *state_dir;                  /* spools are below it */
    const struct provider_table *providers; /* at least one; the first is the default */
    struct router *router;                  /* or NULL: without any rule */
    struct store *store;
    struct pump *pump;
    struct audit *audit;   /* or NULL */
    struct egress *egress; /* or NULL: no sandbox has a way out */
    struct vault *vault;   /* NULL: nobody has secrets */
    const char *trust;     /* a file of authorities besides the system's, or NULL */
    unsigned max_sessions; /* in all; more wait in the queue */
    unsigned max_per_tenant;
    unsigned queue_max;
    uint64_t queue_timeout_ms;
    unsigned pool_min, pool_max; /* warm sandboxes kept ready, per template */
    /* The same for images: how many of each kind, in all, and how long after the last use. */
    unsigned image_pool, image_pool_max;
    uint64_t image_pool_ttl_ms;
    bool images_always_pulled;
    enum image_pull image_pull; /* what is usual; NEVER (or nothing): whatever a request says */
    uint64_t image_store_max;   /* bytes; 0: any */
    bool (*image_allowed)(void *arg, const char *image); /* may anybody have it? NULL: yes */
    void *image_allowed_arg;
    uint64_t idle_timeout_ms, max_life_ms;
    uint64_t gone_kept_ms;  /* how long one that is gone is remembered */
    struct limits limits;   /* of a session that asks for no others: those are kept warm */
    bool disk_roots;        /* roots in the store; false: in memory */
    bool prepare_shells;    /* the shell of a session's next line is started in advance */
    unsigned max_snapshots; /* of a tenant; 0: SNAPSHOTS_DEFAULT */
    unsigned contexts_max;  /* code contexts of a sandbox; 0: CONTEXTS_DEFAULT */
    /* Sandboxes kept ready with an interpreter that has these modules imported, with commas between
     * them; read while the sessions live. */
    unsigned contexts_warm_pool;
    const char *contexts_warm;
    uint64_t kept_per_sandbox, kept_per_tenant, kept_in_all; /* bytes of output; 0: kept.h's */
};

struct sessions *sessions_new(const struct sessions_config *c, struct pd_err *e);
/* Takes up what an earlier daemon left: adopts, ends strangers, sweeps spools. */
int sessions_adopt(struct sessions *all, struct pd_err *e);
/* Starts the controllers, one for each provider, and the pool. */
int sessions_start(struct sessions *all, struct pd_err *e);
/* Stops them; the sandboxes stay. */
void sessions_stop(struct sessions *all);
/* Frees all memory. Call after sessions_stop, with every sandbox ended, nobody holding a session or
 * process, and before the pump and the provider are freed. A server, whose process ends, need not.
 */
void sessions_free(struct sessions *all);
/* New limits, from a reloaded configuration. */
void sessions_reconfigure(struct sessions *all, const struct sessions_config *c);

/* Asks for the end of those that are being made, and does not wait: their makers fail soon. */
void sessions_cancel_all(struct sessions *all, const char *reason);
/* Ends every sandbox, for a server that is to leave nothing behind. */
void sessions_end_all(struct sessions *all, const char *reason);

/* Which provider a request would get, and why; `steps` (or NULL) gets a line about each step. Fails
 * as route_decide (router/decide.h). */
int sessions_explain(struct sessions *all, const struct session_request *r, struct decision *ret,
                     struct buf *steps, struct pd_err *e);

/* The answer to whoever created a session has gone out: now the pool may hear of it, whose threads
 * would have been in its way. Without this call it does within a second. */
void sessions_answered(struct sessions *all);

struct queue_place {
    unsigned position; /* 0: it did not wait */
    uint64_t waited_ms;
};
/* Makes a session, waiting in the queue if it must. PD_CAPACITY when the queue is full or the time
 * is over. *ret_known: the key was used before. */
int sessions_create(struct sessions *all, const struct session_request *r, struct session **ret,
                    bool *ret_known, struct queue_place *ret_place, struct pd_err *e);
/* The session of (tenant, user_id, thread_id), or a new one (*ret_created). One that is gone fails
 * with PD_SESSION_LOST or PD_SESSION_EXPIRED, unless auto_retry. */
int sessions_get_or_create(struct sessions *all, const struct session_request *r,
                           struct session **ret, bool *ret_created, struct queue_place *ret_place,
                           struct pd_err *e);
/* What the gate tells of a sandbox: written to the audit log. */
void sessions_note_egress(struct sessions *all, const char *sandbox, const struct gate_record *r);
/* PD_NOT_FOUND for an unknown one and for one of another tenant. One that is gone is found as long
 * as it is remembered; calls on it fail with PD_SESSION_*. */
struct session *sessions_find(struct sessions *all, const char *tenant, const char *id,
                              struct pd_err *e);
/* Of any tenant: for who brings a token that is the sandbox's own. */
struct session *sessions_find_any(struct sessions *all, const char *id, struct pd_err *e);
/* Everybody's that are neither pooled nor gone, in no order: calls `each` with a held session, and
 * without any lock; stops when it returns non-zero. */
void sessions_each(struct sessions *all, int (*each)(struct session *s, void *arg), void *arg);
struct session *sessions_find_thread(struct sessions *all, const char *tenant, const char *user_id,
                                     const char *thread_id, struct pd_err *e);

/* Its user and thread are free for another session: whoever deleted it knows that it is gone. */
void session_forget_thread(struct session *s);

struct session_filter {
    const char *tenant;
    const char *user_id, *thread_id; /* or NULL */
    int states;                      /* bit per state; 0: all but gone */
    const char *metadata_key[8], *metadata_value[8];
    unsigned metadata_count;
    const char *template_name; /* or NULL */
    uint64_t after_ms;         /* created at or after; 0: any */
    /* Words, all of which are somewhere in its id, state, user, thread, template, image, provider
     * or metadata, whatever their case; or NULL. */
    const char *words;
    bool newest_first;
    const char *cursor; /* or NULL; of a list in the same order */
    unsigned limit;
    size_t *ret_total; /* or NULL: how many fit on all pages together */
};
/* Up to `limit` sessions, oldest first unless told. *ret_next: the cursor for the rest ("" when
 * there is none), which stays valid whatever is made or ended meanwhile. */
int sessions_list(struct sessions *all, const struct session_filter *f, struct session **ret,
                  unsigned *ret_count, char ret_next[64], struct pd_err *e);

struct sessions_stats {
    unsigned by_state[SESSION_STATE_COUNT];
    /* The same by the place of the provider in the table; the last one is for sessions whose
     * provider is not configured. */
    unsigned by_provider[PROVIDERS_MAX + 1][SESSION_STATE_COUNT];
    unsigned pool_code_ready; /* of pool_ready: those with an interpreter */
    unsigned queued, pool_ready, pool_filling, running; /* commands that run */
    uint64_t created, create_failed, pool_hits, pool_misses, pool_dropped, reused, auto_retried,
        queue_refused;
    uint64_t ended[END_COUNT];
    uint64_t output_kept, outputs_forgotten; /* bytes; how often */
    struct slowest slowest;                  /* creations, without their wait for room */
    unsigned boxes;                          /* of the provider, when they were last counted */
    uint64_t images_pulled, image_pulls_failed, image_bytes;
    uint64_t box_mismatches; /* times that they were not the boxes of the sandboxes */
};
void sessions_get_stats(struct sessions *all, struct sessions_stats *ret);
/* How many sandboxes a tenant has. */
void sessions_count_tenant(struct sessions *all, const char *tenant,
                           unsigned ret[SESSION_STATE_COUNT]);
/* How many sandboxes of a provider are kept ready, and are being made for that. */
void sessions_count_pool(struct sessions *all, const struct provider *p, unsigned *ret_ready,
                         unsigned *ret_filling);
