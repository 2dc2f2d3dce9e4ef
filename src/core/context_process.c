/* The process behind a context's name: how it is started, what its row says, and what its end
 * means.
 *
 * The note of the process is all that is stored of a context: no table has a row per context, and
 * nothing is written per execution. The youngest process of a context is the one that the name
 * points to; a few that have ended are kept for their journals. */
#include "core/context_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/json.h"
#include "telemetry/log.h"

#include <jansson.h>
#include <signal.h>

#define NOTE_START "{\"context\":\""

/* ---- the note ---- */

int context_note_write(const struct context *c, unsigned generation, const char *lost, bool spare,
                       struct buf *out)
{
    struct json j = JSON_INIT(out);
    struct msg_list env = msg_list_of(&c->env);
    uint32_t pos = 0;

    json_open(&j, '{');
    /* First: context_owns looks for it there. */
    json_member_cstr(&j, spare ? "spare" : "context", c->id);
    json_member_cstr(&j, "language", c->language_name);
    json_member_cstr(&j, "cwd", c->cwd);
    json_member_cstr(&j, "name", c->name);
    json_member_uint(&j, "generation", generation);
    json_member_uint(&j, "created_ms", c->created_ms);
    json_member_bool(&j, "any_cwd", c->any_cwd);
    json_member_cstr(&j, "lost", lost);
    json_key(&j, "env");
    json_open(&j, '[');
    for (const char *v; (v = msg_list_next(&env, &pos));)
        json_cstr(&j, v);
    json_close(&j, ']');
    json_close(&j, '}');
    return out->overflow || out->len > NOTE_MAX ? -1 : 0;
}

static void copy_text(char *to, size_t size, const json_t *from)
{
    snprintf(to, size, "%s", json_is_string(from) ? json_string_value(from) : "");
}

int context_note_read(const char *text, struct context_note *ret)
{
    *ret = (struct context_note){.env = MSG_LIST_WRITER_INIT};
    json_t *note = text ? json_loads(text, 0, NULL) : NULL;
    copy_text(ret->id, sizeof ret->id, json_object_get(note, "context"));
    if (!execution_id_is_valid(ret->id)) {
        json_decref(note);
        return -1;
    }

    copy_text(ret->language, sizeof ret->language, json_object_get(note, "language"));
    copy_text(ret->cwd, sizeof ret->cwd, json_object_get(note, "cwd"));
    copy_text(ret->name, sizeof ret->name, json_object_get(note, "name"));
    copy_text(ret->lost, sizeof ret->lost, json_object_get(note, "lost"));
    ret->generation = (unsigned)json_integer_value(json_object_get(note, "generation"));
    ret->created_ms = (uint64_t)json_integer_value(json_object_get(note, "created_ms"));
    ret->any_cwd = json_is_true(json_object_get(note, "any_cwd"));

    const json_t *env = json_object_get(note, "env");
    for (size_t i = 0; i < json_array_size(env); i++) {
        const char *v = json_string_value(json_array_get(env, i));
        if (v)
            (void)msg_list_add(&ret->env, v);
    }
    json_decref(note);
    return 0;
}

void context_note_done(struct context_note *n)
{
    msg_list_writer_done(&n->env);
}

bool context_owns(const struct context *c, const struct process *p)
{
    size_t start = strlen(NOTE_START), len = strlen(c->id);
    return p->driver && !p->unseen && p->note && !strncmp(p->note, NOTE_START, start) &&
           !strncmp(p->note + start, c->id, len) && p->note[start + len] == '"';
}

/* ---- finding ---- */

struct process *context_process(struct context *c)
{
    lock_take(&c->table->lock);
    bool has = c->has_process;
    struct wire_id id = c->process;
    lock_release(&c->table->lock);
    return has ? session_process_by_id(c->session, id) : NULL;
}

unsigned context_processes(struct context *c, struct process **ret, unsigned max)
{
    struct session *s = c->session;
    unsigned count = 0;

    /* Oldest first in the list; the last `max` are wanted. */
    lock_take(&s->lock);
    for (struct process *p = s->processes; p; p = p->next) {
        if (!context_owns(c, p))
            continue;
        if (count == max) {
            process_unref(ret[0]); /* the list has a reference, too */
            memmove(ret, ret + 1, (max - 1) * sizeof *ret);
            count--;
        }
        ret[count++] = process_ref(p);
    }
    lock_release(&s->lock);

    for (unsigned i = 0; i < count / 2; i++) {
        struct process *other = ret[i];
        ret[i] = ret[count - 1 - i];
        ret[count - 1 - i] = other;
    }
    return count;
}

