#include "bench.h"

#include "base/banned.h"

void series_add(struct series *s, uint64_t ns)
{
    if (s->count == s->room) {
        unsigned room = s->room ? s->room * 2 : 1024;
        uint64_t *more = realloc(s->ns, room * sizeof *more);
        if (!more)
            return; /* the rest of the samples will do */
        s->ns = more;
        s->room = room;
    }
    s->ns[s->count++] = ns;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

uint64_t series_quantile(struct series *s, unsigned thousandths)
{
    if (!s->count)
        return 0;
    qsort(s->ns, s->count, sizeof *s->ns, by_value);
    size_t at = ((size_t)s->count * thousandths + 999) / 1000;
    return s->ns[at ? at - 1 : 0];
}

void series_done(struct series *s)
{
    free(s->ns);
    s->ns = NULL;
    s->count = s->room = 0;
}
