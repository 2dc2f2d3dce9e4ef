/* libpaddock, from its public header down to real jails. What is linked here is the library's own
 * code, so that the sanitizers see it; the program that it starts is the release. */
#include "lib_sandbox.h"

#include <paddock.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_ceilings(void **state)
{
    (void)state;
    need_sandboxes();
    const struct paddock_sandbox_options greedy[] = {
        {.size = sizeof *greedy, .memory = 1ull << 44},
        {.size = sizeof *greedy, .pids = 32768},
        {.size = sizeof *greedy, .cpu_milli = 1024000},
        {.size = sizeof *greedy, .max_life_ms = 366ull * 86400000},
    };
    struct paddock_error e;

    for (size_t i = 0; i < sizeof greedy / sizeof *greedy; i++) {
        assert_null(paddock_create(lib, &greedy[i], &e));
        assert_string_equal(e.code, "invalid");
        assert_non_null(strstr(e.message, "ceiling of"));
    }
    struct paddock_sandbox *s = make();
    assert_int_equal(paddock_extend(s, 0, 366ull * 86400000, &e), -1);
    assert_string_equal(e.code, "invalid");
    end(s);
}

static void run(struct paddock_sandbox *s, const char *line, struct paddock_result *r)
{
    struct paddock_error e;
    struct paddock_command c = {.size = sizeof c, .command = line, .timeout_ms = 20000};
    *r = (struct paddock_result){.size = sizeof *r};
    if (paddock_exec(s, &c, r, &e) < 0)
        fail_msg("%s: %s: %s", line, e.code, e.message);
}

static void expect_output(struct paddock_sandbox *s, const char *line, const char *out)
{
    struct paddock_result r;
    run(s, line, &r);
    if (r.exit_code != 0 || strcmp(r.out, out) != 0)
        fail_msg("%s: %d, '%s' instead of '%s' (%s)", line, r.exit_code, r.out, out, r.err);
    paddock_result_done(&r);
}

static void expect_state(struct paddock_sandbox *s, const char *state)
{
    struct paddock_sandbox_info i = {.size = sizeof i};
    for (int n = 0; n < 600; n++) {
        assert_int_equal(paddock_sandbox_get(s, &i, NULL), 0);
        if (!strcmp(i.state, state))
            return;
        usleep(100000);
    }
    fail_msg("it is %s, and not %s", i.state, state);
}

/* ---- the library ---- */

static void test_it_says_what_it_is(void **state)
{
    (void)state;
    struct paddock_info i = {.size = sizeof i};
    assert_int_equal(paddock_abi(), PADDOCK_ABI);
    assert_true(strchr(paddock_version(), '.') != NULL);
    need_sandboxes();
    assert_int_equal(paddock_get_info(lib, &i, NULL), 0);
    assert_true(i.keeper_pid > 1);
    assert_true(!strcmp(i.isolation, "full") == !i.missing[0]);
    assert_string_equal(i.program, getenv("PADDOCK_PROGRAM"));
}

static void test_a_program_that_is_not_there_is_named(void **state)
{
    (void)state;
    struct paddock_error e;
    struct paddock_options o = {.size = sizeof o, .program = "/nowhere/paddock"};
    assert_null(paddock_open(&o, &e));
    assert_string_equal(e.code, "not_found");
    assert_non_null(strstr(e.message, "/nowhere/paddock"));
    /* One that is something else does not answer: said so, and not for ever waited for. */
    o.program = "/bin/true";
    assert_null(paddock_open(&o, &e));
    assert_non_null(strstr(e.message, "keeper"));
}

static void test_a_size_that_was_not_set_is_refused(void **state)
{
    (void)state;
    struct paddock_error e;
    struct paddock_command c = {.command = "true"};
    struct paddock_result r = {.size = sizeof r};

    need_sandboxes();
    struct paddock_sandbox *s = make();
    assert_int_equal(paddock_exec(s, &c, &r, &e), -1);
    assert_string_equal(e.code, "invalid");

    c.size = sizeof c;
    r.size = 0;
    assert_int_equal(paddock_exec(s, &c, &r, &e), -1);
    assert_string_equal(e.code, "invalid");
    end(s);
}

