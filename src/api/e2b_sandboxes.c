/* Sandboxes as E2B's control plane shows them: looking at them, and their life. */
#include "api/e2b.h"
#include "api/e2b_handlers.h"
#include "api/sandbox.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/json.h"
#include "config/config.h"

#define MS_PER_S     UINT64_C(1000)
#define PAGE_MAX     100u
#define REFRESH_MAX  3600u
#define FILTERS_MAX  8u
#define FILTER_SIZE  512
#define METADATA_ARG 8192 /* encoded up to three times */

/* ---- how one looks ---- */

static void put_domain(const struct call *c, struct json *j)
{
    char domain[CONFIG_DOMAIN_SIZE];
    config_public_domain(c->config, domain, sizeof domain);
    json_member_str(j, "domain", domain);
}

static void put_token(const struct call *c, struct json *j, const char *key, enum access_kind kind,
                      const char *id)
{
    char token[ACCESS_TOKEN_LEN + 1];
    access_token(c->api->access, kind, id, token);
    json_member_cstr(j, key, token);
}

static void put_names(struct json *j, const struct session_info *i)
{
    json_member_cstr(j, "sandboxID", i->id);
    json_member_cstr(j, "templateID", i->template_name);
    json_member_cstr(j, "clientID", i->provider);
    json_member_cstr(j, "envdVersion", E2B_ENVD_VERSION);
}

void e2b_sandbox_json(const struct call *c, struct json *j, struct session *s)
{
    struct session_info i;
    auto_note n = {0};

    session_get(s, &i);
    e2b_note_read(s, &n);

    json_open(j, '{');
    put_names(j, &i);
    if (n.secure)
        put_token(c, j, "envdAccessToken", ACCESS_ENVD, i.id);
    if (n.private_ports)
        put_token(c, j, "trafficAccessToken", ACCESS_TRAFFIC, i.id);
    else
        json_member_cstr(j, "trafficAccessToken", NULL);
    put_domain(c, j);
    json_close(j, '}');
}

/* Without its braces. */
static void put_listed(struct json *j, struct session *s, const struct session_info *i)
{
    const struct limits *l = &i->spec.limits;
    char *metadata = session_metadata(s);

    put_names(j, i);
    json_time(j, "startedAt", i->created_ms);
    json_time(j, "endAt", i->expires_ms ? i->expires_ms : i->created_ms + i->max_life_ms);
    json_member_cstr(j, "state", i->state == SESSION_PAUSED ? "paused" : "running");
    json_member_uint(j, "cpuCount", (l->cpu_milli + 999) / 1000);
    json_member_uint(j, "memoryMB", l->memory >> 20);
    json_member_uint(j, "diskSizeMB", l->disk >> 20);

    json_key(j, "metadata");
    buf_puts(j->out, metadata && metadata[0] == '{' ? metadata : "{}");
    j->need_comma = 1;
    free(metadata);
}

static void put_network(struct call *c, struct json *j, const struct e2b_note *n, const char *rules)
{
    json_key(j, "network");
    json_open(j, '{');
    json_member_bool(j, "allowPublicTraffic", !n->private_ports);
    e2b_put_list(j, "allowOut", &n->allow_out);
    e2b_put_list(j, "denyOut", &n->deny_out);
    if (n->mask_host[0])
        json_member_cstr(j, "maskRequestHost", n->mask_host);
    e2b_put_egress(c, j, rules);
    json_close(j, '}');
}

