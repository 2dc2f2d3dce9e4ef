/* Workers of a real init: single files, and what every operation has in common. */
#include "worker_run.h"

static void test_a_worker_has_nothing_of_inits(void **state)
{
    struct bench *b = *state;
    /* A write that waits: its process can be looked at. */
    struct job j = job_start(b, OP("write", "x", "0644", "0"));
    char path[64], text[4096];
    deadline d = deadline_in(PATIENCE);
    int pid = 0;

    while (!pid && !deadline_passed(d)) {
        char children[64];
        snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)b->init.pid,
                 (int)b->init.pid);
        if (fd_read_file(AT_FDCWD, path, children, sizeof children) > 0)
            pid = (int)strtol(children, NULL, 10);
    }
    assert_true(pid > 1);

    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    do
        assert_true(fd_read_file(AT_FDCWD, path, text, sizeof text) > 0);
    while (strncmp(text, "paddock-worker", 14) != 0 && !deadline_passed(d));
    while ((state_of(pid) != 'S' || (geteuid() == 0 && fds_of(pid) != 5)) && !deadline_passed(d))
        usleep(1000);

    if (geteuid() == 0) { /* who may look at all: 0-2, the directory, the new file */
        assert_int_equal(fds_of(pid), 5);
        for (int fd = 0; fd < 64; fd++) {
            snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
            ssize_t n = readlink(path, text, sizeof text - 1);
            text[n < 0 ? 0 : n] = 0;
            assert_null(strstr(text, "socket:"));
            assert_null(strstr(text, "signalfd"));
        }
        snprintf(path, sizeof path, "/proc/%d/mem", pid);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_uid, 0); /* not dumpable: its files are not its own */
    }

    snprintf(path, sizeof path, "/proc/%d/status", pid);
    assert_true(fd_read_file(AT_FDCWD, path, text, sizeof text) > 0);
    assert_non_null(strstr(text, "SigBlk:\t0000000000000000"));

    char ids[64];
    snprintf(ids, sizeof ids, "Uid:\t%u\t%u\t%u\t%u", b->uid, b->uid, b->uid, b->uid);
    assert_non_null(strstr(text, ids));
    if (geteuid() == 0)
        assert_non_null(strstr(text, "CapEff:\t0000000000000000"));

    fd_done(&j.in);
    fd_done(&j.go);
    expect_kind(&j, RECORD_ERROR, "an error");
    assert_int_equal(WEXITSTATUS(job_end(b, &j)), 1);
}

static void test_flags_that_make_no_sense_are_refused(void **state)
{
    struct bench *b = *state;
    struct pd_err e;
    struct init_run *r = &b->init;
    EXEC(r->sock, .id = 900, .argv = OP("stat", "/"), .flags = EXEC_WORKER | EXEC_PTY);
    expect_error(r->sock, &r->f, 900, PD_PROTOCOL, &e);

    EXEC(r->sock, .id = 901, .argv = OP("stat", "/"), .flags = EXEC_WORKER | EXEC_EXTRA,
         .fd_count = 4);
    expect_error(r->sock, &r->f, 901, PD_PROTOCOL, &e);
    EXEC(r->sock, .id = 902, .argv = OP("stat", "/"), .flags = EXEC_WORKER, .fd_count = 4);
    expect_error(r->sock, &r->f, 902, PD_PROTOCOL, &e);

    EXEC(r->sock, .id = 903, .script = "exit 0", .flags = EXEC_EXTRA);
    expect_error(r->sock, &r->f, 903, PD_PROTOCOL, &e);
    expect_refusal(b, OP("no-such-operation"), PD_UNSUPPORTED, "no-such-operation");
    expect_refusal(b, OP("stat"), PD_INVALID, "PATH");
    expect_refusal(b, OP("stat", "a", "1", "b"), PD_INVALID, "PATH");
    expect_refusal(b, OP("stat", "a", "b"), PD_INVALID, "detail");
    expect_refusal(b, OP("read", "a", "x", "-"), PD_INVALID, "offset");
    expect_refusal(b, OP("write", "a", "0999", "0"), PD_INVALID, "0644");
    expect_refusal(b, OP("write", "a", "0644", "2"), PD_INVALID, "mkdirs");
}

