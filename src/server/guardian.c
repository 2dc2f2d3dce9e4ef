/* The guardian: the process that keeps its privilege while the daemon gives it up. It connects to
 * the keeper, or starts one; passes signals on to the daemon; starts another keeper when one has
 * died; and ends the keeper when the server was interrupted, or could not begin with a keeper that
 * is new. */
#include "server/serve.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "config/config.h"
#include "telemetry/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#define KEEPER_PATIENCE (10 * NS_PER_S)
#define KEEPER_RESTART  (250 * NS_PER_MS)

static int connect_keeper(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    memcpy(a.sun_path, path, strlen(path) + 1);
    auto_fd sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0 || connect(sock, (struct sockaddr *)&a, sizeof a) < 0)
        return -1;
    return fd_take(&sock);
}

uid_t serve_keeper_owner(const char *path)
{
    struct stat st;
    if (strlen(path) >= sizeof((struct sockaddr_un *)NULL)->sun_path)
        return 0;

    auto_fd sock = connect_keeper(path);
    return sock >= 0 && stat(path, &st) == 0 ? st.st_uid : 0;
}

/* In a session of its own and without anything of ours, because it outlives us. */
static pid_t start_keeper(const struct serve *s)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;

    char uid[24], files[24];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();

    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 3; i++)
        dup2(null, i);
    syscall(SYS_close_range, 3, ~0u, 0);
    if (chdir("/") < 0)
        _exit(127);

    setenv("PADDOCK_STATE_DIR", s->config->state_dir, 1);
    setenv("PADDOCK_RUN_DIR", s->config->run_dir, 1);
    unsetenv("PADDOCK_API_KEY");

    snprintf(uid, sizeof uid, "%u", (unsigned)s->uid);
    snprintf(files, sizeof files, "%ju", (uintmax_t)s->config->max_open_files);

    const char *argv[10] = {"paddock", "keeper", "--socket", s->keeper_socket};
    unsigned n = 4;
    if (s->uid != geteuid()) {
        argv[n++] = "--owner";
        argv[n++] = uid;
    }
    if (s->config->max_open_files) {
        argv[n++] = "--files";
        argv[n++] = files;
    }
    execv(s->program, (char *const *)(uintptr_t)argv);
    _exit(127);
}

int serve_keeper(const struct serve *s, int *ret_is_new, struct pd_err *e)
{
    int sock = connect_keeper(s->keeper_socket);

    *ret_is_new = sock < 0;
    if (sock >= 0)
        return sock;

    pid_t pid = start_keeper(s);
    if (pid < 0)
        return pd_fail_sys(e, "start a keeper");

    deadline d = deadline_in(KEEPER_PATIENCE);
    while (!deadline_passed(d)) {
        int status;
        sock = connect_keeper(s->keeper_socket);
        if (sock >= 0)
            return sock;
        if (waitpid(pid, &status, WNOHANG) == pid)
            return pd_fail(e, PD_INTERNAL,
                           "the keeper ended at once: try `%.80s keeper --socket %.80s`",
                           s->program, s->keeper_socket);
        usleep(2000);
    }
    return pd_fail(e, PD_TIMEOUT, "the keeper does not answer on %.100s", s->keeper_socket);
}

static pid_t peer_pid(int sock)
{
    struct ucred c;
    socklen_t len = sizeof c;
    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &c, &len) == 0 ? c.pid : 0;
}

/* Ends the keeper with all that it has, and waits until its socket is closed. */
static void end_keeper(int keeper)
{
    pid_t pid = keeper >= 0 ? peer_pid(keeper) : 0;
    if (pid <= 1 || kill(pid, SIGTERM) < 0)
        return;

    struct pollfd p = {.fd = keeper};
    (void)poll(&p, 1, 20000);
}

/* The daemon ends by itself, with a message and a status, only when it cannot begin. */
static int could_not_begin(int status)
{
    return WIFEXITED(status) && WEXITSTATUS(status) != 0;
}

int guardian_run(const struct serve *s, pid_t daemon, int keeper, int keeper_is_new)
{
    sigset_t mask;
    struct signalfd_siginfo info;
    int interrupted = 0;

    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGHUP);
    sigprocmask(SIG_BLOCK, &mask, NULL);

    auto_fd signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    for (;;) {
        int status;
        pid_t pid;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            if (pid == daemon) {
                if (interrupted || (keeper_is_new && could_not_begin(status)))
                    end_keeper(keeper);
                return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            }

        struct pollfd fds[2] = {{.fd = signals, .events = POLLIN}, {.fd = keeper}};
        (void)poll(fds, keeper >= 0 ? 2 : 1, keeper >= 0 ? -1 : 250);

        while (read(signals, &info, sizeof info) == sizeof info) {
            if (info.ssi_signo == SIGCHLD)
                continue;
            interrupted |= info.ssi_signo == SIGINT;
            kill(daemon, (int)info.ssi_signo);
        }

        if (keeper >= 0 && fds[1].revents) {
            log_error("keeper.lost", "socket=%s", s->keeper_socket);
            fd_done(&keeper);
            usleep((useconds_t)(KEEPER_RESTART / 1000));
        }

        if (keeper < 0) {
            struct pd_err e;
            keeper = serve_keeper(s, &keeper_is_new, &e);
            if (keeper < 0)
                log_error("keeper.start", "error=%s", e.msg);
            else
                log_info("keeper.started", "pid=%d", (int)peer_pid(keeper));
        }
    }
}
