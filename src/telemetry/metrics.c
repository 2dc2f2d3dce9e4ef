/* How this works: every series has its cell in one array; the table says where a metric's cells
 * begin and how many values its labels have. A histogram has a cell per bucket (not cumulative, so
 * that an observation is one addition) and one for the sum. */
#include "telemetry/metrics.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/fd.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum metric_type { COUNTER, GAUGE, HISTOGRAM, SECONDS, START_TIME };

struct label {
    const char *name;
    const char *const *values;
    unsigned count;
};

#define VALUES(...)                                                                                \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define LABEL(text, ...)                                                                           \
    {                                                                                              \
        text, VALUES(__VA_ARGS__), sizeof(VALUES(__VA_ARGS__)) / sizeof(char *)                    \
    }

enum label_id {
    LABEL_NONE,
    LABEL_STATE,
    LABEL_PROVIDER,
    LABEL_END,
    LABEL_RESULT,
    LABEL_ORIGIN,
    LABEL_CAUSE,
    LABEL_LIMIT,
    LABEL_EGRESS,
    LABEL_WHY,
    LABEL_DIRECTION,
    LABEL_METHOD,
    LABEL_CLASS
};

static const struct label labels[] = {
    [LABEL_NONE] = {"", NULL, 1},
    [LABEL_STATE] = LABEL("state", METRICS_STATES),
    [LABEL_PROVIDER] = {"provider", NULL, METRICS_PROVIDERS_MAX + 1}, /* values are named later */
    [LABEL_END] = LABEL("cause", METRICS_ENDS),
    [LABEL_RESULT] = LABEL("result", METRICS_RESULTS),
    [LABEL_ORIGIN] = LABEL("origin", METRICS_ORIGINS),
    [LABEL_CAUSE] = LABEL("cause", METRICS_CAUSES),
    [LABEL_LIMIT] = LABEL("limit", METRICS_LIMITS),
    [LABEL_EGRESS] = LABEL("result", METRICS_EGRESS),
    [LABEL_WHY] = LABEL("why", METRICS_WHYS),
    [LABEL_DIRECTION] = LABEL("direction", METRICS_DIRECTIONS),
    [LABEL_METHOD] = LABEL("method", METRICS_METHODS),
    [LABEL_CLASS] = LABEL("class", METRICS_CLASSES),
};

struct row {
    const char *name;
    enum metric_type type;
    enum label_id a, b;
    const char *help;
};

static const struct row rows[METRIC_COUNT] = {
#define X(id, name, type, a, b, help) [METRIC_##id] = {name, type, LABEL_##a, LABEL_##b, help},
    METRICS(X)
#undef X
};

/* Upper bounds in microseconds; the bucket behind the last one has none. */
static const uint64_t bounds[] = {500,     1000,     2500,     5000,     10000,     25000,
                                  50000,   100000,   250000,   500000,   1000000,   2500000,
                                  5000000, 10000000, 30000000, 60000000, 300000000, 3600000000};
#define BOUNDS (sizeof bounds / sizeof *bounds)
#define CELLS  (BOUNDS + 2) /* of a histogram: buckets, the one without a bound, the sum */

#define COLLECTORS_MAX 8

struct metrics {
    const char *providers[METRICS_PROVIDERS_MAX + 1];
    size_t first[METRIC_COUNT];
    struct {
        metrics_collector *collect;
        void *arg;
    } collectors[COLLECTORS_MAX];
    unsigned collector_count;
    _Atomic uint64_t cells[];
};

static size_t width_of(const struct row *r)
{
    return r->type == HISTOGRAM ? CELLS : 1;
}

struct metrics *metrics_new(void)
{
    size_t total = 0, first[METRIC_COUNT];
    for (unsigned i = 0; i < METRIC_COUNT; i++) {
        first[i] = total;
        total += width_of(&rows[i]) * labels[rows[i].a].count * labels[rows[i].b].count;
    }

    struct metrics *m = calloc(1, sizeof *m + total * sizeof m->cells[0]);
    if (!m)
        return NULL;
    memcpy(m->first, first, sizeof first);
    m->providers[METRICS_PROVIDERS_MAX] = "other";

