/* reserve: what a creation must leave for the sandboxes that run.
 *
 * Commands need descriptors, threads, memory and disk of the daemon and of the machine. A creation
 * that would take the last of them is refused with PD_CAPACITY, which clients are told to repeat;
 * the text says what is short and what helps. So a full server goes on to serve what it has.
 *
 * Descriptors are counted at each creation, with those that creations in progress are about to take
 * and the one that each sandbox takes with its first command. What the machine has is looked at
 * five times a second at most.
 *
 * Safe from any thread; no call waits. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct pd_err;

struct reserve {
    int any;         /* an open descriptor, to count by */
    const char *dir; /* on the file system that must have room; or NULL */
    atomic_uint making;
    atomic_uint promised; /* sandboxes that have not run a command yet */
    _Atomic uint64_t looked_at;
    const char *_Atomic shortage; /* what the machine lacked when it was looked at, or NULL */
};

void reserve_init(struct reserve *r);
void reserve_done(struct reserve *r);
/* The disk that must have room is that of `dir`, which must outlive it. Before the first creation.
 */
void reserve_watch_disk(struct reserve *r, const char *dir);

/* May one sandbox more be made? After success reserve_leave is due,
 * when it is made or has failed. */
int reserve_enter(struct reserve *r, struct pd_err *e);
void reserve_leave(struct reserve *r);

/* Figures of the machine when it was looked at. Zeros: unknown, and never short. */
struct reserve_figures {
    uint64_t threads, pid_max; /* that exist, that may exist */
    uint64_t memory_left, memory;
    uint64_t disk_left, disk;
};

/* Says what is too short for another sandbox, and what helps; NULL when nothing is. */
const char *reserve_shortage(const struct reserve_figures *f);

/* A sandbox that will want a descriptor for its first command, and one that has it or is gone. */
void reserve_promise(struct reserve *r);
void reserve_keep_promise(struct reserve *r);

/* Are more descriptors free than running sandboxes are sure to need? For those that only save time.
 */
bool reserve_has_plenty(const struct reserve *r);
