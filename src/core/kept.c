/* How this works: each stream remembers how much of it was counted, so that counting is adding a
 * difference to three counters (sandbox, tenant, server). A count beyond a limit wakes the
 * recorder, which looks for sandboxes, tenants, and the server, that are beyond theirs. In eighths
 * of the limit:
 *
 *   beyond 8    the whole output of commands that have ended is forgotten, of the one that ended
 *               first before the others, down to 7. A command that somebody holds is left out: its
 *               request is still to be answered.
 *   beyond 9    if that was not enough, the oldest bytes of all streams that are left are, down to
 *               8: as much as is beyond the largest window, then beyond half of it, and so on down
 *               to KEPT_LEAST. Bytes for which a reader has made the writer wait are left.
 *   beyond 10   the recorder is too slow: the pump forgets, too, or makes the writer wait.
 *
 * Looking at every command is slow, and happens only while something is beyond its limit. */
#include "core/kept.h"

#include "core/process_state.h"
#include "core/session_state.h"

#include "base/banned.h"
#include "telemetry/log.h"

#include <sys/statvfs.h>

#define LARGEST_WINDOW (32ull << 20)

void kept_set_limits(struct kept *k, uint64_t sandbox, uint64_t tenant, uint64_t all, int dir)
{
    struct statvfs disk;
    all = all ? all : KEPT_IN_ALL;
    if (fstatvfs(dir, &disk) == 0 && disk.f_blocks) {
        uint64_t half = (uint64_t)disk.f_blocks * disk.f_frsize / 2;
        all = all < half ? all : half;
    }

    atomic_store(&k->limit[0], sandbox ? sandbox : KEPT_PER_SANDBOX);
    atomic_store(&k->limit[1], tenant ? tenant : KEPT_PER_TENANT);
    atomic_store(&k->limit[2], all);
}

/* ---- counting ---- */

void kept_begin(struct process *p)
{
    struct session *s = p->session;

    /* One that the pool warms up has no tenant yet. */
    if (!atomic_load_explicit(&s->kept_by, memory_order_acquire) && s->info.tenant[0]) {
        lock_take(&s->all->lock);
        atomic_store(&s->kept_by, queue_tenant(s->all, s->info.tenant));
        lock_release(&s->all->lock);
    }
    p->kept_by = atomic_load(&s->kept_by);
}

/* The counter of the scope, and the limit. A session of which nobody asked for a command has no
 * tenant's counter yet. */
static bool is_beyond(const struct session *s, unsigned eighths)
{
    const struct kept *k = &s->all->kept;
    const struct tenant_count *t = atomic_load(&s->kept_by);
    return atomic_load(&s->kept) > atomic_load(&k->limit[0]) / 8 * eighths ||
           (t && atomic_load(&t->kept) > atomic_load(&k->limit[1]) / 8 * eighths) ||
           atomic_load(&k->bytes) > atomic_load(&k->limit[2]) / 8 * eighths;
}

bool kept_is_too_much(const struct stream *s)
{
    return is_beyond(s->process->session, 10);
}

static void add(struct stream *s, uint64_t now)
{
    struct session *session = s->process->session;
    struct tenant_count *t = s->process->kept_by;
    uint64_t more = now - s->kept; /* modulo 2^64: may be less */
    if (!more)
        return;

    s->kept = now;
    atomic_fetch_add(&session->kept, more);
    if (t)
        atomic_fetch_add(&t->kept, more);
    atomic_fetch_add(&session->all->kept.bytes, more);
}

void kept_count(struct stream *s)
{
    struct sessions *all = s->process->session->all;
    add(s, s->spool.size - s->spool.first);
    if (is_beyond(s->process->session, 8) && !atomic_exchange(&all->kept.due, true))
        recorder_wake(all);
}

void kept_drop(struct process *p)
{
    for (unsigned i = 0; i < STREAM_ALL; i++)
        add(&p->streams[i], 0);
}

/* ---- forgetting ---- */

/* The part of the output that is looked at: one session's, one tenant's, or (both NULL) all. */
struct scope {
    struct session *session;
    struct tenant_count *tenant;
};

/* Is more kept than so many eighths of the limit? */
static bool scope_beyond(const struct sessions *all, const struct scope *c, unsigned eighths)
{
    unsigned which = c->session ? 0 : c->tenant ? 1 : 2;
    uint64_t limit = atomic_load(&all->kept.limit[which]);
    uint64_t now = c->session  ? atomic_load(&c->session->kept)
                   : c->tenant ? atomic_load(&c->tenant->kept)
                               : atomic_load(&all->kept.bytes);
    return now > limit / 8 * eighths;
}

static bool scope_has(const struct scope *c, const struct session *s)
{
    return c->session ? c->session == s : !c->tenant || atomic_load(&s->kept_by) == c->tenant;
}

/* A command with output, and when it ended; UINT64_MAX: it cannot be forgotten as a whole. */
struct candidate {
    struct process *process; /* held */
    uint64_t ended_ms;
};

struct candidates {
    struct candidate *list;
    size_t count, room;
};

static void candidates_done(struct candidates *c)
{
    for (size_t i = 0; i < c->count; i++)
        process_unref(c->list[i].process);
    free(c->list);
}

