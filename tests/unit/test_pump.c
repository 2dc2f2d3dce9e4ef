#include "unit.h"

#include "base/err.h"
#include "base/fd.h"
#include "core/pump.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/epoll.h>

#define PATIENCE (60 * NS_PER_S)

struct probe {
    struct pump_source source;
    struct pump_timer timer;
    atomic_int calls, running;
    int slow;
};

static void ready(struct pump_source *s, uint32_t events)
{
    struct probe *p = (struct probe *)((char *)s - offsetof(struct probe, source));
    char c;
    (void)events;
    atomic_store(&p->running, 1);
    if (p->slow)
        usleep(50000);
    (void)!read(s->fd, &c, 1);
    atomic_fetch_add(&p->calls, 1);
    atomic_store(&p->running, 0);
}

static void fire(struct pump_timer *t)
{
    struct probe *p = (struct probe *)((char *)t - offsetof(struct probe, timer));
    atomic_fetch_add(&p->calls, 1);
}

static void await_calls(struct probe *p, int n)
{
    deadline d = deadline_in(PATIENCE);
    while (atomic_load(&p->calls) < n && !deadline_passed(d))
        usleep(1000);
    assert_true(atomic_load(&p->calls) >= n);
}

static void test_sources_are_called_when_ready(void **state)
{
    (void)state;
    struct pd_err e;
    int p[2];
    struct pump *pump = pump_new(&e);
    assert_non_null(pump);

    assert_int_equal(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
    struct probe probe = {.source = {.ready = ready, .fd = p[0]}};
    assert_int_equal(pump_add(pump, &probe.source, EPOLLIN, &e), 0);

    for (int i = 1; i <= 3; i++) {
        assert_int_equal(write(p[1], "x", 1), 1);
        await_calls(&probe, i);
    }

    pump_remove(pump, &probe.source);
    assert_int_equal(write(p[1], "x", 1), 1);
    usleep(20000);
    assert_int_equal(atomic_load(&probe.calls), 3);
    pump_free(pump);
    close(p[0]);
    close(p[1]);
}

static void test_remove_waits_for_the_callback(void **state)
{
    (void)state;
    struct pd_err e;
    int p[2];
    struct pump *pump = pump_new(&e);

    assert_int_equal(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
    struct probe probe = {.source = {.ready = ready, .fd = p[0]}, .slow = 1};
    assert_int_equal(pump_add(pump, &probe.source, EPOLLIN, &e), 0);

    assert_int_equal(write(p[1], "x", 1), 1);
    deadline d = deadline_in(PATIENCE);
    while (!atomic_load(&probe.running) && !atomic_load(&probe.calls) && !deadline_passed(d))
        usleep(1000);
    pump_remove(pump, &probe.source);
    assert_int_equal(atomic_load(&probe.running), 0);
    assert_int_equal(atomic_load(&probe.calls), 1);

    pump_free(pump);
    close(p[0]);
    close(p[1]);
}

static void test_timers_fire_in_order_and_can_be_cancelled(void **state)
{
    (void)state;
    struct pd_err e;
    struct pump *pump = pump_new(&e);
    deadline limit = deadline_in(PATIENCE);

    /* Again where the machine was so slow that its time had come before it was cancelled. */
    for (bool in_time = false; !in_time;) {
        assert_false(deadline_passed(limit));
        struct probe soon = {.timer = {.fire = fire}}, never = {.timer = {.fire = fire}};
        deadline due = deadline_in(500 * NS_PER_MS);
        pump_set_timer(pump, &never.timer, due);
        pump_set_timer(pump, &soon.timer, deadline_in(10 * NS_PER_MS));
        await_calls(&soon, 1);
        pump_cancel_timer(pump, &never.timer);
        in_time = !deadline_passed(due);

        usleep(700000);
        assert_true(!in_time || atomic_load(&never.calls) == 0);
        assert_int_equal(atomic_load(&soon.calls), 1);
    }
    pump_free(pump);
}

/* Sources come and go on other threads while events are on the way: none may be called after it
 * was removed, when its memory is somebody else's. */
static void *churn(void *arg)
{
    struct pump *pump = arg;
    struct pd_err e;

    for (int i = 0; i < 2000; i++) {
        int p[2];
        if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0)
            return (void *)1;
        struct probe *probe = calloc(1, sizeof *probe);
        probe->source = (struct pump_source){.ready = ready, .fd = p[0]};
        if (pump_add(pump, &probe->source, EPOLLIN, &e) < 0)
            return (void *)1;
        (void)!write(p[1], "x", 1);
        pump_remove(pump, &probe->source);
        close(p[0]);
        close(p[1]);
        memset(probe, 0xff, sizeof *probe);
        free(probe);
    }

    return NULL;
}

static void test_churn_on_several_threads(void **state)
{
    (void)state;
    struct pd_err e;
    struct pump *pump = pump_new(&e);
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, churn, pump), 0);

    for (int i = 0; i < 4; i++) {
        void *r;
        pthread_join(t[i], &r);
        assert_null(r);
    }
    pump_free(pump);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sources_are_called_when_ready),
        cmocka_unit_test(test_remove_waits_for_the_callback),
        cmocka_unit_test(test_timers_fire_in_order_and_can_be_cancelled),
        cmocka_unit_test(test_churn_on_several_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
