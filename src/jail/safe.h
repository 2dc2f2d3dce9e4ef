/* safe: a process beside a keeper of boxes elsewhere that outlives it, so that the next keeper
 * finds them.
 *
 * It keeps records for its keeper, each with descriptors: who the keeper is, each box (the owner's
 * end of its control socket, a pidfd of what stands for it here) and what clients have stashed.
 * When the keeper is gone whoever connects next, and has the same user, is told all of them and is
 * the keeper from then on. As long as nobody does the descriptors stay open, so the boxes go on;
 * after the lease it ends, and they see that nobody owns them. One that was given up, so that
 * another has its place, ends soon. It reads nothing that a box says. */
#pragma once

#include "base/clock.h"

#include <sys/stat.h>

/* Where it listens. The file is its own as long as it has this number: the kernel gives that to
 * nobody else while the listener is open. */
struct safe_place {
    const char *path;
    ino_t number;
    int listener;
};

/* Keeps records for the keeper at the other end of `keeper`, then for those who come to its place.
 * `lease`: ns that it waits for one. Ends at once when a keeper has left no box, and within a
 * second when it is alone and its place is not its own any more: nobody would find it. */
_Noreturn void safe_main(const struct safe_place *place, int keeper, uint64_t lease);
