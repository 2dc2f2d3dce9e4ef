/* Builds of templates at the E2B door. Their clients ask for a build, send the files that it copies
 * to an address that they are given, start it, and ask for its state and log until it has ended. */
#include "api/builds.h"
#include "api/e2b.h"
#include "api/e2b_handlers.h"
#include "api/sandbox.h"

#include "base/banned.h"
#include "base/base64.h"
#include "base/json.h"
#include "build/files.h"
#include "config/config.h"
#include "wire/image_ref.h"

#define LOG_PAGE    100u
#define COMMAND_MAX 65536u
#define CPU_MAX     1024u
#define MEMORY_MAX  (UINT64_C(1) << 24) /* MiB */
#define LOGIN_MAX   3800u /* a service account's key has 2,400 bytes; with a user 4,096 */

/* [NAMESPACE/]NAME[:TAG]; the tag is added to the list. */
static int split_name(struct call *c, const char *text, char name[64], struct msg_list_writer *tags,
                      struct pd_err *e)
{
    char full[SNAPSHOT_NAME_MAX + 1];
    if (e2b_snapshot_name(c->who.tenant, text, full, e) < 0)
        return -1;

    size_t len = strcspn(full, ":");
    if (len > 63)
        return pd_fail(e, PD_INVALID, "the name '%.80s' is longer than 63 characters", text);
    snprintf(name, 64, "%.*s", (int)len, full);
    /* Said, the usual tag is one as well. */
    const char *colon = strchr(text, ':');
    return colon && msg_list_add(tags, colon + 1) < 0 ? pd_fail(e, PD_TOO_LARGE, "too many tags")
                                                      : 0;
}

static void put_names(struct call *c, struct json *j, const char *name)
{
    char full[130];
    json_key(j, "aliases");
    json_open(j, '[');
    json_cstr(j, name);
    json_close(j, ']');
    json_key(j, "names");
    json_open(j, '[');
    snprintf(full, sizeof full, "%s/%s", c->who.tenant, name);
    json_cstr(j, full);
    json_close(j, ']');
}

static void put_tags(struct json *j, const struct build_info *i)
{
    json_key(j, "tags");
    json_open(j, '[');
    for (const char *at = i->tags; *at;) {
        size_t len = strcspn(at, "\n");
        json_str(j, at, len);
        at += len + (at[len] == '\n');
    }
    json_close(j, ']');
}

/* ---- asking for one ---- */

static int request_build(struct call *c, struct fields *f, const char *name_field,
                         struct build_info *ret, struct pd_err *e)
{
    const char *text = NULL, *alias = NULL, *team;
    char name[64];
    uint64_t cpus = 2, memory = 1024;
    struct msg_list_writer tags = MSG_LIST_WRITER_INIT;
    struct limits limits;

    fields_str(f, name_field, FIELD_OPTIONAL, 1, 200, &text);
    if (strcmp(name_field, "alias") != 0)
        fields_str(f, "alias", FIELD_OPTIONAL, 1, 200, &alias);
    fields_str_list(f, "tags", FIELD_OPTIONAL, 0, BUILD_TAGS_MAX, 63, &tags);
    fields_str(f, "teamID", FIELD_OPTIONAL, 0, 200, &team);
    fields_u64(f, "cpuCount", FIELD_OPTIONAL, 1, CPU_MAX, &cpus);
    fields_u64(f, "memoryMB", FIELD_OPTIONAL, 64, MEMORY_MAX, &memory);
    if (!text && !alias)
        fields_refuse(f, name_field, "is missing: the template's name");
    if (!text)
        text = alias;

    int bad = call_finish(c, f, e) < 0 || split_name(c, text, name, &tags, e) < 0 ||
              template_check_name(c, name, e) < 0;
    if (!bad) {
        struct msg_list list = msg_list_of(&tags);
        /* More than may be had is no error: the clients' own default may be above it. */
        template_limits(c, cpus * 1000, memory << 20, 0, 0, &limits);
        bad = build_new(c->api->templates, c->who.tenant, c->who.key_id, name, &list,
                        limits.cpu_milli, limits.memory, ret, e) < 0;
    }
    msg_list_writer_done(&tags);
    return bad ? -1 : 0;
}

