/* The owner against an init that an attacker has taken over. Whatever it sends, the owner returns
 * within its deadline, keeps no descriptor of it and does not crash. Each attack is tried on
 * jail_run and on the whole of `paddock run`, whose keeper is played by this program. */
#include "peer.h"

#include "cli/run.h"
#include "jail/jail.h"

#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/un.h>

/* What the hostile init does with its end of the control socket and the id of the EXEC. */
typedef void (*attack)(int sock, struct wire_id id);

#define FOREVER for (;;)
#define WAIT    (3 * NS_PER_S)
#define BRIEF   (300 * NS_PER_MS) /* for an attack that may last; what has an answer has PATIENCE */

static int put(int sock, enum wire_type type, struct wire_id id, const struct buf *payload,
               unsigned fd_count)
{
    struct wire_head head = {.type = (uint16_t)type, .id = id};
    int fds[WIRE_FDS_MAX] = {0, 0, 0, 0, 0, 0};
    return wire_send(sock, &head, payload, fds, fd_count, deadline_in(WAIT));
}

static void put_started(int sock, struct wire_id id, int32_t pid, unsigned fds)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_started_encode(&b, &(struct msg_started){.pid = pid});
    put(sock, WIRE_STARTED, id, &b, fds);
}

static void put_exited(int sock, struct wire_id id, int32_t status, unsigned fds)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_exited_encode(&b, &(struct msg_exited){.pid = 2, .exited = 1, .status = status});
    put(sock, WIRE_EXITED, id, &b, fds);
}

static void never_answers(int sock, struct wire_id id)
{
    (void)sock, (void)id;
    pause();
}

static void closes_at_once(int sock, struct wire_id id)
{
    (void)id;
    close(sock);
}

static void closes_after_started(int sock, struct wire_id id)
{
    put_started(sock, id, 2, 0);
    close(sock);
}

static void closes_its_reading_half(int sock, struct wire_id id)
{
    (void)id;
    shutdown(sock, SHUT_RD);
    pause();
}

/* One sender is slower than its reader and leaves gaps; several are not. */
static void multiply(void)
{
    for (int i = 0; i < 3; i++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            return;
        }
}

static void floods_with_other_ids(int sock, struct wire_id id)
{
    id.bytes[0] ^= 1;
    multiply();
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_exited_encode(&b, &(struct msg_exited){.pid = 2, .exited = 1});
    struct wire_head head = {.type = WIRE_EXITED, .id = id};
    FOREVER(void) wire_send(sock, &head, &b, NULL, 0, 0);
}

static void floods_with_started(int sock, struct wire_id id)
{
    multiply();
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_started_encode(&b, &(struct msg_started){.pid = 2});
    struct wire_head head = {.type = WIRE_STARTED, .id = id};
    FOREVER(void) wire_send(sock, &head, &b, NULL, 0, 0);
}

static void floods_with_descriptors(int sock, struct wire_id id)
{
    FOREVER
    put_started(sock, id, 2, WIRE_FDS_MAX);
}

static void drips(int sock, struct wire_id id)
{
    FOREVER
    {
        put_started(sock, id, 2, 0);
        usleep(50000);
    }
}

static void speaks_of_strange_pids(int sock, struct wire_id id)
{
    put_started(sock, id, -1, 0);
    put_started(sock, id, 0, 0);
    put_started(sock, id, INT32_MIN, 0);
    pause();
}

static void sends_half_a_started(int sock, struct wire_id id)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    buf_puts(&b, "xx");
    put(sock, WIRE_STARTED, id, &b, 0);
    pause();
}

static void sends_an_empty_exited(int sock, struct wire_id id)
{
    put(sock, WIRE_EXITED, id, NULL, 0);
    pause();
}

static void sends_a_malformed_error(int sock, struct wire_id id)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    for (int i = 0; i < 5000; i++)
        buf_puts(&b, "\xff\xff");
    put(sock, WIRE_ERROR, id, &b, 2);
    pause();
}

