/* Snapshots, forks and templates of the v1 API: what a sandbox can be made from. Names of snapshots
 * are the E2B door's, too, where they are templates. */
#include "api/e2b.h"
#include "api/handlers.h"
#include "api/sandbox.h"

#include "base/banned.h"
#include "base/json.h"
#include "config/config.h"
#include "core/snapshots.h"

#define PAGE_MAX 1000u

static void put_snapshot(struct json *j, const struct snapshot_info *i)
{
    json_open(j, '{');
    json_member_cstr(j, "id", i->id);
    json_member_str(j, "name", i->name);
    json_member_cstr(j, "sandbox_id", i->sandbox);
    json_member_cstr(j, "template", i->template_name);
    json_member_cstr(j, "profile", profile_name(i->profile));
    json_member_cstr(j, "provider", i->provider);
    json_time(j, "created_at", i->created_ms);
    json_close(j, '}');
}

int snapshot_create(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(4096);
    auto_fields f = {0};
    struct json j = JSON_INIT(&out);
    char name[SNAPSHOT_NAME_MAX + 1] = "";
    const char *text = NULL, *known;
    enum profile profile;
    struct snapshot_info made;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;

    fields_str(&f, "name", FIELD_OPTIONAL, 1, 255, &text);
    if (call_finish(c, &f, e) < 0)
        return -1;

    snprintf(c->field, sizeof c->field, "%s", text ? "name" : "");
    if (text && e2b_snapshot_name(c->who.tenant, text, name, e) < 0)
        return -1;
    if (template_find(c->config, name, &known, &profile))
        return pd_fail(e, PD_CONFLICT, "'%s' is the name of a template of this server", name);
    c->field[0] = 0;
    if (session_snapshot(c->session, name[0] ? name : NULL, &made, e) < 0)
        return -1;

    snprintf(c->summary, sizeof c->summary, "%s", made.id);
    put_snapshot(&j, &made);
    return call_json(c, 201, &out);
}

int snapshots_get(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"sandbox_id", "limit", "cursor", NULL};
    char sandbox[64], cursor[64], next[64] = "";
    uint64_t limit = 100;
    unsigned count = 0;
    int has_sandbox, has_cursor;
    auto_buf out = BUF_INIT(2u << 20);
    struct json j = JSON_INIT(&out);

    if (call_query_check(c, allowed, e) < 0 ||
        (has_sandbox = call_query(c, "sandbox_id", sandbox, sizeof sandbox, e)) < 0 ||
        (has_cursor = call_query(c, "cursor", cursor, sizeof cursor, e)) < 0 ||
        call_query_u64(c, "limit", 1, PAGE_MAX, &limit, e) < 0)
        return -1;

    struct snapshot_info *found = calloc(limit, sizeof *found);
    if (!found)
        return pd_fail(e, PD_CAPACITY, "no memory for the list");
    if (snapshots_list(c->api->sessions, c->who.tenant, has_sandbox ? sandbox : NULL, NULL,
                       has_cursor ? cursor : NULL, (unsigned)limit, found, &count, next, e) < 0) {
        free(found);
        snprintf(c->field, sizeof c->field, "cursor");
        return -1;
    }

    json_open(&j, '{');
    json_key(&j, "snapshots");
    json_open(&j, '[');
    for (unsigned i = 0; i < count; i++)
        put_snapshot(&j, &found[i]);
    json_close(&j, ']');
    json_member_str(&j, "next_cursor", next);
    json_close(&j, '}');
    free(found);
    return call_json(c, 200, &out);
}

int snapshot_remove(struct call *c, struct pd_err *e)
{
    if (call_no_fields(c, e) < 0)
        return -1;
    snprintf(c->summary, sizeof c->summary, "%.100s", c->var[0]);
    if (snapshot_delete(c->api->sessions, c->who.tenant, c->var[0], e) < 0)
        return -1;
    return call_empty(c);
}

/* ---- forks ---- */

/* A fork is as its origin: what its processes may do, and what it may use. Its time begins anew,
 * and it has no user and thread, because those have a sandbox. */
static int copy_request(struct call *c, struct session_request *r, char **ret_policy,
                        char **ret_metadata, struct session_info *i, struct pd_err *e)
{
    request_defaults(c, r);
    session_get(c->session, i);
    *ret_policy = session_policy(c->session);
    *ret_metadata = session_metadata(c->session);
    if (!*ret_policy || !*ret_metadata)
        return pd_fail(e, PD_CAPACITY, "no memory for the fork");

    r->template_name = i->template_name;
    r->spec.profile = i->spec.profile;
    r->spec.limits = i->spec.limits;
    r->policy = *ret_policy;
    r->metadata = *ret_metadata;
    r->idle_timeout_ms = i->idle_timeout_ms;
    r->max_life_ms = i->max_life_ms;
    return 0;
}

int sandbox_fork(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), said = BUF_INIT(METADATA_MAX);
    auto_fields f = {0};
    char *policy = NULL, *metadata = NULL;
    struct session_request request;
    struct session_info info;
    struct queue_place place = {0};
    struct session *s = NULL;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;

    int r = copy_request(c, &request, &policy, &metadata, &info, e);
    fields_seconds_ms(&f, "idle_timeout_s", FIELD_OPTIONAL, 1000, 30ull * 86400000,
                      &request.idle_timeout_ms);
    fields_seconds_ms(&f, "max_life_s", FIELD_OPTIONAL, 1000, CEILING_LIFE_MAX,
                      &request.max_life_ms);
    if (fields_strings(&f, "metadata", FIELD_OPTIONAL, 64, METADATA_MAX - 1, &said))
        request.metadata = buf_cstr(&said);

    /* The origin may have been made under higher ceilings; it goes on, and its fork is new. */
    if (r == 0 && (call_finish(c, &f, e) < 0 || call_check_ceilings(c, &request, e) < 0 ||
                   call_may_create(c, e) < 0))
        r = -1;
    if (r == 0) {
        r = session_fork(c->session, &request, &s, e);
        call_count_create(c, r, s, &place);
        /* The audit log is to tell of the one that was forked, and what came of it. */
        if (r == 0)
            snprintf(c->summary, sizeof c->summary, "%s", c->sandbox);
        snprintf(c->sandbox, sizeof c->sandbox, "%.*s", SESSION_ID_LEN, c->var[0]);
    }

    free(policy);
    free(metadata);
    if (r < 0)
        return -1;
    r = call_sandbox(c, 201, s, NULL);
    session_unref(s);
    return r;
}
