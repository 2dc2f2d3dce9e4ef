/* How this works: what is known of snapshots is in a list and in the store, under one lock.
 *
 *   making    the row is there, the root is being copied; nobody finds it
 *   ready     it can be found, copied and deleted
 *   going     its root is to be removed, when the last copy that is being made of it is done
 *
 * A row that says "making" at the start of a daemon is a copy that was interrupted: it goes. The
 * row is deleted after the root was, so there is neither a root without a row nor, but for what is
 * going, a row without a root. */
#include "core/snapshots.h"

#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/lock.h"
#include "telemetry/log.h"

#include <errno.h>

#define COPY_PATIENCE     (120 * NS_PER_S)
#define COPIES_PER_TENANT 2u /* at once: fewer than there are copiers, one is for others */

/* Kept in the database, so numbers stay what they are. */
enum snapshot_state { MAKING = 0, READY = 1, GOING = 2 };

struct snapshot {
    struct snapshot *next;
    struct snapshot_info info;
    struct provider *provider; /* of info.provider; NULL: it is not configured any more */
    enum snapshot_state state;
    unsigned users; /* copies that are being made of it */
    int removing;   /* somebody is */
    char *note;     /* of a layer; of a client's: the rules of its sandbox's way out; or NULL */
};

static void root_of(const struct snapshot *n, char out[SPEC_NAME_MAX + 1])
{
    snprintf(out, SPEC_NAME_MAX + 1, "sn-%s", n->info.id);
}

static int put(struct sessions *all, const struct snapshot *n, enum snapshot_state state,
               const char *name, struct pd_err *e)
{
    struct snapshot_row row = {.id = n->info.id,
                               .tenant = n->info.tenant,
                               .name = name,
                               .sandbox = n->info.sandbox,
                               .template_name = n->info.template_name,
                               .provider = n->info.provider,
                               .profile = (int)n->info.profile,
                               .state = (int)state,
                               .kind = (int)n->info.kind,
                               .note = n->note,
                               .created_ms = n->info.created_ms};
    return all->c.store->put_snapshot(all->c.store, &row, e);
}

int snapshots_possible(const struct sessions *all, const struct provider *p, struct pd_err *e)
{
    if (!all->c.disk_roots)
        return pd_fail(e, PD_UNSUPPORTED,
                       "sandboxes have their files in memory here (storage), so there are no "
                       "snapshots and no forks of them");
    return provider_must(p, PROVIDER_SNAPSHOT, e);
}

/* ---- the list; all with its lock held ---- */

static struct snapshot *find(struct sessions *all, enum snapshot_kind kind, const char *tenant,
                             const char *id_or_name)
{
    struct snapshot *named = NULL;
    for (struct snapshot *n = all->snapshots; n; n = n->next) {
        if (n->state != READY || n->info.kind != kind || strcmp(n->info.tenant, tenant) != 0)
            continue;
        if (!strcmp(n->info.id, id_or_name))
            return n;
        if (!named && n->info.name[0] && !strcmp(n->info.name, id_or_name))
            named = n;
    }

    return named;
}

/* Newest first; what was made at the same moment by id. */
static int order(const struct snapshot *a, uint64_t ms, const char *id)
{
    if (a->info.created_ms != ms)
        return a->info.created_ms > ms ? -1 : 1;
    return -strcmp(a->info.id, id);
}

static void insert(struct sessions *all, struct snapshot *n)
{
    struct snapshot **at = &all->snapshots;
    while (*at && order(*at, n->info.created_ms, n->info.id) < 0)
        at = &(*at)->next;
    n->next = *at;
    *at = n;
}

static void unlink_and_free(struct sessions *all, struct snapshot *n)
{
    for (struct snapshot **at = &all->snapshots; *at; at = &(*at)->next)
        if (*at == n) {
            *at = n->next;
            break;
        }
    free(n->note);
    free(n);
}

