/* A zygote is a driver in which no cell ever ran, with libraries imported. A sandbox that was kept
 * ready for code has one (pool.c), and its contexts of that language, when they start and when they
 * start anew, are copies of it: a few milliseconds, and memory only for what they change.
 *
 * A copy must be what a new interpreter would be. So it gets the environment and the directory that
 * one would get; variables that steer an interpreter while it starts, and libraries that were
 * installed since, mean that it is not copied (the driver looks at the latter itself). Whatever the
 * reason, who gets no copy starts an interpreter as if there were no zygote.
 *
 * It is the sandbox's own process: nobody's before the sandbox is somebody's, and never another's.
 * In no list, and no use of the sandbox. */
#include "core/context_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/json.h"
#include "telemetry/log.h"

#include <poll.h>

#define ZYGOTE_NOTE     "{\"zygote\":\"python\"}"
#define IMPORT_ID       "import"
#define IMPORT_PATIENCE (60 * NS_PER_S)
#define STOP_LOOK       (NS_PER_S / 5)

static const struct context_language *zygote_language(void)
{
    return context_language_find("python", strlen("python"));
}

/* ---- making one ---- */

/* How far the imports are. */
struct imports {
    bool ended, failed;
    char why[200];
};

static int note_import(const struct context_event *v, uint64_t at, void *arg)
{
    struct imports *i = arg;
    (void)at;
    if (strcmp(v->id, IMPORT_ID) != 0)
        return 0;
    if (v->type == EVENT_ERROR) {
        auto_buf why = BUF_INIT(EVENT_MAX);
        i->failed = true;
        (void)json_piece_decode(&v->value, &why);
        snprintf(i->why, sizeof i->why, "%s", buf_cstr(&why) ? buf_cstr(&why) : "");
    }
    i->ended |= v->type == EVENT_END;
    return i->ended;
}

/* The server does not wait for libraries when it stops. */
static bool is_stopping(struct sessions *all)
{
    lock_take(&all->lock);
    bool stops = all->stopping || !all->c.contexts_warm_pool;
    lock_release(&all->lock);
    return stops;
}

static int await_imports(struct process *p, struct pd_err *e)
{
    struct sessions *all = p->session->all;
    struct imports i = {.ended = false};
    struct watch w;
    deadline d = deadline_in(IMPORT_PATIENCE);
    bool live = true, stops = false;
    if (process_watch(p, &w, e) < 0)
        return -1;

    while (!i.ended && live && !stops && !deadline_passed(d)) {
        watch_clear(&w);
        live = process_state_is_live(process_state(p));
        journal_each(p, note_import, &i);
        stops = is_stopping(all);
        if (!i.ended && live && !stops)
            (void)watch_wait(&w, deadline_in(STOP_LOOK));
    }
    process_unwatch(p, &w);

    if (!i.ended)
        return pd_fail(e, live ? PD_TIMEOUT : PD_UNSUPPORTED, "%s",
                       stops  ? "the server stops"
                       : live ? "the libraries of contexts_warm were not imported in time"
                              : zygote_language()->missing);
    if (i.failed)
        log_warn("zygote.import", "session=%s error=%s", p->session->info.id, i.why);
    return 0;
}

int zygote_start(struct session *s, const char *modules, struct pd_err *e)
{
    const struct context_language *l = zygote_language();
    struct contexts *t = contexts_of(s, e);
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    auto_buf line = BUF_INIT(16384);
    bool known = false;
    int bad = request_import(IMPORT_ID, modules, &line);
    for (const char *const *word = l->argv; *word; word++)
        bad |= msg_list_add(&argv, *word);

    struct process_request r = {.argv = msg_list_of(&argv),
                                .env = {.text = ""},
                                .usual = l->usual,
                                .cwd = "/",
                                .driver = true,
                                .background = true,
                                .unseen = true,
                                .looks = true,
                                .note = ZYGOTE_NOTE};
    struct process *p = NULL;
    int result = !t    ? -1
                 : bad ? pd_fail(e, PD_CAPACITY, "no memory for a zygote")
                       : session_start(s, &r, &p, &known, e);
    msg_list_writer_done(&argv);
    if (result < 0)
        return -1;

    result = process_await_pid(p, e);
    if (result == 0)
        result = context_send_driver(l, p, e);
    if (result == 0)
        result = process_send(p, line.data, line.len, NULL, 0, deadline_in(SEND_PATIENCE), e);
    if (result == 0)
        result = await_imports(p, e);
    if (result == 0)
        zygote_adopt(s, p);
    else
        context_disown(p);
    process_unref(p);
    return result;
}

