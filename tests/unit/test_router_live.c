/* What lasts between two decisions: rules in a file, breakers, and both while others decide. */
#include "unit.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "router/router.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct route_provider providers[] = {
    {"jail", RUNG_FULL, 0}, {"docker", RUNG_BASIC, 0},  {"local", RUNG_NONE, 0},
    {"e2b", RUNG_FULL, 0},  {"cloudrun", RUNG_FULL, 0},
};
#define PROVIDERS COUNT(providers)

static char file[] = "/tmp/paddock-router-XXXXXX/router.json";

static int make_place(void **state)
{
    (void)state;
    char *slash = strrchr(file, '/');
    *slash = 0;
    char *made = mkdtemp(file);
    *slash = '/';
    return made ? 0 : -1;
}

static int remove_place(void **state)
{
    (void)state;
    (void)unlink(file);
    *strrchr(file, '/') = 0;
    return rmdir(file);
}

static const char *chosen(struct router *r)
{
    struct route_question q = {.tenant = "t"};
    struct decision route;
    struct pd_err e;
    assert_int_equal(router_explain(r, providers, PROVIDERS, &q, &route, NULL, &e), 0);
    return providers[route.provider].name;
}

static int put(struct router *r, const char *text, struct pd_err *e)
{
    return router_put(r, text, strlen(text), providers, PROVIDERS, e);
}

