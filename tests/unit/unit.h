/* unit: what every unit test needs around cmocka.
 *
 * A test program has one group, run by cmocka_run_group_tests, and names its tests
 * test_<what_holds>. tests/run reads the TAP that cmocka writes. */
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

/* Ends the test as skipped; the reason is listed at the end of `make test`. */
#define skip_because(...)                                                                          \
    do {                                                                                           \
        print_message("# skip: " __VA_ARGS__);                                                     \
        print_message("\n");                                                                       \
        skip();                                                                                    \
    } while (0)

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* A child that ends with the test program, however that ends. One that lives on holds the
 * program's output open, and what failed is told only when the time for all of it is over. A child
 * that becomes another user binds itself again, as the kernel forgets it then. */
static inline void child_bind(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
}

static inline pid_t child_fork(void)
{
    pid_t pid = fork();
    if (pid == 0)
        child_bind();
    return pid;
}

/* In a child: holds nothing open but the standard streams and one more (-1: none), so that it keeps
 * no peer of the test from seeing an end. */
static inline void child_keep(int fd)
{
    if (fd > 3)
        syscall(SYS_close_range, 3u, (unsigned)fd - 1, 0);
    syscall(SYS_close_range, fd > 2 ? (unsigned)fd + 1 : 3u, ~0u, 0);
}
