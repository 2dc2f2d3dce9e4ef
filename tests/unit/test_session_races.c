/* Ends of sandboxes that race with their creation: a DELETE, a loss or a failure at any moment of
 * it. Every sandbox is counted exactly once, none runs after its end was told, no root stays.
 *
 * PADDOCK_NIGHTLY=1 plays more rounds. */
#include "world.h"

#include "base/checks.h"

#define PATIENCE (60 * NS_PER_S)

static const char *dir_of(void **state)
{
    return ((struct place *)*state)->dir;
}

static void in_memory(struct sessions_config *c)
{
    c->disk_roots = false;
}

static void with_pool(struct sessions_config *c)
{
    c->pool_min = 4;
    c->pool_max = 8;
}

static void with_pool_in_memory(struct sessions_config *c)
{
    with_pool(c);
    in_memory(c);
}

static unsigned live(struct daemon *d)
{
    lock_take(&d->all->lock);
    unsigned count = d->all->live;
    lock_release(&d->all->lock);
    return count;
}

static struct session_info info_of(struct session *s)
{
    struct session_info i;
    session_get(s, &i);
    return i;
}

static struct session_request request_of(const char *thread)
{
    return (struct session_request){.tenant = "acme",
                                    .user_id = "u",
                                    .thread_id = thread,
                                    .spec = SPEC_DEFAULT,
                                    .queue_timeout_ms = 10000,
                                    .env = {.text = ""}};
}

/* Looks twice, as the controller does: a box that is not a sandbox's aborts this build. */
static void assert_boxes_match(struct daemon *d, struct world *w)
{
    struct sessions_stats stats;
    for (unsigned i = 0; i < 2; i++) {
        d->all->controllers[0].boxes_due_ns = 0;
        boxes_look(&d->all->controllers[0]);
    }
    sessions_get_stats(d->all, &stats);
    assert_int_equal(stats.box_mismatches, 0);
    assert_int_equal(stats.boxes, box_count(w));
}

/* ---- one creation, held at the provider ---- */

struct creation {
    struct daemon *d;
    pthread_t thread;
    int result;
    struct session *made;
    struct pd_err e;
};

static void *create_main(void *arg)
{
    struct creation *c = arg;
    struct session_request r = request_of("t");
    struct queue_place place;
    bool created;
    c->result = sessions_get_or_create(c->d->all, &r, &c->made, &created, &place, &c->e);
    return NULL;
}

static void wait_for_creation(struct world *w)
{
    deadline limit = deadline_in(PATIENCE);
    while (!__atomic_load_n(&w->creates_running, __ATOMIC_SEQ_CST) && !deadline_passed(limit))
        usleep(1000);
    assert_int_equal(w->creates_running, 1);
}

struct ending {
    struct session *s;
    pthread_t thread;
    int result;
    atomic_int done;
    struct pd_err e;
};

static void *end_main(void *arg)
{
    struct ending *c = arg;
    c->result = session_end(c->s, END_KILLED, "test", &c->e);
    atomic_store(&c->done, 1);
    return NULL;
}

static struct session *find_thread(struct daemon *d)
{
    struct pd_err e = {0};
    struct session *s = sessions_find_thread(d->all, "acme", "u", "t", &e);
    if (!s)
        fail_msg("find: %s", e.msg);
    return s;
}

static void assert_nothing_is_left(struct daemon *d, struct world *w)
{
    struct sessions_stats stats;
    sessions_get_stats(d->all, &stats);
    assert_int_equal(stats.by_state[SESSION_CREATING], 0);
    assert_int_equal(stats.by_state[SESSION_RUNNING], 0);
    assert_int_equal(stats.by_state[SESSION_STOPPING], 0);
    assert_int_equal(live(d), 0);
    assert_int_equal(box_count(w), 0);
    assert_int_equal(root_count(w), 0);
}

