/* How this works: the thread in server_run is the manager. It looks at deadlines, arms listeners
 * that were paused, and ends the server; connections are the other threads' business
 * (server_thread.c). */
#include "net/server_state.h"

#include "base/cond.h"
#include "base/err.h"
#include "base/fd.h"
#include "net/wait.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#define START_THREADS 2u
#define HURRY_AGAIN   NS_PER_S

struct server *server_new(const struct server_config *config, struct pd_err *e)
{
    struct server *s = calloc(1, sizeof *s);
    if (!s) {
        pd_fail(e, PD_CAPACITY, "out of memory");
        return NULL;
    }

    s->config = *config;
    if (!s->config.max_active)
        s->config.max_active = 2048;
    if (!s->config.max_connections)
        s->config.max_connections = 20000;
    if (!s->config.head_timeout_ns)
        s->config.head_timeout_ns = 10 * NS_PER_S;
    if (!s->config.idle_timeout_ns)
        s->config.idle_timeout_ns = 75 * NS_PER_S;
    if (!s->config.place_ns)
        s->config.place_ns = 2 * NS_PER_S;
    if (!s->config.stall_ns)
        s->config.stall_ns = 60 * NS_PER_S;

    random_bytes(&s->id_seed, sizeof s->id_seed);
    lock_init(&s->lock, LOCK_SERVER);
    cond_init(&s->freed);
    s->quit_source.kind = SOURCE_QUIT;
    s->manager_wakes = DEADLINE_NONE;
    s->tick = clock_now() >> TICK_SHIFT;

    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->quit = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);

    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &s->quit_source};
    if (s->epoll < 0 || s->wake < 0 || s->quit < 0 || s->reserve < 0 ||
        epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->quit, &ev) < 0) {
        pd_fail_sys(e, "set up the server");
        server_free(s);
        return NULL;
    }
    return s;
}

void server_free(struct server *s)
{
    if (!s)
        return;
    for (struct listener *l = s->listeners, *next; l; l = next) {
        next = l->next;
        listener_close(l);
        lock_done(&l->lock);
        free(l);
    }

    fd_done(&s->epoll);
    fd_done(&s->wake);
    fd_done(&s->quit);
    fd_done(&s->reserve);
    pthread_cond_destroy(&s->freed);
    lock_done(&s->lock);
    free(s);
}

/* The list only grows, and at its head. */
static struct listener *first_listener(struct server *s)
{
    lock_take(&s->lock);
    struct listener *l = s->listeners;
    lock_release(&s->lock);
    return l;
}

static void rearm_listeners(struct server *s)
{
    for (struct listener *l = first_listener(s); l; l = l->next) {
        lock_take(&l->lock);
        if (l->paused && l->fd >= 0) {
            l->paused = 0;
            listener_arm(s, l, 0);
        }
        lock_release(&l->lock);
    }
}

/* Sleeps until somebody calls or the time has come. */
static void manager_sleep(struct server *s, deadline until)
{
    uint64_t calls;
    (void)wait_for(s->wake, POLLIN, until, NULL);
    ssize_t n = read(s->wake, &calls, sizeof calls);
    (void)n;
}

static void manage(struct server *s)
{
    while (!atomic_load(&s->stopping)) {
        lock_take(&s->lock);
        int rearm = s->rearm_at && deadline_passed(s->rearm_at);
        if (rearm)
            s->rearm_at = 0;
        deadline until = wheel_turn(s, 0);
        if (s->rearm_at && s->rearm_at < until)
            until = s->rearm_at;
        s->manager_wakes = until;
        lock_release(&s->lock);

        if (rearm)
            rearm_listeners(s);
        manager_sleep(s, until);
    }
}

static void end_connections(struct server *s)
{
    for (struct listener *l = first_listener(s); l; l = l->next)
        listener_close(l);

    lock_take(&s->lock);
    (void)wheel_turn(s, 1);
    s->manager_wakes = 0; /* no more calls because of deadlines */

    int told = 0;
    while (s->connections) {
        deadline until = atomic_load(&s->stop_until);
        if (!told && deadline_passed(until)) {
            for (struct connection *c = s->all; c; c = c->next)
                (void)shutdown(conn_fd(c->conn), SHUT_RDWR);
            told = 1;
        }
        lock_release(&s->lock);
        if (told && s->config.hurry)
            s->config.hurry(s->config.arg);
        manager_sleep(s, told ? deadline_in(HURRY_AGAIN) : until);
        lock_take(&s->lock);
    }
    lock_release(&s->lock);
}

static void end_threads(struct server *s)
{
    uint64_t one = 1;

    lock_take(&s->lock);
    s->ending = 1;
    /* Nobody reads it, so every thread sees it. */
    ssize_t n = write(s->quit, &one, sizeof one);
    (void)n;

    while (s->threads) {
        lock_release(&s->lock);
        manager_sleep(s, DEADLINE_NONE);
        lock_take(&s->lock);
    }
    lock_release(&s->lock);
    server_thread_join_last(s);
}

int server_run(struct server *s, struct pd_err *e)
{
    unsigned started = 0;
    for (; started < START_THREADS; started++) {
        lock_take(&s->lock);
        s->threads++;
        atomic_fetch_add(&s->waiting, 1);
        lock_release(&s->lock);
        if (server_thread_start(s)) {
            lock_take(&s->lock);
            s->threads--;
            atomic_fetch_sub(&s->waiting, 1);
            lock_release(&s->lock);
            break;
        }
    }

    /* One that answers and one that waits is the least that works. */
    if (started == START_THREADS)
        manage(s);
    else
        server_stop(s, 0);

    end_connections(s);
    end_threads(s);
    return started == START_THREADS ? 0 : pd_fail(e, PD_CAPACITY, "cannot start threads");
}

void server_stop(struct server *s, deadline d)
{
    atomic_store(&s->stop_until, d);
    atomic_store(&s->stopping, 1);
    manager_wake(s);
}

int server_is_stopping(const struct server *s)
{
    return atomic_load(&s->stopping);
}

void server_get_stats(struct server *s, struct server_stats *ret)
{
    lock_take(&s->lock);
    *ret = (struct server_stats){
        .connections = s->connections,
        .active = s->busy,
        .accepted = atomic_load(&s->accepted),
        .requests = atomic_load(&s->requests),
        .refused = atomic_load(&s->refused),
    };
    lock_release(&s->lock);
}
