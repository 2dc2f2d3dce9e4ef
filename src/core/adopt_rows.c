/* How the rows of an earlier daemon become sessions and processes again, before anybody is asked
 * what is left of them (adopt.c). A row that cannot be loaded ends the start of the daemon: going
 * on would end its box as a stranger's. */
#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "telemetry/log.h"

/* The target of all rows, and the first failure. */
struct loading {
    struct sessions *all;
    bool failed;
    struct pd_err e;
};

static int fail_row(struct loading *l, const char *session)
{
    l->failed = true;
    return pd_fail(&l->e, PD_CAPACITY,
                   "no memory to load sandbox %.40s; nothing was changed: start again", session);
}

static void copy(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from ? from : "");
}

/* A copy of a text, or NULL without one; *whole becomes false when there is no memory. */
static char *copy_text(const char *text, bool *whole)
{
    char *copied = text && text[0] ? strdup(text) : NULL;

    if (text && text[0] && !copied)
        *whole = false;
    return copied;
}

/* ---- sessions ---- */

static enum life life_of_row(const struct session_row *r)
{
    if (r->state == SESSION_GONE)
        return LIFE_GONE;

    /* Nobody's, or not yet acknowledged: a retry makes another one. */
    if (!r->tenant || !r->tenant[0] || r->state == SESSION_CREATING)
        return LIFE_READY;

    switch (r->state) {
    case SESSION_RUNNING:
        return LIFE_RUNNING;
    case SESSION_PAUSED:
        return r->asleep ? LIFE_ASLEEP : LIFE_PAUSED;
    default:
        return LIFE_CANCELLED; /* it was being ended, which is finished now */
    }
}

/* Rows that were in the pool of an older server have no name. */
static struct provider *find_provider(const struct sessions *all, const char *name)
{
    return name[0] ? provider_table_find(all->c.providers, name) : all->c.providers->list[0];
}

/* The session cannot be reached, but is not ended either: its row, its root and its output stay for
 * a server that has the provider. */
static void tell_unconfigured(struct session *s)
{
    struct session_info *i = &s->info;
    s->stranded = true;
    i->end = END_LOST;
    i->ended_ms = time_now_ms();
    snprintf(i->end_reason, sizeof i->end_reason,
             "its provider '%s' is not configured on this server; its files are kept, and it is "
             "found again when the server is started with that provider",
             i->provider);
    log_warn("adopt.provider", "id=%s provider=%s error=not configured", i->id, i->provider);
}

/* Names and texts. -1 without memory. */
static int load_texts(struct session *s, const struct session_row *r)
{
    struct session_info *i = &s->info;
    copy(i->id, sizeof i->id, r->id);
    copy(i->tenant, sizeof i->tenant, r->tenant);
    copy(i->made_by, sizeof i->made_by, r->made_by);
    copy(i->user_id, sizeof i->user_id, r->user_id);
    copy(i->thread_id, sizeof i->thread_id, r->thread_id);
    copy(i->template_name, sizeof i->template_name, r->template_name);
    copy(i->provider, sizeof i->provider, r->provider);
    copy(i->reason, sizeof i->reason, r->reason);
    copy(i->end_reason, sizeof i->end_reason, r->end_reason);
    copy(i->replaces, sizeof i->replaces, r->replaces);
    copy(s->root_name, sizeof s->root_name, r->root_name);
    copy(s->cwd, sizeof s->cwd, r->cwd);

    bool whole = true;
    s->metadata = copy_text(r->metadata ? r->metadata : "{}", &whole);
    s->key = copy_text(r->key, &whole);
    s->policy_text = copy_text(r->policy && r->policy[0] ? r->policy : "open", &whole);
    s->note = copy_text(r->note, &whole);
    s->arm = copy_text(r->arm, &whole);
    s->other_root = copy_text(r->other_root, &whole);
    s->network = copy_text(r->network, &whole);
    return whole ? 0 : -1;
}

/* Policy, specification and variables. What cannot be read is told and left out; -1 without
 * memory. */
static int load_spec(struct session *s, const struct session_row *r)
{
    const char *id = s->info.id;
    struct pd_err e;
    if (policy_parse(s->policy_text, &s->policy, &e) < 0)
        log_warn("adopt.policy", "id=%s error=%s", id, e.msg);

    struct buf spec = {.data = (uint8_t *)(uintptr_t)r->spec, .len = r->spec_len};
    struct spec wanted;
    if (spec_restore(&spec, &wanted, &e) < 0) {
        log_error("adopt.spec", "id=%s error=%s", id, e.msg);
        wanted = SPEC_DEFAULT;
    }
    wanted.root_dir = wanted.root_name = "";
    wanted.bind_count = 0;
    if (session_set_spec(s, &wanted) < 0)
        return -1;

    for (size_t at = 0; at < r->env_len; at += strlen(r->env + at) + 1)
        if (msg_list_add(&s->env, r->env + at) < 0)
            log_warn("adopt.env", "id=%s error=a variable has no room", id);
    return 0;
}

/* Numbers, times and kinds. */
static void load_facts(struct session *s, const struct session_row *r)
{
    struct session_info *i = &s->info;
    memcpy(s->box_id.bytes, r->box_id, sizeof s->box_id.bytes);
    s->key_hash = r->key_hash;
    i->recreated = i->replaces[0] != 0;
    i->from_pool = r->from_pool;
    i->rung = (enum rung)r->rung;
    i->pause_at_end = r->pause_at_end;
    i->mode = r->mode > MODE_NONE && r->mode < MODE_COUNT ? (enum run_mode)r->mode : MODE_NONE;

    i->end = (enum session_end)r->end;
    i->created_ms = r->created_ms;
    /* Nobody could use it while there was no server. */
    i->last_used_ms = r->state == SESSION_RUNNING ? time_now_ms() : r->last_used_ms;
    i->ended_ms = r->ended_ms;
    i->idle_timeout_ms = r->idle_timeout_ms;
    i->max_life_ms = r->max_life_ms;
    s->paused_at_ms = r->paused_ms;
}

