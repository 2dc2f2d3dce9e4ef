/* Ending a box's user.
 *
 * How this works: a child becomes the user and calls kill(-1). The user's processes may kill it as
 * well, if its real or its saved uid is theirs; only its effective one is, which is enough to kill
 * and not enough to be killed. Whether they are gone is asked of the kernel, so it does not matter
 * what became of the child: it is tried again until there are none.
 *
 * kill(-1) holds the kernel's lock on the list of tasks, and a fork with a deadly signal pending
 * fails: no process escapes by making others. */
#include "jail/local_user.h"

#include "base/banned.h"
#include "jail/identity.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#define PAUSE_FIRST_US 200u
#define PAUSE_MAX_US   100000u
#define PATIENCE_US    5000000u

static void kill_all(uid_t uid)
{
    const uid_t safe = uid + 1;

    pid_t pid = fork();
    if (pid == 0) {
        if (setresgid(safe, safe, safe) == 0 && setresuid(safe, uid, safe) == 0)
            (void)kill(-1, SIGKILL);
        _exit(0);
    }

    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

int local_user_end(uid_t uid)
{
    unsigned pause = PAUSE_FIRST_US, waited = 0;

    while (!identity_is_idle(uid)) {
        if (waited >= PATIENCE_US)
            return -EBUSY;

        kill_all(uid);
        usleep(pause);
        waited += pause;
        pause = pause * 2 > PAUSE_MAX_US ? PAUSE_MAX_US : pause * 2;
    }
    return 0;
}
