/* The seccomp wall: the compiled filter against the table, the table against what it must say, and
 * the kernel against both. */
#include "base/err.h"
#include "jail/seccomp.h"
#include "jail/seccomp_policy.h"

#include "bpf_run.h"

#include <asm/unistd.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define ALLOW    SECCOMP_RET_ALLOW
#define FAIL(e)  (SECCOMP_RET_ERRNO | (e))

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Numbers near which the verdicts change, so that random arguments meet them often. */
static uint64_t random_arg(uint64_t *state)
{
    static const uint64_t likely[] = {
        0,      1,      2,      3,       5,       6,       8,        10,         11,
        4,      22,     26,     50,      52,      62,      0x800,    0x40000,    0x40022,
        12,     16,     17,     31,      38,      40,      58,       262,        0x80,
        0x8b,   0x1000, 0x2000, 0x6000,  0x8000,  0xa1b6,  0xc000,   0x5412,     0x541c,
        0x541d, 0x5423, 0x5401, 0x80802, 0x20000, 0x20008, 0x3d0f00, 0x10000011, 0xffffffff};
    uint64_t r = next_random(state);
    uint64_t v = r % 4 == 0 ? next_random(state) : likely[(r >> 8) % COUNT(likely)];
    if (r & 0x10)
        v |= next_random(state) << 32;
    return v;
}

static uint32_t run(const struct seccomp_filter *f, uint32_t arch, uint32_t nr,
                    const uint64_t args[6])
{
    struct seccomp_data d = {.nr = (int)nr, .arch = arch};
    memcpy(d.args, args, sizeof(d.args));
    return bpf_run(f->code, f->len, &d);
}

static void compile(struct seccomp_filter *f)
{
    struct pd_err e;
    if (seccomp_compile(PROFILE_STRICT, f, &e) != 0)
        fail_msg("%s", e.msg);
}

static void agree(const struct seccomp_policy *p, const struct seccomp_filter *f, uint32_t nr,
                  unsigned tries, uint64_t *state)
{
    for (unsigned i = 0; i < tries; i++) {
        uint64_t args[6];
        for (unsigned k = 0; k < 6; k++)
            args[k] = random_arg(state);
        uint32_t want = seccomp_policy_decide(p, SECCOMP_ARCH, nr, args);
        uint32_t got = run(f, SECCOMP_ARCH, nr, args);
        if (got != want)
            fail_msg("call %u (%llx, %llx, %llx): filter %x, table %x", nr,
                     (unsigned long long)args[0], (unsigned long long)args[1],
                     (unsigned long long)args[2], got, want);
    }
}

static void filter_agrees_with_the_table_for_every_number(void **state)
{
    (void)state;
    struct seccomp_filter f;
    uint64_t seed = 0x9e3779b97f4a7c15;
    compile(&f);
    for (uint32_t nr = 0; nr <= 600; nr++) {
        agree(&seccomp_policy, &f, nr, 300, &seed);
        agree(&seccomp_policy, &f, nr | 0x40000000, 10, &seed);
        agree(&seccomp_policy, &f, nr | 0x80000000, 2, &seed);
        agree(&seccomp_policy, &f, UINT32_MAX - nr, 2, &seed);
    }
}

static void profiles_are_equal(void **state)
{
    (void)state;
    struct seccomp_filter a, b;
    assert_int_equal(seccomp_compile(PROFILE_STRICT, &a, NULL), 0);
    assert_int_equal(seccomp_compile(PROFILE_DEV, &b, NULL), 0);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.code, b.code, a.len * sizeof(a.code[0]));
}

/* restricted differs by one call, in the table and in the compiled filter. */
static void restricted_makes_no_files_in_memory(void **state)
{
    (void)state;
    struct seccomp_filter f;
    uint64_t seed = 1, args[6] = {0};
    assert_int_equal(seccomp_compile(PROFILE_RESTRICTED, &f, NULL), 0);

    for (unsigned nr = 0; nr < SECCOMP_NR_END; nr++) {
        uint32_t strict = seccomp_decide(PROFILE_STRICT, SECCOMP_ARCH, nr, args);
        uint32_t restricted = seccomp_decide(PROFILE_RESTRICTED, SECCOMP_ARCH, nr, args);
        agree(seccomp_policy_of(PROFILE_RESTRICTED), &f, nr, 2, &seed);
        if (nr != __NR_memfd_create)
            assert_int_equal(strict, restricted);
    }

    assert_int_equal(seccomp_decide(PROFILE_STRICT, SECCOMP_ARCH, __NR_memfd_create, args),
                     SECCOMP_RET_ALLOW);
    assert_int_equal(seccomp_decide(PROFILE_RESTRICTED, SECCOMP_ARCH, __NR_memfd_create, args),
                     SECCOMP_RET_ERRNO | EPERM);
}

