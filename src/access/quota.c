/* Rates and shares of tenants. A rate is a bucket of tokens that fills with time, a share is a
 * count of what runs. Tenants are found by a hash table and kept in the order of their last use:
 * when there are too many, the oldest idle one is forgotten, and an idle one has nothing worth
 * remembering. */
#include "access/quota.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/lock.h"

#define TENANTS_MAX 4096u
#define CHAINS      1024u /* a power of two */

struct bucket {
    double tokens;
    uint64_t since; /* when `tokens` was right */
};

struct tenant {
    struct tenant *next_in_chain;
    struct tenant *older, *newer; /* by last use */
    struct bucket buckets[QUOTA_RATES];
    unsigned running[QUOTA_SHARES];
    char name[ID_TENANT_MAX + 1];
};

struct rate {
    double per_ns, burst; /* per_ns 0: no limit */
    double per_s;         /* for the message */
};

struct quota {
    struct lock lock;
    uint64_t (*now)(void);
    struct rate rates[QUOTA_RATES];
    unsigned shares[QUOTA_SHARES];
    struct tenant *chains[CHAINS];
    struct tenant *oldest, *newest;
    unsigned count;
};

/* Within [1, max]: enough for counts and seconds, and it saves the mathematics library. */
static unsigned round_up(double value, unsigned max)
{
    if (!(value > 1))
        return 1;
    if (value >= max)
        return max;

    unsigned whole = (unsigned)value;
    return whole + (whole < value);
}

static struct rate rate_of(double per_s, unsigned burst)
{
    if (!(per_s > 0)) /* NaN, too */
        return (struct rate){0};
    double size = burst ? burst : round_up(per_s, 1000000000);
    return (struct rate){.per_ns = per_s / (double)NS_PER_S, .burst = size, .per_s = per_s};
}

static void limits_apply(struct quota *q, const struct quota_limits *l)
{
    q->rates[QUOTA_REQUESTS] = rate_of(l->requests_per_s, l->requests_burst);
    q->rates[QUOTA_CREATES] = rate_of(l->creates_per_s, l->creates_burst);
    q->shares[QUOTA_EXECS] = l->execs;
    q->shares[QUOTA_SANDBOXES] = l->sandboxes;
}

struct quota *quota_new(const struct quota_limits *limits, uint64_t (*now)(void))
{
    struct quota *q = calloc(1, sizeof *q);
    if (!q)
        return NULL;

    lock_init(&q->lock, LOCK_QUOTA);
    q->now = now ? now : clock_now;
    limits_apply(q, limits);
    return q;
}

void quota_free(struct quota *q)
{
    if (!q)
        return;
    while (q->oldest) {
        struct tenant *t = q->oldest;
        q->oldest = t->newer;
        free(t);
    }

    lock_done(&q->lock);
    free(q);
}

void quota_set_limits(struct quota *q, const struct quota_limits *limits)
{
    lock_take(&q->lock);
    limits_apply(q, limits);
    lock_release(&q->lock);
}

/* Tenants. */

static void bucket_fill(struct bucket *b, const struct rate *r, uint64_t now)
{
    if (now > b->since)
        b->tokens += (double)(now - b->since) * r->per_ns;
    if (b->tokens > r->burst)
        b->tokens = r->burst;
    b->since = now;
}

static void unlink_by_use(struct quota *q, struct tenant *t)
{
    *(t->older ? &t->older->newer : &q->oldest) = t->newer;
    *(t->newer ? &t->newer->older : &q->newest) = t->older;
    t->older = t->newer = NULL;
}

static void link_newest(struct quota *q, struct tenant *t)
{
    t->older = q->newest;
    *(q->newest ? &q->newest->newer : &q->oldest) = t;
    q->newest = t;
}

static struct tenant **place_of(struct quota *q, const char *name)
{
    struct tenant **at = &q->chains[hash_bytes(name, strlen(name)) & (CHAINS - 1)];
    while (*at && strcmp((*at)->name, name) != 0)
        at = &(*at)->next_in_chain;
    return at;
}

static int is_idle(struct quota *q, struct tenant *t, uint64_t now)
{
    for (int i = 0; i < QUOTA_SHARES; i++)
        if (t->running[i])
            return 0;

    for (int i = 0; i < QUOTA_RATES; i++) {
        if (q->rates[i].per_ns == 0)
            continue;
        bucket_fill(&t->buckets[i], &q->rates[i], now);
        if (t->buckets[i].tokens < q->rates[i].burst)
            return 0;
    }
    return 1;
}

