/* Init in the profile `dev`: whoever is in the jail may connect to the sudo socket. All that gives
 * is a command as sandbox root; it must not give anything over the owner or over other peers. */
#include "init_run.h"

#include <sys/un.h>

static int setup(void **state)
{
    static struct init_run r;
    *state = &r;
    r.sock = -1;
    if (geteuid() == 0)
        init_start(&r, INIT_ARG_DEV, 1);
    return 0;
}

static void need_root(void)
{
    if (geteuid() != 0)
        skip_because("needs root: a /run of its own for the sudo socket");
}

/* A connection as the shim makes it. */
static int connect_sudo(const struct init_run *r)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int n =
        snprintf(a.sun_path, sizeof a.sun_path, "/proc/%d/root%s", (int)r->pid, INIT_SUDO_SOCKET);
    assert_true(n > 0 && (size_t)n < sizeof a.sun_path);

    deadline d = deadline_in(PATIENCE);
    for (;;) {
        int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        assert_true(s >= 0);
        if (connect(s, (struct sockaddr *)&a, sizeof a) == 0)
            return s;
        close(s);
        if (deadline_passed(d))
            fail_msg("no sudo socket: %s", strerror(errno));
        usleep(10000);
    }
}

static void test_a_peer_runs_as_root_or_user_and_nobody_else(void **state)
{
    need_root();
    struct init_run *r = *state;
    auto_frame f = FRAME_INIT;
    struct pd_err e;
    char text[64];
    static const uint32_t uids[] = {0, 1000};
    static const uint32_t others[] = {1, 999, 1234, 60000, 60001, 65535, UINT32_MAX};
    for (uint32_t i = 0; i < COUNT(uids); i++) {
        int s = connect_sudo(r), out[2];
        assert_int_equal(pipe2(out, O_CLOEXEC), 0);
        EXEC(s, .id = 1, .uid = uids[i], .script = "id -u", .fds = {0, out[1]});
        close(out[1]);
        expect_type(s, &f, WIRE_STARTED, 1);
        expect_type(s, &f, WIRE_EXITED, 1);
        ssize_t n = read(out[0], text, sizeof text - 1);
        text[n > 0 ? n : 0] = 0;
        assert_int_equal(strtoul(text, NULL, 10), uids[i]);
        close(out[0]);
        close(s);
    }

    int s = connect_sudo(r);
    for (uint32_t i = 0; i < COUNT(others); i++) {
        EXEC(s, .id = i, .uid = others[i], .script = "exit 0");
        expect_error(s, &f, i, PD_DENIED, &e);
    }
    close(s);

    /* The positive control: the owner may name any. */
    EXEC(r->sock, .id = 1, .uid = 1234, .script = "exit 0");
    expect_started(r, 1);
}

static void test_a_peer_sees_and_reaches_only_its_own(void **state)
{
    need_root();
    struct init_run *r = *state;
    auto_frame f = FRAME_INIT;
    struct pd_err e;
    EXEC(r->sock, .id = 1, .script = "sleep 100");
    expect_started(r, 1);
    EXEC(r->sock, .id = 2, .script = "exit 5");
    expect_started(r, 2);
    expect_exited(r, 2);
    int a = connect_sudo(r), b = connect_sudo(r);
    EXEC(a, .id = 3, .script = "sleep 100");
    expect_type(a, &f, WIRE_STARTED, 3);

    /* Neither the owner's command nor that of another peer, and not by a repeated id either. */
    send_signal(b, 10, 1, SIGKILL);
    expect_error(b, &f, 10, PD_NOT_FOUND, &e);
    send_signal(b, 11, 3, SIGKILL);
    expect_error(b, &f, 11, PD_NOT_FOUND, &e);
    assert_int_equal(send_plain(b, WIRE_ACK, 2, 0), 0);
    assert_int_equal(sync_count(b, &f, 12, 0, NULL), 0);
    assert_int_equal(sync_count(b, &f, 13, UINT64_MAX, NULL), 0); /* an epoch of its own */
    EXEC(b, .id = 1, .script = "exit 9", .epoch = UINT64_MAX);
    expect_type(b, &f, WIRE_STARTED, 1);
    expect_type(b, &f, WIRE_EXITED, 1);
    /* Its own, yes. */
    send_signal(a, 14, 3, SIGTERM);
    expect_type(a, &f, WIRE_DONE, 14);
    expect_type(a, &f, WIRE_EXITED, 3);

    unsigned ended;
    assert_int_equal(sync_count(r->sock, &r->f, 20, 0, &ended), 2);
    assert_int_equal(ended, 1);
    static const enum wire_type others[] = {WIRE_LIST, WIRE_STASH, WIRE_CREATE, WIRE_TYPE_COUNT};
    for (uint32_t i = 0; i < COUNT(others); i++) {
        assert_int_equal(send_plain(b, others[i], 30 + i, UINT64_MAX), 0);
        expect_type(b, &f, WIRE_ERROR, 30 + i);
    }
    close(a);
    close(b);
}

