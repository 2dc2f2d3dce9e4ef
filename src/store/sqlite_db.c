/* How this works
 *
 * The database is in WAL mode. With synchronous=NORMAL a commit is a write to the WAL without an
 * fsync: it survives the process (the page cache has it), not the machine. Keys and values are
 * written with FULL, which syncs the WAL. Checkpoints, which sync and copy, would stall whichever
 * commit happens to cross 1,000 pages for milliseconds; so the daemon has a thread for them. It
 * also bounds what a power loss costs: FLUSH_NS after a write everything is on the disk.
 *
 * The daemon's lock is an open-file-description lock on a byte of paddock.lock; the pid in the file
 * is for the message only. The kernel drops the lock with the process, so there is nothing to clean
 * up. */
#include "store/sqlite_db.h"

#include "base/banned.h"
#include "base/cond.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>

#define SCHEMA_VERSION 9
#define APPLICATION_ID 0x70616464 /* "padd", for file(1) and against mistaken files */
#define BUSY_MS        5000
#define WAL_PAGES      1000 /* not yet checkpointed: the thread is woken early */
/* 32 MiB: without a pause between commits the thread never sees the end of the WAL, which could
 * begin anew then; so a commit does the rest of the work. */
#define WAL_PAGES_MAX 8192
#define FLUSH_NS      (2 * NS_PER_S)
#define REST_NS       (60 * NS_PER_S) /* with nothing to flush; a write wakes the thread */

/* One string per schema version: from the one before to it. Never edited once released. */
static const char *const migrations[SCHEMA_VERSION] = {
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
    "CREATE TABLE named_values(name TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;",
    "ALTER TABLE sessions ADD COLUMN note TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE sessions ADD COLUMN pause_at_end INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE sessions ADD COLUMN asleep INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE processes ADD COLUMN note TEXT NOT NULL DEFAULT '';"
    "CREATE TABLE snapshots(seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,"
    " tenant TEXT NOT NULL, name TEXT NOT NULL, sandbox TEXT NOT NULL,"
    " template_name TEXT NOT NULL, profile INTEGER NOT NULL, state INTEGER NOT NULL,"
    " created_ms INTEGER NOT NULL);",
    "ALTER TABLE snapshots ADD COLUMN provider TEXT NOT NULL DEFAULT 'jail';",
    "ALTER TABLE keys ADD COLUMN is_admin INTEGER NOT NULL DEFAULT 0;",
    "ALTER TABLE sessions ADD COLUMN mode INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE sessions ADD COLUMN arm TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE sessions ADD COLUMN other_root TEXT NOT NULL DEFAULT '';",
    "ALTER TABLE sessions ADD COLUMN network TEXT NOT NULL DEFAULT '';",
    "ALTER TABLE sessions ADD COLUMN made_by TEXT NOT NULL DEFAULT '';",
    "ALTER TABLE snapshots ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE snapshots ADD COLUMN note TEXT NOT NULL DEFAULT '';"
    "CREATE TABLE builds(seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,"
    " template_id TEXT NOT NULL, tenant TEXT NOT NULL, name TEXT NOT NULL, tags TEXT NOT NULL,"
    " made_by TEXT NOT NULL, provider TEXT NOT NULL, base TEXT NOT NULL, settings TEXT NOT NULL,"
    " snapshot TEXT NOT NULL, step TEXT NOT NULL, message TEXT NOT NULL, state INTEGER NOT NULL,"
    " profile INTEGER NOT NULL, cpu_milli INTEGER NOT NULL, memory INTEGER NOT NULL,"
    " size INTEGER NOT NULL, created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL,"
    " finished_ms INTEGER NOT NULL);",
    "ALTER TABLE keys ADD COLUMN expires_ms INTEGER NOT NULL DEFAULT 0;",
};

/* Why a system call under SQLite failed is read from errno, which callers clear before the call:
 * sqlite3_system_errno knows nothing of commits that fail (seen with 3.40). */
