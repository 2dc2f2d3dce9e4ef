/* ws_stream: a WebSocket that a broker dials, over TLS or plain, by the same libcurl as its other
 * requests (http.h). Its binary messages are a stream of bytes, or are taken one by one.
 *
 * The head of the answer is judged strictly: status 101, the accept key of ours, no extension, no
 * subprotocol but one that was offered. Frames are masked, pings are answered, messages are bounded
 * by WS_STREAM_MESSAGE; text is refused. Nothing here waits but ws_stream_open. */
#pragma once

#include "base/clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct http;
struct pd_err;
struct ws_stream;

#define WS_STREAM_MESSAGE (256u << 10)

struct ws_request {
    const char *target;         /* path and query, encoded; begins with "/" */
    const char *const *headers; /* "Name: value", up to a NULL; or NULL */
    const char *protocols;      /* subprotocols, as the header lists them; NULL: none */
};

/* What a server answered that did not want to. */
struct ws_refusal {
    int status;     /* 0: there was no answer */
    char text[400]; /* the beginning of its body, or "" */
};

/* `h` is the stream's own from now on, also when this fails. NULL: as http_ask; PD_INVALID: a
 * header that is none; PD_PROTOCOL: another answer than 101, of which `ret` (or NULL) tells, or one
 * that does not belong to our key. */
struct ws_stream *ws_stream_open(struct http *h, const struct ws_request *r, deadline t,
                                 struct ws_refusal *ret, struct pd_err *e);
void ws_stream_free(struct ws_stream *s); /* NULL is fine */
/* The subprotocol that the server chose, or "". */
const char *ws_stream_protocol(const struct ws_stream *s);

/* The cookies that the server set with its 101, as a Cookie line has them; "" when it set none. */
const char *ws_stream_cookies(const struct ws_stream *s);

/* To be polled for reading, and for writing after a -EAGAIN of a write. */
int ws_stream_fd(const struct ws_stream *s);

/* The payload of messages, one behind the other. How many bytes, 0 when the server has closed,
 * -EAGAIN, or -EIO when the connection broke or the server broke a rule. It is read until -EAGAIN:
 * poll does not see what was received already. */
ssize_t ws_stream_read(struct ws_stream *s, void *out, size_t size);
/* The same by messages, for protocols whose messages have bounds: 1 with the next one, which stays
 * until the next call; else as above. Not to be mixed with ws_stream_read. */
int ws_stream_next(struct ws_stream *s, const uint8_t **ret, size_t *ret_len);
/* Sends one message of as many of the bytes as fit into one, and returns how many; or -EAGAIN: to
 * be called again with the same bytes when there is room; or -EIO. With no bytes it goes on with
 * what the stream has to say by itself, such as a pong: 0 when that is gone. */
ssize_t ws_stream_write(struct ws_stream *s, const void *data, size_t len);
/* Is there anything left to be sent? */
bool ws_stream_wants_write(const struct ws_stream *s);
/* Why the server has closed: code and words of its close frame, or "". */
const char *ws_stream_farewell(const struct ws_stream *s);
