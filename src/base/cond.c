/* Conditions use CLOCK_MONOTONIC, deadlines CLOCK_BOOTTIME: what is left until the deadline is
 * added to the former. A machine that slept wakes the waiter late by its sleep, at most WAIT_MAX.
 */
#include "base/cond.h"

#include "base/banned.h"

#include <time.h>

/* Longer waits are made of several. */
#define WAIT_MAX (3600 * NS_PER_S)

void cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

int cond_wait(pthread_cond_t *c, pthread_mutex_t *lock, deadline d)
{
    uint64_t now = clock_now();
    if (d <= now)
        return 0;

    uint64_t left = d - now < WAIT_MAX ? d - now : WAIT_MAX;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + left % NS_PER_S;
    until.tv_sec += (time_t)(left / NS_PER_S + ns / NS_PER_S);
    until.tv_nsec = (long)(ns % NS_PER_S);

    (void)pthread_cond_timedwait(c, lock, &until);
    return !deadline_passed(d);
}
