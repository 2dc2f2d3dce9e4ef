#include "peer.h"

#include <pthread.h>
#include <sys/resource.h>

static void test_ids_are_random_and_have_a_text(void **state)
{
    (void)state;
    struct wire_id a = wire_id_new(), b = wire_id_new();
    assert_true(wire_id_equal(a, a));
    assert_false(wire_id_equal(a, b));
    char text[33];
    wire_id_text((struct wire_id){{0xde, 0xad, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xbe, 0x0f}},
                 text);
    assert_string_equal(text, "dead000000000000000000000000be0f");
}

/* Every bit of the head, and nothing but the head, decides. */
static void test_the_head_must_agree_with_the_datagram(void **state)
{
    (void)state;
    struct wire_head good = {.magic = WIRE_MAGIC, .len = 100, .fd_count = 2};
    struct pd_err e;

    assert_int_equal(wire_head_check(good, HEAD + 100, 2, &e), 0);
    assert_int_equal(wire_head_check(good, HEAD + 99, 2, &e), -1);
    assert_int_equal(e.code, PD_PROTOCOL);
    assert_int_equal(wire_head_check(good, HEAD + 101, 2, &e), -1);
    assert_int_equal(wire_head_check(good, HEAD + 100, 1, &e), -1);
    assert_int_equal(wire_head_check(good, HEAD + 100, 3, &e), -1);
    assert_int_equal(wire_head_check(good, HEAD - 1, 2, &e), -1);
    assert_int_equal(wire_head_check(good, 0, 0, &e), -1);

    for (int bit = 0; bit < 32; bit++) {
        struct wire_head bad = good;
        bad.magic ^= 1u << bit;
        assert_int_equal(wire_head_check(bad, HEAD + 100, 2, &e), -1);
        bad = good;
        bad.len ^= 1u << bit;
        assert_int_equal(wire_head_check(bad, HEAD + 100, 2, &e), -1);
    }

    struct wire_head huge = {
        .magic = WIRE_MAGIC, .len = WIRE_PAYLOAD_MAX, .fd_count = WIRE_FDS_MAX};
    assert_int_equal(wire_head_check(huge, HEAD + WIRE_PAYLOAD_MAX, WIRE_FDS_MAX, &e), 0);

    huge.len++;
    assert_int_equal(wire_head_check(huge, HEAD + WIRE_PAYLOAD_MAX + 1, WIRE_FDS_MAX, &e), -1);
    huge.len--;
    huge.fd_count++;
    assert_int_equal(wire_head_check(huge, HEAD + WIRE_PAYLOAD_MAX, WIRE_FDS_MAX + 1, &e), -1);
}

static void arrives_as_it_was_sent(int reserved)
{
    static const size_t lengths[] = {0, 1, 4095, WIRE_PAYLOAD_MAX};
    int s[2], before = fds_of(0);
    pair_make(s);
    struct frame f = FRAME_INIT; /* reused, as a loop does */
    if (reserved)
        assert_int_equal(frame_reserve(&f), 0);

    for (size_t i = 0; i < COUNT(lengths); i++)
        for (unsigned fds = 0; fds <= WIRE_FDS_MAX; fds++) {
            auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
            for (size_t k = 0; k < lengths[i]; k++)
                buf_putc(&b, (char)(k * 7 + i));
            int list[WIRE_FDS_MAX];
            for (unsigned k = 0; k < fds; k++)
                list[k] = s[k % 2];
            struct wire_head head = {
                .type = WIRE_EXEC, .flags = 5, .epoch = 1ULL << 40, .id = wire_id_new()};
            assert_int_equal(wire_send(s[0], &head, &b, list, fds, deadline_in(PATIENCE)), 0);
            frame_reset(&f);
            struct pd_err e;
            assert_int_equal(wire_recv(s[1], &f, 0, &e), 1);
            assert_int_equal(f.head.type, WIRE_EXEC);
            assert_int_equal(f.head.flags, 5);
            assert_true(f.head.epoch == 1ULL << 40);
            assert_true(wire_id_equal(f.head.id, head.id));
            assert_int_equal(f.payload.len, lengths[i]);
            if (lengths[i])
                assert_memory_equal(f.payload.data, b.data, lengths[i]);
            assert_int_equal(f.payload.data[lengths[i]], 0);
            assert_int_equal(f.fd_count, fds);
            for (unsigned k = 0; k < fds; k++)
                assert_true(fcntl(f.fds[k], F_GETFD) & FD_CLOEXEC);
        }
    frame_done(&f);
    close(s[0]);
    close(s[1]);
    assert_int_equal(fds_of(0), before);
}

