/* http: HTTP/1.1 messages as bytes, strictly. Pure functions.
 *
 * Nothing is guessed and nothing is tolerated: one request has one meaning, whoever reads it. What
 * a lenient parser would accept (obsolete line folding, bare CR or LF, blanks before a colon, two
 * lengths, a length beside chunks, chunk extensions, a version unknown) is refused with a reason.
 * After a refusal the connection cannot be used any more: where the next request starts is not
 * known. */
#pragma once

#include "base/buf.h"

#include <stdint.h>

struct pd_err;

#define HTTP_HEAD_MAX    (32u << 10)
#define HTTP_HEADERS_MAX 100u
#define HTTP_TARGET_MAX  8192u
#define HTTP_TRAILER_MAX 8192u /* all trailer lines of a chunked body */

enum http_method {
    HTTP_GET,
    HTTP_HEAD,
    HTTP_POST,
    HTTP_PUT,
    HTTP_PATCH,
    HTTP_DELETE,
    HTTP_OPTIONS,
    HTTP_METHOD_COUNT
};
const char *http_method_name(enum http_method m);

/* A piece of the bytes that were parsed; not NUL-terminated. */
struct slice {
    const char *at;
    size_t len;
};
struct slice slice_of(const char *text);
int slice_is(struct slice s, const char *text);        /* equal bytes */
int slice_is_nocase(struct slice s, const char *text); /* ASCII case does not matter */

struct http_header {
    struct slice name, value; /* the value without blanks around it */
};

enum http_body {
    HTTP_BODY_NONE,
    HTTP_BODY_LENGTH,
    HTTP_BODY_CHUNKED,
    HTTP_BODY_TO_EOF /* responses only */
};

struct http_head {
    enum http_method method; /* request */
    struct slice target;     /* request: starts with '/', or is "*" for OPTIONS */
    int status;              /* response: 100 to 599 */
    int minor;               /* HTTP/1.minor: 0 or 1 */
    struct http_header headers[HTTP_HEADERS_MAX];
    unsigned header_count;
    enum http_body body;
    uint64_t length; /* of HTTP_BODY_LENGTH, else 0 */
    int keep_alive;  /* the connection may be used again */
    int expect_continue;
    int upgrade_websocket; /* Connection: upgrade and Upgrade: websocket. In a request: GET, no
                              body, version 13, one key (its form is checked by ws_accept). In a
                              response: status 101 */
    struct slice host;     /* request: exactly one in HTTP/1.1; maybe empty in HTTP/1.0 */
};

/* Looks for a complete head at the start of data. Returns its length in bytes, 0 when more is
 * needed, or -1 with PD_INVALID (details in the message), PD_TOO_LARGE (the head, its target or the
 * number of headers: status 431) or PD_METHOD (none of the methods above). A line is judged as soon
 * as it is complete. Slices point into `data`; at most HTTP_HEAD_MAX bytes of it are looked at.
 *
 * Headers that may come only once, and are refused when they come again: Host, Content-Length,
 * Transfer-Encoding, Upgrade, Expect, Authorization, X-API-Key, Content-Type, Content-Range, Range,
 * Origin, Idempotency-Key, Last-Event-ID, Sec-WebSocket-Key, Sec-WebSocket-Version. */
ptrdiff_t http_request_parse(const void *data, size_t len, struct http_head *ret, struct pd_err *e);
/* The same for a response to a request of method m. Interim responses (status 1xx) are responses of
 * their own. What follows the head of a 101 is another protocol. */
ptrdiff_t http_response_parse(const void *data, size_t len, enum http_method m,
                              struct http_head *ret, struct pd_err *e);

/* The value of the only header of that name, or NULL when there is none or more than one. */
const struct slice *http_find(const struct http_head *h, const char *name);
/* "name", "1.2.3.4" or "[::1]", then maybe ":port". *ret_name has no brackets; *ret_port is 0 when
 * there is none. -1: not of that form. */
int http_host_split(struct slice host, struct slice *ret_name, unsigned *ret_port);
/* Takes the next element off a list such as "a, b;q=1": 1 with blanks around it removed, 0 at the
 * end. Empty elements are skipped. Knows nothing of quoted strings. */
int http_list_next(struct slice *list, struct slice *ret);
/* Whether a list header (Connection, Vary ...), in all its lines, has this element; case ignored.
 */
int http_list_has(const struct http_head *h, const char *name, const char *element);
/* Whether a header is for the next hop only, so that a proxy must not pass it on: the ones of the
 * standard, and what Connection names, except what a client must not be able to hide from the
 * server behind (Host, Content-Length, Authorization, X-API-Key, X-Forwarded-*, Cookie ...).
 * Transfer-Encoding and Upgrade count, so whoever forwards a body or a WebSocket writes them anew.
 */
int http_hop_by_hop(const struct http_head *h, struct slice name);

/* Decodes a chunked body piece by piece. Start with a zeroed struct. */
struct http_chunks {
    int state;
    uint64_t left; /* of the current chunk */
    unsigned digits, trailer_bytes;
    int done;
};
/* Consumes from data[0..len). *ret_used: bytes consumed; *ret_body and *ret_body_len: the piece of
 * body found (inside data), maybe empty. Call again with the rest until nothing is used or done;
 * bytes behind the end are not used. -1: malformed, for good. Trailers are checked and ignored. */
int http_chunks_next(struct http_chunks *c, const char *data, size_t len, size_t *ret_used,
                     const char **ret_body, size_t *ret_body_len, struct pd_err *e);

/* The reason phrase for a status. */
const char *http_reason(int status);
