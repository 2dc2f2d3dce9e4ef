#include "unit.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "store/sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct place {
    char dir[64];
};

static int place_setup(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    snprintf(p->dir, sizeof p->dir, "/tmp/paddock-sqlite-XXXXXX");
    *state = p;
    return mkdtemp(p->dir) ? 0 : -1;
}

static int place_teardown(void **state)
{
    struct place *p = *state;
    static const char *const names[] = {"paddock.db", "paddock.db-wal", "paddock.db-shm",
                                        "paddock.lock", "filler"};
    char path[128];
    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", p->dir, names[i]);
        unlink(path);
    }
    int failed = rmdir(p->dir);
    free(p);
    return failed;
}

static const char *in_place(void **state, const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", ((struct place *)*state)->dir, name);
    return path;
}

static struct store *open_or_fail(const char *dir, int exclusive)
{
    struct pd_err e = {0};
    struct store *s = store_sqlite_open(dir, exclusive, &e);
    if (!s)
        fail_msg("open: %s", e.msg);
    return s;
}

static struct process_row process_of(uint64_t n, const char *session)
{
    struct process_row r = {.session = session, .command = "sleep 1", .started_ms = n};
    memcpy(r.id, &n, sizeof n);
    return r;
}

/* What a callback has seen. */
struct tally {
    unsigned count;
    uint64_t sum, last;
    int in_order;
    unsigned stop_at;
    struct store *store; /* deletes what it sees */
};

static int tally_process(const struct process_row *r, void *arg)
{
    struct tally *t = arg;
    t->count++;
    t->sum += r->started_ms;
    t->in_order &= r->started_ms > t->last;
    t->last = r->started_ms;
    if (t->store)
        assert_int_equal(t->store->delete_process(t->store, r->id, NULL), 0);
    return t->stop_at && t->count == t->stop_at;
}

static int tally_session(const struct session_row *r, void *arg)
{
    struct tally *t = arg;
    t->count++;
    t->sum += r->created_ms;
    return 0;
}

static int tally_key(const struct key_row *r, void *arg)
{
    struct tally *t = arg;
    t->count++;
    t->sum += r->created_ms;
    t->last = r->revoked_ms;
    return 0;
}

static struct tally count_processes(struct store *s)
{
    struct tally t = {.in_order = 1};
    assert_int_equal(s->each_process(s, tally_process, &t, NULL), 0);
    return t;
}

static unsigned count_sessions(struct store *s)
{
    struct tally t = {0};
    assert_int_equal(s->each_session(s, tally_session, &t, NULL), 0);
    return t.count;
}

/* Rows come back as they were. */

static const char env_bytes[] = "A=1\0B=two words\0C=";

static struct session_row full_session(void)
{
    static const uint8_t spec[] = {0, 255, 0, 1, 0};
    return (struct session_row){
        .id = "abcdefghij0123456789",
        .box_id = {1, 2, 3, 0, 5, 255},
        .tenant = "default",
        .user_id = "J\xc3\xb6rg",
        .thread_id = "t'1\"; DROP TABLE sessions",
        .template_name = "base",
        .provider = "jail",
        .reason = "rule 3",
        .policy = "open",
        .metadata = "{\"a\":\"b\"}",
        .env = env_bytes,
        .env_len = sizeof env_bytes,
        .cwd = "/work\xff\xfe",
        .spec = spec,
        .spec_len = sizeof spec,
        .root_name = "r1",
        .key = "k-1",
        .key_hash = UINT64_MAX,
        .replaces = "zzzzzzzzzzzzzzzzzzzz",
        .state = 1,
        .end = 5,
        .end_reason = "gone",
        .created_ms = 1,
        .expires_ms = UINT64_MAX - 1,
        .last_used_ms = 3,
        .ended_ms = 4,
        .idle_timeout_ms = 5,
        .max_life_ms = 6,
        .paused_ms = 7,
        .from_pool = 1,
        .rung = -2,
    };
}

