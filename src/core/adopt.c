/* How a daemon goes on where another one stopped: sessions and processes are read from the store,
 * boxes and descriptors are asked for from the provider, and each box tells what became of its
 * commands. Streams go on at the spools' sizes. What is in the store but not there any more was
 * lost, and says so; what is there but not in the store is ended. */
#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "telemetry/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>

/* A healthy init may be late where thousands are asked at once on a machine that is busy. One that
 * says nothing for so long is stopped or hostile, and its sandbox is lost. */
#define SYNC_PATIENCE  (15 * NS_PER_S)
#define FETCH_PATIENCE (5 * NS_PER_S)
/* For all together, before requests are served. */
#define ANSWER_PATIENCE (300 * NS_PER_MS)

static void copy(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from ? from : "");
}

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

/* What the rows are loaded into. A row that cannot be loaded ends the start of the daemon: going on
 * would end its box as a stranger's. */
struct loading {
    struct sessions *all;
    int failed;
    struct pd_err e;
};

static int fail_row(struct loading *l, const char *session)
{
    l->failed = 1;
    return pd_fail(&l->e, PD_CAPACITY,
                   "no memory to load sandbox %.40s; nothing was changed: start again", session);
}

/* A copy of a text, or NULL without one; *whole becomes 0 when there is no memory. */
static char *copy_text(const char *text, int *whole)
{
    char *copied = text && text[0] ? strdup(text) : NULL;

    if (text && text[0] && !copied)
        *whole = 0;
    return copied;
}

static int load_session(const struct session_row *r, void *arg)
{
    struct loading *l = arg;
    struct sessions *all = l->all;
    struct session *s = session_new(all, NULL);
    struct pd_err e;
    int whole = 1;
    if (!s)
        return fail_row(l, r->id);

    struct session_info *i = &s->info;
    copy(i->id, sizeof i->id, r->id);
    copy(i->tenant, sizeof i->tenant, r->tenant);
    copy(i->user_id, sizeof i->user_id, r->user_id);
    copy(i->thread_id, sizeof i->thread_id, r->thread_id);
    copy(i->template_name, sizeof i->template_name, r->template_name);
    copy(i->provider, sizeof i->provider, r->provider);
    copy(i->reason, sizeof i->reason, r->reason);
    copy(i->end_reason, sizeof i->end_reason, r->end_reason);
    copy(i->replaces, sizeof i->replaces, r->replaces);
    copy(s->root_name, sizeof s->root_name, r->root_name);
    copy(s->cwd, sizeof s->cwd, r->cwd);
    i->recreated = i->replaces[0] != 0;
    memcpy(s->box_id.bytes, r->box_id, sizeof s->box_id.bytes);
    s->metadata = copy_text(r->metadata ? r->metadata : "{}", &whole);
    s->key = copy_text(r->key, &whole);
    s->key_hash = r->key_hash;
    s->policy_text = copy_text(r->policy && r->policy[0] ? r->policy : "open", &whole);
    s->note = copy_text(r->note, &whole);
    s->arm = copy_text(r->arm, &whole);
    s->other_root = copy_text(r->other_root, &whole);

    if (!whole) {
        session_unref(s);
        return fail_row(l, r->id);
    }

    if (policy_parse(s->policy_text, &s->policy, &e) < 0)
        log_warn("adopt.policy", "id=%s error=%s", i->id, e.msg);
    struct buf spec = {.data = (uint8_t *)(uintptr_t)r->spec, .len = r->spec_len};
    struct spec wanted;
    if (spec_restore(&spec, &wanted, &e) < 0) {
        log_error("adopt.spec", "id=%s error=%s", i->id, e.msg);
        wanted = SPEC_DEFAULT;
    }
    wanted.root_dir = wanted.root_name = "";
    wanted.bind_count = 0;
    if (session_set_spec(s, &wanted) < 0) {
        session_unref(s);
        return fail_row(l, r->id);
    }

    for (size_t at = 0; at < r->env_len; at += strlen(r->env + at) + 1)
        if (msg_list_add(&s->env, r->env + at) < 0)
            log_warn("adopt.env", "id=%s error=a variable has no room", i->id);
    i->end = (enum session_end)r->end;
    i->created_ms = r->created_ms;

    /* Nobody could use it while there was no server. */
    i->last_used_ms = r->state == SESSION_RUNNING ? time_now_ms() : r->last_used_ms;
    i->ended_ms = r->ended_ms;
    i->idle_timeout_ms = r->idle_timeout_ms;
    i->max_life_ms = r->max_life_ms;
    s->paused_at_ms = r->paused_ms;
    i->from_pool = r->from_pool;
    i->rung = (enum rung)r->rung;
    i->pause_at_end = r->pause_at_end;
    i->mode = r->mode > MODE_NONE && r->mode < MODE_COUNT ? (enum run_mode)r->mode : MODE_NONE;
    s->provider = find_provider(all, i->provider);
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
    *sessions_place(all, i->id) = s; /* the reference is the table's */

    lock_take(&s->lock);
    session_step(s, life);
    lock_release(&s->lock);
    lock_release(&all->lock);
    return 0;
}

