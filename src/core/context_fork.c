/* Forks of contexts: the one primitive is a process that is a copy of another one, with streams, a
 * group and a row of its own.
 *
 * The driver that is to fork gets the far ends of the new process's streams with the request.
 * Init's worker `join` stands for the child (init/worker_join.c), so to everybody else it is a
 * command like any other. Only an idle context forks: the fork has the turn in its line meanwhile.
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

int context_copy_process(struct context *c, struct process *parent, const char *note,
                         const struct fork_request *how, struct process **ret, struct pd_err *e)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    auto_buf line = BUF_INIT(16 * CODE_MAX);
    char id[EXECUTION_ID + 1];
    bool known = false;
    int bad = 0;

    snprintf(id, sizeof id, "fork-");
    id_sandbox(id + strlen(id));
    for (const char *const *word = c->language->argv; *word; word++)
        bad |= msg_list_add(&argv, *word);
    bad |= request_fork(id, how, &line);

    struct process_info before;
    process_get(parent, &before, NULL);
    struct process_request r = {.argv = msg_list_of(&argv),
                                .env = {.text = ""},
                                .driver = true,
                                .background = true,
                                .note = note,
                                .fork_of = parent,
                                .fork_line = line.data,
                                .fork_line_len = line.len};
    struct process *child = NULL;
    int result = bad ? pd_fail(e, PD_CAPACITY, "no memory for a fork")
                     : session_start(c->session, &r, &child, &known, e);
    msg_list_writer_done(&argv);
    if (result < 0)
        return -1;

    struct context_reader *reader = malloc(sizeof *reader);
    if (reader) {
        reader_init(reader, parent, id, before.size, true);
        reader->skim = true;
        result = await_ready(reader, child, e);
        reader_done(reader);
    } else {
        result = pd_fail(e, PD_CAPACITY, "no memory for a fork");
    }
    free(reader);
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
    context_add(copy);
    lock_release(&c->table->lock);
    process_unref(child);
    return 0;
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

/* Forgets the spare at this place. */
static void drop_spare(struct context *c, unsigned at)
{
    lock_take(&c->table->lock);
    struct wire_id id = c->spares[at].process;
    for (unsigned i = at; i + 1 < c->spare_count; i++)
        c->spares[i] = c->spares[i + 1];
    c->spare_count--;
    lock_release(&c->table->lock);

    struct process *p = session_process_by_id(c->session, id);
    if (p)
        context_disown(p);
    process_unref(p);
}

void context_drop_spares(struct context *c)
{
    while (c->spare_count)
        drop_spare(c, 0);
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
    if (context_note_write(c, 0, "", true, &note) < 0 || !buf_cstr(&note) ||
        context_copy_process(c, p, buf_cstr(&note), &(struct fork_request){0}, &child, e) < 0)
        return -1;

    if (c->spare_count == SPARES_MAX)
        drop_spare(c, 0);
    lock_take(&c->table->lock);
    c->spares[c->spare_count++] = (struct spare){child->id, c->count};
    lock_release(&c->table->lock);
    process_unref(child);
    return 0;
}

/* The youngest spare that lives takes the name. */
static int take_spare(struct context *c, struct pd_err *e)
{
    struct process *p = NULL;
    uint64_t count = 0;
    while (!p && c->spare_count) {
        lock_take(&c->table->lock);
        struct spare spare = c->spares[--c->spare_count];
        lock_release(&c->table->lock);
        count = spare.count;
        p = session_process_by_id(c->session, spare.process);
        if (p && !process_state_is_live(process_state(p))) {
            context_disown(p);
            process_unref(p);
            p = NULL;
        }
    }
    if (!p)
        return pd_fail(e, PD_CONFLICT,
                       "context '%.64s' has nothing to undo: an execution with "
                       "keep_before comes first",
                       c->id);

    auto_buf note = BUF_INIT(2 * NOTE_MAX);
    int r = context_note_write(c, c->generation + 1, "", false, &note);
    if (r == 0)
        r = process_set_note(p, buf_cstr(&note), e);
    struct process *old = r == 0 ? context_process(c) : NULL;
    if (r == 0) {
        lock_take(&c->table->lock);
        c->generation++;
        c->process = p->id;
        c->has_process = true;
        c->count = count;
        c->lost[0] = 0;
        lock_release(&c->table->lock);
    }
    if (old)
        context_disown(old);
    process_unref(old);
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