static void test_a_frame_arrives_as_it_was_sent(void **state)
{
    (void)state;
    arrives_as_it_was_sent(0);
}

static void test_a_frame_arrives_in_one_call_as_it_was_sent(void **state)
{
    (void)state;
    arrives_as_it_was_sent(1);
}

static void test_a_descriptor_is_taken_once(void **state)
{
    (void)state;
    int s[2], before = fds_of(0);
    pair_make(s);

    struct wire_head head = {.type = WIRE_STASH};
    int list[2] = {s[0], s[1]};
    assert_int_equal(wire_send(s[0], &head, NULL, list, 2, 0), 0);
    struct frame f = FRAME_INIT;
    expect_frame(s[1], &f);

    int taken = frame_take_fd(&f, 1);
    assert_true(taken >= 0);
    assert_int_equal(frame_take_fd(&f, 1), -1);
    assert_int_equal(frame_take_fd(&f, 2), -1);
    assert_int_equal(frame_take_fd(&f, UINT32_MAX), -1);
    frame_done(&f);
    frame_done(&f); /* twice does no harm */

    assert_true(fcntl(taken, F_GETFD) >= 0);
    close(taken);
    close(s[0]);
    close(s[1]);
    assert_int_equal(fds_of(0), before);
}

static void test_what_breaks_the_format_is_refused_and_leaks_nothing(void **state)
{
    (void)state;

    for (size_t n = 0; n < 2 * COUNT(bad_frames); n++) {
        size_t i = n / 2;
        int s[2];
        pair_make(s);

        int before = fds_of(0);
        send_bad(s[0], &bad_frames[i], s[0]);
        struct frame f = FRAME_INIT;
        if (n % 2)
            assert_int_equal(frame_reserve(&f), 0);

        struct pd_err e = {.msg = ""};
        int r = wire_recv(s[1], &f, 0, &e);
        if (r != -1 || e.code != PD_PROTOCOL)
            fail_msg("%s: returned %d, %s", bad_frames[i].why, r, e.msg);
        assert_int_equal(f.fd_count, 0);
        assert_true(strlen(e.msg) > 0);
        if (fds_of(0) != before)
            fail_msg("%s: %d descriptors instead of %d", bad_frames[i].why, fds_of(0), before);

        frame_done(&f);
        close(s[0]);
        close(s[1]);
    }
}

/* No room in the descriptor table: the kernel cuts the list short and says so. */
static void test_a_full_descriptor_table_is_a_refusal_without_a_leak(void **state)
{
    (void)state;
    struct rlimit old, low;
    int s[2];
    pair_make(s);

    struct wire_head head = {.type = WIRE_STASH};
    int list[4] = {s[0], s[0], s[0], s[0]};
    assert_int_equal(wire_send(s[0], &head, NULL, list, 4, 0), 0);

    struct frame f = FRAME_INIT;
    struct pd_err e;
    int before = fds_of(0);
    int next = dup(s[0]);
    close(next);

    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    low.rlim_cur = (rlim_t)next + 2;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);

    int r = wire_recv(s[1], &f, 0, &e);
    setrlimit(RLIMIT_NOFILE, &old);
    assert_int_equal(r, -1);

    /* The peer did nothing wrong: the connection can go on, and who waits be told. */
    assert_int_equal(e.code, PD_CAPACITY);
    assert_int_equal(f.head.type, WIRE_STASH);
    assert_int_equal(fds_of(0), before);
    assert_int_equal(wire_send(s[0], &head, NULL, list, 4, 0), 0);
    assert_int_equal(wire_recv(s[1], &f, 0, &e), 1);
    assert_int_equal(f.fd_count, 4);

    frame_done(&f);
    close(s[0]);
    close(s[1]);
}

