/* How the order of locks is proved: in a test build each thread has a list of what it holds. A lock
 * that is not below all of them, or a wait with another lock held, is a deadlock that only needs
 * the right moment: the program says which two locks it is, and aborts. */
#include "base/lock.h"

#include "base/banned.h"
#include "base/checks.h"

#include <unistd.h>

void lock_init(struct lock *l, enum lock_rank rank)
{
    pthread_mutex_init(&l->mutex, NULL);
    l->rank = rank;
}

void lock_done(struct lock *l)
{
    pthread_mutex_destroy(&l->mutex);
}

void rw_init(struct rw_lock *l, enum lock_rank rank, const pthread_rwlockattr_t *how)
{
    pthread_rwlock_init(&l->lock, how);
    l->rank = rank;
}

void rw_done(struct rw_lock *l)
{
    pthread_rwlock_destroy(&l->lock);
}

#ifdef PADDOCK_CHECKS

#define HELD_MAX 16u

static const char *const names[LOCK_RANK_COUNT] = {
    [LOCK_MCP] = "mcp",           [LOCK_WATCHERS] = "watchers",
    [LOCK_SHARES] = "shares",     [LOCK_LISTENER] = "listener",
    [LOCK_SERVER] = "server",     [LOCK_TEMPLATES] = "templates",
    [LOCK_CONTEXTS] = "contexts", [LOCK_ATTENDANTS] = "attendants",
    [LOCK_HEARING] = "hearing",   [LOCK_SESSIONS] = "sessions",
    [LOCK_BOX] = "box",           [LOCK_ROW] = "row",
    [LOCK_SENDING] = "sending",   [LOCK_SESSION] = "session",
    [LOCK_PROCESS] = "process",   [LOCK_TASKS] = "tasks",
    [LOCK_CHANGES] = "changes",   [LOCK_SHADOWS] = "shadows",
    [LOCK_NAMES] = "names",       [LOCK_SNAPSHOTS] = "snapshots",
    [LOCK_GROUPS] = "groups",     [LOCK_PUMP] = "pump",
    [LOCK_PROVIDER] = "provider", [LOCK_EGRESS] = "egress",
    [LOCK_KEEPER] = "keeper",     [LOCK_RULES_FILE] = "rules_file",
    [LOCK_RULES] = "rules",       [LOCK_LOGINS] = "logins",
    [LOCK_LINKS] = "links",       [LOCK_TICKETS] = "tickets",
    [LOCK_PERMITS] = "permits",   [LOCK_VAULT] = "vault",
    [LOCK_KEY_LOOK] = "key_look", [LOCK_KEYS] = "keys",
    [LOCK_QUOTA] = "quota",       [LOCK_STORE] = "store",
    [LOCK_FLUSH] = "flush",       [LOCK_AUDIT] = "audit",
    [LOCK_OPEN] = "open",
};

static _Thread_local struct {
    const void *lock;
    enum lock_rank rank;
} held[HELD_MAX];
static _Thread_local unsigned held_count;

static void refuse(const char *what, enum lock_rank rank, enum lock_rank other)
{
    dprintf(STDERR_FILENO, "lock.order what=%s lock=%s holding=%s\n", what, names[rank],
            names[other]);
    checks_failed();
}

void lock_note_taken(const void *l, enum lock_rank rank, bool tried)
{
    for (unsigned i = 0; i < held_count && !tried; i++)
        if (held[i].rank >= rank)
            refuse("taken", rank, held[i].rank);
    if (held_count == HELD_MAX)
        refuse("too_many", rank, rank);

    held[held_count].lock = l;
    held[held_count++].rank = rank;
}

void lock_note_released(const void *l)
{
    unsigned i = held_count;
    while (i && held[i - 1].lock != l)
        i--;
    if (!i) { /* another thread has it */
        dprintf(STDERR_FILENO, "lock.order what=released error=not_held\n");
        checks_failed();
        return;
    }

    for (held_count--; i <= held_count; i++)
        held[i - 1] = held[i];
}

void lock_note_wait(const void *l, bool with_box)
{
    enum lock_rank rank = LOCK_RANK_COUNT;
    for (unsigned i = 0; i < held_count; i++)
        if (held[i].lock == l)
            rank = held[i].rank;

    for (unsigned i = 0; i < held_count; i++)
        if (held[i].lock != l && !(with_box && held[i].rank == LOCK_BOX))
            refuse("waits", rank == LOCK_RANK_COUNT ? held[i].rank : rank, held[i].rank);
}

#endif
