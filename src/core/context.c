/* The contexts of a session: the table, names and languages, and what is known of each. The table
 * is made when a session first has to do with contexts; most sessions never do.
 *
 * The default context of a language has the language's name as its id. So it is the same for every
 * client and every daemon, and needs no row before it has a process. */
#include "core/context_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <ctype.h>
#include <signal.h>
#include <sys/eventfd.h>

const char *context_state_name(enum context_state s)
{
    static const char *const names[] = {"cold", "idle", "busy"};
    return (unsigned)s < sizeof names / sizeof *names ? names[s] : "unknown";
}

/* ---- the table ---- */

struct contexts *contexts_of(struct session *s, struct pd_err *e)
{
    struct contexts *t = atomic_load(&s->contexts), *none = NULL;
    if (t)
        return t;

    t = calloc(1, sizeof *t);
    if (!t) {
        pd_fail(e, PD_CAPACITY, "no memory for a context");
        return NULL;
    }
    lock_init(&t->lock, LOCK_CONTEXTS);
    if (atomic_compare_exchange_strong(&s->contexts, &none, t))
        return t;

    contexts_done(t); /* somebody else was faster */
    return none;
}

void contexts_done(struct contexts *t)
{
    if (!t)
        return;

    while (t->list) {
        struct context *c = t->list;
        t->list = c->next;
        context_unref(c);
    }
    lock_done(&t->lock);
    free(t);
}

void context_add(struct context *c)
{
    struct context **at = &c->table->list;
    /* Default ones are there from the start, as far as clients see: before all others. */
    while (*at && (!c->is_default || (*at)->is_default))
        at = &(*at)->next;
    c->next = *at;
    *at = context_ref(c);
}

static struct context *look_for(struct contexts *t, const char *id)
{
    for (struct context *c = t->list; c; c = c->next)
        if (!strcmp(c->id, id))
            return c;
    return NULL;
}

/* ---- one context ---- */

struct context *context_ref(struct context *c)
{
    atomic_fetch_add(&c->refs, 1);
    return c;
}

void context_unref(struct context *c)
{
    if (!c || atomic_fetch_sub(&c->refs, 1) != 1)
        return;

    while (c->kept) {
        struct execution *x = c->kept;
        c->kept = x->next_kept;
        execution_unref(x);
    }
    while (c->line) {
        struct execution *x = c->line;
        c->line = x->next;
        execution_unref(x);
    }
    msg_list_writer_done(&c->env);
    free(c->cwd);
    free(c->name);
    free(c);
}

/* The row of a language, and its name as it is told: lower case, without blanks around it. A name
 * that is in no row is a kernel's, for the bridge. */
static const struct context_language *find_language(const char *text, char name[64],
                                                    struct pd_err *e)
{
    size_t len = strlen(text);
    while (len && isspace((unsigned char)text[0])) {
        text++;
        len--;
    }
    while (len && isspace((unsigned char)text[len - 1]))
        len--;

    const struct context_language *l = context_language_find(text, len);
    if (l && strcmp(l->name, "bridge") != 0) {
        snprintf(name, 64, "%s", l->name);
        return l;
    }

    for (size_t i = 0; i < len && len < 64; i++)
        name[i] = (char)tolower((unsigned char)text[i]);
    if (len < 64)
        name[len] = 0;
    l = context_language_find("bridge", strlen("bridge"));
    if (l && len && len < 64 && execution_id_is_valid(name))
        return l;

    auto_buf known = BUF_INIT(200);
    for (size_t i = 0; i < context_language_count(); i++)
        if (strcmp(context_language_at(i)->name, "bridge") != 0)
            buf_printf(&known, "%s%s", known.len ? ", " : "", context_language_at(i)->name);
    pd_fail(e, PD_UNSUPPORTED, "language '%.*s': there are %s", len > 60 ? 60 : (int)len, text,
            buf_cstr(&known) ? buf_cstr(&known) : "none");
    return NULL;
}

static int copy_env(struct context *c, const struct msg_list *env)
{
    uint32_t pos = 0;
    int bad = 0;
    for (const char *v; (v = msg_list_next(env, &pos));)
        bad |= msg_list_add(&c->env, v);
    return bad;
}

