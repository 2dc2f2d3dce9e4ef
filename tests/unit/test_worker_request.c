/* A worker that says whatever it likes: what a request makes of it. The session layer is played by
 * this file; the worker is a pipe. */
#include "unit.h"

#include "api/worker_request.h"

#include "base/fd.h"
#include "base/json.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>

static struct {
    int far; /* the worker's end of its output */
    int ended, aborted;
    struct msg_list_writer words;
    struct session_info session;
    struct process_info process;
    struct pd_err why;
    int waits_fail;
} fake;

/* ---- the session layer ---- */

int session_worker(struct session *s, const struct msg_list *argv, const char *user, unsigned flags,
                   struct worker_call *ret, struct pd_err *e)
{
    int p[2];
    (void)s, (void)user, (void)flags;
    fake.words = MSG_LIST_WRITER_INIT;
    uint32_t pos = 0;
    for (const char *word; (word = msg_list_next(argv, &pos));)
        msg_list_add(&fake.words, word);
    if (pipe2(p, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "pipe");
    fake.far = p[1];
    *ret = (struct worker_call){.in = -1, .out = p[0], .go = -1};
    return 0;
}

void session_worker_end(struct worker_call *c, int abort)
{
    fd_done(&c->out);
    msg_list_writer_done(&fake.words);
    fake.ended = 1;
    fake.aborted = abort;
}

void session_get(struct session *s, struct session_info *ret)
{
    (void)s;
    *ret = fake.session;
}

int process_watch(struct process *p, struct watch *w, struct pd_err *e)
{
    (void)p, (void)w, (void)e;
    return 0;
}

void process_unwatch(struct process *p, struct watch *w)
{
    (void)p, (void)w;
}

int process_wait(struct process *p, struct watch *w, int other_fd, deadline d, struct pd_err *e)
{
    (void)p, (void)w, (void)other_fd, (void)d;
    return fake.waits_fail ? pd_fail(e, PD_TIMEOUT, "late") : 0;
}

void process_get(struct process *p, struct process_info *ret, struct pd_err *why)
{
    (void)p;
    *ret = fake.process;
    if (why)
        *why = fake.why;
}

/* ---- what of api.c is not of interest here ---- */

static const char *query_path, *query_user;

int call_query(struct call *c, const char *name, char *out, size_t size, struct pd_err *e)
{
    const char *value = !strcmp(name, "path") ? query_path : query_user;
    (void)c, (void)e;
    if (value)
        snprintf(out, size, "%s", value);
    return value != NULL;
}

int call_json(struct call *c, int status, const struct buf *json)
{
    (void)c, (void)json;
    return status;
}

void json_time(struct json *j, const char *key, uint64_t ms)
{
    json_key(j, key);
    json_uint(j, ms);
}

void json_bytes(struct json *j, const char *key, const void *data, size_t len)
{
    json_key(j, key);
    json_str(j, data, len);
}

/* ---- the tests ---- */

struct bench {
    struct call call;
    struct request request;
    int client;
};

static int setup(void **state)
{
    static struct bench b;
    int pair[2];
    struct pd_err e;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    b = (struct bench){.client = pair[1]};
    b.request.conn = conn_new(pair[0], NULL, &e);
    assert_non_null(b.request.conn);

    b.call.r = &b.request;
    memset(&fake, 0, sizeof fake);
    fake.far = -1;
    fake.session.state = SESSION_RUNNING;
    snprintf(fake.session.id, sizeof fake.session.id, "aaaaabbbbbcccccddddd");
    query_path = query_user = NULL;
    *state = &b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    conn_free(b->request.conn);
    fd_done(&b->client);
    fd_done(&fake.far);
    return 0;
}

static void begin(struct bench *b, struct worker_run *w)
{
    struct pd_err e;
    const char *const words[] = {"stat", "/x", "", NULL};
    *w = WORKER_INIT;
    assert_int_equal(worker_begin(w, &b->call, "user", 0, words, &e), 0);
    assert_int_equal(msg_list_of(&fake.words).count, 3);
}

static void say(const struct record *r)
{
    auto_buf b = BUF_INIT(2 * RECORD_MAX);
    record_encode(&b, r);
    assert_false(b.overflow);
    assert_int_equal(fd_write_all(fake.far, b.data, b.len), 0);
}

static void say_error(uint32_t code, const char *text)
{
    struct record r = {.kind = RECORD_ERROR, .error = {.code = code, .sys = 5, .text = text}};
    say(&r);
}

/* The worker has spoken; the request must fail like this. */
static void expect_failure(struct worker_run *w, enum pd_code code, const char *word, int aborted)
{
    struct record r;
    struct pd_err e = {0};
    assert_int_equal(worker_first(w, &r, &e), -1);
    if (e.code != code || !strstr(e.msg, word))
        fail_msg("%s: %s instead of %s with '%s'", pd_code_name(e.code), e.msg, pd_code_name(code),
                 word);
    worker_done(w);
    assert_true(fake.ended);
    assert_int_equal(fake.aborted, aborted);
    fd_done(&fake.far);
}

static void test_an_error_of_a_file_is_passed_on(void **state)
{
    static const enum pd_code codes[] = {PD_INVALID,   PD_NOT_FOUND, PD_CONFLICT,
                                         PD_TOO_LARGE, PD_DENIED,    PD_UNSUPPORTED,
                                         PD_CAPACITY,  PD_NO_SPACE,  PD_TIMEOUT};
    for (size_t i = 0; i < COUNT(codes); i++) {
        struct worker_run w;
        begin(*state, &w);
        say_error(codes[i], "'x': no");
        expect_failure(&w, codes[i], "'x': no", 0);
    }
}

static void test_no_other_error_is_believed(void **state)
{
    static const enum pd_code codes[] = {
        PD_INTERNAL,      PD_UNAUTHENTICATED, PD_METHOD,       PD_RATE,
        PD_POLICY,        PD_PAUSED,          PD_SESSION_LOST, PD_SESSION_EXPIRED,
        PD_SHUTTING_DOWN, PD_ISOLATION,       PD_LOST,         PD_PROTOCOL};
    for (size_t i = 0; i < COUNT(codes); i++) {
        struct worker_run w;
        begin(*state, &w);
        say_error(codes[i], "your key is bad");
        expect_failure(&w, PD_BAD_GATEWAY, "", 0);
    }
}

static void test_nonsense_is_a_breach_and_kills(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
    } said[] = {
        {"\xff\xff\xff\xff\x01\0\0\0", 8}, /* a length beyond all bounds */
        {"\x04\0\0\0\x63\0\0\0abcd", 12},  /* a kind that is none */
        {"\x04\0\0\0\x01\0\0\0abcd", 12},  /* an entry that is too short */
        {"\0\0\0\0\0\0\0\0", 8},           /* kind 0 */
        {"\x04\0\0\0\x0a\0\0\0abcd", 12},  /* an END with something in it */
        {"HTTP/1.1 200 OK\r\n\r\n", 19},   /* another protocol */
        {"\x40\0\0\0\x01\0\0\0", 8},       /* cut off behind the head */
        {"\x40\0", 2},                     /* and in it */
    };

