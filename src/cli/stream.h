/* stream: moves a command's standard streams between its pipes (or its terminal) and ours.
 *
 * Nothing here blocks: descriptors that came from outside may be shared with other programs, so
 * they are never made non-blocking; instead they are polled, and no more is written at once than
 * poll promises. Back-pressure is a full pipe: memory does not grow with the output. */
#pragma once

#include "base/buf.h"
#include "base/clock.h"

#include <poll.h>
#include <stdint.h>

/* One direction: reads from `from`, writes to `to` or keeps the bytes. -1 = over. */
struct stream {
    int from, to;
    int from_is_ours, to_is_ours; /* close when over */
    uint8_t *chunk;
    uint32_t have, sent;
    uint64_t total;
    struct capture *capture; /* instead of `to` */
};

/* The part of an output that a result keeps: the first half and the last half of the limit. */
struct capture {
    struct buf head;
    uint8_t *tail;
    uint64_t tail_size, total;
};

#define CAPTURE_MAX (1u << 20)

int capture_init(struct capture *c);
void capture_add(struct capture *c, const uint8_t *data, size_t len);
int capture_truncated(const struct capture *c);
/* The whole, or head, a line that says how much is missing, and tail. */
void capture_text(const struct capture *c, struct buf *out);

int stream_init(struct stream *s, int from, int to);
/* Adds what it waits for to the poll set; returns how many entries (0, 1). */
unsigned stream_poll(const struct stream *s, struct pollfd *p);
/* Moves what is possible after poll said so. */
void stream_move(struct stream *s, short events);
/* Moves everything that is still in the pipe, waiting for `to` until the deadline. */
void stream_drain(struct stream *s, deadline d);
void stream_close(struct stream *s);
int stream_is_over(const struct stream *s);
