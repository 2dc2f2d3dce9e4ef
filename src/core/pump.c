/* How the pump's thread works: it waits by epoll, at most until the first timer, and calls back
 * what is ready with no lock held. `running` names the source or timer whose callback runs, so that
 * pump_remove and pump_cancel_timer can wait until it is over.
 *
 * Sources are in slots. An event says slot and generation, and is dropped if the slot has another
 * source by now. Timers are a list in the order of their time. A new one wakes nobody and is seen
 * at the next tick, so it may fire TICK_MS late. */
#include "core/pump.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/lock.h"
#include "telemetry/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define EVENTS_MAX 64
#define TICK_MS    250

/* An event names a slot and its generation, not a source: what epoll_wait has fetched may be about
 * a source that another thread has removed and freed meanwhile. */
struct slot {
    struct pump_source *source; /* NULL: free */
    uint32_t generation;
    unsigned next_free;
};

struct pump {
    pthread_t thread;
    struct lock lock;
    pthread_cond_t idle; /* no callback is running */
    int epoll, wake;
    int stopping;
    struct slot *slots; /* [0] is not used: a source's `added` is its slot */
    unsigned slot_count, slot_room, free_slots;
    const void *running; /* the source or timer whose callback runs */
    struct pump_timer *timers;
};

bool pump_is_this_thread(const struct pump *p)
{
    return pthread_equal(pthread_self(), p->thread);
}

/* Callbacks do not wait for anybody: one that takes so long is told, and waited for. */
#define STUCK_AFTER (10 * NS_PER_S)

/* Waits, with the lock held, until this source's or timer's callback is over. */
static void wait_until_over(struct pump *p, const void *what)
{
    if (!pump_is_this_thread(p))
        while (p->running == what)
            if (!lock_wait(&p->idle, &p->lock, deadline_in(STUCK_AFTER)))
                log_error("pump.stuck", "error=a callback does not return");
}

static unsigned take_slot(struct pump *p, struct pump_source *s)
{
    unsigned n = p->free_slots;
    if (n) {
        p->free_slots = p->slots[n].next_free;
    } else {
        if (p->slot_count == p->slot_room) {
            unsigned room = p->slot_room * 2;
            struct slot *grown = realloc(p->slots, room * sizeof *grown);
            if (!grown)
                return 0;
            memset(grown + p->slot_room, 0, (room - p->slot_room) * sizeof *grown);
            p->slots = grown;
            p->slot_room = room;
        }
        n = p->slot_count++;
    }

    p->slots[n].source = s;
    return n;
}

static void free_slot(struct pump *p, unsigned n)
{
    p->slots[n].source = NULL;
    p->slots[n].generation++;
    p->slots[n].next_free = p->free_slots;
    p->free_slots = n;
}

int pump_add(struct pump *p, struct pump_source *s, uint32_t events, struct pd_err *e)
{
    int r = -1;

    lock_take(&p->lock);
    unsigned n = take_slot(p, s);
    errno = ENOMEM;
    if (n) {
        struct epoll_event ev = {.events = events,
                                 .data.u64 = (uint64_t)n << 32 | p->slots[n].generation};
        r = epoll_ctl(p->epoll, EPOLL_CTL_ADD, s->fd, &ev);
        if (r == 0)
            s->added = n;
        else
            free_slot(p, n);
    }

    lock_release(&p->lock);
    return r < 0 ? pd_fail_sys(e, "watch a descriptor") : 0;
}

/* With the lock held. */
static void take_out(struct pump *p, struct pump_source *s)
{
    if (!s->added)
        return;

    epoll_ctl(p->epoll, EPOLL_CTL_DEL, s->fd, NULL);
    free_slot(p, s->added);
    s->added = 0;
}

void pump_remove(struct pump *p, struct pump_source *s)
{
    lock_take(&p->lock);
    take_out(p, s);
    wait_until_over(p, s);
    lock_release(&p->lock);
}

void pump_drop(struct pump *p, struct pump_source *s)
{
    lock_take(&p->lock);
    take_out(p, s);
    lock_release(&p->lock);
}

void pump_change(struct pump *p, struct pump_source *s, uint32_t events)
{
    lock_take(&p->lock);
    if (s->added) {
        uint64_t name = (uint64_t)s->added << 32 | p->slots[s->added].generation;
        struct epoll_event ev = {.events = events, .data.u64 = name};
        epoll_ctl(p->epoll, EPOLL_CTL_MOD, s->fd, &ev);
    }
    lock_release(&p->lock);
}

