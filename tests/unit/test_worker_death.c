/* What is told of a worker's end: the cause, and what can be done about it. */
#include "unit.h"

#include "jail/worker_death.h"

#include <signal.h>
#include <string.h>

#define EXITED(status) ((status) << 8) /* as waitpid has it */

static void test_the_cause_and_the_remedy_are_named(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *program, *says, *also;
    } rows[] = {
        {SIGXFSZ, NULL, "size of files", "ulimit -f"},
        {SIGXCPU, NULL, "processor time", "ulimit -t"},
        {SIGSYS, NULL, "filter on system calls", "outside of that filter"},
        {SIGKILL, NULL, "SIGKILL", "try again"},
        {SIGSEGV, "/b", "SIGSEGV", "ulimit -v"},
        {SIGSEGV | 0x80 /* with a core */, NULL, "SIGSEGV", "ulimit -s"},
        {SIGHUP, NULL, "signal 1 ended it", "kernel's log"},
        {EXITED(127), "/opt/b", "/opt/b cannot be started", "executable?"},
        {EXITED(127), NULL, "it ended by itself", "status 127"},
        {EXITED(3), "/opt/b", "/opt/b ended by itself", "status 3"},
        {EXITED(0), NULL, "it ended by itself", "status 0"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[WORKER_DEATH_MAX];
        worker_death_text(rows[i].status, rows[i].program, text);
        if (!strstr(text, rows[i].says) || !strstr(text, rows[i].also))
            fail_msg("status %d: '%s'", rows[i].status, text);
    }
}

/* The longest that a table's row or a path can make of it is not cut where the remedy is. */
static void test_it_fits(void **state)
{
    (void)state;
    char path[300], text[WORKER_DEATH_MAX];
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = 0;

    worker_death_text(EXITED(127), path, text);
    assert_non_null(strstr(text, "executable?"));

    for (int number = 1; number < 65; number++) {
        worker_death_text(number, NULL, text);
        assert_true(strlen(text) < 120);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_cause_and_the_remedy_are_named),
        cmocka_unit_test(test_it_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
