/* Sessions that stand still: with memory, without, and at the end of their life; also over the
 * death of the daemon at every single step. */
#include "world.h"

static const char *dir_of(void **state)
{
    return ((struct place *)*state)->dir;
}

static struct session *find(struct daemon *d, const char *id)
{
    struct pd_err e = {0};
    struct session *s = sessions_find_any(d->all, id, &e);
    if (!s)
        fail_msg("find %s: %s", id, e.msg);
    return s;
}

static struct session_info info_of(struct session *s)
{
    struct session_info i;
    session_get(s, &i);
    return i;
}

static void test_a_sleeping_session_has_files_and_nothing_else(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {.note = "n"};
    struct session *s = make_one(d, &r);
    struct process *p = start_one(s, "p");
    assert_int_equal(box_count(w), 1);
    w->roots[0].content = 42;
    assert_int_equal(session_sleep(s, &e), 0);
    assert_int_equal(box_count(w), 0);
    assert_int_equal(root_count(w), 1);
    struct session_info i = info_of(s);
    assert_int_equal(i.state, SESSION_PAUSED);
    assert_int_equal(i.asleep, 1);
    assert_int_equal(i.processes, 0);
    assert_int_equal(process_count(s), 0);
    assert_int_equal(count_processes(d->real).count, 0);
    struct process_info pi;
    process_get(p, &pi, NULL);
    assert_int_equal(pi.running, 0);
    assert_int_equal(pi.stopped_by, STOP_SANDBOX);
    process_unref(p);
    /* Nothing can be started, and nothing says that it was lost. */
    struct process_request pr = {.command = "true", .env = {.text = ""}};
    bool known;
    assert_int_equal(session_start(s, &pr, &p, &known, &e), -1);
    assert_int_equal(e.code, PD_PAUSED);
    uint64_t a;
    assert_int_equal(session_usage(s, &a, &a, &a, &a, &e), -1);
    assert_int_equal(e.code, PD_PAUSED);
    /* Again is fine, and so is pausing it. */
    assert_int_equal(session_sleep(s, &e), 0);
    assert_int_equal(session_pause(s, &e), 0);
    assert_int_equal(info_of(s).asleep, 1);

    assert_int_equal(session_resume(s, &e), 0);
    i = info_of(s);
    assert_int_equal(i.state, SESSION_RUNNING);
    assert_int_equal(i.asleep, 0);
    assert_int_equal(box_count(w), 1);
    assert_int_equal(root_count(w), 1);
    assert_int_equal(w->roots[0].content, 42);
    p = start_one(s, NULL);
    assert_int_equal(info_of(s).processes, 1);
    process_unref(p);
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    assert_int_equal(root_count(w), 0);
    session_unref(s);
    daemon_end(d);
}

static void test_a_frozen_one_may_fall_asleep_and_be_deleted(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    assert_int_equal(session_pause(s, &e), 0);
    assert_int_equal(w->boxes[0].paused, 1);
    assert_int_equal(session_sleep(s, &e), 0);
    assert_int_equal(box_count(w), 0);

    struct sessions_stats stats;
    sessions_get_stats(d->all, &stats);
    assert_int_equal(stats.by_state[SESSION_PAUSED], 1);
    assert_int_equal(d->all->live, 1); /* it counts as a paused one does */
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    assert_int_equal(root_count(w), 0);
    assert_int_equal(info_of(s).asleep, 0);
    assert_int_equal(d->all->live, 0);

    session_unref(s);
    daemon_end(d);
}

static void test_a_sleeper_without_its_files_is_not_woken(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    assert_int_equal(session_sleep(s, &e), 0);

    char name[sizeof w->roots[0].name];
    memcpy(name, w->roots[0].name, sizeof name);
    w->roots[0].name[0] = 0;
    assert_int_equal(session_resume(s, &e), -1);
    assert_int_equal(e.code, PD_SESSION_LOST);
    assert_non_null(strstr(e.msg, "files"));
    assert_int_equal(info_of(s).asleep, 1);
    assert_int_equal(box_count(w), 0);
    assert_int_equal(root_count(w), 0);

    /* They are found again, for example when a disk is mounted. */
    memcpy(w->roots[0].name, name, sizeof name);
    assert_int_equal(session_resume(s, &e), 0);
    assert_int_equal(box_count(w), 1);
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    session_unref(s);
    daemon_end(d);
}

static void in_memory(struct sessions_config *c)
{
    c->disk_roots = false;
}

static void test_files_in_memory_do_not_sleep(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, in_memory);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    assert_int_equal(session_sleep(s, &e), -1);
    assert_int_equal(e.code, PD_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "memory"));
    assert_int_equal(info_of(s).state, SESSION_RUNNING);
    assert_int_equal(box_count(w), 1);

    session_unref(s);
    daemon_end(d);
}

