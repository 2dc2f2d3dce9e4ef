/* The server and its sandboxes tell of themselves: measurements and events of one sandbox, the
 * providers, health and readiness, and the metrics in the format of Prometheus. */
#include "api/handlers.h"
#include "api/sandbox.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/json.h"
#include "core/provider.h"
#include "router/router.h"
#include "telemetry/audit.h"
#include "telemetry/metrics.h"

#include <stdatomic.h>

#define HISTORY_MAX 64u /* samples; the controller keeps 60 */

/* What the controller has noted over the last minutes, oldest first. */
static void history_json(struct json *j, struct session *s)
{
    struct session_sample samples[HISTORY_MAX];
    unsigned count = session_samples(s, 0, 0, samples, HISTORY_MAX);

    json_key(j, "history");
    json_open(j, '[');
    for (unsigned i = 0; i < count; i++) {
        json_open(j, '{');
        json_time(j, "time", samples[i].at_ms);
        json_member_milli(j, "cpu_percent", samples[i].cpu_milli_pct);
        json_member_uint(j, "memory_bytes", samples[i].memory);
        json_member_uint(j, "disk_bytes", samples[i].disk_used);
        json_close(j, '}');
    }
    json_close(j, ']');
}

int sandbox_metrics(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"history", NULL};
    uint64_t memory, peak, cpu, pids;
    bool history = false;
    struct session_info i;
    auto_buf out = BUF_INIT(16u << 10);
    struct json j = JSON_INIT(&out);

    if (call_query_check(c, allowed, e) < 0 || call_query_bool(c, "history", &history, e) < 0 ||
        session_usage(c->session, &memory, &peak, &cpu, &pids, e) < 0)
        return -1;

    session_get(c->session, &i);
    json_open(&j, '{');
    json_time(&j, "time", time_now_ms());
    json_member_uint(&j, "memory_bytes", memory);
    json_member_uint(&j, "memory_peak_bytes", peak);
    json_member_milli(&j, "cpu_time_ms", cpu);
    json_member_uint(&j, "pids", pids);
    limits_json(&j, c->session, &i.spec.limits);
    if (history)
        history_json(&j, c->session);
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

int sandbox_events(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"limit", NULL};
    uint64_t limit = 100;
    auto_buf out = BUF_INIT(8u << 20);

    if (call_query_check(c, allowed, e) < 0 || call_query_u64(c, "limit", 1, 1000, &limit, e) < 0)
        return -1;

    buf_puts(&out, "{\"events\":");
    if (!c->api->audit)
        buf_puts(&out, "[]");
    else if (audit_read(c->api->audit, c->sandbox, (unsigned)limit, &out, e) < 0)
        return -1;
    buf_puts(&out, "}");
    return call_json(c, 200, &out);
}

static void provider_json(struct json *j, struct sessions *all, struct provider *p, bool is_default)
{
    struct pd_err why;
    unsigned ready, filling;
    sessions_count_pool(all, p, &ready, &filling);
    bool healthy = p->health(p, &why) == 0;

    json_open(j, '{');
    json_member_cstr(j, "name", p->name);
    json_member_bool(j, "default", is_default);
    json_member_bool(j, "healthy", healthy);
    json_member_cstr(j, "isolation", rung_name(p->best(p)));
    json_member_str(j, "image", provider_has(p, PROVIDER_IMAGE) && p->image ? p->image : "");

    json_key(j, "capabilities");
    json_open(j, '[');
    for (unsigned i = 0; i < PROVIDER_CAPABILITY_COUNT; i++)
        if (p->can & provider_capabilities[i].bit)
            json_cstr(j, provider_capabilities[i].name);
    json_close(j, ']');

    json_key(j, "pool");
    json_open(j, '{');
    json_member_uint(j, "ready", ready);
    json_member_uint(j, "filling", filling);
    json_close(j, '}');

    json_member_cstr(j, "error", healthy ? NULL : why.msg);
    json_close(j, '}');
}

int providers_list(struct call *c, struct pd_err *e)
{
    const struct provider_table *t = c->api->providers;
    if (call_no_query(c, e) < 0)
        return -1;

    auto_buf out = BUF_INIT(64u << 10);
    struct json j = JSON_INIT(&out);

    json_open(&j, '{');
    json_key(&j, "providers");
    json_open(&j, '[');
    for (unsigned i = 0; i < t->count; i++)
        provider_json(&j, c->api->sessions, t->list[i], i == 0);
    json_close(&j, ']');
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

int health_get(struct call *c, struct pd_err *e)
{
    (void)e;
    (void)reply(c->r, 200, "text/plain; charset=utf-8", "ok\n", 3);
    return 0;
}

int ready_get(struct call *c, struct pd_err *e)
{
    if (atomic_load(&c->api->draining))
        return pd_fail(e, PD_SHUTTING_DOWN, "the server is shutting down");

    /* Sandboxes for which no provider is asked must be possible. */
    struct provider *p = c->api->providers->list[0];
    if (p->health(p, e) < 0)
        return -1;

    (void)reply(c->r, 200, "text/plain; charset=utf-8", "ready\n", 6);
    return 0;
}

/* From this machine no key is needed: that is where a scraper runs. */
int metrics_get(struct call *c, struct pd_err *e)
{
    if (!conn_is_local(c->r->conn) && call_authenticate(c, e) < 0)
        return -1;

    auto_buf out = BUF_INIT(METRICS_MAX);
    metrics_render(c->api->metrics, &out);
    router_metrics(c->api->router, &out);
    (void)reply(c->r, 200, METRICS_TYPE, out.data, out.len);
    return 0;
}
