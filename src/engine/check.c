/* One look at an engine, as lines "NAME VALUE" on standard output: what `paddock doctor` and people
 * read. */
#include "engine/broker.h"

#include "base/banned.h"
#include "base/err.h"
#include "engine/docker_client.h"

#include <stdio.h>
#include <string.h>

#define CHECK_PATIENCE (15 * NS_PER_S) /* podman asks many others for its answer */

static void tell(const char *name, bool is)
{
    printf("%s %s\n", name, is ? "yes" : "no");
}

int engine_check(const struct broker_config *c)
{
    struct docker d;
    struct docker_info i;
    struct pd_err e;
    int r = docker_open(&d, c, &e);

    if (r == 0) {
        r = docker_info(&d, &i, deadline_in(CHECK_PATIENCE), &e);
        docker_close(&d);
    }
    if (r < 0) {
        /* Elsewhere it may be the address or a certificate, which the text says. */
        if (e.code == PD_BAD_GATEWAY && strncmp(d.place, "tcp:", 4) != 0)
            printf("error no engine answers at %s\n", d.place);
        else
            printf("error %s\n", e.msg);
        return 1;
    }

    printf("version %s\nplace %s\nstorage %s\ncgroups v%d, %s\n", i.version, d.place, i.driver,
           i.cgroup_version, i.cgroup_driver);
    tell("seccomp", i.seccomp);
    tell("userns", i.userns || i.rootless);
    tell("memory", i.memory_limit);
    tell("pids", i.pids_limit);
    tell("cpu", i.cpu_limit);
    if (c->runtime[0])
        tell("runtime", i.has_runtime);
    return 0;
}