struct context *context_new(struct contexts *t, struct session *s, const char *id,
                            const struct context_request *r, struct pd_err *e)
{
    char name[64] = "", cwd[SPEC_PATH_MAX];
    const struct context_language *l =
        find_language(r->language && r->language[0] ? r->language : "python", name, e);
    if (!l)
        return NULL;

    lock_take(&s->lock);
    snprintf(cwd, sizeof cwd, "%s", r->cwd ? r->cwd : s->cwd);
    lock_release(&s->lock);

    struct context *c = calloc(1, sizeof *c);
    if (!c) {
        pd_fail(e, PD_CAPACITY, "no memory for a context");
        return NULL;
    }
    atomic_init(&c->refs, 1);
    c->table = t;
    c->session = s;
    c->language = l;
    c->env = MSG_LIST_WRITER_INIT;
    c->any_cwd = r->any_cwd;
    c->created_ms = time_now_ms();
    memcpy(c->language_name, name, sizeof name);
    c->cwd = strdup(cwd);
    c->name = strdup(r->name ? r->name : "");

    char fresh[ID_SANDBOX_LEN + 1];
    id_sandbox(fresh);
    snprintf(c->id, sizeof c->id, "%s", id ? id : fresh);
    c->is_default = !strcmp(c->id, c->language_name);

    if (!c->cwd || !c->name || copy_env(c, &r->env)) {
        context_unref(c);
        pd_fail(e, PD_CAPACITY, "no memory for a context");
        return NULL;
    }
    return c;
}

/* What the first event says, `ready`. */
static int note_memory(const struct context_event *v, uint64_t at, void *arg)
{
    (void)at;
    uint64_t *memory = arg;
    *memory = v->memory;
    return 1;
}

static uint64_t memory_of(struct process *p)
{
    uint64_t memory = atomic_load(&p->memory);
    if (!memory)
        journal_each(p, note_memory, &memory);
    return memory;
}

void context_get(struct context *c, struct context_info *ret)
{
    *ret = (struct context_info){.is_default = c->is_default, .created_ms = c->created_ms};
    snprintf(ret->id, sizeof ret->id, "%s", c->id);
    snprintf(ret->language, sizeof ret->language, "%s", c->language_name);
    snprintf(ret->name, sizeof ret->name, "%.*s", (int)CONTEXT_NAME_MAX, c->name);
    snprintf(ret->cwd, sizeof ret->cwd, "%s", c->cwd);

    struct process *p = context_process(c);
    struct process_info i = {0};
    if (p)
        process_get(p, &i, NULL);
    if (i.running)
        ret->memory = memory_of(p);
    process_unref(p);

    lock_take(&c->table->lock);
    ret->execution_count = i.running ? c->count : 0;
    for (const struct execution *x = c->line; x; x = x->next)
        ret->waiting += x != c->line;
    ret->state = c->line ? CONTEXT_BUSY : i.running ? CONTEXT_IDLE : CONTEXT_COLD;
    lock_release(&c->table->lock);
    ret->pid = i.running ? i.pid : 0;
}

/* ---- watching ---- */

void context_wake(struct context *c)
{
    uint64_t one = 1;
    for (const struct context_watch *w = c->watches; w; w = w->next)
        (void)!write(w->event, &one, sizeof one);
}

int context_watch_begin(struct context *c, struct context_watch **ret, struct pd_err *e)
{
    struct context_watch *w = calloc(1, sizeof *w);
    if (!w)
        return pd_fail(e, PD_CAPACITY, "no memory to watch a context");
    w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->event < 0) {
        free(w);
        return pd_fail_sys(e, "watch a context");
    }

    lock_take(&c->table->lock);
    w->next = c->watches;
    c->watches = w;
    lock_release(&c->table->lock);
    *ret = w;
    return 0;
}

void context_watch_end(struct context *c, struct context_watch *w)
{
    if (!w)
        return;

    lock_take(&c->table->lock);
    struct context_watch **at = &c->watches;
    while (*at && *at != w)
        at = &(*at)->next;
    if (*at)
        *at = w->next;
    lock_release(&c->table->lock);

    fd_done(&w->event);
    free(w);
}

