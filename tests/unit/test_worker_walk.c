/* Workers on trees: list, remove, copy; odd, deep, wide and moving ones. */
#include "worker_run.h"

/* All pages of a listing, as "path\n" lines below the root, in one static buffer. */
static const char *list_all(struct bench *b, const char *root, const char *depth, const char *limit,
                            unsigned *ret_pages)
{
    static char out[1 << 20];
    static char cursor[RECORD_PATH_MAX + 1];
    size_t n = 0;
    unsigned pages = 0;
    out[0] = cursor[0] = 0;

    for (;;) {
        struct job j = job_start(b, OP("list", root, depth, limit, cursor));
        struct record r;
        pages++;

        while ((r = job_record(&j)).kind == RECORD_ENTRY) {
            assert_int_equal(strncmp(r.entry.path, b->dir, strlen(b->dir)), 0);
            n += (size_t)snprintf(out + n, sizeof out - n, "%s%s\n",
                                  r.entry.path + strlen(b->dir) + 1,
                                  r.entry.type == ENTRY_DIR ? "/" : "");
        }

        int more = r.kind == RECORD_MORE;
        if (!more && r.kind != RECORD_END)
            show_error(&r, "MORE or END");
        if (more)
            snprintf(cursor, sizeof cursor, "%s", r.more.cursor);
        assert_int_equal(job_end(b, &j), 0);
        if (!more)
            break;
    }

    if (ret_pages)
        *ret_pages = pages;
    return out;
}

#define SMALL_TREE "a/\na/b/\na/b/c\na/z\na.txt\nb\nlink\n"

static void make_small_tree(struct bench *b)
{
    SHELL(b, "mkdir -p a/b; touch a/b/c a/z a.txt b; ln -s a link");
}

static void test_list_is_depth_first_and_sorted(void **state)
{
    struct bench *b = *state;
    make_small_tree(b);
    assert_string_equal(list_all(b, ".", "100", "1000", NULL), SMALL_TREE);
    assert_string_equal(list_all(b, ".", "1", "1000", NULL), "a/\na.txt\nb\nlink\n");
    assert_string_equal(list_all(b, ".", "2", "1000", NULL), "a/\na/b/\na/z\na.txt\nb\nlink\n");
    assert_string_equal(list_all(b, "a/b", "9", "1000", NULL), "a/b/c\n");
    assert_string_equal(list_all(b, "link/b", "9", "1000", NULL), "link/b/c\n");
}

static void test_list_in_pages_of_any_size(void **state)
{
    struct bench *b = *state;
    char limit[8];
    make_small_tree(b);
    for (int i = 1; i <= 9; i++) {
        unsigned pages;
        snprintf(limit, sizeof limit, "%d", i);
        assert_string_equal(list_all(b, ".", "100", limit, &pages), SMALL_TREE);
        assert_int_equal(pages, (7 + i - 1) / i);
    }
}

static void test_a_cursor_to_what_is_gone(void **state)
{
    struct bench *b = *state;
    make_small_tree(b);

    static const struct {
        const char *cursor, *first;
    } rows[] = {{"a/b/b", "a/b/c"}, {"a/c/d/e", "a/z"}, {"a/b/c/d", "a/z"}, {"zz", NULL},
                {"a//", "a/b"},     {"a/zz", "a.txt"},  {"b/x", "link"},    {"../..", "a"}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct job j = job_start(b, OP("list", ".", "10", "1", rows[i].cursor));
        struct record r = job_record(&j);
        if (!rows[i].first) {
            assert_int_equal(r.kind, RECORD_END);
        } else {
            if (r.kind != RECORD_ENTRY)
                show_error(&r, rows[i].cursor);
            assert_string_equal(r.entry.path + strlen(b->dir) + 1, rows[i].first);
        }
        job_end(b, &j);
    }
}

static void test_list_refusals(void **state)
{
    struct bench *b = *state;
    put_file(b, "f", "");
    expect_refusal(b, OP("list", "f", "1", "10", ""), PD_INVALID, "not a directory");
    expect_refusal(b, OP("list", "gone", "1", "10", ""), PD_NOT_FOUND, "'gone'");
    expect_refusal(b, OP("list", ".", "0", "10", ""), PD_INVALID, "depth");
    expect_refusal(b, OP("list", ".", "1", "0", ""), PD_INVALID, "limit");
    expect_refusal(b, OP("list", ".", "1", "100001", ""), PD_INVALID, "limit");
    expect_refusal(b, OP("list", "/proc/self/root", "1", "10", ""), PD_INVALID, "link");
    if (geteuid() == 0) {
        SHELL(b, "mkdir -m 0711 closed; mkdir -p half/x; chmod 0711 half; mkdir ok; mv half ok");
        expect_refusal(b, OP("list", "closed", "1", "10", ""), PD_DENIED, "'closed'");
        /* Below, it is told of and not entered. */
        assert_string_equal(list_all(b, "ok", "9", "10", NULL), "ok/half/\n");
    }
}

