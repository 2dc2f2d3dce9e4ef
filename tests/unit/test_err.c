#include "unit.h"

#include "base/err.h"

#include <errno.h>

static void test_fail_sets_code_and_message_and_returns_minus_one(void **state)
{
    (void)state;
    struct pd_err e = {.sys = 77};
    assert_int_equal(pd_fail(&e, PD_INVALID, "port %d out of range", 99999), -1);
    assert_int_equal(e.code, PD_INVALID);
    assert_int_equal(e.sys, 0);
    assert_string_equal(e.msg, "port 99999 out of range");
}

static void test_null_is_accepted_everywhere(void **state)
{
    (void)state;
    errno = EIO;
    assert_int_equal(pd_fail(NULL, PD_INVALID, "x"), -1);
    assert_int_equal(pd_fail_sys(NULL, "x"), -1);
    assert_int_equal(pd_wrap(NULL, "x"), -1);
}

static void test_fail_sys_keeps_errno_and_appends_its_text(void **state)
{
    (void)state;
    struct pd_err e = {0};
    errno = ENOENT;
    assert_int_equal(pd_fail_sys(&e, "open %s", "/nowhere"), -1);
    assert_int_equal(e.code, PD_NOT_FOUND);
    assert_int_equal(e.sys, ENOENT);
    assert_string_equal(e.msg, "open /nowhere: No such file or directory");
}

static void test_fail_sys_derives_the_code(void **state)
{
    (void)state;
    static const struct {
        int sys;
        enum pd_code code;
    } rows[] = {
        {EPERM, PD_DENIED},      {EACCES, PD_DENIED},      {ENOENT, PD_NOT_FOUND},
        {EEXIST, PD_CONFLICT},   {ENOSPC, PD_NO_SPACE},    {EDQUOT, PD_NO_SPACE},
        {EAGAIN, PD_CAPACITY},   {ENOMEM, PD_CAPACITY},    {EMFILE, PD_CAPACITY},
        {ETIMEDOUT, PD_TIMEOUT}, {ENOSYS, PD_UNSUPPORTED}, {EOPNOTSUPP, PD_UNSUPPORTED},
        {EIO, PD_INTERNAL},      {EINVAL, PD_INTERNAL},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct pd_err e = {0};
        errno = rows[i].sys;
        pd_fail_sys(&e, "x");
        assert_int_equal(e.code, rows[i].code);
    }
}

static void test_wrap_prepends_and_keeps_code_and_errno(void **state)
{
    (void)state;
    struct pd_err e = {0};
    errno = EACCES;
    pd_fail_sys(&e, "open a");
    assert_int_equal(pd_wrap(&e, "create sandbox %d", 7), -1);
    assert_string_equal(e.msg, "create sandbox 7: open a: Permission denied");
    assert_int_equal(e.code, PD_DENIED);
    assert_int_equal(e.sys, EACCES);
}

/* A message that is too long is cut, never unterminated, and the struct beside it stays whole. */
static void test_long_messages_are_cut_at_the_end(void **state)
{
    (void)state;
    char text[1000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    struct {
        struct pd_err e;
        char guard[16];
    } s;
    memset(&s, 'g', sizeof s);

    pd_fail(&s.e, PD_LOST, "%s", text);
    assert_int_equal(strlen(s.e.msg), sizeof s.e.msg - 1);
    errno = ENOENT;
    pd_fail_sys(&s.e, "%s", text);
    assert_int_equal(strlen(s.e.msg), sizeof s.e.msg - 1);
    pd_wrap(&s.e, "%s", text);
    assert_int_equal(strlen(s.e.msg), sizeof s.e.msg - 1);
    assert_int_equal(s.e.code, PD_NOT_FOUND);
    for (size_t i = 0; i < sizeof s.guard; i++)
        assert_int_equal(s.guard[i], 'g');
}

static void test_context_in_front_of_a_full_message_keeps_the_context(void **state)
{
    (void)state;
    struct pd_err e = {0};
    char text[300];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    pd_fail(&e, PD_INVALID, "%s", text);
    pd_wrap(&e, "context");
    assert_memory_equal(e.msg, "context: aaa", 12);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
}

/* Just enough room for the message, none for the text of errno. */
static void test_fail_sys_at_the_edge_stays_terminated(void **state)
{
    (void)state;
    for (int len = 230; len <= 250; len++) {
        struct pd_err e = {0};
        errno = EIO;
        pd_fail_sys(&e, "%*s", len, "x");
        assert_true(strlen(e.msg) < sizeof e.msg);
        assert_int_equal(e.sys, EIO);
    }
}

static void test_every_code_has_a_whole_row(void **state)
{
    (void)state;
    for (int c = 0; c < PD_CODE_COUNT; c++) {
        assert_non_null(pd_code_name(c));
        assert_non_null(pd_code_connect(c));
        assert_in_range(pd_code_http(c), 400, 599);
        assert_in_range(pd_code_exit(c), 2, 127);
        assert_in_range(pd_code_retryable(c), 0, 1);
        for (int other = 0; other < c; other++)
            assert_string_not_equal(pd_code_name(c), pd_code_name(other));
    }
}

static void test_exit_statuses_are_the_documented_ones(void **state)
{
    (void)state;
    assert_int_equal(pd_code_exit(PD_INVALID), 2);
    assert_int_equal(pd_code_exit(PD_TIMEOUT), 124);
    assert_int_equal(pd_code_exit(PD_ISOLATION), 125);
    assert_int_equal(pd_code_exit(PD_NOT_EXECUTABLE), 126);
    assert_int_equal(pd_code_exit(PD_NO_COMMAND), 127);
}

static void test_a_number_that_is_no_code_counts_as_internal(void **state)
{
    (void)state;
    static const int foreign[] = {PD_CODE_COUNT, -1, 1000000};
    for (size_t i = 0; i < COUNT(foreign); i++) {
        enum pd_code code = (enum pd_code)foreign[i];
        assert_string_equal(pd_code_name(code), "internal");
        assert_int_equal(pd_code_http(code), 500);
        assert_int_equal(pd_code_exit(code), 125);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fail_sets_code_and_message_and_returns_minus_one),
        cmocka_unit_test(test_null_is_accepted_everywhere),
        cmocka_unit_test(test_fail_sys_keeps_errno_and_appends_its_text),
        cmocka_unit_test(test_fail_sys_derives_the_code),
        cmocka_unit_test(test_wrap_prepends_and_keeps_code_and_errno),
        cmocka_unit_test(test_long_messages_are_cut_at_the_end),
        cmocka_unit_test(test_context_in_front_of_a_full_message_keeps_the_context),
        cmocka_unit_test(test_fail_sys_at_the_edge_stays_terminated),
        cmocka_unit_test(test_every_code_has_a_whole_row),
        cmocka_unit_test(test_exit_statuses_are_the_documented_ones),
        cmocka_unit_test(test_a_number_that_is_no_code_counts_as_internal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