/* ---- finding and making ---- */

/* With the lock held. */
static unsigned count_started(const struct contexts *t)
{
    unsigned n = 0;
    for (const struct context *c = t->list; c; c = c->next)
        n += !c->is_default || c->has_process || c->is_starting;
    return n;
}

static unsigned most_of(struct session *s)
{
    lock_take(&s->all->lock);
    unsigned most = s->all->c.contexts_max ? s->all->c.contexts_max : CONTEXTS_DEFAULT;
    lock_release(&s->all->lock);
    return most;
}

static int refuse_more(const struct session *s, unsigned most, struct pd_err *e)
{
    return pd_fail(e, PD_CONFLICT,
                   "sandbox %s has %u contexts, which is all that it may have: "
                   "delete one first (setting contexts_max)",
                   s->info.id, most);
}

int context_check_room(struct session *s, struct pd_err *e)
{
    struct contexts *t = contexts_of(s, e);
    if (!t)
        return -1;

    unsigned most = most_of(s);
    lock_take(&t->lock);
    bool full = count_started(t) >= most;
    lock_release(&t->lock);
    return full ? refuse_more(s, most, e) : 0;
}

int context_check_usable(struct context *c, struct pd_err *e)
{
    lock_take(&c->session->lock);
    int r = session_usable(c->session, e);
    lock_release(&c->session->lock);
    return r;
}

int context_add_within(struct context *c, struct pd_err *e)
{
    unsigned most = most_of(c->session);
    lock_take(&c->table->lock);
    bool full = count_started(c->table) >= most;
    if (!full)
        context_add(c);
    lock_release(&c->table->lock);
    return full ? refuse_more(c->session, most, e) : 0;
}

int context_count_start(struct context *c, struct pd_err *e)
{
    unsigned most = most_of(c->session);
    lock_take(&c->table->lock);
    bool full = count_started(c->table) >= most;
    c->is_starting = !full;
    lock_release(&c->table->lock);
    return full ? refuse_more(c->session, most, e) : 0;
}

int context_create(struct session *s, const struct context_request *r, struct context **ret,
                   struct pd_err *e)
{
    struct contexts *t = contexts_of(s, e);
    if (!t || context_check_room(s, e) < 0)
        return -1;
    struct context *c = context_new(t, s, NULL, r, e);
    if (!c)
        return -1;

    if (context_add_within(c, e) < 0) {
        context_unref(c);
        return -1;
    }
    struct process *p = NULL;
    if (context_start(c, &p, e) < 0) {
        struct pd_err ignored;
        (void)context_delete(c, &ignored);
        context_unref(c);
        return -1;
    }
    process_unref(p);
    *ret = c;
    return 0;
}

/* The context of that id, or a new one of the language that the id is. */
static struct context *find_or_add(struct session *s, const char *id,
                                   const struct context_request *r, struct pd_err *e)
{
    struct contexts *t = contexts_of(s, e);
    if (!t)
        return NULL;

    lock_take(&t->lock);
    struct context *found = look_for(t, id);
    if (found)
        context_ref(found);
    lock_release(&t->lock);
    if (found || !r)
        return found;

    struct context *c = context_new(t, s, id, r, e);
    if (!c)
        return NULL;
    lock_take(&t->lock);
    found = look_for(t, id);
    if (found)
        context_ref(found);
    else
        context_add(c);
    lock_release(&t->lock);

    if (!found)
        return c;
    context_unref(c);
    return found;
}

struct context *context_of_language(struct session *s, const struct context_request *r,
                                    struct pd_err *e)
{
    char name[64] = "";
    const char *asked = r->language && r->language[0] ? r->language : "python";
    if (!find_language(asked, name, e))
        return NULL;

    struct context_request named = *r;
    named.language = name;
    return find_or_add(s, name, &named, e);
}

struct context *context_find(struct session *s, const char *id, const struct context_request *r,
                             struct pd_err *e)
{
    struct context *found = find_or_add(s, id, NULL, e);
    char name[64];
    struct pd_err ignored;
    if (found)
        return found;

