/* holder: keeps the tree of a command together where no cgroup does.
 *
 * In a box that somebody else made there may be no cgroup for a command (an engine or a server
 * without privilege). Then its parent is not init but a holder: a child of init, and a subreaper,
 * so that whatever the command forks comes to it in the end, whatever sessions it makes. It waits
 * for what comes to it, and ends as the command does, which is how init hears of the end; what the
 * command has left behind is init's child from then on. To kill the command, init asks the holder,
 * which kills its children until it has none (tree.h).
 *
 * A holder has init's user and nothing of its descriptors. What it learns at the start it tells
 * over a pipe; the text of a failed step is a constant of the program, so its address does. */
#include "init/init.h"

#include "init/fds.h"
#include "init/tree.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define TREE_PATIENCE (2 * NS_PER_S)

bool holder_is_needed(const struct init *in, unsigned flags)
{
    return in->foreign && !(flags & (EXEC_CGROUP | EXEC_WORKER));
}

/* Ends as another process has. */
static _Noreturn void end_as(int status)
{
    if (!WIFSIGNALED(status))
        _exit(WEXITSTATUS(status));

    int number = WTERMSIG(status);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    signal(number, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    kill(getpid(), number);
    _exit(128 + number);
}

static _Noreturn void hold(pid_t command)
{
    sigset_t waits;
    sigemptyset(&waits);
    sigaddset(&waits, SIGCHLD);
    sigaddset(&waits, SIGTERM);

    for (;;) {
        int status;
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) != 0;) {
            if (pid == command)
                end_as(status);
            if (pid < 0 && errno != EINTR)
                _exit(127); /* it has no child, which cannot be */
        }

        siginfo_t info;
        if (sigwaitinfo(&waits, &info) == SIGTERM) {
            (void)tree_end(deadline_in(TREE_PATIENCE));
            end_as(SIGKILL);
        }
    }
}

/* It came with the command's. */
static void take_own_score(const struct init *in)
{
    const struct foreign *f = in->foreign;
    auto_fd file = f->oom_file < 0 ? -1 : open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (file >= 0)
        (void)!write(file, f->oom_own, strlen(f->oom_own));
}

static _Noreturn void run_holder(const struct init *in, holder_start *start, void *arg, int tell)
{
    sigset_t waits;
    sigemptyset(&waits);
    sigaddset(&waits, SIGCHLD);
    sigaddset(&waits, SIGTERM);
    sigprocmask(SIG_BLOCK, &waits, NULL);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);

    struct holder_told told = start(arg);
    take_own_score(in);
    bool heard = write(tell, &told, sizeof told) == (ssize_t)sizeof told;
    if (told.pid < 0 || !heard || fds_close_from(0) < 0) {
        if (told.pid > 0)
            (void)tree_end(deadline_in(TREE_PATIENCE));
        _exit(127);
    }
    hold(told.pid);
}

int holder_fork(const struct init *in, holder_start *start, void *arg, pid_t *ret_holder,
                struct holder_told *ret, struct pd_err *e)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "make a pipe");

    auto_fd hear = ends[0], tell = ends[1];
    pid_t pid = fork();
    if (pid < 0)
        return pd_fail_sys(e, "fork");
    if (pid == 0) {
        fd_done(&hear);
        run_holder(in, start, arg, tell);
    }

    fd_done(&tell);
    ssize_t n;
    do
        n = read(hear, ret, sizeof *ret);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof *ret) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        return pd_fail(e, PD_CAPACITY, "the holder of a command has ended before it started");
    }

    if (ret->pid < 0)
        waitpid(pid, NULL, 0);
    *ret_holder = pid;
    return 0;
}

int holder_kill(const struct process *p)
{
    /* A copy of a driver is in its parent's tree as long as the holder lives, and is not to die
     * with it. Then what the command has put into other groups stays as well, until the box ends.
     */
    if (p->holder && !p->was_copied)
        return kill(p->holder, SIGTERM);
    return kill(-p->pid, SIGKILL) == 0 ? 0 : kill(p->pid, SIGKILL);
}
