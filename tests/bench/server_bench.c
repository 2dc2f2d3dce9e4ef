#include "server_bench.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#define MIB (1ull << 20)

static const char usage_text[] =
    "usage: paddock-server-bench [--quick] [--only PART] [--rounds N] [--sandboxes N]\n"
    "                            [--storage auto|memory|disk] [--pause USEC] [--calm MSEC]\n"
    "                            [--paddock FILE] [--json FILE]\n\n"
    "  --quick          fewer of everything\n"
    "  --only PART      exec, docker, idle, streams, output, files or connections\n"
    "  --rounds N       of every latency (250)\n"
    "  --sandboxes N    that lie idle (1000)\n"
    "  --connections N  that lie idle (10000)\n"
    "  --storage WORD   of the server for all but `idle`, which takes both (memory)\n"
    "  --pause USEC     before each (3000)\n"
    "  --calm MSEC      how long to wait for a moment when nothing else runs (20)\n"
    "  --paddock FILE   the program to measure (build/paddock)\n"
    "  --json FILE      where the numbers go (build/bench-server.json)\n";

enum part { EXEC, DOCKER, IDLE, STREAMS, OUTPUT, FILES, CONNECTIONS, PARTS };
static const char *const part_names[PARTS] = {"exec",   "docker", "idle",       "streams",
                                              "output", "files",  "connections"};
static const char *const storages[] = {"memory", "disk"};
#define STORAGES (sizeof storages / sizeof *storages)

struct options {
    uint64_t rounds, sandboxes, connections, pause, calm, streams, output, file, file_rounds;
    const char *only, *json, *storage;
    int wants[PARTS];
};

struct server_report {
    struct server_latency latency;
    struct docker_latency docker;
    struct crowding idle[STORAGES];
    struct streams streams;
    struct output output;
    struct files files;
    struct connections connections;
};

static int parse(struct options *o, const char **paddock, int argc, char **argv, struct pd_err *e)
{
    const struct {
        const char *name;
        uint64_t *number;
        uint64_t max;
        const char **text;
    } known[] = {
        {"--rounds", &o->rounds, 100000, NULL},
        {"--sandboxes", &o->sandboxes, 5000, NULL},
        {"--connections", &o->connections, 100000, NULL},
        {"--pause", &o->pause, 1000000, NULL},
        {"--calm", &o->calm, 60000, NULL},
        {"--only", NULL, 0, &o->only},
        {"--storage", NULL, 0, &o->storage},
        {"--paddock", NULL, 0, paddock},
        {"--json", NULL, 0, &o->json},
    };

    for (int i = 1; i < argc; i++) {
        size_t k = 0;
        if (!strcmp(argv[i], "--quick")) {
            o->rounds = 40;
            o->sandboxes = 100;
            o->connections = 1000;
            o->streams = 40;
            o->output = 64 * MIB;
            o->file = 32 * MIB;
            o->file_rounds = 3;
            continue;
        }

        while (k < sizeof known / sizeof *known && strcmp(argv[i], known[k].name) != 0)
            k++;
        if (k == sizeof known / sizeof *known || i + 1 == argc)
            return pd_fail(e, PD_INVALID, "'%.60s': unknown, or without its value; see --help",
                           argv[i]);
        i++;

        if (known[k].text)
            *known[k].text = argv[i];
        else if (parse_u64(known[k].name, argv[i], 1, known[k].max, known[k].number, e) < 0)
            return -1;
    }

    int any = 0;
    for (int i = 0; i < PARTS; i++)
        any |= o->wants[i] = !o->only || !strcmp(o->only, part_names[i]);
    return any ? 0 : pd_fail(e, PD_INVALID, "--only: there is no '%.60s'; see --help", o->only);
}

static void news(struct server_place *s, const char *text)
{
    fprintf(s->p.news, "server: %s ...\n", text);
    fflush(s->p.news);
}

