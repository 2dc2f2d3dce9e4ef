/* All sandboxes: the table, the threads that look after them, how one is made, and how one is
 * found.
 *
 * A creation holds the names of its request (key, thread), so that a second one with the same finds
 * what the first has made; takes a place, or waits in the queue without the names; takes a sandbox
 * from the pool or makes its own; and writes the row before it says that it runs. */
#include "core/sessions.h"

#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "policy/policy.h"
#include "telemetry/log.h"

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
    all->task_last = &all->task_first;
    pool_set_targets(all);
    lock_init(&all->lock, LOCK_SESSIONS);
    lock_init(&all->task_lock, LOCK_TASKS);
    lock_init(&all->snapshot_lock, LOCK_SNAPSHOTS);
    lock_init(&all->name_lock, LOCK_NAMES);
    cond_init(&all->name_cond);
    cond_init(&all->copied_cond);
    cond_init(&all->task_cond);
    cond_init(&all->control_cond);
    cond_init(&all->pool_cond);
    char path[SPEC_PATH_MAX];
    snprintf(path, sizeof path, "%s/spool", c->state_dir);
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        all->spool_dir = -1;
    else
        all->spool_dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (all->spool_dir >= 0) {
        kept_set_limits(&all->kept, c->kept_per_sandbox, c->kept_per_tenant, c->kept_in_all,
                        all->spool_dir);
        return all;
    }

    pd_fail_sys(e, "open %s", path);
    free(all);
    return NULL;
}

static int start_thread(pthread_t *t, void *(*f)(void *), struct sessions *all)
{
    sigset_t every, old;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &old);
    int r = pthread_create(t, NULL, f, all);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return r;
}

int sessions_start(struct sessions *all, struct pd_err *e)
{
    if (start_thread(&all->recorder, recorder_main, all) != 0)
        return pd_fail(e, PD_CAPACITY, "no thread for the recorder");
    all->threads = 1;
    if (start_thread(&all->controller, controller_main, all) != 0)
        return pd_fail(e, PD_CAPACITY, "no thread for the controller");
    all->threads = 2;

    /* Half of the machine at most is for those who come later. */
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned fillers = cores < 4                  ? 1
                       : cores / 2 > POOL_FILLERS ? POOL_FILLERS
                                                  : (unsigned)cores / 2;

    for (; all->filler_count < fillers; all->filler_count++)
        if (start_thread(&all->fillers[all->filler_count], pool_main, all) != 0)
            return pd_fail(e, PD_CAPACITY, "no thread for the pool");
    return 0;
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
    all->c.idle_timeout_ms = c->idle_timeout_ms;
    all->c.max_life_ms = c->max_life_ms;
    all->c.max_snapshots = c->max_snapshots;
    kept_set_limits(&all->kept, c->kept_per_sandbox, c->kept_per_tenant, c->kept_in_all,
                    all->spool_dir);
    pool_set_targets(all);
    queue_wake(all);
    lock_release(&all->lock);

    controller_wake(all);
}

/* The threads are ended, the sandboxes stay as they are; what they were doing is in the store. */
void sessions_stop(struct sessions *all)
{
    if (!all)
        return;

    lock_take(&all->lock);

    lock_take(&all->task_lock);
    all->stopping = 1;
    pthread_cond_broadcast(&all->task_cond);
    lock_release(&all->task_lock);

    pthread_cond_broadcast(&all->control_cond);
    pthread_cond_broadcast(&all->pool_cond);
    for (struct queue_entry *q = all->queue; q; q = q->next)
        pthread_cond_signal(&q->cond);
    lock_release(&all->lock);

    for (unsigned i = 0; i < all->filler_count; i++)
        pthread_join(all->fillers[i], NULL);
    if (all->threads > 1)
        pthread_join(all->controller, NULL);
    if (all->threads > 0)
        pthread_join(all->recorder, NULL);

    /* The process is about to end: the tables go with it. */
    fd_done(&all->spool_dir);
}

