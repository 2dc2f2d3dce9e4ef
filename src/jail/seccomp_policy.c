/* Which call gets which verdict, and why. docs/seccomp.md explains how to change it.
 *
 * The names come from the kernel's header, not from libc's, which lags behind. A name that is not
 * in the first part below must exist on every architecture; the calls that only x86_64 still has
 * (all older siblings of others) stand in a block of their own. */
#include "jail/seccomp_policy.h"

#include "base/banned.h"
#include "jail/seccomp.h"

#include <asm/unistd.h>
#include <errno.h>
#include <linux/futex.h>
#include <linux/personality.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* Younger than the headers of Debian 12; since number 424 all architectures count alike. */
#ifndef __NR_fchmodat2
#define __NR_fchmodat2 452
#endif
#ifndef __NR_map_shadow_stack
#define __NR_map_shadow_stack 453
#endif
#ifndef __NR_mseal
#define __NR_mseal 462
#endif
#ifndef __NR_setxattrat
#define __NR_setxattrat    463
#define __NR_getxattrat    464
#define __NR_listxattrat   465
#define __NR_removexattrat 466
#endif
#ifndef __NR_open_tree_attr
#define __NR_open_tree_attr 467
#endif
#ifndef PR_SCHED_CORE
#define PR_SCHED_CORE 62
#endif

#define ALLOW(name)                                                                                \
    {                                                                                              \
        __NR_##name, SC_ALLOW                                                                      \
    }
#define CHECK(name, list)                                                                          \
    {                                                                                              \
        __NR_##name, list                                                                          \
    }
#define REFUSE(name)                                                                               \
    {                                                                                              \
        __NR_##name, SC_EPERM                                                                      \
    }
/* As if the kernel had never heard of it: for calls whose callers then take an older way. */
#define ABSENT(name)                                                                               \
    {                                                                                              \
        __NR_##name, SC_ENOSYS                                                                     \
    }

