/* Sessions that go from one provider to another: what moves, what is refused, what a death at any
 * step leaves. */
#include "moves.h"

/* ---- moves ---- */

static void test_files_directory_and_variables_move(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    struct pd_err e = {.msg = ""};
    char id[SESSION_ID_LEN + 1];

    lock_take(&s->lock);
    snprintf(s->cwd, sizeof s->cwd, "/workspace/deep");
    assert_int_equal(msg_list_add(&s->env, "answer=42"), 0);
    lock_release(&s->lock);

    for (int i = 0; i < 3; i++) { /* there, back, and there again */
        struct provider *to = i % 2 ? &weak : &strong;
        if (move_to(s, to, 0, "moved by a test", &e) < 0)
            fail_msg("%s", e.msg);
        is_at(d, s, to->name);
        assert_int_equal(s->info.rung, i % 2 ? RUNG_NONE : RUNG_FULL);
        assert_string_equal(s->info.reason, "moved by a test");
        assert_string_equal(s->cwd, "/workspace/deep");
    }
    assert_int_equal(move_to(s, &strong, 0, "again", &e), 0); /* it is there */
    assert_string_equal(s->info.reason, "moved by a test");

    /* Its box is the session's: a command that ends there is told here, and so is its loss. */
    struct process *p = start_one(s, NULL);
    assert_int_equal(process_stop(p, STOP_KILLED, &e), 0);
    process_unref(p);
    snprintf(id, sizeof id, "%s", s->info.id);
    daemon_end(d);

    d = begin(state, d->world);
    assert_non_null(s = sessions_find(d->all, "acme", id, &e));
    is_at(d, s, "jail");
    session_box_events.lost(box_of(s->box)->owner, &(struct pd_err){.msg = "gone"});
    assert_true(s->lost);
    must_end(d, s);
    daemon_end(d);
}

static void test_the_loss_of_a_moved_box_is_its_sessions(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    struct pd_err e = {.msg = ""};

    assert_int_equal(move_to(s, &strong, 0, "test", &e), 0);
    assert_ptr_not_equal(box_of(s->box)->owner, s); /* the control: it is told to another */
    session_box_events.lost(box_of(s->box)->owner, &(struct pd_err){.msg = "gone"});
    assert_true(s->lost);
    must_end(d, s);
    daemon_end(d);
}

static void test_what_runs_is_not_moved_unless_given_up(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    struct process *p = start_one(s, NULL);
    struct pd_err e = {.msg = ""};

    assert_int_equal(move_to(s, &strong, 0, "test", &e), -1);
    assert_int_equal(e.code, PD_CONFLICT);
    assert_non_null(strstr(e.msg, "give_up"));
    is_at(d, s, "local");
    assert_true(process_state_is_live(process_state(p)));

    if (move_to(s, &strong, MOVE_GIVE_UP, "test", &e) < 0)
        fail_msg("%s", e.msg);
    is_at(d, s, "jail");
    assert_false(process_state_is_live(process_state(p)));
    process_unref(p);
    must_end(d, s);
    daemon_end(d);
}

static void test_a_move_that_fails_leaves_it_where_it_was(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    struct pd_err e = {.msg = ""};

    for (break_copy = 1; break_copy <= 2; break_copy++) {
        assert_int_equal(move_to(s, &strong, 0, "test", &e), -1);
        is_at(d, s, "local");
    }
    break_copy = 0;

    d->world->fail_create = FAIL_AT_ONCE;
    assert_int_equal(move_to(s, &strong, 0, "test", &e), -1);
    assert_int_equal(e.code, PD_CAPACITY);
    d->world->fail_create = 0;
    is_at(d, s, "local");

    d->world->fail_store = 1;
    assert_int_equal(move_to(s, &strong, 0, "test", &e), -1);
    d->world->fail_store = 0;
    is_at(d, s, "local");

    assert_int_equal(move_to(s, &strong, 0, "test", &e), 0);
    is_at(d, s, "jail");
    must_end(d, s);
    daemon_end(d);
}

