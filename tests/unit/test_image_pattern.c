/* Which images a pattern of `images_allowed` means, by vectors: what it is made of, what it lets
 * through, and what comes near and is not meant. */
#include "unit.h"

#include "base/err.h"
#include "wire/image_pattern.h"
#include "wire/image_ref.h"

#include <string.h>

#define DIGEST "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void test_patterns(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *image;
        bool meant;
    } v[] = {
        {"debian", "debian", true},
        {"debian", "docker.io/debian:12", true},
        {"debian", "docker.io/library/debian@" DIGEST, true},
        {"debian", "debian:12@" DIGEST, true},
        {"debian", "debian-evil", false},
        {"debian", "evil/debian", false},
        {"debian", "docker.io:443/library/debian", false},
        {"debian", "evil.io/library/debian", false},
        {"debian", "localhost/library/debian", false},
        {"debian", "Docker.io/library/debian", false},
        {"docker.io/library/*", "busybox:1", true},
        {"docker.io/library/*", "a/busybox", false},
        {"docker.io/library/*", "library.evil.io/busybox", false},
        {"docker.io/library/", "busybox", true},
        {"docker.io/", "a/b/c", true},
        {"docker.io/*", "quay.io/docker.io/x", false},
        {"a/*", "a/b/c", true},
        {"a/*", "docker.io/a/b", true},
        {"a/*", "b/a/c", false},
        {"deb*", "debian", true},
        {"deb*", "x/debian", false},
        {"r.example/team", "r.example/team", true},
        {"r.example/team", "r.example/team/x/y:1", true},
        {"r.example/team", "r.example/teams", false},
        {"r.example/team", "r.example/team-b/x", false},
        {"r.example/team", "r.example:5000/team", false},
        {"r.example/team", "r.example", false},
        {"r.example:5000/team/*", "r.example:5000/team/x@" DIGEST, true},
        {"r.example:5000/team/*", "r.example:500/team/x", false},
        {"r.example:5000/team/*", "r.example/team/x", false},
        {"r.example:5000/team/*", "r.example:5000/team", false},
        {"*.example/team", "a.example/team/x", true},
        {"*.example/team", "evil.io/a.example/team", false},
        {"*.example/team", "a.example.evil.io/team", false},
        {"localhost/*", "localhost/x", true},
        {"localhost/*", "localhost:1/x", false},
        {"[::1]:5000/x", "[::1]:5000/x", true},
        {"*/team/*", "r.example/team/x", true},
        {"*/team/*", "r.example/a/team/x", false},
        {"*", "r.example:1/a/b@" DIGEST, true},
        {"a/*b*c", "a/xxbxxbxc", true},
        {"a/*b*c", "a/xxcxxb", false},
    };

    for (size_t i = 0; i < COUNT(v); i++) {
        struct image_pattern p;
        struct image_ref r;
        struct pd_err e;
        if (image_pattern_parse(v[i].pattern, &p, &e) < 0 ||
            image_ref_parse(v[i].image, &r, &e) < 0)
            fail_msg("%s, %s: %s", v[i].pattern, v[i].image, e.msg);
        if (image_pattern_matches(&p, &r) != v[i].meant)
            fail_msg("%s %s %s", v[i].pattern, v[i].meant ? "does not mean" : "means", v[i].image);
    }
}

static void test_bad_patterns_are_named(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",        "/",     "/a",        "a//b",       "a/../b",           "DEBIAN",
        "r.io",    "r:1",   "debian:12", "a/b:1",      ("r.io/a@" DIGEST), "r.io/A",
        "r.io//a", "a b",   "a/[b]",     "a/?",        "r.io/..",          "r io.x/a",
        "a/\xff",  "a/b\n", "-r.io?/a",  "r.io/a%2fb",
    };

    for (size_t i = 0; i < COUNT(bad); i++) {
        struct image_pattern p;
        struct pd_err e;
        if (image_pattern_parse(bad[i], &p, &e) == 0)
            fail_msg("'%s' was taken for a pattern", bad[i]);
        assert_int_equal(e.code, PD_INVALID);
        assert_non_null(strstr(e.msg, "registry.example:5000/team/*"));
    }

    char longest[700];
    struct image_pattern p;
    struct pd_err e;
    memset(longest, 'a', sizeof longest);
    longest[699] = 0;
    assert_int_equal(image_pattern_parse(longest, &p, &e), -1);
    longest[300] = '.';
    longest[301] = '/';
    assert_int_equal(image_pattern_parse(longest, &p, &e), -1);
    longest[300] = longest[301] = 'a';
    longest[255 - strlen("library/")] = 0;
    assert_int_equal(image_pattern_parse(longest, &p, &e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_bad_patterns_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
