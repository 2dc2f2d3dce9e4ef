/* How this works: one poll loop over the callers' listener, the waiters' listener, callers that
 * have not said for whom they call, and waiters. A caller's first bytes are looked at and not
 * taken, so the waiter finds the whole handshake; poll sleeps until there are more of them than
 * before (SO_RCVLOWAT). */
#include "engine/switchboard.h"

#include "base/banned.h"
#include "base/beside.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/secret_env.h"
#include "box/caller.h"
#include "gate/hello.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY       65534u
#define LINK_ID      32u
#define CALLERS_MOST 64u
#define WAITERS_MOST 1024u
#define CALLER_TIME  (5 * NS_PER_S)
#define JOIN_TIME    (10 * NS_PER_S)
#define IDLE_TIME    NS_PER_S
#define BACKLOG      128

struct waiter {
    int fd;
    char link[LINK_ID + 1]; /* "" until it has said so */
};

struct caller_guest {
    int fd;
    deadline until;
};

struct board {
    int calls, joins; /* listeners */
    uid_t owner;
    struct waiter waiters[WAITERS_MOST];
    unsigned waiter_count;
    struct caller_guest callers[CALLERS_MOST];
    unsigned caller_count;
    deadline idle; /* when nobody has waited for long enough */
};

/* ---- addresses ---- */

static int resolve(const char *listen, struct addrinfo **ret)
{
    struct caller place;
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV,
                             .ai_socktype = SOCK_STREAM};

    return caller_read_place(listen, &place, NULL) == 0 &&
                   getaddrinfo(place.host, place.port, &hints, ret) == 0
               ? 0
               : -1;
}

int switchboard_check(const char *listen, struct pd_err *e)
{
    struct addrinfo *list = NULL;

    if (strlen(listen) > 80 || resolve(listen, &list) < 0)
        return pd_fail(e, PD_INVALID,
                       "'%.80s' is no address to listen at: use ADDRESS:PORT, such as 0.0.0.0:7443",
                       listen);
    freeaddrinfo(list);
    return 0;
}

static socklen_t join_name(const char *listen, struct sockaddr_un *ret)
{
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(ret->sun_path + 1, sizeof ret->sun_path - 1, "paddock-calls-%.80s", listen);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Is the other end a process of this user, or of root? */
static bool is_ours(int fd, uid_t owner)
{
    struct ucred who = {.uid = (uid_t)-1};
    socklen_t len = sizeof who;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 &&
           (who.uid == owner || who.uid == 0);
}

/* ---- the process ---- */

static void drop_caller(struct board *b, unsigned i)
{
    close(b->callers[i].fd);
    b->callers[i] = b->callers[--b->caller_count];
}

static void drop_waiter(struct board *b, unsigned i)
{
    close(b->waiters[i].fd);
    b->waiters[i] = b->waiters[--b->waiter_count];
    if (!b->waiter_count)
        b->idle = deadline_in(IDLE_TIME);
}

static void accept_caller(struct board *b)
{
    auto_fd fd = accept4(b->calls, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;

    if (b->caller_count == CALLERS_MOST) {
        unsigned oldest = 0;
        for (unsigned i = 1; i < b->caller_count; i++)
            oldest = b->callers[i].until < b->callers[oldest].until ? i : oldest;
        drop_caller(b, oldest);
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    b->callers[b->caller_count++] =
        (struct caller_guest){.fd = fd_take(&fd), .until = deadline_in(CALLER_TIME)};
}

static void accept_waiter(struct board *b)
{
    auto_fd fd = accept4(b->joins, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd >= 0 && is_ours(fd, b->owner) && b->waiter_count < WAITERS_MOST)
        b->waiters[b->waiter_count++] = (struct waiter){.fd = fd_take(&fd)};
}

/* A waiter says once for whom it waits; the last one who does gets the calls. False when it is
 * gone. */
static bool hear_waiter(struct board *b, struct waiter *w)
{
    char link[LINK_ID + 1];
    ssize_t n = recv(w->fd, link, sizeof link, 0);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n != LINK_ID || w->link[0])
        return false;
    link[LINK_ID] = 0;
    for (unsigned i = 0; i < b->waiter_count; i++)
        if (!strcmp(b->waiters[i].link, link))
            b->waiters[i].link[0] = '-'; /* it has a successor */
    memcpy(w->link, link, sizeof link);
    return send(w->fd, "", 1, MSG_NOSIGNAL) == 1;
}

static void hand_over(struct board *b, const char *name, int fd)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.room = {0}};
    struct iovec word = {.iov_base = (char[]){'c'}, .iov_len = 1};
    struct msghdr m = {.msg_iov = &word,
                       .msg_iovlen = 1,
                       .msg_control = control.room,
                       .msg_controllen = sizeof control.room};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &(int){1}, sizeof(int));
    for (unsigned i = 0; i < b->waiter_count; i++)
        if (!strncmp(b->waiters[i].link, name, LINK_ID) && !strcmp(name + LINK_ID, CALLER_SUFFIX))
            (void)sendmsg(b->waiters[i].fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* False when nothing more is to be heard of it here. */
static bool hear_caller(struct board *b, int fd)
{
    static uint8_t data[HELLO_MAX];
    char name[RULES_NAME_MAX + 1];
    ssize_t n = recv(fd, data, sizeof data, MSG_PEEK);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    enum sniffed what = n > 0 ? hello_read(data, (size_t)n, name) : SNIFF_OTHER;
    if (what == SNIFF_NAMED && strlen(name) > LINK_ID)
        hand_over(b, name, fd);
    return what == SNIFF_MORE && (size_t)n < sizeof data &&
           setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &(int){(int)n + 1}, sizeof(int)) == 0;
}

