/* The cgroups of commands: each command has one of its own below its jail's, by a number. They are
 * the daemon's: it makes them when they are first entered (keeper.c), freezes them, and looks
 * whether they are empty. Only killing is the keeper's. */
#include "provider/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/cgroup_tree.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define HOLD_PATIENCE (20 * NS_PER_MS)

void keeper_group_name(unsigned group, char out[16])
{
    snprintf(out, 16, "c%u", group);
}

int keeper_group_is_empty(struct box *box, unsigned group)
{
    const struct keeper_box *b = (const struct keeper_box *)box;
    char name[16], path[40], text[64];

    if (b->jail.cgroup_dir < 0)
        return 1;
    keeper_group_name(group, name);
    snprintf(path, sizeof path, "%s/cgroup.events", name);

    ssize_t n = fd_read_file(b->jail.cgroup_dir, path, text, sizeof text);
    if (n > 0)
        return strstr(text, "populated 0") != NULL;
    snprintf(path, sizeof path, "%s/tasks", name);
    n = fd_read_file(b->jail.cgroup_dir, path, text, sizeof text);
    return n == -ENOENT ? GROUP_MISSING : n == 0;
}

int keeper_group_hold(struct box *box, unsigned group, bool held, struct pd_err *e)
{
    const struct keeper_box *b = (const struct keeper_box *)box;
    char name[16];

    if (b->jail.cgroup_dir < 0)
        return pd_fail(e, PD_UNSUPPORTED, "holding a command needs cgroups, and there are none");
    keeper_group_name(group, name);

    auto_fd fd = group_open(b->jail.cgroup_dir, name);
    int r = fd < 0 ? fd : group_freeze(fd, held, deadline_in(HOLD_PATIENCE));
    if (r == 0)
        return 0;
    errno = -r;
    return pd_fail_sys(e, "%s a command", held ? "hold" : "let go");
}
