#include "unit.h"

#include "base/banned.h"
#include "base/buf.h"
#include "telemetry/metrics.h"

#include <fcntl.h>
#include <pthread.h>

static const char *render(struct metrics *m, struct buf *b)
{
    buf_clear(b);
    metrics_render(m, b);
    assert_false(b->overflow);
    return buf_cstr(b);
}

/* The value of a series, with its labels as written; fails when it is not there exactly once. */
static double value_of(const char *text, const char *series)
{
    size_t len = strlen(series);
    double v = -1;
    int seen = 0;
    for (const char *p = text; *p; p = strchr(p, '\n') + 1)
        if (!strncmp(p, series, len) && p[len] == ' ') {
            v = strtod(p + len, NULL);
            seen++;
        }
    if (seen != 1)
        fail_msg("%s is there %d times", series, seen);
    return v;
}

static void check_value(const char *text, const char *series, double expected)
{
    double v = value_of(text, series);
    if (v < expected - 1e-9 || v > expected + 1e-9)
        fail_msg("%s is %f, not %f", series, v, expected);
}

static void test_counters_and_gauges(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    auto_buf b = BUF_INIT(METRICS_MAX);

    metrics_count(m, METRIC_POOL_HITS);
    metrics_count(m, METRIC_POOL_HITS);
    metrics_add(m, METRIC_CREATES, METRICS_FAILED, 0, 3);
    metrics_set(m, METRIC_QUEUE, 0, 0, 7);
    metrics_set(m, METRIC_QUEUE, 0, 0, 5);
    metrics_name_provider(m, 0, "jail");
    metrics_name_provider(m, METRICS_PROVIDERS_MAX, "one too many");
    metrics_set(m, METRIC_SESSIONS, 1, 0, 11);
    metrics_set(m, METRIC_SESSIONS, 2, METRICS_PROVIDERS_MAX, 12);
    metrics_add(m, METRIC_SESSIONS_ENDED, 3, 0, 1);

    const char *text = render(m, &b);
    check_value(text, "paddock_pool_hits_total", 2);
    check_value(text, "paddock_pool_misses_total", 0);
    check_value(text, "paddock_creates_total{result=\"failed\"}", 3);
    check_value(text, "paddock_creates_total{result=\"ok\"}", 0);
    check_value(text, "paddock_queue_length", 5);
    check_value(text, "paddock_sessions{state=\"running\",provider=\"jail\"}", 11);
    check_value(text, "paddock_sessions{state=\"paused\",provider=\"other\"}", 12);
    check_value(text, "paddock_sessions_ended_total{cause=\"idle\"}", 1);
    assert_non_null(strstr(text, "# TYPE paddock_sessions gauge\n"));
    assert_non_null(strstr(text, "# TYPE paddock_pool_hits_total counter\n"));
    metrics_free(m);
}

static void test_histograms(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    auto_buf b = BUF_INIT(METRICS_MAX);

    metrics_observe(m, METRIC_CREATE_SECONDS, METRICS_POOL, 0);
    metrics_observe(m, METRIC_CREATE_SECONDS, METRICS_POOL, 500);
    metrics_observe(m, METRIC_CREATE_SECONDS, METRICS_POOL, 501);
    metrics_observe(m, METRIC_CREATE_SECONDS, METRICS_POOL, 2000000);
    metrics_observe(m, METRIC_CREATE_SECONDS, METRICS_POOL, UINT64_C(7200000000));

    const char *text = render(m, &b);
    check_value(text, "paddock_create_seconds_bucket{origin=\"pool\",le=\"0.0005\"}", 2);
    check_value(text, "paddock_create_seconds_bucket{origin=\"pool\",le=\"0.001\"}", 3);
    check_value(text, "paddock_create_seconds_bucket{origin=\"pool\",le=\"1\"}", 3);
    check_value(text, "paddock_create_seconds_bucket{origin=\"pool\",le=\"2.5\"}", 4);
    check_value(text, "paddock_create_seconds_bucket{origin=\"pool\",le=\"3600\"}", 4);
    check_value(text, "paddock_create_seconds_bucket{origin=\"pool\",le=\"+Inf\"}", 5);
    check_value(text, "paddock_create_seconds_count{origin=\"pool\"}", 5);
    check_value(text, "paddock_create_seconds_sum{origin=\"pool\"}", 7202.001001);
    check_value(text, "paddock_create_seconds_count{origin=\"cold\"}", 0);
    check_value(text, "paddock_exec_seconds_bucket{le=\"+Inf\"}", 0);
    metrics_free(m);
}