static int load_process(const struct process_row *r, void *arg)
{
    struct loading *l = arg;
    struct pd_err e;
    int whole = 1;
    struct session *s = *sessions_place(l->all, r->session);
    if (!s || s->info.state == SESSION_GONE)
        return 0;

    struct process *p = process_new(s);
    if (!p)
        return fail_row(l, r->session);
    p->command = r->command && r->command[0] ? copy_text(r->command, &whole) : strdup("");
    p->key = copy_text(r->key, &whole);
    p->note = copy_text(r->note, &whole);
    if (!whole || !p->command) {
        process_unref(p);
        return fail_row(l, r->session);
    }

    kept_begin(p);
    memcpy(p->id.bytes, r->id, sizeof p->id.bytes);
    p->group = r->group;
    p->key_hash = r->key_hash;
    p->shell = (r->flags & ROW_SHELL) != 0;
    p->pty = (r->flags & ROW_PTY) != 0;
    p->background = (r->flags & ROW_BACKGROUND) != 0;
    p->back_pressure = (r->flags & ROW_BACK_PRESSURE) != 0;
    p->refused = (r->flags & ROW_REFUSED) != 0;
    p->state_updated = (r->flags & ROW_STATE_UPDATED) != 0;
    p->forgotten = (r->flags & ROW_FORGOTTEN) != 0;
    p->updates_state = !r->exited && (r->flags & ROW_UPDATES_STATE) != 0;
    p->stored = 1;
    p->synced = 0;

    /* Until it is looked for, it may be there: who buries the process has it dropped. */
    int over = r->exited && (r->flags & ROW_OVER) != 0;
    p->stashed = p->stashed_input = !over;
    p->spool_max = r->spool_max;
    p->pid = r->pid;
    p->stop = (enum process_stop)r->stop;
    p->started_ms = r->started_ms;
    p->ended_ms = r->ended_ms;
    p->duration_us = r->duration_us;
    uint64_t now = time_now_ms();
    p->started_ns = clock_now() - (now > r->started_ms ? now - r->started_ms : 0) * NS_PER_MS;
    p->end.status = r->status;
    p->end.cpu_usec = r->cpu_usec;
    p->end.max_rss = r->max_rss;
    p->timeout_ns =
        r->deadline_ms > r->started_ms ? (r->deadline_ms - r->started_ms) * NS_PER_MS : 0;
    if (p->refused)
        pd_fail(&p->why, (enum pd_code)r->why_code, "%s", r->why ? r->why : "");
    p->state = r->exited ? PROCESS_SETTLED : PROCESS_RUNNING; /* as the earlier daemon left it */

    for (unsigned i = 0; i < STREAM_COUNT; i++) {
        struct spool at = process_spool(p, i);
        if (spool_open(&p->streams[i].spool, at.dir, at.name, at.max, &e) < 0)
            log_warn("adopt.spool", "session=%s error=%s", s->info.id, e.msg);
        kept_count(&p->streams[i]);
        if (over)
            spool_rest(&p->streams[i].spool);
    }

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

/* `e` says why its output was not given back, if it was not. */
static void fetch_streams(struct process *p, struct pd_err *e)
{
    struct provider *provider = p->provider;
    char key[MSG_KEY_MAX + 1];
    int fds[4] = {-1, -1, -1, -1}, in = -1;
    unsigned count = 0;
    struct pd_err ignored;
    process_stash_key(p, "out", key);
    p->stashed = stash_fetch(provider, key, fds, 4, &count, deadline_in(FETCH_PATIENCE), e) == 0;
    if (p->stashed) {
        p->streams[STREAM_OUT].source.fd = fds[0];
        if (p->pty) {
            p->input = fds[0];
            p->via[0] = fds[1];
            p->via[1] = fds[2];
        } else {
            p->streams[STREAM_ERR].source.fd = fds[1];
            p->state_pipe = fds[2];
        }
    } else if (process_is_live(p)) {
        log_warn("adopt.streams", "session=%s error=%s", p->session->info.id, e->msg);
    }

    p->updates_state &= p->state_pipe >= 0;
    p->stashed_input = 0;
    if (process_is_live(p) && !p->pty) {
        process_stash_key(p, "in", key);
        p->stashed_input =
            stash_fetch(provider, key, &in, 1, &count, deadline_in(FETCH_PATIENCE), &ignored) == 0;
        p->input = in;
    }

    if (process_begin_streams(p, &ignored) < 0)
        log_warn("adopt.streams", "session=%s error=%s", p->session->info.id, ignored.msg);
}

/* With the session's lock held: nobody was told that the command exists. */
static void take_out(struct session *s, struct process *p, const struct pd_err *why)
{
    (void)process_fail(p, why);
    session_remove_process(s, p);
    s->running--;
    if (p->updates_state)
        s->shell_busy = 0;
}

/* Its row, its streams and its files. */
static void forget(struct process *p)
{
    struct session *s = p->session;
    struct store *store = s->all->c.store;
    struct pd_err e;
    char key[MSG_KEY_MAX + 1];

    if (store->delete_process(store, p->id.bytes, &e) < 0)
        log_warn("adopt.forget", "session=%s error=%s", s->info.id, e.msg);
    process_stash_key(p, "out", key);
    stash_drop(p->provider, key);
    process_stash_key(p, "in", key);
    stash_drop(p->provider, key);
    process_close_streams(p);
    process_discard_output(p);
}

/* The earlier daemon was killed between a command's row and the stash of its streams, which are
 * lost. It had told nobody of the command (process_store), so it goes the way of one without a row:
 * forgotten here, and killed when init tells of it. One that was told of before it started, in the
 * background or by its key, had both. */
static bool is_half_stored(const struct process *p, const struct pd_err *e)
{
    return !p->stashed && e->code == PD_NOT_FOUND && !p->background && !p->key &&
           process_is_live(p);
}

static void forget_half_stored(struct session *s, struct process *p)
{
    struct pd_err why;
    pd_fail(&why, PD_LOST, "the server was ended before the command was known to anybody");

    lock_take(&s->lock);
    take_out(s, p, &why);
    group_linger(s, p->group, p->serial);
    lock_release(&s->lock);

    log_info("adopt.half_stored", "session=%s", s->info.id);
    forget(p);
    process_unref(p);
}

/* One whose time is over is ended by the pump's next look; nobody attends it any more. */
static void adopt_process(struct process *p)
{
    struct pd_err e = {0};
    if (!process_is_live(p) && !p->stashed)
        return;

    /* Also of one that has ended: children of it may still write. */
    fetch_streams(p, &e);
    if (is_half_stored(p, &e)) {
        forget_half_stored(p->session, process_ref(p));
        return;
    }

    if (process_is_live(p) && p->updates_state)
        p->session->shell_busy = 1;
    if (process_is_live(p) && p->timeout_ns)
        pump_set_timer(p->session->all->c.pump, &p->timeout, p->started_ns + p->timeout_ns);
}

/* Init keeps the end of a command until that is stored: one that it does not know was written down,
 * but the request never went out. Nobody was told that it exists, and a retry is to start it. */
static struct process *take_unknown(struct session *s)
{
    struct process *found = NULL;

    lock_take(&s->lock);

    for (struct process *p = s->processes; p && !found; p = p->next)
        if (p->stored && !p->synced && process_state(p) == PROCESS_RUNNING)
            found = process_ref(p);
    if (found) {
        struct pd_err why;
        pd_fail(&why, PD_LOST, "the server was ended before the command was started: ask again");
        take_out(s, found, &why);
        group_release(s, found->group, found->serial);
    }

    lock_release(&s->lock);
    return found;
}

void session_settle(struct session *s)
{
    for (struct process *p; (p = take_unknown(s));) {
        forget(p);
        process_unref(p);
    }
}

/* Numbers that are in use by what earlier commands left running; some of those were never written
 * down. Numbers are given from the lowest on, so that a few missing ones mean that no more follow.
 */
static void note_groups(struct session *s, struct box *box)
{
    unsigned missing = 0;
    for (unsigned g = 1; g < GROUPS && missing < 8; g++) {
        int empty = box_group_is_empty(box, g);
        missing = empty == GROUP_MISSING ? missing + 1 : 0;
        uint64_t bit = 1ull << g % 64;
        if (empty || s->groups[g / 64] & bit)
            continue;
        s->groups[g / 64] |= bit;
        s->lingering[g / 64] |= bit;
    }
}

/* Has another session the same box? */
static bool has_namesake(const struct session *s)
{
    const struct sessions *all = s->all;

    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (const struct session *t = all->by_id[i]; t; t = t->next)
            if (t != s && !memcmp(&t->box_id, &s->box_id, sizeof s->box_id))
                return true;
    return false;
}

static void adopt_session(struct session *s)
{
    struct pd_err e;
    struct box *box;
    if (s->info.state == SESSION_GONE)
        return;
    int finish = s->life == LIFE_READY || s->life == LIFE_CANCELLED;
    if (finish && has_namesake(s)) {
        /* Its box went over to a session that was being moved. */
        s->box_id = wire_id_new();
        s->root_name[0] = 0;
    }
    if (box_adopt(s->provider, s->box_id, s, &box, &e) < 0) {
        box = NULL;
        if (!finish && !s->info.asleep)
            session_mark_lost(s, "it did not survive: the keeper or the machine was restarted");
    }

    if (s->info.asleep) {
        session_finish_sleep(s, box);
        return;
    }

    rw_write(&s->box_use);
    s->box = box;
    rw_release(&s->box_use);
    if (finish) {
        if (s->life == LIFE_READY)
            s->info.end = END_FAILED;
        if (!s->info.end_reason[0])
            copy(s->info.end_reason, sizeof s->info.end_reason,
                 "the server was ended while it was being made");
        session_finish_end(s);
        return;
    }

    if (!box)
        return;

    /* The row says what was acknowledged; the daemon may have died between it and the deed. */
    if (box_pause(box, s->info.state == SESSION_PAUSED, &e) < 0 &&
        e.code != PD_UNSUPPORTED) /* where nothing can be paused, nothing is */
        log_warn("adopt.pause", "session=%s error=%s", s->info.id, e.msg);
    note_groups(s, box);

    /* Processes that memory or number killed before are not the fault of the next command. */
    struct box_usage usage;
    if (box_get_usage(box, &usage, &e) == 0) {
        s->oom_seen = usage.oom_kills;
        s->pids_seen = usage.pids_refused;
        samples_rebase(s, usage.cpu_usec);
    }

    for (struct process *p = s->processes, *next; p; p = next) {
        next = p->next;
        adopt_process(p);
    }

    /* A frozen init does not answer; it is asked when it is resumed. */
    s->needs_sync = s->info.state == SESSION_PAUSED;
    if (s->needs_sync)
        return;
    s->sync_due = deadline_in(SYNC_PATIENCE);
    s->sync = SYNC_ASKED;
    if (box_sync(box, 0, &e) < 0) {
        s->sync = SYNC_NONE;
        session_mark_lost(s, "it does not answer after the server's restart");
    }
}

/* Most boxes have told of their commands in a moment. One that is slow or hostile does not keep the
 * others waiting: the controller sees to it. */
static void await_sync(struct session *s, deadline d)
{
    lock_take(&s->lock);

    while (s->sync == SYNC_ASKED && lock_wait(&s->changed, &s->lock, d))
        ;
    int told = s->sync == SYNC_TOLD;
    if (told)
        s->sync = SYNC_NONE;
    lock_release(&s->lock);

    if (told)
        session_settle(s);
}

static int read_hex(const char *text, struct wire_id *ret)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < 2 * sizeof ret->bytes; i++) {
        const char *d = text[i] ? strchr(digits, text[i]) : NULL;
        if (!d)
            return -1;
        unsigned value = (unsigned)(d - digits);
        ret->bytes[i / 2] = (uint8_t)(i % 2 ? ret->bytes[i / 2] << 4 | value : value);
    }

    return 0;
}

