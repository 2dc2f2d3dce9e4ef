/* Time that goes on while the machine sleeps (CLOCK_BOOTTIME), and deadlines in it. */
#include "base/clock.h"

#include <limits.h>
#include <time.h>

uint64_t clock_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

deadline deadline_in(uint64_t ns)
{
    uint64_t now = clock_now();
    return ns >= DEADLINE_NONE - now ? DEADLINE_NONE : now + ns;
}

int deadline_poll_ms(deadline d)
{
    if (d == DEADLINE_NONE)
        return -1;

    uint64_t now = clock_now();
    if (d <= now)
        return 0;

    uint64_t ms = (d - now + NS_PER_MS - 1) / NS_PER_MS;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

int deadline_passed(deadline d)
{
    return d != DEADLINE_NONE && clock_now() >= d;
}
