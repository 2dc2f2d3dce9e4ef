/* The keeper's protocol with good, forgetful, deaf and mad clients. */
#include "keeper_peer.h"

#include <poll.h>

static int setup(void **state)
{
    static struct keeper_run k;
    *state = &k;
    k.pid = 0;
    if (geteuid() == 0)
        keeper_begin(&k, 1, 0, 1);
    return 0;
}

static int teardown(void **state)
{
    struct keeper_run *k = *state;
    if (k->pid)
        keeper_end(k);
    return 0;
}

static void run_true(int control)
{
    auto_frame f = FRAME_INIT;
    static const char *const yes[] = {"/bin/true", NULL};
    EXEC(control, .id = 1, .argv = yes, .uid = 1000);
    expect_type(control, &f, WIRE_STARTED, 1);
    expect_type(control, &f, WIRE_EXITED, 1);
    assert_int_equal(send_plain(control, WIRE_ACK, 1, 0), 0);
}

static void test_a_jail_is_made_used_and_ended(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), control;
    send_create(c, 1, 0, &control, NULL);

    pid_t pid = expect_created(c, &k->f, 1);
    run_true(control);
    send_destroy(c, 2, 1);
    expect_gone(c, &k->f, 2, 1, GONE_DESTROYED);
    assert_int_equal(kill(pid, 0), -1);
    expect_closed(control);
    close(control);
    close(c);
}

static void test_a_repeated_create_makes_no_second_jail(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), control, second;
    send_create(c, 1, 0, &control, NULL);
    send_create(c, 1, 0, &second, NULL); /* before the answer */

    pid_t pid = expect_created(c, &k->f, 1);
    send_create(c, 1, 0, &second, NULL); /* and after it */
    assert_int_equal(expect_created(c, &k->f, 1), pid);
    assert_int_equal(list_count(c, &k->f, 2, 1, NULL), 1);

    run_true(control); /* the first one's socket counts */
    close(second);
    close(control);
    close(c);
    await_death(pid);
}

static void test_what_does_not_exist_cannot_be_ended(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    struct pd_err e;
    int c = client_open(k);
    send_destroy(c, 1, 77);
    expect_error(c, &k->f, 1, PD_NOT_FOUND, &e);
    assert_int_equal(send_plain(c, WIRE_DESTROY, 2, 0), 0); /* no payload */
    expect_error(c, &k->f, 2, PD_PROTOCOL, &e);
    close(c);
}

static void test_bad_requests_are_refused_and_the_client_stays(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    struct pd_err e;
    int c = client_open(k);
    static const enum wire_type others[] = {0,          WIRE_EXEC,       WIRE_BUILD,
                                            WIRE_BUILT, WIRE_GONE,       WIRE_ERROR,
                                            WIRE_SWEEP, WIRE_TYPE_COUNT, 0xffff};
    for (uint32_t i = 0; i < COUNT(others); i++) {
        assert_int_equal(send_plain(c, others[i], i, 0), 0);
        expect_error(c, &k->f, i, PD_PROTOCOL, &e);
    }

    int before = fds_of(k->pid);
    for (unsigned n = 0; n <= WIRE_FDS_MAX; n++) {
        auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
        struct msg_create m = {.spec = SPEC_DEFAULT};
        if (n == 2)
            m.spec.limits.pids = 0;
        msg_create_encode(&b, &m);
        if (n == 3)
            b.len--;
        struct wire_head head = {.type = WIRE_CREATE, .id = id_of(20 + n)};
        int fds[WIRE_FDS_MAX] = {c, c, c, c, c, c};
        assert_int_equal(wire_send(c, &head, &b, fds, n, 0), 0);
        expect_error(c, &k->f, 20 + n, n == 2 ? PD_INVALID : PD_PROTOCOL, &e);
    }

    assert_int_equal(fds_settle(k->pid, before), before);
    close(c);
}

static void test_what_breaks_the_format_ends_only_that_client(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int witness = client_open(k), control;
    send_create(witness, 1, 0, &control, NULL);
    pid_t pid = expect_created(witness, &k->f, 1);
    assert_int_equal(list_count(witness, &k->f, 99, 0, NULL), 1);

    int before = fds_of(k->pid);
    for (size_t i = 0; i < COUNT(bad_frames); i++) {
        int c = client_open(k);
        send_bad(c, &bad_frames[i], c);
        expect_closed(c);
        close(c);
        if (fds_settle(k->pid, before) != before)
            fail_msg("%s: %d descriptors instead of %d", bad_frames[i].why, fds_of(k->pid), before);
    }

    assert_int_equal(kill(pid, 0), 0);
    assert_int_equal(list_count(witness, &k->f, 2, 1, NULL), 1);
    close(control);
    close(witness);
}

