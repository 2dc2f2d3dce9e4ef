/* How a process gives up what it is: its user, its groups, and with that every capability; then the
 * ways by which it could get something back or be looked into. */
#include "base/nobody.h"

#include "base/banned.h"
#include "base/err.h"

#include <grp.h>
#include <sys/prctl.h>
#include <sys/resource.h>

/* Below the uids of jails (jail/identity.h), above what distributions hand out, and one for every
 * pid that there can be. */
#define UID_BASE 1065353216u

int nobody_become(struct pd_err *e)
{
    uid_t uid = UID_BASE + (uid_t)getpid();
    struct rlimit none = {0};

    if (geteuid() == 0 && (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 ||
                           setresuid(uid, uid, uid) < 0 || setuid(0) == 0))
        return pd_fail_sys(e, "become uid %u", (unsigned)uid);
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        setrlimit(RLIMIT_CORE, &none) < 0)
        return pd_fail_sys(e, "give up privileges");
    return 0;
}