/* Everything but `idle`, with one server. */
static void measure_with_one(struct server_report *r, struct server_place *s,
                             const struct options *o)
{
    struct pd_err e;

    if (server_start(s, o->storage, 100, &e) < 0) {
        place_error(&s->p, "start a server", &e);
    } else {
        if (o->wants[EXEC]) {
            news(s, "latency");
            server_latency_measure(&r->latency, s, (unsigned)o->rounds, (unsigned)o->pause,
                                   (unsigned)o->calm);
        }

        if (o->wants[STREAMS]) {
            news(s, "event streams");
            streams_measure(&r->streams, s, (unsigned)o->streams);
        }

        if (o->wants[OUTPUT]) {
            news(s, "output to a slow reader");
            output_measure(&r->output, s, o->output, 64 * MIB);
        }

        if (o->wants[FILES]) {
            news(s, "files");
            files_measure(&r->files, s, o->file, (unsigned)o->file_rounds);
        }

        if (o->wants[CONNECTIONS]) {
            news(s, "connections");
            connections_measure(&r->connections, s, (unsigned)o->connections);
        }
    }

    if (server_stop(s, &e) < 0)
        place_error(&s->p, "end the server", &e);
}

static void measure(struct server_report *r, struct server_place *s, const struct options *o)
{
    if (o->wants[EXEC] || o->wants[STREAMS] || o->wants[OUTPUT] || o->wants[FILES] ||
        o->wants[CONNECTIONS])
        measure_with_one(r, s, o);
    if (o->wants[DOCKER]) {
        news(s, "docker beside the jail");
        docker_latency_measure(&r->docker, s, o->storage, (unsigned)o->rounds, (unsigned)o->pause,
                               (unsigned)o->calm);
    }

    for (size_t i = 0; i < STORAGES && o->wants[IDLE]; i++) {
        char text[60];
        snprintf(text, sizeof text, "%u idle sandboxes, storage %s", (unsigned)o->sandboxes,
                 storages[i]);
        news(s, text);
        crowding_measure(&r->idle[i], s, storages[i], (unsigned)o->sandboxes, (unsigned)o->rounds,
                         (unsigned)o->pause, (unsigned)o->calm);
    }
}

/* ---- for people ---- */

static double ms(uint64_t ns)
{
    return (double)ns / 1e6;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (double)MIB;
}

static double ratio(uint64_t a, uint64_t b)
{
    return b ? (double)a / (double)b : 0;
}

static void latency_people(struct server_report *r, FILE *f)
{
    fprintf(f, "\n| server, one client | p50 ms | p95 ms | p99 ms | x without it |\n"
               "|---|---:|---:|---:|---:|\n");
    for (unsigned i = 0; i < V_COUNT; i++) {
        struct series *s = &r->latency.series[i];
        if (!s->count)
            continue;
        uint64_t p50 = series_quantile(s, 500);
        uint64_t base = series_quantile(&r->latency.series[server_latency_floor(i)], 500);
        fprintf(f, "| %s | %.2f | %.2f | %.2f | %.2f |\n", s->what, ms(p50),
                ms(series_quantile(s, 950)), ms(series_quantile(s, 990)), ratio(p50, base));
    }

    if (r->latency.pool_misses)
        fprintf(f, "\n%u creations found the pool empty and are not counted\n",
                r->latency.pool_misses);
}

static void docker_people(struct docker_latency *l, FILE *f)
{
    if (l->skipped[0])
        fprintf(f, "\ndocker was left out: %s\n", l->skipped);
    if (!l->series[D_LINE].count)
        return;

    fprintf(f, "\n| docker beside the jail | p50 ms | p95 ms | p99 ms | x the jail's |\n"
               "|---|---:|---:|---:|---:|\n");
    for (unsigned i = 0; i < D_COUNT; i++) {
        struct series *s = &l->series[i];
        uint64_t p50 = series_quantile(s, 500);
        uint64_t base = series_quantile(&l->series[docker_latency_floor(i)], 500);
        fprintf(f, "| %s | %.2f | %.2f | %.2f | %.2f |\n", s->what, ms(p50),
                ms(series_quantile(s, 950)), ms(series_quantile(s, 990)), ratio(p50, base));
    }
}

static double p99_in_floors(struct level *v)
{
    return ratio(series_quantile(&v->exec, 990), series_quantile(&v->floor, 500));
}

