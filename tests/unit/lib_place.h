/* lib_place: may the tests of libpaddock be left out? Only where no jail can be made at all: an
 * ordinary user without user namespaces. Everywhere else a library that makes no sandbox has
 * failed. */
#pragma once

#include "unit.h"

#include <paddock.h>

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static inline bool user_namespaces_work(void)
{
    int status = -1;
    pid_t child = child_fork();

    if (child == 0)
        _exit(unshare(CLONE_NEWUSER) < 0);
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* Makes one sandbox as a trial. 0 when that worked; 0 with the reason in `why_not` where none can
 * be had; -1, which ends the group, when there should have been one. */
static inline int sandboxes_try(struct paddock *lib, char *why_not, size_t size)
{
    struct paddock_error e = {0};
    struct paddock_sandbox *s = paddock_create(lib, NULL, &e);

    if (s) {
        paddock_end(s, 0, NULL);
        paddock_release(s);
        return 0;
    }
    print_message("# no sandbox: %s: %s\n", e.code, e.message);
    if (geteuid() == 0 || user_namespaces_work())
        return -1;
    snprintf(why_not, size, "no user namespaces for ordinary users: %s", e.message);
    return 0;
}

/* The program that the library starts: the release of this checkout. */
static inline int program_choose(void)
{
    if (!getenv("PADDOCK_PROGRAM"))
        setenv("PADDOCK_PROGRAM", UNIT_PADDOCK, 1);
    if (access(getenv("PADDOCK_PROGRAM"), X_OK) == 0)
        return 0;
    print_message("# %s is not built; `make build` does\n", getenv("PADDOCK_PROGRAM"));
    return -1;
}