int e2b_build_request(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(8192);
    auto_fields f = {0};
    struct json j = JSON_INIT(&out);
    struct build_info i;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0 ||
        request_build(c, &f, "name", &i, e) < 0)
        return -1;

    snprintf(c->summary, sizeof c->summary, "%s build %s", i.name, i.id);
    json_open(&j, '{');
    json_member_cstr(&j, "templateID", i.template_id);
    json_member_cstr(&j, "buildID", i.id);
    json_member_bool(&j, "public", 0);
    put_names(c, &j, i.name);
    put_tags(&j, &i);
    json_close(&j, '}');
    return call_json(c, 202, &out);
}

void e2b_put_built(struct call *c, struct json *j, const struct build_info *i, unsigned builds)
{
    json_open(j, '{');
    json_member_cstr(j, "templateID", i->template_id);
    json_member_cstr(j, "buildID", i->id);
    json_member_uint(j, "cpuCount", (i->cpu_milli + 999) / 1000);
    json_member_uint(j, "memoryMB", i->memory >> 20);
    json_member_uint(j, "diskSizeMB", c->config->disk_bytes >> 20);
    json_member_bool(j, "public", 0);
    put_names(c, j, i->name);
    json_time(j, "createdAt", i->created_ms);
    json_time(j, "updatedAt", i->updated_ms);
    json_member_cstr(j, "createdBy", NULL);
    json_member_cstr(j, "lastSpawnedAt", NULL);
    json_member_uint(j, "spawnCount", 0);
    json_member_uint(j, "buildCount", builds);
    json_member_cstr(j, "envdVersion", E2B_ENVD_VERSION);
    json_member_cstr(j, "buildStatus", build_state_name(i->state));
    json_close(j, '}');
}

int e2b_build_request_v2(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(8192);
    auto_fields f = {0};
    struct json j = JSON_INIT(&out);
    struct build_info i;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0 ||
        request_build(c, &f, "alias", &i, e) < 0)
        return -1;
    snprintf(c->summary, sizeof c->summary, "%s build %s", i.name, i.id);
    e2b_put_built(c, &j, &i, 1);
    return call_json(c, 202, &out);
}

/* ---- files ---- */

int e2b_build_files(struct call *c, struct pd_err *e)
{
    auto_buf out = BUF_INIT(2048);
    struct json j = JSON_INIT(&out);
    struct build_info i;
    struct files *files = templates_files(c->api->templates);
    char permit[PERMIT_LEN + 1], url[512];
    struct slice host = c->r->head.host;

    if (call_no_query(c, e) < 0 ||
        template_newest(c->api->templates, c->who.tenant, c->var[0], &i, e) < 0)
        return -1;
    if (!files_is_hash(c->var[1]))
        return pd_fail(e, PD_INVALID, "'%.80s' is no hash of 64 hex digits in small letters",
                       c->var[1]);
    if (permits_make(files, c->who.tenant, c->var[1], permit, e) < 0)
        return -1;

    /* Under the name by which the caller has reached this server. */
    snprintf(url, sizeof url, "%s://%.*s/templates/upload/%s",
             conn_is_tls(c->r->conn) ? "https" : "http", host.len > 300 ? 300 : (int)host.len,
             host.at, permit);
    json_open(&j, '{');
    json_member_bool(&j, "present", files_has(files, c->who.tenant, c->var[1]));
    json_member_cstr(&j, "url", url);
    json_close(&j, '}');
    reply_header(c->r, "Cache-Control", "no-store");
    return call_json(c, 201, &out);
}

