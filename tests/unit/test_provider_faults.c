/* A provider whose broker fails in every way that it can: late, too many requests, an error of its
 * own, half an answer, an answer after the time-out, death before and after; sweeps that fail, too.
 * Provider and keeper are the real ones. Afterwards the provider's owner, the keeper and the engine
 * agree on which boxes there are: none is left behind, and none was made twice.
 *
 * A box is a process that the broker forks, and the engine is a table of them in shared memory.
 * Which fault a creation meets is said in its limits, by the client's seed, so that a run can be
 * repeated. PADDOCK_NIGHTLY=1 plays 10,000 rounds; PADDOCK_FAULT_ROUNDS says how many. */
#include "keeper_peer.h"

#include "core/provider.h"
#include "core/pump.h"
#include "jail/keeper_kind.h"
#include "provider/keeper.h"
#include "telemetry/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define SLOTS   512u
#define THREADS 4u
#define HELD    4u /* boxes that a thread has at a time */
#define BATCHES 10u

enum fault {
    GOOD,
    SLOW,
    TOO_MANY,      /* 429 */
    BROKEN,        /* 500, and nothing was made */
    MADE_BROKEN,   /* 500, and it was made */
    HALF_PAYLOAD,  /* it was made, and the answer is cut */
    HALF_FDS,      /* the answer lacks descriptors */
    NONSENSE,      /* the answer is of another type */
    AFTER_TIMEOUT, /* it is made when the client has given up */
    DIES_BEFORE,
    DIES_AFTER,
    NO_FACTS,    /* init never says where it is */
    WRONG_FACTS, /* its first words are others */
    HALF_FACTS,
    INIT_DIES, /* before its facts */
    INIT_DIES_LATER,
    FAULTS
};
static const char *const fault_names[FAULTS] = {
    "good",        "slow",       "too_many",  "broken",         "made_broken", "half_payload",
    "half_fds",    "nonsense",   "after",     "dies_before",    "dies_after",  "no_facts",
    "wrong_facts", "half_facts", "init_dies", "init_dies_later"};

enum slot_state { SLOT_FREE, SLOT_TAKEN, SLOT_MADE };

static struct engine {
    struct slot {
        atomic_int state;
        atomic_int pid;
        char name[MSG_NAME_MAX + 1];
    } slots[SLOTS];
    atomic_uint builds, doubles, sweeps, sweeps_failed, full;
} * engine;

static unsigned engine_count(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < SLOTS; i++)
        n += atomic_load(&engine->slots[i].state) != SLOT_FREE;
    return n;
}

/* ---- the broker ---- */

static struct slot *slot_find(const char *name)
{
    for (unsigned i = 0; i < SLOTS; i++)
        if (atomic_load(&engine->slots[i].state) == SLOT_MADE &&
            !strcmp(engine->slots[i].name, name))
            return &engine->slots[i];
    return NULL;
}

static struct slot *slot_take(const char *name)
{
    if (slot_find(name))
        atomic_fetch_add(&engine->doubles, 1);
    for (unsigned i = 0; i < SLOTS; i++) {
        int expected = SLOT_FREE;
        if (!atomic_compare_exchange_strong(&engine->slots[i].state, &expected, SLOT_TAKEN))
            continue;
        snprintf(engine->slots[i].name, sizeof engine->slots[i].name, "%s", name);
        return &engine->slots[i];
    }
    atomic_fetch_add(&engine->full, 1);
    _exit(1);
}

static void tell_facts(int control, enum fault fault)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct wire_head head = {.type = fault == WRONG_FACTS ? WIRE_DONE : WIRE_FACTS};
    msg_facts_encode(&out, &(struct msg_facts){.shell = "",
                                               .home = "/home/user",
                                               .workspace = "/workspace",
                                               .machine = "x86_64",
                                               .missing = "",
                                               .environ = {.text = ""}});
    if (fault == HALF_FACTS)
        out.len /= 2;
    (void)wire_send(control, &head, &out, NULL, 0, DEADLINE_NONE);
}

