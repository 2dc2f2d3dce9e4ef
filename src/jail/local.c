/* The worker of local boxes.
 *
 * How this works: a box is a directory BASE/INSTANCE/NAME, which is workspace and home of its
 * commands, and an init that runs there without any namespace. The keeper is init's parent, as with
 * a jail. Where the keeper is root the box has a uid of its own, from the range of its slot, and
 * no capability; otherwise it is the keeper's user. Limits and command groups are cgroups where
 * they can be had, else resource limits of each process.
 *
 * Nothing here isolates: a box sees the host's files, processes and network as its user may. */
#include "jail/local.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/live_dir.h"
#include "jail/cgroup.h"
#include "jail/clone.h"
#include "jail/identity.h"
#include "jail/init_image.h"
#include "jail/local_user.h"
#include "jail/store_in.h"
#include "jail/sweep.h"
#include "wire/msg.h"
#include "wire/start.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define ROOTLESS_DIR "boxes" /* in the state directory */

struct local {
    const struct builder_config *config;
    int sock, null, dev, init_image;
    int base, dir; /* of all keepers' boxes; of this keeper's, locked while it has a worker */
    char path[SPEC_PATH_MAX];
    char oom_score[16];
    struct cgroup_host cgroups;
    struct pd_err broken; /* why no box can be made; "" */
};

/* ---- answers ---- */

static void reply_error(const struct local *l, struct wire_id id, const struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct wire_head head = {.type = WIRE_ERROR, .id = id};

    msg_error_put(&out, e);
    (void)wire_send(l->sock, &head, &out, NULL, 0, DEADLINE_NONE);
}

static void reply_done(const struct local *l, struct wire_id id)
{
    struct wire_head head = {.type = WIRE_DONE, .id = id};
    (void)wire_send(l->sock, &head, NULL, NULL, 0, DEADLINE_NONE);
}

static void reply_built(const struct local *l, struct wire_id id, const char *name, pid_t pid)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_built m = {.rung = RUNG_NONE, .init_pid = pid};
    struct wire_head head = {.type = WIRE_BUILT, .id = id};

    /* Terminals are the host's: /dev has the ptmx that everybody may open. */
    auto_fd cgroup = l->cgroups.layout == CGROUP_NONE ? -1 : cgroup_jail_dir(&l->cgroups, name);
    int fds[4] = {cgroup >= 0 ? cgroup : l->null, l->dev >= 0 ? l->dev : l->null, l->null, l->null};

    msg_built_encode(&out, &m);
    (void)wire_send(l->sock, &head, &out, fds, 4, DEADLINE_NONE);
}

/* ---- making a box ---- */

/* Walls that were asked for and that there are none of here. */
static int check_spec(const struct spec *s, struct pd_err *e)
{
    if (s->min_rung > RUNG_NONE)
        return pd_fail(e, PD_ISOLATION, "provider local isolates nothing, '%s' was asked for",
                       rung_name(s->min_rung));
    if (s->profile == PROFILE_RESTRICTED)
        return pd_fail(e, PD_UNSUPPORTED,
                       "provider local cannot restrict programs: name another provider");
    if (s->root_dir[0] || s->root_name[0] || s->bind_count || s->image[0])
        return pd_fail(e, PD_UNSUPPORTED,
                       "provider local has no roots, binds and images: leave them away");
    return 0;
}

struct birth {
    const struct local *l;
    const struct cgroup *cgroup;
    const char *dir;
    int control;
    uid_t uid;
    char *const *argv;
    const char *step; /* that failed */
    int sys;
};

static int lacks(struct birth *b, const char *step)
{
    b->step = step;
    b->sys = errno;
    return -1;
}

