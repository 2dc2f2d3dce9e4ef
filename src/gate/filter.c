/* A gate reads what sandboxes and strangers send, so it may do what it does and nothing else: a
 * list of what is allowed. It opens no file, starts nothing, and makes sockets of the internet
 * families only. */
#include "base/banned.h"
#include "gate/gate_state.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "name the audit architecture of this machine here"
#endif

static const unsigned allowed[] = {
    SYS_accept4,
    SYS_brk,
    SYS_clock_gettime,
    SYS_close,
    SYS_connect,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_exit,
    SYS_exit_group,
    SYS_fcntl,
    SYS_getpeername,
    SYS_getrandom,
    SYS_getsockname,
    SYS_getsockopt,
    SYS_madvise,
    SYS_mremap,
    SYS_munmap,
    SYS_ppoll,
    SYS_read,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_rt_sigreturn,
    SYS_sendmsg,
    SYS_sendto,
    SYS_setsockopt,
    SYS_shutdown,
    SYS_splice,
    SYS_write,
    SYS_restart_syscall,
#if defined(__x86_64__)
    SYS_epoll_wait,
    SYS_poll,
    SYS_time,
#endif
#if defined(__SANITIZE_ADDRESS__)
    /* What the sanitizer's own code does. */
    SYS_futex,
    SYS_gettid,
    SYS_getpid,
    SYS_sigaltstack,
    SYS_rt_sigprocmask,
    SYS_rt_sigaction,
    SYS_sched_yield,
    SYS_openat,
    SYS_readlink,
    SYS_writev,
    SYS_prctl,
    SYS_clone,
    SYS_ptrace,
    SYS_wait4,
    SYS_getdents64,
#endif
};
#define COUNT (sizeof allowed / sizeof *allowed)

#define LOAD(field)     BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF(value, t, f) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, t, f)
#define ANSWER(value)   BPF_STMT(BPF_RET | BPF_K, value)

int filter_load(void)
{
    struct sock_filter f[COUNT + 24];
    unsigned n = 0;
    const uint32_t refuse = SECCOMP_RET_ERRNO | EPERM;

    f[n++] = (struct sock_filter)LOAD(arch);
    f[n++] = (struct sock_filter)IF(ARCH, 1, 0);
    f[n++] = (struct sock_filter)ANSWER(SECCOMP_RET_KILL_PROCESS);
    f[n++] = (struct sock_filter)LOAD(nr);

    /* socket: IPv4 and IPv6. Both architectures are little-endian: the low half comes first. */
    f[n++] = (struct sock_filter)IF(SYS_socket, 0, 5);
    f[n++] = (struct sock_filter)LOAD(args[0]);
    f[n++] = (struct sock_filter)IF(AF_INET, 1, 0);
    f[n++] = (struct sock_filter)IF(AF_INET6, 0, 1);
    f[n++] = (struct sock_filter)ANSWER(SECCOMP_RET_ALLOW);
    f[n++] = (struct sock_filter)ANSWER(refuse);

    /* mmap, mprotect: nothing that can be executed. */
    f[n++] = (struct sock_filter)IF(SYS_mmap, 1, 0);
    f[n++] = (struct sock_filter)IF(SYS_mprotect, 0, 4);
    f[n++] = (struct sock_filter)LOAD(args[2]);
    f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1);
    f[n++] = (struct sock_filter)ANSWER(refuse);
    f[n++] = (struct sock_filter)ANSWER(SECCOMP_RET_ALLOW);

    for (unsigned i = 0; i < COUNT; i++)
        f[n++] = (struct sock_filter)IF(allowed[i], (uint8_t)(COUNT - i), 0);
    f[n++] = (struct sock_filter)ANSWER(refuse);
    f[n++] = (struct sock_filter)ANSWER(SECCOMP_RET_ALLOW);

    struct sock_fprog program = {.len = (unsigned short)n, .filter = f};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0 ? -errno : 0;
}