/* Spools of sessions and processes that nobody remembers. */
static void sweep_spools(struct sessions *all)
{
    int fd = openat(all->spool_dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    if (!entries) {
        fd_done(&fd);
        return;
    }

    const struct dirent *d;
    while ((d = readdir(entries))) {
        char id[SESSION_ID_LEN + 1];
        struct wire_id process;
        if (d->d_name[0] == '.')
            continue;
        int known = 0;
        if (strlen(d->d_name) == SESSION_ID_LEN + 1 + 32 + 2 &&
            read_hex(d->d_name + SESSION_ID_LEN + 1, &process) == 0) {
            snprintf(id, sizeof id, "%.*s", SESSION_ID_LEN, d->d_name);
            struct session *s = *sessions_place(all, id);
            known = s && s->stranded;
            for (struct process *p = s ? s->processes : NULL; p && !known; p = p->next)
                known = wire_id_equal(p->id, process);
        }
        if (!known)
            (void)unlinkat(all->spool_dir, d->d_name, 0);
    }

    closedir(entries);
}

int sessions_adopt(struct sessions *all, struct pd_err *e)
{
    struct store *store = all->c.store;
    uint64_t began = clock_now();
    unsigned count = 0, alive = 0;
    struct loading l = {.all = all};

    if (store->each_session(store, load_session, &l, e) < 0 ||
        (!l.failed && store->each_process(store, load_process, &l, e) < 0))
        return -1;
    if (l.failed) {
        *e = l.e;
        return -1;
    }
    if (snapshots_load(all, e) < 0)
        return -1;

    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (struct session *s = all->by_id[i]; s; s = s->next) {
            count++;
            adopt_session(s);
            alive += s->box != NULL;
        }
    deadline patience = deadline_in(ANSWER_PATIENCE);
    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (struct session *s = all->by_id[i]; s; s = s->next)
            await_sync(s, patience);

    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (struct session **at = &all->by_id[i]; *at;) {
            struct session *s = *at;
            /* One whose root could not be deleted stays until it is. */
            if (s->owned || s->root_name[0]) {
                at = &s->next;
                continue;
            }
            *at = s->next;
            session_unref(s);
        }
    boxes_end_strangers(all->c.providers);
    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (struct session *s = all->by_id[i]; s; s = s->next)
            session_finish_move(s); /* whose old box was one of those */
    snapshots_sweep(all);
    sweep_spools(all);
    if (count)
        log_info("adopt.done", "sessions=%u alive=%u ms=%llu", count, alive,
                 (unsigned long long)((clock_now() - began) / NS_PER_MS));
    return 0;
}
