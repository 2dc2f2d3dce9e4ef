#include "unit.h"

#include "access/ids.h"
#include "base/err.h"

#include <string.h>

static void test_sandbox_ids_have_their_form_and_no_letter_is_favoured(void **state)
{
    (void)state;
    unsigned seen[256] = {0};
    char last[ID_SANDBOX_LEN + 1] = "";
    enum { ROUNDS = 18000 };

    for (int i = 0; i < ROUNDS; i++) {
        char id[ID_SANDBOX_LEN + 1];
        id_sandbox(id);
        assert_true(id_is_sandbox(id));
        assert_string_not_equal(id, last);
        memcpy(last, id, sizeof last);
        for (int j = 0; j < ID_SANDBOX_LEN; j++)
            seen[(uint8_t)id[j]]++;
    }

    /* Each is expected 10,000 times, give or take 100; by `byte % 36` four would come 14 % more
     * often than the rest. */
    for (const char *c = "abcdefghijklmnopqrstuvwxyz0123456789"; *c; c++) {
        assert_true(seen[(uint8_t)*c] > 9300);
        assert_true(seen[(uint8_t)*c] < 10700);
    }
}

static void test_keys_have_their_form(void **state)
{
    (void)state;
    char a[ID_KEY_LEN + 1], b[ID_KEY_LEN + 1];
    id_key(a);
    id_key(b);
    assert_true(id_is_key(a));
    assert_true(id_is_key(b));
    assert_string_not_equal(a, b);
}

static void test_forms_are_told_apart(void **state)
{
    (void)state;
    assert_true(id_is_sandbox("abcdefghij0123456789"));

    static const char *const no_sandbox[] = {"",
                                             "abcdefghij012345678",
                                             "abcdefghij01234567890",
                                             "Abcdefghij0123456789",
                                             "abcdefghij012345678/",
                                             "abcdefghij\xc3\xa9_234567"};
    for (size_t i = 0; i < COUNT(no_sandbox); i++)
        assert_false(id_is_sandbox(no_sandbox[i]));
    assert_false(id_is_sandbox(NULL));
    assert_true(id_is_key("e2b_0123456789abcdef0123456789abcdef01234567"));

    static const char *const no_key[] = {"",
                                         "e2b_",
                                         "e2b_0123456789abcdef0123456789abcdef0123456",
                                         "e2b_0123456789abcdef0123456789abcdef012345678",
                                         "e2b_0123456789ABCDEF0123456789abcdef01234567",
                                         "e2c_0123456789abcdef0123456789abcdef01234567",
                                         "e2b_0123456789abcdef0123456789abcdef0123456g"};
    for (size_t i = 0; i < COUNT(no_key); i++)
        assert_false(id_is_key(no_key[i]));
    assert_false(id_is_key(NULL));
    assert_true(id_is_tenant("default"));
    assert_true(id_is_tenant("a_b-9"));

    char longest[ID_TENANT_MAX + 2];
    memset(longest, 'x', sizeof longest);
    longest[ID_TENANT_MAX + 1] = '\0';
    assert_false(id_is_tenant(longest));

    longest[ID_TENANT_MAX] = '\0';
    assert_true(id_is_tenant(longest));
    assert_false(id_is_tenant(""));
    assert_false(id_is_tenant("A"));
    assert_false(id_is_tenant("a b"));
    assert_false(id_is_tenant("a/b"));
    assert_false(id_is_tenant(NULL));
}

static void test_hex_goes_both_ways_and_refuses_the_rest(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {0, 1, 0x7f, 0x80, 0xfe, 0xff};
    char text[2 * sizeof bytes + 1];
    hex_encode(bytes, sizeof bytes, text);
    assert_string_equal(text, "00017f80feff");

    uint8_t back[sizeof bytes];
    assert_int_equal(hex_decode("00017F80feFF", back, sizeof back), 0);
    assert_memory_equal(back, bytes, sizeof back);

    memset(back, 0x55, sizeof back);
    static const char *const bad[] = {"",
                                      "00017f80fe",
                                      "00017f80fef",
                                      "00017f80feff00",
                                      "00017f80fefg",
                                      "00017f80fe f",
                                      "+0017f80feff"};
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(hex_decode(bad[i], back, sizeof back), -1);
    for (size_t i = 0; i < sizeof back; i++)
        assert_int_equal(back[i], 0x55);
}

static void test_times_go_both_ways(void **state)
{
    (void)state;
    static const struct {
        uint64_t ms;
        const char *text;
    } rows[] = {
        {0, "1970-01-01T00:00:00.000Z"},
        {1, "1970-01-01T00:00:00.001Z"},
        {951782399999, "2000-02-28T23:59:59.999Z"},
        {951782400000, "2000-02-29T00:00:00.000Z"},
        {951868800000, "2000-03-01T00:00:00.000Z"},
        {1709251199000, "2024-02-29T23:59:59.000Z"},
        {1735689599999, "2024-12-31T23:59:59.999Z"},
        {1767323045678, "2026-01-02T03:04:05.678Z"},
        {4107542400000, "2100-03-01T00:00:00.000Z"},
        {253402300799999, "9999-12-31T23:59:59.999Z"},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[TIME_TEXT_LEN + 1];
        time_format_ms(rows[i].ms, text);
        assert_string_equal(text, rows[i].text);
        uint64_t ms = 0;
        assert_int_equal(time_parse_ms("t", rows[i].text, &ms, NULL), 0);
        assert_true(ms == rows[i].ms);
    }

    char text[TIME_TEXT_LEN + 1];
    time_format_ms(UINT64_MAX, text);
    assert_string_equal(text, "9999-12-31T23:59:59.999Z");

    /* Every day of 400 years, so that no rule of leap years is left out. */
    for (uint64_t day = 0; day < 146097; day++) {
        uint64_t ms = 0;
        time_format_ms(day * 86400000 + 86399999, text);
        assert_int_equal(time_parse_ms("t", text, &ms, NULL), 0);
        assert_true(ms == day * 86400000 + 86399999);
    }
}

