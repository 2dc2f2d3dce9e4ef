/* How the E2B door tells requests apart: whose sandbox it is for, and which of its ports, is said
 * by headers, by the host, by a signature or by a token, in this order; what says nothing of this
 * is for the control plane, if there is such a path. */
#include "api/e2b.h"
#include "api/connect.h"
#include "api/share.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/json.h"
#include "base/parse.h"
#include "config/config.h"
#include "telemetry/log.h"
#include "telemetry/metrics.h"

#include <stdatomic.h>

#define USER_PATH_MAX  4096
#define SEARCHES_MAX   4 /* at once, of the sandbox that a link is for */
#define AUTO_RESUME_MS (UINT64_C(300) * 1000)

/* ---- answering errors ---- */

static bool is_inside(const struct pd_err *e)
{
    return e->code == PD_INTERNAL || e->code == PD_PROTOCOL;
}

/* The message that a client sees; the text of an internal error is for the log alone. */
static void tell(const struct call *c, const struct pd_err *e, char out[320])
{
    if (is_inside(e))
        snprintf(out, 320,
                 "something went wrong in the server; its log says what, under request %s",
                 c->r->id);
    else
        snprintf(out, 320, "%s", e->msg);
}

/* For E2B's clients a sandbox that is gone is one that is not there, whatever the reason. */
static int status_of(const struct pd_err *e)
{
    switch (e->code) {
    case PD_SESSION_LOST:
    case PD_SESSION_EXPIRED:
        return 404;
    default:
        return pd_code_http(e->code);
    }
}

static void reply_retry_after(struct call *c, const struct pd_err *e)
{
    char seconds[24];
    unsigned wait = c->retry_after ? c->retry_after : e->code == PD_CAPACITY ? 1 : 0;

    if (!wait || c->r->status)
        return;

    snprintf(seconds, sizeof seconds, "%u", wait);
    reply_header(c->r, "Retry-After", seconds);
}

void e2b_error_json(const struct call *c, struct json *j, const struct pd_err *e)
{
    char text[320];

    tell(c, e, text);
    if (is_inside(e))
        log_error("request.failed", "error=%s", e->msg);

    json_open(j, '{');
    json_member_uint(j, "code", (uint64_t)status_of(e));
    json_member_cstr(j, "message", text);
    json_close(j, '}');
}

static void answer_error(struct call *c, const struct pd_err *e)
{
    auto_buf out = BUF_INIT(4096);
    struct json j = JSON_INIT(&out);

    reply_retry_after(c, e);
    e2b_error_json(c, &j, e);

    if (c->r->status) /* an answer has begun: the client must notice that it ends too early */
        reply_abort(c->r);
    else
        (void)call_json(c, status_of(e), &out);
}

/* As E2B's proxy says it. `port`: nothing listens there; 0: there is no such sandbox. */
static void answer_gateway(struct call *c, const char *id, unsigned port)
{
    auto_buf out = BUF_INIT(1024);
    struct json j = JSON_INIT(&out);

    if (c->r->status) { /* it ended meanwhile: the SDKs ask what has happened after a reset only */
        reply_reset(c->r);
        return;
    }

    json_open(&j, '{');
    json_member_cstr(&j, "sandboxId", id);
    json_member_cstr(&j, "message",
                     port ? "The sandbox is running but port is not open"
                          : "The sandbox was not found");
    if (port)
        json_member_uint(&j, "port", port);
    json_member_uint(&j, "code", 502);
    json_close(&j, '}');
    (void)call_json(c, 502, &out);
}

/* ---- which sandbox, which port ---- */

struct target {
    char id[SESSION_ID_LEN + 1];
    unsigned port;
    int by_host;
    bool by_signature;  /* which was checked */
    struct slice query; /* as it came */
};

static int copy_slice(const struct slice *s, char *out, size_t size)
{
    if (!s || s->len >= size)
        return 0;

    memcpy(out, s->at, s->len);
    out[s->len] = 0;
    return 1;
}

