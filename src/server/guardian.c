/* The guardian: the process that keeps its privilege while the daemon gives it up. It connects to
 * the keeper of each provider, or starts one; passes signals on to the daemon, and says so when one
 * has ended it; starts another keeper, gate or changer (guardian_gate.c), when one has died; and
 * ends the keepers when the server was interrupted, or could not begin with keepers that are new.
 */
#include "server/serve.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/secret_env.h"
#include "config/config.h"
#include "provider/providers.h"
#include "telemetry/log.h"
#include "wire/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define KEEPER_PATIENCE (10 * NS_PER_S)
#define KEEPER_RESTART  (250 * NS_PER_MS)

uid_t serve_keeper_owner(const char *path)
{
    struct stat st;
    auto_fd sock = wire_connect(path);
    return sock >= 0 && stat(path, &st) == 0 ? st.st_uid : 0;
}

/* The words of a keeper's command line, behind `paddock keeper`. A text has room for a setting with
 * its name. */
#define WORDS_MAX 96u
struct words {
    const char *argv[WORDS_MAX];
    unsigned count;
    char text[WORDS_MAX / 2][640];
    unsigned used;
};

static void add_word(struct words *w, const char *word)
{
    if (w->count + 1 < sizeof w->argv / sizeof *w->argv)
        w->argv[w->count++] = word;
}

/* Room for a word that is made here. */
static char *add_text(struct words *w)
{
    char *text = w->text[w->used < WORDS_MAX / 2 - 1 ? w->used++ : w->used];
    add_word(w, text);
    return text;
}

static void add_option(void *words, const char *name, const char *value)
{
    struct words *w = words;

    add_word(w, "--option");
    snprintf(add_text(w), sizeof *w->text, "%.40s=%.590s", name, value);
}

/* Where the images of jails come from. */
static void add_registries(const struct config *c, struct words *w)
{
    if (c->registry_auth[0]) {
        add_word(w, "--registry-auth");
        add_word(w, c->registry_auth);
    }
    for (unsigned i = 0; i < c->registries.count; i++) {
        add_word(w, "--registry");
        add_word(w, c->registries.items[i]);
    }
}

static void make_words(const struct serve *s, const struct serve_keeper *k, struct words *w)
{
    const struct config *c = s->config;

    *w = (struct words){.argv = {"paddock", "keeper", "--kind", k->kind, "--socket", k->socket},
                        .count = 6};
    if (s->uid != geteuid()) {
        add_word(w, "--owner");
        snprintf(add_text(w), sizeof *w->text, "%u", (unsigned)s->uid);
    }
    if (c->max_open_files) {
        add_word(w, "--files");
        snprintf(add_text(w), sizeof *w->text, "%ju", (uintmax_t)c->max_open_files);
    }
    if (!strcmp(k->kind, "jail"))
        add_registries(c, w);
    if (provider_has_broker(k->kind))
        serve_backend_options(c, k->kind, &(struct serve_told){.each = add_option, .context = w});
    if (provider_program(k->kind)) {
        add_word(w, "--program");
        add_word(w, provider_program(k->kind));
    }
}

/* Each kind has a directory of its own below the server's. That of jails is the directory itself:
 * it was there first. */
static int keeper_state_dir(const struct serve *s, const struct serve_keeper *k, char *out,
                            size_t size)
{
    bool jails = !strcmp(k->kind, "jail");
    snprintf(out, size, "%s%s%s", s->config->state_dir, jails ? "" : "/", jails ? "" : k->kind);
    return jails || mkdir(out, 0711) == 0 || errno == EEXIST ? 0 : -1;
}

/* In a session of its own and without anything of ours, because it outlives us. */
static pid_t start_keeper(const struct serve *s, const struct serve_keeper *k)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;

    static struct words words;
    char state[4200];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();

    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 3; i++)
        dup2(null, i);
    int secrets = s->secrets < 0 ? -1 : dup2(s->secrets, 3);
    syscall(SYS_close_range, secrets < 0 ? 3 : 4, ~0u, 0);
    if (chdir("/") < 0 || keeper_state_dir(s, k, state, sizeof state) < 0)
        _exit(127);

    setenv("PADDOCK_STATE_DIR", state, 1);
    setenv("PADDOCK_RUN_DIR", s->config->run_dir, 1);
    unsetenv("PADDOCK_API_KEY");
    if (provider_has_broker(k->kind))
        secret_env_unseal(secrets, k->kind);

    fd_done(&secrets);

    make_words(s, k, &words);
    execv(s->program, (char *const *)(uintptr_t)words.argv);
    _exit(127);
}

static pid_t peer_pid(int sock)
{
    struct ucred c;
    socklen_t len = sizeof c;
    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &c, &len) == 0 ? c.pid : 0;
}

int serve_keeper(const struct serve *s, struct serve_keeper *k, struct pd_err *e)
{
    k->sock = wire_connect(k->socket);
    k->is_new = k->sock < 0;
    if (k->sock >= 0)
        return 0;

    pid_t pid = start_keeper(s, k);
    if (pid < 0)
        return pd_fail_sys(e, "start a keeper");

    deadline d = deadline_in(KEEPER_PATIENCE);
    while (!deadline_passed(d)) {
        int status;
        bool ended = waitpid(pid, &status, WNOHANG) == pid;
        k->sock = wire_connect(k->socket);
        if (k->sock >= 0) {
            /* Ours may have given way to one that somebody else has just started. */
            k->is_new = peer_pid(k->sock) == pid;
            return 0;
        }
        if (ended)
            return pd_fail(
                e, PD_INTERNAL,
                "the keeper ended at once: try `%.80s keeper --kind %.20s --socket %.80s`",
                s->program, k->kind, k->socket);
        usleep(2000);
    }
    return pd_fail(e, PD_TIMEOUT, "the keeper does not answer on %.100s", k->socket);
}

