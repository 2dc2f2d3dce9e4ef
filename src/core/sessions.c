/* All sandboxes: the table, the threads that look after them, and how one is found. How one is made
 * is in sessions_create.c. */
#include "core/sessions.h"

#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

unsigned sessions_bucket(const char *id)
{
    uint32_t h = 2166136261u;
    for (; *id; id++)
        h = (h ^ (uint8_t)*id) * 16777619u;
    return h % SESSION_BUCKETS;
}

struct session **sessions_place(struct sessions *all, const char *id)
{
    struct session **at = &all->by_id[sessions_bucket(id)];
    while (*at && strcmp((*at)->info.id, id) != 0)
        at = &(*at)->next;
    return at;
}

/* ---- the whole ---- */

struct sessions *sessions_new(const struct sessions_config *c, struct pd_err *e)
{
    struct sessions *all = calloc(1, sizeof *all);
    if (!all) {
        pd_fail(e, PD_CAPACITY, "no memory");
        return NULL;
    }

    all->c = *c;
    atomic_init(&all->prepare_shells, c->prepare_shells);
    pool_set_targets(all);

    lock_init(&all->lock, LOCK_SESSIONS);
    lock_init(&all->snapshot_lock, LOCK_SNAPSHOTS);
    lock_init(&all->name_lock, LOCK_NAMES);
    changes_init(&all->changes);
    recorders_init(all);
    controllers_init(all);

    cond_init(&all->name_cond);
    cond_init(&all->copied_cond);
    cond_init(&all->control_cond);
    cond_init(&all->pool_cond);
    cond_init(&all->pulled_cond);
    image_pool_init(all);

    char path[SPEC_PATH_MAX];
    snprintf(path, sizeof path, "%s/spool", c->state_dir);
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        all->spool_dir = -1;
    else
        all->spool_dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (attendants_init(&all->attendants, e) < 0) {
        free(all);
        return NULL;
    }
    if (all->spool_dir >= 0) {
        kept_set_limits(&all->kept, c->kept_per_sandbox, c->kept_per_tenant, c->kept_in_all,
                        all->spool_dir);
        return all;
    }

    pd_fail_sys(e, "open %s", path);
    free(all);
    return NULL;
}

int sessions_start_thread(pthread_t *t, void *(*f)(void *), void *arg)
{
    sigset_t every, old;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &old);
    int r = pthread_create(t, NULL, f, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return r;
}

int sessions_start(struct sessions *all, struct pd_err *e)
{
    if (recorders_start(all, e) < 0 || controllers_start(all, e) < 0)
        return -1;

    /* Half of the machine at most is for those who come later. */
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned fillers = cores < 4                  ? 1
                       : cores / 2 > POOL_FILLERS ? POOL_FILLERS
                                                  : (unsigned)cores / 2;

    for (; all->filler_count < fillers; all->filler_count++)
        if (sessions_start_thread(&all->fillers[all->filler_count], pool_main, all) != 0)
            return pd_fail(e, PD_CAPACITY, "no thread for the pool");

    bool has_images = false;
    for (unsigned i = 0; i < all->c.providers->count; i++)
        has_images |= all->c.providers->list[i]->needs_image;
    if (has_images && sessions_start_thread(&all->image_pool.filler, image_pool_main, all) != 0)
        return pd_fail(e, PD_CAPACITY, "no thread for the pool of images");
    all->image_pool.runs = has_images;
    return all->c.router ? shadows_start(all, e) : 0;
}

void sessions_reconfigure(struct sessions *all, const struct sessions_config *c)
{
    lock_take(&all->lock);
    all->c.max_sessions = c->max_sessions;
    all->c.max_per_tenant = c->max_per_tenant;
    all->c.queue_max = c->queue_max;
    all->c.queue_timeout_ms = c->queue_timeout_ms;
    all->c.pool_min = c->pool_min;
    all->c.pool_max = c->pool_max;
    all->c.image_store_max = c->image_store_max;
    all->c.image_pool = c->image_pool;
    all->c.image_pool_max = c->image_pool_max;
    all->c.image_pool_ttl_ms = c->image_pool_ttl_ms;
    pthread_cond_signal(&all->image_pool.cond);
    all->c.idle_timeout_ms = c->idle_timeout_ms;
    all->c.max_life_ms = c->max_life_ms;
    all->c.max_snapshots = c->max_snapshots;
    all->c.contexts_max = c->contexts_max;
    all->c.contexts_warm_pool = c->contexts_warm_pool;
    atomic_store(&all->prepare_shells, c->prepare_shells);
    kept_set_limits(&all->kept, c->kept_per_sandbox, c->kept_per_tenant, c->kept_in_all,
                    all->spool_dir);
    pool_set_targets(all);
    queue_wake(all);
    lock_release(&all->lock);

    controllers_wake(all);
}

