/* The thread of a request that listens itself, against the pump, the recorder, other commands of
 * the same sandbox, a client that leaves and a sandbox that ends: every byte and every end is told
 * once, whoever was faster. The commands live about as long as one listens (LISTENS).
 *
 * ROUNDS in the environment is how often each race is run. */
#include "stage.h"

#include "core/follow.h"

#include <poll.h>
#include <sys/stat.h>

#define LISTENS 4000u /* us: LISTEN_FOR of core/listen.c */

static const unsigned sizes[] = {0, 1, 100, SPOOL_HEAD, SPOOL_HEAD + 1, 70000};

static int stage_setup(void **state)
{
    return stage_begin(state, NULL);
}

static unsigned rounds(unsigned usual)
{
    const char *text = getenv("ROUNDS");
    return text ? (unsigned)strtoul(text, NULL, 10) : usual;
}

/* A command that lives so long, writes so much and ends so; with the thread that listens. */
static struct process *start_late(struct session *s, unsigned usec, unsigned bytes, int status)
{
    struct pd_err e = {0};
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    struct process *p = NULL;
    char words[3][24];
    bool known;
    snprintf(words[0], sizeof words[0], "%u", usec);
    snprintf(words[1], sizeof words[1], "%u", bytes);
    snprintf(words[2], sizeof words[2], "%d", status);
    assert_int_equal(msg_list_add(&argv, "late"), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(msg_list_add(&argv, words[i]), 0);

    struct process_request r = {.argv = msg_list_of(&argv), .env = {.text = ""}, .listens = 1};
    if (session_start(s, &r, &p, &known, &e) < 0)
        fail_msg("start: %s", e.msg);
    msg_list_writer_done(&argv);
    return p;
}

static struct process *start_program(struct session *s, const char *program, const char *word)
{
    struct pd_err e = {0};
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    struct process *p = NULL;
    bool known;

    assert_int_equal(msg_list_add(&argv, program), 0);
    if (word)
        assert_int_equal(msg_list_add(&argv, word), 0);

