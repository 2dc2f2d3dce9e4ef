/* How a request goes through: the host must be one that this server answers to (a page in
 * somebody's browser can reach loopback under any name it likes), the route must exist, the key
 * must be good, the tenant must have requests left, and the sandbox must be the tenant's. Then its
 * handler runs. */
#include "api/e2b.h"
#include "api/login.h"
#include "api/preview.h"
#include "api/share.h"

#include "access/ids.h"
#include "access/quota.h"
#include "base/banned.h"
#include "base/json.h"
#include "base/parse.h"
#include "config/config.h"
#include "net/utf8.h"
#include "telemetry/audit.h"
#include "telemetry/log.h"
#include "telemetry/metrics.h"

#include <arpa/inet.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define KEY_SIZE          256
#define STRANGER_PATIENCE (5 * NS_PER_S)
#define STRANGER_EVENTS   20 /* a second */
#define QUERY_MAX         24 /* parameters that a route has of its own */

int call_find_route(struct call *c, struct route_table table, struct pd_err *e)
{
    char allow[ROUTE_ALLOW_SIZE];

    int r = route_find(table, c->r->path, c->r->head.method, &c->route, &c->matched, allow, e);
    if (r < 0 && e->code == PD_METHOD)
        reply_header(c->r, "Allow", allow);
    c->var = c->matched.var;

    c->var_count = c->matched.count;
    c->rest = c->matched.rest;
    return r;
}

/* ---- admission ---- */

static bool is_listed(const struct config_list *l, const char *name)
{
    for (unsigned i = 0; i < l->count; i++)
        if (!strcasecmp(l->items[i], name))
            return true;
    return false;
}

/* A name that only this machine's own users would use, or one from the configuration. Addresses are
 * fine: a browser sends a page's requests with the page's name. */
static int check_host(struct call *c, struct pd_err *e)
{
    char host[300];
    struct in_addr v4;
    struct in6_addr v6;
    struct slice h = c->r->head.host;
    const struct config *config = c->config;

    if (h.len == 0)
        return c->r->head.minor == 0 ? 0 : pd_fail(e, PD_INVALID, "the Host header is empty");
    if (h.len >= sizeof host)
        return pd_fail(e, PD_INVALID, "the Host header is too long");

    memcpy(host, h.at, h.len);
    host[h.len] = 0;

    if (host[0] == '[') {
        host[strcspn(host, "]")] = 0;
        if (inet_pton(AF_INET6, host + 1, &v6) == 1)
            return 0;
    }

    host[strcspn(host, ":")] = 0;
    size_t len = strlen(host), domain = strlen(config->domain);
    if (inet_pton(AF_INET, host, &v4) == 1 || !strcasecmp(host, "localhost") ||
        is_listed(&config->allowed_hosts, host) || !strcasecmp(host, config->domain) ||
        (domain && len > domain && host[len - domain - 1] == '.' &&
         !strcasecmp(host + len - domain, config->domain)))
        return 0;

    return pd_fail(e, PD_DENIED,
                   "host '%.100s' is not one of this server's: add it to allowed_hosts", host);
}

static int copy_key(const struct slice *value, const char *prefix, char *out)
{
    size_t skip = prefix ? strlen(prefix) : 0;
    if (!value || value->len < skip || value->len - skip >= KEY_SIZE ||
        (prefix && strncasecmp(value->at, prefix, skip) != 0))
        return 0;

    memcpy(out, value->at + skip, value->len - skip);
    out[value->len - skip] = 0;
    return 1;
}

int call_authenticate(struct call *c, struct pd_err *e)
{
    if (c->by_login)
        return login_check(c, e);

    char key[KEY_SIZE] = "";
    if (!copy_key(http_find(&c->r->head, "X-API-Key"), NULL, key))
        (void)copy_key(http_find(&c->r->head, "Authorization"), "Bearer ", key);

    if (auth_check(c->api->auth, key, &c->who, e) == 0)
        return 0;

    metrics_count(c->api->metrics, METRIC_AUTH_FAILURES);
    reply_header(c->r, "WWW-Authenticate", "Bearer");
    return -1;
}

/* A key, or a login at the console. A login opens /v1 and nothing else: not the doors of other
 * protocols, whose clients are no pages of ours, and no port, whose program would be sent it. */
