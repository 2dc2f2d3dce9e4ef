/* The far end of a link with a real init behind it, and a keeper's end in this program that is cut
 * off at random. */
#include "unit.h"

#include "far_dialled.h"

#include "link/kind.h"
#include "link/link.h"
#include "wire/msg.h"

#include "base/banned.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#define PATIENCE (60 * NS_PER_S)
#define LEASE    (30 * NS_PER_S)

/* A box and the keeper's end of its link. */
struct rig {
    struct far_run box;
    struct link *l;
    int fd;
    uint32_t uid, gid; /* whom commands run as */
    unsigned exits;    /* EXITED frames that have come */
    struct msg_exited end;
    bool refused, facts;
    struct link_ref marks[LINK_REFS_MAX];
    unsigned mark_count;
    struct buf out; /* of the channel that is read */
    uint32_t reads;
};

static void start(struct rig *r, uint64_t lease)
{
    *r = (struct rig){.fd = -1, .out = BUF_INIT(64u << 20)};
    far_start(&r->box, lease);
    r->l = link_new(LINK_KEEPER, 4u << 20);
    assert_non_null(r->l);
}

static int dial(const struct rig *r)
{
    int fd = r->box.by_port ? far_dial_port(&r->box) : far_dial(&r->box);
    assert_true(fd >= 0);
    return fd;
}

/* 0 when the box believes us, with what came behind its greeting; else -1. */
static int greet(const struct link_identity *who, int fd, uint8_t *rest, size_t *ret_len)
{
    struct greeting g;
    uint8_t nonce[LINK_NONCE];
    struct pd_err e;
    int r = 0;
    random_bytes(nonce, sizeof nonce);
    greeting_begin(&g, who, nonce);

    while (r == 0) {
        uint8_t data[512];
        size_t used = 0;
        if (g.out.len)
            (void)!send(fd, g.out.data, g.out.len, MSG_NOSIGNAL);
        buf_clear(&g.out);
        ssize_t n = recv(fd, data, sizeof data, 0);
        r = n <= 0 ? -1 : greeting_take(&g, data, (size_t)n, &used, &e);
        if (r > 0) {
            *ret_len = (size_t)n - used;
            memcpy(rest, data + used, *ret_len);
        }
    }
    greeting_end(&g);
    return r > 0 ? 0 : -1;
}

static void cut(struct rig *r)
{
    fd_done(&r->fd);
    link_down(r->l);
}

static void meet(struct rig *r)
{
    uint8_t rest[512];
    size_t len;
    struct pd_err e;
    cut(r);
    r->fd = dial(r);
    assert_int_equal(greet(&r->box.who, r->fd, rest, &len), 0);
    assert_int_equal(fd_set_nonblock(r->fd), 0);
    link_up(r->l, clock_now());
    if (len && link_take(r->l, rest, len, clock_now(), &e) < 0)
        fail_msg("%s", e.msg);
}

static void hear(struct rig *r, const struct link_msg *m)
{
    struct wire_head head;
    auto_buf payload = BUF_INIT(WIRE_PAYLOAD_MAX);
    assert_true(m->len >= sizeof head);
    memcpy(&head, m->body, sizeof head);
    buf_put(&payload, m->body + sizeof head, m->len - sizeof head);

    if (head.type == WIRE_FACTS) {
        struct msg_facts f;
        assert_int_equal(msg_facts_decode(&payload, &f, NULL), 0);
        r->uid = f.uid;
        r->gid = f.gid;
        r->facts = true;
    } else if (head.type == WIRE_EXITED) {
        assert_int_equal(msg_exited_decode(&payload, &r->end, NULL), 0);
        memcpy(r->marks, m->refs, sizeof r->marks);
        r->mark_count = m->ref_count;
        r->exits++;
    } else if (head.type == WIRE_ERROR) {
        r->refused = true;
    }
}

/* Moves what can be moved, after waiting for a moment at most. */
static void turn(struct rig *r)
{
    static uint8_t piece[65536];
    const uint8_t *data;
    size_t len;
    struct pd_err e;

    data = link_give(r->l, clock_now(), &len);
    struct pollfd p = {.fd = r->fd, .events = (short)(data ? POLLIN | POLLOUT : POLLIN)};
    poll(&p, 1, 100);
    if (data && p.revents & POLLOUT) {
        ssize_t n = send(r->fd, data, len, MSG_NOSIGNAL);
        assert_true(n > 0);
        link_sent(r->l, (size_t)n, clock_now());
    }
    if (p.revents & POLLIN) {
        ssize_t n = recv(r->fd, piece, sizeof piece, 0);
        assert_true(n > 0);
        if (link_take(r->l, piece, (size_t)n, clock_now(), &e) < 0)
            fail_msg("%s", e.msg);
    }

    struct link_msg m;
    while (link_next(r->l, &m)) {
        hear(r, &m);
        link_handled(r->l);
    }
    while (r->reads && (data = link_read(r->l, r->reads, &len))) {
        assert_int_equal(buf_put(&r->out, data, len), 0);
        link_taken(r->l, r->reads, len);
    }
}

