/* cgroup_detect: which trees are found in which mount table. Pure: text in, paths out. */
#include "base/buf.h"
#include "jail/cgroup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TMPFS "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
#define V1_MEMORY                                                                                  \
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
#define V1_PIDS "39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n"
#define V1_CPU                                                                                     \
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:1 master:2 - cgroup cgroup "                \
    "rw,cpuacct,cpu\n"
#define V1_FREEZER   "37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer\n"
#define V1_SYSTEMD   "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
#define V1_ALL       V1_MEMORY V1_PIDS V1_CPU V1_FREEZER V1_SYSTEMD
#define V2_IN_HYBRID "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
#define V2_ALONE     "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define OWN          "0::/user.slice/user-1000.slice/app.scope\n"

static struct cgroup_mounts detect(const char *mountinfo)
{
    struct cgroup_mounts m;
    memset(&m, 0xa5, sizeof m);
    cgroup_detect(mountinfo, OWN, &m);
    return m;
}

static struct cgroup_mounts detect_own(const char *mountinfo, const char *self)
{
    struct cgroup_mounts m;
    memset(&m, 0xa5, sizeof m);
    cgroup_detect_own(mountinfo, self, &m);
    return m;
}

static void assert_none(const struct cgroup_mounts *m, const char *why_has)
{
    assert_int_equal(m->layout, CGROUP_NONE);
    for (int t = 0; t < CGROUP_TREE_COUNT; t++)
        assert_string_equal(m->path[t], "");
    if (!strstr(m->why, why_has))
        fail_msg("the reason \"%s\" does not say \"%s\"", m->why, why_has);
}

static void pure_v2_uses_one_tree(void **state)
{
    (void)state;
    struct cgroup_mounts m = detect("28 1 254:0 / / rw - ext4 /dev/vda rw\n" V2_ALONE);
    assert_int_equal(m.layout, CGROUP_V2);
    assert_string_equal(m.path[CGROUP_TREE_UNIFIED], "/sys/fs/cgroup");
    assert_string_equal(m.path[CGROUP_TREE_MEMORY], "");
    assert_string_equal(m.path[CGROUP_TREE_FREEZER], "");
}

static void v2_beside_a_v1_tree_without_limits_is_still_v2(void **state)
{
    (void)state;
    struct cgroup_mounts m =
        detect(V2_ALONE "50 23 0:40 / /sys/fs/net_cls rw - cgroup none rw,net_cls\n" V1_SYSTEMD);
    assert_int_equal(m.layout, CGROUP_V2);
}

static void hybrid_takes_limits_from_v1_and_the_rest_from_v2(void **state)
{
    (void)state;
    struct cgroup_mounts m = detect(TMPFS V1_ALL V2_IN_HYBRID);
    assert_int_equal(m.layout, CGROUP_HYBRID);
    assert_string_equal(m.path[CGROUP_TREE_UNIFIED], "/sys/fs/cgroup/unified");
    assert_string_equal(m.path[CGROUP_TREE_MEMORY], "/sys/fs/cgroup/memory");
    assert_string_equal(m.path[CGROUP_TREE_PIDS], "/sys/fs/cgroup/pids");
    assert_string_equal(m.path[CGROUP_TREE_CPU], "/sys/fs/cgroup/cpu,cpuacct");
    assert_string_equal(m.path[CGROUP_TREE_FREEZER], "");
}

static void hybrid_leaves_a_controller_without_v1_tree_to_v2(void **state)
{
    (void)state;
    struct cgroup_mounts m = detect(TMPFS V1_MEMORY V1_CPU V2_IN_HYBRID);
    assert_int_equal(m.layout, CGROUP_HYBRID);
    assert_string_equal(m.path[CGROUP_TREE_PIDS], "");
}

static void v1_alone_uses_the_freezer(void **state)
{
    (void)state;
    struct cgroup_mounts m = detect(TMPFS V1_ALL);
    assert_int_equal(m.layout, CGROUP_V1);
    assert_string_equal(m.path[CGROUP_TREE_UNIFIED], "");
    assert_string_equal(m.path[CGROUP_TREE_FREEZER], "/sys/fs/cgroup/freezer");
}

