/* Init against its owner: good, restarted, deaf and mad ones. */
#include "init_run.h"

#include <linux/sockios.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/ioctl.h>

static int setup(void **state)
{
    static struct init_run r;
    init_start(&r, INIT_ARG_SINGLE, 0);
    *state = &r;
    return 0;
}

/* A pipe whose write end goes to a command. */
static void pipe_make(int ret[2])
{
    assert_int_equal(pipe2(ret, O_CLOEXEC), 0);
}

/* Everything until the last writer is gone, which must happen soon. */
static void read_to_end(int fd, char *out, size_t size)
{
    size_t have = 0;
    for (;;) {
        struct timespec wait = {PATIENCE / NS_PER_S, 0};
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        if (pselect(fd + 1, &set, NULL, NULL, &wait, NULL) != 1)
            fail_msg("the stream does not end");
        ssize_t n = read(fd, out + have, size - 1 - have);
        if (n <= 0)
            break;
        have += (size_t)n;
    }
    out[have] = 0;
}

static void test_a_command_runs_and_its_end_is_told(void **state)
{
    struct init_run *r = *state;
    int in[2], out[2], err[2];
    char text[100];

    pipe_make(in);
    pipe_make(out);
    pipe_make(err);
    EXEC(r->sock, .id = 1, .script = "pwd; cat; echo bad >&2; exit 7", .cwd = "/usr",
         .fds = {in[0], out[1], err[1]});
    close(in[0]);
    close(out[1]);
    close(err[1]);

    int32_t pid = expect_started(r, 1);
    assert_int_equal(write(in[1], "hello", 5), 5);
    close(in[1]);

    struct msg_exited end = expect_exited(r, 1);
    assert_int_equal(end.pid, pid);
    assert_true(WIFEXITED(end.status) && WEXITSTATUS(end.status) == 7);
    assert_true(end.max_rss > 100000);

    read_to_end(out[0], text, sizeof text);
    assert_string_equal(text, "/usr\nhello");
    read_to_end(err[0], text, sizeof text);
    assert_string_equal(text, "bad\n");
    close(out[0]);
    close(err[0]);
}

static void test_a_repeated_request_is_not_run_again(void **state)
{
    struct init_run *r = *state;
    int in[2], out[2];
    char text[100];

    pipe_make(in);
    pipe_make(out);
    EXEC(r->sock, .id = 1, .script = "echo once; read x", .fds = {in[0], out[1]});
    close(in[0]);

    int32_t pid = expect_started(r, 1);
    EXEC(r->sock, .id = 1, .script = "echo twice", .fds = {0, out[1]});
    assert_int_equal(expect_started(r, 1), pid);
    close(in[1]); /* it ends */
    expect_exited(r, 1);

    /* Nor after its end, as long as that was not acknowledged. */
    EXEC(r->sock, .id = 1, .script = "echo twice", .fds = {0, out[1]});
    assert_int_equal(expect_started(r, 1), pid);
    close(out[1]);

    read_to_end(out[0], text, sizeof text);
    assert_string_equal(text, "once\n");
    close(out[0]);
    expect_silence(r->sock);
}

static void test_an_end_is_kept_until_it_is_acknowledged(void **state)
{
    struct init_run *r = *state;
    unsigned ended;
    EXEC(r->sock, .id = 1, .script = "exit 3");
    EXEC(r->sock, .id = 2, .script = "sleep 100");

    expect_started(r, 1);
    expect_frame(r->sock, &r->f); /* STARTED of 2 and EXITED of 1, in either order */
    expect_frame(r->sock, &r->f);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(sync_count(r->sock, &r->f, 10 + i, 0, &ended), 2);
        assert_int_equal(ended, 1);
    }
    assert_int_equal(send_plain(r->sock, WIRE_ACK, 2, 0), 0); /* it runs: nothing to acknowledge */
    assert_int_equal(send_plain(r->sock, WIRE_ACK, 99, 0), 0);
    assert_int_equal(sync_count(r->sock, &r->f, 20, 0, &ended), 2);
    assert_int_equal(send_plain(r->sock, WIRE_ACK, 1, 0), 0);
    assert_int_equal(send_plain(r->sock, WIRE_ACK, 1, 0), 0);
    assert_int_equal(sync_count(r->sock, &r->f, 21, 0, &ended), 1);
    assert_int_equal(ended, 0);
    expect_silence(r->sock);
}

