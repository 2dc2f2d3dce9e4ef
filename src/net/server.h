/* server: listens, reads requests and gives each to the handler in a thread of its own.
 *
 * An idle connection is an entry in an epoll set; a connection with a request has a thread
 * until the request is answered, and a moment longer in case the next one follows at once. The
 * handler is written top to bottom with blocking calls. Whatever the peer does (slowly, wrongly,
 * not at all) is bounded: head size and time, body size, connections, active requests. */
#pragma once

#include "net/conn.h"
#include "net/http.h"

#include <stdbool.h>

struct server;
struct request;

struct server_config {
    void (*handle)(struct request *r, void *arg);
    /* After server_stop, when the time of requests in progress is over: called about once a second
     * by server_run's thread until there are none, to end what they wait for. Or NULL. */
    void (*hurry)(void *arg);
    void *arg;
    unsigned max_active;      /* requests at a time, default 2048 */
    unsigned max_connections; /* default 20000 */
    uint64_t head_timeout_ns; /* from the first byte of a head to its end, default 10 s */
    uint64_t idle_timeout_ns; /* between requests, default 75 s */
    uint64_t stall_ns;        /* without progress in a body or an answer, default 60 s */
    uint64_t place_ns;        /* for the place of a request that ends soon, default 2 s */
};

struct server *server_new(const struct server_config *c, struct pd_err *e);
/* Serves what comes in on a listening socket, which it takes over. May be called several times. */
int server_listen(struct server *s, int fd, struct tls_context *tls, struct pd_err *e);
/* Makes a listening socket: "127.0.0.1:8090", "[::1]:8090" or "unix:/path" (mode 0660; the file of
 * a server that is no more is replaced). "fd:3" is one that is listening already, such as systemd
 * hands over. */
int server_bind(const char *address, struct pd_err *e);
/* How many listening sockets systemd has handed to this process: fd:3, fd:4 ... */
unsigned server_inherited(void);
/* Runs until server_stop. */
int server_run(struct server *s, struct pd_err *e);
/* Stops accepting; requests in progress have until the deadline, then their connections are shut
 * down: reads and writes fail, and poll tells POLLRDHUP. server_run returns when every handler has.
 * Safe to call from any thread or signal handler, and again with another deadline. */
void server_stop(struct server *s, deadline d);
/* For handlers that would go on for long: 1 once server_stop was called. */
int server_is_stopping(const struct server *s);
/* After server_run, or instead of it. NULL is fine. */
void server_free(struct server *s);

struct server_stats {
    uint64_t connections, active, accepted, requests, refused;
};
void server_get_stats(struct server *s, struct server_stats *ret);

/* ---- what a handler does with a request ---- */

struct request {
    struct http_head head;
    struct slice path;  /* of the target, still percent-encoded */
    struct slice query; /* behind '?', or empty */
    char id[17];        /* for logs and X-Request-Id */
    struct conn *conn;
    struct server *server;
    int status;                  /* of the answer, once it was begun; 0 before */
    uint64_t sent;               /* bytes of the answer's body */
    void *user;                  /* the handler's */
    struct request_state *state; /* the server's */
};

/* The body, whole, at most `max` bytes (PD_TOO_LARGE). Sends 100 Continue if asked for. A body that
 * stops coming is PD_TIMEOUT (answered with 408), one that ends too soon PD_LOST, one that is
 * malformed PD_INVALID. What a handler leaves is read up to 64 KiB, or the connection is closed. */
int request_read_all(struct request *r, struct buf *out, size_t max, struct pd_err *e);
/* The body, in pieces: bytes, 0 at its end, -1. */
ssize_t request_read(struct request *r, void *out, size_t size, struct pd_err *e);
/* Moves the whole body into a pipe (which is made non-blocking) or file, at most `max` bytes;
 * zero-copy where possible. PD_LOST with e->sys == EPIPE: nobody reads the pipe any more. */
int request_read_into(struct request *r, int fd, uint64_t max, uint64_t *ret_len, struct pd_err *e);
/* How long the request waits, without progress, for a client that does not read or send: at first
 * the server's stall_ns, which REQUEST_PATIENCE means as well. With 0 an answer that the socket
 * does not take at once is broken off, and whoever finds all places taken waits a little for this
 * one. */
#define REQUEST_PATIENCE UINT64_MAX
void request_set_patience(struct request *r, uint64_t ns);
/* 1 when the client has gone away. To wait for that: poll conn_fd(r->conn) for POLLRDHUP. */
int request_is_abandoned(struct request *r);

/* One answer with its body. `type` is the media type. */
int reply(struct request *r, int status, const char *type, const void *body, size_t len);
/* Adds a header to the answer that is about to begin. One whose name is no token or whose value has
 * a control byte is left out, and so are those that the server writes: Content-Length,
 * Transfer-Encoding, Connection, Keep-Alive, Upgrade, X-Request-Id. */
void reply_header(struct request *r, const char *name, const char *value);
/* Begins an answer whose body follows by reply_write and friends: `length` bytes, or
 * REPLY_CHUNKED. To a HEAD, and with status 204 or 304, bytes that are written go nowhere. The head
 * goes out with the first bytes, or by reply_flush: whoever has to wait for them calls that first.
 * `type` may be NULL. */
#define REPLY_CHUNKED UINT64_MAX
int reply_begin(struct request *r, int status, const char *type, uint64_t length, struct pd_err *e);
bool reply_is_waiting(const struct request *r); /* the head has not gone out yet */
int reply_flush(struct request *r, struct pd_err *e);
int reply_write(struct request *r, const void *data, size_t len, struct pd_err *e);
int reply_write_pipe(struct request *r, int pipe, uint64_t len, struct pd_err *e);
int reply_write_file(struct request *r, int file, uint64_t offset, uint64_t len, struct pd_err *e);
int reply_end(struct request *r, struct pd_err *e);
/* The answer cannot be completed: the connection will be closed so that the client notices. */
void reply_abort(struct request *r);
/* The same with a reset, for clients that take an early end of the stream for an error of the
 * protocol and a reset for what it is. What is still on its way to them is lost. */
void reply_reset(struct request *r);
/* {"error":{"code","message","details":{}}} with the status of the code. Of PD_INTERNAL and
 * PD_PROTOCOL only the code and the request id are told. When an answer has begun, it is broken
 * off instead, and -1 is returned. */
int reply_error(struct request *r, const struct pd_err *e);
/* The same with details: a JSON object, as text. */
int reply_error_details(struct request *r, const struct pd_err *e, const char *details);

/* Answers 101 for a WebSocket (the head was checked) and leaves the connection to the handler
 * until it returns. Bytes that came with the head are read first by request_raw_read. `protocol` is
 * for Sec-WebSocket-Protocol, or NULL. A proxy sets Sec-WebSocket-Accept by reply_header; else it
 * is made here. To write: conn_write(r->conn). */
int request_upgrade(struct request *r, const char *protocol, struct pd_err *e);
ssize_t request_raw_read(struct request *r, void *out, size_t size, deadline d, struct pd_err *e);
int request_raw_pending(struct request *r); /* bytes that poll does not tell of */