static int fail_on(const char *path, int rc, const char *what, struct pd_err *e)
{
    int io_error = (rc & 0xff) == SQLITE_IOERR;

    int sys = io_error || (rc & 0xff) == SQLITE_CANTOPEN ? errno : 0;
    /* The WAL's index is made longer by a call of its own, whose errno SQLite forgets. */
    if ((rc & 0xff) == SQLITE_FULL || rc == SQLITE_IOERR_SHMSIZE ||
        (io_error && (sys == ENOSPC || sys == EDQUOT))) {
        pd_fail(e, PD_NO_SPACE, "%s: no space left in the state directory; free some and try again",
                what);
        if (e)
            e->sys = sys == EDQUOT ? EDQUOT : ENOSPC;
        return -1;
    }

    switch (rc & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return pd_fail(e, PD_INTERNAL,
                       "%s: the database is damaged (%s): restore a copy, or move paddock.db* away "
                       "and start anew (its keys and sessions are lost then): %s",
                       what, sqlite3_errstr(rc), path);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return pd_fail(e, PD_CAPACITY, "%s: another process has been writing to %s for %d s", what,
                       path, BUSY_MS / 1000);
    case SQLITE_NOMEM:
        return pd_fail(e, PD_CAPACITY, "%s: out of memory", what);
    case SQLITE_TOOBIG:
        return pd_fail(e, PD_TOO_LARGE, "%s: a value is too large", what);
    case SQLITE_READONLY:
        sys = EROFS;
        break;
    case SQLITE_IOERR:
        sys = sys ? sys : EIO;
        break;
    default:
        break;
    }

    if (sys == EMFILE || sys == ENFILE || sys == ENOMEM) {
        errno = sys;
        return pd_fail_sys(e, "%s", what);
    }

    pd_fail(e, PD_INTERNAL, "%s: %s%s%s: %s", what, sqlite3_errstr(rc), sys ? ": " : "",
            sys ? strerror(sys) : "", path);
    if (e)
        e->sys = sys;
    return -1;
}

int db_fail(struct db *d, int rc, const char *what, struct pd_err *e)
{
    return fail_on(d->path, rc, what, e);
}

sqlite3_stmt *db_statement(struct db *d, int number, const char *sql, struct pd_err *e)
{
    if (!d->statements[number]) {
        errno = 0;
        int rc = sqlite3_prepare_v3(d->handle, sql, -1, SQLITE_PREPARE_PERSISTENT,
                                    &d->statements[number], NULL);
        if (rc) {
            db_fail(d, sqlite3_extended_errcode(d->handle), "prepare a statement", e);
            return NULL;
        }
    }
    return d->statements[number];
}

int db_run(struct db *d, sqlite3_stmt *s, const char *what, struct pd_err *e)
{
    errno = 0;
    int rc = sqlite3_step(s);
    if (rc == SQLITE_ROW)
        rc = SQLITE_DONE;
    /* The error is read before the reset, which may overwrite it with a shorter one. */
    if (rc != SQLITE_DONE)
        db_fail(d, sqlite3_extended_errcode(d->handle), what, e);

    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return rc == SQLITE_DONE ? 0 : -1;
}

int db_run_durable(struct db *d, sqlite3_stmt *s, const char *what, struct pd_err *e)
{
    int rc = sqlite3_exec(d->handle, "PRAGMA synchronous=FULL", NULL, NULL, NULL);
    if (rc) {
        sqlite3_clear_bindings(s);
        return db_fail(d, rc, what, e);
    }

    int result = db_run(d, s, what, e);
    (void)sqlite3_exec(d->handle, "PRAGMA synchronous=NORMAL", NULL, NULL, NULL);
    return result;
}

/* Opening. */

static int run_sql(struct db *d, const char *sql, struct pd_err *e)
{
    errno = 0;
    int rc = sqlite3_exec(d->handle, sql, NULL, NULL, NULL);
    return rc ? db_fail(d, sqlite3_extended_errcode(d->handle), "open the database", e) : 0;
}

/* The first column of the first row as a number and, if asked, as text. */
static int ask(struct db *d, const char *sql, int64_t *ret, char *ret_text, size_t size,
               struct pd_err *e)
{
    sqlite3_stmt *s = NULL;

    errno = 0;
    int rc = sqlite3_prepare_v2(d->handle, sql, -1, &s, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) {
        *ret = sqlite3_column_int64(s, 0);
        const char *text = (const char *)sqlite3_column_text(s, 0);
        if (ret_text)
            snprintf(ret_text, size, "%s", text ? text : "");
    } else {
        db_fail(d, sqlite3_extended_errcode(d->handle), "open the database", e);
    }

    sqlite3_finalize(s);
    return rc == SQLITE_ROW ? 0 : -1;
}

static int fail_foreign(struct db *d, struct pd_err *e)
{
    return pd_fail(e, PD_INVALID,
                   "%s is the database of another program; move it away, or give paddock another "
                   "state directory",
                   d->path);
}

