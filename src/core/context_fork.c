/* Forks of contexts: the one primitive is a process that is a copy of another one, with streams, a
 * group and a row of its own.
 *
 * The driver that is to fork gets the far ends of the new process's streams with the request.
 * Init's worker `join` stands for the child (init/worker_join.c), so to everybody else it is a
 * command like any other. Only an idle context forks: the fork has the turn in its line meanwhile.
 *
 * To a box on another machine no descriptors can be sent. There the worker gets those of the new
 * process, as any command gets its own, and the driver fetches them from it (`fetches`).
 *
 * The copy is ready before it is in its own group: for the move the kernel waits until every
 * processor has been seen at rest, and nobody else need wait for that. Until then it is in its
 * parent's group. So a copy takes no request before the move, nor does its parent; and whoever ends
 * the parent waits for its word that the copy has left (`forked`).
 *
 * A spare is a fork that was made before an execution and has no name yet; undo gives it the name.
 * It lives no longer than this daemon: the next one does not know which execution it was made
 * before. */
#include "core/context_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <poll.h>

#define FORK_PATIENCE (30 * NS_PER_S)
#define MOVE_PATIENCE (2 * NS_PER_S)

/* Has the child said that it is there? */
static int find_ready(const struct context_event *v, uint64_t at, void *arg)
{
    (void)at;
    bool *ready = arg;
    *ready |= v->type == EVENT_READY;
    return *ready;
}

/* Looks at both sides: 1 when the child is ready, 0 when not yet, -1 when it will not be. */
static int look(struct context_reader *parent, struct process *child, struct pd_err *e)
{
    unsigned stream;
    size_t len;
    bool ready = false;
    struct pd_err ignored;

    bool over = !process_state_is_live(process_state(parent->process));
    enum reader_item item = reader_next(parent, over, &stream, &len, &ignored);
    if (item == ITEM_EVENT && parent->event.type == EVENT_REFUSED) {
        auto_buf why = BUF_INIT(EVENT_MAX);
        (void)json_piece_decode(&parent->event.why, &why);
        return pd_fail(e, PD_CONFLICT, "the context cannot be forked: %.150s",
                       buf_cstr(&why) ? buf_cstr(&why) : "refused");
    }
    if (item == ITEM_OVER || item == ITEM_BROKEN)
        return pd_fail(e, PD_CONFLICT, "the context ended while it was forked");

    journal_each(child, find_ready, &ready);
    if (ready)
        return 1;
    if (!process_state_is_live(process_state(child)))
        return pd_fail(e, PD_CONFLICT, "the fork ended before it was ready");
    return 0;
}

static int await_ready(struct context_reader *parent, struct process *child, struct pd_err *e)
{
    struct watch a, b;
    deadline d = deadline_in(FORK_PATIENCE);
    if (process_watch(parent->process, &a, e) < 0)
        return -1;
    if (process_watch(child, &b, e) < 0) {
        process_unwatch(parent->process, &a);
        return -1;
    }

    int r = 0;
    while (r == 0) {
        watch_clear(&a);
        watch_clear(&b);
        r = look(parent, child, e);
        struct pollfd fds[2] = {{.fd = a.event, .events = POLLIN},
                                {.fd = b.event, .events = POLLIN}};
        if (r == 0 && poll(fds, 2, deadline_poll_ms(d)) == 0 && deadline_passed(d))
            r = pd_fail(e, PD_TIMEOUT, "the context does not fork");
    }
    process_unwatch(parent->process, &a);
    process_unwatch(child, &b);
    return r < 0 ? -1 : 0;
}

/* The journal of a driver from here on, as the request for a copy left it. NULL: no memory. */
static struct context_reader *read_after(struct process *p, const char *id,
                                         const uint64_t at[STREAM_ALL])
{
    struct context_reader *r = malloc(sizeof *r);
    if (!r)
        return NULL;
    reader_init(r, p, id, at, true);
    r->skim = true;
    return r;
}

static void reader_free(struct context_reader *r)
{
    if (r)
        reader_done(r);
    free(r);
}

void context_await_copies(struct process *p)
{
    char id[FORK_ID + 1];
    uint64_t at[STREAM_ALL];
    lock_take(&p->session->lock);
    memcpy(id, p->fork_id, sizeof id);
    memcpy(at, p->fork_at, sizeof at);
    lock_release(&p->session->lock);

    struct watch w;
    struct pd_err ignored;
    struct context_reader *reader = id[0] ? read_after(p, id, at) : NULL;
    if (!reader)
        return;
    if (process_watch(p, &w, &ignored) == 0) {
        deadline d = deadline_in(MOVE_PATIENCE);
        enum reader_item item;
        unsigned stream;
        size_t len;
        do {
            watch_clear(&w);
            bool over = !process_state_is_live(process_state(p));
            item = reader_next(reader, over, &stream, &len, &ignored);
        } while (item == ITEM_NONE && watch_wait(&w, d));
        process_unwatch(p, &w);
    }
    reader_free(reader);
}

