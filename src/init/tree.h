/* tree: ending all processes that descend from this one. */
#pragma once

#include "base/clock.h"

#include <stdbool.h>
#include <sys/types.h>

/* SIGKILL to every child of this process. false when the children cannot be listed. */
bool tree_kill_children(void);
/* Kills and reaps the children, and those that become children by that, until none is left. The
 * caller is a subreaper or pid 1, and has SIGCHLD blocked. -1 at the deadline. */
int tree_end(deadline d);
