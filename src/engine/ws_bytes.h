/* ws_bytes: a WebSocket as a byte_stream: messages are pieces of the bytes, and mean nothing else.
 */
#pragma once

struct byte_stream;
struct pd_err;
struct ws_stream;

/* `s` is the stream's own from now on, also when there is no memory (NULL). */
struct byte_stream *ws_bytes(struct ws_stream *s, struct pd_err *e);