/* A program that was compiled with an older header has smaller structs. */
static void test_smaller_structs_are_not_overrun(void **state)
{
    (void)state;
    struct {
        size_t size;
        char id[24];
        char behind[16];
    } info = {.size = sizeof info.size + sizeof info.id, .behind = "untouched"};
    need_sandboxes();

    struct paddock_sandbox *s = make();
    assert_int_equal(paddock_sandbox_get(s, (struct paddock_sandbox_info *)&info, NULL), 0);
    assert_int_equal(strlen(info.id), 20);
    assert_string_equal(info.behind, "untouched");

    struct {
        size_t size;
        const char *command;
    } c = {.size = sizeof c, .command = "echo small"};

    struct paddock_result r = {.size = sizeof r};
    assert_int_equal(paddock_exec(s, (struct paddock_command *)&c, &r, NULL), 0);
    assert_string_equal(r.out, "small\n");
    paddock_result_done(&r);
    end(s);
}

/* ---- commands ---- */

static void test_a_command_runs(void **state)
{
    (void)state;
    struct paddock_result r;
    need_sandboxes();

    struct paddock_sandbox *s = make();
    run(s, "echo out; echo err >&2; exit 3", &r);
    assert_int_equal(r.exit_code, 3);
    assert_string_equal(r.out, "out\n");
    assert_string_equal(r.err, "err\n");
    assert_int_equal(r.out_len, 4);
    assert_int_equal(r.out_total, 4);
    assert_int_equal(strlen(r.process_id), 32);
    paddock_result_done(&r);

    /* It is a jail, and not this machine. */
    expect_output(s, "pwd; id -un; ls /proc | grep -c '^[0-9]' >/tmp/n; [ $(cat /tmp/n) -lt 12 ]",
                  "/workspace\nuser\n");

    /* State holds for the next one. */
    expect_output(s, "cd /tmp; export COLOUR=green", "");
    expect_output(s, "echo $PWD $COLOUR", "/tmp green\n");

    run(s, "kill -9 $$", &r);
    assert_int_equal(r.signal, SIGKILL);
    assert_int_equal(r.exit_code, -1);
    paddock_result_done(&r);
    end(s);
}

static void test_a_program_gets_its_words_and_input(void **state)
{
    (void)state;
    struct paddock_error e;
    need_sandboxes();

    struct paddock_sandbox *s = make();
    const char *const argv[] = {"/bin/sh", "-c", "cat; echo \"$1|$NAME|$PWD\"", "x", "a  b", NULL};
    const char *const env[] = {"NAME=v a l", NULL};
    struct paddock_command c = {.size = sizeof c,
                                .argv = argv,
                                .env = env,
                                .cwd = "/tmp",
                                .input = "in\0put\n",
                                .input_len = 7,
                                .timeout_ms = 20000};

    struct paddock_result r = {.size = sizeof r};
    assert_int_equal(paddock_exec(s, &c, &r, &e), 0);
    assert_int_equal(r.out_len, 7 + strlen("a  b|v a l|/tmp\n"));
    assert_memory_equal(r.out, "in\0put\na  b|v a l|/tmp\n", r.out_len);
    assert_int_equal(r.state, -1);
    paddock_result_done(&r);

    const char *const missing[] = {"/no/such/program", NULL};
    c = (struct paddock_command){.size = sizeof c, .argv = missing};
    assert_int_equal(paddock_exec(s, &c, &r, &e), -1);
    assert_string_equal(e.code, "no_command");
    end(s);
}

static void test_long_output_is_cut_in_the_middle(void **state)
{
    (void)state;
    need_sandboxes();

    struct paddock_sandbox *s = make();
    struct paddock_command c = {
        .size = sizeof c, .command = "seq 1 100000", .output_max = 1000, .timeout_ms = 20000};
    struct paddock_result r = {.size = sizeof r};
    assert_int_equal(paddock_exec(s, &c, &r, NULL), 0);
    assert_int_equal(r.out_total, 588895);
    assert_int_equal(r.out_len, 1000);
    assert_int_equal(r.out_head, 500);
    assert_memory_equal(r.out, "1\n2\n", 4);
    assert_string_equal(r.out + r.out_len - 7, "100000\n");
    assert_int_equal(r.err_head, 0);

    /* What was left out is still to be had. */
    struct paddock_process *p = paddock_find_process(s, r.process_id, NULL);
    char piece[8] = "";
    assert_non_null(p);
    assert_int_equal(paddock_process_read(p, PADDOCK_STDOUT, 500, piece, 7, NULL), 7);

    paddock_process_release(p);
    paddock_result_done(&r);
    end(s);
}

