/* What sessions answer when their provider can do less than the jail, and how a server's table of
 * providers is filled. A capability that is missing has no function behind it here, so that a call
 * which does not ask first ends this program. */
#include "world.h"

static const char *dir_of(void **state)
{
    return ((struct place *)*state)->dir;
}

/* ---- the table ---- */

static struct provider whole(void)
{
    static struct world w;
    static struct daemon d = {.world = &w};
    return world_provider(&d);
}

static void test_a_promise_without_a_function_is_refused(void **state)
{
    (void)state;
    struct provider_table t = {.count = 0};
    struct pd_err e = {0};

    struct provider p = whole();
    p.pause = NULL;
    assert_int_equal(provider_table_add(&t, &p, &e), -1);
    assert_string_equal(e.msg, "provider world has no function 'pause', which it promises");

    p = whole();
    p.can |= PROVIDER_TERMINAL;
    assert_int_equal(provider_table_add(&t, &p, &e), -1);
    assert_non_null(strstr(e.msg, "'terminal'"));

    p = whole();
    p.kill = NULL; /* no capability: everybody has it */
    assert_int_equal(provider_table_add(&t, &p, &e), -1);
    assert_non_null(strstr(e.msg, "'kill'"));

    p = whole();
    p.patience.create = 0;
    assert_int_equal(provider_table_add(&t, &p, &e), -1);
    assert_non_null(strstr(e.msg, "how long to wait"));

    assert_int_equal(t.count, 0);
    p = whole();
    assert_int_equal(provider_table_add(&t, &p, &e), 0);
    assert_int_equal(t.count, 1);
}

static void test_names(void **state)
{
    (void)state;
    struct provider_table t = {.count = 0};
    struct pd_err e = {0};
    struct provider one = whole(), other = whole(), same = whole(), automatic = whole();
    other.name = "other";
    automatic.name = "auto";

    assert_int_equal(provider_table_add(&t, &one, &e), 0);
    assert_int_equal(provider_table_add(&t, &other, &e), 0);
    assert_int_equal(provider_table_add(&t, &same, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    assert_int_equal(provider_table_add(&t, &automatic, &e), -1);

    assert_ptr_equal(provider_table_choose(&t, NULL, &e), &one);
    assert_ptr_equal(provider_table_choose(&t, "auto", &e), &one);
    assert_ptr_equal(provider_table_choose(&t, "other", &e), &other);
    assert_null(provider_table_choose(&t, "docker", &e));
    assert_int_equal(e.code, PD_INVALID);
    assert_string_equal(e.msg, "provider 'docker' is not one of this server's: auto, world, other");
}

static void test_every_capability_has_a_text(void **state)
{
    (void)state;
    struct provider p = {.name = "half"};

    for (unsigned i = 0; i < PROVIDER_CAPABILITY_COUNT; i++) {
        const struct provider_capability *c = &provider_capabilities[i];
        struct pd_err e = {0};
        assert_int_equal(c->bit, 1u << i);
        assert_int_equal(provider_must(&p, (enum provider_can)c->bit, &e), -1);
        assert_int_equal(e.code, PD_UNSUPPORTED);
        assert_non_null(strstr(e.msg, "provider half cannot "));
        assert_non_null(strstr(e.msg, c->instead));
    }
}

/* ---- sessions ---- */

static void assert_unsupported(int r, const struct pd_err *e, const char *capability)
{
    char wanted[200] = "";
    for (unsigned i = 0; i < PROVIDER_CAPABILITY_COUNT; i++)
        if (!strcmp(provider_capabilities[i].name, capability))
            snprintf(wanted, sizeof wanted, "provider world cannot %s: %s",
                     provider_capabilities[i].cannot, provider_capabilities[i].instead);
    assert_int_equal(r, -1);
    assert_string_equal(e->msg, wanted);
    assert_int_equal(e->code, PD_UNSUPPORTED);
}

static int start(struct session *s, struct process_request r, struct pd_err *e)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    struct process *p = NULL;
    bool known;
    assert_int_equal(msg_list_add(&argv, "/bin/true"), 0);
    r.argv = msg_list_of(&argv);
    r.env.text = "";

    int result = session_start(s, &r, &p, &known, e);
    if (result == 0)
        process_unref(p);
    msg_list_writer_done(&argv);
    return result;
}

static int worker(struct session *s, unsigned flags, struct pd_err *e)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    struct worker_call c;
    assert_int_equal(msg_list_add(&argv, "stat"), 0);
    struct msg_list list = msg_list_of(&argv);

    int r = session_worker(s, &list, NULL, flags, &c, e);
    if (r == 0)
        session_worker_end(&c, 1);
    msg_list_writer_done(&argv);
    return r;
}