/* The threads are ended, the sandboxes stay as they are; what they were doing is in the store. */
void sessions_stop(struct sessions *all)
{
    if (!all)
        return;

    lock_take(&all->lock);
    all->stopping = true;
    recorders_stop(all);

    pthread_cond_broadcast(&all->control_cond);
    pthread_cond_broadcast(&all->pool_cond);
    pthread_cond_broadcast(&all->pulled_cond);
    pthread_cond_broadcast(&all->image_pool.cond);
    for (struct queue_entry *q = all->queue; q; q = q->next)
        pthread_cond_signal(&q->cond);
    lock_release(&all->lock);

    shadows_stop(all);
    for (unsigned i = 0; i < all->filler_count; i++)
        pthread_join(all->fillers[i], NULL);
    if (all->image_pool.runs)
        pthread_join(all->image_pool.filler, NULL);
    controllers_join(all);
    recorders_join(all);

    attendants_stop(&all->attendants);

    /* The process is about to end: the tables go with it. */
    fd_done(&all->spool_dir);
}

void sessions_free(struct sessions *all)
{
    recorders_drop(all);
    shadows_free(all);
    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        while (all->by_id[i]) {
            struct session *s = all->by_id[i];
            all->by_id[i] = s->next;
            session_bury(s, false);
            session_unref(s);
        }

    while (all->tenants) {
        struct tenant_count *t = all->tenants;
        all->tenants = t->next;
        free(t);
    }

    for (unsigned p = 0; p < POOL_KINDS; p++)
        while (all->pool_count[p])
            session_unref(all->pool[p][--all->pool_count[p]]);
    image_pool_done(all);
    attendants_done(&all->attendants);
    ready_ends_done(&all->ready_ends);
    changes_done(&all->changes);
    lock_done(&all->name_lock);
    pthread_cond_destroy(&all->name_cond);
    lock_done(&all->lock);
    lock_done(&all->snapshot_lock);
    pthread_cond_destroy(&all->copied_cond);
    recorders_done(all);
    pthread_cond_destroy(&all->control_cond);
    pthread_cond_destroy(&all->pool_cond);
    pthread_cond_destroy(&all->pulled_cond);
    free(all);
}

/* ---- the table ---- */

int sessions_register(struct session *s, enum life to)
{
    struct sessions *all = s->all;

    lock_take(&all->lock);
    struct session **at = sessions_place(all, s->info.id);
    if (!*at) {
        s->next = NULL;
        *at = session_ref(s);
    }

    lock_take(&s->lock);
    int sound = !s->lost && (s->life == LIFE_NEW || s->life == LIFE_READY);
    if (sound)
        session_step(s, to);
    lock_release(&s->lock);
    lock_release(&all->lock);
    return sound ? 0 : -1;
}

void sessions_forget(struct session *s)
{
    struct sessions *all = s->all;

    lock_take(&all->lock);
    struct session **at = sessions_place(all, s->info.id);
    int there = *at == s;
    if (there)
        *at = s->next;
    if (there && s->owned)
        names_unlist(s);
    lock_release(&all->lock);

    if (there) {
        session_changed(s);
        session_unref(s);
    }
}

/* ---- finding one ---- */

/* NULL as tenant: anybody's. */
static struct session *find(struct sessions *all, const char *tenant, const char *id,
                            struct pd_err *e)
{
    struct session *found = NULL;
    if (id_is_sandbox(id)) {
        lock_take(&all->lock);
        struct session *s = *sessions_place(all, id);
        if (s && s->owned && (!tenant || !strcmp(s->info.tenant, tenant)))
            found = session_ref(s);
        lock_release(&all->lock);
    }

    if (!found)
        pd_fail(e, PD_NOT_FOUND, "there is no sandbox '%.40s'", id);
    return found;
}

struct session *sessions_find(struct sessions *all, const char *tenant, const char *id,
                              struct pd_err *e)
{
    return find(all, tenant, id, e);
}

struct session *sessions_find_any(struct sessions *all, const char *id, struct pd_err *e)
{
    return find(all, NULL, id, e);
}

struct session *sessions_find_thread(struct sessions *all, const char *tenant, const char *user_id,
                                     const char *thread_id, struct pd_err *e)
{
    struct session *s = sessions_look_for_thread(all, tenant, user_id, thread_id);
    if (!s)
        pd_fail(e, PD_NOT_FOUND,
                "there is no session of user '%.60s' and thread '%.60s': PUT makes one", user_id,
                thread_id);
    return s;
}

void session_forget_thread(struct session *s)
{
    lock_take(&s->all->lock);
    s->superseded = true;
    lock_release(&s->all->lock);
}