/* One turn. False when nobody needs it any more. */
static bool turn(struct board *b)
{
    static struct pollfd p[2 + CALLERS_MOST + WAITERS_MOST];
    unsigned callers = b->caller_count, waiters = b->waiter_count;
    deadline next = waiters ? DEADLINE_NONE : b->idle;

    p[0] = (struct pollfd){.fd = b->calls, .events = POLLIN};
    p[1] = (struct pollfd){.fd = waiters < WAITERS_MOST ? b->joins : -1, .events = POLLIN};
    for (unsigned i = 0; i < callers; i++) {
        p[2 + i] = (struct pollfd){.fd = b->callers[i].fd, .events = POLLIN};
        next = b->callers[i].until < next ? b->callers[i].until : next;
    }
    for (unsigned i = 0; i < waiters; i++)
        p[2 + callers + i] = (struct pollfd){.fd = b->waiters[i].fd, .events = POLLIN};
    if (poll(p, 2 + callers + waiters, deadline_poll_ms(next)) < 0 && errno != EINTR)
        return false;

    /* From the last to the first: what is dropped is replaced by one that was looked at. */
    for (unsigned i = waiters; i-- > 0;)
        if (p[2 + callers + i].revents && !hear_waiter(b, &b->waiters[i]))
            drop_waiter(b, i);
    for (unsigned i = callers; i-- > 0;)
        if ((p[2 + i].revents && !hear_caller(b, b->callers[i].fd)) ||
            deadline_passed(b->callers[i].until))
            drop_caller(b, i);
    if (p[0].revents)
        accept_caller(b);
    if (p[1].revents)
        accept_waiter(b);
    return b->waiter_count || !deadline_passed(b->idle);
}

static _Noreturn void say(const char *text)
{
    puts(text);
    fflush(stdout);
    _exit(strcmp(text, "there") != 0);
}

static int listen_for_calls(const char *listen_at)
{
    struct addrinfo *a = NULL;

    if (resolve(listen_at, &a) < 0)
        say("it is no address of this machine");
    auto_fd fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) < 0 ||
        bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0)
        say(errno == EADDRINUSE ? "the port is in use"
            : errno == EACCES   ? "the port needs root"
                                : "it is no address of this machine");
    freeaddrinfo(a);
    return fd_take(&fd);
}

