/* Steps of a build: which are taken, where their paths lead, and what their keys stand for. */
#include "unit.h"

#include "base/banned.h"
#include "base/err.h"
#include "build/plan.h"

static const char hash[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/* Adds a step of words that have NULL behind the last. */
static int add(struct build_plan *p, const char *type, const char *files, const char *const *words,
               struct pd_err *e)
{
    struct msg_list_writer args = MSG_LIST_WRITER_INIT;
    for (; *words; words++)
        assert_int_equal(msg_list_add(&args, *words), 0);
    struct msg_list list = msg_list_of(&args);
    int r = plan_add_step(p, type, &list, files, false, e);
    msg_list_writer_done(&args);
    return r;
}
#define ADD(p, type, files, ...) add(p, type, files, (const char *const[]){__VA_ARGS__, NULL}, &e)

static void test_steps_that_are_taken_and_refused(void **state)
{
    (void)state;
    struct pd_err e;
    auto_plan p = plan_new();
    assert_non_null(p);

    assert_int_equal(ADD(p, "run", NULL, "echo"), 0);
    assert_int_equal(ADD(p, "RUN", NULL, "echo", "root"), 0);
    assert_int_equal(ADD(p, "COPY", hash, "a/b*", "c/", "user:user", "0644"), 0);
    assert_int_equal(ADD(p, "ENV", NULL, "A", "", "_b1", "x y"), 0);
    assert_int_equal(ADD(p, "WORKDIR", NULL, "x"), 0);
    assert_int_equal(ADD(p, "USER", NULL, "root", "true"), 0);
    assert_int_equal(p->count, 6);
    assert_string_equal(step_kind_name(p->steps[2].kind), "COPY");
    assert_string_equal(p->steps[2].files, hash);

    static const struct {
        const char *type, *files, *words[5];
    } bad[] = {{"ADD", NULL, {"a", "b"}},
               {"RUN", NULL, {""}},
               {"RUN", NULL, {"a", "b", "c"}},
               {"RUN", hash, {"a"}},
               {"ENV", NULL, {"A"}},
               {"ENV", NULL, {"1A", "x"}},
               {"ENV", NULL, {"A=B", "x"}},
               {"ENV", NULL, {"", "x"}},
               {"COPY", NULL, {"a", "b"}},
               {"COPY", "abc", {"a", "b"}},
               {"COPY", hash, {"/a", "b"}},
               {"COPY", hash, {"a/../../b", "b"}},
               {"COPY", hash, {"a*/../..", "b"}},
               {"COPY", hash, {"a", ""}},
               {"COPY", hash, {"a", "b", "a b"}},
               {"COPY", hash, {"a", "b", "-r"}},
               {"COPY", hash, {"a", "b", "", "8"}},
               {"COPY", hash, {"a", "b", "", "u+x"}},
               {"WORKDIR", NULL, {""}},
               {"WORKDIR", NULL, {"a", "b"}},
               {"USER", NULL, {""}}};
    for (size_t i = 0; i < COUNT(bad); i++)
        if (add(p, bad[i].type, bad[i].files, bad[i].words, &e) == 0)
            fail_msg("taken, though it is wrong: number %zu", i);
    assert_int_equal(p->count, 6);

    while (p->count < PLAN_STEPS_MAX)
        assert_int_equal(ADD(p, "RUN", NULL, "x"), 0);
    assert_int_equal(ADD(p, "RUN", NULL, "x"), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
}

static void test_paths(void **state)
{
    (void)state;
    static const struct {
        const char *from, *path, *is;
    } good[] = {{"/a", "b", "/a/b"},
                {"/a", "/b/./c//d/", "/b/c/d"},
                {"/a/b", "../c", "/a/c"},
                {"/", "../../..", "/"},
                {"/a", ".", "/a"},
                {"/a", "", "/a"},
                {"/a/b", "../../../x", "/x"},
                {"/", "..a/...", "/..a/..."}};
    static const struct {
        const char *source, *is;
    } sources[] = {{"a/b", "a/b"},     {"./a//b/", "a/b"}, {"a/*.c", "a"}, {"*", ""},
                   {"a/{b,c}/d", "a"}, {".", ""},          {"a/b?", "a"},  {"[ab]/c", ""}};
    char out[SPEC_PATH_MAX], longest[SPEC_PATH_MAX + 10];
    struct pd_err e;

    for (size_t i = 0; i < COUNT(good); i++) {
        assert_int_equal(plan_path(good[i].from, good[i].path, out, &e), 0);
        assert_string_equal(out, good[i].is);
    }
    for (size_t i = 0; i < COUNT(sources); i++) {
        assert_int_equal(plan_source(sources[i].source, out, &e), 0);
        assert_string_equal(out, sources[i].is);
    }
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(plan_path("/", longest, out, &e), -1);
    assert_int_equal(plan_source(longest, out, &e), -1);
    assert_int_equal(plan_source("..", out, &e), -1);
    assert_int_equal(plan_source("a/..", out, &e), -1);
}

static void test_names(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "A1", "a.b_c-d", "0"};
    static const char *const bad[] = {"", "-a", ".a", "_a", "a b", "a/b", "a:b", "\xc3\xa4"};
    for (size_t i = 0; i < COUNT(good); i++)
        assert_true(plan_is_name(good[i], strlen(good[i])));
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(plan_is_name(bad[i], strlen(bad[i])));
}

/* The key of the last of two steps. */
static void key_of(const char *base, const char *const *one, const char *const *two,
                   const char *digest, char ret[SHA256_HEX_SIZE])
{
    struct pd_err e;
    char key[SHA256_HEX_SIZE];
    auto_plan p = plan_new();
    snprintf(p->base, sizeof p->base, "%s", base);
    assert_int_equal(add(p, "RUN", NULL, one, &e), 0);
    assert_int_equal(add(p, "ENV", NULL, two, &e), 0);
    snprintf(p->steps[1].digest, sizeof p->steps[1].digest, "%s", digest);
    plan_key_base(p, key);
    for (unsigned i = 0; i < p->count; i++)
        plan_key_step(&p->steps[i], key, key);
    memcpy(ret, key, SHA256_HEX_SIZE);
}

static void test_a_key_stands_for_everything_before_it(void **state)
{
    (void)state;
    static const char *const run[] = {"ab", NULL}, *const other[] = {"a", "b", NULL},
                             *const env[] = {"A", "x", NULL}, *const empty[] = {"A", "", NULL},
                             *const two[] = {"A", "", "x", "", NULL};
    char first[SHA256_HEX_SIZE], key[SHA256_HEX_SIZE];

    key_of("base", run, env, "", first);
    key_of("base", run, env, "", key);
    assert_string_equal(key, first);

    key_of("base2", run, env, "", key);
    assert_string_not_equal(key, first);
    key_of("base", other, env, "", key);
    assert_string_not_equal(key, first);
    key_of("base", run, empty, "", key);
    assert_string_not_equal(key, first);
    key_of("base", run, two, "", key);
    assert_string_not_equal(key, first);
    key_of("base", run, env, "00", key);
    assert_string_not_equal(key, first);
}

static void test_what_holds_is_written_and_read(void **state)
{
    (void)state;
    struct build_context c = BUILD_CONTEXT_INIT, got = BUILD_CONTEXT_INIT;
    auto_buf text = BUF_INIT(1u << 20), again = BUF_INIT(1u << 20);
    struct pd_err e;

    assert_int_equal(build_context_set(&c, "A", "1", &e), 0);
    assert_int_equal(build_context_set(&c, "AB", "x=\"y\"\n", &e), 0);
    assert_int_equal(build_context_set(&c, "A", "2", &e), 0);
    assert_int_equal(msg_list_of(&c.env).count, 2);
    assert_int_equal(build_context_write(&c, &text), 0);
    assert_int_equal(build_context_read(&got, buf_cstr(&text)), 0);
    assert_int_equal(build_context_write(&got, &again), 0);
    assert_string_equal(buf_cstr(&again), buf_cstr(&text));
    assert_int_equal(build_context_read(&got, "{}"), -1);
    assert_int_equal(build_context_read(&got, "[1"), -1);

    char *longest = calloc(1, PLAN_ENV_MAX + 1);
    memset(longest, 'x', PLAN_ENV_MAX);
    assert_int_equal(build_context_set(&c, "B", longest, &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
    assert_int_equal(msg_list_of(&c.env).count, 2);
    free(longest);
    build_context_done(&c);
    build_context_done(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_that_are_taken_and_refused),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_a_key_stands_for_everything_before_it),
        cmocka_unit_test(test_what_holds_is_written_and_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