/* Whoever has the address may send one file to it, and needs no key. */
int e2b_build_upload(struct call *c, struct pd_err *e)
{
    char tenant[64], hash[SHA256_HEX_SIZE];

    if (permits_take(templates_files(c->api->templates), c->var[0], tenant, hash, e) < 0)
        return -1;
    snprintf(c->who.tenant, sizeof c->who.tenant, "%s", tenant);
    snprintf(c->summary, sizeof c->summary, "%.12s", hash);
    if (call_count(c, e) < 0)
        return -1;
    if (template_take_files(c, hash, false, e) < 0)
        return -1;
    return reply(c->r, 200, "text/plain", "", 0);
}

/* ---- starting one ---- */

struct image_login {
    const char *user, *password; /* NULL: none was given */
};

/* Google's registries take a service account's key as a password. */
static void read_login(struct fields *f, struct image_login *ret)
{
    static const char *const types[] = {"registry", "gcp", "aws", NULL};
    unsigned type = 0;
    struct fields *o = fields_object(f, "fromImageRegistry", FIELD_OPTIONAL);
    if (!o)
        return;

    fields_enum(o, "type", FIELD_REQUIRED, types, &type);
    if (type == 1) {
        ret->user = "_json_key";
        fields_secret(o, "serviceAccountJson", FIELD_REQUIRED, 1, LOGIN_MAX, &ret->password);
    } else if (type == 2) {
        fields_refuse(o, "type",
                      "keys of AWS are not exchanged for a registry's password here: give the user "
                      "AWS and what `aws ecr get-login-password` prints");
    } else {
        fields_str(o, "username", FIELD_REQUIRED, 1, 255, &ret->user);
        fields_secret(o, "password", FIELD_REQUIRED, 1, LOGIN_MAX, &ret->password);
        if (ret->user && strchr(ret->user, ':'))
            fields_refuse(o, "username", "has a colon, which Basic authentication cannot say");
    }
}

/* As `docker login` writes it, for the registry of the image alone. */
static int put_login(const struct image_login *l, const char *registry, struct buf *out)
{
    auto_buf plain = BUF_INIT(2 * LOGIN_MAX), packed = BUF_INIT(3 * LOGIN_MAX);
    struct json j = JSON_INIT(out);

    buf_printf(&plain, "%s:%s", l->user, l->password);
    int bad = plain.overflow ? -1 : base64_encode(&packed, plain.data, plain.len);
    json_open(&j, '{');
    json_key(&j, "auths");
    json_open(&j, '{');
    json_key(&j, registry);
    json_open(&j, '{');
    json_member_cstr(&j, "auth", buf_cstr(&packed) ? buf_cstr(&packed) : "");
    json_close(&j, '}');
    json_close(&j, '}');
    json_close(&j, '}');
    if (plain.data)
        explicit_bzero(plain.data, plain.cap);
    if (packed.data)
        explicit_bzero(packed.data, packed.cap);
    return bad < 0 || packed.overflow || !buf_cstr(out) ? -1 : 0;
}

/* The image is fetched with somebody's own credentials, and is that tenant's alone. */
static int use_login(struct call *c, struct build_plan *p, const struct image_login *l,
                     struct pd_err *e)
{
    auto_buf text = BUF_INIT(4 * LOGIN_MAX);
    struct image_ref ref;
    char own[sizeof p->image];
    if (!l->user || !l->password)
        return 0;

    snprintf(c->field, sizeof c->field, "fromImageRegistry");
    if (!p->image[0])
        return pd_fail(e, PD_INVALID, "fromImageRegistry: without fromImage it is of no use");
    if (c->config->image_pull == CONFIG_PULL_NEVER)
        return pd_fail(e, PD_DENIED, "this server fetches no images: image_pull is never");
    if (image_ref_parse(p->image, &ref, e) < 0 ||
        config_own_image(c->who.tenant, p->image, own, sizeof own, e) < 0)
        return -1;

    int bad = put_login(l, ref.registry, &text);
    p->image_from = strdup(p->image);
    p->image_login = bad < 0 ? NULL : strdup(buf_cstr(&text));
    if (text.data)
        explicit_bzero(text.data, text.cap);
    if (!p->image_from || !p->image_login)
        return pd_fail(e, PD_CAPACITY, "no memory for a build");
    memcpy(p->image, own, sizeof own);
    c->field[0] = 0;
    return 0;
}

