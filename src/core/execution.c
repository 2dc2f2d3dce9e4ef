/* How an execution lives: it waits in the line of its context, runs, and is remembered.
 *
 *   WAITING   in the line. Its owner sees when it is the first, starts a process if there is none
 *             that lives, and sends the request
 *   RUNNING   the first of the line. Its owner reads the journal until its end, and sees to its
 *             time: SIGINT when that is over, SIGKILL 5 s later
 *   ENDED     out of the line. Its state and reason stay here for a while, everything else is in
 *             the journal
 *
 * Every execution that is not ended has an owner: the thread of the request that submitted it, or
 * the attendant, a thread of the context that exists only while there is something for it to do.
 * It owns those that are detached, and those that a daemon which was killed has left.
 *
 * The id of an execution with an Idempotency-Key is made of the key and the request, so a retry
 * finds it: here, or in the journal. The driver leaves out an id that it has seen. Behind it is the
 * time-out, which the next daemon needs to know; its clock begins anew then. */
#include "core/context_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "telemetry/log.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>

#define KEY_DIGITS 16 /* of an id: the key's hash; as many of the request's follow */
#define LINE_MAX   (12u * CODE_MAX)

struct execution *execution_new(const char *id)
{
    struct execution *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;

    atomic_init(&x->refs, 1);
    snprintf(x->id, sizeof x->id, "%s", id);
    x->request = BUF_INIT(LINE_MAX);
    x->due = DEADLINE_NONE;
    return x;
}

struct execution *execution_ref(struct execution *x)
{
    atomic_fetch_add(&x->refs, 1);
    return x;
}