void pump_wait(struct pump *p, const struct pump_source *s)
{
    lock_take(&p->lock);
    wait_until_over(p, s);
    lock_release(&p->lock);
}

static void unlink_timer(struct pump *p, struct pump_timer *t)
{
    for (struct pump_timer **at = &p->timers; *at; at = &(*at)->next)
        if (*at == t) {
            *at = t->next;
            break;
        }
    t->set = 0;
}

void pump_set_timer(struct pump *p, struct pump_timer *t, deadline at)
{
    lock_take(&p->lock);
    if (t->set)
        unlink_timer(p, t);
    t->at = at;
    t->set = 1;

    struct pump_timer **place = &p->timers;
    while (*place && (*place)->at <= at)
        place = &(*place)->next;

    t->next = *place;
    *place = t;
    lock_release(&p->lock);
}

void pump_cancel_timer(struct pump *p, struct pump_timer *t)
{
    lock_take(&p->lock);
    if (t->set)
        unlink_timer(p, t);
    wait_until_over(p, t);
    lock_release(&p->lock);
}

static void over(struct pump *p)
{
    p->running = NULL;
    pthread_cond_broadcast(&p->idle);
}

static void run_timers(struct pump *p)
{
    uint64_t now = clock_now();

    while (p->timers && p->timers->at <= now) {
        struct pump_timer *t = p->timers;
        unlink_timer(p, t);

        p->running = t;
        lock_release(&p->lock);
        t->fire(t);
        lock_take(&p->lock);
        over(p);
    }
}

static void run_events(struct pump *p, const struct epoll_event *events, int count)
{
    for (int i = 0; i < count; i++) {
        const struct slot *slot = &p->slots[events[i].data.u64 >> 32];
        struct pump_source *s = slot->source;
        if (!s || slot->generation != (uint32_t)events[i].data.u64)
            continue;

        p->running = s;
        lock_release(&p->lock);
        s->ready(s, events[i].events);
        lock_take(&p->lock);
        over(p);
    }
}

static int next_wait_ms(struct pump *p)
{
    if (!p->timers)
        return TICK_MS;

    int ms = deadline_poll_ms(p->timers->at);
    return ms < 0 || ms > TICK_MS ? TICK_MS : ms;
}

static void *pump_main(void *arg)
{
    struct pump *p = arg;
    lock_take(&p->lock);
    while (!p->stopping) {
        int ms = next_wait_ms(p);
        struct epoll_event events[EVENTS_MAX];
        lock_release(&p->lock);
        int n = epoll_wait(p->epoll, events, EVENTS_MAX, ms);
        lock_take(&p->lock);

        run_events(p, events, n);
        run_timers(p);
    }
    lock_release(&p->lock);
    return NULL;
}

struct pump *pump_new(struct pd_err *e)
{
    struct pump *p = calloc(1, sizeof *p);
    if (!p) {
        pd_fail(e, PD_CAPACITY, "no memory for the pump");
        return NULL;
    }

    lock_init(&p->lock, LOCK_PUMP);
    cond_init(&p->idle);
    p->epoll = epoll_create1(EPOLL_CLOEXEC);
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    /* Slot 0 has no source: it only wakes. */
    p->slots = calloc(256, sizeof *p->slots);
    p->slot_room = p->slots ? 256 : 0;
    p->slot_count = 1;

    struct epoll_event ev = {.events = EPOLLIN};
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);

    int r = 0;
    if (!p->slots || p->epoll < 0 || p->wake < 0 ||
        epoll_ctl(p->epoll, EPOLL_CTL_ADD, p->wake, &ev) < 0)
        r = errno;
    else
        r = pthread_create(&p->thread, NULL, pump_main, p); /* it does not set errno */
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r == 0)
        return p;

    errno = r;
    pd_fail_sys(e, "start the pump");
    fd_done(&p->epoll);
    fd_done(&p->wake);
    free(p->slots);
    free(p);
    return NULL;
}

void pump_free(struct pump *p)
{
    if (!p)
        return;

    lock_take(&p->lock);
    p->stopping = 1;
    lock_release(&p->lock);

    uint64_t one = 1;
    (void)!write(p->wake, &one, sizeof one);
    pthread_join(p->thread, NULL);

    lock_done(&p->lock);
    pthread_cond_destroy(&p->idle);
    fd_done(&p->epoll);
    fd_done(&p->wake);
    free(p->slots);
    free(p);
}
