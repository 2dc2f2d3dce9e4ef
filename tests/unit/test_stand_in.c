/* A stand-in with a real box behind it, whose connections are cut all the time; this program is the
 * daemon, and the next daemon. */
#include "unit.h"

#include "far_run.h"

#include "engine/stand_in.h"
#include "wire/msg.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>

#define PATIENCE     (60 * NS_PER_S)
#define CUT_FIRST_US 3000u
#define CUT_LAST_US  900000u

struct rig {
    struct far_run box;
    pid_t stand_in;
    int control; /* the daemon's end */
    uint64_t epoch;
    struct frame f;
    uint32_t uid, gid;
    char text[4096]; /* what a command has written */
};

/* ---- the stand-in's process ---- */

static volatile int connection = -1;
static volatile unsigned *dials; /* in memory that the test sees, too */

/* The next one comes later by a little: a machine that is slow gets through a greeting in the end.
 */
static void cut_later(unsigned us)
{
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = (suseconds_t)us}, NULL);
}

static void cut_now(int signal_number)
{
    static unsigned us = CUT_FIRST_US;
    (void)signal_number;
    if (connection >= 0)
        shutdown(connection, SHUT_RDWR);
    us = us < CUT_LAST_US ? us + us / 16 : us;
    cut_later(us);
}

static int dial(void *context)
{
    int fd = far_dial(context);
    if (fd < 0)
        return STAND_IN_GONE;
    fd_set_nonblock(fd);
    connection = fd;
    ++*dials;
    return fd;
}

static void start(struct rig *r, bool cuts)
{
    int pair[2];
    *r = (struct rig){.epoch = 1, .f = FRAME_INIT};
    far_start(&r->box, 30 * NS_PER_S);
    dials = mmap(NULL, sizeof *dials, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(dials != MAP_FAILED);

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    r->stand_in = child_fork();
    assert_true(r->stand_in >= 0);

    if (r->stand_in == 0) {
        struct stand_in_config c = {.who = r->box.who,
                                    .control = pair[1],
                                    .lease = 30,
                                    .budget = 4u << 20,
                                    .dial = dial,
                                    .context = &r->box};
        struct pd_err e;
        close(pair[0]);
        (void)signal(SIGALRM, cut_now);
        if (cuts)
            cut_later(CUT_FIRST_US);
        _exit(stand_in_run(&c, &e) < 0 ? 1 : 0);
    }
    close(pair[1]);
    r->control = pair[0];
}

static void stop(struct rig *r)
{
    int status;
    close(r->control);
    assert_int_equal(waitpid(r->stand_in, &status, 0), r->stand_in);
    assert_int_equal(status, 0);
    kill(r->box.far, SIGTERM); /* where its BYE was cut off */
    assert_int_equal(waitpid(r->box.far, &status, 0), r->box.far);
    assert_int_equal(waitpid(r->box.init, &status, 0), r->box.init);
    (void)rmdir(r->box.dir);
    munmap((void *)dials, sizeof *dials);
    frame_done(&r->f);
}

/* ---- the daemon ---- */

static void say(const struct rig *r, enum wire_type type, struct wire_id id,
                const struct buf *payload, unsigned flags, const int *fds, unsigned count)
{
    struct wire_head head = {.type = (uint16_t)type, .flags = flags, .epoch = r->epoch, .id = id};
    assert_int_equal(wire_send(r->control, &head, payload, fds, count, deadline_in(PATIENCE)), 0);
}

/* The next frame; its type. */
static unsigned hear(struct rig *r)
{
    struct pd_err e;
    frame_reset(&r->f);
    if (wire_recv_plain(r->control, &r->f, deadline_in(PATIENCE), &e) <= 0)
        fail_msg("no frame: %s", e.msg);
    if (r->f.head.type == WIRE_FACTS) {
        struct msg_facts m;
        assert_int_equal(msg_facts_decode(&r->f.payload, &m, NULL), 0);
        r->uid = m.uid;
        r->gid = m.gid;
    }
    return r->f.head.type;
}

/* Starts a line; the near ends of its input and of its output and errors are the caller's. */
static struct wire_id run(const struct rig *r, const char *line, int *ret_input, int *ret_output)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT, env = MSG_LIST_WRITER_INIT;
    auto_buf payload = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct wire_id id = wire_id_new();
    int in[2], out[2];

    msg_list_add(&argv, "/bin/sh");
    msg_list_add(&argv, "-c");
    msg_list_add(&argv, line);
    msg_list_add(&env, "PATH=/usr/bin:/bin");
    msg_exec_encode(&payload, &(struct msg_exec){.uid = r->uid,
                                                 .gid = r->gid,
                                                 .cwd = "/",
                                                 .argv = msg_list_of(&argv),
                                                 .environ = msg_list_of(&env)});

    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    say(r, WIRE_EXEC, id, &payload, 0, (int[]){in[0], out[1], out[1]}, 3);
    close(in[0]);
    close(out[1]);
    msg_list_writer_done(&argv);
    msg_list_writer_done(&env);

    *ret_input = in[1];
    *ret_output = out[0];
    return id;
}

static struct msg_exited ended(struct rig *r, struct wire_id id)
{
    struct msg_exited m;
    while (hear(r) != WIRE_EXITED || !wire_id_equal(r->f.head.id, id))
        assert_true(r->f.head.type != WIRE_ERROR);
    assert_int_equal(msg_exited_decode(&r->f.payload, &m, NULL), 0);
    return m;
}

