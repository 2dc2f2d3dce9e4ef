/* follow: the output of a command from some offset on, as it comes, and its end.
 *
 *   follow_begin
 *   loop:  follow_look    what is known of it now
 *          follow_read    until neither stream has a piece
 *          if f.ended: that was all
 *          follow_wait
 *   follow_end
 *
 * Whoever answers only when it has ended calls follow_await_end in place of the loop.
 *
 * From its end on only what was there then is told: children may go on writing for ever. Pieces
 * come from spools, so a follower that is slow costs no memory; what was forgotten before it was
 * read is skipped, and said. */
#pragma once

#include "base/err.h"
#include "core/process.h"

#include <stdbool.h>

enum follow_flags {
    FOLLOW_TEXT = 1,    /* no piece ends within a character of UTF-8, if the rest of it comes */
    FOLLOW_HOLDS = 2,   /* the writer waits, so that nothing is forgotten before it was read */
    FOLLOW_LISTENS = 4, /* this thread has started it with `listens`; process_let_go is its own */
};

struct follow {
    struct process *process;
    unsigned flags;
    struct watch watch;
    bool listens; /* there is no watch yet: follow_wait hears the sandbox itself */
    /* As of the last look. */
    struct process_info info;
    struct pd_err why; /* it was refused */
    bool ended;
    uint64_t end[STREAM_COUNT];
    /* How far it was read, and how many bytes the last follow_read has skipped. */
    uint64_t offset[STREAM_COUNT];
    uint64_t skipped;
};

/* `offset`: where to begin; NULL: at the start. The process is the caller's until follow_end. */
int follow_begin(struct follow *f, struct process *p, const uint64_t offset[STREAM_COUNT],
                 unsigned flags, struct pd_err *e);
void follow_end(struct follow *f);
/* From now on by the watch, for a caller who needs that. */
int follow_watch(struct follow *f, struct pd_err *e);

void follow_look(struct follow *f);
/* The next piece of a stream: its bytes, 0 when there is none (yet), -1. `f->offset` is behind it
 * then. If f->skipped is not 0, so many bytes before the piece were forgotten, even if it is empty.
 * `size` is at least 4. */
ssize_t follow_read(struct follow *f, unsigned stream, void *out, size_t size, struct pd_err *e);
/* Waits for news since the last look, until the deadline, or until `other_fd` (or -1) has one of
 * `other_events` or an error: 1 then. */
int follow_wait(struct follow *f, int other_fd, short other_events, deadline d, struct pd_err *e);

/* For those who want nothing but the end: as process_wait, and it listens first if it may. */
int follow_await_end(struct follow *f, int other_fd, deadline d, struct pd_err *e);
/* The last bytes of a stream as it is now, at most `size`: how many. They begin with a whole
 * character. */
size_t follow_tail(struct follow *f, unsigned stream, void *out, size_t size);

/* The next offset from `at` on that is not within a character, of a stream with `size` bytes. */
uint64_t process_next_character(struct process *p, unsigned stream, uint64_t at, uint64_t size);
