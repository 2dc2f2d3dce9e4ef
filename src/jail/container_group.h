/* container_group: the cgroups of a container that an engine made, as the daemon needs them.
 *
 * Commands have groups of their own below the container's, in the tree that can freeze and kill:
 *   v2      the container's own group
 *   hybrid  a group of ours in the v2 tree, into which init is moved: the engine uses only v1 there
 *   v1      the container's group in the freezer tree
 * Limits and what is used are the engine's groups' in every layout. */
#pragma once

#include "jail/cgroup.h"

#include <stdbool.h>

struct pd_err;

struct container_groups {
    struct cgroup_mounts mounts;
    struct cgroup_host host; /* only of its v2 tree something is used */
};

/* Finds the trees. No failure: without cgroups there are no groups. */
void container_groups_open(struct container_groups *g, const char *instance, uid_t owner);

/* The directory for the groups of its commands, made if need be; `pid` is the container's init,
 * which has no child yet. A descriptor or -errno. */
int container_group_make(struct container_groups *g, const char *name, pid_t pid);
/* The same directory later. `pid` 0: it does not run. */
int container_group_find(const struct container_groups *g, const char *name, pid_t pid);
/* Removes what container_group_make made. 0 or -errno. */
int container_group_remove(const struct container_groups *g, const char *name);

/* What the engine's groups say of the container with this init. What is not known stays 0. */
void container_usage(pid_t pid, enum cgroup_layout layout, struct cgroup_stats *ret);
/* Is the engine's group frozen? But for the hybrid layout that is also how we pause it. */
bool container_is_frozen(pid_t pid, enum cgroup_layout layout);
