/* How this works: the watch is born in a nursery (nursery.h), which has seen no credentials. The
 * stand-in is a program of its own (box/near.h), because it reads what a box says; the carrier is
 * a fork that opens the engine by itself. Both die with the watch (PR_SET_PDEATHSIG).
 *
 * The broker hears on a socket: a line for each attempt that failed, and an empty one when the link
 * is up. */
#include "engine/far_box.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/secret_env.h"
#include "engine/carrier.h"
#include "engine/nursery.h"
#include "engine/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define LOCK_FD    NEAR_ORDERS /* in the watch, whose stand-in has no lock */
#define PROGRAM_FD (NEAR_CONTROL + NEAR_FDS)

#define NOBODY       65534u
#define EARLY        NS_PER_S /* a carrier that dies sooner is not started again at once */
#define CARRIER_WAIT (250 * NS_PER_MS)

/* ---- the watch ---- */

struct watch {
    const struct broker_config *config;
    const char *container;
    int orders[2]; /* the stand-in's end, the carrier's */
    int secrets;   /* credentials that the environment had, for carriers (secret_env.h); or -1 */
    pid_t stand_in, carrier;
    uint64_t carrier_began;
};

/* To a child: the end of the watch is its own. */
static void follow(pid_t watch, const char *name)
{
    sigset_t none;
    sigemptyset(&none);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != watch)
        _exit(1);
    prctl(PR_SET_NAME, name, 0, 0, 0);
    sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
}

/* It reads what a box says: nothing of this machine is its own but its descriptors. */
static int shed(void)
{
    if (geteuid() == 0 && (setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0 ||
                           setresuid(NOBODY, NOBODY, NOBODY) < 0))
        return -1;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ? -1
                                                                                                : 0;
}

/* As a program of its own: its descriptors are those of near.h, and it has no environment. */
static _Noreturn void be_stand_in(const struct watch *w, pid_t watch)
{
    char parent[16];
    char *const argv[] = {(char *)"paddock-standin",
                          (char *)"stand-in",
                          parent,
                          (char *)(uintptr_t)w->config->state_dir,
                          (char *)(uintptr_t)w->container,
                          NULL};
    char *const nothing[] = {NULL};

    /* Setting a user takes the signal of the parent's death away: it is asked for behind that. */
    snprintf(parent, sizeof parent, "%d", (int)watch);
    if (shed() < 0)
        _exit(1);
    follow(watch, "paddock-standin");
    int orders = fcntl(w->orders[0], F_DUPFD, PROGRAM_FD + 1);
    if (orders < 0 || dup2(orders, NEAR_ORDERS) < 0)
        _exit(1);
    fcntl(PROGRAM_FD, F_SETFD, FD_CLOEXEC);
    syscall(SYS_close_range, PROGRAM_FD + 1, ~0u, 0);
    syscall(SYS_execveat, PROGRAM_FD, "", argv, nothing, AT_EMPTY_PATH);
    _exit(127);
}

static int start_stand_in(struct watch *w)
{
    pid_t own = getpid();
    w->stand_in = fork();
    if (w->stand_in == 0)
        be_stand_in(w, own);
    return w->stand_in < 0 ? -1 : 0;
}

static int start_carrier(struct watch *w)
{
    pid_t own = getpid();
    w->carrier_began = clock_now();
    w->carrier = fork();
    if (w->carrier == 0) {
        follow(own, "paddock-carrier");
        close(LOCK_FD);
        close(w->orders[0]);
        secret_env_unseal(w->secrets, w->config->kind->name);
        carrier_main(w->config, w->container, w->orders[1], NEAR_REPORT);
    }
    return w->carrier < 0 ? -1 : 0;
}

static bool is_gone(int status)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == CARRIER_GONE;
}

/* Waits for ends of children. Returns when the box is over. */
static void watch_both(struct watch *w)
{
    for (;;) {
        int status;
        pid_t pid = wait(&status);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid < 0 || pid == w->stand_in)
            return;
        if (pid != w->carrier)
            continue;
        if (is_gone(status))
            return;
        if (clock_now() - w->carrier_began < EARLY)
            nanosleep(&(struct timespec){.tv_nsec = (long)CARRIER_WAIT}, NULL);
        if (start_carrier(w) < 0)
            return;
    }
}

_Noreturn void far_box_main(const struct broker_config *c, const char *container, int secrets)
{
    struct watch w = {.config = c, .container = container, .secrets = secrets};

    (void)signal(SIGCHLD, SIG_DFL);
    (void)signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_NAME, "paddock-far", 0, 0, 0);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, w.orders) < 0 ||
        start_stand_in(&w) < 0)
        _exit(1);

    /* The stand-in's alone: who owns the box sees when that is gone; and a carrier has no key. */
    close(NEAR_CONTROL);
    close(NEAR_SECRET);
    close(PROGRAM_FD);
    if (start_carrier(&w) < 0)
        _exit(1);
    watch_both(&w);
    _exit(0); /* the other one goes along */
}

/* ---- the broker's side ---- */

/* 0 when the link is up. What was said before is why it is not. */
static int await_link(int report, int process, deadline t, struct pd_err *e)
{
    char last[240] = "";

    for (;;) {
        struct pollfd p[2] = {{.fd = report, .events = POLLIN}, {.fd = process, .events = POLLIN}};
        int n = poll(p, 2, deadline_poll_ms(t));
        if (n < 0 && errno != EINTR)
            return pd_fail_sys(e, "wait for the box's link");
        if (n == 0)
            return pd_fail(e, PD_TIMEOUT, "paddock-box in the box cannot be joined%s%s",
                           last[0] ? ": " : "", last);

        char line[sizeof last];
        ssize_t len = p[0].revents ? recv(report, line, sizeof line - 1, MSG_DONTWAIT) : -1;
        if (len == 1)
            return 0;
        if (len > 1)
            snprintf(last, sizeof last, "%.*s", (int)len - 1, line);
        else if (p[1].revents)
            return pd_fail(e, PD_LOST, "the box ended before its link was up%s%s",
                           last[0] ? ": " : "", last);
    }
}

pid_t far_box_start(const struct far_box *b, int *ret_process, deadline t, struct pd_err *e)
{
    int secret[2], report[2];

    if (pipe2(secret, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "make a pipe");
    auto_fd secret_out = secret[0], secret_in = secret[1];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, report) < 0)
        return pd_fail_sys(e, "make a socket");
    auto_fd report_out = report[0], report_in = report[1];
    struct near_secret told = b->secret;
    told.lease = b->config->lease;
    bool given = write(secret_in, &told, sizeof told) == (ssize_t)sizeof told;
    explicit_bzero(&told, sizeof told);
    if (!given)
        return pd_fail_sys(e, "hand over the key of a box");

    const int fds[NURSERY_FDS] = {b->control, b->lock, secret_out, report_in};
    auto_fd process = -1;
    pid_t pid = nursery_bear(b->nursery, b->config, b->container, fds, &process, e);
    fd_done(&report_in);
    if (pid < 0)
        return -1;
    if (await_link(report_out, process, t, e) < 0) {
        (void)syscall(SYS_pidfd_send_signal, process, SIGKILL, NULL, 0);
        return -1;
    }
    *ret_process = fd_take(&process);
    return pid;
}
