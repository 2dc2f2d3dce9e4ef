/* Init in a container that somebody else made: how it finds its owner, and another, and how it
 * ends. */
#include "box_run.h"

#define USUAL .caps = CAPS_ENGINE, .words = {WORDS_IN_RUN}

static void test_the_door_brings_an_owner_and_facts(void **state)
{
    (void)state;
    struct box_run r;
    char text[200];
    struct msg_facts m = box_own(&r, (struct box_how){USUAL});
    assert_int_equal(m.mode, FACTS_STRICT);
    assert_int_equal(m.uid, 1000);
    assert_int_equal(m.gid, 1000);
    assert_int_equal(m.root, 0);
    assert_int_equal(m.shell_kind, FACTS_BASH);
    assert_string_equal(m.workspace, "/run/work");
    assert_string_equal(m.home, "/run/home");
    assert_string_equal(m.missing, "");
    uint32_t pos = 0;
    assert_string_equal(msg_list_next(&m.environ, &pos), "PATH=/usr/bin:/bin");
    assert_string_equal(msg_list_next(&m.environ, &pos), "FROM_IMAGE=yes");
    assert_null(msg_list_next(&m.environ, &pos));

    assert_int_equal(box_line(&r, 2, 1000,
                              "id -u; cd /run/work && touch a && cd /run/home && echo ok", text,
                              sizeof text),
                     0);
    assert_string_equal(text, "1000\nok\n");

    /* Facts come again before every list, for a server that was started anew. */
    assert_int_equal(send_plain(r.init.sock, WIRE_SYNC, 3, 1), 0);
    (void)box_facts(&r);
    expect_type(r.init.sock, &r.init.f, WIRE_SYNC_END, 3);
    box_stop(&r);
}

static void test_a_door_that_nobody_opens_is_told(void **state)
{
    (void)state;
    struct box_run r;
    char text[500];
    box_start(&r,
              (struct box_how){.caps = CAPS_ENGINE, .words = {WORDS_IN_RUN, "at=/run/other/door"}});
    box_words(&r, text, sizeof text);
    assert_non_null(strstr(text, "connect to the door /run/other/door: No such file"));
    assert_int_equal(wait_child(r.init.pid), 256);
    box_clean(&r);
}

static void test_bad_words_are_told(void **state)
{
    (void)state;
    static const struct {
        const char *word, *said;
    } rows[] = {{"lease=soon", "lease"},
                {"user=x:1", "user"},
                {"nonsense", "'nonsense' is no word"},
                {"at=door", "absolute path"},
                {"filter=f", "absolute path"},
                {"filter=/no/such", "open the filter of system calls /no/such: No such file"},
                {"filter=/dev/null", "/dev/null is no filter"},
                {"profile=weak", "strict or dev"}};

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct box_run r;
        char text[500];
        box_start(&r, (struct box_how){.caps = CAPS_ENGINE, .words = {rows[i].word}});
        box_words(&r, text, sizeof text);
        if (!strstr(text, rows[i].said))
            fail_msg("'%s' for %s", text, rows[i].word);
        assert_int_equal(wait_child(r.init.pid), 256);
        box_clean(&r);
    }
}

static void test_at_the_door_nothing_is_heard_but_an_owner(void **state)
{
    (void)state;

    for (unsigned what = 0; what < 4; what++) {
        struct box_run r;
        char text[500];
        box_start(&r, (struct box_how){USUAL});
        assert_true(box_meet(&r));

        struct wire_head head = {.type = WIRE_ADOPT};
        int fds[2] = {r.door, r.door};
        if (what == 0)
            EXEC(r.door, .id = 1, .uid = 1000, .script = "true");
        else if (what == 1)
            assert_int_equal(send_plain(r.door, WIRE_SYNC, 1, 0), 0);
        else if (what == 2)
            assert_int_equal(wire_send(r.door, &head, NULL, fds, 2, deadline_in(PATIENCE)), 0);
        else
            shutdown(r.door, SHUT_RDWR);

        box_words(&r, text, sizeof text);
        assert_non_null(strstr(text, "no lease"));
        assert_int_equal(wait_child(r.init.pid), 0);
        box_clean(&r);
    }
}

