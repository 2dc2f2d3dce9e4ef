/* Templates and snapshots at the E2B door. Both are what a sandbox can be made from, so both have
 * the same names: a templateID. */
#include "api/e2b.h"
#include "api/e2b_handlers.h"
#include "api/sandbox.h"

#include "base/banned.h"
#include "base/json.h"
#include "config/config.h"

#define PAGE_MAX 100u

/* ---- names ---- */

static bool is_name(const char *text, size_t len)
{
    static const char valid[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return len > 0 && len <= 63 && strspn(text, valid) >= len;
}

int e2b_snapshot_name(const char *tenant, const char *text, char out[SNAPSHOT_NAME_MAX + 1],
                      struct pd_err *e)
{
    const char *slash = strchr(text, '/'), *name = slash ? slash + 1 : text;
    size_t len = strcspn(name, ":");
    const char *tag = name[len] ? name + len + 1 : "default";

    if (slash &&
        (strlen(tenant) != (size_t)(slash - text) || memcmp(tenant, text, strlen(tenant)) != 0))
        return pd_fail(e, PD_INVALID, "'%.100s' is not in the namespace '%.63s'", text, tenant);
    if (!is_name(name, len) || !is_name(tag, strlen(tag)))
        return pd_fail(e, PD_INVALID,
                       "'%.100s' is not [NAMESPACE/]NAME[:TAG] of letters, digits and '._-'", text);

    snprintf(out, SNAPSHOT_NAME_MAX + 1, "%.*s", (int)len, name);
    if (strcmp(tag, "default") != 0)
        snprintf(out + len, SNAPSHOT_NAME_MAX + 1 - len, ":%s", tag);
    return 0;
}

static int fail_unknown(struct call *c, const char *text, struct pd_err *e)
{
    auto_buf names = BUF_INIT(160);

    for (unsigned i = 0; template_name(i); i++)
        buf_printf(&names, "%s%s", i ? ", " : "", template_name(i));
    for (unsigned i = 0; i < c->config->templates.count; i++)
        buf_printf(&names, ", %.*s", (int)strcspn(c->config->templates.items[i], "="),
                   c->config->templates.items[i]);

    for (unsigned i = 0; i < c->config->recipes.count; i++)
        buf_printf(&names, ", %s", c->config->recipes.at[i]->name);

    return pd_fail(e, PD_NOT_FOUND, "there is no template or snapshot '%.63s'; templates are %s",
                   text, buf_cstr(&names) ? buf_cstr(&names) : "");
}

/* Without its tag. */
static const char *bare_name(const char *name, char out[64])
{
    snprintf(out, 64, "%.*s", (int)strcspn(name, ":"), name);
    return out;
}

void e2b_template_done(struct e2b_template *t)
{
    template_use_done(&t->use);
}

int e2b_template_read(struct call *c, const char *text, struct e2b_template *ret, struct pd_err *e)
{
    char name[SNAPSHOT_NAME_MAX + 1];
    struct snapshot_info i;

    *ret = (struct e2b_template){.use.context = BUILD_CONTEXT_INIT};
    if (e2b_snapshot_name(c->who.tenant, text, name, e) < 0)
        return fail_unknown(c, text, e);

    if (strlen(name) < sizeof ret->given) {
        snprintf(ret->given, sizeof ret->given, "%s", name);
        if (template_find(c->config, ret->given, &ret->name, &ret->profile))
            return 0;
    }

    if (template_use(c->api->templates, c->who.tenant, name, &ret->use, e) == 0) {
        memcpy(ret->snapshot, ret->use.build.snapshot, sizeof ret->snapshot);
        ret->name = ret->use.build.name;
        ret->profile = ret->use.build.profile;
        ret->is_built = true;
        return 0;
    }
    struct build_info known;
    struct pd_err why = *e;
    if (template_newest(c->api->templates, c->who.tenant, bare_name(name, ret->given), &known, e) ==
        0) {
        *e = why; /* there is one, but not with this tag, or not yet */
        return -1;
    }
    snprintf(ret->given, sizeof ret->given, "%.63s", name);

    if (snapshots_find(c->api->sessions, c->who.tenant, name, &i, e) < 0)
        return e->code == PD_NOT_FOUND ? fail_unknown(c, text, e) : -1;

    memcpy(ret->snapshot, i.id, sizeof ret->snapshot);
    ret->name = ret->snapshot;
    ret->profile = i.profile;
    return 0;
}

/* ---- snapshots ---- */

static void put_snapshot(struct json *j, const struct snapshot_info *i)
{
    char name[sizeof i->tenant + sizeof i->name + 16];

    json_open(j, '{');
    json_member_cstr(j, "snapshotID", i->id);
    json_key(j, "names");
    json_open(j, '[');
    if (i->name[0]) {
        snprintf(name, sizeof name, "%s/%s%s", i->tenant, i->name,
                 strchr(i->name, ':') ? "" : ":default");
        json_cstr(j, name);
    }
    json_close(j, ']');
    json_close(j, '}');
}

int e2b_snapshot_create(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(4096);
    auto_fields f = {0};
    struct json j = JSON_INIT(&out);
    char name[SNAPSHOT_NAME_MAX + 1] = "";
    const char *text = NULL, *known;
    enum profile profile;
    struct snapshot_info i;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;

    fields_str(&f, "name", FIELD_OPTIONAL, 0, 255, &text);
    if (call_finish(c, &f, e) < 0 ||
        (text && text[0] && e2b_snapshot_name(c->who.tenant, text, name, e) < 0))
        return -1;

    if (template_find(c->config, name, &known, &profile))
        return pd_fail(e, PD_CONFLICT, "'%s' is the name of a template of this server", name);
    if (session_snapshot(c->session, name[0] ? name : NULL, &i, e) < 0)
        return -1;

    put_snapshot(&j, &i);
    return call_json(c, 201, &out);
}

int e2b_snapshots_list(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"sandboxID", "name", "limit", "nextToken", NULL};
    char sandbox[64], text[256], name[SNAPSHOT_NAME_MAX + 1], cursor[64], next[64] = "";
    uint64_t limit = PAGE_MAX;
    unsigned count = 0;
    int has_sandbox, has_name, has_cursor, r = 0;
    auto_buf out = BUF_INIT(1u << 20);
    struct json j = JSON_INIT(&out);
    struct pd_err ignored;

    if (call_query_check(c, allowed, e) < 0 ||
        (has_sandbox = call_query(c, "sandboxID", sandbox, sizeof sandbox, e)) < 0 ||
        (has_name = call_query(c, "name", text, sizeof text, e)) < 0 ||
        (has_cursor = call_query(c, "nextToken", cursor, sizeof cursor, e)) < 0 ||
        call_query_u64(c, "limit", 1, PAGE_MAX, &limit, e) < 0)
        return -1;

    struct snapshot_info *found = calloc(PAGE_MAX, sizeof *found);
    if (!found)
        return pd_fail(e, PD_CAPACITY, "no memory for the list");

    /* A name may be an id as well; what can be neither has no snapshots. */
    if (has_name && e2b_snapshot_name(c->who.tenant, text, name, &ignored) < 0)
        count = 0;
    else if (has_name && !has_cursor &&
             snapshots_find(c->api->sessions, c->who.tenant, name, found, &ignored) == 0)
        count = !has_sandbox || !strcmp(found->sandbox, sandbox);
    else if (!has_name)
        r = snapshots_list(c->api->sessions, c->who.tenant, has_sandbox ? sandbox : NULL, NULL,
                           has_cursor && cursor[0] ? cursor : NULL, (unsigned)limit, found, &count,
                           next, e);

    json_open(&j, '[');
    for (unsigned i = 0; i < count; i++)
        put_snapshot(&j, &found[i]);
    json_close(&j, ']');
    free(found);

    if (r < 0)
        return -1;
    if (next[0])
        reply_header(c->r, "X-Next-Token", next);
    return call_json(c, 200, &out);
}

