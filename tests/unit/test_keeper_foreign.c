/* A keeper whose inits are other people's children: it knows them by a pidfd, and a number that is
 * another process's by now harms nobody. */
#include "keeper_peer.h"

#include "jail/keeper_kind.h"

#include <fcntl.h>
#include <sys/syscall.h>

/* The box's init, and a process that has its number in the broker's answers. */
static pid_t init_process, bystander;
static bool tells_pidfd;
static unsigned
    progress_count; /* frames that the broker sends before BUILT, where that is wanted */

static pid_t start_idler(void)
{
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(200);
        for (;;)
            pause();
    }
    return pid;
}

static void send_progress(int sock, struct wire_id id, unsigned i)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct wire_head head = {.type = WIRE_PROGRESS, .id = id};
    msg_progress_encode(&out, &(struct msg_progress){.layers_done = i, .layers = progress_count});
    (void)wire_send(sock, &head, &out, NULL, 0, DEADLINE_NONE);
}

static void broker_main(const struct builder_config *c, int sock)
{
    struct frame f = FRAME_INIT;
    struct pd_err e;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    (void)c;
    while (wire_recv(sock, &f, DEADLINE_NONE, &e) > 0) {
        auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
        struct wire_head head = {.type = WIRE_DONE, .id = f.head.id};
        if (f.head.type == WIRE_BUILD) {
            for (unsigned i = 0; f.head.flags & BUILD_TELL && i < progress_count; i++)
                send_progress(sock, f.head.id, i);
            send_progress(sock, id_of(999), 0); /* of a request that there is not */
            auto_fd process = (int)syscall(SYS_pidfd_open, init_process, 0);
            int fds[4] = {null, null, tells_pidfd ? process : null, null};
            head.type = WIRE_BUILT;
            msg_built_encode(&out, &(struct msg_built){.rung = RUNG_BASIC, .init_pid = bystander});
            (void)wire_send(sock, &head, &out, fds, 4, DEADLINE_NONE);
        } else {
            (void)wire_send(sock, &head, NULL, NULL, 0, DEADLINE_NONE);
        }
        frame_reset(&f);
    }
    _exit(0);
}

static const struct keeper_kind foreign = {
    .name = "foreign", .worker = broker_main, .is_foreign = true, .rung = RUNG_BASIC};

static int set_up(void **state, bool with_pidfd, unsigned progress)
{
    static struct keeper_run k;
    *state = &k;
    k.pid = 0;
    if (geteuid() != 0)
        return 0;
    init_process = start_idler();
    bystander = start_idler();
    tells_pidfd = with_pidfd;
    progress_count = progress;
    keeper_begin_kind(&k, &foreign, 1, 0, 0);
    return 0;
}

static int setup(void **state)
{
    return set_up(state, true, 3);
}

static int setup_without_pidfd(void **state)
{
    return set_up(state, false, 0);
}

static int setup_talkative(void **state)
{
    return set_up(state, true, 5000);
}

static int teardown(void **state)
{
    struct keeper_run *k = *state;
    if (!k->pid)
        return 0;
    keeper_end(k);
    kill(init_process, SIGKILL);
    kill(bystander, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0)
        ;
    return 0;
}

static void expect_bystander_lives(void)
{
    assert_int_equal(waitpid(bystander, NULL, WNOHANG), 0);
}

static void test_destroying_kills_the_process_and_not_the_number(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), control, status;
    send_create(c, 1, 0, &control, NULL);
    (void)expect_created(c, &k->f, 1);

    send_destroy(c, 2, 1);
    expect_gone(c, &k->f, 2, 1, GONE_DESTROYED);
    expect_bystander_lives();
    assert_int_equal(waitpid(init_process, &status, 0), init_process);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(control);
    close(c);
}

static void test_the_end_of_the_process_is_told(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), control;
    send_create(c, 1, 0, &control, NULL);
    (void)expect_created(c, &k->f, 1);
    kill(init_process, SIGKILL);
    expect_gone(c, &k->f, 1, 1, GONE_DIED);
    expect_bystander_lives();
    close(control);
    close(c);
}

static void test_a_number_alone_is_refused(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    struct pd_err e;
    int c = client_open(k), control;
    send_create(c, 1, 0, &control, NULL);
    expect_error(c, &k->f, 1, PD_PROTOCOL, &e);
    assert_non_null(strstr(e.msg, "pidfd"));
    expect_bystander_lives();
    close(control);
    close(c);
}

/* The frames of PROGRESS that come before CREATED, each later than the one before. */
static unsigned count_progress(struct keeper_run *k, int sock, uint32_t id)
{
    struct msg_progress m;
    struct pd_err e;
    unsigned count = 0;

    for (uint32_t next = 0;; count++) {
        frame_reset(&k->f);
        assert_int_equal(wire_recv(sock, &k->f, deadline_in(PATIENCE), &e), 1);
        assert_true(wire_id_equal(k->f.head.id, id_of(id)));
        if (k->f.head.type != WIRE_PROGRESS)
            break;
        assert_int_equal(msg_progress_decode(&k->f.payload, &m, &e), 0);
        assert_true(m.layers_done >= next && m.layers == progress_count);
        next = m.layers_done + 1;
    }
    assert_int_equal(k->f.head.type, WIRE_CREATED);
    return count;
}

static void test_progress_is_for_those_who_understand_it(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), control, other;
    send_create(c, 1, CREATE_TELL, &control, NULL);
    assert_int_equal(count_progress(k, c, 1), 3);
    send_create(c, 2, 0, &other, NULL);
    assert_int_equal(count_progress(k, c, 2), 0);
    close(control);
    close(other);
    close(c);
}

/* One that does not read loses progress, and nothing else; others are served meanwhile. */
static void test_progress_waits_for_nobody(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), d = client_open(k), control, other;
    send_create(c, 1, CREATE_TELL, &control, NULL);
    send_create(d, 2, 0, &other, NULL);
    (void)expect_created(d, &k->f, 2); /* by the same worker, so the first one is made */

    unsigned told = count_progress(k, c, 1);
    assert_true(told > 0 && told < 5000);
    close(control);
    close(other);
    close(c);
    close(d);
}

static void test_options_are_refused(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k);
    expect_options_refused(k, c, "provider foreign");
    close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_destroying_kills_the_process_and_not_the_number, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_the_end_of_the_process_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_options_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_progress_is_for_those_who_understand_it, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_progress_waits_for_nobody, setup_talkative, teardown),
        cmocka_unit_test_setup_teardown(test_a_number_alone_is_refused, setup_without_pidfd,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