static void unknown_profile_is_refused_and_nothing_written(void **state)
{
    (void)state;
    struct seccomp_filter f = {.len = 7};
    struct pd_err e;
    assert_int_equal(seccomp_compile(PROFILE_COUNT, &f, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    assert_int_equal(f.len, 7);
    assert_int_equal(seccomp_decide(PROFILE_COUNT, SECCOMP_ARCH, __NR_getpid, (uint64_t[6]){0}),
                     SECCOMP_RET_KILL_PROCESS);
}

static void filter_is_small(void **state)
{
    (void)state;
    struct seccomp_filter f;
    compile(&f);
    assert_in_range(f.len, 50, 190);
}

static void table_names_each_number_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < seccomp_policy.rule_count; i++)
        for (size_t k = 0; k < i; k++)
            if (seccomp_policy.rules[i].nr == seccomp_policy.rules[k].nr)
                fail_msg("call %u stands twice in the table", seccomp_policy.rules[i].nr);
}

static void lists_of_cases_end(void **state)
{
    (void)state;
    for (unsigned v = SC_ANSWER_COUNT; v < SC_VERDICT_COUNT; v++) {
        const struct seccomp_case *list = seccomp_policy.cases[v - SC_ANSWER_COUNT];
        unsigned n = 0;
        while (n < SECCOMP_CASES && list[n].conds > 0)
            n++;
        assert_in_range(n, 1, SECCOMP_CASES - 1);
    }
}

static void other_architectures_are_killed(void **state)
{
    (void)state;
    static const uint32_t archs[] = {0,
                                     AUDIT_ARCH_I386,
                                     AUDIT_ARCH_ARM,
                                     AUDIT_ARCH_RISCV64,
                                     SECCOMP_ARCH ^ 1,
                                     SECCOMP_ARCH & ~__AUDIT_ARCH_LE,
                                     UINT32_MAX};
    static const uint64_t args[6] = {0};
    struct seccomp_filter f;

    compile(&f);
    for (size_t i = 0; i < COUNT(archs); i++)
        for (uint32_t nr = 0; nr < 600; nr++) {
            assert_int_equal(run(&f, archs[i], nr, args), SECCOMP_RET_KILL_PROCESS);
            assert_int_equal(seccomp_decide(PROFILE_STRICT, archs[i], nr, args),
                             SECCOMP_RET_KILL_PROCESS);
        }
}

struct vector {
    uint32_t nr;
    uint64_t args[3];
    uint32_t want;
};