static void idle_people(struct crowding *c, FILE *f)
{
    if (!c->at_many.exec.count)
        return;

    uint64_t few = series_quantile(&c->at_few.exec, 990),
             again = series_quantile(&c->at_few_again.exec, 990);
    if (c->many < c->asked)
        fprintf(f, "| scaled down: %u of %u sandboxes could be made | |\n", c->many, c->asked);
    fprintf(f,
            "| exec while 1 sandbox is there, storage %s (p50, p99; once more after the next line) "
            "| %.2f, %.2f ms; %.2f, %.2f ms |\n",
            c->storage, ms(series_quantile(&c->at_few.exec, 500)), ms(few),
            ms(series_quantile(&c->at_few_again.exec, 500)), ms(again));
    fprintf(f,
            "| exec while %u sandboxes are idle (p50, p99; p99 against the smaller one above) "
            "| %.2f, %.2f ms; %.2f x |\n",
            c->many, ms(series_quantile(&c->at_many.exec, 500)),
            ms(series_quantile(&c->at_many.exec, 990)),
            ratio(series_quantile(&c->at_many.exec, 990), few < again ? few : again));
    fprintf(f,
            "| of these: create, delete one after the other; memory of one; of the server "
            "(1 sandbox, all) | %.2f, %.2f ms; %" PRId64 " KB; %.1f, %.1f MiB |\n",
            ms(c->creation_ns) / (c->many - c->few), ms(c->deletion_ns) / (c->many - c->few),
            c->per_sandbox / 1024, mib(c->rss_few), mib(c->rss_many));
}

static void load_people(struct server_report *r, const struct options *o, FILE *f)
{
    const struct streams *t = &r->streams;
    const struct output *w = &r->output;
    struct files *x = &r->files;
    const struct connections *c = &r->connections;

    fprintf(f, "\n| server under load | |\n|---|---:|\n");
    for (size_t i = 0; i < STORAGES; i++)
        idle_people(&r->idle[i], f);

    if (o->wants[STREAMS]) {
        fprintf(f,
                "| %u event streams at once, %.1f s each: bytes that arrived of those written; "
                "time of all | %" PRIu64 " of %" PRIu64 "; %.1f s |\n",
                t->count, ms(t->ideal_ns) / 1000, t->bytes, t->wanted, ms(t->ns) / 1000);
        fprintf(f,
                "| meanwhile: memory of the server before, at most; its processor time "
                "| %.1f, %.1f MiB; %.2f s |\n",
                mib(t->before.rss), mib(t->after.peak),
                ms(t->after.cpu_ns - t->before.cpu_ns) / 1000);
    }

    if (o->wants[OUTPUT])
        fprintf(f,
                "| %.0f MiB of output to a reader of %.0f MiB/s: bytes that arrived; memory of the "
                "server before, at most, after | %" PRIu64 "; %.1f, %.1f, %.1f MiB |\n",
                mib(w->wanted), mib(w->per_second), w->bytes, mib(w->before.rss),
                mib(w->after.peak), mib(w->after.rss));

    if (x->cat.count && x->upload.count && x->download.count) {
        double base = mib(x->bytes) * 1000 / ms(series_quantile(&x->cat, 500));
        double up = mib(x->bytes) * 1000 / ms(series_quantile(&x->upload, 500));
        double down = mib(x->bytes) * 1000 / ms(series_quantile(&x->download, 500));
        fprintf(f, "| `cat` of a file of %.0f MiB through a pipe | %.0f MiB/s |\n", mib(x->bytes),
                base);
        fprintf(f, "| upload of it, storage %s (of `cat`) | %.0f MiB/s (%.0f %%) |\n", o->storage,
                up, 100 * up / base);
        fprintf(f, "| download of it (of `cat`) | %.0f MiB/s (%.0f %%) |\n", down,
                100 * down / base);
    }

    if (c->count)
        fprintf(f,
                "| %u idle connections%s: memory of the server before, with them "
                "| %.1f, %.1f MiB |\n",
                c->count, c->asked < o->connections ? " (no more descriptors)" : "",
                mib(c->before.rss), mib(c->during.rss));
}

static void report_for_people(struct server_report *r, struct server_place *s,
                              const struct options *o)
{
    FILE *f = s->p.people;
    if (s->p.calm_starts < s->p.starts / 2)
        fprintf(f, "the machine was busy: %u of %u measurements began while others ran\n",
                s->p.starts - s->p.calm_starts, s->p.starts);
    if (r->latency.series[V_EXEC].count)
        latency_people(r, f);
    docker_people(&r->docker, f);
    load_people(r, o, f);
    if (s->p.errors)
        fprintf(f, "\n%u errors; the first: %s\n", s->p.errors, s->p.first_error);
    fflush(f);
}

/* ---- for programs ---- */

static void key_us(struct json *j, const char *key, uint64_t ns)
{
    json_key(j, key);
    json_milli(j, ns);
}

