/* Sandboxes of the library: making, finding and ending them, and what one tells of itself. */
#include "lib/lib.h"

#include "base/banned.h"
#include "base/buf.h"
#include "policy/policy.h"

#define LIST_PAGE    256u
#define FILTERS_MAX  8u
#define ENV_JSON_MAX (1u << 20)

/* ---- handles ---- */

struct paddock_sandbox *lib_sandbox(struct paddock *p, struct session *s, struct paddock_error *e)
{
    struct paddock_sandbox *b = malloc(sizeof *b);
    if (!b) {
        lib_refuse(e, PD_CAPACITY, "no memory for a handle");
        session_unref(s);
        return NULL;
    }

    *b = (struct paddock_sandbox){.lib = lib_ref(p), .session = s};
    return b;
}

void paddock_release(struct paddock_sandbox *s)
{
    if (!s)
        return;

    if (!atomic_load(&s->lib->forked))
        session_unref(s->session);
    lib_unref(s->lib);
    free(s);
}

/* ---- making ---- */

static const struct {
    const char *name;
    enum profile profile;
} templates[] = {
    {"default", PROFILE_STRICT}, {"base", PROFILE_DEV}, {"restricted", PROFILE_RESTRICTED}};

static int find_template(const char *name, enum profile *ret, struct paddock_error *e)
{
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        if (!strcmp(templates[i].name, name)) {
            *ret = templates[i].profile;
            return 0;
        }
    return lib_refuse(e, PD_INVALID, "template '%.60s' is not known: default, base or restricted",
                      name);
}

static int check_name(const char *what, const char *name, struct paddock_error *e)
{
    size_t len = strlen(name);
    if (len >= 1 && len <= SESSION_NAME_MAX)
        return 0;
    return lib_refuse(e, PD_INVALID, "%s: 1 to %d bytes, not %zu", what, SESSION_NAME_MAX, len);
}

static int check_names(const struct paddock_sandbox_options *o, int needed, struct paddock_error *e)
{
    if (!o->user_id != !o->thread_id || (needed && !o->user_id))
        return lib_refuse(e, PD_INVALID, "user_id and thread_id go together");

    if (!o->user_id)
        return 0;
    return check_name("user_id", o->user_id, e) < 0 ? -1 : check_name("thread_id", o->thread_id, e);
}

static void set_limits(struct limits *l, const struct paddock_sandbox_options *o)
{
    l->memory = o->memory ? o->memory : l->memory;
    l->pids = o->pids ? o->pids : l->pids;
    l->cpu_milli = o->cpu_milli ? o->cpu_milli : l->cpu_milli;
    l->disk = o->disk ? o->disk : l->disk;
    l->files = o->files ? o->files : l->files;
}

/* Strings are the caller's; `env` is to be freed. */
static int read_request(struct paddock *p, const struct paddock_sandbox_options *o, int by_thread,
                        struct session_request *r, struct msg_list_writer *env,
                        struct paddock_error *e)
{
    struct pd_err why;
    auto_policy policy = {0};

    *r = (struct session_request){.tenant = LIB_TENANT,
                                  .user_id = o->user_id,
                                  .thread_id = o->thread_id,
                                  .provider = o->provider,
                                  .template_name = o->template_name ? o->template_name : "default",
                                  .metadata = o->metadata,
                                  .policy = o->policy,
                                  .cwd = o->cwd,
                                  .spec = SPEC_DEFAULT,
                                  .idle_timeout_ms = o->idle_timeout_ms,
                                  .max_life_ms = o->max_life_ms,
                                  .queue_timeout_ms =
                                      o->queue_timeout_ms ? o->queue_timeout_ms : 30000,
                                  .auto_retry = o->auto_retry};

    r->spec.limits = p->limits;
    set_limits(&r->spec.limits, o);
    r->disk_asked = o->disk || o->files;
    r->limits_asked = o->memory || o->pids || o->cpu_milli;

    if (check_names(o, by_thread, e) < 0 ||
        find_template(r->template_name, &r->spec.profile, e) < 0 ||
        lib_list(o->env, "env", 1, env, e) < 0)
        return -1;

