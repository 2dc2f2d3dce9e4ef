/* Logging in at the console.
 *
 * How this works: the page sends a key, or the code of a one-use link, and gets two secrets. The
 * session is a cookie that scripts cannot read; the proof is in the answer, and the page keeps it.
 * Each later request has both. The cookie alone opens nothing: a browser sends it also with what a
 * page of another port on this host makes it send, whatever SameSite says. The proof alone opens
 * nothing either, should it be read from the page's storage.
 *
 * A page cannot add headers to a WebSocket: there the proof is offered as a subprotocol,
 * `proof.VALUE`, and what is chosen is `paddock.v1`. The name of the cookie has the port, because
 * cookies know no ports, and two servers on one host would take each other's away. */
#include "api/login.h"

#include "access/ids.h"
#include "access/logins.h"
#include "api/handlers.h"
#include "api/origin.h"
#include "api/port_heads.h"
#include "api/preview.h"
#include "base/banned.h"
#include "base/json.h"
#include "config/config.h"

#include <arpa/inet.h>
#include <strings.h>

#define PROTOCOL       "paddock.v1"
#define PROOF_PROTOCOL "proof."
#define COOKIE_NAME    64
#define LABELS_MAX     1000u /* of keys, told to a page */

/* ---- what a request shows ---- */

/* Copies a secret of the right length; others are none. */
static bool copy_secret(struct slice from, char ret[LOGIN_SECRET_LEN + 1])
{
    if (from.len != LOGIN_SECRET_LEN)
        return false;
    memcpy(ret, from.at, from.len);
    ret[from.len] = 0;
    return true;
}

bool login_protocol_proof(struct slice offered, struct slice *ret)
{
    size_t skip = strlen(PROOF_PROTOCOL);
    struct slice one;

    while (http_list_next(&offered, &one))
        if (one.len > skip && !memcmp(one.at, PROOF_PROTOCOL, skip)) {
            *ret = (struct slice){one.at + skip, one.len - skip};
            return true;
        }
    return false;
}

static bool find_proof(const struct http_head *h, struct slice *ret)
{
    const struct slice *header = http_find(h, LOGIN_PROOF_HEADER);
    const struct slice *offered = http_find(h, "Sec-WebSocket-Protocol");
    if (header)
        *ret = *header;
    return header || (h->upgrade_websocket && offered && login_protocol_proof(*offered, ret));
}

bool login_is_shown(const struct call *c)
{
    struct slice proof;
    return find_proof(&c->r->head, &proof);
}

const char *login_protocol(const struct call *c)
{
    return c->by_login ? PROTOCOL : NULL;
}

/* The name of the cookie at this port. */
static void cookie_name(const struct call *c, char ret[COOKIE_NAME])
{
    bool tls = conn_is_tls(c->r->conn);
    struct slice name;
    unsigned port = 0;

    (void)http_host_split(c->r->head.host, &name, &port);
    snprintf(ret, COOKIE_NAME, "%spaddock-%u", tls ? "__Host-" : "", port ? port : tls ? 443 : 80);
}

/* Browsers say where a request comes from, and let no page write these headers. Over plain HTTP to
 * another machine they leave the second one out. */
static int check_page(const struct call *c, struct pd_err *e)
{
    const struct http_head *h = &c->r->head;
    const struct slice *origin = http_find(h, "Origin"), *site = http_find(h, "Sec-Fetch-Site");

    if (origin ? !origin_is_host(h, *origin) : h->upgrade_websocket)
        return pd_fail(e, PD_DENIED, "origin '%.*s' is not the console's",
                       origin ? (origin->len > 100 ? 100 : (int)origin->len) : 0,
                       origin ? origin->at : "");
    if (site && !slice_is(*site, "same-origin"))
        return pd_fail(e, PD_DENIED, "Sec-Fetch-Site '%.*s': only the console's own pages may",
                       site->len > 40 ? 40 : (int)site->len, site->at);
    return 0;
}

