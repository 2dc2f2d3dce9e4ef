/* cgroup: real groups on this host, once in the layout that it has and once more with its v2 tree
 * ignored, so that a hybrid host also tests what pure v1 needs. */
#include "cgroup_world.h"

#include <linux/magic.h>
#include <sys/vfs.h>

static void spin(void)
{
    alarm(60);
    for (volatile unsigned n = 0;; n++)
        ;
}

/* Two generations in sessions of their own that ignore what can be ignored. */
static void hide(void)
{
    for (int i = 0; i < 2; i++) {
        if (fork())
            _exit(0);
        setsid();
    }
    for (int s = 1; s < 32; s++)
        signal(s, SIG_IGN);
    sleep_long();
}

static void fork_until_refused(void)
{
    for (int i = 0; i < 100; i++) {
        pid_t pid = fork();
        if (!pid)
            sleep_long();
        if (pid < 0)
            _exit(errno == EAGAIN ? 42 : 97);
    }
}

static void limits_are_in_force_and_can_be_changed(void **state)
{
    struct world *w = need(state);
    struct limits l = {.memory = 64 * MIB, .pids = 17, .cpu_milli = 250};
    struct cgroup c = make_jail(w, "limits", &l);

    for (int round = 0; round < 3; round++) {
        char memory[32], pids[32], quota[32], max[40];
        snprintf(memory, sizeof memory, "%llu", (unsigned long long)l.memory);
        snprintf(pids, sizeof pids, "%llu", (unsigned long long)l.pids);
        snprintf(quota, sizeof quota, "%llu", (unsigned long long)l.cpu_milli * 100);
        snprintf(max, sizeof max, "%s 100000", quota);

        if (w->host.home[CGROUP_TREE_MEMORY] == CGROUP_TREE_UNIFIED) {
            assert_string_equal(file_of(w, CGROUP_TREE_MEMORY, "limits", "memory.max"), memory);
            char *swap = file_of(w, CGROUP_TREE_MEMORY, "limits", "memory.swap.max");
            assert_true(!swap || !strcmp(swap, "0"));
        } else {
            assert_string_equal(file_of(w, CGROUP_TREE_MEMORY, "limits", "memory.limit_in_bytes"),
                                memory);
            char *sum = file_of(w, CGROUP_TREE_MEMORY, "limits", "memory.memsw.limit_in_bytes");
            assert_true(!sum || !strcmp(sum, memory));
            char sockets[32];
            snprintf(sockets, sizeof sockets, "%llu", (unsigned long long)l.memory / 4);
            char *limit = file_of(w, CGROUP_TREE_MEMORY, "limits", CGROUP_SOCKETS_FILE);
            assert_string_equal(limit ? limit : "no file", w->host.why[0] ? "no file" : sockets);
        }

        assert_string_equal(file_of(w, CGROUP_TREE_PIDS, "limits", "pids.max"), pids);
        if (w->host.home[CGROUP_TREE_CPU] == CGROUP_TREE_UNIFIED) {
            assert_string_equal(file_of(w, CGROUP_TREE_CPU, "limits", "cpu.max"), max);
        } else {
            assert_string_equal(file_of(w, CGROUP_TREE_CPU, "limits", "cpu.cfs_quota_us"), quota);
            assert_string_equal(file_of(w, CGROUP_TREE_CPU, "limits", "cpu.cfs_period_us"),
                                "100000");
        }

        /* Up, then down again. */
        l.memory = round ? 32 * MIB : 128 * MIB;
        l.pids = round ? 5 : 500;
        l.cpu_milli = round ? 10 : 4000;
        ASSERT_OK(cgroup_limit(&w->host, "limits", &l, &err));
    }

    /* Nothing asked for, nothing changed. */
    ASSERT_OK(cgroup_limit(&w->host, "limits", &(struct limits){0}, &err));
    assert_string_equal(file_of(w, CGROUP_TREE_PIDS, "limits", "pids.max"), "5");
    cgroup_close(&c);
    remove_jail(w, "limits");
}

