/* How the queue works: a creation that finds no room waits in line. Who ends a session lets in the
 * first of the line whose tenant has room; so a tenant at its own limit holds up nobody else. */
#include "core/session_state.h"

#include "base/banned.h"
#include "base/err.h"

struct tenant_count *queue_tenant(struct sessions *all, const char *tenant)
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

/* Lets a creation in if there is room. It holds a place from now on, which becomes the sandbox's
 * when there is one. With the lock held. */
static bool let_in(struct sessions *all, const char *tenant)
{
    struct tenant_count *t = queue_tenant(all, tenant);
    if (!t || all->live + all->let_in >= all->c.max_sessions ||
        t->live + t->let_in >= all->c.max_per_tenant)
        return false;

    t->let_in++;
    all->let_in++;
    return true;
}

void queue_give_back(struct sessions *all, struct tenant_count *t)
{
    t->let_in--;
    all->let_in--;
}

void queue_wake(struct sessions *all)
{
    for (struct queue_entry *q = all->queue; q; q = q->next)
        if (!q->may_start && let_in(all, q->tenant)) {
            q->may_start = true;
            pthread_cond_signal(&q->cond);
        }
}

void queue_leave(struct sessions *all, const char *tenant)
{
    lock_take(&all->lock);
    struct tenant_count *t = queue_tenant(all, tenant);
    if (t) /* its counts were made when it was let in */
        queue_give_back(all, t);
    queue_wake(all);
    lock_release(&all->lock);
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

bool queue_try(struct sessions *all, const char *tenant)
{
    lock_take(&all->lock);

    /* Every queued tenant is at its limit, so admitting this caller overtakes no one. */
    bool entered = let_in(all, tenant);
    lock_release(&all->lock);
    return entered;
}

int queue_enter(struct sessions *all, const char *tenant, uint64_t timeout_ms,
                struct queue_place *ret, struct pd_err *e)
{
    *ret = (struct queue_place){0};

    lock_take(&all->lock);
    if (let_in(all, tenant)) {
        lock_release(&all->lock);
        return 0;
    }

    if (all->queue_len >= all->c.queue_max || timeout_ms == 0) {
        all->stats.queue_refused++;
        pd_fail(e, PD_CAPACITY,
                "%u sandboxes are running (at most %u, %u per tenant) and %u creations wait: end "
                "a sandbox or try again later",
                all->live + all->let_in, all->c.max_sessions, all->c.max_per_tenant,
                all->queue_len);
        lock_release(&all->lock);
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

    while (!q.may_start && !all->stopping && lock_wait(&q.cond, &all->lock, d))
        ;
    bool started = q.may_start;
    unlink_entry(all, &q);
    if (!started)
        all->stats.queue_refused++;
    lock_release(&all->lock);

    pthread_cond_destroy(&q.cond);
    ret->waited_ms = (clock_now() - since) / NS_PER_MS;
    if (started)
        return 0;
    return pd_fail(e, PD_CAPACITY,
                   "no room for another sandbox within %llu ms (place %u in the queue): end one or "
                   "try again later",
                   (unsigned long long)ret->waited_ms, ret->position);
}
