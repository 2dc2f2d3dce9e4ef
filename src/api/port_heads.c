/* Which headers pass between a client and a program in a sandbox. The token of a preview, keys of
 * this server and headers that only a proxy may write never reach the program. Nothing of its
 * answer may speak for an origin that is not its own: by path that is the API's origin, by host the
 * program's. */
#include "api/port_heads.h"

#include "base/banned.h"
#include "base/err.h"
#include "net/url.h"

#include <string.h>
#include <strings.h>

/* An origin of its own, without the console's cookies and storage, whatever the page says. */
#define CONFINED "sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads"

static struct slice slice_cut(struct slice *rest, char at)
{
    const char *end = rest->len ? memchr(rest->at, at, rest->len) : NULL;
    struct slice piece = {rest->at, end ? (size_t)(end - rest->at) : rest->len};
    size_t used = end ? piece.len + 1 : piece.len;

    rest->at += used;
    rest->len -= used;
    return piece;
}

static struct slice slice_trim(struct slice s)
{
    while (s.len && (s.at[0] == ' ' || s.at[0] == '\t')) {
        s.at++;
        s.len--;
    }
    while (s.len && (s.at[s.len - 1] == ' ' || s.at[s.len - 1] == '\t'))
        s.len--;
    return s;
}

static bool starts_nocase(struct slice s, const char *prefix)
{
    size_t n = strlen(prefix);
    return s.len >= n && !strncasecmp(s.at, prefix, n);
}

static int contains(struct slice s, const char *text)
{
    return s.len && memmem(s.at, s.len, text, strlen(text)) != NULL;
}

static bool is_one_of(struct slice name, const char *const *names)
{
    for (; *names; names++)
        if (slice_is_nocase(name, *names))
            return true;
    return false;
}

/* ---- pieces ---- */

static bool is_token_pair(struct slice pair)
{
    char name[URL_NAME_SIZE];
    struct slice value;
    return url_query_next(&pair, name, &value, NULL) == 1 && !strcmp(name, PREVIEW_PARAMETER);
}

void port_query_strip(struct slice query, struct buf *out)
{
    for (int first = 1; query.len;) {
        size_t before = query.len;
        struct slice pair = slice_cut(&query, '&');
        int has_more = before > pair.len; /* an '&', maybe the last byte */
        if (is_token_pair(pair))
            continue;

        if (!first)
            buf_putc(out, '&');
        buf_put(out, pair.at, pair.len);
        if (has_more && !query.len)
            buf_putc(out, '&');
        first = 0;
    }
}

static bool is_token_cookie(struct slice pair)
{
    struct slice name = slice_trim(slice_cut(&pair, '='));
    return slice_is(name, PREVIEW_COOKIE) || slice_is(name, PREVIEW_HOST_COOKIE);
}

void port_cookie_strip(struct slice value, struct buf *out)
{
    int first = 1;

    while (value.len) {
        struct slice pair = slice_trim(slice_cut(&value, ';'));
        if (!pair.len || is_token_cookie(pair))
            continue;
        buf_puts(out, first ? "" : "; ");
        buf_put(out, pair.at, pair.len);
        first = 0;
    }
}

bool port_cookie_next(struct slice *rest, const char *name, char *out, size_t size)
{
    while (rest->len) {
        struct slice value = slice_trim(slice_cut(rest, ';'));
        struct slice own = slice_trim(slice_cut(&value, '='));
        if (!slice_is(own, name))
            continue;

        value = slice_trim(value);
        if (!value.len || value.len >= size)
            continue;

        memcpy(out, value.at, value.len);
        out[value.len] = 0;
        return true;
    }
    return false;
}

int port_cookie_confine(struct slice value, struct buf *out)
{
    struct slice pair = slice_trim(slice_cut(&value, ';'));
    if (!pair.len || is_token_cookie(pair))
        return 0;

    buf_put(out, pair.at, pair.len);
    while (value.len) {
        struct slice attribute = slice_trim(slice_cut(&value, ';')), rest = attribute;
        struct slice name = slice_trim(slice_cut(&rest, '='));
        if (!attribute.len || slice_is_nocase(name, "Domain"))
            continue;
        buf_puts(out, "; ");
        buf_put(out, attribute.at, attribute.len);
    }
    return !out->overflow;
}

