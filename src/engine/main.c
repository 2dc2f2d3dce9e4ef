/* paddock-remote: what a keeper starts in place of its builders when its boxes are made by an
 * engine. The only program of the project that links libcurl; it holds the engine's credentials,
 * and nobody but its keeper talks to it. */
#include "base/banned.h"
#include "base/err.h"
#include "base/options.h"
#include "engine/broker.h"
#include "engine/far_box.h"
#include "engine/nursery.h"
#include "engine/registry.h"
#include "engine/remote.h"
#include "engine/switchboard.h"
#include "image/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: paddock-remote broker KIND --instance ID --state DIR [--host URL]\n"
    "           [--certs DIR] [--lease SECONDS] [--runtime NAME] [--pull never|missing|always]\n"
    "           [--auth FILE] [--owner UID] [--set WORD=VALUE]...\n"
    "       paddock-remote check KIND [--host URL] [--certs DIR] [--runtime NAME]\n"
    "           [--pull never|missing|always] [--set WORD=VALUE]... [IMAGE]\n"
    "       paddock-remote image plan | image unpack PACKING SIZE HEX|-\n"
    "       paddock-remote registry plan REF URL|- | registry blob REF URL|- HEX FROM\n"
    "       paddock-remote switchboard ADDRESS:PORT\n"
    "\n"
    "A broker is started by a keeper, with its socket as descriptor 3 and init's program as\n"
    "descriptor 4; `nursery` by a broker, for boxes on another machine. A check says what the "
    "engine "
    "is and has, and\n"
    "makes a sandbox of IMAGE there and ends it. image reads images, in a jail; registry fetches "
    "them, as nobody;\n"
    "switchboard takes calls of boxes for those who wait for them.\n"
    "Kinds: ";

static void show_kinds(FILE *to)
{
    for (unsigned i = 0; remote_kind_at(i); i++)
        fprintf(to, "%s%s", i ? ", " : "", remote_kind_at(i)->name);
    fputs("\n", to);
}

static int unknown_kind(const char *name, struct pd_err *e)
{
    char valid[160] = "";

    for (unsigned i = 0; remote_kind_at(i); i++) {
        size_t at = strlen(valid);
        snprintf(valid + at, sizeof valid - at, "%s%s", i ? ", " : "", remote_kind_at(i)->name);
    }
    return pd_fail(e, PD_INVALID, "'%.40s' is no kind of broker: %s", name, valid);
}

/* `more`: there may be a word behind the options, such as a box's place. */
static int parse_options(int argc, char **argv, bool more, struct broker_config *c,
                         const char **ret_rest, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);

    while (options_next(&o)) {
        const char *value = options_value(&o, e);
        if (!value || broker_option(c, o.name, value, e) < 0)
            return -1;
    }
    *ret_rest = o.at < argc ? argv[o.at] : NULL;
    if (o.at + (more ? 1 : 0) < argc)
        return pd_fail(e, PD_INVALID, "'%.40s' is no option of a broker", argv[argc - 1]);
    return 0;
}

/* Returns only with what is wrong in *e. */
static void become(const struct broker_config *c, bool checks, bool nursery, const char *rest,
                   struct pd_err *e)
{
    if (checks)
        exit(c->kind->tell ? c->kind->tell(c) : remote_check(c, rest ? rest : ""));
    if (nursery)
        nursery_main(c);
    if (c->instance[0] && c->state_dir[0] && c->kind->serve)
        c->kind->serve(c, BROKER_SOCKET_FD, BROKER_INIT_FD);
    if (c->instance[0] && c->state_dir[0]) {
        remote_serve(c, BROKER_SOCKET_FD, BROKER_INIT_FD, BROKER_BOX_FD, far_box_start);
        exit(0);
    }
    (void)pd_fail(e, PD_INVALID, "a broker needs --instance and --state");
}

int main(int argc, char **argv)
{
    struct broker_config c = BROKER_CONFIG_DEFAULT;
    struct pd_err e;

    if (argc > 1 && !strcmp(argv[1], "--version")) {
        puts("paddock-remote " PADDOCK_VERSION);
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "image"))
        return image_main(argc - 1, argv + 1);
    if (argc == 3 && !strcmp(argv[1], "switchboard"))
        switchboard_main(argv[2]);
    if (argc > 1 && !strcmp(argv[1], "registry"))
        return registry_main(argc - 1, argv + 1);

    bool checks = argc > 2 && !strcmp(argv[1], "check"),
         nursery = argc > 2 && !strcmp(argv[1], "nursery");
    const char *rest = NULL;
    if (argc < 3 || (!checks && !nursery && strcmp(argv[1], "broker") != 0)) {
        bool asked = argc > 1 && !strcmp(argv[1], "--help");
        fputs(usage, asked ? stdout : stderr);
        show_kinds(asked ? stdout : stderr);
        return asked ? 0 : 2;
    }

    c.kind = remote_kind_find(argv[2]);
    c.podman = !strcmp(argv[2], "podman");
    if (!c.kind)
        unknown_kind(argv[2], &e);
    else if (parse_options(argc - 2, argv + 2, checks, &c, &rest, &e) == 0)
        become(&c, checks, nursery, rest, &e);

    fprintf(stderr, "paddock-remote: %s\n", e.msg);
    return 2;
}