static unsigned count_of(const struct sessions *all, enum snapshot_kind kind, const char *tenant)
{
    unsigned count = 0;
    for (const struct snapshot *n = all->snapshots; n; n = n->next)
        count += n->state != GOING && n->info.kind == kind && !strcmp(n->info.tenant, tenant);
    return count;
}

/* ---- going ---- */

/* The first at a provider that can be removed now, which is the caller's then. */
static struct snapshot *take_going(struct sessions *all, const struct provider *at,
                                   const struct snapshot *after)
{
    struct snapshot *found = NULL;

    lock_take(&all->snapshot_lock);
    int seen = after == NULL;
    for (struct snapshot *n = all->snapshots; n && !found && all->snapshots_to_go; n = n->next) {
        if (seen && n->provider == at && n->state == GOING && !n->users && !n->removing)
            found = n;
        seen |= n == after;
    }

    if (found)
        found->removing = 1;
    lock_release(&all->snapshot_lock);
    return found;
}

/* 0: gone, and freed. */
static int remove_one(struct sessions *all, struct snapshot *n)
{
    struct pd_err e = {0};
    char root[SPEC_NAME_MAX + 1];
    root_of(n, root);
    int r = root_remove(n->provider, root, &e);
    if (r < 0 && e.code == PD_NOT_FOUND)
        r = 0;
    if (r == 0)
        r = all->c.store->delete_snapshot(all->c.store, n->info.id, &e);
    if (r < 0)
        log_warn("snapshot.remove", "id=%s error=%s", n->info.id, e.msg);

    lock_take(&all->snapshot_lock);
    n->removing = 0;
    if (r == 0) {
        all->snapshots_to_go--;
        unlink_and_free(all, n);
    }

    lock_release(&all->snapshot_lock);
    return r;
}

/* One that cannot be removed now (the keeper is away, the disk is full) stays for the next time. */
void snapshots_sweep(struct sessions *all, const struct provider *at)
{
    const struct snapshot *stays = NULL;
    for (struct snapshot *n; at && (n = take_going(all, at, stays));)
        if (remove_one(all, n) < 0)
            stays = n;
}

static void set_going(struct sessions *all, struct snapshot *n)
{
    lock_take(&all->snapshot_lock);
    if (n->state != GOING)
        all->snapshots_to_go++;
    n->state = GOING;
    lock_release(&all->snapshot_lock);
}

static int delete_one(struct sessions *all, enum snapshot_kind kind, const char *tenant,
                      const char *id_or_name, struct pd_err *e)
{
    lock_take(&all->snapshot_lock);
    struct snapshot *n = find(all, kind, tenant, id_or_name);

    /* The store is asked under the lock: of two that delete it, one is told that it is gone. */
    int r = n ? put(all, n, GOING, n->info.name, e)
              : pd_fail(e, PD_NOT_FOUND, "there is no snapshot '%.80s'", id_or_name);
    const struct provider *at = n ? n->provider : NULL;
    if (r == 0) {
        n->state = GOING;
        all->snapshots_to_go++;
    }

    lock_release(&all->snapshot_lock);

    if (r == 0)
        snapshots_sweep(all, at);
    return r;
}

int snapshot_delete(struct sessions *all, const char *tenant, const char *id_or_name,
                    struct pd_err *e)
{
    return delete_one(all, SNAPSHOT_OF_CLIENT, tenant, id_or_name, e);
}

int layer_delete(struct sessions *all, const char *tenant, const char *id, struct pd_err *e)
{
    return delete_one(all, SNAPSHOT_LAYER, tenant, id, e);
}

/* ---- whose turn it is ---- */

/* A copy that is being made; on the stack of who makes it. */
struct copying {
    struct copying *next;
    const char *tenant;
};

static unsigned copies_of(const struct sessions *all, const char *tenant)
{
    unsigned count = 0;
    for (const struct copying *c = all->copying; c; c = c->next)
        count += !strcmp(c->tenant, tenant);
    return count;
}

/* Copiers take what comes first and may be busy for minutes: a tenant's copies wait here for each
 * other, not there in front of everybody else's. */
