/* The checks that only read: settings of the kernel, and limits of this process. */
#include "cli/doctor_checks.h"

#include "base/banned.h"
#include "base/fd.h"
#include "wire/ceilings.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Below this a server with a few thousand sandboxes, or many commands at once, runs short. */
#define NOFILE_GOOD 65536u

struct setting {
    const char *name; /* as sysctl(8) knows it */
    int64_t min, max; /* good values */
    int64_t fix;
    enum check_status absent; /* what it means when the kernel does not have it */
    const char *absent_text, *absent_fix;
    const char *why;
};

static const struct setting settings[] = {
    {"dev.tty.legacy_tiocsti", 0, 0, 0, CHECK_INFO, "no such setting: always allowed", NULL,
     "1 lets a program type into the terminal it was started from"},
    {"kernel.io_uring_disabled", 1, 2, 2, CHECK_INFO, "no such setting: allowed", NULL,
     "0 lets every process of the host use io_uring, a frequent way into the kernel"},
    {"kernel.kptr_restrict", 1, 2, 1, CHECK_INFO, "no such setting", NULL,
     "0 shows kernel addresses, which exploits need"},
    {"fs.protected_symlinks", 1, 1, 1, CHECK_INFO, "no such setting", NULL,
     "0 lets planted links in /tmp mislead programs of other users"},
    {"fs.protected_hardlinks", 1, 1, 1, CHECK_INFO, "no such setting", NULL,
     "0 lets users keep links to files that are not theirs"},
    {"fs.protected_fifos", 1, 2, 1, CHECK_INFO, "no such setting", NULL,
     "0 lets planted pipes in /tmp mislead programs of other users"},
    {"fs.protected_regular", 1, 2, 1, CHECK_INFO, "no such setting", NULL,
     "0 lets planted files in /tmp mislead programs of other users"},
    {"kernel.pid_max", 131072, INT64_MAX, 4194304, CHECK_INFO, "no such setting", NULL,
     "many jails together may use up the host's process ids"},
    {"kernel.yama.ptrace_scope", 1, 3, 1, CHECK_WARN, "the kernel runs without Yama",
     "add yama to lsm= on the kernel's command line (if it has CONFIG_SECURITY_YAMA)",
     "0 lets every program trace all others of its user"},
};

static int read_setting(const char *name, int64_t *ret)
{
    char path[96], value[64];

    snprintf(path, sizeof path, "/proc/sys/%s", name);
    for (char *p = path + strlen("/proc/sys/"); *p; p++)
        if (*p == '.')
            *p = '/';

    if (fd_read_file(AT_FDCWD, path, value, sizeof value) <= 0)
        return -1;
    *ret = strtoll(value, NULL, 10);
    return 0;
}

static void set_command(const struct check_list *l, const char *name, int64_t value, char *ret,
                        size_t size)
{
    snprintf(ret, size, "%ssysctl -w %s=%" PRId64, l->rootless ? "sudo " : "", name, value);
}

static void check_setting(struct check_list *l, const struct setting *s)
{
    int64_t value;
    char fix[128] = "";

    if (read_setting(s->name, &value) < 0) {
        check_add(l, s->name, s->absent, s->why, s->absent_fix, "%s", s->absent_text);
        return;
    }

    int good = value >= s->min && value <= s->max;
    if (!good)
        set_command(l, s->name, s->fix, fix, sizeof fix);
    check_add(l, s->name, good ? CHECK_OK : CHECK_WARN, s->why, fix, "%" PRId64, value);
}

/* Does the kernel run 32-bit calls? Tried, because there is no setting that tells. */
static void check_i386(struct check_list *l)
{
#ifdef __x86_64__
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        long result;
        __asm__ volatile("int $0x80" : "=a"(result) : "0"(20L /* getpid */) : "memory");
        _exit(result == getpid() ? 0 : 1);
    }

    int status = 1;
    if (pid > 0)
        waitpid(pid, &status, 0);

    check_add(l, "ia32-emulation", status == 0 ? CHECK_WARN : CHECK_OK,
              "a second set of system calls that hardly anybody needs and few people test",
              status == 0 ? "add ia32_emulation=0 to the kernel's command line (Linux 6.7 or newer)"
                          : NULL,
              status == 0 ? "on (jails kill what uses it)" : "off");
#else
    (void)l;
#endif
}

