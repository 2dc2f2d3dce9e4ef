/* The table of the backends that paddock-remote is the broker of. A new one is a row here and a
 * file of its own; remote.h says how. */
#include "engine/remote.h"

#include "base/banned.h"
#include "engine/cloudrun.h"
#include "engine/daytona.h"
#include "engine/docker_remote.h"
#include "engine/e2b.h"
#include "engine/fargate.h"
#include "engine/kubernetes.h"

#include <stddef.h>

static const struct remote_kind *const kinds[] = {
    &docker_remote,  &podman_remote,  &kubernetes_remote, &e2b_remote,
    &fargate_remote, &daytona_remote, &cloudrun_remote,
};
#define KINDS (sizeof kinds / sizeof *kinds)

const struct remote_kind *remote_kind_at(unsigned i)
{
    return i < KINDS ? kinds[i] : NULL;
}

const struct remote_kind *remote_kind_find(const char *name)
{
    for (size_t i = 0; i < KINDS; i++)
        if (!strcmp(kinds[i]->name, name))
            return kinds[i];
    return NULL;
}
