/* Containers are slow to make, and there are as many kinds of them as there are images. So those
 * are kept ready that somebody uses: a creation leaves a shelf of its kind, a thread of its own
 * keeps `image_pool` sandboxes on it, and clears it when nobody has asked for `image_pool_ttl`.
 * The server's own image has shelves from the start, if its provider is the default one.
 *
 * Nothing has ever run in a sandbox on a shelf but init, which waits there. Nothing comes back:
 * whoever takes one keeps it to its end. They are sandboxes of the session layer as those of
 * pool.c: each has a row, so a daemon that starts ends those of the one before, and whatever ends
 * one takes it from its shelf first, under the lock of all.
 *
 * Before one is given out its engine is asked whether it still runs and whether its image is still
 * the one of that name. In any doubt it is marked as lost, which has it ended, and the next is
 * looked at. */
#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "telemetry/log.h"

#define RETRY_MS       5000u /* after one failure; twice as long after each further one, */
#define RETRY_DOUBLED  4u    /* but not more often than so many times */
#define QUIET_NS       (100 * NS_PER_MS)
#define LEAVE_MS       60000u /* one that was used later may have the place of one unused so long */
#define CHECK_PATIENCE (10 * NS_PER_S)
/* The image is there, for it was just used: nothing should have to be pulled. */
#define FILL_PATIENCE (30 * NS_PER_S)

/* ---- kinds ---- */

/* What a name stands for may change at any time; then every sandbox has to ask the registry. */
static bool is_asked_for(const struct sessions *all, const struct provider *p, const struct spec *s)
{
    return all->c.images_always_pulled && !strchr(provider_image(p, s), '@');
}

/* May one that was made before stand for one that is made for this request? */
static bool is_poolable(const struct sessions *all, const struct provider *p,
                        const struct session_request *r)
{
    const struct spec *s = &r->spec;
    return p->needs_image && provider_image(p, s)[0] && !is_asked_for(all, p, s) &&
           s->network == NETWORK_NONE && !s->bind_count && !s->root_dir[0] && !s->root_name[0] &&
           !s->options[0] && !r->snapshot;
}

/* All below with the lock of all held, unless it is said. */

static struct shelf *shelf_find(struct sessions *all, const struct provider *p,
                                const struct spec *s)
{
    for (unsigned i = 0; i < SHELVES; i++) {
        struct shelf *f = &all->image_pool.shelves[i];
        if (f->provider == p && f->profile == s->profile && f->min_rung == s->min_rung &&
            !memcmp(&f->limits, &s->limits, sizeof f->limits) && !strcmp(f->image, s->image))
            return f;
    }
    return NULL;
}

static void shelf_free(struct shelf *f)
{
    free(f->image);
    *f = (struct shelf){.provider = NULL};
}

/* A new one in a free place, or in that of the one that is empty and was used longest ago. */
static struct shelf *shelf_add(struct sessions *all, struct provider *p, const struct spec *s)
{
    struct shelf *place = NULL;
    for (unsigned i = 0; i < SHELVES; i++) {
        struct shelf *f = &all->image_pool.shelves[i];
        bool is_idle = !f->provider || (!f->stays && !f->count && !f->making);
        if (is_idle && (!place || f->used_ms < place->used_ms))
            place = f;
    }

    char *image = place ? strdup(s->image) : NULL;
    if (!image)
        return NULL;
    shelf_free(place);
    *place = (struct shelf){.provider = p,
                            .image = image,
                            .profile = s->profile,
                            .min_rung = s->min_rung,
                            .limits = s->limits};
    return place;
}

/* How many are to be ready there. */
static unsigned shelf_target(const struct sessions *all, const struct shelf *f, uint64_t now)
{
    const struct sessions_config *c = &all->c;
    unsigned target =
        f->stays && c->pool_max && c->pool_min > c->image_pool ? c->pool_min : c->image_pool;
    bool is_wanted = f->stays || now - f->used_ms < c->image_pool_ttl_ms;
    bool is_allowed = !c->image_allowed || c->image_allowed(c->image_allowed_arg, f->image);

    if (!is_wanted || !is_allowed)
        return 0;
    return target < SHELF_ROOM ? target : SHELF_ROOM;
}

unsigned image_pool_ready(const struct sessions *all, const struct provider *of)
{
    unsigned count = 0;
    for (unsigned i = 0; i < SHELVES; i++)
        if (!of || all->image_pool.shelves[i].provider == of)
            count += all->image_pool.shelves[i].count;
    return count;
}

unsigned image_pool_filling(const struct sessions *all, const struct provider *of)
{
    unsigned count = 0;
    for (unsigned i = 0; i < SHELVES; i++)
        if (!of || all->image_pool.shelves[i].provider == of)
            count += all->image_pool.shelves[i].making;
    return count;
}

bool image_pool_drop(struct session *s)
{
    struct image_pool *pool = &s->all->image_pool;

    for (unsigned i = 0; i < SHELVES; i++) {
        struct shelf *f = &pool->shelves[i];
        for (unsigned k = 0; k < f->count; k++)
            if (f->ready[k] == s) {
                f->ready[k] = f->ready[--f->count];
                pthread_cond_signal(&pool->cond);
                return true;
            }
    }
    return false;
}

