/* Complete kits of a real keeper: used once, thrown away when they have died, nobody's until they
 * are adopted. */
#include "keeper_peer.h"

#define KITS_EACH 2u
#define KITS_ALL  (2 * KITS_EACH)

static int setup(void **state)
{
    static struct keeper_run k;
    *state = &k;
    k.pid = 0;
    if (geteuid() == 0)
        keeper_begin(&k, 2, KITS_EACH, 1);
    return 0;
}

static int teardown(void **state)
{
    struct keeper_run *k = *state;
    if (k->pid)
        keeper_end(k);
    return 0;
}

/* The inits among the keeper's children. */
static unsigned inits(const struct keeper_run *k, pid_t *ret, unsigned max)
{
    char path[64], text[4096], comm[64];
    unsigned n = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)k->pid, (int)k->pid);
    if (fd_read_file(AT_FDCWD, path, text, sizeof text) <= 0)
        return 0;

    for (char *p = text, *next; n < max; p = next) {
        long pid = strtol(p, &next, 10);
        if (next == p)
            break;
        snprintf(path, sizeof path, "/proc/%ld/comm", pid);
        if (fd_read_file(AT_FDCWD, path, comm, sizeof comm) > 0 && !strcmp(comm, "paddock-init\n"))
            ret[n++] = (pid_t)pid;
    }

    return n;
}

/* Waits until so many wait, and returns their pids. */
static void await_inits(const struct keeper_run *k, pid_t *ret, unsigned want)
{
    deadline d = deadline_in(PATIENCE);
    while (inits(k, ret, 64) != want) {
        if (deadline_passed(d))
            fail_msg("%u inits instead of %u", inits(k, ret, 64), want);
        usleep(5000);
    }
}

static int is_among(pid_t pid, const pid_t *pids, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (pids[i] == pid)
            return 1;
    return 0;
}

static void run_true(int control)
{
    auto_frame f = FRAME_INIT;
    static const char *const yes[] = {"/bin/true", NULL};
    EXEC(control, .id = 1, .argv = yes, .uid = 1000);
    expect_type(control, &f, WIRE_STARTED, 1);
    expect_type(control, &f, WIRE_EXITED, 1);
}

static void test_a_kit_becomes_a_jail_and_another_one_is_made(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    pid_t kits[64];
    int c = client_open(k), control;
    await_inits(k, kits, KITS_ALL);
    assert_int_equal(list_count(c, &k->f, 1, 1, NULL), 0); /* nobody's: they are no jails yet */

    send_create(c, 2, 0, &control, NULL);
    pid_t pid = expect_created(c, &k->f, 2);
    assert_true(is_among(pid, kits, KITS_ALL));
    run_true(control);
    assert_int_equal(list_count(c, &k->f, 3, 2, NULL), 1);

    pid_t now[64];
    await_inits(k, now, KITS_ALL + 1);
    send_destroy(c, 4, 2);
    expect_gone(c, &k->f, 4, 2, GONE_DESTROYED);
    assert_int_equal(kill(pid, 0), -1);
    close(control);
    close(c);
}

static void test_a_kit_that_was_killed_is_thrown_away(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    pid_t kits[64];
    int c = client_open(k), control;
    await_inits(k, kits, KITS_ALL);

    /* The keeper stands still, so that it hears of the request before it hears of the deaths. */
    kill(k->pid, SIGSTOP);
    for (unsigned i = 0; i < KITS_ALL; i++)
        kill(kits[i], SIGKILL);
    for (unsigned i = 0; i < KITS_ALL; i++) {
        char path[64], text[1024];
        deadline d = deadline_in(PATIENCE);
        snprintf(path, sizeof path, "/proc/%d/stat", (int)kits[i]);
        do
            assert_false(deadline_passed(d));
        while (fd_read_file(AT_FDCWD, path, text, sizeof text) > 0 && !strstr(text, ") Z "));
    }
    send_create(c, 1, 0, &control, NULL);
    kill(k->pid, SIGCONT);

    pid_t pid = expect_created(c, &k->f, 1);
    assert_false(is_among(pid, kits, KITS_ALL));
    run_true(control);
    send_destroy(c, 2, 1);
    expect_gone(c, &k->f, 2, 1, GONE_DESTROYED);
    pid_t now[64];
    await_inits(k, now, KITS_ALL);
    close(control);
    close(c);
}