#define UNTIL(r, condition)                                                                        \
    for (deadline limit_ = deadline_in(PATIENCE); !(condition);) {                                 \
        if (deadline_passed(limit_))                                                               \
            fail_msg("not within the time: " #condition);                                          \
        turn(r);                                                                                   \
    }

/* Sends EXEC of a shell line with these descriptors. */
static void exec_line(struct rig *r, const char *line, unsigned flags, struct link_msg *m,
                      struct wire_id id)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT, env = MSG_LIST_WRITER_INIT;
    auto_buf payload = BUF_INIT(WIRE_PAYLOAD_MAX), body = BUF_INIT(LINK_PAYLOAD_MAX);
    msg_list_add(&argv, "/bin/sh");
    msg_list_add(&argv, "-c");
    msg_list_add(&argv, line);
    msg_list_add(&env, "PATH=/usr/bin:/bin");
    struct msg_exec exec = {.uid = r->uid,
                            .gid = r->gid,
                            .cwd = "/",
                            .argv = msg_list_of(&argv),
                            .environ = msg_list_of(&env)};
    msg_exec_encode(&payload, &exec);

    struct wire_head head = {.magic = WIRE_MAGIC,
                             .type = WIRE_EXEC,
                             .fd_count = (uint16_t)m->ref_count,
                             .len = (uint32_t)payload.len,
                             .flags = flags,
                             .epoch = 1,
                             .id = id};
    buf_put(&body, &head, sizeof head);
    buf_put(&body, payload.data, payload.len);
    m->body = body.data;
    m->len = body.len;
    assert_int_equal(link_send(r->l, m), 0);
    msg_list_writer_done(&argv);
    msg_list_writer_done(&env);
}

/* Input and output as pipes, and errors to the same place as output. */
static uint32_t exec_pipes(struct rig *r, const char *line)
{
    uint32_t input = link_open(r->l, LINK_AWAY), output = link_open(r->l, LINK_BACK);
    struct link_msg m = {.refs = {{.channel = input, .ways = LINK_AWAY, .kind = LINK_PIPE},
                                  {.channel = output, .ways = LINK_BACK, .kind = LINK_PIPE},
                                  {.kind = LINK_SAME}},
                         .ref_count = 3};
    exec_line(r, line, 0, &m, wire_id_new());
    r->reads = output;
    return input;
}

static void ready(struct rig *r)
{
    start(r, LEASE);
    meet(r);
    UNTIL(r, r->facts);
}

/* The box ends with its link, and init with it. */
static void stop(struct rig *r)
{
    link_bye(r->l, LINK_BYE_ENDING, "the test is over");
    size_t len;
    for (const uint8_t *data; r->fd >= 0 && (data = link_give(r->l, clock_now(), &len));) {
        ssize_t n = send(r->fd, data, len, MSG_NOSIGNAL);
        if (n <= 0)
            break;
        link_sent(r->l, (size_t)n, clock_now());
    }

    far_end(&r->box);
    fd_done(&r->fd);
    link_free(r->l);
    buf_done(&r->out);
}

static void test_a_command_has_its_streams_and_its_end(void **state)
{
    (void)state;
    struct rig r;
    ready(&r);
    uint32_t input = exec_pipes(&r, "echo begin; cat; echo wrong >&2; exit 3");
    assert_int_equal(link_write(r.l, input, "given\n", 6), 6);

    link_end(r.l, input);
    UNTIL(&r, r.exits && link_channels(r.l) == 0);
    assert_true(link_is_over(r.l, r.reads) && link_is_unwanted(r.l, input));
    assert_int_equal(r.out.len, 18);
    assert_memory_equal(r.out.data, "begin\ngiven\nwrong\n", 18);
    assert_int_equal(WEXITSTATUS(r.end.status), 3);
    stop(&r);
}

