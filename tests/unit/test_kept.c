/* Kept output is bounded: of a sandbox, of a tenant, of the server; that of commands which ended
 * first goes first, and what a reader must not miss stays. */
#include "stage.h"

#include <sys/stat.h>

#define KIB (1024ull)
#define MIB (1024 * KIB)

static uint64_t spool_bytes(struct stage *g)
{
    char path[128];
    struct stat st;
    uint64_t sum = 0;
    snprintf(path, sizeof path, "%s/spool", g->place->dir);
    DIR *d = opendir(path);
    for (const struct dirent *f; d && (f = readdir(d));)
        if (f->d_name[0] != '.' && fstatat(dirfd(d), f->d_name, &st, 0) == 0)
            sum += (uint64_t)st.st_blocks * 512;
    if (d)
        closedir(d);
    return sum;
}

/* Waits until the disk has no more than this. */
static void assert_bounded(struct stage *g, uint64_t most)
{
    deadline d = deadline_in(PATIENCE);
    while (spool_bytes(g) > most && !deadline_passed(d))
        usleep(5000);
    if (spool_bytes(g) > most)
        fail_msg("%llu bytes are kept instead of %llu", (unsigned long long)spool_bytes(g),
                 (unsigned long long)most);
}

static void print(struct session *s, const char *bytes, struct process_info *ret)
{
    struct process *p = start_with(s, "print", bytes, 0);
    await_end(p, 0);
    process_get(p, ret, NULL);
    assert_int_equal(ret->size[STREAM_OUT], strtoul(bytes, NULL, 10));
    process_unref(p);
}

static void look(struct session *s, const char *id, struct process_info *ret)
{
    struct pd_err e = {0};
    struct process *p = session_find_process(s, id, &e);
    if (!p)
        fail_msg("find: %s", e.msg);
    process_get(p, ret, NULL);
    process_unref(p);
}

static int is_readable(struct session *s, const char *id, struct pd_err *e)
{
    char piece[100];
    struct process *p = session_find_process(s, id, e);
    assert_non_null(p);
    ssize_t n = process_read(p, STREAM_OUT, 0, piece, sizeof piece, e);
    process_unref(p);
    return n == sizeof piece && piece[0] == 'x';
}

/* ---- of a sandbox ---- */

static void small_sandbox(struct sessions_config *c)
{
    c->kept_per_sandbox = MIB;
}

static int setup_sandbox(void **state)
{
    return stage_begin(state, small_sandbox);
}

static void test_the_oldest_that_ended_are_forgotten(void **state)
{
    struct stage *g = *state;
    struct session *s = session_make(g, "acme", 0);
    struct process_info i[12];
    for (unsigned n = 0; n < COUNT(i); n++) {
        print(s, "300000", &i[n]);
        assert_bounded(g, MIB);
    }

    struct pd_err e = {0};
    struct process_info now;
    look(s, i[0].id, &now);
    assert_int_equal(now.forgotten, 1);
    assert_int_equal(now.size[STREAM_OUT], 300000);
    assert_int_equal(now.first[STREAM_OUT], 300000);
    assert_int_equal(now.exit_code, 0);
    assert_false(is_readable(s, i[0].id, &e));
    assert_int_equal(e.code, PD_INVALID);
    assert_non_null(strstr(e.msg, "forgotten"));

    look(s, i[COUNT(i) - 1].id, &now);
    assert_int_equal(now.forgotten, 0);
    assert_true(is_readable(s, i[COUNT(i) - 1].id, &e));
    /* In the order of their ends: none that is there ended before one that is not. */
    int there = 0;
    for (unsigned n = 0; n < COUNT(i); n++) {
        look(s, i[n].id, &now);
        assert_true(!there || !now.forgotten);
        there |= !now.forgotten;
    }

    struct sessions_stats stats;
    sessions_get_stats(g->all, &stats);
    assert_true(stats.outputs_forgotten >= 8 && stats.outputs_forgotten < COUNT(i));
    assert_true(stats.output_kept > 0 && stats.output_kept <= MIB);
    session_unref(s);
}

