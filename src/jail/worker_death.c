/* A table of the signals by which a limit or a filter that Paddock was started under ends a
 * process, each with the limit's name and the remedy. Everything else is told by its number. */
#include "jail/worker_death.h"

#include "base/banned.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

static const struct {
    int number;
    const char *why;
} signals[] = {
    {SIGXFSZ, "a limit on the size of files ended it (SIGXFSZ): raise it, `ulimit -f unlimited`"},
    {SIGXCPU, "a limit on processor time ended it (SIGXCPU): raise it, `ulimit -t unlimited`"},
    {SIGSYS, "a filter on system calls ended it (SIGSYS): start Paddock outside of that filter"},
    {SIGKILL, "it was killed (SIGKILL), maybe for lack of memory: see the kernel's log, try again"},
    {SIGSEGV, "it crashed (SIGSEGV), maybe for a limit on its memory (`ulimit -s`, `ulimit -v`)"},
    {SIGBUS, "it crashed (SIGBUS), maybe for lack of memory: see the kernel's log"},
};

static const char *of_signal(int number)
{
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signals[i].number == number)
            return signals[i].why;
    return NULL;
}

void worker_death_text(int status, const char *program, char ret[WORKER_DEATH_MAX])
{
    const char *known = WIFSIGNALED(status) ? of_signal(WTERMSIG(status)) : NULL;

    if (known)
        snprintf(ret, WORKER_DEATH_MAX, "%s", known);
    else if (WIFSIGNALED(status))
        snprintf(ret, WORKER_DEATH_MAX, "signal %d ended it: see the kernel's log",
                 WTERMSIG(status));
    else if (program && WEXITSTATUS(status) == 127)
        snprintf(ret, WORKER_DEATH_MAX, "%.100s cannot be started: is it there, and executable?",
                 program);
    else
        snprintf(ret, WORKER_DEATH_MAX, "%.100s ended by itself with status %d",
                 program ? program : "it", WEXITSTATUS(status));
}