static void check_core_pattern(struct check_list *l)
{
    char value[256] = "";

    fd_read_file(AT_FDCWD, "/proc/sys/kernel/core_pattern", value, sizeof value);
    value[strcspn(value, "\n")] = 0;

    int piped = value[0] == '|';
    check_add(l, "kernel.core_pattern", piped ? CHECK_WARN : CHECK_OK,
              "a pattern with | runs a program as the host's root on data of a crashed one",
              !piped        ? NULL
              : l->rootless ? "sudo sysctl -w kernel.core_pattern=core"
                            : "sysctl -w kernel.core_pattern=core",
              "%.100s", value[0] ? value : "(empty)");
}

/* Root may go beyond the hard limit, but not in every container: so it is tried, and undone. */
static int may_raise_to(rlim_t files)
{
    struct rlimit now, higher = {files, files};
    if (getrlimit(RLIMIT_NOFILE, &now) < 0 || setrlimit(RLIMIT_NOFILE, &higher) < 0)
        return 0;
    return setrlimit(RLIMIT_NOFILE, &now) == 0;
}

static void check_quotas(struct check_list *l)
{
    struct rlimit r = {0};
    int64_t value;
    char fix[128] = "";

    getrlimit(RLIMIT_NOFILE, &r);
    /* Root's server and keeper raise their own limits. */
    if (!l->rootless && read_setting("fs.nr_open", &value) == 0 && value > 0 &&
        (rlim_t)value > r.rlim_max && may_raise_to((rlim_t)value))
        r.rlim_max = (rlim_t)value;

    int few = r.rlim_max < NOFILE_GOOD;
    check_add(l, "open-files", few ? CHECK_WARN : CHECK_OK,
              "server and keeper each hold 4 open files for a sandbox, and some for its commands",
              few ? "set LimitNOFILE=1048576 in the service's unit, or `ulimit -Hn 1048576` as root"
                  : NULL,
              r.rlim_max == RLIM_INFINITY ? "no limit" : "%llu: at most %llu sandboxes",
              (unsigned long long)r.rlim_max,
              (unsigned long long)ceilings_sandboxes((uint64_t)r.rlim_max));

    static const char pipes[] = "fs.pipe-user-pages-soft";
    if (read_setting(pipes, &value) == 0) {
        int low = value && value <= 16384;
        if (low && l->rootless)
            set_command(l, pipes, 1048576, fix, sizeof fix);
        check_add(l, pipes,
                  !low          ? CHECK_OK
                  : l->rootless ? CHECK_WARN
                                : CHECK_INFO,
                  "after some 340 commands at once pipes shrink from 64 KiB to 8", fix,
                  "%" PRId64 "%s", value, low && !l->rootless ? " (root is exempt)" : "");
    }

    static const char watches[] = "fs.inotify.max_user_instances";
    if (read_setting(watches, &value) == 0) {
        int low = value < 1024 && l->rootless;
        fix[0] = 0;
        if (low)
            set_command(l, watches, 1024, fix, sizeof fix);
        check_add(l, watches, low ? CHECK_WARN : CHECK_OK,
                  "without root all jails share one quota: each can use it up for all", fix,
                  "%" PRId64 "%s", value, l->rootless ? "" : " for each jail");
    }
}

static void check_side_channels(struct check_list *l)
{
    char text[4096] = "";

    fd_read_file(AT_FDCWD, "/proc/swaps", text, sizeof text);
    const char *second = strchr(text, '\n');
    check_add(l, "swap", CHECK_INFO, "memory of a jail may end up on disk", NULL,
              second && second[1] ? "on" : "off");

    text[0] = 0;
    fd_read_file(AT_FDCWD, "/sys/kernel/mm/ksm/run", text, sizeof text);
    check_add(l, "ksm", CHECK_INFO, "merged pages tell a jail what its neighbours have in memory",
              NULL, text[0] == '1' ? "on" : "off");

    text[0] = 0;
    fd_read_file(AT_FDCWD, "/sys/devices/system/cpu/smt/active", text, sizeof text);
    check_add(l, "smt", CHECK_INFO, "jails on one core's threads can time each other", NULL,
              text[0] == '1' ? "on" : "off");
}

void checks_settings(struct check_list *l)
{
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        check_setting(l, &settings[i]);
    check_i386(l);
    check_core_pattern(l);
    check_quotas(l);
    check_side_channels(l);
}