    /* Not the bridge's: every wrong id would be the name of a kernel. */
    const struct context_language *l = find_language(id, name, &ignored);
    if (r && l && strcmp(l->name, "bridge") != 0) {
        struct context_request named = *r;
        named.language = name;
        return context_of_language(s, &named, e);
    }
    pd_fail(e, PD_NOT_FOUND,
            "there is no context '%.64s' in sandbox %s: GET .../contexts lists them", id,
            s->info.id);
    return NULL;
}

int contexts_list(struct session *s, const struct context_request *r, struct context ***ret,
                  unsigned *ret_count, struct pd_err *e)
{
    struct contexts *t = contexts_of(s, e);
    if (!t)
        return -1;

    for (size_t i = 0; r && i < context_language_count(); i++) {
        struct context_request named = *r;
        named.language = context_language_at(i)->name;
        struct context *c =
            context_language_at(i)->listed ? context_of_language(s, &named, e) : NULL;
        context_unref(c);
    }

    lock_take(&t->lock);
    unsigned count = 0;
    for (const struct context *c = t->list; c; c = c->next)
        count++;
    struct context **list = calloc(count ? count : 1, sizeof *list);
    count = 0;
    for (struct context *c = t->list; c && list; c = c->next)
        list[count++] = context_ref(c);
    lock_release(&t->lock);

    if (!list)
        return pd_fail(e, PD_CAPACITY, "no memory for a list");
    *ret = list;
    *ret_count = count;
    return 0;
}

void contexts_free(struct context **list, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        context_unref(list[i]);
    free(list);
}

/* ---- ending ---- */

/* With the lock held: whatever runs is over, because of this. */
static void give_up_running(struct context *c, const char *reason)
{
    struct execution *x = c->line;
    if (x && x->state == EXECUTION_RUNNING && !x->reason[0])
        snprintf(x->reason, sizeof x->reason, "%s", reason);
}

int context_delete(struct context *c, struct pd_err *e)
{
    struct contexts *t = c->table;
    struct process *of[PROCESSES_OF + 2];
    bool first = false;

    lock_take(&t->lock);
    for (struct context **at = &t->list; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            c->next = NULL;
            first = true;
            break;
        }
    c->gone = true;
    give_up_running(c, "deleted");
    context_wake(c);
    lock_release(&t->lock);
    if (!first)
        return pd_fail(e, PD_NOT_FOUND, "context '%.64s' was deleted already", c->id);

    context_drop_spares(c);
    unsigned count = context_processes(c, of, PROCESSES_OF + 2);
    for (unsigned i = 0; i < count; i++) {
        context_disown(of[i]);
        process_unref(of[i]);
    }
    context_unref(c);
    return 0;
}

void context_forget_unused(struct context *c)
{
    struct pd_err ignored;
    lock_take(&c->table->lock);
    bool unused = c->is_default && !c->has_process && !c->line && !c->language->listed && !c->gone;
    lock_release(&c->table->lock);
    if (unused)
        (void)context_delete(c, &ignored);
}

int context_restart(struct context *c, struct pd_err *e)
{
    struct process *p = context_process(c);
    lock_take(&c->table->lock);
    bool gone = c->gone;
    give_up_running(c, "restart");
    c->restarts++;
    c->has_process = false;
    c->lost[0] = 0;
    c->count = 0;
    lock_release(&c->table->lock);

    int r = gone ? pd_fail(e, PD_NOT_FOUND, "context '%.64s' was deleted", c->id) : 0;
    if (r == 0)
        context_drop_spares(c);
    if (r == 0 && p && process_state_is_live(process_state(p))) {
        context_await_copies(p);
        r = process_signal(p, SIGKILL, e);
    }
    process_unref(p);
    return r;
}

bool context_interrupt(struct context *c)
{
    lock_take(&c->table->lock);
    struct execution *x = c->line;
    bool runs = x && x->state == EXECUTION_RUNNING;
    if (runs && !x->is_unwanted) {
        x->is_unwanted = true;
        snprintf(x->reason, sizeof x->reason, "interrupted");
    }
    context_wake(c);
    lock_release(&c->table->lock);
    return runs;
}
