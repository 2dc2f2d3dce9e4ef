/* The keeper when something dies, hangs or lingers at the wrong moment: every request is answered
 * all the same, and the keeper goes on. */
#include "keeper_peer.h"

#include <netinet/in.h>
#include <sys/resource.h>

/* One worker that builds and sweeps, so that stopping it stops both. */
static int setup(void **state)
{
    static struct keeper_run k;
    *state = &k;
    k.pid = 0;
    if (geteuid() == 0)
        keeper_begin(&k, 1, 0, 0);
    return 0;
}

static int teardown(void **state)
{
    struct keeper_run *k = *state;
    if (k->pid)
        keeper_end(k);
    return 0;
}

static void expect_create_works(struct keeper_run *k, int c, uint32_t id)
{
    int control;
    send_create(c, id, 0, &control, NULL);
    pid_t pid = expect_created(c, &k->f, id);
    send_destroy(c, id + 1, id);
    expect_gone(c, &k->f, id + 1, id, GONE_DESTROYED);
    assert_int_equal(kill(pid, 0), -1);
    close(control);
}

static void test_options_are_refused(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k);
    expect_options_refused(k, c, "provider jail");
    expect_create_works(k, c, 10);
    close(c);
}

static void test_a_builder_that_dies_fails_its_request_only(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    struct pd_err e;
    int c = client_open(k), control;
    deadline d = deadline_in(PATIENCE);
    for (uint32_t i = 0, lost = 0; lost < 3; i++) {
        assert_false(deadline_passed(d));
        expect_create_works(k, c, 100 * i + 10);
        usleep(200000); /* mostly swept by then, so that it has nothing else to do */
        pid_t builder = idle_builder(k);
        kill(builder, SIGSTOP);
        send_create(c, 100 * i + 1, 0, &control, NULL);
        expect_silence(c);
        kill(builder, SIGKILL);

        expect_frame(c, &k->f);
        assert_int_equal(id_number(k->f.head.id), 100 * i + 1);
        if (k->f.head.type == WIRE_CREATED) { /* it swept still: the next one had the request */
            send_destroy(c, 100 * i + 2, 100 * i + 1);
            expect_gone(c, &k->f, 100 * i + 2, 100 * i + 1, GONE_DESTROYED);
        } else {
            assert_int_equal(k->f.head.type, WIRE_ERROR);
            msg_error_raise(&k->f, &e);
            assert_int_equal(e.code, PD_LOST);
            lost++;
        }
        expect_closed(control);
        close(control);
        expect_create_works(k, c, 100 * i + 20);
    }
    close(c);
}

/* Killed at any moment of a real build, not only before it. */
static void test_a_builder_killed_at_a_random_moment(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), control;
    for (uint32_t i = 0; i < 30; i++) {
        pid_t builder = idle_builder(k);
        send_create(c, 1000 + i, 0, &control, NULL);
        usleep(i * 300);
        kill(builder, SIGKILL);

        do
            expect_frame(c, &k->f);
        while (id_number(k->f.head.id) != 1000 + i);

        if (k->f.head.type == WIRE_CREATED) {
            send_destroy(c, 2000 + i, 1000 + i);
            expect_gone(c, &k->f, 2000 + i, 1000 + i, GONE_DESTROYED);
        } else {
            assert_int_equal(k->f.head.type, WIRE_ERROR);
        }

        expect_closed(control);
        close(control);
        expect_create_works(k, c, 3000 + 2 * i); /* and nobody waits for long for the next one */
    }
    close(c);
}

static void test_destroy_is_answered_when_the_build_fails(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), control;
    deadline d = deadline_in(PATIENCE);
    for (uint32_t i = 0, failed = 0; !failed; i++) {
        assert_false(deadline_passed(d));
        expect_create_works(k, c, 100 * i + 10);
        usleep(200000); /* mostly swept by then */
        pid_t builder = idle_builder(k);
        kill(builder, SIGSTOP);
        send_create(c, 100 * i + 1, 0, &control, NULL);
        usleep(50000);
        send_destroy(c, 100 * i + 2, 100 * i + 1);
        expect_silence(c);
        kill(builder, SIGKILL);

        expect_frame(c, &k->f);
        if (k->f.head.type == WIRE_ERROR) {
            struct pd_err e;
            assert_int_equal(id_number(k->f.head.id), 100 * i + 1);
            msg_error_raise(&k->f, &e);
            assert_int_equal(e.code, PD_LOST);
            failed = 1;
        }
        while (id_number(k->f.head.id) != 100 * i + 2) /* GONE or NOT_FOUND, but an answer */
            expect_frame(c, &k->f);
        close(control);
    }
    close(c);
}

