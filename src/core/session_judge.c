/* Where a command may run, by the mode that was asked for it, or that its session was made with.
 *
 * A session has one provider at a time. `local` is for sessions at that provider; `sandbox` for all
 * that isolate; with `auto` the line is judged before it runs (router/command_class.h), by the
 * directory that it starts in and the variables that it finds as well. A session that isolates too
 * little for it is moved to the cheapest provider that isolates enough, and stays there: isolation
 * only grows. So what was run in the meantime without a judgement was run with more of it.
 *
 * A judgement holds for the box, the directory and the variables that it has seen. Others may
 * change them at any time, so it is looked at again where the command starts (judgement_holds), and
 * made anew if it does not hold. */
#include "core/session_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "router/router.h"

#define WORKSPACE "/workspace"

bool judgement_holds(const struct session *s, const struct judgement *j)
{
    return !j->is_judged || (s->info.rung >= j->need && wire_id_equal(s->box_id, j->box_id) &&
                             (!j->by_state || s->shell_version == j->shell_version));
}

/* ---- what the line is about to do ---- */

/* It starts in a place, or with variables, that the words of its line do not tell of. */
static void doubt(struct command_verdict *v, const char *what, const char *why)
{
    v->what = COMMAND_UNKNOWN;
    v->classes |= 1u << COMMAND_UNKNOWN;
    snprintf(v->reason, sizeof v->reason, "'%.100s' %s", what, why);
}

/* A variable that programs go by, or NULL. */
static const char *find_harm(const struct msg_list *env)
{
    uint32_t pos = 0;

    for (const char *v; (v = msg_list_next(env, &pos));)
        if (!command_variable_is_harmless(v))
            return v;
    return NULL;
}

static bool is_in_workspace(const char *dir, const char *workspace)
{
    size_t len = strlen(workspace);
    return len && !strncmp(dir, workspace, len) && (!dir[len] || dir[len] == '/') &&
           !strstr(dir, "..");
}

static int classify_argv(const struct msg_list *list, const char *workspace,
                         struct command_verdict *ret, struct pd_err *e)
{
    const char **argv = calloc(list->count + 1, sizeof *argv);
    if (!argv)
        return pd_fail(e, PD_CAPACITY, "no memory");

    uint32_t pos = 0;
    for (uint32_t i = 0; i < list->count; i++)
        argv[i] = msg_list_next(list, &pos);
    command_classify_argv(argv, workspace, ret);
    free(argv);
    return 0;
}

/* Paths in a line are the box's own: where its workspace is elsewhere, /workspace is no part of it.
 * A directory that was asked for is in a jail's terms, or in the box's. */
static int classify(struct session *s, const struct process_request *r, struct judgement *j,
                    struct command_verdict *ret, struct pd_err *e)
{
    char cwd[SPEC_PATH_MAX], variable[64] = "";
    struct box_place place;

    const char *workspace = session_place(s, &place) ? place.workspace : WORKSPACE;

    if (r->command)
        command_classify(r->command, workspace, ret);
    else if (classify_argv(&r->argv, workspace, ret, e) < 0)
        return -1;

    lock_take(&s->lock);
    j->shell_version = s->shell_version;
    snprintf(cwd, sizeof cwd, "%s", r->cwd ? r->cwd : s->cwd);
    struct msg_list env = msg_list_of(&s->env);
    const char *harm = find_harm(&env);
    if (harm)
        snprintf(variable, sizeof variable, "%.*s", (int)strcspn(harm, "="), harm);
    lock_release(&s->lock);

    if (!harm && (harm = find_harm(&r->env)))
        snprintf(variable, sizeof variable, "%.*s", (int)strcspn(harm, "="), harm);
    if (!is_in_workspace(cwd, WORKSPACE) && !is_in_workspace(cwd, workspace))
        doubt(ret, cwd, "is where it starts, outside of the workspace");
    else if (harm)
        doubt(ret, variable, "is set, a variable that programs go by");
    else if (r->user && !strcmp(r->user, "root"))
        doubt(ret, r->user, "is who runs it");
    return 0;
}

