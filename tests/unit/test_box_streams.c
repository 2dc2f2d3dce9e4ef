/* The near ends of a command's streams: what poll is asked about, so that what hangs up is told
 * once and keeps nobody turning. */
#include "unit.h"

#include "base/fd.h"
#include "box/keep.h"
#include "box/streams.h"
#include "link/kind.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

struct rig {
    struct streams s;
    struct link *l;
    uint32_t channel;
    int far;
};

static int setup(void **state)
{
    static struct rig r;
    r = (struct rig){.l = link_new(LINK_KEEPER, 1u << 20), .far = -1};
    assert_non_null(r.l);
    *state = &r;
    return 0;
}

static int teardown(void **state)
{
    struct rig *r = *state;
    fd_done(&r->far);
    streams_done(&r->s);
    link_free(r->l);
    return 0;
}

/* Joins `near` to a channel; the other end is the test's. */
static void join(struct rig *r, int near, int far, unsigned ways)
{
    r->far = far;
    r->channel = link_open(r->l, LINK_AWAY | LINK_BACK);
    assert_true(r->channel > 0);
    assert_int_equal(streams_add(&r->s, r->channel, near, ways, wire_id_new()), 0);
}

/* A turn that does not wait. Was there something to turn for? */
static bool turns(struct rig *r)
{
    struct pollfd p = {.fd = -1};
    streams_poll(&r->s, r->l, &p);
    bool any = r->s.count && poll(&p, 1, 0) > 0;
    streams_move(&r->s, r->l, &p);
    return any;
}

static void test_a_socket_that_hung_up_is_told_once(void **state)
{
    struct rig *r = *state;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    join(r, pair[0], pair[1], LINK_AWAY | LINK_BACK);
    assert_false(turns(r));

    fd_done(&r->far);
    assert_true(turns(r)); /* its end is read */
    assert_false(r->s.all[0].reads);
    for (int i = 0; i < 3; i++)
        assert_false(turns(r));
    assert_true(r->s.all[0].writes); /* the link may have something for it still */
}

static void test_a_pipe_without_a_reader_is_told(void **state)
{
    struct rig *r = *state;
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    join(r, p[1], p[0], LINK_AWAY);
    assert_false(turns(r));

    fd_done(&r->far);
    assert_true(turns(r));
    assert_int_equal(r->s.count, 0);
}

/* An error that may pass is no end: what comes behind it is still read, and nobody turns for it
 * meanwhile. A directory cannot be read, and then a pipe has its number. */
static void test_an_error_that_passes_is_no_end(void **state)
{
    struct rig *r = *state;
    int p[2], near = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(near >= 0);
    assert_int_equal(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
    join(r, near, p[1], LINK_BACK);
    size_t room = link_room(r->l, r->channel);
    assert_true(streams_deadline(&r->s) == DEADLINE_NONE);
    assert_true(turns(r));
    assert_true(r->s.all[0].reads);
    assert_false(turns(r));

    assert_int_equal(write(r->far, "hello", 5), 5);
    assert_int_equal(dup3(p[0], near, O_CLOEXEC), near);
    close(p[0]);
    assert_true(streams_deadline(&r->s) <= deadline_in(NS_PER_S));
    while (!deadline_passed(streams_deadline(&r->s)))
        usleep(1000);
    assert_true(turns(r));
    assert_int_equal(link_room(r->l, r->channel), room - 5);
    assert_true(streams_deadline(&r->s) == DEADLINE_NONE);
    assert_false(turns(r));
}

/* Who hears of the same EXEC again, because nothing was recorded, finds the descriptor as it was.
 */
static void test_a_descriptor_is_as_it_was_until_a_record_has_it(void **state)
{
    (void)state;
    struct keep *k = keep_new();
    struct streams s = {.keep = k, .closing = BUF_INIT(4096)};
    struct link *l = link_new(LINK_KEEPER, 1u << 20);
    int p[2];
    assert_non_null(k);
    assert_non_null(l);
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    assert_int_equal(streams_add(&s, 1, p[1], LINK_AWAY, wire_id_new()), 0);
    assert_int_equal(fcntl(p[1], F_GETFL) & O_NONBLOCK, 0);
    streams_recorded(&s, l);
    assert_int_equal(fcntl(p[1], F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    streams_done(&s);
    assert_int_equal(fcntl(p[1], F_GETFD), -1);
    link_free(l);
    keep_free(k);
    close(p[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_socket_that_hung_up_is_told_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_pipe_without_a_reader_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_error_that_passes_is_no_end, setup, teardown),
        cmocka_unit_test(test_a_descriptor_is_as_it_was_until_a_record_has_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
