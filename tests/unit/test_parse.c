#include "unit.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/parse.h"

/* What a failed parse leaves in the out-parameter. */
#define UNTOUCHED 4711

struct good {
    const char *text;
    uint64_t value;
};

/* The four parsers with everything allowed. */
static int any_u64(const char *text, uint64_t *ret, struct pd_err *e)
{
    return parse_u64("--n", text, 0, UINT64_MAX, ret, e);
}

static int any_size(const char *text, uint64_t *ret, struct pd_err *e)
{
    return parse_size("--size", text, 0, UINT64_MAX, ret, e);
}

static int any_duration(const char *text, uint64_t *ret, struct pd_err *e)
{
    return parse_duration("--time", text, UINT64_MAX, ret, e);
}

static int any_milli(const char *text, uint64_t *ret, struct pd_err *e)
{
    return parse_milli("--cpu", text, 0, UINT64_MAX, ret, e);
}

typedef int any_parser(const char *text, uint64_t *ret, struct pd_err *e);

static void check_good(any_parser *parse, const struct good *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t v = UNTOUCHED;
        struct pd_err e = {.msg = ""};
        if (parse(rows[i].text, &v, &e))
            fail_msg("'%s' was refused: %s", rows[i].text, e.msg);
        if (v != rows[i].value)
            fail_msg("'%s' gave %ju", rows[i].text, (uintmax_t)v);
    }
}

static void check_bad(any_parser *parse, const char *const *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t v = UNTOUCHED;
        struct pd_err e = {.msg = ""};
        if (!parse(rows[i], &v, &e))
            fail_msg("'%s' was taken for %ju", rows[i], (uintmax_t)v);
        assert_int_equal(v, UNTOUCHED);
        assert_int_equal(e.code, PD_INVALID);
        assert_non_null(strstr(e.msg, rows[i]));
    }
}

/* Signs, blanks, other bases, other scripts' digits: what strtoull would let pass. */
static const char *const never_numbers[] = {
    "",     " ",   "-1",   "+1",  "-0", " 1",   "1 ", "\t1",  "1\n", "1_000",      "1,5",
    "0x10", "1e3", "0b1",  "abc", ".",  ".5",   "5.", "1..5", "--1", "1.5.2",      "inf",
    "nan",  "1K ", "1 K",  "K",   "s",  "\xb2", "٣",  "1-",   "1+",  "1.0000",     "1k",
    "1kb",  "1KB", "1kib", "1Ki", "1P", "1 s",  "1S", "1ns",  "1us", "1.2345678s",
};

static void test_u64_takes_all_64_bits(void **state)
{
    (void)state;
    static const struct good rows[] = {
        {"0", 0},
        {"7", 7},
        {"007", 7},
        {"1234567890", 1234567890},
        {"18446744073709551609", UINT64_MAX - 6},
        {"18446744073709551610", UINT64_MAX - 5},
        {"18446744073709551615", UINT64_MAX},
        {"000000000000000000000000000018446744073709551615", UINT64_MAX},
    };
    check_good(any_u64, rows, COUNT(rows));
}

static void test_u64_refuses_overflow(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "18446744073709551616", "18446744073709551620",  "99999999999999999999",
        "28446744073709551615", "184467440737095516150", "340282366920938463463374607431768211456",
    };
    check_bad(any_u64, rows, COUNT(rows));
}

static void test_u64_refuses_all_but_digits(void **state)
{
    (void)state;
    static const char *const rows[] = {"1.0", "1.5", "1K", "1s"};
    check_bad(any_u64, never_numbers, COUNT(never_numbers));
    check_bad(any_u64, rows, COUNT(rows));
}

static void test_u64_range_is_inclusive(void **state)
{
    (void)state;
    uint64_t v = UNTOUCHED;
    struct pd_err e = {.msg = ""};
    assert_int_equal(parse_u64("--pids", "2", 2, 5, &v, &e), 0);
    assert_int_equal(parse_u64("--pids", "5", 2, 5, &v, &e), 0);
    v = UNTOUCHED;
    assert_int_equal(parse_u64("--pids", "1", 2, 5, &v, &e), -1);
    assert_string_equal(e.msg, "--pids: '1' is not a whole number from 2 to 5");
    assert_int_equal(parse_u64("--pids", "6", 2, 5, &v, &e), -1);
    assert_int_equal(v, UNTOUCHED);
    assert_int_equal(parse_u64("--pids", "x", 2, 5, &v, NULL), -1);
}