/* `fail_create`: how the creation fails, too; 0: it would succeed. */
static void delete_during_creation(void **state, int fail_create)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct creation c = {.d = d};
    w->hold_create = 1;
    assert_int_equal(pthread_create(&c.thread, NULL, create_main, &c), 0);
    wait_for_creation(w);
    struct ending end = {.s = find_thread(d)};
    assert_int_equal(info_of(end.s).state, SESSION_CREATING);

    assert_int_equal(pthread_create(&end.thread, NULL, end_main, &end), 0);
    deadline limit = deadline_in(PATIENCE);
    while (info_of(end.s).state == SESSION_CREATING && !deadline_passed(limit))
        usleep(1000);
    assert_int_not_equal(info_of(end.s).state, SESSION_CREATING);
    w->fail_create = fail_create;
    __atomic_store_n(&w->hold_create, 0, __ATOMIC_SEQ_CST);
    pthread_join(c.thread, NULL);
    pthread_join(end.thread, NULL);

    assert_int_equal(end.result, 0);
    assert_int_equal(c.result, -1); /* it is not given out: its end was told */
    assert_int_equal(info_of(end.s).state, SESSION_GONE);
    assert_int_equal(info_of(end.s).end, END_KILLED);
    assert_nothing_is_left(d, w);
    /* Once more changes nothing. */
    struct pd_err e;
    assert_int_equal(session_end(end.s, END_KILLED, "test", &e), 0);
    assert_nothing_is_left(d, w);
    session_unref(end.s);

    /* Nothing is remembered but that it is gone; another one of that name is made. */
    w->fail_create = 0;
    struct creation again = {.d = d};
    create_main(&again);
    assert_int_equal(again.result, 0);
    assert_int_equal(live(d), 1);
    assert_int_equal(session_end(again.made, END_KILLED, "test", &e), 0);
    session_unref(again.made);
    assert_nothing_is_left(d, w);
    daemon_end(d);
}

static void test_a_delete_during_a_creation_ends_it(void **state)
{
    delete_during_creation(state, 0);
}

static void test_a_delete_during_a_creation_that_fails_counts_once(void **state)
{
    delete_during_creation(state, FAIL_LATE);
}

static void test_a_loss_during_a_creation_ends_it(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, NULL);
    struct creation c = {.d = d};
    w->hold_create = 1;
    assert_int_equal(pthread_create(&c.thread, NULL, create_main, &c), 0);

    wait_for_creation(w);
    struct session *s = find_thread(d);
    struct pd_err why = {0};
    pd_fail(&why, PD_SESSION_LOST, "its init has died");
    session_box_events.lost(s, &why);

    deadline limit = deadline_in(PATIENCE);
    while (info_of(s).state == SESSION_CREATING && !deadline_passed(limit))
        usleep(1000);
    __atomic_store_n(&w->hold_create, 0, __ATOMIC_SEQ_CST);
    pthread_join(c.thread, NULL);

    assert_int_equal(c.result, -1);
    assert_int_equal(info_of(s).state, SESSION_GONE);
    assert_int_equal(info_of(s).end, END_LOST);
    assert_nothing_is_left(d, w);
    session_unref(s);
    daemon_end(d);
}

/* A box too many, or one too few: looking twice aborts a test build, and nothing else does. */
static void test_boxes_are_those_of_the_sandboxes(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct pd_err e;
    assert_boxes_match(d, w);
    assert_int_equal(session_pause(s, &e), 0);
    assert_boxes_match(d, w);
    assert_int_equal(session_sleep(s, &e), 0);
    assert_boxes_match(d, w);
    assert_int_equal(session_resume(s, &e), 0);
    assert_boxes_match(d, w);

    for (int surplus = 0; CHECKS && surplus <= 1; surplus++) {
        pid_t pid = child_fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            w->boxes[surplus].used = surplus;
            assert_boxes_match(d, w);
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        w->boxes[surplus].used = !surplus;
    }
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    assert_boxes_match(d, w);
    session_unref(s);
    daemon_end(d);
}

/* A step that is not in the table is refused, and aborts a test build. */
static void test_a_step_that_is_none_is_refused(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct pd_err e;

    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    pid_t pid = child_fork();
    assert_true(pid >= 0);

    if (pid == 0) {
        lock_take(&s->lock);
        int refused = session_step(s, LIFE_RUNNING) < 0 && s->life == LIFE_GONE;
        _exit(refused ? 0 : 1);
    }

    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (CHECKS)
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    else
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    session_unref(s);
    daemon_end(d);
}

static void test_a_creation_that_fails_counts_once(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);

    for (int how = FAIL_AT_ONCE; how <= FAIL_LATE; how++)
        for (unsigned i = 0; i < 100; i++) {
            struct creation c = {.d = d};
            w->fail_create = how;
            create_main(&c);
            assert_int_equal(c.result, -1);
            assert_int_equal(c.e.code, PD_CAPACITY);
            assert_int_equal(live(d), 0);
        }

    w->fail_create = 0;
    assert_nothing_is_left(d, w);
    struct sessions_stats stats;
    sessions_get_stats(d->all, &stats);
    assert_int_equal(stats.create_failed, 200);
    assert_int_equal(stats.created, 0);
    daemon_end(d);
}

/* ---- many clients, few names ---- */

#define NAMES 4u

struct player {
    struct daemon *d;
    pthread_t thread;
    unsigned rounds, seed, made, ended, refused;
    struct session **dead; /* those whose end was told */
    char wrong[256];
};

