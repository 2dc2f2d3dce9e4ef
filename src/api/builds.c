/* Builds of templates at the v1 API. A build takes minutes: POST answers at once, and whoever waits
 * asks again for the log from where it ended. */
#include "api/builds.h"
#include "api/handlers.h"
#include "api/sandbox.h"

#include "base/banned.h"
#include "base/json.h"
#include "build/files.h"
#include "config/config.h"

#define PAGE_MAX    BUILDS_MAX
#define LOG_PAGE    500u
#define COMMAND_MAX 65536u

/* ---- showing ---- */

static void put_tags(struct json *j, const char *tags)
{
    json_key(j, "tags");
    json_open(j, '[');
    for (const char *at = tags; *at;) {
        size_t len = strcspn(at, "\n");
        if (len)
            json_str(j, at, len);
        at += len + (at[len] == '\n');
    }
    json_close(j, ']');
}

static void put_size(struct json *j, uint64_t size)
{
    json_key(j, "size_bytes");
    if (size)
        json_uint(j, size);
    else
        json_none(j);
}

static void put_build(struct json *j, const struct build_info *i)
{
    json_open(j, '{');
    json_member_cstr(j, "id", i->id);
    json_member_cstr(j, "state", build_state_name(i->state));
    put_tags(j, i->tags);
    json_member_str(j, "base", i->base);
    json_member_str(j, "step", i->step);
    json_member_str(j, "message", i->message);
    put_size(j, i->size);
    json_member_str(j, "made_by", i->made_by);
    json_time(j, "created_at", i->created_ms);
    json_time(j, "finished_at", i->finished_ms);
    json_close(j, '}');
}

static bool is_better(const struct build_info *a, const struct build_info *than)
{
    return a->state == BUILD_READY && than->state != BUILD_READY;
}

/* A template from its builds, of which the newest is the first of the list. */
static void put_template(struct json *j, const struct build_info *all, unsigned count,
                         const struct build_info *newest, bool with_builds)
{
    const struct build_info *shown = newest; /* the one whose files are told */
    uint64_t created = newest->created_ms;
    unsigned builds = 0;

    for (unsigned k = 0; k < count; k++) {
        if (strcmp(all[k].template_id, newest->template_id) != 0)
            continue;
        builds++;
        created = all[k].created_ms;
        if (is_better(&all[k], shown))
            shown = &all[k];
    }

    json_open(j, '{');
    json_member_cstr(j, "name", newest->name);
    json_member_cstr(j, "id", newest->template_id);
    json_member_cstr(j, "kind", "built");
    json_key(j, "aliases");
    json_open(j, '[');
    json_cstr(j, newest->name);
    json_close(j, ']');
    json_key(j, "tags");
    json_open(j, '[');
    for (unsigned k = 0; k < count; k++) {
        if (strcmp(all[k].template_id, newest->template_id) != 0 || all[k].state != BUILD_READY)
            continue;
        for (const char *at = all[k].tags; *at;) {
            size_t len = strcspn(at, "\n");
            json_open(j, '{');
            json_key(j, "tag");
            json_str(j, at, len);
            json_member_cstr(j, "build", all[k].id);
            json_close(j, '}');
            at += len + (at[len] == '\n');
        }
    }
    json_close(j, ']');
    json_member_cstr(j, "state", build_state_name(newest->state));
    json_member_cstr(j, "build", newest->id);
    json_member_str(j, "message", newest->message);
    json_member_str(j, "base", newest->base);
    json_member_str(j, "provider", shown->provider);
    json_member_cstr(j, "profile", profile_name(shown->profile));
    put_size(j, shown->size);
    json_time(j, "created_at", created);
    json_time(j, "updated_at", newest->updated_ms);

    json_key(j, "builds");
    if (!with_builds) {
        json_uint(j, builds);
    } else {
        json_open(j, '[');
        for (unsigned k = 0; k < count; k++)
            if (!strcmp(all[k].template_id, newest->template_id))
                put_build(j, &all[k]);
        json_close(j, ']');
    }
    json_close(j, '}');
}

static bool is_first(const struct build_info *all, unsigned n)
{
    for (unsigned k = 0; k < n; k++)
        if (!strcmp(all[k].template_id, all[n].template_id))
            return false;
    return true;
}