static void test_a_client_that_vanishes_takes_its_jails_along(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int a = client_open(k), b = client_open(k), control[3];
    send_create(a, 1, 0, &control[0], NULL);
    pid_t mine = expect_created(a, &k->f, 1);
    send_create(b, 2, 0, &control[1], NULL);
    pid_t other = expect_created(b, &k->f, 2);
    send_create(a, 3, CREATE_KEEP, &control[2], NULL);
    pid_t kept = expect_created(a, &k->f, 3);
    /* One that is only asked for: it must not come to life after its client. */
    int late;
    send_create(a, 4, 0, &late, NULL);
    EXEC(control[2], .id = 5, .uid = 1000, .script = "exit 7");
    close(a);
    for (unsigned i = 0; i < COUNT(control); i++)
        if (i != 1)
            close(control[i]);
    await_death(mine);
    assert_int_equal(kill(other, 0), 0);
    assert_int_equal(kill(kept, 0), 0);
    expect_closed(late);
    close(late);

    /* Another client finds what was kept, and the end of what runs there. */
    int again = -1;
    deadline d = deadline_in(PATIENCE);
    while (list_count(b, &k->f, 10, 3, &again) != 2 && !deadline_passed(d))
        fd_done(&again);
    assert_true(again >= 0);
    auto_frame f = FRAME_INIT;
    unsigned ended = 0;
    deadline wait = deadline_in(PATIENCE);
    for (uint32_t i = 1; !ended && !deadline_passed(wait); i++)
        sync_count(again, &f, 100 + i, 1, &ended);
    assert_int_equal(ended, 1);
    close(again);
    send_destroy(b, 11, 3);
    expect_gone(b, &k->f, 11, 3, GONE_DESTROYED);
    close(control[1]);
    close(b);
    await_death(other);
}

static void test_an_init_that_dies_is_told(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), control;
    send_create(c, 1, 0, &control, NULL);

    pid_t pid = expect_created(c, &k->f, 1);
    kill(pid, SIGKILL);
    expect_gone(c, &k->f, 1, 1, GONE_DIED);
    close(control);

    /* An owner that closes its socket: that ends a jail, unless the keeper was asked for a copy. */
    send_create(c, 2, CREATE_KEEP, &control, NULL);
    pid = expect_created(c, &k->f, 2);
    close(control);

    usleep(100000);
    assert_int_equal(kill(pid, 0), 0);
    send_destroy(c, 3, 2);
    expect_gone(c, &k->f, 3, 2, GONE_DESTROYED);

    send_create(c, 4, 0, &control, NULL);
    pid = expect_created(c, &k->f, 4);
    close(control);
    await_death(pid);
    expect_gone(c, &k->f, 4, 4, GONE_DIED);
    close(c);
}

static void send_key(int sock, enum wire_type type, uint32_t id, const char *key, const int *fds,
                     unsigned fd_count)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_key_encode(&b, &(struct msg_key){.key = key});
    struct wire_head head = {.type = (uint16_t)type, .id = id_of(id)};
    assert_int_equal(wire_send(sock, &head, &b, fds, fd_count, deadline_in(PATIENCE)), 0);
}

static void test_descriptors_are_kept_for_the_next_client(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    struct pd_err e;
    int a = client_open(k), p[2];
    assert_int_equal(list_count(a, &k->f, 99, 0, NULL), 0);
    int before = fds_of(k->pid);
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    send_key(a, WIRE_STASH, 1, "pipe", p, 2);
    expect_type(a, &k->f, WIRE_DONE, 1);
    send_key(a, WIRE_STASH, 2, "pipe", p, 2);
    expect_error(a, &k->f, 2, PD_CONFLICT, &e);
    send_key(a, WIRE_STASH, 3, "", NULL, 0);
    expect_type(a, &k->f, WIRE_DONE, 3);
    close(p[0]);
    close(p[1]);
    close(a);

    a = client_open(k);
    send_key(a, WIRE_FETCH, 4, "other", NULL, 0);
    expect_error(a, &k->f, 4, PD_NOT_FOUND, &e);
    send_key(a, WIRE_FETCH, 5, "pipe", NULL, 0);
    expect_type(a, &k->f, WIRE_STASHED, 5);
    assert_int_equal(k->f.fd_count, 2);
    char byte = 0;
    assert_int_equal(write(k->f.fds[1], "x", 1), 1);
    assert_int_equal(read(k->f.fds[0], &byte, 1), 1);
    assert_int_equal(byte, 'x');
    send_key(a, WIRE_FETCH, 6, "", NULL, 0);
    expect_type(a, &k->f, WIRE_STASHED, 6);
    assert_int_equal(k->f.fd_count, 0);
    for (uint32_t i = 7; i < 9; i++) { /* a repeated DROP is done already */
        send_key(a, WIRE_DROP, i, "pipe", NULL, 0);
        expect_type(a, &k->f, WIRE_DONE, i);
    }
    send_key(a, WIRE_FETCH, 10, "pipe", NULL, 0);
    expect_error(a, &k->f, 10, PD_NOT_FOUND, &e);
    assert_int_equal(fds_settle(k->pid, before), before);
    close(a);
}