    struct timespec now;
    /* Close enough: a server makes its metrics first. */
    (void)clock_gettime(CLOCK_REALTIME, &now);
    metrics_set(m, METRIC_START, 0, 0,
                (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
    return m;
}

void metrics_free(struct metrics *m)
{
    free(m);
}

static _Atomic uint64_t *cell_of(struct metrics *m, enum metric id, unsigned a, unsigned b)
{
    const struct row *r = &rows[id];
    unsigned na = labels[r->a].count, nb = labels[r->b].count;

    a = a < na ? a : na - 1;
    b = b < nb ? b : nb - 1;
    return &m->cells[m->first[id] + width_of(r) * (a * nb + b)];
}

void metrics_add(struct metrics *m, enum metric id, unsigned a, unsigned b, uint64_t n)
{
    if (m)
        atomic_fetch_add_explicit(cell_of(m, id, a, b), n, memory_order_relaxed);
}

void metrics_set(struct metrics *m, enum metric id, unsigned a, unsigned b, uint64_t value)
{
    if (m)
        atomic_store_explicit(cell_of(m, id, a, b), value, memory_order_relaxed);
}

uint64_t metrics_value(struct metrics *m, enum metric id, unsigned a, unsigned b)
{
    return m ? atomic_load_explicit(cell_of(m, id, a, b), memory_order_relaxed) : 0;
}

void metrics_observe(struct metrics *m, enum metric id, unsigned a, uint64_t usec)
{
    if (!m || rows[id].type != HISTOGRAM)
        return;

    _Atomic uint64_t *cells = cell_of(m, id, a, 0);
    size_t i = 0;
    while (i < BOUNDS && usec > bounds[i])
        i++;

    atomic_fetch_add_explicit(&cells[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&cells[BOUNDS + 1], usec, memory_order_relaxed);
}

void metrics_exec_ended(struct metrics *m, enum process_stop why, uint64_t usec)
{
    static const signed char violated[STOP_COUNT] = {
        [STOP_NONE] = -1,
        [STOP_TIMEOUT] = METRICS_LIMIT_TIME,
        [STOP_OOM] = METRICS_LIMIT_MEMORY,
        [STOP_PIDS] = METRICS_LIMIT_PIDS,
        [STOP_DISK] = METRICS_LIMIT_DISK,
        [STOP_OUTPUT] = METRICS_LIMIT_OUTPUT,
        [STOP_SYSCALL] = METRICS_LIMIT_SYSCALL,
        [STOP_KILLED] = -1,
        [STOP_ABANDONED] = -1,
        [STOP_SANDBOX] = -1,
    };

    metrics_add(m, METRIC_EXECS, (unsigned)why, 0, 1);
    metrics_observe(m, METRIC_EXEC_SECONDS, 0, usec);
    if ((unsigned)why < STOP_COUNT && violated[why] >= 0)
        metrics_add(m, METRIC_LIMITS, (unsigned)violated[why], 0, 1);
}
_Static_assert(STOP_COUNT == 10, "METRICS_CAUSES has a name for each");

/* The index of a name, or of the last one, which stands for all others. */
static unsigned find(const struct label *l, const char *name, size_t len)
{
    unsigned i = 0;
    while (i < l->count - 1 &&
           (strlen(l->values[i]) != len || memcmp(l->values[i], name, len) != 0))
        i++;
    return i;
}

void metrics_request_ended(struct metrics *m, const char *method, size_t method_len, int status,
                           uint64_t usec)
{
    unsigned class = status >= 100 && status < 600 ? (unsigned)status / 100 - 1 : 4;
    metrics_add(m, METRIC_REQUESTS, find(&labels[LABEL_METHOD], method, method_len), class, 1);
    metrics_observe(m, METRIC_REQUEST_SECONDS, 0, usec);
}

void metrics_name_provider(struct metrics *m, unsigned i, const char *name)
{
    if (m && i < METRICS_PROVIDERS_MAX)
        m->providers[i] = name;
}

int metrics_collect(struct metrics *m, metrics_collector *collect, void *arg)
{
    if (!m)
        return 0;
    if (m->collector_count == COLLECTORS_MAX)
        return -1;
    m->collectors[m->collector_count].collect = collect;
    m->collectors[m->collector_count++].arg = arg;
    return 0;
}

/* ---- the process ---- */

/* The number behind a word of /proc/self/status. */
static uint64_t status_of(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    return at ? strtoull(at + strlen(word), NULL, 10) : 0;
}

static uint64_t count_fds(void)
{
    struct stat st;

    /* Linux 6.2 and later give the number as the directory's size. */
    if (stat("/proc/self/fd", &st) == 0 && st.st_size > 0)
        return (uint64_t)st.st_size;

    DIR *dir = opendir("/proc/self/fd");
    uint64_t n = 0;
    if (!dir)
        return 0;
    for (const struct dirent *d; (d = readdir(dir));)
        n += d->d_name[0] != '.';
    closedir(dir);
    return n > 0 ? n - 1 : 0; /* not the directory's own */
}

static void collect_process(struct metrics *m)
{
    char status[4096];
    struct rusage use;
    struct rlimit limit;

    if (fd_read_file(AT_FDCWD, "/proc/self/status", status, sizeof status) > 0) {
        metrics_set(m, METRIC_MEMORY, 0, 0, status_of(status, "\nVmRSS:") * 1024);
        metrics_set(m, METRIC_VIRTUAL, 0, 0, status_of(status, "\nVmSize:") * 1024);
        metrics_set(m, METRIC_THREADS, 0, 0, status_of(status, "\nThreads:"));
    }

    if (getrusage(RUSAGE_SELF, &use) == 0)
        metrics_set(m, METRIC_CPU, 0, 0,
                    (uint64_t)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000000 +
                        (uint64_t)(use.ru_utime.tv_usec + use.ru_stime.tv_usec));
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        metrics_set(m, METRIC_FDS_MAX, 0, 0, limit.rlim_cur);
    metrics_set(m, METRIC_FDS, 0, 0, count_fds());
}

/* ---- rendering ---- */

/* NULL where there is no label, and for a provider's place that nobody has. */
static const char *value_of(const struct metrics *m, enum label_id label, unsigned i)
{
    if (label == LABEL_PROVIDER)
        return m->providers[i];
    return labels[label].values ? labels[label].values[i] : NULL;
}

static int is_named(const struct metrics *m, enum label_id label, unsigned i)
{
    return label != LABEL_PROVIDER || m->providers[i];
}

/* "{a="x",b="y",le="z"}", or nothing. */
static void put_labels(const struct metrics *m, struct buf *out, const struct row *r, unsigned a,
                       unsigned b, const char *le)
{
    const char *first = value_of(m, r->a, a), *second = value_of(m, r->b, b);
    const char *comma = "{";

    if (first) {
        (void)buf_printf(out, "%s%s=\"%s\"", comma, labels[r->a].name, first);
        comma = ",";
    }

    if (second) {
        (void)buf_printf(out, "%s%s=\"%s\"", comma, labels[r->b].name, second);
        comma = ",";
    }

    if (le) {
        (void)buf_printf(out, "%sle=\"%s\"", comma, le);
        comma = ",";
    }

    if (*comma == ',')
        (void)buf_putc(out, '}');
}

static void put_seconds(struct buf *out, uint64_t usec)
{
    (void)buf_printf(out, " %" PRIu64 ".%06" PRIu64 "\n", usec / 1000000, usec % 1000000);
}

static void put_histogram(const struct metrics *m, struct buf *out, const struct row *r, unsigned a,
                          unsigned b, _Atomic uint64_t *cells)
{
    uint64_t sum = atomic_load_explicit(&cells[BOUNDS + 1], memory_order_relaxed), seen = 0;
    for (size_t i = 0; i <= BOUNDS; i++) {
        char le[32] = "+Inf";
        if (i < BOUNDS)
            (void)snprintf(le, sizeof le, "%g", (double)bounds[i] / 1e6);
        seen += atomic_load_explicit(&cells[i], memory_order_relaxed);
        (void)buf_printf(out, "%s_bucket", r->name);
        put_labels(m, out, r, a, b, le);
        (void)buf_printf(out, " %" PRIu64 "\n", seen);
    }

    (void)buf_printf(out, "%s_sum", r->name);
    put_labels(m, out, r, a, b, NULL);
    put_seconds(out, sum);
    (void)buf_printf(out, "%s_count", r->name);
    put_labels(m, out, r, a, b, NULL);
    (void)buf_printf(out, " %" PRIu64 "\n", seen);
}

static void put_metric(struct metrics *m, enum metric id, struct buf *out)
{
    static const char *const types[] = {[COUNTER] = "counter",
                                        [GAUGE] = "gauge",
                                        [HISTOGRAM] = "histogram",
                                        [SECONDS] = "counter",
                                        [START_TIME] = "gauge"};
    const struct row *r = &rows[id];

    (void)buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", r->name, r->help, r->name,
                     types[r->type]);

    for (unsigned a = 0; a < labels[r->a].count; a++)
        for (unsigned b = 0; b < labels[r->b].count; b++) {
            if (!is_named(m, r->a, a) || !is_named(m, r->b, b))
                continue;
            _Atomic uint64_t *cell = cell_of(m, id, a, b);
            if (r->type == HISTOGRAM) {
                put_histogram(m, out, r, a, b, cell);
                continue;
            }

            uint64_t v = atomic_load_explicit(cell, memory_order_relaxed);
            (void)buf_puts(out, r->name);
            put_labels(m, out, r, a, b, NULL);
            if (r->type == SECONDS || r->type == START_TIME)
                put_seconds(out, v);
            else
                (void)buf_printf(out, " %" PRIu64 "\n", v);
        }
}

void metrics_render(struct metrics *m, struct buf *out)
{
    if (!m)
        return;
    collect_process(m);

    for (unsigned i = 0; i < m->collector_count; i++)
        m->collectors[i].collect(m, m->collectors[i].arg);
    for (unsigned i = 0; i < METRIC_COUNT; i++)
        put_metric(m, (enum metric)i, out);
}