/* Init: lives until its owner goes away, or somebody kills it. */
static _Noreturn void box_main(int control, enum fault fault)
{
    char ignored[256];

    alarm(600);
    if (control != 3)
        dup2(control, 3);
    syscall(SYS_close_range, 4u, ~0u, 0);
    if (fault == INIT_DIES)
        _exit(1);
    if (fault != NO_FACTS)
        tell_facts(3, fault);
    if (fault == INIT_DIES_LATER) {
        usleep(500);
        _exit(1);
    }
    while (read(3, ignored, sizeof ignored) > 0)
        ;
    _exit(0);
}

static pid_t box_make(const char *name, int control, enum fault fault)
{
    struct slot *s = slot_take(name);
    pid_t pid = fork();
    if (pid == 0)
        box_main(control, fault);

    atomic_store(&s->pid, pid);
    atomic_store(&s->state, SLOT_MADE);
    return pid;
}

static void fail_request(int sock, struct wire_id id, enum pd_code code)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct wire_head head = {.type = WIRE_ERROR, .id = id};
    struct pd_err e;

    pd_fail(&e, code, "made to fail");
    msg_error_put(&out, &e);
    (void)wire_send(sock, &head, &out, NULL, 0, DEADLINE_NONE);
}

static void answer_built(int sock, struct wire_id id, pid_t pid, enum fault fault)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    auto_fd process = (int)syscall(SYS_pidfd_open, pid, 0);
    struct wire_head head = {.type = fault == NONSENSE ? WIRE_WELCOME : WIRE_BUILT, .id = id};
    int fds[4] = {null, null, process >= 0 ? process : null, null};

    msg_built_encode(&out, &(struct msg_built){.rung = RUNG_BASIC, .init_pid = pid});
    if (fault == HALF_PAYLOAD)
        out.len /= 2;
    (void)wire_send(sock, &head, &out, fds, fault == HALF_FDS ? 1 : 4, DEADLINE_NONE);
}

static void broker_build(int sock, struct frame *f)
{
    struct msg_build m;
    struct pd_err e;
    if (msg_build_decode(&f->payload, &m, &e) < 0)
        _exit(1);
    auto_fd control = frame_take_fd(f, 0);
    enum fault fault = (enum fault)(m.spec.limits.files % FAULTS);

    atomic_fetch_add(&engine->builds, 1);
    if (fault == DIES_BEFORE)
        _exit(1);
    if (fault == TOO_MANY || fault == BROKEN) {
        fail_request(sock, f->head.id, fault == TOO_MANY ? PD_RATE : PD_INTERNAL);
        return;
    }
    if (fault == SLOW || fault == AFTER_TIMEOUT)
        usleep(fault == SLOW ? 3000 : 15000);

    pid_t pid = box_make(m.name, control, fault);
    if (fault == DIES_AFTER)
        _exit(1);
    if (fault == MADE_BROKEN)
        fail_request(sock, f->head.id, PD_INTERNAL);
    else
        answer_built(sock, f->head.id, pid, fault);
}

/* Every 16th fails, before or after it has swept, or the broker dies over it. */
static void broker_sweep(int sock, struct frame *f)
{
    struct msg_sweep m;
    struct pd_err e;
    if (msg_sweep_decode(&f->payload, &m, &e) < 0)
        _exit(1);

    unsigned nth = atomic_fetch_add(&engine->sweeps, 1);
    bool fails = nth % 16 == 15;
    if (fails)
        atomic_fetch_add(&engine->sweeps_failed, 1);
    if (fails && nth / 16 % 4 == 0) {
        fail_request(sock, f->head.id, PD_BAD_GATEWAY);
        return;
    }
    if (fails && nth / 16 % 16 == 1)
        _exit(1);

    struct slot *s = slot_find(m.name);
    if (s) {
        (void)kill(atomic_load(&s->pid), SIGKILL);
        if (f->head.type == WIRE_SWEEP)
            atomic_store(&s->state, SLOT_FREE);
    }
    if (fails) {
        fail_request(sock, f->head.id, PD_TIMEOUT);
        return;
    }
    struct wire_head head = {.type = WIRE_DONE, .id = f->head.id};
    (void)wire_send(sock, &head, NULL, NULL, 0, DEADLINE_NONE);
}