static void test_paths_that_are_none(void **state)
{
    struct bench *b = *state;
    char *longer = malloc(6001);
    memset(longer, 'a', 6000);
    longer[6000] = 0;
    expect_refusal(b, OP("stat", ""), PD_INVALID, "empty");
    expect_refusal(b, OP("stat", longer), PD_INVALID, "too long");
    expect_refusal(b, OP("write", longer, "-", "1"), PD_INVALID, "too long");

    for (size_t i = 255; i < 6000; i += 256)
        longer[i] = '/';
    expect_refusal(b, OP("stat", longer), PD_INVALID, "too long");
    free(longer);

    expect_refusal(b, OP("stat", "no/such"), PD_NOT_FOUND, "'no/such'");
    expect_refusal(b, OP("write", "a/", "-", "0"), PD_INVALID, "name of a file");
    expect_refusal(b, OP("write", "..", "-", "0"), PD_INVALID, "name of a file");
    expect_refusal(b, OP("remove", "/", "1"), PD_INVALID, "name of a file");
    expect_refusal(b, OP("remove", ".", "1"), PD_INVALID, "name of a file");
    expect_refusal(b, OP("move", ".", "x", "0"), PD_INVALID, "name of a file");

    put_file(b, "file", "x");
    expect_refusal(b, OP("stat", "file/below"), PD_INVALID, "not a directory");
    expect_refusal(b, OP("stat", "file/"), PD_INVALID, "not a directory");

    /* Where to start from is gone: absolute paths still work. */
    struct job j = {.id = 950, .in = -1, .go = -1};
    int out[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    j.out = out[0];
    EXEC(b->init.sock, .id = 950, .flags = EXEC_WORKER | EXEC_QUIET, .uid = b->uid,
         .cwd = "/no/such/dir", .argv = OP("stat", "x"), .fds = {0, out[1]});
    close(out[1]);

    struct record r = expect_kind(&j, RECORD_ERROR, "an error");
    assert_int_equal(r.error.code, PD_NOT_FOUND);
    assert_non_null(strstr(r.error.text, "absolute path"));
    job_end(b, &j);

    char path[128];
    snprintf(path, sizeof path, "%s/file", b->dir);
    expect_answer(b, OP("stat", path), RECORD_ENTRY);
}

static void test_stat(void **state)
{
    struct bench *b = *state;
    char path[256];
    put_file(b, "a.txt", "hello");

    struct record r = expect_answer(b, OP("stat", ".//a.txt"), RECORD_ENTRY);
    snprintf(path, sizeof path, "%s/a.txt", b->dir);
    assert_string_equal(r.entry.path, path);
    assert_int_equal(r.entry.type, ENTRY_FILE);
    assert_int_equal(r.entry.size, 5);
    assert_int_equal(r.entry.mode, 0644);
    assert_int_equal(r.entry.uid, b->uid);
    assert_true(r.entry.mtime_ns > 1600000000ll * 1000000000);

    SHELL(b, "ln -s /no/such link; mkfifo fifo; mkdir dir; touch -d 1960-01-01 old; python3 -c "
             "'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'");
    r = expect_answer(b, OP("stat", "link"), RECORD_ENTRY);
    assert_int_equal(r.entry.type, ENTRY_SYMLINK);
    assert_string_equal(r.entry.target, "/no/such");
    assert_int_equal(expect_answer(b, OP("stat", "fifo"), RECORD_ENTRY).entry.type, ENTRY_FIFO);
    assert_int_equal(expect_answer(b, OP("stat", "dir/"), RECORD_ENTRY).entry.type, ENTRY_DIR);
    assert_int_equal(expect_answer(b, OP("stat", "sock"), RECORD_ENTRY).entry.type, ENTRY_SOCKET);
    assert_int_equal(expect_answer(b, OP("stat", "/dev/null"), RECORD_ENTRY).entry.type,
                     ENTRY_DEVICE);
    assert_true(expect_answer(b, OP("stat", "old"), RECORD_ENTRY).entry.mtime_ns < 0);

    r = expect_answer(b, OP("stat", "/"), RECORD_ENTRY);
    assert_string_equal(r.entry.path, "/");
    if (geteuid() == 0) {
        SHELL(b, "mkdir -m 0700 closed; touch closed/x");
        expect_refusal(b, OP("stat", "closed/x"), PD_DENIED, "'closed/x'");
    }
}

static void test_read_ranges(void **state)
{
    static const struct {
        const char *offset, *length, *want;
    } rows[] = {
        {"0", "-", "0123456789"}, {"0", "4", "0123"},
        {"3", "4", "3456"},       {"8", "100", "89"},
        {"10", "-", ""},          {"11", "5", ""},
        {"0", "0", ""},           {"9223372036854775807", "-", ""},
    };
    struct bench *b = *state;
    put_file(b, "ten", "0123456789");

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct job j = job_start(b, OP("read", "ten", rows[i].offset, rows[i].length));
        size_t len;
        assert_int_equal(expect_kind(&j, RECORD_ENTRY, "an entry").entry.size, 10);
        char *got = job_bytes(&j, &len);
        assert_string_equal(got, rows[i].want);
        free(got);
        assert_int_equal(job_end(b, &j), 0);
    }
}

