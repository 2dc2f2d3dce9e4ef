/* process: a command in a sandbox, its streams and its end.
 *
 * Output belongs to a spool: the pump is the only reader of the pipes and splices them into files
 * whose byte offset is the stream's offset. Everybody else reads the spools, any number of times,
 * from any offset, and waits by a watch. Nothing here blocks on the sandbox.
 *
 * A process is counted: whoever holds one calls process_unref. */
#pragma once

#include "base/clock.h"
#include "core/spool.h"
#include "router/mode.h"
#include "wire/msg.h"
#include "wire/stop.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

struct pd_err;
struct placement;
struct session;
struct process;

/* The streams that every command has; and the third one of a driver (process_request.driver), which
 * few have and readers of commands know nothing of. */
enum { STREAM_OUT, STREAM_ERR, STREAM_COUNT, STREAM_EVENTS = STREAM_COUNT, STREAM_ALL };

/* A command that a client asks for. Strings are the caller's and copied. */
struct process_request {
    const char *command; /* a line for bash, with the session's state; or NULL and argv */
    struct msg_list argv;
    struct msg_list env; /* NAME=VALUE, on top of the session's */
    const char *usual;   /* one more, unless somebody has set it; or NULL */
    const char *cwd;     /* NULL: the session's */
    const char *user;    /* "user" (also NULL) or "root" */
    bool pty;            /* a terminal; its output is all STREAM_OUT */
    uint16_t rows, cols;
    bool keep_stdin; /* a pipe that can be written to; otherwise /dev/null or `input` */
    /* It is the driver of a code context: stdin is a socket, on which descriptors may go in and
     * nothing comes out, and descriptor 3 is a stream of its own, STREAM_EVENTS. */
    bool driver;
    /* It is a copy of this one, which is a driver, too: `fork_line` asks for it. */
    struct process *fork_of;
    const void *fork_line;
    size_t fork_line_len;
    const char
        *fork_name;    /* where its driver fetches the descriptors; NULL: they go with the line */
    const void *input; /* written to stdin, then closed; at most 1 MiB */
    size_t input_len;
    uint64_t timeout_ns; /* 0: none */
    uint64_t file_size;  /* RLIMIT_FSIZE, 0: none */
    uint64_t spool_max;  /* kept per stream; 0: the default */
    bool back_pressure;  /* at spool_max stop the writer instead of forgetting the oldest */
    bool background;     /* stays when nobody watches; stored before it starts */
    bool may_wait;       /* in the background, but stored only when it has run for a few
                          * milliseconds: nobody is to be told of it before process_info.stored */
    bool at_once;        /* a box that does not read what it is sent is not waited for */
    bool listens;        /* the caller calls process_listen next, and process_let_go at the end */
    bool unseen;         /* in no list, and forgotten as soon as it is settled */
    bool looks;          /* no use of the sandbox: it is as idle as it was */
    enum run_mode mode;  /* what it may run in; MODE_NONE: as the session's */
    struct placement *placement; /* how it was placed, told here; or NULL */
    const char *note;            /* for process_note; NULL: none; at most NOTE_MAX (session.h) */
    const char *key;             /* Idempotency-Key or NULL */
    uint64_t key_hash; /* of the request's body: the same key with another body is a conflict */
};

const char *process_stop_name(enum process_stop s); /* NULL for STOP_NONE */

struct process_info {
    char id[33];
    int pid; /* in the sandbox; 0 until it is known */
    bool running;
    bool refused;  /* it never started: process_get tells why */
    int exit_code; /* -1 while running or when a signal ended it */
    int signal;    /* 0 or the signal that ended it */
    enum process_stop stopped_by;
    bool timed_out;
    bool state_updated; /* of a shell command: cd and export were kept */
    bool shell, pty, background, stdin_open;
    bool stored;                   /* the next daemon will know it */
    bool forgotten;                /* its whole output was too much to be kept */
    uint64_t started_ms, ended_ms; /* since the epoch */
    uint64_t duration_us, cpu_usec, max_rss;
    uint64_t size[STREAM_ALL];  /* bytes written so far */
    uint64_t first[STREAM_ALL]; /* the oldest offset that is still there */
    char command[256];          /* for people: cut */
};

struct process *process_ref(struct process *p);
void process_unref(struct process *p);
void process_get(struct process *p, struct process_info *ret, struct pd_err *why);
/* The note that came with its request, as session_note: "" if none; a copy, to be freed. Stored
 * with the process: that of one in the background outlives the daemon. */
