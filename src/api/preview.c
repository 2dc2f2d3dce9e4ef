/* Links to a port that work without a key, for a while. */
#include "access/preview.h"
#include "api/handlers.h"
#include "api/port_heads.h"
#include "api/preview.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/json.h"
#include "base/parse.h"
#include "config/config.h"

#include <strings.h>

/* The host that the client itself used is one that it can reach. Over a Unix socket it has used
 * none: then it is the first address that is listened at, with TLS if there is such a one. */
void call_own_place(const struct call *c, struct own_place *ret)
{
    const struct config *config = c->config;
    char peer[CONN_PEER_SIZE];

    conn_peer(c->r->conn, peer);
    *ret = (struct own_place){.host = c->r->head.host, .name = {"", 0}};
    ret->tls = peer[0] == 'u' ? config->tls_cert[0] != 0 : conn_is_tls(c->r->conn);
    if (!strcmp(peer, "unix") || http_host_split(ret->host, &ret->name, &ret->port) < 0) {
        const struct config_list *at =
            ret->tls && config->listen_tls.count ? &config->listen_tls : &config->listen;
        ret->host = slice_of(at->count ? at->items[0] : "localhost");
        (void)http_host_split(ret->host, &ret->name, &ret->port);
    }
}

static void put_base(struct call *c, unsigned port, const char *id, enum preview_by by,
                     struct buf *out)
{
    const struct config *config = c->config;
    struct own_place own;
    call_own_place(c, &own);

    buf_puts(out, own.tls ? "https://" : "http://");
    /* Names below localhost reach this server only from where localhost does. */
    bool named = config->domain[0] && (strcasecmp(config->domain, "localhost") != 0 ||
                                       slice_is_nocase(own.name, "localhost"));
    if (by == PREVIEW_BY_HOST || (by == PREVIEW_BY_EITHER && named)) {
        buf_printf(out, "%u-%s.%s", port, id, config->domain);
        if (own.port)
            buf_printf(out, ":%u", own.port);
        return;
    }

    buf_put(out, own.host.at, own.host.len);
    buf_printf(out, "/v1/sandboxes/%s/ports/%u", id, port);
}

/* A token for the link, and its row. Two that are made in the same millisecond would be one link,
 * and revoked together: the later one ends a little later. */
static int make_link(struct call *c, struct link *made, uint64_t life_ms,
                     char token[PREVIEW_TOKEN_MAX + 1], struct pd_err *e)
{
    int r = -1;

    for (unsigned more = 0; more <= LINKS_MAX; more++) {
        if (preview_sign(c->api->preview, made->tenant, made->sandbox, made->port,
                         made->made_ms + more, life_ms, token, &made->expires_ms, e) < 0)
            return -1;
        link_id(token, made->id);
        r = links_add(c->api->links, made, e);
        if (r == 0 || e->code != PD_CONFLICT)
            break;
    }
    return r;
}

int preview_link(struct call *c, unsigned port, const char *id, enum preview_by by,
                 uint64_t life_ms, struct buf *ret, struct link *ret_link, struct pd_err *e)
{
    char token[PREVIEW_TOKEN_MAX + 1];
    struct link made = {.port = port, .made_ms = time_now_ms()};

    if (by == PREVIEW_BY_HOST && !c->config->domain[0])
        return pd_fail(e, PD_INVALID,
                       "by 'host': this server has no domain for previews; set domain, or ask for "
                       "'path'");

    snprintf(made.tenant, sizeof made.tenant, "%s", c->who.tenant);
    snprintf(made.sandbox, sizeof made.sandbox, "%s", id);
    snprintf(made.key_id, sizeof made.key_id, "%s", c->who.key_id);
    if (session_must(c->session, PROVIDER_PORTS, e) < 0 ||
        make_link(c, &made, life_ms, token, e) < 0)
        return -1;

    put_base(c, port, id, by, ret);
    buf_printf(ret, "/?" PREVIEW_PARAMETER "=%s", token);
    *ret_link = made;
    return 0;
}

