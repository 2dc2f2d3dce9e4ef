#include "store_place.h"

#include "base/clock.h"
#include "base/fd.h"

#include <pthread.h>

/* Rows come back as they were. */

static const char env_bytes[] = "A=1\0B=two words\0C=";

static struct session_row full_session(void)
{
    static const uint8_t spec[] = {0, 255, 0, 1, 0};

    return (struct session_row){
        .id = "abcdefghij0123456789",
        .box_id = {1, 2, 3, 0, 5, 255},
        .tenant = "default",
        .user_id = "J\xc3\xb6rg",
        .thread_id = "t'1\"; DROP TABLE sessions",
        .template_name = "base",
        .provider = "jail",
        .reason = "rule 3",
        .policy = "open",
        .metadata = "{\"a\":\"b\"}",
        .env = env_bytes,
        .env_len = sizeof env_bytes,
        .cwd = "/work\xff\xfe",
        .spec = spec,
        .spec_len = sizeof spec,
        .root_name = "r1",
        .key = "k-1",
        .key_hash = UINT64_MAX,
        .replaces = "zzzzzzzzzzzzzzzzzzzz",
        .state = 1,
        .end = 5,
        .end_reason = "gone",
        .created_ms = 1,
        .expires_ms = UINT64_MAX - 1,
        .last_used_ms = 3,
        .ended_ms = 4,
        .idle_timeout_ms = 5,
        .max_life_ms = 6,
        .paused_ms = 7,
        .from_pool = 1,
        .rung = -2,
        .note = "{\"door\":\"\xc3\xa9\"}",
        .pause_at_end = 1,
        .asleep = 2,
    };
}

static int check_full_session(const struct session_row *r, void *arg)
{
    struct session_row want = full_session();
    ++*(int *)arg;

    assert_string_equal(r->id, want.id);
    assert_memory_equal(r->box_id, want.box_id, 16);
    assert_string_equal(r->tenant, want.tenant);
    assert_string_equal(r->user_id, want.user_id);
    assert_string_equal(r->thread_id, want.thread_id);
    assert_string_equal(r->template_name, want.template_name);

    assert_string_equal(r->provider, want.provider);
    assert_string_equal(r->reason, want.reason);
    assert_string_equal(r->policy, want.policy);
    assert_string_equal(r->metadata, want.metadata);
    assert_int_equal(r->env_len, want.env_len);
    assert_memory_equal(r->env, want.env, want.env_len);
    assert_string_equal(r->cwd, want.cwd);
    assert_int_equal(r->spec_len, want.spec_len);
    assert_memory_equal(r->spec, want.spec, want.spec_len);

    assert_string_equal(r->root_name, want.root_name);
    assert_string_equal(r->key, want.key);
    assert_true(r->key_hash == want.key_hash);
    assert_string_equal(r->replaces, want.replaces);

    assert_int_equal(r->state, want.state);
    assert_int_equal(r->end, want.end);
    assert_string_equal(r->end_reason, want.end_reason);
    assert_true(r->created_ms == 1 && r->expires_ms == UINT64_MAX - 1 && r->last_used_ms == 3);
    assert_true(r->ended_ms == 4 && r->idle_timeout_ms == 5 && r->max_life_ms == 6);
    assert_true(r->paused_ms == 7);

    assert_int_equal(r->from_pool, 1);
    assert_int_equal(r->rung, -2);
    assert_string_equal(r->note, want.note);
    assert_int_equal(r->pause_at_end, 1);
    assert_int_equal(r->asleep, 2);
    return 0;
}

static void test_a_session_comes_back_as_it_was(void **state)
{
    struct store *s = open_or_fail(((struct place *)*state)->dir, 1);
    struct session_row row = full_session();
    assert_int_equal(s->put_session(s, &row, NULL), 0);
    s->free(s);
    s = open_or_fail(((struct place *)*state)->dir, 1);
    int seen = 0;
    assert_int_equal(s->each_session(s, check_full_session, &seen, NULL), 0);
    assert_int_equal(seen, 1);
    s->free(s);
}

static int check_empty_session(const struct session_row *r, void *arg)
{
    ++*(int *)arg;
    assert_string_equal(r->id, "x");
    assert_string_equal(r->tenant, "");
    assert_string_equal(r->metadata, "");
    assert_non_null(r->env);
    assert_int_equal(r->env_len, 0);
    assert_non_null(r->spec);
    assert_int_equal(r->spec_len, 0);
    return 0;
}

