/* cgroup: limits, killing and freezing, on every cgroup layout there is.
 *
 *   v2      one tree does everything
 *   hybrid  limits in the v1 trees of memory, pids and cpu; kill, freeze and "populated" in the
 *           v2 tree, although it has none of these controllers
 *   v1      no v2 tree at all: freezer for pausing, kill by walking cgroup.procs while frozen
 *   none    nothing may be written: rlimits have to do (the caller says so to its user)
 *
 * A keeper owns one directory `paddock-<instance>` in every tree it uses; each jail is a directory
 * below it, and each command a directory below the jail's in the v2 tree. */
#pragma once

#include "wire/spec.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pd_err;

enum cgroup_layout { CGROUP_NONE, CGROUP_V1, CGROUP_HYBRID, CGROUP_V2 };

/* The trees that a jail may be in. On v2 only CGROUP_TREE_UNIFIED is used. */
enum cgroup_tree {
    CGROUP_TREE_UNIFIED,
    CGROUP_TREE_MEMORY,
    CGROUP_TREE_PIDS,
    CGROUP_TREE_CPU,
    CGROUP_TREE_FREEZER,
    CGROUP_TREE_COUNT
};

/* Where a keeper without privilege steps aside to on v2: a group with processes of its own may not
 * pass controllers on. Does not match `paddock-*`, so that nobody takes it for a leftover. */
#define CGROUP_LEAF "paddock.keeper"

/* v1 counts socket buffers apart from other memory, and limits them here. */
#define CGROUP_SOCKETS_FILE "memory.kmem.tcp.limit_in_bytes"

/* The trees that cgroup_detect found. Paths are directories in which `paddock-*` may be made; "" =
 * unused. In the hybrid layout a controller without a path is in the v2 tree; two v1 controllers
 * mounted together have the same path. */
struct cgroup_mounts {
    enum cgroup_layout layout;
    char path[CGROUP_TREE_COUNT][256];
    char why[160]; /* as in struct cgroup_host, in words for the user */
};

/* Pure: finds the trees from the text of /proc/self/mountinfo and /proc/self/cgroup. On v1 trees
 * the directory is the mount point itself; on v2 too. Never fails: the worst answer is NONE. */
void cgroup_detect(const char *mountinfo, const char *self_cgroup, struct cgroup_mounts *ret);
/* Pure: the same for a process that may not write the mount's own directory: on v2 the process's
 * own group, in case it was delegated to it; on the other layouts NONE. */
void cgroup_detect_own(const char *mountinfo, const char *self_cgroup, struct cgroup_mounts *ret);
/* The same for this process, and checks that the directories can be written and, on v2, that their
 * controllers can be passed on (which it does: that has no effect on anybody's limits). */
void cgroup_probe(struct cgroup_mounts *ret);
/* The same for those in a hurry, who call cgroup_host_open next: looks at the usual places first
 * and leaves the trying to it. */
void cgroup_find(struct cgroup_mounts *ret);
/* Pure: says in `why` what keeps socket buffers out of the limits: `cmdline` (the kernel's) may
 * forbid to count them, and a v1 tree (`has_file`: it has CGROUP_SOCKETS_FILE) may be unable to.
 * "" when they are limited. */
void cgroup_check_sockets(int v2, int has_file, const char *cmdline, char why[160]);
const char *cgroup_layout_name(enum cgroup_layout l);

/* One keeper's directories, by descriptor: usable after the mount namespace has changed. */
struct cgroup_host {
    enum cgroup_layout layout;
    char instance[40];             /* directory name: "paddock-" + instance id */
    int parent[CGROUP_TREE_COUNT]; /* O_PATH of the mount's directory, or -1 */
    int dir[CGROUP_TREE_COUNT];    /* O_PATH of paddock-<instance>, or -1 */
    /* Which tree really has the controller: its own, or one that it shares (v2: always UNIFIED).
     * Of CGROUP_TREE_FREEZER: the tree for kill, freeze and commands. */
    unsigned char home[CGROUP_TREE_COUNT];
    char why[160]; /* of CGROUP_NONE: what is missing; else which memory has no limit, or "" */
    uid_t owner;   /* jails' directories of the tree for commands are handed to this uid; 0: not */
};

/* Makes the keeper's directories and, on v2, enables memory, pids and cpu for their children. When
 * that is not possible *h says CGROUP_NONE with the reason, and 0 is returned: it is no failure.
 * Then creating, limiting, entering and removing jails do nothing and succeed; the rest is refused
 * with -EOPNOTSUPP. -1 is for a bad instance id (at most 31 of [A-Za-z0-9._-]) and for a lack of
 * memory or descriptors; *h is then closed. */