static void test_destroy_is_answered_when_the_jail_has_died_already(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), control;
    send_create(c, 1, 0, &control, NULL);

    pid_t pid = expect_created(c, &k->f, 1), worker = idle_builder(k);
    kill(worker, SIGSTOP); /* it cannot be swept */
    kill(pid, SIGKILL);
    expect_gone(c, &k->f, 1, 1, GONE_DIED);

    send_destroy(c, 2, 1);
    deadline d = deadline_in(PATIENCE);
    struct pd_err e;
    frame_reset(&k->f);
    int r = wire_recv(c, &k->f, d, &e);
    kill(worker, SIGCONT);

    assert_int_equal(r, 1);
    assert_int_equal(id_number(k->f.head.id), 2);
    close(control);
    close(c);
}

static void test_a_create_repeated_after_the_end_is_answered(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), control, second;
    send_create(c, 1, 0, &control, NULL);

    pid_t pid = expect_created(c, &k->f, 1), worker = idle_builder(k);
    kill(worker, SIGSTOP);
    kill(pid, SIGKILL);
    expect_gone(c, &k->f, 1, 1, GONE_DIED);

    send_create(c, 1, 0, &second, NULL);
    struct pd_err e;
    frame_reset(&k->f);
    int r = wire_recv(c, &k->f, deadline_in(PATIENCE), &e);
    kill(worker, SIGCONT);
    assert_int_equal(r, 1);
    assert_int_equal(id_number(k->f.head.id), 1);

    close(control);
    close(second);
    close(c);
}

static void test_two_destroys_are_both_answered(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int a = client_open(k), b = client_open(k), control;
    send_create(a, 1, 0, &control, NULL);
    pid_t pid = expect_created(a, &k->f, 1);
    kill(k->pid, SIGSTOP); /* so that both are there before init's death is */

    send_destroy(a, 2, 1);
    send_destroy(b, 3, 1);
    kill(k->pid, SIGCONT);
    expect_frame(a, &k->f);
    assert_int_equal(id_number(k->f.head.id), 2);
    expect_frame(b, &k->f);
    assert_int_equal(id_number(k->f.head.id), 3);

    await_death(pid);
    close(control);
    close(a);
    close(b);
}

/* What is passed on to the builder is longer than what came in. */
static void test_the_largest_create_is_answered_at_once(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    static char paths[SPEC_BINDS_MAX][SPEC_PATH_MAX + 1];
    struct msg_create m = {.spec = SPEC_DEFAULT};
    int c = client_open(k), s[2];
    expect_create_works(k, c, 10);

    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    m.spec.bind_count = SPEC_BINDS_MAX;
    for (int i = 0; i < SPEC_BINDS_MAX; i++)
        m.spec.binds[i] = (struct spec_bind){paths[i], "/t", 0};

    for (int i = 0; i < SPEC_BINDS_MAX; i++) {
        memset(paths[i], 'x', SPEC_PATH_MAX);
        paths[i][0] = '/';
        buf_clear(&b);
        msg_create_encode(&b, &m);

        if (b.overflow) { /* the one that fills the frame to its last byte */
            paths[i][1] = 0;
            buf_clear(&b);
            msg_create_encode(&b, &m);
            size_t left = WIRE_PAYLOAD_MAX - b.len;
            memset(paths[i] + 1, 'x', left);
            paths[i][1 + left] = 0;
            buf_clear(&b);
            msg_create_encode(&b, &m);
            break;
        }
    }

    assert_int_equal(b.overflow, 0);
    assert_int_equal(b.len, WIRE_PAYLOAD_MAX);
    pair_make(s);
    struct wire_head head = {.type = WIRE_CREATE, .id = id_of(1)};
    assert_int_equal(wire_send(c, &head, &b, s, 2, deadline_in(PATIENCE)), 0);

    uint64_t start = clock_now();
    expect_frame(c, &k->f);
    assert_int_equal(k->f.head.type, WIRE_ERROR);
    assert_true(clock_now() - start < 15 * NS_PER_S); /* not when a build's time is over */
    close(s[0]);
    close(s[1]);
    expect_create_works(k, c, 20);
    close(c);
}

