/* How this works: a sandbox that the router has chosen is marked when it is made. A job is entered
 * for each of its commands before it starts, with all that the request said, and marked when it has
 * ended; the thread takes the jobs of a sandbox in the order in which they were entered. For the
 * first one it makes the shadow: an ordinary sandbox of a tenant that nobody has a key of. It runs
 * the command there, compares both results (router/parity.h) and tells the router.
 *
 * A shadow has the files that its commands made, so it is worth something only as long as commands
 * alone change the sandbox, one after the other, with nothing but their words. Whatever else
 * happens (files are written from outside, two commands run at a time, one has input, a terminal or
 * is stopped by its client) ends the shadow; so does a command that goes to the network or
 * installs, which is never repeated.
 *
 * The files of both workspaces are compared by a digest, if the first has run nothing else by then:
 * otherwise they are compared after a later command.
 *
 * Bounds: JOBS_MAX jobs, TEXT_MAX bytes each, PAIRS_MAX shadows, ten times the time that the
 * command took and never more than TIME_MAX. A shadow is made only while a quarter of all places is
 * free. */
#include "core/shadow.h"

#include "core/session_state.h"
#include "core/shadow_tree.h"

#include "base/banned.h"
#include "base/err.h"
#include "router/parity.h"
#include "router/router.h"
#include "telemetry/log.h"

#define JOBS_MAX      32u
#define PAIRS_MAX     8u
#define TEXT_MAX      (64u << 10)
#define TIME_MAX      (60 * NS_PER_S)
#define TIME_LEAST    (10 * NS_PER_S)
#define LOOK_EVERY    NS_PER_S
#define SPOOL_MAX     (4u << 20)
#define SHADOW_TENANT "~shadow" /* no key can have it */

struct job {
    struct job *next;
    struct session *session; /* counted */
    struct process *process; /* counted */
    bool ended;
    char *command, *cwd; /* or NULL */
    struct msg_list_writer argv, env;
};

/* A sandbox and its shadow. The thread's alone. */
struct pair {
    struct session *primary; /* counted; NULL: this place is free */
    struct session *copy;    /* counted; NULL: not made yet */
};

struct shadows {
    struct sessions *all;
    struct lock lock; /* the jobs */
    pthread_cond_t cond;
    struct job *first, **last;
    unsigned count;
    bool stopping;
    struct pair pairs[PAIRS_MAX];
    pthread_t thread;
};

static void job_free(struct job *j)
{
    if (j->process)
        process_unref(j->process);
    session_unref(j->session);
    msg_list_writer_done(&j->argv);
    msg_list_writer_done(&j->env);
    free(j->command);
    free(j->cwd);
    free(j);
}

/* The mark of a session: the number of the rule, and the place of the provider. */
static uint64_t make_mark(unsigned rule, unsigned provider)
{
    return (uint64_t)rule << 32 | provider;
}

static unsigned rule_of(uint64_t mark)
{
    return (unsigned)(mark >> 32);
}

static void note(struct session *s, enum parity_event event, unsigned differs)
{
    router_note_shadow(s->all->c.router, rule_of(atomic_load(&s->shadow)), event, differs);
}

void shadow_give_up(struct session *s)
{
    uint64_t was = atomic_exchange(&s->shadow, 0);
    if (was)
        router_note_shadow(s->all->c.router, rule_of(was), PARITY_GIVEN_UP, 0);
}

/* ---- commands, on the threads of requests ---- */

/* Both begin with the same variables and directory: those of its request are not kept. */
static bool begins_plainly(struct session *s)
{
    lock_take(&s->lock);
    bool plain = !strcmp(s->cwd, "/workspace") && s->env.count == 0;
    lock_release(&s->lock);
    return plain;
}

void shadow_choose(struct session *s, const struct route_question *q)
{
    struct sessions *all = s->all;
    struct route_provider list[PROVIDERS_MAX];
    unsigned at = 0;
    bool isolated = s->info.spec.network == NETWORK_NONE && !s->info.spec.bind_count;
    if (!all->shadows || !isolated || s->info.mode == MODE_AUTO || s->info.spec.image[0] ||
        !strcmp(s->info.tenant, SHADOW_TENANT) || !begins_plainly(s))
        return;

    unsigned count = provider_table_describe_for(all->c.providers, &s->info.spec, list);
    unsigned rule =
        router_shadow(all->c.router, list, count, q, s->info.provider, s->info.rung, &at);
    if (rule)
        atomic_store(&s->shadow, make_mark(rule, at));
}

