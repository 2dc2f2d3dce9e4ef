/* Sandboxes by thread and by key: who is found, from when to when, and how long it takes. */
#include "world.h"

#define MANY    5000u
#define TENANTS 50u /* few enough of each that none is forgotten */

static const char *dir_of(void **state)
{
    return ((struct place *)*state)->dir;
}

/* One that is remembered as gone: it needs no box. Held. */
static struct session *put(struct daemon *d, const char *tenant, const char *thread,
                           const char *key, uint64_t created_ms)
{
    struct session *s = session_new(d->all, d->providers.list[0]);
    assert_non_null(s);
    id_sandbox(s->info.id);
    snprintf(s->info.tenant, sizeof s->info.tenant, "%s", tenant);
    if (thread) {
        snprintf(s->info.user_id, sizeof s->info.user_id, "u");
        snprintf(s->info.thread_id, sizeof s->info.thread_id, "%s", thread);
    }

    s->key = key ? strdup(key) : NULL;
    s->info.created_ms = created_ms;
    s->info.ended_ms = time_now_ms();
    assert_int_equal(sessions_register(s, LIFE_GONE), 0);
    return s;
}

static void expect_thread(struct daemon *d, const char *tenant, const char *thread,
                          const struct session *wanted)
{
    struct session *s = sessions_look_for_thread(d->all, tenant, "u", thread);
    assert_ptr_equal(s, wanted);
    session_unref(s);
}

static void expect_key(struct daemon *d, const char *tenant, const char *key,
                       const struct session *wanted)
{
    struct session *s = sessions_look_for_key(d->all, tenant, key);
    assert_ptr_equal(s, wanted);
    session_unref(s);
}

static void test_names_are_found_while_they_are_listed(void **state)
{
    struct daemon *d = daemon_begin(world_new(), dir_of(state), 0, NULL);
    struct session *a = put(d, "acme", "t", "k", 1), *b = put(d, "other", "t", "k", 1);
    struct session *bare = put(d, "acme", NULL, NULL, 1);

    expect_thread(d, "acme", "t", a);
    expect_thread(d, "other", "t", b);
    expect_key(d, "acme", "k", a);
    expect_key(d, "other", "k", b);
    expect_thread(d, "nobody", "t", NULL);
    expect_thread(d, "acme", "k", NULL);
    expect_key(d, "acme", "t", NULL);

    /* The youngest of a thread, and of those none that another one has replaced. */
    struct session *young = put(d, "acme", "t", NULL, 3), *old = put(d, "acme", "t", NULL, 2);
    expect_thread(d, "acme", "t", young);
    session_forget_thread(young);
    expect_thread(d, "acme", "t", old);

    /* What is forgotten is found by no name. */
    sessions_forget(old);
    expect_thread(d, "acme", "t", a);
    sessions_forget(a);
    expect_thread(d, "acme", "t", NULL);
    expect_key(d, "acme", "k", NULL);
    expect_key(d, "other", "k", b);

    struct session *all[] = {a, b, bare, young, old};
    for (unsigned i = 0; i < COUNT(all); i++)
        session_unref(all[i]);
    daemon_end(d);
}

/* A creation that fails is nobody's, and its names are free again. */
static void test_names_of_a_failed_creation_are_free(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {.tenant = "acme",
                                .user_id = "u",
                                .thread_id = "t",
                                .key = "k",
                                .spec = SPEC_DEFAULT,
                                .env = {.text = ""}};
    struct session *s;
    struct queue_place place;
    struct pd_err e;
    bool known;

    w->fail_create = FAIL_LATE;
    assert_int_equal(sessions_create(d->all, &r, &s, &known, &place, &e), -1);
    expect_thread(d, "acme", "t", NULL);
    expect_key(d, "acme", "k", NULL);

    w->fail_create = 0;
    assert_int_equal(sessions_create(d->all, &r, &s, &known, &place, &e), 0);
    assert_int_equal(known, 0);
    expect_thread(d, "acme", "t", s);
    expect_key(d, "acme", "k", s);
    session_unref(s);
    daemon_end(d);
}

enum look { BY_ID, BY_THREAD, BY_KEY };

/* The best of several rounds, in nanoseconds a look. */
static uint64_t time_of(struct daemon *d, enum look look, char (*ids)[SESSION_ID_LEN + 1])
{
    uint64_t best = UINT64_MAX;
    struct pd_err e;

    for (unsigned round = 0; round < 7; round++) {
        uint64_t began = clock_now();
        for (unsigned n = 0; n < MANY; n += 25) {
            char tenant[16], name[16];
            snprintf(tenant, sizeof tenant, "t%u", n % TENANTS);
            snprintf(name, sizeof name, "n%u", n);
            struct session *s = look == BY_ID ? sessions_find(d->all, tenant, ids[n], &e)
                                : look == BY_THREAD
                                    ? sessions_look_for_thread(d->all, tenant, "u", name)
                                    : sessions_look_for_key(d->all, tenant, name);
            assert_non_null(s);
            session_unref(s);
        }
        uint64_t took = (clock_now() - began) / (MANY / 25);
        best = took < best ? took : best;
    }
    return best;
}

