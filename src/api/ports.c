/* Ports: what listens in a sandbox, and requests that are passed on to it.
 *
 * How this works: the worker `dial` in the sandbox is a TCP connection whose ends are two pipes, so
 * the daemon never opens a socket into a sandbox, and no name or address that anybody sends decides
 * where a request goes. net/proxy moves the bytes, port_heads says which headers pass.
 *
 * A port is reached in two ways. By path (/v1/sandboxes/ID/ports/PORT/...) all sandboxes share the
 * origin of the API: what a program answers there is put into an origin of its own (the sandbox
 * directive of CSP), and nothing that would hold for the whole origin passes, cookies above all. By
 * host (PORT-ID.DOMAIN) each port is an origin of its own, and pages work as they do at home. But
 * browsers let a page set cookies for the hosts beside it (Domain=), so a cookie says nothing of
 * who set it: the token in ours is signed for one port of one sandbox, and over TLS its name is one
 * that only this host can set. */
#include "api/e2b.h"
#include "api/handlers.h"
#include "api/origin.h"
#include "api/port_heads.h"
#include "api/preview.h"
#include "api/worker_request.h"

#include "access/ids.h"
#include "access/preview.h"
#include "base/banned.h"
#include "base/json.h"
#include "base/parse.h"
#include "config/config.h"
#include "net/proxy.h"

#include <strings.h>

#define LIST_PATIENCE (10 * NS_PER_S)
#define DIAL_PATIENCE (10 * NS_PER_S) /* it gives up after 5 s itself */
#define IDLE_LIMIT    (300 * NS_PER_S)
#define PORTS_MAX     2048
#define HEAD_ROOM     (HTTP_HEAD_MAX + HTTP_TARGET_MAX + 4096u)

/* ---- what listens ---- */

static void port_json(struct json *j, const struct record_port *p)
{
    json_open(j, '{');
    json_key(j, "port");
    json_uint(j, p->port);
    json_key(j, "address");
    json_cstr(j, p->address);
    json_key(j, "pid");
    if (p->pid)
        json_uint(j, p->pid);
    else
        json_none(j);
    json_member_str(j, "command", p->command);
    json_close(j, '}');
}

