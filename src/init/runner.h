/* runner: a child of init's that waits to become the next command (runner.c).
 *
 * It is only an optimisation: whatever it cannot take is init's, as if there were none. */
#pragma once

#include "init/init.h"

struct runner;

/* How long init waits for something to do, in milliseconds, before it makes one: -1 when there is
 * one already, or none is wanted now. */
int runner_pause(const struct init *in);
/* Makes one, which from now on hears the owner in init's place. Without it nothing changes. */
void runner_make(struct init *in);

/* Does one hear the owner in init's place? */
bool runner_hears(const struct init *in);
/* What to poll for the owner: his socket, or while a runner hears him what says that it has left
 * him to init. */
int runner_poll_fd(const struct init *in);
/* Looks what the runner has done meanwhile: to be called before anything is heard or reaped. What
 * it has taken is in the table of commands afterwards. -1 when a frame was lost: init cannot go on.
 */
int runner_look(struct init *in);
/* A child has ended. If it was the runner and could not start its command, that row is marked
 * `failed`, and runner_failure is its error. */
void runner_reaped(struct init *in, pid_t pid);
const struct pd_err *runner_failure(const struct init *in);
/* The failure has been told, or its row is gone. */
void runner_forget_failure(struct init *in);

/* Ends the one that waits. */
void runner_done(struct init *in);