static int copy_begin(struct sessions *all, struct copying *c, deadline d, struct pd_err *e)
{
    int r = 0;

    lock_take(&all->snapshot_lock);

    while (r == 0 && copies_of(all, c->tenant) >= COPIES_PER_TENANT)
        if (!lock_wait(&all->copied_cond, &all->snapshot_lock, d))
            r = pd_fail(e, PD_CAPACITY, "other copies took too long: try again later");
    if (r == 0) {
        c->next = all->copying;
        all->copying = c;
    }

    lock_release(&all->snapshot_lock);
    return r;
}

static void copy_end(struct sessions *all, struct copying *c)
{
    lock_take(&all->snapshot_lock);
    struct copying **at = &all->copying;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    pthread_cond_broadcast(&all->copied_cond);
    lock_release(&all->snapshot_lock);
}

/* ---- copies of one ---- */

struct snapshot *snapshot_hold(struct sessions *all, const char *tenant, const char *id,
                               struct pd_err *e)
{
    lock_take(&all->snapshot_lock);
    struct snapshot *n = find(all, SNAPSHOT_OF_CLIENT, tenant, id);
    if (!n)
        n = find(all, SNAPSHOT_LAYER, tenant, id);
    if (!n)
        pd_fail(e, PD_NOT_FOUND, "there is no snapshot '%.80s'", id);
    else if (n->provider)
        n->users++;
    else
        pd_fail(e, PD_UNSUPPORTED,
                "snapshot '%.80s' has its files at provider %s, which is not configured here", id,
                n->info.provider);

    /* Without a user it may be deleted as soon as the lock is free. */
    struct snapshot *held = n && n->provider ? n : NULL;
    lock_release(&all->snapshot_lock);
    return held;
}

void snapshot_release(struct sessions *all, struct snapshot *held)
{
    lock_take(&all->snapshot_lock);
    held->users--;
    const struct provider *at = held->provider;
    int sweep = held->state == GOING && !held->users;
    lock_release(&all->snapshot_lock);

    if (sweep)
        snapshots_sweep(all, at);
}

struct provider *snapshot_provider(const struct snapshot *held)
{
    return held->provider;
}

const char *snapshot_rules(const struct snapshot *held)
{
    return held->info.kind == SNAPSHOT_OF_CLIENT ? held->note : NULL;
}

int snapshot_copy(struct sessions *all, const struct snapshot *held, const char *to,
                  struct pd_err *e)
{
    struct copying c = {.tenant = held->info.tenant};
    deadline d = deadline_in(COPY_PATIENCE);
    char root[SPEC_NAME_MAX + 1];
    root_of(held, root);
    if (copy_begin(all, &c, d, e) < 0)
        return -1;
    int r = root_copy(held->provider, NULL, root, to, d, e);
    copy_end(all, &c);
    return r;
}

/* ---- making one ---- */

int session_copy_root(struct session *s, const char *to, struct pd_err *e)
{
    struct copying c = {.tenant = s->info.tenant};

    /* Before the change, for which others wait. */
    if (copy_begin(s->all, &c, deadline_in(COPY_PATIENCE), e) < 0)
        return -1;
    if (session_begin_change(s, e) < 0) {
        copy_end(s->all, &c);
        return -1;
    }

    lock_take(&s->lock);
    int r = s->info.state == SESSION_PAUSED && !s->lost ? 0 : session_usable(s, e);
    int asleep = s->info.asleep, running = s->info.state == SESSION_RUNNING;
    lock_release(&s->lock);

    if (r == 0 && !s->root_name[0])
        r = pd_fail(e, PD_UNSUPPORTED, "sandbox %s has its files in memory: they cannot be copied",
                    s->info.id);
    if (r == 0) {
        if (running)
            prepared_give_up(s);
        rw_read(&s->box_use);
        r = s->box || asleep
                ? root_copy(s->provider, s->box, s->root_name, to, deadline_in(COPY_PATIENCE), e)
                : session_no_box(s, e);
        rw_release(&s->box_use);
    }

    session_end_change(s);
    copy_end(s->all, &c);
    return r;
}