static void test_size_knows_its_units(void **state)
{
    (void)state;
    static const struct good rows[] = {
        {"0", 0},
        {"512", 512},
        {"512B", 512},
        {"64K", 64 << 10},
        {"64KiB", 64 << 10},
        {"512M", 512 << 20},
        {"512MiB", 512 << 20},
        {"1G", 1 << 30},
        {"3GiB", 3ULL << 30},
        {"2T", 2ULL << 40},
        {"2TiB", 2ULL << 40},
        {"1.5K", 1536},
        {"0.25M", 256 << 10},
        {"1.125G", (1ULL << 30) + (1ULL << 27)},
        {"0.001K", 1}, /* 1.024 bytes, rounded down */
        {"512.000", 512},
    };

    check_good(any_size, rows, COUNT(rows));
}

static void test_size_refuses_what_is_no_size(void **state)
{
    (void)state;
    static const char *const rows[] = {"1B2", "1MM", "1m", "1MB", "1s", "1.5", "0.001B", "1.5X"};
    check_bad(any_size, never_numbers, COUNT(never_numbers));
    check_bad(any_size, rows, COUNT(rows));
}

static void test_size_refuses_overflow(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "18446744073709551616", "16777216T",      "17179869184G",       "99999999999999999999T",
        "18446744073709551.7T", "9999999999999G", "18014398509481985K",
    };
    check_bad(any_size, rows, COUNT(rows));
    static const struct good fits[] = {{"16777T", 16777ULL << 40},
                                       {"16000000G", 16000000ULL << 30}};
    check_good(any_size, fits, COUNT(fits));
}

static void test_size_range_names_the_limits(void **state)
{
    (void)state;
    uint64_t v = UNTOUCHED;
    struct pd_err e = {.msg = ""};
    assert_int_equal(parse_size("--memory", "4M", 4 << 20, 8 << 20, &v, &e), 0);
    assert_int_equal(parse_size("--memory", "8M", 4 << 20, 8 << 20, &v, &e), 0);
    v = UNTOUCHED;
    assert_int_equal(parse_size("--memory", "3.999M", 4 << 20, 8 << 20, &v, &e), -1);
    assert_string_equal(e.msg, "--memory: '3.999M' is out of range: from 4194304 to 8388608 bytes");
    assert_int_equal(parse_size("--memory", "8.001M", 4 << 20, 8 << 20, &v, &e), -1);
    assert_int_equal(v, UNTOUCHED);
}

static void test_duration_knows_its_units(void **state)
{
    (void)state;
    static const struct good rows[] = {
        {"30", 30 * NS_PER_S},
        {"30s", 30 * NS_PER_S},
        {"1.5s", 1500 * NS_PER_MS},
        {"200ms", 200 * NS_PER_MS},
        {"5m", 300 * NS_PER_S},
        {"5min", 300 * NS_PER_S},
        {"2h", 7200 * NS_PER_S},
        {"1d", 86400 * NS_PER_S},
        {"0.001s", NS_PER_MS},
        {"0.001ms", 1000},
        {"0.5m", 30 * NS_PER_S},
        {"0.001", NS_PER_MS},
        {"18446744073", 18446744073 * NS_PER_S},
    };

    check_good(any_duration, rows, COUNT(rows));
}

static void test_duration_refuses_what_is_no_duration(void **state)
{
    (void)state;
    static const char *const rows[] = {"1M", "1H", "1sec", "1hour", "1m30s", "1:30", "1G"};
    check_bad(any_duration, never_numbers, COUNT(never_numbers));
    check_bad(any_duration, rows, COUNT(rows));
}

