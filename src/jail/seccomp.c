/* Compiles the table into a filter, and loads filters.
 *
 * The program is written backwards, from its last instruction to its first: a jump can only go
 * forwards, so its targets are always known and nothing has to be patched. A label is the distance
 * of an instruction from the end of the program (the last one has label 1).
 *
 *     load arch, compare; load nr; the tree; the lists of cases; the answers
 *
 * The kernel runs each call number through a new filter once, to learn which are allowed whatever
 * their arguments; those never run it again. So loading costs (numbers x depth) and (instructions,
 * for the JIT), and both are what the tree saves. */
#include "jail/seccomp.h"

#include "base/banned.h"
#include "base/err.h"
#include "jail/seccomp_policy.h"

#include <asm/unistd.h>
#include <errno.h>
#include <linux/seccomp.h>

/* The calls of a span get one verdict, but for a few single numbers that are compared one by one:
 * that takes one instruction each where a range of its own would take two. */
#define SPAN_ODD 2

struct odd {
    uint16_t nr;
    uint8_t verdict;
};

struct span {
    uint16_t first; /* its last number is the one before the next span's first */
    uint8_t verdict;
    uint8_t odds;
    struct odd odd[SPAN_ODD];
};

struct writer {
    unsigned len;                              /* also the label of the instruction written last */
    unsigned label[SC_VERDICT_COUNT];          /* where the code of a verdict stands; 0: nowhere */
    struct sock_filter code[SECCOMP_CODE_MAX]; /* filled from the end */
};

/* Past the end it only counts, so that one check at the end is enough. */
static unsigned emit(struct writer *w, struct sock_filter insn)
{
    w->len++;
    if (w->len <= SECCOMP_CODE_MAX)
        w->code[SECCOMP_CODE_MAX - w->len] = insn;
    return w->len;
}

/* A conditional jump reaches 255 instructions. Farther targets get a long jump right behind it;
 * two are left of the reach because the other branch may need one as well. */
static unsigned within_reach(struct writer *w, unsigned target)
{
    unsigned distance = w->len - target;
    if (distance < 254)
        return target;
    return emit(w, (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, distance));
}

static unsigned emit_jump(struct writer *w, uint16_t op, uint32_t k, unsigned yes, unsigned no)
{
    yes = within_reach(w, yes);
    no = within_reach(w, no);
    return emit(w, (struct sock_filter)BPF_JUMP(BPF_JMP | op | BPF_K, k, (uint8_t)(w->len - yes),
                                                (uint8_t)(w->len - no)));
}

