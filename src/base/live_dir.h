/* live_dir: directories that belong to a group of processes and are removed when all are gone.
 *
 * Each process of the group holds a shared lock on the directory. Whoever gets the lock exclusively
 * knows that none of them is left. A lock is one of an inode, not of a name: between opening and
 * locking the directory may have been removed, and made again. Both calls look again. */
#pragma once

#include <sys/types.h>

/* Opens the directory `name` below `parent`, making it with `mode` if it is missing, and holds it:
 * as long as the descriptor is open nobody can seize it. Waits while somebody has it seized, who
 * removes it. The descriptor, or -errno. */
int live_dir_hold(int parent, const char *name, mode_t mode);
/* The directory's descriptor if nobody holds it: it may be removed as long as that is open, and
 * nobody else comes into it. -EWOULDBLOCK when somebody holds it; -ESTALE when it is another one by
 * now; another -errno when it cannot be opened. */
int live_dir_seize(int parent, const char *name);