static void broker_main(const struct builder_config *c, int sock)
{
    struct frame f = FRAME_INIT;
    struct pd_err e;

    (void)c;
    (void)signal(SIGCHLD, SIG_IGN);
    while (wire_recv(sock, &f, DEADLINE_NONE, &e) > 0) {
        if (f.head.type == WIRE_BUILD)
            broker_build(sock, &f);
        else
            broker_sweep(sock, &f);
        frame_reset(&f);
    }
    _exit(0);
}

static const struct keeper_kind faulty = {
    .name = "docker", .worker = broker_main, .is_foreign = true, .rung = RUNG_BASIC};

/* ---- the owner of the boxes ---- */

struct owned {
    struct box *box;
    atomic_uint lost;
    bool may_be_lost;
};

static void nothing_started(void *owner, struct wire_id command, int pid)
{
    (void)owner, (void)command, (void)pid;
}

static void nothing_exited(void *owner, struct wire_id command, const struct msg_exited *end)
{
    (void)owner, (void)command, (void)end;
}

static void nothing_refused(void *owner, struct wire_id command, const struct pd_err *why)
{
    (void)owner, (void)command, (void)why;
}

static void note_lost(void *owner, const struct pd_err *why)
{
    (void)why;
    atomic_fetch_add(&((struct owned *)owner)->lost, 1);
}

static void nothing_synced(void *owner)
{
    (void)owner;
}

static const struct box_events events = {.started = nothing_started,
                                         .exited = nothing_exited,
                                         .refused = nothing_refused,
                                         .lost = note_lost,
                                         .synced = nothing_synced};

static struct provider *provider;
static atomic_uint met[FAULTS], made[FAULTS], refused[FAULTS];
static atomic_uint wrong; /* what must not be, counted: a thread cannot fail the test */

struct client {
    pthread_t thread;
    uint64_t seed;
    unsigned rounds;
    struct owned held[HELD];
};

static uint64_t draw(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

/* Half of them are good. Deaths cost a second each, so they are rare. */
static enum fault draw_fault(uint64_t *seed)
{
    uint64_t n = draw(seed) % 200;
    if (n < 100)
        return GOOD;
    enum fault fault = (enum fault)(SLOW + draw(seed) % (FAULTS - 1));
    bool dies = fault == DIES_BEFORE || fault == DIES_AFTER;
    return dies && n >= 120 ? BROKEN : fault;
}

static void give_back(struct owned *o)
{
    struct pd_err e;
    if (!o->box)
        return;

    (void)provider->destroy(o->box, deadline_in(PATIENCE), &e);
    o->box = NULL;
    if (atomic_load(&o->lost) > o->may_be_lost)
        atomic_fetch_add(&wrong, 1);
}

static void play_round(struct client *c)
{
    enum fault fault = draw_fault(&c->seed);
    bool gives_up = fault == AFTER_TIMEOUT || fault == NO_FACTS;
    struct owned *o = &c->held[draw(&c->seed) % HELD];
    struct spec spec = SPEC_DEFAULT;
    struct pd_err e = {0};

    give_back(o);
    atomic_store(&o->lost, 0);
    o->may_be_lost = fault == INIT_DIES_LATER;
    spec.limits.files = 10000u * FAULTS + fault;
    uint64_t patience = gives_up ? 5 * NS_PER_MS : PATIENCE;
    int r = provider->create(provider, wire_id_new(), &spec, o, &o->box, deadline_in(patience), &e);

    atomic_fetch_add(&met[fault], 1);
    atomic_fetch_add(r == 0 ? &made[fault] : &refused[fault], 1);
    if (r < 0)
        o->box = NULL;
    if (r < 0 && (e.msg[0] == 0 || e.code == PD_LOST)) /* told, and not as a loss */
        atomic_fetch_add(&wrong, 1);
}

static void *play(void *arg)
{
    struct client *c = arg;
    for (unsigned i = 0; i < c->rounds; i++)
        play_round(c);
    return NULL;
}

/* ---- the test ---- */

static unsigned live_count(const struct client *clients)
{
    unsigned n = 0;
    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned k = 0; k < HELD; k++)
            n += clients[i].held[k].box && !atomic_load(&clients[i].held[k].lost);
    return n;
}

