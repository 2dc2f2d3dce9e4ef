/* A keeper whose inits are other people's children: it knows them by a pidfd, and a number that is
 * another process's by now harms nobody. */
#include "keeper_peer.h"

#include "jail/keeper_kind.h"

#include <fcntl.h>
#include <sys/syscall.h>

/* The box's init, and a process that has its number in the broker's answers. */
static pid_t init_process, bystander;
static bool tells_pidfd;

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

static int set_up(void **state, bool with_pidfd)
{
    static struct keeper_run k;
    *state = &k;
    k.pid = 0;
    if (geteuid() != 0)
        return 0;
    init_process = start_idler();
    bystander = start_idler();
    tells_pidfd = with_pidfd;
    keeper_begin_kind(&k, &foreign, 1, 0, 0);
    return 0;
}

static int setup(void **state)
{
    return set_up(state, true);
}

static int setup_without_pidfd(void **state)
{
    return set_up(state, false);
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
        cmocka_unit_test_setup_teardown(test_a_number_alone_is_refused, setup_without_pidfd,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
