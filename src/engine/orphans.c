/* A look is one list by the state directory's label, short of patience: a request of the keeper may
 * come meanwhile. A container with a root that has run is only killed, because its files belong to
 * the root; one that has never run has no files of its own. */
#include "engine/orphans.h"

#include "base/banned.h"
#include "engine/docker_client.h"
#include "engine/door.h"

#include <stdbool.h>

#define WAIT_LEAST NS_PER_S
#define WAIT_MOST  (300 * NS_PER_S)
#define PATIENCE   (2 * NS_PER_S)

struct look {
    struct docker *docker;
    const struct doors *doors;
    const char *instance;
    bool found;
};

/* Does somebody say that the container is a box of his? */
static bool is_known(const struct look *look, const struct docker_container *c)
{
    return !strcmp(c->owner, look->instance) ? door_is_there(look->doors, c->box)
                                             : doors_are_held(look->doors, c->owner);
}

void orphans_suspect(struct orphans *o)
{
    o->wait = WAIT_LEAST;
    o->next = deadline_in(WAIT_LEAST);
}

static int end_orphan(void *context, const struct docker_container *c, struct pd_err *e)
{
    struct look *look = context;
    bool has_run = strcmp(c->status, "created") != 0;
    if (is_known(look, c) || (c->root[0] && has_run && !c->running))
        return 0;

    deadline t = deadline_in(PATIENCE);
    (void)e;
    look->found = true;
    if (c->root[0] && has_run)
        (void)docker_kill(look->docker, c->id, t, NULL);
    else
        (void)docker_remove(look->docker, c->id, t, NULL);
    return 0;
}

void orphans_end(struct orphans *o, struct docker *d, const struct doors *doors, const char *store,
                 const char *instance)
{
    struct look look = {.docker = d, .doors = doors, .instance = instance};
    int r = docker_list(d, LABEL_STORE, store, end_orphan, &look, deadline_in(PATIENCE), NULL);

    o->wait = r < 0 || look.found ? WAIT_LEAST : o->wait * 2;
    if (o->wait > WAIT_MOST)
        o->wait = WAIT_MOST;
    o->next = deadline_in(o->wait);
}
