/* A way out for a jail that runs, asked of a real keeper: its sockets are in the jail's network,
 * and whoever asks again has the same. */
#include "keeper_program.h"

#include "jail/keeper_state.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

static void link_up(const struct place *p, struct keeper_link *l)
{
    struct pd_err e;
    if (!p->keeper)
        skip_because("needs root and a built paddock");
    assert_int_equal(keeper_connect(l, p->socket, &e), 0);
    assert_int_equal(keeper_greet(l, NULL, deadline_in(PATIENCE), &e), 0);
}

static void make(struct keeper_link *l, struct jail *j)
{
    struct pd_err e = {.msg = ""};
    struct spec s = SPEC_DEFAULT;
    if (jail_create(l, j, &s, 0, deadline_in(PATIENCE), &e) < 0)
        fail_msg("no jail: %s", e.msg);
}

/* What bash in the jail comes back with. */
static int shell(struct jail *j, const char *text)
{
    struct pd_err e;
    struct msg_exited x;
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT, env = MSG_LIST_WRITER_INIT;
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);

    msg_list_add(&argv, "/bin/bash");
    msg_list_add(&argv, "-c");
    msg_list_add(&argv, text);
    struct command c = {.exec = {.uid = 1000,
                                 .gid = 1000,
                                 .cwd = "/workspace",
                                 .argv = msg_list_of(&argv),
                                 .environ = msg_list_of(&env)},
                        .fds = {null, null, null}};
    int r = jail_run(j, &c, 1, &x, deadline_in(PATIENCE), &e);
    msg_list_writer_done(&argv);
    return r < 0 ? -1 : WEXITSTATUS(x.status);
}

static void ask(struct keeper_link *l, struct wire_id id, struct wire_id jail)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_destroy m = {.jail = jail};
    struct wire_head head = {.type = WIRE_STEER, .epoch = l->epoch, .id = id};
    msg_destroy_encode(&out, &m);
    assert_int_equal(wire_send(l->sock, &head, &out, NULL, 0, deadline_in(PATIENCE)), 0);
}

/* 0 and both sockets, or the error's code + 1. */
static int answer(struct keeper_link *l, struct wire_id id, int gate[2])
{
    auto_frame f = FRAME_INIT;
    struct pd_err e = {.msg = ""};

    assert_true(wire_recv(l->sock, &f, deadline_in(PATIENCE), &e) > 0);
    assert_true(wire_id_equal(f.head.id, id));
    if (f.head.type == WIRE_ERROR) {
        msg_error_raise(&f, &e);
        return 1 + (int)e.code;
    }
    assert_int_equal(f.head.type, WIRE_STEERED);
    assert_int_equal(f.fd_count, 2);
    gate[0] = frame_take_fd(&f, 0);
    gate[1] = frame_take_fd(&f, 1);
    return 0;
}

static ino_t inode(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return st.st_ino;
}

#define DIAL "exec 3<>/dev/tcp/203.0.113.7/4711"

/* What the jail dials comes to the socket, with the address that it wanted. */
static void expect_dialled(struct jail *j, int tcp)
{
    struct sockaddr_in6 to;
    socklen_t len = sizeof to;
    char text[INET6_ADDRSTRLEN];

    assert_int_equal(shell(j, DIAL), 0);
    struct pollfd p = {tcp, POLLIN, 0};
    assert_int_equal(poll(&p, 1, PATIENCE / NS_PER_MS), 1);
    auto_fd c = accept4(tcp, NULL, NULL, SOCK_CLOEXEC);
    assert_true(c >= 0);
    assert_int_equal(getsockname(c, (struct sockaddr *)&to, &len), 0);
    assert_string_equal(inet_ntop(AF_INET6, &to.sin6_addr, text, sizeof text),
                        "::ffff:203.0.113.7");
    assert_int_equal(ntohs(to.sin6_port), 4711);
}

static void end(struct keeper_link *l, struct jail *j)
{
    struct pd_err e;
    assert_int_equal(jail_destroy(l, j, 0, NULL, deadline_in(PATIENCE), &e), 0);
    jail_done(j);
}

