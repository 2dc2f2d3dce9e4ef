#include "unit.h"

#include "access/quota.h"
#include "base/clock.h"
#include "base/err.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static _Atomic uint64_t test_time;

static uint64_t test_now(void)
{
    return test_time;
}

static struct quota *quota_of(struct quota_limits limits)
{
    test_time = 1000 * NS_PER_S;
    struct quota *q = quota_new(&limits, test_now);
    assert_non_null(q);
    return q;
}

/* How many of `tries` are let through. */
static unsigned take_many(struct quota *q, const char *tenant, enum quota_rate rate, unsigned tries)
{
    unsigned passed = 0;
    for (unsigned i = 0; i < tries; i++)
        passed += quota_take(q, tenant, rate, NULL, NULL) == 0;
    return passed;
}

static void test_a_burst_then_the_rate(void **state)
{
    (void)state;
    struct quota *q = quota_of((struct quota_limits){.requests_per_s = 10, .requests_burst = 25});
    assert_int_equal(take_many(q, "a", QUOTA_REQUESTS, 100), 25);
    test_time += NS_PER_S;
    assert_int_equal(take_many(q, "a", QUOTA_REQUESTS, 100), 10);

    for (int i = 0; i < 100; i++) { /* in small steps the same */
        test_time += NS_PER_S / 100;
        take_many(q, "a", QUOTA_REQUESTS, 0);
    }
    assert_int_equal(take_many(q, "a", QUOTA_REQUESTS, 100), 10);

    test_time += 3600 * NS_PER_S; /* saved up: no more than the burst */
    assert_int_equal(take_many(q, "a", QUOTA_REQUESTS, 100), 25);
    test_time -= 10 * NS_PER_S; /* a clock that goes back gives nothing */
    assert_int_equal(take_many(q, "a", QUOTA_REQUESTS, 100), 0);
    quota_free(q);
}

static void test_fractions_add_up(void **state)
{
    (void)state;
    struct quota *q = quota_of((struct quota_limits){.creates_per_s = 0.5});
    unsigned passed = 0;
    for (int i = 0; i < 1000; i++) {
        passed += quota_take(q, "a", QUOTA_CREATES, NULL, NULL) == 0;
        test_time += NS_PER_S / 10;
    }
    assert_in_range(passed, 49, 51);
    quota_free(q);
}

static void test_a_refusal_names_the_limit_and_when_to_come_back(void **state)
{
    (void)state;
    struct quota *q = quota_of((struct quota_limits){.requests_per_s = 10, .creates_per_s = 0.25});
    struct pd_err e = {0};
    unsigned retry = 77;
    assert_int_equal(quota_take(q, "acme", QUOTA_CREATES, &retry, &e), 0);
    assert_int_equal(retry, 77);
    assert_int_equal(quota_take(q, "acme", QUOTA_CREATES, &retry, &e), -1);
    assert_int_equal(e.code, PD_RATE);
    assert_int_equal(pd_code_http(e.code), 429);
    assert_int_equal(retry, 4);
    assert_non_null(strstr(e.msg, "acme"));
    assert_non_null(strstr(e.msg, "0.25 new sandboxes per second"));
    assert_non_null(strstr(e.msg, "in 4 s"));

    /* Coming back then works. */
    test_time += retry * NS_PER_S;
    assert_int_equal(quota_take(q, "acme", QUOTA_CREATES, &retry, &e), 0);
    assert_int_equal(take_many(q, "acme", QUOTA_REQUESTS, 20), 10);
    assert_int_equal(quota_take(q, "acme", QUOTA_REQUESTS, &retry, &e), -1);
    assert_int_equal(retry, 1);
    assert_non_null(strstr(e.msg, "10 requests per second"));
    quota_free(q);
}