int templates_put_built(struct call *c, struct json *j, struct pd_err *e)
{
    struct build_info *all = calloc(PAGE_MAX, sizeof *all);
    if (!all)
        return pd_fail(e, PD_CAPACITY, "no memory for the list");
    unsigned count = builds_list(c->api->templates, c->who.tenant, NULL, all, PAGE_MAX);

    for (unsigned i = 0; i < count; i++)
        if (is_first(all, i))
            put_template(j, all, count, &all[i], false);
    free(all);
    return 0;
}

int template_get(struct call *c, struct pd_err *e)
{
    auto_buf out = BUF_INIT(2u << 20);
    struct json j = JSON_INIT(&out);
    struct build_info newest;
    if (call_no_query(c, e) < 0 ||
        template_newest(c->api->templates, c->who.tenant, c->var[0], &newest, e) < 0)
        return -1;
    struct build_info *all = calloc(PAGE_MAX, sizeof *all);
    if (!all)
        return pd_fail(e, PD_CAPACITY, "no memory for the list");
    unsigned count =
        builds_list(c->api->templates, c->who.tenant, newest.template_id, all, PAGE_MAX);

    put_template(&j, all, count, &newest, true);
    free(all);
    return call_json(c, 200, &out);
}

int template_remove(struct call *c, struct pd_err *e)
{
    const char *known;
    enum profile profile;

    if (call_no_fields(c, e) < 0)
        return -1;
    snprintf(c->summary, sizeof c->summary, "%.100s", c->var[0]);
    if (template_find(c->config, c->var[0], &known, &profile))
        return pd_fail(e, PD_DENIED, "'%.63s' is a template of this server, and stays", c->var[0]);
    if (template_delete(c->api->templates, c->who.tenant, c->var[0], e) < 0)
        return -1;
    return call_empty(c);
}

/* ---- builds ---- */

/* NAME or NAME:TAG, whose tag is one more. */
static int split_name(const char *text, char name[64], struct msg_list_writer *tags,
                      struct pd_err *e)
{
    size_t len = strcspn(text, ":");
    if (len > 63)
        return pd_fail(e, PD_INVALID, "the name '%.80s' is longer than 63 characters", text);
    snprintf(name, 64, "%.*s", (int)len, text);
    return text[len] && msg_list_add(tags, text + len + 1) < 0
               ? pd_fail(e, PD_TOO_LARGE, "too many tags")
               : 0;
}

/* The fields of a build, all of them optional but the name. */
static int read_build(struct call *c, struct fields *f, struct build_plan *p,
                      struct build_info *ret, struct pd_err *e)
{
    const char *text = "", *image = NULL, *template = NULL, *start = NULL, *ready = NULL;
    char name[64];
    struct msg_list_writer tags = MSG_LIST_WRITER_INIT;
    struct session_request r;
    struct limits limits;

    request_defaults(c, &r);
    fields_str(f, "name", FIELD_REQUIRED, 1, 128, &text);
    fields_str_list(f, "tags", FIELD_OPTIONAL, 0, BUILD_TAGS_MAX, 63, &tags);
    fields_str(f, "image", FIELD_OPTIONAL, 1, SPEC_IMAGE_MAX, &image);
    fields_str(f, "template", FIELD_OPTIONAL, 1, 200, &template);
    fields_str(f, "start", FIELD_OPTIONAL, 1, COMMAND_MAX, &start);
    fields_str(f, "ready", FIELD_OPTIONAL, 1, COMMAND_MAX, &ready);
    fields_bool(f, "force", FIELD_OPTIONAL, &p->force);
    limits_read(f, &r);
    template_plan_steps(f, "steps", "files", p);

    int bad = call_finish(c, f, e) < 0 || split_name(text, name, &tags, e) < 0 ||
              template_check_name(c, name, e) < 0 || call_check_ceilings(c, &r, e) < 0;
    limits = r.spec.limits;
    if (!bad)
        bad = template_plan_begin(c, p, image, template, &limits, e) < 0 ||
              template_plan_end(p, start, ready, e) < 0;
    struct msg_list list = msg_list_of(&tags);
    if (!bad)
        bad = build_new(c->api->templates, c->who.tenant, c->who.key_id, name, &list,
                        limits.cpu_milli, limits.memory, ret, e) < 0;
    msg_list_writer_done(&tags);
    return bad ? -1 : 0;
}

