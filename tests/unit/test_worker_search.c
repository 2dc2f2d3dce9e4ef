/* Workers that search, replace and watch. */
#include "worker_run.h"

/* The answers to a search, as "path:line:column:text\n" lines below the bench's directory. */
static const char *search(struct bench *b, const char *const *argv, enum record_kind end)
{
    static char out[1 << 16];
    size_t n = 0;
    out[0] = 0;

    struct job j = job_start(b, argv);
    struct record r;
    while ((r = job_record(&j)).kind == RECORD_MATCH)
        n += (size_t)snprintf(out + n, sizeof out - n, "%s:%llu:%llu:%s\n",
                              r.match.path + strlen(b->dir) + 1, (unsigned long long)r.match.line,
                              (unsigned long long)r.match.column, r.match.text);

    if (r.kind != end)
        show_error(&r, "the end of a search");
    assert_int_equal(job_end(b, &j), 0);
    return out;
}

static void make_texts(struct bench *b)
{
    SHELL(b,
          "mkdir -p src/deep; printf 'one\\ntwo Three\\nfour' > a.txt; printf 'int three;\\n' > "
          "src/b.c; printf 'THREE\\n\\nthree three\\n' > src/deep/c.h; printf 'three\\0' > bin; "
          "mkfifo fifo; ln -s a.txt link; printf '' > empty; chmod -R a+rwX .; "
          "[ $EUID != 0 ] || chown -R %u .",
          b->uid);
}

static void test_search(void **state)
{
    struct bench *b = *state;
    make_texts(b);

    assert_string_equal(
        search(b, OP("search", ".", "literal", "three", "", "100", "1"), RECORD_END),
        "src/b.c:1:5:int three;\nsrc/deep/c.h:3:1:three three\n");
    assert_string_equal(
        search(b, OP("search", ".", "literal", "three", "", "100", "0"), RECORD_END),
        "a.txt:2:5:two Three\nsrc/b.c:1:5:int three;\nsrc/deep/c.h:1:1:THREE\n"
        "src/deep/c.h:3:1:three three\n");
    assert_string_equal(
        search(b, OP("search", ".", "regex", "^(one|four)$", "", "100", "1"), RECORD_END),
        "a.txt:1:1:one\na.txt:3:1:four\n");

    assert_string_equal(
        search(b, OP("search", "src", "literal", "three", "*.c", "9", "0"), RECORD_END),
        "src/b.c:1:5:int three;\n");
    assert_string_equal(
        search(b, OP("search", ".", "literal", "three", "src/**/*.h", "9", "1"), RECORD_END),
        "src/deep/c.h:3:1:three three\n");
    assert_string_equal(search(b, OP("search", ".", "literal", "three", "", "2", "0"), RECORD_MORE),
                        "a.txt:2:5:two Three\nsrc/b.c:1:5:int three;\n");

    assert_string_equal(
        search(b, OP("search", "a.txt", "literal", "four", "", "9", "1"), RECORD_END),
        "a.txt:3:1:four\n");
    assert_string_equal(search(b, OP("search", ".", "name", "*.h", "", "9", "1"), RECORD_END),
                        "src/deep/c.h:0:0:\n");
    assert_string_equal(search(b, OP("search", ".", "name", "de", "", "9", "1"), RECORD_END),
                        "src/deep:0:0:\n");
    assert_string_equal(
        search(b, OP("search", ".", "literal", "nowhere", "", "9", "1"), RECORD_END), "");

    expect_refusal(b, OP("search", "gone", "literal", "x", "", "9", "1"), PD_NOT_FOUND, "'gone'");
    expect_refusal(b, OP("search", ".", "regex", "(", "", "9", "1"), PD_INVALID, "expression");
    expect_refusal(b, OP("search", ".", "literal", "", "", "9", "1"), PD_INVALID, "empty");
    expect_refusal(b, OP("search", ".", "literal", "a\nb", "", "9", "1"), PD_INVALID, "lines");
    expect_refusal(b, OP("search", "fifo", "literal", "x", "", "9", "1"), PD_INVALID, "FIFO");
}