void context_disown(struct process *p)
{
    struct session *s = p->session;
    struct store *store = s->all->c.store;
    struct pd_err e;

    /* The row first: a daemon that is killed now must not find the context again. */
    atomic_store(&p->unwanted, true);
    if (store->delete_process(store, p->id.bytes, &e) < 0)
        log_warn("context.delete", "session=%s error=%s", s->info.id, e.msg);
    lock_take(&s->lock);
    p->unseen = true;
    lock_release(&s->lock);

    if (process_state_is_live(process_state(p))) {
        context_await_copies(p);
        (void)process_stop(p, STOP_KILLED, &e);
    }
    session_trim(s);
}

/* Journals of processes that ended long ago are forgotten. */
static void forget_old(struct context *c)
{
    struct process *of[PROCESSES_OF + 4];
    unsigned count = context_processes(c, of, PROCESSES_OF + 4);
    for (unsigned i = 0; i < count; i++) {
        if (i > PROCESSES_OF && !process_state_is_live(process_state(of[i])))
            context_disown(of[i]);
        process_unref(of[i]);
    }
}

/* ---- starting ---- */

const char *const context_elsewhere[] = {"/home/user", "/", NULL};

/* Behind its length. */
int context_send_driver(const struct context_language *l, struct process *p, struct pd_err *e)
{
    size_t len = (size_t)(l->driver_end - l->driver);
    char head[32];
    int n = snprintf(head, sizeof head, "%zu\n", len);
    deadline d = deadline_in(SEND_PATIENCE);

    if (process_send(p, head, (size_t)n, NULL, 0, d, e) < 0)
        return -1;
    return process_send(p, l->driver, len, NULL, 0, d, e);
}

/* Could not be started because of its directory? */
static bool is_about_cwd(const struct pd_err *e)
{
    return e->code == PD_INVALID && !strncmp(e->msg, "working directory", 17);
}

static int find_ready(const struct context_event *v, uint64_t at, void *arg)
{
    (void)at;
    bool *ready = arg;
    *ready |= v->type == EVENT_READY;
    return *ready;
}

/* Any word may name a kernel of the bridge. Whether there is a bridge at all is known when it is
 * ready, or has ended. */
static int await_bridge(const struct context *c, struct process *p, struct pd_err *e)
{
    struct watch w;
    bool ready = false, live = true;
    deadline d = deadline_in(START_PATIENCE);
    if (process_watch(p, &w, e) < 0)
        return -1;

    do {
        watch_clear(&w);
        live = process_state_is_live(process_state(p));
        journal_each(p, find_ready, &ready);
    } while (!ready && live && watch_wait(&w, d));
    process_unwatch(p, &w);
    return ready ? 0 : pd_fail(e, PD_UNSUPPORTED, "%s", c->language->missing);
}

static int start_in(struct context *c, const char *cwd, const char *note, struct process **ret,
                    struct pd_err *e)
{
    const struct context_language *l = c->language;
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    bool known = false;
    int bad = 0;
    for (const char *const *word = l->argv; *word; word++)
        bad |= msg_list_add(&argv, *word);

    struct process_request r = {.argv = msg_list_of(&argv),
                                .env = msg_list_of(&c->env),
                                .usual = l->usual,
                                .cwd = cwd,
                                .driver = true,
                                .background = true,
                                .note = note};
    struct process *p = NULL;
    int result = bad ? pd_fail(e, PD_CAPACITY, "no memory for a context")
                     : session_start(c->session, &r, &p, &known, e);
    msg_list_writer_done(&argv);
    if (result < 0)
        return -1;

    if (process_await_pid(p, e) < 0) {
        context_disown(p);
        process_unref(p);
        return e->code == PD_NO_COMMAND || e->code == PD_NOT_EXECUTABLE
                   ? pd_fail(e, PD_UNSUPPORTED, "%s", l->missing)
                   : -1;
    }

    /* What it does not read is known when it has ended. */
    struct pd_err ignored;
    (void)context_send_driver(l, p, &ignored);
    if (!strcmp(l->name, "bridge") && await_bridge(c, p, e) < 0) {
        context_disown(p);
        process_unref(p);
        return -1;
    }
    *ret = p;
    return 0;
}

