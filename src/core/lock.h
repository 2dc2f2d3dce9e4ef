/* lock: the locks of core, each with its place in one order.
 *
 * A thread that holds a lock takes only locks below it. A test build (base/checks.h) knows what
 * each thread holds and aborts, with both names, where that is not so; in a release these are the
 * calls of pthread.
 *
 *   hearing        keeper_box.hearing: whoever hears what a box says, the pump or one request's
 *                  thread. Only tried where another lock is held, and kept without it
 *   sessions       sessions.lock: the tables, the queue, the pool, what is counted, and a
 *                  session's `owned`, `superseded` and `counts_for`. Never held across a call of
 *                  provider or store
 *   box            session.box_use: for reading around every call that needs the box, for writing
 *                  by whoever takes the box away or puts one in
 *   row            session.store_lock: around every write of the session's row
 *   sending        keeper_provider.sending: the socket of the link to a keeper. Held across a send
 *                  with patience, so it is above everything that the pump's callbacks take
 *   session        session.lock: everything else of a session, its list of processes too
 *   process        process.lock: everything of a process
 *   tasks          sessions.task_lock: what the recorder is to do
 *   names          sessions.name_lock: the keys and threads whose sandbox is being made
 *   snapshots      sessions.snapshot_lock: the list of snapshots, and whose copies are being made;
 *                  held across a write of the store, so that of two who delete one is told
 *   groups         keeper_box.lock: the groups of a box's commands, and what its init has told
 *   pump           pump.lock: the list of sources that are being called
 *   provider       keeper_provider.lock: the boxes, who waits for an answer, the link's state
 *
 * Below all of them are the locks of others, who never call back with theirs held: the store's,
 * metrics, log. The pump's callbacks take session and everything below it, and ask for the box only
 * if nobody is waiting for it (rw_try_read).
 *
 * A condition is waited for with its own lock held and no other. A keeper's answer alone is also
 * waited for with the box held (lock_wait_answer): the pump brings it, and waits for no box. */
#pragma once

#include "base/cond.h"

#include <stdbool.h>

enum lock_rank {
    LOCK_HEARING,
    LOCK_SESSIONS,
    LOCK_BOX,
    LOCK_ROW,
    LOCK_SENDING,
    LOCK_SESSION,
    LOCK_PROCESS,
    LOCK_TASKS,
    LOCK_NAMES,
    LOCK_SNAPSHOTS,
    LOCK_GROUPS,
    LOCK_PUMP,
    LOCK_PROVIDER,
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
void lock_note_taken(const void *l, enum lock_rank rank, bool tried);
void lock_note_released(const void *l);
/* `with_box`: the box may be held, too. */
void lock_note_wait(const void *l, bool with_box);
#else
static inline void lock_note_taken(const void *l, enum lock_rank rank, bool tried)
{
    (void)l, (void)rank, (void)tried;
}
static inline void lock_note_released(const void *l)
{
    (void)l;
}
static inline void lock_note_wait(const void *l, bool with_box)
{
    (void)l, (void)with_box;
}
#endif

static inline void lock_take(struct lock *l)
{
    lock_note_taken(l, l->rank, false);
    pthread_mutex_lock(&l->mutex);
}

/* true: it is held now; false: somebody else has it. */
static inline bool lock_try(struct lock *l)
{
    if (pthread_mutex_trylock(&l->mutex) != 0)
        return false;
    lock_note_taken(l, l->rank, true);
    return true;
}

static inline void lock_release(struct lock *l)
{
    pthread_mutex_unlock(&l->mutex);
    lock_note_released(l);
}

/* As cond_wait. */
static inline int lock_wait(pthread_cond_t *c, struct lock *l, deadline d)
{
    lock_note_wait(l, false);
    return cond_wait(c, &l->mutex, d);
}

/* The same for what the pump brings from a keeper. */
static inline int lock_wait_answer(pthread_cond_t *c, struct lock *l, deadline d)
{
    lock_note_wait(l, true);
    return cond_wait(c, &l->mutex, d);
}

static inline void rw_read(struct rw_lock *l)
{
    lock_note_taken(l, l->rank, false);
    pthread_rwlock_rdlock(&l->lock);
}

/* true: it is held for reading now; false: somebody has it for writing, or waits for that. */
static inline bool rw_try_read(struct rw_lock *l)
{
    if (pthread_rwlock_tryrdlock(&l->lock) != 0)
        return false;
    lock_note_taken(l, l->rank, true);
    return true;
}

static inline void rw_write(struct rw_lock *l)
{
    lock_note_taken(l, l->rank, false);
    pthread_rwlock_wrlock(&l->lock);
}

static inline void rw_release(struct rw_lock *l)
{
    pthread_rwlock_unlock(&l->lock);
    lock_note_released(l);
}
