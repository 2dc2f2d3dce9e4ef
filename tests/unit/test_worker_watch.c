/* Workers that watch as clients of other protocols want it: told as the kernel does, with entries,
 * or when asked. test_worker_search.c has the plain ones. */
#include "worker_run.h"

static void write_text(struct bench *b, const char *path, const char *text)
{
    char full[256];
    snprintf(full, sizeof full, "%s/%s", b->dir, path);
    int fd = open(full, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
    close(fd);
}

/* The next event, relative to the bench's directory, as "KIND PATH"; "mark" for a mark, "more" when
 * there is more. Details are counted. */
static unsigned details;
static const char *next_event(struct bench *b, struct job *j)
{
    static char out[512];
    size_t n = strlen(b->dir);
    struct record r = job_record(j);

    while (r.kind == RECORD_DETAIL) {
        details++;
        r = job_record(j);
    }
    assert_int_equal(r.kind, RECORD_EVENT);

    if (r.event.kind == EVENT_MARK)
        return r.event.is_dir ? "more" : "mark";
    assert_string_equal(r.event.path2, "");
    assert_int_equal(strncmp(r.event.path, b->dir, n), 0);
    snprintf(out, sizeof out, "%s %s", event_kind_name(r.event.kind), r.event.path + n + 1);
    return out;
}

static void expect_next(struct bench *b, struct job *j, const char *what)
{
    assert_string_equal(next_event(b, j), what);
}

static struct job watch_start(struct bench *b, const char *recursive, const char *how)
{
    SHELL(b, "mkdir -p w; chmod 777 w");
    struct job j = job_start(b, OP("watch", "w", recursive, how));
    expect_kind(&j, RECORD_ENTRY, "an entry");
    return j;
}

static void ask(struct job *j)
{
    assert_int_equal(write(j->in, "D", 1), 1);
}

static void test_each_half_of_a_move(void **state)
{
    struct bench *b = *state;
    struct job j = watch_start(b, "1", "x");
    write_text(b, "w/a", "x");
    expect_next(b, &j, "created w/a");
    expect_next(b, &j, "modified w/a");

    SHELL(b, "mv w/a w/b");
    expect_next(b, &j, "moved w/a");
    expect_next(b, &j, "created w/b");

    SHELL(b, "chmod 600 w/b; mv w/b .");
    expect_next(b, &j, "attributes w/b");
    expect_next(b, &j, "moved w/b");

    SHELL(b, "mv b w/c; rm w/c");
    expect_next(b, &j, "created w/c");
    expect_next(b, &j, "removed w/c");

    /* A directory is known by its new name, and forgotten when it leaves. */
    SHELL(b, "mkdir w/d; chmod 777 w/d");
    expect_next(b, &j, "created w/d");

    const char *next = next_event(b, &j);
    assert_string_equal(next, "attributes w/d");
    SHELL(b, "mv w/d w/e");
    expect_next(b, &j, "moved w/d");
    expect_next(b, &j, "created w/e");

    SHELL(b, "mkdir w/e/f");
    expect_next(b, &j, "created w/e/f");
    SHELL(b, "mv w/e .");
    expect_next(b, &j, "moved w/e");

    usleep(100000); /* the other half does not come */
    SHELL(b, "touch e/unseen");
    SHELL(b, "mv w gone");
    expect_next(b, &j, "moved w");
    expect_kind(&j, RECORD_END, "the end");
    assert_int_equal(job_end(b, &j), 0);
}

static void test_files_that_are_replaced(void **state)
{
    struct bench *b = *state;
    struct job j = watch_start(b, "0", "xp");
    put_file(b, "w/f", "one");
    ask(&j);
    expect_next(b, &j, "created w/f");
    expect_next(b, &j, "mark");

    put_file(b, "w/f", "two"); /* nobody hears of the file that took its place, but of the write */
    ask(&j);
    expect_next(b, &j, "modified w/f");
    expect_next(b, &j, "mark");

    /* As the other protocol uploads: what it is told of a new file, too. */
    struct job up = job_start(b, OP("upload", "w/g", "-"));
    assert_int_equal(fd_write_all(up.in, "x", 1), 0);

    fd_done(&up.in);
    assert_int_equal(write(up.go, "C", 1), 1);
    expect_kind(&up, RECORD_ENTRY, "an entry");
    job_end(b, &up);

    ask(&j);
    expect_next(b, &j, "created w/g");
    expect_next(b, &j, "attributes w/g");
    expect_next(b, &j, "modified w/g");
    expect_next(b, &j, "mark");

    /* Names that only look like it are names. */
    SHELL(b, "mkdir w/.paddock-x 'w/#12'; chmod 700 'w/#12'");
    ask(&j);
    expect_next(b, &j, "created w/.paddock-x");
    expect_next(b, &j, "created w/#12");
    expect_next(b, &j, "attributes w/#12");
    expect_next(b, &j, "mark");

    fd_done(&j.in); /* the asker goes away: the worker ends */
    assert_int_equal(job_end(b, &j), 0);
}

static void test_what_was_written_before_the_watch(void **state)
{
    struct bench *b = *state;
    SHELL(b, "mkdir -p n/m; echo x > n/m/f; touch n/empty; chmod -R a+rwX n");
    struct job j = watch_start(b, "1", "xp");
    SHELL(b, "mv n w/");
    ask(&j);
    expect_next(b, &j, "created w/n");
    expect_next(b, &j, "created w/n/empty");
    expect_next(b, &j, "created w/n/m");
    expect_next(b, &j, "created w/n/m/f");
    expect_next(b, &j, "modified w/n/m/f");
    expect_next(b, &j, "mark");

    write_text(b, "w/n/m/new", "x");
    ask(&j);
    expect_next(b, &j, "created w/n/m/new");
    expect_next(b, &j, "modified w/n/m/new");
    expect_next(b, &j, "mark");
    job_end(b, &j);
}

static void test_what_was_over_is_told(void **state)
{
    struct bench *b = *state;
    struct job j = watch_start(b, "0", "xp");

    for (int i = 0; i < 200; i++) {
        char name[32], want[48];
        snprintf(name, sizeof name, "w/%d", i);
        write_text(b, name, "x");
        ask(&j);
        snprintf(want, sizeof want, "created %s", name);
        expect_next(b, &j, want);
        snprintf(want, sizeof want, "modified %s", name);
        expect_next(b, &j, want);
        expect_next(b, &j, "mark");
    }

    /* Each question has its answer. */
    assert_int_equal(write(j.in, "DDD", 3), 3);
    for (int i = 0; i < 3; i++)
        expect_next(b, &j, "mark");

    /* Also when what was watched is gone. */
    SHELL(b, "rm -r w");
    ask(&j);
    while (strcmp(next_event(b, &j), "removed w") != 0)
        continue;
    expect_next(b, &j, "mark");

    ask(&j);
    expect_next(b, &j, "mark");
    fd_done(&j.in);
    assert_int_equal(job_end(b, &j), 0);
}

static void test_events_with_entries(void **state)
{
    struct bench *b = *state;
    struct job j = watch_start(b, "0", "xdp");
    write_text(b, "w/f", "abc");
    ask(&j);
    struct record r = expect_kind(&j, RECORD_DETAIL, "a detail");
    assert_non_null(strstr(r.detail.entry.path, "/w/f"));
    expect_next(b, &j, "created w/f");

    r = expect_kind(&j, RECORD_DETAIL, "a detail");
    assert_int_equal(r.detail.entry.size, 3);
    expect_next(b, &j, "modified w/f");
    expect_next(b, &j, "mark");

    details = 0;
    SHELL(b, "mv w/f w/g; rm w/g");
    ask(&j);
    expect_next(b, &j, "moved w/f");

    details = 0; /* the new name may have had one, if it was looked at in time */
    expect_next(b, &j, "created w/g");
    details = 0;
    expect_next(b, &j, "removed w/g");
    assert_int_equal(details, 0);
    job_end(b, &j);
}

/* More than is kept for who does not ask: bounded, told, and then it goes on. */
static void test_a_flood_that_nobody_asks_for(void **state)
{
    struct bench *b = *state;
    struct job j = watch_start(b, "0", "xp");
    char a[512], c[512], pad[201];

    memset(pad, 'p', 200);
    pad[200] = 0;
    snprintf(a, sizeof a, "%s/w/a%s", b->dir, pad);
    snprintf(c, sizeof c, "%s/w/c%s", b->dir, pad);
    close(open(a, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));

    unsigned told = 0, rounds = 0;
    int lost = 0;
    for (int i = 0; i < 40000; i++) {
        assert_int_equal(rename(a, c), 0);
        assert_int_equal(rename(c, a), 0);
    }

    for (const char *w = "more"; !lost || strcmp(w, "mark") != 0;) {
        if (!strcmp(w, "more") || !strcmp(w, "mark")) {
            assert_true(rounds++ < 64);
            ask(&j);
        }
        w = next_event(b, &j);
        if (!strncmp(w, "overflow", 8))
            lost++;
        told++;
    }

    assert_int_equal(lost, 1);
    assert_true(rounds > 2 && told < 160000);
    write_text(b, "w/after", "x");
    ask(&j);
    expect_next(b, &j, "created w/after");
    expect_next(b, &j, "modified w/after");
    expect_next(b, &j, "mark");
    job_end(b, &j);
}

static void test_what_cannot_be_watched(void **state)
{
    struct bench *b = *state;
    put_file(b, "f", "x");
    expect_refusal(b, OP("watch", "f", "0", "x"), PD_INVALID, "a regular file, not a directory");
    expect_refusal(b, OP("watch", "gone", "0", "xp"), PD_NOT_FOUND, "'gone'");
    expect_refusal(b, OP("watch", "f", "0", "z"), PD_INVALID, "x, d and p");
}

#define WITH_BENCH(test) cmocka_unit_test_setup_teardown(test, bench_setup, bench_teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_BENCH(test_each_half_of_a_move),
        WITH_BENCH(test_files_that_are_replaced),
        WITH_BENCH(test_what_was_written_before_the_watch),
        WITH_BENCH(test_what_was_over_is_told),
        WITH_BENCH(test_events_with_entries),
        WITH_BENCH(test_a_flood_that_nobody_asks_for),
        WITH_BENCH(test_what_cannot_be_watched),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
