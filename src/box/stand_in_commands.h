/* stand_in_commands: what a stand-in knows of the commands of its box. */
#pragma once

#include "link/link.h"
#include "wire/msg.h"

struct command {
    struct wire_id id;
    bool quiet;    /* its start is not to be told */
    bool unlisted; /* the SYNC that is being answered has not got to it */
    bool told;     /* its end was, in this epoch */
    bool has_empty;
    struct msg_exited end; /* end.exited: it has ended */
    struct msg_empty empty;
    struct link_ref marks[LINK_REFS_MAX]; /* how far its output must be first */
    unsigned mark_count;
};

struct commands {
    struct command *all;
    unsigned count, room;
};
void commands_done(struct commands *c);

struct command *commands_find(const struct commands *c, struct wire_id id);
/* NULL without memory. */
struct command *commands_add(struct commands *c, struct wire_id id);
/* Pointers to commands are invalid afterwards. */
void commands_remove(struct commands *c, struct command *one);
/* Is all that it has written in the daemon's pipes? */
bool command_is_complete(const struct command *c, const struct link *l);
