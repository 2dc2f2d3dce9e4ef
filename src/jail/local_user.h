/* local_user: the processes of a local box, by the uid that the box has for itself.
 *
 * A box has no pid namespace, and where there are no cgroups its processes leave init's reach by
 * killing it: the uid is what they cannot leave. */
#pragma once

#include <sys/types.h>

/* Kills all of them, which must be of a range that nobody else has, and waits until they are gone:
 * 0, or -EBUSY after five seconds. The uid above is taken, too, for the killer. */
int local_user_end(uid_t uid);