/* Whoever hears of an end knows how much output there is, however late that comes. */
static void test_an_end_says_how_much_was_written(void **state)
{
    (void)state;
    struct rig r;
    ready(&r);
    exec_pipes(&r, "head -c 50000 /dev/zero");
    uint32_t output = r.reads;
    r.reads = 0;
    UNTIL(&r, r.exits);
    assert_int_equal(r.mark_count, 1);
    assert_int_equal(r.marks[0].channel, output);
    assert_int_equal(r.marks[0].offset, 50000);

    r.reads = output;
    UNTIL(&r, link_is_over(r.l, output));
    assert_int_equal(r.out.len, 50000);
    stop(&r);
}

static void test_a_line_that_cannot_run_is_refused_and_leaves_nothing(void **state)
{
    (void)state;
    struct rig r;
    ready(&r);
    struct link_msg m = {.ref_count = 1, .refs = {{.kind = LINK_NULL}}};
    exec_line(&r, "true", 0, &m, wire_id_new()); /* one descriptor instead of three */
    UNTIL(&r, r.refused);

    /* A pipe of both ways is no pipe. */
    r.refused = false;
    uint32_t id = link_open(r.l, LINK_AWAY | LINK_BACK);
    m = (struct link_msg){.ref_count = 1, .refs = {{.channel = id, .ways = 3, .kind = LINK_PIPE}}};
    exec_line(&r, "true", 0, &m, wire_id_new());
    UNTIL(&r, r.refused && link_is_over(r.l, id));
    link_end(r.l, id);
    UNTIL(&r, link_channels(r.l) == 0);
    stop(&r);
}

static void test_a_terminal_is_made_in_the_box_and_has_a_size(void **state)
{
    (void)state;
    struct rig r;
    ready(&r);
    struct wire_id id = wire_id_new();
    r.reads = link_open(r.l, LINK_AWAY | LINK_BACK);
    struct link_msg m = {
        .refs = {{.channel = r.reads, .ways = 3, .kind = LINK_TERMINAL},
                 {.kind = LINK_SAME},
                 {.kind = LINK_SAME}},
        .ref_count = 3,
    };
    exec_line(&r, "read a; stty size; test -t 0 && echo yes", EXEC_PTY, &m, id);

    auto_buf payload = BUF_INIT(WIRE_PAYLOAD_MAX), body = BUF_INIT(LINK_PAYLOAD_MAX);
    msg_resize_encode(&payload, &(struct msg_resize){.exec = id, .rows = 33, .cols = 77});
    struct wire_head head = {
        .magic = WIRE_MAGIC, .type = WIRE_RESIZE, .len = (uint32_t)payload.len};
    buf_put(&body, &head, sizeof head);
    buf_put(&body, payload.data, payload.len);
    assert_int_equal(link_send(r.l, &(struct link_msg){.body = body.data, .len = body.len}), 0);

    UNTIL(&r, link_is_heard(r.l));
    link_write(r.l, r.reads, "go\n", 3);
    UNTIL(&r, r.exits && link_is_over(r.l, r.reads));
    assert_non_null(strstr(buf_cstr(&r.out), "33 77\r\n"));
    assert_non_null(strstr(buf_cstr(&r.out), "yes\r\n"));
    stop(&r);
}

static void cut_at_random(bool by_port, const uint64_t all)
{
    struct rig r;
    uint64_t given = 0;
    unsigned cuts = 0;
    ready(&r);
    r.box.by_port = by_port;
    uint32_t input = exec_pipes(&r, "cat; echo ran >&2");

    while (r.out.len < all) {
        uint8_t piece[9000];
        size_t n = given + sizeof piece < all ? sizeof piece : (size_t)(all - given);
        for (size_t i = 0; i < n; i++)
            piece[i] = (uint8_t)((given + i) * 7 + ((given + i) >> 9));
        given += link_write(r.l, input, piece, n);
        turn(&r);
        if (rand() % 6 == 0) {
            meet(&r);
            cuts++;
        }
    }
    link_end(r.l, input);
    UNTIL(&r, r.exits && link_is_over(r.l, r.reads));
    assert_true(cuts > 50);
    assert_int_equal(r.exits, 1);
    assert_int_equal(r.out.len, all + 4);
    for (uint64_t i = 0; i < all; i++)
        if (r.out.data[i] != (uint8_t)(i * 7 + (i >> 9)))
            fail_msg("byte %llu is another", (unsigned long long)i);
    assert_memory_equal(r.out.data + all, "ran\n", 4);
    stop(&r);
}

static void test_cut_at_random_every_byte_comes_back_once(void **state)
{
    (void)state;
    cut_at_random(false, 8u << 20);
}

