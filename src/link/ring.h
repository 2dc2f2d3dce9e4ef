/* ring: bytes of a stream between two offsets, in memory that grows as it is needed.
 *
 * `start` and `end` are offsets in the stream, so they only rise. Memory comes in powers of two,
 * and every byte of it is counted in a budget that rings share; one of RING_LEAST is always given.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define RING_LEAST (16u << 10)
#define RING_MOST  (1u << 20)

struct ring_budget {
    size_t used, most;
};

struct ring {
    struct ring_budget *budget;
    uint8_t *data;
    size_t room; /* 0, or RING_LEAST ... RING_MOST */
    uint64_t start, end;
};

/* Gives the memory back; the offsets stay. */
void ring_free(struct ring *r);
/* Appends as much as there is or can be room for, and returns how much that was. */
size_t ring_put(struct ring *r, const void *data, size_t len);
/* Where the bytes from an offset between start and end are, and how many lie there in a row; NULL
 * when there are none. */
const uint8_t *ring_peek(const struct ring *r, uint64_t offset, size_t *ret_len);
/* Forgets what is below an offset between start and end. An empty one keeps no memory. */
void ring_drop(struct ring *r, uint64_t offset);