/* ---- templates ---- */

int e2b_template_delete(struct call *c, struct pd_err *e)
{
    auto_template t = {0};
    struct build_info built;

    if (call_no_query(c, e) < 0)
        return -1;
    if (template_newest(c->api->templates, c->who.tenant, c->var[0], &built, e) == 0)
        return template_delete(c->api->templates, c->who.tenant, c->var[0], e) < 0 ? -1
                                                                                   : call_empty(c);
    if (e2b_template_read(c, c->var[0], &t, e) < 0)
        return -1;

    if (!t.snapshot[0])
        return pd_fail(e, PD_DENIED, "'%s' is a template of this server, and stays", t.name);
    if (snapshot_delete(c->api->sessions, c->who.tenant, t.snapshot, e) < 0)
        return -1;
    return call_empty(c);
}

int e2b_template_alias(struct call *c, struct pd_err *e)
{
    auto_template t = {0};
    struct build_info built;
    auto_buf out = BUF_INIT(1024);
    struct json j = JSON_INIT(&out);
    const char *id = built.template_id;

    if (call_no_query(c, e) < 0)
        return -1;
    if (template_newest(c->api->templates, c->who.tenant, c->var[0], &built, e) < 0) {
        if (e2b_template_read(c, c->var[0], &t, e) < 0)
            return -1;
        id = t.name;
    }

    json_open(&j, '{');
    json_member_cstr(&j, "templateID", id);
    json_member_bool(&j, "public", id == t.name && !t.snapshot[0]);
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

static void put_template(const struct call *c, struct json *j, const char *name, size_t len)
{
    const struct config *config = c->config;

    json_open(j, '{');
    json_key(j, "templateID");
    json_str(j, name, len);
    json_member_cstr(j, "buildID", "00000000-0000-0000-0000-000000000000");
    json_member_uint(j, "cpuCount", (config->cpu_milli + 999) / 1000);
    json_member_uint(j, "memoryMB", config->memory_bytes >> 20);
    json_member_uint(j, "diskSizeMB", config->disk_bytes >> 20);
    json_member_bool(j, "public", 1);

    for (int i = 0; i < 2; i++) {
        json_key(j, i ? "names" : "aliases");
        json_open(j, '[');
        json_str(j, name, len);
        json_close(j, ']');
    }

    json_time(j, "createdAt", 1);
    json_time(j, "updatedAt", 1);
    json_member_cstr(j, "createdBy", NULL);
    json_member_cstr(j, "lastSpawnedAt", NULL);
    json_member_uint(j, "spawnCount", 0);
    json_member_uint(j, "buildCount", 1);
    json_member_cstr(j, "envdVersion", E2B_ENVD_VERSION);
    json_member_cstr(j, "buildStatus", "ready");
    json_close(j, '}');
}

int e2b_templates_list(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"teamID", "limit", "nextToken", NULL};
    auto_buf out = BUF_INIT(1u << 20);
    struct json j = JSON_INIT(&out);

    if (call_query_check(c, allowed, e) < 0)
        return -1;
    struct build_info *all = calloc(BUILDS_MAX, sizeof *all);
    if (!all)
        return pd_fail(e, PD_CAPACITY, "no memory for the list");
    unsigned count = builds_list(c->api->templates, c->who.tenant, NULL, all, BUILDS_MAX);

    json_open(&j, '[');
    for (unsigned i = 0; i < count; i++) {
        unsigned builds = 0, before = 0;
        for (unsigned k = 0; k < count; k++) {
            bool same = !strcmp(all[k].template_id, all[i].template_id);
            builds += same;
            before += same && k < i;
        }
        if (!before)
            e2b_put_built(c, &j, &all[i], builds);
    }
    free(all);
    for (unsigned i = 0; template_name(i); i++)
        put_template(c, &j, template_name(i), strlen(template_name(i)));
    for (unsigned i = 0; i < c->config->templates.count; i++) {
        const char *pair = c->config->templates.items[i];
        put_template(c, &j, pair, strcspn(pair, "="));
    }
    for (unsigned i = 0; i < c->config->recipes.count; i++) {
        const char *name = c->config->recipes.at[i]->name;
        put_template(c, &j, name, strlen(name));
    }
    json_close(&j, ']');
    return call_json(c, 200, &out);
}

/* ---- what there is not ---- */

int e2b_not_here(struct call *c, struct pd_err *e)
{
    static const struct {
        const char *part, *text;
    } here[] = {
        {"templates", "templates are built from steps here (POST /v3/templates), not from images "
                      "that are pushed "
                      "to a registry"},
        {"volume", "this server has no volumes: snapshots keep files, and so does a pause"},
        {"secrets",
         "secrets are not kept at this door: PUT /v1/secrets/NAME keeps one, and network "
         "of POST /v1/sandboxes lends it"},
        {"teams", "this server has tenants, one per key: paddock key list, and GET /metrics"},
    };

    for (size_t i = 0; i < sizeof here / sizeof *here; i++)
        if (strstr(c->route->pattern, here[i].part))
            return pd_fail(e, PD_UNSUPPORTED, "%s", here[i].text);

    return pd_fail(e, PD_UNSUPPORTED, "this server has nothing of this kind");
}
