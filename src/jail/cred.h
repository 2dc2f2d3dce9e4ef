/* cred: what a jail's pid 1 may do, and so the most that anything in the jail can ever do.
 *
 * strict: init has SETUID, SETGID and KILL in the jail's user namespace; the bounding set is empty,
 * so no exec by any uid ever gains a capability. dev: init has, and the bounding set holds, the
 * seven of the profile. no_new_privs is on in both. */
#pragma once

#include "wire/spec.h"

/* To be called by the process that will exec init, already in the jail's user namespace with all
 * its capabilities. Becomes UID_INIT. Runs between vfork and exec: raw calls, no allocation. On
 * failure -errno, with *ret_step naming the call. */
int cred_become_init(enum profile profile, const char **ret_step);
/* Rootless: no uid to change to; drops everything. */
int cred_drop_all(const char **ret_step);
