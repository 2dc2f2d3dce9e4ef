/* The child of init's that waits to become the next command: what it takes, what it leaves to init,
 * and that no command is lost or run twice, whatever happens to it. */
#include "init_run.h"

#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#define QUIET .flags = EXEC_QUIET

static int setup(void **state)
{
    static struct init_run r;
    init_start(&r, INIT_ARG_STRICT, 0);
    *state = &r;
    return 0;
}

static bool by_night(void)
{
    const char *v = getenv("PADDOCK_NIGHTLY");
    return v && *v && strcmp(v, "0") != 0;
}

/* Init's only child, or 0. */
static pid_t child_of(pid_t pid)
{
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    (void)fd_read_file(AT_FDCWD, path, text, sizeof text);
    return (pid_t)strtol(text, NULL, 10);
}

/* The runner, when it sleeps. */
static pid_t await_runner(const struct init_run *r)
{
    deadline d = deadline_in(PATIENCE);
    for (;;) {
        pid_t pid = child_of(r->pid);
        if (pid && state_of(pid) == 'S')
            return pid;
        if (deadline_passed(d))
            fail_msg("no runner waits: child %d in state %c", (int)pid, pid ? state_of(pid) : '-');
        usleep(500);
    }
}

static unsigned children(const struct init_run *r)
{
    char path[64], text[256] = "";
    unsigned have = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)r->pid, (int)r->pid);
    (void)fd_read_file(AT_FDCWD, path, text, sizeof text);
    for (const char *c = text; *c; c++)
        have += *c == ' ';
    return have;
}

static void ack(struct init_run *r, uint32_t id)
{
    assert_int_equal(send_plain(r->sock, WIRE_ACK, id, 0), 0);
}

static void expect_why(struct init_run *r, uint32_t id, enum pd_code code, const char *text)
{
    struct pd_err e;
    expect_error(r->sock, &r->f, id, code, &e);
    assert_non_null(strstr(e.msg, text));
}

static void test_a_command_is_the_child_that_waited(void **state)
{
    struct init_run *r = *state;
    int out[2];
    char text[64] = "";
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    for (uint32_t id = 1; id < 20; id++) {
        pid_t pid = await_runner(r);
        EXEC(r->sock, .id = id, QUIET,
             .script = "pwd; echo $PPID; ls /proc/self/fd | wc -l; exit 7", .cwd = "/usr",
             .fds = {0, out[1]});
        struct msg_exited end = expect_exited(r, id);
        assert_int_equal(end.pid, pid);
        assert_int_equal(WEXITSTATUS(end.status), 7);

        ssize_t n = read(out[0], text, sizeof text - 1);
        assert_true(n > 0);
        text[n] = 0;
        char want[64];
        snprintf(want, sizeof want, "/usr\n%d\n4\n", (int)r->pid); /* 0, 1, 2, and ls's own */
        assert_string_equal(text, want);
        ack(r, id);
    }
    close(out[0]);
    close(out[1]);
    assert_int_equal(sync_count(r->sock, &r->f, 99, 0, NULL), 0);
}

static void test_what_it_cannot_take_is_inits(void **state)
{
    struct init_run *r = *state;
    unsigned ended;

    await_runner(r);
    EXEC(r->sock, .id = 1, .script = "exit 3"); /* not quiet */
    expect_started(r, 1);
    assert_int_equal(WEXITSTATUS(expect_exited(r, 1).status), 3);
    ack(r, 1);

    await_runner(r);
    EXEC(r->sock, .id = 2, QUIET, .script = "exit 4", .epoch = 7); /* of a new owner */
    assert_int_equal(WEXITSTATUS(expect_exited(r, 2).status), 4);
    assert_int_equal(sync_count(r->sock, &r->f, 10, 7, &ended), 1);
    assert_int_equal(ended, 1);
    assert_int_equal(send_plain(r->sock, WIRE_ACK, 2, 7), 0);

    await_runner(r);
    EXEC(r->sock, .id = 3, QUIET, .script = "exit 5", .epoch = 6); /* of a dead one */
    assert_int_equal(sync_count(r->sock, &r->f, 11, 7, NULL), 0);
    expect_silence(r->sock);
}