/* Written from the manual pages and the list of attacks, not from the table. */
static const struct vector vectors[] = {
    {__NR_getpid, {0}, ALLOW},
    {__NR_execve, {0}, ALLOW},
    {__NR_ptrace, {0}, ALLOW},
    {__NR_setgroups, {0}, ALLOW},
    {__NR_capset, {0}, ALLOW},
    {452 /* fchmodat2 */, {0}, ALLOW},
    {__NR_clone3, {0}, FAIL(ENOSYS)},
    {449 /* futex_waitv */, {0}, FAIL(ENOSYS)},
    {454 /* futex_wake */, {0}, FAIL(ENOSYS)},
    {455 /* futex_wait */, {0}, FAIL(ENOSYS)},
    {456 /* futex_requeue */, {0}, FAIL(ENOSYS)},
    {457 /* statmount */, {0}, FAIL(ENOSYS)},
    {510, {0}, FAIL(ENOSYS)},
    {511, {0}, FAIL(ENOSYS)},
    {512, {0}, FAIL(ENOSYS)},
    {0x40000000 | __NR_getpid, {0}, FAIL(ENOSYS)},
    {0x40000000 | 512, {0}, FAIL(ENOSYS)},
    {UINT32_MAX, {0}, FAIL(ENOSYS)},
    {__NR_unshare, {0}, FAIL(EPERM)},
    {__NR_setns, {0}, FAIL(EPERM)},
    {__NR_mount, {0}, FAIL(EPERM)},
    {__NR_umount2, {0}, FAIL(EPERM)},
    {__NR_open_tree, {0}, FAIL(EPERM)},
    {__NR_mount_setattr, {0}, FAIL(EPERM)},
    {__NR_chroot, {0}, FAIL(EPERM)},
    {__NR_pivot_root, {0}, FAIL(EPERM)},
    {__NR_io_uring_setup, {0}, FAIL(EPERM)},
    {__NR_io_uring_enter, {0}, FAIL(EPERM)},
    {__NR_io_uring_register, {0}, FAIL(EPERM)},
    {__NR_bpf, {0}, FAIL(EPERM)},
    {__NR_userfaultfd, {0}, FAIL(EPERM)},
    {__NR_perf_event_open, {0}, FAIL(EPERM)},
    {__NR_keyctl, {0}, FAIL(EPERM)},
    {__NR_add_key, {0}, FAIL(EPERM)},
    {__NR_request_key, {0}, FAIL(EPERM)},
    {__NR_process_vm_readv, {0}, FAIL(EPERM)},
    {__NR_process_vm_writev, {0}, FAIL(EPERM)},
    {__NR_pidfd_getfd, {0}, FAIL(EPERM)},
    {__NR_kcmp, {0}, FAIL(EPERM)},
    {__NR_kexec_load, {0}, FAIL(EPERM)},
    {__NR_finit_module, {0}, FAIL(EPERM)},
    {__NR_reboot, {0}, FAIL(EPERM)},
    {__NR_clock_settime, {0}, FAIL(EPERM)},
    {__NR_clock_adjtime, {0}, FAIL(EPERM)},
    {__NR_open_by_handle_at, {0}, FAIL(EPERM)},
    {__NR_name_to_handle_at, {0}, FAIL(EPERM)},
    {__NR_fanotify_init, {0}, FAIL(EPERM)},
    {__NR_memfd_secret, {0}, FAIL(EPERM)},
    {__NR_sethostname, {0}, FAIL(EPERM)},
    {__NR_quotactl_fd, {0}, FAIL(EPERM)},
    /* A thread, a fork, vfork and each namespace. */
    {__NR_clone, {0x3d0f00}, ALLOW},
    {__NR_clone, {SIGCHLD}, ALLOW},
    {__NR_clone, {CLONE_VM | CLONE_VFORK | SIGCHLD}, ALLOW},
    {__NR_clone, {0x80}, ALLOW}, /* an exit signal, not CLONE_NEWTIME */
    {__NR_clone, {CLONE_NEWUSER | SIGCHLD}, FAIL(EPERM)},
    {__NR_clone, {CLONE_NEWNS}, FAIL(EPERM)},
    {__NR_clone, {CLONE_NEWPID | CLONE_VM}, FAIL(EPERM)},
    {__NR_clone, {CLONE_NEWNET}, FAIL(EPERM)},
    {__NR_clone, {CLONE_NEWIPC}, FAIL(EPERM)},
    {__NR_clone, {CLONE_NEWUTS}, FAIL(EPERM)},
    {__NR_clone, {CLONE_NEWCGROUP}, FAIL(EPERM)},
    {__NR_socket, {AF_UNIX, SOCK_STREAM, 0}, ALLOW},
    {__NR_socket, {AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0}, ALLOW},
    {__NR_socket, {AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0}, ALLOW},
    {__NR_socket, {AF_UNIX, SOCK_RAW, 0}, FAIL(EPROTONOSUPPORT)},
    {__NR_socket, {AF_INET, SOCK_STREAM, 0}, ALLOW},
    {__NR_socket, {AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP}, ALLOW},
    {__NR_socket, {AF_INET6, SOCK_DGRAM, IPPROTO_UDP}, ALLOW},
    {__NR_socket, {AF_INET, SOCK_DGRAM, IPPROTO_ICMP}, ALLOW},
    {__NR_socket, {AF_INET6, SOCK_DGRAM, IPPROTO_ICMPV6}, ALLOW},
    {__NR_socket, {AF_INET, SOCK_STREAM, 262 /* MPTCP */}, FAIL(EPROTONOSUPPORT)},
    {__NR_socket, {AF_INET6, SOCK_STREAM, 262}, FAIL(EPROTONOSUPPORT)},
    {__NR_socket, {AF_INET, SOCK_STREAM, IPPROTO_SCTP}, FAIL(EPROTONOSUPPORT)},
    {__NR_socket, {AF_INET, SOCK_SEQPACKET, 0}, FAIL(EPROTONOSUPPORT)}, /* SCTP as well */
    {__NR_socket, {AF_INET, SOCK_DCCP, IPPROTO_DCCP}, FAIL(EPROTONOSUPPORT)},
    {__NR_socket, {AF_INET, SOCK_DCCP, 0}, FAIL(EPROTONOSUPPORT)},
    {__NR_socket, {AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE}, FAIL(EPROTONOSUPPORT)},
    {__NR_socket, {AF_INET, SOCK_DGRAM, 115 /* L2TP */}, FAIL(EPROTONOSUPPORT)},
    {__NR_socket, {AF_INET, SOCK_STREAM, 256 /* SMC */}, FAIL(EPROTONOSUPPORT)},
    {__NR_socket, {AF_INET, SOCK_PACKET, 0x300}, FAIL(EPROTONOSUPPORT)},
    {__NR_socket, {AF_INET, SOCK_RAW, IPPROTO_ICMP}, FAIL(EPERM)},
    {__NR_socket, {AF_INET6, SOCK_RAW | SOCK_CLOEXEC, 255}, FAIL(EPERM)},
    {__NR_socket, {AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0}, ALLOW},
    {__NR_socket, {AF_NETLINK, SOCK_DGRAM, 0}, ALLOW},
    {__NR_socket, {AF_NETLINK, SOCK_RAW, 12 /* netfilter */}, FAIL(EPROTONOSUPPORT)},
    {__NR_socket, {AF_NETLINK, SOCK_RAW, 6 /* xfrm */}, FAIL(EPROTONOSUPPORT)},
    {__NR_socket, {AF_NETLINK, SOCK_RAW, 16 /* generic */}, FAIL(EPROTONOSUPPORT)},
    {__NR_socket, {AF_VSOCK, SOCK_STREAM, 0}, FAIL(EAFNOSUPPORT)},
    {__NR_socket, {AF_ALG, SOCK_SEQPACKET, 0}, FAIL(EAFNOSUPPORT)},
    {__NR_socket, {AF_PACKET, SOCK_RAW, 0x300}, FAIL(EAFNOSUPPORT)},
    {__NR_socket, {AF_TIPC, SOCK_SEQPACKET, 0}, FAIL(EAFNOSUPPORT)},
    {__NR_socket, {AF_KEY, SOCK_RAW, 2}, FAIL(EAFNOSUPPORT)},
    {__NR_socket, {44 /* AF_XDP */, SOCK_RAW, 0}, FAIL(EAFNOSUPPORT)},
    {__NR_socket, {0, SOCK_STREAM, 0}, FAIL(EAFNOSUPPORT)},
    {__NR_socketpair, {AF_UNIX, SOCK_STREAM, 0}, ALLOW},
    {__NR_socketpair, {AF_TIPC, SOCK_STREAM, 0}, FAIL(EAFNOSUPPORT)},
    {__NR_socketpair, {AF_INET, SOCK_STREAM, 0}, FAIL(EAFNOSUPPORT)},
    {__NR_setsockopt, {3, 6, 31 /* TCP_ULP */}, FAIL(EPROTONOSUPPORT)},
    {__NR_setsockopt, {3, 6, 1 /* TCP_NODELAY */}, ALLOW},
    {__NR_setsockopt, {3, SOL_SOCKET, 31 /* of another level */}, ALLOW},
    {__NR_setsockopt, {6, 1, 31}, ALLOW},
    {__NR_setsockopt, {3, SOL_SOCKET, 26 /* SO_ATTACH_FILTER */}, FAIL(EPERM)},
    {__NR_setsockopt, {3, SOL_SOCKET, 27 /* SO_DETACH_FILTER */}, ALLOW},
    {__NR_setsockopt, {3, SOL_SOCKET, 50 /* SO_ATTACH_BPF */}, FAIL(EPERM)},
    {__NR_setsockopt, {3, SOL_SOCKET, 51 /* SO_ATTACH_REUSEPORT_CBPF */}, FAIL(EPERM)},
    {__NR_setsockopt, {3, SOL_SOCKET, 52 /* SO_ATTACH_REUSEPORT_EBPF */}, FAIL(EPERM)},
    {__NR_setsockopt, {3, SOL_SOCKET, 15 /* SO_REUSEPORT */}, ALLOW},
    {__NR_setsockopt, {3, IPPROTO_TCP, 26 /* of another level */}, ALLOW},
    {__NR_setsockopt, {3, IPPROTO_IPV6, 26 /* IPV6_V6ONLY */}, ALLOW},
    {__NR_seccomp, {1 /* a filter */}, FAIL(ENOSYS)},
    {__NR_prctl, {PR_SET_SECCOMP, 2}, FAIL(EINVAL)},
    {__NR_prctl, {62 /* PR_SCHED_CORE */, 1}, FAIL(EPERM)},
    {__NR_prctl, {PR_GET_SECCOMP}, ALLOW},
    {__NR_prctl, {PR_SET_NAME}, ALLOW},
    {__NR_prctl, {PR_SET_NO_NEW_PRIVS, 1}, ALLOW},
    {__NR_prctl, {PR_SET_PDEATHSIG, 9}, ALLOW},
    {__NR_io_setup, {65536}, FAIL(ENOSYS)},
    {__NR_io_submit, {0}, FAIL(ENOSYS)},
    {__NR_io_getevents, {0}, FAIL(ENOSYS)},
    {__NR_vmsplice, {0}, FAIL(ENOSYS)},
    {__NR_splice, {0}, ALLOW},
    {__NR_memfd_create, {0, MFD_CLOEXEC | MFD_ALLOW_SEALING}, ALLOW},
    {__NR_memfd_create, {0, 4 /* MFD_HUGETLB */}, FAIL(EINVAL)},
    {__NR_memfd_create, {0, 4 | MFD_CLOEXEC | 21U << 26}, FAIL(EINVAL)},
    {__NR_shmget, {0, 4096, IPC_CREAT | 0600}, ALLOW},
    {__NR_shmget, {0, 4096, IPC_CREAT | 04000 /* SHM_HUGETLB */ | 0600}, FAIL(ENOMEM)},
    {__NR_ioctl, {0, 0x5401 /* TCGETS */}, ALLOW},
    {__NR_ioctl, {0, 0x5413 /* TIOCGWINSZ */}, ALLOW},
    {__NR_ioctl, {0, 0x5412 /* TIOCSTI */}, FAIL(EPERM)},
    {__NR_ioctl, {0, 0x100005412}, FAIL(EPERM)}, /* CVE-2019-10063 */
    {__NR_ioctl, {0, 0x541c /* TIOCLINUX */}, FAIL(EPERM)},
    {__NR_ioctl, {0, 0x5423 /* TIOCSETD */}, FAIL(EPERM)},
    {__NR_ioctl, {0, 0x541d /* TIOCCONS */}, FAIL(EPERM)},
    {__NR_futex, {0, 0x80}, ALLOW},
    {__NR_futex, {0, 0x189 /* wait on a bitset, realtime */}, ALLOW},
    {__NR_futex, {0, 6 /* LOCK_PI */}, ALLOW},
    {__NR_futex, {0, 11}, FAIL(ENOSYS)},
    {__NR_futex, {0, 12}, FAIL(ENOSYS)},
    {__NR_futex, {0, 11 | 0x180}, FAIL(ENOSYS)},
    {__NR_futex, {0, 12 | 0x80}, FAIL(ENOSYS)},
    {__NR_mknodat, {-100ULL, 0, 0600}, ALLOW},
    {__NR_mknodat, {-100ULL, 0, S_IFREG | 0600}, ALLOW},
    {__NR_mknodat, {-100ULL, 0, S_IFIFO | 0600}, ALLOW},
    {__NR_mknodat, {-100ULL, 0, S_IFSOCK | 0600}, ALLOW},
    {__NR_mknodat, {-100ULL, 0, S_IFCHR | 0600}, FAIL(EPERM)},
    {__NR_mknodat, {-100ULL, 0, S_IFBLK | 0600}, FAIL(EPERM)},
    {__NR_mknodat, {-100ULL, 0, 0x70000 | S_IFCHR}, FAIL(EPERM)}, /* the kernel keeps 16 bits */
    {__NR_personality, {0}, ALLOW},
    {__NR_personality, {8}, ALLOW},
    {__NR_personality, {0x20000}, ALLOW},
    {__NR_personality, {0x20008}, ALLOW},
    {__NR_personality, {0xffffffff}, ALLOW},
    {__NR_personality, {0x0400000 /* READ_IMPLIES_EXEC */}, FAIL(EPERM)},
    {__NR_personality, {0x0040000 /* ADDR_NO_RANDOMIZE */}, FAIL(EPERM)},
    {__NR_personality, {0x0100000 /* MMAP_PAGE_ZERO */}, FAIL(EPERM)},
    {__NR_prlimit64, {0}, ALLOW},
    {__NR_prlimit64, {1}, FAIL(EPERM)},
    {__NR_prlimit64, {-1ULL}, FAIL(EPERM)},
#ifdef __x86_64__
    {__NR_fork, {0}, ALLOW},
    {__NR_modify_ldt, {0}, FAIL(EPERM)},
    {__NR_iopl, {3}, FAIL(EPERM)},
    {__NR_mknod, {0, S_IFIFO | 0600}, ALLOW},
    {__NR_mknod, {0, 0600}, ALLOW},
    {__NR_mknod, {0, S_IFCHR | 0600, 0}, FAIL(EPERM)}, /* an overlay whiteout */
    {__NR_mknod, {0, 0xf000}, FAIL(EPERM)},
#endif
};