static void test_what_is_not_given_is_empty(void **state)
{
    (void)state;
    struct store *s = open_or_fail(":memory:", 0);
    struct session_row row = {.id = "x"};
    assert_int_equal(s->put_session(s, &row, NULL), 0);
    int seen = 0;
    assert_int_equal(s->each_session(s, check_empty_session, &seen, NULL), 0);
    assert_int_equal(seen, 1);
    s->free(s);
}

static int check_process(const struct process_row *r, void *arg)
{
    const struct process_row *want = arg;

    assert_memory_equal(r->id, want->id, 16);
    assert_string_equal(r->session, want->session);
    assert_string_equal(r->command, want->command);
    assert_string_equal(r->key, want->key);
    assert_string_equal(r->why, want->why);
    assert_true(r->key_hash == want->key_hash);

    assert_true(r->group == want->group);
    assert_int_equal(r->pid, want->pid);
    assert_int_equal(r->flags, want->flags);
    assert_int_equal(r->exited, want->exited);
    assert_int_equal(r->status, want->status);
    assert_int_equal(r->stop, want->stop);
    assert_int_equal(r->why_code, want->why_code);

    assert_true(r->started_ms == want->started_ms && r->ended_ms == want->ended_ms);
    assert_true(r->deadline_ms == want->deadline_ms && r->duration_us == want->duration_us);
    assert_true(r->cpu_usec == want->cpu_usec && r->max_rss == want->max_rss);
    assert_true(r->spool_max == want->spool_max);
    assert_string_equal(r->note, want->note);
    return 0;
}

static void test_a_process_is_put_and_replaced(void **state)
{
    (void)state;
    struct store *s = open_or_fail(":memory:", 0);
    struct process_row r = {
        .id = {9, 8, 0, 7},
        .session = "one",
        .command = "echo",
        .key = "k",
        .key_hash = UINT64_C(1) << 63,
        .group = UINT32_MAX,
        .pid = 3,
        .flags = 4,
        .started_ms = 5,
        .deadline_ms = UINT64_MAX,
        .spool_max = 6,
        .why = "",
        .note = "tag",
    };
    assert_int_equal(s->put_process(s, &r, NULL), 0);
    assert_int_equal(s->each_process(s, check_process, &r, NULL), 0);

    r.exited = 1;
    r.status = 256;
    r.stop = 2;
    r.ended_ms = 10;
    r.duration_us = 11;
    r.cpu_usec = 12;
    r.max_rss = 13;
    r.why = "no such program";
    r.why_code = 22;
    assert_int_equal(s->put_process(s, &r, NULL), 0);
    assert_int_equal(s->each_process(s, check_process, &r, NULL), 0);
    assert_int_equal(count_processes(s).count, 1);
    s->free(s);
}

static int check_snapshot(const struct snapshot_row *r, void *arg)
{
    const struct snapshot_row *want = arg;
    if (strcmp(r->id, want->id) != 0)
        return 0;
    assert_string_equal(r->tenant, want->tenant);
    assert_string_equal(r->name, want->name);
    assert_string_equal(r->sandbox, want->sandbox);
    assert_string_equal(r->template_name, want->template_name);
    assert_int_equal(r->profile, want->profile);
    assert_int_equal(r->state, want->state);
    assert_true(r->created_ms == want->created_ms);
    return 1;
}

static int count_snapshot(const struct snapshot_row *r, void *arg)
{
    (void)r;
    ++*(int *)arg;
    return 0;
}

static void test_snapshots_are_put_replaced_and_deleted(void **state)
{
    (void)state;
    struct store *s = open_or_fail(":memory:", 0);
    struct snapshot_row r = {.id = "a",
                             .tenant = "t",
                             .name = "",
                             .sandbox = "b",
                             .template_name = "base",
                             .profile = 1,
                             .state = 0,
                             .created_ms = 7},
                        other = {.id = "c"};

    int count = 0;
    assert_int_equal(s->put_snapshot(s, &r, NULL), 0);
    assert_int_equal(s->put_snapshot(s, &other, NULL), 0);

    r.name = "named";
    r.state = 1;
    assert_int_equal(s->put_snapshot(s, &r, NULL), 0);
    assert_int_equal(s->each_snapshot(s, check_snapshot, &r, NULL), 0);
    assert_int_equal(s->delete_snapshot(s, "a", NULL), 0);
    assert_int_equal(s->delete_snapshot(s, "a", NULL), 0);
    assert_int_equal(s->each_snapshot(s, count_snapshot, &count, NULL), 0);
    assert_int_equal(count, 1);
    s->free(s);
}