struct search {
    struct call *c;
    char path[USER_PATH_MAX], user[64], signature[ACCESS_SIGNATURE_LEN + 2], expiration[24];
    const char *operation;
    char found[SESSION_ID_LEN + 1];
};

static int has_signature(struct session *s, void *arg)
{
    struct search *w = arg;
    struct session_info i;
    char token[ACCESS_TOKEN_LEN + 1], right[ACCESS_SIGNATURE_LEN + 1];

    session_get(s, &i);
    access_token(w->c->api->access, ACCESS_ENVD, i.id, token);
    if (access_sign(token, w->path, w->operation, w->user, w->expiration[0] ? w->expiration : NULL,
                    right) < 0 ||
        !access_equal(w->signature, strlen(w->signature), right, ACCESS_SIGNATURE_LEN))
        return 0;

    memcpy(w->found, i.id, sizeof w->found);
    return 1;
}

static int read_signature(struct call *c, struct search *w, struct pd_err *e)
{
    struct slice q = c->r->query;

    w->c = c;
    w->operation =
        c->r->head.method == HTTP_GET || c->r->head.method == HTTP_HEAD ? "read" : "write";

    if (url_query_get(q, "path", w->path, sizeof w->path, e) < 0 ||
        url_query_get(q, "username", w->user, sizeof w->user, e) < 0 ||
        url_query_get(q, "signature", w->signature, sizeof w->signature, e) < 0 ||
        url_query_get(q, "signature_expiration", w->expiration, sizeof w->expiration, e) < 0)
        return -1;
    return 0;
}

/* Is the link still good? Only asked when it is genuine. */
static int check_expiration(const struct search *w, struct pd_err *e)
{
    uint64_t at = 0;
    if (!w->expiration[0])
        return 0;

    if (parse_u64("signature_expiration", w->expiration, 0, UINT64_MAX / 1000, &at, e) < 0 ||
        at * 1000 < time_now_ms())
        return pd_fail(e, PD_UNAUTHENTICATED, "signature is already expired");
    return 0;
}

static bool is_files(const struct call *c)
{
    return slice_is(c->r->path, "/files");
}

/* A link has no name of its sandbox in it: that is whose token its signature was made with. 1, 0
 * when it has no signature, -1. */
static int find_by_signature(struct call *c, struct target *t, struct pd_err *e)
{
    struct search w = {0};
    char given[ACCESS_SIGNATURE_LEN + 2];

    if (!is_files(c) || url_query_get(c->r->query, "signature", given, sizeof given, NULL) == 0)
        return 0;

    if (read_signature(c, &w, e) < 0)
        return -1;

    /* The caller is not authenticated yet, and the search computes a signature for every sandbox.
     */
    int may_search = atomic_fetch_add(&c->api->searches, 1) < SEARCHES_MAX;
    if (may_search)
        sessions_each(c->api->sessions, has_signature, &w);
    atomic_fetch_sub(&c->api->searches, 1);

    if (!may_search) {
        c->retry_after = 1;
        return pd_fail(e, PD_RATE, "too many links are looked up: try again in a moment");
    }

    if (!w.found[0]) {
        metrics_count(c->api->metrics, METRIC_AUTH_FAILURES);
        return pd_fail(e, PD_UNAUTHENTICATED, "invalid signature");
    }

    memcpy(t->id, w.found, sizeof t->id);
    t->port = E2B_ENVD_PORT;
    t->by_signature = true;
    return check_expiration(&w, e) < 0 ? -1 : 1;
}

/* A header that comes twice means what its reader likes: such a request is refused. */
static int find_once(const struct http_head *h, const char *name, const struct slice **ret,
                     struct pd_err *e)
{
    *ret = NULL;
    for (unsigned i = 0; i < h->header_count; i++) {
        if (!slice_is_nocase(h->headers[i].name, name))
            continue;
        if (*ret)
            return pd_fail(e, PD_INVALID, "%s is there twice", name);
        *ret = &h->headers[i].value;
    }
    return 0;
}