/* Within the lease an owner's death is survived, with commands and with what became of them. */
static void test_within_its_lease_it_comes_back_for_another_owner(void **state)
{
    (void)state;
    struct box_run r;
    int out[2];
    char text[100] = "";
    box_own(&r, (struct box_how){.caps = CAPS_ENGINE, .words = {WORDS_IN_RUN, "lease=600"}});
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    EXEC(r.init.sock, .id = 2, .uid = 1000, .epoch = 50, .script = "read x; echo $x; exit 7",
         .fds = {out[0], out[1]});
    int32_t pid = expect_started(&r.init, 2);

    fd_done(&r.init.sock);
    assert_true(box_meet(&r));
    fd_done(&r.door); /* a keeper that dies before it has said who */
    assert_true(box_meet(&r));
    assert_int_equal(write(out[1], "hello\n", 6), 6); /* it ends while nobody owns the box */
    struct pollfd p = {.fd = out[0], .events = POLLIN};
    assert_int_equal(poll(&p, 1, (int)(PATIENCE / NS_PER_MS)), 1);
    box_adopt(&r);
    (void)box_facts(&r);

    /* Another keeper counts epochs from the start. */
    assert_int_equal(send_plain(r.init.sock, WIRE_SYNC, 3, 1), 0);
    for (;;) {
        expect_frame(r.init.sock, &r.init.f);
        if (r.init.f.head.type == WIRE_EXITED)
            break;
    }
    struct msg_exited end;
    struct pd_err e;
    assert_int_equal(msg_exited_decode(&r.init.f.payload, &end, &e), 0);
    assert_int_equal(end.pid, pid);
    assert_int_equal(WEXITSTATUS(end.status), 7);
    (void)!read(out[0], text, sizeof text - 1);
    close(out[0]);
    close(out[1]);
    kill(r.init.pid, SIGKILL);
    waitpid(r.init.pid, NULL, 0);
    box_clean(&r);
}

/* A door that lets it in and sends it away again is tried now and then, not as fast as it can. The
 * first pause may be over when the test comes to it, every later one begins behind that. */
static void test_a_door_that_closes_at_once_is_tried_with_pauses(void **state)
{
    (void)state;
    enum { MEETINGS = 6 };
    struct box_run r;
    uint64_t began = 0;

    box_own(&r, (struct box_how){.caps = CAPS_ENGINE, .words = {WORDS_IN_RUN, "lease=600"}});
    fd_done(&r.init.sock);
    for (int i = 0; i < MEETINGS; i++) {
        assert_true(box_meet(&r));
        if (i == 0)
            began = clock_now();
        if (i + 1 < MEETINGS)
            fd_done(&r.door);
    }
    assert_true(clock_now() - began >= (MEETINGS - 2) * 240 * NS_PER_MS);

    /* And it can still be owned. */
    box_adopt(&r);
    (void)box_facts(&r);
    kill(r.init.pid, SIGKILL);
    waitpid(r.init.pid, NULL, 0);
    box_clean(&r);
}

static void test_at_the_end_of_its_lease_it_ends(void **state)
{
    (void)state;
    struct box_run r;
    char text[500];
    box_own(&r, (struct box_how){.caps = CAPS_ENGINE, .words = {WORDS_IN_RUN, "lease=1"}});
    fd_done(&r.listener);
    fd_done(&r.init.sock);
    box_words(&r, text, sizeof text);
    assert_non_null(strstr(text, "within the lease of 1 s"));
    assert_int_equal(wait_child(r.init.pid), 0);
    box_clean(&r);
}

/* Stopped for longer than its lease, it must not find that over when it goes on. */
static void test_frozen_time_does_not_count(void **state)
{
    (void)state;
    struct box_run r;
    box_own(&r, (struct box_how){
                    .caps = CAPS_ENGINE, .words = {WORDS_IN_RUN, "lease=6"}, .host_pids = true});
    fd_done(&r.init.sock);
    assert_true(box_meet(&r)); /* it waits, and its lease runs */
    kill(r.init.pid, SIGSTOP);

    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)r.init.pid, &info, WSTOPPED), 0);
    usleep(7000000); /* the lease, and more: the one wait here whose subject is time */
    kill(r.init.pid, SIGCONT);

    box_adopt(&r);
    (void)box_facts(&r);
    box_stop(&r);
}

static void test_what_started_it_may_end_it(void **state)
{
    (void)state;
    struct box_run r;
    char text[100];
    box_own(&r, (struct box_how){USUAL});

    /* From inside: nobody may, and as another uid cannot. */
    assert_int_equal(box_line(&r, 2, 1000,
                              "kill -TERM 1 2>/dev/null; kill -KILL 1 2>/dev/null; echo on", text,
                              sizeof text),
                     0);
    assert_string_equal(text, "on\n");
    kill(r.init.pid, SIGTERM);
    assert_int_equal(wait_child(r.init.pid), 0);
    box_clean(&r);
}

/* With one uid for all a command may send it signals, and none is obeyed. */
static void test_in_single_a_command_cannot_end_it(void **state)
{
    (void)state;
    struct box_run r;
    char text[100];
    struct msg_facts m =
        box_own(&r, (struct box_how){.uid = 4711, .gid = 4712, .words = {WORDS_IN_RUN}});

    assert_int_equal(m.mode, FACTS_SINGLE);
    assert_int_equal(m.uid, 4711);
    assert_int_equal(
        box_line(&r, 2, 0, "kill -TERM 1; kill -KILL 1; kill -INT 1; id -u", text, sizeof text), 0);
    assert_string_equal(text, "4711\n");
    assert_int_equal(box_line(&r, 3, 0, "echo on", text, sizeof text), 0);
    box_stop(&r);
}