/* Enters it into the list as being made, if the tenant may have another. */
static struct snapshot *enter(struct session *s, enum snapshot_kind kind, const char *note,
                              struct pd_err *e)
{
    struct sessions *all = s->all;
    struct snapshot *n = calloc(1, sizeof *n);
    if (!n) {
        pd_fail(e, PD_CAPACITY, "no memory for a snapshot");
        return NULL;
    }

    id_sandbox(n->info.id);
    n->info.kind = kind;
    if (note && !(n->note = strdup(note))) {
        free(n);
        pd_fail(e, PD_CAPACITY, "no memory for a snapshot");
        return NULL;
    }

    lock_take(&s->lock);
    memcpy(n->info.tenant, s->info.tenant, sizeof n->info.tenant);
    memcpy(n->info.sandbox, s->info.id, sizeof n->info.sandbox);
    memcpy(n->info.template_name, s->info.template_name, sizeof n->info.template_name);
    memcpy(n->info.provider, s->info.provider, sizeof n->info.provider);
    n->provider = s->provider;
    n->info.profile = s->info.spec.profile;
    lock_release(&s->lock);

    n->info.created_ms = time_now_ms();

    lock_take(&all->lock);
    unsigned max = all->c.max_snapshots ? all->c.max_snapshots : SNAPSHOTS_DEFAULT;
    lock_release(&all->lock);
    if (kind == SNAPSHOT_LAYER)
        max = LAYERS_MAX;

    lock_take(&all->snapshot_lock);
    int room = count_of(all, kind, n->info.tenant) < max;
    if (room)
        insert(all, n);
    lock_release(&all->snapshot_lock);

    if (room)
        return n;
    free(n->note);
    free(n);
    pd_fail(e, PD_CAPACITY, "there are %u snapshots already, and no more are allowed: delete some",
            max);
    return NULL;
}

/* The name's older owner keeps its id. Its row is written last: should the daemon die in between,
 * two rows have the name, and the younger one is right. With the lock held. */
static int publish(struct sessions *all, struct snapshot *n, const char *name, struct pd_err *e)
{
    struct pd_err ignored;
    struct snapshot *older = NULL;
    if (put(all, n, READY, name, e) < 0)
        return -1;

    for (struct snapshot *o = all->snapshots; o && name[0] && !older; o = o->next)
        if (o != n && o->state == READY && o->info.kind == n->info.kind &&
            !strcmp(o->info.tenant, n->info.tenant) && !strcmp(o->info.name, name))
            older = o;
    n->state = READY;
    snprintf(n->info.name, sizeof n->info.name, "%s", name);
    if (older) {
        older->info.name[0] = 0;
        if (put(all, older, READY, "", &ignored) < 0)
            log_warn("snapshot.store", "id=%s error=%s", older->info.id, ignored.msg);
    }

    return 0;
}

/* The rules that its sandbox has now, which are those of what is made from it. Nobody else reads
 * them before it is published. */
static int keep_rules(struct session *s, struct snapshot *n, struct pd_err *e)
{
    lock_take(&s->lock);
    bool has = s->info.spec.network == NETWORK_GATE && s->network;
    n->note = has ? strdup(s->network) : NULL;
    lock_release(&s->lock);
    return has && !n->note ? pd_fail(e, PD_CAPACITY, "no memory for a snapshot") : 0;
}

static int make(struct session *s, enum snapshot_kind kind, const char *name, const char *note,
                struct snapshot_info *ret, struct pd_err *e)
{
    struct sessions *all = s->all;
    char root[SPEC_NAME_MAX + 1];
    if (snapshots_possible(all, s->provider, e) < 0)
        return -1;