static void test_commands_and_requests(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    auto_buf b = BUF_INIT(METRICS_MAX);

    metrics_exec_ended(m, STOP_NONE, 1000);
    metrics_exec_ended(m, STOP_OOM, 1000);
    metrics_exec_ended(m, STOP_SANDBOX, 1000);
    metrics_add(m, METRIC_EXECS, METRICS_CAUSE_REFUSED, 0, 1);
    metrics_request_ended(m, "GET", 3, 200, 10);
    metrics_request_ended(m, "GET", 3, 204, 10);
    metrics_request_ended(m, "BREW", 4, 405, 10);
    metrics_request_ended(m, "GE", 2, 0, 10);
    metrics_request_ended(m, "POST", 4, 101, 10);

    const char *text = render(m, &b);
    check_value(text, "paddock_execs_total{cause=\"exited\"}", 1);
    check_value(text, "paddock_execs_total{cause=\"oom\"}", 1);
    check_value(text, "paddock_execs_total{cause=\"sandbox\"}", 1);
    check_value(text, "paddock_execs_total{cause=\"refused\"}", 1);
    check_value(text, "paddock_limit_violations_total{limit=\"memory\"}", 1);
    check_value(text, "paddock_limit_violations_total{limit=\"time\"}", 0);
    check_value(text, "paddock_exec_seconds_count", 3);
    check_value(text, "paddock_requests_total{method=\"GET\",class=\"2xx\"}", 2);
    check_value(text, "paddock_requests_total{method=\"other\",class=\"4xx\"}", 1);
    check_value(text, "paddock_requests_total{method=\"other\",class=\"5xx\"}", 1);
    check_value(text, "paddock_requests_total{method=\"POST\",class=\"1xx\"}", 1);
    check_value(text, "paddock_request_seconds_count", 5);
    metrics_free(m);
}

/* Every cell is a cell of its own: set all to different values and read them back. */
static void test_series_do_not_overlap(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    auto_buf b = BUF_INIT(METRICS_MAX);
    const enum metric ids[] = {METRIC_SESSIONS, METRIC_SESSIONS_ENDED, METRIC_REQUESTS,
                               METRIC_RELOADS};
    uint64_t n = 1000;

    metrics_name_provider(m, 0, "jail");
    metrics_name_provider(m, 1, "docker");
    metrics_name_provider(m, 2, "local");
    for (size_t i = 0; i < COUNT(ids); i++)
        for (unsigned a = 0; a < 3; a++)
            for (unsigned c = 0;
                 c < (ids[i] == METRIC_SESSIONS || ids[i] == METRIC_REQUESTS ? 3 : 1); c++)
                metrics_set(m, ids[i], a, c, n++);

    const char *text = render(m, &b);
    for (uint64_t v = 1000; v < n; v++) {
        char line[32];
        (void)snprintf(line, sizeof line, " %ju\n", (uintmax_t)v);
        const char *at = strstr(text, line);
        assert_non_null(at);
        assert_null(strstr(at + 1, line));
    }

    /* Out of range counts as the last. */
    metrics_add(m, METRIC_RELOADS, 99, 99, 1);
    check_value(render(m, &b), "paddock_config_reloads_total{result=\"refused\"}",
                (double)n); /* it was n - 1 */
    metrics_free(m);
}

static void put_queue(struct metrics *m, void *arg)
{
    metrics_set(m, METRIC_QUEUE, 0, 0, (*(unsigned *)arg)++);
}

