/* What sessions keep beside their sandbox: notes, lists, samples; and the warm pool. */
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

static void assert_note(struct session *s, const char *want)
{
    char *note = session_note(s);
    assert_string_equal(note, want);
    free(note);
}

static void test_notes_are_kept_over_a_restart(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {.note = "{\"a\":1}", .pause_at_end = 1}, plain = {0};
    struct session *s = make_one(d, &r), *bare = make_one(d, &plain);
    assert_note(s, "{\"a\":1}");
    assert_note(bare, "");
    struct process *p = start_one(s, "p-note"), *q = start_one(s, NULL);
    struct process_info pi;
    process_get(p, &pi, NULL);
    char id[SESSION_ID_LEN + 1];
    memcpy(id, s->info.id, sizeof id);
    assert_int_equal(session_set_note(s, "second", &e), 0);
    char *note = process_note(q);
    assert_string_equal(note, "");
    free(note);
    process_unref(p);
    process_unref(q);
    session_unref(s);
    daemon_end(d);

    d = daemon_begin(w, dir_of(state), 0, NULL);
    s = find(d, id);
    assert_note(s, "second");
    assert_int_equal(s->info.pause_at_end, 1);
    assert_non_null(p = session_find_process(s, pi.id, &e));
    note = process_note(p);
    assert_string_equal(note, "p-note");
    free(note);
    process_unref(p);
    /* As large as it may be, and no larger; what fails leaves what there was. */
    char *large = calloc(1, NOTE_MAX + 2);
    memset(large, 'x', NOTE_MAX);
    assert_int_equal(session_set_note(s, large, &e), 0);
    large[NOTE_MAX] = 'x';
    assert_int_equal(session_set_note(s, large, &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
    struct process_request pr = {.command = "true", .env = {.text = ""}, .note = large};
    bool known;
    assert_int_equal(session_start(s, &pr, &p, &known, &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
    large[NOTE_MAX] = 0;
    assert_note(s, large);
    free(large);
    assert_int_equal(session_pause(s, &e), 0);
    assert_int_equal(session_set_note(s, "paused", &e), 0);
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    assert_int_equal(session_set_note(s, "late", &e), -1);
    assert_int_equal(e.code, PD_NOT_FOUND);
    session_unref(s);
    session_unref(bare);
    daemon_end(d);
}

static int count_session(struct session *s, void *arg)
{
    unsigned *counts = arg;
    counts[0]++;
    counts[1] += !strcmp(s->info.tenant, "other");
    return counts[2] && counts[0] == counts[2];
}

static void test_lists_go_both_ways(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session *made[6];
    for (unsigned i = 0; i < 6; i++) {
        struct session_request r = {.template_name = i % 2 ? "base" : "default",
                                    .tenant = i == 5 ? "other" : "acme"};
        made[i] = make_one(d, &r);
        /* Two have the same time: the id tells them apart. */
        made[i]->info.created_ms = 1000000 + 10 * (i == 3 ? 2 : i);
    }
    for (int newest_first = 0; newest_first < 2; newest_first++) {
        struct session_filter f = {.tenant = "acme", .limit = 2, .newest_first = newest_first};
        struct session *page[2], *before = NULL;
        char next[64], cursor[64];
        unsigned count, seen = 0;
        do {
            assert_int_equal(sessions_list(d->all, &f, page, &count, next, &e), 0);
            for (unsigned i = 0; i < count; i++, seen++) {
                uint64_t at = page[i]->info.created_ms;
                if (before)
                    assert_true(newest_first ? at <= before->info.created_ms
                                             : at >= before->info.created_ms);
                assert_ptr_not_equal(page[i], before);
                before = page[i];
                session_unref(page[i]); /* the table has it */
            }
            memcpy(cursor, next, sizeof cursor);
            f.cursor = cursor;
        } while (next[0]);
        assert_int_equal(seen, 5);
    }
    struct session *found[6];
    char next[64];
    unsigned count;
    struct session_filter f = {.tenant = "acme", .limit = 6, .after_ms = 1000020};
    assert_int_equal(sessions_list(d->all, &f, found, &count, next, &e), 0);
    assert_int_equal(count, 3);
    for (unsigned i = 0; i < count; i++)
        session_unref(found[i]);
    f = (struct session_filter){.tenant = "acme", .limit = 6, .template_name = "base"};
    assert_int_equal(sessions_list(d->all, &f, found, &count, next, &e), 0);
    assert_int_equal(count, 2);
    for (unsigned i = 0; i < count; i++)
        session_unref(found[i]);

    /* Anybody's. */
    struct session *any = sessions_find_any(d->all, made[5]->info.id, &e);
    assert_ptr_equal(any, made[5]);
    session_unref(any);
    assert_null(sessions_find(d->all, "acme", made[5]->info.id, &e));
    assert_null(sessions_find_any(d->all, "nosuchsandboxatall00", &e));
    assert_int_equal(e.code, PD_NOT_FOUND);
    assert_null(sessions_find_any(d->all, "../x", &e));
    unsigned counts[3] = {0};
    sessions_each(d->all, count_session, counts);
    assert_int_equal(counts[0], 6);
    assert_int_equal(counts[1], 1);
    assert_int_equal(session_end(made[0], END_KILLED, "test", &e), 0);
    counts[0] = 0;
    counts[2] = 3; /* stops there */
    sessions_each(d->all, count_session, counts);
    assert_int_equal(counts[0], 3);
    counts[0] = counts[2] = 0;
    sessions_each(d->all, count_session, counts);
    assert_int_equal(counts[0], 5);
    for (unsigned i = 0; i < 6; i++)
        session_unref(made[i]);
    daemon_end(d);
}

/* ---- samples ---- */

static void test_samples_tell_what_was_used(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct session_sample got[100];

    /* Half a core for a second, by a clock that is set back. */
    uint64_t since = s->samples.since_ns = clock_now() - NS_PER_S, began_ms = time_now_ms();
    w->cpu_usec = 500000;
    assert_int_equal(session_samples(s, 0, 0, got, 100), 1);

    uint64_t least = 49000 * NS_PER_S / (clock_now() - since); /* it was a second, or a bit more */
    assert_true(got[0].cpu_milli_pct >= least && got[0].cpu_milli_pct <= 50000);
    assert_int_equal(got[0].memory, 1000);
    assert_int_equal(got[0].memory_limit, s->info.spec.limits.memory);
    assert_int_equal(got[0].disk_used, 5000);
    assert_int_equal(got[0].disk_total, 9000);
    assert_true(got[0].at_ms >= began_ms && got[0].at_ms <= time_now_ms());

    /* Not again within a second, which begins now. */
    int asked = w->usages;
    s->samples.ring[0].at_ms = time_now_ms();
    assert_int_equal(session_samples(s, 0, s->samples.ring[0].at_ms, got, 100), 1);
    assert_int_equal(w->usages, asked);

    /* One that fails is no error, and a box that counts from zero again no giant. */
    s->samples.ring[0].at_ms -= 5000;
    w->fail_usage = 1;
    assert_int_equal(session_samples(s, 0, 0, got, 100), 1);
    assert_int_equal(w->usages, asked + 1);

    w->fail_usage = 0;
    w->cpu_usec = 7;
    assert_int_equal(session_samples(s, 0, 0, got, 100), 2);
    assert_int_equal(got[1].cpu_milli_pct, 0);
    assert_true(got[0].at_ms < got[1].at_ms);

    /* The latest of many, in order, and those of a time. */
    for (unsigned i = 0; i < 70; i++) {
        s->samples.ring[(s->samples.next + 59) % 60].at_ms = 1000000 + i;
        assert_true(session_samples(s, 0, 0, got, 100) <= 60);
    }
    s->samples.ring[(s->samples.next + 59) % 60].at_ms = 1000070;
    assert_int_equal(session_pause(s, &e), 0);

    asked = w->usages;
    assert_int_equal(session_samples(s, 0, 0, got, 100), 60);
    assert_int_equal(w->usages, asked); /* paused ones are not asked */
    for (unsigned i = 0; i < 60; i++)
        assert_int_equal(got[i].at_ms, 1000011 + i);
    assert_int_equal(session_samples(s, 0, 0, got, 5), 5);
    assert_int_equal(got[4].at_ms, 1000070);
    assert_int_equal(session_samples(s, 1000020, 1000029, got, 100), 10);
    assert_int_equal(got[0].at_ms, 1000020);

    /* The time that it was paused does not count. */
    since = clock_now() - NS_PER_S;
    s->samples.paused_ns = since - 9 * NS_PER_S;
    s->samples.since_ns = since - 10 * NS_PER_S;
    s->samples.cpu_usec = 0;
    w->cpu_usec = 1000000;
    assert_int_equal(session_resume(s, &e), 0);
    assert_int_equal(session_samples(s, 0, 0, got, 100), 60);

    least = 90000 * NS_PER_S / (clock_now() - since); /* a second, or a bit more */
    assert_true(got[59].cpu_milli_pct >= least && got[59].cpu_milli_pct <= 100000);
    session_unref(s);
    daemon_end(d);
}

static void test_the_controller_spreads_its_samples(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session *made[30];
    struct controller *c = &d->all->controllers[0];
    uint64_t began = clock_now(), every = samples_every(30);
    for (unsigned i = 0; i < 30; i++) {
        struct session_request r = {0};
        made[i] = make_one(d, &r);
        samples_look(c, made[i], every); /* as the controller does: a turn is found, none is due */
    }
    assert_int_equal(w->usages, 0);
    uint64_t first = UINT64_MAX, last = 0, now = clock_now();
    for (unsigned i = 0; i < 30; i++) {
        uint64_t due = made[i]->samples.due_ns;
        assert_true(due + NS_PER_S > began && due < now + 6 * NS_PER_S);
        first = due < first ? due : first;
        last = due > last ? due : last;
    }
    assert_true(last - first > 2 * NS_PER_S);
    /* When it is due: once. */
    made[0]->samples.due_ns = 1;
    samples_look(c, made[0], every);
    samples_look(c, made[0], every);
    assert_int_equal(w->usages, 1);
    assert_int_equal(made[0]->samples.count, 1);
    assert_true(made[0]->samples.due_ns > now);
    /* A provider that fails is not asked for the others at once. */
    w->fail_usage = 1;
    for (unsigned i = 0; i < 30; i++) {
        made[i]->samples.due_ns = 1;
        samples_look(c, made[i], every);
    }
    assert_int_equal(w->usages, 2);
    w->fail_usage = 0;
    c->samples_rest_ns = 0;
    for (unsigned i = 0; i < 30; i++)
        samples_look(c, made[i], every);
    assert_int_equal(w->usages, 2 + 29); /* the first has had its turn */

    /* Of very many each has its turn less often, and no later than that when they are few again. */
    assert_true(every == 5 * NS_PER_S && samples_every(1000) == every);
    assert_true(samples_every(10000) == 10 * every);
    made[0]->samples.due_ns = 1;
    samples_look(c, made[0], samples_every(10000));
    assert_true(made[0]->samples.due_ns > clock_now() + 9 * every);
    samples_look(c, made[0], every);
    assert_true(made[0]->samples.due_ns <= clock_now() + every);
    assert_int_equal(w->usages, 2 + 29 + 1);
    for (unsigned i = 0; i < 30; i++)
        session_unref(made[i]);
    daemon_end(d);
}

/* ---- the pool ---- */

static void warm(struct sessions_config *c)
{
    c->pool_min = 2;
    c->pool_max = 8;
}

static unsigned ready(struct daemon *d, enum profile p)
{
    lock_take(&d->all->lock);
    unsigned count = d->all->pool_count[p];
    lock_release(&d->all->lock);
    return count;
}

static void wait_ready(struct daemon *d, enum profile p, unsigned count)
{
    deadline limit = deadline_in(60 * NS_PER_S);
    while (ready(d, p) < count && !deadline_passed(limit))
        usleep(5000);
    assert_true(ready(d, p) >= count);
}

static void test_the_usual_profiles_are_ready_from_the_start(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 1, warm);
    wait_ready(d, PROFILE_STRICT, 2);
    wait_ready(d, PROFILE_DEV, 2);
    assert_int_equal(ready(d, PROFILE_RESTRICTED), 0);

    struct session_request r = {
        .tenant = "acme", .spec = SPEC_DEFAULT, .env = {.text = ""}, .note = "mine"};
    r.spec.profile = PROFILE_DEV;

    struct queue_place place;
    struct session *s;
    bool known;
    assert_int_equal(sessions_create(d->all, &r, &s, &known, &place, &e), 0);
    assert_int_equal(s->info.from_pool, 1);
    assert_note(s, "mine");

    /* Who starts from files of others never gets one that was made before. */
    struct snapshot_info i;
    assert_int_equal(session_snapshot(s, NULL, &i, &e), 0);

    struct session *t;
    r.snapshot = i.id;
    assert_int_equal(sessions_create(d->all, &r, &t, &known, &place, &e), 0);
    assert_int_equal(t->info.from_pool, 0);

    session_unref(s);
    session_unref(t);
    sessions_end_all(d->all, "test");
    daemon_end(d);
}

static void test_misses_of_one_profile_do_not_fill_the_pool_with_another(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 1, warm);
    wait_ready(d, PROFILE_STRICT, 2);
    wait_ready(d, PROFILE_DEV, 2);

    struct session *made[8];
    for (unsigned i = 0; i < 8; i++) {
        struct session_request r = {.tenant = "acme", .spec = SPEC_DEFAULT, .env = {.text = ""}};
        r.spec.profile = PROFILE_DEV;
        struct queue_place place;
        bool known;
        assert_int_equal(sessions_create(d->all, &r, &made[i], &known, &place, &e), 0);
    }
    wait_ready(d, PROFILE_DEV, 3); /* more than at the start */
    assert_int_equal(ready(d, PROFILE_STRICT), 2);

    for (unsigned i = 0; i < 8; i++)
        session_unref(made[i]);
    sessions_end_all(d->all, "test");
    daemon_end(d);
}

/* The pool's warm-up is a command, too, of a sandbox that is nobody's yet. */
static void test_output_of_a_pooled_one_counts_for_its_tenant(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, warm);
    wait_ready(d, PROFILE_STRICT, 1);
    struct session_request r = {.tenant = "acme"};
    struct session *s = make_one(d, &r);
    assert_int_equal(s->info.from_pool, 1);
    process_unref(start_one(s, NULL));

    const struct tenant_count *t = atomic_load(&s->kept_by);
    assert_non_null(t);
    assert_string_equal(t->name, "acme");
    session_unref(s);
    sessions_end_all(d->all, "test");
    daemon_end(d);
}

static void warm_code(struct sessions_config *c)
{
    c->contexts_warm_pool = 2;
    c->contexts_warm = "decimal";
}

/* Those for code that are ready, of both kinds; none is being made. */
static void await_code(struct daemon *d, unsigned inside, unsigned outside)
{
    deadline limit = deadline_in(60 * NS_PER_S);
    unsigned in = 0, out = 0, making = 1;
    while ((in != inside || out != outside || making) && !deadline_passed(limit)) {
        usleep(2000);
        lock_take(&d->all->lock);
        in = d->all->pool_count[POOL_CODE];
        out = d->all->pool_count[POOL_CODE + 1];
        making = d->all->pool_making[POOL_CODE] + d->all->pool_making[POOL_CODE + 1];
        lock_release(&d->all->lock);
        assert_true(in + out + making <= 2);
    }
    assert_int_equal(in, inside);
    assert_int_equal(out, outside);
}

static void take_code(struct daemon *d, enum network network, bool from_pool)
{
    struct session_request r = {.tenant = "acme",
                                .spec = SPEC_DEFAULT,
                                .env = {.text = ""},
                                .template_name = CODE_TEMPLATE};
    struct queue_place place;
    struct session *s;
    struct pd_err e = {0};
    bool known;
    r.spec.profile = PROFILE_DEV;
    r.spec.network = network;
    if (sessions_create(d->all, &r, &s, &known, &place, &e) < 0)
        fail_msg("create: %s", e.msg);
    assert_int_equal(s->info.from_pool, from_pool);
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    session_unref(s);
}

static void test_both_kinds_for_code_share_their_places(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, warm_code);
    d->provider.can |= PROVIDER_EGRESS;
    await_code(d, 2, 0);
    take_code(d, NETWORK_NONE, true); /* the control: what is there is taken, and made again */
    await_code(d, 2, 0);

    take_code(d, NETWORK_GATE, false);
    await_code(d, 1, 1);
    for (int i = 0; i < 3; i++) { /* whoever wants both finds both */
        take_code(d, NETWORK_GATE, true);
        await_code(d, 1, 1);
        take_code(d, NETWORK_NONE, true);
        await_code(d, 1, 1);
    }
    struct sessions_stats stats;
    sessions_get_stats(d->all, &stats);
    assert_int_equal(stats.pool_dropped, 1);

    /* Fewer are kept from now on. */
    lock_take(&d->all->lock);
    d->all->c.contexts_warm_pool = 1;
    lock_release(&d->all->lock);
    pthread_cond_signal(&d->all->pool_cond);
    await_code(d, 1, 0);
    sessions_end_all(d->all, "test");
    assert_int_equal(box_count(w), 0);
    daemon_end(d);
}

