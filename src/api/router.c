/* The router by HTTP: which provider a request would get and why, the rules that hold, and new
 * rules from whoever has an admin key. Rules name tenants and users, so only admin keys see them.
 */
#include "api/handlers.h"
#include "api/sandbox.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/json.h"
#include "core/provider.h"
#include "router/router.h"

#define STEPS_MAX   (32u << 10)
#define COMMAND_MAX 8192u

/* One string per line. */
static void steps_json(struct json *j, struct buf *steps)
{
    const char *at = buf_cstr(steps);

    json_key(j, "steps");
    json_open(j, '[');
    for (size_t len; at && *at; at += len + (at[len] != 0)) {
        len = strcspn(at, "\n");
        json_str(j, at, len);
    }
    json_close(j, ']');
}

static void route_json(struct call *c, struct json *j, const struct decision *d)
{
    struct provider *p = c->api->providers->list[d->provider];

    json_member_cstr(j, "provider", p->name);
    json_member_cstr(j, "isolation", rung_name(p->best(p)));
    json_member_cstr(j, "by", route_by_name(d->by));
    json_member_str(j, "name", d->name);
    json_member_bool(j, "fallback", d->is_fallback);
    json_member_cstr(j, "reason", d->reason);
}

int route_get(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"provider", "user_id", "template", "image",
                                          "command",  "explain", NULL};
    char provider[64] = "auto", user[SESSION_NAME_MAX + 1] = "", template_name[64] = "";
    char image[SPEC_IMAGE_MAX + 1] = "", command[COMMAND_MAX];
    bool explain = false;
    int has_command = 0;

    if (call_query_check(c, allowed, e) < 0 ||
        call_query(c, "provider", provider, sizeof provider, e) < 0 ||
        call_query(c, "user_id", user, sizeof user, e) < 0 ||
        call_query(c, "template", template_name, sizeof template_name, e) < 0 ||
        call_query(c, "image", image, sizeof image, e) < 0 ||
        (has_command = call_query(c, "command", command, sizeof command, e)) < 0 ||
        call_query_bool(c, "explain", &explain, e) < 0)
        return -1;

    struct spec spec = SPEC_DEFAULT;
    spec.image = image;
    if (spec_check_image(image, e) < 0) {
        snprintf(c->field, sizeof c->field, "image");
        return -1;
    }
    if (call_check_image(c, image, e) < 0)
        return -1;

    struct route_provider list[PROVIDERS_MAX];
    unsigned count = provider_table_describe_for(c->api->providers, &spec, list);

    char key[32];
    snprintf(key, sizeof key, "%llx", (unsigned long long)clock_now());
    struct route_question q = {.asked = provider,
                               .tenant = c->who.tenant,
                               .user = user[0] ? user : NULL,
                               .template_name = template_name[0] ? template_name : "default",
                               .key = user[0] ? user : key};
    struct command_verdict verdict;
    if (has_command) {
        command_classify(command, "/workspace", &verdict);
        q.command = &verdict;
    }

    struct decision decision;
    auto_buf steps = BUF_INIT(STEPS_MAX);
    if (router_explain(c->api->router, list, count, &q, &decision, explain ? &steps : NULL, e) <
        0) {
        if (e->code == PD_INVALID)
            snprintf(c->field, sizeof c->field, "provider");
        return -1;
    }

    auto_buf out = BUF_INIT(2 * STEPS_MAX);
    struct json j = JSON_INIT(&out);
    json_open(&j, '{');
    route_json(c, &j, &decision);

    if (has_command) {
        json_key(&j, "command");
        json_open(&j, '{');
        json_member_cstr(&j, "class", command_class_name(verdict.what));
        json_member_cstr(&j, "reason", verdict.reason);
        json_close(&j, '}');
    }
    if (explain)
        steps_json(&j, &steps);

    json_close(&j, '}');
    return call_json(c, 200, &out);
}

/* What the caller would get without asking for anything, and what the router is set to. */
static int answer(struct call *c)
{
    struct route_provider list[PROVIDERS_MAX];
    unsigned count = provider_table_describe(c->api->providers, list);
    struct session_request r = {.tenant = c->who.tenant};
    struct decision decision;
    struct pd_err why;
    auto_buf out = BUF_INIT(2 * ROUTER_TEXT_MAX);
    struct json j = JSON_INIT(&out);

    json_open(&j, '{');
    json_key(&j, "choice");
    if (sessions_explain(c->api->sessions, &r, &decision, NULL, &why) == 0) {
        json_open(&j, '{');
        route_json(c, &j, &decision);
        json_close(&j, '}');
    } else {
        json_none(&j);
    }

    json_key(&j, "not_configured");
    json_open(&j, '[');
    for (unsigned i = 0; known_provider_at(i); i++)
        if (!provider_table_find(c->api->providers, known_provider_at(i)->name))
            json_cstr(&j, known_provider_at(i)->name);
    json_close(&j, ']');

    router_json(c->api->router, list, count, c->who.role == AUTH_ADMIN, &j);
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

int router_get(struct call *c, struct pd_err *e)
{
    return call_no_query(c, e) < 0 ? -1 : answer(c);
}

int router_replace(struct call *c, struct pd_err *e)
{
    struct route_provider list[PROVIDERS_MAX];
    unsigned count = provider_table_describe(c->api->providers, list);
    auto_buf text = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};

    /* The body is checked as every other one is; the router reads it again by its own rules. */
    if (call_no_query(c, e) < 0 || call_body(c, &text, &f, FIELDS_OPEN, e) < 0 ||
        call_finish(c, &f, e) < 0)
        return -1;
    if (text.len > ROUTER_TEXT_MAX)
        return pd_fail(e, PD_TOO_LARGE, "the router's rules have at most %u bytes",
                       ROUTER_TEXT_MAX);
    if (router_put(c->api->router, (const char *)text.data, text.len, list, count, e) < 0)
        return -1;
    return answer(c);
}