static void test_a_directory_of_many_files(void **state)
{
    struct bench *b = *state;
    SHELL(b, "mkdir many && cd many && seq -f 'file-%%06g' 1 20000 | xargs touch; chown %u .",
          b->uid);

    unsigned pages, lines = 0;
    const char *all = list_all(b, "many", "2", "4999", &pages);
    for (const char *p = all; (p = strchr(p, '\n')); p++)
        lines++;

    assert_int_equal(lines, 20000);
    assert_int_equal(pages, 5);
    expect_refusal(b, OP("remove", "many", "0"), PD_CONFLICT, "recursive");
    expect_answer(b, OP("remove", "many", "1"), RECORD_END);
    assert_int_equal(count_files(b, ""), 0);
}

/* No stack, no path and no number of descriptors limits how deep it goes. In memory: disks take
 * half a minute for this. */
static void test_a_tree_of_a_hundred_thousand_levels(void **state)
{
    struct bench *b = *state;
    enum { LEVELS = 100000 };
    bench_in_memory(b);

    int dir = open(b->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < LEVELS; i++) {
        assert_int_equal(mkdirat(dir, "d", 0777), 0);
        int next = openat(dir, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        if (geteuid() == 0)
            assert_int_equal(fchown(next, b->uid, b->uid), 0);
        close(dir);
        dir = next;
    }
    close(dir);

    struct job j = job_start(b, OP("list", ".", "10000000", "100000", ""));
    struct record r;
    unsigned n = 0;
    size_t longest = 0;
    while ((r = job_record(&j)).kind == RECORD_ENTRY) {
        n++;
        longest = strlen(r.entry.path);
    }

    assert_int_equal(r.kind, RECORD_END);
    assert_true(n > 10000 && longest <= RECORD_PATH_MAX);
    assert_int_equal(job_end(b, &j), 0);
    expect_answer(b, OP("remove", "d", "1"), RECORD_END);
    assert_int_equal(count_files(b, ""), 0);
}

static void test_remove(void **state)
{
    struct bench *b = *state;
    SHELL(b, "mkdir -p t/a/b t/c out; touch t/a/b/x t/y out/keep; ln -s ../out t/link; mkfifo t/p; "
             "ln -s out outlink; mkdir empty; chmod 0555 t/c");

    expect_answer(b, OP("remove", "empty", "0"), RECORD_END);
    expect_refusal(b, OP("remove", "empty", "1"), PD_NOT_FOUND, "'empty'");
    expect_refusal(b, OP("remove", "t", "0"), PD_CONFLICT, "not empty");
    if (geteuid() == 0) {
        SHELL(b, "chown -R %u t/a", b->uid);
        expect_refusal(b, OP("remove", "t", "1"), PD_DENIED, "'t"); /* t is root's */
        SHELL(b, "chown -Rh %u .", b->uid);
    }
    expect_answer(b, OP("remove", "t/", "1"), RECORD_END);
    expect_answer(b, OP("remove", "outlink", "1"), RECORD_END); /* the link, not where it leads */
    expect_answer(b, OP("stat", "out/keep"), RECORD_ENTRY);
    assert_int_equal(count_files(b, ""), 1);
    if (geteuid() == 0) {
        SHELL(b, "mkdir -m 0700 locked && touch locked/x");
        expect_refusal(b, OP("remove", "locked", "1"), PD_DENIED, "'locked");
    }
}

/* Somebody swaps a directory and a link to one outside, as fast as he can, while it is removed. */
static void test_remove_never_follows_a_swapped_link(void **state)
{
    struct bench *b = *state;
    SHELL(b, "mkdir out; touch out/keep; chmod -R a+rwX .");
    pid_t swapper = child_fork();
    if (swapper == 0) {
        child_keep(-1);
        if (chdir(b->dir) < 0)
            _exit(1);
        (void)!symlink("out", "link");
        for (;;)
            (void)syscall(SYS_renameat2, AT_FDCWD, "t/v", AT_FDCWD, "link", 2 /* EXCHANGE */);
    }

    deadline d = deadline_in(2 * NS_PER_S);
    unsigned rounds = 0;
    while (!deadline_passed(d) || rounds <= 3) {
        SHELL(b,
              "exec 2>&-; mkdir -p t/v/w; touch t/v/x; chmod -R a+rwX t link; chown -Rh %u t; true",
              b->uid);
        struct job j = job_start(b, OP("remove", "t", "1"));
        (void)job_record(&j);
        job_end(b, &j);
        expect_answer(b, OP("stat", "out/keep"), RECORD_ENTRY);
        rounds++;
    }
    kill(swapper, SIGKILL);
    wait_child(swapper);
}

static void test_copy_a_file(void **state)
{
    struct bench *b = *state;
    put_file(b, "a", "contents");
    put_file(b, "old", "old");
    SHELL(b, "chmod 0750 a; mkdir d; mkfifo p; ln -s a l; mkdir empty; chmod 0777 d");

    struct record r = expect_answer(b, OP("copy", "a", "b", "0"), RECORD_ENTRY);
    assert_int_equal(r.entry.mode, 0750);
    assert_int_equal(r.entry.size, 8);
    expect_file(b, "b", "contents");
    expect_answer(b, OP("copy", "l", "old", "0"), RECORD_ENTRY);
    expect_file(b, "old", "contents");
    expect_answer(b, OP("copy", "a", "d/x", "1"), RECORD_ENTRY);
    expect_refusal(b, OP("copy", "a", "d", "0"), PD_CONFLICT, "a directory");
    expect_refusal(b, OP("copy", "d", "e", "0"), PD_INVALID, "recursive");
    expect_refusal(b, OP("copy", "p", "q", "0"), PD_INVALID, "a FIFO");
    expect_refusal(b, OP("copy", "a", "p", "0"), PD_CONFLICT, "a FIFO");
    expect_refusal(b, OP("copy", "a", "l", "0"), PD_INVALID, "same file");
    expect_refusal(b, OP("copy", "gone", "x", "0"), PD_NOT_FOUND, "'gone'");
    expect_refusal(b, OP("copy", "a", "no/such/dir", "0"), PD_NOT_FOUND, "no/such");
    expect_refusal(b, OP("copy", "/proc/self/exe", "x", "0"), PD_INVALID, "/proc");

    SHELL(b, "truncate -s 1T huge; printf end | dd of=huge bs=1 seek=1M conv=notrunc 2>/dev/null; "
             "chmod 644 huge");
    r = expect_answer(b, OP("copy", "huge", "huge2", "0"), RECORD_ENTRY);
    assert_int_equal(r.entry.size, 1099511627776);
    SHELL(b, "[ $(stat -c %%b huge2) -lt 1000 ] && cmp -n 2000000 huge huge2");
}

static void test_copy_a_tree(void **state)
{
    struct bench *b = *state;
    SHELL(b,
          "mkdir -p t/a/b t/ro; echo x > t/a/b/x; echo y > t/ro/y; ln -s ../a t/link; "
          "mkfifo t/pipe; chmod 0640 t/a/b/x; chmod 0555 t/ro; "
          "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"t/sock\")'; "
          "chown -Rh %u .",
          b->uid);

    struct record r = expect_answer(b, OP("copy", "t", "u", "1"), RECORD_ENTRY);
    assert_int_equal(r.entry.type, ENTRY_DIR);
    assert_string_equal(list_all(b, "u", "9", "100", NULL),
                        "u/a/\nu/a/b/\nu/a/b/x\nu/link\nu/pipe\nu/ro/\nu/ro/y\n");

    SHELL(b,
          "diff -r --no-dereference t/a u/a && diff t/ro/y u/ro/y && [ $(stat -c %%a u/ro) = 555 "
          "] && [ $(stat -c %%a u/a/b/x) = 640 ] && [ $(readlink u/link) = ../a ]");
    expect_refusal(b, OP("copy", "t", "u", "1"), PD_CONFLICT, "exists");
    expect_refusal(b, OP("copy", "t", "t/a/inside", "1"), PD_INVALID, "itself");
    expect_refusal(b, OP("copy", ".", "t/a/inside", "1"), PD_INVALID, "itself");
    if (geteuid() == 0) {
        SHELL(b, "mkdir v; echo > v/secret; chmod 600 v/secret; chmod 755 v");
        expect_refusal(b, OP("copy", "v", "w", "1"), PD_DENIED, "secret");
    }
}

static void test_copy_a_deep_tree(void **state)
{
    struct bench *b = *state;
    enum { LEVELS = 3000 };
    bench_in_memory(b);

    int dir = open(b->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < LEVELS; i++) {
        assert_int_equal(mkdirat(dir, "d", 0777), 0);
        int next = openat(dir, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        if (geteuid() == 0)
            assert_int_equal(fchown(next, b->uid, b->uid), 0);
        close(dir);
        dir = next;
    }
    close(openat(dir, "leaf", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    close(dir);
    expect_answer(b, OP("copy", "d", "e", "1"), RECORD_ENTRY);

    struct job j = job_start(b, OP("list", "e", "100000", "100000", ""));
    unsigned n = 0;
    struct record r;
    while ((r = job_record(&j)).kind == RECORD_ENTRY)
        n++;
    assert_int_equal(r.kind, RECORD_END);
    assert_int_equal(n, LEVELS); /* one less, and the leaf */
    job_end(b, &j);
    expect_answer(b, OP("remove", "e", "1"), RECORD_END);
    expect_answer(b, OP("remove", "d", "1"), RECORD_END);
}

#define WITH_BENCH(test) cmocka_unit_test_setup_teardown(test, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_BENCH(test_list_is_depth_first_and_sorted),
        WITH_BENCH(test_list_in_pages_of_any_size),
        WITH_BENCH(test_a_cursor_to_what_is_gone),
        WITH_BENCH(test_list_refusals),
        WITH_BENCH(test_a_directory_of_many_files),
        WITH_BENCH(test_a_tree_of_a_hundred_thousand_levels),
        WITH_BENCH(test_remove),
        WITH_BENCH(test_remove_never_follows_a_swapped_link),
        WITH_BENCH(test_copy_a_file),
        WITH_BENCH(test_copy_a_tree),
        WITH_BENCH(test_copy_a_deep_tree),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
