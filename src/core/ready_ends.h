/* ready_ends: the descriptors of the next command, made before it comes.
 *
 * A command that somebody waits for needs two pipes and /dev/null. To make them takes as long as to
 * read its request, so some wait. Each is used once, by one command: nothing of another's is ever
 * in them. Any thread may call these, and none waits. */
#pragma once

#include <stdbool.h>

#define READY_ENDS_MAX 4u /* five descriptors each */

struct ready_ends {
    int out[2], err[2]; /* pipes: the near end, which reads and does not block; the far one */
    int null;           /* /dev/null, for reading */
};

struct ready_ends_set {
    struct ready_ends *_Atomic at[READY_ENDS_MAX]; /* zeroed: there are none */
};

/* The descriptors are the caller's. False when there are none. */
bool ready_ends_take(struct ready_ends_set *s, struct ready_ends *ret);
/* Makes `count` at most, as long as there is room. What cannot be made is not there. */
void ready_ends_fill(struct ready_ends_set *s, unsigned count);
void ready_ends_done(struct ready_ends_set *s);
