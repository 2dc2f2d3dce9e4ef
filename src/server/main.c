/* paddockd: the server and the commands that talk to one. `paddock` starts it for these commands.
 */
#include "base/banned.h"
#include "base/err.h"
#include "client/client.h"
#include "server/serve.h"

#include <stdio.h>

static const struct client_command own_commands[] = {
    {"serve", "run the server", serve_usage, cmd_serve},
    {"key", "make, list and revoke API keys", key_usage, cmd_key},
    {"cert", "make a certificate for development", cert_usage, cmd_cert},
    {"config", "show the server's settings", config_usage, cmd_config},
    {"backend", "try a backend on other machines", backend_usage, cmd_backend},
    {NULL, NULL, NULL, NULL},
};

/* For the server alone: in no list. */
static const struct client_command inner_commands[] = {
    {"changer", "use secrets on behalf of sandboxes", changer_help, cmd_changer},
    {NULL, NULL, NULL, NULL},
};

static const struct client_command *find_in(const struct client_command *table, const char *name)
{
    for (; table->name; table++)
        if (!strcmp(table->name, name))
            return table;
    return NULL;
}

static const struct client_command *find(const char *name)
{
    const struct client_command *c = find_in(own_commands, name);
    if (!c)
        c = find_in(inner_commands, name);
    return c ? c : find_in(client_commands, name);
}

static void list(const struct client_command *table)
{
    for (; table->name; table++)
        printf("  %-8s %s\n", table->name, table->summary);
}

int main(int argc, char **argv)
{
    struct pd_err e;

    if (argc > 1 && !strcmp(argv[1], "--version")) {
        puts("paddockd " PADDOCK_VERSION);
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "--commands")) { /* for paddock's own list */
        list(own_commands);
        list(client_commands);
        return 0;
    }

    const char *name = argc > 1 ? argv[1] : "";
    int help = !strcmp(name, "help") && argc > 2;
    const struct client_command *c = find(help ? argv[2] : name);
    if (!c) {
        pd_fail(&e, PD_INVALID, "'%.40s' is not a command of paddockd", name);
        return usage_fail(&e);
    }

    if (help || (argc > 2 && !strcmp(argv[2], "--help"))) {
        fputs(c->usage, stdout);
        return 0;
    }
    return c->run(argc - 1, argv + 1);
}
