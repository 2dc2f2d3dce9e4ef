/* How a command starts: init vforks, so parent and child share memory until the exec; the child
 * therefore touches nothing but its own stack and `struct launch`, and makes raw system calls
 * (libc's setuid family would try to synchronise threads that are not there). When a step fails the
 * child leaves its name and errno in the launch and exits, and init turns that into the answer. */
#include "init/init.h"

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

struct launch {
    const struct msg_exec *m;
    const struct init *in;
    unsigned flags;
    const int *fds;
    char **argv;
    char **env;
    const char *path; /* $PATH of the command's environment */
    /* set by the child on failure */
    const char *step;
    int sys;
};

static int failed(struct launch *l, const char *step)
{
    l->step = step;
    l->sys = errno;
    return -1;
}

static int limit(struct launch *l, int what, uint64_t value)
{
    struct rlimit r = {value, value};
    return value && setrlimit(what, &r) < 0 ? failed(l, "set resource limits") : 0;
}

/* Becomes the user and gives up every capability. In `dev` sandbox root keeps what init has: the
 * seven of the profile, which is also all that the bounding set holds. */
static int become(struct launch *l)
{
    if (l->in->mode != INIT_SINGLE) {
        gid_t none = 0;
        if (syscall(SYS_setgroups, (size_t)0, &none) < 0 ||
            syscall(SYS_setresgid, l->m->gid, l->m->gid, l->m->gid) < 0 ||
            syscall(SYS_setresuid, l->m->uid, l->m->uid, l->m->uid) < 0)
            return failed(l, "become the user");
    }
    if (l->in->mode == INIT_DEV && l->m->uid == 0)
        return 0;
#ifdef PADDOCK_WEAK_WALLS
    if (getenv("PADDOCK_KEEP_CAPS"))
        return 0;
#endif
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    return syscall(SYS_capset, &head, none) < 0 ? failed(l, "drop capabilities") : 0;
}

/* A file that the kernel does not know how to run is a shell script without its first line, as
 * execvp(3) has it. */
static void exec_script(struct launch *l, const char *file)
{
    char **argv = l->argv - 1; /* one spare slot stands in front */
    argv[0] = (char *)"/bin/sh";
    argv[1] = (char *)file;
    execve(argv[0], argv, l->env);
}

static void exec_file(struct launch *l, const char *file)
{
    execve(file, l->argv, l->env);
    if (errno == ENOEXEC)
        exec_script(l, file);
}

/* Looks a plain name up in the command's own PATH, as the user, inside the jail. */
static void exec_search(struct launch *l)
{
    const char *name = l->argv[0];
    char file[4096];
    int denied = 0;
    for (const char *p = l->path; *p && *name;) { /* no name is no directory either */
        size_t len = strcspn(p, ":");
        int n = snprintf(file, sizeof file, "%.*s/%s", (int)len, p, name);
        if (len && n > 0 && (size_t)n < sizeof file) {
            exec_file(l, file);
            denied |= errno == EACCES;
            if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
                return;
        }
        p += len + (p[len] == ':');
    }
    errno = denied ? EACCES : ENOENT;
}

static int child(void *arg)
{
    struct launch *l = arg;
    if (l->flags & EXEC_CGROUP && write(l->fds[3], "0", 1) < 0) {
        failed(l, "enter the command's cgroup");
        _exit(127);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    for (int i = 0; i < 3; i++)
        if (dup2(l->fds[i], i) < 0) {
            failed(l, "set up standard streams");
            _exit(127);
        }
    if (l->flags & EXEC_PTY && ioctl(0, TIOCSCTTY, 0) < 0) {
        failed(l, "take the terminal");
        _exit(127);
    }
    umask(022);
    if (limit(l, RLIMIT_FSIZE, l->m->file_size) < 0 ||
        limit(l, RLIMIT_DATA, l->in->memory_limit) < 0 || become(l) < 0 ||
        limit(l, RLIMIT_NPROC, l->in->process_limit) < 0)
        _exit(127);
    if (chdir(l->m->cwd) < 0) {
        failed(l, "chdir");
        _exit(127);
    }
#ifdef PADDOCK_WEAK_WALLS
    if (!getenv("PADDOCK_KEEP_FDS"))
#endif
        syscall(SYS_close_range, 3, ~0u, 0);
    if (strchr(l->argv[0], '/'))
        exec_file(l, l->argv[0]);
    else
        exec_search(l);
    failed(l, "exec");
    _exit(127);
}

static int explain(const struct launch *l, struct pd_err *e)
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

/* A NULL-terminated array of the list's strings, with one spare slot in front. Free the result. */
static char **vector(const struct msg_list *list)
{
    char **v = calloc(list->count + 2, sizeof *v);
    if (!v)
        return NULL;
    uint32_t pos = 0;
    for (uint32_t i = 0; i < list->count; i++)
        v[i + 1] = (char *)msg_list_next(list, &pos);
    return v;
}

pid_t init_spawn(struct init *in, const struct msg_exec *m, struct frame *f, unsigned flags,
                 struct pd_err *e)
{
    if (f->fd_count != (flags & EXEC_CGROUP ? 4u : 3u))
        return pd_fail(e, PD_PROTOCOL, "exec with %u descriptors", f->fd_count);
    char **argv = vector(&m->argv), **env = vector(&m->environ);
    void *stack = malloc(CHILD_STACK);
    struct launch l = {.m = m, .in = in, .flags = flags, .fds = f->fds, .path = "/usr/bin:/bin"};
    pid_t pid = -1;
    if (argv && env && stack) {
        l.argv = argv + 1;
        l.env = env + 1;
        for (char **v = l.env; *v; v++)
            if (!strncmp(*v, "PATH=", 5))
                l.path = *v + 5;
        pid = clone(child, (char *)stack + CHILD_STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, &l);
        if (pid < 0) {
            pd_fail_sys(e, "fork");
        } else if (l.step) {
            waitpid(pid, NULL, 0);
            explain(&l, e);
            pid = -1;
        }
    } else {
        pd_fail(e, PD_CAPACITY, "no memory to start a command");
    }
    free(argv);
    free(env);
    free(stack);
    return pid;
}
