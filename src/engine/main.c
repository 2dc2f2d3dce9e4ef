/* paddock-remote: what a keeper starts in place of its builders when its boxes are made by an
 * engine. The only program of the project that links libcurl; it holds the engine's credentials,
 * and nobody but its keeper talks to it. */
#include "base/banned.h"
#include "base/err.h"
#include "base/options.h"
#include "engine/broker.h"
#include "image/image.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
    "usage: paddock-remote broker docker|podman --instance ID --state DIR [--host URL]\n"
    "           [--runtime NAME] [--pull never|missing|always] [--auth FILE] [--owner UID]\n"
    "       paddock-remote check docker|podman [--host URL] [--runtime NAME]\n"
    "       paddock-remote image plan | image unpack PACKING SIZE HEX|-\n"
    "\n"
    "A broker is started by a keeper, with its socket as descriptor 3 and init's program as\n"
    "descriptor 4. A check says what the engine is and has. image reads images, in a jail.\n";

static int parse_options(int argc, char **argv, struct broker_config *c, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);

    while (options_next(&o)) {
        const char *value = options_value(&o, e);
        if (!value || broker_option(c, o.name, value, e) < 0)
            return -1;
    }
    if (o.at < argc)
        return pd_fail(e, PD_INVALID, "'%.40s' is no option of a broker", argv[o.at]);
    return 0;
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

    bool checks = argc > 2 && !strcmp(argv[1], "check");
    if (argc < 3 || (!checks && strcmp(argv[1], "broker") != 0)) {
        fputs(usage, argc > 1 && !strcmp(argv[1], "--help") ? stdout : stderr);
        return argc > 1 && !strcmp(argv[1], "--help") ? 0 : 2;
    }

    c.podman = !strcmp(argv[2], "podman");
    if (!c.podman && strcmp(argv[2], "docker") != 0)
        pd_fail(&e, PD_INVALID, "'%.40s' is no kind of broker: docker, podman", argv[2]);
    else if (parse_options(argc - 2, argv + 2, &c, &e) == 0) {
        if (checks)
            return engine_check(&c);
        if (c.instance[0] && c.state_dir[0])
            docker_main(&c, BROKER_SOCKET_FD, BROKER_INIT_FD);
        pd_fail(&e, PD_INVALID, "a broker needs --instance and --state");
    }

    fprintf(stderr, "paddock-remote: %s\n", e.msg);
    return 2;
}
