/* guard: has work done by a process that can be killed and is made again. Both have the same
 * descriptors, in one table: what the one had open the next one has. */
#pragma once

#include <stdint.h>

/* In a child. Its result is the exit status of its process. */
typedef int guard_work(void *context);
/* Has it done, again after each SIGKILL; any other signal is a fault of the work itself, and ends
 * it. `progress` tells whether a life came anywhere: of those that did not, few are followed by
 * another. Behind a life of less than a second there is a pause of so many milliseconds: whoever is
 * killed at once each time, as where there is no memory, comes anywhere by a little, too, and must
 * not keep the machine busy for it. Returns the exit status, or -1. */
int guard_run(guard_work *work, uint64_t (*progress)(void *context), unsigned pause_ms,
              void *context);
