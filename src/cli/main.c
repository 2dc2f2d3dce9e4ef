/* The program `paddock`: finds the command. Those that make jails are in this program; the server
 * and everything that talks to one is the program paddockd, which is executed in its place. */
#include "cli/cli.h"

#include "base/banned.h"
#include "base/err.h"
#include "jail/init_image.h"

#include <fcntl.h>
#include <limits.h>

#ifndef PADDOCK_VERSION
#define PADDOCK_VERSION "0.1.0"
#endif

static const struct cli_command commands[] = {
    {"run", "run a command in a sandbox", run_usage, cmd_run},
    {"doctor", "say what this host offers and prove it", doctor_usage, cmd_doctor},
    {"root", "list and remove named roots", root_usage, cmd_root},
    {"image", "bring images into the store, list and remove them", image_usage, cmd_image},
    {"keeper", "keep jails for several clients", keeper_usage, cmd_keeper},
    {"agent", "a coding agent whose tools work in a sandbox", agent_usage, cmd_agent},
    {"gate", NULL, NULL, cmd_gate},   /* the way out of sandboxes, by rules */
    {"probe", NULL, NULL, cmd_probe}, /* what doctor runs inside a jail */
};

#define COMMAND_COUNT (sizeof commands / sizeof *commands)

static void put_usage(FILE *to)
{
    fputs("usage: paddock COMMAND [OPTIONS]\n\n", to);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (commands[i].summary)
            fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].summary);
    fputs("  serve    run the server\n"
          "  key      make, list and revoke the server's keys\n"
          "  cert     make a certificate for the server, for development\n"
          "  config   show the server's settings\n"
          "  backend  try a backend on other machines\n"
          "  create ls exec shell cp ps logs kill port top rm\n"
          "           use a server: `paddock help COMMAND`\n"
          "  help     show a command's options\n\n"
          "Try: paddock run -- python3 -c 'print(6*7)'\n",
          to);
}

int cli_fail(const struct pd_err *e)
{
    char line[2 * sizeof e->msg];
    size_t n = 0;

    for (const char *p = e->msg; *p && n + 5 < sizeof line; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            n += (size_t)snprintf(line + n, sizeof line - n, "\\x%02x", (unsigned char)*p);
        else
            line[n++] = *p;
    }

    line[n] = 0;
    fprintf(stderr, "paddock: %s\n", line);
    return pd_code_exit(e->code);
}

static const struct cli_command *find(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (!strcmp(commands[i].name, name))
            return &commands[i];
    return NULL;
}

/* The server and what talks to it is another program, beside this one or where it is installed. */
static void run_server_program(char **argv)
{
    static const char *const places[] = {"paddockd", "../libexec/paddock/paddockd"};
    char self[PATH_MAX], path[PATH_MAX];

    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return;
    self[n] = 0;
    setenv("PADDOCK_PROGRAM", self, 1);

    char *slash = strrchr(self, '/');
    *slash = 0;

    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if ((size_t)snprintf(path, sizeof path, "%s/%s", self, places[i]) < sizeof path)
            execv(path, argv); /* returns when it is not there */
    unsetenv("PADDOCK_PROGRAM");
}

static int is_server_command(const char *name)
{
    static const char *const names[] = {
        "serve",    "key",     "cert",    "config",   "ls",    "create",   "exec",
        "shell",    "code",    "cp",      "logs",     "ps",    "kill",     "rm",
        "port",     "top",     "route",   "mv",       "mcp",   "console",  "secret",
        "template", "backend", "network", "overview", "audit", "snapshot", "fork"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name))
            return 1;
    return 0;
}

static int no_server_program(const char *name)
{
    struct pd_err e;
    pd_fail(&e, PD_NOT_FOUND, "'%.40s' needs the program paddockd beside this one: make build",
            name);
    return cli_fail(&e);
}

static int unknown(const char *name)
{
    struct pd_err e;

    pd_fail(
        &e, PD_INVALID,
        "'%.40s' is not a command: run, doctor, root, image, keeper, agent, serve, key, cert, "
        "config, "
        "ls, "
        "create, exec, shell, cp, logs, ps, kill, rm, port, top, route, mv, console, backend, help",
        name);
    return cli_fail(&e);
}

static int help(int argc, char **argv)
{
    if (argc < 2) {
        put_usage(stdout);
        return 0;
    }

    const struct cli_command *c = find(argv[1]);
    if (!c && is_server_command(argv[1])) {
        char *server_argv[] = {(char *)"paddock", (char *)"help", argv[1], NULL};
        run_server_program(server_argv);
        return no_server_program(argv[1]);
    }
    if (!c || !c->usage)
        return unknown(argv[1]);
    fputs(c->usage, stdout);
    return 0;
}

/* What is put into boxes elsewhere must run in any image: it is the static one, which is in this
 * program. A keeper hands it to its brokers; so that a check of a backend has the same, it is where
 * a broker finds it, through both programs that come now. */
static void lend_box(void)
{
    struct pd_err e;
    int fd = box_image_open_file(&e);

    if (fd >= 0 && fd != BOX_LENT_FD && dup2(fd, BOX_LENT_FD) == BOX_LENT_FD)
        close(fd);
    else if (fd == BOX_LENT_FD)
        (void)fcntl(fd, F_SETFD, 0);
}

/* A program started without standard streams would get its sockets as descriptors 0 to 2, and then
 * hand them out as such. */
static int ensure_standard_streams(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            return -1;
    return 0;
}

int main(int argc, char **argv)
{
    if (ensure_standard_streams() < 0)
        return 125;
    if (argc < 2) {
        put_usage(stderr);
        return 2;
    }

    const char *name = argv[1];
    if (!strcmp(name, "--version") || !strcmp(name, "version")) {
        puts("paddock " PADDOCK_VERSION);
        return 0;
    }
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h"))
        return help(argc - 1, argv + 1);

    const struct cli_command *c = find(name);
    if (!c && is_server_command(name)) {
        if (!strcmp(name, "backend"))
            lend_box();
        run_server_program(argv);
        return no_server_program(name);
    }
    if (!c)
        return unknown(name);

    if (argc > 2 && !strcmp(argv[2], "--help") && c->usage) {
        fputs(c->usage, stdout);
        return 0;
    }
    return c->run(argc - 1, argv + 1);
}
