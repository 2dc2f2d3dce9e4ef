/* E2B, and whoever speaks its API. How a box is made:
 *
 *   a sandbox of the template, whose metadata say whose it is, and whose time-out is the lease
 *   paddock-box and the key of its link are put into it by envd's files
 *   `paddock-box start` is run there as root by envd's processes, and listens at a port
 *   the port is dialled as a WebSocket through E2B's proxy, with the traffic's token
 *
 * Sandboxes there have no names of ours: one whose answer got lost is looked for by its metadata.
 * Each connection begins with a request that also prolongs the time-out, and between connections
 * the carrier renews it; so when this machine is gone E2B ends the box. */
#include "engine/e2b.h"

#include "base/banned.h"
#include "base/err.h"
#include "engine/e2b_api.h"
#include "engine/rented.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHO          "E2B"
#define SETTING      "e2b_api_key_file"
#define DOMAIN       "e2b.app"
#define TEMPLATE     "base"
#define PLACE        "/opt/paddock"
#define STEP         (60 * NS_PER_S)
#define LEASE_MOST   86400u /* E2B's longest */
#define SOON_TRIES   20     /* a sandbox that was just made may not be reached at once */
#define DOUBLES_MOST 16u

struct e2b {
    struct remote remote;
    struct rented rented;
    struct http *api;
    struct rented_url url;
    bool one_url; /* `sandbox` is where all sandboxes are; else each has hosts of its own */
    struct rented_url sandbox;
    char domain[256];
    char key[RENTED_TOKEN], key_header[RENTED_TOKEN + 16];
};

static struct e2b *of(struct remote *r)
{
    return (struct e2b *)r;
}

/* ---- calls ---- */

static int ask_api(struct e2b *b, struct rented_call *c, struct pd_err *e)
{
    rented_header(c, b->key_header);
    return rented_ask(&b->rented, b->api, c, e);
}

/* What says to which sandbox, and to which port of it, a request goes. */
struct route {
    struct rented_url url;
    char id[RENTED_ID + 24], port[40], token[RENTED_TOKEN + 16], traffic[RENTED_TOKEN + 32];
};

static int find_route(const struct e2b *b, const struct e2b_sandbox *s, unsigned port,
                      struct route *ret, struct pd_err *e)
{
    char url[400];

    snprintf(ret->id, sizeof ret->id, "E2b-Sandbox-Id: %s", s->id);
    snprintf(ret->port, sizeof ret->port, "E2b-Sandbox-Port: %u", port);
    snprintf(ret->token, sizeof ret->token, "X-Access-Token: %s", s->token);
    snprintf(ret->traffic, sizeof ret->traffic, "E2b-Traffic-Access-Token: %s", s->traffic);
    ret->url = b->sandbox;
    if (b->one_url)
        return 0;
    snprintf(url, sizeof url, "https://%u-%s.%s", port, s->id,
             s->domain[0] ? s->domain : b->domain);
    return rented_url_read("E2B's domain", url, &ret->url, e);
}

/* A call of envd's. One of a sandbox that was just made is said again until its route is there. */
static int ask_envd(struct e2b *b, const struct e2b_sandbox *s, struct rented_call *c,
                    struct pd_err *e)
{
    struct route route;

    if (find_route(b, s, E2B_ENVD, &route, e) < 0)
        return -1;
    struct http *h = rented_server(&b->rented, route.url.base, e);
    if (!h)
        return -1;
    rented_header(c, route.id);
    rented_header(c, route.port);
    if (s->token[0])
        rented_header(c, route.token);
    int r = rented_ask(&b->rented, h, c, e);
    http_free(h);
    c->header_count = 0; /* they were of this function's */
    return r;
}

/* ---- what there is ---- */

struct search {
    struct e2b *backend;
    const char *instance, *box; /* NULL: all of the instance */
    remote_each *each;
    void *context;
    struct e2b_listed found[DOUBLES_MOST];
    unsigned count; /* in `found` */
};

