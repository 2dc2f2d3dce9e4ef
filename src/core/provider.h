/* provider: how a sandbox is made and talked to, whatever it is made of.
 *
 * A provider answers for `struct box`es. Commands run asynchronously: exec returns when the request
 * is on its way, and what becomes of it is told by events, on the pump's thread. Descriptors are
 * the caller's until a call succeeds; what crosses into the sandbox is duplicated by the kernel.
 *
 * After a restart of the daemon a box is found again by its id (adopt), with the commands in it. */
#pragma once

#include "base/clock.h"
#include "wire/msg.h"

struct pd_err;
struct pump;
struct box;

enum provider_can {
    PROVIDER_PAUSE = 1,
    PROVIDER_TERMINAL = 2,
    PROVIDER_FILES = 4,
    PROVIDER_PORTS = 8,
    PROVIDER_ADOPT = 16,    /* boxes outlive the daemon */
    PROVIDER_STASH = 32,    /* descriptors do, too */
    PROVIDER_SNAPSHOT = 64, /* named roots can be copied */
};

/* Called on the pump's thread; must not block and must not call back into the provider, except
 * `forget`, and `signal` with deadline 0. `owner` is what was given to create or adopt. */
struct box_events {
    void (*started)(void *owner, struct wire_id command, int pid);
    void (*exited)(void *owner, struct wire_id command, const struct msg_exited *end);
    void (*refused)(void *owner, struct wire_id command, const struct pd_err *why);
    void (*lost)(void *owner, const struct pd_err *why);
    /* The answer to a sync that nobody waits for is complete. */
    void (*synced)(void *owner);
};

#define GROUP_MISSING 2

/* Flags of a command besides those of wire/msg.h. */
struct box_command {
    struct wire_id id;
    struct msg_exec exec;
    int fds[4];     /* stdin, stdout, stderr, and descriptor 3 or -1 */
    unsigned flags; /* EXEC_PTY, EXEC_WORKER, EXEC_REACH, EXEC_QUIET */
    /* Number of the cgroup that it gets, from 1. One command at a time has it; the next may when
     * group_is_empty. 0: none. */
    unsigned group;
};

struct box_usage {
    uint64_t memory, memory_peak, cpu_usec, pids, oom_kills, pids_refused;
    /* Bytes of the root's file system: what is used and what there may be. 0: unknown. */
    uint64_t disk_used, disk_total;
};

struct provider {
    const char *name;
    unsigned can;
    void *state;
    const struct box_events *events;

    int (*create)(struct provider *p, struct wire_id id, const struct spec *s, void *owner,
                  struct box **ret, deadline d, struct pd_err *e);
    /* PD_NOT_FOUND when there is no such box any more. Events come from the first sync on. */
    int (*adopt)(struct provider *p, struct wire_id id, void *owner, struct box **ret,
                 struct pd_err *e);
    /* Ends every box that exists and was neither created nor adopted by this daemon. */
    void (*end_strangers)(struct provider *p);
    /* Ends the box with all its processes and frees it, whatever the outcome. `root_name`: the root
     * to be deleted after it, or NULL. */
    int (*destroy)(struct box *b, const char *root_name, struct box_usage *ret, deadline d,
                   struct pd_err *e);
    /* Deletes a root that no box uses. */
    int (*remove_root)(struct provider *p, const char *root_name, struct pd_err *e);
    /* Before the last box that uses the root is destroyed: it is to outlive keepers and reboots,
     * for a box that is made later (which ends this). Without it, a keeper that starts deletes the
     * root as a leftover, if its name begins as those of sandboxes do. NULL: not needed here. */
    int (*keep_root)(struct provider *p, const char *root_name, deadline d, struct pd_err *e);
    /* Makes root `to`, a copy of root `from`, complete or not at all. `b`: the box that uses
     * `from`, whose processes stand still meanwhile and go on whatever the outcome (unless it was
     * paused before), or NULL when none does. PD_NOT_FOUND: there is no `from`. PD_CONFLICT:
     * another box uses `from`, or `to` exists. PD_NO_SPACE: the host's disk is full. At the
     * deadline the copy is given up and PD_TIMEOUT. Not for the pump's thread. NULL without
     * PROVIDER_SNAPSHOT. */
    int (*copy_root)(struct provider *p, struct box *b, const char *from, const char *to,
                     deadline d, struct pd_err *e);

    int (*exec)(struct box *b, const struct box_command *c, struct pd_err *e);
    /* To the command's first process. Waits until the deadline for a box that is slow to read;
     * deadline 0: does not wait. */
    int (*signal)(struct box *b, struct wire_id command, int signal, deadline d, struct pd_err *e);
    /* SIGKILL to the command's whole tree, and to nothing else. Returns when it was sent to all of
     * them; their end is told by events. Not for the pump's thread. */
    int (*kill)(struct box *b, struct wire_id command, unsigned group, struct pd_err *e);
    /* The end of the command is stored: the provider may forget it. */
    void (*forget)(struct box *b, struct wire_id command);
    /* Is nothing left in the group, so that another command may have its number? GROUP_MISSING when
     * no command ever had it. */
    int (*group_is_empty)(struct box *b, unsigned group);
    /* Tells the state of every command again, by `started` and `exited`. Deadline 0: does not wait,
     * `synced` comes at the end. */
    int (*sync)(struct box *b, deadline d, struct pd_err *e);
    int (*terminal)(struct box *b, int *ret_master, int *ret_slave, struct pd_err *e);
    int (*pause)(struct box *b, int paused, deadline d, struct pd_err *e);
    enum rung (*rung)(const struct box *b);
    int (*usage)(struct box *b, struct box_usage *ret, struct pd_err *e);

    /* Descriptors that outlive the daemon, by key. */
    int (*stash)(struct provider *p, const char *key, const int *fds, unsigned count,
                 struct pd_err *e);
    int (*fetch)(struct provider *p, const char *key, int *ret_fds, unsigned max,
                 unsigned *ret_count, deadline d, struct pd_err *e);
    void (*drop)(struct provider *p, const char *key);

    /* Is it well? Otherwise the error says what is wrong. */
    int (*health)(struct provider *p, struct pd_err *e);
    void (*free)(struct provider *p);
};