    r->env = msg_list_of(env);
    if (!provider_table_choose(&p->providers, o->provider, &why))
        return lib_fail(e, &why);
    if (o->metadata && strlen(o->metadata) >= METADATA_MAX)
        return lib_refuse(e, PD_TOO_LARGE, "metadata: longer than %u bytes", METADATA_MAX);
    if (o->cwd && o->cwd[0] != '/')
        return lib_refuse(e, PD_INVALID, "cwd '%.100s': must be an absolute path", o->cwd);
    if (o->profile && profile_parse("profile", o->profile, &r->spec.profile, &why) < 0)
        return lib_fail(e, &why);

    if (!r->policy && r->spec.profile == PROFILE_RESTRICTED)
        r->policy = "restricted";
    if ((r->policy && policy_parse(r->policy, &policy, &why) < 0) ||
        spec_check(&r->spec, &why) < 0 ||
        ceilings_check(&p->ceilings, &r->spec.limits, r->max_life_ms, NULL, &why) < 0)
        return lib_fail(e, &why);
    return 0;
}

static int make(struct paddock *p, const struct paddock_sandbox_options *options, bool by_thread,
                struct session **ret, bool *ret_told, struct paddock_error *e)
{
    struct paddock_sandbox_options o;
    struct session_request r;
    struct msg_list_writer env = MSG_LIST_WRITER_INIT;
    struct queue_place place;
    struct pd_err why;

    if (lib_take(&o, sizeof o, options, "paddock_sandbox_options", e) < 0)
        return -1;

    int bad = read_request(p, &o, by_thread, &r, &env, e);
    if (bad == 0) {
        bad = by_thread ? sessions_get_or_create(p->sessions, &r, ret, ret_told, &place, &why)
                        : sessions_create(p->sessions, &r, ret, ret_told, &place, &why);
        sessions_answered(p->sessions);
        if (bad)
            lib_fail(e, &why);
    }

    msg_list_writer_done(&env);
    return bad;
}

struct paddock_sandbox *paddock_create(struct paddock *p, const struct paddock_sandbox_options *o,
                                       struct paddock_error *e)
{
    struct session *s;
    bool known;

    if (lib_begin(p, e) < 0)
        return NULL;

    struct paddock_sandbox *b = make(p, o, false, &s, &known, e) < 0 ? NULL : lib_sandbox(p, s, e);
    lib_unref(p);
    return b;
}

struct paddock_sandbox *paddock_get_or_create(struct paddock *p,
                                              const struct paddock_sandbox_options *o,
                                              int *ret_created, struct paddock_error *e)
{
    struct session *s;
    bool created = false;

    if (lib_begin(p, e) < 0)
        return NULL;

    struct paddock_sandbox *b = make(p, o, true, &s, &created, e) < 0 ? NULL : lib_sandbox(p, s, e);
    lib_unref(p);

    if (b && ret_created)
        *ret_created = created;
    return b;
}

/* ---- finding ---- */

struct paddock_sandbox *paddock_find(struct paddock *p, const char *id, struct paddock_error *e)
{
    struct pd_err why;

    if (lib_begin(p, e) < 0)
        return NULL;

    struct session *s = sessions_find(p->sessions, LIB_TENANT, id, &why);
    struct paddock_sandbox *b = s ? lib_sandbox(p, s, e) : NULL;
    if (!s)
        lib_fail(e, &why);

    lib_unref(p);
    return b;
}

struct paddock_sandbox *paddock_find_thread(struct paddock *p, const char *user_id,
                                            const char *thread_id, struct paddock_error *e)
{
    struct pd_err why;

    if (lib_begin(p, e) < 0)
        return NULL;

    struct session *s = sessions_find_thread(p->sessions, LIB_TENANT, user_id, thread_id, &why);
    struct paddock_sandbox *b = s ? lib_sandbox(p, s, e) : NULL;
    if (!s)
        lib_fail(e, &why);

    lib_unref(p);
    return b;
}

static int read_states(const char *text, int *ret, struct paddock_error *e)
{
    for (int s = 0; s < SESSION_STATE_COUNT; s++)
        if (!strcmp(text, session_state_name((enum session_state)s))) {
            *ret = 1 << s;
            return 0;
        }

    *ret = (1 << SESSION_STATE_COUNT) - 1;
    return !strcmp(text, "all")
               ? 0
               : lib_refuse(e, PD_INVALID,
                            "state '%.40s': creating, running, paused, stopping, gone or all",
                            text);
}