/* clang-format off */
static const struct seccomp_rule rules[] = {
    /* Files: open, read, write, seek. */
    ALLOW(openat), ALLOW(openat2), ALLOW(close), ALLOW(close_range), ALLOW(read), ALLOW(write),
    ALLOW(readv), ALLOW(writev), ALLOW(pread64), ALLOW(pwrite64), ALLOW(preadv), ALLOW(pwritev),
    ALLOW(preadv2), ALLOW(pwritev2), ALLOW(lseek), ALLOW(sendfile), ALLOW(splice), ALLOW(tee),
    ALLOW(copy_file_range), ALLOW(dup), ALLOW(dup3), ALLOW(fcntl), ALLOW(flock), ALLOW(pipe2),
    ALLOW(readahead), ALLOW(fadvise64), CHECK(memfd_create, SC_MEMFD_CREATE),
    CHECK(ioctl, SC_IOCTL),
    /* Files: names, attributes, durability. */
    ALLOW(newfstatat), ALLOW(fstat), ALLOW(statx), ALLOW(statfs), ALLOW(fstatfs), ALLOW(faccessat),
    ALLOW(faccessat2), ALLOW(getdents64), ALLOW(getcwd), ALLOW(chdir), ALLOW(fchdir),
    ALLOW(mkdirat), ALLOW(unlinkat), ALLOW(symlinkat), ALLOW(linkat), ALLOW(renameat),
    ALLOW(renameat2), ALLOW(readlinkat), ALLOW(fchmod), ALLOW(fchmodat), ALLOW(fchmodat2),
    ALLOW(fchown), ALLOW(fchownat), ALLOW(umask), ALLOW(utimensat), ALLOW(truncate),
    ALLOW(ftruncate), ALLOW(fallocate), ALLOW(sync), ALLOW(syncfs), ALLOW(fsync), ALLOW(fdatasync),
    ALLOW(sync_file_range), ALLOW(setxattr), ALLOW(lsetxattr), ALLOW(fsetxattr), ALLOW(setxattrat),
    ALLOW(getxattr), ALLOW(lgetxattr), ALLOW(fgetxattr), ALLOW(getxattrat), ALLOW(listxattr),
    ALLOW(llistxattr), ALLOW(flistxattr), ALLOW(listxattrat), ALLOW(removexattr),
    ALLOW(lremovexattr), ALLOW(fremovexattr), ALLOW(removexattrat),
    CHECK(mknodat, SC_MKNODAT),
    /* Waiting for files and events. */
    ALLOW(pselect6), ALLOW(ppoll), ALLOW(epoll_create1), ALLOW(epoll_ctl), ALLOW(epoll_pwait),
    ALLOW(epoll_pwait2), ALLOW(eventfd2), ALLOW(signalfd4), ALLOW(inotify_init1),
    ALLOW(inotify_add_watch), ALLOW(inotify_rm_watch),
    /* Memory. */
    CHECK(mmap, SC_MMAP), ALLOW(munmap), ALLOW(mremap), ALLOW(mprotect), ALLOW(madvise), ALLOW(mincore),
    ALLOW(msync), ALLOW(brk), ALLOW(mlock), ALLOW(mlock2), ALLOW(munlock), ALLOW(mlockall),
    ALLOW(munlockall), ALLOW(mseal), ALLOW(map_shadow_stack), ALLOW(remap_file_pages),
    ALLOW(pkey_alloc), ALLOW(pkey_free), ALLOW(pkey_mprotect), ALLOW(membarrier), ALLOW(rseq),
    /* Processes and threads. ptrace is for debuggers: it reaches what the caller could signal. */
    CHECK(clone, SC_CLONE), ALLOW(execve), ALLOW(execveat), ALLOW(exit), ALLOW(exit_group),
    ALLOW(wait4), ALLOW(waitid), ALLOW(set_tid_address), ALLOW(set_robust_list),
    ALLOW(get_robust_list), ALLOW(ptrace), CHECK(prctl, SC_PRCTL), ALLOW(pidfd_open),
    ALLOW(getpid), ALLOW(getppid), ALLOW(gettid), ALLOW(getpgid), ALLOW(setpgid), ALLOW(getsid),
    ALLOW(setsid), ALLOW(getpriority), ALLOW(setpriority), ALLOW(getrlimit), ALLOW(setrlimit),
    ALLOW(getrusage), ALLOW(getcpu), ALLOW(ioprio_get), ALLOW(ioprio_set), ALLOW(sched_yield),
    ALLOW(sched_getaffinity), ALLOW(sched_setaffinity), ALLOW(sched_getattr), ALLOW(sched_setattr),
    ALLOW(sched_getparam), ALLOW(sched_setparam), ALLOW(sched_getscheduler),
    ALLOW(sched_setscheduler), ALLOW(sched_get_priority_max), ALLOW(sched_get_priority_min),
    ALLOW(sched_rr_get_interval), ALLOW(restart_syscall), ALLOW(landlock_create_ruleset),
    ALLOW(landlock_add_rule), ALLOW(landlock_restrict_self),
    CHECK(futex, SC_FUTEX), CHECK(personality, SC_PERSONALITY), CHECK(prlimit64, SC_PRLIMIT),
    /* Signals. */
    ALLOW(rt_sigaction), ALLOW(rt_sigprocmask), ALLOW(rt_sigreturn), ALLOW(rt_sigpending),
    ALLOW(rt_sigtimedwait), ALLOW(rt_sigqueueinfo), ALLOW(rt_tgsigqueueinfo), ALLOW(rt_sigsuspend),
    ALLOW(sigaltstack), ALLOW(kill), ALLOW(tkill), ALLOW(tgkill), ALLOW(pidfd_send_signal),
    /* Identity: the capability sets guard these, and init and package managers need them. */
    ALLOW(getuid), ALLOW(geteuid), ALLOW(getgid), ALLOW(getegid), ALLOW(getresuid),
    ALLOW(getresgid), ALLOW(getgroups), ALLOW(setuid), ALLOW(setgid), ALLOW(setreuid),
    ALLOW(setregid), ALLOW(setresuid), ALLOW(setresgid), ALLOW(setfsuid), ALLOW(setfsgid),
    ALLOW(setgroups), ALLOW(capget), ALLOW(capset),
    /* Time, randomness, names. */
    ALLOW(clock_gettime), ALLOW(clock_getres), ALLOW(clock_nanosleep), ALLOW(nanosleep),
    ALLOW(gettimeofday), ALLOW(times), ALLOW(getitimer), ALLOW(setitimer), ALLOW(timer_create),
    ALLOW(timer_settime), ALLOW(timer_gettime), ALLOW(timer_getoverrun), ALLOW(timer_delete),
    ALLOW(timerfd_create), ALLOW(timerfd_settime), ALLOW(timerfd_gettime), ALLOW(getrandom),
    ALLOW(uname), ALLOW(sysinfo),
    /* Sockets. */
    CHECK(socket, SC_SOCKET), CHECK(socketpair, SC_SOCKETPAIR), CHECK(setsockopt, SC_SETSOCKOPT),
    ALLOW(getsockopt), ALLOW(bind), ALLOW(listen), ALLOW(accept), ALLOW(accept4), ALLOW(connect),
    ALLOW(getsockname), ALLOW(getpeername), ALLOW(sendto), ALLOW(recvfrom), ALLOW(sendmsg),
    ALLOW(recvmsg), ALLOW(sendmmsg), ALLOW(recvmmsg), ALLOW(shutdown),
    /* System V and POSIX IPC: the jail has an IPC namespace of its own. */
    CHECK(shmget, SC_SHMGET), ALLOW(shmat), ALLOW(shmdt), ALLOW(shmctl), ALLOW(semget), ALLOW(semop),
    ALLOW(semtimedop), ALLOW(semctl), ALLOW(msgget), ALLOW(msgsnd), ALLOW(msgrcv), ALLOW(msgctl),
    ALLOW(mq_open), ALLOW(mq_unlink), ALLOW(mq_timedsend), ALLOW(mq_timedreceive),
    ALLOW(mq_notify), ALLOW(mq_getsetattr),

    /* Its flags lie in memory, where a filter cannot look; every libc then calls clone. */
    ABSENT(clone3),
    /* The younger futex calls reach the code that futex's own check keeps shut. 454-456 (wake,
     * wait, requeue) are unknown here, which is the same answer. */
    ABSENT(futex_waitv),
    /* These use up resources of the whole machine: memory for compiled filters
     * (net.core.bpf_jit_limit; seccomp's, and those of SC_SETSOCKOPT), and requests of AIO
     * (fs.aio-max-nr). Libraries take them for an older kernel and go without. */
    ABSENT(seccomp), ABSENT(io_setup), ABSENT(io_destroy), ABSENT(io_submit), ABSENT(io_cancel),
    ABSENT(io_getevents), ABSENT(io_pgetevents),
    /* Puts a program's own pages into a pipe: an exploit's tool that hardly anybody uses. */
    ABSENT(vmsplice),
    /* Namespaces and mounts: most kernel holes of the last years need one of them first. */
    REFUSE(unshare), REFUSE(setns), REFUSE(mount), REFUSE(umount2), REFUSE(pivot_root),
    REFUSE(chroot), REFUSE(open_tree), REFUSE(open_tree_attr), REFUSE(move_mount), REFUSE(fsopen),
    REFUSE(fsconfig), REFUSE(fsmount), REFUSE(fspick), REFUSE(mount_setattr),
    /* Large and young parts of the kernel, and tools for exploits of others. */
    REFUSE(io_uring_setup), REFUSE(io_uring_enter), REFUSE(io_uring_register), REFUSE(bpf),
    REFUSE(userfaultfd), REFUSE(perf_event_open), REFUSE(memfd_secret),
    /* Keys belong to the host's uid and to no namespace. */
    REFUSE(keyctl), REFUSE(add_key), REFUSE(request_key),
    /* Other processes' memory and descriptors. Debuggers take ptrace and /proc/PID/mem. */
    REFUSE(process_vm_readv), REFUSE(process_vm_writev), REFUSE(process_madvise),
    REFUSE(process_mrelease), REFUSE(pidfd_getfd), REFUSE(kcmp),
    /* File handles walk around the mount namespace (open_by_handle_at: the "shocker" escape). */
    REFUSE(name_to_handle_at), REFUSE(open_by_handle_at), REFUSE(lookup_dcookie),
    REFUSE(fanotify_init), REFUSE(fanotify_mark),
    /* The machine. */
    REFUSE(reboot), REFUSE(kexec_load), REFUSE(kexec_file_load), REFUSE(init_module),
    REFUSE(finit_module), REFUSE(delete_module), REFUSE(swapon), REFUSE(swapoff), REFUSE(acct),
    REFUSE(quotactl), REFUSE(quotactl_fd), REFUSE(nfsservctl), REFUSE(syslog), REFUSE(vhangup),
    REFUSE(sethostname), REFUSE(setdomainname), REFUSE(settimeofday), REFUSE(clock_settime),
    REFUSE(adjtimex), REFUSE(clock_adjtime),
    /* NUMA placement. get_mempolicy too: with EPERM libnuma says "not available" and its users do
     * without; with an answer they go on to mbind and complain. */
    REFUSE(get_mempolicy), REFUSE(set_mempolicy), REFUSE(set_mempolicy_home_node), REFUSE(mbind),
    REFUSE(migrate_pages), REFUSE(move_pages),

#ifdef __x86_64__
    ALLOW(open), ALLOW(creat), ALLOW(stat), ALLOW(lstat), ALLOW(access), ALLOW(getdents),
    ALLOW(mkdir), ALLOW(rmdir), ALLOW(link), ALLOW(unlink), ALLOW(symlink), ALLOW(rename),
    ALLOW(readlink), ALLOW(chmod), ALLOW(chown), ALLOW(lchown), ALLOW(utime), ALLOW(utimes),
    ALLOW(futimesat), ALLOW(dup2), ALLOW(pipe), ALLOW(select), ALLOW(poll), ALLOW(epoll_create),
    ALLOW(epoll_wait), ALLOW(eventfd), ALLOW(signalfd), ALLOW(inotify_init), ALLOW(fork),
    ALLOW(vfork), ALLOW(getpgrp), ALLOW(pause), ALLOW(alarm), ALLOW(time), ALLOW(arch_prctl),
    CHECK(mknod, SC_MKNOD),
    /* Ports, and 16-bit segments: rare, and often at fault. */
    REFUSE(iopl), REFUSE(ioperm), REFUSE(modify_ldt),
#endif
};
/* clang-format on */

