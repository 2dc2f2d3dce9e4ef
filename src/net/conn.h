/* conn: a stream socket, plain or TLS, with deadlines and no surprises.
 *
 * Sockets are non-blocking; a call that waits takes a deadline. One thread uses a conn at a time.
 */
#pragma once

#include "base/clock.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pd_err;
struct tls_context;

struct conn;

/* Takes over the descriptor (also on failure). `tls` NULL: plain. For TLS the handshake is done by
 * the first read or write. */
struct conn *conn_new(int fd, struct tls_context *tls, struct pd_err *e);
void conn_free(struct conn *c); /* NULL is fine */

int conn_fd(const struct conn *c);
int conn_is_tls(const struct conn *c);
/* Bytes that were read from the kernel already (TLS): poll would not tell of them. */
int conn_pending(struct conn *c);

/* Reads what is there, waiting for the first byte. Bytes, 0 at the end, -1 (PD_TIMEOUT, PD_LOST).
 */
ssize_t conn_read(struct conn *c, void *out, size_t size, deadline d, struct pd_err *e);
/* Writes all of it. The deadline is for each stretch without progress: `stall_ns` from now on,
 * renewed whenever a byte goes out. */
int conn_write(struct conn *c, const void *data, size_t len, uint64_t stall_ns, struct pd_err *e);
/* Moves exactly `len` bytes from a pipe (zero-copy where the conn is plain). The pipe's end before
 * that is PD_LOST. */
int conn_write_pipe(struct conn *c, int pipe, uint64_t len, uint64_t stall_ns, struct pd_err *e);
/* Moves bytes [offset, offset + len) of a regular file. */
int conn_write_file(struct conn *c, int file, uint64_t offset, uint64_t len, uint64_t stall_ns,
                    struct pd_err *e);
/* 1 when the peer has closed or reset, without consuming what it has sent. */
int conn_is_gone(struct conn *c);

/* Server side certificate and key from PEM files; client side with the system's CAs or `ca_file`.
 */
struct tls_context *tls_server_new(const char *cert_file, const char *key_file, struct pd_err *e);
struct tls_context *tls_client_new(const char *ca_file, struct pd_err *e);
void tls_context_free(struct tls_context *t);
