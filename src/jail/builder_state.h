/* builder_state: what a builder has, and the two things that it makes: kits and jails. Not for
 * others. */
#pragma once

#include "base/err.h"
#include "jail/builder.h"
#include "jail/cgroup.h"
#include "jail/root.h"
#include "jail/seccomp.h"
#include "jail/template.h"
#include "wire/msg.h"

#include <sys/types.h>

#define BUILDER_KITS_MAX 16u

struct kit {
    char name[MSG_NAME_MAX + 1];
    uint32_t slot;
    int userns, netns, ipcns, utsns, mntns; /* -1: made with the jail */
    int gate[2];                            /* the sockets of its way out, or -1 */
    int has_shim;                           /* the template had its sudo when mntns was made */
    struct cgroup cgroup;
    struct root root;
};

struct builder {
    const struct builder_config *config;
    int sock;
    int null;
    int init_image;
    struct template template;
    struct cgroup_host cgroups;
    int cgroups_open;
    struct seccomp_filter filters[PROFILE_COUNT];
    uint64_t files; /* that a process of a jail may have open */
    int oom_score;  /* of every process of a jail */
    struct kit kits[BUILDER_KITS_MAX];
    unsigned kit_count;
    struct pd_err broken; /* why nothing can be built; code PD_INTERNAL with msg "" = fine */
};

/* kit.c */
struct kit kit_empty(const char *name, uint32_t slot);
void kit_done(struct kit *k);
/* The parts of a kit that no spec changes. */
int kit_make(struct builder *b, struct kit *k, struct pd_err *e);
/* Makes a kit in advance, for a spec of the usual kind. */
int kit_prepare(struct builder *b, struct kit *k, struct pd_err *e);
/* The kit with this name if it was prepared, else an empty one. */
struct kit kit_take(struct builder *b, const char *name, uint32_t slot);
/* The kit's root is not what is wanted: the rest of it is still good. */
void kit_forget_root(struct kit *k);
int kit_set_host_name(void); /* 0 or -errno */

/* birth.c */
/* Finds the values that every process of a jail gets on this machine: open files, and score for
 * lack of memory. */
void birth_set_up(struct builder *b);
/* Clones the jail's first process, which becomes its init with `control` as its owner's socket;
 * `waits`: as the keeper's, which will say who the owner is. Returns init's pid as the keeper sees
 * it, or -1. */
pid_t birth_give(struct builder *b, const struct kit *k, const struct spec *s, int control,
                 int waits, struct pd_err *e);
