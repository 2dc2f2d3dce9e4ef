/* Sandboxes as JSON: how one is shown, and the body that asks for one, with the defaults and the
 * ceilings of what it may ask for. A template is a profile with a name, or a file. `struct
 * create_request` owns the strings that the session's request points to. */
#include "api/builds.h"
#include "api/sandbox.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/json.h"
#include "config/config.h"
#include "config/recipe.h"
#include "core/egress.h"
#include "core/snapshots.h"
#include "policy/policy.h"
#include "router/decide.h"

#define GIT_URL_MAX 500

void limits_json(struct json *j, const struct session *s, const struct limits *l)
{
    json_key(j, "limits");
    json_open(j, '{');
    if (session_must(s, PROVIDER_LIMITS, NULL) == 0) {
        json_member_uint(j, "memory_bytes", l->memory);
        json_member_uint(j, "pids", l->pids);
        json_member_milli(j, "cpu", l->cpu_milli);
    }
    if (session_must(s, PROVIDER_DISK, NULL) == 0) {
        json_member_uint(j, "disk_bytes", l->disk);
        json_member_uint(j, "files", l->files);
    }
    json_close(j, '}');
}

/* JSON that was checked when it came in, or a plain word. */
static void put_raw(struct json *j, const char *key, char *text)
{
    json_key(j, key);
    if (text && text[0] == '{') {
        buf_puts(j->out, text);
        j->need_comma = 1;
    } else {
        json_cstr(j, text);
    }
    free(text);
}

/* The members of a sandbox, in the order in which they are shown. */
#define MEMBERS(X)                                                                                 \
    X(id)                                                                                          \
    X(state)                                                                                       \
    X(end_cause)                                                                                   \
    X(end_reason)                                                                                  \
    X(provider)                                                                                    \
    X(reason)                                                                                      \
    X(mode)                                                                                        \
    X(isolation)                                                                                   \
    X(image)                                                                                       \
    X(template)                                                                                    \
    X(profile)                                                                                     \
    X(policy)                                                                                      \
    X(made_by)                                                                                     \
    X(user_id)                                                                                     \
    X(thread_id)                                                                                   \
    X(metadata)                                                                                    \
    X(network)                                                                                     \
    X(limits)                                                                                      \
    X(created_at)                                                                                  \
    X(expires_at)                                                                                  \
    X(last_used_at)                                                                                \
    X(ended_at)                                                                                    \
    X(idle_timeout_s)                                                                              \
    X(max_life_s)                                                                                  \
    X(from_pool)                                                                                   \
    X(recreated)                                                                                   \
    X(replaces)                                                                                    \
    X(processes)

#define PLACE(name) MEMBER_##name,
enum member { MEMBERS(PLACE) MEMBER_COUNT };
_Static_assert(MEMBER_COUNT <= 64, "a set of members is 64 bits");

static void put_member(struct json *j, struct session *s, const struct session_info *i,
                       enum member member)
{
    bool is_gone = i->state == SESSION_GONE;

