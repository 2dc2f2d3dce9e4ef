/* process_state: what a process is made of, and the functions of its parts. For the session layer
 * alone; process.h is for everybody.
 *
 * Everything below `lock` in struct process is under that lock; what is above it does not change
 * once the process is in its session's list. The lock is taken inside session.lock, and not held
 * across a call that can wait. */
#pragma once

#include "base/err.h"
#include "base/lock.h"
#include "core/process.h"
#include "core/pump.h"

#include <stdatomic.h>
#include <stdbool.h>

#define SPOOL_DEFAULT (64ull << 20)

/* The states of a command's life; process_life.c says what each means and which may follow which.
 * In this order: up to EXITED others see it run, from FINISHING on its end is known. */
enum process_state {
    PROCESS_STARTING,
    PROCESS_RUNNING,
    PROCESS_FINISHING,
    PROCESS_EXITED,
    PROCESS_ENDED,
    PROCESS_SETTLED,
    PROCESS_FAILED,
    PROCESS_BURIED,
    PROCESS_STATES,
};

/* process_row.flags; kept in the database, so numbers stay what they are. */
enum {
    ROW_SHELL = 1,
    ROW_PTY = 2,
    ROW_BACKGROUND = 4,
    ROW_BACK_PRESSURE = 8,
    ROW_REFUSED = 16,
    ROW_STATE_UPDATED = 32,
    ROW_UPDATES_STATE = 64, /* its end will tell the session's next state */
    ROW_OVER = 128,         /* ended, and its streams are at their ends */
    ROW_FORGOTTEN = 256,    /* its output was too much to be kept */
    ROW_DRIVER = 512,       /* the driver of a code context, with a third stream */
};

/* The tasks of the recorder for a process. */
enum {
    TASK_STORE = 1,
    TASK_END = 2,
    TASK_TIMEOUT = 4,
    TASK_DROP = 8,
    TASK_AGAIN = 16,
    TASK_PREPARE = 32
};

/* When a command that runs on gets its row. */
#define STORE_AFTER (5 * NS_PER_MS)

/* Where the line of a command is, as far as a prepared shell has to do with it; prepared.c. */
enum process_line {
    LINE_OWN,   /* its shell was started with it, or there is no line */
    LINE_GIVEN, /* it was written to a shell that waited */
    LINE_HELD,  /* the shell has all of it, but has not said that it begins */
    LINE_BEGUN, /* it runs, or did */
    LINE_BACK,  /* it was taken back from the shell, whose end is awaited */
    LINE_AGAIN, /* that shell has ended: another one is about to be started with it */
};

#define FORK_ID 31u /* characters of the id of a request for a copy, at most */

/* When one that has ended is settled: the thread that waited is about to answer. */
#define SETTLE_AFTER (2 * NS_PER_MS)

struct stream {
    struct pump_source source; /* its fd is the pipe's or terminal's near end; -1: over */
    struct process *process;
    struct spool spool;
    struct pump_timer retry; /* the disk was full */
    bool stopped;            /* not in the pump, because of that or of back-pressure */
    bool full;               /* bytes of it are waiting for space on the disk */
    uint64_t consumed;       /* what somebody has read; for back-pressure */
    uint64_t kept;           /* of its bytes, as kept.c has counted them */
};

/* The facts that a judgement of a command (session_judge.c) relied on. It holds as long as the
 * session has that box, and that directory and environment; a command starts only where it does. */
struct judgement {
    bool is_judged; /* else nothing was asked */
    bool by_state;  /* another directory or environment might make it another one */
    enum rung need; /* the least isolation that it may run with */
    struct wire_id box_id;
    uint64_t shell_version;
};

