/* A gate that was taken over is a process under the gate's filter that does what it likes: this
 * one tries. Every attempt has its control, the same call before the filter. */
#include "gate/gate_state.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

/* Each is 0 when it could be done, or an errno. */
static int try_unix_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM, 0) < 0 ? errno : 0;
}

static int try_netlink(void)
{
    return socket(AF_NETLINK, SOCK_RAW, 0) < 0 ? errno : 0;
}

static int try_code(void)
{
    void *p = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? errno : 0;
}

static int try_signal(void)
{
    return kill(getppid(), 0) < 0 ? errno : 0;
}

static int try_pidfd(void)
{
    return syscall(SYS_pidfd_open, getppid(), 0) < 0 ? errno : 0;
}

static int try_memory(void)
{
    char here = 0, there = 0;
    struct iovec a = {&here, 1}, b = {&there, 1};
    return process_vm_readv(getpid(), &a, 1, &b, 1, 0) < 0 ? errno : 0;
}

static int try_unlink(void)
{
    return unlink("/proc/no-such-file") < 0 && errno != ENOENT ? errno : 0;
}

static int try_namespace(void)
{
    int fd = 0;
    return setns(fd, CLONE_NEWNET) < 0 && errno != EINVAL && errno != EBADF ? errno : 0;
}

static int try_execute(void)
{
    char *const argv[] = {(char *)"nothing", NULL};
    return execve("/proc/no-such-file", argv, argv) < 0 && errno != ENOENT ? errno : 0;
}

static int try_directory(void)
{
    return chdir("/") < 0 ? errno : 0;
}

/* It splices by a pipe that it was started with. */
static int try_pipe(void)
{
    int fds[2];
    return pipe(fds) < 0 ? errno : 0;
}

static int (*const attempts[])(void) = {
    try_unix_socket, try_netlink,   try_code,    try_signal,    try_pidfd, try_memory,
    try_unlink,      try_namespace, try_execute, try_directory, try_pipe,
};
#define ATTEMPTS (sizeof attempts / sizeof *attempts)

/* In a child: the number of the first attempt that goes otherwise than is expected, from 1. */
static int attempt_all(bool filtered)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (filtered && (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || filter_load() < 0))
            _exit(100);
        for (unsigned i = 0; i < ATTEMPTS; i++)
            if (attempts[i]() != (filtered ? EPERM : 0))
                _exit((int)i + 1);
        /* What a gate lives by it may. */
        if (filtered &&
            (socket(AF_INET6, SOCK_STREAM, 0) < 0 || socket(AF_INET, SOCK_DGRAM, 0) < 0))
            _exit(101);
        _exit(0);
    }

    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_without_the_filter_all_of_it_works(void **state)
{
    (void)state;
    assert_int_equal(attempt_all(false), 0);
}

static void test_with_it_nothing_does_but_the_internet(void **state)
{
    (void)state;
    assert_int_equal(attempt_all(true), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_the_filter_all_of_it_works),
        cmocka_unit_test(test_with_it_nothing_does_but_the_internet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
