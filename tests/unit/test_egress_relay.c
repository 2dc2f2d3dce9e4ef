/* How the gate copies a connection on which an urgent byte comes: all but that byte arrives, and
 * the gate rests afterwards. */
#include "base/fd.h"
#include "gate/gate_state.h"
#include "unit.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* So much that the second turn is spliced; and all of it fits into a new connection's window. */
#define BEFORE    (40u << 10)
#define BEHIND    (8u << 10)
#define PATIENCE  (30 * NS_PER_S)
#define WAKES_MAX 1000u

/* A client, the flow in the gate, and a server. */
struct line {
    struct egress_policy policy;
    struct sandbox sandbox;
    struct flow *flow;
    int client, server;
};

static struct gate gate;

static void connect_pair(int *ret_here, int *ret_there)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int one = 1;

    auto_fd listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, len), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &len), 0);

    *ret_here = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(*ret_here, (struct sockaddr *)&a, len), 0);
    *ret_there = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(*ret_there >= 0);
    assert_int_equal(fd_set_nonblock(*ret_here), 0);
    assert_int_equal(setsockopt(*ret_here, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), 0);
}

static void line_begin(struct line *l)
{
    int near, far;

    gate = (struct gate){.epoll = epoll_create1(EPOLL_CLOEXEC), .client = {.fd = -1}};
    gate.records_last = &gate.records;
    relay_open_pipe(&gate);
    *l = (struct line){.flow = calloc(1, sizeof *l->flow)};
    l->sandbox = (struct sandbox){.gate = &gate, .policy = &l->policy, .connections = 1};

    connect_pair(&l->client, &near);
    connect_pair(&far, &l->server);
    *l->flow = (struct flow){.sandbox = &l->sandbox,
                             .state = FLOW_RELAY,
                             .link = &l->sandbox.flows,
                             .late = DEADLINE_NONE,
                             .near = {.kind = WATCH_NEAR, .fd = near, .owner = l->flow},
                             .far = {.kind = WATCH_FAR, .fd = far, .owner = l->flow}};
    l->sandbox.flows = l->flow;
    relay_begin(l->flow);
}

static void line_end(struct line *l)
{
    if (l->sandbox.flows)
        flow_end(l->flow, GATE_OK, NULL);
    flows_collect(&gate);
    records_free(&gate);
    fd_done(&l->client);
    fd_done(&l->server);
    for (int i = 0; i < 2; i++)
        fd_done(&gate.pipe[i]);
    fd_done(&gate.epoll);
}

/* Everything is at the gate before it looks. */
static void say(struct line *l, bool is_urgent, bool ends)
{
    static char text[BEFORE];
    memset(text, 'a', sizeof text);
    assert_int_equal(send(l->client, text, BEFORE, 0), BEFORE);
    if (is_urgent)
        assert_int_equal(send(l->client, "!", 1, MSG_OOB), 1);
    memset(text, 'b', BEHIND);
    assert_int_equal(send(l->client, text, BEHIND, 0), BEHIND);
    if (ends)
        assert_int_equal(shutdown(l->client, SHUT_WR), 0);

    deadline d = deadline_in(PATIENCE);
    int left = 1;
    while (ioctl(l->client, SIOCOUTQ, &left) == 0 && left && !deadline_passed(d))
        usleep(1000);
    assert_int_equal(left, 0);
}

/* One round of the gate's loop: did epoll tell of anything? */
static bool turn_gate(int patience)
{
    struct epoll_event events[8];
    int n = epoll_wait(gate.epoll, events, COUNT(events), patience);
    for (int i = 0; i < n; i++) {
        struct watch *w = events[i].data.ptr;
        if (w->kind == WATCH_NEAR)
            flow_near_ready(w->owner, events[i].events);
        else
            flow_far_ready(w->owner, events[i].events);
    }
    return n > 0;
}