static void test_time_is_limited(void **state)
{
    (void)state;
    need_sandboxes();

    struct paddock_sandbox *s = make();
    struct paddock_command c = {
        .size = sizeof c, .command = "echo begun; sleep 60 & wait", .timeout_ms = 300};
    struct paddock_result r = {.size = sizeof r};
    assert_int_equal(paddock_exec(s, &c, &r, NULL), 0);
    assert_true(r.timed_out);
    assert_string_equal(r.stopped_by, "timeout");
    assert_string_equal(r.out, "begun\n");
    paddock_result_done(&r);
    expect_output(s, "pgrep sleep || echo none", "none\n");
    end(s);
}

struct heard {
    char text[64];
    size_t len;
    atomic_uint calls;
    unsigned stop_after;
};

static int hear(void *arg, int stream, const void *data, size_t len)
{
    struct heard *h = arg;
    if (stream == PADDOCK_STDOUT && h->len + len < sizeof h->text) {
        memcpy(h->text + h->len, data, len);
        h->len += len;
    }
    return atomic_fetch_add(&h->calls, 1) + 1 == h->stop_after;
}

struct answerer {
    struct paddock_sandbox *sandbox;
    struct heard *heard;
};

/* Makes the files 1 and 2 when as much was heard. */
static void *answer_what_is_heard(void *arg)
{
    struct answerer *a = arg;
    struct paddock_result r = {.size = sizeof r};
    for (unsigned n = 1; n <= 2; n++) {
        struct paddock_command c = {.size = sizeof c, .command = n == 1 ? "touch 1" : "touch 2"};
        for (int i = 0; i < 60000 && atomic_load(&a->heard->calls) < n; i++)
            usleep(1000);
        if (paddock_exec(a->sandbox, &c, &r, NULL) == 0)
            paddock_result_done(&r);
    }
    return NULL;
}

static void test_output_is_told_as_it_comes(void **state)
{
    (void)state;
    need_sandboxes();
    struct paddock_sandbox *s = make();
    struct heard h = {0};

    /* Each line but the first waits until the one before was heard. */
    struct paddock_command c = {.size = sizeof c,
                                .command = "echo one; until [ -e 1 ]; do sleep 0.01; done; "
                                           "echo two; until [ -e 2 ]; do sleep 0.01; done; "
                                           "echo three",
                                .timeout_ms = 60000,
                                .on_output = hear,
                                .arg = &h};

    struct paddock_result r = {.size = sizeof r};
    struct answerer a = {.sandbox = s, .heard = &h};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, answer_what_is_heard, &a), 0);
    assert_int_equal(paddock_exec(s, &c, &r, NULL), 0);

    pthread_join(t, NULL);
    assert_string_equal(h.text, "one\ntwo\nthree\n");
    assert_int_equal(h.calls, 3);
    assert_string_equal(r.out, h.text);
    paddock_result_done(&r);

    /* Who has heard enough ends it. */
    h = (struct heard){.stop_after = 2};
    c.command = "while :; do echo more; sleep 0.1; done";
    assert_int_equal(paddock_exec(s, &c, &r, NULL), 0);
    assert_string_equal(r.stopped_by, "abandoned");
    paddock_result_done(&r);
    end(s);
}

static void *cancel_soon(void *arg)
{
    usleep(200000);
    paddock_cancel(arg);
    return NULL;
}

