/* How controllers work: each provider has a thread that looks at every session there from time to
 * time, or when it is woken, and ends what is due: idle, too old, lost. It also writes down what
 * changed, looks for commands whose last process is gone, and forgets what has been gone for long.
 *
 * It asks its own provider alone, which may be slow or not answer at all: that is no concern of the
 * others' sessions. So what a session that has moved left behind is deleted by the controller of
 * where it is, and what counts over all providers (how many are remembered) is done by whichever
 * controller comes first. One session is looked at by one controller at a time: between two looks
 * it may have changed providers. */
#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "telemetry/log.h"

#define LOOK_MS 250
/* Longer than the pool takes to make a sandbox. */
#define FILL_PATIENCE (60 * NS_PER_S)
#define GONE_MAX      500 /* of a tenant, that are remembered */

struct provider *controller_provider(const struct controller *c)
{
    const struct provider_table *t = c->all->c.providers;
    return c->place < t->count ? t->list[c->place] : NULL;
}

/* Whose session it is: its provider's, or the first one's. A move may change it at any moment. */
static struct controller *controller_of(struct session *s)
{
    struct sessions *all = s->all;

    lock_take(&s->lock);
    const struct provider *at = s->provider;
    lock_release(&s->lock);

    unsigned i = provider_table_index(all->c.providers, at);
    return &all->controllers[i < all->c.providers->count ? i : 0];
}

void controllers_wake(struct sessions *all)
{
    lock_take(&all->lock);
    for (unsigned i = 0; i < PROVIDERS_MAX; i++)
        all->controllers[i].due = true;
    pthread_cond_broadcast(&all->control_cond);
    lock_release(&all->lock);
}

/* The others hear the condition, too, and wait on: nothing is due with them. */
void controller_wake(struct session *s)
{
    struct sessions *all = s->all;

    lock_take(&all->lock);
    controller_of(s)->due = true;
    pthread_cond_broadcast(&all->control_cond);
    lock_release(&all->lock);
}

/* A paused one's clocks stand still. One that is being made may not outlive its time before it is
 * there: an image can take longer. */
static bool clocks_run(const struct session *s)
{
    return s->life == LIFE_RUNNING || (s->life == LIFE_CREATING && !s->info.pause_at_end);
}

/* Somebody is at it, and the next look tells; but a move whose target is being made can be given
 * up. With the lock held. */
static bool is_taken(const struct session *s)
{
    return s->changing && (!s->target || s->info.pause_at_end);
}

/* Why it is to end now, or END_NONE. */
static enum session_end due(struct session *s, uint64_t now, char *reason, size_t size)
{
    enum session_end why = END_NONE;

    lock_take(&s->lock);
    const struct session_info *i = &s->info;
    if (life_is_ending(s->life) || life_is_over(s->life) || is_taken(s)) {
        /* it is on its way, or will be */
    } else if (s->lost) {
        why = END_LOST;
        snprintf(reason, size, "%s", s->lost_why);
    } else if (!clocks_run(s)) {
        /* nothing is due */
    } else if (now >= i->created_ms + i->max_life_ms) {
        why = END_EXPIRED;
        snprintf(reason, size, "its maximum life of %llu s is over",
                 (unsigned long long)(i->max_life_ms / 1000));
    } else if (s->life == LIFE_RUNNING && !s->attended &&
               now >= i->last_used_ms + i->idle_timeout_ms) {
        why = END_IDLE;
        snprintf(reason, size, "nobody used it for %llu s",
                 (unsigned long long)(i->idle_timeout_ms / 1000));
    }

    lock_release(&s->lock);
    return why;
}

/* Groups whose command has ended while children of it went on. */
static void look_for_empty_groups(struct session *s)
{
    uint64_t lingering[GROUPS / 64];
    int any = 0;

    lock_take(&s->lock);
    memcpy(lingering, s->lingering, sizeof lingering);
    lock_release(&s->lock);

    for (unsigned i = 0; i < GROUPS / 64; i++)
        any |= lingering[i] != 0;
    if (!any || !rw_try_read(&s->box_use))
        return;

    for (unsigned g = 1; g < GROUPS && s->box; g++)
        if (lingering[g / 64] >> g % 64 & 1 && box_group_is_empty(s->box, g)) {
            lock_take(&s->lock);
            group_release(s, g, 0);
            lock_release(&s->lock);
        }
    rw_release(&s->box_use);
}

static bool is_gone(struct session *s)
{
    lock_take(&s->lock);
    int gone = s->info.state == SESSION_GONE;
    lock_release(&s->lock);
    return gone;
}

/* Have moves left roots somewhere? */
static bool has_left(struct session *s)
{
    lock_take(&s->lock);
    bool left = s->other_root != NULL;
    lock_release(&s->lock);
    return left;
}

