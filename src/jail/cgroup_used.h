/* cgroup_used: memory groups of jails that are gone, for the next ones. Inner part of the cgroup
 * module.
 *
 * Removing a v1 memory group costs more than all the rest of a jail's end: the kernel tries again
 * and again to take back what is charged to it, and what it cannot take back keeps the group in the
 * kernel, out of sight. So a sweeper keeps a few, settled, and cgroup_create gives them another
 * name. One that has files in memory is kept for them alone (cgroup_used.c). Only the tree of the
 * memory controller alone is meant: what holds a jail's processes and its commands' groups, and
 * what a server may write to, is never used again. */
#pragma once

#include "jail/cgroup.h"

/* What may stay charged, mostly in caches of the kernel's own: it takes charges by 64 pages
 * for each processor, so that a group's own counter is not more precise than this. */
#define USED_CHARGE_MAX (256u << 10)

/* Keeps the memory group of a jail of which nobody lives, if it is as a new one but for
 * USED_CHARGE_MAX: no limit, no peak, and nothing ever happened that the kernel counts for good. Or
 * keeps it for the files that it has in memory.
 * 0, or -errno: then it is to be removed. */
int used_group_keep(const struct cgroup_host *h, const char *name);
/* Gives one of them this name. 0, or -errno: then one is to be made. */
int used_group_take(const struct cgroup_host *h, const char *name);
