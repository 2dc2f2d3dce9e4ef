/* clone: a child that shares the caller's memory until it execs, born in a cgroup. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

/* Like clone(2) with CLONE_VM and CLONE_VFORK and the given CLONE_* flags: the caller sleeps until
 * the child has exec'd or ended. `cgroup` is an O_PATH descriptor of a v2 group, or -1. The child
 * runs fn(arg), which must not return, on the part of the caller's stack below this call. Returns
 * the pid or -errno. */
pid_t clone_vfork(uint64_t flags, int cgroup, int (*fn)(void *), void *arg);
