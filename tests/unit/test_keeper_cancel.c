/* DESTROY of what is not made yet. Its maker has exactly one answer: the jail, if that was faster,
 * or the error, and then nothing of it is left. A broker that does not give up is killed. */
#include "keeper_peer.h"

#include "jail/keeper_kind.h"
#include "jail/keeper_state.h"

#define ROUNDS 500u

static void send_cancel(int sock, uint32_t jail)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_destroy_encode(&b, &(struct msg_destroy){.jail = id_of(jail)});
    struct wire_head head = {.type = WIRE_DESTROY, .flags = DESTROY_UNMADE, .id = id_of(90000)};
    assert_int_equal(wire_send(sock, &head, &b, NULL, 0, deadline_in(PATIENCE)), 0);
}

/* The keeper answers in the order of its requests, so this is the next frame unless something is
 * wrong. */
static void expect_nothing_left(struct keeper_run *k, int sock, uint32_t request)
{
    struct wire_head head = {.type = WIRE_COUNT, .id = id_of(request)};
    struct msg_counted m;
    struct pd_err e;

    assert_int_equal(wire_send(sock, &head, NULL, NULL, 0, deadline_in(PATIENCE)), 0);
    frame_reset(&k->f);
    assert_int_equal(wire_recv(sock, &k->f, deadline_in(PATIENCE), &e), 1);
    assert_true(wire_id_equal(k->f.head.id, id_of(request)));
    assert_int_equal(k->f.head.type, WIRE_COUNTED);
    assert_int_equal(msg_counted_decode(&k->f.payload, &m, &e), 0);
    assert_int_equal(m.jails, 0);
}

static void receive(struct keeper_run *k, int sock, uint32_t id)
{
    struct pd_err e;
    frame_reset(&k->f);
    assert_int_equal(wire_recv(sock, &k->f, deadline_in(PATIENCE), &e), 1);
    assert_true(wire_id_equal(k->f.head.id, id_of(id)));
}

/* A jail that is asked for and cancelled at once, a little later each round. */
static void test_one_answer_whatever_is_faster(void **state)
{
    (void)state;
    need_root();
    struct keeper_run k;
    keeper_begin(&k, 1, 0, 1);
    int c = client_open(&k);
    unsigned made = 0, cancelled = 0;

    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t id = 10 * i + 1;
        int control;
        send_create(c, id, 0, &control, NULL);
        usleep(i % 50 * 200);
        send_cancel(c, id);
        receive(&k, c, id);
        if (k.f.head.type == WIRE_CREATED) {
            made++;
            send_destroy(c, id + 1, id);
            expect_gone(c, &k.f, id + 1, id, GONE_DESTROYED);
        } else {
            struct pd_err e;
            assert_int_equal(k.f.head.type, WIRE_ERROR);
            msg_error_raise(&k.f, &e);
            assert_int_equal(e.code, PD_CONFLICT);
            cancelled++;
        }
        expect_nothing_left(&k, c, id + 2);
        close(control);
    }

    assert_true(cancelled > 0);
    assert_int_equal(made + cancelled, ROUNDS);
    close(c);
    keeper_end(&k);
}

static void test_one_in_the_queue(void **state)
{
    (void)state;
    need_root();
    struct keeper_run k;
    keeper_begin(&k, 1, 0, 1);
    int c = client_open(&k), control[20];
    struct pd_err e;

    for (uint32_t i = 0; i < 20; i++)
        send_create(c, i + 1, 0, &control[i], NULL);
    send_cancel(c, 20); /* behind nineteen others */
    send_cancel(c, 77); /* nobody's */
    unsigned made = 0;
    for (unsigned i = 0; i < 20; i++) {
        frame_reset(&k.f);
        assert_int_equal(wire_recv(c, &k.f, deadline_in(PATIENCE), &e), 1);
        if (k.f.head.type == WIRE_CREATED)
            made++;
        else
            assert_true(wire_id_equal(k.f.head.id, id_of(20)));
    }
    assert_int_equal(made, 19);
    for (unsigned i = 0; i < 20; i++)
        close(control[i]);
    close(c);
    keeper_end(&k);
}

/* A broker that is deaf while it builds. What it is asked for next it does: the box is swept. */
static void deaf_main(const struct builder_config *c, int sock)
{
    struct frame f = FRAME_INIT;
    struct pd_err e;

    (void)c;
    while (wire_recv(sock, &f, DEADLINE_NONE, &e) > 0) {
        struct wire_head head = {.type = WIRE_DONE, .id = f.head.id};
        while (f.head.type == WIRE_BUILD)
            pause();
        (void)wire_send(sock, &head, NULL, NULL, 0, DEADLINE_NONE);
        frame_reset(&f);
    }
    _exit(0);
}

static void test_a_broker_that_does_not_give_up(void **state)
{
    static const struct keeper_kind deaf = {.name = "deaf",
                                            .worker = deaf_main,
                                            .is_foreign = true,
                                            .takes_cancel = true,
                                            .rung = RUNG_BASIC};
    (void)state;
    need_root();
    struct keeper_run k;
    keeper_begin_kind(&k, &deaf, 1, 0, 0);
    int c = client_open(&k), control;
    struct pd_err e;

    send_create(c, 1, 0, &control, NULL);
    send_cancel(c, 1);
    expect_error(c, &k.f, 1, PD_CONFLICT, &e);
    assert_non_null(strstr(e.msg, "ended while it was being made"));
    expect_nothing_left(&k, c, 2);
    close(control);
    close(c);
    keeper_end(&k);
}

/* Only what may have to fetch an image has minutes: an end waits behind a strike. */
static void test_a_broker_has_minutes_for_a_build_alone(void **state)
{
    const struct worker broker = {.patience = PULL_PATIENCE},
                        builder = {.patience = BUILD_PATIENCE};
    (void)state;

    assert_true(worker_patience(&broker, WIRE_BUILD) == PULL_PATIENCE);
    assert_true(worker_patience(&broker, WIRE_KEEP_ROOT) == PULL_PATIENCE);
    assert_true(worker_patience(&broker, WIRE_STRIKE) == SWEEP_PATIENCE);
    assert_true(worker_patience(&broker, WIRE_SWEEP) == SWEEP_PATIENCE);
    assert_true(worker_patience(&builder, WIRE_STRIKE) == BUILD_PATIENCE);
    assert_true(worker_patience(&builder, WIRE_SWEEP) == SWEEP_PATIENCE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_answer_whatever_is_faster),
        cmocka_unit_test(test_one_in_the_queue),
        cmocka_unit_test(test_a_broker_that_does_not_give_up),
        cmocka_unit_test(test_a_broker_has_minutes_for_a_build_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