static int take_one(void *context, const struct e2b_listed *s, struct pd_err *e)
{
    struct search *w = context;
    struct remote_state state = {.running = true};

    /* A filter that a server does not know must not end somebody else's sandboxes. */
    if (strcmp(s->owner, w->instance) != 0 || (w->box && strcmp(s->box, w->box) != 0))
        return 0;
    if (w->count < DOUBLES_MOST)
        w->found[w->count++] = *s;
    if (!w->each)
        return 0;
    snprintf(state.place, sizeof state.place, "%s", s->id);
    snprintf(state.box, sizeof state.box, "%s", s->box);
    return w->each(w->context, &state, e);
}

static int list(struct search *w, deadline t, struct pd_err *e)
{
    char token[sizeof((struct http_heads *)0)->next] = "";

    for (unsigned page = 0; page < 100; page++) {
        auto_rented c = RENTED_CALL("GET", t);
        c.again = true;
        buf_puts(&c.target, w->backend->url.path);
        e2b_list_target(&c.target, w->instance, w->box, token);
        if (ask_api(w->backend, &c, e) < 0)
            return -1;
        if (c.status != 200)
            return rented_call_refused(&w->backend->rented, &c, "list sandboxes", e);
        if (e2b_read_list(c.out.data, c.out.len, take_one, w, e) < 0)
            return -1;
        if (!c.heads.next[0] || !strcmp(c.heads.next, token))
            return 0;
        snprintf(token, sizeof token, "%s", c.heads.next);
    }
    return 0;
}

static int remove_one(struct e2b *b, const char *id, deadline t, struct pd_err *e)
{
    auto_rented c = RENTED_CALL("DELETE", t);

    c.again = true;
    buf_printf(&c.target, "%s/sandboxes/%s", b->url.path, id);
    if (ask_api(b, &c, e) < 0)
        return -1;
    return c.status == 204 || c.status == 200 || c.status == 404
               ? 0
               : rented_call_refused(&b->rented, &c, "end the sandbox", e);
}

static int each(struct remote *r, const char *instance, remote_each *call, void *context,
                deadline t, struct pd_err *e)
{
    struct search w = {.backend = of(r), .instance = instance, .each = call, .context = context};
    return list(&w, t, e);
}

static int find(struct remote *r, const char *instance, const char *box, struct remote_state *ret,
                deadline t, struct pd_err *e)
{
    struct search w = {.backend = of(r), .instance = instance, .box = box};

    if (list(&w, t, e) < 0)
        return -1;
    if (!w.count)
        return pd_fail(e, PD_NOT_FOUND,
                       "E2B has no such sandbox any more: its time was over, or "
                       "somebody ended it");
    *ret = (struct remote_state){.running = true};
    snprintf(ret->place, sizeof ret->place, "%s", w.found[0].id);
    snprintf(ret->box, sizeof ret->box, "%s", w.found[0].box);
    return 0;
}

static int end(struct remote *r, const char *instance, const char *box, deadline t,
               struct pd_err *e)
{
    for (;;) {
        struct search w = {.backend = of(r), .instance = instance, .box = box};
        if (list(&w, t, e) < 0)
            return -1;
        for (unsigned i = 0; i < w.count; i++)
            if (remove_one(of(r), w.found[i].id, t, e) < 0)
                return -1;
        if (w.count < DOUBLES_MOST)
            return 0;
    }
}

/* ---- making one ---- */

/* By its id: it also runs again when it was paused, and has a lease from now on. */
static int connect_one(struct e2b *b, const char *id, struct e2b_sandbox *ret, deadline t,
                       struct pd_err *e)
{
    auto_rented c = RENTED_CALL("POST", t);

    c.again = true;
    buf_printf(&c.target, "%s/sandboxes/%s/connect", b->url.path, id);
    e2b_timeout_body(&c.in, b->remote.config->lease);
    if (ask_api(b, &c, e) < 0)
        return -1;
    if (c.status != 200 && c.status != 201)
        return rented_call_refused(&b->rented, &c, "reach the sandbox", e);
    return e2b_read_sandbox(c.out.data, c.out.len, ret, e);
}