static void sends_an_error_full_of_percent_signs(int sock, struct wire_id id)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_error_encode(&b, &(struct msg_error){.code = PD_TIMEOUT, .text = "%n%s%n\x1b]0;x\a"});
    put(sock, WIRE_ERROR, id, &b, 0);
    pause();
}

static void answers_with_the_wrong_types(int sock, struct wire_id id)
{
    for (unsigned type = 0; type < 100; type++)
        if (type != WIRE_EXITED && type != WIRE_ERROR)
            put(sock, (enum wire_type)type, id, NULL, type % (WIRE_FDS_MAX + 1));
    pause();
}

static void sends_the_largest_frames(int sock, struct wire_id id)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    assert_non_null(buf_reserve(&b, WIRE_PAYLOAD_MAX));
    memset(b.data, 0xee, WIRE_PAYLOAD_MAX);
    b.len = WIRE_PAYLOAD_MAX;
    FOREVER
    put(sock, WIRE_STARTED, id, &b, WIRE_FDS_MAX);
}

static const struct {
    const char *name;
    attack attack;
} attacks[] = {
    {"never answers", never_answers},
    {"closes at once", closes_at_once},
    {"closes after STARTED", closes_after_started},
    {"closes its reading half", closes_its_reading_half},
    {"floods with EXITED of other ids", floods_with_other_ids},
    {"floods with STARTED", floods_with_started},
    {"floods with descriptors", floods_with_descriptors},
    {"drips", drips},
    {"speaks of strange pids", speaks_of_strange_pids},
    {"sends half a STARTED", sends_half_a_started},
    {"sends an empty EXITED", sends_an_empty_exited},
    {"sends a malformed ERROR", sends_a_malformed_error},
    {"sends an ERROR full of percent signs", sends_an_error_full_of_percent_signs},
    {"answers with the wrong types", answers_with_the_wrong_types},
    {"sends the largest frames", sends_the_largest_frames},
};

/* Waits for the EXEC, then attacks, in a process of its own that this one must end. */
static pid_t unleash(int sock, attack a, const struct bad_frame *bad)
{
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;

    struct frame f = FRAME_INIT;
    struct pd_err e;
    if (wire_recv(sock, &f, deadline_in(PATIENCE), &e) != 1)
        _exit(1);
    if (bad) {
        send_bad(sock, bad, 0);
        pause();
    }

    a(sock, f.head.id);
    pause();
    _exit(0);
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* ---- jail_run ---- */

/* Returns what jail_run does, with the reason in *e. */
static int run_against(const char *name, attack a, const struct bad_frame *bad, uint64_t within,
                       struct msg_exited *ret, struct pd_err *e)
{
    int s[2], before = fds_of(0);
    pair_make(s);
    fcntl(s[1], F_SETFD, 0);
    pid_t pid = unleash(s[1], a, bad);
    close(s[1]);

    struct jail j = JAIL_EMPTY;
    j.control = s[0];
    struct command c = {.exec = {.cwd = "/",
                                 .argv = {.text = "x", .count = 1, .bytes = 2},
                                 .environ = {.text = ""}}};
    uint64_t start = clock_now();

    /* Kept out of endless loops by SIGALRM, which ends the test. */
    alarm(200);
    int r = jail_run(&j, &c, 0, ret, deadline_in(within), e);
    alarm(0);
    uint64_t took = clock_now() - start;
    jail_done(&j);

    end(pid);
    if (took > within + 20 * NS_PER_S) /* what does not keep to its deadline never returns */
        fail_msg("%s: took %llu ms", name, (unsigned long long)(took / NS_PER_MS));
    if (fds_of(0) != before)
        fail_msg("%s: %d descriptors instead of %d", name, fds_of(0), before);
    return r;
}

static void test_jail_run_returns_in_time_whatever_init_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(attacks); i++) {
        struct pd_err e = {.msg = ""};
        struct msg_exited end_of;
        if (run_against(attacks[i].name, attacks[i].attack, NULL, BRIEF, &end_of, &e) != -1)
            fail_msg("%s: taken for an end", attacks[i].name);
        assert_true(strlen(e.msg) > 0);
    }
}