void sessions_free(struct sessions *all)
{
    /* Tasks that the recorder did not get to; a process holds its session. */
    while (all->task_first) {
        struct process *p = all->task_first;
        all->task_first = p->task_next;
        process_unref(p);
    }

    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        while (all->by_id[i]) {
            struct session *s = all->by_id[i];
            all->by_id[i] = s->next;
            session_bury(s, 0);
            session_unref(s);
        }

    while (all->tenants) {
        struct tenant_count *t = all->tenants;
        all->tenants = t->next;
        free(t);
    }

    for (unsigned p = 0; p < PROFILE_COUNT; p++)
        while (all->pool_count[p])
            session_unref(all->pool[p][--all->pool_count[p]]);
    lock_done(&all->name_lock);
    pthread_cond_destroy(&all->name_cond);
    lock_done(&all->lock);
    lock_done(&all->task_lock);
    lock_done(&all->snapshot_lock);
    pthread_cond_destroy(&all->copied_cond);
    pthread_cond_destroy(&all->task_cond);
    pthread_cond_destroy(&all->control_cond);
    pthread_cond_destroy(&all->pool_cond);
    free(all);
}

/* ---- making one ---- */

int sessions_make_box(struct session *s, struct pd_err *e)
{
    struct spec spec = s->info.spec;
    spec.root_dir = "";
    spec.root_name = s->root_name;
    struct box *box;
    if (box_create(s->provider, s->box_id, &spec, s, &box, e) < 0)
        return -1;

    rw_write(&s->box_use);
    s->box = box;
    rw_release(&s->box_use);

    lock_take(&s->lock);
    s->info.rung = box_rung(box);
    samples_rebase(s, 0);
    lock_release(&s->lock);
    return 0;
}

/* Takes over what the request says, into a session that exists, new or from the pool. */
static int fill_in(struct session *s, const struct session_request *r, struct pd_err *e)
{
    const struct sessions_config *c = &s->all->c;
    struct session_info *i = &s->info;
    snprintf(i->tenant, sizeof i->tenant, "%s", r->tenant);
    snprintf(i->user_id, sizeof i->user_id, "%s", r->user_id ? r->user_id : "");
    snprintf(i->thread_id, sizeof i->thread_id, "%s", r->thread_id ? r->thread_id : "");
    snprintf(i->template_name, sizeof i->template_name, "%s",
             r->template_name ? r->template_name : "default");
    snprintf(i->reason, sizeof i->reason, "%s",
             r->provider && strcmp(r->provider, "auto") != 0 ? "asked for by the request"
                                                             : "default provider of this server");
    i->idle_timeout_ms = r->idle_timeout_ms ? r->idle_timeout_ms : c->idle_timeout_ms;
    i->max_life_ms = r->max_life_ms ? r->max_life_ms : c->max_life_ms;
    i->created_ms = i->last_used_ms = time_now_ms();
    snprintf(s->cwd, sizeof s->cwd, "%s", r->cwd ? r->cwd : "/workspace");
    s->metadata = strdup(r->metadata ? r->metadata : "{}");
    s->note = r->note && r->note[0] ? strdup(r->note) : NULL;
    i->pause_at_end = r->pause_at_end;
    s->key = r->key ? strdup(r->key) : NULL;
    s->key_hash = r->key_hash;
    s->policy_text = strdup(r->policy ? r->policy : "open");
    if (!s->metadata || !s->policy_text || (r->note && r->note[0] && !s->note) ||
        (r->key && !s->key))
        return pd_fail(e, PD_CAPACITY, "no memory for a session");

    int bad = 0;
    uint32_t pos = 0;
    for (const char *v; (v = msg_list_next(&r->env, &pos));)
        bad |= msg_list_add(&s->env, v);
    if (bad || s->env.text.len > STATE_MAX)
        return pd_fail(e, PD_TOO_LARGE, "env is longer than %u bytes", STATE_MAX);
    if (s->note && strlen(s->note) > NOTE_MAX)
        return pd_fail(e, PD_TOO_LARGE, "a note is longer than %u bytes", NOTE_MAX);
    return policy_parse(r->policy ? r->policy : "open", &s->policy, e);
}

