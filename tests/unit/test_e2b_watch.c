/* Watchers whose worker says whatever it likes. The session layer and the door are played by this
 * file; the worker is a thread with two pipes. */
#include "unit.h"

#include "api/connect.h"
#include "api/e2b.h"
#include "api/e2b_handlers.h"
#include "api/e2b_watchers.h"

#include "base/fd.h"
#include "base/json.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#define WORKERS_MAX 300

static struct {
    int in, out;              /* the last worker's ends */
    int ends[WORKERS_MAX][2]; /* everybody's: whose are closed has ended */
    unsigned begun, ended, aborted;
    int attended;
    const char *request;
    struct buf answer;
    char words[8][64];
} fake = {.in = -1, .out = -1, .answer = {.max = 32u << 20}};

/* ---- the session layer ---- */

static void say(const struct record *r)
{
    auto_buf b = BUF_INIT(2 * RECORD_MAX);
    record_encode(&b, r);
    assert_false(b.overflow);
    (void)fd_write_all(fake.out, b.data, b.len);
}

static void say_event(enum event_kind kind, int is_dir, const char *path)
{
    say(&(struct record){
        .kind = RECORD_EVENT,
        .event = {.kind = kind, .is_dir = (uint32_t)is_dir, .path = path, .path2 = ""}});
}

static void say_detail(const char *path, uint64_t size)
{
    say(&(struct record){
        .kind = RECORD_DETAIL,
        .detail = {.entry = {.path = path, .target = "", .size = size}, .end_path = ""}});
}

int session_worker(struct session *s, const struct msg_list *argv, const char *user, unsigned flags,
                   struct worker_call *ret, struct pd_err *e)
{
    int in[2], out[2];
    uint32_t pos = 0;
    unsigned n = 0;

    (void)s, (void)user, (void)e;
    for (const char *word; n < 8 && (word = msg_list_next(argv, &pos)); n++)
        snprintf(fake.words[n], sizeof fake.words[n], "%.60s", word);
    assert_true(flags & WORKER_INPUT);

    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_true(fake.begun < WORKERS_MAX);

    fake.in = fake.ends[fake.begun][0] = in[0];
    fake.out = fake.ends[fake.begun][1] = out[1];
    fake.begun++;
    fake.attended++;
    *ret = (struct worker_call){.in = in[1], .out = out[0], .go = -1};
    say(&(struct record){.kind = RECORD_ENTRY,
                         .entry = {.type = ENTRY_DIR, .path = "/w", .target = ""}});
    return 0;
}

void session_worker_end(struct worker_call *c, int abort)
{
    fd_done(&c->in);
    fd_done(&c->out);
    fake.ended++;
    fake.aborted += abort != 0;
    fake.attended--;
}

void session_attend_begin(struct session *s)
{
    (void)s;
    fake.attended++;
}

void session_attend_end(struct session *s)
{
    (void)s;
    fake.attended--;
}

void session_get(struct session *s, struct session_info *ret)
{
    (void)s;
    *ret = (struct session_info){.state = SESSION_RUNNING};
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
    (void)p, (void)w, (void)other_fd, (void)d, (void)e;
    return 0;
}

void process_get(struct process *p, struct process_info *ret, struct pd_err *why)
{
    (void)p, (void)why;
    *ret = (struct process_info){.signal = SIGKILL};
}

/* ---- the door ---- */

int e2b_user(struct call *c, char out[FILE_USER_SIZE], struct pd_err *e)
{
    (void)c, (void)e;
    snprintf(out, FILE_USER_SIZE, "user");
    return 0;
}

int e2b_path(const char *user, const char *path, char out[FILE_PATH_SIZE], struct pd_err *e)
{
    (void)user, (void)e;
    snprintf(out, FILE_PATH_SIZE, "%s", path);
    return 0;
}

int connect_read(struct call *c, struct buf *text, struct fields *f, struct pd_err *e)
{
    (void)c, (void)text;
    return fields_parse(f, fake.request, strlen(fake.request), FIELDS_OPEN, e);
}