static unsigned keeper_count(void)
{
    struct pd_err e = {0};
    unsigned n = 0;
    if (provider->count(provider, &n, deadline_in(PATIENCE), &e) < 0)
        fail_msg("%s", e.msg);
    return n;
}

/* Sweeps are tried again after a second: the three agree when that is done. */
static void expect_agreement(const struct client *clients, unsigned batch)
{
    deadline d = deadline_in(PATIENCE);
    unsigned live, keeper, there;

    do {
        usleep(5000);
        live = live_count(clients);
        keeper = keeper_count();
        there = engine_count();
    } while ((live != keeper || keeper != there) && !deadline_passed(d));

    if (live != keeper || keeper != there)
        fail_msg("batch %u: %u live, %u at the keeper, %u at the engine", batch, live, keeper,
                 there);
}

static unsigned rounds_wanted(void)
{
    const char *given = getenv("PADDOCK_FAULT_ROUNDS");
    return given ? (unsigned)strtoul(given, NULL, 10) : getenv("PADDOCK_NIGHTLY") ? 10000 : 1000;
}

static void test_no_orphan_and_no_double(void **state)
{
    (void)state;
    need_root();
    struct keeper_run k;
    struct pd_err e = {0};
    static struct client clients[THREADS];
    unsigned rounds = rounds_wanted(), batches = rounds / 1000 > BATCHES ? rounds / 1000 : BATCHES;

    log_set_level(LOG_LEVEL_ERROR + 1);
    engine = mmap(NULL, sizeof *engine, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(engine, MAP_FAILED);
    keeper_begin_kind(&k, &faulty, THREADS, 0, 0);
    close(client_open(&k));
    struct pump *pump = pump_new(&e);
    provider = provider_keeper_new("docker", k.path, pump, &events, &e);
    if (!provider)
        fail_msg("%s", e.msg);
    int files = fds_of(0), keeper_files = fds_of(k.pid);

    for (unsigned i = 0; i < THREADS; i++)
        clients[i].seed = 1000 + i;
    for (unsigned batch = 0; batch < batches; batch++) {
        for (unsigned i = 0; i < THREADS; i++) {
            clients[i].rounds = rounds / batches / THREADS;
            assert_int_equal(pthread_create(&clients[i].thread, NULL, play, &clients[i]), 0);
        }
        for (unsigned i = 0; i < THREADS; i++)
            pthread_join(clients[i].thread, NULL);
        expect_agreement(clients, batch);
    }

    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned n = 0; n < HELD; n++)
            give_back(&clients[i].held[n]);
    expect_agreement(clients, batches);
    assert_int_equal(engine_count(), 0);
    assert_int_equal(atomic_load(&engine->doubles), 0);
    assert_int_equal(atomic_load(&engine->full), 0);
    assert_int_equal(atomic_load(&wrong), 0);
    assert_int_equal(fds_settle(0, files), files);
    assert_int_equal(fds_settle(k.pid, keeper_files), keeper_files);

    print_message("# builds %u, sweeps %u of which %u failed\n", atomic_load(&engine->builds),
                  atomic_load(&engine->sweeps), atomic_load(&engine->sweeps_failed));
    for (unsigned i = 0; i < FAULTS; i++) {
        print_message("# %s: %u, %u made, %u refused\n", fault_names[i], atomic_load(&met[i]),
                      atomic_load(&made[i]), atomic_load(&refused[i]));
        assert_true(atomic_load(&met[i]) > 0);
    }
    assert_true(atomic_load(&made[GOOD]) > atomic_load(&met[GOOD]) / 2);
    for (unsigned i = 0; i < FAULTS; i++)
        if (i != GOOD && i != SLOW && i != AFTER_TIMEOUT && i != INIT_DIES_LATER)
            assert_int_equal(atomic_load(&made[i]), 0);

    provider->free(provider);
    pump_free(pump);
    keeper_end(&k);
    munmap(engine, sizeof *engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_orphan_and_no_double),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
