/* connect: Connect RPC with JSON, as the E2B door speaks it: one object each way, or one envelope
 * in and a stream of them out. An envelope is a byte of flags, four of length, and a message.
 * Several can be put into one write:
 *
 *     size_t at = connect_put_begin(&out, 0);
 *     ... append the message to `out` ...
 *     connect_put_end(&out, at);
 *
 * Overflow shows in the buf, as always. */
#pragma once

#include "base/buf.h"
#include "net/http.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct call;
struct fields;
struct pd_err;

#define CONNECT_STREAM_TYPE   "application/connect+json"
#define CONNECT_COMPRESSED    1u
#define CONNECT_LAST          2u
#define CONNECT_ENVELOPE_HEAD 5u
#define CONNECT_MESSAGE_MAX   (8u << 20)

/* ---- a request and its answer ---- */

/* The request's message: the body, or the one envelope of a stream. Members that nobody asks for
 * are no error, as in every protobuf: a newer client may say more. */
int connect_read(struct call *c, struct buf *text, struct fields *f, struct pd_err *e);
/* Connect-Timeout-Ms; 0: none. */
int connect_timeout(struct call *c, uint64_t *ret_ns, struct pd_err *e);
/* Keepalive-Ping-Interval; 90 s unless given. */
uint64_t connect_keepalive_ns(const struct call *c);
/* A unary answer; NULL is {}. */
int connect_answer(struct call *c, const struct buf *json);
/* A stream: begin, any number of messages, end (with the error, or NULL). After connect_begin a
 * handler may also return -1 with the error: the door ends the stream with it. */
int connect_begin(struct call *c, struct pd_err *e);
int connect_end(struct call *c, const struct pd_err *why);
/* Pure: takes one envelope apart. 1 with the message and how long it was, 0 when more bytes are
 * needed, -1. */
int connect_envelope(const void *data, size_t len, size_t max, uint8_t *ret_flags,
                     struct slice *ret_message, size_t *ret_used, struct pd_err *e);
/* The answer to an error, for the door: unary with its status, or the stream's last envelope. */
int connect_fail(struct call *c, const struct pd_err *e);

/* ---- envelopes ---- */

size_t connect_put_begin(struct buf *out, uint8_t flags);
void connect_put_end(struct buf *out, size_t at);
/* The envelope that ends a stream: with the error, or NULL. */
void connect_put_last(const struct call *c, struct buf *out, const struct pd_err *why);

/* Sends envelopes as a part of a stream that was begun, or, with `whole`, as all of an answer that
 * was not: one write then. */
int connect_write(struct call *c, const struct buf *envelopes, int whole, struct pd_err *e);
/* The body of a client's stream, one message after the other: 1 with the text (valid until the next
 * call), 0 at the end, -1. */
struct connect_reader {
    struct buf bytes;
    size_t used; /* of the message before */
    bool is_over;
};
#define CONNECT_READER_INIT                                                                        \
    ((struct connect_reader){.bytes = BUF_INIT(CONNECT_MESSAGE_MAX + (64u << 10))})
int connect_next(struct call *c, struct connect_reader *r, const void **ret_text, size_t *ret_len,
                 struct pd_err *e);
/* Is this the type that the request's route needs? */
int connect_check_type(struct call *c, struct pd_err *e);