static void test_a_call_can_be_cancelled(void **state)
{
    (void)state;
    struct paddock_error e;
    pthread_t t;
    need_sandboxes();

    struct paddock_sandbox *s = make();
    struct paddock_cancel *cancel = paddock_cancel_new(NULL);
    struct paddock_command c = {.size = sizeof c, .command = "sleep 60", .cancel = cancel};
    struct paddock_result r = {.size = sizeof r};
    assert_int_equal(pthread_create(&t, NULL, cancel_soon, cancel), 0);
    assert_int_equal(paddock_exec(s, &c, &r, &e), -1);
    assert_string_equal(e.code, "cancelled");
    pthread_join(t, NULL);

    /* What the shell had started dies with it, on a busy machine a moment later. */
    bool none = false;
    for (int n = 0; n < 600 && !none; n++, usleep(none ? 0 : 100000)) {
        run(s, "pgrep sleep || echo none", &r);
        none = !strcmp(r.out, "none\n");
        paddock_result_done(&r);
    }

    assert_true(none);
    paddock_cancel_free(cancel);
    end(s);
}

static void test_a_process_in_the_background(void **state)
{
    (void)state;
    struct paddock_error e;
    char text[64] = "";
    need_sandboxes();

    struct paddock_sandbox *s = make();
    struct paddock_command c = {.size = sizeof c, .command = "tr a-z A-Z", .keep_stdin = 1};
    struct paddock_process *p = paddock_start(s, &c, &e);
    assert_non_null(p);

    struct paddock_process_info i = {.size = sizeof i};
    assert_int_equal(paddock_process_get(p, &i, NULL), 0);
    assert_true(i.running && i.pid > 1 && i.stdin_open);
    assert_int_equal(paddock_process_write(p, "hello\n", 6, 1000, NULL), 0);
    assert_int_equal(paddock_process_wait(p, UINT64_MAX, UINT64_MAX, 50, NULL, NULL), 0);
    assert_int_equal(paddock_process_close_stdin(p, NULL), 0);
    assert_int_equal(paddock_process_wait(p, UINT64_MAX, UINT64_MAX, 60000, NULL, NULL), 1);
    assert_int_equal(paddock_process_read(p, PADDOCK_STDOUT, 0, text, sizeof text, NULL), 6);
    assert_string_equal(text, "HELLO\n");
    assert_int_equal(paddock_process_get(p, &i, NULL), 0);
    assert_int_equal(i.exit_code, 0);

    /* Nobody reads any more: an error, and no SIGPIPE in this process. */
    assert_int_equal(paddock_process_write(p, "x", 1, 1000, &e), -1);
    assert_string_equal(e.code, "conflict");

    paddock_process_release(p);
    c.command = "exec 0<&-; echo closed; sleep 60";
    p = paddock_start(s, &c, &e);
    assert_int_equal(paddock_process_wait(p, 0, 0, 60000, NULL, NULL), 1);

    /* Init lets go of the other end a moment later. */
    int written = 0;
    for (int n = 0; n < 6000 && written == 0; n++, usleep(10000))
        written = paddock_process_write(p, "x", 1, 1000, &e);

    assert_int_equal(written, -1);
    assert_string_equal(e.code, "conflict");
    assert_int_equal(paddock_process_signal(p, SIGKILL, NULL), 0);
    assert_int_equal(paddock_process_get(p, &i, NULL), 0);
    assert_false(i.running);
    assert_int_equal(i.signal, SIGKILL);
    paddock_process_release(p);
    end(s);
}

static void test_a_terminal(void **state)
{
    (void)state;
    char text[256] = "";
    need_sandboxes();

    struct paddock_sandbox *s = make();
    struct paddock_command c = {.size = sizeof c,
                                .command = "stty size; read x; stty size",
                                .pty = 1,
                                .rows = 30,
                                .cols = 90};
    struct paddock_process *p = paddock_start(s, &c, NULL);
    assert_non_null(p);
    assert_int_equal(paddock_process_wait(p, 0, 0, 60000, NULL, NULL), 1);
    assert_int_equal(paddock_process_resize(p, 40, 100, NULL), 0);
    assert_int_equal(paddock_process_write(p, "\n", 1, 1000, NULL), 0);
    assert_int_equal(paddock_process_wait(p, UINT64_MAX, UINT64_MAX, 60000, NULL, NULL), 1);
    assert_true(paddock_process_read(p, PADDOCK_STDOUT, 0, text, sizeof text - 1, NULL) > 0);
    assert_non_null(strstr(text, "30 90"));
    assert_non_null(strstr(text, "40 100"));

    paddock_process_release(p);
    end(s);
}

/* ---- sandboxes ---- */