static void test_an_id_that_runs_is_not_run_again(void **state)
{
    struct init_run *r = *state;
    int in[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);

    pid_t first = await_runner(r);
    EXEC(r->sock, .id = 1, QUIET, .script = "read x; exit 3", .fds = {in[0]});
    assert_int_equal(sync_count(r->sock, &r->f, 9, 0, NULL), 1);
    EXEC(r->sock, .id = 2, QUIET, .script = "exit 3");
    expect_exited(r, 2);
    ack(r, 2);

    EXEC(r->sock, .id = 1, QUIET, .script = "exit 4");
    assert_int_equal(expect_started(r, 1), first);
    close(in[1]);
    struct msg_exited end = expect_exited(r, 1);
    assert_int_equal(end.pid, first);
    close(in[0]);
    expect_silence(r->sock);
}

static void test_what_cannot_run_says_why_and_is_forgotten(void **state)
{
    struct init_run *r = *state;
    const char *const missing[] = {"no-such-program", NULL}, *const dir[] = {"/etc", NULL};

    for (uint32_t id = 1; id < 12; id += 4) {
        await_runner(r);
        EXEC(r->sock, .id = id, QUIET, .argv = missing);
        expect_why(r, id, PD_NO_COMMAND, "'no-such-program': command not found");
        await_runner(r);
        EXEC(r->sock, .id = id + 1, QUIET, .argv = dir);
        expect_why(r, id + 1, PD_NOT_EXECUTABLE, "'/etc': cannot be executed");
        await_runner(r);
        EXEC(r->sock, .id = id + 2, QUIET, .script = "true", .cwd = "/missing");
        expect_why(r, id + 2, PD_INVALID, "working directory '/missing'");
        await_runner(r);
        EXEC(r->sock, .id = id + 3, QUIET, .script = "true", .fd_count = 4);
        expect_why(r, id + 3, PD_PROTOCOL, "exec with 4 descriptors");
        assert_int_equal(sync_count(r->sock, &r->f, 90 + id, 0, NULL), 0);

        EXEC(r->sock, .id = 50 + id, QUIET, .script = "exit 2"); /* after SYNC it is init's */
        assert_int_equal(WEXITSTATUS(expect_exited(r, 50 + id).status), 2);
        ack(r, 50 + id);
    }
}

/* Whatever comes behind a command finds it, also if it comes before the command has its program. */
static void test_a_signal_right_behind_finds_it(void **state)
{
    struct init_run *r = *state;
    unsigned rounds = by_night() ? 3000 : 90;

    for (uint32_t id = 1; id <= rounds; id++) {
        if (id % 3)
            await_runner(r);
        EXEC(r->sock, .id = id, QUIET, .script = "sleep 100");
        send_signal(r->sock, 100000 + id, id, SIGKILL);

        bool done = false, exited = false;
        while (!done || !exited) {
            expect_frame(r->sock, &r->f);
            done |= r->f.head.type == WIRE_DONE;
            exited |= r->f.head.type == WIRE_EXITED;
            assert_true(r->f.head.type == WIRE_DONE || r->f.head.type == WIRE_EXITED);
        }
        ack(r, id);
    }
}

/* It can be killed by the kernel alone. Each command ends once, by itself or by that signal. */
static void test_a_runner_that_is_killed_loses_no_command(void **state)
{
    struct init_run *r = *state;
    unsigned rounds = by_night() ? 5000 : 120, killed = 0, ran = 0;

    for (uint32_t id = 1; id <= rounds; id++) {
        pid_t pid = await_runner(r);
        bool before = id % 2;
        if (before)
            kill(pid, SIGKILL);
        EXEC(r->sock, .id = id, QUIET, .script = "exit 3");
        if (!before) {
            struct timespec t = {.tv_nsec = (long)(id * 7919 % 150) * 1000};
            nanosleep(&t, NULL);
            kill(pid, SIGKILL);
        }

        struct msg_exited end = expect_exited(r, id);
        if (WIFSIGNALED(end.status))
            killed++;
        else
            ran += WEXITSTATUS(end.status) == 3;
        assert_int_equal(killed + ran, id);
        ack(r, id);

        /* A runner that was killed has no successor before the next command. */
        EXEC(r->sock, .id = 100000 + id, QUIET, .script = "exit 3");
        assert_int_equal(WEXITSTATUS(expect_exited(r, 100000 + id).status), 3);
        ack(r, 100000 + id);
    }
    assert_true(ran >= rounds / 2);
    expect_silence(r->sock);
}

