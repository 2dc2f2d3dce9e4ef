/* stand_in_state: what the parts of a stand-in share, and nobody else sees. */
#pragma once

#include "box/stand_in.h"
#include "box/stand_in_commands.h"
#include "box/streams.h"

/* A frame that was looked at and not yet taken. */
struct frame_mark {
    struct wire_head head;
    uint64_t sum; /* of its payload */
};

struct stand_in {
    const struct stand_in_config *config;
    struct link *link;
    struct streams streams;
    struct commands commands;
    struct buf facts; /* the payload of FACTS, or empty */
    uint64_t epoch;   /* of the daemon */
    bool syncing;     /* a list is not complete */
    struct wire_id sync_id;
    bool full; /* the control socket: ask poll for room */

    int fd;      /* the connection, or -1 */
    bool greets; /* it has not proved itself */
    bool was_up; /* a link was, once */
    struct greeting greeting;
    deadline until; /* of the greeting */
    deadline next;  /* attempt to connect */
    uint64_t pause;

    struct frame in;
    bool marked; /* a frame of the daemon's was heard that is still there */
    struct frame_mark mark;
    struct buf record;
    struct pollfd *polls;
    size_t polls_room;
    bool over;
    struct pd_err *why;
};

/* stand_in_kept.c. All of them do nothing where nothing is kept. */

/* What is known now outlives this process. Before anything is said to the box. -1 when there is no
 * room for it. */
int stand_in_record(struct stand_in *s);
/* What a dead one knew. -1 when that is not whole, or there is no memory. */
int stand_in_recall(struct stand_in *s);
struct frame_mark frame_mark_of(const struct frame *f);
bool frame_is_marked(const struct frame_mark *m, const struct frame *f);