static void test_tenants_do_not_share(void **state)
{
    (void)state;
    struct quota *q = quota_of((struct quota_limits){.requests_per_s = 5, .execs = 1});
    assert_int_equal(take_many(q, "a", QUOTA_REQUESTS, 10), 5);
    assert_int_equal(take_many(q, "b", QUOTA_REQUESTS, 10), 5);
    assert_int_equal(quota_enter(q, "a", QUOTA_EXECS, NULL, NULL), 0);
    assert_int_equal(quota_enter(q, "a", QUOTA_EXECS, NULL, NULL), -1);
    assert_int_equal(quota_enter(q, "b", QUOTA_EXECS, NULL, NULL), 0);
    quota_free(q);
}

static void test_so_many_at_once_and_not_more(void **state)
{
    (void)state;
    struct quota *q = quota_of((struct quota_limits){.execs = 3, .sandboxes = 2});
    struct pd_err e = {0};
    unsigned retry = 0;
    for (int i = 0; i < 3; i++)
        assert_int_equal(quota_enter(q, "a", QUOTA_EXECS, &retry, &e), 0);
    assert_int_equal(quota_enter(q, "a", QUOTA_EXECS, &retry, &e), -1);
    assert_int_equal(e.code, PD_RATE);
    assert_int_equal(retry, 1);
    assert_non_null(strstr(e.msg, "3 running commands"));
    assert_non_null(strstr(e.msg, "3 is its limit"));

    quota_leave(q, "a", QUOTA_EXECS);
    assert_int_equal(quota_running(q, "a", QUOTA_EXECS), 2);
    assert_int_equal(quota_enter(q, "a", QUOTA_EXECS, &retry, &e), 0);

    /* What was there before us counts, whatever the limit. */
    for (int i = 0; i < 5; i++)
        assert_int_equal(quota_adopt(q, "a", QUOTA_SANDBOXES, &e), 0);
    assert_int_equal(quota_enter(q, "a", QUOTA_SANDBOXES, &retry, &e), -1);
    assert_non_null(strstr(e.msg, "5 sandboxes, and 2 is its limit"));

    for (int i = 0; i < 4; i++)
        quota_leave(q, "a", QUOTA_SANDBOXES);
    assert_int_equal(quota_enter(q, "a", QUOTA_SANDBOXES, &retry, &e), 0);

    /* More leaving than entering does not wrap. */
    for (int i = 0; i < 9; i++)
        quota_leave(q, "a", QUOTA_SANDBOXES);
    quota_leave(q, "nobody", QUOTA_SANDBOXES);
    assert_int_equal(quota_running(q, "a", QUOTA_SANDBOXES), 0);
    assert_int_equal(quota_running(q, "nobody", QUOTA_SANDBOXES), 0);
    quota_free(q);
}

static void test_no_limit_is_no_limit(void **state)
{
    (void)state;
    struct quota *q = quota_of((struct quota_limits){0});
    assert_int_equal(take_many(q, "a", QUOTA_REQUESTS, 10000), 10000);
    assert_int_equal(take_many(q, "a", QUOTA_CREATES, 10000), 10000);
    for (int i = 0; i < 10000; i++)
        assert_int_equal(quota_enter(q, "a", QUOTA_EXECS, NULL, NULL), 0);
    quota_free(q);
}

static void test_limits_can_be_changed(void **state)
{
    (void)state;
    struct quota *q = quota_of((struct quota_limits){.requests_per_s = 100, .execs = 5});
    assert_int_equal(take_many(q, "a", QUOTA_REQUESTS, 50), 50);
    for (int i = 0; i < 5; i++)
        assert_int_equal(quota_enter(q, "a", QUOTA_EXECS, NULL, NULL), 0);

    quota_set_limits(q, &(struct quota_limits){.requests_per_s = 2, .execs = 3});
    assert_int_equal(take_many(q, "a", QUOTA_REQUESTS, 50), 2);
    quota_leave(q, "a", QUOTA_EXECS);
    quota_leave(q, "a", QUOTA_EXECS);
    assert_int_equal(quota_enter(q, "a", QUOTA_EXECS, NULL, NULL), -1);

    quota_leave(q, "a", QUOTA_EXECS);
    assert_int_equal(quota_enter(q, "a", QUOTA_EXECS, NULL, NULL), 0);
    quota_free(q);
}

