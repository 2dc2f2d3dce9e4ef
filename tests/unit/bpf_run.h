/* bpf_run: a classic-BPF interpreter for seccomp filters, as strict as the kernel's checker.
 *
 * Runs the part of the language that the compiler may use; anything else, a jump out of the
 * program, a load beside the data or an end without a return gives BPF_RUN_BAD, which is no
 * SECCOMP_RET_* value. */
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <string.h>

#define BPF_RUN_BAD 0x12345678U

static inline uint32_t bpf_run(const struct sock_filter *code, unsigned len,
                               const struct seccomp_data *data)
{
    uint32_t a = 0;

    for (uint64_t pc = 0; pc < len; pc++) {
        const struct sock_filter *i = &code[pc];
        switch (i->code) {
        case BPF_LD | BPF_W | BPF_ABS:
            if (i->k % 4 != 0 || i->k > sizeof(*data) - 4)
                return BPF_RUN_BAD;
            memcpy(&a, (const char *)data + i->k, 4);
            break;
        case BPF_ALU | BPF_AND | BPF_K:
            a &= i->k;
            break;
        case BPF_JMP | BPF_JA:
            pc += i->k;
            break;
        case BPF_JMP | BPF_JEQ | BPF_K:
            pc += a == i->k ? i->jt : i->jf;
            break;
        case BPF_JMP | BPF_JGE | BPF_K:
            pc += a >= i->k ? i->jt : i->jf;
            break;
        case BPF_RET | BPF_K:
            return i->k;
        default:
            return BPF_RUN_BAD;
        }
    }

    return BPF_RUN_BAD;
}
