/* Workers on trees: the digest by which two are compared. */
#include "worker_run.h"

#include <string.h>

/* The digest as text; "more" where there is none because of the bounds. In one of two buffers. */
static const char *digest(struct bench *b, const char *entries, const char *bytes,
                          const char *without_hidden)
{
    static char texts[2][65];
    static unsigned turn;
    char *text = texts[turn++ % 2];
    struct job j = job_start(b, OP("digest", "t", entries, bytes, without_hidden));
    struct record r = job_record(&j);

    if (r.kind == RECORD_MORE) {
        snprintf(text, 65, "more");
    } else {
        assert_int_equal(r.kind, RECORD_VALUE);
        assert_string_equal(r.value.name, "sha256");
        assert_int_equal(r.value.len, 32);
        for (unsigned i = 0; i < 32; i++)
            snprintf(text + 2 * i, 3, "%02x", r.value.data[i]);
        assert_int_equal(job_record(&j).kind, RECORD_END);
    }
    assert_int_equal(job_end(b, &j), 0);
    return text;
}

#define WHOLE(b) digest(b, "1000", "1000000", "0")
#define TREE     "mkdir -p t/d/e; echo one >t/a; echo two >t/d/b; ln -s a t/l; mkfifo t/f; "

static void test_the_same_tree_has_the_same(void **state)
{
    struct bench *b = *state;

    SHELL(b, TREE "chown -R %u t", b->uid);
    char first[65];
    snprintf(first, sizeof first, "%s", WHOLE(b));
    SHELL(b,
          "rm -r t; umask 077; mkdir -m 755 t; mkfifo -m 644 t/f; mkdir -m 755 t/d; ln -s a t/l; "
          "mkdir -m 755 t/d/e; echo two >t/d/b; echo one >t/a; chmod 644 t/a t/d/b; touch -d "
          "2001-01-01 t/a; chown -R %u t",
          b->uid);
    assert_string_equal(WHOLE(b), first);
}

static void test_every_change_is_seen(void **state)
{
    struct bench *b = *state;
    static const char *const changes[] = {
        "echo 0ne >t/a",
        ": >t/a",
        "rm t/a",
        "mv t/a t/A",
        "mv t/d/b t/b",
        "chmod 600 t/a",
        "chmod 700 t/d/e",
        "touch t/new",
        "mkdir t/d/e/g",
        "ln -sfn b t/l",
        "rm t/l; echo one >t/l",
        "rm t/f; touch t/f",
        "rmdir t/d/e; touch t/d/e",
        "printf 'one\\ntwo\\n' >t/a; : >t/d/b",
    };

    for (size_t i = 0; i < COUNT(changes); i++) {
        SHELL(b, "rm -rf t; " TREE "chown -R %u t", b->uid);
        char before[65];
        snprintf(before, sizeof before, "%s", WHOLE(b));
        SHELL(b, "%s; chown -hR %u t", changes[i], b->uid);
        if (!strcmp(WHOLE(b), before))
            fail_msg("not seen: %s", changes[i]);
    }
}

static void test_bounds(void **state)
{
    struct bench *b = *state;

    SHELL(b, TREE "chown -R %u t", b->uid); /* six entries, eight bytes */
    assert_string_not_equal(digest(b, "6", "8", "0"), "more");
    assert_string_equal(digest(b, "5", "8", "0"), "more");
    assert_string_equal(digest(b, "6", "7", "0"), "more");
    SHELL(b, "rm -r t; mkdir t");
    assert_string_not_equal(digest(b, "0", "0", "0"), "more");
    expect_refusal(b, OP("digest", "t", "x", "0", "0"), PD_INVALID, "entries");
    expect_refusal(b, OP("digest", "t", "0", "0", "2"), PD_INVALID, "hidden");
    expect_refusal(b, OP("digest", "gone", "0", "0", "0"), PD_NOT_FOUND, "'gone'");
}

static void test_hidden_names_of_the_top(void **state)
{
    struct bench *b = *state;

    SHELL(b, TREE "chown -R %u t", b->uid);
    char plain[65], without[65];
    snprintf(plain, sizeof plain, "%s", WHOLE(b));
    snprintf(without, sizeof without, "%s", digest(b, "1000", "1000", "1"));
    assert_string_equal(plain, without);

    SHELL(b, "mkdir t/.cache; touch t/.cache/x t/.profile; chown -R %u t", b->uid);
    assert_string_not_equal(WHOLE(b), plain);
    assert_string_equal(digest(b, "1000", "1000", "1"), plain);
    SHELL(b, "touch t/d/.hidden");
    assert_string_not_equal(digest(b, "1000", "1000", "1"), plain);
}

/* It goes on without what it may not read, and says the same each time. */
static void test_what_may_not_be_read(void **state)
{
    struct bench *b = *state;
    if (b->uid == geteuid())
        skip();

    SHELL(b, TREE "chown -R %u t; chmod 0 t/a t/d", b->uid);
    char first[65];
    snprintf(first, sizeof first, "%s", WHOLE(b));
    assert_string_not_equal(first, "more");
    assert_string_equal(WHOLE(b), first);
    SHELL(b, "chmod 644 t/a");
    assert_string_not_equal(WHOLE(b), first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_same_tree_has_the_same, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(test_every_change_is_seen, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_bounds, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_hidden_names_of_the_top, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_what_may_not_be_read, bench_setup, bench_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
