/* The broker of backends elsewhere, driven by a keeper that is this test, over an engine that is a
 * table in memory: it loses answers, makes boxes late, and remembers what was ended. */
#include "unit.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "engine/far_box.h"
#include "engine/remote.h"
#include "wire/msg.h"

#include "base/banned.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define PATIENCE (20 * NS_PER_S)
#define ROWS     16

/* ---- the engine: in memory that the broker and the test see ---- */

struct row {
    char instance[32], box[64], name[64], link[33];
    uint8_t key[REMOTE_KEY];
    uint32_t lease;
    bool there, running;
    char why[64];
};

struct engine {
    struct row rows[ROWS];
    unsigned made, ended;
    bool lose_create; /* the box is made, and the answer is lost */
    bool fail_link;
    bool watches_stay; /* and do not end with their broker, as the tests' own do */
    bool refuse;
    unsigned end_ms;   /* how long an end takes */
    bool records_stay; /* of what has ended */
    bool stuck_stays;  /* the box "stuck" does not end, which takes longer than a sweep may */
    unsigned looks;    /* at all boxes of a keeper */
    bool watch_dies;   /* right after a look that saw it alive */
    pid_t watch;       /* of the box that was made last */
};

static struct engine *engine;

static struct row *row_of(const char *instance, const char *box)
{
    for (unsigned i = 0; i < ROWS; i++)
        if (engine->rows[i].there && !strcmp(engine->rows[i].instance, instance) &&
            !strcmp(engine->rows[i].box, box))
            return &engine->rows[i];
    return NULL;
}

static struct row *add_row(const char *instance, const char *box)
{
    for (unsigned i = 0; i < ROWS; i++)
        if (!engine->rows[i].there) {
            struct row *r = &engine->rows[i];
            *r = (struct row){.there = true, .running = true};
            snprintf(r->instance, sizeof r->instance, "%s", instance);
            snprintf(r->box, sizeof r->box, "%s", box);
            return r;
        }
    return NULL;
}

static struct remote *open_memory(const struct broker_config *c, struct pd_err *e)
{
    (void)c;
    struct remote *r = calloc(1, sizeof *r);
    if (!r)
        pd_fail(e, PD_CAPACITY, "no memory");
    return r;
}

static void close_memory(struct remote *r)
{
    free(r);
}

static void tell_state(const struct row *row, struct remote_state *ret)
{
    *ret = (struct remote_state){.running = row->running};
    snprintf(ret->place, sizeof ret->place, "%s", row->name);
    snprintf(ret->box, sizeof ret->box, "%s", row->box);
    snprintf(ret->why, sizeof ret->why, "%s", row->why);
}

static int create(struct remote *r, const struct remote_plan *p, struct remote_state *ret,
                  deadline t, struct pd_err *e)
{
    (void)r, (void)t;
    if (engine->refuse)
        return pd_fail(e, PD_CAPACITY, "the engine has no room");

    struct row *row = add_row(p->instance, p->box);
    snprintf(row->name, sizeof row->name, "%s", p->name);
    snprintf(row->link, sizeof row->link, "%s", p->link);
    memcpy(row->key, p->key, sizeof row->key);
    row->lease = p->lease;
    engine->made++;
    if (engine->lose_create)
        return pd_fail(e, PD_TIMEOUT, "the answer was lost");
    tell_state(row, ret);
    return 0;
}

static int find(struct remote *r, const char *instance, const char *box, struct remote_state *ret,
                deadline t, struct pd_err *e)
{
    (void)r, (void)t;
    const struct row *row = row_of(instance, box);
    if (!row)
        return pd_fail(e, PD_NOT_FOUND, "somebody has removed it");
    tell_state(row, ret);
    return 0;
}

static int end(struct remote *r, const char *instance, const char *box, deadline t,
               struct pd_err *e)
{
    (void)r, (void)t;
    usleep(1000 * engine->end_ms);
    if (engine->stuck_stays && !strcmp(box, "stuck")) {
        usleep(1200000);
        return pd_fail(e, PD_TIMEOUT, "it does not end");
    }
    for (struct row *row; (row = row_of(instance, box));) {
        if (!row->running && engine->records_stay)
            return 0;
        row->there = false;
        engine->ended++;
    }
    return 0;
}

