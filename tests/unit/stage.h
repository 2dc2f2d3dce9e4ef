/* stage: the real sessions, provider, pump and store on a keeper and inits that are threads of the
 * test. */
#pragma once

#include "peer.h"
#include "store_place.h"

#include "core/pump.h"
#include "core/session_state.h"
#include "core/sessions.h"
#include "provider/keeper_state.h"
#include "telemetry/log.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/un.h>

struct played_init {
    struct played_init *next;
    pthread_t thread;
    struct wire_id jail;
    int sock;
    int hostile;
    atomic_int flooding, over;
    atomic_int kept; /* stdout of the last command that runs */
    int kept_all[64];
    unsigned kept_count;
};

struct stage {
    struct place *place;
    char socket[100];
    int listener;
    pthread_t keeper;
    atomic_int deaf, silent, hostile, stopping, link;
    atomic_int stillborn;     /* what the keeper makes dies at once */
    atomic_int stashed;       /* how many keys have something now, */
    atomic_uint stashes_seen; /* and how often anything was stashed */
    char stash_keys[64][MSG_KEY_MAX + 1];
    struct played_init *inits;
    struct pump *pump;
    struct provider *provider;
    struct provider_table providers;
    struct store *store;
    struct sessions *all;
};

/* ---- inits ---- */

static void tell(int sock, enum wire_type type, struct wire_id id, const struct buf *b)
{
    struct wire_head head = {.type = (uint16_t)type, .id = id};
    (void)wire_send(sock, &head, b, NULL, 0, deadline_in(PATIENCE));
}

static void tell_exited(int sock, struct wire_id id, int status)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_exited_encode(&b, &(struct msg_exited){.pid = 2, .exited = 1, .status = status});
    tell(sock, WIRE_EXITED, id, &b);
}

static void tell_started(int sock, struct wire_id id, deadline d)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_started_encode(&b, &(struct msg_started){.pid = 2});
    struct wire_head head = {.type = WIRE_STARTED, .id = id};
    (void)wire_send(sock, &head, &b, NULL, 0, d);
}

/* Writes what the second word says: so many bytes. */
static void init_print(int out, const char *number)
{
    char piece[4096];
    memset(piece, 'x', sizeof piece);
    for (size_t left = number ? strtoul(number, NULL, 10) : 0; left;) {
        ssize_t n = write(out, piece, left < sizeof piece ? left : sizeof piece);
        if (n <= 0)
            break;
        left -= (size_t)n;
    }
}

static void init_late(int sock, struct frame *f, const struct msg_list *argv, uint32_t pos,
                      const char *usec)
{
    char first[24], rest[24];
    const char *bytes = msg_list_next(argv, &pos), *status = msg_list_next(argv, &pos);
    unsigned long all = bytes ? strtoul(bytes, NULL, 10) : 0;
    int ends = status ? (int)strtol(status, NULL, 10) : 0;
    snprintf(first, sizeof first, "%lu", all / 2);
    snprintf(rest, sizeof rest, "%lu", all - all / 2);

    init_print(f->fds[1], first);
    usleep((useconds_t)strtoul(usec, NULL, 10));
    init_print(f->fds[1], rest);
    frame_reset(f);
    tell_exited(sock, f->head.id, ends);
}

/* `true` says "ok" and ends; `print N` writes N bytes and ends; `late USEC N STATUS` writes half of
 * N bytes, lives for a while, writes the rest and ends; `nonsense` is answered with a frame that is
 * none; `hold N` writes N bytes, and as every other command it runs until it is killed, and keeps
 * its stdout; `driver` keeps stderr and descriptor 3, too, which are behind that in `kept_all`. */