/* What the server has got until its `count` bytes, or their end, are there. */
static void expect_all(struct line *l, bool ends)
{
    static char got[BEFORE + BEHIND + 2];
    size_t count = 0;
    unsigned wakes = 0;
    ssize_t n = -1;
    deadline d = deadline_in(PATIENCE);

    while ((ends ? n != 0 : count < BEFORE + BEHIND) && wakes < WAKES_MAX && !deadline_passed(d)) {
        wakes += turn_gate(10);
        while ((n = recv(l->server, got + count, sizeof got - count, 0)) > 0)
            count += (size_t)n;
    }

    assert_int_equal(count, BEFORE + BEHIND);
    assert_in_range(wakes, 1, 100);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(got[i], i < BEFORE ? 'a' : 'b');
    if (!ends)
        assert_false(turn_gate(0));
}

static void pass_all(bool is_urgent, bool ends)
{
    struct line l;
    line_begin(&l);
    say(&l, is_urgent, ends);
    expect_all(&l, ends);

    /* The other direction still goes; and a second time is as the first. */
    char byte;
    assert_int_equal(send(l.server, "c", 1, 0), 1);
    assert_true(turn_gate(1000));
    assert_int_equal(recv(l.client, &byte, 1, 0), 1);
    if (!ends) {
        say(&l, is_urgent, true);
        expect_all(&l, true);
    }
    line_end(&l);
}

/* The control. */
static void test_all_arrives_without_an_urgent_byte(void **state)
{
    (void)state;
    pass_all(false, false);
    pass_all(false, true);
}

static void test_what_follows_an_urgent_byte_arrives_and_the_gate_rests(void **state)
{
    (void)state;
    pass_all(true, false);
}

static void test_what_is_between_an_urgent_byte_and_the_end_arrives(void **state)
{
    (void)state;
    pass_all(true, true);
}

/* What its server has got within the patience, up to so many bytes. */
static size_t hear(const struct line *l, char *got, size_t room)
{
    size_t count = 0;
    deadline d = deadline_in(PATIENCE);

    while (count < room && !deadline_passed(d)) {
        (void)turn_gate(10);
        ssize_t n = recv(l->server, got + count, room - count, 0);
        if (n > 0)
            count += (size_t)n;
    }
    return count;
}

/* Its first bytes are the flow's, of which the dialling has said some. */
static void begin_with(struct line *l, const char *first, size_t sent)
{
    line_begin(l);
    assert_int_equal(send(l->flow->far.fd, first, sent, 0), sent);
    l->flow->first = (uint8_t *)strdup(first);
    l->flow->first_len = l->flow->first_room = strlen(first);
    l->flow->first_sent = sent;
}

static void test_what_the_dialling_has_said_is_not_said_again(void **state)
{
    (void)state;
    for (size_t sent = 0; sent <= 5; sent++) {
        struct line l;
        char got[7] = "";
        begin_with(&l, "first", sent);
        assert_int_equal(send(l.client, "!", 1, 0), 1);

        relay_begin(l.flow);
        assert_int_equal(hear(&l, got, 6), 6);
        assert_string_equal(got, "first!");
        assert_int_equal(l.flow->up.bytes, 6);
        line_end(&l);
    }
}

/* A client that says more while its server is looked for is told of once, and not lost. */
static void test_what_comes_while_it_is_dialled_waits(void **state)
{
    (void)state;
    struct line l;
    char got[7] = "";
    begin_with(&l, "first", 0);
    l.flow->state = FLOW_LOOKUP;
    l.sandbox.dials = 1;
    assert_int_equal(send(l.client, "!", 1, 0), 1);

    assert_true(turn_gate(1000));
    assert_false(turn_gate(0));
    l.flow->state = FLOW_RELAY;
    relay_begin(l.flow);
    assert_int_equal(hear(&l, got, 6), 6);
    assert_string_equal(got, "first!");
    line_end(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_arrives_without_an_urgent_byte),
        cmocka_unit_test(test_what_follows_an_urgent_byte_arrives_and_the_gate_rests),
        cmocka_unit_test(test_what_is_between_an_urgent_byte_and_the_end_arrives),
        cmocka_unit_test(test_what_the_dialling_has_said_is_not_said_again),
        cmocka_unit_test(test_what_comes_while_it_is_dialled_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