static void a_jail_is_made_once_and_failures_leave_nothing(void **state)
{
    struct world *w = need(state);
    struct cgroup c, again = {.name = "untouched"};
    ASSERT_OK(cgroup_create(&w->host, "once", &c, &err));
    assert_int_equal(cgroup_create(&w->host, "once", &again, &err), -1);
    assert_int_equal(err.code, PD_CONFLICT);
    assert_string_equal(again.name, "untouched");

    /* In the way in the last tree only: the trees before it must be clean again. */
    int last = CGROUP_TREE_COUNT - 1;
    while (w->host.dir[last] < 0)
        last--;
    ASSERT_OK(mkdirat(w->host.dir[last], "blocked", 0755));
    assert_int_equal(cgroup_create(&w->host, "blocked", &again, &err), -1);

    ASSERT_OK(unlinkat(w->host.dir[last], "blocked", AT_REMOVEDIR));
    for (int t = 0; t < CGROUP_TREE_COUNT; t++)
        if (w->host.dir[t] >= 0)
            assert_int_equal(faccessat(w->host.dir[t], "blocked", F_OK, 0), -1);

    static const char *const bad[] = {"",    ".",    "..",
                                      "a/b", "../x", ".x",
                                      "a b", "\n",   "0123456789012345678901234567890123456789"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(cgroup_create(&w->host, bad[i], &again, &err), -1);
        assert_int_equal(err.code, PD_INVALID);
        assert_int_equal(cgroup_remove(&w->host, bad[i]), -EINVAL);
        assert_int_equal(cgroup_kill(&w->host, bad[i]), -EINVAL);
    }
    assert_int_equal(cgroup_kill(&w->host, "absent"), -ENOENT);

    ASSERT_OK(cgroup_remove(&w->host, "absent"));
    cgroup_close(&c);
    remove_jail(w, "once");
}

static void a_memory_bomb_is_killed_and_counted(void **state)
{
    struct world *w = need(state);
    struct cgroup c = make_jail(w, "memory", &(struct limits){.memory = 32 * MIB});
    int alive, status;
    pid_t pid = start(&c, -1, eat_memory, &alive);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    struct cgroup_stats s;
    cgroup_read_stats(&w->host, "memory", &s);
    assert_true(s.oom_kills >= 1);
    assert_int_equal(s.pids_refused, 0);
    assert_true(s.memory_peak == 0 || (s.memory_peak > 16 * MIB && s.memory_peak <= 32 * MIB));
    close(alive);
    cgroup_close(&c);
    remove_jail(w, "memory");

    /* Control: with room enough the same child ends by itself. */
    c = make_jail(w, "memory", &(struct limits){.memory = 512 * MIB});
    pid = start(&c, -1, eat_memory, &alive);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cgroup_read_stats(&w->host, "memory", &s);
    assert_int_equal(s.oom_kills, 0);
    close(alive);
    cgroup_close(&c);
    remove_jail(w, "memory");
}

static void a_fork_bomb_is_refused_and_counted(void **state)
{
    struct world *w = need(state);
    struct cgroup c = make_jail(w, "pids", &(struct limits){.pids = 8});
    int alive, status;
    pid_t pid = start(&c, -1, fork_until_refused, &alive);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);

    struct cgroup_stats s;
    cgroup_read_stats(&w->host, "pids", &s);
    assert_true(s.pids_refused >= 1);
    assert_int_equal(s.pids_now, 7); /* the bomb itself has ended */
    assert_int_equal(s.oom_kills, 0);

    ASSERT_OK(cgroup_kill(&w->host, "pids"));
    assert_true(ends_within(alive, PATIENCE_NS));
    close(alive);
    cgroup_close(&c);
    remove_jail(w, "pids");
}

static uint64_t cpu_of(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/schedstat", (int)pid);
    return fd_read_file(AT_FDCWD, path, text, sizeof text) < 0 ? 0 : strtoull(text, NULL, 10);
}

/* Waits until it has used some milliseconds more than it had. */
static void await_cpu(pid_t pid, uint64_t before)
{
    deadline d = deadline_in(PATIENCE_NS);

    while (cpu_of(pid) < before + 5 * NS_PER_MS) {
        assert_false(deadline_passed(d));
        pause_ms(2);
    }
}

static void cpu_time_and_memory_are_counted(void **state)
{
    struct world *w = need(state);
    struct cgroup c = make_jail(w, "stats", &(struct limits){.pids = 8});
    int alive;
    pid_t pid = start(&c, -1, spin, &alive);
    await_cpu(pid, 0);
    ASSERT_OK(cgroup_kill(&w->host, "stats"));
    assert_true(ends_within(alive, PATIENCE_NS));

    struct cgroup_stats s;
    cgroup_read_stats(&w->host, "stats", &s);
    char *acct = file_of(w, CGROUP_TREE_CPU, "stats", "cpuacct.usage");
    if (w->host.dir[CGROUP_TREE_UNIFIED] >= 0 || acct)
        assert_true(s.cpu_usec > 1000);
    close(alive);
    cgroup_close(&c);
    remove_jail(w, "stats");
}