static int each(struct remote *r, const char *instance, remote_each *call, void *context,
                deadline t, struct pd_err *e)
{
    (void)r, (void)t;
    engine->looks++;
    for (unsigned i = 0; i < ROWS; i++) {
        struct remote_state s;
        if (!engine->rows[i].there || strcmp(engine->rows[i].instance, instance) != 0)
            continue;
        tell_state(&engine->rows[i], &s);
        if (call(context, &s, e) < 0)
            return -1;
    }

    if (engine->watch_dies) {
        auto_fd process = (int)syscall(SYS_pidfd_open, engine->watch, 0);
        struct pollfd ended = {.fd = process, .events = POLLIN};
        kill(engine->watch, SIGKILL);
        poll(&ended, 1, 10000);
    }
    return 0;
}

static const char *const words[] = {"colour", "file", NULL};
static const struct remote_kind memory = {.name = "memory",
                                          .rung = RUNG_BASIC,
                                          .needs_image = true,
                                          .settings = words,
                                          .open = open_memory,
                                          .close = close_memory,
                                          .create = create,
                                          .find = find,
                                          .end = end,
                                          .each = each};

/* A watch that does nothing but live until it is told to end. */
static pid_t start_link(const struct far_box *b, int *ret_process, deadline t, struct pd_err *e)
{
    (void)t;
    const struct row *row = NULL;
    for (unsigned i = 0; i < ROWS; i++)
        if (engine->rows[i].there && !strcmp(engine->rows[i].name, b->container))
            row = &engine->rows[i];
    if (!row || memcmp(row->key, b->secret.key, sizeof row->key) != 0 || engine->fail_link)
        return pd_fail(e, PD_TIMEOUT, "the link does not come up");

    pid_t broker = getpid(), pid = child_fork();
    if (pid == 0) {
        if (getppid() != broker)
            _exit(0); /* it ended before it could be bound to */
        child_keep(b->lock);
        if (engine->watches_stay)
            prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
        engine->watch = getpid();
        pause();
        _exit(0);
    }
    *ret_process = (int)syscall(SYS_pidfd_open, pid, 0);
    return pid;
}

/* ---- the keeper ---- */

struct rig {
    char dir[64];
    int sock;
    pid_t broker;
    struct frame f;
    int process;
};

static void start(struct rig *r, const char *instance)
{
    int pair[2];
    r->f = FRAME_INIT;
    r->process = -1;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    r->broker = child_fork();
    assert_true(r->broker >= 0);

    if (r->broker == 0) {
        struct broker_config c = BROKER_CONFIG_DEFAULT;
        int init = open(UNIT_INIT, O_RDONLY | O_CLOEXEC);
        c.kind = &memory;
        c.instance = instance;
        c.state_dir = r->dir;
        c.lease = 77;
        close(pair[0]);
        remote_serve(&c, pair[1], init, init, start_link);
        _exit(0);
    }
    close(pair[1]);
    r->sock = pair[0];
}

/* Of the box that was made last. */
static void end_watch(const struct rig *r)
{
    struct pollfd ended = {.fd = r->process, .events = POLLIN};
    if (r->process < 0)
        return;
    (void)syscall(SYS_pidfd_send_signal, r->process, SIGKILL, NULL, 0);
    assert_int_equal(poll(&ended, 1, 10000), 1);
}

/* `killed`: the broker has no time to clean up. A watch that lives keeps its box. */
static void stop_beside(struct rig *r, bool killed)
{
    int status;
    if (killed)
        kill(r->broker, SIGKILL);
    close(r->sock);
    assert_int_equal(waitpid(r->broker, &status, 0), r->broker);
    if (!killed)
        assert_int_equal(status, 0);
    frame_done(&r->f);
    fd_done(&r->process);
}

static void stop(struct rig *r, bool killed)
{
    end_watch(r);
    stop_beside(r, killed);
}

