/* port_heads: which headers pass between a client and a server in a sandbox.
 *
 * Neither side is believed: the client must not lose its key, the preview token or the API's
 * cookies to a sandbox, and a sandbox must not reach beyond its own origin. No input or output but
 * reply_header. */
#pragma once

#include "net/server.h"

#include <stdbool.h>

struct pd_err;

#define PREVIEW_PARAMETER "paddock_preview" /* in a query */
#define PREVIEW_COOKIE    "paddock_preview" /* over plain HTTP, by host only */
/* Over TLS. A browser takes a cookie of such a name only from the very host that it is sent to: a
 * page of another sandbox, whose host has the same parent, cannot put one here with Domain=. */
#define PREVIEW_HOST_COOKIE "__Host-" PREVIEW_COOKIE
#define PREVIEW_HEADER      "X-Paddock-Preview"

struct port_visit {
    const struct request *r;
    unsigned port;
    char prefix[80];    /* of the path that the sandbox does not see; "" by host */
    struct slice path;  /* what it sees, with its '/' */
    bool by_token;      /* a token let the client in, so Authorization may be the program's */
    const char *cookie; /* a token to be remembered by the browser, or NULL */
    const char *host;   /* what the program is told as its host, with ${PORT} for the port, or NULL
                         */
};

/* Request line and headers as the server in the sandbox gets them, for struct proxy. */
void port_head_build(const struct port_visit *v, struct buf *out);
/* Headers of the answer, by reply_header. */
void port_head_answer(struct request *r, const struct http_head *answer,
                      const struct port_visit *v);

/* The query without the token, whichever way its name was escaped. */
void port_query_strip(struct slice query, struct buf *out);
/* A Cookie header's value without the token, under either name. */
void port_cookie_strip(struct slice value, struct buf *out);
/* The next token in what is left of a Cookie header's value, which moves on: true, or false at the
 * end. `name` is one of the two above. Call it until a token is good: pages of other sandboxes can
 * put cookies of the plain name before the one that this server has set. What does not fit into
 * `size` is passed over. */
bool port_cookie_next(struct slice *rest, const char *name, char *out, size_t size);
/* A Set-Cookie of the program's, held to its own host: without Domain. 0 when it must not pass, as
 * one of the names above must not. */
int port_cookie_confine(struct slice value, struct buf *out);
/* Where a redirect leads for a client that came by path. */
void port_location_map(struct slice value, const char *prefix, unsigned port, struct buf *out);
