/* The daemon's filter on itself: every call that it must refuse is made under it, and once more
 * without it. The list is written from SECURITY.md and the manual pages, not from the filter's own
 * table, so that a call that falls out of the table is missed here. */
#include "server/serve.h"

#include <errno.h>
#include <linux/sched.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define BAD      8 /* an address that nobody has */

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

enum control {
    DIFFERS, /* without the filter the kernel always answers something else */
    ROOT,    /* it does so to root */
    PERHAPS, /* it may be missing from this kernel, or forbidden by a setting */
};

struct call {
    const char *name;
    long nr;
    long args[5];
    int want;
    enum control control;
};

#define CALL(name, want, control, ...)                                                             \
    {                                                                                              \
#name, SYS_##name, {__VA_ARGS__ }, want, control                                           \
    }

/* Without a filter all of them are harmless for root: bad pointers, descriptors and numbers. */
static const struct call calls[] = {
    CALL(execve, EPERM, DIFFERS, BAD, 0, 0),
    CALL(execveat, EPERM, DIFFERS, -1, BAD, 0, 0, 0),
#ifndef __SANITIZE_ADDRESS__ /* whose leak check needs it, and the filter then allows it */
    CALL(ptrace, EPERM, DIFFERS, 0xffff, 0, 0, 0),
#endif
    CALL(process_vm_readv, EPERM, DIFFERS, -1, 0, 0, 0, 0),
    CALL(process_vm_writev, EPERM, DIFFERS, -1, 0, 0, 0, 0),
    CALL(mount, EPERM, ROOT, BAD, BAD, BAD, 0, BAD),
    CALL(umount2, EPERM, ROOT, BAD, 0x10000),
    CALL(pivot_root, EPERM, ROOT, BAD, BAD),
    CALL(chroot, EPERM, ROOT, BAD),
    CALL(setns, EPERM, DIFFERS, -1, 0),
    CALL(unshare, EPERM, DIFFERS, 0),
    CALL(init_module, EPERM, PERHAPS, BAD, 0, BAD),
    CALL(finit_module, EPERM, PERHAPS, -1, BAD, 0),
    CALL(delete_module, EPERM, PERHAPS, BAD, 0),
    CALL(kexec_load, EPERM, PERHAPS, 0, 0, BAD, 0xffff),
    CALL(kexec_file_load, EPERM, PERHAPS, -1, -1, 0, 0, 0xffff),
    CALL(bpf, EPERM, PERHAPS, -1, 0, 0),
    CALL(perf_event_open, EPERM, DIFFERS, BAD, 0, -1, -1, 0),
    CALL(userfaultfd, EPERM, PERHAPS, 0x7000),
    CALL(keyctl, EPERM, PERHAPS, -1, 0, 0),
    CALL(add_key, EPERM, PERHAPS, BAD, BAD, BAD, 0, 0),
    CALL(request_key, EPERM, PERHAPS, BAD, BAD, 0, 0),
    CALL(io_uring_setup, EPERM, PERHAPS, 0, BAD),
    CALL(io_uring_enter, EPERM, PERHAPS, -1, 0, 0, 0, 0),
    CALL(io_uring_register, EPERM, PERHAPS, -1, 0, 0, 0),
    CALL(swapon, EPERM, PERHAPS, BAD, 0),
    CALL(swapoff, EPERM, PERHAPS, BAD),
    CALL(reboot, EPERM, ROOT, 1, 2, 3, 0),
    CALL(settimeofday, EPERM, ROOT, BAD, 0),
    CALL(clock_settime, EPERM, DIFFERS, 99, BAD),
    CALL(sethostname, EPERM, ROOT, BAD, -1),
    CALL(setdomainname, EPERM, ROOT, BAD, -1),
    CALL(personality, EPERM, DIFFERS, 0xffffffff),
    CALL(acct, EPERM, PERHAPS, BAD),
    CALL(quotactl, EPERM, PERHAPS, -1, 0, 0, 0),
    CALL(open_by_handle_at, EPERM, ROOT, -1, BAD, 0),
    CALL(move_mount, EPERM, ROOT, -1, BAD, -1, BAD, 0),
    CALL(open_tree, EPERM, DIFFERS, -1, BAD, 2),
    CALL(fsopen, EPERM, ROOT, BAD, 0),
    CALL(fsmount, EPERM, ROOT, -1, 0xffff, 0),
    CALL(fsconfig, EPERM, DIFFERS, -1, 0, 0, 0, 0),
    CALL(fspick, EPERM, ROOT, -1, BAD, 0),
    CALL(mount_setattr, EPERM, DIFFERS, -1, BAD, 0, BAD, 1),
    CALL(setuid, EPERM, ROOT, -1),
    CALL(setgid, EPERM, ROOT, -1),
    CALL(setreuid, EPERM, DIFFERS, -1, -1),
    CALL(setregid, EPERM, DIFFERS, -1, -1),
    CALL(setresuid, EPERM, DIFFERS, -1, -1, -1),
    CALL(setresgid, EPERM, DIFFERS, -1, -1, -1),
    CALL(setgroups, EPERM, ROOT, -1, BAD),
    CALL(capset, EPERM, DIFFERS, BAD, BAD),
    CALL(pidfd_getfd, EPERM, DIFFERS, -1, 0, 0),
    CALL(kcmp, EPERM, PERHAPS, -1, -1, 0, 0, 0),
    CALL(syslog, EPERM, PERHAPS, 99, 0, 0),
    CALL(vhangup, EPERM, ROOT, 0),
    CALL(memfd_secret, EPERM, PERHAPS, 0xffff),
    CALL(fanotify_init, EPERM, PERHAPS, 0xffff, 0),
    /* Namespaces by the calls that make threads. The flags contradict each other: none is made. */
    {"clone: user", SYS_clone, {CLONE_NEWUSER | CLONE_FS | SIGCHLD}, EPERM, DIFFERS},
    {"clone: mount", SYS_clone, {CLONE_NEWNS | CLONE_FS | SIGCHLD}, EPERM, DIFFERS},
    {"clone: pid", SYS_clone, {CLONE_NEWPID | CLONE_THREAD}, EPERM, DIFFERS},
    {"clone: network", SYS_clone, {CLONE_NEWNET | CLONE_THREAD}, EPERM, DIFFERS},
    {"clone: ipc", SYS_clone, {CLONE_NEWIPC | CLONE_THREAD}, EPERM, DIFFERS},
    {"clone: host name", SYS_clone, {CLONE_NEWUTS | CLONE_THREAD}, EPERM, DIFFERS},
    {"clone: cgroup", SYS_clone, {CLONE_NEWCGROUP | CLONE_THREAD}, EPERM, DIFFERS},
    {"clone with a high bit",
     SYS_clone,
     {(long)(UINT64_C(1) << 40 | CLONE_NEWUSER | CLONE_FS)},
     EPERM,
     DIFFERS},
    CALL(clone3, ENOSYS, DIFFERS, BAD, 0),
    /* What must not change. */
    {"getppid", SYS_getppid, {0}, 0, DIFFERS},
    {"read", SYS_read, {-1, 0, 0}, 0, DIFFERS},
    {"clone without sense", SYS_clone, {CLONE_THREAD}, 0, DIFFERS},
};