static void test_likewise_when_it_is_dialled(void **state)
{
    (void)state;
    cut_at_random(true, 8u << 20);
}

static void test_strangers_get_nowhere_and_disturb_nobody(void **state)
{
    (void)state;
    struct rig r;
    uint8_t rest[512];
    size_t len;
    ready(&r);
    uint32_t input = exec_pipes(&r, "cat");

    struct link_identity wrong = r.box.who;
    wrong.key[0] ^= 1;
    int silent[20];
    for (size_t i = 0; i < COUNT(silent); i++)
        silent[i] = dial(&r);
    for (int i = 0; i < 5; i++) {
        int fd = dial(&r);
        assert_int_equal(greet(&wrong, fd, rest, &len), -1);
        close(fd);
    }
    wrong = r.box.who;
    wrong.epoch = 6; /* knows the key, and is another keeper's end */
    int fd = dial(&r);
    assert_int_equal(greet(&wrong, fd, rest, &len), -1);
    close(fd);

    assert_int_equal(link_write(r.l, input, "still here", 10), 10);
    link_end(r.l, input);
    UNTIL(&r, r.exits && link_is_over(r.l, r.reads));
    assert_int_equal(r.out.len, 10);
    for (size_t i = 0; i < COUNT(silent); i++)
        close(silent[i]);
    stop(&r);
}

/* Who dials and asks for something else is told nothing; who has a wrong proof hears nothing more;
 * and however many of them there are, the keeper comes in. */
static void test_who_dials_without_the_key_learns_nothing(void **state)
{
    (void)state;
    struct rig r;
    char answer[500];
    ready(&r);
    uint32_t input = exec_pipes(&r, "cat");

    static const char *const others[] = {"/", "/link/01", "/link/", "/link/00?a"};
    for (size_t i = 0; i < COUNT(others); i++) {
        int fd = far_ask(&r.box, others[i], answer, sizeof answer);
        assert_string_equal(answer, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n"
                                    "Connection: close\r\n\r\n");
        assert_int_equal(recv(fd, answer, sizeof answer, 0), 0);
        close(fd);
    }

    struct link_identity wrong = r.box.who;
    wrong.key[0] ^= 1;
    struct greeting g;
    uint8_t nonce[LINK_NONCE], data[512];
    struct pd_err e;
    size_t used;
    random_bytes(nonce, sizeof nonce);
    int fd = far_dial_port(&r.box), failed = 0;
    assert_true(fd >= 0);
    greeting_begin(&g, &wrong, nonce);
    deadline began = clock_now();
    for (ssize_t n = 1; n > 0;) {
        if (g.out.len)
            (void)!send(fd, g.out.data, g.out.len, MSG_NOSIGNAL);
        buf_clear(&g.out);
        n = recv(fd, data, sizeof data, 0);
        failed |= n > 0 && greeting_take(&g, data, (size_t)n, &used, &e) != 0;
    }
    greeting_end(&g);
    close(fd);
    assert_false(failed); /* it said HELLO, and no more */
    assert_true(clock_now() - began > NS_PER_S);

    int silent[12];
    for (size_t i = 0; i < COUNT(silent); i++)
        silent[i] = far_ask(&r.box, "/link/00", answer, i < 6 ? 2 : 1);
    r.box.by_port = true;
    meet(&r);
    assert_int_equal(link_write(r.l, input, "still here", 10), 10);
    link_end(r.l, input);
    UNTIL(&r, r.exits && link_is_over(r.l, r.reads));
    assert_int_equal(r.out.len, 10);
    for (size_t i = 0; i < COUNT(silent); i++)
        close(silent[i]);
    stop(&r);
}

static void test_without_a_keeper_the_box_ends_by_itself(void **state)
{
    (void)state;
    struct rig r;
    start(&r, NS_PER_S / 2);
    far_end(&r.box);
    link_free(r.l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_command_has_its_streams_and_its_end),
        cmocka_unit_test(test_an_end_says_how_much_was_written),
        cmocka_unit_test(test_a_line_that_cannot_run_is_refused_and_leaves_nothing),
        cmocka_unit_test(test_a_terminal_is_made_in_the_box_and_has_a_size),
        cmocka_unit_test(test_cut_at_random_every_byte_comes_back_once),
        cmocka_unit_test(test_likewise_when_it_is_dialled),
        cmocka_unit_test(test_strangers_get_nowhere_and_disturb_nobody),
        cmocka_unit_test(test_who_dials_without_the_key_learns_nothing),
        cmocka_unit_test(test_without_a_keeper_the_box_ends_by_itself),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