int e2b_get(struct call *c, struct pd_err *e)
{
    auto_buf out = BUF_INIT(128u << 10);
    struct json j = JSON_INIT(&out);
    struct session_info i;
    auto_note n = {0};

    if (call_no_query(c, e) < 0)
        return -1;

    session_get(c->session, &i);
    e2b_note_read(c->session, &n);

    json_open(&j, '{');
    put_listed(&j, c->session, &i);
    put_domain(c, &j);
    if (n.secure)
        put_token(c, &j, "envdAccessToken", ACCESS_ENVD, i.id);
    char *rules = session_network(c->session);
    json_member_bool(&j, "allowInternetAccess", rules && !strncmp(rules, "layer open", 10));
    put_network(c, &j, &n, rules ? rules : "");
    free(rules);

    json_key(&j, "lifecycle");
    json_open(&j, '{');
    json_member_cstr(&j, "onTimeout", i.pause_at_end ? "pause" : "kill");
    json_member_bool(&j, "autoResume", n.auto_resume);
    json_close(&j, '}');
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

int e2b_sandbox_env(struct session *s, struct msg_list_writer *out)
{
    char text[2][128];
    struct session_info i;

    session_get(s, &i);
    snprintf(text[0], sizeof text[0], "E2B_SANDBOX_ID=%s", i.id);
    snprintf(text[1], sizeof text[1], "E2B_TEMPLATE_ID=%s", i.template_name);

    return msg_list_add(out, "E2B_SANDBOX=true") < 0 || msg_list_add(out, text[0]) < 0 ||
                   msg_list_add(out, text[1]) < 0
               ? -1
               : 0;
}

/* ---- lists ---- */

struct listing {
    struct session_filter filter;
    char cursor[64], key[FILTERS_MAX][FILTER_SIZE], value[FILTERS_MAX][FILTER_SIZE];
    struct e2b_template template;
};

/* KEY=VALUE&..., of which keys and values are encoded once more. */
static int read_pairs(struct listing *l, char *text, struct pd_err *e)
{
    char *save = NULL;
    for (char *pair = strtok_r(text, "&", &save); pair; pair = strtok_r(NULL, "&", &save)) {
        unsigned n = l->filter.metadata_count;
        char *equals = strchr(pair, '=');
        if (!equals || equals == pair)
            return pd_fail(e, PD_INVALID, "metadata: '%.60s' is not KEY=VALUE", pair);
        if (n == FILTERS_MAX)
            return pd_fail(e, PD_INVALID, "metadata: at most %u pairs", FILTERS_MAX);

        struct slice key = {pair, (size_t)(equals - pair)};
        if (url_decode("metadata", key, l->key[n], FILTER_SIZE, e) < 0 ||
            url_decode("metadata", slice_of(equals + 1), l->value[n], FILTER_SIZE, e) < 0)
            return -1;

        l->filter.metadata_key[n] = l->key[n];
        l->filter.metadata_value[n] = l->value[n];
        l->filter.metadata_count++;
    }
    return 0;
}

static int read_metadata(struct call *c, struct listing *l, struct pd_err *e)
{
    char once[METADATA_ARG], text[METADATA_ARG];

    int r = call_query(c, "metadata", once, sizeof once, e);
    if (r <= 0)
        return r;
    return url_decode("metadata", slice_of(once), text, sizeof text, e) < 0
               ? -1
               : read_pairs(l, text, e);
}

static int read_states(struct call *c, struct listing *l, struct pd_err *e)
{
    char text[64], *save = NULL;
    int r = call_query(c, "state", text, sizeof text, e);

    l->filter.states = 1 << SESSION_RUNNING | 1 << SESSION_PAUSED;
    if (r <= 0)
        return r;

    l->filter.states = 0;
    for (char *word = strtok_r(text, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        if (!strcmp(word, "running"))
            l->filter.states |= 1 << SESSION_RUNNING;
        else if (!strcmp(word, "paused"))
            l->filter.states |= 1 << SESSION_PAUSED;
        else
            return pd_fail(e, PD_INVALID, "state: '%.40s' is not running or paused", word);
    }
    return l->filter.states ? 0 : pd_fail(e, PD_INVALID, "state: running, paused or both");
}

/* One that is not known is no error: there are no sandboxes of it. */
static int read_template(struct call *c, struct listing *l, struct pd_err *e)
{
    char text[256];
    struct pd_err ignored;

    int r = call_query(c, "template", text, sizeof text, e);
    if (r <= 0)
        return r;

    if (e2b_template_read(c, text, &l->template, &ignored) < 0) {
        snprintf(l->template.given, sizeof l->template.given, "%.63s", text);
        l->template.name = l->template.given;
    }

    l->filter.template_name = l->template.name;
    return 0;
}

static int read_order(struct call *c, struct listing *l, struct pd_err *e)
{
    char text[16], time[64];
    int has_order = call_query(c, "order", text, sizeof text, e);

    int has_time = call_query(c, "startedAfter", time, sizeof time, e);
    if (has_order < 0 || has_time < 0)
        return -1;

    l->filter.newest_first = !has_order || !strcmp(text, "desc");
    if (has_order && !l->filter.newest_first && strcmp(text, "asc") != 0)
        return pd_fail(e, PD_INVALID, "order: asc or desc");

    return has_time ? time_parse_ms("startedAfter", time, &l->filter.after_ms, e) : 0;
}

static int read_page(struct call *c, struct listing *l, struct pd_err *e)
{
    uint64_t limit = PAGE_MAX;

    int has_cursor = call_query(c, "nextToken", l->cursor, sizeof l->cursor, e);
    if (has_cursor < 0 || call_query_u64(c, "limit", 1, PAGE_MAX, &limit, e) < 0)
        return -1;

    l->filter.limit = (unsigned)limit;
    l->filter.cursor = has_cursor && l->cursor[0] ? l->cursor : NULL;
    return 0;
}

static void put_page(struct json *j, const struct session_list *found)
{
    struct session_info i;

    for (unsigned n = 0; n < found->count; n++) {
        session_get(found->at[n], &i);
        json_open(j, '{');
        put_listed(j, found->at[n], &i);
        json_close(j, '}');
    }
}

int e2b_list(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"metadata", "state", "startedAfter", "template",
                                          "order",    "limit", "nextToken",    NULL};
    struct listing l = {.filter.tenant = c->who.tenant};
    auto_list found = {0};
    auto_buf out = BUF_INIT(64u << 20);
    struct json j = JSON_INIT(&out);

    if (call_query_check(c, allowed, e) < 0 || read_metadata(c, &l, e) < 0 ||
        read_states(c, &l, e) < 0 || read_template(c, &l, e) < 0 || read_order(c, &l, e) < 0 ||
        read_page(c, &l, e) < 0 || session_list_read(c, &l.filter, &found, e) < 0)
        return -1;

    json_open(&j, '[');
    put_page(&j, &found);
    json_close(&j, ']');

    if (found.next[0])
        reply_header(c->r, "X-Next-Token", found.next);
    return call_json(c, 200, &out);
}

int e2b_list_running(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"metadata", NULL};
    struct listing l = {.filter = {.tenant = c->who.tenant,
                                   .states = 1 << SESSION_RUNNING,
                                   .newest_first = true,
                                   .limit = PAGE_MAX}};
    auto_buf out = BUF_INIT(64u << 20);
    struct json j = JSON_INIT(&out);

    if (call_query_check(c, allowed, e) < 0 || read_metadata(c, &l, e) < 0)
        return -1;

    json_open(&j, '[');
    do { /* this call has no pages */
        auto_list found = {0};
        if (session_list_read(c, &l.filter, &found, e) < 0)
            return -1;
        put_page(&j, &found);
        memcpy(l.cursor, found.next, sizeof l.cursor);
        l.filter.cursor = l.cursor;
    } while (l.cursor[0] && !out.overflow);

    json_close(&j, ']');
    return call_json(c, 200, &out);
}

