/* sqlite_db: the connection under store/sqlite: opening, the lock, statements, errors, checkpoints.
 *
 * One connection does everything, behind `lock`; statements are prepared once. A second connection,
 * the checkpointer's, belongs to its thread alone. */
#pragma once

#include "base/lock.h"

#include <pthread.h>
#include <sqlite3.h>

struct pd_err;

#define DB_STATEMENTS 20

struct db {
    struct lock lock; /* handle and statements */
    sqlite3 *handle;
    sqlite3_stmt *statements[DB_STATEMENTS];
    char *path;
    int lock_fd; /* paddock.lock, or -1 */

    struct lock flush_lock; /* dirty ... flushed; taken last */
    pthread_cond_t flush_wake;
    pthread_t flusher;
    sqlite3 *flush_handle; /* the thread's; NULL: there is no thread */
    int dirty, urgent, stop;
    int flushed; /* pages of the WAL that are in the database */
};

/* *d must be zero but for lock_fd = -1. After a failure db_close is due all the same. */
int db_open(struct db *d, const char *state_dir, int exclusive, struct pd_err *e);
void db_close(struct db *d);

/* The rest: with d->lock held. */

/* The statement of that number, ready for binding; `sql` is what it is made from the first time. */
sqlite3_stmt *db_statement(struct db *d, int number, const char *sql, struct pd_err *e);
/* Runs a statement that gives no rows and unbinds it. */
int db_run(struct db *d, sqlite3_stmt *s, const char *what, struct pd_err *e);
/* The same, and it is on the disk before this returns (with all that was written before). */
int db_run_durable(struct db *d, sqlite3_stmt *s, const char *what, struct pd_err *e);
/* Puts SQLite's error into *e. `what`: "store a session". Returns -1. errno is part of it: it must
 * be zero before the call of SQLite that may fail. */
int db_fail(struct db *d, int rc, const char *what, struct pd_err *e);
