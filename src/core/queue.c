/* How the queue works: a creation that finds no room waits in line. Who ends a session lets in the
 * first of the line whose tenant has room; so a tenant at its own limit holds up nobody else. */
#include "core/session_state.h"

#include "base/banned.h"
#include "base/err.h"

/* Counts of a tenant; made when it is first seen and kept. NULL without memory. */
static struct tenant_count *tenant_of(struct sessions *all, const char *tenant)
{
    for (struct tenant_count *t = all->tenants; t; t = t->next)
        if (!strcmp(t->name, tenant))
            return t;
    struct tenant_count *t = calloc(1, sizeof *t);
    if (t) {
        snprintf(t->name, sizeof t->name, "%s", tenant);
        t->next = all->tenants;
        all->tenants = t;
    }
    return t;
}

static int has_room(struct sessions *all, const char *tenant)
{
    const struct tenant_count *t = tenant_of(all, tenant);
    return t && all->live < all->c.max_sessions && t->live < all->c.max_per_tenant;
}

/* Who is let in counts, whether or not the sandbox is there yet. */
void queue_count(struct sessions *all, const char *tenant, int by)
{
    struct tenant_count *t = tenant_of(all, tenant);
    all->live += (unsigned)by;
    if (t)
        t->live += (unsigned)by;
}

void queue_wake(struct sessions *all)
{
    for (struct queue_entry *q = all->queue; q; q = q->next)
        if (!q->may_start && has_room(all, q->tenant)) {
            q->may_start = 1;
            queue_count(all, q->tenant, 1);
            pthread_cond_signal(&q->cond);
        }
}

void queue_leave(struct sessions *all, const char *tenant)
{
    pthread_mutex_lock(&all->lock);
    queue_count(all, tenant, -1);
    queue_wake(all);
    pthread_mutex_unlock(&all->lock);
}

static void unlink_entry(struct sessions *all, const struct queue_entry *q)
{
    for (struct queue_entry **at = &all->queue; *at; at = &(*at)->next)
        if (*at == q) {
            *at = q->next;
            break;
        }
    all->queue_len--;
}

/* Who waits has no room, or would have been let in: so nobody is passed by. With the lock held. */
static int enter_at_once(struct sessions *all, const char *tenant)
{
    if (!has_room(all, tenant))
        return 0;
    queue_count(all, tenant, 1);
    return 1;
}

int queue_try(struct sessions *all, const char *tenant)
{
    pthread_mutex_lock(&all->lock);
    int entered = enter_at_once(all, tenant);
    pthread_mutex_unlock(&all->lock);
    return entered;
}

int queue_enter(struct sessions *all, const char *tenant, uint64_t timeout_ms,
                struct queue_place *ret, struct pd_err *e)
{
    *ret = (struct queue_place){0};
    pthread_mutex_lock(&all->lock);
    if (enter_at_once(all, tenant)) {
        pthread_mutex_unlock(&all->lock);
        return 0;
    }
    if (all->queue_len >= all->c.queue_max || timeout_ms == 0) {
        all->stats.queue_refused++;
        pd_fail(e, PD_CAPACITY,
                "%u sandboxes are running (at most %u, %u per tenant) and %u creations wait: end "
                "a sandbox or try again later",
                all->live, all->c.max_sessions, all->c.max_per_tenant, all->queue_len);
        pthread_mutex_unlock(&all->lock);
        return -1;
    }
    struct queue_entry q = {.tenant = tenant};
    cond_init(&q.cond);
    struct queue_entry **at = &all->queue;
    while (*at)
        at = &(*at)->next;
    *at = &q;
    ret->position = ++all->queue_len;
    uint64_t since = clock_now();
    deadline d = deadline_in(timeout_ms * NS_PER_MS);
    queue_wake(all); /* it may be alone in line, behind others of full tenants */
    while (!q.may_start && !all->stopping && cond_wait(&q.cond, &all->lock, d))
        ;
    int let_in = q.may_start;
    unlink_entry(all, &q);
    if (!let_in)
        all->stats.queue_refused++;
    pthread_mutex_unlock(&all->lock);
    pthread_cond_destroy(&q.cond);
    ret->waited_ms = (clock_now() - since) / NS_PER_MS;
    if (let_in)
        return 0;
    return pd_fail(e, PD_CAPACITY,
                   "no room for another sandbox within %llu ms (place %u in the queue): end one or "
                   "try again later",
                   (unsigned long long)ret->waited_ms, ret->position);
}