int connect_answer(struct call *c, const struct buf *json)
{
    (void)c;
    buf_clear(&fake.answer);
    if (json)
        buf_put(&fake.answer, json->data, json->len);
    return 0;
}

int connect_timeout(struct call *c, uint64_t *ret_ns, struct pd_err *e)
{
    (void)c, (void)e;
    *ret_ns = 0;
    return 0;
}

uint64_t connect_keepalive_ns(const struct call *c)
{
    (void)c;
    return NS_PER_S;
}

int connect_begin(struct call *c, struct pd_err *e)
{
    (void)c, (void)e;
    return 0;
}

int connect_end(struct call *c, const struct pd_err *why)
{
    (void)c, (void)why;
    return 0;
}

size_t connect_put_begin(struct buf *out, uint8_t flags)
{
    (void)flags;
    return out->len;
}

void connect_put_end(struct buf *out, size_t at)
{
    (void)out, (void)at;
}

int connect_write(struct call *c, const struct buf *envelopes, int whole, struct pd_err *e)
{
    (void)c, (void)envelopes, (void)whole, (void)e;
    return 0;
}

int call_query(struct call *c, const char *name, char *out, size_t size, struct pd_err *e)
{
    (void)c, (void)name, (void)out, (void)size, (void)e;
    return 0;
}

int call_json(struct call *c, int status, const struct buf *json)
{
    (void)c, (void)status, (void)json;
    return 0;
}

void json_time(struct json *j, const char *key, uint64_t ms)
{
    (void)j, (void)key, (void)ms;
}

void json_bytes(struct json *j, const char *key, const void *data, size_t len)
{
    (void)j, (void)key, (void)data, (void)len;
}

/* ---- the tests ---- */

struct bench {
    struct api api;
    struct call call;
    struct request request;
    int client;
    char id[ID_SANDBOX_LEN + 1];
};

static int set_up(void **state)
{
    static struct bench b;
    struct pd_err e;
    b = (struct bench){.call = {.sandbox = "one", .who = {.tenant = "t"}}};

    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    b.client = pair[1];
    b.request.conn = conn_new(pair[0], NULL, &e);
    assert_non_null(b.request.conn);

    b.call.api = &b.api;
    b.call.r = &b.request;
    fake.begun = fake.ended = fake.aborted = 0;
    fake.attended = 0;
    b.api.watchers = watchers_new(&e);
    assert_non_null(b.api.watchers);
    *state = &b;
    return 0;
}

static int tear_down(void **state)
{
    struct bench *b = *state;
    watchers_free(b->api.watchers);
    conn_free(b->request.conn);
    fd_done(&b->client);
    assert_int_equal(fake.ended, fake.begun);
    assert_int_equal(fake.attended, 0);

    for (unsigned i = 0; i < fake.begun; i++) {
        fd_done(&fake.ends[i][0]);
        fd_done(&fake.ends[i][1]);
    }
    buf_done(&fake.answer);
    return 0;
}

static int create(struct bench *b, struct pd_err *e)
{
    fake.request = "{\"path\":\"/w\",\"recursive\":true,\"includeEntry\":true}";
    if (rpc_fs_create_watcher(&b->call, e) < 0)
        return -1;
    const char *text = buf_cstr(&fake.answer);
    assert_int_equal(strncmp(text, "{\"watcherId\":\"", 14), 0);
    snprintf(b->id, sizeof b->id, "%.20s", text + 14);
    assert_true(id_is_sandbox(b->id));
    return 0;
}

static int get(struct bench *b, struct pd_err *e)
{
    char text[80];
    snprintf(text, sizeof text, "{\"watcherId\":\"%s\"}", b->id);
    fake.request = text;
    return rpc_fs_get_watcher_events(&b->call, e);
}

/* A new watcher whose worker says these things, and what comes of asking it. A worker that speaks
 * before it is asked may be found and ended at any moment: then it is done again. */
