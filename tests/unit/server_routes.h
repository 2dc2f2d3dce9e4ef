/* server_routes: the handler of the server tests. The path says what it does. */
#pragma once

#include "net_peer.h"

#include <stdatomic.h>

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int waiting, open;
    atomic_int abandoned, stopped_early;
};
#define GATE_INIT                                                                                  \
    {                                                                                              \
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER                     \
    }

static inline void gate_wait_for(struct gate *g, int waiting)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE / NS_PER_S;

    pthread_mutex_lock(&g->lock);
    int late = 0;
    while (g->waiting < waiting && !late)
        late = pthread_cond_timedwait(&g->changed, &g->lock, &until);
    pthread_mutex_unlock(&g->lock);
    assert_int_equal(late, 0);
}

static inline void gate_set(struct gate *g, int open)
{
    pthread_mutex_lock(&g->lock);
    g->open = open;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static inline void route_echo_stream(struct request *r)
{
    struct pd_err e;
    char piece[1000];
    ssize_t n;

    if (reply_begin(r, 200, "application/octet-stream", REPLY_CHUNKED, &e))
        return;
    while ((n = request_read(r, piece, sizeof piece, &e)) > 0)
        if (reply_write(r, piece, (size_t)n, &e))
            return;

    if (n < 0)
        reply_abort(r);
    else
        (void)reply_end(r, &e);
}

struct collect {
    int fd;
    struct buf got;
};

static inline void *collect_thread(void *p)
{
    struct collect *c = p;
    for (;;) {
        uint8_t *to = buf_reserve(&c->got, 65536);
        ssize_t n = to ? read(c->fd, to, 65536) : -1;
        if (n <= 0)
            return NULL;
        c->got.len += (size_t)n;
    }
}

/* The body through a pipe, and the answer through another. */
static inline void route_pipes(struct request *r)
{
    struct pd_err e;
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
        return;

    struct collect c = {in[0], BUF_INIT(64u << 20)};
    pthread_t t;
    uint64_t len = 0;
    pthread_create(&t, NULL, collect_thread, &c);

    int failed = request_read_into(r, in[1], 32u << 20, &len, &e);
    close(in[1]);
    pthread_join(t, NULL);
    close(in[0]);

    if (failed || len != c.got.len) {
        (void)reply_error(r, &e);
    } else if (!reply_begin(r, 200, "application/octet-stream", len, &e)) {
        for (size_t at = 0; at < len;) {
            size_t step = len - at < 60000 ? len - at : 60000;
            if (write(out[1], c.got.data + at, step) != (ssize_t)step ||
                reply_write_pipe(r, out[0], step, &e))
                break;
            at += step;
        }
        (void)reply_end(r, &e);
    }

    buf_done(&c.got);
    close(out[0]);
    close(out[1]);
}

static inline void route_file(struct request *r)
{
    struct pd_err e;
    char path[] = "/tmp/test-server-XXXXXX";
    auto_fd file = mkostemp(path, O_CLOEXEC);
    unlink(path);
    if (fd_write_all(file, "0123456789", 10) || reply_begin(r, 206, NULL, 5, &e))
        return;
    (void)(reply_write_file(r, file, 3, 5, &e) || reply_end(r, &e));
}

/* Waits until the gate opens, the client leaves, or the server stops (with ?polite). With ?brief it
 * has said that it will end soon. */
static inline void route_gate(struct request *r, struct gate *g)
{
    if (slice_is(r->query, "brief"))
        request_set_patience(r, 0);
    pthread_mutex_lock(&g->lock);
    g->waiting++;
    pthread_cond_broadcast(&g->changed);

    while (!g->open) {
        pthread_mutex_unlock(&g->lock);
        struct pollfd p = {.fd = conn_fd(r->conn), .events = POLLRDHUP};
        (void)poll(&p, 1, 5);
        int left = request_is_abandoned(r);
        pthread_mutex_lock(&g->lock);
        if (left) {
            atomic_fetch_add(&g->abandoned, 1);
            break;
        }
        if (server_is_stopping(r->server) && r->query.len) {
            atomic_fetch_add(&g->stopped_early, 1);
            break;
        }
    }

    g->waiting--;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    (void)reply(r, 200, "text/plain", "through", 7);
}

static inline void route_error(struct request *r)
{
    struct pd_err e;
    if (slice_is(r->query, "internal")) {
        errno = EIO;
        pd_fail_sys(&e, "open /secret/path");
    } else if (slice_is(r->query, "protocol")) {
        pd_fail(&e, PD_PROTOCOL, "/secret/path said no");
    } else {
        pd_fail(&e, PD_NOT_FOUND, "no sandbox \"%s\"", "x\ny");
    }

    if (slice_is(r->query, "details"))
        (void)reply_error_details(r, &e, "{\"field\":\"timeout_s\"}");
    else
        (void)reply_error(r, &e);
}

static inline void test_handler(struct request *r, void *arg)
{
    struct pd_err e;

    if (slice_is(r->path, "/hello")) {
        reply_header(r, "X-Extra", "more");
        reply_header(r, "X-Bad", "in\r\nX-Extra: jected");
        reply_header(r, "Content-Length", "5");
        reply_header(r, "X Bad", "name");
        (void)reply(r, 200, "text/plain", "hello", 5);
    } else if (slice_is(r->path, "/echo")) {
        auto_buf body = BUF_INIT(32u << 20);
        if (request_read_all(r, &body, slice_is(r->query, "small") ? 10 : 32u << 20, &e))
            (void)reply_error(r, &e);
        else
            (void)reply(r, 200, "text/plain", body.data, body.len);
    } else if (slice_is(r->path, "/stream")) {
        route_echo_stream(r);
    } else if (slice_is(r->path, "/pipes")) {
        route_pipes(r);
    } else if (slice_is(r->path, "/file")) {
        route_file(r);
    } else if (slice_is(r->path, "/gate")) {
        route_gate(r, arg);
    } else if (slice_is(r->path, "/error")) {
        route_error(r);
    } else if (slice_is(r->path, "/ignore")) {
        (void)reply(r, 200, NULL, "ignored", 7);
    } else if (slice_is(r->path, "/empty")) {
        (void)reply(r, 204, NULL, NULL, 0);
    } else if (slice_is(r->path, "/abort")) {
        if (!reply_begin(r, 200, NULL, slice_is(r->query, "chunked") ? REPLY_CHUNKED : 10, &e))
            (void)reply_write(r, "12345", 5, &e);
        if (slice_is(r->query, "error")) {
            pd_fail(&e, PD_LOST, "gone");
            (void)reply_error(r, &e);
        }
    } else if (slice_is(r->path, "/ws")) {
        char in[64];
        ssize_t n;
        if (request_upgrade(r, "chat", &e)) {
            (void)reply_error(r, &e);
            return;
        }
        while ((n = request_raw_read(r, in, sizeof in, deadline_in(PATIENCE), &e)) > 0)
            if (conn_write(r->conn, in, (size_t)n, PATIENCE, &e))
                break;
    } /* else: no answer at all */
}
