/* prepared: a shell that was started before its line is known.
 *
 * A session that runs lines has at most one. It is no process of the session: it is in no list and
 * no count but that of groups. It only saves time: whenever one is missing, does not fit or fails,
 * the line runs in a shell of its own, with the same result.
 *
 * How it works is in prepared.c. */
#pragma once

#include "base/clock.h"
#include "wire/msg.h"

#include <stdbool.h>

struct pd_err;
struct process;
struct process_request;
struct session;

/* The near ends of a prepared shell's pipes, -1 where there is none. */
struct prepared_ends {
    int line; /* its line goes in here; closing it ends the wait */
    int back; /* the other end of the same pipe, by which the line can be taken back */
    int out, err, state;
};

/* Under the session's lock. */
struct prepared {
    enum {
        PREPARED_NONE,
        PREPARED_WAITING,
        PREPARED_ENDING, /* its pipes are closed; its end is not told yet */
    } stage;
    struct wire_id id;
    unsigned group;
    uint64_t serial;  /* its group's owner */
    uint64_t version; /* session.shell_version when it was started */
    struct prepared_ends ends;
    deadline until;      /* waiting: given up then; ending: killed then */
    deadline not_before; /* no other is made until then, because the last one failed its line */
    uint64_t pause_ns;   /* how long that was */
    bool owed;           /* a line has ended in that time: one is made when it is over */
    bool died;           /* the last one ended before its time: counters may have risen with it */
    bool roomy;          /* when the sandbox was last looked at, */
    uint64_t looked_ns;  /* which was then */
};

void prepared_init(struct prepared *r);
/* Closes what is open; nobody uses the session any more. */
void prepared_done(struct prepared *r);

/* ---- a line's start; session_start.c ---- */

/* May a prepared shell run this request? */
bool prepared_fits(const struct process_request *r, uint32_t uid);
/* With the session's lock held, before the process is in a list: the process takes over the shell
 * that waits, with its id, group and pipes. False when there is none that fits. */
bool prepared_take(struct session *s, struct process *p);
/* Gives the shell its line; what becomes of it is told by events. The process is RUNNING from here
 * on. */
void prepared_give(struct process *p);

/* ---- a line's end ---- */

/* With the process's lock held: its shell has ended (that with this pid), or was refused (0). True
 * when the line was not run and is going to be, or is run, in another shell: then this was not the
 * command's end. Of a process that is still starting it is only noted. */
bool prepared_on_exit(struct process *p, int pid);
/* The recorder's. Does nobody know yet whether the shell has its line? Then the process is not to
 * be stored, and is looked at again. */
bool prepared_is_unsure(struct process *p);
/* The recorder's: runs the line in a shell of its own. */
void prepared_run_again(struct process *p);

/* ---- a waiting shell's life ---- */

/* The recorder's, when a command is settled: starts the shell of the next line, if this was one. */
void prepared_make(struct process *p);
/* The controller's: gives up one that has waited for long or that there is no room for, and makes
 * the one that no line could be followed by in the pause after a failure. */
void prepared_look(struct session *s, bool every_second);
/* Before the sandbox is paused, put to sleep or copied: gives up the one that waits, and returns
 * when it is gone, or after a second. The caller has begun a change of the session. */
void prepared_give_up(struct session *s);
/* The box is gone, and with it the shell. */
void prepared_forget(struct session *s);
/* Is this command the shell that waits? */
bool prepared_is(struct session *s, struct wire_id id);
/* Pump's thread: it has ended, or was refused. False when it is another command. */
bool prepared_ended(struct session *s, struct wire_id id);
/* How many of the sandbox's processes are prepared ones; with the session's lock held. */
unsigned prepared_count(const struct session *s);
