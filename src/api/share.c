/* Shares of the requests that are served at once. A party (a tenant, the visitors of its sandboxes,
 * or all clients without a key) is refused when it already has three times as many places as are
 * free. One party alone can so take three quarters of all, several divide what there is, and no
 * party can take the last free place from the others. */
#include "api/share.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/lock.h"

#define CHAINS  256u /* a power of two */
#define TIMES   3u   /* a party may have so many times what is free */
#define UNNAMED "who has no key"

/* There while it has requests. */
struct party {
    struct party *next;
    unsigned active;
    char name[ID_TENANT_MAX + 1];
};

struct shares {
    struct lock lock;
    unsigned total;
    struct party *chains[CHAINS];
};

struct shares *shares_new(void)
{
    struct shares *s = calloc(1, sizeof *s);
    if (s)
        lock_init(&s->lock, LOCK_SHARES);
    return s;
}

void shares_free(struct shares *s)
{
    if (!s)
        return;
    for (unsigned i = 0; i < CHAINS; i++)
        while (s->chains[i]) {
            struct party *gone = s->chains[i];
            s->chains[i] = gone->next;
            free(gone);
        }

    lock_done(&s->lock);
    free(s);
}

static struct party **place_of(struct shares *s, const char *name)
{
    struct party **at = &s->chains[hash_bytes(name, strlen(name)) & (CHAINS - 1)];
    while (*at && strcmp((*at)->name, name) != 0)
        at = &(*at)->next;
    return at;
}

static int enter(struct shares *s, const char *tenant, unsigned places, struct pd_err *e)
{
    struct party **at = place_of(s, tenant);
    unsigned has = *at ? (*at)->active : 0;
    unsigned left = places > s->total ? places - s->total : 0;

    if (left <= has / TIMES)
        return pd_fail(e, PD_RATE,
                       "%s has %u of %u requests in progress, and %u places are free for all: wait "
                       "for one of them, or try again in a moment",
                       tenant[0] ? tenant : UNNAMED, has, places, left);

    if (!*at) {
        struct party *p = calloc(1, sizeof *p);
        if (!p)
            return pd_fail(e, PD_CAPACITY, "out of memory");
        snprintf(p->name, sizeof p->name, "%s", tenant);
        *at = p;
    }

    (*at)->active++;
    s->total++;
    return 0;
}

int shares_enter(struct shares *s, const char *tenant, unsigned places, struct pd_err *e)
{
    lock_take(&s->lock);
    int r = enter(s, tenant, places, e);
    lock_release(&s->lock);
    return r;
}

void shares_leave(struct shares *s, const char *tenant)
{
    lock_take(&s->lock);
    struct party **at = place_of(s, tenant), *p = *at;
    if (p) {
        s->total--;
        if (--p->active == 0) {
            *at = p->next;
            free(p);
        }
    }
    lock_release(&s->lock);
}