static void test_death_at_any_step_leaves_one_box_with_all_files(void **state)
{
    const struct place *place = *state;
    int died = 1;
    unsigned moved = 0, n = 1;

    for (; died; n++) {
        struct world *w = world_new();
        struct daemon *d = begin(state, w);
        struct session *s = make_in(d, "local", MODE_NONE);
        struct pd_err e = {.msg = ""};
        char id[SESSION_ID_LEN + 1];
        snprintf(id, sizeof id, "%s", s->info.id);
        daemon_end(d);

        pid_t pid = child_fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            d = daemon_begin(w, place->dir, 0, two);
            s = sessions_find(d->all, "acme", id, &e);
            w->fuse = n;
            _exit(s && move_to(s, &strong, 0, "test", &e) == 0 ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        w->fuse = 0;
        assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 9));
        died = WEXITSTATUS(status) == 9;

        d = begin(state, w);
        assert_non_null(s = sessions_find(d->all, "acme", id, &e));
        is_at(d, s, s->info.provider);
        moved += !strcmp(s->info.provider, "jail");
        must_end(d, s);
        daemon_end(d);
    }
    assert_true(n > 8); /* rows, boxes, workers, roots */
    assert_true(moved >= 3 && moved < n - 4);
}

struct racing {
    struct session *s;
    atomic_bool over;
    atomic_uint ran;
};

static void *keep_running(void *arg)
{
    struct racing *r = arg;
    struct pd_err e = {.msg = ""};
    while (!atomic_load(&r->over)) {
        if (run(r->s, "ls", MODE_NONE, NULL, &e) < 0)
            fail_msg("%s", e.msg);
        atomic_fetch_add(&r->ran, 1);
        sched_yield();
    }
    return NULL;
}

/* A command either keeps the session where it is, or waits and runs where it went. */
static void test_commands_against_moves(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    struct racing r = {.s = s};
    pthread_t thread;
    unsigned moved = 0, refused = 0;

    assert_int_equal(pthread_create(&thread, NULL, keep_running, &r), 0);
    deadline limit = deadline_in(60 * NS_PER_S);
    while ((moved + refused < 1000 || moved < 10 || atomic_load(&r.ran) < 10) &&
           !deadline_passed(limit)) {
        struct pd_err e = {.msg = ""};
        int bad = move_to(s, s->provider == &weak ? &strong : &weak, 0, "race", &e);
        if (bad < 0 && e.code != PD_CONFLICT)
            fail_msg("%s", e.msg);
        moved += bad == 0;
        refused += bad < 0;
        assert_int_equal(box_count(d->world), 1);
        assert_int_equal(*content_of(box_of(s->box)), 42);
    }
    atomic_store(&r.over, true);
    pthread_join(thread, NULL);
    print_message("%u moved, %u refused, %u commands\n", moved, refused, atomic_load(&r.ran));
    assert_true(moved >= 10 && atomic_load(&r.ran) >= 10);
    must_end(d, s);
    daemon_end(d);
}

/* ---- what may not be moved ---- */

static void test_a_session_of_mode_sandbox_keeps_its_isolation(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, NULL, MODE_SANDBOX);
    struct pd_err e = {.msg = ""};

    is_at(d, s, "jail");
    assert_int_equal(move_to(s, &weak, 0, "test", &e), -1);
    assert_int_equal(e.code, PD_ISOLATION);
    assert_non_null(strstr(e.msg, "sandbox"));
    is_at(d, s, "jail");
    must_end(d, s);

    s = make_in(d, "jail", MODE_NONE); /* the control */
    assert_int_equal(move_to(s, &weak, 0, "test", &e), 0);
    is_at(d, s, "local");
    must_end(d, s);
    daemon_end(d);
}

static void test_a_session_with_an_image_goes_where_images_are_taken(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    struct pd_err e = {.msg = ""};

    lock_take(&s->lock);
    s->info.spec.image = s->image = strdup("debian:12");
    lock_release(&s->lock);
    assert_int_equal(move_to(s, &strong, 0, "test", &e), -1);
    assert_int_equal(e.code, PD_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "image"));

    strong.can |= PROVIDER_IMAGE;
    assert_int_equal(move_to(s, &strong, 0, "test", &e), 0);
    is_at(d, s, "jail");
    must_end(d, s);
    daemon_end(d);
}

