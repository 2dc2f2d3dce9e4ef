/* The store among other processes, damaged files, kill -9 and full disks.
 *
 * Children are forked before this process opens a database: SQLite's state must not be carried into
 * a child. */
#include "store_place.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

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
    pid_t pid = child_fork();
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
    pid_t pid = child_fork();
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
        pids[i] = child_fork();
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
    pid_t pid = child_fork();
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

static int take_version(void *ret, int count, char **values, char **names)
{
    (void)count, (void)names;
    *(int *)ret = (int)strtol(values[0], NULL, 10);
    return 0;
}

/* The schema's number, whatever it is by now. */
static int version_in_place(void **state)
{
    sqlite3 *handle;
    int version = 0;
    assert_int_equal(sqlite3_open(in_place(state, "paddock.db"), &handle), SQLITE_OK);
    assert_int_equal(sqlite3_exec(handle, "PRAGMA user_version", take_version, &version, NULL),
                     SQLITE_OK);
    sqlite3_close(handle);
    return version;
}

static void test_a_newer_database_is_refused(void **state)
{
    struct store *s = open_or_fail(((struct place *)*state)->dir, 1);
    s->free(s);
    int version = version_in_place(state);
    char newer[64], back[64], says[32];
    snprintf(newer, sizeof newer, "PRAGMA user_version=%d", version + 1);
    snprintf(back, sizeof back, "PRAGMA user_version=%d", version);
    snprintf(says, sizeof says, "schema %d", version + 1);

    sql_in_place(state, newer);
    refused(state, 1, PD_UNSUPPORTED, says);
    refused(state, 0, PD_UNSUPPORTED, "newer paddock");

    sql_in_place(state, back);
    s = open_or_fail(((struct place *)*state)->dir, 1);
    s->free(s);
}

/* As the first release made it. */
static const char first_schema[] =
    "CREATE TABLE sessions(seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, box_id BLOB NOT NULL,"
    " tenant TEXT NOT NULL, user_id TEXT NOT NULL, thread_id TEXT NOT NULL,"
    " template_name TEXT NOT NULL, provider TEXT NOT NULL, reason TEXT NOT NULL,"
    " policy TEXT NOT NULL, metadata TEXT NOT NULL, env BLOB NOT NULL, cwd TEXT NOT NULL,"
    " spec BLOB NOT NULL, root_name TEXT NOT NULL, key TEXT NOT NULL, key_hash INTEGER NOT NULL,"
    " replaces TEXT NOT NULL, state INTEGER NOT NULL, end_cause INTEGER NOT NULL,"
    " end_reason TEXT NOT NULL, created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL,"
    " last_used_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL, idle_timeout_ms INTEGER NOT NULL,"
    " max_life_ms INTEGER NOT NULL, paused_ms INTEGER NOT NULL, from_pool INTEGER NOT NULL,"
    " rung INTEGER NOT NULL);"
    "CREATE TABLE processes(seq INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE,"
    " session TEXT NOT NULL, command TEXT NOT NULL, key TEXT NOT NULL, key_hash INTEGER NOT NULL,"
    " group_id INTEGER NOT NULL, pid INTEGER NOT NULL, flags INTEGER NOT NULL,"
    " exited INTEGER NOT NULL, status INTEGER NOT NULL, stop INTEGER NOT NULL,"
    " started_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL,"
    " duration_us INTEGER NOT NULL, cpu_usec INTEGER NOT NULL, max_rss INTEGER NOT NULL,"
    " spool_max INTEGER NOT NULL, why TEXT NOT NULL, why_code INTEGER NOT NULL);"
    "CREATE INDEX processes_by_session ON processes(session);"
    "CREATE TRIGGER session_gone AFTER DELETE ON sessions"
    " BEGIN DELETE FROM processes WHERE session = OLD.id; END;"
    "CREATE TABLE keys(seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, hash BLOB NOT NULL UNIQUE,"
    " tenant TEXT NOT NULL, label TEXT NOT NULL, created_ms INTEGER NOT NULL,"
    " last_used_ms INTEGER NOT NULL, revoked_ms INTEGER NOT NULL);"
    "CREATE TABLE named_values(name TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;"
    "PRAGMA application_id=0x70616464; PRAGMA user_version=1;"
    "INSERT INTO sessions VALUES(1,'old',x'01020304050607080910111213141516','t','','','base','j',"
    "'','open','{}',x'','/w',x'','sb-old','',0,'',2,0,'',11,12,13,0,14,15,16,0,2);"
    "INSERT INTO processes VALUES(1,x'11121314151617181920212223242526','old','sleep','',0,1,7,4,0,"
    "0,0,21,0,0,0,0,0,22,'',0);"
    "INSERT INTO named_values VALUES('secret',x'aabb');";