static void *honest_init(void *arg)
{
    struct played_init *i = arg;
    struct pd_err e;
    struct frame f = FRAME_INIT;

    while (wire_recv(i->sock, &f, DEADLINE_NONE, &e) == 1) {
        struct msg_exec m;
        struct msg_signal s;
        uint32_t pos = 0;

        if (f.head.type == WIRE_EXEC && msg_exec_decode(&f.payload, &m, &e) == 0) {
            const char *program = msg_list_next(&m.argv, &pos);
            if (program && !strcmp(program, "true")) {
                (void)!write(f.fds[1], "ok\n", 3);
                frame_reset(&f);
                tell_exited(i->sock, f.head.id, 0);
                continue;
            }

            const char *number = msg_list_next(&m.argv, &pos);
            if (program && !strcmp(program, "print")) {
                init_print(f.fds[1], number);
                frame_reset(&f);
                tell_exited(i->sock, f.head.id, 0);
                continue;
            }

            if (program && !strcmp(program, "late")) {
                init_late(i->sock, &f, &m.argv, pos, number);
                continue;
            }

            if (program && !strcmp(program, "nonsense")) {
                auto_buf bad = BUF_INIT(16);
                buf_puts(&bad, "bad");
                frame_reset(&f);
                tell(i->sock, WIRE_EXITED, f.head.id, &bad);
                continue;
            }

            int out = frame_take_fd(&f, 1);
            if (program && !strcmp(program, "hold"))
                init_print(out, number);
            if (i->kept_count < COUNT(i->kept_all))
                i->kept_all[i->kept_count++] = out;
            for (unsigned n = 2; program && !strcmp(program, "driver") && n < 4; n++)
                i->kept_all[i->kept_count++] = frame_take_fd(&f, n);
            atomic_store(&i->kept, out);
            tell_started(i->sock, f.head.id, deadline_in(PATIENCE));
        } else if (f.head.type == WIRE_SIGNAL && msg_signal_decode(&f.payload, &s, &e) == 0) {
            tell_exited(i->sock, s.exec, SIGKILL);
        } else if (f.head.type == WIRE_SYNC) {
            struct wire_head end = {.type = WIRE_SYNC_END, .id = f.head.id, .epoch = f.head.epoch};
            (void)wire_send(i->sock, &end, NULL, NULL, 0, deadline_in(PATIENCE));
        }

        frame_reset(&f);
    }

    frame_done(&f);
    return NULL;
}

/* Reads nothing. While `flooding` it tells of commands that nobody knows. It has a low priority, as
 * its share of the processors is not what is tried here. */
static void *hostile_init(void *arg)
{
    struct played_init *i = arg;
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), 19);
    while (!atomic_load(&i->over)) {
        if (!atomic_load(&i->flooding)) {
            usleep(1000);
            continue;
        }
        tell_started(i->sock, wire_id_new(), deadline_in(10 * NS_PER_MS));
    }
    return NULL;
}

/* ---- the keeper ---- */

static void keeper_create(struct stage *g, int link, struct frame *f)
{
    struct played_init *i = calloc(1, sizeof *i);
    i->jail = f->head.id;
    i->sock = frame_take_fd(f, 0);
    i->hostile = atomic_exchange(&g->hostile, 0);
    atomic_init(&i->kept, -1);
    i->next = g->inits;
    g->inits = i;
    assert_int_equal(pthread_create(&i->thread, NULL, i->hostile ? hostile_init : honest_init, i),
                     0);
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int fds[2] = {null, null};
    msg_created_encode(&b, &(struct msg_created){.rung = RUNG_FULL, .init_pid = 2, .name = "j1"});
    struct wire_head head = {.type = WIRE_CREATED, .id = f->head.id};
    (void)wire_send(link, &head, &b, fds, 2, deadline_in(PATIENCE));
    if (!atomic_load(&g->stillborn))
        return;

    auto_buf gone = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_gone_encode(&gone, &(struct msg_gone){.jail = i->jail, .how = GONE_DIED, .why = ""});
    tell(link, WIRE_GONE, wire_id_new(), &gone);
}

/* Remembers the keys, as long as there is room. */
static void keeper_stash(struct stage *g, const struct frame *f)
{
    struct msg_key m;
    struct pd_err e;
    assert_int_equal(msg_key_decode(&f->payload, &m, &e), 0);

    const char *wanted = f->head.type == WIRE_STASH ? "" : m.key;
    for (unsigned n = 0; n < COUNT(g->stash_keys); n++)
        if (!strcmp(g->stash_keys[n], wanted)) {
            snprintf(g->stash_keys[n], sizeof g->stash_keys[n], "%s", *wanted ? "" : m.key);
            atomic_fetch_add(&g->stashed, *wanted ? -1 : 1);
            break;
        }
    if (!*wanted)
        atomic_fetch_add(&g->stashes_seen, 1);
}

