/* cgroup_tree: one cgroup directory, of whichever version. Inner part of the cgroup module.
 *
 * A group is given by a descriptor of its directory (O_PATH will do), or by its parent's and its
 * name. Which version it is shows in the files it has, so nothing here needs to know the layout.
 * Names are single components: nothing is followed, and only directories are ever removed. */
#pragma once

#include "base/clock.h"

#include <stddef.h>

/* Groups deeper than this are not made by us: walks stop there and removing says -EBUSY. */
#define GROUP_DEPTH_MAX 8

/* A name that can be one directory and nothing else: [A-Za-z0-9._-], not starting with a dot. */
int group_name_ok(const char *name);
/* O_PATH descriptor of a group, or -errno. */
int group_open(int parent, const char *name);

/* Ends every process in it and below, frozen or not: cgroup.kill where the kernel has it (5.14),
 * else group_kill_walk. 0 or -errno. */
int group_kill(int group);
/* The long way: freezes if it can (waits 1 s at most), sends SIGKILL to every pid, thaws. */
int group_kill_walk(int group);
/* Pauses or resumes with cgroup.freeze or freezer.state. Pausing waits until the kernel says that
 * it is done; at the deadline it resumes the group and returns -ETIMEDOUT. -EOPNOTSUPP when the
 * group can do neither. */
int group_freeze(int group, int frozen, deadline d);
/* Removes it and what is below. `give_back`: it has the memory controller, so have the page cache
 * dropped that it is charged for (memory.force_empty, memory.reclaim). 0 (also when it is not
 * there), -EBUSY while something lives in it, or another -errno. */
int group_remove(int parent, const char *name, int give_back);

/* Calls fn with the name of every group directly below; stops when it returns non-zero and returns
 * that. 0 or -errno otherwise. */
int group_each(int group, int (*fn)(int group, const char *name, void *arg), void *arg);
