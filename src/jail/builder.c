/* How a jail is made. Everything that can be made before somebody asks is made before (a "kit": the
 * user, network, ipc, uts and mount namespaces, the cgroups, the mounted root). For a request the
 * builder makes what the kit lacks or what the spec wants otherwise, and clones a child with
 * CLONE_VM|CLONE_VFORK into a new pid namespace. The child enters the cgroups and namespaces,
 * mounts the rest of the root, gives up everything, and execs init. Until that exec it shares
 * memory with the builder: it allocates nothing, and leaves the name of a failed step where the
 * builder can read it. */
#include "jail/builder.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/cgroup.h"
#include "jail/clone.h"
#include "jail/copier.h"
#include "jail/cred.h"
#include "jail/identity.h"
#include "jail/init_image.h"
#include "jail/mnt.h"
#include "jail/netns.h"
#include "jail/nsfd.h"
#include "jail/root.h"
#include "jail/seccomp.h"
#include "jail/store.h"
#include "jail/sweep.h"
#include "jail/template.h"
#include "jail/walls.h"
#include "wire/msg.h"
#include "wire/start.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define KITS_MAX  16u
#define HOST_NAME "sandbox"

/* The kernel counts open files for the machine (fs.file-max) and limits them for a process only. So
 * that the processes of a usual jail have this part of them at most, each may open so many. */
#define FILES_PART  8u
#define FILES_LEAST 1024u
#define FILES_MOST  65536u

/* When the machine runs out of memory, processes of jails go before all others: whatever score
 * their keeper has (its service asks to be spared), theirs is no lower than this. */
#define OOM_SCORE 500

struct kit {
    char name[MSG_NAME_MAX + 1];
    uint32_t slot;
    int userns, netns, ipcns, utsns, mntns; /* -1: made with the jail */
    int has_shim;                           /* the template had its sudo when mntns was made */
    struct cgroup cgroup;
    struct root root;
};

struct builder {
    const struct builder_config *config;
    int sock;
    int null;
    int init_image;
    struct template template;
    struct cgroup_host cgroups;
    int cgroups_open;
    struct seccomp_filter filters[PROFILE_COUNT];
    uint64_t files; /* that a process of a jail may have open */
    int oom_score;  /* of every process of a jail */
    struct kit kits[KITS_MAX];
    unsigned kit_count;
    struct pd_err broken; /* why nothing can be built; code PD_INTERNAL with msg "" = fine */
};

/* One birth, in memory that builder and child share: what the child needs, which step failed. */
struct birth {
    struct builder *b;
    const struct kit *kit;
    const struct spec *spec;
    int control;
    uint64_t fresh; /* CLONE_NEW*: what the kit does not have */
    const char *step;
    int sys;
};

static void kit_done(struct kit *k)
{
    fd_done(&k->userns);
    fd_done(&k->netns);
    fd_done(&k->ipcns);
    fd_done(&k->utsns);
    fd_done(&k->mntns);
    cgroup_close(&k->cgroup);
    root_done(&k->root);
}

static struct kit kit_empty(const char *name, uint32_t slot)
{
    struct kit k = {.slot = slot, .userns = -1, .netns = -1, .ipcns = -1, .utsns = -1, .mntns = -1};
    k.root = ROOT_EMPTY;
    k.cgroup = CGROUP_EMPTY;
    snprintf(k.name, sizeof k.name, "%s", name);
    return k;
}

/* The parts of a kit that no spec changes. */
static int kit_make(struct builder *b, struct kit *k, struct pd_err *e)
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

/* The limits that remain when a test build leaves a wall out; 0 is no limit. */
static struct limits without_walls(struct limits l)
{
    if (wall_off("memory"))
        l.memory = 0;
    if (wall_off("pids"))
        l.pids = 0;
    if (wall_off("cpu"))
        l.cpu_milli = 0;
    return l;
}

static int set_limits(struct builder *b, const char *name, struct limits l, struct pd_err *e)
{
    if (b->cgroups.layout == CGROUP_NONE)
        return 0;
    l = without_walls(l);
    return cgroup_limit(&b->cgroups, name, &l, e);
}