static void test_duration_refuses_nothing_and_overflow(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "0", "0s", "0.000ms", "18446744074", "213504d", "5124096h", "99999999999999999999ms",
    };
    check_bad(any_duration, rows, COUNT(rows));
}

static void test_duration_maximum_is_inclusive(void **state)
{
    (void)state;
    uint64_t v = UNTOUCHED;
    struct pd_err e = {.msg = ""};
    assert_int_equal(parse_duration("--timeout", "1h", 3600 * NS_PER_S, &v, &e), 0);
    v = UNTOUCHED;
    assert_int_equal(parse_duration("--timeout", "3600.001", 3600 * NS_PER_S, &v, &e), -1);
    assert_string_equal(e.msg, "--timeout: '3600.001' is out of range: more than 0, up to 3600 s");
    assert_int_equal(v, UNTOUCHED);
}

static void test_milli_reads_thousandths(void **state)
{
    (void)state;
    static const struct good rows[] = {
        {"0", 0},          {"2", 2000},    {"0.5", 500},
        {"0.05", 50},      {"0.005", 5},   {"1.250", 1250},
        {"1024", 1024000}, {"00.10", 100}, {"18446744073709549.999", 18446744073709549999ULL},
    };
    check_good(any_milli, rows, COUNT(rows));
}

static void test_milli_refuses_what_is_no_number(void **state)
{
    (void)state;
    static const char *const rows[] = {"1s", "1K", "50%", "18446744073709552", "1.5x", "0.0001"};
    check_bad(any_milli, never_numbers, COUNT(never_numbers));
    check_bad(any_milli, rows, COUNT(rows));
}

static void test_milli_range_is_inclusive_and_named(void **state)
{
    (void)state;
    uint64_t v = UNTOUCHED;
    struct pd_err e = {.msg = ""};
    assert_int_equal(parse_milli("--cpu", "0.01", 10, 2000, &v, &e), 0);
    assert_int_equal(parse_milli("--cpu", "2", 10, 2000, &v, &e), 0);
    v = UNTOUCHED;
    assert_int_equal(parse_milli("--cpu", "0.009", 10, 2000, &v, &e), -1);
    assert_int_equal(parse_milli("--cpu", "2.001", 10, 2000, &v, &e), -1);
    assert_string_equal(e.msg, "--cpu: '2.001' is not a number from 0.010 to 2.000");
    assert_int_equal(v, UNTOUCHED);
}

/* Somebody pastes a novel: the message still says what was wrong with which option. */
static void test_a_long_value_is_cut_in_the_message(void **state)
{
    (void)state;
    char novel[5000];
    memset(novel, '9', sizeof novel - 1);
    novel[sizeof novel - 1] = 0;

    any_parser *const parsers[] = {any_u64, any_size, any_duration, any_milli};
    for (size_t i = 0; i < COUNT(parsers); i++) {
        uint64_t v;
        struct pd_err e = {.msg = ""};
        assert_int_equal(parsers[i](novel, &v, &e), -1);
        assert_true(strlen(e.msg) < 160);
        assert_non_null(strstr(e.msg, "9' is not a"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_u64_takes_all_64_bits),
        cmocka_unit_test(test_u64_refuses_overflow),
        cmocka_unit_test(test_u64_refuses_all_but_digits),
        cmocka_unit_test(test_u64_range_is_inclusive),
        cmocka_unit_test(test_size_knows_its_units),
        cmocka_unit_test(test_size_refuses_what_is_no_size),
        cmocka_unit_test(test_size_refuses_overflow),
        cmocka_unit_test(test_size_range_names_the_limits),
        cmocka_unit_test(test_duration_knows_its_units),
        cmocka_unit_test(test_duration_refuses_what_is_no_duration),
        cmocka_unit_test(test_duration_refuses_nothing_and_overflow),
        cmocka_unit_test(test_duration_maximum_is_inclusive),
        cmocka_unit_test(test_milli_reads_thousandths),
        cmocka_unit_test(test_milli_refuses_what_is_no_number),
        cmocka_unit_test(test_milli_range_is_inclusive_and_named),
        cmocka_unit_test(test_a_long_value_is_cut_in_the_message),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