    name = name ? name : "";
    if (strlen(name) > SNAPSHOT_NAME_MAX)
        return pd_fail(e, PD_INVALID, "a snapshot's name is longer than %u characters",
                       SNAPSHOT_NAME_MAX);
    struct snapshot *n = enter(s, kind, note, e);
    if (!n)
        return -1;

    root_of(n, root);
    int r = put(all, n, MAKING, "", e);
    bool row = r == 0;
    if (r == 0)
        r = session_copy_root(s, root, e);
    if (r == 0 && kind == SNAPSHOT_OF_CLIENT)
        r = keep_rules(s, n, e);

    if (r == 0) {
        lock_take(&all->snapshot_lock);
        r = publish(all, n, name, e);
        if (r == 0)
            *ret = n->info;
        lock_release(&all->snapshot_lock);
    }

    if (r == 0) {
        log_info("snapshot.made", "id=%s sandbox=%s", ret->id, ret->sandbox);
        return 0;
    }

    if (row) {
        const struct provider *at = n->provider;
        set_going(all, n);
        snapshots_sweep(all, at);
    } else {
        lock_take(&all->snapshot_lock);
        unlink_and_free(all, n);
        lock_release(&all->snapshot_lock);
    }

    return -1;
}

int session_snapshot(struct session *s, const char *name, struct snapshot_info *ret,
                     struct pd_err *e)
{
    return make(s, SNAPSHOT_OF_CLIENT, name, NULL, ret, e);
}

int session_layer(struct session *s, const char *key, const char *note, struct snapshot_info *ret,
                  struct pd_err *e)
{
    return make(s, SNAPSHOT_LAYER, key, note, ret, e);
}

int session_fork(struct session *s, const struct session_request *r, struct session **ret,
                 struct pd_err *e)
{
    struct queue_place place;
    bool known;
    struct session_request wanted = *r;
    if (r->snapshot)
        return pd_fail(e, PD_INVALID, "a fork has the files of its sandbox, not of a snapshot");
    if (snapshots_possible(s->all, s->provider, e) < 0)
        return -1;
    /* With the rules of its origin, unless the request has others. */
    char *network = NULL;
    if (!r->network && s->info.spec.network == NETWORK_GATE) {
        if (!(network = session_network(s)))
            return pd_fail(e, PD_CAPACITY, "no memory for the fork");
        wanted.network = network;
        wanted.spec.network = NETWORK_GATE;
    }
    int made = sessions_create_from(s->all, &wanted, s, ret, &known, &place, e);
    free(network);
    return made;
}

/* ---- finding ---- */

int snapshots_find(struct sessions *all, const char *tenant, const char *id_or_name,
                   struct snapshot_info *ret, struct pd_err *e)
{
    lock_take(&all->snapshot_lock);
    const struct snapshot *n = find(all, SNAPSHOT_OF_CLIENT, tenant, id_or_name);
    if (n)
        *ret = n->info;
    lock_release(&all->snapshot_lock);
    return n ? 0 : pd_fail(e, PD_NOT_FOUND, "there is no snapshot '%.80s'", id_or_name);
}

int layer_find(struct sessions *all, const char *tenant, const char *key, struct snapshot_info *ret,
               struct buf *ret_note, struct pd_err *e)
{
    lock_take(&all->snapshot_lock);
    const struct snapshot *n = find(all, SNAPSHOT_LAYER, tenant, key);
    if (n) {
        *ret = n->info;
        buf_puts(ret_note, n->note ? n->note : "");
    }
    lock_release(&all->snapshot_lock);
    return n ? 0 : pd_fail(e, PD_NOT_FOUND, "there is no layer '%.80s'", key);
}

unsigned layers_list(struct sessions *all, const char *tenant, struct snapshot_info ret[LAYERS_MAX])
{
    unsigned count = 0;

    lock_take(&all->snapshot_lock);
    for (const struct snapshot *n = all->snapshots; n && count < LAYERS_MAX; n = n->next)
        if (n->state == READY && n->info.kind == SNAPSHOT_LAYER && !strcmp(n->info.tenant, tenant))
            ret[count++] = n->info;
    lock_release(&all->snapshot_lock);
    return count;
}