static int check_old_session(const struct session_row *r, void *arg)
{
    const char *note = arg;
    assert_string_equal(r->id, "old");
    assert_string_equal(r->root_name, "sb-old");
    assert_int_equal(r->state, 2);
    assert_int_equal(r->rung, 2);
    assert_true(r->paused_ms == 16);
    assert_string_equal(r->note, note);
    assert_int_equal(r->asleep, 0);
    assert_int_equal(r->pause_at_end, 0);
    return 0;
}

static int check_old_process(const struct process_row *r, void *arg)
{
    ++*(int *)arg;
    assert_string_equal(r->session, "old");
    assert_true(r->spool_max == 22);
    assert_string_equal(r->note, "");
    return 0;
}

static void test_the_first_schema_is_brought_up_in_place(void **state)
{
    sql_in_place(state, first_schema);
    char note[] = "", later[] = "later";
    for (int again = 0; again < 2; again++) {
        struct store *s = open_or_fail(((struct place *)*state)->dir, 1);
        int processes = 0;
        char secret[2];

        assert_int_equal(count_sessions(s), 1);
        assert_int_equal(s->each_session(s, check_old_session, again ? later : note, NULL), 0);
        assert_int_equal(s->each_process(s, check_old_process, &processes, NULL), 0);
        assert_int_equal(processes, 1);
        assert_int_equal(s->get_value(s, "secret", secret, 2, NULL), 2);

        struct session_row row = {.id = "old",
                                  .root_name = "sb-old",
                                  .state = 2,
                                  .paused_ms = 16,
                                  .rung = 2,
                                  .note = later};

        struct snapshot_row snapshot = {.id = "sn", .tenant = "t", .name = "n"};
        assert_int_equal(s->put_session(s, &row, NULL), 0);
        assert_int_equal(s->put_snapshot(s, &snapshot, NULL), 0);
        s->free(s);
    }
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
        pid_t pid = child_fork();
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

/* Writes that fail for another reason: files may not grow past a size. */
static void with_failing_writes(const char *dir, int fd)
{
    (void)fd;
    signal(SIGXFSZ, SIG_IGN);
    struct pd_err e = {0};
    struct store *s = store_sqlite_open(dir, 1, &e);
    if (!s)
        _exit(10);

    uint64_t n = 1;
    for (int round = 0; round < 3; round++) {
        struct rlimit limit;
        getrlimit(RLIMIT_FSIZE, &limit);
        limit.rlim_cur = (rlim_t)(round + 1) * 512 * 1024;
        setrlimit(RLIMIT_FSIZE, &limit);

        int failed = 0;
        while (!failed && n < 5000) {
            struct process_row r = process_of(n, "one");
            failed = s->put_process(s, &r, &e);
            n += !failed;
        }

        if (!failed || e.code != PD_INTERNAL || e.sys != EFBIG)
            _exit(11);
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_FSIZE, &limit);

        struct process_row r = process_of(n++, "one");
        if (s->put_process(s, &r, &e))
            _exit(12);
        struct tally t = {.in_order = 1};
        if (s->each_process(s, tally_process, &t, &e) || t.count != n - 1 || !t.in_order)
            _exit(13);
    }

    s->free(s);
    struct tally t = {.in_order = 1};
    if (!(s = store_sqlite_open(dir, 1, &e)) || s->each_process(s, tally_process, &t, &e) ||
        t.count != n - 1)
        _exit(14);
    s->free(s);
}

static void test_failing_writes_are_said_and_survived(void **state)
{
    int status = in_child(with_failing_writes, ((struct place *)*state)->dir, -1);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PLACED(test_files_are_private),
        PLACED(test_a_directory_of_everybody_is_refused),
        PLACED(test_a_link_is_not_followed),
        PLACED(test_a_second_daemon_is_refused_until_the_first_is_gone),
        PLACED(test_many_may_open_a_new_directory_at_once),
        PLACED(test_the_version_tells_of_other_writers),
        PLACED(test_a_newer_database_is_refused),
        PLACED(test_the_first_schema_is_brought_up_in_place),
        PLACED(test_the_database_of_another_program_is_refused),
        PLACED(test_what_is_no_database_is_refused_with_what_to_do),
        PLACED(test_a_damaged_database_is_refused_with_what_to_do),
        PLACED(test_no_acknowledged_row_is_lost_to_kill_9),
        PLACED(test_a_full_disk_is_said_and_survived),
        PLACED(test_failing_writes_are_said_and_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