/* Forgets the oldest of the idle ones. */
static int forget_one(struct quota *q, uint64_t now)
{
    for (struct tenant *t = q->oldest; t; t = t->newer) {
        if (!is_idle(q, t, now))
            continue;
        unlink_by_use(q, t);
        *place_of(q, t->name) = t->next_in_chain;
        q->count--;
        free(t);
        return 0;
    }
    return -1;
}

static struct tenant *tenant_get(struct quota *q, const char *name, uint64_t now, struct pd_err *e)
{
    struct tenant *t = *place_of(q, name);
    if (t) {
        unlink_by_use(q, t);
        link_newest(q, t);
        return t;
    }

    if (!id_is_tenant(name)) {
        pd_fail(e, PD_INVALID, "\"%.80s\" is no tenant", name);
        return NULL;
    }

    if (q->count >= TENANTS_MAX && forget_one(q, now) < 0) {
        pd_fail(e, PD_CAPACITY, "%u tenants are active at once, which is the limit; try again",
                TENANTS_MAX);
        return NULL;
    }

    t = calloc(1, sizeof *t);
    if (!t) {
        pd_fail(e, PD_CAPACITY, "out of memory");
        return NULL;
    }

    snprintf(t->name, sizeof t->name, "%s", name);
    for (int i = 0; i < QUOTA_RATES; i++)
        t->buckets[i] = (struct bucket){.tokens = q->rates[i].burst, .since = now};

    /* Only now: forgetting may have changed the chain. */
    *place_of(q, name) = t;
    link_newest(q, t);
    q->count++;
    return t;
}

/* The calls. */

static int take_locked(struct quota *q, const char *tenant, enum quota_rate which,
                       unsigned *retry_s, struct pd_err *e)
{
    static const char *const names[] = {"requests", "new sandboxes"};
    const struct rate *r = &q->rates[which];

    if (r->per_ns == 0)
        return 0;

    uint64_t now = q->now();
    struct tenant *t = tenant_get(q, tenant, now, e);
    if (!t)
        return -1;

    struct bucket *b = &t->buckets[which];
    bucket_fill(b, r, now);
    if (b->tokens >= 1) {
        b->tokens -= 1;
        return 0;
    }

    unsigned seconds = round_up((1 - b->tokens) / r->per_s, 86400);
    if (retry_s)
        *retry_s = seconds;
    return pd_fail(e, PD_RATE,
                   "tenant %s is over its limit of %g %s per second (%g at once): try again in "
                   "%u s",
                   tenant, r->per_s, names[which], r->burst, seconds);
}

int quota_take(struct quota *q, const char *tenant, enum quota_rate rate, unsigned *retry_s,
               struct pd_err *e)
{
    lock_take(&q->lock);
    int result = take_locked(q, tenant, rate, retry_s, e);
    lock_release(&q->lock);
    return result;
}

static int enter_locked(struct quota *q, const char *tenant, enum quota_share which, int limited,
                        unsigned *retry_s, struct pd_err *e)
{
    static const char *const names[] = {"running commands", "sandboxes"};

    struct tenant *t = tenant_get(q, tenant, q->now(), e);
    if (!t)
        return -1;

    unsigned limit = q->shares[which];
    if (limited && limit && t->running[which] >= limit) {
        if (retry_s)
            *retry_s = 1;
        return pd_fail(e, PD_RATE,
                       "tenant %s has %u %s, and %u is its limit: end one, or try again later",
                       tenant, t->running[which], names[which], limit);
    }

    t->running[which]++;
    return 0;
}

int quota_enter(struct quota *q, const char *tenant, enum quota_share share, unsigned *retry_s,
                struct pd_err *e)
{
    lock_take(&q->lock);
    int result = enter_locked(q, tenant, share, 1, retry_s, e);
    lock_release(&q->lock);
    return result;
}

int quota_adopt(struct quota *q, const char *tenant, enum quota_share share, struct pd_err *e)
{
    lock_take(&q->lock);
    int result = enter_locked(q, tenant, share, 0, NULL, e);
    lock_release(&q->lock);
    return result;
}

void quota_leave(struct quota *q, const char *tenant, enum quota_share share)
{
    lock_take(&q->lock);
    struct tenant *t = *place_of(q, tenant);
    if (t && t->running[share])
        t->running[share]--;
    lock_release(&q->lock);
}

unsigned quota_running(struct quota *q, const char *tenant, enum quota_share share)
{
    lock_take(&q->lock);
    struct tenant *t = *place_of(q, tenant);
    unsigned running = t ? t->running[share] : 0;
    lock_release(&q->lock);
    return running;
}
