/* nursery: where the processes that stand for boxes elsewhere come from.
 *
 * A broker starts one as a program of its own, so that none of the broker's memory, which has seen
 * the engine's credentials, comes into it. It makes the libraries ready once and forks a watch
 * (far_box.h) for each box: what they have in common is in memory once, and not for each box. It
 * ends with its broker; its watches do not. */
#pragma once

#include "engine/broker.h"

struct pd_err;

#define NURSERY_FDS 4u

struct nursery {
    int sock; /* 0: none was started */
};

/* Has a watch be born for this container, with copies of the descriptors from 3 on, and the program
 * paddock-box behind them. Its pid, and a pidfd of it; or -1. One that has died is replaced. */
pid_t nursery_bear(struct nursery *n, const struct broker_config *c, const char *container,
                   const int fds[NURSERY_FDS], int *ret_process, struct pd_err *e);
void nursery_done(struct nursery *n);

/* `paddock-remote nursery KIND OPTIONS`: the process, with its socket as descriptor 3. */
_Noreturn void nursery_main(const struct broker_config *c);