/* A new process takes the name. */
static int start_new(struct context *c, const char *lost, struct process **ret, struct pd_err *e)
{
    auto_buf note = BUF_INIT(2 * NOTE_MAX);
    lock_take(&c->table->lock);
    unsigned generation = c->generation + 1;
    lock_release(&c->table->lock);
    if (context_note_write(c, generation, lost, false, &note) < 0 || !buf_cstr(&note))
        return pd_fail(e, PD_TOO_LARGE, "the variables of a context are more than %u bytes",
                       NOTE_MAX);

    const char *text = buf_cstr(&note);
    struct process *p = NULL;
    int r = zygote_copy(c, text, &p, e);
    if (r < 0)
        r = start_in(c, c->cwd, text, &p, e);
    for (unsigned i = 0; r < 0 && c->any_cwd && is_about_cwd(e) && context_elsewhere[i]; i++)
        r = start_in(c, context_elsewhere[i], text, &p, e);
    if (r < 0)
        return -1;

    lock_take(&c->table->lock);
    bool gone = c->gone;
    c->generation = generation;
    c->process = p->id;
    c->has_process = true;
    c->count = 0;
    snprintf(c->lost, sizeof c->lost, "%s", lost);
    lock_release(&c->table->lock);
    if (gone) { /* deleted meanwhile, and nobody knew this one */
        context_disown(p);
        process_unref(p);
        return pd_fail(e, PD_NOT_FOUND, "context '%.64s' was deleted", c->id);
    }

    forget_old(c);
    *ret = p;
    return 0;
}

int context_start(struct context *c, struct process **ret, struct pd_err *e)
{
    lock_take(&c->table->lock);
    bool had = c->has_process;
    lock_release(&c->table->lock);

    struct process *p = context_process(c);
    if (p && process_state_is_live(process_state(p))) {
        *ret = p;
        return 0;
    }

    char lost[16] = "";
    if (p) {
        struct process_info i;
        char text[400];
        process_get(p, &i, NULL);
        context_explain_end(&i, "", lost, text, sizeof text);
    } else if (had) {
        snprintf(lost, sizeof lost, "slept"); /* its processes went away with the box */
    }
    process_unref(p);
    /* One that was asked for by its language counts from its first process on. */
    bool counts = c->is_default && !had;
    if (counts && context_count_start(c, e) < 0)
        return -1;
    int r = start_new(c, lost, ret, e);

    lock_take(&c->table->lock);
    c->is_starting = false;
    lock_release(&c->table->lock);
    return r;
}

/* ---- its end ---- */

void context_explain_end(const struct process_info *i, const char *known, char reason[16],
                         char *text, size_t size)
{
    const char *word = known;
    char how[200];

    if (i->signal)
        snprintf(how, sizeof how, "the interpreter was killed by signal %d (SIG%s)", i->signal,
                 sigabbrev_np(i->signal) ? sigabbrev_np(i->signal) : "?");
    else
        snprintf(how, sizeof how, "the code ended its interpreter with status %d", i->exit_code);

    if (!word[0])
        switch (i->stopped_by) {
        case STOP_TIMEOUT:
            word = "timeout";
            break;
        case STOP_OOM:
            word = "oom";
            break;
        case STOP_SANDBOX:
            word = "sandbox";
            break;
        case STOP_KILLED:
            word = "killed";
            break;
        default:
            word = i->signal ? "killed" : "exit";
            break;
        }

    snprintf(reason, 16, "%s", word);
    if (!strcmp(word, "timeout"))
        snprintf(text, size,
                 "the code did not end within its time, and did not heed the interrupt");
    else if (!strcmp(word, "interrupted"))
        snprintf(text, size, "the code did not heed the interrupt, and was killed");
    else if (!strcmp(word, "oom"))
        snprintf(text, size, "the memory of the sandbox was used up; %s", how);
    else if (!strcmp(word, "sandbox"))
        snprintf(text, size, "the sandbox has ended, or sleeps");
    else if (!strcmp(word, "restart"))
        snprintf(text, size, "the context was restarted");
    else if (!strcmp(word, "deleted"))
        snprintf(text, size, "the context was deleted");
    else if (!strcmp(word, "protocol"))
        snprintf(text, size, "the driver of the context said what cannot be read, and was ended");
    else
        snprintf(text, size, "%s", how);
}