/* mmap's flags are its fourth argument, beyond what a vector holds. */
static void huge_pages_are_not_mapped(void **state)
{
    (void)state;
    struct seccomp_filter f;
    compile(&f);
    static const struct {
        uint64_t flags;
        uint32_t want;
    } maps[] = {
        {MAP_PRIVATE | MAP_ANONYMOUS, ALLOW},
        {MAP_SHARED, ALLOW},
        {MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_STACK | MAP_NORESERVE, ALLOW},
        {MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, ALLOW},
        {MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, FAIL(ENOMEM)},
        {MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 30U << 26 /* of 1 GiB */, FAIL(ENOMEM)},
        {UINT64_C(1) << 40 | MAP_PRIVATE | MAP_HUGETLB, FAIL(ENOMEM)},
    };

    for (size_t i = 0; i < COUNT(maps); i++) {
        uint64_t args[6] = {0, 4096, PROT_READ, maps[i].flags, -1ULL, 0};
        assert_int_equal(run(&f, SECCOMP_ARCH, __NR_mmap, args), maps[i].want);
        assert_int_equal(seccomp_decide(PROFILE_STRICT, SECCOMP_ARCH, __NR_mmap, args),
                         maps[i].want);
    }
}

/* Every vector also with rubbish in the upper halves, which the kernel ignores. */
static void policy_says_what_it_must(void **state)
{
    (void)state;
    struct seccomp_filter f;
    uint64_t seed = 42;
    compile(&f);

    for (size_t i = 0; i < COUNT(vectors); i++)
        for (unsigned turn = 0; turn < 20; turn++) {
            const struct vector *v = &vectors[i];
            uint64_t args[6] = {v->args[0], v->args[1], v->args[2]};
            for (unsigned k = 0; turn > 0 && k < 6; k++)
                args[k] = (uint32_t)args[k] | next_random(&seed) << 32;
            uint32_t got = run(&f, SECCOMP_ARCH, v->nr, args);
            if (got != v->want)
                fail_msg("vector %zu, call %u: filter %x, wanted %x", i, v->nr, got, v->want);
            assert_int_equal(seccomp_decide(PROFILE_STRICT, SECCOMP_ARCH, v->nr, args), v->want);
        }
}

