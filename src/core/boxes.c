/* The boxes that there are must be those of the sandboxes: no more, or something runs that nobody
 * counts; no fewer, or a sandbox is said to run that does not.
 *
 * From time to time the controller asks the provider how many it has, and compares. Sandboxes that
 * are being made, changed or ended may have a box or not, so there is a least and a most. What the
 * provider says is a moment older than what is compared with it: it counts as wrong only when it is
 * so twice in a row and no sandbox took a step in between. */
#include "core/session_state.h"

#include "base/banned.h"
#include "base/checks.h"
#include "base/err.h"
#include "telemetry/log.h"

#define EVERY_NS       (5 * NS_PER_S)
#define COUNT_PATIENCE NS_PER_S

struct box_range {
    unsigned least, most;
};

/* With sessions.lock held. */
static void add_session(struct session *s, struct box_range *range)
{
    if (!s->provider || !s->provider->count)
        return;

    lock_take(&s->lock);
    int has_one = s->life == LIFE_READY || s->life == LIFE_RUNNING || s->life == LIFE_PAUSED;
    int has_none = s->life == LIFE_ASLEEP || s->life == LIFE_NEW || life_is_over(s->life);
    int unsure = s->changing || s->lost || (!has_one && !has_none);
    lock_release(&s->lock);

    range->least += has_one && !unsure;
    range->most += has_one || unsure;
}

static struct box_range expected(struct sessions *all)
{
    struct box_range range = {0};
    lock_take(&all->lock);
    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (struct session *s = all->by_id[i]; s; s = s->next)
            add_session(s, &range);
    lock_release(&all->lock);
    return range;
}

/* Of all providers that can tell. */
static int count_boxes(struct sessions *all, unsigned *ret)
{
    struct pd_err e;
    *ret = 0;

    for (unsigned i = 0; i < all->c.providers->count; i++) {
        struct provider *p = all->c.providers->list[i];
        unsigned boxes = 0;
        if (p->count && p->count(p, &boxes, deadline_in(COUNT_PATIENCE), &e) < 0)
            return -1;
        *ret += boxes;
    }
    return 0;
}

void boxes_look(struct sessions *all)
{
    unsigned boxes;
    if (clock_now() < all->boxes_due_ns)
        return;
    all->boxes_due_ns = clock_now() + EVERY_NS;

    uint64_t steps = atomic_load(&all->steps);
    if (count_boxes(all, &boxes) < 0)
        return; /* a keeper that is away tells of itself elsewhere */

    struct box_range range = expected(all);
    int wrong = boxes < range.least || boxes > range.most;
    int again = wrong && all->boxes_wrong_at == steps + 1 && atomic_load(&all->steps) == steps;
    all->boxes_wrong_at = wrong ? steps + 1 : 0; /* 0 is for "right" */
    if (wrong)
        all->boxes_due_ns = 0; /* soon */

    lock_take(&all->lock);
    all->stats.boxes = boxes;
    all->stats.box_mismatches += again;
    lock_release(&all->lock);
    if (!again)
        return;
    log_error("boxes.mismatch", "boxes=%u least=%u most=%u", boxes, range.least, range.most);
    checks_failed();
}
