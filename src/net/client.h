/* client: HTTP/1.1 from the other side: for the command line, and for the proxy to ports.
 *
 * Blocking calls with deadlines; one request at a time; one thread at a time. A request is begun,
 * its body written and ended, then the answer's head is read, then its body in pieces. When the
 * answer is read to its end and client_is_reusable, the next one may begin. After a call that
 * failed the client can only be freed, with one exception: a server may answer before it has read
 * the whole body, so after a failed client_write or client_end it is worth to read the head. */
#pragma once

#include "net/conn.h"
#include "net/http.h"
#include "net/url.h"

struct client;

/* `tls` is needed for https and not used otherwise; it outlives the client. Resolving a name takes
 * as long as the system's resolver takes; the deadline is for connecting. */
struct client *client_connect(const struct url_server *server, struct tls_context *tls, deadline d,
                              struct pd_err *e);
/* Over what is connected already, for example conn_new_pair of two pipes; takes it over, also on
 * failure (NULL is a failure). `host` is for the Host header and is copied. */
struct client *client_new(struct conn *conn, const char *host, struct pd_err *e);
void client_free(struct client *c); /* NULL is fine */

/* Adds a header to the request that is about to begin. -1 with PD_INVALID: the name is no token, or
 * the value has a control byte, or there are too many. Content-Length and Transfer-Encoding are
 * left out (client_begin writes them); Host replaces the client's own. */
int client_header(struct client *c, struct slice name, struct slice value, struct pd_err *e);

/* Begins a request with a body of `length` bytes, or CLIENT_CHUNKED. CLIENT_NO_BODY: no body, and
 * nothing is said of a length. The head goes out with the first bytes of the body or at the end. */
#define CLIENT_CHUNKED UINT64_MAX
#define CLIENT_NO_BODY (UINT64_MAX - 1)
int client_begin(struct client *c, enum http_method m, struct slice target, uint64_t length,
                 struct pd_err *e);
int client_write(struct client *c, const void *data, size_t len, struct pd_err *e);
int client_end(struct client *c, struct pd_err *e);

/* Waits for the answer's head; interim answers but 101 are skipped. *ret stays valid until the next
 * client_begin. */
int client_read_head(struct client *c, const struct http_head **ret, deadline d, struct pd_err *e);
/* The body, in pieces: bytes, 0 at its end, -1: PD_TIMEOUT (may be called again), PD_LOST,
 * PD_PROTOCOL. */
ssize_t client_read(struct client *c, void *out, size_t size, deadline d, struct pd_err *e);
/* The rest of the body, at most `max` bytes (PD_TOO_LARGE). */
int client_read_all(struct client *c, struct buf *out, size_t max, deadline d, struct pd_err *e);
/* 1 when the answer was read to its end and the connection may be used again. */
int client_is_reusable(struct client *c);

/* After a 101, or to wait for both directions at once: */
struct conn *client_conn(struct client *c);
ssize_t client_raw_read(struct client *c, void *out, size_t size, deadline d, struct pd_err *e);
int client_raw_pending(struct client *c); /* bytes that poll does not tell of */
