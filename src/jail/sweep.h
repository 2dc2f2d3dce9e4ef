/* sweep: removes what jails leave behind, now or when a keeper has died. */
#pragma once

#include "jail/cgroup.h"

/* Removes a dead jail's cgroups. Its last processes may still be leaving: retries for a while with
 * growing pauses. 0, or -EBUSY when it gave up. */
int sweep_cgroups(const struct cgroup_host *h, const char *name);
/* The same, but that what costs most may be kept for the next jail (cgroup_retire). */
int sweep_retire(const struct cgroup_host *h, const char *name);
/* Marks this keeper's directories as in use, for as long as any of its processes lives: a shared
 * lock on the directory itself, so it works across mount and network namespaces. */
void sweep_hold_instance(const struct cgroup_host *h);
/* Ends what is left of this keeper's jails, removes its directories, and also what other keepers
 * left that were killed together with all their processes. */
void sweep_instance(struct cgroup_host *h);
