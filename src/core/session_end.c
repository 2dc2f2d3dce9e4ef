/* How a session ends: whoever is first marks it as stopping and writes that down, so that a daemon
 * which dies now finishes it at the next start; then the box is taken away from everybody, the
 * processes are buried, and the session is remembered as gone with the time and the reason. */
#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/checks.h"
#include "base/err.h"
#include "telemetry/log.h"

#include <signal.h>

/* Longer than a creation with a copy of files may take, and the end of what it made. */
#define END_PATIENCE  (330 * NS_PER_S)
#define BURY_PATIENCE (60 * NS_PER_S)

void session_bury(struct session *s, bool forget)
{
    struct process *all;
    deadline d = deadline_in(BURY_PATIENCE);
    prepared_forget(s);

    lock_take(&s->lock);

    /* No more can come, and there is no box that could hold up those that are on their way. */
    while (s->starting && lock_wait(&s->changed, &s->lock, d))
        ;
    if (s->starting) {
        log_error("session.bury", "id=%s starting=%u", s->info.id, s->starting);
        checks_failed();
        lock_release(&s->lock);
        return; /* they stay in memory, which is better than under somebody's hands */
    }

    all = s->processes;
    s->processes = NULL;
    s->process_tail = &s->processes;
    lock_release(&s->lock);

    while (all) {
        struct process *p = all;
        struct pd_err e;
        all = p->next;
        p->next = NULL;
        if (forget)
            atomic_store(&p->unwanted, true);
        process_bury(p);
        if (!p->worker) {
            /* In this order: of streams that are closed the recorder stashes nothing more. */
            process_close_streams(p);
            process_drop_stash(p);
            process_discard_output(p);
        }
        if (forget && s->all->c.store->delete_process(s->all->c.store, p->id.bytes, &e) < 0)
            log_warn("process.store", "session=%s error=%s", s->info.id, e.msg);
        process_unref(p);
    }
}

int session_remove_root(struct session *s)
{
    struct pd_err e;
    if (s->root_name[0] && root_remove(s->provider, s->root_name, &e) < 0)
        return -1;

    lock_take(&s->lock);
    s->root_name[0] = 0;
    lock_release(&s->lock);
    return 0;
}

/* ---- the end ---- */

/* Waits, with the lock held, until whoever takes it away has done so. */
static int await_over(struct session *s, struct pd_err *e)
{
    deadline d = deadline_in(END_PATIENCE);
    while (!life_is_over(s->life))
        if (!lock_wait(&s->changed, &s->lock, d))
            return pd_fail(e, PD_TIMEOUT,
                           "sandbox %s is still being %s: its end was asked for and will follow",
                           s->info.id, life_name(s->life));
    return 0;
}

/* Both locks, for steps that the tables see. */
static void lock_both(struct session *s)
{
    lock_take(&s->all->lock);

    lock_take(&s->lock);
}

static void unlock_both(struct session *s)
{
    lock_release(&s->lock);
    lock_release(&s->all->lock);
}

/* With the lock held. */
static void set_reason(struct session *s, enum session_end why, const char *reason)
{
    s->info.end = why;
    snprintf(s->info.end_reason, sizeof s->info.end_reason, "%s", reason);
}

/* The last row: that it is gone, and what is still to be done; or none, when it was nobody's. */
static void store_end(struct session *s, int clean)
{
    struct pd_err e;
    int nobodys = !life_is_owned(s->life);
    if ((nobodys && clean ? session_unstore(s, &e) : session_store(s, &e)) == 0)
        return;

    log_warn("session.store", "id=%s error=%s", s->info.id, e.msg);

    lock_take(&s->lock);
    s->dirty = !nobodys || !clean ? DIRTY : DIRTY_NOT; /* the controller tries again */
    lock_release(&s->lock);
}

/* Takes away what there is of one that is stopping or being discarded; the caller has made it so,
 * and is the only one. What moves have left at other providers is deleted when it has ended,
 * because one of them may not answer: by these one's controllers, unless somebody waits for the
 * end. */
