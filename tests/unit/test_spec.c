#include "unit.h"

#include "base/err.h"
#include "wire/spec.h"

#include <string.h>

static int check(const struct spec *s)
{
    struct pd_err e = {.msg = ""};
    int r = spec_check(s, &e);
    if (r < 0) {
        assert_int_equal(e.code, PD_INVALID);
        assert_true(strlen(e.msg) > 10);
    }
    return r;
}

static void test_the_default_is_valid(void **state)
{
    (void)state;
    struct spec s = SPEC_DEFAULT;
    assert_int_equal(check(&s), 0);
}

static void test_every_limit_has_a_range(void **state)
{
    (void)state;
    struct spec s = SPEC_DEFAULT;
    const struct {
        uint64_t *field, min, max;
    } rows[] = {
        {&s.limits.memory, SPEC_MEMORY_MIN, SPEC_MEMORY_MAX},
        {&s.limits.pids, SPEC_PIDS_MIN, SPEC_PIDS_MAX},
        {&s.limits.cpu_milli, SPEC_CPU_MIN, SPEC_CPU_MAX},
        {&s.limits.disk, SPEC_DISK_MIN, SPEC_DISK_MAX},
        {&s.limits.files, SPEC_FILES_MIN, SPEC_FILES_MAX},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        uint64_t usual = *rows[i].field;
        const struct {
            uint64_t value;
            int result;
        } values[] = {{rows[i].min, 0},      {rows[i].max, 0}, {rows[i].min - 1, -1},
                      {rows[i].max + 1, -1}, {0, -1},          {UINT64_MAX, -1},
                      {INT64_MAX, -1},       {1ULL << 63, -1}};
        for (size_t k = 0; k < COUNT(values); k++) {
            *rows[i].field = values[k].value;
            assert_int_equal(check(&s), values[k].result);
        }
        *rows[i].field = usual;
    }
}

static void test_enums_are_checked(void **state)
{
    (void)state;
    struct spec s = SPEC_DEFAULT;
    s.profile = PROFILE_COUNT;
    assert_int_equal(check(&s), -1);
    s = SPEC_DEFAULT;
    s.network = NETWORK_COUNT;
    assert_int_equal(check(&s), -1);
    s = SPEC_DEFAULT;
    s.min_rung = RUNG_COUNT;
    assert_int_equal(check(&s), -1);
}

