/* greeting: the beginning of a link. Both ends say HELLO at once; the keeper proves first that it
 * knows the box's key, then the box does. Only then is a connection worth anything: a box may be
 * connected to by whoever is in it or on its network. Pure; the caller has a deadline for it. */
#pragma once

#include "link/proof.h"

#include <stddef.h>

struct pd_err;

struct link_identity {
    enum link_role role;
    struct wire_id box;
    uint64_t epoch; /* of the keeper's end; of the box: that of the keeper it has met, or 0 */
    uint8_t key[LINK_KEY];
};

enum greeting_state { GREETING_HELLO, GREETING_PROOF, GREETING_DONE, GREETING_REFUSED };

/* The longest of the frames that belong to a greeting. */
#define GREETING_FRAME_MAX (LINK_HEAD + LINK_TEXT_MAX)

struct greeting {
    const struct link_identity *who;
    enum greeting_state state;
    uint8_t own[LINK_HELLO_SIZE], peer[LINK_HELLO_SIZE];
    uint64_t peer_epoch; /* valid in GREETING_DONE */
    uint8_t in[GREETING_FRAME_MAX];
    size_t in_len;
    struct buf out; /* to be sent; the caller clears what it has sent */
};

/* Fills *g; its HELLO is in `out`. The nonce must never have been used before. `who` must outlive
 * it. */
void greeting_begin(struct greeting *g, const struct link_identity *who,
                    const uint8_t nonce[LINK_NONCE]);
void greeting_end(struct greeting *g);

/* Takes bytes from the peer, and tells how many: those behind the greeting are the link's. Returns
 * 1 when the peer is who it should be, 0 when there is more to come, or -1: PD_PROTOCOL (no such
 * peer), PD_DENIED (a wrong proof), PD_UNSUPPORTED (another version), PD_CONFLICT (another box,
 * another owner), PD_LOST (it said BYE). What is in `out` then is worth sending before hanging up.
 */
int greeting_take(struct greeting *g, const uint8_t *data, size_t len, size_t *ret_used,
                  struct pd_err *e);
