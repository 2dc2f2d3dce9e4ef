/* streams: the near ends of commands' pipes, sockets and terminals in a box, each joined to a
 * channel of the link. Nothing here waits. */
#pragma once

#include "base/clock.h"
#include "link/link.h"

#include <poll.h>

struct pd_err;
struct keep;

struct stream {
    uint32_t channel;
    int fd; /* -1: closed */
    struct wire_id exec;
    bool terminal;
    bool drops;         /* what has no room there is dropped, as a pipe that does not block does */
    bool back;          /* the channel has a way back: known until the keeper has all of it */
    bool reads, writes; /* from the descriptor to the link; from the link to the descriptor */
    uint64_t put;       /* bytes that were read from the descriptor */
    int place;          /* in `keep`, if there is one */
    bool begun;         /* with `keep`: a record has it, and its descriptor does not block */
    deadline again;     /* a read failed, and is tried again then; or DEADLINE_NONE */
};

struct streams {
    struct stream *all;
    unsigned count, room;
    struct keep *keep;  /* what outlives this process, or NULL */
    struct buf closing; /* descriptors that the record of `keep` still speaks of */
};
void streams_done(struct streams *s);

/* Makes the descriptors that a message of the keeper's asks for, and the streams to them. They are
 * the caller's, `m->ref_count` of them. -1 when one cannot be made: then there are none, and the
 * channels are told that nobody is there. */
int streams_open(struct streams *s, struct link *l, const struct link_msg *m, struct wire_id exec,
                 int ret_fds[LINK_REFS_MAX], struct pd_err *e);
/* Joins a descriptor to a channel, and owns it from now on. `ways` are those of the bytes:
 * LINK_BACK from the descriptor to the link, LINK_AWAY from the link to it. -1 without memory: it
 * is closed. */
int streams_add(struct streams *s, uint32_t channel, int fd, unsigned ways, struct wire_id exec);
/* The same for one that a record tells of. -1 without memory. */
int streams_recall(struct streams *s, struct link *l, const struct stream *st);
/* The record has all streams: descriptors of those that are over are closed, the new ones begin,
 * and what the box has taken is kept no longer. */
void streams_recorded(struct streams *s, const struct link *l);
/* No command has come of an EXEC: its streams are closed. */
void streams_close(struct streams *s, struct link *l, struct wire_id exec);

/* How far each stream of a command must be before its end may be told: to where it has written
 * until now. Returns how many. */
unsigned streams_mark(const struct streams *s, const struct link *l, struct wire_id exec,
                      struct link_ref ret[LINK_REFS_MAX]);
/* Sets the size of a command's terminal; false when it has none. */
bool streams_resize(const struct streams *s, struct wire_id exec, unsigned rows, unsigned cols);

/* When streams are to be moved even if poll sees nothing; or DEADLINE_NONE. */
deadline streams_deadline(const struct streams *s);
/* What poll is to look for: fills `ret` in the order of the streams. */
void streams_poll(struct streams *s, const struct link *l, struct pollfd *ret);
/* Moves what can be moved; `polled` is as streams_poll left it, or NULL: all are tried. Streams
 * that are over are closed. */
void streams_move(struct streams *s, struct link *l, const struct pollfd *polled);
