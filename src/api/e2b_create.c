/* Sandboxes that are made at the E2B door: what a request may ask for, and what is refused. Their
 * network settings are in e2b_network.c. */
#include "api/e2b.h"
#include "api/e2b_handlers.h"
#include "api/sandbox.h"

#include "api/builds.h"
#include "base/banned.h"
#include "base/json.h"
#include "config/config.h"
#include "config/recipe.h"
#include "core/egress.h"
#include "gate/rules.h"

#include <jansson.h>

#define MS_PER_S     UINT64_C(1000)
#define NEVER_IDLE   (UINT64_C(365) * 86400 * MS_PER_S) /* only `timeout` counts here */
#define DEFAULT_V1   (15 * MS_PER_S)
#define DEFAULT_V2   (300 * MS_PER_S)
#define METADATA_KEY 64
#define FORKS_MAX    100

void e2b_read_timeout(struct call *c, struct fields *f, enum field_need need, uint64_t min,
                      uint64_t *ret_ms)
{
    static const char name[] = "timeout";
    const struct ceilings ceilings = config_ceilings(c->config, c->who.tenant);
    uint64_t max = ceilings.life_ms / MS_PER_S;
    int64_t n;

    if (*ret_ms > ceilings.life_ms)
        *ret_ms = ceilings.life_ms;

    if (!fields_i64(f, name, need, INT64_MIN, INT64_MAX, &n))
        return;

    if (n < (int64_t)min)
        fields_refuse(f, name, min ? "Timeout must be greater than 0" : "must not be below 0");
    else if ((uint64_t)n > max)
        fields_refuse(f, name, "Timeout cannot be greater than %llu seconds (max_life_s)",
                      (unsigned long long)max);
    else
        *ret_ms = (uint64_t)n * MS_PER_S;
}

/* ---- making one ---- */

struct making {
    struct session_request request;
    struct e2b_template template;
    struct e2b_note note;
    struct buf note_text, metadata, network;
    struct msg_list_writer env;
    char *policy; /* of what is forked; or NULL */
    char provider[PROVIDER_NAME_MAX + 1];
};

static void making_init(struct call *c, struct making *m)
{
    *m = (struct making){.note_text = BUF_INIT(NOTE_MAX),
                         .metadata = BUF_INIT(METADATA_MAX),
                         .env = MSG_LIST_WRITER_INIT,
                         .network = BUF_INIT(EGRESS_RULES_MAX),
                         .note.allow_out = BUF_INIT(NOTE_MAX),
                         .note.deny_out = BUF_INIT(NOTE_MAX)};

    request_defaults(c, &m->request);
    m->request.idle_timeout_ms = NEVER_IDLE;
}

static void making_done(struct making *m)
{
    e2b_note_done(&m->note);
    buf_done(&m->note_text);
    buf_done(&m->metadata);
    buf_done(&m->network);
    msg_list_writer_done(&m->env);
    e2b_template_done(&m->template);
    free(m->policy);
}
#define auto_making __attribute__((cleanup(making_done))) struct making

/* The last step: texts that the request points to. */
static int making_finish(struct making *m, struct pd_err *e)
{
    struct session_request *r = &m->request;
    if (e2b_note_write(&m->note, &m->note_text) < 0 || !(r->note = buf_cstr(&m->note_text)))
        return pd_fail(e, PD_TOO_LARGE, "the network settings are too long");

    if (m->policy)
        r->policy = m->policy;
    else if (r->spec.profile == PROFILE_RESTRICTED)
        r->policy = "restricted";

    return spec_check(&r->spec, e);
}

static void read_lifecycle(struct fields *f, struct making *m)
{
    bool pause, memory = true;

    if (fields_bool(f, "autoPause", FIELD_OPTIONAL, &pause))
        m->request.pause_at_end = pause ? PAUSE_ALL : 0;
    fields_bool(f, "autoPauseMemory", FIELD_OPTIONAL, &memory);

    struct fields *o = fields_object(f, "autoResume", FIELD_OPTIONAL);
    fields_bool(o, "enabled", FIELD_REQUIRED, &m->note.auto_resume);

    if (memory || !m->request.pause_at_end)
        return;
    if (m->note.auto_resume)
        fields_refuse(f, "autoResume", "traffic does not wake what is paused without its memory");
    m->request.pause_at_end = PAUSE_FILES;
}

static void read_refused(struct fields *f)
{
    /* The client itself starts the gateway with it, by a command; what came of that it knows. */
    if (fields_has(f, "mcp") && fields_kind(f, "mcp") != FIELD_OBJECT)
        fields_refuse(f, "mcp", "is not an object");

    e2b_refuse_unless_empty(f, "iam", "this server gives no workload identities");
    e2b_refuse_unless_empty(f, "volumeMounts", "this server has no volumes");
}

