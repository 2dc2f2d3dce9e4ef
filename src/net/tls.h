/* tls: what conn needs of OpenSSL. Private to net. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

struct pd_err;
struct tls_context;
struct tls;

/* Does not take over the descriptor. */
struct tls *tls_new(struct tls_context *t, int fd, struct pd_err *e);
/* Says good-bye to the peer if that is possible at once. NULL is fine. */
void tls_free(struct tls *t);
int tls_set_host(struct tls *t, const char *host, struct pd_err *e);
int tls_pending(struct tls *t);
/* Before the first read: bytes that come before those of the descriptor. */
int tls_unread(struct tls *t, int fd, const void *data, size_t len, struct pd_err *e);

/* Each does what can be done without waiting: bytes, 0 at the end (tls_read), or -1. Then *ret_want
 * is the poll event to wait for before the same call is made again, or 0 for a failure that is
 * final, told in *e. */
ssize_t tls_read(struct tls *t, void *out, size_t size, short *ret_want, struct pd_err *e);
ssize_t tls_write(struct tls *t, const void *data, size_t len, short *ret_want, struct pd_err *e);
void tls_end_writing(struct tls *t);