static void play_create(struct player *p, const char *name)
{
    struct session_request r = request_of(name);
    struct queue_place place;
    struct session *s;
    struct pd_err e = {0};
    bool created;

    if (sessions_get_or_create(p->d->all, &r, &s, &created, &place, &e) == 0) {
        p->made++;
        session_unref(s);
    } else if (e.code == PD_CONFLICT || e.code == PD_NOT_FOUND) {
        p->refused++; /* it was ended meanwhile */
    } else {
        snprintf(p->wrong, sizeof p->wrong, "create: %s", e.msg);
    }
}

static void play_delete(struct player *p, const char *name)
{
    struct pd_err e = {0};
    struct session *s = sessions_find_thread(p->d->all, "acme", "u", name, &e);
    if (!s)
        return;
    if (session_end(s, END_KILLED, "test", &e) < 0)
        snprintf(p->wrong, sizeof p->wrong, "end: %s", e.msg);
    if (info_of(s).state != SESSION_GONE)
        snprintf(p->wrong, sizeof p->wrong, "%s is not gone after its end", name);
    session_forget_thread(s);
    p->dead[p->ended++] = s;
}

static void *player_main(void *arg)
{
    struct player *p = arg;
    for (unsigned i = 0; i < p->rounds && !p->wrong[0]; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", rand_r(&p->seed) % NAMES);
        if (rand_r(&p->seed) % 2)
            play_create(p, name);
        else
            play_delete(p, name);
    }
    return NULL;
}

static void play(void **state, unsigned clients, void (*change)(struct sessions_config *c))
{
    unsigned rounds = getenv("PADDOCK_NIGHTLY") ? 20000 : 400;
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, change);
    struct player *players = calloc(clients, sizeof *players);
    w->slow_create_us = 50;
    for (unsigned i = 0; i < clients; i++) {
        players[i] = (struct player){.d = d, .rounds = rounds / clients, .seed = i + 1};
        players[i].dead = calloc(players[i].rounds, sizeof(struct session *));
        assert_int_equal(pthread_create(&players[i].thread, NULL, player_main, &players[i]), 0);
    }
    unsigned ended = 0;
    for (unsigned i = 0; i < clients; i++)
        pthread_join(players[i].thread, NULL);
    for (unsigned i = 0; i < clients; i++) {
        if (players[i].wrong[0])
            fail_msg("client %u of %u: %s", i, clients, players[i].wrong);
        for (unsigned k = 0; k < players[i].ended; k++)
            assert_int_equal(info_of(players[i].dead[k]).state, SESSION_GONE);
        ended += players[i].ended;
    }
    assert_true(ended > rounds / 10);

    /* What is left is what is counted, and there is a box for each. */
    struct sessions_stats stats;
    sessions_get_stats(d->all, &stats);
    assert_int_equal(stats.by_state[SESSION_CREATING], 0);
    assert_int_equal(stats.by_state[SESSION_STOPPING], 0);
    assert_int_equal(live(d), stats.by_state[SESSION_RUNNING]);
    assert_true(live(d) <= NAMES);
    sessions_end_all(d->all, "test");
    assert_nothing_is_left(d, w);

    for (unsigned i = 0; i < clients; i++) {
        for (unsigned k = 0; k < players[i].ended; k++)
            session_unref(players[i].dead[k]);
        free(players[i].dead);
    }
    free(players);
    daemon_end(d);
}

static void test_two_clients_cold(void **state)
{
    play(state, 2, NULL);
}

static void test_four_clients_cold_in_memory(void **state)
{
    play(state, 4, in_memory);
}

static void test_eight_clients_cold(void **state)
{
    play(state, 8, NULL);
}

static void test_two_clients_with_a_pool(void **state)
{
    play(state, 2, with_pool);
}

static void test_four_clients_with_a_pool(void **state)
{
    play(state, 4, with_pool);
}

static void test_eight_clients_with_a_pool_in_memory(void **state)
{
    play(state, 8, with_pool_in_memory);
}

/* ---- the pool ---- */

static atomic_int warm_up_hangs;

/* A command that the pool warms up with, and that may take long. */
static int slow_exec(struct box *box, const struct box_command *c, struct pd_err *e)
{
    deadline limit = deadline_in(PATIENCE);
    while (atomic_load(&warm_up_hangs) && !deadline_passed(limit))
        usleep(1000);
    return world_exec(box, c, e);
}

static struct session *await_life(struct daemon *d, enum life life)
{
    deadline limit = deadline_in(PATIENCE);
    struct session *found = NULL;

