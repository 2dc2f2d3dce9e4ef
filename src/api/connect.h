/* connect: envelopes, for who puts several of them into one write. What every handler of the E2B
 * door uses is in e2b.h.
 *
 *     size_t at = connect_put_begin(&out, 0);
 *     ... append the message to `out` ...
 *     connect_put_end(&out, at);
 *
 * Overflow shows in the buf, as always. */
#pragma once

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

struct call;
struct pd_err;

#define CONNECT_STREAM_TYPE   "application/connect+json"
#define CONNECT_COMPRESSED    1u
#define CONNECT_LAST          2u
#define CONNECT_ENVELOPE_HEAD 5u
#define CONNECT_MESSAGE_MAX   (8u << 20)

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
    int is_over;
};
#define CONNECT_READER_INIT                                                                        \
    ((struct connect_reader){.bytes = BUF_INIT(CONNECT_MESSAGE_MAX + (64u << 10))})
int connect_next(struct call *c, struct connect_reader *r, const void **ret_text, size_t *ret_len,
                 struct pd_err *e);
/* Is this the type that the request's route needs? */
int connect_check_type(struct call *c, struct pd_err *e);
