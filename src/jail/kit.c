/* Kits: what a builder makes before anybody asks. The user, network, ipc, uts and mount namespaces,
 * the cgroups and an empty root, of which a jail of the usual kind needs no other. Rootless a kit
 * is only the root and the cgroups: there is no way back from a namespace. */
#include "base/banned.h"
#include "base/fd.h"
#include "jail/builder_state.h"
#include "jail/identity.h"
#include "jail/netns.h"
#include "jail/nsfd.h"
#include "jail/walls.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>

#define HOST_NAME "sandbox"

void kit_done(struct kit *k)
{
    fd_done(&k->userns);
    fd_done(&k->netns);
    fd_done(&k->ipcns);
    fd_done(&k->utsns);
    fd_done(&k->mntns);
    fd_done(&k->gate[0]);
    fd_done(&k->gate[1]);
    cgroup_close(&k->cgroup);
    root_done(&k->root);
}

struct kit kit_empty(const char *name, uint32_t slot)
{
    struct kit k = {.slot = slot,
                    .userns = -1,
                    .netns = -1,
                    .ipcns = -1,
                    .utsns = -1,
                    .mntns = -1,
                    .gate = {-1, -1}};
    k.root = ROOT_EMPTY;
    k.cgroup = CGROUP_EMPTY;
    snprintf(k.name, sizeof k.name, "%s", name);
    return k;
}

int kit_make(struct builder *b, struct kit *k, struct pd_err *e)
{
    if (k->slot != RANGE_NONE) {
        k->userns = userns_create(b->template.proc, k->slot, e);
        if (k->userns < 0)
            return -1;
    }

    if (b->cgroups.layout != CGROUP_NONE && cgroup_create(&b->cgroups, k->name, &k->cgroup, e) < 0)
        return -1;
    return 0;
}

int kit_set_host_name(void)
{
    return sethostname(HOST_NAME, sizeof HOST_NAME - 1) < 0 ? -errno : 0;
}

/* Mounts the kit's root in a mount namespace of its own. */
static int kit_mount(struct builder *b, struct kit *k, struct pd_err *e)
{
    const char *step;

    if (unshare(CLONE_NEWNS) < 0)
        return pd_fail_sys(e, "make a mount namespace");

    int r = root_mount_base(&k->root, &b->template, &step);
    k->mntns = r < 0 ? -1 : openat(b->template.proc, "thread-self/ns/mnt", O_RDONLY | O_CLOEXEC);
    int sys = r < 0 ? -r : errno;

    template_return(&b->template);
    k->root.base_mounted = 1;
    k->has_shim = b->template.has_shim;
    errno = sys;
    return k->mntns < 0 ? pd_fail_sys(e, "%s", step) : 0;
}

int kit_prepare(struct builder *b, struct kit *k, struct pd_err *e)
{
    struct limits usual = LIMITS_DEFAULT;
    int proc = b->template.proc;

    if (kit_make(b, k, e) < 0 || root_prepare_usual(&k->root, k->slot, e) < 0 ||
        cgroup_limit(&b->cgroups, k->name, &usual, e) < 0)
        return -1;
    if (b->config->rootless)
        return 0; /* there is no way back from most namespaces: the jail makes them itself */

    if ((!wall_off("netns") && (k->netns = netns_create(proc, e)) < 0) ||
        (!wall_off("ipcns") && (k->ipcns = nsfd_make(proc, CLONE_NEWIPC, "ipc", NULL, e)) < 0) ||
        (!wall_off("utsns") &&
         (k->utsns = nsfd_make(proc, CLONE_NEWUTS, "uts", kit_set_host_name, e)) < 0))
        return -1;

    return kit_mount(b, k, e);
}

struct kit kit_take(struct builder *b, const char *name, uint32_t slot)
{
    for (unsigned i = 0; i < b->kit_count; i++)
        if (!strcmp(b->kits[i].name, name)) {
            struct kit k = b->kits[i];
            b->kits[i] = b->kits[--b->kit_count];
            return k;
        }
    return kit_empty(name, slot);
}

void kit_forget_root(struct kit *k)
{
    fd_done(&k->mntns);
    root_done(&k->root);
    k->root = ROOT_EMPTY;
}
