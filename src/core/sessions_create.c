/* How a sandbox is made.
 *
 * A creation holds the names of its request (key, thread), so that a second one with the same finds
 * what the first has made; takes a place, or waits in the queue without the names; takes a sandbox
 * from the pool or makes its own; and writes the row before it says that it runs. */
#include "core/images.h"
#include "core/secrets.h"
#include "core/session_state.h"
#include "core/sessions.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "policy/policy.h"
#include "router/router.h"
#include "telemetry/audit.h"
#include "telemetry/log.h"

int sessions_make_box_in(struct session *s, uint64_t patience, struct pd_err *e)
{
    struct spec spec = s->info.spec;
    spec.root_dir = "";
    spec.root_name = s->root_name;
    spec.image = provider_image(s->provider, &spec);

    struct box *box;
    if (box_create(s->provider, s->box_id, &spec, s, &box, deadline_in(patience), e) < 0)
        return -1;

    if (session_open_network(s, box, e) < 0) {
        struct pd_err ignored;
        (void)box_destroy(box, &ignored);
        return -1;
    }

    rw_write(&s->box_use);
    s->box = box;
    rw_release(&s->box_use);

    lock_take(&s->lock);
    s->info.rung = box_rung(box);
    samples_rebase(s, 0);
    lock_release(&s->lock);
    return 0;
}

int sessions_make_box(struct session *s, struct pd_err *e)
{
    const struct provider *p = s->provider;
    return sessions_make_box_in(s, p->patience.create, e);
}

void session_note_pull(void *owner, const struct msg_progress *now)
{
    struct session *s = owner;
    struct session_info i;
    session_get(s, &i);
    const char *image = provider_image(s->provider, &i.spec);

    log_debug("image.pull", "id=%s image=%s layers=%u/%u bytes=%llu/%llu", i.id, image,
              now->layers_done, now->layers, (unsigned long long)now->bytes_done,
              (unsigned long long)now->bytes);
    struct audit_pull pull = {.image = image,
                              .layers_done = now->layers_done,
                              .layers = now->layers,
                              .bytes_done = now->bytes_done,
                              .bytes = now->bytes};
    audit_write(s->all->c.audit, &(struct audit_event){.tenant = i.tenant[0] ? i.tenant : NULL,
                                                       .sandbox = i.id,
                                                       .action = "image.pull",
                                                       .pull = &pull});
    if (s->pull_watch.told)
        s->pull_watch.told(s->pull_watch.arg, s, image, now);
}

/* Takes over what the request says, into a session that exists, new or from the pool. */
static int fill_in(struct session *s, const struct session_request *r, const char *reason,
                   struct pd_err *e)
{
    const struct sessions_config *c = &s->all->c;
    struct session_info *i = &s->info;

    snprintf(i->tenant, sizeof i->tenant, "%s", r->tenant);
    snprintf(i->made_by, sizeof i->made_by, "%s", r->made_by ? r->made_by : "");
    snprintf(i->user_id, sizeof i->user_id, "%s", r->user_id ? r->user_id : "");
    snprintf(i->thread_id, sizeof i->thread_id, "%s", r->thread_id ? r->thread_id : "");
    snprintf(i->template_name, sizeof i->template_name, "%s",
             r->template_name ? r->template_name : "default");
    snprintf(i->reason, sizeof i->reason, "%s", reason);

    i->mode = r->mode;
    i->idle_timeout_ms = r->idle_timeout_ms ? r->idle_timeout_ms : c->idle_timeout_ms;
    i->max_life_ms = r->max_life_ms ? r->max_life_ms : c->max_life_ms;
    i->created_ms = i->last_used_ms = time_now_ms();
    i->pause_at_end = r->pause_at_end;

