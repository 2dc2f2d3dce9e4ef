/* restricted: what the profile of that name takes away from a root (docs/policy.md).
 *
 * Every mount that the sandbox can write to becomes noexec: neither exec nor the dynamic loader
 * takes a program or a library from there. Programs that delete, move and fetch are covered by an
 * empty file that nobody may open. */
#pragma once

struct root;

/* With the working directory at the root that is being built, in the jail's mount namespace, when
 * everything is mounted. No allocation. 0, or -errno with *ret_step saying what failed. */
int restricted_apply(const struct root *r, const char **ret_step);
