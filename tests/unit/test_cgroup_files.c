/* cgroup without a cgroup: what happens when there is none, and which files and values pure v2
 * gets, on plain files in a scratch directory. Needs no privilege, so it runs everywhere. */
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB             (1ULL << 20)
#define ASSERT_OK(call) assert_int_equal((call), 0)

static struct pd_err err;

static int nobody_lives(const char *instance, void *arg)
{
    (void)instance, (void)arg;
    return 0;
}

static void without_cgroups_making_a_jail_still_works(void **state)
{
    (void)state;
    struct cgroup_mounts m = {.layout = CGROUP_NONE, .why = "not here"};
    struct cgroup_host h;
    struct cgroup c;

    ASSERT_OK(cgroup_host_open(&h, &m, "x", &err));
    assert_int_equal(h.layout, CGROUP_NONE);
    assert_string_equal(h.why, "not here");

    ASSERT_OK(cgroup_create(&h, "j", &c, &err));
    ASSERT_OK(cgroup_limit(&h, "j", &LIMITS_DEFAULT, &err));
    ASSERT_OK(cgroup_enter(&c, 0));
    assert_int_equal(cgroup_kill(&h, "j"), -EOPNOTSUPP);
    assert_int_equal(cgroup_freeze(&h, "j", 1, 0, &err), -1);
    assert_int_equal(err.code, PD_UNSUPPORTED);

    ASSERT_OK(cgroup_remove(&h, "j"));
    cgroup_close(&c);
    cgroup_host_remove(&h);
}

static void trees_that_cannot_be_used_are_none_with_a_reason(void **state)
{
    (void)state;
    static const char *const paths[] = {"/tmp", "/proc/nonexistent"};
    static const char *const reasons[] = {"hidden by another mount", "No such file"};

    for (int i = 0; i < 2; i++) {
        struct cgroup_mounts m = {.layout = CGROUP_V2};
        snprintf(m.path[CGROUP_TREE_UNIFIED], sizeof m.path[0], "%s", paths[i]);
        struct cgroup_host h;
        ASSERT_OK(cgroup_host_open(&h, &m, "x", &err));
        assert_int_equal(h.layout, CGROUP_NONE);
        assert_non_null(strstr(h.why, reasons[i]));
        assert_int_equal(cgroup_reclaim(&m, nobody_lives, NULL), 0);
        cgroup_host_remove(&h);
        static const char *const bad[] = {"", "a/b", "..", "01234567890123456789012345678901"};
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
            assert_int_equal(cgroup_host_open(&h, &m, bad[k], &err), -1);
    }
}

