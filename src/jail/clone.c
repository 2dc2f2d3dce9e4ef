/* vfork with what vfork lacks: clone3 makes the child in new namespaces and in its cgroup. The
 * child shares the caller's memory, so no page table is copied, and runs on the caller's stack
 * while the caller sleeps. */
#include "jail/clone.h"

#include "base/banned.h"

#include <linux/sched.h>
#include <sys/syscall.h>

/* libc's syscall() will not do: the child would return from it, and its next call would overwrite
 * the address that the parent still has to return to. Inlined there is no such frame. */
static inline __attribute__((always_inline)) long clone3_inline(struct clone_args *args)
{
#if defined(__x86_64__)
    long r;
    __asm__ volatile("syscall"
                     : "=a"(r)
                     : "0"((long)SYS_clone3), "D"(args), "S"(sizeof *args)
                     : "rcx", "r11", "memory");
    return r;
#elif defined(__aarch64__)
    register long number __asm__("x8") = SYS_clone3;
    register long r __asm__("x0") = (long)args;
    register long size __asm__("x1") = sizeof *args;
    __asm__ volatile("svc 0" : "+r"(r) : "r"(number), "r"(size) : "memory");
    return r;
#else
#error "clone3 is not written for this architecture"
#endif
}

__attribute__((noinline)) pid_t clone_vfork(uint64_t flags, int cgroup, int (*fn)(void *),
                                            void *arg)
{
    struct clone_args args = {.flags = flags | CLONE_VM | CLONE_VFORK};

    /* A child of the caller's parent has the caller's exit signal; giving one is an error. */
    args.exit_signal = flags & CLONE_PARENT ? 0 : 17; /* SIGCHLD */
    if (cgroup >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)cgroup;
    }

    long r = clone3_inline(&args);
    if (r == 0) {
        fn(arg);
        _exit(127);
    }

    return (pid_t)r;
}