/* Is it one that can be repeated by its words alone? */
static bool is_repeatable(const struct process_request *r)
{
    size_t len = (r->command ? strlen(r->command) : 0) + r->argv.bytes + r->env.bytes;
    bool as_user = !r->user || !strcmp(r->user, "user");
    return as_user && !r->pty && !r->keep_stdin && !r->input_len && !r->background &&
           len <= TEXT_MAX;
}

static bool copy_list(const struct msg_list *from, struct msg_list_writer *to)
{
    uint32_t pos = 0;
    int bad = 0;

    for (const char *v; (v = msg_list_next(from, &pos));)
        bad |= msg_list_add(to, v);
    return bad == 0;
}

static struct job *job_new(struct process *p, const struct process_request *r)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;

    j->session = session_ref(p->session);
    j->process = process_ref(p);
    j->argv = j->env = MSG_LIST_WRITER_INIT;
    j->command = r->command ? strdup(r->command) : NULL;
    j->cwd = r->cwd ? strdup(r->cwd) : NULL;
    bool whole = copy_list(&r->env, &j->env) && (r->command || copy_list(&r->argv, &j->argv));
    if (!whole || (r->command && !j->command) || (r->cwd && !j->cwd)) {
        job_free(j);
        return NULL;
    }
    return j;
}

void shadow_command(struct process *p, const struct process_request *r)
{
    struct session *s = p->session;
    struct shadows *sh = s->all->shadows;

    lock_take(&s->lock);
    bool alone = s->running - s->looking <= 1;
    lock_release(&s->lock);
    struct job *j = alone && is_repeatable(r) ? job_new(p, r) : NULL;
    if (!j) {
        shadow_give_up(s);
        return;
    }

    lock_take(&sh->lock);
    bool room = sh->count < JOBS_MAX;
    if (room) {
        p->shadowed = true;
        *sh->last = j;
        sh->last = &j->next;
        sh->count++;
    }
    lock_release(&sh->lock);

    if (!room) {
        note(s, PARITY_DROPPED, 0);
        shadow_give_up(s);
        job_free(j);
    }
}

/* With the lock held. */
static struct job *unlink_job(struct shadows *sh, struct job **at)
{
    struct job *j = *at;

    *at = j->next;
    if (!*at)
        sh->last = at;
    sh->count--;
    return j;
}

static struct job **find_job(struct shadows *sh, const struct process *p)
{
    struct job **at = &sh->first;
    while (*at && (*at)->process != p)
        at = &(*at)->next;
    return at;
}

void shadow_cancel(struct process *p)
{
    struct shadows *sh = p->session->all->shadows;

    lock_take(&sh->lock);
    struct job **at = find_job(sh, p), *j = *at ? unlink_job(sh, at) : NULL;
    lock_release(&sh->lock);
    if (j)
        job_free(j);
}

void shadow_ended(struct process *p)
{
    struct shadows *sh = p->session->all->shadows;

    lock_take(&sh->lock);
    struct job *j = *find_job(sh, p);
    if (j)
        j->ended = true;
    pthread_cond_signal(&sh->cond);
    lock_release(&sh->lock);
}

/* ---- the thread ---- */

/* The first that has ended and is its sandbox's next; NULL: there is none. With the lock held. */
static struct job *take_ready(struct shadows *sh)
{
    for (struct job **at = &sh->first; *at; at = &(*at)->next) {
        bool next = (*at)->ended;
        for (struct job *k = sh->first; next && k != *at; k = k->next)
            next = k->session != (*at)->session;
        if (next)
            return unlink_job(sh, at);
    }
    return NULL;
}

static bool is_over(struct session *s)
{
    lock_take(&s->lock);
    bool over = s->lost || life_is_ending(s->life) || life_is_over(s->life);
    lock_release(&s->lock);
    return over;
}

static void end_pair(struct pair *p)
{
    struct pd_err e = {0};

    if (p->copy && session_end(p->copy, END_KILLED, "shadow", &e) < 0)
        log_warn("shadow.end", "id=%s error=%s", p->copy->info.id, e.msg);
    if (p->copy)
        session_unref(p->copy);
    session_unref(p->primary);
    *p = (struct pair){0};
}

