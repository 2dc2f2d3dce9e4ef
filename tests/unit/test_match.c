/* Patterns: globs, literals, regular expressions. */
#include "unit.h"

#include "base/clock.h"
#include "base/err.h"
#include "init/match.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_globs(void **state)
{
    static const struct {
        const char *glob, *path;
        int fits;
    } rows[] = {
        {"*.c", "a.c", 1},
        {"*.c", "a.h", 0},
        {"*.c", "d/a.c", 0},
        {"*", "", 1},
        {"*", "abc", 1},
        {"?", "", 0},
        {"?", "a", 1},
        {"?", "/", 0},
        {"a?c", "abc", 1},
        {"**/*.c", "a.c", 1},
        {"**/*.c", "d/a.c", 1},
        {"**/*.c", "d/e/f/a.c", 1},
        {"**/*.c", "d/a.h", 0},
        {"src/**", "src/a", 1},
        {"src/**", "src/a/b", 1},
        {"src/**", "lib/a", 0},
        {"src/**/x", "src/x", 1},
        {"src/**/x", "src/a/b/x", 1},
        {"src/**/x", "src/ax", 0},
        {"**", "a/b/c", 1},
        {"a**", "a/b/c", 1},
        {"**/b/**", "a/b/c", 1},
        {"**/b/**", "a/c/d", 0},
        {"[abc]", "b", 1},
        {"[!abc]", "b", 0},
        {"[!abc]", "d", 1},
        {"[a-c]x", "bx", 1},
        {"[]]", "]", 1},
        {"[a", "[a", 1},
        {"[a", "a", 0},
        {"\\*", "*", 1},
        {"\\*", "a", 0},
        {"a*b*c", "axxbyyc", 1},
        {"a*b*c", "axxbyy", 0},
        {"*a*a*a*", "aaa", 1},
        {"*a*a*a*", "aa", 0},
        {"", "", 1},
        {"", "a", 0},
        {"a", "", 0},
        {"a/*/c", "a/b/c", 1},
        {"a/*/c", "a/b/d/c", 0},
        {"**/", "a/", 1},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        if (glob_match(rows[i].glob, rows[i].path) != rows[i].fits)
            fail_msg("'%s' and '%s': not %d", rows[i].glob, rows[i].path, rows[i].fits);
}

/* A glob that makes naive programs count for ever. */
static void test_a_glob_takes_bounded_time(void **state)
{
    (void)state;
    char glob[400] = "", *path = malloc(4001);
    for (int i = 0; i < 60; i++)
        memcpy(glob + 5 * i, "*a**b", 6);
    memset(path, 'a', 4000);
    path[4000] = 0;
    uint64_t start = clock_now();
    assert_int_equal(glob_match(glob, path), 0);
    assert_true(clock_now() - start < 10 * NS_PER_S);
    free(path);
}

static void test_finding(void **state)
{
    static const struct {
        const char *mode, *pattern;
        int any_case;
        const char *text;
        size_t from;
        long start, end; /* -1: none */
    } rows[] = {
        {"literal", "b", 0, "abcb", 0, 1, 2},      {"literal", "b", 0, "abcb", 2, 3, 4},
        {"literal", "B", 0, "abcb", 0, -1, -1},    {"literal", "B", 1, "abcb", 0, 1, 2},
        {"literal", "abc", 1, "xABCx", 0, 1, 4},   {"literal", "abcd", 0, "abc", 0, -1, -1},
        {"literal", "a.c", 0, "abc a.c", 0, 4, 7}, {"regex", "a.c", 0, "abc", 0, 0, 3},
        {"regex", "^b", 0, "ab\nb", 0, 3, 4},      {"regex", "^b", 0, "bb", 1, -1, -1},
        {"regex", "a$", 0, "a\nb", 0, 0, 1},       {"regex", "[a-z]+", 1, "12AB3", 0, 2, 4},
        {"regex", "a|b", 0, "xxb", 0, 2, 3},       {"regex", "x*", 0, "aaa", 1, 1, 1},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct matcher m;
        struct span at[MATCH_GROUPS];
        struct pd_err e = {.msg = ""};
        if (matcher_init(&m, rows[i].mode, rows[i].pattern, rows[i].any_case, &e) < 0)
            fail_msg("%s: %s", rows[i].pattern, e.msg);
        int found = matcher_find(&m, rows[i].text, strlen(rows[i].text), rows[i].from, at);
        if (found != (rows[i].start >= 0) ||
            (found && ((long)at[0].start != rows[i].start || (long)at[0].end != rows[i].end)))
            fail_msg("row %zu: '%s' in '%s'", i, rows[i].pattern, rows[i].text);
        matcher_done(&m);
    }
}

static void test_names(void **state)
{
    (void)state;
    struct matcher m;
    struct pd_err e;
    assert_int_equal(matcher_init(&m, "name", "*.PY", 1, &e), 0);
    assert_true(matcher_name(&m, "a.py"));
    assert_false(matcher_name(&m, "a.pyc"));
    assert_int_equal(matcher_init(&m, "name", "read", 0, &e), 0);
    assert_true(matcher_name(&m, "readme"));
    assert_false(matcher_name(&m, "README"));
    assert_int_equal(matcher_init(&m, "name", "read", 1, &e), 0);
    assert_true(matcher_name(&m, "README"));
}

static void test_patterns_that_are_none(void **state)
{
    static const struct {
        const char *mode, *pattern, *word;
    } rows[] = {
        {"literal", "", "empty"}, {"regex", "", "empty"},    {"regex", "(", "regular expression"},
        {"regex", "[a", "'[a'"},  {"fuzzy", "a", "literal"},
    };
    (void)state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct matcher m;
        struct pd_err e = {.msg = ""};
        assert_int_equal(matcher_init(&m, rows[i].mode, rows[i].pattern, 0, &e), -1);
        assert_int_equal(e.code, PD_INVALID);
        assert_non_null(strstr(e.msg, rows[i].word));
        matcher_done(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_globs),
        cmocka_unit_test(test_a_glob_takes_bounded_time),
        cmocka_unit_test(test_finding),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_patterns_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
