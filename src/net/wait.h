/* wait: descriptors that are not ready yet, and how long to wait for them. */
#pragma once

#include "base/clock.h"

#include <stddef.h>
#include <stdint.h>

struct pd_err;

/* Waits until one of the events (or an error or hang-up, which the next call will tell) is there.
 * 0, or -1 with PD_TIMEOUT. Precise to some 50 us. */
int wait_for(int fd, short events, deadline d, struct pd_err *e);
/* Waits until `from` can be read and `to` can be written: what a splice that had nothing to do
 * needs, because it does not say which side it was. An error of `to` ends the wait early. */
int wait_for_both(int from, int to, deadline d, struct pd_err *e);
/* Writes all of it to a pipe or a file that is non-blocking or a regular file, with at most
 * `stall_ns` between two bytes. -1: PD_TIMEOUT; PD_LOST with e->sys == EPIPE when nobody reads; the
 * code of errno. */
int wait_write(int fd, const void *data, size_t len, uint64_t stall_ns, struct pd_err *e);