/* ---- taking one ---- */

/* It is being changed meanwhile, so whoever would end it waits, or comes back as the controller
 * does. Without the lock. */
static bool is_sound(struct session *s, struct pd_err *e)
{
    lock_take(&s->lock);
    bool is_there = !s->lost && s->life == LIFE_READY && !s->changing;
    s->changing |= is_there;
    lock_release(&s->lock);
    if (!is_there)
        return pd_fail(e, PD_LOST, "it has ended") == 0;

    rw_read(&s->box_use);
    int r = box_check(s->box, deadline_in(CHECK_PATIENCE), e);
    rw_release(&s->box_use);
    session_end_change(s);
    return r == 0;
}

/* The next on the shelf of this kind, which is the caller's then. */
static struct session *shelf_pop(struct sessions *all, const struct provider *p,
                                 const struct session_request *r)
{
    struct session *s = NULL;

    lock_take(&all->lock);
    struct shelf *f = is_poolable(all, p, r) ? shelf_find(all, p, &r->spec) : NULL;
    if (f) {
        f->used_ms = time_now_ms();
        s = f->count ? f->ready[--f->count] : NULL;
        all->stats.pool_misses += !s;
    }
    lock_release(&all->lock);
    return s;
}

struct session *image_pool_take(struct sessions *all, const struct provider *provider,
                                const struct session_request *r)
{
    struct session *s;
    struct pd_err why;

    while ((s = shelf_pop(all, provider, r))) {
        bool good = is_sound(s, &why);

        lock_take(&all->lock);
        all->stats.pool_hits += good;
        all->stats.pool_dropped += !good;
        all->image_pool.taken_at = clock_now();
        pthread_cond_signal(&all->image_pool.cond);
        lock_release(&all->lock);
        if (good)
            return s;

        log_info("image_pool.drop", "id=%s reason=%s", s->info.id, why.msg);
        session_mark_lost(s, why.msg); /* the controller ends it: it is still in the table */
        session_unref(s);
    }
    return NULL;
}

void image_pool_note(struct sessions *all, struct provider *provider,
                     const struct session_request *r)
{
    if (!provider->needs_image)
        return;

    lock_take(&all->lock);
    if (all->c.image_pool && is_poolable(all, provider, r)) {
        struct shelf *f = shelf_find(all, provider, &r->spec);
        if (!f)
            f = shelf_add(all, provider, &r->spec);
        if (f) {
            f->used_ms = time_now_ms();
            f->failures = 0; /* one was just made */
        }
        pthread_cond_signal(&all->image_pool.cond);
    }
    lock_release(&all->lock);
}

/* ---- filling and clearing ---- */

/* Those for whom there is room beside the sandboxes of clients, and in the pool. */
static unsigned room(const struct sessions *all)
{
    unsigned pooled = image_pool_ready(all, NULL) + image_pool_filling(all, NULL);
    unsigned used = all->live + all->let_in + pooled;
    unsigned free = used < all->c.max_sessions ? all->c.max_sessions - used : 0;
    unsigned most = all->c.image_pool_max > pooled ? all->c.image_pool_max - pooled : 0;
    return free < most ? free : most;
}

/* Too many: beside the sandboxes of clients, or after a reload. */
static bool is_crowded(const struct sessions *all)
{
    unsigned pooled = image_pool_ready(all, NULL) + image_pool_filling(all, NULL);
    return all->live + all->let_in + pooled > all->c.max_sessions || pooled > all->c.image_pool_max;
}

/* An engine that is away comes back; an image that is gone may stay so. */
static uint64_t retry_after(const struct shelf *f)
{
    unsigned more = f->failures > 1 ? f->failures - 1 : 0;
    return (uint64_t)RETRY_MS << (more < RETRY_DOUBLED ? more : RETRY_DOUBLED);
}

/* The shelf that lacks one and was used last, or NULL. */
static struct shelf *lacking(struct sessions *all, uint64_t now)
{
    struct shelf *found = NULL;
    for (unsigned i = 0; i < SHELVES; i++) {
        struct shelf *f = &all->image_pool.shelves[i];
        if (f->provider && now - f->failed_ms >= retry_after(f) &&
            f->count + f->making < shelf_target(all, f, now) &&
            (!found || f->used_ms > found->used_ms))
            found = f;
    }
    return found;
}

/* The shelf that has some and was used longest ago, or NULL. */
static struct shelf *oldest(struct sessions *all)
{
    struct shelf *found = NULL;
    for (unsigned i = 0; i < SHELVES; i++) {
        struct shelf *f = &all->image_pool.shelves[i];
        if (f->count && (!found || f->used_ms < found->used_ms))
            found = f;
    }
    return found;
}

/* One that is to go, which is the caller's then, and why; or NULL. Shelves that nobody needs any
 * more are taken away. */