bool zygote_adopt(struct session *s, struct process *p)
{
    struct pd_err ignored;
    struct contexts *t = contexts_of(s, &ignored);
    if (!t || !p->note || strcmp(p->note, ZYGOTE_NOTE) != 0 ||
        !process_state_is_live(process_state(p)))
        return false;

    /* A row does not tell these. */
    lock_take(&s->lock);
    p->unseen = true;
    s->looking += !p->looks;
    p->looks = true;
    lock_release(&s->lock);

    lock_take(&t->lock);
    t->zygote = p->id;
    t->has_zygote = true;
    lock_release(&t->lock);
    return true;
}

/* ---- copies ---- */

static void give_zygote(struct contexts *t, struct process *p)
{
    bool lives = p && process_state_is_live(process_state(p));
    lock_take(&t->lock);
    t->zygote_busy = false;
    t->has_zygote &= lives;
    lock_release(&t->lock);
    process_unref(p);
}

/* The zygote, for one at a time: nobody waits for another's copy. NULL: none that lives, or it is
 * just being copied. */
static struct process *take_zygote(struct contexts *t, struct session *s)
{
    lock_take(&t->lock);
    bool mine = t->has_zygote && !t->zygote_busy;
    t->zygote_busy |= mine;
    struct wire_id id = t->zygote;
    lock_release(&t->lock);
    if (!mine)
        return NULL;

    struct process *p = session_process_by_id(s, id);
    if (p && process_state_is_live(process_state(p)))
        return p;
    give_zygote(t, p);
    return NULL;
}

static void forget_zygote(struct contexts *t)
{
    lock_take(&t->lock);
    t->has_zygote = false;
    lock_release(&t->lock);
}

void zygote_end(struct session *s)
{
    struct contexts *t = atomic_load(&s->contexts);
    struct process *p = t ? take_zygote(t, s) : NULL;
    if (!p)
        return;

    context_disown(p);
    forget_zygote(t);
    give_zygote(t, p);
}

/* Does the variable mean something to an interpreter or a library while it starts? */
static bool steers(const char *variable)
{
    static const char *const starts[] = {
        "PYTHON",    "LD_",  "LC_",   "LANG", "HOME=",   "XDG_",   "MPL",     "OMP_",
        "OPENBLAS_", "MKL_", "BLIS_", "GOTO", "MALLOC_", "GLIBC_", "NUMEXPR_"};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (!strncmp(variable, starts[i], strlen(starts[i])))
            return true;
    return strcspn(variable, "=") > REQUEST_NAME_MAX;
}

static bool any_steers(const struct msg_list *env)
{
    uint32_t pos = 0;
    for (const char *v; (v = msg_list_next(env, &pos));)
        if (steers(v))
            return true;
    return false;
}

/* What a new process of the context would have. False: it has to be a new one. */
static bool describe_fresh(struct context *c, struct msg_list_writer *env, char cwd[SPEC_PATH_MAX])
{
    struct session *s = c->session;
    struct process_request r = {.env = msg_list_of(&c->env)};
    struct box_place where;
    const struct box_place *place = session_place(s, &where) ? &where : NULL;

    lock_take(&s->lock);
    struct msg_list own = msg_list_of(&s->env);
    bool may = !any_steers(&own) && !any_steers(&r.env) &&
               session_environment(s, &r, place, env) == 0 &&
               place_path(place, c->cwd, cwd, SPEC_PATH_MAX) == 0;
    lock_release(&s->lock);
    return may;
}

int zygote_copy(struct context *c, const char *note, struct process **ret, struct pd_err *e)
{
    struct contexts *t = c->table;
    struct process *zygote = c->language == zygote_language() ? take_zygote(t, c->session) : NULL;
    if (!zygote)
        return pd_fail(e, PD_NOT_FOUND, "there is no zygote");

    struct msg_list_writer env = MSG_LIST_WRITER_INIT;
    char cwd[SPEC_PATH_MAX];
    int r = pd_fail(e, PD_UNSUPPORTED, "its variables steer an interpreter");
    if (describe_fresh(c, &env, cwd)) {
        struct msg_list variables = msg_list_of(&env);
        struct fork_request how = {.env = &variables, .cwd = cwd, .any_cwd = c->any_cwd};
        r = context_copy_process(c, zygote, note, &how, ret, e);
    }
    if (r < 0 && e->code == PD_TIMEOUT) { /* the code has stopped it: nobody is to wait again */
        context_disown(zygote);
        forget_zygote(t);
    }
    msg_list_writer_done(&env);
    give_zygote(t, zygote);
    return r;
}
