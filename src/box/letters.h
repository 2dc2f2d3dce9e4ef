/* letters: the bytes of a link as objects of a bucket, for boxes that nobody can connect to and
 * that can connect to nobody (docs/backends.md#by-bucket). Both ends run letters_carry; what a
 * bucket is to them they say by `struct letters_store`.
 *
 *   PREFIX.here        the box, once: it is there
 *   PREFIX.CALL.call   the keeper's end: another connection begins, numbers from 1 up
 *   PREFIX.CALL.d.N    down, from the keeper to the box, N from 1 up; empty: the end of it
 *   PREFIX.CALL.u.N    up
 *
 * **Whoever else reads or writes the bucket** learns how much is said, and can only stop it: a
 * letter is sealed (ChaCha20-Poly1305) with a key of its connection's own, which follows from the
 * box's key, from the number of the call and from what the keeper's end drew for it. Each way and
 * number has a nonce of its own, so no letter stands for another, and none twice. A box takes calls
 * in the order of their numbers alone, each once.
 *
 * A letter is removed when it was read. Its first four bytes say how many follow: one that is still
 * being written is not there yet. */
#pragma once

#include "base/buf.h"
#include "base/clock.h"

#include <stdbool.h>
#include <stdint.h>

#define LETTERS_KEY    32u
#define LETTERS_SALT   16u
#define LETTERS_PROOF  32u
#define LETTERS_CALL   (LETTERS_SALT + LETTERS_PROOF) /* content of a call */
#define LETTERS_NONCE  12u
#define LETTERS_TAG    16u
#define LETTERS_PREFIX 192u
#define LETTERS_NAME   (LETTERS_PREFIX + 40u) /* with its NUL */
#define LETTERS_PIECE  (256u << 10)           /* the most that one says */
#define LETTERS_ROOM   (4u + LETTERS_PIECE + LETTERS_TAG)

enum letters_way { LETTERS_DOWN = 'd', LETTERS_UP = 'u' };

/* ---- names and keys: pure ---- */

void letters_here_name(char out[LETTERS_NAME], const char *prefix);
void letters_call_name(char out[LETTERS_NAME], const char *prefix, uint32_t call);
void letters_name(char out[LETTERS_NAME], const char *prefix, uint32_t call, enum letters_way way,
                  uint32_t number);
/* The call that a name is of, in whatever place; 0 when it is none of this prefix. */
uint32_t letters_call_of(const char *prefix, const char *name);

/* What the box writes to show that it is there. */
void letters_here(const uint8_t root[LETTERS_KEY], uint8_t ret[LETTERS_PROOF]);
/* The content of a call, and the key of its letters. */
void letters_call(const uint8_t root[LETTERS_KEY], uint32_t call, const uint8_t salt[LETTERS_SALT],
                  uint8_t ret[LETTERS_CALL], uint8_t ret_key[LETTERS_KEY]);
/* The key of a call's letters; false when the content is not this call's, and then *ret_key is as
 * it was. */
bool letters_call_read(const uint8_t root[LETTERS_KEY], uint32_t call, const void *data, size_t len,
                       uint8_t ret_key[LETTERS_KEY]);

/* ---- a connection ---- */

/* Seals in place and tells the tag; or opens in place, and false says that the tag is not this. */
typedef bool letters_crypt(bool seal, const uint8_t key[LETTERS_KEY],
                           const uint8_t nonce[LETTERS_NONCE], uint8_t *data, size_t len,
                           uint8_t tag[LETTERS_TAG]);

struct letters_store {
    void *context;
    /* The whole of it behind what `out` has: 1; 0 where there is none; -1 when it failed. */
    int (*get)(void *context, const char *name, struct buf *out);
    /* 0, or -1. Saying it again is fine. */
    int (*put)(void *context, const char *name, const void *data, size_t len);
    void (*drop)(void *context, const char *name);
    letters_crypt *crypt;
};

struct letters {
    const struct letters_store *store;
    const char *prefix;
    uint32_t call;
    uint8_t key[LETTERS_KEY];
    enum letters_way out; /* the other one comes in */
    int near;             /* a stream socket */
    uint64_t silence;     /* ns without a letter after which it is over; 0: however long */
    bool follows;         /* a call with the next number ends this one */
};

/* Copies until one side ends. The socket stays open. Asks the store more and more rarely while
 * nothing is said, up to once a second. */
void letters_carry(const struct letters *l);