/* What is in a pipe now, without waiting for more. */
static size_t drain(struct rig *r, int fd)
{
    fd_set_nonblock(fd);
    ssize_t n = read(fd, r->text, sizeof r->text - 1);
    r->text[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

static void test_a_daemon_cannot_tell_it_from_init(void **state)
{
    (void)state;
    struct rig r;
    int input, output;
    start(&r, /* cuts= */ false);
    assert_int_equal(hear(&r), WIRE_FACTS);
    struct wire_id id = run(&r, "cat; echo bad >&2; exit 4", &input, &output);
    assert_int_equal(hear(&r), WIRE_STARTED);
    assert_int_equal(write(input, "hello\n", 6), 6);
    close(input);

    /* When the end is told, the pipe holds all that was written. */
    struct msg_exited m = ended(&r, id);
    assert_int_equal(WEXITSTATUS(m.status), 4);
    assert_int_equal(drain(&r, output), 10);
    assert_string_equal(r.text, "hello\nbad\n");
    close(output);

    say(&r, WIRE_ACK, id, NULL, 0, NULL, 0);
    say(&r, WIRE_SYNC, id, NULL, 0, NULL, 0);
    assert_int_equal(hear(&r), WIRE_FACTS);
    assert_int_equal(hear(&r), WIRE_SYNC_END);
    stop(&r);
}

static void test_an_end_waits_for_the_output(void **state)
{
    (void)state;
    struct rig r;
    int input, output;
    static uint8_t piece[65536];
    size_t got = 0;
    start(&r, /* cuts= */ false);
    assert_int_equal(hear(&r), WIRE_FACTS);
    struct wire_id id = run(&r, "head -c 300000 /dev/zero", &input, &output);
    assert_int_equal(hear(&r), WIRE_STARTED);

    /* Nobody reads: more than the pipe holds is on its way, so there is no end, and SYNC says so.
     */
    struct pollfd p = {.fd = r.control, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 300), 0);
    say(&r, WIRE_SYNC, id, NULL, 0, NULL, 0);
    assert_int_equal(hear(&r), WIRE_FACTS);
    assert_int_equal(hear(&r), WIRE_SYNCED);
    struct msg_exited m;
    assert_int_equal(msg_exited_decode(&r.f.payload, &m, NULL), 0);
    assert_int_equal(m.exited, 0);
    assert_true(m.pid > 0);
    assert_int_equal(hear(&r), WIRE_SYNC_END);

    for (ssize_t n; (n = read(output, piece, sizeof piece)) > 0;)
        got += (size_t)n;
    assert_int_equal(got, 300000);
    ended(&r, id);
    close(input);
    close(output);
    stop(&r);
}

/* The pipes' near ends and the socket are what a keeper holds for the next daemon. */
static void test_the_next_daemon_hears_everything_again(void **state)
{
    (void)state;
    struct rig r;
    int input, output, other_in, other_out;
    start(&r, /* cuts= */ false);
    assert_int_equal(hear(&r), WIRE_FACTS);
    struct wire_id done = run(&r, "echo done", &input, &output);
    ended(&r, done);
    struct wire_id runs = run(&r, "read a; echo got $a", &other_in, &other_out);
    assert_int_equal(hear(&r), WIRE_STARTED);

    r.epoch = 2;
    say(&r, WIRE_SYNC, runs, NULL, 0, NULL, 0);
    unsigned ends = 0, lives = 0;
    while (hear(&r) != WIRE_SYNC_END) {
        struct msg_exited m;
        if (r.f.head.type != WIRE_SYNCED)
            continue;
        assert_int_equal(msg_exited_decode(&r.f.payload, &m, NULL), 0);
        ends += m.exited && wire_id_equal(r.f.head.id, done);
        lives += !m.exited && wire_id_equal(r.f.head.id, runs);
    }
    assert_int_equal(ends, 1);
    assert_int_equal(lives, 1);

    /* The dead one's last words are not heard. */
    r.epoch = 1;
    struct wire_id late = run(&r, "echo late", &input, &output);
    r.epoch = 2;
    assert_int_equal(write(other_in, "it\n", 3), 3);
    ended(&r, runs);
    assert_int_equal(drain(&r, other_out), 7);
    assert_string_equal(r.text, "got it\n");
    assert_int_equal(drain(&r, output), 0);
    (void)late;
    stop(&r);
}

/* Every command once and whole, cut at first every few milliseconds. */
static void test_cut_all_the_time_every_end_is_told_once(void **state)
{
    (void)state;
    struct rig r;
    start(&r, /* cuts= */ true);
    while (hear(&r) != WIRE_FACTS)
        ;
    /* At least so many, and on until there were cuts enough. */
    int all = 0;
    for (; all < 60 || *dials < 20; all++) {
        int input, output;
        char line[100], want[100];
        snprintf(line, sizeof line, "read a; echo $a; echo -n x >>%s/ran", r.box.dir);
        struct wire_id id = run(&r, line, &input, &output);
        int n = snprintf(want, sizeof want, "number %d\n", all);
        assert_int_equal(write(input, want, (size_t)n), n);
        assert_int_equal(WEXITSTATUS(ended(&r, id).status), 0);
        assert_int_equal(drain(&r, output), n);
        assert_string_equal(r.text, want);
        say(&r, WIRE_ACK, id, NULL, 0, NULL, 0);
        close(input);
        close(output);
    }

    char path[100], ran[20000];
    snprintf(path, sizeof path, "%s/ran", r.box.dir);
    assert_int_equal(fd_read_file(AT_FDCWD, path, ran, sizeof ran), all);
    unlink(path);
    stop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_daemon_cannot_tell_it_from_init),
        cmocka_unit_test(test_an_end_waits_for_the_output),
        cmocka_unit_test(test_the_next_daemon_hears_everything_again),
        cmocka_unit_test(test_cut_all_the_time_every_end_is_told_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
