/* far: the far end of a link, in a box on another machine. It is init's owner there: it makes the
 * pipes and terminals of commands, hands them to init with EXEC, and tells over the link what init
 * says. So init needs neither a secret nor a network.
 *
 * Connections come to a listening socket, from whoever is in the box, and where it is to be dialled
 * to a port, as WebSockets. Each has a few seconds for its greeting, and the one that proves itself
 * last has the link. A wrong proof over the port is answered with silence until those seconds are
 * over, and its place is the first to be given away; so proofs are tried slowly. Commands go on
 * without one, for as long as the lease lasts; time in which the box was frozen does not count. */
#pragma once

#include "base/clock.h"
#include "link/greeting.h"

struct pd_err;

struct far_config {
    struct link_identity who; /* its epoch is set by the first keeper */
    int listener;             /* of a stream socket; not blocking */
    int dialers;              /* likewise, of a port; or -1 */
    const char *target;       /* what they have to ask for there */
    int init;                 /* the owner's end of init's control socket */
    uint64_t lease;           /* ns, until the keeper says otherwise */
    size_t budget;            /* bytes in rings */
};

/* Runs until the box is to end: the keeper said so, the lease is over, or init is gone. Returns 0,
 * and in *e why; -1 when it cannot go on. */
int far_run(struct far_config *c, struct pd_err *e);
