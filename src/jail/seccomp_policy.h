/* seccomp_policy: the table that seccomp.c compiles, and its reading by hand.
 *
 * Private to the seccomp wall and its tests; everybody else uses seccomp.h. A policy has two parts:
 * one verdict per call number, and for the calls whose verdict hangs on arguments a list of cases.
 * Every argument in use is an int, an unsigned int or shorter in the kernel, which ignores the
 * upper half of the register; so the cases look at the low 32 bits and at nothing else. */
#pragma once

#include "wire/spec.h"

#include <linux/audit.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#define SECCOMP_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__) && defined(__AARCH64EL__)
#define SECCOMP_ARCH AUDIT_ARCH_AARCH64
#else
#error "the seccomp policy knows x86_64 and little-endian aarch64"
#endif

/* Call numbers in the table are below this. What lies above (x32's numbers too) is unknown. */
#define SECCOMP_NR_END 512

/* The first ones are answers, the rest names a list of cases. */
enum seccomp_verdict {
    SC_ALLOW,
    SC_KILL,
    SC_EPERM,
    SC_ENOSYS,
    SC_EINVAL,
    SC_ENOMEM,
    SC_EAFNOSUPPORT,
    SC_EPROTONOSUPPORT,
    SC_ANSWER_COUNT,
    SC_CLONE = SC_ANSWER_COUNT,
    SC_FUTEX,
    SC_IOCTL,
    SC_MEMFD_CREATE,
    SC_MKNOD,
    SC_MKNODAT,
    SC_MMAP,
    SC_PERSONALITY,
    SC_PRCTL,
    SC_PRLIMIT,
    SC_SETSOCKOPT,
    SC_SHMGET,
    SC_SOCKET,
    SC_SOCKETPAIR,
    SC_VERDICT_COUNT
};

struct seccomp_rule {
    uint16_t nr;
    uint8_t verdict; /* enum seccomp_verdict */
};

/* Holds when (args[arg] & mask) is one of the first `count` values. */
struct seccomp_cond {
    uint8_t arg;
    uint8_t count;
    uint32_t mask;
    uint32_t values[5];
};

#define SECCOMP_CONDS 3

/* Applies when all its conditions hold; a case without any always applies, and ends the list. */
struct seccomp_case {
    uint8_t verdict; /* an answer */
    uint8_t conds;
    struct seccomp_cond cond[SECCOMP_CONDS];
};

#define SECCOMP_CASES 6

struct seccomp_policy {
    const struct seccomp_rule *rules; /* in any order, each number once */
    size_t rule_count;
    const struct seccomp_rule *exceptions; /* hold instead of the rules for their numbers */
    size_t exception_count;
    /* Indexed by verdict - SC_ANSWER_COUNT; the first case that applies decides. */
    const struct seccomp_case (*cases)[SECCOMP_CASES];
};

/* The policy of strict and dev. */
extern const struct seccomp_policy seccomp_policy;
/* The policy of a profile, NULL for an unknown one. */
const struct seccomp_policy *seccomp_policy_of(enum profile profile);

/* The SECCOMP_RET_* value of an answer. */
uint32_t seccomp_answer(enum seccomp_verdict answer);

struct pd_err;
struct seccomp_filter;

/* seccomp_compile and seccomp_decide for any policy. They share the tables and no code. */
int seccomp_policy_compile(const struct seccomp_policy *p, struct seccomp_filter *ret,
                           struct pd_err *e);
uint32_t seccomp_policy_decide(const struct seccomp_policy *p, uint32_t arch, uint32_t nr,
                               const uint64_t args[6]);
