/* The parsers against a second opinion that counts in 128 bits and knows no unit table.
 *
 * Properties: a value is accepted exactly when the oracle accepts it, and is then the same; it is
 * accepted in [v, v] and refused just outside; a refusal leaves the out-parameter alone and quotes
 * the option in a terminated message. */
#include "base/clock.h"
#include "base/err.h"
#include "base/parse.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned __int128 u128;

#define UNTOUCHED 0x5a5a5a5a5a5a5a5aULL

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

/* A number with up to three decimals at the start of the text, in thousandths; returns the rest or
 * NULL. What is wider than 100 bits counts as that. */
static const char *oracle_number(const char *text, u128 *ret)
{
    const u128 huge = (u128)1 << 100;
    u128 v = 0;
    size_t whole = strspn(text, "0123456789");
    for (size_t i = 0; i < whole; i++)
        v = v >= huge ? huge : v * 10 + (u128)(text[i] - '0');
    v *= 1000;
    text += whole;
    if (!whole)
        return NULL;

    if (*text == '.') {
        size_t part = strspn(++text, "0123456789");
        if (part < 1 || part > 3)
            return NULL;
        for (size_t i = 0, weight = 100; i < part; i++, weight /= 10)
            v += (u128)(text[i] - '0') * weight;
        text += part;
    }
    *ret = v;
    return text;
}

static int is_one_of(const char *text, const char *const *names)
{
    for (; *names; names++)
        if (!strcmp(text, *names))
            return 1;
    return 0;
}

/* 1 and the value in bytes, or 0. */
static int oracle_size(const char *text, u128 *ret)
{
    static const char *const units[][3] = {
        {"", "B"}, {"K", "KiB"}, {"M", "MiB"}, {"G", "GiB"}, {"T", "TiB"}};
    u128 v;
    const char *rest = oracle_number(text, &v);
    for (unsigned i = 0; rest && i < 5; i++)
        if (is_one_of(rest, units[i])) {
            *ret = (v << (10 * i)) / 1000;
            /* Half a byte is refused, and so is what passes 64 bits in thousandths. */
            return !(i == 0 && v % 1000) && (v << (10 * i)) <= UINT64_MAX;
        }
    return 0;
}

static int oracle_duration(const char *text, u128 *ret)
{
    static const struct {
        const char *names[3];
        uint64_t ns;
    } units[] = {{{"", "s"}, NS_PER_S},
                 {{"ms"}, NS_PER_MS},
                 {{"m", "min"}, 60 * NS_PER_S},
                 {{"h"}, 3600 * NS_PER_S},
                 {{"d"}, 86400 * NS_PER_S}};

    u128 v;
    const char *rest = oracle_number(text, &v);
    for (unsigned i = 0; rest && i < sizeof units / sizeof *units; i++)
        if (is_one_of(rest, units[i].names)) {
            *ret = v * (units[i].ns / 1000);
            return *ret > 0 && *ret <= UINT64_MAX;
        }

    return 0;
}

static int oracle_milli(const char *text, u128 *ret)
{
    const char *rest = oracle_number(text, ret);
    return rest && !*rest && *ret <= UINT64_MAX;
}

static int oracle_u64(const char *text, u128 *ret)
{
    const char *rest = oracle_number(text, ret);
    if (!rest || *rest || strchr(text, '.'))
        return 0;
    *ret /= 1000;
    return *ret <= UINT64_MAX;
}

static int ranged_duration(const char *what, const char *text, uint64_t min, uint64_t max,
                           uint64_t *ret, struct pd_err *e)
{
    (void)min; /* a duration has only a maximum */
    return parse_duration(what, text, max, ret, e);
}

struct subject {
    int (*parse)(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *ret,
                 struct pd_err *e);
    int (*oracle)(const char *text, u128 *ret);
    int has_min;
    /* Within this many thousandths of 2^64 the parser may refuse early. */
    uint64_t slack;
};

static void check_refusal(int r, uint64_t v, const struct pd_err *e)
{
    require(r == -1);
    require(v == UNTOUCHED);
    require(e->code == PD_INVALID);
    require(memchr(e->msg, 0, sizeof e->msg) != NULL);
    require(!strncmp(e->msg, "--x: '", 6));
}

static void check_subject(const struct subject *s, const char *text)
{
    u128 expected = 0;
    uint64_t v = UNTOUCHED;
    struct pd_err e = {.msg = ""};
    int valid = s->oracle(text, &expected);
    int r = s->parse("--x", text, 0, UINT64_MAX, &v, &e);
    if (r) {
        check_refusal(r, v, &e);
        require(!valid || s->slack);
        if (valid) {
            u128 number = 0;
            oracle_number(text, &number);
            require(number > UINT64_MAX - s->slack);
        }
        return;
    }
    require(valid && v == expected);

    uint64_t again = UNTOUCHED;
    require(!s->parse("--x", text, v, v, &again, NULL) && again == v);
    again = UNTOUCHED;
    if (v > 0)
        check_refusal(s->parse("--x", text, 0, v - 1, &again, &e), again, &e);
    if (v < UINT64_MAX && s->has_min)
        check_refusal(s->parse("--x", text, v + 1, UINT64_MAX, &again, &e), again, &e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct subject subjects[] = {
        {parse_u64, oracle_u64, 1, 0},
        {parse_size, oracle_size, 1, 10000},
        {ranged_duration, oracle_duration, 0, 10000},
        {parse_milli, oracle_milli, 1, 10000},
    };

    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
        check_subject(&subjects[i], text);
    free(text);
    return 0;
}