static void check_policy(const struct seccomp_policy *p, struct seccomp_filter *f, uint64_t *seed)
{
    struct pd_err e;
    if (seccomp_policy_compile(p, f, &e) != 0)
        fail_msg("%s", e.msg);
    for (uint32_t nr = 0; nr <= SECCOMP_NR_END; nr++)
        agree(p, f, nr, 4, seed);
    agree(p, f, UINT32_MAX, 1, seed);
}

static unsigned long_jumps(const struct seccomp_filter *f)
{
    unsigned n = 0;
    for (unsigned i = 0; i < f->len; i++)
        n += f->code[i].code == (BPF_JMP | BPF_JA);
    return n;
}

static void any_table_compiles_rightly(void **state)
{
    (void)state;
    struct seccomp_filter f;
    struct seccomp_rule rules[SECCOMP_NR_END];
    struct seccomp_policy p = {.rules = rules, .cases = seccomp_policy.cases};
    uint64_t seed = 7;
    unsigned far = 0;

    check_policy(&p, &f, &seed); /* nothing known at all */
    for (unsigned turn = 0; turn < 120; turn++) {
        /* From few, wide ranges to a new verdict for every number, which needs long jumps. */
        unsigned change = 1 + turn % 40, verdict = SC_ALLOW;
        p.rule_count = 0;
        for (unsigned nr = 0; nr < SECCOMP_NR_END - 1; nr++) {
            if (next_random(&seed) % change == 0)
                verdict = (unsigned)(next_random(&seed) % SC_VERDICT_COUNT);
            if (verdict != SC_KILL)
                rules[p.rule_count++] = (struct seccomp_rule){(uint16_t)nr, (uint8_t)verdict};
        }
        check_policy(&p, &f, &seed);
        far += long_jumps(&f) > 0;
    }
    assert_in_range(far, 3, 119);
}