static struct session *surplus(struct sessions *all, uint64_t now, const char **ret_why)
{
    for (unsigned i = 0; i < SHELVES; i++) {
        struct shelf *f = &all->image_pool.shelves[i];
        unsigned target = f->provider ? shelf_target(all, f, now) : 0;
        if (f->count > target) {
            *ret_why = "it was kept ready for its image, and nobody needed it in time";
            return f->ready[--f->count];
        }
        if (f->provider && !target && !f->making && !f->stays)
            shelf_free(f);
    }

    struct shelf *old = oldest(all), *poor = lacking(all, now);
    bool gives_way = old && poor && !room(all) && now - old->used_ms > LEAVE_MS &&
                     old->used_ms < poor->used_ms && !old->stays;
    if (old && (gives_way || is_crowded(all))) {
        *ret_why = "it was kept ready for its image, and others need the room";
        return old->ready[--old->count];
    }
    return NULL;
}

/* Makes one for a shelf, which stays in its place meanwhile because something is made for it.
 * Without the lock. */
static struct session *make_one(struct sessions *all, const struct shelf *f, struct pd_err *e)
{
    struct spec spec = SPEC_DEFAULT;
    spec.profile = f->profile;
    spec.min_rung = f->min_rung;
    spec.limits = f->limits;
    spec.image = f->image;

    struct session *s = sessions_prepare(all, f->provider, &spec);
    if (!s) {
        (void)pd_fail(e, PD_CAPACITY, "no memory for a session");
        return NULL;
    }

    sessions_register(s, LIFE_FILLING);
    int r = session_store(s, e);
    if (r == 0)
        r = sessions_make_box_in(s, FILL_PATIENCE, e);
    if (r == 0)
        r = pool_step(s, LIFE_WARMING, e); /* nothing of an image runs before it is somebody's */
    if (r == 0)
        r = pool_step(s, LIFE_READY, e);
    if (r == 0)
        return s;

    session_abandon(s, e->msg);
    session_unref(s);
    return NULL;
}

/* With the lock held, which is given up meanwhile. */
static void fill(struct sessions *all, struct shelf *f)
{
    struct pd_err e;

    f->making++;
    lock_release(&all->lock);
    struct session *s = make_one(all, f, &e);

    lock_take(&all->lock);
    f->making--;
    pthread_cond_broadcast(&all->control_cond);
    if (s && pool_is_ready(s)) { /* not lost since its last step */
        f->ready[f->count++] = s;
        f->failures = 0;
        return;
    }

    /* It is tried again for as long as the kind is wanted, less and less often. */
    f->failed_ms = time_now_ms();
    f->failures++;
    lock_release(&all->lock);

    if (s)
        session_unref(s);
    else
        log_warn("image_pool.fill", "error=%s", e.msg);
    lock_take(&all->lock);
}

/* Likewise. */
static void discard(struct sessions *all, struct session *s, const char *why)
{
    struct pd_err e;

    all->stats.pool_dropped++;
    lock_release(&all->lock);
    log_info("image_pool.drop", "id=%s reason=%s", s->info.id, why);
    (void)session_end(s, END_IDLE, why, &e);
    session_unref(s);
    lock_take(&all->lock);
}

/* Making one takes as much of the machine as whoever just took one has for his first command: not
 * now, unless there is none left. */
static bool is_quiet(const struct sessions *all, const struct shelf *f)
{
    return !f->count || clock_now() - all->image_pool.taken_at > QUIET_NS;
}

void *image_pool_main(void *arg)
{
    struct sessions *all = arg;
    const char *why;

    lock_take(&all->lock);
    while (!all->stopping) {
        uint64_t now = time_now_ms();
        struct session *s = surplus(all, now, &why);
        struct shelf *f = s || !room(all) ? NULL : lacking(all, now);
        if (s)
            discard(all, s, why);
        else if (f && is_quiet(all, f))
            fill(all, f);
        else
            (void)lock_wait(&all->image_pool.cond, &all->lock,
                            deadline_in(f ? QUIET_NS / 2 : NS_PER_S));
    }

    lock_release(&all->lock);
    return NULL;
}

/* ---- the whole ---- */

void image_pool_init(struct sessions *all)
{
    static const enum profile usual[] = {PROFILE_STRICT, PROFILE_DEV};
    struct provider *p = all->c.providers->count ? all->c.providers->list[0] : NULL;
    struct session_request r = {.spec = SPEC_DEFAULT};

    cond_init(&all->image_pool.cond);
    r.spec.limits = all->c.limits;
    for (unsigned i = 0; p && i < sizeof usual / sizeof *usual; i++) {
        r.spec.profile = usual[i];
        struct shelf *f = is_poolable(all, p, &r) ? shelf_add(all, p, &r.spec) : NULL;
        if (f)
            f->stays = true;
    }
}

void image_pool_done(struct sessions *all)
{
    for (unsigned i = 0; i < SHELVES; i++) {
        struct shelf *f = &all->image_pool.shelves[i];
        while (f->count)
            session_unref(f->ready[--f->count]);
        shelf_free(f);
    }
    pthread_cond_destroy(&all->image_pool.cond);
}
