/* Sandboxes by the router's choice, at two providers of which the first fails when it is told to:
 * where they are made instead, what is counted against whom, and that nothing is left. */
#include "world.h"

#include "router/router.h"

static struct provider first, second;
static struct router *router;
static char file[300];
static int fault;        /* enum pd_code of the first one's creations; -1: none */
static unsigned asked;   /* how often it was */
static enum rung weaker; /* the second one's */
static int (*real_create)(struct provider *, struct wire_id, const struct spec *, void *,
                          struct box **, deadline, struct pd_err *);

static int faulty_create(struct provider *p, struct wire_id id, const struct spec *s, void *owner,
                         struct box **ret, deadline d, struct pd_err *e)
{
    asked++;
    if (fault >= 0)
        return pd_fail(e, (enum pd_code)fault, "made to fail");
    return real_create(p, id, s, owner, ret, d, e);
}

static enum rung best_of_second(struct provider *p)
{
    (void)p;
    return weaker;
}

static enum rung best_of_first(struct provider *p)
{
    (void)p;
    return RUNG_FULL;
}

static void put(const char *text)
{
    struct route_provider list[PROVIDERS_MAX];
    struct pd_err e = {.msg = ""};
    if (router_put(router, text, strlen(text), list,
                   provider_table_describe(&the_daemon->providers, list), &e) < 0)
        fail_msg("%s", e.msg);
}

static void add_second(struct sessions_config *c)
{
    struct route_provider list[PROVIDERS_MAX];
    struct provider_table *t = &the_daemon->providers;
    struct pd_err e;

    first = second = the_daemon->provider;
    real_create = first.create;
    first.create = faulty_create;
    first.best = best_of_first;
    t->list[0] = &first;
    second.name = "second";
    second.best = best_of_second;
    assert_int_equal(provider_table_add(t, &second, &e), 0);

    snprintf(file, sizeof file, "%s/router.json", c->state_dir);
    router = router_new(file, NULL, list, provider_table_describe(t, list), &e);
    assert_non_null(router);
    c->router = router;
    c->max_sessions = 1; /* so that a place which is not given back is noticed */
    c->queue_max = 0;
}

static struct daemon *begin(void **state, const char *rules)
{
    struct place *place = *state;
    fault = -1;
    asked = 0;
    weaker = RUNG_FULL;
    struct daemon *d = daemon_begin(world_new(), place->dir, 0, add_second);
    put(rules);
    return d;
}

static void finish(struct daemon *d)
{
    daemon_end(d);
    router_free(router);
    assert_int_equal(unlink(file), 0);
}

static int create(struct daemon *d, const char *provider, struct session **ret, struct pd_err *e)
{
    struct session_request r = {
        .tenant = "acme", .provider = provider, .spec = SPEC_DEFAULT, .env = {.text = ""}};
    struct queue_place place;
    bool known;
    return sessions_create(d->all, &r, ret, &known, &place, e);
}

static void must_end(struct session *s)
{
    struct pd_err e;
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    session_unref(s);
}

static void is_made(struct daemon *d, const char *provider, const char *reason)
{
    struct pd_err e = {.msg = ""};
    struct session *s;
    if (create(d, NULL, &s, &e) < 0)
        fail_msg("%s", e.msg);
    assert_string_equal(s->info.provider, provider);
    assert_string_equal(s->info.reason, reason);
    assert_int_equal(box_count(d->world), 1);
    must_end(s);
    assert_int_equal(box_count(d->world), 0);
}

static void test_a_creation_that_fails_is_done_elsewhere(void **state)
{
    struct daemon *d = begin(state, "{\"fallback\":[\"second\"]}");

    is_made(d, "world", "default provider of this server");
    fault = PD_TIMEOUT;
    for (unsigned i = 0; i < 5; i++)
        is_made(d, "second", "fallback: world failed with timeout");
    assert_int_equal(asked, 6);

    /* Its breaker is open now: it is not asked any more. */
    is_made(d, "second",
            "fallback: world fails and is left alone (default provider of this server)");
    assert_int_equal(asked, 6);
    finish(d);
}

static void test_what_a_request_names_is_not_done_elsewhere(void **state)
{
    struct daemon *d = begin(state, "{\"fallback\":[\"second\"]}");
    struct session *s;
    struct pd_err e;

    fault = PD_CAPACITY;
    assert_int_equal(create(d, "world", &s, &e), -1);
    assert_string_equal(e.msg, "made to fail");

    put("{\"rules\":[{\"name\":\"r\",\"fallback\":[\"second\"]}]}");
    assert_int_equal(create(d, "world", &s, &e), 0);
    assert_string_equal(s->info.provider, "second");
    must_end(s);
    finish(d);
}

static void test_errors_of_the_request_stay_and_do_not_count(void **state)
{
    struct daemon *d = begin(state, "{\"fallback\":[\"second\"]}");
    struct session *s;
    struct pd_err e;

    fault = PD_INVALID;
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(create(d, NULL, &s, &e), -1);
        assert_int_equal(e.code, PD_INVALID);
    }
    fault = -1;
    is_made(d, "world", "default provider of this server");
    finish(d);
}

static void test_nothing_is_made_where_it_is_isolated_less(void **state)
{
    struct daemon *d = begin(state, "{\"fallback\":[\"second\"],\"allow_weaker\":true}");
    struct session *s;
    struct pd_err e;

    weaker = RUNG_BASIC;
    fault = PD_TIMEOUT;
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(create(d, NULL, &s, &e), -1);
    assert_int_equal(box_count(d->world), 0);
    finish(d);
}

/* Whatever goes wrong: there is one box for one sandbox, and none without. */
static void test_no_box_is_left_and_none_is_made_twice(void **state)
{
    struct daemon *d = begin(
        state, "{\"fallback\":[\"second\"],\"breaker\":{\"open_s\":0.01,\"open_max_s\":0.01}}");
    static const int faults[] = {-1, -1, PD_TIMEOUT, PD_CAPACITY, PD_INTERNAL, PD_RATE, PD_INVALID};
    unsigned rounds = getenv("PADDOCK_NIGHTLY") ? 10000 : 400, made = 0;
    uint64_t seed = 7;

    for (unsigned i = 0; i < rounds; i++) {
        struct session *s;
        struct pd_err e;
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        fault = faults[(seed >> 33) % COUNT(faults)];
        d->world->fail_create = (seed >> 40) % 8 == 0 ? FAIL_LATE : (seed >> 44) % 8 == 0;
        if (create(d, NULL, &s, &e) < 0) {
            assert_int_equal(box_count(d->world), 0);
            continue;
        }
        made++;
        assert_int_equal(box_count(d->world), 1);
        must_end(s);
        assert_int_equal(box_count(d->world), 0);
    }
    /* How many depends on the clock, too: a breaker is open for 10 ms, which are few rounds on a
     * busy machine and many on a quick one. */
    assert_true(made > rounds / 10);
    finish(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_a_creation_that_fails_is_done_elsewhere),
        IN_WORLD(test_what_a_request_names_is_not_done_elsewhere),
        IN_WORLD(test_errors_of_the_request_stay_and_do_not_count),
        IN_WORLD(test_nothing_is_made_where_it_is_isolated_less),
        IN_WORLD(test_no_box_is_left_and_none_is_made_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