static void killing_ends_who_hides_in_another_session(void **state)
{
    struct world *w = need(state);
    struct cgroup c = make_jail(w, "kill", &(struct limits){.pids = 16});
    int alive;
    start(&c, -1, hide, &alive);
    assert_false(ends_within(alive, 100 * NS_PER_MS));
    assert_int_equal(cgroup_remove(&w->host, "kill"), -EBUSY);
    ASSERT_OK(cgroup_kill(&w->host, "kill"));
    assert_true(ends_within(alive, PATIENCE_NS));
    close(alive);
    cgroup_close(&c);
    remove_jail(w, "kill");
}

static void a_walk_kills_too_where_the_kernel_has_no_cgroup_kill(void **state)
{
    struct world *w = need(state);
    struct cgroup c = make_jail(w, "walk", &(struct limits){.pids = 32});
    int dir = cgroup_jail_dir(&w->host, "walk");
    int command = cgroup_command_create(dir, "inner");
    assert_true(dir >= 0 && command >= 0);

    int alive[2];
    start(&c, -1, hide, &alive[0]);
    start(&c, command, fork_until_refused, &alive[1]);
    ASSERT_OK(group_kill_walk(dir));
    assert_true(ends_within(alive[0], PATIENCE_NS));
    assert_true(ends_within(alive[1], PATIENCE_NS));

    for (int i = 0; i < 2; i++)
        close(alive[i]);
    close(command);
    close(dir);
    cgroup_close(&c);
    remove_jail(w, "walk"); /* with the sub-group */
}

static void a_frozen_jail_stands_still_resumes_and_can_be_killed(void **state)
{
    struct world *w = need(state);
    struct cgroup c = make_jail(w, "freeze", &(struct limits){.pids = 16});
    int alive;
    pid_t pid = start(&c, -1, spin, &alive);
    ASSERT_OK(cgroup_freeze(&w->host, "freeze", 1, deadline_in(PATIENCE_NS), &err));
    uint64_t before = cpu_of(pid);
    pause_ms(100);
    assert_true(cpu_of(pid) == before);
    ASSERT_OK(cgroup_freeze(&w->host, "freeze", 0, 0, &err));
    await_cpu(pid, before);
    ASSERT_OK(cgroup_freeze(&w->host, "freeze", 1, deadline_in(PATIENCE_NS), &err));
    ASSERT_OK(cgroup_kill(&w->host, "freeze"));
    assert_true(ends_within(alive, PATIENCE_NS));
    close(alive);
    cgroup_close(&c);
    remove_jail(w, "freeze");

    assert_int_equal(cgroup_freeze(&w->host, "absent", 1, 0, &err), -1);
    assert_int_equal(err.code, PD_NOT_FOUND);
}

static void killing_one_command_leaves_the_others(void **state)
{
    struct world *w = need(state);
    struct cgroup c = make_jail(w, "commands", &(struct limits){.pids = 32});
    int dir = cgroup_jail_dir(&w->host, "commands");
    int procs[2] = {cgroup_command_create(dir, "one"), cgroup_command_create(dir, "two")};
    assert_true(dir >= 0 && procs[0] >= 0 && procs[1] >= 0);
    assert_int_equal(cgroup_command_create(dir, "one"), -EEXIST);
    assert_int_equal(cgroup_command_create(dir, "../one"), -EINVAL);

    int alive[3];
    start(&c, procs[0], hide, &alive[0]);
    start(&c, procs[1], hide, &alive[1]);
    start(&c, -1, hide, &alive[2]);
    ASSERT_OK(cgroup_command_kill(dir, "one"));
    assert_true(ends_within(alive[0], PATIENCE_NS));
    assert_false(ends_within(alive[1], 100 * NS_PER_MS));
    assert_false(ends_within(alive[2], 0));

    int r;
    deadline d = deadline_in(PATIENCE_NS);
    while ((r = cgroup_command_remove(dir, "one")) == -EBUSY && !deadline_passed(d))
        pause_ms(2);
    assert_int_equal(r, 0);
    assert_int_equal(cgroup_command_remove(dir, "two"), -EBUSY);
    ASSERT_OK(cgroup_kill(&w->host, "commands"));
    assert_true(ends_within(alive[1], PATIENCE_NS) && ends_within(alive[2], PATIENCE_NS));

    for (int i = 0; i < 3; i++)
        close(alive[i]);
    close(procs[0]);
    close(procs[1]);
    close(dir);
    cgroup_close(&c);
    remove_jail(w, "commands"); /* with command two */
}