static void test_a_new_epoch_hears_of_every_end_again(void **state)
{
    struct init_run *r = *state;
    EXEC(r->sock, .id = 1, .script = "exit 3", .epoch = 1);
    expect_started(r, 1);
    expect_exited(r, 1);
    assert_int_equal(r->f.head.epoch, 1);

    /* Any request of the new owner will do. */
    assert_int_equal(send_plain(r->sock, WIRE_ACK, 99, 2), 0);
    struct msg_exited end = expect_exited(r, 1);
    assert_int_equal(WEXITSTATUS(end.status), 3);
    assert_int_equal(r->f.head.epoch, 2);

    /* And the repeated EXEC of what the old one had asked for. */
    EXEC(r->sock, .id = 1, .script = "exit 4", .epoch = 3);
    expect_started(r, 1);
    assert_int_equal(WEXITSTATUS(expect_exited(r, 1).status), 3);
    expect_silence(r->sock);
}

static void test_requests_of_older_epochs_are_dropped(void **state)
{
    struct init_run *r = *state;
    int out[2];
    char text[100];
    assert_int_equal(sync_count(r->sock, &r->f, 1, 5, NULL), 0);

    pipe_make(out);
    EXEC(r->sock, .id = 2, .script = "echo old", .fds = {0, out[1]}, .epoch = 4);
    close(out[1]);
    assert_int_equal(send_plain(r->sock, WIRE_SYNC, 3, 0), 0);

    read_to_end(out[0], text, sizeof text); /* its descriptors are closed, too */
    assert_string_equal(text, "");
    close(out[0]);
    expect_silence(r->sock);
    assert_int_equal(sync_count(r->sock, &r->f, 4, 5, NULL), 0);
}

/* 1024 commands that have ended and are not acknowledged. */
static void fill_the_table(struct init_run *r)
{
    static const char *const yes[] = {"true", NULL};
    unsigned ended = 0;
    for (uint32_t i = 0; i < 1024; i++) {
        EXEC(r->sock, .id = i, .argv = yes);
        for (expect_frame(r->sock, &r->f); r->f.head.type == WIRE_EXITED; ended++)
            expect_frame(r->sock, &r->f);
        assert_int_equal(r->f.head.type, WIRE_STARTED);
    }
    for (; ended < 1024; ended++) {
        expect_frame(r->sock, &r->f);
        assert_int_equal(r->f.head.type, WIRE_EXITED);
    }
}

static void test_at_most_1024_records_are_kept(void **state)
{
    struct init_run *r = *state;
    struct pd_err e;
    fill_the_table(r);
    EXEC(r->sock, .id = 5000, .script = "exit 0");
    expect_error(r->sock, &r->f, 5000, PD_CAPACITY, &e);
    assert_non_null(strstr(e.msg, "1024"));
    assert_int_equal(send_plain(r->sock, WIRE_ACK, 77, 0), 0);
    EXEC(r->sock, .id = 5000, .script = "exit 0");
    expect_started(r, 5000);
    expect_exited(r, 5000);
}

/* The list is longer than the socket: it must come whole all the same. */
static void test_a_long_list_is_complete_for_a_slow_reader(void **state)
{
    struct init_run *r = *state;
    static uint8_t seen[1024];
    memset(seen, 0, sizeof seen);
    fill_the_table(r);
    assert_int_equal(send_plain(r->sock, WIRE_SYNC, 4000, 1), 0);

    usleep(300000); /* init has filled the socket by now */
    for (;;) {
        expect_frame(r->sock, &r->f);
        if (r->f.head.type == WIRE_SYNC_END)
            break;
        assert_int_equal(r->f.head.type, WIRE_SYNCED);
        seen[id_number(r->f.head.id)]++;
    }

    for (uint32_t i = 0; i < 1024; i++)
        if (seen[i] != 1)
            fail_msg("command %u is listed %u times", i, seen[i]);
    expect_silence(r->sock); /* listed is told */
}

/* Init sleeps though there are requests in its socket: it has an answer for which there is no
 * room. It is looked at first, and nobody sends in between: one that has nothing to do would have
 * nothing unread. */
