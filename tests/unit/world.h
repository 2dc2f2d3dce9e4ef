/* world: a provider without sandboxes, whose boxes and roots are in shared memory.
 *
 * So a daemon (sessions, store, pump) can run in a child, die at any call that changes something,
 * and leave behind what it would have left; the next daemon finds that. A root has one number as
 * its content. Commands run until somebody kills them, but for /bin/true. */
#pragma once

#include "store_place.h"

#include "access/ids.h"
#include "core/provider.h"
#include "core/pump.h"
#include "core/session_state.h"
#include "core/sessions.h"
#include "core/snapshots.h"
#include "telemetry/log.h"

#include <dirent.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define WORLD_ROOM 256u

/* How world.fail_create fails: before there is a box, or when half of one was made. */
enum { FAIL_AT_ONCE = 1, FAIL_LATE = 2 };

struct world_box {
    struct box base; /* first */
    int used, paused;
    struct wire_id id;
    char provider[32]; /* whose it is */
    char root[64];
    struct wire_id commands[8];
    unsigned command_count;
    void *owner;
};

struct world {
    struct world_box boxes[WORLD_ROOM];
    struct {
        char name[64];
        int content;
    } roots[WORLD_ROOM];
    unsigned cannot;        /* bits of enum provider_can that its provider lacks */
    char provider_name[32]; /* "": world */
    unsigned fuse;          /* the daemon dies at its end; 0: it does not */
    int fail_create, fail_copy, fail_usage, fail_pause, fail_remove, fail_store, usages;
    int hold_copy;                    /* a copy waits for its end */
    int hold_create, creates_running; /* likewise a creation, which has its box by then */
    unsigned slow_create_us;
    unsigned slow_store_us; /* at most; every other row of a session waits */
    atomic_uint rows;
    uint64_t cpu_usec;
    int copies_running;
    int forgets; /* ends that a box was told to forget */
    bool has_images;
    int fail_check, checks;
    int keeps_stash;
    char stash[16][MSG_KEY_MAX + 1]; /* the keys; what is fetched are silent pipes */
};

struct daemon {
    struct world *world;
    struct provider provider;
    struct provider_table providers;
    struct store store, *real;
    struct pump *pump;
    struct pump_source news; /* an eventfd: somebody has ended */
    struct {
        struct world_box *box;
        struct wire_id command;
        struct msg_exited end;
    } ends[256];
    unsigned end_count;
    struct sessions *all;
    pthread_mutex_t lock; /* the world's */
    struct daemon *earlier;
};

static struct daemon *daemon_of(struct provider *p)
{
    return p->state;
}

/* Something is about to change: the last moment for some. */
static void tick(struct world *w)
{
    if (w->fuse && --w->fuse == 0)
        _exit(9);
}

static struct world_box *box_of(struct box *b)
{
    return (struct world_box *)b;
}

/* ---- roots ---- */

static int root_find(const struct world *w, const char *name)
{
    for (unsigned i = 0; i < WORLD_ROOM; i++)
        if (!strcmp(w->roots[i].name, name))
            return (int)i;
    return -1;
}

static inline unsigned root_count(const struct world *w)
{
    unsigned count = 0;
    for (unsigned i = 0; i < WORLD_ROOM; i++)
        count += w->roots[i].name[0] != 0;
    return count;
}

static inline unsigned box_count(const struct world *w)
{
    unsigned count = 0;
    for (unsigned i = 0; i < WORLD_ROOM; i++)
        count += w->boxes[i].used != 0;
    return count;
}

static int root_make(struct world *w, const char *name, int content)
{
    int at = root_find(w, "");
    assert_true(at >= 0);
    snprintf(w->roots[at].name, sizeof w->roots[at].name, "%s", name);
    w->roots[at].content = content;
    return at;
}

static int root_in_use(const struct world *w, const char *name, const struct world_box *but)
{
    for (unsigned i = 0; i < WORLD_ROOM; i++)
        if (w->boxes[i].used && &w->boxes[i] != but && !strcmp(w->boxes[i].root, name))
            return 1;
    return 0;
}