void sessions_forget(struct session *s)
{
    struct sessions *all = s->all;

    lock_take(&all->lock);
    struct session **at = sessions_place(all, s->info.id);
    int there = *at == s;
    if (there)
        *at = s->next;
    lock_release(&all->lock);

    if (there)
        session_unref(s);
}

struct session *sessions_prepare(struct sessions *all, struct provider *provider,
                                 const struct spec *spec)
{
    struct session *s = session_new(all, provider);
    if (!s)
        return NULL;

    id_sandbox(s->info.id);
    s->box_id = wire_id_new();
    s->info.spec = *spec;
    s->info.created_ms = s->info.last_used_ms = time_now_ms();
    if (all->c.disk_roots && provider_has(provider, PROVIDER_ROOTS))
        snprintf(s->root_name, sizeof s->root_name, "sb-%s", s->info.id);
    return s;
}

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

/* Where a new session's files come from, if not from the template alone. */
struct origin {
    struct session *fork_of;
    struct snapshot *snapshot; /* held */
    struct provider *provider; /* that has those files, or the request's choice */
};

/* A fork has the environment and the directory of its origin, unless the request tells others. */
static int inherit(struct session *s, const struct session_request *r, struct session *from,
                   struct pd_err *e)
{
    int bad = 0;

    lock_take(&from->lock);
    struct msg_list env = msg_list_of(&from->env);
    uint32_t pos = 0;
    for (const char *v; !r->env.count && (v = msg_list_next(&env, &pos));)
        bad |= msg_list_add(&s->env, v);
    if (!r->cwd)
        memcpy(s->cwd, from->cwd, sizeof s->cwd);
    lock_release(&from->lock);
    return bad ? pd_fail(e, PD_CAPACITY, "no memory for the environment") : 0;
}

static int fill_root(struct session *s, const struct origin *o, struct pd_err *e)
{
    if (o->fork_of)
        return session_copy_root(o->fork_of, s->root_name, e);
    return o->snapshot ? snapshot_copy(s->all, o->snapshot, s->root_name, e) : 0;
}

/* A session that has all that the request says, registered as being created. */
static struct session *begin(struct sessions *all, const struct session_request *r,
                             struct session *replaces, const struct origin *o, int warm,
                             struct pd_err *e)
{
    struct pd_err ignored;
    struct session *s = warm ? pool_take(all, o->provider, r) : NULL;
    int from_pool = s != NULL;
    if (!s && !(s = sessions_prepare(all, o->provider, &r->spec))) {
        pd_fail(e, PD_CAPACITY, "no memory for a session");
        return NULL;
    }

    lock_take(&s->lock);
    int bad = fill_in(s, r, e);
    s->info.from_pool = from_pool;
    if (replaces) {
        s->info.recreated = 1;
        memcpy(s->info.replaces, replaces->info.id, sizeof s->info.replaces);
    }

    lock_release(&s->lock);

    if (bad == 0 && o->fork_of)
        bad = inherit(s, r, o->fork_of, e);

    if (bad == 0 && sessions_register(s, LIFE_CREATING) == 0)
        return s;
    if (from_pool) /* which was lost just now, or is the request's already */
        (void)session_end(s, END_FAILED, "refused", &ignored);
    session_unref(s);
    return bad == 0 ? begin(all, r, replaces, o, 0, e) : NULL;
}

/* *let_in: 0 when the place that the request was let in for is the sandbox's. */
static int make_from(struct sessions *all, const struct session_request *r,
                     struct session *replaces, const struct origin *o, int *let_in,
                     struct session **ret, struct pd_err *e)
{
    struct session *s = begin(all, r, replaces, o, !o->fork_of && !o->snapshot, e);
    if (!s)
        return -1;
    *let_in = 0;

    /* A cold one is written down first: should the daemon die now, its box is found and ended. */
    int warm = s->info.from_pool;
    int r1 = warm ? 0 : session_store(s, e);
    if (r1 == 0 && !warm)
        r1 = fill_root(s, o, e);
    if (r1 == 0 && !warm)
        r1 = sessions_make_box(s, e);
    if (r1 == 0)
        r1 = session_store_step(s, LIFE_RUNNING, e);
    if (r1 == 0) {
        *ret = s;
        return 0;
    }

