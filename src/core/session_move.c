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

#include <signal.h>

#define MOVE_PATIENCE  (300 * NS_PER_S)  /* of who waits until it has moved */
#define QUIET_PATIENCE (5 * NS_PER_S)    /* until what was just running, or is ended, has ended */
#define LEFT_PATIENCE  (200 * NS_PER_MS) /* until what was just killed is gone */
#define LEFT_PAUSE     (5 * NS_PER_MS)
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

/* The oldest command (or, with `workers`, anything) that has not ended, counted; or NULL. One that
 * has may still count as running until its end is recorded. With the lock held. */
static struct process *find_running(struct session *s, bool workers)
{
    for (struct process *p = s->processes; p; p = p->next)
        if ((workers || !p->worker) && process_state(p) < PROCESS_EXITED)
            return process_ref(p);
    return NULL;
}

/* One that was just about to start is killed again when it has. */
static void end_commands(struct session *s, deadline d)
{
    while (!deadline_passed(d)) {
        struct pd_err e;
        lock_take(&s->lock);
        struct process *p = find_running(s, true);
        lock_release(&s->lock);
        if (!p)
            return;

        int bad = process_signal(p, SIGKILL, &e); /* waits for its end */
        process_unref(p);
        if (bad < 0 && e.code != PD_TIMEOUT)
            return;
    }
}

/* A group whose command has ended and whose processes have not, or 0. Nothing runs, so every group
 * that is taken is of a command that has ended. With the box held. */
static unsigned find_leftovers(struct session *s)
{
    uint64_t taken[GROUPS / 64];
    lock_take(&s->lock);
    memcpy(taken, s->groups, sizeof taken);
    lock_release(&s->lock);

    for (unsigned g = 1; s->box && g < GROUPS; g++)
        if (taken[g / 64] >> g % 64 & 1 && box_group_is_empty(s->box, g) == 0)
            return g;
    return 0;
}

/* Waits until commands have left nothing behind; `give_up`: kills what they have. */
static int await_leftovers(struct session *s, bool give_up, struct pd_err *e)
{
    deadline d = deadline_in(give_up ? QUIET_PATIENCE : LEFT_PATIENCE);

    for (;;) {
        struct pd_err ignored;
        rw_read(&s->box_use);
        unsigned group = find_leftovers(s);
        if (group && give_up)
            (void)box_kill(s->box, (struct wire_id){{0}}, group, &ignored);
        rw_release(&s->box_use);

        if (!group)
            return 0;
        if (deadline_passed(d))
            return pd_fail(e, PD_CONFLICT,
                           "processes that earlier commands of sandbox %s left behind still run, "
                           "and cannot be moved: end them first, or say that they are given up "
                           "(give_up)",
                           s->info.id);

        lock_take(&s->lock);
        (void)lock_wait(&s->changed, &s->lock, deadline_in(LEFT_PAUSE));
        lock_release(&s->lock);
    }
}

/* Until nothing runs. What comes now waits. */
static int await_quiet(struct session *s, bool give_up, struct pd_err *e)
{
    deadline d = deadline_in(QUIET_PATIENCE);
    prepared_give_up(s);
    zygote_end(s);
    if (give_up)
        end_commands(s, d);

    int r = 0;
    lock_take(&s->lock);
    struct process *p = give_up ? NULL : find_running(s, false);
    while (!p && s->running && lock_wait(&s->changed, &s->lock, d))
        ;
    if (p || s->running)
        r = pd_fail(e, PD_CONFLICT,
                    "sandbox %s runs %u commands, which cannot be moved: end them first, or say "
                    "that they are given up (give_up)",
                    s->info.id, s->running);
    lock_release(&s->lock);

    process_unref(p);
    return r == 0 ? await_leftovers(s, give_up, e) : -1;
}

/* ---- the files ---- */

