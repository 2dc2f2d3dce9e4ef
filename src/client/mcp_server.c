/* The private server of `paddock mcp`. A process of its own, the guard, starts a server in a
 * directory that it makes, and ends it with all that belongs to it as soon as the command's end of
 * a pipe is closed. So nothing is left, however the command ends. */
#include "client/mcp.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "client/client.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#define READY_TRIES  100
#define READY_PAUSE  100000u /* us */
#define LOOK_MS      500
#define END_PATIENCE (20 * NS_PER_S)
#define KEEPER_PAUSE 20000u /* us */
#define KEEPER_TRIES 150

/* ---- the process that looks after it ---- */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st;
    (void)kind;
    (void)where;
    return remove(path);
}

static void exec_server(const char *dir)
{
    char listen[160], state[160], run[160];

    snprintf(listen, sizeof listen, "unix:%s/paddock.sock", dir);
    snprintf(state, sizeof state, "%s/state", dir);
    snprintf(run, sizeof run, "%s/run", dir);
    execl("/proc/self/exe", "paddockd", "serve", "--listen", listen, "--state-dir", state,
          "--run-dir", run, "--unix-socket", "none", "--log-level", "warn", (char *)NULL);
    _exit(127);
}

/* 1 when it has ended. */
static int await_end(pid_t server, deadline d)
{
    for (;;) {
        pid_t r = waitpid(server, NULL, WNOHANG);
        if (r == server || (r < 0 && errno == ECHILD))
            return 1;
        if (deadline_passed(d))
            return 0;
        usleep(KEEPER_PAUSE);
    }
}

/* A server that was killed leaves its keeper, for another one. 1 when it is still there; it ends
 * what runs and takes its files along. */
static int end_keeper(const char *dir)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct ucred who;
    socklen_t len = sizeof who;
    auto_fd sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof a.sun_path, "%s/run/keeper.sock", dir);
    if (sock < 0 || connect(sock, (struct sockaddr *)&a, sizeof a) < 0 ||
        getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0 || who.pid <= 1)
        return 0;
    return kill(who.pid, SIGTERM) == 0;
}

/* Until `life` is closed or the server has ended by itself; then nothing of it is left. */
static void guard_main(int life, const char *dir)
{
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid(); /* what a terminal sends is for the command; it tells us by its end */

    /* Standard input and output are the protocol's. */
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, 0);
    dup2(2, 1);

    pid_t server = fork();
    if (server == 0)
        exec_server(dir);

    struct pollfd p = {.fd = life, .events = POLLIN};
    while (server > 0 && waitpid(server, NULL, WNOHANG) == 0 && poll(&p, 1, LOOK_MS) <= 0)
        ;
    if (server > 0 && waitpid(server, NULL, WNOHANG) == 0) {
        (void)kill(server, SIGINT); /* ends its sandboxes, too */
        if (!await_end(server, deadline_in(END_PATIENCE))) {
            (void)kill(server, SIGKILL);
            (void)waitpid(server, NULL, 0);
        }
    }

    for (int i = 0; i < KEEPER_TRIES && end_keeper(dir); i++)
        usleep(KEEPER_PAUSE);
    for (int i = 0; i < KEEPER_TRIES && access(dir, F_OK) == 0; i++) {
        (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        if (i)
            usleep(KEEPER_PAUSE);
    }
    _exit(0);
}

/* ---- for the command ---- */

static int is_ready(void)
{
    struct pd_err e;
    struct remote_request q = {.method = HTTP_GET, .target = "/readyz", .accept = "text/plain"};
    auto_remote *r = remote_new(&e);
    return r && remote_begin(r, &q, &e) == 0 && remote_answer(r, &e) >= 0;
}

int own_server_start(struct own_server *s, struct pd_err *e)
{
    char url[120], key[ID_KEY_LEN + 1];
    int ends[2];

    snprintf(s->dir, sizeof s->dir, "/tmp/paddock-mcp-XXXXXX");
    /* The user that the server becomes when root starts it must get through. */
    if (!mkdtemp(s->dir) || chmod(s->dir, 0711) < 0)
        return pd_fail_sys(e, "make a directory for a server");

    if (pipe2(ends, O_CLOEXEC) < 0) {
        (void)rmdir(s->dir);
        return pd_fail_sys(e, "make a pipe");
    }

    snprintf(url, sizeof url, "unix:%s/paddock.sock", s->dir);
    id_key(key);
    setenv("PADDOCK_URL", url, 1);
    setenv("PADDOCK_API_KEY", key, 1);

    s->guard = fork();
    if (s->guard == 0) {
        close(ends[1]);
        guard_main(ends[0], s->dir);
    }

    close(ends[0]);
    s->life = ends[1];
    if (s->guard < 0) {
        s->guard = 0;
        (void)rmdir(s->dir);
        return pd_fail_sys(e, "start a process");
    }

    for (int i = 0; i < READY_TRIES; i++) {
        if (is_ready())
            return 0;
        if (waitpid(s->guard, NULL, WNOHANG) == s->guard) {
            s->guard = 0;
            return pd_fail(e, PD_LOST, "the server that was started for this has ended: see above");
        }
        usleep(READY_PAUSE);
    }
    return pd_fail(e, PD_TIMEOUT, "the server that was started for this does not answer");
}

void own_server_end(struct own_server *s)
{
    fd_done(&s->life);
    if (s->guard)
        while (waitpid(s->guard, NULL, 0) < 0 && errno == EINTR)
            ;
    s->guard = 0;
}
