/* templates_in: what the files of this directory share. */
#pragma once

#include "base/lock.h"
#include "build/files.h"
#include "build/log.h"
#include "build/templates.h"
#include "core/sessions.h"
#include "core/snapshots.h"

#include <pthread.h>
#include <stdatomic.h>

/* One that is known; under the lock of all. */
struct build {
    struct build *next;
    struct build_info info;
    char *settings;  /* of one that is ready: JSON */
    struct job *job; /* while it is under way */
};

/* One that is under way. Its thread owns it; `build` and `cancelled` are under the lock. */
struct job {
    struct job *next;
    struct templates *all;
    struct build_info info; /* as it was when it began */
    struct build_plan *plan;
    bool running; /* it has a thread */
    atomic_bool cancelled;
    int wake;     /* an eventfd: readable once it is cancelled */
    char why[80]; /* it was cancelled */

    /* The thread's own, from here on. */
    deadline until;
    struct build_log log;
    struct build_context context;
    struct session *session;
    char step[24];
    char layer[SESSION_ID_LEN + 1]; /* the last one that was made or taken */
    uint64_t size;
    char provider[32];
};

/* Layers that somebody is deleting; on his stack, in the list under the lock. */
struct sweeping {
    struct sweeping *next;
    const struct snapshot_info *layers;
    unsigned count;
};

struct templates {
    struct templates_config c;
    int dir; /* builds/ */
    struct lock lock;
    pthread_cond_t idle;  /* a job has ended */
    struct build *builds; /* the newest first */
    struct job *jobs;     /* the oldest first */
    struct sweeping *sweeping;
    unsigned threads; /* of jobs */
    bool stopping;
    struct files *files;
};

/* rows.c; all with the lock held. */
/* The next line of a list of tags: its length, 0 at the end. */
size_t tag_next(const char **at);
void tag_remove(struct build_info *i, const char *tag);
int tag_add(struct build_info *i, const char *tag, struct pd_err *e);
int build_put(struct templates *t, const struct build *b, struct pd_err *e);
void build_put_or_log(struct templates *t, const struct build *b);
void build_free(struct build *b);
/* Takes it out of the list, and its row and log away. What it has left is swept later. */
void build_forget(struct templates *t, struct build *b);

/* templates.c. With the lock held, but for sweeping. */
struct build *build_find_in(struct templates *t, const char *tenant, const char *id_or_name,
                            const char *build, struct pd_err *e);
/* Forgets older builds of this template that nothing leads to. */
void templates_prune(struct templates *t, const struct build *newest);
/* Deletes layers that no build needs, but for so many of the youngest. */
void templates_sweep(struct templates *t, const char *tenant, unsigned keep);
/* Is somebody deleting the layer? With the lock held. */
bool templates_is_going(const struct templates *t, const char *layer);

/* jobs.c: ends it, now or soon; with the lock held. */
void job_end(struct templates *t, struct job *j, const char *why);
/* The same for one whose build is forgotten. */
void job_forget(struct templates *t, struct job *j, const char *why);

/* build.c: does it; returns 0, or -1 with the error, and job->step. */
int job_run(struct job *j, struct pd_err *e);
/* The settings of one that is ready. */
int job_settings(const struct job *j, struct buf *out);
