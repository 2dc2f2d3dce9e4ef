#include "unit.h"

#include "api/range.h"

#include "base/banned.h"

struct vector {
    const char *text;
    enum range_kind kind;
    uint64_t first, count;
};

#define ALL ((uint64_t)INT64_MAX)

static void test_ranges_that_count(void **state)
{
    static const struct vector vectors[] = {
        {"bytes=0-0", RANGE_FROM, 0, 1},
        {"bytes=0-99", RANGE_FROM, 0, 100},
        {"bytes=100-", RANGE_FROM, 100, ALL},
        {"bytes=-100", RANGE_LAST, 0, 100},
        {"bytes=-0", RANGE_LAST, 0, 0},
        {"BYTES=1-2", RANGE_FROM, 1, 2},
        {"bytes=007-0008", RANGE_FROM, 7, 2},
        {"bytes=0000000000000000000000000000000000000001-2", RANGE_FROM, 1, 2},
        /* As large as a file can be, and larger: no sum overflows. */
        {"bytes=9223372036854775806-9223372036854775807", RANGE_FROM, ALL - 1, 2},
        {"bytes=9223372036854775807-", RANGE_FROM, ALL, ALL},
        {"bytes=9223372036854775808-", RANGE_FROM, ALL, ALL},
        {"bytes=0-9223372036854775806", RANGE_FROM, 0, ALL},
        {"bytes=0-9223372036854775807", RANGE_FROM, 0, ALL},
        {"bytes=0-18446744073709551616", RANGE_FROM, 0, ALL},
        {"bytes=99999999999999999999-99999999999999999999", RANGE_FROM, ALL, 1},
        {"bytes=-99999999999999999999", RANGE_LAST, 0, ALL},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(vectors); i++) {
        const struct vector *v = &vectors[i];
        struct range r = range_parse(slice_of(v->text));
        if (r.kind != v->kind || r.first != v->first || r.count != v->count)
            fail_msg("%s: kind %d, %llu bytes from %llu", v->text, (int)r.kind,
                     (unsigned long long)r.count, (unsigned long long)r.first);
    }
}

static void test_what_is_ignored(void **state)
{
    static const char *const texts[] = {
        "",           "bytes",       "bytes=",     "bytes=-",        "bytes=--1",  "bytes=1",
        "bytes=2-1",  "bytes=a-b",   "bytes=1-b",  "bytes=1-2x",     "bytes= 1-2", "bytes=1 -2",
        "bytes=1-2 ", "bytes=0-1,3", "bytes=1-,-", "bytes=0-1, 3-4", "lines=0-1",  "bytes:0-1",
        "byte=0-1",   "bytes=+1-2",  "bytes=0x1-", "bytes=-1-",      "bytes =0-1", "bytes=1--2",
    };
    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++)
        if (range_parse(slice_of(texts[i])).kind != RANGE_NONE)
            fail_msg("'%s' is taken for a range", texts[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges_that_count),
        cmocka_unit_test(test_what_is_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
