/* paddock serve: reads the settings, opens the sockets and finds the keeper while it still may,
 * then forks. The child becomes the daemon, without privilege; the parent stays as its guardian. */
#include "server/serve.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/secret_env.h"
#include "client/client.h"
#include "config/config.h"
#include "net/conn.h"
#include "net/server.h"
#include "provider/providers.h"
#include "telemetry/log.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

extern char **environ;

const char serve_usage[] =
    "usage: paddock serve [--listen ADDRESS]... [--state-dir DIR] [--config FILE]\n"
    "                     [--listen-tls ADDRESS]... [--tls-cert FILE --tls-key FILE]\n"
    "                     [--KEY VALUE]...\n\n"
    "Runs the server. Started by root, only the keeper keeps its privilege. The first start makes\n"
    "an API key and prints it once. SIGTERM drains and leaves the sandboxes running for the next\n"
    "start; SIGINT (Ctrl-C) ends them; SIGHUP reads the configuration again. `paddock config`\n"
    "shows every KEY with its value.\n";

/* Finds the program paddock: where the program that started us said it is; otherwise beside us, or
 * where make install puts it. */
static int find_program(struct serve *s, struct pd_err *e)
{
    static const char *const places[] = {"paddock", "../build/paddock", "../../bin/paddock"};
    const char *given = getenv("PADDOCK_PROGRAM");
    char self[2048];

    if (given && access(given, X_OK) == 0) {
        snprintf(s->program, sizeof s->program, "%s", given);
        unsetenv("PADDOCK_PROGRAM"); /* it is no setting */
        return 0;
    }

    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return pd_fail_sys(e, "find the program");
    self[n] = 0;

    char *dir = dirname(self);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(s->program, sizeof s->program, "%s/%s", dir, places[i]);
        if (access(s->program, X_OK) == 0)
            return 0;
    }
    return pd_fail(e, PD_NOT_FOUND, "paddock is not beside paddockd in %.150s", dir);
}

static int add_listener(struct serve *s, int fd, int tls, struct pd_err *e)
{
    if (fd < 0)
        return -1;
    if (s->listener_count == SERVE_LISTENERS_MAX) {
        fd_done(&fd);
        return pd_fail(e, PD_INVALID, "at most %d addresses", SERVE_LISTENERS_MAX);
    }

    s->speaks_tls[s->listener_count] = tls;
    s->listeners[s->listener_count++] = fd;
    return 0;
}

/* Does a socket that somebody else opened speak TLS? Unix sockets never do. If addresses for TLS
 * are set, it is one of them by its port: the service manager may have bound it to fewer or more
 * addresses than are written there. */
static int activated_tls(const struct serve *s, int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof a;

    if (!s->tls || getsockname(fd, (struct sockaddr *)&a, &len) < 0 ||
        (a.ss_family != AF_INET && a.ss_family != AF_INET6))
        return 0;

    if (!s->config->listen_tls.count)
        return 1;
    unsigned port = ntohs(a.ss_family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port
                                                 : ((struct sockaddr_in6 *)&a)->sin6_port);
    for (unsigned i = 0; i < s->config->listen_tls.count; i++)
        if (config_port(s->config->listen_tls.items[i]) == port)
            return 1;
    return 0;
}

/* Sockets that systemd opened for us: descriptors from 3 on. 1 when there are any. */
static int take_activated(struct serve *s, struct pd_err *e)
{
    int n = (int)server_inherited();

    for (int fd = 3; fd < 3 + n; fd++) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        if (add_listener(s, fd, activated_tls(s, fd), e) < 0)
            return -1;
    }

    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_PID");
    return n > 0;
}

/* A server that was killed a moment ago may still be on its way out. */
static int bind_patiently(const char *address, const char *option, struct pd_err *e)
{
    deadline d = deadline_in(SERVE_PATIENCE);

    int fd = server_bind(address, e);
    while (fd < 0 && e->code == PD_CONFLICT && !deadline_passed(d)) {
        usleep(5000);
        fd = server_bind(address, e);
    }
    if (fd < 0 && e->code == PD_CONFLICT)
        return pd_fail(e, PD_CONFLICT,
                       "%.150s is in use: stop the other server, or choose another address with %s",
                       address, option);
    return fd;
}

bool serve_is_tls(const struct serve *s, const char *address)
{
    return s->tls && !s->config->listen_tls.count && strncmp(address, "unix:", 5) != 0;
}

static int bind_all(struct serve *s, struct pd_err *e)
{
    const struct config *c = s->config;
    int activated = take_activated(s, e);

    s->activated = activated > 0;
    if (activated)
        return activated < 0 ? -1 : 0;

    for (unsigned i = 0; i < c->listen.count; i++)
        if (add_listener(s, bind_patiently(c->listen.items[i], "--listen", e),
                         serve_is_tls(s, c->listen.items[i]), e) < 0)
            return -1;
    for (unsigned i = 0; i < c->listen_tls.count; i++)
        if (add_listener(s, bind_patiently(c->listen_tls.items[i], "--listen-tls", e), 1, e) < 0)
            return -1;

    if (c->unix_socket[0]) {
        char address[256];
        snprintf(address, sizeof address, "unix:%s", c->unix_socket);
        if (add_listener(s, bind_patiently(address, "--unix-socket", e), 0, e) < 0)
            return -1;
        /* For the user that runs the server, and root. */
        if (geteuid() == 0 && chown(c->unix_socket, s->uid, s->gid) < 0)
            return pd_fail_sys(e, "hand over %.100s", c->unix_socket);
    }
    return 0;
}

