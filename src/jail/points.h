/* points: places for mounts in a root that a sandbox may have written.
 *
 * A sandbox can leave anything where a later jail of the same root needs a mount point: nothing, a
 * file, a link that leads out. So a point is opened one name after the other without following a
 * link, and mounts are attached to the descriptor, never to a path. What is in the way of a point
 * is removed, what is missing is made anew.
 *
 * Every function returns a descriptor (O_PATH) or 0, or -errno; none allocates. */
#pragma once

#include <sys/types.h>

/* The directory at the relative `path` below `root`. Those on the way to it are made with mode
 * 0755, the last one with `mode`; the mode of one that is there stays. */
int point_dir(int root, const char *path, mode_t mode);
/* The regular file at `path`, with the same care. A new one is empty. */
int point_file(int root, const char *path);

/* Mounts what stands at `from`, a path of the builder's own, onto a point: with all that is mounted
 * below it, and with its attributes. */
int point_bind(const char *from, int point);
/* Mounts a new file system onto a point. The working directory is the point afterwards. */
int point_mount(int point, const char *type, unsigned long flags, const char *data);