int cgroup_host_open(struct cgroup_host *h, const struct cgroup_mounts *m, const char *instance,
                     struct pd_err *e);
/* Removes the keeper's directories (jails must be gone) and closes the descriptors. */
void cgroup_host_remove(struct cgroup_host *h);
void cgroup_host_done(struct cgroup_host *h); /* closes only */

/* One jail, ready to be entered. Writing to a cgroup.procs makes the kernel wait for an RCU grace
 * period, 5 to 15 ms, unless somebody just did the same; so v1 groups are entered through `tasks`,
 * which moves a single thread and needs no such wait (since 5.5), and a v2 group by being born in
 * it (CLONE_INTO_CGROUP). */
struct cgroup {
    char name[40];
    int tasks[CGROUP_TREE_COUNT]; /* v1: open `tasks`, or -1 */
    int unified;                  /* v2: the directory (O_PATH) for CLONE_INTO_CGROUP, or -1 */
};

#define CGROUP_EMPTY ((struct cgroup){.tasks = {-1, -1, -1, -1, -1}, .unified = -1})

/* Two calls per tree. On failure nothing is left; a name that is in use is PD_CONFLICT. */
int cgroup_create(const struct cgroup_host *h, const char *name, struct cgroup *ret,
                  struct pd_err *e);
void cgroup_close(struct cgroup *c); /* closes the descriptors; the directories stay */
/* Sets memory (on v1 socket buffers get a quarter of it besides), pids and cpu; each that is 0 is
 * left as it is. May be called again, in both directions. On failure some of them may have been
 * set. */
int cgroup_limit(const struct cgroup_host *h, const char *name, const struct limits *l,
                 struct pd_err *e);
/* Moves the calling process, which has one thread, into the jail's groups; `born`: it was cloned
 * into the v2 one. No allocation: it runs between vfork and exec. 0 or -errno. */
int cgroup_enter(const struct cgroup *c, int born);

/* Ends every process of the jail, frozen or not. On v2 and hybrid one write; on v1 freeze, signal
 * each, thaw. 0 or -errno. */
int cgroup_kill(const struct cgroup_host *h, const char *name);
/* Pauses or resumes; freezing waits until the kernel says "frozen" or the deadline, and then fails
 * with PD_TIMEOUT and resumes the jail. */
int cgroup_freeze(const struct cgroup_host *h, const char *name, int frozen, uint64_t deadline_ns,
                  struct pd_err *e);
/* Has somebody paused it? Only reads. */
int cgroup_is_frozen(const struct cgroup_host *h, const char *name);
/* The same of a group's directory. */
int group_is_frozen(int group);
/* Removes the jail's directories in every tree, sub-groups first; has the page cache charged to its
 * memory group dropped first (memory.force_empty; v2: memory.reclaim), because a group with charges
 * outlives its rmdir. 0, or -EBUSY when something still lives there (then call again). */
int cgroup_remove(const struct cgroup_host *h, const char *name);
/* The same, but that the v1 memory group may be kept for a later cgroup_create (cgroup_used.h). */
int cgroup_retire(const struct cgroup_host *h, const char *name);

struct cgroup_stats {
    uint64_t oom_kills;    /* processes that the kernel ended for memory */
    uint64_t pids_refused; /* forks that failed because of the limit */
    uint64_t memory_now, memory_peak, cpu_usec, pids_now;
};
/* Fills in the counters that are known; others stay 0. */
void cgroup_read_stats(const struct cgroup_host *h, const char *name, struct cgroup_stats *ret);

/* Sub-groups for commands, below an open jail directory of the v2 tree (what a jail's owner holds;
 * it need not be the keeper); on v1 of the freezer tree. Names are made by the caller. */
int cgroup_jail_dir(const struct cgroup_host *h, const char *name); /* O_PATH fd, or -errno */
/* An open file to which the command's first process writes "0" to enter, or -errno. On v2 the group
 * is a threaded one: entering it needs no grace period. */
int cgroup_command_create(int jail_dir, const char *command);
int cgroup_command_kill(int jail_dir, const char *command);   /* 0 or -errno */
int cgroup_command_remove(int jail_dir, const char *command); /* 0 or -errno */

/* Removes what dead keepers left: every `paddock-*` directory for which is_alive(instance) is 0.
 * Kills what lives there first, and waits at most 2 s per keeper for it to die; what stays is for
 * the next time. So a keeper must count as alive before it calls cgroup_host_open. Returns how many
 * keepers' leftovers were found. */
int cgroup_reclaim(const struct cgroup_mounts *m, int (*is_alive)(const char *instance, void *arg),
                   void *arg);