static void test_a_session_takes_its_processes_with_it(void **state)
{
    (void)state;
    struct store *s = open_or_fail(":memory:", 0);
    struct session_row one = {.id = "one"}, two = {.id = "two"};
    assert_int_equal(s->put_session(s, &one, NULL), 0);
    assert_int_equal(s->put_session(s, &two, NULL), 0);
    for (uint64_t i = 1; i <= 20; i++) {
        struct process_row r = process_of(i, i % 2 ? "one" : "two");
        assert_int_equal(s->put_process(s, &r, NULL), 0);
    }

    /* Putting a session again does not. */
    assert_int_equal(s->put_session(s, &one, NULL), 0);
    assert_int_equal(count_processes(s).count, 20);
    assert_int_equal(s->delete_session(s, "one", NULL), 0);
    assert_int_equal(s->delete_session(s, "one", NULL), 0);

    struct tally t = count_processes(s);
    assert_int_equal(t.count, 10);
    assert_true(t.sum == 2 + 4 + 6 + 8 + 10 + 12 + 14 + 16 + 18 + 20);
    assert_int_equal(count_sessions(s), 1);

    uint64_t id[2] = {2, 0};
    assert_int_equal(s->delete_process(s, (uint8_t *)id, NULL), 0);
    assert_int_equal(s->delete_process(s, (uint8_t *)id, NULL), 0);
    assert_int_equal(count_processes(s).count, 9);
    s->free(s);
}

static void test_rows_come_oldest_first_and_callbacks_may_stop_or_write(void **state)
{
    (void)state;
    struct store *s = open_or_fail(":memory:", 0);
    enum { ROWS = 1000 };

    for (uint64_t i = 1; i <= ROWS; i++) {
        struct process_row r = process_of(i, "one");
        r.id[15] = (uint8_t)(255 - i % 256); /* the order of ids is another one */
        assert_int_equal(s->put_process(s, &r, NULL), 0);
    }

    struct tally t = count_processes(s);
    assert_int_equal(t.count, ROWS);
    assert_true(t.in_order);
    assert_true(t.sum == ROWS * (ROWS + 1) / 2);

    struct tally some = {.stop_at = 130};
    assert_int_equal(s->each_process(s, tally_process, &some, NULL), 0);
    assert_int_equal(some.count, 130);

    struct tally deleting = {.in_order = 1, .store = s};
    assert_int_equal(s->each_process(s, tally_process, &deleting, NULL), 0);
    assert_int_equal(deleting.count, ROWS);
    assert_true(deleting.in_order);
    assert_int_equal(count_processes(s).count, 0);
    s->free(s);
}

static void test_a_revoked_key_stays_revoked(void **state)
{
    (void)state;
    struct store *s = open_or_fail(":memory:", 0);
    struct key_row k = {.id = "k1", .hash = {1}, .tenant = "default", .label = "", .created_ms = 5};
    assert_int_equal(s->put_key(s, &k, NULL), 0);

    k.revoked_ms = 77;
    assert_int_equal(s->put_key(s, &k, NULL), 0);
    k.revoked_ms = 0; /* somebody who has not heard of it */
    k.last_used_ms = 9;
    assert_int_equal(s->put_key(s, &k, NULL), 0);
    assert_int_equal(s->touch_key(s, "k1", 8, NULL), 0);
    assert_int_equal(s->touch_key(s, "nobody", 8, NULL), 0);

    struct tally t = {0};
    assert_int_equal(s->each_key(s, tally_key, &t, NULL), 0);
    assert_int_equal(t.count, 1);
    assert_true(t.last == 77);

    /* The same key under another id is no second key. */
    struct pd_err e = {0};
    struct key_row twin = {.id = "k2", .hash = {1}, .tenant = "other"};
    assert_int_equal(s->put_key(s, &twin, &e), -1);
    assert_int_equal(e.code, PD_INTERNAL);
    s->free(s);
}