int ports_list(struct call *c, struct pd_err *e)
{
    static const char *const no_parameters[] = {NULL}, *const words[] = {"ports", NULL};
    auto_worker w = WORKER_INIT;
    auto_buf out = BUF_INIT(1u << 20);
    struct json j = JSON_INIT(&out);

    if (call_query_check(c, no_parameters, e) < 0)
        return -1;

    w.quiet_ns = LIST_PATIENCE;
    if (worker_begin(&w, c, NULL, 0, words, e) < 0)
        return -1;

    json_open(&j, '{');
    json_key(&j, "ports");
    json_open(&j, '[');
    for (unsigned i = 0; i < PORTS_MAX; i++) {
        struct record r;
        int got = worker_next(&w, &r, e);
        if (got < 0)
            return -1;
        if (got == 0)
            break;

        if (r.kind != RECORD_PORT)
            return pd_fail(e, PD_BAD_GATEWAY, "the sandbox answered something else than ports");
        port_json(&j, &r.port);
    }

    json_close(&j, ']');
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

/* ---- passing on ---- */

/* A sandbox may say that nothing listens, and no more: other codes in its errors are not believed.
 */
static int dial(struct worker_run *w, struct call *c, unsigned port, struct pd_err *e)
{
    char text[8];
    const char *const words[] = {"dial", text, NULL};
    struct record r;

    snprintf(text, sizeof text, "%u", port);
    w->quiet_ns = DIAL_PATIENCE;
    if (worker_begin(w, c, NULL, WORKER_INPUT, words, e) < 0)
        return -1;

    if (worker_expect(w, RECORD_PORT, &r, e) == 0)
        return 0;

    switch (e->code) {
    case PD_TIMEOUT:
    case PD_CAPACITY:
    case PD_PAUSED:
    case PD_SESSION_LOST:
    case PD_SESSION_EXPIRED:
    case PD_LOST:
    case PD_BAD_GATEWAY:
        break;
    default:
        e->code = PD_BAD_GATEWAY;
    }
    return -1;
}

struct visitor {
    struct call *c;
    const struct port_visit *v;
};

static void answer_headers(struct request *r, const struct http_head *answer, void *visitor)
{
    port_head_answer(r, answer, ((struct visitor *)visitor)->v);
}

/* A key or a link that is revoked ends what it began. */
static int may_go_on(void *visitor)
{
    struct call *c = ((struct visitor *)visitor)->c;
    if (c->link[0] && links_is_revoked(c->api->links, c->link))
        return 0;
    return !c->who.key_id[0] || call_authenticate(c, NULL) == 0;
}

static int visit(struct call *c, struct port_visit *v, struct pd_err *e)
{
    auto_worker w = WORKER_INIT;
    auto_buf head = BUF_INIT(HEAD_ROOM);

    v->r = c->r;
    if (dial(&w, c, v->port, e) < 0)
        return -1;

    w.ended = 1; /* it ends by itself when its pipes are closed */
    port_head_build(v, &head);
    worker_widen(w.call.in);
    worker_widen(w.call.out);

    struct visitor visitor = {c, v};
    struct proxy p = {.to = w.call.in,
                      .from = w.call.out,
                      .head = &head,
                      .answer = answer_headers,
                      .may_go_on = may_go_on,
                      .arg = &visitor,
                      .idle_ns = IDLE_LIMIT};

    int r = proxy_pass(c->r, &p, e);
    session_touch(c->session);
    return r;
}

int ports_proxy(struct call *c, struct pd_err *e)
{
    uint64_t port;
    struct port_visit v = {.path = c->rest, .by_token = !c->who.key_id[0]};

    if (parse_u64("port", c->var[1], 1, 65535, &port, e) < 0) {
        snprintf(c->field, sizeof c->field, "port");
        return -1;
    }

    v.port = (unsigned)port;
    if (!v.path.len)
        v.path = slice_of("/");

    snprintf(v.prefix, sizeof v.prefix, "/v1/sandboxes/%.*s/ports/%u", SESSION_ID_LEN, c->var[0],
             v.port);
    return visit(c, &v, e);
}

int ports_visit_open(struct call *c, unsigned port, const char *host, struct pd_err *e)
{
    struct port_visit v = {
        .port = port, .path = c->r->path, .by_token = true, .host = host[0] ? host : NULL};
    return visit(c, &v, e);
}

/* ---- by host ---- */

struct host_visit {
    unsigned port;
    char id[URL_ID_LEN + 1];
    char token[PREVIEW_TOKEN_MAX + 1];
    bool from_query; /* the token */
};

static int check_token(struct call *c, const struct host_visit *h)
{
    return h->token[0] && preview_admits(c, h->token, h->id, h->port);
}

/* A browser sends the cookie with what other pages make it send, too: those are not let in. */
static bool is_own_page(const struct http_head *h)
{
    const struct slice *origin = http_find(h, "Origin");
    const struct slice *site = http_find(h, "Sec-Fetch-Site");
    const struct slice *mode = http_find(h, "Sec-Fetch-Mode");

    if (origin)
        return origin_is_host(h, *origin);

    if (!site || slice_is(*site, "same-origin") || slice_is(*site, "none"))
        return true;
    /* A link on another page. */
    return (h->method == HTTP_GET || h->method == HTTP_HEAD) && mode && slice_is(*mode, "navigate");
}

/* Over TLS only the name that no other host's page can set. There may be several cookies of the
 * plain name, planted by pages of other sandboxes: none of them keeps the good one out. */
static int admit_by_cookie(struct call *c, struct host_visit *h)
{
    const struct http_head *head = &c->r->head;
    const char *name = conn_is_tls(c->r->conn) ? PREVIEW_HOST_COOKIE : PREVIEW_COOKIE;

    for (unsigned i = 0; i < head->header_count; i++) {
        struct slice rest = head->headers[i].value;
        if (!slice_is_nocase(head->headers[i].name, "Cookie"))
            continue;
        while (port_cookie_next(&rest, name, h->token, sizeof h->token))
            if (check_token(c, h))
                return 1;
    }
    return 0;
}

/* A token in the query, in a header or in the cookie that an earlier answer set. */
static int admit_by_token(struct call *c, struct host_visit *h)
{
    const struct http_head *head = &c->r->head;
    const struct slice *said = http_find(head, PREVIEW_HEADER);

    if (url_query_get(c->r->query, PREVIEW_PARAMETER, h->token, sizeof h->token, NULL) == 1 &&
        check_token(c, h))
        return h->from_query = true;

    if (said && said->len < sizeof h->token) {
        memcpy(h->token, said->at, said->len);
        h->token[said->len] = 0;
        if (check_token(c, h))
            return 1;
    }

    return is_own_page(head) && admit_by_cookie(c, h);
}

static int admit(struct call *c, struct host_visit *h, struct pd_err *e)
{
    if (!admit_by_token(c, h)) {
        if (call_authenticate(c, e) < 0)
            return -1;
        if (c->who.role == AUTH_READER)
            return call_refuse_reader(e);
    }

    if (call_count(c, e) < 0) {
        char seconds[24];
        snprintf(seconds, sizeof seconds, "%u", c->retry_after);
        reply_header(c->r, "Retry-After", seconds);
        return -1;
    }

    c->session = sessions_find(c->api->sessions, c->who.tenant, h->id, e);
    return c->session ? 0 : -1;
}

/* A page that a browser shows keeps the token in a cookie that scripts cannot read, not in its
 * address. Others get the answer at once. */
static bool is_shown(const struct call *c, const struct host_visit *h)
{
    const struct slice *mode = http_find(&c->r->head, "Sec-Fetch-Mode");
    return h->from_query && c->r->head.method == HTTP_GET && mode && slice_is(*mode, "navigate");
}

static int show(struct call *c, const struct port_visit *v)
{
    static const struct http_head nothing;
    auto_buf to = BUF_INIT(HTTP_TARGET_MAX + 16), query = BUF_INIT(HTTP_TARGET_MAX);

    /* "//name" would be another host. */
    size_t skip = 0;
    while (skip + 1 < v->path.len && strchr("/\\", v->path.at[skip + 1]))
        skip++;

    buf_put(&to, v->path.at + skip, v->path.len - skip);
    port_query_strip(c->r->query, &query);
    if (query.len) {
        buf_putc(&to, '?');
        buf_put(&to, query.data, query.len);
    }

    reply_header(c->r, "Location", buf_cstr(&to) ? (const char *)to.data : "/");
    reply_header(c->r, "Cache-Control", "no-store");
    port_head_answer(c->r, &nothing, v);
    return reply(c->r, 303, NULL, NULL, 0);
}

int api_handle_port_host(struct call *c)
{
    struct host_visit h = {0};
    struct pd_err e;

    int is_port = url_preview_host(c->r->head.host, c->config->domain, &h.port, h.id, &e);
    if (is_port == 0)
        return 0;

    if (is_port < 0) {
        e.code = PD_NOT_FOUND;
        (void)reply_error(c->r, &e);
        return 1;
    }

    snprintf(c->sandbox, sizeof c->sandbox, "%s", h.id);
    if (admit(c, &h, &e) < 0) {
        (void)reply_error(c->r, &e);
        return 1;
    }

    struct port_visit v = {.r = c->r,
                           .port = h.port,
                           .path = c->r->path,
                           .by_token = !c->who.key_id[0],
                           .cookie = h.from_query ? h.token : NULL};

    if (is_shown(c, &h))
        (void)show(c, &v);
    else if (visit(c, &v, &e) < 0)
        (void)reply_error(c->r, &e);
    return 1;
}
