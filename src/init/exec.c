/* How a command starts: init vforks, so parent and child share memory until the exec; the child
 * therefore touches nothing but its own stack and `struct launch`, and makes raw system calls
 * (libc's setuid family would try to synchronise threads that are not there, and errno is init's).
 * When a step fails the child leaves its name and errno in the launch and exits, and init turns
 * that into the answer. A child that was there before its command goes the same way (runner.c).
 *
 * A worker is forked instead, because it goes on to run code of init's, with memory of its own. It
 * passes the same steps, in `enter`, and tells of a failed one by a record. */
#include "init/init.h"

#include "init/fds.h"
#include "init/launch.h"
#include "init/raw.h"
#include "init/worker.h"

#include "base/banned.h"
#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define CHILD_STACK (64u << 10)

/* Of the child until its exec. One child at a time has it: init sleeps meanwhile. Kept, because to
 * map it for every command takes as long as the messages of that command. */
static _Alignas(16) char child_stack[CHILD_STACK];

#ifdef __SANITIZE_ADDRESS__
/* A child leaves it by exec, and its frames would stay marked as in use. */
void __asan_unpoison_memory_region(const volatile void *at, size_t size);
#else
#define __asan_unpoison_memory_region(at, size) ((void)0)
#endif

/* `r` is what a raw system call returned. */
static int failed(struct launch *l, const char *step, long r)
{
    l->step = step;
    l->sys = (int)-r;
    return -1;
}

static int limit(struct launch *l, int what, uint64_t value)
{
    struct rlimit limits = {value, value};
    long r = value ? raw(SYS_prlimit64, 0, what, &limits, NULL) : 0;
    return r < 0 ? failed(l, "set resource limits", r) : 0;
}

static long set_ids(uint32_t uid, uint32_t gid)
{
    gid_t none = 0;
    long r = raw(SYS_setgroups, 0, &none);
    if (r == 0)
        r = raw(SYS_setresgid, gid, gid, gid);
    return r < 0 ? r : raw(SYS_setresuid, uid, uid, uid);
}

/* Becomes the user and gives up every capability. In `dev` sandbox root keeps what init has: the
 * seven of the profile, which is also all that the bounding set holds. */
static int become(struct launch *l)
{
    long r = l->in->mode == INIT_SINGLE ? 0 : set_ids(l->m->uid, l->m->gid);
    if (r < 0)
        return failed(l, "become the user", r);

    if (l->in->mode == INIT_DEV && l->m->uid == 0)
        return 0;
#ifdef PADDOCK_WEAK_WALLS
    if (getenv("PADDOCK_KEEP_CAPS"))
        return 0;
#endif

    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    r = raw(SYS_capset, &head, none);
    return r < 0 ? failed(l, "drop capabilities", r) : 0;
}

/* In `dev` the user may become root at any time. A worker that is to reach everything is root, but
 * what it makes is the user's: the kernel looks at the ids for files, and at the capabilities. */
static int reach(struct launch *l)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2];

    long r = set_ids(0, 0);
    if (r < 0)
        return failed(l, "become root", r);

    raw(SYS_setfsgid, l->m->gid);
    raw(SYS_setfsuid, l->m->uid); /* takes the capabilities for files away */

    if ((r = raw(SYS_capget, &head, caps)) < 0)
        return failed(l, "read capabilities", r);
    caps[0].effective = caps[0].permitted;
    caps[1].effective = caps[1].permitted;
    r = raw(SYS_capset, &head, caps);
    return r < 0 ? failed(l, "keep capabilities", r) : 0;
}

static int can_reach(const struct launch *l)
{
    return l->flags & EXEC_REACH && l->flags & EXEC_WORKER && l->in->mode == INIT_DEV;
}

/* A file that the kernel does not know how to run is a shell script without its first line, as
 * execvp(3) has it. Returns why there is no program. */
static long exec_file(struct launch *l, const char *file)
{
    long r = raw(SYS_execve, file, l->argv, l->env);
    if (r != -ENOEXEC)
        return r;

    char **argv = l->argv - 1; /* one spare slot stands in front */
    argv[0] = (char *)"/bin/sh";
    argv[1] = (char *)file;
    return raw(SYS_execve, argv[0], argv, l->env);
}

/* Looks a plain name up in the command's own PATH, as the user, inside the jail. */
static long exec_search(struct launch *l)
{
    const char *name = l->argv[0];
    size_t name_len = strlen(name);
    char file[4096];
    bool denied = false;

    for (const char *p = l->path; *p && *name;) { /* no name is no directory either */
        size_t len = strcspn(p, ":");
        if (len && len + 1 + name_len < sizeof file) {
            memcpy(file, p, len);
            file[len] = '/';
            memcpy(file + len + 1, name, name_len + 1);

            long r = exec_file(l, file);
            denied |= r == -EACCES;
            if (r != -ENOENT && r != -ENOTDIR && r != -EACCES)
                return r;
        }
        p += len + (p[len] == ':');
    }
    return denied ? -EACCES : -ENOENT;
}

