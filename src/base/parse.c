/* Numbers, sizes, durations and decimals from text, with errors that repeat the value and say what
 * is valid. */
#include "base/parse.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"

#include <inttypes.h>

/* Longest value that is quoted back in an error; more would hide the message. */
#define QUOTE_MAX 40

/* Reads "123.456" as thousandths of `unit`, with at most `decimals` digits behind the point, and
 * moves *text behind it. Refuses what does not fit 64 bits. */
static int read_decimal(const char **text, unsigned decimals, uint64_t *ret_thousandths)
{
    const char *p = *text;
    uint64_t v = 0;
    unsigned digits = 0;

    for (; *p >= '0' && *p <= '9'; p++, digits++) {
        if (v > (UINT64_MAX / 1000 - 9) / 10)
            return -1;
        v = v * 10 + (uint64_t)(*p - '0');
    }

    if (!digits)
        return -1;

    v *= 1000;
    if (*p == '.' && decimals) {
        p++;
        uint64_t weight = 100;
        for (digits = 0; *p >= '0' && *p <= '9'; p++, digits++) {
            v += (uint64_t)(*p - '0') * weight;
            weight /= 10;
        }
        if (!digits || digits > decimals)
            return -1;
    }

    *text = p;
    *ret_thousandths = v;
    return 0;
}

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit *find_unit(const struct unit *units, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(units[i].name, name))
            return &units[i];
    return NULL;
}

int parse_u64(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *ret,
              struct pd_err *e)
{
    uint64_t v = 0;
    const char *p = text;
    int bad = !*p;

    for (; *p && !bad; p++)
        bad = *p < '0' || *p > '9' || __builtin_mul_overflow(v, 10, &v) ||
              __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v);

    if (bad || v < min || v > max)
        return pd_fail(e, PD_INVALID,
                       "%s: '%.*s' is not a whole number from %" PRIu64 " to %" PRIu64, what,
                       QUOTE_MAX, text, min, max);
    *ret = v;
    return 0;
}

int parse_size(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *ret,
               struct pd_err *e)
{
    static const struct unit units[] = {
        {"", 1},           {"B", 1},
        {"K", 1ULL << 10}, {"KiB", 1ULL << 10},
        {"M", 1ULL << 20}, {"MiB", 1ULL << 20},
        {"G", 1ULL << 30}, {"GiB", 1ULL << 30},
        {"T", 1ULL << 40}, {"TiB", 1ULL << 40},
    };
    const char *p = text;
    uint64_t thousandths;
    const struct unit *unit = NULL;

    if (!read_decimal(&p, 3, &thousandths))
        unit = find_unit(units, sizeof units / sizeof *units, p);

    /* "1.5" without a unit is more likely a forgotten letter than one byte and a half. */
    if (!unit || (unit->factor == 1 && thousandths % 1000))
        return pd_fail(e, PD_INVALID, "%s: '%.*s' is not a size such as 64M, 512M or 1G", what,
                       QUOTE_MAX, text);

    uint64_t v;
    int too_large = __builtin_mul_overflow(thousandths, unit->factor, &v);
    v /= 1000;
    if (too_large || v < min || v > max)
        return pd_fail(e, PD_INVALID,
                       "%s: '%.*s' is out of range: from %" PRIu64 " to %" PRIu64 " bytes", what,
                       QUOTE_MAX, text, min, max);
    *ret = v;
    return 0;
}

int parse_duration(const char *what, const char *text, uint64_t max_ns, uint64_t *ret_ns,
                   struct pd_err *e)
{
    static const struct unit units[] = {
        {"", NS_PER_S},          {"s", NS_PER_S},        {"ms", NS_PER_MS},
        {"m", 60 * NS_PER_S},    {"min", 60 * NS_PER_S}, {"h", 3600 * NS_PER_S},
        {"d", 86400 * NS_PER_S},
    };
    const char *p = text;
    uint64_t thousandths;
    const struct unit *unit = NULL;

    if (!read_decimal(&p, 3, &thousandths))
        unit = find_unit(units, sizeof units / sizeof *units, p);

    uint64_t v;
    /* Every factor is a multiple of 1000, so nothing is lost by dividing first. */
    if (!unit || __builtin_mul_overflow(thousandths, unit->factor / 1000, &v))
        return pd_fail(e, PD_INVALID, "%s: '%.*s' is not a duration such as 500ms, 30s, 5m or 2h",
                       what, QUOTE_MAX, text);

    if (v == 0 || v > max_ns)
        return pd_fail(e, PD_INVALID,
                       "%s: '%.*s' is out of range: more than 0, up to %" PRIu64 " s", what,
                       QUOTE_MAX, text, max_ns / NS_PER_S);
    *ret_ns = v;
    return 0;
}

int parse_milli(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *ret,
                struct pd_err *e)
{
    const char *p = text;
    uint64_t v;

    if (read_decimal(&p, 3, &v) || *p || v < min || v > max)
        return pd_fail(e, PD_INVALID,
                       "%s: '%.*s' is not a number from %" PRIu64 ".%03u to %" PRIu64 ".%03u", what,
                       QUOTE_MAX, text, min / 1000, (unsigned)(min % 1000), max / 1000,
                       (unsigned)(max % 1000));
    *ret = v;
    return 0;
}
