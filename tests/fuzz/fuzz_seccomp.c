/* Property: for any call, of any architecture and with any arguments, the compiled filter gives the
 * verdict that the table gives, and it is one of those that the policy may give at all.
 *
 * Input: records of 56 bytes (arch, nr, six arguments, all little-endian); the rest of the last one
 * counts as zeros. In an arch of 0..7 the native one is put, so that most records get past the
 * first comparison; likewise the upper bits of a number are kept only when its lowest byte is odd.
 */
#include "jail/seccomp.h"
#include "jail/seccomp_policy.h"

#include "../unit/bpf_run.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct record {
    uint32_t arch;
    uint32_t nr;
    uint64_t args[6];
};

static int possible(uint32_t verdict)
{
    for (unsigned v = 0; v < SC_ANSWER_COUNT; v++)
        if (verdict == seccomp_answer(v))
            return 1;
    return 0;
}

static void check(enum profile profile, const struct seccomp_filter *f, const struct record *r)
{
    struct seccomp_data d = {.nr = (int)r->nr, .arch = r->arch};
    memcpy(d.args, r->args, sizeof(d.args));
    uint32_t ran = bpf_run(f->code, f->len, &d);
    if (!possible(ran) || ran != seccomp_decide(profile, r->arch, r->nr, r->args))
        abort();
    if (r->arch != SECCOMP_ARCH && ran != SECCOMP_RET_KILL_PROCESS)
        abort();
    if (r->arch == SECCOMP_ARCH && r->nr >= SECCOMP_NR_END && ran == SECCOMP_RET_ALLOW)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int p = 0; p < PROFILE_COUNT; p++) {
        struct seccomp_filter f;
        if (seccomp_compile((enum profile)p, &f, NULL) != 0)
            abort();
        for (size_t at = 0; at < size; at += sizeof(struct record)) {
            struct record r = {0};
            memcpy(&r, data + at, size - at < sizeof(r) ? size - at : sizeof(r));
            if (r.arch < 8)
                r.arch = SECCOMP_ARCH;
            if (r.nr % 2 == 0)
                r.nr = r.nr >> 1 & 0x3ff;
            check((enum profile)p, &f, &r);
        }
    }

    return 0;
}
