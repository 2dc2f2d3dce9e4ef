/* The latencies, all in one round-robin whose start rotates, so that drift, cache state and what
 * the neighbour left to do in the background hit everybody alike. A pause before each gives the
 * keeper time to make the next kit and to sweep the last jail: a request that finds it at work is
 * what `sustained` measures. */
#include "bench.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/cgroup.h"

#include <errno.h>
#include <sys/wait.h>

#define PATIENCE (5 * NS_PER_S)

struct context {
    struct latency *l;
    struct place *p;
    struct jail waiting;
    struct errand errand;
    int group;          /* the entrance of a cgroup in the waiting jail, or -1 */
    char container[40]; /* that docker keeps running; "" when there is none */
    unsigned serial;    /* container names are used once */
};

struct step {
    unsigned first; /* the series whose name stands for the step */
    unsigned every; /* rounds; slow ones are measured more seldom */
    int peer;       /* a failure of the trial run is no error but a reason to skip it */
    int (*run)(struct context *c, struct pd_err *e);
};

static const struct {
    const char *name, *what;
} names[SERIES_COUNT] = {
    [S_FLOOR] = {"floor", "`posix_spawn` of `/bin/true`, the floor"},
    [S_COLD] = {"cold", "paddock, running keeper: create + exec + destroy"},
    [S_CREATE] = {"create", "its parts, one after the other: create"},
    [S_FIRST_EXEC] = {"first-exec", "its parts: exec in the new jail"},
    [S_DESTROY] = {"destroy", "its parts: destroy"},
    [S_EXEC] = {"exec", "paddock: exec in a waiting jail"},
    [S_EXEC_GROUP] = {"exec-group", "paddock: exec in a waiting jail, in a cgroup of its own"},
    [S_RUN] = {"run", "`paddock run -- /bin/true`, nothing running"},
    [S_RUN_KEEPER] = {"run-keeper", "`paddock run -- /bin/true` with a running keeper"},
    [S_BWRAP] = {"bubblewrap", "bubblewrap"},
    [S_CRUN] = {"crun", "`crun run`"},
    [S_RUNC] = {"runc", "`runc run`"},
    [S_DOCKER] = {"docker", "`docker run`"},
    [S_DOCKER_EXEC] = {"docker-exec", "`docker exec` in a running container"},
};

int cold_cycle(struct keeper_link *l, struct command *c, struct pd_err *e)
{
    struct spec s = SPEC_DEFAULT;
    struct jail j;
    struct msg_exited end = {0};
    auto_frame f = FRAME_INIT;
    deadline d = deadline_in(PATIENCE);

    if (jail_request(l, &j, &s, 0, e) < 0)
        return -1;
    int r = jail_send_command(&j, c, 0, e);

    /* Either the keeper says why there is no jail, or init tells of the command's end. */
    if (r == 0 && ((r = wire_recv(l->sock, &f, d, e)) != 1 || (r = jail_accept(&j, &f, e)) < 0))
        r = r ? -1 : pd_fail(e, PD_LOST, "the keeper is gone");

    while (r == 0) {
        frame_reset(&f);
        if (wire_recv(j.control, &f, d, e) < 1) {
            r = -1;
        } else if (f.head.type == WIRE_ERROR) {
            r = msg_error_raise(&f, e);
        } else if (f.head.type == WIRE_EXITED) {
            r = msg_exited_decode(&f.payload, &end, e);
            break;
        }
    }

    if (r == 0)
        r = jail_destroy(l, &j, 0, NULL, d, e);
    jail_done(&j);
    if (r == 0 && end.status != 0)
        r = pd_fail(e, PD_INTERNAL, "the command ended with status %d", end.status);
    return r;
}

/* The command's end; its start, which EXEC_QUIET leaves out, is of no interest. */
static int await_exit(struct jail *j, const struct command *c, struct msg_exited *ret, deadline d,
                      struct pd_err *e)
{
    auto_frame f = FRAME_INIT;

    for (;;) {
        frame_reset(&f);
        if (wire_recv(j->control, &f, d, e) < 1)
            return -1;
        if (f.head.type == WIRE_ERROR)
            return msg_error_raise(&f, e);
        if (f.head.type == WIRE_EXITED && !memcmp(&f.head.id, &c->id, sizeof c->id))
            return msg_exited_decode(&f.payload, ret, e);
    }
}

static int timed_spawn(struct context *c, unsigned series, const char *const *argv, int ns,
                       const char *env, struct pd_err *e)
{
    int status;
    uint64_t began = clock_now();
    if (place_spawn(c->p, argv, ns, env, &status, e) < 0)
        return -1;

    uint64_t took = clock_now() - began;
    if (status) {
        char why[160];
        place_complaint(c->p, why, sizeof why);
        return pd_fail(e, PD_INTERNAL, "%s: status %d: %s", argv[0], status, why);
    }
    series_add(&c->l->series[series], took);
    return 0;
}

static int run_floor(struct context *c, struct pd_err *e)
{
    static const char *const argv[] = {"/bin/true", NULL};
    return timed_spawn(c, S_FLOOR, argv, -1, NULL, e);
}