    switch (member) {
    case MEMBER_id:
        json_member_cstr(j, "id", i->id);
        break;
    case MEMBER_state:
        json_member_cstr(j, "state", session_state_name(i->state));
        break;
    case MEMBER_end_cause:
        json_member_cstr(j, "end_cause", is_gone ? session_end_name(i->end) : NULL);
        break;
    case MEMBER_end_reason:
        json_member_str(j, "end_reason", is_gone ? i->end_reason : NULL);
        break;
    case MEMBER_provider:
        json_member_cstr(j, "provider", i->provider);
        break;
    case MEMBER_reason:
        json_member_str(j, "reason", i->reason);
        break;
    case MEMBER_mode:
        json_member_cstr(j, "mode", run_mode_name(i->mode));
        break;
    case MEMBER_isolation:
        json_member_cstr(j, "isolation", rung_name(i->rung));
        break;
    case MEMBER_image:
        json_member_str(j, "image", i->spec.image);
        break;
    case MEMBER_template:
        json_member_cstr(j, "template", i->template_name);
        break;
    case MEMBER_profile:
        json_member_cstr(j, "profile", profile_name(i->spec.profile));
        break;
    case MEMBER_policy:
        put_raw(j, "policy", session_policy(s));
        break;
    case MEMBER_made_by:
        json_member_str(j, "made_by", i->made_by);
        break;
    case MEMBER_user_id:
        json_member_str(j, "user_id", i->user_id);
        break;
    case MEMBER_thread_id:
        json_member_str(j, "thread_id", i->thread_id);
        break;
    case MEMBER_metadata:
        put_raw(j, "metadata", session_metadata(s));
        break;
    case MEMBER_network:
        json_key(j, "network");
        network_json(j, s);
        break;
    case MEMBER_limits:
        limits_json(j, s, &i->spec.limits);
        break;
    case MEMBER_created_at:
        json_time(j, "created_at", i->created_ms);
        break;
    case MEMBER_expires_at:
        json_time(j, "expires_at", i->expires_ms);
        break;
    case MEMBER_last_used_at:
        json_time(j, "last_used_at", i->last_used_ms);
        break;
    case MEMBER_ended_at:
        json_time(j, "ended_at", i->ended_ms);
        break;
    case MEMBER_idle_timeout_s:
        json_member_milli(j, "idle_timeout_s", i->idle_timeout_ms);
        break;
    case MEMBER_max_life_s:
        json_member_milli(j, "max_life_s", i->max_life_ms);
        break;
    case MEMBER_from_pool:
        json_member_bool(j, "from_pool", i->from_pool);
        break;
    case MEMBER_recreated:
        json_member_bool(j, "recreated", i->recreated);
        break;
    case MEMBER_replaces:
        json_member_str(j, "replaces", i->replaces);
        break;
    case MEMBER_processes:
        json_member_uint(j, "processes", i->processes);
        break;
    case MEMBER_COUNT:
        break;
    }
}

int sandbox_members_read(const char *text, uint64_t *ret, struct pd_err *e)
{
#define NAME(name) #name,
    static const char *const names[] = {MEMBERS(NAME)};
    uint64_t wanted = 0;

    for (const char *at = text;; at++) {
        size_t len = strcspn(at, ","), i = 0;
        while (i < MEMBER_COUNT && (strlen(names[i]) != len || memcmp(names[i], at, len) != 0))
            i++;
        if (i == MEMBER_COUNT)
            return pd_fail(e, PD_INVALID, "a sandbox has no member '%.*s'",
                           (int)(len < 40 ? len : 40), at);
        wanted |= 1ull << i;
        at += len;
        if (!*at)
            break;
    }
    *ret = wanted;
    return 0;
}

static void put_members(struct json *j, struct session *s, uint64_t members)
{
    struct session_info i;

    session_get(s, &i);
    for (unsigned m = 0; m < MEMBER_COUNT; m++)
        if (members >> m & 1)
            put_member(j, s, &i, (enum member)m);
}

void sandbox_json_some(struct json *j, struct session *s, uint64_t members)
{
    json_open(j, '{');
    put_members(j, s, members);
    json_close(j, '}');
}

void sandbox_json(struct json *j, struct session *s, const struct queue_place *place)
{
    json_open(j, '{');
    put_members(j, s, SANDBOX_WHOLE);

    if (place) {
        json_key(j, "queue");
        json_open(j, '{');
        json_member_uint(j, "position", place->position);
        json_member_uint(j, "waited_ms", place->waited_ms);
        json_close(j, '}');
    }
    json_close(j, '}');
}

int call_sandbox(struct call *c, int status, struct session *s, const struct queue_place *place)
{
    auto_buf out = BUF_INIT(128u << 10);
    struct json j = JSON_INIT(&out);
    sandbox_json(&j, s, place);
    return call_json(c, status, &out);
}

/* ---- the body of a creation ---- */

/* Those that are always there: a profile with a name. */
static const struct {
    const char *name;
    enum profile profile;
} templates[] = {
    {"default", PROFILE_STRICT}, {"base", PROFILE_DEV}, {"restricted", PROFILE_RESTRICTED}};

const char *template_name(unsigned n)
{
    return n < sizeof templates / sizeof *templates ? templates[n].name : NULL;
}

int template_find(const struct config *config, const char *name, const char **ret_name,
                  enum profile *ret_profile)
{
    const char *meant = config_template(config, name);
    const struct recipe *recipe = meant ? NULL : recipes_find(&config->recipes, name);
    const char *from = recipe ? recipe->from : meant ? meant : name;

    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        if (!strcmp(templates[i].name, from)) {
            *ret_name = recipe ? recipe->name : meant ? name : templates[i].name;
            *ret_profile = templates[i].profile;
            return 1;
        }

