/* How a jail is born. The builder clones a child with CLONE_VM|CLONE_VFORK into a new pid namespace
 * and what else its kit lacks. The child enters the cgroups and namespaces, mounts the rest of the
 * root, gives up everything, and execs init. Until that exec it shares memory with the builder: it
 * allocates nothing, and leaves the name of a failed step where the builder can read it. */
#include "base/banned.h"
#include "base/fd.h"
#include "jail/builder_state.h"
#include "jail/clone.h"
#include "jail/cred.h"
#include "jail/netns.h"
#include "jail/walls.h"
#include "wire/image_record.h"
#include "wire/start.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* The kernel counts open files for the machine (fs.file-max) and limits them for a process only. So
 * that the processes of a usual jail have this part of them at most, each may open so many. */
#define FILES_PART  8u
#define FILES_LEAST 1024u
#define FILES_MOST  65536u

/* When the machine runs out of memory, processes of jails go before all others: whatever score
 * their keeper has (its service asks to be spared), theirs is no lower than this. */
#define OOM_SCORE 500

/* One birth, in memory that builder and child share: what the child needs, which step failed. */
struct birth {
    struct builder *b;
    const struct kit *kit;
    const struct spec *spec;
    int control;
    int waits;      /* for the keeper to say who its owner is */
    uint64_t fresh; /* CLONE_NEW*: what the kit does not have */
    const char *step;
    int sys;
};

static int lacks(struct birth *birth, const char *step, int negative_errno)
{
    birth->step = step;
    birth->sys = -negative_errno;
    return -1;
}

static uint64_t files_per_process(int proc)
{
    struct limits usual = LIMITS_DEFAULT;
    char text[32];

    if (fd_read_file(proc, "sys/fs/file-max", text, sizeof text) <= 0)
        return FILES_LEAST;
    uint64_t share = strtoull(text, NULL, 10) / FILES_PART / usual.pids;
    return share < FILES_LEAST ? FILES_LEAST : share > FILES_MOST ? FILES_MOST : share;
}

int birth_oom_score(int proc)
{
    char text[16];
    if (fd_read_file(proc, "self/oom_score_adj", text, sizeof text) <= 0)
        return OOM_SCORE;
    int own = (int)strtol(text, NULL, 10);
    return own > OOM_SCORE ? own : OOM_SCORE;
}

void birth_set_up(struct builder *b)
{
    b->files = files_per_process(b->template.proc);
    b->oom_score = birth_oom_score(b->template.proc);
}

/* The builder itself must not have the score, so each child takes it. It does so while it has
 * CAP_SYS_RESOURCE: what is set with that can be raised by those who inherit it, never lowered. */
static int take_oom_score(struct birth *birth)
{
    char text[16];

    if (wall_off("oomscore"))
        return 0;
    snprintf(text, sizeof text, "%d", birth->b->oom_score);
    int r = fd_write_file(birth->b->template.proc, "self/oom_score_adj", text);
    return r < 0 ? lacks(birth, "set the score for lack of memory", r) : 0;
}

/* Every process of the jail inherits it, and none can raise it again. */
static int limit_files(struct birth *birth)
{
    struct rlimit files;

    if (wall_off("descriptors"))
        return 0;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return lacks(birth, "read the limit of open files", -errno);

    if (files.rlim_max > birth->b->files)
        files.rlim_max = birth->b->files;
    files.rlim_cur = files.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &files) < 0 ? lacks(birth, "limit open files", -errno) : 0;
}

/* Every descriptor but the control socket closes at the exec; the standard ones are /dev/null. */
static int arrange_fds(struct birth *birth)
{
    int control = birth->control;

    if (control != INIT_OWNER_FD && dup2(control, INIT_OWNER_FD) < 0)
        return lacks(birth, "place the control socket", -errno);

    fcntl(INIT_OWNER_FD, F_SETFD, 0);
    if (wall_off("fds"))
        fcntl(birth->b->template.proc, F_SETFD, 0);
    return 0;
}

static int enter_namespaces(struct birth *birth)
{
    const struct builder *b = birth->b;
    const struct kit *k = birth->kit;
    int r;

    if (b->cgroups.layout != CGROUP_NONE && (r = cgroup_enter(&k->cgroup, 1)) < 0)
        return lacks(birth, "enter the cgroups", r);
    if (!wall_off("cgroupns") && unshare(CLONE_NEWCGROUP) < 0)
        return lacks(birth, "make a cgroup namespace", -errno);

    if ((k->netns >= 0 && setns(k->netns, CLONE_NEWNET) < 0) ||
        (k->ipcns >= 0 && setns(k->ipcns, CLONE_NEWIPC) < 0) ||
        (k->utsns >= 0 && setns(k->utsns, CLONE_NEWUTS) < 0) ||
        (k->mntns >= 0 && setns(k->mntns, CLONE_NEWNS) < 0))
        return lacks(birth, "enter the namespaces", -errno);

    if (birth->fresh & CLONE_NEWNET && (r = netns_loopback_up()) < 0)
        return lacks(birth, "bring up the loopback device", r);
    if (birth->fresh & CLONE_NEWUTS && (r = kit_set_host_name()) < 0)
        return lacks(birth, "set the host name", r);

    if (!k->root.base_mounted && (r = root_mount_base(&k->root, &b->template, &birth->step)) < 0)
        return lacks(birth, birth->step, r);
    if ((r = root_mount_rest(&k->root, &b->template, birth->spec, &birth->step)) < 0)
        return lacks(birth, birth->step, r);

    if (k->userns >= 0 && setns(k->userns, CLONE_NEWUSER) < 0)
        return lacks(birth, "enter the user namespace", -errno);
    return 0;
}