static int begin(void **state)
{
    struct rig *r = calloc(1, sizeof *r);
    engine = mmap(NULL, sizeof *engine, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(r->dir, sizeof r->dir, "/tmp/paddock-remote-XXXXXX");
    if (engine == MAP_FAILED || !mkdtemp(r->dir))
        return -1;
    *state = r;
    return 0;
}

static int finish(void **state)
{
    struct rig *r = *state;
    char path[128];
    snprintf(path, sizeof path, "%s/doors", r->dir);
    (void)rmdir(path);
    int left = rmdir(r->dir);
    munmap(engine, sizeof *engine);
    free(r);
    return left;
}

static unsigned ask(struct rig *r, enum wire_type type, const struct buf *payload, const int *fds,
                    unsigned count)
{
    struct wire_head head = {.type = (uint16_t)type, .id = wire_id_new()};
    struct pd_err e;
    assert_int_equal(wire_send(r->sock, &head, payload, fds, count, deadline_in(PATIENCE)), 0);
    frame_reset(&r->f);
    assert_int_equal(wire_recv(r->sock, &r->f, deadline_in(PATIENCE), &e), 1);
    return r->f.head.type;
}

static unsigned build(struct rig *r, const char *name, const struct spec *s)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    int pair[2];
    msg_build_encode(&out, &(struct msg_build){.name = name, .spec = *s});
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    unsigned type = ask(r, WIRE_BUILD, &out, &pair[1], 1);
    close(pair[0]);
    close(pair[1]);
    if (type == WIRE_BUILT) {
        fd_done(&r->process);
        r->process = frame_take_fd(&r->f, 2);
    }
    return type;
}

static unsigned ask_box(struct rig *r, enum wire_type type, const char *name)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_sweep_encode(&out, &(struct msg_sweep){.name = name, .group = ""});
    return ask(r, type, &out, NULL, 0);
}

static enum pd_code refused(struct rig *r)
{
    struct pd_err e;
    assert_int_equal(r->f.head.type, WIRE_ERROR);
    (void)msg_error_raise(&r->f, &e);
    return e.code;
}

static const char *reason(struct rig *r)
{
    static char text[160];
    struct msg_key k;
    struct pd_err e;
    assert_int_equal(r->f.head.type, WIRE_DONE);
    if (!r->f.payload.len)
        return "";
    assert_int_equal(msg_key_decode(&r->f.payload, &k, &e), 0);
    snprintf(text, sizeof text, "%s", k.key);
    return text;
}

static struct spec good(void)
{
    struct spec s = SPEC_DEFAULT;
    s.image = "debian:12";
    return s;
}

static unsigned there(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < ROWS; i++)
        n += engine->rows[i].there;
    return n;
}

static void await_none(void)
{
    deadline t = deadline_in(PATIENCE);
    while (there() && !deadline_passed(t))
        usleep(10000);
    assert_int_equal(there(), 0);
}

/* ---- tests ---- */

static void test_a_box_is_made_and_ended(void **state)
{
    struct rig *r = *state;
    struct spec s = good();
    struct msg_built built;
    struct pd_err e;

    start(r, "abc");
    assert_int_equal(build(r, "sb-1", &s), WIRE_BUILT);
    assert_true(r->f.head.flags & BOX_IS_FAR);
    assert_int_equal(msg_built_decode(&r->f.payload, &built, &e), 0);
    assert_int_equal(built.rung, RUNG_BASIC);
    const struct row *row = row_of("abc", "sb-1");
    assert_non_null(row);
    assert_string_equal(row->name, "paddock-abc-sb-1");
    assert_int_equal(row->lease, 77);
    assert_int_equal(strlen(row->link), 32);

    assert_int_equal(ask_box(r, WIRE_CHECK, "sb-1"), WIRE_DONE);
    assert_int_equal(ask_box(r, WIRE_STRIKE, "sb-1"), WIRE_DONE);
    assert_int_equal(there(), 0);
    ask_box(r, WIRE_SWEEP, "sb-1");
    assert_string_equal(reason(r), "somebody has removed it");
    ask_box(r, WIRE_CHECK, "sb-1");
    assert_int_equal(refused(r), PD_NOT_FOUND);
    stop(r, false);
}