int context_copy_process(struct context *c, struct process *parent, const char *note,
                         const struct fork_request *how, struct process **ret, struct pd_err *e)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    auto_buf line = BUF_INIT(16 * CODE_MAX);
    struct fork_request request = *how;
    char id[FORK_ID + 1] = "fork-";
    bool known = false;
    int bad = 0;

    _Static_assert(sizeof "fork-" + ID_SANDBOX_LEN <= sizeof id, "the id of a request");
    id_sandbox(id + strlen(id));
    for (const char *const *word = c->language->argv; *word; word++)
        bad |= msg_list_add(&argv, *word);
    request.fetches = session_is_far(c->session);
    bad |= request_fork(id, &request, &line);

    struct process_info before;
    process_get(parent, &before, NULL);
    struct process_request r = {.argv = msg_list_of(&argv),
                                .env = {.text = ""},
                                .driver = true,
                                .background = true,
                                .note = note,
                                .fork_of = parent,
                                .fork_line = line.data,
                                .fork_line_len = line.len,
                                .fork_name = request.fetches ? id : NULL};
    struct process *child = NULL;
    int result = bad ? pd_fail(e, PD_CAPACITY, "no memory for a fork")
                     : session_start(c->session, &r, &child, &known, e);
    msg_list_writer_done(&argv);
    if (result < 0)
        return -1;

    lock_take(&parent->session->lock);
    memcpy(parent->fork_id, id, sizeof id);
    memcpy(parent->fork_at, before.size, sizeof parent->fork_at);
    lock_release(&parent->session->lock);

    struct context_reader *reader = read_after(parent, id, before.size);
    result =
        reader ? await_ready(reader, child, e) : pd_fail(e, PD_CAPACITY, "no memory for a fork");
    reader_free(reader);
    if (result < 0) {
        context_disown(child);
        process_unref(child);
        return -1;
    }
    *ret = child;
    return 0;
}

/* ---- turns ---- */

/* Takes the turn of an idle context: an entry of its line that is no execution. */
static struct execution *take_turn(struct context *c, const char *what, struct pd_err *e)
{
    if (context_check_usable(c, e) < 0)
        return NULL;
    struct execution *x = execution_new(what);
    if (!x) {
        pd_fail(e, PD_CAPACITY, "no memory for a turn");
        return NULL;
    }

    lock_take(&c->table->lock);
    bool free = !c->line && !c->gone;
    if (free) {
        x->is_owned = true;
        c->line = execution_ref(x);
    }
    lock_release(&c->table->lock);
    if (free)
        return x;

    execution_unref(x);
    pd_fail(e, PD_CONFLICT, "context '%.64s' is busy: only an idle one can %s", c->id, what);
    return NULL;
}

static void give_turn(struct context *c, struct execution *x)
{
    execution_finish(c, x, false, "");
    execution_unref(x);
}

/* The process of the context, if it lives and can fork. */
static struct process *forkable(struct context *c, struct pd_err *e)
{
    struct process *p = context_process(c);
    if (c->language->forks && p && process_state_is_live(process_state(p)))
        return p;

    process_unref(p);
    if (c->language->forks)
        pd_fail(e, PD_CONFLICT, "context '%.64s' has no process: there is nothing to copy", c->id);
    else
        pd_fail(e, PD_UNSUPPORTED, "contexts of %s cannot be forked", c->language_name);
    return NULL;
}

/* ---- forks ---- */

static int fork_into(struct context *c, struct context *copy, bool force, struct pd_err *e)
{
    auto_buf note = BUF_INIT(2 * NOTE_MAX);
    struct process *p = forkable(c, e), *child = NULL;
    struct fork_request how = {.force = force};
    int r = !p || context_note_write(copy, 1, "", false, &note) < 0 || !buf_cstr(&note)
                ? -1
                : context_copy_process(c, p, buf_cstr(&note), &how, &child, e);
    process_unref(p);
    if (r < 0)
        return -1;

    lock_take(&c->table->lock);
    copy->generation = 1;
    copy->process = child->id;
    copy->has_process = true;
    copy->count = c->count;
    lock_release(&c->table->lock);

    r = context_add_within(copy, e);
    if (r < 0)
        context_disown(child);
    process_unref(child);
    return r;
}

int context_fork(struct context *c, const char *name, bool force, struct context **ret,
                 struct pd_err *e)
{
    struct context_request r = {.language = c->language_name,
                                .cwd = c->cwd,
                                .name = name,
                                .env = msg_list_of(&c->env),
                                .any_cwd = c->any_cwd};
    if (context_check_room(c->session, e) < 0)
        return -1;
    struct context *copy = context_new(c->table, c->session, NULL, &r, e);
    struct execution *turn = copy ? take_turn(c, "fork", e) : NULL;
    int result = turn ? fork_into(c, copy, force, e) : -1;
    if (turn)
        give_turn(c, turn);
    if (result < 0) {
        context_unref(copy);
        return -1;
    }
    *ret = copy;
    return 0;
}

/* ---- undo ---- */

