/* Following a command: every byte once, characters whole, what was forgotten said, and the end. */
#include "stage.h"

#include "core/follow.h"

#include <poll.h>

static int setup(void **state)
{
    return stage_begin(state, NULL);
}

/* Reads from now on until `want` bytes are there or the process has ended and all is read. */
static size_t take(struct follow *f, char *out, size_t want, uint64_t *skipped)
{
    struct pd_err e = {0};
    deadline d = deadline_in(PATIENCE);
    size_t len = 0;

    while (len < want && !deadline_passed(d)) {
        char piece[1000];
        follow_look(f);
        ssize_t n = follow_read(f, STREAM_OUT, piece, sizeof piece, &e);
        if (n < 0)
            fail_msg("read: %s", e.msg);
        if (skipped)
            *skipped += f->skipped;
        else
            assert_int_equal(f->skipped, 0);

        memcpy(out + len, piece, (size_t)n);
        len += (size_t)n;
        if (n == 0 && f->ended)
            break;
        if (n == 0)
            assert_int_equal(follow_wait(f, -1, 0, d, &e), 0);
    }

    return len;
}

static int kept_of(struct stage *g, const struct session *s)
{
    atomic_int *out = &init_of(g, s)->kept;
    for (deadline d = deadline_in(PATIENCE); atomic_load(out) < 0; usleep(200))
        assert_false(deadline_passed(d));
    return atomic_load(out);
}

static void test_every_byte_once(void **state)
{
    struct stage *g = *state;
    struct pd_err e = {0};
    struct session *s = session_make(g, "acme", 0);
    static char out[300001];

    for (unsigned flags = 0; flags < 4; flags++) {
        struct process *p = start_with(s, "print", "300000", 0);
        struct follow f;
        assert_int_equal(follow_begin(&f, p, NULL, flags, &e), 0);
        assert_int_equal(take(&f, out, sizeof out, NULL), 300000);
        assert_true(f.ended);
        assert_int_equal(f.info.exit_code, 0);
        for (size_t i = 0; i < 300000; i++)
            assert_int_equal(out[i], 'x');
        follow_end(&f);

        /* From the middle, after the end. */
        uint64_t from[STREAM_COUNT] = {299990, 0};
        assert_int_equal(follow_begin(&f, p, from, flags, &e), 0);
        assert_int_equal(take(&f, out, sizeof out, NULL), 10);
        follow_end(&f);
        process_unref(p);
    }

    session_unref(s);
}

static void test_characters_are_whole(void **state)
{
    struct stage *g = *state;
    struct pd_err e = {0};
    struct session *s = session_make(g, "acme", 0);
    struct process *p = start_with(s, "sleep", NULL, 0);
    struct follow f;
    char out[100];
    int pipe = kept_of(g, s);
    assert_int_equal(follow_begin(&f, p, NULL, FOLLOW_TEXT, &e), 0);

    assert_int_equal(write(pipe, "a\xe2\x82", 3), 3);
    assert_int_equal(take(&f, out, 1, NULL), 1);
    assert_int_equal(out[0], 'a');

    /* The first half alone is no piece, however long one waits. */
    struct process_info i;
    do
        process_get(p, &i, NULL);
    while (i.size[STREAM_OUT] < 3);
    follow_look(&f);
    assert_int_equal(follow_read(&f, STREAM_OUT, out, sizeof out, &e), 0);
    assert_int_equal(f.offset[STREAM_OUT], 1);

    assert_int_equal(write(pipe, "\xac!", 2), 2);
    assert_int_equal(take(&f, out, 4, NULL), 4);
    assert_memory_equal(out, "\xe2\x82\xac!", 4);

    /* One that never becomes whole is told at the end. */
    assert_int_equal(write(pipe, "\xe2\x82", 2), 2);
    assert_int_equal(process_signal(p, SIGTERM, &e), 0);
    assert_int_equal(take(&f, out, sizeof out, NULL), 2);
    assert_memory_equal(out, "\xe2\x82", 2);
    assert_true(f.ended);

    follow_end(&f);
    process_unref(p);
    session_unref(s);
}

