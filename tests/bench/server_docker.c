/* Commands in a docker sandbox beside the same in a jail, through one server and on one connection,
 * and `docker exec` beside both: all in turns. The engine is started by tests/bench/run; where
 * there is none, the reason is told instead. Jail and image have the same programs, libraries and
 * locale, so that what differs is the way to them. */
#include "server_bench.h"

#include "base/banned.h"
#include "base/err.h"

#define IMAGE     "paddock-bench:1"
#define MAKE_JAIL "{}"
#define MAKE      "{\"provider\":\"docker\",\"image\":\"" IMAGE "\"}"
#define ARGV      "{\"argv\":[\"/bin/true\"]}"
#define LINE      "{\"command\":\"true\"}"
#define ROOM      8u
#define WARM_UP   3u
/* `docker exec` takes so long that it has its turn in one of so many rounds. */
#define SELDOM 5u

static const struct {
    const char *name, *what, *body;
    unsigned floor;
} rows[D_COUNT] = {
    [D_JAIL_ARGV] = {"jail-argv", "exec of `/bin/true` in a jail", ARGV, D_JAIL_ARGV},
    [D_ARGV] = {"docker-argv", "the same in docker", ARGV, D_JAIL_ARGV},
    [D_JAIL_LINE] = {"jail-line", "exec of the line `true` in a jail", LINE, D_JAIL_LINE},
    [D_LINE] = {"docker-line", "the same in docker", LINE, D_JAIL_LINE},
    [D_ENGINE] = {"engine-exec", "`docker exec` of `/bin/true`", NULL, D_JAIL_ARGV},
};

struct turns {
    struct docker_latency *l;
    struct server_place *s;
    struct http h;
    char jail[32], docker[32];
    char container[40]; /* of `docker exec` */
};

void docker_latency_init(struct docker_latency *l)
{
    for (unsigned i = 0; i < D_COUNT; i++)
        l->series[i] = (struct series){.name = rows[i].name, .what = rows[i].what};
}

void docker_latency_done(struct docker_latency *l)
{
    for (unsigned i = 0; i < D_COUNT; i++)
        series_done(&l->series[i]);
}

unsigned docker_latency_floor(unsigned series)
{
    return rows[series].floor;
}

/* Runs the engine's own client, which ends with 0. */
static int run_client(struct turns *t, const char *const *argv, struct pd_err *e)
{
    char why[200];
    int status = 0;
    if (place_spawn(&t->s->p, argv, -1, t->s->p.docker, &status, e) < 0)
        return -1;
    if (!status)
        return 0;

    place_complaint(&t->s->p, why, sizeof why);
    return pd_fail(e, PD_INTERNAL, "docker %s: %s", argv[1], why);
}

static int run_row(struct turns *t, unsigned row, struct pd_err *e)
{
    const char *const argv[] = {"docker", "exec", t->container, "/bin/true", NULL};
    bool in_jail = row == D_JAIL_ARGV || row == D_JAIL_LINE;

    uint64_t began = clock_now();
    int r = row == D_ENGINE
                ? run_client(t, argv, e)
                : sandbox_exec(&t->h, t->s, in_jail ? t->jail : t->docker, rows[row].body, NULL, e);
    if (r == 0)
        series_add(&t->l->series[row], clock_now() - began);
    return r;
}

static int take_turns(struct turns *t, unsigned rounds, unsigned pause_usec, unsigned patience_ms,
                      struct pd_err *e)
{
    for (unsigned round = 0; round < rounds + WARM_UP; round++) {
        if (round == WARM_UP)
            for (unsigned i = 0; i < D_COUNT; i++)
                t->l->series[i].count = 0;

        for (unsigned i = 0; i < D_COUNT; i++) {
            unsigned row = (round + i) % D_COUNT;
            if (row == D_ENGINE && round % SELDOM)
                continue;
            place_calm(&t->s->p, pause_usec, patience_ms);
            if (run_row(t, row, e) < 0)
                return -1;
        }
    }
    return 0;
}

/* Both sandboxes, and a container that `docker exec` can be measured in. */
static int open_places(struct turns *t, struct pd_err *e)
{
    char name[40];
    snprintf(name, sizeof name, "bench-%d-beside", (int)getpid());
    const char *const argv[] = {"docker", "run", "--detach",   "--network=none", "--name",
                                name,     IMAGE, "/bin/sleep", "3600",           NULL};

    if (http_open(&t->h, t->s, e) < 0 ||
        sandbox_make(&t->h, t->s, MAKE_JAIL, t->jail, NULL, e) < 0 ||
        sandbox_make(&t->h, t->s, MAKE, t->docker, NULL, e) < 0 || run_client(t, argv, e) < 0)
        return -1;
    snprintf(t->container, sizeof t->container, "%s", name);
    return 0;
}

static int close_places(struct turns *t, struct pd_err *e)
{
    const char *const argv[] = {"docker", "rm", "--force", t->container, NULL};
    int r = t->container[0] ? run_client(t, argv, e) : 0;
    struct http h = HTTP_EMPTY; /* what is still to come on the other belongs to nobody */

    if ((t->jail[0] || t->docker[0]) && http_open(&h, t->s, e) < 0)
        r = -1;
    if (h.fd >= 0 && t->jail[0] && sandbox_unmake(&h, t->s, t->jail, e) < 0)
        r = -1;
    if (h.fd >= 0 && t->docker[0] && sandbox_unmake(&h, t->s, t->docker, e) < 0)
        r = -1;
    http_done(&h);
    return r;
}

void docker_latency_measure(struct docker_latency *l, struct server_place *s, const char *storage,
                            unsigned rounds, unsigned pause_usec, unsigned patience_ms)
{
    struct turns t = {.l = l, .s = s, .h = HTTP_EMPTY};
    struct pd_err e;
    if (!s->p.docker) {
        snprintf(l->skipped, sizeof l->skipped, "%s", s->p.docker_missing);
        return;
    }

    s->has_docker = true;
    if (server_start(s, storage, ROOM, &e) < 0 || open_places(&t, &e) < 0 ||
        take_turns(&t, rounds, pause_usec, patience_ms, &e) < 0)
        place_error(&s->p, "docker beside the jail", &e);
    http_done(&t.h);

    if (s->program > 0 && close_places(&t, &e) < 0)
        place_error(&s->p, "end docker's sandbox", &e);
    if (server_stop(s, &e) < 0)
        place_error(&s->p, "end the server", &e);
    s->has_docker = false;
}