static void test_jail_run_refuses_what_breaks_the_format(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad_frames); i++) {
        struct pd_err e = {.msg = ""};
        struct msg_exited end_of;
        assert_int_equal(
            run_against(bad_frames[i].why, NULL, &bad_frames[i], PATIENCE, &end_of, &e), -1);
        if (e.code != PD_PROTOCOL)
            fail_msg("%s: %s", bad_frames[i].why, e.msg);
    }
}

static void ends_before_it_started(int sock, struct wire_id id)
{
    put_exited(sock, id, 3 << 8, 0);
    put_started(sock, id, 2, 0);
    pause();
}

static void ends_with_descriptors(int sock, struct wire_id id)
{
    put_exited(sock, id, 3 << 8, WIRE_FDS_MAX);
    pause();
}

static void ends_without_an_end(int sock, struct wire_id id)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_exited_encode(&b, &(struct msg_exited){.pid = 2, .exited = 0});
    put(sock, WIRE_EXITED, id, &b, 0);
    pause();
}

static void test_jail_run_takes_an_end_for_an_end(void **state)
{
    (void)state;
    struct pd_err e;
    struct msg_exited end_of;
    assert_int_equal(run_against("early", ends_before_it_started, NULL, PATIENCE, &end_of, &e), 0);
    assert_int_equal(WEXITSTATUS(end_of.status), 3);
    assert_int_equal(run_against("fds", ends_with_descriptors, NULL, PATIENCE, &end_of, &e), -1);
    assert_int_equal(run_against("no end", ends_without_an_end, NULL, PATIENCE, &end_of, &e), -1);
}

/* ---- paddock run ---- */

/* The owner: `paddock run` with a time-out, in a process of its own. Its status is 10
 * when the run failed, 11 when it has a result, 12 when descriptors or the reason are wrong. */
static pid_t start_owner(const char *keeper, uint64_t timeout)
{
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;

    static struct run_options o;
    static struct run_result r;
    struct pd_err e = {.msg = ""};
    char *argv[] = {(char *)"x", NULL};
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, 0);
    dup2(null, 1);
    setenv("PADDOCK_KEEPER", keeper, 1);
    o.spec = SPEC_DEFAULT;
    o.workdir = "";
    o.uid = o.gid = 1000;
    o.timeout_ns = timeout;
    o.argv = argv;
    o.argc = 1;
    int failed = run_in_jail(&o, &r, &e);

    /* Its own few: the streams, two sockets, a signalfd. What the attack sent must be closed. */
    if (fds_of(0) > 16 || (failed && !e.msg[0]))
        _exit(12);
    _exit(failed ? 10 : 11);
}

static void keeper_answer(int sock, enum wire_type type, struct wire_id id, const struct buf *b,
                          unsigned fd_count)
{
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int fds[2] = {null, null};
    struct wire_head head = {.type = (uint16_t)type, .id = id};
    (void)wire_send(sock, &head, b, fds, fd_count, deadline_in(PATIENCE));
}

/* A keeper that makes no jail but hands the control socket to the attacker. Returns the owner's
 * status. */
