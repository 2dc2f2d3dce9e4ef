/* Ending the processes of a box that do not want to end. */
#include "unit.h"

#include "jail/identity.h"
#include "jail/local_user.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 100

/* In the range behind the last one, which nobody hands out; another one in each run. */
static uid_t uid_of_test(void)
{
    return RANGE_BASE + RANGE_COUNT * RANGE_SIZE + 2 * ((uid_t)getpid() % 30000);
}

/* How often the killer has looked around, shared with its parent. */
static volatile unsigned *turns;

static int make_turns(void **state)
{
    void *page =
        mmap(NULL, sizeof *turns, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    turns = page;
    *state = page;
    return page == MAP_FAILED ? -1 : 0;
}

static int unmap_turns(void **state)
{
    return munmap(*state, sizeof *turns);
}

/* A process of the user that kills every other one of the user, without a pause. */
static pid_t start_killer(uid_t uid)
{
    *turns = 0;
    pid_t pid = child_fork();
    assert_true(pid >= 0);

    if (pid == 0) {
        alarm(200);
        if (setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
            _exit(1);
        child_bind();
        for (;;) {
            (void)kill(-1, SIGKILL);
            (*turns)++;
        }
    }

    while (*turns == 0)
        assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
    return pid;
}

static void test_a_process_that_kills_its_killers_ends(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip_because("needs root, to become somebody else");

    const uid_t uid = uid_of_test();
    signal(SIGCHLD, SIG_IGN); /* the killer is a child of this process: nothing stays of it */
    assert_true(identity_is_idle(uid));
    for (unsigned i = 0; i < ROUNDS; i++) {
        pid_t killer = start_killer(uid);
        assert_false(identity_is_idle(uid));

        int r = local_user_end(uid);
        if (r != 0)
            kill(killer, SIGKILL);
        assert_int_equal(r, 0);
        assert_true(identity_is_idle(uid));
    }
    signal(SIGCHLD, SIG_DFL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_process_that_kills_its_killers_ends, make_turns,
                                        unmap_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