/* The answer got lost: what was made is used, and of several only the first stays. */
static int look_for(struct e2b *b, const struct remote_plan *p, struct e2b_sandbox *ret, deadline t,
                    struct pd_err *e)
{
    struct search w = {.backend = b, .instance = p->instance, .box = p->box};
    struct pd_err why;

    if (list(&w, t, &why) < 0 || !w.count)
        return -1; /* *e has why the answer got lost */
    for (unsigned i = 1; i < w.count; i++)
        if (remove_one(b, w.found[i].id, t, e) < 0)
            return -1;
    return connect_one(b, w.found[0].id, ret, t, e);
}

/* Over a connection of its own: libcurl says a request again by itself when one that it kept turns
 * out to be dead, and this one must not be said twice. */
static int renew_connection(struct e2b *b, struct pd_err *e)
{
    struct http *fresh = rented_server(&b->rented, b->url.base, e);

    if (!fresh)
        return -1;
    http_free(b->api);
    b->api = fresh;
    return 0;
}

static int make(struct e2b *b, const struct remote_plan *p, struct e2b_sandbox *ret, deadline t,
                struct pd_err *e)
{
    auto_rented c = RENTED_CALL("POST", t);
    const char *template = broker_setting(b->remote.config, "template");
    struct e2b_plan plan = {.template = template[0] ? template : TEMPLATE,
                            .owner = p->instance,
                            .box = p->box,
                            .lease = p->lease};

    buf_printf(&c.target, "%s/sandboxes", b->url.path);
    e2b_create_body(&c.in, &plan);
    if (renew_connection(b, e) < 0)
        return -1;
    if (ask_api(b, &c, e) < 0)
        return e->code == PD_CONFLICT ? -1 : look_for(b, p, ret, t, e);
    if (c.status == 201 || c.status == 200)
        return e2b_read_sandbox(c.out.data, c.out.len, ret, e) < 0 ? look_for(b, p, ret, t, e) : 0;

    (void)rented_call_refused(&b->rented, &c, "make a sandbox", e);
    if (c.status == 404)
        pd_fail(e, PD_NOT_FOUND, "E2B has no template '%.80s': see e2b_template", plan.template);
    return c.status >= 500 ? look_for(b, p, ret, t, e) : -1;
}

static int put_file(struct e2b *b, const struct e2b_sandbox *s, const char *path, const void *data,
                    size_t len, deadline t, struct pd_err *e)
{
    for (int tries = 0;; tries++) {
        auto_rented c = RENTED_CALL("POST", t);
        c.again = true;
        rented_header(&c, RENTED_FORM_TYPE);
        buf_printf(&c.target, "%s/files?path=", b->one_url ? b->sandbox.path : "");
        http_escape(&c.target, path);
        buf_puts(&c.target, "&username=root");
        rented_form_file(&c.in, "file", path, data, len);
        rented_form_end(&c.in);
        if (ask_envd(b, s, &c, e) < 0)
            return -1;
        if (c.status == 200 || c.status == 201)
            return 0;
        if (c.status != 502 || tries == SOON_TRIES || !remote_is_wanted(&b->remote))
            return rented_call_refused(&b->rented, &c, "put paddock-box into the sandbox", e);
    }
}

static int put_files(struct e2b *b, const struct e2b_sandbox *s, const struct remote_plan *p,
                     deadline t, struct pd_err *e)
{
    auto_buf program = BUF_INIT(REMOTE_PROGRAM);

    if (remote_read_program(p->program, &program, e) < 0)
        return -1;
    if (!rented_form_fits(program.data, program.len))
        return pd_fail(e, PD_INTERNAL, "paddock-box has the boundary of a form in it");
    if (put_file(b, s, PLACE "/box", program.data, program.len, t, e) < 0)
        return -1;
    return put_file(b, s, PLACE "/key", p->key, sizeof p->key, t, e);
}

