/* The table of kinds. The first one is what a keeper is that was told none. */
#include "jail/keeper_kind.h"

#include "base/banned.h"
#include "jail/local.h"

#include <stddef.h>

static const struct keeper_kind kinds[] = {
    {.name = "jail",
     .worker = builder_main,
     .is_jail = true,
     .has_range = true,
     .rung = RUNG_COUNT},
    {.name = "local",
     .worker = local_main,
     .has_range = true,
     .ends_itself = true,
     .rung = RUNG_NONE},
    {.name = "docker",
     .program = "paddock-remote",
     .is_foreign = true,
     .takes_cancel = true,
     .may_be_far = true,
     .rung = RUNG_BASIC},
    {.name = "podman",
     .program = "paddock-remote",
     .is_foreign = true,
     .takes_cancel = true,
     .may_be_far = true,
     .rung = RUNG_BASIC},
    {.name = "kubernetes",
     .program = "paddock-remote",
     .is_foreign = true,
     .takes_cancel = true,
     .may_be_far = true,
     .has_own_groups = true,
     .rung = RUNG_BASIC},
    {.name = "e2b",
     .program = "paddock-remote",
     .is_foreign = true,
     .takes_cancel = true,
     .may_be_far = true,
     .has_own_groups = true,
     .rung = RUNG_BASIC},
    {.name = "daytona",
     .program = "paddock-remote",
     .is_foreign = true,
     .takes_cancel = true,
     .may_be_far = true,
     .has_own_groups = true,
     .takes_options = true,
     .rung = RUNG_BASIC},
    {.name = "fargate",
     .program = "paddock-remote",
     .is_foreign = true,
     .takes_cancel = true,
     .may_be_far = true,
     .has_own_groups = true,
     .rung = RUNG_BASIC},
    {.name = "cloudrun",
     .program = "paddock-remote",
     .is_foreign = true,
     .takes_cancel = true,
     .may_be_far = true,
     .has_own_groups = true,
     .rung = RUNG_BASIC},
};
#define KINDS (sizeof kinds / sizeof *kinds)

const struct keeper_kind *keeper_kind_at(unsigned i)
{
    return i < KINDS ? &kinds[i] : NULL;
}

const struct keeper_kind *keeper_kind_find(const char *name)
{
    for (size_t i = 0; i < KINDS; i++)
        if (!strcmp(kinds[i].name, name))
            return &kinds[i];
    return NULL;
}

const struct keeper_kind *keeper_kind_of_program(const char *name, const char *program)
{
    static struct keeper_kind kind;

    kind = (struct keeper_kind){.name = name,
                                .program = program,
                                .is_foreign = true,
                                .has_own_groups = true,
                                .rung = RUNG_NONE};
    return &kind;
}