/* Between vfork and exec: raw calls, because libc's would look after threads. */
static int child(void *arg)
{
    struct birth *b = arg;
    const struct local *l = b->l;
    char *env[] = {(char *)"PATH=/usr/local/bin:/usr/bin:/bin", NULL};
    gid_t none = 0;

    int r = l->cgroups.layout == CGROUP_NONE ? 0 : cgroup_enter(b->cgroup, 1);
    errno = -r;
    if (r < 0)
        lacks(b, "enter the cgroups");
    else if (b->control != INIT_OWNER_FD && dup2(b->control, INIT_OWNER_FD) < 0)
        lacks(b, "place the control socket");
    else if (fcntl(INIT_OWNER_FD, F_SETFD, 0) < 0)
        lacks(b, "keep the control socket");
    else if (setsid() < 0) /* else the keeper's terminal, if it has one, were the box's, too */
        lacks(b, "make a session");
    else if (fd_write_file(AT_FDCWD, "/proc/self/oom_score_adj", l->oom_score) < 0)
        lacks(b, "set the score for lack of memory"); /* while what is set cannot be lowered */
    else if (!l->config->rootless && (syscall(SYS_setgroups, (size_t)0, &none) < 0 ||
                                      syscall(SYS_setresgid, b->uid, b->uid, b->uid) < 0 ||
                                      syscall(SYS_setresuid, b->uid, b->uid, b->uid) < 0))
        lacks(b, "become the box's user");
    else if (!l->config->rootless && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        lacks(b, "set no_new_privs");
    else if (chdir(b->dir) < 0)
        lacks(b, "enter the box's directory");
    else {
        syscall(SYS_execveat, l->init_image, "", b->argv, env, AT_EMPTY_PATH);
        lacks(b, "start init");
    }
    _exit(1);
}

static pid_t give_birth(const struct local *l, struct birth *b, const struct spec *s,
                        struct pd_err *e)
{
    char user[40], place[SPEC_PATH_MAX + 16], home[SPEC_PATH_MAX + 16], memory[40], processes[40];
    char *argv[8] = {(char *)"paddock-init", (char *)INIT_ARG_LOCAL, user, place, home};

    snprintf(user, sizeof user, "user=%u:%u", b->uid, l->config->rootless ? getegid() : b->uid);
    snprintf(place, sizeof place, "workspace=%s", b->dir);
    snprintf(home, sizeof home, "home=%s", b->dir);
    if (l->cgroups.layout == CGROUP_NONE) {
        snprintf(memory, sizeof memory, "memory=%" PRIu64, s->limits.memory);
        snprintf(processes, sizeof processes, "processes=%" PRIu64,
                 l->config->rootless ? 0 : s->limits.pids); /* else it is all of the user's */
        argv[5] = memory;
        argv[6] = processes;
    }
    b->argv = argv;

    pid_t pid = clone_vfork(CLONE_PARENT, b->cgroup->unified, child, b);
    if (pid < 0) {
        errno = -pid;
        return pd_fail_sys(e, "start a process");
    }
    if (b->step) {
        errno = b->sys;
        return pd_fail_sys(e, "%s", b->step);
    }
    return pid;
}

static int make_dir(const struct local *l, const char *name, uid_t uid, struct pd_err *e)
{
    if (mkdirat(l->dir, name, 0700) < 0 ||
        (!l->config->rootless && fchownat(l->dir, name, uid, uid, AT_SYMLINK_NOFOLLOW) < 0))
        return pd_fail_sys(e, "make the directory %.150s/%s", l->path, name);
    return 0;
}

static void do_build(struct local *l, struct frame *f)
{
    struct pd_err e = l->broken;
    struct msg_build m;
    struct cgroup cgroup = CGROUP_EMPTY;
    char dir[SPEC_PATH_MAX + MSG_NAME_MAX + 2];
    auto_fd control = frame_take_fd(f, 0);

    if (l->broken.msg[0] || msg_build_decode(&f->payload, &m, &e) < 0 ||
        spec_check(&m.spec, &e) < 0 || check_spec(&m.spec, &e) < 0) {
        reply_error(l, f->head.id, &e);
        return;
    }

    struct birth b = {.l = l, .cgroup = &cgroup, .dir = dir, .control = control};
    b.uid = l->config->rootless ? geteuid() : identity_host_id(m.slot, UID_USER);
    snprintf(dir, sizeof dir, "%s/%s", l->path, m.name);

    pid_t pid = -1;
    if (make_dir(l, m.name, b.uid, &e) == 0 &&
        (l->cgroups.layout == CGROUP_NONE ||
         (cgroup_create(&l->cgroups, m.name, &cgroup, &e) == 0 &&
          cgroup_limit(&l->cgroups, m.name, &m.spec.limits, &e) == 0)))
        pid = give_birth(l, &b, &m.spec, &e);

    if (pid < 0)
        reply_error(l, f->head.id, &e); /* the keeper has it swept */
    else
        reply_built(l, f->head.id, m.name, pid);
    cgroup_close(&cgroup);
}

/* ---- ending one ---- */

/* The box's own user; without root there is none. */
static int end_user(const struct local *l, uid_t uid)
{
    return l->config->rootless || uid < RANGE_BASE ? 0 : local_user_end(uid);
}

/* What still runs could move the files while they are removed: it is ended first, also what has
 * left its cgroup's reach. */
static int sweep_box(const struct local *l, const char *name)
{
    struct stat st;
    bool is_there = fstatat(l->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;

    if (l->cgroups.layout != CGROUP_NONE)
        (void)cgroup_kill(&l->cgroups, name);
    int r = is_there ? end_user(l, st.st_uid) : 0;
    if (r == 0 && l->cgroups.layout != CGROUP_NONE)
        r = sweep_cgroups(&l->cgroups, name);
    return r == 0 && is_there ? store_remove_tree(l->dir, name) : r;
}

static int strike(const struct local *l, const struct msg_sweep *m)
{
    if (l->cgroups.layout == CGROUP_NONE)
        return 0; /* the keeper has killed init */
    if (!m->group[0])
        return cgroup_kill(&l->cgroups, m->name);

    auto_fd jail = cgroup_jail_dir(&l->cgroups, m->name);
    return jail < 0 ? jail : cgroup_command_kill(jail, m->group);
}

static void do_sweep(const struct local *l, const struct frame *f)
{
    struct pd_err e;
    struct msg_sweep m;

    if (msg_sweep_decode(&f->payload, &m, &e) < 0) {
        reply_error(l, f->head.id, &e);
        return;
    }

    int r = f->head.type == WIRE_STRIKE ? strike(l, &m) : sweep_box(l, m.name);
    errno = -r;
    if (r < 0) {
        pd_fail_sys(&e, "%s %s", f->head.type == WIRE_STRIKE ? "kill" : "remove", m.name);
        reply_error(l, f->head.id, &e);
        return;
    }
    reply_done(l, f->head.id);
}

/* ---- the directories ---- */

/* A directory that is ours and nobody else's. */
static int own_dir(int at, const char *path, int *ret, struct pd_err *e)
{
    struct stat st;

    if (mkdirat(at, path, 0711) < 0 && errno != EEXIST)
        return pd_fail_sys(e, "make the directory %.150s", path);
    *ret = openat(at, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*ret < 0 || fstat(*ret, &st) < 0)
        return pd_fail_sys(e, "open the directory %.150s", path);
    if (st.st_uid != geteuid() || st.st_mode & 022)
        return pd_fail(e, PD_DENIED, "the directory %.150s belongs to somebody else", path);

    /* A sandbox's user must get through, also where it was made with a narrow umask. */
    if (fchmod(*ret, (st.st_mode | 0111) & 07777) < 0)
        return pd_fail_sys(e, "open the directory %.150s to the users of sandboxes", path);
    return 0;
}

static int open_dirs(struct local *l, struct pd_err *e)
{
    const struct builder_config *c = l->config;
    const char *top = c->rootless ? c->state_dir : LOCAL_DIR;
    const char *below = c->rootless ? "/" ROOTLESS_DIR : "";
    auto_fd state = -1;

    if (snprintf(l->path, sizeof l->path, "%s%s/%s", top, below, c->instance) >=
        (int)sizeof l->path)
        return pd_fail(e, PD_INVALID, "the state directory's path is too long: %.100s", top);
    if (own_dir(AT_FDCWD, top, &state, e) < 0)
        return -1;

    /* Without root the state directory has named roots, too, which are not ours to remove. */
    if (!c->rootless)
        l->base = fd_take(&state);
    else if (own_dir(state, ROOTLESS_DIR, &l->base, e) < 0)
        return -1;

    l->dir = live_dir_hold(l->base, c->instance, 0711);
    errno = -l->dir;
    return l->dir < 0 ? pd_fail_sys(e, "make and lock the directory %.150s", l->path) : 0;
}

/* Ends what a dead keeper's box has left running. Its range may be another keeper's by now, who
 * does not hand it out before they have ended: then they are let be. */
static void end_orphans(const struct local *l, uid_t uid)
{
    auto_fd range = l->config->rootless ? -1 : range_borrow(uid);
    if (range >= 0)
        (void)end_user(l, uid);
}

/* Removes a keeper's directory whose workers are all gone, `dir`, on which nobody has a lock. */
static void remove_instance(const struct local *l, const char *instance, int dir)
{
    auto_fd again = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *boxes = again < 0 ? NULL : fdopendir(again);
    if (!boxes)
        return;

    (void)fd_take(&again);
    for (const struct dirent *d; (d = readdir(boxes));) {
        struct stat st;
        if (d->d_name[0] != '.' && fstatat(dir, d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            end_orphans(l, st.st_uid);
    }

    closedir(boxes);
    (void)store_remove_tree(l->base, instance);
}

static void remove_dead(const struct local *l)
{
    auto_fd again = openat(l->base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *all = again < 0 ? NULL : fdopendir(again);
    if (!all)
        return;

    (void)fd_take(&again);
    for (const struct dirent *d; (d = readdir(all));) {
        if (d->d_name[0] == '.')
            continue;
        auto_fd dir = live_dir_seize(l->base, d->d_name);
        if (dir >= 0)
            remove_instance(l, d->d_name, dir);
    }
    closedir(all);
}

static int set_up(struct local *l, struct pd_err *e)
{
    struct cgroup_mounts mounts;

    l->null = open("/dev/null", O_RDWR | O_CLOEXEC);
    l->dev = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (l->null < 0)
        return pd_fail_sys(e, "open /dev/null");

    auto_fd proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    snprintf(l->oom_score, sizeof l->oom_score, "%d", birth_oom_score(proc));

    cgroup_find(&mounts);
    if (cgroup_host_open(&l->cgroups, &mounts, l->config->instance, e) < 0)
        return -1;
    l->cgroups.owner = l->config->owner;
    sweep_hold_instance(&l->cgroups);

    if (open_dirs(l, e) < 0)
        return -1;
    remove_dead(l);
    return (l->init_image = init_image_open(e)) < 0 ? -1 : 0;
}

static void serve(struct local *l, struct frame *f)
{
    struct pd_err e;

    switch (f->head.type) {
    case WIRE_BUILD:
        do_build(l, f);
        return;
    case WIRE_SWEEP:
    case WIRE_STRIKE:
        do_sweep(l, f);
        return;
    default:
        pd_fail(&e, PD_UNSUPPORTED, "message type %u is not for a worker of local boxes",
                f->head.type);
        reply_error(l, f->head.id, &e);
    }
}

void local_main(const struct builder_config *c, int sock)
{
    static struct local l;
    struct pd_err e;

    l = (struct local){
        .config = c, .sock = sock, .null = -1, .dev = -1, .init_image = -1, .base = -1, .dir = -1};
    (void)umask(022); /* directories have the modes that are named */
    if (set_up(&l, &e) < 0)
        l.broken = e;

    struct frame f = FRAME_INIT;
    (void)frame_reserve(&f); /* without it a frame takes two calls */
    while (wire_recv(sock, &f, DEADLINE_NONE, &e) > 0) {
        serve(&l, &f);
        frame_reset(&f);
    }

    /* The keeper is gone, and each init ends with it. Whoever of the workers is the last one
     * removes the directory. */
    sweep_instance(&l.cgroups);
    if (l.dir >= 0 && flock(l.dir, LOCK_EX | LOCK_NB) == 0)
        remove_instance(&l, c->instance, l.dir);
    _exit(0);
}
