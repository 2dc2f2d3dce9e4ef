/* pump: the one thread that waits for descriptors on everybody's behalf.
 *
 * It moves output from pipes into spools, hears what jails and the keeper say, and runs timers.
 * Callbacks run on its thread, one at a time, and must not block.
 *
 * Locks: the pump's own lock is held around no callback, so a callback may take any lock, and any
 * thread may add and remove at any time. pump_remove returns when the callback is not running any
 * more, unless it was called from the pump's thread itself; so do not hold a lock that the callback
 * takes. */
#pragma once

#include "base/clock.h"

#include <stdbool.h>
#include <stdint.h>

struct pd_err;
struct pump;

struct pump_source {
    void (*ready)(struct pump_source *s, uint32_t events);
    int fd;
    unsigned added; /* 0: not */
};

/* A timer is set and cancelled from any thread; it fires up to a quarter of a second late. */
struct pump_timer {
    void (*fire)(struct pump_timer *t);
    deadline at;
    struct pump_timer *next;
    bool set;
};

struct pump *pump_new(struct pd_err *e);
/* Ends the thread. Sources and timers must be gone. */
void pump_free(struct pump *p);

/* `events` as for epoll(7). */
int pump_add(struct pump *p, struct pump_source *s, uint32_t events, struct pd_err *e);
void pump_remove(struct pump *p, struct pump_source *s);
/* The same without waiting: for a callback that takes a lock which the caller holds, and looks at
 * the source again once it has it. */
void pump_drop(struct pump *p, struct pump_source *s);
/* Waits for other events from now on. Of a source that is not in the pump, nothing. */
void pump_change(struct pump *p, struct pump_source *s, uint32_t events);
/* Waits until the source's callback, if it is running, is over. */
void pump_wait(struct pump *p, const struct pump_source *s);
void pump_set_timer(struct pump *p, struct pump_timer *t, deadline at);
void pump_cancel_timer(struct pump *p, struct pump_timer *t);
bool pump_is_this_thread(const struct pump *p);
