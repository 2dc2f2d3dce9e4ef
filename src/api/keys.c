/* Keys by the API: for who has an admin key. `paddock key` does the same without a server. A key is
 * in the answer that makes it and nowhere else; what is listed is its id, the start of its hash. */
#include "api/call.h"
#include "api/handlers.h"

#include "base/banned.h"
#include "base/json.h"

#define LIST_MAX    (16u << 20) /* bytes */
#define LIFE_MAX_MS (UINT64_C(10) * 366 * 86400 * 1000)

struct listing {
    struct json j;
    const char *tenant; /* or NULL: everybody's */
    /* Looked at before the keys are, which the store's lock is held for. */
    char (*logins)[AUTH_ID_LEN + 1];
    unsigned login_count;
};

static void members(struct json *j, const struct auth_key *k, unsigned logins)
{
    json_member_cstr(j, "id", k->id);
    json_member_cstr(j, "tenant", k->tenant);
    json_member_str(j, "label", k->label);
    json_member_cstr(j, "role", auth_role_name(k->role));
    json_time(j, "created_at", k->created_ms);
    json_time(j, "expires_at", k->expires_ms);
    json_time(j, "last_used_at", k->last_used_ms);
    json_time(j, "revoked_at", k->revoked_ms);
    json_member_uint(j, "logins", logins);
}

static unsigned logins_of(const struct listing *l, const char *id)
{
    unsigned count = 0;
    for (unsigned i = 0; i < l->login_count; i++)
        count += !strcmp(l->logins[i], id);
    return count;
}

static int list_one(const struct auth_key *k, void *arg)
{
    struct listing *l = arg;
    bool good = !k->revoked_ms && (!k->expires_ms || k->expires_ms > time_now_ms());

    if (l->tenant && strcmp(l->tenant, k->tenant) != 0)
        return 0;
    json_open(&l->j, '{');
    members(&l->j, k, good ? logins_of(l, k->id) : 0);
    json_close(&l->j, '}');
    return l->j.out->overflow;
}

int keys_list(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"tenant", NULL};
    char tenant[ID_TENANT_MAX + 1];
    auto_buf out = BUF_INIT(LIST_MAX);
    char logins[LOGINS_MAX][AUTH_ID_LEN + 1];
    struct listing l = {.j = JSON_INIT(&out), .logins = logins};

    int given = call_query_check(c, allowed, e) < 0
                    ? -1
                    : call_query(c, "tenant", tenant, sizeof tenant, e);
    if (given < 0)
        return -1;
    l.tenant = given ? tenant : NULL;
    l.login_count = logins_keys(c->api->logins, time_now_ms(), logins);

    json_open(&l.j, '{');
    json_key(&l.j, "keys");
    json_open(&l.j, '[');
    if (auth_list(c->api->auth, list_one, &l, e) < 0)
        return -1;
    json_close(&l.j, ']');
    json_close(&l.j, '}');
    return call_json(c, 200, &out);
}

int keys_create(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(4096);
    auto_fields f = {0};
    const char *tenant = c->who.tenant, *label = NULL;
    unsigned role = AUTH_OPERATOR;
    uint64_t life_ms = 0, now = time_now_ms();
    char key[ID_KEY_LEN + 1], id[AUTH_ID_LEN + 1];
    struct pd_err why;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;
    if (fields_str(&f, "tenant", FIELD_OPTIONAL, 1, 255, &tenant) && !id_is_tenant(tenant))
        fields_refuse(&f, "tenant", "'%.80s' is no tenant: 1 to %d of a-z, 0-9, _ and -", tenant,
                      ID_TENANT_MAX);
    if (fields_str(&f, "label", FIELD_OPTIONAL, 0, 255, &label) &&
        auth_check_label(label, &why) < 0)
        fields_refuse(&f, "label", "%s", why.msg);
    fields_seconds_ms(&f, "expires_in_s", FIELD_OPTIONAL, 1000, LIFE_MAX_MS, &life_ms);
    fields_enum(&f, "role", FIELD_OPTIONAL, auth_role_names(), &role);
    if (call_finish(c, &f, e) < 0)
        return -1;

    uint64_t expires = life_ms ? now + life_ms : 0;
    if (auth_create(c->api->auth, tenant, label, (enum auth_role)role, expires, key, id, e) < 0)
        return -1;

    snprintf(c->summary, sizeof c->summary, "%s of tenant %s, %s", id, tenant,
             auth_role_name((enum auth_role)role));
    reply_header(c->r, "Cache-Control", "no-store");

    struct json j = JSON_INIT(&out);
    json_open(&j, '{');
    json_member_cstr(&j, "key", key);
    const struct auth_key made = {.id = id,
                                  .tenant = tenant,
                                  .label = label,
                                  .role = (enum auth_role)role,
                                  .created_ms = now,
                                  .expires_ms = expires};
    members(&j, &made, 0);
    json_close(&j, '}');
    explicit_bzero(key, sizeof key);
    return call_json(c, 201, &out);
}

int keys_revoke(struct call *c, struct pd_err *e)
{
    if (call_no_fields(c, e) < 0)
        return -1;
    snprintf(c->summary, sizeof c->summary, "%.40s", c->var[0]);
    if (auth_revoke(c->api->auth, c->var[0], e) < 0)
        return -1;
    return call_empty(c);
}
