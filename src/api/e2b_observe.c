/* Observation at the E2B door: metrics of sandboxes, their logs (the audit log's events in E2B's
 * two forms), and the small calls of envd. */
#include "api/e2b.h"
#include "api/e2b_handlers.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/json.h"
#include "telemetry/audit.h"

#define SAMPLES_MAX 60u
#define MANY_MAX    100u
#define EVENTS_MAX  1000u

/* ---- metrics ---- */

/* Of all that it may use, not of one core. In thousandths of a percent. */
static uint64_t cpu_share(const struct session_sample *s, const struct session_info *i)
{
    uint64_t cpu = i->spec.limits.cpu_milli;
    return cpu ? (uint64_t)s->cpu_milli_pct * 1000 / cpu : s->cpu_milli_pct;
}

static void put_metric(struct json *j, const struct session_sample *s, const struct session_info *i)
{
    json_open(j, '{');
    json_time(j, "timestamp", s->at_ms);
    json_member_uint(j, "timestampUnix", s->at_ms / 1000);
    json_member_uint(j, "cpuCount", (i->spec.limits.cpu_milli + 999) / 1000);
    json_member_milli(j, "cpuUsedPct", cpu_share(s, i));
    json_member_uint(j, "memUsed", s->memory);
    json_member_uint(j, "memTotal", s->memory_limit);
    json_member_uint(j, "memCache", 0);
    json_member_uint(j, "diskUsed", s->disk_used);
    json_member_uint(j, "diskTotal", s->disk_total);
    json_close(j, '}');
}

int e2b_metrics(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"start", "end", NULL};
    uint64_t start = 0, end = 0;
    struct session_sample samples[SAMPLES_MAX];
    struct session_info i;
    auto_buf out = BUF_INIT(64u << 10);
    struct json j = JSON_INIT(&out);

    if (call_query_check(c, allowed, e) < 0 ||
        call_query_u64(c, "start", 0, UINT64_MAX / 2000, &start, e) < 0 ||
        call_query_u64(c, "end", 0, UINT64_MAX / 2000, &end, e) < 0 ||
        session_must(c->session, PROVIDER_USAGE, e) < 0)
        return -1;

    session_get(c->session, &i);
    /* The second that was named is meant as a whole. */
    unsigned count =
        session_samples(c->session, start * 1000, end ? end * 1000 + 999 : 0, samples, SAMPLES_MAX);

    json_open(&j, '[');
    for (unsigned n = 0; n < count; n++)
        put_metric(&j, &samples[n], &i);
    json_close(&j, ']');
    return call_json(c, 200, &out);
}

/* Sandboxes that are not there are left out. */
static void put_latest(struct call *c, struct json *j, const char *id)
{
    struct pd_err ignored;
    struct session_info i;
    struct session_sample sample;

    struct session *s = sessions_find(c->api->sessions, c->who.tenant, id, &ignored);
    if (!s)
        return;

    session_get(s, &i);
    if (i.state < SESSION_STOPPING && session_samples(s, 0, 0, &sample, 1) == 1) {
        json_key(j, i.id);
        put_metric(j, &sample, &i);
    }

    session_unref(s);
}

int e2b_metrics_of_many(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"sandbox_ids", NULL};
    char text[MANY_MAX * (SESSION_ID_LEN + 1) + 1], *save = NULL;
    unsigned count = 0;
    auto_buf out = BUF_INIT(256u << 10);
    struct json j = JSON_INIT(&out);
    int given;

    if (call_query_check(c, allowed, e) < 0 ||
        (given = call_query(c, "sandbox_ids", text, sizeof text, e)) < 0)
        return -1;
    if (!given)
        return pd_fail(e, PD_INVALID, "sandbox_ids is missing");

    json_open(&j, '{');
    json_key(&j, "sandboxes");
    json_open(&j, '{');
    for (char *id = strtok_r(text, ",", &save); id && count < MANY_MAX;
         id = strtok_r(NULL, ",", &save), count++)
        put_latest(c, &j, id);
    json_close(&j, '}');
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

/* ---- logs: the audit log's events ---- */

enum level { LEVEL_DEBUG, LEVEL_INFO, LEVEL_WARN, LEVEL_ERROR };
static const char *const level_names[] = {"debug", "info", "warn", "error", NULL};

struct wanted {
    uint64_t from, to; /* ms; 0: any */
    enum level level;
    const char *search;
    unsigned limit;
    int backwards;
};

struct log_event {
    struct fields fields;
    const char *time, *action, *command, *result;
    char message[600];
    enum level level;
};

/* Cuts the next object off a JSON array that the audit log has written. */
static struct slice next_object(const char **at, const char *end)
{
    const char *begin = NULL;
    int depth = 0, quoted = 0;

    for (const char *p = *at; p < end; p++) {
        if (quoted && *p == '\\')
            p++;
        else if (*p == '"')
            quoted = !quoted;
        else if (!quoted && *p == '{' && depth++ == 0)
            begin = p;
        else if (!quoted && *p == '}' && --depth == 0) {
            *at = p + 1;
            return (struct slice){begin, (size_t)(p + 1 - begin)};
        }
    }