/* Forgets one that ended at `ended_by` or before. */
static void forget_if_old(struct session *s, uint64_t ended_by)
{
    struct pd_err e;

    lock_take(&s->lock);
    int old = s->info.state == SESSION_GONE && !s->root_name[0] && !s->other_root && !s->stranded &&
              s->info.ended_ms <= ended_by;
    lock_release(&s->lock);

    if (old && session_unstore(s, &e) == 0)
        sessions_forget(s);
}

/* By tenant, and the one that ended last first. Of sessions that are gone nothing changes any more.
 */
static int compare_gone(const void *a, const void *b)
{
    const struct session *one = *(struct session *const *)a, *other = *(struct session *const *)b;
    int order = strcmp(one->info.tenant, other->info.tenant);
    if (order)
        return order;
    return one->info.ended_ms > other->info.ended_ms ? -1
                                                     : one->info.ended_ms < other->info.ended_ms;
}

/* Forgets the oldest sessions that are gone, beyond GONE_MAX of each tenant, so that a tenant who
 * creates and deletes all day long does not fill the memory. Changes the order of the list. */
static void forget_surplus(struct session **list, size_t count)
{
    size_t gone = 0, rank = 0;
    for (size_t i = 0; i < count; i++)
        if (is_gone(list[i])) {
            struct session *s = list[i];
            list[i] = list[gone];
            list[gone++] = s;
        }
    if (gone <= GONE_MAX)
        return;
    qsort(list, gone, sizeof *list, compare_gone);

    for (size_t i = 0; i < gone; i++) {
        rank = i && !strcmp(list[i]->info.tenant, list[i - 1]->info.tenant) ? rank + 1 : 0;
        if (rank >= GONE_MAX)
            forget_if_old(list[i], UINT64_MAX);
    }
}

/* It was adopted, and asked what its commands do. */
static void look_for_answer(struct session *s)
{
    lock_take(&s->lock);
    int told = s->sync == SYNC_TOLD;
    int late = s->sync == SYNC_ASKED && deadline_passed(s->sync_due);
    if (told || late)
        s->sync = SYNC_NONE;
    lock_release(&s->lock);

    if (told)
        session_settle(s);
    if (late)
        session_mark_lost(s, "it does not answer after the server's restart");
}

/* Removes the root of a session that is gone, if that failed when it ended: the keeper was away. */
static void finish_gone(struct session *s)
{
    struct pd_err e;

    lock_take(&s->lock);
    int left = s->info.state == SESSION_GONE && s->root_name[0];
    lock_release(&s->lock);

    if (!left || session_remove_root(s) < 0)
        return;
    if ((life_is_owned(s->life) ? session_store(s, &e) : session_unstore(s, &e)) < 0)
        log_warn("session.store", "id=%s error=%s", s->info.id, e.msg);
}

/* What every one of them needs from time to time, whatever its provider does. */
static void look_at_own(struct controller *c, struct session *s, bool every_second,
                        uint64_t samples)
{
    char reason[200];
    struct pd_err e;
    uint64_t now = time_now_ms();

    look_for_answer(s);
    enum session_end why = due(s, now, reason, sizeof reason);
    if (why == END_EXPIRED && s->info.pause_at_end) {
        if (session_pause_at_end(s, &e) == 0)
            return;
        log_warn("session.pause_at_end", "id=%s error=%s", s->info.id, e.msg);
    }

    if (why != END_NONE) {
        (void)session_end_unless_changing(s, why, reason, &e);
        return;
    }

    samples_look(c, s, samples);
    prepared_look(s, every_second);
    if (!every_second)
        return;

    lock_take(&s->lock);
    int dirty = s->dirty;
    lock_release(&s->lock);

    if (dirty && session_store(s, &e) < 0) {
        log_warn("session.store", "id=%s error=%s", s->info.id, e.msg);
        lock_take(&s->lock);
        s->dirty = DIRTY;
        lock_release(&s->lock);
    }

    look_for_empty_groups(s);
    finish_gone(s);
    if (now >= s->all->c.gone_kept_ms)
        forget_if_old(s, now - s->all->c.gone_kept_ms);
}

static void look_at(struct controller *c, struct session *s, bool every_second, uint64_t samples)
{
    if (atomic_exchange(&s->looked_at, true))
        return;
    if (controller_of(s) == c)
        look_at_own(c, s, every_second, samples);
    atomic_store(&s->looked_at, false);

    /* The keeper was away when it moved, or the box of an earlier daemon had not ended yet. */
    if (every_second)
        session_finish_move_at(s, controller_provider(c));
}

/* Everybody, held; with the lock held. Looking at them is done without it. */
struct session **sessions_hold_all(struct sessions *all, size_t *ret_count)
{
    size_t count = 0;
    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (struct session *s = all->by_id[i]; s; s = s->next)
            count++;
    struct session **list = malloc((count ? count : 1) * sizeof *list);
    count = 0;