/* The keys are copies, to be freed. */
static int read_metadata(const char *const *list, struct session_filter *f, struct paddock_error *e)
{
    for (; list && *list; list++) {
        const char *equals = strchr(*list, '=');
        if (!equals || f->metadata_count == FILTERS_MAX)
            return lib_refuse(e, PD_INVALID, "metadata: at most %u of the form KEY=VALUE",
                              FILTERS_MAX);

        char *key = strndup(*list, (size_t)(equals - *list));
        if (!key)
            return lib_refuse(e, PD_CAPACITY, "no memory for a filter");

        f->metadata_key[f->metadata_count] = key;
        f->metadata_value[f->metadata_count++] = equals + 1;
    }
    return 0;
}

static int list_page(struct paddock *p, struct session_filter *f, char next[64],
                     int (*each)(void *arg, struct paddock_sandbox *s), void *arg,
                     struct paddock_error *e)
{
    struct session *found[LIST_PAGE];
    struct pd_err why;
    unsigned count = 0;
    int stop = 0;

    if (sessions_list(p->sessions, f, found, &count, next, &why) < 0)
        return lib_fail(e, &why);

    for (unsigned i = 0; i < count; i++) {
        struct paddock_sandbox b = {.lib = p, .session = found[i]};
        if (!stop)
            stop = each(arg, &b) != 0;
        session_unref(found[i]);
    }

    return stop || !next[0];
}

int paddock_list(struct paddock *p, const struct paddock_filter *filter,
                 int (*each)(void *arg, struct paddock_sandbox *s), void *arg,
                 struct paddock_error *e)
{
    struct paddock_filter o;
    char cursor[64] = "";

    if (lib_begin(p, e) < 0)
        return -1;

    struct session_filter f = {.tenant = LIB_TENANT, .limit = LIST_PAGE};
    int r = lib_take(&o, sizeof o, filter, "paddock_filter", e);
    if (r == 0 && o.state)
        r = read_states(o.state, &f.states, e);
    if (r == 0)
        r = read_metadata(o.metadata, &f, e);

    f.user_id = o.user_id;
    f.thread_id = o.thread_id;
    while (r == 0) {
        char next[64];
        r = list_page(p, &f, next, each, arg, e);
        memcpy(cursor, next, sizeof cursor);
        f.cursor = cursor;
    }

    for (unsigned i = 0; i < f.metadata_count; i++)
        free((char *)(uintptr_t)f.metadata_key[i]);
    lib_unref(p);
    return r < 0 ? -1 : 0;
}

/* ---- what one is ---- */

int paddock_sandbox_get(struct paddock_sandbox *s, struct paddock_sandbox_info *ret,
                        struct paddock_error *e)
{
    struct session_info i;

    if (lib_usable(s->lib, e) < 0)
        return -1;

    session_get(s->session, &i);
    int gone = i.state == SESSION_GONE;
    struct paddock_sandbox_info o = {.created_ms = i.created_ms,
                                     .expires_ms = i.expires_ms,
                                     .last_used_ms = i.last_used_ms,
                                     .ended_ms = i.ended_ms,
                                     .idle_timeout_ms = i.idle_timeout_ms,
                                     .max_life_ms = i.max_life_ms,
                                     .memory = i.spec.limits.memory,
                                     .pids = i.spec.limits.pids,
                                     .cpu_milli = i.spec.limits.cpu_milli,
                                     .disk = i.spec.limits.disk,
                                     .files = i.spec.limits.files,
                                     .processes = i.processes,
                                     .recreated = i.recreated,
                                     .from_pool = i.from_pool};

    snprintf(o.id, sizeof o.id, "%s", i.id);
    snprintf(o.user_id, sizeof o.user_id, "%s", i.user_id);
    snprintf(o.thread_id, sizeof o.thread_id, "%s", i.thread_id);
    snprintf(o.template_name, sizeof o.template_name, "%s", i.template_name);
    snprintf(o.profile, sizeof o.profile, "%s", profile_name(i.spec.profile));
    snprintf(o.provider, sizeof o.provider, "%s", i.provider);
    snprintf(o.isolation, sizeof o.isolation, "%s", rung_name(i.rung));
    snprintf(o.state, sizeof o.state, "%s", session_state_name(i.state));
    snprintf(o.end_cause, sizeof o.end_cause, "%s", gone ? session_end_name(i.end) : "");
    snprintf(o.end_reason, sizeof o.end_reason, "%s", gone ? i.end_reason : "");
    snprintf(o.replaces, sizeof o.replaces, "%s", i.replaces);
    return lib_give(ret, &o, sizeof o, "paddock_sandbox_info", e);
}