/* CLONE_NEWTIME is not among them: clone takes the low byte as the exit signal. */
#define NEW_NAMESPACES                                                                             \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |  \
     CLONE_NEWNET)

#define WHOLE      0xffffffffU
#define TYPE_MASK  0xfU  /* the kernel's SOCK_TYPE_MASK: the flags lie above it */
#define FUTEX_MASK 0x7fU /* the command without its flags */

#define VALUES(...)                                                                                \
    (sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)), WHOLE,                                 \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define MASKED(mask, ...)                                                                          \
    (sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)), (mask),                                \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define COND(arg, ...)                                                                             \
    {                                                                                              \
        arg, __VA_ARGS__                                                                           \
    }
#define ELSE(answer)                                                                               \
    {                                                                                              \
        answer, 0,                                                                                 \
        {                                                                                          \
            {                                                                                      \
                0                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

/* Types of nodes that have no device behind them; 0 means a regular file. */
#define NODE_TYPES MASKED(S_IFMT, 0, S_IFREG, S_IFIFO, S_IFSOCK)

/* The options of SOL_SOCKET that attach a program. */
#define SOCKET_FILTERS                                                                             \
    SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF

static const struct seccomp_case cases[SC_VERDICT_COUNT - SC_ANSWER_COUNT][SECCOMP_CASES] =
    {
        [SC_CLONE - SC_ANSWER_COUNT] =
            {
                {SC_ALLOW, 1, {COND(0, MASKED(NEW_NAMESPACES, 0))}},
                ELSE(SC_EPERM),
            },
        /* Requeueing to a priority-inheriting futex: no libc uses it, several exploits do. */
        [SC_FUTEX - SC_ANSWER_COUNT] =
            {
                {SC_ENOSYS,
                 1,
                 {COND(1, MASKED(FUTEX_MASK, FUTEX_WAIT_REQUEUE_PI, FUTEX_CMP_REQUEUE_PI))}},
                ELSE(SC_ALLOW),
            },
        /* Typing into a terminal, its console twins, and line disciplines (which load modules). */
        [SC_IOCTL - SC_ANSWER_COUNT] =
            {
                {SC_EPERM, 1, {COND(1, VALUES(TIOCSTI, TIOCLINUX, TIOCSETD, TIOCCONS))}},
                ELSE(SC_ALLOW),
            },
        /* Huge pages come from one pool of the machine, which no memory limit covers. */
        [SC_MEMFD_CREATE - SC_ANSWER_COUNT] =
            {
                {SC_ALLOW, 1, {COND(1, MASKED(MFD_HUGETLB, 0))}},
                ELSE(SC_EINVAL),
            },
        [SC_MKNOD - SC_ANSWER_COUNT] =
            {
                {SC_ALLOW, 1, {COND(1, NODE_TYPES)}},
                ELSE(SC_EPERM),
            },
        [SC_MKNODAT - SC_ANSWER_COUNT] =
            {
                {SC_ALLOW, 1, {COND(2, NODE_TYPES)}},
                ELSE(SC_EPERM),
            },
        /* Huge pages, as if the pool were empty: then programs take ordinary ones. */
        [SC_MMAP - SC_ANSWER_COUNT] =
            {
                {SC_ALLOW, 1, {COND(3, MASKED(MAP_HUGETLB, 0))}},
                ELSE(SC_ENOMEM),
            },
        /* Linux, 32-bit machine names, old version numbers, and the question (all ones). */
        [SC_PERSONALITY - SC_ANSWER_COUNT] =
            {
                {SC_ALLOW,
                 1,
                 {COND(0, VALUES(PER_LINUX, PER_LINUX32, UNAME26, PER_LINUX32 | UNAME26, WHOLE))}},
                ELSE(SC_EPERM),
            },
        /* Filters of one's own (see seccomp above), as if the kernel had none; and claiming a
         * core for oneself, whose sibling then stands idle. */
        [SC_PRCTL - SC_ANSWER_COUNT] =
            {
                {SC_EINVAL, 1, {COND(0, VALUES(PR_SET_SECCOMP))}},
                {SC_EPERM, 1, {COND(0, VALUES(PR_SCHED_CORE))}},
                ELSE(SC_ALLOW),
            },
        /* Pid 0, the caller, is what libc asks for; others' limits are nobody's business. */
        [SC_PRLIMIT - SC_ANSWER_COUNT] =
            {
                {SC_ALLOW, 1, {COND(0, VALUES(0))}},
                ELSE(SC_EPERM),
            },
        /* kTLS and the other upper layers of TCP; OpenSSL then encrypts by itself. Filters of
         * sockets take the machine's memory for compiled ones. */
        [SC_SETSOCKOPT - SC_ANSWER_COUNT] =
            {
                {SC_EPROTONOSUPPORT, 2, {COND(1, VALUES(IPPROTO_TCP)), COND(2, VALUES(TCP_ULP))}},
                {SC_EPERM, 2, {COND(1, VALUES(SOL_SOCKET)), COND(2, VALUES(SOCKET_FILTERS))}},
                ELSE(SC_ALLOW),
            },
        [SC_SHMGET - SC_ANSWER_COUNT] =
            {
                {SC_ALLOW, 1, {COND(2, MASKED(SHM_HUGETLB, 0))}},
                ELSE(SC_ENOMEM),
            },
        /* The type counts as much as the protocol: INET with protocol 0 and an odd type is DCCP or
         * SCTP, with SOCK_PACKET a packet socket. Raw ones get what a missing capability gives. */
        [SC_SOCKET - SC_ANSWER_COUNT] =
            {
                {SC_ALLOW,
                 2,
                 {COND(0, VALUES(AF_UNIX)),
                  COND(1, MASKED(TYPE_MASK, SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET))}},
                {SC_ALLOW,
                 3,
                 {COND(0, VALUES(AF_INET, AF_INET6)),
                  COND(1, MASKED(TYPE_MASK, SOCK_STREAM, SOCK_DGRAM)),
                  COND(2, VALUES(0, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMP, IPPROTO_ICMPV6))}},
                {SC_ALLOW,
                 3,
                 {COND(0, VALUES(AF_NETLINK)), COND(1, MASKED(TYPE_MASK, SOCK_RAW, SOCK_DGRAM)),
                  COND(2, VALUES(0 /* NETLINK_ROUTE */))}},
                {SC_EPERM,
                 2,
                 {COND(0, VALUES(AF_INET, AF_INET6)), COND(1, MASKED(TYPE_MASK, SOCK_RAW))}},
                {SC_EPROTONOSUPPORT, 1, {COND(0, VALUES(AF_UNIX, AF_INET, AF_INET6, AF_NETLINK))}},
                ELSE(SC_EAFNOSUPPORT),
            },
        [SC_SOCKETPAIR - SC_ANSWER_COUNT] =
            {
                {SC_ALLOW, 1, {COND(0, VALUES(AF_UNIX))}},
                ELSE(SC_EAFNOSUPPORT),
            },
};

const struct seccomp_policy seccomp_policy = {
    .rules = rules,
    .rule_count = sizeof(rules) / sizeof(rules[0]),
    .cases = cases,
};

/* Data that the sandbox writes must not become a program: its files are on noexec mounts, and a
 * memfd is a file on no mount. Programs that keep data in one take a file instead. */
static const struct seccomp_rule restricted_exceptions[] = {REFUSE(memfd_create)};

static const struct seccomp_policy restricted_policy = {
    .rules = rules,
    .rule_count = sizeof(rules) / sizeof(rules[0]),
    .exceptions = restricted_exceptions,
    .exception_count = sizeof(restricted_exceptions) / sizeof(restricted_exceptions[0]),
    .cases = cases,
};

const struct seccomp_policy *seccomp_policy_of(enum profile profile)
{
    if ((unsigned)profile >= PROFILE_COUNT)
        return NULL;
    return profile == PROFILE_RESTRICTED ? &restricted_policy : &seccomp_policy;
}

uint32_t seccomp_answer(enum seccomp_verdict answer)
{
    switch (answer) {
    case SC_ALLOW:
        return SECCOMP_RET_ALLOW;
    case SC_EPERM:
        return SECCOMP_RET_ERRNO | EPERM;
    case SC_ENOSYS:
        return SECCOMP_RET_ERRNO | ENOSYS;
    case SC_EINVAL:
        return SECCOMP_RET_ERRNO | EINVAL;
    case SC_ENOMEM:
        return SECCOMP_RET_ERRNO | ENOMEM;
    case SC_EAFNOSUPPORT:
        return SECCOMP_RET_ERRNO | EAFNOSUPPORT;
    case SC_EPROTONOSUPPORT:
        return SECCOMP_RET_ERRNO | EPROTONOSUPPORT;
    default:
        return SECCOMP_RET_KILL_PROCESS;
    }
}

static int cond_holds(const struct seccomp_cond *c, const uint64_t args[6])
{
    uint32_t value = (uint32_t)args[c->arg] & c->mask;

    for (unsigned i = 0; i < c->count; i++)
        if (value == c->values[i])
            return 1;
    return 0;
}

static int case_applies(const struct seccomp_case *c, const uint64_t args[6])
{
    for (unsigned i = 0; i < c->conds; i++)
        if (!cond_holds(&c->cond[i], args))
            return 0;
    return 1;
}

uint32_t seccomp_policy_decide(const struct seccomp_policy *p, uint32_t arch, uint32_t nr,
                               const uint64_t args[6])
{
    if (arch != SECCOMP_ARCH)
        return seccomp_answer(SC_KILL);

    unsigned verdict = SC_ENOSYS;
    for (size_t i = 0; i < p->rule_count; i++)
        if (p->rules[i].nr == nr)
            verdict = p->rules[i].verdict;
    for (size_t i = 0; i < p->exception_count; i++)
        if (p->exceptions[i].nr == nr)
            verdict = p->exceptions[i].verdict;

    if (verdict < SC_ANSWER_COUNT)
        return seccomp_answer(verdict);

    const struct seccomp_case *c = p->cases[verdict - SC_ANSWER_COUNT];
    while (!case_applies(c, args))
        c++;
    return seccomp_answer(c->verdict);
}

uint32_t seccomp_decide(enum profile profile, uint32_t arch, uint32_t nr, const uint64_t args[6])
{
    const struct seccomp_policy *p = seccomp_policy_of(profile);
    return p ? seccomp_policy_decide(p, arch, nr, args) : seccomp_answer(SC_KILL);
}
