/* The boxes that there are must be those of the sandboxes: no more, or something runs that nobody
 * counts; no fewer, or a sandbox is said to run that does not.
 *
 * From time to time the controller of a provider asks it how many it has, and compares. Sandboxes
 * that are being made, changed or ended may have a box or not, so there is a least and a most; one
 * that is being changed may be on its way from one provider to another, and counts for the most of
 * each. What the provider says is a moment older than what is compared with it: it counts as wrong
 * only when it is so twice in a row and no sandbox took a step in between. */
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
static void add_session(struct session *s, const struct provider *p, struct box_range *range)
{
    lock_take(&s->lock);
    bool here = s->provider == p;
    int has_one = s->life == LIFE_READY || s->life == LIFE_RUNNING || s->life == LIFE_PAUSED;
    int has_none = s->life == LIFE_ASLEEP || s->life == LIFE_NEW || life_is_over(s->life);
    bool changing = s->changing;
    int unsure = changing || s->lost || (!has_one && !has_none);
    lock_release(&s->lock);

    range->least += here && has_one && !unsure;
    range->most += (here && (has_one || unsure)) || changing;
}

static struct box_range expected(struct sessions *all, const struct provider *p)
{
    struct box_range range = {0};
    lock_take(&all->lock);
    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (struct session *s = all->by_id[i]; s; s = s->next)
            add_session(s, p, &range);
    lock_release(&all->lock);
    return range;
}

/* Writes down what was counted, and what all have together. */
static void note_boxes(struct controller *c, unsigned boxes, int mismatches)
{
    struct sessions *all = c->all;
    unsigned sum = 0;

    lock_take(&all->lock);
    c->boxes = boxes;
    for (unsigned i = 0; i < PROVIDERS_MAX; i++)
        sum += all->controllers[i].boxes;
    all->stats.boxes = sum;
    all->stats.box_mismatches += mismatches;
    lock_release(&all->lock);
}

void boxes_look(struct controller *c)
{
    struct sessions *all = c->all;
    struct provider *p = controller_provider(c);
    unsigned boxes = 0;
    struct pd_err e;
    if (!p || !p->count || clock_now() < c->boxes_due_ns)
        return;
    c->boxes_due_ns = clock_now() + EVERY_NS;

    uint64_t steps = atomic_load(&all->steps);
    if (p->count(p, &boxes, deadline_in(COUNT_PATIENCE), &e) < 0)
        return; /* a keeper that is away tells of itself elsewhere */

    struct box_range range = expected(all, p);
    int wrong = boxes < range.least || boxes > range.most;
    int again = wrong && c->boxes_wrong_at == steps + 1 && atomic_load(&all->steps) == steps;
    c->boxes_wrong_at = wrong ? steps + 1 : 0; /* 0 is for "right" */
    if (wrong)
        c->boxes_due_ns = 0; /* soon */

    note_boxes(c, boxes, again);
    if (!again)
        return;
    log_error("boxes.mismatch", "provider=%s boxes=%u least=%u most=%u", p->name, boxes,
              range.least, range.most);
    checks_failed();
}