#define ALL_BITS ((1u << PROVIDER_CAPABILITY_COUNT) - 1)

/* The least that a provider may be: boxes, commands, kills. */
static void test_a_provider_that_can_nothing_else(void **state)
{
    struct world *w = world_new();
    w->cannot = ALL_BITS;
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct pd_err e = {0};
    assert_string_equal(s->info.provider, "world");
    assert_string_equal(s->root_name, ""); /* no root, though the server has them on disk */

    assert_unsupported(session_pause(s, &e), &e, "pause");
    assert_unsupported(start(s, (struct process_request){.pty = 1}, &e), &e, "terminal");
    assert_unsupported(start(s, (struct process_request){.background = 1}, &e), &e, "background");
    assert_unsupported(worker(s, 0, &e), &e, "files");
    assert_unsupported(worker(s, WORKER_REACH, &e), &e, "ports");
    uint64_t n;
    assert_unsupported(session_usage(s, &n, &n, &n, &n, &e), &e, "usage");
    struct snapshot_info info;
    assert_unsupported(session_snapshot(s, "x", &info, &e), &e, "snapshot");
    struct session *fork = NULL;
    assert_unsupported(session_fork(s, &(struct session_request){.tenant = "acme"}, &fork, &e), &e,
                       "snapshot");
    assert_unsupported(session_sleep(s, &e), &e, "sleep");

    struct session *other = NULL;
    struct queue_place place;
    bool known;
    r.disk_asked = true;
    assert_unsupported(sessions_create(d->all, &r, &other, &known, &place, &e), &e, "disk");

    /* What every provider can: a command, its kill, the end. */
    assert_int_equal(start(s, (struct process_request){0}, &e), 0);
    assert_int_equal(s->info.state, SESSION_RUNNING);
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    assert_int_equal(box_count(w), 0);
    session_unref(s);
    daemon_end(d);
}

