/* How a daemon goes on where another one stopped: sessions and processes are read from the store
 * (adopt_rows.c), boxes and descriptors are asked for from the provider, and each box tells what
 * became of its commands. Streams go on at the spools' sizes. What is in the store but not there
 * any more was lost, and says so; what is there but not in the store is ended. */
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
            *(p->driver ? &p->streams[STREAM_EVENTS].source.fd : &p->state_pipe) = fds[2];
        }
    } else if (process_is_live(p)) {
        log_warn("adopt.streams", "session=%s error=%s", p->session->info.id, e->msg);
    }

    p->updates_state &= p->state_pipe >= 0;
    p->stashed_input = false;
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
        s->shell_busy = false;
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
        p->session->shell_busy = true;
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

/* One that an earlier daemon was making or ending. */
static void end_unfinished(struct session *s)
{
    if (s->life == LIFE_READY)
        s->info.end = END_FAILED;
    if (!s->info.end_reason[0])
        snprintf(s->info.end_reason, sizeof s->info.end_reason,
                 "the server was ended while it was being made");
    session_finish_end(s);
}

/* Finds out about a box before the next command starts in it. */
static void adopt_box(struct session *s, struct box *box)
{
    struct pd_err e;

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
}

/* Asks the box what became of its commands. A frozen init does not answer; it is asked when it is
 * resumed. */
static void ask_for_commands(struct session *s, struct box *box)
{
    struct pd_err e;
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

static void adopt_session(struct session *s)
{
    struct pd_err e;
    struct box *box;
    if (s->info.state == SESSION_GONE)
        return;
    s->owes_trust = s->info.state == SESSION_PAUSED; /* the daemon before may have known of some */

    bool is_unfinished = s->life == LIFE_READY || s->life == LIFE_CANCELLED;
    if (is_unfinished && has_namesake(s)) {
        /* Its box went over to a session that was being moved. */
        s->box_id = wire_id_new();
        s->root_name[0] = 0;
    }

    if (box_adopt(s->provider, s->box_id, s, &box, &e) < 0) {
        box = NULL;
        if (!is_unfinished && !s->info.asleep)
            session_mark_lost(s, "it did not survive: the keeper or the machine was restarted");
    }

    if (s->info.asleep) {
        session_finish_sleep(s, box);
        return;
    }

    rw_write(&s->box_use);
    s->box = box;
    rw_release(&s->box_use);
    if (is_unfinished)
        end_unfinished(s);
    if (is_unfinished || !box)
        return;

    adopt_box(s, box);
    if (session_open_network(s, box, &e) < 0)
        log_error("adopt.network", "id=%s error=%s", s->info.id, e.msg);
    for (struct process *p = s->processes, *next; p; p = next) {
        next = p->next;
        adopt_process(p);
    }

    ask_for_commands(s, box);
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

/* Is the file the spool of a session or process that is remembered? */
static bool is_known_spool(struct sessions *all, const char *name)
{
    char id[SESSION_ID_LEN + 1];
    struct wire_id process;
    if (strlen(name) != SESSION_ID_LEN + 1 + 32 + 2 ||
        read_hex(name + SESSION_ID_LEN + 1, &process) < 0)
        return false;

    snprintf(id, sizeof id, "%.*s", SESSION_ID_LEN, name);
    const struct session *s = *sessions_place(all, id);
    if (!s || s->stranded)
        return s != NULL;

    for (const struct process *p = s->processes; p; p = p->next)
        if (wire_id_equal(p->id, process))
            return true;
    return false;
}

/* Deletes the spools of sessions and processes that nobody remembers. */
static void sweep_spools(struct sessions *all)
{
    int fd = openat(all->spool_dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    if (!entries) {
        fd_done(&fd);
        return;
    }

    const struct dirent *d;
    while ((d = readdir(entries)))
        if (d->d_name[0] != '.' && !is_known_spool(all, d->d_name))
            (void)unlinkat(all->spool_dir, d->d_name, 0);

    closedir(entries);
}

/* Sessions that are nobody's leave the table. One whose root could not be deleted stays until it
 * is. */
static void drop_unowned(struct sessions *all)
{
    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (struct session **at = &all->by_id[i]; *at;) {
            struct session *s = *at;
            if (s->owned || s->root_name[0]) {
                at = &s->next;
                continue;
            }
            *at = s->next;
            session_unref(s);
        }
}

int sessions_adopt(struct sessions *all, struct pd_err *e)
{
    uint64_t began = clock_now();
    unsigned count = 0, alive = 0;
    if (sessions_load_rows(all, e) < 0 || snapshots_load(all, e) < 0)
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
        for (struct session *s = all->by_id[i]; s; s = s->next)
            if (s->processes)
                contexts_adopt(s);

    drop_unowned(all);
    boxes_end_strangers(all->c.providers);
    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (struct session *s = all->by_id[i]; s; s = s->next)
            session_finish_move(s); /* whose old box was one of those */

    for (unsigned i = 0; i < all->c.providers->count; i++)
        snapshots_sweep(all, all->c.providers->list[i]);
    sweep_spools(all);
    if (count)
        log_info("adopt.done", "sessions=%u alive=%u ms=%llu", count, alive,
                 (unsigned long long)((clock_now() - began) / NS_PER_MS));
    return 0;
}