static int start_box(struct e2b *b, const struct e2b_sandbox *s, const struct remote_plan *p,
                     deadline t, struct pd_err *e)
{
    auto_rented c = RENTED_CALL("POST", t);
    auto_buf line = BUF_INIT(2000);
    struct remote_words words;

    remote_run_words(p, PLACE "/key", &words);
    buf_printf(&line, "chmod 0555 %s/box && chmod 0400 %s/key && ", PLACE, PLACE);
    if (p->spec->profile == PROFILE_DEV)
        buf_printf(&line, "mkdir -p %s/bin && ln -f %s/box %s/bin/sudo && ", PLACE, PLACE, PLACE);
    buf_printf(&line, "exec %s/box start listen=%u", PLACE, RENTED_PORT);
    for (unsigned i = 0; i < words.count; i++)
        buf_printf(&line, " %s", words.text[i]);

    rented_header(&c, "Content-Type: application/connect+json");
    rented_header(&c, "Connect-Protocol-Version: 1");
    rented_header(&c, "Authorization: Basic cm9vdDo="); /* root, as envd has it */
    buf_printf(&c.target, "%s/process.Process/Start", b->one_url ? b->sandbox.path : "");
    e2b_start_body(&c.in, buf_cstr(&line));
    if (ask_envd(b, s, &c, e) < 0)
        return -1;
    if (c.status != 200)
        return rented_call_refused(&b->rented, &c, "start paddock-box in the sandbox", e);
    return e2b_read_start(c.out.data, c.out.len, e);
}

static int create(struct remote *r, const struct remote_plan *p, struct remote_state *ret,
                  deadline t, struct pd_err *e)
{
    struct e2b *b = of(r);
    struct e2b_sandbox s;
    deadline step = deadline_in(STEP);

    if (make(b, p, &s, step < t ? step : t, e) < 0)
        return -1;
    step = deadline_in(STEP);
    if (put_files(b, &s, p, step < t ? step : t, e) < 0 ||
        start_box(b, &s, p, step < t ? step : t, e) < 0) {
        (void)remove_one(b, s.id, deadline_in(STEP), NULL); /* lists may not have it yet */
        return -1;
    }
    *ret = (struct remote_state){.running = true};
    snprintf(ret->place, sizeof ret->place, "%s/%s", s.id, p->link);
    snprintf(ret->box, sizeof ret->box, "%s", p->box);
    return 0;
}

/* ---- its link ---- */

static struct byte_stream *reach(struct remote *r, const char *place, deadline t, struct pd_err *e)
{
    struct e2b *b = of(r);
    char id[RENTED_ID], link[33];
    struct e2b_sandbox s;
    struct route route;
    struct ws_refusal refusal;

    if (rented_place_read(place, id, link, e) < 0 || connect_one(b, id, &s, t, e) < 0 ||
        find_route(b, &s, RENTED_PORT, &route, e) < 0)
        return NULL;
    const char *headers[] = {route.id, route.port, s.traffic[0] ? route.traffic : NULL, NULL};
    struct byte_stream *stream = rented_dial(&b->rented, &route.url, link, headers, t, &refusal, e);
    if (!stream && refusal.status == 502 && strstr(refusal.text, "port is not open"))
        pd_fail(e, PD_LOST, "paddock-box does not run any more in the sandbox at E2B");
    else if (!stream && refusal.status)
        (void)rented_refused(
            &(struct rented_refusal){.who = WHO,
                                     .what = "dial the sandbox",
                                     .remedy = SETTING,
                                     .secret = b->key,
                                     .wait = "",
                                     .status = refusal.status == 404 ? 500 : refusal.status,
                                     .body = refusal.text,
                                     .len = strlen(refusal.text)},
            e);
    return stream;
}

static int renew(struct remote *r, const char *place, deadline t, struct pd_err *e)
{
    struct e2b *b = of(r);
    char id[RENTED_ID], link[33];
    auto_rented c = RENTED_CALL("POST", t);

    if (rented_place_read(place, id, link, e) < 0)
        return -1;
    c.again = true;
    buf_printf(&c.target, "%s/sandboxes/%s/timeout", b->url.path, id);
    e2b_timeout_body(&c.in, b->remote.config->lease);
    if (ask_api(b, &c, e) < 0)
        return -1;
    return c.status == 204 || c.status == 200
               ? 0
               : rented_call_refused(&b->rented, &c, "prolong the sandbox", e);
}