static bool waits_for_room(const struct init_run *r)
{
    int unread = 0;
    bool sleeps = state_of(r->pid) == 'S';
    assert_int_equal(ioctl(r->sock, SIOCOUTQ, &unread), 0);
    return sleeps && unread > 0;
}

static bool has_children(const struct init_run *r)
{
    char path[64], text[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)r->pid, (int)r->pid);
    return fd_read_file(AT_FDCWD, path, text, sizeof text) != 0;
}

/* How many refusals of unknown requests fit the owner's side of the socket. */
static unsigned refusals_that_fit(void)
{
    struct init_run r;
    init_start(&r, INIT_ARG_SINGLE, 0);
    /* Until its first answer it may sleep because it is still on its way. */
    send_surely(r.sock, WIRE_HELLO, 0);
    struct pollfd answered = {.fd = r.sock, .events = POLLIN};
    assert_int_equal(poll(&answered, 1, (int)(PATIENCE / NS_PER_MS)), 1);

    deadline d = deadline_in(PATIENCE);
    for (unsigned i = 1; !waits_for_room(&r); i++)
        if (send_plain(r.sock, WIRE_HELLO, i, 0) < 0) {
            assert_false(deadline_passed(d));
            usleep(1000);
        }

    kill(r.pid, SIGSTOP);
    unsigned n = 0;
    struct pd_err e;
    for (; wire_recv(r.sock, &r.f, 0, &e) == 1; frame_reset(&r.f))
        n++;
    kill(r.pid, SIGCONT);
    init_stop(&r);

    assert_true(n > 10 && n < 3000);
    return n;
}

static void test_started_comes_before_exited(void **state)
{
    struct init_run *r = *state;
    unsigned fit = refusals_that_fit();
    for (unsigned i = 0; i < fit; i++)
        send_surely(r->sock, WIRE_HELLO, i);
    EXEC(r->sock, .id = 5000, .script = "sleep 0.3"); /* there is no room for its STARTED */
    usleep(100000);
    for (unsigned i = 0; i < 10; i++) /* some room, but less than poll speaks of */
        expect_type(r->sock, &r->f, WIRE_ERROR, i);

    usleep(500000);
    for (unsigned i = 10; i < fit; i++)
        expect_type(r->sock, &r->f, WIRE_ERROR, i);
    expect_started(r, 5000);
    expect_exited(r, 5000);
}

/* What init keeps open of a command would keep its streams from ending. */
static void test_streams_are_not_kept_while_an_answer_waits(void **state)
{
    struct init_run *r = *state;
    unsigned fit = refusals_that_fit();
    int out[2];
    char text[100];

    for (unsigned i = 0; i < fit; i++)
        send_surely(r->sock, WIRE_HELLO, i);
    pipe_make(out);
    EXEC(r->sock, .id = 5000, .script = "echo hi", .fds = {0, out[1]});
    close(out[1]);

    read_to_end(out[0], text, sizeof text);
    assert_string_equal(text, "hi\n");
    close(out[0]);
    for (unsigned i = 0; i < fit; i++)
        expect_type(r->sock, &r->f, WIRE_ERROR, i);
    expect_started(r, 5000);
}

static void test_a_deaf_owner_costs_nothing_and_loses_nothing(void **state)
{
    struct init_run *r = *state;
    unsigned sent = 0, answers = 0, ends = 0, quiet = 0;
    int hold[2];
    pipe_make(hold);
    for (uint32_t i = 0; i < 20; i++)
        EXEC(r->sock, .id = 90000 + i, .script = "read x", .fds = {hold[0]});
    close(hold[0]);
    for (uint32_t i = 0; i < 20; i++)
        expect_started(r, 90000 + i);
    warm_up(r->sock);
    long before = resident(r->pid);
    int fds = fds_of(r->pid);
    while (quiet < 100) {
        int k = send_plain(r->sock, WIRE_HELLO, sent, 0);
        assert_true(k == 0 || k == -EAGAIN);
        sent += k == 0;
        quiet = k == 0 ? 0 : quiet + 1;
        if (k)
            usleep(5000);
    }
    assert_true(sent > 100);
    assert_true(resident(r->pid) - before < 1024); /* pages */
    assert_int_equal(fds_of(r->pid), fds);

    close(hold[1]); /* all of them end while nobody listens */
    for (deadline d = deadline_in(PATIENCE); has_children(r); usleep(5000))
        assert_false(deadline_passed(d));
    for (unsigned next = 0; answers < sent || ends < 20;) {
        expect_frame(r->sock, &r->f);
        if (r->f.head.type == WIRE_ERROR) {
            assert_int_equal(id_number(r->f.head.id), next++);
            answers++;
        }
        ends += r->f.head.type == WIRE_EXITED;
    }
    expect_silence(r->sock);
}