static void test_read_only_regular_files(void **state)
{
    struct bench *b = *state;
    SHELL(b, "mkfifo fifo; mkdir dir; ln -s fifo to-fifo; ln -s a loop; ln -s loop a; ln -s x x;"
             "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'");

    uint64_t start = clock_now();
    expect_refusal(b, OP("read", "fifo", "0", "-"), PD_INVALID, "is a FIFO, not a regular file");
    expect_refusal(b, OP("read", "to-fifo", "0", "-"), PD_INVALID, "is a FIFO");
    assert_true(clock_now() - start < PATIENCE / 2);
    expect_refusal(b, OP("read", "dir", "0", "-"), PD_INVALID, "is a directory");
    expect_refusal(b, OP("read", "sock", "0", "-"), PD_INVALID, "is a socket");
    expect_refusal(b, OP("read", "/dev/zero", "0", "10"), PD_INVALID, "is a device");
    expect_refusal(b, OP("read", "loop", "0", "-"), PD_INVALID, "symbolic links");
    expect_refusal(b, OP("read", "x", "0", "-"), PD_INVALID, "symbolic links");
    expect_refusal(b, OP("read", "gone", "0", "-"), PD_NOT_FOUND, "'gone'");
    expect_refusal(b, OP("read", "/proc/self/mem", "0", "10"), PD_DENIED, "/proc/self/mem");
}

/* Links of /proc that are no text but a jump: to a root, a directory, a descriptor. */
static void test_magic_links_are_refused(void **state)
{
    struct bench *b = *state;
    put_file(b, "f", "text");
    SHELL(b, "ln -s /proc/self/root r; ln -s /proc/self/cwd c; ln -s /proc/self/fd/0 z");

    static const char *const paths[] = {"/proc/self/root/etc/passwd",
                                        "/proc/1/root/etc/passwd",
                                        "/proc/self/fd/0",
                                        "/proc/self/cwd/f",
                                        "r/etc/passwd",
                                        "c/f",
                                        "z",
                                        "/dev/stdin",
                                        "/dev/fd/0",
                                        "/dev/fd/1"};
    for (size_t i = 0; i < COUNT(paths); i++) {
        struct job j = job_start(b, OP("read", paths[i], "0", "-"));
        struct record r = expect_kind(&j, RECORD_ERROR, paths[i]);
        assert_true(r.error.code == PD_INVALID || r.error.code == PD_DENIED);
        job_end(b, &j);
        j = job_start(b, OP("write", paths[i], "0644", "1"));
        fd_done(&j.in);
        (void)!write(j.go, "C", 1); /* it may have refused, and ended, before */
        r = expect_kind(&j, RECORD_ERROR, paths[i]);
        assert_true(r.error.code == PD_INVALID || r.error.code == PD_DENIED);
        job_end(b, &j);
    }

    /* The same through an ordinary link works: the test can fail. */
    SHELL(b, "mkdir d && ln -s .. d/up");
    expect_file(b, "d/up/f", "text");
}

static void test_files_of_proc_have_a_size(void **state)
{
    struct bench *b = *state;
    struct job j = job_start(b, OP("read", "/proc/version", "0", "-"));
    struct record r = expect_kind(&j, RECORD_ENTRY, "an entry");
    assert_true(r.entry.size > 10);

    size_t len, size = (size_t)r.entry.size;
    char *got = job_bytes(&j, &len);
    assert_int_equal(len, size);
    assert_memory_equal(got, "Linux", 5);
    free(got);
    job_end(b, &j);

    j = job_start(b, OP("read", "/proc/version", "2", "3"));
    assert_int_equal(expect_kind(&j, RECORD_ENTRY, "an entry").entry.size, size);

    got = job_bytes(&j, &len);
    assert_string_equal(got, "nux");
    free(got);
    job_end(b, &j);
}