int serve_keepers(struct serve *s, struct pd_err *e)
{
    for (unsigned i = 0; i < s->keeper_count; i++)
        if (serve_keeper(s, &s->keepers[i], e) < 0)
            return -1;
    return 0;
}

/* Ends the keeper with all that it has. */
static void tell_keeper_to_end(int keeper)
{
    pid_t pid = keeper >= 0 ? peer_pid(keeper) : 0;
    if (pid > 1)
        (void)kill(pid, SIGTERM);
}

/* Waits until its socket is closed. */
static void await_keeper_end(int keeper)
{
    struct pollfd p = {.fd = keeper};
    if (keeper >= 0)
        (void)poll(&p, 1, 20000);
}

/* The daemon ends by itself, with a message and a status, only when it cannot begin. */
static int could_not_begin(int status)
{
    return WIFEXITED(status) && WEXITSTATUS(status) != 0;
}

/* A daemon that a signal has ended could not say why: a crash, or a kill from outside. */
static void tell_signal(pid_t daemon, int number)
{
    const char *name = sigabbrev_np(number);
    log_error("server.daemon", "signal=SIG%s number=%d pid=%d", name ? name : "", number,
              (int)daemon);
}

/* They end beside each other: each has jails to end. */
static void end_keepers(const struct serve *s, bool all)
{
    for (unsigned i = 0; i < s->keeper_count; i++)
        if (all || s->keepers[i].is_new)
            tell_keeper_to_end(s->keepers[i].sock);
    for (unsigned i = 0; i < s->keeper_count; i++)
        if (all || s->keepers[i].is_new)
            await_keeper_end(s->keepers[i].sock);
}

/* Waits for a signal, or for a keeper or the gate that has ended. */
static void wait_for_news(struct serve *s, int signals)
{
    struct pollfd fds[1 + HELPER_COUNT + SERVE_KEEPERS_MAX] = {{.fd = signals, .events = POLLIN}};
    struct pollfd *helpers = &fds[1 + s->keeper_count];
    bool missing = false;

    for (unsigned i = 0; i < s->keeper_count; i++) {
        fds[1 + i] = (struct pollfd){.fd = s->keepers[i].sock};
        missing |= s->keepers[i].sock < 0;
    }
    for (unsigned i = 0; i < HELPER_COUNT; i++) {
        const struct serve_helper *h = &s->helpers[i];
        helpers[i] = (struct pollfd){.fd = h->pidfd, .events = POLLIN};
        missing |= h->socket[0] && h->pidfd < 0;
    }
    if (poll(fds, 1 + HELPER_COUNT + s->keeper_count, missing ? 50 : -1) <= 0)
        return;
    for (unsigned i = 0; i < HELPER_COUNT; i++)
        if (s->helpers[i].pidfd >= 0 && helpers[i].revents)
            helper_ended(s, i);

    for (unsigned i = 0; i < s->keeper_count; i++) {
        struct serve_keeper *k = &s->keepers[i];
        if (k->sock < 0 || !fds[1 + i].revents)
            continue;
        log_error("keeper.lost", "provider=%s socket=%s", k->kind, k->socket);
        fd_done(&k->sock);
        usleep((useconds_t)(KEEPER_RESTART / 1000));
    }
}

static void start_missing(struct serve *s)
{
    struct pd_err e;

    for (unsigned i = 0; i < s->keeper_count; i++) {
        struct serve_keeper *k = &s->keepers[i];
        if (k->sock >= 0)
            continue;
        if (serve_keeper(s, k, &e) < 0)
            log_error("keeper.start", "provider=%s error=%s", k->kind, e.msg);
        else
            log_info("keeper.started", "provider=%s pid=%d", k->kind, (int)peer_pid(k->sock));
    }
    helpers_start(s, false);
}

static sigset_t own_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    return set;
}

void guardian_block_signals(void)
{
    sigset_t set = own_signals();
    sigprocmask(SIG_BLOCK, &set, NULL);
}

/* The server's exit status, when its daemon has ended. */
static int conclude(const struct serve *s, pid_t daemon, int status, bool interrupted)
{
    if (WIFSIGNALED(status))
        tell_signal(daemon, WTERMSIG(status));
    if (interrupted || could_not_begin(status))
        end_keepers(s, interrupted);
    if (interrupted)
        helpers_clean(s);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int guardian_run(struct serve *s, pid_t daemon)
{
    sigset_t mask = own_signals();
    struct signalfd_siginfo info;
    bool interrupted = false;

    auto_fd signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    for (;;) {
        int status;
        pid_t pid;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            if (pid == daemon)
                return conclude(s, daemon, status, interrupted);

        wait_for_news(s, signals);
        while (read(signals, &info, sizeof info) == sizeof info) {
            if (info.ssi_signo == SIGCHLD)
                continue;
            interrupted |= info.ssi_signo == SIGINT;
            kill(daemon, (int)info.ssi_signo);
        }
        start_missing(s);
    }
}
