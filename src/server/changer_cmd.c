/* paddockd changer: the process behind src/change. A server's guardian starts it. */
#include "base/banned.h"
#include "base/err.h"
#include "base/options.h"
#include "base/parse.h"
#include "change/changer.h"
#include "client/client.h"
#include "server/serve.h"

#include <sys/prctl.h>

const char changer_help[] = "usage: paddockd changer --gate SOCKET --lock FILE --key FILE\n"
                            "                        [--ca FILE] [--until DESCRIPTOR]\n\n"
                            "Uses secrets on behalf of sandboxes. The server starts it.\n";

static int parse(struct changer_config *c, int argc, char **argv, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);
    uint64_t until;

    while (options_next(&o)) {
        const char *v = options_value(&o, e);
        if (!v)
            return -1;
        if (!strcmp(o.name, "--gate"))
            c->gate = v;
        else if (!strcmp(o.name, "--lock"))
            c->lock = v;
        else if (!strcmp(o.name, "--key"))
            c->key_file = v;
        else if (!strcmp(o.name, "--ca"))
            c->ca_file = v;
        else if (strcmp(o.name, "--until") != 0)
            return usage_unknown(&o, e);
        else if (parse_u64(o.name, v, 3, 1 << 20, &until, e) < 0)
            return -1;
        else
            c->until = (int)until;
    }
    if (o.at < argc || !c->gate || !c->lock || !c->key_file)
        return pd_fail(e, PD_INVALID, "--gate, --lock and --key are needed, and no argument");
    return 0;
}

int cmd_changer(int argc, char **argv)
{
    struct pd_err e;
    struct changer_config c = {.until = -1, .filter = self_filter_load};

    if (parse(&c, argc, argv, &e) < 0)
        return usage_fail(&e);
    prctl(PR_SET_NAME, "paddock-changer", 0, 0, 0);
    return changer_run(&c, &e) < 0 ? client_fail(&e) : 0;
}