int templates_build(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(4096);
    auto_fields f = {0};
    auto_plan p = plan_new();
    struct json j = JSON_INIT(&out);
    struct build_info made;
    struct pd_err ignored;

    if (!p)
        return pd_fail(e, PD_CAPACITY, "no memory for a build");
    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0 ||
        read_build(c, &f, p, &made, e) < 0 || call_may_create(c, e) < 0)
        return -1;

    snprintf(c->summary, sizeof c->summary, "%s build %s", made.name, made.id);
    struct build_plan *plan = p;
    p = NULL;
    if (build_start(c->api->templates, c->who.tenant, made.template_id, made.id, plan, e) < 0) {
        (void)build_cancel(c->api->templates, c->who.tenant, made.template_id, made.id, &ignored);
        return -1;
    }

    json_open(&j, '{');
    json_member_cstr(&j, "template", made.template_id);
    json_member_cstr(&j, "name", made.name);
    json_member_cstr(&j, "build", made.id);
    json_close(&j, '}');
    return call_json(c, 202, &out);
}

static void put_entry(void *arg, uint64_t ms, const char *level, const char *step, const char *text)
{
    struct json *j = arg;
    json_open(j, '{');
    json_time(j, "at", ms);
    json_member_cstr(j, "level", level);
    json_member_cstr(j, "step", step);
    json_member_cstr(j, "text", text);
    json_close(j, '}');
}

/* The state is looked up before the log: one that has ended has said all. */
int template_build_get(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"offset", NULL};
    auto_buf out = BUF_INIT(8u << 20);
    struct json j = JSON_INIT(&out);
    struct build_info i;
    uint64_t offset = 0;

    if (call_query_check(c, allowed, e) < 0 ||
        call_query_u64(c, "offset", 0, UINT32_MAX, &offset, e) < 0 ||
        build_find(c->api->templates, c->who.tenant, c->var[0], c->var[1], &i, e) < 0)
        return -1;

    json_open(&j, '{');
    json_key(&j, "build");
    put_build(&j, &i);
    json_key(&j, "log");
    json_open(&j, '[');
    unsigned count =
        build_log_entries(c->api->templates, i.id, (unsigned)offset, LOG_PAGE, put_entry, &j);
    json_close(&j, ']');
    json_member_uint(&j, "next_offset", offset + count);
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

int template_build_delete(struct call *c, struct pd_err *e)
{
    if (call_no_fields(c, e) < 0)
        return -1;
    snprintf(c->summary, sizeof c->summary, "build %.60s", c->var[1]);
    if (build_cancel(c->api->templates, c->who.tenant, c->var[0], c->var[1], e) < 0)
        return -1;
    return call_empty(c);
}

int template_cache_delete(struct call *c, struct pd_err *e)
{
    if (call_no_fields(c, e) < 0)
        return -1;
    templates_forget_cache(c->api->templates, c->who.tenant);
    return call_empty(c);
}

/* ---- files ---- */

static int check_hash(struct call *c, struct pd_err *e)
{
    if (files_is_hash(c->var[0]))
        return 0;
    snprintf(c->field, sizeof c->field, "digest");
    return pd_fail(e, PD_INVALID, "'%.80s' is no sha256 of 64 hex digits in small letters",
                   c->var[0]);
}

int template_files_get(struct call *c, struct pd_err *e)
{
    auto_buf out = BUF_INIT(256);
    struct json j = JSON_INIT(&out);
    if (call_no_query(c, e) < 0 || check_hash(c, e) < 0)
        return -1;

    json_open(&j, '{');
    json_member_bool(&j, "present",
                     files_has(templates_files(c->api->templates), c->who.tenant, c->var[0]));
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

int template_take_files(struct call *c, const char *hash, bool check_digest, struct pd_err *e)
{
    struct files *all = templates_files(c->api->templates);
    struct sending s = {.fd = -1};
    if (files_begin(all, c->who.tenant, &s, e) < 0)
        return -1;

    int r = request_read_into(c->r, s.fd, FILE_BYTES_MAX, NULL, e);
    if (r == 0)
        r = files_finish(all, c->who.tenant, hash, check_digest, &s, e);
    files_drop(all, &s);
    return r;
}

int template_files_put(struct call *c, struct pd_err *e)
{
    if (call_no_query(c, e) < 0 || check_hash(c, e) < 0)
        return -1;
    snprintf(c->summary, sizeof c->summary, "%.12s", c->var[0]);
    if (template_take_files(c, c->var[0], true, e) < 0)
        return -1;
    return call_empty(c);
}
