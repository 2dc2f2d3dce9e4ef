/* program_check: a program that is started with all that a server may do must be the operator's
 * alone. Each refusal has the same program, which is fine, as its control. */
#include "unit.h"

#include "base/beside.h"
#include "base/err.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

struct place {
    char dir[64], inner[80], program[96];
};

static int setup(void **state)
{
    static struct place p;

    snprintf(p.dir, sizeof p.dir, "/tmp/paddock-program-XXXXXX");
    assert_non_null(mkdtemp(p.dir));
    snprintf(p.inner, sizeof p.inner, "%s/bin", p.dir);
    assert_int_equal(mkdir(p.inner, 0755), 0);
    snprintf(p.program, sizeof p.program, "%s/program", p.inner);
    int fd = open(p.program, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(chmod(p.program, 0755), 0); /* whatever the umask is */
    assert_int_equal(chmod(p.inner, 0755), 0);
    *state = &p;
    return 0;
}

static int teardown(void **state)
{
    const struct place *p = *state;
    char command[128];

    snprintf(command, sizeof command, "rm -r '%s'", p->dir);
    return system(command);
}

static void expect_fine(const char *path)
{
    struct pd_err e = {.msg = ""};
    if (program_check(path, &e) < 0)
        fail_msg("%s", e.msg);
}

static void expect_refused(const char *path, enum pd_code code, const char *says)
{
    struct pd_err e;
    assert_int_equal(program_check(path, &e), -1);
    if (e.code != code || !strstr(e.msg, says))
        fail_msg("%s: '%s'", pd_code_name(e.code), e.msg);
}

static void test_a_program_of_ours(void **state)
{
    const struct place *p = *state;
    expect_fine(p->program); /* also below /tmp: its sticky bit lets nobody replace ours */
}

static void test_paths(void **state)
{
    const struct place *p = *state;
    char link[128], dots[128];

    expect_refused("bin/program", PD_INVALID, "absolute");
    expect_refused("", PD_INVALID, "absolute");
    expect_refused("/nowhere/program", PD_NOT_FOUND, "/nowhere/program");

    /* A link may point elsewhere tomorrow; the error has the path to use. */
    snprintf(link, sizeof link, "%s/link", p->dir);
    assert_int_equal(symlink(p->program, link), 0);
    expect_refused(link, PD_INVALID, p->program);
    snprintf(dots, sizeof dots, "%s/../bin/program", p->inner);
    expect_refused(dots, PD_INVALID, p->program);
    expect_fine(p->program);
}

static void test_what_cannot_be_started(void **state)
{
    const struct place *p = *state;

    expect_refused(p->inner, PD_INVALID, "no program");
    assert_int_equal(chmod(p->program, 0644), 0);
    expect_refused(p->program, PD_INVALID, "no program");
    assert_int_equal(chmod(p->program, 0755), 0);
    expect_fine(p->program);
}

/* The file itself, the directory that has it, and one above. */
static void test_what_others_may_change(void **state)
{
    const struct place *p = *state;
    const char *const parts[] = {p->program, p->inner, p->dir};

    for (unsigned i = 0; i < 3; i++) {
        const unsigned open_to[] = {0775, 0757, 0777};
        for (unsigned m = 0; m < 3; m++) {
            assert_int_equal(chmod(parts[i], open_to[m]), 0);
            expect_refused(p->program, PD_DENIED, parts[i]);
        }
        assert_int_equal(chmod(parts[i], 0755), 0);
        expect_fine(p->program);
    }

    /* The sticky bit of a directory protects what is ours in it; of a file it means nothing. */
    assert_int_equal(chmod(p->inner, 01777), 0);
    expect_fine(p->program);
    assert_int_equal(chmod(p->program, 01777), 0);
    expect_refused(p->program, PD_DENIED, p->program);
}

static void test_another_users(void **state)
{
    const struct place *p = *state;
    if (geteuid() != 0)
        skip();

    const char *const parts[] = {p->program, p->inner, p->dir};
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(chown(parts[i], 12345, 12345), 0);
        expect_refused(p->program, PD_DENIED, parts[i]);
        assert_int_equal(chown(parts[i], 0, 0), 0);
        expect_fine(p->program);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_program_of_ours, setup, teardown),
        cmocka_unit_test_setup_teardown(test_paths, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_started, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_others_may_change, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_users, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