/* It stays in the socket: to take it out would be to close it. */
static void test_descriptors_nobody_asked_for_are_not_even_received(void **state)
{
    (void)state;
    int s[2];
    pair_make(s);

    struct frame f = FRAME_INIT;
    struct pd_err e;
    assert_int_equal(wire_recv_plain(s[1], &f, 0, &e), -1);
    assert_int_equal(e.code, PD_TIMEOUT);
    assert_int_equal(wire_recv_plain(s[1], &f, deadline_in(20 * NS_PER_MS), &e), -1);
    assert_int_equal(e.code, PD_TIMEOUT);
    assert_int_equal(send_plain(s[0], WIRE_SYNC, 7, 0), 0);
    assert_int_equal(wire_recv_plain(s[1], &f, 0, &e), 1);
    assert_int_equal(id_number(f.head.id), 7);
    frame_reset(&f);

    for (size_t i = 0; i < COUNT(bad_frames); i++) {
        int bad[2], before = fds_of(0);
        pair_make(bad);
        send_bad(bad[0], &bad_frames[i], s[0]);
        assert_int_equal(wire_recv_plain(bad[1], &f, 0, &e), -1);
        assert_int_equal(e.code, PD_PROTOCOL);
        close(bad[0]);
        close(bad[1]);
        assert_int_equal(fds_of(0), before);
    }

    int before = fds_of(0);
    struct wire_head head = {.type = WIRE_STARTED};
    assert_int_equal(wire_send(s[0], &head, NULL, s, 2, 0), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(wire_recv_plain(s[1], &f, deadline_in(PATIENCE), &e), -1);
        assert_int_equal(e.code, PD_PROTOCOL);
    }
    assert_int_equal(fds_of(0), before);
    assert_int_equal(wire_recv(s[1], &f, 0, &e), 1); /* the control: it was there */
    frame_done(&f);
    close(s[0]);
    assert_int_equal(wire_recv_plain(s[1], &f, DEADLINE_NONE, &e), 0);

    frame_done(&f);
    close(s[1]);
}

/* Each look gives copies of the descriptors; the frame stays until it is taken away. */
static void test_what_was_looked_at_stays_until_it_is_taken_away(void **state)
{
    (void)state;
    int s[2], p[2];
    struct pd_err e;
    struct wire_head head = {.type = 7, .id = wire_id_new()}, next = {.type = 8};
    struct frame f = FRAME_INIT;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    assert_int_equal(wire_peek(s[1], &f, &e), -1);
    assert_int_equal(e.code, PD_TIMEOUT);
    assert_int_equal(wire_send(s[0], &head, NULL, &p[1], 1, 0), 0);
    assert_int_equal(wire_send(s[0], &next, NULL, NULL, 0, 0), 0);

    for (int i = 0; i < 3; i++) {
        assert_int_equal(wire_peek(s[1], &f, &e), 1);
        assert_int_equal(f.head.type, 7);
        assert_int_equal(f.fd_count, 1);
        frame_reset(&f);
    }
    wire_skip(s[1]);
    close(p[1]);
    char byte;
    assert_int_equal(read(p[0], &byte, 1), 0); /* nobody has the other end any more */
    assert_int_equal(wire_peek(s[1], &f, &e), 1);
    assert_int_equal(f.head.type, 8);
    wire_skip(s[1]);
    close(s[0]);
    assert_int_equal(wire_peek(s[1], &f, &e), 0);
    frame_done(&f);
    close(s[1]);
    close(p[0]);
}

static void test_an_end_is_an_end(void **state)
{
    (void)state;
    struct pd_err e;
    auto_frame f = FRAME_INIT;
    int s[2];
    pair_make(s);
    assert_int_equal(send_plain(s[0], WIRE_SYNC, 1, 0), 0);
    close(s[0]);
    assert_int_equal(wire_recv(s[1], &f, 0, &e), 1); /* what was sent before it still counts */
    assert_int_equal(wire_recv(s[1], &f, 0, &e), 0);
    assert_int_equal(wire_recv(s[1], &f, DEADLINE_NONE, NULL), 0);
    assert_int_equal(send_plain(s[1], WIRE_SYNC, 1, 0), -EPIPE);
    close(s[1]);

    /* Unread frames at the other end's close: the kernel says ECONNRESET. */
    pair_make(s);
    assert_int_equal(send_plain(s[1], WIRE_SYNC, 1, 0), 0);
    close(s[0]);
    assert_int_equal(wire_recv(s[1], &f, DEADLINE_NONE, &e), 0);
    close(s[1]);

    pair_make(s);
    assert_int_equal(send_raw(s[0], "", 0, -1, 0), 0);
    assert_int_equal(wire_recv(s[1], &f, 0, &e), 0);
    close(s[0]);
    close(s[1]);
}