static void test_search_in_long_lines(void **state)
{
    struct bench *b = *state;
    SHELL(b, "/usr/bin/python3 -c "
             "\"open('long','w').write('x'*3000000+'needle'+'x'*10+'\\nneedle\\n')\"; "
             "chmod 644 long");

    struct job j = job_start(b, OP("search", ".", "literal", "needle", "", "9", "1"));
    struct record r = expect_kind(&j, RECORD_MATCH, "a match");
    assert_int_equal(r.match.line, 1);
    assert_int_equal(r.match.offset, 3000000);
    assert_true(strlen(r.match.text) <= RECORD_TEXT_MAX);

    r = expect_kind(&j, RECORD_MATCH, "a match");
    assert_int_equal(r.match.line, 2);
    assert_int_equal(r.match.offset, 3000017);
    expect_kind(&j, RECORD_END, "the end");
    job_end(b, &j);
}

static unsigned long replaced(struct bench *b, const char *const *argv)
{
    unsigned long n = 0;
    struct job j = job_start(b, argv);
    struct record r;
    while ((r = job_record(&j)).kind == RECORD_REPLACED)
        n += (unsigned long)r.replaced.count;
    if (r.kind != RECORD_END)
        show_error(&r, "the end of a replacement");
    assert_int_equal(job_end(b, &j), 0);
    return n;
}

static void test_replace(void **state)
{
    struct bench *b = *state;
    make_texts(b);
    SHELL(b, "chmod 0640 src/b.c");

    assert_int_equal(replaced(b, OP("replace", ".", "literal", "three", "3", "", "1")), 3);
    expect_file(b, "src/b.c", "int three;\n"); /* that was dry */
    assert_int_equal(replaced(b, OP("replace", ".", "literal", "three", "3", "", "0")), 3);
    expect_file(b, "src/b.c", "int 3;\n");
    expect_file(b, "src/deep/c.h", "THREE\n\n3 3\n");
    assert_int_equal(expect_answer(b, OP("stat", "src/b.c"), RECORD_ENTRY).entry.mode, 0640);
    assert_int_equal(
        replaced(b, OP("replace", "a.txt", "regex", "^([a-z]+)$", "<\\1>\\n", "", "0")), 2);
    expect_file(b, "a.txt", "<one>\n\ntwo Three\n<four>\n");
    assert_int_equal(
        replaced(b, OP("replace", "a.txt", "literal", "two Three\n<four>", "x\ny", "", "0")), 1);
    expect_file(b, "a.txt", "<one>\n\nx\ny\n");
    assert_int_equal(replaced(b, OP("replace", ".", "regex", "z*", "", "*.none", "0")), 0);

    put_file(b, "e", "ab");
    assert_int_equal(replaced(b, OP("replace", "e", "regex", "x*", "-", "", "0")), 3);
    expect_file(b, "e", "-a-b-");
    assert_int_equal(expect_answer(b, OP("stat", "bin"), RECORD_ENTRY).entry.size, 6);
    assert_int_equal(expect_answer(b, OP("stat", "link"), RECORD_ENTRY).entry.type, ENTRY_SYMLINK);
    expect_refusal(b, OP("replace", ".", "name", "a", "b", "", "0"), PD_INVALID,
                   "literal or regex");
    expect_refusal(b, OP("replace", "gone", "literal", "a", "b", "", "0"), PD_NOT_FOUND, "'gone'");

    SHELL(b, "truncate -s 40M big; chmod 666 big");
    expect_refusal(b, OP("replace", "big", "literal", "a", "b", "", "0"), PD_TOO_LARGE, "32 MiB");
    if (geteuid() == 0) {
        SHELL(b, "rm big; echo three > ro; chmod 644 ro");
        expect_refusal(b, OP("replace", ".", "literal", "three", "3", "", "0"), PD_DENIED, "ro'");
    }
    assert_int_equal(run_shell(b, "ls -A | grep -q paddock-"), 256); /* no temporary file */
}

/* --- watching ------------------------------------------------------------------------------ */

/* The next event; how often a file was modified is the kernel's business. */
static void expect_event(struct bench *b, struct job *j, enum event_kind kind, const char *path,
                         const char *path2)
{
    struct record r;
    char full[256] = "", full2[256] = "";
    snprintf(full, sizeof full, "%s/%s", b->dir, path);
    if (path2)
        snprintf(full2, sizeof full2, "%s/%s", b->dir, path2);

    do
        r = expect_kind(j, RECORD_EVENT, "an event");
    while (r.event.kind != kind &&
           (r.event.kind == EVENT_MODIFIED || r.event.kind == EVENT_ATTRIBUTES));

    if (r.event.kind != kind || strcmp(r.event.path, full) != 0 ||
        strcmp(r.event.path2, full2) != 0)
        fail_msg("event %s %s %s instead of %s %s %s", event_kind_name(r.event.kind), r.event.path,
                 r.event.path2, event_kind_name(kind), full, full2);
}

