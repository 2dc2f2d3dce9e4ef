/* The table of languages: every name and short form is found, nothing else is, and each row can be
 * started. */
#include "unit.h"

#include "contexts/languages.h"

#include <string.h>

static const struct context_language *find(const char *name)
{
    return context_language_find(name, strlen(name));
}

static void test_names_and_short_forms_are_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < context_language_count(); i++) {
        const struct context_language *l = context_language_at(i);
        assert_ptr_equal(find(l->name), l);
        for (const char *const *a = l->aliases; *a; a++)
            assert_ptr_equal(find(*a), l);
    }
}

static void test_capitals_and_blanks_do_not_matter(void **state)
{
    (void)state;
    static const char *const names[] = {"Python", " python\t", "PY", "\npython3 "};
    for (size_t i = 0; i < COUNT(names); i++)
        assert_string_equal(find(names[i])->name, "python");
}

static void test_other_names_are_none(void **state)
{
    (void)state;
    static const char *const names[] = {"", " ", "pytho", "python4", "cobol", "py thon"};
    for (size_t i = 0; i < COUNT(names); i++)
        assert_null(find(names[i]));
    assert_null(context_language_find("python", 5));
}

static void test_rows_are_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < context_language_count(); i++) {
        const struct context_language *l = context_language_at(i);
        assert_non_null(l->argv[0]);
        assert_non_null(l->missing);
        assert_true(l->driver_end - l->driver > 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_and_short_forms_are_found),
        cmocka_unit_test(test_capitals_and_blanks_do_not_matter),
        cmocka_unit_test(test_other_names_are_none),
        cmocka_unit_test(test_rows_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