void switchboard_main(const char *listen_at)
{
    static struct board b;
    struct sockaddr_un a;
    socklen_t len = join_name(listen_at, &a);

    secret_env_forget();
    (void)signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_NAME, "paddock-calls", 0, 0, 0);
    b.owner = geteuid();
    b.joins = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(b.joins, (struct sockaddr *)&a, len) < 0)
        say("there");
    b.calls = listen_for_calls(listen_at);
    if (listen(b.joins, BACKLOG) < 0)
        say("it cannot listen for those who wait");

    if (b.owner == 0 && (setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0 ||
                         setresuid(NOBODY, NOBODY, NOBODY) < 0))
        say("it cannot become nobody");
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    puts("up");
    fflush(stdout);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; fd++)
        (void)dup2(null, fd);

    b.idle = deadline_in(JOIN_TIME);
    while (turn(&b))
        ;
    _exit(0);
}

/* ---- the side of those who wait ---- */

/* Its first word, without the line break; "" when it said nothing. */
static void start(const char *listen, char *word, size_t size)
{
    int p[2];
    size_t have = 0;
    ssize_t n;

    word[0] = 0;
    if (pipe2(p, O_CLOEXEC) < 0)
        return;
    pid_t pid = fork();
    if (pid == 0) {
        const char *argv[] = {NULL, "switchboard", listen, NULL};
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        (void)setsid();
        if (fork() != 0)
            _exit(0);
        int null = open("/dev/null", O_RDWR);
        if (dup2(null, 0) < 0 || dup2(p[1], 1) < 0 || dup2(null, 2) < 0)
            _exit(1);
        syscall(SYS_close_range, 3, ~0u, 0);
        exec_beside("paddock-remote", argv);
        _exit(1);
    }

    close(p[1]);
    if (pid > 0)
        (void)waitpid(pid, NULL, 0);
    while (have + 1 < size && (n = read(p[0], word + have, size - 1 - have)) > 0 &&
           !memchr(word + have, '\n', (size_t)n))
        have += (size_t)n;
    have += n > 0 ? (size_t)n : 0;
    word[have] = 0;
    word[strcspn(word, "\n")] = 0;
    close(p[0]);
}

/* Asks for the calls of a link, and hears that it is so. */
static bool ask_for(int fd, const char *link, deadline t)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char answer;

    return send(fd, link, LINK_ID, MSG_NOSIGNAL) == (ssize_t)LINK_ID &&
           poll(&p, 1, deadline_poll_ms(t)) == 1 && recv(fd, &answer, 1, MSG_DONTWAIT) == 1;
}

int switchboard_join(const char *listen, const char *link, deadline t, struct pd_err *e)
{
    struct sockaddr_un a;
    socklen_t len = join_name(listen, &a);
    char word[100] = "";

    if (strlen(link) != LINK_ID || switchboard_check(listen, e) < 0)
        return pd_fail(e, PD_INVALID, "cloudrun_listen = %.80s: use ADDRESS:PORT", listen);
    for (deadline end = deadline_in(JOIN_TIME), patience = deadline_in(NS_PER_S);;) {
        auto_fd fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            return pd_fail_sys(e, "make a socket");
        if (connect(fd, (struct sockaddr *)&a, len) == 0) {
            if (!is_ours(fd, geteuid()))
                return pd_fail(e, PD_DENIED, "somebody else on this machine takes calls for %.80s",
                               listen);
            if (ask_for(fd, link, deadline_in(NS_PER_S)))
                return fd_take(&fd);
        } else {
            start(listen, word, sizeof word);
        }
        /* A port may be in use for a moment more than its name: by a switchboard that ends. */
        bool failed = word[0] && strcmp(word, "up") != 0 && strcmp(word, "there") != 0;
        if (!failed)
            patience = deadline_in(NS_PER_S);
        if ((failed && deadline_passed(patience)) || deadline_passed(end) || deadline_passed(t))
            return pd_fail(e, PD_INVALID, "cloudrun_listen = %.80s: %s", listen,
                           failed ? word : "nobody takes calls there");
        poll(NULL, 0, 20);
    }
}

int switchboard_take(int board, bool *ret_gone)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    char word;
    struct iovec iov = {.iov_base = &word, .iov_len = 1};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.room,
                       .msg_controllen = sizeof control.room};
    int fd = -1;

    ssize_t n = recvmsg(board, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    *ret_gone = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    for (struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL; c; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}