/* What was promised is what comes, however the file changes. */
static void test_a_file_that_grows_or_shrinks(void **state)
{
    struct bench *b = *state;
    char path[256];
    snprintf(path, sizeof path, "%s/big", b->dir);

    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    assert_int_equal(ftruncate(fd, 4 << 20), 0);
    assert_int_equal(chmod(path, 0644), 0);
    struct job j = job_start(b, OP("read", "big", "0", "-"));
    assert_int_equal(expect_kind(&j, RECORD_ENTRY, "an entry").entry.size, 4 << 20);

    assert_int_equal(ftruncate(fd, 64 << 20), 0); /* the pipe was full long before the end */
    size_t len;
    free(job_bytes(&j, &len));
    assert_int_equal(len, 4 << 20);
    assert_int_equal(job_end(b, &j), 0);

    j = job_start(b, OP("read", "big", "0", "-"));
    assert_int_equal(expect_kind(&j, RECORD_ENTRY, "an entry").entry.size, 64 << 20);
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    free(job_bytes(&j, &len));
    assert_true(len < 64 << 20);
    assert_int_equal(WEXITSTATUS(job_end(b, &j)), 1);
    close(fd);
}

static void test_huge_sparse_files(void **state)
{
    struct bench *b = *state;
    SHELL(b, "truncate -s 1T huge; printf end | dd of=huge bs=1 seek=1099511627773 conv=notrunc "
             "2>/dev/null; chmod 644 huge");
    struct job j = job_start(b, OP("read", "huge", "1099511627770", "-"));
    assert_int_equal(expect_kind(&j, RECORD_ENTRY, "an entry").entry.size, 1099511627776);

    size_t len;
    char *got = job_bytes(&j, &len);
    assert_int_equal(len, 6);
    assert_memory_equal(got, "\0\0\0end", 6);
    free(got);
    job_end(b, &j);

    /* A reader that goes away ends a worker that would have terabytes to tell. */
    j = job_start(b, OP("read", "huge", "0", "-"));
    expect_kind(&j, RECORD_ENTRY, "an entry");
    int status = job_end(b, &j);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 1);
}

static void test_write_makes_and_replaces(void **state)
{
    struct bench *b = *state;
    put_file(b, "a", "one");
    expect_file(b, "a", "one");

    SHELL(b, "chmod 0640 a; ln a other");
    put_file(b, "a", "another");
    expect_file(b, "a", "another");
    expect_file(b, "other", "one"); /* replaced, not overwritten */
    assert_int_equal(expect_answer(b, OP("stat", "a"), RECORD_ENTRY).entry.mode, 0640);

    put_file(b, "d1/d2/d3/x", "deep");
    expect_file(b, "d1/d2/d3/x", "deep");
    assert_int_equal(expect_answer(b, OP("stat", "d1"), RECORD_ENTRY).entry.mode, 0755);
    expect_refusal(b, OP("write", "e1/e2/x", "-", "0"), PD_NOT_FOUND, "'e1/e2/x'");

    struct job j = job_start(b, OP("write", "script", "0755", "0"));
    fd_done(&j.in);
    assert_int_equal(write(j.go, "C", 1), 1);

    struct record r = expect_kind(&j, RECORD_ENTRY, "an entry");
    assert_int_equal(r.entry.mode, 0755);
    assert_int_equal(r.entry.size, 0);
    assert_int_equal(r.entry.uid, b->uid);
    assert_int_equal(job_end(b, &j), 0);
    assert_int_equal(count_files(b, ""), 4); /* a other d1 script: no temporary one */
}

static void test_write_follows_links(void **state)
{
    struct bench *b = *state;
    SHELL(b, "mkdir d; ln -s d/real link; ln -s link link2; ln -s d dir-link; chmod 777 d");
    put_file(b, "link2", "through");
    expect_file(b, "d/real", "through");
    assert_int_equal(expect_answer(b, OP("stat", "link2"), RECORD_ENTRY).entry.type, ENTRY_SYMLINK);

    put_file(b, "dir-link/x", "below");
    expect_file(b, "d/x", "below");
    SHELL(b, "ln -s l1 l2; ln -s l2 l1; ln -s nowhere/x dangling");
    expect_refusal(b, OP("write", "l1", "-", "0"), PD_INVALID, "symbolic links");
    expect_refusal(b, OP("write", "dangling", "-", "0"), PD_NOT_FOUND, "'dangling'");
    put_file(b, "dangling", "made");
    expect_file(b, "nowhere/x", "made");
}

static void test_write_only_regular_files(void **state)
{
    struct bench *b = *state;
    SHELL(b, "mkfifo fifo; mkdir dir; ln -s fifo to-fifo");
    expect_refusal(b, OP("write", "fifo", "-", "0"), PD_INVALID, "is a FIFO");
    expect_refusal(b, OP("write", "to-fifo", "-", "0"), PD_INVALID, "is a FIFO");
    expect_refusal(b, OP("write", "dir", "-", "0"), PD_INVALID, "is a directory");
    expect_refusal(b, OP("write", "/dev/null", "-", "0"), PD_INVALID, "is a device");
    if (geteuid() == 0) {
        SHELL(b, "echo keep > mine; chmod 644 mine; mkdir -m 755 closed");
        expect_refusal(b, OP("write", "mine", "-", "0"), PD_DENIED, "'mine'");
        expect_refusal(b, OP("write", "closed/x", "-", "0"), PD_DENIED, "'closed/x'");
        expect_file(b, "mine", "keep\n");
    }
}

