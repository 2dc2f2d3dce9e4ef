/* How samples are taken: the controller of each provider looks at the sessions there a few times a
 * second, and takes a sample of the running ones whose turn it is. Turns are spread by the
 * session's id, so that many sessions that were made (or adopted) together are not asked at the
 * same moment. Of very many each has its turn less often: every sample costs the keeper as much as
 * a tenth of a creation, and with ten thousand sandboxes it would do nothing else. A provider that
 * cannot tell costs a sample, nothing else: it is left alone for a while then, because it may have
 * taken its time, and its controller has other things to do. */
#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"

#define SAMPLES_KEPT 60u
#define EVERY_NS     (5 * NS_PER_S)
#define MOST_PER_S   200u
#define FRESH_MS     1000u
#define REST_NS      (5 * NS_PER_S)

void samples_rebase(struct session *s, uint64_t cpu_usec)
{
    s->samples.cpu_usec = cpu_usec;
    s->samples.since_ns = clock_now();
    s->samples.paused_ns = 0;
}

void samples_pause(struct session *s, bool paused)
{
    struct samples *m = &s->samples;
    uint64_t now = clock_now();
    if (!paused && m->paused_ns)
        m->since_ns += now - m->paused_ns;
    m->paused_ns = paused ? now : 0;
}

/* With the lock held. */
static void add(struct session *s, const struct box_usage *u)
{
    struct samples *m = &s->samples;
    uint64_t now = clock_now();
    if (!m->ring && !(m->ring = calloc(SAMPLES_KEPT, sizeof *m->ring)))
        return;
    uint64_t used = u->cpu_usec > m->cpu_usec ? u->cpu_usec - m->cpu_usec : 0;
    uint64_t passed = now > m->since_ns ? (now - m->since_ns) / 1000 : 0;
    uint64_t part = passed ? used * 100000 / passed : 0;
    m->ring[m->next] =
        (struct session_sample){.at_ms = time_now_ms(),
                                .cpu_milli_pct = part < UINT32_MAX ? (uint32_t)part : UINT32_MAX,
                                .memory = u->memory,
                                .memory_limit = s->info.spec.limits.memory,
                                .disk_used = u->disk_used,
                                .disk_total = u->disk_total};
    m->next = (m->next + 1) % SAMPLES_KEPT;
    m->count += m->count < SAMPLES_KEPT;
    m->cpu_usec = u->cpu_usec;
    m->since_ns = now;
}

/* Holds the box for reading, unless somebody has it and this is not worth waiting for. */
static int take_box(struct session *s, int wait)
{
    if (!wait)
        return rw_try_read(&s->box_use);

    rw_read(&s->box_use);
    return 1;
}

/* `wait`: for whoever has the box just now. -1: the provider could not tell. */
static int take(struct session *s, int wait)
{
    struct box_usage u = {0};
    struct pd_err e;
    int known = -1;

    lock_take(&s->lock);
    int mine = !s->samples.taking && s->info.state == SESSION_RUNNING && !s->lost;
    if (mine)
        s->samples.taking = true;
    lock_release(&s->lock);

    if (!mine)
        return 0;
    int asked = 0;
    if (take_box(s, wait)) {
        asked = s->box != NULL;
        if (asked)
            known = box_get_usage(s->box, &u, &e);
        rw_release(&s->box_use);
    }

    lock_take(&s->lock);
    s->samples.taking = false;
    if (known == 0 && s->info.state == SESSION_RUNNING)
        add(s, &u);
    lock_release(&s->lock);
    return asked && known < 0 ? -1 : 0;
}

uint64_t samples_every(size_t sessions)
{
    uint64_t least = sessions * (NS_PER_S / MOST_PER_S);
    return least > EVERY_NS ? least : EVERY_NS;
}

void samples_look(struct controller *c, struct session *s, uint64_t every)
{
    uint64_t now = clock_now();

    lock_take(&s->lock);
    int due = 0;
    if (now < c->samples_rest_ns) {
        /* later */
    } else if (s->life != LIFE_RUNNING) {
        s->samples.due_ns = 0;
    } else if (!s->samples.due_ns || s->samples.due_ns > now + every) { /* there were more */
        s->samples.due_ns = now + hash_bytes(s->info.id, strlen(s->info.id)) % every;
    } else if (now >= s->samples.due_ns) {
        due = 1;
        /* After a standstill of the whole machine once, not for every turn that was missed. */
        s->samples.due_ns += every;
        if (s->samples.due_ns <= now)
            s->samples.due_ns = now + every;
    }

    lock_release(&s->lock);

    if (due && take(s, 0) < 0)
        c->samples_rest_ns = clock_now() + REST_NS;
}

/* The i-th, the oldest first. */
static const struct session_sample *sample_at(const struct samples *m, unsigned i)
{
    return &m->ring[(m->next + SAMPLES_KEPT - m->count + i) % SAMPLES_KEPT];
}

unsigned session_samples(struct session *s, uint64_t from_ms, uint64_t to_ms,
                         struct session_sample *ret, unsigned max)
{
    const struct samples *m = &s->samples;
    uint64_t now = time_now_ms();

    lock_take(&s->lock);
    int stale = !m->count || now - sample_at(m, m->count - 1)->at_ms > FRESH_MS;
    lock_release(&s->lock);

    /* "Until now" was a moment ago when it was written. */
    if (!to_ms || to_ms + FRESH_MS >= now) {
        to_ms = UINT64_MAX;
        if (stale)
            (void)take(s, 1);
    }

    unsigned fit = 0, given = 0;

    lock_take(&s->lock);

    for (int counting = 1; counting >= 0; counting--)
        for (unsigned i = 0, skip = fit > max ? fit - max : 0; i < m->count; i++) {
            const struct session_sample *at = sample_at(m, i);
            if (at->at_ms < from_ms || at->at_ms > to_ms)
                continue;
            if (counting)
                fit++;
            else if (skip)
                skip--;
            else
                ret[given++] = *at;
        }
    lock_release(&s->lock);
    return given;
}