static void *nothing(void *arg)
{
    return arg;
}

/* The first provider's recorder may be waiting for that one for long. Here it has ended. */
static void test_any_recorder_forgets(void **state)
{
    struct stage *g = *state;
    struct session *s = session_make(g, "acme", 0);
    struct process_info i;
    struct pd_err e;
    for (unsigned n = 0; n < 3; n++) {
        struct process *p = start_with(s, "print", "300000", 0);
        await_end(p, 0);
        deadline d = deadline_in(PATIENCE);
        while (atomic_load(&p->refs) > 2 && !deadline_passed(d)) /* its end is recorded */
            usleep(1000);
        process_unref(p);
    }

    g->providers.count = 2;
    assert_int_equal(recorders_start(g->all, &e), 0);
    g->providers.count = 1;
    struct recorder *first = &g->all->recorders[0];
    lock_take(&first->lock);
    first->stopping = true;
    pthread_cond_broadcast(&first->cond);
    lock_release(&first->lock);
    pthread_join(first->thread, NULL);
    assert_int_equal(sessions_start_thread(&first->thread, nothing, NULL), 0); /* to be joined */

    print(s, "300000", &i);
    assert_bounded(g, MIB);
    session_unref(s);
}

/* One that somebody holds is left: its request is still to be answered. */
static void test_what_is_held_is_not_forgotten(void **state)
{
    struct stage *g = *state;
    struct pd_err e = {0};
    struct session *s = session_make(g, "acme", 0);
    struct process *held = start_with(s, "print", "300000", 0);
    struct process_info i;
    char piece[100];

    await_end(held, 0);
    for (unsigned n = 0; n < 12; n++) {
        print(s, "300000", &i);
        assert_bounded(g, MIB);
    }

    process_get(held, &i, NULL);
    assert_int_equal(i.forgotten, 0);
    assert_true(process_read(held, STREAM_OUT, i.first[STREAM_OUT], piece, sizeof piece, &e) > 0);
    process_unref(held);
    session_unref(s);
}

static void test_those_that_run_keep_their_last_bytes(void **state)
{
    struct stage *g = *state;
    struct pd_err e = {0};
    struct session *s = session_make(g, "acme", 0);
    struct process *p[12];
    char piece[100];
    for (unsigned n = 0; n < COUNT(p); n++)
        p[n] = start_with(s, "hold", "500000", 0);
    struct process_info i;
    deadline d = deadline_in(PATIENCE);
    for (unsigned n = 0; n < COUNT(p); n++)
        do {
            usleep(2000);
            process_get(p[n], &i, NULL);
        } while (i.size[STREAM_OUT] < 500000 && !deadline_passed(d));
    assert_bounded(g, MIB + MIB / 4 + COUNT(p) * KEPT_LEAST);
    for (unsigned n = 0; n < COUNT(p); n++) {
        process_get(p[n], &i, NULL);
        assert_int_equal(i.running, 1);
        assert_int_equal(i.forgotten, 0);
        assert_true(i.size[STREAM_OUT] - i.first[STREAM_OUT] >= KEPT_LEAST);

        /* The recorder may forget more between the look and the read. */
        ssize_t got;
        while ((got = process_read(p[n], STREAM_OUT, i.first[STREAM_OUT], piece, 100, &e)) < 0 &&
               strstr(e.msg, "forgotten") && !deadline_passed(d))
            process_get(p[n], &i, NULL);
        assert_int_equal(got, 100);
        process_unref(p[n]);
    }
    session_unref(s);
}