static void test_write_counts_what_comes(void **state)
{
    struct bench *b = *state;
    put_file(b, "a", "old");
    struct job j = job_start(b, OP("write", "a", "-", "0", "10"));
    assert_int_equal(fd_write_all(j.in, "123", 3), 0);

    fd_done(&j.in);
    (void)!write(j.go, "C", 1); /* it may have counted, and ended, before */
    struct record r = expect_kind(&j, RECORD_ERROR, "an error");
    assert_int_equal(r.error.code, PD_INVALID);
    assert_non_null(strstr(r.error.text, "3 bytes"));
    assert_int_equal(WEXITSTATUS(job_end(b, &j)), 1);

    j = job_start(b, OP("write", "a", "-", "0", "2"));
    assert_int_equal(fd_write_all(j.in, "123", 3), 0);

    fd_done(&j.in);
    (void)!write(j.go, "C", 1);
    r = expect_kind(&j, RECORD_ERROR, "an error");
    assert_int_equal(r.error.code, PD_INVALID);
    job_end(b, &j);
    expect_file(b, "a", "old");
    assert_int_equal(count_files(b, ""), 1);
}

/* However it ends without the word to commit: the old file is there, and no other. */
static void test_write_without_commit_changes_nothing(void **state)
{
    struct bench *b = *state;
    put_file(b, "a", "old");

    for (int how = 0; how < 4; how++) {
        struct job j = job_start(b, OP("write", "a", "-", "0"));
        assert_int_equal(fd_write_all(j.in, "new", 3), 0);
        if (how != 2)
            fd_done(&j.in); /* 2: not even the end of the input */
        if (how == 0)
            fd_done(&j.go); /* the daemon is dead */
        if (how == 1)
            assert_int_equal(write(j.go, "A", 1), 1);

        if (how >= 2) {
            usleep(100000);
            send_signal(b->init.sock, 5000 + (uint32_t)how, j.id, SIGKILL);
            expect_type(b->init.sock, &b->init.f, WIRE_DONE, 5000 + (uint32_t)how);
        } else {
            assert_int_equal(expect_kind(&j, RECORD_ERROR, "an error").error.code, PD_LOST);
        }

        int status = job_end(b, &j);
        assert_true(how >= 2 ? WIFSIGNALED(status) : WEXITSTATUS(status) == 1);
        expect_file(b, "a", "old");
        assert_int_equal(count_files(b, ""), 1);
    }
}

static void test_write_to_a_full_disk(void **state)
{
    struct bench *b = *state;
    if (geteuid() != 0)
        skip_because("mounting needs root");

    char path[256];
    snprintf(path, sizeof path, "%s/full", b->dir);
    assert_int_equal(mkdir(path, 0777), 0);
    if (mount("full", path, "tmpfs", 0, "size=1m,mode=777") < 0)
        skip_because("no tmpfs can be mounted");
    put_file(b, "full/a", "old");

    struct job j = job_start(b, OP("write", "full/a", "-", "0"));
    char *data = calloc(1, 3 << 20);
    pid_t feeder = child_fork();
    if (feeder == 0) {
        child_keep(j.in);
        signal(SIGPIPE, SIG_DFL);
        (void)fd_write_all(j.in, data, 3 << 20);
        _exit(0);
    }
    free(data);

    fd_done(&j.in);
    struct record r = expect_kind(&j, RECORD_ERROR, "an error");
    assert_int_equal(r.error.code, PD_NO_SPACE);
    assert_non_null(strstr(r.error.text, "'full/a'"));
    assert_int_equal(WEXITSTATUS(job_end(b, &j)), 1);

    wait_child(feeder);
    expect_file(b, "full/a", "old");
    assert_int_equal(count_files(b, "full"), 1);
    SHELL(b, "umount full");
}

static void test_odd_names(void **state)
{
    static const char *const names[] = {
        "\xff\xfe\n\033[2J", "a\rb", "-rf", "a b", "\"", "\\", "*", "..a"};
    struct bench *b = *state;

    for (size_t i = 0; i < COUNT(names); i++) {
        char path[256];
        put_file(b, names[i], "odd");
        expect_file(b, names[i], "odd");
        struct record r = expect_answer(b, OP("stat", names[i]), RECORD_ENTRY);
        snprintf(path, sizeof path, "%s/%s", b->dir, names[i]);
        assert_string_equal(r.entry.path, path);
        expect_answer(b, OP("remove", names[i], "0"), RECORD_END);
    }
    assert_int_equal(count_files(b, ""), 0);
}