static void test_signals_but_for_kill(void **state)
{
    struct world *w = world_new();
    w->cannot = PROVIDER_SIGNAL;
    struct daemon *d = daemon_begin(w, dir_of(state), 1, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct process *p = start_one(s, NULL);
    struct pd_err e = {0};

    assert_unsupported(process_signal(p, SIGTERM, &e), &e, "signal");
    assert_int_equal(process_signal(p, SIGKILL, &e), 0);
    process_unref(p);
    session_unref(s);
    daemon_end(d);
}

/* Each capability that is missing alone leaves the others. */
static void test_one_is_missing(void **state)
{
    (void)state;
    for (unsigned i = 0; i < PROVIDER_CAPABILITY_COUNT; i++) {
        void *own;
        assert_int_equal(place_setup(&own), 0);
        unsigned bit = provider_capabilities[i].bit;
        struct world *w = world_new();
        w->cannot = bit;
        if (bit == PROVIDER_ROOTS) /* of which these are copies, or sleep */
            w->cannot |= PROVIDER_SLEEP | PROVIDER_SNAPSHOT;
        struct daemon *d = daemon_begin(w, ((struct place *)own)->dir, 0, NULL);
        struct session_request r = {0};
        struct session *s = make_one(d, &r);
        struct pd_err e = {0};

        int paused = session_pause(s, &e);
        assert_int_equal(paused, bit == PROVIDER_PAUSE ? -1 : 0);
        assert_int_equal(session_resume(s, &e), 0);
        assert_int_equal(start(s, (struct process_request){.background = 1}, &e),
                         bit == PROVIDER_BACKGROUND ? -1 : 0);
        uint64_t n;
        assert_int_equal(session_usage(s, &n, &n, &n, &n, &e), bit == PROVIDER_USAGE ? -1 : 0);
        struct snapshot_info info;
        assert_int_equal(session_snapshot(s, "", &info, &e),
                         bit == PROVIDER_SNAPSHOT || bit == PROVIDER_ROOTS ? -1 : 0);
        assert_int_equal(session_sleep(s, &e),
                         bit == PROVIDER_SLEEP || bit == PROVIDER_ROOTS ? -1 : 0);
        assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
        session_unref(s);
        daemon_end(d);
        assert_int_equal(world_teardown(&own), 0);
    }
}

/* ---- after a restart ---- */

static struct session *find(struct daemon *d, const char *id)
{
    struct pd_err e = {0};
    struct session *s = sessions_find_any(d->all, id, &e);
    if (!s)
        fail_msg("find %s: %s", id, e.msg);
    return s;
}

/* A server that is started without the provider of its sandboxes, by mistake, and again with it. */
static void test_a_provider_that_is_not_configured_any_more(void **state)
{
    struct world *w = world_new();
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    struct process *p = start_one(s, NULL);
    struct snapshot_info snapshot;
    struct pd_err e = {0};
    char id[SESSION_ID_LEN + 1];
    memcpy(id, s->info.id, sizeof id);
    assert_int_equal(session_snapshot(s, "kept", &snapshot, &e), 0);
    unsigned roots = root_count(w);
    process_unref(p);
    session_unref(s);
    daemon_end(d);

    snprintf(w->provider_name, sizeof w->provider_name, "another");
    d = daemon_begin(w, dir_of(state), 1, NULL);
    s = find(d, id);
    assert_int_equal(s->info.state, SESSION_GONE);
    assert_int_equal(s->info.end, END_LOST);
    assert_string_equal(s->info.provider, "world");
    assert_non_null(strstr(s->info.end_reason, "'world' is not configured"));

    assert_int_equal(start(s, (struct process_request){0}, &e), -1);
    assert_int_equal(e.code, PD_SESSION_LOST);
    /* It runs on, as the next daemon will find: nobody is told that it has ended. */
    assert_int_equal(session_end(s, END_KILLED, "test", &e), -1);
    assert_int_equal(e.code, PD_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "'world' is not configured"));
    struct session *copy = NULL;
    struct queue_place place;
    bool known;
    struct session_request of = {.tenant = "acme", .snapshot = "kept", .env = {.text = ""}};
    of.spec = SPEC_DEFAULT;
    assert_int_equal(sessions_create(d->all, &of, &copy, &known, &place, &e), -1);
    assert_int_equal(e.code, PD_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "provider world"));
    assert_int_equal(root_count(w), roots);
    struct session_request fresh = {0};
    struct session *neighbour = make_one(d, &fresh);
    assert_string_equal(neighbour->info.provider, "another");
    session_unref(neighbour);
    session_unref(s);
    daemon_end(d);

    w->provider_name[0] = 0;
    d = daemon_begin(w, dir_of(state), 0, NULL);
    s = find(d, id);
    assert_int_equal(s->info.state, SESSION_RUNNING);
    assert_int_equal(s->running, 1);
    assert_int_equal(start(s, (struct process_request){0}, &e), 0);
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    session_unref(s);
    daemon_end(d);
}

/* Boxes that end with their server are told as lost. */
static void test_boxes_that_cannot_be_adopted(void **state)
{
    struct world *w = world_new();
    w->cannot = PROVIDER_ADOPT;
    struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
    struct session_request r = {0};
    struct session *s = make_one(d, &r);
    char id[SESSION_ID_LEN + 1];
    memcpy(id, s->info.id, sizeof id);
    session_unref(s);
    daemon_end(d);

    d = daemon_begin(w, dir_of(state), 0, NULL);
    s = find(d, id);
    struct pd_err e = {0};
    assert_int_equal(start(s, (struct process_request){0}, &e), -1);
    assert_int_equal(e.code, PD_SESSION_LOST);
    session_unref(s);
    daemon_end(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_promise_without_a_function_is_refused),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_every_capability_has_a_text),
        IN_WORLD(test_a_provider_that_can_nothing_else),
        IN_WORLD(test_signals_but_for_kill),
        cmocka_unit_test(test_one_is_missing),
        IN_WORLD(test_a_provider_that_is_not_configured_any_more),
        IN_WORLD(test_boxes_that_cannot_be_adopted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
