/* Snapshots and forks, by a provider that copies numbers. */
#include "world.h"

static const char *dir_of(void **state)
{
    return ((struct place *)*state)->dir;
}

static int content_of(const struct world *w, const char *kind, const char *id)
{
    char name[64];
    snprintf(name, sizeof name, "%s-%s", kind, id);
    int at = root_find(w, name);
    return at < 0 ? -1 : w->roots[at].content;
}

static void set_content(struct world *w, const struct session *s, int content)
{
    w->roots[root_find(w, s->root_name)].content = content;
}

static struct snapshot_info snap(struct session *s, const char *name)
{
    struct pd_err e = {0};
    struct snapshot_info i;
    if (session_snapshot(s, name, &i, &e) < 0)
        fail_msg("snapshot: %s", e.msg);
    return i;
}

static void test_a_sandbox_starts_as_the_snapshot_was(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {.template_name = "base"};
    struct session *s = make_one(d, &r);
    set_content(w, s, 42);
    struct snapshot_info i = snap(s, "one");
    set_content(w, s, 43);
    assert_true(id_is_sandbox(i.id));
    assert_string_equal(i.tenant, "acme");
    assert_string_equal(i.name, "one");
    assert_string_equal(i.sandbox, s->info.id);
    assert_string_equal(i.template_name, "base");
    assert_int_equal(content_of(w, "sn", i.id), 42);
    /* The sandbox may be gone. */
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    struct session_request from = {.snapshot = i.id};
    struct session *t = make_one(d, &from);
    assert_int_equal(content_of(w, "sb", t->info.id), 42);
    assert_int_equal(t->info.from_pool, 0);
    /* By name, too; but not for somebody else. */
    struct session_request named = {.snapshot = "one"};
    session_unref(make_one(d, &named));
    struct session_request theirs = {
        .tenant = "evil", .snapshot = i.id, .spec = SPEC_DEFAULT, .env = {.text = ""}};
    struct queue_place place;
    struct session *none = NULL;
    bool known;
    assert_int_equal(sessions_create(d->all, &theirs, &none, &known, &place, &e), -1);
    assert_int_equal(e.code, PD_NOT_FOUND);
    struct snapshot_info found;
    assert_int_equal(snapshots_find(d->all, "evil", "one", &found, &e), -1);
    assert_int_equal(e.code, PD_NOT_FOUND);
    assert_int_equal(snapshot_delete(d->all, "evil", i.id, &e), -1);
    assert_int_equal(e.code, PD_NOT_FOUND);
    assert_int_equal(root_count(w), 3);
    assert_int_equal(d->all->live, 2); /* who got none counts for nothing */

    assert_int_equal(snapshot_delete(d->all, "acme", "one", &e), 0);
    assert_int_equal(content_of(w, "sn", i.id), -1);
    assert_int_equal(snapshot_delete(d->all, "acme", i.id, &e), -1);
    assert_int_equal(e.code, PD_NOT_FOUND);
    assert_int_equal(root_count(w), 2);
    session_unref(s);
    session_unref(t);
    daemon_end(d);
}

static void test_a_name_moves_to_the_latest(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0}, o = {.tenant = "other"};
    struct session *s = make_one(d, &r), *theirs = make_one(d, &o);
    struct snapshot_info other = snap(theirs, "latest");
    struct snapshot_info a = snap(s, "latest"), b = snap(s, "latest"), found;

    for (int again = 0; again < 2; again++) {
        assert_int_equal(snapshots_find(d->all, "acme", "latest", &found, &e), 0);
        assert_string_equal(found.id, b.id);
        assert_int_equal(snapshots_find(d->all, "acme", a.id, &found, &e), 0);
        assert_string_equal(found.name, "");
        assert_int_equal(snapshots_find(d->all, "other", "latest", &found, &e), 0);
        assert_string_equal(found.id, other.id);
        daemon_end(d);
        d = daemon_begin(w, dir_of(state), 0, NULL);
    }

    session_unref(s);
    session_unref(theirs);
    daemon_end(d);
}