static void test_an_owner_that_breaks_the_format_is_the_end(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad_frames); i++) {
        struct init_run r;
        init_start(&r, INIT_ARG_SINGLE, 0);
        int out[2];
        char text[10];
        pipe_make(out);
        send_bad(r.sock, &bad_frames[i], out[1]);
        close(out[1]);
        expect_closed(r.sock);
        read_to_end(out[0], text, sizeof text);
        close(out[0]);
        init_stop(&r);
    }
}

static void test_an_owner_that_goes_away_is_the_end(void **state)
{
    struct init_run *r = *state;
    EXEC(r->sock, .id = 1, .script = "sleep 0.5");
    init_stop(r); /* checks that it ends, with status 0 */
}

/* The frame is whole, what is in it is not: refused, and init goes on. */
static void test_bad_requests_are_refused(void **state)
{
    struct init_run *r = *state;
    struct pd_err e;
    int before = fds_settle(r->pid, 5);
    static const enum wire_type types[] = {0,          WIRE_ERROR, WIRE_HELLO,      WIRE_CREATE,
                                           WIRE_BUILD, WIRE_LIST,  WIRE_TYPE_COUNT, 0xffff};
    for (uint32_t i = 0; i < COUNT(types); i++) {
        assert_int_equal(send_plain(r->sock, types[i], i, 0), 0);
        expect_type(r->sock, &r->f, WIRE_ERROR, i);
    }
    assert_int_equal(send_plain(r->sock, WIRE_EXEC, 20, 0), 0);
    expect_error(r->sock, &r->f, 20, PD_PROTOCOL, &e);
    assert_int_equal(send_plain(r->sock, WIRE_SIGNAL, 21, 0), 0);
    expect_error(r->sock, &r->f, 21, PD_PROTOCOL, &e);

    for (unsigned n = 1; n <= WIRE_FDS_MAX; n++) {
        EXEC(r->sock, .id = 30 + n, .script = "exit 1", .fd_count = n);
        if (n == 3) {
            expect_started(r, 30 + n);
            expect_exited(r, 30 + n);
        } else {
            expect_error(r->sock, &r->f, 30 + n, PD_PROTOCOL, &e);
        }
    }

    EXEC(r->sock, .id = 50, .script = "exit 1", .flags = EXEC_CGROUP); /* without the fourth */
    expect_error(r->sock, &r->f, 50, PD_PROTOCOL, &e);
    EXEC(r->sock, .id = 51, .script = "exit 1", .flags = EXEC_PTY); /* /dev/null is none */
    expect_type(r->sock, &r->f, WIRE_ERROR, 51);

    /* Descriptors where none are wanted. */
    for (uint32_t i = 0; i < 50; i++) {
        struct wire_head head = {.type = WIRE_SYNC, .id = id_of(60)};
        int list[6] = {r->sock, r->sock, r->sock, r->sock, r->sock, r->sock};
        assert_int_equal(wire_send(r->sock, &head, NULL, list, 6, 0), 0);
        do
            expect_frame(r->sock, &r->f);
        while (r->f.head.type != WIRE_SYNC_END);
    }
    assert_int_equal(fds_settle(r->pid, before), before);
}

