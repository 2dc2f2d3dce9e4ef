#include "unit.h"

#include "base/err.h"
#include "base/fd.h"
#include "jail/identity.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct place {
    char dir[64];
};

static int make_place(void **state)
{
    static struct place p;
    snprintf(p.dir, sizeof p.dir, "/tmp/paddock-identity-XXXXXX");
    *state = &p;
    return mkdtemp(p.dir) ? 0 : -1;
}

static int remove_place(void **state)
{
    struct place *p = *state;
    char path[128];
    snprintf(path, sizeof path, "%s/ranges", p->dir);
    unlink(path);
    return rmdir(p->dir);
}

static void open_ranges(const struct place *p, struct ranges *r)
{
    struct pd_err e = {.msg = ""};
    if (ranges_open(r, p->dir, 0, &e) < 0)
        fail_msg("%s", e.msg);
}

#define FREE 40u

/* Another keeper that has everything but FREE ranges from `first` on: so that running out of them
 * is quick. Close the result. */
static int occupy(const struct place *p, uint32_t first)
{
    char path[128];
    snprintf(path, sizeof path, "%s/ranges", p->dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct flock below = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = first};
    struct flock above = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first + FREE};
    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &below), 0);
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &above), 0);
    return fd;
}

static void test_ranges_do_not_overlap_and_stay_below_2_31(void **state)
{
    (void)state;
    for (uint32_t slot = 0; slot < RANGE_COUNT; slot++) {
        uint64_t first = identity_host_id(slot, 0), last = identity_host_id(slot, RANGE_SIZE - 1);
        assert_true(first == (uint64_t)RANGE_BASE + (uint64_t)slot * RANGE_SIZE);
        assert_true(last == first + RANGE_SIZE - 1);
        assert_true(last < 1ULL << 31);
    }
    assert_int_equal(identity_host_id(3, UID_USER), RANGE_BASE + 3 * RANGE_SIZE + UID_USER);
    assert_int_equal(identity_host_id(RANGE_NONE, UID_INIT), UID_USER);
}

static void test_a_keeper_never_gets_a_range_twice(void **state)
{
    struct ranges r;
    struct pd_err e;
    uint8_t taken[FREE];
    memset(taken, 0, sizeof taken);

    auto_fd others = occupy(*state, 4700);
    (void)others; /* closed at the end */
    open_ranges(*state, &r);
    for (uint32_t i = 0; i < FREE; i++) {
        uint32_t slot = range_take(&r, &e);
        assert_true(slot >= 4700 && slot < 4700 + FREE);
        assert_int_equal(taken[slot - 4700]++, 0);
    }
    assert_int_equal(range_take(&r, &e), RANGE_NONE);
    assert_int_equal(e.code, PD_CAPACITY);

    /* The one that is given back, and no other, is there again. */
    range_release(&r, 4711);
    assert_int_equal(range_take(&r, &e), 4711);
    assert_int_equal(range_take(&r, &e), RANGE_NONE);
    ranges_done(&r);
}

static void test_keepers_do_not_share_a_range(void **state)
{
    struct ranges a, b;
    struct pd_err e;
    uint8_t taken[FREE];
    memset(taken, 0, sizeof taken);

    auto_fd others = occupy(*state, 4700);
    (void)others; /* closed at the end */
    open_ranges(*state, &a);
    open_ranges(*state, &b);
    for (uint32_t i = 0; i < FREE; i++) {
        uint32_t slot = range_take(i % 2 ? &a : &b, &e);
        assert_true(slot >= 4700 && slot < 4700 + FREE);
        assert_int_equal(taken[slot - 4700]++, 0);
    }
    assert_int_equal(range_take(&a, &e), RANGE_NONE);
    assert_int_equal(range_take(&b, &e), RANGE_NONE);

    /* One that ends, for whatever reason, leaves its ranges to the other. */
    ranges_done(&a);
    for (uint32_t i = 0; i < FREE / 2; i++)
        assert_int_not_equal(range_take(&b, &e), RANGE_NONE);
    ranges_done(&b);
}

/* Keepers for many jails lock blocks; the small ones get along with them. */
static void test_blocks_and_single_ranges_do_not_overlap(void **state)
{
    struct place *p = *state;
    struct ranges a, b, small;
    struct pd_err e;
    static uint8_t taken[RANGE_COUNT];

    memset(taken, 0, sizeof taken);
    assert_int_equal(ranges_open(&a, p->dir, 1, &e), 0);
    assert_int_equal(ranges_open(&b, p->dir, 1, &e), 0);
    open_ranges(p, &small);

    uint32_t total = 0, last = RANGE_NONE;
    for (uint32_t i = 0;; i++) {
        uint32_t slot = range_take(i % 2 ? &a : &b, &e);
        if (slot == RANGE_NONE)
            break;
        assert_true(slot < RANGE_COUNT);
        assert_int_equal(taken[slot]++, 0);
        if (i % 2)
            last = slot;
        total++;
        if (i < 50) {
            slot = range_take(&small, &e);
            assert_true(slot < RANGE_COUNT);
            assert_int_equal(taken[slot]++, 0);
        }
    }

    assert_int_equal(e.code, PD_CAPACITY);
    assert_true(total > RANGE_COUNT - 60 * RANGE_BLOCK);
    range_release(&a, last);
    assert_int_equal(range_take(&a, &e), last);
    ranges_done(&a);
    assert_int_not_equal(range_take(&b, &e), RANGE_NONE);
    ranges_done(&b);
    ranges_done(&small);
}

