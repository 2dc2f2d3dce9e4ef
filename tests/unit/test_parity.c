/* What counts as the same result, by vectors; and what is counted. */
#include "unit.h"

#include "base/buf.h"
#include "base/json.h"
#include "router/parity.h"

#include <string.h>

static struct parity_result result(int code, const char *out, const char *err)
{
    return (struct parity_result){
        .exit_code = code,
        .output = {{out, strlen(out), strlen(out)}, {err, strlen(err), strlen(err)}},
        .workspace = "/workspace",
        .home = "/home/user",
        .has_tree = true};
}

static void test_what_is_the_same(void **state)
{
    (void)state;
    static const struct {
        int code[2];
        const char *out[2], *err[2];
        unsigned differs;
    } rows[] = {
        {{0, 0}, {"", ""}, {"", ""}, 0},
        {{0, 0}, {"a\n", "a\n"}, {"b\n", "b\n"}, 0},
        {{0, 1}, {"a\n", "a\n"}, {"", ""}, PARITY_EXIT},
        {{0, 0}, {"a\n", "b\n"}, {"", ""}, PARITY_STDOUT},
        {{0, 0}, {"a\n", "a"}, {"", ""}, PARITY_STDOUT},
        {{0, 0}, {"a\n", ""}, {"", "a\n"}, PARITY_STDOUT | PARITY_STDERR},
        {{1, 2}, {"a", "b"}, {"c", "d"}, PARITY_EXIT | PARITY_STDOUT | PARITY_STDERR},
        /* Blanks at the end of a line, and its end. */
        {{0, 0}, {"a \t\r\nb\n", "a\nb \n"}, {"", ""}, 0},
        {{0, 0}, {" a\n", "a\n"}, {"", ""}, PARITY_STDOUT},
        /* The box's own places, and nothing that only looks like them. */
        {{0, 0}, {"/workspace/x\n", "/data/7/work/x\n"}, {"", ""}, 0},
        {{0, 0}, {"in /home/user.", "in /data/7/home."}, {"", ""}, PARITY_STDOUT},
        {{0, 0}, {"'/home/user'", "'/data/7/home'"}, {"", ""}, 0},
        {{0, 0}, {"/workspace", "/home/user"}, {"", ""}, 0},
        {{0, 0}, {"/workspaces", "/data/7/works"}, {"", ""}, PARITY_STDOUT},
        {{0, 0}, {"x/workspace", "x/data/7/work"}, {"", ""}, PARITY_STDOUT},
        /* How a shell names itself. */
        {{0, 0}, {"", ""}, {"bash: line 1: x: y\n", "/bin/bash: line 3: x: y\n"}, 0},
        {{0, 0}, {"", ""}, {"bash: x\n", "sh: 1: x\n"}, 0},
        {{0, 0}, {"", ""}, {"bash: line x\n", "bash: x\n"}, PARITY_STDERR},
        {{0, 0}, {"", ""}, {"ksh: x\n", "bash: x\n"}, PARITY_STDERR},
        {{0, 0}, {"bash: line 1: x", "bash: line 2: x"}, {"", ""}, PARITY_STDOUT},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct parity_result a = result(rows[i].code[0], rows[i].out[0], rows[i].err[0]);
        struct parity_result b = result(rows[i].code[1], rows[i].out[1], rows[i].err[1]);
        b.workspace = "/data/7/work";
        b.home = "/data/7/home";
        if (parity_compare(&a, &b) != rows[i].differs || parity_compare(&b, &a) != rows[i].differs)
            fail_msg("row %zu: %u, not %u", i, parity_compare(&a, &b), rows[i].differs);
        assert_int_equal(parity_compare(&a, &a), 0);
        assert_int_equal(parity_compare(&b, &b), 0);
    }
}

static void test_signals_and_time(void **state)
{
    (void)state;
    struct parity_result a = result(-1, "", ""), b = a;
    a.signal = 9;
    b.signal = 11;
    assert_int_equal(parity_compare(&a, &b), PARITY_EXIT);
    b.timed_out = true;
    assert_int_equal(parity_compare(&a, &b), PARITY_TIME | PARITY_UNSEEN);
}

static void test_files(void **state)
{
    (void)state;
    struct parity_result a = result(0, "", ""), b = a;
    struct parity p = {0};

    b.tree[PARITY_TREE_SIZE - 1] = 1;
    assert_int_equal(parity_compare(&a, &b), PARITY_FILES);
    parity_note(&p, PARITY_COMPARED, PARITY_FILES);
    assert_true(p.equal == 0 && p.files == 1 && p.unseen == 0);

    b.has_tree = false; /* what was not seen is no difference */
    assert_int_equal(parity_compare(&a, &b), PARITY_UNSEEN);
    assert_int_equal(parity_compare(&b, &a), PARITY_UNSEEN);
    assert_int_equal(parity_compare(&b, &b), PARITY_UNSEEN);
    parity_note(&p, PARITY_COMPARED, PARITY_UNSEEN);
    assert_true(p.equal == 1 && p.files == 1 && p.unseen == 1);

    b.exit_code = 1;
    assert_int_equal(parity_compare(&a, &b), PARITY_UNSEEN | PARITY_EXIT);
}

/* Of more than is kept the common beginning counts. */
static void test_long_output(void **state)
{
    (void)state;
    static char one[PARITY_OUTPUT_MAX], other[PARITY_OUTPUT_MAX];
    memset(one, 'x', sizeof one);
    memset(other, 'x', sizeof other);
    struct parity_result a = result(0, "", ""), b = a;
    a.output[0] = (struct parity_output){one, sizeof one, 1u << 20};
    b.output[0] = (struct parity_output){other, sizeof other, 1u << 20};

    assert_int_equal(parity_compare(&a, &b), 0);
    other[30000] = 'y';
    assert_int_equal(parity_compare(&a, &b), PARITY_STDOUT);
    other[30000] = 'x';
    b.output[0].size = sizeof other;
    assert_int_equal(parity_compare(&a, &b), PARITY_STDOUT);
}

static void test_the_score(void **state)
{
    (void)state;
    struct parity p = {0};
    struct router_shadow s = {.name = "try", .provider = "docker"};
    auto_buf out = BUF_INIT(4096), metrics = BUF_INIT(4096), none = BUF_INIT(4096);
    struct json j = JSON_INIT(&out);

    for (unsigned i = 0; i < 7; i++)
        parity_note(&p, PARITY_COMPARED, 0);
    parity_note(&p, PARITY_COMPARED, PARITY_EXIT | PARITY_STDERR);
    parity_note(&p, PARITY_SKIPPED, 0);
    parity_note(&p, PARITY_GIVEN_UP, 0);
    parity_json(&p, &s, &j);
    assert_string_equal(buf_cstr(&out),
                        "{\"name\":\"try\",\"provider\":\"docker\",\"compared\":8,\"skipped\":1,"
                        "\"dropped\":0,\"failed\":0,\"given_up\":1,\"equal\":7,\"files_unseen\":0,"
                        "\"score\":0.875,\"differ\":{\"exit\":1,\"stdout\":0,\"stderr\":1,"
                        "\"time\":0,\"files\":0}}");

    parity_metrics(&p, &s, &metrics);
    assert_non_null(strstr(buf_cstr(&metrics), "paddock_shadow_commands_total{provider=\"docker\","
                                               "result=\"different\"} 1\n"));
    parity_metrics(&p, &(struct router_shadow){.name = ""}, &none);
    assert_int_equal(none.len, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_the_same),
        cmocka_unit_test(test_signals_and_time),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_long_output),
        cmocka_unit_test(test_the_score),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
