/* Init in a jail at its memory limit: the kernel refuses a frame with ENOBUFS although poll says
 * that there is room. Nothing may be lost by that. */
#include "peer.h"

#include "init/init.h"

static int failures;

static ssize_t sendmsg_without_memory(int sock, const struct msghdr *m, int flags)
{
    if (failures > 0) {
        failures--;
        errno = failures % 2 ? ENOBUFS : ENOMEM;
        return -1;
    }
    return sendmsg(sock, m, flags);
}

#define sendmsg sendmsg_without_memory
#include "../../src/wire/frame.c"
#undef sendmsg

static void send_true(int sock, uint32_t id)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    msg_list_add(&argv, "/bin/true");
    struct msg_exec m = {.cwd = "/", .argv = msg_list_of(&argv), .environ = {.text = ""}};
    msg_exec_encode(&b, &m);
    struct wire_head head = {.type = WIRE_EXEC, .id = id_of(id)};
    int fds[3] = {null, null, null};
    assert_int_equal(wire_send(sock, &head, &b, fds, 3, 0), 0);
    msg_list_writer_done(&argv);
}

/* Turns until the next frame is there. */
static void expect_soon(struct init *in, int sock, struct frame *f, enum wire_type type)
{
    struct pd_err e;
    deadline d = deadline_in(PATIENCE);
    frame_reset(f);

    for (;;) {
        int r = wire_recv(sock, f, 0, &e);
        if (r == 1)
            break;
        assert_int_equal(r, -1);
        if (deadline_passed(d))
            fail_msg("type %u never came", type);
        assert_int_equal(init_turn(in, 5), 0);
    }
    assert_int_equal(f->head.type, type);
}

static void test_no_answer_is_lost_without_memory(void **state)
{
    (void)state;
    struct init in;
    sigset_t mask, old;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigprocmask(SIG_BLOCK, &mask, &old);

    for (int lack = 0; lack < 8; lack++) {
        int s[2];
        auto_frame f = FRAME_INIT;
        pair_make(s);
        assert_int_equal(init_begin(&in, INIT_SINGLE, s[1]), 0);

        send_true(s[0], 1);
        failures = lack;
        expect_soon(&in, s[0], &f, WIRE_STARTED);
        failures = lack;
        expect_soon(&in, s[0], &f, WIRE_EXITED);

        failures = 0; /* the owner has memory */
        assert_int_equal(send_plain(s[0], WIRE_SYNC, 2, 0), 0);
        failures = lack;
        expect_soon(&in, s[0], &f, WIRE_SYNCED);

        failures = lack;
        expect_soon(&in, s[0], &f, WIRE_SYNC_END);
        failures = 0;
        close(s[0]);

        int r = 0;
        for (int i = 0; i < 10 && r == 0; i++)
            r = init_turn(&in, 100);
        assert_int_equal(r, -1);
        init_end(&in);
    }

    sigprocmask(SIG_SETMASK, &old, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_answer_is_lost_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