static void test_the_end_of_a_box_is_told_in_the_engines_words(void **state)
{
    struct rig *r = *state;
    struct spec s = good();

    start(r, "abc");
    assert_int_equal(build(r, "b", &s), WIRE_BUILT);
    struct row *row = row_of("abc", "b");
    row->running = false;
    snprintf(row->why, sizeof row->why, "evicted: the node was low on memory");
    ask_box(r, WIRE_CHECK, "b");
    assert_int_equal(refused(r), PD_CONFLICT);
    ask_box(r, WIRE_SWEEP, "b");
    assert_string_equal(reason(r), "evicted: the node was low on memory");
    assert_int_equal(there(), 0);
    stop(r, false);
}

static void test_nothing_stays_of_what_failed(void **state)
{
    struct rig *r = *state;
    struct spec s = good();

    start(r, "abc");
    engine->refuse = true;
    build(r, "b", &s);
    assert_int_equal(refused(r), PD_CAPACITY);
    engine->refuse = false;
    engine->lose_create = true;
    build(r, "b", &s);
    assert_int_equal(refused(r), PD_TIMEOUT);
    assert_int_equal(engine->made, 1);
    assert_int_equal(there(), 0);
    engine->lose_create = false;
    engine->fail_link = true;
    build(r, "b", &s);
    assert_int_equal(refused(r), PD_TIMEOUT);
    assert_int_equal(engine->made, 2);
    assert_int_equal(there(), 0);
    engine->fail_link = false;
    assert_int_equal(build(r, "b", &s), WIRE_BUILT);
    stop(r, false);
    assert_int_equal(there(), 0);
}

static void test_a_box_that_comes_late_is_found(void **state)
{
    struct rig *r = *state;
    struct spec s = good();

    start(r, "abc");
    assert_int_equal(build(r, "kept", &s), WIRE_BUILT);
    engine->refuse = true;
    build(r, "late", &s);
    assert_int_equal(refused(r), PD_CAPACITY);
    add_row("abc", "late"); /* the engine had it all the time */
    add_row("other", "late");

    deadline t = deadline_in(PATIENCE);
    while (row_of("abc", "late") && !deadline_passed(t))
        usleep(10000);
    assert_null(row_of("abc", "late"));
    assert_non_null(row_of("abc", "kept"));
    assert_non_null(row_of("other", "late"));
    stop(r, false);
    assert_null(row_of("abc", "kept"));
    assert_int_equal(there(), 1);
}

static void test_a_box_whose_watch_lives_is_left_to_the_next_keeper(void **state)
{
    struct rig *r = *state, next = {.sock = -1};
    struct spec s = good();

    engine->watches_stay = true;
    start(r, "abc");
    assert_int_equal(build(r, "b", &s), WIRE_BUILT);
    int process = fcntl(r->process, F_DUPFD_CLOEXEC, 3);
    stop_beside(r, false);
    assert_non_null(row_of("abc", "b"));

    /* A keeper of another name leaves it, too. */
    memcpy(next.dir, r->dir, sizeof next.dir);
    start(&next, "def");
    assert_int_equal(build(&next, "b", &s), WIRE_BUILT);
    stop(&next, false);
    assert_non_null(row_of("abc", "b"));
    assert_null(row_of("def", "b"));

    next.process = process;
    end_watch(&next);
    close(process);
    start(&next, "abc");
    assert_int_equal(build(&next, "c", &s), WIRE_BUILT);
    stop(&next, false);
    assert_int_equal(there(), 0);
}

/* It is nobody's from then on, and the next broker has to find it. */
static void test_a_watch_that_dies_behind_a_look_leaves_its_box_a_place(void **state)
{
    struct rig *r = *state, next = {.sock = -1};
    struct spec s = good();

    engine->watches_stay = true;
    start(r, "abc");
    assert_int_equal(build(r, "b", &s), WIRE_BUILT);
    for (deadline t = deadline_in(PATIENCE); !engine->watch && !deadline_passed(t);)
        usleep(1000);
    assert_int_not_equal(engine->watch, 0);
    engine->watch_dies = true;
    stop_beside(r, false);
    assert_non_null(row_of("abc", "b"));

    engine->watch_dies = false;
    memcpy(next.dir, r->dir, sizeof next.dir);
    start(&next, "def");
    await_none();
    stop(&next, false);
}

