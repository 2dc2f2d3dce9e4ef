/* Workers and forks whose descriptors are fetched: only a process of the worker's own user gets
 * them, whoever comes first. */
#include "worker_run.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_descriptors_of_a_fork_are_handed_to_their_own_user_alone, bench_setup,
            bench_teardown),
        cmocka_unit_test_setup_teardown(test_the_first_of_the_user_gets_the_descriptors,
                                        bench_setup, bench_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