/* A kit that was killed, and is not gone yet when somebody asks for a jail, is nobody's jail.
 * PADDOCK_NIGHTLY=1 plays more rounds. */
static void test_a_kit_with_its_death_before_it_is_never_adopted(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    unsigned rounds = getenv("PADDOCK_NIGHTLY") ? 3000 : 100;
    pid_t kits[64];
    int c = client_open(k), control;

    for (uint32_t i = 0; i < rounds; i++) {
        await_inits(k, kits, KITS_ALL);
        for (unsigned j = 0; j < KITS_ALL; j++)
            kill(kits[j], SIGKILL);
        send_create(c, 2 * i + 2, 0, &control, NULL);

        pid_t pid = expect_created(c, &k->f, 2 * i + 2);
        if (is_among(pid, kits, KITS_ALL))
            fail_msg("round %u: a kit that was killed became a jail", i);
        run_true(control);
        send_destroy(c, 2 * i + 3, 2 * i + 2);
        expect_gone(c, &k->f, 2 * i + 3, 2 * i + 2, GONE_DESTROYED);
        close(control);
    }
    close(c);
}

static void test_a_keeper_that_is_killed_takes_its_kits_along(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    pid_t kits[64];
    await_inits(k, kits, KITS_ALL);
    kill(k->pid, SIGKILL);
    waitpid(k->pid, NULL, 0);

    for (unsigned i = 0; i < KITS_ALL; i++)
        await_death(kits[i]);
    frame_done(&k->f);
    k->pid = 0;
    unlink(k->path);
    assert_int_equal(rmdir(k->dir), 0);
}

/* In a process of its own: makes and ends jails as fast as it can. PADDOCK_NIGHTLY=1 makes more. */
static void creator(const struct keeper_run *k)
{
    auto_frame f = FRAME_INIT;
    int c = client_open(k);
    unsigned rounds = getenv("PADDOCK_NIGHTLY") ? 2000 : 300;

    for (uint32_t i = 0; i < rounds; i++) {
        int control;
        uint32_t jail = ((uint32_t)getpid() << 12) + 2 * i;
        send_create(c, jail, 0, &control, NULL);
        pid_t pid = expect_created(c, &f, jail);
        run_true(control);
        send_destroy(c, jail + 1, jail);
        expect_gone(c, &f, jail + 1, jail, GONE_DESTROYED);
        if (kill(pid, 0) == 0)
            _exit(2);
        close(control);
        if (i % 8 == 0)
            usleep(5000); /* so that there are kits again */
    }

    _exit(0);
}

/* Hundreds of creations by two at once, thousands at night: each jail runs its own command, and
 * none is lost. */
static void test_two_creators_share_the_kits(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    pid_t kits[64], children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = child_fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0)
            creator(k);
    }

    for (int i = 0; i < 2; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }

    int c = client_open(k);
    assert_int_equal(list_count(c, &k->f, 1, 1, NULL), 0);
    close(c);
    await_inits(k, kits, KITS_ALL);
}

#define KEPT(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        KEPT(test_a_kit_becomes_a_jail_and_another_one_is_made),
        KEPT(test_a_kit_that_was_killed_is_thrown_away),
        KEPT(test_a_kit_with_its_death_before_it_is_never_adopted),
        KEPT(test_a_keeper_that_is_killed_takes_its_kits_along),
        KEPT(test_two_creators_share_the_kits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