static int authenticate(struct call *c, struct pd_err *e)
{
    bool is_ours = c->route >= api_routes && c->route < api_routes + api_route_count &&
                   !strncmp(c->route->pattern, "/v1/", 4) && !(c->route->flags & ROUTE_REST);
    c->by_login = is_ours && login_is_shown(c);
    if (!c->by_login)
        return call_authenticate(c, e);

    if (http_find(&c->r->head, "X-API-Key") || http_find(&c->r->head, "Authorization"))
        return pd_fail(e, PD_INVALID, "a key or a login: not both");
    if (login_check(c, e) == 0)
        return 0;
    metrics_count(c->api->metrics, METRIC_AUTH_FAILURES);
    return -1;
}

/* A signed token in place of a key: every client that has the link may use that port. */
static int check_preview(struct call *c)
{
    char token[512];
    struct pd_err e;
    uint64_t port;

    if (!(c->route->flags & ROUTE_PREVIEW) || c->var_count < 2 ||
        url_query_get(c->r->query, "paddock_preview", token, sizeof token, &e) != 1)
        return 0;

    return parse_u64("port", c->var[1], 1, 65535, &port, &e) == 0 &&
           preview_admits(c, token, c->var[0], (unsigned)port);
}

static int enter_share(struct call *c, const char *party, struct pd_err *e)
{
    if (c->api->shares) {
        if (shares_enter(c->api->shares, party, (unsigned)c->config->max_active, e) < 0) {
            c->retry_after = 1;
            metrics_add(c->api->metrics, METRIC_LIMITS, METRICS_LIMIT_RATE, 0, 1);
            return -1;
        }
        c->counted = party;
    }

    request_set_patience(c->r, REQUEST_PATIENCE);
    return 0;
}

int call_count(struct call *c, struct pd_err *e)
{
    if (quota_take(c->api->quota, c->who.tenant, QUOTA_REQUESTS, &c->retry_after, e) < 0) {
        metrics_add(c->api->metrics, METRIC_LIMITS, METRICS_LIMIT_RATE, 0, 1);
        return -1;
    }

    return enter_share(c, c->who.tenant, e);
}

int call_count_visitor(struct call *c, struct pd_err *e)
{
    snprintf(c->party, sizeof c->party, "+%.*s", ID_TENANT_MAX - 1, c->who.tenant);
    return enter_share(c, c->party, e);
}

/* Strangers together have a share like a tenant; beyond it they are answered as well, but not
 * waited for. */
void call_count_stranger(struct call *c)
{
    if (!c->api->shares ||
        shares_enter(c->api->shares, "", (unsigned)c->config->max_active, NULL) < 0)
        return;

    c->counted = "";
    request_set_patience(c->r, STRANGER_PATIENCE);
}

int call_refuse_reader(struct pd_err *e)
{
    return pd_fail(e, PD_DENIED, "a reader's key may look, and nothing else: use another key");
}

/* What a reader's key is for: looking at /v1, which is no use of a sandbox. The doors of other
 * protocols hand out tokens that may do more, and a port's program does what it likes. */
static bool reader_may(struct call *c)
{
    bool is_ours = c->route >= api_routes && c->route < api_routes + api_route_count;
    enum http_method m = c->r->head.method;

    if (!is_ours || c->route->flags & ROUTE_REST)
        return false;
    return m == HTTP_GET || m == HTTP_HEAD || c->route->flags & ROUTE_LOOK ||
           !strncmp(c->route->pattern, "/v1/console/", 12);
}

