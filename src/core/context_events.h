/* context_events: what the driver of a code context says, read without believing any of it.
 *
 * A driver shares memory with the code that it runs, so its events are claims. An event is a line
 * with one JSON object in ASCII; a mark is `0x1e ID SP SEQ 0x1e` within an output stream and says
 * that what is before it was written before event SEQ. Everything here is pure and bounded by the
 * text that is given; docs/contexts.md describes the format. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pd_err;

#define EVENT_MAX       (16u << 20) /* bytes of one line */
#define EVENT_DEPTH_MAX 512u        /* nested arrays and objects */
#define EXECUTION_ID    64u         /* characters at most: [A-Za-z0-9_-] */

enum context_event_type {
    EVENT_OTHER, /* a type that is not known: to be left out */
    EVENT_READY,
    EVENT_START,
    EVENT_RESULT,
    EVENT_ERROR,
    EVENT_END,
    EVENT_STDOUT,
    EVENT_STDERR,
    EVENT_FORKED,
    EVENT_REFUSED,
};

/* JSON text within the line: a whole value, which may go into an answer as it is. */
struct json_piece {
    const char *at; /* NULL: absent */
    size_t len;
};

struct context_event {
    enum context_event_type type;
    uint64_t seq;
    char id[EXECUTION_ID + 1];                /* "" when it has none */
    uint64_t count;                           /* of start */
    uint64_t memory;                          /* of ready and end; 0: not told */
    bool ok, truncated;                       /* of end */
    bool main;                                /* of result */
    struct json_piece data;                   /* of result: an object */
    struct json_piece name, value, traceback; /* of error: strings */
    struct json_piece text;                   /* of stdout and stderr: a string */
    struct json_piece why;                    /* of refused: a string */
    uint64_t pid, threads_lost;               /* of forked */
};

/* Reads a line without its newline. Strict: one object, no byte beyond ASCII, no NaN, nothing
 * behind it. Members of the wrong kind are refused, unknown ones left out. Surrogates that stand
 * alone are replaced by U+FFFD within the line, which has the same length; so every piece is JSON
 * that any reader takes. -1 with PD_PROTOCOL. */
int context_event_parse(char *line, size_t len, struct context_event *ret, struct pd_err *e);

/* The members of an object that was read: 1 with key (a string with its quotes) and value, and
 * *rest behind them; 0 at the end. At first *rest is the object itself. */
int json_piece_next(struct json_piece *rest, struct json_piece *ret_key,
                    struct json_piece *ret_value);
/* Is it the string with exactly this text, written without escapes? */
bool json_piece_is(const struct json_piece *p, const char *text);
/* What is between the quotes of a string; of one that begins and ends with the same quotation mark,
 * ' or ", without that pair. */
struct json_piece json_piece_bare(const struct json_piece *string);

/* Looks for the first mark of the execution `id` in a piece of a stream. */
enum mark_found {
    MARK_NONE,    /* all of the text is text */
    MARK_WHOLE,   /* [*ret_at, *ret_at + *ret_len) is a mark, of *ret_seq */
    MARK_PARTIAL, /* what begins at *ret_at may become one when more comes */
};
enum mark_found mark_find(const char *text, size_t len, const char *id, size_t *ret_at,
                          size_t *ret_len, uint64_t *ret_seq);
/* May it be the id of an execution or a context? */
bool execution_id_is_valid(const char *id);
/* Appends the text of a string as UTF-8. -1: no room. */
struct buf;
int json_piece_decode(const struct json_piece *string, struct buf *out);