static void test_mkdir(void **state)
{
    struct bench *b = *state;
    struct record r = expect_answer(b, OP("mkdir", "d", "0", "0750"), RECORD_ENTRY);
    assert_int_equal(r.entry.type, ENTRY_DIR);
    assert_int_equal(r.entry.mode, 0750);
    expect_refusal(b, OP("mkdir", "d", "0", "0755"), PD_CONFLICT, "exists");
    expect_answer(b, OP("mkdir", "d", "1", "0755"), RECORD_ENTRY);
    expect_refusal(b, OP("mkdir", "x/y/z", "0", "0755"), PD_NOT_FOUND, "'x/y/z'");
    expect_answer(b, OP("mkdir", "x/y/z/", "1", "0755"), RECORD_ENTRY);

    put_file(b, "f", "");
    expect_refusal(b, OP("mkdir", "f", "1", "0755"), PD_CONFLICT, "exists");
    expect_refusal(b, OP("mkdir", "f/x", "1", "0755"), PD_INVALID, "not a directory");
    expect_refusal(b, OP("mkdir", "g", "0", "rwx"), PD_INVALID, "rwx");
    if (geteuid() == 0)
        expect_refusal(b, OP("mkdir", "/usr/x", "0", "0755"), PD_DENIED, "'/usr/x'");
    SHELL(b, "ln -s d l");
    expect_answer(b, OP("mkdir", "l", "1", "0755"), RECORD_ENTRY);
}

static void test_move(void **state)
{
    struct bench *b = *state;
    put_file(b, "a", "A");
    put_file(b, "b", "B");
    put_file(b, "d/x", "X");
    put_file(b, "full/y", "Y");

    expect_refusal(b, OP("move", "a", "b", "0"), PD_CONFLICT, "exists");
    expect_answer(b, OP("move", "a", "b", "1"), RECORD_ENTRY);
    expect_file(b, "b", "A");
    expect_refusal(b, OP("stat", "a"), PD_NOT_FOUND, "'a'");
    expect_refusal(b, OP("move", "a", "c", "0"), PD_NOT_FOUND, "'a'");
    expect_refusal(b, OP("move", "b", "no/such/dir", "0"), PD_NOT_FOUND, "no/such");
    expect_answer(b, OP("move", "d/", "e", "0"), RECORD_ENTRY);
    expect_file(b, "e/x", "X");
    expect_refusal(b, OP("move", "e", "e/inside", "0"), PD_INVALID, "itself");
    expect_refusal(b, OP("move", "e", "full", "1"), PD_CONFLICT, "not empty");
    expect_refusal(b, OP("move", "e", "b", "1"), PD_CONFLICT, "directory");
    expect_refusal(b, OP("move", "b", "e", "1"), PD_CONFLICT, "directory");

    SHELL(b, "ln -s nowhere l");
    struct record r = expect_answer(b, OP("move", "l", "m", "0"), RECORD_ENTRY);
    assert_int_equal(r.entry.type, ENTRY_SYMLINK);
    assert_string_equal(r.entry.target, "nowhere");
}

static void test_chmod(void **state)
{
    struct bench *b = *state;
    put_file(b, "f", "x");
    SHELL(b, "ln -s f l; ln -s nowhere dangling");
    assert_int_equal(expect_answer(b, OP("chmod", "f", "0400"), RECORD_ENTRY).entry.mode, 0400);

    struct record r = expect_answer(b, OP("chmod", "l", "0751"), RECORD_ENTRY);
    assert_int_equal(r.entry.type, ENTRY_FILE); /* of what the link leads to */
    assert_int_equal(expect_answer(b, OP("stat", "f"), RECORD_ENTRY).entry.mode, 0751);
    expect_refusal(b, OP("chmod", "dangling", "0644"), PD_NOT_FOUND, "'dangling'");
    expect_refusal(b, OP("chmod", "f", "u+x"), PD_INVALID, "u+x");
    expect_refusal(b, OP("chmod", "f", "10000"), PD_INVALID, "10000");
    expect_refusal(b, OP("chmod", "/proc/self/fd/0", "0644"), PD_INVALID, "/proc");
    if (geteuid() == 0) {
        SHELL(b, "echo > roots; ln roots hard");
        expect_refusal(b, OP("chmod", "hard", "0777"), PD_DENIED, "'hard'");
        SHELL(b, "[ $(stat -c %%a roots) = 644 ]");
    }
}

