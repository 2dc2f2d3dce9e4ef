/* The operation `join`: it stands for a process that another one of the sandbox has forked, so that
 * init knows that process as a command: its group, its signals, its end.
 *
 * A driver of code contexts is asked to fork, and gets one end of a socket pair; descriptor 0 here
 * is the other. Its child says its pid. The worker moves the child into the command's group, whose
 * entrance it has at descriptor 3, and lets it go on by a byte. From then on it passes signals on,
 * and ends as the child ends: the kernel tells when (pidfd), and /proc or the child's parent (`end
 * STATUS`) tells how. All of this is the user's own business: a lie hits the liar's own processes.
 *
 * In a box on another machine nobody can send descriptors to the driver from outside. The worker
 * has those of the child itself then, as 0 to 3, and a NAME: it listens there, and hands them over
 * to the driver that connects, with the other end of a join socket that it makes. Anybody in the
 * sandbox may connect; only a process of its own user is handed anything, and others are turned
 * away. The driver looks at whom it has reached as well.
 *
 * COPIED is the name of the command that forks: init must not kill the copy with it.
 *
 * Where commands have no group, init kills the worker alone. A guard, a child of the worker,
 * notices that and kills the process for which the worker stood, with its process group.
 *
 * The worker is not dumpable, so the sandbox's user cannot reach its descriptors. */
#include "init/worker.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#define ENTRANCE     3
#define HAND_OVER_MS 20000 /* for the driver to connect */
#define LATE_MS      2000  /* for the word of a parent that reaps its child */
#define PID_TEXT_MAX 64

static volatile pid_t child;

static void pass_on(int number)
{
    int before = errno;
    if (child > 1 && kill(-child, number) < 0)
        (void)kill(child, number);
    errno = before;
}

/* A line of the socket, without its newline: its length, or -1 at the end or after `patience` ms
 * (-1: no bound) of nothing. */
static int read_line(char *out, size_t size, int patience)
{
    size_t len = 0;
    while (len + 1 < size) {
        struct pollfd p = {.fd = 0, .events = POLLIN};
        int ready = poll(&p, 1, patience);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return -1;

        ssize_t n = read(0, out + len, 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        if (out[len] == '\n') {
            out[len] = 0;
            return (int)len;
        }
        len++;
    }
    return -1;
}

/* How a process that has ended and was not reaped ended: 0 with *ret, or -1. */
static int read_status(pid_t pid, int *ret)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (fd_read_file(-1, path, text, sizeof text) <= 0)
        return -1;

    /* The name is in brackets and may hold anything. What follows: the state, and as the last of 50
     * numbers the status. */
    char *at = strrchr(text, ')');
    if (!at || strncmp(at, ") Z", 3) != 0)
        return -1;
    at = strrchr(at, ' ');
    uint64_t status;
    struct pd_err e;
    if (!at)
        return -1;
    at[1 + strcspn(at + 1, "\n")] = 0;
    if (parse_u64("status", at + 1, 0, 0xffff, &status, &e) < 0)
        return -1;
    *ret = (int)status;
    return 0;
}

/* Waits for its end. `pidfd` -1: by looking. */
static void await_end(pid_t pid, int pidfd)
{
    for (;;) {
        struct pollfd p = {.fd = pidfd, .events = POLLIN};
        int n = poll(&p, 1, pidfd >= 0 ? -1 : 200), status;
        if (n > 0 || (pidfd < 0 && (kill(pid, 0) < 0 || read_status(pid, &status) == 0)))
            return;
    }
}

/* The parent's word: `end STATUS`, or `end lost`. */
static int told_status(int *ret)
{
    char line[PID_TEXT_MAX];
    uint64_t status;
    struct pd_err e;
    if (read_line(line, sizeof line, LATE_MS) < 0 || strncmp(line, "end ", 4) != 0 ||
        parse_u64("status", line + 4, 0, 0xffff, &status, &e) < 0)
        return -1;
    *ret = (int)status;
    return 0;
}

static _Noreturn void end_as(int status)
{
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        (void)kill(getpid(), WTERMSIG(status));
    }
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 255);
}

/* The guard's whole life: until the worker or the process is gone. `worker` is at its end when
 * nobody has the other end of the pipe. */
static _Noreturn void guard(pid_t pid, int pidfd, int worker)
{
    (void)setsid();
    struct pollfd fds[2] = {{.fd = worker, .events = POLLIN}, {.fd = pidfd, .events = POLLIN}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR)
        ;
    if (!fds[1].revents && kill(-pid, SIGKILL) < 0)
        (void)kill(pid, SIGKILL);
    _exit(0);
}

