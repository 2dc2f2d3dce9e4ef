/* Sessions that go from one provider to another, and commands that ask for a mode: what moves, what
 * is refused, what a death at any step leaves. Two providers of one world; a worker of theirs packs
 * and unpacks the one number that a root has as its content. */
#include "world.h"

#include "router/router.h"
#include "wire/record.h"

#include <sched.h>

static struct provider weak, strong;
static int break_copy; /* 1: half of an archive, 2: the other side does not take it */
static atomic_uint copies;

static enum rung rung_weak(struct provider *p)
{
    (void)p;
    return RUNG_NONE;
}

static enum rung rung_strong(struct provider *p)
{
    (void)p;
    return RUNG_FULL;
}

static enum rung rung_of_box(const struct box *b)
{
    return !strcmp(((const struct world_box *)b)->provider, "local") ? RUNG_NONE : RUNG_FULL;
}

/* ---- workers ---- */

struct job {
    struct world_box *box;
    struct wire_id id;
    int in, out;
    bool packs, is_workspace;
};

static void say(int fd, const struct record *r)
{
    struct buf b = BUF_INIT(4096);
    record_encode(&b, r);
    (void)!write(fd, b.data, b.len); /* to nobody, when it was given up */
    buf_done(&b);
}

static int *content_of(struct world_box *b)
{
    int at = root_find(the_daemon->world, b->root);
    assert_true(at >= 0);
    return &the_daemon->world->roots[at].content;
}

static void *work(void *arg)
{
    struct job *j = arg;
    int content = 0, status = 0;

    if (j->packs) {
        say(j->out, &(struct record){.kind = RECORD_ENTRY, .entry = {.path = "", .target = ""}});
        size_t len = break_copy == 1 ? 2 : sizeof content;
        if (j->is_workspace)
            (void)!write(j->out, content_of(j->box), len);
        status = break_copy == 1 ? 1 << 8 : 0;
    } else {
        size_t got = 0;
        ssize_t n;
        while ((n = read(j->in, (char *)&content + got, sizeof content - got)) > 0)
            got += (size_t)n;
        if (break_copy == 2) {
            say(j->out, &(struct record){.kind = RECORD_ERROR,
                                         .error = {.code = PD_NO_SPACE, .text = "full"}});
            status = 1 << 8;
        } else {
            if (got == sizeof content) {
                tick(the_daemon->world);
                *content_of(j->box) = content;
            }
            atomic_fetch_add(&copies, 1);
            say(j->out, &(struct record){.kind = RECORD_TAR_DONE});
        }
    }

    close(j->in);
    close(j->out);
    world_ended(j->box, j->id, (struct msg_exited){.pid = 8, .status = status});
    free(j);
    return NULL;
}

static int exec_worker(struct box *box, const struct box_command *c, struct pd_err *e)
{
    uint32_t pos = 0;
    if (!(c->flags & EXEC_WORKER))
        return world_exec(box, c, e);

    pthread_t thread;
    struct job *j = malloc(sizeof *j);
    const char *verb = msg_list_next(&c->exec.argv, &pos);
    *j = (struct job){.box = box_of(box),
                      .id = c->id,
                      .in = dup(c->fds[0]),
                      .out = dup(c->fds[1]),
                      .packs = !strcmp(verb, "tar")};
    j->is_workspace = !strcmp(msg_list_next(&c->exec.argv, &pos), "/workspace");
    assert_int_equal(pthread_create(&thread, NULL, work, j), 0);
    pthread_detach(thread);
    return 0;
}

/* ---- two providers ---- */

static void two(struct sessions_config *c)
{
    struct provider_table *t = &the_daemon->providers;
    struct pd_err e;
    (void)c;

    weak = strong = the_daemon->provider;
    weak.name = "local";
    weak.best = rung_weak;
    strong.name = "jail";
    strong.best = rung_strong;
    weak.rung = strong.rung = rung_of_box;
    weak.exec = strong.exec = exec_worker;
    weak.count = strong.count = NULL;
    t->list[0] = &weak;
    assert_int_equal(provider_table_add(t, &strong, &e), 0);
}

static struct daemon *begin(void **state, struct world *w)
{
    struct place *place = *state;
    break_copy = 0;
    signal(SIGPIPE, SIG_IGN);
    return daemon_begin(w, place->dir, 1, two);
}

static struct session *make_in(struct daemon *d, const char *provider, enum run_mode mode)
{
    struct session_request r = {.provider = provider, .mode = mode};
    struct session *s = make_one(d, &r);
    *content_of(box_of(s->box)) = 42;
    return s;
}

