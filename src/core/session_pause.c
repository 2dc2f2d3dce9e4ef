/* How a session stands still, and for how long it lives.
 *
 * Pausing freezes the box. Sleeping takes the box away and keeps the root: the row says so before
 * anything is done, so a daemon that dies half-way finds a session that is asleep and perhaps still
 * has a box, which it ends. Waking writes down the new box's name first and that the session runs
 * last: a daemon that dies in between finds the same, and the session sleeps on. Either way the
 * root is the session's, and is deleted by the session's end alone. */
#include "core/secrets.h"
#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "telemetry/log.h"

/* Longer than a copy of its files may take. */
#define CHANGE_PATIENCE (300 * NS_PER_S)

/* ---- one change at a time ---- */

int session_begin_change(struct session *s, struct pd_err *e)
{
    deadline d = deadline_in(CHANGE_PATIENCE);
    int r = 0;

    lock_take(&s->lock);

    while (r == 0 && s->changing)
        if (!lock_wait(&s->changed, &s->lock, d))
            r = pd_fail(e, PD_TIMEOUT,
                        "sandbox %s is being changed by another request for too long", s->info.id);
    if (r == 0)
        s->changing = true;
    lock_release(&s->lock);
    return r;
}

void session_end_change(struct session *s)
{
    lock_take(&s->lock);
    s->changing = false;
    pthread_cond_broadcast(&s->changed);
    lock_release(&s->lock);
}

/* Paused ones, too: for calls that need no process. With the lock held. */
static int usable_or_paused(struct session *s, struct pd_err *e)
{
    return s->info.state == SESSION_PAUSED && !s->lost ? 0 : session_usable(s, e);
}

/* ---- time ---- */

/* How long it has been standing still. */
static uint64_t still_ms(const struct session *s, uint64_t now)
{
    return s->info.state == SESSION_PAUSED && now > s->paused_at_ms ? now - s->paused_at_ms : 0;
}

static void set_end(struct session *s, uint64_t at_ms)
{
    uint64_t from = s->info.created_ms + still_ms(s, time_now_ms());
    s->info.max_life_ms = at_ms > from ? at_ms - from : 0;
}

int session_extend(struct session *s, uint64_t idle_timeout_ms, uint64_t expires_in_ms,
                   struct pd_err *e)
{
    lock_take(&s->lock);
    int r = usable_or_paused(s, e);
    if (r == 0) {
        s->info.last_used_ms = time_now_ms();
        if (idle_timeout_ms)
            s->info.idle_timeout_ms = idle_timeout_ms;
        if (expires_in_ms)
            set_end(s, time_now_ms() + expires_in_ms);
        session_changed(s);
    }

    lock_release(&s->lock);
    return r < 0 ? -1 : session_store(s, e);
}

int session_expire_at(struct session *s, uint64_t at_ms, bool only_extend, struct pd_err *e)
{
    lock_take(&s->lock);
    int r = usable_or_paused(s, e);
    if (r == 0) {
        uint64_t now = time_now_ms();
        uint64_t ends = s->info.created_ms + s->info.max_life_ms + still_ms(s, now);
        s->info.last_used_ms = now;
        if (!only_extend || at_ms > ends)
            set_end(s, at_ms);
        session_changed(s);
    }

    lock_release(&s->lock);
    return r < 0 ? -1 : session_store(s, e);
}

/* ---- with memory ---- */

/* The clocks go on where they stood. With the lock held. */
static void mark_running(struct session *s)
{
    uint64_t now = time_now_ms();
    s->info.max_life_ms += still_ms(s, now);
    session_step(s, LIFE_RUNNING);
    s->info.last_used_ms = now;
    s->paused_at_ms = 0;
    samples_pause(s, false);
}

/* `still`: paused, or asleep. */
static void mark_paused(struct session *s, enum life still)
{
    session_step(s, still);
    s->paused_at_ms = time_now_ms();
    samples_pause(s, true);
}

