/* client_stream: the output of a command on its way to the user, by events or by WebSocket. */
#pragma once

#include "client/client.h"
#include "client/text.h"

/* Where bytes of a sandbox go. A terminal gets them filtered (text.h) unless raw was asked
 * for; files and pipes get them as they are. */
struct sink {
    int fd;
    int is_filtered;
    struct text_filter filter;
};
void sink_init(struct sink *s, int fd, int raw);
/* -1 with *e: PD_CONFLICT with EPIPE when nobody reads any more. */
int sink_write(struct sink *s, const void *data, size_t len, struct pd_err *e);
/* Before the end: what the filter still holds. */
void sink_end(struct sink *s);
/* The exit status for a stream that failed: told like other failures, except that a reader who had
 * enough is none: then it is that of SIGPIPE, and nothing is said. */
int stream_fail(const struct pd_err *e);

/* Signals that are passed on to the command: a descriptor that becomes readable for each. They are
 * blocked from then on. */
int signals_open(struct pd_err *e);
/* The next of them, 0 when there is none. */
int signals_next(int fd);

struct stream {
    struct remote *remote;
    const char *sandbox;
    char process[40]; /* pid or process_id; "" as long as it is not known */
    struct sink out, err;
    uint64_t offset[2];  /* behind what was received */
    int signals;         /* descriptor of signals_open, or -1 */
    int is_last_warning; /* a second Ctrl-C gives up */
    int given_up;        /* the signal that made us leave, or 0 */
    json_t *end;         /* how the command ended; NULL until it is known */
};

/* Reads events of an answer that has begun, until the end of the command. 0 with s->end set, or
 * s->given_up; -1 with *e, PD_LOST when the stream broke off and may be taken up again. */
int stream_read_events(struct stream *s, struct pd_err *e);
/* Takes up the stream of s->process at its offsets, again and again when it breaks off, for as long
 * as a server that restarts may take. */
int stream_follow(struct stream *s, struct pd_err *e);
/* Passes a signal on; notes when the user insists. */
void stream_signal(struct stream *s, int signal);

/* ---- WebSocket ---- */

enum { ATTACH_INPUT = 1, ATTACH_KEYS = 2 };
/* Attaches to s->process. ATTACH_INPUT: what is read from descriptor 0 goes in, and its end closes
 * the command's. ATTACH_KEYS: a terminal; Ctrl-] leaves, changes of its size are passed on.
 * Returns 0 with s->end set, 1 when the user left, -1. */
int stream_attach(struct stream *s, int flags, struct pd_err *e);