static int read_plan(struct call *c, struct fields *f, const struct build_info *i,
                     struct build_plan *p, struct pd_err *e)
{
    const char *image = NULL, *template = NULL, *start = NULL, *ready = NULL;
    struct limits limits;
    struct image_login login = {NULL};

    fields_str(f, "fromImage", FIELD_OPTIONAL, 0, SPEC_IMAGE_MAX, &image);
    fields_str(f, "fromTemplate", FIELD_OPTIONAL, 0, 255, &template);
    fields_str(f, "startCmd", FIELD_OPTIONAL, 0, COMMAND_MAX, &start);
    fields_str(f, "readyCmd", FIELD_OPTIONAL, 0, COMMAND_MAX, &ready);
    fields_bool(f, "force", FIELD_OPTIONAL, &p->force);
    read_login(f, &login);
    template_plan_steps(f, "steps", "filesHash", p);
    if (call_finish(c, f, e) < 0)
        return -1;

    char name[SNAPSHOT_NAME_MAX + 1];
    if (image && !image[0])
        image = NULL;
    if (template && !template[0])
        template = NULL;
    if (template && e2b_snapshot_name(c->who.tenant, template, name, e) < 0)
        return -1;
    template_limits(c, i->cpu_milli, i->memory, 0, 0, &limits);
    if (template_plan_begin(c, p, image, template ? name : NULL, &limits, e) < 0 ||
        use_login(c, p, &login, e) < 0)
        return -1;
    return template_plan_end(p, start, ready, e);
}

int e2b_build_start(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    auto_plan p = plan_new();
    struct build_info i;

    if (!p)
        return pd_fail(e, PD_CAPACITY, "no memory for a build");
    if (call_no_query(c, e) < 0 ||
        build_find(c->api->templates, c->who.tenant, c->var[0], c->var[1], &i, e) < 0 ||
        call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0 || read_plan(c, &f, &i, p, e) < 0 ||
        call_may_create(c, e) < 0)
        return -1;

    snprintf(c->summary, sizeof c->summary, "%s build %s", i.name, i.id);
    struct build_plan *plan = p;
    p = NULL;
    if (build_start(c->api->templates, c->who.tenant, i.template_id, i.id, plan, e) < 0)
        return -1;
    return reply(c->r, 202, "application/json", "", 0);
}

/* ---- its state ---- */

struct log_page {
    struct json *j;
    struct buf *plain; /* the texts alone, as JSON */
    struct json plain_json;
};

static void put_entry(void *arg, uint64_t ms, const char *level, const char *step, const char *text)
{
    struct log_page *p = arg;
    json_open(p->j, '{');
    json_time(p->j, "timestamp", ms);
    json_member_cstr(p->j, "level", level);
    json_member_cstr(p->j, "message", text);
    json_member_cstr(p->j, "step", step);
    json_close(p->j, '}');
    json_cstr(&p->plain_json, text);
}