static int check_full_session(const struct session_row *r, void *arg)
{
    struct session_row want = full_session();
    ++*(int *)arg;
    assert_string_equal(r->id, want.id);
    assert_memory_equal(r->box_id, want.box_id, 16);
    assert_string_equal(r->tenant, want.tenant);
    assert_string_equal(r->user_id, want.user_id);
    assert_string_equal(r->thread_id, want.thread_id);
    assert_string_equal(r->template_name, want.template_name);
    assert_string_equal(r->provider, want.provider);
    assert_string_equal(r->reason, want.reason);
    assert_string_equal(r->policy, want.policy);
    assert_string_equal(r->metadata, want.metadata);
    assert_int_equal(r->env_len, want.env_len);
    assert_memory_equal(r->env, want.env, want.env_len);
    assert_string_equal(r->cwd, want.cwd);
    assert_int_equal(r->spec_len, want.spec_len);
    assert_memory_equal(r->spec, want.spec, want.spec_len);
    assert_string_equal(r->root_name, want.root_name);
    assert_string_equal(r->key, want.key);
    assert_true(r->key_hash == want.key_hash);
    assert_string_equal(r->replaces, want.replaces);
    assert_int_equal(r->state, want.state);
    assert_int_equal(r->end, want.end);
    assert_string_equal(r->end_reason, want.end_reason);
    assert_true(r->created_ms == 1 && r->expires_ms == UINT64_MAX - 1 && r->last_used_ms == 3);
    assert_true(r->ended_ms == 4 && r->idle_timeout_ms == 5 && r->max_life_ms == 6);
    assert_true(r->paused_ms == 7);
    assert_int_equal(r->from_pool, 1);
    assert_int_equal(r->rung, -2);
    return 0;
}

static void test_a_session_comes_back_as_it_was(void **state)
{
    struct store *s = open_or_fail(((struct place *)*state)->dir, 1);
    struct session_row row = full_session();
    assert_int_equal(s->put_session(s, &row, NULL), 0);
    s->free(s);
    s = open_or_fail(((struct place *)*state)->dir, 1);
    int seen = 0;
    assert_int_equal(s->each_session(s, check_full_session, &seen, NULL), 0);
    assert_int_equal(seen, 1);
    s->free(s);
}

static int check_empty_session(const struct session_row *r, void *arg)
{
    ++*(int *)arg;
    assert_string_equal(r->id, "x");
    assert_string_equal(r->tenant, "");
    assert_string_equal(r->metadata, "");
    assert_non_null(r->env);
    assert_int_equal(r->env_len, 0);
    assert_non_null(r->spec);
    assert_int_equal(r->spec_len, 0);
    return 0;
}

static void test_what_is_not_given_is_empty(void **state)
{
    (void)state;
    struct store *s = open_or_fail(":memory:", 0);
    struct session_row row = {.id = "x"};
    assert_int_equal(s->put_session(s, &row, NULL), 0);
    int seen = 0;
    assert_int_equal(s->each_session(s, check_empty_session, &seen, NULL), 0);
    assert_int_equal(seen, 1);
    s->free(s);
}

static int check_process(const struct process_row *r, void *arg)
{
    const struct process_row *want = arg;
    assert_memory_equal(r->id, want->id, 16);
    assert_string_equal(r->session, want->session);
    assert_string_equal(r->command, want->command);
    assert_string_equal(r->key, want->key);
    assert_string_equal(r->why, want->why);
    assert_true(r->key_hash == want->key_hash);
    assert_true(r->group == want->group);
    assert_int_equal(r->pid, want->pid);
    assert_int_equal(r->flags, want->flags);
    assert_int_equal(r->exited, want->exited);
    assert_int_equal(r->status, want->status);
    assert_int_equal(r->stop, want->stop);
    assert_int_equal(r->why_code, want->why_code);
    assert_true(r->started_ms == want->started_ms && r->ended_ms == want->ended_ms);
    assert_true(r->deadline_ms == want->deadline_ms && r->duration_us == want->duration_us);
    assert_true(r->cpu_usec == want->cpu_usec && r->max_rss == want->max_rss);
    assert_true(r->spool_max == want->spool_max);
    return 0;
}

