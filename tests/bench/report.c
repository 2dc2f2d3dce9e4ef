#include "bench.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/utsname.h>

static double ms(uint64_t ns)
{
    return (double)ns / 1e6;
}

static double ratio(uint64_t a, uint64_t b)
{
    return b ? (double)a / (double)b : 0;
}

static double in_floors(const struct creation *c)
{
    return ratio(c->p50, c->floor_p50);
}

static uint64_t floor_of(struct report *r)
{
    return series_quantile(&r->latency.series[S_FLOOR], 500);
}

static double per_second(const struct rate *r)
{
    return r->ns ? (double)r->done / ms(r->ns) * 1000 : 0;
}

static void date_text(char *out, size_t size)
{
    time_t now = time(NULL);
    struct tm tm;
    strftime(out, size, "%Y-%m-%d", gmtime_r(&now, &tm));
}

static void cpu_text(char *out, size_t size)
{
    char text[16384];
    auto_fd fd = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    const char *at = strstr(text, "model name");
    at = at ? strchr(at, ':') : NULL;
    snprintf(out, size, "%.*s", at ? (int)strcspn(at + 2, "\n") : 7, at ? at + 2 : "unknown");
}

static void latency_people(struct report *r, const struct place *p)
{
    uint64_t base = floor_of(r);
    FILE *f = p->people;
    if (p->calm_starts < p->starts / 2)
        fprintf(f, "the machine was busy: %u of %u measurements began while others ran\n",
                p->starts - p->calm_starts, p->starts);
    fprintf(f, "\n| start, run `/bin/true`, end | p50 ms | p95 ms | p99 ms | x floor |\n"
               "|---|---:|---:|---:|---:|\n");

    for (int i = 0; i < SERIES_COUNT; i++) {
        struct series *s = &r->latency.series[i];
        if (!s->count)
            continue;
        uint64_t p50 = series_quantile(s, 500);
        fprintf(f, "| %s%s | %.2f | %.2f | %.2f | %.2f |\n", s->what,
                i == S_CRUN && p->no_v2 >= 0 ? " (cgroup v2 tree hidden from it)" : "", ms(p50),
                ms(series_quantile(s, 950)), ms(series_quantile(s, 990)), ratio(p50, base));
    }

    for (int i = 0; i < SERIES_COUNT; i++) {
        const struct series *s = &r->latency.series[i];
        if (s->skipped[0] && strcmp(s->skipped, "not asked for") != 0)
            fprintf(f, "\nskipped: %s: %s", s->name, s->skipped);
    }
    fprintf(f, "\n");
}

static void load_people(struct report *r, const struct place *p)
{
    FILE *f = p->people;
    const struct sustained *s = &r->sustained;
    const struct idle *i = &r->idle;
    fprintf(f, "\n| load and memory | |\n|---|---:|\n");

    if (r->has_sustained) {
        fprintf(
            f,
            "| create + exec of a static program + destroy, %u creators, %.0f s | %.0f per s |\n"
            "| the same, time of one (p50, p99) | %.2f ms, %.2f ms |\n",
            s->creators, ms(s->keeper.ns) / 1000, per_second(&s->keeper), ms(s->keeper.p50),
            ms(s->keeper.p99));
        fprintf(f,
                "| the floor: a bare loop with the same namespaces, mounts and exec "
                "| %.0f per s |\n",
                per_second(&s->bare));
    }

    if (!r->has_idle)
        return;
    double few = (in_floors(&i->at_few) + in_floors(&i->at_few_again)) / 2;
    double many = in_floors(&i->at_many);
    fprintf(f,
            "| creation while %u jails are idle (p50; once more after the next line) "
            "| %.2f ms; %.2f ms |\n",
            i->few, ms(i->at_few.p50), ms(i->at_few_again.p50));

    fprintf(f, "| creation while %u jails are idle (p50; in floors, against the line above) ",
            i->many);
    fprintf(f, "| %.2f ms; %.2f x |\n", ms(i->at_many.p50), few > 0 ? many / few : 0);
    fprintf(f, "| an idle jail in all, layout %s (drop of MemAvailable over %u; over %u) ",
            p->layout, i->some, i->many);
    fprintf(f, "| %" PRId64 " KB; %" PRId64 " KB |\n", i->per_jail / 1024, i->per_jail_many / 1024);
    fprintf(f, "| of that: slab, per-CPU, page tables, kernel stacks, files, anonymous ");
    fprintf(f,
            "| %" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 " KB |\n",
            i->slab / 1024, i->percpu / 1024, i->tables / 1024, i->stacks / 1024, i->shmem / 1024,
            i->anon / 1024);

    fprintf(f, "| PSS of the keeper with %u jails; of its %u workers; of one init ", i->some,
            i->workers);
    fprintf(f, "| %" PRIu64 "; %" PRIu64 "; %" PRIu64 " KB |\n", i->keeper_pss / 1024,
            i->workers_pss / 1024, i->init_pss / 1024);
}

void report_people(struct report *r, const struct place *p)
{
    struct utsname u;
    char date[32], cpu[100];

    uname(&u);
    date_text(date, sizeof date);
    cpu_text(cpu, sizeof cpu);
    fprintf(p->people, "%s, Linux %s, %ld x %s, cgroup layout %s\n", date, u.release,
            sysconf(_SC_NPROCESSORS_ONLN), cpu, p->layout);
    if (r->has_latency)
        latency_people(r, p);
    if (r->has_sustained || r->has_idle)
        load_people(r, p);
    if (p->errors)
        fprintf(p->people, "\n%u errors; the first: %s\n", p->errors, p->first_error);
    fflush(p->people);
}