/* It has a shadow, by a rule that still holds. */
static bool is_followed(struct session *s)
{
    unsigned rule = rule_of(atomic_load(&s->shadow));
    return rule && router_shadow_holds(s->all->c.router, rule);
}

/* How many are left. */
static unsigned end_idle_pairs(struct shadows *sh)
{
    unsigned left = 0;

    for (unsigned i = 0; i < PAIRS_MAX; i++) {
        struct pair *p = &sh->pairs[i];
        if (p->primary && (!is_followed(p->primary) || is_over(p->primary)))
            end_pair(p);
        left += p->primary != NULL;
    }
    return left;
}

static struct pair *pair_of(struct shadows *sh, struct session *primary)
{
    struct pair *free_one = NULL;

    for (unsigned i = 0; i < PAIRS_MAX; i++) {
        if (sh->pairs[i].primary == primary)
            return &sh->pairs[i];
        if (!sh->pairs[i].primary && !free_one)
            free_one = &sh->pairs[i];
    }
    if (free_one)
        free_one->primary = session_ref(primary);
    return free_one;
}

/* A shadow takes no place that somebody might ask for. */
static bool has_room(struct sessions *all)
{
    lock_take(&all->lock);
    unsigned max = all->c.max_sessions, taken = all->live + all->let_in;
    lock_release(&all->lock);
    return taken + 1 + max / 4 <= max;
}

static int make_copy(struct sessions *all, struct pair *p, struct pd_err *e)
{
    struct session *s = p->primary;
    uint64_t mark = atomic_load(&s->shadow);
    struct queue_place place;
    bool known;
    if (!mark)
        return pd_fail(e, PD_CONFLICT, "it was given up just now");

    struct session_request r = {.tenant = SHADOW_TENANT,
                                .provider = all->c.providers->list[(uint32_t)mark]->name,
                                .spec = s->info.spec,
                                .env = {.text = ""},
                                .idle_timeout_ms = s->info.idle_timeout_ms,
                                .max_life_ms = s->info.max_life_ms};
    r.spec.min_rung = s->info.rung;
    return sessions_create(all, &r, &p->copy, &known, &place, e);
}

static size_t read_output(struct process *p, unsigned stream, char *out)
{
    size_t len = 0;
    struct pd_err e;

    for (ssize_t n; len < PARITY_OUTPUT_MAX; len += (size_t)n)
        if ((n = process_read(p, stream, len, out + len, PARITY_OUTPUT_MAX - len, &e)) <= 0)
            break;
    return len;
}

struct outcome {
    struct process_info info;
    struct box_place place;
    char text[STREAM_COUNT][PARITY_OUTPUT_MAX];
    struct parity_result result;
};

/* False: a part of it is not kept. */
static bool read_outcome(struct process *p, struct outcome *o)
{
    bool whole = true;

    process_get(p, &o->info, NULL);
    bool placed = session_place(p->session, &o->place);
    o->result = (struct parity_result){.has_tree = false,
                                       .exit_code = o->info.exit_code,
                                       .signal = o->info.signal,
                                       .timed_out = o->info.stopped_by == STOP_TIMEOUT,
                                       .workspace = placed ? o->place.workspace : "/workspace",
                                       .home = placed ? o->place.home : "/home/user"};
    for (unsigned i = 0; i < STREAM_COUNT; i++) {
        size_t len = read_output(p, i, o->text[i]);
        uint64_t size = o->info.size[i];
        o->result.output[i] = (struct parity_output){o->text[i], len, size};
        whole &= len == (size < PARITY_OUTPUT_MAX ? size : PARITY_OUTPUT_MAX);
    }
    return whole && !o->info.forgotten;
}

/* Was it stopped by somebody, so that its result says nothing? */
static bool was_stopped(const struct process_info *i)
{
    return i->refused || i->stopped_by == STOP_TIMEOUT || i->stopped_by == STOP_ABANDONED ||
           i->stopped_by == STOP_KILLED || i->stopped_by == STOP_SANDBOX;
}

static bool goes_outside(const struct job *j)
{
    struct command_verdict v = {0};
    const unsigned outside = 1u << COMMAND_NETWORKS | 1u << COMMAND_INSTALLS;
    struct msg_list words = msg_list_of(&j->argv);

    if (j->command) {
        command_classify(j->command, "/workspace", &v);
    } else {
        const char **argv = calloc(words.count + 1, sizeof *argv);
        if (!argv)
            return true;
        uint32_t pos = 0;
        for (uint32_t i = 0; i < words.count; i++)
            argv[i] = msg_list_next(&words, &pos);
        command_classify_argv(argv, "/workspace", &v);
        free(argv);
    }
    return v.classes & outside;
}

