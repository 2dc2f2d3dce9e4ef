/* link_frame: what travels on a link, the byte stream between this machine and a box elsewhere.
 *
 * A frame is a head of LINK_HEAD bytes and at most LINK_PAYLOAD_MAX bytes behind it. Numbers are
 * little-endian, because the two ends may be different machines. Pure: readers check everything
 * that can be checked without knowing what was said before, and whatever they refuse is
 * PD_PROTOCOL; the peer is cut off then.
 *
 *   type    from      number              payload
 *   HELLO   both      -                   struct link_hello; the first frame of each end
 *   PROOF   both      -                   32 bytes (proof.h), the keeper's first
 *   RESUME  both      last MSG received   struct link_place of each channel, by rising id
 *   MSG     both      1, 2, 3 ...         struct link_msg: a frame of the wire, and channels
 *   ACK     both      last MSG handled    -
 *   DATA    sender    offset of byte 0    1 to LINK_DATA_MAX bytes
 *   CREDIT  receiver  offset              -; DATA may go up to here
 *   TAKEN   receiver  offset              -; below this it is stored. LINK_LAST: and that was all
 *   END     sender    final offset        -
 *   STOP    receiver  -                   -; nobody reads any more
 *   PING    both      anything            -
 *   PONG    both      the PING's          -
 *   LEASE   keeper    seconds             -; how long the box waits for an owner
 *   BYE     both      enum link_bye       a text for people, without a NUL */
#pragma once

#include "base/buf.h"
#include "wire/frame.h"

#include <stdint.h>

struct pd_err;

#define LINK_VERSION     1u
#define LINK_HEAD        20u
#define LINK_PAYLOAD_MAX (132u << 10)
#define LINK_DATA_MAX    (64u << 10)
#define LINK_TEXT_MAX    200u
#define LINK_REFS_MAX    WIRE_FDS_MAX
/* So many at once; a RESUME must have room for all of them. */
#define LINK_CHANNELS_MAX 2048u

enum link_type {
    LINK_HELLO = 1,
    LINK_PROOF,
    LINK_RESUME,
    LINK_MSG,
    LINK_ACK,
    LINK_DATA,
    LINK_CREDIT,
    LINK_TAKEN,
    LINK_END,
    LINK_STOP,
    LINK_PING,
    LINK_PONG,
    LINK_LEASE,
    LINK_BYE,
    LINK_TYPE_COUNT
};

#define LINK_LAST 1u /* flag of TAKEN */

struct link_head {
    uint32_t len; /* of the payload */
    uint8_t type, flags;
    uint32_t channel;
    uint64_t number;
};
void link_head_put(struct buf *out, const struct link_head *h);
int link_head_read(const uint8_t in[LINK_HEAD], struct link_head *ret, struct pd_err *e);

enum link_role { LINK_KEEPER = 1, LINK_BOX };

#define LINK_NONCE      32u
#define LINK_HELLO_SIZE 68u
struct link_hello {
    uint16_t version;
    uint16_t role;
    uint32_t features; /* none yet: bits of later versions are not an error */
    struct wire_id box;
    uint8_t nonce[LINK_NONCE];
    uint64_t epoch; /* of the keeper's end; the box tells the one that it has seen, or 0 */
};
void link_hello_put(struct buf *out, const struct link_hello *h);
int link_hello_read(const uint8_t in[LINK_HELLO_SIZE], struct link_hello *ret, struct pd_err *e);

/* Where the receiving half of a channel stands. Of a half that there is not, all is zero. */
struct link_place {
    uint32_t channel;
    uint32_t done; /* 1: it wants nothing more, be it that it has all or that nobody reads */
    uint64_t received, taken, credit;
};
#define LINK_PLACE_SIZE 32u
void link_place_put(struct buf *out, const struct link_place *p);
int link_place_read(const uint8_t in[LINK_PLACE_SIZE], struct link_place *ret, struct pd_err *e);

/* Ways of a channel. The bytes of a command's input go away from the keeper. */
#define LINK_AWAY 1u
#define LINK_BACK 2u

/* A channel that a message speaks of. In one of the keeper's, `ways` are those of a new channel,
 * whose id is higher than all before; without ways there is no channel and the id is 0. In one of
 * the box's it has no ways and `offset` is how far the channel must be before the message counts.
 * What `kind` means is settled between those who use the link. */
struct link_ref {
    uint32_t channel;
    uint8_t ways, kind;
    uint64_t offset;
};
struct link_msg {
    struct link_ref refs[LINK_REFS_MAX];
    unsigned ref_count;
    const uint8_t *body; /* belongs to whom the bytes belong that it was read from */
    size_t len;
};
void link_msg_put(struct buf *out, const struct link_msg *m);
int link_msg_read(const uint8_t *in, size_t len, struct link_msg *ret, struct pd_err *e);

enum link_bye {
    LINK_BYE_ENDING = 1, /* the owner has no use for the box any more */
    LINK_BYE_VERSION,
    LINK_BYE_WRONG_BOX,
    LINK_BYE_SUPERSEDED, /* another link of the same owner, or another owner */
    LINK_BYE_REFUSED,    /* a proof was wrong */
    LINK_BYE_LEASE,
    LINK_BYE_COUNT
};
void link_bye_put(struct buf *out, enum link_bye why, const char *text);
