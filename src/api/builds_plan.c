/* Plans of builds from requests, and what sandboxes have of their template. */
#include "api/builds.h"
#include "api/sandbox.h"

#include "base/banned.h"
#include "config/config.h"

#define COMMAND_MAX 65536u

int template_check_name(struct call *c, const char *name, struct pd_err *e)
{
    const char *known;
    enum profile profile;
    if (!template_find(c->config, name, &known, &profile))
        return 0;
    snprintf(c->field, sizeof c->field, "name");
    return pd_fail(e, PD_CONFLICT, "'%.63s' is the name of a template of this server", name);
}

void template_limits(const struct call *c, uint64_t cpu_milli, uint64_t memory, uint64_t disk,
                     uint64_t files, struct limits *ret)
{
    struct session_request r;
    const struct ceilings ceilings = config_ceilings(c->config, c->who.tenant);

    request_defaults(c, &r);
    if (cpu_milli)
        r.spec.limits.cpu_milli = cpu_milli;
    if (memory)
        r.spec.limits.memory = memory;
    if (disk > r.spec.limits.disk)
        r.spec.limits.disk = disk;
    if (files > r.spec.limits.files)
        r.spec.limits.files = files;
    ceilings_clip(&ceilings, &r.spec.limits);
    *ret = r.spec.limits;
}

/* With a way out wherever there can be one: what a build installs comes from elsewhere. */
static int plan_network(struct call *c, struct build_plan *p, struct pd_err *e)
{
    const struct provider *jail = provider_table_choose(c->api->providers, NULL, NULL);
    if (config_egress(c->config, c->who.tenant) == EGRESS_OFF || !c->api->egress ||
        !provider_has(jail, PROVIDER_EGRESS))
        return 0;
    p->network = strdup("layer open\n");
    return p->network ? 0 : pd_fail(e, PD_CAPACITY, "no memory for a build");
}

static int begin_with_image(struct call *c, struct build_plan *p, const char *image,
                            struct pd_err *e)
{
    if (spec_check_image(image, e) < 0 || call_check_image(c, image, e) < 0) {
        snprintf(c->field, sizeof c->field, "image");
        return -1;
    }
    snprintf(p->image, sizeof p->image, "%s", image);
    snprintf(p->base, sizeof p->base, "image %s", image);
    p->profile = PROFILE_DEV;
    return 0;
}

static int begin_with_template(struct call *c, struct build_plan *p, const char *text,
                               struct pd_err *e)
{
    const char *known;
    auto_use u = {.context = BUILD_CONTEXT_INIT};

    if (template_find(c->config, text, &known, &p->profile)) {
        if (recipes_find(&c->config->recipes, known)) {
            snprintf(c->field, sizeof c->field, "template");
            return pd_fail(
                e, PD_UNSUPPORTED,
                "'%.63s' is a file of this server, which says what is done when a sandbox "
                "is made: a build begins with an image, a profile or a build",
                text);
        }
        snprintf(p->base, sizeof p->base, "template %.63s", text);
        return 0;
    }
    if (template_use(c->api->templates, c->who.tenant, text, &u, e) < 0) {
        snprintf(c->field, sizeof c->field, "template");
        return -1;
    }

    snprintf(p->base, sizeof p->base, "template %.200s", text);
    memcpy(p->snapshot, u.build.snapshot, sizeof u.build.snapshot);
    p->profile = u.build.profile;
    build_context_done(&p->context);
    p->context = u.context;
    u.context = BUILD_CONTEXT_INIT;
    p->start = u.start;
    p->ready = u.ready;
    u.start = u.ready = NULL;
    return 0;
}

int template_plan_begin(struct call *c, struct build_plan *p, const char *image,
                        const char *template, const struct limits *limits, struct pd_err *e)
{
    p->limits = *limits;
    snprintf(p->made_by, sizeof p->made_by, "%s", c->who.key_id);
    if (image && template) {
        snprintf(c->field, sizeof c->field, "image");
        return pd_fail(e, PD_INVALID, "image, template: a build begins with one of them");
    }
    if (plan_network(c, p, e) < 0)
        return -1;
    return image ? begin_with_image(c, p, image, e)
                 : begin_with_template(c, p, template ? template : "base", e);
}

void template_plan_steps(struct fields *f, const char *name, const char *files,
                         struct build_plan *p)
{
    struct fields *one;
    struct pd_err e;

    for (size_t i = 0; (one = fields_item(f, name, PLAN_STEPS_MAX, i)); i++) {
        struct msg_list_writer args = MSG_LIST_WRITER_INIT;
        const char *type = "", *hash = NULL;
        bool force = false;
        fields_str(one, "type", FIELD_REQUIRED, 1, 16, &type);
        fields_str_list(one, "args", FIELD_OPTIONAL, 0, PLAN_ARGS_MAX, PLAN_ARG_MAX, &args);
        fields_str(one, files, FIELD_OPTIONAL, 0, 64, &hash);
        fields_bool(one, "force", FIELD_OPTIONAL, &force);
        /* E2B's clients send what is for them alone, too. */
        (void)fields_has(one, "forceUpload");
        (void)fields_has(one, "resolveSymlinks");
        (void)fields_has(one, "gzip");

        struct msg_list words = msg_list_of(&args);
        if (type[0] && plan_add_step(p, type, &words, hash, force, &e) < 0)
            fields_refuse(one, "args", "%s", e.msg);
        msg_list_writer_done(&args);
    }
}

static int replace(char **at, const char *text, struct pd_err *e)
{
    if (!text)
        return 0;
    if (strlen(text) > COMMAND_MAX)
        return pd_fail(e, PD_TOO_LARGE, "a command is longer than %u bytes", COMMAND_MAX);
    free(*at);
    *at = text[0] ? strdup(text) : NULL;
    return text[0] && !*at ? pd_fail(e, PD_CAPACITY, "no memory for a build") : 0;
}

int template_plan_end(struct build_plan *p, const char *start, const char *ready, struct pd_err *e)
{
    /* Another start is not what the inherited word of its readiness was about. */
    if (start && !ready)
        ready = "";
    return replace(&p->start, start, e) < 0 || replace(&p->ready, ready, e) < 0 ? -1 : 0;
}

static bool has_variable(const struct msg_list *l, const char *pair)
{
    size_t len = strcspn(pair, "=") + 1;
    uint32_t pos = 0;
    for (const char *v; (v = msg_list_next(l, &pos));)
        if (!strncmp(v, pair, len))
            return true;
    return false;
}

void template_apply(const struct template_use *u, struct session_request *r,
                    struct msg_list_writer *env)
{
    struct msg_list own = msg_list_of(&u->context.env);
    uint32_t pos = 0;

    for (const char *v; (v = msg_list_next(&own, &pos));) {
        struct msg_list given = msg_list_of(env);
        if (!has_variable(&given, v))
            (void)msg_list_add(env, v);
    }
    r->env = msg_list_of(env);
    if (!r->cwd)
        r->cwd = u->context.workdir;
}