static int run_cold(struct context *c, struct pd_err *e)
{
    uint64_t began = clock_now();
    if (cold_cycle(&c->p->link, &c->errand.command, e) < 0)
        return -1;
    series_add(&c->l->series[S_COLD], clock_now() - began);
    return 0;
}

static int run_parts(struct context *c, struct pd_err *e)
{
    struct spec s = SPEC_DEFAULT;
    struct jail j;
    struct msg_exited end;
    deadline d = deadline_in(PATIENCE);
    uint64_t began = clock_now();
    if (jail_create(&c->p->link, &j, &s, 0, d, e) < 0)
        return -1;

    uint64_t created = clock_now();
    int r = jail_run(&j, &c->errand.command, 0, &end, d, e);
    uint64_t ended = clock_now();
    if (r == 0)
        r = jail_destroy(&c->p->link, &j, 0, NULL, d, e);
    uint64_t gone = clock_now();
    jail_done(&j);

    if (r < 0)
        return -1;
    series_add(&c->l->series[S_CREATE], created - began);
    series_add(&c->l->series[S_FIRST_EXEC], ended - created);
    series_add(&c->l->series[S_DESTROY], gone - ended);
    return 0;
}

static int timed_exec(struct context *c, unsigned series, int group, struct pd_err *e)
{
    struct command *command = &c->errand.command;
    struct msg_exited end;
    uint64_t began = clock_now();

    command->id = wire_id_new();
    command->flags |= EXEC_QUIET;
    if (jail_send_prepared(&c->waiting, command, group, -1, e) < 0 ||
        await_exit(&c->waiting, command, &end, deadline_in(PATIENCE), e) < 0)
        return -1;
    jail_forget_command(&c->waiting, command);

    uint64_t took = clock_now() - began;
    if (end.status)
        return pd_fail(e, PD_INTERNAL, "the command ended with status %d", end.status);
    series_add(&c->l->series[series], took);
    return 0;
}

static int run_exec(struct context *c, struct pd_err *e)
{
    return timed_exec(c, S_EXEC, -1, e);
}

/* The group is there before, as the server has it for every command but the first. */
static int run_exec_group(struct context *c, struct pd_err *e)
{
    if (c->group < 0)
        return pd_fail(e, PD_UNSUPPORTED, "the jail has no cgroup");
    return timed_exec(c, S_EXEC_GROUP, c->group, e);
}

static int run_one_process(struct context *c, struct pd_err *e)
{
    const char *const argv[] = {c->p->paddock, "run", "--", "/bin/true", NULL};
    return timed_spawn(c, S_RUN, argv, -1, NULL, e);
}

static int run_with_keeper(struct context *c, struct pd_err *e)
{
    const char *const argv[] = {c->p->paddock, "run", "--", "/bin/true", NULL};
    char env[160];
    snprintf(env, sizeof env, "PADDOCK_KEEPER=%s", c->p->sock);
    return timed_spawn(c, S_RUN_KEEPER, argv, -1, env, e);
}

static int run_bwrap(struct context *c, struct pd_err *e)
{
    static const char *const argv[] = {
        "bwrap",         "--unshare-all", "--ro-bind", "/",       "/",    "--proc",
        "/proc",         "--dev",         "/dev",      "--tmpfs", "/tmp", "--die-with-parent",
        "--new-session", "/bin/true",     NULL};
    return timed_spawn(c, S_BWRAP, argv, -1, NULL, e);
}

static int run_oci(struct context *c, unsigned series, const char *program, int ns,
                   struct pd_err *e)
{
    char root[112], id[40];
    snprintf(root, sizeof root, "%s/%s", c->p->dir, program);
    snprintf(id, sizeof id, "bench-%d-%u", (int)getpid(), c->serial++);
    const char *const argv[] = {program, "--root", root, "run", "--bundle", c->p->bundle, id, NULL};
    return timed_spawn(c, series, argv, ns, NULL, e);
}

static int run_crun(struct context *c, struct pd_err *e)
{
    return run_oci(c, S_CRUN, "crun", c->p->no_v2, e);
}

static int run_runc(struct context *c, struct pd_err *e)
{
    return run_oci(c, S_RUNC, "runc", -1, e);
}

static int run_docker(struct context *c, struct pd_err *e)
{
    static const char *const argv[] = {"docker",  "run",       "--rm", "--network=none",
                                       "busybox", "/bin/true", NULL};
    return timed_spawn(c, S_DOCKER, argv, -1, c->p->docker, e);
}

static int run_docker_exec(struct context *c, struct pd_err *e)
{
    const char *const argv[] = {"docker", "exec", c->container, "/bin/true", NULL};
    return timed_spawn(c, S_DOCKER_EXEC, argv, -1, c->p->docker, e);
}