static void test_a_peer_cannot_name_a_cgroup_or_a_terminal(void **state)
{
    need_root();
    struct init_run *r = *state;
    auto_frame f = FRAME_INIT;
    struct pd_err e;
    int s = connect_sudo(r);
    EXEC(s, .id = 1, .script = "exit 1", .flags = EXEC_CGROUP, .fd_count = 4);
    expect_error(s, &f, 1, PD_PROTOCOL, &e);
    EXEC(s, .id = 2, .script = "exit 1", .flags = EXEC_PTY | EXEC_CGROUP);
    expect_type(s, &f, WIRE_STARTED, 2); /* flags are not its to set */
    close(s);
}

static void test_a_peer_that_breaks_the_format_ends_alone(void **state)
{
    need_root();
    struct init_run *r = *state;
    EXEC(r->sock, .id = 1, .script = "sleep 100");
    expect_started(r, 1);

    int witness = connect_sudo(r);
    auto_frame f = FRAME_INIT;
    assert_int_equal(sync_count(witness, &f, 1, 0, NULL), 0);

    int before = fds_of(r->pid), first = connect_sudo(r);
    close(first);
    assert_int_equal(fds_settle(r->pid, before), before);

    for (size_t i = 0; i < COUNT(bad_frames); i++) {
        int s = connect_sudo(r);
        send_bad(s, &bad_frames[i], s);
        expect_closed(s);
        close(s);
        if (fds_settle(r->pid, before) != before)
            fail_msg("%s: %d descriptors instead of %d", bad_frames[i].why, fds_of(r->pid), before);
    }

    assert_int_equal(sync_count(witness, &f, 2, 0, NULL), 0);
    assert_int_equal(sync_count(r->sock, &r->f, 3, 0, NULL), 1);
    close(witness);
}

static void test_a_peer_that_leaves_takes_its_command_along(void **state)
{
    need_root();
    struct init_run *r = *state;
    auto_frame f = FRAME_INIT;
    struct msg_started m;
    struct pd_err e;
    int s = connect_sudo(r);
    EXEC(s, .id = 1, .script = "sleep 100 & wait");

    expect_type(s, &f, WIRE_STARTED, 1);
    assert_int_equal(msg_started_decode(&f.payload, &m, &e), 0);
    assert_int_equal(kill(m.pid, 0), 0);
    close(s);

    deadline d = deadline_in(PATIENCE);
    while (kill(-m.pid, 0) == 0 && !deadline_passed(d))
        usleep(5000);
    assert_int_equal(kill(-m.pid, 0), -1);
}

static void test_peers_cannot_fill_the_table(void **state)
{
    need_root();
    struct init_run *r = *state;
    auto_frame f = FRAME_INIT;
    static const char *const yes[] = {"true", NULL};
    int s = connect_sudo(r);
    unsigned refused = 0;
    for (uint32_t i = 0; i < 1100 && !refused; i++) {
        EXEC(s, .id = i, .argv = yes);
        do
            expect_frame(s, &f);
        while (f.head.type == WIRE_EXITED);
        refused += f.head.type == WIRE_ERROR;
    }

    assert_true(refused > 0);
    EXEC(r->sock, .id = 1, .argv = yes);
    expect_started(r, 1);
    close(s);
}

