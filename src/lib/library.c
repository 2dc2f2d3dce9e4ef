/* How this works: a library is what a daemon is made of, without the server: the pump, the jail
 * provider over a keeper of its own, the sessions, and a store that keeps nothing.
 *
 * After a fork the child has none of the threads, so none of the handles is of any use to it. All
 * it gets is a mark that says so, and its copies of the keeper's socket are closed. */
#include "lib/lib.h"

#include "base/banned.h"
#include "base/fd.h"
#include "core/provider.h"
#include "core/pump.h"
#include "provider/providers.h"
#include "store/store.h"
#include "telemetry/log.h"

#include <errno.h>
#include <fcntl.h>

#define GONE_KEPT_MS    (60ull * 60 * 1000)
#define QUEUE_MS        30000ull
#define IDLE_DEFAULT_MS (30ull * 60 * 1000)
#define LIFE_DEFAULT_MS (24ull * 60 * 60 * 1000)
#define LOG_LEVEL_NONE  ((enum log_level)(LOG_LEVEL_ERROR + 1))

extern const struct box_events session_box_events;

const char *paddock_version(void)
{
    return PADDOCK_VERSION;
}

unsigned paddock_abi(void)
{
    return PADDOCK_ABI;
}

/* ---- those that are open ---- */

/* The one thing of the library's that is not in a handle: fork(2) knows of no handle. */
static struct lock open_lock = LOCK_INIT(LOCK_OPEN);
static struct paddock *open_first;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    lock_take(&open_lock);
}

static void after_fork(void)
{
    lock_release(&open_lock);
}

static void in_child(void)
{
    for (struct paddock *p = open_first; p; p = p->next) {
        atomic_store(&p->forked, 1);
        keeper_process_leave(&p->keeper);
    }
    open_first = NULL;
    lock_release(&open_lock);
}

static void watch_forks(void)
{
    (void)pthread_atfork(before_fork, after_fork, in_child);
}

static void enter(struct paddock *p)
{
    pthread_once(&fork_once, watch_forks);
    lock_take(&open_lock);
    p->next = open_first;
    open_first = p;
    lock_release(&open_lock);
}

