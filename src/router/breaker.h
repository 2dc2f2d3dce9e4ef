/* breaker: leaves a provider alone that fails, and tries it again later.
 *
 * Pure: time is an argument (clock_now), and nothing waits. Closed: everything is let through.
 * Open, after too many failures: nothing is, until a time that doubles with each failed try.
 * Half-open, when that time has come: one call is let through, and its end decides. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define BREAKER_CALLS_MAX 64u

struct breaker_limits {
    unsigned in_row;                /* failures one after the other that open it */
    unsigned calls, percent;        /* or this share of so many calls ... */
    uint64_t window_ns;             /* ... within this time */
    uint64_t open_ns, open_most_ns; /* how long it stays open at first, and at most */
};

#define BREAKER_LIMITS_DEFAULT                                                                     \
    ((struct breaker_limits){.in_row = 5,                                                          \
                             .calls = 20,                                                          \
                             .percent = 50,                                                        \
                             .window_ns = UINT64_C(60000000000),                                   \
                             .open_ns = UINT64_C(30000000000),                                     \
                             .open_most_ns = UINT64_C(300000000000)})

enum breaker_state { BREAKER_CLOSED, BREAKER_OPEN, BREAKER_HALF_OPEN };

/* All zero is a closed one. */
struct breaker {
    enum breaker_state state;
    unsigned in_row;
    unsigned openings; /* since it was closed last: how often the time was doubled */
    uint64_t until;    /* open: when it may be tried; half-open: when the try is given up */
    unsigned count, next;
    struct {
        uint64_t at;
        bool failed;
    } calls[BREAKER_CALLS_MAX];
};

/* Would a call be let through now? */
bool breaker_allows(const struct breaker *b, uint64_t now);
/* A call begins that breaker_allows let through. One that never ends is given up after open_ns. */
void breaker_begin(struct breaker *b, const struct breaker_limits *l, uint64_t now);
void breaker_end(struct breaker *b, const struct breaker_limits *l, bool failed, uint64_t now);
/* The call was never made: it says nothing, and what it was to try is to be tried by the next. */
void breaker_cancel(struct breaker *b, uint64_t now);
/* Nanoseconds until the next try; 0 when nothing stands in the way. */
uint64_t breaker_wait(const struct breaker *b, uint64_t now);
const char *breaker_state_name(enum breaker_state s);