    snprintf(s->cwd, sizeof s->cwd, "%s", r->cwd ? r->cwd : "/workspace");
    s->metadata = strdup(r->metadata ? r->metadata : "{}");
    s->note = r->note && r->note[0] ? strdup(r->note) : NULL;
    s->key = r->key ? strdup(r->key) : NULL;
    s->key_hash = r->key_hash;
    s->network = r->network ? strdup(r->network) : NULL;
    s->policy_text = strdup(r->policy ? r->policy : "open");
    if (!s->metadata || !s->policy_text || (r->note && r->note[0] && !s->note) ||
        (r->key && !s->key) || (r->network && !s->network))
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

struct session *sessions_prepare(struct sessions *all, struct provider *provider,
                                 const struct spec *spec)
{
    struct session *s = session_new(all, provider);
    if (!s)
        return NULL;

    id_sandbox(s->info.id);
    s->box_id = wire_id_new();
    if (session_set_spec(s, spec) < 0) {
        session_unref(s);
        return NULL;
    }
    s->info.created_ms = s->info.last_used_ms = time_now_ms();
    if (all->c.disk_roots && provider_has(provider, PROVIDER_ROOTS))
        snprintf(s->root_name, sizeof s->root_name, "sb-%s", s->info.id);
    return s;
}

/* Where a new session's files come from, if not from the template alone. */
struct origin {
    struct session *fork_of;
    struct snapshot *snapshot; /* held */
    struct provider *provider; /* that has those files, or the router's choice */
    const char *reason;        /* why that one */
    const char *arm;           /* of the experiment that it is made in, or NULL */
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
    bool from_pool = s != NULL;
    if (!s && !(s = sessions_prepare(all, o->provider, &r->spec))) {
        pd_fail(e, PD_CAPACITY, "no memory for a session");
        return NULL;
    }

