/* paddock keeper: reads the options of a keeper, which serves several clients at a socket or the
 * one that started it, and becomes that keeper. */
#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"
#include "cli/cli.h"
#include "jail/keeper.h"

#include <sys/prctl.h>
#include <sys/resource.h>

const char keeper_usage[] =
    "usage: paddock keeper --socket PATH [--builders N] [--kits N] [--owner UID]\n"
    "                      [--files N]\n\n"
    "Keeps jails for several clients: `PADDOCK_KEEPER=PATH paddock run ...` uses it instead of\n"
    "starting a keeper of its own, and finds namespaces and cgroups made in advance. Ends, with "
    "all\n"
    "its jails, on SIGTERM or SIGINT.\n\n"
    "  --socket PATH    where to listen (mode 0600)\n"
    "  --builders N     processes that make jails, default 2\n"
    "  --kits N         jails that wait for each builder's clients, made in advance, default 4\n"
    "  --owner UID      a uid that may use it, besides root: that of the server\n"
    "  --files N        descriptors that it may have, default as many as the system lets it\n"
    "  --client FD      instead of --socket: serves who has the other end of this socket, and "
    "ends\n"
    "                   with him; what libpaddock starts\n";

static int parse(struct keeper_config *c, int argc, char **argv, struct pd_err *e)
{
    struct options o = {.argc = argc, .argv = argv, .at = 1};
    while (options_next(&o)) {
        uint64_t n;
        const char *v = options_value(&o, e);
        if (!v)
            return -1;
        if (!strcmp(o.name, "--socket")) {
            c->socket_path = v;
        } else if (!strcmp(o.name, "--builders")) {
            if (parse_u64(o.name, v, 1, 16, &n, e) < 0)
                return -1;
            c->builders = (unsigned)n;
        } else if (!strcmp(o.name, "--kits")) {
            if (parse_u64(o.name, v, 0, 16, &n, e) < 0)
                return -1;
            c->kits = (unsigned)n;
        } else if (!strcmp(o.name, "--owner")) {
            if (parse_u64(o.name, v, 1, UINT32_MAX - 1, &n, e) < 0)
                return -1;
            c->owner = (uid_t)n;
        } else if (!strcmp(o.name, "--files")) {
            if (parse_u64(o.name, v, 64, UINT32_MAX, &c->files_max, e) < 0)
                return -1;
        } else if (!strcmp(o.name, "--client")) {
            if (parse_u64(o.name, v, 3, 1 << 20, &n, e) < 0)
                return -1;
            c->client = (int)n;
        } else {
            return pd_fail(e, PD_INVALID,
                           "unknown option '%.60s': valid are --socket, --builders, --kits, "
                           "--owner, --files, --client",
                           o.name);
        }
    }

    if (o.at < argc)
        return pd_fail(e, PD_INVALID, "unexpected argument '%.60s'", argv[o.at]);
    if (!c->socket_path && c->client < 0)
        return pd_fail(e, PD_INVALID, "--socket PATH is missing");
    if (c->socket_path && c->client >= 0)
        return pd_fail(e, PD_INVALID, "either --socket or --client, not both");
    return 0;
}

int cmd_keeper(int argc, char **argv)
{
    struct pd_err e;
    struct keeper_config c = {.client = -1, .builders = 2, .kits = 4, .separate_sweeper = 1};

    if (parse(&c, argc, argv, &e) < 0)
        return cli_fail(&e);

    /* What its jails have, too; its own limit may be higher. */
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }

    if (c.client >= 0)
        keeper_serve_private(c.client, c.builders, c.kits);
    if (keeper_dirs(&c.state_dir, &c.run_dir, &e) < 0)
        return cli_fail(&e);

    prctl(PR_SET_NAME, "paddock-keeper", 0, 0, 0);
    return keeper_run(&c, &e) < 0 ? cli_fail(&e) : 0;
}