int call_admit(struct call *c, struct pd_err *e)
{
    if (c->route->flags & ROUTE_OPEN) {
        call_count_stranger(c);
        return 0;
    }

    bool by_ticket = c->route->flags & ROUTE_TICKET;
    if ((by_ticket ? ticket_admit(c, e) < 0 : !check_preview(c) && authenticate(c, e) < 0) ||
        call_count(c, e) < 0)
        return -1;

    if (c->route->flags & ROUTE_ADMIN && c->who.role != AUTH_ADMIN)
        return pd_fail(e, PD_DENIED,
                       "this needs an admin key: the operator makes one with `paddock key create "
                       "--admin`");
    if (c->who.role == AUTH_READER && !reader_may(c))
        return call_refuse_reader(e);
    if (c->route->flags & ROUTE_WORK && atomic_load(&c->api->draining)) {
        c->retry_after = 5;
        return pd_fail(e, PD_SHUTTING_DOWN, "the server is shutting down: try again in a moment");
    }

    if (!(c->route->flags & (ROUTE_SANDBOX | ROUTE_TICKET)))
        return 0;
    if (c->route->flags & ROUTE_LOOK && call_query_bool(c, OBSERVE, &c->observes, e) < 0)
        return -1;
    c->observes |= c->who.role == AUTH_READER;

    const char *id = by_ticket ? c->ticket.sandbox : c->var[0];
    c->observes |= c->ticket.observes;
    c->session = sessions_find(c->api->sessions, c->who.tenant, id, e);
    if (!c->session)
        return -1;
    snprintf(c->sandbox, sizeof c->sandbox, "%.*s", SESSION_ID_LEN, id);
    return 0;
}

void call_use_begin(struct call *c)
{
    if (!c->observes)
        session_attend_begin(c->session);
}

void call_use_end(struct call *c)
{
    if (!c->observes)
        session_attend_end(c->session);
}

/* ---- the entry ---- */

static void answer_error(struct call *c, const struct pd_err *e)
{
    char seconds[24];
    auto_buf details = BUF_INIT(4096);
    struct json j = JSON_INIT(&details);
    unsigned wait = c->retry_after ? c->retry_after : e->code == PD_CAPACITY ? 1 : 0;

    json_open(&j, '{');
    if (c->field[0]) {
        json_key(&j, "field");
        json_cstr(&j, c->field);
    }

    if (wait) {
        snprintf(seconds, sizeof seconds, "%u", wait);
        if (!c->r->status)
            reply_header(c->r, "Retry-After", seconds);
        json_key(&j, "retry_after_s");
        json_uint(&j, wait);
    }
    json_close(&j, '}');

    atomic_fetch_add(&c->api->refused[e->code < PD_CODE_COUNT ? e->code : PD_INTERNAL], 1);
    if (e->code == PD_POLICY)
        metrics_add(c->api->metrics, METRIC_LIMITS, METRICS_LIMIT_POLICY, 0, 1);
    if (e->code == PD_INTERNAL || e->code == PD_PROTOCOL)
        log_error("request.failed", "error=%s", e->msg);
    (void)reply_error_details(c->r, e, buf_cstr(&details));
}

/* A client without a key must not be able to push others' events out of the audit log. The number
 * of all attempts is in the metrics. */
static bool is_worth_an_event(const struct call *c, const struct pd_err *e)
{
    if (!e || e->code != PD_UNAUTHENTICATED)
        return true;

    uint64_t second = c->began / NS_PER_S << 16, now = atomic_load(&c->api->strangers), next;
    do {
        next = now >> 16 << 16 == second ? now + 1 : second + 1;
        if ((next & 0xffff) > STRANGER_EVENTS)
            return false;
    } while (!atomic_compare_exchange_weak(&c->api->strangers, &now, next));
    return true;
}

void call_audit(const struct call *c, const struct pd_err *e)
{
    if (!c->api->audit || !c->route || !c->route->action || !is_worth_an_event(c, e))
        return;

    audit_write(c->api->audit,
                &(struct audit_event){.tenant = c->who.tenant,
                                      .key_id = c->who.key_id,
                                      .request_id = c->r->id,
                                      .sandbox = c->session ? c->sandbox : NULL,
                                      .action = c->route->action,
                                      .command = c->summary[0] ? c->summary : NULL,
                                      .result = e ? pd_code_name(e->code) : "ok",
                                      .has_exit = c->exit_code >= 0,
                                      .exit_code = c->exit_code,
                                      .stopped_by = c->stopped_by,
                                      .duration_us = (clock_now() - c->began) / 1000});
}

