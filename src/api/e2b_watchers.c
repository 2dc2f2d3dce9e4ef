/* Watchers of the E2B door: each is a worker in a sandbox that keeps its events until its client
 * asks.
 *
 * The table holds one reference to a watcher, every call that uses it another; the last one to go
 * ends the worker. A thread looks every LOOK_S seconds for watchers whose worker has ended with its
 * sandbox, and for those that were not asked for an hour. */
#include "api/e2b_watchers.h"

#include "base/banned.h"
#include "base/cond.h"
#include "base/lock.h"

#include <errno.h>
#include <poll.h>

#define LOOK_S  5  /* between looks for those whose sandbox is gone */
#define REST_S  60 /* while there is none: adding one wakes the thread */
#define IDLE_NS (3600 * NS_PER_S)

struct watchers {
    struct lock lock;
    pthread_cond_t wake; /* there is one, or the end */
    pthread_t thread;
    int is_ending;
    struct watcher *first;
};

/* Ends and frees a watcher to which no reference is left. */
static void end(struct watcher *w)
{
    if (w->run.begun)
        session_attend_begin(w->run.call.session); /* which the end of the worker takes back */
    worker_done(&w->run);
    pthread_mutex_destroy(&w->lock);
    free(w->root);
    free(w);
}

/* Must hold all->lock. Returns whether that was the last reference. */
static int drop(struct watcher *w)
{
    return --w->refs == 0;
}

/* Must hold all->lock. */
static void unlist(struct watchers *all, struct watcher *w)
{
    for (struct watcher **at = &all->first; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    w->is_listed = false;
}

/* A watcher is over when its worker has ended, or when its client has not asked for IDLE_NS. Output
 * of one that owes marks is an answer that nobody has fetched, and no end. */
static bool is_over(const struct watcher *w, uint64_t now)
{
    struct pollfd p = {.fd = w->run.call.out, .events = w->owed ? 0 : POLLIN};
    return poll(&p, 1, 0) > 0 || now - w->used_ns > IDLE_NS;
}

/* Must hold all->lock. Unlists a watcher that is over and unused, or returns NULL. */
static struct watcher *take_over(struct watchers *all)
{
    uint64_t now = clock_now();

    for (struct watcher *w = all->first; w; w = w->next)
        if (w->refs == 1 && is_over(w, now)) {
            unlist(all, w);
            return w;
        }
    return NULL;
}

static void *look_main(void *arg)
{
    struct watchers *all = arg;

    lock_take(&all->lock);
    while (!all->is_ending) {
        struct watcher *w;
        if (!all->first) {
            (void)lock_wait(&all->wake, &all->lock, deadline_in(REST_S * NS_PER_S));
            continue;
        }

        while ((w = take_over(all))) {
            lock_release(&all->lock);
            end(w);
            lock_take(&all->lock);
        }

        deadline next = deadline_in(LOOK_S * NS_PER_S);
        while (!all->is_ending && lock_wait(&all->wake, &all->lock, next))
            continue;
    }

    lock_release(&all->lock);
    return NULL;
}

struct watchers *watchers_new(struct pd_err *e)
{
    struct watchers *all = calloc(1, sizeof *all);

    if (!all) {
        pd_fail(e, PD_CAPACITY, "no memory for watchers");
        return NULL;
    }

    lock_init(&all->lock, LOCK_WATCHERS);
    cond_init(&all->wake);

    int r = pthread_create(&all->thread, NULL, look_main, all);
    if (r) {
        errno = r;
        pd_fail_sys(e, "start a thread for watchers");
        free(all);
        return NULL;
    }
    return all;
}

void watchers_free(struct watchers *all)
{
    if (!all)
        return;

    lock_take(&all->lock);
    all->is_ending = 1;
    pthread_cond_signal(&all->wake);
    lock_release(&all->lock);
    pthread_join(all->thread, NULL);

    while (all->first) {
        struct watcher *w = all->first;
        unlist(all, w);
        end(w);
    }

    pthread_cond_destroy(&all->wake);
    lock_done(&all->lock);
    free(all);
}

/* Must hold all->lock. */
static int check_room(struct watchers *all, const char *tenant, const char *sandbox,
                      struct pd_err *e)
{
    unsigned of_sandbox = 0, of_tenant = 0;

    for (struct watcher *w = all->first; w; w = w->next) {
        of_sandbox += !strcmp(w->sandbox, sandbox);
        of_tenant += !strcmp(w->tenant, tenant);
    }

    if (of_sandbox >= WATCHERS_PER_SANDBOX)
        return pd_fail(e, PD_CAPACITY,
                       "the sandbox has %u watchers: remove one, or follow changes by WatchDir",
                       of_sandbox);
    if (of_tenant >= WATCHERS_PER_TENANT)
        return pd_fail(e, PD_CAPACITY, "there are %u watchers in your sandboxes: remove one",
                       of_tenant);
    return 0;
}

struct watcher *watchers_add(struct watchers *all, const char *tenant, const char *sandbox,
                             struct pd_err *e)
{
    struct watcher *w = calloc(1, sizeof *w);
    if (!w) {
        pd_fail(e, PD_CAPACITY, "no memory for a watcher");
        return NULL;
    }

    w->run = WORKER_INIT;
    w->refs = 2; /* the table's and the caller's */
    w->is_listed = true;
    w->used_ns = clock_now();
    id_sandbox(w->id);
    snprintf(w->sandbox, sizeof w->sandbox, "%s", sandbox);
    snprintf(w->tenant, sizeof w->tenant, "%s", tenant);
    pthread_mutex_init(&w->lock, NULL);

    lock_take(&all->lock);
    int r = check_room(all, tenant, sandbox, e);
    if (r == 0) {
        w->next = all->first;
        all->first = w;
        if (!w->next)
            pthread_cond_signal(&all->wake);
    }
    lock_release(&all->lock);

    if (r < 0) {
        end(w);
        return NULL;
    }
    return w;
}

struct watcher *watchers_find(struct watchers *all, const char *sandbox, const char *id,
                              struct pd_err *e)
{
    struct watcher *w;

    lock_take(&all->lock);
    for (w = all->first; w; w = w->next)
        if (!strcmp(w->id, id) && !strcmp(w->sandbox, sandbox))
            break;

    if (w) {
        w->refs++;
        w->used_ns = clock_now();
    }
    lock_release(&all->lock);

    if (!w)
        pd_fail(e, PD_NOT_FOUND, "watcher with id %.60s not found", id);
    return w;
}

void watchers_remove(struct watchers *all, struct watcher *w)
{
    lock_take(&all->lock);
    if (w->is_listed) {
        unlist(all, w);
        (void)drop(w); /* the caller still holds it */
    }
    lock_release(&all->lock);
}

void watchers_release(struct watchers *all, struct watcher *w)
{
    lock_take(&all->lock);
    w->used_ns = clock_now();
    int is_last = drop(w);
    lock_release(&all->lock);

    if (is_last)
        end(w);
}
