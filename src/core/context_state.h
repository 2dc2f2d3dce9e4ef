/* context_state: what contexts and executions are made of. For the files of contexts alone.
 *
 * Below `lock` of struct contexts is everything that changes. It is held around no call that can
 * wait; locks of the session layer are taken inside it. */
#pragma once

#include "core/context.h"
#include "core/session_state.h"

#include "contexts/languages.h"

#define EXECUTIONS_KEPT 64u            /* that have ended, per context: others are in journals */
#define PROCESSES_OF    2u             /* that have ended, kept for their journals */
#define INTERRUPT_GRACE (5 * NS_PER_S) /* from SIGINT to SIGKILL */
#define INTERRUPT_AGAIN (2500 * NS_PER_MS) /* from SIGINT to another one */
#define START_PATIENCE  (60 * NS_PER_S)    /* for the first event of a process */
#define SEND_PATIENCE   (60 * NS_PER_S)    /* for a driver that does not read */

/* A copy that was made before an execution, and how many there were then. */
#define SPARES_MAX 4u
struct spare {
    struct wire_id process;
    uint64_t count;
};

struct contexts {
    struct lock lock;
    struct context *list;
    /* context_zygote.c; `zygote_busy`: somebody makes a copy of it. */
    bool has_zygote, zygote_busy;
    struct wire_id zygote;
};

/* A descriptor that becomes readable when something of a context has changed. */
struct context_watch {
    struct context_watch *next;
    int event;
};

enum execution_state { EXECUTION_WAITING, EXECUTION_RUNNING, EXECUTION_ENDED };

struct execution {
    atomic_uint refs;
    struct execution *next;      /* in the line */
    struct execution *next_kept; /* newest first */
    char id[EXECUTION_ID + 1];
    struct buf request; /* the line for the driver, until it is sent */
    uint64_t timeout_ns;
    bool keep_before;

    enum execution_state state;
    bool is_owned; /* somebody sees to it */
    /* Of one with a key: the journal of `seen_in` was searched for it, up to `seen`. */
    bool is_looked_for;
    struct wire_id seen_in;
    uint64_t seen[STREAM_ALL];
    bool is_placed;             /* `process` and `begin` are set */
    struct wire_id process;     /* which runs or ran it */
    uint64_t begin[STREAM_ALL]; /* its start is behind these offsets */
    deadline due;               /* its time is over then */
    bool is_pending;            /* an earlier daemon has sent it, and its id is not known yet */
    unsigned starts;            /* of a pending one: executions before it */
    bool is_unwanted;           /* to be interrupted now: `reason` says why */
    bool restarted;             /* variables of earlier executions were not there, or are gone */
    char reason[16];
};

struct context {
    atomic_uint refs;
    struct contexts *table;
    struct session *session; /* not counted */
    struct context *next;
    char id[EXECUTION_ID + 1];
    const struct context_language *language;
    char language_name[64]; /* of the bridge: the kernel's */
    char *cwd, *name;
    struct msg_list_writer env;
    bool is_default, any_cwd;
    uint64_t created_ms;

    /* Under the table's lock: */
    bool gone;
    bool has_process;
    struct wire_id process;
    unsigned generation;    /* how many processes it has had */
    char lost[16];          /* why the last one ended that nobody has told of yet; "" */
    uint64_t count;         /* of the last start that was seen */
    struct execution *line; /* the first one runs, or is about to */
    struct execution *kept;
    struct spare spares[SPARES_MAX]; /* oldest first; only whoever has the turn adds one */
    unsigned spare_count;
    unsigned restarts; /* how often it was restarted */
    bool is_starting;  /* a default one that gets its first process: it counts already */
    bool has_attendant;
    struct context_watch *watches;
};

/* ---- context.c ---- */

struct contexts *contexts_of(struct session *s, struct pd_err *e);
/* May the session have one more? PD_CONFLICT. Asked before work that would be in vain; what counts
 * is the answer when it is added. */
int context_check_room(struct session *s, struct pd_err *e);
/* A context that is in no table yet. `id`: NULL for a new one. */
struct context *context_new(struct contexts *t, struct session *s, const char *id,
                            const struct context_request *r, struct pd_err *e);
/* Any word may be the name of a kernel: a default context that never had a process is taken out
 * again, unless it is in every list. */
void context_forget_unused(struct context *c);
/* With the lock held: adds it to the table; wakes everybody who watches it. */
void context_add(struct context *c);
/* Can its process do anything now? Not in a paused sandbox, for example. */
int context_check_usable(struct context *c, struct pd_err *e);
/* Adds it if its session may have one more. PD_CONFLICT. */
int context_add_within(struct context *c, struct pd_err *e);
/* Of a default one that has no process yet: from now on it counts, if the session may have one
 * more. PD_CONFLICT. */
