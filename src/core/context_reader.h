/* context_reader: one execution, read from the three spools of its driver's process.
 *
 * The spool of events is the journal: whoever knows the id of an execution finds its start, its
 * results and its end there, as often as he likes and whichever daemon answers. Text and events
 * come in the order in which they were written, by the marks in the output. A reader holds one
 * event and one piece of text at a time. */
#pragma once

#include "base/buf.h"
#include "base/clock.h"
#include "core/context_events.h"
#include "core/process.h"

#define READER_PIECE  (32u << 10)
#define LATE_PATIENCE (10 * NS_PER_S) /* for a mark that comes over a link */

struct context_reader {
    struct process *process; /* counted */
    char id[EXECUTION_ID + 1];
    /* How far it was told: a reader that begins there goes on with the next item. */
    uint64_t offset[STREAM_ALL];
    bool begun;                      /* the start was told, or was before the offsets */
    bool skim;                       /* no text is wanted */
    bool is_late;                    /* its streams come over a link, each in its own time */
    bool lost;                       /* something was forgotten before it was read */
    bool is_half;                    /* so what is up to the next newline is no whole line */
    uint64_t seq;                    /* of the last event that was told */
    bool has_event;                  /* `event` waits for the text before it, and then to be told */
    bool is_told[STREAM_COUNT];      /* all of that text of the stream was */
    bool has_no_marks[STREAM_COUNT]; /* one did not come: they are not waited for again */
    bool is_patient;                 /* with is_late: a mark is waited for, until `patience` */
    deadline patience;
    struct context_event event;
    /* Bytes of the journal from `ahead_at` on; the event's line ends at `line_end` in it. */
    struct buf ahead;
    uint64_t ahead_at;
    size_t scanned, line_end;
    char text[READER_PIECE];
};

enum reader_item {
    ITEM_NONE,   /* nothing yet */
    ITEM_TEXT,   /* *ret_len bytes in r->text, of *ret_stream */
    ITEM_EVENT,  /* r->event, until the next call */
    ITEM_BROKEN, /* the journal cannot be read: `e` says why */
    ITEM_OVER,   /* the process has ended, and all that it said was told */
};

/* `offset`: where to begin, from reader_next of an earlier one (`begun`), or where to look for the
 * start from. Takes a reference. */
void reader_init(struct context_reader *r, struct process *p, const char *id,
                 const uint64_t offset[STREAM_ALL], bool begun);
void reader_done(struct context_reader *r);
/* When reader_next has something to tell though nothing has come; DEADLINE_NONE: never. */
deadline reader_due(const struct context_reader *r);
/* `ended`: the process had ended before this call, so that no more can come. */
enum reader_item reader_next(struct context_reader *r, bool ended, unsigned *ret_stream,
                             size_t *ret_len, struct pd_err *e);

/* Every event of a journal, for whoever looks what became of its executions: calls `each` with the
 * offset of its line, until that returns non-zero. */
void journal_each(struct process *p,
                  int (*each)(const struct context_event *v, uint64_t at, void *arg), void *arg);