/* Waits for its end, and stops it at the deadline. */
static void await(struct shadows *sh, struct process *p, deadline d)
{
    struct pd_err e;
    struct watch w;
    if (process_watch(p, &w, &e) < 0)
        return;

    for (;;) {
        lock_take(&sh->lock);
        bool stopping = sh->stopping;
        lock_release(&sh->lock);
        deadline look = deadline_in(LOOK_EVERY / 5);
        int r = process_wait(p, &w, -1, look < d ? look : d, &e);
        if (r == 0 || e.code != PD_TIMEOUT)
            break;
        if (stopping || deadline_passed(d)) {
            (void)process_stop(p, STOP_TIMEOUT, &e);
            (void)process_wait(p, &w, -1, deadline_in(NS_PER_S), &e);
            break;
        }
    }
    process_unwatch(p, &w);
}

static void tell(const struct job *j, const struct pair *p, const struct outcome *o,
                 unsigned differs)
{
    log_info("shadow.compare",
             "session=%s process=%s shadow=%s exit=%d stdout=%d stderr=%d time=%d files=%d",
             j->session->info.id, o->info.id, p->copy->info.provider, !!(differs & PARITY_EXIT),
             !!(differs & PARITY_STDOUT), !!(differs & PARITY_STDERR), !!(differs & PARITY_TIME),
             !!(differs & PARITY_FILES));
}

/* ---- files ---- */

/* The next command of this sandbox is on its way, or something else has changed it. */
static bool has_gone_on(struct shadows *sh, const struct session *s)
{
    lock_take(&sh->lock);
    struct job *j = sh->first;
    while (j && j->session != s)
        j = j->next;
    lock_release(&sh->lock);
    return j || !atomic_load(&s->shadow);
}

/* Where workspace and home are one directory, what programs keep in a home is there, too: names
 * that begin with a dot are then left out on both sides. */
static bool is_one_place(const struct outcome *o)
{
    return !strcmp(o->result.workspace, o->result.home);
}

/* What the workspace of the first has in it. Looked at while nothing else happens there: whatever
 * begins meanwhile is waited for by nobody, and makes the look worthless. */
static void look_at_first(struct shadows *sh, const struct job *j, struct outcome *o)
{
    struct parity_result *r = &o->result;
    if (has_gone_on(sh, j->session))
        return;

    r->has_tree = tree_digest(j->session, is_one_place(o), r->tree) == 1;
    if (has_gone_on(sh, j->session))
        r->has_tree = false;
}

/* The same of the shadow's. One that is too large where the first is not is another one. */
static void look_at_second(const struct pair *p, const struct outcome *first,
                           struct outcome *second)
{
    struct parity_result *r = &second->result;
    bool without_hidden = is_one_place(first);
    if (!first->result.has_tree || (is_one_place(second) && !without_hidden))
        return;

    int whole = tree_digest(p->copy, without_hidden, r->tree);
    if (whole == 0)
        memset(r->tree, 0, sizeof r->tree);
    r->has_tree = whole >= 0;
}

/* -1: it could not be run. */
static int repeat(struct shadows *sh, const struct job *j, const struct pair *p,
                  const struct outcome *first, struct outcome *second, struct pd_err *e)
{
    uint64_t time = first->info.duration_us * 1000 * 10 + TIME_LEAST;
    struct process_request r = {.command = j->command,
                                .argv = msg_list_of(&j->argv),
                                .env = msg_list_of(&j->env),
                                .cwd = j->cwd,
                                .spool_max = SPOOL_MAX};
    struct process *again;
    bool known;
    if (session_start(p->copy, &r, &again, &known, e) < 0)
        return -1;

    await(sh, again, deadline_in(time < TIME_MAX ? time : TIME_MAX));
    bool whole = read_outcome(again, second);
    bool stopped = was_stopped(&second->info) && !second->result.timed_out;
    process_unref(again);
    return whole && !stopped ? 0 : pd_fail(e, PD_LOST, "the shadow was stopped");
}

