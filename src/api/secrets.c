/* Secrets of a tenant at the v1 API. Values come in and never go out: whoever asks is told the name
 * and when it was set. */
#include "api/call.h"
#include "api/handlers.h"

#include "access/vault.h"
#include "base/banned.h"
#include "base/json.h"
#include "core/egress.h"

#define LIST_MAX        (64u << 10)
#define SETTLE_PATIENCE (250 * NS_PER_MS)

static int put_one(const char *name, uint64_t changed_ms, void *arg)
{
    struct json *j = arg;

    json_open(j, '{');
    json_member_cstr(j, "name", name);
    json_time(j, "changed_at", changed_ms);
    json_close(j, '}');
    return 0;
}

int secrets_list(struct call *c, struct pd_err *e)
{
    auto_buf out = BUF_INIT(LIST_MAX);
    struct json j = JSON_INIT(&out);

    if (call_no_query(c, e) < 0)
        return -1;
    json_open(&j, '{');
    json_key(&j, "secrets");
    json_open(&j, '[');
    if (vault_each(c->api->vault, c->who.tenant, put_one, &j, e) < 0)
        return -1;
    json_close(&j, ']');
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

/* The one that is looked for, and when it was set. */
struct sought {
    const char *name;
    uint64_t changed_ms;
    bool found;
};

static int compare_one(const char *name, uint64_t changed_ms, void *arg)
{
    struct sought *s = arg;
    if (strcmp(name, s->name) != 0)
        return 0;
    s->changed_ms = changed_ms;
    s->found = true;
    return 1;
}

static int answer_secret(struct call *c, struct pd_err *e)
{
    auto_buf out = BUF_INIT(LIST_MAX);
    struct json j = JSON_INIT(&out);
    struct sought s = {.name = c->var[0]};

    if (vault_each(c->api->vault, c->who.tenant, compare_one, &s, e) < 0)
        return -1;
    if (!s.found)
        return pd_fail(e, PD_NOT_FOUND, "there is no secret '%.63s'", s.name);
    (void)put_one(s.name, s.changed_ms, &j);
    return call_json(c, 200, &out);
}

int secret_get(struct call *c, struct pd_err *e)
{
    return call_no_query(c, e) < 0 ? -1 : answer_secret(c, e);
}

/* Sandboxes that have it go by the new value from their next connection on. */
static void tell_gate(const struct call *c)
{
    if (!c->api->egress)
        return;
    egress_reload(c->api->egress, c->who.tenant);
    egress_settle(c->api->egress, deadline_in(SETTLE_PATIENCE));
}

int secret_put(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    const char *value = NULL;

    int r = call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0 ? -1 : 0;
    if (r == 0) {
        /* The vault says what is wrong with it, and never the value itself. */
        fields_str(&f, "value", FIELD_REQUIRED, 0, API_BODY_MAX, &value);
        r = call_finish(c, &f, e);
    }
    if (r == 0)
        r = vault_put(c->api->vault, c->who.tenant, c->var[0], value, e);
    if (body.data)
        explicit_bzero(body.data, body.cap);
    if (r < 0)
        return -1;

    tell_gate(c);
    return answer_secret(c, e);
}

int secret_delete(struct call *c, struct pd_err *e)
{
    if (call_no_query(c, e) < 0 || vault_delete(c->api->vault, c->who.tenant, c->var[0], e) < 0)
        return -1;
    tell_gate(c);
    return call_empty(c);
}