    return 0;
}

void request_defaults(const struct call *c, struct session_request *r)
{
    const struct config *config = c->config;
    const struct ceilings ceilings = config_ceilings(config, c->who.tenant);

    *r = (struct session_request){.spec = SPEC_DEFAULT,
                                  .tenant = c->who.tenant,
                                  .made_by = c->who.key_id,
                                  .queue_timeout_ms = config->queue_timeout_ms};

    r->spec.limits = (struct limits){.memory = config->memory_bytes,
                                     .pids = config->pids,
                                     .cpu_milli = config->cpu_milli,
                                     .disk = config->disk_bytes,
                                     .files = config->files};

    /* A tenant's own ceilings may be below the defaults of all. */
    ceilings_clip(&ceilings, &r->spec.limits);
    if (ceilings.life_ms < config->ceilings.life_ms)
        r->max_life_ms = ceilings.life_ms;
}

int call_check_ceilings(struct call *c, const struct session_request *r, struct pd_err *e)
{
    const struct ceilings ceilings = config_ceilings(c->config, c->who.tenant);
    const struct ceiling *row;
    uint64_t life = r->max_life_ms;

    if (ceilings_check(&ceilings, &r->spec.limits, life, &row, e) == 0)
        return 0;
    int is_life = row->offset == offsetof(struct ceilings, life_ms);
    snprintf(c->field, sizeof c->field, "%s%s", is_life ? "" : "limits.", row->field);
    return -1;
}

int call_check_image(struct call *c, const char *image, struct pd_err *e)
{
    bool is_id = !strncmp(image, "sha256:", 7);
    if (config_check_image(c->config, c->who.tenant, image, e) == 0 &&
        (!is_id || call_check_image_id(c, image, e) == 0))
        return 0;
    snprintf(c->field, sizeof c->field, "image");
    return -1;
}

void limits_read(struct fields *f, struct session_request *r)
{
    struct fields *o = fields_object(f, "limits", FIELD_OPTIONAL);
    struct limits *l = &r->spec.limits;

    int memory =
        fields_u64(o, "memory_bytes", FIELD_OPTIONAL, SPEC_MEMORY_MIN, SPEC_MEMORY_MAX, &l->memory);
    int pids = fields_u64(o, "pids", FIELD_OPTIONAL, SPEC_PIDS_MIN, SPEC_PIDS_MAX, &l->pids);
    int cpu = fields_milli(o, "cpu", FIELD_OPTIONAL, SPEC_CPU_MIN, SPEC_CPU_MAX, &l->cpu_milli);
    int disk = fields_u64(o, "disk_bytes", FIELD_OPTIONAL, SPEC_DISK_MIN, SPEC_DISK_MAX, &l->disk);
    int files = fields_u64(o, "files", FIELD_OPTIONAL, SPEC_FILES_MIN, SPEC_FILES_MAX, &l->files);
    r->disk_asked = disk || files;
    r->limits_asked = memory || pids || cpu;
}

static void read_policy(struct fields *f, struct create_request *r)
{
    static const char *const modes[] = {"allow", "deny", NULL};
    const char *word;
    unsigned mode = 0;

    if (fields_kind(f, "policy") != FIELD_OBJECT) {
        if (fields_str(f, "policy", FIELD_OPTIONAL, 1, 32, &word))
            buf_puts(&r->policy, word);
        return;
    }

    struct fields *o = fields_object(f, "policy", FIELD_OPTIONAL);
    struct msg_list_writer names = MSG_LIST_WRITER_INIT;
    fields_enum(o, "mode", FIELD_REQUIRED, modes, &mode);
    fields_str_list(o, "commands", FIELD_REQUIRED, 1, 256, 63, &names);

    struct json j = JSON_INIT(&r->policy);
    struct msg_list l = msg_list_of(&names);
    uint32_t pos = 0;

    json_open(&j, '{');
    json_member_cstr(&j, "mode", modes[mode]);
    json_key(&j, "commands");
    json_open(&j, '[');
    for (const char *n; (n = msg_list_next(&l, &pos));)
        json_cstr(&j, n);
    json_close(&j, ']');
    json_close(&j, '}');
    msg_list_writer_done(&names);
}

/* A sandbox that asks for none is made without a way out, as most are. */
static enum egress_mode read_network(struct call *c, struct fields *f, struct create_request *r)
{
    struct fields *o = fields_object(f, "network", FIELD_OPTIONAL);
    r->request.keeps_network = !o && config_egress(c->config, c->who.tenant) != EGRESS_OFF;
    if (!o && !r->recipe)
        return EGRESS_OFF;