static int check(struct remote *r, remote_tell *tell, void *context, deadline t, struct pd_err *e)
{
    struct e2b *b = of(r);
    struct search w = {.backend = b, .instance = "check"};
    const char *template = broker_setting(r->config, "template");

    tell(context, "api", b->url.base);
    tell(context, "sandboxes", b->one_url ? b->sandbox.base : b->domain);
    tell(context, "template", template[0] ? template : TEMPLATE);
    if (list(&w, t, e) < 0)
        return -1;
    tell(context, "key", "is accepted");
    return 0;
}

/* ---- the row ---- */

static void close_e2b(struct remote *r)
{
    if (!r)
        return;
    http_free(of(r)->api);
    explicit_bzero(of(r), sizeof *of(r));
    free(r);
}

/* A setting, or the variable that E2B's own programs know. */
static const char *given(const struct broker_config *c, const char *word, const char *variable)
{
    const char *value = broker_setting(c, word), *other = getenv(variable);
    return value[0] ? value : other ? other : "";
}

static int read_places(struct e2b *b, const struct broker_config *c, struct pd_err *e)
{
    const char *domain = given(c, "domain", "E2B_DOMAIN"),
               *api = given(c, "api_url", "E2B_API_URL");
    const char *sandbox = given(c, "sandbox_url", "E2B_SANDBOX_URL");
    char url[400];

    if (domain[0] && (!rented_is_host(domain) || strlen(domain) >= sizeof b->domain))
        return pd_fail(e, PD_INVALID, "e2b_domain '%.80s': use a name such as e2b.app", domain);
    snprintf(b->domain, sizeof b->domain, "%s", domain[0] ? domain : DOMAIN);
    snprintf(url, sizeof url, "https://api.%s", b->domain);
    if (rented_url_read("e2b_api_url", api[0] ? api : url, &b->url, e) < 0)
        return -1;
    b->one_url = sandbox[0];
    return sandbox[0] ? rented_url_read("e2b_sandbox_url", sandbox, &b->sandbox, e) : 0;
}

static struct remote *open_e2b(const struct broker_config *c, struct pd_err *e)
{
    struct e2b *b = calloc(1, sizeof *b);

    if (!b) {
        pd_fail(e, PD_CAPACITY, "no memory for a backend");
        return NULL;
    }
    b->rented = (struct rented){.who = WHO,
                                .remedy = SETTING,
                                .secret = b->key,
                                .ca_file = broker_setting(c, "ca_file"),
                                .remote = &b->remote};
    if (c->lease > LEASE_MOST)
        pd_fail(e, PD_INVALID, "box_lease_s %u: E2B takes at most %u", (unsigned)c->lease,
                LEASE_MOST);
    else if (rented_secret(SETTING, broker_setting(c, "api_key_file"), "E2B_API_KEY", b->key,
                           sizeof b->key, e) == 0 &&
             read_places(b, c, e) == 0 && (b->api = rented_server(&b->rented, b->url.base, e))) {
        snprintf(b->key_header, sizeof b->key_header, "X-API-KEY: %s", b->key);
        return &b->remote;
    }
    close_e2b(&b->remote);
    return NULL;
}

static const char *const settings[] = {"api_key_file", "domain",  "template", "api_url",
                                       "sandbox_url",  "ca_file", NULL};

const struct remote_kind e2b_remote = {.name = "e2b",
                                       .rung = RUNG_BASIC,
                                       .settings = settings,
                                       .open = open_e2b,
                                       .close = close_e2b,
                                       .create = create,
                                       .find = find,
                                       .end = end,
                                       .each = each,
                                       .reach = reach,
                                       .renew = renew,
                                       .check = check};
