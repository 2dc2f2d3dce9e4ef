/* slowest: the creations of the last hour that took longest, for the page Overview.
 *
 * A few are kept, and a new one takes the place of one that is too old, or of the shortest when it
 * took longer. One that had to go for longer ones does not come back when those are an hour old.
 *
 * Not safe from several threads: the caller holds his lock. */
#pragma once

#include "core/session.h"

#define SLOWEST 5u

struct slow_creation {
    char id[SESSION_ID_LEN + 1];
    char tenant[64], provider[32];
    char from[64]; /* its template */
    uint64_t at_ms, took_us;
};

struct slowest {
    struct slow_creation kept[SLOWEST];
};

void slowest_note(struct slowest *t, const struct slow_creation *c);
/* Those of the hour before `now_ms`, slowest first. Returns how many. */
unsigned slowest_get(const struct slowest *t, uint64_t now_ms, struct slow_creation ret[SLOWEST]);
