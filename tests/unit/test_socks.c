/* What is said to a SOCKS5 proxy and what its answers mean, by vectors; whole and byte by byte. */
#include "gate/socks.h"
#include "unit.h"

#include <string.h>

static struct ip ip(const char *text)
{
    struct ip a;
    assert_true(ip_parse(text, &a));
    return a;
}

#define BYTES(text) (const uint8_t *)(text), sizeof(text) - 1

static void expect_out(const struct socks *s, const uint8_t *data, size_t len)
{
    assert_int_equal(s->out_len, len);
    assert_memory_equal(s->out, data, len);
}

/* Gives it an answer in pieces of `step` bytes, as far as it wants them. */
static enum socks_step give(struct socks *s, const uint8_t *data, size_t len, size_t step)
{
    enum socks_step r = SOCKS_MORE;

    while (len && r == SOCKS_MORE) {
        size_t n = step < len ? step : len;
        if (n > socks_wants(s))
            n = socks_wants(s);
        assert_int_not_equal(n, 0);
        r = socks_take(s, data, n);
        data += n;
        len -= n;
    }
    assert_true(r != SOCKS_MORE ? len == 0 : true);
    return r;
}

static void test_a_name_without_a_login(void **state)
{
    (void)state;
    for (size_t step = 1; step < 12; step++) {
        struct socks s;
        assert_true(socks_begin(&s, &(struct socks_target){.name = "a.example", .port = 443}));
        expect_out(&s, BYTES("\5\1\0"));
        assert_int_equal(give(&s, BYTES("\5\0"), step), SOCKS_SAY);
        expect_out(&s, BYTES("\5\1\0\3\11a.example\1\273"));
        assert_int_equal(give(&s, BYTES("\5\0\0\1\1\2\3\4\0\120"), step), SOCKS_DONE);
        assert_int_equal(socks_wants(&s), 0);
    }
}

static void test_addresses_and_a_login(void **state)
{
    (void)state;
    struct socks s;
    struct socks_target to = {
        .address = ip("203.0.113.7"), .port = 80, .user = "me", .password = "pass"};

    assert_true(socks_begin(&s, &to));
    expect_out(&s, BYTES("\5\2\0\2"));
    assert_int_equal(give(&s, BYTES("\5\2"), 1), SOCKS_SAY);
    expect_out(&s, BYTES("\1\2me\4pass"));
    assert_int_equal(give(&s, BYTES("\1\0"), 1), SOCKS_SAY);
    expect_out(&s, BYTES("\5\1\0\1\313\0\161\7\0\120"));
    assert_int_equal(give(&s, BYTES("\5\0\0\3\4host\0\1"), 3), SOCKS_DONE);

    /* A proxy that wants no login although there is one; a password may be empty. */
    to = (struct socks_target){.address = ip("2001:db8::1"), .port = 1, .user = "u"};
    assert_true(socks_begin(&s, &to));
    assert_int_equal(give(&s, BYTES("\5\0"), 2), SOCKS_SAY);
    expect_out(&s, BYTES("\5\1\0\4\x20\1\xd\xb8\0\0\0\0\0\0\0\0\0\0\0\1\0\1"));
    assert_int_equal(give(&s, BYTES("\5\0\0\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), 22),
                     SOCKS_DONE);
    assert_true(socks_begin(&s, &to));
    assert_int_equal(give(&s, BYTES("\5\2"), 2), SOCKS_SAY);
    expect_out(&s, BYTES("\1\1u\0"));
}

static void test_what_is_no_answer_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
        const char *why;
    } replies[] =
        {
            {"HT", 2, "does not speak SOCKS5"},
            {"\5\377", 2, "wants a user"},
            {"\5\2", 2, "wants a user"},
            {"\4\0", 2, "does not speak SOCKS5"},
        },
      ends[] = {
          {"\5\1\0\1\0", 5, "failed"},
          {"\5\2\0\1\0", 5, "not allow"},
          {"\5\5\0\1\0", 5, "refused"},
          {"\5\377\0\1\0", 5, "refused it"},
          {"\5\0\0\2\0", 5, "does not speak SOCKS5"},
          {"\5\0\1\1\0", 5, "does not speak SOCKS5"},
          {"\0\0\0\1\0", 5, "does not speak SOCKS5"},
      };
    struct socks_target to = {.name = "a.example", .port = 443};
    struct socks s;

    for (size_t i = 0; i < COUNT(replies); i++) {
        assert_true(socks_begin(&s, &to));
        assert_int_equal(give(&s, (const uint8_t *)replies[i].bytes, replies[i].len, 2), SOCKS_BAD);
        assert_non_null(strstr(s.why, replies[i].why));
        assert_int_equal(socks_wants(&s), 0);
    }
    for (size_t i = 0; i < COUNT(ends); i++) {
        assert_true(socks_begin(&s, &to));
        assert_int_equal(give(&s, BYTES("\5\0"), 2), SOCKS_SAY);
        assert_int_equal(give(&s, (const uint8_t *)ends[i].bytes, ends[i].len, 5), SOCKS_BAD);
        assert_non_null(strstr(s.why, ends[i].why));
    }

    to.user = "me";
    assert_true(socks_begin(&s, &to));
    assert_int_equal(give(&s, BYTES("\5\2"), 2), SOCKS_SAY);
    assert_int_equal(give(&s, BYTES("\1\1"), 2), SOCKS_BAD);
    assert_non_null(strstr(s.why, "password"));
}

static void test_words_have_their_length(void **state)
{
    (void)state;
    char longest[258];
    struct socks s;

    memset(longest, 'a', sizeof longest);
    longest[257] = 0;
    assert_false(socks_begin(&s, &(struct socks_target){.name = longest, .port = 1}));
    assert_false(socks_begin(&s, &(struct socks_target){.name = "", .port = 1}));
    assert_false(socks_begin(&s, &(struct socks_target){.name = "a", .user = ""}));
    assert_false(
        socks_begin(&s, &(struct socks_target){.name = "a", .user = "u", .password = longest}));
    longest[255] = 0;
    struct socks_target to = {.name = longest, .port = 1, .user = longest, .password = longest};
    assert_true(socks_begin(&s, &to));
    assert_int_equal(give(&s, BYTES("\5\2"), 2), SOCKS_SAY);
    assert_int_equal(s.out_len, 3 + 2 * 255);
    assert_int_equal(give(&s, BYTES("\1\0"), 2), SOCKS_SAY);
    assert_int_equal(s.out_len, 5 + 255 + 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_name_without_a_login),
        cmocka_unit_test(test_addresses_and_a_login),
        cmocka_unit_test(test_what_is_no_answer_is_refused),
        cmocka_unit_test(test_words_have_their_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