int e2b_build_status(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"logsOffset", "limit", "level", NULL};
    auto_buf out = BUF_INIT(4u << 20), plain = BUF_INIT(2u << 20);
    struct json j = JSON_INIT(&out);
    struct log_page page = {.j = &j, .plain = &plain, .plain_json = JSON_INIT(&plain)};
    struct build_info i;
    uint64_t offset = 0, limit = LOG_PAGE;
    char level[16];

    if (call_query_check(c, allowed, e) < 0 ||
        call_query_u64(c, "logsOffset", 0, UINT32_MAX, &offset, e) < 0 ||
        call_query_u64(c, "limit", 0, LOG_PAGE, &limit, e) < 0 ||
        call_query(c, "level", level, sizeof level, e) < 0 ||
        build_find(c->api->templates, c->who.tenant, c->var[0], c->var[1], &i, e) < 0)
        return -1;

    json_open(&j, '{');
    json_member_cstr(&j, "templateID", i.template_id);
    json_member_cstr(&j, "buildID", i.id);
    json_member_cstr(&j, "status", build_state_name(i.state));
    json_key(&j, "logEntries");
    json_open(&j, '[');
    (void)build_log_entries(c->api->templates, i.id, (unsigned)offset, (unsigned)limit, put_entry,
                            &page);
    json_close(&j, ']');
    json_key(&j, "logs");
    json_open(&j, '[');
    buf_put(&out, plain.data, plain.len);
    j.need_comma = 1;
    json_close(&j, ']');
    if (i.state == BUILD_FAILED) {
        json_key(&j, "reason");
        json_open(&j, '{');
        json_member_cstr(&j, "message", i.message);
        if (i.step[0])
            json_member_cstr(&j, "step", i.step);
        json_key(&j, "logEntries");
        json_open(&j, '[');
        json_close(&j, ']');
        json_close(&j, '}');
    }
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

int e2b_build_logs(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"cursor", "limit", "direction", "level", "source", NULL};
    auto_buf out = BUF_INIT(4u << 20), plain = BUF_INIT(2u << 20);
    struct json j = JSON_INIT(&out);
    struct log_page page = {.j = &j, .plain = &plain, .plain_json = JSON_INIT(&plain)};
    struct build_info i;
    uint64_t offset = 0, limit = LOG_PAGE;

    if (call_query_check(c, allowed, e) < 0 ||
        call_query_u64(c, "cursor", 0, UINT32_MAX, &offset, e) < 0 ||
        call_query_u64(c, "limit", 0, LOG_PAGE, &limit, e) < 0 ||
        build_find(c->api->templates, c->who.tenant, c->var[0], c->var[1], &i, e) < 0)
        return -1;

    json_open(&j, '{');
    json_key(&j, "logs");
    json_open(&j, '[');
    (void)build_log_entries(c->api->templates, i.id, (unsigned)offset, (unsigned)limit, put_entry,
                            &page);
    json_close(&j, ']');
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

/* ---- tags ---- */

static int read_tags(struct call *c, const char *name_field, char name[SNAPSHOT_NAME_MAX + 1],
                     struct msg_list_writer *tags, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    const char *text = "";

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0)
        return -1;
    fields_str(&f, name_field, FIELD_REQUIRED, 1, 255, &text);
    fields_str_list(&f, "tags", FIELD_REQUIRED, 1, BUILD_TAGS_MAX, 255, tags);
    return call_finish(c, &f, e) < 0 || e2b_snapshot_name(c->who.tenant, text, name, e) < 0 ? -1
                                                                                            : 0;
}

int e2b_tags_assign(struct call *c, struct pd_err *e)
{
    auto_buf out = BUF_INIT(8192);
    struct json j = JSON_INIT(&out);
    char name[SNAPSHOT_NAME_MAX + 1];
    struct msg_list_writer tags = MSG_LIST_WRITER_INIT;
    struct build_info i;

    int r = read_tags(c, "target", name, &tags, e);
    struct msg_list list = msg_list_of(&tags);
    if (r == 0)
        r = tags_assign(c->api->templates, c->who.tenant, name, &list, &i, e);
    msg_list_writer_done(&tags);
    if (r < 0)
        return -1;

    snprintf(c->summary, sizeof c->summary, "%s", name);
    json_open(&j, '{');
    put_tags(&j, &i);
    json_member_cstr(&j, "buildID", i.id);
    json_close(&j, '}');
    return call_json(c, 201, &out);
}

int e2b_tags_remove(struct call *c, struct pd_err *e)
{
    char name[SNAPSHOT_NAME_MAX + 1];
    struct msg_list_writer tags = MSG_LIST_WRITER_INIT;

    int r = read_tags(c, "name", name, &tags, e);
    struct msg_list list = msg_list_of(&tags);
    if (r == 0)
        r = tags_remove(c->api->templates, c->who.tenant, name, &list, e);
    msg_list_writer_done(&tags);
    return r < 0 ? -1 : call_empty(c);
}

