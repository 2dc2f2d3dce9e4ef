/* How contexts outlive a daemon: names are read from the notes of their processes, and the journal
 * of the youngest process tells how many executions there were and whether one still runs. That one
 * goes into the line again, as nobody's, so an attendant sees to its end. What waited in the line
 * is gone with the daemon: it was never sent, and a retry submits it anew. */
#include "core/context_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"
#include "telemetry/log.h"

#include <poll.h>
#include <sys/eventfd.h>

/* ---- attendants ---- */

int attendants_init(struct attendants *a, struct pd_err *e)
{
    lock_init(&a->lock, LOCK_ATTENDANTS);
    cond_init(&a->gone);
    a->stop_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return a->stop_event < 0 ? pd_fail_sys(e, "make an event") : 0;
}

bool attendants_enter(struct sessions *all)
{
    struct attendants *a = &all->attendants;
    lock_take(&a->lock);
    bool may = !a->stopping;
    a->count += may;
    lock_release(&a->lock);
    return may;
}

void attendants_leave(struct sessions *all)
{
    struct attendants *a = &all->attendants;
    lock_take(&a->lock);
    if (--a->count == 0)
        pthread_cond_broadcast(&a->gone);
    lock_release(&a->lock);
}

void attendants_stop(struct attendants *a)
{
    uint64_t one = 1;
    lock_take(&a->lock);
    a->stopping = true;
    (void)!write(a->stop_event, &one, sizeof one);
    while (a->count)
        (void)lock_wait(&a->gone, &a->lock, DEADLINE_NONE);
    lock_release(&a->lock);
}

void attendants_done(struct attendants *a)
{
    fd_done(&a->stop_event);
    pthread_cond_destroy(&a->gone);
    lock_done(&a->lock);
}

/* ---- adoption ---- */

/* What a journal says of its executions. */
struct journal {
    char last[EXECUTION_ID + 1]; /* that has started */
    uint64_t at, count, memory;
    unsigned starts;
    bool ended;
};

static int note_event(const struct context_event *v, uint64_t at, void *arg)
{
    struct journal *j = arg;
    if (v->type == EVENT_START) {
        memcpy(j->last, v->id, sizeof j->last);
        j->at = at;
        j->count = v->count;
        j->starts++;
        j->ended = false;
    }
    j->ended |= v->type == EVENT_END && !strcmp(v->id, j->last);
    if (v->memory)
        j->memory = v->memory;
    return 0;
}

/* The time-out is behind the dash of an id. */
static uint64_t timeout_of(const char *id)
{
    const char *dash = strrchr(id, '-');
    struct pd_err ignored;
    uint64_t ms = 0;
    if (dash)
        (void)parse_u64("time-out", dash + 1, 0, UINT64_MAX / NS_PER_MS, &ms, &ignored);
    return ms * NS_PER_MS;
}

/* ---- one that was sent, and had not started when the daemon was killed ---- */

#define PENDING_LOOK  (NS_PER_S / 5)
#define PENDING_QUIET 5u /* looks that find all read and nothing started */

bool execution_await_start(struct context *c, struct execution *x, int stop_fd)
{
    struct process *p = session_process_by_id(c->session, x->process);
    struct watch w;
    struct pd_err e;
    if (!p || process_watch(p, &w, &e) < 0) {
        process_unref(p);
        return false;
    }

    deadline patience = deadline_in(START_PATIENCE);
    unsigned quiet = 0;
    bool found = false, stops = false;
    while (!found && !stops && quiet < PENDING_QUIET && !deadline_passed(patience)) {
        struct journal j = {.ended = true};
        watch_clear(&w);
        bool live = process_state_is_live(process_state(p));
        quiet = live && process_has_unread(p) ? 0 : quiet + 1;
        (void)process_take_streams(p);
        journal_each(p, note_event, &j);

        lock_take(&c->table->lock);
        found = j.starts > x->starts;
        if (found) {
            memcpy(x->id, j.last, sizeof x->id);
            x->begin[STREAM_EVENTS] = j.at;
            x->timeout_ns = timeout_of(x->id);
            x->due = x->timeout_ns ? deadline_in(x->timeout_ns) : DEADLINE_NONE;
            x->is_pending = false;
            c->count = j.count;
            context_wake(c);
        }
        lock_release(&c->table->lock);
        if (found || !live)
            break;

        struct pollfd fds[2] = {{.fd = w.event, .events = POLLIN},
                                {.fd = stop_fd, .events = POLLIN}};
        (void)poll(fds, 2, deadline_poll_ms(deadline_in(PENDING_LOOK)));
        stops = fds[1].revents != 0;
    }

    process_unwatch(p, &w);
    process_unref(p);
    return found;
}