/* E2B's clients have no field for a provider or a mode: both are words of the metadata. */
static int read_provider(struct call *c, struct making *m, struct pd_err *e)
{
    json_auto_t *metadata = m->request.metadata ? json_loads(m->request.metadata, 0, NULL) : NULL;
    const char *provider = json_string_value(json_object_get(metadata, "provider"));
    const char *mode = json_string_value(json_object_get(metadata, "mode"));

    if (provider) {
        snprintf(m->provider, sizeof m->provider, "%s", provider);
        m->request.provider = m->provider;
    }
    if (mode && !(m->request.mode = run_mode_of(mode))) {
        snprintf(c->field, sizeof c->field, "metadata.mode");
        return pd_fail(e, PD_INVALID, "metadata.mode '%.40s': valid are " RUN_MODE_LIST, mode);
    }
    if (call_check_provider(c, &m->request, e) == 0)
        return 0;
    snprintf(c->field, sizeof c->field, "metadata.%s", m->request.mode ? "mode" : "provider");
    return -1;
}

/* Sandboxes of this door have a way out wherever there can be one. A request that names another
 * provider has what that one has. */
static bool may_go_out(const struct call *c, const struct making *m)
{
    json_auto_t *metadata = m->request.metadata ? json_loads(m->request.metadata, 0, NULL) : NULL;
    const char *name = json_string_value(json_object_get(metadata, "provider"));
    const char *mode = json_string_value(json_object_get(metadata, "mode"));
    const struct provider *p = provider_table_choose(c->api->providers, name, NULL);

    return config_egress(c->config, c->who.tenant) != EGRESS_OFF &&
           provider_has(p, PROVIDER_EGRESS) && !(mode && !strcmp(mode, "local"));
}

/* A template that is a file. Its limits hold here, too: this door has no fields for them. */
static int apply_recipe(struct call *c, struct making *m, struct pd_err *e)
{
    struct session_request *r = &m->request;
    const struct recipe *t = recipes_find(&c->config->recipes, r->template_name);
    if (!t)
        return 0;

    recipe_limits(t, &r->spec.limits);
    if (t->image)
        r->spec.image = t->image;
    if (recipe_env(t, &m->env) < 0)
        return pd_fail(e, PD_TOO_LARGE, "envVars are too long, with the template's");
    r->env = msg_list_of(&m->env);
    enum egress_mode egress = recipe_network(c, t, &m->network);
    if (call_check_egress(c, egress, buf_cstr(&m->network), e) < 0 ||
        call_check_image(c, r->spec.image, e) < 0)
        return -1;
    return call_check_ceilings(c, r, e);
}

static int read_making(struct call *c, struct fields *f, struct making *m, int v2, struct pd_err *e)
{
    struct session_request *r = &m->request;
    const char *template = NULL;

    r->max_life_ms = v2 ? DEFAULT_V2 : DEFAULT_V1;
    r->cwd = E2B_HOME;
    m->note.secure = v2;

    fields_str(f, "templateID", FIELD_REQUIRED, 1, 255, &template);
    e2b_read_timeout(c, f, FIELD_OPTIONAL, 1, &r->max_life_ms);
    if (fields_strings(f, "metadata", FIELD_OPTIONAL, METADATA_KEY, METADATA_MAX - 1, &m->metadata))
        r->metadata = buf_cstr(&m->metadata);
    fields_env(f, "envVars", FIELD_OPTIONAL, &m->env, NULL);
    r->env = msg_list_of(&m->env);

    read_lifecycle(f, m);
    /* Clients say true by default, and mean that they do not mind. */
    bool internet = true;
    fields_bool(f, "allow_internet_access", FIELD_OPTIONAL, &internet);
    e2b_read_network(c, f, &m->note, internet, may_go_out(c, m) ? &m->network : NULL);
    read_refused(f);

    if (v2)
        m->note.secure = true;
    else
        fields_bool(f, "secure", FIELD_OPTIONAL, &m->note.secure);

    if (call_finish(c, f, e) < 0 || e2b_template_read(c, template, &m->template, e) < 0)
        return -1;

    r->template_name = m->template.name;
    r->spec.profile = m->template.profile;
    if (apply_recipe(c, m, e) < 0)
        return -1;
    if (m->network.len) {
        r->spec.network = NETWORK_GATE;
        r->network = buf_cstr(&m->network);
    }
    r->snapshot = m->template.snapshot[0] ? m->template.snapshot : NULL;
    if (m->template.is_built) {
        const struct build_context *context = &m->template.use.context;
        r->cwd = NULL;
        template_limits(c, m->template.use.build.cpu_milli, m->template.use.build.memory,
                        m->template.use.disk, m->template.use.files, &r->spec.limits);
        template_apply(&m->template.use, r, &m->env);
        if (strcmp(context->user, "user") != 0)
            snprintf(m->note.user, sizeof m->note.user, "%.7s", context->user);
        if (strcmp(context->workdir, E2B_HOME) != 0)
            snprintf(m->note.workdir, sizeof m->note.workdir, "%s", context->workdir);
    }
    return read_provider(c, m, e) < 0 ? -1 : making_finish(m, e);
}

