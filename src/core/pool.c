/* How the pool works: threads keep some sandboxes of the usual kinds ready, without an owner. Who
 * creates a session takes one if there is one that fits, which costs microseconds, and makes his
 * own otherwise. How many of a profile are kept grows with every miss, up to the maximum, and
 * shrinks again when nobody misses any. A sandbox in the pool has a row in the store, so that none
 * is forgotten. Those of providers with images are in image_pool.c.
 *
 * Those for code (POOL_CODE, `contexts_warm_pool` of them) are of the profile that E2B's clients
 * get, and have a zygote: an interpreter with its libraries imported (context_zygote.c). No code
 * ran in it, and whoever takes one keeps it to its end. */
#include "core/context.h"
#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "telemetry/log.h"

/* The profiles that clients get who name none: here, and at the door for E2B's. */
#define IS_USUAL(p)   ((p) == PROFILE_STRICT || (p) == PROFILE_DEV)
#define WANTED_FOR_MS (10u * 60 * 1000) /* a profile that nobody asked for is not kept ready */
#define SHRINK_MS     60000u
#define RETRY_MS      5000u
#define POOL_ROOM     64u
#define QUIET_NS      (20 * NS_PER_MS)
#define WARM_PATIENCE (2 * NS_PER_S)

static bool is_usual(const struct sessions *all, const struct session_request *r)
{
    return !memcmp(&r->spec.limits, &all->c.limits, sizeof r->spec.limits) &&
           r->spec.network == NETWORK_NONE && r->spec.bind_count == 0 && !r->spec.root_dir[0] &&
           !r->spec.root_name[0] && !r->spec.image[0] && !r->spec.options[0];
}

/* How many of a profile are kept at least, and at most. One elsewhere is paid for as long as it
 * waits: nobody has any who did not ask for them. */
static unsigned least(const struct sessions *all)
{
    return all->c.providers->list[0]->is_far ? all->c.image_pool : all->c.pool_min;
}

static unsigned most(const struct sessions *all)
{
    return all->c.providers->list[0]->is_far ? all->c.image_pool : all->c.pool_max;
}

void pool_set_targets(struct sessions *all)
{
    for (unsigned p = 0; p < PROFILE_COUNT; p++)
        all->pool_target[p] = least(all);
}

unsigned pool_filling(const struct sessions *all)
{
    unsigned count = 0;
    for (unsigned p = 0; p < POOL_KINDS; p++)
        count += all->pool_making[p];
    return count + image_pool_filling(all, NULL);
}

bool pool_is_ready(struct session *s)
{
    lock_take(&s->lock);
    bool ready = !s->lost && s->life == LIFE_READY;
    lock_release(&s->lock);
    return ready;
}

/* A sandbox that moves between providers would lose its interpreter. */
static bool is_for_code(const struct session_request *r)
{
    return r->spec.profile == PROFILE_DEV && !r->mode && r->template_name &&
           !strcmp(r->template_name, CODE_TEMPLATE);
}

/* With the lock held. */
static struct session *take_ready(struct sessions *all, unsigned kind)
{
    while (all->pool_count[kind]) {
        struct session *s = all->pool[kind][--all->pool_count[kind]];
        if (pool_is_ready(s))
            return s;
        session_unref(s); /* the controller ends it: it is still in the table */
    }
    return NULL;
}

struct session *pool_take(struct sessions *all, const struct provider *provider,
                          const struct session_request *r)
{
    if (provider->needs_image)
        return image_pool_take(all, provider, r);

    lock_take(&all->lock);
    if (provider != all->c.providers->list[0] || !is_usual(all, r)) {
        lock_release(&all->lock);
        return NULL;
    }

    unsigned p = r->spec.profile;
    struct session *s = is_for_code(r) ? take_ready(all, POOL_CODE) : NULL;
    if (!s) {
        all->pool_wanted_ms[p] = time_now_ms();
        s = take_ready(all, p);
    }

    if (s) {
        all->stats.pool_hits++;
    } else if (most(all)) {
        all->stats.pool_misses++;
        if (all->pool_target[p] < most(all))
            all->pool_target[p]++;
        all->pool_missed_ms[p] = time_now_ms();
    }

    all->pool_taken_at = clock_now();
    lock_release(&all->lock);
    pthread_cond_signal(&all->pool_cond); /* without the lock that it would wait for */
    return s;
}

bool pool_drop(struct session *s)
{
    struct sessions *all = s->all;

    for (unsigned p = 0; p < POOL_KINDS; p++)
        for (unsigned i = 0; i < all->pool_count[p]; i++)
            if (all->pool[p][i] == s) {
                all->pool[p][i] = all->pool[p][--all->pool_count[p]];
                pthread_cond_signal(&all->pool_cond);
                return true;
            }
    return image_pool_drop(s);
}

