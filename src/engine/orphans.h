/* orphans: containers of this state directory that are nobody's box.
 *
 * An engine may make a container long after the broker has given up waiting, looked for it and
 * found nothing. Such a one has no door: each box has one from before its container until after it.
 * When the broker and its keeper have ended meanwhile, there is no directory of their doors either,
 * so the brokers of any later keeper know that it is nobody's.
 * The list of containers is looked at again from time to time: a second after something went
 * wrong, then after twice that, up to five minutes. */
#pragma once

#include "base/clock.h"

struct docker;
struct doors;

struct orphans {
    deadline next; /* when they are to be looked for */
    uint64_t wait;
};

/* Something may be made that nobody waits for. */
void orphans_suspect(struct orphans *o);
/* Looks for them, and ends those that there are. What fails is tried at the next look. `store`: the
 * state directory's label; `instance`: of the keeper whose doors these are. */
void orphans_end(struct orphans *o, struct docker *d, const struct doors *doors, const char *store,
                 const char *instance);
