/* seccomp: which system calls reach the kernel.
 *
 * An allow-list. What is known and refused answers EPERM, what is unknown ENOSYS (so that programs
 * fall back), another architecture's calls kill the process. The policy is a table
 * (seccomp_policy.c), equal for strict and dev, with memfd_create refused in restricted; the
 * compiler makes a tree over ranges of equal verdicts of it, about 150 instructions.
 * docs/seccomp.md is the manual.
 *
 * Compiling takes one microsecond, loading about fifty, and a child inherits a filter for nothing:
 * load it once in the process that starts the others. */
#pragma once

#include "wire/spec.h"

#include <linux/filter.h>
#include <stddef.h>
#include <stdint.h>

struct pd_err;

#define SECCOMP_CODE_MAX 1024

struct seccomp_filter {
    unsigned short len;
    struct sock_filter code[SECCOMP_CODE_MAX];
};

/* Compiles the policy of a profile for this machine's architecture. Pure; takes some 15 KiB of
 * stack. 0, or -1 with *e set (an unknown profile; a table that cannot be compiled). */
int seccomp_compile(enum profile profile, struct seccomp_filter *ret, struct pd_err *e);
/* What the policy says of one call, straight from the table: the oracle for the compiler's tests.
 * Returns a SECCOMP_RET_* value; an unknown profile allows nothing. */
uint32_t seccomp_decide(enum profile profile, uint32_t arch, uint32_t nr, const uint64_t args[6]);

/* Loads it for the calling thread and its descendants, for good; needs no_new_privs (or else
 * CAP_SYS_ADMIN). No allocation: it may run between vfork and exec. 0 or -errno. */
int seccomp_load(const struct seccomp_filter *f);