static void leave(struct paddock *p)
{
    lock_take(&open_lock);
    for (struct paddock **at = &open_first; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    lock_release(&open_lock);
}

/* ---- life ---- */

struct paddock *lib_ref(struct paddock *p)
{
    atomic_fetch_add(&p->refs, 1);
    return p;
}

/* Frees everything, also of a library that was opened by half. */
static void lib_free(struct paddock *p)
{
    keeper_process_end(&p->keeper);
    if (p->sessions)
        sessions_free(p->sessions);
    provider_table_done(&p->providers);
    pump_free(p->pump);
    if (p->store)
        p->store->free(p->store);
    spool_place_remove(&p->place);
    leave(p);
    keeper_process_done(&p->keeper);
    free(p);
}

void lib_unref(struct paddock *p)
{
    if (p && atomic_fetch_sub(&p->refs, 1) == 1 && !atomic_load(&p->forked))
        lib_free(p);
}

int lib_usable(struct paddock *p, struct paddock_error *e)
{
    if (atomic_load_explicit(&p->forked, memory_order_relaxed))
        return lib_refuse(e, PD_UNSUPPORTED,
                          "this process was forked from the one that opened the library: open it "
                          "again here");
    if (atomic_load_explicit(&p->closing, memory_order_relaxed))
        return lib_refuse(e, PD_SHUTTING_DOWN, "the library was closed");
    return 0;
}

int lib_begin(struct paddock *p, struct paddock_error *e)
{
    lib_ref(p);
    if (lib_usable(p, e) == 0)
        return 0;
    lib_unref(p);
    return -1;
}

/* The most of everything: what the program said, or what follows from the machine. Files of the
 * library's sandboxes are in memory, which has a ceiling of its own. */
static void set_limits(struct paddock *p, const struct paddock_options *o)
{
    p->ceilings = ceilings_of_machine("/");
    p->ceilings.disk = SPEC_DISK_MAX;

    if (o->max_memory)
        p->ceilings.memory = o->max_memory;
    if (o->max_pids)
        p->ceilings.pids = o->max_pids;
    if (o->max_cpu_milli)
        p->ceilings.cpu_milli = o->max_cpu_milli;
    if (o->max_disk)
        p->ceilings.disk = o->max_disk;

    p->limits = LIMITS_DEFAULT;
    ceilings_clip(&p->ceilings, &p->limits);
}

static int set_up(struct paddock *p, const struct paddock_options *o, struct pd_err *e)
{
    p->place.lock = -1;
    if (keeper_process_init(&p->keeper, o->program, e) < 0)
        return -1;
    enter(p);

    if (spool_place_make(&p->place, o->spool_dir, e) < 0 || !(p->store = store_memory_new(e)) ||
        !(p->pump = pump_new(e)))
        return -1;

    /* The first of this build is the one that needs nothing but this machine. */
    char name[PROVIDER_NAME_MAX + 1];
    snprintf(name, sizeof name, "%s", provider_kind_at(0)->name);
    char *providers[] = {name};
    struct provider_place place = {.start = keeper_process_start,
                                   .start_arg = &p->keeper,
                                   .pump = p->pump,
                                   .events = &session_box_events};
    if (providers_open(&p->providers, providers, 1, "auto", &place, e) < 0)
        return -1;

    unsigned max = o->max_sandboxes ? o->max_sandboxes : 1000;
    set_limits(p, o);
    struct sessions_config c = {.state_dir = p->place.path,
                                .providers = &p->providers,
                                .store = p->store,
                                .pump = p->pump,
                                .max_sessions = max,
                                .max_per_tenant = max,
                                .queue_max = 1000,
                                .queue_timeout_ms = QUEUE_MS,
                                .pool_min = o->pool,
                                .pool_max = o->pool,
                                .prepare_shells = true,
                                .idle_timeout_ms =
                                    o->idle_timeout_ms ? o->idle_timeout_ms : IDLE_DEFAULT_MS,
                                .max_life_ms = o->max_life_ms ? o->max_life_ms : LIFE_DEFAULT_MS,
                                .gone_kept_ms = GONE_KEPT_MS,
                                .limits = p->limits};

    if (!(p->sessions = sessions_new(&c, e)))
        return -1;
    return sessions_start(p->sessions, e);
}

struct paddock *paddock_open(const struct paddock_options *options, struct paddock_error *e)
{
    struct paddock_options o;
    struct pd_err why;

    if (lib_take(&o, sizeof o, options, "paddock_options", e) < 0)
        return NULL;

    struct paddock *p = calloc(1, sizeof *p);
    if (!p) {
        lib_refuse(e, PD_CAPACITY, "no memory for the library");
        return NULL;
    }

    log_set_level(LOG_LEVEL_NONE); /* it is somebody else's stderr */
    atomic_init(&p->refs, 1);
    atomic_init(&p->closing, 0);
    atomic_init(&p->forked, 0);

    if (set_up(p, &o, &why) == 0)
        return p;

    lib_fail(e, &why);
    if (p->sessions)
        sessions_stop(p->sessions);
    lib_free(p);
    return NULL;
}

void paddock_close(struct paddock *p)
{
    if (!p || atomic_load(&p->forked) || atomic_exchange(&p->closing, 1))
        return;

    sessions_end_all(p->sessions, "the library was closed");
    sessions_stop(p->sessions);
    keeper_process_end(&p->keeper);
    spool_place_remove(&p->place);
    lib_unref(p);
}

int paddock_get_info(struct paddock *p, struct paddock_info *ret, struct paddock_error *e)
{
    struct paddock_info i = {0};
    struct sessions_stats stats;

    if (lib_usable(p, e) < 0)
        return -1;

    struct provider *provider = p->providers.list[0];
    enum rung best = provider->best(provider);
    sessions_get_stats(p->sessions, &stats);
    snprintf(i.program, sizeof i.program, "%.*s", (int)sizeof i.program - 1, p->keeper.program);
    snprintf(i.isolation, sizeof i.isolation, "%s", rung_name(best));

    if (best != RUNG_FULL)
        snprintf(i.missing, sizeof i.missing, "%s; `paddock doctor` tells what would help",
                 geteuid() != 0 ? "not root: one uid for everything, limits by rlimit only"
                                : "no cgroups: limits by rlimit only");

    i.sandboxes = stats.by_state[SESSION_CREATING] + stats.by_state[SESSION_RUNNING] +
                  stats.by_state[SESSION_PAUSED] + stats.by_state[SESSION_STOPPING];

    size_t at = 0;
    for (unsigned n = 0; n < p->providers.count && at < sizeof i.providers; n++)
        at += (size_t)snprintf(i.providers + at, sizeof i.providers - at, "%s%s", n ? ", " : "",
                               p->providers.list[n]->name);

    lock_take(&p->keeper.lock);
    i.keeper_pid = p->keeper.pid;
    lock_release(&p->keeper.lock);
    return lib_give(ret, &i, sizeof i, "paddock_info", e);
}

/* ---- cancelling ---- */

struct paddock_cancel *paddock_cancel_new(struct paddock_error *e)
{
    struct paddock_cancel *c = calloc(1, sizeof *c);
    int pair[2];
    struct pd_err why;

    if (c && pipe2(pair, O_CLOEXEC) == 0) {
        c->near = pair[0];
        atomic_init(&c->far, pair[1]);
        return c;
    }

    pd_fail_sys(&why, "make a pipe to cancel by");
    lib_fail(e, &why);
    free(c);
    return NULL;
}

void paddock_cancel(struct paddock_cancel *c)
{
    int far = c ? atomic_exchange(&c->far, -1) : -1;
    fd_done(&far);
}

void paddock_cancel_free(struct paddock_cancel *c)
{
    if (!c)
        return;
    paddock_cancel(c);
    fd_done(&c->near);
    free(c);
}

int lib_cancel_fd(const struct paddock_cancel *c)
{
    return c ? c->near : -1;
}

int lib_is_cancelled(const struct paddock_cancel *c)
{
    return c && atomic_load(&c->far) < 0;
}
