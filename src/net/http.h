/* http: HTTP/1.1 messages as bytes, strictly. Pure functions.
 *
 * Nothing is guessed and nothing is tolerated: one request has one meaning, whoever reads it. What
 * a lenient parser would accept (obsolete line folding, bare CR or LF, blanks before a colon, two
 * lengths, a length beside chunks, chunk extensions, a method or version unknown) is refused with a
 * reason. */
#pragma once

#include "base/buf.h"

#include <stdint.h>

struct pd_err;

#define HTTP_HEAD_MAX    (32u << 10)
#define HTTP_HEADERS_MAX 100u
#define HTTP_TARGET_MAX  8192u

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
    int status;              /* response */
    int minor;               /* HTTP/1.minor: 0 or 1 */
    struct http_header headers[HTTP_HEADERS_MAX];
    unsigned header_count;
    enum http_body body;
    uint64_t length; /* of HTTP_BODY_LENGTH */
    int keep_alive;  /* the connection may be used again */
    int expect_continue;
    int upgrade_websocket; /* Connection: upgrade and Upgrade: websocket, well formed */
    struct slice host;     /* exactly one in HTTP/1.1 */
};

/* Looks for a complete head at the start of data. Returns its length in bytes, 0 when more is
 * needed, or -1 with PD_INVALID (details in the message) or PD_TOO_LARGE. Slices point into `data`.
 */
ptrdiff_t http_request_parse(const void *data, size_t len, struct http_head *ret, struct pd_err *e);
/* The same for a response to a request of method m. */
ptrdiff_t http_response_parse(const void *data, size_t len, enum http_method m,
                              struct http_head *ret, struct pd_err *e);
/* The value of the only header of that name, or NULL when there is none or more than one. */
const struct slice *http_find(const struct http_head *h, const char *name);

/* Decodes a chunked body piece by piece. Start with a zeroed struct. */
struct http_chunks {
    int state;
    uint64_t left; /* of the current chunk */
    unsigned digits, trailer_bytes, line_bytes;
    int done;
};
/* Consumes from data[0..len). *ret_used: bytes consumed; *ret_body and *ret_body_len: the piece of
 * body found (inside data), maybe empty. Call again with the rest until nothing is used or done.
 * -1: malformed. Trailers are read and ignored. */
int http_chunks_next(struct http_chunks *c, const char *data, size_t len, size_t *ret_used,
                     const char **ret_body, size_t *ret_body_len, struct pd_err *e);

/* The reason phrase for a status. */
const char *http_reason(int status);