/* The kind that lacks most sandboxes, or -1 when none lacks any. Those for code take longest, and
 * come last. */
static int lacking(struct sessions *all)
{
    uint64_t now = time_now_ms();
    if (now - all->pool_failed_ms < RETRY_MS || all->c.providers->list[0]->needs_image)
        return -1;
    int found = -1;
    unsigned lacks = 0;
    for (int p = 0; p < PROFILE_COUNT; p++) {
        unsigned target = all->pool_target[p], there = all->pool_count[p] + all->pool_making[p];
        if (target > least(all) && now - all->pool_missed_ms[p] > SHRINK_MS) {
            target = --all->pool_target[p];
            all->pool_missed_ms[p] = now;
        }
        target = target < most(all) ? target : most(all);
        target = target < POOL_ROOM ? target : POOL_ROOM;
        int wanted = IS_USUAL(p) || now - all->pool_wanted_ms[p] < WANTED_FOR_MS;
        if (wanted && there < target && target - there > lacks) {
            lacks = target - there;
            found = p;
        }
    }

    unsigned code = all->pool_count[POOL_CODE] + all->pool_making[POOL_CODE];
    return found < 0 && code < all->c.contexts_warm_pool ? POOL_CODE : found;
}

/* Runs something in it, so that the first command of whoever gets it finds its cgroup made and the
 * programs of the sandbox in memory. What becomes of it does not matter, and nobody sees it. */
static void warm_up(struct session *s)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    struct process *p;
    struct watch w;
    struct pd_err e;
    bool known;
    (void)msg_list_add(&argv, "/bin/true");
    struct process_request r = {
        .argv = msg_list_of(&argv), .env = {.text = ""}, .cwd = "/", .unseen = true};
    if (session_start(s, &r, &p, &known, &e) == 0) {
        if (process_watch(p, &w, &e) == 0) {
            (void)process_wait(p, &w, -1, deadline_in(WARM_PATIENCE), &e);
            process_unwatch(p, &w);
        }
        process_unref(p);
    }

    msg_list_writer_done(&argv);
}

int pool_step(struct session *s, enum life to, struct pd_err *e)
{
    lock_take(&s->lock);
    int r = life_is_ending(s->life)
                ? pd_fail(e, PD_SESSION_LOST, "it was lost: %.150s", s->info.end_reason)
                : session_step(s, to);
    lock_release(&s->lock);
    return r;
}

/* Without its interpreter it is as good as any other. */
static void warm_up_code(struct session *s)
{
    struct pd_err e;
    if (zygote_start(s, s->all->c.contexts_warm, &e) < 0)
        log_warn("pool.code", "session=%s error=%s", s->info.id, e.msg);
}

static void add_one(struct sessions *all, unsigned kind)
{
    struct pd_err e;
    struct provider *provider = all->c.providers->list[0];
    struct spec spec = SPEC_DEFAULT;
    spec.profile = kind == POOL_CODE ? PROFILE_DEV : (enum profile)kind;
    spec.limits = all->c.limits;
    struct session *s = sessions_prepare(all, provider, &spec);
    if (!s)
        return;

    sessions_register(s, LIFE_FILLING);
    int r = session_store(s, &e);
    if (r == 0)
        r = sessions_make_box(s, &e);
    if (r == 0)
        r = pool_step(s, LIFE_WARMING, &e);
    if (r == 0) {
        warm_up(s);
        if (kind == POOL_CODE)
            warm_up_code(s);
        r = pool_step(s, LIFE_READY, &e);
    }

    lock_take(&all->lock);
    if (r < 0)
        all->pool_failed_ms = time_now_ms();
    else if (pool_is_ready(s)) /* not lost since that step */
        all->pool[kind][all->pool_count[kind]++] = session_ref(s);
    lock_release(&all->lock);

    if (r < 0) {
        log_warn("pool.fill", "error=%s", e.msg);
        session_abandon(s, e.msg); /* half of it may be there */
    }

    session_unref(s);
}

/* Making one takes as much time as whoever just took one has for his first command: not now, unless
 * there is none left. */
static bool is_quiet(const struct sessions *all, int kind)
{
    return !all->pool_count[kind] || clock_now() - all->pool_taken_at > QUIET_NS;
}

void *pool_main(void *arg)
{
    struct sessions *all = arg;

    lock_take(&all->lock);

    while (!all->stopping) {
        int p = lacking(all);
        if (p >= 0 && is_quiet(all, p)) {
            all->pool_making[p]++;
            lock_release(&all->lock);
            add_one(all, (unsigned)p);
            lock_take(&all->lock);
            all->pool_making[p]--;
            pthread_cond_broadcast(&all->control_cond);
            continue;
        }
        (void)lock_wait(&all->pool_cond, &all->lock, deadline_in(p < 0 ? NS_PER_S : QUIET_NS / 2));
    }

    lock_release(&all->lock);
    return NULL;
}