static void test_values_are_kept_by_name(void **state)
{
    (void)state;
    struct store *s = open_or_fail(":memory:", 0);
    struct pd_err e = {0};
    char out[8];

    assert_int_equal(s->get_value(s, "secret", out, sizeof out, &e), -1);
    assert_int_equal(e.code, PD_NOT_FOUND);
    assert_int_equal(s->put_value(s, "secret", "a\0b", 3, NULL), 0);
    assert_int_equal(s->put_value(s, "empty", NULL, 0, NULL), 0);
    assert_int_equal(s->get_value(s, "secret", out, sizeof out, NULL), 3);
    assert_memory_equal(out, "a\0b", 3);
    assert_int_equal(s->get_value(s, "empty", NULL, 0, NULL), 0);
    assert_int_equal(s->get_value(s, "secret", out, 2, &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
    assert_int_equal(s->put_value(s, "secret", "12345678", 8, NULL), 0);
    assert_int_equal(s->get_value(s, "secret", out, sizeof out, NULL), 8);
    assert_memory_equal(out, "12345678", 8);
    s->free(s);
}

/* Threads. */

struct worker {
    struct store *store;
    uint64_t first;
    int failures;
};

enum { THREADS = 6, EACH = 150 };

static void *write_and_read(void *arg)
{
    struct worker *w = arg;
    struct store *s = w->store;

    for (uint64_t i = 0; i < EACH; i++) {
        struct process_row r = process_of(w->first + i, "one");
        w->failures += s->put_process(s, &r, NULL) != 0;
        struct session_row session = {.id = i % 2 ? "odd" : "even", .created_ms = i};
        w->failures += s->put_session(s, &session, NULL) != 0;

        if (i % 50 == 0) {
            struct tally t = {0};
            w->failures += s->each_process(s, tally_process, &t, NULL) != 0;
            w->failures += t.count == 0;
            struct key_row k = {.id = "shared", .hash = {1}, .tenant = "t", .last_used_ms = i};
            w->failures += s->put_key(s, &k, NULL) != 0;
            w->failures += s->version(s) < 0;
        }
        if (i % 3 == 0)
            w->failures += s->delete_process(s, r.id, NULL) != 0;
    }

    return NULL;
}

static void test_threads_may_do_everything_at_once(void **state)
{
    struct store *s = open_or_fail(((struct place *)*state)->dir, 1);
    pthread_t threads[THREADS];
    struct worker workers[THREADS];

    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.store = s, .first = (uint64_t)(i + 1) * 100000};
        assert_int_equal(pthread_create(&threads[i], NULL, write_and_read, &workers[i]), 0);
    }

    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].failures, 0);
    }
    assert_int_equal(count_processes(s).count, THREADS * EACH * 2 / 3);
    assert_int_equal(count_sessions(s), 2);
    s->free(s);
}

/* Times, for people; nothing here fails for being slow. */

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void test_ten_thousand_rows_are_put_and_loaded(void **state)
{
    struct place *p = *state;
    struct store *s = open_or_fail(p->dir, 1);
    enum { ROWS = 10000 };
    uint64_t *put = calloc(ROWS, sizeof *put), *end = calloc(ROWS, sizeof *end);
    char session[8][21];
    for (int i = 0; i < 8; i++)
        snprintf(session[i], sizeof session[i], "session%013d", i);

    for (uint64_t i = 0; i < ROWS; i++) {
        struct process_row r = process_of(i + 1, session[i % 8]);
        random_bytes(r.id, sizeof r.id);
        uint64_t t0 = clock_now();
        assert_int_equal(s->put_process(s, &r, NULL), 0);
        uint64_t t1 = clock_now();
        r.exited = 1;
        assert_int_equal(s->put_process(s, &r, NULL), 0);
        put[i] = t1 - t0;
        end[i] = clock_now() - t1;
    }

    qsort(put, ROWS, sizeof *put, by_value);
    qsort(end, ROWS, sizeof *end, by_value);
    print_message("# put_process: new p50 %.1f p99 %.1f max %.0f us, again p50 %.1f p99 %.1f us\n",
                  (double)put[ROWS / 2] / 1e3, (double)put[ROWS * 99 / 100] / 1e3,
                  (double)put[ROWS - 1] / 1e3, (double)end[ROWS / 2] / 1e3,
                  (double)end[ROWS * 99 / 100] / 1e3);
    free(put);
    free(end);

    s->free(s);
    uint64_t t0 = clock_now();
    s = open_or_fail(p->dir, 1);

    uint64_t t1 = clock_now();
    struct tally t = count_processes(s);
    print_message("# open and check %.1f ms, load %d rows %.1f ms\n", (double)(t1 - t0) / 1e6, ROWS,
                  (double)(clock_now() - t1) / 1e6);
    assert_int_equal(t.count, ROWS);
    assert_true(t.in_order);
    s->free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PLACED(test_a_session_comes_back_as_it_was),
        cmocka_unit_test(test_what_is_not_given_is_empty),
        cmocka_unit_test(test_a_process_is_put_and_replaced),
        cmocka_unit_test(test_snapshots_are_put_replaced_and_deleted),
        cmocka_unit_test(test_a_session_takes_its_processes_with_it),
        cmocka_unit_test(test_rows_come_oldest_first_and_callbacks_may_stop_or_write),
        cmocka_unit_test(test_a_revoked_key_stays_revoked),
        cmocka_unit_test(test_values_are_kept_by_name),
        PLACED(test_threads_may_do_everything_at_once),
        PLACED(test_ten_thousand_rows_are_put_and_loaded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
