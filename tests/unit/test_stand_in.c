/* A stand-in with a real box behind it, whose connections are cut all the time, or which is killed
 * all the time; this program is the daemon, and the next daemon. */
#include "unit.h"

#include "far_run.h"

#include "base/parse.h"
#include "box/guard.h"
#include "box/keep.h"
#include "box/stand_in.h"
#include "wire/msg.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>

#define PATIENCE     (60 * NS_PER_S)
#define CONTROL      3 /* of a stand-in that may be killed */
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
static volatile struct {
    unsigned dials, kills;
    pid_t stand_in; /* the one that lives now */
} * seen;           /* in memory that the test sees, too */

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
    ++seen->dials;
    return fd;
}

static int live(void *context)
{
    struct pd_err e;
    seen->stand_in = getpid();
    return stand_in_run(context, &e) < 0 ? 1 : 0;
}

static uint64_t progress(void *context)
{
    const struct stand_in_config *c = context;
    return keep_count(c->keep);
}

enum dies { LIVES, CUTS, KILLS };

static void start(struct rig *r, enum dies dies)
{
    int pair[2];
    *r = (struct rig){.epoch = 1, .f = FRAME_INIT};
    far_start(&r->box, 30 * NS_PER_S);
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(seen != MAP_FAILED);

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
        if (dies == CUTS)
            cut_later(CUT_FIRST_US);
        if (dies != KILLS)
            _exit(stand_in_run(&c, &e) < 0 ? 1 : 0);
        (void)signal(SIGPIPE, SIG_IGN);
        c.control = dup2(pair[1], CONTROL);
        c.lowest = CONTROL + 1;
        syscall(SYS_close_range, CONTROL + 1, ~0u, 0);
        c.keep = keep_new();
        _exit(c.keep ? guard_run(live, progress, /* pause_ms */ 1, &c) : 1);
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
    munmap((void *)(uintptr_t)seen, sizeof *seen);
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
    start(&r, LIVES);
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
    start(&r, LIVES);
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
    start(&r, LIVES);
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
    start(&r, CUTS);
    while (hear(&r) != WIRE_FACTS)
        ;
    /* At least so many, and on until there were cuts enough. */
    int all = 0;
    for (; all < 60 || seen->dials < 20; all++) {
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

/* ---- deaths ---- */

/* Kills the stand-in that lives, again and again, at any moment. */
static pid_t kill_all_the_time(unsigned least_us, unsigned most_us)
{
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    while (pid == 0) {
        /* Now and then there is time for more than a beginning, on any machine. */
        unsigned most = rand() % 8 ? most_us : 20 * most_us;
        usleep(least_us + (unsigned)rand() % (most - least_us));
        pid_t victim = seen->stand_in;
        int process = victim ? (int)syscall(SYS_pidfd_open, victim, 0) : -1;
        if (process >= 0 && seen->stand_in == victim &&
            syscall(SYS_pidfd_send_signal, process, SIGKILL, NULL, 0) == 0)
            seen->kills++;
        if (process >= 0)
            close(process);
    }
    return pid;
}

/* What byte `at` of a command's input is. */
static uint8_t byte_at(unsigned number, size_t at)
{
    return (uint8_t)((at * 7 + (at >> 8) * 31 + (at >> 16) * 3 + number) % 251);
}

/* Puts `len` bytes into a command and takes them out again. */
static void through(unsigned number, int input, int output, size_t len)
{
    static uint8_t in[8192], out[65536];
    size_t put = 0, got = 0;
    fd_set_nonblock(input);
    fd_set_nonblock(output);

    for (;;) {
        struct pollfd p[2] = {{.fd = input, .events = POLLOUT}, {.fd = output, .events = POLLIN}};
        assert_true(poll(p, 2, 60000) > 0);
        if (input >= 0 && p[0].revents) {
            size_t want = len - put < sizeof in ? len - put : sizeof in;
            for (size_t i = 0; i < want; i++)
                in[i] = byte_at(number, put + i);
            ssize_t n = write(input, in, want);
            put += n > 0 ? (size_t)n : 0;
            if (put == len) {
                close(input);
                input = -1;
            }
        }
        if (!p[1].revents)
            continue;
        ssize_t n = read(output, out, sizeof out);
        if (n == 0)
            break;
        for (ssize_t i = 0; i < n; i++)
            if (out[i] != byte_at(number, got + (size_t)i))
                fail_msg("command %u: byte %zu is another", number, got + (size_t)i);
        got += n > 0 ? (size_t)n : 0;
    }
    assert_int_equal(got, len);
    close(output);
}

/* Its ends are told once to who asks once; to who has not answered they may be told again. */
static void test_killed_all_the_time_nothing_is_lost(void **state)
{
    (void)state;
    const char *asked = getenv("PADDOCK_KILLS");
    uint64_t least = getenv("PADDOCK_NIGHTLY") ? 300 : 40;
    struct pd_err e;
    if (asked)
        assert_int_equal(parse_u64("PADDOCK_KILLS", asked, 1, 1000000, &least, &e), 0);
    struct rig r;
    start(&r, KILLS);
    while (hear(&r) != WIRE_FACTS)
        ;
    pid_t killer = kill_all_the_time(1000, 40000);
    unsigned all = 0;

    for (; all < 10 || seen->kills < least; all++) {
        int input, output, status;
        char line[100];
        snprintf(line, sizeof line, "cat; echo -n x >>%s/ran; exit 7", r.box.dir);
        struct wire_id id = run(&r, line, &input, &output);
        through(all, input, output, all % 4 ? 5000 * all : 700000);
        status = ended(&r, id).status;
        assert_int_equal(WEXITSTATUS(status), 7);
        say(&r, WIRE_ACK, id, NULL, 0, NULL, 0);
    }

    int status;
    kill(killer, SIGKILL);
    waitpid(killer, &status, 0);
    char path[100];
    struct stat st;
    snprintf(path, sizeof path, "%s/ran", r.box.dir);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, all);
    print_message("# %u commands, %u kills, %u connections\n", all, seen->kills, seen->dials);
    unlink(path);
    stop(&r);
}

/* Until the whole text has come. */
static void expect(int output, const char *want)
{
    size_t len = strlen(want), got = 0;
    char text[32];
    while (got < len) {
        struct pollfd p = {.fd = output, .events = POLLIN};
        assert_int_equal(poll(&p, 1, 60000), 1);
        ssize_t n = read(output, text + got, len - got);
        assert_true(n > 0);
        got += (size_t)n;
    }
    assert_memory_equal(text, want, len);
}

/* Memory of what the stand-in that lives keeps. */
static uint64_t kept_bytes(void)
{
    char path[64], to[64];
    struct stat st;
    for (int fd = 0; fd < 64; fd++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)seen->stand_in, fd);
        ssize_t n = readlink(path, to, sizeof to - 1);
        to[n > 0 ? n : 0] = 0;
        if (strstr(to, "paddock-kept") && stat(path, &st) == 0)
            return (uint64_t)st.st_blocks * 512;
    }
    fail_msg("nothing is kept");
    return 0;
}

