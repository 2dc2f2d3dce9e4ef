/* Where init begins, as pid 1 of a jail. It gives up the ambient capabilities, is not dumpable,
 * dies with the keeper, blocks all signals and keeps the owner's socket from its children. Then it
 * takes turns until the owner is gone, and all of the jail ends with it. The words of its command
 * line are the mode and, where there are no cgroups, the limits of memory and of processes. The
 * init of a complete kit does all this before it has an owner, and then waits for the keeper to say
 * who.
 *
 * In a box that somebody else made it begins in box.c.
 *
 * The same program is `sudo` when it is started under that name and is not pid 1: sudo.c. */
#include "init/init.h"

#include "init/facts.h"
#include "init/sudo.h"

#include "base/banned.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* The builder handed over the capabilities as ambient ones, because nothing else survives an exec
 * by a uid other than 0. From here on they must not reach a child by themselves. */
static void forget_ambient(void)
{
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);

    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2];
    if (syscall(SYS_capget, &head, caps) == 0) {
        caps[0].inheritable = caps[1].inheritable = 0;
        syscall(SYS_capset, &head, caps);
    }
}

/* Nobody outside looks into an image: its owner is told which shell there is, and the variables,
 * which are init's own. */
static void tell_of_image(struct init *in, enum init_mode mode)
{
    struct facts f = {.uid = 1000,
                      .gid = 1000,
                      .workspace = "/workspace",
                      .home = "/home/user",
                      .is_jail = true,
                      .mode = mode == INIT_SINGLE ? FACTS_SINGLE
                              : mode == INIT_DEV  ? FACTS_DEV
                                                  : FACTS_STRICT};

    facts_find(&f);
    facts_encode(&f, environ, &in->facts);
    init_tell_facts(in);
}

int main(int argc, char **argv)
{
    const char *name = argc > 0 ? strrchr(argv[0], '/') : NULL;
    if (getpid() != 1 && !strcmp(name ? name + 1 : argc > 0 ? argv[0] : "", "sudo"))
        return sudo_main(argc, argv);

    const char *word = argc > 1 ? argv[1] : "";
    if (!strcmp(word, INIT_ARG_DOOR) || !strcmp(word, INIT_ARG_LOCAL))
        return box_main(argc, argv);

    enum init_mode mode = !strcmp(word, INIT_ARG_DEV)      ? INIT_DEV
                          : !strcmp(word, INIT_ARG_SINGLE) ? INIT_SINGLE
                                                           : INIT_STRICT;

#ifdef PADDOCK_WEAK_WALLS
    if (!getenv("PADDOCK_KEEP_CAPS"))
#endif
        forget_ambient();
#ifdef PADDOCK_WEAK_WALLS
    if (!getenv("PADDOCK_DUMPABLE"))
#endif
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_NAME, "paddock-init", 0, 0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); /* the keeper is the parent */
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});

    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    fcntl(INIT_OWNER_FD, F_SETFD, FD_CLOEXEC);

    struct init in;
    if (init_begin(&in, mode, INIT_OWNER_FD) < 0)
        return 1;
    if (mode == INIT_DEV)
        init_listen_for_sudo(&in, false);
    if (argc > 3) {
        in.memory_limit = strtoull(argv[2], NULL, 10);
        in.process_limit = strtoull(argv[3], NULL, 10);
    }

    if (getenv(INIT_ENV_WAITS) && init_await_owner(&in) < 0)
        _exit(0);
    if (getenv(INIT_ENV_IMAGE))
        tell_of_image(&in, mode);
    while (init_turn(&in, -1) == 0)
        ;
    _exit(0); /* nobody owns this jail any more: the kernel ends the rest */
}