static void test_collectors(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    auto_buf b = BUF_INIT(METRICS_MAX);
    unsigned value = 4;
    assert_int_equal(metrics_collect(m, put_queue, &value), 0);
    check_value(render(m, &b), "paddock_queue_length", 4);
    check_value(render(m, &b), "paddock_queue_length", 5);
    for (int i = 1; i < 8; i++)
        assert_int_equal(metrics_collect(m, put_queue, &value), 0);
    assert_int_equal(metrics_collect(m, put_queue, &value), -1);
    metrics_free(m);
}

static void test_the_process(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    auto_buf b = BUF_INIT(METRICS_MAX);
    const char *text = render(m, &b);
    assert_true(value_of(text, "process_resident_memory_bytes") > 100000);
    assert_true(value_of(text, "process_virtual_memory_bytes") >
                value_of(text, "process_resident_memory_bytes"));
    assert_true(value_of(text, "process_threads") >= 1);
    assert_true(value_of(text, "process_max_fds") >= 64);
    assert_true(value_of(text, "process_start_time_seconds") > 1.6e9);
    assert_true(value_of(text, "process_cpu_seconds_total") > 0);

    double before = value_of(text, "process_open_fds");
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    text = render(m, &b);
    check_value(text, "process_open_fds", before + 2);

    close(p[0]);
    close(p[1]);
    metrics_free(m);
}

/* As a Prometheus server reads it: every line is a comment or `name{labels} number`, every series
 * has its HELP and TYPE right above, none is there twice. */
static void test_the_format(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    auto_buf b = BUF_INIT(METRICS_MAX);
    const char *text = render(m, &b);
    char family[64] = "";
    unsigned series = 0;

    for (const char *p = text, *end; *p; p = end + 1) {
        end = strchr(p, '\n');
        assert_non_null(end);
        if (!strncmp(p, "# HELP ", 7))
            continue;
        if (!strncmp(p, "# TYPE ", 7)) {
            (void)snprintf(family, sizeof family, "%.*s", (int)strcspn(p + 7, " "), p + 7);
            continue;
        }

        size_t name = strspn(p, "abcdefghijklmnopqrstuvwxyz_");
        assert_true(!strncmp(p, family, strlen(family)));
        const char *at = p + name;
        if (*at == '{')
            at = strchr(at, '}') + 1;
        assert_int_equal(*at, ' ');

        char *rest;
        (void)strtod(at + 1, &rest);
        assert_ptr_equal(rest, end);

        char whole[160];
        (void)snprintf(whole, sizeof whole, "\n%.*s ", (int)(at - p), p);
        assert_null(strstr(end, whole));
        series++;
    }

    assert_true(series > 150);
    for (unsigned char *c = b.data; c < b.data + b.len; c++)
        assert_true(*c == '\n' || (*c >= ' ' && *c < 0x7f));
    metrics_free(m);
}

static void *count_much(void *arg)
{
    for (int i = 0; i < 20000; i++) {
        metrics_count(arg, METRIC_POOL_HITS);
        metrics_observe(arg, METRIC_EXEC_SECONDS, 0, 3);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    auto_buf b = BUF_INIT(METRICS_MAX);
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, count_much, m), 0);

    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    const char *text = render(m, &b);
    check_value(text, "paddock_pool_hits_total", 80000);
    check_value(text, "paddock_exec_seconds_count", 80000);
    check_value(text, "paddock_exec_seconds_sum", 0.24);
    metrics_free(m);
}

static void test_no_metrics(void **state)
{
    (void)state;
    auto_buf b = BUF_INIT(16);
    metrics_count(NULL, METRIC_POOL_HITS);
    metrics_observe(NULL, METRIC_EXEC_SECONDS, 0, 1);
    metrics_request_ended(NULL, "GET", 3, 200, 1);
    metrics_render(NULL, &b);
    assert_int_equal(b.len, 0);
    metrics_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counters_and_gauges),
        cmocka_unit_test(test_histograms),
        cmocka_unit_test(test_commands_and_requests),
        cmocka_unit_test(test_series_do_not_overlap),
        cmocka_unit_test(test_collectors),
        cmocka_unit_test(test_the_process),
        cmocka_unit_test(test_the_format),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_no_metrics),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