static void numbers_beyond_the_table_are_refused_by_the_compiler(void **state)
{
    (void)state;
    struct seccomp_filter f = {.len = 9};
    struct seccomp_rule rule = {SECCOMP_NR_END - 1, SC_ALLOW};
    struct seccomp_policy p = {.rules = &rule, .rule_count = 1, .cases = seccomp_policy.cases};
    struct pd_err e;
    assert_int_equal(seccomp_policy_compile(&p, &f, &e), -1);
    assert_int_equal(e.code, PD_INTERNAL);
    rule = (struct seccomp_rule){3, SC_VERDICT_COUNT};
    assert_int_equal(seccomp_policy_compile(&p, &f, &e), -1);
    assert_int_equal(f.len, 9);
}

/* From here on with the kernel. */

enum control {
    DIFFERS, /* without the filter the kernel always answers something else */
    PERHAPS, /* it may be privileged, or not built into this kernel */
};

struct call {
    const char *name;
    long nr;
    long args[5];
    int want; /* errno, or 0 for anything but a refusal */
    enum control control;
};

/* All arguments are harmless for root without a filter: bad pointers, descriptors and numbers. */
static const struct call calls[] = {
    {"getppid", __NR_getppid, {0}, 0, PERHAPS},
    {"umask", __NR_umask, {022}, 0, PERHAPS},
    {"futex wake", __NR_futex, {0, 1, 1}, 0, PERHAPS},
    {"futex wait-requeue-pi", __NR_futex, {8, 11, 1, 0, 16}, ENOSYS, DIFFERS},
    {"futex cmp-requeue-pi", __NR_futex, {8, 12, 1, 1, 16}, ENOSYS, DIFFERS},
    {"clone3", __NR_clone3, {0, 0}, ENOSYS, DIFFERS},
    {"clone of a bad namespace", __NR_clone, {CLONE_NEWNS | CLONE_FS}, EPERM, DIFFERS},
    {"unshare nothing", __NR_unshare, {0}, EPERM, DIFFERS},
    {"setns", __NR_setns, {-1, 0}, EPERM, DIFFERS},
    {"mount", __NR_mount, {8, 8, 8, 0, 8}, EPERM, DIFFERS},
    {"umount2", __NR_umount2, {8, 0x10000}, EPERM, DIFFERS},
    {"chroot", __NR_chroot, {8}, EPERM, DIFFERS},
    {"open_tree", __NR_open_tree, {-1, 8, 2}, EPERM, DIFFERS},
    {"move_mount", __NR_move_mount, {-1, 8, -1, 8, 0}, EPERM, PERHAPS},
    {"fsopen", __NR_fsopen, {8, 0}, EPERM, PERHAPS},
    {"fsconfig", __NR_fsconfig, {-1, 0, 0, 0, 0}, EPERM, DIFFERS},
    {"fspick", __NR_fspick, {-1, 8, 0}, EPERM, PERHAPS},
    {"mount_setattr", __NR_mount_setattr, {-1, 8, 0, 8, 1}, EPERM, DIFFERS},
    {"io_uring_setup", __NR_io_uring_setup, {0, 0}, EPERM, PERHAPS},
    {"io_uring_enter", __NR_io_uring_enter, {-1, 0, 0, 0, 0}, EPERM, PERHAPS},
    {"io_setup", __NR_io_setup, {0, 8}, ENOSYS, DIFFERS},
    {"vmsplice", __NR_vmsplice, {-1, 0, 0, 0}, ENOSYS, DIFFERS},
    {"seccomp", __NR_seccomp, {-1, 0, 0}, ENOSYS, DIFFERS},
    {"a filter by prctl", __NR_prctl, {PR_SET_SECCOMP, 2, 8}, EINVAL, DIFFERS},
    {"core scheduling", __NR_prctl, {62, -1}, EPERM, DIFFERS},
    {"a socket's filter", __NR_setsockopt, {-1, SOL_SOCKET, 26, 0, 0}, EPERM, DIFFERS},
    {"a memfd of huge pages", __NR_memfd_create, {8, 4}, EINVAL, DIFFERS},
    {"a segment of huge pages", __NR_shmget, {0, 0, 04000}, ENOMEM, DIFFERS},
    {"userfaultfd", __NR_userfaultfd, {0x7000}, EPERM, PERHAPS},
    {"bpf", __NR_bpf, {-1, 0, 0}, EPERM, PERHAPS},
    {"perf_event_open", __NR_perf_event_open, {8, 0, -1, -1, 0}, EPERM, DIFFERS},
    {"keyctl", __NR_keyctl, {-1, 0, 0}, EPERM, PERHAPS},
    {"add_key", __NR_add_key, {8, 8, 8, 0, 0}, EPERM, PERHAPS},
    {"process_vm_readv", __NR_process_vm_readv, {-1, 0, 0, 0, 0}, EPERM, DIFFERS},
    {"pidfd_getfd", __NR_pidfd_getfd, {-1, 0, 0}, EPERM, DIFFERS},
    {"kcmp", __NR_kcmp, {-1, -1, 0, 0, 0}, EPERM, PERHAPS},
    {"reboot", __NR_reboot, {1, 2, 3, 0}, EPERM, PERHAPS},
    {"finit_module", __NR_finit_module, {-1, 8, 0}, EPERM, PERHAPS},
    {"clock_settime", __NR_clock_settime, {99, 8}, EPERM, DIFFERS},
    {"clock_adjtime", __NR_clock_adjtime, {99, 8}, EPERM, DIFFERS},
    {"settimeofday", __NR_settimeofday, {8, 0}, EPERM, DIFFERS},
    {"sethostname", __NR_sethostname, {0, -1}, EPERM, PERHAPS},
    {"syslog", __NR_syslog, {99, 0, 0}, EPERM, PERHAPS},
    {"quotactl", __NR_quotactl, {0, 8, 0, 0}, EPERM, PERHAPS},
    {"name_to_handle_at", __NR_name_to_handle_at, {-1, 8, 8, 8, 0x70000}, EPERM, DIFFERS},
    {"open_by_handle_at", __NR_open_by_handle_at, {-1, 8, 0}, EPERM, PERHAPS},
    {"mbind", __NR_mbind, {1, 1, 99, 0, 0}, EPERM, PERHAPS},
    {"a device", __NR_mknodat, {-1, 8, S_IFCHR | 0600, 0x103}, EPERM, DIFFERS},
    {"a fifo", __NR_mknodat, {-1, 8, S_IFIFO | 0600, 0}, 0, PERHAPS},
    {"prlimit64 of oneself", __NR_prlimit64, {0, 0, 0, 0}, 0, PERHAPS},
    {"prlimit64 of nobody", __NR_prlimit64, {-1, 0, 0, 0}, EPERM, DIFFERS},
    {"personality?", __NR_personality, {0xffffffff}, 0, PERHAPS},
    {"read implies exec", __NR_personality, {0x400000}, EPERM, DIFFERS},
    {"TCGETS", __NR_ioctl, {-1, 0x5401, 0}, 0, PERHAPS},
    {"TIOCSTI", __NR_ioctl, {-1, 0x5412, 0}, EPERM, DIFFERS},
    {"TIOCSTI with a high bit", __NR_ioctl, {-1, 0x100005412, 0}, EPERM, DIFFERS},
    {"TIOCLINUX", __NR_ioctl, {-1, 0x541c, 0}, EPERM, DIFFERS},
    {"TCP", __NR_socket, {AF_INET, SOCK_STREAM, 0}, 0, PERHAPS},
    {"UNIX", __NR_socket, {AF_UNIX, SOCK_STREAM, 0}, 0, PERHAPS},
    {"NETLINK_ROUTE", __NR_socket, {AF_NETLINK, SOCK_RAW, 0}, 0, PERHAPS},
    {"NETLINK_KOBJECT_UEVENT", __NR_socket, {AF_NETLINK, SOCK_RAW, 15}, EPROTONOSUPPORT, PERHAPS},
    {"UDPLITE", __NR_socket, {AF_INET, SOCK_DGRAM, 136}, EPROTONOSUPPORT, PERHAPS},
    {"MPTCP", __NR_socket, {AF_INET, SOCK_STREAM, 262}, EPROTONOSUPPORT, PERHAPS},
    {"AF_VSOCK", __NR_socket, {AF_VSOCK, SOCK_STREAM, 0}, EAFNOSUPPORT, PERHAPS},
    {"AF_ALG", __NR_socket, {AF_ALG, SOCK_SEQPACKET, 0}, EAFNOSUPPORT, PERHAPS},
    {"AF_INET pair", __NR_socketpair, {AF_INET, SOCK_STREAM, 0, 8}, EAFNOSUPPORT, DIFFERS},
    {"TCP_ULP", __NR_setsockopt, {-1, 6, 31, 8, 0}, EPROTONOSUPPORT, DIFFERS},
    {"TCP_NODELAY", __NR_setsockopt, {-1, 6, 1, 8, 0}, 0, PERHAPS},
    {"unknown", 511, {0}, ENOSYS, PERHAPS},
#ifdef __x86_64__
    {"x32 getpid", 0x40000027, {0}, ENOSYS, PERHAPS},
    {"modify_ldt", __NR_modify_ldt, {99, 0, 0}, EPERM, PERHAPS},
    {"mknod of a whiteout", __NR_mknod, {8, S_IFCHR, 0}, EPERM, DIFFERS},
#endif
};