static int take_away(struct session *s, bool waits, struct pd_err *e)
{
    struct pd_err ignored;
    if (session_store(s, &ignored) < 0)
        log_warn("session.store", "id=%s error=%s", s->info.id, ignored.msg);

    rw_write(&s->box_use);
    struct box *box = s->box;
    s->box = NULL;
    rw_release(&s->box_use);

    session_close_network(s);
    if (box)
        box->root_goes = s->root_name[0] != 0;
    int r = box ? box_destroy(box, e) : 0;
    if (r < 0)
        log_error("session.undead", "id=%s error=%s", s->info.id, e->msg);
    int clean = session_remove_root(s) == 0;
    session_bury(s, !life_is_owned(s->life)); /* nobody's has no rows that stay */

    lock_both(s);
    s->info.ended_ms = time_now_ms();
    session_step(s, s->life == LIFE_STOPPING ? LIFE_GONE : LIFE_DISCARDED);
    unlock_both(s);

    store_end(s, clean);
    log_info("session.end", "id=%s cause=%s reason=%s", s->info.id, session_end_name(s->info.end),
             s->info.end_reason);
    if (waits)
        session_finish_moves(s);
    return r;
}

/* Asks for the end of one that is being made: its maker takes it away. With the lock held; its box
 * is cancelled without it. */
static void cancel(struct session *s, enum session_end why, const char *reason)
{
    set_reason(s, why, reason);
    session_step(s, s->life == LIFE_CREATING ? LIFE_CANCELLED : LIFE_SPOILT);
    atomic_store(&s->unwanted, true);
}

/* Of one that is being made, by the maker's thread or the provider's. */
static bool is_unwanted(void *owner)
{
    const struct session *s = owner;
    return atomic_load(&s->unwanted);
}

/* Has a move given up whose target is being made, which may take minutes: whoever waits for the
 * change to be over does not wait for that. One whose old box is lost has to bring it about itself.
 * With both locks held; they are not meanwhile. */
static void give_up_move(struct session *s, enum session_end why, const char *reason)
{
    struct session *target = s->target && !atomic_load(&s->target->unwanted) ? s->target : NULL;
    if (!target || why == END_LOST)
        return;

    session_ref(target);
    unlock_both(s);
    session_cancel(target, why, reason);
    session_unref(target);
    lock_both(s);
}

/* `wait`: for whoever is changing, making or ending it; else 1 then. */
static int end(struct session *s, enum session_end why, const char *reason, int wait,
               struct pd_err *e)
{
    deadline d = deadline_in(END_PATIENCE);
    if (s->stranded) /* it may well run: nobody here can tell, or end it */
        return pd_fail(e, PD_UNSUPPORTED, "sandbox %s cannot be ended here: %.180s", s->info.id,
                       s->info.end_reason);
    lock_both(s);

    for (;;) {
        give_up_move(s, why, reason);
        if (!s->changing || !wait)
            break;
        lock_release(&s->all->lock);
        int late = !lock_wait(&s->changed, &s->lock, d) && s->changing;
        lock_release(&s->lock);
        if (late)
            return pd_fail(e, PD_TIMEOUT, "sandbox %s is being changed for too long", s->info.id);
        lock_both(s);
    }

    if (s->changing) {
        unlock_both(s);
        return 1;
    }

    int mine = 0, r = 0;
    bool pooled = false, cancelled = life_is_making(s->life);
    if (cancelled) {
        cancel(s, why, reason);
    } else if (!life_is_ending(s->life) && !life_is_over(s->life)) {
        set_reason(s, why, reason);
        pooled = s->life == LIFE_READY && pool_drop(s);
        mine = session_step(s, life_is_owned(s->life) ? LIFE_STOPPING : LIFE_DISCARDING) == 0;
    }

    lock_release(&s->all->lock);

    if (cancelled) { /* an image may be on its way, for minutes */
        lock_release(&s->lock);
        box_cancel(s->provider, s->box_id);
        lock_take(&s->lock);
    }

    if (!mine)
        r = wait ? await_over(s, e) : !life_is_over(s->life);
    lock_release(&s->lock);

    if (mine)
        r = take_away(s, wait, e);
    if (pooled)
        session_unref(s);
    return r;
}

void session_cancel(struct session *s, enum session_end why, const char *reason)
{
    lock_both(s);
    bool making = life_is_making(s->life);
    if (making)
        cancel(s, why, reason);
    unlock_both(s);

    if (making)
        box_cancel(s->provider, s->box_id);
}

int session_end(struct session *s, enum session_end why, const char *reason, struct pd_err *e)
{
    return end(s, why, reason, 1, e);
}

int session_end_unless_changing(struct session *s, enum session_end why, const char *reason,
                                struct pd_err *e)
{
    return end(s, why, reason, 0, e);
}

