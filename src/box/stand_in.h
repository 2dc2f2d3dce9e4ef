/* stand_in: plays init's part on this machine for a box elsewhere. It has init's end of the control
 * socket and the keeper's end of the link: daemon and keeper cannot tell it from an init.
 *
 * What it knows itself it answers itself, whether the link is up or not: which commands there are
 * and how they ended (SYNC), and facts. So a daemon that was killed is succeeded by another while
 * the box cannot be reached. The end of a command is told when its output is in the daemon's pipes,
 * so that "at EXITED the pipes hold all that was written" stays true. It outlives daemons and
 * brokers; bytes that a dead daemon did not read wait in its pipes, which the keeper holds. */
#pragma once

#include "base/clock.h"
#include "link/greeting.h"

struct pd_err;
struct keep;

enum { STAND_IN_AGAIN = -1, STAND_IN_GONE = -2 };
/* A new connection to the box, a stream socket that does not block; STAND_IN_AGAIN when there is
 * none now, STAND_IN_GONE when there will be none any more. */
typedef int stand_in_dial(void *context);

struct stand_in_config {
    struct link_identity who;
    int control;    /* init's end */
    uint32_t lease; /* s: how long the box waits for us */
    size_t budget;
    struct keep *keep; /* what a stand-in before it has kept (keep.h), and it keeps; or NULL */
    int lowest;        /* with `keep`: descriptors from here on are a stand-in's own */
    stand_in_dial *dial;
    void (*up)(void *context); /* when the link is there for the first time; or NULL */
    void *context;
};

/* Runs until the daemon and the keeper have closed the control socket, or the box is gone. 0, and
 * in *e why; or -1. */
int stand_in_run(const struct stand_in_config *c, struct pd_err *e);