static const struct step steps[] = {
    {S_FLOOR, 1, 0, run_floor},
    {S_COLD, 1, 0, run_cold},
    {S_BWRAP, 1, 1, run_bwrap},
    {S_EXEC, 1, 0, run_exec},
    {S_CREATE, 1, 0, run_parts},
    {S_RUN, 1, 0, run_one_process},
    {S_CRUN, 4, 1, run_crun},
    {S_EXEC_GROUP, 1, 0, run_exec_group},
    {S_RUN_KEEPER, 1, 0, run_with_keeper},
    {S_RUNC, 4, 1, run_runc},
    {S_DOCKER, 20, 1, run_docker},
    {S_DOCKER_EXEC, 20, 1, run_docker_exec},
};
#define STEPS (sizeof steps / sizeof *steps)

int latency_has(const char *name)
{
    for (size_t i = 0; i < STEPS; i++)
        if (!strcmp(name, names[steps[i].first].name))
            return 1;
    return 0;
}

void latency_init(struct latency *l)
{
    for (int i = 0; i < SERIES_COUNT; i++)
        l->series[i] = (struct series){.name = names[i].name, .what = names[i].what};
}

void latency_done(struct latency *l)
{
    for (int i = 0; i < SERIES_COUNT; i++)
        series_done(&l->series[i]);
}

/* The daemon is started by tests/bench/run; a container that waits is started here. */
static int docker_is_ready(struct context *c, struct series *s)
{
    char name[40];
    snprintf(name, sizeof name, "bench-%d-waiting", (int)getpid());
    const char *const argv[] = {"docker", "run",     "--detach",   "--network=none", "--name",
                                name,     "busybox", "/bin/sleep", "3600",           NULL};
    struct pd_err e;
    int status = 0;

    if (!c->p->docker) {
        snprintf(s->skipped, sizeof s->skipped, "%s", c->p->docker_missing);
        return 0;
    }
    if (c->container[0])
        return 1;

    if (place_spawn(c->p, argv, -1, c->p->docker, &status, &e) < 0)
        snprintf(s->skipped, sizeof s->skipped, "%s", e.msg);
    else if (status)
        place_complaint(c->p, s->skipped, sizeof s->skipped);
    else
        snprintf(c->container, sizeof c->container, "%s", name);
    return c->container[0] != 0;
}

static void docker_done(struct context *c)
{
    const char *const argv[] = {"docker", "rm", "--force", c->container, NULL};
    struct pd_err e;
    int status = 0;

    if (!c->container[0])
        return;
    int r = place_spawn(c->p, argv, -1, c->p->docker, &status, &e);
    if (r == 0 && status)
        r = pd_fail(&e, PD_INTERNAL, "docker rm: status %d", status);
    if (r < 0)
        place_error(c->p, "end docker's container", &e);
}

/* Everything once, outside the measurement. */
static void try_all(struct context *c, const char *only, int *wanted)
{
    for (size_t i = 0; i < STEPS; i++) {
        const struct step *s = &steps[i];
        struct series *first = &c->l->series[s->first];
        struct pd_err e;

        wanted[i] = 0;
        if (only && s->first != S_FLOOR && strcmp(only, first->name) != 0) {
            snprintf(first->skipped, sizeof first->skipped, "not asked for");
            continue;
        }

        if ((s->first == S_DOCKER || s->first == S_DOCKER_EXEC) && !docker_is_ready(c, first))
            continue;
        if (s->run(c, &e) == 0) {
            first->count = 0;
            wanted[i] = 1;
            continue;
        }

        snprintf(first->skipped, sizeof first->skipped, "%s", e.msg);
        if (!s->peer)
            place_error(c->p, first->name, &e);
    }

    for (int i = 0; i < SERIES_COUNT; i++)
        c->l->series[i].count = 0;
}

void latency_measure(struct latency *l, struct place *p, unsigned rounds, unsigned pause_usec,
                     unsigned patience_ms, const char *only)
{
    struct context c = {.l = l, .p = p, .waiting = JAIL_EMPTY, .group = -1};
    struct spec spec = SPEC_DEFAULT;
    struct pd_err e;
    int wanted[STEPS];

    if (errand_init(&c.errand, p, "/bin/true", p->null, &e) < 0 ||
        jail_create(&p->link, &c.waiting, &spec, 0, deadline_in(PATIENCE), &e) < 0) {
        place_error(p, "a jail for exec", &e);
        return;
    }

    l->rounds = rounds;
    if (c.waiting.cgroup_dir >= 0)
        c.group = cgroup_command_create(c.waiting.cgroup_dir, "bench");
    try_all(&c, only, wanted);

    for (unsigned round = 0; round < rounds; round++)
        for (size_t i = 0; i < STEPS; i++) {
            size_t at = (round + i) % STEPS;
            if (!wanted[at] || round % steps[at].every)
                continue;
            place_calm(p, pause_usec, patience_ms);
            place_reap(p);
            if (steps[at].run(&c, &e) < 0)
                place_error(p, names[steps[at].first].name, &e);
        }

    fd_done(&c.group);
    docker_done(&c);
    if (jail_destroy(&p->link, &c.waiting, 0, NULL, deadline_in(PATIENCE), &e) < 0)
        place_error(p, "destroy the jail for exec", &e);
    jail_done(&c.waiting);
    errand_done(&c.errand);
}
