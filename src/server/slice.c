/* A thread of the server that a command has woken has microseconds of work: to pass on what the
 * command wrote, or how it ended. On the processor where the command runs it would wait until the
 * command sleeps or ends, for as long as that has not used up its slice. Whose slice is shorter
 * goes first. It gets no larger share by that: shares follow from weights, and a short slice only
 * ends sooner.
 *
 * Linux has it for ordinary threads since 6.12, as the runtime of sched_setattr; before that the
 * call changes nothing. Threads inherit it, so it is set once, before there are any. */
#include "server/serve.h"

#include "base/banned.h"

/* The C library has these in a header of its own, which does not go together with the second. */
#include <linux/sched.h>
#include <linux/sched/types.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_NS 100000u /* the shortest there is; the usual one is 0.7 ms to 2.8 ms */

void slice_shorten(void)
{
    struct sched_attr a = {.size = sizeof a};

    /* Whoever has chosen another policy for the server keeps it. */
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) < 0 || a.sched_policy != SCHED_NORMAL)
        return;
    a.sched_runtime = SLICE_NS;
    (void)syscall(SYS_sched_setattr, 0, &a, 0);
}