static void test_lists_are_newest_first_and_in_pages(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0}, q = {0};
    struct session *s = make_one(d, &r), *t = make_one(d, &q);
    char ids[5][SESSION_ID_LEN + 1];

    for (unsigned i = 0; i < 5; i++) {
        struct snapshot_info made = snap(i == 2 ? t : s, i == 1 ? "named" : NULL);
        memcpy(ids[i], made.id, sizeof ids[i]);
        usleep(2000);
    }

    struct snapshot_info page[5];
    char next[64] = "", at[64];
    unsigned count, seen = 0;
    do {
        memcpy(at, next, sizeof at);
        assert_int_equal(snapshots_list(d->all, "acme", NULL, NULL, at[0] ? at : NULL, 2, page,
                                        &count, next, &e),
                         0);
        for (unsigned i = 0; i < count; i++, seen++)
            assert_string_equal(page[i].id, ids[4 - seen]);
    } while (next[0]);

    assert_int_equal(seen, 5);
    assert_int_equal(
        snapshots_list(d->all, "acme", t->info.id, NULL, NULL, 5, page, &count, next, &e), 0);
    assert_int_equal(count, 1);
    assert_string_equal(page[0].id, ids[2]);
    assert_int_equal(snapshots_list(d->all, "acme", NULL, "named", NULL, 5, page, &count, next, &e),
                     0);
    assert_int_equal(count, 1);
    assert_string_equal(page[0].id, ids[1]);
    assert_int_equal(snapshots_list(d->all, "evil", NULL, NULL, NULL, 5, page, &count, next, &e),
                     0);
    assert_int_equal(count, 0);
    assert_int_equal(snapshots_list(d->all, "acme", NULL, NULL, "x", 5, page, &count, next, &e),
                     -1);
    assert_int_equal(e.code, PD_INVALID);

    session_unref(s);
    session_unref(t);
    daemon_end(d);
}

static void two_snapshots(struct sessions_config *c)
{
    c->max_snapshots = 2;
}

static void test_there_is_a_limit_per_tenant(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, two_snapshots);
    struct session_request r = {0}, o = {.tenant = "other"};
    struct session *s = make_one(d, &r), *theirs = make_one(d, &o);
    struct snapshot_info i = snap(s, NULL);

    snap(s, NULL);
    assert_int_equal(session_snapshot(s, NULL, &i, &e), -1);
    assert_int_equal(e.code, PD_CAPACITY);

    snap(theirs, NULL);
    assert_int_equal(snapshot_delete(d->all, "acme", i.id, &e), 0);
    snap(s, NULL);
    assert_int_equal(root_count(w), 5);

    session_unref(s);
    session_unref(theirs);
    daemon_end(d);
}

static void test_a_failed_copy_leaves_nothing(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r), *none = NULL;
    struct snapshot_info good = snap(s, "good"), i;

    w->fail_copy = 1;
    assert_int_equal(session_snapshot(s, NULL, &i, &e), -1);
    assert_int_equal(e.code, PD_NO_SPACE);

    struct session_request from = {
        .tenant = "acme", .snapshot = good.id, .spec = SPEC_DEFAULT, .env = {.text = ""}};
    struct queue_place place;
    bool known;
    assert_int_equal(sessions_create(d->all, &from, &none, &known, &place, &e), -1);
    assert_int_equal(e.code, PD_NO_SPACE);

    from.snapshot = NULL;
    assert_int_equal(session_fork(s, &from, &none, &e), -1);
    assert_int_equal(e.code, PD_NO_SPACE);
    assert_int_equal(root_count(w), 2);
    assert_int_equal(count_sessions(d->real), 1);

    w->fail_copy = 0;
    w->fail_store = 1;
    assert_int_equal(session_snapshot(s, NULL, &i, &e), -1);

    w->fail_store = 0;
    assert_int_equal(root_count(w), 2);
    assert_int_equal(d->all->snapshots_to_go, 0);

    /* The sandbox goes on. */
    process_unref(start_one(s, NULL));
    assert_int_equal(session_pause(s, &e), 0);
    snap(s, NULL);
    assert_int_equal(session_sleep(s, &e), 0);

    snap(s, NULL);
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    assert_int_equal(session_snapshot(s, NULL, &i, &e), -1);
    assert_int_equal(e.code, PD_NOT_FOUND);
    assert_int_equal(root_count(w), 3);
    session_unref(s);
    daemon_end(d);
}