static void test_a_jail_that_runs_gets_a_way_out_and_keeps_it(void **state)
{
    struct keeper_link l;
    struct jail j, other;
    struct wire_id id = wire_id_new();
    int gate[2], again[2];
    link_up(*state, &l);
    make(&l, &j);
    make(&l, &other);
    assert_int_not_equal(shell(&j, DIAL), 0);

    ask(&l, id, j.id);
    assert_int_equal(answer(&l, id, gate), 0);
    expect_dialled(&j, gate[0]);
    assert_int_not_equal(shell(&other, DIAL), 0);

    ask(&l, id, j.id);
    assert_int_equal(answer(&l, id, again), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(inode(again[i]), inode(gate[i]));
        fd_done(&gate[i]);
    }
    /* The keeper has them still. */
    expect_dialled(&j, again[0]);
    fd_done(&again[0]);
    fd_done(&again[1]);
    end(&l, &j);
    end(&l, &other);
    keeper_link_done(&l);
}

static void test_two_that_ask_at_once_have_the_same(void **state)
{
    struct keeper_link l;
    struct jail j;
    struct wire_id first = wire_id_new(), second = wire_id_new();
    int a[2], b[2];
    link_up(*state, &l);
    make(&l, &j);
    ask(&l, first, j.id);
    ask(&l, second, j.id);
    assert_int_equal(answer(&l, first, a), 0);
    assert_int_equal(answer(&l, second, b), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(inode(a[i]), inode(b[i]));
        fd_done(&a[i]);
        fd_done(&b[i]);
    }
    end(&l, &j);
    keeper_link_done(&l);
}

static void test_there_is_none_for_who_is_not_there(void **state)
{
    struct keeper_link l;
    struct jail j;
    struct wire_id id = wire_id_new(), gone;
    int gate[2];
    link_up(*state, &l);
    make(&l, &j);
    gone = j.id;
    end(&l, &j);
    ask(&l, id, gone);
    assert_int_equal(answer(&l, id, gate), 1 + PD_NOT_FOUND);
    ask(&l, id, wire_id_new());
    assert_int_equal(answer(&l, id, gate), 1 + PD_NOT_FOUND);
    keeper_link_done(&l);
}

/* One that waits for another's answer is passed over, and does not take a worker's turn. */
static void test_who_asks_again_meanwhile_keeps_no_worker(void **state)
{
    (void)state;
    static struct keeper k;
    struct wire_id jail = wire_id_new(), other = wire_id_new();
    struct chore begun = {.type = WIRE_STEER, .jail_id = jail}, again = begun,
                 kill = {.type = WIRE_KILL}, elsewhere = {.type = WIRE_STEER, .jail_id = other};
    k = (struct keeper){.worker_count = 2, .workers = {{.builds = 1}, {.builds = 1}}};
    struct worker *idle = &k.workers[1];

    k.workers[0].chore = &begun;
    chore_add(&k, &again);
    assert_null(chore_take(&k, idle));
    chore_add(&k, &kill);
    chore_add(&k, &elsewhere);
    assert_ptr_equal(chore_take(&k, idle), &kill);
    assert_ptr_equal(chore_take(&k, idle), &elsewhere);

    k.workers[0].chore = NULL;
    assert_ptr_equal(chore_take(&k, idle), &again);
    assert_int_equal(k.chore_count, 0);
}

/* Nothing is fetched for it, so a worker that is silent is not waited for as if it were. */
static void test_it_is_short_work(void **state)
{
    (void)state;
    struct worker w = {.patience = PULL_PATIENCE};
    assert_int_equal(worker_patience(&w, WIRE_STEER), SWEEP_PATIENCE);
    assert_int_equal(worker_patience(&w, WIRE_BUILD), PULL_PATIENCE);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_a_jail_that_runs_gets_a_way_out_and_keeps_it),
        T(test_two_that_ask_at_once_have_the_same),
        T(test_there_is_none_for_who_is_not_there),
        cmocka_unit_test(test_who_asks_again_meanwhile_keeps_no_worker),
        cmocka_unit_test(test_it_is_short_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