static int name_keepers(struct serve *s, struct pd_err *e)
{
    const struct config *c = s->config;

    for (unsigned i = 0; i < c->providers.count && i < SERVE_KEEPERS_MAX; i++) {
        struct serve_keeper *k = &s->keepers[s->keeper_count++];
        *k = (struct serve_keeper){.kind = c->providers.items[i], .sock = -1};
        if (provider_socket(k->kind, c->keeper_socket, c->run_dir, k->socket, e) < 0)
            return -1;
    }
    return 0;
}

static int prepare(struct serve *s, struct pd_err *e)
{
    const struct config *c = s->config;

    for (unsigned i = 0; i < c->backends.count; i++)
        if (providers_add(c->backends.items[i], e) < 0)
            return -1;
    if (providers_check(c->providers.items, c->providers.count, c->sandbox_mode,
                        c->local_allowed != 0, e) < 0 ||
        name_keepers(s, e) < 0)
        return -1;
    struct spec usual = SPEC_DEFAULT;
    usual.image = c->default_image;
    if (spec_check(&usual, e) < 0)
        return pd_wrap(e, "default_image");
    if (serve_prepare(s, e) < 0)
        return -1;

    if (c->tls_cert[0] && !(s->tls = tls_server_new(c->tls_cert, c->tls_key, e)))
        return -1;
    return bind_all(s, e);
}

/* The daemon ends by _exit, which skips what a sanitizer does at the end of a program. */
#if defined(__SANITIZE_ADDRESS__)
int __lsan_do_recoverable_leak_check(void); /* the compiler's library has it */

static void leaks_check(void)
{
    __lsan_do_recoverable_leak_check();
}
#else
static void leaks_check(void)
{
}
#endif

int cmd_serve(int argc, char **argv)
{
    static struct serve s;
    struct pd_err e;

    s.argv = (const char *const *)argv + 1;
    s.argc = argc - 1;
    struct config_input in = {
        .environ = (const char *const *)environ, .argv = s.argv, .argc = s.argc};
    if (find_program(&s, &e) < 0 || !(s.config = config_load(&in, &e)))
        return usage_fail(&e);

    log_setup(2, (enum log_level)s.config->log_level, (enum log_format)s.config->log_format);
    if (config_notes(s.config)[0])
        log_warn("config.notes", "text=%s", config_notes(s.config));

    if (prepare(&s, &e) < 0)
        return usage_fail(&e);

    /* A signal that comes from now on waits for the guardian: by itself it would end the guardian
     * alone, leave a keeper that is new, and have the kernel kill the daemon without a word. */
    guardian_block_signals();
    if ((s.secrets = secret_env_seal()) < 0 && s.secrets != -ENODATA) {
        errno = -s.secrets;
        pd_fail_sys(&e, "put credentials of the environment away");
        return usage_fail(&e);
    }
    if (serve_keepers(&s, &e) < 0)
        return usage_fail(&e);
    if (helpers_prepare(&s, &e) < 0)
        return usage_fail(&e);
    helpers_start(&s, true);

    s.guardian = getpid();
    pid_t daemon = fork();
    if (daemon < 0) {
        pd_fail_sys(&e, "start the daemon");
        return usage_fail(&e);
    }

    if (daemon == 0) {
        fd_done(&s.secrets);
        for (unsigned i = 0; i < s.keeper_count; i++)
            fd_done(&s.keepers[i].sock);
        for (unsigned i = 0; i < HELPER_COUNT; i++)
            fd_done(&s.helpers[i].pidfd);
        fd_done(&s.uid_lock); /* the guardian has it: the daemon holds nothing of the host */
        int status = daemon_run(&s);
        leaks_check();
        _exit(status);
    }

    for (unsigned i = 0; i < s.listener_count; i++)
        fd_done(&s.listeners[i]);
    return guardian_run(&s, daemon);
}

const char config_usage[] = "usage: paddock config [--json] [--config FILE] [--KEY VALUE]...\n\n"
                            "Shows every setting of the server, its value and where it is from.\n";

int cmd_config(int argc, char **argv)
{
    struct pd_err e;
    int json = argc > 1 && !strcmp(argv[1], "--json");
    struct config_input in = {.environ = (const char *const *)environ,
                              .argv = (const char *const *)argv + 1 + json,
                              .argc = argc - 1 - json};

    struct config *c = config_load(&in, &e);
    if (!c)
        return usage_fail(&e);

    auto_buf out = BUF_INIT(1u << 20);
    if (json)
        config_print_json(c, &out);
    else
        config_print(c, &out);

    fwrite(out.data, 1, out.len, stdout);
    config_free(c);
    return 0;
}