struct process {
    atomic_uint refs;
    struct session *session; /* counted */
    struct process *next;
    struct provider *provider; /* where it runs, or ran: its session may have moved since */
    struct wire_id id;
    unsigned group;
    uint64_t serial;
    char *command;
    char *key;
    uint64_t key_hash;
    /* Constant, but for the last. `unseen`: in no list, and forgotten as soon as it is settled; of
     * a driver it is set with the session's lock held, when its context lets go of it. `looks`: no
     * use of the sandbox (WORKER_LOOKS). */
    bool worker, unseen, reach, moves, looks, shell, pty, background, back_pressure, updates_state;
    /* A worker that runs and has answered: whoever asked it waits for nothing more. With the
     * session's lock held. */
    bool is_ending;
    bool driver; /* of a code context: it has a third stream */
    bool joins;  /* a copy of another driver, for which a worker stands */
    /* Of a driver: an interrupt was sent, and the next execution must not be hit by it. */
    atomic_bool is_interrupted;
    /* Of a driver: bytes, as it said behind its last execution; 0: it did not. */
    atomic_ullong memory;
    /* Of a driver: the last request for a copy of it ("": none), and where its streams were then.
     * With the session's lock held; context_fork.c. */
    char fork_id[FORK_ID + 1];
    uint64_t fork_at[STREAM_ALL];
    bool shadowed; /* shadow.c is to hear of its end */
    char *note;    /* changed by process_set_note alone */
    uint64_t spool_max, timeout_ns;
    struct judgement judgement;
    struct pump_timer timeout;
    struct tenant_count *kept_by; /* whose bytes its output is, or NULL: the pool's */
    deadline listen_until;        /* of a direct one */

    struct lock lock;
    enum process_state state; /* process_step's alone */
    int pid;
    /* How it ended. */
    bool refused; /* it never started: `why` */
    struct pd_err why;
    struct msg_exited end;
    enum process_stop stop;
    bool state_updated; /* of a shell command: cd and export were kept */
    bool forgotten;     /* its whole output was too much to be kept */
    struct msg_list_writer
        env; /* of the request: not to be taken for the session's. Until its end */
    uint64_t started_ms, ended_ms, started_ns, duration_us;
    /* Traces that outlive this daemon. Orthogonal to the state: a command is stored at any time of
     * its life, or never. */
    bool stored; /* a row says that it exists (before the answer does) */
    bool synced; /* the box has told of it, or it was started by this daemon */
    /* The keeper has copies of its descriptors, or is being sent them. */
    bool stashed, stashed_input;
    atomic_bool unwanted; /* its sandbox sleeps: no row of it is to be left */

    struct stream streams[STREAM_ALL]; /* process_stream_count of them are used */
    int via[2];                        /* of a terminal: between master and spool */
    int input;                         /* near end of stdin, or the terminal's master; -1 */
    int state_pipe;                    /* where a shell command tells its state; -1 */
    /* prepared.c: of a line that a shell got which had waited for one. */
    enum process_line line;
    bool line_gone;         /* its shell ended between being taken over and being given it */
    int line_pid;           /* of the shell that ended without it; 0 */
    char *line_text;        /* constant */
    int line_in, line_back; /* the ends of the pipe that it goes through; -1 */
    uint64_t given_ns;
    bool closed; /* the streams have left the pump for good */
    /* listen.c: */
    bool direct;    /* pump and recorder do not have it yet */
    bool listening; /* a request's thread hears its box */
    bool end_owed;  /* and has heard its end: it gives it to the recorder */
    struct watch *watches;
    unsigned readers; /* of the spools' descriptors, just now */

    /* The recorder's, under sessions.task_lock. */
    struct process *task_next;
    unsigned tasks;
    deadline task_due;
};

/* ---- process_life.c ---- */

const char *process_state_name(enum process_state s);
bool process_may_step(enum process_state from, enum process_state to);
/* Changes the state, with the lock held. A step that is not in the table changes nothing, is
 * logged, and aborts a test build. Returns whether it was taken. */
bool process_step(struct process *p, enum process_state to);
enum process_state process_state(struct process *p); /* takes the lock */

/* As far as others know, it runs. */
static inline bool process_state_is_live(enum process_state s)
{
    return s <= PROCESS_EXITED;
}

/* Both with the lock held. */
static inline bool process_is_live(const struct process *p)
{
    return process_state_is_live(p->state);
}

static inline bool process_has_end(const struct process *p)
{
    return p->state >= PROCESS_FINISHING;
}

static inline unsigned process_stream_count(const struct process *p)
{
    return p->driver ? STREAM_ALL : STREAM_COUNT;
}