static void write_file(const char *text)
{
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void test_rules_outlive_the_router_and_bad_ones_change_nothing(void **state)
{
    struct pd_err e;
    (void)state;

    (void)unlink(file);
    struct router *r = router_new(file, NULL, providers, PROVIDERS, &e);
    assert_non_null(r);
    assert_string_equal(chosen(r), "jail");
    assert_int_equal(put(r, "{\"default\":\"e2b\"}", &e), 0);
    assert_string_equal(chosen(r), "e2b");
    assert_int_equal(put(r, "{\"default\":\"podman\"}", &e), -1);
    assert_string_equal(chosen(r), "e2b");
    router_free(r);

    r = router_new(file, NULL, providers, PROVIDERS, &e);
    assert_non_null(r);
    assert_string_equal(chosen(r), "e2b");

    write_file("{\"default\":\"docker\"}");
    assert_string_equal(chosen(r), "e2b");
    assert_int_equal(router_reload(r, providers, PROVIDERS, &e), 0);
    assert_string_equal(chosen(r), "docker");

    write_file("{\"default\":");
    assert_int_equal(router_reload(r, providers, PROVIDERS, &e), -1);
    assert_non_null(strstr(e.msg, "router.json"));
    assert_string_equal(chosen(r), "docker");
    router_free(r);

    assert_null(router_new(file, NULL, providers, PROVIDERS, &e));
    (void)unlink(file);
}

static void test_a_file_that_cannot_be_written_leaves_the_rules(void **state)
{
    struct pd_err e;
    (void)state;

    struct router *r = router_new("/proc/none/router.json", NULL, providers, PROVIDERS, &e);
    assert_non_null(r);
    assert_int_equal(put(r, "{\"default\":\"e2b\"}", &e), -1);
    assert_non_null(strstr(e.msg, "/proc/none/router.json"));
    assert_string_equal(chosen(r), "jail");
    router_free(r);
}

static void test_failures_move_sandboxes_to_the_fallback_and_back(void **state)
{
    struct route_question q = {.tenant = "t"};
    struct pd_err e, down = {.code = PD_TIMEOUT}, mistake = {.code = PD_INVALID};
    struct decision route;
    (void)state;

    (void)unlink(file);
    struct router *r = router_new(file, NULL, providers, PROVIDERS, &e);
    assert_int_equal(
        put(r,
            "{\"default\":\"docker\",\"fallback\":[\"jail\"],\"breaker\":{\"failures\":"
            "3,\"open_s\":2,\"open_max_s\":4}}",
            &e),
        0);

    for (unsigned i = 0; i < 10; i++) { /* requests that were wrong say nothing of the provider */
        assert_int_equal(router_choose(r, providers, PROVIDERS, &q, &route, &e), 0);
        router_ended(r, &route, 1, &mistake);
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(router_choose(r, providers, PROVIDERS, &q, &route, &e), 0);
        assert_string_equal(providers[route.provider].name, "docker");
        assert_int_equal(route.next_count, 1);
        router_ended(r, &route, 1, &down);
    }
    assert_string_equal(chosen(r), "jail");

    deadline limit = deadline_in(60 * NS_PER_S);
    while (strcmp(chosen(r), "docker") != 0) {
        assert_false(deadline_passed(limit));
        usleep(1000);
    }
    assert_int_equal(router_choose(r, providers, PROVIDERS, &q, &route, &e), 0);
    assert_string_equal(providers[route.provider].name, "docker");
    assert_string_equal(chosen(r), "jail"); /* one at a time, while it is half-open */
    router_ended(r, &route, 1, NULL);
    assert_string_equal(chosen(r), "docker");
    router_free(r);
    (void)unlink(file);
}

/* How often an arm was chosen in `rounds` creations that end so. */
static unsigned play(struct router *r, const char *arm, unsigned rounds, const struct pd_err *why,
                     bool *ret_stopped)
{
    unsigned hits = 0;
    for (unsigned i = 0; i < rounds; i++) {
        char user[24];
        struct route_question q = {.tenant = "t", .user = user};
        struct decision route;
        struct pd_err e;
        snprintf(user, sizeof user, "user%u", i);
        assert_int_equal(router_choose(r, providers, PROVIDERS, &q, &route, &e), 0);
        bool mine = route.arm >= 0 && !strcmp(route.name, arm);
        hits += mine;
        *ret_stopped |= router_ended(r, &route, 2 * NS_PER_MS, mine ? why : NULL);
    }

    return hits;
}

static void expect_json(struct router *r, const char *text)
{
    auto_buf out = BUF_INIT(1 << 20);
    struct json j = JSON_INIT(&out);
    json_open(&j, '{');
    router_json(r, providers, PROVIDERS, true, &j);
    json_close(&j, '}');
    if (!strstr(buf_cstr(&out), text))
        fail_msg("%s\nis not in\n%s", text, buf_cstr(&out));
}

#define EXPERIMENT(guard)                                                                          \
    "{\"default\":\"docker\",\"breaker\":{\"failures\":1000,\"percentage\":100,\"calls\":64,"      \
    "\"window_s\":1},\"experiment\":{\"name\":\"x\",\"arms\":[{\"name\":\"a\",\"provider\":"       \
    "\"jail\","                                                                                    \
    "\"weight\":1},{\"name\":\"b\",\"provider\":\"e2b\",\"weight\":1}]" guard "}}"

static void test_the_guard_stops_an_experiment(void **state)
{
    static const char rules[] = EXPERIMENT(",\"guard\":{\"percentage\":30,\"creations\":40}");
    struct pd_err e, down = {.code = PD_LOST}, mistake = {.code = PD_INVALID};
    bool stopped = false;
    (void)state;

    (void)unlink(file);
    struct router *r = router_new(file, NULL, providers, PROVIDERS, &e);
    expect_json(r, "\"experiment\":null");
    assert_int_equal(put(r, rules, &e), 0);

    /* Faults of requests do not count, and of good creations there may be many. */
    unsigned wrong = play(r, "b", 200, &mistake, &stopped);
    assert_in_range(wrong, 70, 130);
    expect_json(r, "\"made\":0,\"failed\":0,\"mean_ms\":0");
    unsigned good = play(r, "b", 60, NULL, &stopped);
    assert_true(good > 10 && !stopped);

    /* Until three tenths have failed; then nobody is in an arm, and the default is everybody's. */
    unsigned failed = play(r, "b", 300, &down, &stopped);
    assert_true(stopped);
    assert_true(failed * 100 >= (good + failed) * 30 &&
                (failed - 1) * 100 < (good + failed - 1) * 30);
    assert_string_equal(chosen(r), "docker");
    expect_json(r, "\"stopped\":\"arm b failed at ");
    expect_json(r, "\"mean_ms\":2");

    /* It stays so when the same rules are read again, and is over with others. */
    stopped = false;
    assert_int_equal(router_reload(r, providers, PROVIDERS, &e), 0);
    assert_int_equal(play(r, "b", 50, &down, &stopped), 0);
    assert_int_equal(put(r, EXPERIMENT(""), &e), 0);
    assert_true(play(r, "b", 80, &down, &stopped) > 20);
    assert_false(stopped); /* without a guard */
    expect_json(r, "\"stopped\":null");
    router_free(r);
    (void)unlink(file);
}

/* What a fallback does is not the arm's. */
static void test_an_arm_whose_breaker_is_open_counts_nothing(void **state)
{
    struct pd_err e, down = {.code = PD_LOST};
    bool stopped = false;
    (void)state;

    (void)unlink(file);
    struct router *r = router_new(file, NULL, providers, PROVIDERS, &e);
    assert_int_equal(
        put(r,
            "{\"default\":\"cloudrun\",\"breaker\":{\"failures\":2,\"open_s\":200},"
            "\"experiment\":{\"name\":\"x\",\"arms\":[{\"name\":\"a\",\"provider\":"
            "\"jail\",\"weight\":1},{\"name\":\"b\",\"provider\":\"e2b\",\"weight\":1}]}}",
            &e),
        0);
    assert_int_equal(play(r, "b", 100, &down, &stopped), 2);
    expect_json(r, "\"name\":\"b\",\"provider\":\"e2b\",\"made\":0,\"failed\":2");
    router_free(r);
    (void)unlink(file);
}

struct racer {
    struct router *router;
    unsigned number;
    atomic_bool *stop;
};

static void *keep_putting(void *arg)
{
    struct racer *me = arg;
    static const char *const texts[] = {"{\"default\":\"e2b\"}", "{\"default\":\"docker\"}"};
    struct pd_err e;

    for (unsigned i = 0; i < 300; i++)
        if (put(me->router, texts[(i + me->number) % 2], &e) < 0)
            return me;
    return NULL;
}

static void *keep_choosing(void *arg)
{
    struct racer *me = arg;
    struct route_question q = {.tenant = "t"};
    struct decision route;
    struct pd_err e;

    while (!atomic_load(me->stop)) {
        if (router_choose(me->router, providers, PROVIDERS, &q, &route, &e) < 0 ||
            (route.provider != 1 && route.provider != 3))
            return me;
        router_ended(me->router, &route, 1, NULL);
    }
    return NULL;
}

static void test_rules_are_replaced_while_others_decide(void **state)
{
    struct pd_err e;
    atomic_bool stop = false;
    pthread_t writers[2], readers[2];
    struct racer racers[2];
    void *bad;
    (void)state;

    (void)unlink(file);
    struct router *r = router_new(file, NULL, providers, PROVIDERS, &e);
    assert_int_equal(put(r, "{\"default\":\"e2b\"}", &e), 0);
    for (unsigned i = 0; i < 2; i++) {
        racers[i] = (struct racer){r, i, &stop};
        assert_int_equal(pthread_create(&readers[i], NULL, keep_choosing, &racers[i]), 0);
        assert_int_equal(pthread_create(&writers[i], NULL, keep_putting, &racers[i]), 0);
    }
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(writers[i], &bad), 0);
        assert_null(bad);
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(readers[i], &bad), 0);
        assert_null(bad);
    }

    /* What is in the file is what holds. */
    char holds[32];
    snprintf(holds, sizeof holds, "%s", chosen(r));
    assert_int_equal(router_reload(r, providers, PROVIDERS, &e), 0);
    assert_string_equal(chosen(r), holds);
    router_free(r);
    (void)unlink(file);
}