static void test_more_peers_than_there_is_room_for_are_sent_away(void **state)
{
    need_root();
    struct init_run *r = *state;
    auto_frame f = FRAME_INIT;
    int s[40], first = connect_sudo(r);
    assert_int_equal(sync_count(first, &f, 1, 0, NULL), 0); /* init is up */
    int before = fds_of(r->pid) - 1;
    close(first);

    for (unsigned i = 0; i < COUNT(s); i++) {
        s[i] = connect_sudo(r);
        if (i < 32)
            assert_int_equal(sync_count(s[i], &f, i, 0, NULL), 0);
        else
            expect_closed(s[i]);
    }

    EXEC(r->sock, .id = 1, .script = "exit 0");
    expect_started(r, 1);
    expect_exited(r, 1);

    for (unsigned i = 0; i < COUNT(s); i++)
        close(s[i]);
    for (deadline d = deadline_in(PATIENCE); fds_of(r->pid) > before && !deadline_passed(d);)
        usleep(5000);

    int again = connect_sudo(r);
    assert_int_equal(sync_count(again, &f, 1, 0, NULL), 0);
    close(again);
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* How long a command of the owner's takes while several processes send requests that need no answer
 * into a socket, as fast as they can. Half of them take less: a busy machine holds up one or the
 * other, a flood that is served first holds up all. */
static uint64_t time_beside_flood(struct init_run *r, int s, uint32_t first)
{
    pid_t children[3];
    for (unsigned i = 0; i < COUNT(children); i++) {
        children[i] = child_fork();
        if (children[i] == 0) {
            struct wire_head head = {.type = WIRE_ACK, .id = id_of(i)};
            for (;;)
                (void)wire_send(s, &head, NULL, NULL, 0, 0);
        }
    }
    usleep(100000);

    uint64_t took[21];
    for (uint32_t i = 0; i < COUNT(took); i++) {
        uint64_t start = clock_now();
        EXEC(r->sock, .id = first + i, .script = "exit 0");
        expect_started(r, first + i);
        expect_exited(r, first + i);
        took[i] = clock_now() - start;
    }

    for (unsigned i = 0; i < COUNT(children); i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
    qsort(took, COUNT(took), sizeof *took, by_size);
    return took[COUNT(took) / 2];
}

static void test_a_flood_from_a_peer_does_not_starve_the_owner(void **state)
{
    need_root();
    struct init_run *r = *state;
    int s = connect_sudo(r), nobody[2];

    /* The control: the same flood where nobody reads it. */
    pair_make(nobody);
    uint64_t usual = time_beside_flood(r, nobody[0], 0);
    uint64_t took = time_beside_flood(r, s, 100);
    if (took > NS_PER_S && took > 10 * usual)
        fail_msg("the owner waited %llu ms instead of %llu", (unsigned long long)(took / NS_PER_MS),
                 (unsigned long long)(usual / NS_PER_MS));

    close(nobody[0]);
    close(nobody[1]);
    close(s);
}

static void test_a_deaf_peer_does_not_stop_the_others(void **state)
{
    need_root();
    struct init_run *r = *state;
    int deaf = connect_sudo(r), quiet = 0;
    warm_up(deaf);

    long before = resident(r->pid);
    for (uint32_t i = 0; quiet < 20; i++) {
        if (send_plain(deaf, WIRE_HELLO, i, 0) == 0) {
            quiet = 0;
        } else {
            quiet++;
            usleep(5000);
        }
    }

    EXEC(r->sock, .id = 1, .script = "exit 0");
    expect_started(r, 1);
    expect_exited(r, 1);
    assert_true(resident(r->pid) - before < 1024);
    close(deaf);
    EXEC(r->sock, .id = 2, .script = "exit 0");
    expect_started(r, 2);
}

#define OWNED(test) cmocka_unit_test_setup_teardown(test, setup, init_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        OWNED(test_a_peer_runs_as_root_or_user_and_nobody_else),
        OWNED(test_a_peer_sees_and_reaches_only_its_own),
        OWNED(test_a_peer_cannot_name_a_cgroup_or_a_terminal),
        OWNED(test_a_peer_that_breaks_the_format_ends_alone),
        OWNED(test_a_peer_that_leaves_takes_its_command_along),
        OWNED(test_peers_cannot_fill_the_table),
        OWNED(test_more_peers_than_there_is_room_for_are_sent_away),
        OWNED(test_a_flood_from_a_peer_does_not_starve_the_owner),
        OWNED(test_a_deaf_peer_does_not_stop_the_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
