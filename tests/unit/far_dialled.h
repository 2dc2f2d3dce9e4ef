/* far_dialled: dials the port of a box (far_run.h) as a WebSocket. What the test has is the end of
 * a socket pair, as of any other connection; a thread that it need not look after copies both ways.
 */
#pragma once

#include "far_run.h"

#include "net/ws.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>

struct far_trip {
    int near, far;
};

static inline int far_put(int fd, const void *data, size_t len)
{
    const uint8_t *at = data;
    while (len) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n <= 0)
            return -1;
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

/* 0 when something was copied, -1 when the connection is over. */
static inline int far_copy_out(const struct far_trip *t)
{
    static const uint8_t mask[4] = {1, 2, 3, 4};
    uint8_t piece[20000];
    auto_buf out = BUF_INIT(30000);
    ssize_t n = recv(t->near, piece, sizeof piece, 0);
    if (n <= 0 || ws_encode(&out, WS_BINARY, piece, (size_t)n, mask) < 0)
        return -1;
    return far_put(t->far, out.data, out.len);
}

static inline int far_copy_in(const struct far_trip *t, struct ws_decoder *d)
{
    uint8_t piece[20000];
    ssize_t n = recv(t->far, piece, sizeof piece, 0);
    if (n <= 0)
        return -1;
    for (size_t at = 0, used; at < (size_t)n; at += used) {
        struct ws_message m;
        int r = ws_decode(d, piece + at, (size_t)n - at, &used, &m, NULL);
        if (r < 0 || (r > 0 && (m.opcode != WS_BINARY || far_put(t->near, m.data, m.len) < 0)))
            return -1;
    }
    return 0;
}

static inline void *far_carry(void *arg)
{
    struct far_trip *t = arg;
    struct ws_decoder d;
    int r = 0;

    ws_decoder_init(&d, 0, 1 << 20);
    while (r == 0) {
        struct pollfd p[2] = {{.fd = t->near, .events = POLLIN}, {.fd = t->far, .events = POLLIN}};
        poll(p, 2, -1);
        if (p[1].revents)
            r = far_copy_in(t, &d);
        if (r == 0 && p[0].revents)
            r = far_copy_out(t);
    }
    ws_decoder_done(&d);
    close(t->near);
    close(t->far);
    free(t);
    return NULL;
}

/* A connection to the port, and the head of the answer to a request. */
static inline int far_ask(const struct far_run *r, const char *target, char *answer, size_t size)
{
    auto_buf out = BUF_INIT(1000);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const struct sockaddr *)&r->port, sizeof r->port) < 0) {
        close(fd);
        return -1;
    }

    buf_printf(&out,
               "GET %s HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
               "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
               target);
    (void)far_put(fd, out.data, out.len);

    size_t have = 0;
    while (have + 1 < size && recv(fd, answer + have, 1, 0) == 1) {
        answer[++have] = 0;
        if (have >= 4 && !memcmp(answer + have - 4, "\r\n\r\n", 4))
            break;
    }
    answer[have] = 0;
    return fd;
}

static inline int far_dial_port(const struct far_run *r)
{
    char answer[500];
    int pair[2];
    pthread_t thread;
    int fd = far_ask(r, r->target, answer, sizeof answer);
    if (fd < 0 || strncmp(answer, "HTTP/1.1 101 ", 13) != 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }

    struct far_trip *t = malloc(sizeof *t);
    assert_non_null(t);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    *t = (struct far_trip){.near = pair[1], .far = fd};
    assert_int_equal(pthread_create(&thread, NULL, far_carry, t), 0);
    pthread_detach(thread);
    return pair[0];
}