void execution_unref(struct execution *x)
{
    if (!x || atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    buf_done(&x->request);
    free(x);
}

const char *execution_id(const struct execution *x)
{
    return x->id;
}

void execution_keep(struct context *c, struct execution *x)
{
    x->next_kept = c->kept;
    c->kept = execution_ref(x);

    unsigned count = 0;
    for (struct execution **at = &c->kept; *at;) {
        struct execution *old = *at;
        if (old->state != EXECUTION_ENDED || count++ < EXECUTIONS_KEPT) {
            at = &old->next_kept;
            continue;
        }
        *at = old->next_kept;
        execution_unref(old);
    }
}

/* ---- finding ---- */

/* With the lock held: by the whole id, or by what the key makes of it. */
static struct execution *look_for(const struct context *c, const char *id, size_t len)
{
    for (struct execution *x = c->kept; x; x = x->next_kept)
        if (!strncmp(x->id, id, len) && (len == KEY_DIGITS || !x->id[len]))
            return x;
    return NULL;
}

struct search {
    const char *id;
    size_t len;
    char found[EXECUTION_ID + 1];
    uint64_t at;
    bool has_found, is_first, ended;
    unsigned starts;
};

static int search_event(const struct context_event *v, uint64_t at, void *arg)
{
    struct search *w = arg;
    bool same = !strncmp(v->id, w->id, w->len) && (w->len == KEY_DIGITS || !v->id[w->len]);
    w->starts += v->type == EVENT_START;

    if (v->type == EVENT_START && same && !w->has_found) {
        memcpy(w->found, v->id, sizeof w->found);
        w->at = at;
        w->has_found = true;
        w->is_first = w->starts == 1;
    }
    w->ended |= w->has_found && v->type == EVENT_END && !strcmp(v->id, w->found);
    return w->ended;
}

/* Looks through the journals; those of earlier daemons are only there. */
static struct execution *search_journals(struct context *c, const char *id, size_t len)
{
    struct process *of[PROCESSES_OF + 2];
    struct execution *x = NULL;
    unsigned count = context_processes(c, of, PROCESSES_OF + 2);

    for (unsigned i = 0; i < count; i++) {
        struct search w = {.id = id, .len = len};
        if (!x)
            journal_each(of[i], search_event, &w);
        if (w.has_found && (x = execution_new(w.found))) {
            struct context_note note;
            x->state = EXECUTION_ENDED;
            x->is_placed = true;
            x->process = of[i]->id;
            x->begin[STREAM_EVENTS] = w.at;
            char *text = process_note(of[i]);
            if (w.is_first && context_note_read(text, &note) == 0) {
                x->restarted = note.lost[0] != 0;
                memcpy(x->reason, note.lost, sizeof x->reason);
                context_note_done(&note);
            }
            free(text);
        }
        process_unref(of[i]);
    }
    return x;
}

static struct execution *find(struct context *c, const char *id, size_t len)
{
    lock_take(&c->table->lock);
    struct execution *x = look_for(c, id, len);
    if (x)
        execution_ref(x);
    lock_release(&c->table->lock);
    return x ? x : search_journals(c, id, len);
}

struct execution *execution_find(struct context *c, const char *id, struct pd_err *e)
{
    struct execution *x = execution_id_is_valid(id) ? find(c, id, strlen(id)) : NULL;
    if (!x)
        pd_fail(e, PD_NOT_FOUND,
                "there is no execution '%.64s' in context '%.64s', or not any more", id, c->id);
    return x;
}

/* ---- submitting ---- */

static void make_id(const struct context *c, const struct execution_request *r,
                    char id[EXECUTION_ID + 1])
{
    uint64_t word[2];
    random_bytes(word, sizeof word);
    if (r->key) {
        char named[512];
        int n = snprintf(named, sizeof named, "%s %s", c->id, r->key);
        word[0] = hash_bytes(named, (size_t)n < sizeof named ? (size_t)n : sizeof named - 1);
        word[1] = r->key_hash;
    }
    snprintf(id, EXECUTION_ID + 1, "%016" PRIx64 "%016" PRIx64 "-%" PRIu64, word[0], word[1],
             r->timeout_ns / NS_PER_MS);
}

/* The execution that the key was used for before, whose reference is the caller's. */
static int answer_known(struct execution *known, const char *id, const char *key,
                        struct execution **ret, bool *ret_known, struct pd_err *e)
{
    if (strncmp(known->id, id, 2 * KEY_DIGITS) != 0) {
        execution_unref(known);
        return pd_fail(e, PD_CONFLICT, "Idempotency-Key '%.80s' was used for another execution",
                       key);
    }
    *ret = known;
    *ret_known = true;
    return 0;
}

/* With the lock held. */
static int enter(struct context *c, struct execution *x, struct pd_err *e)
{
    struct execution **at = &c->line;
    unsigned count = 0;
    for (; *at; at = &(*at)->next)
        count++;

    if (c->gone)
        return pd_fail(e, PD_NOT_FOUND, "context '%.64s' was deleted", c->id);
    if (count > CONTEXT_WAITING)
        return pd_fail(e, PD_RATE, "%u executions wait in context '%.64s': try again later",
                       CONTEXT_WAITING, c->id);
    *at = execution_ref(x);
    execution_keep(c, x);
    return 0;
}

int execution_submit(struct context *c, const struct execution_request *r, struct execution **ret,
                     bool *ret_known, struct pd_err *e)
{
    char id[EXECUTION_ID + 1];
    *ret_known = false;
    if (r->code_len > CODE_MAX)
        return pd_fail(e, PD_TOO_LARGE, "code of %zu bytes: at most %u; put long text into a file",
                       r->code_len, CODE_MAX);
    make_id(c, r, id);

    /* An earlier daemon may have sent it, and it may start just now: the search for its start goes
     * on where this one ends. */
    struct process *p = r->key ? context_process(c) : NULL;
    struct process_info seen = {0};
    if (p)
        process_get(p, &seen, NULL);
    struct wire_id seen_in = p ? p->id : (struct wire_id){0};
    bool is_looked_for = p != NULL;
    process_unref(p);
    struct execution *known = r->key ? find(c, id, KEY_DIGITS) : NULL;
    if (known)
        return answer_known(known, id, r->key, ret, ret_known, e);
    if (context_check_usable(c, e) < 0)
        return -1;

    struct execution *x = execution_new(id);
    if (!x || request_run(c, id, r, &x->request) < 0) {
        execution_unref(x);
        return pd_fail(e, PD_CAPACITY, "no memory for an execution");
    }
    x->timeout_ns = r->timeout_ns;
    x->keep_before = r->keep_before;
    x->is_looked_for = is_looked_for;
    x->seen_in = seen_in;
    memcpy(x->seen, seen.size, sizeof x->seen);
    x->is_owned = !r->detached;

    /* Two with one key at the same moment: the second finds the first. */
    lock_take(&c->table->lock);
    known = r->key ? look_for(c, id, KEY_DIGITS) : NULL;
    int failed = known ? 0 : enter(c, x, e);
    if (known)
        execution_ref(known);
    else if (!failed)
        execution_attend(c);
    lock_release(&c->table->lock);

    if (known || failed)
        execution_unref(x);
    if (known)
        return answer_known(known, id, r->key, ret, ret_known, e);
    if (failed)
        return -1;
    *ret = x;
    return 0;
}

/* ---- the line ---- */

void execution_finish(struct context *c, struct execution *x, bool restarted, const char *reason)
{
    lock_take(&c->table->lock);
    for (struct execution **at = &c->line; *at; at = &(*at)->next)
        if (*at == x) {
            *at = x->next;
            x->next = NULL;
            execution_unref(x); /* the caller has another one */
            break;
        }

    x->restarted |= restarted;
    if (reason[0])
        snprintf(x->reason, sizeof x->reason, "%s", reason);
    x->state = EXECUTION_ENDED;
    x->is_owned = false;
    buf_done(&x->request);
    execution_attend(c);
    context_wake(c);
    lock_release(&c->table->lock);
}

/* A driver that has ended, or ends meanwhile, is found so by whoever reads its journal. One that
 * does not read is ended, when the time of the execution is over at the latest. */
static void send_request(struct context *c, struct execution *x, struct process *p)
{
    struct pd_err e, ignored;
    deadline patience = deadline_in(SEND_PATIENCE);
    deadline d = x->due < patience ? x->due : patience;
    if (process_send(p, x->request.data, x->request.len, NULL, 0, d, &e) == 0 ||
        e.code != PD_TIMEOUT)
        return;

    bool is_time = deadline_passed(x->due);
    lock_take(&c->table->lock);
    snprintf(x->reason, sizeof x->reason, is_time ? "timeout" : "protocol");
    x->is_unwanted = true;
    lock_release(&c->table->lock);
    (void)process_stop(p, is_time ? STOP_TIMEOUT : STOP_KILLED, &ignored);
}

/* The first of the line has its turn: starts a process, and sends the request. */
static int begin(struct context *c, struct execution *x, struct pd_err *e)
{
    struct process *p = NULL;
    struct process_info i;
    if (context_start(c, &p, e) < 0) {
        execution_finish(c, x, false, "");
        context_forget_unused(c);
        return -1;
    }

    if (x->keep_before && context_keep_before(c, p, e) < 0) {
        process_unref(p);
        execution_finish(c, x, false, "");
        return -1;
    }

    process_get(p, &i, NULL);
    lock_take(&c->table->lock);
    x->state = EXECUTION_RUNNING;
    x->process = p->id;
    bool is_same = x->is_looked_for && wire_id_equal(x->seen_in, p->id);
    memcpy(x->begin, is_same ? x->seen : i.size, sizeof x->begin);
    x->is_placed = true;
    x->due = x->timeout_ns ? deadline_in(x->timeout_ns) : DEADLINE_NONE;
    if (c->lost[0]) {
        x->restarted = true;
        memcpy(x->reason, c->lost, sizeof x->reason);
        c->lost[0] = 0;
    }
    context_wake(c);
    lock_release(&c->table->lock);

    context_settle(c, p);
    send_request(c, x, p);
    buf_done(&x->request);
    process_unref(p);
    return 0;
}

/* ---- following ---- */

int execution_follow(struct execution_follow *f, struct execution *x, struct context *c,
                     unsigned flags, const uint64_t *offset, struct pd_err *e)
{
    memset(f, 0, offsetof(struct execution_follow, reader));
    f->execution = execution_ref(x);
    f->context = context_ref(c);
    f->owned = (flags & EXECUTION_OWNED) != 0;
    f->skims = (flags & EXECUTION_SKIM) != 0;
    f->has_offset = offset != NULL;
    if (offset)
        memcpy(f->offset, offset, sizeof f->offset);
    f->watch.event = -1;
    f->wait = NULL;
    f->again_at = f->kill_at = DEADLINE_NONE;
    f->results = 0;
    f->is_interrupted = f->had_error = f->truncated = f->restarted = false;
    f->reason[0] = f->died[0] = 0;

    if (context_watch_begin(c, &f->wait, e) == 0)
        return 0;
    execution_unref(f->execution);
    context_unref(f->context);
    return -1;
}

/* Opens the spools of the process that runs it, or ran it. */
static int open_reader(struct execution_follow *f, struct pd_err *e)
{
    struct execution *x = f->execution;
    struct process *p = session_process_by_id(f->context->session, x->process);
    if (!p)
        return pd_fail(e, PD_LOST, "the output of execution %s is not kept any more", x->id);

    if (process_watch(p, &f->watch, e) < 0) {
        process_unref(p);
        return -1;
    }
    reader_init(&f->reader, p, x->id, f->has_offset ? f->offset : x->begin, f->has_offset);
    f->reader.skim = f->skims;
    f->reader.is_late = session_is_far(f->context->session);
    f->reading = true;
    process_unref(p); /* the reader has its own */
    return 0;
}

/* The last of an execution: its state and reason, as they are told. */
static void tell_end(struct execution_follow *f)
{
    const struct execution *x = f->execution;
    lock_take(&f->context->table->lock);
    f->restarted = x->restarted;
    memcpy(f->reason, x->reason, sizeof f->reason);
    lock_release(&f->context->table->lock);
    f->truncated |= f->reader.lost;
    f->ended = true;
}

/* The process has ended under the execution. */
static enum execution_news tell_death(struct execution_follow *f)
{
    struct process_info i;
    char known[16];
    process_get(f->reader.process, &i, NULL);
    lock_take(&f->context->table->lock);
    struct execution *x = f->execution;
    /* What was known before it ran says nothing of its end. */
    bool why = x->is_unwanted || !x->restarted;
    snprintf(known, sizeof known, "%s", why ? x->reason : "");
    lock_release(&f->context->table->lock);

    context_explain_end(&i, known, f->reason, f->died, sizeof f->died);
    if (!f->reader.begun && !f->reader.seq && i.size[STREAM_EVENTS] == 0) {
        char tail[160];
        uint64_t from = i.size[STREAM_ERR] > sizeof tail ? i.size[STREAM_ERR] - sizeof tail : 0;
        struct pd_err ignored;
        ssize_t n = process_read(f->reader.process, STREAM_ERR, from, tail, sizeof tail, &ignored);
        if (n > 0)
            snprintf(f->died, sizeof f->died, "%s cannot start: %s: %.*s",
                     f->context->language_name, f->context->language->missing, (int)n, tail);
    }
    f->restarted = true;
    f->ended = true;
    if (f->owned)
        execution_finish(f->context, f->execution, true, f->reason);
    if (!f->had_error)
        return NEWS_DIED;
    return NEWS_END;
}

/* Not every event is told. */
static bool take_event(struct execution_follow *f, enum execution_news *ret)
{
    const struct context_event *v = &f->reader.event;
    struct context *c = f->context;

    switch (v->type) {
    case EVENT_START:
        lock_take(&c->table->lock);
        if (f->owned)
            c->count = v->count;
        lock_release(&c->table->lock);
        break;
    case EVENT_RESULT:
        f->results += v->data.len;
        if (f->results > RESULTS_MAX) {
            f->truncated = true;
            return false;
        }
        break;
    case EVENT_ERROR:
        if (f->had_error)
            return false;
        f->had_error = true;
        break;
    case EVENT_END:
        f->truncated |= v->truncated;
        if (f->owned && v->memory)
            atomic_store(&f->reader.process->memory, v->memory);
        if (f->owned)
            execution_finish(c, f->execution, false, "");
        tell_end(f);
        *ret = NEWS_END;
        return true;
    case EVENT_STDOUT:
    case EVENT_STDERR:
        break;
    default:
        return false;
    }
    *ret = NEWS_EVENT;
    return true;
}

/* What cannot be read is not read on: the process is ended, and its end is told. */
static void end_broken(struct execution_follow *f, const struct pd_err *why)
{
    struct pd_err ignored;
    log_warn("context.protocol", "session=%s context=%s error=%s", f->context->session->info.id,
             f->context->id, why->msg);
    lock_take(&f->context->table->lock);
    snprintf(f->execution->reason, sizeof f->execution->reason, "protocol");
    f->execution->is_unwanted = true;
    lock_release(&f->context->table->lock);
    (void)process_signal(f->reader.process, SIGKILL, &ignored);
    f->is_broken = true;
}

/* Reads on: true when there is something to tell. */
static bool read_on(struct execution_follow *f, enum execution_news *ret)
{
    struct pd_err why;

    for (;;) {
        watch_clear(&f->watch);
        bool over = !process_state_is_live(process_state(f->reader.process));
        enum reader_item item = f->is_broken
                                    ? (over ? ITEM_OVER : ITEM_NONE)
                                    : reader_next(&f->reader, over, &f->stream, &f->len, &why);

        switch (item) {
        case ITEM_NONE:
            return false;
        case ITEM_TEXT:
            *ret = NEWS_TEXT;
            return true;
        case ITEM_EVENT:
            if (take_event(f, ret))
                return true;
            break;
        case ITEM_BROKEN:
            if (f->owned) {
                end_broken(f, &why);
            } else {
                f->is_broken = true;
            }
            break;
        case ITEM_OVER:
            *ret = tell_death(f);
            return true;
        }
    }
}

/* The owner's: interrupts it when its time is over or nobody wants it any more, once more when it
 * does not heed that, and then kills it. Returns when to look again.
 *
 * Once more, because the first one may find nobody: while a program starts another one and waits
 * for it (a shell, system()), it leaves the signal to that one, which may not be there yet. */
static deadline see_to_time(struct execution_follow *f)
{
    struct contexts *t = f->context->table;
    struct execution *x = f->execution;
    struct pd_err ignored;

    lock_take(&t->lock);
    if (deadline_passed(x->due) && !x->is_unwanted) {
        x->is_unwanted = true;
        snprintf(x->reason, sizeof x->reason, "timeout");
    }
    bool unwanted = x->is_unwanted;
    bool is_time = !strcmp(x->reason, "timeout");
    deadline due = x->due;
    lock_release(&t->lock);
    if (!unwanted)
        return due;

    if (f->kill_at == DEADLINE_NONE)
        f->kill_at = deadline_in(INTERRUPT_GRACE);
    /* Before its start a driver ignores the signal. */
    if (f->reader.begun && (!f->is_interrupted || deadline_passed(f->again_at))) {
        f->again_at = f->is_interrupted ? DEADLINE_NONE : deadline_in(INTERRUPT_AGAIN);
        f->is_interrupted = true;
        atomic_store(&f->reader.process->is_interrupted, true);
        (void)process_signal(f->reader.process, SIGINT, &ignored);
    }
    if (!deadline_passed(f->kill_at))
        return f->again_at < f->kill_at ? f->again_at : f->kill_at;

    (void)process_stop(f->reader.process, is_time ? STOP_TIMEOUT : STOP_KILLED, &ignored);
    f->kill_at = deadline_in(INTERRUPT_GRACE); /* again, if it was just about to start */
    return f->kill_at;
}

/* Waits for news of context or process. 1: `other` has something. */
static int wait_for_news(struct execution_follow *f, int other_fd, short other_events, deadline d)
{
    struct pollfd fds[3] = {{.fd = f->wait->event, .events = POLLIN},
                            {.fd = f->watch.event, .events = POLLIN},
                            {.fd = other_fd, .events = other_events}};
    deadline late = f->reading ? reader_due(&f->reader) : DEADLINE_NONE;
    return poll(fds, 3, deadline_poll_ms(late < d ? late : d)) > 0 && fds[2].revents;
}

/* What its state asks for: 1 with news, 0: nothing yet. */
static int look(struct execution_follow *f, enum execution_news *ret, struct pd_err *e)
{
    struct context *c = f->context;
    struct execution *x = f->execution;
    uint64_t n;
    (void)!read(f->wait->event, &n, sizeof n);

    lock_take(&c->table->lock);
    bool placed = x->is_placed, first = c->line == x, gone = c->gone;
    bool over = x->state == EXECUTION_ENDED;
    lock_release(&c->table->lock);

    if (!placed && gone && f->owned)
        execution_finish(c, x, false, "deleted");
    if (!placed && (gone || over))
        return pd_fail(e, PD_LOST,
                       gone ? "context '%.64s' was deleted"
                            : "the execution could not be started in context '%.64s'",
                       c->id);

    if (!placed && f->owned && first) {
        if (begin(c, x, e) < 0)
            return -1;
        *ret = NEWS_BEGUN;
        return 1;
    }
    if (!placed)
        return 0;
    if (!f->reading && open_reader(f, e) < 0) {
        if (f->owned)
            execution_finish(c, x, true, "sandbox");
        return -1;
    }
    return read_on(f, ret);
}

int execution_next(struct execution_follow *f, int other_fd, short other_events, deadline d,
                   enum execution_news *ret, struct pd_err *e)
{
    if (f->ended) { /* after NEWS_DIED */
        *ret = NEWS_END;
        return 0;
    }

    for (;;) {
        int r = look(f, ret, e);
        if (r < 0) {
            f->ended = true;
            return -1;
        }
        if (r > 0)
            return 0;

        deadline due = f->owned && f->reading ? see_to_time(f) : DEADLINE_NONE;
        if (wait_for_news(f, other_fd, other_events, due < d ? due : d)) {
            *ret = NEWS_LEFT;
            return 0;
        }
        if (deadline_passed(d)) {
            *ret = NEWS_QUIET;
            return 0;
        }
    }
}

/* Its owner has left: it is interrupted, and waited for. */
static void give_up(struct execution_follow *f)
{
    struct contexts *t = f->context->table;
    enum execution_news news;
    struct pd_err ignored;

    lock_take(&t->lock);
    bool waits = f->execution->state == EXECUTION_WAITING;
    f->execution->is_unwanted = true;
    if (!f->execution->reason[0])
        snprintf(f->execution->reason, sizeof f->execution->reason, "abandoned");
    lock_release(&t->lock);
    if (waits) {
        execution_finish(f->context, f->execution, false, "abandoned");
        return;
    }

    f->reader.skim = f->skims = true;
    while (!f->ended && execution_next(f, -1, 0, DEADLINE_NONE, &news, &ignored) == 0)
        ;
}

static void hand_over(struct execution_follow *f)
{
    lock_take(&f->context->table->lock);
    f->execution->is_owned = false;
    execution_attend(f->context);
    lock_release(&f->context->table->lock);
}

void execution_follow_end(struct execution_follow *f, bool hands_over)
{
    if (f->owned && !f->ended && hands_over)
        hand_over(f);
    else if (f->owned && !f->ended)
        give_up(f);

    if (f->reading) {
        process_unwatch(f->reader.process, &f->watch);
        reader_done(&f->reader);
    }
    context_watch_end(f->context, f->wait);
    execution_unref(f->execution);
    context_unref(f->context);
}

/* ---- the attendant ---- */

/* The first of the line, if it is nobody's: the attendant's from now on. With the lock held. */
static struct execution *take_first(struct context *c)
{
    struct execution *x = c->line;
    if (!x || x->is_owned)
        return NULL;
    x->is_owned = true;
    return execution_ref(x);
}

/* Follows one to its end. False when the server stops: the next one goes on with it. */
static bool attend_one(struct context *c, struct execution *x, int stop_fd)
{
    if (x->is_pending && !execution_await_start(c, x, stop_fd)) {
        execution_finish(c, x, false, "");
        return true;
    }

    struct execution_follow *f = malloc(sizeof *f);
    enum execution_news news = NEWS_QUIET;
    struct pd_err e;
    if (!f || execution_follow(f, x, c, EXECUTION_OWNED | EXECUTION_SKIM, NULL, &e) < 0) {
        free(f);
        execution_finish(c, x, false, "capacity");
        return true;
    }

    while (!f->ended && news != NEWS_LEFT)
        if (execution_next(f, stop_fd, POLLIN, DEADLINE_NONE, &news, &e) < 0)
            log_warn("context.execution", "session=%s context=%s error=%s", c->session->info.id,
                     c->id, e.msg);

    bool ended = f->ended;
    f->owned = false; /* it is left as it is */
    execution_follow_end(f, true);
    free(f);
    return ended;
}

static void *attendant_main(void *arg)
{
    struct context *c = arg;
    struct session *s = c->session;
    bool goes_on = true;

    while (goes_on) {
        lock_take(&c->table->lock);
        struct execution *x = take_first(c);
        c->has_attendant = x != NULL;
        lock_release(&c->table->lock);
        if (!x)
            break;
        goes_on = attend_one(c, x, s->all->attendants.stop_event);
        execution_unref(x);
    }

    struct sessions *all = s->all;
    context_unref(c);
    session_unref(s);
    attendants_leave(all);
    return NULL;
}

void execution_attend(struct context *c)
{
    struct session *s = c->session;
    pthread_t thread;
    if (c->has_attendant || !c->line || c->line->is_owned)
        return;
    if (!attendants_enter(s->all))
        return; /* the server stops */

    c->has_attendant = true;
    session_ref(s);
    context_ref(c);
    if (sessions_start_thread(&thread, attendant_main, c) == 0) {
        pthread_detach(thread);
        return;
    }

    /* The next change of the line tries again. */
    log_warn("context.attend", "session=%s context=%s error=no thread", s->info.id, c->id);
    c->has_attendant = false;
    context_unref(c);
    session_unref(s);
    attendants_leave(s->all);
}