static unsigned emit_load(struct writer *w, size_t offset)
{
    return emit(w, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

static unsigned emit_cond(struct writer *w, const struct seccomp_cond *c, unsigned yes, unsigned no)
{
    unsigned next = no;
    for (unsigned i = c->count; i-- > 0;)
        next = emit_jump(w, BPF_JEQ, c->values[i], yes, next);
    if (c->mask != UINT32_MAX)
        emit(w, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, c->mask));

    /* The low half comes first: both architectures are little-endian. */
    return emit_load(w, offsetof(struct seccomp_data, args) + c->arg * sizeof(uint64_t));
}

static unsigned emit_cases(struct writer *w, const struct seccomp_case *list)
{
    unsigned n = 0;

    while (n < SECCOMP_CASES - 1 && list[n].conds > 0)
        n++;

    unsigned next = w->label[list[n].verdict];
    while (n-- > 0) {
        unsigned target = w->label[list[n].verdict];
        for (unsigned i = list[n].conds; i-- > 0;)
            target = emit_cond(w, &list[n].cond[i], target, next);
        next = target;
    }
    return next;
}

static unsigned emit_span(struct writer *w, const struct span *s)
{
    unsigned next = w->label[s->verdict];
    for (unsigned i = s->odds; i-- > 0;)
        next = emit_jump(w, BPF_JEQ, s->odd[i].nr, w->label[s->odd[i].verdict], next);
    return next;
}

/* The tree over spans[0..n). It halves the numbers rather than the spans: the kernel asks for every
 * number once, so wide spans belong near the root. It is as deep as 512 can be halved, about. */
static unsigned emit_tree(struct writer *w, const struct span *spans, size_t n)
{
    if (n == 1)
        return emit_span(w, spans);

    unsigned middle = (spans[0].first + spans[n - 1].first) / 2;
    size_t split = 1;
    while (split < n - 1 && spans[split].first < middle)
        split++;

    unsigned high = emit_tree(w, spans + split, n - split);
    unsigned low = emit_tree(w, spans, split);
    return emit_jump(w, BPF_JGE, spans[split].first, high, low);
}

/* How many numbers from `nr` on are odd ones of a span with this verdict: single numbers that
 * differ, with the span's verdict behind them. 0 when the span ends here. */
static unsigned odds_at(const uint8_t verdicts[SECCOMP_NR_END], unsigned nr, uint8_t verdict)
{
    for (unsigned n = 1; n <= SPAN_ODD && nr + n < SECCOMP_NR_END; n++)
        if (verdicts[nr + n] == verdict)
            return n;
    return 0;
}

static size_t spans_make(const uint8_t verdicts[SECCOMP_NR_END], struct span *spans)
{
    size_t n = 0;

    for (unsigned nr = 0; nr < SECCOMP_NR_END;) {
        struct span *s = &spans[n++];
        *s = (struct span){.first = (uint16_t)nr, .verdict = verdicts[nr]};
        while (nr < SECCOMP_NR_END) {
            if (verdicts[nr] == s->verdict) {
                nr++;
                continue;
            }

            unsigned odds = odds_at(verdicts, nr, s->verdict);
            if (odds == 0 || s->odds + odds > SPAN_ODD)
                break;
            for (; odds > 0; odds--, nr++)
                s->odd[s->odds++] = (struct odd){(uint16_t)nr, verdicts[nr]};
        }
    }

    return n;
}

int seccomp_policy_compile(const struct seccomp_policy *p, struct seccomp_filter *ret,
                           struct pd_err *e)
{
    uint8_t verdicts[SECCOMP_NR_END];
    uint8_t used[SC_VERDICT_COUNT] = {0};
    struct span spans[SECCOMP_NR_END];
    struct writer w = {0};

    memset(verdicts, SC_ENOSYS, sizeof(verdicts));
    for (size_t i = 0; i < p->rule_count + p->exception_count; i++) {
        const struct seccomp_rule *r =
            i < p->rule_count ? &p->rules[i] : &p->exceptions[i - p->rule_count];
        /* The last number stays unknown, so that its verdict is right for all above it. */
        if (r->nr >= SECCOMP_NR_END - 1 || r->verdict >= SC_VERDICT_COUNT)
            return pd_fail(e, PD_INTERNAL, "seccomp: call %u cannot be in the table", r->nr);

        verdicts[r->nr] = r->verdict;
        used[r->verdict] = 1;
    }

    for (unsigned v = SC_ANSWER_COUNT; v-- > 0;)
        w.label[v] = emit(&w, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, seccomp_answer(v)));
    for (unsigned v = SC_ANSWER_COUNT; v < SC_VERDICT_COUNT; v++)
        if (used[v])
            w.label[v] = emit_cases(&w, p->cases[v - SC_ANSWER_COUNT]);

    unsigned tree = emit_tree(&w, spans, spans_make(verdicts, spans));
    if (tree != w.len) /* no tree at all: every number has the same verdict */
        emit(&w, (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, w.len - tree));
    emit_load(&w, offsetof(struct seccomp_data, nr));
    emit_jump(&w, BPF_JEQ, SECCOMP_ARCH, w.len, w.label[SC_KILL]);
    emit_load(&w, offsetof(struct seccomp_data, arch));

    if (w.len > SECCOMP_CODE_MAX)
        return pd_fail(e, PD_INTERNAL, "seccomp: %u instructions are too many", w.len);

    ret->len = (unsigned short)w.len;
    memcpy(ret->code, w.code + SECCOMP_CODE_MAX - w.len, w.len * sizeof(w.code[0]));
    return 0;
}

int seccomp_compile(enum profile profile, struct seccomp_filter *ret, struct pd_err *e)
{
    const struct seccomp_policy *p = seccomp_policy_of(profile);
    if (!p)
        return pd_fail(e, PD_INVALID, "seccomp: no profile has the number %d", (int)profile);
    return seccomp_policy_compile(p, ret, e);
}

int seccomp_load(const struct seccomp_filter *f)
{
    struct sock_fprog prog = {.len = f->len, .filter = (struct sock_filter *)f->code};
    if (syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) != 0)
        return -errno;
    return 0;
}