static void test_a_session_with_rules_stays_where_they_are_held(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "jail", MODE_NONE);
    struct pd_err e = {.msg = ""};

    lock_take(&s->lock);
    s->info.spec.network = NETWORK_GATE;
    lock_release(&s->lock);
    assert_int_equal(move_to(s, &weak, 0, "test", &e), -1);
    assert_int_equal(e.code, PD_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "provider local can hold none"));
    is_at(d, s, "jail");

    lock_take(&s->lock); /* the control */
    s->info.spec.network = NETWORK_NONE;
    lock_release(&s->lock);
    assert_int_equal(move_to(s, &weak, 0, "test", &e), 0);
    is_at(d, s, "local");
    must_end(d, s);
    daemon_end(d);
}

/* ---- boxes that are lost meanwhile ---- */

static int lose_then_destroy(struct box *box, deadline limit, struct pd_err *e)
{
    session_box_events.lost(box_of(box)->owner, &(struct pd_err){.msg = "it was killed"});
    return world_destroy(box, limit, e);
}

static struct world_box *find_box(struct daemon *d, const char *provider)
{
    for (unsigned i = 0; i < WORLD_ROOM; i++)
        if (d->world->boxes[i].used && !strcmp(d->world->boxes[i].provider, provider))
            return &d->world->boxes[i];
    return NULL;
}

static int lose_the_other(struct box *box, deadline limit, struct pd_err *e)
{
    session_box_events.lost(find_box(the_daemon, "jail")->owner, &(struct pd_err){.msg = "gone"});
    return world_destroy(box, limit, e);
}

static void test_the_loss_of_the_old_box_is_not_the_sessions(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    struct pd_err e = {.msg = ""};

    weak.destroy = strong.destroy = lose_then_destroy;
    for (int i = 0; i < 3; i++) { /* the first box is told of to the session, the next to makers */
        assert_int_equal(move_to(s, i % 2 ? &weak : &strong, 0, "test", &e), 0);
        assert_int_equal(s->lost, 0);
        if (run(s, "ls", MODE_NONE, NULL, &e) < 0)
            fail_msg("%s", e.msg);
    }
    weak.destroy = strong.destroy = world_destroy;
    must_end(d, s);

    /* The control: that of the new one, in the same moment, is. */
    s = make_in(d, "local", MODE_NONE);
    weak.destroy = lose_the_other;
    assert_int_equal(move_to(s, &strong, 0, "test", &e), 0);
    assert_true(s->lost);
    weak.destroy = world_destroy;
    must_end(d, s);
    daemon_end(d);
}

/* ---- what is given up ---- */

static atomic_uint kills, left_over, copied_with_left;

static int group_of_leftovers(struct box *b, unsigned group)
{
    (void)b, (void)group;
    return atomic_load(&left_over) ? 0 : 1;
}

static int kill_leftovers(struct box *b, struct wire_id command, unsigned group, struct pd_err *e)
{
    atomic_fetch_add(&kills, 1);
    if (group)
        atomic_store(&left_over, 0);
    return world_kill(b, command, group, e);
}

static int exec_counting(struct box *b, const struct box_command *c, struct pd_err *e)
{
    if (c->flags & EXEC_WORKER && atomic_load(&left_over))
        atomic_fetch_add(&copied_with_left, 1);
    return exec_worker(b, c, e);
}