/* Runs in a child that ends by _exit: nothing may return into the test framework from there. */
static void load_or_exit(void)
{
    struct seccomp_filter f;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        seccomp_compile(PROFILE_STRICT, &f, NULL) != 0 || seccomp_load(&f) != 0)
        _exit(99);
}

static int wait_status(pid_t pid)
{
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* The errno of each call (0 when it worked), made in a process with or without the filter. */
static void make_calls(int filtered, int *errnos)
{
    pid_t pid = fork();
    assert_true(pid >= 0);

    if (pid == 0) {
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
    assert_int_equal(wait_status(pid), 0);
}

static void kernel_answers_as_the_table_says(void **state)
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
        if (c->want != 0 && with[i] != c->want)
            fail_msg("%s: errno %d, wanted %d", c->name, with[i], c->want);
        if (bare && c->want == 0 && with[i] != without[i])
            fail_msg("%s: errno %d, without the filter %d", c->name, with[i], without[i]);
        if (bare && c->control == DIFFERS && with[i] == without[i])
            fail_msg("%s: errno %d without the filter as well", c->name, with[i]);
    }
    munmap(with, size);
}

static void *answer(void *arg)
{
    return arg;
}

static void threads_forks_and_execs_work_under_the_filter(void **state)
{
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);

    if (pid == 0) {
        load_or_exit();
        pthread_t t;
        void *got = NULL;
        if (pthread_create(&t, NULL, answer, &got) != 0 || pthread_join(t, &got) != 0 ||
            got != &got)
            _exit(1);
        pid_t child = fork();
        if (child == 0)
            _exit(execl("/bin/sh", "sh", "-c", "exit 3", (char *)NULL));
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3)
            _exit(2);
        _exit(0);
    }

    assert_int_equal(wait_status(pid), 0);
}