static int read_port(const struct slice *said, unsigned *ret, struct pd_err *e)
{
    char text[8];
    uint64_t number = E2B_ENVD_PORT;

    if (said && (!copy_slice(said, text, sizeof text) ||
                 parse_u64("E2b-Sandbox-Port", text, 1, 65535, &number, e) < 0))
        return pd_fail(e, PD_INVALID, "E2b-Sandbox-Port: 1 to 65535");

    *ret = (unsigned)number;
    return 0;
}

/* By headers. A page of a sandbox must not speak in another one's name: where the host says whose
 * request this is, headers must not say otherwise. */
static int find_by_headers(const struct slice *id, const struct slice *port,
                           const struct target *host, struct target *t, struct pd_err *e)
{
    if (!copy_slice(id, t->id, sizeof t->id))
        snprintf(t->id, sizeof t->id, "-"); /* too long to be one: it is not found */

    if (read_port(port, &t->port, e) < 0)
        return -1;

    if (host->by_host && (strcmp(host->id, t->id) != 0 || (port && host->port != t->port)))
        return pd_fail(e, PD_INVALID, "Host and E2b-Sandbox-Id name different sandboxes or ports");
    if (host->by_host)
        *t = *host;
    return 1;
}

/* 1, 0 when it is for no sandbox, -1. */
static int find_target(struct call *c, struct target *t, struct pd_err *e)
{
    const struct http_head *h = &c->r->head;
    const struct slice *id, *port, *token, *traffic;
    struct target host = {.query = t->query};

    if (find_once(h, "E2b-Sandbox-Id", &id, e) < 0 ||
        find_once(h, "E2b-Sandbox-Port", &port, e) < 0 ||
        find_once(h, "X-Access-Token", &token, e) < 0 ||
        find_once(h, "E2b-Traffic-Access-Token", &traffic, e) < 0)
        return -1;

    host.by_host = url_preview_host(h->host, c->config->domain, &host.port, host.id, e) == 1;
    if (id)
        return find_by_headers(id, port, &host, t, e);
    if (host.by_host) {
        *t = host;
        return 1;
    }

    int found = find_by_signature(c, t, e);
    if (found)
        return found;

    t->port = E2B_ENVD_PORT;
    return token && access_names(token->at, token->len, t->id);
}

/* ---- the data plane ---- */

/* Traffic resumes a paused sandbox that was made with autoResume; not one that sleeps without its
 * memory and would begin anew. Asked last, so that a refused request resumes nothing. */
static int wake(struct call *c, int may_resume, struct pd_err *e)
{
    struct session_info i;

    session_get(c->session, &i);
    if (i.state == SESSION_RUNNING)
        return 0;

    if (i.state == SESSION_PAUSED && may_resume && !i.asleep &&
        session_expire_at(c->session, time_now_ms() + AUTO_RESUME_MS, true, e) == 0 &&
        session_resume(c->session, e) == 0)
        return 0;

    return pd_fail(e, PD_PAUSED, "sandbox %s does not run", i.id);
}

static int check_token(struct call *c, const struct target *t, const struct e2b_note *n,
                       struct pd_err *e)
{
    struct search w = {0};

    const struct slice *token = http_find(&c->r->head, "X-Access-Token");
    if (t->by_signature || !n->secure ||
        (token && access_check(c->api->access, ACCESS_ENVD, t->id, token->at, token->len)))
        return 0;

    /* A signature that cannot be read counts as a wrong one. */
    int bad = is_files(c) && !token && read_signature(c, &w, NULL) < 0;
    if (is_files(c) && !token && !bad && w.signature[0] && has_signature(c->session, &w))
        return check_expiration(&w, e);

    metrics_count(c->api->metrics, METRIC_AUTH_FAILURES);
    if (bad || (is_files(c) && !token && w.signature[0]))
        return pd_fail(e, PD_UNAUTHENTICATED, "invalid signature");
    if (is_files(c) && !token)
        return pd_fail(e, PD_UNAUTHENTICATED, "missing signature query parameter");
    return pd_fail(e, PD_UNAUTHENTICATED,
                   "unauthorized access, please provide a valid access token or method signing if "
                   "supported");
}

