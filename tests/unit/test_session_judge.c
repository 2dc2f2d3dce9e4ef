/* Commands and creations that ask for a mode: where they run, and that a command never runs with
 * less isolation than it was judged to need, whoever moves its session meanwhile. */
#include "moves.h"

/* ---- modes ---- */

static void test_auto_starts_cheap_and_rises_with_the_command(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, NULL, MODE_AUTO);
    struct pd_err e = {.msg = ""};
    struct placement place;

    is_at(d, s, "local");
    assert_int_equal(run(s, "ls -l", MODE_NONE, &place, &e), 0);
    assert_int_equal(place.mode, MODE_AUTO);
    assert_string_equal(place.provider, "local");
    assert_non_null(strstr(place.reason, "read"));
    is_at(d, s, "local");

    if (run(s, "pip install requests", MODE_NONE, &place, &e) < 0)
        fail_msg("%s", e.msg);
    assert_string_equal(place.provider, "jail");
    assert_int_equal(place.rung, RUNG_FULL);
    assert_non_null(strstr(place.reason, "install"));
    is_at(d, s, "jail");
    assert_non_null(strstr(s->info.reason, "install"));

    /* It does not go down again, and a restart knows the mode. */
    assert_int_equal(run(s, "ls", MODE_NONE, &place, &e), 0);
    is_at(d, s, "jail");
    char id[SESSION_ID_LEN + 1];
    snprintf(id, sizeof id, "%s", s->info.id);
    daemon_end(d);
    d = begin(state, d->world);
    assert_non_null(s = sessions_find(d->all, "acme", id, &e));
    assert_int_equal(s->info.mode, MODE_AUTO);
    must_end(d, s);
    daemon_end(d);
}

/* What the words of the line do not tell counts as well. */
static void test_auto_knows_directory_variables_and_user(void **state)
{
    struct daemon *d = begin(state, world_new());
    static const char harm[] = "PATH=/workspace/bin", mild[] = "LANG=C";
    const struct {
        struct process_request r;
        const char *provider;
    } cases[] = {
        {{.command = "ls", .cwd = "/workspace/a"}, "local"},
        {{.command = "ls", .cwd = "/workspaces"}, "jail"},
        {{.command = "ls", .cwd = "/workspace/../etc"}, "jail"},
        {{.command = "cat shadow", .cwd = "/etc"}, "jail"},
        {{.command = "ls", .user = "root"}, "jail"},
        {{.command = "ls", .env = {.text = mild, .bytes = sizeof mild, .count = 1}}, "local"},
        {{.command = "ls", .env = {.text = harm, .bytes = sizeof harm, .count = 1}}, "jail"},
        {{.command = "ls $(cat x)"}, "jail"},
        {{.command = "echo a > b"}, "local"},
        {{.command = "echo a > /etc/b"}, "jail"},
    };

    for (unsigned i = 0; i < COUNT(cases); i++) {
        struct session *s = make_in(d, NULL, MODE_AUTO);
        struct process_request r = cases[i].r;
        struct judgement judgement;
        struct placement place;
        struct pd_err e = {.msg = ""};
        r.argv.text = "";
        if (!r.env.text)
            r.env.text = "";
        if (session_judge(s, &r, &judgement, &place, &e) < 0)
            fail_msg("%s: %s", r.command, e.msg);
        if (strcmp(place.provider, cases[i].provider) != 0)
            fail_msg("case %u: %s: %s, %s", i, r.command, place.provider, place.reason);
        must_end(d, s);
    }
    daemon_end(d);
}

