/* The table of a stand-in's commands: few, and looked up by id. */
#include "box/stand_in_commands.h"

#include "base/banned.h"

#include <stdlib.h>

void commands_done(struct commands *c)
{
    free(c->all);
    *c = (struct commands){.all = NULL};
}

struct command *commands_find(const struct commands *c, struct wire_id id)
{
    for (unsigned i = 0; i < c->count; i++)
        if (wire_id_equal(c->all[i].id, id))
            return &c->all[i];
    return NULL;
}

struct command *commands_add(struct commands *c, struct wire_id id)
{
    if (c->count == c->room) {
        unsigned room = c->room ? 2 * c->room : 16;
        struct command *more = realloc(c->all, room * sizeof *more);
        if (!more)
            return NULL;
        c->all = more;
        c->room = room;
    }

    struct command *one = &c->all[c->count++];
    *one = (struct command){.id = id};
    return one;
}

void commands_remove(struct commands *c, struct command *one)
{
    *one = c->all[--c->count];
}

bool command_is_complete(const struct command *c, const struct link *l)
{
    for (unsigned i = 0; i < c->mark_count; i++)
        if (link_offset(l, c->marks[i].channel) < c->marks[i].offset)
            return false;
    return true;
}