/* Runs in a child that ends by _exit: nothing may return into the test framework from there. */
static void load_or_exit(void)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || self_filter_load() != 0)
        _exit(99);
}

static void check_child(pid_t pid, int want)
{
    int status = -1;
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, want);
}

/* The errno of each call (0 when it worked), made in a process with or without the filter. */
static void make_calls(int filtered, int *errnos)
{
    pid_t pid = fork();
    if (pid == 0) {
        setsid(); /* no terminal for vhangup */
        if (filtered)
            load_or_exit();
        for (size_t i = 0; i < COUNT(calls); i++) {
            const long *a = calls[i].args;
            errno = 0;
            long r = syscall(calls[i].nr, a[0], a[1], a[2], a[3], a[4], 0);
            errnos[i] = r < 0 ? errno : 0;
        }
        _exit(0);
    }
    check_child(pid, 0);
}

static int is_shown(const struct call *c)
{
    return c->control == DIFFERS || (c->control == ROOT && geteuid() == 0);
}

static void each_call_is_refused_and_works_without_the_filter(void **state)
{
    (void)state;
    size_t size = 2 * sizeof(int) * COUNT(calls);
    int *with = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(with, MAP_FAILED);
    int *without = with + COUNT(calls);
    make_calls(1, with);
    make_calls(0, without);
    /* In a container the control is filtered as well, by the container's policy. */
    int bare = prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 0;

    for (size_t i = 0; i < COUNT(calls); i++) {
        const struct call *c = &calls[i];
        if (c->want && with[i] != c->want)
            fail_msg("%s: errno %d, wanted %d", c->name, with[i], c->want);
        if (!c->want && with[i] != without[i])
            fail_msg("%s: errno %d, without the filter %d", c->name, with[i], without[i]);
        if (bare && c->want && is_shown(c) && without[i] == c->want)
            fail_msg("%s: errno %d without the filter as well", c->name, with[i]);
        if (c->control == PERHAPS && without[i] == c->want)
            print_message("%s: this kernel refuses it by itself\n", c->name);
    }
    munmap(with, size);
}

static void *answer(void *arg)
{
    return arg;
}

static void threads_and_forks_work_under_the_filter(void **state)
{
    (void)state;
    pid_t pid = fork();

    if (pid == 0) {
        load_or_exit();
        pthread_t thread;
        void *said = NULL;
        if (pthread_create(&thread, NULL, answer, &said) != 0 || pthread_join(thread, &said) != 0 ||
            said != &said)
            _exit(1);
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        int status = -1;
        _exit(child < 0 || waitpid(child, &status, 0) != child || status ? 2 : 0);
    }
    check_child(pid, 0);
}

static void foreign_entries_end_the_process(void **state)
{
    (void)state;
#ifdef __x86_64__
    pid_t pid = fork();

    if (pid == 0) {
        load_or_exit();
        syscall(0x40000000L | SYS_getpid);
        _exit(0);
    }

    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSYS);
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_is_refused_and_works_without_the_filter),
        cmocka_unit_test(threads_and_forks_work_under_the_filter),
        cmocka_unit_test(foreign_entries_end_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