static void test_modes_of_one_command(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    struct pd_err e = {.msg = ""};
    struct placement place;

    assert_int_equal(run(s, "ls", MODE_LOCAL, &place, &e), 0);
    assert_string_equal(place.provider, "local");
    if (run(s, "ls", MODE_SANDBOX, &place, &e) < 0)
        fail_msg("%s", e.msg);
    is_at(d, s, "jail");

    assert_int_equal(run(s, "ls", MODE_LOCAL, &place, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    is_at(d, s, "jail");
    assert_int_equal(run(s, "curl example.com", MODE_AUTO, &place, &e), 0);
    assert_string_equal(place.provider, "jail");
    must_end(d, s);

    /* Without a mode nothing is judged. */
    s = make_in(d, "local", MODE_NONE);
    place.mode = MODE_NONE;
    assert_int_equal(run(s, "curl example.com", MODE_NONE, &place, &e), 0);
    assert_int_equal(place.mode, MODE_NONE);
    is_at(d, s, "local");

    /* What runs keeps the session where it is, so the command is refused. */
    struct process *p = start_one(s, NULL);
    assert_int_equal(run(s, "curl example.com", MODE_AUTO, &place, &e), -1);
    assert_int_equal(e.code, PD_CONFLICT);
    assert_non_null(strstr(e.msg, "network"));
    is_at(d, s, "local");
    assert_int_equal(process_stop(p, STOP_KILLED, &e), 0);
    process_unref(p);
    must_end(d, s);
    daemon_end(d);
}

static void test_modes_of_a_creation(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session_request r = {.tenant = "acme", .spec = SPEC_DEFAULT, .env = {.text = ""}};
    struct decision decision;
    struct pd_err e = {.msg = ""};

    r.mode = MODE_SANDBOX; /* the default provider, local, has no isolation */
    assert_int_equal(sessions_explain(d->all, &r, &decision, NULL, &e), 0);
    assert_int_equal(decision.provider, 1);
    assert_non_null(strstr(decision.reason, "mode sandbox"));
    r.provider = "local";
    assert_int_equal(sessions_explain(d->all, &r, &decision, NULL, &e), -1);
    assert_int_equal(e.code, PD_ISOLATION);

    r.mode = MODE_LOCAL;
    assert_int_equal(sessions_explain(d->all, &r, &decision, NULL, &e), 0);
    assert_int_equal(decision.provider, 0);
    r.provider = "jail";
    assert_int_equal(sessions_explain(d->all, &r, &decision, NULL, &e), -1);
    assert_int_equal(e.code, PD_INVALID);

    r.provider = NULL;
    weak.name = "other"; /* as a server that has no provider of that name */
    assert_int_equal(sessions_explain(d->all, &r, &decision, NULL, &e), -1);
    assert_int_equal(e.code, PD_DENIED);
    weak.name = "local";
    daemon_end(d);
}

/* Where a box's workspace is elsewhere, /workspace in a line is another place of the host. */
static void test_auto_judges_paths_by_the_boxs_own_workspace(void **state)
{
    struct daemon *d = begin(state, world_new());
    const struct {
        const char *line, *cwd, *provider;
    } cases[] = {
        {"cat " PLACE "/a", NULL, "local"},      {"cat a", "/workspace/deep", "local"},
        {"cat a", PLACE "/deep", "local"},       {"cat /workspace/a", NULL, "jail"},
        {"echo a > /workspace/b", NULL, "jail"}, {"cat a", "/work", "jail"},
    };

    for (unsigned i = 0; i < COUNT(cases); i++) {
        is_placed = true;
        struct session *s = make_in(d, NULL, MODE_AUTO);
        struct process_request r = {.command = cases[i].line,
                                    .cwd = cases[i].cwd,
                                    .argv = {.text = ""},
                                    .env = {.text = ""}};
        struct judgement judgement;
        struct placement place;
        struct pd_err e = {.msg = ""};
        if (session_judge(s, &r, &judgement, &place, &e) < 0)
            fail_msg("%s: %s", r.command, e.msg);
        if (strcmp(place.provider, cases[i].provider) != 0 ||
            !strncmp(place.reason, "unknown", 7) != !strcmp(place.provider, "jail"))
            fail_msg("case %u: %s: %s, %s", i, r.command, place.provider, place.reason);
        must_end(d, s);
    }
    daemon_end(d);
}

/* What a provider said it could do, and what the box has, are two things. */
static void test_a_box_that_isolates_too_little_is_not_used(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, NULL, MODE_AUTO);
    struct placement place;
    struct pd_err e = {.msg = ""};

    jail_is_low = true;
    assert_int_equal(run(s, "python x.py", MODE_NONE, &place, &e), -1);
    assert_int_equal(e.code, PD_ISOLATION);
    is_at(d, s, "local");
    must_end(d, s);

    /* Where it is already, there is nowhere to go. */
    s = make_in(d, "jail", MODE_AUTO);
    assert_int_equal(run(s, "python x.py", MODE_NONE, &place, &e), -1);
    assert_int_equal(e.code, PD_ISOLATION);
    assert_non_null(strstr(e.msg, "basic"));
    assert_int_equal(run(s, "pip install x", MODE_NONE, &place, &e), 0); /* the control */
    must_end(d, s);
    daemon_end(d);
}

/* A sandbox with the host's network has basic isolation at most: that is the strictest for it. */
static void test_the_strictest_is_what_the_sandbox_can_have(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "jail", MODE_AUTO);
    struct placement place;
    struct pd_err e = {.msg = ""};

    lock_take(&s->lock);
    s->info.spec.network = NETWORK_HOST;
    s->info.rung = RUNG_BASIC;
    lock_release(&s->lock);
    if (run(s, "python x.py", MODE_NONE, &place, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(place.rung, RUNG_BASIC);
    must_end(d, s);
    daemon_end(d);
}

/* ---- races ---- */

static struct {
    struct session *s;
    atomic_bool over;
    atomic_uint ran[3], too_weak, moves;
} race;

/* Commands that are judged to need it. */
static enum rung need_of(const struct msg_exec *x)
{
    uint32_t pos = 0;
    enum rung need = RUNG_NONE;

    for (const char *w; (w = msg_list_next(&x->argv, &pos));) {
        if (strstr(w, "pip install") && need < RUNG_BASIC)
            need = RUNG_BASIC;
        if (strstr(w, "python x.py") || (strstr(w, "ls -l") && strcmp(x->cwd, "/etc") == 0))
            need = RUNG_FULL;
    }
    return need;
}

static int exec_watched(struct box *box, const struct box_command *c, struct pd_err *e)
{
    if (!(c->flags & EXEC_WORKER) && rung_of_box(box) < need_of(&c->exec))
        atomic_fetch_add(&race.too_weak, 1);
    return exec_worker(box, c, e);
}

static void three_watched(struct sessions_config *c)
{
    three(c);
    weak.exec = middle.exec = strong.exec = exec_watched;
}

static void *keep_running(void *arg)
{
    static const char *const lines[] = {"pip install x", "python x.py", "ls -l"};
    unsigned which = (unsigned)(uintptr_t)arg;

    while (!atomic_load(&race.over)) {
        struct pd_err e = {.msg = ""};
        struct placement place;
        if (run(race.s, lines[which], MODE_NONE, &place, &e) < 0) {
            /* Numbers of groups come back behind the moves, which never pause here. */
            if (e.code == PD_CAPACITY)
                usleep(1000);
            else if (e.code != PD_CONFLICT)
                fail_msg("%s: %s", lines[which], e.msg);
        } else {
            if (which < 2 && place.rung < (which ? RUNG_FULL : RUNG_BASIC))
                atomic_fetch_add(&race.too_weak, 1);
            atomic_fetch_add(&race.ran[which], 1);
        }
        sched_yield();
    }
    return NULL;
}

static void *keep_lowering(void *arg)
{
    (void)arg;
    while (!atomic_load(&race.over)) {
        struct pd_err e = {.msg = ""};
        if (move_to(race.s, &weak, 0, "down", &e) == 0)
            atomic_fetch_add(&race.moves, 1);
        else if (e.code == PD_CAPACITY)
            usleep(1000); /* as above */
        else if (e.code != PD_CONFLICT)
            fail_msg("%s", e.msg);
        sched_yield();
    }
    return NULL;
}

/* Lines that need different isolation at the same time, while somebody moves the session down and
 * another changes its directory. */
static void test_a_command_never_runs_with_less_than_it_needs(void **state)
{
    struct daemon *d = begin_with(state, world_new(), three_watched);
    struct msg_list none = {.text = ""};
    pthread_t threads[4];
    struct pd_err e = {.msg = ""};

    race.s = make_in(d, NULL, MODE_AUTO);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, keep_running, (void *)(uintptr_t)i), 0);
    assert_int_equal(pthread_create(&threads[3], NULL, keep_lowering, NULL), 0);

    deadline limit = deadline_in(60 * NS_PER_S);
    for (unsigned i = 0; !deadline_passed(limit); i++) {
        unsigned all = 0, least = UINT32_MAX;
        for (unsigned k = 0; k < 3; k++) {
            unsigned ran = atomic_load(&race.ran[k]);
            all += ran;
            least = ran < least ? ran : least;
        }
        if ((all >= 3000 && least >= 50 && atomic_load(&race.moves) >= 100) ||
            atomic_load(&race.too_weak))
            break;
        if (session_set_env(race.s, &none, &none, i % 2 ? "/etc" : "/workspace", &e) < 0)
            fail_msg("%s", e.msg);
        sched_yield();
    }
    atomic_store(&race.over, true);
    for (unsigned i = 0; i < COUNT(threads); i++)
        pthread_join(threads[i], NULL);

    print_message("%u, %u and %u lines, %u moves down\n", race.ran[0], race.ran[1], race.ran[2],
                  race.moves);
    assert_int_equal(race.too_weak, 0);
    assert_true(race.ran[0] >= 10 && race.ran[1] >= 10 && race.ran[2] >= 10 && race.moves >= 10);
    must_end(d, race.s);
    daemon_end(d);
}

