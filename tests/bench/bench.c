#include "bench.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"

#include <signal.h>
#include <sys/resource.h>

static const char usage[] =
    "usage: paddock-bench [--quick] [--only NAME] [--skip NAME] [--rounds N] [--seconds N]\n"
    "                     [--idle N] [--memory N] [--pause USEC] [--calm MSEC]\n"
    "                     [--paddock FILE] [--payload FILE] [--json FILE]\n\n"
    "  --quick         fewer rounds, seconds and jails\n"
    "  --only NAME     latency, idle, sustained, or one latency with the floor: cold, create,\n"
    "                  exec, exec-group, run, run-keeper, bubblewrap, crun, runc, docker,\n"
    "                  docker-exec\n"
    "  --skip NAME     all but latency, idle or sustained\n"
    "  --rounds N      of every latency (400)\n"
    "  --pause USEC    before each (3000)\n"
    "  --calm MSEC     how long to wait for a moment when nothing else runs (50)\n"
    "  --seconds N     of sustained creation and its floor together (30)\n"
    "  --idle N        jails for the creation latency with many (5000)\n"
    "  --memory N      jails for the memory of one (1000)\n"
    "  --paddock FILE  the program to measure (build/paddock)\n"
    "  --payload FILE  a static program that does nothing (build/tests/bench/paddock-bench-true)\n"
    "  --json FILE     where the numbers go (build/bench.json)\n";

struct options {
    uint64_t rounds, seconds, idle, memory, pause, calm;
    const char *only, *skip, *json;
};

static int parse(struct options *o, struct place *p, int argc, char **argv, struct pd_err *e)
{
    const struct {
        const char *name;
        uint64_t *number;
        uint64_t max;
        const char **text;
    } known[] = {
        {"--rounds", &o->rounds, 100000, NULL}, {"--pause", &o->pause, 1000000, NULL},
        {"--seconds", &o->seconds, 3600, NULL}, {"--idle", &o->idle, 30000, NULL},
        {"--memory", &o->memory, 30000, NULL},  {"--only", NULL, 0, &o->only},
        {"--paddock", NULL, 0, &p->paddock},    {"--payload", NULL, 0, &p->payload},
        {"--skip", NULL, 0, &o->skip},          {"--json", NULL, 0, &o->json},
        {"--calm", &o->calm, 60000, NULL},
    };

    for (int i = 1; i < argc; i++) {
        size_t k = 0;
        if (!strcmp(argv[i], "--quick")) {
            o->rounds = 60;
            o->seconds = 3;
            o->idle = 500;
            o->memory = 200;
            continue;
        }

        while (k < sizeof known / sizeof *known && strcmp(argv[i], known[k].name) != 0)
            k++;
        if (k == sizeof known / sizeof *known || i + 1 == argc)
            return pd_fail(e, PD_INVALID, "'%.60s': unknown, or without its value\n%s", argv[i],
                           "see --help");
        i++;

        if (known[k].text)
            *known[k].text = argv[i];
        else if (parse_u64(known[k].name, argv[i], 0, known[k].max, known[k].number, e) < 0)
            return -1;
    }

    if (o->only && strcmp(o->only, "latency") != 0 && strcmp(o->only, "idle") != 0 &&
        strcmp(o->only, "sustained") != 0 && !latency_has(o->only))
        return pd_fail(e, PD_INVALID, "--only: there is no '%.60s'; see --help", o->only);
    return 0;
}

static int wants(const struct options *o, const char *part)
{
    if (o->skip && !strcmp(o->skip, part))
        return 0;
    if (!o->only || !strcmp(o->only, part))
        return 1;
    return !strcmp(part, "latency") && latency_has(o->only);
}

static void measure(struct report *r, struct place *p, const struct options *o)
{
    const char *one = o->only && latency_has(o->only) ? o->only : NULL;
    if (wants(o, "latency")) {
        fprintf(p->news, "latency: %u rounds ...\n", (unsigned)o->rounds);
        fflush(p->news);
        latency_measure(&r->latency, p, (unsigned)o->rounds, (unsigned)o->pause, (unsigned)o->calm,
                        one);
        r->has_latency = 1;
    }

    if (wants(o, "idle")) {
        fprintf(p->news, "idle: up to %u jails ...\n", (unsigned)o->idle);
        fflush(p->news);
        r->idle = (struct idle){.few = 100, .some = (unsigned)o->memory, .many = (unsigned)o->idle};
        idle_measure(&r->idle, p, 200);
        r->has_idle = 1;
    }

    if (wants(o, "sustained")) {
        fprintf(p->news, "sustained: %u s ...\n", (unsigned)o->seconds);
        fflush(p->news);
        sustained_measure(&r->sustained, p, 2, (unsigned)o->seconds);
        r->has_sustained = 1;
    }
}

int main(int argc, char **argv)
{
    static struct report r;
    static struct place p;
    struct options o = {.rounds = 400,
                        .seconds = 30,
                        .idle = 5000,
                        .memory = 1000,
                        .pause = 3000,
                        .calm = 50,
                        .json = "build/bench.json"};
    struct pd_err e;

    if (argc > 1 && !strcmp(argv[1], "--help")) {
        fputs(usage, stdout);
        return 0;
    }

    p.paddock = "build/paddock";
    p.payload = "build/tests/bench/paddock-bench-true";
    p.docker = getenv("BENCH_DOCKER");
    p.docker_missing = getenv("BENCH_DOCKER_MISSING");
    if (!p.docker_missing)
        p.docker_missing = "only tests/bench/run starts a daemon";

    if (parse(&o, &p, argc, argv, &e) < 0) {
        fprintf(stderr, "paddock-bench: %s\n", e.msg);
        return 2;
    }

    /* Paths must hold after a change of the mount namespace, which leads to its root. */
    p.paddock = realpath(p.paddock, NULL);
    p.payload = realpath(p.payload, NULL);

    char *json = realpath(".", NULL);
    char json_path[4096];
    snprintf(json_path, sizeof json_path, "%s/%s", o.json[0] == '/' || !json ? "" : json, o.json);
    if (!p.paddock || !p.payload) {
        fprintf(stderr, "paddock-bench: build/paddock and its payload must be built first\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);

    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }

    latency_init(&r.latency);
    if (place_open(&p, &e) < 0) {
        fprintf(stderr, "paddock-bench: %s\n", e.msg);
        return 1;
    }

    if (place_start_keeper(&p, 2, 4, &e) < 0)
        place_error(&p, "start a keeper", &e);
    else
        measure(&r, &p, &o);

    if (place_stop_keeper(&p, &e) < 0)
        place_error(&p, "end the keeper", &e);
    if (p.layout)
        report_people(&r, &p);
    else
        fprintf(p.news, "paddock-bench: %s\n", p.first_error);

    if (p.layout && report_json(&r, &p, json_path, &e) < 0) {
        place_error(&p, "report", &e);
        fprintf(p.news, "paddock-bench: %s\n", e.msg);
    }
    latency_done(&r.latency);
    place_close(&p);
    return p.errors ? 1 : 0;
}