    struct process_request r = {.argv = msg_list_of(&argv), .env = {.text = ""}, .listens = 1};
    if (session_start(s, &r, &p, &known, &e) < 0)
        fail_msg("start: %s", e.msg);
    msg_list_writer_done(&argv);
    return p;
}

/* As api/exec.c does it. */
static void attend(struct process *p)
{
    if (process_listen(p, -1, 0, false, DEADLINE_NONE) == HEARD_END)
        return;
    process_hand_over(p);
    (void)await_end(p, 0);
}

/* As the event streams do it: what was told must be what was written. */
static uint64_t follow(struct process *p)
{
    struct follow f;
    struct pd_err e = {0};
    uint8_t piece[4096];
    assert_int_equal(follow_begin(&f, p, NULL, FOLLOW_LISTENS | FOLLOW_HOLDS, &e), 0);

    for (;;) {
        ssize_t n;
        follow_look(&f);
        while ((n = follow_read(&f, STREAM_OUT, piece, sizeof piece, &e)) > 0)
            for (ssize_t i = 0; i < n; i++)
                assert_int_equal(piece[i], 'x');
        assert_int_equal(n, 0);
        if (f.ended)
            break;
        assert_int_equal(follow_wait(&f, -1, 0, deadline_in(PATIENCE), &e), 0);
    }

    uint64_t read = f.offset[STREAM_OUT];
    follow_end(&f);
    return read;
}

static uint64_t read_all(struct process *p)
{
    uint8_t piece[4096];
    uint64_t at = 0;
    struct pd_err e;
    for (ssize_t n; (n = process_read(p, STREAM_OUT, at, piece, sizeof piece, &e)) > 0;)
        at += (uint64_t)n;
    return at;
}

static unsigned running(struct session *s)
{
    lock_take(&s->lock);
    unsigned n = s->running;
    lock_release(&s->lock);
    return n;
}

/* Every number of a group is given back, as soon as the recorder has nothing to do: an end that it
 * was not told of would keep one. */
static void assert_no_group(struct session *s)
{
    deadline d = deadline_in(PATIENCE);
    unsigned n;
    do {
        n = 0;
        lock_take(&s->lock);
        for (unsigned i = 1; i < GROUPS; i++)
            n += s->groups[i / 64] >> i % 64 & 1;
        lock_release(&s->lock);
        usleep(1000);
    } while (n && !deadline_passed(d));
    assert_int_equal(n, 0);
}

struct racer {
    pthread_t thread;
    struct session *session;
    unsigned seed, rounds;
};

static void *race_main(void *arg)
{
    struct racer *r = arg;
    for (unsigned i = 0; i < r->rounds; i++) {
        unsigned usec = LISTENS - 700 + (unsigned)rand_r(&r->seed) % 1000;
        unsigned bytes = sizes[(unsigned)rand_r(&r->seed) % COUNT(sizes)];
        int status = rand_r(&r->seed) % 4 ? 0 : 3 << 8;
        struct process *p = start_late(r->session, usec, bytes, status);
        struct process_info info;

        if (rand_r(&r->seed) % 2)
            assert_int_equal(follow(p), bytes);
        else
            attend(p);
        process_get(p, &info, NULL);
        assert_int_equal(info.running, 0);
        assert_int_equal(info.exit_code, status >> 8);
        assert_int_equal(info.size[STREAM_OUT], bytes);
        assert_int_equal(read_all(p), bytes);

        process_let_go(p);
        assert_int_equal(read_all(p), bytes);
        process_unref(p);
    }
    return NULL;
}

static void race(struct stage *g, unsigned threads, bool one_sandbox)
{
    struct racer r[4] = {0};
    struct session *s = session_make(g, "acme", 0);
    for (unsigned i = 0; i < threads; i++) {
        r[i].session = one_sandbox || !i ? session_ref(s) : session_make(g, "acme", 0);
        r[i].seed = i + 1;
        r[i].rounds = rounds(one_sandbox ? 150 : 400);
        assert_int_equal(pthread_create(&r[i].thread, NULL, race_main, &r[i]), 0);
    }

    for (unsigned i = 0; i < threads; i++)
        pthread_join(r[i].thread, NULL);
    for (unsigned i = 0; i < threads; i++) {
        assert_int_equal(running(r[i].session), 0);
        assert_no_group(r[i].session);
        session_unref(r[i].session);
    }
    session_unref(s);
}

static void test_every_byte_and_every_end_once(void **state)
{
    race(*state, 4, false);
}

/* The frames of both come through one socket: who does not hear it is handed over. */
static void test_two_at_once_in_one_sandbox(void **state)
{
    race(*state, 2, true);
}

/* ---- others who come in between ---- */

struct meanwhile {
    pthread_t thread;
    unsigned usec;
    int fd;
    struct session *session;
    struct process *process;
    void (*act)(struct meanwhile *m);
};

static void *meanwhile_main(void *arg)
{
    struct meanwhile *m = arg;
    usleep(m->usec);
    m->act(m);
    return NULL;
}

static void meanwhile_begin(struct meanwhile *m)
{
    assert_int_equal(pthread_create(&m->thread, NULL, meanwhile_main, m), 0);
}

static void act_leave(struct meanwhile *m)
{
    fd_done(&m->fd);
}

/* The client goes away while its thread listens: that is heard at once, and nothing is left. */
static void test_a_client_that_leaves(void **state)
{
    struct stage *g = *state;
    struct session *s = session_make(g, "acme", 0);
    struct pd_err e = {0};
    unsigned heard_it = 0;

    for (unsigned i = 0; i < rounds(200); i++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        struct meanwhile m = {.usec = i * 21 % (LISTENS + 200), .fd = pair[1], .act = act_leave};
        struct process *p = start_program(s, "hold", "10");
        meanwhile_begin(&m);

        enum process_heard heard = process_listen(p, pair[0], POLLRDHUP, false, DEADLINE_NONE);
        assert_true(heard == HEARD_OTHER || heard == HEARD_NOTHING);
        heard_it += heard == HEARD_OTHER;
        assert_int_equal(process_stop(p, STOP_ABANDONED, &e), 0);
        process_hand_over(p);
        (void)await_end(p, 0);
        process_let_go(p);

        pthread_join(m.thread, NULL);
        close(pair[0]);
        process_unref(p);
    }
    assert_true(heard_it > 0);
    assert_int_equal(running(s), 0);
    assert_no_group(s);
    session_unref(s);
}

static void act_end(struct meanwhile *m)
{
    struct pd_err e;
    (void)session_end(m->session, END_KILLED, "test", &e);
}

/* The box goes away under the thread that listens to it. */
static void test_a_sandbox_that_ends(void **state)
{
    struct stage *g = *state;
    for (unsigned i = 0; i < rounds(60); i++) {
        struct session *s = session_make(g, "acme", 0);
        struct meanwhile m = {.usec = i * 79 % (LISTENS + 400), .session = s, .act = act_end};
        struct process *p = start_late(s, LISTENS - 500, 100, 0);
        meanwhile_begin(&m);
        attend(p);
        process_let_go(p);
        pthread_join(m.thread, NULL);
        assert_false(process_state_is_live(process_state(p)));
        assert_int_equal(running(s), 0);
        process_unref(p);
        session_unref(s);
    }
}

/* What the recorder still wanted to do when the sandbox ended makes no file, which nobody would
 * ever delete. */
static void test_no_file_comes_after_the_end(void **state)
{
    struct stage *g = *state;
    struct session *s = session_make(g, "acme", 0);
    struct process *p = start_late(s, 1, 5000, 0);
    struct pd_err e;
    attend(p);

    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    (void)process_store(p, &e);
    process_let_go(p);
    await_recorder(g);
    const struct spool *out = &p->streams[STREAM_OUT].spool;
    assert_int_equal(faccessat(out->dir, out->name, F_OK, 0), -1);
    assert_int_equal(read_all(p), 5000);
    process_unref(p);
    session_unref(s);
}

static void act_keep(struct meanwhile *m)
{
    process_keep(m->process);
}

/* Somebody has it stored while it is direct: from then on its output is in a file, whole, and the
 * row is not there before. */
static void test_a_row_means_a_file(void **state)
{
    struct stage *g = *state;
    struct session *s = session_make(g, "acme", 0);
    unsigned stored = 0;

    for (unsigned i = 0; i < rounds(200); i++) {
        struct process *p = start_late(s, LISTENS - 500, 100, 0);
        struct meanwhile m = {.usec = i * 23 % (LISTENS + 400), .process = p, .act = act_keep};
        meanwhile_begin(&m);
        attend(p);
        pthread_join(m.thread, NULL);
        process_let_go(p);
        await_recorder(g);

        lock_take(&p->lock);
        struct spool *out = &p->streams[STREAM_OUT].spool;
        struct stat st;
        if (p->stored) {
            stored++;
            assert_null(out->head);
            assert_int_equal(fstatat(out->dir, out->name, &st, 0), 0);
            assert_int_equal(st.st_size, 100);
        }
        lock_release(&p->lock);
        assert_int_equal(read_all(p), 100);
        process_unref(p);
    }
    assert_true(stored > 0);
    session_unref(s);
}

/* ---- one at a time ---- */

/* Short output of a short command makes no file; it can be read as long as it is kept. */
static void test_short_output_makes_no_file(void **state)
{
    struct stage *g = *state;
    struct session *s = session_make(g, "acme", 0);
    for (int i = 0; i < 20; i++) {
        struct process *p = start_late(s, 1, 100, 0);
        attend(p);

        /* Otherwise the machine was too slow for it: it was handed over, or its end was told before
         * this thread had closed its own copies of the pipes, and they are over only later. */
        lock_take(&p->lock);
        const struct stream *out = &p->streams[STREAM_OUT];
        bool direct = p->direct && out->source.fd < 0;
        lock_release(&p->lock);

        process_let_go(p);
        await_recorder(g);
        assert_int_equal(read_all(p), 100);
        if (direct) {
            assert_int_equal(faccessat(out->spool.dir, out->spool.name, F_OK, 0), -1);
            assert_false(p->stored);
        }
        process_unref(p);
    }
    session_unref(s);
}

/* Nonsense that the listening thread reads ends the sandbox as if the pump had read it. */
static void test_nonsense_ends_the_sandbox(void **state)
{
    struct stage *g = *state;
    for (int i = 0; i < 10; i++) {
        struct session *s = session_make(g, "acme", 0);
        struct process *p = start_program(s, "nonsense", NULL);
        (void)process_listen(p, -1, 0, false, DEADLINE_NONE);
        process_hand_over(p);
        (void)await_end(p, 0); /* buried */
        struct process_info info;
        process_get(p, &info, NULL);
        assert_int_equal(info.stopped_by, STOP_SANDBOX);
        process_let_go(p);
        process_unref(p);
        session_unref(s);
    }
}

/* What is not of one's own command stays in the socket and ends the listening. */
static void test_a_frame_of_another_is_left_to_the_pump(void **state)
{
    struct stage *g = *state;
    struct session *s = session_make(g, "acme", 0);
    struct box *b = s->box;
    bool may = box_hear_begin(b), twice = may && box_hear_begin(b);
    struct process *p = start_program(s, "hold", "10");
    enum box_heard heard =
        may ? box_hear(b, wire_id_new(), NULL, 0, deadline_in(PATIENCE)) : BOX_SILENT;
    if (may)
        box_hear_end(b);
    assert_true(may);
    assert_false(twice); /* one at a time */
    assert_int_equal(heard, BOX_BEYOND);
    assert_int_equal(process_state(p), PROCESS_RUNNING);

    struct pd_err e = {0};
    process_hand_over(p);
    assert_int_equal(process_await_pid(p, &e), 0); /* STARTED, which the pump has read then */
    assert_int_equal(p->pid, 2);
    assert_int_equal(process_stop(p, STOP_KILLED, &e), 0);
    (void)await_end(p, 0);
    process_let_go(p);
    process_unref(p);
    session_unref(s);
}

#define ON_STAGE(test) cmocka_unit_test_setup_teardown(test, stage_setup, stage_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_STAGE(test_every_byte_and_every_end_once),
        ON_STAGE(test_two_at_once_in_one_sandbox),
        ON_STAGE(test_a_client_that_leaves),
        ON_STAGE(test_a_sandbox_that_ends),
        ON_STAGE(test_no_file_comes_after_the_end),
        ON_STAGE(test_a_row_means_a_file),
        ON_STAGE(test_short_output_makes_no_file),
        ON_STAGE(test_nonsense_ends_the_sandbox),
        ON_STAGE(test_a_frame_of_another_is_left_to_the_pump),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