/* The writer waits instead, and every byte arrives. */
static void test_back_pressure_loses_nothing(void **state)
{
    struct stage *g = *state;
    struct pd_err e = {0};
    struct session *s = session_make(g, "acme", 0);
    struct process *p = start_with(s, "print", "6000000", 1);
    uint64_t at = 0;
    static char piece[100000];
    deadline d = deadline_in(PATIENCE);
    struct process_info i;

    do { /* until it waits */
        usleep(20000);
        process_get(p, &i, NULL);
    } while (i.size[STREAM_OUT] < MIB && !deadline_passed(d));
    assert_true(spool_bytes(g) < 2 * MIB);

    while (at < 6000000 && !deadline_passed(d)) {
        ssize_t n = process_read(p, STREAM_OUT, at, piece, sizeof piece, &e);
        if (n < 0)
            fail_msg("at %llu: %s", (unsigned long long)at, e.msg);
        for (ssize_t k = 0; k < n; k++)
            assert_int_equal(piece[k], 'x');
        at += (uint64_t)n;
        if (n == 0)
            usleep(500);
    }

    assert_int_equal(at, 6000000);
    await_end(p, 0);
    process_unref(p);
    session_unref(s);
}

/* ---- of a tenant, and of all ---- */

static void small_tenant(struct sessions_config *c)
{
    c->kept_per_tenant = MIB;
}

static int setup_tenant(void **state)
{
    return stage_begin(state, small_tenant);
}

static void test_a_tenant_is_bounded_by_itself(void **state)
{
    struct stage *g = *state;
    struct pd_err e = {0};
    struct process_info first, i;
    struct session *other = session_make(g, "other", 0);
    print(other, "700000", &first);

    struct session *s[3];
    for (unsigned n = 0; n < COUNT(s); n++) {
        s[n] = session_make(g, "acme", 0);
        for (int k = 0; k < 4; k++) {
            print(s[n], "300000", &i);
            assert_bounded(g, MIB + 720 * KIB);
        }
    }

    assert_true(is_readable(other, first.id, &e));
    assert_true(is_readable(s[2], i.id, &e));
    for (unsigned n = 0; n < COUNT(s); n++)
        session_unref(s[n]);
    session_unref(other);
}

static void small_server(struct sessions_config *c)
{
    c->kept_in_all = MIB;
}

static int setup_server(void **state)
{
    return stage_begin(state, small_server);
}

static void test_all_together_are_bounded(void **state)
{
    struct stage *g = *state;
    struct pd_err e = {0};
    struct process_info i;
    static const char *const tenants[] = {"a", "b", "c"};
    struct session *s[3];

    for (unsigned n = 0; n < COUNT(s); n++) {
        s[n] = session_make(g, tenants[n], 0);
        for (int k = 0; k < 4; k++) {
            print(s[n], "300000", &i);
            assert_bounded(g, MIB);
        }
    }
    assert_true(is_readable(s[2], i.id, &e));

    /* A sandbox that ends gives its bytes back. */
    assert_int_equal(session_end(s[2], END_KILLED, "test", &e), 0);
    struct sessions_stats stats;
    sessions_get_stats(g->all, &stats);
    for (unsigned n = 0; n < 2; n++)
        assert_int_equal(session_end(s[n], END_KILLED, "test", &e), 0);

    sessions_get_stats(g->all, &stats);
    assert_int_equal(stats.output_kept, 0);
    assert_int_equal(spool_bytes(g), 0);
    for (unsigned n = 0; n < COUNT(s); n++)
        session_unref(s[n]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_oldest_that_ended_are_forgotten, setup_sandbox,
                                        stage_teardown),
        cmocka_unit_test_setup_teardown(test_any_recorder_forgets, setup_sandbox, stage_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_held_is_not_forgotten, setup_sandbox,
                                        stage_teardown),
        cmocka_unit_test_setup_teardown(test_those_that_run_keep_their_last_bytes, setup_sandbox,
                                        stage_teardown),
        cmocka_unit_test_setup_teardown(test_back_pressure_loses_nothing, setup_sandbox,
                                        stage_teardown),
        cmocka_unit_test_setup_teardown(test_a_tenant_is_bounded_by_itself, setup_tenant,
                                        stage_teardown),
        cmocka_unit_test_setup_teardown(test_all_together_are_bounded, setup_server,
                                        stage_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
