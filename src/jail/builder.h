/* builder: makes jails. A privileged process with one request at a time.
 *
 * The keeper forks it and talks to it over one socket; the jails it makes are the keeper's
 * children, not its own (CLONE_PARENT), so a builder may hang or die without taking a jail along.
 * The same program, forked again at low priority, is the sweeper. When the keeper is gone, whoever
 * of them is left removes everything that the keeper's jails had, and ends. */
#pragma once

#include "wire/spec.h"

#include <sys/types.h>

struct pd_err;

struct builder_config {
    const char *instance;  /* of the keeper: names its cgroups */
    const char *state_dir; /* of the store */
    int rootless;
    uid_t owner; /* who may make commands' groups in the jails' v2 directories; 0: only root */
    int sweeper; /* only sweeps, at low priority */
    int copier;  /* only copies roots */
};

/* Serves the keeper on `sock` until it closes; then cleans up. Does not return. */
_Noreturn void builder_main(const struct builder_config *c, int sock);

/* The best rung that a keeper can give here, and in words what is missing for RUNG_FULL. */
enum rung builder_best_rung(int rootless, int has_cgroups, const char *cgroup_why, char *missing,
                            unsigned size);
/* The score for lack of memory of every process of a box, as seen by a keeper's process: the
 * keeper's own is lower, so that it is not killed in a box's place. `proc` is an open /proc. */
int birth_oom_score(int proc);
