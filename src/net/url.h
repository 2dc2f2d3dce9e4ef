/* url: paths, queries, host names and addresses of servers, strictly. Pure functions.
 *
 * A path is split first and decoded after that, once: an escaped slash is a byte of a segment,
 * never a separator. Decoded text is valid UTF-8 without NUL. '+' stays '+'. Errors are PD_INVALID
 * and name the parameter or the part that is wrong. */
#pragma once

#include "base/buf.h"
#include "net/http.h"

struct pd_err;

#define URL_PAIRS_MAX 64u /* parameters of a query */
#define URL_NAME_SIZE 256 /* of a parameter's name, decoded, with its NUL */
#define URL_ID_LEN    20  /* of a sandbox id: [a-z0-9] */

/* Cuts a request target at its first '?'. The query is empty when there is none. */
void url_split(struct slice target, struct slice *ret_path, struct slice *ret_query);

/* Takes the next segment, still encoded, off a path such as "/v1/a%2Fb": 1, or 0 at the end, or -1.
 * *path then starts with the slash of the segment after it, or is empty. An empty segment is an
 * error, except behind the last slash: "/v1/" has the segments "v1" and "", "/" has one that is
 * empty. The segments "." and ".." are errors, also when they are escaped. What a proxy passes on
 * is not asked: it takes the rest of the path as it is. */
int url_segment_next(struct slice *path, struct slice *ret, struct pd_err *e);
/* All segments of a path: their number, at most `max`, or -1. */
int url_path_split(struct slice path, struct slice *ret, unsigned max, struct pd_err *e);

/* Decodes %XX and puts a NUL behind it. 0 or -1: `what` (a path segment or a parameter, as the
 * client knows it) has a malformed escape, a NUL, a control byte that is not escaped, is no UTF-8,
 * or has no room in `size` bytes; what is in `out` is
 * then of no meaning. */
int url_decode(const char *what, struct slice s, char *out, size_t size, struct pd_err *e);
/* Appends the bytes with everything escaped but letters, digits and -._~ (and '/' when told so). */
int url_encode(struct buf *out, const void *data, size_t len, int keep_slash);

/* Takes the next parameter off a query: 1 with its decoded name and its encoded value (empty when
 * it has no '='), 0 at the end, -1. Empty pairs are skipped. */
int url_query_next(struct slice *query, char name[URL_NAME_SIZE], struct slice *ret_value,
                   struct pd_err *e);
/* Looks for one parameter and decodes its value into out: 1, or 0 when it is not there (out is left
 * alone), or -1: it comes twice, or is malformed. */
int url_query_get(struct slice query, const char *name, char *out, size_t size, struct pd_err *e);
/* Refuses parameters that are unknown, come twice, or are malformed. `allowed` ends with NULL; a
 * name that ends with '.' allows all names that start with it ("metadata."). Handlers call it once,
 * before they look at single ones. */
int url_query_check(struct slice query, const char *const *allowed, struct pd_err *e);

/* The host "{port}-{id}.{domain}", maybe with the server's port behind it, as it stands in a Host
 * header: 1; 0 when it is not below the domain (or `domain` is NULL or empty); -1 when it is, but
 * is not of that form. Names have no case; the id is given in small letters. */
int url_preview_host(struct slice host, const char *domain, unsigned *ret_port,
                     char ret_id[URL_ID_LEN + 1], struct pd_err *e);

/* Where a server listens: "http://host:port", "https://host" or "unix:/path". */
struct url_server {
    int tls;
    char host[256];   /* without brackets; empty for unix: */
    unsigned port;    /* 80 and 443 unless told */
    char socket[108]; /* the absolute path of unix:, else empty */
};
/* `what` is where the text comes from, for example PADDOCK_URL. A path other than "/", a query, a
 * fragment, a user or a password are refused. */
int url_server_parse(const char *what, const char *text, struct url_server *ret, struct pd_err *e);