/* ---- shadows ---- */

/* The place of the shadow, or -1. */
static int shadow_of(struct router *r, const char *tenant, const char *user, const char *primary,
                     enum rung rung)
{
    struct route_question q = {
        .tenant = tenant, .user = user, .key = user, .template_name = "base"};
    unsigned at = 99;
    return router_shadow(r, providers, PROVIDERS, &q, primary, rung, &at) ? (int)at : -1;
}

static void test_who_gets_a_shadow_and_where(void **state)
{
    (void)state;
    struct pd_err e = {.msg = ""};
    struct router *r = router_new(file, NULL, providers, PROVIDERS, &e);
    assert_non_null(r);
    assert_int_equal(shadow_of(r, "t", "u", "docker", RUNG_NONE), -1);

    assert_int_equal(put(r,
                         "{\"shadow\":{\"name\":\"s\",\"provider\":\"docker\",\"tenant\":"
                         "\"t\",\"percentage\":100}}",
                         &e),
                     0);
    assert_int_equal(shadow_of(r, "t", "u", "local", RUNG_NONE), 1);
    assert_int_equal(shadow_of(r, "t", "u", "local", RUNG_BASIC), 1);
    assert_int_equal(shadow_of(r, "other", "u", "local", RUNG_NONE), -1);
    assert_int_equal(shadow_of(r, "t", "u", "docker", RUNG_BASIC), -1);
    assert_int_equal(shadow_of(r, "t", "u", "jail", RUNG_FULL), -1); /* it would be weaker */

    assert_int_equal(put(r,
                         "{\"disabled\":[\"docker\"],\"shadow\":{\"name\":\"s\",\"provider\":"
                         "\"docker\",\"percentage\":100}}",
                         &e),
                     0);
    assert_int_equal(shadow_of(r, "t", "u", "local", RUNG_NONE), -1);
    router_free(r);
}