static void test_idle_tenants_make_room_and_busy_ones_stay(void **state)
{
    (void)state;
    enum { MAX = 4096 };
    struct quota *q = quota_of((struct quota_limits){.requests_per_s = 1, .sandboxes = 1});
    struct pd_err e = {0};
    char name[32];

    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "busy%d", i);
        assert_int_equal(quota_enter(q, name, QUOTA_SANDBOXES, NULL, NULL), 0);
    }

    for (int i = 0; i < MAX - 100; i++) {
        snprintf(name, sizeof name, "t%d", i);
        assert_int_equal(quota_take(q, name, QUOTA_REQUESTS, NULL, NULL), 0);
    }

    /* All have used their second: forgetting one would give it a new burst. */
    assert_int_equal(quota_take(q, "one-more", QUOTA_REQUESTS, NULL, &e), -1);
    assert_int_equal(e.code, PD_CAPACITY);

    test_time += NS_PER_S;
    for (int i = 0; i < 3 * MAX; i++) {
        snprintf(name, sizeof name, "u%d", i);
        assert_int_equal(quota_take(q, name, QUOTA_REQUESTS, NULL, &e), 0);
        if (i % (MAX / 2) == 0)
            test_time += NS_PER_S;
    }

    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "busy%d", i);
        assert_int_equal(quota_running(q, name, QUOTA_SANDBOXES), 1);
        assert_int_equal(quota_enter(q, name, QUOTA_SANDBOXES, NULL, NULL), -1);
    }
    quota_free(q);
}

static void test_a_name_that_is_no_tenant_is_refused(void **state)
{
    (void)state;
    struct quota *q = quota_of((struct quota_limits){.requests_per_s = 1});
    struct pd_err e = {0};
    assert_int_equal(quota_take(q, "", QUOTA_REQUESTS, NULL, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    assert_int_equal(quota_enter(q, "A B", QUOTA_EXECS, NULL, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    quota_free(q);
}

struct user {
    struct quota *quota;
    unsigned taken, over;
};

static void *use_it(void *arg)
{
    struct user *u = arg;
    for (int i = 0; i < 5000; i++) {
        u->taken += quota_take(u->quota, "a", QUOTA_REQUESTS, NULL, NULL) == 0;
        if (quota_enter(u->quota, "a", QUOTA_EXECS, NULL, NULL) == 0) {
            u->over += quota_running(u->quota, "a", QUOTA_EXECS) > 2;
            quota_leave(u->quota, "a", QUOTA_EXECS);
        }
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        quota_take(u->quota, name, QUOTA_REQUESTS, NULL, NULL);
    }

    return NULL;
}

static void test_threads_together_get_no_more(void **state)
{
    (void)state;
    struct quota *q =
        quota_of((struct quota_limits){.requests_per_s = 1, .requests_burst = 1000, .execs = 2});
    pthread_t threads[4];
    struct user users[4];
    unsigned taken = 0;

    for (int i = 0; i < 4; i++) {
        users[i] = (struct user){.quota = q};
        assert_int_equal(pthread_create(&threads[i], NULL, use_it, &users[i]), 0);
    }

    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        taken += users[i].taken;
        assert_int_equal(users[i].over, 0);
    }
    assert_int_equal(taken, 1000); /* the clock stands */
    assert_int_equal(quota_running(q, "a", QUOTA_EXECS), 0);
    quota_free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_burst_then_the_rate),
        cmocka_unit_test(test_fractions_add_up),
        cmocka_unit_test(test_a_refusal_names_the_limit_and_when_to_come_back),
        cmocka_unit_test(test_tenants_do_not_share),
        cmocka_unit_test(test_so_many_at_once_and_not_more),
        cmocka_unit_test(test_no_limit_is_no_limit),
        cmocka_unit_test(test_limits_can_be_changed),
        cmocka_unit_test(test_idle_tenants_make_room_and_busy_ones_stay),
        cmocka_unit_test(test_a_name_that_is_no_tenant_is_refused),
        cmocka_unit_test(test_threads_together_get_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