static int play_keeper(const char *name, attack a, const struct bad_frame *bad, uint64_t timeout)
{
    char dir[] = "/tmp/paddock-hostile-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s/s", dir);

    auto_fd listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 1), 0);

    uint64_t start = clock_now();
    pid_t owner = start_owner(at.sun_path, timeout), hostile = -1;
    struct timeval patience = {.tv_sec = PATIENCE / NS_PER_S};
    setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);

    auto_fd sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct frame f = FRAME_INIT;
    struct pd_err e;
    while (wire_recv(sock, &f, deadline_in(PATIENCE), &e) == 1) {
        auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
        if (f.head.type == WIRE_CREATE) {
            assert_int_equal(f.fd_count, 2);
            hostile = unleash(f.fds[0], a, bad);
            msg_created_encode(
                &b, &(struct msg_created){.rung = RUNG_FULL, .init_pid = 2, .name = "j1"});
            keeper_answer(sock, WIRE_CREATED, f.head.id, &b, 2);
        } else if (f.head.type == WIRE_DESTROY) {
            struct msg_destroy m;
            assert_int_equal(msg_destroy_decode(&f.payload, &m, &e), 0);
            msg_gone_encode(&b,
                            &(struct msg_gone){.jail = m.jail, .how = GONE_DESTROYED, .why = ""});
            keeper_answer(sock, WIRE_GONE, f.head.id, &b, 0);
        }
        frame_reset(&f);
    }
    frame_done(&f);

    int status = wait_child(owner);
    uint64_t took = clock_now() - start;
    if (hostile > 0)
        end(hostile);
    unlink(at.sun_path);
    rmdir(dir);

    if (took > timeout + 20 * NS_PER_S)
        fail_msg("%s: took %llu ms", name, (unsigned long long)(took / NS_PER_MS));
    if (!WIFEXITED(status))
        fail_msg("%s: the owner ended by signal %d", name, WTERMSIG(status));
    if (WEXITSTATUS(status) != 10 && WEXITSTATUS(status) != 11)
        fail_msg("%s: the owner ended with status %d", name, WEXITSTATUS(status));
    return WEXITSTATUS(status);
}

static void test_run_returns_in_time_whatever_init_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(attacks); i++)
        play_keeper(attacks[i].name, attacks[i].attack, NULL, BRIEF);
    /* The control: an end is a result. */
    assert_int_equal(play_keeper("early", ends_before_it_started, NULL, PATIENCE), 11);
}

static void test_run_survives_what_breaks_the_format(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad_frames); i++)
        assert_int_equal(play_keeper(bad_frames[i].why, NULL, &bad_frames[i], PATIENCE), 10);
}

/* Closing a socket that lingers blocks, and the last to close it is whoever received it. */
static void sends_a_socket_that_lingers(int sock, struct wire_id id)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    struct linger forever = {.l_onoff = 1, .l_linger = 30};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&a, sizeof a) < 0 || listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&a, &len) < 0)
        _exit(1);

    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(s, (struct sockaddr *)&a, sizeof a) < 0)
        _exit(1);

    static char bytes[1 << 16];
    for (int i = 0; i < 10; i++, usleep(5000)) /* until the peer's side is full as well */
        while (send(s, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            ;
    setsockopt(s, SOL_SOCKET, SO_LINGER, &forever, sizeof forever);

    struct wire_head head = {.type = WIRE_STARTED, .id = id};
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_started_encode(&b, &(struct msg_started){.pid = 2});
    wire_send(sock, &head, &b, &s, 1, 0);
    close(s);
    pause();
}

static void test_a_descriptor_that_lingers_does_not_hold_the_owner(void **state)
{
    (void)state;
    struct pd_err e;
    struct msg_exited end_of;
    assert_int_equal(
        run_against("lingers", sends_a_socket_that_lingers, NULL, PATIENCE, &end_of, &e), -1);
    assert_int_equal(e.code, PD_PROTOCOL);
    assert_int_equal(play_keeper("lingers", sends_a_socket_that_lingers, NULL, PATIENCE), 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jail_run_returns_in_time_whatever_init_does),
        cmocka_unit_test(test_jail_run_refuses_what_breaks_the_format),
        cmocka_unit_test(test_jail_run_takes_an_end_for_an_end),
        cmocka_unit_test(test_run_returns_in_time_whatever_init_does),
        cmocka_unit_test(test_run_survives_what_breaks_the_format),
        cmocka_unit_test(test_a_descriptor_that_lingers_does_not_hold_the_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