static int world_remove_root(struct provider *p, const char *name, struct pd_err *e)
{
    struct daemon *d = daemon_of(p);
    if (d->world->fail_remove)
        return pd_fail(e, PD_INTERNAL, "the keeper is away");
    tick(d->world);
    pthread_mutex_lock(&d->lock);
    int at = root_find(d->world, name);
    int r = at < 0                              ? pd_fail(e, PD_NOT_FOUND, "no root %s", name)
            : root_in_use(d->world, name, NULL) ? pd_fail(e, PD_CONFLICT, "%s is in use", name)
                                                : 0;
    if (r == 0)
        d->world->roots[at].name[0] = 0;
    pthread_mutex_unlock(&d->lock);

    return at < 0 ? 0 : r; /* as a keeper that is only told */
}

static int world_copy_root(struct provider *p, struct box *box, const char *from, const char *to,
                           deadline limit, struct pd_err *e)
{
    (void)limit;
    const struct world_box *b = box ? box_of(box) : NULL;
    struct daemon *d = daemon_of(p);
    tick(d->world);
    pthread_mutex_lock(&d->lock);
    d->world->copies_running++;
    pthread_mutex_unlock(&d->lock);
    while (__atomic_load_n(&d->world->hold_copy, __ATOMIC_SEQ_CST))
        usleep(1000);
    pthread_mutex_lock(&d->lock);
    d->world->copies_running--;

    int at = root_find(d->world, from), r = 0;
    if (at < 0)
        r = pd_fail(e, PD_NOT_FOUND, "there is no root %s", from);
    else if (root_find(d->world, to) >= 0)
        r = pd_fail(e, PD_CONFLICT, "%s exists", to);
    else if (root_in_use(d->world, from, b))
        r = pd_fail(e, PD_CONFLICT, "%s is in use", from);
    else if (d->world->fail_copy)
        r = pd_fail(e, PD_NO_SPACE, "the disk is full");
    else
        root_make(d->world, to, d->world->roots[at].content);
    pthread_mutex_unlock(&d->lock);

    return r;
}

/* ---- boxes ---- */

static int world_create(struct provider *p, struct wire_id id, const struct spec *s, void *owner,
                        struct box **ret, deadline limit, struct pd_err *e)
{
    (void)limit;
    struct daemon *d = daemon_of(p);
    tick(d->world);
    if (d->world->fail_create == FAIL_AT_ONCE)
        return pd_fail(e, PD_CAPACITY, "no more boxes");
    pthread_mutex_lock(&d->lock);
    struct world_box *b = d->world->boxes;
    while (b->used)
        b++;
    assert_true(b < d->world->boxes + WORLD_ROOM);

    int busy = s->root_name[0] && root_in_use(d->world, s->root_name, NULL);
    if (!busy) {
        *b = (struct world_box){.used = 1, .id = id, .owner = owner};
        snprintf(b->root, sizeof b->root, "%s", s->root_name);
        snprintf(b->provider, sizeof b->provider, "%s", p->name);
        if (b->root[0] && root_find(d->world, b->root) < 0)
            root_make(d->world, b->root, 1);
    }

    d->world->creates_running++;
    pthread_mutex_unlock(&d->lock);
    while (__atomic_load_n(&d->world->hold_create, __ATOMIC_SEQ_CST))
        usleep(1000);
    if (d->world->slow_create_us)
        usleep(d->world->slow_create_us);
    pthread_mutex_lock(&d->lock);
    d->world->creates_running--;
    pthread_mutex_unlock(&d->lock);
    if (busy)
        return pd_fail(e, PD_CONFLICT, "%s is in use", s->root_name);

    if (d->world->fail_create == FAIL_LATE) {
        b->used = 0;
        return pd_fail(e, PD_CAPACITY, "no more boxes");
    }
    *ret = &b->base;
    return 0;
}

static int world_adopt(struct provider *p, struct wire_id id, void *owner, struct box **ret,
                       struct pd_err *e)
{
    struct daemon *d = daemon_of(p);
    for (unsigned i = 0; i < WORLD_ROOM; i++)
        if (d->world->boxes[i].used && wire_id_equal(d->world->boxes[i].id, id) &&
            !strcmp(d->world->boxes[i].provider, p->name)) {
            d->world->boxes[i].owner = owner;
            *ret = &d->world->boxes[i].base;
            return 0;
        }
    return pd_fail(e, PD_NOT_FOUND, "no such box");
}

static int world_count(struct provider *p, unsigned *ret, deadline limit, struct pd_err *e)
{
    (void)limit, (void)e;
    struct daemon *d = daemon_of(p);
    pthread_mutex_lock(&d->lock);
    *ret = box_count(d->world);
    pthread_mutex_unlock(&d->lock);
    return 0;
}

