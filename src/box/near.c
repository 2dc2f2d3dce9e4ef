/* What is not said by descriptors is not known here. */
#include "box/near.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"
#include "box/guard.h"
#include "box/keep.h"
#include "box/stand_in.h"
#include "wire/msg.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUDGET   (16u << 20)
#define PAUSE_MS 100u

static int dial(void *context)
{
    int pair[2];
    struct wire_head head = {.type = WIRE_ADOPT, .id = wire_id_new()};

    (void)context;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return STAND_IN_AGAIN;
    auto_fd near = pair[0], far = pair[1];
    return wire_send(NEAR_ORDERS, &head, NULL, &far, 1, 0) == 0 ? fd_take(&near) : STAND_IN_AGAIN;
}

static void tell_up(void *context)
{
    (void)context;
    (void)send(NEAR_REPORT, "\n", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* The pipe ends behind the secret, so nothing is left in it. */
static int read_secret(struct near_secret *ret)
{
    auto_fd from = NEAR_SECRET;
    return read(from, ret, sizeof *ret) == (ssize_t)sizeof *ret ? 0 : -1;
}

static int work(void *context)
{
    struct pd_err e;
    prctl(PR_SET_NAME, "paddock-standin", 0, 0, 0);
    return stand_in_run(context, &e) < 0 ? 1 : 0;
}

static uint64_t progress(void *context)
{
    const struct stand_in_config *c = context;
    return keep_count(c->keep);
}

int near_main(int argc, char **argv)
{
    struct near_secret secret;
    struct pd_err e;
    uint64_t parent = 0;

    prctl(PR_SET_NAME, "paddock-guard", 0, 0, 0);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    (void)signal(SIGPIPE, SIG_IGN);
    if (argc < 3 || parse_u64("parent", argv[2], 1, INT32_MAX, &parent, &e) < 0 ||
        (uint64_t)getppid() != parent || read_secret(&secret) < 0)
        return 1;

    struct stand_in_config c = {.who = {.role = LINK_KEEPER, .box = secret.box, .epoch = 1},
                                .control = NEAR_CONTROL,
                                .lease = secret.lease,
                                .budget = BUDGET,
                                .lowest = NEAR_CONTROL + NEAR_FDS,
                                .dial = dial,
                                .up = tell_up};
    memcpy(c.who.key, secret.key, sizeof c.who.key);
    explicit_bzero(&secret, sizeof secret);
    c.keep = keep_new();
    return c.keep && guard_run(work, progress, PAUSE_MS, &c) == 0 ? 0 : 1;
}
