/* How a session goes from one provider to another while it lives.
 *
 * The new box belongs at first to a session of its own that nobody knows, made as the pool makes
 * one: its row says that it is being made, so a daemon that dies finds it half made and takes it
 * away, with its root. The files go as an archive from a worker of the one to a worker of the
 * other. Then the moved session's row gets the new provider, box and root: that row is the commit.
 * Until then the old box has all files and nothing has changed there; from then on the new one has.
 * What is left of the old one is taken away: its box is one that no session has, which a provider's
 * next daemon ends, and the row names its root until that is deleted.
 *
 * Commands, files and everything else that enters a session waits while it moves. */
#include "core/session_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "core/worker_run.h"
#include "router/decide.h"
#include "telemetry/log.h"

#define MOVE_PATIENCE  (300 * NS_PER_S) /* of who waits until it has moved */
#define QUIET_PATIENCE (5 * NS_PER_S)   /* until what was just running, or is ended, has ended */
#define PIECE          (256u << 10)

int session_await_move(struct session *s, struct pd_err *e)
{
    deadline d = deadline_in(MOVE_PATIENCE);

    while (s->moving)
        if (!lock_wait(&s->changed, &s->lock, d))
            return pd_fail(e, PD_TIMEOUT, "sandbox %s is being moved for too long", s->info.id);
    return 0;
}

static void open_gate(struct session *s)
{
    lock_take(&s->lock);
    s->moving = false;
    pthread_cond_broadcast(&s->changed);
    lock_release(&s->lock);
}

/* ---- nothing may run ---- */

/* The oldest command that has not ended, counted; or NULL. One that has may still count as running
 * until its end is recorded. With the lock held. */
static struct process *find_running(struct session *s)
{
    for (struct process *p = s->processes; p; p = p->next)
        if (!p->worker && process_state(p) < PROCESS_EXITED)
            return process_ref(p);
    return NULL;
}

static void end_commands(struct session *s, deadline d)
{
    while (!deadline_passed(d)) {
        struct pd_err e;
        lock_take(&s->lock);
        struct process *p = find_running(s);
        lock_release(&s->lock);
        if (!p)
            return;

        int bad = process_stop(p, STOP_KILLED, &e);
        process_unref(p);
        if (bad < 0)
            return;
    }
}

/* Processes that a command left behind when it ended. */
static bool has_leftovers(struct session *s)
{
    bool found = false;

    rw_read(&s->box_use);
    for (unsigned g = 1; s->box && g < GROUPS && !found; g++) {
        lock_take(&s->lock);
        bool lingers = s->lingering[g / 64] >> g % 64 & 1;
        lock_release(&s->lock);
        found = lingers && box_group_is_empty(s->box, g) == 0;
    }
    rw_release(&s->box_use);
    return found;
}

/* Until nothing runs. What comes now waits. */
static int await_quiet(struct session *s, unsigned flags, struct pd_err *e)
{
    deadline d = deadline_in(QUIET_PATIENCE);
    prepared_give_up(s);
    if (flags & MOVE_GIVE_UP)
        end_commands(s, d);

    int r = 0;
    lock_take(&s->lock);
    struct process *p = flags & MOVE_GIVE_UP ? NULL : find_running(s);
    while (!p && s->running && lock_wait(&s->changed, &s->lock, d))
        ;
    if (p || s->running)
        r = pd_fail(e, PD_CONFLICT,
                    "sandbox %s runs %u commands, which cannot be moved: end them first, or say "
                    "that they are given up (give_up)",
                    s->info.id, s->running);
    lock_release(&s->lock);

    process_unref(p);
    if (r == 0 && !(flags & MOVE_GIVE_UP) && has_leftovers(s))
        r = pd_fail(e, PD_CONFLICT,
                    "processes that earlier commands of sandbox %s left behind still run, and "
                    "cannot be moved: end them first, or say that they are given up (give_up)",
                    s->info.id);
    return r;
}

/* ---- the files ---- */

/* Everything below the path, if it is there. */
static int copy_tree(struct session *from, const char *source, struct session *to,
                     const char *target, struct pd_err *e)
{
    const char *const pack[] = {"tar", source, NULL}, *const unpack[] = {"untar", target, NULL};
    auto_worker in = WORKER_INIT, out = WORKER_INIT;
    auto_buf piece = BUF_INIT(PIECE);
    struct record r;

    if (worker_run_begin(&in, from, -1, NULL, WORKER_MOVES, pack, e) < 0 ||
        worker_expect(&in, RECORD_ENTRY, &r, e) < 0)
        return e->code == PD_NOT_FOUND ? 0 : -1;
    if (worker_run_begin(&out, to, -1, NULL, WORKER_INPUT, unpack, e) < 0)
        return -1;

    uint8_t *at = buf_reserve(&piece, PIECE);
    if (!at)
        return pd_fail(e, PD_CAPACITY, "no memory to move files");
    worker_widen(in.call.out);
    worker_widen(out.call.in);

    ssize_t n;
    while ((n = worker_read(&in, at, PIECE, e)) > 0)
        if (worker_write(&out, at, (size_t)n, e) < 0)
            return -1;
    if (n < 0 || worker_exit(&in, e) < 0)
        return -1;
    in.ended = 1;

    fd_done(&out.call.in);
    if (worker_expect(&out, RECORD_TAR_DONE, &r, e) < 0)
        return -1;
    out.ended = 1;
    return 0;
}

