/* Where UTF-8 is cut: never within a character that is there, and never more than three bytes off.
 */
#include "unit.h"

#include "base/character.h"

#include <string.h>

static void test_whole(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t whole;
    } rows[] = {
        {"", 0},
        {"abc", 3},
        {"a\xc3", 1},
        {"a\xc3\xa4", 3},
        {"a\xe2", 1},
        {"a\xe2\x82", 1},
        {"a\xe2\x82\xac", 4},
        {"\xf0\x9f\x98", 0},
        {"x\xf0", 1},
        {"x\xf0\x9f\x98", 1},
        {"\xf0\x9f\x98\x80", 4},
        {"\xe2", 0},
        /* What is no UTF-8 is not held back for ever: three bytes at most. */
        {"\x80\x80", 2},
        {"\x80\x80\x80\x80\x80", 5},
        {"a\xff", 1},
        {"\xffzz", 3},
    };

    for (size_t i = 0; i < COUNT(rows); i++)
        if (character_whole(rows[i].text, strlen(rows[i].text)) != rows[i].whole)
            fail_msg("row %zu: %zu", i, character_whole(rows[i].text, strlen(rows[i].text)));
}

static void test_rest(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t rest;
    } rows[] = {{"", 0},
                {"abc", 0},
                {"\xac", 1},
                {"\x82\xac", 2},
                {"\x9f\x98\x80", 3},
                {"\x80\x80\x80\x80", 3},
                {"\xe2\x82\xac", 0}};

    for (size_t i = 0; i < COUNT(rows); i++)
        if (character_rest(rows[i].text, strlen(rows[i].text)) != rows[i].rest)
            fail_msg("row %zu", i);
}

/* Cut anywhere, a text comes together again, and each part is whole characters. */
static void test_every_cut_of_a_text(void **state)
{
    (void)state;
    static const char text[] = "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80z\xe2\x82\xac";
    size_t len = sizeof text - 1;
    for (size_t cut = 0; cut <= len; cut++) {
        size_t whole = character_whole(text, cut), rest = character_rest(text + cut, len - cut);
        assert_true(whole <= cut && cut - whole <= 3);
        /* The cut is at the start of a character, or the two ends of one are found. */
        assert_int_equal((text[whole] & 0xc0) == 0x80, 0);
        assert_int_equal(cut + rest < len && (text[cut + rest] & 0xc0) == 0x80, 0);
        assert_int_equal(whole == cut, rest == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_rest),
        cmocka_unit_test(test_every_cut_of_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