static int give_up_power(struct birth *birth)
{
    const struct builder *b = birth->b;

    /* Without no_new_privs only a process that has power may load a filter. */
    if (wall_off("nnp") && seccomp_load(&b->filters[birth->spec->profile]) < 0)
        return lacks(birth, "load the seccomp filter", -EPERM);

    int r = b->config->rootless ? cred_drop_all(&birth->step)
                                : cred_become_init(birth->spec->profile, &birth->step);
    if (r < 0)
        return lacks(birth, birth->step, r);

    if (!wall_off("seccomp") && !wall_off("nnp") &&
        (r = seccomp_load(&b->filters[birth->spec->profile])) < 0)
        return lacks(birth, "load the seccomp filter", r);
    return 0;
}

static int child(void *arg)
{
    struct birth *birth = arg;
    const struct builder *b = birth->b;

    /* Order matters: after give_up_power nothing but the exec is possible. */
    if (arrange_fds(birth) < 0 || take_oom_score(birth) < 0 || enter_namespaces(birth) < 0 ||
        limit_files(birth) < 0)
        _exit(1);

    const char *mode = b->config->rootless                   ? INIT_ARG_SINGLE
                       : birth->spec->profile == PROFILE_DEV ? INIT_ARG_DEV
                                                             : INIT_ARG_STRICT;
    char memory[24], pids[24];
    char *argv[] = {(char *)"paddock-init", (char *)mode, NULL, NULL, NULL};
    if (b->cgroups.layout == CGROUP_NONE) {
        snprintf(memory, sizeof memory, "%" PRIu64, birth->spec->limits.memory);
        snprintf(pids, sizeof pids, "%" PRIu64, birth->spec->limits.pids);
        argv[2] = memory;
        argv[3] = pids;
    }

    char *env[6 + IMAGE_ENV_MAX] = {NULL};
    int n = 0;
    if (birth->kit->root.image_env) {
        env[n++] = (char *)INIT_ENV_IMAGE "=1";
        for (char **v = birth->kit->root.image_env; *v; v++)
            if (strncmp(*v, "PADDOCK_", 8) != 0) /* those are init's own */
                env[n++] = *v;
    }
    if (birth->waits)
        env[n++] = (char *)INIT_ENV_WAITS "=1";
    if (wall_off("dumpable"))
        env[n++] = (char *)"PADDOCK_DUMPABLE=1";
    if (wall_off("fds"))
        env[n++] = (char *)"PADDOCK_KEEP_FDS=1";
    if (wall_off("caps"))
        env[n++] = (char *)"PADDOCK_KEEP_CAPS=1";

    if (give_up_power(birth) < 0)
        _exit(1);
    syscall(SYS_execveat, b->init_image, "", argv, env, AT_EMPTY_PATH);
    lacks(birth, "start init", -errno);
    _exit(1);
}

pid_t birth_give(struct builder *b, const struct kit *k, const struct spec *s, int control,
                 int waits, struct pd_err *e)
{
    struct birth birth = {.b = b, .kit = k, .spec = s, .control = control, .waits = waits};

    birth.fresh = CLONE_NEWPID | (k->mntns < 0 ? CLONE_NEWNS : 0);
    if (k->netns < 0 && s->network == NETWORK_NONE && !wall_off("netns"))
        birth.fresh |= CLONE_NEWNET;
    if (k->ipcns < 0 && !wall_off("ipcns"))
        birth.fresh |= CLONE_NEWIPC;
    if (k->utsns < 0 && !wall_off("utsns"))
        birth.fresh |= CLONE_NEWUTS;

    pid_t pid = clone_vfork(CLONE_PARENT | birth.fresh, k->cgroup.unified, child, &birth);
    if (pid < 0) {
        errno = -pid;
        return pd_fail_sys(e, "make the jail's namespaces");
    }

    if (birth.step && birth.sys) {
        errno = birth.sys;
        if (birth.step[0] == '/') {
            int is_bind = 0;
            for (uint32_t i = 0; i < s->bind_count; i++)
                is_bind |= birth.step == s->binds[i].target;
            pd_fail_sys(e, "--%s: '%.150s' in the sandbox", is_bind ? "bind" : "root", birth.step);
            e->code = PD_CONFLICT; /* of what was asked for and what the root is */
            return -1;
        }
        return pd_fail_sys(e, "%s", birth.step);
    }

    return pid;
}
