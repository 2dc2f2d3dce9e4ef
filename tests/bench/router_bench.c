/* router_bench [JSON]: how long the router takes to decide, with as many rules and flags as there
 * may be and an experiment: the worst case, in which nothing fits before the last. Of BATCHES
 * batches it tells the median and the slowest hundredth, in microseconds of the processor for one
 * decision. */
#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "router/decide.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCHES 1000u
#define BATCH   100u

static const struct route_provider providers[] = {
    {"jail", RUNG_FULL, 0}, {"docker", RUNG_BASIC, 0}, {"e2b", RUNG_FULL, 0}};
#define PROVIDERS (sizeof providers / sizeof *providers)

static const char experiment[] =
    "{\"experiment\":{\"name\":\"x\",\"arms\":[{\"name\":\"a\",\"provider\":\"e2b\",\"weight\":1},"
    "{\"name\":\"b\",\"provider\":\"e2b\",\"weight\":1}]}}";

/* Of this thread: what others want of the processor is no cost of a decision. */
static uint64_t spent(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int make_rules(struct router_rules *r, struct pd_err *e)
{
    *r = ROUTER_RULES_INIT;
    if (router_rules_parse(experiment, strlen(experiment), providers, PROVIDERS, r, e) < 0)
        return -1;

    r->rule_count = ROUTER_RULES_MAX;
    for (unsigned i = 0; i < ROUTER_RULES_MAX; i++)
        snprintf(r->rules[i].filter.tenant, sizeof r->rules[i].filter.tenant, "tenant%u", i);
    r->flag_count = ROUTER_FLAGS_MAX;
    for (unsigned i = 0; i < ROUTER_FLAGS_MAX; i++)
        snprintf(r->flags[i].salt, sizeof r->flags[i].salt, "salt%u", i);
    return 0;
}

static int measure(const struct router_rules *r, double *times, struct pd_err *e)
{
    char user[64];
    for (unsigned i = 0; i < BATCHES; i++) {
        snprintf(user, sizeof user, "a-user-with-a-long-name-%u", i);
        struct route_question q = {.tenant = "tenant", .user = user};
        struct decision route;

        uint64_t began = spent();
        for (unsigned n = 0; n < BATCH; n++)
            if (route_decide(r, providers, PROVIDERS, &q, &route, NULL, e) < 0)
                return -1;
        times[i] = (double)(spent() - began) / 1000 / BATCH;
    }

    qsort(times, BATCHES, sizeof *times, compare);
    return 0;
}

int main(int argc, char **argv)
{
    static struct router_rules rules;
    static double times[BATCHES];
    struct pd_err e = {.msg = ""};
    if (make_rules(&rules, &e) < 0 || measure(&rules, times, &e) < 0) {
        fprintf(stderr, "router_bench: %s\n", e.msg);
        return 1;
    }

    double p50 = times[BATCHES / 2], p99 = times[BATCHES - BATCHES / 100];
    printf("a decision with %u rules and %u flags: p50 %.2f us, p99 %.2f us\n", ROUTER_RULES_MAX,
           ROUTER_FLAGS_MAX, p50, p99);
    FILE *out = argc > 1 ? fopen(argv[1], "we") : NULL;
    if (argc > 1 && !out) {
        perror(argv[1]);
        return 1;
    }
    if (out &&
        (fprintf(out, "{\"p50_us\": %.3f, \"p99_us\": %.3f}\n", p50, p99) < 0 || fclose(out) != 0))
        return 1;
    return 0;
}
