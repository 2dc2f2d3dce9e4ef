/* The engines that providers docker and podman use. paddock-remote asks them, because this program
 * has no HTTP: it writes lines "NAME VALUE", which become checks here. An engine that is not there
 * is nothing bad: the jail needs none. */
#include "cli/doctor_checks.h"
#include "cli/doctor_text.h"

#include "base/banned.h"
#include "base/beside.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAYS_MAX 2048

/* Features that an engine should have, each with the meaning of its absence. */
static const struct {
    const char *name;
    const char *why, *fix;
    enum check_status lacks;
} wants[] = {
    {"seccomp", "without it a container may make every system call",
     "start the engine with seccomp (a kernel and runc that have it)", CHECK_WARN},
    {"userns", "off: whoever gets out of a container as root is the host's root",
     "put \"userns-remap\": \"default\" into /etc/docker/daemon.json", CHECK_INFO},
    {"memory", "no sandbox is made without it: one could take the host's memory",
     "give the engine the memory controller (cgroup_enable=memory; rootless: Delegate=yes)",
     CHECK_WARN},
    {"pids", "no sandbox is made without it: one could take the host's process ids",
     "give the engine the pids controller (rootless: Delegate=yes)", CHECK_WARN},
    {"cpu", "no sandbox is made without it: one could take every core",
     "give the engine the cpu controller (rootless: Delegate=yes)", CHECK_WARN},
};

/* Runs `paddock-remote check KIND`, which has a deadline of its own. Returns its status, 127 when
 * it could not be started. */
static int ask(const char *kind, char out[SAYS_MAX])
{
    int ends[2];
    out[0] = 0;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return 127;

    pid_t pid = fork();
    if (pid == 0) {
        const char *argv[] = {NULL, "check", kind, NULL};
        if (dup2(ends[1], STDOUT_FILENO) == STDOUT_FILENO)
            exec_beside("paddock-remote", argv);
        _exit(127);
    }

    fd_done(&ends[1]);
    size_t len = 0;
    while (pid > 0 && len < SAYS_MAX - 1) {
        ssize_t n = read(ends[0], out + len, SAYS_MAX - 1 - len);
        if (n == 0 || (n < 0 && errno != EINTR))
            break;
        len += n > 0 ? (size_t)n : 0;
    }
    out[len] = 0;
    fd_done(&ends[0]);

    int status = 127 << 8;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void check_wants(struct check_list *l, const char *kind, const char *says)
{
    char value[16], name[32];

    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        if (!text_value(says, wants[i].name, value, sizeof value) || !strcmp(value, "yes"))
            continue;
        snprintf(name, sizeof name, "%s-%s", kind, wants[i].name);
        check_add(l, name, wants[i].lacks, wants[i].why,
                  wants[i].lacks == CHECK_WARN ? wants[i].fix : NULL, "off");
    }
}

static void check_engine(struct check_list *l, const char *kind)
{
    char says[SAYS_MAX], error[140], version[48], place[64], storage[32], cgroups[40];
    int status = ask(kind, says);
    static const char why[] = "what the provider of this name makes sandboxes with";

    if (status == 127) {
        check_add(l, kind, CHECK_INFO, why, NULL, "paddock-remote, which asks it, is not there");
        return;
    }
    if (text_value(says, "error", error, sizeof error)) {
        check_add(l, kind, CHECK_INFO, why, NULL, "%s", error);
        return;
    }
    if (!text_value(says, "version", version, sizeof version) ||
        !text_value(says, "place", place, sizeof place) ||
        !text_value(says, "storage", storage, sizeof storage) ||
        !text_value(says, "cgroups", cgroups, sizeof cgroups)) {
        check_add(l, kind, CHECK_WARN, why, "install paddock and paddock-remote of one version",
                  "paddock-remote says nothing that is understood");
        return;
    }

    check_add(l, kind, CHECK_OK, why, NULL, "%s at %s, %s, cgroups %s", version, place, storage,
              cgroups);
    check_wants(l, kind, says);
}

void checks_engines(struct check_list *l)
{
    check_engine(l, "docker");
    check_engine(l, "podman");
}
