/* A daemon that dies at any moment of writing a command down: the next one knows it with its
 * streams, or does not know it at all. */
#include "world.h"

static const char *dir_of(void **state)
{
    return ((struct place *)*state)->dir;
}

/* The command has its ends of the pipes, and writes nothing. */
static int silent_exec(struct box *box, const struct box_command *c, struct pd_err *e)
{
    assert_true(dup(c->fds[1]) >= 0 && dup(c->fds[2]) >= 0);
    return world_exec(box, c, e);
}

/* A command that nobody was told of before it started: it is written down while it runs. */
static void act_store(struct daemon *d, const char *id)
{
    struct pd_err e;
    struct session *s = sessions_find_any(d->all, id, &e);
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    struct process *p = NULL;
    bool known;

    assert_non_null(s);
    d->provider.exec = silent_exec;
    assert_int_equal(msg_list_add(&argv, "/bin/sleep"), 0);
    struct process_request r = {.argv = msg_list_of(&argv), .env = {.text = ""}};
    assert_int_equal(session_start(s, &r, &p, &known, &e), 0);
    assert_int_equal(process_store(p, &e), 0);
}

struct seen {
    unsigned processes, rows;
};

static int see_process(struct process *p, void *arg)
{
    struct seen *seen = arg;
    seen->processes++;
    assert_int_equal(process_state(p), PROCESS_RUNNING);
    assert_true(p->stashed && p->streams[STREAM_OUT].source.fd >= 0);
    return 0;
}

static int see_row(const struct process_row *r, void *arg)
{
    (void)r;
    ((struct seen *)arg)->rows++;
    return 0;
}

static void test_a_command_is_known_with_its_streams_or_not_at_all(void **state)
{
    struct world *w = world_new();
    struct pd_err e;
    unsigned known = 0, forgotten = 0;
    w->keeps_stash = 1;

    for (unsigned n = 1, died = 1; died; n++) {
        struct daemon *d = daemon_begin(w, dir_of(state), 0, NULL);
        struct session_request r = {0};
        struct session *s = make_one(d, &r);
        char id[SESSION_ID_LEN + 1];
        snprintf(id, sizeof id, "%s", s->info.id);
        session_unref(s);
        daemon_end(d);

        died = (unsigned)die_at(w, dir_of(state), n, act_store, id);
        d = daemon_begin(w, dir_of(state), 0, NULL);
        s = sessions_find_any(d->all, id, &e);
        assert_non_null(s);
        struct seen seen = {0};
        session_each_process(s, see_process, &seen);
        assert_int_equal(d->real->each_process(d->real, see_row, &seen, &e), 0);
        assert_int_equal(seen.rows, seen.processes);
        assert_int_equal(s->running, seen.processes);
        known += seen.processes == 1;
        forgotten += seen.processes == 0;

        assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
        for (unsigned i = 0; i < COUNT(w->stash); i++)
            assert_string_equal(w->stash[i], "");
        session_unref(s);
        daemon_end(d);
    }
    if (known < 1 || forgotten < 3) /* before it starts, before its row, before its streams */
        fail_msg("known %u times, forgotten %u times", known, forgotten);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_a_command_is_known_with_its_streams_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
