/* conn: a stream, plain or TLS, with deadlines and no surprises.
 *
 * Descriptors are non-blocking; a call that waits takes a deadline. One thread uses a conn at a
 * time. Making one switches SIGPIPE off for the process (if it was at its default): splice,
 * sendfile and OpenSSL have no flag against it. */
#pragma once

#include "base/clock.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct buf;
struct pd_err;
struct tls_context;

struct conn;

/* Takes over the descriptor (also on failure). `tls` NULL: plain. For TLS the handshake is done by
 * the first read or write. */
struct conn *conn_new(int fd, struct tls_context *tls, struct pd_err *e);
/* The same from two descriptors, for example two pipes: one to read from, one to write to. */
struct conn *conn_new_pair(int in, int out, struct pd_err *e);
void conn_free(struct conn *c); /* NULL is fine */
/* Of a TLS client, before the first read or write: the name or address that the certificate must
 * be for. Without it a client's handshake fails. */
int conn_set_host(struct conn *c, const char *host, struct pd_err *e);

/* Before the first read: bytes of the peer that somebody has read already, which come first. */
int conn_unread(struct conn *c, const void *data, size_t len, struct pd_err *e);

int conn_fd(const struct conn *c);
int conn_is_tls(const struct conn *c);
/* Bytes that were read from the kernel already (TLS): poll would not tell of them. */
int conn_pending(struct conn *c);
/* 1 when the peer is on this machine: a Unix socket, a pair, or a loopback address. */
int conn_is_local(const struct conn *c);
/* The peer's address for logs: "127.0.0.1:1234", "[::1]:1234" or "unix". */
#define CONN_PEER_SIZE 56
void conn_peer(const struct conn *c, char out[CONN_PEER_SIZE]);

/* Reads what is there, waiting for the first byte. Bytes, 0 at the end, -1: PD_TIMEOUT (the conn is
 * still good), PD_LOST; of a TLS client PD_DENIED when the certificate is not trusted. */
ssize_t conn_read(struct conn *c, void *out, size_t size, deadline d, struct pd_err *e);
/* Writes all of it. The deadline is for each stretch without progress: `stall_ns` from now on,
 * renewed whenever a byte goes out. */
int conn_write(struct conn *c, const void *data, size_t len, uint64_t stall_ns, struct pd_err *e);
/* The same from several places at once; `iov` is changed. */
int conn_writev(struct conn *c, struct iovec *iov, unsigned count, uint64_t stall_ns,
                struct pd_err *e);
/* Moves exactly `len` bytes from a pipe (zero-copy where the conn is plain). The pipe's end before
 * that is PD_LOST. The stall is for either side. */
int conn_write_pipe(struct conn *c, int pipe, uint64_t len, uint64_t stall_ns, struct pd_err *e);
/* Moves what is there into a pipe, at most `max` bytes, waiting for the first byte and for room
 * (zero-copy where the conn is plain). The pipe is made non-blocking. Bytes, 0 at the conn's end,
 * -1: PD_LOST with e->sys == EPIPE when nobody reads the pipe. */
ssize_t conn_read_pipe(struct conn *c, int pipe, size_t max, uint64_t stall_ns, struct pd_err *e);
/* Moves bytes [offset, offset + len) of a regular file. */
int conn_write_file(struct conn *c, int file, uint64_t offset, uint64_t len, uint64_t stall_ns,
                    struct pd_err *e);
/* 1 when the peer has closed or reset, without consuming what it has sent. */
int conn_is_gone(struct conn *c);
/* Says that nothing more will be written; reading goes on. */
void conn_end_writing(struct conn *c);

/* Server side certificate and key from PEM files; client side with the system's CAs or `ca_file`.
 * TLS 1.2 or newer. A context may be used by any number of threads and conns, and outlives them. */
struct tls_context *tls_server_new(const char *cert_file, const char *key_file, struct pd_err *e);
/* The same from PEM in memory, for one connection: there is nothing to come back to. */
struct tls_context *tls_server_of(const struct buf *cert, const struct buf *key, struct pd_err *e);
struct tls_context *tls_client_new(const char *ca_file, struct pd_err *e);
void tls_context_free(struct tls_context *t);