/* ---- its life ---- */

int e2b_kill(struct call *c, struct pd_err *e)
{
    if (call_no_query(c, e) < 0 || session_end(c->session, END_KILLED, "deleted by the API", e) < 0)
        return -1;
    return call_empty(c);
}

int e2b_timeout(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    uint64_t ms = 0;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0)
        return -1;

    e2b_read_timeout(c, &f, FIELD_REQUIRED, 0, &ms);
    if (call_finish(c, &f, e) < 0)
        return -1;
    return session_expire_at(c->session, time_now_ms() + ms, false, e) < 0 ? -1 : call_empty(c);
}

int e2b_refresh(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    uint64_t seconds = 15;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;

    fields_u64(&f, "duration", FIELD_OPTIONAL, 0, REFRESH_MAX, &seconds);
    if (call_finish(c, &f, e) < 0 ||
        session_expire_at(c->session, time_now_ms() + seconds * MS_PER_S, true, e) < 0)
        return -1;
    return call_empty(c);
}

static bool is_paused(struct session *s)
{
    struct session_info i;
    session_get(s, &i);
    return i.state == SESSION_PAUSED;
}

static int answer_sandbox(struct call *c, int status)
{
    auto_buf out = BUF_INIT(8192);
    struct json j = JSON_INIT(&out);
    e2b_sandbox_json(c, &j, c->session);
    return call_json(c, status, &out);
}

/* `cold`: without its memory, though there is one. */
static int wake(struct call *c, uint64_t ms, int cold, struct pd_err *e)
{
    return (cold && session_sleep(c->session, e) < 0) ||
                   session_expire_at(c->session, time_now_ms() + ms, false, e) < 0 ||
                   session_resume(c->session, e) < 0
               ? -1
               : answer_sandbox(c, 201);
}

static int join(struct call *c, uint64_t ms, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    bool memory = true;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;

    e2b_read_timeout(c, &f, FIELD_OPTIONAL, 1, &ms);
    fields_bool(&f, "memory", FIELD_OPTIONAL, &memory);
    if (call_finish(c, &f, e) < 0)
        return -1;

    if (is_paused(c->session))
        return wake(c, ms, !memory, e);
    return session_expire_at(c->session, time_now_ms() + ms, true, e) < 0 ? -1
                                                                          : answer_sandbox(c, 200);
}

int e2b_connect(struct call *c, struct pd_err *e)
{
    return join(c, 15 * MS_PER_S, e);
}

int e2b_connect_v2(struct call *c, struct pd_err *e)
{
    return join(c, 300 * MS_PER_S, e);
}

int e2b_resume(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    struct session_info i;
    uint64_t ms = 15 * MS_PER_S;
    bool pause;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;

    session_get(c->session, &i);
    pause = i.pause_at_end;
    e2b_read_timeout(c, &f, FIELD_OPTIONAL, 1, &ms);
    if (fields_bool(&f, "autoPause", FIELD_OPTIONAL, &pause) && pause != !!i.pause_at_end)
        fields_refuse(&f, "autoPause", "is decided when a sandbox is made");

    if (call_finish(c, &f, e) < 0)
        return -1;
    if (i.state != SESSION_PAUSED)
        return pd_fail(e, PD_CONFLICT, "sandbox %s is running already", i.id);
    return wake(c, ms, 0, e);
}

int e2b_pause(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    bool memory = true;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;

    fields_bool(&f, "memory", FIELD_OPTIONAL, &memory);
    if (call_finish(c, &f, e) < 0)
        return -1;

    if (is_paused(c->session))
        return pd_fail(e, PD_CONFLICT, "sandbox %s is paused already", c->sandbox);
    if ((memory ? session_pause(c->session, e) : session_sleep(c->session, e)) < 0)
        return -1;
    return call_empty(c);
}
