/* Makes a namespace that has no process: the caller moves into a new one, opens it, and moves back.
 * The descriptor keeps it. */
#include "jail/nsfd.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>

int nsfd_make(int proc, int flag, const char *name, int (*furnish)(void), struct pd_err *e)
{
    char path[40];
    snprintf(path, sizeof path, "thread-self/ns/%s", name);
    auto_fd before = openat(proc, path, O_RDONLY | O_CLOEXEC);
    if (before < 0)
        return pd_fail_sys(e, "open the %s namespace", name);
    if (unshare(flag) < 0)
        return pd_fail_sys(e, "make a %s namespace", name);

    int r = furnish ? furnish() : 0;
    auto_fd made = openat(proc, path, O_RDONLY | O_CLOEXEC);
    int sys = r < 0 ? -r : errno;
    if (setns(before, flag) < 0)
        abort(); /* going on in a jail's namespace would be worse */

    if (r < 0 || made < 0) {
        errno = sys;
        return pd_fail_sys(e, "set up a %s namespace", name);
    }

    return fd_take(&made);
}