void port_location_map(struct slice value, const char *prefix, unsigned port, struct buf *out)
{
    char here[3][32];
    struct slice path = value;

    snprintf(here[0], sizeof here[0], "http://localhost:%u", port);
    snprintf(here[1], sizeof here[1], "http://127.0.0.1:%u", port);
    snprintf(here[2], sizeof here[2], "http://0.0.0.0:%u", port);

    for (unsigned i = 0; i < 3; i++)
        if (starts_nocase(value, here[i]))
            path = (struct slice){value.at + strlen(here[i]), value.len - strlen(here[i])};

    int is_path = path.len && path.at[0] == '/' && !(path.len > 1 && strchr("/\\", path.at[1]));
    /* A program that minds X-Forwarded-Prefix has done it already. */
    if (is_path && !starts_nocase(path, prefix)) {
        buf_puts(out, prefix);
        value = path;
    }

    buf_put(out, value.at, value.len);
}

/* ---- the request ---- */

static void put_line(struct buf *out, const char *name, struct slice value)
{
    buf_puts(out, name);
    buf_puts(out, ": ");
    buf_put(out, value.at, value.len);
    buf_puts(out, "\r\n");
}

/* The client's address without its port; of a Unix socket there is none. */
static void put_forwarded(const struct port_visit *v, struct buf *out)
{
    char peer[CONN_PEER_SIZE];

    conn_peer(v->r->conn, peer);

    char *colon = strrchr(peer, ':');
    char *start = peer[0] == '[' ? peer + 1 : peer;
    if (colon) {
        *(colon > peer && colon[-1] == ']' ? colon - 1 : colon) = 0;
        put_line(out, "X-Forwarded-For", slice_of(start));
    }

    put_line(out, "X-Forwarded-Proto", slice_of(conn_is_tls(v->r->conn) ? "https" : "http"));
    if (v->r->head.host.len)
        put_line(out, "X-Forwarded-Host", v->r->head.host);
    if (v->prefix[0])
        put_line(out, "X-Forwarded-Prefix", slice_of(v->prefix));
    put_line(out, "X-Request-Id", slice_of(v->r->id));
}

/* Authorization is for the program only when a token was what let the client in, and never when it
 * looks like a key of this server. */
static bool may_authorize(const struct port_visit *v, struct slice value)
{
    return v->by_token && !contains(value, "e2b_");
}

static void put_header(const struct port_visit *v, const struct http_header *h, struct buf *out)
{
    /* Written anew, or for this server alone, or nobody's to claim. */
    static const char *const never[] = {"Host",
                                        "Content-Length",
                                        "Expect",
                                        "X-API-Key",
                                        "X-Access-Token",
                                        "E2b-Traffic-Access-Token",
                                        PREVIEW_HEADER,
                                        "X-Paddock-Proof",
                                        "Forwarded",
                                        "X-Real-IP",
                                        "X-Request-Id",
                                        "Via",
                                        "X-Original-URL",
                                        "X-Rewrite-URL",
                                        "X-HTTP-Method-Override",
                                        NULL};
    auto_buf value = BUF_INIT(HTTP_HEAD_MAX);

    if (http_hop_by_hop(&v->r->head, h->name) || is_one_of(h->name, never) ||
        starts_nocase(h->name, "X-Forwarded-"))
        return;
    if (slice_is_nocase(h->name, "Authorization") && !may_authorize(v, h->value))
        return;

    /* By path it is the API's cookies that come along. */
    if (slice_is_nocase(h->name, "Cookie")) {
        if (!v->prefix[0])
            port_cookie_strip(h->value, &value);
        if (!value.len)
            return;
    } else if (slice_is_nocase(h->name, "Referer") && contains(h->value, PREVIEW_PARAMETER)) {
        return;
    } else {
        buf_put(&value, h->value.at, h->value.len);
    }

    buf_put(out, h->name.at, h->name.len);
    buf_puts(out, ": ");
    buf_put(out, value.data, value.len);
    buf_puts(out, "\r\n");
    out->overflow |= value.overflow;
}

/* A host that the sandbox's owner chose. What could not stand in a header is not written. */
static void put_chosen_host(const struct port_visit *v, struct buf *out)
{
    static const char port[] = "${PORT}";

    buf_puts(out, "Host: ");
    for (const char *at = v->host; *at;) {
        if (!strncmp(at, port, sizeof port - 1)) {
            buf_printf(out, "%u", v->port);
            at += sizeof port - 1;
            continue;
        }
        if ((unsigned char)*at > ' ' && (unsigned char)*at < 0x7f)
            buf_putc(out, *at);
        at++;
    }
    buf_puts(out, "\r\n");
}