int console_check_here(const struct call *c, struct pd_err *e)
{
    struct slice name = {"", 0};
    unsigned port;
    char text[256] = "";
    uint8_t address[16];
    const struct config_list *allowed = &c->config->allowed_hosts;

    if (!c->config->console)
        return pd_fail(e, PD_NOT_FOUND, "the console is switched off here: console = on");

    (void)http_host_split(c->r->head.host, &name, &port);
    if (name.len < sizeof text)
        memcpy(text, name.at, name.len);
    if (!strcasecmp(text, "localhost") || inet_pton(AF_INET, text, address) == 1 ||
        inet_pton(AF_INET6, text, address) == 1)
        return 0;
    for (unsigned i = 0; i < allowed->count; i++)
        if (!strcasecmp(allowed->items[i], text))
            return 0;

    return pd_fail(e, PD_NOT_FOUND,
                   "the console is not at '%.100s': it is at the server's address, at localhost "
                   "and at what allowed_hosts names",
                   text);
}

int login_check(struct call *c, struct pd_err *e)
{
    const struct http_head *h = &c->r->head;
    char name[COOKIE_NAME], session[LOGIN_SECRET_LEN + 1], proof[LOGIN_SECRET_LEN + 1] = "";
    struct slice shown;

    if (console_check_here(c, e) < 0 || check_page(c, e) < 0)
        return -1;
    if (find_proof(h, &shown))
        (void)copy_secret(shown, proof);

    /* A page of another port may have put cookies of this name before ours. */
    cookie_name(c, name);
    for (unsigned i = 0; i < h->header_count; i++) {
        struct slice rest = h->headers[i].value;
        if (!slice_is_nocase(h->headers[i].name, "Cookie"))
            continue;
        while (port_cookie_next(&rest, name, session, sizeof session))
            if (logins_check(c->api->logins, session, proof, time_now_ms(), &c->who, NULL) == 0) {
                memcpy(c->login, session, sizeof c->login);
                return 0;
            }
    }
    return logins_check(c->api->logins, "", "", 0, &c->who, e);
}

/* ---- the routes ---- */

static void set_cookie(struct call *c, const char *session, uint64_t life_ms)
{
    char name[COOKIE_NAME], cookie[COOKIE_NAME + LOGIN_SECRET_LEN + 128];

    cookie_name(c, name);
    snprintf(cookie, sizeof cookie, "%s=%s; Path=/; HttpOnly; SameSite=Strict; Max-Age=%llu%s",
             name, session, (unsigned long long)(life_ms / 1000),
             conn_is_tls(c->r->conn) ? "; Secure" : "");
    reply_header(c->r, "Set-Cookie", cookie);
}

static void who_json(struct json *j, const struct auth_who *who)
{
    json_key(j, "tenant");
    json_cstr(j, who->tenant);
    json_key(j, "key_id");
    json_cstr(j, who->key_id);
    json_member_cstr(j, "role", auth_role_name(who->role));
    json_member_bool(j, "admin", who->role == AUTH_ADMIN);
}

/* Whoever would log a stranger in, to an account that is not the stranger's own, needs a page that
 * sends this: hence the checks of the page and of the body's type. */
int console_login(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(4096);
    auto_fields f = {0};
    const char *key = NULL, *code = NULL;
    struct auth_who who;
    struct login made;

    if (console_check_here(c, e) < 0 || check_page(c, e) < 0 || call_no_query(c, e) < 0 ||
        call_body(c, &body, &f, 0, e) < 0)
        return -1;

    fields_str(&f, "key", FIELD_OPTIONAL, 1, 255, &key);
    fields_str(&f, "code", FIELD_OPTIONAL, 1, 255, &code);
    if (!key == !code)
        fields_refuse(&f, key ? "code" : "key", "either a key, or the code of a link");
    if (call_finish(c, &f, e) < 0)
        return -1;

    uint64_t now = time_now_ms();
    if ((key ? auth_check(c->api->auth, key, &who, e)
             : logins_redeem(c->api->logins, code, now, &who, e)) < 0 ||
        logins_begin(c->api->logins, &who, now, &made, e) < 0)
        return -1;

    c->who = who;
    set_cookie(c, made.session, LOGIN_LIFE_MS);
    reply_header(c->r, "Cache-Control", "no-store");

    struct json j = JSON_INIT(&out);
    json_open(&j, '{');
    json_key(&j, "proof");
    json_cstr(&j, made.proof);
    who_json(&j, &who);
    json_time(&j, "expires_at", made.expires_ms);
    json_close(&j, '}');
    explicit_bzero(&made, sizeof made);
    return call_json(c, 200, &out);
}

