/* sudo: how a command in a `dev` jail becomes root.
 *
 * With no_new_privs no setuid program works, so this shim asks init over a socket to start the
 * command, hands over its own standard streams, forwards signals and ends as the command ends. The
 * command is in a session of its own: there is no job control across sudo. */
#include "init/sudo.h"

#include "init/init.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "wire/msg.h"
#include "wire/start.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#define UID_USER 1000u

extern char **environ;

static int fail(const char *message)
{
    fprintf(stderr, "sudo: %s\n", message);
    return 1;
}

struct request {
    uint32_t uid;
    int login, keep_env;
    char **argv; /* NULL-terminated */
    char **assignments;
    int assignment_count;
};

static int parse_user(const char *name, uint32_t *ret)
{
    if (!strcmp(name, "root") || !strcmp(name, "0") || !strcmp(name, "#0"))
        *ret = 0;
    else if (!strcmp(name, "user") || !strcmp(name, "1000") || !strcmp(name, "#1000"))
        *ret = UID_USER;
    else
        return -1;
    return 0;
}

/* The options that scripts use. Returns 0, or -1 after saying what is wrong. */
static int parse(int argc, char **argv, struct request *r)
{
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *o = argv[i];
        if (!strcmp(o, "--")) {
            i++;
            break;
        }
        if (!strcmp(o, "-u") || !strcmp(o, "--user")) {
            if (++i == argc || parse_user(argv[i], &r->uid) < 0)
                return fail("-u: valid users are root and user"), -1;
        } else if (!strcmp(o, "-i") || !strcmp(o, "--login") || !strcmp(o, "-s")) {
            r->login = 1;
        } else if (!strcmp(o, "-E") || !strcmp(o, "--preserve-env")) {
            r->keep_env = 1;
        } else if (strcmp(o, "-n") != 0 && strcmp(o, "-H") != 0 && strcmp(o, "-S") != 0) {
            fprintf(stderr, "sudo: unknown option '%s': valid are -u -i -s -E -H -n -S --\n", o);
            return -1;
        }
    }

    r->assignments = argv + i;
    while (i < argc && strchr(argv[i], '=') && argv[i][0] != '=') {
        r->assignment_count++;
        i++;
    }

    r->argv = argv + i;
    if (i == argc && !r->login)
        return fail("no command: sudo [-u USER] [-i] [VAR=VALUE] COMMAND..."), -1;
    return 0;
}

/* PATH, HOME and USER are the target's; the rest is kept only if asked for, but for what a terminal
 * and a locale need. */
static int add_env(struct msg_list_writer *env, const struct request *r)
{
    static const char *const always[] = {"TERM=", "LANG=", "LC_", "PATH="};
    int bad = msg_list_add(env, r->uid ? "HOME=/home/user" : "HOME=/root") |
              msg_list_add(env, r->uid ? "USER=user" : "USER=root") |
              msg_list_add(env, r->uid ? "LOGNAME=user" : "LOGNAME=root") |
              msg_list_add(env, "SHELL=/bin/bash") | msg_list_add(env, "SUDO_USER=user");

    for (char **v = environ; *v; v++) {
        int keep = r->keep_env && strncmp(*v, "HOME=", 5) != 0 && strncmp(*v, "USER=", 5) != 0;
        for (size_t i = 0; i < sizeof always / sizeof *always; i++)
            keep |= !strncmp(*v, always[i], strlen(always[i]));
        if (keep)
            bad |= msg_list_add(env, *v);
    }

    for (int i = 0; i < r->assignment_count; i++)
        bad |= msg_list_add(env, r->assignments[i]);
    return bad;
}

static int send_exec(int sock, const struct request *r, struct wire_id id)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT, env = MSG_LIST_WRITER_INIT;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    char cwd[PATH_MAX];

    int bad = add_env(&env, r);
    for (char **a = r->argv; *a; a++)
        bad |= msg_list_add(&argv, *a);
    if (!r->argv[0])
        bad |= msg_list_add(&argv, "/bin/bash") | msg_list_add(&argv, "-l");

    struct msg_exec m = {.uid = r->uid,
                         .gid = r->uid,
                         .cwd = getcwd(cwd, sizeof cwd) ? cwd : "/",
                         .argv = msg_list_of(&argv),
                         .environ = msg_list_of(&env)};
    msg_exec_encode(&out, &m);

    struct wire_head head = {.type = WIRE_EXEC, .id = id};
    int fds[3] = {0, 1, 2};
    int rc = bad ? -EMSGSIZE : wire_send(sock, &head, &out, fds, 3, DEADLINE_NONE);

    msg_list_writer_done(&argv);
    msg_list_writer_done(&env);
    return rc;
}

static void forward(int sock, struct wire_id exec, int signals)
{
    struct signalfd_siginfo info;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);

    if (read(signals, &info, sizeof info) != sizeof info)
        return;

    struct msg_signal m = {.exec = exec, .signal = (int32_t)info.ssi_signo};
    msg_signal_encode(&out, &m);
    struct wire_head head = {.type = WIRE_SIGNAL, .id = wire_id_new()};
    (void)wire_send(sock, &head, &out, NULL, 0, DEADLINE_NONE);
}

/* Until the command has ended; its exit status as a shell would give it. */
static int wait_for_end(int sock, struct wire_id id, int signals)
{
    auto_frame f = FRAME_INIT;
    struct pd_err e;
    struct msg_exited end;

    for (;;) {
        struct pollfd p[2] = {{sock, POLLIN, 0}, {signals, POLLIN, 0}};
        if (poll(p, 2, -1) < 0)
            continue;
        if (p[1].revents)
            forward(sock, id, signals);
        if (!p[0].revents)
            continue;

        frame_reset(&f);
        if (wire_recv(sock, &f, DEADLINE_NONE, &e) <= 0)
            return fail("init has closed the connection");
        if (!wire_id_equal(f.head.id, id))
            continue;

        if (f.head.type == WIRE_ERROR) {
            msg_error_raise(&f, &e);
            fail(e.msg);
            return pd_code_exit(e.code);
        }
        if (f.head.type == WIRE_EXITED && msg_exited_decode(&f.payload, &end, &e) == 0)
            return WIFSIGNALED(end.status) ? 128 + WTERMSIG(end.status) : WEXITSTATUS(end.status);
    }
}

/* Init listens at one of two places. */
static int connect_to_init(void)
{
    auto_fd sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un a;

    for (int by_name = 0; by_name < 2; by_name++) {
        socklen_t len = init_sudo_address(by_name, &a);
        if (sock >= 0 && connect(sock, (struct sockaddr *)&a, len) == 0)
            return fd_take(&sock);
    }
    return -1;
}

int sudo_main(int argc, char **argv)
{
    struct request r = {0};
    if (parse(argc, argv, &r) < 0)
        return 1;

    auto_fd sock = connect_to_init();
    if (sock < 0)
        return fail("init does not answer: sudo works only in a sandbox of the profile dev");

    static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    sigset_t mask;
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
        sigaddset(&mask, forwarded[i]);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    auto_fd signals = signalfd(-1, &mask, SFD_CLOEXEC);

    struct wire_id id = wire_id_new();
    if (send_exec(sock, &r, id) < 0)
        return fail("the command is too long, or init is gone");
    return wait_for_end(sock, id, signals);
}
