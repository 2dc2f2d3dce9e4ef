/* paddock gate: the process behind src/gate. A server's guardian starts it with a socket, a run
 * with one of its descriptors. */
#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"
#include "cli/cli.h"
#include "gate/gate.h"

#include <sys/prctl.h>

static int parse(struct gate_config *c, int argc, char **argv, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);

    while (options_next(&o)) {
        uint64_t n;
        const char *v = options_value(&o, e);
        if (!v)
            return -1;
        if (!strcmp(o.name, "--socket")) {
            c->socket = v;
        } else if (!strcmp(o.name, "--changer")) {
            c->changer = v;
        } else if (!strcmp(o.name, "--owner")) {
            if (parse_u64(o.name, v, 1, UINT32_MAX - 1, &n, e) < 0)
                return -1;
            c->owner = (uid_t)n;
        } else if (!strcmp(o.name, "--client") || !strcmp(o.name, "--until")) {
            if (parse_u64(o.name, v, 3, 1 << 20, &n, e) < 0)
                return -1;
            *(o.name[2] == 'c' ? &c->client : &c->until) = (int)n;
        } else {
            return pd_fail(e, PD_INVALID,
                           "unknown option '%.60s': valid are --socket, --owner, --changer, "
                           "--client, --until",
                           o.name);
        }
    }

    if (o.at < argc)
        return pd_fail(e, PD_INVALID, "unexpected argument '%.60s'", argv[o.at]);
    if (!c->socket == (c->client < 0))
        return pd_fail(e, PD_INVALID, "either --socket PATH or --client DESCRIPTOR");
    return 0;
}

int cmd_gate(int argc, char **argv)
{
    struct pd_err e;
    struct gate_config c = {.client = -1, .until = -1, .owner = geteuid()};

    if (parse(&c, argc, argv, &e) < 0)
        return cli_fail(&e);
    prctl(PR_SET_NAME, "paddock-gate", 0, 0, 0);
    return gate_run(&c, &e) < 0 ? cli_fail(&e) : 0;
}
