/* Rings. A byte of offset o is at data[o % room], which is why room is a power of two and bytes are
 * moved only when it grows. */
#include "link/ring.h"

#include "base/banned.h"

#include <stdlib.h>
#include <string.h>

void ring_free(struct ring *r)
{
    free(r->data);
    r->data = NULL;
    r->budget->used -= r->room;
    r->room = 0;
}

const uint8_t *ring_peek(const struct ring *r, uint64_t offset, size_t *ret_len)
{
    if (offset >= r->end || offset < r->start)
        return NULL;

    size_t at = (size_t)(offset & (r->room - 1));
    uint64_t len = r->end - offset;
    *ret_len = len < r->room - at ? (size_t)len : r->room - at;
    return r->data + at;
}

/* Copies `len` bytes to where the offset has its place. */
static void store(uint8_t *data, size_t room, uint64_t offset, const uint8_t *from, size_t len)
{
    size_t at = (size_t)(offset & (room - 1));
    size_t first = len < room - at ? len : room - at;

    memcpy(data + at, from, first);
    memcpy(data, from + first, len - first);
}

/* Doubles until `want` bytes have room, or as far as it goes. */
static void grow(struct ring *r, uint64_t want)
{
    size_t room = r->room ? r->room : RING_LEAST;
    while (room < want && room < RING_MOST &&
           r->budget->used - r->room + 2 * room <= r->budget->most)
        room *= 2;
    if (room == r->room)
        return;

    uint8_t *data = malloc(room);
    if (!data)
        return;
    size_t len;
    const uint8_t *from;
    for (uint64_t at = r->start; (from = ring_peek(r, at, &len)); at += len)
        store(data, room, at, from, len);

    free(r->data);
    r->data = data;
    r->budget->used += room - r->room;
    r->room = room;
}

size_t ring_put(struct ring *r, const void *data, size_t len)
{
    uint64_t held = r->end - r->start;
    if (held + len > r->room)
        grow(r, held + len);

    size_t left = r->room - (size_t)held;
    size_t n = len < left ? len : left;
    if (!n)
        return 0;
    store(r->data, r->room, r->end, data, n);
    r->end += n;
    return n;
}

void ring_drop(struct ring *r, uint64_t offset)
{
    r->start = offset;
    if (r->start == r->end)
        ring_free(r);
}