    *at = end;
    return (struct slice){0};
}

static int event_read(struct slice text, struct log_event *v, uint64_t *ret_ms)
{
    struct pd_err e;

    *v = (struct log_event){.command = "", .result = "ok", .level = LEVEL_INFO};
    if (fields_parse(&v->fields, text.at, text.len, FIELDS_OPEN, &e) < 0 ||
        !fields_str(&v->fields, "time", FIELD_REQUIRED, 1, 64, &v->time) ||
        !fields_str(&v->fields, "action", FIELD_REQUIRED, 1, 128, &v->action) ||
        time_parse_ms("time", v->time, ret_ms, &e) < 0)
        return -1;

    fields_str(&v->fields, "command", FIELD_OPTIONAL, 0, AUDIT_COMMAND_MAX * 2, &v->command);
    fields_str(&v->fields, "result", FIELD_OPTIONAL, 0, 128, &v->result);

    if (strcmp(v->result, "ok") != 0)
        v->level = strcmp(v->result, "internal") != 0 ? LEVEL_WARN : LEVEL_ERROR;

    snprintf(v->message, sizeof v->message, "%s%s%.400s: %s", v->action, v->command[0] ? " " : "",
             v->command, v->result);
    return 0;
}

static bool is_wanted(const struct wanted *w, const struct log_event *v, uint64_t ms)
{
    return ms >= w->from && (!w->to || ms <= w->to) && v->level >= w->level &&
           (!w->search || strstr(v->message, w->search));
}

/* Its fields are strings, whatever they were. */
static void put_fields(struct json *j, struct log_event *v)
{
    static const char *const texts[] = {"action", "command", "result",
                                        "user",   "request", "stopped_by"};
    int64_t exit_code;
    uint64_t took;
    char number[40];
    const char *text;

    json_key(j, "fields");
    json_open(j, '{');
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (fields_str(&v->fields, texts[i], FIELD_OPTIONAL, 1, AUDIT_COMMAND_MAX * 2, &text))
            json_member_cstr(j, texts[i], text);

    if (fields_i64(&v->fields, "exit_code", FIELD_OPTIONAL, INT32_MIN, INT32_MAX, &exit_code)) {
        snprintf(number, sizeof number, "%d", (int)exit_code);
        json_member_cstr(j, "exit_code", number);
    }

    if (fields_milli(&v->fields, "duration_ms", FIELD_OPTIONAL, 0, UINT64_MAX / 2, &took)) {
        snprintf(number, sizeof number, "%llu.%03llu", (unsigned long long)took / 1000,
                 (unsigned long long)took % 1000);
        json_member_cstr(j, "duration_ms", number);
    }
    json_close(j, '}');
}

static void put_entry(struct json *j, struct log_event *v)
{
    json_open(j, '{');
    json_member_cstr(j, "timestamp", v->time);
    json_member_cstr(j, "level", level_names[v->level]);
    json_member_cstr(j, "message", v->message);
    put_fields(j, v);
    json_close(j, '}');
}

static void put_line(struct json *j, struct log_event *v)
{
    json_open(j, '{');
    json_member_cstr(j, "timestamp", v->time);
    json_member_cstr(j, "line", v->message);
    json_close(j, '}');
}

/* The objects of the array, oldest first. */
static unsigned split(const struct buf *events, struct slice found[EVENTS_MAX])
{
    const char *at = (const char *)events->data, *end = at + events->len;
    unsigned count = 0;

    for (struct slice s; count < EVENTS_MAX && (s = next_object(&at, end)).len;)
        found[count++] = s;
    return count;
}

static void put_events(struct json *j, const char *key, const struct buf *events,
                       const struct wanted *w, void (*put)(struct json *j, struct log_event *v))
{
    struct slice *found = calloc(EVENTS_MAX, sizeof *found);
    unsigned count = found ? split(events, found) : 0, told = 0;

    json_key(j, key);
    json_open(j, '[');
    for (unsigned n = 0; n < count && told < w->limit; n++) {
        struct log_event v;
        uint64_t ms = 0;
        struct slice text = found[w->backwards ? count - 1 - n : n];
        if (event_read(text, &v, &ms) == 0 && is_wanted(w, &v, ms)) {
            put(j, &v);
            told++;
        }
        fields_done(&v.fields);
    }

    json_close(j, ']');
    free(found);
}