static void test_what_was_forgotten_is_said(void **state)
{
    struct stage *g = *state;
    struct pd_err e = {0};
    struct session *s = session_make(g, "acme", 0);
    static char out[300001];
    struct process *p = start_with(s, "print", "300000", 0);
    await_end(p, 0);
    struct follow plain, holds;
    assert_int_equal(follow_begin(&plain, p, NULL, 0, &e), 0);
    assert_int_equal(take(&plain, out, 1000, NULL), 1000);
    assert_int_equal(follow_begin(&holds, p, plain.offset, FOLLOW_HOLDS, &e), 0);
    /* Nothing is forgotten that somebody must not miss. */
    lock_take(&p->lock);
    stream_shrink(&p->streams[STREAM_OUT], KEPT_LEAST);
    lock_release(&p->lock);
    assert_int_equal(take(&holds, out, sizeof out, NULL), 299000);
    follow_end(&holds);

    lock_take(&p->lock);
    stream_shrink(&p->streams[STREAM_OUT], KEPT_LEAST);
    lock_release(&p->lock);
    uint64_t skipped = 0;
    size_t len = take(&plain, out, sizeof out, &skipped);
    assert_true(skipped > 0 && len >= KEPT_LEAST);
    assert_int_equal(1000 + skipped + len, 300000);
    follow_end(&plain);
    process_unref(p);
    session_unref(s);
}

/* Children hold the pipe open and write on: that is not told, and keeps nobody. */
static void test_nothing_comes_after_the_end(void **state)
{
    struct stage *g = *state;
    struct pd_err e = {0};
    struct session *s = session_make(g, "acme", 0);
    struct process *p = start_with(s, "sleep", NULL, 0);
    struct follow f;
    char out[100];
    int pipe = kept_of(g, s);
    assert_int_equal(follow_begin(&f, p, NULL, 0, &e), 0);
    assert_int_equal(write(pipe, "before", 6), 6);
    assert_int_equal(process_signal(p, SIGTERM, &e), 0);
    await_end(p, 0);
    follow_look(&f);
    assert_true(f.ended);

    assert_int_equal(write(pipe, "after", 5), 5);
    struct process_info i;
    deadline d = deadline_in(PATIENCE);
    do
        process_get(p, &i, NULL);
    while (i.size[STREAM_OUT] < 11 && !deadline_passed(d));
    assert_int_equal(i.size[STREAM_OUT], 11);
    assert_int_equal(take(&f, out, sizeof out, NULL), 6);
    assert_memory_equal(out, "before", 6);
    follow_end(&f);
    process_unref(p);
    session_unref(s);
}

static void test_waiting(void **state)
{
    struct stage *g = *state;
    struct pd_err e = {0};
    struct session *s = session_make(g, "acme", 0);
    struct process *p = start_with(s, "sleep", NULL, 0);
    struct follow f;
    int other[2];

    assert_int_equal(pipe2(other, O_CLOEXEC), 0);
    assert_int_equal(follow_begin(&f, p, NULL, 0, &e), 0);
    (void)kept_of(g, s);

    do
        follow_look(&f);
    while (!f.info.pid || !f.info.stored);
    follow_look(&f); /* the last news may have come while it was looked for */

    uint64_t began = clock_now();
    assert_int_equal(follow_wait(&f, other[0], POLLIN, deadline_in(50 * NS_PER_MS), &e), 0);
    assert_true(clock_now() - began >= 45 * NS_PER_MS);

    assert_int_equal(write(other[1], "x", 1), 1);
    assert_int_equal(follow_wait(&f, other[0], POLLIN, deadline_in(PATIENCE), &e), 1);
    assert_int_equal(process_signal(p, SIGTERM, &e), 0);

    deadline d = deadline_in(PATIENCE);
    for (follow_look(&f); !f.ended && !deadline_passed(d); follow_look(&f))
        assert_int_equal(follow_wait(&f, -1, 0, d, &e), 0);
    assert_true(f.ended);

    follow_end(&f);
    close(other[0]);
    close(other[1]);
    process_unref(p);
    session_unref(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_byte_once, setup, stage_teardown),
        cmocka_unit_test_setup_teardown(test_characters_are_whole, setup, stage_teardown),
        cmocka_unit_test_setup_teardown(test_what_was_forgotten_is_said, setup, stage_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_comes_after_the_end, setup, stage_teardown),
        cmocka_unit_test_setup_teardown(test_waiting, setup, stage_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