static void test_what_cannot_run_says_why(void **state)
{
    struct init_run *r = *state;
    char dir[] = "/tmp/paddock-init-XXXXXX", plain[64], script[64], text[100];
    struct pd_err e;

    assert_non_null(mkdtemp(dir));
    assert_int_equal(chmod(dir, 0755), 0);
    snprintf(plain, sizeof plain, "%s/plain", dir);
    snprintf(script, sizeof script, "%s/script", dir);
    close(open(plain, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));

    int fd = open(script, O_CREAT | O_WRONLY | O_CLOEXEC, 0755);
    assert_int_equal(write(fd, "echo $0 $1\n", 11), 11);
    close(fd);

    const struct {
        const char *word, *cwd;
        enum pd_code code;
    } rows[] = {
        {"no-such-command", "/", PD_NO_COMMAND},
        {"/no/such/file", "/", PD_NO_COMMAND},
        {"", "/", PD_NO_COMMAND},
        {plain, "/", PD_NOT_EXECUTABLE},
        {"/usr", "/", PD_NOT_EXECUTABLE},
        {"true", "/no/such/dir", PD_INVALID},
        {"true", "relative", PD_INVALID},
        {"true", "", PD_INVALID},
        {"/dev/null/x", "/", PD_NO_COMMAND},
    };
    for (uint32_t i = 0; i < COUNT(rows); i++) {
        const char *const argv[] = {rows[i].word, NULL};
        EXEC(r->sock, .id = i, .argv = argv, .cwd = rows[i].cwd);
        expect_error(r->sock, &r->f, i, rows[i].code, &e);
    }

    int out[2];
    pipe_make(out);
    const char *const argv[] = {script, "x", NULL};
    EXEC(r->sock, .id = 100, .argv = argv, .fds = {0, out[1]});
    close(out[1]);
    expect_started(r, 100);
    expect_exited(r, 100);

    read_to_end(out[0], text, sizeof text);
    close(out[0]);
    char expected[100];
    snprintf(expected, sizeof expected, "%s x\n", script);
    assert_string_equal(text, expected);

    /* Nothing of the failures is left behind. */
    assert_int_equal(sync_count(r->sock, &r->f, 200, 0, NULL), 1);
    unlink(plain);
    unlink(script);
    rmdir(dir);
}

static void test_signals_reach_the_command_and_its_children(void **state)
{
    struct init_run *r = *state;
    struct pd_err e;
    int out[2];
    char text[100];

    pipe_make(out);
    EXEC(r->sock, .id = 1, .script = "sleep 100 & echo; wait", .fds = {0, out[1]});
    close(out[1]);
    expect_started(r, 1);
    assert_int_equal(read(out[0], text, 1), 1);

    send_signal(r->sock, 2, 1, 0);
    expect_type(r->sock, &r->f, WIRE_DONE, 2);
    send_signal(r->sock, 3, 1, 1000);
    expect_type(r->sock, &r->f, WIRE_ERROR, 3);

    send_signal(r->sock, 4, 1, -1);
    expect_type(r->sock, &r->f, WIRE_ERROR, 4);
    send_signal(r->sock, 5, 77, SIGTERM);
    expect_error(r->sock, &r->f, 5, PD_NOT_FOUND, &e);

    send_signal(r->sock, 6, 1, SIGTERM);
    expect_type(r->sock, &r->f, WIRE_DONE, 6);
    struct msg_exited end = expect_exited(r, 1);
    assert_true(WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGTERM);

    read_to_end(out[0], text, sizeof text); /* the child in the background is gone as well */
    close(out[0]);
    send_signal(r->sock, 7, 1, SIGTERM);
    expect_error(r->sock, &r->f, 7, PD_NOT_FOUND, &e);
}

static void test_a_command_starts_with_nothing_but_its_streams(void **state)
{
    struct init_run *r = *state;
    int out[2];
    char text[200];

    pipe_make(out);
    EXEC(r->sock, .id = 1, .fds = {0, out[1]},
         .script = "ls /proc/self/fd | wc -l; grep -c 'SigBlk:.0000000000000000' /proc/self/status;"
                   "umask");
    close(out[1]);
    expect_started(r, 1);
    expect_exited(r, 1);

    read_to_end(out[0], text, sizeof text);
    close(out[0]);
    assert_string_equal(text, "4\n1\n0022\n"); /* the fourth is what ls reads */
}

/* An init as a complete kit has it: its socket is the keeper's. */
static void waiting_start(struct init_run *r)
{
    setenv(INIT_ENV_WAITS, "1", 1);
    init_start(r, INIT_ARG_STRICT, 0);
    unsetenv(INIT_ENV_WAITS);
}

static int send_adopt(int sock, const int *fds, unsigned count)
{
    struct wire_head head = {.type = WIRE_ADOPT, .id = id_of(1)};
    return wire_send(sock, &head, NULL, fds, count, deadline_in(PATIENCE));
}