static void key_uint(struct json *j, const char *key, uint64_t v)
{
    json_key(j, key);
    json_uint(j, v);
}

static void key_str(struct json *j, const char *key, const char *v)
{
    json_key(j, key);
    json_cstr(j, v);
}

static void key_ratio(struct json *j, const char *key, double v)
{
    json_key(j, key);
    json_milli(j, v > 0 ? (uint64_t)(v * 1000) : 0);
}

static void series_json(struct json *j, const char *key, struct series *s, uint64_t base)
{
    if (!s->count)
        return;
    json_key(j, key);
    json_open(j, '{');
    key_uint(j, "samples", s->count);
    key_us(j, "min_us", series_quantile(s, 0));
    key_us(j, "p10_us", series_quantile(s, 100));
    key_us(j, "p50_us", series_quantile(s, 500));
    key_us(j, "p95_us", series_quantile(s, 950));
    key_us(j, "p99_us", series_quantile(s, 990));
    if (base)
        key_ratio(j, "ratio", ratio(series_quantile(s, 500), base));
    json_close(j, '}');
}

static void level_json(struct json *j, const char *key, struct level *v)
{
    json_key(j, key);
    json_open(j, '{');
    series_json(j, "exec", &v->exec, 0);
    series_json(j, "floor", &v->floor, 0);
    key_ratio(j, "p99_in_floors", p99_in_floors(v));
    json_close(j, '}');
}

static void usage_json(struct json *j, const char *key, const struct usage *u)
{
    json_key(j, key);
    json_open(j, '{');
    key_uint(j, "rss", u->rss);
    key_uint(j, "peak", u->peak);
    key_us(j, "cpu_us", u->cpu_ns);
    json_close(j, '}');
}

static void idle_json(struct json *j, struct crowding *c)
{
    json_open(j, '{');
    key_str(j, "storage", c->storage);
    key_uint(j, "asked", c->asked);
    key_uint(j, "many", c->many);
    level_json(j, "one", &c->at_few);
    level_json(j, "many_idle", &c->at_many);
    level_json(j, "one_again", &c->at_few_again);
    key_us(j, "creation_us", c->creation_ns);
    key_us(j, "deletion_us", c->deletion_ns);
    key_uint(j, "rss_one", c->rss_few);
    key_uint(j, "rss_many", c->rss_many);
    json_key(j, "bytes_per_sandbox");
    json_int(j, c->per_sandbox);
    json_close(j, '}');
}

static void docker_json(struct json *j, struct docker_latency *l)
{
    for (unsigned i = 0; i < D_COUNT; i++) {
        struct series *s = &l->series[i];
        if (l->skipped[0]) {
            json_key(j, s->name);
            json_open(j, '{');
            key_uint(j, "samples", 0);
            key_str(j, "skipped", l->skipped);
            json_close(j, '}');
        }
        series_json(j, s->name, s, series_quantile(&l->series[docker_latency_floor(i)], 500));
    }
}

static void load_json(struct json *j, struct server_report *r)
{
    json_key(j, "streams");
    json_open(j, '{');
    key_uint(j, "count", r->streams.count);
    key_uint(j, "bytes", r->streams.bytes);
    key_uint(j, "wanted", r->streams.wanted);
    key_uint(j, "pieces", r->streams.pieces);
    key_us(j, "time_us", r->streams.ns);
    usage_json(j, "before", &r->streams.before);
    usage_json(j, "after", &r->streams.after);
    json_close(j, '}');

    json_key(j, "output");
    json_open(j, '{');
    key_uint(j, "bytes", r->output.bytes);
    key_uint(j, "wanted", r->output.wanted);
    key_us(j, "time_us", r->output.ns);
    usage_json(j, "before", &r->output.before);
    usage_json(j, "after", &r->output.after);
    json_close(j, '}');

    json_key(j, "files");
    json_open(j, '{');
    key_uint(j, "bytes", r->files.bytes);

    uint64_t base = series_quantile(&r->files.cat, 500);
    series_json(j, "cat", &r->files.cat, base);
    series_json(j, "upload", &r->files.upload, base);
    series_json(j, "download", &r->files.download, base);
    usage_json(j, "before", &r->files.before);
    usage_json(j, "after", &r->files.after);
    json_close(j, '}');

    json_key(j, "connections");
    json_open(j, '{');
    key_uint(j, "count", r->connections.count);
    key_uint(j, "answered_again", r->connections.answered_again);
    key_us(j, "time_us", r->connections.ns);
    usage_json(j, "before", &r->connections.before);
    usage_json(j, "with_them", &r->connections.during);
    usage_json(j, "after", &r->connections.after);
    json_close(j, '}');
}