static void key_us(struct json *j, const char *key, uint64_t ns)
{
    json_key(j, key);
    json_milli(j, ns); /* microseconds */
}

static void key_int(struct json *j, const char *key, int64_t v)
{
    json_key(j, key);
    json_int(j, v);
}

static void key_str(struct json *j, const char *key, const char *v)
{
    json_key(j, key);
    json_cstr(j, v);
}

static void key_ratio(struct json *j, const char *key, uint64_t a, uint64_t b)
{
    json_key(j, key);
    if (b)
        json_milli(j, (uint64_t)(ratio(a, b) * 1000));
    else
        json_none(j);
}

static void latency_json(struct report *r, struct json *j)
{
    uint64_t base = floor_of(r);
    json_key(j, "latency");
    json_open(j, '{');

    for (int i = 0; i < SERIES_COUNT; i++) {
        struct series *s = &r->latency.series[i];
        uint64_t p50 = series_quantile(s, 500);
        json_key(j, s->name);
        json_open(j, '{');
        key_int(j, "samples", s->count);

        if (s->count) {
            key_us(j, "min_us", series_quantile(s, 0));
            key_us(j, "p10_us", series_quantile(s, 100));
            key_us(j, "p50_us", p50);
            key_us(j, "p95_us", series_quantile(s, 950));
            key_us(j, "p99_us", series_quantile(s, 990));
            key_ratio(j, "ratio_to_floor", p50, base);
        }

        if (s->skipped[0])
            key_str(j, "skipped", s->skipped);
        json_close(j, '}');
    }
    json_close(j, '}');

    key_ratio(j, "run_to_bubblewrap", series_quantile(&r->latency.series[S_RUN], 500),
              series_quantile(&r->latency.series[S_BWRAP], 500));
}

static void creation_json(struct json *j, const char *key, const struct creation *c)
{
    json_key(j, key);
    json_open(j, '{');
    key_us(j, "p10_us", c->p10);
    key_us(j, "p50_us", c->p50);
    key_us(j, "floor_p50_us", c->floor_p50);
    json_close(j, '}');
}

static void rate_json(struct json *j, const char *key, const struct rate *r)
{
    json_key(j, key);
    json_open(j, '{');
    key_us(j, "time_us", r->ns);
    key_int(j, "cycles", (int64_t)r->done);
    key_int(j, "errors", (int64_t)r->errors);
    key_ratio(j, "per_second", r->done * NS_PER_S, r->ns);
    key_us(j, "p50_us", r->p50);
    key_us(j, "p99_us", r->p99);
    json_close(j, '}');
}

static void load_json(const struct report *r, struct json *j)
{
    const struct sustained *s = &r->sustained;
    const struct idle *i = &r->idle;

    if (r->has_sustained) {
        json_key(j, "sustained");
        json_open(j, '{');
        key_int(j, "creators", s->creators);
        key_int(j, "slices", s->slices);
        rate_json(j, "keeper", &s->keeper);
        rate_json(j, "bare", &s->bare);
        json_close(j, '}');
    }

    if (!r->has_idle)
        return;
    json_key(j, "idle");
    json_open(j, '{');
    key_int(j, "few", i->few);
    key_int(j, "some", i->some);
    key_int(j, "many", i->many);
    creation_json(j, "create_few", &i->at_few);
    creation_json(j, "create_many", &i->at_many);
    creation_json(j, "create_few_again", &i->at_few_again);
    double few = (in_floors(&i->at_few) + in_floors(&i->at_few_again)) / 2;
    json_key(j, "many_to_few");
    json_milli(j, few > 0 ? (uint64_t)(in_floors(&i->at_many) / few * 1000) : 0);
    key_int(j, "bytes_per_jail_some", i->per_jail);
    key_int(j, "bytes_per_jail_many", i->per_jail_many);
    key_int(j, "slab", i->slab);
    key_int(j, "percpu", i->percpu);
    key_int(j, "page_tables", i->tables);
    key_int(j, "kernel_stacks", i->stacks);
    key_int(j, "shmem", i->shmem);
    key_int(j, "anonymous", i->anon);
    key_int(j, "keeper_pss", (int64_t)i->keeper_pss);
    key_int(j, "workers", i->workers);
    key_int(j, "workers_pss", (int64_t)i->workers_pss);
    key_int(j, "init_pss", (int64_t)i->init_pss);
    json_close(j, '}');
}

int report_json(struct report *r, const struct place *p, const char *path, struct pd_err *e)
{
    auto_buf out = BUF_INIT(1u << 20);
    struct json j = JSON_INIT(&out);
    struct utsname u;
    char date[32], cpu[100];

    uname(&u);
    date_text(date, sizeof date);
    cpu_text(cpu, sizeof cpu);
    json_open(&j, '{');
    key_str(&j, "date", date);
    key_str(&j, "kernel", u.release);
    key_int(&j, "cpus", sysconf(_SC_NPROCESSORS_ONLN));
    key_str(&j, "cpu", cpu);
    key_str(&j, "cgroup_layout", p->layout);
    key_int(&j, "rounds", r->latency.rounds);
    key_int(&j, "starts", p->starts);
    key_int(&j, "calm_starts", p->calm_starts);
    if (r->has_latency)
        latency_json(r, &j);
    load_json(r, &j);
    key_int(&j, "errors", p->errors);
    key_str(&j, "first_error", p->errors ? p->first_error : NULL);
    json_close(&j, '}');

    buf_putc(&out, '\n');
    auto_fd fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int rc = fd < 0 ? -errno : out.overflow ? -EFBIG : fd_write_all(fd, out.data, out.len);
    if (rc == 0)
        return 0;
    errno = -rc;
    return pd_fail_sys(e, "write %s", path);
}
