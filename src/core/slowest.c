/* The slowest creations of the last hour: see slowest.h.
 *
 * How this works: a place that was never used took 0 us at the time 0, so it is too old, too. */
#include "core/slowest.h"

#include "base/banned.h"

#include <stdlib.h>

#define KEPT_MS (3600u * 1000)

static bool is_old(const struct slow_creation *c, uint64_t now_ms)
{
    return c->at_ms + KEPT_MS < now_ms;
}

void slowest_note(struct slowest *t, const struct slow_creation *c)
{
    struct slow_creation *least = NULL;

    for (unsigned i = 0; i < SLOWEST && !(least && is_old(least, c->at_ms)); i++)
        if (!least || is_old(&t->kept[i], c->at_ms) || t->kept[i].took_us < least->took_us)
            least = &t->kept[i];
    if (is_old(least, c->at_ms) || least->took_us < c->took_us)
        *least = *c;
}

static int by_time_taken(const void *a, const void *b)
{
    const struct slow_creation *x = a, *y = b;
    return (x->took_us < y->took_us) - (x->took_us > y->took_us);
}

unsigned slowest_get(const struct slowest *t, uint64_t now_ms, struct slow_creation ret[SLOWEST])
{
    unsigned count = 0;

    for (unsigned i = 0; i < SLOWEST; i++)
        if (t->kept[i].id[0] && !is_old(&t->kept[i], now_ms))
            ret[count++] = t->kept[i];
    qsort(ret, count, sizeof *ret, by_time_taken);
    return count;
}
