/* The life of a sandbox: one table of states with the steps that each allows, and one function that
 * takes them. Nobody else writes `life`, `owned`, info.state, info.asleep or a count of sandboxes,
 * so a sandbox is counted once however many end it. */
#include "core/session_life.h"

#include "core/session_state.h"

#include "base/banned.h"
#include "base/checks.h"
#include "telemetry/log.h"

#define TO(name) (1u << LIFE_##name)

struct life_row {
    const char *name;
    enum session_state state; /* as clients see it, and as the row in the store says */
    bool owned;               /* found and listed */
    int counted;              /* takes a place, if it has none yet */
    int over;                 /* gives it back */
    unsigned next;
};

static const struct life_row lives[LIFE_COUNT] = {
    /* From new to the right of creating: adopted, from the row of an earlier daemon. */
    [LIFE_NEW] = {"new", SESSION_CREATING, 0, 0, 0,
                  TO(FILLING) | TO(CREATING) | TO(READY) | TO(CANCELLED) | TO(RUNNING) |
                      TO(PAUSED) | TO(ASLEEP) | TO(GONE)},
    [LIFE_FILLING] = {"filling", SESSION_CREATING, 0, 0, 0,
                      TO(WARMING) | TO(SPOILT) | TO(DISCARDING)},
    [LIFE_WARMING] = {"warming", SESSION_RUNNING, 0, 0, 0, TO(READY) | TO(SPOILT) | TO(DISCARDING)},
    [LIFE_SPOILT] = {"spoilt", SESSION_STOPPING, 0, 0, 0, TO(DISCARDING)},
    [LIFE_READY] = {"ready", SESSION_CREATING, 0, 0, 0, TO(CREATING) | TO(DISCARDING)},
    [LIFE_CREATING] = {"creating", SESSION_CREATING, 1, 1, 0,
                       TO(RUNNING) | TO(CANCELLED) | TO(DISCARDING)},
    [LIFE_CANCELLED] = {"cancelled", SESSION_STOPPING, 1, 1, 0, TO(STOPPING)},
    [LIFE_RUNNING] = {"running", SESSION_RUNNING, 1, 1, 0, TO(PAUSED) | TO(ASLEEP) | TO(STOPPING)},
    [LIFE_PAUSED] = {"paused", SESSION_PAUSED, 1, 1, 0, TO(RUNNING) | TO(ASLEEP) | TO(STOPPING)},
    /* To paused: it could not be written down that it sleeps. */
    [LIFE_ASLEEP] = {"asleep", SESSION_PAUSED, 1, 1, 0, TO(RUNNING) | TO(PAUSED) | TO(STOPPING)},
    [LIFE_STOPPING] = {"stopping", SESSION_STOPPING, 1, 1, 0, TO(GONE)},
    [LIFE_GONE] = {"gone", SESSION_GONE, 1, 0, 1, 0},
    [LIFE_DISCARDING] = {"discarding", SESSION_STOPPING, 0, 0, 0, TO(DISCARDED)},
    [LIFE_DISCARDED] = {"discarded", SESSION_GONE, 0, 0, 1, 0},
};

const char *life_name(enum life l)
{
    return (unsigned)l < LIFE_COUNT ? lives[l].name : "unknown";
}

bool life_is_making(enum life l)
{
    return l == LIFE_FILLING || l == LIFE_WARMING || l == LIFE_CREATING;
}

bool life_is_ending(enum life l)
{
    return lives[l].state == SESSION_STOPPING;
}

bool life_is_over(enum life l)
{
    return lives[l].over;
}

enum session_state life_state(enum life l)
{
    return lives[l].state;
}

bool life_is_owned(enum life l)
{
    return lives[l].owned;
}

/* ---- places ---- */

/* A creation was let in before its sandbox was there: what it holds becomes the sandbox's. */
static void take_place(struct session *s, int was_let_in)
{
    struct tenant_count *t = queue_tenant(s->all, s->info.tenant);
    if (!t) /* no memory for its name: so it cannot have been let in, it is adopted */
        return;

    if (was_let_in)
        queue_give_back(s->all, t);
    s->counts_for = t;
    t->live++;
    s->all->live++;
}

static void leave_place(struct session *s)
{
    s->counts_for->live--;
    s->all->live--;
    s->counts_for = NULL;
    queue_wake(s->all);
}

/* Every sandbox in the table that has a place, counted anew. Too slow for a release. */
static void check_counts(const struct sessions *all)
{
    unsigned found = 0, of_tenants = 0;
    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (const struct session *s = all->by_id[i]; s; s = s->next)
            found += s->counts_for != NULL;
    for (const struct tenant_count *t = all->tenants; t; t = t->next)
        of_tenants += t->live;

    if (found == all->live && found == of_tenants)
        return;
    log_error("session.count", "counted=%u tenants=%u found=%u", all->live, of_tenants, found);
    checks_failed();
}

/* ---- steps ---- */

int session_step(struct session *s, enum life to)
{
    enum life from = s->life;
    if (!(lives[from].next & 1u << to)) {
        log_error("session.step", "id=%s from=%s to=%s error=illegal", s->info.id, life_name(from),
                  life_name(to));
        checks_failed();
        return -1;
    }

    s->life = to;
    s->info.state = lives[to].state;
    s->info.asleep = to == LIFE_ASLEEP;
    int shared = lives[to].owned != lives[from].owned || lives[to].over; /* under sessions.lock */
    if (shared && lives[to].owned && !s->owned)
        names_list(s);
    else if (shared && !lives[to].owned && s->owned)
        names_unlist(s);
    if (shared)
        s->owned = lives[to].owned;
    atomic_fetch_add(&s->all->steps, 1);

    if (lives[to].counted && !s->counts_for)
        take_place(s, to == LIFE_CREATING);
    else if (lives[to].over && s->counts_for)
        leave_place(s);
    if (to == LIFE_GONE && from == LIFE_STOPPING)
        s->all->stats.ended[s->info.end]++;

    session_changed(s);
    if (CHECKS && shared)
        check_counts(s->all);
    pthread_cond_broadcast(&s->changed);
    return 0;
}
