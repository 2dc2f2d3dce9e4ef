/* Used memory groups: what a jail gets of one that is gone, and what it does not. */
#include "cgroup_world.h"

#include "jail/cgroup_used.h"

#include <linux/magic.h>
#include <sys/statfs.h>

/* Retires the jail as a sweeper does. */
static void retire_jail(struct world *w, const char *name)
{
    deadline d = deadline_in(PATIENCE_NS);
    int r;
    while ((r = cgroup_retire(&w->host, name)) == -EBUSY && !deadline_passed(d)) {
        reap();
        pause_ms(2);
    }
    assert_int_equal(r, 0);
}

/* What tells one group from another; 0: there is none. */
static ino_t memory_group(struct world *w, const char *name)
{
    struct stat st;
    int tree = w->host.dir[w->host.home[CGROUP_TREE_MEMORY]];
    return fstatat(tree, name, &st, 0) < 0 ? 0 : st.st_ino;
}

/* Runs `body` in a new jail until it has ended, and retires the jail. Its memory group, before. */
static ino_t jail_that_ends(struct world *w, const char *name, const struct limits *l,
                            void (*body)(void))
{
    struct cgroup c = make_jail(w, name, l);
    ino_t group = memory_group(w, name);
    int alive, status;
    pid_t pid = start(&c, -1, body, &alive);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(alive);
    cgroup_close(&c);
    retire_jail(w, name);
    assert_int_equal(memory_group(w, name), 0);
    return group;
}

static uint64_t number_of(struct world *w, const char *name, const char *file)
{
    const char *text = file_of(w, CGROUP_TREE_MEMORY, name, file);
    return text ? strtoull(text, NULL, 10) : 0;
}

/* 48 MiB. */
static void use_some_memory(void)
{
    size_t len = 48 * MIB;
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        _exit(98);
    memset(p, 1, len);
}

/* With so much memory used that the kernel does not put off counting. */
static void leave_a_file(void)
{
    use_some_memory();
    write_a_file();
}

static void do_nothing(void)
{
}

static void leave_a_member(void)
{
    if (!fork())
        sleep_long();
}

/* A jail may get the memory group of one before, but nothing else of it. */
static void a_used_memory_group_is_as_a_new_one(void **state)
{
    struct world *w = need(state);
    const struct limits l = {.memory = 64 * MIB, .pids = 16};
    ino_t first = jail_that_ends(w, "used", &l, use_some_memory);
    if (w->host.layout == CGROUP_V2)
        skip_because("used memory groups are of v1");
    assert_int_equal(memory_group(w, "used-0"), first);

    struct cgroup c;
    ASSERT_OK(cgroup_create(&w->host, "next", &c, &err));
    assert_int_equal(memory_group(w, "next"), first);
    assert_int_equal(memory_group(w, "used-0"), 0);

    assert_true(number_of(w, "next", "memory.limit_in_bytes") > 1ULL << 40);
    assert_true(number_of(w, "next", "memory.memsw.limit_in_bytes") == 0 ||
                number_of(w, "next", "memory.memsw.limit_in_bytes") > 1ULL << 40);
    assert_true(number_of(w, "next", CGROUP_SOCKETS_FILE) > 1ULL << 40);
    assert_true(number_of(w, "next", "memory.usage_in_bytes") <= USED_CHARGE_MAX);
    assert_true(number_of(w, "next", "memory.max_usage_in_bytes") <= USED_CHARGE_MAX);
    assert_int_equal(number_of(w, "next", "memory.failcnt"), 0);

    struct cgroup_stats s;
    cgroup_read_stats(&w->host, "next", &s);
    assert_int_equal(s.oom_kills, 0);
    assert_int_equal(s.pids_refused, 0);
    assert_int_equal(s.cpu_usec, 0);
    assert_int_equal(s.pids_now, 0);
    assert_true(s.memory_peak <= USED_CHARGE_MAX);
    cgroup_close(&c);
    remove_jail(w, "next");
    assert_int_equal(memory_group(w, "used-0"), 0);
}

/* How much of the file is in memory. */
static size_t pages_there(const char *path)
{
    static unsigned char is_there[MIB / 4096];
    size_t count = 0;

    auto_fd fd = open(path, O_RDONLY | O_CLOEXEC);
    void *p = mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(p != MAP_FAILED);
    ASSERT_OK(mincore(p, MIB, is_there));
    munmap(p, MIB);
    for (size_t i = 0; i < sizeof is_there; i++)
        count += is_there[i] & 1;
    return count;
}