static int load_session(const struct session_row *r, void *arg)
{
    struct loading *l = arg;
    struct sessions *all = l->all;
    struct session *s = session_new(all, NULL);
    if (!s)
        return fail_row(l, r->id);
    if (load_texts(s, r) < 0 || load_spec(s, r) < 0) {
        session_unref(s);
        return fail_row(l, r->id);
    }

    load_facts(s, r);
    s->provider = find_provider(all, s->info.provider);
    enum life life = life_of_row(r);
    if (!s->provider && life == LIFE_READY) {
        session_unref(s); /* nobody's: a server that has the provider ends it */
        return 0;
    }
    if (!s->provider && life != LIFE_GONE) {
        tell_unconfigured(s);
        life = LIFE_GONE;
    }

    lock_take(&all->lock);
    *sessions_place(all, s->info.id) = s; /* the reference is the table's */

    lock_take(&s->lock);
    session_step(s, life);
    lock_release(&s->lock);
    lock_release(&all->lock);
    return 0;
}

/* ---- processes ---- */

/* -1 without memory. */
static int load_command(struct process *p, const struct process_row *r)
{
    bool whole = true;
    p->command = r->command && r->command[0] ? copy_text(r->command, &whole) : strdup("");
    p->key = copy_text(r->key, &whole);
    p->note = copy_text(r->note, &whole);
    return whole && p->command ? 0 : -1;
}

static void load_flags(struct process *p, const struct process_row *r)
{
    p->shell = (r->flags & ROW_SHELL) != 0;
    p->pty = (r->flags & ROW_PTY) != 0;
    p->background = (r->flags & ROW_BACKGROUND) != 0;
    p->back_pressure = (r->flags & ROW_BACK_PRESSURE) != 0;
    p->refused = (r->flags & ROW_REFUSED) != 0;
    p->state_updated = (r->flags & ROW_STATE_UPDATED) != 0;
    p->forgotten = (r->flags & ROW_FORGOTTEN) != 0;
    p->driver = (r->flags & ROW_DRIVER) != 0;
    p->updates_state = !r->exited && (r->flags & ROW_UPDATES_STATE) != 0;
}

/* Ended, and its streams are at their ends. */
static bool is_over(const struct process_row *r)
{
    return r->exited && (r->flags & ROW_OVER) != 0;
}

static void load_life(struct process *p, const struct process_row *r)
{
    p->state = r->exited ? PROCESS_SETTLED : PROCESS_RUNNING; /* as the earlier daemon left it */
    p->stored = true;
    p->synced = false;
    /* Until it is looked for, it may be there: who buries the process has it dropped. */
    p->stashed = p->stashed_input = !is_over(r);

    uint64_t now = time_now_ms();
    p->started_ms = r->started_ms;
    p->started_ns = clock_now() - (now > r->started_ms ? now - r->started_ms : 0) * NS_PER_MS;
    p->timeout_ns =
        r->deadline_ms > r->started_ms ? (r->deadline_ms - r->started_ms) * NS_PER_MS : 0;
    p->ended_ms = r->ended_ms;
    p->duration_us = r->duration_us;

    p->stop = (enum process_stop)r->stop;
    p->end.status = r->status;
    p->end.cpu_usec = r->cpu_usec;
    p->end.max_rss = r->max_rss;
    if (p->refused)
        pd_fail(&p->why, (enum pd_code)r->why_code, "%s", r->why ? r->why : "");
}

static void load_spools(struct process *p, bool over)
{
    for (unsigned i = 0; i < process_stream_count(p); i++) {
        struct spool at = process_spool(p, i);
        struct pd_err e;
        if (spool_open(&p->streams[i].spool, at.dir, at.name, at.max, &e) < 0)
            log_warn("adopt.spool", "session=%s error=%s", p->session->info.id, e.msg);
        kept_count(&p->streams[i]);
        if (over)
            spool_rest(&p->streams[i].spool);
    }
}

static int load_process(const struct process_row *r, void *arg)
{
    struct loading *l = arg;
    struct session *s = *sessions_place(l->all, r->session);
    if (!s || s->info.state == SESSION_GONE)
        return 0;

    struct process *p = process_new(s);
    if (!p)
        return fail_row(l, r->session);
    if (load_command(p, r) < 0) {
        process_unref(p);
        return fail_row(l, r->session);
    }

    kept_begin(p);
    memcpy(p->id.bytes, r->id, sizeof p->id.bytes);
    p->group = r->group;
    p->key_hash = r->key_hash;
    p->spool_max = r->spool_max;
    p->pid = r->pid;
    load_flags(p, r);
    load_life(p, r);
    load_spools(p, is_over(r));

    lock_take(&s->lock);
    session_add_process(s, p);
    if (process_is_live(p)) {
        s->running++;
        p->serial = ++s->next_serial;
        group_adopt(s, p->group, p->serial);
    }
    lock_release(&s->lock);

    process_unref(p);
    return 0;
}

int sessions_load_rows(struct sessions *all, struct pd_err *e)
{
    struct store *store = all->c.store;
    struct loading l = {.all = all};

    if (store->each_session(store, load_session, &l, e) < 0 ||
        (!l.failed && store->each_process(store, load_process, &l, e) < 0))
        return -1;

    if (l.failed)
        *e = l.e;
    return l.failed ? -1 : 0;
}