bool preview_admits(struct call *c, const char *token, const char *sandbox, unsigned port)
{
    char id[LINK_ID_LEN + 1];

    if (preview_check(c->api->preview, token, sandbox, port, time_now_ms(), c->who.tenant, NULL) <
        0)
        return false;
    link_id(token, id);
    if (links_is_revoked(c->api->links, id))
        return false;
    memcpy(c->link, id, sizeof id);
    return true;
}

int ports_preview(struct call *c, struct pd_err *e)
{
    static const char *const no_parameters[] = {NULL};
    static const char *const ways[] = {"either", "host", "path", NULL};
    unsigned by = PREVIEW_BY_EITHER;
    auto_buf text = BUF_INIT(API_BODY_MAX), url = BUF_INIT(2048), out = BUF_INIT(4096);
    auto_fields f = {0};
    uint64_t port, life_ms = PREVIEW_LIFE_MS;
    struct link made;

    if (parse_u64("port", c->var[1], 1, 65535, &port, e) < 0) {
        snprintf(c->field, sizeof c->field, "port");
        return -1;
    }

    if (call_query_check(c, no_parameters, e) < 0 ||
        call_body(c, &text, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;

    fields_seconds_ms(&f, "expires_in_s", FIELD_OPTIONAL, 1000, PREVIEW_LIFE_MAX_MS, &life_ms);
    fields_enum(&f, "by", FIELD_OPTIONAL, ways, &by);
    if (call_finish(c, &f, e) < 0)
        return -1;

    struct session_info info;
    session_get(c->session, &info);
    if (info.state == SESSION_GONE)
        return pd_fail(e, PD_SESSION_EXPIRED, "sandbox %s has ended: %.120s", info.id,
                       info.end_reason);

    if (preview_link(c, (unsigned)port, c->var[0], by, life_ms, &url, &made, e) < 0)
        return -1;

    struct json j = JSON_INIT(&out);
    json_open(&j, '{');
    json_member_cstr(&j, "id", made.id);
    json_key(&j, "url");
    json_str(&j, url.data, url.len);
    json_time(&j, "expires_at", made.expires_ms);
    json_close(&j, '}');

    snprintf(c->summary, sizeof c->summary, "port %u for %llu s", (unsigned)port,
             (unsigned long long)(life_ms / 1000));
    return call_json(c, 200, &out);
}

/* ---- those that were made ---- */

int links_get(struct call *c, struct pd_err *e)
{
    auto_buf out = BUF_INIT(1u << 20);
    struct json j = JSON_INIT(&out);

    if (call_no_query(c, e) < 0)
        return -1;
    struct link *found = calloc(LINKS_OF_TENANT, sizeof *found);
    if (!found)
        return pd_fail(e, PD_CAPACITY, "no memory for the list");
    unsigned count =
        links_list(c->api->links, c->who.tenant, c->sandbox, time_now_ms(), found, LINKS_OF_TENANT);

    json_open(&j, '{');
    json_key(&j, "links");
    json_open(&j, '[');
    for (unsigned i = 0; i < count; i++) {
        json_open(&j, '{');
        json_member_cstr(&j, "id", found[i].id);
        json_member_uint(&j, "port", found[i].port);
        json_member_str(&j, "made_by", found[i].key_id);
        json_time(&j, "created_at", found[i].made_ms);
        json_time(&j, "expires_at", found[i].expires_ms);
        json_time(&j, "revoked_at", found[i].revoked_ms);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
    free(found);
    return call_json(c, 200, &out);
}

int link_delete(struct call *c, struct pd_err *e)
{
    if (call_no_fields(c, e) < 0)
        return -1;
    snprintf(c->summary, sizeof c->summary, "%.40s", c->var[1]);
    if (links_revoke(c->api->links, c->who.tenant, c->sandbox, c->var[1], time_now_ms(), e) < 0)
        return -1;
    return call_empty(c);
}
