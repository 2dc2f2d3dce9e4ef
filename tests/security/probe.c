/* probe: entry, generic system calls, and the runner that tries many attacks in one sandbox. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CALL(name)                                                                                 \
    {                                                                                              \
#name, SYS_##name                                                                          \
    }

static const struct {
    const char *name;
    long nr;
} call_names[] = {
    CALL(acct),
    CALL(add_key),
    CALL(adjtimex),
    CALL(bpf),
    CALL(chroot),
    CALL(clock_adjtime),
    CALL(clock_settime),
    CALL(clone),
    CALL(clone3),
    CALL(delete_module),
    CALL(fanotify_init),
    CALL(finit_module),
    CALL(fsconfig),
    CALL(fsmount),
    CALL(fsopen),
    CALL(fspick),
    CALL(futex),
    CALL(init_module),
    CALL(io_uring_enter),
    CALL(io_uring_register),
    CALL(io_uring_setup),
    CALL(kcmp),
    CALL(kexec_load),
    CALL(keyctl),
    CALL(lookup_dcookie),
    CALL(mbind),
    {"memfd_secret", 447},
    CALL(migrate_pages),
    CALL(mount),
    CALL(mount_setattr),
    CALL(move_mount),
    CALL(move_pages),
    CALL(name_to_handle_at),
    CALL(nfsservctl),
    CALL(open_by_handle_at),
    CALL(open_tree),
    CALL(perf_event_open),
    CALL(personality),
    CALL(pidfd_getfd),
    CALL(pidfd_open),
    CALL(pivot_root),
    CALL(prlimit64),
    CALL(process_madvise),
    CALL(process_vm_readv),
    CALL(process_vm_writev),
    CALL(ptrace),
    CALL(quotactl),
    CALL(reboot),
    CALL(request_key),
    CALL(sched_setattr),
    CALL(seccomp),
    CALL(set_mempolicy),
    CALL(setdomainname),
    CALL(sethostname),
    CALL(setns),
    CALL(setpriority),
    CALL(settimeofday),
    CALL(socket),
    CALL(swapoff),
    CALL(swapon),
    CALL(syslog),
    CALL(umount2),
    CALL(unshare),
    CALL(userfaultfd),
    CALL(vhangup),
#ifdef __x86_64__
    CALL(ioperm),
    CALL(iopl),
    CALL(kexec_file_load),
    CALL(modify_ldt),
    CALL(_sysctl),
    CALL(uselib),
    CALL(ustat),
    CALL(sysfs),
    CALL(create_module),
#endif
};

/* Errors with which a wall answers; every other one means that the kernel looked at the call. A
 * kernel that was built without it answers as those of the second line. */
static const int denials[] = {EPERM, EACCES, EROFS, ENOSPC};
static const int absences[] = {ENOSYS, EAFNOSUPPORT, EPROTONOSUPPORT, ESOCKTNOSUPPORT};

int verdict(long result)
{
    if (result >= 0) {
        printf("result %ld\n", result);
        return WORKED;
    }

    int error = errno;
    printf("%s\n", strerror(error));
    for (size_t i = 0; i < sizeof denials / sizeof *denials; i++)
        if (error == denials[i])
            return DENIED;
    for (size_t i = 0; i < sizeof absences / sizeof *absences; i++)
        if (error == absences[i])
            return MISSING;
    return WORKED;
}

/* A number, `s:text`, or `z:N` for N zero bytes. */
static long call_argument(const char *text)
{
    if (!strncmp(text, "s:", 2))
        return (long)(text + 2);
    if (!strncmp(text, "z:", 2))
        return (long)calloc(1, (size_t)strtoul(text + 2, NULL, 0) + 1);
    return (long)strtoull(text, NULL, 0);
}

static long call_number(const char *text)
{
    for (size_t i = 0; i < sizeof call_names / sizeof *call_names; i++)
        if (!strcmp(call_names[i].name, text))
            return call_names[i].nr;
    char *end;
    long nr = strtol(text, &end, 0);
    if (*end || end == text) {
        fprintf(stderr, "probe: unknown system call %s\n", text);
        exit(BAD_USAGE);
    }
    return nr;
}

/* call NAME|NUMBER ARG...: was the kernel's code of this call reached? */
static int command_call(int argc, char **argv)
{
    long a[6] = {0};
    if (argc < 2 || argc > 8)
        return BAD_USAGE;
    long nr = call_number(argv[1]);
    for (int i = 2; i < argc; i++)
        a[i - 2] = call_argument(argv[i]);
    return verdict(syscall(nr, a[0], a[1], a[2], a[3], a[4], a[5]));
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* One attack in a process group of its own; 124 when it is not done in time. */
int try_line(char *line, double limit)
{
    pid_t pid = fork();
    if (pid < 0)
        return 125;

    if (pid == 0) {
        setpgid(0, 0);
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        dup2(null, 2);
        if (null > 2)
            close(null);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(126);
    }

    int status = 0;
    double deadline = now() + limit;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (now() > deadline) {
            kill(-pid, SIGKILL);
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return 124;
        }
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    kill(-pid, SIGKILL);

    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* battery FILE SECONDS: FILE has lines "id<TAB>shell command"; prints "id:status" for each. */
static int command_battery(int argc, char **argv)
{
    if (argc != 3)
        return BAD_USAGE;
    FILE *f = fopen(argv[1], "re");
    if (!f) {
        fprintf(stderr, "probe: %s: %s\n", argv[1], strerror(errno));
        return BAD_USAGE;
    }

    const char *path = getenv("PATH");
    char *with_probe = NULL;
    if (asprintf(&with_probe, "/opt/attack:%s", path ? path : "/usr/bin:/bin") < 0)
        return BAD_USAGE;
    setenv("PATH", with_probe, 1);

    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, f) > 0) {
        line[strcspn(line, "\n")] = 0;
        char *tab = strchr(line, '\t');
        if (!tab)
            continue;
        *tab = 0;
        printf("%s:%d\n", line, try_line(tab + 1, strtod(argv[2], NULL)));
        fflush(stdout);
    }

    return 0;
}

static const struct probe_command own_commands[] = {
    {"call", command_call},
    {"battery", command_battery},
    {NULL, NULL},
};

int main(int argc, char **argv)
{
    const struct probe_command *tables[] = {own_commands, attack_commands, load_commands,
                                            cell_commands};
    for (size_t t = 0; argc > 1 && t < sizeof tables / sizeof *tables; t++)
        for (const struct probe_command *c = tables[t]; c->name; c++)
            if (!strcmp(c->name, argv[1]))
                return c->run(argc - 1, argv + 1);
    fprintf(stderr, "probe: unknown command %s\n", argc > 1 ? argv[1] : "");
    return BAD_USAGE;
}