/* A process in the jail's pid namespace whose parent is outside and does not reap it: init cannot
 * die before that, whatever is sent to it. */
static pid_t enter_and_stay(pid_t init)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)init);
    auto_fd ns = open(path, O_RDONLY | O_CLOEXEC);
    auto_fd own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    assert_true(ns >= 0 && own >= 0);
    assert_int_equal(setns(ns, CLONE_NEWPID), 0);

    pid_t pid = child_fork();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    assert_int_equal(setns(own, CLONE_NEWPID), 0);
    assert_true(pid > 0);
    return pid;
}

static long cpu_ticks(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    assert_true(fd_read_file(AT_FDCWD, path, text, sizeof text) > 0);
    const char *p = strrchr(text, ')');
    for (int i = 0; i < 12; i++)
        p = strchr(p + 1, ' ');
    char *next;
    long user = strtol(p, &next, 10);
    return user + strtol(next, NULL, 10);
}

static void test_a_jail_that_cannot_die_is_reported_and_harms_nobody(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), other = client_open(k), control;
    send_create(c, 1, 0, &control, NULL);

    pid_t init = expect_created(c, &k->f, 1);
    pid_t guest = enter_and_stay(init);
    uint64_t start = clock_now();
    send_destroy(c, 2, 1);
    expect_create_works(k, other, 10); /* meanwhile */
    expect_gone(c, &k->f, 2, 1, GONE_UNDEAD);
    assert_true(clock_now() - start > 3 * NS_PER_S);

    send_destroy(c, 3, 1);
    expect_gone(c, &k->f, 3, 1, GONE_UNDEAD);
    expect_create_works(k, c, 20);

    long before = cpu_ticks(k->pid);
    sleep(1);
    long used = cpu_ticks(k->pid) - before;
    waitpid(guest, NULL, 0);

    await_death(init);
    close(control);
    close(other);
    close(c);
    if (used > 20)
        fail_msg("the keeper used %ld%% of a processor while it had nothing to do", used);
}

/* A socket in the queue of a control socket is closed by whoever closes that last. */
static void test_what_a_jail_left_in_its_socket_does_not_stop_the_keeper(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), control, far;
    send_create(c, 1, 0, &control, &far);

    pid_t pid = expect_created(c, &k->f, 1);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    struct linger seconds = {.l_onoff = 1, .l_linger = 10};
    auto_fd listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(listener, 1), 0);
    getsockname(listener, (struct sockaddr *)&a, &len);

    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(s, (struct sockaddr *)&a, sizeof a), 0);
    static char bytes[1 << 16];
    for (int i = 0; i < 10; i++, usleep(5000))
        while (send(s, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            ;
    setsockopt(s, SOL_SOCKET, SO_LINGER, &seconds, sizeof seconds);

    struct wire_head head = {.type = WIRE_STARTED};
    assert_int_equal(wire_send(far, &head, NULL, &s, 1, 0), 0);
    close(s);
    close(far);
    close(control);
    kill(pid, SIGKILL);
    expect_gone(c, &k->f, 1, 1, GONE_DIED);

    uint64_t start = clock_now();
    usleep(50000);
    list_count(c, &k->f, 5, 0, NULL);

    uint64_t took = clock_now() - start;
    close(c);
    if (took > 8 * NS_PER_S)
        fail_msg("the keeper was away for %llu ms", (unsigned long long)(took / NS_PER_MS));
}

#define KEPT(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        KEPT(test_options_are_refused),
        KEPT(test_a_builder_that_dies_fails_its_request_only),
        KEPT(test_a_builder_killed_at_a_random_moment),
        KEPT(test_destroy_is_answered_when_the_build_fails),
        KEPT(test_destroy_is_answered_when_the_jail_has_died_already),
        KEPT(test_a_create_repeated_after_the_end_is_answered),
        KEPT(test_two_destroys_are_both_answered),
        KEPT(test_the_largest_create_is_answered_at_once),
        KEPT(test_a_jail_that_cannot_die_is_reported_and_harms_nobody),
        KEPT(test_what_a_jail_left_in_its_socket_does_not_stop_the_keeper),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