/* Those that nobody has taken: owners are of this daemon. */
static void world_end_strangers(struct provider *p)
{
    struct daemon *d = daemon_of(p);
    for (unsigned i = 0; i < WORLD_ROOM; i++)
        if (!d->world->boxes[i].owner && !strcmp(d->world->boxes[i].provider, p->name))
            d->world->boxes[i].used = 0;
}

static struct daemon *the_daemon; /* a box has no way to its provider */

static int world_destroy(struct box *box, deadline d, struct pd_err *e)
{
    (void)d, (void)e;
    struct world_box *b = box_of(box);
    tick(the_daemon->world);
    pthread_mutex_lock(&the_daemon->lock);
    b->used = 0;
    for (unsigned i = 0; i < the_daemon->end_count; i++)
        if (the_daemon->ends[i].box == b)
            the_daemon->ends[i].box = NULL;
    pthread_mutex_unlock(&the_daemon->lock);
    return 0;
}

/* Ends are told on the pump's thread, and never of a box that is gone. */
static void world_tell(struct pump_source *s, uint32_t events)
{
    (void)events;
    struct daemon *d = (struct daemon *)((char *)s - offsetof(struct daemon, news));
    uint64_t count;
    (void)!read(s->fd, &count, sizeof count);
    pthread_mutex_lock(&d->lock);
    for (unsigned i = 0; i < d->end_count; i++)
        if (d->ends[i].box)
            session_box_events.exited(d->ends[i].box->owner, d->ends[i].command, &d->ends[i].end);
    d->end_count = 0;
    pthread_mutex_unlock(&d->lock);
}

static void world_ended(struct world_box *b, struct wire_id command, struct msg_exited end)
{
    struct daemon *d = the_daemon;
    uint64_t one = 1;
    pthread_mutex_lock(&d->lock);
    if (b->used && d->end_count < COUNT(d->ends)) {
        d->ends[d->end_count].box = b;
        d->ends[d->end_count].command = command;
        d->ends[d->end_count++].end = end;
    }
    pthread_mutex_unlock(&d->lock);
    (void)!write(d->news.fd, &one, sizeof one);
}

static int world_exec(struct box *box, const struct box_command *c, struct pd_err *e)
{
    struct world_box *b = box_of(box);
    uint32_t pos = 0;
    (void)e;

    const char *program = msg_list_next(&c->exec.argv, &pos);
    tick(the_daemon->world);
    if (program && !strcmp(program, "/bin/true")) {
        world_ended(b, c->id, (struct msg_exited){.pid = 7});
        return 0;
    }

    if (b->command_count < COUNT(b->commands)) /* the rest is not remembered over a restart */
        b->commands[b->command_count++] = c->id;
    session_box_events.started(b->owner, c->id, (int)(100 + b->command_count));
    return 0;
}

static int world_kill(struct box *box, struct wire_id command, unsigned group, struct pd_err *e)
{
    struct world_box *b = box_of(box);
    (void)group, (void)e;
    world_ended(b, command, (struct msg_exited){.status = SIGKILL});
    return 0;
}

static int world_signal(struct box *box, struct wire_id command, int signal, deadline d,
                        struct pd_err *e)
{
    (void)signal, (void)d;
    return world_kill(box, command, 0, e);
}

