/* far_run: a box elsewhere, for tests: a real init and the far end of its link, as two children of
 * the test, which connects to the far end as an engine's exec would, or dials it (far_dialled.h).
 */
#pragma once

#include "base/err.h"
#include "base/fd.h"
#include "box/far.h"
#include "wire/start.h"

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

struct far_run {
    pid_t far, init;
    char dir[64];
    struct sockaddr_un where;
    socklen_t where_len;
    struct sockaddr_in port;  /* where it can be dialled */
    const char *target;       /* what has to be asked for there */
    bool by_port;             /* the test dials it */
    struct link_identity who; /* the keeper's */
};

static inline void far_start_init(struct far_run *r, int sock, int other)
{
    char workspace[100], home[100];
    snprintf(workspace, sizeof workspace, "workspace=%s", r->dir);
    snprintf(home, sizeof home, "home=%s", r->dir);
    r->init = child_fork();
    assert_true(r->init >= 0);

    if (r->init)
        return;
    close(other);

    dup2(sock, INIT_OWNER_FD);
    child_keep(INIT_OWNER_FD);
    execl(UNIT_INIT, "init", INIT_ARG_LOCAL, workspace, home, (char *)NULL);
    _exit(126);
}

static inline void far_start(struct far_run *r, uint64_t lease)
{
    int pair[2];
    *r = (struct far_run){.who = {.role = LINK_KEEPER, .epoch = 5, .key = {1, 2, 3}},
                          .where = {.sun_family = AF_UNIX},
                          .dir = "/tmp/paddock-far-XXXXXX"};
    assert_non_null(mkdtemp(r->dir));
    assert_int_equal(chmod(r->dir, 0777), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);

    /* A name that the kernel chooses. */
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    r->where_len = sizeof r->where;
    assert_int_equal(bind(listener, (struct sockaddr *)&r->where, sizeof(sa_family_t)), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&r->where, &r->where_len), 0);
    assert_int_equal(listen(listener, 8), 0);

    int dialers = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t port_len = sizeof r->port;
    r->port =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    r->target = "/link/00";
    assert_int_equal(bind(dialers, (struct sockaddr *)&r->port, sizeof r->port), 0);
    assert_int_equal(getsockname(dialers, (struct sockaddr *)&r->port, &port_len), 0);
    assert_int_equal(listen(dialers, 8), 0);

    far_start_init(r, pair[1], pair[0]);
    r->far = child_fork();
    assert_true(r->far >= 0);
    if (r->far == 0) {
        struct far_config c = {.who = r->who,
                               .listener = listener,
                               .dialers = dialers,
                               .target = r->target,
                               .init = pair[0],
                               .lease = lease,
                               .budget = 4u << 20};
        struct pd_err e;
        close(pair[1]);
        c.who.role = LINK_BOX;
        c.who.epoch = 0;
        _exit(far_run(&c, &e) < 0 ? 1 : 0);
    }
    close(pair[0]);
    close(pair[1]);
    close(listener);
    close(dialers);
}

/* A connection, or -1 when nobody listens any more. */
static inline int far_dial(const struct far_run *r)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const struct sockaddr *)&r->where, r->where_len) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Waits until the box has ended by itself. */
static inline void far_end(struct far_run *r)
{
    int status;
    assert_int_equal(waitpid(r->far, &status, 0), r->far);
    assert_int_equal(status, 0);
    assert_int_equal(waitpid(r->init, &status, 0), r->init);
    (void)rmdir(r->dir);
}