static void is_at(struct daemon *d, struct session *s, const char *provider)
{
    assert_string_equal(s->info.provider, provider);
    assert_string_equal(s->provider->name, provider);
    assert_string_equal(box_of(s->box)->provider, provider);
    assert_int_equal(*content_of(box_of(s->box)), 42);
    assert_int_equal(box_count(d->world), 1);
    assert_int_equal(root_count(d->world), 1);
    assert_null(s->other_root);
}

static void must_end(struct daemon *d, struct session *s)
{
    struct pd_err e;
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    assert_int_equal(box_count(d->world), 0);
    assert_int_equal(root_count(d->world), 0);
    session_unref(s);
}

static int run(struct session *s, const char *line, enum run_mode mode, struct placement *place,
               struct pd_err *e)
{
    struct process_request r = {.command = line,
                                .argv = {.text = ""},
                                .env = {.text = ""},
                                .mode = mode,
                                .placement = place};
    struct process *p;
    struct pd_err ignored;
    int known;
    if (session_start(s, &r, &p, &known, e) < 0)
        return -1;
    struct watch w;
    assert_int_equal(process_watch(p, &w, &ignored), 0);
    assert_int_equal(process_stop(p, STOP_KILLED, &ignored), 0);
    assert_int_equal(process_wait(p, &w, -1, deadline_in(60 * NS_PER_S), &ignored), 0);
    process_unwatch(p, &w);
    process_unref(p);
    return 0;
}

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
        if (session_move(s, to, 0, "moved by a test", &e) < 0)
            fail_msg("%s", e.msg);
        is_at(d, s, to->name);
        assert_int_equal(s->info.rung, i % 2 ? RUNG_NONE : RUNG_FULL);
        assert_string_equal(s->info.reason, "moved by a test");
        assert_string_equal(s->cwd, "/workspace/deep");
    }
    assert_int_equal(session_move(s, &strong, 0, "again", &e), 0); /* it is there */
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

    assert_int_equal(session_move(s, &strong, 0, "test", &e), 0);
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

    assert_int_equal(session_move(s, &strong, 0, "test", &e), -1);
    assert_int_equal(e.code, PD_CONFLICT);
    assert_non_null(strstr(e.msg, "give_up"));
    is_at(d, s, "local");
    assert_true(process_state_is_live(process_state(p)));

    if (session_move(s, &strong, MOVE_GIVE_UP, "test", &e) < 0)
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
        assert_int_equal(session_move(s, &strong, 0, "test", &e), -1);
        is_at(d, s, "local");
    }
    break_copy = 0;

    d->world->fail_create = FAIL_AT_ONCE;
    assert_int_equal(session_move(s, &strong, 0, "test", &e), -1);
    assert_int_equal(e.code, PD_CAPACITY);
    d->world->fail_create = 0;
    is_at(d, s, "local");

    d->world->fail_store = 1;
    assert_int_equal(session_move(s, &strong, 0, "test", &e), -1);
    d->world->fail_store = 0;
    is_at(d, s, "local");

    assert_int_equal(session_move(s, &strong, 0, "test", &e), 0);
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

        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            d = daemon_begin(w, place->dir, 0, two);
            s = sessions_find(d->all, "acme", id, &e);
            w->fuse = n;
            _exit(s && session_move(s, &strong, 0, "test", &e) == 0 ? 0 : 1);
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
        int bad = session_move(s, s->provider == &weak ? &strong : &weak, 0, "race", &e);
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
        struct placement place;
        struct pd_err e = {.msg = ""};
        r.argv.text = "";
        if (!r.env.text)
            r.env.text = "";
        if (session_judge(s, &r, &place, &e) < 0)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_files_directory_and_variables_move),
        IN_WORLD(test_the_loss_of_a_moved_box_is_its_sessions),
        IN_WORLD(test_what_runs_is_not_moved_unless_given_up),
        IN_WORLD(test_a_move_that_fails_leaves_it_where_it_was),
        IN_WORLD(test_death_at_any_step_leaves_one_box_with_all_files),
        IN_WORLD(test_commands_against_moves),
        IN_WORLD(test_auto_starts_cheap_and_rises_with_the_command),
        IN_WORLD(test_auto_knows_directory_variables_and_user),
        IN_WORLD(test_modes_of_one_command),
        IN_WORLD(test_modes_of_a_creation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