char *process_note(struct process *p);
/* Another one, of a process that is stored; it is stored when this returns 0. */
int process_set_note(struct process *p, const char *note, struct pd_err *e);

/* Reads from a stream's spool at `offset`: bytes, 0 when there is nothing (yet), -1. An offset that
 * was already forgotten is PD_INVALID and the message names the oldest one. */
ssize_t process_read(struct process *p, unsigned stream, uint64_t offset, void *out, size_t size,
                     struct pd_err *e);

/* A watch has a descriptor that becomes readable whenever the process has new output or has ended.
 * watch_clear before looking, poll after. */
struct watch {
    struct watch *next;
    int event;
    bool follows;
    uint64_t read[STREAM_ALL];
};
int process_watch(struct process *p, struct watch *w, struct pd_err *e);
void process_unwatch(struct process *p, struct watch *w);
void watch_clear(struct watch *w);

/* The holder of the watch will read the stream from here on and must not miss a byte: writers wait
 * while more than half a spool is unread, until this says that it was read, or until
 * process_unwatch. */
void process_follow(struct process *p, struct watch *w, unsigned stream, uint64_t offset);

/* Waits for news: 1, or 0 when the deadline has passed. */
int watch_wait(struct watch *w, deadline d);
/* Somebody has read the stream up to here; with back_pressure the writer may go on. */
void process_consumed(struct process *p, unsigned stream, uint64_t offset);
/* Of a driver: takes what is in its pipes now. True when nothing that was written before this call
 * is left in them; false when a reader or a full disk holds a stream back. */
bool process_take_streams(struct process *p);
/* Has it stored now, if it may wait and runs on; watches are woken then. */
void process_keep(struct process *p);
/* When its time is over; DEADLINE_NONE without a time-out. */
deadline process_deadline(const struct process *p);

/* Waits until its pid is known, 5 s at most: then it is still 0. Fails with the reason when it
 * could not be started. */
int process_await_pid(struct process *p, struct pd_err *e);
/* The same for an answer that names the pid: also PD_TIMEOUT when it is not known 60 s later, as
 * where a link is slow, or when `other_fd` (or -1) hangs up. The command may still begin. */
int process_await_start(struct process *p, int other_fd, struct pd_err *e);
/* Waits for the end. PD_TIMEOUT at the deadline. `other_fd` (or -1): returns 1 when that hangs up.
 */
int process_wait(struct process *p, struct watch *w, int other_fd, deadline d, struct pd_err *e);
/* Of one that does not end when it is stopped, as `e` says: why, if its container stands still. */
void process_explain_delay(struct process *p, struct pd_err *e);

/* Listens to the sandbox on this thread, for the first moments of a command that was started with
 * `listens` (listen.c). Returns when it has ended, when there is other news of it (with `output`:
 * its pid, its first bytes), when `other_fd` (or -1) has one of `other_events` or an error, or at
 * once when there is nothing (more) to be heard here: then the caller makes a watch and calls
 * process_hand_over. */
enum process_heard { HEARD_NOTHING, HEARD_END, HEARD_NEWS, HEARD_OTHER };
enum process_heard process_listen(struct process *p, int other_fd, short other_events, bool output,
                                  deadline d);
bool process_is_direct(struct process *p); /* process_listen may hear something */
/* The pump and the recorder have the command from now on. Of one that they have, nothing. */
void process_hand_over(struct process *p);
/* The caller has answered, or given up: what is left to be done of the command begins. */
void process_let_go(struct process *p);

/* To the first process; SIGKILL goes to the whole tree and returns after the end (1 s at most). */
int process_signal(struct process *p, int signal, struct pd_err *e);
/* Ends the whole tree, and notes why. */
int process_stop(struct process *p, enum process_stop why, struct pd_err *e);
/* Bytes to stdin or the terminal: as many as fit now; waits for room until the deadline. */
int process_write(struct process *p, const void *data, size_t len, deadline d, struct pd_err *e);
/* The same to a driver, with descriptors (`fd_count` of them, which stay the caller's) beside the
 * first bytes. PD_LOST when it does not read any more. */
int process_send(struct process *p, const void *data, size_t len, const int *fds, unsigned fd_count,
                 deadline d, struct pd_err *e);
/* Of a driver: has it not read all that it was sent? */
bool process_has_unread(struct process *p);
int process_close_stdin(struct process *p, struct pd_err *e);
int process_resize(struct process *p, uint16_t rows, uint16_t cols, struct pd_err *e);