static void test_what_cannot_be_written_down_or_made_changes_nothing(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct process *p = start_one(s, NULL);

    w->fail_store = 1;
    assert_int_equal(session_sleep(s, &e), -1);
    assert_int_equal(info_of(s).state, SESSION_RUNNING);
    assert_int_equal(info_of(s).processes, 1);
    assert_int_equal(box_count(w), 1);
    w->fail_store = 0;
    assert_int_equal(session_sleep(s, &e), 0);

    /* It sleeps on, with its files, whatever goes wrong when it is woken. */
    w->fail_create = 1;
    assert_int_equal(session_resume(s, &e), -1);
    assert_int_equal(e.code, PD_CAPACITY);
    assert_int_equal(info_of(s).asleep, 1);

    w->fail_create = 0;
    w->fail_store = 1;
    assert_int_equal(session_resume(s, &e), -1);
    assert_int_equal(info_of(s).asleep, 1);
    assert_int_equal(info_of(s).state, SESSION_PAUSED);
    assert_int_equal(box_count(w), 0);

    w->fail_store = 0;
    assert_int_equal(root_count(w), 1);
    assert_int_equal(session_resume(s, &e), 0);

    process_unref(p);
    session_unref(s);
    daemon_end(d);
}

/* ---- at the death of the daemon ---- */

static void act_sleep(struct daemon *d, const char *id)
{
    struct pd_err e;
    struct session *s = find(d, id);
    process_unref(start_one(s, "x"));
    (void)session_sleep(s, &e);
}

static void act_resume(struct daemon *d, const char *id)
{
    struct pd_err e;
    (void)session_resume(find(d, id), &e);
}

static void act_end(struct daemon *d, const char *id)
{
    struct pd_err e;
    (void)session_end(find(d, id), END_KILLED, "test", &e);
}

/* One session in a world of its own: made, and asleep if told. Its id. */
static void begin(struct world *w, const char *dir, int asleep, char id[SESSION_ID_LEN + 1])
{
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir, 0, NULL);
    struct session_request r = {.note = "kept"};
    struct session *s = make_one(d, &r);
    memcpy(id, s->info.id, SESSION_ID_LEN + 1);
    w->roots[0].content = 42;
    if (asleep)
        assert_int_equal(session_sleep(s, &e), 0);
    session_unref(s);
    daemon_end(d);
}

struct rows_of {
    const char *session;
    unsigned count;
};

static int count_row(const struct process_row *r, void *arg)
{
    struct rows_of *rows = arg;
    rows->count += !strcmp(r->session, rows->session);
    return 0;
}

/* Whatever the moment: the session is there, its files are, and it can be used. */
static void check(struct world *w, const char *dir, const char *id)
{
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir, 0, NULL);
    struct session *s = find(d, id);
    struct session_info i = info_of(s);
    assert_true(i.state == SESSION_RUNNING || i.state == SESSION_PAUSED);
    assert_int_equal(s->lost, 0);
    assert_int_equal(root_count(w), 1);
    assert_int_equal(w->roots[0].content, 42);
    assert_int_equal(box_count(w), i.asleep ? 0 : 1);

    struct rows_of rows = {.session = id};
    assert_int_equal(d->real->each_process(d->real, count_row, &rows, &e), 0);
    if (i.asleep)
        assert_int_equal(rows.count, 0);

    char *note = session_note(s);
    assert_string_equal(note, "kept");
    free(note);
    if (session_resume(s, &e) < 0)
        fail_msg("resume: %s", e.msg);

    process_unref(start_one(s, NULL));
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    assert_int_equal(root_count(w), 0);
    assert_int_equal(box_count(w), 0);
    session_unref(s);
    daemon_end(d);
}

static void test_death_at_any_step_of_falling_asleep_loses_nothing(void **state)
{
    unsigned n = 1;
    for (int died = 1; died; n++) {
        struct world *w = world_new();
        char id[SESSION_ID_LEN + 1];
        begin(w, dir_of(state), 0, id);
        died = die_at(w, dir_of(state), n, act_sleep, id);
        check(w, dir_of(state), id);
    }
    assert_true(n > 4); /* a row of the command, the command, the row, the box, ... */
}

static void test_death_at_any_step_of_waking_loses_nothing(void **state)
{
    unsigned n = 1;
    for (int died = 1; died; n++) {
        struct world *w = world_new();
        char id[SESSION_ID_LEN + 1];
        begin(w, dir_of(state), 1, id);
        died = die_at(w, dir_of(state), n, act_resume, id);
        check(w, dir_of(state), id);
    }
    assert_int_equal(n, 5); /* the row, the box, the row, and none */
}