    enum egress_mode mode =
        o ? network_read(c, o, &r->network) : recipe_network(c, r->recipe, &r->network);
    if (mode != EGRESS_OFF) {
        r->request.spec.network = NETWORK_GATE;
        r->request.network = buf_cstr(&r->network);
    }
    return mode;
}

/* With a snapshot it is as what that was made of, unless another template is asked for. */
static int read_template(struct call *c, struct fields *f, struct create_request *q)
{
    const struct config *config = c->config;
    struct session_request *r = &q->request;
    const char *name = config->default_template[0] ? config->default_template : "default";
    const char *snapshot = NULL;

    bool named = fields_str(f, "template", FIELD_OPTIONAL, 1, 127, &name) > 0;
    if (fields_str(f, "snapshot", FIELD_OPTIONAL, 1, SNAPSHOT_NAME_MAX, &snapshot)) {
        struct snapshot_info found;
        if (snapshots_find(c->api->sessions, c->who.tenant, snapshot, &found, NULL) < 0)
            return fields_refuse(f, "snapshot", "there is no snapshot '%.80s'", snapshot);
        memcpy(q->snapshot, found.id, sizeof q->snapshot);
        r->snapshot = q->snapshot;
        r->template_name = q->snapshot;
        r->spec.profile = found.profile;
        if (!named)
            return 1;
    }

    struct pd_err why;
    if (!template_find(config, name, &r->template_name, &r->spec.profile)) {
        if (snapshot || template_use(c->api->templates, c->who.tenant, name, &q->use, &why) < 0)
            return fields_refuse(f, "template",
                                 "'%.60s' is not known: default, base or restricted, or one of GET "
                                 "/v1/templates",
                                 name);
        q->is_built = true;
        r->snapshot = q->use.build.snapshot;
        r->template_name = q->use.build.name;
        r->spec.profile = q->use.build.profile;
        /* Before what the request says of them. */
        template_limits(c, q->use.build.cpu_milli, q->use.build.memory, q->use.disk, q->use.files,
                        &r->spec.limits);
        return 1;
    }

    q->recipe = recipes_find(&config->recipes, r->template_name);
    if (q->recipe) {
        recipe_limits(q->recipe, &r->spec.limits);
        if (!r->snapshot && q->recipe->image)
            r->spec.image = q->recipe->image;
    }
    return 1;
}

void fields_run_mode(struct fields *f, const char *name, enum run_mode *ret)
{
    unsigned mode;
    if (fields_enum(f, name, FIELD_OPTIONAL, run_mode_names(), &mode))
        *ret = (enum run_mode)(MODE_LOCAL + mode);
}

int call_check_provider(struct call *c, const struct session_request *r, struct pd_err *e)
{
    struct decision decision;
    struct pd_err why;
    if ((!r->provider && !r->mode) ||
        sessions_explain(c->api->sessions, r, &decision, NULL, &why) == 0 ||
        (why.code != PD_INVALID && !r->mode))
        return 0;
    snprintf(c->field, sizeof c->field, "%s", r->mode ? "mode" : "provider");
    return pd_fail(e, why.code, "%s", why.msg);
}

/* Before a sandbox is taken for it. */
static int check_policy(struct call *c, const char *text, struct pd_err *e)
{
    auto_policy policy = {0};
    if (!text || policy_parse(text, &policy, e) == 0)
        return 0;
    snprintf(c->field, sizeof c->field, "policy");
    return -1;
}

/* The provider judges it: what others would ignore they refuse. */
static void read_git_url(struct fields *f, struct create_request *ret)
{
    const char *url = NULL;
    struct json j = JSON_INIT(&ret->options);

    if (!fields_str(f, "git_url", FIELD_OPTIONAL, 1, GIT_URL_MAX, &url))
        return;
    json_open(&j, '{');
    json_member_cstr(&j, "git_url", url);
    json_close(&j, '}');
    if (ret->options.overflow)
        fields_refuse(f, "git_url", "is too long");
    else
        ret->request.spec.options = buf_cstr(&ret->options);
}