/* Everything below the path, which is in a jail's terms: workers translate it for their box. */
static int copy_tree(struct session *from, struct session *to, const char *path, struct pd_err *e)
{
    const char *const pack[] = {"tar", path, NULL}, *const unpack[] = {"untar", path, NULL};
    auto_worker in = WORKER_INIT, out = WORKER_INIT;
    auto_buf piece = BUF_INIT(PIECE);
    struct record r;

    if (worker_run_begin(&in, from, -1, NULL, WORKER_MOVES, pack, e) < 0 ||
        worker_expect(&in, RECORD_ENTRY, &r, e) < 0)
        return -1;
    if (worker_run_begin(&out, to, -1, NULL, WORKER_INPUT, unpack, e) < 0)
        return -1;

    uint8_t *at = buf_reserve(&piece, PIECE);
    if (!at)
        return pd_fail(e, PD_CAPACITY, "no memory to move files");
    worker_widen(in.call.out);
    worker_widen(out.call.in);

    ssize_t n;
    while ((n = worker_read(&in, at, PIECE, e)) > 0)
        if (atomic_load(&to->unwanted) || worker_write(&out, at, (size_t)n, e) < 0)
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

/* Where a box is no root of its own, /tmp is not the sandbox's: it stays. Where home and workspace
 * are one directory, the workspace's files come last, and stay. */
static int copy_files(struct session *from, struct session *to, struct pd_err *e)
{
    struct box_place place;
    bool placed = session_place(from, &place) || session_place(to, &place);

    if (copy_tree(from, to, "/home/user", e) < 0)
        return pd_wrap(e, "move /home/user");
    if (copy_tree(from, to, "/workspace", e) < 0)
        return pd_wrap(e, "move /workspace");
    if (!placed && copy_tree(from, to, "/tmp", e) < 0 && e->code != PD_NOT_FOUND)
        return pd_wrap(e, "move /tmp");
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

/* From here on an end of the session that is moved gives the target up, until this is called again
 * with NULL. */
static void set_target(struct session *s, struct session *t)
{
    lock_take(&s->lock);
    s->target = t;
    pthread_cond_broadcast(&s->changed); /* who waits for its end looks again */
    lock_release(&s->lock);
}

/* The error of a move that was given up because an end was asked for. */
static int check_wanted(const struct session *s, struct session *t, struct pd_err *e)
{
    if (!atomic_load(&t->unwanted))
        return 0;

    lock_take(&t->lock);
    pd_fail(e, PD_CONFLICT, "the move of sandbox %s was given up: %.120s", s->info.id,
            t->info.end_reason);
    lock_release(&t->lock);
    return -1;
}

/* A session of nobody with the files of this one; to be abandoned and given back. -1: `*ret` may
 * still be there, half made. */
static int make_target(struct session *s, const struct session_goal *goal, struct session **ret,
                       struct pd_err *e)
{
    struct session *t = sessions_prepare(s->all, goal->to, &s->info.spec);
    if (!(*ret = t))
        return pd_fail(e, PD_CAPACITY, "no memory for a session");

    sessions_register(t, LIFE_FILLING);
    set_target(s, t);
    if (session_store(t, e) < 0 || sessions_make_box(t, e) < 0 || step_of(t, LIFE_WARMING, e) < 0)
        return -1;
    if (t->info.rung < goal->need)
        return pd_fail(e, PD_ISOLATION,
                       "provider %s has made a sandbox with isolation '%s', and '%s' is needed",
                       goal->to->name, rung_name(t->info.rung), rung_name(goal->need));
    return copy_files(s, t, e);
}

/* The parts of a session that belong to its box. */
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

/* `left`: the roots that are to be deleted later; becomes the session's, and the caller has what
 * was there. */
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
    s->other_root = left;
    session_changed(s);
    lock_release(&s->lock);
    rw_release(&s->box_use);
}

/* The row is the commit. The box becomes this session's. */
static int commit(struct session *s, struct session *t, const struct tenure *old,
                  const char *reason, struct pd_err *e)
{
    struct tenure now = tenure_of(t);
    snprintf(now.reason, sizeof now.reason, "%s", reason);

    char *before = s->other_root, *left = NULL;
    if (asprintf(&left, "%s%s%s:%s", before ? before : "", before ? "," : "", old->provider->name,
                 old->root) < 0)
        return pd_fail(e, PD_CAPACITY, "no memory to move a session");
    if (!old->root[0]) {
        free(left);
        left = before;
    }

    take_tenure(s, &now, left);
    int r = session_store(s, e);
    if (r < 0)
        take_tenure(s, old, before);
    if (left != before)
        free(r < 0 ? left : before);
    if (r < 0)
        return -1;

    rw_write(&t->box_use);
    t->box = NULL;
    rw_release(&t->box_use);

    lock_take(&t->lock);
    t->box_id = wire_id_new();
    t->root_name[0] = 0;
    lock_release(&t->lock);

    lock_take(&s->lock);
    groups_forget(s);
    s->oom_seen = s->pids_seen = 0;
    samples_rebase(s, 0);
    lock_release(&s->lock);
    return 0;
}

/* Deletes one root, PROVIDER:ROOT of this length. */
static int remove_left(struct session *s, const char *text, size_t len)
{
    char name[PROVIDER_NAME_MAX + 1], root[SPEC_NAME_MAX + 1];
    const char *colon = memchr(text, ':', len);
    struct pd_err e;
    if (!colon)
        return 0;

    snprintf(name, sizeof name, "%.*s", (int)(colon - text), text);
    snprintf(root, sizeof root, "%.*s", (int)(text + len - colon - 1), colon + 1);
    struct provider *at = provider_table_find(s->all->c.providers, name);
    if (root_remove(at, root, &e) == 0 || e.code == PD_NOT_FOUND)
        return 0;

    log_warn("session.move", "id=%s root=%s error=%s", s->info.id, root, e.msg);
    return -1;
}

void session_finish_move(struct session *s)
{
    const char *at = s->other_root;
    struct pd_err e;
    size_t size = at ? strlen(at) + 1 : 0, end = 0;
    char *stay = at ? calloc(1, size) : NULL; /* those that cannot be deleted now */
    if (!stay)
        return;

    for (size_t len; *at; at += len) {
        len = strcspn(at, ",");
        if (remove_left(s, at, len) < 0)
            end += (size_t)snprintf(stay + end, size - end, "%s%.*s", end ? "," : "", (int)len, at);
        len += at[len] == ',';
    }
    if (!strcmp(stay, s->other_root))
        return free(stay);

    lock_take(&s->lock);
    free(s->other_root);
    s->other_root = stay[0] ? stay : NULL;
    lock_release(&s->lock);
    if (!stay[0])
        free(stay);
    if (session_store(s, &e) < 0)
        log_warn("session.store", "id=%s error=%s", s->info.id, e.msg);
}

/* Cuts one out of the list, unless somebody changes the session, who has the list then. */
static void forget_left(struct session *s, const char *text, size_t len)
{
    lock_take(&s->lock);
    char *at = s->changing || life_is_ending(s->life) ? NULL : s->other_root;
    while (at && !(strncmp(at, text, len) == 0 && (at[len] == ',' || !at[len])))
        if ((at = strchr(at, ',')))
            at++;

    if (at && at[len])
        memmove(at, at + len + 1, strlen(at + len + 1) + 1);
    else if (at && at > s->other_root)
        at[-1] = 0;
    else if (at)
        free(s->other_root), s->other_root = NULL;
    if (at)
        s->dirty = DIRTY;
    lock_release(&s->lock);
}

/* Nothing of the session is held while the provider is asked: a root that was left is in nobody's
 * way, and none of its name is made again. */
void session_finish_move_at(struct session *s, const struct provider *at)
{
    lock_take(&s->lock);
    bool mine = s->other_root && !s->changing && !life_is_ending(s->life);
    char *left = mine ? strdup(s->other_root) : NULL;
    lock_release(&s->lock);

    size_t name = at ? strlen(at->name) : 0;
    for (char *save = NULL, *one = left && at ? strtok_r(left, ",", &save) : NULL; one;
         one = strtok_r(NULL, ",", &save))
        if (!strncmp(one, at->name, name) && one[name] == ':' &&
            remove_left(s, one, strlen(one)) == 0)
            forget_left(s, one, strlen(one));
    free(left);
}

void session_finish_moves(struct session *s)
{
    const struct provider_table *t = s->all->c.providers;
    for (unsigned i = 0; i < t->count; i++)
        session_finish_move_at(s, t->list[i]);
}

/* Takes away what is left of the old box. Its loss, which it may have told until now, is not the
 * session's any more; that of the new one is, which was told to its maker until now. */
static void leave_old(struct session *s, const struct tenure *old, struct session *maker)
{
    struct pd_err e;
    if (box_destroy(old->box, &e) < 0)
        log_error("session.undead", "id=%s error=%s", s->info.id, e.msg);
    session_unref(maker);

    lock_take(&s->lock);
    s->lost = false;
    lock_release(&s->lock);
    atomic_store(&s->maker->heir, s);

    lock_take(&s->maker->lock);
    bool lost = s->maker->lost;
    lock_release(&s->maker->lock);
    if (lost)
        session_mark_lost(s, "it was lost when it had just been moved");
    session_finish_move(s);
}

/* ---- the move ---- */

static int move(struct session *s, const struct session_goal *goal, struct pd_err *e)
{
    struct tenure old = tenure_of(s);
    struct session *t = NULL, *maker = s->maker;
    struct box_place place;
    bool placed = session_place(s, &place);
    int r = make_target(s, goal, &t, e);
    set_target(s, NULL);
    if (t && check_wanted(s, t, e) < 0)
        r = -1;
    if (r == 0 && placed)
        translate_cwd(s, &place);
    if (r == 0)
        r = commit(s, t, &old, goal->reason, e);

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

/* With the lock held. */
static int check_move(struct session *s, const struct session_goal *goal, struct pd_err *e)
{
    struct provider *to = goal->to;
    const struct spec *spec = &s->info.spec;

    if (session_usable(s, e) < 0 || provider_must(s->provider, PROVIDER_FILES, e) < 0 ||
        provider_must(to, PROVIDER_FILES, e) < 0)
        return -1;
    if ((spec->image[0] || spec->options[0]) && provider_must(to, PROVIDER_IMAGE, e) < 0)
        return -1;
    /* Its rules are held by what its box is made of: elsewhere it would have more, or nothing. One
     * provider has them so far; where a second does, the gate has to be told of the new box. */
    if (spec->network == NETWORK_GATE)
        return pd_fail(
            e, PD_UNSUPPORTED,
            provider_has(to, PROVIDER_EGRESS)
                ? "sandbox %s has a way out by rules, which is not moved to provider %s: "
                  "make another one there"
                : "sandbox %s has a way out by rules, and provider %s can hold none: "
                  "make another one there, without rules",
            s->info.id, to->name);
    if (s->info.mode == MODE_SANDBOX && to->best(to) < RUNG_BASIC)
        return pd_fail(e, PD_ISOLATION,
                       "provider %s has no isolation, and sandbox %s was made with mode 'sandbox': "
                       "make another one for that",
                       to->name, s->info.id);
    if (goal->flags & MOVE_RAISE && to == s->provider)
        return pd_fail(e, PD_ISOLATION,
                       "sandbox %s has isolation '%s' at provider %s, and '%s' is needed: make one "
                       "that has it",
                       s->info.id, rung_name(s->info.rung), to->name, rung_name(goal->need));
    return 0;
}

int session_move(struct session *s, const struct session_goal *asked, struct pd_err *e)
{
    struct session_goal goal = *asked;
    uint64_t began = clock_now();
    if (s->info.mode == MODE_SANDBOX && goal.need < RUNG_BASIC)
        goal.need = RUNG_BASIC;
    if (session_begin_change(s, e) < 0)
        return -1;

    lock_take(&s->lock);
    struct provider *from = s->provider;
    bool there = goal.flags & MOVE_RAISE ? s->info.rung >= goal.need : from == goal.to;
    int r = there ? session_usable(s, e) : check_move(s, &goal, e);
    bool moves = r == 0 && !there;
    s->moving = moves;
    lock_release(&s->lock);

    if (moves) {
        r = await_quiet(s, goal.flags & MOVE_GIVE_UP, e);
        if (r == 0)
            r = move(s, &goal, e);
        open_gate(s);
    }

    session_end_change(s);
    if (r == 0 && moves)
        log_info("session.move", "id=%s from=%s to=%s reason=%s us=%llu", s->info.id, from->name,
                 goal.to->name, goal.reason, (unsigned long long)((clock_now() - began) / 1000));
    return r;
}