static void v1_with_a_tree_missing_names_it(void **state)
{
    (void)state;
    struct cgroup_mounts m = detect(V1_MEMORY V1_PIDS V1_CPU);
    assert_none(&m, "freezer");
    m = detect(V1_MEMORY V1_CPU V1_FREEZER);
    assert_none(&m, "pids");
    m = detect(V1_FREEZER);
    assert_none(&m, "memory");
}

static void controllers_are_whole_words_in_any_order(void **state)
{
    (void)state;
    struct cgroup_mounts m =
        detect("1 2 0:1 / /a rw - cgroup none rw,freezer,cpu,memory,cpuacct,pids,name=all\n"
               "2 2 0:2 / /b rw - cgroup none rw,name=memory,cpuset,cpuacct,release_agent=/pids\n");
    assert_int_equal(m.layout, CGROUP_V1);
    for (int t = CGROUP_TREE_MEMORY; t < CGROUP_TREE_COUNT; t++)
        assert_string_equal(m.path[t], "/a");
    m = detect("2 2 0:2 / /b rw - cgroup none rw,name=memory,cpuset,cpuacct\n");
    assert_none(&m, "no cgroup file system");
}

static void nothing_mounted_says_what_to_mount(void **state)
{
    (void)state;
    struct cgroup_mounts m = detect("");
    assert_none(&m, "mount -t cgroup2");
    m = detect("28 1 254:0 / / rw - ext4 /dev/vda rw\n");
    assert_none(&m, "mount -t cgroup2");
}

static void octal_escapes_become_bytes(void **state)
{
    (void)state;
    struct cgroup_mounts m =
        detect("1 2 0:1 / /my\\040cg\\134roup\\011x\\012 rw - cgroup2 none rw\n");
    assert_int_equal(m.layout, CGROUP_V2);
    assert_string_equal(m.path[CGROUP_TREE_UNIFIED], "/my cg\\roup\tx\n");
}

static void bad_escapes_and_odd_paths_are_passed_over(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "1 2 0:1 / /a\\04 rw - cgroup2 none rw\n",
        "1 2 0:1 / /a\\ rw - cgroup2 none rw\n",
        "1 2 0:1 / /a\\000b rw - cgroup2 none rw\n",
        "1 2 0:1 / /a\\777b rw - cgroup2 none rw\n",
        "1 2 0:1 / /a\\x41b rw - cgroup2 none rw\n",
        "1 2 0:1 / a rw - cgroup2 none rw\n",
        "1 2 0:1 a /a rw - cgroup2 none rw\n",
        "1 2 0:1 / /a rw cgroup2 none rw\n",
        "1 2 0:1 / /a rw -\n",
        "1 2 0:1 /\n",
        "\n\n \n",
        "1 2 0:1 / /a rw - cgroup2x none rw\n",
        "cgroup2",
        "- cgroup2 none rw",
    };

    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct cgroup_mounts m = detect(lines[i]);
        assert_none(&m, "no cgroup file system");
    }
    struct cgroup_mounts m = detect("1 2 0:1 / /a rw - cgroup2"); /* cut short, yet clear */
    assert_int_equal(m.layout, CGROUP_V2);
}