static int create(struct call *c, int v2, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(8192);
    auto_fields f = {0};
    auto_making m;
    char key[API_KEY_MAX + 1];
    struct queue_place place = {0};
    struct session *s = NULL;
    bool known = false;

    making_init(c, &m);
    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0 ||
        read_making(c, &f, &m, v2, e) < 0 ||
        call_key(c, &body, key, &m.request.key, &m.request.key_hash, e) < 0 ||
        call_may_create(c, e) < 0)
        return -1;

    int r = sessions_create(c->api->sessions, &m.request, &s, &known, &place, e);
    call_count_create(c, r, s, &place);
    if (r == 0 && !known)
        r = recipe_set_up(c, s, e);
    if (r == 0 && !known && m.template.is_built)
        template_start(s, &m.template.use);
    if (r < 0) {
        session_unref(s);
        return -1;
    }

    struct json j = JSON_INIT(&out);
    e2b_sandbox_json(c, &j, s);
    session_unref(s);
    return call_json(c, 201, &out);
}

int e2b_create(struct call *c, struct pd_err *e)
{
    return create(c, 0, e);
}

int e2b_create_v2(struct call *c, struct pd_err *e)
{
    return create(c, 1, e);
}

/* ---- forks ---- */

/* A fork is as what it was made from, except for its time. */
static int copy_making(struct call *c, struct making *m, struct pd_err *e)
{
    struct session_info i;

    session_get(c->session, &i);

    e2b_note_done(&m->note);
    e2b_note_read(c->session, &m->note);

    char *metadata = session_metadata(c->session);
    m->policy = session_policy(c->session);
    if (!m->policy || !metadata || buf_puts(&m->metadata, metadata) < 0) {
        free(metadata);
        return pd_fail(e, PD_CAPACITY, "no memory for the fork");
    }
    free(metadata);

    m->request.metadata = buf_cstr(&m->metadata);
    m->request.pause_at_end = i.pause_at_end;
    m->request.spec.profile = i.spec.profile;
    m->request.spec.limits = i.spec.limits;

    snprintf(m->template.given, sizeof m->template.given, "%s", i.template_name);
    m->request.template_name = m->template.given;

    /* The original may have been made under higher ceilings; it goes on, and its fork is new. */
    if (call_check_ceilings(c, &m->request, e) < 0)
        return -1;
    return making_finish(m, e);
}

static int fork_one(struct call *c, struct making *m, struct json *j, struct pd_err *e)
{
    struct session *s = NULL;
    struct queue_place place = {0};

    if (call_may_create(c, e) < 0)
        return -1;

    int r = session_fork(c->session, &m->request, &s, e);
    call_count_create(c, r, s, &place);
    /* The audit log is to tell of the one that was forked. */
    snprintf(c->sandbox, sizeof c->sandbox, "%.*s", SESSION_ID_LEN, c->var[0]);
    if (r < 0)
        return -1;

    json_open(j, '{');
    json_key(j, "sandbox");
    e2b_sandbox_json(c, j, s);
    json_close(j, '}');
    session_unref(s);
    return 0;
}

int e2b_fork(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(1u << 20);
    auto_fields f = {0};
    auto_making m;
    uint64_t count = 1;
    struct json j = JSON_INIT(&out);

    making_init(c, &m);
    m.request.max_life_ms = DEFAULT_V1;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;

    e2b_read_timeout(c, &f, FIELD_OPTIONAL, 1, &m.request.max_life_ms);
    fields_u64(&f, "count", FIELD_OPTIONAL, 1, FORKS_MAX, &count);
    if (call_finish(c, &f, e) < 0 || copy_making(c, &m, e) < 0)
        return -1;

    json_open(&j, '[');
    for (uint64_t i = 0; i < count; i++) {
        if (fork_one(c, &m, &j, e) == 0)
            continue;
        /* The first one tells whether this can be done at all. */
        if (i == 0)
            return -1;
        json_open(&j, '{');
        json_key(&j, "error");
        e2b_error_json(c, &j, e);
        json_close(&j, '}');
    }

    json_close(&j, ']');
    return call_json(c, 201, &out);
}