static int report_for_programs(struct server_report *r, struct server_place *s,
                               const struct options *o, const char *path, struct pd_err *e)
{
    auto_buf out = BUF_INIT(1u << 20);
    struct json j = JSON_INIT(&out);
    struct utsname u;

    uname(&u);
    json_open(&j, '{');
    key_str(&j, "kernel", u.release);
    key_uint(&j, "cpus", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
    key_str(&j, "storage", o->storage);
    key_uint(&j, "rounds", o->rounds);
    key_uint(&j, "starts", s->p.starts);
    key_uint(&j, "calm_starts", s->p.calm_starts);
    key_uint(&j, "pool_misses", r->latency.pool_misses);
    json_key(&j, "latency");
    json_open(&j, '{');
    for (unsigned i = 0; i < V_COUNT; i++)
        series_json(&j, r->latency.series[i].name, &r->latency.series[i],
                    series_quantile(&r->latency.series[server_latency_floor(i)], 500));
    docker_json(&j, &r->docker);
    json_close(&j, '}');

    json_key(&j, "idle");
    json_open(&j, '[');
    for (size_t i = 0; i < STORAGES && o->wants[IDLE]; i++)
        idle_json(&j, &r->idle[i]);
    json_close(&j, ']');

    load_json(&j, r);
    key_uint(&j, "errors", s->p.errors);
    key_str(&j, "first_error", s->p.errors ? s->p.first_error : NULL);
    json_close(&j, '}');

    buf_putc(&out, '\n');
    auto_fd fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int rc = fd < 0 ? -errno : out.overflow ? -EFBIG : fd_write_all(fd, out.data, out.len);
    if (rc == 0)
        return 0;
    errno = -rc;
    return pd_fail_sys(e, "write %s", path);
}

int main(int argc, char **argv)
{
    static struct server_report r;
    static struct server_place s;
    struct options o = {.rounds = 250,
                        .sandboxes = 1000,
                        .connections = 10000,
                        .pause = 3000,
                        .calm = 20,
                        .streams = 200,
                        .output = 1024 * MIB,
                        .file = 256 * MIB,
                        .file_rounds = 7,
                        .storage = "memory",
                        .json = "build/bench-server.json"};

    struct pd_err e;
    const char *paddock = "build/paddock";
    if (argc > 1 && !strcmp(argv[1], "--help")) {
        fputs(usage_text, stdout);
        return 0;
    }

    if (parse(&o, &paddock, argc, argv, &e) < 0) {
        fprintf(stderr, "paddock-server-bench: %s\n", e.msg);
        return 2;
    }

    /* Paths must hold after a change of the mount namespace, which leads to its root. */
    s.p.paddock = realpath(paddock, NULL);
    char here[2048], json[4096];
    if (o.json[0] == '/' || !getcwd(here, sizeof here))
        here[0] = 0;
    snprintf(json, sizeof json, "%s%s%s", here, here[0] ? "/" : "", o.json);

    if (!s.p.paddock) {
        fprintf(stderr, "paddock-server-bench: %s must be built first\n", paddock);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);

    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }

    s.p.docker = getenv("BENCH_DOCKER");
    s.p.docker_missing = getenv("BENCH_DOCKER_MISSING");
    if (!s.p.docker_missing)
        s.p.docker_missing = "only tests/bench/run starts a daemon";
    server_latency_init(&r.latency);
    docker_latency_init(&r.docker);

    if (place_open(&s.p, &e) < 0) {
        fprintf(stderr, "paddock-server-bench: %s\n", e.msg);
        return 1;
    }
    chmod(s.p.dir, 0711); /* the server is not root */
    measure(&r, &s, &o);
    report_for_people(&r, &s, &o);

    if (report_for_programs(&r, &s, &o, json, &e) < 0) {
        place_error(&s.p, "report", &e);
        fprintf(s.p.news, "paddock-server-bench: %s\n", e.msg);
    }
    server_latency_done(&r.latency);
    docker_latency_done(&r.docker);

    for (size_t i = 0; i < STORAGES; i++)
        crowding_done(&r.idle[i]);
    files_done(&r.files);
    place_close(&s.p);
    return s.p.errors ? 1 : 0;
}