static void *keep_asking(void *arg)
{
    struct box_place place;
    (void)arg;
    while (!atomic_load(&race.over)) {
        (void)session_place(race.s, &place);
        atomic_fetch_add(&race.ran[0], 1);
    }
    return NULL;
}

/* A provider that has no places of its own has no function for them either. */
static void test_the_place_of_a_box_against_moves(void **state)
{
    struct daemon *d = begin(state, world_new());
    pthread_t thread;
    struct pd_err e = {.msg = ""};
    unsigned moves = 0;

    is_placed = true;
    memset(&race, 0, sizeof race);
    race.s = make_in(d, "local", MODE_NONE);
    assert_int_equal(pthread_create(&thread, NULL, keep_asking, NULL), 0);
    deadline limit = deadline_in(60 * NS_PER_S);
    while (moves < 2000 && !deadline_passed(limit)) {
        if (move_to(race.s, moves % 2 ? &weak : &strong, 0, "race", &e) < 0)
            fail_msg("%s", e.msg);
        moves++;
    }
    atomic_store(&race.over, true);
    pthread_join(thread, NULL);

    print_message("%u moves, %u questions\n", moves, race.ran[0]);
    assert_true(moves >= 10 && race.ran[0] >= 10);
    must_end(d, race.s);
    daemon_end(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_auto_starts_cheap_and_rises_with_the_command),
        IN_WORLD(test_auto_knows_directory_variables_and_user),
        IN_WORLD(test_modes_of_one_command),
        IN_WORLD(test_modes_of_a_creation),
        IN_WORLD(test_auto_judges_paths_by_the_boxs_own_workspace),
        IN_WORLD(test_a_box_that_isolates_too_little_is_not_used),
        IN_WORLD(test_the_strictest_is_what_the_sandbox_can_have),
        IN_WORLD(test_a_command_never_runs_with_less_than_it_needs),
        IN_WORLD(test_the_place_of_a_box_against_moves),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
