/* Where a command may run, by the mode that was asked for it, or that its session was made with.
 *
 * A session has one provider at a time. `local` is for sessions at that provider; `sandbox` for all
 * that isolate; with `auto` the line is judged before it runs (router/command_class.h), by the
 * directory that it starts in and the variables that it finds as well. A session that isolates too
 * little for it is moved to the cheapest provider that isolates enough, and stays there: isolation
 * only grows. So what was run in the meantime without a judgement was run with more of it. */
#include "core/session_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "router/router.h"
#include "telemetry/log.h"

#define WORKSPACE "/workspace"

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

static int classify_argv(const struct msg_list *list, struct command_verdict *ret, struct pd_err *e)
{
    const char **argv = calloc(list->count + 1, sizeof *argv);
    if (!argv)
        return pd_fail(e, PD_CAPACITY, "no memory");

    uint32_t pos = 0;
    for (uint32_t i = 0; i < list->count; i++)
        argv[i] = msg_list_next(list, &pos);
    command_classify_argv(argv, WORKSPACE, ret);
    free(argv);
    return 0;
}

static int classify(struct session *s, const struct process_request *r, struct command_verdict *ret,
                    struct pd_err *e)
{
    char cwd[SPEC_PATH_MAX], variable[64] = "";

    if (r->command)
        command_classify(r->command, WORKSPACE, ret);
    else if (classify_argv(&r->argv, ret, e) < 0)
        return -1;

    lock_take(&s->lock);
    snprintf(cwd, sizeof cwd, "%s", r->cwd ? r->cwd : s->cwd);
    struct msg_list env = msg_list_of(&s->env);
    const char *harm = find_harm(&env);
    if (harm)
        snprintf(variable, sizeof variable, "%.*s", (int)strcspn(harm, "="), harm);
    lock_release(&s->lock);

    if (!harm && (harm = find_harm(&r->env)))
        snprintf(variable, sizeof variable, "%.*s", (int)strcspn(harm, "="), harm);
    struct box_place place = {.workspace = ""};
    (void)session_place(s, &place);
    if (!is_in_workspace(cwd, WORKSPACE) && !is_in_workspace(cwd, place.workspace))
        doubt(ret, cwd, "is where it starts, outside of the workspace");
    else if (harm)
        doubt(ret, variable, "is set, a variable that programs go by");
    else if (r->user && !strcmp(r->user, "root"))
        doubt(ret, r->user, "is who runs it");
    return 0;
}

/* The session goes where the command may run. */
static int raise_session(struct session *s, struct provider *to, const char *why, struct pd_err *e)
{
    char reason[ROUTE_REASON_SIZE];
    snprintf(reason, sizeof reason, "moved: %.100s", why);
    if (session_move(s, to, 0, reason, e) == 0)
        return 0;

    return pd_wrap(e, "%.100s, which is done by provider %s", why, to->name);
}

int session_judge(struct session *s, const struct process_request *r, struct placement *ret,
                  struct pd_err *e)
{
    struct route_provider list[PROVIDERS_MAX];
    unsigned count = provider_table_describe(s->all->c.providers, list), at;
    struct placement place = {.mode = r->mode ? r->mode : s->info.mode};
    struct command_verdict verdict;
    enum rung need = RUNG_NONE;

    lock_take(&s->lock);
    memcpy(place.provider, s->info.provider, sizeof place.provider);
    place.rung = s->info.rung;
    lock_release(&s->lock);

    if (place.mode == MODE_LOCAL) {
        if (strcmp(place.provider, "local") != 0)
            return pd_fail(
                e, PD_INVALID,
                "mode 'local': sandbox %s is made by provider %s, and a command does not "
                "leave it: make one with mode 'local', or leave `mode` away",
                s->info.id, place.provider);
        snprintf(place.reason, sizeof place.reason, "mode local: no isolation");
    } else {
        bool judged = place.mode == MODE_AUTO;
        if ((judged && classify(s, r, &verdict, e) < 0) ||
            router_for_command(s->all->c.router, list, count, judged ? &verdict : NULL, RUNG_BASIC,
                               &need, &at, e) < 0)
            return -1;

        if (judged)
            snprintf(place.reason, sizeof place.reason, "%s: %s", command_class_name(verdict.what),
                     verdict.reason);
        else
            snprintf(place.reason, sizeof place.reason, "mode sandbox: isolation %s",
                     rung_name(place.rung));
        struct provider *to = s->all->c.providers->list[at];
        if (place.rung < need && to != s->provider) {
            if (raise_session(s, to, place.reason, e) < 0)
                return -1;
            lock_take(&s->lock);
            memcpy(place.provider, s->info.provider, sizeof place.provider);
            place.rung = s->info.rung;
            lock_release(&s->lock);
        }
    }

    if (ret)
        *ret = place;
    return 0;
}