static void test_an_init_that_waits_is_adopted_once(void **state)
{
    (void)state;
    struct init_run r;
    int first[2], second[2];
    pair_make(first);
    pair_make(second);
    waiting_start(&r);

    /* The second was sent before the first was heard, and is lost with the keeper's socket. */
    kill(r.pid, SIGSTOP);
    assert_int_equal(send_adopt(r.sock, &first[1], 1), 0);
    assert_int_equal(send_adopt(r.sock, &second[1], 1), 0);
    kill(r.pid, SIGCONT);
    close(first[1]);
    close(second[1]);
    expect_closed(r.sock);
    expect_closed(second[0]);
    close(second[0]);
    close(r.sock);

    r.sock = first[0];
    EXEC(r.sock, .id = 2, .script = "exit 3");
    expect_started(&r, 2);
    assert_int_equal(WEXITSTATUS(expect_exited(&r, 2).status), 3);

    /* Its owner cannot give it away. */
    int third[2];
    pair_make(third);
    struct wire_head head = {.type = WIRE_ADOPT, .id = id_of(4)};
    assert_int_equal(wire_send(r.sock, &head, NULL, &third[1], 1, deadline_in(PATIENCE)), 0);
    close(third[1]);
    expect_type(r.sock, &r.f, WIRE_ERROR, 4);
    expect_closed(third[0]);
    close(third[0]);
    init_stop(&r);
}

static void test_an_init_that_waits_takes_nothing_but_its_owner(void **state)
{
    (void)state;
    char mark[] = "/tmp/paddock-waits-XXXXXX", script[80];
    int fd = mkstemp(mark);
    assert_true(fd >= 0);
    close(fd);
    snprintf(script, sizeof script, "echo ran > %s", mark);

    for (unsigned what = 0; what < 5; what++) {
        struct init_run r;
        waiting_start(&r);
        int fds[2] = {r.sock, r.sock};
        if (what == 0)
            EXEC(r.sock, .id = 1, .script = script);
        else if (what == 1)
            assert_int_equal(send_plain(r.sock, WIRE_SYNC, 1, 0), 0);
        else if (what == 2)
            assert_int_equal(send_adopt(r.sock, fds, 0), 0);
        else if (what == 3)
            assert_int_equal(send_adopt(r.sock, fds, 2), 0);
        else
            shutdown(r.sock, SHUT_RDWR);
        assert_int_equal(wait_child(r.pid), 0);
        frame_done(&r.f);
        close(r.sock);
    }

    struct stat st;
    assert_int_equal(stat(mark, &st), 0);
    assert_int_equal(st.st_size, 0);

    /* The control: the same command, sent by an owner. */
    struct init_run r;
    init_start(&r, INIT_ARG_STRICT, 0);
    EXEC(r.sock, .id = 1, .script = script);
    expect_started(&r, 1);
    expect_exited(&r, 1);
    init_stop(&r);
    assert_int_equal(stat(mark, &st), 0);
    assert_int_equal(st.st_size, 4);
    unlink(mark);
}

#define OWNED(test) cmocka_unit_test_setup_teardown(test, setup, init_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        OWNED(test_a_command_runs_and_its_end_is_told),
        OWNED(test_a_repeated_request_is_not_run_again),
        OWNED(test_an_end_is_kept_until_it_is_acknowledged),
        OWNED(test_a_new_epoch_hears_of_every_end_again),
        OWNED(test_requests_of_older_epochs_are_dropped),
        OWNED(test_at_most_1024_records_are_kept),
        OWNED(test_a_long_list_is_complete_for_a_slow_reader),
        OWNED(test_started_comes_before_exited),
        OWNED(test_streams_are_not_kept_while_an_answer_waits),
        OWNED(test_a_deaf_owner_costs_nothing_and_loses_nothing),
        cmocka_unit_test(test_an_owner_that_breaks_the_format_is_the_end),
        OWNED(test_an_owner_that_goes_away_is_the_end),
        OWNED(test_bad_requests_are_refused),
        OWNED(test_what_cannot_run_says_why),
        OWNED(test_signals_reach_the_command_and_its_children),
        OWNED(test_a_command_starts_with_nothing_but_its_streams),
        cmocka_unit_test(test_an_init_that_waits_is_adopted_once),
        cmocka_unit_test(test_an_init_that_waits_takes_nothing_but_its_owner),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