static int set_host_name(void)
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

/* Makes a kit in advance, for a spec of the usual kind. */
static int kit_prepare(struct builder *b, struct kit *k, struct pd_err *e)
{
    struct limits usual = LIMITS_DEFAULT;
    int proc = b->template.proc;

    if (kit_make(b, k, e) < 0 || root_prepare_usual(&k->root, k->slot, e) < 0 ||
        set_limits(b, k->name, usual, e) < 0)
        return -1;
    if (b->config->rootless)
        return 0; /* there is no way back from most namespaces: the jail makes them itself */

    if ((!wall_off("netns") && (k->netns = netns_create(proc, e)) < 0) ||
        (!wall_off("ipcns") && (k->ipcns = nsfd_make(proc, CLONE_NEWIPC, "ipc", NULL, e)) < 0) ||
        (!wall_off("utsns") &&
         (k->utsns = nsfd_make(proc, CLONE_NEWUTS, "uts", set_host_name, e)) < 0))
        return -1;

    return kit_mount(b, k, e);
}

static int limits_equal(const struct limits *a, const struct limits *b)
{
    return a->memory == b->memory && a->pids == b->pids && a->cpu_milli == b->cpu_milli;
}

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

static int oom_score(int proc)
{
    char text[16];
    if (fd_read_file(proc, "self/oom_score_adj", text, sizeof text) <= 0)
        return OOM_SCORE;
    int own = (int)strtol(text, NULL, 10);
    return own > OOM_SCORE ? own : OOM_SCORE;
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
    if (birth->fresh & CLONE_NEWUTS && (r = set_host_name()) < 0)
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

    char *env[4] = {NULL};
    int n = 0;
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

/* Clones the child. Returns init's pid as the keeper sees it, or -1. */
static pid_t give_birth(struct builder *b, const struct kit *k, const struct spec *s, int control,
                        struct pd_err *e)
{
    struct birth birth = {.b = b, .kit = k, .spec = s, .control = control};

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

/* How strong the jail is that a spec gets here. */
static enum rung rung_of(const struct builder *b, const struct spec *s)
{
    int limited = b->cgroups.layout != CGROUP_NONE && !b->cgroups.why[0];
    int full = !b->config->rootless && limited && s->network == NETWORK_NONE;
    return full ? RUNG_FULL : RUNG_BASIC;
}

enum rung builder_best_rung(int rootless, int has_cgroups, const char *cgroup_why, char *missing,
                            unsigned size)
{
    missing[0] = 0;
    if (rootless)
        snprintf(missing, size, "not root: one uid for everything%s",
                 has_cgroups ? "" : ", limits only per process");
    else if (!has_cgroups)
        snprintf(missing, size, "no cgroups, limits only per process: %s", cgroup_why);
    else if (cgroup_why[0])
        snprintf(missing, size, "%s", cgroup_why);
    return missing[0] ? RUNG_BASIC : RUNG_FULL;
}

static void reply_error(struct builder *b, struct wire_id id, const struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_error_put(&out, e);
    struct wire_head head = {.type = WIRE_ERROR, .id = id};
    wire_send(b->sock, &head, &out, NULL, 0, DEADLINE_NONE);
}

static void reply_done(struct builder *b, struct wire_id id)
{
    struct wire_head head = {.type = WIRE_DONE, .id = id};
    wire_send(b->sock, &head, NULL, NULL, 0, DEADLINE_NONE);
}

static void reply_built(struct builder *b, struct wire_id id, struct kit *k, pid_t pid,
                        enum rung rung)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_built m = {
        .rung = rung, .named = k->root.lock >= 0, .has_mntns = k->mntns >= 0, .init_pid = pid};
    msg_built_encode(&out, &m);

    /* Always four, so that their places are known; /dev/null stands for what there is not. */
    auto_fd cgroup = b->cgroups.layout == CGROUP_NONE ? -1 : cgroup_jail_dir(&b->cgroups, k->name);
    int fds[4] = {cgroup >= 0 ? cgroup : b->null, k->root.devpts,
                  k->root.lock >= 0 ? k->root.lock : b->null, k->mntns >= 0 ? k->mntns : b->null};

    struct wire_head head = {.type = WIRE_BUILT, .id = id};
    wire_send(b->sock, &head, &out, fds, 4, DEADLINE_NONE);
}

/* The kit with this name if it was prepared, else an empty one. */
static struct kit take_kit(struct builder *b, const char *name, uint32_t slot)
{
    for (unsigned i = 0; i < b->kit_count; i++)
        if (!strcmp(b->kits[i].name, name)) {
            struct kit k = b->kits[i];
            b->kits[i] = b->kits[--b->kit_count];
            return k;
        }
    return kit_empty(name, slot);
}

/* The kit's root is not what is wanted: the rest of it is still good. */
static void kit_forget_root(struct kit *k)
{
    fd_done(&k->mntns);
    root_done(&k->root);
    k->root = ROOT_EMPTY;
}

static int build(struct builder *b, struct kit *k, const struct msg_build *m, int control,
                 pid_t *ret_pid, struct pd_err *e)
{
    const struct spec *s = &m->spec;
    struct limits usual = LIMITS_DEFAULT;
    int prepared = k->root.top >= 0;

    if (prepared && (!root_is_usual(s) || (s->profile == PROFILE_DEV && !k->has_shim)))
        kit_forget_root(k);

    if (rung_of(b, s) < s->min_rung)
        return pd_fail(e, PD_ISOLATION, "only '%s' is possible here, '%s' was asked for: %s",
                       rung_name(rung_of(b, s)), rung_name(s->min_rung),
                       s->network == NETWORK_HOST ? "--network host"
                       : b->config->rootless      ? "not root"
                                                  : b->cgroups.why);

    if (!prepared && kit_make(b, k, e) < 0)
        return -1;
    if (s->network != NETWORK_NONE)
        fd_done(&k->netns);
    if ((!prepared || !limits_equal(&s->limits, &usual)) &&
        set_limits(b, k->name, s->limits, e) < 0)
        return -1;

    if (s->profile == PROFILE_DEV && !b->config->rootless &&
        template_add_shim(&b->template, b->init_image, e) < 0)
        return -1;
    if (root_prepare(&k->root, &b->template, b->config->state_dir, s, k->slot, k->userns, e) < 0)
        return -1;

    int r = template_new_boot_id(&b->template);
    errno = -r;
    if (r < 0)
        return pd_fail_sys(e, "make a boot id");
    b->template.has_boot_id = 0; /* it is this jail's from now on */

    *ret_pid = give_birth(b, k, s, control, e);
    return *ret_pid < 0 ? -1 : 0;
}

/* A network namespace that the client made. It must not be the host's; that it is one at all, setns
 * checks. */
static int take_netns(const struct builder *b, struct frame *f)
{
    struct stat theirs, host;
    auto_fd fd = frame_take_fd(f, 1);

    if (fstat(fd, &theirs) < 0 || fstatat(b->template.proc, "self/ns/net", &host, 0) < 0 ||
        (theirs.st_ino == host.st_ino && theirs.st_dev == host.st_dev))
        return -1;
    return fd_take(&fd);
}

/* The jail's mount namespace is kept until the jail is swept, so that its end does not wait for its
 * mounts to be taken down. Not with named roots and binds: they must be free when the end is told.
 */
static int open_mntns(const struct builder *b, pid_t pid)
{
    char path[40];
    snprintf(path, sizeof path, "%d/ns/mnt", (int)pid);
    return openat(b->template.proc, path, O_RDONLY | O_CLOEXEC);
}

static void do_build(struct builder *b, struct frame *f)
{
    struct pd_err e = b->broken;
    struct msg_build m;
    auto_fd control = frame_take_fd(f, 0);

    if (b->broken.msg[0] || msg_build_decode(&f->payload, &m, &e) < 0 ||
        spec_check(&m.spec, &e) < 0) {
        reply_error(b, f->head.id, &e);
        return;
    }

    struct kit k = take_kit(b, m.name, m.slot);
    if (k.netns < 0 && f->fd_count > 1)
        k.netns = take_netns(b, f);

    pid_t pid = -1;
    if (build(b, &k, &m, control, &pid, &e) < 0) {
        /* A failed child is dead or dying; its groups are empty in a moment. */
        if (b->cgroups.layout != CGROUP_NONE)
            sweep_cgroups(&b->cgroups, k.name);
        /* The child may hold the lock a moment longer; whoever hears of the failure may try again.
         */
        if (k.root.lock >= 0)
            (void)flock(k.root.lock, LOCK_UN);
        reply_error(b, f->head.id, &e);
    } else {
        /* The command may be running by now; nobody waits for this. */
        if (k.mntns < 0 && k.root.lock < 0 && !m.spec.bind_count)
            k.mntns = open_mntns(b, pid);
        reply_built(b, f->head.id, &k, pid, rung_of(b, &m.spec));
        (void)template_new_boot_id(&b->template); /* the next jail's; tried again when it is made */
    }

    kit_done(&k);
}

static void do_prepare(struct builder *b, const struct frame *f)
{
    struct pd_err e = b->broken;
    struct msg_prepare m;

    if (b->broken.msg[0] || msg_prepare_decode(&f->payload, &m, &e) < 0) {
        reply_error(b, f->head.id, &e);
        return;
    }

    if (b->kit_count == KITS_MAX) {
        pd_fail(&e, PD_CAPACITY, "%u kits are prepared already", KITS_MAX);
        reply_error(b, f->head.id, &e);
        return;
    }

    struct kit k = kit_empty(m.name, m.slot);
    if (kit_prepare(b, &k, &e) < 0) {
        if (b->cgroups.layout != CGROUP_NONE)
            sweep_cgroups(&b->cgroups, k.name);
        kit_done(&k);
        reply_error(b, f->head.id, &e);
        return;
    }

    b->kits[b->kit_count++] = k;
    reply_done(b, f->head.id);
}

static int kill_command(struct builder *b, const struct msg_sweep *m)
{
    auto_fd jail = cgroup_jail_dir(&b->cgroups, m->name);
    return jail < 0 ? jail : cgroup_command_kill(jail, m->group);
}

/* A root lies on the host's file system, which a builder does not see any more; a sweeper does. */
static void do_root(struct builder *b, const struct frame *f)
{
    struct pd_err e;
    struct msg_key m;
    int away = b->template.self_ns > 0;
    int r = msg_key_decode(&f->payload, &m, &e);

    if (r == 0 && away)
        r = template_visit_start(&b->template, &e);
    if (r == 0) {
        r = f->head.type == WIRE_KEEP_ROOT ? store_keep_root(b->config->state_dir, m.key, &e)
                                           : store_remove_root(b->config->state_dir, m.key, &e);
        if (away)
            template_return(&b->template);
    }

    if (r < 0)
        reply_error(b, f->head.id, &e);
    else
        reply_done(b, f->head.id);
}

static void do_copy(struct builder *b, struct frame *f)
{
    struct pd_err e = b->broken;
    struct msg_copy m;
    auto_fd jail = frame_take_fd(f, 0);

    if (b->broken.msg[0] || msg_copy_decode(&f->payload, &m, &e) < 0 ||
        copier_copy(b->config, &b->cgroups, &m, jail, &e) < 0)
        reply_error(b, f->head.id, &e);
    else
        reply_done(b, f->head.id);
}

static void do_thaw(struct builder *b, const struct frame *f)
{
    struct pd_err e;
    struct msg_sweep m;
    if (msg_sweep_decode(&f->payload, &m, &e) < 0 ||
        cgroup_freeze(&b->cgroups, m.name, 0, 0, &e) < 0)
        reply_error(b, f->head.id, &e);
    else
        reply_done(b, f->head.id);
}

static void do_sweep(struct builder *b, struct frame *f, int strike)
{
    struct pd_err e;
    struct msg_sweep m;

    if (msg_sweep_decode(&f->payload, &m, &e) < 0) {
        reply_error(b, f->head.id, &e);
        return;
    }

    int r = 0;
    /* The last references to the jail's mounts and its control socket: closing them takes time. */
    for (unsigned i = 0; i < f->fd_count; i++) {
        int fd = frame_take_fd(f, i);
        fd_done(&fd);
    }

    if (m.group[0])
        r = kill_command(b, &m);
    else if (b->cgroups.layout != CGROUP_NONE)
        r = strike ? cgroup_kill(&b->cgroups, m.name) : sweep_cgroups(&b->cgroups, m.name);

    if (r < 0) {
        errno = -r;
        pd_fail_sys(&e, "%s %s", strike ? "kill" : "remove the cgroups of", m.name);
        reply_error(b, f->head.id, &e);
        return;
    }
    reply_done(b, f->head.id);
}

/* The keeper makes its directories while its first builder starts, so they are opened only when
 * they are needed. */
static int need_cgroups(struct builder *b, struct pd_err *e)
{
    struct cgroup_mounts mounts;

    if (b->cgroups_open)
        return 0;

    /* The trees are mounted on the host, and a builder does not see that any more. */
    int away = b->template.self_ns > 0;
    if (away && template_visit_start(&b->template, e) < 0)
        return -1;

    cgroup_find(&mounts);
    int r = cgroup_host_open(&b->cgroups, &mounts, b->config->instance, e);
    if (away)
        template_return(&b->template);
    if (r < 0)
        return -1;

    b->cgroups.owner = b->config->owner;
    b->cgroups_open = 1;
    sweep_hold_instance(&b->cgroups);
    return 0;
}

/* All that a builder needs. What fails here is told to whoever asks for a jail. */
static int set_up(struct builder *b, struct pd_err *e)
{
    b->null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (b->null < 0)
        return pd_fail_sys(e, "open /dev/null");

    if (b->config->copier)
        return copier_start(b->config, e);
    if (b->config->sweeper)
        return 0;

    for (int p = 0; p < PROFILE_COUNT; p++)
        if (seccomp_compile((enum profile)p, &b->filters[p], e) < 0)
            return -1;

    b->init_image = init_image_open(e);
    if (b->init_image < 0)
        return -1;
    if (template_enter(&b->template, b->config->rootless, e) < 0)
        return -1;

    b->files = files_per_process(b->template.proc);
    b->oom_score = oom_score(b->template.proc);
    return 0;
}

_Noreturn void builder_main(const struct builder_config *c, int sock)
{
    static struct builder b; /* the stack that the children share is better small */

    b.config = c;
    b.sock = sock;
    b.null = b.init_image = -1;
    struct pd_err e;
    if (c->sweeper)
        setpriority(PRIO_PROCESS, 0, 10);
    if (set_up(&b, &e) < 0)
        b.broken = e;

    struct frame f = FRAME_INIT;
    while (wire_recv(sock, &f, DEADLINE_NONE, &e) > 0) {
        if (need_cgroups(&b, &e) < 0) {
            reply_error(&b, f.head.id, &e);
            frame_reset(&f);
            continue;
        }
        switch (f.head.type) {
        case WIRE_BUILD:
            do_build(&b, &f);
            break;
        case WIRE_PREPARE:
            do_prepare(&b, &f);
            break;
        case WIRE_SWEEP:
            do_sweep(&b, &f, 0);
            break;
        case WIRE_STRIKE:
            do_sweep(&b, &f, 1);
            break;
        case WIRE_REMOVE_ROOT:
        case WIRE_KEEP_ROOT:
            do_root(&b, &f);
            break;
        case WIRE_COPY:
            do_copy(&b, &f);
            break;
        case WIRE_THAW:
            do_thaw(&b, &f);
            break;
        default:
            pd_fail(&e, PD_PROTOCOL, "message type %u is not for a builder", f.head.type);
            reply_error(&b, f.head.id, &e);
        }
        frame_reset(&f);
    }

    /* The keeper is gone, and with it every jail: each init has it as its parent. */
    for (unsigned i = 0; i < b.kit_count; i++)
        kit_done(&b.kits[i]);
    (void)need_cgroups(&b, &e); /* one that was never asked for anything sweeps all the same */
    if (b.template.self_ns > 0)
        (void)template_visit_start(&b.template, &e); /* where the cgroup trees are mounted */
    sweep_instance(&b.cgroups);
    _exit(0);
}