void api_handle(struct request *r, void *arg)
{
    struct api *api = arg;
    struct pd_err e;

    struct call *c = calloc(1, sizeof *c);
    if (!c) {
        pd_fail(&e, PD_CAPACITY, "no memory for the request");
        (void)reply_error(r, &e);
        return;
    }

    c->r = r;
    c->api = api;
    c->config = atomic_load(&api->config);
    c->exit_code = -1;
    c->began = clock_now();

    log_request(r->id);
    request_set_patience(r, 0);

    int failed = check_host(c, &e);
    if (failed == 0 && (e2b_handle(c) || api_handle_port_host(c))) {
        /* answered */
    } else {
        if (failed == 0)
            failed = call_find_route(c, (struct route_table){api_routes, api_route_count}, &e) < 0;
        /* Nothing of this is a page, whatever it looks like; what a port answers may be. */
        if (failed || !(c->route->flags & ROUTE_REST))
            reply_header(r, "X-Content-Type-Options", "nosniff");
        if (failed == 0)
            failed = call_admit(c, &e) < 0 || c->route->handle(c, &e) < 0;
        if (failed)
            answer_error(c, &e);
        call_audit(c, failed ? &e : NULL);
    }

    sessions_answered(api->sessions);
    session_unref(c->session);
    ticket_done(&c->ticket);
    if (c->counted)
        shares_leave(api->shares, c->counted);

    const char *method = http_method_name(r->head.method);
    metrics_request_ended(api->metrics, method, strlen(method), r->status,
                          (clock_now() - c->began) / 1000);
    log_debug("request", "method=%s path=%.*s status=%d us=%llu", method, (int)r->path.len,
              r->path.at, r->status, (unsigned long long)((clock_now() - c->began) / 1000));

    log_request(NULL);
    free(c);
}

/* ---- reading ---- */

int call_body(struct call *c, struct buf *text, struct fields *f, unsigned flags, struct pd_err *e)
{
    const struct slice *type = http_find(&c->r->head, "Content-Type");

    int has_body = c->r->head.body != HTTP_BODY_NONE &&
                   !(c->r->head.body == HTTP_BODY_LENGTH && c->r->head.length == 0);
    /* A form that some page makes a browser send cannot have this type. */
    if (has_body) {
        size_t len = 0;
        while (type && len < type->len && type->at[len] != ';' && type->at[len] != ' ')
            len++;
        if (!type || !slice_is_nocase((struct slice){type->at, len}, "application/json"))
            return pd_fail(e, PD_INVALID, "Content-Type: application/json is needed");
    }

    if (request_read_all(c->r, text, API_BODY_MAX, e) < 0)
        return -1;
    if (fields_parse(f, text->data, text->len, flags, e) == 0)
        return 0;

    if (fields_bad(f))
        snprintf(c->field, sizeof c->field, "%s", fields_bad(f));
    return -1;
}

int call_finish(struct call *c, struct fields *f, struct pd_err *e)
{
    if (fields_finish(f, e) == 0)
        return 0;
    if (fields_bad(f))
        snprintf(c->field, sizeof c->field, "%s", fields_bad(f));
    return -1;
}

int call_query_check(struct call *c, const char *const *allowed, struct pd_err *e)
{
    /* The parameter that every route with ROUTE_LOOK has beside its own. */
    const char *all[QUERY_MAX + 2] = {0};
    unsigned n = 0;
    while (allowed[n] && n < QUERY_MAX) {
        all[n] = allowed[n];
        n++;
    }
    if (c->route->flags & ROUTE_LOOK)
        all[n] = OBSERVE;

    if (url_query_check(c->r->query, all, e) == 0)
        return 0;

    /* Its complaints about one parameter begin with the name. */
    size_t len = strcspn(e->msg, ": ");
    if (e->msg[len] == ':' && len < sizeof c->field) {
        memcpy(c->field, e->msg, len);
        c->field[len] = 0;
    }
    return -1;
}

int call_no_query(struct call *c, struct pd_err *e)
{
    static const char *const none[] = {NULL};
    return call_query_check(c, none, e);
}

int call_no_fields(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};

    return call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0
               ? -1
               : call_finish(c, &f, e);
}

int call_query(struct call *c, const char *name, char *out, size_t size, struct pd_err *e)
{
    int r = url_query_get(c->r->query, name, out, size, e);
    if (r < 0)
        snprintf(c->field, sizeof c->field, "%s", name);
    return r;
}

int call_query_u64(struct call *c, const char *name, uint64_t min, uint64_t max, uint64_t *ret,
                   struct pd_err *e)
{
    char text[32];

    int r = call_query(c, name, text, sizeof text, e);
    if (r <= 0)
        return r;

