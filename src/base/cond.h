/* cond: condition variables that wait until a deadline of clock.h. */
#pragma once

#include "base/clock.h"

#include <pthread.h>

/* For cond_wait alone: its clock is not the usual one. pthread_cond_destroy ends it. */
void cond_init(pthread_cond_t *c);
/* Waits, with the mutex held, for a signal or the deadline; may return early, as conditions do.
 * 0 when the deadline has passed, else 1. */
int cond_wait(pthread_cond_t *c, pthread_mutex_t *lock, deadline d);
