/* How the pool works: threads keep some sandboxes of the usual kinds ready, without an owner. Who
 * creates a session takes one if there is one that fits, which costs microseconds, and makes his
 * own otherwise. How many of a profile are kept grows with every miss, up to the maximum, and
 * shrinks again when nobody misses any. A sandbox in the pool has a row in the store, so that none
 * is forgotten. Those of providers with images are in image_pool.c.
 *
 * Where ways out are asked for there are such sandboxes, too: with one of their own, whose rules
 * allow nothing until somebody takes it with his.
 *
 * Those for code (POOL_CODE, `contexts_warm_pool` of them) are of the profile that E2B's clients
 * get, and have a zygote: an interpreter with its libraries imported (context_zygote.c). No code
 * ran in it, and whoever takes one keeps it to its end. Those with a way out and those without
 * share that number: one that is made is of the kind that was wanted last, and whoever finds none
 * of his kind makes one of the other kind give its place. */
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
#define CODE_QUIET_NS (500 * NS_PER_MS) /* importing the libraries takes about as long */
#define WARM_PATIENCE (2 * NS_PER_S)

static bool is_usual(const struct sessions *all, const struct session_request *r)
{
    return !memcmp(&r->spec.limits, &all->c.limits, sizeof r->spec.limits) &&
           r->spec.network != NETWORK_HOST && r->spec.bind_count == 0 && !r->spec.root_dir[0] &&
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
    for (unsigned p = 0; p < POOL_CODE; p++)
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

    bool goes_out = r->spec.network == NETWORK_GATE;
    unsigned p = r->spec.profile + (goes_out ? POOL_OUT : 0), kind = POOL_CODE + goes_out;
    struct session *s = NULL;
    if (is_for_code(r)) {
        all->pool_code_out = goes_out;
        s = take_ready(all, kind);
        all->pool_code_missed |= !s;
    }
    if (!s) {
        kind = p;
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
    bool may_wait = all->pool_count[kind] > 0;
    lock_release(&all->lock);
    atomic_store(&all->pool_owes, true);
    if (!may_wait)
        sessions_answered(all);
    return s;
}

void sessions_answered(struct sessions *all)
{
    if (atomic_load(&all->pool_owes) && atomic_exchange(&all->pool_owes, false))
        pthread_cond_signal(&all->pool_cond); /* without the lock that it would wait for */
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

/* Those for code, of both kinds. */
static unsigned code_count(const struct sessions *all)
{
    unsigned count = 0;
    for (unsigned kind = POOL_CODE; kind < POOL_KINDS; kind++)
        count += all->pool_count[kind] + all->pool_making[kind];
    return count;
}

/* The kind for code of which one is to go, or -1: there are more than are kept, or one is in the
 * place of another that was missed. */
static int surplus(const struct sessions *all)
{
    int wanted = POOL_CODE + all->pool_code_out, other = POOL_CODE + !all->pool_code_out;
    unsigned count = code_count(all), most_kept = all->c.contexts_warm_pool;
    if (all->pool_count[other] &&
        (count > most_kept || (count == most_kept && all->pool_code_missed)))
        return other;
    return all->pool_count[wanted] && count > most_kept ? wanted : -1;
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
    for (int p = 0; p < POOL_CODE; p++) {
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

    bool has_room = code_count(all) < all->c.contexts_warm_pool;
    return found < 0 && has_room ? POOL_CODE + all->pool_code_out : found;
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

/* One that is ready for the pool, or NULL. */
static struct session *make_one(struct sessions *all, unsigned kind)
{
    struct pd_err e;
    struct provider *provider = all->c.providers->list[0];
    struct spec spec = SPEC_DEFAULT;
    bool is_code = kind >= POOL_CODE, goes_out = is_code ? kind > POOL_CODE : kind >= POOL_OUT;
    spec.profile = is_code ? PROFILE_DEV : (enum profile)(kind % POOL_OUT);
    spec.limits = all->c.limits;
    if (goes_out)
        spec.network = NETWORK_GATE;
    struct session *s = sessions_prepare(all, provider, &spec);
    if (!s)
        return NULL;

    sessions_register(s, LIFE_FILLING);
    int r = session_store(s, &e);
    if (r == 0)
        r = sessions_make_box(s, &e);
    if (r == 0)
        r = pool_step(s, LIFE_WARMING, &e);
    if (r == 0) {
        warm_up(s);
        if (is_code)
            warm_up_code(s);
        r = pool_step(s, LIFE_READY, &e);
    }

    if (r == 0)
        return s;
    log_warn("pool.fill", "error=%s", e.msg);
    session_abandon(s, e.msg); /* half of it may be there */
    session_unref(s);
    return NULL;
}

/* With the lock held, which others may have while it is made. */
static void add_one(struct sessions *all, unsigned kind)
{
    all->pool_making[kind]++;
    lock_release(&all->lock);
    struct session *s = make_one(all, kind);
    lock_take(&all->lock);

    all->pool_making[kind]--;
    if (!s)
        all->pool_failed_ms = time_now_ms();
    else if (pool_is_ready(s)) /* not lost since that step */
        all->pool[kind][all->pool_count[kind]++] = s;
    else
        session_unref(s); /* the controller ends it */
    pthread_cond_broadcast(&all->control_cond);
}

/* Likewise. */
static void let_one_go(struct sessions *all, int kind)
{
    struct session *s = all->pool[kind][--all->pool_count[kind]];
    struct pd_err e;

    all->stats.pool_dropped++;
    lock_release(&all->lock);
    (void)session_end(s, END_IDLE, "another kind is kept ready in its place", &e);
    session_unref(s);
    lock_take(&all->lock);
}

/* Making one takes as much time as whoever just took one has for his first command, or for his
 * first cell: not now, unless there is none left. */
static bool is_quiet(const struct sessions *all, int kind)
{
    uint64_t quiet = kind >= POOL_CODE ? CODE_QUIET_NS : QUIET_NS;
    return clock_now() - all->pool_taken_at > quiet;
}

void *pool_main(void *arg)
{
    struct sessions *all = arg;

    lock_take(&all->lock);

    while (!all->stopping) {
        int p = lacking(all), gives_way = surplus(all);
        if (gives_way >= 0 && is_quiet(all, gives_way)) {
            let_one_go(all, gives_way);
            continue;
        }
        if (p >= 0 && (!all->pool_count[p] || is_quiet(all, p))) {
            all->pool_code_missed &= p < POOL_CODE;
            add_one(all, (unsigned)p);
            continue;
        }
        bool rests = p < 0 && gives_way < 0;
        (void)lock_wait(&all->pool_cond, &all->lock, deadline_in(rests ? NS_PER_S : QUIET_NS / 2));
    }

    lock_release(&all->lock);
    return NULL;
}
