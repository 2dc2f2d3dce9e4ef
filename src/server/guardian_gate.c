/* The guardian's part of the gate and the changer: it starts them as itself, and they give up
 * everything at once; it starts another when one has died.
 *
 * Both outlive guardian and daemon, as the keeper does, so that a sandbox's connections do; they
 * end with the keeper, whose sandboxes they are. For that they get a pidfd and no connection: one
 * that root had made to the keeper would be root's to the keeper. A changer ends with its gate,
 * too.
 */
#include "server/serve.h"

#include "access/seal.h"
#include "base/banned.h"
#include "base/clock.h"
#include "base/fd.h"
#include "config/config.h"
#include "gate/rules.h"
#include "telemetry/log.h"
#include "wire/frame.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define PAUSE_FIRST (50 * NS_PER_MS)
#define PAUSE_MOST  (5 * NS_PER_S)
#define LIVES_WELL  (10 * NS_PER_S) /* after so long its death is not like the one before */
#define UNTIL_FD    3
#define UNTIL_TEXT  "3"
#define LOCK_SIZE   120

static const char *const started[HELPER_COUNT] = {"gate.started", "changer.started"};
static const char *const lost[HELPER_COUNT] = {"gate.lost", "changer.lost"};

int helpers_prepare(struct serve *s, struct pd_err *e)
{
    const struct config *c = s->config;
    struct serve_helper *gate = &s->helpers[HELPER_GATE], *changer = &s->helpers[HELPER_CHANGER];
    char path[sizeof gate->socket + 1], key[4200];
    struct seal_key ignored;

    gate->pidfd = changer->pidfd = -1;
    int len = snprintf(path, sizeof path, "%s/gate.sock", c->run_dir);
    if (len + 8 >= (int)sizeof gate->socket)
        return 0; /* the daemon says so */
    if (c->egress == EGRESS_OFF && access(path, F_OK) < 0)
        return 0;

    memcpy(gate->socket, path, (size_t)len + 1);
    snprintf(changer->socket, sizeof changer->socket, "%s/changer.sock", c->run_dir);
    snprintf(key, sizeof key, "%s/" SEAL_FILE, s->data_dir);
    int r = seal_key_load(key, s->uid, s->gid, &ignored, e);
    explicit_bzero(&ignored, sizeof ignored);
    return r;
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
static int find_gate(const char *path)
{
    auto_fd sock = wire_connect(path);
    return sock < 0 ? -1 : pidfd_of_peer(sock);
}

static void lock_of(const char *socket, char out[LOCK_SIZE])
{
    snprintf(out, LOCK_SIZE, "%s.lock", socket);
}

/* The changer that runs holds a lock, and the kernel says who does. */
static pid_t lock_holder(const char *socket)
{
    struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[LOCK_SIZE];

    lock_of(socket, path);
    auto_fd fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return fd >= 0 && fcntl(fd, F_GETLK, &asked) == 0 && asked.l_type != F_UNLCK ? asked.l_pid : 0;
}

static int find_changer(const char *socket)
{
    pid_t pid = lock_holder(socket);
    auto_fd fd = pidfd_open_pid(pid);
    /* The number may be another's by now: then the lock is not its. */
    return fd >= 0 && lock_holder(socket) == pid ? fd_take(&fd) : -1;
}

/* In a session of its own and with nothing of ours but the pidfd. */
static void become(const char *program, const char *const *argv, int until)
{
    char *const env[] = {NULL};
    sigset_t none;

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
        execve(program, (char *const *)(uintptr_t)argv, env);
    _exit(127);
}

static void become_gate(const struct serve *s, int until)
{
    char owner[16];
    const char *argv[] = {"paddock",   "gate",
                          "--socket",  s->helpers[HELPER_GATE].socket,
                          "--changer", s->helpers[HELPER_CHANGER].socket,
                          "--until",   UNTIL_TEXT,
                          "--owner",   owner,
                          NULL};

    snprintf(owner, sizeof owner, "%u", (unsigned)s->uid);
    if (s->uid == geteuid())
        argv[8] = NULL;
    become(s->program, argv, until);
}

static void become_changer(const struct serve *s, int until)
{
    char lock[LOCK_SIZE], key[4200];
    const char *socket = s->helpers[HELPER_CHANGER].socket, *ca = s->config->egress_ca;
    const char *argv[] = {"paddockd", "changer", "--gate",   socket, "--lock", lock, "--key",
                          key,        "--until", UNTIL_TEXT, "--ca", ca,       NULL};

    lock_of(socket, lock);
    snprintf(key, sizeof key, "%s/" SEAL_FILE, s->data_dir);
    if (!ca[0])
        argv[10] = NULL;
    become("/proc/self/exe", argv, until);
}

static pid_t start(const struct serve *s, unsigned which)
{
    const struct serve_keeper *k = keeper_of_jails(s);
    auto_fd until = k ? pidfd_of_peer(k->sock) : -1;
    if (until < 0)
        return -1;

    pid_t pid = fork();
    if (pid == 0 && which == HELPER_GATE)
        become_gate(s, until);
    if (pid == 0)
        become_changer(s, until);
    return pid;
}

static void start_one(struct serve *s, unsigned which, bool first)
{
    struct serve_helper *h = &s->helpers[which];
    if (!h->socket[0] || h->pidfd >= 0 || clock_now() < h->due || !keeper_of_jails(s))
        return;

    h->began = clock_now();
    if (first)
        h->pidfd = which == HELPER_GATE ? find_gate(h->socket) : find_changer(h->socket);
    if (h->pidfd >= 0)
        return;
    pid_t pid = start(s, which);
    h->pidfd = pidfd_open_pid(pid);
    if (h->pidfd >= 0)
        log_info(started[which], "pid=%d", (int)pid);
    else
        helper_ended(s, which);
}

void helpers_start(struct serve *s, bool first)
{
    for (unsigned i = 0; i < HELPER_COUNT; i++)
        start_one(s, i, first);
}

void helper_ended(struct serve *s, unsigned which)
{
    struct serve_helper *h = &s->helpers[which];

    fd_done(&h->pidfd);
    if (clock_now() - h->began > LIVES_WELL)
        h->pause = 0;
    h->pause = !h->pause ? PAUSE_FIRST : h->pause < PAUSE_MOST / 2 ? 2 * h->pause : PAUSE_MOST;
    h->due = clock_now() + h->pause;
    log_error(lost[which], "restart_in_ms=%ju", (uintmax_t)(h->pause / NS_PER_MS));
}

void helpers_clean(const struct serve *s)
{
    char lock[LOCK_SIZE];

    for (unsigned i = 0; i < HELPER_COUNT; i++) {
        const struct serve_helper *h = &s->helpers[i];
        if (!h->socket[0])
            continue;
        lock_of(h->socket, lock);
        (void)unlink(h->socket);
        (void)unlink(lock);
    }
}