    for (size_t i = 0; i < COUNT(said); i++) {
        struct worker_run w;
        begin(*state, &w);
        assert_int_equal(fd_write_all(fake.far, said[i].bytes, said[i].len), 0);
        fd_done(&fake.far);
        expect_failure(&w, PD_PROTOCOL, "", 1);
    }
}

static void test_another_kind_than_expected_is_a_breach(void **state)
{
    struct worker_run w;
    struct record r;
    struct pd_err e = {0};
    begin(*state, &w);
    say(&(struct record){.kind = RECORD_END});
    assert_int_equal(worker_expect(&w, RECORD_ENTRY, &r, &e), -1);
    assert_int_equal(e.code, PD_PROTOCOL);
    worker_done(&w);
    assert_true(fake.aborted);
}

static void test_an_end_without_a_word_is_explained(void **state)
{
    struct worker_run w;
    begin(*state, &w);
    fd_done(&fake.far);
    fake.process.refused = 1;
    pd_fail(&fake.why, PD_CAPACITY, "no processes left");
    expect_failure(&w, PD_CAPACITY, "no processes", 0);

    begin(*state, &w);
    fd_done(&fake.far);
    fake.process = (struct process_info){.stopped_by = STOP_OOM};
    expect_failure(&w, PD_CAPACITY, "memory", 0);

    begin(*state, &w);
    fd_done(&fake.far);
    fake.process = (struct process_info){.signal = 9};
    expect_failure(&w, PD_BAD_GATEWAY, "killed", 0);

    begin(*state, &w);
    fd_done(&fake.far);
    fake.waits_fail = 1; /* it closed its output and lives on */
    expect_failure(&w, PD_BAD_GATEWAY, "", 1);

    begin(*state, &w);
    fd_done(&fake.far);
    fake.session.state = SESSION_GONE;
    snprintf(fake.session.end_reason, sizeof fake.session.end_reason, "deleted");
    expect_failure(&w, PD_SESSION_LOST, "deleted", 1);
}