/* A jail's own, which nobody has read before; the path stays in churn_path. */
static ino_t jail_with_a_file(struct world *w, int number)
{
    char name[16];
    snprintf(name, sizeof name, "reads-%d", number);
    snprintf(churn_path, sizeof churn_path, "/var/tmp/paddock-cgroup-%d-%d", (int)getpid(), number);
    return jail_that_ends(w, name, &LIMITS_DEFAULT, leave_a_file);
}

/* What a jail has read the next one need not read from the disk; but it is not charged for it, and
 * so many groups are kept and no more. */
static void files_in_memory_outlive_their_jail(void **state)
{
    enum { KEPT = 16, DELETED = 5 };
    struct world *w = need(state);
    struct statfs fs;
    char path[KEPT + 2][64];

    if (w->host.layout == CGROUP_V2)
        skip_because("memory groups are kept on v1");
    ASSERT_OK(statfs("/var/tmp", &fs));
    if (fs.f_type == TMPFS_MAGIC)
        skip_because("/var/tmp is in memory, so its page cache cannot be dropped");

    for (int i = 0; i < KEPT + 2; i++) {
        if (i == KEPT)
            ASSERT_OK(unlink(path[DELETED])); /* its pages go, so its group makes room first */
        ino_t group = jail_with_a_file(w, i);
        memcpy(path[i], churn_path, sizeof path[i]);
        char kept[16];
        snprintf(kept, sizeof kept, "files-%d", i);
        assert_int_equal(memory_group(w, kept), i < KEPT ? group : 0);
        assert_true(pages_there(path[i]) > MIB / 4096 / 2);
    }

    int left = 0;
    for (int i = 0; i < KEPT + 2; i++)
        left += i != DELETED && pages_there(path[i]) > MIB / 4096 / 2;
    assert_int_equal(left, KEPT); /* and one more has */

    struct cgroup c = make_jail(w, "next", &LIMITS_DEFAULT);
    assert_true(number_of(w, "next", "memory.usage_in_bytes") <= USED_CHARGE_MAX);
    cgroup_close(&c);
    remove_jail(w, "next");

    for (int i = 0; i < KEPT; i++) {
        char kept[16];
        snprintf(kept, sizeof kept, "files-%d", i);
        remove_jail(w, kept);
    }
    for (int i = 0; i < KEPT + 2; i++)
        unlink(path[i]);
}

/* What cannot be set back, or is not over, ends with its jail. */
static void a_spoilt_memory_group_is_not_used_again(void **state)
{
    struct world *w = need(state);
    if (w->host.layout == CGROUP_V2)
        skip_because("used memory groups are of v1");
    (void)jail_that_ends(w, "killed", &(struct limits){.memory = 32 * MIB}, eat_memory);
    assert_int_equal(memory_group(w, "used-0"), 0);

    /* The control, and no more than so many are kept. */
    for (int i = 0; i < 12; i++) {
        char name[16];
        snprintf(name, sizeof name, "many-%d", i);
        struct cgroup c = make_jail(w, name, &LIMITS_DEFAULT);
        cgroup_close(&c);
    }
    for (int i = 0; i < 12; i++) {
        char name[16];
        snprintf(name, sizeof name, "many-%d", i);
        retire_jail(w, name);
    }
    assert_true(memory_group(w, "used-7") != 0);
    assert_int_equal(memory_group(w, "used-8"), 0);
    for (int i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "used-%d", i);
        remove_jail(w, name);
    }

    /* Somebody lives there: nothing is touched until he is gone. */
    struct cgroup c = make_jail(w, "lives", &(struct limits){.memory = 64 * MIB, .pids = 16});
    int alive, status;
    pid_t pid = start(&c, -1, leave_a_member, &alive);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(cgroup_retire(&w->host, "lives"), -EBUSY);
    assert_true(memory_group(w, "lives") != 0);
    ASSERT_OK(cgroup_kill(&w->host, "lives"));
    assert_true(ends_within(alive, PATIENCE_NS));
    close(alive);
    cgroup_close(&c);
    remove_jail(w, "lives");
    (void)jail_that_ends(w, "quiet", &LIMITS_DEFAULT, do_nothing);
    remove_jail(w, "used-0");
}

int main(void)
{
    const struct CMUnitTest real[] = {
        cmocka_unit_test(a_used_memory_group_is_as_a_new_one),
        cmocka_unit_test(files_in_memory_outlive_their_jail),
        cmocka_unit_test(a_spoilt_memory_group_is_not_used_again),
    };
    int failed = cmocka_run_group_tests_name("cgroup on this host", real, open_native, close_world);
    failed += cmocka_run_group_tests_name("cgroup on v1", real, open_v1, close_world);
    return failed;
}