static int begin_worker(struct session *s, struct worker_call *ret, struct pd_err *e)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    assert_int_equal(msg_list_add(&argv, "stat"), 0);
    struct msg_list words = msg_list_of(&argv);
    int r = session_worker(s, &words, NULL, 0, ret, e);
    msg_list_writer_done(&argv);
    return r;
}

static void *end_it(void *process)
{
    struct process *p = process;
    struct pd_err e;
    usleep(50000);
    (void)world_kill(p->session->box, p->id, 0, &e);
    return NULL;
}

/* Of a worker that has answered the end is heard of later; a client that asks on is not refused for
 * it. One whose workers still answer is, at once. */
static void test_workers_that_have_answered_are_waited_for(void **state)
{
    struct daemon *d = daemon_begin(world_new(), dir_of(state), 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct pd_err e = {0};

    struct worker_call *calls = calloc(PROCESSES_RUNNING, sizeof *calls), more;
    for (unsigned i = 0; i < PROCESSES_RUNNING; i++)
        assert_int_equal(begin_worker(s, &calls[i], &e), 0);
    deadline soon = deadline_in(3 * NS_PER_S);
    assert_int_equal(begin_worker(s, &more, &e), -1);
    assert_int_equal(e.code, PD_CAPACITY);
    assert_false(deadline_passed(soon));

    struct process *answered = process_ref(calls[0].process);
    session_worker_end(&calls[0], 0);
    assert_int_equal(s->ending, 1);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, end_it, answered), 0);
    if (begin_worker(s, &calls[0], &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(s->ending, 0);
    assert_int_equal(s->running, PROCESSES_RUNNING);

    pthread_join(thread, NULL);
    process_unref(answered);
    for (unsigned i = 0; i < PROCESSES_RUNNING; i++)
        session_worker_end(&calls[i], 0);
    free(calls);
    session_unref(s);
    sessions_end_all(d->all, "test");
    daemon_end(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_workers_that_have_answered_are_waited_for),
        IN_WORLD(test_notes_are_kept_over_a_restart),
        IN_WORLD(test_lists_go_both_ways),
        IN_WORLD(test_samples_tell_what_was_used),
        IN_WORLD(test_the_controller_spreads_its_samples),
        IN_WORLD(test_the_usual_profiles_are_ready_from_the_start),
        IN_WORLD(test_misses_of_one_profile_do_not_fill_the_pool_with_another),
        IN_WORLD(test_both_kinds_for_code_share_their_places),
        IN_WORLD(test_output_of_a_pooled_one_counts_for_its_tenant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
