/* Code contexts of libpaddock: cells, their events, contexts of one's own, and who leaves a cell.
 */
#include "lib_sandbox.h"

#include <paddock.h>

#include <pthread.h>
#include <string.h>

/* ---- cells ---- */

struct heard {
    char text[8192];            /* the events, a line each */
    const char *stop_at;        /* leave at an event that has this; or NULL */
    struct paddock_cancel *use; /* cancel at the start; or NULL */
};

static int hear(void *arg, const char *json, size_t len)
{
    struct heard *h = arg;
    size_t at = strlen(h->text);

    snprintf(h->text + at, sizeof h->text - at, "%.*s\n", (int)len, json);
    if (h->use)
        paddock_cancel(h->use);
    return h->stop_at && strstr(h->text + at, h->stop_at);
}

static int run(struct paddock_sandbox *s, const char *context, const char *code, struct heard *h,
               struct paddock_error *e)
{
    struct paddock_cell c = {.size = sizeof c,
                             .context = context,
                             .code = code,
                             .code_len = strlen(code),
                             .timeout_ms = 60000,
                             .cancel = h->use,
                             .on_event = hear,
                             .arg = h};
    return paddock_run_cell(s, &c, e);
}

/* Runs a cell, whose events must have all of these texts. */
static void expect(struct paddock_sandbox *s, const char *context, const char *code,
                   const char *const *texts)
{
    struct paddock_error e;
    struct heard h = {0};

    if (run(s, context, code, &h, &e) < 0)
        fail_msg("%s: %s: %s", code, e.code, e.message);
    for (; *texts; texts++)
        if (!strstr(h.text, *texts))
            fail_msg("%s: no '%s' in %s", code, *texts, h.text);
}
#define EXPECT(s, context, code, ...)                                                              \
    expect(s, context, code, (const char *const[]){__VA_ARGS__, NULL})

static void test_variables_stay_from_cell_to_cell(void **state)
{
    (void)state;
    struct paddock_sandbox *s = make();

    EXPECT(s, NULL, "x = 6", "{\"type\":\"start\"", "{\"type\":\"end\",\"state\":\"kept\"");
    EXPECT(s, "python", "print('out')\nx * 7", "\"type\":\"stdout\",\"text\":\"out\\n\"",
           "\"type\":\"result\",\"text\":\"42\"", "\"execution_count\":2");
    EXPECT(s, "python", "missing", "\"name\":\"NameError\"", "\"state\":\"kept\"");
    end(s);
}

static void test_contexts_are_made_listed_and_ended(void **state)
{
    (void)state;
    struct paddock_sandbox *s = make();
    struct paddock_error e;
    const char *const env[] = {"OWN=1", NULL};
    struct paddock_context_options o = {.size = sizeof o, .cwd = "/tmp", .env = env};
    char *text, id[64] = "";

    assert_int_equal(paddock_context_create(s, &o, &text, &e), 0);
    assert_non_null(strstr(text, "\"cwd\":\"/tmp\""));
    assert_int_equal(sscanf(text, "{\"id\":\"%63[a-z0-9]\"", id), 1);
    paddock_free(text);

    EXPECT(s, id, "import os; z = 5; os.getcwd(), os.environ['OWN']", "('/tmp', '1')");
    EXPECT(s, NULL, "z", "NameError");
    assert_int_equal(paddock_context_list(s, &text, &e), 0);
    assert_non_null(strstr(text, id));
    paddock_free(text);

    assert_int_equal(paddock_context_interrupt(s, id, &e), 0);
    assert_int_equal(paddock_context_restart(s, id, NULL, &e), 0);
    EXPECT(s, id, "z", "NameError");
    assert_int_equal(paddock_context_delete(s, id, &e), 0);

    struct heard h = {0};
    assert_int_equal(run(s, id, "1", &h, &e), -1);
    assert_string_equal(e.code, "not_found");
    assert_non_null(strstr(e.message, id));
    end(s);
}