static void test_watch_a_tree(void **state)
{
    struct bench *b = *state;
    SHELL(b, "mkdir -p w/d outside; touch w/old; chmod -R a+rwX .");
    struct job j = job_start(b, OP("watch", "w", "1"));
    assert_int_equal(expect_kind(&j, RECORD_ENTRY, "an entry").entry.type, ENTRY_DIR);

    SHELL(b, "touch w/new");
    expect_event(b, &j, EVENT_CREATED, "w/new", NULL);
    struct record r;
    SHELL(b, "echo x >> w/d/deep");
    expect_event(b, &j, EVENT_CREATED, "w/d/deep", NULL);
    expect_event(b, &j, EVENT_MODIFIED, "w/d/deep", NULL);

    SHELL(b, "mv w/old w/d/moved");
    expect_event(b, &j, EVENT_MOVED, "w/old", "w/d/moved");
    SHELL(b, "mv w/d w/e");
    expect_event(b, &j, EVENT_MOVED, "w/d", "w/e");

    SHELL(b, "rm w/e/moved"); /* told by its new name */
    expect_event(b, &j, EVENT_REMOVED, "w/e/moved", NULL);
    SHELL(b, "mv w/e outside/");
    expect_event(b, &j, EVENT_REMOVED, "w/e", NULL);

    SHELL(b, "touch outside/e/unseen; mv outside/e w/f"); /* comes in with all that is in it */
    expect_event(b, &j, EVENT_CREATED, "w/f", NULL);
    expect_event(b, &j, EVENT_CREATED, "w/f/deep", NULL);
    expect_event(b, &j, EVENT_CREATED, "w/f/unseen", NULL);
    SHELL(b, "mkdir -p w/x/y/z");
    expect_event(b, &j, EVENT_CREATED, "w/x", NULL);

    SHELL(b, "rm -r w");
    for (;;) {
        r = job_record(&j);
        if (r.kind == RECORD_END)
            break;
        assert_int_equal(r.kind, RECORD_EVENT);
    }
    assert_int_equal(job_end(b, &j), 0);
}

static void test_watch_one_level_and_one_file(void **state)
{
    struct bench *b = *state;
    SHELL(b, "mkdir -p w/d; touch w/f; chmod -R a+rwX .");
    struct job j = job_start(b, OP("watch", "w", "0"));
    expect_kind(&j, RECORD_ENTRY, "an entry");

    SHELL(b, "touch w/d/unseen; mkdir w/seen");
    expect_event(b, &j, EVENT_CREATED, "w/seen", NULL);
    job_end(b, &j); /* the reader goes away: the worker ends */

    j = job_start(b, OP("watch", "w/f", "0"));
    expect_kind(&j, RECORD_ENTRY, "an entry");
    SHELL(b, "echo x > w/f");
    expect_event(b, &j, EVENT_MODIFIED, "w/f", NULL);
    job_end(b, &j);
    expect_refusal(b, OP("watch", "gone", "0"), PD_NOT_FOUND, "'gone'");
    expect_refusal(b, OP("watch", "/proc/self/cwd", "0"), PD_INVALID, "/proc");
}

/* More than the kernel queues, and nobody reads: told, and memory stays bounded. */
static void test_watch_overflows(void **state)
{
    struct bench *b = *state;
    SHELL(b, "mkdir w; chmod 777 w");
    struct job j = job_start(b, OP("watch", "w", "1"));
    expect_kind(&j, RECORD_ENTRY, "an entry");

    char a[128], c[128];
    snprintf(a, sizeof a, "%s/w/a", b->dir);
    snprintf(c, sizeof c, "%s/w/c", b->dir);
    close(open(a, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    for (int i = 0; i < 20000; i++) {
        assert_int_equal(rename(a, c), 0);
        assert_int_equal(rename(c, a), 0);
    }

    unsigned events = 0;
    struct record r;
    do {
        r = expect_kind(&j, RECORD_EVENT, "an event");
        events++;
    } while (r.event.kind != EVENT_OVERFLOW);
    assert_true(events < 42000);
    job_end(b, &j);
}

#define WITH_BENCH(test) cmocka_unit_test_setup_teardown(test, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_BENCH(test_search),
        WITH_BENCH(test_search_in_long_lines),
        WITH_BENCH(test_replace),
        WITH_BENCH(test_watch_a_tree),
        WITH_BENCH(test_watch_one_level_and_one_file),
        WITH_BENCH(test_watch_overflows),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