int console_logout(struct call *c, struct pd_err *e)
{
    if (call_no_fields(c, e) < 0)
        return -1;
    if (!c->by_login)
        return pd_fail(e, PD_INVALID,
                       "a key is not logged in: revoke it with `paddock key revoke`");
    if (logins_end(c->api->logins, c->login, e) < 0)
        return -1;

    set_cookie(c, "", 0);
    return call_empty(c);
}

int console_link(struct call *c, struct pd_err *e)
{
    char code[LOGIN_SECRET_LEN + 1];
    auto_buf url = BUF_INIT(1024), out = BUF_INIT(4096);
    struct own_place own;

    if (!c->config->console)
        return console_check_here(c, e);
    if (call_no_fields(c, e) < 0)
        return -1;

    uint64_t now = time_now_ms();
    logins_offer(c->api->logins, &c->who, now, code);

    /* Previews have names below localhost, which are reached from pages of that name. */
    call_own_place(c, &own);
    buf_puts(&url, own.tls ? "https://" : "http://");
    if (slice_is(own.name, "127.0.0.1"))
        buf_printf(&url, "localhost:%u", own.port ? own.port : own.tls ? 443 : 80);
    else
        buf_put(&url, own.host.at, own.host.len);
    /* What is behind '#' is sent to nobody, and is in nobody's log. */
    buf_printf(&url, "/#code=%s", code);
    reply_header(c->r, "Cache-Control", "no-store");

    struct json j = JSON_INIT(&out);
    json_open(&j, '{');
    json_key(&j, "url");
    json_str(&j, url.data, url.len);
    json_time(&j, "expires_at", now + LOGIN_CODE_MS);
    json_close(&j, '}');
    explicit_bzero(code, sizeof code);
    return call_json(c, 200, &out);
}

static bool is_served(const char *pattern)
{
    for (unsigned i = 0; i < api_route_count; i++)
        if (!strcmp(api_routes[i].pattern, pattern))
            return true;
    return false;
}

struct labels {
    struct json *j;
    const char *tenant;
    unsigned count;
};

static int put_label(const struct auth_key *k, void *arg)
{
    struct labels *l = arg;
    if (k->label && k->label[0] && !strcmp(k->tenant, l->tenant)) {
        json_member_cstr(l->j, k->id, k->label);
        l->count++;
    }
    return l->count == LABELS_MAX;
}

int console_me(struct call *c, struct pd_err *e)
{
    auto_buf out = BUF_INIT(4096 + LABELS_MAX * 8 * AUTH_LABEL_MAX);
    struct json j = JSON_INIT(&out);
    struct labels labels = {.j = &j, .tenant = c->who.tenant};

    if (call_no_query(c, e) < 0)
        return -1;

    json_open(&j, '{');
    who_json(&j, &c->who);
    json_key(&j, "version");
    json_cstr(&j, c->api->version);
    json_key(&j, "now");
    char now[TIME_TEXT_LEN + 1];
    time_format_ms(time_now_ms(), now);
    json_cstr(&j, now);
    json_key(&j, "max_sandboxes");
    json_uint(&j, c->config->max_sandboxes_per_tenant);
    json_key(&j, "features");
    json_open(&j, '[');
    if (c->config->storage != CONFIG_STORAGE_MEMORY) {
        json_cstr(&j, "snapshots");
        if (is_served("/v1/images"))
            json_cstr(&j, "images");
    }
    if (c->config->audit)
        json_cstr(&j, "audit");
    json_close(&j, ']');

    json_key(&j, "key_labels");
    json_open(&j, '{');
    if (auth_list(c->api->auth, put_label, &labels, e) < 0)
        return -1;
    json_close(&j, '}');
    json_close(&j, '}');
    return call_json(c, 200, &out);
}