/* Each has a whole ring of input on its way before it reads the first byte; when all was read,
 * nobody keeps any of it, and the next stand-in has room for all of them. */
static void test_input_that_was_taken_is_not_kept(void **state)
{
    (void)state;
    enum { ALL = 10, LONG = 900000 };
    static uint8_t bytes[LONG];
    struct rig r;
    int input[ALL], output[ALL];
    struct wire_id id[ALL];
    char line[200], path[100];
    start(&r, KILLS);
    while (hear(&r) != WIRE_FACTS)
        ;

    for (int i = 0; i < ALL; i++) {
        snprintf(path, sizeof path, "%s/go%d", r.box.dir, i);
        snprintf(line, sizeof line,
                 "while ! [ -e %s ]; do sleep 0.02; done; rm %s; head -c %d >/dev/null; "
                 "echo took; read a; echo got $a",
                 path, path, LONG);
        id[i] = run(&r, line, &input[i], &output[i]);
        assert_int_equal(write(input[i], bytes, LONG), LONG);
        int waiting = 1;
        for (deadline t = deadline_in(PATIENCE); waiting && !deadline_passed(t); usleep(1000))
            assert_int_equal(ioctl(input[i], FIONREAD, &waiting), 0);
        assert_int_equal(waiting, 0);
        close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
        expect(output[i], "took\n");
    }
    deadline t = deadline_in(PATIENCE);
    while (kept_bytes() > (1u << 20) + ALL * (128u << 10) && !deadline_passed(t))
        usleep(10000);
    print_message("# %llu bytes are kept\n", (unsigned long long)kept_bytes());
    assert_true(kept_bytes() <= (1u << 20) + ALL * (128u << 10));

    assert_int_equal(kill(seen->stand_in, SIGKILL), 0);
    for (int i = 0; i < ALL; i++) {
        assert_int_equal(write(input[i], "it\n", 3), 3);
        expect(output[i], "got it\n");
        assert_int_equal(WEXITSTATUS(ended(&r, id[i]).status), 0);
        close(input[i]);
        close(output[i]);
    }
    stop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_daemon_cannot_tell_it_from_init),
        cmocka_unit_test(test_an_end_waits_for_the_output),
        cmocka_unit_test(test_the_next_daemon_hears_everything_again),
        cmocka_unit_test(test_cut_all_the_time_every_end_is_told_once),
        cmocka_unit_test(test_killed_all_the_time_nothing_is_lost),
        cmocka_unit_test(test_input_that_was_taken_is_not_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
