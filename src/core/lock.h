/* lock: the locks of core, each with its place in one order.
 *
 * A thread that holds a lock takes only locks below it. A test build (base/checks.h) knows what
 * each thread holds and aborts, with both names, where that is not so; in a release these are the
 * calls of pthread.
 *
 *   hearing        jail_box.hearing: whoever hears what a jail says, the pump or one request's
 *                  thread. Only tried where another lock is held, and kept without it
 *   sessions       sessions.lock: the tables, the queue, the pool, what is counted, and of a
 * session `owned`, `superseded` and `counts_for`. Never held across a call of provider or store.
 *   box            session.box_use: for reading around every call that needs the box, for writing
 *                  by whoever takes the box away or puts one in
 *   row            session.store_lock: around every write of the session's row
 *   session        session.lock: everything else of a session, its list of processes too
 *   process        process.lock: everything of a process
 *   tasks          sessions.task_lock: what the recorder is to do
 *   names          sessions.name_lock: the keys and threads whose sandbox is being made
 *   snapshots      sessions.snapshot_lock: the list of snapshots, and whose copies are being made;
 *                  held across a write of the store, so that of two who delete one is told
 *   pump           pump.lock: the list of sources that are being called
 *
 * Below all of them are the locks of others, who never call back with theirs held: a provider's
 * (its boxes and waiters), the store's, metrics, log. The pump's callbacks take session and
 * everything below it, and ask for the box only if nobody is waiting for it (rw_try_read).
 *
 * A condition is waited for with its own lock held and no other. */
#pragma once

#include "base/cond.h"

enum lock_rank {
    LOCK_HEARING,
    LOCK_SESSIONS,
    LOCK_BOX,
    LOCK_ROW,
    LOCK_SESSION,
    LOCK_PROCESS,
    LOCK_TASKS,
    LOCK_NAMES,
    LOCK_SNAPSHOTS,
    LOCK_PUMP,
    LOCK_RANK_COUNT
};

struct lock {
    pthread_mutex_t mutex;
    enum lock_rank rank;
};

struct rw_lock {
    pthread_rwlock_t lock;
    enum lock_rank rank;
};

void lock_init(struct lock *l, enum lock_rank rank);
void lock_done(struct lock *l);
void rw_init(struct rw_lock *l, enum lock_rank rank);
void rw_done(struct rw_lock *l);

#ifdef PADDOCK_CHECKS
/* Keep the list of what this thread holds. `tried`: it did not wait, so any order will do. */
void lock_note_taken(const void *l, enum lock_rank rank, int tried);
void lock_note_released(const void *l);
void lock_note_wait(const void *l);
#else
static inline void lock_note_taken(const void *l, enum lock_rank rank, int tried)
{
    (void)l, (void)rank, (void)tried;
}
static inline void lock_note_released(const void *l)
{
    (void)l;
}
static inline void lock_note_wait(const void *l)
{
    (void)l;
}
#endif

static inline void lock_take(struct lock *l)
{
    lock_note_taken(l, l->rank, 0);
    pthread_mutex_lock(&l->mutex);
}

/* 1: it is held now; 0: somebody else has it. */
static inline int lock_try(struct lock *l)
{
    if (pthread_mutex_trylock(&l->mutex) != 0)
        return 0;
    lock_note_taken(l, l->rank, 1);
    return 1;
}

static inline void lock_release(struct lock *l)
{
    pthread_mutex_unlock(&l->mutex);
    lock_note_released(l);
}

/* As cond_wait. */
static inline int lock_wait(pthread_cond_t *c, struct lock *l, deadline d)
{
    lock_note_wait(l);
    return cond_wait(c, &l->mutex, d);
}

static inline void rw_read(struct rw_lock *l)
{
    lock_note_taken(l, l->rank, 0);
    pthread_rwlock_rdlock(&l->lock);
}

/* 1: it is held for reading now; 0: somebody has it for writing, or waits for that. */
static inline int rw_try_read(struct rw_lock *l)
{
    if (pthread_rwlock_tryrdlock(&l->lock) != 0)
        return 0;
    lock_note_taken(l, l->rank, 1);
    return 1;
}

static inline void rw_write(struct rw_lock *l)
{
    lock_note_taken(l, l->rank, 0);
    pthread_rwlock_wrlock(&l->lock);
}

static inline void rw_release(struct rw_lock *l)
{
    pthread_rwlock_unlock(&l->lock);
    lock_note_released(l);
}