static void test_who_leaves_a_cell_interrupts_it(void **state)
{
    (void)state;
    struct paddock_sandbox *s = make();
    struct paddock_error e;
    struct heard leaves = {.stop_at = "begun"};

    EXPECT(s, NULL, "kept = 5", "\"state\":\"kept\"");
    const char *slow = "import time\nprint('begun', flush=True)\ntime.sleep(600)";
    assert_int_equal(run(s, NULL, slow, &leaves, &e), -1);
    assert_string_equal(e.code, "cancelled");
    EXPECT(s, NULL, "kept", "\"text\":\"5\"");

    struct heard cancels = {.use = paddock_cancel_new(&e)};
    assert_non_null(cancels.use);
    assert_int_equal(run(s, NULL, slow, &cancels, &e), -1);
    assert_string_equal(e.code, "cancelled");
    paddock_cancel_free(cancels.use);
    EXPECT(s, NULL, "kept", "\"text\":\"5\"");
    end(s);
}

static void test_forks_and_undo(void **state)
{
    (void)state;
    struct paddock_sandbox *s = make();
    struct paddock_error e;
    char *text, id[64] = "";

    assert_int_equal(paddock_context_undo(s, "python", NULL, &e), -1);
    assert_string_equal(e.code, "conflict");
    EXPECT(s, NULL, "x = [1]", "\"state\":\"kept\"");
    assert_int_equal(paddock_context_fork(s, "python", 0, &text, &e), 0);
    assert_int_equal(sscanf(text, "{\"id\":\"%63[a-z0-9]\"", id), 1);
    paddock_free(text);
    EXPECT(s, id, "x.append(2); x", "[1, 2]");

    const char code[] = "x.append(3)";
    struct paddock_cell c = {
        .size = sizeof c, .code = code, .code_len = sizeof code - 1, .keep_before = 1};
    assert_int_equal(paddock_run_cell(s, &c, &e), 0);
    EXPECT(s, NULL, "x", "[1, 3]");
    assert_int_equal(paddock_context_undo(s, "python", NULL, &e), 0);
    EXPECT(s, NULL, "x", "\"text\":\"[1]\"");
    end(s);
}

static void test_what_is_wrong_is_named(void **state)
{
    (void)state;
    struct paddock_sandbox *s = make();
    struct paddock_error e;
    struct paddock_cell none = {.size = sizeof none};
    struct paddock_context_options o = {.size = sizeof o, .language = "c++"};

    assert_int_equal(paddock_run_cell(s, &none, &e), -1);
    assert_string_equal(e.code, "invalid");
    assert_non_null(strstr(e.message, "code"));
    none.size = 3;
    assert_int_equal(paddock_run_cell(s, &none, &e), -1);
    assert_non_null(strstr(e.message, "size"));
    assert_int_equal(paddock_context_create(s, &o, NULL, &e), -1);
    assert_non_null(strstr(e.message, "c++"));
    end(s);
}

static void *run_one(void *arg)
{
    struct paddock_error e;
    struct heard h = {0};
    return (void *)(intptr_t)run(arg, NULL, "m = n\nn = m + 1", &h, &e);
}

static void test_cells_of_many_threads_come_one_after_the_other(void **state)
{
    (void)state;
    struct paddock_sandbox *s = make();
    pthread_t threads[8];

    EXPECT(s, NULL, "n = 0", "\"state\":\"kept\"");
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_one, s), 0);
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_null(result);
    }
    EXPECT(s, NULL, "n", "\"text\":\"8\"");
    end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variables_stay_from_cell_to_cell),
        cmocka_unit_test(test_contexts_are_made_listed_and_ended),
        cmocka_unit_test(test_who_leaves_a_cell_interrupts_it),
        cmocka_unit_test(test_forks_and_undo),
        cmocka_unit_test(test_what_is_wrong_is_named),
        cmocka_unit_test(test_cells_of_many_threads_come_one_after_the_other),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
