/* The Range header: one range of bytes, counted from the front or from the end. Anything else
 * (several ranges, other units, nonsense) counts as no range, as RFC 9110 allows. */
#include "api/range.h"

#include "base/banned.h"

/* Takes digits off the slice; 0 when there are none. */
static int take_digits(struct slice *s, uint64_t *ret)
{
    uint64_t v = 0;
    size_t n = 0;

    for (; n < s->len && s->at[n] >= '0' && s->at[n] <= '9'; n++) {
        uint64_t digit = (uint64_t)(s->at[n] - '0');
        v = v > (INT64_MAX - digit) / 10 ? (uint64_t)INT64_MAX : v * 10 + digit;
    }

    s->at += n;
    s->len -= n;
    *ret = v;
    return n > 0;
}

struct range range_parse(struct slice value)
{
    static const char unit[] = "bytes=";
    const struct range none = {.kind = RANGE_NONE};
    size_t len = sizeof unit - 1;

    if (value.len <= len || !slice_is_nocase((struct slice){value.at, len}, unit))
        return none;

    struct slice s = {value.at + len, value.len - len};
    struct range r = {.count = INT64_MAX};
    uint64_t last;
    r.kind = take_digits(&s, &r.first) ? RANGE_FROM : RANGE_LAST;
    if (!s.len || *s.at != '-')
        return none;
    s.at++;
    s.len--;

    int has_last = take_digits(&s, &last);
    if (s.len || (r.kind == RANGE_LAST && !has_last) ||
        (r.kind == RANGE_FROM && has_last && last < r.first))
        return none;

    if (r.kind == RANGE_LAST)
        r.count = last;
    else if (has_last && last - r.first < INT64_MAX)
        r.count = last - r.first + 1;
    return r;
}
