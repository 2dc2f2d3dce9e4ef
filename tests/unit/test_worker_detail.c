/* Workers of a real init: what is told of a file besides its stat, and directories that are made
 * on the way. */
#include "worker_run.h"

#include <signal.h>
#include <sys/xattr.h>

static struct record_detail stat_detail(struct bench *b, const char *path)
{
    struct record r = expect_answer(b, OP("stat", path, "1"), RECORD_DETAIL);
    return r.detail;
}

static void full(const struct bench *b, const char *name, char out[256])
{
    snprintf(out, 256, "%s/%s", b->dir, name);
}

static void test_links_are_followed_to_their_end(void **state)
{
    struct bench *b = *state;
    char path[256];
    put_file(b, "f", "hello");
    SHELL(b, "chmod 0640 f; ln -s f one; ln -s one two; mkdir d; ln -s d to-dir; ln -s no dangling;"
             "ln -s loop loop; mkfifo p; ln -s p to-fifo; ln -s /proc/1/root magic; rm -f gone");

    struct record_detail d = stat_detail(b, "f");
    assert_int_equal(d.entry.type, ENTRY_FILE);
    assert_int_equal(d.end_type, ENTRY_FILE);
    assert_int_equal(d.end_mode, 0640);
    assert_string_equal(d.end_path, "");

    d = stat_detail(b, "two");
    assert_int_equal(d.entry.type, ENTRY_SYMLINK);
    assert_string_equal(d.entry.target, "one");
    assert_int_equal(d.entry.size, 3);
    assert_int_equal(d.end_type, ENTRY_FILE);
    assert_int_equal(d.end_mode, 0640);

    full(b, "f", path);
    assert_string_equal(d.end_path, path);
    assert_int_equal(stat_detail(b, "to-dir").end_type, ENTRY_DIR);
    assert_int_equal(stat_detail(b, "to-fifo").end_type, ENTRY_FIFO);

    static const char *const nowhere[] = {"dangling", "loop", "magic"};
    for (size_t i = 0; i < COUNT(nowhere); i++) {
        d = stat_detail(b, nowhere[i]);
        assert_int_equal(d.entry.type, ENTRY_SYMLINK);
        assert_int_equal(d.end_type, ENTRY_TYPE_COUNT);
        assert_int_equal(d.end_mode, 0);
        assert_string_equal(d.end_path, "");
    }
    expect_refusal(b, OP("stat", "gone", "1"), PD_NOT_FOUND, "'gone'");
}

static void test_attributes(void **state)
{
    struct bench *b = *state;
    char path[256];
    const char *name, *value;
    uint32_t pos = 0;

    put_file(b, "f", "x");
    SHELL(b, "ln -s f l");
    full(b, "f", path);
    if (setxattr(path, "user.e2b.key", "v\xff", 2, 0) < 0)
        skip(); /* a file system that has none */
    assert_int_equal(setxattr(path, "user.other", "o", 1, 0), 0);
    assert_int_equal(setxattr(path, "user.e2b.nul", "a\0b", 3, 0), 0);
    assert_int_equal(setxattr(path, "user.e2b.", "nameless", 8, 0), 0);

    for (int i = 0; i < 2; i++) { /* of a link: what it leads to has */
        struct record r = expect_answer(b, OP("stat", i ? "l" : "f", "1"), RECORD_DETAIL);
        pos = 0;
        assert_int_equal(record_attr_next(&r.detail, &pos, &name, &value), 1);
        assert_string_equal(name, "key");
        assert_string_equal(value, "v\xff");
        assert_int_equal(record_attr_next(&r.detail, &pos, &name, &value), 0);
    }

    /* Nobody pays who did not ask. */
    expect_answer(b, OP("stat", "f"), RECORD_ENTRY);
}

static void test_lists_with_details(void **state)
{
    struct bench *b = *state;
    static const char *const names[] = {"a", "a/z", "b", "l"};
    SHELL(b, "mkdir -p t/a; touch t/a/z t/b; ln -s a t/l");

    struct job j = job_start(b, OP("list", "t", "3", "10", "", "1"));
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[256], name[64];
        struct record r = expect_kind(&j, RECORD_DETAIL, names[i]);
        snprintf(name, sizeof name, "t/%s", names[i]);
        full(b, name, path);
        assert_string_equal(r.detail.entry.path, path);
        assert_int_equal(r.detail.end_type,
                         !strcmp(names[i], "a") || !strcmp(names[i], "l") ? ENTRY_DIR : ENTRY_FILE);
    }
    expect_kind(&j, RECORD_END, "the end");
    job_end(b, &j);
}

static void test_new_directories_with_their_parents(void **state)
{
    struct bench *b = *state;
    struct record r = expect_answer(b, OP("mkdir", "a/b/c", "2", "0755", "1"), RECORD_DETAIL);
    assert_int_equal(r.detail.end_type, ENTRY_DIR);
    assert_int_equal(r.detail.entry.mode, 0755);

    put_file(b, "f", "x");
    SHELL(b, "ln -s a to-dir; ln -s no dangling");
    expect_refusal(b, OP("mkdir", "a/b/c", "2", "0755"), PD_CONFLICT, "'a/b/c'");
    expect_refusal(b, OP("mkdir", "to-dir", "2", "0755"), PD_CONFLICT, "'to-dir'");
    expect_refusal(b, OP("mkdir", "dangling", "2", "0755"), PD_CONFLICT, "'dangling'");
    expect_refusal(b, OP("mkdir", "f", "2", "0755"), PD_INVALID, "a regular file");
    expect_refusal(b, OP("mkdir", "f/g", "2", "0755"), PD_INVALID, "not a directory");
    expect_refusal(b, OP("mkdir", "f", "3", "0755"), PD_INVALID, "parents");
}

static void test_moves_make_the_directories_of_their_end(void **state)
{
    struct bench *b = *state;
    put_file(b, "f", "one");
    put_file(b, "g", "two");
    expect_refusal(b, OP("move", "f", "x/y/z", "1"), PD_NOT_FOUND, "'x/y/z'");
    struct record r = expect_answer(b, OP("move", "f", "x/y/z", "2", "1"), RECORD_DETAIL);
    assert_int_equal(r.detail.entry.size, 3);
    expect_answer(b, OP("move", "g", "x/y/z", "2"), RECORD_ENTRY);
    expect_file(b, "x/y/z", "two");
    /* Without a source nothing is made. */
    expect_refusal(b, OP("move", "no", "p/q", "2"), PD_NOT_FOUND, "'no'");
    expect_refusal(b, OP("stat", "p"), PD_NOT_FOUND, "'p'");
}

#define WITH_BENCH(test) cmocka_unit_test_setup_teardown(test, bench_setup, bench_teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_BENCH(test_links_are_followed_to_their_end),
        WITH_BENCH(test_attributes),
        WITH_BENCH(test_lists_with_details),
        WITH_BENCH(test_new_directories_with_their_parents),
        WITH_BENCH(test_moves_make_the_directories_of_their_end),
    };
    signal(SIGPIPE, SIG_IGN); /* a worker that refuses is gone before its input is */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