static void test_the_c_library_agrees_about_times(void **state)
{
    (void)state;
    for (uint64_t s = 0; s < UINT64_C(253402300800); s += UINT64_C(86400) * 13 + 12347) {
        time_t t = (time_t)s;
        struct tm tm;
        char want[40], text[TIME_TEXT_LEN + 1];
        assert_non_null(gmtime_r(&t, &tm));
        strftime(want, sizeof want, "%Y-%m-%dT%H:%M:%S.000Z", &tm);
        time_format_ms(s * 1000, text);
        assert_string_equal(text, want);
    }
}

static void test_other_spellings_of_a_time_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t ms;
    } rows[] = {
        {"1970-01-01T00:00:01Z", 1000},
        {"1970-01-01t00:00:01z", 1000},
        {"1970-01-01T00:00:01.5Z", 1500},
        {"1970-01-01T00:00:01.123456789012345678901234567890Z", 1123},
        {"1970-01-01T02:00:00+01:30", 1800000},
        {"1969-12-31T23:30:00-01:00", UINT64_MAX}, /* the year is 1969, whatever the zone */
        {"1970-01-01T00:00:00-01:00", 3600000},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        uint64_t ms = UINT64_MAX;
        int failed = time_parse_ms("t", rows[i].text, &ms, NULL);
        assert_int_equal(failed, rows[i].ms == UINT64_MAX ? -1 : 0);
        assert_true(ms == rows[i].ms);
    }
}

static void test_what_is_no_time_is_refused_and_named(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "now",
        "1970-01-01",
        "1970-01-01T00:00:00",
        "1970-01-01T00:00:00.Z",
        "1970-01-01 00:00:00Z",
        "1970-01-01T00:00:00Z ",
        " 1970-01-01T00:00:00Z",
        "1970-13-01T00:00:00Z",
        "1970-00-01T00:00:00Z",
        "1970-01-00T00:00:00Z",
        "1970-01-32T00:00:00Z",
        "1970-04-31T00:00:00Z",
        "1970-02-29T00:00:00Z",
        "2100-02-29T00:00:00Z",
        "1970-01-01T24:00:00Z",
        "1970-01-01T00:60:00Z",
        "1970-01-01T00:00:60Z",
        "1970-01-01T00:00:00+1:00",
        "1970-01-01T00:00:00+24:00",
        "1970-01-01T00:00:00+00:60",
        "1970-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-00:01",
        "10000-01-01T00:00:00Z",
        "+970-01-01T00:00:00Z",
    };

    for (size_t i = 0; i < COUNT(bad); i++) {
        uint64_t ms = 77;
        struct pd_err e = {0};
        assert_int_equal(time_parse_ms("expires_at", bad[i], &ms, &e), -1);
        assert_int_equal(e.code, PD_INVALID);
        assert_non_null(strstr(e.msg, "expires_at"));
        assert_non_null(strstr(e.msg, bad[i]));
        assert_true(ms == 77);
    }
}

static void test_siphash_follows_its_reference(void **state)
{
    (void)state;
    uint8_t key[16], data[64];
    for (unsigned i = 0; i < sizeof key; i++)
        key[i] = (uint8_t)i;
    for (unsigned i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)i;
    assert_true(siphash(key, data, 0) == UINT64_C(0x726fdb47dd0e0e31));
    assert_true(siphash(key, data, 1) == UINT64_C(0x74f839c593dc67fd));
    assert_true(siphash(key, data, 7) == UINT64_C(0xab0200f58b01d137));
    assert_true(siphash(key, data, 8) == UINT64_C(0x93f5f5799a932462));
    assert_true(siphash(key, data, 15) == UINT64_C(0xa129ca6149be45e5));
}

static void test_the_stored_hash_never_changes(void **state)
{
    (void)state;
    assert_true(hash_bytes("abc", 3) == hash_bytes("abc", 3));
    assert_true(hash_bytes("abc", 3) != hash_bytes("abd", 3));
    assert_true(hash_bytes("abc", 3) != hash_bytes("abc", 4));
    assert_true(hash_bytes(NULL, 0) != 0);
    /* It is in databases: another value here breaks every retry across an upgrade. */
    assert_true(hash_bytes("paddock", 7) == UINT64_C(0xc0f000b1ae15d434));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sandbox_ids_have_their_form_and_no_letter_is_favoured),
        cmocka_unit_test(test_keys_have_their_form),
        cmocka_unit_test(test_forms_are_told_apart),
        cmocka_unit_test(test_hex_goes_both_ways_and_refuses_the_rest),
        cmocka_unit_test(test_times_go_both_ways),
        cmocka_unit_test(test_the_c_library_agrees_about_times),
        cmocka_unit_test(test_other_spellings_of_a_time_are_read),
        cmocka_unit_test(test_what_is_no_time_is_refused_and_named),
        cmocka_unit_test(test_siphash_follows_its_reference),
        cmocka_unit_test(test_the_stored_hash_never_changes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
