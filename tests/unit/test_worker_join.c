/* Workers and forks whose descriptors are fetched: only a process of the worker's own user gets
 * them, whoever comes first. And the guard of a process that a worker stands for: it outlives the
 * worker, whenever that is killed. */
#include "worker_run.h"

#include <sched.h>
#include <stddef.h>
#include <sys/un.h>

#define STRANGER 12345u
#define HANDED   5u

/* In a child: how many descriptors the worker that listens at `name` hands to this user. */
static int fetch(const char *name, uint32_t uid)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int n = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "paddock-%s", name);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    if (geteuid() != uid && (setgid(uid) < 0 || setuid(uid) < 0))
        return 100;
    child_bind();

    int worker = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    deadline d = deadline_in(PATIENCE);
    while (connect(worker, (struct sockaddr *)&at, len) < 0)
        if (deadline_passed(d) || usleep(1000) < 0)
            return 101;

    char byte;
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(HANDED * sizeof(int))];
    struct iovec v = {.iov_base = &byte, .iov_len = 1};
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(worker, &m, MSG_CMSG_CLOEXEC) != 1)
        return 0;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    return c ? (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int)) : 0;
}

static unsigned fetched(const char *name, uint32_t uid)
{
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(fetch(name, uid));
    return (unsigned)WEXITSTATUS(wait_child(pid));
}

/* A worker `join` with an entrance, which leads nowhere. */
static struct job join(struct bench *b, const char *name)
{
    struct job j = {.id = b->next_id++, .in = -1, .out = -1, .go = -1};
    EXEC(b->init.sock, .id = j.id, .flags = EXEC_WORKER | EXEC_QUIET | EXEC_EXTRA, .uid = b->uid,
         .cwd = b->dir, .argv = OP("join", name), .fd_count = 4);
    return j;
}

static void test_descriptors_of_a_fork_are_handed_to_their_own_user_alone(void **state)
{
    struct bench *b = *state;
    char name[32];
    snprintf(name, sizeof name, "unit-%d", (int)getpid());
    if (geteuid() != 0)
        skip_because("another user needs root");

    struct job j = join(b, name);
    for (int i = 0; i < 3; i++)
        assert_int_equal(fetched(name, STRANGER), 0);
    assert_int_equal(fetched(name, b->uid), HANDED);  /* which has come later */
    assert_int_equal(WEXITSTATUS(job_end(b, &j)), 1); /* nobody said which process has joined */
}

/* The control: whoever is of that user, and comes first, gets them. */
static void test_the_first_of_the_user_gets_the_descriptors(void **state)
{
    struct bench *b = *state;
    char name[32];
    snprintf(name, sizeof name, "unit-%d", (int)getpid());

    struct job j = join(b, name);
    assert_int_equal(fetched(name, b->uid), HANDED);
    assert_int_equal(WEXITSTATUS(job_end(b, &j)), 1);
}

/* A process of the bench's user, which the worker is to stand for. */
static pid_t fork_copy(const struct bench *b)
{
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;

    if (setpgid(0, 0) < 0 || (geteuid() != b->uid && (setgid(b->uid) < 0 || setuid(b->uid) < 0)))
        _exit(1);
    child_bind();
    for (;;)
        pause();
}

/* All on one processor: this process was asleep for longest, and kills before the guard runs. */
static void share_a_processor(const struct bench *b)
{
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(sched_setaffinity(b->init.pid, sizeof one, &one), 0);
}

/* A worker without an entrance has a guard, and is killed with its whole process group as soon as
 * it says that the process may go on. */
static void test_the_guard_of_a_copy_outlives_its_worker(void **state)
{
    struct bench *b = *state;
    share_a_processor(b);

    for (int i = 0; i < 50; i++) {
        int join[2];
        uint32_t id = b->next_id++;
        char line[16], go;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, join), 0);
        pid_t copy = fork_copy(b);
        EXEC(b->init.sock, .id = id, .flags = EXEC_WORKER, .uid = b->uid, .cwd = b->dir,
             .argv = OP("join", "-"), .fds = {join[1]});
        close(join[1]);
        pid_t worker = expect_started(&b->init, id);

        int n = snprintf(line, sizeof line, "%d\n", (int)copy);
        assert_int_equal(write(join[0], line, (size_t)n), n);
        assert_int_equal(read(join[0], &go, 1), 1);
        assert_int_equal(kill(-worker, SIGKILL), 0);

        assert_int_equal(WTERMSIG(wait_child(copy)), SIGKILL);
        assert_int_equal(WTERMSIG(expect_exited(&b->init, id).status), SIGKILL);
        assert_int_equal(send_plain(b->init.sock, WIRE_ACK, id, 0), 0);
        close(join[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_descriptors_of_a_fork_are_handed_to_their_own_user_alone, bench_setup,
            bench_teardown),
        cmocka_unit_test_setup_teardown(test_the_first_of_the_user_gets_the_descriptors,
                                        bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_the_guard_of_a_copy_outlives_its_worker, bench_setup,
                                        bench_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
