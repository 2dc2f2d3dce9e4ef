/* lock: every lock of the server and the library, each with its place in one order.
 *
 * A thread that holds a lock takes only locks below it. A test build (base/checks.h) knows what
 * each thread holds and aborts, with both names, where that is not so; in a release these are the
 * calls of pthread.
 *
 * The doors (api, net):
 *   mcp            mcp.lock: MCP's requests that are running, and which of its sessions have ended
 *   watchers       watchers.lock: the list of watchers, and how many use each
 *   shares         shares.lock: how many requests each party has under way
 *   listener       listener.lock: a listening socket, which may be closed while a thread is about
 *                  to accept
 *   server         server.lock: threads, connections and the wheel of parked ones; never held
 *                  across a handler
 *
 *   templates      templates.lock: the list of builds, and which of them are under way; held across
 *                  a write of the store
 *
 * Core and its providers:
 *   contexts       contexts.lock: the code contexts of a session, their lines and executions
 *   attendants     attendants.lock: how many threads see to executions
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
 *   tasks          recorder.lock: what the recorder of one provider is to do
 *   changes        changes.lock: news of sandboxes, and who watches for them
 *   shadows        shadows.lock: commands that are to be run a second time
 *   names          sessions.name_lock: the keys and threads whose sandbox is being made
 *   snapshots      sessions.snapshot_lock: the list of snapshots, and whose copies are being made;
 *                  held across a write of the store, so that of two who delete one is told
 *   groups         keeper_box.lock: the groups of a box's commands, and what its init has told
 *   pump           pump.lock: the list of sources that are being called
 *   provider       keeper_provider.lock: the boxes, who waits for an answer, the link's state
 *   egress         egress.lock: the rules of sandboxes and the link to the gate; held across a send
 *                  with patience, and by nobody who has another
 *
 * What anybody may call, and what never calls back with its lock held:
 *   keeper         keeper_process.lock: the keeper that the library has started
 *   rules_file     router.writer: the file of the router's rules
 *   rules          router.lock: its rules, breakers and arms
 *   logins         logins.lock: who is logged in at the console, and its one-use codes
 *   links          links.lock: the preview links that were made
 *   tickets        tickets.lock: addresses that give out a file once
 *   permits        files.lock: addresses that files of a build may be sent to once
 *   vault          vault.lock: a tenant's secrets, from reading them to writing them
 *   key_look       auth.look_lock: reading and writing keys in the store
 *   keys           auth.lock: the table of keys
 *   quota          quota.lock: the rates of tenants
 *   store          db.lock: the connection to the database, and its statements
 *   flush          db.flush_lock: what the checkpointer is to do
 *   audit          audit.lock: the file of the audit log
 *   open           the libraries that a process has open; held across fork(2)
 *
 * The pump's callbacks take session and everything below it, and ask for the box only if nobody is
 * waiting for it (rw_try_read).
 *
 * A condition is waited for with its own lock held and no other. A keeper's answer alone is also
 * waited for with the box held (lock_wait_answer): the pump brings it, and waits for no box.
 *
 * Two things look like locks and have no place here. watcher.lock (api/e2b_watchers.h) is a turn:
 * one request at a time asks a worker, with patience, and waits for its answer. The bridge of
 * `paddock mcp` (client/mcp.c) is a program of its own, and never holds its two locks at once. */
#pragma once

#include "base/cond.h"

#include <stdbool.h>

enum lock_rank {
    LOCK_MCP,
    LOCK_WATCHERS,
    LOCK_SHARES,
    LOCK_LISTENER,
    LOCK_SERVER,
    LOCK_TEMPLATES,
    LOCK_CONTEXTS,
    LOCK_ATTENDANTS,
    LOCK_HEARING,
    LOCK_SESSIONS,
    LOCK_BOX,
    LOCK_ROW,
    LOCK_SENDING,
    LOCK_SESSION,
    LOCK_PROCESS,
    LOCK_TASKS,
    LOCK_CHANGES,
    LOCK_SHADOWS,
    LOCK_NAMES,
    LOCK_SNAPSHOTS,
    LOCK_GROUPS,
    LOCK_PUMP,
    LOCK_PROVIDER,
    LOCK_EGRESS,
    LOCK_KEEPER,
    LOCK_RULES_FILE,
    LOCK_RULES,
    LOCK_LOGINS,
    LOCK_LINKS,
    LOCK_TICKETS,
    LOCK_PERMITS,
    LOCK_VAULT,
    LOCK_KEY_LOOK,
    LOCK_KEYS,
    LOCK_QUOTA,
    LOCK_STORE,
    LOCK_FLUSH,
    LOCK_AUDIT,
    LOCK_OPEN,
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

/* For one that is static. */
#define LOCK_INIT(of_rank)                                                                         \
    {                                                                                              \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .rank = (of_rank)                                      \
    }

void lock_init(struct lock *l, enum lock_rank rank);
void lock_done(struct lock *l);
/* `how`: as pthread_rwlock_init; NULL: as usual. */
void rw_init(struct rw_lock *l, enum lock_rank rank, const pthread_rwlockattr_t *how);
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
