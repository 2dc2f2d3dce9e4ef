/* worker_death: why a worker of the keeper has ended, in words for whoever asked for a jail. */
#pragma once

#define WORKER_DEATH_MAX 200u

/* Writes what waitpid's `status` says of a worker's end, and what can be done about it.
 * `program`: the one that the worker runs, or NULL for a builder or sweeper. */
void worker_death_text(int status, const char *program, char ret[WORKER_DEATH_MAX]);