/* Without a pidfd (Linux before 5.3) there is none: the number might be another's by then. */
static void start_guard(pid_t pid, int pidfd)
{
    int ends[2];
    if (pidfd < 0 || pipe2(ends, O_CLOEXEC) < 0)
        return;

    pid_t guard_pid = fork();
    if (guard_pid == 0) {
        /* The join socket is not its own: whoever waits at its other end waits for the worker. */
        for (int i = 0; i <= ENTRANCE; i++)
            if (i != ends[0] && i != pidfd)
                (void)close(i);
        (void)close(ends[1]);
        guard(pid, pidfd, ends[0]);
    }
    /* Away from the worker's process group, which is what is killed: also while it has not run yet.
     */
    if (guard_pid > 0)
        (void)setpgid(guard_pid, guard_pid);
    (void)close(ends[0]);
    if (guard_pid < 0)
        (void)close(ends[1]);
    /* Otherwise it stays open for as long as this worker lives. */
}

static int listen_at(const char *name, struct pd_err *e)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int n = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "paddock-%s", name);
    if (n >= (int)sizeof at.sun_path - 1)
        return pd_fail(e, PD_INVALID, "join: the name is too long");

    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    auto_fd listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, len) < 0 || listen(listener, 1) < 0)
        return pd_fail_sys(e, "listen for the driver");
    return fd_take(&listener);
}

/* Is it a process of this user? One of another pid namespace has no number here. */
static bool is_own(int peer)
{
    struct ucred who;
    socklen_t len = sizeof who;
    return getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && who.uid == geteuid() &&
           who.pid > 0;
}

/* The driver's connection. Those of others are closed, however many come. */
static int accept_driver(int listener, struct pd_err *e)
{
    deadline d = deadline_in(HAND_OVER_MS * NS_PER_MS);
    while (!deadline_passed(d)) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        if (poll(&p, 1, deadline_poll_ms(d)) <= 0)
            continue;
        auto_fd peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (peer >= 0 && is_own(peer))
            return fd_take(&peer);
    }
    return pd_fail(e, PD_LOST, "no driver has come for the descriptors");
}

/* The four descriptors of the child and a join socket, with a byte. */
static int send_descriptors(int driver, int join)
{
    const int fds[] = {0, 1, 2, 3, join};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof fds)] = {0};
    struct iovec byte = {.iov_base = (char[]){'d'}, .iov_len = 1};
    struct msghdr m = {.msg_iov = &byte,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof control};

    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(c), fds, sizeof fds);
    return sendmsg(driver, &m, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

/* Afterwards descriptor 0 is the join socket. The child's streams are nobody's here, and nothing
 * can be written to what is in their place: there is no entrance either. */
static int hand_over(const char *name, struct pd_err *e)
{
    int pair[2];
    auto_fd listener = listen_at(name, e);
    if (listener < 0)
        return -1;

    auto_fd driver = accept_driver(listener, e);
    if (driver < 0)
        return -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return pd_fail_sys(e, "make a join socket");

    auto_fd own = pair[0], other = pair[1];
    auto_fd null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (send_descriptors(driver, other) < 0)
        return pd_fail_sys(e, "hand descriptors over");
    if (dup2(own, 0) < 0)
        return pd_fail_sys(e, "keep the join socket");
    for (int i = 1; i <= ENTRANCE; i++)
        if (dup2(null, i) < 0)
            return pd_fail_sys(e, "let go of the child's streams");
    return 0;
}

int worker_join(struct worker_job *w, struct pd_err *e)
{
    static const int passed[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    char line[PID_TEXT_MAX];
    uint64_t pid;
    if (w->argc > 1 && strcmp(w->argv[1], "-") != 0 && hand_over(w->argv[1], e) < 0)
        return -1;

    /* Before a process may move between groups the kernel waits until every processor has been seen
     * at rest. It remembers that for a moment: asked now, for a move of this worker to where it is,
     * it waits while the driver forks, and not behind that. */
    char text[PID_TEXT_MAX];
    int n = snprintf(text, sizeof text, "%d", (int)getpid());
    (void)!write(ENTRANCE, text, (size_t)n);

    if (read_line(line, sizeof line, -1) < 0 || parse_u64("pid", line, 2, INT32_MAX, &pid, e) < 0)
        return pd_fail(e, PD_PROTOCOL, "nobody said which process has joined");
    int pidfd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);

    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
        sigaction(passed[i], &(struct sigaction){.sa_handler = pass_on}, NULL);
    child = (pid_t)pid;

    /* Where commands have no group of their own there is no entrance. */
    n = snprintf(text, sizeof text, "%d", (int)pid);
    if (write(ENTRANCE, text, (size_t)n) < 0)
        start_guard((pid_t)pid, pidfd);
    if (fd_write_all(0, "g", 1) < 0)
        return pd_fail(e, PD_LOST, "the process that was to join is gone");

    int status;
    await_end((pid_t)pid, pidfd);
    if (read_status((pid_t)pid, &status) < 0 && told_status(&status) < 0)
        status = 255 << 8;
    end_as(status);
}
