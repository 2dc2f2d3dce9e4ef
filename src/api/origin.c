/* A browser lets any page open a WebSocket to anywhere, and says which page it was. */
#include "api/origin.h"

#include "base/banned.h"
#include "config/config.h"

#include <strings.h>

bool origin_is_own(const struct call *c, struct slice origin)
{
    const char *scheme = conn_is_tls(c->r->conn) ? "https://" : "http://";
    size_t skip = strlen(scheme);
    struct slice host = c->r->head.host;

    return host.len && origin.len == skip + host.len && !strncasecmp(origin.at, scheme, skip) &&
           !strncasecmp(origin.at + skip, host.at, host.len);
}

bool origin_is_host(const struct http_head *h, struct slice origin)
{
    size_t skip = origin.len > 8 && !strncasecmp(origin.at, "https://", 8)  ? 8
                  : origin.len > 7 && !strncasecmp(origin.at, "http://", 7) ? 7
                                                                            : 0;
    return skip && h->host.len && origin.len - skip == h->host.len &&
           !strncasecmp(origin.at + skip, h->host.at, h->host.len);
}

int origin_check(const struct call *c, struct pd_err *e)
{
    const struct slice *origin = http_find(&c->r->head, "Origin");
    if (!origin || origin_is_own(c, *origin))
        return 0;

    const struct config_list *allowed = &c->config->allowed_origins;
    for (unsigned i = 0; i < allowed->count; i++)
        if (slice_is_nocase(*origin, allowed->items[i]))
            return 0;

    return pd_fail(e, PD_DENIED, "origin '%.*s' is not allowed: add it to allowed_origins",
                   origin->len > 100 ? 100 : (int)origin->len, origin->at);
}
