/* A nursery that does not answer: the broker starts another one only for a watch that was surely
 * not born. */
#include "unit.h"

#include "base/err.h"
#include "base/fd.h"
#include "engine/nursery.h"
#include "engine/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* Asks a nursery whose end is `far`; how many others were started. There is no such program beside
 * this one, so they end at once. */
static unsigned others(int near, int far, bool hears)
{
    static const struct remote_kind kind = {.name = "none"};
    struct broker_config c = BROKER_CONFIG_DEFAULT;
    struct nursery n = {.sock = near};
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int fds[NURSERY_FDS] = {null, null, null, null}, process = -1, status;
    unsigned started = 0;
    struct pd_err e;
    c.kind = &kind;

    if (hears)
        shutdown(far, SHUT_WR);
    else
        close(far);
    assert_int_equal(nursery_bear(&n, &c, "box", fds, &process, &e), -1);
    assert_int_equal(e.code, PD_LOST);
    assert_int_equal(n.sock, 0);
    if (hears)
        close(far);

    while (waitpid(-1, &status, 0) > 0)
        started++;
    assert_int_equal(errno, ECHILD);
    return started;
}

static void test_only_who_did_not_hear_is_replaced(void **state)
{
    (void)state;
    for (int hears = 0; hears < 2; hears++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        assert_int_equal(others(pair[0], pair[1], hears), hears ? 0 : 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_who_did_not_hear_is_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
