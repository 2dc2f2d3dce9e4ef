/* http: requests of a broker to somebody else's server, by libcurl.
 *
 * One connection that is kept, one request at a time, one thread. A server is a unix socket or an
 * address with http or https; proxies, certificates and address families are libcurl's business.
 * Redirects are not followed: an endpoint is what the operator named. Whatever comes back is
 * bounded, and nothing waits longer than the request's deadline. */
#pragma once

#include "base/buf.h"
#include "base/clock.h"

#include <stdbool.h>

struct pd_err;
struct http;

/* Where the server is. The strings are copied. NULL or "" is what is not given. */
struct http_place {
    const char *socket;    /* path of a unix socket: then `base` only names the host */
    const char *base;      /* "http://HOST[:PORT]" or "https://...", without a path */
    const char *ca_file;   /* bundle to trust instead of the system's */
    const char *cert_file; /* client certificate, and its key */
    const char *key_file;
    const struct buf *ca_pem, *cert_pem,
        *key_pem;      /* the same as text; copied. NULL or empty: none */
    const char *proxy; /* instead of the environment's; never used with a unix socket */
    bool direct;       /* no proxy, whatever the environment says */
    bool public_only;  /* no private address is dialled (gate/address.h), whatever a name means */
};

/* Lines of an answer's head that some callers go by; "" where it has none, or one that is longer.
 */
struct http_heads {
    int status;
    char location[4096];
    char challenge[4096]; /* the first WWW-Authenticate */
    char next[512];       /* X-Next-Token */
    char wait[32];        /* the first Retry-After, also one for a kind of request */
    char date[40];
};

/* Takes the next piece of a body. -1 with *e ends the request, which then fails with it. */
typedef int http_take(void *context, const void *data, size_t len, struct pd_err *e);

struct http_request {
    const char *method;         /* "GET" */
    const char *target;         /* path and query, encoded; begins with "/" */
    const char *const *headers; /* "Name: value", up to a NULL; or NULL */
    const void *body;           /* sent as application/json unless a header says otherwise */
    size_t body_len;
    http_take *take; /* gets the body of a 2xx answer as it comes; NULL: it is collected */
    void *context;
    /* Asked about once a second, with `context`: is the answer still wanted? NULL: it is. */
    bool (*is_wanted)(void *context);
    uint64_t stream_max;      /* bytes that `take` may get in all; 0: no bound */
    struct http_heads *heads; /* filled before the body comes; NULL: nobody asks */
    unsigned rate_least; /* bytes a second: with less for a minute it fails; 0: whatever it is */
    deadline deadline;
};

/* Has the libraries start, which the first http_new does as well. false when they cannot. */
bool http_begin(void);
/* `body` is the caller's, empty and with its maximum. It has a NUL behind it. */
struct http_answer {
    int status;
    struct buf *body;
};

struct http *http_new(const struct http_place *p, struct pd_err *e);
void http_free(struct http *h); /* NULL is fine */

/* 0 when an answer came, whatever its status. -1: PD_BAD_GATEWAY (not reachable, not trusted, cut
 * off), PD_TIMEOUT, PD_TOO_LARGE, PD_CONFLICT (not wanted any more), PD_INVALID (a file or an
 * address that libcurl refuses), or what `take` said. After -1 nobody knows whether the server
 * acted on the request. */
int http_ask(struct http *h, const struct http_request *r, struct http_answer *ret,
             struct pd_err *e);

/* Appends `text` with everything but letters, digits and "-._~" percent-encoded. */
void http_escape(struct buf *out, const char *text);