static bool candidates_add(struct candidates *c, struct process *p, uint64_t ended_ms)
{
    if (c->count == c->room) {
        size_t room = c->room ? 2 * c->room : 256;
        struct candidate *grown = realloc(c->list, room * sizeof *grown);
        if (!grown)
            return false; /* the others will do for now */
        c->list = grown;
        c->room = room;
    }

    c->list[c->count++] = (struct candidate){process_ref(p), ended_ms};
    return true;
}

/* May its whole output go? `refs`: how many it has when nobody works with it. With the locks of
 * session and process held, so that nobody begins to. */
static bool is_forgettable(const struct process *p, unsigned refs)
{
    return !process_is_live(p) && !p->readers && process_streams_are_over(p) &&
           atomic_load(&p->refs) == refs;
}

static int compare_ends(const void *a, const void *b)
{
    const struct candidate *one = a, *other = b;
    return one->ended_ms < other->ended_ms ? -1 : one->ended_ms > other->ended_ms;
}

/* Everything in the scope that has output; those that ended first are first. */
static void collect(struct session *const *list, size_t count, const struct scope *c,
                    struct candidates *ret)
{
    for (size_t i = 0; i < count; i++) {
        struct session *s = list[i];
        if (!scope_has(c, s) || !atomic_load(&s->kept))
            continue;

        lock_take(&s->lock);
        for (struct process *p = s->processes; p; p = p->next) {
            lock_take(&p->lock);
            uint64_t kept = p->streams[STREAM_OUT].kept + p->streams[STREAM_ERR].kept +
                            p->streams[STREAM_EVENTS].kept;
            uint64_t ended_ms = is_forgettable(p, 1) ? p->ended_ms : UINT64_MAX;
            lock_release(&p->lock);
            if (kept && !candidates_add(ret, p, ended_ms))
                break;
        }
        lock_release(&s->lock);
    }

    if (ret->count)
        qsort(ret->list, ret->count, sizeof *ret->list, compare_ends);
}

/* Returns false when somebody works with it after all. */
static bool forget(struct process *p)
{
    struct session *s = p->session;
    struct spool gone[STREAM_ALL];
    struct pd_err e;

    lock_take(&s->lock);
    lock_take(&p->lock);
    bool may = is_forgettable(p, 2);
    for (unsigned i = 0; i < STREAM_ALL && may; i++) {
        struct spool *spool = &p->streams[i].spool;
        gone[i] = *spool;
        spool->fd = -1;
        spool->head = NULL;
        spool->first = spool->size;
    }
    if (may) {
        p->forgotten = true;
        kept_drop(p);
    }

    bool stored = p->stored;
    lock_release(&p->lock);
    lock_release(&s->lock);
    if (!may)
        return false;

    for (unsigned i = 0; i < process_stream_count(p); i++)
        spool_remove(&gone[i]);
    atomic_fetch_add(&s->all->kept.forgotten, 1);
    if (stored && process_store(p, &e) < 0)
        log_warn("process.store", "session=%s error=%s", s->info.id, e.msg);
    return true;
}

static void shrink(const struct candidates *c, uint64_t window)
{
    for (size_t i = 0; i < c->count; i++) {
        struct process *p = c->list[i].process;
        lock_take(&p->lock);
        for (unsigned n = 0; n < process_stream_count(p); n++)
            stream_shrink(&p->streams[n], window);
        lock_release(&p->lock);
    }
}

static void trim_scope(struct sessions *all, struct session *const *list, size_t count,
                       const struct scope *c)
{
    struct candidates found __attribute__((cleanup(candidates_done))) = {0};
    unsigned forgotten = 0;

    collect(list, count, c, &found);
    for (size_t i = 0; i < found.count && scope_beyond(all, c, 7); i++)
        if (found.list[i].ended_ms != UINT64_MAX)
            forgotten += forget(found.list[i].process);

    uint64_t window = scope_beyond(all, c, 9) ? LARGEST_WINDOW : 0;
    for (; window >= KEPT_LEAST && scope_beyond(all, c, 8); window /= 2)
        shrink(&found, window);

    if (forgotten)
        log_info("output.forget", "scope=%s outputs=%u",
                 c->session  ? c->session->info.id
                 : c->tenant ? c->tenant->name
                             : "server",
                 forgotten);
}

void kept_trim(struct sessions *all)
{
    size_t count = 0;
    lock_take(&all->lock);
    struct session **list = sessions_hold_all(all, &count);
    struct tenant_count *tenants = all->tenants; /* never freed while this runs */
    lock_release(&all->lock);

    for (size_t i = 0; i < count; i++) {
        struct scope one = {.session = list[i]};
        if (scope_beyond(all, &one, 8))
            trim_scope(all, list, count, &one);
    }

    for (struct tenant_count *t = tenants; t; t = t->next) {
        struct scope tenant = {.tenant = t};
        if (scope_beyond(all, &tenant, 8))
            trim_scope(all, list, count, &tenant);
    }

    struct scope everybody = {0};
    if (scope_beyond(all, &everybody, 8))
        trim_scope(all, list, count, &everybody);

    for (size_t i = 0; i < count; i++)
        session_unref(list[i]);
    free(list);
}