/* A group that was made by halves would refuse every command of its number, with ENOTSUP. */
static void a_group_for_a_command_is_made_whole_or_not_at_all(void **state)
{
    struct world *w = need(state);
    struct cgroup c = make_jail(w, "scarce", &(struct limits){.pids = 32});
    int dir = cgroup_jail_dir(&w->host, "scarce");
    struct rlimit before, few;
    assert_true(dir >= 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);

    /* Beside a threaded group the kernel takes nobody into one that is not. */
    int other = cgroup_command_create(dir, "other");
    assert_true(other >= 0);

    unsigned refused = 0, made = 0;
    for (unsigned spare = 0; spare < 6; spare++) {
        int lowest = dup(dir);
        assert_true(lowest >= 0);
        close(lowest);
        few = (struct rlimit){(rlim_t)lowest + spare, before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        int fd = cgroup_command_create(dir, "one");
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);

        if (fd < 0) {
            assert_int_equal(fd, -EMFILE);
            assert_int_equal(faccessat(dir, "one", F_OK, 0), -1);
            refused++;
            continue;
        }
        int alive;
        start(&c, fd, hide, &alive);
        assert_false(ends_within(alive, 20 * NS_PER_MS));
        ASSERT_OK(cgroup_command_kill(dir, "one"));
        assert_true(ends_within(alive, PATIENCE_NS));
        close(alive);
        close(fd);
        deadline d = deadline_in(PATIENCE_NS);
        while (cgroup_command_remove(dir, "one") == -EBUSY && !deadline_passed(d))
            pause_ms(2);
        made++;
    }
    assert_true(refused > 0 && made > 0);
    close(other);
    close(dir);
    cgroup_close(&c);
    remove_jail(w, "scarce");
}

/* Removed jails of this instance that the kernel still keeps. A v1 tree does not count them, but
 * what keeps one is what it is charged for, and that is charged to the instance as well: here a MiB
 * of page cache for each. Both are of this instance alone, whatever else happens on the machine. */
static int dead_groups(struct world *w)
{
    char text[8192];
    int home = w->host.home[CGROUP_TREE_MEMORY], v2 = home == CGROUP_TREE_UNIFIED;
    const char *key = v2 ? "nr_dying_descendants " : "\ntotal_cache ";
    assert_true(
        fd_read_file(w->host.dir[home], v2 ? "cgroup.stat" : "memory.stat", text, sizeof text) > 0);

    const char *at = strstr(text, key);
    assert_non_null(at);
    long long count = strtoll(at + strlen(key), NULL, 10);
    return (int)(v2 ? count : (count + (long long)MIB / 2) / (long long)MIB);
}

/* The same once it is at most `most`: the kernel frees them a little later. */
static int dead_groups_settled(struct world *w, int most)
{
    deadline d = deadline_in(PATIENCE_NS);
    int seen;
    while ((seen = dead_groups(w)) > most && !deadline_passed(d))
        pause_ms(20);
    return seen;
}

/* Jails that each leave a MiB of page cache; `properly`: removed by cgroup_remove, not by hand. */
static void churn(struct world *w, const char *dir, int properly)
{
    for (int i = 0; i < CHURN_CYCLES; i++) {
        struct cgroup c = make_jail(w, "churn", &(struct limits){.pids = 16});
        snprintf(churn_path, sizeof churn_path, "%s/%d", dir, i);
        int alive, status;
        pid_t pid = start(&c, -1, write_a_file, &alive);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        close(alive);
        cgroup_close(&c);
        if (!properly)
            for (int t = 0; t < CGROUP_TREE_COUNT; t++)
                if (w->host.dir[t] >= 0)
                    ASSERT_OK(unlinkat(w->host.dir[t], "churn", AT_REMOVEDIR));
        remove_jail(w, "churn");
    }
}

static void remove_files(const char *dir)
{
    for (int i = 0; i < CHURN_CYCLES; i++) {
        snprintf(churn_path, sizeof churn_path, "%s/%d", dir, i);
        unlink(churn_path);
    }
}

#define FEW 2

static void removed_jails_do_not_stay_in_the_kernel(void **state)
{
    struct world *w = need(state);
    char dir[] = "/var/tmp/paddock-cgroup-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct statfs fs;
    ASSERT_OK(statfs(dir, &fs));
    if (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC) {
        rmdir(dir);
        print_message("skipped: /var/tmp is in memory, so its page cache cannot be dropped\n");
        skip();
    }

    int before = dead_groups(w);
    churn(w, dir, 1);
    int growth = dead_groups_settled(w, before + FEW) - before;
    remove_files(dir);

    before = dead_groups_settled(w, 0);
    churn(w, dir, 0);
    int control = dead_groups(w) - before;
    remove_files(dir); /* which lets go of the control's groups */
    rmdir(dir);

    print_message("dead memory groups: %+d after %d jails, control %+d\n", growth, CHURN_CYCLES,
                  control);
    assert_true(growth <= FEW);
    assert_true(control >= CHURN_CYCLES / 2);
}