static void test_it_ends_with_its_owner(void **state)
{
    struct init_run *r = *state;
    pid_t pid = await_runner(r);
    init_stop(r);
    r->sock = -1;

    deadline d = deadline_in(PATIENCE);
    while (state_of(pid) && state_of(pid) != 'Z' && !deadline_passed(d))
        usleep(500);
    assert_false(deadline_passed(d));
}

static void test_where_commands_may_signal_init_there_is_none(void **state)
{
    (void)state;
    static const char *const modes[] = {INIT_ARG_SINGLE, INIT_ARG_DEV, INIT_ARG_STRICT};

    for (unsigned i = 0; i < COUNT(modes); i++) {
        struct init_run r;
        init_start(&r, modes[i], 1);
        EXEC(r.sock, .id = 1, QUIET, .script = "exit 3");
        expect_exited(&r, 1);
        ack(&r, 1);
        if (i + 1 == COUNT(modes)) { /* the control */
            await_runner(&r);
        } else {
            struct timespec moment = {.tv_nsec = A_MOMENT};
            nanosleep(&moment, NULL); /* a hundred times as long as one takes */
            assert_int_equal(child_of(r.pid), 0);
        }
        init_stop(&r);
    }
}

/* A worker would be looked at twice: after one none is made until a command comes again. */
static void test_it_waits_for_commands_alone(void **state)
{
    struct init_run *r = *state;
    const char *const words[] = {"stat", "/", NULL};
    int out[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);

    await_runner(r);
    EXEC(r->sock, .id = 1, .flags = EXEC_QUIET | EXEC_WORKER, .argv = words, .fds = {0, out[1]});
    expect_exited(r, 1);
    ack(r, 1);
    struct timespec moment = {.tv_nsec = A_MOMENT};
    nanosleep(&moment, NULL);
    assert_int_equal(child_of(r->pid), 0);

    EXEC(r->sock, .id = 2, QUIET, .script = "exit 3");
    expect_exited(r, 2);
    ack(r, 2);
    await_runner(r);
    close(out[0]);
    close(out[1]);
}

/* It would be one of the processes that the sandbox may have, and who forks the last of them would
 * be refused it. */
static void test_none_waits_while_a_command_runs(void **state)
{
    struct init_run *r = *state;

    await_runner(r);
    EXEC(r->sock, .id = 1, QUIET, .script = "exec sleep 600");
    EXEC(r->sock, .id = 2, QUIET, .script = "exit 3");
    assert_int_equal(WEXITSTATUS(expect_exited(r, 2).status), 3);
    ack(r, 2);
    struct timespec moment = {.tv_nsec = A_MOMENT};
    nanosleep(&moment, NULL);
    assert_int_equal(children(r), 1); /* the command that runs */

    pid_t pid = child_of(r->pid);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(expect_exited(r, 1).pid, pid);
    ack(r, 1);
    assert_int_not_equal(await_runner(r), pid);
}

static void test_it_does_not_wait_for_ever(void **state)
{
    struct init_run *r = *state;
    if (!by_night())
        skip_because("by day: it takes 30 s");

    await_runner(r);
    deadline d = deadline_in(PATIENCE);
    while (child_of(r->pid) && !deadline_passed(d))
        usleep(100000);
    assert_int_equal(child_of(r->pid), 0);
    EXEC(r->sock, .id = 2, QUIET, .script = "exit 3");
    expect_exited(r, 2);
    ack(r, 2);
    await_runner(r);
}

#define OWNED(test) cmocka_unit_test_setup_teardown(test, setup, init_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        OWNED(test_a_command_is_the_child_that_waited),
        OWNED(test_what_it_cannot_take_is_inits),
        OWNED(test_an_id_that_runs_is_not_run_again),
        OWNED(test_what_cannot_run_says_why_and_is_forgotten),
        OWNED(test_a_signal_right_behind_finds_it),
        OWNED(test_a_runner_that_is_killed_loses_no_command),
        OWNED(test_it_ends_with_its_owner),
        OWNED(test_it_waits_for_commands_alone),
        OWNED(test_none_waits_while_a_command_runs),
        OWNED(test_it_does_not_wait_for_ever),
        cmocka_unit_test(test_where_commands_may_signal_init_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