static void test_attributes(void **state)
{
    struct bench *b = *state;
    put_file(b, "f", "x");
    struct job j = job_start(b, OP("setxattr", "f", "user.a", "value"));
    struct record r = job_record(&j);
    if (r.kind == RECORD_ERROR && r.error.code == PD_UNSUPPORTED) {
        job_end(b, &j);
        skip_because("this file system has no attributes");
    }

    assert_int_equal(r.kind, RECORD_ENTRY);
    job_end(b, &j);
    j = job_start(b, OP("setxattr", "f", "user.b"));
    assert_int_equal(fd_write_all(j.in, "b\0c", 3), 0);

    fd_done(&j.in);
    expect_kind(&j, RECORD_ENTRY, "an entry");
    assert_int_equal(job_end(b, &j), 0);

    j = job_start(b, OP("getxattr", "f", "user.b"));
    r = expect_kind(&j, RECORD_VALUE, "a value");
    assert_int_equal(r.value.len, 3);
    assert_memory_equal(r.value.data, "b\0c", 3);
    expect_kind(&j, RECORD_END, "the end");
    job_end(b, &j);

    j = job_start(b, OP("getxattr", "f", ""));
    unsigned n = 0;
    while ((r = job_record(&j)).kind == RECORD_VALUE)
        n++;
    assert_int_equal(n, 2);
    assert_int_equal(r.kind, RECORD_END);
    job_end(b, &j);

    expect_refusal(b, OP("getxattr", "f", "user.none"), PD_NOT_FOUND, "user.none");
    expect_refusal(b, OP("setxattr", "f", "security.x", "y"), PD_INVALID, "user.");
    expect_refusal(b, OP("setxattr", "f", "trusted.overlay.opaque", "y"), PD_INVALID, "user.");
    expect_refusal(b, OP("getxattr", "gone", ""), PD_NOT_FOUND, "'gone'");

    j = job_start(b, OP("setxattr", "f", "user.big"));
    char *big = calloc(1, 100000);
    pid_t feeder = child_fork();
    if (feeder == 0) {
        child_keep(j.in);
        signal(SIGPIPE, SIG_DFL);
        (void)fd_write_all(j.in, big, 100000);
        _exit(0);
    }
    free(big);

    fd_done(&j.in);
    assert_int_equal(expect_kind(&j, RECORD_ERROR, "an error").error.code, PD_TOO_LARGE);
    job_end(b, &j);
    wait_child(feeder);
}

/* Somebody swaps a file and a link to another's, as fast as he can, while it is read and written:
 * no answer is ever anything but one of the two, and what the link leads to is never damaged. */
static void test_files_that_are_swapped(void **state)
{
    struct bench *b = *state;
    put_file(b, "mine", "mine");
    put_file(b, "d/other", "other");
    SHELL(b, "ln -s d/other link; chmod -R a+rwX .");
    pid_t swapper = child_fork();
    if (swapper == 0) {
        child_keep(-1);
        if (chdir(b->dir) < 0)
            _exit(1);
        for (;;)
            (void)syscall(SYS_renameat2, AT_FDCWD, "mine", AT_FDCWD, "link", 2 /* EXCHANGE */);
    }

    deadline enough = deadline_in(2 * NS_PER_S), patience = deadline_in(PATIENCE);
    unsigned mine = 0, other = 0;
    while (!deadline_passed(enough) || !mine || !other) {
        if (deadline_passed(patience))
            fail_msg("of the two files one was never read: %u, %u", mine, other);

        struct job j = job_start(b, OP("read", "mine", "0", "-"));
        struct record r = job_record(&j);
        if (r.kind == RECORD_ENTRY) {
            size_t len;
            char *text = job_bytes(&j, &len);
            assert_true(!strcmp(text, "mine") || !strcmp(text, "other"));
            mine += !strcmp(text, "mine");
            other += !strcmp(text, "other");
            free(text);
        }
        job_end(b, &j);

        /* It may refuse, and end, before it has read anything. */
        j = job_start(b, OP("write", "mine", "-", "0"));
        int written = fd_write_all(j.in, "mine", 4);
        assert_true(written == 0 || written == -EPIPE);
        fd_done(&j.in);
        (void)!write(j.go, "C", 1);
        (void)job_record(&j);
        job_end(b, &j);

        (void)run_shell(b, "[ -e d/other ] || printf other > d/other; chmod a+rw d/other");
        (void)run_shell(b, "printf other > d/other; [ -L link ] || [ -L mine ] || { rm -f link; ln "
                           "-s d/other link; }");
    }
    kill(swapper, SIGKILL);
    wait_child(swapper);
}