static void test_a_process_is_put_and_replaced(void **state)
{
    (void)state;
    struct store *s = open_or_fail(":memory:", 0);
    struct process_row r = {
        .id = {9, 8, 0, 7},
        .session = "one",
        .command = "echo",
        .key = "k",
        .key_hash = UINT64_C(1) << 63,
        .group = UINT32_MAX,
        .pid = 3,
        .flags = 4,
        .started_ms = 5,
        .deadline_ms = UINT64_MAX,
        .spool_max = 6,
        .why = "",
    };
    assert_int_equal(s->put_process(s, &r, NULL), 0);
    assert_int_equal(s->each_process(s, check_process, &r, NULL), 0);
    r.exited = 1;
    r.status = 256;
    r.stop = 2;
    r.ended_ms = 10;
    r.duration_us = 11;
    r.cpu_usec = 12;
    r.max_rss = 13;
    r.why = "no such program";
    r.why_code = 22;
    assert_int_equal(s->put_process(s, &r, NULL), 0);
    assert_int_equal(s->each_process(s, check_process, &r, NULL), 0);
    assert_int_equal(count_processes(s).count, 1);
    s->free(s);
}

static void test_a_session_takes_its_processes_with_it(void **state)
{
    (void)state;
    struct store *s = open_or_fail(":memory:", 0);
    struct session_row one = {.id = "one"}, two = {.id = "two"};
    assert_int_equal(s->put_session(s, &one, NULL), 0);
    assert_int_equal(s->put_session(s, &two, NULL), 0);
    for (uint64_t i = 1; i <= 20; i++) {
        struct process_row r = process_of(i, i % 2 ? "one" : "two");
        assert_int_equal(s->put_process(s, &r, NULL), 0);
    }
    /* Putting a session again does not. */
    assert_int_equal(s->put_session(s, &one, NULL), 0);
    assert_int_equal(count_processes(s).count, 20);
    assert_int_equal(s->delete_session(s, "one", NULL), 0);
    assert_int_equal(s->delete_session(s, "one", NULL), 0);
    struct tally t = count_processes(s);
    assert_int_equal(t.count, 10);
    assert_true(t.sum == 2 + 4 + 6 + 8 + 10 + 12 + 14 + 16 + 18 + 20);
    assert_int_equal(count_sessions(s), 1);
    uint64_t id[2] = {2, 0};
    assert_int_equal(s->delete_process(s, (uint8_t *)id, NULL), 0);
    assert_int_equal(s->delete_process(s, (uint8_t *)id, NULL), 0);
    assert_int_equal(count_processes(s).count, 9);
    s->free(s);
}

static void test_rows_come_oldest_first_and_callbacks_may_stop_or_write(void **state)
{
    (void)state;
    struct store *s = open_or_fail(":memory:", 0);
    enum { ROWS = 1000 };
    for (uint64_t i = 1; i <= ROWS; i++) {
        struct process_row r = process_of(i, "one");
        r.id[15] = (uint8_t)(255 - i % 256); /* the order of ids is another one */
        assert_int_equal(s->put_process(s, &r, NULL), 0);
    }
    struct tally t = count_processes(s);
    assert_int_equal(t.count, ROWS);
    assert_true(t.in_order);
    assert_true(t.sum == ROWS * (ROWS + 1) / 2);
    struct tally some = {.stop_at = 130};
    assert_int_equal(s->each_process(s, tally_process, &some, NULL), 0);
    assert_int_equal(some.count, 130);
    struct tally deleting = {.in_order = 1, .store = s};
    assert_int_equal(s->each_process(s, tally_process, &deleting, NULL), 0);
    assert_int_equal(deleting.count, ROWS);
    assert_true(deleting.in_order);
    assert_int_equal(count_processes(s).count, 0);
    s->free(s);
}

static void test_a_revoked_key_stays_revoked(void **state)
{
    (void)state;
    struct store *s = open_or_fail(":memory:", 0);
    struct key_row k = {.id = "k1", .hash = {1}, .tenant = "default", .label = "", .created_ms = 5};
    assert_int_equal(s->put_key(s, &k, NULL), 0);
    k.revoked_ms = 77;
    assert_int_equal(s->put_key(s, &k, NULL), 0);
    k.revoked_ms = 0; /* somebody who has not heard of it */
    k.last_used_ms = 9;
    assert_int_equal(s->put_key(s, &k, NULL), 0);
    assert_int_equal(s->touch_key(s, "k1", 8, NULL), 0);
    assert_int_equal(s->touch_key(s, "nobody", 8, NULL), 0);
    struct tally t = {0};
    assert_int_equal(s->each_key(s, tally_key, &t, NULL), 0);
    assert_int_equal(t.count, 1);
    assert_true(t.last == 77);
    /* The same key under another id is no second key. */
    struct pd_err e = {0};
    struct key_row twin = {.id = "k2", .hash = {1}, .tenant = "other"};
    assert_int_equal(s->put_key(s, &twin, &e), -1);
    assert_int_equal(e.code, PD_INTERNAL);
    s->free(s);
}