/* dup2, which not every architecture has as a system call. */
static long place(int fd, int at)
{
    return fd == at ? raw(SYS_fcntl, fd, F_SETFD, 0) : raw(SYS_dup3, fd, at, 0);
}

void launch_prepare(void)
{
    static const uint64_t none;
    raw(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none);
    raw(SYS_setsid);
    raw(SYS_umask, 022);
}

/* From init's child to a process of the user's: cgroup, session, streams, limits, identity; no
 * other descriptor stays. What command and worker have in common. Descriptor 3 was the control
 * socket. */
static int enter(struct launch *l)
{
    long r = l->flags & EXEC_CGROUP ? raw(SYS_write, l->fds[3], "0", 1) : 0;
    if (r < 0)
        return failed(l, "enter the command's cgroup", r);

    for (int i = 0; i < 3; i++)
        if ((r = place(l->fds[i], i)) < 0)
            return failed(l, "set up standard streams", r);
    if (l->flags & EXEC_EXTRA && (r = place(l->fds[l->flags & EXEC_CGROUP ? 4 : 3], 3)) < 0)
        return failed(l, "set up descriptor 3", r);
    if (l->flags & EXEC_PTY && (r = raw(SYS_ioctl, 0, TIOCSCTTY, 0)) < 0)
        return failed(l, "take the terminal", r);

    /* A worker that lets another process into the command's group keeps the entrance. */
    unsigned first_closed = l->flags & EXEC_EXTRA ? 4u : 3u;
    if (l->joins) {
        if ((r = place(l->fds[3], 3)) < 0)
            return failed(l, "keep the entrance of the command's cgroup", r);
        first_closed = 4u;
    }

    if (limit(l, RLIMIT_FSIZE, l->m->file_size) < 0 ||
        limit(l, RLIMIT_DATA, l->in->memory_limit) < 0 ||
        (can_reach(l) ? reach(l) : become(l)) < 0 ||
        limit(l, RLIMIT_NPROC, l->in->process_limit) < 0)
        return -1;

#ifdef PADDOCK_WEAK_WALLS
    if (getenv("PADDOCK_KEEP_FDS"))
        return 0;
#endif
    r = raw(SYS_close_range, first_closed, ~0u, 0);
    if (r < 0)
        r = fds_close_from(first_closed);
    return r < 0 ? failed(l, "close init's descriptors (close_range, /proc/self/fd)", r) : 0;
}

_Noreturn void launch_go(struct launch *l)
{
    if (enter(l) == 0) {
        long r = raw(SYS_chdir, l->m->cwd);
        if (r < 0)
            failed(l, "chdir", r);
        else
            failed(l, "exec", strchr(l->argv[0], '/') ? exec_file(l, l->argv[0]) : exec_search(l));
    }
    for (;;)
        raw(SYS_exit_group, 127);
}

static int child(void *arg)
{
    launch_prepare();
    launch_go(arg);
}

int launch_explain(const struct launch *l, struct pd_err *e)
{
    errno = l->sys;
    if (!strcmp(l->step, "chdir"))
        return pd_fail(e, PD_INVALID, "working directory '%.150s': %s", l->m->cwd,
                       strerror(l->sys));
    if (strcmp(l->step, "exec") != 0)
        return pd_fail_sys(e, "%s", l->step);

    if (l->sys == ENOENT || l->sys == ENOTDIR)
        return pd_fail(e, PD_NO_COMMAND, "'%.150s': command not found in the sandbox", l->argv[0]);
    if (l->sys == E2BIG || l->sys == ENOMEM || l->sys == EAGAIN)
        return pd_fail_sys(e, "'%.150s'", l->argv[0]);
    return pd_fail(e, PD_NOT_EXECUTABLE, "'%.150s': cannot be executed: %s", l->argv[0],
                   strerror(l->sys));
}

void launch_words(const struct msg_list *list, char **v)
{
    uint32_t pos = 0;
    for (uint32_t i = 0; i < list->count; i++)
        v[i + 1] = (char *)msg_list_next(list, &pos);
    v[list->count + 1] = NULL;
}

static char **vector(const struct msg_list *list)
{
    char **v = calloc(list->count + 2, sizeof *v);
    if (v)
        launch_words(list, v);
    return v;
}

