/* shadow_tree: what a sandbox has in its workspace, as one number. For the session layer alone. */
#pragma once

#include "router/parity.h"

struct session;

/* 1; 0: it has too much in it; -1: nobody could look. `without_hidden`: names of the workspace
 * itself that begin with a dot do not count. Bounded in entries, bytes and time; the sandbox's user
 * notices nothing of it, and it counts as no use. */
int tree_digest(struct session *s, bool without_hidden, uint8_t ret[PARITY_TREE_SIZE]);