static int answer_logs(struct call *c, const struct wanted *w, int v2, struct pd_err *e)
{
    auto_buf events = BUF_INIT(8u << 20), out = BUF_INIT(16u << 20);
    struct json j = JSON_INIT(&out);

    if (c->api->audit && audit_read(c->api->audit, c->sandbox, EVENTS_MAX, &events, e) < 0)
        return -1;

    json_open(&j, '{');
    put_events(&j, "logs", &events, w, v2 ? put_entry : put_line);
    if (!v2)
        put_events(&j, "logEntries", &events, w, put_entry);
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

int e2b_logs(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"start", "limit", NULL};
    struct wanted w = {0};
    uint64_t limit = EVENTS_MAX;

    if (call_query_check(c, allowed, e) < 0 ||
        call_query_u64(c, "start", 0, UINT64_MAX, &w.from, e) < 0 ||
        call_query_u64(c, "limit", 0, EVENTS_MAX, &limit, e) < 0)
        return -1;

    w.limit = (unsigned)limit;
    return answer_logs(c, &w, 0, e);
}

static int read_level(struct call *c, enum level *ret, struct pd_err *e)
{
    char text[16];

    int r = call_query(c, "level", text, sizeof text, e);
    if (r <= 0)
        return r;

    for (int i = 0; level_names[i]; i++)
        if (!strcmp(level_names[i], text)) {
            *ret = (enum level)i;
            return 0;
        }
    return pd_fail(e, PD_INVALID, "level: debug, info, warn or error");
}

int e2b_logs_v2(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"cursor", "limit", "direction", "level", "search", NULL};
    struct wanted w = {0};
    char direction[16] = "forward", search[257];
    uint64_t limit = EVENTS_MAX, cursor = 0;
    int searches;

    if (call_query_check(c, allowed, e) < 0 ||
        call_query_u64(c, "cursor", 0, UINT64_MAX, &cursor, e) < 0 ||
        call_query_u64(c, "limit", 0, EVENTS_MAX, &limit, e) < 0 ||
        call_query(c, "direction", direction, sizeof direction, e) < 0 ||
        read_level(c, &w.level, e) < 0 ||
        (searches = call_query(c, "search", search, sizeof search, e)) < 0)
        return -1;

    w.backwards = !strcmp(direction, "backward");
    if (!w.backwards && strcmp(direction, "forward") != 0)
        return pd_fail(e, PD_INVALID, "direction: forward or backward");

    w.from = w.backwards ? 0 : cursor;
    w.to = w.backwards ? cursor : 0;
    w.search = searches ? search : NULL;
    w.limit = (unsigned)limit;
    return answer_logs(c, &w, 1, e);
}

/* ---- envd ---- */

int envd_health(struct call *c, struct pd_err *e)
{
    (void)e;
    return call_empty(c);
}

/* How a sandbox is set up is nobody's business but this server's. */
int envd_init(struct call *c, struct pd_err *e)
{
    (void)c;
    return pd_fail(e, PD_NOT_FOUND, "there is no /init here");
}

int envd_envs(struct call *c, struct pd_err *e)
{
    auto_buf out = BUF_INIT(2u << 20), own = BUF_INIT(1u << 20);
    struct json j = JSON_INIT(&out);
    struct msg_list_writer env = MSG_LIST_WRITER_INIT;
    uint32_t pos = 0;
    char cwd[SPEC_PATH_MAX];

    if (session_get_env(c->session, &own, cwd, sizeof cwd) < 0 ||
        e2b_sandbox_env(c->session, &env) < 0) {
        msg_list_writer_done(&env);
        return pd_fail(e, PD_CAPACITY, "no memory for the environment");
    }

    struct msg_list l = msg_list_of(&env);
    json_open(&j, '{');
    for (const char *v; (v = msg_list_next(&l, &pos));) {
        size_t len = strcspn(v, "=");
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)len, v);
        json_member_cstr(&j, name, v + len + 1);
    }

    if (own.len > 2) { /* more than {} */
        buf_putc(&out, ',');
        buf_put(&out, own.data + 1, own.len - 2);
    }

    json_close(&j, '}');
    msg_list_writer_done(&env);
    return call_json(c, 200, &out);
}

int envd_metrics(struct call *c, struct pd_err *e)
{
    struct session_sample s;
    struct session_info i;
    auto_buf out = BUF_INIT(4096);
    struct json j = JSON_INIT(&out);

    if (session_must(c->session, PROVIDER_USAGE, e) < 0)
        return -1;

    session_get(c->session, &i);
    if (session_samples(c->session, 0, 0, &s, 1) != 1)
        return pd_fail(e, PD_CAPACITY, "there are no measurements yet");

    json_open(&j, '{');
    json_member_uint(&j, "ts", s.at_ms / 1000);
    json_member_uint(&j, "cpu_count", (i.spec.limits.cpu_milli + 999) / 1000);
    json_member_milli(&j, "cpu_used_pct", cpu_share(&s, &i));
    json_member_uint(&j, "mem_total", s.memory_limit);
    json_member_uint(&j, "mem_used", s.memory);
    json_member_uint(&j, "mem_cache", 0);
    json_member_uint(&j, "mem_total_mib", s.memory_limit >> 20);
    json_member_uint(&j, "mem_used_mib", s.memory >> 20);
    json_member_uint(&j, "disk_used", s.disk_used);
    json_member_uint(&j, "disk_total", s.disk_total);
    json_close(&j, '}');
    return call_json(c, 200, &out);
}
