/* clock: monotonic time and deadlines.
 *
 * A deadline is an absolute CLOCK_BOOTTIME instant in nanoseconds, so that it also passes while
 * the machine sleeps. DEADLINE_NONE never passes. */
#pragma once

#include <stdint.h>

#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S  UINT64_C(1000000000)

typedef uint64_t deadline;
#define DEADLINE_NONE UINT64_MAX

uint64_t clock_now(void);

/* The deadline `ns` from now; saturates. */
deadline deadline_in(uint64_t ns);
/* Milliseconds until the deadline for poll(2): 0 when it has passed, -1 for DEADLINE_NONE.
 * Rounded up, so that a poll never wakes just before the deadline. */
int deadline_poll_ms(deadline d);
int deadline_passed(deadline d);