void launch_find_path(struct launch *l)
{
    l->path = "/usr/bin:/bin";
    for (char **v = l->env; *v; v++)
        if (!strncmp(*v, "PATH=", 5))
            l->path = *v + 5;
}

static pid_t fork_worker(struct launch *l, struct pd_err *e)
{
    pid_t pid = fork();
    if (pid < 0)
        return pd_fail_sys(e, "fork");
    if (pid)
        return pid;

    int stdout_now = l->fds[1];
    struct pd_err why;
    launch_prepare();
    if (enter(l) == 0)
        worker_main(l->m->cwd, l->argv);

    errno = l->sys;
    pd_fail_sys(&why, "%s", l->step);
    worker_refuse(stdout_now, &why);
}

/* Is it the worker `join`? Its fourth descriptor is the entrance of its group, or where there is no
 * group what a driver has there. */
static bool is_join(const struct msg_exec *m, unsigned flags)
{
    uint32_t pos = 0;
    const char *operation = flags & EXEC_WORKER ? msg_list_next(&m->argv, &pos) : NULL;
    return operation && !strcmp(operation, "join");
}

const char *init_joins_from(const struct msg_exec *m, unsigned flags)
{
    uint32_t pos = 0;
    if (!is_join(m, flags))
        return NULL;
    (void)msg_list_next(&m->argv, &pos);
    (void)msg_list_next(&m->argv, &pos);
    return msg_list_next(&m->argv, &pos);
}

int launch_check_fds(const struct msg_exec *m, const struct frame *f, unsigned flags,
                     struct pd_err *e)
{
    unsigned want = 3 + !!(flags & EXEC_CGROUP) + !!(flags & EXEC_EXTRA);
    bool may_have_extra = !(flags & EXEC_WORKER) || (is_join(m, flags) && !(flags & EXEC_CGROUP));

    if (f->fd_count != want)
        return pd_fail(e, PD_PROTOCOL, "exec with %u descriptors instead of %u", f->fd_count, want);
    if (flags & EXEC_WORKER && flags & EXEC_PTY)
        return pd_fail(e, PD_PROTOCOL, "a worker has no terminal");
    if (flags & EXEC_EXTRA && !may_have_extra)
        return pd_fail(e, PD_PROTOCOL, "a worker has no fourth descriptor");
    return 0;
}

static void set_oom_score(const struct init *in, bool of_command)
{
    const struct foreign *f = in->foreign;
    if (!f || f->oom_file < 0)
        return;

    const char *score = of_command ? f->oom_command : f->oom_own;
    (void)!pwrite(f->oom_file, score, strlen(score), 0);
}

/* The child shares this memory until it has its program, or has said why not. */
static struct holder_told start_child(void *arg)
{
    struct launch *l = arg;

    __asan_unpoison_memory_region(child_stack, sizeof child_stack);
    pid_t pid = clone(child, child_stack + CHILD_STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, l);
    if (pid < 0)
        return (struct holder_told){.pid = -1, .step = "fork", .sys = errno};
    if (!l->step)
        return (struct holder_told){.pid = pid};

    waitpid(pid, NULL, 0);
    return (struct holder_told){.pid = -1, .step = l->step, .sys = l->sys};
}

static pid_t start_command(struct launch *l, pid_t *ret_holder, struct pd_err *e)
{
    struct holder_told told;
    if (!holder_is_needed(l->in, l->flags))
        told = start_child(l);
    else if (holder_fork(l->in, start_child, l, ret_holder, &told, e) < 0)
        return -1;

    if (told.pid < 0) {
        l->step = told.step;
        l->sys = told.sys;
        *ret_holder = 0;
        launch_explain(l, e);
    }
    return told.pid;
}

pid_t init_spawn(struct init *in, const struct msg_exec *m, struct frame *f, unsigned flags,
                 pid_t *ret_holder, struct pd_err *e)
{
    *ret_holder = 0;
    if (launch_check_fds(m, f, flags, e) < 0)
        return -1;

    char **argv = vector(&m->argv), **env = vector(&m->environ);
    struct launch l = {.m = m, .in = in, .flags = flags, .fds = f->fds};
    pid_t pid = -1;

    set_oom_score(in, true);
    if (argv && flags & EXEC_WORKER) {
        l.argv = argv + 1;
        l.joins = flags & EXEC_CGROUP && is_join(m, flags);
        pid = fork_worker(&l, e);
    } else if (argv && env) {
        l.argv = argv + 1;
        l.env = env + 1;
        launch_find_path(&l);
        pid = start_command(&l, ret_holder, e);
    } else {
        pd_fail(e, PD_CAPACITY, "no memory to start a command");
    }
    set_oom_score(in, false);

    free(argv);
    free(env);
    return pid;
}