static void test_waiting_ends_at_the_deadline(void **state)
{
    (void)state;
    struct pd_err e;
    auto_frame f = FRAME_INIT;
    int s[2];
    pair_make(s);
    uint64_t start = clock_now();
    assert_int_equal(wire_recv(s[0], &f, deadline_in(50 * NS_PER_MS), &e), -1);
    assert_int_equal(e.code, PD_TIMEOUT);
    assert_true(clock_now() - start >= 50 * NS_PER_MS);
    assert_int_equal(wire_recv(s[0], &f, 0, &e), -1);
    assert_int_equal(e.code, PD_TIMEOUT);

    /* A peer that never reads. */
    struct wire_head head = {.type = WIRE_SYNC};
    int r, sent = 0;
    while ((r = wire_send(s[0], &head, NULL, NULL, 0, 0)) == 0)
        sent++;
    assert_int_equal(r, -EAGAIN);
    assert_true(sent > 10);
    start = clock_now();
    assert_int_equal(wire_send(s[0], &head, NULL, NULL, 0, deadline_in(50 * NS_PER_MS)), -EAGAIN);
    assert_true(clock_now() - start >= 50 * NS_PER_MS);
    close(s[0]);
    close(s[1]);
}

static void *read_all(void *arg)
{
    int sock = *(int *)arg;
    auto_frame f = FRAME_INIT;
    struct pd_err e;
    uint32_t expected = 0;
    usleep(50000);
    while (wire_recv(sock, &f, deadline_in(PATIENCE), &e) == 1) {
        if (id_number(f.head.id) != expected++)
            return NULL;
        frame_reset(&f);
    }
    return (void *)(uintptr_t)expected;
}

static void test_a_sender_waits_for_room_and_nothing_is_lost(void **state)
{
    (void)state;
    int s[2];
    pthread_t reader;
    void *got;

    pair_make(s);
    assert_int_equal(pthread_create(&reader, NULL, read_all, &s[1]), 0);
    for (uint32_t i = 0; i < 3000; i++) {
        struct wire_head head = {.type = WIRE_SYNC, .id = id_of(i)};
        assert_int_equal(wire_send(s[0], &head, NULL, NULL, 0, deadline_in(PATIENCE)), 0);
    }
    close(s[0]);

    pthread_join(reader, &got);
    assert_int_equal((uintptr_t)got, 3000);
    close(s[1]);
}

static void test_what_is_too_large_is_not_sent(void **state)
{
    (void)state;
    int s[2];
    pair_make(s);
    struct wire_head head = {.type = WIRE_SYNC};
    auto_buf large = BUF_INIT(2 * WIRE_PAYLOAD_MAX);
    assert_non_null(buf_reserve(&large, WIRE_PAYLOAD_MAX + 1));

    memset(large.data, 0, WIRE_PAYLOAD_MAX + 1);
    large.len = WIRE_PAYLOAD_MAX + 1;
    assert_int_equal(wire_send(s[0], &head, &large, NULL, 0, 0), -EMSGSIZE);

    auto_buf over = BUF_INIT(4);
    buf_puts(&over, "12345");
    assert_int_equal(wire_send(s[0], &head, &over, NULL, 0, 0), -EMSGSIZE);
    int list[WIRE_FDS_MAX + 1] = {0};
    assert_int_equal(wire_send(s[0], &head, NULL, list, WIRE_FDS_MAX + 1, 0), -EMSGSIZE);

    list[0] = -1;
    assert_int_equal(wire_send(s[0], &head, NULL, list, 1, 0), -EBADF);
    expect_silence(s[1]);
    close(s[0]);
    close(s[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_are_random_and_have_a_text),
        cmocka_unit_test(test_the_head_must_agree_with_the_datagram),
        cmocka_unit_test(test_a_frame_arrives_as_it_was_sent),
        cmocka_unit_test(test_a_frame_arrives_in_one_call_as_it_was_sent),
        cmocka_unit_test(test_a_descriptor_is_taken_once),
        cmocka_unit_test(test_what_breaks_the_format_is_refused_and_leaks_nothing),
        cmocka_unit_test(test_a_full_descriptor_table_is_a_refusal_without_a_leak),
        cmocka_unit_test(test_descriptors_nobody_asked_for_are_not_even_received),
        cmocka_unit_test(test_what_was_looked_at_stays_until_it_is_taken_away),
        cmocka_unit_test(test_an_end_is_an_end),
        cmocka_unit_test(test_waiting_ends_at_the_deadline),
        cmocka_unit_test(test_a_sender_waits_for_room_and_nothing_is_lost),
        cmocka_unit_test(test_what_is_too_large_is_not_sent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