    session_abandon(s, e->msg);
    session_unref(s);
    return -1;
}

/* A copy of files is made by the provider that has them. */
static int follow_files(const struct sessions *all, const struct session_request *r,
                        struct provider *files, struct origin *o, struct pd_err *e)
{
    if (o->provider != files && r->provider && strcmp(r->provider, "auto") != 0)
        return pd_fail(e, PD_INVALID,
                       "provider '%s': the files to be copied are at provider %s, so the new "
                       "sandbox is made there; leave `provider` away",
                       r->provider, files->name);
    o->provider = files;
    return snapshots_possible(all, files, e);
}

static int make(struct sessions *all, const struct session_request *r, struct session *replaces,
                struct session *fork_of, int *let_in, struct session **ret, struct pd_err *e)
{
    struct origin o = {.fork_of = fork_of};
    if (!(o.provider = provider_table_choose(all->c.providers, r->provider, e)))
        return -1;
    if ((fork_of || r->snapshot) && !all->c.disk_roots)
        return snapshots_possible(all, o.provider, e);

    if (r->snapshot && !(o.snapshot = snapshot_hold(all, r->tenant, r->snapshot, e)))
        return -1;
    struct provider *files = fork_of      ? fork_of->provider
                             : o.snapshot ? snapshot_provider(o.snapshot)
                                          : NULL;

    int r1 = files ? follow_files(all, r, files, &o, e) : 0;
    if (r1 == 0)
        r1 = make_from(all, r, replaces, &o, let_in, ret, e);
    if (o.snapshot)
        snapshot_release(all, o.snapshot);
    return r1;
}

/* Longer than a creation may take, with a copy of files. */
#define MAKE_PATIENCE (300 * NS_PER_S)

static struct session *find_key(struct sessions *all, const char *tenant, const char *key)
{
    struct session *found = NULL;

    lock_take(&all->lock);

    for (unsigned i = 0; i < SESSION_BUCKETS && !found; i++)
        for (struct session *s = all->by_id[i]; s && !found; s = s->next)
            if (s->owned && s->key && !strcmp(s->key, key) && !strcmp(s->info.tenant, tenant))
                found = session_ref(s);
    lock_release(&all->lock);
    return found;
}

static int wait_until_made(struct session *s, struct pd_err *e)
{
    deadline d = deadline_in(MAKE_PATIENCE);
    int r = 0;

    lock_take(&s->lock);

    while (r == 0 && s->info.state == SESSION_CREATING)
        if (!lock_wait(&s->changed, &s->lock, d))
            r = pd_fail(e, PD_TIMEOUT, "sandbox %s is still being made: try again later",
                        s->info.id);
    lock_release(&s->lock);
    return r;
}

/* A creation that finds no room waits without its names: others would wait for it who only want to
 * find what is there. Then it looks again. */
#define MUST_WAIT 1

/* *let_in: the request holds a place, which becomes the sandbox's. MUST_WAIT when there is no
 * room. */
static int create(struct sessions *all, const struct session_request *r, struct session *replaces,
                  struct session *fork_of, int *let_in, struct session **ret, struct pd_err *e)
{
    uint64_t began = clock_now();
    if (!*let_in && !queue_try(all, r->tenant))
        return MUST_WAIT;
    *let_in = 1;
    int made = make(all, r, replaces, fork_of, let_in, ret, e);

    lock_take(&all->lock);
    if (made < 0)
        all->stats.create_failed++;
    else
        all->stats.created++;
    all->stats.create_us_sum += (clock_now() - began) / 1000;
    lock_release(&all->lock);

    if (made == 0)
        log_info("session.start", "id=%s tenant=%s provider=%s pool=%d us=%llu", (*ret)->info.id,
                 r->tenant, (*ret)->info.provider, (*ret)->info.from_pool,
                 (unsigned long long)((clock_now() - began) / 1000));
    return made;
}

