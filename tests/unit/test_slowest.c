#include "unit.h"

#include "base/banned.h"
#include "core/slowest.h"

#define HOUR 3600000u

static void note(struct slowest *t, char name, uint64_t at_ms, uint64_t took_us)
{
    struct slow_creation c = {.id = {name}, .at_ms = at_ms, .took_us = took_us};
    slowest_note(t, &c);
}

/* Their names, slowest first. */
static const char *names(const struct slowest *t, uint64_t now_ms)
{
    static char text[SLOWEST + 1];
    struct slow_creation found[SLOWEST];
    unsigned count = slowest_get(t, now_ms, found);

    for (unsigned i = 0; i < count; i++)
        text[i] = found[i].id[0];
    text[count] = 0;
    return text;
}

static void test_the_slowest_are_kept(void **state)
{
    (void)state;
    struct slowest t = {0};
    uint64_t now = 100 * (uint64_t)HOUR;
    assert_string_equal(names(&t, now), "");

    note(&t, 'a', now, 30);
    note(&t, 'b', now, 50);
    assert_string_equal(names(&t, now), "ba");

    for (char c = 'c'; c <= 'f'; c++)
        note(&t, c, now, 40 + (uint64_t)(c - 'c'));
    assert_string_equal(names(&t, now), "bfedc");

    note(&t, 'g', now, 39);
    assert_string_equal(names(&t, now), "bfedc");
    note(&t, 'h', now, 60);
    assert_int_equal(names(&t, now)[0], 'h');
    assert_int_equal(strlen(names(&t, now)), SLOWEST);
}

static void test_what_is_an_hour_old_makes_room(void **state)
{
    (void)state;
    struct slowest t = {0};
    uint64_t then = 100 * (uint64_t)HOUR, now = then + HOUR + 1;

    for (char c = 'a'; c <= 'e'; c++)
        note(&t, c, then, 1000);
    assert_int_equal(strlen(names(&t, then + HOUR)), SLOWEST);
    assert_string_equal(names(&t, now), "");
    note(&t, 'x', now, 1);
    assert_string_equal(names(&t, now), "x");

    /* A clock that was set back loses none. */
    assert_int_equal(strlen(names(&t, then)), SLOWEST);
    note(&t, 'y', then, 2000);
    assert_int_equal(names(&t, then)[0], 'y');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_slowest_are_kept),
        cmocka_unit_test(test_what_is_an_hour_old_makes_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
