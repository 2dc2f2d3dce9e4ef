/* letters_stream: the link of a box by a bucket of Google Cloud Storage, this machine's end
 * (box/letters.h). */
#pragma once

#include "base/clock.h"
#include "box/letters.h"

struct broker_config;
struct byte_stream;
struct gcs;
struct pd_err;

/* The key of a box's letters: it follows from one that is made at first use and kept in the
 * keeper's state directory. */
int letters_root(const char *state_dir, const char *prefix, uint8_t ret[LETTERS_KEY],
                 struct pd_err *e);
/* Has the box said that it is there? 1, 0, or -1 with *e. */
int letters_are_awaited(struct gcs *g, const char *prefix, const uint8_t root[LETTERS_KEY],
                        deadline t, struct pd_err *e);

/* How a process of its own opens the bucket, with nothing of its parent's; NULL when it cannot. */
typedef struct gcs *letters_open(const struct broker_config *c);
/* Calls the box: a stream, whose bytes a process of its own brings and fetches. NULL with *e.
 * *last_call is the number of the caller's last call, or 0: the next is higher, also where the
 * bucket has forgotten that one. It is written only when the box was called. */
struct byte_stream *letters_stream(struct gcs *g, const char *prefix,
                                   const uint8_t root[LETTERS_KEY], uint32_t *last_call,
                                   letters_open *open, const struct broker_config *c, deadline t,
                                   struct pd_err *e);