static struct session *find_thread(struct sessions *all, const char *tenant, const char *user_id,
                                   const char *thread_id);

/* A user and a thread have one session. */
static int check_thread(struct sessions *all, const struct session_request *r, struct pd_err *e)
{
    struct session *s = r->user_id ? find_thread(all, r->tenant, r->user_id, r->thread_id) : NULL;
    if (!s)
        return 0;

    lock_take(&s->lock);
    int lives = !s->lost && !life_is_ending(s->life) && !life_is_over(s->life);
    lock_release(&s->lock);

    if (lives)
        pd_fail(e, PD_CONFLICT,
                "user '%.60s' has sandbox %s for thread '%.60s' already: PUT "
                "/v1/sessions gives it",
                r->user_id, s->info.id, r->thread_id);
    session_unref(s);
    return lives ? -1 : 0;
}

/* The key and the thread of a creation; on the stack of who creates. */
struct name_hold {
    struct name_hold *next;
    const struct session_request *r;
};

static int is_same_name(const struct session_request *a, const struct session_request *b)
{
    if (strcmp(a->tenant, b->tenant) != 0)
        return 0;
    return (a->key && b->key && !strcmp(a->key, b->key)) ||
           (a->user_id && b->user_id && !strcmp(a->user_id, b->user_id) &&
            !strcmp(a->thread_id, b->thread_id));
}

static int is_held(const struct sessions *all, const struct session_request *r)
{
    for (const struct name_hold *h = all->name_holds; h; h = h->next)
        if (is_same_name(h->r, r))
            return 1;
    return 0;
}

/* Two requests with one key, or for one thread, at the same moment: the second finds what the first
 * has made. It may take minutes, so nobody else waits: names are compared, not their hashes. */
static int hold_names(struct sessions *all, struct name_hold *h, struct pd_err *e)
{
    deadline d = deadline_in(MAKE_PATIENCE);
    int r = 0;

    lock_take(&all->name_lock);

    while (r == 0 && is_held(all, h->r))
        if (!lock_wait(&all->name_cond, &all->name_lock, d))
            r = pd_fail(e, PD_TIMEOUT,
                        "another request with this key or for this thread is still making its "
                        "sandbox: try again later");
    if (r == 0) {
        h->next = all->name_holds;
        all->name_holds = h;
    }

    lock_release(&all->name_lock);
    return r;
}

static void release_names(struct sessions *all, const struct name_hold *h)
{
    lock_take(&all->name_lock);
    struct name_hold **at = &all->name_holds;
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    pthread_cond_broadcast(&all->name_cond);
    lock_release(&all->name_lock);
}

int sessions_create_from(struct sessions *all, const struct session_request *r,
                         struct session *fork_of, struct session **ret, int *ret_known,
                         struct queue_place *ret_place, struct pd_err *e)
{
    struct name_hold names = {.r = r};
    struct session *known;
    int let_in = 0, r1;
    *ret_known = 0;
    *ret_place = (struct queue_place){0};

    for (;;) {
        if ((r1 = hold_names(all, &names, e)) < 0) {
            known = NULL;
            break;
        }
        known = r->key ? find_key(all, r->tenant, r->key) : NULL;
        r1 = known ? 0 : check_thread(all, r, e);
        if (!known && r1 == 0)
            r1 = create(all, r, NULL, fork_of, &let_in, ret, e);
        release_names(all, &names);
        if (r1 != MUST_WAIT)
            break;
        if (queue_enter(all, r->tenant, r->queue_timeout_ms, ret_place, e) < 0) {
            /* Another one with this key may have been made meanwhile. */
            known = r->key ? find_key(all, r->tenant, r->key) : NULL;
            r1 = known ? 0 : -1;
            break;
        }
        let_in = 1;
    }

    if (let_in)
        queue_leave(all, r->tenant);
    if (!known)
        return r1;
    if (known->key_hash != r->key_hash) {
        session_unref(known);
        return pd_fail(e, PD_CONFLICT, "Idempotency-Key '%.80s' was used for another request",
                       r->key);
    }