static void test_death_at_any_step_of_deleting_a_sleeper_leaves_no_files(void **state)
{
    int died = 1, steps = 0;
    for (unsigned n = 1; died; n++) {
        struct world *w = world_new();
        char id[SESSION_ID_LEN + 1];
        begin(w, dir_of(state), 1, id);
        died = die_at(w, dir_of(state), n, act_end, id);
        steps += died;

        struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
        struct session *s = find(d, id);
        struct pd_err e = {0};

        /* Before the first step nothing was promised. */
        assert_int_equal(info_of(s).state, n == 1 && died ? SESSION_PAUSED : SESSION_GONE);
        assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
        assert_int_equal(root_count(w), 0);
        session_unref(s);
        daemon_end(d);
    }
    assert_true(steps >= 3);
}

static void test_a_sleeper_is_there_after_a_restart_and_after_the_keepers(void **state)
{
    struct world *w = world_new();
    char id[SESSION_ID_LEN + 1];
    begin(w, dir_of(state), 1, id);
    check(w, dir_of(state), id);

    /* Positive control: one that was frozen, and whose box is gone, is lost. */
    w = world_new();
    begin(w, dir_of(state), 0, id);
    w->boxes[0].used = 0;
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session *s = find(d, id);
    assert_int_equal(s->lost, 1);

    session_unref(s);
    daemon_end(d);
}

/* ---- the end of a life ---- */

static void wait_for_state(struct session *s, enum session_state want)
{
    deadline d = deadline_in(60 * NS_PER_S);
    while (info_of(s).state != want && !deadline_passed(d))
        usleep(10000);
    assert_int_equal(info_of(s).state, want);
}

static void test_at_the_end_of_its_life_it_is_paused_if_told(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 1, NULL);
    struct session_request r = {.max_life_ms = 3000, .pause_at_end = PAUSE_ALL};
    struct session_request other = {.max_life_ms = 3000};
    struct session *s = make_one(d, &r), *o = make_one(d, &other);
    struct process *p = start_one(s, NULL);
    assert_int_equal(info_of(s).pause_at_end, PAUSE_ALL);

    wait_for_state(s, SESSION_PAUSED);
    wait_for_state(o, SESSION_GONE); /* positive control */
    assert_int_equal(info_of(o).end, END_EXPIRED);

    struct session_info i = info_of(s);
    assert_int_equal(i.asleep, 0);
    assert_int_equal(i.processes, 1); /* with memory */
    assert_int_equal(box_count(w), 1);

    /* Who wakes it says for how long. */
    uint64_t until = time_now_ms() + 60000;
    assert_int_equal(session_expire_at(s, until, false, &e), 0);
    assert_int_equal(session_resume(s, &e), 0);

    i = info_of(s);
    assert_int_equal(i.state, SESSION_RUNNING);
    assert_true(i.expires_ms >= until && i.expires_ms <= time_now_ms() + 60000);
    usleep(600000);
    assert_int_equal(info_of(s).state, SESSION_RUNNING);

    process_unref(p);
    session_unref(s);
    session_unref(o);
    daemon_end(d);
}

static void test_it_may_leave_its_processes_behind_at_the_end(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, NULL);
    struct session_request r = {.max_life_ms = 3000, .pause_at_end = PAUSE_FILES};
    struct session *s = make_one(d, &r);
    process_unref(start_one(s, NULL));
    wait_for_state(s, SESSION_PAUSED);
    assert_int_equal(info_of(s).asleep, 1);
    assert_int_equal(info_of(s).pause_at_end, PAUSE_FILES);

    struct pd_err e;
    assert_int_equal(session_begin_change(s, &e), 0); /* it may still be at it */
    session_end_change(s);
    assert_int_equal(box_count(w), 0);
    assert_int_equal(root_count(w), 1);
    session_unref(s);
    daemon_end(d);
}

static void test_where_nothing_can_be_frozen_it_sleeps_at_the_end(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, NULL);
    struct session_request r = {.max_life_ms = 300, .pause_at_end = PAUSE_ALL};
    w->fail_pause = 1;

    struct session *s = make_one(d, &r);
    wait_for_state(s, SESSION_PAUSED);
    assert_int_equal(info_of(s).asleep, 1);
    assert_int_equal(root_count(w), 1);
    session_unref(s);
    daemon_end(d);

    /* And where that is not to be had either, it ends. */
    w = world_new();
    w->fail_pause = 1;
    d = daemon_begin(w, dir_of(state), 1, in_memory);

    struct session_request again = {.max_life_ms = 300, .pause_at_end = PAUSE_ALL};
    s = make_one(d, &again);
    wait_for_state(s, SESSION_GONE);
    assert_int_equal(info_of(s).end, END_EXPIRED);
    session_unref(s);
    daemon_end(d);
}

