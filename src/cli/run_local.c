/* The provider `local`: a plain subprocess. No isolation, and it says so. What it keeps of the
 * contract: the result record, the time-out, the output limit, and that a time-out ends everything
 * the command started. */
#include "cli/run.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#define KILL_ROUNDS 1000

/* Every process whose ancestor we are: as a subreaper we inherit what the command orphaned. */
static int kill_children(pid_t parent, int depth)
{
    char path[64], list[65536];
    int found = 0;

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    if (depth > 64 || fd_read_file(AT_FDCWD, path, list, sizeof list) <= 0)
        return 0;

    for (char *p = list; *p;) {
        char *end;
        pid_t child = (pid_t)strtol(p, &end, 10);
        if (end == p)
            break;
        p = end + strspn(end, " ");
        kill(child, SIGSTOP); /* a shell would tell of its children that were killed */
        found += 1 + kill_children(child, depth + 1);
        kill(child, SIGKILL);
    }
    return found;
}

static void kill_tree(void)
{
    for (int i = 0; i < KILL_ROUNDS && kill_children(getpid(), 0); i++) {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        usleep(1000);
    }
}

/* The child's report when it cannot become the command. */
struct failure {
    int sys;
    int in_chdir;
};

static _Noreturn void child(const struct run_options *o, int out, int err, int report)
{
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);

    if (out >= 0)
        dup2(out, STDOUT_FILENO);
    if (err >= 0)
        dup2(err, STDERR_FILENO);
    for (unsigned i = 0; i < o->env_count; i++)
        putenv((char *)o->env[i]);

    struct rlimit fsize = {o->file_size, o->file_size};
    if (o->file_size)
        setrlimit(RLIMIT_FSIZE, &fsize);

    struct failure f = {.in_chdir = o->workdir[0] && chdir(o->workdir) < 0};
    if (!f.in_chdir)
        execvp(o->argv[0], o->argv);
    f.sys = errno;
    (void)!write(report, &f, sizeof f);
    _exit(127);
}

static int start(const struct run_options *o, struct run_result *r, struct stream *out,
                 struct stream *err, struct pd_err *e)
{
    int p[2];

    if (pipe2(p, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "make a pipe");

    auto_fd report_near = p[0], report_far = p[1];
    auto_fd out_far = -1, err_far = -1;
    int piped = o->json || o->output;
    if (piped) {
        if (pipe2(p, O_CLOEXEC) < 0)
            return pd_fail_sys(e, "make a pipe");
        out_far = p[1];
        if (stream_init(out, p[0], STDOUT_FILENO) < 0 || pipe2(p, O_CLOEXEC) < 0)
            return pd_fail_sys(e, "make a pipe");
        err_far = p[1];
        if (stream_init(err, p[0], STDERR_FILENO) < 0)
            return pd_fail(e, PD_CAPACITY, "no memory for the streams");
        out->from_is_ours = err->from_is_ours = 1;
        if (o->json) {
            out->capture = &r->out;
            err->capture = &r->err;
        }
    }

    pid_t pid = fork();
    if (pid < 0)
        return pd_fail_sys(e, "fork");
    if (pid == 0)
        child(o, out_far, err_far, report_far);

    fd_done(&report_far);
    struct failure f;
    if (read(report_near, &f, sizeof f) == sizeof f) {
        waitpid(pid, NULL, 0);
        if (f.in_chdir)
            return pd_fail(e, PD_INVALID, "working directory '%.150s': %s", o->workdir,
                           strerror(f.sys));
        enum pd_code code = f.sys == ENOENT ? PD_NO_COMMAND : PD_NOT_EXECUTABLE;
        return pd_fail(e, code, "'%.150s': %s", o->argv[0], strerror(f.sys));
    }
    return pid;
}

/* A terminal signals its whole foreground group, the command included; what somebody sent to us
 * alone is passed on. */
static void forward(int signals, pid_t pid)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == sizeof info)
        if (info.ssi_signo != SIGCHLD && info.ssi_code <= 0)
            kill(pid, (int)info.ssi_signo);
}

int run_locally(struct run_options *o, struct run_result *ret, struct pd_err *e)
{
    struct stream out = {.from = -1}, err = {.from = -1};
    sigset_t mask;

    ret->provider = "local";
    ret->rung = RUNG_NONE;
    ret->reason = "--provider local runs without isolation";

    if (isatty(STDERR_FILENO))
        fputs("paddock: local runs without isolation\n", stderr);

    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    static const int watched[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++)
        sigaddset(&mask, watched[i]);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    signal(SIGPIPE, SIG_IGN);
    auto_fd signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);

    uint64_t began = clock_now();
    deadline d = o->timeout_ns ? deadline_in(o->timeout_ns) : DEADLINE_NONE;
    pid_t pid = start(o, ret, &out, &err, e);
    if (pid < 0)
        return -1;

    ret->process_id = pid;
    int status = 0, ended = 0;
    struct rusage usage = {0};
    while (!ended) {
        struct pollfd p[3] = {{signals, POLLIN, 0}};
        unsigned n = 1, has_out = stream_poll(&out, &p[n]);
        n += has_out;
        unsigned at_err = n, has_err = stream_poll(&err, &p[n]);
        n += has_err;

        if (poll(p, n, deadline_poll_ms(d)) < 0)
            continue;
        if (has_out)
            stream_move(&out, p[1].revents);
        if (has_err)
            stream_move(&err, p[at_err].revents);
        forward(signals, pid);

        pid_t got;
        int st;
        struct rusage u;
        while ((got = wait4(-1, &st, WNOHANG, &u)) > 0)
            if (got == pid) {
                ended = 1;
                status = st;
                usage = u;
            }

        if (o->output && out.total + err.total > o->output)
            ret->stopped_by = STOP_OUTPUT;
        else if (!ended && deadline_passed(d))
            ret->stopped_by = STOP_TIMEOUT;
        if (ret->stopped_by)
            break;
    }

    ret->time_ns = clock_now() - began;
    if (ret->stopped_by) {
        kill_tree();
        status = SIGKILL;
    } else if (o->file_size && WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) {
        ret->stopped_by = STOP_DISK;
    }

    stream_drain(&out, d);
    stream_drain(&err, d);

    ret->status = status;
    ret->max_rss = (uint64_t)usage.ru_maxrss * 1024;
    ret->cpu_usec = (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
                    (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    return 0;
}