/* The lock of all sandboxes is held meanwhile. When every sandbox was looked at, it took more than
 * 100 times as long as by id. */
static void test_a_name_is_found_as_fast_as_an_id(void **state)
{
    static char ids[MANY][SESSION_ID_LEN + 1];
    struct daemon *d = daemon_begin(world_new(), dir_of(state), 0, NULL);

    for (unsigned n = 0; n < MANY; n++) {
        char tenant[16], name[16];
        snprintf(tenant, sizeof tenant, "t%u", n % TENANTS);
        snprintf(name, sizeof name, "n%u", n);
        struct session *s = put(d, tenant, name, name, n + 1);
        memcpy(ids[n], s->info.id, sizeof ids[n]);
        session_unref(s);
    }

    uint64_t by_id = time_of(d, BY_ID, ids), by_thread = time_of(d, BY_THREAD, ids);
    uint64_t by_key = time_of(d, BY_KEY, ids);
    print_message("of %u: by id %llu ns, by thread %llu ns, by key %llu ns\n", MANY,
                  (unsigned long long)by_id, (unsigned long long)by_thread,
                  (unsigned long long)by_key);
    assert_true(by_thread < 20 * by_id);
    assert_true(by_key < 20 * by_id);
    daemon_end(d);
}

/* ---- the pool ---- */

static void with_pool(struct sessions_config *c)
{
    c->pool_min = c->pool_max = 3;
}

/* Those in the pool that are sound, and how many it has. */
static unsigned sound_ones(struct sessions *all, unsigned *ret_count)
{
    unsigned sound = 0;

    lock_take(&all->lock);
    *ret_count = all->pool_count[PROFILE_STRICT];
    for (unsigned i = 0; i < *ret_count; i++) {
        struct session *s = all->pool[PROFILE_STRICT][i];
        lock_take(&s->lock);
        sound += !s->lost && s->life == LIFE_READY;
        lock_release(&s->lock);
    }
    lock_release(&all->lock);
    return sound;
}

static void await_pool(struct sessions *all)
{
    deadline d = deadline_in(30 * NS_PER_S);
    unsigned count;

    while ((sound_ones(all, &count) != 3 || count != 3) && !deadline_passed(d))
        usleep(2000);
    assert_int_equal(sound_ones(all, &count), 3);
    assert_int_equal(count, 3);
}

/* A sandbox of the pool that is lost is replaced, before anybody asks for one. */
static void test_a_lost_one_leaves_the_pool(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, with_pool);

    for (unsigned round = 0; round < 20; round++) {
        await_pool(d->all);
        lock_take(&d->all->lock);
        struct session *s = session_ref(d->all->pool[PROFILE_STRICT][round % 3]);
        lock_release(&d->all->lock);
        session_mark_lost(s, "test");
        session_unref(s);
    }

    /* The boxes of those that were lost go away after they have left the pool. Two profiles have
     * one. */
    await_pool(d->all);
    deadline limit = deadline_in(30 * NS_PER_S);
    while (box_count(w) != 6 && !deadline_passed(limit))
        usleep(2000);
    assert_int_equal(box_count(w), 6);
    daemon_end(d);
}

static int count_row(const struct process_row *r, void *arg)
{
    (void)r;
    ++*(unsigned *)arg;
    return 0;
}

/* Nothing is left of the commands that warmed up sandboxes which nobody took. */
static void test_discarded_ones_leave_no_rows(void **state)
{
    struct daemon *d = daemon_begin(world_new(), dir_of(state), 1, with_pool);
    struct pd_err e;

    for (unsigned round = 0; round < 20; round++) {
        await_pool(d->all);
        sessions_end_all(d->all, "test");
        lock_take(&d->all->lock);
        d->all->c.pool_max = 3;
        lock_release(&d->all->lock);
    }
    sessions_end_all(d->all, "test");
    sessions_stop(d->all);

    unsigned rows = 0;
    assert_int_equal(d->real->each_process(d->real, count_row, &rows, &e), 0);
    assert_int_equal(rows, 0);
    d->real->free(d->real);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_names_are_found_while_they_are_listed),
        IN_WORLD(test_names_of_a_failed_creation_are_free),
        IN_WORLD(test_a_name_is_found_as_fast_as_an_id),
        IN_WORLD(test_a_lost_one_leaves_the_pool),
        IN_WORLD(test_discarded_ones_leave_no_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