/* Where a box is no root of its own, /tmp is not the sandbox's: it stays. */
static int copy_files(struct session *from, struct session *to, struct pd_err *e)
{
    static const char *const trees[] = {"/workspace", "/home/user", "/tmp"};
    struct box_place here, there;
    const struct box_place *at = session_place(from, &here) ? &here : NULL;
    const struct box_place *goal = session_place(to, &there) ? &there : NULL;
    unsigned count = at || goal ? 2 : 3;

    for (unsigned i = 0; i < count; i++) {
        char source[BOX_PATH_SIZE + 16], target[BOX_PATH_SIZE + 16];
        if (place_path(at, trees[i], source, sizeof source) < 0 ||
            place_path(goal, trees[i], target, sizeof target) < 0)
            return pd_fail(e, PD_INTERNAL, "a path is too long to be moved");
        if (copy_tree(from, source, to, target, e) < 0)
            return pd_wrap(e, "move %s", trees[i]);
    }
    return 0;
}

/* A directory of the old box, if it was in the workspace or the home there, in a jail's terms. */
static void translate_cwd(struct session *s, const struct box_place *old)
{
    const struct {
        const char *from, *to;
    } places[] = {{old->workspace, "/workspace"}, {old->home, "/home/user"}};

    lock_take(&s->lock);
    for (unsigned i = 0; i < 2; i++) {
        size_t len = strlen(places[i].from);
        if (!len || strncmp(s->cwd, places[i].from, len) != 0 ||
            (s->cwd[len] && s->cwd[len] != '/'))
            continue;
        char rest[SPEC_PATH_MAX];
        snprintf(rest, sizeof rest, "%s", s->cwd + len);
        snprintf(s->cwd, sizeof s->cwd, "%s%.*s", places[i].to,
                 (int)(sizeof s->cwd - strlen(places[i].to) - 1), rest);
        break;
    }
    s->shell_version++;
    lock_release(&s->lock);
}

/* ---- the new box ---- */

static int step_of(struct session *t, enum life to, struct pd_err *e)
{
    lock_take(&t->lock);
    int r = life_is_ending(t->life)
                ? pd_fail(e, PD_LOST, "the new sandbox was lost: %.150s", t->info.end_reason)
                : session_step(t, to);
    lock_release(&t->lock);
    return r;
}

/* A session of nobody with the files of this one; to be abandoned and given back. NULL: `*ret` may
 * still be there, half made. */
static int make_target(struct session *s, struct provider *to, struct session **ret,
                       struct pd_err *e)
{
    struct session *t = sessions_prepare(s->all, to, &s->info.spec);
    if (!(*ret = t))
        return pd_fail(e, PD_CAPACITY, "no memory for a session");

    sessions_register(t, LIFE_FILLING);
    if (session_store(t, e) < 0 || sessions_make_box(t, e) < 0 || step_of(t, LIFE_WARMING, e) < 0)
        return -1;
    return copy_files(s, t, e);
}

/* What a session has of a box. */
struct tenure {
    struct box *box;
    struct wire_id id;
    struct provider *provider;
    char root[SPEC_NAME_MAX + 1];
    enum rung rung;
    char reason[ROUTE_REASON_SIZE];
};

static struct tenure tenure_of(struct session *s)
{
    struct tenure t = {
        .box = s->box, .id = s->box_id, .provider = s->provider, .rung = s->info.rung};
    memcpy(t.root, s->root_name, sizeof t.root);
    snprintf(t.reason, sizeof t.reason, "%s", s->info.reason);
    return t;
}

/* `left`: PROVIDER:ROOT that is to be deleted later, or NULL; becomes the session's. */
static void take_tenure(struct session *s, const struct tenure *t, char *left)
{
    rw_write(&s->box_use);
    lock_take(&s->lock);
    s->box = t->box;
    s->box_id = t->id;
    s->provider = t->provider;
    memcpy(s->root_name, t->root, sizeof s->root_name);
    snprintf(s->info.provider, sizeof s->info.provider, "%s", t->provider->name);
    snprintf(s->info.reason, sizeof s->info.reason, "%s", t->reason);
    s->info.rung = t->rung;
    free(s->other_root);
    s->other_root = left;
    lock_release(&s->lock);
    rw_release(&s->box_use);
}