int e2b_tags_list(struct call *c, struct pd_err *e)
{
    auto_buf out = BUF_INIT(1u << 20);
    struct json j = JSON_INIT(&out);
    struct build_info newest;

    if (call_no_query(c, e) < 0 ||
        template_newest(c->api->templates, c->who.tenant, c->var[0], &newest, e) < 0)
        return -1;
    struct build_info *all = calloc(BUILDS_MAX, sizeof *all);
    if (!all)
        return pd_fail(e, PD_CAPACITY, "no memory for the list");
    unsigned count =
        builds_list(c->api->templates, c->who.tenant, newest.template_id, all, BUILDS_MAX);

    json_open(&j, '[');
    for (unsigned k = 0; k < count; k++)
        for (const char *at = all[k].state == BUILD_READY ? all[k].tags : ""; *at;) {
            size_t len = strcspn(at, "\n");
            json_open(&j, '{');
            json_key(&j, "tag");
            json_str(&j, at, len);
            json_member_cstr(&j, "buildID", all[k].id);
            json_time(&j, "createdAt", all[k].updated_ms);
            json_close(&j, '}');
            at += len + (at[len] == '\n');
        }
    json_close(&j, ']');
    free(all);
    return call_json(c, 200, &out);
}

/* ---- one template ---- */

int e2b_template_get(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"limit", "nextToken", NULL};
    auto_buf out = BUF_INIT(1u << 20);
    struct json j = JSON_INIT(&out);
    struct build_info newest;

    if (call_query_check(c, allowed, e) < 0 ||
        template_newest(c->api->templates, c->who.tenant, c->var[0], &newest, e) < 0)
        return -1;
    struct build_info *all = calloc(BUILDS_MAX, sizeof *all);
    if (!all)
        return pd_fail(e, PD_CAPACITY, "no memory for the list");
    unsigned count =
        builds_list(c->api->templates, c->who.tenant, newest.template_id, all, BUILDS_MAX);

    json_open(&j, '{');
    json_member_cstr(&j, "templateID", newest.template_id);
    json_member_bool(&j, "public", 0);
    put_names(c, &j, newest.name);
    json_time(&j, "createdAt", count ? all[count - 1].created_ms : newest.created_ms);
    json_time(&j, "updatedAt", newest.updated_ms);
    json_member_cstr(&j, "lastSpawnedAt", NULL);
    json_member_uint(&j, "spawnCount", 0);
    json_key(&j, "builds");
    json_open(&j, '[');
    for (unsigned k = 0; k < count; k++) {
        json_open(&j, '{');
        json_member_cstr(&j, "buildID", all[k].id);
        json_member_cstr(&j, "status", build_state_name(all[k].state));
        json_time(&j, "createdAt", all[k].created_ms);
        json_time(&j, "updatedAt", all[k].updated_ms);
        json_time(&j, "finishedAt", all[k].finished_ms);
        json_member_uint(&j, "cpuCount", (all[k].cpu_milli + 999) / 1000);
        json_member_uint(&j, "memoryMB", all[k].memory >> 20);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
    free(all);
    return call_json(c, 200, &out);
}

/* Templates are their tenant's, and stay so. */
int e2b_template_patch(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(1024);
    auto_fields f = {0};
    struct json j = JSON_INIT(&out);
    struct build_info i;
    bool is_public = false;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0 ||
        template_newest(c->api->templates, c->who.tenant, c->var[0], &i, e) < 0)
        return -1;
    fields_bool(&f, "public", FIELD_OPTIONAL, &is_public);
    if (is_public)
        fields_refuse(&f, "public", "templates of this server are for their tenant alone");
    if (call_finish(c, &f, e) < 0)
        return -1;

    json_open(&j, '{');
    put_names(c, &j, i.name);
    json_close(&j, '}');
    return call_json(c, 200, &out);
}