static void test_a_fork_has_the_files_and_what_it_is_told(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct msg_list_writer env = MSG_LIST_WRITER_INIT, other = MSG_LIST_WRITER_INIT;
    assert_int_equal(msg_list_add(&env, "A=1"), 0);
    assert_int_equal(msg_list_add(&other, "B=2"), 0);

    struct session_request r = {.env = msg_list_of(&env), .cwd = "/here", .note = "mine"};
    struct session *s = make_one(d, &r), *t = NULL, *u = NULL;
    set_content(w, s, 42);

    struct session_request f = {
        .tenant = "acme", .note = "forked", .spec = SPEC_DEFAULT, .env = {.text = ""}};
    assert_int_equal(session_fork(s, &f, &t, &e), 0);
    assert_int_equal(content_of(w, "sb", t->info.id), 42);
    assert_string_equal(t->cwd, "/here");
    assert_int_equal(t->env.count, 1);

    char *note = session_note(t);
    assert_string_equal(note, "forked");
    free(note);

    f.env = msg_list_of(&other);
    f.cwd = "/there";
    assert_int_equal(session_sleep(s, &e), 0);
    assert_int_equal(session_fork(s, &f, &u, &e), 0);
    assert_string_equal(u->cwd, "/there");
    assert_int_equal(u->env.count, 1);
    assert_int_equal(box_count(w), 2);
    assert_int_equal(root_count(w), 3);
    assert_int_equal(d->all->live, 3);
    msg_list_writer_done(&env);
    msg_list_writer_done(&other);

    session_unref(s);
    session_unref(t);
    session_unref(u);
    daemon_end(d);
}

static void in_memory(struct sessions_config *c)
{
    c->disk_roots = false;
}

static void test_files_in_memory_are_not_copied(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, in_memory);
    struct session_request r = {0};
    struct session *s = make_one(d, &r), *t;
    struct snapshot_info i;

    assert_int_equal(session_snapshot(s, NULL, &i, &e), -1);
    assert_int_equal(e.code, PD_UNSUPPORTED);
    assert_int_equal(session_fork(s, &r, &t, &e), -1);
    assert_int_equal(e.code, PD_UNSUPPORTED);

    d->all->c.disk_roots = true;
    d->provider.can &= ~(unsigned)PROVIDER_SNAPSHOT;
    assert_int_equal(session_snapshot(s, NULL, &i, &e), -1);
    assert_int_equal(e.code, PD_UNSUPPORTED);
    session_unref(s);
    daemon_end(d);
}

/* ---- deleting while it is copied ---- */

struct maker {
    struct daemon *d;
    const char *snapshot;
    struct session *made;
};

static void *make_slowly(void *arg)
{
    struct maker *m = arg;
    struct session_request r = {.snapshot = m->snapshot};
    m->made = make_one(m->d, &r);
    return NULL;
}

static void test_deleting_does_not_break_a_copy_that_is_being_made(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    set_content(w, s, 42);

    struct snapshot_info i = snap(s, "x"), found;
    struct maker m = {.d = d, .snapshot = i.id};
    w->hold_copy = 1;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, make_slowly, &m), 0);

    deadline limit = deadline_in(60 * NS_PER_S);
    while (!__atomic_load_n(&w->copies_running, __ATOMIC_SEQ_CST) && !deadline_passed(limit))
        usleep(1000);
    assert_false(deadline_passed(limit));
    assert_int_equal(snapshot_delete(d->all, "acme", i.id, &e), 0);
    assert_int_equal(snapshots_find(d->all, "acme", "x", &found, &e), -1);
    assert_int_equal(content_of(w, "sn", i.id), 42); /* for as long as it is needed */

    __atomic_store_n(&w->hold_copy, 0, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    assert_int_equal(content_of(w, "sb", m.made->info.id), 42);
    assert_int_equal(content_of(w, "sn", i.id), -1);
    assert_int_equal(d->all->snapshots_to_go, 0);

    session_unref(m.made);
    session_unref(s);
    daemon_end(d);
}

