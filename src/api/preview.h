/* preview: links to a port of a sandbox, and ports by host name. The tokens in them are
 * access/preview.h's. */
#pragma once

#include "api/call.h"

/* Where the client has reached this server. */
struct own_place {
    struct slice host, name; /* with the port, and without */
    unsigned port;           /* 0: the scheme's own */
    bool tls;
};
void call_own_place(const struct call *c, struct own_place *ret);

/* Where a link leads: to the port's own host name, to the path below the API, or to whichever the
 * client can reach: the name, unless that is below localhost and the client has come by another. */
enum preview_by { PREVIEW_BY_EITHER, PREVIEW_BY_HOST, PREVIEW_BY_PATH };
/* A link to a port of c->session that works without a key for a while, or until it is revoked. */
int preview_link(struct call *c, unsigned port, const char *id, enum preview_by by,
                 uint64_t life_ms, struct buf *ret, struct link *ret_link, struct pd_err *e);
/* Does the token open that port of that sandbox, and was its link not revoked? Fills c->who.tenant
 * and c->link. */
bool preview_admits(struct call *c, const char *token, const char *sandbox, unsigned port);
/* By host name {port}-{id}.<domain>: ports.c. 1 when the request was for a port (and is answered),
 * 0 when not. */
int api_handle_port_host(struct call *c);