static void filter_cannot_be_loaded_with_a_way_to_gain_privileges(void **state)
{
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);

    if (pid == 0) {
        struct seccomp_filter f;
        if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)
            _exit(1);
        if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
            _exit(0); /* inherited; then it cannot be tried */
        if (seccomp_compile(PROFILE_STRICT, &f, NULL) != 0)
            _exit(2);
        _exit(seccomp_load(&f) == -EACCES ? 0 : 3);
    }
    assert_int_equal(wait_status(pid), 0);
}

static void kernel_refuses_what_is_no_filter(void **state)
{
    (void)state;
    struct seccomp_filter f = {.len = 0};
    assert_int_equal(seccomp_load(&f), -EINVAL);
}

#ifdef __x86_64__
static int status_of_int80(int filtered)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL); /* what the call ends in where the kernel has no 32-bit calls */
        if (filtered)
            load_or_exit();
        long r = 20; /* getpid of i386, writev of x86_64 */
        __asm__ volatile("int $0x80" : "+a"(r) : : "memory", "r8", "r9", "r10", "r11");
        _exit(r == getpid() ? 0 : 1);
    }
    return wait_status(pid);
}

static void kernel_kills_a_process_that_makes_a_32_bit_call(void **state)
{
    (void)state;
    int without = status_of_int80(0);
    if (WIFSIGNALED(without))
        skip();
    assert_int_equal(without, 0);
    int with = status_of_int80(1);
    assert_true(WIFSIGNALED(with));
    assert_int_equal(WTERMSIG(with), SIGSYS);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filter_agrees_with_the_table_for_every_number),
        cmocka_unit_test(profiles_are_equal),
        cmocka_unit_test(restricted_makes_no_files_in_memory),
        cmocka_unit_test(unknown_profile_is_refused_and_nothing_written),
        cmocka_unit_test(filter_is_small),
        cmocka_unit_test(table_names_each_number_once),
        cmocka_unit_test(lists_of_cases_end),
        cmocka_unit_test(other_architectures_are_killed),
        cmocka_unit_test(policy_says_what_it_must),
        cmocka_unit_test(huge_pages_are_not_mapped),
        cmocka_unit_test(any_table_compiles_rightly),
        cmocka_unit_test(numbers_beyond_the_table_are_refused_by_the_compiler),
        cmocka_unit_test(kernel_answers_as_the_table_says),
        cmocka_unit_test(threads_forks_and_execs_work_under_the_filter),
        cmocka_unit_test(filter_cannot_be_loaded_with_a_way_to_gain_privileges),
        cmocka_unit_test(kernel_refuses_what_is_no_filter),
#ifdef __x86_64__
        cmocka_unit_test(kernel_kills_a_process_that_makes_a_32_bit_call),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