static void test_the_end_of_a_life_can_be_set(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    uint64_t now = time_now_ms();
    assert_int_equal(session_expire_at(s, now + 100000, false, &e), 0);
    assert_true(info_of(s).expires_ms == now + 100000);
    assert_int_equal(session_expire_at(s, now + 50000, true, &e), 0);
    assert_true(info_of(s).expires_ms == now + 100000);
    assert_int_equal(session_expire_at(s, now + 150000, true, &e), 0);
    assert_true(info_of(s).expires_ms == now + 150000);
    assert_int_equal(session_expire_at(s, now + 20000, false, &e), 0);
    assert_true(info_of(s).expires_ms == now + 20000);

    /* The past is possible: it ends at the next look. */
    assert_int_equal(session_expire_at(s, 1, false, &e), 0);
    assert_true(info_of(s).expires_ms <= time_now_ms());

    /* While it stands still, so does what it has left. */
    assert_int_equal(session_expire_at(s, time_now_ms() + 30000, false, &e), 0);
    assert_int_equal(session_pause(s, &e), 0);

    s->paused_at_ms -= 10000;
    s->info.created_ms -= 10000;
    assert_int_equal(session_expire_at(s, time_now_ms() + 20000, true, &e), 0);
    uint64_t left = info_of(s).expires_ms - time_now_ms();
    assert_true(left > 18000 && left <= 30000);

    now = time_now_ms();
    assert_int_equal(session_expire_at(s, now + 40000, false, &e), 0);
    s->paused_at_ms -= 5000; /* five seconds later */
    assert_int_equal(session_resume(s, &e), 0);

    left = info_of(s).expires_ms - time_now_ms();
    assert_true(left + (time_now_ms() - now) > 43000 && left <= 45000);
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    assert_int_equal(session_expire_at(s, now + 40000, false, &e), -1);
    assert_int_equal(e.code, PD_NOT_FOUND);
    session_unref(s);
    daemon_end(d);
}

/* ---- at once ---- */

struct crowd {
    struct session *s;
    unsigned number;
};

static void *change_often(void *arg)
{
    const struct crowd *c = arg;
    struct pd_err e;
    int (*const acts[])(struct session *, struct pd_err *) = {session_pause, session_sleep,
                                                              session_resume, session_resume};

    for (unsigned i = 0; i < 50; i++) {
        (void)acts[(i + c->number) % 4](c->s, &e);
        struct process_request r = {.command = "x", .env = {.text = ""}, .background = 1};
        struct process *p;
        bool known;
        if (session_start(c->s, &r, &p, &known, &e) == 0) {
            (void)process_stop(p, STOP_KILLED, &e);
            process_unref(p);
        }
    }

    return NULL;
}

static void test_many_change_one_session_at_once(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 1, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    pthread_t threads[4];
    struct crowd crowd[4];

    for (unsigned i = 0; i < 4; i++) {
        crowd[i] = (struct crowd){.s = s, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, change_often, &crowd[i]), 0);
    }

    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(session_resume(s, &e), 0);
    assert_int_equal(info_of(s).state, SESSION_RUNNING);
    assert_int_equal(box_count(w), 1);
    assert_int_equal(session_sleep(s, &e), 0);
    assert_int_equal(info_of(s).processes, 0);
    assert_int_equal(box_count(w), 0);
    assert_int_equal(root_count(w), 1);
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    assert_int_equal(root_count(w), 0);

    session_unref(s);
    daemon_end(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_a_sleeping_session_has_files_and_nothing_else),
        IN_WORLD(test_a_frozen_one_may_fall_asleep_and_be_deleted),
        IN_WORLD(test_a_sleeper_without_its_files_is_not_woken),
        IN_WORLD(test_files_in_memory_do_not_sleep),
        IN_WORLD(test_what_cannot_be_written_down_or_made_changes_nothing),
        IN_WORLD(test_death_at_any_step_of_falling_asleep_loses_nothing),
        IN_WORLD(test_death_at_any_step_of_waking_loses_nothing),
        IN_WORLD(test_death_at_any_step_of_deleting_a_sleeper_leaves_no_files),
        IN_WORLD(test_a_sleeper_is_there_after_a_restart_and_after_the_keepers),
        IN_WORLD(test_at_the_end_of_its_life_it_is_paused_if_told),
        IN_WORLD(test_it_may_leave_its_processes_behind_at_the_end),
        IN_WORLD(test_where_nothing_can_be_frozen_it_sleeps_at_the_end),
        IN_WORLD(test_the_end_of_a_life_can_be_set),
        IN_WORLD(test_many_change_one_session_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