static void test_names_of_roots(void **state)
{
    (void)state;
    static const char *const good[] = {
        "a",
        "0",
        "a.b",
        "a..",
        "_",
        "build-2.1_x",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

    static const char *const bad[] = {
        ".",
        "..",
        ".hidden",
        "-x",
        "A",
        "a/b",
        "/",
        "a b",
        "a\n",
        "\xc3",
        "a:b",
        "a,b",
        "a*",
        "~",
        "a\\",
        "../x",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

    struct spec s = SPEC_DEFAULT;
    for (size_t i = 0; i < COUNT(good); i++) {
        s.root_name = good[i];
        if (check(&s))
            fail_msg("'%s' is refused", good[i]);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        s.root_name = bad[i];
        if (!check(&s))
            fail_msg("'%s' is accepted", bad[i]);
    }
}

static int check_bind(const char *source, const char *target)
{
    struct spec s = SPEC_DEFAULT;
    s.binds[0] = (struct spec_bind){source, target, 0};
    s.bind_count = 1;
    return check(&s);
}

/* What makes the jail must not be covered, however the path is spelled. */
static void test_targets_of_binds(void **state)
{
    (void)state;
    static const char *const good[] = {"/data",     "/data/x", "/a.b",    "/...",
                                       "/..a",      "/data/",  "//data",  "/processes",
                                       "/device/x", "/sysv",   "/x/proc", "/a/dev/b"};
    static const char *const bad[] = {
        "",       "data",    "/",      "//",     "/proc",       "/proc/",   "/proc/self", "/sys",
        "/dev",   "/dev/",   "/dev/x", "//proc", "///dev/null", "//sys//",  "/.",         "/..",
        "/./dev", "/a/../b", "/a/..",  "/a/./b", "/a/.",        "//./proc", "/a//../dev"};

    for (size_t i = 0; i < COUNT(good); i++)
        if (check_bind("/srv", good[i]))
            fail_msg("'%s' is refused", good[i]);
    for (size_t i = 0; i < COUNT(bad); i++)
        if (!check_bind("/srv", bad[i]))
            fail_msg("'%s' is accepted", bad[i]);
}

static void test_sources_are_absolute_and_not_too_long(void **state)
{
    (void)state;
    static char longest[SPEC_PATH_MAX + 2];
    memset(longest, 'x', sizeof longest);
    longest[0] = '/';
    longest[SPEC_PATH_MAX + 1] = 0;
    assert_int_equal(check_bind(longest, "/data"), -1);
    assert_int_equal(check_bind("/srv", longest), -1);

    longest[SPEC_PATH_MAX] = 0;
    assert_int_equal(check_bind(longest, "/data"), 0);
    assert_int_equal(check_bind("srv", "/data"), -1);
    assert_int_equal(check_bind("", "/data"), -1);

    struct spec s = SPEC_DEFAULT;
    s.root_dir = "srv";
    assert_int_equal(check(&s), -1);
    s.root_dir = "/srv";
    assert_int_equal(check(&s), 0);
}

static void test_the_number_of_binds_is_checked_before_they_are_read(void **state)
{
    (void)state;
    struct spec s = SPEC_DEFAULT;
    for (int i = 0; i < SPEC_BINDS_MAX; i++)
        s.binds[i] = (struct spec_bind){"/srv", "/data", 0};
    s.bind_count = SPEC_BINDS_MAX;
    assert_int_equal(check(&s), 0);
    s.bind_count = SPEC_BINDS_MAX + 1;
    assert_int_equal(check(&s), -1);
    s.bind_count = UINT32_MAX;
    assert_int_equal(check(&s), -1);
}

static void test_names_are_found_and_listed(void **state)
{
    (void)state;
    enum profile p = PROFILE_STRICT;
    enum network n = NETWORK_NONE;
    enum rung r = RUNG_NONE;
    struct pd_err e;

    assert_int_equal(profile_parse("--profile", "dev", &p, &e), 0);
    assert_int_equal(p, PROFILE_DEV);
    assert_int_equal(profile_parse("--profile", "restricted", &p, &e), 0);
    assert_int_equal(p, PROFILE_RESTRICTED);
    assert_int_equal(profile_parse("--profile", "dev", &p, &e), 0);
    assert_int_equal(network_parse("--network", "host", &n, &e), 0);
    assert_int_equal(n, NETWORK_HOST);
    assert_int_equal(rung_parse("--min-isolation", "full", &r, &e), 0);
    assert_int_equal(r, RUNG_FULL);
    for (int i = 0; i < RUNG_COUNT; i++) {
        assert_int_equal(rung_parse("x", rung_name((enum rung)i), &r, &e), 0);
        assert_int_equal(r, i);
    }
    assert_int_equal(rung_parse("--min-isolation", "FULL", &r, &e), -1);
    assert_string_equal(e.msg, "--min-isolation: 'FULL' is not one of: none, basic, full");
    assert_int_equal(profile_parse("--profile", "", &p, &e), -1);
    assert_int_equal(p, PROFILE_DEV);
    assert_string_equal(profile_name(PROFILE_COUNT), "?");
    assert_string_equal(network_name((enum network) - 1), "?");
    assert_string_equal(rung_name(RUNG_COUNT), "?");
}

static void test_images_and_options(void **state)
{
    (void)state;
    char longest[SPEC_OPTIONS_MAX + 2];
    static const char *const images[] = {"", "busybox", "a/b:1", "host:5000/a@sha256:00ff"};
    static const char *const bad_images[] = {"-x", "a b", "a\n", "\x7f", "\xc3\xa4", " "};
    static const char *const bad_options[] = {"x", "{", "[]", "{} ", " {}"};
    struct spec s = SPEC_DEFAULT;

    for (size_t i = 0; i < COUNT(images); i++) {
        s.image = images[i];
        assert_int_equal(check(&s), 0);
    }
    for (size_t i = 0; i < COUNT(bad_images); i++) {
        s.image = bad_images[i];
        assert_int_equal(check(&s), -1);
    }

    memset(longest, 'a', sizeof longest);
    longest[SPEC_IMAGE_MAX] = 0;
    /* The files of a sandbox, whichever way they are named; and what only looks like them. */
    static const char *const kept[] = {"paddock-root-1:a", "docker.io/library/paddock-root-1",
                                       "localhost:5000/x/paddock-root-1@sha256:00",
                                       "PADDOCK-ROOT-1"};
    struct pd_err e;
    static const char *const others[] = {"paddock-roots:1", "paddock-root/x", "x/paddock:root-1"};
    for (size_t i = 0; i < COUNT(kept); i++) {
        s.image = kept[i];
        assert_int_equal(spec_check(&s, &e), -1);
        assert_int_equal(e.code, PD_DENIED);
        assert_non_null(strstr(e.msg, kept[i]));
    }
    for (size_t i = 0; i < COUNT(others); i++) {
        s.image = others[i];
        assert_int_equal(spec_check(&s, &e), 0);
    }

    s.image = longest;
    assert_int_equal(check(&s), 0);
    longest[SPEC_IMAGE_MAX] = 'a';
    longest[SPEC_IMAGE_MAX + 1] = 0;
    assert_int_equal(check(&s), -1);

    s.image = "";
    s.options = "{\"a\":1}";
    assert_int_equal(check(&s), 0);
    for (size_t i = 0; i < COUNT(bad_options); i++) {
        s.options = bad_options[i];
        assert_int_equal(check(&s), -1);
    }
    memset(longest, ' ', sizeof longest);
    longest[0] = '{';
    longest[SPEC_OPTIONS_MAX - 1] = '}';
    longest[SPEC_OPTIONS_MAX] = 0;
    s.options = longest;
    assert_int_equal(check(&s), 0);
    longest[SPEC_OPTIONS_MAX] = '}';
    longest[SPEC_OPTIONS_MAX + 1] = 0;
    assert_int_equal(check(&s), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_default_is_valid),
        cmocka_unit_test(test_every_limit_has_a_range),
        cmocka_unit_test(test_enums_are_checked),
        cmocka_unit_test(test_names_of_roots),
        cmocka_unit_test(test_images_and_options),
        cmocka_unit_test(test_targets_of_binds),
        cmocka_unit_test(test_sources_are_absolute_and_not_too_long),
        cmocka_unit_test(test_the_number_of_binds_is_checked_before_they_are_read),
        cmocka_unit_test(test_names_are_found_and_listed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
