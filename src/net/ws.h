/* ws: WebSocket frames (RFC 6455) as bytes, strictly. No input or output; extensions are not
 * spoken.
 *
 * The decoder takes bytes as they come and gives whole messages: fragments are put together up to a
 * limit, text is UTF-8, frames of clients are masked and those of servers are not. */
#pragma once

#include "base/buf.h"
#include "net/http.h"
#include "net/utf8.h"

struct pd_err;

#define WS_HEADER_MAX  14
#define WS_CONTROL_MAX 125u
#define WS_KEY_SIZE    25 /* Sec-WebSocket-Key, with its NUL */
#define WS_ACCEPT_SIZE 29 /* Sec-WebSocket-Accept, with its NUL */

enum ws_opcode {
    WS_CONTINUATION = 0,
    WS_TEXT = 1,
    WS_BINARY = 2,
    WS_CLOSE = 8,
    WS_PING = 9,
    WS_PONG = 10
};

/* Why a connection is closed. */
enum ws_code {
    WS_NORMAL = 1000,
    WS_GOING_AWAY = 1001,
    WS_PROTOCOL = 1002,
    WS_UNSUPPORTED = 1003,
    WS_NO_CODE = 1005, /* is never sent: the peer gave none */
    WS_NOT_UTF8 = 1007,
    WS_POLICY = 1008,
    WS_TOO_LARGE = 1009,
    WS_INTERNAL = 1011
};

struct ws_message {
    enum ws_opcode opcode; /* never WS_CONTINUATION */
    const uint8_t *data; /* inside the decoder, until it is called again. Of a close: the reason */
    size_t len;
    unsigned code; /* of a close: as sent, or WS_NO_CODE */
};

struct ws_decoder {
    int from_client;       /* frames must be masked, or must not */
    struct buf message;    /* what has been put together; its maximum is the limit */
    enum ws_opcode opcode; /* of the open message, or WS_CONTINUATION */
    struct utf8 text;      /* of the open message */
    uint8_t header[WS_HEADER_MAX];
    unsigned header_len; /* bytes of the header seen so far */
    int in_payload;      /* the header is complete */
    uint64_t left;       /* of the frame's payload */
    unsigned mask_at;    /* which byte of the mask is next */
    uint8_t mask[4];
    uint8_t control[WS_CONTROL_MAX];
    unsigned control_len;
    int given;      /* the message was returned: forget it at the next call */
    int closed;     /* a close has come: what follows is ignored */
    unsigned error; /* the code to close with after a failure, else 0 */
};

/* A message of more than message_max bytes is refused. */
void ws_decoder_init(struct ws_decoder *d, int from_client, size_t message_max);
void ws_decoder_done(struct ws_decoder *d);
/* Consumes from data[0..len) up to the end of one message. 1: *ret is a message; 0: all of it was
 * consumed, and no message is complete; -1: PD_PROTOCOL, PD_TOO_LARGE or PD_INTERNAL (no memory):
 * close with d->error; it stays that way. *ret_used: bytes consumed. Call again with the rest
 * until it returns 0. After a close nothing more comes: bytes are consumed and ignored. */
int ws_decode(struct ws_decoder *d, const void *data, size_t len, size_t *ret_used,
              struct ws_message *ret, struct pd_err *e);

/* Writes the header of a frame with `len` bytes of payload and returns its length. A mask (clients)
 * makes the payload the caller's to mask. */
size_t ws_header_encode(uint8_t out[WS_HEADER_MAX], enum ws_opcode opcode, int final, uint64_t len,
                        const uint8_t *mask);
/* Appends a whole message in one frame. `mask`: four bytes from getrandom (clients), or NULL. -1:
 * no room, or a control message of more than 125 bytes; then nothing is appended. */
int ws_encode(struct buf *out, enum ws_opcode opcode, const void *data, size_t len,
              const uint8_t *mask);
/* Appends a close; WS_NO_CODE sends none. A reason that is too long is cut between characters. */
int ws_close_encode(struct buf *out, unsigned code, const char *reason, const uint8_t *mask);

/* The Sec-WebSocket-Accept for a Sec-WebSocket-Key. -1 with PD_INVALID: the key is not 16 bytes in
 * base64. A client compares it with what the server said. */
int ws_accept(struct slice key, char ret[WS_ACCEPT_SIZE], struct pd_err *e);
/* The Sec-WebSocket-Key of 16 random bytes. */
void ws_key(const uint8_t random[16], char ret[WS_KEY_SIZE]);
