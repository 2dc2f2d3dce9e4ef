/* worker_run: workers of a real init, in a directory of their own, as the user 1000 when the test
 * runs as root. */
#pragma once

#include "init_run.h"

#include "wire/record.h"

#include <limits.h>
#include <poll.h>

#define USER_ID 1000u

struct bench {
    struct init_run init;
    char dir[64];
    uint32_t uid;
    uint32_t next_id;
};

/* A worker that runs. Its ends of the pipes are closed here. */
struct job {
    uint32_t id;
    int in, out, go; /* -1: closed */
};

#define OP(...) ((const char *const[]){__VA_ARGS__, NULL})

static inline int run_shell(const struct bench *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* A shell command of the test's own, in the directory. */
static inline int run_shell(const struct bench *b, const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pid_t pid = child_fork();
    assert_true(pid >= 0);

    if (pid == 0) {
        if (chdir(b->dir) < 0)
            _exit(99);
        execl("/bin/bash", "bash", "-c", text, (char *)NULL);
        _exit(98);
    }

    return wait_child(pid);
}

/* The same as the user whom workers run as. */
#define SHELL(b, ...) assert_int_equal(run_shell(b, __VA_ARGS__), 0)

static inline int bench_setup(void **state)
{
    static struct bench b;
    b = (struct bench){.uid = geteuid() == 0 ? USER_ID : geteuid(), .next_id = 1};
    snprintf(b.dir, sizeof b.dir, "/tmp/worker-test-XXXXXX");
    assert_non_null(mkdtemp(b.dir));
    if (geteuid() == 0)
        assert_int_equal(chown(b.dir, b.uid, b.uid), 0);
    init_start(&b.init, geteuid() == 0 ? INIT_ARG_STRICT : INIT_ARG_SINGLE, 0);
    *state = &b;
    return 0;
}

static inline int bench_teardown(void **state)
{
    struct bench *b = *state;
    if (b->init.sock >= 0)
        init_stop(&b->init);
    char dir[64];
    memcpy(dir, b->dir, sizeof dir);
    snprintf(b->dir, sizeof b->dir, "/");
    (void)run_shell(b, "chmod -R u+rwx %s 2>/dev/null; rm -rf %s", dir, dir);
    return 0;
}

/* Moves an empty directory of tests to a file system in memory, where there is one. */
static inline void bench_in_memory(struct bench *b)
{
    char dir[64] = "/dev/shm/worker-test-XXXXXX";
    if (!mkdtemp(dir))
        return;
    assert_int_equal(rmdir(b->dir), 0);
    memcpy(b->dir, dir, sizeof dir);
    if (geteuid() == 0)
        assert_int_equal(chown(b->dir, b->uid, b->uid), 0);
}

/* Starts an operation; the job's ends are the test's. */
static inline struct job job_start(struct bench *b, const char *const *argv)
{
    int in[2], out[2], go[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);

    struct job j = {.id = b->next_id++, .in = in[1], .out = out[0], .go = go[1]};
    struct exec_request q = {.id = j.id,
                             .flags = EXEC_WORKER | EXEC_QUIET,
                             .uid = b->uid,
                             .cwd = b->dir,
                             .argv = argv,
                             .fds = {in[0], out[1], go[0]}};
    assert_int_equal(send_exec(b->init.sock, q), 0);

    close(in[0]);
    close(out[1]);
    close(go[0]);
    return j;
}

/* The worker's end: its status as wait(2) gives it. */
static inline int job_end(struct bench *b, struct job *j)
{
    fd_done(&j->in);
    fd_done(&j->go);
    fd_done(&j->out);
    struct msg_exited m = expect_exited(&b->init, j->id);
    send_plain(b->init.sock, WIRE_ACK, j->id, 0);
    return m.status;
}

/* The next record, or kind 0 at the end. Strings live in a static buffer. */
static inline struct record job_record(struct job *j)
{
    static struct buf scratch = RECORD_SCRATCH;
    struct record r = {0};
    struct pd_err e = {.msg = ""};
    int n = record_read(j->out, &scratch, &r, deadline_in(PATIENCE), &e);
    if (n < 0)
        fail_msg("no record: %s", e.msg);
    return r;
}

static inline void show_error(const struct record *r, const char *instead)
{
    if (r->kind == RECORD_ERROR)
        fail_msg("error %s (%d: %s) instead of %s", pd_code_name((enum pd_code)r->error.code),
                 r->error.sys, r->error.text, instead);
    fail_msg("record of kind %u instead of %s", (unsigned)r->kind, instead);
}

static inline struct record expect_kind(struct job *j, enum record_kind kind, const char *what)
{
    struct record r = job_record(j);
    if (r.kind != kind)
        show_error(&r, what);
    return r;
}

/* Runs an operation that must fail with this code; the text must hold `word`. */
static inline void expect_refusal(struct bench *b, const char *const *argv, enum pd_code code,
                                  const char *word)
{
    struct job j = job_start(b, argv);
    (void)!write(j.go, "C", 1);
    fd_done(&j.in);
    struct record r = job_record(&j);
    if (r.kind != RECORD_ERROR)
        fail_msg("%s %s: a record of kind %u instead of the error %s", argv[0], argv[1],
                 (unsigned)r.kind, pd_code_name(code));
    if (r.error.code != code || !strstr(r.error.text, word))
        fail_msg("%s %s: error %s instead of %s, or no '%s' in: %s", argv[0], argv[1],
                 pd_code_name((enum pd_code)r.error.code), pd_code_name(code), word, r.error.text);
    assert_int_equal(WEXITSTATUS(job_end(b, &j)), 1);
}

/* Runs an operation that answers with one record and succeeds. */
static inline struct record expect_answer(struct bench *b, const char *const *argv,
                                          enum record_kind kind)
{
    struct job j = job_start(b, argv);
    (void)!write(j.go, "C", 1);
    fd_done(&j.in);
    struct record r = expect_kind(&j, kind, argv[0]);
    int status = job_end(b, &j);
    if (status != 0)
        fail_msg("%s: status %x", argv[0], (unsigned)status);
    return r;
}

/* Everything up to the end; free it. */
static inline char *job_bytes(struct job *j, size_t *ret_len)
{
    size_t have = 0, room = 1 << 16;
    char *out = malloc(room);

    for (;;) {
        struct pollfd p = {.fd = j->out, .events = POLLIN};
        if (poll(&p, 1, (int)(PATIENCE / NS_PER_MS)) != 1)
            fail_msg("the worker does not go on");
        if (have + 1 >= room)
            out = realloc(out, room *= 2);
        assert_non_null(out);
        ssize_t n = read(j->out, out + have, room - have - 1);
        assert_true(n >= 0);
        if (n == 0)
            break;
        have += (size_t)n;
    }

    out[have] = 0;
    *ret_len = have;
    return out;
}

/* Writes a file by a worker. */
static inline void put_file(struct bench *b, const char *path, const char *text)
{
    char length[24];
    snprintf(length, sizeof length, "%zu", strlen(text));
    struct job j = job_start(b, OP("write", path, "-", "1", length));
    assert_int_equal(fd_write_all(j.in, text, strlen(text)), 0);
    fd_done(&j.in);
    assert_int_equal(write(j.go, "C", 1), 1);
    expect_kind(&j, RECORD_ENTRY, "an entry");
    assert_int_equal(job_end(b, &j), 0);
}

/* The contents of a file, as a worker reads it, must be `text`. */
static inline void expect_file(struct bench *b, const char *path, const char *text)
{
    struct job j = job_start(b, OP("read", path, "0", "-"));
    struct record r = expect_kind(&j, RECORD_ENTRY, "an entry");
    assert_int_equal(r.entry.size, strlen(text));
    size_t len;
    char *got = job_bytes(&j, &len);
    assert_int_equal(len, strlen(text));
    assert_memory_equal(got, text, len);
    free(got);
    assert_int_equal(job_end(b, &j), 0);
}

/* How many files the directory holds, temporary ones included. */
static inline unsigned count_files(const struct bench *b, const char *sub)
{
    char path[PATH_MAX];
    unsigned n = 0;
    snprintf(path, sizeof path, "%s/%s", b->dir, sub);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}