static int freeze(struct session *s, int frozen, struct pd_err *e)
{
    if (frozen)
        prepared_give_up(s);

    rw_read(&s->box_use);
    int r =
        s->box ? box_pause(s->box, frozen, e) : pd_fail(e, PD_SESSION_LOST, "the sandbox is gone");
    if (r == 0 && !frozen && s->needs_sync) {
        r = box_sync(s->box, deadline_in(s->provider->patience.pause), e);
        s->needs_sync = r < 0;
        if (r == 0)
            session_settle(s);
    }

    rw_release(&s->box_use);
    if (r < 0)
        return -1;

    lock_take(&s->lock);
    if (frozen)
        mark_paused(s, LIFE_PAUSED);
    else
        mark_running(s);
    lock_release(&s->lock);
    return session_store(s, e);
}

int session_pause(struct session *s, struct pd_err *e)
{
    if (session_begin_change(s, e) < 0)
        return -1;

    lock_take(&s->lock);
    int done = s->info.state == SESSION_PAUSED && !s->lost;
    int r = done ? 0 : session_usable(s, e);
    lock_release(&s->lock);

    if (r == 0 && !done)
        r = freeze(s, 1, e);
    session_end_change(s);
    return r;
}

/* ---- without ---- */

/* Its box is gone, or never was this daemon's: nothing of it is left in the session. */
static void forget_box(struct session *s)
{
    session_bury(s, true);

    lock_take(&s->lock);

    groups_forget(s);
    s->oom_seen = s->pids_seen = 0;
    s->needs_sync = false;
    s->sync = SYNC_NONE;
    s->lost = false; /* what was lost is not needed any more */
    lock_release(&s->lock);
}

static int drop_box(struct session *s, struct pd_err *e)
{
    rw_write(&s->box_use);
    struct box *box = s->box;
    s->box = NULL;
    rw_release(&s->box_use);
    session_close_network(s);
    int r = box ? box_destroy(box, e) : 0;
    if (r < 0)
        log_error("session.undead", "id=%s error=%s", s->info.id, e->msg);
    forget_box(s);
    return r;
}

static int fall_asleep(struct session *s, struct pd_err *e)
{
    if (s->info.state == SESSION_RUNNING)
        prepared_give_up(s);

    /* Otherwise a provider that starts anew would take its files for leftovers. */
    if (root_keep(s->provider, s->root_name, e) < 0)
        return -1;

    lock_take(&s->lock);
    enum life before = s->life;
    uint64_t paused_at = s->paused_at_ms;
    if (before == LIFE_RUNNING)
        mark_paused(s, LIFE_ASLEEP);
    else
        session_step(s, LIFE_ASLEEP);
    lock_release(&s->lock);

    if (session_store(s, e) < 0) {
        lock_take(&s->lock);
        session_step(s, before);
        s->paused_at_ms = paused_at;
        if (before == LIFE_RUNNING)
            samples_pause(s, false);
        lock_release(&s->lock);
        return -1;
    }

    return drop_box(s, e);
}

static int check_root(const struct session *s, struct pd_err *e)
{
    if (s->root_name[0])
        return 0;
    if (provider_must(s->provider, PROVIDER_SLEEP, e) < 0)
        return -1;
    return pd_fail(e, PD_UNSUPPORTED,
                   "sandbox %s has its files in memory: it can be paused with memory only (or set "
                   "storage to keep files on disk)",
                   s->info.id);
}

int session_sleep(struct session *s, struct pd_err *e)
{
    if (session_begin_change(s, e) < 0)
        return -1;

    lock_take(&s->lock);
    int asleep = s->info.state == SESSION_PAUSED && s->info.asleep;
    int r = asleep ? 0 : usable_or_paused(s, e);
    if (r == 0)
        r = check_root(s, e);
    lock_release(&s->lock);

    if (r == 0 && !asleep)
        r = fall_asleep(s, e);
    session_end_change(s);
    if (r == 0 && !asleep)
        log_info("session.sleep", "id=%s", s->info.id);
    return r;
}

void session_finish_sleep(struct session *s, struct box *box)
{
    struct pd_err e;
    s->box = box;
    (void)drop_box(s, &e);
}

/* A box is made with an empty root where there is none. A sleeper has one: it is marked once more,
 * which fails when its files are not there. */