    for (unsigned i = 0; i < SESSION_BUCKETS && list; i++)
        for (struct session *s = all->by_id[i]; s; s = s->next)
            list[count++] = session_ref(s);
    *ret_count = list ? count : 0;
    return list;
}

void sessions_cancel_all(struct sessions *all, const char *reason)
{
    size_t count;

    lock_take(&all->lock);
    struct session **list = sessions_hold_all(all, &count);
    lock_release(&all->lock);

    for (size_t i = 0; i < count; i++) {
        session_cancel(list[i], END_KILLED, reason);
        session_unref(list[i]);
    }
    free(list);
}

void sessions_end_all(struct sessions *all, const char *reason)
{
    size_t count;
    struct pd_err e;

    lock_take(&all->lock);

    /* No more for the pool, and those that are being made are waited for. */
    all->c.pool_max = all->c.image_pool = all->c.contexts_warm_pool = 0;
    deadline d = deadline_in(FILL_PATIENCE);
    while (pool_filling(all) && lock_wait(&all->control_cond, &all->lock, d))
        ;
    struct session **list = sessions_hold_all(all, &count);
    lock_release(&all->lock);

    for (size_t i = 0; i < count; i++) {
        (void)session_end(list[i], END_KILLED, reason, &e);
        finish_gone(list[i]);
        session_unref(list[i]);
    }

    free(list);
}

static void let_go(struct session **list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        session_unref(list[i]);
    free(list);
}

/* Once in a second, by whoever comes first; with the lock held, but not while it works. */
static void forget_of_all(struct sessions *all, uint64_t now)
{
    size_t count;
    if (now < all->surplus_due_ns)
        return;
    all->surplus_due_ns = now + NS_PER_S;

    struct session **list = sessions_hold_all(all, &count);
    lock_release(&all->lock);
    forget_surplus(list, count);
    let_go(list, count);
    lock_take(&all->lock);
}

/* Sessions that are looked at next, each held. */
struct held {
    struct session **list;
    size_t count, room;
};

/* false: there is no memory for one more; those that it has stay. */
static bool hold(struct held *h, struct session *s)
{
    if (h->count == h->room) {
        size_t room = h->room * 2 + 64;
        struct session **more = realloc(h->list, room * sizeof *more);
        if (!more)
            return false;
        h->list = more;
        h->room = room;
    }

    h->list[h->count++] = session_ref(s);
    return true;
}

/* The sessions of its provider, and `every_second` those that may have left something there; with
 * the lock held. Those for which there is no memory have their turn when there is some. */
static struct held hold_own(struct controller *c, bool every_second)
{
    struct held h = {.list = NULL};

    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (struct session *s = c->all->by_id[i]; s; s = s->next)
            if ((controller_of(s) == c || (every_second && has_left(s))) && !hold(&h, s))
                return h;
    return h;
}

/* Looks at those that it holds, without the lock. */
static void look_at_all(struct controller *c, const struct held *h, bool every_second)
{
    uint64_t samples = samples_every(h->count);
    for (size_t i = 0; i < h->count; i++)
        look_at(c, h->list[i], every_second, samples);

    if (every_second) {
        boxes_look(c);
        snapshots_sweep(c->all, controller_provider(c));
    }
}

static void *controller_main(void *arg)
{
    struct controller *c = arg;
    struct sessions *all = c->all;
    uint64_t last_second = 0;

    lock_take(&all->lock);

    while (!all->stopping) {
        uint64_t now = clock_now();
        bool every_second = now - last_second >= NS_PER_S;
        if (every_second)
            last_second = now;
        c->due = false;
        forget_of_all(all, now);
        struct held h = hold_own(c, every_second);
        lock_release(&all->lock);

        look_at_all(c, &h, every_second);
        let_go(h.list, h.count);

        lock_take(&all->lock);
        deadline next = deadline_in(LOOK_MS * NS_PER_MS);
        while (!c->due && !all->stopping && lock_wait(&all->control_cond, &all->lock, next))
            ;
    }

    lock_release(&all->lock);
    return NULL;
}

void controllers_init(struct sessions *all)
{
    for (unsigned i = 0; i < PROVIDERS_MAX; i++)
        all->controllers[i] = (struct controller){.all = all, .place = i};
}

int controllers_start(struct sessions *all, struct pd_err *e)
{
    unsigned count = all->c.providers->count ? all->c.providers->count : 1;

    for (; all->controller_count < count; all->controller_count++) {
        struct controller *c = &all->controllers[all->controller_count];
        if (sessions_start_thread(&c->thread, controller_main, c) != 0)
            return pd_fail(e, PD_CAPACITY, "no thread for the controller");
    }
    return 0;
}

void controllers_join(struct sessions *all)
{
    for (unsigned i = 0; i < all->controller_count; i++)
        pthread_join(all->controllers[i].thread, NULL);
}