static void test_a_killed_keeper_leaves_no_lock(void **state)
{
    struct ranges r;
    struct pd_err e;
    int ready[2];
    auto_fd others = occupy(*state, 1);
    (void)others; /* closed at the end */
    assert_int_equal(pipe(ready), 0);

    pid_t pid = child_fork();
    if (pid == 0) {
        for (uint32_t i = 0; i < FREE; i++) {
            if (i == 0)
                open_ranges(*state, &r);
            if (range_take(&r, &e) == RANGE_NONE)
                _exit(1);
        }
        (void)!write(ready[1], "", 1);
        pause();
    }

    char byte;
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);

    open_ranges(*state, &r);
    assert_int_equal(range_take(&r, &e), RANGE_NONE);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_int_not_equal(range_take(&r, &e), RANGE_NONE);
    ranges_done(&r);
}

/* What a dead keeper's sandbox has left running must not meet the next sandbox. */
static void test_a_range_with_processes_is_passed_over(void **state)
{
    struct ranges r;
    struct pd_err e;
    const uint32_t first = 9000, busy = first + 1;
    if (geteuid() != 0)
        skip_because("needs root, to become somebody else");

    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t pid = child_fork();
    if (pid == 0) {
        alarm(100);
        if (setuid(identity_host_id(busy, UID_USER)) < 0)
            _exit(1);
        child_bind();
        (void)!write(ready[1], "", 1);
        for (;;)
            pause();
    }
    char byte;
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    assert_false(identity_is_idle(identity_host_id(busy, UID_USER)));

    /* Sandboxes of others may have some of these ranges now: they are passed over as well. */
    auto_fd others = occupy(*state, first);
    (void)others; /* closed at the end */
    open_ranges(*state, &r);
    unsigned given = 0;
    for (uint32_t slot; (slot = range_take_idle(&r, &e)) != RANGE_NONE; given++)
        assert_int_not_equal(slot, busy);
    assert_int_equal(e.code, PD_CAPACITY);
    assert_true(given > 0 && given < FREE);
    ranges_done(&r);

    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void test_a_release_that_makes_no_sense_does_nothing(void **state)
{
    struct ranges a, b;
    struct pd_err e;
    auto_fd others = occupy(*state, RANGE_COUNT - FREE);
    (void)others; /* closed at the end */
    open_ranges(*state, &a);
    open_ranges(*state, &b);

    uint32_t slot = range_take(&a, &e);
    range_release(&b, slot); /* another keeper's */
    range_release(&b, RANGE_NONE);
    range_release(&b, RANGE_COUNT);
    for (uint32_t i = 1; i < FREE; i++)
        assert_int_not_equal(range_take(&b, &e), slot);
    assert_int_equal(range_take(&b, &e), RANGE_NONE);

    range_release(&a, slot);
    range_release(&a, slot);
    assert_int_equal(range_take(&b, &e), slot);
    ranges_done(&a);
    ranges_done(&b);
}

static void test_the_file_is_private_and_no_link(void **state)
{
    struct place *p = *state;
    struct ranges r;
    struct pd_err e;
    char path[128];
    struct stat st;

    snprintf(path, sizeof path, "%s/ranges", p->dir);
    assert_int_equal(symlink("/dev/null", path), 0);
    assert_int_equal(ranges_open(&r, p->dir, 0, &e), -1);
    unlink(path);

    open_ranges(p, &r);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    ranges_done(&r);
    assert_int_equal(ranges_open(&r, "/no/such/dir", 0, &e), -1);
    assert_true(strlen(e.msg) > 0);
}

#define IN_PLACE(test) cmocka_unit_test_setup_teardown(test, make_place, remove_place)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges_do_not_overlap_and_stay_below_2_31),
        IN_PLACE(test_a_keeper_never_gets_a_range_twice),
        IN_PLACE(test_keepers_do_not_share_a_range),
        IN_PLACE(test_blocks_and_single_ranges_do_not_overlap),
        IN_PLACE(test_a_killed_keeper_leaves_no_lock),
        IN_PLACE(test_a_range_with_processes_is_passed_over),
        IN_PLACE(test_a_release_that_makes_no_sense_does_nothing),
        IN_PLACE(test_the_file_is_private_and_no_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