static void put(int dir, const char *path, const char *text)
{
    int fd = openat(dir, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    ASSERT_OK(fd_write_all(fd, text, strlen(text)));
    close(fd);
}

static void assert_file(int dir, const char *path, const char *expected)
{
    char text[256];
    assert_true(fd_read_file(dir, path, text, sizeof text) >= 0);
    assert_string_equal(text, expected);
}

static void v2_files_get_the_right_values_and_are_read_back(void **state)
{
    (void)state;
    char path[] = "/tmp/paddock-v2-XXXXXX";
    assert_non_null(mkdtemp(path));
    struct cgroup_host h = {.layout = CGROUP_V2, .instance = "paddock-x"};
    for (int t = 0; t < CGROUP_TREE_COUNT; t++)
        h.parent[t] = h.dir[t] = -1;
    int dir = h.dir[CGROUP_TREE_UNIFIED] = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    ASSERT_OK(mkdirat(dir, "j", 0700));
    static const char *const files[] = {"j/memory.max",   "j/memory.swap.max", "j/pids.max",
                                        "j/cpu.max",      "j/memory.events",   "j/memory.current",
                                        "j/memory.peak",  "j/pids.events",     "j/pids.current",
                                        "j/cpu.stat",     "j/cgroup.kill",     "j/cgroup.freeze",
                                        "j/cgroup.events"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        put(dir, files[i], "");
    struct limits l = {.memory = 512 * MIB, .pids = 256, .cpu_milli = 1500};
    ASSERT_OK(cgroup_limit(&h, "j", &l, &err));
    assert_file(dir, "j/memory.max", "536870912");
    assert_file(dir, "j/memory.swap.max", "0");
    assert_file(dir, "j/pids.max", "256");
    assert_file(dir, "j/cpu.max", "150000 100000");
    ASSERT_OK(unlinkat(dir, "j/memory.swap.max", 0)); /* a kernel without swap */
    ASSERT_OK(cgroup_limit(&h, "j", &l, &err));
    ASSERT_OK(cgroup_kill(&h, "j"));
    assert_file(dir, "j/cgroup.kill", "1");
    put(dir, "j/cgroup.events", "populated 1\nfrozen 0\n");
    assert_int_equal(cgroup_freeze(&h, "j", 1, deadline_in(NS_PER_MS), &err), -1);
    assert_int_equal(err.code, PD_TIMEOUT);
    assert_file(dir, "j/cgroup.freeze", "0"); /* taken back */
    put(dir, "j/cgroup.events", "populated 1\nfrozen 1\n");
    ASSERT_OK(cgroup_freeze(&h, "j", 1, deadline_in(60 * NS_PER_S), &err));
    assert_file(dir, "j/cgroup.freeze", "1");

    put(dir, "j/memory.events", "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 9\n");
    put(dir, "j/memory.current", "4096\n");
    put(dir, "j/memory.peak", "8192\n");
    put(dir, "j/pids.events", "max 5\n");
    put(dir, "j/pids.current", "3\n");
    put(dir, "j/cpu.stat", "nr_usage_usec 1\nusage_usec 123456\nuser_usec 1\n");
    struct cgroup_stats s;
    cgroup_read_stats(&h, "j", &s);
    assert_int_equal(s.oom_kills, 2);
    assert_int_equal(s.memory_now, 4096);
    assert_int_equal(s.memory_peak, 8192);
    assert_int_equal(s.pids_refused, 5);
    assert_int_equal(s.pids_now, 3);
    assert_int_equal(s.cpu_usec, 123456);
    put(dir, "j/cpu.stat", "");
    put(dir, "j/pids.current", "max\n");
    ASSERT_OK(unlinkat(dir, "j/memory.peak", 0));
    cgroup_read_stats(&h, "j", &s);
    assert_int_equal(s.cpu_usec + s.pids_now + s.memory_peak, 0);

    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        (void)unlinkat(dir, files[i], 0);
    unlinkat(dir, "j", AT_REMOVEDIR);
    rmdir(path);
    cgroup_host_done(&h);
}

static void a_frozen_group_is_seen_in_both_versions(void **state)
{
    (void)state;
    static const struct {
        const char *file, *text;
        int frozen;
    } cases[] = {
        {"cgroup.freeze", "1\n", 1},      {"cgroup.freeze", "0\n", 0},
        {"freezer.state", "FROZEN\n", 1}, {"freezer.state", "FREEZING\n", 1},
        {"freezer.state", "THAWED\n", 0}, {"cgroup.procs", "1\n", 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[] = "/tmp/test_frozen.XXXXXX";
        assert_non_null(mkdtemp(path));
        auto_fd dir = open(path, O_RDONLY | O_DIRECTORY);
        auto_fd file = openat(dir, cases[i].file, O_WRONLY | O_CREAT, 0600);
        assert_int_equal(write(file, cases[i].text, strlen(cases[i].text)), strlen(cases[i].text));
        assert_int_equal(group_is_frozen(dir), cases[i].frozen);
        ASSERT_OK(unlinkat(dir, cases[i].file, 0));
        ASSERT_OK(rmdir(path));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_cgroups_making_a_jail_still_works),
        cmocka_unit_test(trees_that_cannot_be_used_are_none_with_a_reason),
        cmocka_unit_test(v2_files_get_the_right_values_and_are_read_back),
        cmocka_unit_test(a_frozen_group_is_seen_in_both_versions),
    };
    return cmocka_run_group_tests_name("cgroup_files", tests, NULL, NULL);
}