void session_finish_end(struct session *s)
{
    struct pd_err e;
    lock_both(s);
    int r = session_step(s, life_is_owned(s->life) ? LIFE_STOPPING : LIFE_DISCARDING);
    unlock_both(s);
    if (r == 0)
        (void)take_away(s, false, &e);
}

void session_abandon(struct session *s, const char *reason)
{
    struct pd_err e;
    lock_both(s);
    int cancelled = life_is_ending(s->life);
    if (!cancelled)
        set_reason(s, END_FAILED, reason);
    session_step(s, s->life == LIFE_CANCELLED ? LIFE_STOPPING : LIFE_DISCARDING);
    unlock_both(s);
    (void)take_away(s, false, &e);

    /* One that was cancelled is remembered. One whose root could not be deleted stays until the
     * controller has it deleted. */
    if (!life_is_owned(s->life) && !s->root_name[0])
        sessions_forget(s);
}

/* ---- what the provider tells, on the pump's thread ---- */

void session_mark_lost(struct session *s, const char *why)
{
    lock_take(&s->lock);
    s->lost = true;
    snprintf(s->lost_why, sizeof s->lost_why, "%.190s", why);
    lock_release(&s->lock);

    controller_wake(s);
}

static void on_started(void *owner, struct wire_id id, int pid)
{
    struct session *s = session_heir(owner);
    if (prepared_is(s, id))
        return;

    struct process *p = session_process_by_id(s, id);
    if (!p) {
        /* An earlier daemon had just started it, for a client that is not connected any more. The
         * pump waits for nobody: an init that does not read its socket keeps the command. */
        struct pd_err e;
        if (rw_try_read(&s->box_use)) {
            if (s->box)
                (void)box_signal(s->box, id, SIGKILL, 0, &e);
            rw_release(&s->box_use);
        }
        return;
    }

    lock_take(&p->lock);
    p->pid = pid;
    p->synced = true;
    if (p->line_pid == pid)
        p->line_pid = 0; /* the kernel has given the number once more */
    process_wake(p);
    lock_release(&p->lock);

    process_unref(p);
}

static void on_exited(void *owner, struct wire_id id, const struct msg_exited *end)
{
    struct session *s = session_heir(owner);
    /* The prepared shell first: a line may take it at any moment, and is in the list then. */
    struct process *p = prepared_ended(s, id) ? NULL : session_process_by_id(s, id);
    bool news = p && process_state(p) != PROCESS_SETTLED;
    if (news)
        process_on_exit(p, end);
    process_unref(p);

    /* One that nobody remembers, or whose end is stored: an earlier daemon had just started it, or
     * was killed before it could tell the box. */
    if (!news && rw_try_read(&s->box_use)) {
        if (s->box)
            (void)box_forget(s->box, id);
        rw_release(&s->box_use);
    }
}

static void on_refused(void *owner, struct wire_id id, const struct pd_err *why)
{
    struct session *s = session_heir(owner);
    struct process *p = prepared_ended(s, id) ? NULL : session_process_by_id(s, id);
    if (!p)
        return;
    process_on_refused(p, why);
    process_unref(p);
}

static void on_synced(void *owner)
{
    struct session *s = session_heir(owner);

    lock_take(&s->lock);
    int adopting = s->sync == SYNC_ASKED;
    if (adopting) {
        s->sync = SYNC_TOLD;
        pthread_cond_broadcast(&s->changed);
    }

    lock_release(&s->lock);

    if (adopting)
        controller_wake(s);
}

static void on_lost(void *owner, const struct pd_err *why)
{
    /* In this order: a move that is just handing the box over looks whether it was lost. */
    session_mark_lost(owner, why->msg);
    struct session *s = session_heir(owner);
    if (s != owner)
        session_mark_lost(s, why->msg);
}

static void on_trouble(const struct provider *p, const char *why)
{
    if (why[0])
        log_error("provider.trouble", "provider=%s error=%s", p->name, why);
    else
        log_info("provider.well", "provider=%s", p->name);
}

const struct box_events session_box_events = {.started = on_started,
                                              .exited = on_exited,
                                              .refused = on_refused,
                                              .lost = on_lost,
                                              .synced = on_synced,
                                              .progress = session_note_pull,
                                              .trouble = on_trouble,
                                              .is_unwanted = is_unwanted};