static int count_one(void *arg, struct paddock_sandbox *s)
{
    struct paddock_sandbox_info i = {.size = sizeof i};
    assert_int_equal(paddock_sandbox_get(s, &i, NULL), 0);
    ++*(unsigned *)arg;
    return 0;
}

static void test_a_thread_finds_its_sandbox_again(void **state)
{
    (void)state;
    struct paddock_error e;
    struct paddock_sandbox_options o = {
        .size = sizeof o, .user_id = "ann", .thread_id = "1", .metadata = "{\"a\":\"b\"}"};
    int created = 0;
    need_sandboxes();

    struct paddock_sandbox *s = paddock_get_or_create(lib, &o, &created, &e);
    assert_non_null(s);
    assert_true(created);
    expect_output(s, "echo kept > /workspace/x", "");

    struct paddock_sandbox *again = paddock_get_or_create(lib, &o, &created, &e);
    assert_false(created);
    expect_output(again, "cat /workspace/x", "kept\n");

    paddock_release(again);
    const char *const wanted[] = {"a=b", NULL}, *const other[] = {"a=c", NULL};
    struct paddock_filter f = {.size = sizeof f, .user_id = "ann", .metadata = wanted};
    unsigned count = 0;
    assert_int_equal(paddock_list(lib, &f, count_one, &count, &e), 0);
    assert_int_equal(count, 1);

    f.metadata = other;
    assert_int_equal(paddock_list(lib, &f, count_one, &count, &e), 0);
    assert_int_equal(count, 1);

    paddock_release(s);
    assert_non_null(s = paddock_find_thread(lib, "ann", "1", &e));
    end(s);
}

/* The program that holds the sandboxes dies: they are lost, which is told and not hidden. */
static void test_a_lost_sandbox_is_not_made_anew_silently(void **state)
{
    (void)state;
    struct paddock_error e;
    struct paddock_sandbox_options o = {.size = sizeof o, .user_id = "ann", .thread_id = "2"};
    struct paddock_info i = {.size = sizeof i};
    struct paddock_command c = {.size = sizeof c, .command = "sleep 60"};
    struct paddock_result r = {.size = sizeof r};
    int created;
    need_sandboxes();

    struct paddock_sandbox *s = paddock_get_or_create(lib, &o, &created, &e), *fresh = NULL;
    assert_non_null(s);
    expect_output(s, "echo kept > /workspace/x", "");
    assert_int_equal(paddock_get_info(lib, &i, NULL), 0);
    assert_int_equal(kill(i.keeper_pid, SIGKILL), 0);

    if (paddock_exec(s, &c, &r, &e) == 0) {
        assert_string_equal(r.stopped_by, "sandbox");
        paddock_result_done(&r);
    } else {
        if (!strstr(e.code, "lost"))
            fail_msg("%s: %s", e.code, e.message);
    }

    expect_state(s, "gone");
    assert_null(paddock_get_or_create(lib, &o, &created, &e));
    assert_string_equal(e.code, "session_lost");
    assert_true(e.retryable);

    /* Another keeper is started; meanwhile it is worth trying again. */
    o.auto_retry = 1;
    for (int n = 0; n < 1200 && !(fresh = paddock_get_or_create(lib, &o, &created, &e)); n++) {
        assert_true(e.retryable);
        usleep(50000);
    }
    assert_non_null(fresh);
    assert_true(created);

    run(fresh, "cat /workspace/x", &r);
    assert_int_not_equal(r.exit_code, 0);
    paddock_result_done(&r);

    struct paddock_sandbox_info now = {.size = sizeof now};
    assert_int_equal(paddock_sandbox_get(fresh, &now, NULL), 0);
    assert_true(now.recreated);
    paddock_release(s);
    end(fresh);
}

static void test_a_sandbox_is_paused_and_ends_when_idle(void **state)
{
    (void)state;
    struct paddock_error e;
    struct paddock_command c = {.size = sizeof c, .command = "true"};
    struct paddock_result r = {.size = sizeof r};
    struct paddock_sandbox_info i = {.size = sizeof i};
    need_sandboxes();

    struct paddock_sandbox *s = make();
    if (paddock_pause(s, &e) == 0) {
        assert_int_equal(paddock_exec(s, &c, &r, &e), -1);
        assert_string_equal(e.code, "paused");
        assert_int_equal(paddock_resume(s, &e), 0);
    } else {
        assert_string_equal(e.code, "unsupported");
    }
    assert_int_equal(paddock_extend(s, 1000, 0, &e), 0);
    expect_state(s, "gone");
    assert_int_equal(paddock_sandbox_get(s, &i, NULL), 0);
    assert_string_equal(i.end_cause, "idle");
    assert_int_equal(paddock_exec(s, &c, &r, &e), -1);
    assert_string_equal(e.code, "session_expired");
    paddock_release(s);
}

