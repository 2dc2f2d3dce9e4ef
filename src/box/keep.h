/* keep: what a stand-in must not lose when it is killed, in memory that outlives it (guard.h).
 *
 * Two things are there. A *record* of all that it knows, which is replaced as a whole: a stand-in
 * says nothing to the box that is not in its record. And for each stream a *place*, which tells how
 * many bytes were read from its descriptor, with the bytes, and how many were written to it. The
 * kernel moves these bytes and says how many they were in one call, or leaves them where they can
 * be counted: so a place is right whenever its process is killed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct buf;
struct keep;

/* Bytes of a stream that were read: more than a ring of the link holds, so this is never what makes
 * it wait. A power of two. */
#define KEEP_ROOM (2u << 20)

/* NULL with errno. It has descriptors of its own and is there for this process and its children. */
struct keep *keep_new(void);
void keep_free(struct keep *k);
/* How many records there were. */
uint64_t keep_count(const struct keep *k);

/* Replaces the record. -1 when it is too long: then it is the old one. */
int keep_record(struct keep *k, const struct buf *record);
const uint8_t *keep_recorded(const struct keep *k, size_t *ret_len);

/* A place for a new stream, or -1. What it had before is forgotten. */
int keep_place(struct keep *k);
/* No stream has it any more: it is given away again behind the next record. */
void keep_leave(struct keep *k, int place);

/* Reads at most `len` bytes from a descriptor that does not block. What came is at *ret, until
 * bytes from `start`, the lowest that may still be asked for, have come round. As read(2). */
ssize_t keep_read(struct keep *k, int place, int fd, uint64_t start, size_t len,
                  const uint8_t **ret);
/* Nothing below `start` will be asked for any more: its memory is given back, and whoever claims
 * the place begins there. */
void keep_forget(struct keep *k, int place, uint64_t start);
/* Writes to a descriptor that does not block. As write(2). */
ssize_t keep_write(struct keep *k, int place, int fd, const void *data, size_t len);

/* So many were written in another way; twice, if it is killed in between. */
void keep_wrote(struct keep *k, int place, size_t len);

/* ---- after a death ---- */

/* Finds out what the dead one's last calls have done. No place is anybody's. Closes every
 * descriptor from `lowest` on but its own and `fds`. */
void keep_begin_again(struct keep *k, int lowest, const int *fds, unsigned count);
struct keep_place {
    uint64_t written, start, end; /* what was read and is still there lies between these two */
};
/* The place is a stream's again. */
struct keep_place keep_claim(struct keep *k, int place);
/* As far as they lie in a row; NULL when there are none. */
const uint8_t *keep_bytes(const struct keep *k, int place, uint64_t from, size_t *ret_len);