/* The share is what was asked for, and a higher one only adds users. */
static void test_a_shadows_share(void **state)
{
    (void)state;
    struct pd_err e = {.msg = ""};
    static bool was_in[20000];
    struct router *r = router_new(file, NULL, providers, PROVIDERS, &e);
    assert_non_null(r);

    for (unsigned percent = 5; percent <= 100; percent += 19) {
        char text[160], user[16];
        unsigned in = 0;
        snprintf(text, sizeof text,
                 "{\"shadow\":{\"name\":\"s\",\"provider\":\"jail\",\"percentage\":%u}}", percent);
        assert_int_equal(put(r, text, &e), 0);
        for (unsigned i = 0; i < COUNT(was_in); i++) {
            snprintf(user, sizeof user, "u%u", i);
            bool is_in = shadow_of(r, "t", user, "local", RUNG_NONE) == 0;
            assert_true(is_in || !was_in[i]);
            was_in[i] = is_in;
            in += is_in;
        }
        double share = in * 100.0 / COUNT(was_in);
        assert_true(share > percent - 1.2 && share < percent + 1.2);
    }
    router_free(r);
}

/* What belongs to a rule that was changed is not counted for the next. */
static void test_a_changed_shadow_counts_anew(void **state)
{
    (void)state;
    struct pd_err e = {.msg = ""};
    struct route_question q = {.tenant = "t", .key = "u"};
    struct router *r = router_new(file, NULL, providers, PROVIDERS, &e);
    unsigned at = 0;
    assert_non_null(r);

    const char *rules[] = {
        "{\"shadow\":{\"name\":\"a\",\"provider\":\"jail\",\"percentage\":100}}",
        "{\"shadow\":{\"name\":\"b\",\"provider\":\"jail\",\"percentage\":100}}"};
    assert_int_equal(put(r, rules[0], &e), 0);
    unsigned rule = router_shadow(r, providers, PROVIDERS, &q, "local", RUNG_NONE, &at);
    assert_true(rule && router_shadow_holds(r, rule));
    router_note_shadow(r, rule, PARITY_COMPARED, 0);
    assert_int_equal(put(r, rules[0], &e), 0); /* the same again */
    assert_true(router_shadow_holds(r, rule));
    assert_int_equal(put(r, rules[1], &e), 0);
    assert_false(router_shadow_holds(r, rule));
    router_note_shadow(r, rule, PARITY_COMPARED, 0);

    auto_buf out = BUF_INIT(16384);
    router_metrics(r, &out);
    assert_non_null(strstr(buf_cstr(&out), "result=\"equal\"} 0\n"));
    router_free(r);
}

/* ---- arms ---- */

static void test_commands_count_for_their_arm_and_stop_it(void **state)
{
    (void)state;
    struct pd_err e = {.msg = ""};
    struct router *r = router_new(file, NULL, providers, PROVIDERS, &e);
    assert_non_null(r);
    assert_int_equal(
        put(r,
            "{\"experiment\":{\"name\":\"x\",\"arms\":[{\"name\":\"a\",\"provider\":\"jail\","
            "\"weight\":1},{\"name\":\"b\",\"provider\":\"docker\",\"weight\":1}],"
            "\"guard\":{\"percentage\":50,\"commands\":10}}}",
            &e),
        0);

    for (unsigned i = 0; i < 9; i++) {
        assert_false(router_command_ended(r, "a", false, 1000));
        assert_false(router_command_ended(r, "b", i % 2, 1000));
    }
    assert_false(router_command_ended(r, "nobody", true, 1000));
    assert_true(router_command_ended(r, "b", true, 1000)); /* the fifth of ten */
    assert_false(router_command_ended(r, "b", true, 1000));

    auto_buf out = BUF_INIT(16384);
    struct json j = JSON_INIT(&out);
    json_open(&j, '{');
    router_json(r, providers, PROVIDERS, true, &j);
    json_close(&j, '}');
    assert_non_null(
        strstr(buf_cstr(&out), "arm b failed at 5 of 10 commands, the guard is at 50 %"));
    assert_non_null(strstr(buf_cstr(&out), "\"commands\":9,\"commands_failed\":0"));
    assert_non_null(strstr(buf_cstr(&out), "\"guard\":{\"percentage\":50,\"commands\":10}"));
    assert_string_equal(chosen(r), "jail");
    router_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules_outlive_the_router_and_bad_ones_change_nothing),
        cmocka_unit_test(test_a_file_that_cannot_be_written_leaves_the_rules),
        cmocka_unit_test(test_failures_move_sandboxes_to_the_fallback_and_back),
        cmocka_unit_test(test_the_guard_stops_an_experiment),
        cmocka_unit_test(test_an_arm_whose_breaker_is_open_counts_nothing),
        cmocka_unit_test(test_rules_are_replaced_while_others_decide),
        cmocka_unit_test(test_who_gets_a_shadow_and_where),
        cmocka_unit_test(test_a_shadows_share),
        cmocka_unit_test(test_a_changed_shadow_counts_anew),
        cmocka_unit_test(test_commands_count_for_their_arm_and_stop_it),
    };

    return cmocka_run_group_tests(tests, make_place, remove_place);
}
