/* A named root is free when its jail's end is told, though the builder that opened it is slow to
 * close its own descriptor: here it never does. */
#include "keeper_peer.h"

#include "jail/keeper_kind.h"
#include "jail/sweep.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/syscall.h>

static char root[] = "/tmp/paddock-lock-XXXXXX";

/* A child of the keeper, as every jail's init is. */
static pid_t start_init(void)
{
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0) {
        syscall(SYS_close_range, 3, ~0u, 0);
        alarm(200);
        for (;;)
            pause();
    }
    return pid;
}

static void builder_slow(const struct builder_config *c, int sock)
{
    struct frame f = FRAME_INIT;
    struct pd_err e;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC), lock = open(root, O_RDONLY | O_CLOEXEC);

    while (wire_recv(sock, &f, DEADLINE_NONE, &e) > 0) {
        auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
        struct wire_head head = {.type = WIRE_DONE, .id = f.head.id};
        if (f.head.type == WIRE_BUILD && flock(lock, LOCK_EX | LOCK_NB) == 0) {
            int fds[4] = {null, null, lock, null};
            head.type = WIRE_BUILT;
            msg_built_encode(&out, &(struct msg_built){
                                       .rung = RUNG_FULL, .named = true, .init_pid = start_init()});
            (void)wire_send(sock, &head, &out, fds, 4, DEADLINE_NONE);
        } else {
            (void)wire_send(sock, &head, NULL, NULL, 0, DEADLINE_NONE);
        }
        frame_reset(&f);
    }

    /* As a builder does: nothing is left of the keeper. */
    struct cgroup_mounts mounts;
    struct cgroup_host host;
    cgroup_find(&mounts);
    if (cgroup_host_open(&host, &mounts, c->instance, &e) == 0)
        sweep_instance(&host);
    _exit(0);
}

static const struct keeper_kind slow = {.name = "slow", .worker = builder_slow, .rung = RUNG_FULL};

static int setup(void **state)
{
    static struct keeper_run k;
    *state = &k;
    k.pid = 0;
    if (geteuid() != 0)
        return 0;
    assert_non_null(mkdtemp(root));
    keeper_begin_kind(&k, &slow, 1, 0, 0);
    return 0;
}

static int teardown(void **state)
{
    struct keeper_run *k = *state;
    if (!k->pid)
        return 0;
    keeper_end(k);
    assert_int_equal(rmdir(root), 0);
    return 0;
}

static void expect_free(bool is)
{
    auto_fd own = open(root, O_RDONLY | O_CLOEXEC);
    assert_int_equal(flock(own, LOCK_EX | LOCK_NB), is ? 0 : -1);
}

static void test_the_root_of_a_jail_that_ended_is_free(void **state)
{
    need_root();
    struct keeper_run *k = *state;
    int c = client_open(k), control;

    for (uint32_t n = 1; n < 40; n += 3) {
        send_create(c, n, 0, &control, NULL);
        pid_t init = expect_created(c, &k->f, n);
        expect_free(false); /* the control */
        if (n % 2) {
            send_destroy(c, n + 1, n);
            expect_gone(c, &k->f, n + 1, n, GONE_DESTROYED);
        } else {
            kill(init, SIGKILL);
            expect_gone(c, &k->f, n, n, GONE_DIED);
        }
        expect_free(true);
        close(control);
    }
    close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_root_of_a_jail_that_ended_is_free, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
