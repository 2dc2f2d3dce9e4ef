/* Paths inside a root, opened while others rename on the same machine: the kernel cannot trust ".."
 * then and says so, and it is asked again. */
#include "unit.h"

#include "base/clock.h"
#include "base/fd.h"
#include "jail/mnt.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS   20000u
#define PATIENCE (60 * NS_PER_S)

static const char path_back[] = "a/../a/../a/../b";

static int open_once(int root)
{
    struct open_how how = {.flags = O_PATH | O_CLOEXEC,
                           .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, root, path_back, &how, sizeof how);
    return fd < 0 ? -errno : fd;
}

/* Stays on the n-th processor that it may use; false when there are not so many. */
static bool use_processor(unsigned n)
{
    cpu_set_t may, one;
    if (sched_getaffinity(0, sizeof may, &may) < 0)
        return false;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &may) && n-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            return sched_setaffinity(0, sizeof one, &one) == 0;
        }
    return false;
}

static pid_t start_renaming(int root, bool *ret_beside)
{
    cpu_set_t may;
    *ret_beside = sched_getaffinity(0, sizeof may, &may) == 0 && CPU_COUNT(&may) > 1;
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid) {
        (void)use_processor(0);
        return pid;
    }

    (void)use_processor(1);
    for (;;) {
        (void)renameat(root, "x", root, "y");
        (void)renameat(root, "y", root, "x");
    }
}

static void test_a_path_is_opened_while_others_rename(void **state)
{
    (void)state;
    char dir[] = "/tmp/paddock-mnt-XXXXXX";
    static const char *const names[] = {"a", "b", "x"};
    assert_non_null(mkdtemp(dir));
    auto_fd root = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < COUNT(names); i++)
        assert_int_equal(mkdirat(root, names[i], 0755), 0);
    auto_fd asked = open_once(root);
    if (asked == -ENOSYS)
        skip_because("this kernel has no openat2");

    bool beside; /* on one processor nothing happens at the same time */
    pid_t renamer = start_renaming(root, &beside);
    unsigned refused = 0, failed = 0, rounds = 0;
    int why = 0;
    for (deadline d = deadline_in(PATIENCE);
         (rounds < ROUNDS || (beside && !refused)) && !deadline_passed(d); rounds++) {
        auto_fd fd = mnt_open_beneath(root, path_back, O_PATH);
        why = fd < 0 ? fd : why;
        failed += fd < 0;

        /* The control: who asks once is refused now and then. */
        auto_fd once = open_once(root);
        refused += once == -EAGAIN;
    }
    kill(renamer, SIGKILL);
    waitpid(renamer, NULL, 0);

    (void)unlinkat(root, "y", AT_REMOVEDIR);
    for (size_t i = 0; i < COUNT(names); i++)
        (void)unlinkat(root, names[i], AT_REMOVEDIR);
    rmdir(dir);
    print_message("# of %u, %u were refused at first\n", rounds, refused);
    if (failed)
        fail_msg("%u of %u failed: %d", failed, rounds, why);
    assert_true(!beside || refused > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_path_is_opened_while_others_rename),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
