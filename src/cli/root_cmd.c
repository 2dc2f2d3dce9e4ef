/* paddock root: lists and removes the roots that `paddock run --name` keeps in the state directory.
 */
#include "base/banned.h"
#include "base/err.h"
#include "cli/cli.h"
#include "jail/keeper.h"
#include "jail/store.h"
#include "wire/spec.h"

const char root_usage[] = "usage: paddock root ls\n"
                          "       paddock root rm NAME...\n\n"
                          "Lists or removes the roots that `paddock run --name NAME` keeps.\n";

static void put_root(const char *name, const char *kind, void *arg)
{
    (void)arg;
    printf("%-32s %s\n", name, kind);
}

int cmd_root(int argc, char **argv)
{
    struct pd_err e;
    const char *state, *run;

    if (keeper_dirs(&state, &run, &e) < 0)
        return cli_fail(&e);

    if (argc == 2 && !strcmp(argv[1], "ls"))
        return store_list_roots(state, put_root, NULL, &e) < 0 ? cli_fail(&e) : 0;
    if (argc < 3 || strcmp(argv[1], "rm") != 0) {
        pd_fail(&e, PD_INVALID, "'%.40s': valid are: root ls, root rm NAME...",
                argc > 1 ? argv[1] : "");
        return cli_fail(&e);
    }

    int status = 0;
    for (int i = 2; i < argc; i++) {
        struct spec s = SPEC_DEFAULT;
        s.root_name = argv[i];
        if (!argv[i][0])
            pd_fail(&e, PD_INVALID, "the name is empty");
        if (!argv[i][0] || spec_check(&s, &e) < 0 || store_remove_root(state, argv[i], &e) < 0)
            status = cli_fail(&e);
    }
    return status;
}
