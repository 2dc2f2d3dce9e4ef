/* nobody: for processes that read what strangers send and need no power over anything. */
#pragma once

struct pd_err;

/* Becomes, with root, a user that nobody else is while the process lives, without groups; without
 * root there is no other user to be had. For good: nothing that is executed gets more, and nobody
 * but root can look into the process, also not by a core dump. */
int nobody_become(struct pd_err *e);