static void test_the_boxes_of_a_dead_keeper_are_ended_by_the_next(void **state)
{
    struct rig *r = *state, next = {.sock = -1};
    struct spec s = good();

    start(r, "abc");
    assert_int_equal(build(r, "one", &s), WIRE_BUILT);
    assert_int_equal(build(r, "two", &s), WIRE_BUILT);
    stop(r, true);
    assert_int_equal(there(), 2);

    memcpy(next.dir, r->dir, sizeof next.dir);
    start(&next, "def");
    ask_box(&next, WIRE_STRIKE, "none");
    await_none();
    stop(&next, false);
}

/* Nobody waits for the ends of many: a request is answered, and then it goes on. */
static void test_many_that_were_left_hold_up_no_request(void **state)
{
    struct rig *r = *state, next = {.sock = -1};
    struct spec s = good();
    char name[16];

    start(r, "abc");
    assert_int_equal(build(r, "one", &s), WIRE_BUILT);
    stop(r, true);
    for (unsigned i = 0; i < ROWS - 4; i++) {
        snprintf(name, sizeof name, "b%u", i);
        add_row("abc", name);
    }

    engine->end_ms = 300;
    memcpy(next.dir, r->dir, sizeof next.dir);
    start(&next, "def");
    assert_int_equal(build(&next, "mine", &s), WIRE_BUILT);
    assert_true(there() > 2);
    engine->end_ms = 1;
    deadline t = deadline_in(PATIENCE);
    while (there() > 1 && !deadline_passed(t))
        usleep(10000);
    assert_int_equal(there(), 1);
    assert_non_null(row_of("def", "mine"));
    stop(&next, false);
    assert_int_equal(there(), 0);
}

/* A box that does not end comes first in every list. The others are not left for it, neither those
 * of this keeper nor those of one that is dead. */
static void test_one_that_does_not_end_keeps_none_alive(void **state)
{
    static const char *const names[] = {"stuck", "stuck", "one", "two", "stuck", "three"};
    struct rig *r = *state, next = {.sock = -1};
    struct spec s = good();

    start(r, "abc");
    assert_int_equal(build(r, "mine", &s), WIRE_BUILT);
    stop(r, true);
    engine->rows[0].there = false;
    engine->stuck_stays = true;
    for (unsigned i = 0; i < 2 * COUNT(names); i++)
        assert_non_null(add_row(i % 2 ? "abc" : "def", names[i / 2]));

    memcpy(next.dir, r->dir, sizeof next.dir);
    start(&next, "def");
    deadline t = deadline_in(2 * PATIENCE);
    while (there() > 6 && !deadline_passed(t))
        usleep(10000);
    assert_int_equal(there(), 6);
    engine->stuck_stays = false;
    await_none();
    stop(&next, false);
}

/* A record of one that has ended may stay for long, and costs nothing. */
static void test_what_has_ended_is_looked_for_more_and_more_rarely(void **state)
{
    struct rig *r = *state;

    start(r, "abc");
    struct row *row = add_row("abc", "ended");
    row->running = false;
    engine->records_stay = true;
    assert_int_equal(ask_box(r, WIRE_STRIKE, "none"), WIRE_DONE);
    unsigned before = engine->looks;
    uint64_t since = clock_now();
    deadline t = deadline_in(PATIENCE);
    while (engine->looks < before + 3 && !deadline_passed(t))
        usleep(10000);
    assert_true(engine->looks >= before + 3);
    assert_true(clock_now() - since > 5 * NS_PER_S); /* behind 1, 2 and 4 s */
    engine->records_stay = false;
    stop(r, false);
}

static void test_what_no_box_elsewhere_has_is_refused(void **state)
{
    struct rig *r = *state;
    struct spec s;

    start(r, "abc");
    s = SPEC_DEFAULT;
    build(r, "b", &s);
    assert_int_equal(refused(r), PD_INVALID);
    s = good();
    s.network = NETWORK_HOST;
    build(r, "b", &s);
    assert_int_equal(refused(r), PD_UNSUPPORTED);
    s = good();
    s.min_rung = RUNG_FULL;
    build(r, "b", &s);
    assert_int_equal(refused(r), PD_ISOLATION);
    s = good();
    s.root_dir = "/srv";
    build(r, "b", &s);
    assert_int_equal(refused(r), PD_UNSUPPORTED);
    s = good();
    s.profile = PROFILE_RESTRICTED;
    build(r, "b", &s);
    assert_int_equal(refused(r), PD_UNSUPPORTED);
    s = good();
    build(r, "../b", &s);
    assert_int_equal(refused(r), PD_INVALID);
    ask_box(r, WIRE_STRIKE, "a/b");
    assert_int_equal(refused(r), PD_INVALID);
    assert_int_equal(engine->made, 0);
    stop(r, false);
}

