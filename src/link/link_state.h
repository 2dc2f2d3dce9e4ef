/* link_state: what the parts of link share, and nobody else sees. */
#pragma once

#include "base/clock.h"
#include "link/link.h"
#include "link/ring.h"

/* What goes to the peer. The ring is what was put in and not yet taken by the peer. */
struct half_out {
    struct ring ring;
    uint64_t sent;      /* on this connection: the next offset to send */
    uint64_t sent_most; /* on any */
    uint64_t credit;
    bool ended;    /* nothing more is put in */
    bool end_said; /* on this connection */
    bool done;     /* the peer wants no more, or there is no such way */
};

/* What comes from the peer. The ring is what has come and was not yet taken here. */
struct half_in {
    struct ring ring;
    uint64_t window, grown; /* how far credit goes beyond what was taken; where it last grew */
    uint64_t credit;        /* told */
    bool end_known;         /* the ring's end is the stream's */
    bool done;              /* all was taken, nobody reads, or there is no such way */
    bool say_taken, say_credit, say_stop;
};

struct channel {
    uint32_t id;
    uint64_t opened_by; /* the keeper's: number of the message that brings it to the box */
    struct half_out out;
    struct half_in in;
};

/* A message that waits. */
struct note {
    struct note *next;
    uint64_t number;
    size_t len;
    uint8_t payload[];
};
struct notes {
    struct note *first, **last;
    unsigned count;
    size_t bytes;
};

struct link {
    enum link_role role;
    /* Rings of what goes out, and windows of what comes in beyond the first. What was promised to
     * the peer must be there when it comes, so its memory is counted with the promise. */
    struct ring_budget budget;
    struct ring_budget promised; /* where the rings of what comes in are counted; has no bound */

    /* Of this connection. */
    bool connected, resume_said, resumed, broken;
    uint64_t heard, said; /* when */
    struct buf in;        /* a frame that has begun */
    struct buf out;
    size_t out_at; /* sent up to here */
    bool say_ack, say_ping, say_pong, say_lease, bye_said;
    uint64_t pong;

    enum link_bye bye, farewell;
    char bye_text[LINK_TEXT_MAX + 1];
    uint32_t lease;

    struct notes outbox;  /* not acknowledged */
    uint64_t put, posted; /* numbers: the last message; the last on this connection */
    uint64_t peer_got;    /* the last that the peer surely has */
    struct notes inbox;   /* not handled */
    uint64_t got, handled;

    struct channel *channels; /* by rising id */
    unsigned count, room;
    uint32_t highest;
    unsigned turn; /* whose bytes are sent first */
};

/* channel.c */
struct channel *channel_find(const struct link *l, uint32_t id);
/* Appends one; its id must be the highest. NULL without memory. */
struct channel *channel_add(struct link *l, uint32_t id, unsigned ways);
/* Removes it if neither end has anything to say of it any more. Pointers to channels are invalid
 * afterwards. */
void channel_settle(struct link *l, struct channel *c);
/* The same for all of them. */
void channels_settle(struct link *l);
/* The peer has no use for the channel: what was kept is freed. */
void channel_drop_out(struct channel *c);
void channel_drop_in(struct link *l, struct channel *c);

/* notes.c */
int notes_add(struct notes *n, uint64_t number, const void *payload, size_t len);
/* Frees those up to a number. */
void notes_drop(struct notes *n, uint64_t number);

/* link_in.c: a whole frame of the peer's. */
int link_on_frame(struct link *l, const struct link_head *h, const uint8_t *payload,
                  struct pd_err *e);
/* link_out.c: appends frames to `out` until there is enough to send. */
void link_fill(struct link *l, uint64_t now);
