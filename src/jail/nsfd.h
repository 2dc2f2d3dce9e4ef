/* nsfd: namespaces made in advance, kept by descriptor and entered with setns. */
#pragma once

struct pd_err;

/* Makes one namespace of the kind `flag` (CLONE_NEWNET, ...; `name` is its file in /proc/PID/ns),
 * lets `furnish` (0 or -errno; may be NULL) work inside it, and comes back. Returns its descriptor,
 * or -1 with the caller where it was. `proc` is an open /proc. Single-threaded callers only. */
int nsfd_make(int proc, int flag, const char *name, int (*furnish)(void), struct pd_err *e);
