/* The server at a glance, and what was done there: the pages Overview and Audit of the console. A
 * tenant is told of itself; what concerns all tenants is told to who has an admin key. */
#include "api/call.h"
#include "api/handlers.h"

#include "base/banned.h"
#include "base/json.h"
#include "config/config.h"
#include "telemetry/audit.h"
#include "telemetry/metrics.h"

#define EVENTS_MAX (8u << 20) /* bytes of one page */

static void put_states(struct json *j, const unsigned by_state[SESSION_STATE_COUNT], uint64_t max)
{
    json_key(j, "sandboxes");
    json_open(j, '{');
    for (int s = 0; s < SESSION_STATE_COUNT; s++)
        json_member_uint(j, session_state_name((enum session_state)s), by_state[s]);
    json_close(j, '}');
    json_member_uint(j, "max_sandboxes", max);
}

static uint64_t commands_ended(struct call *c)
{
    uint64_t n = 0;
    for (unsigned stop = STOP_NONE; stop < STOP_COUNT; stop++)
        n += metrics_value(c->api->metrics, METRIC_EXECS, stop, 0);
    return n;
}

static void put_slowest(struct json *j, const struct slowest *t)
{
    struct slow_creation slow[SLOWEST];
    unsigned count = slowest_get(t, time_now_ms(), slow);

    json_key(j, "slowest_creations");
    json_open(j, '[');
    for (unsigned i = 0; i < count; i++) {
        json_open(j, '{');
        json_member_cstr(j, "sandbox", slow[i].id);
        json_member_cstr(j, "tenant", slow[i].tenant);
        json_member_cstr(j, "provider", slow[i].provider);
        json_member_cstr(j, "template", slow[i].from);
        json_time(j, "time", slow[i].at_ms);
        json_member_milli(j, "ms", slow[i].took_us);
        json_close(j, '}');
    }
    json_close(j, ']');
}

static void put_server(struct call *c, struct json *j)
{
    struct sessions_stats s;
    sessions_get_stats(c->api->sessions, &s);

    json_open(j, '{');
    put_states(j, s.by_state, c->config->max_sandboxes);
    json_member_uint(j, "queued", s.queued);
    json_member_uint(j, "queue_max", c->config->queue_max);
    json_member_uint(j, "commands_running", s.running);
    json_member_uint(j, "output_kept_bytes", s.output_kept);

    json_key(j, "pool");
    json_open(j, '{');
    json_member_uint(j, "ready", s.pool_ready);
    json_member_uint(j, "filling", s.pool_filling);
    json_member_uint(j, "hits", s.pool_hits);
    json_member_uint(j, "misses", s.pool_misses);
    json_close(j, '}');

    put_slowest(j, &s.slowest);

    json_key(j, "since_start");
    json_open(j, '{');
    json_member_uint(j, "created", s.created);
    json_member_uint(j, "create_failed", s.create_failed);
    json_member_uint(j, "queue_refused", s.queue_refused);
    json_member_uint(j, "commands", commands_ended(c));
    json_key(j, "ended");
    json_open(j, '{');
    for (int end = END_KILLED; end < END_COUNT; end++)
        json_member_uint(j, session_end_name((enum session_end)end), s.ended[end]);
    json_close(j, '}');
    json_key(j, "stopped");
    json_open(j, '{');
    for (unsigned stop = STOP_NONE + 1; stop < STOP_COUNT; stop++) {
        uint64_t n = metrics_value(c->api->metrics, METRIC_EXECS, stop, 0);
        if (n)
            json_member_uint(j, process_stop_name((enum process_stop)stop), n);
    }
    json_close(j, '}');
    json_key(j, "refused");
    json_open(j, '{');
    for (int code = 0; code < PD_CODE_COUNT; code++)
        if (c->api->refused[code])
            json_member_uint(j, pd_code_name((enum pd_code)code), c->api->refused[code]);
    json_close(j, '}');
    json_close(j, '}');
    json_close(j, '}');
}

int overview_get(struct call *c, struct pd_err *e)
{
    unsigned mine[SESSION_STATE_COUNT];
    auto_buf out = BUF_INIT(16u << 10);
    struct json j = JSON_INIT(&out);

    if (call_no_query(c, e) < 0)
        return -1;

    sessions_count_tenant(c->api->sessions, c->who.tenant, mine);
    json_open(&j, '{');
    json_time(&j, "time", time_now_ms());
    json_member_cstr(&j, "version", c->api->version);
    json_key(&j, "tenant");
    json_open(&j, '{');
    json_member_cstr(&j, "name", c->who.tenant);
    put_states(&j, mine, c->config->max_sandboxes_per_tenant);
    json_close(&j, '}');

    json_key(&j, "server");
    if (c->who.role == AUTH_ADMIN)
        put_server(c, &j);
    else
        json_none(&j);
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

int audit_get(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"limit",  "cursor", "action",  "key",
                                          "result", "tenant", "sandbox", NULL};
    /* In the order of the members below. */
    static const char *const names[] = {"action", "key", "result", "sandbox", "cursor", "tenant"};
    enum { ACTION, KEY, RESULT, SANDBOX, CURSOR, TENANT, COUNT };
    char text[COUNT][128];
    const char *said[COUNT] = {0};
    uint64_t limit = 100;
    char next[AUDIT_CURSOR_SIZE];

    if (call_query_check(c, allowed, e) < 0 || call_query_u64(c, "limit", 1, 1000, &limit, e) < 0)
        return -1;
    for (int i = 0; i < COUNT; i++) {
        int given = call_query(c, names[i], text[i], sizeof text[i], e);
        if (given < 0)
            return -1;
        said[i] = given && text[i][0] ? text[i] : NULL;
    }

    bool others = said[TENANT] && strcmp(said[TENANT], c->who.tenant) != 0;
    if (others && c->who.role != AUTH_ADMIN) {
        snprintf(c->field, sizeof c->field, "tenant");
        return pd_fail(e, PD_DENIED, "tenant=%.63s: another tenant's events need an admin key",
                       said[TENANT]);
    }

    struct audit_query q = {.action = said[ACTION],
                            .key = said[KEY],
                            .result = said[RESULT],
                            .sandbox = said[SANDBOX],
                            .cursor = said[CURSOR],
                            .tenant = said[TENANT] ? said[TENANT] : c->who.tenant,
                            .limit = (unsigned)limit,
                            .newest_first = true};
    if (!strcmp(q.tenant, "*"))
        q.tenant = NULL;

    auto_buf out = BUF_INIT(EVENTS_MAX);
    struct json j = JSON_INIT(&out);
    json_open(&j, '{');
    json_key(&j, "events");
    if (audit_search(c->api->audit, &q, &out, next, e) < 0) {
        if (e->code == PD_INVALID)
            snprintf(c->field, sizeof c->field, "cursor");
        return -1;
    }
    j.need_comma = 1;
    json_member_str(&j, "next_cursor", next);
    json_close(&j, '}');
    return call_json(c, 200, &out);
}
