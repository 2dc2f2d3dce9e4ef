/* How this works: two forks, so that the process has no living parent of its own. Init takes the
 * death of its parent as its own end (init/box.c): so it goes on only when the one between is gone,
 * and its parent is one that stays. */
#include "box/apart.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE (20 * NS_PER_S)
#define BACKLOG  16

/* In the process that was called. */
static _Noreturn void await(int fd)
{
    char byte = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    deadline t = deadline_in(PATIENCE);
    int n;

    while ((n = poll(&p, 1, deadline_poll_ms(t))) < 0 && errno == EINTR)
        ;
    if (n == 0)
        fprintf(stderr, "paddock-box: it does not begin within %u s\n",
                (unsigned)(PATIENCE / NS_PER_S));
    _exit(n > 0 && read(fd, &byte, 1) == 1 ? 0 : 1);
}

int apart_begin(int *ret_ready, struct pd_err *e)
{
    int pipe_fds[2];

    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "make a pipe");
    auto_fd out = pipe_fds[0], in = pipe_fds[1];
    pid_t middle = fork();
    if (middle < 0)
        return pd_fail_sys(e, "fork");
    if (middle > 0) {
        fd_done(&in);
        while (waitpid(middle, NULL, 0) < 0 && errno == EINTR)
            ;
        await(out);
    }

    middle = getpid();
    (void)setsid();
    pid_t pid = fork();
    if (pid != 0)
        _exit(pid < 0 ? 1 : 0);
    while (getppid() == middle)
        poll(NULL, 0, 1);
    if (chdir("/") < 0)
        return pd_fail_sys(e, "go to /");
    *ret_ready = fd_take(&in);
    return 0;
}

void apart_be_silent(void)
{
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int fd = 0; fd < 3 && null >= 0; fd++)
        (void)dup2(null, fd);
}

void apart_ready(int ready)
{
    auto_fd own = ready;

    apart_be_silent();
    (void)!write(own, "", 1);
}

int apart_listen(unsigned port, struct pd_err *e)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr = {.s_addr = htonl(INADDR_ANY)}};
    auto_fd fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) < 0 ||
        bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, BACKLOG) < 0)
        return pd_fail_sys(e, "listen on port %u", port);
    return fd_take(&fd);
}