static void answer_envd_error(struct call *c, const char *id, const struct pd_err *e)
{
    if (e->code == PD_PAUSED || e->code == PD_SESSION_LOST || e->code == PD_SESSION_EXPIRED)
        answer_gateway(c, id, 0);
    else if (c->route && c->route->flags & (ROUTE_RPC | ROUTE_RPC_STREAM))
        (void)connect_fail(c, e);
    else
        answer_error(c, e);
}

/* Pages of other sites may use envd: what it needs is a token that no browser sends by itself. */
static int answer_preflight(struct call *c)
{
    reply_header(c->r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    reply_header(c->r, "Access-Control-Allow-Headers",
                 "Authorization, Content-Type, Connect-Protocol-Version, Connect-Timeout-Ms, "
                 "E2b-Sandbox-Id, E2b-Sandbox-Port, Keepalive-Ping-Interval, X-Access-Token");
    reply_header(c->r, "Access-Control-Max-Age", "7200");
    return call_empty(c);
}

/* Its handler, with the sandbox in use meanwhile; no new work while the server ends. */
static int handle_attended(struct call *c, struct pd_err *e)
{
    if (c->route->flags & ROUTE_WORK && atomic_load(&c->api->draining)) {
        c->retry_after = 5;
        return pd_fail(e, PD_SHUTTING_DOWN, "the server is shutting down: try again in a moment");
    }

    session_attend_begin(c->session);
    int r = c->route->handle(c, e);
    session_attend_end(c->session);
    return r;
}

static void serve_envd(struct call *c, const struct target *t, const struct e2b_note *n)
{
    struct pd_err e;
    struct route_table table = {e2b_envd_routes, e2b_envd_route_count};

    reply_header(c->r, "Access-Control-Allow-Origin", "*");
    if (c->r->head.method == HTTP_OPTIONS) {
        (void)answer_preflight(c);
        return;
    }

    int failed = call_find_route(c, table, &e) < 0;
    if (!failed && !(c->route->flags & ROUTE_OPEN))
        failed = check_token(c, t, n, &e) < 0;

    if (!failed)
        failed = (c->route->flags & ROUTE_OPEN ? call_count_visitor(c, &e) : call_count(c, &e)) < 0;

    /* Open routes such as /health must not resume a paused sandbox. */
    if (!failed)
        failed = wake(c, n->auto_resume && !(c->route->flags & ROUTE_OPEN), &e) < 0;

    if (!failed)
        failed = handle_attended(c, &e) < 0;

    if (failed)
        answer_envd_error(c, t->id, &e);
    call_audit(c, failed ? &e : NULL);
}

static void answer_traffic_denied(struct call *c, const char *id)
{
    auto_buf out = BUF_INIT(1024);
    struct json j = JSON_INIT(&out);

    json_open(&j, '{');
    json_member_cstr(&j, "sandboxId", id);
    json_member_cstr(&j, "message",
                     "Sandbox is secured with traffic access token. Token header "
                     "'e2b-traffic-access-token' is missing or wrong");
    json_member_uint(&j, "code", 403);
    json_close(&j, '}');
    (void)call_json(c, 403, &out);
}

/* May the request come to this sandbox's ports? Otherwise it is answered. */
static bool passes_traffic(struct call *c, const struct target *t, const struct e2b_note *n)
{
    const struct slice *token = http_find(&c->r->head, "E2b-Traffic-Access-Token");
    if (!n->private_ports ||
        (token && access_check(c->api->access, ACCESS_TRAFFIC, t->id, token->at, token->len)))
        return true;
    answer_traffic_denied(c, t->id);
    return false;
}

/* The code interpreter. Its clients send the sandbox's token with code alone; the other paths are
 * as open as the sandbox's ports are. */
static void serve_code(struct call *c, const struct target *t, const struct e2b_note *n)
{
    struct pd_err e;
    struct route_table table = {e2b_code_routes, e2b_code_route_count};
    if (!passes_traffic(c, t, n))
        return;

    int failed = call_find_route(c, table, &e) < 0;
    bool open = !failed && c->route->flags & ROUTE_OPEN;
    bool by_token = !failed && c->route->flags & ROUTE_TOKEN && n->secure;
    if (by_token)
        failed = check_token(c, t, n, &e) < 0;
    if (!failed)
        failed = (by_token || n->private_ports ? call_count(c, &e) : call_count_visitor(c, &e)) < 0;
    if (!failed)
        failed = wake(c, n->auto_resume && !open, &e) < 0;

    if (!failed)
        failed = handle_attended(c, &e) < 0;

    if (failed &&
        (e.code == PD_PAUSED || e.code == PD_SESSION_LOST || e.code == PD_SESSION_EXPIRED))
        answer_gateway(c, t->id, 0);
    else if (failed)
        e2b_code_error(c, &e);
    call_audit(c, failed ? &e : NULL);
}

static void serve_port(struct call *c, const struct target *t, const struct e2b_note *n)
{
    struct pd_err e;
    if (!passes_traffic(c, t, n))
        return;

    if ((n->private_ports ? call_count(c, &e) : call_count_visitor(c, &e)) < 0 ||
        wake(c, n->auto_resume, &e) < 0) {
        answer_envd_error(c, t->id, &e);
        return;
    }

    c->r->query = t->query; /* a program in the sandbox reads it in its own way */
    if (ports_visit_open(c, t->port, n->mask_host, &e) == 0)
        return;

    if (e.code == PD_BAD_GATEWAY)
        answer_gateway(c, t->id, t->port);
    else
        answer_envd_error(c, t->id, &e);
}

/* 0: it is not for this door after all. */
static int serve_data(struct call *c, const struct target *t)
{
    struct pd_err e;
    struct session_info i = {0};
    auto_note n = {0};

    c->session = sessions_find_any(c->api->sessions, t->id, &e);
    if (c->session) {
        session_get(c->session, &i);
        e2b_note_read(c->session, &n);
    }

    /* Ports of a sandbox that was made elsewhere are not open to everybody: ports.c has its rules.
     */
    if (t->by_host && t->port != E2B_ENVD_PORT && (!c->session || !n.is_ours)) {
        session_unref(c->session);
        c->session = NULL;
        return 0;
    }

    call_count_stranger(c);
    if (!c->session || i.state >= SESSION_STOPPING) {
        answer_gateway(c, t->id, 0);
        return 1;
    }

    if (c->counted) { /* it is known now whose request this is */
        shares_leave(c->api->shares, c->counted);
        c->counted = NULL;
    }

    snprintf(c->who.tenant, sizeof c->who.tenant, "%s", i.tenant);
    snprintf(c->sandbox, sizeof c->sandbox, "%s", i.id);

    if (t->port == E2B_ENVD_PORT)
        serve_envd(c, t, &n);
    else if (t->port == E2B_CODE_PORT && n.is_ours)
        serve_code(c, t, &n);
    else
        serve_port(c, t, &n);
    return 1;
}

/* ---- the control plane ---- */

/* For E2B's clients a sandbox that has ended is not there. */
static int check_lives(struct call *c, struct pd_err *e)
{
    struct session_info i;

    if (!c->session)
        return 0;

    session_get(c->session, &i);
    if (i.state < SESSION_STOPPING)
        return 0;
    return pd_fail(e, PD_NOT_FOUND, "sandbox %s has ended: %.120s", i.id, i.end_reason);
}

static int serve_control(struct call *c)
{
    struct pd_err e;
    struct route_table table = {e2b_control_routes, e2b_control_route_count};
    static const char ours[] = "/v1/"; /* none of its rows begins with it */

    if (c->r->path.len >= sizeof ours - 1 && !memcmp(c->r->path.at, ours, sizeof ours - 1))
        return 0;
    int failed = call_find_route(c, table, &e) < 0;
    if (failed && e.code != PD_METHOD) /* v1 tells what is wrong with it */
        return 0;

    reply_header(c->r, "X-Content-Type-Options", "nosniff");
    if (!failed)
        failed = call_admit(c, &e) < 0 || check_lives(c, &e) < 0 || c->route->handle(c, &e) < 0;

    if (failed)
        answer_error(c, &e);
    call_audit(c, failed ? &e : NULL);
    return 1;
}

/* E2B's clients write queries as forms do: a '+' is a blank. */
static void read_as_form(struct slice query, struct buf *out)
{
    for (size_t i = 0; i < query.len; i++)
        if (query.at[i] == '+')
            buf_puts(out, "%20");
        else
            buf_putc(out, query.at[i]);
}

int e2b_handle(struct call *c)
{
    struct pd_err e;
    struct target t = {.query = c->r->query};
    auto_buf form = BUF_INIT(3 * HTTP_TARGET_MAX);

    read_as_form(t.query, &form);
    c->r->query = (struct slice){(const char *)form.data, form.len};

    int found = find_target(c, &t, &e), answered = 1;
    if (found < 0) {
        call_count_stranger(c);
        answer_error(c, &e);
    } else {
        answered = found ? serve_data(c, &t) : serve_control(c);
    }

    c->r->query = t.query;
    return answered;
}

/* ---- what handlers use ---- */

int e2b_user_named(const char *name, char out[FILE_USER_SIZE], struct pd_err *e)
{
    if (!name[0])
        name = "user";

    if (strcmp(name, "user") != 0 && strcmp(name, "root") != 0)
        return pd_fail(e, PD_UNAUTHENTICATED, "invalid username: '%.60s'", name);

    snprintf(out, FILE_USER_SIZE, "%s", name);
    return 0;
}

/* Basic: base64 of "NAME:", of which the password does not matter. */
int e2b_user(struct call *c, char out[FILE_USER_SIZE], struct pd_err *e)
{
    const struct slice *h = http_find(&c->r->head, "Authorization");
    char name[64] = "";

    if (!h)
        return url_query_get(c->r->query, "username", name, sizeof name, e) < 0
                   ? -1
                   : e2b_user_named(name, out, e);

    auto_buf text = BUF_INIT(256);
    if (h->len < 6 || strncasecmp(h->at, "Basic ", 6) != 0 ||
        base64_decode(&text, h->at + 6, h->len - 6, NULL) != BASE64_GOOD || text.len == 0)
        return pd_fail(e, PD_UNAUTHENTICATED,
                       "Authorization: Basic with the user's name is needed");

    const uint8_t *colon = memchr(text.data, ':', text.len);
    size_t len = colon ? (size_t)(colon - text.data) : text.len;
    if (len >= sizeof name || memchr(text.data, 0, len))
        return pd_fail(e, PD_UNAUTHENTICATED, "invalid username");

    memcpy(name, text.data, len);
    return e2b_user_named(name, out, e);
}

int e2b_path(const char *user, const char *path, char out[FILE_PATH_SIZE], struct pd_err *e)
{
    const char *home = !strcmp(user, "root") ? "/root" : E2B_HOME;
    int len;

    if (path[0] == '~' && (path[1] == '/' || !path[1]))
        len = snprintf(out, FILE_PATH_SIZE, "%s%s", home, path + 1);
    else if (!path[0])
        len = snprintf(out, FILE_PATH_SIZE, E2B_HOME);
    else if (path[0] != '/')
        len = snprintf(out, FILE_PATH_SIZE, "%s/%s", home, path);
    else
        len = snprintf(out, FILE_PATH_SIZE, "%s", path);

    if (len < 0 || len > FILE_PATH_MAX)
        return pd_fail(e, PD_INVALID, "the path is longer than %d bytes", FILE_PATH_MAX);
    return 0;
}
