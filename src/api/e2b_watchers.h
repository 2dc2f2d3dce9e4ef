/* e2b_watchers: watches that live on between requests, for clients that ask from time to time what
 * has changed.
 *
 * Each is a worker in its sandbox (`watch` with the letter p, docs/workers.md) that keeps the
 * events until they are asked for: here there is no more than its pipes. They belong to the sandbox
 * that made them, are bounded in number, and end with the sandbox, by being removed, or when nobody
 * has asked for an hour. They are not stored: after a restart of the server their ids are unknown.
 *
 * Any thread may call any function here. */
#pragma once

#include "access/ids.h"
#include "api/worker_request.h"

#include <pthread.h>

#define WATCHERS_PER_SANDBOX 64u
#define WATCHERS_PER_TENANT  256u

struct watcher {
    char id[ID_SANDBOX_LEN + 1]; /* of the same form as a sandbox's */
    pthread_mutex_t lock;        /* of what follows: one asker at a time */
    struct worker_run run;       /* begun by the maker */
    char *root;                  /* as the worker tells it */
    unsigned owed;               /* marks that were asked for and have not come yet */
    bool lost;                   /* events were; to be told */
    /* of the table alone */
    char sandbox[SESSION_ID_LEN + 1], tenant[64];
    unsigned refs;
    bool is_listed;
    uint64_t used_ns;
    struct watcher *next;
};

struct watchers *watchers_new(struct pd_err *e);
/* Ends all of them; nobody may hold one. NULL is fine. */
void watchers_free(struct watchers *all);

/* A new one, held, without a worker yet. PD_CAPACITY when there are too many. */
struct watcher *watchers_add(struct watchers *all, const char *tenant, const char *sandbox,
                             struct pd_err *e);
/* The sandbox's watcher of this id, held; PD_NOT_FOUND also for another sandbox's. */
struct watcher *watchers_find(struct watchers *all, const char *sandbox, const char *id,
                              struct pd_err *e);
/* Takes it from the table; again is fine. Its worker ends when nobody holds it any more. */
void watchers_remove(struct watchers *all, struct watcher *w);
void watchers_release(struct watchers *all, struct watcher *w);
