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

int preview_link(struct call *c, unsigned port, const char *id, enum preview_by by,
                 uint64_t life_ms, struct buf *ret, uint64_t *ret_expires_ms, struct pd_err *e)
{
    char token[PREVIEW_TOKEN_MAX + 1];

    if (by == PREVIEW_BY_HOST && !c->config->domain[0])
        return pd_fail(e, PD_INVALID,
                       "by 'host': this server has no domain for previews; set domain, or ask for "
                       "'path'");

    if (session_must(c->session, PROVIDER_PORTS, e) < 0 ||
        preview_sign(c->api->preview, c->who.tenant, id, port, time_now_ms(), life_ms, token,
                     ret_expires_ms, e) < 0)
        return -1;

    put_base(c, port, id, by, ret);
    buf_printf(ret, "/?" PREVIEW_PARAMETER "=%s", token);
    return 0;
}

int ports_preview(struct call *c, struct pd_err *e)
{
    static const char *const no_parameters[] = {NULL};
    static const char *const ways[] = {"either", "host", "path", NULL};
    unsigned by = PREVIEW_BY_EITHER;
    auto_buf text = BUF_INIT(API_BODY_MAX), url = BUF_INIT(2048), out = BUF_INIT(4096);
    auto_fields f = {0};
    uint64_t port, life_ms = PREVIEW_LIFE_MS, expires_ms;

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

    if (preview_link(c, (unsigned)port, c->var[0], by, life_ms, &url, &expires_ms, e) < 0)
        return -1;

    struct json j = JSON_INIT(&out);
    json_open(&j, '{');
    json_key(&j, "url");
    json_str(&j, url.data, url.len);
    json_time(&j, "expires_at", expires_ms);
    json_close(&j, '}');

    snprintf(c->summary, sizeof c->summary, "port %u for %llu s", (unsigned)port,
             (unsigned long long)(life_ms / 1000));
    return call_json(c, 200, &out);
}
