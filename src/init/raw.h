/* raw: system calls that touch no errno.
 *
 * A child that shares init's memory shares errno as well. Where init sleeps until the child has its
 * program that is of no matter; beside an init that runs (runner.c) it is. */
#pragma once

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__aarch64__)
#define RAW_LEAVES_ERRNO 1
#else
#define RAW_LEAVES_ERRNO 0
#endif

/* What the kernel returns: a result, or a negative errno. */
static inline long raw_call(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
    long r;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;

    __asm__ volatile("syscall"
                     : "=a"(r)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return r;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;

    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
#else
    long r = syscall(number, a, b, c, d, e, f);
    return r < 0 ? -errno : r;
#endif
}

#define RAW_PICK(_1, _2, _3, _4, _5, _6, _7, name, ...) name
#define RAW_1(n)                                        raw_call(n, 0, 0, 0, 0, 0, 0)
#define RAW_2(n, a)                                     raw_call(n, (long)(a), 0, 0, 0, 0, 0)
#define RAW_3(n, a, b)                                  raw_call(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define RAW_4(n, a, b, c)                               raw_call(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define RAW_5(n, a, b, c, d)                            raw_call(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define RAW_6(n, a, b, c, d, e)                                                                    \
    raw_call(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define RAW_7(n, a, b, c, d, e, f)                                                                 \
    raw_call(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
/* raw(SYS_number, argument...) */
#define raw(...)                                                                                   \
    RAW_PICK(__VA_ARGS__, RAW_7, RAW_6, RAW_5, RAW_4, RAW_3, RAW_2, RAW_1, )(__VA_ARGS__)