int context_count_start(struct context *c, struct pd_err *e);
void context_wake(struct context *c);
int context_watch_begin(struct context *c, struct context_watch **ret, struct pd_err *e);
void context_watch_end(struct context *c, struct context_watch *w);

/* ---- context_process.c: the process behind the name ---- */

/* The process that it points to, held, whatever became of it; or NULL. */
struct process *context_process(struct context *c);
/* Where one starts whose directory cannot be entered, if that is no error; NULL behind the last. */
extern const char *const context_elsewhere[];
/* One that lives: the one that there is, or a new one. For whoever has the turn. */
int context_start(struct context *c, struct process **ret, struct pd_err *e);
/* `spare`: it has no name yet. */
int context_note_write(const struct context *c, unsigned generation, const char *lost, bool spare,
                       struct buf *out);
/* Is it one of this context's, by its note? */
bool context_owns(const struct context *c, const struct process *p);
/* Every process of it, newest first, held; at most `max`. */
unsigned context_processes(struct context *c, struct process **ret, unsigned max);
/* Ends it and removes every trace: its row before anything else. */
void context_disown(struct process *p);
/* Reads the note of a driver's process. -1 when it is none of ours. */
struct context_note {
    char id[EXECUTION_ID + 1], language[64], name[CONTEXT_NAME_MAX + 1], cwd[SPEC_PATH_MAX];
    char lost[16];
    bool is_default, any_cwd;
    unsigned generation;
    uint64_t created_ms;
    struct msg_list_writer env;
};
int context_note_read(const char *text, struct context_note *ret);
void context_note_done(struct context_note *n);
/* Why the process ended, as a word and in words. */
void context_explain_end(const struct process_info *i, const char *known, char reason[16],
                         char *text, size_t size);

/* Sends a new process what it needs first: its driver. */
int context_send_driver(const struct context_language *l, struct process *p, struct pd_err *e);

/* ---- context_zygote.c ---- */

/* A copy of the sandbox's zygote as the context's process, with this note. -1: there is none, or
 * it is not what a new process would be: one has to be started. */
int zygote_copy(struct context *c, const char *note, struct process **ret, struct pd_err *e);
/* Is the process a zygote, by its note? Then it is the session's from now on. */
bool zygote_adopt(struct session *s, struct process *p);

/* ---- context_fork.c ---- */

struct fork_request {
    bool force;                 /* though threads are lost */
    const struct msg_list *env; /* NULL: a copy of the context. Otherwise a fresh context, with */
    const char *cwd;            /* this environment, in this directory */
    bool any_cwd;               /* or in another one */
    bool fetches; /* the driver fetches its descriptors: they cannot go with the line */
};
/* A copy of the process with this note; for whoever has the turn of its context. */
int context_copy_process(struct context *c, struct process *parent, const char *note,
                         const struct fork_request *how, struct process **ret, struct pd_err *e);

/* For whoever is about to end the process: waits until the last copy of it has left its group. */
void context_await_copies(struct process *p);

/* For whoever has the turn: a copy of the process, as it is before an execution. */
int context_keep_before(struct context *c, struct process *p, struct pd_err *e);
void context_drop_spares(struct context *c);

/* ---- execution.c ---- */

struct execution *execution_new(const char *id);
/* With the lock held: puts it in front of those that are remembered. */
void execution_keep(struct context *c, struct execution *x);
/* It is over: the next one has its turn. */
void execution_finish(struct context *c, struct execution *x, bool restarted, const char *reason);
/* With the lock held: somebody sees to the first of the line, if nobody does. */
void execution_attend(struct context *c);

/* Waits until a pending one has started, and is known. False: there is none after all, or the
 * server stops. context_adopt.c. */
bool execution_await_start(struct context *c, struct execution *x, int stop_fd);
/* One more; false when the server stops. */
bool attendants_enter(struct sessions *all);
void attendants_leave(struct sessions *all);

/* ---- context_request.c ---- */

#define REQUEST_NAME_MAX 255u /* of a variable */

/* The line that asks a driver to run the code; appended. -1: no room. */
int request_run(const struct context *c, const char *id, const struct execution_request *r,
                struct buf *out);
/* The same for a copy of the driver; its descriptors go with it. */
int request_fork(const char *id, const struct fork_request *how, struct buf *out);
/* For a driver that was interrupted since the last time: has it wait for the signal. An interrupt
 * may come late, when its execution has ended: the kernel has it, but who hears it is another
 * thread of the driver, or the worker that stands for a fork. */
void context_settle(const struct context *c, struct process *p);
/* The same for what a zygote imports: names of modules with commas between them. */
int request_import(const char *id, const char *modules, struct buf *out);
