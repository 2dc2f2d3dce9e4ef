/* dialled: the connection of somebody who dialled the box: the head of a WebSocket (RFC 6455), then
 * its frames. Pure: it takes bytes and gives bytes.
 *
 * Whoever reaches the port may send anything. One target is answered with a WebSocket, which nobody
 * guesses; every other request has the same short answer, and nothing is told of the box. What a
 * client can make it remember is bounded by DIALLED_HEAD_MAX, then by DIALLED_MESSAGE_MAX. */
#pragma once

#include "net/ws.h"

#include <stdbool.h>
#include <stdint.h>

#define DIALLED_HEAD_MAX    (16u << 10)
#define DIALLED_MESSAGE_MAX (64u << 10)
#define DIALLED_FRAME       (32u << 10) /* of ours */
#define DIALLED_TARGET      64u

struct dialled {
    const char *target; /* borrowed */
    bool is_open, over; /* it is a WebSocket; nothing more will come */
    struct buf head;    /* until it is open */
    struct ws_decoder decoder;
    struct buf out; /* to be sent; the caller takes away what is gone */
};

/* `target`: what a client has to ask for. */
void dialled_begin(struct dialled *d, const char *target);
void dialled_end(struct dialled *d);
/* Takes from data[0..len): *ret_used of them. 1: a message, whose payload is *ret until the next
 * call; 0: all was taken; -1: it is over. In each case there may be something in `out` that is to
 * be sent first. */
int dialled_next(struct dialled *d, const uint8_t *data, size_t len, size_t *ret_used,
                 const uint8_t **ret, size_t *ret_len);
/* Puts a message of at most DIALLED_FRAME bytes into `out`. -1 without memory. */
int dialled_say(struct dialled *d, const uint8_t *data, size_t len);
