/* Both ends of connections that are timed, for tests/bench/egress.py:
 *
 *   egress_peer serve PORT             echoes, swallows or sends, as a connection's first byte says
 *   egress_peer connect HOST PORT N    N times: connect, one byte there and back; p50 and p99 in µs
 *   egress_peer keep HOST PORT N       likewise, and keeps each connection for two seconds
 *   egress_peer up|down HOST PORT MIB  so much one way; MiB a second
 *
 * The first byte is none that an HTTP request or a TLS hello begins with. */
#include "base/clock.h"
#include "base/fd.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECE      (64u << 10)
#define ROUNDS_MAX 10000u
#define BETWEEN_US 6000 /* a sandbox may make 200 connections a second */
#define KEEP_US    2000000
#define PATIENCE_S 60
#define BACKLOG    128
#define MIB        (1u << 20)

enum what { ECHO = 1, SWALLOW = 2, SEND = 3 };

static char piece[PIECE];

static void send_all(int fd, uint64_t bytes)
{
    while (bytes) {
        ssize_t n = send(fd, piece, bytes < PIECE ? bytes : PIECE, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        bytes -= (uint64_t)n;
    }
}

static uint64_t swallow(int fd)
{
    char *room = malloc(PIECE);
    uint64_t all = 0;
    ssize_t n;

    while (room && (n = recv(fd, room, PIECE, 0)) > 0)
        all += (uint64_t)n;
    free(room);
    return all;
}

static void *serve_one(void *arg)
{
    auto_fd fd = (int)(intptr_t)arg;
    unsigned char head[2];
    char byte = 1;

    if (recv(fd, head, 1, 0) != 1)
        return NULL;
    if (head[0] == SWALLOW) {
        (void)swallow(fd);
        (void)send(fd, &byte, 1, MSG_NOSIGNAL);
    } else if (head[0] == SEND && recv(fd, head + 1, 1, 0) == 1) {
        send_all(fd, (uint64_t)head[1] * 16 * MIB);
    } else if (head[0] == ECHO) {
        while (recv(fd, &byte, 1, 0) == 1)
            (void)send(fd, &byte, 1, MSG_NOSIGNAL);
    }
    return NULL;
}

static int serve(unsigned port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1;
    auto_fd fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, BACKLOG) < 0)
        return 1;
    puts("up");
    (void)fflush(stdout);
    for (;;) {
        pthread_t thread;
        int c = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (c < 0)
            return 1;
        (void)setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (pthread_create(&thread, NULL, serve_one, (void *)(intptr_t)c) == 0)
            pthread_detach(thread);
        else
            close(c);
    }
}

static int dial(const char *host, unsigned port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval patience = {.tv_sec = PATIENCE_S};
    int one = 1;
    auto_fd fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1 ||
        connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
        return -1;
    return fd_take(&fd);
}

static int by_time(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* A connection that has had its byte back, and how long that took; -1. */
static int echo_once(const char *host, unsigned port, uint64_t *took)
{
    const char say[] = {ECHO, 7};
    char heard = 0;
    uint64_t began = clock_now();
    auto_fd fd = dial(host, port);

    if (fd < 0 || send(fd, say, sizeof say, MSG_NOSIGNAL) != (ssize_t)sizeof say ||
        recv(fd, &heard, 1, 0) != 1 || heard != say[1])
        return -1;
    *took = clock_now() - began;
    return fd_take(&fd);
}

static int time_connects(const char *host, unsigned port, unsigned rounds)
{
    static uint64_t times[ROUNDS_MAX];

    for (unsigned i = 0; i < rounds; i++) {
        auto_fd fd = echo_once(host, port, &times[i]);
        if (fd < 0)
            return 1;
        (void)usleep(BETWEEN_US);
    }
    qsort(times, rounds, sizeof *times, by_time);
    printf("%.1f %.1f\n", (double)times[rounds / 2] / 1000,
           (double)times[rounds * 99 / 100] / 1000);
    return 0;
}

static int keep(const char *host, unsigned port, unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++) {
        uint64_t took;
        auto_fd fd = echo_once(host, port, &took);
        if (fd < 0)
            return 1;
        (void)usleep(KEEP_US);
    }
    return 0;
}

static int time_bytes(int is_up, const char *host, unsigned port, unsigned mib)
{
    const char say[] = {(char)(is_up ? SWALLOW : SEND), (char)(mib / 16)};
    auto_fd fd = dial(host, port);
    char end;
    uint64_t began = clock_now();

    if (fd < 0 || send(fd, say, is_up ? 1 : 2, MSG_NOSIGNAL) < 1)
        return 1;
    if (is_up) {
        send_all(fd, (uint64_t)mib * MIB);
        (void)shutdown(fd, SHUT_WR);
        if (recv(fd, &end, 1, 0) != 1)
            return 1;
    } else if (swallow(fd) != (uint64_t)mib * MIB)
        return 1;
    printf("%.0f\n", mib / ((double)(clock_now() - began) / (double)NS_PER_S));
    return 0;
}

int main(int argc, char **argv)
{
    unsigned port = argc > 2 ? (unsigned)strtoul(argv[argc == 3 ? 2 : 3], NULL, 10) : 0;
    unsigned count = argc == 5 ? (unsigned)strtoul(argv[4], NULL, 10) : 0;

    signal(SIGPIPE, SIG_IGN);
    if (argc == 3 && !strcmp(argv[1], "serve"))
        return serve(port);
    if (argc != 5 || !count || count > ROUNDS_MAX)
        return 2;
    if (!strcmp(argv[1], "connect"))
        return time_connects(argv[2], port, count);
    if (!strcmp(argv[1], "keep"))
        return keep(argv[2], port, count);
    return time_bytes(!strcmp(argv[1], "up"), argv[2], port, count);
}