    if (wait_until_made(known, e) < 0) {
        session_unref(known);
        return -1;
    }

    *ret = known;
    *ret_known = 1;
    return 0;
}

int sessions_create(struct sessions *all, const struct session_request *r, struct session **ret,
                    int *ret_known, struct queue_place *ret_place, struct pd_err *e)
{
    return sessions_create_from(all, r, NULL, ret, ret_known, ret_place, e);
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

/* The youngest of that thread: an older one is gone. */
static struct session *find_thread(struct sessions *all, const char *tenant, const char *user_id,
                                   const char *thread_id)
{
    struct session *found = NULL;

    lock_take(&all->lock);

    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (struct session *s = all->by_id[i]; s; s = s->next)
            if (s->owned && !s->superseded && s->info.user_id[0] &&
                !strcmp(s->info.user_id, user_id) && !strcmp(s->info.thread_id, thread_id) &&
                !strcmp(s->info.tenant, tenant) &&
                (!found || s->info.created_ms >= found->info.created_ms)) {
                session_unref(found);
                found = session_ref(s);
            }
    lock_release(&all->lock);
    return found;
}

struct session *sessions_find_thread(struct sessions *all, const char *tenant, const char *user_id,
                                     const char *thread_id, struct pd_err *e)
{
    struct session *s = find_thread(all, tenant, user_id, thread_id);
    if (!s)
        pd_fail(e, PD_NOT_FOUND,
                "there is no session of user '%.60s' and thread '%.60s': PUT makes one", user_id,
                thread_id);
    return s;
}

void session_forget_thread(struct session *s)
{
    lock_take(&s->all->lock);
    s->superseded = 1;
    lock_release(&s->all->lock);
}

static int get_or_create(struct sessions *all, const struct session_request *r, int *let_in,
                         struct session **ret, int *ret_created, struct pd_err *e)
{
    struct session *s = find_thread(all, r->tenant, r->user_id, r->thread_id);
    if (s) {
        if (wait_until_made(s, e) < 0) {
            session_unref(s);
            return -1;
        }
        lock_take(&s->lock);
        int lives =
            !s->lost && (s->info.state == SESSION_RUNNING || s->info.state == SESSION_PAUSED);
        int killed = s->info.end == END_KILLED;
        int usable = lives ? 0 : session_usable(s, e);
        if (lives)
            s->info.last_used_ms = time_now_ms();
        lock_release(&s->lock);
        if (lives) {
            lock_take(&all->lock);
            all->stats.reused++;
            lock_release(&all->lock);
            *ret = s;
            *ret_created = 0;
            return 0;
        }
        if (usable < 0 && !killed && !r->auto_retry) {
            session_unref(s);
            return -1; /* never silently made anew */
        }
        int made = create(all, r, killed ? NULL : s, NULL, let_in, ret, e);
        if (made == 0) {
            lock_take(&all->lock);
            all->stats.auto_retried += !killed;
            s->superseded = 1;
            lock_release(&all->lock);
        }
        session_unref(s);
        *ret_created = 1;
        return made;
    }

    *ret_created = 1;
    return create(all, r, NULL, NULL, let_in, ret, e);
}

int sessions_get_or_create(struct sessions *all, const struct session_request *r,
                           struct session **ret, int *ret_created, struct queue_place *ret_place,
                           struct pd_err *e)
{
    *ret_place = (struct queue_place){0};

    /* Two requests for one thread at the same moment must not make two sessions. */
    struct name_hold names = {.r = r};
    int let_in = 0, r1;
    for (;;) {
        if ((r1 = hold_names(all, &names, e)) < 0)
            break;
        r1 = get_or_create(all, r, &let_in, ret, ret_created, e);
        release_names(all, &names);
        if (r1 != MUST_WAIT)
            break;
        if (queue_enter(all, r->tenant, r->queue_timeout_ms, ret_place, e) < 0)
            return -1;
        let_in = 1;
    }

    if (let_in)
        queue_leave(all, r->tenant);
    return r1;
}