static void test_silence_has_an_end(void **state)
{
    struct worker_run w;
    begin(*state, &w);
    w.quiet_ns = 20 * NS_PER_MS;
    expect_failure(&w, PD_TIMEOUT, "in time", 1);

    begin(*state, &w);
    w.quiet_ns = 20 * NS_PER_MS;
    fake.session.state = SESSION_PAUSED;
    expect_failure(&w, PD_PAUSED, "resume", 1);

    /* However often it says something: the whole has an end, too. */
    struct record r;
    struct pd_err e = {0};
    begin(*state, &w);
    say(&(struct record){.kind = RECORD_MORE, .more = {.cursor = "x"}});
    say(&(struct record){.kind = RECORD_MORE, .more = {.cursor = "y"}});
    assert_int_equal(worker_next(&w, &r, &e), 1);
    assert_true(worker_has_next(&w));

    w.whole = deadline_in(0);
    assert_int_equal(worker_next(&w, &r, &e), -1);
    assert_int_equal(e.code, PD_TIMEOUT);
    worker_done(&w);
}

static void test_a_client_that_leaves_is_noticed(void **state)
{
    struct bench *b = *state;
    struct worker_run w;
    begin(b, &w);
    fd_done(&b->client);
    expect_failure(&w, PD_LOST, "left", 1);

    /* What must be finished is waited for all the same. */
    struct record r;
    struct pd_err e = {0};
    begin(b, &w);
    w.must_finish = 1;
    say(&(struct record){.kind = RECORD_END});
    assert_int_equal(worker_first(&w, &r, &e), 0);

    w.ended = 1;
    worker_done(&w);
    assert_false(fake.aborted);
}

static void test_many_records_and_their_end(void **state)
{
    struct worker_run w;
    struct record r;
    struct pd_err e = {0};

    begin(*state, &w);
    for (int i = 0; i < 50; i++) {
        struct record more = {.kind = RECORD_MORE, .more = {.cursor = "cursor"}};
        say(&more);
    }

    say(&(struct record){.kind = RECORD_END});
    for (int i = 0; i < 50; i++) {
        assert_int_equal(worker_next(&w, &r, &e), 1);
        assert_string_equal(r.more.cursor, "cursor");
    }
    assert_int_equal(worker_next(&w, &r, &e), 0);
    worker_done(&w);
    assert_false(fake.aborted);

    /* Nonsense behind a good one is found at once. */
    begin(*state, &w);
    say(&(struct record){.kind = RECORD_MORE, .more = {.cursor = "x"}});

    assert_int_equal(fd_write_all(fake.far, "\xff\xff\xff\xff\x01\0\0\0", 8), 0);
    assert_int_equal(worker_next(&w, &r, &e), 1);
    assert_true(worker_has_next(&w));
    assert_int_equal(worker_next(&w, &r, &e), -1);
    assert_int_equal(e.code, PD_PROTOCOL);
    worker_done(&w);
    assert_true(fake.aborted);
    fd_done(&fake.far);

    /* Without END it is not the end. */
    begin(*state, &w);
    say(&(struct record){.kind = RECORD_MORE, .more = {.cursor = "x"}});
    fd_done(&fake.far);
    assert_int_equal(worker_next(&w, &r, &e), 1);
    assert_int_equal(worker_next(&w, &r, &e), -1);
    worker_done(&w);
}

static void test_an_exit_must_be_a_good_one(void **state)
{
    struct pd_err e;
    static const struct {
        int refused, code, signal, late, result;
    } ends[] = {
        {0, 0, 0, 0, 0}, {0, 1, 0, 0, -1}, {0, -1, 9, 0, -1}, {1, 0, 0, 0, -1}, {0, 0, 0, 1, -1}};

    for (size_t i = 0; i < COUNT(ends); i++) {
        struct worker_run w;
        begin(*state, &w);
        fake.waits_fail = ends[i].late;
        fake.process = (struct process_info){
            .refused = ends[i].refused, .exit_code = ends[i].code, .signal = ends[i].signal};
        assert_int_equal(worker_exit(&w, &e), ends[i].result);
        worker_done(&w);
        assert_int_equal(fake.aborted, ends[i].late);
        fd_done(&fake.far);
    }
}