    if (parse_u64(name, text, min, max, ret, e) == 0)
        return 1;
    snprintf(c->field, sizeof c->field, "%s", name);
    return -1;
}

int call_query_bool(struct call *c, const char *name, bool *ret, struct pd_err *e)
{
    char text[16];

    int r = call_query(c, name, text, sizeof text, e);
    if (r <= 0)
        return r;

    bool yes = !strcmp(text, "true") || !strcmp(text, "1");
    if (!yes && strcmp(text, "false") != 0 && strcmp(text, "0") != 0) {
        snprintf(c->field, sizeof c->field, "%s", name);
        return pd_fail(e, PD_INVALID, "%s=%s: true or false", name, text);
    }

    *ret = yes;
    return 1;
}

int call_accepts(const struct call *c, const char *type)
{
    const struct slice *accept = http_find(&c->r->head, "Accept");

    size_t len = strlen(type);
    for (size_t i = 0; accept && i + len <= accept->len; i++)
        if (!strncasecmp(accept->at + i, type, len))
            return 1;
    return 0;
}

int call_key(struct call *c, const struct buf *body, char key[API_KEY_MAX + 1],
             const char **ret_key, uint64_t *ret_hash, struct pd_err *e)
{
    const struct slice *h = http_find(&c->r->head, "Idempotency-Key");
    if (!h)
        return 0;

    if (h->len == 0 || h->len > API_KEY_MAX)
        return pd_fail(e, PD_INVALID, "Idempotency-Key: 1 to %u characters", API_KEY_MAX);

    memcpy(key, h->at, h->len);
    key[h->len] = 0;
    *ret_key = key;
    *ret_hash = hash_bytes(body->data, body->len);
    return 0;
}

/* Digits at *at, which moves behind them. */
static int read_offset(const char **at, const char *end, uint64_t *ret)
{
    uint64_t n = 0;
    const char *start = *at;

    for (; *at < end && **at >= '0' && **at <= '9' && *at - start < 18; ++*at)
        n = n * 10 + (uint64_t)(**at - '0');

    *ret = n;
    return *at > start ? 0 : -1;
}

int call_last_event(struct call *c, uint64_t offset[STREAM_COUNT], struct pd_err *e)
{
    const struct slice *h = http_find(&c->r->head, "Last-Event-ID");
    uint64_t found[STREAM_COUNT] = {0};

    if (!h)
        return 0;

    const char *at = h->at, *end = h->at + h->len;
    if (read_offset(&at, end, &found[STREAM_OUT]) < 0 || at >= end || *at++ != '.' ||
        read_offset(&at, end, &found[STREAM_ERR]) < 0 || at != end)
        return pd_fail(e, PD_INVALID, "Last-Event-ID '%.*s': OUT.ERR, the offsets of both streams",
                       h->len > 60 ? 60 : (int)h->len, h->at);

    memcpy(offset, found, sizeof found);
    return 0;
}

/* ---- answering ---- */

int call_json(struct call *c, int status, const struct buf *json)
{
    struct pd_err e;

    if (json->overflow) {
        pd_fail(&e, PD_CAPACITY, "the answer is too large");
        return reply_error(c->r, &e);
    }

    (void)reply(c->r, status, "application/json", json->data, json->len);
    return 0;
}

int call_empty(struct call *c)
{
    (void)reply(c->r, 204, NULL, NULL, 0);
    return 0;
}

void json_member_str(struct json *j, const char *key, const char *value)
{
    json_key(j, key);
    if (value && value[0])
        json_cstr(j, value);
    else
        json_none(j);
}

void json_time(struct json *j, const char *key, uint64_t ms)
{
    char text[TIME_TEXT_LEN + 1];

    json_key(j, key);
    if (!ms) {
        json_none(j);
        return;
    }

    time_format_ms(ms, text);
    json_cstr(j, text);
}

void json_bytes(struct json *j, const char *key, const void *data, size_t len)
{
    json_key(j, key);
    json_str(j, data, len);
    if (utf8_is_valid(data, len))
        return;

    char name[64];
    auto_buf text = BUF_INIT(2 * len + 16);
    snprintf(name, sizeof name, "%s_base64", key);
    (void)base64_encode(&text, data, len);
    json_key(j, name);
    json_str(j, text.data, text.len);
}
