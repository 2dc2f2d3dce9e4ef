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

    return pd_fail(e, PD_NOT_FOUND, "there is no template or snapshot '%.63s'; templates are %s",
                   text, buf_cstr(&names) ? buf_cstr(&names) : "");
}

int e2b_template_read(struct call *c, const char *text, struct e2b_template *ret, struct pd_err *e)
{
    char name[SNAPSHOT_NAME_MAX + 1];
    struct snapshot_info i;

    *ret = (struct e2b_template){0};
    if (e2b_snapshot_name(c->who.tenant, text, name, e) < 0)
        return fail_unknown(c, text, e);

    if (strlen(name) < sizeof ret->given) {
        snprintf(ret->given, sizeof ret->given, "%s", name);
        if (template_find(c->config, ret->given, &ret->name, &ret->profile))
            return 0;
    }

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
    struct e2b_template t;

    if (call_no_query(c, e) < 0 || e2b_template_read(c, c->var[0], &t, e) < 0)
        return -1;

    if (!t.snapshot[0])
        return pd_fail(e, PD_DENIED, "'%s' is a template of this server, and stays", t.name);
    if (snapshot_delete(c->api->sessions, c->who.tenant, t.snapshot, e) < 0)
        return -1;
    return call_empty(c);
}

int e2b_template_alias(struct call *c, struct pd_err *e)
{
    struct e2b_template t;
    auto_buf out = BUF_INIT(1024);
    struct json j = JSON_INIT(&out);

    if (call_no_query(c, e) < 0 || e2b_template_read(c, c->var[0], &t, e) < 0)
        return -1;

    json_open(&j, '{');
    json_member_cstr(&j, "templateID", t.name);
    json_member_bool(&j, "public", !t.snapshot[0]);
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

    json_open(&j, '[');
    for (unsigned i = 0; template_name(i); i++)
        put_template(c, &j, template_name(i), strlen(template_name(i)));
    for (unsigned i = 0; i < c->config->templates.count; i++) {
        const char *pair = c->config->templates.items[i];
        put_template(c, &j, pair, strcspn(pair, "="));
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
        {"templates",
         "this server builds no images: make a sandbox, set it up, and take a snapshot "
         "(POST /sandboxes/ID/snapshots), which is a template too"},
        {"volume", "this server has no volumes: snapshots keep files, and so does a pause"},
        {"secrets", "this server keeps no secrets: give them to a sandbox as envVars"},
        {"teams", "this server has tenants, one per key: paddock key list, and GET /metrics"},
    };

    for (size_t i = 0; i < sizeof here / sizeof *here; i++)
        if (strstr(c->route->pattern, here[i].part))
            return pd_fail(e, PD_UNSUPPORTED, "%s", here[i].text);

    return pd_fail(e, PD_UNSUPPORTED, "this server has nothing of this kind");
}