/* An execution that runs goes on; with `j->ended`, one that is about to start. With the table's
 * lock held. */
static void adopt_execution(struct context *c, const struct process *p, const struct journal *j,
                            const struct context_note *note)
{
    struct execution *x = execution_new(j->ended ? "pending" : j->last);
    if (!x)
        return;

    x->state = EXECUTION_RUNNING;
    x->is_placed = true;
    x->is_pending = j->ended;
    x->starts = j->starts;
    x->process = p->id;
    x->begin[STREAM_EVENTS] = j->at;
    x->timeout_ns = timeout_of(x->id);
    x->due = x->timeout_ns ? deadline_in(x->timeout_ns) : DEADLINE_NONE;
    if (j->starts + j->ended == 1 && note->lost[0]) {
        x->restarted = true;
        memcpy(x->reason, note->lost, sizeof x->reason);
    }

    c->line = x; /* the reference is the line's */
    execution_keep(c, x);
    execution_attend(c);
}

/* The name of a process: a context, as its youngest process says. */
static void adopt_process(struct session *s, struct process *p, const struct context_note *note)
{
    struct pd_err e;
    struct context_request r = {.language = note->language,
                                .cwd = note->cwd,
                                .name = note->name,
                                .env = msg_list_of(&note->env),
                                .any_cwd = note->any_cwd};
    struct contexts *t = contexts_of(s, &e);
    struct context *c = t ? context_new(t, s, note->id, &r, &e) : NULL;
    if (!c) {
        log_warn("adopt.context", "session=%s error=%s", s->info.id, e.msg);
        return;
    }

    struct journal j = {.ended = true};
    bool pending = false;
    if (process_state_is_live(process_state(p))) {
        (void)process_take_streams(p); /* what is in the pipes belongs to it */
        journal_each(p, note_event, &j);
        pending = j.ended && process_has_unread(p);
        atomic_store(&p->memory, j.memory);
    }

    lock_take(&t->lock);
    c->created_ms = note->created_ms;
    c->generation = note->generation;
    c->process = p->id;
    c->has_process = true;
    c->count = j.count;
    if (!j.starts && !pending)
        memcpy(c->lost, note->lost, sizeof c->lost);
    context_add(c);
    if (!j.ended || pending)
        adopt_execution(c, p, &j, note);
    lock_release(&t->lock);
    context_unref(c);
}

/* Processes of contexts, held, oldest first. */
static struct process **hold_drivers(struct session *s, unsigned *ret_count)
{
    unsigned count = 0;
    lock_take(&s->lock);
    for (const struct process *p = s->processes; p; p = p->next)
        count += p->driver;
    struct process **list = count ? calloc(count, sizeof *list) : NULL;
    count = 0;
    for (struct process *p = s->processes; p && list; p = p->next)
        if (p->driver)
            list[count++] = process_ref(p);
    lock_release(&s->lock);
    *ret_count = count;
    return list;
}

void contexts_adopt(struct session *s)
{
    unsigned count;
    struct process **list = hold_drivers(s, &count);
    struct context_note *notes = list ? calloc(count, sizeof *notes) : NULL;

    for (unsigned i = 0; i < count && notes; i++)
        if (context_note_read(list[i]->note, &notes[i]) < 0) {
            notes[i].generation = 0;
            if (!zygote_adopt(s, list[i]))
                context_disown(list[i]); /* a spare of the daemon that was */
        }

    for (unsigned i = 0; i < count && notes; i++) {
        bool is_youngest = notes[i].generation > 0;
        for (unsigned k = 0; k < count; k++)
            is_youngest &=
                strcmp(notes[k].id, notes[i].id) != 0 || notes[k].generation <= notes[i].generation;
        if (is_youngest)
            adopt_process(s, list[i], &notes[i]);
    }

    for (unsigned i = 0; i < count; i++) {
        if (notes)
            context_note_done(&notes[i]);
        process_unref(list[i]);
    }
    free(notes);
    free(list);
}