static void test_what_commands_left_is_ended_before_files_are_copied(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    struct pd_err e = {.msg = ""};

    weak.group_is_empty = group_of_leftovers;
    weak.exec = exec_counting;
    weak.kill = kill_leftovers;
    lock_take(&s->lock);
    unsigned group = group_take(s, 7777); /* as of a command that has ended */
    group_linger(s, group, 7777);
    lock_release(&s->lock);
    atomic_store(&left_over, 1);
    atomic_store(&copied_with_left, 0);

    assert_int_equal(move_to(s, &strong, 0, "test", &e), -1);
    assert_int_equal(e.code, PD_CONFLICT);
    assert_non_null(strstr(e.msg, "left behind"));
    is_at(d, s, "local");

    if (move_to(s, &strong, MOVE_GIVE_UP, "test", &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(atomic_load(&left_over), 0);
    assert_int_equal(atomic_load(&copied_with_left), 0);
    is_at(d, s, "jail");
    must_end(d, s);
    daemon_end(d);
}

/* A worker that waits for something, as one that watches files does. */
static int exec_waiting(struct box *b, const struct box_command *c, struct pd_err *e)
{
    uint32_t pos = 0;
    return strcmp(msg_list_next(&c->exec.argv, &pos), "watch") == 0 ? 0 : exec_worker(b, c, e);
}

static void test_workers_are_given_up_too(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    struct worker_call call;
    struct pd_err e = {.msg = ""};

    weak.exec = exec_waiting;
    assert_int_equal(msg_list_add(&argv, "watch"), 0);
    struct msg_list words = msg_list_of(&argv);
    assert_int_equal(session_worker(s, &words, NULL, 0, &call, &e), 0);
    if (move_to(s, &strong, MOVE_GIVE_UP, "test", &e) < 0)
        fail_msg("%s", e.msg);
    is_at(d, s, "jail");

    session_worker_end(&call, 0);
    msg_list_writer_done(&argv);
    must_end(d, s);
    daemon_end(d);
}

/* Its end is not told when it is killed, but a moment later. */
static struct {
    struct box *box;
    struct wire_id command;
} dying;

static void *die_later(void *arg)
{
    struct pd_err e;
    (void)arg;
    usleep(200000);
    (void)world_kill(dying.box, dying.command, 0, &e);
    return NULL;
}

static int kill_slowly(struct box *b, struct wire_id command, unsigned group, struct pd_err *e)
{
    pthread_t thread;
    (void)group, (void)e;
    if (atomic_fetch_add(&kills, 1) == 0) {
        dying.box = b;
        dying.command = command;
        assert_int_equal(pthread_create(&thread, NULL, die_later, NULL), 0);
        pthread_detach(thread);
    }
    return 0;
}

static void test_the_end_of_a_command_is_waited_for(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    struct process *p = start_one(s, NULL);
    struct pd_err e = {.msg = ""};

    weak.kill = kill_slowly;
    atomic_store(&kills, 0);
    if (move_to(s, &strong, MOVE_GIVE_UP, "test", &e) < 0)
        fail_msg("%s", e.msg);
    print_message("%u kills\n", atomic_load(&kills));
    assert_true(atomic_load(&kills) <= 6); /* one a second, for as long as it is waited for */
    process_unref(p);
    is_at(d, s, "jail");
    must_end(d, s);
    daemon_end(d);
}

static atomic_uint dropped_elsewhere;
static int held_output = -1;

/* Somebody else has its output as well, so that is not over when the command is. */
static int exec_holding(struct box *b, const struct box_command *c, struct pd_err *e)
{
    if (!(c->flags & EXEC_WORKER))
        held_output = dup(c->fds[1]);
    return exec_worker(b, c, e);
}

static void drop_elsewhere(struct provider *p, const char *key)
{
    atomic_fetch_add(&dropped_elsewhere, 1);
    world_drop(p, key);
}

static void test_descriptors_are_dropped_where_they_were_stashed(void **state)
{
    struct world *w = world_new();
    w->keeps_stash = 1;
    struct daemon *d = begin(state, w);
    struct session *s = make_in(d, "local", MODE_NONE);
    struct pd_err e = {.msg = ""};

    strong.drop = drop_elsewhere;
    weak.exec = exec_holding;
    struct process *p = start_one(s, NULL);
    assert_true(w->stash[0][0]); /* it was stored before it started */
    if (move_to(s, &strong, MOVE_GIVE_UP, "test", &e) < 0)
        fail_msg("%s", e.msg);

    assert_true(w->stash[0][0]);
    process_unref(p);
    must_end(d, s); /* which drops what is left of every command */
    close(held_output);
    for (unsigned i = 0; i < COUNT(w->stash); i++)
        assert_string_equal(w->stash[i], "");
    assert_int_equal(atomic_load(&dropped_elsewhere), 0);
    daemon_end(d);
}

/* ---- paths, and roots that are left ---- */

static void test_paths_are_translated_once(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    struct pd_err e = {.msg = ""};

    is_placed = true; /* at a path that looks like one which is to be translated */
    atomic_store(&path_count, 0);
    if (move_to(s, &strong, 0, "test", &e) < 0)
        fail_msg("%s", e.msg);
    is_at(d, s, "jail");
    assert_int_equal(atomic_load(&path_count), 4);
    assert_string_equal(paths[0], PLACE);
    assert_string_equal(paths[1], "/home/user");
    assert_string_equal(paths[2], PLACE);
    assert_string_equal(paths[3], "/workspace");
    must_end(d, s);
    daemon_end(d);
}

static void test_only_tmp_may_be_missing(void **state)
{
    static const char *const needed[] = {"/workspace", "/home/user"};
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    struct pd_err e = {.msg = ""};

    for (unsigned i = 0; i < COUNT(needed); i++) {
        missing_path = needed[i];
        assert_int_equal(move_to(s, &strong, 0, "test", &e), -1);
        assert_int_equal(e.code, PD_NOT_FOUND);
        assert_non_null(strstr(e.msg, needed[i]));
        is_at(d, s, "local");
    }
    missing_path = "/tmp";
    if (move_to(s, &strong, 0, "test", &e) < 0)
        fail_msg("%s", e.msg);
    is_at(d, s, "jail");
    must_end(d, s);
    daemon_end(d);
}

/* The keeper is away when old roots are to be deleted, which is made up for later. */
static void test_every_root_that_was_left_is_deleted(void **state)
{
    struct daemon *d = begin(state, world_new());
    struct session *s = make_in(d, "local", MODE_NONE);
    struct pd_err e = {.msg = ""};

    d->world->fail_remove = 1;
    for (int i = 0; i < 3; i++)
        assert_int_equal(move_to(s, i % 2 ? &weak : &strong, 0, "test", &e), 0);
    assert_int_equal(root_count(d->world), 4);

    d->world->fail_store = 1; /* nor does a move that fails forget them */
    assert_int_equal(move_to(s, &weak, 0, "test", &e), -1);
    d->world->fail_store = d->world->fail_remove = 0;
    deadline limit = deadline_in(60 * NS_PER_S); /* the controller looks every second */
    while (has_left(s) && !deadline_passed(limit))
        usleep(1000);
    is_at(d, s, "jail");

    d->world->fail_remove = 1; /* or the next daemon does */
    assert_int_equal(move_to(s, &weak, 0, "test", &e), 0);
    assert_int_equal(move_to(s, &strong, 0, "test", &e), 0);
    assert_int_equal(root_count(d->world), 3);

    char id[SESSION_ID_LEN + 1];
    snprintf(id, sizeof id, "%s", s->info.id);
    daemon_end(d);
    d->world->fail_remove = 0;
    d = begin(state, d->world);
    assert_non_null(s = sessions_find(d->all, "acme", id, &e));
    is_at(d, s, "jail");
    must_end(d, s);
    daemon_end(d);
}

/* ---- moves against others ---- */

struct mover {
    struct session *session;
    atomic_uint moves;
    atomic_bool stop;
};

static void *keep_moving(void *arg)
{
    struct mover *m = arg;
    for (unsigned n = 0; !atomic_load(&m->stop); n++) {
        struct pd_err e;
        if (move_to(m->session, n % 2 ? &weak : &strong, MOVE_GIVE_UP, "test", &e) == 0)
            atomic_fetch_add(&m->moves, 1);
        else if (e.code != PD_CONFLICT && e.code != PD_PAUSED) /* somebody else changes it */
            break;
    }
    return NULL;
}

/* Whoever deletes a sandbox while two move it: nothing of it is left, at neither provider. */
static void test_a_delete_against_moves(void **state)
{
    unsigned rounds = getenv("PADDOCK_NIGHTLY") ? 5000 : 300, moved = 0;
    struct daemon *d = begin(state, world_new());

    for (unsigned n = 0; n < rounds; n++) {
        struct mover m = {.session = make_in(d, n % 2 ? "local" : "jail", MODE_NONE)};
        pthread_t threads[2];
        struct pd_err e;
        for (unsigned i = 0; i < COUNT(threads); i++)
            assert_int_equal(pthread_create(&threads[i], NULL, keep_moving, &m), 0);
        deadline limit = deadline_in(60 * NS_PER_S);
        while (n % 2 && !atomic_load(&m.moves) && !deadline_passed(limit)) /* on a busy machine */
            usleep(100);
        usleep(n * 7919 % 3000);
        while (session_end(m.session, END_KILLED, "test", &e) < 0)
            if (deadline_passed(limit))
                fail_msg("round %u: %s", n, e.msg);
        atomic_store(&m.stop, true);
        for (unsigned i = 0; i < COUNT(threads); i++)
            pthread_join(threads[i], NULL);
        moved += atomic_load(&m.moves);

        /* What a move had left behind, the controller takes away. */
        while ((box_count(d->world) || root_count(d->world)) && !deadline_passed(limit))
            usleep(1000);
        assert_int_equal(box_count(d->world), 0);
        assert_int_equal(root_count(d->world), 0);
        session_unref(m.session);
    }
    print_message("%u deletes, %u moves\n", rounds, moved);
    assert_true(moved > rounds / 4);
    daemon_end(d);
}

/* A pause finds it at one of the two, and it goes on there with all its files. */
static void test_a_pause_against_moves(void **state)
{
    unsigned rounds = getenv("PADDOCK_NIGHTLY") ? 5000 : 300, paused = 0;
    struct daemon *d = begin(state, world_new());
    struct mover m = {.session = make_in(d, "local", MODE_NONE)};
    pthread_t thread;
    struct pd_err e;

    assert_int_equal(pthread_create(&thread, NULL, keep_moving, &m), 0);
    for (unsigned n = 0; n < rounds; n++) {
        bool did = session_pause(m.session, &e) == 0;
        paused += did;
        usleep(n * 7919 % 300);
        deadline limit = deadline_in(60 * NS_PER_S);
        while (did && session_resume(m.session, &e) < 0)
            if (deadline_passed(limit))
                fail_msg("round %u: %s", n, e.msg);

        /* As many moves as pauses, beside each other. */
        while (atomic_load(&m.moves) < n && !deadline_passed(limit))
            usleep(n * 31 % 100);
    }
    atomic_store(&m.stop, true);
    pthread_join(thread, NULL);

    print_message("%u pauses, %u moves\n", paused, atomic_load(&m.moves));
    assert_true(paused > rounds / 2 && atomic_load(&m.moves) > rounds / 2);
    is_at(d, m.session, m.session->provider->name);
    must_end(d, m.session);
    daemon_end(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_files_directory_and_variables_move),
        IN_WORLD(test_the_loss_of_a_moved_box_is_its_sessions),
        IN_WORLD(test_what_runs_is_not_moved_unless_given_up),
        IN_WORLD(test_a_move_that_fails_leaves_it_where_it_was),
        IN_WORLD(test_death_at_any_step_leaves_one_box_with_all_files),
        IN_WORLD(test_commands_against_moves),
        IN_WORLD(test_a_session_of_mode_sandbox_keeps_its_isolation),
        IN_WORLD(test_a_session_with_rules_stays_where_they_are_held),
        IN_WORLD(test_a_session_with_an_image_goes_where_images_are_taken),
        IN_WORLD(test_the_loss_of_the_old_box_is_not_the_sessions),
        IN_WORLD(test_what_commands_left_is_ended_before_files_are_copied),
        IN_WORLD(test_workers_are_given_up_too),
        IN_WORLD(test_the_end_of_a_command_is_waited_for),
        IN_WORLD(test_descriptors_are_dropped_where_they_were_stashed),
        IN_WORLD(test_paths_are_translated_once),
        IN_WORLD(test_only_tmp_may_be_missing),
        IN_WORLD(test_every_root_that_was_left_is_deleted),
        IN_WORLD(test_a_delete_against_moves),
        IN_WORLD(test_a_pause_against_moves),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
