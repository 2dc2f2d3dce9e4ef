/* One copy of a named root. If a jail uses the root, its group is frozen first, unless somebody has
 * paused it already. The root directory of its init is opened, so that the store can have an
 * image's data written out; the store copies, and the jail goes on, copied or not. */
#include "jail/copier.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/identity.h"
#include "jail/store.h"

#include <errno.h>
#include <fcntl.h>

#define FREEZE_PATIENCE (10 * NS_PER_S)

int copier_start(const struct builder_config *c, struct pd_err *e)
{
    if (c->rootless && userns_enter_single(e) < 0)
        return -1;
    store_clean(c->state_dir);
    return 0;
}

/* The jail's root directory, as its init has it: for syncfs, nothing is read from it. It may be
 * anything if the jail has taken its init over; then its copy is not up to date. */
static int open_jail_root(const struct msg_copy *m)
{
    char path[40];
    snprintf(path, sizeof path, "/proc/%d/root", (int)m->init_pid);
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int copier_copy(const struct builder_config *c, const struct cgroup_host *h,
                const struct msg_copy *m, int jail_pid, struct pd_err *e)
{
    if (!m->jail[0])
        return store_copy_root(c->state_dir, m->from, m->to, -1, -1, e);
    if (jail_pid < 0)
        return pd_fail(e, PD_PROTOCOL, "a copy of a jail's root without its process");

    deadline d = deadline_in(m->patience < FREEZE_PATIENCE ? m->patience : FREEZE_PATIENCE);
    if (m->freeze && cgroup_freeze(h, m->jail, 1, d, e) < 0)
        return -1;

    /* Rootless there are no images, and another user namespace's process is not ours to look at. */
    auto_fd root = c->rootless ? -1 : open_jail_root(m);
    int r = root < 0 && !c->rootless
                ? pd_fail_sys(e, "open the root of the sandbox")
                : store_copy_root(c->state_dir, m->from, m->to, root, jail_pid, e);

    struct pd_err ignored;
    if (m->freeze)
        (void)cgroup_freeze(h, m->jail, 0, 0, &ignored);
    return r;
}