int snapshots_list(struct sessions *all, const char *tenant, const char *sandbox, const char *name,
                   const char *cursor, unsigned limit, struct snapshot_info *ret,
                   unsigned *ret_count, char ret_next[64], struct pd_err *e)
{
    uint64_t ms = 0;
    const char *id = "";
    if (cursor && session_read_cursor(cursor, &ms, &id, e) < 0)
        return -1;
    unsigned count = 0;
    ret_next[0] = 0;

    lock_take(&all->snapshot_lock);

    for (const struct snapshot *n = all->snapshots; n; n = n->next) {
        if (n->state != READY || n->info.kind != SNAPSHOT_OF_CLIENT ||
            strcmp(n->info.tenant, tenant) != 0 ||
            (sandbox && strcmp(n->info.sandbox, sandbox) != 0) ||
            (name && strcmp(n->info.name, name) != 0) || (cursor && order(n, ms, id) <= 0))
            continue;
        if (count == limit) {
            if (count)
                snprintf(ret_next, 64, "%llu-%s", (unsigned long long)ret[count - 1].created_ms,
                         ret[count - 1].id);
            break;
        }
        ret[count++] = n->info;
    }

    lock_release(&all->snapshot_lock);

    *ret_count = count;
    return 0;
}

/* ---- after a restart ---- */

struct loading {
    struct sessions *all;
    bool failed;
};

static int load(const struct snapshot_row *r, void *arg)
{
    struct loading *l = arg;
    struct sessions *all = l->all;
    struct snapshot *n = calloc(1, sizeof *n);
    if (!n) {
        l->failed = true;
        return -1;
    }

    snprintf(n->info.id, sizeof n->info.id, "%s", r->id);
    snprintf(n->info.tenant, sizeof n->info.tenant, "%s", r->tenant);
    snprintf(n->info.name, sizeof n->info.name, "%s", r->name);
    snprintf(n->info.sandbox, sizeof n->info.sandbox, "%s", r->sandbox);
    snprintf(n->info.template_name, sizeof n->info.template_name, "%s", r->template_name);
    snprintf(n->info.provider, sizeof n->info.provider, "%s", r->provider);
    n->provider = provider_table_find(all->c.providers, r->provider);
    n->info.profile = (unsigned)r->profile < PROFILE_COUNT ? (enum profile)r->profile : 0;
    n->info.kind = r->kind == SNAPSHOT_LAYER ? SNAPSHOT_LAYER : SNAPSHOT_OF_CLIENT;
    n->info.created_ms = r->created_ms;
    if ((n->info.kind == SNAPSHOT_LAYER || r->note[0]) && !(n->note = strdup(r->note))) {
        free(n);
        l->failed = true;
        return -1;
    }
    n->state = r->state == READY ? READY : GOING;

    lock_take(&all->snapshot_lock);
    all->snapshots_to_go += n->state == GOING;
    insert(all, n);
    lock_release(&all->snapshot_lock);
    return 0;
}

int snapshots_load(struct sessions *all, struct pd_err *e)
{
    struct loading l = {.all = all};

    if (all->c.store->each_snapshot(all->c.store, load, &l, e) < 0)
        return -1;
    if (l.failed) /* else they would be missing until the next start */
        return pd_fail(e, PD_CAPACITY, "no memory to load the snapshots: start again");

    /* Of two with one name the younger has it. */
    lock_take(&all->snapshot_lock);

    for (struct snapshot *n = all->snapshots; n; n = n->next)
        for (struct snapshot *o = n->next; o && n->state == READY && n->info.name[0]; o = o->next)
            if (o->info.kind == n->info.kind && !strcmp(o->info.name, n->info.name) &&
                !strcmp(o->info.tenant, n->info.tenant))
                o->info.name[0] = 0;
    lock_release(&all->snapshot_lock);
    return 0;
}