    lock_take(&s->lock);
    int bad = fill_in(s, r, o->reason, e);
    if (bad == 0 && o->arm && !(s->arm = strdup(o->arm)))
        bad = pd_fail(e, PD_CAPACITY, "no memory for a session");
    s->info.from_pool = from_pool;
    if (replaces) {
        s->info.recreated = true;
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

/* How the provider did. One from the pool was made earlier. */
enum provider_did { PROVIDER_NOT_ASKED, PROVIDER_MADE_IT, PROVIDER_FAILED };

/* Was its end asked for while it was being made? Then that is why its creation failed. */
static bool was_cancelled(struct session *s, struct pd_err *e)
{
    lock_take(&s->lock);
    bool cancelled = life_is_ending(s->life);
    if (cancelled)
        session_fail_cancelled(s, e);
    lock_release(&s->lock);
    return cancelled;
}

/* *let_in: false when the place that the request was let in for is the sandbox's. */
static int make_from(struct sessions *all, const struct session_request *r,
                     struct session *replaces, const struct origin *o, bool *let_in,
                     enum provider_did *ret_did, struct session **ret, struct pd_err *e)
{
    *ret_did = PROVIDER_NOT_ASKED;
    if (r->spec.image[0] && provider_must(o->provider, PROVIDER_IMAGE, e) < 0)
        return -1;
    if (r->disk_asked && provider_must(o->provider, PROVIDER_DISK, e) < 0)
        return -1;
    if (r->limits_asked && provider_must(o->provider, PROVIDER_LIMITS, e) < 0)
        return -1;
    if (r->spec.network == NETWORK_GATE && provider_must(o->provider, PROVIDER_EGRESS, e) < 0)
        return -1;

    struct session *s = begin(all, r, replaces, o, !o->fork_of && !o->snapshot, e);
    if (!s)
        return -1;
    *let_in = false;

    /* A cold one is written down first: should the daemon die now, its box is found and ended. */
    bool warm = s->info.from_pool;
    int r1 = warm ? session_take_network(s, e) : session_store(s, e);
    if (r1 == 0 && !warm)
        r1 = fill_root(s, o, e);
    if (r1 == 0 && !warm) {
        s->pull_watch = r->pull_watch;
        r1 = images_make_box(s, r, e);
        s->pull_watch = (struct pull_watch){0};
        *ret_did = r1 == 0 ? PROVIDER_MADE_IT : PROVIDER_FAILED;
    }
    if (r1 == 0)
        r1 = session_store_step(s, LIFE_RUNNING, e);
    if (r1 == 0 && session_give_secrets(s, NULL, false, e) < 0) {
        struct pd_err ignored;
        (void)session_end(s, END_FAILED, e->msg, &ignored);
        session_unref(s);
        return -1;
    }
    if (r1 == 0) {
        if (*ret_did == PROVIDER_MADE_IT && !o->fork_of)
            image_pool_note(all, o->provider, r);
        *ret = s;
        return 0;
    }

    if (was_cancelled(s, e))
        *ret_did = PROVIDER_NOT_ASKED; /* its failure says nothing about the provider */
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

/* They hold as those of a sandbox that wakes: below what the operator lets its tenant have then,
 * which is the gate's to see to. */
static void inherit_rules(const struct sessions *all, const struct snapshot *held,
                          struct session_request *r)
{
    const char *rules = snapshot_rules(held);

    if (!r->keeps_network || r->network || !rules || !all->c.egress)
        return;
    r->network = rules;
    r->spec.network = NETWORK_GATE;
}

static int make_copy(struct sessions *all, const struct session_request *r,
                     struct session *replaces, struct session *fork_of, bool *let_in,
                     struct session **ret, struct pd_err *e)
{
    struct origin o = {.fork_of = fork_of,
                       .reason = "that is where the copied files are",
                       .arm = fork_of ? fork_of->arm : NULL};
    enum provider_did did;
    if (!(o.provider = provider_table_choose(all->c.providers, r->provider, e)))
        return -1;
    if (!all->c.disk_roots)
        return snapshots_possible(all, o.provider, e);

    if (r->snapshot && !(o.snapshot = snapshot_hold(all, r->tenant, r->snapshot, e)))
        return -1;
    struct provider *files = fork_of ? fork_of->provider : snapshot_provider(o.snapshot);
    struct session_request wanted = *r;
    if (o.snapshot)
        inherit_rules(all, o.snapshot, &wanted);

    int r1 = follow_files(all, r, files, &o, e);
    if (r1 == 0)
        r1 = make_from(all, &wanted, replaces, &o, let_in, &did, ret, e);
    if (o.snapshot)
        snapshot_release(all, o.snapshot);
    return r1;
}

/* A sandbox of nobody in particular is in a share by itself: `key` is made up for it. */
static struct route_question question_of(const struct session_request *r, char key[32])
{
    snprintf(key, 32, "%llx", (unsigned long long)clock_now());
    return (struct route_question){.asked = r->provider,
                                   .tenant = r->tenant,
                                   .user = r->user_id,
                                   .template_name = r->template_name ? r->template_name : "default",
                                   .key = r->user_id ? r->user_id : key,
                                   .mode = r->mode};
}

int sessions_explain(struct sessions *all, const struct session_request *r, struct decision *ret,
                     struct buf *steps, struct pd_err *e)
{
    struct route_provider list[PROVIDERS_MAX];
    char key[32];
    struct route_question q = question_of(r, key);
    unsigned count = provider_table_describe_for(all->c.providers, &r->spec, list);
    return router_explain(all->c.router, list, count, &q, ret, steps, e);
}

/* Takes the next provider of the decision, if the last one failed in a way that another might not,
 * and a place is free. The place of the sandbox that failed was given back. */
static bool next_hop(struct sessions *all, const struct session_request *r, struct decision *d,
                     bool *let_in, const struct pd_err *why)
{
    if (!d->next_count || !router_is_failure(why) || (!*let_in && !queue_try(all, r->tenant)))
        return false;

    *let_in = true;
    log_warn("session.fallback", "from=%s to=%s error=%s",
             all->c.providers->list[d->provider]->name, all->c.providers->list[d->next[0]]->name,
             why->msg);
    snprintf(d->reason, sizeof d->reason, "fallback: %.31s failed with %.40s",
             all->c.providers->list[d->provider]->name, pd_code_name(why->code));
    d->provider = d->next[0];
    d->arm = -1;
    d->next_count--;
    memmove(d->next, d->next + 1, d->next_count * sizeof *d->next);
    router_begun(all->c.router, d->provider);
    return true;
}

/* `why` NULL: the provider has made it. */
static void note_outcome(struct sessions *all, const struct decision *d, uint64_t ns,
                         const struct pd_err *why)
{
    if (router_ended(all->c.router, d, ns, why))
        log_warn("router.stop", "arm=%s error=%s", d->name,
                 why ? why->msg : "too many have failed before");
}

static int make_routed(struct sessions *all, const struct session_request *r,
                       struct session *replaces, bool *let_in, struct session **ret,
                       struct pd_err *e)
{
    struct route_provider list[PROVIDERS_MAX];
    struct decision decision;
    char key[32];
    struct route_question q = question_of(r, key);
    unsigned count = provider_table_describe_for(all->c.providers, &r->spec, list);
    if (router_choose(all->c.router, list, count, &q, &decision, e) < 0)
        return -1;

    deadline limit = deadline_in(all->c.providers->list[decision.provider]->patience.create);
    for (;;) {
        struct origin o = {.provider = all->c.providers->list[decision.provider],
                           .reason = decision.reason,
                           .arm = decision.arm >= 0 ? decision.name : NULL};
        enum provider_did did;
        uint64_t began = clock_now();
        int made = make_from(all, r, replaces, &o, let_in, &did, ret, e);
        if (did != PROVIDER_NOT_ASKED)
            note_outcome(all, &decision, clock_now() - began, did == PROVIDER_FAILED ? e : NULL);
        else if (made == 0)
            router_served(all->c.router, &decision, clock_now() - began);
        if (made == 0)
            shadow_choose(*ret, &q);

        if (did != PROVIDER_FAILED || deadline_passed(limit) ||
            !next_hop(all, r, &decision, let_in, e))
            return made;
    }
}

static int make(struct sessions *all, const struct session_request *r, struct session *replaces,
                struct session *fork_of, bool *let_in, struct session **ret, struct pd_err *e)
{
    if (fork_of || r->snapshot)
        return make_copy(all, r, replaces, fork_of, let_in, ret, e);
    return make_routed(all, r, replaces, let_in, ret, e);
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

static void note_made(struct sessions *all, struct session *s, uint64_t took_us)
{
    struct session_info info;
    session_get(s, &info);
    struct slow_creation c = {.at_ms = time_now_ms(), .took_us = took_us};
    memcpy(c.id, info.id, sizeof c.id);
    memcpy(c.tenant, info.tenant, sizeof c.tenant);
    memcpy(c.provider, info.provider, sizeof c.provider);
    memcpy(c.from, info.template_name, sizeof c.from);

    lock_take(&all->lock);
    all->stats.created++;
    slowest_note(&all->stats.slowest, &c);
    lock_release(&all->lock);

    log_info("session.start", "id=%s tenant=%s provider=%s pool=%d us=%llu", info.id, info.tenant,
             info.provider, info.from_pool, (unsigned long long)took_us);
}

static void note_not_made(struct sessions *all)
{
    lock_take(&all->lock);
    all->stats.create_failed++;
    lock_release(&all->lock);
}

/* *let_in: the request holds a place, which becomes the sandbox's. MUST_WAIT when there is no
 * room. */
static int create(struct sessions *all, const struct session_request *r, struct session *replaces,
                  struct session *fork_of, bool *let_in, struct session **ret, struct pd_err *e)
{
    uint64_t began = clock_now();
    if (!*let_in && !queue_try(all, r->tenant))
        return MUST_WAIT;
    *let_in = true;
    int made = make(all, r, replaces, fork_of, let_in, ret, e);

    if (made == 0)
        note_made(all, *ret, (clock_now() - began) / 1000);
    else if (made < 0)
        note_not_made(all);
    return made;
}

/* A user and a thread have one session. */
static int check_thread(struct sessions *all, const struct session_request *r, struct pd_err *e)
{
    struct session *s =
        r->user_id ? sessions_look_for_thread(all, r->tenant, r->user_id, r->thread_id) : NULL;
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

/* Of a request that found no room: what another one with its key has made meanwhile, or NULL. The
 * name is held for it, so one that is still being made is waited for, and found only if it was. */
static struct session *find_made(struct sessions *all, struct name_hold *names)
{
    struct pd_err ignored;
    if (!names->r->key || names_hold(all, names, &ignored) < 0)
        return NULL;

    struct session *s = sessions_look_for_key(all, names->r->tenant, names->r->key);
    names_release(all, names);
    return s;
}

int sessions_create_from(struct sessions *all, const struct session_request *r,
                         struct session *fork_of, struct session **ret, bool *ret_known,
                         struct queue_place *ret_place, struct pd_err *e)
{
    struct name_hold names = {.r = r};
    struct session *known;
    bool let_in = false;
    int r1;
    *ret_known = false;
    *ret_place = (struct queue_place){0};

    for (;;) {
        if ((r1 = names_hold(all, &names, e)) < 0) {
            known = NULL;
            break;
        }
        known = r->key ? sessions_look_for_key(all, r->tenant, r->key) : NULL;
        r1 = known ? 0 : check_thread(all, r, e);
        if (!known && r1 == 0)
            r1 = create(all, r, NULL, fork_of, &let_in, ret, e);
        names_release(all, &names);
        if (r1 != MUST_WAIT)
            break;
        if (queue_enter(all, r->tenant, r->queue_timeout_ms, ret_place, e) < 0) {
            known = find_made(all, &names);
            r1 = known ? 0 : -1;
            break;
        }
        let_in = true;
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
    *ret_known = true;
    return 0;
}

int sessions_create(struct sessions *all, const struct session_request *r, struct session **ret,
                    bool *ret_known, struct queue_place *ret_place, struct pd_err *e)
{
    return sessions_create_from(all, r, NULL, ret, ret_known, ret_place, e);
}

/* The thread's sandbox as it is, or another one in its place. *ret is the caller's, as s is. */
static int use_or_replace(struct sessions *all, const struct session_request *r, struct session *s,
                          bool *let_in, struct session **ret, bool *ret_created, struct pd_err *e)
{
    if (wait_until_made(s, e) < 0)
        return -1;

    lock_take(&s->lock);
    bool lives = !s->lost && (s->info.state == SESSION_RUNNING || s->info.state == SESSION_PAUSED);
    bool killed = s->info.end == END_KILLED;
    int usable = lives ? 0 : session_usable(s, e);
    if (lives)
        session_used(s);
    lock_release(&s->lock);

    if (lives) {
        lock_take(&all->lock);
        all->stats.reused++;
        lock_release(&all->lock);

        *ret = session_ref(s);
        *ret_created = false;
        return 0;
    }
    if (usable < 0 && !killed && !r->auto_retry)
        return -1; /* never silently made anew */

    *ret_created = true;
    int made = create(all, r, killed ? NULL : s, NULL, let_in, ret, e);
    if (made == 0) {
        lock_take(&all->lock);
        all->stats.auto_retried += !killed;
        s->superseded = true;
        lock_release(&all->lock);
    }
    return made;
}

static int get_or_create(struct sessions *all, const struct session_request *r, bool *let_in,
                         struct session **ret, bool *ret_created, struct pd_err *e)
{
    struct session *s = sessions_look_for_thread(all, r->tenant, r->user_id, r->thread_id);
    if (s) {
        int got = use_or_replace(all, r, s, let_in, ret, ret_created, e);
        session_unref(s);
        return got;
    }

    *ret_created = true;
    return create(all, r, NULL, NULL, let_in, ret, e);
}

int sessions_get_or_create(struct sessions *all, const struct session_request *r,
                           struct session **ret, bool *ret_created, struct queue_place *ret_place,
                           struct pd_err *e)
{
    *ret_place = (struct queue_place){0};

    /* Two requests for one thread at the same moment must not make two sessions. */
    struct name_hold names = {.r = r};
    bool let_in = false;
    int r1;
    for (;;) {
        if ((r1 = names_hold(all, &names, e)) < 0)
            break;
        r1 = get_or_create(all, r, &let_in, ret, ret_created, e);
        names_release(all, &names);
        if (r1 != MUST_WAIT)
            break;
        if (queue_enter(all, r->tenant, r->queue_timeout_ms, ret_place, e) < 0)
            return -1;
        let_in = true;
    }

    if (let_in)
        queue_leave(all, r->tenant);
    return r1;
}
