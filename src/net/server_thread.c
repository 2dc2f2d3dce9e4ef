/* How this works: idle threads all wait in the same epoll set, whose entries are armed for one
 * event. The thread that wakes up serves the connection until it has been silent for a moment, then
 * parks it. So a request on a busy connection costs no hand-over between threads, and one on a
 * parked connection costs one. */
#include "net/server_state.h"

#include "base/cond.h"
#include "base/err.h"
#include "net/url.h"

#include "base/banned.h"

#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>

#define STACK_SIZE    (256u << 10)
#define IDLE_MS       10000
#define KEEP_WAITING  2 /* idle threads that stay for ever */
#define LINGER_NS     NS_PER_MS
#define LOOK_NS       (20 * NS_PER_MS)
#define LEAVING_NS    (2 * NS_PER_S)
#define LEAVING_BYTES (8u << 20)

/* Answers for a request that no handler sees. The connection ends after it. The thread has not
 * become busy, so it must not wait: a peer that does not read gets no answer. */
static int answer(struct server_thread *t, struct connection *c, int status, const struct pd_err *e)
{
    struct http_head *h = &t->request.head;

    h->method = HTTP_GET;
    h->minor = 1;
    h->header_count = 0;
    h->target = h->host = (struct slice){"", 0};
    h->body = HTTP_BODY_NONE;
    h->length = 0;
    h->keep_alive = h->expect_continue = h->upgrade_websocket = 0;

    request_reset(t, c->conn, t->state.in.len);
    t->state.stall_ns = 0;

    if (status == 405)
        reply_header(&t->request, "Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    if (status == 503)
        reply_header(&t->request, "Retry-After", "1");
    atomic_fetch_add(&t->server->refused, 1);
    return reply_error_as(&t->request, status, e, NULL);
}

/* The parser says what is wrong; HTTP has a status of its own for some of it. */
static int status_of_bad_head(const char *in, size_t len, const struct pd_err *e)
{
    const char *end = memchr(in, '\r', len);
    size_t line = end ? (size_t)(end - in) : len;

    if (e->code == PD_METHOD)
        return 405;
    if (e->code == PD_TOO_LARGE)
        return line > HTTP_TARGET_MAX ? 414 : 431;

    static const char mark[] = " HTTP/";
    size_t at = line < sizeof mark + 2 ? 0 : line - (sizeof mark - 1) - 3;
    if (at && end && memcmp(in + at, mark, sizeof mark - 1) == 0 && in[line - 2] == '.' &&
        memcmp(in + line - 3, "1.0", 3) && memcmp(in + line - 3, "1.1", 3) && in[line - 3] >= '0' &&
        in[line - 3] <= '9' && in[line - 1] >= '0' && in[line - 1] <= '9')
        return 505;
    return 400;
}

/* Ends the connection so that the last answer is read: closing while bytes are still coming in
 * would reset it. */
static void leave(struct server_thread *t, struct connection *c)
{
    if (c->phase != PHASE_LEAVING) {
        conn_end_writing(c->conn);
        c->phase = PHASE_LEAVING;
        c->idle_until = deadline_in(LEAVING_NS);
    }

    struct pd_err e;
    for (;;) {
        ssize_t n = conn_read(c->conn, t->state.in.data, INBOX_SIZE, 0, &e);
        if (n < 0 && e.code == PD_TIMEOUT && !c->expired) {
            connection_park(t->server, c, PHASE_LEAVING, c->idle_until);
            return;
        }
        if (n > 0)
            c->thrown_away += (uint64_t)n;
        if (n <= 0 || c->thrown_away > LEAVING_BYTES || c->expired)
            break;
    }
    connection_free(t->server, c);
}

/* All places are taken. Requests that do not wait for their peers give theirs back as soon as a
 * processor has time for them: on a busy machine many of them, of strangers for example, are under
 * way at once, and nobody else is refused for that. Needs the lock. */
static void wait_for_place(struct server *s)
{
    deadline end = deadline_in(s->config.place_ns);

    s->hopeful++;
    while (s->busy >= s->config.max_active && atomic_load(&s->brief) > 0 &&
           !atomic_load(&s->stopping) && !deadline_passed(end))
        (void)lock_wait(&s->freed, &s->lock, deadline_in(LOOK_NS));
    s->hopeful--;
}

/* Takes the right to run a handler, and sees to it that somebody else waits meanwhile. */
static int become_busy(struct server *s)
{
    int start = 0, good = 1;

    lock_take(&s->lock);
    if (s->busy >= s->config.max_active)
        wait_for_place(s);
    if (s->busy >= s->config.max_active) {
        good = 0;
    } else {
        s->busy++;
        if (atomic_load(&s->waiting) == 0 && s->threads <= s->config.max_active) {
            s->threads++;
            atomic_fetch_add(&s->waiting, 1);
            start = 1;
        }
    }
    lock_release(&s->lock);

    if (start && server_thread_start(s)) {
        lock_take(&s->lock);
        s->threads--;
        atomic_fetch_sub(&s->waiting, 1);
        if (s->busy >= s->threads) {
            s->busy--;
            good = 0;
        }
        lock_release(&s->lock);
    }
    return good ? 0 : -1;
}

/* The head is complete and parsed. As request_finish. */
static int serve_request(struct server_thread *t, struct connection *c, size_t head_len)
{
    struct server *s = t->server;

    request_reset(t, c->conn, head_len);
    url_split(t->request.head.target, &t->request.path, &t->request.query);

    if (become_busy(s)) {
        struct pd_err e;
        pd_fail(&e, PD_CAPACITY, "the server has %u requests in progress; try again later",
                s->config.max_active);
        t->state.close = 1;
        t->state.stall_ns = 0;
        atomic_fetch_add(&s->refused, 1);
        reply_header(&t->request, "Retry-After", "1");
        (void)reply_error(&t->request, &e);
        return request_body_done(&t->request) && t->state.in.pos == t->state.in.len ? -1 : 0;
    }

    atomic_fetch_add(&s->requests, 1);
    s->config.handle(&t->request, s->config.arg);
    int goes_on = request_finish(&t->request); /* may wait, so still busy */

    /* The place is free before it is not brief any more: whoever hopes for it looks at both. */
    lock_take(&s->lock);
    s->busy--;
    if (t->state.brief)
        atomic_fetch_sub(&s->brief, 1);
    t->state.brief = false;
    if (s->hopeful)
        pthread_cond_signal(&s->freed);
    lock_release(&s->lock);
    return goes_on;
}

/* The bytes of a head that was not complete when the connection was parked. */
static void restore_bytes(struct inbox *in, struct connection *c)
{
    in->len = c->saved_len;
    if (!c->saved)
        return;
    memcpy(in->data, c->saved, c->saved_len);
    free(c->saved);
    c->saved = NULL;
    c->saved_len = 0;
}

/* The time of a parked connection is over. */
static void end_expired(struct server_thread *t, struct connection *c)
{
    struct server *s = t->server;
    struct pd_err e;

    if (c->phase == PHASE_HEAD && !atomic_load(&s->stopping)) {
        pd_fail(&e, PD_TIMEOUT, "the head of the request took longer than %llu ms",
                (unsigned long long)(s->config.head_timeout_ns / NS_PER_MS));
        (void)answer(t, c, 408, &e);
    }
    connection_free(s, c);
}

/* Nothing comes just now: another thread may take the connection when something does. */
static void park(struct server_thread *t, struct connection *c)
{
    struct inbox *in = &t->state.in;

    if (in->len) {
        c->saved = malloc(in->len);
        if (!c->saved) {
            connection_free(t->server, c);
            return;
        }
        memcpy(c->saved, in->data, in->len);
        c->saved_len = in->len;
    }
    connection_park(t->server, c, in->len ? PHASE_HEAD : PHASE_IDLE,
                    in->len ? c->head_until : c->idle_until);
}

/* Serves the requests of a connection until it is silent for a moment, or ends. */
static void serve(struct server_thread *t, struct connection *c)
{
    struct server *s = t->server;
    struct inbox *in = &t->state.in;
    struct pd_err e;

    restore_bytes(in, c);
    if (c->phase == PHASE_LEAVING) {
        leave(t, c);
        return;
    }
    if (c->expired) {
        end_expired(t, c);
        return;
    }

    /* A head ends with a line's end, so bytes without one cannot complete it: a peer that sends
     * them one by one does not make the parser start over each time. */
    int worth_parsing = 0;
    for (;;) {
        ptrdiff_t head = 0;
        if (worth_parsing)
            head = http_request_parse(in->data, in->len, &t->request.head, &e);
        if (head < 0) {
            (void)answer(t, c, status_of_bad_head(in->data, in->len, &e), &e);
            leave(t, c);
            return;
        }

        if (head > 0) {
            int goes_on = serve_request(t, c, (size_t)head);
            if (goes_on <= 0) {
                if (goes_on == 0)
                    leave(t, c);
                else
                    connection_free(s, c);
                return;
            }
            c->head_until = 0;
            c->idle_until = deadline_in(s->config.idle_timeout_ns);
            worth_parsing = in->len > 0;
            if (worth_parsing)
                continue;
        }

        if (in->len && !c->head_until)
            c->head_until = deadline_in(s->config.head_timeout_ns);
        /* Lingering is for when there is somebody to take the next connection. */
        deadline until = atomic_load(&s->waiting) ? deadline_in(LINGER_NS) : 0;
        ssize_t n = conn_read(c->conn, in->data + in->len, INBOX_SIZE - in->len, until, &e);

        if (n < 0 && e.code == PD_TIMEOUT) {
            park(t, c);
            return;
        }
        if (n <= 0)
            break;

        worth_parsing = in->len == 0 || memchr(in->data + in->len, '\n', (size_t)n) ||
                        in->len + (size_t)n >= HTTP_HEAD_MAX;
        in->len += (size_t)n;

        if (c->head_until && deadline_passed(c->head_until)) {
            pd_fail(&e, PD_TIMEOUT, "the head of the request took too long");
            (void)answer(t, c, 408, &e);
            leave(t, c);
            return;
        }
    }
    connection_free(s, c);
}

static void thread_end(struct server_thread *t)
{
    struct server *s = t->server;

    buf_done(&t->state.headers);
    buf_done(&t->state.out);
    free(t);

    /* The last one that ended is joined by the next one, so at most one is left over. */
    lock_take(&s->lock);
    pthread_t before = s->last_ended;
    int has_before = s->has_ended;
    s->last_ended = pthread_self();
    s->has_ended = 1;
    lock_release(&s->lock);

    if (has_before)
        pthread_join(before, NULL);

    lock_take(&s->lock);
    s->threads--;
    if (!s->threads)
        manager_wake(s);
    lock_release(&s->lock);
}

static void *thread_main(void *arg)
{
    struct server_thread *t = arg;
    struct server *s = t->server;

    for (;;) {
        struct epoll_event ev;
        int n = epoll_wait(s->epoll, &ev, 1, IDLE_MS);
        if (n < 0)
            continue;

        struct source *source = n ? ev.data.ptr : NULL;
        lock_take(&s->lock);
        int ends = s->ending || (!source && atomic_load(&s->waiting) > KEEP_WAITING);
        if (source || ends)
            atomic_fetch_sub(&s->waiting, 1);

        struct connection *c = NULL;
        if (source && source->kind == SOURCE_CONNECTION) {
            c = (struct connection *)source;
            connection_claim(c);
        }
        lock_release(&s->lock);

        if (ends)
            break;
        if (!source)
            continue;

        if (source->kind == SOURCE_LISTENER)
            c = listener_accept(s, (struct listener *)source);
        if (c)
            serve(t, c);

        lock_take(&s->lock);
        atomic_fetch_add(&s->waiting, 1);
        lock_release(&s->lock);
    }
    thread_end(t);
    return NULL;
}

int server_thread_start(struct server *s)
{
    struct server_thread *t = malloc(sizeof *t);
    if (!t)
        return -1;

    /* Not all of it: the buffer is large, and its pages cost nothing until they are used. */
    memset(&t->request, 0, sizeof t->request);
    memset(&t->state, 0, offsetof(struct request_state, in.data));
    t->server = t->state.server = s;
    t->state.headers = BUF_INIT(HTTP_HEAD_MAX);
    t->state.out = BUF_INIT(HTTP_HEAD_MAX + (8u << 10));

    /* Signals are for the thread that waits for them; faults are not signals in that sense. */
    sigset_t blocked;
    sigfillset(&blocked);
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);

    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_SIZE);
    pthread_attr_setsigmask_np(&attr, &blocked);

    int r = pthread_create(&thread, &attr, thread_main, t);
    pthread_attr_destroy(&attr);

    if (r)
        free(t);
    return r ? -1 : 0;
}

void server_thread_join_last(struct server *s)
{
    if (s->has_ended)
        pthread_join(s->last_ended, NULL);
    s->has_ended = 0;
}
