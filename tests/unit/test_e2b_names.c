#include "unit.h"

#include "api/e2b.h"
#include "api/e2b_handlers.h"

#include "base/banned.h"

#include <string.h>

static void name_is(const char *text, const char *expected)
{
    char out[SNAPSHOT_NAME_MAX + 1] = "untouched";
    struct pd_err e = {0};
    if (!expected) {
        assert_int_equal(e2b_snapshot_name("acme", text, out, &e), -1);
        assert_int_equal(e.code, PD_INVALID);
        assert_string_equal(out, "untouched");
        return;
    }
    if (e2b_snapshot_name("acme", text, out, &e) < 0)
        fail_msg("%s: %s", text, e.msg);
    assert_string_equal(out, expected);
}

static void test_names_of_snapshots(void **state)
{
    (void)state;
    static const char longest[] = "abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz0";
    char text[200], expected[200];

    name_is("mine", "mine");
    name_is("mine:default", "mine");
    name_is("acme/mine", "mine");
    name_is("acme/mine:default", "mine");
    name_is("acme/mine:v1.2", "mine:v1.2");
    name_is("A-b_c.d", "A-b_c.d");
    snprintf(text, sizeof text, "acme/%s:%s", longest, longest);
    snprintf(expected, sizeof expected, "%s:%s", longest, longest);
    name_is(text, expected);
    snprintf(text, sizeof text, "x%s", longest);
    name_is(text, NULL);

    static const char *const wrong[] = {"",         ":",      "/",       "mine:",    ":v1",
                                        "acme/",    "/mine",  "a/b/c",   "acm/mine", "acmee/mine",
                                        "mine:a:b", "a b",    "../mine", "mine\n",   "m\xc3\xa4n",
                                        "acme/a/b", "mine/v1"};
    for (size_t i = 0; i < COUNT(wrong); i++)
        name_is(wrong[i], NULL);
}

static void path_is(const char *user, const char *path, const char *expected)
{
    char out[FILE_PATH_SIZE];
    struct pd_err e = {0};
    if (e2b_path(user, path, out, &e) < 0)
        fail_msg("%s: %s", path, e.msg);
    assert_string_equal(out, expected);
}

static void test_paths(void **state)
{
    (void)state;
    path_is("user", "", "/home/user");
    path_is("user", "~", "/home/user");
    path_is("user", "~/x", "/home/user/x");
    path_is("user", "~x", "/home/user/~x");
    path_is("user", "a/b", "/home/user/a/b");
    path_is("user", "/etc", "/etc");
    path_is("root", "~", "/root");
    path_is("root", "a", "/root/a");

    char longest[FILE_PATH_MAX + 2], out[FILE_PATH_SIZE];
    struct pd_err e = {0};
    memset(longest, 'a', sizeof longest);
    longest[0] = '/';
    longest[FILE_PATH_MAX] = 0;
    assert_int_equal(e2b_path("user", longest, out, &e), 0);

    longest[FILE_PATH_MAX] = 'a';
    longest[FILE_PATH_MAX + 1] = 0;
    assert_int_equal(e2b_path("user", longest, out, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
}

static int user_of(const char *authorization, const char *query, char out[FILE_USER_SIZE],
                   struct pd_err *e)
{
    struct request r = {.query = slice_of(query)};
    struct call c = {.r = &r};
    if (authorization) {
        r.head.headers[0].name = slice_of("authorization");
        r.head.headers[0].value = slice_of(authorization);
        r.head.header_count = 1;
    }
    return e2b_user(&c, out, e);
}

static void test_users(void **state)
{
    (void)state;
    static const struct {
        const char *authorization, *query, *user;
    } rows[] = {
        {NULL, "", "user"},
        {NULL, "username=root", "root"},
        {NULL, "username=user&path=x", "user"},
        {NULL, "username=", "user"},
        {NULL, "username=daemon", NULL},
        {NULL, "username=root%00x", NULL},
        {NULL, "username=root&username=user", NULL},
        {"Basic cm9vdDo=", "", "root"},
        {"basic cm9vdDo=", "", "root"},
        {"Basic dXNlcjpwYXNz", "", "user"},
        {"Basic cm9vdDo=", "username=user", "root"},
        {"Basic Og==", "", "user"},
        {"Basic ZGFlbW9uOg==", "", NULL},
        {"Basic cm9vdAB4Og==", "", NULL},
        {"Basic !!!!", "", NULL},
        {"Basic ", "", NULL},
        {"Bearer cm9vdDo=", "", NULL},
        {"", "", NULL},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        char out[FILE_USER_SIZE] = "";
        struct pd_err e = {0};
        int r = user_of(rows[i].authorization, rows[i].query, out, &e);
        if ((r == 0) != (rows[i].user != NULL))
            fail_msg("row %zu: %d %s", i, r, e.msg);
        if (rows[i].user)
            assert_string_equal(out, rows[i].user);
    }
}

static const struct route *row_of(const char *path, enum http_method method, char allow[128])
{
    struct route_table table = {e2b_control_routes, e2b_control_route_count};
    const struct route *route = NULL;
    struct route_match match;
    struct pd_err e;
    return route_find(table, slice_of(path), method, &route, &match, allow, &e) < 0 ? NULL : route;
}

static void test_the_control_planes_paths(void **state)
{
    (void)state;
    char allow[ROUTE_ALLOW_SIZE];

    assert_ptr_equal(row_of("/sandboxes/metrics", HTTP_GET, allow)->handle, e2b_metrics_of_many);
    assert_ptr_equal(row_of("/sandboxes/abc", HTTP_GET, allow)->handle, e2b_get);
    assert_ptr_equal(row_of("/sandboxes/abc/metrics", HTTP_GET, allow)->handle, e2b_metrics);
    assert_ptr_equal(row_of("/templates/aliases/a", HTTP_GET, allow)->handle, e2b_template_alias);
    assert_ptr_equal(row_of("/templates/a%2Fb%3Ac", HTTP_DELETE, allow)->handle,
                     e2b_template_delete);
    assert_ptr_equal(row_of("/templates/a/builds/b", HTTP_POST, allow)->handle, e2b_not_here);
    assert_null(row_of("/sandboxes", HTTP_DELETE, allow));
    assert_string_equal(allow, "POST, GET");
    assert_null(row_of("/v1/sandboxes", HTTP_GET, allow));
    assert_string_equal(allow, "");
    assert_null(row_of("/healthz", HTTP_GET, allow));

    /* Nothing on the control plane goes without a key, but files for a build: their address is
     * signed. */
    for (unsigned i = 0; i < e2b_control_route_count; i++)
        assert_true(!(e2b_control_routes[i].flags & ROUTE_OPEN) ||
                    e2b_control_routes[i].handle == e2b_build_upload);

    /* Of envd only the question whether it is there. */
    for (unsigned i = 0; i < e2b_envd_route_count; i++)
        assert_true(!(e2b_envd_routes[i].flags & ROUTE_OPEN) ||
                    e2b_envd_routes[i].handle == envd_health);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_snapshots),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_users),
        cmocka_unit_test(test_the_control_planes_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
