/* http_stream: a connection that was a request and is a stream of bytes from then on, both ways, as
 * docker's exec and attach make it ("hijacked"). Also over TLS. */
#pragma once

#include "base/clock.h"

#include <stddef.h>
#include <sys/types.h>

struct buf;
struct http;
struct http_stream;
struct pd_err;

/* Asks for it by a POST with a body of JSON. `h` is the stream's own from now on, also when this
 * fails. NULL: as http_ask; PD_PROTOCOL with the status when the server answers with something
 * else. */
struct http_stream *http_stream_open(struct http *h, const char *target, const char *body,
                                     deadline t, struct pd_err *e);
/* The same with a request of the caller's, head and body. The head of the answer, whatever it says,
 * is appended to `ret_head`, which is the caller's; what comes behind it is read from the stream.
 */
struct http_stream *http_stream_ask(struct http *h, const struct buf *request, struct buf *ret_head,
                                    deadline t, struct pd_err *e);
void http_stream_free(struct http_stream *s); /* NULL is fine */
/* What a request says as Host. */
const char *http_stream_host(const struct http *h);

/* To be polled for reading, and for writing after a -EAGAIN of http_stream_write. */
int http_stream_fd(const struct http_stream *s);
/* Neither waits. How many bytes, 0 at the end of the stream, -EAGAIN or -EIO. What was received may
 * be more than poll knows of: it is read until -EAGAIN. */
ssize_t http_stream_read(struct http_stream *s, void *out, size_t size);
ssize_t http_stream_write(struct http_stream *s, const void *data, size_t len);
/* Waits until poll sees one of these events. */
int http_stream_wait(const struct http_stream *s, short events, deadline t, struct pd_err *e);

/* The head of an answer. Pure: how long it is when it is complete, 0 when it is not, or -1 when it
 * is none. */
#define HTTP_STREAM_HEAD_MAX 8192u
int http_head_read(const void *data, size_t len, int *ret_status);