/* Not pid 1: the kernel ends nothing with it. */
static void test_where_it_is_not_pid_1_it_ends_its_processes(void **state)
{
    (void)state;

    for (int by_signal = 0; by_signal < 2; by_signal++) {
        struct box_run r;
        char text[100];
        int out[2];

        box_own(&r, (struct box_how){USUAL, .host_pids = true});
        assert_int_equal(pipe2(out, O_CLOEXEC), 0);
        EXEC(r.init.sock, .id = 2, .uid = 1000, .fds = {0, out[1]},
             .script = "setsid sh -c '(setsid sleep 1000 & echo $!; sleep 1000) & sleep 1000' & "
                       "sleep 1000");
        close(out[1]);
        expect_started(&r.init, 2);
        assert_true(read(out[0], text, sizeof text - 1) > 0);

        pid_t far = (pid_t)strtol(text, NULL, 10);
        assert_true(state_of(far) != 0);

        if (by_signal)
            kill(r.init.pid, SIGTERM);
        else
            fd_done(&r.init.sock);
        assert_int_equal(wait_child(r.init.pid), 0);

        /* The pipe ends when the last of them has. */
        struct pollfd p = {.fd = out[0], .events = POLLIN};
        assert_int_equal(poll(&p, 1, (int)(PATIENCE / NS_PER_MS)), 1);
        assert_int_equal(read(out[0], text, sizeof text), 0);

        char is = state_of(far); /* dead, though perhaps not reaped yet */
        assert_true(is == 0 || is == 'X' || is == 'Z');
        close(out[0]);
        box_clean(&r);
    }
}

/* As the keeper of `local` starts it: no namespaces, an unprivileged uid, descriptor 3. */
static void test_local_runs_as_its_uid_and_ends_with_its_parent(void **state)
{
    (void)state;
    int s[2], out[2];
    char dir[] = "/tmp/paddock-local-XXXXXX", work[64], program[64], text[100];
    pair_make(s);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chown(dir, 4711, 4711), 0);
    snprintf(work, sizeof work, "workspace=%s/work", dir);
    snprintf(program, sizeof program, "%s/init", dir);
    copy_program(UNIT_INIT, program);

    pid_t parent = child_fork();
    if (parent == 0) {
        pid_t init = fork();
        if (init == 0) {
            dup2(s[1], INIT_OWNER_FD);
            syscall(SYS_close_range, 4u, ~0u, 0);
            fcntl(3, F_SETFD, 0);
            if (setgid(4711) < 0 || setuid(4711) < 0)
                _exit(1);
            execl(program, "init", INIT_ARG_LOCAL, work, "home=/tmp", (char *)NULL);
            _exit(1);
        }
        pause();
        _exit(0);
    }
    close(s[1]);

    struct box_run r = {.init = {.sock = s[0], .f = FRAME_INIT}};
    struct msg_facts m = box_facts(&r);
    assert_int_equal(m.mode, FACTS_SINGLE);
    assert_int_equal(m.uid, 4711);
    assert_string_equal(m.missing, "");
    EXEC(s[0], .id = 2, .script = "id -u; sleep 1000 & setsid sleep 1000", .fds = {0, out[1]});
    close(out[1]);
    expect_started(&r.init, 2);
    assert_true(read(out[0], text, sizeof text) > 0);
    assert_memory_equal(text, "4711\n", 5);

    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    struct pollfd p = {.fd = out[0], .events = POLLIN};
    assert_int_equal(poll(&p, 1, (int)(PATIENCE / NS_PER_MS)), 1);
    assert_int_equal(read(out[0], text, sizeof text), 0);
    expect_closed(s[0]);
    close(s[0]);
    close(out[0]);
    frame_done(&r.init.f);
    unlink(program);
    snprintf(work, sizeof work, "%s/work", dir);
    rmdir(work);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_door_brings_an_owner_and_facts),
        cmocka_unit_test(test_a_door_that_nobody_opens_is_told),
        cmocka_unit_test(test_bad_words_are_told),
        cmocka_unit_test(test_at_the_door_nothing_is_heard_but_an_owner),
        cmocka_unit_test(test_within_its_lease_it_comes_back_for_another_owner),
        cmocka_unit_test(test_a_door_that_closes_at_once_is_tried_with_pauses),
        cmocka_unit_test(test_at_the_end_of_its_lease_it_ends),
        cmocka_unit_test(test_frozen_time_does_not_count),
        cmocka_unit_test(test_what_started_it_may_end_it),
        cmocka_unit_test(test_in_single_a_command_cannot_end_it),
        cmocka_unit_test(test_where_it_is_not_pid_1_it_ends_its_processes),
        cmocka_unit_test(test_local_runs_as_its_uid_and_ends_with_its_parent),
    };

    return cmocka_run_group_tests(tests, box_needs_root, NULL);
}
