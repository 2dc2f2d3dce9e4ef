#include "unit.h"

#include "cli/doctor_text.h"

#include <stdio.h>
#include <string.h>

static void expect_version(const char *release, unsigned major, unsigned minor)
{
    unsigned a = 99, b = 99;
    text_kernel_version(release, &a, &b);
    assert_int_equal(a, major);
    assert_int_equal(b, minor);
}

static void test_kernel_versions_are_read(void **state)
{
    (void)state;
    expect_version("6.1.0-18-amd64", 6, 1);
    expect_version("5.15.167.4-microsoft-standard-WSL2", 5, 15);
    expect_version("6.18.44", 6, 18);
    expect_version("10.0", 10, 0);
    expect_version("6.8-rc1", 6, 8);
}

static void test_what_is_no_version_is_zero(void **state)
{
    (void)state;
    expect_version("", 0, 0);
    expect_version("6", 0, 0);
    expect_version("6.", 0, 0);
    expect_version(".1", 0, 0);
    expect_version("v6.1", 0, 0);
    expect_version("99999999999999999999.1", 0, 0);
    expect_version("6.99999999999999999999", 0, 0);
}

static const char debian[] = "23 28 0:21 / /sys rw - sysfs sysfs rw\n"
                             "24 28 0:22 / /proc rw - proc proc rw\n"
                             "28 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
                             "33 24 0:30 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw\n";
static const char docker[] = "501 400 0:40 / / rw - overlay overlay rw\n"
                             "502 501 0:41 / /proc rw - proc proc rw\n"
                             "503 502 0:41 /bus /proc/bus ro - proc proc rw\n"
                             "504 502 0:42 / /proc/kcore rw - tmpfs tmpfs rw\n"
                             "505 502 0:42 / /proc/keys rw - tmpfs tmpfs rw";

static void test_covered_places_of_proc_are_counted(void **state)
{
    (void)state;
    assert_int_equal(text_masked_proc(debian), 0);
    assert_int_equal(text_masked_proc(docker), 3);
    assert_int_equal(text_masked_proc("1 2 0:1 / /process/x rw - tmpfs t rw\n"), 0);
}

static void test_a_chroot_has_no_mount_at_its_root(void **state)
{
    (void)state;
    assert_int_equal(text_has_root_mount(debian), 1);
    assert_int_equal(text_has_root_mount(docker), 1);
    assert_int_equal(text_has_root_mount("24 28 0:22 / /proc rw - proc proc rw\n"), 0);
}

static void test_broken_mount_tables_are_no_trouble(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "\n", "\n\n\n", "1", "1 2 3 4", "1 2 3 4 ", "    /"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(text_masked_proc(texts[i]), 0);
        (void)text_has_root_mount(texts[i]);
    }

    /* A short line must not borrow fields from the next one. */
    assert_int_equal(text_has_root_mount("1 2 3\n4 / / x\n"), 0);

    /* Every way to cut a table short. */
    for (size_t n = 0; n < sizeof docker; n++) {
        char cut[sizeof docker];
        memcpy(cut, docker, n);
        cut[n] = 0;
        assert_true(text_masked_proc(cut) <= 3);
    }
}

static void test_container_engines_are_known_by_their_cgroups(void **state)
{
    (void)state;
    assert_string_equal(text_container_engine("0::/docker/0123abc\n"), "docker");
    assert_string_equal(text_container_engine("0::/machine.slice/libpod-01.scope\n"), "podman");
    assert_string_equal(text_container_engine("4:memory:/lxc/web\n"), "lxc");
    assert_string_equal(text_container_engine("0::/kubepods.slice/x\n"), "kubernetes");
    assert_null(text_container_engine("0::/init.scope\n"));
    assert_null(text_container_engine(""));
}

static void expect_line(const char *text, int r, const char *name, int worked, const char *detail)
{
    char line[128];
    const char *n = NULL, *d = NULL;
    int w = -1;

    snprintf(line, sizeof line, "%s", text);
    assert_int_equal(text_probe_line(line, &n, &w, &d), r);
    if (r < 0) {
        assert_null(n);
        assert_int_equal(w, -1);
        return;
    }
    assert_string_equal(n, name);
    assert_int_equal(w, worked);
    assert_string_equal(d, detail);
}

static void test_values_are_found_by_their_names(void **state)
{
    (void)state;
    static const char text[] = "version 20.10\nversions 3\n\nempty \nnone\nlast yes";
    char out[8];

    assert_true(text_value(text, "version", out, sizeof out));
    assert_string_equal(out, "20.10");
    assert_true(text_value(text, "versions", out, 2));
    assert_string_equal(out, "3");
    assert_true(text_value(text, "empty", out, sizeof out));
    assert_string_equal(out, "");
    assert_true(text_value(text, "last", out, 3));
    assert_string_equal(out, "ye");

    assert_false(text_value(text, "none", out, sizeof out));
    assert_false(text_value(text, "ersion", out, sizeof out));
    assert_false(text_value("", "version", out, sizeof out));
}

static void test_lines_of_the_probe_are_taken_apart(void **state)
{
    (void)state;
    expect_line("mount held Operation not permitted", 0, "mount", 0, "Operation not permitted");
    expect_line("keyring broken -", 0, "keyring", 1, "-");
    expect_line("x held ", 0, "x", 0, "");
}

static void test_other_lines_are_refused(void **state)
{
    (void)state;
    expect_line("", -1, NULL, 0, NULL);
    expect_line("mount", -1, NULL, 0, NULL);
    expect_line("mount held", -1, NULL, 0, NULL);
    expect_line(" held x", -1, NULL, 0, NULL);
    expect_line("mount hold x", -1, NULL, 0, NULL);
    expect_line("paddock: something went wrong", -1, NULL, 0, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernel_versions_are_read),
        cmocka_unit_test(test_what_is_no_version_is_zero),
        cmocka_unit_test(test_covered_places_of_proc_are_counted),
        cmocka_unit_test(test_a_chroot_has_no_mount_at_its_root),
        cmocka_unit_test(test_broken_mount_tables_are_no_trouble),
        cmocka_unit_test(test_container_engines_are_known_by_their_cgroups),
        cmocka_unit_test(test_values_are_found_by_their_names),
        cmocka_unit_test(test_lines_of_the_probe_are_taken_apart),
        cmocka_unit_test(test_other_lines_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