static void init_end(struct played_init *i)
{
    if (atomic_exchange(&i->over, 1))
        return;
    shutdown(i->sock, SHUT_RDWR);
    pthread_join(i->thread, NULL);
    fd_done(&i->sock);
    for (unsigned n = 0; n < i->kept_count; n++)
        close(i->kept_all[n]);
}

static void keeper_destroy(struct stage *g, int link, const struct frame *f)
{
    struct msg_destroy m;
    struct pd_err e;
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);
    assert_int_equal(msg_destroy_decode(&f->payload, &m, &e), 0);
    for (struct played_init *i = g->inits; i; i = i->next)
        if (wire_id_equal(i->jail, m.jail))
            init_end(i);
    msg_gone_encode(&b, &(struct msg_gone){.jail = m.jail, .how = GONE_DESTROYED, .why = ""});
    tell(link, WIRE_GONE, f->head.id, &b);
}

static void keeper_answer(struct stage *g, int link, struct frame *f)
{
    auto_buf b = BUF_INIT(WIRE_PAYLOAD_MAX);

    if (f->head.type == WIRE_HELLO) {
        msg_welcome_encode(
            &b, &(struct msg_welcome){.rung = RUNG_FULL, .instance = "i", .missing = ""});
        tell(link, WIRE_WELCOME, f->head.id, &b);
    } else if (f->head.type == WIRE_LIST) {
        tell(link, WIRE_LIST_END, f->head.id, NULL);
    } else if (f->head.type == WIRE_CREATE) {
        keeper_create(g, link, f);
    } else if (f->head.type == WIRE_DESTROY) {
        keeper_destroy(g, link, f);
    } else if (f->head.type == WIRE_STATS) {
        msg_usage_encode(&b, &(struct msg_usage){.pids = 1});
        tell(link, WIRE_USAGE, f->head.id, &b);
    } else if (f->head.type == WIRE_STASH || f->head.type == WIRE_DROP) {
        keeper_stash(g, f);
    }
}

static void *keeper_main(void *arg)
{
    struct stage *g = arg;
    struct pd_err e;

    while (!atomic_load(&g->stopping)) {
        auto_fd link = accept4(g->listener, NULL, NULL, SOCK_CLOEXEC);
        if (link < 0)
            break;
        atomic_store(&g->link, link);

        struct frame f = FRAME_INIT;
        int alive = 1;
        while (alive) {
            frame_reset(&f);
            while ((atomic_load(&g->deaf) || atomic_load(&g->silent)) && !atomic_load(&g->stopping))
                usleep(1000);
            alive = wire_recv(link, &f, DEADLINE_NONE, &e) == 1;
            if (alive)
                keeper_answer(g, link, &f);
        }
        atomic_store(&g->link, -1);
        frame_done(&f);
    }

    return NULL;
}

/* ---- the stage ---- */

/* `change` may set what the test needs otherwise. */
static inline int stage_begin(void **state, void (*change)(struct sessions_config *c))
{
    struct pd_err e = {0};
    log_set_level(LOG_LEVEL_ERROR + 1);
    if (place_setup(state) < 0)
        return -1;
    struct stage *g = calloc(1, sizeof *g);
    g->place = *state;
    *state = g;
    snprintf(g->socket, sizeof g->socket, "%s/keeper", g->place->dir);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", g->socket);
    atomic_init(&g->link, -1);
    g->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(g->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(g->listener, 4), 0);
    assert_int_equal(pthread_create(&g->keeper, NULL, keeper_main, g), 0);

    assert_non_null(g->pump = pump_new(&e));
    g->provider = provider_keeper_new("jail", g->socket, g->pump, &session_box_events, &e);
    if (!g->provider)
        fail_msg("provider: %s", e.msg);
    assert_int_equal(provider_table_add(&g->providers, g->provider, &e), 0);
    g->store = open_or_fail(g->place->dir, 1);
    struct sessions_config c = {.state_dir = g->place->dir,
                                .providers = &g->providers,
                                .store = g->store,
                                .pump = g->pump,
                                .max_sessions = 40,
                                .max_per_tenant = 40,
                                .queue_max = 4,
                                .idle_timeout_ms = 600000,
                                .max_life_ms = 600000,
                                .gone_kept_ms = 600000,
                                .limits = LIMITS_DEFAULT};
    if (change)
        change(&c);
    assert_non_null(g->all = sessions_new(&c, &e));
    assert_int_equal(sessions_adopt(g->all, &e), 0);
    assert_int_equal(sessions_start(g->all, &e), 0);
    return 0;
}

