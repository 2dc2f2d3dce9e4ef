/* paddock keeper: reads the options of a keeper, which serves several clients at a socket or the
 * one that started it, and becomes that keeper. */
#include "base/banned.h"
#include "base/beside.h"
#include "base/err.h"
#include "base/parse.h"
#include "cli/cli.h"
#include "jail/keeper.h"
#include "jail/keeper_kind.h"

#include <sys/prctl.h>
#include <sys/resource.h>

const char keeper_usage[] =
    "usage: paddock keeper --socket PATH [--kind KIND] [--program PATH] [--builders N]\n"
    "                      [--kits N] [--owner UID] [--files N] [--option NAME=VALUE]...\n\n"
    "Keeps jails for several clients: `PADDOCK_KEEPER=PATH paddock run ...` uses it instead of\n"
    "starting a keeper of its own, and finds namespaces and cgroups made in advance. Ends, with "
    "all\n"
    "its jails, on SIGTERM or SIGINT.\n\n"
    "  --socket PATH    where to listen (mode 0600)\n"
    "  --kind KIND      what its boxes are: jail (default), local, docker or podman\n"
    "  --program PATH   makes the boxes of a kind that is none of these (docs/backends.md)\n"
    "  --option NAME=VALUE  for the program that makes the boxes of this kind, as its --NAME\n"
    "  --builders N     processes that make jails, default 2\n"
    "  --kits N         jails that wait for each builder's clients, made in advance, default 4\n"
    "  --owner UID      a uid that may use it, besides root: that of the server\n"
    "  --files N        descriptors that it may have, default as many as the system lets it\n"
    "  --registry NAME=URL  where a registry is that images are pulled from for its clients\n"
    "  --registry-auth FILE  credentials of registries, as `docker login` writes them\n"
    "  --client FD      instead of --socket: serves who has the other end of this socket, and "
    "ends\n"
    "                   with him; what libpaddock starts\n";

static int unknown_kind(const char *name, struct pd_err *e)
{
    char valid[200] = "";
    for (unsigned i = 0; keeper_kind_at(i); i++) {
        size_t at = strlen(valid);
        snprintf(valid + at, sizeof valid - at, "%s%s", i ? ", " : "", keeper_kind_at(i)->name);
    }
    return pd_fail(e, PD_INVALID, "--kind '%.40s': valid are %s", name, valid);
}

/* NAME=VALUE becomes --NAME VALUE. */
static int add_option(struct keeper_config *c, const char *text, struct pd_err *e)
{
    static const char *words[KEEPER_OPTIONS_MAX + 1];
    static char names[KEEPER_OPTIONS_MAX / 2][32];
    static unsigned count;
    const char *equals = strchr(text, '=');

    if (!equals || equals == text || (size_t)(equals - text) > sizeof *names - 3)
        return pd_fail(e, PD_INVALID, "--option '%.60s': must be NAME=VALUE", text);
    if (count + 2 > KEEPER_OPTIONS_MAX)
        return pd_fail(e, PD_INVALID, "--option: at most %u", KEEPER_OPTIONS_MAX / 2);

    snprintf(names[count / 2], sizeof *names, "--%.*s", (int)(equals - text), text);
    words[count] = names[count / 2];
    words[count + 1] = equals + 1;
    count += 2;
    c->options = words;
    return 0;
}

/* A name of the table, or one for which a program was given. */
static int find_kind(struct keeper_config *c, const char *name, const char *program,
                     struct pd_err *e)
{
    c->kind = keeper_kind_find(name);
    if (!program)
        return c->kind ? 0 : unknown_kind(name, e);
    if (c->kind || !name[0])
        return pd_fail(e, PD_INVALID, "--program: kind '%.40s' %s", name,
                       name[0] ? "has its own" : "is no name: give one with --kind");
    if (program_check(program, e) < 0)
        return pd_wrap(e, "--program");
    c->kind = keeper_kind_of_program(name, program);
    return 0;
}

static int parse(struct keeper_config *c, int argc, char **argv, struct pd_err *e)
{
    struct options o = {.argc = argc, .argv = argv, .at = 1};
    const char *kind = NULL, *program = NULL;

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
        } else if (!strcmp(o.name, "--kind")) {
            kind = v;
        } else if (!strcmp(o.name, "--program")) {
            program = v;
        } else if (!strcmp(o.name, "--option")) {
            if (add_option(c, v, e) < 0)
                return -1;
        } else if (!strcmp(o.name, "--registry-auth")) {
            c->registry_auth = v;
        } else if (!strcmp(o.name, "--registry")) {
            if (!strchr(v, '=') || c->registry_count == KEEPER_REGISTRIES_MAX)
                return pd_fail(e, PD_INVALID, "--registry '%.80s': NAME=URL, at most %u times", v,
                               KEEPER_REGISTRIES_MAX);
            c->registries[c->registry_count++] = v;
        } else if (!strcmp(o.name, "--client")) {
            if (parse_u64(o.name, v, 3, 1 << 20, &n, e) < 0)
                return -1;
            c->client = (int)n;
        } else {
            return pd_fail(e, PD_INVALID,
                           "unknown option '%.60s': valid are --socket, --kind, --program, "
                           "--option, --builders, --kits, --owner, --files, --registry, "
                           "--registry-auth, --client",
                           o.name);
        }
    }

    if (o.at < argc)
        return pd_fail(e, PD_INVALID, "unexpected argument '%.60s'", argv[o.at]);
    if ((kind || program) && find_kind(c, kind ? kind : "", program, e) < 0)
        return -1;
    if (!c->socket_path && c->client < 0)
        return pd_fail(e, PD_INVALID, "--socket PATH is missing");
    if (c->socket_path && c->client >= 0)
        return pd_fail(e, PD_INVALID, "either --socket or --client, not both");
    if (c->options && !(c->kind && c->kind->program))
        return pd_fail(e, PD_INVALID, "--option '%.40s': kind %s takes none", c->options[0] + 2,
                       c->kind ? c->kind->name : keeper_kind_at(0)->name);
    return 0;
}

int cmd_keeper(int argc, char **argv)
{
    struct pd_err e;
    struct keeper_config c = {.client = -1, .builders = 2, .kits = 4, .separate_sweeper = 1};

    if (parse(&c, argc, argv, &e) < 0)
        return cli_fail(&e);
    if (c.kind && !c.kind->is_jail)
        c.kits = 0;

    /* The limit that its jails have, too; its own may be higher. */
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
