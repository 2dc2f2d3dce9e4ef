/* How this works: the program `paddock` is started with one end of a socket, and holds the jails
 * as long as that is open: so they end with this process, however it ends. It is told nothing but
 * what it needs: no descriptor of the host's, and of the environment only what names directories.
 */
#include "lib/lib.h"

#include "base/banned.h"
#include "base/fd.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define END_PATIENCE (15 * NS_PER_S)
#define CLIENT_FD    3

extern char **environ;

/* ---- where it is ---- */

static int is_program(const char *path)
{
    return path[0] && access(path, X_OK) == 0;
}

/* Beside this library, as in a wheel; or in the bin of the prefix that it was installed to. */
static int find_beside(char *out, size_t size)
{
    static const char *const places[] = {"paddock", "../bin/paddock", "../../bin/paddock"};

    Dl_info self;
    if (!dladdr((void *)(uintptr_t)find_beside, &self) || !self.dli_fname)
        return 0;

    const char *slash = strrchr(self.dli_fname, '/');
    int len = slash ? (int)(slash - self.dli_fname) : 1;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(out, size, "%.*s/%s", len, slash ? self.dli_fname : ".", places[i]);
        if (is_program(out))
            return 1;
    }
    return 0;
}

static int find_in_path(char *out, size_t size)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t len = strcspn(path, ":");
        snprintf(out, size, "%.*s/paddock", (int)len, path);
        if (path[0] == '/' && is_program(out))
            return 1;
        path += len + (path[len] == ':');
    }
    return 0;
}

int keeper_process_init(struct keeper_process *k, const char *program, struct pd_err *e)
{
    const char *set = program ? program : getenv("PADDOCK_PROGRAM");

    lock_init(&k->lock, LOCK_KEEPER);
    k->sock = k->link = -1;

    if (set && *set) {
        if (!is_program(set))
            return pd_fail(e, PD_NOT_FOUND, "%s '%.150s' cannot be executed",
                           program ? "program" : "PADDOCK_PROGRAM", set);
        snprintf(k->program, sizeof k->program, "%s", set);
        return 0;
    }

    if (find_beside(k->program, sizeof k->program) || find_in_path(k->program, sizeof k->program))
        return 0;
    return pd_fail(e, PD_NOT_FOUND,
                   "the program `paddock` is neither beside the library nor in PATH: install it, "
                   "or name it by PADDOCK_PROGRAM");
}

/* ---- starting ---- */

#define ENV_MAX 64

static void choose_environment(char *out[ENV_MAX + 1])
{
    static const char *const names[] = {
        "PADDOCK_", "HOME=", "PATH=", "XDG_RUNTIME_DIR=", "LANG=", "ASAN_", "LSAN_", "UBSAN_"};
    unsigned n = 0;

    for (char **v = environ; v && *v && n < ENV_MAX; v++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (!strncmp(*v, names[i], strlen(names[i])) &&
                strncmp(*v, "PADDOCK_API_KEY=", 16) != 0) {
                out[n++] = *v;
                break;
            }
    out[n] = NULL;
}

static int spawn(const struct keeper_process *k, int theirs, pid_t *ret)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, all;
    char *env[ENV_MAX + 1];
    char *const argv[] = {(char *)"paddock", (char *)"keeper",     (char *)"--client",
                          (char *)"3",       (char *)"--builders", (char *)"2",
                          (char *)"--kits",  (char *)"1",          NULL};
    sigemptyset(&none);
    sigfillset(&all);
    choose_environment(env);

    if (posix_spawn_file_actions_init(&actions) != 0)
        return ENOMEM;
    if (posix_spawnattr_init(&attr) != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return ENOMEM;
    }

    int r = posix_spawn_file_actions_adddup2(&actions, theirs, CLIENT_FD);
    for (int i = 0; i < 3 && r == 0; i++)
        r = posix_spawn_file_actions_addopen(&actions, i, "/dev/null", O_RDWR, 0);
    if (r == 0)
        r = posix_spawnattr_setsigmask(&attr, &none);
    if (r == 0)
        r = posix_spawnattr_setsigdefault(&attr, &all);
    if (r == 0)
        r = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                                POSIX_SPAWN_SETSID);
    if (r == 0)
        r = posix_spawn(ret, k->program, &actions, &attr, argv, env);

    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return r;
}

/* One that died, or is about to. Its socket is closed: it ends by itself. */
static void reap(struct keeper_process *k, deadline d)
{
    pid_t pid = k->pid;

    k->pid = 0;
    if (pid <= 0)
        return;

    auto_fd pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    if (pidfd >= 0 && d)
        while (poll(&p, 1, deadline_poll_ms(d)) < 0 && errno == EINTR)
            ;

    /* Another part of this program may have waited for every child: fine. */
    (void)waitpid(pid, NULL, WNOHANG);
}

int keeper_process_start(void *arg, struct pd_err *e)
{
    struct keeper_process *k = arg;
    int pair[2], r = -1;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return pd_fail_sys(e, "make a socket");

    auto_fd ours = pair[0], theirs = pair[1];
    auto_fd copy = fcntl(ours, F_DUPFD_CLOEXEC, 3);
    struct stat st;
    if (copy < 0 || fstat(copy, &st) < 0)
        return pd_fail_sys(e, "make a socket");

    lock_take(&k->lock);
    fd_done(&k->sock);
    reap(k, 0);

    if (k->closing)
        pd_fail(e, PD_SHUTTING_DOWN, "the library was closed");
    else if ((errno = spawn(k, theirs, &k->pid)) != 0)
        pd_fail_sys(e, "start %.150s", k->program);
    else
        r = k->sock = fd_take(&copy);

    k->link = ours;
    k->inode = st.st_ino;
    lock_release(&k->lock);
    return r < 0 ? -1 : fd_take(&ours);
}

void keeper_process_leave(struct keeper_process *k)
{
    int fds[2] = {k->sock, k->link};
    struct stat st;

    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0 && fstat(fds[i], &st) == 0 && S_ISSOCK(st.st_mode) && st.st_ino == k->inode)
            close(fds[i]);
}

void keeper_process_end(struct keeper_process *k)
{
    lock_take(&k->lock);
    k->closing = 1;

    /* The keeper sees this end even if another process has a copy of the descriptor. */
    if (k->sock >= 0)
        (void)shutdown(k->sock, SHUT_RDWR);

    reap(k, deadline_in(END_PATIENCE));
    lock_release(&k->lock);
}

void keeper_process_done(struct keeper_process *k)
{
    fd_done(&k->sock);
    lock_done(&k->lock);
}
