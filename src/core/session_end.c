/* How a session ends: whoever is first marks it as stopping and writes that down, so that a daemon
 * which dies now finishes it at the next start; then the box is taken away from everybody, the
 * processes are buried, and the session is remembered as gone with the time and the reason. */
#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "telemetry/log.h"

#include <signal.h>

void session_bury(struct session *s, int forget)
{
    struct process *all;
    pthread_mutex_lock(&s->lock);
    /* No more can come, and there is no box that could hold up those that are on their way. */
    while (s->starting)
        pthread_cond_wait(&s->changed, &s->lock);
    all = s->processes;
    s->processes = NULL;
    s->process_tail = &s->processes;
    pthread_mutex_unlock(&s->lock);
    while (all) {
        struct process *p = all;
        struct provider *provider = s->all->c.provider;
        char key[MSG_KEY_MAX + 1];
        struct pd_err e;
        all = p->next;
        p->next = NULL;
        if (forget)
            atomic_store(&p->buried, 1);
        if (!p->worker) {
            process_bury(p);
            pthread_mutex_lock(&p->lock);
            int out = p->stashed, in = p->stashed_input;
            p->stashed = p->stashed_input = 0;
            pthread_mutex_unlock(&p->lock);
            process_stash_key(p, "out", key);
            if (out)
                provider->drop(provider, key);
            process_stash_key(p, "in", key);
            if (in)
                provider->drop(provider, key);
            process_close_streams(p);
            for (unsigned i = 0; i < STREAM_COUNT; i++)
                if (p->streams[i].spool.fd >= 0 || p->streams[i].spool.size)
                    (void)unlinkat(s->all->spool_dir, p->streams[i].spool.name, 0);
        } else {
            process_finish(p);
        }
        if (forget && s->all->c.store->delete_process(s->all->c.store, p->id.bytes, &e) < 0)
            log_warn("process.store", "session=%s error=%s", s->info.id, e.msg);
        process_unref(p);
    }
}

static void wait_until_gone(struct session *s)
{
    while (s->info.state != SESSION_GONE)
        pthread_cond_wait(&s->changed, &s->lock);
}

static void mark_gone(struct session *s)
{
    struct sessions *all = s->all;
    pthread_mutex_lock(&all->lock);
    pthread_mutex_lock(&s->lock);
    s->info.state = SESSION_GONE;
    s->info.ended_ms = time_now_ms();
    pthread_cond_broadcast(&s->changed);
    enum session_end end = s->info.end;
    int counted = !s->pooled;
    pthread_mutex_unlock(&s->lock);
    if (counted) {
        queue_count(all, s->info.tenant, -1);
        all->stats.ended[end]++;
        queue_wake(all);
    }
    pthread_mutex_unlock(&all->lock);
}

int session_remove_root(struct session *s)
{
    struct provider *provider = s->all->c.provider;
    struct pd_err e;
    if (s->root_name[0] && provider->remove_root(provider, s->root_name, &e) < 0)
        return -1;
    pthread_mutex_lock(&s->lock);
    s->root_name[0] = 0;
    pthread_mutex_unlock(&s->lock);
    return 0;
}

static int end(struct session *s, enum session_end why, const char *reason, int wait,
               struct pd_err *e)
{
    struct pd_err ignored;
    pthread_mutex_lock(&s->lock);
    while (s->changing && wait)
        pthread_cond_wait(&s->changed, &s->lock);
    if (s->changing) {
        pthread_mutex_unlock(&s->lock);
        return 1;
    }
    if (s->info.state == SESSION_STOPPING || s->info.state == SESSION_GONE) {
        wait_until_gone(s);
        pthread_mutex_unlock(&s->lock);
        return 0;
    }
    s->info.state = SESSION_STOPPING;
    s->info.end = why;
    s->info.asleep = 0;
    snprintf(s->info.end_reason, sizeof s->info.end_reason, "%s", reason);
    pthread_mutex_unlock(&s->lock);
    if (session_store(s, &ignored) < 0)
        log_warn("session.store", "id=%s error=%s", s->info.id, ignored.msg);
    pthread_rwlock_wrlock(&s->box_use);
    struct box *box = s->box;
    s->box = NULL;
    pthread_rwlock_unlock(&s->box_use);
    struct provider *provider = s->all->c.provider;
    int r = 0;
    if (box)
        r = provider->destroy(box, NULL, NULL, deadline_in(DESTROY_PATIENCE), e);
    if (r < 0)
        log_error("session.undead", "id=%s error=%s", s->info.id, e->msg);
    int clean = session_remove_root(s) == 0;
    session_bury(s, 0);
    mark_gone(s);
    if (s->pooled && clean
            ? s->all->c.store->delete_session(s->all->c.store, s->info.id, &ignored) < 0
            : session_store(s, &ignored) < 0) {
        log_warn("session.store", "id=%s error=%s", s->info.id, ignored.msg);
        pthread_mutex_lock(&s->lock);
        s->dirty = !s->pooled || !clean; /* the controller tries again */
        pthread_mutex_unlock(&s->lock);
    }
    log_info("session.end", "id=%s cause=%s reason=%s", s->info.id, session_end_name(why), reason);
    return r;
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

/* ---- what the provider tells, on the pump's thread ---- */

void session_mark_lost(struct session *s, const char *why)
{
    pthread_mutex_lock(&s->lock);
    s->lost = 1;
    snprintf(s->lost_why, sizeof s->lost_why, "%.190s", why);
    pthread_mutex_unlock(&s->lock);
    controller_wake(s->all);
}

static void on_started(void *owner, struct wire_id id, int pid)
{
    struct session *s = owner;
    struct process *p = session_process_by_id(s, id);
    if (!p) {
        /* An earlier daemon had just started it, for a client that is not connected any more. The
         * pump waits for nobody: an init that does not read its socket keeps the command. */
        struct pd_err e;
        if (pthread_rwlock_tryrdlock(&s->box_use) == 0) {
            if (s->box)
                (void)s->all->c.provider->signal(s->box, id, SIGKILL, 0, &e);
            pthread_rwlock_unlock(&s->box_use);
        }
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->pid = pid;
    p->synced = 1;
    process_wake(p);
    pthread_mutex_unlock(&p->lock);
    process_unref(p);
}

static void on_exited(void *owner, struct wire_id id, const struct msg_exited *end)
{
    struct session *s = owner;
    struct process *p = session_process_by_id(s, id);
    if (p) {
        process_on_exit(p, end);
        process_unref(p);
    } else if (pthread_rwlock_tryrdlock(&s->box_use) == 0) {
        /* One that nobody remembers: an earlier daemon had just started it. */
        if (s->box)
            s->all->c.provider->forget(s->box, id);
        pthread_rwlock_unlock(&s->box_use);
    }
}

static void on_refused(void *owner, struct wire_id id, const struct pd_err *why)
{
    struct process *p = session_process_by_id(owner, id);
    if (!p)
        return;
    process_on_refused(p, why);
    process_unref(p);
}

static void on_synced(void *owner)
{
    struct session *s = owner;
    pthread_mutex_lock(&s->lock);
    int adopting = s->sync == SYNC_ASKED;
    if (adopting) {
        s->sync = SYNC_TOLD;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    if (adopting)
        controller_wake(s->all);
}

static void on_lost(void *owner, const struct pd_err *why)
{
    session_mark_lost(owner, why->msg);
}

const struct box_events session_box_events = {.started = on_started,
                                              .exited = on_exited,
                                              .refused = on_refused,
                                              .lost = on_lost,
                                              .synced = on_synced};