static void test_names_are_labels_and_never_shared(void **state)
{
    (void)state;
    static const char *const boxes[] = {
        "b",   "sb-1", "a_b", "a.b",
        "a-b", "x-1",  "b-",  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    char names[COUNT(boxes)][REMOTE_NAME_MAX + 1];

    for (size_t i = 0; i < COUNT(boxes); i++) {
        remote_name("0123456789abcdef0123456789abcde", boxes[i], names[i]);
        size_t len = strspn(names[i], "abcdefghijklmnopqrstuvwxyz0123456789-");
        assert_true(len <= REMOTE_NAME_MAX && !names[i][len] && names[i][len - 1] != '-');
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(names[k], names[i]);
    }
    char other[REMOTE_NAME_MAX + 1];
    remote_name("abc", "x-4b", names[0]);
    remote_name("abc", "K", other);
    assert_string_not_equal(names[0], other);
}

static void test_settings_are_the_kinds_own(void **state)
{
    (void)state;
    struct broker_config c = BROKER_CONFIG_DEFAULT;
    struct pd_err e;

    c.kind = &memory;
    assert_string_equal(broker_setting(&c, "file"), "");
    assert_int_equal(broker_option(&c, "--set", "file=/etc/x=y", &e), 0);
    assert_string_equal(broker_setting(&c, "file"), "/etc/x=y");
    static const char *const bad[] = {"file=again", "fil=x", "files=x", "=x", "x", ""};
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(broker_option(&c, "--set", bad[i], &e), -1);
        assert_int_equal(e.code, PD_INVALID);
    }
    assert_int_equal(broker_option(&c, "--set", "colour=", &e), 0);
    assert_string_equal(broker_setting(&c, "colour"), "");
}

static void test_files_of_credentials_are_bounded(void **state)
{
    (void)state;
    char path[] = "/tmp/paddock-file-XXXXXX", text[200];
    struct pd_err e;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    memset(text, 'x', sizeof text);

    auto_buf out = BUF_INIT(100);
    assert_int_equal(write(fd, "secret\r\n", 8), 8);
    assert_int_equal(remote_read_file("e2b_key_file", path, &out, &e), 0);
    assert_int_equal(out.len, 6);
    assert_memory_equal(out.data, "secret", 6);
    assert_int_equal(write(fd, text, sizeof text), (ssize_t)sizeof text);
    buf_clear(&out);
    assert_int_equal(remote_read_file("e2b_key_file", path, &out, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    assert_non_null(strstr(e.msg, "e2b_key_file"));
    assert_int_equal(remote_read_file("x", "/tmp", &out, &e), -1);
    assert_int_equal(remote_read_file("x", "/nonexistent", &out, &e), -1);
    close(fd);
    unlink(path);
}

int main(void)
{
#define RIG(f) cmocka_unit_test_setup_teardown(f, begin, finish)
    const struct CMUnitTest tests[] = {
        RIG(test_a_box_is_made_and_ended),
        RIG(test_the_end_of_a_box_is_told_in_the_engines_words),
        RIG(test_nothing_stays_of_what_failed),
        RIG(test_a_box_that_comes_late_is_found),
        RIG(test_a_box_whose_watch_lives_is_left_to_the_next_keeper),
        RIG(test_a_watch_that_dies_behind_a_look_leaves_its_box_a_place),
        RIG(test_the_boxes_of_a_dead_keeper_are_ended_by_the_next),
        RIG(test_many_that_were_left_hold_up_no_request),
        RIG(test_one_that_does_not_end_keeps_none_alive),
        RIG(test_what_has_ended_is_looked_for_more_and_more_rarely),
        RIG(test_what_no_box_elsewhere_has_is_refused),
        cmocka_unit_test(test_names_are_labels_and_never_shared),
        cmocka_unit_test(test_settings_are_the_kinds_own),
        cmocka_unit_test(test_files_of_credentials_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