/* All its streams are at their ends. With the lock held. */
static inline bool process_streams_are_over(const struct process *p)
{
    return p->streams[STREAM_OUT].source.fd < 0 && p->streams[STREAM_ERR].source.fd < 0 &&
           p->streams[STREAM_EVENTS].source.fd < 0;
}

/* The request is about to go out. */
void process_begin(struct process *p);
/* It never ran, which is told to whoever found it by its key. Returns false when its end is known
 * nevertheless; then it ends as usual. */
bool process_fail(struct process *p, const struct pd_err *why);
/* Pump's thread, or the one that listens: the first process has ended; the box could not start it.
 */
void process_on_exit(struct process *p, const struct msg_exited *end);
void process_on_refused(struct process *p, const struct pd_err *why);
/* Tells everybody of the end, if that is known and was not told. Takes the session's lock. */
void process_finish(struct process *p);
/* Pump's thread, with the lock held: space was found for its last output, maybe. */
void process_finish_late(struct process *p);
/* Tells of the end of one that failed or has left a state, after what that needs: the reason, the
 * session's row. Waits for provider and store. recorder.c. */
void process_conclude(struct process *p);
/* Finds out what stopped it, from the sandbox's counters. Asks the provider. */
void process_explain(struct process *p);
/* Did it need so much memory that something in it may have been killed for it? With the lock held.
 */
bool process_used_much(const struct process *p);
/* Its end is stored, and init has forgotten it. */
void process_settle(struct process *p);
/* Nothing more will come of it: settled, and its streams are closed. */
bool process_is_settled(struct process *p);
/* The sandbox is gone, and no event will come of it any more. */
void process_bury(struct process *p);

/* ---- process.c ---- */

struct process *process_new(struct session *s);
void process_stash_key(const struct process *p, const char *what, char out[MSG_KEY_MAX + 1]);

/* ---- process_streams.c ---- */

void process_init_streams(struct process *p);
/* How much of a stream its spool keeps. */
uint64_t process_spool_cap(const struct process *p);
/* A stream's spool, as it is before there is a file. */
struct spool process_spool(const struct process *p, unsigned stream);
/* Its streams go to the pump from now on. */
int process_begin_streams(struct process *p, struct pd_err *e);
/* All with the lock held, of a direct one: its open streams go to the pump and their output to
 * files; */
void process_pump_streams(struct process *p);
/* None of its streams and timers is in the pump any more, for good; returns when none of their
 * callbacks is running, but for the one that calls this. */
void process_leave_pump(struct process *p);
/* Closes them, for good. */
void process_close_streams(struct process *p);
/* Takes what is in the pipes of a direct one: is there more of it now? */
bool process_take_output(struct process *p);
/* The following with the lock held. What it wrote is in files, or -1: no file can take it. */
int process_settle_output(struct process *p, struct pd_err *e);
/* Takes what is in the pipes of a command that has ended. */
void process_drain(struct process *p);
/* Somebody has read, or reads no more: a stream that was held back may go on. */
void stream_release(struct stream *s);
/* Forgets its oldest bytes but for the last `window`, and for those that a reader must not miss. */
void stream_shrink(struct stream *s, uint64_t window);
/* Deletes its files, without the lock; those who read them now may go on. */
void process_discard_output(struct process *p);
bool process_waits_for_space(const struct process *p);
/* Wakes everybody who watches. */
void process_wake(struct process *p);

/* ---- process_control.c ---- */

/* SIGKILL to all that is left of it; `running`: also without a group. Waits for the keeper. */
int process_kill_tree(struct process *p, bool running, struct pd_err *e);

/* ---- listen.c ---- */

/* It begins with the thread of its request alone. Before it is in its session's list. */
void process_make_direct(struct process *p);
/* Gives its streams to the pump, if it is direct; returns whether it was. With the lock held. */
bool process_end_direct(struct process *p);

/* ---- recorder.c: rows, explanations and time-outs, off everybody's path ---- */

void recorder_add(struct process *p, unsigned task, uint64_t delay_ns);
int process_store(struct process *p, struct pd_err *e);
/* The keeper lets go of what it has of a process that has ended, as far as its streams are over. */
void process_drop_stash(struct process *p);