static void a_whole_writable_tree_at_the_usual_place_is_preferred(void **state)
{
    (void)state;
    static const char *const part = "60 1 0:9 /docker/ab /srv/part rw - cgroup2 none rw\n";
    static const char *const usual_part =
        "61 1 0:9 /docker/ab /sys/fs/cgroup rw - cgroup2 none rw\n";
    static const char *const whole = "62 1 0:9 / /srv/whole rw - cgroup2 none rw\n";
    static const char *const readonly =
        "63 1 0:9 / /sys/fs/cgroup/ro ro,nosuid - cgroup2 none rw\n";
    const struct {
        const char *first, *second, *path;
    } rows[] = {
        {part, usual_part, "/sys/fs/cgroup"},
        {usual_part, part, "/sys/fs/cgroup"},
        {usual_part, whole, "/srv/whole"},
        {whole, usual_part, "/srv/whole"},
        {readonly, part, "/srv/part"},
        {part, readonly, "/srv/part"},
        {V2_ALONE, V2_IN_HYBRID, "/sys/fs/cgroup"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s%s", rows[i].first, rows[i].second);
        struct cgroup_mounts m = detect(text);
        assert_int_equal(m.layout, CGROUP_V2);
        assert_string_equal(m.path[CGROUP_TREE_UNIFIED], rows[i].path);
    }
}

static void a_read_only_tree_is_none_with_a_remedy(void **state)
{
    (void)state;
    struct cgroup_mounts m = detect("30 2 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n");
    assert_none(&m, "/sys/fs/cgroup is mounted read-only");
    m = detect(V2_IN_HYBRID V1_PIDS V1_CPU
               "35 31 0:32 / /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory\n");
    assert_none(&m, "/sys/fs/cgroup/memory is mounted read-only");
}

static void what_is_mounted_on_top_hides_a_tree(void **state)
{
    (void)state;
    struct cgroup_mounts m = detect(V2_ALONE "77 30 0:99 / /sys/fs/cgroup rw - tmpfs none rw\n");
    assert_none(&m, "no cgroup file system");
    /* The other way round: the usual tmpfs below the trees hides nothing. */
    m = detect(TMPFS V1_ALL);
    assert_int_equal(m.layout, CGROUP_V1);
    /* The root file system may well be listed after what is mounted on it. */
    m = detect(V2_ALONE "28 1 254:0 / / rw - ext4 /dev/vda rw\n");
    assert_int_equal(m.layout, CGROUP_V2);
}

static void lines_of_a_megabyte_are_read_and_overlong_paths_are_not_cut(void **state)
{
    (void)state;
    auto_buf text = BUF_INIT(8 << 20);
    buf_puts(&text, "1 2 0:1 / /");
    for (int i = 0; i < 1 << 20; i++)
        buf_putc(&text, 'a');
    buf_puts(&text, " rw - cgroup2 none rw\n");
    struct cgroup_mounts m = detect(buf_cstr(&text));
    assert_none(&m, "no cgroup file system");

    buf_puts(&text, "3 2 0:1 / /long rw ");
    for (int i = 0; i < 1 << 17; i++)
        buf_puts(&text, "shared:1 ");
    buf_puts(&text, "- cgroup2 none ");
    for (int i = 0; i < 1 << 18; i++)
        buf_puts(&text, "x,y,");
    m = detect(buf_cstr(&text));
    assert_int_equal(m.layout, CGROUP_V2);
    assert_string_equal(m.path[CGROUP_TREE_UNIFIED], "/long");
}

static void the_longest_path_fits_and_one_more_does_not(void **state)
{
    (void)state;
    for (int len = 255; len <= 256; len++) {
        char path[300], text[400];
        memset(path, 'p', sizeof path);
        path[0] = '/';
        path[len] = 0;
        snprintf(text, sizeof text, "1 2 0:1 / %s rw - cgroup2 none rw\n", path);
        struct cgroup_mounts m = detect(text);
        assert_int_equal(m.layout, len < 256 ? CGROUP_V2 : CGROUP_NONE);
        if (len < 256)
            assert_string_equal(m.path[CGROUP_TREE_UNIFIED], path);
    }
}

static void own_group_is_found_below_the_mount(void **state)
{
    (void)state;
    static const char *const part = "30 2 0:26 /user.slice/x /cg rw - cgroup2 cgroup rw\n";
    static const char *const at_root = "30 2 0:26 / / rw - cgroup2 cgroup rw\n";
    const struct {
        const char *mountinfo, *self, *path;
    } rows[] = {
        {V2_ALONE, OWN, "/sys/fs/cgroup/user.slice/user-1000.slice/app.scope"},
        {V2_ALONE, "0::/\n", "/sys/fs/cgroup"},
        {V2_ALONE, "0::/a", "/sys/fs/cgroup/a"},
        {V2_ALONE, "1:name=systemd:/no\n0::/a:b\n", "/sys/fs/cgroup/a:b"},
        {V2_ALONE, "0::/a/" CGROUP_LEAF "\n", "/sys/fs/cgroup/a"},
        {V2_ALONE, "0::/" CGROUP_LEAF "\n", "/sys/fs/cgroup"},
        {part, "0::/user.slice/x/y\n", "/cg/y"},
        {part, "0::/user.slice/x\n", "/cg"},
        {at_root, "0::/a\n", "/a"},
        {at_root, "0::/\n", "/"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cgroup_mounts m = detect_own(rows[i].mountinfo, rows[i].self);
        assert_int_equal(m.layout, CGROUP_V2);
        assert_string_equal(m.path[CGROUP_TREE_UNIFIED], rows[i].path);
    }
}

static void own_group_out_of_reach_is_none(void **state)
{
    (void)state;
    static const char *const selves[] = {
        "",           "0::\n",         "0::a\n",   "0::/../outside\n",
        "0::/a/../b", "4:memory:/a\n", "00::/a\n", "0::/a (deleted)\n",
        "0:x:/a\n",   "\n\n",
    };
    for (size_t i = 0; i < sizeof selves / sizeof *selves; i++) {
        struct cgroup_mounts m = detect_own(V2_ALONE, selves[i]);
        assert_none(&m, "Delegate=yes");
    }
    struct cgroup_mounts m =
        detect_own("30 2 0:26 /user.slice/x /cg rw - cgroup2 none rw\n", "0::/user.slice/xy\n");
    assert_none(&m, "Delegate=yes");
    m = detect_own(TMPFS V1_ALL V2_IN_HYBRID, OWN);
    assert_none(&m, "run as root");
    m = detect_own("", OWN);
    assert_none(&m, "no cgroup file system");

    char self[300] = "0::/", mount[300];
    memset(self + 4, 'o', 240);
    snprintf(mount, sizeof mount, "1 2 0:1 / /%0100d rw - cgroup2 none rw\n", 0);
    m = detect_own(mount, self);
    assert_none(&m, "too long");
}

static void socket_buffers_without_a_limit_are_told(void **state)
{
    (void)state;
    static const struct {
        int v2, has_file;
        const char *cmdline, *why;
    } hosts[] = {
        {1, 0, "ro quiet", ""},
        {0, 1, "ro quiet", ""},
        {0, 0, "ro quiet", "unified_cgroup_hierarchy"},
        {1, 0, "ro cgroup.memory=nosocket quiet\n", "nosocket"},
        {0, 1, "cgroup.memory=nokmem,nosocket", "nosocket"},
        {1, 0, "cgroup.memory=nokmem xcgroup.memory=nosocket nosocket", ""},
        {1, 0, "cgroup.memory=nosockets", ""},
        {1, 0, "", ""},
    };

    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        char why[160] = "stale";
        cgroup_check_sockets(hosts[i].v2, hosts[i].has_file, hosts[i].cmdline, why);
        assert_int_equal(!why[0], !hosts[i].why[0]);
        assert_non_null(strstr(why, hosts[i].why));
    }
}

static void layouts_have_names(void **state)
{
    (void)state;
    assert_string_equal(cgroup_layout_name(CGROUP_HYBRID), "hybrid");
    assert_string_equal(cgroup_layout_name((enum cgroup_layout)99), "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pure_v2_uses_one_tree),
        cmocka_unit_test(v2_beside_a_v1_tree_without_limits_is_still_v2),
        cmocka_unit_test(hybrid_takes_limits_from_v1_and_the_rest_from_v2),
        cmocka_unit_test(hybrid_leaves_a_controller_without_v1_tree_to_v2),
        cmocka_unit_test(v1_alone_uses_the_freezer),
        cmocka_unit_test(v1_with_a_tree_missing_names_it),
        cmocka_unit_test(controllers_are_whole_words_in_any_order),
        cmocka_unit_test(nothing_mounted_says_what_to_mount),
        cmocka_unit_test(octal_escapes_become_bytes),
        cmocka_unit_test(bad_escapes_and_odd_paths_are_passed_over),
        cmocka_unit_test(a_whole_writable_tree_at_the_usual_place_is_preferred),
        cmocka_unit_test(a_read_only_tree_is_none_with_a_remedy),
        cmocka_unit_test(what_is_mounted_on_top_hides_a_tree),
        cmocka_unit_test(lines_of_a_megabyte_are_read_and_overlong_paths_are_not_cut),
        cmocka_unit_test(the_longest_path_fits_and_one_more_does_not),
        cmocka_unit_test(own_group_is_found_below_the_mount),
        cmocka_unit_test(own_group_out_of_reach_is_none),
        cmocka_unit_test(socket_buffers_without_a_limit_are_told),
        cmocka_unit_test(layouts_have_names),
    };

    return cmocka_run_group_tests_name("cgroup_detect", tests, NULL, NULL);
}
