/* far_box: the processes on this machine that stand for one box on another.
 *
 *   nursery ──forks──▶ watch ──▶ stand-in: init's end of the control socket, the near end of the
 * link │          │ orders, streams └─────▶ carrier: the engine's credentials, TLS, an exec in the
 * container
 *
 * The watch looks at no byte of anybody's; as long as it lives the box does for the keeper. It
 * starts the carrier again when that dies. When the stand-in ends nobody owns the box any more;
 * when the carrier says that the container is gone, it is. All three end together, also when the
 * watch is killed. None needs the broker that began them. */
#pragma once

#include "base/clock.h"
#include "box/near.h"
#include "engine/broker.h"

#include <sys/types.h>

struct nursery;
struct pd_err;

struct far_box {
    const struct broker_config *config;
    struct nursery *nursery; /* of the broker */
    const char *container;
    struct near_secret secret;
    int control; /* init's end of the control socket */
    int lock;    /* a descriptor that is held while the watch lives */
};

/* Starts the three and waits until the link is up. The watch's pid, and a pidfd of it; or -1 with
 * what the carrier has said last. */
pid_t far_box_start(const struct far_box *b, int *ret_process, deadline t, struct pd_err *e);

/* The watch, in a process of its own. Its descriptors from 3 on: control, the lock, where the
 * secret can be read, where the broker listens; then the program paddock-box. `secrets`:
 * credentials that the environment had, for carriers (secret_env.h); or negative. */
_Noreturn void far_box_main(const struct broker_config *c, const char *container, int secrets);