/* A client that dies with an answer unread resets its socket: the kernel tells that before it gives
 * what was sent in time. */
static void test_what_a_dead_client_said_last_is_heard(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int a = client_open(k);
    char key[8] = "s1";
    send_key(a, WIRE_STASH, 1, key, NULL, 0);

    struct pollfd answer = {.fd = a, .events = POLLIN};
    assert_int_equal(poll(&answer, 1, (int)(PATIENCE / NS_PER_MS)), 1);
    assert_int_equal(kill(k->pid, SIGSTOP), 0);

    for (uint32_t i = 2; i < 9; i++) {
        snprintf(key, sizeof key, "s%u", i);
        send_key(a, WIRE_STASH, i, key, NULL, 0);
    }
    close(a);
    assert_int_equal(kill(k->pid, SIGCONT), 0);

    a = client_open(k);
    for (uint32_t i = 1; i < 9; i++) {
        snprintf(key, sizeof key, "s%u", i);
        send_key(a, WIRE_FETCH, 20 + i, key, NULL, 0);
        expect_type(a, &k->f, WIRE_STASHED, 20 + i);
        send_key(a, WIRE_DROP, 40 + i, key, NULL, 0);
        expect_type(a, &k->f, WIRE_DONE, 40 + i);
    }
    close(a);
}

/* The shortest of ten: a busy machine holds up some of them, a keeper that waits for a client all.
 */
static uint64_t time_to_list(struct keeper_run *k, int sock, uint32_t first)
{
    uint64_t best = UINT64_MAX;
    for (uint32_t i = 0; i < 10; i++) {
        uint64_t start = clock_now();
        assert_int_equal(list_count(sock, &k->f, first + i, 0, NULL), 0);
        uint64_t took = clock_now() - start;
        best = took < best ? took : best;
    }
    return best;
}

static void test_a_deaf_client_does_not_grow_the_keeper(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int deaf = client_open(k), other = client_open(k), quiet = 0;
    int fds[WIRE_FDS_MAX] = {other, other, other, other, other, other};
    send_key(deaf, WIRE_STASH, 1, "six", fds, WIRE_FDS_MAX);
    expect_type(deaf, &k->f, WIRE_DONE, 1);

    uint64_t calm = time_to_list(k, other, 10);
    int before = fds_of(k->pid);
    long memory = resident(k->pid);
    for (uint32_t i = 0; quiet < 50; i++) {
        auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
        msg_key_encode(&b, &(struct msg_key){.key = "six"});
        struct wire_head head = {.type = WIRE_FETCH, .id = id_of(i)};
        if (wire_send(deaf, &head, &b, NULL, 0, 0) == 0) {
            quiet = 0;
        } else {
            quiet++;
            usleep(5000);
        }
    }

    assert_true(fds_of(k->pid) - before < 64);
    assert_true(resident(k->pid) - memory < 1024);
    assert_true(time_to_list(k, other, 20) < 100 * NS_PER_MS + 10 * calm);
    close(deaf);
    assert_true(fds_settle(k->pid, before - 1) == before - 1);
    close(other);
}

static void test_each_client_that_says_hello_has_a_higher_epoch(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    uint64_t last = 0;
    for (uint32_t i = 0; i < 3; i++) {
        int c = client_open(k);
        struct msg_welcome m;
        struct pd_err e;
        assert_int_equal(send_plain(c, WIRE_HELLO, i, 0), 0);
        expect_type(c, &k->f, WIRE_WELCOME, i);
        assert_int_equal(msg_welcome_decode(&k->f.payload, &m, &e), 0);
        assert_true(k->f.head.epoch > last);
        last = k->f.head.epoch;
        close(c);
    }
}

static void test_a_keeper_that_ends_takes_everything_along(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), control[3];
    pid_t pids[3];
    for (uint32_t i = 0; i < 3; i++) {
        send_create(c, i, i == 2 ? CREATE_KEEP : 0, &control[i], NULL);
        pids[i] = expect_created(c, &k->f, i);
    }

    keeper_end(k);
    k->pid = 0;
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(kill(pids[i], 0), -1);
        close(control[i]);
    }
    close(c);
}

#define KEPT(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        KEPT(test_a_jail_is_made_used_and_ended),
        KEPT(test_a_repeated_create_makes_no_second_jail),
        KEPT(test_what_does_not_exist_cannot_be_ended),
        KEPT(test_bad_requests_are_refused_and_the_client_stays),
        KEPT(test_what_breaks_the_format_ends_only_that_client),
        KEPT(test_a_client_that_vanishes_takes_its_jails_along),
        KEPT(test_an_init_that_dies_is_told),
        KEPT(test_descriptors_are_kept_for_the_next_client),
        KEPT(test_what_a_dead_client_said_last_is_heard),
        KEPT(test_a_deaf_client_does_not_grow_the_keeper),
        KEPT(test_each_client_that_says_hello_has_a_higher_epoch),
        KEPT(test_a_keeper_that_ends_takes_everything_along),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