/* A restart or a deletion takes spares away without having the turn. So they are taken out one by
 * one, below the lock, and whoever has made or taken one looks afterwards whether the context is
 * still the same (`restarts`). */

/* With the lock held: takes out the oldest one, or the youngest. False: there is none. */
static bool take_out(struct context *c, bool youngest, struct spare *ret)
{
    if (!c->spare_count)
        return false;

    unsigned at = youngest ? c->spare_count - 1 : 0;
    *ret = c->spares[at];
    c->spare_count--;
    memmove(c->spares + at, c->spares + at + 1, (c->spare_count - at) * sizeof *c->spares);
    return true;
}

static bool take_out_locked(struct context *c, bool youngest, struct spare *ret)
{
    lock_take(&c->table->lock);
    bool found = take_out(c, youngest, ret);
    lock_release(&c->table->lock);
    return found;
}

static void drop_spare(struct context *c, const struct spare *spare)
{
    struct process *p = session_process_by_id(c->session, spare->process);
    if (p)
        context_disown(p);
    process_unref(p);
}

void context_drop_spares(struct context *c)
{
    struct spare spare;
    while (take_out_locked(c, false, &spare))
        drop_spare(c, &spare);
}

static unsigned restarts_of(struct context *c)
{
    lock_take(&c->table->lock);
    unsigned restarts = c->restarts;
    lock_release(&c->table->lock);
    return restarts;
}

/* With the lock held: is it still there, and was it not restarted since? */
static bool is_same(const struct context *c, unsigned restarts)
{
    return !c->gone && c->restarts == restarts;
}

static int refuse_changed(const struct context *c, const char *what, struct pd_err *e)
{
    return pd_fail(e, PD_CONFLICT, "context '%.64s' was restarted or deleted while %s", c->id,
                   what);
}

int context_keep_before(struct context *c, struct process *p, struct pd_err *e)
{
    auto_buf note = BUF_INIT(2 * NOTE_MAX);
    struct process *child = NULL;
    if (!c->language->forks)
        return pd_fail(e, PD_UNSUPPORTED,
                       "contexts of %s cannot be forked: keep_before is not "
                       "possible",
                       c->language_name);
    unsigned restarts = restarts_of(c);
    if (context_note_write(c, 0, "", true, &note) < 0 || !buf_cstr(&note) ||
        context_copy_process(c, p, buf_cstr(&note), &(struct fork_request){0}, &child, e) < 0)
        return -1;

    struct spare oldest;
    bool drops = false;
    lock_take(&c->table->lock);
    bool same = is_same(c, restarts);
    if (same) {
        drops = c->spare_count == SPARES_MAX && take_out(c, false, &oldest);
        c->spares[c->spare_count++] = (struct spare){child->id, c->count};
    }
    lock_release(&c->table->lock);

    if (drops)
        drop_spare(c, &oldest);
    if (!same)
        context_disown(child);
    process_unref(child);
    return same ? 0 : refuse_changed(c, "a copy was made", e);
}

/* The youngest spare that lives: its process, held, and what it was made before. NULL: there is
 * none. */
static struct process *take_youngest(struct context *c, struct spare *ret)
{
    while (take_out_locked(c, true, ret)) {
        struct process *p = session_process_by_id(c->session, ret->process);
        if (p && process_state_is_live(process_state(p)))
            return p;
        if (p)
            context_disown(p);
        process_unref(p);
    }
    return NULL;
}

/* The process takes the name; the one that had it ends. */
static int give_name(struct context *c, struct process *p, uint64_t count, unsigned restarts,
                     struct pd_err *e)
{
    auto_buf note = BUF_INIT(2 * NOTE_MAX);
    if (context_note_write(c, c->generation + 1, "", false, &note) < 0 || !buf_cstr(&note))
        return pd_fail(e, PD_CAPACITY, "no memory for a note");
    if (process_set_note(p, buf_cstr(&note), e) < 0)
        return -1;

    struct process *old = context_process(c);
    lock_take(&c->table->lock);
    bool same = is_same(c, restarts);
    if (same) {
        c->generation++;
        c->process = p->id;
        c->has_process = true;
        c->count = count;
        c->lost[0] = 0;
    }
    lock_release(&c->table->lock);

    if (same && old)
        context_disown(old);
    process_unref(old);
    return same ? 0 : refuse_changed(c, "a cell was undone", e);
}

static int take_spare(struct context *c, struct pd_err *e)
{
    unsigned restarts = restarts_of(c);
    struct spare spare;
    struct process *p = take_youngest(c, &spare);
    if (!p)
        return pd_fail(e, PD_CONFLICT,
                       "context '%.64s' has nothing to undo: an execution with "
                       "keep_before comes first",
                       c->id);

    int r = give_name(c, p, spare.count, restarts, e);
    if (r < 0)
        context_disown(p);
    process_unref(p);
    return r;
}

int context_undo(struct context *c, struct pd_err *e)
{
    struct execution *turn = take_turn(c, "undo", e);
    if (!turn)
        return -1;
    int r = take_spare(c, e);
    give_turn(c, turn);
    return r;
}
