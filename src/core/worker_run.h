/* worker_run: one operation of a sandbox's worker (docs/workers.md), on behalf of whoever waits.
 *
 *     auto_worker w = WORKER_INIT;
 *     const char *const words[] = {"stat", path, NULL};
 *     if (worker_run_begin(&w, session, -1, user, 0, words, e) < 0 || worker_first(&w, &r, e) < 0)
 *         return -1;
 *
 * Everything that comes out of a worker is hostile: it is decoded strictly, bounded in size and in
 * time, and an error in it can only say what a file operation may say. A worker that is not known
 * to have ended is killed by worker_done, before its pipes are closed: so the end of its input is
 * never mistaken for the end of a file. */
#pragma once

#include "core/session.h"
#include "wire/record.h"

#define WORKER_QUIET_NS (60 * NS_PER_S)  /* without a sign of life */
#define WORKER_WHOLE_NS (600 * NS_PER_S) /* for one answer in records */
#define FILE_PATH_MAX   4095
#define FILE_PATH_SIZE  (FILE_PATH_MAX + 16) /* with /workspace in front of it */

struct worker_run {
    struct session *session;
    int waits; /* hangs up when nobody waits for the answer any more; or -1 */
    void *owner;
    struct worker_call call;
    bool begun;
    bool ended;       /* it has said its last word: no need to kill it */
    bool must_finish; /* goes on although nobody waits: it would leave things half done */
    uint64_t quiet_ns;
    deadline whole;
    struct buf scratch;
    struct record_stream stream;
};
#define WORKER_INIT                                                                                \
    ((struct worker_run){.waits = -1,                                                              \
                         .call = {.in = -1, .out = -1, .go = -1},                                  \
                         .quiet_ns = WORKER_QUIET_NS,                                              \
                         .scratch = RECORD_SCRATCH,                                                \
                         .stream = RECORD_STREAM(-1)})

/* Starts the operation: words[0] and what belongs to it, with NULL behind. `flags` of
 * session_worker. `waits`: as above; the caller's. */
int worker_run_begin(struct worker_run *w, struct session *s, int waits, const char *user,
                     unsigned flags, const char *const *words, struct pd_err *e);
void worker_done(struct worker_run *w);
#define auto_worker __attribute__((cleanup(worker_done))) struct worker_run

/* Reads one record and not a byte more, because raw bytes or nothing may follow. An ERROR is
 * raised, an end without a word explained. Waits for WORKER_QUIET_NS at most. */
int worker_first(struct worker_run *w, struct record *ret, struct pd_err *e);
/* The same, and any other kind than `kind` is an error. */
int worker_expect(struct worker_run *w, enum record_kind kind, struct record *ret,
                  struct pd_err *e);
/* The next of many records, after which no raw bytes follow: 1, or 0 at END or the end of the
 * stream, or -1. Not to be mixed with the two above, except behind them. */
int worker_next(struct worker_run *w, struct record *ret, struct pd_err *e);
/* 1 when worker_next would not have to wait. */
bool worker_has_next(const struct worker_run *w);

/* Waits for output, or for its end: 1. 0 at the deadline. -1 when nobody waits any more. */
int worker_wait(struct worker_run *w, deadline d, struct pd_err *e);
/* Waits for the worker's end, which was told by its pipe: 0 when it said that all went well. */
int worker_exit(struct worker_run *w, struct pd_err *e);
/* Gives the worker input, which stays open for more. A worker that does not want it all is asked
 * why. SIGPIPE must be ignored or blocked. */
int worker_write(struct worker_run *w, const void *data, size_t len, struct pd_err *e);
/* Raw bytes behind the first record: how many, 0 at the end, -1. */
ssize_t worker_read(struct worker_run *w, void *out, size_t size, struct pd_err *e);
/* All of the input was right: a worker that was begun with WORKER_COMMIT may change the file now.
 * If it has ended, its next record says why. SIGPIPE must be ignored or blocked. */
void worker_commit(struct worker_run *w);
/* Lets pipes hold more, for streams: fewer turns. */
void worker_widen(int pipe);

/* A path, absolute; a relative one is below /workspace. */
void file_path(char out[FILE_PATH_SIZE], const char *path);