static void test_what_cannot_be_removed_now_is_removed_later(void **state)
{
    struct world *w = world_new();
    struct pd_err e = {0};
    struct daemon *d = daemon_begin(w, dir_of(state), 1, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct snapshot_info a = snap(s, NULL), b = snap(s, NULL);

    w->fail_remove = 1;
    assert_int_equal(snapshot_delete(d->all, "acme", a.id, &e), 0);
    assert_int_equal(snapshot_delete(d->all, "acme", b.id, &e), 0);
    assert_int_equal(root_count(w), 3);
    assert_int_equal(snapshot_delete(d->all, "acme", a.id, &e), -1);

    w->fail_remove = 0;
    deadline limit = deadline_in(60 * NS_PER_S);
    while (root_count(w) > 1 && !deadline_passed(limit))
        usleep(10000);
    assert_int_equal(root_count(w), 1);
    session_unref(s);
    daemon_end(d);
}

/* ---- death ---- */

static void act_snapshot(struct daemon *d, const char *id)
{
    struct pd_err e;
    struct snapshot_info i;
    struct session *s = sessions_find_any(d->all, id, &e);
    (void)session_snapshot(s, "name", &i, &e);
}

static void act_delete(struct daemon *d, const char *id)
{
    struct pd_err e;
    (void)id;
    (void)snapshot_delete(d->all, "acme", "name", &e);
}

static void act_make(struct daemon *d, const char *id)
{
    (void)id;
    struct session_request r = {.snapshot = "name"};
    (void)make_one(d, &r);
}

static void act_fork(struct daemon *d, const char *id)
{
    struct pd_err e;
    struct session *s = sessions_find_any(d->all, id, &e), *t;
    struct session_request r = {.tenant = "acme", .spec = SPEC_DEFAULT, .env = {.text = ""}};
    (void)session_fork(s, &r, &t, &e);
}

struct rows {
    const struct world *w;
    unsigned snapshots, sessions;
};

/* Every row has its root. */
static int check_snapshot_row(const struct snapshot_row *r, void *arg)
{
    struct rows *rows = arg;
    rows->snapshots++;
    assert_int_equal(content_of(rows->w, "sn", r->id), 42);
    return 0;
}

static int check_session_row(const struct session_row *r, void *arg)
{
    struct rows *rows = arg;
    if (r->state == SESSION_GONE)
        return 0;
    rows->sessions++;
    assert_int_equal(content_of(rows->w, "sb", r->id), 42);
    return 0;
}

static void die_everywhere(void **state, void (*act)(struct daemon *d, const char *id),
                           unsigned steps)
{
    unsigned n = 1;

    for (int died = 1; died; n++) {
        struct world *w = world_new();
        struct pd_err e = {0};
        struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
        struct session_request r = {0};
        struct session *s = make_one(d, &r);
        set_content(w, s, 42);
        snap(s, "name");
        daemon_end(d);
        died = die_at(w, dir_of(state), n, act, s->info.id);
        session_unref(s);
        d = daemon_begin(w, dir_of(state), 0, NULL);

        struct rows rows = {.w = w};
        assert_int_equal(d->real->each_snapshot(d->real, check_snapshot_row, &rows, &e), 0);
        assert_int_equal(d->real->each_session(d->real, check_session_row, &rows, &e), 0);

        /* Nothing but what rows tell of, and the name is somebody's. */
        assert_int_equal(root_count(w), rows.snapshots + rows.sessions);
        assert_int_equal(box_count(w), rows.sessions);

        struct snapshot_info i;
        if (rows.snapshots)
            assert_int_equal(snapshots_find(d->all, "acme", "name", &i, &e), 0);
        else
            assert_ptr_equal(act, act_delete);

        sessions_end_all(d->all, "test");
        while (snapshots_find(d->all, "acme", "name", &i, &e) == 0)
            assert_int_equal(snapshot_delete(d->all, "acme", i.id, &e), 0);

        struct snapshot_info rest[8];
        char next[64];
        unsigned count;
        assert_int_equal(
            snapshots_list(d->all, "acme", NULL, NULL, NULL, 8, rest, &count, next, &e), 0);
        for (unsigned k = 0; k < count; k++)
            assert_int_equal(snapshot_delete(d->all, "acme", rest[k].id, &e), 0);
        assert_int_equal(root_count(w), 0);
        daemon_end(d);
    }

    assert_true(n > steps);
}

static void test_death_while_a_snapshot_is_made(void **state)
{
    die_everywhere(state, act_snapshot, 4);
}

static void test_death_while_one_is_deleted(void **state)
{
    die_everywhere(state, act_delete, 3);
}

static void test_death_while_a_sandbox_is_made_from_one(void **state)
{
    die_everywhere(state, act_make, 4);
}

static void test_death_while_one_is_forked(void **state)
{
    die_everywhere(state, act_fork, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_a_sandbox_starts_as_the_snapshot_was),
        IN_WORLD(test_a_name_moves_to_the_latest),
        IN_WORLD(test_lists_are_newest_first_and_in_pages),
        IN_WORLD(test_there_is_a_limit_per_tenant),
        IN_WORLD(test_a_failed_copy_leaves_nothing),
        IN_WORLD(test_a_fork_has_the_files_and_what_it_is_told),
        IN_WORLD(test_files_in_memory_are_not_copied),
        IN_WORLD(test_deleting_does_not_break_a_copy_that_is_being_made),
        IN_WORLD(test_what_cannot_be_removed_now_is_removed_later),
        IN_WORLD(test_death_while_a_snapshot_is_made),
        IN_WORLD(test_death_while_one_is_deleted),
        IN_WORLD(test_death_while_a_sandbox_is_made_from_one),
        IN_WORLD(test_death_while_one_is_forked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