#define ASK_ONE_THAT_SAYS(ret, b, e, ...)                                                          \
    do {                                                                                           \
        int tries_ = 0;                                                                            \
        do {                                                                                       \
            assert_int_equal(create(b, &(e)), 0);                                                  \
            __VA_ARGS__;                                                                           \
            (ret) = get(b, &(e));                                                                  \
        } while ((ret) < 0 && (e).code == PD_NOT_FOUND && ++tries_ < 20);                          \
    } while (0)

static void expect_gone(struct bench *b)
{
    struct pd_err e;
    assert_int_equal(get(b, &e), -1);
    assert_int_equal(e.code, PD_NOT_FOUND);
}

static void test_events_are_told(void **state)
{
    struct bench *b = *state;
    struct pd_err e;
    int r;

    assert_int_equal(create(b, &e), 0);
    assert_string_equal(fake.words[0], "watch");
    assert_string_equal(fake.words[2], "1");
    assert_string_equal(fake.words[3], "xdp");
    assert_int_equal(fake.attended, 0); /* it keeps no sandbox busy */

    ASK_ONE_THAT_SAYS(r, b, e, say_detail("/w/other", 7); /* of another file: not this one's */
                      say_event(EVENT_CREATED, 0, "/w/a"); say_detail("/w/b/c\xff", 5);
                      say_event(EVENT_MODIFIED, 0, "/w/b/c\xff");
                      say_event(EVENT_MOVED, 0, "/w/b/c\xff"); say_event(EVENT_REMOVED, 1, "/w");
                      say_event(EVENT_MARK, 0, ""));
    assert_int_equal(r, 0);

    char word;
    assert_int_equal(read(fake.in, &word, 1), 1);
    assert_string_equal(
        buf_cstr(&fake.answer),
        "{\"events\":[{\"name\":\"a\",\"type\":\"EVENT_TYPE_CREATE\"},"
        "{\"name\":\"b/c\\ufffd\",\"type\":\"EVENT_TYPE_WRITE\",\"entry\":{\"name\":\"c\\ufffd\","
        "\"type\":\"FILE_TYPE_FILE\",\"path\":\"/w/b/c\\ufffd\",\"size\":\"5\",\"mode\":0,"
        "\"permissions\":\"----------\",\"owner\":\"root\",\"group\":\"root\","
        "\"modifiedTime\":\"1970-01-01T00:00:00.000000000Z\"}},"
        "{\"name\":\"b/c\\ufffd\",\"type\":\"EVENT_TYPE_RENAME\"},"
        "{\"name\":\".\",\"type\":\"EVENT_TYPE_REMOVE\"}]}");
}

static void test_what_no_worker_says(void **state)
{
    struct bench *b = *state;
    struct pd_err e;
    static const char *const paths[] = {"/", "/v/a", "/w/", "/wa", "w/a", ""};

    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        int r;
        ASK_ONE_THAT_SAYS(r, b, e, say_event(EVENT_CREATED, 0, paths[i]);
                          say_event(EVENT_MARK, 0, ""));
        assert_int_equal(r, -1);
        assert_int_equal(e.code, PD_PROTOCOL);
        expect_gone(b);
    }

    static const enum record_kind kinds[] = {RECORD_END, RECORD_MORE, RECORD_MATCH};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        assert_int_equal(create(b, &e), 0);
        say(&(struct record){
            .kind = kinds[i],
            .match = {.path = "", .text = ""},
        });
        assert_int_equal(get(b, &e), -1);
        expect_gone(b);
    }

    int r;
    ASK_ONE_THAT_SAYS(r, b, e, (void)fd_write_all(fake.out, "\xff\xff\xff\xff\xff\xff\xff\xff", 8));
    assert_int_equal(r, -1);
    assert_int_equal(e.code, PD_PROTOCOL);
    expect_gone(b);
    assert_int_equal(create(b, &e), 0);

    fd_done(&fake.ends[fake.begun - 1][1]); /* killed */
    assert_int_equal(get(b, &e), -1);
    expect_gone(b);
    assert_int_equal(fake.ended, fake.begun);
}