void port_head_build(const struct port_visit *v, struct buf *out)
{
    const struct http_head *h = &v->r->head;
    auto_buf query = BUF_INIT(HTTP_TARGET_MAX);

    port_query_strip(v->r->query, &query);

    buf_puts(out, http_method_name(h->method));
    buf_putc(out, ' ');
    buf_put(out, v->path.at, v->path.len);
    if (query.len) {
        buf_putc(out, '?');
        buf_put(out, query.data, query.len);
    }
    buf_puts(out, " HTTP/1.1\r\n");

    if (v->host)
        put_chosen_host(v, out);
    else if (v->prefix[0] || !h->host.len)
        buf_printf(out, "Host: localhost:%u\r\n", v->port);
    else
        put_line(out, "Host", h->host);

    for (unsigned i = 0; i < h->header_count; i++)
        put_header(v, &h->headers[i], out);
    put_forwarded(v, out);
    out->overflow |= query.overflow;
}

/* ---- the answer ---- */

/* 1: passes as it is; 0: not; 2: in another form, in `out`. */
static int judge(const struct port_visit *v, const struct http_head *answer,
                 const struct http_header *h, struct buf *out)
{
    /* For a server in front of this one, or for all hosts of a domain. */
    static const char *const never[] = {
        "X-Accel-Redirect",     "X-Accel-Buffering",  "X-Accel-Charset",
        "X-Accel-Expires",      "X-Accel-Limit-Rate", "X-Sendfile",
        "X-Lighttpd-Send-File", "Clear-Site-Data",    NULL};
    /* For the whole origin, which by path is the API's. */
    static const char *const by_path[] = {"Set-Cookie",
                                          "Set-Cookie2",
                                          "Strict-Transport-Security",
                                          "Public-Key-Pins",
                                          "Alt-Svc",
                                          "Service-Worker-Allowed",
                                          "NEL",
                                          "Report-To",
                                          "Reporting-Endpoints",
                                          "Accept-CH",
                                          "Critical-CH",
                                          "Origin-Agent-Cluster",
                                          NULL};

    if (http_hop_by_hop(answer, h->name) || is_one_of(h->name, never))
        return 0;
    if (v->prefix[0] && is_one_of(h->name, by_path))
        return 0;

    if (slice_is_nocase(h->name, "Set-Cookie"))
        return port_cookie_confine(h->value, out) ? 2 : 0;
    if (v->prefix[0] && slice_is_nocase(h->name, "Location")) {
        port_location_map(h->value, v->prefix, v->port, out);
        return 2;
    }
    return 1;
}

static void add_header(struct request *r, struct slice name, struct slice value)
{
    auto_buf n = BUF_INIT(HTTP_HEAD_MAX + 1), t = BUF_INIT(HTTP_HEAD_MAX + 128);

    buf_put(&n, name.at, name.len);
    buf_put(&t, value.at, value.len);
    const char *name_text = buf_cstr(&n), *value_text = buf_cstr(&t);
    if (name_text && value_text)
        reply_header(r, name_text, value_text);
}

/* The browser remembers the token. In a frame of another site's page it keeps no Lax cookie, only
 * one of the pair of both sites (Partitioned), which no other page's frame of this host has. */
static void set_cookie(struct request *r, const char *token)
{
    const struct slice *dest = http_find(&r->head, "Sec-Fetch-Dest");
    bool framed = dest && (slice_is(*dest, "iframe") || slice_is(*dest, "frame"));
    bool tls = conn_is_tls(r->conn);
    const char *how = framed ? "SameSite=None; Secure; Partitioned"
                      : tls  ? "SameSite=Lax; Secure"
                             : "SameSite=Lax";

    char cookie[352];
    snprintf(cookie, sizeof cookie, "%s=%s; Path=/; HttpOnly; %s",
             tls ? PREVIEW_HOST_COOKIE : PREVIEW_COOKIE, token, how);
    reply_header(r, "Set-Cookie", cookie);
}

void port_head_answer(struct request *r, const struct http_head *answer, const struct port_visit *v)
{
    for (unsigned i = 0; i < answer->header_count; i++) {
        const struct http_header *h = &answer->headers[i];
        auto_buf other = BUF_INIT(HTTP_HEAD_MAX + 128);
        int verdict = judge(v, answer, h, &other);
        if (verdict == 1)
            add_header(r, h->name, h->value);
        else if (verdict == 2 && !other.overflow)
            add_header(r, h->name, (struct slice){(const char *)other.data, other.len});
    }

    if (v->prefix[0])
        reply_header(r, "Content-Security-Policy", CONFINED);

    if (v->cookie)
        set_cookie(r, v->cookie);
}
