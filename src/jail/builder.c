/* A builder's requests. Everything that can be made before somebody asks is made before (kit.c).
 * For a request the builder makes what the kit lacks or what the spec wants otherwise, and gives
 * birth to the jail (birth.c). A complete kit is a jail of the usual kind whose init waits for its
 * owner: it is built by the same request, sent by the keeper for itself. */
#include "jail/builder.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/builder_state.h"
#include "jail/copier.h"
#include "jail/init_image.h"
#include "jail/keeper.h"
#include "jail/netns.h"
#include "jail/store.h"
#include "jail/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

static int limits_equal(const struct limits *a, const struct limits *b)
{
    return a->memory == b->memory && a->pids == b->pids && a->cpu_milli == b->cpu_milli;
}

/* How strong the jail is that a spec gets here. */
static enum rung rung_of(const struct builder *b, const struct spec *s)
{
    int limited = b->cgroups.layout != CGROUP_NONE && !b->cgroups.why[0];
    int full = !b->config->rootless && limited && s->network != NETWORK_HOST;
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

/* Of the named root or of the image. Where there are both, the root's is enough: it is noted there
 * which image it needs. */
static int lock_of(const struct root *r)
{
    return r->lock >= 0 ? r->lock : r->image_lock;
}

static void reply_built(struct builder *b, struct wire_id id, struct kit *k, pid_t pid,
                        enum rung rung)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_built m = {
        .rung = rung, .named = lock_of(&k->root) >= 0, .has_mntns = k->mntns >= 0, .init_pid = pid};
    msg_built_encode(&out, &m);

    /* Four, so that their places are known; /dev/null stands for what there is not. Two more of a
     * jail that has a way out. */
    auto_fd cgroup = b->cgroups.layout == CGROUP_NONE ? -1 : cgroup_jail_dir(&b->cgroups, k->name);
    int fds[6] = {cgroup >= 0 ? cgroup : b->null,
                  k->root.devpts,
                  lock_of(&k->root) >= 0 ? lock_of(&k->root) : b->null,
                  k->mntns >= 0 ? k->mntns : b->null,
                  k->gate[0],
                  k->gate[1]};

    struct wire_head head = {
        .type = WIRE_BUILT, .id = id, .flags = k->root.image_env ? BUILT_ON_IMAGE : 0};
    wire_send(b->sock, &head, &out, fds, k->gate[0] >= 0 ? 6 : 4, DEADLINE_NONE);
}

static int build(struct builder *b, struct kit *k, const struct msg_build *m, int control,
                 int waits, pid_t *ret_pid, struct pd_err *e)
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
    if (s->network == NETWORK_HOST)
        fd_done(&k->netns);
    if (s->network == NETWORK_GATE && netns_gate_make(b->template.proc, &k->netns, k->gate, e) < 0)
        return pd_wrap(e, "no way out by rules here");
    if ((!prepared || !limits_equal(&s->limits, &usual)) &&
        cgroup_limit(&b->cgroups, k->name, &s->limits, e) < 0)
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

    *ret_pid = birth_give(b, k, s, control, waits, e);
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
 * Of a server's root its keeper knows better (DESTROY_WITH_ROOT). */
static bool may_outlive(const struct builder *b, const struct kit *k, const struct spec *s)
{
    bool is_servers = !strncmp(s->root_name, KEEPER_OWNED_ROOT, strlen(KEEPER_OWNED_ROOT));
    return (lock_of(&k->root) < 0 || (is_servers && !b->config->rootless)) && !s->bind_count;
}

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

    struct kit k = kit_take(b, m.name, m.slot);
    if (k.netns < 0 && f->fd_count > 1)
        k.netns = take_netns(b, f);

    pid_t pid = -1;
    if (build(b, &k, &m, control, (int)m.waits, &pid, &e) < 0) {
        /* A failed child is dead or dying; its groups are empty in a moment. */
        if (b->cgroups.layout != CGROUP_NONE)
            sweep_cgroups(&b->cgroups, k.name);
        /* The child may hold the lock a moment longer; whoever hears of the failure may try again.
         */
        if (lock_of(&k.root) >= 0)
            (void)flock(lock_of(&k.root), LOCK_UN);
        reply_error(b, f->head.id, &e);
    } else {
        /* The command may be running by now; nobody waits for this. */
        if (k.mntns < 0 && may_outlive(b, &k, &m.spec))
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

    if (b->kit_count == BUILDER_KITS_MAX) {
        pd_fail(&e, PD_CAPACITY, "%u kits are prepared already", BUILDER_KITS_MAX);
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

/* A way out for a jail that was made without one. */
static void do_steer(struct builder *b, struct frame *f)
{
    struct wire_head head = {.type = WIRE_STEERED, .id = f->head.id};
    struct pd_err e;
    int gate[2];
    auto_fd init = frame_take_fd(f, 0);

    if (netns_gate_enter(init, gate, &e) < 0) {
        pd_wrap(&e, "no way out by rules here");
        reply_error(b, f->head.id, &e);
        return;
    }
    wire_send(b->sock, &head, NULL, gate, 2, DEADLINE_NONE);
    fd_done(&gate[0]);
    fd_done(&gate[1]);
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

/* A keeper of one jail has no use for its groups. */
static int sweep_jail(const struct builder *b, const char *name)
{
    return b->config->sweeper ? sweep_retire(&b->cgroups, name) : sweep_cgroups(&b->cgroups, name);
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
        r = strike ? cgroup_kill(&b->cgroups, m.name) : sweep_jail(b, m.name);

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

    birth_set_up(b);
    return 0;
}

static void do_request(struct builder *b, struct frame *f)
{
    struct pd_err e;

    switch (f->head.type) {
    case WIRE_BUILD:
        do_build(b, f);
        break;
    case WIRE_PREPARE:
        do_prepare(b, f);
        break;
    case WIRE_SWEEP:
        do_sweep(b, f, 0);
        break;
    case WIRE_STRIKE:
        do_sweep(b, f, 1);
        break;
    case WIRE_REMOVE_ROOT:
    case WIRE_KEEP_ROOT:
        do_root(b, f);
        break;
    case WIRE_COPY:
        do_copy(b, f);
        break;
    case WIRE_THAW:
        do_thaw(b, f);
        break;
    case WIRE_STEER:
        do_steer(b, f);
        break;
    default:
        pd_fail(&e, PD_PROTOCOL, "message type %u is not for a builder", f->head.type);
        reply_error(b, f->head.id, &e);
    }
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
    (void)frame_reserve(&f); /* without it a frame takes two calls */
    while (wire_recv(sock, &f, DEADLINE_NONE, &e) > 0) {
        if (need_cgroups(&b, &e) < 0) {
            reply_error(&b, f.head.id, &e);
            frame_reset(&f);
            continue;
        }
        do_request(&b, &f);
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