static inline int stage_teardown(void **state)
{
    struct stage *g = *state;
    char path[128];
    atomic_store(&g->deaf, 0);
    atomic_store(&g->silent, 0);
    sessions_end_all(g->all, "test");
    sessions_stop(g->all);
    sessions_free(g->all);

    atomic_store(&g->stopping, 1);
    shutdown(g->listener, SHUT_RDWR);
    provider_table_done(&g->providers);

    pthread_join(g->keeper, NULL);
    pump_free(g->pump);
    g->store->free(g->store);
    fd_done(&g->listener);

    while (g->inits) {
        struct played_init *i = g->inits;
        g->inits = i->next;
        init_end(i);
        free(i);
    }
    unlink(g->socket);

    snprintf(path, sizeof path, "%s/spool", g->place->dir);
    rmdir(path);
    *state = g->place;
    free(g);
    return place_teardown(state);
}

static inline struct session *session_make(struct stage *g, const char *tenant, int hostile)
{
    struct pd_err e = {0};
    struct session_request r = {.tenant = tenant, .spec = SPEC_DEFAULT, .env = {.text = ""}};
    struct queue_place place;
    struct session *s = NULL;
    bool known;
    atomic_store(&g->hostile, hostile);
    if (sessions_create(g->all, &r, &s, &known, &place, &e) < 0)
        fail_msg("create: %s", e.msg);
    return s;
}

static inline struct process *start_with(struct session *s, const char *program, const char *word,
                                         int back_pressure)
{
    struct pd_err e = {0};
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    struct process *p = NULL;
    bool known;

    assert_int_equal(msg_list_add(&argv, program), 0);
    if (word)
        assert_int_equal(msg_list_add(&argv, word), 0);

    struct process_request r = {
        .argv = msg_list_of(&argv), .env = {.text = ""}, .back_pressure = back_pressure};
    if (session_start(s, &r, &p, &known, &e) < 0)
        fail_msg("start: %s", e.msg);
    msg_list_writer_done(&argv);
    return p;
}

/* Waits for the end, and returns how long it took from `began`. */
static inline uint64_t await_end(struct process *p, uint64_t began)
{
    struct pd_err e = {0};
    struct watch w;
    assert_int_equal(process_watch(p, &w, &e), 0);
    int r = process_wait(p, &w, -1, deadline_in(PATIENCE), &e);
    uint64_t took = clock_now() - began;
    process_unwatch(p, &w);
    if (r != 0)
        fail_msg("the command: %s", e.msg);
    return took;
}

static inline const struct keeper_box *jail_of(const struct session *s)
{
    return (const struct keeper_box *)s->box;
}

/* Until the recorder has nothing to do: it frees the numbers of commands that have ended. */
static inline void await_recorder(struct stage *g)
{
    deadline d = deadline_in(PATIENCE);
    for (bool busy = true; busy && !deadline_passed(d);) {
        lock_take(&g->all->task_lock);
        busy = g->all->task_first != NULL;
        lock_release(&g->all->task_lock);
        if (busy)
            usleep(1000);
    }
}

static inline struct played_init *init_of(struct stage *g, const struct session *s)
{
    for (struct played_init *i = g->inits; i; i = i->next)
        if (wire_id_equal(i->jail, jail_of(s)->jail.id))
            return i;
    fail_msg("the session has no init");
    return NULL;
}