int create_request_read(struct call *c, struct fields *f, struct create_request *ret, int by_thread,
                        struct pd_err *e)
{
    struct session_request *r = &ret->request;
    static const char *const profiles[] = {"strict", "dev", "restricted", NULL};
    static const char *const pulls[] = {"never", "missing", "always", NULL};
    struct pd_err bad;
    unsigned profile, pull;

    *ret = (struct create_request){.env = MSG_LIST_WRITER_INIT,
                                   .metadata = BUF_INIT(METADATA_MAX),
                                   .policy = BUF_INIT(32u << 10),
                                   .network = BUF_INIT(EGRESS_RULES_MAX),
                                   .options = BUF_INIT(4096),
                                   .use.context = BUILD_CONTEXT_INIT};

    request_defaults(c, r);
    read_template(c, f, ret);
    if (fields_enum(f, "profile", FIELD_OPTIONAL, profiles, &profile))
        r->spec.profile = (enum profile)profile;
    fields_str(f, "provider", FIELD_OPTIONAL, 1, PROVIDER_NAME_MAX, &r->provider);
    if (fields_str(f, "image", FIELD_OPTIONAL, 1, SPEC_IMAGE_MAX, &r->spec.image) &&
        spec_check_image(r->spec.image, &bad) < 0)
        fields_refuse(f, "image", "%s", bad.msg);
    if (fields_enum(f, "pull", FIELD_OPTIONAL, pulls, &pull))
        r->pull = (enum image_pull)(IMAGE_PULL_NEVER + pull);
    if (r->pull != IMAGE_PULL_USUAL && !r->spec.image[0])
        fields_refuse(f, "pull", "goes with `image`");
    read_git_url(f, ret);
    fields_run_mode(f, "mode", &r->mode);

    if (!by_thread) {
        int user = fields_str(f, "user_id", FIELD_OPTIONAL, 1, SESSION_NAME_MAX, &r->user_id);
        int thread = fields_str(f, "thread_id", FIELD_OPTIONAL, 1, SESSION_NAME_MAX, &r->thread_id);
        if (user != thread)
            fields_refuse(f, user ? "thread_id" : "user_id", "user_id and thread_id go together");
    } else {
        fields_bool(f, "auto_retry", FIELD_OPTIONAL, &r->auto_retry);
    }

    if (fields_strings(f, "metadata", FIELD_OPTIONAL, 64, METADATA_MAX - 1, &ret->metadata))
        r->metadata = buf_cstr(&ret->metadata);
    fields_env(f, "env", FIELD_OPTIONAL, &ret->env, NULL);
    if (ret->recipe && recipe_env(ret->recipe, &ret->env) < 0)
        fields_refuse(f, "env", "is too long, with the template's");
    r->env = msg_list_of(&ret->env);
    if (fields_str(f, "cwd", FIELD_OPTIONAL, 1, SPEC_PATH_MAX - 1, &r->cwd) && r->cwd[0] != '/')
        fields_refuse(f, "cwd", "'%.100s' must be an absolute path", r->cwd);
    if (ret->is_built)
        template_apply(&ret->use, r, &ret->env);

    read_policy(f, ret);
    enum egress_mode egress = read_network(c, f, ret);
    limits_read(f, r);
    fields_seconds_ms(f, "idle_timeout_s", FIELD_OPTIONAL, 1000, 30ull * 86400000,
                      &r->idle_timeout_ms);
    fields_seconds_ms(f, "max_life_s", FIELD_OPTIONAL, 1000, CEILING_LIFE_MAX, &r->max_life_ms);
    fields_seconds_ms(f, "queue_timeout_s", FIELD_OPTIONAL, 0, 3600000, &r->queue_timeout_ms);

    if (call_finish(c, f, e) < 0)
        return -1;

    if (ret->policy.len)
        r->policy = buf_cstr(&ret->policy);
    else if (r->spec.profile == PROFILE_RESTRICTED)
        r->policy = "restricted";

    if (call_check_egress(c, egress, r->network, e) < 0 ||
        call_check_image(c, r->spec.image, e) < 0 || call_check_provider(c, r, e) < 0 ||
        check_policy(c, r->policy, e) < 0 || call_check_ceilings(c, r, e) < 0)
        return -1;
    return spec_check(&r->spec, e);
}

void create_request_done(struct create_request *r)
{
    msg_list_writer_done(&r->env);
    buf_done(&r->metadata);
    buf_done(&r->policy);
    buf_done(&r->network);
    buf_done(&r->options);
    template_use_done(&r->use);
}
