/* origin: which page in a browser a request comes from. A browser says it in `Origin`, and lets no
 * page write that header. */
#pragma once

#include "api/call.h"

/* Is it this server's, under the name that the client used? */
bool origin_is_own(const struct call *c, struct slice origin);
/* The same whether the browser came by TLS or not, which a proxy in front of this server decides.
 */
bool origin_is_host(const struct http_head *h, struct slice origin);
/* PD_DENIED for a page that is neither this server's nor of `allowed_origins`. A request without an
 * origin is no page's. */
int origin_check(const struct call *c, struct pd_err *e);
