#include "unit.h"

#include "base/err.h"
#include "core/session_state.h"

static int parse(const char *text, size_t len, char *cwd, struct msg_list_writer *env)
{
    struct pd_err e;
    *env = MSG_LIST_WRITER_INIT;
    cwd[0] = 0;
    return shell_state_parse(text, len, cwd, SPEC_PATH_MAX, env, &e);
}

static void test_directory_and_variables_are_read(void **state)
{
    (void)state;
    static const char text[] = "/tmp/a b\0"
                               "declare -x FOO=\"bar\"\n"
                               "declare -x EMPTY=\"\"\n"
                               "declare -x QUOTED=\"a \\\"b\\\" \\$c \\`d\\` \\\\e\"\n"
                               "declare -x LINES2=\"one\ntwo\"\n"
                               "declare -x CONTROL=$'a\\tb\\033[0m\\'q'\n"
                               "declare -xr READONLY=\"yes\"\n"
                               "declare -x UNSET\n";

    char cwd[SPEC_PATH_MAX];
    struct msg_list_writer env;
    assert_int_equal(parse(text, sizeof text, cwd, &env), 0);
    assert_string_equal(cwd, "/tmp/a b");

    struct msg_list l = msg_list_of(&env);
    static const char *const expected[] = {"FOO=bar",
                                           "EMPTY=",
                                           "QUOTED=a \"b\" $c `d` \\e",
                                           "LINES2=one\ntwo",
                                           "CONTROL=a\tb\033[0m'q",
                                           "READONLY=yes"};
    assert_int_equal(l.count, COUNT(expected));

    uint32_t pos = 0;
    for (size_t i = 0; i < COUNT(expected); i++)
        assert_string_equal(msg_list_next(&l, &pos), expected[i]);
    msg_list_writer_done(&env);
}

static void test_variables_of_another_shell_are_read(void **state)
{
    (void)state;
    static const char text[] = "/usr\0"
                               "export A='1'\n"
                               "export B='b c'\"'\"'d'\n"
                               "export C=''\n"
                               "export D='x\ny'\n"
                               "export E\n"
                               "export F='$`\"\\z'\n"
                               "export G=''\"''\"\n"
                               "export LD_PRELOAD='/tmp/x.so'\n"
                               "export PWD='/usr'\n";
    static const char *const expected[] = {"A=1", "B=b c'd", "C=", "D=x\ny", "F=$`\"\\z", "G=''"};
    char cwd[SPEC_PATH_MAX];
    struct msg_list_writer env;

    assert_int_equal(parse(text, sizeof text, cwd, &env), 0);
    assert_string_equal(cwd, "/usr");
    struct msg_list l = msg_list_of(&env);
    assert_int_equal(l.count, COUNT(expected));
    uint32_t pos = 0;
    for (size_t i = 0; i < COUNT(expected); i++)
        assert_string_equal(msg_list_next(&l, &pos), expected[i]);
    msg_list_writer_done(&env);
}

static void test_what_loads_programs_is_never_kept(void **state)
{
    (void)state;
    static const char text[] = "/\0"
                               "declare -x LD_PRELOAD=\"/tmp/x.so\"\n"
                               "declare -x LD_LIBRARY_PATH=\"/tmp\"\n"
                               "declare -x BASH_ENV=\"/tmp/x\"\n"
                               "declare -x PADDOCK_API_KEY=\"x\"\n"
                               "declare -x GLIBC_TUNABLES=\"x\"\n"
                               "declare -x PWD=\"/\"\n"
                               "declare -x SHLVL=\"1\"\n"
                               "declare -x _=\"x\"\n"
                               "declare -x KEPT=\"1\"\n";

    char cwd[SPEC_PATH_MAX];
    struct msg_list_writer env;
    assert_int_equal(parse(text, sizeof text, cwd, &env), 0);

    struct msg_list l = msg_list_of(&env);
    uint32_t pos = 0;
    assert_int_equal(l.count, 1);
    assert_string_equal(msg_list_next(&l, &pos), "KEPT=1");
    msg_list_writer_done(&env);
}

static void test_malformed_state_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len;
    } rows[] = {
#define ROW(t) {t, sizeof t - 1}
        ROW(""),
        ROW("/tmp"),
        ROW("tmp\0\0"),
        ROW("\0\0"),
        ROW("/tmp\0"),
        ROW("/tmp\0declare -x A=\"b\"\n"),     /* not complete */
        ROW("/tmp\0declare -x A=\"b\0"),       /* no end of the quotes */
        ROW("/tmp\0declare -x A=b\n\0"),       /* not quoted */
        ROW("/tmp\0declare -x 1A=\"b\"\n\0"),  /* no name */
        ROW("/tmp\0declare -x A-B=\"b\"\n\0"), /* no name */
        ROW("/tmp\0declare -x A=\"b\" C\n\0"), /* something behind it */
        ROW("/tmp\0rm -rf /\n\0"),             /* something else */
        ROW("/tmp\0declare -x A=$'\\0'\n\0"),  /* a NUL */
        ROW("/tmp\0declare -x A=$'\n\0"),
        ROW("/tmp\0export A='b\0"),       /* no end of the quotes */
        ROW("/tmp\0export A='b'\"'\0"),   /* nor of the second ones */
        ROW("/tmp\0export A=b\n\0"),      /* not quoted */
        ROW("/tmp\0export A=\"b\"\n\0"),  /* double quotes around something else */
        ROW("/tmp\0export A=\n\0"),       /* nothing */
        ROW("/tmp\0export 1A='b'\n\0"),   /* no name */
        ROW("/tmp\0export A='b' C\n\0"),  /* something behind it */
        ROW("/tmp\0export -x A='b'\n\0"), /* no name */
        ROW("/tmp\0export \0"),
#undef ROW
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        char cwd[SPEC_PATH_MAX];
        struct msg_list_writer env;
        if (parse(rows[i].text, rows[i].len, cwd, &env) != -1)
            fail_msg("row %zu was accepted", i);
        msg_list_writer_done(&env);
    }
}

static void test_script_keeps_the_command_as_it_is(void **state)
{
    (void)state;
    struct buf out = BUF_INIT(4096);
    for (int is_bash = 0; is_bash < 2; is_bash++) {
        out.len = 0;
        assert_int_equal(shell_script("echo 'x'\n# y", is_bash, &out), 0);
        const char *text = (const char *)out.data;
        assert_non_null(strstr(text, "trap '"));
        assert_string_equal(strchr(text, '\n') + 1, "echo 'x'\n# y");
    }
    buf_done(&out);
}

static void test_a_line_with_our_descriptor_tells_nothing(void **state)
{
    (void)state;
    assert_true(shell_tells("exec 9>/tmp/lock; echo 8 >x", false));
    assert_false(shell_tells("exec 8>/tmp/lock", false));
    assert_false(shell_tells("read x 8</tmp/lock", false));
    assert_true(shell_tells("exec 8>/tmp/lock", true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_directory_and_variables_are_read),
        cmocka_unit_test(test_variables_of_another_shell_are_read),
        cmocka_unit_test(test_what_loads_programs_is_never_kept),
        cmocka_unit_test(test_malformed_state_is_refused),
        cmocka_unit_test(test_script_keeps_the_command_as_it_is),
        cmocka_unit_test(test_a_line_with_our_descriptor_tells_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
