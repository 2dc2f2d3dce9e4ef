/* How this works: the broker starts this program anew for the watch, so that none of its memory,
 * which has seen the engine's credentials, comes into the stand-in. The stand-in is a fork of the
 * watch with a user of its own; the carrier is a fork that opens the engine by itself. Both die
 * with the watch (PR_SET_PDEATHSIG).
 *
 * The broker hears on a socket: a line for each attempt that failed, and an empty one when the link
 * is up. */
#include "engine/far_box.h"

#include "base/banned.h"
#include "base/beside.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/secret_env.h"
#include "engine/carrier.h"
#include "engine/remote.h"
#include "engine/stand_in.h"

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

#define CONTROL_FD 3
#define SECRET_FD  4
#define REPORT_FD  5
#define LOCK_FD    6
#define FDS        4

#define WATCH_WORDS 15u /* of its command line, without settings */

#define NOBODY       65534u
#define BUDGET       (16u << 20)
#define EARLY        NS_PER_S /* a carrier that dies sooner is not started again at once */
#define CARRIER_WAIT (250 * NS_PER_MS)

/* ---- the watch ---- */

struct watch {
    const struct broker_config *config;
    const char *container;
    struct far_secret secret;
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

static int dial(void *context)
{
    const struct watch *w = context;
    int fd = carrier_order(w->orders[0]);
    return fd < 0 ? STAND_IN_AGAIN : fd;
}

static void tell_up(void *context)
{
    (void)context;
    (void)send(REPORT_FD, "\n", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static _Noreturn void be_stand_in(struct watch *w, pid_t watch)
{
    struct pd_err e;
    struct stand_in_config c = {.who = {.role = LINK_KEEPER, .box = w->secret.box, .epoch = 1},
                                .control = CONTROL_FD,
                                .lease = w->config->lease,
                                .budget = BUDGET,
                                .dial = dial,
                                .up = tell_up,
                                .context = w};

    /* Setting a user takes the signal of the parent's death away: it is asked for behind that. */
    fd_done(&w->secrets);
    if (shed() < 0)
        _exit(1);
    follow(watch, "paddock-standin");
    close(LOCK_FD);
    close(w->orders[1]);
    memcpy(c.who.key, w->secret.key, sizeof c.who.key);
    _exit(stand_in_run(&c, &e) < 0 ? 1 : 0);
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
        close(CONTROL_FD);
        close(LOCK_FD);
        close(w->orders[0]);
        explicit_bzero(&w->secret, sizeof w->secret);
        secret_env_unseal(w->secrets, w->config->kind->name);
        carrier_main(w->config, w->container, w->orders[1], REPORT_FD);
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

static int read_secret(struct far_secret *ret)
{
    ssize_t n = read(SECRET_FD, ret, sizeof *ret);
    close(SECRET_FD);
    return n == (ssize_t)sizeof *ret ? 0 : -1;
}

_Noreturn void far_box_main(const struct broker_config *c, const char *container)
{
    struct watch w = {.config = c, .container = container, .secrets = secret_env_seal()};

    (void)signal(SIGCHLD, SIG_DFL);
    (void)signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_NAME, "paddock-far", 0, 0, 0);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (read_secret(&w.secret) < 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, w.orders) < 0 ||
        start_carrier(&w) < 0 || start_stand_in(&w) < 0)
        _exit(1);

    close(CONTROL_FD); /* the stand-in's: who owns the box sees when that is gone */
    watch_both(&w);
    _exit(0); /* the other one goes along */
}

/* ---- the broker's side ---- */

/* Becomes the watch, with its four descriptors and no other. */
static _Noreturn void become_watch(const struct far_box *b, const int fds[FDS])
{
    char lease[16];
    const struct broker_config *c = b->config;
    const char *argv[WATCH_WORDS + 2 * BROKER_SETTINGS_MAX] = {
        NULL,     "far",   c->kind->name, "--instance", c->instance, "--state", c->state_dir,
        "--host", c->host, "--certs",     c->cert_path, "--lease",   lease};
    unsigned words = 13;
    int high[FDS];
    sigset_t none;

    snprintf(lease, sizeof lease, "%u", (unsigned)c->lease);
    for (unsigned i = 0; i < c->setting_count; i++) {
        argv[words++] = "--set";
        argv[words++] = c->settings[i];
    }
    argv[words++] = b->container;
    argv[words] = NULL;
    for (int i = 0; i < FDS; i++)
        high[i] = fcntl(fds[i], F_DUPFD, CONTROL_FD + FDS);
    for (int i = 0; i < FDS; i++)
        if (high[i] < 0 || dup2(high[i], CONTROL_FD + i) < 0)
            _exit(127);
    syscall(SYS_close_range, CONTROL_FD + FDS, ~0u, 0);

    (void)setsid();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    exec_beside("paddock-remote", argv);
    _exit(127);
}

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
    if (write(secret_in, &b->secret, sizeof b->secret) != (ssize_t)sizeof b->secret)
        return pd_fail_sys(e, "hand over the key of a box");

    const int fds[FDS] = {b->control, secret_out, report_in, b->lock};
    pid_t pid = fork();
    if (pid < 0)
        return pd_fail_sys(e, "start a stand-in");
    if (pid == 0)
        become_watch(b, fds);

    auto_fd process = (int)syscall(SYS_pidfd_open, pid, 0);
    fd_done(&report_in);
    if (process < 0)
        return pd_fail(e, PD_LOST, "the stand-in ended at once");
    if (await_link(report_out, process, t, e) < 0) {
        (void)syscall(SYS_pidfd_send_signal, process, SIGKILL, NULL, 0);
        return -1;
    }
    *ret_process = fd_take(&process);
    return pid;
}