/* The shadow of a sandbox, made now if need be; NULL: there is none. */
static struct pair *need_pair(struct shadows *sh, struct job *j, struct pd_err *e)
{
    struct sessions *all = sh->all;
    struct pair *p = pair_of(sh, j->session);

    if (!p || (!p->copy && !has_room(all))) {
        note(j->session, PARITY_DROPPED, 0);
        return NULL;
    }
    if (!p->copy && make_copy(all, p, e) < 0) {
        p->copy = NULL;
        note(j->session, PARITY_FAILED, 0);
        log_warn("shadow.make", "session=%s error=%s", j->session->info.id, e->msg);
        return NULL;
    }
    return p;
}

/* False: the shadow cannot follow any more. */
static bool follow(struct shadows *sh, struct job *j, struct outcome both[2])
{
    struct pd_err e = {0};
    if (goes_outside(j)) {
        note(j->session, PARITY_SKIPPED, 0);
        return false;
    }
    if (!read_outcome(j->process, &both[0]) || was_stopped(&both[0].info))
        return false;
    look_at_first(sh, j, &both[0]);

    struct pair *p = need_pair(sh, j, &e);
    if (!p)
        return false;
    if (repeat(sh, j, p, &both[0], &both[1], &e) < 0) {
        note(j->session, PARITY_FAILED, 0);
        log_warn("shadow.run", "session=%s error=%s", j->session->info.id, e.msg);
        return false;
    }

    look_at_second(p, &both[0], &both[1]);
    unsigned differs = parity_compare(&both[0].result, &both[1].result);
    note(j->session, PARITY_COMPARED, differs);
    if (differs & ~(unsigned)PARITY_UNSEEN)
        tell(j, p, &both[0], differs);
    return !(differs & PARITY_TIME);
}

static int end_leftover(struct session *s, void *arg)
{
    struct pd_err e;

    (void)arg;
    if (!strcmp(s->info.tenant, SHADOW_TENANT))
        (void)session_end(s, END_KILLED, "shadow", &e);
    return 0;
}

static void *shadow_main(void *arg)
{
    struct shadows *sh = arg;
    struct outcome *both = calloc(2, sizeof *both);

    sessions_each(sh->all, end_leftover, NULL); /* of an earlier daemon */
    lock_take(&sh->lock);
    while (!sh->stopping && both) {
        struct job *j = take_ready(sh);
        lock_release(&sh->lock);

        if (j) {
            if (!is_followed(j->session) || !follow(sh, j, both))
                shadow_give_up(j->session);
            job_free(j);
        }
        unsigned pairs = end_idle_pairs(sh);

        lock_take(&sh->lock);
        if (!j && !sh->stopping)
            (void)lock_wait(&sh->cond, &sh->lock, pairs ? deadline_in(LOOK_EVERY) : DEADLINE_NONE);
    }
    lock_release(&sh->lock);
    free(both);
    return NULL;
}

int shadows_start(struct sessions *all, struct pd_err *e)
{
    struct shadows *sh = calloc(1, sizeof *sh);
    if (!sh)
        return pd_fail(e, PD_CAPACITY, "no memory for shadows");

    sh->all = all;
    sh->last = &sh->first;
    lock_init(&sh->lock, LOCK_SHADOWS);
    cond_init(&sh->cond);
    if (sessions_start_thread(&sh->thread, shadow_main, sh) != 0) {
        free(sh);
        return pd_fail(e, PD_CAPACITY, "no thread for shadows");
    }
    all->shadows = sh;
    return 0;
}

void shadows_stop(struct sessions *all)
{
    struct shadows *sh = all->shadows;
    if (!sh)
        return;

    lock_take(&sh->lock);
    sh->stopping = true;
    pthread_cond_signal(&sh->cond);
    lock_release(&sh->lock);
    pthread_join(sh->thread, NULL);
}

void shadows_free(struct sessions *all)
{
    struct shadows *sh = all->shadows;
    if (!sh)
        return;

    while (sh->first)
        job_free(unlink_job(sh, &sh->first));
    for (unsigned i = 0; i < PAIRS_MAX; i++) {
        if (sh->pairs[i].copy)
            session_unref(sh->pairs[i].copy);
        if (sh->pairs[i].primary)
            session_unref(sh->pairs[i].primary);
    }

    lock_done(&sh->lock);
    pthread_cond_destroy(&sh->cond);
    free(sh);
}