static int schema_migrate(struct db *d, struct pd_err *e)
{
    int64_t version, application, tables;

    /* Two processes may come here at once: the one that gets the write lock looks again. */
    if (run_sql(d, "BEGIN IMMEDIATE", e) < 0 ||
        ask(d, "PRAGMA user_version", &version, NULL, 0, e) < 0 ||
        ask(d, "PRAGMA application_id", &application, NULL, 0, e) < 0 ||
        ask(d, "SELECT count(*) FROM sqlite_master", &tables, NULL, 0, e) < 0)
        return -1;

    if (version >= SCHEMA_VERSION)
        return run_sql(d, "COMMIT", e);
    if (version < 0 || (version == 0 && (application != 0 || tables != 0)) ||
        (version > 0 && application != APPLICATION_ID))
        return fail_foreign(d, e);

    for (; version < SCHEMA_VERSION; version++)
        if (run_sql(d, migrations[version], e) < 0)
            return -1;

    char sql[100];
    snprintf(sql, sizeof sql, "PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT",
             APPLICATION_ID, SCHEMA_VERSION);
    return run_sql(d, sql, e);
}

static int schema_bring_up(struct db *d, struct pd_err *e)
{
    int64_t version, application;

    if (ask(d, "PRAGMA user_version", &version, NULL, 0, e) < 0 ||
        (version < SCHEMA_VERSION && schema_migrate(d, e) < 0) ||
        ask(d, "PRAGMA user_version", &version, NULL, 0, e) < 0 ||
        ask(d, "PRAGMA application_id", &application, NULL, 0, e) < 0)
        return -1;

    if (application != APPLICATION_ID)
        return fail_foreign(d, e);
    if (version > SCHEMA_VERSION)
        return pd_fail(e, PD_UNSUPPORTED,
                       "the database is of a newer paddock (schema %lld, this one knows %d): run "
                       "that version, or move it away and start anew: %s",
                       (long long)version, SCHEMA_VERSION, d->path);
    return 0;
}

static int check_whole(struct db *d, struct pd_err *e)
{
    int64_t number;
    char text[100];

    if (ask(d, "PRAGMA quick_check(1)", &number, text, sizeof text, e) < 0)
        return -1;
    return strcmp(text, "ok") == 0 ? 0 : db_fail(d, SQLITE_CORRUPT, "check the database", e);
}

static int make_dirs(const char *path, struct pd_err *e)
{
    char part[PATH_MAX];

    size_t len = strlen(path);
    if (len == 0 || len >= sizeof part - sizeof "/paddock.db-journal")
        return pd_fail(e, PD_INVALID, "the state directory's path has %zu characters", len);

    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0700) < 0 && errno != EEXIST && errno != EROFS && errno != EACCES)
            return pd_fail_sys(e, "make the directory %s", part);
    }
    return 0;
}

/* Files made by root belong to the directory's owner: `paddock key` as root must not leave the
 * daemon, which may be somebody else, with files that it cannot open. SQLite does the same for the
 * files it makes beside the database. */
static void give_to_owner(int fd, const struct stat *dir)
{
    if (geteuid() == 0 && dir->st_uid != 0)
        (void)!fchown(fd, dir->st_uid, dir->st_gid);
}

/* paddock.lock: byte DAEMON is the daemon's for its life; byte SETUP is held by a process that
 * opens or closes the database, because SQLite fails at once when two turn a new file into one with
 * WAL. */
enum { LOCK_DAEMON = 0, LOCK_SETUP = 1 };

static int lock_byte(int fd, int at, short type)
{
    struct flock byte = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &byte) < 0 ? -errno : 0;
}

/* Tries again, as SQLite does for its own locks, for BUSY_MS: a blocking call has no deadline, and
 * the holder may be a stopped process. */
static int lock_setup(int fd)
{
    deadline until = deadline_in(BUSY_MS * NS_PER_MS);

    for (long wait_us = 200;; wait_us = wait_us < 20000 ? 2 * wait_us : wait_us) {
        int error = lock_byte(fd, LOCK_SETUP, F_WRLCK);
        if ((error != -EAGAIN && error != -EACCES) || deadline_passed(until))
            return error;
        struct timespec pause = {.tv_nsec = wait_us * 1000};
        nanosleep(&pause, NULL);
    }
}

