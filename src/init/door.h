/* door: how an init in a box that somebody else made gets its owner, and another when it has lost
 * one. */
#pragma once

#include "base/clock.h"

#include <stdbool.h>

struct init;
struct pd_err;

struct door {
    const char *path;
    uint64_t lease; /* ns; 0: a lost owner is the end */
    uint64_t left;  /* of the lease */
    bool lost;      /* an owner: from then on the lease counts */
    uint64_t seen;  /* when it was counted last */
    deadline retry;
};

/* Connects, for the first time: waits until the deadline for a door that is not there yet. Returns
 * the socket, or -1. */
int door_connect(const char *path, deadline d, struct pd_err *e);
/* The owner, or the door before it gave one, is gone. Fails without a lease. */
int door_lost(struct door *d, struct init *in, struct pd_err *e);
/* While init has no owner: goes to the door again, and counts. Fails at the end of the lease. */
int door_tend(struct door *d, struct init *in, struct pd_err *e);
/* How long init may sleep, for poll. */
int door_patience(const struct door *d, const struct init *in);
