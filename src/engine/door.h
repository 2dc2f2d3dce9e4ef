/* door: how init in a container that an engine made meets its broker.
 *
 * Each box has a directory DIR/NAME with the program `init`, the `filter` of system calls that it
 * loads, and the listening socket `door`. It is mounted read-only into the container: a box can
 * connect there and change nothing. The peer must be the container's first process; one connection
 * is taken, before any command runs. DIR is locked as long as one process of its keeper lives, so
 * that the next one knows whose boxes are orphans.
 */
#pragma once

#include "base/clock.h"

#include <stdbool.h>
#include <sys/types.h>

struct pd_err;

struct doors {
    char path[512]; /* STATE/doors/INSTANCE */
    int dir;
};

/* Makes the directory, locks it, and puts init and the filter into it. */
int doors_open(struct doors *d, const char *state_dir, const char *instance, int init_fd,
               struct pd_err *e);
/* Calls `each` for every keeper's directory that nobody has locked. */
void doors_each_dead(const char *state_dir, void (*each)(const char *instance, void *arg),
                     void *arg);
/* Does a process of another keeper of the same state directory live? True where it cannot be known.
 */
bool doors_are_held(const struct doors *d, const char *instance);
/* Removes a keeper's directory with all doors, but for places that somebody holds: then it stays.
 */
void doors_remove(const char *state_dir, const char *instance);
/* This process has no use for its keeper's directory any more, which is removed with the last one.
 */
void doors_leave(struct doors *d, const char *state_dir, const char *instance);

/* Makes a door and returns its listening socket; `ret_path` is the directory to mount. */
int door_make(const struct doors *d, const char *name, char ret_path[640], struct pd_err *e);
/* The place of a box on another machine, which nobody comes to: a descriptor that is a lock, held
 * as long as it is open anywhere. */
int door_hold(const struct doors *d, const char *name, struct pd_err *e);
/* Does somebody hold it? */
bool door_is_held(const struct doors *d, const char *name);
/* The same of any keeper's place. */
bool doors_hold(const char *state_dir, const char *instance, const char *name);
/* Waits until the process `pid` has connected. A descriptor, and a pidfd of the process in
 * *ret_process; PD_LOST when the process ends first, PD_TIMEOUT. */
int door_wait(int listener, pid_t pid, int *ret_process, deadline t, struct pd_err *e);
/* From door_make to door_remove, whoever called them: a box has one as long as it may have a
 * container. */
bool door_is_there(const struct doors *d, const char *name);
/* Fine when it is not there. */
void door_remove(const struct doors *d, const char *name);