static void leftovers_of_dead_keepers_are_removed_and_live_ones_stay(void **state)
{
    struct world *w = need(state);
    char dead_id[32];
    snprintf(dead_id, sizeof dead_id, "dead.%d", (int)getpid());
    struct cgroup_host dead;
    ASSERT_OK(cgroup_host_open(&dead, &w->mounts, dead_id, &err));
    sweep_hold_instance(&dead); /* dead for this test alone, not for other keepers */
    struct world of_dead = {.host = dead};
    struct cgroup mine = make_jail(w, "mine", &(struct limits){.pids = 16});
    struct cgroup c = make_jail(&of_dead, "left", &(struct limits){.pids = 16});
    int dir = cgroup_jail_dir(&dead, "left");
    int command = cgroup_command_create(dir, "inner");
    int alive[2];
    start(&c, command, hide, &alive[0]);
    start(&mine, -1, hide, &alive[1]);
    ASSERT_OK(cgroup_freeze(&dead, "left", 1, deadline_in(PATIENCE_NS), &err));
    close(command);
    close(dir);
    cgroup_close(&c);

    assert_int_equal(cgroup_reclaim(&w->mounts, is_alive, dead_id), 1);
    assert_true(ends_within(alive[0], PATIENCE_NS));
    for (int t = 0; t < CGROUP_TREE_COUNT; t++)
        if (dead.parent[t] >= 0)
            assert_int_equal(faccessat(dead.parent[t], dead.instance, F_OK, 0), -1);
    assert_false(ends_within(alive[1], 50 * NS_PER_MS));
    assert_int_equal(cgroup_reclaim(&w->mounts, is_alive, dead_id), 0);
    cgroup_host_done(&dead);

    ASSERT_OK(cgroup_kill(&w->host, "mine"));
    assert_true(ends_within(alive[1], PATIENCE_NS));
    close(alive[0]);
    close(alive[1]);
    cgroup_close(&mine);
    remove_jail(w, "mine");
}

static void a_v2_tree_without_the_controllers_is_none_with_a_reason(void **state)
{
    struct world *w = need(state);
    if (w->host.layout != CGROUP_HYBRID)
        skip_because("only the hybrid layout has a v2 tree without controllers");
    struct cgroup_mounts m = {.layout = CGROUP_V2};
    memcpy(m.path[0], w->mounts.path[0], sizeof m.path[0]);
    struct cgroup_host h;
    ASSERT_OK(cgroup_host_open(&h, &m, "nocontrol", &err));
    assert_int_equal(h.layout, CGROUP_NONE);
    assert_non_null(strstr(h.why, "no memory controller"));
    assert_int_equal(faccessat(w->host.parent[0], "paddock-nocontrol", F_OK, 0), -1);
}

/* The layouts. */

int main(void)
{
    const struct CMUnitTest real[] = {
        cmocka_unit_test(limits_are_in_force_and_can_be_changed),
        cmocka_unit_test(a_jail_is_made_once_and_failures_leave_nothing),
        cmocka_unit_test(a_memory_bomb_is_killed_and_counted),
        cmocka_unit_test(a_fork_bomb_is_refused_and_counted),
        cmocka_unit_test(cpu_time_and_memory_are_counted),
        cmocka_unit_test(killing_ends_who_hides_in_another_session),
        cmocka_unit_test(a_walk_kills_too_where_the_kernel_has_no_cgroup_kill),
        cmocka_unit_test(a_frozen_jail_stands_still_resumes_and_can_be_killed),
        cmocka_unit_test(killing_one_command_leaves_the_others),
        cmocka_unit_test(a_group_for_a_command_is_made_whole_or_not_at_all),
        cmocka_unit_test(removed_jails_do_not_stay_in_the_kernel),
        cmocka_unit_test(leftovers_of_dead_keepers_are_removed_and_live_ones_stay),
        cmocka_unit_test(a_v2_tree_without_the_controllers_is_none_with_a_reason),
    };

    int failed = cmocka_run_group_tests_name("cgroup on this host", real, open_native, close_world);
    failed += cmocka_run_group_tests_name("cgroup on v1", real, open_v1, close_world);
    return failed;
}
