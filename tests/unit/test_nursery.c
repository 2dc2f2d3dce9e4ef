/* A nursery that does not answer: the broker starts another one only for a watch that was surely
 * not born. And a watch that nobody could end does not live. */
#include "peer.h"

#include "base/err.h"
#include "base/fd.h"
#include "engine/nursery.h"
#include "engine/remote.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* Asks a nursery whose end is `far`; how many others were started. There is no such program beside
 * this one, so they end at once. */
static unsigned others(int near, int far, bool hears)
{
    static const struct remote_kind kind = {.name = "none"};
    struct broker_config c = BROKER_CONFIG_DEFAULT;
    struct nursery n = {.sock = near};
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int fds[NURSERY_FDS] = {null, null, null, null}, process = -1, status;
    unsigned started = 0;
    struct pd_err e;
    c.kind = &kind;

    if (hears)
        shutdown(far, SHUT_WR);
    else
        close(far);
    assert_int_equal(nursery_bear(&n, &c, "box", fds, &process, &e), -1);
    assert_int_equal(e.code, PD_LOST);
    assert_int_equal(n.sock, 0);
    if (hears)
        close(far);

    while (waitpid(-1, &status, 0) > 0)
        started++;
    assert_int_equal(errno, ECHILD);
    return started;
}

static void test_only_who_did_not_hear_is_replaced(void **state)
{
    (void)state;
    for (int hears = 0; hears < 2; hears++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        assert_int_equal(others(pair[0], pair[1], hears), hears ? 0 : 1);
    }
}

/* The carrier of these watches: it waits, and so does a stand-in whose secret does not come. */
static struct remote *open_never(const struct broker_config *c, struct pd_err *e)
{
    (void)c;
    (void)e;
    while (pause() < 0)
        ;
    return NULL;
}

static void refuse_pidfds(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EMFILE),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = COUNT(code), .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        _exit(100);
}

/* A nursery that was asked for a watch, and what shows whether that lives. */
struct ward {
    pid_t pid;
    int sock;
    int lock;   /* at its end when the watch is */
    int secret; /* the stand-in waits for it */
};

static struct ward ask_for_watch(bool without_pidfds)
{
    static const struct remote_kind kind = {.name = "none", .open = open_never};
    struct broker_config c = BROKER_CONFIG_DEFAULT;
    int pair[2], lock[2], secret[2];
    c.kind = &kind;
    pair_make(pair);
    assert_int_equal(pipe2(lock, O_CLOEXEC), 0);
    assert_int_equal(pipe2(secret, O_CLOEXEC), 0);

    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(pair[1], 3);
        child_keep(3);
        if (without_pidfds)
            refuse_pidfds();
        nursery_main(&c);
    }
    close(pair[1]);

    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC), held = lock[1], read_end = secret[0];
    const int fds[NURSERY_FDS] = {null, held, read_end, null};
    struct wire_head head = {.type = WIRE_BUILD, .id = wire_id_new()};
    auto_buf place = BUF_INIT(16);
    buf_put(&place, "box", sizeof "box");
    assert_int_equal(wire_send(pair[0], &head, &place, fds, NURSERY_FDS, deadline_in(PATIENCE)), 0);
    return (struct ward){.pid = pid, .sock = pair[0], .lock = lock[0], .secret = secret[1]};
}

static bool is_over(const struct ward *w, int patience)
{
    struct pollfd p = {.fd = w->lock, .events = POLLIN};
    return poll(&p, 1, patience) == 1 && p.revents == POLLHUP;
}

static void ward_done(struct ward *w)
{
    fd_done(&w->sock);
    (void)wait_child(w->pid);
    fd_done(&w->lock);
    fd_done(&w->secret);
}

/* The control of the two below. */
static void test_a_watch_lives_until_it_is_ended(void **state)
{
    (void)state;
    struct ward w = ask_for_watch(false);
    auto_frame f = FRAME_INIT;
    expect_frame(w.sock, &f);
    assert_int_equal(f.head.type, WIRE_STARTED);
    assert_int_equal(f.fd_count, 1);

    assert_false(is_over(&w, A_MOMENT / NS_PER_MS));
    assert_int_equal(syscall(SYS_pidfd_send_signal, f.fds[0], SIGKILL, NULL, 0), 0);
    assert_true(is_over(&w, PATIENCE / NS_PER_MS));
    ward_done(&w);
}

static void test_a_watch_whose_answer_nobody_takes_is_ended(void **state)
{
    (void)state;
    struct ward w = ask_for_watch(false);
    fd_done(&w.sock);
    assert_true(is_over(&w, PATIENCE / NS_PER_MS));
    ward_done(&w);
}

static void test_a_watch_without_a_pidfd_is_ended(void **state)
{
    (void)state;
    struct ward w = ask_for_watch(true);
    auto_frame f = FRAME_INIT;
    expect_frame(w.sock, &f);
    assert_int_equal(f.head.type, WIRE_ERROR);
    assert_true(is_over(&w, PATIENCE / NS_PER_MS));
    ward_done(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_who_did_not_hear_is_replaced),
        cmocka_unit_test(test_a_watch_lives_until_it_is_ended),
        cmocka_unit_test(test_a_watch_whose_answer_nobody_takes_is_ended),
        cmocka_unit_test(test_a_watch_without_a_pidfd_is_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