char *paddock_sandbox_metadata(struct paddock_sandbox *s)
{
    return session_metadata(s->session);
}

char *paddock_sandbox_policy(struct paddock_sandbox *s)
{
    return session_policy(s->session);
}

int paddock_usage(struct paddock_sandbox *s, struct paddock_usage *ret, struct paddock_error *e)
{
    struct paddock_usage u = {0};
    struct pd_err why;

    if (lib_usable(s->lib, e) < 0)
        return -1;

    if (session_usage(s->session, &u.memory, &u.memory_peak, &u.cpu_usec, &u.pids, &why) < 0)
        return lib_fail(e, &why);
    return lib_give(ret, &u, sizeof u, "paddock_usage", e);
}

/* ---- what is done to one ---- */

int paddock_pause(struct paddock_sandbox *s, struct paddock_error *e)
{
    struct pd_err why;
    if (lib_usable(s->lib, e) < 0)
        return -1;
    return session_pause(s->session, &why) < 0 ? lib_fail(e, &why) : 0;
}

int paddock_resume(struct paddock_sandbox *s, struct paddock_error *e)
{
    struct pd_err why;
    if (lib_usable(s->lib, e) < 0)
        return -1;
    return session_resume(s->session, &why) < 0 ? lib_fail(e, &why) : 0;
}

int paddock_extend(struct paddock_sandbox *s, uint64_t idle_timeout_ms, uint64_t expires_in_ms,
                   struct paddock_error *e)
{
    struct pd_err why;

    if (lib_usable(s->lib, e) < 0)
        return -1;
    if (expires_in_ms > s->lib->ceilings.life_ms)
        return lib_refuse(e, PD_INVALID, "expires_in: %.15g s is above the ceiling of %.15g s",
                          (double)expires_in_ms / 1000, (double)s->lib->ceilings.life_ms / 1000);
    return session_extend(s->session, idle_timeout_ms, expires_in_ms, &why) < 0 ? lib_fail(e, &why)
                                                                                : 0;
}

int paddock_end(struct paddock_sandbox *s, int forget, struct paddock_error *e)
{
    struct pd_err why;

    if (lib_usable(s->lib, e) < 0)
        return -1;

    if (session_end(s->session, END_KILLED, "ended by the program", &why) < 0)
        return lib_fail(e, &why);

    if (forget)
        session_forget_thread(s->session);
    return 0;
}

int paddock_env_get(struct paddock_sandbox *s, char **ret_json, char **ret_cwd,
                    struct paddock_error *e)
{
    auto_buf json = BUF_INIT(ENV_JSON_MAX);
    char cwd[SPEC_PATH_MAX];

    if (lib_usable(s->lib, e) < 0)
        return -1;

    const char *text =
        session_get_env(s->session, &json, cwd, sizeof cwd) < 0 ? NULL : buf_cstr(&json);
    char *copy = text ? strdup(text) : NULL, *dir = strdup(cwd);

    if (copy && dir) {
        *ret_json = copy;
        *ret_cwd = dir;
        return 0;
    }

    free(copy);
    free(dir);
    return lib_refuse(e, PD_CAPACITY, "no memory for the environment");
}

int paddock_env_set(struct paddock_sandbox *s, const char *const *set, const char *const *unset,
                    const char *cwd, struct paddock_error *e)
{
    struct msg_list_writer to_set = MSG_LIST_WRITER_INIT, to_unset = MSG_LIST_WRITER_INIT;
    struct pd_err why;

    if (lib_usable(s->lib, e) < 0)
        return -1;
    if (cwd && cwd[0] != '/')
        return lib_refuse(e, PD_INVALID, "cwd '%.100s': must be an absolute path", cwd);

    int r = lib_list(set, "env", 1, &to_set, e);
    if (r == 0)
        r = lib_list(unset, "env", 0, &to_unset, e);

    struct msg_list sets = msg_list_of(&to_set), unsets = msg_list_of(&to_unset);
    if (r == 0 && (r = session_set_env(s->session, &sets, &unsets, cwd, &why)) < 0)
        lib_fail(e, &why);

    msg_list_writer_done(&to_set);
    msg_list_writer_done(&to_unset);
    return r;
}
