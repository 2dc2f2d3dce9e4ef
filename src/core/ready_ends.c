/* How this works: a slot holds a whole set or nothing, and who exchanges it for nothing has it
 * alone. */
#include "core/ready_ends.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "core/session_state.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>

static void ready_ends_free(struct ready_ends *p)
{
    if (!p)
        return;
    for (unsigned i = 0; i < 2; i++) {
        fd_done(&p->out[i]);
        fd_done(&p->err[i]);
    }
    fd_done(&p->null);
    free(p);
}

static struct ready_ends *ready_ends_new(void)
{
    struct pd_err e;
    struct ready_ends *p = malloc(sizeof *p);
    if (!p)
        return NULL;

    *p = (struct ready_ends){.out = {-1, -1}, .err = {-1, -1}, .null = -1};
    p->null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (p->null >= 0 && session_make_pipe(&p->out[0], &p->out[1], true, &e) == 0 &&
        session_make_pipe(&p->err[0], &p->err[1], true, &e) == 0)
        return p;
    ready_ends_free(p);
    return NULL;
}

bool ready_ends_take(struct ready_ends_set *s, struct ready_ends *ret)
{
    for (unsigned i = 0; i < READY_ENDS_MAX; i++) {
        struct ready_ends *p = atomic_load(&s->at[i]) ? atomic_exchange(&s->at[i], NULL) : NULL;
        if (!p)
            continue;
        *ret = *p;
        free(p);
        return true;
    }
    return false;
}

void ready_ends_fill(struct ready_ends_set *s, unsigned count)
{
    for (unsigned i = 0; i < READY_ENDS_MAX && count; i++) {
        struct ready_ends *none = NULL, *p = atomic_load(&s->at[i]) ? NULL : ready_ends_new();
        if (!p)
            continue;
        count--;
        if (!atomic_compare_exchange_strong(&s->at[i], &none, p))
            ready_ends_free(p); /* somebody else was faster */
    }
}

void ready_ends_done(struct ready_ends_set *s)
{
    for (unsigned i = 0; i < READY_ENDS_MAX; i++)
        ready_ends_free(atomic_exchange(&s->at[i], NULL));
}
