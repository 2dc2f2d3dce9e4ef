/* keeper_program: the released keeper in a place of its own, with an owner who may do less than
 * root. */
#pragma once

#include "unit.h"

#include "base/err.h"
#include "base/fd.h"
#include "jail/jail.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define OWNER      65534u
#define OWNER_TEXT "65534"
#define PATIENCE   (60 * NS_PER_S)

struct place {
    char dir[64], socket[96], state[96], run[96];
    pid_t keeper;
    uid_t uid; /* whose keeper it is; 0 also has an owner */
};

/* The released program: under a sanitizer, a builder's children that share its stack are taken for
 * mistakes. */
static inline const char *program(void)
{
    const char *other = getenv("PADDOCK");
    return other && other[0] ? other : UNIT_PADDOCK;
}

static inline void start_keeper(struct place *p)
{
    struct pd_err e;
    struct keeper_link l;
    p->keeper = child_fork();

    if (p->keeper == 0) {
        setenv("PADDOCK_STATE_DIR", p->state, 1);
        setenv("PADDOCK_RUN_DIR", p->run, 1);
        if (p->uid && setresuid(p->uid, p->uid, p->uid) == 0)
            execl(program(), "paddock", "keeper", "--socket", p->socket, (char *)NULL);
        execl(program(), "paddock", "keeper", "--socket", p->socket, "--owner", OWNER_TEXT,
              "--builders", "1", "--kits", "0", (char *)NULL);
        _exit(127);
    }

    deadline d = deadline_in(PATIENCE);
    while (keeper_connect(&l, p->socket, &e) < 0) {
        assert_false(deadline_passed(d));
        usleep(5000);
    }
    keeper_link_done(&l);
}

static inline int set_up(void **state)
{
    static struct place p;
    *state = &p;
    p.keeper = 0;
    p.uid = 0;
    if (geteuid() != 0 || access(program(), X_OK) < 0)
        return 0;
    snprintf(p.dir, sizeof p.dir, "/tmp/paddock-owner-XXXXXX");
    assert_non_null(mkdtemp(p.dir));
    chmod(p.dir, 0711);
    snprintf(p.socket, sizeof p.socket, "%s/s", p.dir);
    snprintf(p.state, sizeof p.state, "%s/state", p.dir);
    snprintf(p.run, sizeof p.run, "%s/run", p.dir);
    start_keeper(&p);
    return 0;
}

static inline int tear_down(void **state)
{
    struct place *p = *state;
    if (!p->keeper)
        return 0;
    kill(p->keeper, SIGTERM);
    waitpid(p->keeper, NULL, 0);
    char command[128];
    snprintf(command, sizeof command, "%s", p->dir);

    char *argv[] = {(char *)"rm", (char *)"-rf", command, NULL};
    pid_t pid = child_fork();
    if (pid == 0) {
        execvp(argv[0], argv);
        _exit(127);
    }
    waitpid(pid, NULL, 0);
    return 0;
}