/* Sends an EXEC with any descriptors. */
static void send_with_fds(struct bench *b, uint32_t id, unsigned flags, const char *const *words,
                          const int *fds, unsigned count)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT, env = MSG_LIST_WRITER_INIT;
    for (; *words; words++)
        msg_list_add(&argv, *words);
    struct msg_exec m = {.uid = b->uid,
                         .gid = b->uid,
                         .cwd = "/",
                         .argv = msg_list_of(&argv),
                         .environ = msg_list_of(&env)};

    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_exec_encode(&out, &m);
    msg_list_writer_done(&argv);
    msg_list_writer_done(&env);
    struct wire_head head = {.type = WIRE_EXEC, .id = id_of(id), .flags = flags | EXEC_QUIET};
    assert_int_equal(wire_send(b->init.sock, &head, &out, fds, count, deadline_in(PATIENCE)), 0);
}

#define TELL_FDS                                                                                   \
    "echo extra >&3; exec 3>&-; for i in 4 5 6 7 8 9; do [ -e /proc/self/fd/$i ] && echo has $i; " \
    "done >&2; exit 0"

/* EXEC_EXTRA: one more descriptor for a command, as number 3, and still nothing else; with or
 * without the one for its cgroup. */
static void test_an_extra_descriptor(void **state)
{
    struct bench *b = *state;
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (uint32_t grouped = 0; grouped < 2; grouped++) {
        int p[2];
        char text[256] = "", path[128];
        snprintf(path, sizeof path, "%s/procs", b->dir);
        auto_fd procs = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        assert_int_equal(pipe2(p, O_CLOEXEC), 0);

        int with[5] = {null, null, p[1], procs, p[1]}, without[4] = {null, null, p[1], p[1]};
        send_with_fds(b, 70 + grouped, EXEC_EXTRA | (grouped ? EXEC_CGROUP : 0),
                      OP("/bin/sh", "-c", TELL_FDS), grouped ? with : without, 4 + grouped);
        close(p[1]);

        assert_int_equal(expect_exited(&b->init, 70 + grouped).status, 0);
        assert_true(read(p[0], text, sizeof text - 1) > 0);
        assert_string_equal(text, "extra\n");
        assert_int_equal(read(p[0], text, 1), 0);
        close(p[0]);
        assert_int_equal(pread(procs, text, sizeof text, 0), grouped);
    }
}

/* What goes wrong before a worker is one is told by a record all the same. */
static void test_a_worker_that_cannot_start(void **state)
{
    struct bench *b = *state;
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    auto_fd procs = open("/dev/null", O_RDONLY | O_CLOEXEC); /* cannot be written to */
    int p[2];

    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    int fds[4] = {null, p[1], null, procs};
    send_with_fds(b, 80, EXEC_WORKER | EXEC_CGROUP, OP("stat", "/"), fds, 4);
    close(p[1]);

    struct job j = {.id = 80, .in = -1, .go = -1, .out = p[0]};
    struct record r = expect_kind(&j, RECORD_ERROR, "an error");
    assert_non_null(strstr(r.error.text, "cgroup"));
    assert_int_equal(WEXITSTATUS(job_end(b, &j)), 1);
}

#define WITH_BENCH(test) cmocka_unit_test_setup_teardown(test, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_BENCH(test_a_worker_has_nothing_of_inits),
        WITH_BENCH(test_flags_that_make_no_sense_are_refused),
        WITH_BENCH(test_paths_that_are_none),
        WITH_BENCH(test_stat),
        WITH_BENCH(test_read_ranges),
        WITH_BENCH(test_read_only_regular_files),
        WITH_BENCH(test_magic_links_are_refused),
        WITH_BENCH(test_files_of_proc_have_a_size),
        WITH_BENCH(test_a_file_that_grows_or_shrinks),
        WITH_BENCH(test_huge_sparse_files),
        WITH_BENCH(test_write_makes_and_replaces),
        WITH_BENCH(test_write_follows_links),
        WITH_BENCH(test_write_only_regular_files),
        WITH_BENCH(test_write_counts_what_comes),
        WITH_BENCH(test_write_without_commit_changes_nothing),
        WITH_BENCH(test_write_to_a_full_disk),
        WITH_BENCH(test_odd_names),
        WITH_BENCH(test_mkdir),
        WITH_BENCH(test_move),
        WITH_BENCH(test_chmod),
        WITH_BENCH(test_attributes),
        WITH_BENCH(test_files_that_are_swapped),
        WITH_BENCH(test_an_extra_descriptor),
        WITH_BENCH(test_a_worker_that_cannot_start),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