/* ---- where it may run ---- */

/* The place that the session has now. Before anything else of it is looked at: a box that comes
 * later makes the judgement void. */
static void look_at(struct session *s, struct judgement *j, struct placement *place)
{
    lock_take(&s->lock);
    j->box_id = s->box_id;
    memcpy(place->provider, s->info.provider, sizeof place->provider);
    place->rung = s->info.rung;
    lock_release(&s->lock);
}

static int judge_local(struct session *s, struct judgement *j, struct placement *place,
                       struct pd_err *e)
{
    look_at(s, j, place);
    if (strcmp(place->provider, "local") != 0)
        return pd_fail(e, PD_INVALID,
                       "mode 'local': sandbox %s is made by provider %s, and a command does not "
                       "leave it: make one with mode 'local', or leave `mode` away",
                       s->info.id, place->provider);

    snprintf(place->reason, sizeof place->reason, "mode local: no isolation");
    return 0;
}

static enum rung find_best(const struct route_provider *list, unsigned count)
{
    enum rung best = RUNG_NONE;

    for (unsigned i = 0; i < count; i++)
        if (list[i].rung > best)
            best = list[i].rung;
    return best;
}

/* *ret_to: the provider that would do, if the session isolates too little. */
static int judge_isolation(struct session *s, const struct process_request *r, struct judgement *j,
                           struct placement *place, struct provider **ret_to, struct pd_err *e)
{
    struct route_provider list[PROVIDERS_MAX];
    unsigned count = provider_table_describe_for(s->all->c.providers, &s->info.spec, list), at;
    struct command_verdict verdict;
    bool judged = place->mode == MODE_AUTO;

    look_at(s, j, place);
    j->by_state = judged && place->rung < find_best(list, count);
    if (judged && classify(s, r, j, &verdict, e) < 0)
        return -1;
    if (router_for_command(s->all->c.router, list, count, judged ? &verdict : NULL, RUNG_BASIC,
                           &j->need, &at, e) < 0)
        return -1;

    if (judged)
        snprintf(place->reason, sizeof place->reason, "%s: %s", command_class_name(verdict.what),
                 verdict.reason);
    else
        snprintf(place->reason, sizeof place->reason, "mode sandbox: isolation %s",
                 rung_name(place->rung));
    *ret_to = place->rung < j->need ? s->all->c.providers->list[at] : NULL;
    return 0;
}

/* The session goes where the command may run. */
static int raise_session(struct session *s, struct provider *to, enum rung need, const char *why,
                         struct pd_err *e)
{
    char reason[ROUTE_REASON_SIZE];
    struct session_goal goal = {.to = to, .need = need, .flags = MOVE_RAISE, .reason = reason};

    snprintf(reason, sizeof reason, "moved: %.100s", why);
    if (session_move(s, &goal, e) == 0)
        return 0;
    return pd_wrap(e, "%.100s, which is done by provider %s", why, to->name);
}

int session_judge(struct session *s, const struct process_request *r, struct judgement *ret,
                  struct placement *ret_place, struct pd_err *e)
{
    struct judgement j = {.is_judged = true, .need = RUNG_NONE};
    struct placement place = {.mode = r->mode ? r->mode : s->info.mode};
    struct provider *to = NULL;
    char why[sizeof place.reason] = ""; /* it was moved */

    /* After a move it is judged again: paths and directories are others there. */
    for (unsigned i = 0; i < JUDGE_TRIES; i++) {
        int bad = place.mode == MODE_LOCAL ? judge_local(s, &j, &place, e)
                                           : judge_isolation(s, r, &j, &place, &to, e);
        if (bad < 0 || (to && raise_session(s, to, j.need, place.reason, e) < 0))
            return -1;
        if (to) {
            memcpy(why, place.reason, sizeof why);
            continue;
        }

        *ret = j;
        if (why[0])
            memcpy(place.reason, why, sizeof why);
        if (ret_place)
            *ret_place = place;
        return 0;
    }
    return pd_fail(e, PD_CONFLICT, JUDGED_TOO_OFTEN, s->info.id);
}