static void test_what_was_lost_is_said_once(void **state)
{
    struct bench *b = *state;
    struct pd_err e;
    int r;

    ASK_ONE_THAT_SAYS(r, b, e, say_event(EVENT_CREATED, 0, "/w/a");
                      say_event(EVENT_OVERFLOW, 0, "/w"); say_event(EVENT_MARK, 0, ""));
    assert_int_equal(r, 0); /* first what is known */
    assert_non_null(strstr(buf_cstr(&fake.answer), "\"a\""));
    assert_int_equal(get(b, &e), -1);
    assert_int_equal(e.code, PD_CAPACITY);

    say_event(EVENT_MARK, 0, "");
    assert_int_equal(get(b, &e), 0);
    assert_string_equal(buf_cstr(&fake.answer), "{\"events\":[]}");
}

static void *say_more(void *arg)
{
    unsigned *asked = arg;
    char word;
    while (read(fake.in, &word, 1) == 1) {
        ++*asked;
        say_event(EVENT_MARK, 1, "");
    }
    return NULL;
}

static void test_more_has_an_end(void **state)
{
    struct bench *b = *state;
    struct pd_err e;
    unsigned asked = 0;
    pthread_t thread;

    assert_int_equal(create(b, &e), 0);
    assert_int_equal(pthread_create(&thread, NULL, say_more, &asked), 0);
    assert_int_equal(get(b, &e), 0);

    char text[80];
    snprintf(text, sizeof text, "{\"watcherId\":\"%s\"}", b->id);
    fake.request = text;
    assert_int_equal(rpc_fs_remove_watcher(&b->call, &e), 0); /* its input ends */
    pthread_join(thread, NULL);
    assert_true(asked > 1 && asked <= 64);
}

static void *say_much(void *arg)
{
    char path[20000] = "/w/";
    (void)arg;
    memset(path + 3, 1, sizeof path - 4);
    path[sizeof path - 1] = 0;
    auto_buf b = BUF_INIT(2 * RECORD_MAX);
    struct record r = {.kind = RECORD_EVENT,
                       .event = {.kind = EVENT_CREATED, .path = path, .path2 = ""}};
    record_encode(&b, &r);
    while (fd_write_all(fake.out, b.data, b.len) == 0)
        continue;
    return NULL;
}

static void test_a_flood_without_a_mark_has_an_end(void **state)
{
    struct bench *b = *state;
    struct pd_err e;
    pthread_t thread;
    assert_int_equal(create(b, &e), 0);
    assert_int_equal(pthread_create(&thread, NULL, say_much, NULL), 0);
    assert_int_equal(get(b, &e), -1);
    assert_int_equal(e.code, PD_PROTOCOL);
    pthread_join(thread, NULL); /* it has nobody to talk to any more */
    expect_gone(b);
    assert_int_equal(fake.aborted, 1);
}

static void test_how_many_there_may_be(void **state)
{
    struct bench *b = *state;
    struct pd_err e;
    for (unsigned s = 0; s < WATCHERS_PER_TENANT / WATCHERS_PER_SANDBOX; s++) {
        snprintf(b->call.sandbox, sizeof b->call.sandbox, "sandbox%u", s);
        for (unsigned i = 0; i < WATCHERS_PER_SANDBOX; i++)
            assert_int_equal(create(b, &e), 0);
        assert_int_equal(create(b, &e), -1);
        assert_int_equal(e.code, PD_CAPACITY);
        assert_non_null(strstr(e.msg, "64"));
    }

    snprintf(b->call.sandbox, sizeof b->call.sandbox, "another");
    assert_int_equal(create(b, &e), -1);
    assert_int_equal(e.code, PD_CAPACITY);
    assert_non_null(strstr(e.msg, "256"));

    snprintf(b->call.who.tenant, sizeof b->call.who.tenant, "u");
    assert_int_equal(create(b, &e), 0); /* another tenant's room is its own */
    assert_int_equal(fake.begun, WATCHERS_PER_TENANT + 1);
    snprintf(b->call.sandbox, sizeof b->call.sandbox, "sandbox0");
    expect_gone(b); /* of another sandbox */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_events_are_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_no_worker_says, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_was_lost_is_said_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_more_has_an_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_flood_without_a_mark_has_an_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_how_many_there_may_be, set_up, tear_down),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