static int lock_daemon(int fd, const char *state_dir, struct pd_err *e)
{
    char pid[24] = "";

    int error = lock_byte(fd, LOCK_DAEMON, F_WRLCK);
    if (error == -EAGAIN || error == -EACCES) {
        ssize_t n = pread(fd, pid, sizeof pid - 1, 0);
        pid[n > 0 ? strspn(pid, "0123456789") : 0] = '\0';
        return pd_fail(e, PD_CONFLICT,
                       "another paddock server (pid %s) uses the state directory %s: stop it, or "
                       "give this one another with --state-dir",
                       pid[0] ? pid : "unknown", state_dir);
    }

    if (error) {
        errno = -error;
        return pd_fail_sys(e, "lock paddock.lock in %s", state_dir);
    }

    int n = snprintf(pid, sizeof pid, "%d\n", getpid());
    /* Without the pid the lock holds all the same: a full disk is reported by the database. */
    if (ftruncate(fd, 0) == 0)
        (void)!pwrite(fd, pid, (size_t)n, 0);
    return 0;
}

static int directory_lock(struct db *d, int dir, const struct stat *dir_stat, const char *state_dir,
                          int exclusive, struct pd_err *e)
{
    d->lock_fd =
        openat(dir, "paddock.lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (d->lock_fd < 0)
        return pd_fail_sys(e, "open paddock.lock in %s", state_dir);

    give_to_owner(d->lock_fd, dir_stat);
    if (exclusive && lock_daemon(d->lock_fd, state_dir, e) < 0)
        return -1;

    int error = lock_setup(d->lock_fd);
    if (error) {
        errno = -error;
        return pd_fail_sys(e, "wait for another process that opens the database in %s", state_dir);
    }
    return 0;
}

/* Makes the file, or checks the one that is there. It is never opened here when it exists: closing
 * it would drop the locks that SQLite holds on it through another connection of this process. */
static int file_prepare(int dir, const struct stat *dir_stat, const char *path, struct pd_err *e)
{
    auto_fd fd =
        openat(dir, "paddock.db", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0) {
        give_to_owner(fd, dir_stat);
        return 0;
    }

    struct stat s;
    if (errno != EEXIST)
        return pd_fail_sys(e, "make %s", path);
    if (fstatat(dir, "paddock.db", &s, AT_SYMLINK_NOFOLLOW) < 0)
        return pd_fail_sys(e, "look at %s", path);
    if (!S_ISREG(s.st_mode))
        return pd_fail(e, PD_INVALID, "%s is not a regular file", path);
    if ((s.st_mode & 077) && fchmodat(dir, "paddock.db", 0600, 0) < 0)
        return pd_fail_sys(e, "make %s private", path);
    return 0;
}

static int files_prepare(struct db *d, const char *state_dir, int exclusive, struct pd_err *e)
{
    if (make_dirs(state_dir, e) < 0)
        return -1;

    auto_fd dir = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat s;
    if (dir < 0 || fstat(dir, &s) < 0)
        return pd_fail_sys(e, "open the state directory %s", state_dir);

    if (s.st_mode & S_IWOTH)
        return pd_fail(e, PD_INVALID,
                       "everybody may write to the state directory %s: chmod it to 0700, or take "
                       "another",
                       state_dir);

    if (directory_lock(d, dir, &s, state_dir, exclusive, e) < 0)
        return -1;
    return file_prepare(dir, &s, d->path, e);
}

/* Checkpoints. */

static void flush_note(struct db *d, int pages)
{
    lock_take(&d->flush_lock);
    if (pages < d->flushed)
        d->flushed = 0; /* the WAL begins anew */

    int urgent = pages - d->flushed >= WAL_PAGES;
    if (!d->dirty || (urgent && !d->urgent))
        pthread_cond_signal(&d->flush_wake);
    d->dirty = 1;
    d->urgent |= urgent;
    lock_release(&d->flush_lock);
}

/* Called by SQLite after each commit, with d->lock held. */
static int on_commit(void *arg, sqlite3 *handle, const char *name, int pages)
{
    (void)name;
    flush_note(arg, pages);
    if (pages >= WAL_PAGES_MAX)
        (void)sqlite3_wal_checkpoint_v2(handle, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    return SQLITE_OK;
}

static void *flusher_main(void *arg)
{
    struct db *d = arg;

    lock_take(&d->flush_lock);
    while (!d->stop) {
        if (!d->dirty) {
            (void)lock_wait(&d->flush_wake, &d->flush_lock, deadline_in(REST_NS));
            continue;
        }

        deadline next = deadline_in(FLUSH_NS);
        while (!d->urgent && !d->stop && lock_wait(&d->flush_wake, &d->flush_lock, next))
            ;
        d->dirty = d->urgent = 0;
        lock_release(&d->flush_lock);

        /* A failure (disk full, another process at it) costs nothing but time: the rows are in the
         * WAL, and the next commit asks again. */
        int pages = 0, done = 0;
        int rc = sqlite3_wal_checkpoint_v2(d->flush_handle, NULL, SQLITE_CHECKPOINT_PASSIVE, &pages,
                                           &done);

        lock_take(&d->flush_lock);
        if (rc == SQLITE_OK && done > d->flushed)
            d->flushed = done;
    }
    lock_release(&d->flush_lock);
    return NULL;
}

static int flusher_start(struct db *d, struct pd_err *e)
{
    sqlite3 *handle = NULL;

    errno = 0;
    int rc = sqlite3_open_v2(d->path, &handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    /* A connection opens its files lazily: a read now, so that later there is nothing to fail. */
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(handle, "PRAGMA synchronous=NORMAL; SELECT count(*) FROM keys", NULL,
                          NULL, NULL);

    if (rc) {
        fail_on(d->path, rc, "open the database", e);
        sqlite3_close(handle);
        return -1;
    }
    d->flush_handle = handle;

    /* Signals are for the threads that expect them. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&d->flusher, NULL, flusher_main, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);

    if (error) {
        sqlite3_close(handle);
        d->flush_handle = NULL;
        errno = error;
        return pd_fail_sys(e, "start the database's thread");
    }

    sqlite3_wal_hook(d->handle, on_commit, d);
    return 0;
}

static void flusher_stop(struct db *d)
{
    if (!d->flush_handle)
        return;

    lock_take(&d->flush_lock);
    d->stop = 1;
    pthread_cond_signal(&d->flush_wake);
    lock_release(&d->flush_lock);
    pthread_join(d->flusher, NULL);
    sqlite3_close(d->flush_handle);
}

int db_open(struct db *d, const char *state_dir, int exclusive, struct pd_err *e)
{
    lock_init(&d->lock, LOCK_STORE);
    lock_init(&d->flush_lock, LOCK_FLUSH);
    cond_init(&d->flush_wake);

    int in_memory = strcmp(state_dir, ":memory:") == 0;
    if ((in_memory ? asprintf(&d->path, ":memory:")
                   : asprintf(&d->path, "%s/paddock.db", state_dir)) < 0) {
        d->path = NULL;
        return pd_fail(e, PD_CAPACITY, "open the database: out of memory");
    }

    if (!in_memory && files_prepare(d, state_dir, exclusive, e) < 0)
        return -1;

    errno = 0;
    int rc =
        sqlite3_open_v2(d->path, &d->handle,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc)
        return db_fail(d, rc, "open the database", e);

    sqlite3_extended_result_codes(d->handle, 1);
    sqlite3_busy_timeout(d->handle, BUSY_MS);
    int64_t number;
    char mode[16];
    if (run_sql(d, "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON; PRAGMA cache_size=-16384",
                e) < 0 ||
        ask(d, "PRAGMA journal_mode=WAL", &number, mode, sizeof mode, e) < 0)
        return -1;
    if (!in_memory && strcmp(mode, "wal") != 0)
        return pd_fail(e, PD_UNSUPPORTED,
                       "%s: the file system cannot do what the database needs (shared memory "
                       "maps); use a local one for the state directory",
                       d->path);

    /* The schema is written with the default, FULL: it is durable before the first row is. */
    if (schema_bring_up(d, e) < 0 || (exclusive && !in_memory && check_whole(d, e) < 0) ||
        run_sql(d, "PRAGMA synchronous=NORMAL", e) < 0)
        return -1;

    if (exclusive && !in_memory && flusher_start(d, e) < 0)
        return -1;
    if (!in_memory)
        (void)lock_byte(d->lock_fd, LOCK_SETUP, F_UNLCK);
    return 0;
}

void db_close(struct db *d)
{
    flusher_stop(d);

    /* The last one to close removes the WAL. Without the lock it would do so, too, only that a
     * process that opens at this moment might be told that the database is busy. */
    if (d->lock_fd >= 0)
        (void)lock_setup(d->lock_fd);

    for (int i = 0; i < DB_STATEMENTS; i++)
        sqlite3_finalize(d->statements[i]);
    sqlite3_close(d->handle);
    free(d->path);

    /* Last, so that the next holder of the locks finds the database closed. */
    fd_done(&d->lock_fd);
    pthread_cond_destroy(&d->flush_wake);
    lock_done(&d->flush_lock);
    lock_done(&d->lock);
}