/* The row is the commit. The box becomes this session's, and its events come here. */
static int commit(struct session *s, struct session *t, const struct tenure *old,
                  const char *reason, struct pd_err *e)
{
    struct tenure now = tenure_of(t);
    snprintf(now.reason, sizeof now.reason, "%s", reason);

    char *left = NULL;
    if (old->root[0] && asprintf(&left, "%s:%s", old->provider->name, old->root) < 0)
        return pd_fail(e, PD_CAPACITY, "no memory to move a session");
    atomic_store(&t->heir, s);
    take_tenure(s, &now, left);
    if (session_store(s, e) < 0) {
        take_tenure(s, old, NULL);
        atomic_store(&t->heir, NULL);
        return -1;
    }

    rw_write(&t->box_use);
    t->box = NULL;
    rw_release(&t->box_use);

    lock_take(&t->lock);
    bool lost = t->lost;
    t->box_id = wire_id_new();
    t->root_name[0] = 0;
    lock_release(&t->lock);

    lock_take(&s->lock);
    groups_forget(s);
    s->oom_seen = s->pids_seen = 0;
    samples_rebase(s, 0);
    s->lost = 0; /* what was lost is not needed any more */
    lock_release(&s->lock);
    if (lost)
        session_mark_lost(s, "it was lost when it had just been moved");
    return 0;
}

static void forget_root(struct session *s)
{
    lock_take(&s->lock);
    free(s->other_root);
    s->other_root = NULL;
    lock_release(&s->lock);
}

void session_finish_move(struct session *s)
{
    char name[PROVIDER_NAME_MAX + 1];
    struct pd_err e;
    const char *root = s->other_root ? strchr(s->other_root, ':') : NULL;
    if (!root)
        return;

    snprintf(name, sizeof name, "%.*s", (int)(root - s->other_root), s->other_root);
    struct provider *at = provider_table_find(s->all->c.providers, name);
    if (root_remove(at, root + 1, &e) < 0 && e.code != PD_NOT_FOUND) {
        log_warn("session.move", "id=%s root=%s error=%s", s->info.id, root + 1, e.msg);
        return;
    }
    forget_root(s);
    if (session_store(s, &e) < 0)
        log_warn("session.store", "id=%s error=%s", s->info.id, e.msg);
}

/* Takes away what is left of the old box. */
static void leave_old(struct session *s, const struct tenure *old, struct session *maker)
{
    struct pd_err e;
    if (box_destroy(old->box, &e) < 0)
        log_error("session.undead", "id=%s error=%s", s->info.id, e.msg);
    session_unref(maker);
    session_finish_move(s);
}

/* ---- the move ---- */

static int move(struct session *s, struct provider *to, const char *reason, struct pd_err *e)
{
    struct tenure old = tenure_of(s);
    struct session *t = NULL, *maker = s->maker;
    struct box_place place;
    bool placed = session_place(s, &place);
    int r = make_target(s, to, &t, e);
    if (r == 0 && placed)
        translate_cwd(s, &place);
    if (r == 0)
        r = commit(s, t, &old, reason, e);

    if (r == 0) {
        s->maker = session_ref(t); /* as long as its box lives, which tells it of events */
        leave_old(s, &old, maker);
    }
    if (t) {
        session_abandon(t, "moved");
        session_unref(t);
    }
    return r;
}

static int check_move(struct session *s, struct provider *to, struct pd_err *e)
{
    int r = session_usable(s, e);
    if (r == 0)
        r = provider_must(s->provider, PROVIDER_FILES, e);
    return r == 0 ? provider_must(to, PROVIDER_FILES, e) : -1;
}

int session_move(struct session *s, struct provider *to, unsigned flags, const char *reason,
                 struct pd_err *e)
{
    uint64_t began = clock_now();
    if (session_begin_change(s, e) < 0)
        return -1;

    lock_take(&s->lock);
    struct provider *from = s->provider;
    int r = check_move(s, to, e);
    bool there = from == to;
    if (r == 0 && !there)
        s->moving = true;
    lock_release(&s->lock);

    if (r == 0 && !there) {
        r = await_quiet(s, flags, e);
        if (r == 0)
            r = move(s, to, reason, e);
        open_gate(s);
    }

    session_end_change(s);
    if (r == 0 && !there)
        log_info("session.move", "id=%s from=%s to=%s reason=%s us=%llu", s->info.id, from->name,
                 to->name, reason, (unsigned long long)((clock_now() - began) / 1000));
    return r;
}