    while (!found && !deadline_passed(limit)) {
        size_t count;
        lock_take(&d->all->lock);
        struct session **all = sessions_hold_all(d->all, &count);
        lock_release(&d->all->lock);

        for (size_t i = 0; i < count; i++) {
            lock_take(&all[i]->lock);
            bool is = all[i]->life == life && (life != LIFE_WARMING || all[i]->processes);
            lock_release(&all[i]->lock);
            if (is && !found)
                found = session_ref(all[i]);
            session_unref(all[i]);
        }
        free(all);
        usleep(1000);
    }

    assert_non_null(found);
    return found;
}

/* What a sandbox was warmed up with is no command of whoever gets it: nobody sees it, at no time.
 */
static void test_a_warm_up_is_never_seen(void **state)
{
    struct daemon *d = daemon_begin(world_new(), dir_of(state), 0, with_pool);
    struct pd_err e;
    atomic_store(&warm_up_hangs, 1);
    d->provider.exec = slow_exec;
    assert_int_equal(sessions_start(d->all, &e), 0);

    struct session *s = await_life(d, LIFE_WARMING);
    assert_int_equal(process_count(s), 0);
    session_unref(s);

    atomic_store(&warm_up_hangs, 0);
    s = await_life(d, LIFE_READY);
    assert_int_equal(process_count(s), 0);
    session_unref(s);
    daemon_end(d);
}

/* ---- rows ---- */

struct toucher {
    struct session *s;
    atomic_int stop;
    unsigned count;
};

static void *toucher_main(void *arg)
{
    struct toucher *t = arg;
    struct pd_err e;
    while (!atomic_load(&t->stop)) {
        (void)session_extend(t->s, 600000 + t->count % 100, 0, &e);
        t->count++;
    }
    return NULL;
}

struct seen_row {
    const char *id;
    int found, state, asleep;
};

static int see_row(const struct session_row *r, void *arg)
{
    struct seen_row *seen = arg;
    if (!strcmp(r->id, seen->id)) {
        seen->found++;
        seen->state = r->state;
        seen->asleep = r->asleep;
    }
    return 0;
}

static struct seen_row row_of(struct daemon *d, const struct session *s)
{
    struct seen_row seen = {.id = s->info.id};
    struct pd_err e;
    assert_int_equal(d->real->each_session(d->real, see_row, &seen, &e), 0);
    return seen;
}

/* Somebody gives it more time while it falls asleep: should the row say that it runs, the next
 * daemon would take it for lost and delete its files. */
static void test_no_older_row_replaces_a_newer(void **state)
{
    unsigned rounds = getenv("PADDOCK_NIGHTLY") ? 20000 : 1000;
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0};
    struct pd_err e = {0};
    struct toucher t = {.s = make_one(d, &r)};
    pthread_t thread;
    w->slow_store_us = 300;
    assert_int_equal(pthread_create(&thread, NULL, toucher_main, &t), 0);
    for (unsigned i = 0; i < rounds; i++) {
        assert_int_equal(session_sleep(t.s, &e), 0);
        struct seen_row row = row_of(d, t.s);
        if (row.state != SESSION_PAUSED || !row.asleep)
            fail_msg("round %u: it sleeps, and its row says %d %d", i, row.state, row.asleep);
        assert_int_equal(session_resume(t.s, &e), 0);
        row = row_of(d, t.s);
        if (row.state != SESSION_RUNNING || row.asleep)
            fail_msg("round %u: it runs, and its row says %d %d", i, row.state, row.asleep);
    }
    atomic_store(&t.stop, 1);
    pthread_join(thread, NULL);
    assert_true(t.count > rounds / 10);

    /* Nor does one come back that was deleted. */
    assert_int_equal(session_end(t.s, END_KILLED, "test", &e), 0);
    assert_int_equal(row_of(d, t.s).found, 1);
    assert_int_equal(session_unstore(t.s, &e), 0);
    assert_int_equal(session_store(t.s, &e), 0);
    assert_int_equal(row_of(d, t.s).found, 0);
    session_unref(t.s);
    daemon_end(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_a_delete_during_a_creation_ends_it),
        IN_WORLD(test_a_delete_during_a_creation_that_fails_counts_once),
        IN_WORLD(test_a_loss_during_a_creation_ends_it),
        IN_WORLD(test_boxes_are_those_of_the_sandboxes),
        IN_WORLD(test_a_step_that_is_none_is_refused),
        IN_WORLD(test_a_creation_that_fails_counts_once),
        IN_WORLD(test_no_older_row_replaces_a_newer),
        IN_WORLD(test_a_warm_up_is_never_seen),
        IN_WORLD(test_two_clients_cold),
        IN_WORLD(test_four_clients_cold_in_memory),
        IN_WORLD(test_eight_clients_cold),
        IN_WORLD(test_two_clients_with_a_pool),
        IN_WORLD(test_four_clients_with_a_pool),
        IN_WORLD(test_eight_clients_with_a_pool_in_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
