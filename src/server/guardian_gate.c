/* The guardian's part of the gate: it starts `paddock gate` as itself, which gives up everything at
 * once, and starts another when it has died.
 *
 * The gate outlives guardian and daemon, as the keeper does, so that a sandbox's connections do; it
 * ends with the keeper, whose sandboxes they are. For that it gets a pidfd and no connection: one
 * that root had made to the keeper would be root's to the keeper. */
#include "server/serve.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/fd.h"
#include "config/config.h"
#include "gate/rules.h"
#include "telemetry/log.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define PAUSE_FIRST (50 * NS_PER_MS)
#define PAUSE_MOST  (5 * NS_PER_S)
#define LIVES_WELL  (10 * NS_PER_S) /* after so long its death is not like the one before */
#define UNTIL_FD    3

void gate_prepare(struct serve *s)
{
    const struct config *c = s->config;
    char path[sizeof s->gate.socket + 1];

    s->gate.pidfd = -1;
    int len = snprintf(path, sizeof path, "%s/gate.sock", c->run_dir);
    if (len >= (int)sizeof s->gate.socket)
        return; /* the daemon says so */
    if (c->egress != EGRESS_OFF || access(path, F_OK) == 0)
        memcpy(s->gate.socket, path, (size_t)len + 1);
}

static const struct serve_keeper *keeper_of_jails(const struct serve *s)
{
    for (unsigned i = 0; i < s->keeper_count; i++)
        if (!strcmp(s->keepers[i].kind, "jail") && s->keepers[i].sock >= 0)
            return &s->keepers[i];
    return NULL;
}

static int pidfd_open_pid(pid_t pid)
{
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static int pidfd_of_peer(int sock)
{
    struct ucred c;
    socklen_t len = sizeof c;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &c, &len) < 0)
        return -1;

    auto_fd fd = pidfd_open_pid(c.pid);
    /* The number may be another's by now: then the connection is at its end. */
    struct pollfd p = {.fd = sock};
    return fd >= 0 && poll(&p, 1, 0) == 0 ? fd_take(&fd) : -1;
}

/* Of a gate that serves the socket already. A connection takes its client from it, so this is for
 * the time before there is a daemon. */
static int find_running(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path, path, strlen(path) + 1);

    auto_fd sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0 || connect(sock, (struct sockaddr *)&a, sizeof a) < 0)
        return -1;
    return pidfd_of_peer(sock);
}

/* In a session of its own and with nothing of ours but the pidfd. */
static void become_gate(const struct serve *s, int until)
{
    char owner[16], until_text[8];
    const char *argv[] = {"paddock", "gate", "--socket", s->gate.socket, "--until", until_text,
                          "--owner", owner,  NULL};
    char *const env[] = {NULL};
    sigset_t none;

    snprintf(owner, sizeof owner, "%u", (unsigned)s->uid);
    snprintf(until_text, sizeof until_text, "%d", UNTIL_FD);
    if (s->uid == geteuid())
        argv[6] = NULL;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();

    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 3; i++)
        dup2(null, i);
    if (until == UNTIL_FD)
        fcntl(until, F_SETFD, 0);
    else
        dup2(until, UNTIL_FD);
    syscall(SYS_close_range, UNTIL_FD + 1, ~0u, 0);
    if (chdir("/") == 0)
        execve(s->program, (char *const *)(uintptr_t)argv, env);
    _exit(127);
}

static pid_t start(const struct serve *s)
{
    const struct serve_keeper *k = keeper_of_jails(s);
    auto_fd until = k ? pidfd_of_peer(k->sock) : -1;
    if (until < 0)
        return -1;

    pid_t pid = fork();
    if (pid == 0)
        become_gate(s, until);
    return pid;
}

void gate_start(struct serve *s, bool first)
{
    struct serve_gate *g = &s->gate;
    if (!g->socket[0] || g->pidfd >= 0 || clock_now() < g->due || !keeper_of_jails(s))
        return;

    g->began = clock_now();
    if (first && (g->pidfd = find_running(g->socket)) >= 0)
        return;
    pid_t pid = start(s);
    g->pidfd = pidfd_open_pid(pid);
    if (g->pidfd >= 0)
        log_info("gate.started", "pid=%d", (int)pid);
    else
        gate_ended(s);
}

void gate_ended(struct serve *s)
{
    struct serve_gate *g = &s->gate;

    fd_done(&g->pidfd);
    if (clock_now() - g->began > LIVES_WELL)
        g->pause = 0;
    g->pause = !g->pause ? PAUSE_FIRST : g->pause < PAUSE_MOST / 2 ? 2 * g->pause : PAUSE_MOST;
    g->due = clock_now() + g->pause;
    log_error("gate.lost", "restart_in_ms=%ju", (uintmax_t)(g->pause / NS_PER_MS));
}

void gate_clean(const struct serve *s)
{
    char lock[sizeof s->gate.socket + 8];

    if (!s->gate.socket[0])
        return;
    snprintf(lock, sizeof lock, "%s.lock", s->gate.socket);
    (void)unlink(s->gate.socket);
    (void)unlink(lock);
}
