/* link: one end of a link, whose other end is in a box on another machine. A pure state machine: it
 * has no descriptors and no clock, takes bytes and gives bytes.
 *
 * A link carries messages (frames of the wire) and channels (streams of bytes, which stand for the
 * descriptors of a frame). It outlives its connections: after link_down and link_up with the next
 * connection both ends say how far they are, and go on there. Nothing that was put in at one end is
 * lost or comes out twice at the other, however often and wherever connections break:
 *
 *   - a message is kept until the other end has handled it, and has a number; at most LINK_AHEAD of
 *     them and LINK_AHEAD_BYTES are on their way
 *   - a byte is kept until the other end has said TAKEN: it is stored where it outlives that end
 *   - a channel is known until both ends have heard how each of its ways has ended
 *
 * Only the keeper's end opens channels. Memory: a ring for each way of a channel, 16 KiB growing to
 * 1 MiB, together within the budget (the least of each comes on top). A peer that breaks a rule,
 * sends more than it may or speaks of channels that never were makes link_take fail; the caller
 * hangs up. */
#pragma once

#include "link/link_frame.h"

#include <stdbool.h>

struct link;
struct pd_err;

#define LINK_AHEAD       256u
#define LINK_AHEAD_BYTES (512u << 10)
#define LINK_QUIET       (15 * NS_PER_S) /* then a PING: balancers end quiet connections */
#define LINK_SILENCE     (45 * NS_PER_S) /* then the connection counts as broken */

/* NULL without memory. `budget` is in bytes. */
struct link *link_new(enum link_role role, size_t budget);
void link_free(struct link *l); /* NULL is fine */

/* ---- connections ---- */

/* A connection whose greeting is done begins; one that was there is over. */
void link_up(struct link *l, uint64_t now);
/* It is over. What was half received is forgotten, and comes again. */
void link_down(struct link *l);
/* Both ends have said where they are. */
bool link_is_up(const struct link *l);

/* Takes all of these bytes, cut anywhere. -1: PD_PROTOCOL, PD_CAPACITY (no memory), or PD_LOST when
 * the peer said BYE, whose reason link_farewell has. */
int link_take(struct link *l, const uint8_t *data, size_t len, uint64_t now, struct pd_err *e);
enum link_bye link_farewell(const struct link *l); /* 0: none */
/* Bytes to be sent now, or NULL. They stay until link_sent says how many are gone. */
const uint8_t *link_give(struct link *l, uint64_t now, size_t *ret_len);
void link_sent(struct link *l, size_t len, uint64_t now);
/* When link_tick must be called next. It is -1, PD_TIMEOUT, when the peer was silent for too long.
 */
deadline link_deadline(const struct link *l);
int link_tick(struct link *l, uint64_t now, struct pd_err *e);

/* Says BYE as soon as it can; nothing comes behind it. */
void link_bye(struct link *l, enum link_bye why, const char *text);
/* The keeper's end: told to the box at each beginning. The box's end: what it was told, or 0. */
void link_set_lease(struct link *l, uint32_t seconds);
uint32_t link_lease(const struct link *l);

/* ---- messages ---- */

/* Is there room for a message of this length? Where there is none, it must be kept back. */
bool link_has_room(const struct link *l, size_t len);
/* Sends a message. The channels of the keeper's are those of link_open since its last one; all of
 * them must be in it. -1 without room or memory. */
int link_send(struct link *l, const struct link_msg *m);
/* The next message in order, or false. It stays the next, and its bytes stay, until link_handled.
 */
bool link_next(struct link *l, struct link_msg *ret);
void link_handled(struct link *l);
/* Has the peer received all that was sent with link_send so far? */
bool link_is_heard(const struct link *l);

/* ---- channels ---- */

/* The keeper's end: a new channel for the next message. 0 when there are too many. */
uint32_t link_open(struct link *l, unsigned ways);

/* Puts bytes in; returns how many had room. None when the peer wants no more. */
size_t link_write(struct link *l, uint32_t channel, const void *data, size_t len);
/* How many bytes could be put in at once; more may have room afterwards. */
size_t link_room(const struct link *l, uint32_t channel);
/* No more bytes will be put in. */
void link_end(struct link *l, uint32_t channel);
/* The peer wants no more bytes: nobody reads there, or it has all of them and their end. */
bool link_is_unwanted(const struct link *l, uint32_t channel);

/* The bytes that have come and are not taken, as far as they lie in a row; NULL when there are
 * none. */
const uint8_t *link_read(const struct link *l, uint32_t channel, size_t *ret_len);
/* So many of them are stored for good. */
void link_taken(struct link *l, uint32_t channel, size_t len);
/* How many were taken from the beginning. UINT64_MAX of a channel that is over. */
uint64_t link_offset(const struct link *l, uint32_t channel);
/* All bytes were taken, and there are no more. */
bool link_is_over(const struct link *l, uint32_t channel);
/* Nobody reads here any more. */
void link_stop(struct link *l, uint32_t channel);

/* ---- an end that lives on in another process ---- */

/* Appends what the keeper's end must keep before it says more, so that one that is made of it can
 * go on: all but the bytes of channels and the connection. */
void link_keep(const struct link *l, struct buf *out);
/* Makes a new end what link_keep has told of; *ret_used of the bytes were its. -1: they are not
 * whole, or there is no memory. Then link_place for each channel, before link_up. */
int link_recall(struct link *l, const uint8_t *data, size_t len, size_t *ret_used);
/* Where a channel was: so much was taken of what came; what was put in and may still be asked for
 * begins at `start`, and comes by link_put_again. */
void link_place(struct link *l, uint32_t channel, uint64_t taken, uint64_t start);
/* It has been put in once, so it has room whatever the budget says. -1 without memory. */
int link_put_again(struct link *l, uint32_t channel, const void *data, size_t len);
/* The lowest offset of what was put in that the peer may still ask for. */
uint64_t link_held(const struct link *l, uint32_t channel);

/* How many channels there are. */
unsigned link_channels(const struct link *l);