static void test_values_are_kept_by_name(void **state)
{
    (void)state;
    struct store *s = open_or_fail(":memory:", 0);
    struct pd_err e = {0};
    char out[8];
    assert_int_equal(s->get_value(s, "secret", out, sizeof out, &e), -1);
    assert_int_equal(e.code, PD_NOT_FOUND);
    assert_int_equal(s->put_value(s, "secret", "a\0b", 3, NULL), 0);
    assert_int_equal(s->put_value(s, "empty", NULL, 0, NULL), 0);
    assert_int_equal(s->get_value(s, "secret", out, sizeof out, NULL), 3);
    assert_memory_equal(out, "a\0b", 3);
    assert_int_equal(s->get_value(s, "empty", NULL, 0, NULL), 0);
    assert_int_equal(s->get_value(s, "secret", out, 2, &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
    assert_int_equal(s->put_value(s, "secret", "12345678", 8, NULL), 0);
    assert_int_equal(s->get_value(s, "secret", out, sizeof out, NULL), 8);
    assert_memory_equal(out, "12345678", 8);
    s->free(s);
}

/* Files. */

static void test_files_are_private(void **state)
{
    struct place *p = *state;
    char deep[128];
    snprintf(deep, sizeof deep, "%s/a/b", p->dir);
    mode_t before = umask(0);
    struct store *s = open_or_fail(deep, 1);
    struct session_row row = {.id = "x"};
    assert_int_equal(s->put_session(s, &row, NULL), 0);
    umask(before);
    struct stat st;
    assert_int_equal(stat(deep, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    static const char *const names[] = {"paddock.db", "paddock.db-wal", "paddock.db-shm",
                                        "paddock.lock"};
    char path[160];
    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", deep, names[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
    }
    s->free(s);
    snprintf(path, sizeof path, "%s/paddock.db", deep);
    assert_int_equal(chmod(path, 0644), 0);
    s = open_or_fail(deep, 1);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    s->free(s);
    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", deep, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(deep), 0);
    *strrchr(deep, '/') = '\0';
    assert_int_equal(rmdir(deep), 0);
}

static void refused(void **state, int exclusive, enum pd_code code, const char *says)
{
    struct pd_err e = {0};
    struct store *s = store_sqlite_open(((struct place *)*state)->dir, exclusive, &e);
    assert_null(s);
    assert_int_equal(e.code, code);
    if (!strstr(e.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", e.msg, says);
}

static void test_a_directory_of_everybody_is_refused(void **state)
{
    assert_int_equal(chmod(((struct place *)*state)->dir, 0777), 0);
    refused(state, 1, PD_INVALID, "chmod");
    assert_int_equal(chmod(((struct place *)*state)->dir, 0700), 0);
    struct store *s = open_or_fail(((struct place *)*state)->dir, 1);
    s->free(s);
}

static void test_a_link_is_not_followed(void **state)
{
    char target[128];
    snprintf(target, sizeof target, "%s", in_place(state, "filler"));
    assert_int_equal(symlink(target, in_place(state, "paddock.db")), 0);
    refused(state, 0, PD_INVALID, "not a regular file");
    assert_int_equal(access(target, F_OK), -1);
}

/* Runs `body` in a child process and gives its exit status. */
static int in_child(void (*body)(const char *dir, int fd), const char *dir, int fd)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        body(dir, fd);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void hold_the_lock(const char *dir, int fd)
{
    struct store *s = store_sqlite_open(dir, 1, NULL);
    if (!s || write(fd, "x", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

static void test_a_second_daemon_is_refused_until_the_first_is_gone(void **state)
{
    struct place *p = *state;
    int ready[2];
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        hold_the_lock(p->dir, ready[1]);
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    char says[40];
    snprintf(says, sizeof says, "(pid %d)", (int)pid);
    refused(state, 1, PD_CONFLICT, says);
    /* `paddock key` may. */
    struct store *other = open_or_fail(p->dir, 0);
    struct key_row k = {.id = "k", .hash = {1}, .tenant = "default"};
    assert_int_equal(other->put_key(other, &k, NULL), 0);
    other->free(other);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    struct store *s = open_or_fail(p->dir, 1);
    struct tally t = {0};
    assert_int_equal(s->each_key(s, tally_key, &t, NULL), 0);
    assert_int_equal(t.count, 1);
    /* In one process, too. */
    snprintf(says, sizeof says, "(pid %d)", (int)getpid());
    refused(state, 1, PD_CONFLICT, says);
    s->free(s);
    close(ready[0]);
    close(ready[1]);
}

static void open_and_put(const char *dir, int fd)
{
    char byte;
    if (read(fd, &byte, 1) != 0) /* until the parent closes: all start at once */
        _exit(2);
    struct pd_err e = {0};
    struct store *s = store_sqlite_open(dir, 0, &e);
    if (!s) {
        dprintf(2, "# open: %s\n", e.msg);
        _exit(3);
    }
    uint64_t pid = (uint64_t)getpid();
    for (uint64_t i = 0; i < 20; i++) {
        struct process_row r = process_of(pid * 1000 + i, "one");
        if (s->put_process(s, &r, &e)) {
            dprintf(2, "# put: %s\n", e.msg);
            _exit(4);
        }
    }
    s->free(s);
}

static void test_many_may_open_a_new_directory_at_once(void **state)
{
    enum { PROCESSES = 8 };
    int gate[2];
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    pid_t pids[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            close(gate[1]);
            open_and_put(((struct place *)*state)->dir, gate[0]);
            _exit(0);
        }
    }
    close(gate[0]);
    close(gate[1]);
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    struct store *s = open_or_fail(((struct place *)*state)->dir, 1);
    assert_int_equal(count_processes(s).count, 20 * PROCESSES);
    s->free(s);
}

/* For each byte that it reads: puts a key, answers with a byte. */
static void put_keys(const char *dir, int in, int out)
{
    char byte;
    for (uint8_t n = 1; read(in, &byte, 1) == 1; n++) {
        struct store *s = store_sqlite_open(dir, 0, NULL);
        char id[8];
        snprintf(id, sizeof id, "k%d", n);
        struct key_row k = {.id = id, .hash = {n}, .tenant = "default"};
        if (!s || s->put_key(s, &k, NULL))
            _exit(1);
        s->free(s);
        if (write(out, &byte, 1) != 1)
            _exit(2);
    }
    _exit(0);
}

static void test_the_version_tells_of_other_writers(void **state)
{
    struct place *p = *state;
    int go[2], done[2];
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);
    assert_int_equal(pipe2(done, O_CLOEXEC), 0);
    /* Before SQLite is in use here: its state must not be carried into a child. */
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(go[1]);
        put_keys(p->dir, go[0], done[1]);
    }
    close(go[0]);
    close(done[1]);
    struct store *s = open_or_fail(p->dir, 1);
    for (unsigned round = 1; round <= 3; round++) {
        int64_t before = s->version(s);
        assert_true(before >= 0);
        struct session_row row = {.id = "x"};
        assert_int_equal(s->put_session(s, &row, NULL), 0);
        assert_true(s->version(s) == before);
        char byte = 'g';
        assert_int_equal(write(go[1], &byte, 1), 1);
        assert_int_equal(read(done[0], &byte, 1), 1);
        assert_true(s->version(s) != before);
        struct tally t = {0};
        assert_int_equal(s->each_key(s, tally_key, &t, NULL), 0);
        assert_int_equal(t.count, round);
    }
    s->free(s);
    close(go[1]);
    close(done[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Databases that are not ours, or no longer whole. */

static void sql_in_place(void **state, const char *sql)
{
    sqlite3 *handle;
    assert_int_equal(sqlite3_open(in_place(state, "paddock.db"), &handle), SQLITE_OK);
    assert_int_equal(sqlite3_exec(handle, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(handle);
}

static void test_a_newer_database_is_refused(void **state)
{
    struct store *s = open_or_fail(((struct place *)*state)->dir, 1);
    s->free(s);
    sql_in_place(state, "PRAGMA user_version=7");
    refused(state, 1, PD_UNSUPPORTED, "schema 7");
    refused(state, 0, PD_UNSUPPORTED, "newer paddock");
    sql_in_place(state, "PRAGMA user_version=1");
    s = open_or_fail(((struct place *)*state)->dir, 1);
    s->free(s);
}

static void test_the_database_of_another_program_is_refused(void **state)
{
    sql_in_place(state, "CREATE TABLE cookies(a)");
    refused(state, 1, PD_INVALID, "another program");
    sql_in_place(state, "PRAGMA user_version=1");
    refused(state, 1, PD_INVALID, "another program");
}

static void test_what_is_no_database_is_refused_with_what_to_do(void **state)
{
    int fd = open(in_place(state, "paddock.db"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(write(fd, "not a database\n", 15), 15);
    close(fd);
    refused(state, 1, PD_INTERNAL, "move paddock.db* away");
    refused(state, 0, PD_INTERNAL, "damaged");
}

static void test_a_damaged_database_is_refused_with_what_to_do(void **state)
{
    struct store *s = open_or_fail(((struct place *)*state)->dir, 1);
    for (uint64_t i = 1; i <= 500; i++) {
        struct process_row r = process_of(i, "one");
        assert_int_equal(s->put_process(s, &r, NULL), 0);
    }
    s->free(s);
    int fd = open(in_place(state, "paddock.db"), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    char junk[4096];
    memset(junk, 0xa5, sizeof junk);
    off_t size = lseek(fd, 0, SEEK_END);
    assert_true(size > 10 * 4096);
    for (off_t at = 8 * 4096; at < size; at += 4096)
        assert_int_equal(pwrite(fd, junk, sizeof junk, at), sizeof junk);
    close(fd);
    refused(state, 1, PD_INTERNAL, "move paddock.db* away");
    /* Without the check at the start, the reader finds out. */
    s = open_or_fail(((struct place *)*state)->dir, 0);
    struct tally t = {0};
    struct pd_err e = {0};
    assert_int_equal(s->each_process(s, tally_process, &t, &e), -1);
    assert_int_equal(e.code, PD_INTERNAL);
    assert_non_null(strstr(e.msg, "damaged"));
    s->free(s);
}

/* Acknowledged means stored. */

static void put_until_killed(const char *dir, int fd)
{
    struct store *s = store_sqlite_open(dir, 1, NULL);
    if (!s)
        _exit(1);
    struct tally t = {.in_order = 1};
    s->each_process(s, tally_process, &t, NULL);
    for (uint64_t n = t.last + 1;; n++) {
        struct process_row r = process_of(n, "one");
        if (s->put_process(s, &r, NULL))
            _exit(2);
        r.exited = 1;
        r.status = (int)n;
        if (s->put_process(s, &r, NULL) || write(fd, &n, sizeof n) != sizeof n)
            _exit(3);
    }
}

struct acknowledged {
    uint64_t expected;
    unsigned unfinished;
};

static int check_acknowledged(const struct process_row *r, void *arg)
{
    struct acknowledged *a = arg;
    assert_true(r->started_ms == ++a->expected); /* none is missing */
    if (!r->exited)
        a->unfinished++;
    else
        assert_int_equal(r->status, (int)r->started_ms);
    return 0;
}

static void test_no_acknowledged_row_is_lost_to_kill_9(void **state)
{
    struct place *p = *state;
    uint64_t last = 0;
    unsigned unfinished = 0;
    enum { KILLS = 25 };
    for (unsigned round = 0; round < KILLS; round++) {
        int acks[2];
        assert_int_equal(pipe2(acks, O_CLOEXEC), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            put_until_killed(p->dir, acks[1]);
        close(acks[1]);
        /* Let it write a while, then kill it in the middle of something. */
        uint64_t n, wanted = last + 20 + (round * 37) % 200;
        while (last < wanted && read(acks[0], &n, sizeof n) == sizeof n)
            last = n;
        assert_true(last >= wanted);
        struct timespec pause = {.tv_nsec = (long)(round * 7919 % 200) * 1000};
        nanosleep(&pause, NULL);
        assert_int_equal(kill(pid, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        while (read(acks[0], &n, sizeof n) == sizeof n)
            last = n;
        close(acks[0]);

        struct store *s = open_or_fail(p->dir, 1);
        struct acknowledged a = {0};
        assert_int_equal(s->each_process(s, check_acknowledged, &a, NULL), 0);
        assert_true(a.expected >= last);
        assert_true(a.expected <= last + 1);
        /* Rows that were begun stay so: the next writer goes on behind them. */
        assert_true(a.unfinished <= unfinished + 1);
        unfinished = a.unfinished;
        last = a.expected;
        s->free(s);
    }
    print_message("# %d kills, %llu rows, %u of them cut off in the middle\n", KILLS,
                  (unsigned long long)last, unfinished);
}

/* Threads. */

struct worker {
    struct store *store;
    uint64_t first;
    int failures;
};

enum { THREADS = 6, EACH = 150 };

static void *write_and_read(void *arg)
{
    struct worker *w = arg;
    struct store *s = w->store;
    for (uint64_t i = 0; i < EACH; i++) {
        struct process_row r = process_of(w->first + i, "one");
        w->failures += s->put_process(s, &r, NULL) != 0;
        struct session_row session = {.id = i % 2 ? "odd" : "even", .created_ms = i};
        w->failures += s->put_session(s, &session, NULL) != 0;
        if (i % 50 == 0) {
            struct tally t = {0};
            w->failures += s->each_process(s, tally_process, &t, NULL) != 0;
            w->failures += t.count == 0;
            struct key_row k = {.id = "shared", .hash = {1}, .tenant = "t", .last_used_ms = i};
            w->failures += s->put_key(s, &k, NULL) != 0;
            w->failures += s->version(s) < 0;
        }
        if (i % 3 == 0)
            w->failures += s->delete_process(s, r.id, NULL) != 0;
    }
    return NULL;
}

static void test_threads_may_do_everything_at_once(void **state)
{
    struct store *s = open_or_fail(((struct place *)*state)->dir, 1);
    pthread_t threads[THREADS];
    struct worker workers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.store = s, .first = (uint64_t)(i + 1) * 100000};
        assert_int_equal(pthread_create(&threads[i], NULL, write_and_read, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].failures, 0);
    }
    assert_int_equal(count_processes(s).count, THREADS * EACH * 2 / 3);
    assert_int_equal(count_sessions(s), 2);
    s->free(s);
}

/* A file system of our own, that can be filled and made read-only, in a mount namespace of our own
 * so that nobody else ever sees it. Exit status 77: not possible here. */
static void on_a_small_disk(const char *dir, int fd)
{
    (void)fd;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", dir, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0700"))
        _exit(77);
    struct pd_err e = {0};
    struct store *s = store_sqlite_open(dir, 1, &e);
    if (!s)
        _exit(10);
    uint64_t n = 1;
    char command[2000];
    memset(command, 'x', sizeof command);
    command[sizeof command - 1] = '\0';
    unsigned full = 0;
    for (; full < 3 && n < 5000; n++) {
        struct process_row r = process_of(n, "one");
        r.command = command;
        if (s->put_process(s, &r, &e) == 0)
            continue;
        if (e.code != PD_NO_SPACE || !strstr(e.msg, "no space"))
            _exit(11);
        n--; /* was not acknowledged: it is put again */
        full++;
    }
    if (full < 3 || n < 10)
        _exit(12);
    struct key_row k = {.id = "k", .hash = {1}, .tenant = "t"};
    struct tally t = {.in_order = 1};
    if (s->each_process(s, tally_process, &t, &e) || t.count != n - 1)
        _exit(13);
    /* More room: the same store goes on, and nothing acknowledged is missing. */
    if (mount(NULL, dir, NULL, MS_REMOUNT | MS_NOSUID | MS_NODEV, "size=64m"))
        _exit(14);
    for (uint64_t end = n + 50; n < end; n++) {
        struct process_row r = process_of(n, "one");
        if (s->put_process(s, &r, &e))
            _exit(15);
    }
    if (s->put_key(s, &k, &e))
        _exit(16);
    t = (struct tally){.in_order = 1};
    if (s->each_process(s, tally_process, &t, &e) || t.count != n - 1 || !t.in_order)
        _exit(17);
    s->free(s);
    s = store_sqlite_open(dir, 1, &e);
    t = (struct tally){.in_order = 1};
    if (!s || s->each_process(s, tally_process, &t, &e) || t.count != n - 1)
        _exit(18);
    s->free(s);

    /* Too full to be opened at all. */
    char path[128];
    snprintf(path, sizeof path, "%s/paddock.db", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/filler", dir);
    int filler = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    static char zeroes[65536];
    while (write(filler, zeroes, sizeof zeroes) > 0)
        ;
    while (write(filler, zeroes, 1024) > 0)
        ;
    close(filler);
    if (store_sqlite_open(dir, 1, &e) || e.code != PD_NO_SPACE)
        _exit(19);
    unlink(path);
    if (!(s = store_sqlite_open(dir, 1, &e)))
        _exit(20);
    s->free(s);

    /* Read-only while nobody has it open. */
    if (mount(NULL, dir, NULL, MS_REMOUNT | MS_RDONLY, NULL))
        _exit(21);
    if (store_sqlite_open(dir, 1, &e) || e.sys != EROFS)
        _exit(22);
    _exit(0);
}

static void test_a_full_disk_is_said_and_survived(void **state)
{
    struct place *p = *state;
    if (geteuid() != 0)
        skip_because("a small file system needs root");
    int status = in_child(on_a_small_disk, p->dir, -1);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip_because("no mount namespace here");
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Times, for people; nothing here fails for being slow. */

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void test_ten_thousand_rows_are_put_and_loaded(void **state)
{
    struct place *p = *state;
    struct store *s = open_or_fail(p->dir, 1);
    enum { ROWS = 10000 };
    uint64_t *put = calloc(ROWS, sizeof *put), *end = calloc(ROWS, sizeof *end);
    char session[8][21];
    for (int i = 0; i < 8; i++)
        snprintf(session[i], sizeof session[i], "session%013d", i);
    for (uint64_t i = 0; i < ROWS; i++) {
        struct process_row r = process_of(i + 1, session[i % 8]);
        random_bytes(r.id, sizeof r.id);
        uint64_t t0 = clock_now();
        assert_int_equal(s->put_process(s, &r, NULL), 0);
        uint64_t t1 = clock_now();
        r.exited = 1;
        assert_int_equal(s->put_process(s, &r, NULL), 0);
        put[i] = t1 - t0;
        end[i] = clock_now() - t1;
    }
    qsort(put, ROWS, sizeof *put, by_value);
    qsort(end, ROWS, sizeof *end, by_value);
    print_message("# put_process: new p50 %.1f p99 %.1f max %.0f us, again p50 %.1f p99 %.1f us\n",
                  (double)put[ROWS / 2] / 1e3, (double)put[ROWS * 99 / 100] / 1e3,
                  (double)put[ROWS - 1] / 1e3, (double)end[ROWS / 2] / 1e3,
                  (double)end[ROWS * 99 / 100] / 1e3);
    free(put);
    free(end);
    s->free(s);
    uint64_t t0 = clock_now();
    s = open_or_fail(p->dir, 1);
    uint64_t t1 = clock_now();
    struct tally t = count_processes(s);
    print_message("# open and check %.1f ms, load %d rows %.1f ms\n", (double)(t1 - t0) / 1e6, ROWS,
                  (double)(clock_now() - t1) / 1e6);
    assert_int_equal(t.count, ROWS);
    assert_true(t.in_order);
    s->free(s);
}

#define PLACED(test) cmocka_unit_test_setup_teardown(test, place_setup, place_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        PLACED(test_a_session_comes_back_as_it_was),
        cmocka_unit_test(test_what_is_not_given_is_empty),
        cmocka_unit_test(test_a_process_is_put_and_replaced),
        cmocka_unit_test(test_a_session_takes_its_processes_with_it),
        cmocka_unit_test(test_rows_come_oldest_first_and_callbacks_may_stop_or_write),
        cmocka_unit_test(test_a_revoked_key_stays_revoked),
        cmocka_unit_test(test_values_are_kept_by_name),
        PLACED(test_files_are_private),
        PLACED(test_a_directory_of_everybody_is_refused),
        PLACED(test_a_link_is_not_followed),
        PLACED(test_a_second_daemon_is_refused_until_the_first_is_gone),
        PLACED(test_many_may_open_a_new_directory_at_once),
        PLACED(test_the_version_tells_of_other_writers),
        PLACED(test_a_newer_database_is_refused),
        PLACED(test_the_database_of_another_program_is_refused),
        PLACED(test_what_is_no_database_is_refused_with_what_to_do),
        PLACED(test_a_damaged_database_is_refused_with_what_to_do),
        PLACED(test_no_acknowledged_row_is_lost_to_kill_9),
        PLACED(test_threads_may_do_everything_at_once),
        PLACED(test_a_full_disk_is_said_and_survived),
        PLACED(test_ten_thousand_rows_are_put_and_loaded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