static int world_forget(struct box *box, struct wire_id command)
{
    (void)box, (void)command;
    __atomic_add_fetch(&the_daemon->world->forgets, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static int world_group_is_empty(struct box *b, unsigned group)
{
    (void)b, (void)group;
    return GROUP_MISSING;
}

static int world_sync(struct box *box, deadline d, struct pd_err *e)
{
    struct world_box *b = box_of(box);
    (void)e;
    for (unsigned i = 0; i < b->command_count; i++)
        session_box_events.started(b->owner, b->commands[i], (int)(101 + i));
    if (!d)
        session_box_events.synced(b->owner);
    return 0;
}

static int world_pause(struct box *b, bool paused, deadline d, struct pd_err *e)
{
    (void)d;
    if (the_daemon->world->fail_pause)
        return pd_fail(e, PD_UNSUPPORTED, "nothing can be paused here");
    tick(the_daemon->world);
    box_of(b)->paused = paused;
    return 0;
}

static enum rung world_rung(const struct box *b)
{
    (void)b;
    return RUNG_FULL;
}

static int world_usage(struct box *b, struct box_usage *ret, struct pd_err *e)
{
    (void)b;
    __atomic_add_fetch(&the_daemon->world->usages, 1, __ATOMIC_SEQ_CST);
    if (the_daemon->world->fail_usage)
        return pd_fail(e, PD_INTERNAL, "the provider cannot tell");
    *ret = (struct box_usage){.memory = 1000,
                              .cpu_usec = the_daemon->world->cpu_usec,
                              .disk_used = 5000,
                              .disk_total = 9000};
    return 0;
}

static int world_check(struct box *b, deadline d, struct pd_err *e)
{
    (void)b;
    (void)d;
    __atomic_add_fetch(&the_daemon->world->checks, 1, __ATOMIC_SEQ_CST);
    return the_daemon->world->fail_check ? pd_fail(e, PD_CONFLICT, "its image is another one now")
                                         : 0;
}

static enum rung world_best(struct provider *p)
{
    (void)p;
    return RUNG_FULL;
}

static int world_health(struct provider *p, struct pd_err *e)
{
    (void)p, (void)e;
    return 0;
}

static void world_free(struct provider *p)
{
    (void)p; /* it is the daemon's */
}

static int world_keep_root(struct provider *p, const char *name, deadline d, struct pd_err *e)
{
    (void)d;
    struct daemon *daemon = daemon_of(p);

    pthread_mutex_lock(&daemon->lock);
    int there = root_find(daemon->world, name) >= 0;
    pthread_mutex_unlock(&daemon->lock);
    return there ? 0 : pd_fail(e, PD_NOT_FOUND, "there is no root %s", name);
}

/* ---- a stash of keys ---- */

static char *stash_place(struct world *w, const char *key)
{
    for (unsigned i = 0; i < COUNT(w->stash); i++)
        if (!strcmp(w->stash[i], key))
            return w->stash[i];
    return NULL;
}

static int world_stash(struct provider *p, const char *key, const int *fds, unsigned count,
                       struct pd_err *e)
{
    (void)fds, (void)count;
    struct world *w = daemon_of(p)->world;
    tick(w);
    char *place = stash_place(w, key) ? NULL : stash_place(w, "");
    if (!place)
        return pd_fail(e, PD_CONFLICT, "no room for '%s'", key);
    snprintf(place, sizeof w->stash[0], "%s", key);
    return 0;
}

static int world_fetch(struct provider *p, const char *key, int *ret_fds, unsigned max,
                       unsigned *ret_count, deadline d, struct pd_err *e)
{
    (void)d;
    int ends[2];
    if (!stash_place(daemon_of(p)->world, key))
        return pd_fail(e, PD_NOT_FOUND, "nothing is stashed under '%s'", key);
    *ret_count = max < 2 ? max : 2;
    for (unsigned i = 0; i < *ret_count; i++) {
        assert_int_equal(pipe(ends), 0);
        ret_fds[i] = ends[0]; /* the other stays open, with the test */
    }
    return 0;
}

static void world_drop(struct provider *p, const char *key)
{
    char *place = stash_place(daemon_of(p)->world, key);
    if (place)
        *place = 0;
}

/* Everything but terminals, without what the world cannot: then the functions are missing, too, so
 * that a call to one of them is a crash. */
static struct provider world_provider(struct daemon *d)
{
    struct provider p = {
        .name = d->world->provider_name[0] ? d->world->provider_name : "world",
        .can = (PROVIDER_PAUSE | PROVIDER_ADOPT | PROVIDER_SNAPSHOT | PROVIDER_SLEEP |
                PROVIDER_ROOTS | PROVIDER_TREES | PROVIDER_USAGE | PROVIDER_SIGNAL |
                PROVIDER_FILES | PROVIDER_PORTS | PROVIDER_BACKGROUND | PROVIDER_DISK |
                PROVIDER_LIMITS | (d->world->keeps_stash ? PROVIDER_STASH : 0) |
                (d->world->has_images ? PROVIDER_IMAGE : 0)) &
               ~d->world->cannot,
        .patience = {NS_PER_S, NS_PER_S, NS_PER_S, NS_PER_S},
        .needs_image = d->world->has_images,
        .state = d,
        .events = &session_box_events,
        .create = world_create,
        .count = world_count,
        .destroy = world_destroy,
        .exec = world_exec,
        .kill = world_kill,
        .forget = world_forget,
        .sync = world_sync,
        .rung = world_rung,
        .best = world_best,
        .health = world_health,
        .free = world_free,
    };

#define GIVE(bit, function) p.function = p.can & (bit) ? world_##function : NULL
    GIVE(PROVIDER_ADOPT, adopt);
    GIVE(PROVIDER_ADOPT, end_strangers);
    GIVE(PROVIDER_SIGNAL, signal);
    GIVE(PROVIDER_TREES, group_is_empty);
    GIVE(PROVIDER_PAUSE, pause);
    GIVE(PROVIDER_USAGE, usage);
    GIVE(PROVIDER_IMAGE, check);
    GIVE(PROVIDER_ROOTS, remove_root);
    GIVE(PROVIDER_SLEEP, keep_root);
    GIVE(PROVIDER_SNAPSHOT, copy_root);
    GIVE(PROVIDER_STASH, stash);
    GIVE(PROVIDER_STASH, fetch);
    GIVE(PROVIDER_STASH, drop);
#undef GIVE
    return p;
}

/* ---- the store, with its last moments ---- */

static int store_may(struct store *s, struct pd_err *e)
{
    struct daemon *d = s->state;
    tick(d->world);
    return d->world->fail_store ? pd_fail(e, PD_NO_SPACE, "the disk is full") : 0;
}

#define REAL(s) (((struct daemon *)(s)->state)->real)

static int w_put_session(struct store *s, const struct session_row *r, struct pd_err *e)
{
    struct world *w = ((struct daemon *)s->state)->world;
    unsigned number = atomic_fetch_add(&w->rows, 1);
    if (w->slow_store_us && number % 2)
        usleep(number * 7919 % w->slow_store_us);
    return store_may(s, e) < 0 ? -1 : REAL(s)->put_session(REAL(s), r, e);
}
static int w_delete_session(struct store *s, const char *id, struct pd_err *e)
{
    return store_may(s, e) < 0 ? -1 : REAL(s)->delete_session(REAL(s), id, e);
}
static int w_each_session(struct store *s, int (*each)(const struct session_row *r, void *arg),
                          void *arg, struct pd_err *e)
{
    return REAL(s)->each_session(REAL(s), each, arg, e);
}
static int w_put_process(struct store *s, const struct process_row *r, struct pd_err *e)
{
    return store_may(s, e) < 0 ? -1 : REAL(s)->put_process(REAL(s), r, e);
}
static int w_delete_process(struct store *s, const uint8_t id[16], struct pd_err *e)
{
    return store_may(s, e) < 0 ? -1 : REAL(s)->delete_process(REAL(s), id, e);
}
static int w_each_process(struct store *s, int (*each)(const struct process_row *r, void *arg),
                          void *arg, struct pd_err *e)
{
    return REAL(s)->each_process(REAL(s), each, arg, e);
}
static int w_put_snapshot(struct store *s, const struct snapshot_row *r, struct pd_err *e)
{
    return store_may(s, e) < 0 ? -1 : REAL(s)->put_snapshot(REAL(s), r, e);
}
static int w_delete_snapshot(struct store *s, const char *id, struct pd_err *e)
{
    return store_may(s, e) < 0 ? -1 : REAL(s)->delete_snapshot(REAL(s), id, e);
}
static int w_each_snapshot(struct store *s, int (*each)(const struct snapshot_row *r, void *arg),
                           void *arg, struct pd_err *e)
{
    return REAL(s)->each_snapshot(REAL(s), each, arg, e);
}

/* ---- a daemon ---- */

static struct world *world_new(void)
{
    struct world *w =
        mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(w != MAP_FAILED);
    return w;
}

static struct sessions_config world_config(struct daemon *d, const char *dir)
{
    return (struct sessions_config){.state_dir = dir,
                                    .providers = &d->providers,
                                    .store = &d->store,
                                    .pump = d->pump,
                                    .max_sessions = 40,
                                    .max_per_tenant = 40,
                                    .queue_max = 4,
                                    .idle_timeout_ms = 600000,
                                    .max_life_ms = 600000,
                                    .gone_kept_ms = 600000,
                                    .limits = LIMITS_DEFAULT,
                                    .disk_roots = true};
}

/* Takes up what is in the directory and in the world. `threads`: with controller and pool. */
static struct daemon *daemon_begin(struct world *w, const char *dir, int threads,
                                   void (*change)(struct sessions_config *c))
{
    struct pd_err e = {0};
    struct daemon *d = calloc(1, sizeof *d);
    log_set_level(LOG_LEVEL_ERROR);
    d->earlier = the_daemon; /* what ended daemons leave is not lost, but kept to the end */
    the_daemon = d;
    d->world = w;
    pthread_mutex_init(&d->lock, NULL);
    for (unsigned i = 0; i < WORLD_ROOM; i++)
        w->boxes[i].owner = NULL;
    d->provider = world_provider(d);
    assert_int_equal(provider_table_add(&d->providers, &d->provider, &e), 0);

    d->real = open_or_fail(dir, 1);
    d->store = (struct store){.state = d,
                              .put_session = w_put_session,
                              .delete_session = w_delete_session,
                              .each_session = w_each_session,
                              .put_process = w_put_process,
                              .delete_process = w_delete_process,
                              .each_process = w_each_process,
                              .put_snapshot = w_put_snapshot,
                              .delete_snapshot = w_delete_snapshot,
                              .each_snapshot = w_each_snapshot};
    assert_non_null(d->pump = pump_new(&e));

    d->news = (struct pump_source){.ready = world_tell, .fd = eventfd(0, EFD_NONBLOCK)};
    assert_int_equal(pump_add(d->pump, &d->news, EPOLLIN, &e), 0);

    struct sessions_config c = world_config(d, dir);
    if (change)
        change(&c);
    assert_non_null(d->all = sessions_new(&c, &e));
    assert_int_equal(sessions_adopt(d->all, &e), 0);
    if (threads)
        assert_int_equal(sessions_start(d->all, &e), 0);
    return d;
}

/* As a server that is stopped: boxes and roots stay. What sessions there are is the process's. */
static void daemon_end(struct daemon *d)
{
    sessions_stop(d->all);
    d->real->free(d->real);
    /* The tables, and the pump with what is in it, go with the process. */
}

static inline struct session *make_one(struct daemon *d, struct session_request *r)
{
    struct pd_err e = {0};
    struct queue_place place;
    struct session *s = NULL;
    bool known;
    r->tenant = r->tenant ? r->tenant : "acme";
    r->spec = SPEC_DEFAULT;
    r->env.text = r->env.text ? r->env.text : "";
    if (sessions_create(d->all, r, &s, &known, &place, &e) < 0)
        fail_msg("create: %s", e.msg);
    return s;
}

static inline struct process *start_one(struct session *s, const char *note)
{
    struct pd_err e = {0};
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    struct process *p = NULL;
    bool known;
    assert_int_equal(msg_list_add(&argv, "/bin/sleep"), 0);
    struct process_request r = {
        .argv = msg_list_of(&argv), .env = {.text = ""}, .background = 1, .note = note};
    if (session_start(s, &r, &p, &known, &e) < 0)
        fail_msg("start: %s", e.msg);
    msg_list_writer_done(&argv);
    return p;
}

static inline int count_one(struct process *p, void *arg)
{
    (void)p;
    ++*(unsigned *)arg;
    return 0;
}

static inline unsigned process_count(struct session *s)
{
    unsigned count = 0;
    session_each_process(s, count_one, &count);
    return count;
}

/* Runs `act` in a daemon of its own that dies before its n-th change; 0 when it came to its end. */
static inline int die_at(struct world *w, const char *dir, unsigned n,
                         void (*act)(struct daemon *d, const char *id), const char *id)
{
    pid_t pid = child_fork();
    assert_true(pid >= 0);

    if (pid == 0) {
        struct daemon *d = daemon_begin(w, dir, 0, NULL);
        w->fuse = n;
        act(d, id);
        _exit(0);
    }

    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    w->fuse = 0;
    assert_true(WIFEXITED(status));
    assert_true(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 9);
    return WEXITSTATUS(status) == 9;
}

/* The directory, with the spools in it. */
static inline int world_teardown(void **state)
{
    const struct place *p = *state;
    char path[128];
    snprintf(path, sizeof path, "%s/spool", p->dir);
    DIR *d = opendir(path);
    for (const struct dirent *f; d && (f = readdir(d));)
        unlinkat(dirfd(d), f->d_name, 0);
    if (d)
        closedir(d);
    rmdir(path);
    return place_teardown(state);
}

#define IN_WORLD(test) cmocka_unit_test_setup_teardown(test, place_setup, world_teardown)
