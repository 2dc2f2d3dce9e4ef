/* quota: how much of the server one tenant may use.
 *
 * Two rates (requests, creates) by token buckets, and two counts of what runs at once (commands,
 * sandboxes). Refusals are PD_RATE; they name the limit, and *retry_s is the value for Retry-After.
 * The number of tenants that are kept is bounded; idle ones are forgotten, which changes nothing
 * for them: their buckets were full.
 *
 * Safe from any thread; no call waits. */
#pragma once

#include <stdint.h>

struct pd_err;
struct quota;

/* 0 in any of them: no limit. A burst of 0 with a rate: one second's worth, at least 1. */
struct quota_limits {
    double requests_per_s, creates_per_s;
    unsigned requests_burst, creates_burst;
    unsigned execs, sandboxes; /* at once */
};

enum quota_rate { QUOTA_REQUESTS, QUOTA_CREATES, QUOTA_RATES };
enum quota_share { QUOTA_EXECS, QUOTA_SANDBOXES, QUOTA_SHARES };

/* `now`: the clock, in nanoseconds; NULL is clock_now. NULL when memory is out. */
struct quota *quota_new(const struct quota_limits *limits, uint64_t (*now)(void));
void quota_free(struct quota *q);
/* New limits, from a reloaded configuration. What runs goes on, also when it is over them. */
void quota_set_limits(struct quota *q, const struct quota_limits *limits);

/* One request, or one create. `retry_s` is written on PD_RATE only, and may be NULL. */
int quota_take(struct quota *q, const char *tenant, enum quota_rate rate, unsigned *retry_s,
               struct pd_err *e);
/* One more of what runs; after success quota_leave is due when it ends. */
int quota_enter(struct quota *q, const char *tenant, enum quota_share share, unsigned *retry_s,
                struct pd_err *e);
/* The same without a limit: for what an earlier daemon left running. */
int quota_adopt(struct quota *q, const char *tenant, enum quota_share share, struct pd_err *e);
void quota_leave(struct quota *q, const char *tenant, enum quota_share share);
/* How many run now. */
unsigned quota_running(struct quota *q, const char *tenant, enum quota_share share);