static void test_words_that_are_too_long_start_nothing(void **state)
{
    struct bench *b = *state;
    struct pd_err e;
    char *word = malloc(WIRE_PAYLOAD_MAX + 1);
    assert_non_null(word);
    memset(word, 'a', WIRE_PAYLOAD_MAX);
    word[WIRE_PAYLOAD_MAX] = 0;
    const char *const words[] = {"replace", word, word, NULL};
    auto_worker w = WORKER_INIT;
    assert_int_equal(worker_begin(&w, &b->call, "user", 0, words, &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
    free(word);
}

static void test_paths_and_users_of_a_query(void **state)
{
    struct bench *b = *state;
    struct pd_err e;
    char path[FILE_PATH_SIZE], user[FILE_USER_SIZE];

    query_path = "/a/b";
    assert_int_equal(file_query_path(&b->call, NULL, path, &e), 0);
    assert_string_equal(path, "/a/b");
    assert_string_equal(b->call.summary, "/a/b");

    query_path = "a";
    assert_int_equal(file_query_path(&b->call, NULL, path, &e), 0);
    assert_string_equal(path, "/workspace/a");

    query_path = NULL;
    assert_int_equal(file_query_path(&b->call, ".", path, &e), 0);
    assert_string_equal(path, "/workspace/.");
    assert_int_equal(file_query_path(&b->call, NULL, path, &e), -1);

    query_path = "";
    assert_int_equal(file_query_path(&b->call, ".", path, &e), -1);
    assert_string_equal(b->call.field, "path");

    /* The longest one that a client can name keeps its end. */
    char longest[FILE_PATH_MAX + 1];
    memset(longest, 'x', FILE_PATH_MAX);
    longest[FILE_PATH_MAX - 1] = 'y';
    longest[FILE_PATH_MAX] = 0;
    query_path = longest;

    assert_int_equal(file_query_path(&b->call, NULL, path, &e), 0);
    assert_int_equal(strlen(path), FILE_PATH_MAX + strlen("/workspace/"));
    assert_int_equal(path[strlen(path) - 1], 'y');
    assert_int_equal(file_query_user(&b->call, user, &e), 0);
    assert_string_equal(user, "user");

    query_user = "root";
    assert_int_equal(file_query_user(&b->call, user, &e), 0);
    assert_string_equal(user, "root");

    query_user = "users";
    assert_int_equal(file_query_user(&b->call, user, &e), -1);
    assert_string_equal(b->call.field, "user");
}

static void test_an_entry_as_json(void **state)
{
    auto_buf text = BUF_INIT(4096);
    struct json j = JSON_INIT(&text);
    struct record_entry r = {.type = ENTRY_SYMLINK,
                             .mode = 0777,
                             .uid = 1,
                             .gid = UINT32_MAX,
                             .size = UINT64_MAX,
                             .mtime_ns = -5,
                             .path = "/a/\x1b\"",
                             .target = ""};

    (void)state;
    file_entry_json(&j, &r);
    assert_string_equal(
        buf_cstr(&text),
        "{\"name\":\"\\u001b\\\"\",\"path\":\"/a/\\u001b\\\"\",\"type\":\"symlink\","
        "\"size\":18446744073709551615,\"mode\":\"0777\",\"uid\":1,"
        "\"gid\":4294967295,\"modified_at\":\"1970-01-01T00:00:00.000Z\","
        "\"target\":\"\"}");

    buf_clear(&text);
    j = JSON_INIT(&text);
    r = (struct record_entry){.type = ENTRY_DIR, .mtime_ns = 2500000, .path = "/", .target = ""};
    file_entry_json(&j, &r);
    assert_string_equal(buf_cstr(&text),
                        "{\"name\":\"/\",\"path\":\"/\",\"type\":\"dir\",\"size\":0,"
                        "\"mode\":\"0000\",\"uid\":0,\"gid\":0,"
                        "\"modified_at\":2,\"target\":null}");
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_an_error_of_a_file_is_passed_on),    T(test_no_other_error_is_believed),
        T(test_nonsense_is_a_breach_and_kills),     T(test_another_kind_than_expected_is_a_breach),
        T(test_an_end_without_a_word_is_explained), T(test_silence_has_an_end),
        T(test_a_client_that_leaves_is_noticed),    T(test_many_records_and_their_end),
        T(test_an_exit_must_be_a_good_one),         T(test_words_that_are_too_long_start_nothing),
        T(test_paths_and_users_of_a_query),         T(test_an_entry_as_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
