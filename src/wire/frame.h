/* frame: one message between daemon, keeper, builder and init, on a SOCK_SEQPACKET socket.
 *
 * A frame is a fixed head, at most WIRE_PAYLOAD_MAX bytes and at most WIRE_FDS_MAX descriptors. The
 * kernel keeps frames whole and in order; what this module adds is that every length is checked,
 * that descriptors are never lost (they are closed when the frame is refused), and that no call
 * blocks without a deadline.
 *
 * The protocol is restartable. Every request carries a 128-bit id and the epoch of its sender: a
 * repeated id gets the answer of the first time, and a request of an older epoch is dropped. */
#pragma once

#include "base/buf.h"
#include "base/clock.h"

#include <stdint.h>

struct pd_err;

#define WIRE_PAYLOAD_MAX (128u << 10)
#define WIRE_FDS_MAX     6u
#define WIRE_MAGIC       0x314b4450u /* "PDK1" */

struct wire_id {
    uint8_t bytes[16];
};

struct wire_id wire_id_new(void);
int wire_id_equal(struct wire_id a, struct wire_id b);
/* 32 hex digits and a NUL. */
void wire_id_text(struct wire_id id, char out[33]);

struct wire_head {
    uint32_t magic;
    uint16_t type; /* enum wire_type, msg.h */
    uint16_t fd_count;
    uint32_t len; /* of the payload */
    uint32_t flags;
    uint64_t epoch;
    struct wire_id id;
};

/* A received frame. `payload` is owned by the frame and ends with a NUL that is not counted. The
 * descriptors are owned by the frame until frame_take_fd. */
struct frame {
    struct wire_head head;
    struct buf payload;
    int fds[WIRE_FDS_MAX];
    unsigned fd_count;
};

#define FRAME_INIT ((struct frame){.payload = BUF_INIT(WIRE_PAYLOAD_MAX + 1)})

/* Closes what was not taken, frees the payload. */
void frame_done(struct frame *f);
#define auto_frame __attribute__((cleanup(frame_done))) struct frame
/* Closes what was not taken and keeps the memory: for a loop that receives many frames. */
void frame_reset(struct frame *f);
/* Makes room for the longest frame, so that each takes one call to receive: for a loop. 0 or -1. */
int frame_reserve(struct frame *f);
/* Gives up descriptor i: the caller owns it. -1 when there is none. */
int frame_take_fd(struct frame *f, unsigned i);

/* Connects to whoever listens for frames at this path. A descriptor, or -1 with errno. */
int wire_connect(const char *path);
/* The same, but one who does not accept is waited for so long at most (ns): then errno is EAGAIN.
 */
int wire_connect_within(const char *path, uint64_t patience);

/* Checks the head of a datagram of `len` bytes in all that came with `fds` descriptors. Pure. */
int wire_head_check(struct wire_head head, size_t len, unsigned fds, struct pd_err *e);

/* Sends a frame. Waits for room until the deadline (0: never waits). Returns 0, -EAGAIN when the
 * deadline passed, -EPIPE when the peer is gone, or another -errno. The descriptors stay the
 * caller's. */
int wire_send(int sock, const struct wire_head *head, const struct buf *payload, const int *fds,
              unsigned fd_count, deadline d);

/* Receives a frame into *ret (which must be FRAME_INIT or frame_done). Returns 1, or 0 when the
 * peer has closed, or -1. A peer that breaks the format (truncated data or descriptors, wrong
 * magic or length) is PD_PROTOCOL: the caller ends the connection. The deadline passing is
 * PD_TIMEOUT. PD_CAPACITY: a good frame whose descriptors this process has no room for; they are
 * gone, ret->head says what it was (type 0: no memory, and the frame is still there). */
int wire_recv(int sock, struct frame *ret, deadline d, struct pd_err *e);

/* The next frame, which stays where it is; its descriptors are copies. Never waits: PD_TIMEOUT. */
int wire_peek(int sock, struct frame *ret, struct pd_err *e);
/* Takes the next frame away unread. */
void wire_skip(int sock);

/* As wire_recv, for a peer that has no business sending descriptors, such as a jail: a frame with
 * one is PD_PROTOCOL and stays where it is. To receive it, even only to close it, would hand the
 * caller to the sender: closing a socket with SO_LINGER waits as long as the sender likes, and
 * nothing but a signal ends that. */
int wire_recv_plain(int sock, struct frame *ret, deadline d, struct pd_err *e);
