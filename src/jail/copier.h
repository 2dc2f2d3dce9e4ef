/* copier: copies a named root, while the jail that uses it stands still. Runs in a worker of its
 * own: it takes as long as it takes, and may be killed at any time. */
#pragma once

#include "jail/builder.h"
#include "jail/cgroup.h"
#include "wire/msg.h"

/* Once, before anything else: rootless it becomes root over the user's own files. Removes what one
 * before it left. */
int copier_start(const struct builder_config *c, struct pd_err *e);
/* `jail_pid`: a pidfd of the init of the jail that uses the root, or -1. The jail runs on when this
 * returns, if it was this that stopped it; when this is killed, somebody else has to see to that.
 */
int copier_copy(const struct builder_config *c, const struct cgroup_host *h,
                const struct msg_copy *m, int jail_pid, struct pd_err *e);