static int check_files(const struct session *s, struct pd_err *e)
{
    if (root_keep(s->provider, s->root_name, e) == 0)
        return 0;
    if (e->code != PD_NOT_FOUND)
        return -1;
    return pd_fail(
        e, PD_SESSION_LOST,
        "sandbox %s cannot be woken: its files are gone from the server's disk. Put them "
        "back, or delete it and make a new one",
        s->info.id);
}

static int wake_up(struct session *s, struct pd_err *e)
{
    struct pd_err ignored;

    if (check_files(s, e) < 0)
        return -1;

    lock_take(&s->lock);
    s->box_id = wire_id_new();
    lock_release(&s->lock);

    if (session_store(s, e) < 0 || sessions_make_box(s, e) < 0)
        return -1;

    lock_take(&s->lock);
    uint64_t paused_at = s->paused_at_ms, max_life = s->info.max_life_ms;
    mark_running(s);
    lock_release(&s->lock);

    if (session_store(s, e) == 0) {
        log_info("session.wake", "id=%s", s->info.id);
        return 0;
    }

    lock_take(&s->lock);
    mark_paused(s, LIFE_ASLEEP);
    s->paused_at_ms = paused_at;
    s->info.max_life_ms = max_life;
    lock_release(&s->lock);

    (void)drop_box(s, &ignored);
    return -1;
}

/* Rules that came meanwhile may have brought whom to trust. It runs all the same. */
static void give_what_is_due(struct session *s)
{
    struct pd_err e;

    lock_take(&s->lock);
    bool owes = s->owes_trust;
    lock_release(&s->lock);
    if (owes && session_give_secrets(s, NULL, false, &e) < 0)
        log_warn("session.trust", "id=%s error=%s", s->info.id, e.msg);
}

int session_resume(struct session *s, struct pd_err *e)
{
    if (session_begin_change(s, e) < 0)
        return -1;

    lock_take(&s->lock);
    int done = s->info.state == SESSION_RUNNING && !s->lost, asleep = s->info.asleep;
    int r = done ? 0 : usable_or_paused(s, e);
    lock_release(&s->lock);

    if (r == 0 && !done)
        r = asleep ? wake_up(s, e) : freeze(s, 0, e);
    session_end_change(s);
    if (r == 0 && !done)
        give_what_is_due(s);
    return r;
}

int session_pause_at_end(struct session *s, struct pd_err *e)
{
    lock_take(&s->lock);

    /* Somebody may have given it more time, or be at it. */
    int due = !s->changing && s->info.state == SESSION_RUNNING && !s->lost &&
              time_now_ms() >= s->info.created_ms + s->info.max_life_ms;
    if (due)
        s->changing = true;
    lock_release(&s->lock);

    if (!due)
        return 0;
    int files_only = s->info.pause_at_end == PAUSE_FILES && s->root_name[0];
    int r = files_only ? fall_asleep(s, e) : freeze(s, 1, e);

    /* Its files at least: but not for a row that could not be written, which is tried again. */
    if (r < 0 && s->info.state == SESSION_RUNNING && s->root_name[0])
        r = fall_asleep(s, e);
    else if (s->info.state == SESSION_PAUSED)
        r = 0;
    session_end_change(s);
    if (r == 0)
        log_info("session.pause_at_end", "id=%s", s->info.id);
    return r;
}

int session_usage(struct session *s, uint64_t *ret_memory, uint64_t *ret_memory_peak,
                  uint64_t *ret_cpu_usec, uint64_t *ret_pids, struct pd_err *e)
{
    struct box_usage u;

    lock_take(&s->lock);
    int r = usable_or_paused(s, e);
    lock_release(&s->lock);

    if (r < 0)
        return -1;

    rw_read(&s->box_use);
    r = s->box ? box_get_usage(s->box, &u, e) : session_no_box(s, e);
    rw_release(&s->box_use);
    if (r < 0)
        return -1;
    *ret_memory = u.memory;
    *ret_memory_peak = u.memory_peak;
    *ret_cpu_usec = u.cpu_usec;
    lock_take(&s->lock);
    unsigned prepared = prepared_count(s); /* nobody asked for it */
    lock_release(&s->lock);
    /* Init alone: the shell is on its way, or just gone. */
    *ret_pids = u.pids > prepared ? u.pids - prepared : u.pids;
    return 0;
}