static void test_the_environment_is_set_and_told(void **state)
{
    (void)state;
    struct paddock_error e;
    const char *const set[] = {"A=1", "B=two words", NULL}, *const unset[] = {"A", NULL};
    char *json, *cwd;
    need_sandboxes();

    struct paddock_sandbox *s = make();
    assert_int_equal(paddock_env_set(s, set, NULL, "/tmp", &e), 0);
    assert_int_equal(paddock_env_set(s, NULL, unset, NULL, &e), 0);
    expect_output(s, "echo \"$A|$B|$PWD\"", "|two words|/tmp\n");
    assert_int_equal(paddock_env_get(s, &json, &cwd, &e), 0);
    assert_non_null(strstr(json, "\"two words\""));
    assert_string_equal(cwd, "/tmp");
    paddock_free(json);
    paddock_free(cwd);

    const char *const bad[] = {"no equals", NULL};
    assert_int_equal(paddock_env_set(s, bad, NULL, NULL, &e), -1);
    assert_string_equal(e.code, "invalid");
    end(s);
}

/* ---- threads ---- */

#define THREADS 8

static void *work(void *arg)
{
    struct paddock_sandbox *shared = arg;
    struct paddock_error e;
    struct paddock_sandbox *own = paddock_create(lib, NULL, &e);
    if (!own)
        return (void *)"create";

    for (int i = 0; i < 6; i++) {
        struct paddock_sandbox *s = i % 2 ? own : shared;
        char line[64], want[16];
        snprintf(line, sizeof line, "echo %d; echo %d > f$$; cat f$$ >&2", i, i);
        snprintf(want, sizeof want, "%d\n", i);
        struct paddock_command c = {.size = sizeof c, .command = line, .timeout_ms = 30000};
        struct paddock_result r = {.size = sizeof r};
        if (paddock_exec(s, &c, &r, &e) < 0)
            return (void *)"exec";
        int good = !strcmp(r.out, want) && !strcmp(r.err, want);
        paddock_result_done(&r);
        if (!good)
            return (void *)"output";
    }

    if (paddock_end(own, 0, &e) < 0)
        return (void *)"end";
    paddock_release(own);
    return NULL;
}

static void test_threads_share_everything(void **state)
{
    (void)state;
    pthread_t t[THREADS];
    need_sandboxes();
    struct paddock_sandbox *shared = make();
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, work, shared), 0);

    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(t[i], &failed);
        if (failed)
            fail_msg("thread %d: %s", i, (char *)failed);
    }
    end(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_says_what_it_is),
        cmocka_unit_test(test_a_program_that_is_not_there_is_named),
        cmocka_unit_test(test_a_size_that_was_not_set_is_refused),
        cmocka_unit_test(test_smaller_structs_are_not_overrun),
        cmocka_unit_test(test_a_command_runs),
        cmocka_unit_test(test_a_program_gets_its_words_and_input),
        cmocka_unit_test(test_long_output_is_cut_in_the_middle),
        cmocka_unit_test(test_time_is_limited),
        cmocka_unit_test(test_output_is_told_as_it_comes),
        cmocka_unit_test(test_a_call_can_be_cancelled),
        cmocka_unit_test(test_a_process_in_the_background),
        cmocka_unit_test(test_a_terminal),
        cmocka_unit_test(test_a_thread_finds_its_sandbox_again),
        cmocka_unit_test(test_a_lost_sandbox_is_not_made_anew_silently),
        cmocka_unit_test(test_a_sandbox_is_paused_and_ends_when_idle),
        cmocka_unit_test(test_the_environment_is_set_and_told),
        cmocka_unit_test(test_ceilings),
        cmocka_unit_test(test_threads_share_everything),
    };

    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
